/*-------------------------------------------------------------------------
 *
 * views.c
 *	  SQL functions behind the views pools, connections, workers, leases,
 *	  waiters and stats.
 *
 * Locks: the iterator acquires the registry lock to list the pools, and then
 * the lock of each pool, one at a time, all in shared mode.  Under a lock it
 * only copies memory, which was allocated before.  A row is therefore
 * consistent.
 *
 * Texts: names and texts come from sessions of any database, so they can be in
 * any encoding.  Some come from remote servers, so they can contain anything.
 *
 * Gauges are computed from the states of the connections and not stored.  The
 * counters of a pool are copied at one instant, so that the sums documented in
 * the comment on the view hold in every row.
 *
 *-------------------------------------------------------------------------
 */
#include "api/views.h"

#include <arpa/inet.h>

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inet.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/debug_point.h"
#include "shared/pool.h"
#include "shared/registry.h"
#include "shared/wait_queue.h"
#include "protocol/remote_message.h"

/* What the iterator copies besides the pool. */
#define PGPX_VIEW_CONNS		1
#define PGPX_VIEW_WAITERS	2

typedef struct PgpxView
{
	/* the current pool, as of one instant */
	PgpxPool	pool;
	PgpxTime	now;
	int			live;			/* connections that a session can use */
	int			total;			/* connections in any state */
	int			cap;			/* pool_size and max_overflow */
	PgpxGrowthLimit limit;
	int			nconns;
	PgpxConn   *conns;			/* none of them is FREE */
	int		   *conn_index;		/* their indexes */
	int			nwaiting;
	PgpxWaiter *waiters;		/* in state WAITING, in queue order */

	/* the caller's privileges */
	bool		sees_all;		/* as pg_read_all_stats */
	Oid			user;

	/* the iteration */
	int			flags;
	int			npools;			/* pools to visit: */
	int		   *index;
	uint32	   *id;
	int			at;				/* the next of them */
} PgpxView;

/* Allocate an array of the maximum size.  Unused pages cost no memory. */
static void *
alloc_array(int n, Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext, mul_size(n, size));
}

/* Start an iteration over all pools that exist now. */
static PgpxView *
view_begin(int flags)
{
	PgpxView   *view = palloc0(sizeof(PgpxView));

	view->flags = flags;
	view->sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	view->user = GetUserId();
	view->index = alloc_array(pgpx_shared->max_pools, sizeof(int));
	view->id = alloc_array(pgpx_shared->max_pools, sizeof(uint32));
	if (flags & PGPX_VIEW_CONNS)
	{
		view->conns = alloc_array(pgpx_shared->max_connections,
								  sizeof(PgpxConn));
		view->conn_index = alloc_array(pgpx_shared->max_connections,
									   sizeof(int));
	}
	if (flags & PGPX_VIEW_WAITERS)
		view->waiters = alloc_array(pgpx_shared->nwaiter_slots,
									sizeof(PgpxWaiter));

	LWLockAcquire(pgpx_shared->registry_lock, LW_SHARED);
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		if (pgpx_pools[i].pool_id == 0)
			continue;
		view->id[view->npools] = pgpx_pools[i].pool_id;
		view->index[view->npools++] = i;
	}
	LWLockRelease(pgpx_shared->registry_lock);
	return view;
}

/* Copy the pool with this index, and what the flags request. */
static void
copy_locked(PgpxView *view, int index)
{
	Assert(LWLockHeldByMe(pgpx_pools[index].lock));
	memcpy(&view->pool, &pgpx_pools[index], sizeof(PgpxPool));
	view->live = pgpx_pool_count_live_locked(&pgpx_pools[index]);
	view->total = pgpx_pool_total_locked(&pgpx_pools[index]);
	view->cap = pgpx_pool_cap_locked(&pgpx_pools[index]);
	view->limit = pgpx_pool_growth_limit_locked(&pgpx_pools[index]);
	view->nconns = 0;
	view->nwaiting = 0;

	if (view->flags & PGPX_VIEW_CONNS)
		pgpx_conn_foreach_locked(conn, &pgpx_pools[index])
		{
			if (view->nconns == pgpx_shared->max_connections)
				break;			/* the list of a damaged pool may be circular */
			memcpy(&view->conns[view->nconns], conn, sizeof(PgpxConn));
			view->conn_index[view->nconns++] = PGPX_CONN_INDEX(conn);
		}

	if (view->flags & PGPX_VIEW_WAITERS)
		for (int i = pgpx_pools[index].queue_head;
			 i >= 0 && view->nwaiting < pgpx_shared->nwaiter_slots;
			 i = pgpx_waiters[i].next)
			memcpy(&view->waiters[view->nwaiting++], &pgpx_waiters[i],
				   sizeof(PgpxWaiter));
}

