/*-------------------------------------------------------------------------
 *
 * databases.c
 *	  DROP DATABASE and ALTER DATABASE RENAME, which the worker applies to the
 *	  pools.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "storage/lmgr.h"
#include "utils/syscache.h"

#include "shared/registry.h"

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
 * Return whether the database exists, and set *name.  Must be called after
 * pgpx_databases_begin.
 */
static bool
find_database(Oid database, NameData *name)
{
	HeapTuple	row = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));

	if (!HeapTupleIsValid(row))
		return false;
	*name = ((Form_pg_database) GETSTRUCT(row))->datname;
	ReleaseSysCache(row);
	return true;
}

void
pgpx_databases_check(void)
{
	static uint32 seen = 0;
	static PgpxTime next_check = 0; /* not before this time */
	uint32		changes = pg_atomic_read_u32(&pgpx_shared->databases_changed);
	PgpxTime	now = pgpx_now();

	if (changes == seen)
		return;
	if (now >= next_check && !pgpx_databases_begin())
		next_check = now + PGPX_LOCK_RETRY_MS * 1000;
	if (now < next_check)
	{
		pgpx_event_due_at(next_check);
		return;
	}
	seen = changes;
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxWake	wake = PGPX_WAKE_INIT;
		Oid			database = pool->key.database;
		NameData	name;
		bool		exists;

		if (pool->pool_id == 0 || pool->worker != pgpx_worker_index)
			continue;
		exists = find_database(database, &name);

		/* unlocked read: only this process changes the name */
		if (exists &&
			strcmp(NameStr(name), NameStr(pool->database_name)) == 0)
			continue;
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		if (pool->key.database == database)
		{
			if (exists)
				pool->database_name = name;
			else
				pgpx_pool_retire_locked(pool, true, &wake);
		}
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
	}

	/*
	 * Read without a lock.  If the slot is replaced between the two reads, no
	 * server has both values, and pgpx_server_set_paused does nothing.
	 */
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		Oid			database = pgpx_servers[i].database;
		Oid			server = pgpx_servers[i].server;
		NameData	name;

		if (OidIsValid(database) && OidIsValid(server) &&
			pg_atomic_read_u32(&pgpx_servers[i].paused) != 0 &&
			!find_database(database, &name))
			(void) pgpx_server_set_paused(database, server, false, false);
	}
	pgpx_databases_end();
}
