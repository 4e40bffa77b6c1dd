/*-------------------------------------------------------------------------
 *
 * lock_pinger.c
 *	  Pinger: the worker's connections that ping and release distributed locks.
 *
 * Connections: they are opened as those of the pool (connect.c), with a back-off
 * of their own.  They stay in this process, so libpq is used on them until they
 * are closed.
 *
 * Validity: this server computes the validity from the time before the ping is
 * sent, and the remote from the later time of its execution.  So the validity
 * ends here first.  A lock that the answer does not name is lost.  A lock whose
 * validity expires before the answer arrives is lost, too, whatever the answer
 * says.
 *
 * Worker exit: the next worker finds the locks in shared memory.  Until the
 * catalog reader or a session publishes the conninfo, no lock is extended.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/lock_pinger.h"

#include <sys/epoll.h>

#include "lib/stringinfo.h"
#include "utils/memutils.h"

#include "base/backoff.h"
#include "base/debug_point.h"
#include "locks/lock_remote.h"
#include "shared/pool.h"
#include "worker/connect.h"
#include "worker/worker.h"

/*
 * A statement must not fail if another one has changed the row.  The functions
 * of the schema have the other settings.
 */
#define SETTINGS "SET default_transaction_isolation = 'read committed'"

static void fail_pinger(PgpxPinger *p, const char *reason);
static void set_idle(PgpxPinger *p);
static const PgpxPurpose lock_purpose;

/* Close the connection, if any, without waiting; the phase is NONE then. */
static void
drop_connection(PgpxPinger *p)
{
	/* sending Terminate does not block: the socket is nonblocking */
	pgpx_connection_drop(&p->conn);
	p->deadline = 0;
	p->nwork = 0;
	p->answered = false;
	p->phase = PGPX_PINGER_NONE;
}

/* Flush a statement that was sent and watch the socket for its result. */
static void
flush_statement(PgpxPinger *p)
{
	int			flushed;

	flushed = PQflush(p->conn.pg);
	if (PQsocket(p->conn.pg) < 0)
		fail_pinger(p, PQerrorMessage(p->conn.pg));
	else
		pgpx_connection_watch(&p->conn,
							  EPOLLIN | (flushed == 1 ? EPOLLOUT : 0));
}

/* Send the settings, and verify the owners of the tables. */
static void
send_preparation(PgpxPinger *p)
{
	char	   *sql = psprintf(SETTINGS "; %s; %s", pgpx_lock_verify_sql[0],
							   pgpx_lock_verify_sql[1]);

	p->phase = PGPX_PINGER_PREPARE;
	p->deadline = p->conn.until;
	p->error[0] = '\0';
	if (!PQsendQuery(p->conn.pg, sql))
		fail_pinger(p, PQerrorMessage(p->conn.pg));
	else
		flush_statement(p);
	pfree(sql);
}

static void
note_error(PgpxPinger *p, const PGresult *res)
{
	const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

	if (text == NULL)
		text = PQresultErrorMessage(res);
	strlcpy(p->error, text[0] != '\0' ? text : "The remote server returned an unexpected result.",
			sizeof(p->error));
}

/*
 * Read the results of the statement that have arrived.  Call "row", unless it
 * is NULL, for rows.  Return true if the statement has ended; "error" is set if
 * it failed.  Return false if more input is needed, or if the connection is
 * lost.
 */
static bool
read_pinger_results(PgpxPinger *p,
					void (*row)(PgpxPinger *p, const PGresult *res))
{
	bool		unsent;
	PGresult   *res;

	if (!pgpx_connect_exchange(&p->conn, &unsent))
	{
		/*
		 * If the connection has worked before, the remote may have restarted,
		 * and a new connection shows whether there is a fault.  Otherwise
		 * report the failure.
		 */
		if (p->answered)
			drop_connection(p);
		else
			fail_pinger(p, PQerrorMessage(p->conn.pg));
		return false;
	}
	while (!PQisBusy(p->conn.pg))
	{
		ExecStatusType status;

		/* the result is certain only at its end, which follows the commit */
		res = PQgetResult(p->conn.pg);
		if (res == NULL)
			return true;
		status = PQresultStatus(res);
		if ((status == PGRES_SINGLE_TUPLE || status == PGRES_TUPLES_OK) &&
			row != NULL)
			row(p, res);
		else if (status != PGRES_SINGLE_TUPLE && status != PGRES_TUPLES_OK &&
				 status != PGRES_COMMAND_OK && status != PGRES_EMPTY_QUERY &&
				 p->error[0] == '\0')
			note_error(p, res);
		PQclear(res);
		if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT ||
			status == PGRES_COPY_BOTH)
		{
			fail_pinger(p, p->error);
			return false;
		}
	}
	pgpx_connection_watch(&p->conn, EPOLLIN | (unsent ? EPOLLOUT : 0));
	return false;
}

