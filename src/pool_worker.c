/*-------------------------------------------------------------------------
 *
 * pool_worker.c
 *	  What the worker tells shared memory about the connections it owns.
 *
 * Each function is one step of the state machine in conn_state.h: it takes the
 * pool's lock, moves the connection, serves the queue, wakes who was served.
 *
 *-------------------------------------------------------------------------
 */
#include "pool.h"

#include "common/pg_prng.h"

#include "guc.h"
#include "stats.h"
#include "ticket.h"

/* A pool whose remote comes and goes is told of in the log not more often. */
#define TELL_EACH_US (10 * 1000 * 1000)

/*
 * When a connection that is opened now has to go: max_lifetime less up to a tenth
 * of it by chance, so that connections of one age do not expire together.
 */
static PgpxTime
expiry(const PgpxPool *pool, PgpxTime now)
{
	int64		lifetime = pool->opts.max_lifetime * 1000;
	int64		jitter = lifetime / 10;

	return now + lifetime -
		(int64) (pg_prng_double(&pg_global_prng_state) * jitter);
}

/*
 * What the worker has done on a connection by itself has gone well.  The options
 * may have changed, or its rights been taken away, while it was at it.
 */
static void
ready_locked(PgpxPool *pool, PgpxConn *conn, PgpxTime now)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (conn->version == pool->version)
		(void) pgpx_conn_set_state(pool, conn, PGPX_CONN_IDLE, now);
	else
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_STALE);
}

void
pgpx_pool_opened(PgpxPool *pool, PgpxConn *conn, PgpxTime connect_time)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxTime	outage = 0;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_CONNECTING)
	{
		conn->opened_at = pgpx_now();
		conn->last_used = conn->opened_at;
		conn->connect_time = connect_time;
		pgpx_stats_connected_locked(pool, connect_time);
		if (pool->outage_told && pool->unavailable_since != 0)
			outage = conn->opened_at - pool->unavailable_since;
		pool->outage_told = false;
		pool->unavailable_since = 0;
		pool->retry_at = 0;
		pool->backoff = 0;
		conn->expires_at = expiry(pool, conn->opened_at);

		/* after an outage 1, 2, 4 .. connects at once */
		if (pool->ramp > 0)
			pool->ramp = pool->ramp >= pgpx_pool_cap_locked(pool) ? 0 :
				pool->ramp * 2;
		ready_locked(pool, conn, pgpx_now());
		pgpx_pool_serve_locked(pool, &wake);
	}
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

/* The pause after this failure: doubled each time, within the pool's bounds. */
static void
back_off_locked(PgpxPool *pool, PgpxTime now)
{
	double		jitter;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->backoff = pool->backoff == 0 ? pool->opts.retry_min :
		Min(pool->backoff * 2, pool->opts.retry_max);
	jitter = 0.75 + pg_prng_double(&pg_global_prng_state) / 4;
	pool->retry_at = now + (PgpxTime) (pool->backoff * 1000 * jitter);
	pool->ramp = 1;
	if (pool->unavailable_since == 0)
		pool->unavailable_since = now;
}

/*
 * Attempts that fail together have one pause, since the remote may have been gone for
 * a moment only.  If it has not, the next one is doubled from what each of them would
 * have had, one after the other: their number makes it longer, not their power.
 */
static void
share_pause_locked(PgpxPool *pool)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->backoff = Min(pool->backoff + pool->opts.retry_min,
						pool->opts.retry_max);
}

bool
pgpx_pool_is_crowded_out_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->remote_full &&
		pgpx_cap_used(&pgpx_servers[pool->server].cap, NULL) >
		pgpx_pool_total_locked(pool);
}

/* An attempt is over; running: its start commands may still be, at the remote. */
static void
end_attempt_locked(PgpxPool *pool, PgpxConn *conn, bool running,
				   PgpxCloseReason reason)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (running)
	{
		/* its place is not free before the remote is at rest */
		conn->close_reason = reason;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, pgpx_now());
		pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_ASKED);
	}
	else
	{
		(void) pgpx_conn_set_state(pool, conn, PGPX_CONN_CLOSING, pgpx_now());
		pgpx_conn_free_locked(pool, conn);
	}
}

void
pgpx_pool_connect_failed(PgpxPool *pool, PgpxConn *conn, uint64 before,
						 PgpxConnectFailure how, int sqlstate, const char *text)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	bool		tell = false;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_CONNECTING)
	{
		bool		stale = conn->version != pool->version;

		/* it was under way when the last one failed */
		bool		together = pool->backoff != 0 &&
			conn->state_since <= pool->last_error_at;

		pool->stats.connects_failed++;
		end_attempt_locked(pool, conn, how == PGPX_FAILED_RUNNING,
						   PGPX_CLOSE_BROKEN);
		if (!stale)
		{
			pool->last_error_at = pgpx_now();
			pool->last_sqlstate = sqlstate;
			pool->remote_full = how == PGPX_FAILED_FULL;
			strlcpy(pool->last_error, text, sizeof(pool->last_error));
			tell = pool->unavailable_since == 0 &&
				(pool->outage_told_at == 0 ||
				 pool->last_error_at - pool->outage_told_at > TELL_EACH_US);
			if (tell)
			{
				pool->outage_told_at = pool->last_error_at;
				pool->outage_told = true;
			}
			if (!together)
				back_off_locked(pool, pool->last_error_at);
			else
				share_pause_locked(pool);
		}

		/*
		 * While a live connection is left, the waiters wait for that one.
		 * Else they learn the reason: those who were there when the attempt
		 * began, since it was theirs.
		 */
		if (!stale && pgpx_pool_live_locked(pool) == 0 &&
			pool->opts.on_unavailable == PGPX_UNAVAILABLE_FAIL &&
			!pgpx_pool_is_crowded_out_locked(pool))
		{
			while (pool->queue_head >= 0 &&
				   pgpx_tickets[pool->queue_head].number < before)
				pgpx_ticket_fail_locked(pool, &pgpx_tickets[pool->queue_head],
										sqlstate, text, &wake);
		}
		pgpx_pool_serve_locked(pool, &wake);
	}
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);

	/* with log_connections each attempt has its line already */
	if (tell && !pgpx_log_connections)
		ereport(LOG,
				(errmsg("pgpool_ext cannot connect to server \"%s\" of database \"%s\" for user \"%s\"",
						NameStr(pool->server_name),
						NameStr(pool->database_name),
						NameStr(pool->user_name)),
				 errdetail_internal("%s", text)));
}

