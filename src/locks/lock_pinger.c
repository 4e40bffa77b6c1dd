/*-------------------------------------------------------------------------
 *
 * lock_pinger.c
 *	  Pinger: the worker's connections that ping and release distributed locks.
 *
 * Each pool that has locks has one pinger connection, beside the pool's
 * connections.  It pings all locks of the pool with one statement, and sends
 * their releases.  It is opened when a ping or release is due, and closed some
 * seconds after the last lock.
 *
 * Connections: they are opened as those of the pool (connect.c), with a back-off
 * of their own.  They stay in this process, so libpq is used on them until they
 * are closed.
 *
 * Validity: this server computes the validity from the time before the ping is
 * sent, and the remote from the later time of its execution.  So the validity
 * ends here first.  A lock is lost if the remote has not extended it, or if its
 * validity expires before the answer arrives.
 *
 * Worker exit: the next worker finds the locks in shared memory.  Until the
 * catalog reader or a session publishes the conninfo, no lock is extended.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/locks.h"

#include <sys/epoll.h>

#include "utils/json.h"
#include "utils/memutils.h"

#include "base/backoff.h"
#include "locks/lock_schema.inc"
#include "worker/connect.h"
#include "worker/connection.h"
#include "worker/worker.h"

/*
 * The calls have the same list of locks.  Arguments are cast to the exact types
 * of the functions, so that no other function of the same name can be a better
 * match.
 */
#define ARGUMENTS "($1::pg_catalog.text, $2::pg_catalog.json)"

/*
 * A statement must not fail if another one has changed the row.  The functions
 * of the schema have the other settings.
 */
static const char settings_sql[] =
	"SET default_transaction_isolation = 'read committed'";
static const char ping_sql[] = "SELECT pgpool_lock.ping" ARGUMENTS;
static const char release_sql[] = "SELECT pgpool_lock.release" ARGUMENTS;

/* Ping interval of a lock; a third of its ttl if that is shorter. */
#define PING_US (1000 * 1000)

/* Idle time after the last lock until the connection is closed. */
#define IDLE_US (5 * 1000 * 1000)

/* Pause after a failure; doubled after each further one. */
#define RETRY_MIN_US (100 * 1000)
#define RETRY_MAX_US (1000 * 1000)

/* Upper limit for a statement or a connection attempt, in ms. */
#define ANSWER_MAX_MS 10000

typedef enum PingerPhase
{
	PINGER_NONE = 0,			/* no PGconn */
	PINGER_CONNECT,				/* attempt to connect: see connect.c */
	PINGER_IDLE,
	PINGER_PING,
	PINGER_RELEASE
} PingerPhase;

typedef struct Pinger
{
	PgpxWorkerConn conn;		/* its index is that of the pool */
	PingerPhase phase;
	PgpxTime	phase_since;
	PgpxTime	failed_at;		/* last failure */
	PgpxTime	backoff;		/* last pause after a failure; 0: none */
	bool		failing;		/* the failure was logged */

	/* the locks of the pool, see collect_work */
	int			nheld;
	int64		min_ttl_ms;		/* of the held locks */
	PgpxTime	ping_at;		/* next ping; PG_INT64_MAX: none */
	bool		releases;		/* some are to be released */

	/* the statement in flight */
	PgpxTime	sent_at;		/* steady */
	int			nlocks;			/* in it, see PgpxLock.in_flight */
	PGresult   *answer;			/* its row; NULL: none so far */
} Pinger;

static Pinger **pingers = NULL; /* [max_pools], allocated on demand */
static PgpxTime next_run = 0;
static uint32 seen_changes = 0;

static PgpxPurpose lock_purpose;

/* Close the connection, if any, without waiting; the phase is NONE then. */
static void
drop_connection(Pinger *p)
{
	/* sending Terminate does not block: the socket is nonblocking */
	pgpx_connection_drop(&p->conn);
	PQclear(p->answer);
	p->answer = NULL;
	p->phase = PINGER_NONE;
}

static Pinger *
get_pinger(const PgpxLock *lock)
{
	Pinger	   *p = pingers[lock->pool];

	if (p == NULL)
	{
		p = MemoryContextAllocZero(TopMemoryContext, sizeof(Pinger));
		p->conn.index = p->conn.pool = lock->pool;
		p->conn.purpose = &lock_purpose;
		p->conn.fd = -1;
		p->ping_at = PG_INT64_MAX;
		pingers[lock->pool] = p;
	}
	if (p->conn.pool_id != lock->pool_id)
	{
		drop_connection(p);
		p->conn.pool_id = lock->pool_id;
		p->backoff = 0;
		p->failing = false;
	}
	return p;
}

