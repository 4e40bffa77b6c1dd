/*-------------------------------------------------------------------------
 *
 * invariants.c
 *	  Verification of the shared state.
 *
 * Shared memory only.  Memory is allocated before the first lock is acquired,
 * and faults are written into fixed buffers, so no error is raised under a
 * lock.
 *
 * Pools.  Each pool is checked under its lock, in shared mode, so that its
 * connections, queue and counters do not change.  A connection enters and
 * leaves a pool under that pool's lock.  So "conn->pool is this pool" is
 * reliable for the connections of the pool, and never true for other
 * connections.
 *
 * Free list.  It belongs to no pool.  A process that moves a connection in or
 * out of it holds a pool lock, and for an instant the connection is FREE and
 * in no list.  check_free describes how that is distinguished from a lost
 * connection.
 *
 * Caps.  A token and its connection are acquired and released in one critical
 * section under the lock of their pool.  The check reads the tokens of a cap,
 * acquires and releases each pool lock once, and counts the connections.  If
 * the tokens have not changed in that time, the two numbers must be equal.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/invariants.h"

#include "storage/procarray.h"
#include "storage/spin.h"

#include "base/debug_point.h"
#include "shared/lock_hooks.h"
#include "shared/pool.h"
#include "shared/registry.h"

static void check_caps(PgpxCheck *check);
static int	check_waiters(PgpxCheck *check);

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

static void
check_lease(PgpxCheck *check, PgpxConn *conn)
{
	int			index = PGPX_CONN_INDEX(conn);
	uint64		lease_id = pg_atomic_read_u64(&conn->lease_id);

	if (conn->state != PGPX_CONN_LEASED)
	{
		if (lease_id != 0 || conn->owner_procno != -1 || conn->owner_pid != 0)
			pgpx_check_fault(check, "connection %d is %s, but has lease " UINT64_FORMAT " and holder %d",
							 index, pgpx_conn_state_name(conn->state), lease_id,
							 conn->owner_pid);
		return;
	}

	if (lease_id == 0 ||
		lease_id >= pg_atomic_read_u64(&pgpx_shared->next_lease))
		pgpx_check_fault(check, "connection %d is leased, but its lease is " UINT64_FORMAT,
						 index, lease_id);
	if (!pgpx_check_is_alive(conn->owner_procno, conn->owner_pid))
		pgpx_check_fault(check, "lease " UINT64_FORMAT " on connection %d belongs to process %d (slot %d), which does not exist",
						 lease_id, index, conn->owner_pid, conn->owner_procno);
	if (check->nleases < pgpx_shared->max_connections)
		check->leases[check->nleases++] = lease_id;
}

static void
check_conn(PgpxCheck *check, PgpxConn *conn)
{
	PgpxPool   *pool = check->pool;
	int			index = PGPX_CONN_INDEX(conn);
	const char *state = pgpx_conn_state_name(conn->state);

	if (conn->generation == 0 ||
		conn->generation >= pg_atomic_read_u64(&pgpx_shared->next_generation))
		pgpx_check_fault(check, "connection %d has generation " UINT64_FORMAT,
						 index, conn->generation);
	if (conn->version > pool->version)
		pgpx_check_fault(check, "connection %d is of version " UINT64_FORMAT ", the pool of " UINT64_FORMAT,
						 index, conn->version, pool->version);
	if ((conn->state == PGPX_CONN_CONNECTING && conn->opened_at != 0) ||
		(conn->state != PGPX_CONN_CONNECTING && conn->opened_at == 0 &&
		 conn->state != PGPX_CONN_CLOSING &&
		 (conn->state != PGPX_CONN_CANCELLING ||
		  conn->close_reason == PGPX_CLOSE_NONE)))
		pgpx_check_fault(check, "connection %d is %s, but was opened at " INT64_FORMAT,
						 index, state, conn->opened_at);
	if ((conn->state == PGPX_CONN_IDLE && conn->unread_reset != 0) ||
		(conn->state == PGPX_CONN_RESET_PENDING && conn->unread_reset <= 0))
		pgpx_check_fault(check, "connection %d is %s, but %d answers to a reset are unread",
						 index, state, conn->unread_reset);
	if (conn->state == PGPX_CONN_CLOSING &&
		(conn->close_reason <= PGPX_CLOSE_NONE ||
		 conn->close_reason >= PGPX_CLOSE_NREASONS))
		pgpx_check_fault(check, "connection %d is closing without a valid reason (%d)",
						 index, conn->close_reason);
	check_lease(check, conn);
}

/*
 * Check that the LRU list contains exactly the free connections, in the order
 * of their last use.  If all links are right, a walk cannot reach a
 * connection twice, so counting suffices.
 */
