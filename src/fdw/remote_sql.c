/*-------------------------------------------------------------------------
 *
 * remote_sql.c
 *	  The texts of remote statements and their columns: read from the plans of
 *	  postgres_fdw, or deparsed where no plan contains the statement.
 *
 * This file deparses three statements: INSERT of routed rows, INSERT of several
 * rows, and TRUNCATE.  postgres_fdw builds them during execution, and since
 * PostgreSQL 16 another library cannot call the functions that build them.  The
 * texts must be those of postgres_fdw, so that a table behaves in the same way
 * on both wrappers.  Names are qualified with their schema and quoted, so they
 * do not depend on the search_path of the remote session.
 *
 * All other statements are part of the private list of a plan, whose layout
 * PostgreSQL does not guarantee.  So the type of each element is checked, and an
 * unexpected one raises an error.  The elements are in the order of the enums
 * FdwScanPrivateIndex, FdwModifyPrivateIndex and FdwDirectModifyPrivateIndex in
 * postgres_fdw.c, which are the same in PostgreSQL 15 to 18.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/remote_sql.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_foreign_table.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "foreign/fdwapi.h"
#include "nodes/value.h"
#include "optimizer/optimizer.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "config/options.h"

/* Return an option, or the value to use if it is not set. */
static const char *
option_or(List *options, const char *name, const char *unset)
{
	DefElem    *def = pgpx_options_find(options, name);

	return def != NULL ? defGetString(def) : unset;
}

void
pgpx_deparse_relation(StringInfo buf, Relation rel)
{
	List	   *options = GetForeignTable(RelationGetRelid(rel))->options;
	const char *schema = option_or(options, "schema_name", NULL);
	const char *table = option_or(options, "table_name",
								  RelationGetRelationName(rel));

	if (schema == NULL)
		schema = get_namespace_name(RelationGetNamespace(rel));
	appendStringInfo(buf, "%s.%s", quote_identifier(schema),
					 quote_identifier(table));
}

List *
pgpx_table_columns(Relation rel)
{
	List	   *attnums = NIL;

	for (int attnum = 1; attnum <= RelationGetNumberOfAttributes(rel); attnum++)
		if (!TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attisdropped)
			attnums = lappend_int(attnums, attnum);
	return attnums;
}

const char *
pgpx_remote_column_name(Form_pg_attribute attr)
{
	return option_or(GetForeignColumnOptions(attr->attrelid, attr->attnum),
					 "column_name", NameStr(attr->attname));
}

void
pgpx_deparse_columns(StringInfo buf, Relation rel, List *attnums,
					 const char *first)
{
	ListCell   *lc;

	foreach(lc, attnums)
	{
		int			attnum = lfirst_int(lc);
		const char *name = "ctid";

		if (attnum != SelfItemPointerAttributeNumber)
			name = pgpx_remote_column_name(TupleDescAttr(RelationGetDescr(rel),
														 attnum - 1));
		appendStringInfo(buf, "%s%s",
						 foreach_current_index(lc) == 0 ? first : ", ",
						 quote_identifier(name));
	}
}

void
pgpx_table_context(void *arg, AttrNumber attnum)
{
	Relation	rel = arg;
	const char *name = RelationGetRelationName(rel);

	if (attnum == 0)
		errcontext("row of foreign table \"%s\"", name);
	else
		errcontext("column \"%s\" of foreign table \"%s\"",
				   attnum == SelfItemPointerAttributeNumber ? "ctid" :
				   NameStr(TupleDescAttr(RelationGetDescr(rel),
										 attnum - 1)->attname), name);
}

/*
 * Return the value of an option of a foreign table or server; NULL if the
 * option is not set.
 *
 * cache: the syscache that has the object.  options: the column of its relation
 * with the options, an array of texts "name=value".  Other options are not
 * decoded, because that takes longer than the rest of the lookup.
 */
static const char *
read_option(int cache, Oid object, AttrNumber options, const char *name)
{
	HeapTuple	tuple = SearchSysCache1(cache, ObjectIdGetDatum(object));
	size_t		len = strlen(name);
	const char *value = NULL;
	bool		isnull;
	Datum		array;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for foreign table or server %u",
			 object);
	array = SysCacheGetAttr(cache, tuple, options, &isnull);
	if (!isnull)
	{
		Datum	   *texts;
		int			n;

		deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false,
						  TYPALIGN_INT, &texts, NULL, &n);
		for (int i = 0; i < n && value == NULL; i++)
		{
			const char *data = VARDATA_ANY(DatumGetPointer(texts[i]));
			size_t		size = VARSIZE_ANY_EXHDR(DatumGetPointer(texts[i]));

			if (size > len && data[len] == '=' && memcmp(data, name, len) == 0)
				value = pnstrdup(data + len + 1, size - len - 1);
		}
	}
	ReleaseSysCache(tuple);
	return value;
}

const char *
pgpx_table_option(Oid relid, const char *name, const char *unset)
{
	const char *value = read_option(FOREIGNTABLEREL, relid,
									Anum_pg_foreign_table_ftoptions, name);

	if (value == NULL)
		value = read_option(FOREIGNSERVEROID, GetForeignServerIdByRelId(relid),
							Anum_pg_foreign_server_srvoptions, name);
	return value != NULL ? value : unset;
}

