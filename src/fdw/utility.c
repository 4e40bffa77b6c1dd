/*-------------------------------------------------------------------------
 *
 * utility.c
 *	  Utility commands on foreign tables: ANALYZE and IMPORT FOREIGN SCHEMA.
 *
 * Both query the remote catalogs.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/utility.h"

#include <math.h>

#include "access/htup_details.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "nodes/makefuncs.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/sampling.h"

#include "fdw/handler.h"
#include "fdw/remote_scan.h"
#include "fdw/remote_sql.h"

/* ------------------------------------------------------------------------
 * Queries of remote catalogs
 * ------------------------------------------------------------------------
 */

/* Begin a scan without parameters, and send its statement. */
static PgpxRemoteScan *
open_scan(const PgpxScanSource *source)
{
	PgpxRemoteScan *scan = pgpx_remote_scan_begin(source);

	(void) pgpx_remote_transaction_get(source->use, NULL);
	(void) pgpx_remote_scan_open(scan, 0, NULL);
	return scan;
}

PgpxRemoteScan *
pgpx_open_text_scan(PgpxRemoteUse *use, const char *sql, int ncolumns)
{
	TupleDesc	tupdesc = CreateTemplateTupleDesc(ncolumns);

	for (int i = 1; i <= ncolumns; i++)
		TupleDescInitEntry(tupdesc, i, "text", TEXTOID, -1, 0);
	TupleDescFinalize(tupdesc);
	return open_scan(&(PgpxScanSource){
		.use = use,
		.sql = sql,
		.tupdesc = tupdesc,
		.fetch_size = PGPX_FETCH_ALL,
	});
}

List *
pgpx_text_query(PgpxRemoteUse *use, const char *sql, int ncolumns,
				int nrequired)
{
	PgpxRemoteScan *scan = pgpx_open_text_scan(use, sql, ncolumns);
	List	   *rows = NIL;
	PgpxRowValues values;

	while (pgpx_remote_scan_next(scan, &values) == PGPX_RUN_STOPPED)
	{
		char	  **row = palloc0(sizeof(char *) * ncolumns);
		bool		is_complete = true;

		for (int i = 0; i < ncolumns; i++)
		{
			if (!values.nulls[i])
				row[i] = TextDatumGetCString(values.values[i]);
			else if (i < nrequired)
				is_complete = false;
		}
		if (is_complete)
			rows = lappend(rows, row);
	}
	pgpx_remote_scan_end(scan);
	return rows;
}

/* ------------------------------------------------------------------------
 * ANALYZE
 *
 * The rows are read as the table's owner.  With option analyze_sampling the
 * remote server returns a sample; without it, all rows are read.  In both cases
 * acquire_rows selects the requested number of rows at random from the rows
 * that it reads.  import_statistics.c has the option import_stats.
 * ------------------------------------------------------------------------
 */

PgpxRemoteUse
pgpx_table_use(Relation rel)
{
	return (PgpxRemoteUse){
		.server = GetForeignServerIdByRelId(RelationGetRelid(rel)),
		.user = rel->rd_rel->relowner,
		.why = RelationGetRelationName(rel),
	};
}

void
pgpx_append_regclass(StringInfo buf, Relation rel)
{
	StringInfoData name;

	initStringInfo(&name);
	pgpx_deparse_relation(&name, rel);
	appendStringInfo(buf, "%s::pg_catalog.regclass",
					 quote_literal_cstr(name.data));
}

/*
 * Append a clause with which the remote server returns a sample of about
 * targrows rows.  Return the remote's estimate of the number of rows in the
 * table, or 0 if no clause was appended, so that all rows are read.
 */
