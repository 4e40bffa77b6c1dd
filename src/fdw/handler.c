/*-------------------------------------------------------------------------
 *
 * handler.c
 *	  The handler of foreign tables on pools.
 *
 * Planning, push-down, deparsing and EXPLAIN are those of postgres_fdw.
 * Each callback that uses a connection is ours.  The FdwRoutine is not a copy
 * of that of postgres_fdw: a copy would also inherit callbacks that a later
 * version adds, and such a callback could open a connection of its own, which
 * does not see what this transaction has written.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "foreign/fdwapi.h"

#include "fdw/analyze.h"
#include "fdw/contract.h"
#include "fdw/direct_modify.h"
#include "fdw/explain.h"
#include "fdw/import.h"
#include "fdw/modify.h"
#include "fdw/scan.h"

PG_FUNCTION_INFO_V1(pgpx_fdw_handler);

/* Returns the callbacks of postgres_fdw. */
static const FdwRoutine *
inherited(void)
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

/* pgpool_fdw_handler() returns fdw_handler */
Datum
pgpx_fdw_handler(PG_FUNCTION_ARGS)
{
	const FdwRoutine *theirs = inherited();
	FdwRoutine *routine = makeNode(FdwRoutine);

	/* planning */
	routine->GetForeignRelSize = theirs->GetForeignRelSize;
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
	pgpx_explain_begin(theirs);
	routine->ExplainForeignScan = pgpx_explain_scan;
	routine->ExplainForeignModify = pgpx_explain_modify;
	routine->ExplainDirectModify = pgpx_explain_direct_modify;

	/* utility statements */
	routine->AnalyzeForeignTable = pgpx_analyze_table;
	routine->ImportForeignSchema = pgpx_import_schema;
	PG_RETURN_POINTER(routine);
}