/* The validator has checked the values of the options. */
int
pgpx_table_int_option(Oid relid, const char *name, int unset)
{
	const char *value = pgpx_table_option(relid, name, NULL);
	int			number = unset;

	if (value != NULL)
		(void) parse_int(value, &number, 0, NULL);
	return number;
}

bool
pgpx_table_bool_option(Oid relid, const char *name, bool unset)
{
	const char *value = pgpx_table_option(relid, name, NULL);
	bool		on = unset;

	if (value != NULL)
		(void) parse_bool(value, &on);
	return on;
}

/*
 * Append the values of one row in parentheses.  The parameters are numbered
 * from "param" on.  Return the number after the last one.
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
 * Return whether a set built by pull_varattnos contains an attribute, or a
 * whole-row reference, of which it is a part.
 */
static bool
is_used(Bitmapset *used, int attnum)
{
	return bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber, used) ||
		(attnum > 0 && is_used(used, 0));
}

PgpxPlan
pgpx_deparse_insert(ResultRelInfo *result_rel, Index varno, bool do_nothing)
{
	Relation	rel = result_rel->ri_RelationDesc;
	PgpxPlan	plan = {.target_attrs = pgpx_table_columns(rel)};
	Bitmapset  *used = NULL;
	StringInfoData buf;
	ListCell   *lc;

	initStringInfo(&buf);
	appendStringInfoString(&buf, "INSERT INTO ");
	pgpx_deparse_relation(&buf, rel);
	if (plan.target_attrs == NIL)
		appendStringInfoString(&buf, " DEFAULT VALUES");
	else
	{
		pgpx_deparse_columns(&buf, rel, plan.target_attrs, "(");
		appendStringInfoString(&buf, ") VALUES ");
		(void) append_row(&buf, rel, plan.target_attrs, 1);
	}
	plan.values_end = buf.len;
	if (do_nothing)
		appendStringInfoString(&buf, " ON CONFLICT DO NOTHING");

	/*
	 * Checks, RETURNING and triggers see the row that the remote stored, which
	 * its own triggers may have changed.
	 */
	if (rel->trigdesc != NULL && rel->trigdesc->trig_insert_after_row)
		used = bms_make_singleton(0 - FirstLowInvalidHeapAttributeNumber);
	pull_varattnos((Node *) result_rel->ri_WithCheckOptions, varno, &used);
	pull_varattnos((Node *) result_rel->ri_returningList, varno, &used);
	foreach(lc, plan.target_attrs)
		if (is_used(used, lfirst_int(lc)))
			plan.retrieved_attrs = lappend_int(plan.retrieved_attrs,
											   lfirst_int(lc));
	if (is_used(used, SelfItemPointerAttributeNumber))
		plan.retrieved_attrs = lappend_int(plan.retrieved_attrs,
										   SelfItemPointerAttributeNumber);
	pgpx_deparse_columns(&buf, rel, plan.retrieved_attrs, " RETURNING ");
	plan.sql = buf.data;
	return plan;
}

char *
pgpx_deparse_insert_rows(Relation rel, const PgpxPlan *plan, int nparams,
						 int nrows)
{
	StringInfoData buf;
	int			param = nparams + 1;

	initStringInfo(&buf);
	appendBinaryStringInfo(&buf, plan->sql, plan->values_end);
	for (int i = 1; i < nrows; i++)
	{
		appendStringInfoString(&buf, ", ");
		param = append_row(&buf, rel, plan->target_attrs, param);
	}
	appendStringInfoString(&buf, plan->sql + plan->values_end);
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

/*
 * Return an element of a plan's private list.  An empty list of attributes is
 * NULL.
 */
static void *
read_element(List *list, int at, NodeTag tag)
{
	Node	   *node = at < list_length(list) ? list_nth(list, at) : NULL;

	if (node == NULL ? tag != T_IntList : nodeTag(node) != tag)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_ERROR),
				 errmsg("unrecognized plan of postgres_fdw %s",
						GetConfigOption("server_version", false, false)),
				 errdetail("Element %d of the plan's private list is missing or has another type.",
						   at),
				 errhint("Install a version of pgpool_ext that knows this version of PostgreSQL.")));
	return node;
}

PgpxPlan
pgpx_read_scan_plan(List *list)
{
	return (PgpxPlan){
		.sql = strVal(read_element(list, 0, T_String)),
		.retrieved_attrs = read_element(list, 1, T_IntList),
		.fetch_size = intVal(read_element(list, 2, T_Integer)),
		.relations = list_length(list) < 4 ? NULL :
			strVal(read_element(list, 3, T_String)),
	};
}

PgpxPlan
pgpx_read_modify_plan(List *list)
{
	return (PgpxPlan){
		.sql = strVal(read_element(list, 0, T_String)),
		.target_attrs = read_element(list, 1, T_IntList),
		.values_end = intVal(read_element(list, 2, T_Integer)),
		.retrieved_attrs = read_element(list, 4, T_IntList),
	};
}

PgpxPlan
pgpx_read_direct_modify_plan(List *list)
{
	return (PgpxPlan){
		.sql = strVal(read_element(list, 0, T_String)),
		.has_returning = boolVal(read_element(list, 1, T_Boolean)),
		.retrieved_attrs = read_element(list, 2, T_IntList),
		.set_processed = boolVal(read_element(list, 3, T_Boolean)),
	};
}
