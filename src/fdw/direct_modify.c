/*-------------------------------------------------------------------------
 *
 * direct_modify.c
 *	  UPDATE and DELETE that the remote server executes as a whole.
 *
 * The statement is sent by the first call of IterateDirectModify.  The rows of
 * its RETURNING are read from the stream as the executor asks for them; if
 * another statement needs the lease, the rest is buffered (remote_scan.c).  The
 * remote executes the whole statement, even if the executor stops reading.
 *
 * If the target is joined with other tables, a returned row has the columns of
 * fdw_scan_tlist, and the row of the target is extracted from it.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/direct_modify.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "executor/executor.h"
#include "utils/rel.h"

#include "fdw/contract.h"
#include "fdw/query_params.h"
#include "fdw/remote_scan.h"
#include "fdw/scan.h"
#include "fdw/tuple.h"
#include "values/rows.h"

/* Execution state of a node, in ForeignScanState.fdw_state. */
typedef struct PgpxDirectModify
{
	Relation	rel;			/* the target */
	Oid			server;
	Oid			user;			/* whose mapping is used */
	PgpxDirectModifyPlan plan;

	PgpxQueryParams params;

	bool		executed;
	uint64		nrows;			/* affected rows, without a scan */
	uint64		nread;			/* rows that were passed to the executor */

	PgpxRemoteScan *scan;		/* NULL: the statement returns nothing */

	/*
	 * For a join: the number of the column in fdw_scan_tlist that has an
	 * attribute of the target, for each attribute, and that has its ctid.  0:
	 * no column has it.
	 */
	AttrNumber *target_columns; /* NULL: no join */
	AttrNumber	ctid_column;
} PgpxDirectModify;

/* Find the columns of the target in the rows of a join. */
static void
map_target(PgpxDirectModify *d, List *scan_tlist, Index target)
{
	AttrNumber	column = 0;
	ListCell   *lc;

	d->target_columns = palloc0(sizeof(AttrNumber) *
								RelationGetNumberOfAttributes(d->rel));
	foreach(lc, scan_tlist)
	{
		Var		   *var = (Var *) lfirst_node(TargetEntry, lc)->expr;

		column++;
		if (!IsA(var, Var) || var->varno != target ||
			!list_member_int(d->plan.retrieved_attrs, column))
			continue;
		if (var->varattno > 0)
			d->target_columns[var->varattno - 1] = column;
		else if (var->varattno == SelfItemPointerAttributeNumber)
			d->ctid_column = column;
	}
}

void
pgpx_direct_modify_begin(ForeignScanState *node, int eflags)
{
	ForeignScan *scan = (ForeignScan *) node->ss.ps.plan;
	bool		join = scan->scan.scanrelid == 0;
	PgpxDirectModify *d;
	Index		target;

	/* EXPLAIN: fdw_state stays NULL */
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;
	d = palloc0(sizeof(*d));
	node->fdw_state = d;
	pgpx_contract_direct_modify(scan->fdw_private, &d->plan);
	target = node->resultRelInfo->ri_RangeTableIndex;
	d->rel = join ? ExecOpenScanRelation(node->ss.ps.state, target, eflags) :
		node->ss.ss_currentRelation;
	d->server = GetForeignTable(RelationGetRelid(d->rel))->serverid;
	d->user = pgpx_result_rel_user(node->resultRelInfo, node->ss.ps.state);
	if (d->plan.has_returning && join)
		map_target(d, scan->fdw_scan_tlist, target);
	pgpx_query_params_begin(&d->params, scan->fdw_exprs, &node->ss.ps);
}

/* Begin to read the rows of RETURNING. */
static void
begin_scan(PgpxDirectModify *d, ForeignScanState *node,
		   PgpxRemoteTransaction *transaction)
{
	MemoryContext old = MemoryContextSwitchTo(node->ss.ps.state->es_query_cxt);
	TupleDesc	tupdesc = pgpx_scan_tupdesc(node);
	int			n = list_length(d->plan.retrieved_attrs);
	AttrNumber *attnums = palloc(sizeof(AttrNumber) * n);
	PgpxRows   *rows;

	for (int i = 0; i < n; i++)
		attnums[i] = list_nth_int(d->plan.retrieved_attrs, i);
	rows = pgpx_rows_begin_attributes(tupdesc, n, attnums, pgpx_scan_context,
									  node);
	d->scan = pgpx_remote_scan_begin(transaction, d->plan.sql, rows, tupdesc,
									 0, true, true);
	MemoryContextSwitchTo(old);
}

