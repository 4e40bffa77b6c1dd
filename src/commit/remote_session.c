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

#include <sys/ioctl.h>

#include "commands/dbcommands.h"
#include "utils/lsyscache.h"

#include "base/settings.h"
#include "protocol/remote_message.h"
#include "worker/connect.h"

#define STATEMENT_US (10 * 1000 * 1000)
#define ANSWER_BYTES_MAX (4 * 1024 * 1024)
#define LOGIN_POLL_MS 5

/*
 * A login, which its thread owns until it has set "done".  Its memory and the
 * spec, which is pinned, exist until then, or until the process ends.
 */
typedef struct Login
{
	PgpxConninfo ci;			/* the parameters of the spec, and ours */
	PgpxTask   *command;		/* prints the password; NULL: none */
	const char *command_error;	/* or that no thread has started */
	PGconn	   *pg;
	pg_atomic_uint32 done;
} Login;

bool		pgpx_remote_has_abandoned = false;

void
pgpx_remote_wait(pgsocket fd, int events, long timeout_ms)
{
	static uint32 wait_event = 0;

	(void) WaitLatchOrSocket(MyLatch,
							 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH |
								 events,
							 fd, timeout_ms,
							 pgpx_wait_event(&wait_event, "PgpoolResolver"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Raise an error with a message of libpq. */
pg_noreturn static void
raise_text(int sqlstate, const char *text)
{
	char		line[PGPX_ERROR_LEN];

	pgpx_libpq_one_line(line, sizeof(line), text);
	ereport(ERROR,
			(errcode(sqlstate), errmsg_internal("%s", pgpx_text_clean(line))));
}

/* --- Login ---------------------------------------------------------------- */

static void *
thread_main(void *arg)
{
	Login	   *login = arg;

	if (login->command != NULL)
		login->ci.values[login->ci.nparams++] =
			pgpx_password_run(login->command, &login->command_error);
	if (login->command_error == NULL)
		login->pg = PQconnectdbParams(login->ci.keywords, login->ci.values, 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&login->done, 1);
	return NULL;
}

/*
 * Make a login to a primary server, because a standby shows no prepared
 * transactions.  Among several hosts libpq looks for one.
 */
static Login *
make_login(const PgpxServerSpec *spec, int seconds)
{
	const char *own[][2] = {
		{"connect_timeout", psprintf("%d", seconds)},
		{"target_session_attrs", "primary"},
		{"application_name", "pgpool_ext resolver"},
	};
	Login	   *login = palloc0(sizeof(*login));
	PgpxConninfo *ci = &login->ci;
	size_t		size = sizeof(char *) * (spec->nparams + lengthof(own) + 2);

	ci->keywords = memcpy(palloc0(size), spec->keywords,
						  sizeof(char *) * spec->nparams);
	ci->values = memcpy(palloc0(size), spec->values,
						sizeof(char *) * spec->nparams);
	ci->nparams = spec->nparams;
	for (int i = 0; i < lengthof(own); i++)
	{
		/* of equal keywords libpq uses the last */
		ci->keywords[ci->nparams] = own[i][0];
		ci->values[ci->nparams++] = own[i][1];
	}
	if (spec->password_command)
	{
		login->command = pgpx_password_prepare(ci, &spec->server_name,
											   get_database_name(MyDatabaseId),
											   &spec->user_name,
											   seconds * 1000);
		ci->keywords[ci->nparams] = "password";
	}
	pg_atomic_init_u32(&login->done, 0);
	return login;
}

PGconn *
pgpx_remote_log_in(PgpxServerSpec *spec)
{
	int			seconds = Max((spec->opts.connect_timeout + 999) / 1000, 2);
	Login	   *login = make_login(spec, seconds);
	bool		had_abandoned = pgpx_remote_has_abandoned;
	int			sqlstate = ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION;
	const char *error;
	PGconn	   *pg;

	/* for the password command, the lookup and the first hosts */
	PgpxTime	deadline = pgpx_now() + (PgpxTime) seconds * 3 * 1000000;

	pgpx_server_spec_pin(spec);
	if (!pgpx_thread_start(thread_main, login))
	{
		login->command_error = "The resolver could not start a thread for the login.";
		pg_atomic_write_u32(&login->done, 1);
	}

	/* any error leaves the login to its thread, also that of a cancel */
	pgpx_remote_has_abandoned = true;
	while (pg_atomic_read_u32(&login->done) == 0)
	{
		if (pgpx_now() >= deadline)
			raise_text(sqlstate,
					   "The login of the resolver did not end within three times connect_timeout.");
		pgpx_remote_wait(PGINVALID_SOCKET, 0, LOGIN_POLL_MS);
	}
	pgpx_remote_has_abandoned = had_abandoned;
	pg_memory_barrier();
	pg = login->pg;
	error = login->command_error != NULL ? pstrdup(login->command_error) :
		pg == NULL ? "The resolver is out of memory." :
		PQstatus(pg) != CONNECTION_OK ? pstrdup(PQerrorMessage(pg)) :
		pgpx_connect_find_refusal(pg, spec->need_password, &sqlstate);
	if (login->command != NULL)
		pgpx_password_forget(login->command);
	pgpx_server_spec_unpin(spec);
	if (error != NULL)
	{
		PQfinish(pg);
		raise_text(sqlstate, error);
	}
	(void) PQsetnonblocking(pg, 1);
	(void) PQsetNoticeReceiver(pg, pgpx_connect_drop_notice, NULL);
	return pg;
}

/* --- Statements ----------------------------------------------------------- */

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
	pgpx_remote_wait(PQsocket(pg),
					 WL_SOCKET_READABLE |
						 (unsent > 0 ? WL_SOCKET_WRITEABLE : 0),
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
				  void *arg, bool raises)
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
			sqlstate = pgpx_parse_sqlstate(
				PQresultErrorField(res, PG_DIAG_SQLSTATE),
				ERRCODE_CONNECTION_FAILURE);
		PQclear(res);
		if (status != PGRES_SINGLE_TUPLE && status != PGRES_TUPLES_OK &&
			status != PGRES_COMMAND_OK && status != PGRES_FATAL_ERROR)
			raise_text(ERRCODE_PROTOCOL_VIOLATION,
					   "The remote server sent an unexpected answer to the resolver.");
	}
	if (PQstatus(pg) != CONNECTION_OK)
		raise_text(ERRCODE_CONNECTION_FAILURE, PQerrorMessage(pg));
	if (sqlstate != 0 && raises)
		raise_text(sqlstate, PQerrorMessage(pg));
	return sqlstate;
}
