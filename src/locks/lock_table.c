/*-------------------------------------------------------------------------
 *
 * lock_table.c
 *	  Table of the distributed locks that this server holds or requests.
 *
 * Process exit: the exit callback of lock_session.c releases every slot that
 * the session owns.  A slot has an owner from pgpx_lock_alloc on, before the
 * request is sent to the remote.  If the callback did not run, the worker's
 * sweep (pgpx_lock_sweep) finds that the owner no longer exists.
 *
 * Queues: the waiters of this server for a lock form one queue for each pool,
 * first come, first served.  The first waiter of a queue requests the lock from
 * the remote; the others sleep until they are first.  Each pool has its own
 * queue because its first waiter may wait for a connection for a long time or
 * without limit, and must not keep waiters of other pools from the lock.
 * Within a pool the order costs nothing, because the other waiters would wait
 * for a connection of the same pool.  There is no order between queues.
 *
 * There is no order between servers either; see "Fairness" in lock_schema.sql.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/lock_table.h"

#include <time.h>

#include "common/hashfn.h"
#include "storage/procarray.h"

#include "shared/wait_queue.h"

PgpxLock   *pgpx_locks = NULL;

int			pgpx_lock_own_count = 0;

PgpxTime
pgpx_lock_to_now(PgpxTime t)
{
	return t == 0 ? 0 : pgpx_now() + (t - pgpx_steady_now());
}

/*
 * The ttl starts at the remote when it receives the request, and here before
 * the request is sent, so the validity ends here first.  One percent of the
 * ttl is subtracted because the two clocks may run at different rates.
 */
PgpxTime
pgpx_lock_certain_until(PgpxTime sent_at, int64 ttl_ms)
{
	return sent_at + ttl_ms * 1000 - ttl_ms * 10;
}

/* Wake the worker, and note for its pingers that the locks have changed. */
static void
wake_lock_worker(int worker)
{
	pg_atomic_fetch_add_u32(&pgpx_shared->locks_changed, 1);
	pgpx_worker_wake(worker);
}

static bool
is_own(const PgpxLock *lock)
{
	return lock->state != PGPX_LOCK_FREE &&
		lock->owner_procno == (int) MyProcNumber &&
		lock->owner_pid == MyProcPid &&
		(lock->state != PGPX_LOCK_RELEASING || lock->awaited);
}

/* Free a slot, and lower locks_end to the end of the last slot in use. */
static void
free_slot_locked(PgpxLock *lock)
{
	int			end = pgpx_locks_end();

	Assert(LWLockHeldByMeInMode(pgpx_shared->locks_lock, LW_EXCLUSIVE));
	lock->state = PGPX_LOCK_FREE;
	while (end > 0 && pgpx_locks[end - 1].state == PGPX_LOCK_FREE)
		end--;
	pg_atomic_write_u32(&pgpx_shared->locks_end, end);
}

int
pgpx_lock_alloc(PgpxLock *lock)
{
	int			slot = 0;

	lock->state = PGPX_LOCK_REQUESTED;
	lock->request = pg_atomic_fetch_add_u64(&pgpx_shared->next_lock, 1);
	lock->owner_procno = MyProcNumber;
	lock->owner_pid = MyProcPid;
	lock->since = pgpx_now();

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	while (slot < pgpx_locks_end() &&
		   pgpx_locks[slot].state != PGPX_LOCK_FREE)
		slot++;
	if (slot < pgpx_shared->max_locks)
	{
		pgpx_locks[slot] = *lock;
		if (slot == pgpx_locks_end())
			pg_atomic_write_u32(&pgpx_shared->locks_end, slot + 1);
		pgpx_lock_own_count++;
	}
	else
		slot = -1;
	LWLockRelease(pgpx_shared->locks_lock);
	return slot;
}

void
pgpx_lock_renew(int slot, PgpxLock *lock)
{
	lock->request = pg_atomic_fetch_add_u64(&pgpx_shared->next_lock, 1);
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	pgpx_locks[slot].request = lock->request;
	LWLockRelease(pgpx_shared->locks_lock);
}

