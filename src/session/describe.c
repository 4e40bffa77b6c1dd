/*-------------------------------------------------------------------------
 *
 * describe.c
 *	  The columns that a remote statement returns, without executing it.
 *
 * Only Parse and Describe are sent, and no Execute.  The remote infers the
 * types of parameters, so it needs no values for them.
 *
 *-------------------------------------------------------------------------
 */
#include "session/describe.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"

#include "base/debug_point.h"
#include "session/statement.h"

/* Schema and name of types; for an array those of its element type. */
static const char types_sql[] =
	"SELECT n.nspname::pg_catalog.text, coalesce(e.typname, t.typname)::pg_catalog.text, e.oid IS NOT NULL, o.at"
	" FROM pg_catalog.unnest($1::pg_catalog.oid[]) WITH ORDINALITY AS o(oid, at)"
	" JOIN pg_catalog.pg_type AS t ON t.oid OPERATOR(pg_catalog.=) o.oid"
	" LEFT JOIN pg_catalog.pg_type AS e ON e.typarray OPERATOR(pg_catalog.=) t.oid"
	" JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) coalesce(e.typnamespace, t.typnamespace)";

/* Copy a RowDescription, because its message does not outlive the call. */
static bool
note_columns(void *arg, const PgpxWireMessage *msg, const PgpxWire *wire)
{
	PgpxDescription *description = arg;
	int			n = pgpx_wire_parse_ncolumns(msg);
	PgpxColumn *columns;

	if (n < 0)
		return false;
	if (n > MaxTupleAttributeNumber)
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_COLUMNS),
				 errmsg("remote result has too many columns"),
				 errdetail("It has %d columns; a row can have %d.", n,
						   MaxTupleAttributeNumber)));
	columns = palloc(sizeof(PgpxColumn) * Max(n, 1));
	if (!pgpx_wire_parse_columns(msg, n, columns))
		return false;
	for (int i = 0; i < n; i++)
	{
		char	   *name = pnstrdup(columns[i].name, NAMEDATALEN - 1);

		columns[i].name = pgpx_text_clean(name);
	}
	description->n = n;
	description->columns = columns;
	return true;
}

static void
restore_nothing(void *arg)
{
}

/*
 * Return the OIDs of the types that have no name yet, as the text of an array;
 * NULL if there are none.  which[] receives the indexes of their columns, in
 * the same order.
 */
static char *
list_unnamed_types(const PgpxDescription *description, int *which)
{
	StringInfoData list;
	int			n = 0;

	initStringInfo(&list);
	for (int i = 0; i < description->n; i++)
		if (description->types[i] == NULL)
		{
			appendStringInfo(&list, "%s%u", n == 0 ? "{" : ",",
							 description->columns[i].type);
			which[n++] = i;
		}
	appendStringInfoChar(&list, '}');
	return n > 0 ? list.data : NULL;
}

/*
 * Name the types that are not built in.  Schema and name are quoted here,
 * because the user pastes them into SQL, and the remote may return any text.
 */
static void
name_remote_types(PgpxLease *lease, PgpxDescription *description)
{
	int		   *which = palloc0(sizeof(int) * Max(description->n, 1));
	const char *oids = list_unnamed_types(description, which);
	PgpxStatement statement = {types_sql, 1, &oids};
	TupleDesc	tupdesc = CreateTemplateTupleDesc(4);
	Tuplestorestate *store;
	TupleTableSlot *slot;
	PgpxRows   *tuples;

	if (oids == NULL)
		return;
	TupleDescInitEntry(tupdesc, 1, "schema", TEXTOID, -1, 0);
	TupleDescInitEntry(tupdesc, 2, "name", TEXTOID, -1, 0);
	TupleDescInitEntry(tupdesc, 3, "is_array", BOOLOID, -1, 0);
	TupleDescInitEntry(tupdesc, 4, "at", INT8OID, -1, 0);
	store = tuplestore_begin_heap(false, false, work_mem);
	tuples = pgpx_rows_begin(tupdesc, store, InvalidOid);
	(void) pgpx_exec(lease, &statement, pgpx_rows_sink(tuples));
	pgpx_rows_end(tuples);

	slot = MakeSingleTupleTableSlot(tupdesc, &TTSOpsMinimalTuple);
	while (tuplestore_gettupleslot(store, true, false, slot))
	{
		int64		at;
		char	   *schema;
		char	   *name;

		slot_getallattrs(slot);
		if (slot->tts_isnull[0] || slot->tts_isnull[1] || slot->tts_isnull[2] ||
			slot->tts_isnull[3])
			continue;
		at = DatumGetInt64(slot->tts_values[3]);
		if (at < 1 || at > description->n)
			continue;
		schema = TextDatumGetCString(slot->tts_values[0]);
		name = TextDatumGetCString(slot->tts_values[1]);
		name = quote_qualified_identifier(schema, name);
		description->types[which[at - 1]] =
			DatumGetBool(slot->tts_values[2]) ? psprintf("%s[]", name) : name;
	}
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(store);
}

void
pgpx_describe(PgpxLease *lease, const PgpxStatement *statement,
			  PgpxDescription *description)
{
	PgpxSink	sink = {
		.columns = note_columns,
		.restore = restore_nothing,
		.arg = description,
	};
	PgpxRun		run = {
		.lease = lease,
		.statement = statement,
		.sink = &sink,
		.describe = true,
	};

	description->n = 0;
	pgpx_run_check(lease, statement);
	PG_TRY();
	{
		pgpx_run_send(&run, false);
		pgpx_run_read(&run);
	}
	PG_CATCH();
	{
		pgpx_run_failed(&run, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	(void) pgpx_run_end(&run);

	description->types = palloc0(sizeof(char *) * Max(description->n, 1));
	for (int i = 0; i < description->n; i++)
		description->types[i] =
			pgpx_column_list_type(description->columns[i].type,
								  description->columns[i].typmod);
	name_remote_types(lease, description);
}
