/*-------------------------------------------------------------------------
 *
 * growth.c
 *	  How many connections a pool lacks.
 *
 * A pool opens connections for min_size and min_idle, and one for each waiter
 * that is older than half the last connect took, and than GROW_AFTER_US.  Such a
 * waiter has waited for so long that a connection of its own is likely to serve
 * it sooner than the end of a lease.  A pool without leases opens one for each
 * waiter, because no lease will end.  If no waiter is that old, but the queue has
 * not been empty for that long, the pool opens one: sessions that wait all the
 * time lack a connection, however short each wait is.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/cap.h"

#define GROW_AFTER_US 1000

int
pgpx_pool_cap_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->opts.pool_size + pool->opts.max_overflow;
}

int
pgpx_pool_min_size_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return Min(pool->opts.min_size, pool->opts.pool_size);
}

int
pgpx_pool_min_idle_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return Min(pool->opts.min_idle, pool->opts.pool_size);
}

int
pgpx_pool_count_free_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->count[PGPX_CONN_IDLE] + pool->count[PGPX_CONN_RESET_PENDING];
}

/* Count the broken connections whose lease has ended. */
static int
count_broken_closing(const PgpxPool *pool)
{
	int			n = 0;

	if (pool->nbroken > 0 && pool->count[PGPX_CONN_CLOSING] > 0)
		pgpx_conn_foreach_locked(conn, pool)
			n += conn->broken && conn->state == PGPX_CONN_CLOSING;
	return n;
}

int
pgpx_pool_count_leased_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->count[PGPX_CONN_LEASED] - pool->nbroken +
		count_broken_closing(pool);
}

int
pgpx_pool_count_open_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pgpx_pool_total_locked(pool) - pool->count[PGPX_CONN_CLOSING] +
		count_broken_closing(pool);
}

int
pgpx_pool_count_usable_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pgpx_pool_count_leased_locked(pool) +
		pgpx_pool_count_free_locked(pool) +
		pool->count[PGPX_CONN_RESETTING] + pool->count[PGPX_CONN_CHECKING];
}

void
pgpx_pool_note_use_locked(PgpxPool *pool, int n)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->idle_peak.current = Max(pool->idle_peak.current, n);
	pool->overflow_peak.current = Max(pool->overflow_peak.current, n);
}

bool
pgpx_pool_has_conninfo_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->conninfo_incarnation != 0 &&
		pool->conninfo_incarnation == pgpx_pool_worker_incarnation(pool) &&
		pool->conninfo_version >= pool->connect_version;
}

/* Return whether the pool opens no connections, whatever it lacks. */
static bool
is_growth_stopped(const PgpxPool *pool)
{
	return pgpx_pool_is_paused(pool) || pool->damaged ||
		pgpx_pool_is_awaiting_conninfo(pool);
}

int
pgpx_pool_count_soon_free_locked(const PgpxPool *pool)
{
	int			n = pool->count[PGPX_CONN_CONNECTING] +
		pool->count[PGPX_CONN_RESETTING];

	Assert(LWLockHeldByMe(pool->lock));

	/* after a test that has timed out, the others probably do, too */
	return pool->tests_time_out ? n : n + pool->count[PGPX_CONN_CHECKING];
}

/* Return the age at which a waiter makes the pool grow, in microseconds. */
static PgpxTime
growth_age(const PgpxPool *pool)
{
	return pgpx_pool_count_leased_locked(pool) == 0 ? 0 :
		Max(GROW_AFTER_US, pool->connect_time / 2);
}

/*
 * Count the waiters for which the pool grows: those that have reached the age,
 * and the first one if the queue has not been empty for that long.
 */
static int
count_due(const PgpxPool *pool)
{
	PgpxTime	since;
	int			n = 0;

	if (pool->nwaiting == 0)
		return 0;
	since = pgpx_now() - growth_age(pool);
	for (int i = pool->queue.head; i >= 0 && pgpx_waiters[i].since <= since;
		 i = pgpx_waiters[i].in_queue.next)
		n++;
	return n == 0 && pool->queued_since <= since ? 1 : n;
}

bool
pgpx_pool_waits_are_short_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->nwaiting > 0 &&
		pgpx_waiters[pool->queue.head].since > pgpx_now() - growth_age(pool);
}

