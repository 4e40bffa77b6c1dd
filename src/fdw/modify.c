/*-------------------------------------------------------------------------
 *
 * modify.c
 *	  INSERT, UPDATE, DELETE, COPY FROM and TRUNCATE of foreign tables.
 *
 * postgres_fdw plans and writes the statements; this file executes them on the
 * lease of the local transaction.  A plan has one statement for each target
 * table.  It is executed for each row, or for a batch of rows.
 *
 * - A lease is acquired at the first row.  So EXPLAIN without ANALYZE acquires
 *   none, and neither does a statement that affects no row.
 * - A row is identified by its ctid, which the subplan's scan has returned.
 * - The user of the lease is the user whose permissions on the table the
 *   executor checks.  For an access through a view, that is the view's owner.
 * - Generated columns are sent as DEFAULT.
 *
 * A direct modification is an UPDATE or DELETE that the remote executes as a
 * whole.  The first call of IterateDirectModify sends it.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/handler.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "nodes/plannodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "values/params.h"
#include "fdw/remote_scan.h"
#include "fdw/remote_sql.h"
#include "fdw/remote_transaction.h"

/* ------------------------------------------------------------------------
 * Modification row by row
 * ------------------------------------------------------------------------
 */

/* State of one target table, in ResultRelInfo.ri_FdwState. */
typedef struct PgpxModify
{
	PgpxNodeUsage usage;
	Relation	rel;
	Oid			server;
	Oid			user;			/* whose mapping is used */

	const char *row_sql;		/* the statement for one row */
	const char *sql;			/* the statement for nrows rows */
	int			nrows;
	List	   *target_attrs;	/* of INSERT and UPDATE */
	int			values_end;		/* length of row_sql to the end of VALUES */
	int			batch_size;		/* of an INSERT */

	/* parameters of one row: ctid, then the columns that are not generated */
	AttrNumber	ctid_attno;		/* in the rows of the subplan; 0: INSERT */
	int			ncolumns;
	AttrNumber *columns;
	AttrNumber	last_column;	/* the largest of them */
	FmgrInfo   *outputs;		/* output functions of their types */
	bool		catalog_path;	/* see pgpx_params_need_catalog_path */
	const char **values;		/* the parameters of nrows rows */
	char		ctid[32];		/* text of the parameter */

	/* RETURNING */
	PgpxRows   *rows;			/* NULL: none */
	PgpxRemoteScan *scan;		/* NULL until the first row */

	MemoryContext cxt;			/* of this struct */
	MemoryContext row_cxt;		/* reset after each execution */
} PgpxModify;

static int
get_batch_size(Relation rel)
{
	const char *value = pgpx_table_option(RelationGetRelid(rel),
										  "batch_size");
	int			batch_size = 1;

	/* the validator has checked the value */
	if (value != NULL)
		(void) parse_int(value, &batch_size, 0, NULL);
	return batch_size;
}

/* Determine which columns of a row become parameters, and how. */
static void
begin_columns(PgpxModify *m)
{
	TupleDesc	tupdesc = RelationGetDescr(m->rel);
	int			n = list_length(m->target_attrs);
	ListCell   *lc;

	m->columns = palloc(sizeof(AttrNumber) * Max(n, 1));
	m->outputs = palloc(sizeof(FmgrInfo) * Max(n, 1));
	foreach(lc, m->target_attrs)
	{
		int			attnum = lfirst_int(lc);
		Form_pg_attribute attr = TupleDescAttr(tupdesc, attnum - 1);
		Oid			output;
		bool		varlena;

		if (attr->attgenerated)
			continue;
		getTypeOutputInfo(attr->atttypid, &output, &varlena);
		fmgr_info(output, &m->outputs[m->ncolumns]);
		m->columns[m->ncolumns++] = attnum;
		m->last_column = Max(m->last_column, attnum);
		if (pgpx_params_need_catalog_path(attr->atttypid))
			m->catalog_path = true;
	}
}

