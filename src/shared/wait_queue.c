/*-------------------------------------------------------------------------
 *
 * wait_queue.c
 *	  The queue of waiters of a pool; wait_queue.h has the diagram.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/wait_queue.h"

#include "base/backoff.h"
#include "base/debug_point.h"
#include "shared/pool.h"

/*
 * How often a leaving waiter checks whether its pending statement was sent
 * (first and maximum interval), and for how long.  The granter does nothing
 * that blocks, but it may be stopped or not be scheduled.
 */
#define SENDING_US 20
#define SENDING_LATER_US 1000
#define SENDING_MAX_US (1000 * 1000)

void
pgpx_pending_statement_set(const char *messages, size_t len)
{
	PgpxWaiter *waiter = pgpx_my_waiter();

	Assert(waiter->state == PGPX_WAITER_NONE);

	/* clear the previous statement: it may contain private values */
	if (waiter->pending_len > 0)
		memset(PGPX_PENDING_OF(waiter), 0, waiter->pending_len);
	waiter->pending_len = 0;
	if (len > PGPX_PENDING_MAX)
		return;
	if (len > 0)
		memcpy(PGPX_PENDING_OF(waiter), messages, len);
	waiter->pending_len = len;
}

bool
pgpx_pending_statement_record(const PgpxHandOver *hand_over,
							  PgpxPendingState how)
{
	uint32		expected = hand_over->pending_state;

	return pg_atomic_compare_exchange_u32(&hand_over->waiter->pending_state,
										  &expected,
										  PGPX_PENDING_WITH(expected, how));
}

/*
 * Wait while the pending statement is being sent.  The caller must hold the
 * pool lock, which is released during the wait.  Return false if the statement
 * was abandoned.
 */
static bool
await_sender(PgpxPool *pool, PgpxWaiter *waiter)
{
	long		pause = SENDING_US;
	PgpxTime	until = 0;

	while (pgpx_waiter_pending_state(waiter) == PGPX_PENDING_SENDING)
	{
		uint32		word = pg_atomic_read_u32(&waiter->pending_state);
		uint32		abandoned = PGPX_PENDING_WITH(word, PGPX_PENDING_ABANDONED);

		if (until == 0)
			until = pgpx_now() + SENDING_MAX_US;
		else if (pgpx_now() >= until &&
				 PGPX_PENDING_STATE(word) == PGPX_PENDING_SENDING &&
				 pg_atomic_compare_exchange_u32(&waiter->pending_state, &word,
												abandoned))
			return false;
		LWLockRelease(pool->lock);
		pg_usleep(pause);
		pause = pgpx_backoff_next(pause, SENDING_US, SENDING_LATER_US);
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	}
	return true;
}

int
pgpx_pool_next_waiting(int pool)
{
	int			end = pgpx_pools_end();

	while (++pool < end)
	{
		uint32		bits = pg_atomic_read_u32(&pgpx_waiting_bits[pool / 32]) >>
			(pool % 32);

		if (bits != 0)
			return pool + pg_rightmost_one_pos32(bits);
		pool |= 31;				/* the last one of this word */
	}
	return -1;
}

static void
queue_insert(PgpxPool *pool, PgpxWaiter *waiter)
{
	int			index = PGPX_POOL_INDEX(pool);
	int			after = pool->queue.tail;
	int			leased = pgpx_pool_count_leased_locked(pool);

	if (pool->nwaiting == 0)
	{
		pool->queued_since = waiter->since;
		pool->lacks = 0;
		pg_atomic_fetch_or_u32(&pgpx_waiting_bits[index / 32],
							   UINT32_C(1) << (index % 32));
	}

	/* after the tail, unless the waiter keeps an earlier position */
	while (after >= 0 && pgpx_waiters[after].position > waiter->position)
		after = pgpx_waiters[after].in_queue.prev;
	pgpx_list_insert(&pool->queue, PGPX_QUEUE_LINKS, PGPX_WAITER_INDEX(waiter),
					 after);
	pool->nwaiting++;
	pool->peaks.waiting = Max(pool->peaks.waiting, pool->nwaiting);
	pool->peaks.callers = Max(pool->peaks.callers, leased + pool->nwaiting);
}