/* Read the answer to the statements that precede the first ping. */
static void
step_preparation(PgpxPinger *p)
{
	if (!read_pinger_results(p, NULL))
		return;
	if (p->error[0] != '\0')
		fail_pinger(p, p->error);
	else
		set_idle(p);
}

/* Idle time after the last lock until the connection is closed. */
#define IDLE_US (5 * 1000 * 1000)

/* Pause after a failure; doubled after each further one. */
#define RETRY_MIN_US (100 * 1000)
#define RETRY_MAX_US (1000 * 1000)

/* Upper limit for a statement or a connection attempt, in ms. */
#define ANSWER_MAX_MS 10000

static PgpxPinger **pingers = NULL; /* [max_pools], allocated on demand */
static PgpxTime next_run = 0;
static uint32 seen_changes = 0;

static PgpxPinger *
get_pinger(int pool, uint32 pool_id)
{
	PgpxPinger *p;

	if (pingers == NULL)
		pingers = MemoryContextAllocZero(TopMemoryContext,
										 mul_size(pgpx_shared->max_pools,
												  sizeof(PgpxPinger *)));
	p = pingers[pool];
	if (p == NULL)
	{
		p = MemoryContextAllocZero(TopMemoryContext, sizeof(PgpxPinger));
		p->work = MemoryContextAllocHuge(TopMemoryContext,
										 mul_size(pgpx_shared->max_locks,
												  sizeof(PgpxLockWork)));
		p->confirmed = MemoryContextAllocHuge(TopMemoryContext,
											  mul_size(pgpx_shared->max_locks,
													   sizeof(bool)));
		p->pool = p->conn.index = p->conn.pool = pool;
		p->conn.purpose = &lock_purpose;
		p->conn.fd = -1;
		pingers[pool] = p;
	}
	if (p->pool_id != pool_id)
	{
		drop_connection(p);
		p->pool_id = p->conn.pool_id = pool_id;
		p->backoff = 0;
		p->failing = false;
	}
	return p;
}

static void
back_off(PgpxPinger *p)
{
	p->failed_at = pgpx_now();
	p->backoff = pgpx_backoff_next(p->backoff, RETRY_MIN_US, RETRY_MAX_US);
}

/*
 * Return when to connect next.  The back-off is at most a quarter of the ttl, so
 * that failures leave time for an attempt that succeeds.
 */
static PgpxTime
retry_at(const PgpxPinger *p, const PgpxLockDue *due)
{
	PgpxTime	pause = p->backoff;

	if (due->nheld > 0)
		pause = Min(pause, due->min_ttl_ms * 1000 / 4);
	return p->failed_at + pause;
}

/*
 * Handle a failure of the connection: close it and delay the next attempt to
 * connect.  The failure is logged once, and counts as a failed attempt of all
 * releases that are due.  reason: for the log.
 */
static void
fail_pinger(PgpxPinger *p, const char *reason)
{
	char		text[PGPX_ERROR_LEN];
	PgpxPool   *pool = &pgpx_pools[p->pool];

	/* copy, because the text may be part of the connection; join its lines */
	strlcpy(text, reason, sizeof(text));
	for (char *c = text; (c = strchr(c, '\n')) != NULL;)
		*c = ' ';

	/*
	 * the next attempt must not begin with a host that accepts logins but no
	 * pings, such as a standby
	 */
	if (p->phase > PGPX_PINGER_CONNECT &&
		!pgpx_conninfo_has_changed(p->pool, p->pool_id, p->conn.version))
		pgpx_wpools[p->pool].first_until = 0;
	drop_connection(p);
	back_off(p);
	if (!p->failing && pgpx_lock_pool_has_locks(p->pool, p->pool_id))
	{
		p->failing = true;
		ereport(LOG,
				(errmsg("pgpool_ext cannot ping the locks of server \"%s\" of database \"%s\"",
						NameStr(pool->server_name),
						NameStr(pool->database_name)),
				 errdetail_internal("%s", text)));
	}
	pgpx_lock_release_failed(p->pool, p->pool_id, text);
	next_run = 0;
}