static void
check_lru(PgpxCheck *check)
{
	const PgpxPool *pool = check->pool;
	int			expected = pool->count[PGPX_CONN_IDLE] +
		pool->count[PGPX_CONN_RESET_PENDING];
	int			last = -1;
	int			n = 0;

	for (int i = pool->lru_head; i != -1; i = pgpx_conns[i].next)
	{
		PgpxConn   *conn;

		if (i < 0 || i >= pgpx_shared->max_connections)
		{
			pgpx_check_fault(check, "list of free connections refers to connection %d", i);
			return;
		}
		conn = &pgpx_conns[i];
		if (conn->pool != check->index ||
			(conn->state != PGPX_CONN_IDLE &&
			 conn->state != PGPX_CONN_RESET_PENDING))
		{
			pgpx_check_fault(check, "connection %d in the list of free connections is %s and belongs to pool slot %d",
							 i, pgpx_conn_state_name(conn->state),
							 conn->pool);
			return;
		}
		if (conn->prev != last)
		{
			pgpx_check_fault(check, "connection %d in the list of free connections is linked to %d before it, not to %d",
							 i, conn->prev, last);
			return;
		}
		if (last >= 0 && conn->last_used > pgpx_conns[last].last_used)
			pgpx_check_fault(check, "connection %d in the list of free connections was used later than connection %d before it",
							 i, last);
		last = i;
		n++;
	}
	if (pool->lru_tail != last)
		pgpx_check_fault(check, "list of free connections ends with %d, not with %d",
						 pool->lru_tail, last);
	if (n != expected)
		pgpx_check_fault(check, "list of free connections has %d, but %d are free",
						 n, expected);
}

/* Check that the list of all connections of the pool has "expected" members. */
static void
check_list(PgpxCheck *check, int expected)
{
	int			last = -1;
	int			n = 0;

	for (int i = check->pool->conn_head; i >= 0 && n <= expected;
		 i = pgpx_conns[i].pool_next)
	{
		if (i >= pgpx_shared->max_connections ||
			pgpx_conns[i].pool != check->index ||
			pgpx_conns[i].pool_prev != last)
		{
			pgpx_check_fault(check, "list of connections is wrong at connection %d",
							 i);
			return;
		}
		last = i;
		n++;
	}
	if (n != expected || last != check->pool->conn_tail)
		pgpx_check_fault(check, "list of connections has %d, but the pool has %d",
						 n, expected);
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
	int			current = 0;
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
		else if (conn->version == pool->version)
			current++;
		check_conn(check, conn);
	}

	for (int s = 0; s < PGPX_CONN_NSTATES; s++)
		if (pool->count[s] != count[s])
			pgpx_check_fault(check, "%d connections are %s, but the pool counts %d",
							 count[s], pgpx_conn_state_name(s), pool->count[s]);
	if (pool->nbroken != broken)
		pgpx_check_fault(check, "%d connections are broken, but the pool counts %d",
						 broken, pool->nbroken);
	check_lru(check);
	check_list(check, n);

	/* connections of older versions may exceed the new cap */
	if (current > pool->version_cap)
		pgpx_check_fault(check, "%d connections, but pool_size and max_overflow allow %d",
						 current, pool->version_cap);
	return open;
}

/*
 * Check that no session waits although the pool has a connection for it: a free
 * one that needs no test, or a free one whose test could begin, because fewer
 * connections are being tested than sessions wait.
 */
static void
check_served(PgpxCheck *check, int waiting)
{
	PgpxPool   *pool = check->pool;

	if (waiting == 0 || pgpx_pool_is_paused(pool))
		return;
	for (int i = 0; i < pgpx_conns_end(); i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool == check->index &&
			(conn->state == PGPX_CONN_IDLE ||
			 conn->state == PGPX_CONN_RESET_PENDING) &&
			conn->version == pool->version &&
			pg_atomic_read_u32(&conn->hung_up) == 0 &&
			(pool->count[PGPX_CONN_CHECKING] < waiting ||
			 conn->state == PGPX_CONN_RESET_PENDING ||
			 !pgpx_pool_must_test_locked(pool, conn,
										 pgpx_pool_waits_since_locked(pool),
										 pgpx_now())))
			pgpx_check_fault(check, "%d waiters are queued while connection %d is %s",
							 waiting, i, pgpx_conn_state_name(conn->state));
	}
}

