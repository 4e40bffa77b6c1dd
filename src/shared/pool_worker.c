/*-------------------------------------------------------------------------
 *
 * pool_worker.c
 *	  The worker's part of a pool: its connection state transitions and
 *	  maintenance.
 *
 * Only the worker calls these functions.
 *
 * Transitions.  Each function is one step of the state machine in
 * conn_state.h: it acquires the pool lock, changes the state, dispatches the
 * queue, releases the lock and wakes the waiters that were granted a lease.
 *
 * Maintenance: expiry, shrinking, min_size, min_idle, and the end of leases
 * that are held too long.  It decides by the clock and by states, under the
 * pool lock, and returns when it must be called again, so that a pool in which
 * nothing is due costs nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/pool_worker.h"

#include "utils/timestamp.h"

#include "base/debug_point.h"
#include "shared/cap.h"
#include "shared/registry.h"

/*
 * Minimum interval between log messages about outages of a pool, and about
 * unused connections that were lost.
 */
#define LOG_INTERVAL_US (10 * 1000 * 1000)

/*
 * Begin a step: lock the pool, and return true if the connection is in this
 * state.  Otherwise return false without the lock.
 */
static bool
begin_step(PgpxPool *pool, PgpxConn *conn, PgpxConnState state)
{
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == (int) state)
		return true;
	LWLockRelease(pool->lock);
	return false;
}

/* End a step: dispatch the queue, release the lock, and wake the waiters. */
static void
end_step(PgpxPool *pool, PgpxWake *wake)
{
	pgpx_pool_dispatch_locked(pool, wake);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(wake);
}

/*
 * Make a connection idle after the worker's work on it succeeded, unless it must
 * not be used again.
 */
static void
make_idle_locked(PgpxPool *pool, PgpxConn *conn, PgpxTime now)
{
	PgpxCloseReason reason = pgpx_conn_unfit_reason_locked(pool, conn, now);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (reason != PGPX_CLOSE_NONE)
		pgpx_pool_close_locked(pool, conn, reason);
	else
		(void) pgpx_conn_set_state(pool, conn, PGPX_CONN_IDLE, now);
}

void
pgpx_pool_opened(PgpxPool *pool, PgpxConn *conn, PgpxTime connect_time)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxTime	outage = 0;

	if (!begin_step(pool, conn, PGPX_CONN_CONNECTING))
		return;
	conn->opened_at = pgpx_now();
	conn->last_used = conn->opened_at;
	conn->connect_time = connect_time;
	pool->connect_time = connect_time;
	pool->stats.connects++;
	pool->stats.connect_time += connect_time;
	if (pool->outage_logged)
		outage = conn->opened_at - pool->fails_since;
	pool->outage_logged = false;
	pool->fails_since = 0;
	pool->remote_full = false;
	conn->expires_at = pgpx_choose_expiry(conn->opened_at,
										  pool->opts.max_lifetime);

	/*
	 * Another connection was lost unused since this attempt began: the pause
	 * goes on, because this login does not show more.
	 */
	if (pool->backoff_ms == 0 || !pool->lost_unused ||
		conn->state_since > pool->last_error_at)
	{
		pool->retry_at = 0;

		/* after an outage 1, 2, 4 .. concurrent connects */
		if (pool->ramp > 0)
			pool->ramp = pool->ramp >= pgpx_pool_cap_locked(pool) ? 0 :
				pool->ramp * 2;
	}
	make_idle_locked(pool, conn, pgpx_now());
	pgpx_pool_note_use_locked(pool, pgpx_pool_count_live_locked(pool));
	pgpx_pool_dispatch_locked(pool, &wake);
	LWLockRelease(pool->lock);
	PGPX_DEBUG_POINT("granted");
	pgpx_wake_flush(&wake);
	if (outage != 0)
		ereport(LOG,
				(errmsg("pgpool_ext connects to server \"%s\" of database \"%s\" for user \"%s\" again, after %.3f s",
						NameStr(pool->server_name),
						NameStr(pool->database_name),
						NameStr(pool->user_name), outage / 1e6)));
}

