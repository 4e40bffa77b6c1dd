/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The connections of a pool: pick, lease, grow, grant, release; counters.
 *
 * A process that frees a connection grants it to a waiter in the same critical
 * section.  So no connection is free while a session waits for it, and a new
 * checkout never overtakes a waiter.
 *
 * Counters are incremented under the pool lock, which the caller holds anyway.
 * A session counts the work of a lease privately and adds its totals at the end
 * of the lease.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/pool.h"

#include "common/pg_prng.h"

#include "base/backoff.h"
#include "shared/cap.h"
#include "shared/registry.h"

#define FRESH_US (1000 * 1000)	/* how long a test counts as recent for a
								 * waiter */

/*
 * How many connections a pool lacks.
 *
 * A pool opens connections for min_size and min_idle, and one for each waiter
 * that is older than half the last connect took, and than GROW_AFTER_US.  Such a
 * waiter has waited for so long that a connection of its own is likely to serve
 * it sooner than the end of a lease.  A pool without leases opens one for each
 * waiter, because no lease will end.  If no waiter is that old, but the queue has
 * not been empty for that long, the pool opens one: sessions that wait all the
 * time lack a connection, however short each wait is.
 */
#define GROW_AFTER_US 1000

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

/*
 * Return whether the pool grows only because its queue is never empty: no waiter
 * has reached the age for growth.
 */
static bool
waits_are_short(const PgpxPool *pool)
{
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
		return pool->count[PGPX_CONN_CONNECTING] > 0 ||
			pool->count[PGPX_CONN_CHECKING] > 0 ||
			pool->count[PGPX_CONN_CANCELLING] > 0 ?
			PGPX_LIMIT_BUSY : PGPX_LIMIT_POOL;
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
	int			total;
	int			spare;

	Assert(LWLockHeldByMe(pool->lock));
	if (!pool->has_conninfo ||
		(pool->opts.min_size == 0 && pool->opts.min_idle == 0))
		return 0;
	total = pgpx_pool_total_locked(pool);
	spare = pgpx_pool_count_free_locked(pool) +
		pgpx_pool_count_soon_free_locked(pool) - count_due(pool);
	return Max(pgpx_pool_min_size_locked(pool) - total,
			   Min(pgpx_pool_min_idle_locked(pool) - spare,
				   pool->opts.pool_size - total));
}

/*
 * Return how many connects the pool would request, disregarding the caps over
 * several pools.
 */
static int
count_missing(const PgpxPool *pool, int extra)
{
	int			connecting = pool->count[PGPX_CONN_CONNECTING];
	int			total = pgpx_pool_total_locked(pool);
	int			missing;

	missing = count_due(pool) + extra - pgpx_pool_count_soon_free_locked(pool);
	missing = Max(missing, pgpx_pool_below_min_locked(pool));
	missing = Min(missing, pgpx_pool_cap_locked(pool) - total);
	if (missing <= 0 || pgpx_pool_is_paused(pool) || pool->damaged ||
		pool->awaits_conninfo)
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
		(pool->fails_since == 0 && pool->retry_at <= pgpx_now()))
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

int
pgpx_pool_count_live_locked(const PgpxPool *pool)
{
	int			live = 0;

	Assert(LWLockHeldByMe(pool->lock));

	/*
	 * Skip connections that no session will use again: broken ones, and those
	 * that are closed after their cancel.
	 */
	pgpx_conn_foreach_locked(conn, pool)
	{
		if (!conn->broken && conn->state != PGPX_CONN_CONNECTING &&
			conn->state != PGPX_CONN_CLOSING &&
			!(conn->state == PGPX_CONN_CANCELLING &&
			  conn->close_reason != PGPX_CLOSE_NONE))
			live++;
	}
	return live;
}

bool
pgpx_pool_must_test_locked(const PgpxPool *pool, const PgpxConn *conn,
						   PgpxTime since, PgpxTime now)
{
	PgpxTime	seen = Max(conn->last_used, conn->last_checked);

	Assert(LWLockHeldByMe(pool->lock));
	if (conn->state != PGPX_CONN_IDLE || pool->opts.test_period < 0 ||
		now - seen < pool->opts.test_period * 1000)
		return false;
	return conn->last_checked < since || now - conn->last_checked > FRESH_US;
}

