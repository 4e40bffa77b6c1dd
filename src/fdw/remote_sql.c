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

void
pgpx_deparse_column(StringInfo buf, Relation rel, AttrNumber attnum)
{
	Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	List	   *options = GetForeignColumnOptions(attr->attrelid, attnum);
	const char *name = option_or(options, "column_name",
								 NameStr(attr->attname));

	appendStringInfoString(buf, quote_identifier(name));
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
pgpx_table_option(Oid relid, const char *name)
{
	const char *value = read_option(FOREIGNTABLEREL, relid,
									Anum_pg_foreign_table_ftoptions, name);

	if (value != NULL)
		return value;
	return read_option(FOREIGNSERVEROID, GetForeignServerIdByRelId(relid),
					   Anum_pg_foreign_server_srvoptions, name);
}

int
pgpx_table_fetch_size(Oid relid)
{
	const char *value = pgpx_table_option(relid, "fetch_size");
	int			size = 0;

	/* the validator has checked the value */
	if (value != NULL)
		(void) parse_int(value, &size, 0, NULL);
	return size;
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
 * Return whether a set built by pull_varattnos contains an attribute.  attnum:
 * its number; 0: a whole-row reference.
 */
static bool
has_attribute(Bitmapset *used, int attnum)
{
	return bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber, used);
}

/*
 * Append RETURNING with the columns in "used", a set built by pull_varattnos.
 * Return the list of their numbers.  ctid is the only system column that can be
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
			!(has_attribute(used, 0) || has_attribute(used, attnum)))
			continue;
		appendStringInfoString(buf, separator);
		separator = ", ";
		pgpx_deparse_column(buf, rel, attnum);
		retrieved_attrs = lappend_int(retrieved_attrs, attnum);
	}
	if (has_attribute(used, SelfItemPointerAttributeNumber))
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

void
pgpx_read_scan_plan(List *fdw_private, PgpxScanPlan *plan)
{
	plan->sql = strVal(read_element(fdw_private, 0, T_String));
	plan->retrieved_attrs = read_element(fdw_private, 1, T_IntList);
	plan->fetch_size = intVal(read_element(fdw_private, 2, T_Integer));
	plan->relations = list_length(fdw_private) < 4 ? NULL :
		strVal(read_element(fdw_private, 3, T_String));
}

void
pgpx_read_modify_plan(List *fdw_private, PgpxModifyPlan *plan)
{
	plan->sql = strVal(read_element(fdw_private, 0, T_String));
	plan->target_attrs = read_element(fdw_private, 1, T_IntList);
	plan->values_end = intVal(read_element(fdw_private, 2, T_Integer));
	plan->retrieved_attrs = read_element(fdw_private, 4, T_IntList);
}

void
pgpx_read_direct_modify_plan(List *fdw_private, PgpxDirectModifyPlan *plan)
{
	plan->sql = strVal(read_element(fdw_private, 0, T_String));
	plan->has_returning = boolVal(read_element(fdw_private, 1, T_Boolean));
	plan->retrieved_attrs = read_element(fdw_private, 2, T_IntList);
	plan->set_processed = boolVal(read_element(fdw_private, 3, T_Boolean));
}
