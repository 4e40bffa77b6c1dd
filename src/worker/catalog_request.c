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
 *	 in the order of their OIDs, because only the catalogs of a database show
 *	 whether it has pools to open.  A visit costs about as much as the start of
 *	 an autovacuum worker.  A visit that fails is repeated after the others.
 *
 * A checkout publishes the conninfo as well.  So the first reader is started
 * only after a short time, and further ones after increasing pauses.  A reader
 * does not wait long for locks, so it does not delay those of other databases.
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

/* The state of the requests for the conninfo of a pool. */
typedef struct Request
{
	uint32		pool_id;
	Oid			database;
	PgpxTime	at;				/* not before this time; 0: not needed */
	int64		pause_ms;		/* after the last attempt; 0: none */
} Request;

/* A database whose visit after the start is not complete. */
typedef struct Visit
{
	Oid			database;
	PgpxTime	at;				/* of the next attempt, not before */
	int64		pause_ms;		/* after the last attempt; 0: none */
} Visit;

static Request *requests = NULL;	/* [max_pools] */
static List *visits = NIL;		/* of Visit, those that were begun */
static Oid	last_begun = InvalidOid;	/* the last database whose first visit
										 * has begun */
static Oid	visiting = InvalidOid;	/* by the reader that runs */
static bool all_begun = false;	/* no database is left for a first visit */
static BackgroundWorkerHandle *reader = NULL;	/* the one that runs */
static PgpxTime next_start = 0; /* no reader is started before this time */
static int64 refused_pause_ms = 0;	/* pause while no slot is free for a reader;
									 * 0: the last reader was registered */

static int64
next_pause(int64 last_ms)
{
	return pgpx_backoff_next(last_ms, PAUSE_MIN_MS, PAUSE_MAX_MS);
}

bool
pgpx_try_lock_databases(void)
{
	return ConditionalLockRelationOid(DatabaseRelationId, AccessShareLock) &&
		ConditionalLockRelationOid(DatabaseOidIndexId, AccessShareLock);
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
 * Find the next database to visit after the one with OID "last".  Use no index,
 * because a process without a database may not have it in its relation cache.
 */
static Oid
next_database(Oid last)
{
	Relation	databases = table_open(DatabaseRelationId, NoLock);
	SysScanDesc scan = systable_beginscan(databases, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	row;
	Oid			found = InvalidOid;

	while ((row = systable_getnext(scan)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(row);

		if (is_connectable(row) && !form->datistemplate && form->oid > last &&
			(!OidIsValid(found) || form->oid < found))
			found = form->oid;
	}
	systable_endscan(scan);
	table_close(databases, NoLock);
	return found;
}

/*
 * Look up the database that the next reader visits: *database, or, if that is
 * InvalidOid, the next database that was not visited since the start.  Set
 * *database to InvalidOid if there is none.  Return false if pg_database is
 * locked.
 */
static bool
look_up_database(Oid *database)
{
	bool		locked;

	StartTransactionCommand();
	locked = pgpx_try_lock_databases();
	if (locked && !OidIsValid(*database))
		*database = next_database(last_begun);
	else if (locked)
	{
		HeapTuple	row =
			SearchSysCache1(DATABASEOID, ObjectIdGetDatum(*database));

		if (!HeapTupleIsValid(row) || !is_connectable(row))
			*database = InvalidOid;
		if (HeapTupleIsValid(row))
			ReleaseSysCache(row);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(pgpx_worker_cxt);
	return locked;
}

/*
 * Start a reader.  check_min_size: the reader also creates the pools with
 * min_size or min_idle that have not been used since the start of the server.
 */
static bool
start_reader(Oid database, bool check_min_size)
{
	BackgroundWorker worker;
	MemoryContext old;
	bool		registered;

	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "pgpool_ext catalog reader",
			sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "pgpool_ext catalog reader",
			sizeof(worker.bgw_type));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION | BGWORKER_INTERRUPTIBLE;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "pgpool_ext",
			sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "pgpx_catalog_reader_main",
			sizeof(worker.bgw_function_name));
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	memcpy(worker.bgw_extra, &check_min_size, sizeof(check_min_size));
	worker.bgw_notify_pid = MyProcPid;	/* its end sets our latch */

	old = MemoryContextSwitchTo(TopMemoryContext);
	if (check_min_size)
		pg_atomic_write_u32(&pgpx_shared->completed_visit, InvalidOid);
	registered = RegisterDynamicBackgroundWorker(&worker, &reader);
	MemoryContextSwitchTo(old);
	if (registered)
	{
		visiting = check_min_size ? database : InvalidOid;
		refused_pause_ms = 0;
		return true;
	}

	if (refused_pause_ms == 0)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgpool_ext cannot start its catalog reader"),
				 errdetail("All background worker slots are in use. Until one is free, pools with \"min_size\" are opened only by a checkout, and distributed locks of idle sessions may expire after a restart of the pool worker."),
				 errhint("Raise \"max_worker_processes\".")));
	refused_pause_ms = next_pause(refused_pause_ms);
	next_start = pgpx_now() + refused_pause_ms * 1000;
	return false;
}

/*
 * Find the database of the pool for which a reader must be started first, and
 * note the attempt for all such pools of the database.  Return InvalidOid if
 * none is due.  Lower *due to the time of the next attempt.
 */
