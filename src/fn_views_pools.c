/*-------------------------------------------------------------------------
 *
 * fn_views_pools.c
 *	  SQL functions behind the views pools, connections and workers.
 *
 * Gauges are counted from the states of the connections, never kept.
 *
 *-------------------------------------------------------------------------
 */
#include "fn_views.h"

PG_FUNCTION_INFO_V1(pgpx_view_pools);
PG_FUNCTION_INFO_V1(pgpx_view_connections);
PG_FUNCTION_INFO_V1(pgpx_view_workers);

static bool
is_stale(const PgpxView *view, const PgpxConn *conn)
{
	return conn->version != view->pool.version;
}

/* Returns how many connections a checkout can lease at once. */
static int
available_connections(const PgpxPool *pool)
{
	return pool->count[PGPX_CONN_IDLE] + pool->count[PGPX_CONN_OWED];
}

/*
 * The pool in one word: what keeps a checkout from being served comes first.
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
	if (pgpx_view_backs_off(view) && view->live == 0)
		return "unavailable";
	for (int i = 0; i < view->nconns; i++)
		if (view->conns[i].state == PGPX_CONN_LEASED &&
			is_stale(view, &view->conns[i]))
			return "stale";
	if (pool->count[PGPX_CONN_IDLE] + pool->count[PGPX_CONN_OWED] == 0 &&
		view->total >= view->cap)
		return "full";
	if (view->total > pool->opts.pool_size)
		return "overflow";
	return "ready";
}

/* How long the one who has waited longest waits. */
static PgpxTime
oldest_wait(const PgpxView *view)
{
	PgpxTime	oldest = view->now;

	for (int i = 0; i < view->nwaiting; i++)
		oldest = Min(oldest, view->tickets[i].since);
	return view->now - oldest;
}

/* The connection that was opened last; NULL: none is open. */
static PgpxConn *
newest(PgpxView *view)
{
	PgpxConn   *found = NULL;

	for (int i = 0; i < view->nconns; i++)
		if (view->conns[i].opened_at != 0 &&
			(found == NULL || view->conns[i].opened_at > found->opened_at))
			found = &view->conns[i];
	return found;
}

/* How a connection (NULL: none) is spoken on. */
static void
row_transport(PgpxRow *row, PgpxConn *conn)
{
	bool		opened = conn != NULL && conn->opened_at != 0;
	bool		relayed = opened && conn->relayed;

	/* the worker writes these before it says that the connection is open */
	pgpx_row_text(row, !opened ? NULL : relayed ? "relay" :
												  "direct");
	pgpx_row_text(row, relayed ? conn->tls_version : NULL);
	pgpx_row_text(row, relayed ? conn->tls_cipher : NULL);
}

