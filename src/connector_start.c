/*-------------------------------------------------------------------------
 *
 * connector_start.c
 *	  What has to be so between the end of a login and the first lease.
 *
 * That the login was one that the pool's user may have, that the start commands have
 * run, and that the session is as those who read its values expect.  All of it is said
 * by the remote, and nothing of it is believed without a look.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"

#include "guc.h"
#include "login.h"

#define NOTE(to, text) \
	strlcpy(to, (text) != NULL ? (text) : "", sizeof(to))

/* What the views show of the other end. */
static void
note_remote(PgpxWorkerConn *w, PgpxConn *conn)
{
	struct sockaddr_storage addr = {0};
	socklen_t	len = sizeof(addr);
	char		host[NI_MAXHOST];
	char		port[NI_MAXSERV];
	const char *version = PQparameterStatus(w->pg, "server_version");
	const char *integers = PQparameterStatus(w->pg, "integer_datetimes");
	int			number = PQserverVersion(w->pg);

	/* times were floats once, and what is no PostgreSQL may not say */
	conn->binary = integers != NULL && strcmp(integers, "on") == 0 &&
		number >= 100000;

	/* before, an error of a statement in the same Sync undoes a DISCARD ALL */
	conn->carries = number >= 150000 || (number >= 140005 && number < 150000) ||
		(number >= 130008 && number < 140000);
	conn->remote_pid = PQbackendPID(w->pg);
	NOTE(conn->remote_version, version);
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
 * Does the session report the parameters that values are read under?  They were
 * asked for in the startup packet; a proxy may have dropped them, or the start
 * commands have changed them.
 */
static bool
params_fit(PgpxWorkerConn *w, char *text, size_t size)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;
	const char *encoding = PQparameterStatus(w->pg, "client_encoding");
	const char *datestyle = PQparameterStatus(w->pg, "DateStyle");
	const char *interval = PQparameterStatus(w->pg, "IntervalStyle");
	const char *wanted = pgpx_conninfo_param(ci, "client_encoding");
	const char *name = NULL;
	const char *value = NULL;

	if (encoding != NULL &&
		pg_char_to_encoding(encoding) != pg_char_to_encoding(wanted))
	{
		name = "client_encoding";
		value = encoding;
	}
	else if (datestyle != NULL && strncmp(datestyle, "ISO", 3) != 0)
	{
		name = "DateStyle";
		value = datestyle;
		wanted = "ISO";
	}
	else if (interval != NULL && strcmp(interval, "postgres") != 0)
	{
		name = "IntervalStyle";
		value = interval;
		wanted = "postgres";
	}
	if (name == NULL)
		return true;
	snprintf(text, size, "The remote session runs with %s \"%.40s\" and must run with \"%s\": "
						 "the start commands have changed it, or a proxy has dropped it.",
			 name, value, wanted);
	return false;
}

/* Logged in and started: the pool may lease it. */
static void
opened(PgpxWorkerConn *w)
{
	char		text[PGPX_ERROR_LEN];
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxTime	took = pgpx_now() - w->started;
	const char *wrong;

	if (!params_fit(w, text, sizeof(text)))
	{
		pgpx_connector_refused(w, text);
		return;
	}
	w->phase = PGPX_PHASE_OPEN;
	w->deadline = 0;
	note_remote(w, conn);
	wrong = PQsslInUse(w->pg) ? pgpx_relay_begin(w) : NULL;
	if (wrong != NULL)
	{
		pgpx_connector_fail(w, ERRCODE_INSUFFICIENT_RESOURCES, wrong);
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

void
pgpx_connector_logged_in(PgpxWorkerConn *w)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;
	const char *refusal;

	if (pgpx_connector_overtaken(w))
		return;
	pgpx_hosts_free(&w->hosts);
	w->deadline = w->until;
	pgpx_janitor_due(w->deadline);
	refusal = pgpx_tls_claim(w->pg);
	(void) PQsetErrorVerbosity(w->pg, PQERRORS_DEFAULT);
	pgpx_canceller_find_key(w);
	if (PQgssEncInUse(w->pg))
	{
		pgpx_connector_fail(w, ERRCODE_FEATURE_NOT_SUPPORTED,
							"The connection uses GSS encryption, which pgpool_ext cannot pass on to a session. "
							"Set the server's option gssencmode 'disable'.");
		return;
	}
	if (refusal != NULL)
	{
		pgpx_connector_fail(w, ERRCODE_FEATURE_NOT_SUPPORTED, refusal);
		return;
	}
	if (ci->need_password && !PQconnectionUsedPassword(w->pg))
	{
		pgpx_connector_fail(w, ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED,
							"A session of a non-superuser must be authenticated by a password, "
							"and the remote server did not ask for one.");
		return;
	}
	if (PQtransactionStatus(w->pg) != PQTRANS_IDLE)
	{
		/* a proxy's, that hands on what another client has left */
		pgpx_connector_refused(w, "The remote session does not begin outside of a transaction.");
		return;
	}
	if (ci->start_commands[0] == '\0')
	{
		opened(w);
		return;
	}
	w->phase = PGPX_PHASE_START;
	if (!PQsendQuery(w->pg, ci->start_commands))
	{
		pgpx_connector_refused(w, PQerrorMessage(w->pg));
		return;
	}

	/* their rows are dropped as they come */
	(void) PQsetSingleRowMode(w->pg);
	pgpx_connection_watch(w, EPOLLIN | (PQflush(w->pg) == 1 ? EPOLLOUT : 0));
}

void
pgpx_connector_step_start(PgpxWorkerConn *w)
{
	PGresult   *res;
	bool		taken = false;
	int			flushed;

	flushed = PQflush(w->pg);
	if (flushed < 0 || !PQconsumeInput(w->pg))
	{
		char	   *text = pstrdup(PQerrorMessage(w->pg));

		pgpx_connector_refused(w, text);
		pfree(text);
		return;
	}
	pgpx_libpq_drop_notifications(w->pg);
	while (!PQisBusy(w->pg))
	{
		ExecStatusType status;
		char		text[PGPX_ERROR_LEN];

		res = PQgetResult(w->pg);
		if (res == NULL)
		{
			if (PQtransactionStatus(w->pg) != PQTRANS_IDLE)
				pgpx_connector_refused(w, "The start commands left a transaction open.");
			else
				opened(w);
			return;
		}
		taken = true;
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

			/* COPY FROM STDIN waits for us, and so sees that we go */
			pgpx_connector_give_up(w,
					status == PGRES_COPY_OUT ? PGPX_FAILED_RUNNING :
											   PGPX_FAILED,
					ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, text);
			return;
		}
	}
	if (pgpx_libpq_keeps_much(&w->hearing, w->pg, taken))
	{
		pgpx_connector_refused(w, "The answer to the start commands has a message that is too long.");
		return;
	}
	pgpx_connection_watch(w, EPOLLIN | (flushed == 1 ? EPOLLOUT : 0));
}
