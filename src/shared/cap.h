/*-------------------------------------------------------------------------
 *
 * cap.h
 *	  A cap over several pools: max_server_connections over those of a server,
 *	  max_connections over all.
 *
 * A connection has a token of each, which is reserved before the worker connects
 * and given back when it has really closed.  Whoever is denied one for a ticket
 * stands in line by the age of that ticket: the pool with the oldest is named
 * here, and as long as its name stands nobody younger gets a token.
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
	int			used;			/* tokens that are out */
	uint32		moves;			/* of tokens, either way */
	int			starved;		/* the pool that has waited longest for one */
	uint32		next_in_line;	/* how often one was named when it was denied */

	/* written under mutex: since when its first ticket waits; 0: none is hungry */
	pg_atomic_uint64 since;
} PgpxCap;

typedef enum PgpxToken
{
	PGPX_TOKEN_ACQUIRED,
	PGPX_TOKEN_DENIED,
	PGPX_TOKEN_DENIED_NEXT		/* .. and the pool is the hungriest now, as of now */
} PgpxToken;

extern void pgpx_cap_init(PgpxCap *cap);

/*
 * pgpx_cap_acquire
 *		Reserve a token for a pool whose first ticket waits since then (0: it has
 *		none).  limit: how many may be out, 0: any number.
 */
extern PgpxToken pgpx_cap_acquire(PgpxCap *cap, int limit, int pool,
								  int64 since);

/* Give a token back; returns how many were out before. */
extern int	pgpx_cap_release(PgpxCap *cap);

/* How many tokens are out, and a number that changes with each that moves. */
extern int	pgpx_cap_used(PgpxCap *cap, uint32 *moves);

/* Has another pool waited longer for a token than one whose ticket is so old? */
extern bool pgpx_cap_has_older(PgpxCap *cap, int pool, int64 since);

/* The hungriest pool; -1: none.  *named is for pgpx_cap_set_next_in_line. */
extern int	pgpx_cap_next_in_line(PgpxCap *cap, uint32 *next_in_line);

/*
 * pgpx_cap_set_next_in_line
 *		Name the hungriest of all, or with 0 nobody, after a look at all.  Not if
 *		one was denied a token since "next_in_line": that one has asked for another look.
 *		Returns whether somebody was named and nobody is now.
 */
extern bool pgpx_cap_set_next_in_line(PgpxCap *cap, int pool, int64 since,
									  uint32 next_in_line);

/* The pool is no more: it need not be left anything. */
extern void pgpx_cap_forget(PgpxCap *cap, int pool);

#endif							/* PGPX_CAP_H */
