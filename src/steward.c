/*-------------------------------------------------------------------------
 *
 * steward.c
 *	  Who gets a place when a cap binds: max_server_connections over the pools of
 *	  a server, max_connections over all pools.
 *
 * A pool with waiters that may not grow because of a cap is hungry.  The one
 * whose first ticket is oldest is named in shared memory, and then
 *	- the connection that has been idle longest in another pool is closed for it,
 *	- a connection that is returned to a younger pool is closed instead of kept,
 *	- a younger pool does not grow.
 * So places go by the age of tickets, and no pool starves.  The sibling pools of a
 * server have one worker, so one process decides.  (The least recently used over
 * all groups gives way: as in Cloudflare's pingora, pingora-pool.)
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

/* Which cap keeps this pool from growing; NULL: none. */
static PgpxHungry *
binding_cap(PgpxPool *pool)
{
	PgpxServer *server = &pgpx_servers[pool->server];
	int			cap = pool->opts.max_server_connections;

	if (pool->pool_id == 0 || pool->nwaiting == 0 || pool->retry_at != 0 ||
		pgpx_pool_is_paused(pool) || pool->count[PGPX_CONN_CONNECTING] > 0 ||
		pgpx_pool_total_locked(pool) >= pgpx_pool_cap_locked(pool))
		return NULL;
	if (cap > 0 && (int) pg_atomic_read_u32(&server->used) >= cap)
		return &server->hungry;
	if (*(volatile int *) &pgpx_shared->nfree == 0)
		return &pgpx_shared->hungry;
	return NULL;
}

/* Since when the pool's first ticket waits; 0: none does. */
static PgpxTime
first_since(PgpxPool *pool)
{
	PgpxTime	since = 0;

	LWLockAcquire(pool->lock, LW_SHARED);
	if (pool->queue_head >= 0)
		since = pgpx_tickets[pool->queue_head].since;
	LWLockRelease(pool->lock);
	return since;
}

/*
 * Close the connection that has been idle longest in another pool under the same
 * cap; false if none is idle.  One that is closing already is waited for.
 */
static bool
evict_for(int hungry, bool same_server)
{
	PgpxPool   *best = NULL;
	PgpxTime	best_used = PG_INT64_MAX;

	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		int			oldest;

		if (pool->pool_id == 0 || i == hungry ||
			(same_server && pool->server != pgpx_pools[hungry].server))
			continue;
		LWLockAcquire(pool->lock, LW_SHARED);
		if (pool->count[PGPX_CONN_CLOSING] > 0)
			best_used = -1;		/* a place is about to come free */
		oldest = pool->idle_tail >= 0 ? pool->idle_tail : pool->owed_head;
		if (oldest >= 0 && pgpx_conns[oldest].last_used < best_used)
		{
			best = pool;
			best_used = pgpx_conns[oldest].last_used;
		}
		LWLockRelease(pool->lock);
	}
	if (best == NULL || best_used < 0)
		return false;

	LWLockAcquire(best->lock, LW_EXCLUSIVE);
	if (best->idle_tail >= 0)
		pgpx_pool_close_locked(best, &pgpx_conns[best->idle_tail],
							   PGPX_CLOSE_EVICTED);
	else if (best->owed_head >= 0)
		pgpx_pool_close_locked(best, &pgpx_conns[best->owed_head],
							   PGPX_CLOSE_EVICTED);
	LWLockRelease(best->lock);
	return true;
}

/* The hungriest of the pools under a cap; all those of a server, or all. */
static void
name_hungriest(PgpxHungry *cap)
{
	PgpxTime	oldest = 0;
	int			hungriest = -1;

	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxTime	since;

		if (binding_cap(&pgpx_pools[i]) != cap)
			continue;
		since = first_since(&pgpx_pools[i]);
		if (since != 0 && (oldest == 0 || since < oldest))
		{
			oldest = since;
			hungriest = i;
		}
	}
	if (hungriest >= 0)
		pg_atomic_write_u32(&cap->pool, hungriest);
	pg_atomic_write_u64(&cap->since, (uint64) oldest);
	if (hungriest >= 0)
		(void) evict_for(hungriest, cap != &pgpx_shared->hungry);
}

/* Is this pool the one that places are left to? */
static bool
is_named(const PgpxHungry *cap, int pool)
{
	return pg_atomic_read_u64((pg_atomic_uint64 *) &cap->since) != 0 &&
		(int) pg_atomic_read_u32((pg_atomic_uint32 *) &cap->pool) == pool;
}

/*
 * The cap no longer keeps the named pool from growing.  It grows now, while its
 * name still holds the others back; then the next one is named.
 */
static void
feed(int index, PgpxHungry *cap)
{
	PgpxPool   *pool = &pgpx_pools[index];
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pgpx_pool_serve_locked(pool, &wake);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	name_hungriest(cap);
}

/*
 * Is a pool another worker's, who has it grow while its name still stands?  To
 * take the name away before would give its place to who has just freed it.
 */
static bool
is_anothers(const PgpxPool *pool)
{
	return pool->pool_id != 0 && pool->worker != pgpx_worker_index &&
		pool->nwaiting > 0 && pgpx_pool_worker_epoch(pool) != 0;
}

/*
 * A name whose pool is not kept back by that cap any more, or is no more: its last
 * waiter may have left, and its place been taken, since we looked.  Nobody else
 * would find it, and it would hold others back for ever.
 */
static void
check_name(PgpxHungry *cap)
{
	PgpxPool   *named = &pgpx_pools[pg_atomic_read_u32(&cap->pool)];

	if (pg_atomic_read_u64(&cap->since) == 0 || binding_cap(named) == cap)
		return;
	if (is_anothers(named))
		pgpx_worker_wake(named->worker);
	else
		name_hungriest(cap);
}

bool
pgpx_steward_run(void)
{
	bool		hungry = false;

	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxHungry *own;
		PgpxHungry *cap;

		if (pool->pool_id == 0 || pool->worker != pgpx_worker_index)
			continue;
		own = &pgpx_servers[pool->server].hungry;
		cap = binding_cap(pool);
		if (cap != NULL)
		{
			hungry = true;
			name_hungriest(cap);
		}
		if (cap != own && is_named(own, i))
			feed(i, own);
		if (cap != &pgpx_shared->hungry && is_named(&pgpx_shared->hungry, i))
			feed(i, &pgpx_shared->hungry);
	}

	/* a server's pools are those of the worker of its record's number */
	for (int i = pgpx_worker_index; i < pgpx_shared->max_pools;
		 i += pgpx_shared->nworkers)
		check_name(&pgpx_servers[i].hungry);
	check_name(&pgpx_shared->hungry);
	return hungry;
}
