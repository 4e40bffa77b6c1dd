/*-------------------------------------------------------------------------
 *
 * fn_views_leases.c
 *	  SQL functions behind the views leases and waiters: who has a connection,
 *	  and who wants one.
 *
 *-------------------------------------------------------------------------
 */
#include "fn_views.h"

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

/* leases() returns setof record */
Datum
pgpx_view_leases(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = pgpx_view_begin(PGPX_VIEW_CONNS);
	while (pgpx_view_next(view))
		for (int i = 0; i < view->nconns; i++)
		{
			PgpxConn   *conn = &view->conns[i];
			bool		visible;

			if (conn->state != PGPX_CONN_LEASED)
				continue;
			visible = pgpx_view_sees_role(view, conn->owner_user);
			pgpx_row_bigint(&row, pg_atomic_read_u64(&conn->lease_id));
			pgpx_row_pool(&row, &view->pool);
			pgpx_row_int(&row, view->conn_index[i]);
			pgpx_row_pid(&row, conn->owner_pid);
			pgpx_row_role(&row, conn->owner_user);
			pgpx_row_secret(&row, visible, conn->application_name);
			pgpx_row_text(&row, scope_name(conn->scope));
			pgpx_row_text(&row, activity_name(pgpx_conn_activity(conn)));
			pgpx_row_instant(&row, conn->leased_at);
			pgpx_row_ms(&row, conn->waited);
			pgpx_row_secret(&row, visible, conn->why[0] ? conn->why : NULL);
			pgpx_row_pid(&row, conn->remote_pid);
			pgpx_row_store(&row);
		}
	return (Datum) 0;
}

/*
 * Why the waiters of a pool wait.  Is a connection being opened, or about to
 * be?  If not, what stands in the way?
 */
static const char *
wait_reason(const PgpxView *view)
{
	const PgpxPool *pool = &view->pool;

	if (pool->damaged)
		return "damaged";
	if (pool->count[PGPX_CONN_CONNECTING] > 0)
		return "connecting";
	if (pgpx_pool_is_paused(pool))
		return "paused";
	if (view->total >= view->cap)
		return "full";
	if (pgpx_view_backs_off(view))
		return "unavailable";
	if (pool->opts.max_server_connections > 0 &&
		pgpx_cap_used(&pgpx_servers[pool->server].cap, NULL) >=
			pool->opts.max_server_connections)
		return "server_cap";
	if (pgpx_cap_used(&pgpx_shared->cap, NULL) >= pgpx_shared->max_connections)
		return "global_cap";
	return "connecting";
}

/* waiters() returns setof record */
Datum
pgpx_view_waiters(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = pgpx_view_begin(PGPX_VIEW_TICKETS);
	while (pgpx_view_next(view))
		for (int i = 0; i < view->nwaiting; i++)
		{
			PgpxTicket *ticket = &view->tickets[i];
			bool		visible = pgpx_view_sees_role(view, ticket->user);

			pgpx_row_pool(&row, &view->pool);
			pgpx_row_int(&row, i + 1);
			pgpx_row_pid(&row, ticket->pid);
			pgpx_row_role(&row, ticket->user);
			pgpx_row_secret(&row, visible, ticket->application_name);
			pgpx_row_instant(&row, ticket->since);
			pgpx_row_instant(&row, ticket->deadline);
			pgpx_row_secret(&row, visible, ticket->why[0] ? ticket->why : NULL);
			pgpx_row_text(&row, wait_reason(view));
			pgpx_row_store(&row);
		}
	return (Datum) 0;
}
