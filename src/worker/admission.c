/*-------------------------------------------------------------------------
 *
 * admission.c
 *	  Who gets a place when a cap binds: max_server_connections over the pools
 *	  of a server, max_connections over all pools.
 *
 * A pool with waiters that may not grow because of a cap is hungry.  The one
 * whose first ticket is oldest is named in shared memory, and then
 *	- the connection that has been idle longest in another pool is closed for it
 *	  (pool_worker.c), before any other one of a pool above its min_size,
 *	- a connection that is returned to a younger pool is closed instead of kept,
 *	- a younger pool does not grow.
 * So places go by the age of tickets, and no pool starves.  The sibling pools of a
 * server have one worker, so one process decides.  (The least recently used over
 * all groups gives way: as in Cloudflare's pingora, pingora-pool.)
 *
 *-------------------------------------------------------------------------
 */
#include "worker/admission.h"

#include "shared/pool_worker.h"
#include "worker/worker.h"

/*
 * Which cap keeps this pool's waiters from the connections that it would open for
 * them, and since when the first of them waits; NULL: none.
 */
static PgpxCap *
binding_cap(PgpxPool *pool, PgpxTime *since)
{
	PgpxCap    *cap = NULL;

	*since = 0;

	/* a look without the lock: a round of the worker is to cost little */
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

/* The hungriest of the pools under a cap; all those of a server, or all. */
static void
name_hungriest(PgpxCap *cap)
{
	PgpxTime	oldest = 0;
	int			hungriest = -1;
	uint32		next_in_line;

	(void) pgpx_cap_next_in_line(cap, &next_in_line);
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxTime	since;

		if (binding_cap(&pgpx_pools[i], &since) == cap &&
			(hungriest < 0 || since < oldest))
		{
			oldest = since;
			hungriest = i;
		}
	}

	/* pools of other workers may have stood back for the one that is fed */
	if (pgpx_cap_set_next_in_line(cap, hungriest, oldest, next_in_line) &&
		cap == &pgpx_shared->cap)
		pgpx_worker_wake_all();
	if (hungriest >= 0)
	{
		bool		same_server = cap != &pgpx_shared->cap;

		if (!pgpx_pool_evict(hungriest, same_server, PGPX_EVICT_SURPLUS))
			(void) pgpx_pool_evict(hungriest, same_server, PGPX_EVICT_ANY);
	}
}

/*
 * The cap no longer keeps the named pool from growing.  It grows now, while its
 * name still holds the others back; then the next one is named.
 */
static void
admit(int index, PgpxCap *cap)
{
	PgpxPool   *pool = &pgpx_pools[index];
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pgpx_pool_dispatch_locked(pool, &wake);
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
		pool->nwaiting > 0 && pgpx_pool_worker_incarnation(pool) != 0;
}

/*
 * A name whose pool is not kept back by that cap any more, or is no more: its last
 * waiter may have left, and its place been taken, since we looked.  Nobody else
 * would find it, and it would hold others back for ever.
 */
static void
check_name(PgpxCap *cap)
{
	int			next_in_line = pgpx_cap_next_in_line(cap, NULL);
	PgpxTime	since;

	if (next_in_line < 0 ||
		binding_cap(&pgpx_pools[next_in_line], &since) == cap)
		return;
	if (is_anothers(&pgpx_pools[next_in_line]))
		pgpx_worker_wake(pgpx_pools[next_in_line].worker);
	else
		name_hungriest(cap);
}

bool
pgpx_admission_run(void)
{
	bool		starved = false;

	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxTime	since;
		PgpxCap    *all = &pgpx_shared->cap;
		PgpxCap    *own;
		PgpxCap    *cap;

		if (pool->pool_id == 0 || pool->worker != pgpx_worker_index)
			continue;
		own = &pgpx_servers[pool->server].cap;
		cap = binding_cap(pool, &since);
		if (cap != NULL)
		{
			starved = true;
			name_hungriest(cap);
		}
		if (cap != own && pgpx_cap_next_in_line(own, NULL) == i)
			admit(i, own);
		if (cap != all && pgpx_cap_next_in_line(all, NULL) == i)
			admit(i, all);
	}

	/* a server's pools are those of the worker of its record's number */
	for (int i = pgpx_worker_index; i < pgpx_shared->max_pools;
		 i += pgpx_shared->nworkers)
		check_name(&pgpx_servers[i].cap);
	check_name(&pgpx_shared->cap);
	return starved;
}
