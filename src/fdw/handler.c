/*-------------------------------------------------------------------------
 *
 * handler.c
 *	  The handler of foreign tables on pools, and the callbacks of EXPLAIN.
 *
 * Planning, push-down and deparsing are those of postgres_fdw.  EXPLAIN calls
 * its callbacks and adds to their output.  Each callback that uses a connection
 * is ours.  The FdwRoutine is not a copy of that of postgres_fdw: a copy would
 * also inherit callbacks that a later version adds, and such a callback could
 * open a connection of its own, which does not see what this transaction has
 * written.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "foreign/fdwapi.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "fdw/contract.h"
#include "fdw/deparse.h"
#include "fdw/modify.h"
#include "fdw/remote_transaction.h"
#include "fdw/scan.h"
#include "fdw/utility.h"

/* Returns the callbacks of postgres_fdw. */
static const FdwRoutine *
postgres_fdw(void)
{
	static FdwRoutine *routine = NULL;

	if (routine == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		routine = pgpx_contract_routine();
		MemoryContextSwitchTo(old);
	}
	return routine;
}

/*
 * With option use_remote_estimate, which only servers of an attached wrapper
 * can have, postgres_fdw plans on a connection of its own.  Its locks and those
 * of a TRUNCATE on our lease would wait for each other for ever, and no server
 * sees that both belong to one local transaction.
 */
static void
estimate_size(PlannerInfo *root, RelOptInfo *rel, Oid table)
{
	const char *value = pgpx_table_option(table, "use_remote_estimate");
	bool		estimates = false;

	if (value != NULL && parse_bool(value, &estimates) && estimates)
		pgpx_modify_check_estimate(GetForeignTable(table)->serverid);
	postgres_fdw()->GetForeignRelSize(root, rel, table);
}

/* Show the pool that a node has used.  Shows nothing if it was not executed. */
static void
show_pool(ExplainState *es, const PgpxRemoteTransaction *rt)
{
	if (!es->analyze || !es->verbose || rt == NULL)
		return;
	ExplainPropertyText("Pool", NameStr(rt->lease->spec->server_name), es);
	if (es->timing)
		ExplainPropertyFloat("Pool Wait", "ms", rt->wait_time / 1000.0, 3, es);
}

/*
 * The callbacks of EXPLAIN.  For EXPLAIN (ANALYZE, VERBOSE) they add the pool,
 * and the time that this transaction has waited for its lease.
 */
static void
explain_scan(ForeignScanState *node, ExplainState *es)
{
	const PgpxRemoteTransaction *rt;
	uint64		rows;

	postgres_fdw()->ExplainForeignScan(node, es);
	rt = pgpx_scan_statistics(node, &rows);
	show_pool(es, rt);
	if (es->analyze && es->verbose && rt != NULL)
		ExplainPropertyInteger("Remote Rows", NULL, (int64) rows, es);
}

static void
explain_modify(ModifyTableState *mtstate, ResultRelInfo *result_rel,
			   List *fdw_private, int subplan_index, ExplainState *es)
{
	postgres_fdw()->ExplainForeignModify(mtstate, result_rel, fdw_private,
										 subplan_index, es);
	show_pool(es, pgpx_modify_transaction(result_rel));
}

static void
explain_direct_modify(ForeignScanState *node, ExplainState *es)
{
	postgres_fdw()->ExplainDirectModify(node, es);
	show_pool(es, pgpx_direct_modify_transaction(node));
}

PG_FUNCTION_INFO_V1(pgpx_fdw_handler);

/* pgpool_fdw_handler() returns fdw_handler */
Datum
pgpx_fdw_handler(PG_FUNCTION_ARGS)
{
	const FdwRoutine *theirs = postgres_fdw();
	FdwRoutine *routine = makeNode(FdwRoutine);

	/* planning */
	routine->GetForeignRelSize = estimate_size;
	routine->GetForeignPaths = theirs->GetForeignPaths;
	routine->GetForeignPlan = theirs->GetForeignPlan;
	routine->GetForeignJoinPaths = theirs->GetForeignJoinPaths;
	routine->GetForeignUpperPaths = theirs->GetForeignUpperPaths;
	routine->AddForeignUpdateTargets = theirs->AddForeignUpdateTargets;
	routine->PlanForeignModify = theirs->PlanForeignModify;
	routine->PlanDirectModify = theirs->PlanDirectModify;
	routine->IsForeignRelUpdatable = theirs->IsForeignRelUpdatable;
	routine->RecheckForeignScan = theirs->RecheckForeignScan;

	/* scans */
	routine->BeginForeignScan = pgpx_scan_begin;
	routine->IterateForeignScan = pgpx_scan_iterate;
	routine->ReScanForeignScan = pgpx_scan_rescan;
	routine->EndForeignScan = pgpx_scan_end;
	routine->IsForeignPathAsyncCapable = theirs->IsForeignPathAsyncCapable;
	routine->ForeignAsyncRequest = pgpx_scan_async_request;
	routine->ForeignAsyncConfigureWait = pgpx_scan_async_configure_wait;
	routine->ForeignAsyncNotify = pgpx_scan_async_notify;

	/* writes */
	routine->BeginForeignModify = pgpx_modify_begin;
	routine->ExecForeignInsert = pgpx_modify_insert;
	routine->ExecForeignBatchInsert = pgpx_modify_insert_batch;
	routine->GetForeignModifyBatchSize = pgpx_modify_batch_size;
	routine->ExecForeignUpdate = pgpx_modify_update;
	routine->ExecForeignDelete = pgpx_modify_delete;
	routine->EndForeignModify = pgpx_modify_end;
	routine->BeginForeignInsert = pgpx_modify_begin_insert;
	routine->EndForeignInsert = pgpx_modify_end_insert;
	routine->BeginDirectModify = pgpx_direct_modify_begin;
	routine->IterateDirectModify = pgpx_direct_modify_iterate;
	routine->EndDirectModify = pgpx_direct_modify_end;
	routine->ExecForeignTruncate = pgpx_modify_truncate;

	/* EXPLAIN: call those of postgres_fdw and add to their output */
	routine->ExplainForeignScan = explain_scan;
	routine->ExplainForeignModify = explain_modify;
	routine->ExplainDirectModify = explain_direct_modify;

	/* utility statements */
	routine->AnalyzeForeignTable = pgpx_utility_analyze;
	routine->ImportForeignSchema = pgpx_utility_import;
	PG_RETURN_POINTER(routine);
}
