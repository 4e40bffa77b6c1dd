/*-------------------------------------------------------------------------
 *
 * admin_functions.c
 *	  SQL functions for administration, and check_invariants.
 *
 * pause, resume, drain, reconnect and reset_stats act on all pools of a server
 * in this database, or of all servers if the argument is NULL.  prewarm acts on
 * the current user's pool of a server.  EXECUTE on them is not granted to
 * PUBLIC.  In addition, the caller must own the server or have the privileges
 * of pg_signal_backend.  An owner may also ALTER the server.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/debug_point.h"
#include "shared/cap.h"
#include "shared/history.h"
#include "shared/invariants.h"
#include "shared/registry.h"
#include "session/checkout.h"
#include "session/server_spec.h"
#include "api/arguments.h"

PG_FUNCTION_INFO_V1(pgpx_pause);
PG_FUNCTION_INFO_V1(pgpx_resume);
PG_FUNCTION_INFO_V1(pgpx_drain);
PG_FUNCTION_INFO_V1(pgpx_reconnect);
PG_FUNCTION_INFO_V1(pgpx_prewarm);
PG_FUNCTION_INFO_V1(pgpx_reset_stats);
PG_FUNCTION_INFO_V1(pgpx_terminate);

#define DRAIN_CHECK_US (20 * 1000)	/* polling interval of drain */

/*
 * Return the servers that a call acts on: the server in the first argument, or
 * all servers that the user may administer if it is NULL.  to_pause: if the
 * argument is NULL, omit the servers that cannot have pools, because each
 * paused server occupies a slot.
 */
static List *
servers_of_call(FunctionCallInfo fcinfo, bool to_pause)
{
	Oid			user = GetUserId();
	bool		signals = has_privs_of_role(user, ROLE_PG_SIGNAL_BACKEND);
	List	   *servers = NIL;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	row;

	pgpx_shmem_require();
	if (!PG_ARGISNULL(0))
	{
		char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
		ForeignServer *server = GetForeignServerByName(name, false);

		pgpx_arg_require_admin(server->serverid, name);
		return list_make1_oid(server->serverid);
	}

	rel = table_open(ForeignServerRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_foreign_server form =
			(Form_pg_foreign_server) GETSTRUCT(row);
		PgpxServerRow server;

		if ((signals || pgpx_server_ownercheck(form->oid, user)) &&
			(!to_pause ||
			 pgpx_server_catalog_find_server(form->oid, &server)))
			servers = lappend_oid(servers, form->oid);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return servers;
}

typedef void (*PoolAction)(PgpxPool *pool, PgpxWake *wake, void *arg);

/*
 * Call action() for each pool of these servers, with the pool lock held
 * exclusively.
 */
static void
for_each_pool(List *servers, PoolAction action, void *arg)
{
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxWake	wake = PGPX_WAKE_INIT;

		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		if (pool->pool_id != 0 && pool->key.database == MyDatabaseId &&
			list_member_oid(servers, pool->key.server))
			action(pool, &wake, arg);
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
	}
	pgpx_worker_wake_all();
}

/* Pause or resume servers.  An error does not undo the changes before it. */
static void
pause_servers(List *servers, bool pause, bool drain)
{
	ListCell   *lc;

	foreach(lc, servers)
	{
		if (!pgpx_server_set_paused(MyDatabaseId, lfirst_oid(lc), pause, drain))
			ereport(ERROR,
					(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
					 errmsg("too many pools"),
					 errdetail("All %d slots are in use. A paused server occupies one, too.",
							   pgpx_shared->max_pools),
					 errhint("Raise \"pgpool_ext.max_pools\", or resume servers "
							 "that need not be paused.")));
	}
}

/*
 * Count the leases that were granted and revoked before their waiters claimed
 * them.  These waiters will be counted as granted when they are dequeued.
 */
