/*-------------------------------------------------------------------------
 *
 * cap.h
 *	  A cap over several pools: max_server_connections and the share of
 *	  cluster_connections for the pools of a server, max_connections for all
 *	  pools.
 *
 * Each connection has a token of each cap.  The token is acquired before the
 * worker connects and released after the connection has closed.  A pool that is
 * denied a token for a waiter competes by the age of that waiter: the cap
 * records the pool with the oldest waiter as next in line, and while it is
 * recorded no pool with a younger waiter gets a token.
 *
 * The share (locks/share.c) is a second limit, which the worker changes at any
 * time.  It is read in the critical section that counts the token: once the
 * worker has lowered it, no process acquires a token under the old value.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CAP_H
#define PGPX_CAP_H

#include "base/compat.h"

#include "port/atomics.h"
#include "storage/s_lock.h"

typedef struct PgpxCap
{
	slock_t		mutex;

	/* protected by mutex */
	int			used;			/* tokens in use */
	int			share;			/* tokens that other servers leave this one */
	int64		share_until;	/* pgpx_steady_now: the share may be used until
								 * then; 0: it was never granted */
	uint64		share_remote;	/* pgpx_pool_remote of the pools that may use
								 * the share; 0: it was never granted */
	uint32		moves;			/* incremented by each acquire and release */
	int			next_in_line;	/* index of a pool; valid unless since is 0 */
	uint32		line_changes;	/* incremented when a denied pool becomes
								 * next in line */

	/*
	 * written under mutex: start of the wait of the first waiter of that
	 * pool; 0: no pool is next in line
	 */
	pg_atomic_uint64 since;
} PgpxCap;

/* A pool's claim to tokens of the share. */
typedef struct PgpxShareClaim
{
	int64		now;			/* pgpx_steady_now; 0: the pool's server has no
								 * share, and "remote" is not used */
	uint64		remote;			/* pgpx_pool_remote of the pool */
} PgpxShareClaim;

typedef enum PgpxToken
{
	PGPX_TOKEN_ACQUIRED,
	PGPX_TOKEN_DENIED,
	PGPX_TOKEN_DENIED_NEXT		/* denied, and the pool has become next in
								 * line */
} PgpxToken;

extern void pgpx_cap_init(PgpxCap *cap);

/*
 * pgpx_cap_acquire
 *		Acquire a token for a pool.
 *
 * limit: the number of tokens; 0: no limit.  claim: see PgpxShareClaim.  Unless
 * claim.now is 0, the share is a limit, too.  since: start of the wait of the
 * first waiter of the pool; 0: it has no waiter.
 */
extern PgpxToken pgpx_cap_acquire(PgpxCap *cap, int limit,
								  PgpxShareClaim claim, int pool, int64 since);

/*
 * Return how many tokens are left, 0 or less if none.  limit and claim: as
 * for pgpx_cap_acquire.
 */
extern int	pgpx_cap_left(PgpxCap *cap, int limit, PgpxShareClaim claim);

/*
 * Return how many tokens exceed the limit or the share, 0 if none.  A share
 * that is no longer valid is ignored: open connections stay, although no token
 * can be acquired.
 */
extern int	pgpx_cap_surplus(PgpxCap *cap, int limit, PgpxShareClaim claim);

/* Lower the share to at most "share", and return the tokens in use. */
extern int	pgpx_cap_lower_share(PgpxCap *cap, int share);

/* Set the share.  until and remote: see share_until and share_remote. */
extern void pgpx_cap_set_share(PgpxCap *cap, int share, int64 until,
							   uint64 remote);

/* Reset the share to one that was never granted. */
extern void pgpx_cap_forget_share(PgpxCap *cap);

/* Return the share, and its validity in *until. */
extern int	pgpx_cap_share(PgpxCap *cap, int64 *until);

/* Release a token, and return how many were in use before. */
extern int	pgpx_cap_release(PgpxCap *cap);

/* Return the tokens in use. *moves changes with each acquire and release. */
extern int	pgpx_cap_used(PgpxCap *cap, uint32 *moves);

/*
 * Return whether another pool is next in line, with an older waiter than this
 * pool's first one.  since: start of the wait of that one; 0: this pool has no
 * waiter, so any other pool's waiter is older.
 */
extern bool pgpx_cap_has_older(PgpxCap *cap, int pool, int64 since);

/*
 * Return the pool that is next in line; -1: none.  Pass *line_changes to
 * pgpx_cap_set_next_in_line.
 */
extern int	pgpx_cap_next_in_line(PgpxCap *cap, uint32 *line_changes);

/*
 * pgpx_cap_set_next_in_line
 *		Record the pool that is next in line after all pools were checked; since
 *		0: none is.
 *
 * Do nothing if a denied pool has become next in line since "line_changes" was
 * read, because that denial requested another check.  Return true if a pool was
 * next in line before the call, and none is after it.
 */
extern bool pgpx_cap_set_next_in_line(PgpxCap *cap, int pool, int64 since,
									  uint32 line_changes);

/* If this pool is next in line, clear the record: the pool no longer exists. */
extern void pgpx_cap_forget(PgpxCap *cap, int pool);

#endif							/* PGPX_CAP_H */
