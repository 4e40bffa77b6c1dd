/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Detection of deadlocks between sessions that wait for connections.
 *
 * A session that holds leases and waits for another one checks after
 * deadlock_timeout, and then repeatedly.
 *
 * A waiter is blocked by a set of leases, and the release of any one of them
 * lets it proceed.  If its pool has reached its own size limit, these are the
 * leases of the pool.  If the pool could grow but a cap is full, they are the
 * leases under that cap.  A wait is blocked by the holders of these leases.
 *
 * A waiter is live, i.e. not deadlocked, if the holder of any of these leases
 * is live.  A holder that does not wait for a connection is live.  A waiter is
 * also live
 * - if a slot is free;
 * - if one of the connections that count against the limit is not leased (it is
 *	 being opened, reset, closed, ..);
 * - if its pool is paused or without a worker;
 * - if its deadline has passed, because it leaves the queue.
 *
 * collect_waits() collects the waits of the holders that block this session's
 * wait, of the holders that block these waits, and so on.  It stops at the
 * first holder or waiter that is live, usually the first holder.  If there is
 * none, no collected wait ends by itself.
 *
 * If every collected wait is also blocked by this session, directly or not, the
 * waits form a knot.  The session of the knot that began to wait last ends the
 * knot with an error.  Otherwise the collected waits contain a knot without
 * this session, and the sessions of that knot find it.  So each knot has
 * exactly one victim, and a session that only waits for a knot is never a
 * victim.  A knot exists from the start of its last wait, so the victim's first
 * check takes place when the knot has existed for deadlock_timeout.
 *
 * Only one pool is locked at a time.  Therefore the waits are collected twice,
 * and a deadlock is reported only if both collections are equal.  Lease ids and
 * wait ids are never reused, and each is valid for one uninterrupted lease or
 * wait.  So all that both collections contain was true at the instant between
 * them.
 *
 * A holder that waits for anything else counts as live, because its wait is not
 * visible here: for a lock of this server, a distributed lock, or an answer of
 * a remote server.
 *
 *-------------------------------------------------------------------------
 */
#include "session/deadlock.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/proc.h"

#include "base/debug_point.h"
#include "shared/cap.h"
#include "shared/registry.h"
#include "session/lease.h"

/* Shortest interval between two checks of one wait. */
#define CHECK_INTERVAL_US (100 * 1000)

/* Most lines of an error detail, and most holders in a line. */
#define LINES_MAX 32
#define HOLDERS_MAX 8

/* A wait that was found. */
typedef struct Wait
{
	uint64		wait_id;
	int			procno;
	int			pid;
	int			pool;
	bool		is_blocked_by_me;	/* directly or not */
} Wait;

/* A lease that was found. */
typedef struct Held
{
	uint64		lease_id;
	int			pool;
	int			server;
	int			holder;			/* index of its wait */
} Held;

/* A pool; the fields from "limit" on are set for pools with a waiter. */
typedef struct PoolState
{
	bool		is_read;		/* its leases were added */
	bool		has_waiter;
	PgpxGrowthLimit limit;		/* POOL, SERVER or ALL */
	int			server;
	uint32		pool_id;
	uint64		options_version;
	uint32		moves;			/* PgpxCap.moves of the cap that is the limit */
	Oid			database;
	NameData	database_name;
	NameData	server_name;
} PoolState;

struct PgpxDeadlock
{
	MemoryContext cxt;			/* holds this struct and all it points to */
	int			nwaits;
	int			nheld;
	Wait	   *waits;			/* [max_connections + 1]; [0]: this session's */
	Held	   *held;			/* [max_connections] */
	PoolState  *pools;			/* [max_pools] */
};

PgpxTime
pgpx_deadlock_check_at(PgpxTime since, bool again)
{
	PgpxTime	pause = (PgpxTime) DeadlockTimeout * 1000;

	if (pgpx_lease_count(0, -1) == 0)
		return 0;
	return since + (again ? Max(pause, CHECK_INTERVAL_US) : pause);
}

