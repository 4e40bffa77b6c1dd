/*-------------------------------------------------------------------------
 *
 * modify.c
 *	  INSERT, UPDATE, DELETE, COPY FROM and TRUNCATE of foreign tables.
 *
 * postgres_fdw plans and writes the statements; this file executes them on the
 * lease of the local transaction.  A plan has one statement for each target
 * table.  It is executed for each row, or for a batch of rows.
 *
 * - A lease is taken at the first row, so that a statement that is only
 *	 explained, or that affects no row, takes none.
 * - A row is identified by its ctid, which the subplan's scan has returned.
 * - The user of the lease is the user whose permissions on the table the
 *	 executor checks.  For an access through a view, that is the view's owner.
 * - Generated columns are sent as DEFAULT.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/modify.h"

#include "access/sysattr.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "nodes/plannodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "fdw/contract.h"
#include "fdw/modify_sql.h"
#include "fdw/remote_name.h"
#include "fdw/remote_transaction.h"
#include "fdw/returning.h"
#include "values/params.h"

/* The number of parameters in Bind is an unsigned 16-bit integer. */
#define MAX_PARAMS 65535

/* Execution state of one target table, in ResultRelInfo.ri_FdwState. */
typedef struct PgpxModify
{
	Relation	rel;
	Oid			server;
	Oid			user;			/* whose mapping is used */
	PgpxRemoteTransaction *transaction; /* NULL until the first row */

	const char *sql;			/* the statement, for nrows rows */
	const char *row_sql;		/* the same for one row */
	int			nrows;
	List	   *target_attrs;
	int			values_end;		/* length of row_sql to the end of VALUES */
	int			batch_size;		/* of an INSERT */

	/* parameters of one row: ctid, then the columns that are not generated */
	AttrNumber	ctid_attno;		/* in the rows of the subplan; 0: INSERT */
	int			ncolumns;
	AttrNumber *columns;
	AttrNumber	last_column;	/* the largest of them */
	FmgrInfo   *outputs;
	bool		catalog_path;	/* see pgpx_params_need_catalog_path */
	const char **values;		/* of nrows rows */
	char		ctid[32];

	PgpxReturning *returning;	/* NULL: no RETURNING */
	MemoryContext cxt;			/* of this struct */
	MemoryContext row_cxt;		/* reset after each execution */
} PgpxModify;

static int
get_batch_size(Relation rel)
{
	const char *value = pgpx_remote_table_option(RelationGetRelid(rel),
												 "batch_size");
	int			batch_size = 1;

	/* the validator has checked the value */
	if (value != NULL)
		(void) parse_int(value, &batch_size, 0, NULL);
	return batch_size;
}

/* Determine how the columns of a row become parameters. */
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
		Form_pg_attribute attr;
		Oid			output;
		bool		varlena;

		if (attnum < 1 || attnum > tupdesc->natts)
			elog(ERROR, "invalid target column %d of foreign table \"%s\"",
				 attnum, RelationGetRelationName(m->rel));
		attr = TupleDescAttr(tupdesc, attnum - 1);
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
	m->server = GetForeignTable(RelationGetRelid(m->rel))->serverid;
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
		m->returning = pgpx_returning_begin(m->rel, retrieved_attrs);
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
	pgpx_contract_modify(fdw_private, &plan);
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
		m->sql = pgpx_modify_sql_insert_rows(m->rel, m->row_sql,
											 m->target_attrs, m->values_end,
											 m->ncolumns, n);
	m->nrows = n;
	MemoryContextSwitchTo(old);
}

/*
 * Convert the rows to parameters, in row_cxt.  Returns their number.  ctid:
 * identifies the row that is updated or deleted; NULL: INSERT.
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

	/* other code, which expects the session's styles, must not run until end */
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
 * Execute the statement for *nslots rows.  Sets *nslots to the number of rows
 * that the remote has inserted, updated or deleted.  Returns NULL if that is 0,
 * otherwise the slots.  With RETURNING, the first slot has the returned row.
 */
