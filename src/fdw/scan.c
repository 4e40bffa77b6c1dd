/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Scans of foreign tables and of foreign joins: the callbacks.
 *
 * A connection is leased when the first row is read, not when the executor
 * starts.  So EXPLAIN without ANALYZE leases none, and neither does a node that
 * is never executed.
 *
 * A statement must not read the rows that it has itself written.  The remote
 * ensures this for one execution of a scan's query, but not for the next one.
 * So if a statement writes, and may repeat a scan, the scan keeps its rows.  A
 * repetition with the same parameters returns these rows.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/handler.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_type.h"
#include "executor/execAsync.h"
#include "executor/executor.h"
#include "executor/nodeAppend.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/debug_point.h"
#include "fdw/remote_scan.h"
#include "fdw/remote_sql.h"

/* Prefix by which postgres_fdw describes an aggregate in a plan. */
#define AGGREGATE "Aggregate on "

typedef struct PgpxScan
{
	PgpxNodeUsage usage;
	PgpxScanPlan plan;
	Oid			server;
	Oid			user;			/* whose mapping is used */
	const char *why;			/* for the view leases */
	TupleDesc	tupdesc;		/* of the remote rows */
	PgpxRows   *rows;
	bool		heap_tuples;	/* rows need system columns */
	PgpxRemoteScan *remote;		/* NULL until the first row */
	bool		opened;			/* sent, with the current parameters */

	/* asynchronous execution */
	AsyncRequest *request;		/* of the Append; NULL: none was made */
	bool		pending;		/* the next row has not arrived yet */

	PgpxQueryParams params;

	/* rows for a repetition; NULL: not kept */
	Tuplestorestate *kept;
	TupleTableSlot *kept_slot;
	Bitmapset  *param_ids;		/* executor parameters that params depend on */
} PgpxScan;

TupleDesc
pgpx_scan_tupdesc(ForeignScanState *node)
{
	ForeignScan *plan = (ForeignScan *) node->ss.ps.plan;
	TupleDesc	tupdesc;

	if (plan->scan.scanrelid > 0)
		return RelationGetDescr(node->ss.ss_currentRelation);
	tupdesc =
		CreateTupleDescCopy(node->ss.ss_ScanTupleSlot->tts_tupleDescriptor);
	for (int i = 0; i < tupdesc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(tupdesc, i);
		Var		   *var;
		RangeTblEntry *rte;
		Oid			type;

		if (attr->atttypid != RECORDOID || attr->atttypmod >= 0)
			continue;
		var = (Var *) list_nth_node(TargetEntry, plan->fdw_scan_tlist, i)->expr;
		if (!IsA(var, Var) || var->varattno != 0)
			continue;
		rte = exec_rt_fetch(var->varno, node->ss.ps.state);
		type = rte->rtekind == RTE_RELATION ? get_rel_type_id(rte->relid) :
			InvalidOid;
		if (OidIsValid(type))
			attr->atttypid = type;
	}
	return tupdesc;
}

/*
 * Find the names of a column of the scan's rows in the range table.  For a
 * column or ctid, set *relname and *attname; for a whole-row reference, only
 * *relname.  For an expression or another system column, both are NULL.
 */
static void
identify_column(ForeignScanState *node, AttrNumber attnum,
				const char **relname, const char **attname)
{
	ForeignScan *plan = (ForeignScan *) node->ss.ps.plan;
	Index		varno = plan->scan.scanrelid;
	RangeTblEntry *rte;

	*relname = *attname = NULL;
	if (varno == 0)
	{
		TargetEntry *entry;
		Var		   *var;

		if (attnum < 1 || attnum > list_length(plan->fdw_scan_tlist))
			return;
		entry = list_nth_node(TargetEntry, plan->fdw_scan_tlist, attnum - 1);
		var = (Var *) entry->expr;
		if (!IsA(var, Var))
			return;
		varno = var->varno;
		attnum = var->varattno;
	}
	rte = exec_rt_fetch(varno, node->ss.ps.state);
	*relname = rte->eref->aliasname;
	if (attnum > 0 && attnum <= list_length(rte->eref->colnames))
		*attname = strVal(list_nth(rte->eref->colnames, attnum - 1));
	else if (attnum == SelfItemPointerAttributeNumber)
		*attname = "ctid";
	else if (attnum != 0)
		*relname = NULL;
}

