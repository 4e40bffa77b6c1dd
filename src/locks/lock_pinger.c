/*-------------------------------------------------------------------------
 *
 * lock_pinger.c
 *	  The worker's connections for distributed locks: pings and releases.
 *
 * Like those of the pool (connect.c): the same parameters, the same rule about
 * passwords, the same start commands.  They stay in this process, so that libpq
 * speaks on them to the end.  Each step is a call that does not wait; those of the
 * login happen in threads (login.c).
 *
 * Pings for the locks that this server holds, and releases.
 *
 * The instant from which a ping's grant counts is taken before it is sent, and the
 * remote counts from later on; so what this server believes ends before what the
 * remote grants.  A lock that the answer does not name is lost; so is one whose
 * time is up while no answer comes, whatever the answer will say.
 *
 * What happens when the worker dies at any line: the next one knows from shared
 * memory what is held and what is to be released, and knows how to connect as soon
 * as a session tells it; until then the locks run out.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/lock_pinger.h"

#include <sys/epoll.h>

#include "lib/stringinfo.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/pool.h"
#include "worker/events.h"
#include "worker/relay_tls.h"
#include "worker/worker.h"

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
		pgpx_lookup_abandon(pgpx_pinger_looked_up, lookup_tag(p));
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
	pgpx_event_watch(PGPX_WATCH_PINGER, p->pool, fd, events, p->fd != fd);
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

	p->hosts = pgpx_hosts_of(p->pool, lookup);
	p->pg = pgpx_conninfo_login(&pgpx_wpools[p->pool].conninfo, p->hosts,
								"pgpool_ext lock");
	if (p->pg != NULL)
		p->login = pgpx_login_begin(of, p->pg, &p->accounting, stepped, p);
	if (p->login == NULL || PQstatus(p->pg) == CONNECTION_BAD)
	{
		pgpx_pinger_failed(p, p->login == NULL ? "out of memory" :
											  PQerrorMessage(p->pg));
		return;
	}
	pgpx_libpq_mute_notices(p->pg);
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
		why = pgpx_conninfo_start_lookup(p->pool, pgpx_pinger_looked_up,
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
		(void) pgpx_hosts_mark_unresponsive(p->pool, p->hosts, p->pg);
	pgpx_pinger_failed(p, p->phase > PGPX_PINGER_IDLE ?
		"The remote server did not answer in time." :
		psprintf("The connection attempt did not end in time%s.",
				 pgpx_login_why_late(p->login)));
}

/* As in connect.c: what was told since is not for the host of what was before. */
static bool
overtaken(PgpxPinger *p)
{
	if (!pgpx_conninfo_is_another(p->pool, p->pool_id, p->version))
		return false;
	pgpx_pinger_drop(p);
	pgpx_pinger_conninfo_published();
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

	/* as in connect.c: before anything ends it */
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
			(void) pgpx_libpq_buffers_too_much(&p->accounting, p->pg, true);
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
	if (pgpx_libpq_buffers_too_much(&p->accounting, p->pg, taken))
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
		pgpx_event_unwatch(p->fd);
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

/* A connection is kept for so long after the last lock. */
#define IDLE_US (5 * 1000 * 1000)

/* The pause after a failure; doubled. */
#define RETRY_MIN_US (100 * 1000)
#define RETRY_MAX_US (1000 * 1000)

/* A statement or a connect of ours may not take longer, in ms. */
#define ANSWER_MAX_MS 10000

/*
 * $1 process, $2 names, $3 requests, $4 tokens.  A lock that has run out is not
 * revived: its holder has been told.
 */
static const char ping_sql[] =
	"WITH ours AS ("
	"UPDATE pgpool_lock.locks AS l"
	" SET pinged = pg_catalog.clock_timestamp(),"
	" expires = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) l.ttl"
	" FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]),"
	" pg_catalog.unnest($3::pg_catalog.int8[]),"
	" pg_catalog.unnest($4::pg_catalog.int8[])) AS h(name, request, token)"
	" WHERE l.name OPERATOR(pg_catalog.=) h.name AND l.process OPERATOR(pg_catalog.=) $1 AND l.request OPERATOR(pg_catalog.=) h.request"
	" AND l.token OPERATOR(pg_catalog.=) h.token AND l.state OPERATOR(pg_catalog.=) 'held'"
	" AND l.expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
	" RETURNING l.request), "
	"alive AS ("
	"INSERT INTO pgpool_lock.pings AS p (process, pinged)"
	" VALUES ($1, pg_catalog.clock_timestamp())"
	" ON CONFLICT (process) DO UPDATE SET pinged = excluded.pinged) "
	"SELECT request FROM ours";

/*
 * The same parameters; token 0 is one that the session has never learned.  A lock
 * that is free already was released by this statement: its answer was lost.
 */
static const char release_sql[] =
	"UPDATE pgpool_lock.locks AS l SET state = 'free'"
	" FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]),"
	" pg_catalog.unnest($3::pg_catalog.int8[]),"
	" pg_catalog.unnest($4::pg_catalog.int8[])) AS h(name, request, token)"
	" WHERE l.name OPERATOR(pg_catalog.=) h.name AND l.process OPERATOR(pg_catalog.=) $1 AND l.request OPERATOR(pg_catalog.=) h.request"
	" AND (l.token OPERATOR(pg_catalog.=) h.token OR h.token OPERATOR(pg_catalog.=) 0::pg_catalog.int8)"
	" RETURNING l.request, l.expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(),"
	" l.wanted OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '1 second')";

static PgpxPinger **pingers = NULL; /* [max_pools], made when needed */
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
												  sizeof(PgpxDlockWork)));
		p->ours = MemoryContextAllocHuge(TopMemoryContext,
										 mul_size(pgpx_shared->max_locks,
												  sizeof(bool)));
		p->contended = MemoryContextAllocHuge(TopMemoryContext,
											  mul_size(pgpx_shared->max_locks,
													   sizeof(bool)));
		p->pool = pool;
		p->fd = -1;
		pingers[pool] = p;
	}
	if (p->pool_id != pool_id)
	{
		pgpx_pinger_drop(p);
		p->pool_id = pool_id;
		p->retry_at = 0;
		p->backoff = 0;
		p->failing = false;
	}
	return p;
}