/* Enter phase IDLE, in which the next statement can be sent. */
static void
set_idle(PgpxPinger *p)
{
	p->phase = PGPX_PINGER_IDLE;
	p->deadline = 0;
	p->idle_since = pgpx_now();
	next_run = 0;
	pgpx_connection_watch(&p->conn, EPOLLIN | EPOLLRDHUP);
}

/*
 * Return the timeout of a statement or of an attempt to connect, in ms.  It
 * leaves time for another attempt.  It grows after failures, because a lock
 * with a short ttl must not cause the loss of locks with a long one if the
 * remote is merely slow.
 */
static int64
phase_timeout(const PgpxPinger *p, const PgpxLockDue *due)
{
	int64		ms = due->nheld > 0 ? due->min_ttl_ms / 3 : ANSWER_MAX_MS / 3;

	ms += ms * p->backoff / RETRY_MIN_US;
	if (p->phase < PGPX_PINGER_IDLE)
		ms = Max(ms, 1000);
	return Min(ms, ANSWER_MAX_MS);
}

/* Return the deadline of the statement or the attempt; 0: none. */
static PgpxTime
phase_deadline(const PgpxPinger *p)
{
	return p->phase == PGPX_PINGER_CONNECT ? p->conn.deadline : p->deadline;
}

/* Send a statement about the locks in p->work. */
static void
send_work(PgpxPinger *p, PgpxPingerPhase phase, const char *sql,
		  int64 timeout_ms)
{
	const char *values[PGPX_LOCK_PARAMS];

	pgpx_lock_work_params(p->work, p->nwork, values);
	memset(p->confirmed, 0, p->nwork * sizeof(bool));
	p->phase = phase;
	p->error[0] = '\0';
	p->phase_since = pgpx_now();
	p->deadline = p->phase_since + timeout_ms * 1000;

	/* taken before sending, so the validity here ends before the remote's */
	p->sent_at = pgpx_steady_now();
	if (!PQsendQueryParams(p->conn.pg, sql, PGPX_LOCK_PARAMS, NULL, values,
						   NULL, NULL, 0))
		fail_pinger(p, PQerrorMessage(p->conn.pg));
	else
		flush_statement(p);
}

/*
 * Row callback.  The rows have the requests that a ping has extended or a
 * release has ended.
 */
static void
read_results(PgpxPinger *p, const PGresult *res)
{
	bool		release = p->phase == PGPX_PINGER_RELEASE;

	if (PQnfields(res) != (release ? 2 : 1))
	{
		strlcpy(p->error, "The remote server returned an unexpected result.", sizeof(p->error));
		return;
	}
	for (int row = 0; row < PQntuples(res); row++)
	{
		uint64		request = strtou64(PQgetvalue(res, row, 0), NULL, 10);

		for (int i = 0; i < p->nwork; i++)
		{
			if (p->work[i].request != request)
				continue;
			p->confirmed[i] = !release ||
				strcmp(PQgetvalue(res, row, 1), "t") == 0;
		}
	}
}

static void
step_work(PgpxPinger *p)
{
	PgpxPool   *pool = &pgpx_pools[p->pool];
	bool		release = p->phase == PGPX_PINGER_RELEASE;

	if (!read_pinger_results(p, read_results))
		return;
	if (p->error[0] != '\0')
	{
		/* a read-only host, or one without the tables: try another host */
		fail_pinger(p, p->error);
		return;
	}
	if (p->failing)
		ereport(LOG,
				(errmsg("pgpool_ext pings the locks of server \"%s\" of database \"%s\" again",
						NameStr(pool->server_name),
						NameStr(pool->database_name))));
	p->failing = false;
	p->backoff = 0;
	for (int i = 0; i < p->nwork; i++)
	{
		if (release)
			pgpx_lock_released(&p->work[i], p->confirmed[i]);
		else
			pgpx_lock_pinged(&p->work[i], p->confirmed[i], p->sent_at);
	}
	p->nwork = 0;
	p->answered = true;
	set_idle(p);
}

