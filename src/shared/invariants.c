/*-------------------------------------------------------------------------
 *
 * invariants.c
 *	  Verification of the shared state.
 *
 * Faults are written into fixed buffers, so no error is raised under a lock.
 *
 * Pools.  Each pool is checked under its lock, in shared mode.  A connection
 * enters and leaves a pool under that pool's lock, so "conn->pool is this pool"
 * is reliable.
 *
 * Caps and free list.  A connection changes between a pool and the free list,
 * with its permits, in one critical section under the lock of the pool.  The
 * check reads the permits, acquires and releases each pool lock, reads the
 * length of the free list, and counts the connections.  If the permits have not
 * changed in that time, the numbers must agree.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/invariants.h"

#include "storage/procarray.h"
#include "storage/spin.h"

#include "shared/lock_hooks.h"
#include "shared/cap.h"
#include "shared/registry.h"

void
pgpx_check_fault(PgpxFaults *faults, const char *format, ...)
{
	va_list		args;
	char	   *text;
	int			used = 0;

	if (faults->n++ >= PGPX_FAULTS_MAX)
		return;
	text = faults->text[faults->n - 1];
	if (faults->pool != NULL)
		used = snprintf(text, PGPX_FAULT_LEN, "pool %u: ",
						faults->pool->pool_id);
	va_start(args, format);
	vsnprintf(text + used, PGPX_FAULT_LEN - used, format, args);
	va_end(args);
}

/* Use the process array: the PGPROC of an exited process keeps its pid. */
bool
pgpx_check_is_alive(int procno, int pid)
{
	return procno >= 0 && procno < pgpx_shared->nwaiter_slots && pid != 0 &&
		BackendPidGetProc(pid) == GetPGProcByNumber(procno);
}

/* Report a sum that differs from the sum that it must be equal to. */
static void
check_sum(PgpxFaults *faults, const char *left, uint64 is, const char *right,
		  uint64 expected)
{
	if (is != expected)
		pgpx_check_fault(faults, "%s is " UINT64_FORMAT ", but %s is " UINT64_FORMAT,
						 left, is, right, expected);
}

static void
check_conn(PgpxFaults *faults, PgpxConn *conn)
{
	int			index = PGPX_CONN_INDEX(conn);
	uint64		lease_id = pg_atomic_read_u64(&conn->lease_id);
	bool		leased = conn->state == PGPX_CONN_LEASED;
	bool		connecting = conn->state == PGPX_CONN_CONNECTING;
	bool		closing = conn->close_reason != PGPX_CLOSE_NONE;

	/* an attempt that has failed may be closing or cancelling, unopened */
	if (leased != (lease_id != 0) || leased != (conn->holder.pid != 0) ||
		conn->version > faults->pool->version ||
		(conn->opened_at != 0 ? connecting : !connecting && !closing) ||
		(pgpx_conn_is_free(conn) && (conn->unread_reset != 0) !=
		 (conn->state == PGPX_CONN_RESET_PENDING)) ||
		(conn->state == PGPX_CONN_CLOSING && !closing))
		pgpx_check_fault(faults, "connection %d is %s, with lease " UINT64_FORMAT ", holder %d, version " UINT64_FORMAT ", opened at " INT64_FORMAT ", unread reset %d, close reason %d",
						 index, pgpx_conn_state_name(conn->state), lease_id,
						 conn->holder.pid, conn->version, conn->opened_at,
						 conn->unread_reset, conn->close_reason);
	if (leased && !pgpx_check_is_alive(conn->holder.procno, conn->holder.pid))
		pgpx_check_fault(faults, "lease " UINT64_FORMAT " on connection %d belongs to process %d (slot %d), which does not exist",
						 lease_id, index, conn->holder.pid,
						 conn->holder.procno);
}

/* Return whether element i of a list of the pool may follow another one. */
static bool
may_follow(const PgpxPool *pool, const PgpxList *list, int i, int last)
{
	const PgpxConn *conn = &pgpx_conns[i];
	const PgpxWaiter *waiter = &pgpx_waiters[i];

	if (list == &pool->queue)
		return waiter->pool == PGPX_POOL_INDEX(pool) &&
			waiter->state == PGPX_WAITER_WAITING &&
			(last < 0 || waiter->position > pgpx_waiters[last].position);
	return conn->pool == PGPX_POOL_INDEX(pool) &&
		(list != &pool->lru ||
		 (pgpx_conn_is_free(conn) &&
		  (last < 0 || conn->last_used <= pgpx_conns[last].last_used)));
}

