/*-------------------------------------------------------------------------
 *
 * pool_damage.c
 *	  A pool whose shared state is wrong: it goes out of service, and is rebuilt.
 *
 * pgpx_conn_set_state finds the damage: a transition that is not in the table, or a
 * connection of another pool.  From then on
 *	- no connection of the pool changes its state, so none is leased twice and no
 *	  slot is used again;
 *	- checkouts fail (PX004), and sessions that wait go on waiting;
 *	- the worker of the pool restarts.  At its end it shuts down every socket, ends
 *	  every lease (the holder's next call fails with 08006) and frees every slot.  The
 *	  next worker puts the pool back into service, empty.
 * Other pools of that worker lose their connections, as with each end of a worker.
 *
 *-------------------------------------------------------------------------
 */
#include "pool.h"

#include "ticket.h"

void
pgpx_pool_condemn_locked(PgpxPool *pool, const char *format, ...)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pool->worker];
	va_list		args;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->damaged)
		return;
	pool->damaged = true;
	va_start(args, format);
	vsnprintf(pool->last_error, sizeof(pool->last_error), format, args);
	va_end(args);
	pool->last_error_at = pgpx_now();
	pool->last_sqlstate = ERRCODE_DATA_CORRUPTED;

	/* the worker sleeps, or starts later, and then restores the pool */
	pg_atomic_write_u32(&slot->must_restart, 1);
	pgpx_worker_wake(pool->worker);
}

/* Count what has ended by force, so that the sums add up. */
static void
balance_stats(PgpxStats *stats)
{
	uint64		ended = stats->checkins + stats->discards + stats->reclaimed +
		stats->terminated + stats->lease_timeouts + stats->retried;
	uint64		closed = 0;

	for (int i = 0; i < PGPX_CLOSE_NREASONS; i++)
		closed += stats->closed[i];
	stats->checkouts = Max(stats->checkouts, ended);
	stats->reclaimed += stats->checkouts - ended;
	stats->connects = Max(stats->connects, closed);
	stats->closed[PGPX_CLOSE_BROKEN] += stats->connects - closed;
}

void
pgpx_pool_rebuild_locked(PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		uint64		lease_id = pg_atomic_read_u64(&conn->lease_id);
		int			owner = conn->owner_procno;

		if (conn->pool != PGPX_POOL_INDEX(pool) || lease_id == 0 ||
			owner < 0 || owner >= pgpx_shared->ntickets)
			continue;
		pgpx_ticket_note_revoked(owner, lease_id, PGPX_REVOKE_WORKER);
		pgpx_wake_add(wake, owner);
	}
	pgpx_conn_free_all_locked(pool);
	balance_stats(&pool->stats);
	pool->unavailable_since = 0;
	pool->retry_at = 0;
	pool->backoff = 0;
	pool->ramp = 0;
}

void
pgpx_pool_restore_damaged(int worker)
{
	/* first: what is damaged from here on restarts the worker once more */
	pg_atomic_write_u32(&pgpx_shared->worker[worker].must_restart, 0);
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxWake	wake = PGPX_WAKE_INIT;
		bool		damaged;
		NameData	server;

		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		damaged = pool->damaged && pool->worker == worker;
		server = pool->server_name;
		if (damaged)
		{
			pgpx_pool_rebuild_locked(pool, &wake);
			pool->damaged = false;
			pgpx_pool_note_end_locked(pool);
		}
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
		if (damaged)
			ereport(LOG,
					(errmsg("pgpool_ext has rebuilt the pool of server \"%s\"",
							NameStr(server))));
	}
}

void
pgpx_pool_log_damage(int worker)
{
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		bool		damaged;
		NameData	server;
		NameData	database;
		NameData	user;
		char		text[PGPX_ERROR_LEN];

		LWLockAcquire(pool->lock, LW_SHARED);
		damaged = pool->damaged && pool->worker == worker;
		server = pool->server_name;
		database = pool->database_name;
		user = pool->user_name;
		strlcpy(text, pool->last_error, sizeof(text));
		LWLockRelease(pool->lock);
		if (damaged)
			ereport(WARNING,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("the pool of server \"%s\" of database \"%s\" for user \"%s\" is out of service",
							NameStr(server), NameStr(database), NameStr(user)),
					 errdetail("Its state in shared memory is wrong. %s", text),
					 errhint("The pool worker restarts and rebuilds it; leases of all pools of the worker end. "
							 "Please report this: it is a bug, or the memory of this machine is defective.")));
	}
}
