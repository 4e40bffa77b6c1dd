/*-------------------------------------------------------------------------
 *
 * remote_statement.c
 *	  The statements of a remote transaction: how they are sent and executed,
 *	  and which of them are prepared.
 *
 * The second execution of a text prepares it, for the length of the remote
 * transaction.  The reset at the end of the lease drops it.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/remote_transaction.h"

#include "access/xact.h"

#include "base/debug_point.h"

/* A longer text is not prepared. */
#define STATEMENT_MAX (1024 * 1024)

void
pgpx_remote_raise(const PgpxRemoteError *error, const char *sql)
{
	pgpx_remote_error_report(ERROR, error,
							 psprintf("remote SQL command: %s", sql));
	pg_unreachable();
}

void
pgpx_remote_close_later(PgpxRemoteTransaction *rt, const char *name)
{
	MemoryContext old = MemoryContextSwitchTo(rt->cxt);

	rt->closes = lappend(rt->closes, pstrdup(name));
	MemoryContextSwitchTo(old);
}

/*
 * Return the entry of a statement.  If there is none, return an empty entry,
 * whose sql is NULL.  If all entries are used, the least recently used one
 * becomes empty.
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
			pgpx_remote_close_later(rt, oldest->name);
		pfree(oldest->sql);
		memset(oldest, 0, sizeof(*oldest));
	}
	return oldest;
}

/*
 * Choose how to send a statement: unnamed at its first use, and
 * prepared from then on.  Return the entry to mark as prepared when the
 * statement was sent; NULL: none.
 */
static PgpxRemoteStatement *
choose_statement(PgpxRemoteTransaction *rt, PgpxPipeline *p)
{
	const char *sql = p->statement->sql;
	PgpxRemoteStatement *s;

	p->name = "";
	p->parse = true;
	if (!rt->may_prepare || strlen(sql) > STATEMENT_MAX)
		return NULL;
	s = find_statement(rt, sql);
	s->last_used = ++rt->nuses;
	if (s->sql == NULL)
	{
		s->sql = MemoryContextStrdup(rt->cxt, sql);
		return NULL;
	}
	if (s->prepared)
	{
		p->parse = false;
		p->name = s->name + 1;
		p->describe = !p->can_omit_describe;
		return NULL;
	}

	/* after a failure the statement may exist, so the name is not reused */
	if (s->name[0] != '\0')
		pgpx_remote_close_later(rt, s->name);
	snprintf(s->name, sizeof(s->name), "Ss%u", ++rt->nnames);
	p->name = s->name + 1;
	return s;
}

void
pgpx_remote_forget_prepared(PgpxRemoteTransaction *rt, const char *sql)
{
	for (int i = 0; i < PGPX_REMOTE_STATEMENTS; i++)
	{
		PgpxRemoteStatement *s = &rt->statements[i];

		if (sql == NULL || (s->sql != NULL && strcmp(s->sql, sql) == 0))
			s->prepared = false;
	}
}

/*
 * Return the command that begins a remote transaction with the properties of the
 * local one.
 */
static const char *
start_command(void)
{
	const char *isolation = IsolationIsSerializable() ? "SERIALIZABLE" :
		"REPEATABLE READ";

	return psprintf(PGPX_REMOTE_START " ISOLATION LEVEL %s%s%s", isolation,
					pgpx_remote_top_is_read_only() ? " READ ONLY" : "",
					XactDeferrable ? " DEFERRABLE" : "");
}

void
pgpx_remote_collect_commands(PgpxRemoteTransaction *rt,
							 const PgpxServerSpec *spec, PgpxPipeline *p,
							 PgpxRemoteNesting *after)
{
	PgpxRemoteNesting *now = &rt->nesting;
	int			level = GetCurrentTransactionNestLevel();
	const char **commands = palloc(sizeof(char *) * (level + 7));
	int			n = 0;

	*after = (PgpxRemoteNesting){
		.begun = true,
		.depth = level,
		.target_depth = level,
		.read_only = now->read_only,
	};
	if (!now->begun)
	{
		after->read_only = pgpx_remote_top_is_read_only();
		commands[n++] = start_command();

		/*
		 * The other settings are in the startup packet (server_spec.c).  Only
		 * a change of extra_float_digits by start commands or an earlier lease
		 * is not reported.
		 */
		commands[n++] = "SET LOCAL search_path = pg_catalog";
		commands[n++] = "SET LOCAL timezone = 'GMT'";
		if (!pgpx_server_spec_can_keep_settings(spec))
			commands[n++] = "SET LOCAL extra_float_digits = 3";
		now->depth = now->target_depth = 1;
		now->rollback_level = 0;
	}
	if (now->rollback_level > 0)
		commands[n++] = psprintf(PGPX_REMOTE_ROLLBACK_TO,
								 now->rollback_level);
	if (now->target_depth < now->depth)
		commands[n++] = psprintf(PGPX_REMOTE_RELEASE,
								 now->target_depth + 1);
	for (int i = now->target_depth + 1; i <= level; i++)
		commands[n++] = psprintf("SAVEPOINT s%d", i);
	if (XactReadOnly && !after->read_only)
		commands[n++] = "SET TRANSACTION READ ONLY";
	p->nbefore = n;
	p->before = commands;
}