void
pgpx_scan_context(void *arg, AttrNumber attnum)
{
	const char *relname;
	const char *attname;

	identify_column(arg, attnum, &relname, &attname);
	if (relname != NULL && attname == NULL)
		errcontext("whole-row reference to foreign table \"%s\"", relname);
	else if (relname != NULL)
		errcontext("column \"%s\" of foreign table \"%s\"", attname, relname);
	else
		errcontext("processing expression at position %d in select list",
				   attnum);
}

void
pgpx_table_context(void *arg, AttrNumber attnum)
{
	Relation	rel = arg;
	TupleDesc	tupdesc = RelationGetDescr(rel);
	const char *column = NULL;

	if (attnum == SelfItemPointerAttributeNumber)
		column = "ctid";
	else if (attnum > 0)
		column = NameStr(TupleDescAttr(tupdesc, attnum - 1)->attname);
	if (column != NULL)
		errcontext("column \"%s\" of foreign table \"%s\"", column,
				   RelationGetRelationName(rel));
	else
		errcontext("row of foreign table \"%s\"", RelationGetRelationName(rel));
}

/*
 * Return whether "target" is a node of "plan" that is executed once if "plan"
 * is.  The plans of correlated subqueries are not searched.
 */
static bool
is_executed_once(const PlannedStmt *stmt, const Plan *plan, const Plan *target)
{
	List	   *children = NIL;
	ListCell   *lc;

	if (plan == NULL || plan == target)
		return plan != NULL;
	check_stack_depth();
	foreach(lc, plan->initPlan)
	{
		SubPlan    *init = lfirst_node(SubPlan, lc);

		if (is_executed_once(stmt, list_nth(stmt->subplans, init->plan_id - 1),
							 target))
			return true;
	}
	if (IsA(plan, Append))
		children = ((const Append *) plan)->appendplans;
	else if (IsA(plan, MergeAppend))
		children = ((const MergeAppend *) plan)->mergeplans;
	else if (IsA(plan, SubqueryScan))
		children = list_make1(((const SubqueryScan *) plan)->subplan);
	foreach(lc, children)
		if (is_executed_once(stmt, lfirst(lc), target))
			return true;
	if (is_executed_once(stmt, plan->lefttree, target))
		return true;
	return !IsA(plan, NestLoop) && !IsA(plan, RecursiveUnion) &&
		is_executed_once(stmt, plan->righttree, target);
}

/* Add the numbers of the executor's parameters in an expression. */
static bool
add_param_ids(Node *expr, Bitmapset **ids)
{
	if (expr == NULL)
		return false;
	if (IsA(expr, Param) && ((Param *) expr)->paramkind == PARAM_EXEC)
		*ids = bms_add_member(*ids, ((Param *) expr)->paramid);
	return expression_tree_walker(expr, add_param_ids, ids);
}

/* Begin to keep the rows if the scan may be repeated while rows are written. */
static void
begin_kept(ForeignScanState *node, PgpxScan *scan)
{
	const PlannedStmt *stmt = node->ss.ps.state->es_plannedstmt;
	const Plan *plan = node->ss.ps.plan;

	if ((stmt->commandType == CMD_SELECT && !stmt->hasModifyingCTE) ||
		is_executed_once(stmt, stmt->planTree, plan))
		return;
	(void) add_param_ids((Node *) ((const ForeignScan *) plan)->fdw_exprs,
						 &scan->param_ids);
	scan->kept_slot = pgpx_stored_row_slot(scan->tupdesc);
	scan->kept = tuplestore_begin_heap(false, false, work_mem);
}

