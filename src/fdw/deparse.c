/*-------------------------------------------------------------------------
 *
 * deparse.c
 *	  Deparses remote names of foreign tables and columns, and the remote
 *	  statements that no plan of postgres_fdw contains: INSERT of routed rows
 *	  and of several rows, TRUNCATE.
 *
 * All other statements are part of the plan.  postgres_fdw builds these three
 * during execution, and since PostgreSQL 16 another library cannot call the
 * functions that build them.  The texts must be those of postgres_fdw, so that
 * a table behaves in the same way on both wrappers.
 *
 * Names are qualified with their schema and quoted, hence they do not depend on
 * the search_path of the remote session.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/deparse.h"

#include "access/sysattr.h"
#include "commands/defrem.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

static const char *
find_option(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, name) == 0)
			return defGetString(def);
	}
	return NULL;
}

void
pgpx_deparse_relation(StringInfo buf, Relation rel)
{
	List	   *options = GetForeignTable(RelationGetRelid(rel))->options;
	const char *schema = find_option(options, "schema_name");
	const char *table = find_option(options, "table_name");

	if (schema == NULL)
		schema = get_namespace_name(RelationGetNamespace(rel));
	if (table == NULL)
		table = RelationGetRelationName(rel);
	appendStringInfo(buf, "%s.%s", quote_identifier(schema),
					 quote_identifier(table));
}

void
pgpx_deparse_column(StringInfo buf, Relation rel, AttrNumber attnum)
{
	Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	List	   *options = GetForeignColumnOptions(attr->attrelid, attnum);
	const char *name = find_option(options, "column_name");

	if (name == NULL)
		name = NameStr(attr->attname);
	appendStringInfoString(buf, quote_identifier(name));
}

const char *
pgpx_table_option(Oid relid, const char *name)
{
	ForeignTable *table = GetForeignTable(relid);
	const char *value = find_option(table->options, name);

	if (value != NULL)
		return value;
	return find_option(GetForeignServer(table->serverid)->options, name);
}

/*
 * Appends the values of one row in parentheses.  The parameters are numbered
 * from "param" on; returns the number after the last one.
 */
static int
append_row(StringInfo buf, Relation rel, List *target_attrs, int param)
{
	const char *separator = "";
	ListCell   *lc;

	appendStringInfoChar(buf, '(');
	foreach(lc, target_attrs)
	{
		Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel),
											   lfirst_int(lc) - 1);

		appendStringInfoString(buf, separator);
		separator = ", ";
		if (attr->attgenerated)
			appendStringInfoString(buf, "DEFAULT");
		else
			appendStringInfo(buf, "$%d", param++);
	}
	appendStringInfoChar(buf, ')');
	return param;
}

/*
 * Returns whether a set built by pull_varattnos contains an attribute, or for
 * number 0 a whole-row reference.
 */
static bool
contains(Bitmapset *used, int attnum)
{
	return bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber, used);
}

/*
 * Appends RETURNING with the columns in "used", a set built by pull_varattnos.
 * Returns the list of their numbers.  Of the system columns only ctid can be
 * returned.
 */
static List *
append_returning(StringInfo buf, Relation rel, Bitmapset *used)
{
	TupleDesc	tupdesc = RelationGetDescr(rel);
	const char *separator = " RETURNING ";
	List	   *retrieved_attrs = NIL;

	for (int attnum = 1; attnum <= tupdesc->natts; attnum++)
	{
		if (TupleDescAttr(tupdesc, attnum - 1)->attisdropped ||
			!(contains(used, 0) || contains(used, attnum)))
			continue;
		appendStringInfoString(buf, separator);
		separator = ", ";
		pgpx_deparse_column(buf, rel, attnum);
		retrieved_attrs = lappend_int(retrieved_attrs, attnum);
	}
	if (contains(used, SelfItemPointerAttributeNumber))
	{
		appendStringInfo(buf, "%sctid", separator);
		retrieved_attrs = lappend_int(retrieved_attrs,
									  SelfItemPointerAttributeNumber);
	}
	return retrieved_attrs;
}

char *
pgpx_deparse_insert(Relation rel, Index varno, List *target_attrs,
					bool do_nothing, List *with_checks, List *returning,
					List **retrieved_attrs, int *values_end)
{
	StringInfoData buf;
	Bitmapset  *used = NULL;
	ListCell   *lc;

	initStringInfo(&buf);
	appendStringInfoString(&buf, "INSERT INTO ");
	pgpx_deparse_relation(&buf, rel);
	if (target_attrs == NIL)
		appendStringInfoString(&buf, " DEFAULT VALUES");
	else
	{
		const char *separator = "(";

		foreach(lc, target_attrs)
		{
			appendStringInfoString(&buf, separator);
			separator = ", ";
			pgpx_deparse_column(&buf, rel, lfirst_int(lc));
		}
		appendStringInfoString(&buf, ") VALUES ");
		(void) append_row(&buf, rel, target_attrs, 1);
	}
	*values_end = buf.len;
	if (do_nothing)
		appendStringInfoString(&buf, " ON CONFLICT DO NOTHING");

	/*
	 * Checks, RETURNING and triggers see the row that the remote stored, which
	 * its own triggers may have changed.
	 */
	if (rel->trigdesc != NULL && rel->trigdesc->trig_insert_after_row)
		used = bms_make_singleton(0 - FirstLowInvalidHeapAttributeNumber);
	pull_varattnos((Node *) with_checks, varno, &used);
	pull_varattnos((Node *) returning, varno, &used);
	*retrieved_attrs = append_returning(&buf, rel, used);
	return buf.data;
}

char *
pgpx_deparse_insert_rows(Relation rel, const char *insert,
						 List *target_attrs, int values_end, int nparams,
						 int nrows)
{
	StringInfoData buf;
	int			param = nparams + 1;

	initStringInfo(&buf);
	appendBinaryStringInfo(&buf, insert, values_end);
	for (int i = 1; i < nrows; i++)
	{
		appendStringInfoString(&buf, ", ");
		param = append_row(&buf, rel, target_attrs, param);
	}
	appendStringInfoString(&buf, insert + values_end);
	return buf.data;
}

char *
pgpx_deparse_truncate(List *rels, DropBehavior behavior, bool restart_seqs)
{
	const char *separator = "TRUNCATE ";
	StringInfoData buf;
	ListCell   *lc;

	initStringInfo(&buf);
	foreach(lc, rels)
	{
		appendStringInfoString(&buf, separator);
		separator = ", ";
		pgpx_deparse_relation(&buf, (Relation) lfirst(lc));
	}
	appendStringInfo(&buf, " %s IDENTITY %s",
					 restart_seqs ? "RESTART" : "CONTINUE",
					 behavior == DROP_CASCADE ? "CASCADE" : "RESTRICT");
	return buf.data;
}
