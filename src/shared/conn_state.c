/*-------------------------------------------------------------------------
 *
 * conn_state.c
 *	  The state machine of a connection; conn_state.h has the diagram.
 *
 * pgpx_conn_set_state checks each transition against one table, and updates
 * list membership and counts with it.  No other function writes
 * PgpxConn.state, except pgpx_conn_free_all_locked at the end of a worker.
 *
 * Damage.  A transition that is not in the table, or a connection of another
 * pool, means that the shared state of a pool is wrong.  Then the pool is out of
 * service until its worker has restarted:
 *	- no connection of the pool changes its state, so none is leased twice and
 *	  no slot is reused;
 *	- checkouts fail (PX004), and waiting sessions continue to wait;
 *	- the worker of the pool restarts.  Each exit of a worker ends all leases and
 *	  frees all slots of its pools, whatever their states.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/conn_state.h"

#include "storage/latch.h"
#include "storage/spin.h"

#include "shared/cap.h"

/* Minimum interval between reminders that a worker is not running. */
#define REMIND_US (1000 * 1000)

#define BIT(s) (1u << (s))

/* The transition table: for each state, the set of states that may follow. */
static const uint32 edges[PGPX_CONN_NSTATES] = {
	[PGPX_CONN_FREE] = BIT(PGPX_CONN_CONNECTING),
	[PGPX_CONN_CONNECTING] = BIT(PGPX_CONN_IDLE) | BIT(PGPX_CONN_CANCELLING) |
		BIT(PGPX_CONN_CLOSING),
	[PGPX_CONN_IDLE] = BIT(PGPX_CONN_LEASED) | BIT(PGPX_CONN_CHECKING) |
		BIT(PGPX_CONN_CLOSING),
	[PGPX_CONN_RESET_PENDING] =
		BIT(PGPX_CONN_LEASED) | BIT(PGPX_CONN_RESETTING) |
		BIT(PGPX_CONN_CLOSING),
	[PGPX_CONN_LEASED] = BIT(PGPX_CONN_IDLE) | BIT(PGPX_CONN_RESET_PENDING) |
		BIT(PGPX_CONN_RESETTING) | BIT(PGPX_CONN_CANCELLING) |
		BIT(PGPX_CONN_CLOSING),
	[PGPX_CONN_RESETTING] = BIT(PGPX_CONN_IDLE) | BIT(PGPX_CONN_CANCELLING) |
		BIT(PGPX_CONN_CLOSING),
	[PGPX_CONN_CHECKING] = BIT(PGPX_CONN_IDLE) | BIT(PGPX_CONN_CLOSING),
	[PGPX_CONN_CANCELLING] = BIT(PGPX_CONN_RESETTING) | BIT(PGPX_CONN_CLOSING),
	[PGPX_CONN_CLOSING] = BIT(PGPX_CONN_FREE),
};

static const char *const state_names[PGPX_CONN_NSTATES] = {
	[PGPX_CONN_FREE] = "free",
	[PGPX_CONN_CONNECTING] = "connecting",
	[PGPX_CONN_IDLE] = "idle",
	[PGPX_CONN_RESET_PENDING] = "reset_pending",
	[PGPX_CONN_LEASED] = "leased",
	[PGPX_CONN_RESETTING] = "resetting",
	[PGPX_CONN_CHECKING] = "checking",
	[PGPX_CONN_CANCELLING] = "cancelling",
	[PGPX_CONN_CLOSING] = "closing",
};

StaticAssertDecl(PGPX_CONN_NSTATES <= 32, "a set of states must fit 32 bits");

static bool
has_edge(int from, PgpxConnState to)
{
	return from >= 0 && from < PGPX_CONN_NSTATES &&
		(edges[from] & BIT(to)) != 0;
}

const char *
pgpx_conn_state_name(int state)
{
	return state >= 0 && state < PGPX_CONN_NSTATES ? state_names[state] : "?";
}

/*
 * Take a pool out of service because its shared state is wrong, and have its
 * worker restart.  fault: a sentence.  Later faults are ignored.
 */