static PgpxDeadlock *
deadlock_alloc(void)
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "pgpool_ext deadlock",
											  ALLOCSET_DEFAULT_SIZES);
	int			most = pgpx_shared->max_connections;
	PgpxDeadlock *deadlock = MemoryContextAllocZero(cxt, sizeof(*deadlock));

	deadlock->cxt = cxt;
	deadlock->waits = MemoryContextAllocZero(cxt, (1 + most) * sizeof(Wait));
	deadlock->held = MemoryContextAllocZero(cxt, most * sizeof(Held));
	deadlock->pools =
		MemoryContextAllocZero(cxt, pgpx_shared->max_pools * sizeof(PoolState));
	return deadlock;
}

/*
 * Add the wait of a process, unless it was added before, and return its index.
 * Return -1 if the process does not wait, or if it has exited and another
 * process has its procno.  Read without a lock; read_wait() verifies the wait.
 */
static int
add_wait(PgpxDeadlock *deadlock, int procno, int pid)
{
	const volatile PgpxWaiter *waiter;
	Wait	   *wait;

	if (procno < 0)
		return -1;
	for (int i = 0; i < deadlock->nwaits; i++)
		if (deadlock->waits[i].procno == procno)
			return deadlock->waits[i].pid == pid ? i : -1;
	waiter = &pgpx_waiters[procno];
	if (waiter->state != PGPX_WAITER_WAITING)
		return -1;
	wait = &deadlock->waits[deadlock->nwaits];
	wait->procno = procno;
	wait->pid = pid;
	wait->pool = waiter->pool;
	return deadlock->nwaits++;
}

/*
 * Add the leases of a pool whose connections are not broken, and the waits of
 * their holders.  Return false if one of these connections is not leased, or a
 * holder does not wait.
 */
static bool
read_leases_locked(PgpxDeadlock *deadlock, const PgpxPool *pool)
{
	PoolState  *state = &deadlock->pools[PGPX_POOL_INDEX(pool)];
	int			left = pgpx_pool_total_locked(pool);

	Assert(LWLockHeldByMe(pool->lock));
	if (state->is_read)
		return true;
	state->is_read = true;
	if (left != pool->count[PGPX_CONN_LEASED] - pool->nbroken)
		return false;
	pgpx_conn_foreach_locked(conn, pool)
	{
		Held	   *held;

		if (conn->broken && conn->state == PGPX_CONN_LEASED)
			continue;
		if (conn->state != PGPX_CONN_LEASED ||
			deadlock->nheld == pgpx_shared->max_connections)
			return false;
		left--;
		held = &deadlock->held[deadlock->nheld++];
		held->lease_id = pg_atomic_read_u64(&conn->lease_id);
		held->pool = PGPX_POOL_INDEX(pool);
		held->server = pool->server;
		held->holder = add_wait(deadlock, conn->holder.procno,
								conn->holder.pid);
		if (held->holder < 0)
			return false;
	}
	return left == 0;
}

/*
 * Determine the limit that keeps the pool from growing for its waiters.  Return
 * false if a slot is free, or if the waiters may proceed without the release of
 * a lease (the pool is paused or retired, for example).
 */
static bool
read_limit_locked(PgpxDeadlock *deadlock, const PgpxPool *pool)
{
	PoolState  *state = &deadlock->pools[PGPX_POOL_INDEX(pool)];
	PgpxCap    *cap = &pgpx_servers[pool->server].cap;
	int			most = pool->opts.max_server_connections;

	Assert(LWLockHeldByMe(pool->lock));
	if (pgpx_pool_is_paused(pool) ||
		pgpx_pool_is_retired_locked(pool) ||
		pgpx_pool_needs_options_locked(pool) ||
		pgpx_pool_worker_incarnation(pool) == 0)
		return false;
	state->has_waiter = true;
	state->server = pool->server;
	state->pool_id = pool->pool_id;
	state->options_version = pool->options_version;
	state->database = pool->key.database;
	state->database_name = pool->database_name;
	state->server_name = pool->server_name;
	if (pgpx_pool_total_locked(pool) >= pgpx_pool_cap_locked(pool))
	{
		state->limit = PGPX_LIMIT_POOL;
		return true;
	}

	if (most > 0 && pgpx_cap_used(cap, &state->moves) >= most)
	{
		state->limit = PGPX_LIMIT_SERVER;
		return true;
	}

	state->limit = PGPX_LIMIT_ALL;
	return pgpx_cap_used(&pgpx_shared->cap, &state->moves) >=
		pgpx_shared->max_connections;
}