void
pgpx_scan_begin(ForeignScanState *node, int eflags)
{
	ForeignScan *plan = (ForeignScan *) node->ss.ps.plan;
	Index		varno = plan->scan.scanrelid;
	Oid			relid;
	PgpxScan   *scan = palloc0(sizeof(*scan));

	pgpx_read_scan_plan(plan->fdw_private, &scan->plan);

	/* EXPLAIN: fdw_state stays NULL */
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;
	node->fdw_state = scan;

	/* all tables of a join have the same server and the same user */
	if (varno == 0)
		varno = bms_next_member(pgpx_scan_relids(plan), -1);
	relid = exec_rt_fetch(varno, node->ss.ps.state)->relid;
	scan->server = GetForeignServerIdByRelId(relid);
	scan->user = pgpx_scan_user(node, varno);
	scan->why = plan->scan.scanrelid == 0 ? scan->plan.sql :
		RelationGetRelationName(node->ss.ss_currentRelation);
	scan->tupdesc = pgpx_scan_tupdesc(node);
	scan->heap_tuples = plan->fsSystemCol ||
		list_member_int(scan->plan.retrieved_attrs,
						SelfItemPointerAttributeNumber);
	scan->rows = pgpx_rows_begin_attributes(scan->tupdesc,
											scan->plan.retrieved_attrs,
											pgpx_scan_context, node);
	pgpx_query_params_begin(&scan->params, plan->fdw_exprs, &node->ss.ps);
	begin_kept(node, scan);
}

/*
 * Return the number of rows of each batch, or PGPX_FETCH_*.  The plan has the
 * default of postgres_fdw if no table has the option.
 */
static int
get_fetch_size(ForeignScanState *node, const PgpxScan *scan)
{
	ForeignScan *plan = (ForeignScan *) node->ss.ps.plan;
	int			varno = -1;

	/*
	 * An aggregate returns few rows for much work, so it is executed for all
	 * rows at once, which allows a parallel plan.
	 */
	if (scan->plan.relations != NULL &&
		strncmp(scan->plan.relations, AGGREGATE, strlen(AGGREGATE)) == 0)
		return PGPX_FETCH_ALL;
	while ((varno = bms_next_member(pgpx_scan_relids(plan), varno)) >= 0)
	{
		Oid			relid = exec_rt_fetch(varno, node->ss.ps.state)->relid;

		if (pgpx_table_fetch_size(relid) > 0)
			return scan->plan.fetch_size;	/* the largest of the tables */
	}
	return PGPX_FETCH_GROWING;
}

/*
 * Begin the remote scan, and lease a connection if the remote transaction is
 * new.  values: the parameters with which the caller opens the scan.
 */
static void
begin_remote(ForeignScanState *node, PgpxScan *scan, const char *const *values)
{
	int			fetch_size = get_fetch_size(node, scan);
	double		expected = node->ss.ps.plan->plan_rows;
	PgpxFirstStatement first = {
		.statement = {scan->plan.sql, scan->params.n, values},
		.max_rows = pgpx_remote_scan_first_batch(fetch_size),
	};

	/*
	 * The statement of a large scan is not the first one, because the scan
	 * first asks for its types.  An asynchronous scan must not wait for an
	 * answer, but after a hand-over of its statement the session waits for one.
	 */
	bool		is_first = scan->request == NULL &&
		!pgpx_remote_scan_is_large(scan->rows, expected);
	PgpxRemoteTransaction *rt =
		pgpx_remote_transaction_get(scan->server, scan->user, scan->why,
									is_first ? &first : NULL);
	MemoryContext old =
		MemoryContextSwitchTo(node->ss.ps.state->es_query_cxt);

	scan->usage.transaction = rt;
	scan->remote = pgpx_remote_scan_begin(rt, scan->plan.sql, scan->rows,
										  scan->tupdesc, fetch_size, expected,
										  scan->request);
	MemoryContextSwitchTo(old);
}

/*
 * Send the statement with the current parameters, if it was not sent yet.
 * Return false if the scan must first wait for another scan of the same Append,
 * whose lease it shares.
 */
static bool
open_scan(ForeignScanState *node, PgpxScan *scan)
{
	const char **values;

	if (scan->opened)
		return true;
	if (scan->remote != NULL && pgpx_remote_scan_must_wait(scan->remote))
		return false;

	/* before the checkout, which may hand the statement to another session */
	values = pgpx_query_params_evaluate(&scan->params,
										node->ss.ps.ps_ExprContext);
	if (scan->remote == NULL)
	{
		begin_remote(node, scan, values);
		if (pgpx_remote_scan_must_wait(scan->remote))
			return false;
	}
	pgpx_remote_scan_open(scan->remote, scan->params.n, values);
	scan->opened = true;
	return true;
}

/*
 * Read the next row from the remote.  Return false at the end, or if an
 * asynchronous scan must wait for the row; then set "pending".
 */