/* Add the portals and prepared statements that are to be closed. */
static void
collect_closes(PgpxRemoteTransaction *rt, PgpxPipeline *p)
{
	const char **closes;
	ListCell   *lc;

	if (rt->closes == NIL)
		return;
	closes = palloc(sizeof(char *) * list_length(rt->closes));
	foreach(lc, rt->closes)
		closes[p->ncloses++] = lfirst(lc);
	p->closes = closes;
}

void
pgpx_remote_send(PgpxRemoteTransaction *rt, PgpxRun *run, PgpxPipeline *p)
{
	PgpxRemoteStatement *prepared = NULL;
	PgpxRemoteNesting after;

	if (p->name == NULL && !p->resume && !p->describe_only)
		prepared = choose_statement(rt, p);
	pgpx_remote_collect_commands(rt, rt->lease->spec, p, &after);
	collect_closes(rt, p);
	resetStringInfo(&rt->sent);
	appendStringInfoString(&rt->sent, p->statement->sql);
	resetStringInfo(&rt->commands);
	rt->ncommands = p->nbefore;
	for (int i = 0; i < p->nbefore; i++)
		appendBinaryStringInfo(&rt->commands, p->before[i],
							   strlen(p->before[i]) + 1);
	run->lease = rt->lease;
	run->pipeline = p;
	pgpx_run_send(run, false);

	/* an error above skips this, because the remote has executed nothing */
	rt->nesting = after;
	rt->failure.set = false;
	list_free_deep(rt->closes);
	rt->closes = NIL;
	if (prepared != NULL)
		prepared->prepared = true;
	PGPX_DEBUG_POINT("fdw_sent");
}

/*
 * Send a pipeline, wait for the answer, and raise the remote's error.  The caller
 * must have called pgpx_remote_prepare_send.
 */
static void
run_pipeline(PgpxRemoteTransaction *rt, PgpxRun *run, PgpxPipeline *p)
{
	PG_TRY();
	{
		pgpx_remote_send(rt, run, p);
		rt->reading = true;
		pgpx_run_read(run, true);
		rt->reading = false;
	}
	PG_CATCH();
	{
		rt->reading = false;
		pgpx_run_failed(run, true);
		pgpx_remote_forget_prepared(rt, run->statement->sql);
		PG_RE_THROW();
	}
	PG_END_TRY();
	pgpx_remote_end_statement(rt, run);
	if (run->error.set)
		pgpx_remote_raise(&run->error, rt->sent.data);
}

uint64
pgpx_remote_execute(PgpxRemoteTransaction *rt, const PgpxStatement *statement)
{
	PgpxRun		run = {.lease = rt->lease, .statement = statement};
	PgpxPipeline p = {
		.statement = statement,
		.portal = "",
		.describe = true,
		.can_omit_describe = true,
	};

	pgpx_remote_prepare_send(rt);
	pgpx_run_check(rt->lease, statement);
	run_pipeline(rt, &run, &p);
	return run.rows;
}

void
pgpx_remote_describe(PgpxRemoteTransaction *rt, const PgpxStatement *statement,
					 const PgpxSink *sink, uint64 rows)
{
	PgpxPipeline p = {.statement = statement, .describe_only = true};
	PgpxRun		run = {
		.lease = rt->lease,
		.statement = statement,
		.sink = sink,
		.describe = true,
	};

	pgpx_prediction_begin(&run);
	run_pipeline(rt, &run, &p);
	run.rows = rows;
	pgpx_prediction_end(&run);
}
