/*-------------------------------------------------------------------------
 *
 * remote_statement.c
 *	  The statements of a remote transaction: execution, and which of them
 *	  are prepared.
 *
 * A text that is executed repeatedly in a remote transaction becomes a
 * prepared statement.  The reset at the end of the lease drops it.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/remote_transaction.h"

#include "access/xact.h"

/* A longer text is not prepared. */
#define STATEMENT_MAX (1024 * 1024)

void
pgpx_remote_close(PgpxRemoteTransaction *rt, const char *name)
{
	MemoryContext old = MemoryContextSwitchTo(rt->cxt);

	rt->closes = lappend(rt->closes, pstrdup(name));
	MemoryContextSwitchTo(old);
}

/*
 * Find the entry of a statement's text.  If there is none, returns an empty
 * entry, whose sql is NULL; evicts the least recently used one if all are used.
 */
static PgpxRemoteStatement *
find_statement(PgpxRemoteTransaction *rt, const char *sql)
{
	PgpxRemoteStatement *oldest = &rt->statements[0];

	for (int i = 0; i < PGPX_REMOTE_STATEMENTS; i++)
	{
		PgpxRemoteStatement *s = &rt->statements[i];

		if (s->sql != NULL && strcmp(s->sql, sql) == 0)
			return s;
		if (oldest->sql != NULL &&
			(s->sql == NULL || s->last_used < oldest->last_used))
			oldest = s;
	}
	if (oldest->sql != NULL)
	{
		if (oldest->name[0] != '\0')
			pgpx_remote_close(rt, oldest->name);
		pfree(oldest->sql);
		memset(oldest, 0, sizeof(*oldest));
	}
	return oldest;
}

PgpxRemoteStatement *
pgpx_remote_statement_choose(PgpxRemoteTransaction *rt, PgpxPipeline *p)
{
	const char *sql = p->statement->sql;
	int			level = GetCurrentTransactionNestLevel();
	PgpxRemoteStatement *s;

	p->name = "";
	p->parse = true;
	if (!rt->may_prepare || strlen(sql) > STATEMENT_MAX)
		return NULL;
	s = find_statement(rt, sql);
	s->last_used = ++rt->nuses;
	s->level = s->level == 0 ? level : Min(s->level, level);
	if (s->sql == NULL)
	{
		s->sql = MemoryContextStrdup(rt->cxt, sql);
		return NULL;
	}
	if (s->prepared)
	{
		p->parse = false;
		p->name = s->name + 1;
		p->describe = !p->known;
		return NULL;
	}

	/* after a failure the statement may exist, so the name is not reused */
	if (s->name[0] != '\0')
		pgpx_remote_close(rt, s->name);
	snprintf(s->name, sizeof(s->name), "Ss%u", ++rt->nnames);
	p->name = s->name + 1;
	return s;
}

void
pgpx_remote_forget_prepared(PgpxRemoteTransaction *rt, const char *sql)
{
	for (int i = 0; i < PGPX_REMOTE_STATEMENTS; i++)
		if (rt->statements[i].sql != NULL &&
			strcmp(rt->statements[i].sql, sql) == 0)
			rt->statements[i].prepared = false;
}

void
pgpx_remote_statements_end(PgpxRemoteTransaction *rt, int level,
						   bool rolled_back)
{
	for (int i = 0; i < PGPX_REMOTE_STATEMENTS; i++)
	{
		PgpxRemoteStatement *s = &rt->statements[i];

		if (s->sql == NULL || s->level < level)
			continue;
		if (rolled_back)
			s->prepared = false;
		s->level = level - 1;
	}
}

/*
 * Send a pipeline, wait for the answer, and process it.  Before, the caller
 * has called pgpx_remote_prepare_send.
 */
static void
run_pipeline(PgpxRemoteTransaction *rt, PgpxRun *run, PgpxPipeline *p,
			 PgpxPrediction *prediction, bool choose, bool writes)
{
	PG_TRY();
	{
		pgpx_remote_send(rt, run, p, choose, writes);
		rt->reading = true;
		pgpx_run_read(run);
		rt->reading = false;
	}
	PG_CATCH();
	{
		rt->reading = false;
		pgpx_run_failed(run, true);
		pgpx_prediction_failed(prediction, run);
		pgpx_remote_forget_prepared(rt, run->statement->sql);
		PG_RE_THROW();
	}
	PG_END_TRY();
	pgpx_remote_answered(rt, run);
}

uint64
pgpx_remote_execute(PgpxRemoteTransaction *rt, const PgpxStatement *statement,
					const PgpxSink *sink, bool writes)
{
	PgpxPrediction prediction;
	PgpxPipeline p = {
		.statement = statement,
		.portal = "",
		.describe = true,
		.known = sink == NULL,
	};
	PgpxRun		run = {
		.lease = rt->lease,
		.statement = statement,
		.sink = sink,
	};

	pgpx_remote_prepare_send(rt);
	pgpx_run_check(rt->lease, statement);
	pgpx_prediction_begin(&prediction, &run);
	p.nformats = run.nformats;
	p.formats = run.formats;
	run_pipeline(rt, &run, &p, &prediction, true, writes);
	pgpx_prediction_end(&prediction, &run);
	if (run.error.set)
		pgpx_remote_raise(&run.error, statement->sql);
	return run.rows;
}

void
pgpx_remote_describe(PgpxRemoteTransaction *rt, const PgpxStatement *statement,
					 const PgpxSink *sink, uint64 rows)
{
	PgpxPrediction prediction;
	PgpxPipeline p = {
		.statement = statement,
		.describe_only = true,
	};
	PgpxRun		run = {
		.lease = rt->lease,
		.statement = statement,
		.sink = sink,
		.describe = true,
	};

	pgpx_prediction_begin(&prediction, &run);
	run_pipeline(rt, &run, &p, &prediction, false, false);
	run.rows = rows;
	pgpx_prediction_end(&prediction, &run);
	if (run.error.set)
		pgpx_remote_raise(&run.error, statement->sql);
}