static void
queue_remove(PgpxPool *pool, PgpxWaiter *waiter)
{
	int			index = PGPX_POOL_INDEX(pool);

	pgpx_list_remove(&pool->queue, PGPX_QUEUE_LINKS, PGPX_WAITER_INDEX(waiter));
	if (--pool->nwaiting > 0)
		return;
	pg_atomic_fetch_and_u32(&pgpx_waiting_bits[index / 32],
							~(UINT32_C(1) << (index % 32)));

	/* the permits that this pool lacked are for other pools now */
	if (pool->lacks > 0)
		pgpx_worker_wake_all();
}

PgpxWaiter *
pgpx_waiter_enqueue_locked(PgpxPool *pool, const PgpxHolder *holder,
						   PgpxTime since, PgpxTime waited_before,
						   PgpxTime deadline, uint64 position)
{
	PgpxWaiter *waiter = pgpx_my_waiter();
	uint32		pending;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	Assert(waiter->state == PGPX_WAITER_NONE);

	waiter->pool = PGPX_POOL_INDEX(pool);
	waiter->wait_id = pg_atomic_fetch_add_u64(&pgpx_shared->next_id, 1);
	waiter->position = position != 0 ? position : waiter->wait_id;
	waiter->options_version = pool->options_version;
	waiter->holder = *holder;
	waiter->since = since;
	waiter->waited_before = waited_before;
	waiter->deadline = deadline;
	pending = pg_atomic_read_u32(&waiter->pending_state);
	pending = PGPX_PENDING_NEXT(pending, waiter->pending_len > 0 ?
								PGPX_PENDING_OPEN : PGPX_PENDING_NONE);
	pg_atomic_write_u32(&waiter->pending_state, pending);
	waiter->state = PGPX_WAITER_WAITING;

	queue_insert(pool, waiter);
	pool->nwaiters++;
	if (position == 0)
		pool->enqueued++;
	return waiter;
}

bool
pgpx_waiter_grant_locked(PgpxPool *pool, PgpxWaiter *waiter, PgpxConn *conn,
						 PgpxWake *wake)
{
	PgpxTime	now = pgpx_now();
	uint64		lease_id;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	lease_id = pgpx_pool_lease_locked(pool, conn, &waiter->holder, now,
									  now - waiter->since);
	if (lease_id == 0)
		return false;
	queue_remove(pool, waiter);
	waiter->state = PGPX_WAITER_GRANTED;
	waiter->granted_at = now;
	waiter->conn = PGPX_CONN_INDEX(conn);
	waiter->lease_id = lease_id;
	pgpx_wake_add(wake, PGPX_WAITER_INDEX(waiter));
	return true;
}

void
pgpx_waiter_fail_locked(PgpxPool *pool, PgpxWaiter *waiter, int sqlstate,
						const char *text, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	queue_remove(pool, waiter);
	waiter->state = PGPX_WAITER_FAILED;
	waiter->sqlstate = sqlstate;
	strlcpy(waiter->text, text, sizeof(waiter->text));
	pgpx_wake_add(wake, PGPX_WAITER_INDEX(waiter));
}

PgpxWaiter *
pgpx_pool_first_waiter_locked(PgpxPool *pool, PgpxTime now)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	while (pool->queue.head >= 0)
	{
		PgpxWaiter *first = &pgpx_waiters[pool->queue.head];

		if (first->deadline == 0 || now < first->deadline)
			return first;
		queue_remove(pool, first);
		first->state = PGPX_WAITER_EXPIRED;
	}
	return NULL;
}

/*
 * Histogram bucket of a wait: 0 for less than 1 us, then one for each power
 * of two.
 */
static int
histogram_bucket(PgpxTime waited)
{
	int			bucket;

	if (waited < 1)
		return 0;
	bucket = pg_leftmost_one_pos64((uint64) waited) + 1;
	return Min(bucket, PGPX_HISTOGRAM_BUCKETS - 1);
}

/* Count a wait that has ended. */
static void
count_wait_locked(PgpxPool *pool, PgpxTime waited)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->stats.waited++;
	pool->stats.histogram[histogram_bucket(waited)]++;
}

void
pgpx_waiter_give_up(PgpxTime waited)
{
	PgpxPool   *pool = &pgpx_pools[pgpx_my_waiter()->pool];

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pool->stats.cancelled++;
	count_wait_locked(pool, waited);
	LWLockRelease(pool->lock);
}