void
pgpx_pinger_failed(PgpxPinger *p, const char *why)
{
	char		text[PGPX_ERROR_LEN];
	PgpxPool   *pool = &pgpx_pools[p->pool];

	/* the text may be the connection's, or ours; one line of it is enough */
	strlcpy(text, why, sizeof(text));
	for (char *c = text; *c != '\0'; c++)
		if (*c == '\n')
			*c = ' ';

	/* one that lets us in and cannot ping, a standby, say, is no place to begin at */
	if (p->phase >= PGPX_PINGER_START &&
		!pgpx_conninfo_is_another(p->pool, p->pool_id, p->version))
		pgpx_wpools[p->pool].first_until = 0;
	pgpx_pinger_drop(p);
	p->backoff = p->backoff == 0 ? RETRY_MIN_US :
		Min(p->backoff * 2, RETRY_MAX_US);
	p->retry_at = pgpx_now() + p->backoff;
	if (!p->failing)
		ereport(LOG,
				(errmsg("pgpool_ext cannot ping the locks of server \"%s\" of database \"%s\"",
						NameStr(pool->server_name),
						NameStr(pool->database_name)),
				 errdetail_internal("%s", text)));
	p->failing = true;
	pgpx_dlock_release_failed(p->pool, p->pool_id, text);
	next_run = 0;
}

void
pgpx_pinger_ready_to_work(PgpxPinger *p)
{
	p->phase = PGPX_PINGER_IDLE;
	p->deadline = 0;
	p->used_at = pgpx_now();
	pgpx_pinger_watch(p, EPOLLIN | EPOLLRDHUP);
	next_run = 0;
}

/*
 * How long an answer may take: there must be time for another attempt.  Longer after
 * failures: a lock with a short ttl shall not have those with a long one lost, whose
 * remote is merely slow.
 */
static int64
patience(const PgpxPinger *p, const PgpxDlockDue *due)
{
	int64		ms = due->nheld > 0 ? due->min_ttl / 3 : ANSWER_MAX_MS / 3;

	ms += ms * p->backoff / RETRY_MIN_US;
	return Min(ms, ANSWER_MAX_MS);
}

/* A text as an element of an array's literal. */
static void
append_element(StringInfo buf, const char *text)
{
	appendStringInfoChar(buf, '"');
	for (; *text != '\0'; text++)
	{
		if (*text == '"' || *text == '\\')
			appendStringInfoChar(buf, '\\');
		appendStringInfoChar(buf, *text);
	}
	appendStringInfoChar(buf, '"');
}

