/*-------------------------------------------------------------------------
 *
 * pool_maintain.c
 *	  What time brings to a pool: expiry, shrinking, min_size, the end of leases
 *	  that are held too long.
 *
 * Called by the worker.  Decides by the clock and by states, under the pool lock,
 * and returns when it wants to be called again, so that a pool in which nothing
 * is due costs nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "pool.h"

#include "utils/timestamp.h"

/* Connections of a pool expire one by one, so far apart at most. */
#define EXPIRE_APART_US (1000 * 1000)

/* How often a pool with connections in use is looked at, at most. */
#define LOOK_EACH_US (500 * 1000)

/*
 * May a connection that has expired be closed now?  One by one, so that those of
 * one age are not replaced in one burst; yet fast enough that a pool of many, with
 * a short lifetime, gets rid of all.  *due is when the next may.
 */
bool
pgpx_pool_may_expire_locked(const PgpxPool *pool, PgpxTime now,
							PgpxTime *due)
{
	PgpxTime	apart = pool->opts.max_lifetime * 1000 /
		(2 * pgpx_pool_cap_locked(pool));
	PgpxTime	next = pool->last_expired + Min(apart, EXPIRE_APART_US);

	Assert(LWLockHeldByMe(pool->lock));
	if (pool->last_expired != 0 && now < next)
	{
		if (due != NULL)
			*due = Min(*due, next);
		return false;
	}
	return true;
}

int
pgpx_pool_server_surplus_locked(const PgpxPool *pool)
{
	int			cap = pool->opts.max_server_connections;
	int			surplus;

	Assert(LWLockHeldByMe(pool->lock));
	if (cap == 0)
		return 0;
	surplus = pgpx_cap_used(&pgpx_servers[pool->server].cap, NULL) - cap;
	for (int i = 0; surplus > 0 && i < pgpx_shared->max_connections; i++)
	{
		int			of = pgpx_conns[i].pool;

		if (of >= 0 && pgpx_pools[of].server == pool->server &&
			pgpx_conns[i].state == PGPX_CONN_CLOSING)
			surplus--;
	}
	return Max(surplus, 0);
}

/*
 * Why a free connection should be closed now; NONE, and *due is when the first
 * reason will hold.
 */
static PgpxCloseReason
reason_to_close(const PgpxPool *pool, const PgpxConn *conn, int total,
				PgpxTime now, PgpxTime *due)
{
	const PgpxPoolOptions *opts = &pool->opts;
	PgpxTime	idle_until = conn->last_used + opts->idle_timeout * 1000;
	PgpxTime	overflow_until = conn->last_used + opts->overflow_ttl * 1000;

	if (pgpx_pool_is_draining(pool))
		return PGPX_CLOSE_DRAINED;
	if (conn->expires_at != 0)
	{
		if (now >= conn->expires_at)
			return PGPX_CLOSE_LIFETIME;
		*due = Min(*due, conn->expires_at);
	}
	if (total > opts->pool_size)
	{
		if (now >= overflow_until)
			return PGPX_CLOSE_OVERFLOW;
		*due = Min(*due, overflow_until);
	}
	if (total > pgpx_pool_min_size_locked(pool))
	{
		if (now >= idle_until)
			return PGPX_CLOSE_IDLE;
		*due = Min(*due, idle_until);
	}
	return PGPX_CLOSE_NONE;
}

/* After which idle time a connection that comes back will have to go, in ms. */
static int64
soonest(const PgpxPool *pool, int total)
{
	if (total > pool->opts.pool_size)
		return Min(pool->opts.idle_timeout, pool->opts.overflow_ttl);
	return pool->opts.idle_timeout;
}

/*
 * When connections that are in use, or whose reset is owed, will have expired:
 * nobody tells the worker when they come in.
 */
static PgpxTime
first_expiry(const PgpxPool *pool)
{
	PgpxTime	first = PG_INT64_MAX;

	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool == PGPX_POOL_INDEX(pool) && conn->opened_at != 0 &&
			conn->state != PGPX_CONN_IDLE && conn->state != PGPX_CONN_CLOSING &&
			conn->expires_at != 0)
			first = Min(first, conn->expires_at);
	}
	return first;
}

/* A lease that was held for long, to be written to the log. */
typedef struct Leak
{
	uint64		lease_id;
	int			pid;
	PgpxTime	since;
	PgpxTime	held;
	bool		ended;
	char		why[PGPX_WHY_LEN];
} Leak;

#define LEAKS_AT_ONCE 8

/*
 * Leases that are held for too long: told once, and ended.  Returns how many are
 * in leaks; the rest is for the next time.
 */