/* pools() returns setof record */
Datum
pgpx_view_pools(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = pgpx_view_begin(PGPX_VIEW_CONNS | PGPX_VIEW_TICKETS);
	while (pgpx_view_next(view))
	{
		const PgpxPool *pool = &view->pool;

		pgpx_row_pool(&row, pool);
		pgpx_row_name(&row, NameStr(pool->user_name));
		pgpx_row_bool(&row, !OidIsValid(pool->key.local_user));
		pgpx_row_text(&row, pool_state(view));
		pgpx_row_int(&row, pool->worker);
		row_transport(&row, newest(view));
		pgpx_row_int(&row, pool->opts.pool_size);
		pgpx_row_int(&row, pool->opts.max_overflow);
		pgpx_row_int(&row, view->min_size);
		pgpx_row_int(&row, view->total + pool->nbroken);
		pgpx_row_int(&row, pool->count[PGPX_CONN_LEASED]);
		pgpx_row_int(&row, pool->count[PGPX_CONN_IDLE]);
		pgpx_row_int(&row, pool->count[PGPX_CONN_OWED]);
		pgpx_row_int(&row, pool->count[PGPX_CONN_CONNECTING]);
		pgpx_row_int(&row, pool->count[PGPX_CONN_RESETTING]);
		pgpx_row_int(&row, pool->count[PGPX_CONN_CHECKING]);
		pgpx_row_int(&row, pool->count[PGPX_CONN_CANCELLING]);
		pgpx_row_int(&row, pool->count[PGPX_CONN_CLOSING]);
		pgpx_row_int(&row, available_connections(pool));
		pgpx_row_int(&row, Max(view->total - pool->opts.pool_size, 0));
		pgpx_row_int(&row, view->nwaiting);
		if (view->nwaiting > 0)
			pgpx_row_ms(&row, oldest_wait(view));
		else
			pgpx_row_null(&row);
		pgpx_row_instant(&row, pool->created_at);
		pgpx_row_instant(&row, pool->last_checkout);
		pgpx_row_instant(&row, pool->unavailable_since);
		pgpx_row_secret(&row, pgpx_view_sees_pool(view),
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
	bool		leased = conn->state == PGPX_CONN_LEASED;

	pgpx_row_pool(row, &view->pool);
	pgpx_row_name(row, NameStr(view->pool.user_name));
	pgpx_row_int(row, view->conn_index[i]);
	pgpx_row_bigint(row, conn->generation);
	pgpx_row_text(row, pgpx_conn_state_name(conn->state));
	pgpx_row_instant(row, conn->state_since);
	pgpx_row_bool(row, conn->owed > 0);
	pgpx_row_bool(row, is_stale(view, conn));
	row_transport(row, conn);
	if (opened && pgpx_view_sees_pool(view))
	{
		pgpx_row_addr(row, conn->remote_addr);
		pgpx_row_pid(row, conn->remote_port);
	}
	else
	{
		pgpx_row_null(row);
		pgpx_row_null(row);
	}
	pgpx_row_pid(row, opened ? conn->remote_pid : 0);

	/* without what the packager says about himself */
	conn->remote_version[strcspn(conn->remote_version, " ")] = '\0';
	pgpx_row_text(row, opened && conn->remote_version[0] != '\0' ?
				  conn->remote_version : NULL);
	pgpx_row_pid(row, opened ? conn->local_port : 0);
	pgpx_row_instant(row, conn->opened_at);
	if (opened)
		pgpx_row_ms(row, conn->connect_time);
	else
		pgpx_row_null(row);

	pgpx_row_instant(row, conn->last_used);
	pgpx_row_bigint(row, conn->leases);
	pgpx_row_bigint(row, pgpx_conn_statements(conn));
	pgpx_row_instant(row, conn->last_checked);
	if (leased)
		pgpx_row_bigint(row, pg_atomic_read_u64(&conn->lease_id));
	else
		pgpx_row_null(row);
	pgpx_row_pid(row, leased ? conn->owner_pid : 0);
	pgpx_row_pid(row, conn->last_pid);
	pgpx_row_store(row);
}

/* connections() returns setof record */
Datum
pgpx_view_connections(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = pgpx_view_begin(PGPX_VIEW_CONNS);
	while (pgpx_view_next(view))
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

/* workers() returns setof record */
Datum
pgpx_view_workers(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;
	int			pools[PGPX_MAX_WORKERS] = {0};
	int			connections[PGPX_MAX_WORKERS] = {0};
	int			all_pools = 0;
	int			used;

	pgpx_row_begin(&row, fcinfo);
	view = pgpx_view_begin(0);
	while (pgpx_view_next(view))
	{
		pools[view->pool.worker]++;
		connections[view->pool.worker] +=
			view->total + view->pool.nbroken;
		all_pools++;
	}
	used = pgpx_cap_used(&pgpx_shared->cap, NULL);

	for (int i = 0; i < pgpx_shared->nworkers; i++)
	{
		PgpxWorkerSlot *slot = &pgpx_shared->worker[i];
		PgpxTime	started_at = pg_atomic_read_u64(&slot->started_at);

		pgpx_row_int(&row, i);
		pgpx_row_pid(&row, (int) pg_atomic_read_u32(&slot->pid));
		pgpx_row_text(&row, worker_state(slot));
		pgpx_row_instant(&row, started_at);
		pgpx_row_int(&row, (int) pg_atomic_read_u32(&slot->restarts));
		pgpx_row_int(&row, pools[i]);
		pgpx_row_int(&row, connections[i]);
		pgpx_row_int(&row, (int) pg_atomic_read_u32(&slot->descriptors));
		pgpx_row_bigint(&row, pg_atomic_read_u64(&slot->polled));
		pgpx_row_int(&row, used);
		pgpx_row_int(&row, pgpx_shared->max_connections);
		pgpx_row_int(&row, all_pools);
		pgpx_row_int(&row, pgpx_shared->max_pools);
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}