PgpxCloseReason
pgpx_conn_unfit_reason_locked(const PgpxPool *pool, PgpxConn *conn,
							  PgpxTime now)
{
	Assert(LWLockHeldByMe(pool->lock));
	if (pg_atomic_read_u32(&conn->hung_up) != 0)
		return PGPX_CLOSE_BROKEN;
	if (conn->version != pool->version)
		return PGPX_CLOSE_STALE;
	if (conn->expires_at != 0 && now >= conn->expires_at)
		return PGPX_CLOSE_LIFETIME;
	if (pgpx_pool_count_open_locked(pool) > pgpx_pool_cap_locked(pool))
		return PGPX_CLOSE_OVERFLOW;
	return PGPX_CLOSE_NONE;
}

/* Return whether a free connection can be leased.  If not, close it. */
static bool
close_unless_fit_locked(PgpxPool *pool, PgpxConn *conn, PgpxTime now)
{
	PgpxCloseReason reason = pgpx_conn_unfit_reason_locked(pool, conn, now);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (reason != PGPX_CLOSE_NONE)
		pgpx_pool_close_locked(pool, conn, reason);
	return reason == PGPX_CLOSE_NONE;
}

/*
 * Return the first free connection of the list from the connection of index "i"
 * on.  needs_test: only one that must be tested before it is leased; false:
 * only one that need not.  Stale and expired connections and those that the
 * remote closed are closed on the way.
 */
static PgpxConn *
pick_from(PgpxPool *pool, int i, bool needs_test, PgpxTime since, PgpxTime now)
{
	int			next;

	for (; i >= 0; i = next)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		next = conn->in_lru.next;
		if (close_unless_fit_locked(pool, conn, now) &&
			pgpx_pool_must_test_locked(pool, conn, since, now) == needs_test)
			return conn;
	}
	return NULL;
}

/*
 * Return the connection to lease to a session that has a last used connection;
 * NULL: the most recently used one.  answered: the answer to a pending reset of
 * the last used connection has arrived.
 *
 * A session whose last reset is still running leases the free connection that
 * was used just before.  Its reset began earlier, so its answer arrives
 * earlier.  A session that makes one call after another thus alternates between
 * two connections and waits for no reset, and the less recently used ones stay
 * unused.
 */
static PgpxConn *
pick_by_last_use(PgpxPool *pool, PgpxConn *last_conn, bool answered,
				 PgpxTime since, PgpxTime now)
{
	if (!pgpx_conn_is_free(last_conn))
		return NULL;
	if (!close_unless_fit_locked(pool, last_conn, now) ||
		pgpx_pool_must_test_locked(pool, last_conn, since, now))
		return NULL;
	if (last_conn->state == PGPX_CONN_IDLE || answered)
		return last_conn;
	return pick_from(pool, last_conn->in_lru.next, false, since, now);
}

/*
 * Start tests of idle connections until "most" are being tested, one for each
 * waiter.  After a test that has timed out, test all at the same time, because
 * a waiter would otherwise wait for one timeout after another.  since: start of
 * the longest wait.
 */
static void
begin_tests(PgpxPool *pool, int most, PgpxTime since, PgpxTime now)
{
	PgpxConn   *conn;

	while ((conn = pick_from(pool, pool->lru.head, true, since, now)) != NULL &&
		   (pool->count[PGPX_CONN_CHECKING] < most || pool->tests_time_out))
	{
		if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_CHECKING, now))
			break;
		pgpx_conn_notify_worker(conn, pool->worker);
	}
}

PgpxConn *
pgpx_pool_pick_locked(PgpxPool *pool, int last_conn,
					  uint64 last_conn_generation, bool answered,
					  PgpxTime since, PgpxTime now)
{
	PgpxConn   *conn = NULL;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pgpx_pool_is_paused(pool) || pool->damaged)
		return NULL;
	if (last_conn >= 0)
	{
		PgpxConn   *last = &pgpx_conns[last_conn];

		if (last->pool == PGPX_POOL_INDEX(pool) &&
			last->generation == last_conn_generation)
			conn = pick_by_last_use(pool, last, answered, since, now);
	}
	if (conn == NULL)
		conn = pick_from(pool, pool->lru.head, false, since, now);

	/* any connection that is still free must be tested first */
	if (conn == NULL)
		begin_tests(pool, Max(pool->nwaiting, 1), since, now);
	return conn;
}