static int
look_at_leases(PgpxPool *pool, PgpxTime now, PgpxTime *due, Leak *leaks,
			   PgpxWake *wake)
{
	const PgpxPoolOptions *opts = &pool->opts;
	int			n = 0;

	if ((opts->lease_timeout == 0 && opts->leak_warning == 0) ||
		pgpx_pool_total_locked(pool) == 0)
		return 0;

	/* a checkout does not wake the worker: look so often */
	*due = Min(*due, now + LOOK_EACH_US);
	for (int i = 0; i < pgpx_shared->max_connections && n < LEAKS_AT_ONCE; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		PgpxTime	end;
		PgpxTime	warn;

		if (conn->pool != PGPX_POOL_INDEX(pool) ||
			conn->state != PGPX_CONN_LEASED)
			continue;
		end = opts->lease_timeout == 0 ? PG_INT64_MAX :
			conn->leased_at + opts->lease_timeout * 1000;
		warn = opts->leak_warning == 0 || conn->leak_logged ? PG_INT64_MAX :
			conn->leased_at + opts->leak_warning * 1000;
		if (now < end && now < warn)
		{
			*due = Min(*due, Min(end, warn));
			continue;
		}

		leaks[n].lease_id = pg_atomic_read_u64(&conn->lease_id);
		leaks[n].pid = conn->owner_pid;
		leaks[n].since = conn->leased_at;
		leaks[n].held = now - conn->leased_at;
		leaks[n].ended = now >= end;
		strlcpy(leaks[n].why, conn->why, sizeof(leaks[n].why));
		if (leaks[n++].ended)
			pgpx_pool_revoke_locked(pool, conn, PGPX_REVOKE_TIMEOUT, wake);
		else
		{
			conn->leak_logged = true;
			*due = Min(*due, end);
		}
	}
	if (n == LEAKS_AT_ONCE)
		*due = now;
	return n;
}

static void
log_leaks(const char *server, const char *user, const Leak *leaks, int n)
{
	for (int i = 0; i < n; i++)
		ereport(leaks[i].ended ? LOG : WARNING,
				(errmsg(leaks[i].ended ?
						"lease " UINT64_FORMAT " on server \"%s\" was ended after %.3f s" :
						"lease " UINT64_FORMAT " on server \"%s\" has been held for %.3f s",
						leaks[i].lease_id, server,
						leaks[i].held / 1e6),
				 errdetail("Its holder is PID %d, user \"%s\", since %s, why: \"%s\".",
						   leaks[i].pid, user,
						   timestamptz_to_str(pgpx_timestamp(leaks[i].since)),
						   leaks[i].why)));
}

PgpxTime
pgpx_pool_maintain(int index, uint32 pool_id, PgpxTime now, bool *ended)
{
	PgpxPool   *pool = pgpx_pool_lock(index, pool_id);
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxTime	due = PG_INT64_MAX;
	int			total;
	int			surplus;
	int			before;
	PgpxCap    *full = NULL;	/* it keeps the pool from its min_size */
	Leak		leaks[LEAKS_AT_ONCE];
	int			nleaks;
	NameData	server;
	NameData	user;

	*ended = false;
	if (pool == NULL)
		return PG_INT64_MAX;
	pgpx_options_follow(&pool->opts);
	pool->version_cap = Max(pool->version_cap, pgpx_pool_cap_locked(pool));
	pgpx_pool_trim_locked(pool);

	/* those that are closing are on their way out already */
	total = pgpx_pool_total_locked(pool) - pool->count[PGPX_CONN_CLOSING];

	surplus = pgpx_pool_server_surplus_locked(pool);

	/* the one that was used longest ago first */
	for (int i = pool->lru_tail; i >= 0; i = before)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		PgpxCloseReason reason;

		before = conn->prev;
		reason = surplus-- > 0 ? PGPX_CLOSE_EVICTED :
			reason_to_close(pool, conn, total, now, &due);
		if (reason == PGPX_CLOSE_NONE)
			continue;
		if (reason == PGPX_CLOSE_LIFETIME &&
			!pgpx_pool_may_expire_locked(pool, now, &due))
			continue;
		pgpx_pool_close_locked(pool, conn, reason);
		total--;
	}

	/* those in use come back at some time: look now and then */
	if (total > pool->count[PGPX_CONN_IDLE] + pool->count[PGPX_CONN_OWED])
	{
		PgpxTime	look = first_expiry(pool);

		if (total > pgpx_pool_min_size_locked(pool))
			look = Min(look, now + soonest(pool, total) * 1000);
		due = Min(due, Max(look, now + LOOK_EACH_US));
	}
	nleaks = look_at_leases(pool, now, &due, leaks, &wake);
	server = pool->server_name;
	user = pool->user_name;
	pgpx_pool_serve_locked(pool, &wake);
	if (pool->nwaiting == 0)
	{
		pgpx_pool_grow_locked(pool, 0);
		/* min_size comes back after an outage, whether somebody calls or not */
		if (pool->retry_at > now &&
			pgpx_pool_total_locked(pool) < pgpx_pool_min_size_locked(pool))
			due = Min(due, pool->retry_at);

		/* a remote that could not be reached last time must not cost others theirs */
		if (pool->retry_at == 0 && !pgpx_pool_must_give_way_locked(pool))
			full = pgpx_pool_binding_cap_locked(pool, 0);
		if (full != NULL)
			due = Min(due, now + PGPX_EVICT_UNUSED_US);
	}
	*ended = pgpx_pool_has_ended_locked(pool);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	if (full != NULL)
		(void) pgpx_pool_evict(index, full != &pgpx_shared->cap,
							   PGPX_EVICT_UNUSED_SURPLUS);
	log_leaks(NameStr(server), NameStr(user), leaks, nleaks);
	return due;
}
