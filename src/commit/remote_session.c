/*-------------------------------------------------------------------------
 *
 * remote_session.c
 *	  Sessions of a resolver on remote servers.
 *
 * A resolver does not use the pools: its statements would queue behind leases
 * that wait for the locks of the part that it is to end.  The connection
 * parameters, and whether a password must be used, are those of the server spec,
 * as in the pool worker (connect.c).  No start commands run.
 *
 * - A login runs in a thread, because the lookup of a name can block, and the
 *	 remote server determines how much a login has to compute.  The thread calls
 *	 no function of the server.  A login that lasts too long is abandoned: its
 *	 thread continues until the process ends, which it should do soon.
 * - A statement has a deadline, and its answer a maximal size.  libpq allocates
 *	 what the header of a message announces, but touches only the pages that are
 *	 filled.
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit.h"

#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "commands/dbcommands.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/settings.h"
#include "protocol/remote_message.h"
#include "worker/conninfo.h"
#include "worker/relay_tls.h"
#include "worker/worker.h"

#define STATEMENT_US (10 * 1000 * 1000)
#define ANSWER_BYTES_MAX (4 * 1024 * 1024)
#define STACK_SIZE (1024 * 1024)
#define LOGIN_POLL_MS 5

/* Parameters that this file adds, and the end of the list. */
#define MAX_OWN 5

/* A login, which its thread owns until it has set "done". */
typedef struct Login
{
	MemoryContext cxt;			/* holds it */
	int			nparams;
	const char **keywords;		/* NULL-terminated */
	const char **values;
	PgpxTask   *command;		/* prints the password; NULL: none */
	const char *command_error;
	PGconn	   *pg;
	pg_atomic_uint32 done;
} Login;

static bool started = false;	/* true once any thread was started */
bool		pgpx_remote_has_abandoned = false;

/* As pgpx_task_exit: a thread may still use what exit() tears down. */
static void
exit_last(int code, Datum arg)
{
	if (started)
		_exit(code);
}

void
pgpx_remote_sessions_init(void)
{
	/* registered first, so it is called last */
	on_proc_exit(exit_last, (Datum) 0);
	pgpx_worker_clean_environment();
}

static void
add_parameter(Login *login, const char *keyword, const char *value)
{
	/* of equal keywords libpq uses the last */
	login->keywords[login->nparams] = pstrdup(keyword);
	login->values[login->nparams++] = pstrdup(value);
}

/*
 * Prepare a login.  It must be one to a primary server, because a standby shows
 * no prepared transactions; among several hosts libpq looks for one.
 */
static Login *
make_login(const PgpxServerSpec *spec, int seconds)
{
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext,
											  "pgpool_ext login",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	Login	   *login = palloc0(sizeof(*login));

	login->cxt = cxt;
	login->keywords = palloc0(sizeof(char *) * (spec->nparams + MAX_OWN));
	login->values = palloc0(sizeof(char *) * (spec->nparams + MAX_OWN));
	for (int i = 0; i < spec->nparams; i++)
		add_parameter(login, spec->keywords[i], spec->values[i]);
	add_parameter(login, "connect_timeout", psprintf("%d", seconds));
	add_parameter(login, "target_session_attrs", "primary");
	add_parameter(login, "application_name", "pgpool_ext resolver");
	if (spec->password_command)
	{
		PgpxConninfo ci = {
			.nparams = login->nparams,
			.keywords = login->keywords,
			.values = login->values,
		};
		NameData	database;

		namestrcpy(&database, get_database_name(MyDatabaseId));
		login->command = pgpx_password_prepare(&ci, &spec->server_name,
											   &database, &spec->user_name,
											   seconds * 1000);
	}
	pg_atomic_init_u32(&login->done, 0);
	MemoryContextSwitchTo(old);
	return login;
}

static void *
thread_main(void *arg)
{
	Login	   *login = arg;

	if (login->command != NULL)
	{
		login->values[login->nparams] =
			pgpx_password_run(login->command, &login->command_error);
		login->keywords[login->nparams] = "password";
	}
	if (login->command_error == NULL)
		login->pg = PQconnectdbParams(login->keywords, login->values, 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&login->done, 1);
	return NULL;
}

static bool
start_thread(Login *login)
{
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	old;
	int			rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &attr, thread_main, login);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	started |= rc == 0;
	return rc == 0;
}