uint64
pgpx_pool_lease_locked(PgpxPool *pool, PgpxConn *conn, const PgpxHolder *holder,
					   PgpxTime now, PgpxTime waited)
{
	uint64		lease_id;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_LEASED, now))
		return 0;
	lease_id = pg_atomic_fetch_add_u64(&pgpx_shared->next_id, 1);

	conn->holder = *holder;
	conn->leased_at = conn->state_since;
	conn->leak_logged = false;
	pg_atomic_write_u64(&conn->spared_until, 0);
	conn->waited = waited;
	conn->leases++;
	pgpx_conn_begin_activity(conn, lease_id);
	pg_atomic_write_u64(&conn->lease_id, lease_id);

	pool->last_checkout = conn->state_since;
	pool->peaks.leased = Max(pool->peaks.leased,
							 pgpx_pool_count_leased_locked(pool));
	pool->stats.checkouts++;
	return lease_id;
}

void
pgpx_pool_fold_peaks_locked(PgpxPool *pool)
{
	PgpxLoad	current = {
		.leased = pgpx_pool_count_leased_locked(pool),
		.waiting = pool->nwaiting,
	};

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	current.callers = current.leased + current.waiting;
	pgpx_pool_note_use_locked(pool, pool->peaks.leased);
	for (int i = 0; i < PGPX_SPANS; i++)
	{
		PgpxLoad   *peaks = &pool->sampling[i].peaks;

		peaks->leased = Max(peaks->leased, pool->peaks.leased);
		peaks->waiting = Max(peaks->waiting, pool->peaks.waiting);
		peaks->callers = Max(peaks->callers, pool->peaks.callers);
	}
	pool->peaks = current;
}

int
pgpx_pool_grow_locked(PgpxPool *pool, int extra)
{
	bool		lacked = pool->lacks != 0;
	int			missing;
	int			requested = 0;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->lacks = 0;

	/*
	 * test idle connections first: a checkout that is enqueued behind other
	 * waiters has not called pgpx_pool_pick_locked, which starts tests
	 */
	if (pool->nwaiting > 0 && pool->lru.head >= 0 && !pgpx_pool_is_paused(pool))
		begin_tests(pool, pool->nwaiting,
					pgpx_pool_waits_since_locked(pool), pgpx_now());

	/* a full pool opens nothing: do not read the clock under the lock */
	if (pgpx_pool_total_locked(pool) >= pgpx_pool_cap_locked(pool))
		return 0;
	missing = count_missing(pool, extra);
	if (missing == 0)
	{
		/* the worker grows the pool for waiters that are still too young */
		if (pgpx_pool_growth_due_locked(pool, NULL) != 0)
			pgpx_worker_wake_soon(pool->worker);
		return 0;
	}
	while (requested < missing)
	{
		PgpxConn   *conn = pgpx_conn_alloc_locked(pool);

		if (conn == NULL)
			break;
		pgpx_conn_notify_worker(conn, pool->worker);
		requested++;
	}

	if (requested < missing && !pool->damaged)
	{
		pool->lacks = missing - requested;
		if (pool->lacks_all)
			pool->lacks = Min(pool->lacks,
							  Max(pgpx_cap_left_locked(pool, false, false), 1));

		if (waits_are_short(pool))
			pool->lacks = -1;

		/* have the worker evict; it ticks while a pool with waiters lacks some */
		if (pool->nwaiting == 0)
			pgpx_worker_wake_soon(pool->worker);
		else if (!lacked)
			pgpx_worker_wake(pool->worker);
	}
	return requested;
}

void
pgpx_pool_wake_waiters_locked(const PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMe(pool->lock));
	for (int i = pool->queue.head; i >= 0; i = pgpx_waiters[i].in_queue.next)
		pgpx_wake_add(wake, i);
}

void
pgpx_pool_dispatch_locked(PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	while (pool->queue.head >= 0)
	{
		PgpxTime	now = pgpx_now();
		PgpxWaiter *first = pgpx_pool_first_waiter_locked(pool, now);
		PgpxConn   *conn;

		if (first == NULL)
			break;
		conn = pgpx_pool_pick_locked(pool, -1, 0, true, first->since, now);
		if (conn == NULL)
		{
			pgpx_pool_grow_locked(pool, 0);
			break;
		}
		if (!pgpx_waiter_grant_locked(pool, first, conn, wake))
			break;
	}
}

