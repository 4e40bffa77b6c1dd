/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  Connection attempts: login, start commands, checks before the first lease.
 *
 * libpq performs the login: it tries several hosts, authenticates, and starts
 * TLS.  Each step of a login is a nonblocking call of libpq in a thread
 * (login.c), between two events of the event loop.
 *
 * Before the first lease the worker checks that the pool's user may use this
 * login, runs the start commands, and checks that the session has the
 * parameters under which values are parsed.  The remote itself reports these
 * properties, so the checks do not protect against false reports.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connect.h"

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"
#include "storage/fd.h"

#include "base/debug_point.h"
#include "protocol/remote_message.h"
#include "worker/connection.h"
#include "worker/conninfo.h"
#include "worker/events.h"
#include "worker/relay_tls.h"
#include "worker/worker.h"

static void handle_login_step(void *owner, PostgresPollingStatusType status,
							  int sqlstate, const char *failure);
static void continue_after_login(PgpxWorkerConn *w);
static void continue_start_commands(PgpxWorkerConn *w);

/*
 * Fail the attempt.  Drop the connection, or abort it if a statement may be
 * running on it (PGPX_FAILED_RUNNING).  text: the reason that waiters receive;
 * it may be in the memory of w->pg.
 */
static void
fail_attempt(PgpxWorkerConn *w, PgpxConnectFailure how, int sqlstate,
			 const char *text)
{
	bool		running = how == PGPX_FAILED_RUNNING;
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
	char		reason[PGPX_ERROR_LEN];

	pgpx_libpq_one_line(reason, sizeof(reason), text);
	if (pgpx_log_connections)
		ereport(LOG,
				(errmsg("pgpool_ext could not connect to server \"%s\" of database \"%s\"",
						NameStr(pool->server_name),
						NameStr(pool->database_name)),
				 errdetail_internal("%s", reason)));
	if (!running)
		pgpx_connection_drop(w);
	pgpx_pool_connect_failed(pool, conn, how, sqlstate, reason);
	if (running)
		pgpx_abort_begin(w);
}

/* Fail the attempt with an SQLSTATE; no statement can be running. */
static void
fail_with_sqlstate(PgpxWorkerConn *w, int sqlstate, const char *text)
{
	fail_attempt(w, PGPX_FAILED, sqlstate, text);
}

/* Fail the attempt with the SQLSTATE of most failures. */
static void
fail_with_08001(PgpxWorkerConn *w, const char *text)
{
	fail_with_sqlstate(w, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
					   text);
}

/*
 * Set the deadline for the host that is being tried: each host that is left has
 * the same part of the time that is left, but at least MIN_HOST_US, so that
 * there is time for one more poll.
 */
#define MIN_HOST_US (10 * 1000)

static void
set_host_deadline(PgpxWorkerConn *w)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	share = (w->until - now) / w->hosts->n;

	w->deadline = Min(now + Max(share, MIN_HOST_US), w->until);
	pgpx_event_due_at(w->deadline);
}

static void password_ended(int pool, uint32 pool_id, uint64 version,
						   const char *error);

/* Request a password; password_ended continues the attempt. */
static void
request_password(PgpxWorkerConn *w)
{
	const char *reason;

	w->phase = PGPX_PHASE_PASSWORD;
	w->deadline = w->until;
	pgpx_event_due_at(w->deadline);
	reason = pgpx_password_request(w->pool, (w->until - pgpx_now()) / 1000,
								   password_ended);
	if (reason != NULL)
		fail_with_sqlstate(w, ERRCODE_EXTERNAL_ROUTINE_EXCEPTION, reason);
}

