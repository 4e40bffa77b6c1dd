/*-------------------------------------------------------------------------
 *
 * lock_pinger.c
 *	  Pinger: the worker's connections that ping and release distributed locks.
 *
 * Connections: the parameters, the password check and the start commands are
 * those of the pool's connections (connect.c).  The connections stay in this
 * process, so libpq is used on them until they are closed.  Every step is a
 * call that does not block; the login runs in threads (login.c).
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
#include "storage/fd.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "locks/lock_remote.h"
#include "protocol/remote_message.h"
#include "shared/pool.h"
#include "worker/conninfo.h"
#include "worker/events.h"
#include "worker/relay_tls.h"
#include "worker/worker.h"

/*
 * A statement must not fail if another one has changed the row.  The functions
 * of the schema have the other settings.
 */
#define SETTINGS "SET default_transaction_isolation = 'read committed'"

static void fail_pinger(PgpxPinger *p, const char *reason);
static void set_idle(PgpxPinger *p);
static void lookup_ended(PgpxLookup *lookup);
static void password_ended(int pool, uint32 pool_id, uint64 version,
						   const char *error);

static uint64
lookup_tag(const PgpxPinger *p)
{
	return ((uint64) p->pool << 32) | p->attempt;
}

/* Close the connection, if any, without waiting; the phase is NONE then. */
static void
drop_connection(PgpxPinger *p)
{
	if (p->phase == PGPX_PINGER_LOOKUP)
		pgpx_lookup_abandon(lookup_ended, lookup_tag(p));
	if (p->fd >= 0)
		pgpx_event_unwatch(p->fd);
	p->fd = -1;
	p->events = 0;
	pgpx_hosts_free(&p->hosts);
	if (pgpx_login_end(p->login))
	{
		p->pg = NULL;
		p->external_fd = false;
	}
	p->login = NULL;
	if (p->pg != NULL)
	{
		/* sending Terminate does not block: see handle_login_step() */
		PQfinish(p->pg);
		p->pg = NULL;
	}
	if (p->external_fd)
		ReleaseExternalFD();
	p->external_fd = false;
	p->deadline = 0;
	p->nwork = 0;
	p->answered = false;
	p->phase = PGPX_PINGER_NONE;
}

/* Register the connection's socket for these epoll events. */
static void
watch_socket(PgpxPinger *p, uint32 events)
{
	int			fd = PQsocket(p->pg);

	if (fd < 0 || (p->fd == fd && p->events == events))
		return;
	pgpx_event_watch(PGPX_WATCH_PINGER, p->pool, fd, events, p->fd != fd);
	p->fd = fd;
	p->events = events;
}

static void handle_login_step(void *owner, PostgresPollingStatusType status,
							  int sqlstate, const char *failure);

/* Start a login, or first wait for the password command. */
static void
log_in(PgpxPinger *p)
{
	PgpxLoginKey key = {p->pool, p->pool_id, p->version};

	if (pgpx_password_is_needed(p->pool, p->started))
	{
		const char *reason;

		p->phase = PGPX_PINGER_PASSWORD;
		reason = pgpx_password_request(p->pool,
									   (p->deadline - pgpx_now()) / 1000,
									   password_ended);
		if (reason != NULL)
			fail_pinger(p, reason);
		return;
	}
	p->password_at = pgpx_wpools[p->pool].password_at;
	if (!AcquireExternalFD())
	{
		fail_pinger(p, PGPX_NO_DESCRIPTOR);
		return;
	}
	p->external_fd = true;

	p->pg = pgpx_conninfo_login(p->pool, p->hosts, "pgpool_ext lock");
	if (p->pg != NULL)
		p->login = pgpx_login_begin(key, p->pg, handle_login_step, p);
	if (p->login == NULL || PQstatus(p->pg) == CONNECTION_BAD)
	{
		fail_pinger(p, p->login == NULL ?
						   "The pool worker is out of memory." :
						   PQerrorMessage(p->pg));
		return;
	}
	(void) PQsetErrorVerbosity(p->pg, PQERRORS_VERBOSE);
	pgpx_libpq_mute_notices(p->pg);
	p->phase = PGPX_PINGER_CONNECT;
	watch_socket(p, EPOLLOUT);
}

