/*-------------------------------------------------------------------------
 *
 * pool_evict.c
 *	  Make room under a cap: close the idle connection of another pool that was
 *	  used longest ago.
 *
 * Shared memory only.  A pool that has waiters may take any connection that nobody
 * uses (steward.c).  What nobody waits for, min_size and prewarm, takes the surplus
 * of other pools only: connections above their own min_size.
 *
 *-------------------------------------------------------------------------
 */
#include "pool.h"

PgpxCap *
pgpx_pool_binding_cap_locked(const PgpxPool *pool, int extra)
{
	PgpxCap    *own = &pgpx_servers[pool->server].cap;
	int			limit = pool->opts.max_server_connections;

	Assert(LWLockHeldByMe(pool->lock));
	if (pgpx_pool_wanted_locked(pool, extra) == 0)
		return NULL;
	if (limit > 0 && pgpx_cap_used(own, NULL) >= limit)
		return own;
	if (pgpx_cap_used(&pgpx_shared->cap, NULL) >= pgpx_shared->max_connections)
		return &pgpx_shared->cap;
	return NULL;
}

/*
 * The free connection of a pool that was used longest ago, if it may be evicted;
 * -1: there is none.
 */
static int
victim_locked(const PgpxPool *pool, PgpxEvict which, PgpxTime now)
{
	int			oldest = pool->lru_tail;

	Assert(LWLockHeldByMe(pool->lock));
	if (oldest < 0 || which == PGPX_EVICT_ANY)
		return oldest;
	if (pgpx_pool_total_locked(pool) - pool->count[PGPX_CONN_CLOSING] <=
		pgpx_pool_min_size_locked(pool))
		return -1;
	if (which == PGPX_EVICT_UNUSED_SURPLUS &&
		now - pgpx_conns[oldest].last_used < PGPX_EVICT_UNUSED_US)
		return -1;
	return oldest;
}

bool
pgpx_pool_evict(int beneficiary, bool same_server, PgpxEvict which)
{
	PgpxPool   *best = NULL;
	PgpxTime	best_used = PG_INT64_MAX;
	PgpxTime	now = pgpx_now();
	int			oldest;

	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];

		if (pool->pool_id == 0 || i == beneficiary ||
			(same_server && pool->server != pgpx_pools[beneficiary].server))
			continue;
		LWLockAcquire(pool->lock, LW_SHARED);
		if (pool->count[PGPX_CONN_CLOSING] > 0)
			best_used = -1;		/* a place is about to come free */
		oldest = victim_locked(pool, which, now);
		if (oldest >= 0 && pgpx_conns[oldest].last_used < best_used)
		{
			best = pool;
			best_used = pgpx_conns[oldest].last_used;
		}
		LWLockRelease(pool->lock);
	}
	if (best_used < 0)
		return true;
	if (best == NULL)
		return false;

	LWLockAcquire(best->lock, LW_EXCLUSIVE);
	oldest = victim_locked(best, which, now);
	if (oldest >= 0)
		pgpx_pool_close_locked(best, &pgpx_conns[oldest], PGPX_CLOSE_EVICTED);
	LWLockRelease(best->lock);
	return true;
}