/* Send a statement about the locks in p->work. */
static void
send_work(PgpxPinger *p, PgpxPingerPhase phase, const char *sql, int64 timeout)
{
	StringInfoData names;
	StringInfoData requests;
	StringInfoData tokens;
	const char *values[4];

	initStringInfo(&names);
	initStringInfo(&requests);
	initStringInfo(&tokens);
	for (int i = 0; i < p->nwork; i++)
	{
		char		separator = i == 0 ? '{' : ',';

		appendStringInfoChar(&names, separator);
		append_element(&names, p->work[i].name);
		appendStringInfo(&requests, "%c" UINT64_FORMAT, separator,
						 p->work[i].request);
		appendStringInfo(&tokens, "%c" INT64_FORMAT, separator,
						 p->work[i].token);
		p->ours[i] = false;
		p->contended[i] = false;
	}
	appendStringInfoChar(&names, '}');
	appendStringInfoChar(&requests, '}');
	appendStringInfoChar(&tokens, '}');
	values[0] = pgpx_shared->process;
	values[1] = names.data;
	values[2] = requests.data;
	values[3] = tokens.data;

	p->phase = phase;
	p->error[0] = '\0';
	p->deadline = pgpx_now() + timeout * 1000;

	/* before it is sent: what the remote grants ends later than this says */
	p->asked_at = pgpx_steady_now();
	if (!PQsendQueryParams(p->pg, sql, 4, NULL, values, NULL, NULL, 0))
		pgpx_pinger_failed(p, PQerrorMessage(p->pg));
	else
		pgpx_pinger_sent(p);
}

/* The rows name the requests that are ours, or were until now. */
static void
take_rows(PgpxPinger *p, const PGresult *res)
{
	bool		release = p->phase == PGPX_PINGER_RELEASE;

	if (PQnfields(res) != (release ? 3 : 1))
	{
		strlcpy(p->error, "unexpected result", sizeof(p->error));
		return;
	}
	for (int row = 0; row < PQntuples(res); row++)
	{
		uint64		request = strtou64(PQgetvalue(res, row, 0), NULL, 10);

		for (int i = 0; i < p->nwork; i++)
		{
			if (p->work[i].request != request)
				continue;
			p->ours[i] = !release ||
				strcmp(PQgetvalue(res, row, 1), "t") == 0;
			p->contended[i] = release &&
				strcmp(PQgetvalue(res, row, 2), "t") == 0;
		}
	}
}

static void
step_work(PgpxPinger *p)
{
	PgpxPool   *pool = &pgpx_pools[p->pool];
	bool		release = p->phase == PGPX_PINGER_RELEASE;

	if (!pgpx_pinger_results(p, take_rows))
		return;
	if (p->error[0] != '\0')
	{
		/* read-only, tables gone: another connection may find it better */
		pgpx_pinger_failed(p, p->error);
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
			pgpx_dlock_released(&p->work[i], p->ours[i], p->contended[i]);
		else
			pgpx_dlock_pinged(&p->work[i], p->ours[i], p->asked_at);
	}
	p->nwork = 0;
	p->answered = true;
	pgpx_pinger_ready_to_work(p);
}