/* Copy the next pool; return false at the end. */
static bool
view_next(PgpxView *view)
{
	while (view->at < view->npools)
	{
		int			index = view->index[view->at];
		uint32		id = view->id[view->at];
		bool		found;

		view->at++;
		LWLockAcquire(pgpx_pools[index].lock, LW_SHARED);
		found = pgpx_pools[index].pool_id == id;
		if (found)
			copy_locked(view, index);
		LWLockRelease(pgpx_pools[index].lock);
		if (!found)
			continue;

		view->now = pgpx_now();
		return true;
	}
	return false;
}

/* Return whether a back-off after a failed connection attempt is in effect. */
static bool
is_backing_off(const PgpxView *view)
{
	return view->pool.retry_at > view->now;
}

/*
 * Return whether a user may check out connections of this pool, which all local
 * users of a PUBLIC mapping share.
 */
static bool
may_use_shared(const PgpxPoolKey *key, Oid user)
{
	HeapTuple	row;
	Oid			server;

	row = SearchSysCache1(USERMAPPINGOID, ObjectIdGetDatum(key->mapping));
	if (!HeapTupleIsValid(row))
		return false;
	server = ((Form_pg_user_mapping) GETSTRUCT(row))->umserver;
	ReleaseSysCache(row);
	return !SearchSysCacheExists2(USERMAPPINGUSERSERVER,
								  ObjectIdGetDatum(user),
								  ObjectIdGetDatum(server)) &&
		SearchSysCacheExists1(FOREIGNSERVEROID,
							  ObjectIdGetDatum(key->server)) &&
		pgpx_server_aclcheck(key->server, user, ACL_USAGE) == ACLCHECK_OK &&
		SearchSysCacheExists1(FOREIGNSERVEROID, ObjectIdGetDatum(server)) &&
		pgpx_server_aclcheck(server, user, ACL_USAGE) == ACLCHECK_OK;
}

/*
 * Return whether the caller may see the texts and addresses of the current
 * pool.  Unlike for a lease or a waiter, the privileges of the pool's user are
 * not sufficient: an error can contain the name of the remote user, and
 * pg_user_mappings shows the options of a user mapping only to the mapped user.
 */
static bool
can_see_pool(const PgpxView *view)
{
	const PgpxPoolKey *key = &view->pool.key;

	if (view->sees_all || view->pool.user == view->user)
		return true;

	/* a user sees a pool of all local users if checkouts from it are allowed */
	return !OidIsValid(view->pool.user) && key->database == MyDatabaseId &&
		key->superuser == 0 && may_use_shared(key, view->user);
}

/*
 * Return whether the caller may see the texts of a row whose owner is this
 * role.
 */
static bool
can_see_role(const PgpxView *view, Oid role)
{
	return view->sees_all || has_privs_of_role(view->user, role);
}

void
pgpx_row_begin(PgpxRow *row, FunctionCallInfo fcinfo)
{
	pgpx_shmem_require();
	InitMaterializedSRF(fcinfo, 0);
	row->rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	row->zero = pgpx_timestamp(0);
	row->n = 0;
}

static void
append(PgpxRow *row, Datum value, bool null)
{
	if (row->n >= PGPX_ROW_COLUMNS)
		elog(ERROR, "pgpool_ext: a view has more than %d columns", PGPX_ROW_COLUMNS);
	row->values[row->n] = value;
	row->nulls[row->n] = null;
	row->n++;
}

void
pgpx_row_null(PgpxRow *row)
{
	append(row, (Datum) 0, true);
}

