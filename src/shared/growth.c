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
#include "shared/pool.h"

#include "shared/registry.h"

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

/*
 * Return how many connections of all pools count for max_connections: those
 * that are not broken.  Pools are read without their locks.
 */
static int
connections_used(void)
{
	int			used = pgpx_cap_used(&pgpx_shared->cap, NULL);

	for (int i = 0; i < pgpx_pools_end(); i++)
		used -= pgpx_pools[i].nbroken;
	return Max(used, 0);
}

bool
pgpx_pool_must_yield_locked(PgpxPool *pool)
{
	int			index = PGPX_POOL_INDEX(pool);
	PgpxTime	since = pgpx_pool_waits_since_locked(pool);

	Assert(LWLockHeldByMe(pool->lock));
	return pgpx_cap_has_older(&pgpx_servers[pool->server].cap, index, since) ||
		pgpx_cap_has_older(&pgpx_shared->cap, index, since);
}

/* Return whether the pool opens no connections, whatever it lacks. */
static bool
is_growth_stopped(const PgpxPool *pool)
{
	return pgpx_pool_is_paused(pool) || pool->damaged ||
		pgpx_pool_is_awaiting_conninfo(pool);
}

/* Return how many of the connections that are not free yet will be soon. */
static int
count_soon_free(const PgpxPool *pool)
{
	int			n = pool->count[PGPX_CONN_CONNECTING] +
		pool->count[PGPX_CONN_RESETTING];

	/* after a test that has timed out, the others probably do, too */
	return pool->tests_time_out ? n : n + pool->count[PGPX_CONN_CHECKING];
}

/*
 * Return the most connections that a pool may open for its waiters.  Unlike
 * pgpx_pool_missing_locked, this disregards the ages of waiters, and counts the
 * probe of a pool that pauses after a failure.
 *
 * The pool is read without its lock.
 */
static int
count_wanted(const PgpxPool *pool)
{
	int			connecting = pool->count[PGPX_CONN_CONNECTING];
	int			room = pool->opts.pool_size + pool->opts.max_overflow +
		pool->nbroken;
	int			wanted = pool->nwaiting - count_soon_free(pool);

	if (is_growth_stopped(pool))
		return 0;
	for (int s = PGPX_CONN_FREE + 1; s < PGPX_CONN_NSTATES; s++)
		room -= pool->count[s];
	wanted = Min(wanted, room);
	if (pool->retry_at != 0)
		wanted = Min(wanted, 1 - connecting);	/* a probe */
	if (pool->ramp > 0)
		wanted = Min(wanted, pool->ramp - connecting);
	return Max(wanted, 0);
}

/*
 * Return whether the pool that is next in line under a cap needs more tokens
 * than are free or held by closing connections.
 *
 * Nothing is reserved for it.  So if its waiters leave or a worker exits, no
 * reservation is left behind.  Pools that release connections at the same
 * instant may miss each other's closing connections, and close more than
 * necessary.
 */
static bool
is_token_needed(PgpxCap *cap)
{
	bool		all = cap == &pgpx_shared->cap;
	int			next = pgpx_cap_next_in_line(cap, NULL);
	int			server = next < 0 ? -1 : pgpx_pools[next].server;
	int			needed;
	int			left;

	if (server < 0)
		return false;
	needed = count_wanted(&pgpx_pools[next]);
	left = pgpx_pool_server_tokens_left(&pgpx_pools[next]);
	if (all)
	{
		needed = Min(needed, left);
		left = pgpx_shared->max_connections - pgpx_cap_used(cap, NULL);
	}
	needed -= left;
	for (int i = 0; needed > 0 && i < pgpx_pools_end(); i++)
	{
		const PgpxPool *pool = &pgpx_pools[i];
		int			closing = pool->count[PGPX_CONN_CLOSING];

		if (pool->pool_id == 0 || (!all && pool->server != server))
			continue;

		/*
		 * A broken connection has released the token of the server already,
		 * and loses its slot to a pool that needs it.  Some of the broken ones
		 * may be closing.
		 */
		needed -= all ? Max(closing, pool->nbroken) :
			Max(closing - pool->nbroken, 0);
	}
	return needed > 0;
}

bool
pgpx_pool_must_close_for_other_locked(PgpxPool *pool)
{
	PgpxCap    *cap = &pgpx_servers[pool->server].cap;
	int			index = PGPX_POOL_INDEX(pool);
	PgpxTime	since = pgpx_pool_waits_since_locked(pool);

	Assert(LWLockHeldByMe(pool->lock));
	return (pgpx_cap_has_older(cap, index, since) && is_token_needed(cap)) ||
		(pgpx_cap_has_older(&pgpx_shared->cap, index, since) &&
		 is_token_needed(&pgpx_shared->cap));
}

int
pgpx_pool_count_soon_free_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return count_soon_free(pool);
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
	for (int i = pool->queue_head; i >= 0 && pgpx_waiters[i].since <= since;
		 i = pgpx_waiters[i].next)
		n++;
	return n == 0 && pool->queued_since <= since ? 1 : n;
}

PgpxTime
pgpx_pool_growth_due_locked(const PgpxPool *pool, const PgpxWaiter *waiter)
{
	PgpxTime	due;

	Assert(LWLockHeldByMe(pool->lock));
	if (waiter == NULL && pool->queue_tail >= 0)
		waiter = &pgpx_waiters[pool->queue_tail];
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
	if (pgpx_pool_server_tokens_left(pool) <= 0)
		return PGPX_LIMIT_SERVER;
	if (connections_used() >= pgpx_shared->max_connections)
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

/* Return how many more connections the caps over several pools allow. */
static int
tokens_left(const PgpxPool *pool)
{
	int			left = pgpx_shared->max_connections - connections_used();

	return Min(left, pgpx_pool_server_tokens_left(pool));
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
	if ((pool->retry_at == 0 ||
		 (pool->unavailable_since == 0 && pool->remote_full_since == 0 &&
		  pool->retry_at <= pgpx_now())) &&
		!pgpx_pool_must_yield_locked(pool))
	{
		int			slots = pgpx_pool_cap_locked(pool) -
			pgpx_pool_total_locked(pool);

		/* a closing connection frees its slot within a second */
		slots = Min(slots, tokens_left(pool));
		slots += pool->count[PGPX_CONN_CLOSING];
		served += Max(slots, 0);
	}
	return Max(pool->nwaiting - served, 0);
}
