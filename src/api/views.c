/*-------------------------------------------------------------------------
 *
 * views.c
 *	  SQL functions behind the views pools, connections, dblink_calls,
 *	  workers, leases, waiters, stats and history.
 *
 * Locks: the iterator acquires the lock of each pool, one at a time, in shared
 * mode.  Under the lock it only copies memory, which was allocated before.  A
 * row is therefore consistent.
 *
 * Texts: names and texts come from sessions of any database, so they can be in
 * any encoding.  Some come from remote servers, so they can contain anything.
 *
 * Gauges are computed from the states of the connections and not stored.  The
 * counters of a pool are copied at one instant, so that the equations in
 * doc/views.md hold in every row.
 *
 *-------------------------------------------------------------------------
 */
#include "api/views.h"

#include <arpa/inet.h>
#include <math.h>

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
#include "shared/history.h"
#include "shared/pool.h"
#include "shared/registry.h"
#include "shared/wait_queue.h"
#include "protocol/remote_message.h"
#include "session/server_spec.h"

typedef struct PgpxView
{
	PgpxRow		row;			/* the result */

	/* the current pool, as of one instant */
	int			index;			/* -1: the first pool is next */
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
} PgpxView;

/* Allocate an array of the maximum size.  Unused pages cost no memory. */
static void *
alloc_array(int n, Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext, mul_size(n, size));
}

/* Start the result of a view, and an iteration over all pools. */
static PgpxView *
view_begin(FunctionCallInfo fcinfo)
{
	PgpxView   *view = palloc0(sizeof(PgpxView));

	pgpx_row_begin(&view->row, fcinfo);
	view->index = -1;
	view->sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	view->user = GetUserId();
	view->conns = alloc_array(pgpx_shared->max_connections, sizeof(PgpxConn));
	view->conn_index = alloc_array(pgpx_shared->max_connections, sizeof(int));
	view->waiters = alloc_array(pgpx_shared->nwaiter_slots, sizeof(PgpxWaiter));
	return view;
}

/* Copy a pool, its connections and its waiters. */
static void
copy_locked(PgpxView *view, PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	memcpy(&view->pool, pool, sizeof(PgpxPool));
	view->live = pgpx_pool_count_live_locked(pool);
	view->total = pgpx_pool_total_locked(pool);
	view->cap = pgpx_pool_cap_locked(pool);
	view->limit = pgpx_pool_growth_limit_locked(pool);
	view->nconns = 0;
	view->nwaiting = 0;

	pgpx_conn_foreach_locked(conn, pool)
	{
		if (view->nconns == pgpx_shared->max_connections)
			break;				/* the list of a damaged pool may be circular */
		memcpy(&view->conns[view->nconns], conn, sizeof(PgpxConn));
		view->conn_index[view->nconns++] = PGPX_CONN_INDEX(conn);
	}
	for (int i = pool->queue.head;
		 i >= 0 && view->nwaiting < pgpx_shared->nwaiter_slots;
		 i = pgpx_waiters[i].in_queue.next)
		memcpy(&view->waiters[view->nwaiting++], &pgpx_waiters[i],
			   sizeof(PgpxWaiter));
}

/* Copy the next pool; return false at the end. */
static bool
view_next(PgpxView *view)
{
	bool		found = false;

	while (!found && ++view->index < pgpx_pools_end())
	{
		PgpxPool   *pool = &pgpx_pools[view->index];

		LWLockAcquire(pool->lock, LW_SHARED);
		found = pool->pool_id != 0;
		if (found)
			copy_locked(view, pool);
		LWLockRelease(pool->lock);
	}
	view->now = pgpx_now();
	return found;
}

/*
 * Return whether a user may check out connections of this pool, which all local
 * users of a PUBLIC mapping share.
 */
static bool
may_use_shared(const PgpxPoolKey *key, Oid user)
{
	HeapTuple	row;
	Oid			base;			/* the server that has the mapping */

	row = SearchSysCache1(USERMAPPINGOID, ObjectIdGetDatum(key->mapping));
	if (!HeapTupleIsValid(row))
		return false;
	base = ((Form_pg_user_mapping) GETSTRUCT(row))->umserver;
	ReleaseSysCache(row);
	return !SearchSysCacheExists2(USERMAPPINGUSERSERVER,
								  ObjectIdGetDatum(user),
								  ObjectIdGetDatum(base)) &&
		pgpx_server_catalog_may_use(key->server, user) &&
		pgpx_server_catalog_may_use(base, user);
}

