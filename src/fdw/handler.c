/*-------------------------------------------------------------------------
 *
 * handler.c
 *	  The handler of foreign tables on pools, and its use by postgres_fdw.
 *
 * The handler
 *	 The callbacks for planning, push-down and deparsing are those of
 *	 postgres_fdw; GetForeignRelSize checks an option before it calls theirs.
 *	 The callbacks for EXPLAIN call those of postgres_fdw and add to their
 *	 output.  Each callback that uses a connection is ours.  The FdwRoutine is
 *	 not a copy of that of postgres_fdw: a copy would also inherit callbacks
 *	 that a later version adds, and such a callback could open a connection of
 *	 its own, which does not see what this transaction has written.
 *
 * Attaching
 *	 A foreign-data wrapper is attached while its handler is
 *	 pgpool_fdw_handler.  pgpool.attach_postgres_fdw executes ALTER FOREIGN
 *	 DATA WRAPPER postgres_fdw HANDLER, and pgpool.detach_postgres_fdw undoes
 *	 it.  Three problems must be handled:
 *	 - No transaction may use the old handler for one statement and the new one
 *	   for the next, because it would not see its own writes.  So the functions
 *	   lock all foreign tables of the wrapper, as ALTER TABLE would.
 *	 - Sessions keep the FdwRoutine of a handler in their relation cache, and
 *	   ALTER FOREIGN DATA WRAPPER does not invalidate it.  So the functions
 *	   invalidate the relation cache.
 *	 - The wrapper depends on the handler and therefore on pgpool_ext.  DROP
 *	   EXTENSION pgpool_ext CASCADE would drop postgres_fdw with all servers and
 *	   tables.  The object access hook prevents this.
 *	 The wrapper is a member of extension postgres_fdw, whose state pg_dump does
 *	 not dump.  So a dump restores plain postgres_fdw.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/handler.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_table.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "foreign/fdwapi.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "shared/shmem.h"
#include "fdw/remote_sql.h"
#include "fdw/remote_transaction.h"

/*
 * Return the callbacks of postgres_fdw.  Load its library if that has not been
 * done yet.
 *
 * Errors: HV00L it cannot be loaded.  missing_ok: return NULL instead.
 */
static const FdwRoutine *
postgres_fdw(bool missing_ok)
{
	static FdwRoutine *routine = NULL;
	MemoryContext caller = CurrentMemoryContext;

	if (routine != NULL)
		return routine;
	PG_TRY();
	{
		PGFunction	handler = (PGFunction)
			load_external_function("$libdir/postgres_fdw",
								   "postgres_fdw_handler", true, NULL);
		Datum		result;

		MemoryContextSwitchTo(TopMemoryContext);
		result = DirectFunctionCall1(handler, (Datum) 0);
		routine = (FdwRoutine *) DatumGetPointer(result);
		MemoryContextSwitchTo(caller);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		if (!missing_ok)
			ereport(ERROR,
					(errcode(ERRCODE_FDW_UNABLE_TO_CREATE_EXECUTION),
					 errmsg("foreign tables on pools need the library of postgres_fdw"),
					 errdetail_internal("%s", error->message),
					 errhint("Install PostgreSQL's contrib modules on this server. The extension postgres_fdw need not be created.")));
	}
	PG_END_TRY();
	return routine;
}

void
pgpx_postgres_fdw_preload(void)
{
	(void) postgres_fdw(true);
}

/*
 * GetForeignRelSize: check for option use_remote_estimate, and call the
 * callback of postgres_fdw.
 *
 * The option exists only for an attached wrapper.  With it, postgres_fdw plans
 * on a connection of its own.  That connection and a TRUNCATE on our lease
 * could wait for each other's locks for ever, because no server sees that both
 * belong to one local transaction.
 *
 * The option cannot be hidden from postgres_fdw: its callback reads the options
 * of the table and the server from the catalogs, and connects, before it returns.
 * The result is in a private struct, whose layout differs between versions.
 */
static void
estimate_size(PlannerInfo *root, RelOptInfo *rel, Oid table)
{
	static bool is_logged = false;

	if (pgpx_table_bool_option(table, "use_remote_estimate", false))
	{
		pgpx_truncate_note(GetForeignServerIdByRelId(table), false);
		if (!is_logged)
			ereport(LOG,
					(errmsg("pgpool_ext cannot plan queries of foreign table \"%s\" on its pool",
							get_rel_name(table)),
					 errdetail("With option \"use_remote_estimate\", postgres_fdw opens a connection of its own in each session."),
					 errhint("Drop the option and run ANALYZE, with option \"import_stats\" if the server has it.")));
		is_logged = true;
	}
	postgres_fdw(false)->GetForeignRelSize(root, rel, table);
}