static double
append_sampling(StringInfo buf, Relation rel, PgpxRemoteUse *use, int targrows)
{
	const char *method = pgpx_table_option(RelationGetRelid(rel),
										   "analyze_sampling", "auto");
	List	   *rows;
	char	  **row;
	StringInfoData sql;
	double		reltuples;
	char		relkind;
	double		fraction;

	if (strcmp(method, "off") == 0)
		return 0;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT reltuples, relkind FROM pg_catalog.pg_class WHERE oid = ");
	pgpx_append_regclass(&sql, rel);
	rows = pgpx_text_query(use, sql.data, 2, 2);
	if (rows == NIL)
		return 0;
	row = linitial(rows);
	reltuples = strtod(row[0], NULL);
	relkind = row[1][0];

	/* the number of rows is unknown (negative), small, or invalid */
	if (!(reltuples > targrows) || isinf(reltuples))
		return 0;
	if (strcmp(method, "auto") == 0)
		method = relkind == RELKIND_RELATION || relkind == RELKIND_MATVIEW ||
			relkind == RELKIND_PARTITIONED_TABLE ? "bernoulli" : "random";
	fraction = targrows / reltuples;
	if (strcmp(method, "random") == 0)
		appendStringInfo(buf, " WHERE pg_catalog.random() < %f", fraction);
	else
		appendStringInfo(buf, " TABLESAMPLE %s(%f)", method, 100 * fraction);
	return reltuples;
}

/*
 * Read all rows of a scan, and choose targrows of them at random (Vitter's
 * algorithm, as in analyze.c).  Return the number of rows read.  Set *n to the
 * number of rows chosen.
 */
static double
choose_rows(PgpxRemoteScan *scan, TupleDesc tupdesc, HeapTuple *rows,
			int targrows, int *n)
{
	ReservoirStateData state;
	double		nread = 0;
	double		skip = -1;
	PgpxRowValues row;

	*n = 0;
	reservoir_init_selection_state(&state, targrows);
	while (pgpx_remote_scan_next(scan, &row) == PGPX_RUN_STOPPED)
	{
		int			at = -1;

		CHECK_FOR_INTERRUPTS();
		nread++;
		if (*n < targrows)
			at = (*n)++;
		else
		{
			if (skip < 0)
				skip = reservoir_get_next_S(&state, nread, targrows);
			if (skip <= 0)
			{
				at = (int) (targrows * sampler_random_fract(&state.randstate));
				heap_freetuple(rows[at]);
			}
			skip--;
		}
		if (at >= 0)
			rows[at] = pgpx_tuple_form(tupdesc, row);
	}
	return nread;
}

/* The AcquireSampleRowsFunc of ANALYZE. */
static int
acquire_rows(Relation rel, int elevel, HeapTuple *rows, int targrows,
			 double *totalrows, double *totaldeadrows)
{
	TupleDesc	tupdesc = RelationGetDescr(rel);
	PgpxRemoteUse use = pgpx_table_use(rel);
	List	   *attnums = pgpx_table_columns(rel);
	StringInfoData sql;
	PgpxRemoteScan *scan;
	double		reltuples;
	double		nread;
	int			n;

	*totaldeadrows = 0;
	if (pgpx_utility_import_in_sample(rel, elevel, totalrows))
		return 0;
	initStringInfo(&sql);
	appendStringInfoString(&sql, attnums == NIL ? "SELECT NULL" : "SELECT ");
	pgpx_deparse_columns(&sql, rel, attnums, "");
	appendStringInfoString(&sql, " FROM ");
	pgpx_deparse_relation(&sql, rel);
	reltuples = append_sampling(&sql, rel, &use, targrows);
	scan = open_scan(&(PgpxScanSource){
		.use = &use,
		.sql = sql.data,
		.tupdesc = tupdesc,
		.attnums = attnums,
		.where = pgpx_table_context,
		.where_arg = rel,
		.fetch_size = pgpx_table_int_option(RelationGetRelid(rel), "fetch_size",
											PGPX_FETCH_GROWING),
	});
	nread = choose_rows(scan, tupdesc, rows, targrows, &n);
	pgpx_remote_scan_end(scan);

	*totalrows = reltuples > 0 ? reltuples : nread;
	elog(elevel, "\"%s\": table contains %.0f rows, %d rows in sample",
		 RelationGetRelationName(rel), *totalrows, n);
	return n;
}

