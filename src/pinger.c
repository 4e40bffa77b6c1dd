/*-------------------------------------------------------------------------
 *
 * pinger.c
 *	  Pings for the locks that this server holds, and releases.
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
#include "pinger.h"

#include <sys/epoll.h>

#include "lib/stringinfo.h"
#include "utils/memutils.h"

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
		p->wanted = MemoryContextAllocHuge(TopMemoryContext,
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
		p->wanted[i] = false;
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
			p->wanted[i] = release &&
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
			pgpx_dlock_released(&p->work[i], p->ours[i], p->wanted[i]);
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
	if (pgpx_libpq_keeps_much(&p->hearing, p->pg, false))
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
pgpx_pinger_conninfo_came(void)
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