PgpxTime
pgpx_pool_jitter(PgpxTime pause)
{
	return pause * 3 / 4 +
		(PgpxTime) (pg_prng_double(&pg_global_prng_state) * pause / 4);
}

void
pgpx_pool_back_off_locked(PgpxPool *pool, PgpxTime began, PgpxTime now,
						  int sqlstate, const char *text)
{
	bool		further = pool->backoff_ms != 0;

	/*
	 * already under way at the last failure; a connection that was lost unused
	 * needs a pause in any case
	 */
	bool		together = further && began <= pool->last_error_at &&
		(pool->retry_at > now || !pool->lost_unused);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->last_error_at = now;
	pool->last_sqlstate = sqlstate;
	strlcpy(pool->last_error, text, sizeof(pool->last_error));
	if (together)
	{
		pool->backoff_ms = Min(pool->backoff_ms + pool->opts.retry_min,
							   pool->opts.retry_max);
		return;
	}
	pool->backoff_ms = pgpx_backoff_next(pool->backoff_ms,
										 pool->opts.retry_min,
										 pool->opts.retry_max);
	pool->retry_at = now + pgpx_pool_jitter(pool->backoff_ms * 1000);
	pool->ramp = 1;
}

bool
pgpx_conn_shows_recovery_locked(const PgpxPool *pool, const PgpxConn *conn)
{
	Assert(LWLockHeldByMe(pool->lock));
	return conn->opened_at > pool->last_error_at;
}

/*
 * Return whether a connection that is lost now counts as a failed attempt:
 * before its first lease, or within PGPX_PROVEN_US of its login, and before any
 * statement.
 */
static bool
ends_early(PgpxConn *conn, PgpxTime now)
{
	return conn->opened_at != 0 && pgpx_conn_statements(conn) == 0 &&
		(conn->leases == 0 || now - conn->opened_at < PGPX_PROVEN_US);
}

/*
 * Count the loss of a connection that no session has used as a failed attempt
 * to connect.  It delays the next attempt.  The pool stays available, because
 * the remote server accepts logins.
 */
static void
note_early_end_locked(PgpxPool *pool, PgpxConn *conn, PgpxTime now)
{
	int			code = ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->stats.connects_failed++;
	pool->lost_unused = true;
	pgpx_pool_back_off_locked(pool, conn->opened_at - conn->connect_time, now,
							  code, "The remote server closed the connection before it was used.");
}

bool
pgpx_pool_close_locked(PgpxPool *pool, PgpxConn *conn, PgpxCloseReason reason)
{
	PgpxTime	now = pgpx_now();

	/* not if a test has failed, or if the worker ends */
	bool		may_end_early = reason == PGPX_CLOSE_BROKEN &&
		conn->version == pool->version && conn->state != PGPX_CONN_CHECKING &&
		pgpx_pool_worker_incarnation(pool) != 0;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	Assert(reason != PGPX_CLOSE_NONE);
	if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_CLOSING, now))
		return false;
	conn->close_reason = reason;
	if (may_end_early && ends_early(conn, now))
		note_early_end_locked(pool, conn, now);
	pgpx_conn_notify_worker(conn, pool->worker);
	return true;
}

void
pgpx_pool_close_free_locked(PgpxPool *pool)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	while (pool->lru.head >= 0)
		if (!pgpx_pool_close_locked(pool, &pgpx_conns[pool->lru.head],
									PGPX_CLOSE_STALE))
			return;
}

bool
pgpx_pool_is_current_locked(const PgpxPool *pool,
							const PgpxFingerprint *fingerprint)
{
	Assert(LWLockHeldByMe(pool->lock));
	return memcmp(&pool->fingerprint, fingerprint, sizeof(*fingerprint)) == 0;
}

/*
 * Return the reason to close a connection at its release, or NONE.  It takes
 * precedence over a release action that keeps the connection.
 */