static void
check_sum(PgpxCheck *check, const char *left, uint64 is, const char *right,
		  uint64 expected)
{
	if (is != expected)
		pgpx_check_fault(check, "%s is " UINT64_FORMAT ", but %s is " UINT64_FORMAT,
						 left, is, right, expected);
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
	if (stats->checkouts < stats->hits + stats->granted)
		pgpx_check_fault(check, "checkouts is " UINT64_FORMAT ", but hits is " UINT64_FORMAT " and granted " UINT64_FORMAT,
						 stats->checkouts, stats->hits, stats->granted);
}

static void
check_pool(PgpxCheck *check, int index)
{
	PgpxPool   *pool = &pgpx_pools[index];
	int			open;
	int			waiting;

	LWLockAcquire(pool->lock, LW_SHARED);
	check->pool = pool;
	check->index = index;
	if (pool->damaged)
		pgpx_check_fault(check, "is out of service: %s", pool->last_error);
	open = check_conns(check);
	waiting = check_waiters(check);
	check_served(check, waiting);
	check_counters(check, open);
	if (pool->pool_id == 0 &&
		(pgpx_pool_total_locked(pool) != 0 || pool->nbroken != 0 ||
		 pool->nwaiters != 0))
		pgpx_check_fault(check, "pool slot %d has no pool, but connections or waiters", index);
	check->pool = NULL;
	LWLockRelease(pool->lock);
}

/*
 * Walk the free list.  The first walk suspects every FREE connection that is
 * not in the list.  A later walk keeps only the suspects that are missing again
 * and were not used in between.  Return the number of suspects.
 */
static int
walk_free(PgpxCheck *check, bool first)
{
	int			max = pgpx_shared->max_connections;
	int			n = 0;
	int			counted;
	int			wrong = -1;
	int			nsuspects = 0;

	memset(check->in_list, 0, max * sizeof(bool));
	SpinLockAcquire(&pgpx_shared->free_mutex);
	for (int i = pgpx_shared->free_head; i != -1 && wrong < 0;)
	{
		if (i < 0 || i >= max || check->in_list[i] ||
			pgpx_conns[i].state != PGPX_CONN_FREE || pgpx_conns[i].pool != -1)
			wrong = i < 0 ? max : i;
		else
		{
			check->in_list[i] = true;
			n++;
			i = pgpx_conns[i].next;
		}
	}
	counted = pgpx_shared->nfree;
	SpinLockRelease(&pgpx_shared->free_mutex);

	if (wrong >= 0)
	{
		pgpx_check_fault(check, "free list refers to connection %d, which is not free or occurs twice",
						 wrong);
		return 0;
	}
	if (n != counted)
		pgpx_check_fault(check, "%d connections are in the free list, but it counts %d",
						 n, counted);

	for (int i = 0; i < max; i++)
	{
		PgpxSuspect *suspect = &check->suspects[i];
		PgpxConn   *conn = &pgpx_conns[i];
		bool		missing = !check->in_list[i] &&
			conn->state == PGPX_CONN_FREE;
		bool		same = suspect->generation == conn->generation &&
			suspect->state_since == conn->state_since;

		suspect->missing = missing &&
			(first || (suspect->missing && same));
		suspect->generation = conn->generation;
		suspect->state_since = conn->state_since;
		if (suspect->missing)
			nsuspects++;
	}
	return nsuspects;
}

/*
 * Wait until every process that held a pool lock at the call has released it.
 */
static void
await_lock_holders(void)
{
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		LWLockAcquire(pgpx_pools[i].lock, LW_SHARED);
		LWLockRelease(pgpx_pools[i].lock);
	}
}

/*
 * Report FREE connections that are in no list.  A connection is in no list
 * for an instant when it is freed and again when it is allocated, both under
 * a pool lock, and an allocation assigns a new generation.  So at least one
 * of three walks finds a sound connection in the list or with another
 * generation, if each pool lock is acquired and released between the walks.
 */
static void
check_free(PgpxCheck *check, int nsuspects)
{
	for (int walk = 0; walk < 2 && nsuspects > 0; walk++)
	{
		await_lock_holders();
		nsuspects = walk_free(check, false);
	}
	if (nsuspects == 0)
		return;
	for (int i = 0; i < pgpx_shared->max_connections; i++)
		if (check->suspects[i].missing)
			pgpx_check_fault(check, "connection %d is free, but not in the free list", i);
}