/* Nothing is under way: a notice, a parameter, or its end. */
static void
listen_idle(PgpxPinger *p, uint32 events)
{
	if (!PQconsumeInput(p->pg) ||
		(events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0)
	{
		pgpx_pinger_drop(p);
		return;
	}
	(void) PQisBusy(p->pg);
	pgpx_libpq_drop_notifications(p->pg);
	if (pgpx_libpq_buffers_too_much(&p->accounting, p->pg, false))
		pgpx_pinger_drop(p);
}

void
pgpx_pinger_ready(int index, uint32 events)
{
	PgpxPinger *p = pingers[index];

	if (p == NULL || p->fd < 0)
		return;
	next_run = 0;
	switch (p->phase)
	{
		case PGPX_PINGER_NONE:
		case PGPX_PINGER_LOOKUP:
			break;
		case PGPX_PINGER_CONNECT:
		case PGPX_PINGER_START:
		case PGPX_PINGER_PREPARE:
			pgpx_pinger_step(p);
			break;
		case PGPX_PINGER_IDLE:
			listen_idle(p, events);
			break;
		case PGPX_PINGER_PING:
		case PGPX_PINGER_RELEASE:
			step_work(p);
			break;
	}
}

void
pgpx_pinger_looked_up(PgpxLookup *lookup)
{
	uint64		tag = pgpx_lookup_tag(lookup);
	PgpxPinger *p = pingers[tag >> 32];

	next_run = 0;
	if (p != NULL && p->phase == PGPX_PINGER_LOOKUP &&
		p->attempt == (uint32) tag)
		pgpx_pinger_looked_up_one(p, lookup);
}

void
pgpx_pinger_conninfo_published(void)
{
	next_run = 0;
}

int
pgpx_pinger_descriptors(void)
{
	int			n = 0;

	if (pingers == NULL)
		return 0;
	for (int i = 0; i < pgpx_shared->max_pools; i++)
		if (pingers[i] != NULL && pingers[i]->pg != NULL)
			n++;
	return n;
}

/* Do what is due for a pool with locks; returns when to look again. */
static PgpxTime
run_pool(PgpxPinger *p)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	ping_at;
	PgpxDlockDue due;

	pgpx_dlock_due(p->pool, p->pool_id, &due);
	ping_at = due.nheld > 0 ? pgpx_steady_to_now(due.ping_at) : PG_INT64_MAX;
	if (p->deadline != 0 && now >= p->deadline)
		pgpx_pinger_too_late(p);
	if (p->phase == PGPX_PINGER_IDLE &&
		pgpx_wpools[p->pool].pool_id == p->pool_id &&
		pgpx_wpools[p->pool].conninfo.version > p->version)
		pgpx_pinger_drop(p);	/* it may lead elsewhere by now */

	/* pings first: there may be a new release whenever one has been answered */
	if (p->phase == PGPX_PINGER_IDLE && ping_at <= now)
	{
		p->nwork = pgpx_dlock_to_ping(p->pool, p->pool_id, p->work);
		if (p->nwork > 0)
			send_work(p, PGPX_PINGER_PING, ping_sql, patience(p, &due));
	}
	else if (p->phase == PGPX_PINGER_IDLE && due.nreleases > 0 &&
			 due.release_at <= now)
	{
		p->nwork = pgpx_dlock_to_release(p->pool, p->pool_id, p->work);
		if (p->nwork > 0)
			send_work(p, PGPX_PINGER_RELEASE, release_sql, patience(p, &due));
	}
	else if (p->phase == PGPX_PINGER_NONE && now >= p->retry_at &&
			 (ping_at <= now || (due.nreleases > 0 && due.release_at <= now)))
	{
		int64		timeout = pgpx_pools[p->pool].opts.connect_timeout;

		if (!pgpx_pinger_open(p, Min(timeout, Max(patience(p, &due), 1000))))
		{
			pgpx_dlock_release_failed(p->pool, p->pool_id,
									  "the pool worker was restarted, and no session has told it yet how to connect");
			p->retry_at = now + RETRY_MAX_US;
		}
	}

	if (p->deadline != 0)
		return p->deadline;		/* what is under way comes first */
	if (due.nheld == 0 && due.nreleases == 0)
		return PG_INT64_MAX;	/* close_idle looks after it */
	if (due.nreleases > 0)
		ping_at = Min(ping_at, due.release_at);
	return p->phase == PGPX_PINGER_NONE ? Max(ping_at, p->retry_at) : ping_at;
}

/* Connections that nobody needs any more. */
static PgpxTime
close_idle(PgpxTime now)
{
	PgpxTime	next = PG_INT64_MAX;

	if (pingers == NULL)
		return next;
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPinger *p = pingers[i];

		if (p == NULL || p->phase == PGPX_PINGER_NONE)
			continue;
		if (p->phase == PGPX_PINGER_IDLE && now >= p->used_at + IDLE_US &&
			!pgpx_dlock_any(p->pool, p->pool_id))
			pgpx_pinger_drop(p);
		else if (p->phase == PGPX_PINGER_IDLE)
			next = Min(next, Max(p->used_at + IDLE_US, now + RETRY_MAX_US));
		else if (p->deadline != 0 && now >= p->deadline)
			pgpx_pinger_drop(p);	/* of a pool whose locks have all gone */
		else if (p->deadline != 0)
			next = Min(next, p->deadline);
	}
	return next;
}

PgpxTime
pgpx_pinger_run(void)
{
	uint32		changes = pg_atomic_read_u32(&pgpx_shared->dlocks_changed);
	PgpxTime	expires;
	uint32		pool_id;
	int			pool;

	if (changes == seen_changes && pgpx_now() < next_run)
		return next_run;
	seen_changes = changes;

	/* first what has run out: it must not be pinged any more */
	expires = pgpx_dlock_expire(pgpx_worker_index);
	next_run = expires == PG_INT64_MAX ? expires : pgpx_steady_to_now(expires);
	for (pool = 0;; pool++)
	{
		PgpxTime	next = next_run;

		pool = pgpx_dlock_next_pool(pgpx_worker_index, pool, &pool_id);
		if (pool < 0)
			break;
		next_run = Min(next, run_pool(get_pinger(pool, pool_id)));
	}
	next_run = Min(next_run, close_idle(pgpx_now()));
	return next_run;
}
