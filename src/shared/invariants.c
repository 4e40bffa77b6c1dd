/*-------------------------------------------------------------------------
 *
 * invariants.c
 *	  Verification of the shared state.
 *
 * Shared memory only.  Faults are written into fixed buffers, so no error is
 * raised under a lock.
 *
 * Pools.  Each pool is checked under its lock, in shared mode, so that its
 * connections, queue and counters do not change.  A connection enters and
 * leaves a pool under that pool's lock.  So "conn->pool is this pool" is
 * reliable for the connections of the pool, and never true for other
 * connections.
 *
 * Caps and free list.  A connection changes between a pool and the free list,
 * with its tokens, in one critical section under the lock of the pool.  The
 * check reads the tokens, acquires and releases each pool lock, reads the
 * length of the free list, and counts the connections.  If the tokens have not
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
pgpx_check_fault(PgpxCheck *check, const char *format, ...)
{
	PgpxFaults *faults = check->faults;
	va_list		args;
	char	   *text;
	int			used = 0;

	if (faults->n++ >= PGPX_FAULTS_MAX)
		return;
	text = faults->text[faults->n - 1];
	if (check->pool != NULL)
		used = snprintf(text, PGPX_FAULT_LEN, "pool %u: ",
						check->pool->pool_id);
	va_start(args, format);
	vsnprintf(text + used, PGPX_FAULT_LEN - used, format, args);
	va_end(args);
}

/*
 * Use the process array, because the PGPROC of an exited process keeps its pid
 * for long.
 */
bool
pgpx_check_is_alive(int procno, int pid)
{
	return procno >= 0 && procno < pgpx_shared->nwaiter_slots && pid != 0 &&
		BackendPidGetProc(pid) == GetPGProcByNumber(procno);
}

/* Report a sum that differs from the sum that it must be equal to. */
static void
check_sum(PgpxCheck *check, const char *left, uint64 is, const char *right,
		  uint64 expected)
{
	if (is != expected)
		pgpx_check_fault(check, "%s is " UINT64_FORMAT ", but %s is " UINT64_FORMAT,
						 left, is, right, expected);
}

static void
check_conn(PgpxCheck *check, PgpxConn *conn)
{
	int			index = PGPX_CONN_INDEX(conn);
	const char *state = pgpx_conn_state_name(conn->state);
	uint64		lease_id = pg_atomic_read_u64(&conn->lease_id);
	bool		leased = conn->state == PGPX_CONN_LEASED;
	bool		opened = conn->opened_at != 0;

	if (leased != (lease_id != 0) || leased != (conn->owner_pid != 0))
		pgpx_check_fault(check, "connection %d is %s, but has lease " UINT64_FORMAT " and holder %d",
						 index, state, lease_id, conn->owner_pid);
	else if (leased &&
			 !pgpx_check_is_alive(conn->owner_procno, conn->owner_pid))
		pgpx_check_fault(check, "lease " UINT64_FORMAT " on connection %d belongs to process %d (slot %d), which does not exist",
						 lease_id, index, conn->owner_pid, conn->owner_procno);
	if (conn->version > check->pool->version)
		pgpx_check_fault(check, "connection %d is of version " UINT64_FORMAT ", the pool of " UINT64_FORMAT,
						 index, conn->version, check->pool->version);

	/* an attempt that has failed may be closing or cancelling, unopened */
	if (opened ? conn->state == PGPX_CONN_CONNECTING :
		conn->state != PGPX_CONN_CONNECTING &&
		conn->close_reason == PGPX_CLOSE_NONE)
		pgpx_check_fault(check, "connection %d is %s, but was opened at " INT64_FORMAT,
						 index, state, conn->opened_at);
	if ((conn->state == PGPX_CONN_IDLE && conn->unread_reset != 0) ||
		(conn->state == PGPX_CONN_RESET_PENDING && conn->unread_reset == 0))
		pgpx_check_fault(check, "connection %d is %s, but the unread reset is %d",
						 index, state, conn->unread_reset);
	if (conn->state == PGPX_CONN_CLOSING &&
		conn->close_reason == PGPX_CLOSE_NONE)
		pgpx_check_fault(check, "connection %d is closing without a reason",
						 index);
}

static bool
is_free(const PgpxConn *conn)
{
	return conn->state == PGPX_CONN_IDLE ||
		conn->state == PGPX_CONN_RESET_PENDING;
}

/*
 * Check that a list has "expected" members: the free connections, in the order
 * of their last use, or all connections of the pool.  If all links are right, a
 * walk cannot reach a connection twice, so counting suffices.
 */
