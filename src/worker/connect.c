/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  Connection attempts: login, start commands, checks before the first use.
 *
 * An attempt looks up the host names (conninfo.c), requests a password if there
 * is a command for it (password.c), logs in, and runs the start commands.  Its
 * connection is for a pool or for the locks of a pool (PgpxPurpose).
 *
 * libpq performs the login: it tries several hosts, authenticates, and starts
 * TLS.  The remote determines how much PQconnectPoll has to compute, so each
 * step of a login is a task in a thread (task_queue.c), between two events of
 * the event loop.  From the start of a step to its end the thread owns the
 * PGconn.  No other code may call a function on it, not even PQsocket.
 *
 * Two calls in a step can block.  If a message does not fit into the send
 * buffer, libpq waits until the remote accepts it.  OpenSSL continues a
 * handshake for as long as the remote sends messages of it.  So the socket of
 * an abandoned step is shut down.  libpq may have replaced it by the socket for
 * the next host in the meantime.  In that case the step does not block, because
 * it only starts to connect to that host.
 *
 * After the login the worker checks that the pool's user may use it, runs the
 * start commands, and checks that the session has the parameters under which
 * values are parsed.  The remote itself reports these properties, so the checks
 * do not protect against false reports.
 *
 * libpq prints notices to stderr, which is the log, so they are dropped.  It
 * stores notifications until the caller fetches them, so they are dropped after
 * each read.  The worker does not use PQtrace, because libpq prints messages
 * before it has checked them, and a length in one can make it read beyond its
 * buffer.
 *
 * Read-ahead.  libpq also receives bytes after the answer that it waits for.
 * It discards complete messages.  The beginning of an incomplete message stays
 * in its buffer.  wire.c then reads the rest, does not find a message header,
 * and breaks the stream.  No function of libpq reports the buffered beginning,
 * so this is not prevented.  It needs no prevention: an honest remote hardly
 * ever sends anything at that point, and only its own connection breaks.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mb/pg_wchar.h"
#include "storage/fd.h"

#include "base/debug_point.h"
#include "protocol/remote_message.h"
#include "worker/connection.h"
#include "worker/conninfo.h"
#include "worker/relay_tls.h"
#include "worker/worker.h"

/* A step of a login. */
typedef struct LoginStep
{
	PgpxTask	task;
	PgpxWorkerConn *owner;
	PGconn	   *pg;
	int			fd;				/* socket in this step; -1: none */
	struct stat socket;			/* identifies it, since fd may be reused */
	PostgresPollingStatusType status;
} LoginStep;

static void handle_login_step(PgpxWorkerConn *w,
							  PostgresPollingStatusType status);
static void continue_after_login(PgpxWorkerConn *w);
static void continue_start_commands(PgpxWorkerConn *w);
static void password_ended(dlist_node *login, const char *error);

/*
 * Fail the attempt.  how: PGPX_FAILED_RUNNING if a statement may be running on
 * the connection.  text: the reason; it may be in the memory of w->pg.
 */
static void
fail_attempt(PgpxWorkerConn *w, PgpxConnectFailure how, int sqlstate,
			 const char *text)
{
	char		reason[PGPX_ERROR_LEN];

	pgpx_libpq_one_line(reason, sizeof(reason), text);
	w->purpose->failed(w, how, sqlstate, reason);
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
 * Set the deadline for the host that is being tried.  The remaining hosts share
 * the remaining time equally.  Each has at least MIN_HOST_US, so that there is
 * time for one more poll.
 */
#define MIN_HOST_US (10 * 1000)

static void
set_host_deadline(PgpxWorkerConn *w)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	share = Max((w->until - now) / w->hosts->left, MIN_HOST_US);

	pgpx_connection_set_deadline(w, Min(now + share, w->until));
}

/* --- Steps of a login ---------------------------------------------------- */

/* Called in the thread. */
static void
run_step(PgpxTask *task)
{
	LoginStep  *step = (LoginStep *) task;

	step->status = PQconnectPoll(step->pg);
}

/*
 * Shut down the socket of an abandoned step, so that no call in it blocks.  The
 * thread may close the socket at any time, and its number may be reused.  So
 * this verifies that a duplicate is the same socket.
 */
static void
shut_down_socket(PgpxTask *task)
{
	const LoginStep *step = (const LoginStep *) task;
	struct stat now;
	int			fd;

	if (step->fd < 0 || (fd = fcntl(step->fd, F_DUPFD_CLOEXEC, 0)) < 0)
		return;
	if (fstat(fd, &now) == 0 && now.st_dev == step->socket.st_dev &&
		now.st_ino == step->socket.st_ino)
		(void) shutdown(fd, SHUT_RDWR);
	close(fd);
}