/*
 * With ANALYZE and VERBOSE, show the pool that a node has used, the time for
 * which the remote transaction waited for its lease, and the node's number of
 * remote rows.  Show nothing if the node was not executed.
 */
static void
show_pool(ExplainState *es, const PgpxRemoteUse *use)
{
	const PgpxRemoteTransaction *rt = use != NULL ? use->transaction : NULL;

	if (!es->analyze || !es->verbose || rt == NULL)
		return;
	ExplainPropertyText("Pool", NameStr(rt->lease->spec->server_name), es);
	if (es->timing)
		ExplainPropertyFloat("Pool Wait", "ms", rt->wait_time / 1000.0, 3, es);
	ExplainPropertyInteger("Remote Rows", NULL, (int64) use->rows, es);
}

/* a scan, or a direct modification */
static void
explain_node(ForeignScanState *node, ExplainState *es)
{
	if (((ForeignScan *) node->ss.ps.plan)->operation == CMD_SELECT)
		postgres_fdw(false)->ExplainForeignScan(node, es);
	else
		postgres_fdw(false)->ExplainDirectModify(node, es);
	show_pool(es, node->fdw_state);
}

static void
explain_modify(ModifyTableState *mtstate, ResultRelInfo *result_rel,
			   List *fdw_private, int subplan_index, ExplainState *es)
{
	postgres_fdw(false)->ExplainForeignModify(mtstate, result_rel, fdw_private,
											  subplan_index, es);
	show_pool(es, result_rel->ri_FdwState);
}

PG_FUNCTION_INFO_V1(pgpx_fdw_handler);

/* pgpool_fdw_handler() returns fdw_handler */
Datum
pgpx_fdw_handler(PG_FUNCTION_ARGS)
{
	const FdwRoutine *theirs = postgres_fdw(false);
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

	/* writes; the optional EndForeignModify and EndForeignInsert do nothing */
	routine->BeginForeignModify = pgpx_modify_begin;
	routine->BeginForeignInsert = pgpx_modify_begin_insert;
	routine->ExecForeignInsert = pgpx_modify_row;
	routine->ExecForeignUpdate = pgpx_modify_row;
	routine->ExecForeignDelete = pgpx_modify_row;
	routine->ExecForeignBatchInsert = pgpx_modify_insert_batch;
	routine->GetForeignModifyBatchSize = pgpx_modify_batch_size;
	routine->BeginDirectModify = pgpx_direct_modify_begin;
	routine->IterateDirectModify = pgpx_direct_modify_iterate;
	routine->EndDirectModify = pgpx_scan_end;
	routine->ExecForeignTruncate = pgpx_truncate;

	/* EXPLAIN */
	routine->ExplainForeignScan = explain_node;
	routine->ExplainForeignModify = explain_modify;
	routine->ExplainDirectModify = explain_node;

	/* utility statements */
	routine->AnalyzeForeignTable = pgpx_utility_analyze;
	routine->ImportForeignSchema = pgpx_utility_import;
#ifdef PGPX_HAS_IMPORT_CALLBACK
	routine->ImportForeignStatistics = pgpx_utility_import_statistics;
#endif
	PG_RETURN_POINTER(routine);
}

#define PGPOOL_EXTENSION "pgpool_ext"
#define PGPOOL_HANDLER "pgpool_fdw_handler"
#define FDW_EXTENSION "postgres_fdw"
#define FDW_WRAPPER "postgres_fdw"
#define FDW_HANDLER "postgres_fdw_handler"

PG_FUNCTION_INFO_V1(pgpx_attach_postgres_fdw);
PG_FUNCTION_INFO_V1(pgpx_detach_postgres_fdw);

/*
 * Find the handler function of this name that is a member of an extension, in
 * any schema.  Return InvalidOid if the extension has none.
 */
static Oid
find_handler(Oid extension, const char *name)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum(name));
	Oid			found = InvalidOid;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc proc =
			(Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (proc->pronargs == 0 && proc->prorettype == FDW_HANDLEROID &&
			getExtensionOfObject(ProcedureRelationId, proc->oid) == extension)
			found = proc->oid;
	}
	ReleaseSysCacheList(list);
	return found;
}