/*
 * Return whether the caller may see the texts and addresses of the current
 * pool.  Members of the role of the pool's user may not, unlike for a lease or
 * a waiter: an error can contain the name of the remote user, and
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

void
pgpx_row_append(PgpxRow *row, Datum value, bool null)
{
	if (row->n >= PGPX_ROW_COLUMNS)
		elog(ERROR, "pgpool_ext: a view has more than %d columns", PGPX_ROW_COLUMNS);
	row->values[row->n] = value;
	row->nulls[row->n] = null;
	row->n++;
}

static void
row_int(PgpxRow *row, int value)
{
	pgpx_row_append(row, Int32GetDatum(value), false);
}

void
pgpx_row_int_or_null(PgpxRow *row, int value)
{
	pgpx_row_append(row, Int32GetDatum(value), value == 0);
}

static void
row_bigint(PgpxRow *row, uint64 value)
{
	pgpx_row_append(row, Int64GetDatum((int64) value), false);
}

void
pgpx_row_text(PgpxRow *row, const char *text)
{
	Datum		value = 0;

	if (text != NULL)
		value = CStringGetTextDatum(pgpx_text_clean(pstrdup(text)));
	pgpx_row_append(row, value, text == NULL);
}

void
pgpx_row_name(PgpxRow *row, const char *name)
{
	Datum		value = 0;

	if (name != NULL)
	{
		char	   *clean = pgpx_text_clean(pstrdup(name));

		value = DirectFunctionCall1(namein, CStringGetDatum(clean));
	}
	pgpx_row_append(row, value, name == NULL);
}

/* Append an IP address; NULL for any other text. */
static void
row_addr(PgpxRow *row, const char *addr)
{
	char		text[PGPX_ADDR_LEN];
	char		binary[sizeof(struct in6_addr)];
	bool		is_addr;

	/* type inet does not support the zone of a link-local address */
	strlcpy(text, addr, sizeof(text));
	text[strcspn(text, "%")] = '\0';
	is_addr = inet_pton(AF_INET, text, binary) == 1 ||
		inet_pton(AF_INET6, text, binary) == 1;
	pgpx_row_append(row, !is_addr ? 0 :
					DirectFunctionCall1(inet_in, CStringGetDatum(text)),
					!is_addr);
}

void
pgpx_row_secret(PgpxRow *row, bool visible, const char *text)
{
	pgpx_row_text(row, visible ? text : PGPX_HIDDEN);
}

void
pgpx_row_instant(PgpxRow *row, PgpxTime t)
{
	pgpx_row_append(row, TimestampTzGetDatum(row->zero + t), t == 0);
}

static void
row_ms(PgpxRow *row, PgpxTime duration)
{
	pgpx_row_append(row, Float8GetDatum(duration / 1000.0), false);
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

	return pool->remote_full &&
		(pool->retry_at > view->now || pool->nwaiting > 0);
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
	if (pgpx_pool_is_failing(pool) && view->live == 0)
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
	PgpxView   *view = view_begin(fcinfo);
	PgpxRow    *row = &view->row;

	while (view_next(view))
	{
		const PgpxPool *pool = &view->pool;

		row_pool(row, pool);
		pgpx_row_name(row, NameStr(pool->user_name));
		pgpx_row_text(row, pool_state(view));
		row_int(row, pool->worker);
		row_int(row, pool->opts.pool_size);
		row_int(row, view->total + pool->nbroken);
		row_int(row, pool->count[PGPX_CONN_LEASED]);
		row_int(row, pool->count[PGPX_CONN_IDLE]);
		row_int(row, pool->count[PGPX_CONN_RESET_PENDING]);
		row_int(row, pool->count[PGPX_CONN_CONNECTING]);
		row_int(row, pool->count[PGPX_CONN_RESETTING]);
		row_int(row, pool->count[PGPX_CONN_CHECKING]);
		row_int(row, pool->count[PGPX_CONN_CANCELLING]);
		row_int(row, pool->count[PGPX_CONN_CLOSING]);
		row_int(row, view->nwaiting);
		pgpx_row_append(row, Float8GetDatum(oldest_wait(view) / 1000.0),
						view->nwaiting == 0);
		pgpx_row_instant(row, pool->remote_full ? 0 : pool->fails_since);
		pgpx_row_instant(row, pool->remote_full ? pool->fails_since : 0);
		pgpx_row_secret(row, can_see_pool(view),
						pool->last_error_at != 0 ? pool->last_error : NULL);
		pgpx_row_instant(row, pool->last_error_at);
		pgpx_row_instant(row, pool->retry_at);
		pgpx_row_store(row);
	}
	return (Datum) 0;
}