static void
count_revoked_grants_locked(PgpxPool *pool)
{
	PgpxStats  *stats = &pool->stats;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	for (int i = 0; i < pgpx_shared->nwaiter_slots; i++)
	{
		const PgpxWaiter *waiter = &pgpx_waiters[i];
		PgpxConn   *conn;
		PgpxRevoke	revoke;

		if (waiter->pool != PGPX_POOL_INDEX(pool) ||
			waiter->state != PGPX_WAITER_GRANTED)
			continue;
		conn = &pgpx_conns[waiter->conn];
		if (pg_atomic_read_u64(&conn->lease_id) == waiter->lease_id)
			continue;
		revoke = pgpx_waiter_revoke_reason(i, waiter->lease_id);
		stats->checkouts++;
		if (revoke == PGPX_REVOKE_TERMINATED)
			stats->terminated++;
		else if (revoke == PGPX_REVOKE_TIMEOUT)
			stats->lease_timeouts++;
		else
			stats->reclaimed++;
	}
}

static void
reset_action(PgpxPool *pool, PgpxWake *wake, void *arg)
{
	PgpxStats	old = pool->stats;
	PgpxTime	now = pgpx_now();
	PgpxTotals	before;

	pgpx_history_totals_locked(pool, now, &before);

	/*
	 * Keep the counts of operations that have started and not ended, so that
	 * the documented sums hold.
	 */
	memset(&pool->stats, 0, sizeof(pool->stats));
	pool->stats.checkouts = old.checkouts - pgpx_stats_sum_ended(&old);
	pool->stats.connects = old.connects - pgpx_stats_sum_closed(&old);
	count_revoked_grants_locked(pool);
	pool->stats_reset = now;
	pgpx_history_rebase_locked(pool, now, &before);
}

typedef struct Drain
{
	int			nconns;			/* connections in any state */
	bool		ended;			/* by another session */
} Drain;

/*
 * Close all unused connections, and count all.  A leased one is closed at its
 * checkin.
 */
static void
drain_action(PgpxPool *pool, PgpxWake *wake, void *arg)
{
	Drain	   *drain = arg;

	if (pgpx_pool_is_draining(pool))
		pgpx_pool_close_free_locked(pool);
	else
		drain->ended = true;
	drain->nconns += pgpx_pool_total_locked(pool) + pool->nbroken;
}

/*
 * Dispatch waiters, and open connections for min_size and min_idle regardless
 * of waiters.
 */
static void
resume_action(PgpxPool *pool, PgpxWake *wake, void *arg)
{
	/* a connect that failed during the pause must not delay the next one */
	pool->retry_at = Min(pool->retry_at, pgpx_now());
	pgpx_pool_dispatch_locked(pool, wake);
	pgpx_pool_grow_locked(pool, 0);
}

static void
reconnect_action(PgpxPool *pool, PgpxWake *wake, void *arg)
{
	pgpx_pool_reconnect_locked(pool);
	pgpx_pool_dispatch_locked(pool, wake);
}

/* pause(pool text) returns void */
Datum
pgpx_pause(PG_FUNCTION_ARGS)
{
	pause_servers(servers_of_call(fcinfo, true), true, false);
	PG_RETURN_VOID();
}

/* resume(pool text) returns void */
Datum
pgpx_resume(PG_FUNCTION_ARGS)
{
	List	   *servers = servers_of_call(fcinfo, false);

	pause_servers(servers, false, false);
	for_each_pool(servers, resume_action, NULL);
	PG_RETURN_VOID();
}

/* reconnect(pool text) returns void */
Datum
pgpx_reconnect(PG_FUNCTION_ARGS)
{
	for_each_pool(servers_of_call(fcinfo, false), reconnect_action, NULL);
	PG_RETURN_VOID();
}

/* reset_stats(pool text) returns void */
Datum
pgpx_reset_stats(PG_FUNCTION_ARGS)
{
	for_each_pool(servers_of_call(fcinfo, false), reset_action, NULL);
	PG_RETURN_VOID();
}

