/*-------------------------------------------------------------------------
 *
 * contract.c
 *	  Validate and read the private lists in plans of postgres_fdw.
 *
 * The order of the elements is that of enum FdwScanPrivateIndex,
 * FdwModifyPrivateIndex and FdwDirectModifyPrivateIndex in postgres_fdw.c,
 * which are the same in PostgreSQL 15 to 18.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/contract.h"

#include "access/sysattr.h"
#include "nodes/value.h"
#include "utils/guc.h"
#include "utils/memutils.h"

/* Prefix of the statement of a scan that reads no column. */
#define SELECT_NOTHING "SELECT NULL "

/* Raise the error for a plan whose private list is not as expected. */
pg_noreturn static void
raise_plan(const char *kind, const char *element)
{
	ereport(ERROR,
			(errcode(ERRCODE_FDW_ERROR),
			 errmsg("plan of postgres_fdw %s is not known to pgpool_ext",
					GetConfigOption("server_version", false, false)),
			 errdetail("Element \"%s\" of the %s plan is missing, of another type, or out of range.",
					   element, kind),
			 errhint("Install a version of pgpool_ext that knows this version of PostgreSQL.")));
}

static void
check_length(List *list, int least, int most, const char *kind)
{
	if (list == NIL || !IsA(list, List) ||
		list_length(list) < least || list_length(list) > most)
		raise_plan(kind, "length");
}

static Node *
element(List *list, int at, NodeTag tag, const char *kind, const char *name)
{
	Node	   *node = list_nth(list, at);

	if (node == NULL || nodeTag(node) != tag)
		raise_plan(kind, name);
	return node;
}

static const char *
read_string(List *list, int at, const char *kind, const char *name)
{
	const char *text = strVal(element(list, at, T_String, kind, name));

	if (text == NULL)
		raise_plan(kind, name);
	return text;
}

static bool
read_bool(List *list, int at, const char *kind, const char *name)
{
	return boolVal(element(list, at, T_Boolean, kind, name));
}

static int
read_int(List *list, int at, const char *kind, const char *name)
{
	return intVal(element(list, at, T_Integer, kind, name));
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
	attrs = (List *) element(list, at, T_IntList, kind, name);
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

/* Read whether there is a RETURNING list, and the attributes in it. */
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
pgpx_contract_scan(List *fdw_private, TupleDesc tupdesc, PgpxScanPlan *plan)
{
	const char *kind = "scan";

	check_length(fdw_private, 3, 4, kind);
	plan->sql = read_string(fdw_private, 0, kind, "statement");
	plan->retrieved_attrs = read_attrs(fdw_private, 1, tupdesc, true, kind,
									   "retrieved attributes");

	/* otherwise the columns of the result would be ignored */
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
pgpx_contract_modify(List *fdw_private, CmdType operation, TupleDesc tupdesc,
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
pgpx_contract_direct_modify(List *fdw_private, TupleDesc tupdesc,
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

/* Load the handler of postgres_fdw. */
static PGFunction
load_handler(void)
{
	static PGFunction handler = NULL;
	MemoryContext caller = CurrentMemoryContext;

	if (handler != NULL)
		return handler;
	PG_TRY();
	{
		handler = (PGFunction) load_external_function("$libdir/postgres_fdw",
													  "postgres_fdw_handler",
													  true, NULL);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_FDW_UNABLE_TO_CREATE_EXECUTION),
				 errmsg("foreign tables on pools need the library of postgres_fdw"),
				 errdetail_internal("%s", error->message),
				 errhint("Install PostgreSQL's contrib modules on this server. The extension postgres_fdw need not be created.")));
	}
	PG_END_TRY();
	return handler;
}

FdwRoutine *
pgpx_contract_routine(void)
{
	PGFunction	handler = load_handler();
	FdwRoutine *theirs;
	FdwRoutine *routine;

	theirs = (FdwRoutine *) DatumGetPointer(DirectFunctionCall1(handler,
																(Datum) 0));
	if (theirs == NULL || !IsA(theirs, FdwRoutine) ||
		theirs->GetForeignRelSize == NULL || theirs->GetForeignPaths == NULL ||
		theirs->GetForeignPlan == NULL || theirs->BeginForeignScan == NULL ||
		theirs->AddForeignUpdateTargets == NULL ||
		theirs->PlanForeignModify == NULL || theirs->PlanDirectModify == NULL ||
		theirs->IsForeignRelUpdatable == NULL ||
		theirs->RecheckForeignScan == NULL ||
		theirs->ExplainForeignScan == NULL ||
		theirs->ExplainForeignModify == NULL ||
		theirs->ExplainDirectModify == NULL ||
		theirs->IsForeignPathAsyncCapable == NULL)
		raise_plan("handler's", "callbacks");
	routine = makeNode(FdwRoutine);
	memcpy(routine, theirs, sizeof(*routine));
	return routine;
}