static PgpxCloseReason
retire_reason(PgpxPool *pool, PgpxConn *conn, PgpxTime now)
{
	PgpxCloseReason reason = pgpx_conn_unfit_reason_locked(pool, conn, now);

	if (reason != PGPX_CLOSE_NONE)
		return reason;
	if (pgpx_conn_cancel_is_lost(conn))
		return PGPX_CLOSE_BROKEN;
	if (pgpx_pool_is_draining(pool))
		return PGPX_CLOSE_STALE;
	if (pgpx_cap_must_close_locked(pool))
		return PGPX_CLOSE_EVICTED;
	return PGPX_CLOSE_NONE;
}

/* Perform a release action: LEASED -> another state, which clears the owner. */
static void
release_locked(PgpxPool *pool, PgpxConn *conn, uint64 lease_id,
			   PgpxReleaseAction action,
			   int unread_reset, PgpxCloseReason reason, PgpxTime now)
{
	bool		cancelling =
		pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE;
	PgpxCloseReason retire = retire_reason(pool, conn, now);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));

	/*
	 * only the holder requests a cancel, and after that it leaves no unread
	 * reset, which the cancel could hit
	 */
	Assert(!(cancelling && action == PGPX_RELEASE_RESET_PENDING));
	if (action != PGPX_RELEASE_UNCHANGED)
	{
		conn->unread_reset = action == PGPX_RELEASE_RESET_PENDING ||
			action == PGPX_RELEASE_DIRTY ?
			unread_reset : 0;
		conn->reset_by = lease_id;
	}
	if (action == PGPX_RELEASE_DIRTY)
		conn->dirty = true;
	else if (action == PGPX_RELEASE_RESET_PENDING ||
			 action == PGPX_RELEASE_RESET)
		conn->dirty = false;

	if (action == PGPX_RELEASE_CLOSE)
		pgpx_pool_close_locked(pool, conn, reason);
	else if (action == PGPX_RELEASE_CANCEL_CLOSE)
	{
		/* with a close reason: close once the cancel was delivered */
		conn->close_reason = reason;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, now);
		if (!cancelling)
			pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_REQUESTED);
		pgpx_conn_notify_worker(conn, pool->worker);
	}
	else if (retire != PGPX_CLOSE_NONE)
		pgpx_pool_close_locked(pool, conn, retire);
	else if (action == PGPX_RELEASE_CANCEL || cancelling)
	{
		conn->close_reason = PGPX_CLOSE_NONE;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, now);
		pgpx_conn_notify_worker(conn, pool->worker);
	}
	else if (action == PGPX_RELEASE_RESET)
	{
		pool->stats.resets++;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_RESETTING, now);
		pgpx_conn_notify_worker(conn, pool->worker);
	}
	else if (conn->unread_reset > 0)
	{
		pgpx_conn_set_state(pool, conn, PGPX_CONN_RESET_PENDING, now);
		/* the worker reads the answer soon, unless a holder does */
		pgpx_worker_wake_soon(pool->worker);
	}
	else
		pgpx_conn_set_state(pool, conn, PGPX_CONN_IDLE, now);
}

PgpxReleaseAction
pgpx_pending_release_action(PgpxPendingState state, PgpxCloseReason *reason)
{
	*reason = PGPX_CLOSE_BROKEN;
	if (state == PGPX_PENDING_FAILED)
		return PGPX_RELEASE_CLOSE;
	if (state != PGPX_PENDING_SENT && state != PGPX_PENDING_ABANDONED)
		return PGPX_RELEASE_UNCHANGED;
	*reason = PGPX_CLOSE_HOLDER_DIED;
	return PGPX_RELEASE_CANCEL_CLOSE;
}

/*
 * Lock the pool of a lease.  Return NULL, without the lock, if the lease was
 * revoked, or if the pool is damaged, since then its worker revokes all leases.
 * The pool of a leased connection does not change while the lease lasts.
 */
static PgpxPool *
lock_lease(PgpxConn *conn, uint64 lease_id)
{
	PgpxPool   *pool;
	int			index;

	if (pg_atomic_read_u64(&conn->lease_id) != lease_id)
		return NULL;
	index = conn->pool;
	if (index < 0)
		return NULL;
	pool = &pgpx_pools[index];
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->pool == index && !pool->damaged &&
		pg_atomic_read_u64(&conn->lease_id) == lease_id)
		return pool;
	LWLockRelease(pool->lock);
	return NULL;
}