bool
pgpx_utility_analyze(Relation rel, AcquireSampleRowsFunc *func,
					 BlockNumber *totalpages)
{
	PgpxRemoteUse use = pgpx_table_use(rel);
	StringInfoData sql;
	List	   *rows;

	*func = acquire_rows;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT pg_catalog.pg_relation_size(");
	pgpx_append_regclass(&sql, rel);
	appendStringInfo(&sql, ") / %d", BLCKSZ);
	rows = pgpx_text_query(&use, sql.data, 1, 1);
	*totalpages = 0;
	if (rows != NIL)
		*totalpages = strtoul(((char **) linitial(rows))[0], NULL, 10);
	return true;
}

/* ------------------------------------------------------------------------
 * IMPORT FOREIGN SCHEMA
 *
 * The options and the commands are those of postgres_fdw.  The remote
 * search_path is pg_catalog, so the remote qualifies the names of types and
 * functions in other schemas.
 * ------------------------------------------------------------------------
 */

/* Options of IMPORT FOREIGN SCHEMA. */
typedef struct Import
{
	bool		collate;
	bool		default_value;
	bool		generated;
	bool		not_null;
} Import;

/* Columns of the query in read_tables. */
enum
{
	C_TABLE,
	C_NAME,						/* NULL: the table has no columns */
	C_TYPE,
	C_NOT_NULL,
	C_DEFAULT,
	C_GENERATED,
	C_COLLATION,
	C_COLLATION_SCHEMA,
	C_COUNT,
};

static void
read_options(List *options, Import *import)
{
	struct
	{
		const char *name;
		bool	   *value;
	}			known[] = {
		{"import_collate", &import->collate},
		{"import_default", &import->default_value},
		{"import_generated", &import->generated},
		{"import_not_null", &import->not_null},
	};
	ListCell   *lc;

	import->collate = import->generated = import->not_null = true;
	import->default_value = false;
	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		int			i = 0;

		while (i < lengthof(known) && strcmp(def->defname, known[i].name) != 0)
			i++;
		if (i == lengthof(known))
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("invalid option \"%s\"", def->defname),
					 errhint("Valid options in this context are: import_collate, import_default, import_generated, import_not_null.")));
		*known[i].value = defGetBoolean(def);
	}
}

/*
 * Check that the remote schema exists.  Return whether the remote server has
 * generated columns (from 12 on).
 */
static bool
check_schema(PgpxRemoteUse *use, const char *schema, const char *server)
{
	List	   *rows;
	char	   *sql;

	sql = psprintf("SELECT (SELECT 1 FROM pg_catalog.pg_attribute"
				   " WHERE attrelid = 'pg_catalog.pg_attribute'::pg_catalog.regclass"
				   " AND attname = 'attgenerated')"
				   " FROM pg_catalog.pg_namespace WHERE nspname = %s",
				   quote_literal_cstr(schema));
	rows = pgpx_text_query(use, sql, 1, 0);
	if (rows == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_SCHEMA_NOT_FOUND),
				 errmsg("schema \"%s\" is not present on foreign server \"%s\"",
						schema, server)));
	return ((char **) linitial(rows))[0] != NULL;
}

/*
 * Append the condition for LIMIT TO or EXCEPT.  The local server checks the
 * result again.
 */