static PgpxModify *
begin_modify(EState *estate, ResultRelInfo *result_rel, CmdType operation,
			 Plan *subplan, const char *sql, List *target_attrs,
			 int values_end, List *retrieved_attrs)
{
	PgpxModify *m = palloc0(sizeof(*m));

	m->rel = result_rel->ri_RelationDesc;
	m->server = GetForeignServerIdByRelId(RelationGetRelid(m->rel));
	m->user = pgpx_result_rel_user(result_rel, estate);
	m->sql = m->row_sql = sql;
	m->nrows = 1;
	m->target_attrs = operation == CMD_DELETE ? NIL : target_attrs;
	m->values_end = values_end;
	if (operation == CMD_INSERT)
		m->batch_size = get_batch_size(m->rel);
	else
	{
		m->ctid_attno = ExecFindJunkAttributeInTlist(subplan->targetlist,
													 "ctid");
		if (!AttributeNumberIsValid(m->ctid_attno))
			elog(ERROR, "could not find junk ctid column");
	}
	begin_columns(m);
	m->cxt = CurrentMemoryContext;
	m->row_cxt = AllocSetContextCreate(CurrentMemoryContext,
									   "pgpool_ext modified row",
									   ALLOCSET_SMALL_SIZES);
	m->values = palloc(sizeof(char *) * (m->ncolumns + 1));
	if (retrieved_attrs != NIL)
		m->rows = pgpx_rows_begin_attributes(RelationGetDescr(m->rel),
											 retrieved_attrs,
											 pgpx_table_context, m->rel);
	return m;
}

void
pgpx_modify_begin(ModifyTableState *mtstate, ResultRelInfo *result_rel,
				  List *fdw_private, int subplan_index, int eflags)
{
	PgpxModifyPlan plan;

	/* EXPLAIN: ri_FdwState stays NULL */
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;
	pgpx_read_modify_plan(fdw_private, &plan);
	result_rel->ri_FdwState =
		begin_modify(mtstate->ps.state, result_rel, mtstate->operation,
					 outerPlanState(mtstate)->plan, plan.sql,
					 plan.target_attrs, plan.values_end,
					 plan.retrieved_attrs);
}

/* Adapt the statement and the array of parameters to n rows. */
static void
set_nrows(PgpxModify *m, int n)
{
	MemoryContext old;

	if (m->nrows == n)
		return;
	old = MemoryContextSwitchTo(m->cxt);
	if (m->sql != m->row_sql)
		pfree(unconstify(char *, m->sql));
	m->sql = m->row_sql;
	m->nrows = 1;
	m->values = repalloc(m->values, sizeof(char *) * (m->ncolumns * n + 1));
	if (n > 1)
		m->sql = pgpx_deparse_insert_rows(m->rel, m->row_sql,
										  m->target_attrs, m->values_end,
										  m->ncolumns, n);
	m->nrows = n;
	MemoryContextSwitchTo(old);
}

/*
 * Convert nrows rows to parameters, in row_cxt.  Return the number of
 * parameters.  ctid: of the row that is updated or deleted; NULL: INSERT.
 */
static int
set_values(PgpxModify *m, ItemPointer ctid, TupleTableSlot **slots)
{
	MemoryContext old = MemoryContextSwitchTo(m->row_cxt);
	int			n = 0;
	int			level;

	if (ctid != NULL)
	{
		snprintf(m->ctid, sizeof(m->ctid), "(%u,%u)",
				 ItemPointerGetBlockNumberNoCheck(ctid),
				 ItemPointerGetOffsetNumberNoCheck(ctid));
		m->values[n++] = m->ctid;
	}

	/* until pgpx_params_end_styles no code may need the session's styles */
	level = pgpx_params_begin_styles(m->catalog_path);
	for (int row = 0; row < m->nrows && m->ncolumns > 0; row++)
	{
		slot_getsomeattrs(slots[row], m->last_column);
		for (int i = 0; i < m->ncolumns; i++)
		{
			int			at = m->columns[i] - 1;

			m->values[n++] = slots[row]->tts_isnull[at] ? NULL :
				OutputFunctionCall(&m->outputs[i],
								   slots[row]->tts_values[at]);
		}
	}
	pgpx_params_end_styles(level);
	MemoryContextSwitchTo(old);
	return n;
}

/*
 * Execute a statement for one row with RETURNING.  Store the returned row in the
 * slot.  Return the number of rows: 0 or 1.  A rule on the remote table can add
 * rows to the answer, which are discarded.
 */