void
pgpx_lock_pinger_ready(int index, uint32 events)
{
	PgpxPinger *p = pingers[index];

	if (p == NULL || p->conn.fd < 0)
		return;
	next_run = 0;
	switch (p->phase)
	{
		case PGPX_PINGER_NONE:
			break;
		case PGPX_PINGER_CONNECT:
			pgpx_connect_step(&p->conn);
			break;
		case PGPX_PINGER_PREPARE:
			step_preparation(p);
			break;
		case PGPX_PINGER_IDLE:
			/* its end, or a message that no statement has requested */
			drop_connection(p);
			break;
		case PGPX_PINGER_PING:
		case PGPX_PINGER_RELEASE:
			step_work(p);
			break;
	}
}

static void
attempt_changed(PgpxWorkerConn *w)
{
	next_run = 0;
}

static void
attempt_failed(PgpxWorkerConn *w, PgpxConnectFailure how, int sqlstate,
			   const char *reason)
{
	fail_pinger(pingers[w->index], reason);
}

static void
attempt_outdated(PgpxWorkerConn *w)
{
	drop_connection(pingers[w->index]);
	next_run = 0;
}

static void
attempt_opened(PgpxWorkerConn *w)
{
	send_preparation(pingers[w->index]);
}

static const PgpxPurpose lock_purpose = {
	.watch = PGPX_WATCH_PINGER,
	.application_name = "pgpool_ext lock",
	.limit_name = "the time limit for a connection for locks",
	.changed = attempt_changed,
	.failed = attempt_failed,
	.outdated = attempt_outdated,
	.opened = attempt_opened,
};

void
pgpx_lock_pinger_conninfo_published(void)
{
	next_run = 0;
}

int
pgpx_lock_pinger_descriptors(void)
{
	int			n = 0;

	if (pingers == NULL)
		return 0;
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (pingers[i] != NULL && pingers[i]->conn.pg != NULL)
			n++;
	return n;
}

/*
 * Send the next statement that is due on a pool's pinger: ping or release.
 * Open the connection if necessary.  Return the time of the next run.
 */
static PgpxTime
run_pool(PgpxPinger *p)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	ping_at;
	PgpxLockDue due;

	pgpx_lock_find_due(p->pool, p->pool_id, &due);
	ping_at = due.nheld > 0 ? pgpx_lock_to_now(due.ping_at) : PG_INT64_MAX;
	if (p->phase == PGPX_PINGER_CONNECT && now >= p->conn.deadline)
		pgpx_connect_deadline_passed(&p->conn);
	else if (p->deadline != 0 && now >= p->deadline)
		fail_pinger(p, "The remote server did not answer in time.");
	if (p->phase == PGPX_PINGER_IDLE &&
		pgpx_wpools[p->pool].pool_id == p->pool_id &&
		pgpx_wpools[p->pool].conninfo.version > p->conn.version)
		drop_connection(p);		/* the host may be another one */

	/* pings first: releases can arrive at any rate and must not delay them */
	if (p->phase == PGPX_PINGER_IDLE && ping_at <= now)
	{
		p->nwork = pgpx_lock_list_work(p->pool, p->pool_id, false, p->work);
		if (p->nwork > 0)
			send_work(p, PGPX_PINGER_PING, pgpx_lock_ping_sql,
					  phase_timeout(p, &due));
	}
	else if (p->phase == PGPX_PINGER_IDLE && due.nreleases > 0 &&
			 due.release_at <= now)
	{
		p->nwork = pgpx_lock_list_work(p->pool, p->pool_id, true, p->work);
		if (p->nwork > 0)
			send_work(p, PGPX_PINGER_RELEASE, pgpx_lock_release_sql,
					  phase_timeout(p, &due));
	}
	else if (p->phase == PGPX_PINGER_NONE && now >= retry_at(p, &due) &&
			 (ping_at <= now ||
			  (due.nreleases > 0 && due.release_at <= now)))
	{
		int64		timeout_ms = Min(pgpx_pools[p->pool].opts.connect_timeout,
									 phase_timeout(p, &due));

		if (pgpx_wpools[p->pool].pool_id == p->pool_id)
		{
			p->phase = PGPX_PINGER_CONNECT;
			p->phase_since = now;
			pgpx_connect_begin(&p->conn, timeout_ms);
		}
		else
		{
			pgpx_lock_release_failed(p->pool, p->pool_id,
									 "the pool worker was restarted, and no session has published the connection parameters yet");
			back_off(p);
		}
	}

	/* a lock may have been granted since this phase began: ping it in time */
	if (due.nheld > 0)
	{
		PgpxTime	most = Max(ping_at, p->phase_since) +
			phase_timeout(p, &due) * 1000;

		if (p->phase == PGPX_PINGER_CONNECT)
			pgpx_connect_set_end(&p->conn, Min(p->conn.until, most));
		else if (p->deadline != 0)
			p->deadline = Min(p->deadline, most);
	}
	if (phase_deadline(p) != 0)
		return phase_deadline(p);
	if (due.nreleases > 0)
		ping_at = Min(ping_at, due.release_at);
	if (ping_at == PG_INT64_MAX)
		return PG_INT64_MAX;	/* until close_idle closes it */
	return p->phase == PGPX_PINGER_NONE ? Max(ping_at, retry_at(p, &due)) :
		ping_at;
}