static void
connection_row(PgpxRow *row, PgpxView *view, int i)
{
	PgpxConn   *conn = &view->conns[i];
	bool		opened = conn->opened_at != 0;
	bool		has_addr = opened && can_see_pool(view);
	bool		relayed = opened && conn->relayed;

	row_pool(row, &view->pool);
	pgpx_row_name(row, NameStr(view->pool.user_name));
	row_int(row, view->conn_index[i]);
	pgpx_row_text(row, pgpx_conn_state_name(conn->state));
	pgpx_row_instant(row, conn->state_since);
	pgpx_row_append(row, BoolGetDatum(is_stale(view, conn)), false);

	/* the worker sets these fields before it sets opened_at */
	pgpx_row_text(row, !opened ? NULL : relayed ? "relay" :
												  "direct");
	pgpx_row_text(row, relayed ? conn->tls_version : NULL);
	pgpx_row_text(row, relayed ? conn->tls_cipher : NULL);
	row_addr(row, has_addr ? conn->remote_addr : "");
	pgpx_row_int_or_null(row, has_addr ? conn->remote_port : 0);
	pgpx_row_int_or_null(row, opened ? conn->remote_pid : 0);
	pgpx_row_instant(row, conn->opened_at);
	pgpx_row_instant(row, conn->last_used);
	pgpx_row_store(row);
}

/* connections() returns setof connections_row */
Datum
pgpx_view_connections(PG_FUNCTION_ARGS)
{
	PgpxView   *view = view_begin(fcinfo);
	PgpxRow    *row = &view->row;

	while (view_next(view))
		for (int i = 0; i < view->nconns; i++)
			connection_row(row, view, i);
	return (Datum) 0;
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
		pgpx_row_text(&row, outcomes[i]);
		row_bigint(&row, pg_atomic_read_u64(&pgpx_shared->dblink_calls[i]));
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}