/*
 * Pauses between attempts while the remote is full and sessions wait.  That is
 * not an outage: the connections that exist serve the waiters.  The remote does
 * not report that another client disconnects.  Each refused attempt costs it a
 * process.
 */
#define FULL_RETRY_US (1000 * 1000)
#define FULL_RETRY_MIN_US (100 * 1000)

void
pgpx_pool_retry_if_room_locked(PgpxPool *pool, PgpxTime now)
{
	int			used = pgpx_cap_used(&pgpx_servers[pool->server].cap, NULL);
	PgpxTime	pause = FULL_RETRY_US;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (!pool->remote_full || pool->nwaiting == 0 || pool->retry_at <= now)
		return;
	if (used < pool->used_when_full)
	{
		pool->used_when_full = used;
		pause = FULL_RETRY_MIN_US;
	}
	if (pool->retry_at > Max(now, pool->last_error_at) + pause)
		pool->retry_at = Max(now,
							 pool->last_error_at + pgpx_pool_jitter(pause));
}

/*
 * End a connect attempt.  running: its start commands may still run at the
 * remote.
 */
static void
end_attempt_locked(PgpxPool *pool, PgpxConn *conn, bool running,
				   PgpxCloseReason reason)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (running)
	{
		/* keep the slot until the remote is idle */
		conn->close_reason = reason;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, pgpx_now());
		pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_REQUESTED);
	}
	else
	{
		(void) pgpx_conn_set_state(pool, conn, PGPX_CONN_CLOSING, pgpx_now());
		pgpx_conn_free_locked(pool, conn);
	}
}

/* Return whether an outage may be logged now, and if so, record the time. */
static bool
may_log_locked(PgpxPool *pool, PgpxTime now)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->outage_logged_at != 0 &&
		now - pool->outage_logged_at <= LOG_INTERVAL_US)
		return false;
	pool->outage_logged_at = now;
	return true;
}

/*
 * Fail the waiters of an unavailable pool with the last error.
 *
 * While a live connection is left, they wait for it.  Otherwise they fail.
 * That includes those that were enqueued during the attempt: the next one
 * begins after a pause, in which further checkouts fail at once.
 */
static void
fail_waiters_locked(PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pgpx_pool_count_live_locked(pool) > 0 || pgpx_pool_is_paused(pool) ||
		pool->opts.on_unavailable != PGPX_UNAVAILABLE_FAIL)
		return;
	while (pool->queue.head >= 0)
		pgpx_waiter_fail_locked(pool, &pgpx_waiters[pool->queue.head],
								pool->last_sqlstate, pool->last_error, wake);
}

void
pgpx_pool_connect_failed(PgpxPool *pool, PgpxConn *conn,
						 PgpxConnectFailure how, int sqlstate, const char *text)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxTime	began;
	bool		stale;
	bool		log_outage = false;

	if (!begin_step(pool, conn, PGPX_CONN_CONNECTING))
		return;
	began = conn->state_since;
	stale = conn->version != pool->version;
	pool->stats.connects_failed++;
	end_attempt_locked(pool, conn, how == PGPX_FAILED_RUNNING,
					   PGPX_CLOSE_BROKEN);
	if (!stale)
	{
		bool		full = how == PGPX_FAILED_FULL;
		PgpxTime	now = pgpx_now();

		pgpx_pool_back_off_locked(pool, began, now, sqlstate, text);
		pool->lost_unused = false;
		log_outage = !pool->outage_logged && may_log_locked(pool, now);
		if (log_outage)
			pool->outage_logged = true;
		if (pool->fails_since == 0 || pool->remote_full != full)
			pool->fails_since = now;
		pool->remote_full = full;
		if (full)
			pool->used_when_full =
				pgpx_cap_used(&pgpx_servers[pool->server].cap, NULL);
		else
			fail_waiters_locked(pool, &wake);
	}
	end_step(pool, &wake);

	/* with log_connections each attempt is logged already */
	if (log_outage && !pgpx_log_connections)
		ereport(LOG,
				(errmsg(how == PGPX_FAILED_FULL ?
						"pgpool_ext waits because server \"%s\" of database \"%s\" accepts no more connections for user \"%s\"" :
						"pgpool_ext cannot connect to server \"%s\" of database \"%s\" for user \"%s\"",
						NameStr(pool->server_name),
						NameStr(pool->database_name),
						NameStr(pool->user_name)),
				 errdetail_internal("%s", text)));
}

