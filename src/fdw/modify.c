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
	PgpxRemoteUse use;
	Relation	rel;
	PgpxPlan	plan;			/* its statement is for one row */
	const char *sql;			/* the statement for nrows rows */
	int			nrows;

	/* parameters of one row: ctid, then the columns that are not generated */
	PgpxParamTypes types;
	AttrNumber	ctid_attno;		/* in the rows of the subplan; 0: INSERT */
	List	   *columns;		/* of integers */

	PgpxRemoteScan *scan;		/* of RETURNING; NULL: none */
	MemoryContext cxt;			/* of this struct */
	MemoryContext row_cxt;		/* reset after each execution */
} PgpxModify;

static void
begin_modify(EState *estate, ResultRelInfo *result_rel, CmdType operation,
			 Plan *subplan, const PgpxPlan *plan)
{
	PgpxModify *m = palloc0(sizeof(*m));
	Relation	rel = result_rel->ri_RelationDesc;
	ListCell   *lc;

	result_rel->ri_FdwState = m;
	m->rel = rel;
	m->use.server = GetForeignServerIdByRelId(RelationGetRelid(rel));
	m->use.user = pgpx_result_rel_user(result_rel, estate);
	m->use.why = RelationGetRelationName(rel);
	m->plan = *plan;
	m->sql = plan->sql;
	m->nrows = 1;
	if (operation != CMD_INSERT)
	{
		m->ctid_attno = ExecFindJunkAttributeInTlist(subplan->targetlist,
													 "ctid");
		if (!AttributeNumberIsValid(m->ctid_attno))
			elog(ERROR, "could not find junk ctid column");
		pgpx_params_add_type(&m->types, TIDOID);
	}
	if (operation == CMD_DELETE)
		m->plan.target_attrs = NIL;
	foreach(lc, m->plan.target_attrs)
	{
		Form_pg_attribute attr =
			TupleDescAttr(RelationGetDescr(rel), lfirst_int(lc) - 1);

		if (attr->attgenerated)
			continue;
		pgpx_params_add_type(&m->types, attr->atttypid);
		m->columns = lappend_int(m->columns, attr->attnum);
	}
	m->cxt = CurrentMemoryContext;
	m->row_cxt = AllocSetContextCreate(CurrentMemoryContext,
									   "pgpool_ext modified row",
									   ALLOCSET_SMALL_SIZES);
	if (plan->retrieved_attrs != NIL)
		m->scan = pgpx_remote_scan_begin(&(PgpxScanSource){
			.use = &m->use,
			.sql = plan->sql,
			.tupdesc = RelationGetDescr(rel),
			.attnums = plan->retrieved_attrs,
			.where = pgpx_table_context,
			.where_arg = rel,
			.fetch_size = PGPX_FETCH_ALL,
		});
}

void
pgpx_modify_begin(ModifyTableState *mtstate, ResultRelInfo *result_rel,
				  List *fdw_private, int subplan_index, int eflags)
{
	PgpxPlan	plan;

	/* EXPLAIN: ri_FdwState stays NULL */
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;
	plan = pgpx_read_modify_plan(fdw_private);
	begin_modify(mtstate->ps.state, result_rel, mtstate->operation,
				 outerPlanState(mtstate)->plan, &plan);
}

/* Adapt the statement to n rows. */
static void
set_nrows(PgpxModify *m, int n)
{
	MemoryContext old = MemoryContextSwitchTo(m->cxt);

	if (m->sql != m->plan.sql)
		pfree(unconstify(char *, m->sql));
	m->sql = m->plan.sql;
	m->nrows = 1;
	if (n > 1)
		m->sql = pgpx_deparse_insert_rows(m->rel, &m->plan, m->types.n, n);
	m->nrows = n;
	MemoryContextSwitchTo(old);
}

/*
 * Return the parameters of nrows rows, in the current memory context.
 * plan_slots: the rows of the subplan; NULL for COPY.
 */
