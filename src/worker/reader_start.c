/*-------------------------------------------------------------------------
 *
 * reader_start.c
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
 *	 because only the catalogs of a database show whether it has pools to open,
 *	 and whether it needs a resolver (commit/commit.h).  If it ends before all
 *	 visits are complete, the next one repeats them.
 * - after the promotion of a standby, because the resolvers of databases that
 *	 were visited before may be missing.
 *
 * In a round, each database that needs a reader has one, in the order of the
 * OIDs.  So a database in which the reader fails does not keep the others from
 * theirs.  A round that leaves a need is repeated after a pause, which grows.
 * A new need starts a round after a short time, because a checkout publishes
 * the conninfo as well.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_database.h"
#include "postmaster/bgworker.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/backoff.h"
#include "shared/registry.h"

/* For how long a pool may lack its conninfo before a round. */
#define DELAY_MS 100

/* Pause after a round; doubled after each further one. */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS (5 * 60 * 1000)

static uint32 *needy = NULL;	/* for each pool: its id if it needs a reader */
static PgpxTime due;			/* of the next round or reader */
static int64 pause_ms = 0;		/* after the last round; 0: none */
static Oid	last = InvalidOid;	/* database of the last reader in this round */

static BackgroundWorkerHandle *reader = NULL;	/* the one that runs */

/* The server was in recovery.  No event reports the end of it. */
static bool recovering = false;
#define RECOVERY_CHECK_MS 5000

/* Visits: left are those of databases above the highest OID, and the failed. */
static bool visiting = false;
static Oid	highest = InvalidOid;
static List *failed = NIL;		/* OIDs, with that of a visit that runs */

/*
 * Return the next database of this round: one of the wanted databases, or one to
 * visit.  Skip databases that allow no connections or are invalid (connection
 * limit -2).  Use no index, because a process without a database may not have
 * it in its relation cache.  Publish the end of the visits.
 */
static Oid
choose_database(const List *wanted)
{
	Relation	databases = table_open(DatabaseRelationId, NoLock);
	SysScanDesc scan = systable_beginscan(databases, InvalidOid, false, NULL, 0,
										  NULL);
	Oid			next = InvalidOid;
	bool		unvisited = false;
	HeapTuple	row;

	while ((row = systable_getnext(scan)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(row);
		bool		visit = visiting && !form->datistemplate &&
			(form->oid > highest || list_member_oid(failed, form->oid));

		if (!form->datallowconn || form->datconnlimit < -1)
			continue;
		unvisited |= visit;
		if ((visit || list_member_oid(wanted, form->oid)) &&
			form->oid > last && (!OidIsValid(next) || form->oid < next))
			next = form->oid;
	}
	systable_endscan(scan);
	table_close(databases, NoLock);
	if (visiting && !unvisited)
	{
		visiting = false;
		pg_atomic_write_u32(&pgpx_shared->visited_database, OID_MAX);
	}
	return next;
}

/*
 * Start a reader.  While databases are visited, it also creates the pools with
 * min_size or min_idle that have not been used since the start of the server.
 */
static void
start_reader(Oid database)
{
	static bool refused = false;	/* the last one */
	BackgroundWorker worker = {
		.bgw_name = "pgpool_ext catalog reader",
		.bgw_flags = BGWORKER_INTERRUPTIBLE,
		.bgw_start_time = BgWorkerStart_ConsistentState,
		.bgw_function_name = "pgpx_catalog_reader_main",
		.bgw_extra[0] = visiting,
	};
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	highest = Max(highest, database);
	if (visiting)
		failed = list_append_unique_oid(failed, database);
	MemoryContextSwitchTo(old);
	reader = pgpx_process_start(&worker, database);
	if (reader == NULL && !refused)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgpool_ext cannot start its catalog reader"),
				 errdetail("All background worker slots are in use. Until one is free, pools with \"min_size\" are opened only by a checkout, and distributed locks of idle sessions may expire after a restart of the pool worker."),
				 errhint("Raise \"max_worker_processes\".")));
	refused = reader == NULL;
}

void
pgpx_reader_init(void)
{
	needy = MemoryContextAllocZero(TopMemoryContext,
								   mul_size(pgpx_shared->max_pools,
											sizeof(uint32)));
	visiting = pgpx_worker_index == 0 &&
		pg_atomic_read_u32(&pgpx_shared->visited_database) != OID_MAX;
	due = visiting ? 0 : PG_INT64_MAX;
	recovering = pgpx_worker_index == 0 && RecoveryInProgress();
}

void
pgpx_reader_note_need(int i, PgpxTime now)
{
	uint32		pool_id = pgpx_pools[i].pool_id;

	/* unlocked reads: pgpx_pool_needs_reader checks under the lock */
	if (pgpx_pools[i].worker != pgpx_worker_index ||
		!pgpx_pool_needs_reader(i, NULL))
		pool_id = 0;
	else if (needy[i] != pool_id)
	{
		pause_ms = 0;
		due = Min(due, now + DELAY_MS * 1000);
	}
	needy[i] = pool_id;
}

/* As pgpx_reader_start_due, but for the end of recovery. */
static PgpxTime
start_readers(PgpxTime now)
{
	List	   *wanted = NIL;

	if (reader != NULL)
	{
		if (!pgpx_process_has_ended(&reader))
			return PG_INT64_MAX;
		if (pg_atomic_read_u32(&pgpx_shared->visited_database) == last)
			failed = list_delete_oid(failed, last);
	}
	if (now < due)
		return due;
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		pgpx_reader_note_need(i, now);
		if (needy[i] != 0)
			wanted = list_append_unique_oid(wanted,
											pgpx_pools[i].key.database);
	}
	if (!pgpx_databases_begin())
		return due = now + PGPX_LOCK_RETRY_MS * 1000;
	last = choose_database(wanted);
	pgpx_databases_end();
	if (OidIsValid(last))
	{
		start_reader(last);
		return reader != NULL ? PG_INT64_MAX : due;
	}

	/* the round has ended */
	pause_ms = pgpx_backoff_next(pause_ms, PAUSE_MIN_MS, PAUSE_MAX_MS);
	return due =
		wanted != NIL || visiting ? now + pause_ms * 1000 : PG_INT64_MAX;
}

PgpxTime
pgpx_reader_start_due(PgpxTime now)
{
	if (recovering && !RecoveryInProgress())
	{
		recovering = false;
		visiting = true;
		highest = last = InvalidOid;
		pg_atomic_write_u32(&pgpx_shared->visited_database, InvalidOid);
		due = now;
	}
	return Min(start_readers(now),
			   recovering ? now + RECOVERY_CHECK_MS * 1000 : PG_INT64_MAX);
}
