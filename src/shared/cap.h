/*-------------------------------------------------------------------------
 *
 * cap.h
 *	  Caps over several pools: max_server_connections for the pools of a
 *	  server, max_connections for all pools.
 *
 * Each connection has a permit of each cap.  The permits are acquired before the
 * worker connects and released after the connection has closed.
 *
 * The rule for a full cap.  A pool that a cap keeps from opening connections
 * for its waiters records how many it lacks (PgpxPool.lacks).  Free permits are
 * for the pools that lack some, in the order of their first waiters:
 *	- a pool acquires a permit only if more are free than pools with older
 *	  waiters lack;
 *	- a connection that is released counts as a free permit, so under the same
 *	  condition it is kept, and otherwise closed;
 *	- for a pool that lacks permits, the worker evicts the connection of another
 *	  pool that has been idle longest.
 * A pool that grows although all its waits are short takes free permits, and
 * connections that other pools have not used for PGPX_EVICT_UNUSED_US.
 * So permits are assigned by the age of waiters, and no pool starves.  Nothing is
 * reserved: a waiter that leaves, or a worker that exits, leaves nothing behind.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CAP_H
#define PGPX_CAP_H

#include "shared/pool.h"

/* Return the permits in use. *moves changes with each acquire and release. */
extern int	pgpx_cap_used(PgpxCap *cap, uint32 *moves);

/*
 * pgpx_cap_acquire_locked
 *		Acquire a permit of each cap for a pool.  On false it has acquired none,
 *		and lacks_all is set if the cap over all pools denied it.
 */
extern bool pgpx_cap_acquire_locked(PgpxPool *pool);

/* Release the permit of the server, because a lease is broken from now on. */
extern void pgpx_cap_release_server(PgpxPool *pool);

/*
 * Release the permits of a connection that has closed.  broken: that of the
 * server has been released.
 */
extern void pgpx_cap_release(PgpxPool *pool, bool broken);

/*
 * pgpx_cap_left_locked
 *		Return how many permits of a cap the pool may have: those that are free,
 *		without those that pools with older waiters lack.
 *
 * all: the cap over all pools; else that of the server.  soon: the permits of
 * connections that are closing, or broken, count as free.  The result is
 * negative if more are lacking than free, or if the limit was lowered, and
 * PG_INT32_MAX without a limit.  Other pools are read without their locks.
 */
extern int	pgpx_cap_left_locked(const PgpxPool *pool, bool all, bool soon);

/*
 * Return whether a connection that is released to this pool must be closed
 * instead of kept.
 */
extern bool pgpx_cap_must_close_locked(const PgpxPool *pool);

/*
 * Return how many free connections of the pool must be closed because
 * max_server_connections was lowered.
 */
extern int	pgpx_cap_surplus_locked(const PgpxPool *pool);

/*
 * How long connections of other pools must be unused to be evicted for
 * min_size or min_idle, or for a pool whose waits are short.
 */
#define PGPX_EVICT_UNUSED_US (1000 * 1000)

typedef enum PgpxEvict
{
	PGPX_EVICT_ANY,				/* for waiters: any free connection, but
								 * preferably one of a pool above its min_size
								 * and min_idle */
	PGPX_EVICT_SURPLUS,			/* for prewarm: only such a one */
	PGPX_EVICT_UNUSED_SURPLUS	/* else: of these, one that was not used for
								 * PGPX_EVICT_UNUSED_US; otherwise two pools
								 * would evict each other's connections
								 * continually */
} PgpxEvict;

/*
 * pgpx_cap_evict
 *		Close the least recently used free connection of another pool than
 *		"beneficiary" under the same cap.
 *
 * all: the cap is that over all pools.  Then a lease of a broken connection is
 * revoked instead, if there is one.
 *
 * Return whether a permit is about to be released; a connection that is already
 * closing counts.  The caller must not hold a pool lock.
 */
extern bool pgpx_cap_evict(int beneficiary, bool all, PgpxEvict which);

#endif							/* PGPX_CAP_H */
