/*-------------------------------------------------------------------------
 *
 * maintenance.c
 *	  Timers of the worker: deadlines, unread resets, back-off, expiry.
 *
 * Runs at the end of each round of the event loop that does more than relay
 * bytes.  It returns the time of its next run, so that an idle worker sleeps.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include "postmaster/interrupt.h"
#include "utils/guc.h"

#include "base/debug_point.h"
#include "shared/cap.h"
#include "shared/history.h"
#include "shared/lock_hooks.h"
#include "shared/pool_worker.h"
#include "shared/registry.h"
#include "worker/connect.h"
#include "worker/connection.h"

/* Interval at which a pool that has ended is checked for distributed locks. */
#define LOCKS_CHECK_US (5 * 1000 * 1000)

static PgpxTime next_tick = 0;
static PgpxTime next_maintenance = 0;	/* of any pool */
static PgpxTime *maintain_at = NULL;	/* for each pool */
static PgpxTime next_deadline = PG_INT64_MAX;	/* of any connection */

void
pgpx_event_due_at(PgpxTime at)
{
	next_deadline = Min(next_deadline, at);
}

/* Have a pool maintained at this time at the latest. */
static void
maintain_soon(int pool, PgpxTime at)
{
	maintain_at[pool] = Min(maintain_at[pool], at);
	next_maintenance = Min(next_maintenance, at);
}

void
pgpx_event_pool_changed(int pool)
{
	maintain_soon(pool, 0);
}

/* Return whether max_connections keeps a pool from opening a connection. */
static bool
is_slot_wanted(void)
{
	for (int i = -1; (i = pgpx_pool_next_waiting(i)) >= 0;)
		if (pgpx_pools[i].lacks > 0 && pgpx_pools[i].lacks_all)
			return true;
	return false;
}

/*
 * Return whether the worker's own operation on a connection has occupied its
 * slot for too long, although the options still allow it (they may allow ten
 * years).
 *
 * The limit is PGPX_CONTENDED_KEEP_MS.  It applies if the options have been
 * replaced since the operation began, or if a pool waits for a slot under
 * max_connections.  It does not apply to a connection attempt for which
 * sessions wait, because then the waiters' deadlines limit it.
 */
static bool
is_overdue(PgpxWorkerConn *w, PgpxTime now)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxPool   *pool = &pgpx_pools[w->pool];

	if (conn->state != PGPX_CONN_RESETTING &&
		conn->state != PGPX_CONN_CANCELLING &&
		!(conn->state == PGPX_CONN_CLOSING && w->cancel.task != NULL) &&
		(conn->state != PGPX_CONN_CONNECTING || pool->nwaiting > 0))
		return false;
	if (now - conn->state_since < PGPX_CONTENDED_KEEP_MS * 1000)
	{
		pgpx_event_due_at(conn->state_since + PGPX_CONTENDED_KEEP_MS * 1000);
		return false;
	}
	if (conn->version != pool->version || is_slot_wanted())
		return true;
	pgpx_event_due_at(now + PGPX_CONTENDED_CHECK_MS * 1000);
	return false;
}

/* Handle the expiry of the deadline of a connection's phase. */
static void
deadline_passed(PgpxWorkerConn *w)
{
	/* the pool may have to open another connection in its place */
	pgpx_event_pool_changed(w->pool);
	if (w->phase < PGPX_PHASE_OPEN)
		pgpx_connect_deadline_passed(w);
	else
		pgpx_connection_deadline_passed(w);
}

/* End the current operation on a connection as if its deadline had passed. */
static void
end_operation(PgpxWorkerConn *w)
{
	if (w->phase == PGPX_PHASE_ABORT)
		w->aborting.until = pgpx_now();
	if (pgpx_conns[w->index].state != PGPX_CONN_CLOSING &&
		w->phase != PGPX_PHASE_OPEN)
		deadline_passed(w);
	else if (w->cancel.task != NULL)
		pgpx_cancel_deadline_passed(w);
}

/*
 * Do the periodic work on connections.  Return true if the worker must tick
 * again, because work is left that no event will report.
 */
static bool
tick(PgpxTime now)
{
	bool		again = false;

	pgpx_connection_foreach(w)
	{
		PgpxConn   *conn = &pgpx_conns[w->index];

		if (is_overdue(w, now))
			end_operation(w);
		if (w->phase != PGPX_PHASE_OPEN)
			continue;

		/*
		 * in use: keep ticking, or each checkin would have to wake the worker
		 */
		if (now - conn->last_used < PGPX_BUSY_MS * 1000)
			again = true;
		if (conn->state != PGPX_CONN_RESET_PENDING)
			continue;
		if (now - conn->state_since < PGPX_TICK_MS * 1000)
			again = true;
		else
			(void) pgpx_connection_read_reset(w);
	}

	if (pg_atomic_read_u32(&pgpx_shared->uses_min_idle) == 0)
		return again;

	/*
	 * Maintain soon the pools that lack connections for min_idle.  If a cap is
	 * full, the maintenance evicts a connection of another pool.
	 */
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];

		/* min_idle first, because it decides for most pools */
		if (pool->opts.min_idle == 0 || pool->pool_id == 0 ||
			pool->worker != pgpx_worker_index)
			continue;
		LWLockAcquire(pool->lock, LW_SHARED);
		if (pgpx_pool_below_min_locked(pool) > 0)
			maintain_soon(i, now + PGPX_EVICT_UNUSED_US);
		LWLockRelease(pool->lock);
	}
	return again;
}

/*
 * Serve the queues: expire waiters, grant connections, and grow the pools whose
 * back-off has ended, for which another pool has freed a slot, or whose waiters
 * have reached the age for growth.  For a pool that a full cap keeps from
 * growing, evict a connection of another pool.
 *
 * Return true if a pool is still in back-off or lacks a permit.
 */