static void
finish_step(PgpxTask *task, PgpxTaskEnd end)
{
	LoginStep  *step = (LoginStep *) task;
	PgpxWorkerConn *w = step->owner;
	PostgresPollingStatusType status = step->status;

	if (end == PGPX_TASK_ABANDONED)
	{
		/* the remote must not receive the Terminate that PQfinish sends */
		(void) shutdown(PQsocket(step->pg), SHUT_RDWR);
		PQfinish(step->pg);
		ReleaseExternalFD();
		pfree(step);
		return;
	}
	w->pg = step->pg;
	w->task = NULL;
	pfree(step);
	w->purpose->changed(w);
	if (end == PGPX_TASK_NO_THREAD)
		fail_with_sqlstate(w, ERRCODE_INSUFFICIENT_RESOURCES,
						   "The pool worker could not start a thread for the login.");
	else
		handle_login_step(w, status);
}

static void
submit(PgpxWorkerConn *w, PgpxTask *task, PgpxTaskKind kind)
{
	PgpxConninfoKey key = pgpx_connection_key(w);

	task->for_locks = w->purpose->watch == PGPX_WATCH_PINGER;
	w->task = task;
	pgpx_task_submit(task, kind, &key);
}

/* Submit the next step; called when libpq's socket is ready. */
static void
submit_step(PgpxWorkerConn *w)
{
	LoginStep  *step = MemoryContextAllocZero(TopMemoryContext, sizeof(*step));

	/* libpq may close its socket and open another with the same number */
	pgpx_event_unwatch(w->fd);
	w->fd = -1;
	step->task.run = run_step;
	step->task.ended = finish_step;
	step->task.interrupt = shut_down_socket;
	step->owner = w;
	step->pg = w->pg;
	step->fd = PQsocket(w->pg);
	if (fstat(step->fd, &step->socket) < 0)
		step->fd = -1;
	w->pg = NULL;
	submit(w, &step->task, PGPX_TASK_LOGIN);
}

/* --- Lookup, password, login --------------------------------------------- */

void
pgpx_connect_drop_notice(void *arg, const PGresult *res)
{
}

/* Request a password; password_ended continues the attempt. */
static void
request_password(PgpxWorkerConn *w)
{
	const char *reason;

	w->phase = PGPX_PHASE_PASSWORD;
	pgpx_connection_set_deadline(w, w->until);
	reason = pgpx_password_request(w->pool, &w->password_node, password_ended);
	if (reason != NULL)
	{
		w->phase = PGPX_PHASE_NONE;
		fail_with_sqlstate(w, ERRCODE_EXTERNAL_ROUTINE_EXCEPTION, reason);
	}
}