static int
execute_returning(PgpxModify *m, const PgpxStatement *statement,
				  TupleTableSlot *slot)
{
	HeapTuple	tuple = NULL;
	Datum	   *values;
	bool	   *nulls;

	if (m->scan == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(m->cxt);

		m->scan = pgpx_remote_scan_begin(m->usage.transaction, m->row_sql,
										 m->rows, RelationGetDescr(m->rel),
										 PGPX_FETCH_ALL, 0, NULL);
		MemoryContextSwitchTo(old);
	}
	pgpx_remote_scan_open(m->scan, statement->nparams, statement->values);
	while (pgpx_remote_scan_next(m->scan, &values, &nulls))
		if (tuple == NULL)
			tuple = pgpx_tuple_form(RelationGetDescr(m->rel), values, nulls);
	if (tuple == NULL)
		return 0;
	ExecForceStoreHeapTuple(tuple, slot, true);
	return 1;
}

/*
 * Execute the statement for *nslots rows.  Set *nslots to the number of rows
 * that the remote has inserted, updated or deleted.  Return NULL if that is 0,
 * otherwise the slots.  With RETURNING, the first slot has the returned row.
 */
static TupleTableSlot **
execute(PgpxModify *m, TupleTableSlot **slots, TupleTableSlot **plan_slots,
		int *nslots)
{
	ItemPointer ctid = NULL;
	PgpxStatement statement;
	uint64		n;

	if (m->usage.transaction == NULL)
		m->usage.transaction =
			pgpx_remote_transaction_get(m->server, m->user,
										RelationGetRelationName(m->rel), NULL);
	set_nrows(m, *nslots);
	if (AttributeNumberIsValid(m->ctid_attno))
	{
		bool		isnull;
		Datum		datum = ExecGetJunkAttribute(plan_slots[0], m->ctid_attno,
												 &isnull);

		if (isnull)
			elog(ERROR, "ctid is NULL");
		ctid = (ItemPointer) DatumGetPointer(datum);
	}
	statement.sql = m->sql;
	statement.nparams = set_values(m, ctid, slots);
	statement.values = m->values;
	n = m->rows != NULL ? execute_returning(m, &statement, slots[0]) :
		pgpx_remote_execute(m->usage.transaction, &statement, NULL);
	MemoryContextReset(m->row_cxt);

	/* the remote's number is untrusted: it must not exceed the rows sent */
	*nslots = Min(n, *nslots);
	m->usage.rows += *nslots;
	return *nslots > 0 ? slots : NULL;
}

TupleTableSlot **
pgpx_modify_insert_batch(EState *estate, ResultRelInfo *result_rel,
						 TupleTableSlot **slots, TupleTableSlot **plan_slots,
						 int *nslots)
{
	return execute(result_rel->ri_FdwState, slots, plan_slots, nslots);
}

TupleTableSlot *
pgpx_modify_row(EState *estate, ResultRelInfo *result_rel,
				TupleTableSlot *slot, TupleTableSlot *plan_slot)
{
	PgpxModify *m = result_rel->ri_FdwState;
	int			n = 1;

	return execute(m, &slot, &plan_slot, &n) ? slot : NULL;
}

int
pgpx_modify_batch_size(ResultRelInfo *result_rel)
{
	PgpxModify *m = result_rel->ri_FdwState;
	TriggerDesc *triggers = result_rel->ri_TrigDesc;
	int			batch_size;

	/*
	 * RETURNING and checks need each row as the remote stored it.  A trigger
	 * may query the table, and must then see the rows inserted before.
	 */
	if (result_rel->ri_projectReturning != NULL ||
		result_rel->ri_WithCheckOptions != NIL ||
		(triggers != NULL &&
		 (triggers->trig_insert_before_row || triggers->trig_insert_after_row)))
		return 1;

	/* EXPLAIN */
	if (m == NULL)
		return get_batch_size(result_rel->ri_RelationDesc);

	/* INSERT .. DEFAULT VALUES can only insert one row */
	if (m->target_attrs == NIL)
		return 1;
	batch_size = m->batch_size;
	if (m->ncolumns > 0)
		batch_size = Min(batch_size, PGPX_WIRE_PARAMS_MAX / m->ncolumns);
	return Max(batch_size, 1);
}

/*
 * Return the varno of the Vars in result_rel's expressions.  If a partition has
 * no range table entry of its own, its expressions were built for another
 * table.
 */
static Index
result_rel_varno(ModifyTableState *mtstate, ResultRelInfo *result_rel)
{
	ModifyTable *plan = (ModifyTable *) mtstate->ps.plan;
	ResultRelInfo *root = result_rel->ri_RootResultRelInfo;

	if (result_rel->ri_RangeTableIndex != 0)
		return result_rel->ri_RangeTableIndex;

	/* UPDATE: the planner built them for the first of the target tables */
	if (plan != NULL && plan->operation == CMD_UPDATE &&
		root->ri_RangeTableIndex == plan->rootRelation)
		return mtstate->resultRelInfo[0].ri_RangeTableIndex;
	return root->ri_RangeTableIndex;
}