void
pgpx_pool_attempt_outdated(PgpxPool *pool, PgpxConn *conn, bool running)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_CONNECTING)
	{
		end_attempt_locked(pool, conn, running, PGPX_CLOSE_STALE);
		pgpx_pool_serve_locked(pool, &wake);
	}
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

void
pgpx_pool_conninfo_missing(PgpxPool *pool, PgpxConn *conn)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_CONNECTING)
	{
		end_attempt_locked(pool, conn, false, PGPX_CLOSE_NONE);
		pool->conninfo_epoch = 0;
		pool->asked_epoch = pgpx_pool_worker_epoch(pool);
		pgpx_pool_wake_waiters_locked(pool, &wake);
	}
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

void
pgpx_pool_conninfo_known(PgpxPool *pool, uint64 epoch, uint64 version)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (version >= pool->connect_version)
	{
		pool->conninfo_epoch = epoch;
		pool->conninfo_version = version;
	}

	/* who waits may have been kept from growing; too old, they are asked anew */
	pool->asked_epoch = 0;
	pgpx_pool_serve_locked(pool, &wake);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

bool
pgpx_pool_begin_reset(PgpxPool *pool, PgpxConn *conn, int *owed)
{
	bool		mine;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	mine = conn->state == PGPX_CONN_OWED &&
		pgpx_conn_set_state(pool, conn, PGPX_CONN_RESETTING, pgpx_now());
	if (mine)
		*owed = conn->owed;
	LWLockRelease(pool->lock);
	return mine;
}

void
pgpx_pool_reset_done(PgpxPool *pool, PgpxConn *conn, bool ok, bool late)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_RESETTING)
	{
		/* an answer that was owed may be that of a ROLLBACK alone */
		if (conn->owed == 0)
			conn->dirty = false;
		conn->owed = 0;
		if (!ok)
		{
			pool->stats.resets_failed++;
			if (late)
			{
				conn->close_reason = PGPX_CLOSE_RESET;
				pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING,
									pgpx_now());
				pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_ASKED);
				pgpx_conn_ask_worker(conn, pool->worker);
			}
			else
				pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_RESET);
		}
		else
			ready_locked(pool, conn, pgpx_now());
		pgpx_pool_serve_locked(pool, &wake);
	}
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

void
pgpx_pool_check_done(PgpxPool *pool, PgpxConn *conn, bool ok)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_CHECKING)
	{
		pool->stats.checks++;
		conn->last_checked = pgpx_now();
		if (ok)
			ready_locked(pool, conn, conn->last_checked);
		else
		{
			pool->stats.checks_failed++;
			pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
		}
		pgpx_pool_serve_locked(pool, &wake);
	}
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
	pg_write_barrier();			/* who sees NONE sees that, too */
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
		pgpx_pool_serve_locked(pool, &wake);
	}
	else if (conn->state == PGPX_CONN_LEASED && conn->owner_procno >= 0)
		pgpx_wake_add(&wake, conn->owner_procno);
	state = conn->state;
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	return state;
}

void
pgpx_pool_lost(PgpxPool *pool, PgpxConn *conn)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&conn->hung_up, 1);
	if (conn->state == PGPX_CONN_LEASED && !conn->broken)
	{
		conn->broken = true;
		pool->nbroken++;
		(void) pgpx_cap_give(&pgpx_servers[pool->server].cap);
		pgpx_pool_serve_locked(pool, &wake);
	}
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	pgpx_pool_close(pool, conn, PGPX_CLOSE_BROKEN);
}

void
pgpx_pool_close(PgpxPool *pool, PgpxConn *conn, PgpxCloseReason reason)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state != PGPX_CONN_FREE && conn->state != PGPX_CONN_CLOSING &&
		conn->state != PGPX_CONN_LEASED)
	{
		pgpx_pool_close_locked(pool, conn, reason);
		pgpx_pool_serve_locked(pool, &wake);
	}
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

void
pgpx_pool_closed(PgpxPool *pool, PgpxConn *conn)
{
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_CLOSING)
	{
		if (conn->opened_at != 0)
			pool->stats.closed[conn->close_reason]++;
		pgpx_conn_free_locked(pool, conn);
		pgpx_pool_serve_locked(pool, &wake);
	}
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}