static void
row_bool(PgpxRow *row, bool value)
{
	append(row, BoolGetDatum(value), false);
}

static void
row_int(PgpxRow *row, int value)
{
	append(row, Int32GetDatum(value), false);
}

void
pgpx_row_int_or_null(PgpxRow *row, int value)
{
	append(row, Int32GetDatum(value), value == 0);
}

void
pgpx_row_bigint(PgpxRow *row, uint64 value)
{
	append(row, Int64GetDatum((int64) value), false);
}

void
pgpx_row_text(PgpxRow *row, const char *text)
{
	if (text == NULL)
		pgpx_row_null(row);
	else
		append(row, CStringGetTextDatum(pgpx_text_clean(pstrdup(text))), false);
}

void
pgpx_row_name(PgpxRow *row, const char *name)
{
	char	   *clean = pgpx_text_clean(pstrdup(name));

	append(row, DirectFunctionCall1(namein, CStringGetDatum(clean)), false);
}

void
pgpx_row_role(PgpxRow *row, Oid role)
{
	char	   *name = GetUserNameFromId(role, true);

	if (name == NULL)
		pgpx_row_null(row);
	else
		pgpx_row_name(row, name);
}

static void
row_addr(PgpxRow *row, const char *addr)
{
	char		text[PGPX_ADDR_LEN];
	char		binary[sizeof(struct in6_addr)];

	/* type inet does not support the zone of a link-local address */
	strlcpy(text, addr, sizeof(text));
	text[strcspn(text, "%")] = '\0';
	if (inet_pton(AF_INET, text, binary) == 1 ||
		inet_pton(AF_INET6, text, binary) == 1)
		append(row, DirectFunctionCall1(inet_in, CStringGetDatum(text)), false);
	else
		pgpx_row_null(row);
}

void
pgpx_row_secret(PgpxRow *row, bool visible, const char *text)
{
	pgpx_row_text(row, visible ? text : PGPX_HIDDEN);
}

void
pgpx_row_instant(PgpxRow *row, PgpxTime t)
{
	append(row, TimestampTzGetDatum(row->zero + t), t == 0);
}

static void
row_ms(PgpxRow *row, PgpxTime duration)
{
	append(row, Float8GetDatum(duration / 1000.0), false);
}

void
pgpx_row_interval(PgpxRow *row, PgpxTime duration)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = duration;
	append(row, IntervalPGetDatum(interval), false);
}

static void
row_pool(PgpxRow *row, const PgpxPool *pool)
{
	row_int(row, (int) pool->pool_id);
	pgpx_row_name(row, NameStr(pool->database_name));
	pgpx_row_name(row, NameStr(pool->server_name));
}

void
pgpx_row_store(PgpxRow *row)
{
	/*
	 * New columns are appended.  A library that is newer than the extension's
	 * script fills more columns than the view has, and the surplus is left
	 * out.  An older library, loaded by a server that was not restarted after
	 * an upgrade, fills fewer.
	 */
	if (row->n < row->rsinfo->setDesc->natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the server has loaded an older version of the library pgpool_ext"),
				 errdetail("The view has %d columns, and the loaded library returns %d.",
						   row->rsinfo->setDesc->natts, row->n),
				 errhint("Restart the server after an upgrade of pgpool_ext.")));
	tuplestore_putvalues(row->rsinfo->setResult, row->rsinfo->setDesc,
						 row->values, row->nulls);
	row->n = 0;
}

PG_FUNCTION_INFO_V1(pgpx_view_pools);
PG_FUNCTION_INFO_V1(pgpx_view_connections);
PG_FUNCTION_INFO_V1(pgpx_view_workers);
PG_FUNCTION_INFO_V1(pgpx_view_dblink_calls);

static bool
is_stale(const PgpxView *view, const PgpxConn *conn)
{
	return conn->version != view->pool.version;
}

/* Return the number of connections that a checkout can lease at once. */
static int
available_connections(const PgpxPool *pool)
{
	return pool->count[PGPX_CONN_IDLE] + pool->count[PGPX_CONN_RESET_PENDING];
}

/*
 * Return whether the remote server has refused the last attempt because it
 * accepts no more connections, and the worker will try again.
 */