static Oid
find_needed_database(PgpxTime now, PgpxTime *due)
{
	Oid			database = InvalidOid;
	PgpxTime	first = now;

	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		Request    *request = &requests[i];
		PgpxPoolKey key;
		uint32		pool_id;

		/* unlocked read: pgpx_pool_needs_reader checks under the lock */
		if (pgpx_pools[i].pool_id == 0 ||
			pgpx_pools[i].worker != pgpx_worker_index ||
			!pgpx_pool_needs_reader(i, &key, &pool_id))
		{
			request->at = 0;
			continue;
		}
		if (request->at == 0 || request->pool_id != pool_id)
		{
			request->pool_id = pool_id;
			request->at = now + DELAY_MS * 1000;
			request->pause_ms = 0;
		}
		request->database = key.database;
		if (request->at <= first)
		{
			first = request->at;
			database = key.database;
		}
	}
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		Request    *request = &requests[i];

		if (request->at == 0)
			continue;
		if (request->at <= now && request->database == database)
		{
			request->pause_ms = next_pause(request->pause_ms);
			request->at = now + request->pause_ms * 1000;
		}
		*due = Min(*due, request->at);
	}
	return database;
}

/*
 * Publish up to which database all visits are complete.  The next worker
 * continues there.
 */
static void
publish_visits(void)
{
	Oid			visited = last_begun;
	ListCell   *lc;

	foreach(lc, visits)
		visited = Min(visited, ((Visit *) lfirst(lc))->database - 1);
	pg_atomic_write_u32(&pgpx_shared->visited_database, visited);
}

static void
remove_visit(Oid database)
{
	ListCell   *lc;

	foreach(lc, visits)
	{
		Visit	   *visit = lfirst(lc);

		if (visit->database != database)
			continue;
		visits = foreach_delete_current(visits, lc);
		pfree(visit);
	}
	publish_visits();
}

/* Note an attempt.  It counts as failed until its reader reports its end. */
static void
note_visit(Oid database, PgpxTime now)
{
	Visit	   *visit = NULL;
	ListCell   *lc;

	foreach(lc, visits)
		if (((Visit *) lfirst(lc))->database == database)
			visit = lfirst(lc);
	if (visit == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		visit = palloc(sizeof(Visit));
		visit->database = database;
		visit->pause_ms = 0;
		visits = lappend(visits, visit);
		MemoryContextSwitchTo(old);
		last_begun = Max(last_begun, database);
	}
	visit->pause_ms = next_pause(visit->pause_ms);
	visit->at = now + visit->pause_ms * 1000;
	publish_visits();
}

/*
 * Find the database to visit: InvalidOid for the next one that was not visited
 * yet, or else one whose visit has failed.  If there is none now, return false
 * and lower *due to the time of the next attempt.
 */
static bool
find_database_to_visit(PgpxTime now, Oid *database, PgpxTime *due)
{
	const Visit *first = NULL;
	ListCell   *lc;

	*database = InvalidOid;
	if (!all_begun)
		return true;
	foreach(lc, visits)
	{
		const Visit *visit = lfirst(lc);

		if (first == NULL || visit->at < first->at)
			first = visit;
	}
	if (first == NULL)
		return false;
	if (first->at <= now)
		*database = first->database;
	else
		*due = Min(*due, first->at);
	return first->at <= now;
}

bool
pgpx_catalog_request_has_ended(void)
{
	pid_t		pid;

	if (reader == NULL || GetBackgroundWorkerPid(reader, &pid) != BGWH_STOPPED)
		return false;
	pfree(reader);
	reader = NULL;
	if (OidIsValid(visiting) &&
		pg_atomic_read_u32(&pgpx_shared->completed_visit) == visiting)
		remove_visit(visiting);
	visiting = InvalidOid;
	return true;
}

static void
init_requests(void)
{
	if (requests != NULL)
		return;
	requests = MemoryContextAllocZero(TopMemoryContext,
									  mul_size(pgpx_shared->max_pools,
											   sizeof(Request)));
	last_begun = pg_atomic_read_u32(&pgpx_shared->visited_database);

	/* the first worker visits the databases */
	all_begun = pgpx_worker_index != 0;
}

PgpxTime
pgpx_catalog_request(PgpxTime now)
{
	PgpxTime	due = PG_INT64_MAX;
	Oid			database;
	Oid			repeated;
	bool		visit;

	if (reader != NULL && !pgpx_catalog_request_has_ended())
		return PG_INT64_MAX;
	if (now < next_start)
		return next_start;
	init_requests();
	database = find_needed_database(now, &due);
	visit = !OidIsValid(database);
	if (visit && !find_database_to_visit(now, &database, &due))
		return due;

	repeated = visit ? database : InvalidOid;
	if (!look_up_database(&database))
		next_start = now + PGPX_LOCK_RETRY_MS * 1000;
	else if (!OidIsValid(database))
	{
		if (OidIsValid(repeated))
			remove_visit(repeated); /* dropped, or allows no connections */
		else if (visit)
			all_begun = true;
		return now;
	}
	else if (start_reader(database, visit))
	{
		if (visit)
			note_visit(database, now);
		return PG_INT64_MAX;
	}
	return next_start;
}