static bool
serve_waiting_pools(PgpxTime now)
{
	bool		again = false;

	for (int i = -1; (i = pgpx_pool_next_waiting(i)) >= 0;)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxWake	wake = PGPX_WAKE_INIT;
		PgpxTime	due;
		bool		lacks;
		bool		lacks_all;
		PgpxEvict	which;

		if (pool->worker != pgpx_worker_index)
			continue;
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		pgpx_pool_retry_if_room_locked(pool, now);
		pgpx_pool_dispatch_locked(pool, &wake);
		lacks = pool->nwaiting > 0 && pool->lacks != 0;
		which = pool->lacks > 0 ? PGPX_EVICT_ANY : PGPX_EVICT_UNUSED_SURPLUS;
		lacks_all = pool->lacks_all;
		due = pool->retry_at > now ? pool->retry_at :
			pgpx_pool_growth_due_locked(pool, NULL);
		again |= lacks || pool->retry_at > now;
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
		if (due != 0)
			pgpx_event_due_at(due);
		if (lacks)
			(void) pgpx_cap_evict(i, lacks_all, which);
	}
	return again;
}

/* Handle the deadlines that have passed, and set the time of the next. */
static void
handle_deadlines(PgpxTime now)
{
	PgpxTime	next = PG_INT64_MAX;

	pgpx_connection_foreach(w)
	{
		if (w->cancel.task != NULL && now >= w->cancel.deadline)
			pgpx_cancel_deadline_passed(w);
		if (w->deadline != 0 && now >= w->deadline)
			deadline_passed(w);
		if (w->cancel.task != NULL)
			next = Min(next, w->cancel.deadline);
		if (w->deadline != 0)
			next = Min(next, w->deadline);
	}
	next_deadline = next;
}

/* Maintain a pool, and set the time of its next maintenance. */
static void
maintain_pool(int i, PgpxTime now)
{
	PgpxPool   *pool = &pgpx_pools[i];
	uint32		pool_id = pool->pool_id;
	bool		ended;

	/* wipe the conninfo of a pool that no longer exists */
	if (pgpx_wpools[i].pool_id != pool_id)
		pgpx_conninfo_forget(i);
	maintain_at[i] = PG_INT64_MAX;

	/* unlocked read: pgpx_pool_maintain checks again under the lock */
	if (pool_id == 0 || pool->worker != pgpx_worker_index)
		return;
	maintain_at[i] = pgpx_pool_maintain(i, pool_id, now, &ended);
	if (!ended)
		return;
	if (pgpx_lock_hooks->pool_has_locks(i, pool_id))
	{
		/* no event reports that the last lock is gone */
		maintain_at[i] = Min(maintain_at[i], now + LOCKS_CHECK_US);
		return;
	}
	PGPX_DEBUG_POINT("worker_forgets");
	pgpx_pool_remove_gone(i, pool_id);

	/*
	 * Wipe the conninfo now, because an idle worker may not run again for long.
	 * If the pool still exists, the next checkout sends its conninfo again.
	 */
	pgpx_conninfo_forget(i);
}

/*
 * Maintain all pools, or only those whose maintenance is due.  A change of a
 * connection makes the maintenance of its pool due.
 */
static void
maintain_pools(PgpxTime now, bool all)
{
	if (all || now >= next_maintenance)
	{
		int			end = pgpx_pools_end();

		next_maintenance = PG_INT64_MAX;
		for (int i = 0; i < end; i++)
		{
			if (all || now >= maintain_at[i])
			{
				maintain_pool(i, now);
				pgpx_reader_note_need(i, now);
			}
			next_maintenance = Min(next_maintenance, maintain_at[i]);
		}
	}
}

void
pgpx_maintenance_init(void)
{
	maintain_at = MemoryContextAllocZero(TopMemoryContext,
										 mul_size(pgpx_shared->max_pools,
												  sizeof(PgpxTime)));
	pgpx_reader_init();
}

PgpxTime
pgpx_maintenance_run(void)
{
	static bool in_use = false; /* as of the last tick */
	static uint32 seen_changes = 0;
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pgpx_worker_index];
	PgpxTime	now = pgpx_now();
	PgpxTime	next_reader;
	PgpxTime	next_ping;
	PgpxTime	next_sample;
	bool		all = false;
	bool		ticks;
	bool		waiting;
	uint32		changes;

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		all = true;				/* pools follow the settings */
	}
	if (now >= next_deadline)
		handle_deadlines(now);

	/*
	 * Before the last check for work, publish that the worker sleeps.  A
	 * process that creates work after the check then sees that it must wake
	 * the worker.
	 */
	pg_atomic_write_u32(&slot->ticking, 0);
	pg_memory_barrier();
	ticks = now >= next_tick;
	waiting = serve_waiting_pools(now);
	if (ticks)
	{
		in_use = tick(now);
		next_tick = now + PGPX_TICK_MS * 1000;
	}

	/* if this round had no tick, the next tick looks for work */
	if (in_use || waiting || !ticks)
	{
		pg_atomic_write_u32(&slot->ticking, 1);
		pgpx_event_due_at(next_tick);
	}
	pgpx_databases_check();
	changes = pg_atomic_read_u32(&pgpx_shared->pools_changed);
	all |= changes != seen_changes;
	seen_changes = changes;
	maintain_pools(now, all);
	next_reader = Min(pgpx_reader_start_due(now),
					  pgpx_resolver_start_due(now));
	next_ping = pgpx_lock_hooks->ping();
	next_sample = pgpx_history_sample(pgpx_worker_index, now);
	return Min(Min(Min(next_deadline, next_ping), next_sample),
			   Min(next_maintenance, next_reader));
}