/* Wait for the latch, the socket, or some time; serve interrupts. */
static void
wait_for(pgsocket fd, int events, long timeout_ms)
{
	static uint32 wait_event = 0;

	if (WaitLatchOrSocket(MyLatch,
						  WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH | events,
						  fd, timeout_ms,
						  pgpx_wait_event(&wait_event, "PgpoolResolver")) &
		WL_LATCH_SET)
		ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static void
drop_notice(void *arg, const PGresult *res)
{
}

/* Raise an error in one line. */
pg_noreturn static void
raise_text(int sqlstate, const char *text)
{
	char		line[PGPX_ERROR_LEN];

	pgpx_libpq_one_line(line, sizeof(line), text);
	(void) pgpx_text_clean(line);
	ereport(ERROR, (errcode(sqlstate), errmsg_internal("%s", line)));
}

/* Wipe and free a login that has ended.  Return its connection, or an error. */
static PGconn *
finish_login(Login *login, bool need_password)
{
	PGconn	   *pg = login->pg;
	const char *error = login->command_error != NULL ?
		pstrdup(login->command_error) :
		pg == NULL ? "The resolver is out of memory." :
		PQstatus(pg) != CONNECTION_OK ? pstrdup(PQerrorMessage(pg)) :
		pgpx_tls_prepare(pg);

	for (int i = 0; i < login->nparams; i++)
		explicit_bzero(unconstify(char *, login->values[i]),
					   strlen(login->values[i]));
	if (login->command != NULL)
		pgpx_password_forget(login->command);
	MemoryContextDelete(login->cxt);
	if (error == NULL && need_password && !PQconnectionUsedPassword(pg))
		error = "A session of a non-superuser must be authenticated by a password, "
			"and the remote server did not request one.";
	if (error == NULL && PQtransactionStatus(pg) != PQTRANS_IDLE)
		error = "The remote session began inside a transaction.";
	if (error == NULL)
	{
		(void) PQsetnonblocking(pg, 1);
		(void) PQsetNoticeReceiver(pg, drop_notice, NULL);
		return pg;
	}
	PQfinish(pg);
	raise_text(ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, error);
}

PGconn *
pgpx_remote_log_in(const PgpxServerSpec *spec)
{
	int			seconds = (int) Max((spec->opts.connect_timeout + 999) / 1000, 2);
	Login	   *login = make_login(spec, seconds);

	/* the password command, the lookup and the first hosts */
	PgpxTime	deadline = pgpx_now() + (PgpxTime) seconds * 3 * 1000000;

	if (!start_thread(login))
		raise_text(ERRCODE_INSUFFICIENT_RESOURCES,
			  "The resolver could not start a thread for the login.");
	while (pg_atomic_read_u32(&login->done) == 0)
	{
		if (pgpx_now() < deadline)
		{
			wait_for(PGINVALID_SOCKET, 0, LOGIN_POLL_MS);
			continue;
		}
		pgpx_remote_has_abandoned = true;
		raise_text(ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
			  "The login of the resolver did not end within three times connect_timeout.");
	}
	pg_memory_barrier();
	return finish_login(login, spec->need_password);
}

/* Send and receive, when the socket is ready. */
static void
exchange(PGconn *pg, PgpxTime deadline, int64 *nbytes)
{
	int			unsent = PQflush(pg);
	PgpxTime	left = deadline - pgpx_now();
	int			available = 0;
	PGnotify   *note;

	if (left <= 0)
		raise_text(ERRCODE_QUERY_CANCELED,
			  "The remote server did not answer the resolver in time.");
	wait_for(PQsocket(pg),
			 WL_SOCKET_READABLE | (unsent > 0 ? WL_SOCKET_WRITEABLE : 0),
			 (long) (left / 1000 + 1));
	if (ioctl(PQsocket(pg), FIONREAD, &available) == 0)
		*nbytes += available;
	if (*nbytes > ANSWER_BYTES_MAX)
		raise_text(ERRCODE_PROGRAM_LIMIT_EXCEEDED,
			  "The remote server sent too long an answer to the resolver.");
	if (unsent < 0 || !PQconsumeInput(pg))
		raise_text(ERRCODE_CONNECTION_FAILURE, PQerrorMessage(pg));
	while ((note = PQnotifies(pg)) != NULL)
		PQfreemem(note);
}

int
pgpx_remote_query(PGconn *pg, const char *sql, PgpxRowReader read_row,
				  void *arg, char error[PGPX_ERROR_LEN])
{
	PgpxTime	deadline = pgpx_now() + STATEMENT_US;
	int64		nbytes = 0;
	int			sqlstate = 0;

	if (!PQsendQuery(pg, sql) || !PQsetSingleRowMode(pg))
		raise_text(ERRCODE_CONNECTION_FAILURE, PQerrorMessage(pg));
	for (;;)
	{
		PGresult   *res;
		ExecStatusType status;

		while (PQisBusy(pg))
			exchange(pg, deadline, &nbytes);
		res = PQgetResult(pg);
		if (res == NULL)
			break;
		status = PQresultStatus(res);
		if (status == PGRES_SINGLE_TUPLE && read_row != NULL)
			read_row(arg, res);
		else if (status == PGRES_FATAL_ERROR)
		{
			const char *code = PQresultErrorField(res, PG_DIAG_SQLSTATE);

			sqlstate = pgpx_parse_sqlstate(code,
										   ERRCODE_CONNECTION_FAILURE);
			pgpx_libpq_one_line(error, PGPX_ERROR_LEN,
								PQresultErrorMessage(res));
			(void) pgpx_text_clean(error);
		}
		PQclear(res);
		if (status != PGRES_SINGLE_TUPLE && status != PGRES_TUPLES_OK &&
			status != PGRES_COMMAND_OK && status != PGRES_FATAL_ERROR)
			raise_text(ERRCODE_PROTOCOL_VIOLATION,
				  "The remote server sent an unexpected answer to the resolver.");
	}
	if (PQstatus(pg) != CONNECTION_OK)
		raise_text(ERRCODE_CONNECTION_FAILURE, PQerrorMessage(pg));
	return sqlstate;
}
