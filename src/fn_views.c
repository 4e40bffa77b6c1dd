/*-------------------------------------------------------------------------
 *
 * fn_views.c
 *	  What the functions behind the views share.
 *
 * Takes the registry lock to see which pools there are, then each pool's lock,
 * one at a time, all in shared mode.  Under them memory is copied and nothing
 * else is done.
 *
 * Names and texts come from sessions of any database, hence in any encoding,
 * and some from remote servers, which may say anything.
 *
 *-------------------------------------------------------------------------
 */
#include "fn_views.h"

#include <arpa/inet.h>

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_user_mapping.h"
#include "utils/builtins.h"
#include "utils/inet.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "remote_error.h"

#define HIDDEN "<insufficient privilege>"

/* Room for as many as there can be; what is not used is never touched. */
static void *
alloc_array(int n, Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext, mul_size(n, size));
}

PgpxView *
pgpx_view_begin(int what)
{
	PgpxView   *view = palloc0(sizeof(PgpxView));

	view->what = what;
	view->sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	view->user = GetUserId();
	view->index = alloc_array(pgpx_shared->max_pools, sizeof(int));
	view->id = alloc_array(pgpx_shared->max_pools, sizeof(uint32));
	if (what & PGPX_VIEW_CONNS)
	{
		view->conns = alloc_array(pgpx_shared->max_connections,
								  sizeof(PgpxConn));
		view->conn_index = alloc_array(pgpx_shared->max_connections,
									   sizeof(int));
	}
	if (what & PGPX_VIEW_TICKETS)
		view->tickets = alloc_array(pgpx_shared->ntickets, sizeof(PgpxTicket));

	LWLockAcquire(pgpx_shared->registry_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		if (pgpx_pools[i].pool_id == 0)
			continue;
		view->index[view->npools] = i;
		view->id[view->npools] = pgpx_pools[i].pool_id;
		view->npools++;
	}
	LWLockRelease(pgpx_shared->registry_lock);
	return view;
}

static void
copy_locked(PgpxView *view, int index)
{
	Assert(LWLockHeldByMe(pgpx_pools[index].lock));
	memcpy(&view->pool, &pgpx_pools[index], sizeof(PgpxPool));
	view->live = pgpx_pool_live_locked(&pgpx_pools[index]);
	view->total = pgpx_pool_total_locked(&pgpx_pools[index]);
	view->cap = pgpx_pool_cap_locked(&pgpx_pools[index]);
	view->min_size = pgpx_pool_min_size_locked(&pgpx_pools[index]);
	view->nconns = 0;
	view->nwaiting = 0;

	if (view->what & PGPX_VIEW_CONNS)
		for (int i = 0; i < pgpx_shared->max_connections; i++)
		{
			if (pgpx_conns[i].pool != index)
				continue;
			memcpy(&view->conns[view->nconns], &pgpx_conns[i],
				   sizeof(PgpxConn));
			view->conn_index[view->nconns] = i;
			view->nconns++;
		}

	if (view->what & PGPX_VIEW_TICKETS)
		for (int i = pgpx_pools[index].queue_head;
			 i >= 0 && view->nwaiting < pgpx_shared->ntickets;
			 i = pgpx_tickets[i].next)
			memcpy(&view->tickets[view->nwaiting++], &pgpx_tickets[i],
				   sizeof(PgpxTicket));
}

bool
pgpx_view_next(PgpxView *view)
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

bool
pgpx_view_backs_off(const PgpxView *view)
{
	return view->pool.retry_at > view->now;
}

/* Would a user be served by this pool, which all local users share? */
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

bool
pgpx_view_sees_pool(const PgpxView *view)
{
	const PgpxPoolKey *key = &view->pool.key;

	if (view->sees_all || view->pool.user == view->user)
		return true;

	/* of all local users: those who could ask the remote themselves */
	return !OidIsValid(view->pool.user) && key->database == MyDatabaseId &&
		key->superuser == 0 && may_use_shared(key, view->user);
}

bool
pgpx_view_sees_role(const PgpxView *view, Oid role)
{
	return view->sees_all || has_privs_of_role(GetUserId(), role);
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
add(PgpxRow *row, Datum value, bool null)
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
	add(row, (Datum) 0, true);
}

void
pgpx_row_bool(PgpxRow *row, bool value)
{
	add(row, BoolGetDatum(value), false);
}

void
pgpx_row_int(PgpxRow *row, int value)
{
	add(row, Int32GetDatum(value), false);
}

void
pgpx_row_pid(PgpxRow *row, int pid)
{
	add(row, Int32GetDatum(pid), pid == 0);
}

void
pgpx_row_bigint(PgpxRow *row, uint64 value)
{
	add(row, Int64GetDatum((int64) value), false);
}

void
pgpx_row_text(PgpxRow *row, const char *text)
{
	if (text == NULL)
		pgpx_row_null(row);
	else
		add(row, CStringGetTextDatum(pgpx_text_clean(pstrdup(text))), false);
}

void
pgpx_row_name(PgpxRow *row, const char *name)
{
	char	   *clean = pgpx_text_clean(pstrdup(name));

	add(row, DirectFunctionCall1(namein, CStringGetDatum(clean)), false);
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

void
pgpx_row_addr(PgpxRow *row, const char *addr)
{
	char		text[PGPX_ADDR_LEN];
	char		binary[sizeof(struct in6_addr)];

	/* type inet knows no zone of a link-local address */
	strlcpy(text, addr, sizeof(text));
	text[strcspn(text, "%")] = '\0';
	if (inet_pton(AF_INET, text, binary) == 1 ||
		inet_pton(AF_INET6, text, binary) == 1)
		add(row, DirectFunctionCall1(inet_in, CStringGetDatum(text)), false);
	else
		pgpx_row_null(row);
}

void
pgpx_row_secret(PgpxRow *row, bool visible, const char *text)
{
	pgpx_row_text(row, visible ? text : HIDDEN);
}

void
pgpx_row_instant(PgpxRow *row, PgpxTime t)
{
	add(row, TimestampTzGetDatum(row->zero + t), t == 0);
}

void
pgpx_row_ms(PgpxRow *row, PgpxTime duration)
{
	add(row, Float8GetDatum(duration / 1000.0), false);
}

void
pgpx_row_interval(PgpxRow *row, PgpxTime duration)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = duration;
	add(row, IntervalPGetDatum(interval), false);
}

void
pgpx_row_pool(PgpxRow *row, const PgpxPool *pool)
{
	pgpx_row_int(row, (int) pool->pool_id);
	pgpx_row_name(row, NameStr(pool->database_name));
	pgpx_row_name(row, NameStr(pool->server_name));
}

void
pgpx_row_store(PgpxRow *row)
{
	/*
	 * New columns come behind the others.  So a library that is newer than the
	 * extension's script has more, and those are left out; an older one, that a
	 * server has loaded which was not restarted after an upgrade, has fewer.
	 */
	if (row->n < row->rsinfo->setDesc->natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the server has loaded an older version of the library pgpool_ext"),
				 errdetail("A view has %d columns, of which it knows %d.",
						   row->rsinfo->setDesc->natts, row->n),
				 errhint("Restart the server after an upgrade of pgpool_ext.")));
	tuplestore_putvalues(row->rsinfo->setResult, row->rsinfo->setDesc,
						 row->values, row->nulls);
	row->n = 0;
}