/*
 * Close idle or timed-out pingers whose pools have no locks.  Return the time
 * of the next run.
 */
static PgpxTime
close_idle(PgpxTime now)
{
	PgpxTime	next = PG_INT64_MAX;

	if (pingers == NULL)
		return next;
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPinger *p = pingers[i];

		if (p == NULL || p->phase == PGPX_PINGER_NONE)
			continue;
		if (p->phase == PGPX_PINGER_IDLE && now >= p->idle_since + IDLE_US &&
			!pgpx_lock_pool_has_locks(p->pool, p->pool_id))
			drop_connection(p);
		else if (p->phase == PGPX_PINGER_IDLE)
			next = Min(next, Max(p->idle_since + IDLE_US, now + RETRY_MAX_US));
		else if (now >= phase_deadline(p))
			drop_connection(p); /* its pool has no locks */
		else
			next = Min(next, phase_deadline(p));
	}
	return next;
}

/*
 * Return whether the user of a pool may not use the server any more: its
 * mapping must not be used to log in again.
 */
static bool
is_revoked(int index, uint32 pool_id)
{
	PgpxPool   *pool = &pgpx_pools[index];
	bool		revoked;

	LWLockAcquire(pool->lock, LW_SHARED);
	revoked = pool->pool_id != pool_id || pool->gone;
	LWLockRelease(pool->lock);
	return revoked;
}

PgpxTime
pgpx_lock_pinger_run(void)
{
	uint32		changes = pg_atomic_read_u32(&pgpx_shared->locks_changed);
	PgpxTime	expires;
	uint32		pool_id;
	int			pool;

	if (changes == seen_changes && pgpx_now() < next_run)
		return next_run;
	seen_changes = changes;

	/* expire first: an expired lock must not be pinged */
	expires = pgpx_lock_expire(pgpx_worker_index);
	next_run = expires == PG_INT64_MAX ? expires : pgpx_lock_to_now(expires);
	for (pool = 0;; pool++)
	{
		PgpxTime	next = next_run;

		pool = pgpx_lock_next_pool(pgpx_worker_index, pool, &pool_id);
		if (pool < 0)
			break;
		if (!is_revoked(pool, pool_id))
		{
			next_run = Min(next, run_pool(get_pinger(pool, pool_id)));
			continue;
		}
		pgpx_lock_revoke(pool, pool_id);
		if (pingers != NULL && pingers[pool] != NULL &&
			pingers[pool]->pool_id == pool_id)
			drop_connection(pingers[pool]);
	}
	next_run = Min(next_run, close_idle(pgpx_now()));
	return next_run;
}
