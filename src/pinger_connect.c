/*-------------------------------------------------------------------------
 *
 * pinger_connect.c
 *	  How the worker's own connections to remotes with locks are opened.
 *
 * Like those of the pool (connector.c): the same parameters, the same rule about
 * passwords, the same start commands.  They stay in this process, so that libpq
 * speaks on them to the end.  Each step is a call that does not wait; those of the
 * login happen in threads (login.c).
 *
 *-------------------------------------------------------------------------
 */
#include "pinger.h"

#include <sys/epoll.h>

#include "storage/fd.h"

#include "login.h"

/*
 * A grant or a ping that a crash or failover of the remote could undo is none:
 * two servers would hold the lock.  Nobody else's operators are to be found.  A
 * statement that we have given up does not wait for a row for ever: the remote would
 * have one more of them with each new attempt.
 */
#define SETTINGS \
	"SET search_path = pg_catalog, pg_temp; " \
	"SET default_transaction_isolation = 'read committed'; " \
	"SET lock_timeout = '10s'; " \
	"SELECT pg_catalog.set_config('synchronous_commit', 'on', false) " \
	"WHERE pg_catalog.current_setting('synchronous_commit') " \
	"OPERATOR(pg_catalog.=) ANY ('{off,local,remote_write}'::pg_catalog.text[])"

static uint64
lookup_tag(const PgpxPinger *p)
{
	return ((uint64) p->pool << 32) | p->attempt;
}