PgpxWaiterState
pgpx_waiter_dequeue(PgpxDequeue how, PgpxTime *waited)
{
	PgpxWaiter *waiter = pgpx_my_waiter();
	PgpxPool   *pool = &pgpx_pools[waiter->pool];
	PgpxWaiterState was;
	bool		continues = false;	/* the session enqueues again */

	/* only this process enqueues and dequeues its waiter: no lock is needed */
	if (waiter->state == PGPX_WAITER_NONE)
		return PGPX_WAITER_NONE;

	/* read the clock first, because the lock is contended now */
	*waited = pgpx_now() - waiter->since;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (!await_sender(pool, waiter))
		how = PGPX_DEQUEUE_CANCEL;
	was = waiter->state;

	switch (was)
	{
		case PGPX_WAITER_WAITING:
			queue_remove(pool, waiter);
			pg_fallthrough;
		case PGPX_WAITER_EXPIRED:
			if (how == PGPX_DEQUEUE_AGAIN)
				continues = true;
			else if (how == PGPX_DEQUEUE_TIMEOUT ||
					 (how == PGPX_DEQUEUE_CLAIM && was == PGPX_WAITER_EXPIRED))
				pool->stats.timeouts++;
			else
				pool->stats.cancelled++;
			if (how == PGPX_DEQUEUE_DEADLOCK)
				pool->stats.deadlocks++;
			break;
		case PGPX_WAITER_GRANTED:
			if (how == PGPX_DEQUEUE_CANCEL)
				pool->stats.cancelled++;
			else
			{
				pool->stats.granted++;
				if (pgpx_waiter_pending_state(waiter) == PGPX_PENDING_SENT)
				{
					pool->stats.pipelined++;
					*waited = waiter->granted_at - waiter->since;
				}
			}
			break;
		case PGPX_WAITER_FAILED:
			if (how == PGPX_DEQUEUE_CANCEL)
				pool->stats.cancelled++;
			else
				pool->stats.failed++;
			break;
		default:
			break;
	}
	waiter->state = PGPX_WAITER_NONE;
	pool->nwaiters--;
	pool->stats.wait_time += *waited - waiter->waited_before;
	if (!continues)
		count_wait_locked(pool, *waited);
	pgpx_pool_notify_end_locked(pool);
	LWLockRelease(pool->lock);

	if (was == PGPX_WAITER_GRANTED && how == PGPX_DEQUEUE_CANCEL)
	{
		PgpxCloseReason reason;
		PgpxReleaseAction action =
			pgpx_pending_release_action(pgpx_waiter_pending_state(waiter),
										&reason);

		/*
		 * Until the release the connection remains LEASED to this process, so
		 * no other process can use it.
		 */
		PGPX_DEBUG_POINT("hand_back");
		pgpx_pool_release(&pgpx_conns[waiter->conn], waiter->lease_id,
						  PGPX_END_RETRIED, action, 0, reason, NULL);
		waiter->conn = -1;
	}
	return was;
}

void
pgpx_waiter_note_revoked(int procno, uint64 lease_id, PgpxRevoke reason)
{
	PgpxWaiter *waiter = &pgpx_waiters[procno];
	PgpxRevoked *revoked;

	/* atomic, because processes may do this under different pool locks */
	revoked = &waiter->revoked[pg_atomic_fetch_add_u32(&waiter->nrevoked, 1) %
							   PGPX_REVOKED_MAX];
	pg_atomic_write_u64(&revoked->lease_id, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&revoked->reason, reason);
	pg_write_barrier();
	pg_atomic_write_u64(&revoked->lease_id, lease_id);
	pg_write_barrier();
}

PgpxRevoke
pgpx_waiter_revoke_reason(int procno, uint64 lease_id)
{
	pg_read_barrier();
	for (int i = 0; i < PGPX_REVOKED_MAX; i++)
	{
		PgpxRevoked *revoked = &pgpx_waiters[procno].revoked[i];

		if (pg_atomic_read_u64(&revoked->lease_id) == lease_id)
		{
			pg_read_barrier();
			return (PgpxRevoke) pg_atomic_read_u32(&revoked->reason);
		}
	}
	return PGPX_REVOKE_NONE;
}