/* Start a login with the password that is known. */
static void
start_login(PgpxWorkerConn *w)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;
	PgpxLoginKey key = {w->pool, w->pool_id, ci->version};

	if (!AcquireExternalFD())
	{
		fail_with_sqlstate(w, ERRCODE_INSUFFICIENT_RESOURCES,
						   PGPX_NO_DESCRIPTOR);
		return;
	}
	w->external_fd = true;

	w->pg = pgpx_conninfo_login(w->pool, w->hosts, NULL);
	PGPX_DEBUG_POINT("worker_connects");
	if (w->pg != NULL)
		w->login = pgpx_login_begin(key, w->pg, handle_login_step, w);
	if (w->login == NULL)
	{
		fail_with_sqlstate(w, ERRCODE_OUT_OF_MEMORY,
						   "The pool worker is out of memory.");
		return;
	}
	if (PQstatus(w->pg) == CONNECTION_BAD)
	{
		fail_with_08001(w, PQerrorMessage(w->pg));
		return;
	}
	(void) PQsetErrorVerbosity(w->pg, PQERRORS_VERBOSE);
	pgpx_libpq_mute_notices(w->pg);
	w->phase = PGPX_PHASE_CONNECT;
	set_host_deadline(w);
	pgpx_connection_watch(w, EPOLLOUT);
}

/* Start a login with the hosts that are left. */
static void
log_in(PgpxWorkerConn *w)
{
	pgpx_connection_add(w);
	if (pgpx_password_is_needed(w->pool, w->started))
	{
		request_password(w);
		return;
	}
	w->password_at = pgpx_wpools[w->pool].password_at;
	start_login(w);
}

/*
 * Start another login with the hosts that are left, in place of the current
 * one.
 */
static void
log_in_again(PgpxWorkerConn *w)
{
	PgpxHosts  *hosts = w->hosts;

	w->hosts = NULL;			/* pgpx_connection_drop would free them */
	pgpx_connection_drop(w);
	w->hosts = hosts;
	log_in(w);
}

/* Start the first login, when the addresses are known. */
static void
start_connect(PgpxWorkerConn *w, PgpxLookup *lookup)
{
	w->hosts = pgpx_hosts_create(w->pool, lookup);
	log_in(w);
}

void
pgpx_connect_end_outdated(PgpxWorkerConn *w)
{
	bool		running = w->phase == PGPX_PHASE_START;
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (!running)
		pgpx_connection_drop(w);
	pgpx_pool_attempt_outdated(&pgpx_pools[conn->pool], conn, running);
	if (running)
		pgpx_abort_begin(w);
}

/*
 * End the attempt and return true if other options were published since it
 * started.  The host of the old options must not receive the password and the
 * start commands of the new ones.
 */
static bool
drop_outdated(PgpxWorkerConn *w)
{
	if (!pgpx_conninfo_has_changed(w->pool, w->pool_id, w->version))
		return false;
	pgpx_connect_end_outdated(w);
	return true;
}

/* Continue the logins that wait for the password command. */
static void
password_ended(int pool, uint32 pool_id, uint64 version, const char *error)
{
	pgpx_connection_foreach(w)
	{
		if (w->phase != PGPX_PHASE_PASSWORD || w->pool != pool ||
			w->pool_id != pool_id || w->version != version ||
			drop_outdated(w))
			continue;
		if (error != NULL)
			fail_with_sqlstate(w, ERRCODE_EXTERNAL_ROUTINE_EXCEPTION, error);
		else
			log_in(w);
	}
	pgpx_event_pool_changed(pool);
}

static void
lookup_ended(PgpxLookup *lookup)
{
	uint64		tag = pgpx_lookup_tag(lookup);
	PgpxWorkerConn *w = &pgpx_wconns[tag >> 32];

	/* the attempt may have been dropped in the meantime */
	if (w->phase != PGPX_PHASE_LOOKUP ||
		(uint32) w->generation != (uint32) tag)
		return;
	pgpx_event_pool_changed(w->pool);
	if (drop_outdated(w))
		return;
	if (pgpx_lookup_error(lookup) != NULL)
		fail_with_08001(w, pgpx_lookup_error(lookup));
	else
		start_connect(w, lookup);
}