void
pgpx_pool_attempt_outdated(PgpxPool *pool, PgpxConn *conn, bool running)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	if (!begin_step(pool, conn, PGPX_CONN_CONNECTING))
		return;
	end_attempt_locked(pool, conn, running, PGPX_CLOSE_STALE);
	end_step(pool, &wake);
}

void
pgpx_pool_conninfo_missing(PgpxPool *pool, PgpxConn *conn)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	if (!begin_step(pool, conn, PGPX_CONN_CONNECTING))
		return;
	end_attempt_locked(pool, conn, false, PGPX_CLOSE_NONE);
	pool->has_conninfo = false;
	pool->awaits_conninfo = true;
	pgpx_pool_wake_waiters_locked(pool, &wake);
	end_step(pool, &wake);
}

void
pgpx_pool_conninfo_known(PgpxPool *pool, uint64 version)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (version >= pool->connect_version)
		pool->has_conninfo = true;

	/*
	 * while the conninfo was awaited, the pool could not grow; if this version
	 * is too old, the next attempt requests the conninfo again
	 */
	pool->awaits_conninfo = false;
	pgpx_pool_grow_locked(pool, 0);
	end_step(pool, &wake);
}

bool
pgpx_pool_begin_reset(PgpxPool *pool, PgpxConn *conn)
{
	bool		began;

	if (!begin_step(pool, conn, PGPX_CONN_RESET_PENDING))
		return false;
	began = pgpx_conn_set_state(pool, conn, PGPX_CONN_RESETTING, pgpx_now());
	LWLockRelease(pool->lock);
	return began;
}

void
pgpx_pool_reset_done(PgpxPool *pool, PgpxConn *conn, bool ok, bool late)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	if (!begin_step(pool, conn, PGPX_CONN_RESETTING))
		return;

	/* a pending answer may be that of a ROLLBACK, which resets nothing */
	if (conn->unread_reset == 0)
		conn->dirty = false;
	conn->unread_reset = 0;
	if (ok)
		make_idle_locked(pool, conn, pgpx_now());
	else if (late)
	{
		conn->close_reason = PGPX_CLOSE_RESET;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, pgpx_now());
		pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_REQUESTED);
		pgpx_conn_notify_worker(conn, pool->worker);
	}
	else
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_RESET);
	end_step(pool, &wake);
}

void
pgpx_pool_check_done(PgpxPool *pool, PgpxConn *conn, bool ok, bool late)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	if (!begin_step(pool, conn, PGPX_CONN_CHECKING))
		return;
	pool->stats.checks++;
	conn->last_checked = pgpx_now();
	if (ok)
		make_idle_locked(pool, conn, conn->last_checked);
	else
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
	pool->tests_time_out = late || (pool->tests_time_out && !ok);
	pgpx_pool_dispatch_locked(pool, &wake);
	if (pool->count[PGPX_CONN_CHECKING] == 0)
		pool->tests_time_out = false;
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

int
pgpx_pool_cancel_done(PgpxPool *pool, PgpxConn *conn, bool sent, bool ok)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	int			state;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (sent)
		pool->stats.cancels++;
	if (sent && !ok)
		pg_atomic_write_u32(&conn->cancel_lost, 1);
	pg_write_barrier();			/* a process that sees NONE must see
								 * cancel_lost, too */
	pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_NONE);
	if (conn->state == PGPX_CONN_CANCELLING &&
		conn->close_reason == PGPX_CLOSE_NONE)
	{
		if (!ok)
			pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
		else if (conn->version != pool->version)
			pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_STALE);
		else
		{
			pool->stats.resets++;
			pgpx_conn_set_state(pool, conn, PGPX_CONN_RESETTING, pgpx_now());
		}
	}
	else if (conn->state == PGPX_CONN_LEASED && conn->holder.procno >= 0)
		pgpx_wake_add(&wake, conn->holder.procno);
	state = conn->state;
	end_step(pool, &wake);
	return state;
}