void
pgpx_lock_granted(int slot, int64 token, PgpxTime sent_at)
{
	PgpxLock   *lock = &pgpx_locks[slot];
	int			worker;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	lock->state = PGPX_LOCK_HELD;
	lock->token = token;
	lock->sent_at = sent_at;
	lock->valid_until = pgpx_lock_certain_until(sent_at, lock->ttl_ms);
	lock->since = pgpx_now();
	worker = lock->worker;
	LWLockRelease(pgpx_shared->locks_lock);
	wake_lock_worker(worker);
}

void
pgpx_lock_refused(int slot)
{
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	free_slot_locked(&pgpx_locks[slot]);
	pgpx_lock_own_count--;
	LWLockRelease(pgpx_shared->locks_lock);
}

typedef enum LossReason
{
	LOSS_EXPIRED = 0,			/* the validity expired */
	LOSS_REFUSED,				/* the remote rejected a ping */
	LOSS_REVOKED				/* see pgpx_lock_revoke */
} LossReason;

/* Log the loss of a lock. */
static void
log_loss(const PgpxLock *lock, LossReason reason)
{
	ereport(LOG,
			(errmsg("pgpool_ext lost lock \"%s\" of server \"%s\" of database \"%s\", token " INT64_FORMAT ", held by PID %d",
					lock->name, NameStr(lock->server_name),
					NameStr(lock->database_name), lock->token,
					lock->owner_pid),
			 reason == LOSS_REFUSED ?
			 errdetail("On the remote server the lock expired, or was released by force.") :
			 reason == LOSS_REVOKED ?
			 errdetail("Its server, user mapping or user was dropped or changed, or the privilege to use the server was revoked.") :
			 errdetail("No ping was answered within the ttl of " INT64_FORMAT " ms.",
					   lock->ttl_ms)));
}

/*
 * HELD -> LOST, unless the slot has another request by now or, with
 * LOSS_EXPIRED, a ping has just extended the lock.  remote_done: the remote
 * needs no release, or none can be sent.
 */
static void
lose(int slot, uint64 request, LossReason reason, bool remote_done)
{
	PgpxLock   *lock = &pgpx_locks[slot];
	PgpxLock	copy;
	bool		lost;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	lost = lock->request == request && lock->state == PGPX_LOCK_HELD &&
		(reason != LOSS_EXPIRED || pgpx_steady_now() >= lock->valid_until);
	if (lost)
	{
		lock->state = PGPX_LOCK_LOST;
		lock->remote_done = remote_done;
	}
	copy = *lock;
	LWLockRelease(pgpx_shared->locks_lock);
	if (!lost)
		return;
	log_loss(&copy, reason);
	wake_lock_worker(copy.worker);
}

int
pgpx_lock_find(const PgpxPoolKey *key, const char *name, int64 token,
			   PgpxLock *copy)
{
	int			slot = -1;
	uint64		request;

	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = 0; i < pgpx_locks_end() && slot < 0; i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];

		if (lock->token == token &&
			(lock->state == PGPX_LOCK_HELD || lock->state == PGPX_LOCK_LOST) &&
			memcmp(&lock->key, key, sizeof(*key)) == 0 &&
			strcmp(lock->name, name) == 0)
		{
			slot = i;
			*copy = *lock;
		}
	}
	LWLockRelease(pgpx_shared->locks_lock);

	if (slot < 0 || copy->state == PGPX_LOCK_LOST ||
		pgpx_steady_now() < copy->valid_until)
		return slot;
	request = copy->request;
	lose(slot, request, LOSS_EXPIRED, false);
	return pgpx_lock_copy(slot, copy) && copy->request == request ? slot : -1;
}