/*
 * Add the leases under the cap that is the limit of a pool.  Return false if a
 * connection is not leased, a holder does not wait, the cap has changed since it
 * was found full, or a broken connection occupies a slot of the cap over all
 * pools, which the worker will free.
 */
static bool
read_cap(PgpxDeadlock *deadlock, const PoolState *state)
{
	int			server = state->limit == PGPX_LIMIT_SERVER ? state->server : -1;
	PgpxCap    *cap = server >= 0 ? &pgpx_servers[server].cap :
		&pgpx_shared->cap;
	uint32		moves_now;
	int			found = 0;

	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		bool		ok = true;

		/*
		 * without the lock: if a pool is added here later, either it has no
		 * permit, or "moves" has changed
		 */
		if (pool->pool_id == 0)
			continue;
		LWLockAcquire(pool->lock, LW_SHARED);
		if (pool->pool_id != 0 && (server < 0 || pool->server == server))
			ok = read_leases_locked(deadlock, pool) &&
				(server >= 0 || pool->nbroken == 0);
		LWLockRelease(pool->lock);
		if (!ok)
			return false;
	}
	for (int i = 0; i < deadlock->nheld; i++)
	{
		if (server < 0 || deadlock->held[i].server == server)
			found++;
	}
	return pgpx_cap_used(cap, &moves_now) == found && moves_now == state->moves;
}

/*
 * Verify a wait, and add the leases that block it.  Return false if the wait
 * has ended or its waiter is live.
 */
static bool
read_wait(PgpxDeadlock *deadlock, Wait *wait)
{
	PgpxPool   *pool = &pgpx_pools[wait->pool];
	PoolState  *state = &deadlock->pools[wait->pool];
	const PgpxWaiter *waiter = &pgpx_waiters[wait->procno];
	bool		known;
	bool		ok;

	LWLockAcquire(pool->lock, LW_SHARED);
	ok = waiter->state == PGPX_WAITER_WAITING &&
		waiter->pool == wait->pool && waiter->holder.pid == wait->pid &&
		(waiter->deadline == 0 || pgpx_now() < waiter->deadline);
	wait->wait_id = waiter->wait_id;
	known = state->has_waiter;
	if (ok && !known)
		ok = read_limit_locked(deadlock, pool) &&
			read_leases_locked(deadlock, pool);
	LWLockRelease(pool->lock);

	if (ok && !known && state->limit != PGPX_LIMIT_POOL)
		ok = read_cap(deadlock, state);
	return ok;
}

/*
 * Collect the waits that block this session's wait, directly or not, and the
 * leases that block them.  Return false if one of them has ended or is live.
 */
static bool
collect_waits(PgpxDeadlock *deadlock)
{
	if (add_wait(deadlock, MyProcNumber, MyProcPid) < 0)
		return false;
	for (int i = 0; i < deadlock->nwaits; i++)
		if (!read_wait(deadlock, &deadlock->waits[i]))
			return false;
	return true;
}

/*
 * Return whether two collections found the same.  Their memory was zeroed, so
 * padding is equal, too.
 */
static bool
is_same_state(const PgpxDeadlock *a, const PgpxDeadlock *b)
{
	return a->nwaits == b->nwaits && a->nheld == b->nheld &&
		memcmp(a->waits, b->waits, sizeof(Wait) * a->nwaits) == 0 &&
		memcmp(a->held, b->held, sizeof(Held) * a->nheld) == 0 &&
		memcmp(a->pools, b->pools,
			   sizeof(PoolState) * pgpx_shared->max_pools) == 0;
}

/* Return whether the release of this lease could end the wait. */
static bool
is_blocked_by(const PgpxDeadlock *deadlock, const Wait *wait, const Held *held)
{
	const PoolState *state = &deadlock->pools[wait->pool];

	if (state->limit == PGPX_LIMIT_ALL)
		return true;
	return state->limit == PGPX_LIMIT_POOL ? held->pool == wait->pool :
		held->server == state->server;
}

/*
 * Return whether the waits are a knot that this session must end: each of them
 * is blocked by this session, directly or not, and this session's wait began
 * last.  Proceed from this session to the waits that it blocks, and from each
 * of these in the same way.
 */