static void
check_list(PgpxCheck *check, bool lru, int head, int tail, int expected)
{
	int			last = -1;
	int			n = 0;
	int			i = head;

	while (i >= 0 && i < pgpx_shared->max_connections &&
		   pgpx_conns[i].pool == check->index &&
		   (lru ? pgpx_conns[i].prev : pgpx_conns[i].pool_prev) == last &&
		   (!lru || (is_free(&pgpx_conns[i]) &&
					 (last < 0 ||
					  pgpx_conns[i].last_used <= pgpx_conns[last].last_used))))
	{
		last = i;
		i = lru ? pgpx_conns[i].next : pgpx_conns[i].pool_next;
		n++;
	}
	if (i != -1 || last != tail || n != expected)
		pgpx_check_fault(check, "list of %s connections has %d and is wrong after connection %d: the pool has %d, and the next one is %d",
						 lru ? "free" : "all", n, last, expected, i);
}

/*
 * Check the states, counts and lists of the connections.  Return how many are
 * open.
 */
static int
check_conns(PgpxCheck *check)
{
	PgpxPool   *pool = check->pool;
	int			count[PGPX_CONN_NSTATES] = {0};
	int			open = 0;
	int			broken = 0;
	int			n = 0;

	for (int i = 0; i < pgpx_conns_end(); i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool != check->index)
			continue;
		n++;
		if (conn->state <= PGPX_CONN_FREE || conn->state >= PGPX_CONN_NSTATES)
		{
			pgpx_check_fault(check, "connection %d is in state %d", i, conn->state);
			continue;
		}
		count[conn->state]++;
		if (conn->opened_at != 0)
			open++;
		if (conn->broken)
			broken++;
		check_conn(check, conn);
	}

	for (int s = 0; s < PGPX_CONN_NSTATES; s++)
		if (pool->count[s] != count[s])
			pgpx_check_fault(check, "%d connections are %s, but the pool counts %d",
							 count[s], pgpx_conn_state_name(s), pool->count[s]);
	check_sum(check, "number of broken connections", broken,
			  "that of the pool", pool->nbroken);
	check_list(check, true, pool->lru_head, pool->lru_tail,
			   count[PGPX_CONN_IDLE] + count[PGPX_CONN_RESET_PENDING]);
	check_list(check, false, pool->conn_head, pool->conn_tail, n);
	return open;
}

/*
 * Check that no session waits although the pool has a connection for it: a free
 * one that needs no test, or a free one whose test could begin, because fewer
 * connections are being tested than sessions wait.
 */
static void
check_served(PgpxCheck *check)
{
	PgpxPool   *pool = check->pool;

	if (pool->nwaiting == 0 || pgpx_pool_is_paused(pool))
		return;
	for (int i = 0; i < pgpx_conns_end(); i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool == check->index && is_free(conn) &&
			conn->version == pool->version &&
			pg_atomic_read_u32(&conn->hung_up) == 0 &&
			(pool->count[PGPX_CONN_CHECKING] < pool->nwaiting ||
			 conn->state == PGPX_CONN_RESET_PENDING ||
			 !pgpx_pool_must_test_locked(pool, conn,
										 pgpx_pool_waits_since_locked(pool),
										 pgpx_now())))
			pgpx_check_fault(check, "%d waiters are queued while connection %d is %s",
							 pool->nwaiting, i,
							 pgpx_conn_state_name(conn->state));
	}
}

/*
 * Check, for leases, waits and connects, that the number of starts equals the
 * number of ends plus the number that still exists.
 */
static void
check_counters(PgpxCheck *check, int open)
{
	PgpxPool   *pool = check->pool;
	const PgpxStats *stats = &pool->stats;
	uint64		waits = 0;

	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
		waits += stats->histogram[b];

	check_sum(check, "checkouts", stats->checkouts,
			  "sum of ended leases and leased connections",
			  pgpx_stats_sum_ended(stats) + pool->count[PGPX_CONN_LEASED]);
	check_sum(check, "waited", stats->waited,
			  "sum of ended waits and waiters",
			  stats->granted + stats->timeouts + stats->cancelled +
				  stats->failed + pool->nwaiters);
	check_sum(check, "sum of the histogram", waits,
			  "waited without waiters", stats->waited - pool->nwaiters);
	check_sum(check, "connects", stats->connects,
			  "sum of closed and open connections",
			  pgpx_stats_sum_closed(stats) + open);
}

/*
 * Check the links, the order and the processes of the queue, and the waiters
 * that have left it.
 */