/* Start a login with the hosts that are left. */
static void
log_in(PgpxWorkerConn *w)
{
	if (pgpx_password_is_needed(w->pool, w->started))
	{
		request_password(w);
		return;
	}
	w->password_at = pgpx_wpools[w->pool].password_at;
	if (!AcquireExternalFD())
	{
		fail_with_sqlstate(w, ERRCODE_INSUFFICIENT_RESOURCES,
						   PGPX_NO_DESCRIPTOR);
		return;
	}
	w->pg = pgpx_conninfo_login(w->pool, w->hosts,
								w->purpose->application_name);
	PGPX_DEBUG_POINT("worker_connects");
	if (w->pg == NULL)
	{
		ReleaseExternalFD();
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
	(void) PQsetNoticeReceiver(w->pg, pgpx_connect_drop_notice, NULL);
	w->phase = PGPX_PHASE_CONNECT;
	set_host_deadline(w);
	pgpx_connection_watch(w, EPOLLOUT);
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

/*
 * End the attempt and return true if other options were published since it
 * started.  The host of the old options must not receive the password and the
 * start commands of the new ones.
 */
static bool
drop_outdated(PgpxWorkerConn *w)
{
	if (!pgpx_conninfo_has_changed(pgpx_connection_key(w)))
		return false;
	w->purpose->outdated(w);
	return true;
}

/* Continue a login that has waited for the password command. */
static void
password_ended(dlist_node *login, const char *error)
{
	PgpxWorkerConn *w = dlist_container(PgpxWorkerConn, password_node, login);

	w->phase = PGPX_PHASE_NONE; /* password_node is in no list */
	w->purpose->changed(w);
	if (drop_outdated(w))
		return;
	if (error != NULL)
		fail_with_sqlstate(w, ERRCODE_EXTERNAL_ROUTINE_EXCEPTION, error);
	else
		log_in(w);
}

static void
lookup_ended(PgpxTask *task, PgpxTaskEnd end)
{
	PgpxHosts  *hosts = (PgpxHosts *) task;
	PgpxWorkerConn *w = hosts->owner;

	if (end == PGPX_TASK_ABANDONED)
	{
		pgpx_hosts_free(&hosts);
		return;
	}
	w->task = NULL;
	w->hosts = hosts;
	w->purpose->changed(w);
	if (drop_outdated(w))
		return;
	if (end == PGPX_TASK_NO_THREAD)
		fail_with_sqlstate(w, ERRCODE_INSUFFICIENT_RESOURCES,
						   "The pool worker could not start a thread for the lookup of the host name.");
	else if (hosts->error[0] != '\0')
		fail_with_08001(w, hosts->error);
	else
		log_in(w);
}

void
pgpx_connect_begin(PgpxWorkerConn *w, int64 timeout_ms)
{
	PgpxHosts  *hosts = pgpx_hosts_create(w->pool);

	w->version = pgpx_wpools[w->pool].conninfo.version;
	w->started = pgpx_now();
	w->until = w->started + timeout_ms * 1000;
	pgpx_connection_set_deadline(w, w->until);
	if (!pgpx_hosts_need_lookup(hosts))
	{
		w->hosts = hosts;
		log_in(w);
		return;
	}
	w->phase = PGPX_PHASE_LOOKUP;
	hosts->owner = w;
	hosts->task.run = pgpx_hosts_resolve;
	hosts->task.ended = lookup_ended;
	submit(w, &hosts->task, PGPX_TASK_LOOKUP);
}

/*
 * Handle a login that the remote refused.  If its password was obtained before
 * the attempt began, start another login with a new password.  Return false if
 * the attempt has failed.
 */
static bool
try_new_password(PgpxWorkerConn *w)
{
	if (pgpx_conninfo_has_changed(pgpx_connection_key(w)) ||
		!pgpx_password_refused(w->pool, w->password_at, w->started))
		return false;
	log_in_again(w);
	return true;
}

/* A step of the login has ended. */
static void
handle_login_step(PgpxWorkerConn *w, PostgresPollingStatusType status)
{
	char	   *text;
	bool		full;

	/*
	 * Before any code can end the connection, make the socket nonblocking, so
	 * that sending Terminate does not wait for a remote that does not read.
	 */
	if (PQstatus(w->pg) == CONNECTION_OK)
		(void) PQsetnonblocking(w->pg, 1);
	switch (status)
	{
		case PGRES_POLLING_OK:
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
						 ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						 text);
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
pgpx_connect_set_end(PgpxWorkerConn *w, PgpxTime until)
{
	if (until == w->until)
		return;
	w->until = until;
	if (w->phase == PGPX_PHASE_CONNECT)
		set_host_deadline(w);
	else
		pgpx_connection_set_deadline(w, until);
}

void
pgpx_connect_step(PgpxWorkerConn *w)
{
	if (w->phase == PGPX_PHASE_CONNECT)
		submit_step(w);
	else
		continue_start_commands(w);
}

/*
 * Handle the end of a host's part of the time for the attempt.  Return false if
 * all of the time is used up.
 *
 * PQconnectPoll has no deadline, and no function makes it go on to the next
 * host.  So if this host has not even accepted the connection, a new login
 * starts without it.  A host that has accepted the connection may be slow, so
 * it gets a new part of the time that is left.
 */
static bool
try_next_host(PgpxWorkerConn *w)
{
	if (w->phase != PGPX_PHASE_CONNECT)
		return false;
	if (drop_outdated(w))
		return true;
	if (pgpx_now() >= w->until)
	{
		/* let the next attempt start with another host, whatever the cause */
		(void) pgpx_hosts_mark_unresponsive(w->pool, w->hosts, w->pg);
		return false;
	}
	if (w->pg == NULL || PQstatus(w->pg) != CONNECTION_STARTED ||
		!pgpx_hosts_mark_unresponsive(w->pool, w->hosts, w->pg))
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

	if (!hurried && try_next_host(w))
		return;
	snprintf(text, sizeof(text),
			 "%s did not end within %s (%.3g s)%s.",
			 w->phase == PGPX_PHASE_LOOKUP ? "The lookup of the host name" :
			 w->phase == PGPX_PHASE_PASSWORD ? "The password command" :
			 w->phase == PGPX_PHASE_CONNECT ? "The connection attempt" :
			 "The start commands",
			 hurried ? "the time limit for an attempt while another pool waits for its slot" :
			 w->purpose->limit_name,
			 hurried ? PGPX_CONTENDED_KEEP_MS / 1000.0 :
			 (w->until - w->started) / 1000000.0,
			 pgpx_task_delay_reason(w->task));
	fail_attempt(w, w->phase == PGPX_PHASE_START ? PGPX_FAILED_RUNNING :
				 PGPX_FAILED,
				 w->phase == PGPX_PHASE_PASSWORD ?
				 ERRCODE_EXTERNAL_ROUTINE_EXCEPTION :
				 ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, text);
}

/* --- After the login ----------------------------------------------------- */

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

/* Login and start commands are complete. */
static void
finish_connect(PgpxWorkerConn *w)
{
	char		text[PGPX_ERROR_LEN];

	if (!has_expected_params(w, text, sizeof(text)))
	{
		fail_with_08001(w, text);
		return;
	}
	w->phase = PGPX_PHASE_OPEN;
	w->deadline = 0;
	w->purpose->opened(w);
}

/* Run the start commands of the pool, and then those of the purpose. */
static void
run_start_commands(PgpxWorkerConn *w)
{
	const char *sql[] = {pgpx_wpools[w->pool].conninfo.start_commands,
						 w->purpose->start_commands};

	while (w->nstarted < 2 && sql[w->nstarted][0] == '\0')
		w->nstarted++;
	if (w->nstarted == 2)
	{
		finish_connect(w);
		return;
	}
	w->phase = PGPX_PHASE_START;
	if (!PQsendQuery(w->pg, sql[w->nstarted++]))
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

const char *
pgpx_connect_find_refusal(PGconn *pg, bool need_password, int *sqlstate)
{
	const char *refusal = pgpx_tls_prepare(pg);

	*sqlstate = ERRCODE_FEATURE_NOT_SUPPORTED;
	if (PQgssEncInUse(pg))
		return "The connection uses GSS encryption, which pgpool_ext cannot pass on to a session. "
			   "Set the server's option gssencmode 'disable'.";
	if (refusal != NULL)
		return refusal;
	*sqlstate = ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED;
	if (need_password && !PQconnectionUsedPassword(pg))
		return "A session of a non-superuser must be authenticated by a password, "
			   "and the remote server did not request one.";

	/* a proxy may pass on a transaction that another client left open */
	*sqlstate = ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION;
	if (PQtransactionStatus(pg) != PQTRANS_IDLE)
		return "The remote session began inside a transaction.";
	return NULL;
}

/*
 * After the login: check whether it is acceptable, then run the start commands.
 */
static void
continue_after_login(PgpxWorkerConn *w)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;
	const char *refusal;
	int			sqlstate;

	if (drop_outdated(w))
		return;
	pgpx_hosts_free(&w->hosts);
	pgpx_connection_set_deadline(w, w->until);
	refusal = pgpx_connect_find_refusal(w->pg, ci->need_password, &sqlstate);
	(void) PQsetErrorVerbosity(w->pg, PQERRORS_DEFAULT);
	if (refusal != NULL)
	{
		fail_with_sqlstate(w, sqlstate, refusal);
		return;
	}
	w->nstarted = 0;
	run_start_commands(w);
}

bool
pgpx_connect_exchange(PgpxWorkerConn *w, bool *unsent)
{
	int			flushed = PQflush(w->pg);
	PGnotify   *note;

	*unsent = flushed == 1;
	if (flushed < 0 || !PQconsumeInput(w->pg))
		return false;
	while ((note = PQnotifies(w->pg)) != NULL)
		PQfreemem(note);
	return true;
}

/* Continue the start commands after an event on the socket. */
static void
continue_start_commands(PgpxWorkerConn *w)
{
	PGresult   *res;
	bool		unsent;

	if (!pgpx_connect_exchange(w, &unsent))
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
				run_start_commands(w);
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
			 * COPY FROM STDIN does not count as running, because the remote
			 * reads from the connection and notices when it closes
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

/* --- Connections of pools ------------------------------------------------ */

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
	conn->used_password = PQconnectionUsedPassword(w->pg) != 0;
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
}

static void
pool_attempt_changed(PgpxWorkerConn *w)
{
	pgpx_event_pool_changed(w->pool);
}

static void
pool_attempt_failed(PgpxWorkerConn *w, PgpxConnectFailure how, int sqlstate,
					const char *reason)
{
	bool		running = how == PGPX_FAILED_RUNNING;
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];

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

/* Make the connection available. */
static void
pool_attempt_opened(PgpxWorkerConn *w)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxTime	took = pgpx_now() - w->started;
	const char *wrong;

	/* only now, because any answer can contain another PID */
	note_remote(w, conn);
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

const PgpxPurpose pgpx_pool_purpose = {
	.start_commands = "",
	.watch = PGPX_WATCH_CONN,
	.limit_name = "connect_timeout",
	.changed = pool_attempt_changed,
	.failed = pool_attempt_failed,
	.outdated = pgpx_connect_end_outdated,
	.opened = pool_attempt_opened,
};

void
pgpx_connect_open(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxPool   *pool;
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

	/* wake the waiters if a session must send the conninfo */
	if (pgpx_wpools[w->pool].pool_id != w->pool_id ||
		pgpx_wpools[w->pool].conninfo.version < version)
		pgpx_pool_conninfo_missing(pool, conn);
	else
		pgpx_connect_begin(w, timeout_ms);
}
