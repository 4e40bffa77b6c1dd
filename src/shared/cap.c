/*-------------------------------------------------------------------------
 *
 * cap.c
 *	  Caps over several pools: permits, the rule for a full cap (cap.h), eviction.
 *
 * Pingora's pool of upstream connections evicts by the same rule, the least
 * recently used of all groups (https://github.com/cloudflare/pingora,
 * pingora-pool).
 *
 *-------------------------------------------------------------------------
 */
#include "shared/cap.h"

/* PgpxCap.permits: the number in use, and above it the number of changes */
#define ONE_CHANGE (UINT64CONST(1) << 32)

static int
used_of(uint64 permits)
{
	return (int) (uint32) permits;
}

int
pgpx_cap_used(PgpxCap *cap, uint32 *moves)
{
	uint64		permits = pg_atomic_read_u64(&cap->permits);

	if (moves != NULL)
		*moves = (uint32) (permits / ONE_CHANGE);
	return used_of(permits);
}

/* Acquire a permit.  limit: the number of permits; 0: no limit. */
static bool
acquire(PgpxCap *cap, int limit)
{
	uint64		permits = pg_atomic_read_u64(&cap->permits);

	do
	{
		if (limit != 0 && used_of(permits) >= limit)
			return false;
	} while (!pg_atomic_compare_exchange_u64(&cap->permits, &permits,
											 permits + ONE_CHANGE + 1));
	return true;
}

/* Release a permit, and return how many were in use before. */
static int
release(PgpxCap *cap)
{
	int			before = used_of(pg_atomic_fetch_add_u64(&cap->permits,
														 ONE_CHANGE - 1));

	Assert(before > 0);
	return before;
}

static int
limit_of(const PgpxPool *pool, bool all)
{
	return all ? pgpx_shared->max_connections :
		pool->opts.max_server_connections;
}

bool
pgpx_cap_acquire_locked(PgpxPool *pool)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->lacks_all = false;
	if (pgpx_cap_left_locked(pool, false, false) <= 0 ||
		!acquire(&pgpx_servers[pool->server].cap, limit_of(pool, false)))
		return false;
	if (pgpx_cap_left_locked(pool, true, false) > 0 &&
		acquire(&pgpx_shared->cap, limit_of(pool, true)))
		return true;
	(void) release(&pgpx_servers[pool->server].cap);
	pool->lacks_all = true;
	return false;
}

void
pgpx_cap_release_server(PgpxPool *pool)
{
	(void) release(&pgpx_servers[pool->server].cap);
}

void
pgpx_cap_release(PgpxPool *pool, bool broken)
{
	int			before = release(&pgpx_shared->cap);

	if (!broken)
		pgpx_cap_release_server(pool);

	/* pools of any worker may lack a permit */
	if (before == pgpx_shared->max_connections)
		pgpx_worker_wake_all();
}

/*
 * Return how many permits of a cap another pool lacks whose first waiter is
 * older than "since"; 0: whatever its age.
 *
 * A pool whose worker does not run opens no connection.
 */
static int
lacked_by(const PgpxPool *other, const PgpxPool *pool, bool all, PgpxTime since)
{
	int			first = *(const volatile int *) &other->queue.head;

	if (other == pool || first < 0 || other->lacks <= 0 ||
		other->lacks_all != all || (!all && other->server != pool->server) ||
		(since != 0 && pgpx_waiters[first].since >= since) ||
		pgpx_pool_worker_incarnation(other) == 0)
		return 0;
	return Min(other->lacks, other->nwaiting);
}

/*
 * Return how many permits of a cap the connections of a pool are about to
 * release.  A broken lease has released that of the server, and loses that of all
 * pools to a pool that lacks it.
 */
static int
released_soon(const PgpxPool *pool, bool all)
{
	return pool->count[PGPX_CONN_CLOSING] + (all ? pool->nbroken : 0);
}

int
pgpx_cap_left_locked(const PgpxPool *pool, bool all, bool soon)
{
	PgpxCap    *cap = all ? &pgpx_shared->cap : &pgpx_servers[pool->server].cap;
	PgpxTime	since = pgpx_pool_waits_since_locked(pool);
	int			limit = limit_of(pool, all);
	int			left;

	Assert(LWLockHeldByMe(pool->lock));
	if (limit == 0)
		return PG_INT32_MAX;
	left = limit - pgpx_cap_used(cap, NULL);
	for (int i = -1; (i = pgpx_pool_next_waiting(i)) >= 0;)
		left -= lacked_by(&pgpx_pools[i], pool, all, since);
	for (int i = 0; soon && i < pgpx_pools_end(); i++)
		if (pgpx_pools[i].pool_id != 0 &&
			(all || pgpx_pools[i].server == pool->server))
			left += released_soon(&pgpx_pools[i], all);
	return left;
}