static void
start_connect(PgpxPinger *p, PgpxLookup *lookup)
{
	p->hosts = pgpx_hosts_create(p->pool, lookup);
	log_in(p);
}

/*
 * Start to open the connection.  Return false if the pool's conninfo was not
 * published.
 */
static bool
open_connection(PgpxPinger *p, int64 timeout_ms)
{
	PgpxWorkerPool *wp = &pgpx_wpools[p->pool];

	if (wp->pool_id != p->pool_id)
		return false;
	p->version = wp->conninfo.version;
	p->attempt++;
	p->started = pgpx_now();
	p->phase_since = p->started;
	p->deadline = p->started + timeout_ms * 1000;
	if (pgpx_conninfo_needs_lookup(&wp->conninfo))
	{
		const char *reason;

		p->phase = PGPX_PINGER_LOOKUP;
		reason = pgpx_conninfo_start_lookup(p->pool, lookup_ended,
											lookup_tag(p));
		if (reason != NULL)
			fail_pinger(p, reason);
		return true;
	}
	start_connect(p, NULL);
	return true;
}

/*
 * Handle an expired deadline: close the connection, and mark a host that has
 * not accepted it as unresponsive, so that the next attempt uses another host.
 */
static void
deadline_passed(PgpxPinger *p)
{
	/*
	 * A host that has accepted the connection is not unresponsive: it is slow,
	 * or this process is, or a login thread is busy.
	 */
	if (p->phase == PGPX_PINGER_CONNECT && p->fd >= 0 &&
		PQstatus(p->pg) == CONNECTION_STARTED &&
		!pgpx_conninfo_has_changed(p->pool, p->pool_id, p->version))
		(void) pgpx_hosts_mark_unresponsive(p->pool, p->hosts, p->pg);
	fail_pinger(p, p->phase > PGPX_PINGER_IDLE ?
		"The remote server did not answer in time." :
		psprintf("The connection attempt did not end in time%s.",
				 pgpx_login_delay_reason(p->login)));
}

/*
 * Drop the connection if a newer conninfo was published, because the rest of
 * the login would use the host of the old one.  As in connect.c.
 */
static bool
drop_outdated(PgpxPinger *p)
{
	if (!pgpx_conninfo_has_changed(p->pool, p->pool_id, p->version))
		return false;
	drop_connection(p);
	pgpx_lock_pinger_conninfo_published();
	return true;
}

/*
 * Flush a statement that was sent and watch the socket for its result.  The
 * rows are read one by one, so that libpq does not buffer all of them.
 */
static void
flush_statement(PgpxPinger *p)
{
	int			flushed;

	(void) PQsetSingleRowMode(p->pg);
	flushed = PQflush(p->pg);
	if (PQsocket(p->pg) < 0)
		fail_pinger(p, PQerrorMessage(p->pg));
	else
		watch_socket(p, EPOLLIN | (flushed == 1 ? EPOLLOUT : 0));
}

/* Send one of the statements that precede the first ping. */
static void
send_setting(PgpxPinger *p, PgpxPingerPhase phase, const char *sql)
{
	p->phase = phase;
	p->error[0] = '\0';
	if (!PQsendQuery(p->pg, sql))
		fail_pinger(p, PQerrorMessage(p->pg));
	else
		flush_statement(p);
}

/* Send the settings, and verify the owners of the tables. */
static void
send_preparation(PgpxPinger *p)
{
	char	   *sql = psprintf(SETTINGS "; %s; %s", pgpx_lock_verify_sql[0],
							   pgpx_lock_verify_sql[1]);

	send_setting(p, PGPX_PINGER_PREPARE, sql);
	pfree(sql);
}

/*
 * The login is complete: check that the connection may be used, then send the
 * start commands.
 */
static void
finish_login(PgpxPinger *p)
{
	PgpxConninfo *ci = &pgpx_wpools[p->pool].conninfo;
	const char *refusal;

	if (drop_outdated(p))
		return;
	(void) PQsetErrorVerbosity(p->pg, PQERRORS_DEFAULT);
	refusal = pgpx_tls_prepare(p->pg);
	if (refusal != NULL)
	{
		fail_pinger(p, refusal);
		return;
	}
	if (ci->need_password && !PQconnectionUsedPassword(p->pg))
	{
		fail_pinger(p, "A session of a non-superuser must be authenticated by a password, "
					   "and the remote server did not request one.");
		return;
	}
	if (ci->start_commands[0] != '\0')
		send_setting(p, PGPX_PINGER_START, ci->start_commands);
	else
		send_preparation(p);
}