void
pgpx_pool_lost(PgpxPool *pool, PgpxConn *conn)
{
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&conn->hung_up, 1);
	if (conn->state == PGPX_CONN_LEASED && !conn->broken)
	{
		conn->broken = true;
		pool->nbroken++;
		pgpx_cap_release_server(pool);
	}
	LWLockRelease(pool->lock);

	/* if it is leased, this only dispatches the queue */
	pgpx_pool_close(pool, conn, PGPX_CLOSE_BROKEN);
}

void
pgpx_pool_close(PgpxPool *pool, PgpxConn *conn, PgpxCloseReason reason)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state != PGPX_CONN_FREE && conn->state != PGPX_CONN_CLOSING &&
		conn->state != PGPX_CONN_LEASED)
		pgpx_pool_close_locked(pool, conn, reason);
	end_step(pool, &wake);
}

/* Count the close of a connection, for its close reason, if it was open. */
static void
count_closed_locked(PgpxPool *pool, const PgpxConn *conn)
{
	PgpxStats  *stats = &pool->stats;
	uint64	   *counters[PGPX_CLOSE_NREASONS] = {
		[PGPX_CLOSE_NONE] = &stats->closed_broken,
		[PGPX_CLOSE_IDLE] = &stats->closed_idle,
		[PGPX_CLOSE_LIFETIME] = &stats->closed_lifetime,
		[PGPX_CLOSE_OVERFLOW] = &stats->closed_overflow,
		[PGPX_CLOSE_EVICTED] = &stats->closed_evicted,
		[PGPX_CLOSE_RESET] = &stats->closed_reset,
		[PGPX_CLOSE_BROKEN] = &stats->closed_broken,
		[PGPX_CLOSE_STALE] = &stats->closed_stale,
		[PGPX_CLOSE_TERMINATED] = &stats->closed_with_lease,
		[PGPX_CLOSE_HOLDER_DIED] = &stats->closed_with_lease,
		[PGPX_CLOSE_DISCARDED] = &stats->closed_with_lease,
	};

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (conn->opened_at != 0)
		++*counters[conn->close_reason];
}

void
pgpx_pool_closed(PgpxPool *pool, PgpxConn *conn)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	bool		log_end = false;

	if (!begin_step(pool, conn, PGPX_CONN_CLOSING))
		return;
	if (pool->lost_unused && conn->close_reason == PGPX_CLOSE_BROKEN &&
		pgpx_conn_statements(conn) == 0)
		log_end = may_log_locked(pool, pgpx_now());
	count_closed_locked(pool, conn);
	pgpx_conn_free_locked(pool, conn);
	end_step(pool, &wake);
	if (log_end)
		ereport(LOG,
				(errmsg("pgpool_ext lost an unused connection to server \"%s\" of database \"%s\" for user \"%s\"",
						NameStr(pool->server_name),
						NameStr(pool->database_name),
						NameStr(pool->user_name)),
				 errdetail("The remote server closed the connection before it was used. This counts as a failed attempt to connect.")));
}

/* Minimum interval between checks of a pool with connections in use. */
#define CHECK_INTERVAL_US (500 * 1000)

/*
 * Return how many connections the pool has needed at the same time within a
 * period, in ms.  Return PG_INT32_MAX if the current half of the period has not
 * ended.  Lower *due to its end; a short period is checked at an interval, so
 * that the worker does not wake too often.
 */
static int
end_half(PgpxPool *pool, PgpxPeak *peak, int64 period, PgpxTime now,
		 PgpxTime *due)
{
	int			leased = pgpx_pool_count_leased_locked(pool);
	int			needed = PG_INT32_MAX;

	if (period == 0)
		needed = leased;
	else if (now >= peak->since + period * 1000 / 2)
	{
		needed = Max(peak->previous, peak->current);
		peak->since = now;
		peak->previous = peak->current;
		peak->current = leased;
	}
	*due = Min(*due, Max(peak->since + period * 1000 / 2, now + CHECK_INTERVAL_US));
	return needed;
}