static const char **
get_values(PgpxModify *m, TupleTableSlot **slots, TupleTableSlot **plan_slots)
{
	NullableDatum *values =
		palloc(sizeof(NullableDatum) * Max(m->types.n * m->nrows, 1));
	int			n = 0;
	ListCell   *lc;

	if (AttributeNumberIsValid(m->ctid_attno))
	{
		values[n].value = ExecGetJunkAttribute(plan_slots[0], m->ctid_attno,
											   &values[n].isnull);
		if (values[n++].isnull)
			elog(ERROR, "ctid is NULL");
	}
	for (int row = 0; row < m->nrows; row++)
		foreach(lc, m->columns)
		{
			values[n].value = slot_getattr(slots[row], lfirst_int(lc),
										   &values[n].isnull);
			n++;
		}
	return pgpx_params_convert(&m->types, m->nrows, values);
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
	PgpxRowValues row;

	(void) pgpx_remote_scan_open(m->scan, statement->nparams,
								 statement->values);
	while (pgpx_remote_scan_next(m->scan, &row) == PGPX_RUN_STOPPED)
		if (tuple == NULL)
			tuple = pgpx_tuple_form(RelationGetDescr(m->rel), row);
	if (tuple == NULL)
		return 0;
	ExecForceStoreHeapTuple(tuple, slot, false);
	ExecMaterializeSlot(slot);	/* the tuple is in row_cxt */
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
	PgpxRemoteTransaction *rt = pgpx_remote_transaction_get(&m->use, NULL);
	PgpxStatement statement;
	MemoryContext old;
	uint64		n;

	if (m->nrows != *nslots)
		set_nrows(m, *nslots);
	old = MemoryContextSwitchTo(m->row_cxt);
	statement.sql = m->sql;
	statement.nparams = m->types.n * m->nrows;
	statement.values = get_values(m, slots, plan_slots);
	n = m->scan != NULL ? execute_returning(m, &statement, slots[0]) :
		pgpx_remote_execute(rt, &statement);
	MemoryContextSwitchTo(old);
	MemoryContextReset(m->row_cxt);

	/* the remote's number is untrusted: it must not exceed the rows sent */
	*nslots = Min(n, *nslots);
	m->use.rows += *nslots;
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

	batch_size =
		pgpx_table_int_option(RelationGetRelid(result_rel->ri_RelationDesc),
							  "batch_size", 1);
	if (m == NULL)
		return batch_size;		/* EXPLAIN */

	/* INSERT .. DEFAULT VALUES can only insert one row */
	if (m->plan.target_attrs == NIL)
		return 1;
	if (m->types.n > 0)
		batch_size = Min(batch_size, PGPX_WIRE_PARAMS_MAX / m->types.n);
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
	PgpxPlan	insert;
	bool		do_nothing;

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

	insert = pgpx_deparse_insert(result_rel,
								 result_rel_varno(mtstate, result_rel),
								 do_nothing);
	begin_modify(mtstate->ps.state, result_rel, CMD_INSERT, NULL, &insert);
}

/* ------------------------------------------------------------------------
 * TRUNCATE
 * ------------------------------------------------------------------------
 */

/*
 * The servers on which this transaction has truncated a table [true], and those
 * for which postgres_fdw has planned on a connection of its own [false].
 */
static List *noted[2];

/* Called when the memory of the lists is freed, at the transaction's end. */
static void
forget_noted(void *arg)
{
	noted[false] = noted[true] = NIL;
}

void
pgpx_truncate_note(Oid server, bool truncates)
{
	MemoryContext old;

	if (list_member_oid(noted[!truncates], server))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot truncate a foreign table of server \"%s\" and use option \"use_remote_estimate\" in one transaction",
						GetForeignServer(server)->servername),
				 errdetail("With this option postgres_fdw plans on a connection of its own, and the two connections would wait for each other's locks."),
				 errhint("Truncate in a transaction of its own, or drop the option.")));
	if (list_member_oid(noted[truncates], server))
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	if (noted[false] == NIL && noted[true] == NIL)
	{
		MemoryContextCallback *callback = palloc0(sizeof(*callback));

		callback->func = forget_noted;
		MemoryContextRegisterResetCallback(TopTransactionContext, callback);
	}
	noted[truncates] = lappend_oid(noted[truncates], server);
	MemoryContextSwitchTo(old);
}

void
pgpx_truncate(List *rels, DropBehavior behavior, bool restart_seqs)
{
	PgpxRemoteUse use = {.user = GetUserId(), .why = "TRUNCATE"};
	PgpxStatement statement = {0};
	ListCell   *lc;

	/* the caller passes tables of one server */
	foreach(lc, rels)
	{
		Relation	rel = (Relation) lfirst(lc);

		if (!pgpx_table_bool_option(RelationGetRelid(rel), "truncatable", true))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("foreign table \"%s\" does not allow truncates",
							RelationGetRelationName(rel))));
		use.server = GetForeignServerIdByRelId(RelationGetRelid(rel));
	}
	pgpx_truncate_note(use.server, true);
	statement.sql = pgpx_deparse_truncate(rels, behavior, restart_seqs);
	(void) pgpx_remote_execute(pgpx_remote_transaction_get(&use, NULL),
							   &statement);
}