/* Check that each pool is found by its key. */
static void
check_registry(PgpxCheck *check)
{
	LWLockAcquire(pgpx_shared->registry_lock, LW_SHARED);
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (pgpx_pools[i].pool_id != 0 &&
			pgpx_pool_find_locked(&pgpx_pools[i].key) != i)
			pgpx_check_fault(check, "pool in slot %d is not found by its key", i);
	LWLockRelease(pgpx_shared->registry_lock);
}

static int
compare_leases(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * Check that no lease is on two connections.  Lease ids are never reused, so
 * this holds for leases that were seen at different times, too.
 */
static void
check_leases(PgpxCheck *check)
{
	qsort(check->leases, check->nleases, sizeof(uint64), compare_leases);
	for (int i = 1; i < check->nleases; i++)
		if (check->leases[i] == check->leases[i - 1])
			pgpx_check_fault(check, "lease " UINT64_FORMAT " is on two connections",
							 check->leases[i]);
}

static void *
alloc_array(Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext,
								  mul_size(pgpx_shared->max_connections, size));
}

void
pgpx_invariants_check(PgpxFaults *faults)
{
	PgpxCheck	check = {.faults = faults};
	int			nsuspects;

	memset(faults, 0, sizeof(*faults));
	check.leases = alloc_array(sizeof(uint64));
	check.in_list = alloc_array(sizeof(bool));
	check.suspects = alloc_array(sizeof(PgpxSuspect));
	memset(check.suspects, 0,
		   pgpx_shared->max_connections * sizeof(PgpxSuspect));

	nsuspects = walk_free(&check, true);
	for (int i = 0; i < pgpx_pools_end(); i++)
		check_pool(&check, i);
	check_free(&check, nsuspects);
	check_leases(&check);
	check_registry(&check);
	check_caps(&check);
	pgpx_lock_hooks->check(&check);

	pfree(check.leases);
	pfree(check.in_list);
	pfree(check.suspects);
}

/*
 * Check that a granted waiter has the lease that it records.
 *
 * The lease may have been revoked between grant and dequeue.  Then its reason
 * is recorded with the waiter (for the last PGPX_REVOKED_MAX leases of a
 * process), or the slot has a connection that was opened after the wait began.
 */
static void
check_granted(PgpxCheck *check, PgpxWaiter *waiter)
{
	int			index = PGPX_WAITER_INDEX(waiter);
	PgpxConn   *conn;

	if (waiter->conn < 0 || waiter->conn >= pgpx_shared->max_connections)
	{
		pgpx_check_fault(check, "waiter %d was granted connection %d", index, waiter->conn);
		return;
	}

	conn = &pgpx_conns[waiter->conn];
	if (conn->pool != check->index)
		return;
	if (pg_atomic_read_u64(&conn->lease_id) == waiter->lease_id)
	{
		if (conn->state != PGPX_CONN_LEASED || conn->owner_procno != index ||
			conn->owner_pid != waiter->pid)
			pgpx_check_fault(check, "waiter %d of process %d was granted lease " UINT64_FORMAT ", which process %d holds",
							 index, waiter->pid, waiter->lease_id,
							 conn->owner_pid);
	}
	else if (pgpx_waiter_revoke_reason(index,
									   waiter->lease_id) == PGPX_REVOKE_NONE &&
			 conn->opened_at != 0 && conn->opened_at < waiter->since)
		pgpx_check_fault(check, "waiter %d of process %d was granted lease " UINT64_FORMAT ", but connection %d has lease " UINT64_FORMAT,
						 index, waiter->pid, waiter->lease_id, waiter->conn,
						 pg_atomic_read_u64(&conn->lease_id));
}

/*
 * Check the links, the order and the processes of the queue.  Return its
 * length.
 */
