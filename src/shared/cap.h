/*-------------------------------------------------------------------------
 *
 * cap.h
 *	  A cap over several pools: max_server_connections for the pools of a
 *	  server, max_connections for all pools.
 *
 * Each connection has a token of each cap.  The token is acquired before the
 * worker connects and released after the connection has closed.  A pool that is
 * denied a token for a waiter competes by the age of that waiter: the cap
 * records the pool with the oldest waiter as next in line, and while it is
 * recorded no pool with a younger waiter gets a token.
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
 * limit: the number of tokens; 0: no limit.  since: start of the wait of the
 * first waiter of the pool; 0: it has no waiter.
 */
extern PgpxToken pgpx_cap_acquire(PgpxCap *cap, int limit, int pool,
								  int64 since);

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