bool
pgpx_lock_is_held_here(uint64 queue, PgpxLock *copy)
{
	bool		found = false;

	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = 0; i < pgpx_locks_end() && !found; i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];

		if (lock->queue != queue)
			continue;

		/*
		 * A pending release without a token does not count as held, because no
		 * session has received a grant.  If it counted, a user without
		 * privileges on the remote's tables could keep the other sessions of
		 * this server from the lock.
		 */
		found = (lock->state == PGPX_LOCK_RELEASING && lock->token != 0) ||
			(lock->state == PGPX_LOCK_HELD &&
			 pgpx_steady_now() < lock->valid_until);
		if (found)
			*copy = *lock;
	}
	LWLockRelease(pgpx_shared->locks_lock);
	return found;
}

bool
pgpx_lock_mark_loss_reported(int slot, uint64 request)
{
	bool		first = false;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	if (pgpx_locks[slot].request == request)
	{
		first = !pgpx_locks[slot].loss_reported;
		pgpx_locks[slot].loss_reported = true;
	}
	LWLockRelease(pgpx_shared->locks_lock);
	return first;
}

/*
 * End a release: free the slot or, if the owner awaits the result, keep it in
 * state DONE until the owner has read it.
 */
static void
end_release_locked(PgpxLock *lock)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->locks_lock, LW_EXCLUSIVE));
	if (lock->awaited)
		lock->state = PGPX_LOCK_DONE;
	else
		free_slot_locked(lock);
}

/* Begin a release, or change whether the owner awaits its result. */
static void
release_locked(PgpxLock *lock, bool awaited)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->locks_lock, LW_EXCLUSIVE));
	lock->awaited = awaited;
	if (lock->state == PGPX_LOCK_LOST)
		lock->result = PGPX_LOCK_NOT_OWNER;
	if (lock->remote_done || lock->state == PGPX_LOCK_DONE)
		end_release_locked(lock);
	else
		lock->state = PGPX_LOCK_RELEASING;
}

void
pgpx_lock_release(int slot, bool awaited)
{
	PgpxLock   *lock = &pgpx_locks[slot];

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	if (is_own(lock))
	{
		if (!awaited)
			pgpx_lock_own_count--;
		release_locked(lock, awaited);
	}
	LWLockRelease(pgpx_shared->locks_lock);
	wake_lock_worker(lock->worker);
}

bool
pgpx_lock_result(int slot, PgpxLockResult *result)
{
	bool		done;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	done = pgpx_locks[slot].state == PGPX_LOCK_DONE;
	if (done)
	{
		*result = (PgpxLockResult) pgpx_locks[slot].result;
		free_slot_locked(&pgpx_locks[slot]);
		pgpx_lock_own_count--;
	}
	LWLockRelease(pgpx_shared->locks_lock);
	return done;
}

int
pgpx_lock_next_own(int after, PgpxLock *copy)
{
	int			slot = -1;

	if (pgpx_lock_own_count == 0)
		return -1;
	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = after + 1; i < pgpx_locks_end() && slot < 0; i++)
		if (is_own(&pgpx_locks[i]))
		{
			*copy = pgpx_locks[i];
			slot = i;
		}
	LWLockRelease(pgpx_shared->locks_lock);
	return slot;
}

void
pgpx_lock_reparent(SubTransactionId from, SubTransactionId to)
{
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (is_own(&pgpx_locks[i]) && pgpx_locks[i].subid == from)
			pgpx_locks[i].subid = to;
	LWLockRelease(pgpx_shared->locks_lock);
}

bool
pgpx_lock_copy(int slot, PgpxLock *copy)
{
	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	*copy = pgpx_locks[slot];
	LWLockRelease(pgpx_shared->locks_lock);
	return copy->state != PGPX_LOCK_FREE;
}

/*
 * The hash depends on the server and not on the pool, so that all pools of a
 * server that connect to the same database share the queue.
 */
