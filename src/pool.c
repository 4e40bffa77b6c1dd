/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  A lease from the pool's side: pick, take; grow; serve the queue.
 *
 * Shared memory only.  Whoever makes a connection free serves the queue in the
 * same lock section, so that no connection is free while somebody waits, and a
 * newcomer never passes a waiter.
 *
 *-------------------------------------------------------------------------
 */
#include "pool.h"

#include "stats.h"
#include "ticket.h"

#define FRESH_US (1000 * 1000)	/* how long a test is good for who waits */

void
pgpx_wake_add(PgpxWake *wake, int procno)
{
	if (wake->n < PGPX_WAKE_MAX)
		wake->procno[wake->n++] = procno;
	else
		pgpx_process_wake(procno);
}

void
pgpx_wake_flush(PgpxWake *wake)
{
	for (int i = 0; i < wake->n; i++)
		pgpx_process_wake(wake->procno[i]);
	wake->n = 0;
}

int
pgpx_pool_total_locked(const PgpxPool *pool)
{
	int			total = -pool->nbroken;

	Assert(LWLockHeldByMe(pool->lock));
	for (int s = PGPX_CONN_FREE + 1; s < PGPX_CONN_NSTATES; s++)
		total += pool->count[s];
	return total;
}

int
pgpx_pool_live_locked(const PgpxPool *pool)
{
	int			left = pgpx_pool_total_locked(pool);
	int			live = 0;

	Assert(LWLockHeldByMe(pool->lock));

	/*
	 * A leased one whose remote has gone helps nobody when it comes back, nor
	 * does one that is to be closed after the cancel.
	 */
	for (int i = 0; left > 0 && i < pgpx_shared->max_connections; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool != PGPX_POOL_INDEX(pool) || conn->broken)
			continue;
		left--;
		if (conn->state != PGPX_CONN_CONNECTING &&
			conn->state != PGPX_CONN_CLOSING &&
			!(conn->state == PGPX_CONN_CANCELLING &&
			  conn->close_reason != PGPX_CLOSE_NONE))
			live++;
	}
	return live;
}

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
	return Min(pool->opts.min_size, pgpx_pool_cap_locked(pool));
}

bool
pgpx_pool_must_test_locked(const PgpxPool *pool, const PgpxConn *conn,
						   PgpxTime since, PgpxTime now)
{
	PgpxTime	seen = Max(conn->last_used, conn->last_checked);

	Assert(LWLockHeldByMe(pool->lock));
	if (pool->opts.test_period < 0 ||
		now - seen < pool->opts.test_period * 1000)
		return false;
	return conn->last_checked < since || now - conn->last_checked > FRESH_US;
}

/* Is a free connection fit to be leased?  If not it is closed. */
static bool
fit_locked(PgpxPool *pool, PgpxConn *conn)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (conn->version != pool->version)
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_STALE);
	else if (pg_atomic_read_u32(&conn->hung_up) != 0)
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
	else
		return true;
	return false;
}

/*
 * Must the connection be tested before it is leased?  One whose reset is pending
 * need not be: the answer to the reset is the test.
 */
static bool
must_test_first(const PgpxPool *pool, const PgpxConn *conn, PgpxTime since,
				PgpxTime now)
{
	return conn->state == PGPX_CONN_IDLE &&
		pgpx_pool_must_test_locked(pool, conn, since, now);
}

/*
 * Return the first free connection, by strategy, that must be tested, or that need
 * not be.  Connections that are not fit are closed.
 */
static PgpxConn *
pick_by_strategy(PgpxPool *pool, bool tested, PgpxTime since, PgpxTime now)
{
	bool		fifo = pool->opts.strategy == PGPX_STRATEGY_FIFO;
	int			next;

	for (int i = fifo ? pool->lru_tail : pool->lru_head; i >= 0; i = next)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		next = fifo ? conn->prev : conn->next;
		if (fit_locked(pool, conn) &&
			must_test_first(pool, conn, since, now) != tested)
			return conn;
	}
	return NULL;
}

/*
 * May a session have the free connection that it used last, before the one that the
 * strategy prefers?
 *
 * With lifo also while its reset is pending: no connection that was used later can
 * have its answer sooner, and a connection used longer ago must stay cold.  Not in a
 * pool with surplus connections: sessions that each return to their own would keep
 * all of them in use, and none would ever reach overflow_ttl.  With fifo only when
 * there is no answer to wait for, because the connection used longest ago has none.
 */