void
pgpx_pinger_drop(PgpxPinger *p)
{
	if (p->phase == PGPX_PINGER_LOOKUP)
		pgpx_lookup_give_up(pgpx_pinger_looked_up, lookup_tag(p));
	if (p->fd >= 0)
		pgpx_reactor_forget(p->fd);
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
		/* its goodbye does not wait: see stepped() */
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

void
pgpx_pinger_watch(PgpxPinger *p, uint32 events)
{
	int			fd = PQsocket(p->pg);

	if (fd < 0 || (p->fd == fd && p->events == events))
		return;
	pgpx_reactor_watch(PGPX_WATCH_PINGER, p->pool, fd, events, p->fd != fd);
	p->fd = fd;
	p->events = events;
}

static void stepped(void *owner, PostgresPollingStatusType status, int sqlstate,
					const char *failure);

static void
start_connect(PgpxPinger *p, PgpxLookup *lookup)
{
	PgpxLoginOf of = {p->pool, p->pool_id, p->version};

	if (!AcquireExternalFD())
	{
		pgpx_pinger_failed(p, PGPX_NO_DESCRIPTOR);
		return;
	}
	p->external_fd = true;

	p->hosts = pgpx_hosts_told(p->pool, lookup);
	p->pg = pgpx_conninfo_login(&pgpx_wpools[p->pool].conninfo, p->hosts,
								"pgpool_ext lock");
	if (p->pg != NULL)
		p->login = pgpx_login_begin(of, p->pg, &p->hearing, stepped, p);
	if (p->login == NULL || PQstatus(p->pg) == CONNECTION_BAD)
	{
		pgpx_pinger_failed(p, p->login == NULL ? "out of memory" :
											  PQerrorMessage(p->pg));
		return;
	}
	pgpx_libpq_hush(p->pg);
	p->phase = PGPX_PINGER_CONNECT;
	pgpx_pinger_watch(p, EPOLLOUT);
}

bool
pgpx_pinger_open(PgpxPinger *p, int64 timeout)
{
	PgpxWorkerPool *wp = &pgpx_wpools[p->pool];

	if (wp->pool_id != p->pool_id)
		return false;
	p->version = wp->conninfo.version;
	p->attempt++;
	p->deadline = pgpx_now() + timeout * 1000;
	if (pgpx_conninfo_needs_lookup(&wp->conninfo))
	{
		const char *why;

		p->phase = PGPX_PINGER_LOOKUP;
		why = pgpx_conninfo_look_up(p->pool, pgpx_pinger_looked_up,
									lookup_tag(p));
		if (why != NULL)
			pgpx_pinger_failed(p, why);
		return true;
	}
	start_connect(p, NULL);
	return true;
}

void
pgpx_pinger_too_late(PgpxPinger *p)
{
	/* a host that has accepted is only slow, or we are: a thread computes, or waits */
	if (p->phase == PGPX_PINGER_CONNECT && p->fd >= 0 &&
		PQstatus(p->pg) == CONNECTION_STARTED &&
		!pgpx_conninfo_is_another(p->pool, p->pool_id, p->version))
		(void) pgpx_hosts_silent(p->pool, p->hosts, p->pg);
	pgpx_pinger_failed(p, p->phase > PGPX_PINGER_IDLE ?
		"The remote server did not answer in time." :
		psprintf("The connection attempt did not end in time%s.",
				 pgpx_login_why_late(p->login)));
}

/* As in connector.c: what was told since is not for the host of what was before. */
static bool
overtaken(PgpxPinger *p)
{
	if (!pgpx_conninfo_is_another(p->pool, p->pool_id, p->version))
		return false;
	pgpx_pinger_drop(p);
	pgpx_pinger_conninfo_came();
	return true;
}

void
pgpx_pinger_looked_up_one(PgpxPinger *p, PgpxLookup *lookup)
{
	if (overtaken(p))
		return;
	if (pgpx_lookup_error(lookup) != NULL)
		pgpx_pinger_failed(p, pgpx_lookup_error(lookup));
	else
		start_connect(p, lookup);
}

/* A statement is on its way; its rows are taken as they come, not all kept. */
void
pgpx_pinger_sent(PgpxPinger *p)
{
	(void) PQsetSingleRowMode(p->pg);
	pgpx_pinger_watch(p, EPOLLIN | (PQflush(p->pg) == 1 ? EPOLLOUT : 0));
}

/* Send one of the statements that come before the first ping. */
static void
send_setting(PgpxPinger *p, PgpxPingerPhase phase, const char *sql)
{
	p->phase = phase;
	p->error[0] = '\0';
	if (!PQsendQuery(p->pg, sql))
		pgpx_pinger_failed(p, PQerrorMessage(p->pg));
	else
		pgpx_pinger_sent(p);
}

/* The login is done: is it one that we may use? */
static void
logged_in(PgpxPinger *p)
{
	PgpxConninfo *ci = &pgpx_wpools[p->pool].conninfo;
	const char *refusal;

	if (overtaken(p))
		return;
	refusal = pgpx_tls_claim(p->pg);
	if (refusal != NULL)
	{
		pgpx_pinger_failed(p, refusal);
		return;
	}
	if (ci->need_password && !PQconnectionUsedPassword(p->pg))
	{
		pgpx_pinger_failed(p, "A session of a non-superuser must be authenticated by a password, "
							  "and the remote server did not ask for one.");
		return;
	}
	if (ci->start_commands[0] != '\0')
		send_setting(p, PGPX_PINGER_START, ci->start_commands);
	else
		send_setting(p, PGPX_PINGER_PREPARE, SETTINGS);
}

/* A step of the login is over. */
static void
stepped(void *owner, PostgresPollingStatusType status, int sqlstate,
		const char *failure)
{
	PgpxPinger *p = owner;

	/* as in connector.c: before anything ends it */
	if (PQstatus(p->pg) == CONNECTION_OK)
		(void) PQsetnonblocking(p->pg, 1);
	if (failure != NULL)
		pgpx_pinger_failed(p, failure);
	else if (status == PGRES_POLLING_OK)
	{
		(void) pgpx_login_end(p->login);
		p->login = NULL;
		pgpx_hosts_free(&p->hosts);
		logged_in(p);
	}
	else if (status == PGRES_POLLING_FAILED)
		pgpx_pinger_failed(p, PQerrorMessage(p->pg));
	else
		pgpx_pinger_watch(p, status == PGRES_POLLING_READING ? EPOLLIN :
															  EPOLLOUT);
}

static void
note_error(PgpxPinger *p, const PGresult *res)
{
	const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

	if (text == NULL)
		text = PQresultErrorMessage(res);
	strlcpy(p->error, text[0] != '\0' ? text : "unexpected result",
			sizeof(p->error));
}

bool
pgpx_pinger_results(PgpxPinger *p,
					void (*row)(PgpxPinger *p, const PGresult *res))
{
	int			flushed = PQflush(p->pg);
	bool		taken = false;
	PGresult   *res;

	if (flushed < 0 || !PQconsumeInput(p->pg))
	{
		/*
		 * One that was good until now, as after a restart of the remote: another
		 * one tells whether anything is wrong.  Only once without an answer.
		 */
		if (p->answered)
			pgpx_pinger_drop(p);
		else
			pgpx_pinger_failed(p, PQerrorMessage(p->pg));
		return false;
	}
	pgpx_libpq_drop_notifications(p->pg);
	while (!PQisBusy(p->pg))
	{
		ExecStatusType status;

		/* the end comes after the commit; until then nothing is certain */
		res = PQgetResult(p->pg);
		if (res == NULL)
		{
			(void) pgpx_libpq_keeps_much(&p->hearing, p->pg, true);
			return true;
		}
		taken = true;
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
			pgpx_pinger_failed(p, "The start commands contain a COPY.");
			return false;
		}
	}
	if (pgpx_libpq_keeps_much(&p->hearing, p->pg, taken))
	{
		pgpx_pinger_failed(p, "The remote server sent a message that is too long.");
		return false;
	}
	pgpx_pinger_watch(p, EPOLLIN | (flushed == 1 ? EPOLLOUT : 0));
	return false;
}

void
pgpx_pinger_step(PgpxPinger *p)
{
	if (p->phase == PGPX_PINGER_CONNECT)
	{
		/* libpq may close its socket and open another under the same number */
		pgpx_reactor_forget(p->fd);
		p->fd = -1;
		pgpx_login_step(p->login);
		return;
	}
	if (!pgpx_pinger_results(p, NULL))
		return;
	if (p->error[0] != '\0')
		pgpx_pinger_failed(p, p->error);
	else if (PQtransactionStatus(p->pg) != PQTRANS_IDLE)
		pgpx_pinger_failed(p, "The start commands left a transaction open.");
	else if (p->phase == PGPX_PINGER_START)
		send_setting(p, PGPX_PINGER_PREPARE, SETTINGS);
	else
		pgpx_pinger_ready_to_work(p);
}