uint64
pgpx_lock_queue(const PgpxServerSpec *spec, const char *name)
{
	const char *remote_database = pgpx_server_spec_remote_database(spec);
	uint64		hash = ((uint64) spec->key.database << 32) | spec->key.server;

	hash = hash_bytes_extended((const unsigned char *) remote_database,
							   strlen(remote_database), hash);
	hash = hash_bytes_extended((const unsigned char *) name, strlen(name),
							   hash);
	return hash | 1;
}

/*
 * Add the first waiter of each pool's queue to *wake, because the lock may be
 * free.
 */
static void
add_firsts_locked(uint64 queue, PgpxWake *wake)
{
	dlist_iter	iter;

	Assert(LWLockHeldByMeInMode(pgpx_shared->locks_lock, LW_EXCLUSIVE));
	dlist_foreach(iter, &pgpx_shared->lock_queue)
	{
		PgpxWaiter *w = dlist_container(PgpxWaiter, lock_link, iter.cur);

		if (w->lock_queue == queue &&
			pgpx_lock_first_waiter_locked(queue, &w->lock_key) == w)
			pgpx_wake_add(wake, PGPX_WAITER_INDEX(w));
	}
}

void
pgpx_lock_enqueue(const PgpxLock *lock)
{
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	pgpx_lock_waiter_enqueue_locked(lock->queue, &lock->key);
	LWLockRelease(pgpx_shared->locks_lock);
}

static PgpxWaiter *
first_waiter(uint64 queue, const PgpxPoolKey *key)
{
	PgpxWaiter *first;

	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	first = pgpx_lock_first_waiter_locked(queue, key);
	LWLockRelease(pgpx_shared->locks_lock);
	return first;
}

bool
pgpx_lock_is_first(void)
{
	PgpxWaiter *self = pgpx_my_waiter();

	return first_waiter(self->lock_queue, &self->lock_key) == self;
}

bool
pgpx_lock_has_waiters(const PgpxLock *lock)
{
	return first_waiter(lock->queue, &lock->key) != NULL;
}

void
pgpx_lock_dequeue(void)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	uint64		queue;

	/*
	 * Wake the first waiters of the other pools' queues, too: if this session
	 * acquired the lock, they must not request it from the remote any more.
	 */
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	queue = pgpx_lock_waiter_dequeue_locked();
	if (queue != 0)
		add_firsts_locked(queue, &wake);
	LWLockRelease(pgpx_shared->locks_lock);
	pgpx_wake_flush(&wake);
}

/*
 * Pause after the first failed attempt to release; doubled after each further
 * one.
 */
#define RELEASE_PAUSE_US (250 * 1000)

static bool
is_of_pool(const PgpxLock *lock, int pool, uint32 pool_id)
{
	return lock->state != PGPX_LOCK_FREE && lock->pool == pool &&
		lock->pool_id == pool_id;
}

/* Return whether the remote still needs a release of this lock. */
static bool
needs_release(const PgpxLock *lock)
{
	return (lock->state == PGPX_LOCK_RELEASING ||
			lock->state == PGPX_LOCK_LOST) &&
		!lock->remote_done;
}

/* Return the steady time at which the next ping is due. */
static PgpxTime
next_ping(const PgpxLock *lock)
{
	return lock->sent_at + Min(PGPX_LOCK_PING_US, lock->ttl_ms * 1000 / 3);
}

PgpxTime
pgpx_lock_expire(int worker)
{
	PgpxTime	next = PG_INT64_MAX;
	PgpxLock	lock;

	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		if (!pgpx_lock_copy(i, &lock) || lock.state != PGPX_LOCK_HELD ||
			lock.worker != worker)
			continue;
		if (pgpx_steady_now() >= lock.valid_until)
			lose(i, lock.request, LOSS_EXPIRED, false);
		else
			next = Min(next, lock.valid_until);
	}
	return next;
}

int
pgpx_lock_next_pool(int worker, int from, uint32 *pool_id)
{
	int			pool = -1;

	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];

		if (lock->state == PGPX_LOCK_FREE || lock->worker != worker ||
			lock->pool < from || (pool >= 0 && lock->pool >= pool))
			continue;
		pool = lock->pool;
		*pool_id = lock->pool_id;
	}
	LWLockRelease(pgpx_shared->locks_lock);
	return pool;
}