static bool
is_remote_full(const PgpxView *view)
{
	const PgpxPool *pool = &view->pool;

	return pool->remote_full_since != 0 &&
		(is_backing_off(view) || pool->nwaiting > 0);
}

/*
 * Return the state of a pool.  States in which no connection is granted take
 * precedence.
 */
static const char *
pool_state(const PgpxView *view)
{
	const PgpxPool *pool = &view->pool;

	if (pool->damaged)
		return "damaged";
	if (pgpx_pool_is_draining(pool))
		return "draining";
	if (pgpx_pool_is_paused(pool))
		return "paused";
	if (is_remote_full(view) && available_connections(pool) == 0)
		return "remote_full";
	if (pool->unavailable_since != 0 && view->live == 0)
		return "unavailable";
	for (int i = 0; i < view->nconns; i++)
		if (view->conns[i].state == PGPX_CONN_LEASED &&
			is_stale(view, &view->conns[i]))
			return "stale";
	if (available_connections(pool) == 0 && view->total >= view->cap)
		return "full";
	if (view->total > pool->opts.pool_size)
		return "overflow";
	return "ready";
}

/* Return the wait time of the waiter that has waited longest. */
static PgpxTime
oldest_wait(const PgpxView *view)
{
	PgpxTime	oldest = view->now;

	for (int i = 0; i < view->nwaiting; i++)
		oldest = Min(oldest, view->waiters[i].since);
	return view->now - oldest;
}