static bool
may_return_to(const PgpxPool *pool, const PgpxConn *partner)
{
	if (pool->opts.strategy == PGPX_STRATEGY_FIFO)
		return partner->state == PGPX_CONN_IDLE;
	return (partner->state == PGPX_CONN_IDLE ||
			partner->state == PGPX_CONN_OWED) &&
		pgpx_pool_total_locked(pool) <= pool->opts.pool_size;
}

/*
 * Have ready connections tested for so many who wait since then, or longer: for each
 * of them one, at the same time.
 */
static void
begin_tests(PgpxPool *pool, int most, PgpxTime since, PgpxTime now)
{
	while (pool->count[PGPX_CONN_CHECKING] < most)
	{
		PgpxConn   *conn = pick_by_strategy(pool, false, since, now);

		if (conn == NULL)
			break;
		if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_CHECKING, now))
			break;
		pgpx_conn_ask_worker(conn, pool->worker);
	}
}

PgpxConn *
pgpx_pool_pick_locked(PgpxPool *pool, int partner, uint64 partner_generation,
					  PgpxTime since, PgpxTime now)
{
	PgpxConn   *conn;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pgpx_pool_is_paused(pool) || pool->damaged)
		return NULL;
	if (partner >= 0)
	{
		conn = &pgpx_conns[partner];
		if (conn->pool == PGPX_POOL_INDEX(pool) &&
			conn->generation == partner_generation &&
			may_return_to(pool, conn) && fit_locked(pool, conn) &&
			!must_test_first(pool, conn, since, now))
			return conn;
	}
	conn = pick_by_strategy(pool, true, since, now);

	/* only connections that must be tested are free, if any */
	if (conn == NULL)
		begin_tests(pool, Max(pool->nwaiting, 1), since, now);
	return conn;
}

uint64
pgpx_pool_take_locked(PgpxPool *pool, PgpxConn *conn, const PgpxHolder *holder,
					  PgpxTime now, PgpxTime waited)
{
	uint64		lease_id;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_LEASED, now))
		return 0;
	lease_id = pg_atomic_fetch_add_u64(&pgpx_shared->next_lease, 1);

	conn->owner_procno = holder->procno;
	conn->owner_pid = holder->pid;
	conn->owner_user = holder->user;
	conn->owner_database = holder->database;
	conn->scope = holder->scope;
	strlcpy(conn->why, holder->why ? holder->why : "", sizeof(conn->why));
	strlcpy(conn->application_name,
			holder->application_name ? holder->application_name : "",
			sizeof(conn->application_name));
	conn->leased_at = conn->state_since;
	conn->leak_logged = false;
	conn->waited = waited;
	conn->leases++;
	pgpx_conn_begin_doing(conn, lease_id);
	pg_atomic_write_u64(&conn->lease_id, lease_id);

	pool->last_checkout = conn->state_since;
	pool->stats.checkouts++;
	return lease_id;
}

/* Can the worker connect without a session that tells it how? */
static bool
conninfo_is_known(const PgpxPool *pool)
{
	return pool->conninfo_epoch != 0 &&
		pool->conninfo_epoch == pgpx_pool_worker_epoch(pool) &&
		pool->conninfo_version >= pool->connect_version;
}

bool
pgpx_pool_must_give_way_locked(PgpxPool *pool)
{
	int			index = PGPX_POOL_INDEX(pool);
	PgpxTime	since = pgpx_pool_waits_since_locked(pool);

	Assert(LWLockHeldByMe(pool->lock));
	return pgpx_cap_is_owed(&pgpx_servers[pool->server].cap, index, since) ||
		pgpx_cap_is_owed(&pgpx_shared->cap, index, since);
}

int
pgpx_pool_wanted_locked(const PgpxPool *pool, int extra)
{
	int			connecting = pool->count[PGPX_CONN_CONNECTING];
	int			total = pgpx_pool_total_locked(pool);
	int			wanted;

	Assert(LWLockHeldByMe(pool->lock));

	/*
	 * What is on its way to be free counts as free: a reset must not make the
	 * pool grow.  What is being cancelled will most likely be closed.
	 */
	wanted = pool->nwaiting + extra - connecting -
		pool->count[PGPX_CONN_RESETTING] - pool->count[PGPX_CONN_CHECKING];

	/*
	 * So many are kept open as soon as the worker knows how to connect, whether the
	 * checkout that told it was served or not.  A cap beats it.
	 */
	if (conninfo_is_known(pool))
		wanted = Max(wanted, pgpx_pool_min_size_locked(pool) - total);
	wanted = Min(wanted, pgpx_pool_cap_locked(pool) - total);
	if (wanted <= 0 || pgpx_pool_is_paused(pool) || pool->damaged ||
		pgpx_pool_conninfo_awaited(pool))
		return 0;
	if (pool->retry_at != 0)
	{
		/* one prober: the others follow when it has succeeded */
		return connecting > 0 || pgpx_now() < pool->retry_at ? 0 : 1;
	}
	if (pool->ramp > 0)
		wanted = Min(wanted, pool->ramp - connecting);
	return Max(wanted, 0);
}

