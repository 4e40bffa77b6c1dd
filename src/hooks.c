/*-------------------------------------------------------------------------
 *
 * hooks.c
 *	  The dispatcher of hooks and transaction callbacks: it determines the
 *	  order in which the parts of the extension act.
 *
 *	before commit	locks: warn of lost ones, refuse PREPARE
 *					remote transactions: COMMIT, or PREPARE TRANSACTION
 *					leases: check for work that would be lost, return
 *					catalog changes: find the pools that they affect
 *	after commit or abort, and at the end of a subtransaction
 *					remote transactions, leases, locks, catalog changes
 *
 * A lock is released after the remote work that it protects has ended.  The
 * exit of a session is in lease.c.
 *
 *-------------------------------------------------------------------------
 */
#include "hooks.h"

#include "base/compat.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "tcop/utility.h"

#include "commit/commit.h"
#include "session/lease.h"
#include "session/server_spec.h"
#include "dblink/dblink.h"
#include "fdw/handler.h"
#include "fdw/remote_transaction.h"
#include "locks/locks.h"

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

static void
xact_callback(XactEvent event, void *arg)
{
	bool		is_before = event == XACT_EVENT_PRE_COMMIT ||
		event == XACT_EVENT_PRE_PREPARE;

	if (is_before)
		pgpx_lock_at_xact(event);
	pgpx_remote_transaction_at_xact(event);
	pgpx_lease_at_xact(event);
	if (!is_before)
		pgpx_lock_at_xact(event);
	pgpx_catalog_at_xact(event);
}

static void
subxact_callback(SubXactEvent event, SubTransactionId subid,
				 SubTransactionId parent, void *arg)
{
	pgpx_remote_transaction_at_subxact(event);
	pgpx_lease_at_subxact(event, subid, parent);
	pgpx_lock_at_subxact(event, subid, parent);
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest,
				QueryCompletion *qc)
{
	/* read before, because the end of a transaction may free the statement */
	Node	   *stmt = pstmt->utilityStmt;
	bool		discards = pgpx_catalog_begin_utility(stmt);
	bool		guards = pgpx_participant_begin_utility(stmt);

	if (prev_process_utility)
		prev_process_utility(pstmt, queryString, readOnlyTree, context, params,
							 queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);
	if (discards)
		pgpx_catalog_end_discard();
	if (guards)
		pgpx_participant_end_utility(stmt);
}

static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId,
			  void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access != OAT_DROP)
		return;
	pgpx_attach_check_drop(classId, objectId);
	pgpx_dblink_check_drop(classId, objectId);
	pgpx_participant_check_drop(classId, objectId);
}

void
pgpx_hooks_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