static bool
next_remote_row(ForeignScanState *node, PgpxScan *scan, Datum **values,
				bool **nulls)
{
	PgpxScanStep reached = PGPX_SCAN_STEP_WAIT;

	if (scan->request == NULL)
	{
		(void) open_scan(node, scan);
		return pgpx_remote_scan_next(scan->remote, values, nulls);
	}
	if (open_scan(node, scan))
		reached = pgpx_remote_scan_try_next(scan->remote, values, nulls);
	scan->pending = reached == PGPX_SCAN_STEP_WAIT;
	return reached == PGPX_SCAN_STEP_ROW;
}

/* Read the next row: one that was kept, or else one from the remote. */
static bool
next_row(ForeignScanState *node, PgpxScan *scan, Datum **values, bool **nulls)
{
	scan->pending = false;
	if (scan->kept != NULL && !tuplestore_ateof(scan->kept) &&
		pgpx_stored_row_next(scan->kept, scan->kept_slot, values, nulls))
		return true;
	if (!next_remote_row(node, scan, values, nulls))
		return false;
	scan->usage.rows++;

	/* the row is added at the end, which is where the next read begins */
	if (scan->kept != NULL)
		tuplestore_putvalues(scan->kept, scan->kept_slot->tts_tupleDescriptor,
							 *values, *nulls);
	return true;
}

TupleTableSlot *
pgpx_scan_iterate(ForeignScanState *node)
{
	PgpxScan   *scan = node->fdw_state;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	int			natts = scan->tupdesc->natts;
	Datum	   *values;
	bool	   *nulls;

	ExecClearTuple(slot);
	if (!next_row(node, scan, &values, &nulls))
		return slot;
	if (scan->heap_tuples)
		return ExecStoreHeapTuple(pgpx_tuple_form(scan->tupdesc, values, nulls),
								  slot, false);
	memcpy(slot->tts_values, values, sizeof(Datum) * natts);
	memcpy(slot->tts_isnull, nulls, sizeof(bool) * natts);
	return ExecStoreVirtualTuple(slot);
}

void
pgpx_scan_rescan(ForeignScanState *node)
{
	PgpxScan   *scan = node->fdw_state;

	if (scan == NULL)
		return;
	if (scan->kept != NULL && scan->opened &&
		!bms_overlap(node->ss.ps.chgParam, scan->param_ids))
	{
		ExecClearTuple(scan->kept_slot);
		tuplestore_rescan(scan->kept);
		return;
	}
	if (scan->kept != NULL)
	{
		ExecClearTuple(scan->kept_slot);
		tuplestore_clear(scan->kept);
	}
	scan->opened = false;
	if (scan->remote != NULL)
		pgpx_remote_scan_stop(scan->remote);
}

void
pgpx_scan_end(ForeignScanState *node)
{
	PgpxScan   *scan = node->fdw_state;

	if (scan == NULL)
		return;
	if (scan->kept != NULL)
	{
		ExecDropSingleTupleTableSlot(scan->kept_slot);
		tuplestore_end(scan->kept);
	}
	if (scan->remote != NULL)
		pgpx_remote_scan_end(scan->remote);
}

/* Pass to the Append node a row, the end, or that it must wait. */
static void
answer_request(AsyncRequest *request)
{
	PlanState  *node = request->requestee;
	PgpxScan   *scan = ((ForeignScanState *) node)->fdw_state;
	TupleTableSlot *slot = node->ExecProcNodeReal(node);

	if (TupIsNull(slot) && scan->pending)
		ExecAsyncRequestPending(request);
	else
		ExecAsyncRequestDone(request, TupIsNull(slot) ? NULL : slot);
}

/* Return whether all asynchronous scans of the Append are ours. */
static bool
has_only_our_scans(const AppendState *append)
{
	int			i = -1;

	while ((i = bms_next_member(append->as_asyncplans, i)) >= 0)
	{
		const ForeignScanState *node =
			(ForeignScanState *) append->as_asyncrequests[i]->requestee;

		if (node->fdwroutine->ForeignAsyncRequest != pgpx_scan_async_request)
			return false;
	}
	return true;
}

/*
 * If the Append also has asynchronous scans of another foreign-data wrapper,
 * wait for the row.  That wrapper may evaluate a filter that executes a
 * statement on our lease after our socket was added to the wait event set.  The
 * statement would buffer our rows, and the Append would wait for the socket for
 * ever.
 */
