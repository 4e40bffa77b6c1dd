/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Scans of foreign tables and of foreign joins, and direct modifications:
 *	  the callbacks.
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
#include "values/params.h"
#include "fdw/remote_scan.h"
#include "fdw/remote_sql.h"

/* Prefix by which postgres_fdw describes an aggregate in a plan. */
#define AGGREGATE "Aggregate on "

/* State of a node, in ForeignScanState.fdw_state. */
typedef struct PgpxScan
{
	PgpxRemoteUse use;
	PgpxPlan	plan;
	PgpxRemoteScan *remote;		/* NULL: the statement returns no rows */
	bool		opened;			/* sent, with the current parameters */

	/* parameters of the statement: expressions of the plan */
	PgpxParamTypes types;
	List	   *params;			/* of ExprStates */
	MemoryContext params_cxt;	/* of their texts; reset for each execution */

	/* a scan */
	TupleDesc	tupdesc;		/* of the remote rows */
	bool		heap_tuples;	/* rows need system columns */
	bool		pending;		/* the next row has not arrived yet */

	/* rows for a repetition; NULL: not kept */
	Tuplestorestate *kept;
	TupleTableSlot *kept_slot;
	Bitmapset  *param_ids;		/* executor parameters that params depend on */

	/* a direct modification */
	uint64		nreturned;		/* if the statement returns no rows: rows of
								 * RETURNING that were passed to the executor */

	/*
	 * For a join: for each attribute of the target, and for its ctid, the
	 * number of the column in fdw_scan_tlist that has it; 0: none has it.
	 */
	AttrNumber *target_columns; /* NULL: no join */
	AttrNumber	ctid_column;
} PgpxScan;

/*
 * Return the tuple descriptor of a node's remote rows.  A whole-row reference of
 * a join is of type record in the executor's descriptor; here it has the table's
 * row type.
 */
static TupleDesc
remote_tupdesc(ForeignScanState *node)
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
 * Add the column to the context of an error in the conversion of a value, as
 * postgres_fdw does: with the names in the range table.
 */