static void
back_off(Pinger *p)
{
	p->failed_at = pgpx_now();
	p->backoff = pgpx_backoff_next(p->backoff, RETRY_MIN_US, RETRY_MAX_US);
}

/*
 * Handle a failure of the connection: close it and delay the next attempt to
 * connect.  The failure is logged once, and counts as a failed attempt of all
 * releases.  reason: for the log.
 */
static void
fail_pinger(Pinger *p, const char *reason)
{
	char		text[PGPX_ERROR_LEN];
	PgpxPool   *pool = &pgpx_pools[p->conn.pool];

	/* copy, because the text may be part of the connection; join its lines */
	strlcpy(text, reason, sizeof(text));
	for (char *c = text; (c = strchr(c, '\n')) != NULL;)
		*c = ' ';

	/*
	 * the next attempt must not begin with a host that accepts logins but no
	 * pings, such as a standby
	 */
	if (p->phase > PINGER_CONNECT &&
		!pgpx_conninfo_has_changed(pgpx_connection_key(&p->conn)))
		pgpx_wpools[p->conn.pool].first_until = 0;
	drop_connection(p);
	back_off(p);
	if (!p->failing && pgpx_lock_pool_has_locks(p->conn.pool, p->conn.pool_id))
	{
		p->failing = true;
		ereport(LOG,
				(errmsg("pgpool_ext cannot ping the locks of server \"%s\" of database \"%s\"",
						NameStr(pool->server_name),
						NameStr(pool->database_name)),
				 errdetail_internal("%s", text)));
	}
	pgpx_lock_release_failed(p->conn.pool, p->conn.pool_id, text);
	next_run = 0;
}

/* Enter phase IDLE, in which the next statement can be sent. */
static void
set_idle(Pinger *p)
{
	PQclear(p->answer);
	p->answer = NULL;
	p->phase = PINGER_IDLE;
	p->phase_since = pgpx_now();
	next_run = 0;
	pgpx_connection_watch(&p->conn, EPOLLIN | EPOLLRDHUP);
}

/*
 * Return the end of the time for a statement or an attempt to connect.  It
 * leaves time for another attempt.  The time grows after failures, because a
 * lock with a short ttl must not cause the loss of locks with a long one if the
 * remote is merely slow.
 */
static PgpxTime
phase_end(const Pinger *p)
{
	int64		ms = p->nheld > 0 ? p->min_ttl_ms / 3 : ANSWER_MAX_MS / 3;

	ms += ms * p->backoff / RETRY_MIN_US;
	if (p->phase < PINGER_IDLE)
		ms = Max(ms, 1000);
	return p->phase_since + Min(ms, ANSWER_MAX_MS) * 1000;
}

/* Send the pings or the releases of the pool's locks, if there are any. */
static void
send_work(Pinger *p, PingerPhase phase)
{
	bool		release = phase == PINGER_RELEASE;
	const char *values[] = {pgpx_shared->instance, NULL};
	StringInfoData list;
	PgpxLock	lock;

	initStringInfo(&list);
	p->nlocks = 0;
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		if (!pgpx_lock_copy(i, &lock) ||
			!pgpx_lock_is_of_pool(&lock, p->conn.pool, p->conn.pool_id))
			continue;
		pgpx_locks[i].in_flight = -1;
		if (!(release ? pgpx_lock_needs_release(&lock) :
				  lock.state == PGPX_LOCK_HELD))
			continue;
		pgpx_locks[i].in_flight = p->nlocks++;
		if (release)
			pgpx_locks[i].nsent++;
		appendStringInfo(&list, "%c{\"number\":" UINT64_FORMAT ",\"token\":" INT64_FORMAT ",\"name\":",
						 list.len == 0 ? '[' : ',', lock.acquisition,
						 lock.token);
		escape_json(&list, lock.name);
		appendStringInfoChar(&list, '}');
	}
	appendStringInfoChar(&list, ']');
	values[1] = list.data;

	/* taken before sending, so the validity here ends before the remote's */
	p->sent_at = pgpx_steady_now();
	if (p->nlocks > 0)
	{
		p->phase = phase;
		p->phase_since = pgpx_now();
		if (PQsendQueryParams(p->conn.pg, release ? release_sql : ping_sql, 2,
							  NULL, values, NULL, NULL, 0) &&
			PQsocket(p->conn.pg) >= 0)
			pgpx_connection_watch(&p->conn, EPOLLIN | EPOLLOUT);
		else
			fail_pinger(p, PQerrorMessage(p->conn.pg));
	}
	pfree(list.data);
}

