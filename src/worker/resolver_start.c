/*-------------------------------------------------------------------------
 *
 * resolver_start.c
 *	  Start the resolvers of commits on several servers (commit/commit.h).
 *
 * Each database with participants has a slot in shared memory.  Its resolver is
 * started after a wake, and pgpool_ext.resolve_interval after the last start.  It
 * ends when all parts that it has found are resolved.  If it fails, the next one
 * is started after MIN_PAUSE_MS.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include "access/htup_details.h"
#include "catalog/pg_database.h"
#include "postmaster/bgworker.h"
#include "utils/syscache.h"

#include "base/settings.h"

#define MIN_PAUSE_MS 1000

static struct
{
	BackgroundWorkerHandle *handle; /* NULL: no resolver was started, or it has
									 * ended */
	PgpxTime	started_at;		/* of the last one; 0: none */
}			resolvers[PGPX_MAX_RESOLVERS];

/*
 * Return whether the database accepts connections.  If it does not exist, free
 * its slot.  If pg_database is locked, assume that it does.
 */
static bool
check_database(PgpxResolverSlot *slot)
{
	Oid			database = pg_atomic_read_u32(&slot->database);
	HeapTuple	row;
	bool		accepts;

	if (!pgpx_databases_begin())
		return true;
	row = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	accepts = HeapTupleIsValid(row) &&
		((Form_pg_database) GETSTRUCT(row))->datallowconn &&
		((Form_pg_database) GETSTRUCT(row))->datconnlimit >= -1;
	if (HeapTupleIsValid(row))
		ReleaseSysCache(row);
	else
		pg_atomic_write_u32(&slot->database, InvalidOid);
	pgpx_databases_end();
	return accepts;
}

static void
start_resolver(int i)
{
	static bool refused = false;	/* the last one */
	BackgroundWorker worker = {
		.bgw_name = "pgpool_ext resolver",
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_function_name = "pgpx_resolver_main",
	};

	resolvers[i].handle = pgpx_process_start(
		&worker, pg_atomic_read_u32(&pgpx_shared->resolver[i].database));
	if (resolvers[i].handle == NULL && !refused)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgpool_ext cannot start a resolver of prepared parts"),
				 errdetail("All background worker slots are in use."),
				 errhint("Raise \"max_worker_processes\".")));
	refused = resolvers[i].handle == NULL;
}

PgpxTime
pgpx_resolver_start_due(PgpxTime now)
{
	PgpxTime	next = PG_INT64_MAX;

	for (int i = 0; i < PGPX_MAX_RESOLVERS && pgpx_worker_index == 0; i++)
	{
		PgpxResolverSlot *slot = &pgpx_shared->resolver[i];
		PgpxTime	due = resolvers[i].started_at;
		int64		pause_ms = pgpx_resolve_interval;

		if (!pgpx_process_has_ended(&resolvers[i].handle) ||
			!OidIsValid(pg_atomic_read_u32(&slot->database)))
			continue;
		if (pg_atomic_read_u32(&slot->wakes) !=
			pg_atomic_read_u32(&slot->served))
			pause_ms = Min(pause_ms, MIN_PAUSE_MS);
		if (due != 0)
			due += pause_ms * 1000;

		/* that of a worker that has ended may still run */
		if (now >= due && pg_atomic_read_u32(&slot->process) == 0 &&
			check_database(slot))
			start_resolver(i);
		if (now >= due)
		{
			resolvers[i].started_at = now;
			due = now + MIN_PAUSE_MS * 1000;
		}
		if (resolvers[i].handle == NULL)
			next = Min(next, due);
	}
	return next;
}