void
pgpx_lock_find_due(int pool, uint32 pool_id, PgpxLockDue *due)
{
	memset(due, 0, sizeof(*due));
	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];

		if (!is_of_pool(lock, pool, pool_id))
			continue;
		if (lock->state == PGPX_LOCK_HELD)
		{
			PgpxTime	at = next_ping(lock);

			due->nheld++;
			if (due->ping_at == 0 || at < due->ping_at)
				due->ping_at = at;
			if (due->min_ttl_ms == 0 || lock->ttl_ms < due->min_ttl_ms)
				due->min_ttl_ms = lock->ttl_ms;
		}
		else if (needs_release(lock))
		{
			if (due->nreleases++ == 0 || lock->retry_at < due->release_at)
				due->release_at = lock->retry_at;
		}
	}
	LWLockRelease(pgpx_shared->locks_lock);
}

int
pgpx_lock_list_work(int pool, uint32 pool_id, bool release, PgpxLockWork *work)
{
	PgpxTime	now = pgpx_now();
	int			n = 0;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];

		if (!is_of_pool(lock, pool, pool_id) ||
			!(release ?
				  needs_release(lock) && lock->retry_at <= now :
				  lock->state == PGPX_LOCK_HELD))
			continue;
		if (release)
			lock->nsent++;
		work[n].slot = i;
		work[n].request = lock->request;
		work[n].token = lock->token;
		strlcpy(work[n].name, lock->name, sizeof(work[n].name));
		n++;
	}
	LWLockRelease(pgpx_shared->locks_lock);
	return n;
}

void
pgpx_lock_pinged(const PgpxLockWork *work, bool extended, PgpxTime sent_at)
{
	PgpxLock   *lock = &pgpx_locks[work->slot];

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	if (extended && lock->request == work->request &&
		lock->state == PGPX_LOCK_HELD && pgpx_steady_now() < lock->valid_until)
	{
		lock->sent_at = sent_at;
		lock->valid_until = pgpx_lock_certain_until(sent_at, lock->ttl_ms);
		lock->last_ping = pgpx_now();
	}
	LWLockRelease(pgpx_shared->locks_lock);
	lose(work->slot, work->request, extended ? LOSS_EXPIRED : LOSS_REFUSED,
		 !extended);
}

/*
 * End a release, because the remote has confirmed it or the lock will expire
 * there: wake the owner if it waits, and the first waiters.
 */
static void
finish_release_locked(PgpxLock *lock, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->locks_lock, LW_EXCLUSIVE));
	lock->remote_done = true;
	if (lock->state == PGPX_LOCK_RELEASING)
		end_release_locked(lock);
	if (lock->awaited)
		pgpx_wake_add(wake, lock->owner_procno);
	add_firsts_locked(lock->queue, wake);
}

/*
 * A lock that is not held any more may have been released by an earlier attempt
 * whose answer was lost.
 */
void
pgpx_lock_released(const PgpxLockWork *work, bool released)
{
	PgpxLock   *lock = &pgpx_locks[work->slot];
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	if (lock->request == work->request && needs_release(lock))
	{
		if (lock->state == PGPX_LOCK_RELEASING &&
			lock->result == PGPX_LOCK_UNKNOWN)
			lock->result = released ? PGPX_LOCK_RELEASED :
			lock->nsent > 1 ? PGPX_LOCK_UNKNOWN : PGPX_LOCK_NOT_OWNER;
		finish_release_locked(lock, &wake);
	}
	LWLockRelease(pgpx_shared->locks_lock);
	pgpx_wake_flush(&wake);
}

