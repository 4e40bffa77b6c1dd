/*-------------------------------------------------------------------------
 *
 * catalog_request.c
 *	  Start the catalog reader, which publishes the conninfo of pools for which
 *	  no session does.
 *
 * The worker is not connected to a database and cannot read user mappings.  If
 * it lacks the conninfo of a pool that has min_size, min_idle or distributed
 * locks, it starts a short-lived background worker in the pool's database
 * (session/catalog_reader.c), one at a time.  This happens
 *
 * - after a change that replaces connections,
 * - after a restart of the worker, and
 * - after the start of the server.  The first worker then visits all databases,
 *	 because only the catalogs of a database show whether it has pools to open.
 *	 If it ends before all visits are complete, the next one repeats them.
 *
 * A checkout publishes the conninfo as well.  So the first reader is started
 * only after a short time, and further ones after increasing pauses.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "postmaster/bgworker.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/backoff.h"
#include "shared/registry.h"

/* For how long a pool may lack its conninfo before a reader is started. */
#define DELAY_MS 100

/* Pause after an attempt; doubled after each further one. */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS (5 * 60 * 1000)

/* A reason to start a reader in a database. */
typedef struct Request
{
	uint32		pool_id;		/* this pool lacks its conninfo; 0: a visit */
	Oid			database;
	PgpxTime	at;				/* not before this time; 0: not needed */
	int64		pause_ms;		/* after the last attempt; 0: none */
} Request;

/* max_pools of pools, by their indexes, and then those of visits */
static Request *requests = NULL;
static int	nrequests = 0;
static bool visits_listed = false;

static BackgroundWorkerHandle *reader = NULL;	/* the one that runs */

bool
pgpx_databases_begin(void)
{
	StartTransactionCommand();
	if (ConditionalLockRelationOid(DatabaseRelationId, AccessShareLock) &&
		ConditionalLockRelationOid(DatabaseOidIndexId, AccessShareLock))
		return true;
	pgpx_databases_end();
	return false;
}

void
pgpx_databases_end(void)
{
	CommitTransactionCommand();
	MemoryContextSwitchTo(pgpx_worker_cxt);
}

/*
 * Return whether a process may connect to the database.  A connection limit of
 * -2 marks a database as invalid.
 */
static bool
is_connectable(HeapTuple row)
{
	Form_pg_database form = (Form_pg_database) GETSTRUCT(row);

	return form->datallowconn && form->datconnlimit >= -1;
}

/*
 * Request a visit of each database.  Use no index, because a process without a
 * database may not have it in its relation cache.
 */