/*
 * The released connection is one more free permit, so "left" may be 0.  Closing
 * connections are counted only if it matters, because each checkin calls this.
 */
static bool
may_keep(const PgpxPool *pool, bool all)
{
	return pgpx_cap_left_locked(pool, all, false) >= 0 ||
		pgpx_cap_left_locked(pool, all, true) >= 0;
}

bool
pgpx_cap_must_close_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return !may_keep(pool, false) || !may_keep(pool, true);
}

int
pgpx_cap_surplus_locked(const PgpxPool *pool)
{
	int			limit = limit_of(pool, false);
	int			used = pgpx_cap_used(&pgpx_servers[pool->server].cap, NULL);

	Assert(LWLockHeldByMe(pool->lock));
	if (limit == 0 || used <= limit)
		return 0;
	return Max(-pgpx_cap_left_locked(pool, false, true), 0);
}

/*
 * Return the least recently used free connection of a pool if it may be
 * evicted; NULL: there is none.  Set *surplus to whether the pool has more than
 * its min_size and min_idle.
 */
static PgpxConn *
find_victim_locked(const PgpxPool *pool, PgpxEvict which, PgpxTime now,
				   bool *surplus)
{
	PgpxConn   *oldest = pgpx_conn_at(pool->lru.tail);

	Assert(LWLockHeldByMe(pool->lock));
	*surplus = pgpx_pool_count_open_locked(pool) >
			pgpx_pool_min_size_locked(pool) &&
		pgpx_pool_count_free_locked(pool) > pgpx_pool_min_idle_locked(pool);
	if (oldest == NULL || (which != PGPX_EVICT_ANY && !*surplus) ||
		(which == PGPX_EVICT_UNUSED_SURPLUS &&
		 now - oldest->last_used < PGPX_EVICT_UNUSED_US))
		return NULL;
	return oldest;
}

/*
 * Revoke the lease of a broken connection of any pool, so that its slot becomes
 * free.  Return false if there is none.
 */
static bool
revoke_broken_lease(void)
{
	bool		revoked = false;

	for (int i = 0; i < pgpx_pools_end() && !revoked; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxWake	wake = PGPX_WAKE_INIT;

		/* check without the lock first, because most pools have none */
		if (pool->nbroken == 0)
			continue;
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		pgpx_conn_foreach_locked(conn, pool)
		{
			if (!conn->broken || conn->state != PGPX_CONN_LEASED)
				continue;
			pgpx_pool_revoke_locked(pool, conn, PGPX_REVOKE_BROKEN, &wake);
			revoked = true;
			break;
		}
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
	}
	return revoked;
}

bool
pgpx_cap_evict(int beneficiary, bool all, PgpxEvict which)
{
	PgpxPool   *best = NULL;
	PgpxTime	best_used = 0;
	bool		best_surplus = false;
	bool		closing = false;
	bool		surplus;
	PgpxTime	now = pgpx_now();
	PgpxConn   *victim;

	for (int i = 0; i < pgpx_pools_end() && !closing; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];

		if (pool->pool_id == 0 || i == beneficiary ||
			(!all && pool->server != pgpx_pools[beneficiary].server))
			continue;

		/* check without the lock first, because most pools have none */
		closing = pool->count[PGPX_CONN_CLOSING] > 0;
		if (pool->lru.tail < 0)
			continue;
		LWLockAcquire(pool->lock, LW_SHARED);
		victim = find_victim_locked(pool, which, now, &surplus);
		if (victim != NULL &&
			(best == NULL || surplus > best_surplus ||
			 (surplus == best_surplus && victim->last_used < best_used)))
		{
			best = pool;
			best_used = victim->last_used;
			best_surplus = surplus;
		}
		LWLockRelease(pool->lock);
	}
	if (closing || (all && revoke_broken_lease()))
		return true;
	if (best == NULL)
		return false;

	LWLockAcquire(best->lock, LW_EXCLUSIVE);
	victim = find_victim_locked(best, which, now, &surplus);
	if (victim != NULL)
		pgpx_pool_close_locked(best, victim, PGPX_CLOSE_EVICTED);
	LWLockRelease(best->lock);
	return victim != NULL;
}