/* Count the lease of a connection, which ends now.  usage may be NULL. */
static void
count_lease_locked(PgpxPool *pool, const PgpxConn *conn, PgpxTime now,
				   PgpxEnd end, const PgpxUsage *usage)
{
	PgpxStats  *stats = &pool->stats;
	PgpxTime	held = now - conn->leased_at;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	switch (end)
	{
		case PGPX_END_CHECKIN:
		case PGPX_END_DISCARD:
			stats->checkins++;
			break;
		case PGPX_END_RECLAIMED:
			stats->reclaimed++;
			break;
		case PGPX_END_RETRIED:
			stats->retried++;
			break;
		case PGPX_END_TERMINATED:
			stats->terminated++;
			break;
		case PGPX_END_TIMEOUT:
			stats->lease_timeouts++;
			break;
	}

	stats->lease_time += held;
	stats->max_lease_time = Max(stats->max_lease_time, (uint64) held);
	if (usage != NULL)
	{
		stats->statements += usage->statements;
		stats->polled += usage->polled;
		stats->rows += usage->rows;
		stats->errors += usage->errors;
		stats->bytes_received += usage->bytes_received;
		stats->bytes_sent += usage->bytes_sent;
		stats->resets += usage->resets;
		stats->answer_time += usage->answer_time;
	}
}

bool
pgpx_pool_release(PgpxConn *conn, uint64 lease_id, PgpxEnd end,
				  PgpxReleaseAction action,
				  int unread_reset, PgpxCloseReason reason,
				  const PgpxUsage *usage)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxPool   *pool;

	pool = lock_lease(conn, lease_id);
	if (pool == NULL)
		return false;
	conn->last_used = pgpx_now();
	if (action != PGPX_RELEASE_UNCHANGED)
		conn->last_user = conn->holder.user;
	if (usage != NULL && usage->statements > 0 &&
		action != PGPX_RELEASE_CLOSE && action != PGPX_RELEASE_CANCEL_CLOSE &&
		pgpx_conn_shows_recovery_locked(pool, conn))
		pool->backoff_ms = 0;	/* it has served a session */
	release_locked(pool, conn, lease_id, action, unread_reset, reason,
				   conn->last_used);
	if (!pool->damaged)
		count_lease_locked(pool, conn, conn->last_used, end, usage);
	pgpx_pool_dispatch_locked(pool, &wake);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	return true;
}

bool
pgpx_pool_hand_over(PgpxConn *conn, uint64 lease_id,
					const PgpxFingerprint *fingerprint, bool reset,
					const PgpxUsage *usage,
					PgpxHandOver *hand_over)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxTime	now = pgpx_now();
	PgpxPool   *pool = lock_lease(conn, lease_id);
	PgpxWaiter *first;

	if (pool == NULL)
		return false;
	conn->last_used = now;
	first = pgpx_pool_first_waiter_locked(pool, now);
	if (first == NULL ||
		pgpx_waiter_pending_state(first) != PGPX_PENDING_OPEN ||
		first->options_version != pool->options_version ||
		!pgpx_pool_is_current_locked(pool, fingerprint) ||
		pgpx_pool_is_paused(pool) ||
		pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE ||
		retire_reason(pool, conn, now) != PGPX_CLOSE_NONE ||
		!pgpx_conn_set_state(pool, conn, PGPX_CONN_IDLE, now))
	{
		LWLockRelease(pool->lock);
		return false;
	}

	conn->last_user = conn->holder.user;
	count_lease_locked(pool, conn, now, PGPX_END_CHECKIN, usage);
	conn->unread_reset = 0;
	conn->reset_by = lease_id;
	conn->dirty = !reset;
	first->pending_reset = reset;
	hand_over->waiter = first;
	hand_over->pending_state =
		PGPX_PENDING_WITH(pg_atomic_read_u32(&first->pending_state),
						  PGPX_PENDING_SENDING);
	hand_over->len = first->pending_len;
	memcpy(hand_over->messages, PGPX_PENDING_OF(first), hand_over->len);
	pg_atomic_write_u32(&first->pending_state, hand_over->pending_state);
	(void) pgpx_waiter_grant_locked(pool, first, conn, &wake);
	pgpx_conn_set_activity(conn, first->lease_id, PGPX_ACT_ACTIVE, false);
	LWLockRelease(pool->lock);

	/*
	 * do not flush "wake": the caller wakes the waiter once the statement is
	 * sent
	 */
	return true;
}