static void
scan_context(void *arg, AttrNumber attnum)
{
	ForeignScanState *node = arg;
	ForeignScan *plan = (ForeignScan *) node->ss.ps.plan;
	Index		varno = plan->scan.scanrelid;
	AttrNumber	varattno = attnum;
	const char *name = NULL;
	RangeTblEntry *rte = NULL;

	if (varno == 0 && attnum > 0 && attnum <= list_length(plan->fdw_scan_tlist))
	{
		TargetEntry *entry = list_nth(plan->fdw_scan_tlist, attnum - 1);
		const Var  *var = (Var *) entry->expr;

		if (IsA(var, Var))
		{
			varno = var->varno;
			varattno = var->varattno;
		}
	}
	if (varno > 0)
		rte = exec_rt_fetch(varno, node->ss.ps.state);
	if (varattno == SelfItemPointerAttributeNumber)
		name = "ctid";
	else if (rte != NULL && varattno > 0 &&
			 varattno <= list_length(rte->eref->colnames))
		name = strVal(list_nth(rte->eref->colnames, varattno - 1));
	if (rte != NULL && name != NULL)
		errcontext("column \"%s\" of foreign table \"%s\"", name,
				   rte->eref->aliasname);
	else if (rte != NULL && varattno == 0)
		errcontext("whole-row reference to foreign table \"%s\"",
				   rte->eref->aliasname);
	else
		errcontext("processing expression at position %d in select list",
				   attnum);
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

/*
 * Evaluate the parameters and return their texts, which are valid until the next
 * call.
 */
static const char **
evaluate_params(ForeignScanState *node, PgpxScan *scan)
{
	const char **texts;
	NullableDatum *values;
	MemoryContext old;
	ListCell   *lc;

	if (scan->params == NIL)
		return NULL;
	MemoryContextReset(scan->params_cxt);
	old = MemoryContextSwitchTo(scan->params_cxt);
	values = palloc(sizeof(NullableDatum) * scan->types.n);
	foreach(lc, scan->params)
	{
		NullableDatum *value = &values[foreach_current_index(lc)];

		value->value = ExecEvalExpr((ExprState *) lfirst(lc),
									node->ss.ps.ps_ExprContext, &value->isnull);
	}
	texts = pgpx_params_convert(&scan->types, 1, values);
	MemoryContextSwitchTo(old);
	return texts;
}

/*
 * Return the number of rows of each batch, or PGPX_FETCH_*.  The plan has the
 * default of postgres_fdw if no table has the option.
 */
static int
get_fetch_size(ForeignScanState *node, const PgpxPlan *plan)
{
	Bitmapset  *relids = pgpx_scan_relids((ForeignScan *) node->ss.ps.plan);
	int			varno = -1;

	/*
	 * An aggregate returns few rows for much work, so it is executed for all
	 * rows at once, which allows a parallel plan.
	 */
	if (plan->relations != NULL &&
		strncmp(plan->relations, AGGREGATE, strlen(AGGREGATE)) == 0)
		return PGPX_FETCH_ALL;
	while ((varno = bms_next_member(relids, varno)) >= 0)
	{
		Oid			relid = exec_rt_fetch(varno, node->ss.ps.state)->relid;

		if (pgpx_table_int_option(relid, "fetch_size", 0) > 0)
			return plan->fetch_size;	/* the largest of the tables */
	}
	return PGPX_FETCH_GROWING;
}

/*
 * Begin a node.  varno: one of its tables, which all have the same server and
 * the same user.
 */
static PgpxScan *
begin_node(ForeignScanState *node, const PgpxPlan *plan, Index varno)
{
	List	   *exprs = ((ForeignScan *) node->ss.ps.plan)->fdw_exprs;
	Oid			relid = exec_rt_fetch(varno, node->ss.ps.state)->relid;
	PgpxScan   *scan = palloc0(sizeof(*scan));
	ListCell   *lc;

	node->fdw_state = scan;
	scan->plan = *plan;
	scan->use.server = GetForeignServerIdByRelId(relid);
	scan->use.user = pgpx_scan_user(node, varno);
	scan->use.why = plan->relations != NULL ? plan->sql : get_rel_name(relid);
	foreach(lc, exprs)
		pgpx_params_add_type(&scan->types, exprType(lfirst(lc)));
	scan->params = ExecInitExprList(exprs, &node->ss.ps);
	if (exprs != NIL)
		scan->params_cxt = AllocSetContextCreate(CurrentMemoryContext,
												 "pgpool_ext parameters",
												 ALLOCSET_SMALL_SIZES);
	return scan;
}

/* Begin to read the rows that the statement of a node returns. */
static void
begin_rows(ForeignScanState *node, PgpxScan *scan, int fetch_size,
		   double expected)
{
	scan->tupdesc = remote_tupdesc(node);
	scan->remote = pgpx_remote_scan_begin(&(PgpxScanSource){
		.use = &scan->use,
		.sql = scan->plan.sql,
		.tupdesc = scan->tupdesc,
		.attnums = scan->plan.retrieved_attrs,
		.where = scan_context,
		.where_arg = node,
		.fetch_size = fetch_size,
		.expected = expected,
	});
}

void
pgpx_scan_begin(ForeignScanState *node, int eflags)
{
	ForeignScan *scan_plan = (ForeignScan *) node->ss.ps.plan;
	PgpxPlan	plan = pgpx_read_scan_plan(scan_plan->fdw_private);
	Index		varno = scan_plan->scan.scanrelid;
	PgpxScan   *scan;

	/* EXPLAIN: fdw_state stays NULL */
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;
	if (varno == 0)
		varno = bms_next_member(pgpx_scan_relids(scan_plan), -1);
	scan = begin_node(node, &plan, varno);
	begin_rows(node, scan, get_fetch_size(node, &plan),
			   node->ss.ps.plan->plan_rows);
	scan->heap_tuples = scan_plan->fsSystemCol ||
		list_member_int(plan.retrieved_attrs, SelfItemPointerAttributeNumber);
	begin_kept(node, scan);
}

/*
 * Send the statement with the current parameters, if it was not sent yet.
 * Return false if the scan must first wait for another scan of the same Append,
 * whose lease it shares.
 */
static bool
open_scan(ForeignScanState *node, PgpxScan *scan)
{
	if (!scan->opened && !pgpx_remote_scan_must_wait(scan->remote))
		scan->opened = pgpx_remote_scan_open(scan->remote, scan->types.n,
											 evaluate_params(node, scan));
	return scan->opened;
}

/*
 * Read the next row: one that was kept, or else one from the remote.  Return
 * false at the end, or if an asynchronous scan must wait for the row; then set
 * "pending".
 */
static bool
next_row(ForeignScanState *node, PgpxScan *scan, PgpxRowValues *row)
{
	PgpxRunStep reached = PGPX_RUN_WAIT;

	scan->pending = false;
	if (scan->kept != NULL && !tuplestore_ateof(scan->kept) &&
		pgpx_stored_row_next(scan->kept, scan->kept_slot, row))
		return true;
	if (open_scan(node, scan))
		reached = pgpx_remote_scan_next(scan->remote, row);
	scan->pending = reached == PGPX_RUN_WAIT;
	if (reached != PGPX_RUN_STOPPED)
		return false;
	scan->use.rows++;

	/* the row is added at the end, which is where the next read begins */
	if (scan->kept != NULL)
		tuplestore_putvalues(scan->kept, scan->kept_slot->tts_tupleDescriptor,
							 row->values, row->nulls);
	return true;
}

TupleTableSlot *
pgpx_scan_iterate(ForeignScanState *node)
{
	PgpxScan   *scan = node->fdw_state;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	int			natts = scan->tupdesc->natts;
	PgpxRowValues row;

	ExecClearTuple(slot);
	if (!next_row(node, scan, &row))
		return slot;
	if (scan->heap_tuples)
		return ExecStoreHeapTuple(pgpx_tuple_form(scan->tupdesc, row), slot,
								  false);
	memcpy(slot->tts_values, row.values, sizeof(Datum) * natts);
	memcpy(slot->tts_isnull, row.nulls, sizeof(bool) * natts);
	return ExecStoreVirtualTuple(slot);
}

void
pgpx_scan_rescan(ForeignScanState *node)
{
	PgpxScan   *scan = node->fdw_state;

	if (scan == NULL)
		return;
	if (scan->kept != NULL)
	{
		ExecClearTuple(scan->kept_slot);
		if (scan->opened &&
			!bms_overlap(node->ss.ps.chgParam, scan->param_ids))
		{
			tuplestore_rescan(scan->kept);
			return;
		}
		tuplestore_clear(scan->kept);
	}
	scan->opened = false;
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
		pgpx_remote_scan_set_request(scan->remote, request);
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

/* ------------------------------------------------------------------------
 * Direct modification: an UPDATE or DELETE that the remote executes as a whole
 *
 * The first call of IterateDirectModify sends the statement.  The rows of
 * RETURNING are read from the stream as the executor asks for them; if another
 * statement needs the lease, the rest is buffered (remote_scan.c).  The remote
 * executes the whole statement, even if the executor stops reading.
 *
 * If the target is joined with other tables, a returned row has the columns of
 * fdw_scan_tlist, and the row of the target is extracted from it.
 * ------------------------------------------------------------------------
 */

/* Find the columns of the target in the rows of a join. */
static void
map_target(PgpxScan *scan, List *scan_tlist, const ResultRelInfo *target)
{
	AttrNumber	column = 0;
	ListCell   *lc;

	scan->target_columns =
		palloc0(sizeof(AttrNumber) *
				RelationGetNumberOfAttributes(target->ri_RelationDesc));
	foreach(lc, scan_tlist)
	{
		Var		   *var = (Var *) lfirst_node(TargetEntry, lc)->expr;

		column++;
		if (!IsA(var, Var) || var->varno != target->ri_RangeTableIndex ||
			!list_member_int(scan->plan.retrieved_attrs, column))
			continue;
		if (var->varattno > 0)
			scan->target_columns[var->varattno - 1] = column;
		else if (var->varattno == SelfItemPointerAttributeNumber)
			scan->ctid_column = column;
	}
}

void
pgpx_direct_modify_begin(ForeignScanState *node, int eflags)
{
	ForeignScan *scan_plan = (ForeignScan *) node->ss.ps.plan;
	ResultRelInfo *target = node->resultRelInfo;
	PgpxPlan	plan;
	PgpxScan   *scan;

	/* EXPLAIN: fdw_state stays NULL */
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;
	plan = pgpx_read_direct_modify_plan(scan_plan->fdw_private);
	scan = begin_node(node, &plan, target->ri_RangeTableIndex);
	if (!plan.has_returning)
		return;
	begin_rows(node, scan, PGPX_FETCH_ALL, 0);
	if (scan_plan->scan.scanrelid == 0)
		map_target(scan, scan_plan->fdw_scan_tlist, target);
}

/* Execute the statement.  With RETURNING, only send it. */
static void
execute_direct(ForeignScanState *node, PgpxScan *scan)
{
	PgpxStatement statement = {.sql = scan->plan.sql, .nparams = scan->types.n};

	(void) pgpx_remote_transaction_get(&scan->use, NULL);
	if (scan->remote != NULL)
	{
		(void) open_scan(node, scan);
		return;
	}
	statement.values = evaluate_params(node, scan);
	scan->use.rows = pgpx_remote_execute(scan->use.transaction, &statement);
	scan->opened = true;
}

/* Extract the row of the target from a row of a join. */
static TupleTableSlot *
extract_target(PgpxScan *scan, ForeignScanState *node,
			   TupleTableSlot *row)
{
	TupleTableSlot *slot = ExecGetReturningSlot(node->ss.ps.state,
												node->resultRelInfo);
	HeapTuple	tuple;
	Datum		ctid;

	slot_getallattrs(row);
	ExecClearTuple(slot);
	for (int i = 0; i < slot->tts_tupleDescriptor->natts; i++)
	{
		int			column = scan->target_columns[i];

		slot->tts_isnull[i] = column == 0 || row->tts_isnull[column - 1];
		slot->tts_values[i] = slot->tts_isnull[i] ? (Datum) 0 :
			row->tts_values[column - 1];
	}
	ExecStoreVirtualTuple(slot);
	if (scan->ctid_column == 0 || row->tts_isnull[scan->ctid_column - 1])
		return slot;

	/* ctid is read from the slot, other system columns from a heap tuple */
	tuple = ExecFetchSlotHeapTuple(slot, true, NULL);
	ctid = row->tts_values[scan->ctid_column - 1];
	tuple->t_self = slot->tts_tid = *(ItemPointer) DatumGetPointer(ctid);
	HeapTupleHeaderSetXmin(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetXmax(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetCmin(tuple->t_data, InvalidTransactionId);
	return slot;
}

TupleTableSlot *
pgpx_direct_modify_iterate(ForeignScanState *node)
{
	PgpxScan   *scan = node->fdw_state;
	EState	   *estate = node->ss.ps.state;
	ProjectionInfo *projection = node->resultRelInfo->ri_projectReturning;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	TupleTableSlot *target = slot;
	PgpxRowValues row;

	if (!scan->opened)
		execute_direct(node, scan);
	if (projection == NULL)
	{
		if (scan->plan.set_processed)
			estate->es_processed += scan->use.rows;
		if (node->ss.ps.instrument != NULL)
			node->ss.ps.instrument->tuplecount += scan->use.rows;
		return ExecClearTuple(slot);
	}

	if (scan->remote == NULL)
	{
		/* RETURNING of constants: as many rows as were affected */
		if (scan->nreturned == scan->use.rows)
			return ExecClearTuple(slot);
		scan->nreturned++;
		ExecStoreAllNullTuple(slot);
	}
	else
	{
		if (pgpx_remote_scan_next(scan->remote, &row) != PGPX_RUN_STOPPED)
			return ExecClearTuple(slot);
		ExecStoreHeapTuple(pgpx_tuple_form(slot->tts_tupleDescriptor, row),
						   slot, false);
		if (scan->target_columns != NULL)
			target = extract_target(scan, node, slot);
		scan->use.rows++;
	}
	if (scan->plan.set_processed)
		estate->es_processed++;
	projection->pi_exprContext->ecxt_scantuple = target;
	return slot;
}