static void
list_visits(PgpxTime now)
{
	Relation	databases = table_open(DatabaseRelationId, NoLock);
	SysScanDesc scan = systable_beginscan(databases, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	row;

	while ((row = systable_getnext(scan)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(row);

		if (!is_connectable(row) || form->datistemplate)
			continue;
		requests = repalloc(requests,
							mul_size(nrequests + 1, sizeof(Request)));
		requests[nrequests++] = (Request){.database = form->oid, .at = now};
	}
	systable_endscan(scan);
	table_close(databases, NoLock);
	pg_atomic_write_u32(&pgpx_shared->visited_database, InvalidOid);
	visits_listed = true;
}

/* Note the visit that a reader has completed.  Publish the end of the last. */
static void
note_visit(void)
{
	Oid			visited = pg_atomic_read_u32(&pgpx_shared->visited_database);
	bool		left = false;

	for (int i = pgpx_shared->max_pools; i < nrequests; i++)
	{
		if (requests[i].database == visited)
			requests[i].at = 0;
		left |= requests[i].at != 0;
	}
	if (nrequests > pgpx_shared->max_pools && !left)
		pg_atomic_write_u32(&pgpx_shared->visited_database, OID_MAX);
}

bool
pgpx_catalog_request_pool(int i, PgpxTime now)
{
	Request    *request = &requests[i];
	PgpxPoolKey key;
	uint32		pool_id;

	/* unlocked read: pgpx_pool_needs_reader checks under the lock */
	if (pgpx_pools[i].worker != pgpx_worker_index ||
		!pgpx_pool_needs_reader(i, &key, &pool_id))
		request->at = 0;
	else if (request->at == 0 || request->pool_id != pool_id)
		*request = (Request){pool_id, key.database, now + DELAY_MS * 1000};
	return request->at != 0;
}

/*
 * Return the database of the first request that is due, or InvalidOid.  Note
 * the attempt for all requests of this database, so that they are repeated
 * after a pause unless the reader fulfils them.  Set *visit if a visit is among
 * them, and *due to the time of the next attempt.
 */
static Oid
choose_database(PgpxTime now, bool *visit, PgpxTime *due)
{
	Oid			database = InvalidOid;

	*visit = false;
	*due = PG_INT64_MAX;
	for (int i = 0; i < nrequests; i++)
	{
		Request    *request = &requests[i];

		/* the pool may have its conninfo now */
		if (request->at == 0 ||
			(request->pool_id != 0 && !pgpx_catalog_request_pool(i, now)))
			continue;
		if (request->at <= now && !OidIsValid(database))
			database = request->database;
		if (request->at <= now && request->database == database)
		{
			request->pause_ms = pgpx_backoff_next(request->pause_ms,
												  PAUSE_MIN_MS, PAUSE_MAX_MS);
			request->at = now + request->pause_ms * 1000;
			*visit |= request->pool_id == 0;
		}
		*due = Min(*due, request->at);
	}
	return database;
}

/*
 * Start a reader.  visit: the reader also creates the pools with min_size or
 * min_idle that have not been used since the start of the server.
 */
static bool
start_reader(Oid database, bool visit)
{
	static bool refused = false;	/* the last one */
	BackgroundWorker worker = {
		.bgw_name = "pgpool_ext catalog reader",
		.bgw_flags = BGWORKER_SHMEM_ACCESS |
			BGWORKER_BACKEND_DATABASE_CONNECTION | BGWORKER_INTERRUPTIBLE,
		.bgw_start_time = BgWorkerStart_ConsistentState,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_library_name = "pgpool_ext",
		.bgw_function_name = "pgpx_catalog_reader_main",
		.bgw_main_arg = ObjectIdGetDatum(database),
		.bgw_notify_pid = MyProcPid,	/* its end sets our latch */
	};
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	memcpy(worker.bgw_extra, &visit, sizeof(visit));
	if (RegisterDynamicBackgroundWorker(&worker, &reader))
		refused = false;
	else if (!refused)
	{
		refused = true;
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgpool_ext cannot start its catalog reader"),
				 errdetail("All background worker slots are in use. Until one is free, pools with \"min_size\" are opened only by a checkout, and distributed locks of idle sessions may expire after a restart of the pool worker."),
				 errhint("Raise \"max_worker_processes\".")));
	}
	MemoryContextSwitchTo(old);
	return !refused;
}

bool
pgpx_catalog_request_has_ended(void)
{
	pid_t		pid;

	if (reader == NULL || GetBackgroundWorkerPid(reader, &pid) != BGWH_STOPPED)
		return false;
	pfree(reader);
	reader = NULL;
	note_visit();
	return true;
}

void
pgpx_catalog_request_init(void)
{
	nrequests = pgpx_shared->max_pools;
	requests = MemoryContextAllocZero(TopMemoryContext,
									  mul_size(nrequests, sizeof(Request)));

	/* the first worker visits the databases */
	visits_listed = pgpx_worker_index != 0 ||
		pg_atomic_read_u32(&pgpx_shared->visited_database) == OID_MAX;
}

PgpxTime
pgpx_catalog_request(PgpxTime now)
{
	PgpxTime	due;
	Oid			database;
	bool		visit;
	bool		exists = false;
	HeapTuple	row;

	if (reader != NULL)
		return PG_INT64_MAX;
	database = choose_database(now, &visit, &due);
	if (!OidIsValid(database) && visits_listed)
		return due;

	if (!pgpx_databases_begin())
		return now + PGPX_LOCK_RETRY_MS * 1000;
	if (!visits_listed)
		list_visits(now);
	row = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (HeapTupleIsValid(row))
	{
		exists = is_connectable(row);
		ReleaseSysCache(row);
	}
	pgpx_databases_end();

	if (exists && start_reader(database, visit))
		return PG_INT64_MAX;
	if (visit && !exists)
	{
		pg_atomic_write_u32(&pgpx_shared->visited_database, database);
		note_visit();
	}
	return now;
}