void
pgpx_connect_open(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxPool   *pool;
	PgpxConninfo *ci;
	uint64		version;
	int64		timeout_ms;

	w->pool = conn->pool;
	pool = &pgpx_pools[w->pool];
	LWLockAcquire(pool->lock, LW_SHARED);
	w->pool_id = pool->pool_id;
	w->generation = conn->generation;
	version = pool->connect_version;
	timeout_ms = pool->opts.connect_timeout;
	LWLockRelease(pool->lock);

	ci = &pgpx_wpools[w->pool].conninfo;
	if (pgpx_wpools[w->pool].pool_id != w->pool_id || ci->version < version)
	{
		/* wake the waiters, because a session must send the conninfo */
		pgpx_pool_conninfo_missing(pool, conn);
		return;
	}

	w->version = ci->version;
	w->started = pgpx_now();
	w->until = w->deadline = w->started + timeout_ms * 1000;
	pgpx_event_due_at(w->deadline);
	if (pgpx_conninfo_needs_lookup(ci))
	{
		const char *reason;

		pgpx_connection_add(w);
		w->phase = PGPX_PHASE_LOOKUP;
		w->lookup_answer = lookup_ended;
		reason = pgpx_conninfo_start_lookup(w->pool, lookup_ended,
											pgpx_connection_tag(w));
		if (reason != NULL)
			fail_with_sqlstate(w, ERRCODE_INSUFFICIENT_RESOURCES, reason);
		return;
	}
	start_connect(w, NULL);
}

/*
 * Handle a login that the remote refused: start another one with a new password
 * if the old one was obtained before the attempt began.  Return false if the
 * attempt has failed.
 */
static bool
try_new_password(PgpxWorkerConn *w)
{
	if (pgpx_conninfo_has_changed(w->pool, w->pool_id, w->version) ||
		!pgpx_password_refused(w->pool, w->password_at, w->started))
		return false;
	log_in_again(w);
	return true;
}

/* A step of the login has ended. */
static void
handle_login_step(void *owner, PostgresPollingStatusType status,
				  int sqlstate, const char *failure)
{
	PgpxWorkerConn *w = owner;
	char	   *text;
	bool		full;

	pgpx_event_pool_changed(w->pool);

	/*
	 * Before any code can end the connection, make the socket nonblocking, so
	 * that sending Terminate does not wait for a remote that does not read.
	 */
	if (PQstatus(w->pg) == CONNECTION_OK)
		(void) PQsetnonblocking(w->pg, 1);
	if (failure != NULL)
	{
		fail_with_sqlstate(w, sqlstate, failure);
		return;
	}
	switch (status)
	{
		case PGRES_POLLING_OK:
			(void) pgpx_login_end(w->login);
			w->login = NULL;
			pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
			continue_after_login(w);
			break;
		case PGRES_POLLING_FAILED:
			if (pgpx_libpq_is_unauthorized(PQerrorMessage(w->pg)) &&
				try_new_password(w))
				break;
			text = pstrdup(PQerrorMessage(w->pg));
			full = pgpx_libpq_strip_sqlstates(text);
			fail_attempt(w, full ? PGPX_FAILED_FULL : PGPX_FAILED,
								 sqlstate, text);
			pfree(text);
			break;
		default:
			if (PQstatus(w->pg) == CONNECTION_STARTED)
				set_host_deadline(w);	/* libpq tries the next host */
			pgpx_connection_watch(w, status == PGRES_POLLING_READING ?
								 EPOLLIN : EPOLLOUT);
			break;
	}
}

void
pgpx_connect_renew_timeout(PgpxWorkerConn *w, int64 timeout_ms)
{
	PgpxTime	until = w->started + timeout_ms * 1000;

	if (until == w->until)
		return;
	w->until = until;
	if (w->phase == PGPX_PHASE_CONNECT)
		set_host_deadline(w);
	else
		w->deadline = until;
	pgpx_event_due_at(w->deadline);
}