static void
condemn_pool_locked(PgpxPool *pool, const char *fault)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pool->worker];

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->damaged)
		return;
	pool->damaged = true;
	strlcpy(pool->last_error, fault, sizeof(pool->last_error));
	pool->last_error_at = pgpx_now();
	pool->last_sqlstate = ERRCODE_DATA_CORRUPTED;

	pg_atomic_write_u32(&slot->must_restart, 1);
	pgpx_worker_wake(pool->worker);
}

/*
 * Insert a connection by the time of its last use.  A connection that a
 * session releases goes to the head.  A connection that the worker has reset
 * or tested returns to its position, because neither is a use.
 */
static void
lru_insert(PgpxPool *pool, PgpxConn *conn)
{
	int			last = -1;

	for (int i = pool->lru.head;
		 i >= 0 && pgpx_conns[i].last_used > conn->last_used;
		 i = pgpx_conns[i].in_lru.next)
		last = i;
	pgpx_list_insert(&pool->lru, PGPX_LRU_LINKS, PGPX_CONN_INDEX(conn), last);
}

/*
 * PgpxConn.packed_activity: the low half of the lease id, the number of
 * statements of the lease, and the PgpxActivity.  They share one word so that
 * a holder whose lease was just revoked cannot write into the record of the
 * next lease.
 */
#define ACTIVITY_LEASE(lease_id) ((uint64) (uint32) (lease_id) << 32)
#define ACTIVITY_ONE_STATEMENT UINT64CONST(8)
#define ACTIVITY_STATEMENTS UINT64CONST(0xfffffff8)
#define ACTIVITY_STATE UINT64CONST(7)

static uint64
activity_statements(uint64 packed_activity)
{
	return (packed_activity & ACTIVITY_STATEMENTS) / ACTIVITY_ONE_STATEMENT;
}

void
pgpx_conn_begin_activity(PgpxConn *conn, uint64 lease_id)
{
	pg_atomic_write_u64(&conn->packed_activity,
						ACTIVITY_LEASE(lease_id) | PGPX_ACT_IDLE);
}

void
pgpx_conn_set_activity(PgpxConn *conn, uint64 lease_id, PgpxActivity activity,
					   bool statement)
{
	uint64		old = pg_atomic_read_u64(&conn->packed_activity);
	uint64		new;

	do
	{
		if (ACTIVITY_LEASE(old >> 32) != ACTIVITY_LEASE(lease_id))
			return;
		new = (old & ~ACTIVITY_STATE) | activity;
		if (statement && (old & ACTIVITY_STATEMENTS) != ACTIVITY_STATEMENTS)
			new += ACTIVITY_ONE_STATEMENT;
	} while (!pg_atomic_compare_exchange_u64(&conn->packed_activity, &old,
											 new));
}

PgpxActivity
pgpx_conn_activity(PgpxConn *conn)
{
	if (pg_atomic_read_u32(&conn->hung_up) != 0)
		return PGPX_ACT_BROKEN;
	return (PgpxActivity) (pg_atomic_read_u64(&conn->packed_activity) &
						   ACTIVITY_STATE);
}

uint64
pgpx_conn_statements(PgpxConn *conn)
{
	return conn->statements +
		activity_statements(pg_atomic_read_u64(&conn->packed_activity));
}

bool
pgpx_conn_set_state(PgpxPool *pool, PgpxConn *conn, PgpxConnState state,
					PgpxTime now)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));

	/*
	 * A forbidden transition means that the shared state of the pool is wrong.
	 * It is checked in production builds too: the cost is one load, and the
	 * alternative is one connection that two sessions have leased.
	 */
	if (pool->damaged)
		return false;
	if (conn->pool != PGPX_POOL_INDEX(pool) ||
		!has_edge(conn->state, state))
	{
		char		fault[PGPX_ERROR_LEN];

		snprintf(fault, sizeof(fault), "Connection %d of pool slot %d cannot go from state \"%s\" to \"%s\".",
				 PGPX_CONN_INDEX(conn), conn->pool,
				 pgpx_conn_state_name(conn->state),
				 pgpx_conn_state_name(state));
		condemn_pool_locked(pool, fault);
		return false;
	}

	if (pgpx_conn_is_free(conn))
		pgpx_list_remove(&pool->lru, PGPX_LRU_LINKS, PGPX_CONN_INDEX(conn));

	if (conn->state == PGPX_CONN_LEASED)
	{
		pg_atomic_write_u64(&conn->lease_id, 0);
		conn->statements +=
			activity_statements(pg_atomic_exchange_u64(&conn->packed_activity,
													   0));
		conn->holder.procno = -1;
		conn->holder.pid = 0;
		pool->nbroken -= conn->broken;
	}

	if (conn->state != PGPX_CONN_FREE)
		pool->count[conn->state]--;
	conn->state = state;
	conn->state_since = now;
	if (state != PGPX_CONN_FREE)
		pool->count[state]++;

	if (pgpx_conn_is_free(conn))
		lru_insert(pool, conn);
	return true;
}

