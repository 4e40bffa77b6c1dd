/*-------------------------------------------------------------------------
 *
 * growth.h
 *	  How many connections a pool lacks: sizes, estimates of durations.
 *
 * The functions only compute; pgpx_pool_grow_locked requests the connections.
 * All must be called with the pool lock held.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_GROWTH_H
#define PGPX_GROWTH_H

#include "shared/conn_state.h"

/* Return the cap of the pool: pool_size plus max_overflow. */
extern int	pgpx_pool_cap_locked(const PgpxPool *pool);

/* Return min_size, limited by that cap. */
extern int	pgpx_pool_min_size_locked(const PgpxPool *pool);

/* Return min_idle, limited by pool_size. */
extern int	pgpx_pool_min_idle_locked(const PgpxPool *pool);

/* Return the number of free connections: idle, or with a reset pending. */
extern int	pgpx_pool_free_locked(const PgpxPool *pool);

/*
 * Return how many connections the pool lacks for min_size and min_idle; 0 or
 * less: none.  Failures of earlier connects, and caps over several pools, are
 * disregarded.
 */
extern int	pgpx_pool_lacking_locked(const PgpxPool *pool);

/* Does the worker have the conninfo of the pool's current version? */
extern bool pgpx_pool_has_conninfo_locked(const PgpxPool *pool);

/* Must this pool yield tokens to another pool whose first waiter is older? */
extern bool pgpx_pool_must_yield_locked(PgpxPool *pool);

/*
 * Return how many connects the pool would request, disregarding the caps over
 * several pools.  Changes nothing.
 */
extern int	pgpx_pool_missing_locked(const PgpxPool *pool, int extra);

/*
 * pgpx_pool_growth_due_locked
 *		Return when pgpx_pool_grow_locked must be called again, because by then
 *		waiters should be served for which the pool does not grow now.  0: the
 *		pool does not delay its growth.
 *
 * A session calls it when it has enqueued, and keeps the time.  The worker does
 * so where another event delays the growth.
 */
extern PgpxTime pgpx_pool_growth_due_locked(const PgpxPool *pool);

/*
 * pgpx_pool_queued_locked
 *		Return how many waiters must wait until a lease ends: those beyond the
 *		number of connections that are being opened, reset or tested, and of
 *		slots that are free or about to become free.
 */
extern int	pgpx_pool_queued_locked(PgpxPool *pool);

/* Adjust the estimates by a lease that has ended, or a connect. */
extern void pgpx_growth_note_lease_locked(PgpxPool *pool, PgpxTime held);
extern void pgpx_growth_note_connect_locked(PgpxPool *pool, PgpxTime took);

#endif							/* PGPX_GROWTH_H */