void
pgpx_connect_step(PgpxWorkerConn *w)
{
	if (w->phase != PGPX_PHASE_CONNECT)
	{
		continue_start_commands(w);
		return;
	}

	/* libpq may close its socket and open another with the same number */
	pgpx_event_unwatch(w->fd);
	w->fd = -1;
	pgpx_login_step(w->login);
}

/*
 * Handle the end of a host's part of connect_timeout.  Return false if all of
 * connect_timeout is used up.
 *
 * PQconnectPoll has no deadline, and no function makes it go on to the next
 * host.  So if this host has not even accepted the connection, a new login
 * starts without it.  A host that has accepted the connection may be slow, so
 * it gets a new part of the time that is left.
 */
static bool
try_next_host(PgpxWorkerConn *w)
{
	PgpxHosts  *hosts = w->hosts;
	PgpxTime	until = w->until;
	const PGconn *pg = pgpx_login_is_running(w->login) ? NULL : w->pg;

	if (w->phase != PGPX_PHASE_CONNECT)
		return false;
	if (drop_outdated(w))
		return true;
	if (pgpx_now() >= until)
	{
		/* let the next attempt start with another host, whatever the cause */
		(void) pgpx_hosts_mark_unresponsive(w->pool, hosts, pg);
		return false;
	}
	if (pg == NULL || w->fd < 0 || PQstatus(pg) != CONNECTION_STARTED ||
		!pgpx_hosts_mark_unresponsive(w->pool, hosts, pg))
	{
		set_host_deadline(w);
		return true;
	}
	log_in_again(w);
	return true;
}

void
pgpx_connect_deadline_passed(PgpxWorkerConn *w)
{
	char		text[PGPX_ERROR_LEN];
	bool		hurried = pgpx_now() < w->deadline;
	PgpxConnectFailure how;

	if (!hurried && try_next_host(w))
		return;
	snprintf(text, sizeof(text),
			 "%s did not end within %s (%.3g s)%s.",
			 w->phase == PGPX_PHASE_LOOKUP ? "The lookup of the host name" :
			 w->phase == PGPX_PHASE_PASSWORD ? "The password command" :
			 w->phase == PGPX_PHASE_CONNECT ? "The connection attempt" :
			 "The start commands",
			 hurried ? "the time limit for an attempt while another pool waits for its slot" :
			 "connect_timeout",
			 hurried ? PGPX_CONTENDED_KEEP_MS / 1000.0 :
			 pgpx_pools[w->pool].opts.connect_timeout / 1000.0,
			 pgpx_login_delay_reason(w->login));
	how = w->phase == PGPX_PHASE_START ? PGPX_FAILED_RUNNING : PGPX_FAILED;
	fail_attempt(w, how,
						 w->phase == PGPX_PHASE_PASSWORD ?
						 ERRCODE_EXTERNAL_ROUTINE_EXCEPTION :
						 ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						 text);
}

#define NOTE(to, text) \
	strlcpy(to, (text) != NULL ? (text) : "", sizeof(to))