/* workers() returns setof workers_row */
Datum
pgpx_view_workers(PG_FUNCTION_ARGS)
{
	static const char *const worker_states[] = {
		[PGPX_WORKER_DOWN] = "down",
		[PGPX_WORKER_STARTING] = "starting",
		[PGPX_WORKER_RUNNING] = "running",
		[PGPX_WORKER_STOPPING] = "stopping",
	};
	PgpxView   *view = view_begin(fcinfo);
	PgpxRow    *row = &view->row;
	int			pools[PGPX_MAX_WORKERS] = {0};
	int			connections[PGPX_MAX_WORKERS] = {0};

	while (view_next(view))
	{
		pools[view->pool.worker]++;
		connections[view->pool.worker] += view->total;
	}
	for (int i = 0; i < pgpx_shared->nworkers; i++)
	{
		PgpxWorkerSlot *slot = &pgpx_shared->worker[i];

		row_int(row, i);
		pgpx_row_int_or_null(row, (int) pg_atomic_read_u32(&slot->pid));
		pgpx_row_text(row, worker_states[pg_atomic_read_u32(&slot->state)]);
		row_int(row, (int) pg_atomic_read_u32(&slot->restarts));
		row_int(row, pools[i]);
		row_int(row, connections[i]);
		row_int(row, (int) pg_atomic_read_u32(&slot->descriptors));
		pgpx_row_store(row);
	}
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(pgpx_view_leases);
PG_FUNCTION_INFO_V1(pgpx_view_waiters);

static const char *const scope_names[] = {
	[PGPX_SCOPE_SESSION] = "session",
	[PGPX_SCOPE_TRANSACTION] = "transaction",
	[PGPX_SCOPE_CALL] = "call",
	[PGPX_SCOPE_TABLE] = "fdw",
};

static const char *const activity_names[] = {
	[PGPX_ACT_IDLE] = "idle",
	[PGPX_ACT_ACTIVE] = "active",
	[PGPX_ACT_TRANSACTION] = "in transaction",
	[PGPX_ACT_FAILED] = "failed",
	[PGPX_ACT_CANCELLING] = "cancelling",
	[PGPX_ACT_BROKEN] = "broken",
};

/* leases() returns setof leases_row */
Datum
pgpx_view_leases(PG_FUNCTION_ARGS)
{
	PgpxView   *view = view_begin(fcinfo);
	PgpxRow    *row = &view->row;

	while (view_next(view))
		for (int i = 0; i < view->nconns; i++)
		{
			PgpxConn   *conn = &view->conns[i];
			bool		visible;

			if (conn->state != PGPX_CONN_LEASED)
				continue;
			visible = can_see_role(view, conn->holder.user);
			row_bigint(row, pg_atomic_read_u64(&conn->lease_id));
			row_pool(row, &view->pool);
			row_int(row, view->conn_index[i]);
			pgpx_row_int_or_null(row, conn->holder.pid);
			pgpx_row_name(row, GetUserNameFromId(conn->holder.user, true));
			pgpx_row_secret(row, visible, conn->holder.application_name);
			pgpx_row_text(row, scope_names[conn->holder.scope]);
			pgpx_row_text(row, activity_names[pgpx_conn_activity(conn)]);
			pgpx_row_instant(row, conn->leased_at);
			pgpx_row_secret(row, visible,
							conn->holder.why[0] ? conn->holder.why : NULL);
			pgpx_row_int_or_null(row, conn->remote_pid);
			pgpx_row_store(row);
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
		[PGPX_LIMIT_BUSY] = "cancelling",
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
	PgpxView   *view = view_begin(fcinfo);
	PgpxRow    *row = &view->row;

	while (view_next(view))
		for (int i = 0; i < view->nwaiting; i++)
		{
			PgpxWaiter *waiter = &view->waiters[i];
			bool		visible = can_see_role(view, waiter->holder.user);

			row_pool(row, &view->pool);
			row_int(row, i + 1);
			pgpx_row_int_or_null(row, waiter->holder.pid);
			pgpx_row_name(row, GetUserNameFromId(waiter->holder.user, true));
			pgpx_row_secret(row, visible, waiter->holder.application_name);
			pgpx_row_instant(row, waiter->since);
			pgpx_row_instant(row, waiter->deadline);
			pgpx_row_secret(row, visible,
							waiter->holder.why[0] ? waiter->holder.why : NULL);
			pgpx_row_text(row, wait_reason(view));
			pgpx_row_store(row);
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
	pgpx_row_append(row,
					PointerGetDatum(construct_array(elements,
													PGPX_HISTOGRAM_BUCKETS,
													INT8OID, sizeof(int64),
													FLOAT8PASSBYVAL,
													TYPALIGN_DOUBLE)),
					false);
}

/* stats() returns setof stats_row */
Datum
pgpx_view_stats(PG_FUNCTION_ARGS)
{
	PgpxView   *view = view_begin(fcinfo);
	PgpxRow    *row = &view->row;

	while (view_next(view))
	{
		const PgpxPool *pool = &view->pool;

		row_pool(row, pool);
		pgpx_row_name(row, NameStr(pool->user_name));
#define NUMBER(name) row_bigint(row, pool->stats.name);
#define TIME(name) row_ms(row, pool->stats.name);
		PGPX_COUNTERS(NUMBER, NUMBER, TIME, TIME, NUMBER)
#undef NUMBER
#undef TIME
		row_histogram(row, pool->stats.histogram);
		pgpx_row_instant(row, pool->stats_reset);
		pgpx_row_store(row);
	}
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(pgpx_view_history);

/* The names of a pool of the view history. */
typedef struct PoolNames
{
	uint32		pool_id;
	NameData	database_name;
	NameData	server_name;
	NameData	user_name;
	PgpxTime	until;			/* end of its last long sample in the result */
} PoolNames;

/* Return the shortest wait of histogram bucket b, in milliseconds. */
static double
bucket_limit(int b)
{
	return b == 0 ? 0 : ldexp(1, b - 1) / 1000;
}

/*
 * Return a percentile of the waits of a histogram, in milliseconds.  Within a
 * bucket the waits are assumed to be uniformly distributed.
 */
static double
percentile(const uint32 *histogram, uint32 n, double fraction)
{
	double		rank = fraction * n;
	double		width;
	int			b = 0;

	while (b < PGPX_HISTOGRAM_BUCKETS - 1 && rank > histogram[b])
		rank -= histogram[b++];
	width = bucket_limit(b + 1) - bucket_limit(b);
	return bucket_limit(b) + width * rank / Max(histogram[b], 1);
}

static void
history_row(PgpxRow *row, const PoolNames *names, const PgpxSample *sample)
{
	const PgpxTotals *totals = &sample->totals;
	PgpxTime	span = sample->until - sample->since;
	uint64		histogram[PGPX_HISTOGRAM_BUCKETS];

	row_int(row, (int) names->pool_id);
	pgpx_row_name(row, NameStr(names->database_name));
	pgpx_row_name(row, NameStr(names->server_name));
	pgpx_row_name(row, NameStr(names->user_name));
	pgpx_row_instant(row, sample->until);
	row_ms(row, span);
	row_int(row, sample->pool_size);
	row_int(row, sample->max_total);
	row_int(row, sample->total);
	row_int(row, sample->peaks.leased);
	row_int(row, sample->peaks.waiting);
	row_int(row, sample->peaks.callers);
	pgpx_row_append(row, Float8GetDatum((double) totals->leased_time / span),
					false);
	pgpx_row_append(row, Float8GetDatum((double) totals->waiting_time / span),
					false);
	row_bigint(row, totals->arrivals);
	row_bigint(row, totals->hits);
	row_bigint(row, totals->waited);
	for (int i = 0; i < 2; i++)
		pgpx_row_append(row, Float8GetDatum(percentile(totals->histogram,
													   totals->waited,
													   i == 0 ? 0.5 : 0.99)),
						totals->waited == 0);
	row_ms(row, totals->wait_time);
	row_bigint(row, totals->timeouts);
	row_bigint(row, totals->cancelled);
	row_bigint(row, totals->failed);
	row_bigint(row, totals->refused);
	row_bigint(row, totals->unavailable);
	row_bigint(row, totals->deadlocks);
	row_bigint(row, totals->leases);
	row_ms(row, totals->lease_time);
	row_ms(row, totals->answer_time);
	row_bigint(row, totals->statements);
	row_bigint(row, totals->errors);
	row_bigint(row, totals->connects);
	row_bigint(row, totals->connects_failed);
	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
		histogram[b] = totals->histogram[b];
	row_histogram(row, histogram);
	pgpx_row_store(row);
}

/*
 * history() returns setof history_row
 *
 * A time is in one sample of a pool: in the short one, if it was not
 * overwritten.  So the result has the long samples that begin before the time
 * since which the short ones are complete, and the short ones that follow.
 */
Datum
pgpx_view_history(PG_FUNCTION_ARGS)
{
	PgpxView   *view = view_begin(fcinfo);
	PoolNames  *pools = palloc0(mul_size(pgpx_shared->max_pools,
										 sizeof(PoolNames)));
	PgpxSample *long_spans;
	PgpxSample *short_spans;
	PgpxTime	complete;
	PgpxTime	unused;
	int			nlong;
	int			nshort;

	while (view_next(view))
	{
		PoolNames  *names = &pools[view->index];

		names->pool_id = view->pool.pool_id;
		names->database_name = view->pool.database_name;
		names->server_name = view->pool.server_name;
		names->user_name = view->pool.user_name;
	}
	long_spans = alloc_array(pgpx_shared->max_samples, sizeof(PgpxSample));
	short_spans = alloc_array(pgpx_shared->max_samples, sizeof(PgpxSample));
	nlong = pgpx_history_copy(PGPX_SPAN_LONG, long_spans, &unused);
	nshort = pgpx_history_copy(PGPX_SPAN_SHORT, short_spans, &complete);
	for (int i = 0; i < nlong; i++)
	{
		PgpxSample *sample = &long_spans[i];
		PoolNames  *names = &pools[sample->pool];

		if (sample->pool_id != names->pool_id || sample->since >= complete)
			continue;
		names->until = sample->until;
		history_row(&view->row, names, sample);
	}
	for (int i = 0; i < nshort; i++)
	{
		PgpxSample *sample = &short_spans[i];
		PoolNames  *names = &pools[sample->pool];

		if (sample->pool_id == names->pool_id && sample->since >= names->until)
			history_row(&view->row, names, sample);
	}
	return (Datum) 0;
}
