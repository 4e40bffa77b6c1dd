/*-------------------------------------------------------------------------
 *
 * import.c
 *	  IMPORT FOREIGN SCHEMA: the callback.
 *
 * The options and the commands are those of postgres_fdw.  The remote
 * search_path is pg_catalog, so the remote qualifies the names of types and
 * functions in other schemas.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/import.h"

#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "utils/builtins.h"

#include "fdw/text_query.h"

typedef struct Import
{
	bool		collate;
	bool		default_value;
	bool		generated;
	bool		not_null;
} Import;

/* Columns of the query. */
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
	ListCell   *lc;

	import->collate = import->generated = import->not_null = true;
	import->default_value = false;
	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, "import_collate") == 0)
			import->collate = defGetBoolean(def);
		else if (strcmp(def->defname, "import_default") == 0)
			import->default_value = defGetBoolean(def);
		else if (strcmp(def->defname, "import_generated") == 0)
			import->generated = defGetBoolean(def);
		else if (strcmp(def->defname, "import_not_null") == 0)
			import->not_null = defGetBoolean(def);
		else
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("invalid option \"%s\"", def->defname),
					 errhint("Valid options in this context are: import_collate, import_default, import_generated, import_not_null.")));
	}
}

/*
 * Check that the remote schema exists.  Returns whether the remote server has
 * generated columns (from 12 on).
 */
static bool
check_schema(PgpxRemoteTransaction *rt, const char *schema, const char *server)
{
	PgpxTextRows *rows;
	char	   *sql;

	sql = psprintf("SELECT (SELECT 1 FROM pg_catalog.pg_attribute"
				   " WHERE attrelid = 'pg_catalog.pg_attribute'::pg_catalog.regclass"
				   " AND attname = 'attgenerated')"
				   " FROM pg_catalog.pg_namespace WHERE nspname = %s",
				   quote_literal_cstr(schema));
	rows = pgpx_text_query(rt, sql, 1);
	if (rows->n != 1)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_SCHEMA_NOT_FOUND),
				 errmsg("schema \"%s\" is not present on foreign server \"%s\"",
						schema, server)));
	return pgpx_text_value(rows, 0, 0) != NULL;
}

/*
 * Append the condition for LIMIT TO and EXCEPT.  The local server checks the
 * result again.
 */
static void
append_tables(StringInfo buf, const ImportForeignSchemaStmt *stmt)
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
static PgpxTextRows *
read_tables(PgpxRemoteTransaction *rt, const ImportForeignSchemaStmt *stmt,
			bool has_generated)
{
	PgpxTextRows *rows;
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
	append_tables(&sql, stmt);
	appendStringInfoString(&sql, " ORDER BY c.relname, a.attnum");
	rows = pgpx_text_query(rt, sql.data, C_COUNT);
	for (int i = 0; i < rows->n; i++)
		if (pgpx_text_value(rows, i, C_TABLE) == NULL ||
			(pgpx_text_value(rows, i, C_NAME) != NULL &&
			 pgpx_text_value(rows, i, C_TYPE) == NULL))
			elog(ERROR, "unexpected NULL in the result of \"%s\"", sql.data);
	return rows;
}

static void
append_column(StringInfo buf, const Import *import, const PgpxTextRows *rows,
			  int row)
{
	const char *name = pgpx_text_value(rows, row, C_NAME);
	const char *not_null = pgpx_text_value(rows, row, C_NOT_NULL);
	const char *value = pgpx_text_value(rows, row, C_DEFAULT);
	const char *generated = pgpx_text_value(rows, row, C_GENERATED);
	const char *collation = pgpx_text_value(rows, row, C_COLLATION);
	const char *schema = pgpx_text_value(rows, row, C_COLLATION_SCHEMA);
	char		kind = generated != NULL ? generated[0] : '\0';

	appendStringInfo(buf, "  %s %s OPTIONS (column_name %s)",
					 quote_identifier(name), pgpx_text_value(rows, row, C_TYPE),
					 quote_literal_cstr(name));
	if (import->collate && collation != NULL && schema != NULL)
		appendStringInfo(buf, " COLLATE %s.%s", quote_identifier(schema),
						 quote_identifier(collation));
	if (import->default_value && value != NULL && kind == '\0')
		appendStringInfo(buf, " DEFAULT %s", value);
	if (import->generated && value != NULL &&
		kind == ATTRIBUTE_GENERATED_STORED)
		appendStringInfo(buf, " GENERATED ALWAYS AS (%s) STORED", value);
	if (import->not_null && not_null != NULL && not_null[0] == 't')
		appendStringInfoString(buf, " NOT NULL");
}

List *
pgpx_import_schema(ImportForeignSchemaStmt *stmt, Oid server)
{
	const char *name = GetForeignServer(server)->servername;
	List	   *commands = NIL;
	PgpxRemoteTransaction *rt;
	PgpxTextRows *rows;
	Import		import;

	read_options(stmt->options, &import);
	rt = pgpx_remote_transaction_get(server, GetUserId(),
									 "IMPORT FOREIGN SCHEMA");
	rows = read_tables(rt, stmt, check_schema(rt, stmt->remote_schema, name));
	for (int row = 0; row < rows->n;)
	{
		const char *table = pgpx_text_value(rows, row, C_TABLE);
		const char *separator = "";
		StringInfoData buf;

		initStringInfo(&buf);
		appendStringInfo(&buf, "CREATE FOREIGN TABLE %s (\n",
						 quote_identifier(table));
		do
		{
			if (pgpx_text_value(rows, row, C_NAME) == NULL)
				continue;
			appendStringInfoString(&buf, separator);
			separator = ",\n";
			append_column(&buf, &import, rows, row);
		} while (++row < rows->n &&
				 strcmp(pgpx_text_value(rows, row, C_TABLE), table) == 0);
		appendStringInfo(&buf,
						 "\n) SERVER %s\nOPTIONS (schema_name %s, table_name %s);",
						 quote_identifier(name),
						 quote_literal_cstr(stmt->remote_schema),
						 quote_literal_cstr(table));
		commands = lappend(commands, buf.data);
	}
	return commands;
}