static void
append_table_filter(StringInfo buf, const ImportForeignSchemaStmt *stmt)
{
	const char *separator = "";
	ListCell   *lc;

	if (stmt->list_type != FDW_IMPORT_SCHEMA_LIMIT_TO)
		appendStringInfoString(buf, " AND NOT c.relispartition");
	if (stmt->list_type == FDW_IMPORT_SCHEMA_ALL)
		return;
	appendStringInfo(buf, " AND c.relname %sIN (",
					 stmt->list_type == FDW_IMPORT_SCHEMA_EXCEPT ? "NOT " : "");
	foreach(lc, stmt->table_list)
	{
		const char *name = lfirst_node(RangeVar, lc)->relname;

		appendStringInfo(buf, "%s%s", separator, quote_literal_cstr(name));
		separator = ", ";
	}
	appendStringInfoChar(buf, ')');
}

/* Read the tables of the schema with their columns. */
static List *
read_tables(PgpxRemoteUse *use, const ImportForeignSchemaStmt *stmt,
			bool has_generated)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT c.relname, a.attname,"
					 " pg_catalog.format_type(a.atttypid, a.atttypmod),"
					 " a.attnotnull, pg_catalog.pg_get_expr(d.adbin, d.adrelid),"
					 " %s, l.collname, ln.nspname"
					 " FROM pg_catalog.pg_class c"
					 " JOIN pg_catalog.pg_namespace n ON c.relnamespace = n.oid"
					 " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid"
					 " AND a.attnum > 0 AND NOT a.attisdropped"
					 " LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid"
					 " AND d.adnum = a.attnum"
					 " LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation"
					 " LEFT JOIN pg_catalog.pg_namespace ln"
					 " ON ln.oid = l.collnamespace"
					 " WHERE c.relkind IN ("
					 CppAsString2(RELKIND_RELATION) ","
					 CppAsString2(RELKIND_VIEW) ","
					 CppAsString2(RELKIND_FOREIGN_TABLE) ","
					 CppAsString2(RELKIND_MATVIEW) ","
					 CppAsString2(RELKIND_PARTITIONED_TABLE) ")"
					 " AND n.nspname = %s",
					 has_generated ? "a.attgenerated" : "NULL",
					 quote_literal_cstr(stmt->remote_schema));
	append_table_filter(&sql, stmt);
	appendStringInfoString(&sql, " ORDER BY c.relname, a.attnum");
	return pgpx_text_query(use, sql.data, C_COUNT, 1);
}

/* The function format_type returns "???" for a type that was dropped. */
static bool
has_dropped_type(char **row)
{
	return row[C_TYPE] == NULL || strcmp(row[C_TYPE], "???") == 0;
}

/* A text that the remote server has sent as part of a column's definition. */
typedef struct RemoteText
{
	const char *table;
	const char *column;
	const char *sql;			/* the text that is parsed */
} RemoteText;

/*
 * Error context callback: name the column, and show the position of a syntax
 * error in the text that was parsed, because it is not one of the command.
 */
static void
add_column_context(void *arg)
{
	const RemoteText *text = arg;
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery(text->sql);
	}
	errcontext("definition of column \"%s\" of remote table \"%s\"",
			   text->column, text->table);
}

/*
 * Parse a text that is the target list of a SELECT.  Return whether it is
 * exactly one expression.
 */
static bool
is_expression(const char *select)
{
	List	   *statements = raw_parser(select, RAW_PARSE_DEFAULT);
	SelectStmt *plain = makeNode(SelectStmt);
	RawStmt    *raw = linitial_node(RawStmt, statements);
	ResTarget  *target;

	if (list_length(statements) != 1 || raw->stmt_len != 0 ||
		!IsA(raw->stmt, SelectStmt))
		return false;
	plain->targetList = ((SelectStmt *) raw->stmt)->targetList;
	if (list_length(plain->targetList) != 1 || !equal(raw->stmt, plain))
		return false;
	target = linitial_node(ResTarget, plain->targetList);
	return target->name == NULL && target->indirection == NIL;
}

/*
 * Return a text of the remote server for a local command.  A line feed ends a
 * comment in it.  Raise 42601 if it is not exactly one name of a type, or one
 * expression: it could otherwise end the definition of the column and continue
 * with other ones, or with another command.
 */