/*
 * Remove the first connection from the free list and assign it to a pool.  The
 * pool has a permit of each cap, so the list is not empty.  Return NULL if it is
 * damaged.
 */
static PgpxConn *
pop_free(PgpxPool *pool)
{
	PgpxConn   *conn = NULL;
	int			head;

	SpinLockAcquire(&pgpx_shared->free_mutex);
	head = pgpx_shared->free_head;
	if (head >= 0 && head < pgpx_shared->max_connections &&
		pgpx_conns[head].pool < 0 && pgpx_conns[head].state == PGPX_CONN_FREE)
	{
		conn = &pgpx_conns[head];
		pgpx_shared->free_head = conn->in_lru.next;
		conn->pool = PGPX_POOL_INDEX(pool);
		if (head >= pgpx_conns_end())
			pg_atomic_write_u32(&pgpx_shared->conns_end, head + 1);
	}
	SpinLockRelease(&pgpx_shared->free_mutex);
	return conn;
}

PgpxConn *
pgpx_conn_alloc_locked(PgpxPool *pool)
{
	PgpxConn   *conn;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (!pgpx_cap_acquire_locked(pool))
		return NULL;
	conn = pop_free(pool);
	if (conn == NULL)
	{
		pgpx_cap_release(pool, false);
		condemn_pool_locked(pool, "The list of free connection slots led to one that is in use.");
		return NULL;
	}

	pgpx_list_insert(&pool->conns, PGPX_CONN_LINKS, PGPX_CONN_INDEX(conn),
					 pool->conns.tail);
	conn->generation =
		pg_atomic_fetch_add_u64(&pgpx_shared->next_id, 1);

	/* "version" and the fields after it describe the remote session */
	memset((char *) conn + offsetof(PgpxConn, version), 0,
		   sizeof(PgpxConn) - offsetof(PgpxConn, version));
	conn->version = pool->version;
	conn->holder.procno = -1;
	pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_NONE);
	pg_atomic_write_u32(&conn->cancel_lost, 0);
	pg_atomic_write_u32(&conn->hung_up, 0);

	return pgpx_conn_set_state(pool, conn, PGPX_CONN_CONNECTING, pgpx_now()) ?
		conn : NULL;
}

void
pgpx_conn_free_locked(PgpxPool *pool, PgpxConn *conn)
{
	bool		broken = conn->broken;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_FREE, pgpx_now()))
		return;
	pgpx_list_remove(&pool->conns, PGPX_CONN_LINKS, PGPX_CONN_INDEX(conn));

	SpinLockAcquire(&pgpx_shared->free_mutex);
	conn->pool = -1;
	conn->in_lru.next = pgpx_shared->free_head;
	pgpx_shared->free_head = PGPX_CONN_INDEX(conn);
	SpinLockRelease(&pgpx_shared->free_mutex);

	/* permits last: a process with a permit must find a connection in the list */
	pgpx_cap_release(pool, broken);
	pgpx_pool_notify_end_locked(pool);
}