void
pgpx_pool_revoke_locked(PgpxPool *pool, PgpxConn *conn, PgpxRevoke revoke,
						PgpxWake *wake)
{
	static const PgpxEnd ends[] = {
		[PGPX_REVOKE_BROKEN] = PGPX_END_RECLAIMED,
		[PGPX_REVOKE_TERMINATED] = PGPX_END_TERMINATED,
		[PGPX_REVOKE_TIMEOUT] = PGPX_END_TIMEOUT,
	};
	int			owner = conn->holder.procno;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->damaged)
		return;					/* its worker is about to revoke all leases */
	Assert(conn->state == PGPX_CONN_LEASED);

	if (owner >= 0)
		pgpx_waiter_note_revoked(owner, pg_atomic_read_u64(&conn->lease_id),
								 revoke);
	if (revoke == PGPX_REVOKE_BROKEN)
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
	else
	{
		PgpxActivity activity = pgpx_conn_activity(conn);

		/*
		 * the worker shuts it down at once; its slot is free when the remote
		 * is idle
		 */
		conn->close_reason = PGPX_CLOSE_TERMINATED;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, pgpx_now());
		if ((activity == PGPX_ACT_ACTIVE || activity == PGPX_ACT_CANCELLING) &&
			pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_NONE)
			pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_REQUESTED);
		pgpx_conn_notify_worker(conn, pool->worker);
	}
	if (!pool->damaged)
		count_lease_locked(pool, conn, pgpx_now(), ends[revoke], NULL);
	if (owner >= 0)
		pgpx_wake_add(wake, owner);
}

void
pgpx_pool_end_worker_locked(PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));

	/* not by the list of the pool, which may be damaged */
	for (int i = 0; i < pgpx_conns_end(); i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		uint64		lease_id = pg_atomic_read_u64(&conn->lease_id);
		int			owner = conn->holder.procno;

		if (conn->pool != PGPX_POOL_INDEX(pool))
			continue;
		if (conn->opened_at != 0)
			pool->stats.closed_broken++;
		else if (conn->state == PGPX_CONN_CONNECTING)
			pool->stats.connects_failed++;
		if (lease_id == 0)
			continue;
		count_lease_locked(pool, conn, pgpx_now(), PGPX_END_RECLAIMED, NULL);
		if (owner < 0 || owner >= pgpx_shared->nwaiter_slots)
			continue;
		pgpx_waiter_note_revoked(owner, lease_id, PGPX_REVOKE_WORKER);
		pgpx_wake_add(wake, owner);
	}
	pgpx_conn_free_all_locked(pool);
}

void
pgpx_pool_report_reset(PgpxPool *pool, const PgpxConn *conn, const char *error)
{
	PgpxTime	now = pgpx_now();

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);

	/* while the remote is unavailable, last_error is the reason */
	if (pool->backoff_ms == 0)
	{
		pool->last_error_at = now;
		pool->last_sqlstate = ERRCODE_CONNECTION_FAILURE;
		snprintf(pool->last_error, sizeof(pool->last_error),
				 "a reset has failed: %s", error);
	}
	LWLockRelease(pool->lock);
	ereport(LOG,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("pgpool_ext closes connection %d to server \"%s\" of database \"%s\" because its reset failed",
					PGPX_CONN_INDEX(conn), NameStr(pool->server_name),
					NameStr(pool->database_name)),
			 errdetail_internal("%s", error)));
}

uint64
pgpx_stats_sum_ended(const PgpxStats *stats)
{
	return stats->checkins + stats->reclaimed + stats->terminated +
		stats->lease_timeouts + stats->retried;
}

uint64
pgpx_stats_sum_closed(const PgpxStats *stats)
{
	uint64		sum = 0;

#define ADD(name) sum += stats->name;
	PGPX_COUNTERS(PGPX_SKIP, PGPX_SKIP, PGPX_SKIP, PGPX_SKIP, ADD)
#undef ADD
	return sum;
}

PgpxPool *
pgpx_pool_lock(int index, uint32 pool_id)
{
	PgpxPool   *pool;

	if (index < 0)
		return NULL;
	pool = &pgpx_pools[index];
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (pool->pool_id == pool_id)
		return pool;
	LWLockRelease(pool->lock);
	return NULL;
}