/* Record the properties of the remote that the views show and sessions use. */
static void
note_remote(PgpxWorkerConn *w, PgpxConn *conn)
{
	struct sockaddr_storage addr = {0};
	socklen_t	len = sizeof(addr);
	char		host[NI_MAXHOST];
	char		port[NI_MAXSERV];
	const char *integers = PQparameterStatus(w->pg, "integer_datetimes");
	int			number = PQserverVersion(w->pg);

	/* old servers had float timestamps; other products may not report it */
	conn->binary = integers != NULL && strcmp(integers, "on") == 0 &&
		number >= 100000;

	/*
	 * In older versions an error of a statement in the same Sync undoes a
	 * DISCARD ALL.
	 */
	conn->can_pipeline = number >= 150000 ||
		(number >= 140005 && number < 150000) ||
		(number >= 130008 && number < 140000);
	conn->remote_pid = PQbackendPID(w->pg);
	conn->relayed = PQsslInUse(w->pg);
	NOTE(conn->tls_version, PQsslAttribute(w->pg, "protocol"));
	NOTE(conn->tls_cipher, PQsslAttribute(w->pg, "cipher"));
	if (getpeername(PQsocket(w->pg), (struct sockaddr *) &addr, &len) == 0 &&
		addr.ss_family != AF_UNIX &&
		getnameinfo((struct sockaddr *) &addr, len, host, sizeof(host), port,
					sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0)
	{
		strlcpy(conn->remote_addr, host, sizeof(conn->remote_addr));
		conn->remote_port = atoi(port);
	}
	len = sizeof(addr);
	if (getsockname(PQsocket(w->pg), (struct sockaddr *) &addr, &len) == 0 &&
		addr.ss_family != AF_UNIX &&
		getnameinfo((struct sockaddr *) &addr, len, host, sizeof(host), port,
					sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		conn->local_port = atoi(port);
}

/*
 * Return whether the session reports the parameters under which values are
 * parsed.  They were requested in the startup packet, but a proxy may have
 * dropped them, or the start commands may have changed them.  If not, writes
 * the error to text.
 */
static bool
has_expected_params(PgpxWorkerConn *w, char *text, size_t size)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;
	const char *encoding = PQparameterStatus(w->pg, "client_encoding");
	const char *datestyle = PQparameterStatus(w->pg, "DateStyle");
	const char *interval = PQparameterStatus(w->pg, "IntervalStyle");
	const char *expected = pgpx_conninfo_param(ci, "client_encoding");
	const char *name = NULL;
	const char *value = NULL;

	if (encoding != NULL &&
		pg_char_to_encoding(encoding) != pg_char_to_encoding(expected))
	{
		name = "client_encoding";
		value = encoding;
	}
	else if (datestyle != NULL && strncmp(datestyle, "ISO", 3) != 0)
	{
		name = "DateStyle";
		value = datestyle;
		expected = "ISO";
	}
	else if (interval != NULL && strcmp(interval, "postgres") != 0)
	{
		name = "IntervalStyle";
		value = interval;
		expected = "postgres";
	}
	if (name == NULL)
		return true;
	snprintf(text, size, "The remote session runs with %s \"%.40s\" and must run with \"%s\": "
						 "the start commands have changed it, or a proxy has dropped it.",
			 name, value, expected);
	return false;
}

static void run_start_commands(PgpxWorkerConn *w);

/* Login and start commands are complete: make the connection available. */
static void
finish_connect(PgpxWorkerConn *w)
{
	char		text[PGPX_ERROR_LEN];
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxTime	took = pgpx_now() - w->started;
	const char *wrong;

	if (!has_expected_params(w, text, sizeof(text)))
	{
		fail_with_08001(w, text);
		return;
	}
	w->phase = PGPX_PHASE_OPEN;
	w->deadline = 0;

	/* a remote can send another PID and key with any answer */
	note_remote(w, conn);
	pgpx_cancel_read_key(w);
	pg_atomic_write_u32(&conn->end_error, 0);
	wrong = PQsslInUse(w->pg) ? pgpx_relay_begin(w) : NULL;
	if (wrong != NULL)
	{
		fail_with_sqlstate(w, ERRCODE_INSUFFICIENT_RESOURCES, wrong);
		return;
	}
	pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
	if (pgpx_log_connections)
		ereport(LOG,
				(errmsg("pgpool_ext connected to server \"%s\" of database \"%s\" as connection %d, remote PID %d, in %.3f ms",
						NameStr(pool->server_name),
						NameStr(pool->database_name),
						w->index, conn->remote_pid, took / 1000.0)));
	pgpx_pool_opened(pool, conn, took);
}

/*
 * After the login: checks whether it is acceptable, then runs the start
 * commands.
 */
static void
continue_after_login(PgpxWorkerConn *w)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;
	const char *refusal;

	if (drop_outdated(w))
		return;
	pgpx_hosts_free(&w->hosts);
	w->deadline = w->until;
	pgpx_event_due_at(w->deadline);
	refusal = pgpx_tls_prepare(w->pg);
	(void) PQsetErrorVerbosity(w->pg, PQERRORS_DEFAULT);
	pgpx_cancel_read_key(w);
	if (PQgssEncInUse(w->pg))
	{
		fail_with_sqlstate(w, ERRCODE_FEATURE_NOT_SUPPORTED,
						   "The connection uses GSS encryption, which pgpool_ext cannot pass on to a session. "
						   "Set the server's option gssencmode 'disable'.");
		return;
	}
	if (refusal != NULL)
	{
		fail_with_sqlstate(w, ERRCODE_FEATURE_NOT_SUPPORTED, refusal);
		return;
	}
	pgpx_conns[w->index].used_password = PQconnectionUsedPassword(w->pg) != 0;
	if (ci->need_password && !pgpx_conns[w->index].used_password)
	{
		fail_with_sqlstate(w, ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED,
						   "A session of a non-superuser must be authenticated by a password, "
						   "and the remote server did not request one.");
		return;
	}
	if (PQtransactionStatus(w->pg) != PQTRANS_IDLE)
	{
		/* a proxy may pass on a transaction that another client left open */
		fail_with_08001(w, "The remote session began inside a transaction.");
		return;
	}
	pgpx_conns[w->index].remote_pid = PQbackendPID(w->pg);
	run_start_commands(w);
}

/* Run the start commands, if there are any. */
static void
run_start_commands(PgpxWorkerConn *w)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;

	if (ci->start_commands[0] == '\0')
	{
		finish_connect(w);
		return;
	}
	w->phase = PGPX_PHASE_START;
	if (!PQsendQuery(w->pg, ci->start_commands))
	{
		fail_with_08001(w, PQerrorMessage(w->pg));
		return;
	}

	/*
	 * single rows are freed as they arrive, so libpq does not accumulate them
	 */
	(void) PQsetSingleRowMode(w->pg);
	pgpx_connection_watch(w, EPOLLIN | (PQflush(w->pg) == 1 ? EPOLLOUT : 0));
}