int
pgpx_pool_grow_locked(PgpxPool *pool, int extra)
{
	int			wanted;
	int			asked = 0;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));

	/* what is there goes first; who queues behind others has not looked */
	if (pool->nwaiting > 0 && !pgpx_pool_is_paused(pool))
		begin_tests(pool, pool->nwaiting,
					pgpx_pool_waits_since_locked(pool), pgpx_now());
	wanted = pgpx_pool_wanted_locked(pool, extra);
	if (wanted == 0)
		return 0;
	if (pgpx_pool_must_give_way_locked(pool))
	{
		/* the worker sees whether the other one is still hungry */
		pgpx_worker_wake_soon(pool->worker);
		return 0;
	}
	while (asked < wanted)
	{
		PgpxConn   *conn = pgpx_conn_alloc_locked(pool);

		if (conn == NULL)
			break;
		pgpx_conn_ask_worker(conn, pool->worker);
		pool->stats.grown++;
		asked++;
	}
	return asked;
}

/* How many connections the caps over several pools still allow this one. */
static int
tokens_left(const PgpxPool *pool)
{
	int			limit = pool->opts.max_server_connections;
	int			left = pgpx_shared->max_connections -
		pgpx_cap_used(&pgpx_shared->cap, NULL);

	if (limit <= 0)
		return left;
	return Min(left,
			   limit - pgpx_cap_used(&pgpx_servers[pool->server].cap, NULL));
}

int
pgpx_pool_queued_locked(PgpxPool *pool)
{
	int			coming = pool->count[PGPX_CONN_CONNECTING] +
		pool->count[PGPX_CONN_RESETTING] + pool->count[PGPX_CONN_CHECKING];

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pgpx_pool_is_paused(pool))
		return pool->nwaiting;

	if (pool->retry_at == 0 && !pgpx_pool_must_give_way_locked(pool))
	{
		int			places = pgpx_pool_cap_locked(pool) -
			pgpx_pool_total_locked(pool);

		/* a connection that closes leaves its place within a second */
		places = Min(places, tokens_left(pool));
		places += pool->count[PGPX_CONN_CLOSING];
		coming += Max(places, 0);
	}
	return Max(pool->nwaiting - coming, 0);
}

void
pgpx_pool_wake_waiters_locked(const PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMe(pool->lock));
	for (int i = pool->queue_head; i >= 0; i = pgpx_tickets[i].next)
		pgpx_wake_add(wake, i);
}

void
pgpx_pool_serve_locked(PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	while (pool->queue_head >= 0)
	{
		PgpxTicket *first = &pgpx_tickets[pool->queue_head];
		PgpxConn   *conn = pgpx_pool_pick_locked(pool, -1, 0, first->since,
												 pgpx_now());

		if (conn == NULL)
		{
			pgpx_pool_grow_locked(pool, 0);
			break;
		}
		if (!pgpx_ticket_grant_locked(pool, first, conn, wake))
			break;
	}
}

bool
pgpx_pool_close_locked(PgpxPool *pool, PgpxConn *conn, PgpxCloseReason reason)
{
	PgpxTime	now = pgpx_now();

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	Assert(reason != PGPX_CLOSE_NONE);
	if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_CLOSING, now))
		return false;
	if (reason == PGPX_CLOSE_LIFETIME)
		pool->last_expired = now;
	conn->close_reason = reason;
	pgpx_conn_ask_worker(conn, pool->worker);
	return true;
}

void
pgpx_pool_close_free_locked(PgpxPool *pool, PgpxCloseReason reason)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	while (pool->lru_head >= 0)
		if (!pgpx_pool_close_locked(pool, &pgpx_conns[pool->lru_head], reason))
			return;
}

void
pgpx_pool_trim_locked(PgpxPool *pool)
{
	int			surplus = pgpx_pool_total_locked(pool) -
		pool->count[PGPX_CONN_CLOSING] - pgpx_pool_cap_locked(pool);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	for (; surplus > 0 && pool->lru_tail >= 0; surplus--)
		if (!pgpx_pool_close_locked(pool, &pgpx_conns[pool->lru_tail],
									PGPX_CLOSE_OVERFLOW))
			return;
}