/* Callback at the end of a step of the login. */
static void
handle_login_step(void *owner, PostgresPollingStatusType status,
				  int sqlstate, const char *failure)
{
	PgpxPinger *p = owner;
	char	   *text;

	/* as in connect.c: before any path closes the connection */
	if (PQstatus(p->pg) == CONNECTION_OK)
		(void) PQsetnonblocking(p->pg, 1);
	if (failure != NULL)
		fail_pinger(p, failure);
	else if (status == PGRES_POLLING_OK)
	{
		(void) pgpx_login_end(p->login);
		p->login = NULL;
		pgpx_hosts_free(&p->hosts);
		finish_login(p);
	}
	else if (status == PGRES_POLLING_FAILED)
	{
		/* the password may have expired: the next attempt uses another one */
		if (pgpx_libpq_is_unauthorized(PQerrorMessage(p->pg)) &&
			!pgpx_conninfo_has_changed(p->pool, p->pool_id, p->version))
			(void) pgpx_password_refused(p->pool, p->password_at, p->started);
		text = pstrdup(PQerrorMessage(p->pg));
		(void) pgpx_libpq_strip_sqlstates(text);
		fail_pinger(p, text);
		pfree(text);
	}
	else
		watch_socket(p, status == PGRES_POLLING_READING ? EPOLLIN :
															  EPOLLOUT);
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

	if (!pgpx_libpq_exchange(p->pg, &unsent))
	{
		/*
		 * If the connection has worked before, the remote may have restarted,
		 * and a new connection shows whether there is a fault.  Otherwise
		 * report the failure.
		 */
		if (p->answered)
			drop_connection(p);
		else
			fail_pinger(p, PQerrorMessage(p->pg));
		return false;
	}
	while (!PQisBusy(p->pg))
	{
		ExecStatusType status;

		/* the result is certain only at its end, which follows the commit */
		res = PQgetResult(p->pg);
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
			fail_pinger(p, "The start commands contain a COPY.");
			return false;
		}
	}
	watch_socket(p, EPOLLIN | (unsent ? EPOLLOUT : 0));
	return false;
}

/* Continue the login, or the statements that precede the first ping. */
static void
step_connect(PgpxPinger *p)
{
	if (p->phase == PGPX_PINGER_CONNECT)
	{
		/* libpq may reopen its socket under the same number */
		pgpx_event_unwatch(p->fd);
		p->fd = -1;
		pgpx_login_step(p->login);
		return;
	}
	if (!read_pinger_results(p, NULL))
		return;
	if (p->error[0] != '\0')
		fail_pinger(p, p->error);
	else if (PQtransactionStatus(p->pg) != PQTRANS_IDLE)
		fail_pinger(p, "The start commands left a transaction open.");
	else if (p->phase == PGPX_PINGER_START)
		send_preparation(p);
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
		p->pool = pool;
		p->fd = -1;
		pingers[pool] = p;
	}
	if (p->pool_id != pool_id)
	{
		drop_connection(p);
		p->pool_id = pool_id;
		p->retry_at = 0;
		p->backoff = 0;
		p->failing = false;
	}
	return p;
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
	if (p->phase >= PGPX_PINGER_START &&
		!pgpx_conninfo_has_changed(p->pool, p->pool_id, p->version))
		pgpx_wpools[p->pool].first_until = 0;
	drop_connection(p);
	p->backoff = p->backoff == 0 ? RETRY_MIN_US :
		Min(p->backoff * 2, RETRY_MAX_US);
	p->retry_at = pgpx_now() + p->backoff;
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
	watch_socket(p, EPOLLIN | EPOLLRDHUP);
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
	if (!PQsendQueryParams(p->pg, sql, PGPX_LOCK_PARAMS, NULL, values, NULL,
						   NULL, 0))
		fail_pinger(p, PQerrorMessage(p->pg));
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
	p->retry_at = 0;
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