void
pgpx_modify_begin_insert(ModifyTableState *mtstate, ResultRelInfo *result_rel)
{
	ModifyTable *plan = castNode(ModifyTable, mtstate->ps.plan);
	Relation	rel = result_rel->ri_RelationDesc;
	List	   *target_attrs = NIL;
	List	   *retrieved_attrs;
	bool		do_nothing;
	int			values_end;
	char	   *sql;

	/*
	 * The UPDATE that moves the row to this partition also updates the
	 * partition, and could update the moved row again.
	 */
	if (plan != NULL && plan->operation == CMD_UPDATE &&
		(result_rel->ri_usesFdwDirectModify ||
		 result_rel->ri_FdwState != NULL))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot route tuples into foreign table to be updated \"%s\"",
						RelationGetRelationName(rel))));
	do_nothing = plan != NULL && plan->onConflictAction == ONCONFLICT_NOTHING;
	if (plan != NULL && !do_nothing &&
		plan->onConflictAction != ONCONFLICT_NONE)
		elog(ERROR, "unexpected ON CONFLICT specification: %d",
			 (int) plan->onConflictAction);

	for (int attnum = 1; attnum <= RelationGetNumberOfAttributes(rel); attnum++)
		if (!TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attisdropped)
			target_attrs = lappend_int(target_attrs, attnum);
	sql = pgpx_deparse_insert(rel, result_rel_varno(mtstate, result_rel),
							  target_attrs, do_nothing,
							  result_rel->ri_WithCheckOptions,
							  result_rel->ri_returningList,
							  &retrieved_attrs, &values_end);
	result_rel->ri_FdwState =
		begin_modify(mtstate->ps.state, result_rel, CMD_INSERT, NULL, sql,
					 target_attrs, values_end, retrieved_attrs);
}

/* ------------------------------------------------------------------------
 * TRUNCATE
 * ------------------------------------------------------------------------
 */

/*
 * The servers on which this transaction has truncated a table, and those for
 * which postgres_fdw has planned on a connection of its own.
 */
static List *truncated = NIL;
static List *estimated = NIL;

/* Called when the memory of the lists is freed, at the transaction's end. */
static void
forget_servers(void *arg)
{
	truncated = estimated = NIL;
}

/*
 * Add a server to one of the two lists, and raise an error if it is in the
 * other one.
 */
static void
add_server(List **list, const List *other, Oid server)
{
	MemoryContext old;

	if (list_member_oid(other, server))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot truncate a foreign table of server \"%s\" and use option \"use_remote_estimate\" in one transaction",
						GetForeignServer(server)->servername),
				 errdetail("With this option postgres_fdw plans on a connection of its own, and the two connections would wait for each other's locks."),
				 errhint("Truncate in a transaction of its own, or drop the option.")));
	if (list_member_oid(*list, server))
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	if (truncated == NIL && estimated == NIL)
	{
		MemoryContextCallback *callback = palloc0(sizeof(*callback));

		callback->func = forget_servers;
		MemoryContextRegisterResetCallback(TopTransactionContext, callback);
	}
	*list = lappend_oid(*list, server);
	MemoryContextSwitchTo(old);
}

void
pgpx_truncate_note_estimate(Oid server)
{
	add_server(&estimated, truncated, server);
}

void
pgpx_truncate(List *rels, DropBehavior behavior, bool restart_seqs)
{
	PgpxRemoteTransaction *transaction;
	PgpxStatement statement = {0};
	Oid			server = InvalidOid;
	ListCell   *lc;

	/* the caller passes tables of one server */
	foreach(lc, rels)
	{
		Relation	rel = (Relation) lfirst(lc);
		const char *value = pgpx_table_option(RelationGetRelid(rel),
											  "truncatable");
		bool		truncatable = true;

		if (value != NULL)
			(void) parse_bool(value, &truncatable);
		if (!truncatable)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("foreign table \"%s\" does not allow truncates",
							RelationGetRelationName(rel))));
		server = GetForeignServerIdByRelId(RelationGetRelid(rel));
	}
	add_server(&truncated, estimated, server);
	transaction = pgpx_remote_transaction_get(server, GetUserId(), "TRUNCATE",
											  NULL);
	statement.sql = pgpx_deparse_truncate(rels, behavior, restart_seqs);
	(void) pgpx_remote_execute(transaction, &statement, NULL);
}