/*
 * Close the free connections that are no longer needed, least recently used
 * first.  Lower *due to the time of the next check.
 *
 * The number of connections that were leased at the same time decides, and not
 * the time since the last use of a connection: sessions that call in turn use
 * each connection again and again.
 */
static void
close_unneeded_locked(PgpxPool *pool, PgpxTime now, PgpxTime *due)
{
	const PgpxPoolOptions *opts = &pool->opts;
	int			usable = pgpx_pool_count_live_locked(pool);
	int			min_idle = pgpx_pool_min_idle_locked(pool);
	int			min_size = pgpx_pool_min_size_locked(pool);
	int			surplus = pgpx_cap_surplus_locked(pool);
	int			keep_overflow = PG_INT32_MAX;
	int			keep_idle = PG_INT32_MAX;
	int			prev;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (usable > opts->pool_size)
		keep_overflow = Max(end_half(pool, &pool->overflow_peak,
									 opts->overflow_ttl, now, due),
							opts->pool_size);
	if (opts->idle_timeout > 0 && usable > Max(min_size, min_idle))
	{
		keep_idle = end_half(pool, &pool->idle_peak, opts->idle_timeout, now,
							 due);
		if (keep_idle != PG_INT32_MAX)
			keep_idle = Max(keep_idle + min_idle, min_size);
	}
	for (int i = pool->lru.tail; i >= 0; i = prev)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		PgpxCloseReason reason = pgpx_conn_unfit_reason_locked(pool, conn, now);

		prev = conn->in_lru.prev;
		if (reason == PGPX_CLOSE_NONE)
			reason = surplus > 0 ? PGPX_CLOSE_EVICTED :
				pgpx_pool_is_draining(pool) ? PGPX_CLOSE_STALE :
				usable > keep_overflow ? PGPX_CLOSE_OVERFLOW :
				usable > keep_idle ? PGPX_CLOSE_IDLE : PGPX_CLOSE_NONE;
		if (reason == PGPX_CLOSE_NONE)
			continue;
		pgpx_pool_close_locked(pool, conn, reason);
		surplus--;
		usable--;
	}
}

/*
 * Return when the next connection expires, also if it is in use now: it may be
 * free by then, and checkins do not notify the worker.  A connection that has
 * expired already closes when it becomes free.
 */
static PgpxTime
next_expiry(const PgpxPool *pool, PgpxTime now)
{
	PgpxTime	next = PG_INT64_MAX;

	pgpx_conn_foreach_locked(conn, pool)
	{
		if (conn->state != PGPX_CONN_CLOSING && conn->expires_at > now)
			next = Min(next, conn->expires_at);
	}
	return next;
}

/*
 * End the back-off if a connection has been open for PGPX_PROVEN_US.  A login
 * alone does not end it, because the remote may accept logins and then close
 * the connections.
 */
static void
end_backoff(PgpxPool *pool, PgpxTime now, PgpxTime *due)
{
	if (pool->backoff_ms == 0 || pool->retry_at != 0)
		return;
	pgpx_conn_foreach_locked(conn, pool)
	{
		PgpxTime	proven_at = conn->opened_at + PGPX_PROVEN_US;

		if (conn->opened_at == 0 || conn->broken ||
			!pgpx_conn_shows_recovery_locked(pool, conn) ||
			conn->state == PGPX_CONN_CLOSING ||
			pg_atomic_read_u32(&conn->hung_up) != 0)
			continue;
		if (now >= proven_at)
		{
			pool->backoff_ms = 0;
			return;
		}
		*due = Min(*due, proven_at);
	}
}

/* A lease that was held for too long, to be logged. */
typedef struct Leak
{
	uint64		lease_id;
	PgpxHolder	holder;
	PgpxTime	since;
	bool		ended;
} Leak;

/*
 * Find a lease that is held for too long: note it once to be logged
 * (leak_warning), or revoke it after lease_timeout.  Return false if there is
 * none.  Further leases are left to the next call, which is due at once.
 */