/* Log that all attempts to release a lock have failed. */
static void
log_abandoned(const PgpxLock *lock, const char *reason)
{
	ereport(LOG,
			(errmsg("pgpool_ext could not release lock \"%s\" of server \"%s\" of database \"%s\"",
					lock->name, NameStr(lock->server_name),
					NameStr(lock->database_name)),
			 errdetail("%d attempts have failed, the last one: %s", lock->attempts,
					   reason),
			 errhint("The lock expires when its ttl of " INT64_FORMAT " ms has passed on the remote server.",
					 lock->ttl_ms)));
}

void
pgpx_lock_release_failed(int pool, uint32 pool_id, const char *reason)
{
	PgpxTime	now = pgpx_now();

	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];
		PgpxLock	copy;
		bool		abandoned = false;
		PgpxWake	wake = PGPX_WAKE_INIT;

		LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
		if (is_of_pool(lock, pool, pool_id) &&
			needs_release(lock) && lock->retry_at <= now)
		{
			lock->attempts++;
			lock->retry_at = now + (RELEASE_PAUSE_US << lock->attempts) / 2;
			abandoned = lock->attempts >= PGPX_LOCK_ATTEMPTS;
			copy = *lock;
			if (abandoned)
				finish_release_locked(lock, &wake);
		}
		LWLockRelease(pgpx_shared->locks_lock);
		if (abandoned)
			log_abandoned(&copy, reason);
		pgpx_wake_flush(&wake);
	}
}

uint64
pgpx_lock_next_held(Oid database, int *slot, PgpxPoolKey *key, Oid *user)
{
	uint64		request = 0;

	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (; request == 0 && *slot < pgpx_locks_end(); (*slot)++)
	{
		const PgpxLock *lock = &pgpx_locks[*slot];

		if (lock->state != PGPX_LOCK_HELD || lock->key.database != database)
			continue;
		request = lock->request;
		*key = lock->key;
		*user = lock->owner_user;
	}
	LWLockRelease(pgpx_shared->locks_lock);
	return request;
}

void
pgpx_lock_lose(uint64 request)
{
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (pgpx_locks[i].request == request)
			lose(i, request, LOSS_REVOKED, false);
}

void
pgpx_lock_revoke(int pool, uint32 pool_id)
{
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];
		uint64		request = 0;
		PgpxWake	wake = PGPX_WAKE_INIT;

		LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
		if (is_of_pool(lock, pool, pool_id))
		{
			request = lock->request;
			if (needs_release(lock))
				finish_release_locked(lock, &wake);
		}
		LWLockRelease(pgpx_shared->locks_lock);
		lose(i, request, LOSS_REVOKED, true);
		pgpx_wake_flush(&wake);
	}
}

bool
pgpx_lock_sweep(int worker)
{
	bool		any = false;

	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];
		PgpxLock	copy;
		bool		abandoned = false;

		LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
		copy = *lock;
		if (copy.state != PGPX_LOCK_FREE && copy.worker == worker)
		{
			any = true;

			/*
			 * A process that is no longer in the process array has run its exit
			 * callback or never will.  A PGPROC keeps its pid until it is
			 * reused.
			 */
			abandoned = (copy.state != PGPX_LOCK_RELEASING || copy.awaited) &&
				BackendPidGetProc(copy.owner_pid) !=
					GetPGProcByNumber(copy.owner_procno);
			if (abandoned)
				release_locked(lock, false);
		}
		LWLockRelease(pgpx_shared->locks_lock);
		if (!abandoned)
			continue;
		pg_atomic_fetch_add_u32(&pgpx_shared->locks_changed, 1);
		ereport(LOG,
				(errmsg("pgpool_ext releases lock \"%s\": its holder with PID %d no longer exists",
						copy.name, copy.owner_pid)));
	}
	return any;
}

bool
pgpx_lock_pool_has_locks(int pool, uint32 pool_id)
{
	bool		any = false;

	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = 0; i < pgpx_locks_end() && !any; i++)
		any = is_of_pool(&pgpx_locks[i], pool, pool_id);
	LWLockRelease(pgpx_shared->locks_lock);
	return any;
}