/* ------------------------------------------------------------------------
 * Direct modification
 *
 * The rows of RETURNING are read from the stream as the executor asks for them;
 * if another statement needs the lease, the rest is buffered (remote_scan.c).
 * The remote executes the whole statement, even if the executor stops reading.
 *
 * If the target is joined with other tables, a returned row has the columns of
 * fdw_scan_tlist, and the row of the target is extracted from it.
 * ------------------------------------------------------------------------
 */

/* State of a node, in ForeignScanState.fdw_state. */
typedef struct PgpxDirectModify
{
	PgpxNodeUsage usage;
	Relation	rel;			/* the target */
	Oid			server;
	Oid			user;			/* whose mapping is used */
	PgpxDirectModifyPlan plan;

	PgpxQueryParams params;

	bool		executed;
	PgpxRemoteScan *scan;		/* NULL: the statement returns no rows */
	uint64		nreturned;		/* without a scan: rows of RETURNING that were
								 * passed to the executor */

	/*
	 * For a join: for each attribute of the target, and for its ctid, the
	 * number of the column in fdw_scan_tlist that has it; 0: none has it.
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
	pgpx_read_direct_modify_plan(scan->fdw_private, &d->plan);
	target = node->resultRelInfo->ri_RangeTableIndex;
	d->rel = join ? ExecOpenScanRelation(node->ss.ps.state, target, eflags) :
		node->ss.ss_currentRelation;
	d->server = GetForeignServerIdByRelId(RelationGetRelid(d->rel));
	d->user = pgpx_result_rel_user(node->resultRelInfo, node->ss.ps.state);
	if (d->plan.has_returning && join)
		map_target(d, scan->fdw_scan_tlist, target);
	pgpx_query_params_begin(&d->params, scan->fdw_exprs, &node->ss.ps);
}

/* Begin the scan that reads the rows of RETURNING. */
static void
begin_returning_scan(PgpxDirectModify *d, ForeignScanState *node)
{
	MemoryContext old = MemoryContextSwitchTo(node->ss.ps.state->es_query_cxt);
	TupleDesc	tupdesc = pgpx_scan_tupdesc(node);
	PgpxRows   *rows = pgpx_rows_begin_attributes(tupdesc,
												  d->plan.retrieved_attrs,
												  pgpx_scan_context, node);

	d->scan = pgpx_remote_scan_begin(d->usage.transaction, d->plan.sql, rows,
									 tupdesc, PGPX_FETCH_ALL, 0, NULL);
	MemoryContextSwitchTo(old);
}

/* Execute the statement.  With RETURNING, only send it. */
static void
execute_direct(ForeignScanState *node)
{
	PgpxDirectModify *d = node->fdw_state;
	PgpxStatement statement = {.sql = d->plan.sql, .nparams = d->params.n};

	d->usage.transaction =
		pgpx_remote_transaction_get(d->server, d->user,
									RelationGetRelationName(d->rel), NULL);
	statement.values = pgpx_query_params_evaluate(&d->params,
												  node->ss.ps.ps_ExprContext);
	if (!d->plan.has_returning)
		d->usage.rows = pgpx_remote_execute(d->usage.transaction, &statement,
											NULL);
	else
	{
		begin_returning_scan(d, node);
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

	/* ctid is read from the slot, other system columns from a heap tuple */
	tuple = ExecFetchSlotHeapTuple(slot, true, NULL);
	ctid = row->tts_values[d->ctid_column - 1];
	tuple->t_self = slot->tts_tid = *(ItemPointer) DatumGetPointer(ctid);
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
		execute_direct(node);
	if (projection == NULL)
	{
		if (d->plan.set_processed)
			estate->es_processed += d->usage.rows;
		if (node->ss.ps.instrument != NULL)
			node->ss.ps.instrument->tuplecount += d->usage.rows;
		return ExecClearTuple(slot);
	}

	if (d->scan == NULL)
	{
		/* RETURNING of constants: as many rows as were affected */
		if (d->nreturned == d->usage.rows)
			return ExecClearTuple(slot);
		d->nreturned++;
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
		d->usage.rows++;
	}
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