static bool
check_leases(PgpxPool *pool, PgpxTime now, PgpxTime *due, Leak *leak,
			 PgpxWake *wake)
{
	const PgpxPoolOptions *opts = &pool->opts;

	if ((opts->lease_timeout == 0 && opts->leak_warning == 0) ||
		pool->count[PGPX_CONN_LEASED] == 0 || pool->damaged)
		return false;

	/* a checkout does not wake the worker, so check at this interval */
	*due = Min(*due, now + CHECK_INTERVAL_US);
	pgpx_conn_foreach_locked(conn, pool)
	{
		PgpxTime	end;
		PgpxTime	warn;

		if (conn->state != PGPX_CONN_LEASED)
			continue;
		end = opts->lease_timeout == 0 ? PG_INT64_MAX :
			Max(conn->leased_at + opts->lease_timeout * 1000,
				(PgpxTime) pg_atomic_read_u64(&conn->spared_until));
		warn = opts->leak_warning == 0 || conn->leak_logged ? PG_INT64_MAX :
			conn->leased_at + opts->leak_warning * 1000;
		if (now < end && now < warn)
		{
			*due = Min(*due, Min(end, warn));
			continue;
		}

		leak->lease_id = pg_atomic_read_u64(&conn->lease_id);
		leak->holder = conn->holder;
		if (conn->holder.user_name[0] == '\0')
			strlcpy(leak->holder.user_name, NameStr(pool->user_name),
					NAMEDATALEN);
		leak->since = conn->leased_at;
		leak->ended = now >= end;
		if (leak->ended)
			pgpx_pool_revoke_locked(pool, conn, PGPX_REVOKE_TIMEOUT, wake);
		else
			conn->leak_logged = true;
		*due = now;
		return true;
	}
	return false;
}

static void
log_leak(const char *server, const Leak *leak, PgpxTime now)
{
	ereport(leak->ended ? LOG : WARNING,
			(errmsg(leak->ended ?
					"lease " UINT64_FORMAT " on server \"%s\" was ended after %.3f s" :
					"lease " UINT64_FORMAT " on server \"%s\" has been held for %.3f s",
					leak->lease_id, server, (now - leak->since) / 1e6),
			 errdetail("Its holder is PID %d, user \"%s\", since %s, why: \"%s\".",
					   leak->holder.pid, leak->holder.user_name,
					   timestamptz_to_str(pgpx_timestamp(leak->since)),
					   leak->holder.why)));
}

PgpxTime
pgpx_pool_maintain(int index, uint32 pool_id, PgpxTime now, bool *ended)
{
	PgpxPool   *pool = pgpx_pool_lock(index, pool_id);
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxTime	due = PG_INT64_MAX;
	bool		lacks = false;	/* a cap keeps it below min_size or min_idle */
	bool		lacks_all = false;
	Leak		leak;
	bool		leaks;
	NameData	server;

	*ended = false;
	if (pool == NULL)
		return PG_INT64_MAX;
	pgpx_options_follow(&pool->opts);
	pgpx_pool_fold_peaks_locked(pool);
	close_unneeded_locked(pool, now, &due);
	due = Min(due, next_expiry(pool, now));
	end_backoff(pool, now, &due);
	leaks = check_leases(pool, now, &due, &leak, &wake);
	server = pool->server_name;
	pgpx_pool_dispatch_locked(pool, &wake);
	if (pool->nwaiting > 0)
	{
		PgpxTime	grow_at = pgpx_pool_growth_due_locked(pool, NULL);

		if (grow_at != 0)
			due = Min(due, grow_at);
	}
	else
	{
		pgpx_pool_grow_locked(pool, 0);

		/*
		 * Connect for min_size and min_idle after the back-off.  If they could
		 * not be reached for another reason, try at intervals, because another
		 * pool that frees a slot wakes the worker only for waiters.
		 */
		if (pgpx_pool_below_min_locked(pool) > 0)
			due = Min(due, pool->retry_at > now ? pool->retry_at :
					  now + PGPX_EVICT_UNUSED_US);
		lacks = pool->lacks > 0;
		lacks_all = pool->lacks_all;
	}
	*ended = pgpx_pool_has_ended_locked(pool);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	if (lacks)
		(void) pgpx_cap_evict(index, lacks_all, PGPX_EVICT_UNUSED_SURPLUS);
	if (leaks)
		log_leak(NameStr(server), &leak, now);
	return due;
}