static const char *
checked_text(char **row, int column)
{
	RemoteText	text = {
		.table = row[C_TABLE],
		.column = row[C_NAME],
		.sql = row[column],
	};
	ErrorContextCallback context = {
		.previous = error_context_stack,
		.callback = add_column_context,
		.arg = &text,
	};

	error_context_stack = &context;
	if (column == C_TYPE)
		(void) pgpx_parse_type_name(text.sql);
	else
	{
		text.sql = psprintf("SELECT %s", text.sql);
		if (!is_expression(text.sql))
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("remote server has sent a column default that is not an expression")));
	}
	error_context_stack = context.previous;
	return strstr(row[column], "--") == NULL ? row[column] :
		psprintf("%s\n", row[column]);
}

/* Append the definition of a column to CREATE FOREIGN TABLE. */
static void
append_column(StringInfo buf, const Import *import, char **row)
{
	const char *name = row[C_NAME];
	const char *not_null = row[C_NOT_NULL];
	const char *generated = row[C_GENERATED];
	const char *collation = row[C_COLLATION];
	const char *schema = row[C_COLLATION_SCHEMA];
	char		kind = generated != NULL ? generated[0] : '\0';

	appendStringInfo(buf, "  %s %s OPTIONS (column_name %s)",
					 quote_identifier(name), checked_text(row, C_TYPE),
					 quote_literal_cstr(name));
	if (import->collate && collation != NULL && schema != NULL)
		appendStringInfo(buf, " COLLATE %s.%s", quote_identifier(schema),
						 quote_identifier(collation));
	if (import->default_value && row[C_DEFAULT] != NULL && kind == '\0')
		appendStringInfo(buf, " DEFAULT (%s)", checked_text(row, C_DEFAULT));
	if (import->generated && row[C_DEFAULT] != NULL &&
		kind == ATTRIBUTE_GENERATED_STORED)
		appendStringInfo(buf, " GENERATED ALWAYS AS (%s) STORED",
						 checked_text(row, C_DEFAULT));
	if (import->not_null && not_null != NULL && not_null[0] == 't')
		appendStringInfoString(buf, " NOT NULL");
}

List *
pgpx_utility_import(ImportForeignSchemaStmt *stmt, Oid server)
{
	const char *name = GetForeignServer(server)->servername;
	List	   *commands = NIL;
	PgpxRemoteUse use = {
		.server = server,
		.user = GetUserId(),
		.why = "IMPORT FOREIGN SCHEMA",
	};
	List	   *rows;
	Import		import;
	int			i = 0;

	read_options(stmt->options, &import);
	rows = read_tables(&use, stmt,
					   check_schema(&use, stmt->remote_schema, name));
	while (i < list_length(rows))
	{
		char	  **row = list_nth(rows, i);
		const char *table = row[C_TABLE];
		const char *separator = "";
		bool		was_dropped = false;
		StringInfoData buf;

		initStringInfo(&buf);
		appendStringInfo(&buf, "CREATE FOREIGN TABLE %s (\n",
						 quote_identifier(table));
		do
		{
			if (row[C_NAME] == NULL)
				continue;
			was_dropped |= has_dropped_type(row);
			if (was_dropped)
				continue;
			appendStringInfoString(&buf, separator);
			separator = ",\n";
			append_column(&buf, &import, row);
		} while (++i < list_length(rows) &&
				 strcmp((row = list_nth(rows, i))[C_TABLE], table) == 0);
		appendStringInfo(&buf,
						 "\n) SERVER %s\nOPTIONS (schema_name %s, table_name %s);",
						 quote_identifier(name),
						 quote_literal_cstr(stmt->remote_schema),
						 quote_literal_cstr(table));
		if (!was_dropped)
			commands = lappend(commands, buf.data);
		else
			ereport(NOTICE,
					(errmsg("table \"%s\" is not imported", table),
					 errdetail("The type of a column was dropped while the catalogs were read.")));
	}
	return commands;
}
