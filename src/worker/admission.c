/*-------------------------------------------------------------------------
 *
 * admission.c
 *	  Eviction and admission when a cap is reached: max_server_connections for
 *	  the pools of a server, max_connections for all pools.
 *
 * A pool is starved if it has waiters and a cap keeps it from growing.  Of
 * the starved pools under a cap, the one whose first waiter is oldest is next
 * in line.  This is published in shared memory (PgpxCap).  Then
 *	- the connection that has been idle longest in another pool is evicted for
 *	  it (pool_worker.c), first from pools that exceed their min_size
 *	  and min_idle,
 *	- a connection that is released to a pool whose waiters are younger is
 *	  closed instead of kept (pgpx_pool_must_close_for_other_locked),
 *	- a pool whose waiters are younger does not grow.
 *
 * So slots are assigned by the age of waiters, and no pool starves.
 * The sibling pools of a server have one worker, so one process decides under
 * the cap of the server.
 *
 * Pingora's pool of upstream connections evicts by the same rule, the least
 * recently used of all groups (https://github.com/cloudflare/pingora,
 * pingora-pool).
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include "shared/pool_worker.h"

/*
 * Return the cap that keeps this pool from opening connections for its waiters,
 * or NULL.  Set *since to the time at which the first waiter was enqueued.
 */
static PgpxCap *
binding_cap(PgpxPool *pool, PgpxTime *since)
{
	PgpxCap    *cap = NULL;

	*since = 0;

	/* check without the lock first, to keep a round of the worker cheap */
	if (pool->pool_id == 0 || pool->nwaiting == 0)
		return NULL;

	LWLockAcquire(pool->lock, LW_SHARED);
	if (pool->queue_head >= 0)
	{
		*since = pgpx_waiters[pool->queue_head].since;
		cap = pgpx_pool_binding_cap_locked(pool, 0);
	}
	LWLockRelease(pool->lock);
	return cap;
}

/*
 * Make the starved pool with the oldest waiter next in line under a cap, and
 * evict a connection for it.
 */
static void
select_next_in_line(PgpxCap *cap)
{
	PgpxTime	oldest = 0;
	int			selected = -1;
	uint32		line_changes;

	(void) pgpx_cap_next_in_line(cap, &line_changes);
	for (int i = -1; (i = pgpx_pool_next_waiting(i)) >= 0;)
	{
		PgpxTime	since;

		if (binding_cap(&pgpx_pools[i], &since) == cap &&
			(selected < 0 || since < oldest))
		{
			oldest = since;
			selected = i;
		}
	}

	/* pools of other workers may have yielded to the pool that was admitted */
	if (pgpx_cap_set_next_in_line(cap, selected, oldest, line_changes) &&
		cap == &pgpx_shared->cap)
		pgpx_worker_wake_all();
	if (selected >= 0)
	{
		bool		same_server = cap != &pgpx_shared->cap;

		if (!pgpx_pool_evict(selected, same_server, PGPX_EVICT_SURPLUS))
			(void) pgpx_pool_evict(selected, same_server, PGPX_EVICT_ANY);
	}
}

/*
 * Grow the next-in-line pool, because the cap allows it now, and then select
 * the next pool.  The order matters: until the next pool is selected, other
 * pools yield to the growing one.
 */
static void
admit_pool(int index, PgpxCap *cap)
{
	PgpxPool   *pool = &pgpx_pools[index];
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pgpx_pool_dispatch_locked(pool, &wake);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	select_next_in_line(cap);
}

/*
 * Return whether the pool has waiters, and its worker is another one that runs.
 * The next-in-line entry of such a pool is left to its worker, which grows the
 * pool while the entry exists.  If this worker replaced the entry before, the
 * pool that has just freed the slot would get it back.
 */
static bool
has_other_worker(const PgpxPool *pool)
{
	return pool->pool_id != 0 && pool->worker != pgpx_worker_index &&
		pool->nwaiting > 0 && pgpx_pool_worker_incarnation(pool) != 0;
}

/*
 * Replace a stale next-in-line entry of a cap: its pool is no longer starved by
 * this cap, or no longer exists.  An entry becomes stale if the pool's last
 * waiter leaves, or if the pool's record is reused after select_next_in_line
 * has checked it.  No other code finds such an entry, and the other pools would
 * yield to it for ever.
 */
static void
check_next_in_line(PgpxCap *cap)
{
	int			next_in_line = pgpx_cap_next_in_line(cap, NULL);
	PgpxTime	since;

	if (next_in_line < 0 ||
		binding_cap(&pgpx_pools[next_in_line], &since) == cap)
		return;
	if (has_other_worker(&pgpx_pools[next_in_line]))
		pgpx_worker_wake(pgpx_pools[next_in_line].worker);
	else
		select_next_in_line(cap);
}

/*
 * Remove the waiters at the head of the queue whose deadline has passed, so
 * that no other pool yields to a stopped session.
 */
static void
expire_waiters(PgpxPool *pool)
{
	int			first = *(volatile int *) &pool->queue_head;
	PgpxTime	now = pgpx_now();

	/* check without the lock first, to keep a round of the worker cheap */
	if (first < 0 || pgpx_waiters[first].deadline == 0 ||
		now < pgpx_waiters[first].deadline)
		return;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	(void) pgpx_pool_first_waiter_locked(pool, now);
	LWLockRelease(pool->lock);
}

bool
pgpx_admission_run(bool all_servers)
{
	PgpxCap    *all = &pgpx_shared->cap;
	bool		starved = false;

	for (int i = -1; (i = pgpx_pool_next_waiting(i)) >= 0;)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxTime	since;
		PgpxCap    *server_cap;
		PgpxCap    *cap;

		if (pool->pool_id == 0 || pool->worker != pgpx_worker_index)
			continue;
		expire_waiters(pool);
		server_cap = &pgpx_servers[pool->server].cap;
		cap = binding_cap(pool, &since);
		if (cap != NULL)
		{
			starved = true;
			select_next_in_line(cap);
		}
		if (cap != server_cap && pgpx_cap_next_in_line(server_cap, NULL) == i)
			admit_pool(i, server_cap);
		if (cap != all && pgpx_cap_next_in_line(all, NULL) == i)
			admit_pool(i, all);
	}

	/*
	 * Replace stale entries only after the admissions.  If the entry of a pool
	 * were replaced before the pool is admitted, the pool that has just freed
	 * the slot would get it back.
	 */
	for (int i = -1; (i = pgpx_pool_next_waiting(i)) >= 0;)
		if (pgpx_pools[i].worker == pgpx_worker_index)
			check_next_in_line(&pgpx_servers[pgpx_pools[i].server].cap);

	/* the index of a server's record selects the worker of its pools */
	for (int i = pgpx_worker_index; all_servers && i < pgpx_pools_end();
		 i += pgpx_shared->nworkers)
		check_next_in_line(&pgpx_servers[i].cap);
	check_next_in_line(all);
	return starved;
}