/* Read the input of an idle connection: a notice, a parameter, or its end. */
static void
read_idle_input(PgpxPinger *p, uint32 events)
{
	bool		unsent;

	if (!pgpx_libpq_exchange(p->pg, &unsent) ||
		(events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0)
	{
		drop_connection(p);
		return;
	}

	/*
	 * libpq closes the socket if a message is not valid.  Drop the connection
	 * before another one registers a socket with the same number.
	 */
	(void) PQisBusy(p->pg);
	if (PQsocket(p->pg) < 0)
		drop_connection(p);
}

void
pgpx_lock_pinger_ready(int index, uint32 events)
{
	PgpxPinger *p = pingers[index];

	if (p == NULL || p->fd < 0)
		return;
	next_run = 0;
	switch (p->phase)
	{
		case PGPX_PINGER_NONE:
		case PGPX_PINGER_LOOKUP:
		case PGPX_PINGER_PASSWORD:
			break;
		case PGPX_PINGER_CONNECT:
		case PGPX_PINGER_START:
		case PGPX_PINGER_PREPARE:
			step_connect(p);
			break;
		case PGPX_PINGER_IDLE:
			read_idle_input(p, events);
			break;
		case PGPX_PINGER_PING:
		case PGPX_PINGER_RELEASE:
			step_work(p);
			break;
	}
}

static void
lookup_ended(PgpxLookup *lookup)
{
	uint64		tag = pgpx_lookup_tag(lookup);
	PgpxPinger *p = pingers[tag >> 32];

	next_run = 0;
	if (p == NULL || p->phase != PGPX_PINGER_LOOKUP ||
		p->attempt != (uint32) tag || drop_outdated(p))
		return;
	if (pgpx_lookup_error(lookup) != NULL)
		fail_pinger(p, pgpx_lookup_error(lookup));
	else
		start_connect(p, lookup);
}

static void
password_ended(int pool, uint32 pool_id, uint64 version,
			   const char *error)
{
	PgpxPinger *p = pingers[pool];

	next_run = 0;
	if (p == NULL || p->phase != PGPX_PINGER_PASSWORD ||
		p->pool_id != pool_id || p->version != version || drop_outdated(p))
		return;
	if (error != NULL)
		fail_pinger(p, error);
	else
		log_in(p);
}

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
		if (pingers[i] != NULL && pingers[i]->pg != NULL)
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
	if (p->deadline != 0 && now >= p->deadline)
		deadline_passed(p);
	if (p->phase == PGPX_PINGER_IDLE &&
		pgpx_wpools[p->pool].pool_id == p->pool_id &&
		pgpx_wpools[p->pool].conninfo.version > p->version)
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
	else if (p->phase == PGPX_PINGER_NONE && now >= p->retry_at &&
			 (ping_at <= now ||
			  (due.nreleases > 0 && due.release_at <= now)))
	{
		int64		timeout_ms = pgpx_pools[p->pool].opts.connect_timeout;

		if (!open_connection(p, Min(timeout_ms, phase_timeout(p, &due))))
		{
			pgpx_lock_release_failed(p->pool, p->pool_id,
									 "the pool worker was restarted, and no session has published the connection parameters yet");
			p->retry_at = now + RETRY_MAX_US;
		}
	}

	/* a lock may have been granted since this phase began: ping it in time */
	if (p->deadline != 0 && due.nheld > 0)
		p->deadline = Min(p->deadline,
						  Max(ping_at, p->phase_since) +
							  phase_timeout(p, &due) * 1000);
	if (p->deadline != 0)
		return p->deadline;		/* of the current phase */
	if (due.nreleases > 0)
		ping_at = Min(ping_at, due.release_at);
	if (ping_at == PG_INT64_MAX)
		return PG_INT64_MAX;	/* until close_idle closes it */
	return p->phase == PGPX_PINGER_NONE ? Max(ping_at, p->retry_at) : ping_at;
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
		else if (p->deadline != 0 && now >= p->deadline)
			drop_connection(p); /* its pool has no locks */
		else if (p->deadline != 0)
			next = Min(next, p->deadline);
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