/* Record the answer to the statement in flight. */
static void
end_statement(Pinger *p)
{
	PgpxPool   *pool = &pgpx_pools[p->conn.pool];
	const char *answer = PQgetvalue(p->answer, 0, 0);
	PgpxLock	lock;

	if (p->failing)
		ereport(LOG,
				(errmsg("pgpool_ext pings the locks of server \"%s\" of database \"%s\" again",
						NameStr(pool->server_name),
						NameStr(pool->database_name))));
	p->failing = false;
	p->backoff = 0;
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		if (!pgpx_lock_copy(i, &lock) || lock.in_flight < 0 ||
			!pgpx_lock_is_of_pool(&lock, p->conn.pool, p->conn.pool_id))
			continue;
		if (p->phase == PINGER_RELEASE)
			pgpx_lock_released(i, answer[lock.in_flight] == 't');
		else
			pgpx_lock_pinged(i, answer[lock.in_flight] == 't', p->sent_at);
	}
	set_idle(p);
}

/*
 * Read what has arrived of the answer to the statement in flight: one row with
 * a text that has a character for each lock, 't' if it was extended or held.
 */
static void
step_statement(Pinger *p)
{
	bool		unsent;

	if (!pgpx_connect_exchange(&p->conn, &unsent))
	{
		fail_pinger(p, PQerrorMessage(p->conn.pg));
		return;
	}
	while (!PQisBusy(p->conn.pg))
	{
		PGresult   *res = PQgetResult(p->conn.pg);
		const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

		/* the answer is certain only at its end, which follows the commit */
		if (res == NULL && p->answer != NULL)
		{
			end_statement(p);
			return;
		}
		if (PQresultStatus(res) != PGRES_TUPLES_OK || PQnfields(res) != 1 ||
			PQntuples(res) != 1 || PQgetlength(res, 0, 0) != p->nlocks)
		{
			if (text == NULL)
				text = PQresultErrorMessage(res);

			/* a read-only host, or one without the table: try another host */
			fail_pinger(p, text[0] != '\0' ? text :
						"The remote server returned an unexpected result.");
			PQclear(res);
			return;
		}
		PQclear(p->answer);
		p->answer = res;
	}
	pgpx_connection_watch(&p->conn, EPOLLIN | (unsent ? EPOLLOUT : 0));
}

void
pgpx_lock_pinger_ready(int index, uint32 events)
{
	Pinger	   *p = pingers[index];

	if (p == NULL || p->conn.fd < 0)
		return;
	next_run = 0;
	if (p->phase == PINGER_CONNECT)
		pgpx_connect_step(&p->conn);
	else if (p->phase == PINGER_IDLE)
		drop_connection(p);		/* it was closed, or sent something unexpected */
	else
		step_statement(p);
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
	set_idle(pingers[w->index]);
}

static PgpxPurpose lock_purpose = {
	.watch = PGPX_WATCH_PINGER,
	.application_name = "pgpool_ext lock",
	.limit_name = "the time limit for a connection for locks",
	.changed = attempt_changed,
	.failed = attempt_failed,
	.outdated = attempt_outdated,
	.opened = attempt_opened,
};

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
 * Record for each pinger which pings and releases are due.  Expired locks are
 * marked LOST first, because they must not be pinged.  Return the time of the
 * next expiry.
 */
static PgpxTime
collect_work(void)
{
	PgpxTime	next = PG_INT64_MAX;
	PgpxLock	lock;

	for (int i = 0; i < pgpx_pools_end(); i++)
		if (pingers[i] != NULL)
		{
			pingers[i]->nheld = 0;
			pingers[i]->ping_at = PG_INT64_MAX;
			pingers[i]->releases = false;
		}
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxTime	at;
		Pinger	   *p;

		if (!pgpx_lock_copy(i, &lock) || lock.pool < 0 ||
			pgpx_lock_pool(&lock)->worker != pgpx_worker_index ||
			!pgpx_lock_check_expiry(i, &lock))
			continue;
		if (pgpx_lock_pool(&lock)->gone)
		{
			/* its mapping must not be used to log in again */
			pgpx_lock_revoke(i, lock.acquisition);
			if (pingers[lock.pool] != NULL)
				drop_connection(pingers[lock.pool]);
			continue;
		}
		if (pgpx_lock_needs_release(&lock))
			get_pinger(&lock)->releases = true;
		if (lock.state != PGPX_LOCK_HELD)
			continue;
		p = get_pinger(&lock);
		at = lock.sent_at + Min(PING_US, lock.ttl_ms * 1000 / 3);
		p->ping_at = Min(p->ping_at, pgpx_lock_to_now(at));
		p->min_ttl_ms = p->nheld++ == 0 ? lock.ttl_ms :
			Min(p->min_ttl_ms, lock.ttl_ms);
		next = Min(next, pgpx_lock_to_now(lock.valid_until));
	}
	return next;
}