static int
check_queue(PgpxCheck *check)
{
	PgpxPool   *pool = check->pool;
	int			last = -1;
	int			n = 0;

	for (int i = pool->queue_head; i != -1; i = pgpx_waiters[i].next)
	{
		PgpxWaiter *waiter;

		if (i < 0 || i >= pgpx_shared->nwaiter_slots)
		{
			pgpx_check_fault(check, "queue refers to waiter %d", i);
			return n;
		}
		waiter = &pgpx_waiters[i];
		if (waiter->pool != check->index ||
			waiter->state != PGPX_WAITER_WAITING)
		{
			pgpx_check_fault(check, "waiter %d in the queue is in state %d and belongs to pool slot %d",
							 i, waiter->state, waiter->pool);
			return n;
		}
		if (waiter->prev != last)
		{
			pgpx_check_fault(check, "waiter %d in the queue is linked to %d before it, not to %d",
							 i, waiter->prev, last);
			return n;
		}
		if (last >= 0 && waiter->position <= pgpx_waiters[last].position)
			pgpx_check_fault(check, "waiter %d with position " UINT64_FORMAT " is queued behind position " UINT64_FORMAT,
							 i, waiter->position, pgpx_waiters[last].position);
		if (!pgpx_check_is_alive(i, waiter->pid))
			pgpx_check_fault(check, "waiter %d belongs to process %d, which does not exist",
							 i, waiter->pid);
		last = i;
		n++;
	}
	if (pool->queue_tail != last)
		pgpx_check_fault(check, "queue ends with waiter %d, not with %d",
						 pool->queue_tail, last);
	if (pgpx_pool_has_waiting_bit(pool) != (n > 0))
		pgpx_check_fault(check, "%d waiters are in the queue, but its bit in pgpx_waiting_bits says otherwise",
						 n);
	if (pool->nwaiting != n)
		pgpx_check_fault(check, "%d waiters are in the queue, but the pool counts %d",
						 n, pool->nwaiting);
	return n;
}

/* Check all waiters of the pool.  Return the length of its queue. */
static int
check_waiters(PgpxCheck *check)
{
	PgpxPool   *pool = check->pool;
	int			waiting = check_queue(check);
	int			served = 0;

	/*
	 * Only the queue identifies WAITING waiters: a session that is about to
	 * enqueue elsewhere may have left the index of this pool in its waiter.
	 */
	for (int i = 0; i < pgpx_shared->nwaiter_slots; i++)
	{
		PgpxWaiter *waiter = &pgpx_waiters[i];

		if (waiter->pool != check->index ||
			(waiter->state != PGPX_WAITER_GRANTED &&
			 waiter->state != PGPX_WAITER_FAILED &&
			 waiter->state != PGPX_WAITER_EXPIRED))
			continue;
		served++;
		if (waiter->state == PGPX_WAITER_GRANTED)
			check_granted(check, waiter);
	}
	if (pool->nwaiters != waiting + served)
		pgpx_check_fault(check, "%d waiters are queued and %d have left the queue, but the pool counts %d",
						 waiting, served, pool->nwaiters);
	return waiting;
}

#define ROUNDS 20				/* attempts to read caps whose tokens keep
								 * changing */

/* Tokens of a cap before the connections were counted. */
typedef struct PgpxCapSeen
{
	bool		done;
	int			used;
	uint32		moves;
	int			counted;
} PgpxCapSeen;

static void
read_cap(PgpxCap *cap, PgpxCapSeen *seen)
{
	seen->used = pgpx_cap_used(cap, &seen->moves);
	seen->counted = 0;
}

static void
compare_tokens(PgpxCheck *check, PgpxCap *cap, PgpxCapSeen *seen,
			   const char *what, int slot)
{
	uint32		moves;

	if (seen->done)
		return;
	pgpx_cap_used(cap, &moves);
	if (moves != seen->moves)
		return;
	seen->done = true;
	if (seen->used != seen->counted)
		pgpx_check_fault(check, "%s (slot %d) has %d tokens in use, but %d connections",
						 what, slot, seen->used, seen->counted);
}

/* Check the tokens of the caps over several pools. */
static void
check_caps(PgpxCheck *check)
{
	int			n = pgpx_shared->max_pools;
	PgpxCapSeen all = {0};
	PgpxCapSeen *seen = palloc0(mul_size(n, sizeof(PgpxCapSeen)));
	bool		done = false;

	for (int round = 0; round < ROUNDS && !done; round++)
	{
		read_cap(&pgpx_shared->cap, &all);
		for (int i = 0; i < n; i++)
			read_cap(&pgpx_servers[i].cap, &seen[i]);

		/* wait for processes that are acquiring or releasing a token */
		await_lock_holders();
		for (int i = 0; i < n; i++)
		{
			PgpxPool   *pool = &pgpx_pools[i];
			int			total;

			LWLockAcquire(pool->lock, LW_SHARED);
			total = pgpx_pool_total_locked(pool);
			all.counted += total + pool->nbroken;
			if (total > 0)
				seen[pool->server].counted += total;
			LWLockRelease(pool->lock);
		}

		compare_tokens(check, &pgpx_shared->cap, &all, "max_connections", 0);
		done = all.done;
		for (int i = 0; i < n; i++)
		{
			compare_tokens(check, &pgpx_servers[i].cap, &seen[i], "server", i);
			done = done && seen[i].done;
		}
	}
	pfree(seen);
}