/*
 * Check that a list of the pool has "expected" members.  If all links are right,
 * a walk cannot reach an element twice, so counting suffices.
 */
static void
check_list(PgpxFaults *faults, const char *name, const PgpxList *list,
		   PgpxLink *links, Size stride, int expected)
{
	int			max = list == &faults->pool->queue ?
		pgpx_shared->nwaiter_slots : pgpx_shared->max_connections;
	int			last = -1;
	int			n = 0;
	int			i = list->head;

	while (i >= 0 && i < max &&
		   pgpx_list_link(links, stride, i)->prev == last &&
		   may_follow(faults->pool, list, i, last))
	{
		last = i;
		i = pgpx_list_link(links, stride, i)->next;
		n++;
	}
	if (i != -1 || last != list->tail || n != expected)
		pgpx_check_fault(faults, "list of %s has %d and is wrong after element %d: the pool has %d, and the next one is %d",
						 name, n, last, expected, i);
}

/*
 * Check the states, counts and lists of the connections.  Return how many are
 * open.
 */
static int
check_conns(PgpxFaults *faults)
{
	PgpxPool   *pool = faults->pool;
	int			count[PGPX_CONN_NSTATES] = {0};
	int			open = 0;
	int			broken = 0;
	int			n = 0;

	for (int i = 0; i < pgpx_conns_end(); i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool != PGPX_POOL_INDEX(pool))
			continue;
		n++;
		if (conn->state <= PGPX_CONN_FREE || conn->state >= PGPX_CONN_NSTATES)
		{
			pgpx_check_fault(faults, "connection %d is in state %d", i, conn->state);
			continue;
		}
		count[conn->state]++;
		open += conn->opened_at != 0;
		broken += conn->broken && conn->state == PGPX_CONN_LEASED;
		check_conn(faults, conn);
	}

	for (int s = 0; s < PGPX_CONN_NSTATES; s++)
		check_sum(faults, pgpx_conn_state_name(s), count[s],
				  "the count of the pool", pool->count[s]);
	check_sum(faults, "number of broken leases", broken,
			  "that of the pool", pool->nbroken);
	check_list(faults, "free connections", &pool->lru, PGPX_LRU_LINKS,
			   count[PGPX_CONN_IDLE] + count[PGPX_CONN_RESET_PENDING]);
	check_list(faults, "all connections", &pool->conns, PGPX_CONN_LINKS, n);
	return open;
}

/*
 * Check that no session waits although the pool has a connection for it: a free
 * one that needs no test, or a free one whose test could begin, because fewer
 * connections are being tested than sessions wait.
 */
static void
check_served(PgpxFaults *faults)
{
	PgpxPool   *pool = faults->pool;
	PgpxTime	since = pgpx_pool_waits_since_locked(pool);

	if (pool->nwaiting == 0 || pgpx_pool_is_paused(pool))
		return;
	for (int i = 0; i < pgpx_conns_end(); i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool == PGPX_POOL_INDEX(pool) && pgpx_conn_is_free(conn) &&
			conn->version == pool->version &&
			pg_atomic_read_u32(&conn->hung_up) == 0 &&
			(pool->count[PGPX_CONN_CHECKING] < pool->nwaiting ||
			 !pgpx_pool_must_test_locked(pool, conn, since, pgpx_now())))
			pgpx_check_fault(faults, "%d waiters are queued while connection %d is %s",
							 pool->nwaiting, i,
							 pgpx_conn_state_name(conn->state));
	}
}

/*
 * Check, for leases and connects, that the number of starts equals the number of
 * ends plus the number that still exists, and that each ended wait was counted
 * once.
 */
static void
check_counters(PgpxFaults *faults, int open)
{
	PgpxPool   *pool = faults->pool;
	const PgpxStats *stats = &pool->stats;
	uint64		waits = 0;

	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
		waits += stats->histogram[b];

	check_sum(faults, "checkouts", stats->checkouts,
			  "sum of ended leases and leased connections",
			  pgpx_stats_sum_ended(stats) + pool->count[PGPX_CONN_LEASED]);
	check_sum(faults, "waited", stats->waited,
			  "sum of ended waits",
			  stats->granted + stats->timeouts + stats->cancelled +
				  stats->failed);
	check_sum(faults, "sum of the histogram", waits, "waited", stats->waited);
	check_sum(faults, "connects", stats->connects,
			  "sum of closed and open connections",
			  pgpx_stats_sum_closed(stats) + open);
}