static TupleTableSlot **
execute(PgpxModify *m, TupleTableSlot **slots, TupleTableSlot **plan_slots,
		int *nslots)
{
	ItemPointer ctid = NULL;
	PgpxStatement statement;
	uint64		n;

	if (m->transaction == NULL)
		m->transaction =
			pgpx_remote_transaction_get(m->server, m->user,
										RelationGetRelationName(m->rel));
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
	n = pgpx_remote_execute(m->transaction, &statement,
							pgpx_returning_sink(m->returning), true);
	MemoryContextReset(m->row_cxt);
	if (m->returning != NULL)
		n = pgpx_returning_store(m->returning, slots[0]) ? 1 : 0;

	/* the remote's number is untrusted: it must not exceed the rows sent */
	*nslots = Min(n, *nslots);
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
pgpx_modify_insert(EState *estate, ResultRelInfo *result_rel,
				   TupleTableSlot *slot, TupleTableSlot *plan_slot)
{
	int			n = 1;

	return pgpx_modify_insert_batch(estate, result_rel, &slot, &plan_slot,
									&n) ? slot : NULL;
}

/* UPDATE or DELETE of one row */
TupleTableSlot *
pgpx_modify_update(EState *estate, ResultRelInfo *result_rel,
				   TupleTableSlot *slot, TupleTableSlot *plan_slot)
{
	PgpxModify *m = result_rel->ri_FdwState;
	int			n = 1;

	return execute(m, &slot, &plan_slot, &n) ? slot : NULL;
}

TupleTableSlot *
pgpx_modify_delete(EState *estate, ResultRelInfo *result_rel,
				   TupleTableSlot *slot, TupleTableSlot *plan_slot)
{
	return pgpx_modify_update(estate, result_rel, slot, plan_slot);
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
		batch_size = Min(batch_size, MAX_PARAMS / m->ncolumns);
	return Max(batch_size, 1);
}

void
pgpx_modify_end(EState *estate, ResultRelInfo *result_rel)
{
	/* the remote transaction owns the prepared statements */
}

/*
 * Return the varno of the table's Vars in the expressions of result_rel.  A
 * partition without a range table entry of its own has expressions that were
 * built for another table.
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
	sql = pgpx_modify_sql_insert(rel, result_rel_varno(mtstate, result_rel),
								 target_attrs, do_nothing,
								 result_rel->ri_WithCheckOptions,
								 result_rel->ri_returningList,
								 &retrieved_attrs, &values_end);
	result_rel->ri_FdwState =
		begin_modify(mtstate->ps.state, result_rel, CMD_INSERT, NULL, sql,
					 target_attrs, values_end, retrieved_attrs);
}

void
pgpx_modify_end_insert(EState *estate, ResultRelInfo *result_rel)
{
	/* nothing to release, as in pgpx_modify_end */
}

void
pgpx_modify_truncate(List *rels, DropBehavior behavior, bool restart_seqs)
{
	PgpxRemoteTransaction *transaction;
	PgpxStatement statement = {0};
	Oid			server = InvalidOid;
	ListCell   *lc;

	/* the caller groups the tables by server */
	foreach(lc, rels)
	{
		Relation	rel = (Relation) lfirst(lc);
		const char *value = pgpx_remote_table_option(RelationGetRelid(rel),
													 "truncatable");
		bool		truncatable = true;

		if (value != NULL)
			(void) parse_bool(value, &truncatable);
		if (!truncatable)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("foreign table \"%s\" does not allow truncates",
							RelationGetRelationName(rel))));
		server = GetForeignTable(RelationGetRelid(rel))->serverid;
	}
	transaction = pgpx_remote_transaction_get(server, GetUserId(), "TRUNCATE");
	statement.sql = pgpx_modify_sql_truncate(rels, behavior, restart_seqs);
	(void) pgpx_remote_execute(transaction, &statement, NULL, true);
}
