/*-------------------------------------------------------------------------
 *
 * remote_statement.c
 *	  The prepared statements of a remote transaction.
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