/* Check the queue, and the processes of its waiters. */
static void
check_waiters(PgpxFaults *faults)
{
	PgpxPool   *pool = faults->pool;
	int			index = PGPX_POOL_INDEX(pool);
	int			served = 0;

	check_list(faults, "waiters", &pool->queue, PGPX_QUEUE_LINKS,
			   pool->nwaiting);
	if ((pgpx_pool_next_waiting(index - 1) == index) != (pool->nwaiting > 0))
		pgpx_check_fault(faults, "bit in pgpx_waiting_bits is wrong for %d waiters",
						 pool->nwaiting);

	/*
	 * The queue identifies WAITING waiters: a session that is about to enqueue
	 * elsewhere may have left the index of this pool in its waiter.
	 */
	for (int i = 0; i < pgpx_shared->nwaiter_slots; i++)
	{
		PgpxWaiter *waiter = &pgpx_waiters[i];

		if (waiter->pool != index || waiter->state == PGPX_WAITER_NONE)
			continue;
		if (waiter->state != PGPX_WAITER_WAITING)
			served++;
		else if (!pgpx_check_is_alive(i, waiter->holder.pid))
			pgpx_check_fault(faults, "waiter %d belongs to process %d, which does not exist",
							 i, waiter->holder.pid);
	}
	check_sum(faults, "number of waiters", pool->nwaiting + served,
			  "that of the pool", pool->nwaiters);
}

static void
check_pool(PgpxFaults *faults, PgpxPool *pool)
{
	LWLockAcquire(pool->lock, LW_SHARED);
	faults->pool = pool;
	if (pool->damaged)
		pgpx_check_fault(faults, "is out of service: %s", pool->last_error);
	check_counters(faults, check_conns(faults));
	check_waiters(faults);
	check_served(faults);
	if (pool->pool_id == 0 && (pool->conns.head >= 0 || pool->nwaiters != 0))
		pgpx_check_fault(faults, "pool slot %d has no pool, but connections or waiters",
						 PGPX_POOL_INDEX(pool));
	faults->pool = NULL;
	LWLockRelease(pool->lock);
}

/* Return the length of the free list; -1 if it is wrong. */
static int
count_free_list(void)
{
	int			max = pgpx_shared->max_connections;
	int			n = 0;
	int			i;

	SpinLockAcquire(&pgpx_shared->free_mutex);
	for (i = pgpx_shared->free_head; i >= 0 && i < max && n <= max;
		 i = pgpx_conns[i].in_lru.next, n++)
		if (pgpx_conns[i].state != PGPX_CONN_FREE || pgpx_conns[i].pool != -1)
			break;
	SpinLockRelease(&pgpx_shared->free_mutex);
	return i == -1 ? n : -1;
}

/*
 * Compare the permits of a cap with the connections, and with the free list if it
 * is the cap over all pools (server: -1).
 */
static void
check_cap(PgpxFaults *faults, PgpxCap *cap, int server)
{
	uint32		moves;
	uint32		moves_after;
	int			used = pgpx_cap_used(cap, &moves);
	int			counted = 0;
	int			nfree;

	/* wait for processes that are acquiring or releasing a permit */
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		if (server >= 0 && pgpx_pools[i].server != server)
			continue;
		LWLockAcquire(pgpx_pools[i].lock, LW_SHARED);
		LWLockRelease(pgpx_pools[i].lock);
	}
	nfree = server < 0 ? count_free_list() : 0;
	for (int i = 0; i < pgpx_conns_end(); i++)
	{
		int			pool = pgpx_conns[i].pool;

		/* a broken connection has no permit of its server */
		if (pool >= 0 &&
			(server < 0 ||
			 (pgpx_pools[pool].server == server && !pgpx_conns[i].broken)))
			counted++;
	}
	(void) pgpx_cap_used(cap, &moves_after);
	if (moves_after == moves && used != counted)
		pgpx_check_fault(faults, "cap of server slot %d (-1: of all pools) has %d permits in use, but %d connections",
						 server, used, counted);
	if (moves_after == moves && server < 0 &&
		nfree != pgpx_shared->max_connections - used)
		pgpx_check_fault(faults, "free list has %d connections (-1: it is wrong), but %d are free",
						 nfree, pgpx_shared->max_connections - used);
}

void
pgpx_invariants_check(PgpxFaults *faults)
{
	memset(faults, 0, sizeof(*faults));
	for (int i = 0; i < pgpx_pools_end(); i++)
		check_pool(faults, &pgpx_pools[i]);
	check_cap(faults, &pgpx_shared->cap, -1);
	for (int i = 0; i < pgpx_pools_end(); i++)
		check_cap(faults, &pgpx_servers[i].cap, i);
	pgpx_lock_hooks->check(faults);
}
