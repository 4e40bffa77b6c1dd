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
 * PostgreSQL does not guarantee.  So each element is checked, and an unexpected
 * one raises an error.  The elements are in the order of the enums
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

/* Prefix of the statement of a scan that reads no column. */
#define SELECT_NOTHING "SELECT NULL "

/* Raise the error for a plan whose private list is not as expected. */
pg_noreturn static void
raise_plan(const char *kind, const char *element)
{
	ereport(ERROR,
			(errcode(ERRCODE_FDW_ERROR),
			 errmsg("unrecognized plan of postgres_fdw %s",
					GetConfigOption("server_version", false, false)),
			 errdetail("Element \"%s\" of the %s plan is missing, of another type, or out of range.",
					   element, kind),
			 errhint(PGPX_FDW_VERSION_HINT)));
}

static void
check_length(List *list, int least, int most, const char *kind)
{
	if (list == NIL || !IsA(list, List) ||
		list_length(list) < least || list_length(list) > most)
		raise_plan(kind, "length");
}

static Node *
read_element(List *list, int at, NodeTag tag, const char *kind,
			 const char *name)
{
	Node	   *node = list_nth(list, at);

	if (node == NULL || nodeTag(node) != tag)
		raise_plan(kind, name);
	return node;
}

static const char *
read_string(List *list, int at, const char *kind, const char *name)
{
	const char *text = strVal(read_element(list, at, T_String, kind, name));

	if (text == NULL)
		raise_plan(kind, name);
	return text;
}

static bool
read_bool(List *list, int at, const char *kind, const char *name)
{
	return boolVal(read_element(list, at, T_Boolean, kind, name));
}

static int
read_int(List *list, int at, const char *kind, const char *name)
{
	return intVal(read_element(list, at, T_Integer, kind, name));
}

/*
 * Read a list of attribute numbers, which can be empty.  with_ctid: the number
 * of ctid is allowed.
 */
static List *
read_attrs(List *list, int at, TupleDesc tupdesc, bool with_ctid,
		   const char *kind, const char *name)
{
	List	   *attrs;
	ListCell   *lc;

	if (list_nth(list, at) == NULL)
		return NIL;
	attrs = (List *) read_element(list, at, T_IntList, kind, name);
	foreach(lc, attrs)
	{
		int			attnum = lfirst_int(lc);

		if (with_ctid && attnum == SelfItemPointerAttributeNumber)
			continue;
		if (attnum < 1 || attnum > tupdesc->natts ||
			TupleDescAttr(tupdesc, attnum - 1)->attisdropped)
			raise_plan(kind, name);
	}
	return attrs;
}

/*
 * Return whether the statement has RETURNING, and set *retrieved_attrs to the
 * attributes in it.
 */
static bool
read_returning(List *list, int at, int attrs_at, TupleDesc tupdesc,
			   List **retrieved_attrs, const char *kind)
{
	bool		has_returning = read_bool(list, at, kind, "has RETURNING");

	*retrieved_attrs = read_attrs(list, attrs_at, tupdesc, true, kind,
								  "retrieved attributes");
	if (has_returning != (*retrieved_attrs != NIL))
		raise_plan(kind, "has RETURNING");
	return has_returning;
}

void
pgpx_read_scan_plan(List *fdw_private, TupleDesc tupdesc, PgpxScanPlan *plan)
{
	const char *kind = "scan";

	check_length(fdw_private, 3, 4, kind);
	plan->sql = read_string(fdw_private, 0, kind, "statement");
	plan->retrieved_attrs = read_attrs(fdw_private, 1, tupdesc, true, kind,
									   "retrieved attributes");

	/* without attributes, all columns of the result would be ignored */
	if (plan->retrieved_attrs == NIL &&
		strncmp(plan->sql, SELECT_NOTHING, strlen(SELECT_NOTHING)) != 0)
		raise_plan(kind, "retrieved attributes");
	plan->fetch_size = read_int(fdw_private, 2, kind, "fetch_size");
	plan->relations = list_length(fdw_private) < 4 ? NULL :
		read_string(fdw_private, 3, kind, "relations");
	if (plan->fetch_size <= 0)
		raise_plan(kind, "fetch_size");
}

void
pgpx_read_modify_plan(List *fdw_private, CmdType operation, TupleDesc tupdesc,
					  PgpxModifyPlan *plan)
{
	const char *kind = "modify";
	int			length;

	check_length(fdw_private, 5, 5, kind);
	plan->sql = read_string(fdw_private, 0, kind, "statement");
	length = (int) strlen(plan->sql);
	plan->target_attrs = read_attrs(fdw_private, 1, tupdesc, false, kind,
									"target attributes");
	plan->values_end = read_int(fdw_private, 2, kind, "end of VALUES");
	if (operation == CMD_INSERT ?
			plan->values_end < 1 || plan->values_end > length :
			plan->values_end != -1)
		raise_plan(kind, "end of VALUES");
	plan->has_returning = read_returning(fdw_private, 3, 4, tupdesc,
										 &plan->retrieved_attrs, kind);
}

void
pgpx_read_direct_modify_plan(List *fdw_private, TupleDesc tupdesc,
							 PgpxDirectModifyPlan *plan)
{
	const char *kind = "direct modify";

	check_length(fdw_private, 4, 4, kind);
	plan->sql = read_string(fdw_private, 0, kind, "statement");
	plan->has_returning = read_returning(fdw_private, 1, 2, tupdesc,
										 &plan->retrieved_attrs, kind);
	plan->set_processed = read_bool(fdw_private, 3, kind,
									"set es_processed");
}