/* Execute the statement.  With RETURNING, only send it. */
static void
execute(ForeignScanState *node)
{
	PgpxDirectModify *d = node->fdw_state;
	PgpxRemoteTransaction *transaction =
		pgpx_remote_transaction_get(d->server, d->user,
									RelationGetRelationName(d->rel));
	PgpxStatement statement = {
		.sql = d->plan.sql,
		.nparams = d->params.n,
		.values = pgpx_query_params_evaluate(&d->params,
											 node->ss.ps.ps_ExprContext),
	};

	if (!d->plan.has_returning)
		d->nrows = pgpx_remote_execute(transaction, &statement, NULL, true);
	else
	{
		begin_scan(d, node, transaction);
		pgpx_remote_scan_open(d->scan, statement.nparams, statement.values);
	}
	d->executed = true;
}

/* Extract the row of the target from a row of a join. */
static TupleTableSlot *
extract_target(PgpxDirectModify *d, ForeignScanState *node,
			   TupleTableSlot *row)
{
	TupleTableSlot *slot = ExecGetReturningSlot(node->ss.ps.state,
												node->resultRelInfo);
	HeapTuple	tuple;
	Datum		ctid;

	slot_getallattrs(row);
	ExecClearTuple(slot);
	for (int i = 0; i < RelationGetNumberOfAttributes(d->rel); i++)
	{
		int			column = d->target_columns[i];

		slot->tts_isnull[i] = column == 0 || row->tts_isnull[column - 1];
		slot->tts_values[i] = slot->tts_isnull[i] ? (Datum) 0 :
			row->tts_values[column - 1];
	}
	ExecStoreVirtualTuple(slot);
	if (d->ctid_column == 0 || row->tts_isnull[d->ctid_column - 1])
		return slot;

	/* system columns are read from a heap tuple */
	tuple = ExecFetchSlotHeapTuple(slot, true, NULL);
	ctid = row->tts_values[d->ctid_column - 1];
	tuple->t_self = *(ItemPointer) DatumGetPointer(ctid);
	HeapTupleHeaderSetXmin(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetXmax(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetCmin(tuple->t_data, InvalidTransactionId);
	return slot;
}

TupleTableSlot *
pgpx_direct_modify_iterate(ForeignScanState *node)
{
	PgpxDirectModify *d = node->fdw_state;
	EState	   *estate = node->ss.ps.state;
	ProjectionInfo *projection = node->resultRelInfo->ri_projectReturning;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	TupleTableSlot *target = slot;
	HeapTuple	tuple;
	Datum	   *values;
	bool	   *nulls;

	if (!d->executed)
		execute(node);
	if (projection == NULL)
	{
		if (d->plan.set_processed)
			estate->es_processed += d->nrows;
		if (node->ss.ps.instrument != NULL)
			node->ss.ps.instrument->tuplecount += d->nrows;
		return ExecClearTuple(slot);
	}

	if (d->scan == NULL)
	{
		/* RETURNING of constants: as many empty rows as were affected */
		if (d->nread == d->nrows)
			return ExecClearTuple(slot);
		ExecStoreAllNullTuple(slot);
	}
	else
	{
		if (!pgpx_remote_scan_next(d->scan, &values, &nulls))
			return ExecClearTuple(slot);
		tuple = pgpx_tuple_form(slot->tts_tupleDescriptor, values, nulls);
		ExecStoreHeapTuple(tuple, slot, false);
		if (d->target_columns != NULL)
			target = extract_target(d, node, slot);
	}
	d->nread++;
	if (d->plan.set_processed)
		estate->es_processed++;
	projection->pi_exprContext->ecxt_scantuple = target;
	return slot;
}

void
pgpx_direct_modify_end(ForeignScanState *node)
{
	PgpxDirectModify *d = node->fdw_state;

	if (d != NULL && d->scan != NULL)
		pgpx_remote_scan_end(d->scan);
}