/* pools() returns setof pools_row */
Datum
pgpx_view_pools(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = view_begin(PGPX_VIEW_CONNS | PGPX_VIEW_WAITERS);
	while (view_next(view))
	{
		const PgpxPool *pool = &view->pool;

		row_pool(&row, pool);
		pgpx_row_name(&row, NameStr(pool->user_name));
		pgpx_row_text(&row, pool_state(view));
		row_int(&row, pool->worker);
		row_int(&row, pool->opts.pool_size);
		row_int(&row, view->total + pool->nbroken);
		row_int(&row, pool->count[PGPX_CONN_LEASED]);
		row_int(&row, pool->count[PGPX_CONN_IDLE]);
		row_int(&row, pool->count[PGPX_CONN_RESET_PENDING]);
		row_int(&row, pool->count[PGPX_CONN_CONNECTING]);
		row_int(&row, pool->count[PGPX_CONN_RESETTING]);
		row_int(&row, pool->count[PGPX_CONN_CHECKING]);
		row_int(&row, pool->count[PGPX_CONN_CANCELLING]);
		row_int(&row, pool->count[PGPX_CONN_CLOSING]);
		row_int(&row, view->nwaiting);
		if (view->nwaiting > 0)
			row_ms(&row, oldest_wait(view));
		else
			pgpx_row_null(&row);
		pgpx_row_instant(&row, pool->unavailable_since);
		pgpx_row_instant(&row, pool->remote_full_since);
		pgpx_row_secret(&row, can_see_pool(view),
						pool->last_error_at != 0 ? pool->last_error : NULL);
		pgpx_row_instant(&row, pool->last_error_at);
		pgpx_row_instant(&row, pool->retry_at);
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}

static void
connection_row(PgpxRow *row, PgpxView *view, int i)
{
	PgpxConn   *conn = &view->conns[i];
	bool		opened = conn->opened_at != 0;
	bool		relayed = opened && conn->relayed;

	row_pool(row, &view->pool);
	pgpx_row_name(row, NameStr(view->pool.user_name));
	row_int(row, view->conn_index[i]);
	pgpx_row_text(row, pgpx_conn_state_name(conn->state));
	pgpx_row_instant(row, conn->state_since);
	row_bool(row, is_stale(view, conn));

	/* the worker sets these fields before it sets opened_at */
	pgpx_row_text(row, !opened ? NULL : relayed ? "relay" :
												  "direct");
	pgpx_row_text(row, relayed ? conn->tls_version : NULL);
	pgpx_row_text(row, relayed ? conn->tls_cipher : NULL);
	if (opened && can_see_pool(view))
	{
		row_addr(row, conn->remote_addr);
		pgpx_row_int_or_null(row, conn->remote_port);
	}
	else
	{
		pgpx_row_null(row);
		pgpx_row_null(row);
	}
	pgpx_row_int_or_null(row, opened ? conn->remote_pid : 0);
	pgpx_row_instant(row, conn->opened_at);
	pgpx_row_instant(row, conn->last_used);
	pgpx_row_store(row);
}

/* connections() returns setof connections_row */
Datum
pgpx_view_connections(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = view_begin(PGPX_VIEW_CONNS);
	while (view_next(view))
		for (int i = 0; i < view->nconns; i++)
			connection_row(&row, view, i);
	return (Datum) 0;
}

static const char *
worker_state(PgpxWorkerSlot *slot)
{
	switch (pg_atomic_read_u32(&slot->state))
	{
		case PGPX_WORKER_STARTING:
			return "starting";
		case PGPX_WORKER_RUNNING:
			return "running";
		case PGPX_WORKER_STOPPING:
			return "stopping";
		default:
			return "down";
	}
}

/* dblink_calls() returns table (outcome text, calls bigint) */
Datum
pgpx_view_dblink_calls(PG_FUNCTION_ARGS)
{
	static const char *const outcomes[PGPX_DBLINK_OUTCOMES] = {
		[PGPX_DBLINK_POOLED] = "pooled",
		[PGPX_DBLINK_OPEN_CONNECTION] = "open connection",
		[PGPX_DBLINK_NO_SERVER] = "no server",
		[PGPX_DBLINK_OTHER_SESSION] = "other session",
		[PGPX_DBLINK_NONE_FREE] = "none free",
		[PGPX_DBLINK_UNAVAILABLE] = "unavailable",
	};
	PgpxRow		row;

	pgpx_row_begin(&row, fcinfo);
	for (int i = 0; i < PGPX_DBLINK_OUTCOMES; i++)
	{
		uint64		calls = pg_atomic_read_u64(&pgpx_shared->dblink_calls[i]);

		pgpx_row_text(&row, outcomes[i]);
		pgpx_row_bigint(&row, calls);
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}

/* workers() returns setof workers_row */
Datum
pgpx_view_workers(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;
	int			pools[PGPX_MAX_WORKERS] = {0};
	int			connections[PGPX_MAX_WORKERS] = {0};

	pgpx_row_begin(&row, fcinfo);
	view = view_begin(0);
	while (view_next(view))
	{
		pools[view->pool.worker]++;
		connections[view->pool.worker] += view->total;
	}
	for (int i = 0; i < pgpx_shared->nworkers; i++)
	{
		PgpxWorkerSlot *slot = &pgpx_shared->worker[i];

		row_int(&row, i);
		pgpx_row_int_or_null(&row, (int) pg_atomic_read_u32(&slot->pid));
		pgpx_row_text(&row, worker_state(slot));
		row_int(&row, (int) pg_atomic_read_u32(&slot->restarts));
		row_int(&row, pools[i]);
		row_int(&row, connections[i]);
		row_int(&row, (int) pg_atomic_read_u32(&slot->descriptors));
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(pgpx_view_leases);
PG_FUNCTION_INFO_V1(pgpx_view_waiters);

static const char *
scope_name(int scope)
{
	switch (scope)
	{
		case PGPX_SCOPE_SESSION:
			return "session";
		case PGPX_SCOPE_TRANSACTION:
			return "transaction";
		case PGPX_SCOPE_TABLE:
			return "fdw";
		default:
			return "call";
	}
}

static const char *
activity_name(PgpxActivity activity)
{
	switch (activity)
	{
		case PGPX_ACT_IDLE:
			return "idle";
		case PGPX_ACT_ACTIVE:
			return "active";
		case PGPX_ACT_TRANSACTION:
			return "in transaction";
		case PGPX_ACT_FAILED:
			return "failed";
		case PGPX_ACT_CANCELLING:
			return "cancelling";
		default:
			return "broken";
	}
}

/* leases() returns setof leases_row */
Datum
pgpx_view_leases(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = view_begin(PGPX_VIEW_CONNS);
	while (view_next(view))
		for (int i = 0; i < view->nconns; i++)
		{
			PgpxConn   *conn = &view->conns[i];
			bool		visible;

			if (conn->state != PGPX_CONN_LEASED)
				continue;
			visible = can_see_role(view, conn->owner_user);
			pgpx_row_bigint(&row, pg_atomic_read_u64(&conn->lease_id));
			row_pool(&row, &view->pool);
			row_int(&row, view->conn_index[i]);
			pgpx_row_int_or_null(&row, conn->owner_pid);
			pgpx_row_role(&row, conn->owner_user);
			pgpx_row_secret(&row, visible, conn->application_name);
			pgpx_row_text(&row, scope_name(conn->scope));
			pgpx_row_text(&row, activity_name(pgpx_conn_activity(conn)));
			pgpx_row_instant(&row, conn->leased_at);
			pgpx_row_secret(&row, visible, conn->why[0] ? conn->why : NULL);
			pgpx_row_int_or_null(&row, conn->remote_pid);
			pgpx_row_store(&row);
		}
	return (Datum) 0;
}

/*
 * Return the reason why the waiters of a pool wait.  In order of precedence:
 * the pool grants no connection, one is being opened or tested, or the first
 * limit that keeps the pool from opening one.
 */
static const char *
wait_reason(const PgpxView *view)
{
	static const char *const limits[] = {
		[PGPX_LIMIT_NONE] = "connecting",
		[PGPX_LIMIT_CONNECTING] = "connecting",
		[PGPX_LIMIT_CHECKING] = "checking",
		[PGPX_LIMIT_CANCELLING] = "cancelling",
		[PGPX_LIMIT_POOL] = "full",
		[PGPX_LIMIT_UNAVAILABLE] = "unavailable",
		[PGPX_LIMIT_SERVER] = "server_cap",
		[PGPX_LIMIT_ALL] = "global_cap",
	};
	const PgpxPool *pool = &view->pool;

	if (pool->damaged)
		return "damaged";
	if (pgpx_pool_is_paused(pool))
		return "paused";
	if (is_remote_full(view))
		return "remote_full";
	if (pool->count[PGPX_CONN_CONNECTING] > 0)
		return "connecting";
	if (pool->count[PGPX_CONN_CHECKING] > 0)
		return "checking";
	return limits[view->limit];
}

/* waiters() returns setof waiters_row */
Datum
pgpx_view_waiters(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = view_begin(PGPX_VIEW_WAITERS);
	while (view_next(view))
		for (int i = 0; i < view->nwaiting; i++)
		{
			PgpxWaiter *waiter = &view->waiters[i];
			bool		visible = can_see_role(view, waiter->user);

			row_pool(&row, &view->pool);
			row_int(&row, i + 1);
			pgpx_row_int_or_null(&row, waiter->pid);
			pgpx_row_role(&row, waiter->user);
			pgpx_row_secret(&row, visible, waiter->application_name);
			pgpx_row_instant(&row, waiter->since);
			pgpx_row_instant(&row, waiter->deadline);
			pgpx_row_secret(&row, visible, waiter->why[0] ? waiter->why : NULL);
			pgpx_row_text(&row, wait_reason(view));
			pgpx_row_store(&row);
		}
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(pgpx_view_stats);

static void
row_histogram(PgpxRow *row, const uint64 *waits)
{
	Datum		elements[PGPX_HISTOGRAM_BUCKETS];

	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
		elements[b] = Int64GetDatum((int64) waits[b]);
	append(row,
		   PointerGetDatum(construct_array(elements, PGPX_HISTOGRAM_BUCKETS,
										   INT8OID, sizeof(int64),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)),
		   false);
}

/* stats() returns setof stats_row */
Datum
pgpx_view_stats(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = view_begin(0);
	while (view_next(view))
	{
		const PgpxPool *pool = &view->pool;

		row_pool(&row, pool);
		pgpx_row_name(&row, NameStr(pool->user_name));
#define NUMBER(name) pgpx_row_bigint(&row, pool->stats.name);
#define TIME(name) row_ms(&row, pool->stats.name);
		PGPX_COUNTERS(NUMBER, TIME, NUMBER)
#undef NUMBER
#undef TIME
		row_histogram(&row, pool->stats.histogram);
		pgpx_row_instant(&row, pool->stats_reset);
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}