/* Return InvalidOid if the wrapper has no handler or does not exist. */
static Oid
wrapper_handler(Oid wrapper)
{
	ForeignDataWrapper *fdw = GetForeignDataWrapperExtended(wrapper,
															FDW_MISSING_OK);

	return fdw != NULL ? fdw->fdwhandler : InvalidOid;
}

/* Return whether a wrapper that is not ours uses our handler. */
static bool
is_attached(Oid wrapper)
{
	Oid			ext = get_extension_oid(PGPOOL_EXTENSION, true);
	Oid			handler = wrapper_handler(wrapper);

	return OidIsValid(ext) && OidIsValid(handler) &&
		handler == find_handler(ext, PGPOOL_HANDLER) &&
		getExtensionOfObject(ForeignDataWrapperRelationId, wrapper) != ext;
}

/*
 * A command locks all objects that it drops before it drops the first one.  So
 * the lock on the handler shows that the handler will be dropped, too.  Without
 * that lock the wrapper is dropped with postgres_fdw, which is allowed.
 */
void
pgpx_attach_check_drop(Oid classId, Oid objectId)
{
	const char *wrapper;
	LOCKTAG		tag;

	if (classId != ForeignDataWrapperRelationId || !is_attached(objectId))
		return;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ProcedureRelationId,
					   wrapper_handler(objectId), 0);
	if (!pgpx_lock_is_held(&tag, AccessExclusiveLock))
		return;
	wrapper = GetForeignDataWrapper(objectId)->fdwname;
	ereport(ERROR,
			(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
			 errmsg("cannot drop extension %s while foreign-data wrapper %s is attached to it",
					PGPOOL_EXTENSION, wrapper),
			 errdetail("The servers and foreign tables of the wrapper would be dropped as well."),
			 strcmp(wrapper, FDW_WRAPPER) == 0 ?
			 errhint("Call pgpool.detach_postgres_fdw() first.") :
			 errhint("Drop the wrapper first, or give it another handler.")));
}

/*
 * Return the sorted OIDs of the foreign tables of a wrapper, and prevent the
 * creation of others until the end of this transaction.
 *
 * CREATE FOREIGN TABLE releases its lock on pg_foreign_table before its
 * transaction ends.  So a table can exist that is not visible yet, and whose
 * creator may already have used it.  This function waits for the creators of
 * such tables of any wrapper.  It holds no lock meanwhile, because a creator may
 * create another table.
 */
static List *
freeze_tables(Oid wrapper)
{
	for (;;)
	{
		Relation	rel = table_open(ForeignTableRelationId, ShareLock);
		TransactionId creator = InvalidTransactionId;
		SnapshotData dirty;
		SysScanDesc scan;
		List	   *tables = NIL;
		HeapTuple	row;

		InitDirtySnapshot(dirty);
		scan = systable_beginscan(rel, InvalidOid, false, &dirty, 0, NULL);
		while (HeapTupleIsValid(row = systable_getnext(scan)))
		{
			Form_pg_foreign_table form =
				(Form_pg_foreign_table) GETSTRUCT(row);
			ForeignServer *server;

			if (TransactionIdIsValid(dirty.xmin))
			{
				creator = dirty.xmin;
				continue;
			}
			server = GetForeignServerExtended(form->ftserver, FSV_MISSING_OK);
			if (server != NULL && server->fdwid == wrapper)
				tables = list_append_unique_oid(tables, form->ftrelid);
		}
		systable_endscan(scan);
		if (!TransactionIdIsValid(creator))
		{
			table_close(rel, NoLock);
			list_sort(tables, list_oid_cmp);
			return tables;
		}
		table_close(rel, ShareLock);
		XactLockTableWait(creator, NULL, NULL, XLTW_None);
	}
}

/*
 * Lock the foreign tables of the wrapper until the end of this transaction.
 * Wait for the transactions that use them.  Raise an error if this transaction
 * has used one of them.
 */
static void
lock_tables(List *tables)
{
	ListCell   *lc;

	foreach(lc, tables)
	{
		Oid			table = lfirst_oid(lc);
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
		if (pgpx_lock_is_held(&tag, AccessShareLock))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("cannot change the handler of foreign-data wrapper "
							"%s in a transaction that uses its foreign tables",
							FDW_WRAPPER),
					 errdetail("Foreign table \"%s\" is in use.",
							   get_rel_name(table)),
					 errhint("Call the function in a transaction of its own.")));
		LockRelationOid(table, AccessExclusiveLock);
	}
}