PgpxTime
pgpx_pool_growth_due_locked(const PgpxPool *pool, const PgpxWaiter *waiter)
{
	PgpxTime	due;

	Assert(LWLockHeldByMe(pool->lock));
	if (waiter == NULL && pool->queue.tail >= 0)
		waiter = &pgpx_waiters[pool->queue.tail];
	if (waiter == NULL ||
		pgpx_pool_total_locked(pool) >= pgpx_pool_cap_locked(pool))
		return 0;
	due = waiter->since + growth_age(pool);
	return due > pgpx_now() ? due : 0;
}

PgpxGrowthLimit
pgpx_pool_growth_limit_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	if (pgpx_pool_total_locked(pool) >= pgpx_pool_cap_locked(pool))
		return pool->count[PGPX_CONN_CONNECTING] > 0 ? PGPX_LIMIT_CONNECTING :
			pool->count[PGPX_CONN_CHECKING] > 0 ? PGPX_LIMIT_CHECKING :
			pool->count[PGPX_CONN_CANCELLING] > 0 ? PGPX_LIMIT_CANCELLING :
			PGPX_LIMIT_POOL;
	if (pool->retry_at > pgpx_now())
		return PGPX_LIMIT_UNAVAILABLE;
	if (pgpx_cap_left_locked(pool, false, false) <= 0)
		return PGPX_LIMIT_SERVER;
	if (pgpx_cap_left_locked(pool, true, false) <= 0)
		return PGPX_LIMIT_ALL;
	return PGPX_LIMIT_NONE;
}

/*
 * min_size and min_idle take effect as soon as the worker has the conninfo,
 * even if the checkout that published it got no lease.  Spare connections
 * beyond pool_size would be closed by overflow_ttl, so min_idle opens none
 * there.
 */
int
pgpx_pool_below_min_locked(const PgpxPool *pool)
{
	int			total = pgpx_pool_total_locked(pool);
	int			spare = pgpx_pool_count_free_locked(pool) +
		pgpx_pool_count_soon_free_locked(pool) - count_due(pool);

	Assert(LWLockHeldByMe(pool->lock));
	if (!pgpx_pool_has_conninfo_locked(pool))
		return 0;
	return Max(pgpx_pool_min_size_locked(pool) - total,
			   Min(pgpx_pool_min_idle_locked(pool) - spare,
				   pool->opts.pool_size - total));
}

int
pgpx_pool_missing_locked(const PgpxPool *pool, int extra)
{
	int			connecting = pool->count[PGPX_CONN_CONNECTING];
	int			total = pgpx_pool_total_locked(pool);
	int			missing;

	Assert(LWLockHeldByMe(pool->lock));
	missing = count_due(pool) + extra - pgpx_pool_count_soon_free_locked(pool);
	missing = Max(missing, pgpx_pool_below_min_locked(pool));
	missing = Min(missing, pgpx_pool_cap_locked(pool) - total);
	if (missing <= 0 || is_growth_stopped(pool))
		return 0;
	if (pool->retry_at != 0)
	{
		/* one connect as a probe; more follow once it has succeeded */
		return connecting > 0 || pgpx_now() < pool->retry_at ? 0 : 1;
	}
	if (pool->ramp > 0)
		missing = Min(missing, pool->ramp - connecting);
	return Max(missing, 0);
}

int
pgpx_pool_blocked_locked(PgpxPool *pool)
{
	int			served = pgpx_pool_count_soon_free_locked(pool);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pgpx_pool_is_paused(pool))
		return pool->nwaiting;

	/*
	 * after the loss of an unused connection the pause may have passed, without
	 * a connect since
	 */
	if (pool->retry_at == 0 ||
		(pool->unavailable_since == 0 && pool->remote_full_since == 0 &&
		 pool->retry_at <= pgpx_now()))
	{
		/* a closing connection frees its slot within a second */
		int			slots = pgpx_pool_cap_locked(pool) -
			pgpx_pool_total_locked(pool) + pool->count[PGPX_CONN_CLOSING];

		slots = Min(slots, pgpx_cap_left_locked(pool, false, true));
		slots = Min(slots, pgpx_cap_left_locked(pool, true, true));
		served += Max(slots, 0);
	}
	return Max(pool->nwaiting - served, 0);
}