void
pgpx_conn_free_all_locked(PgpxPool *pool)
{
	int			n = 0;
	int			broken = 0;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	SpinLockAcquire(&pgpx_shared->free_mutex);

	/* the free list may be damaged, too: link all connections without a pool */
	pgpx_shared->free_head = -1;
	for (int i = pgpx_shared->max_connections - 1; i >= 0; i--)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool == PGPX_POOL_INDEX(pool))
		{
			pg_atomic_write_u64(&conn->lease_id, 0);
			pg_atomic_write_u64(&conn->packed_activity, 0);
			conn->holder.procno = -1;
			conn->holder.pid = 0;
			conn->pool = -1;
			broken += conn->broken;
			n++;
		}
		if (conn->pool >= 0)
			continue;
		conn->state = PGPX_CONN_FREE;
		conn->in_lru.next = pgpx_shared->free_head;
		pgpx_shared->free_head = i;
	}
	SpinLockRelease(&pgpx_shared->free_mutex);

	memset(pool->count, 0, sizeof(pool->count));
	pool->lru.head = pool->lru.tail = -1;
	pool->conns.head = pool->conns.tail = -1;
	while (n-- > 0)
		pgpx_cap_release(pool, n < broken);
	pool->nbroken = 0;
	pool->damaged = false;
	pgpx_pool_notify_end_locked(pool);
}

void
pgpx_process_wake(int procno)
{
	SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

void
pgpx_worker_wake(int worker)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[worker];

	if (pg_atomic_read_u64(&slot->incarnation) != 0)
		pgpx_process_wake((int) pg_atomic_read_u32(&slot->procno));
}

void
pgpx_worker_wake_all(void)
{
	for (int i = 0; i < pgpx_shared->nworkers; i++)
		pgpx_worker_wake(i);
}

bool
pgpx_worker_is_missing(int worker)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[worker];
	uint64		now = pgpx_now();
	uint64		before = pg_atomic_read_u64(&slot->missed_at);

	if (pg_atomic_read_u64(&slot->incarnation) != 0)
		return false;

	if (now - before >= REMIND_US &&
		pg_atomic_compare_exchange_u64(&slot->missed_at, &before, now))
		pgpx_remind_postmaster();
	return true;
}

void
pgpx_conn_notify_worker(PgpxConn *conn, int worker)
{
	int			index = PGPX_CONN_INDEX(conn);
	int			word = worker * PGPX_WORK_WORDS + index / 32;

	pg_atomic_fetch_or_u32(&pgpx_work_bits[word], 1u << (index % 32));
	pgpx_worker_wake(worker);
}

void
pgpx_worker_wake_soon(int worker)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[worker];

	/*
	 * The stores of the caller precede the read of "ticking".  Pairs with the
	 * barrier of pgpx_maintenance_run, which clears "ticking" before it
	 * checks for work.  Otherwise each of the two could miss what the other
	 * has stored.
	 */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&slot->ticking) == 0 &&
		(int) pg_atomic_read_u32(&slot->procno) != MyProcNumber)
		pgpx_worker_wake(worker);
}

void
pgpx_wake_add(PgpxWake *wake, int procno)
{
	if (wake->n < PGPX_WAKE_MAX)
		wake->procno[wake->n++] = procno;
	else
		pgpx_process_wake(procno);
}

void
pgpx_wake_flush(PgpxWake *wake)
{
	for (int i = 0; i < wake->n; i++)
		pgpx_process_wake(wake->procno[i]);
	wake->n = 0;
}

int
pgpx_pool_total_locked(const PgpxPool *pool)
{
	int			total = -pool->nbroken;

	Assert(LWLockHeldByMe(pool->lock));
	for (int s = PGPX_CONN_FREE + 1; s < PGPX_CONN_NSTATES; s++)
		total += pool->count[s];
	return total;
}

bool
pgpx_pool_is_retired_locked(const PgpxPool *pool)
{
	static const PgpxFingerprint none;

	Assert(LWLockHeldByMe(pool->lock));
	return memcmp(&pool->fingerprint, &none, sizeof(none)) == 0;
}

bool
pgpx_pool_is_empty_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->conns.head < 0 && pool->nwaiters == 0 && !pool->damaged;
}

bool
pgpx_pool_has_ended_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pgpx_pool_is_empty_locked(pool) && pgpx_pool_is_retired_locked(pool);
}

void
pgpx_pool_notify_end_locked(PgpxPool *pool)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (!pgpx_pool_has_ended_locked(pool))
		return;
	pg_atomic_fetch_add_u32(&pgpx_shared->pools_changed, 1);
	pgpx_worker_wake(pool->worker);
}