/*
 * Execute ALTER FOREIGN DATA WRAPPER postgres_fdw HANDLER as a command of its
 * own, so that event triggers and other ProcessUtility hooks see it.  Suppress
 * its warning, and with it all messages of event triggers but errors.
 */
static void
set_handler(Oid handler)
{
	char	   *schema = get_namespace_name(get_func_namespace(handler));
	char	   *text =
		psprintf("ALTER FOREIGN DATA WRAPPER %s HANDLER %s", FDW_WRAPPER,
				 quote_qualified_identifier(schema, get_func_name(handler)));
	int			level = NewGUCNestLevel();

	pgpx_set_local("client_min_messages", "error");
	pgpx_set_local("log_min_messages", "error");
	SPI_connect();
	if (SPI_execute(text, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not execute \"%s\"", text);
	SPI_finish();
	AtEOXact_GUC(true, level);
}

/*
 * Change the handler of wrapper postgres_fdw, for one of the two SQL functions.
 *
 * attach: true to replace the handler of postgres_fdw by that of pgpool_ext,
 * false for the reverse.  Return false if the wrapper already had the new
 * handler.  Raise an error if the user is not a superuser, if extension
 * postgres_fdw or its wrapper is missing, or if the wrapper has neither of the
 * two handlers.
 */
static bool
change_handler(FunctionCallInfo fcinfo, bool attach)
{
	const char *function = attach ? "pgpool.attach_postgres_fdw()" :
		"pgpool.detach_postgres_fdw()";
	Oid			ext = getExtensionOfObject(ProcedureRelationId,
										   fcinfo->flinfo->fn_oid);
	Oid			theirs = get_extension_oid(FDW_EXTENSION, true);
	Oid			wrapper = get_foreign_data_wrapper_oid(FDW_WRAPPER, true);
	Oid			own_handler;
	Oid			old_handler;
	Oid			new_handler;
	Oid			current;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 attach ?
				 errmsg("permission denied to attach foreign-data wrapper \"%s\"",
						FDW_WRAPPER) :
				 errmsg("permission denied to detach foreign-data wrapper \"%s\"",
						FDW_WRAPPER),
				 errdetail("Only superusers can change the handler of a "
						   "foreign-data wrapper.")));
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	if (!OidIsValid(theirs))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" is not installed in this database",
						FDW_EXTENSION),
				 errhint("Install it with CREATE EXTENSION.")));

	/*
	 * Prevent a concurrent DROP of either extension.  DROP EXTENSION
	 * postgres_fdw locks the wrapper.
	 */
	LockDatabaseObject(ExtensionRelationId, ext, 0, AccessShareLock);
	if (OidIsValid(wrapper))
		LockDatabaseObject(ForeignDataWrapperRelationId, wrapper, 0,
						   AccessExclusiveLock);

	own_handler = find_handler(theirs, FDW_HANDLER);
	old_handler = attach ? own_handler : find_handler(ext, PGPOOL_HANDLER);
	new_handler = attach ? find_handler(ext, PGPOOL_HANDLER) : own_handler;
	if (!OidIsValid(old_handler) || !OidIsValid(new_handler) ||
		getExtensionOfObject(ForeignDataWrapperRelationId, wrapper) != theirs)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" has no foreign-data wrapper \"%s\" "
						"with handler \"%s\"",
						FDW_EXTENSION, FDW_WRAPPER, FDW_HANDLER)));

	current = wrapper_handler(wrapper);
	if (current == new_handler)
		return false;
	if (current != old_handler)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("foreign-data wrapper \"%s\" has another handler",
						FDW_WRAPPER),
				 OidIsValid(current) ?
				 errdetail("Its handler is %s.",
						   format_procedure(current)) : 0,
				 errhint("Use ALTER FOREIGN DATA WRAPPER to set handler %s.",
						 format_procedure(old_handler))));

	/* raises an error if our handler does not support this postgres_fdw */
	if (attach)
		(void) GetFdwRoutine(new_handler);

	lock_tables(freeze_tables(wrapper));
	set_handler(new_handler);
	CacheInvalidateRelcacheAll();
	CommandCounterIncrement();
	return true;
}

Datum
pgpx_attach_postgres_fdw(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	PG_RETURN_BOOL(change_handler(fcinfo, true));
}

/*
 * This needs no shared memory, so that it works without the preloaded library.
 */
Datum
pgpx_detach_postgres_fdw(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(change_handler(fcinfo, false));
}