/* Continue the start commands after an event on the socket. */
static void
continue_start_commands(PgpxWorkerConn *w)
{
	PGresult   *res;
	bool		unsent;

	if (!pgpx_libpq_exchange(w->pg, &unsent))
	{
		fail_with_08001(w, PQerrorMessage(w->pg));
		return;
	}
	while (!PQisBusy(w->pg))
	{
		ExecStatusType status;
		char		text[PGPX_ERROR_LEN];

		res = PQgetResult(w->pg);
		if (res == NULL)
		{
			if (PQtransactionStatus(w->pg) != PQTRANS_IDLE)
				fail_with_08001(w, "The start commands left a transaction open.");
			else
				finish_connect(w);
			return;
		}
		status = PQresultStatus(res);
		text[0] = '\0';
		if (status == PGRES_FATAL_ERROR || status == PGRES_BAD_RESPONSE)
			snprintf(text, sizeof(text), "The start commands failed: %s",
					 PQresultErrorMessage(res));
		PQclear(res);
		if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK &&
			status != PGRES_SINGLE_TUPLE && status != PGRES_EMPTY_QUERY)
		{
			if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT ||
				status == PGRES_COPY_BOTH)
				strlcpy(text, "The start commands contain a COPY.", sizeof(text));

			/*
			 * COPY FROM STDIN reads from the client, so the remote notices that
			 * the connection has closed
			 */
			fail_attempt(w,
					status == PGRES_COPY_OUT ? PGPX_FAILED_RUNNING :
											   PGPX_FAILED,
					ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, text);
			return;
		}
	}
	pgpx_connection_watch(w, EPOLLIN | (unsent ? EPOLLOUT : 0));
}