/* End the phase of a pinger whose time is over, or that is not needed. */
static void
end_phase(Pinger *p, PgpxTime now)
{
	const PgpxWorkerPool *wpool = &pgpx_wpools[p->conn.pool];

	switch (p->phase)
	{
		case PINGER_NONE:
			break;
		case PINGER_CONNECT:
			/* a lock that was granted since may need an earlier ping */
			pgpx_connect_set_end(&p->conn, Min(p->conn.until, phase_end(p)));
			if (now >= p->conn.deadline)
				pgpx_connect_deadline_passed(&p->conn);
			break;
		case PINGER_IDLE:
			/* with another conninfo the host may be another one */
			if ((wpool->pool_id == p->conn.pool_id &&
				 wpool->conninfo.version > p->conn.version) ||
				(p->nheld == 0 && !p->releases &&
				 now >= p->phase_since + IDLE_US))
				drop_connection(p);
			break;
		default:
			if (now >= phase_end(p))
				fail_pinger(p, "The remote server did not answer in time.");
			break;
	}
}

/*
 * Send the next statement that is due: ping or release.  Open the connection if
 * necessary.  Return the time of the next run.
 */
static PgpxTime
run_pinger(Pinger *p)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	due_at = p->releases ? 0 : p->ping_at;
	PgpxTime	retry_at;

	end_phase(p, now);

	/*
	 * The back-off is at most a quarter of the ttl, so that failures leave time
	 * for an attempt that succeeds.
	 */
	retry_at = p->failed_at + (p->nheld == 0 ? p->backoff :
							   Min(p->backoff, p->min_ttl_ms * 1000 / 4));

	/* pings first: releases can arrive at any rate and must not delay them */
	if (p->phase == PINGER_IDLE && now >= due_at)
		send_work(p, p->ping_at <= now ? PINGER_PING : PINGER_RELEASE);
	else if (p->phase == PINGER_NONE && now >= due_at && now >= retry_at)
	{
		if (pgpx_wpools[p->conn.pool].pool_id == p->conn.pool_id)
		{
			int64		timeout = pgpx_pools[p->conn.pool].opts.connect_timeout;

			p->phase = PINGER_CONNECT;
			p->phase_since = now;
			pgpx_connect_begin(&p->conn,
							   Min(timeout, (phase_end(p) - now) / 1000));
		}
		else
		{
			pgpx_lock_release_failed(p->conn.pool, p->conn.pool_id,
									 "the pool worker was restarted, and no session has published the connection parameters yet");
			back_off(p);
			return 0;
		}
	}

	switch (p->phase)
	{
		case PINGER_NONE:
			return due_at == PG_INT64_MAX ? due_at : Max(due_at, retry_at);
		case PINGER_CONNECT:
			return p->conn.deadline;
		case PINGER_IDLE:
			return due_at != PG_INT64_MAX ? due_at : p->phase_since + IDLE_US;
		default:
			return phase_end(p);
	}
}

PgpxTime
pgpx_lock_pinger_run(void)
{
	uint32		changes = pg_atomic_read_u32(&pgpx_shared->locks_changed);

	if (changes == seen_changes && pgpx_now() < next_run)
		return next_run;
	seen_changes = changes;
	if (pingers == NULL)
	{
		pingers = MemoryContextAllocZero(TopMemoryContext,
										 mul_size(pgpx_shared->max_pools,
												  sizeof(Pinger *)));
		lock_purpose.start_commands =
			MemoryContextStrdup(TopMemoryContext,
								psprintf("%s; %s; %s", settings_sql, exists_sql,
										 owners_sql));
	}
	next_run = collect_work();
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (pingers[i] != NULL)
		{
			PgpxTime	next = run_pinger(pingers[i]);

			next_run = Min(next_run, next);
		}
	return next_run;
}