/* drain(pool text, timeout interval) returns boolean: true if all are closed */
Datum
pgpx_drain(PG_FUNCTION_ARGS)
{
	static uint32 wait_event = 0;
	List	   *servers = servers_of_call(fcinfo, true);
	PgpxTime	deadline = pgpx_arg_deadline(fcinfo, 1);

	pause_servers(servers, true, true);
	PGPX_DEBUG_POINT("draining");
	for (;;)
	{
		bool		is_last = deadline != 0 && pgpx_now() >= deadline;
		Drain		drain = {0};

		for_each_pool(servers, drain_action, &drain);
		if (is_last || drain.ended || drain.nconns == 0)
			PG_RETURN_BOOL(!drain.ended && drain.nconns == 0);
		(void) pgpx_session_wait_latch(pgpx_now() + DRAIN_CHECK_US,
									   pgpx_wait_event(&wait_event, "PgpoolDrain"));
	}
}

/*
 * prewarm(pool text, n integer, timeout interval) returns integer: the number
 * of open connections
 */
Datum
pgpx_prewarm(PG_FUNCTION_ARGS)
{
	char	   *server = pgpx_arg_pool(fcinfo, 0);
	int			n;
	PgpxTime	deadline;

	if (PG_ARGISNULL(1))
		pgpx_arg_raise_null("n");
	n = PG_GETARG_INT32(1);
	if (n < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("n must not be negative")));
	(void) servers_of_call(fcinfo, false);	/* check privileges */
	deadline = pgpx_arg_deadline(fcinfo, 2);
	PG_RETURN_INT32(pgpx_checkout_prewarm(pgpx_server_spec_get(server), n,
										  deadline, NULL));
}

/* terminate(lease bigint) returns boolean: true if the lease was active */
Datum
pgpx_terminate(PG_FUNCTION_ARGS)
{
	int64		id = pgpx_arg_lease(fcinfo, 0);
	bool		found = false;

	for (int i = 0; id > 0 && i < pgpx_conns_end() && !found; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		PgpxWake	wake = PGPX_WAKE_INIT;
		PgpxPool   *pool;
		int			index = conn->pool;
		Oid			owner = conn->holder.user;

		if (index < 0 || pg_atomic_read_u64(&conn->lease_id) != (uint64) id)
			continue;

		/* the rule of pg_terminate_backend */
		if (superuser_arg(owner) ? !superuser() :
			!has_privs_of_role(GetUserId(), owner) &&
			!has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to terminate lease " INT64_FORMAT, id),
					 superuser_arg(owner) ?
					 errdetail("Only superusers can terminate the lease of a superuser.") :
					 errdetail("Only members of the lease's role or of pg_signal_backend can terminate it.")));

		pool = &pgpx_pools[index];
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		if (conn->pool == index && conn->holder.user == owner &&
			pg_atomic_read_u64(&conn->lease_id) == (uint64) id &&
			!pgpx_conn_is_spared(conn))
		{
			pgpx_pool_revoke_locked(pool, conn, PGPX_REVOKE_TERMINATED, &wake);
			found = true;
		}
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
	}
	PG_RETURN_BOOL(found);
}

PG_FUNCTION_INFO_V1(pgpx_check_invariants);

/* check_invariants() returns void: raises XX000 with all inconsistencies */
Datum
pgpx_check_invariants(PG_FUNCTION_ARGS)
{
	PgpxFaults *faults;
	StringInfoData detail;
	int			described;

	pgpx_shmem_require();
	faults = palloc(sizeof(PgpxFaults));
	pgpx_invariants_check(faults);
	if (faults->n == 0)
		PG_RETURN_VOID();

	initStringInfo(&detail);
	described = Min(faults->n, PGPX_FAULTS_MAX);
	for (int i = 0; i < described; i++)
		appendStringInfo(&detail, "%s%s", i > 0 ? "\n" : "", faults->text[i]);
	if (faults->n > described)
		appendStringInfo(&detail, "\nand %d more", faults->n - described);
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("shared state of pgpool_ext is inconsistent"),
			 errdetail_internal("%s", detail.data)));
	PG_RETURN_VOID();
}