static bool
is_victim(PgpxDeadlock *deadlock)
{
	bool		found = true;

	deadlock->waits[0].is_blocked_by_me = true;
	while (found)
	{
		found = false;
		for (int i = 0; i < deadlock->nheld; i++)
		{
			const Held *held = &deadlock->held[i];

			if (!deadlock->waits[held->holder].is_blocked_by_me)
				continue;
			for (int j = 0; j < deadlock->nwaits; j++)
				if (!deadlock->waits[j].is_blocked_by_me &&
					is_blocked_by(deadlock, &deadlock->waits[j], held))
					deadlock->waits[j].is_blocked_by_me = found = true;
		}
	}
	for (int i = 1; i < deadlock->nwaits; i++)
		if (!deadlock->waits[i].is_blocked_by_me ||
			deadlock->waits[i].wait_id > deadlock->waits[0].wait_id)
			return false;
	return true;
}

PgpxDeadlock *
pgpx_deadlock_find(void)
{
	PgpxDeadlock *deadlock = deadlock_alloc();
	bool		found = collect_waits(deadlock);

	if (found)
	{
		PgpxDeadlock *again = deadlock_alloc();

		PGPX_DEBUG_POINT("deadlock_read");
		found = collect_waits(again) && is_same_state(deadlock, again) &&
			is_victim(deadlock);
		MemoryContextDelete(again->cxt);
	}
	if (found)
		return deadlock;
	MemoryContextDelete(deadlock->cxt);
	elog(DEBUG1, "pgpool_ext found no deadlock");
	return NULL;
}

/*
 * Append the line of one wait, with its holders as "process 1", "processes 1, 2"
 * or "processes 1, 2, .. and 4 more".
 */
static void
append_wait(const PgpxDeadlock *deadlock, const Wait *wait, StringInfo buf)
{
	const PoolState *state = &deadlock->pools[wait->pool];
	List	   *pids = NIL;

	for (int i = 0; i < deadlock->nheld; i++)
	{
		const Held *held = &deadlock->held[i];

		if (is_blocked_by(deadlock, wait, held))
			pids = list_append_unique_int(pids,
										  deadlock->waits[held->holder].pid);
	}
	appendStringInfo(buf, "Process %d waits for a connection of ", wait->pid);

	/* names of servers are not shown outside of their database */
	if (state->database == MyDatabaseId)
		appendStringInfo(buf, "server \"%s\"", NameStr(state->server_name));
	else
		appendStringInfo(buf, "a server of database \"%s\"",
						 NameStr(state->database_name));
	appendStringInfo(buf, "%s; held by %s",
					 state->limit == PGPX_LIMIT_SERVER ?
					 " within max_server_connections" :
					 state->limit == PGPX_LIMIT_ALL ?
					 " within pgpool_ext.max_connections" : "",
					 list_length(pids) == 1 ? "process" : "processes");
	for (int i = 0; i < Min(list_length(pids), HOLDERS_MAX); i++)
		appendStringInfo(buf, "%s%d", i == 0 ? " " : ", ", list_nth_int(pids, i));
	if (list_length(pids) > HOLDERS_MAX)
		appendStringInfo(buf, " and %d more", list_length(pids) - HOLDERS_MAX);
	appendStringInfoChar(buf, '.');
}

void
pgpx_deadlock_raise(const PgpxDeadlock *deadlock, const char *server_name)
{
	StringInfoData detail;
	int			lines = Min(deadlock->nwaits, LINES_MAX);

	initStringInfo(&detail);
	for (int i = 0; i < lines; i++)
	{
		if (i > 0)
			appendStringInfoChar(&detail, '\n');
		append_wait(deadlock, &deadlock->waits[i], &detail);
	}
	if (deadlock->nwaits > lines)
		appendStringInfo(&detail, "\nThe same is true of %d more.",
						 deadlock->nwaits - lines);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected while waiting for a connection to server \"%s\"",
					server_name),
			 errdetail_internal("%s", detail.data),
			 pgpx_lease_all_are_of_tables() ?
			 errhint("Roll back the local transaction, and run it again. Transactions that use foreign tables of several servers should do so in the same order.") :
			 errhint("Return the leases and repeat the call. Sessions that lease connections of several servers should do so in the same order.")));
}