static void
check_waiters(PgpxCheck *check)
{
	PgpxPool   *pool = check->pool;
	int			last = -1;
	int			n = 0;
	int			served = 0;

	for (int i = pool->queue_head; i != -1; i = pgpx_waiters[i].next)
	{
		PgpxWaiter *waiter = &pgpx_waiters[i];

		if (i < 0 || i >= pgpx_shared->nwaiter_slots ||
			waiter->pool != check->index ||
			waiter->state != PGPX_WAITER_WAITING || waiter->prev != last ||
			(last >= 0 && waiter->position <= pgpx_waiters[last].position))
		{
			pgpx_check_fault(check, "queue is wrong at waiter %d", i);
			break;
		}
		if (!pgpx_check_is_alive(i, waiter->pid))
			pgpx_check_fault(check, "waiter %d belongs to process %d, which does not exist",
							 i, waiter->pid);
		last = i;
		n++;
	}
	if (pool->queue_tail != last || pool->nwaiting != n ||
		pgpx_pool_has_waiting_bit(pool) != (n > 0))
		pgpx_check_fault(check, "queue has %d waiters and ends with %d, but the pool counts %d and ends it with %d, or its bit in pgpx_waiting_bits is wrong",
						 n, last, pool->nwaiting, pool->queue_tail);

	/*
	 * Only the queue identifies WAITING waiters: a session that is about to
	 * enqueue elsewhere may have left the index of this pool in its waiter.
	 */
	for (int i = 0; i < pgpx_shared->nwaiter_slots; i++)
	{
		PgpxWaiter *waiter = &pgpx_waiters[i];

		if (waiter->pool == check->index &&
			(waiter->state == PGPX_WAITER_GRANTED ||
			 waiter->state == PGPX_WAITER_FAILED ||
			 waiter->state == PGPX_WAITER_EXPIRED))
			served++;
	}
	check_sum(check, "number of waiters", n + served, "that of the pool",
			  pool->nwaiters);
}

static void
check_pool(PgpxCheck *check, int index)
{
	PgpxPool   *pool = &pgpx_pools[index];

	LWLockAcquire(pool->lock, LW_SHARED);
	check->pool = pool;
	check->index = index;
	if (pool->damaged)
		pgpx_check_fault(check, "is out of service: %s", pool->last_error);
	check_counters(check, check_conns(check));
	check_waiters(check);
	check_served(check);
	if (pool->pool_id == 0 &&
		(pgpx_pool_total_locked(pool) != 0 || pool->nwaiters != 0))
		pgpx_check_fault(check, "pool slot %d has no pool, but connections or waiters", index);
	check->pool = NULL;
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
		 i = pgpx_conns[i].next, n++)
		if (pgpx_conns[i].state != PGPX_CONN_FREE || pgpx_conns[i].pool != -1)
			break;
	if (i != -1)
		n = -1;
	SpinLockRelease(&pgpx_shared->free_mutex);
	return n;
}

/*
 * Compare the tokens of a cap with the connections, and with the free list if it
 * is the cap over all pools (server: -1).
 */
static void
check_cap(PgpxCheck *check, PgpxCap *cap, int server)
{
	uint32		moves;
	uint32		moves_after;
	int			used = pgpx_cap_used(cap, &moves);
	int			counted = 0;
	int			nfree;

	/* wait for processes that are acquiring or releasing a token */
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		LWLockAcquire(pgpx_pools[i].lock, LW_SHARED);
		LWLockRelease(pgpx_pools[i].lock);
	}
	nfree = count_free_list();
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];

		LWLockAcquire(pool->lock, LW_SHARED);
		if (server < 0)
			counted += pgpx_pool_total_locked(pool) + pool->nbroken;
		else if (pool->server == server)
			counted += pgpx_pool_total_locked(pool);
		LWLockRelease(pool->lock);
	}
	(void) pgpx_cap_used(cap, &moves_after);
	if (moves_after != moves)
		return;
	if (used != counted)
		pgpx_check_fault(check, "cap of server slot %d (-1: of all pools) has %d tokens in use, but %d connections",
						 server, used, counted);
	if (server < 0 && nfree != pgpx_shared->max_connections - used)
		pgpx_check_fault(check, "free list has %d connections (-1: it is wrong), but %d are free",
						 nfree, pgpx_shared->max_connections - used);
}

void
pgpx_invariants_check(PgpxFaults *faults)
{
	PgpxCheck	check = {.faults = faults};

	memset(faults, 0, sizeof(*faults));
	for (int i = 0; i < pgpx_pools_end(); i++)
		check_pool(&check, i);
	check_cap(&check, &pgpx_shared->cap, -1);
	for (int i = 0; i < pgpx_pools_end(); i++)
		check_cap(&check, &pgpx_servers[i].cap, i);
	pgpx_lock_hooks->check(&check);
}