void
pgpx_scan_async_request(AsyncRequest *request)
{
	PgpxScan   *scan = ((ForeignScanState *) request->requestee)->fdw_state;

	if (has_only_our_scans((AppendState *) request->requestor))
		scan->request = request;
	answer_request(request);
}

/*
 * Return whether a pending scan must wait: for its socket, or for another scan
 * of the same Append that reads from its lease.
 */
static bool
is_waiting(const PgpxScan *scan)
{
	return (scan->opened &&
			pgpx_remote_scan_socket(scan->remote) != PGINVALID_SOCKET) ||
		pgpx_remote_scan_must_wait(scan->remote);
}

/*
 * Answer a pending request of the Append whose scan need not wait.  Return
 * false if the scan must wait.
 */
static bool
answer_ready_request(AppendState *append, AsyncRequest *request)
{
	ForeignScanState *node = (ForeignScanState *) request->requestee;
	PgpxScan   *scan = node->fdw_state;

	/*
	 * If another scan reads from this scan's lease and has no pending request,
	 * it makes no progress while the Append waits.  So buffer its rows.  The
	 * Append does not wait if it has rows.
	 */
	if (append->as_nasyncresults == 0)
		pgpx_remote_scan_buffer_other(scan->remote);
	if (is_waiting(scan))
		return false;
	request->callback_pending = false;
	answer_request(request);
	if (request->callback_pending)
		return true;			/* the scan has started, and must wait now */
	ExecAsyncResponse(request);

	/*
	 * The executor counts the rows of ForeignAsyncRequest and
	 * ForeignAsyncNotify, but not those of ForeignAsyncConfigureWait.
	 */
	if (node->ss.ps.instrument)
		InstrUpdateTupleCount(node->ss.ps.instrument,
							  TupIsNull(request->result) ? 0.0 : 1.0);
	return true;
}

/*
 * Answer all pending requests of the Append whose scans need not wait, because
 * their leases are free by now, or because another statement has buffered their
 * rows.
 *
 * A local filter may execute statements on the leases of other scans, and so
 * buffer the rows for which these wait.  So repeat this until all scans wait,
 * or the Append has rows.
 */
static void
answer_ready_requests(AppendState *append)
{
	bool		answered;

	do
	{
		int			i = -1;

		answered = false;
		while ((i = bms_next_member(append->as_asyncplans, i)) >= 0)
		{
			AsyncRequest *request = append->as_asyncrequests[i];

			if (request->callback_pending)
				answered |= answer_ready_request(append, request);
		}
	} while (answered && append->as_nasyncresults == 0);
}

/* Return whether the request is the first pending one of the Append. */
static bool
is_first_pending(const AppendState *append, const AsyncRequest *request)
{
	int			i = -1;

	while ((i = bms_next_member(append->as_asyncplans, i)) >= 0)
		if (append->as_asyncrequests[i]->callback_pending)
			return append->as_asyncrequests[i] == request;
	return false;
}

/*
 * Add the socket of a pending scan to the wait event set of the Append.  The
 * Append calls this for each pending request, in their order.
 *
 * An event cannot be removed from the set.  If a scan's rows were buffered
 * after its socket was added, the Append could wait for ever for that socket,
 * and another scan could not add the same socket.  So all requests of scans
 * that need not wait are answered before a socket is added.
 */
void
pgpx_scan_async_configure_wait(AsyncRequest *request)
{
	PgpxScan   *scan = ((ForeignScanState *) request->requestee)->fdw_state;
	AppendState *append = (AppendState *) request->requestor;
	pgsocket	socket;

	Assert(request->callback_pending);

	if (is_first_pending(append, request))
		answer_ready_requests(append);

	/* an Append that has rows does not wait without an event */
	if (!request->callback_pending || append->as_nasyncresults > 0)
		return;

	PGPX_DEBUG_POINT("fdw_append_waits");

	/* without a socket, this scan waits for the one that uses its lease */
	socket = pgpx_remote_scan_socket(scan->remote);
	if (socket != PGINVALID_SOCKET)
		AddWaitEventToSet(append->as_eventset, WL_SOCKET_READABLE, socket, NULL,
						  request);
}

void
pgpx_scan_async_notify(AsyncRequest *request)
{
	answer_request(request);
}
