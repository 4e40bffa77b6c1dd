/*-------------------------------------------------------------------------
 *
 * lock_table.c
 *	  Table of the distributed locks that this server holds or requests; its
 *	  verification; the hooks through which lower layers call the functions of
 *	  locks/.
 *
 * Process exit: the exit callback of lock_session.c releases every slot that
 * the session owns.  A slot has an owner from pgpx_lock_alloc on, before the
 * request is sent to the remote.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/locks.h"

#include "common/hashfn.h"

#include "shared/lock_hooks.h"

PgpxLock   *pgpx_locks = NULL;

static int	own_count = 0;		/* slots of this session */

PgpxTime
pgpx_lock_to_now(PgpxTime t)
{
	return t == 0 ? 0 : pgpx_now() + (t - pgpx_steady_now());
}

/* Attempts of the worker to release a lock at the remote. */
#define RELEASE_ATTEMPTS 5

/*
 * The ttl starts at the remote when it receives the request, and here before
 * the request is sent, so the validity ends here first.  One percent of the
 * ttl is subtracted because the two clocks may run at different rates.
 */
static PgpxTime
certain_until(PgpxTime sent_at, int64 ttl_ms)
{
	return sent_at + ttl_ms * 1000 - ttl_ms * 10;
}

bool
pgpx_lock_copy(int slot, PgpxLock *copy)
{
	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	*copy = pgpx_locks[slot];
	LWLockRelease(pgpx_shared->locks_lock);
	return copy->state != PGPX_LOCK_FREE;
}

/* Wake a pool's worker, and note for its pingers that the locks have changed. */
static void
wake_lock_worker(int pool)
{
	pg_atomic_fetch_add_u32(&pgpx_shared->locks_changed, 1);
	pgpx_worker_wake(pgpx_pools[pool].worker);
}

static bool
is_own(const PgpxLock *lock)
{
	return lock->state != PGPX_LOCK_FREE && pgpx_lock_is_mine(lock) &&
		(lock->state != PGPX_LOCK_RELEASING || lock->awaited);
}

/*
 * The hash depends on the server and not on the pool, so that all pools of a
 * server that connect to the same database have the same value.
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
	return hash;
}

/* Return whether a waiter is the first of its queue, which is of one pool. */
static bool
is_first_locked(const PgpxLock *lock)
{
	Assert(LWLockHeldByMe(pgpx_shared->locks_lock));
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		const PgpxLock *other = &pgpx_locks[i];

		if (other->state == PGPX_LOCK_REQUESTED &&
			other->queue == lock->queue &&
			(other->since < lock->since ||
			 (other->since == lock->since && other < lock)) &&
			memcmp(&other->key, &lock->key, sizeof(lock->key)) == 0)
			return false;
	}
	return true;
}

bool
pgpx_lock_is_first(int slot)
{
	bool		first;

	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	first = is_first_locked(&pgpx_locks[slot]);
	LWLockRelease(pgpx_shared->locks_lock);
	return first;
}

/*
 * Add the first waiter of each pool's queue to *wake, because the lock may be
 * free, or another waiter is the first now.
 */
static void
add_firsts_locked(uint64 queue, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->locks_lock, LW_EXCLUSIVE));
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (pgpx_locks[i].state == PGPX_LOCK_REQUESTED &&
			pgpx_locks[i].queue == queue && is_first_locked(&pgpx_locks[i]))
			pgpx_wake_add(wake, pgpx_locks[i].owner_procno);
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
pgpx_lock_alloc(const PgpxLock *lock, int limit, int *used)
{
	int			slot;

	*used = 0;
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	slot = pgpx_locks_end();
	for (int i = pgpx_locks_end() - 1; i >= 0; i--)
	{
		if (pgpx_locks[i].state == PGPX_LOCK_FREE)
			slot = i;
		else if (pgpx_locks[i].login_role == GetSessionUserId())
			(*used)++;
	}
	if (slot < pgpx_shared->max_locks && *used < limit)
	{
		PgpxLock   *entry = &pgpx_locks[slot];

		*entry = *lock;
		entry->state = PGPX_LOCK_REQUESTED;
		entry->acquisition = pg_atomic_fetch_add_u64(&pgpx_shared->next_id, 1);
		entry->pool = entry->in_flight = -1;
		entry->owner_procno = MyProcNumber;
		entry->owner_pid = MyProcPid;
		entry->login_role = GetSessionUserId();
		entry->since = pgpx_now();
		if (slot == pgpx_locks_end())
			pg_atomic_write_u32(&pgpx_shared->locks_end, slot + 1);
		own_count++;
	}
	else
		slot = -1;
	LWLockRelease(pgpx_shared->locks_lock);
	return slot;
}

void
pgpx_lock_set_pool(int slot, const PgpxServerSpec *spec, bool renew)
{
	PgpxLock   *lock = &pgpx_locks[slot];

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	lock->pool = spec->pool;
	lock->pool_id = spec->pool_id;
	if (renew)
		lock->acquisition = pg_atomic_fetch_add_u64(&pgpx_shared->next_id, 1);
	LWLockRelease(pgpx_shared->locks_lock);
}

bool
pgpx_lock_granted(int slot, int64 token, PgpxTime sent_at)
{
	PgpxLock   *lock = &pgpx_locks[slot];
	PgpxTime	until = certain_until(sent_at, lock->ttl_ms);

	if (pgpx_steady_now() >= until)
		return false;
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	lock->state = PGPX_LOCK_HELD;
	lock->token = token;
	lock->sent_at = sent_at;
	lock->valid_until = until;
	lock->since = pgpx_now();
	LWLockRelease(pgpx_shared->locks_lock);
	wake_lock_worker(lock->pool);
	return true;
}

/*
 * HELD -> LOST, unless the slot has another acquisition by now or, with if_expired,
 * a ping has just extended the lock.  remote_done: the remote needs no release,
 * or none can be sent.  reason: for the log.
 */
static void
lose(int slot, uint64 acquisition, bool if_expired, bool remote_done,
	 const char *reason)
{
	PgpxLock   *lock = &pgpx_locks[slot];
	const PgpxPool *pool;
	PgpxLock	copy;
	bool		lost;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	lost = lock->acquisition == acquisition && lock->state == PGPX_LOCK_HELD &&
		(!if_expired || pgpx_steady_now() >= lock->valid_until);
	if (lost)
	{
		lock->state = PGPX_LOCK_LOST;
		lock->remote_done = remote_done;
	}
	copy = *lock;
	LWLockRelease(pgpx_shared->locks_lock);
	if (!lost)
		return;
	pool = pgpx_lock_pool(&copy);
	ereport(LOG,
			(errmsg("pgpool_ext lost lock \"%s\" of server \"%s\" of database \"%s\", token " INT64_FORMAT ", held by PID %d",
					copy.name, NameStr(pool->server_name),
					NameStr(pool->database_name), copy.token,
					copy.owner_pid),
			 errdetail_internal("%s", reason)));
	wake_lock_worker(copy.pool);
}

#define LOSS_EXPIRED "No ping was answered within the ttl."
#define LOSS_REFUSED "On the remote server the lock expired, or was released by force."
#define LOSS_REVOKED "Its server, user mapping or user was dropped or changed, or the privilege to use the server was revoked."

bool
pgpx_lock_check_expiry(int slot, PgpxLock *copy)
{
	uint64		acquisition = copy->acquisition;

	if (copy->state != PGPX_LOCK_HELD ||
		pgpx_steady_now() < copy->valid_until)
		return true;
	lose(slot, acquisition, true, false, LOSS_EXPIRED);
	return pgpx_lock_copy(slot, copy) && copy->acquisition == acquisition;
}

int
pgpx_lock_find(const PgpxPoolKey *key, const char *name, int64 token,
			   PgpxLock *copy)
{
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (pgpx_lock_copy(i, copy) && copy->token == token &&
			(copy->state == PGPX_LOCK_HELD || copy->state == PGPX_LOCK_LOST) &&
			copy->key.database == key->database &&
			copy->key.server == key->server && strcmp(copy->name, name) == 0)
			return pgpx_lock_check_expiry(i, copy) ? i : -1;
	return -1;
}

/*
 * A pending release without a token does not count as held, because no session
 * has received a grant.  If it counted, a user without privileges on the
 * remote's table could keep the other sessions of this server from the lock.
 */
bool
pgpx_lock_is_held_here(uint64 queue, PgpxLock *copy)
{
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (pgpx_lock_copy(i, copy) && copy->queue == queue &&
			((copy->state == PGPX_LOCK_RELEASING && copy->token != 0 &&
			  !copy->remote_done) ||
			 (copy->state == PGPX_LOCK_HELD &&
			  pgpx_steady_now() < copy->valid_until)))
			return true;
	return false;
}

void
pgpx_lock_release(int slot, bool awaited)
{
	PgpxLock   *lock = &pgpx_locks[slot];
	PgpxWake	wake = PGPX_WAKE_INIT;
	bool		waited;
	int			pool;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	Assert(is_own(lock));
	pool = lock->pool;
	waited = lock->state == PGPX_LOCK_REQUESTED;
	if (lock->state == PGPX_LOCK_LOST)
		lock->result = PGPX_LOCK_NOT_OWNER;
	lock->awaited = awaited;
	if (!awaited)
		own_count--;
	if (!awaited && (waited ? !lock->maybe_granted : lock->remote_done))
	{
		free_slot_locked(lock);
		pool = -1;
	}
	else
		lock->state = PGPX_LOCK_RELEASING;
	if (waited)
		add_firsts_locked(lock->queue, &wake);
	LWLockRelease(pgpx_shared->locks_lock);
	pgpx_wake_flush(&wake);
	if (pool >= 0)
		wake_lock_worker(pool);
}

bool
pgpx_lock_result(int slot, PgpxLockResult *result)
{
	bool		done;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	done = pgpx_locks[slot].remote_done;
	if (done)
	{
		*result = (PgpxLockResult) pgpx_locks[slot].result;
		free_slot_locked(&pgpx_locks[slot]);
		own_count--;
	}
	LWLockRelease(pgpx_shared->locks_lock);
	return done;
}

int
pgpx_lock_next_own(int after, PgpxLock *copy)
{
	if (own_count == 0)
		return -1;
	for (int i = after + 1; i < pgpx_locks_end(); i++)
		if (pgpx_lock_copy(i, copy) && is_own(copy))
			return i;
	return -1;
}

void
pgpx_lock_reparent(SubTransactionId from, SubTransactionId to)
{
	if (own_count == 0)
		return;
	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (is_own(&pgpx_locks[i]) && pgpx_locks[i].subid == from)
			pgpx_locks[i].subid = to;
	LWLockRelease(pgpx_shared->locks_lock);
}

void
pgpx_lock_pinged(int slot, bool extended, PgpxTime sent_at)
{
	PgpxLock   *lock = &pgpx_locks[slot];

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	if (extended && lock->state == PGPX_LOCK_HELD &&
		pgpx_steady_now() < lock->valid_until)
	{
		lock->sent_at = sent_at;
		lock->valid_until = certain_until(sent_at, lock->ttl_ms);
		lock->last_ping = pgpx_now();
	}
	LWLockRelease(pgpx_shared->locks_lock);
	lose(slot, lock->acquisition, extended, !extended,
		 extended ? LOSS_EXPIRED : LOSS_REFUSED);
}

/*
 * End a release, because the remote has confirmed it or the lock will expire
 * there: wake the owner if it waits, and the first waiters.  The owner frees
 * the slot if it waits for the result, or has not released the LOST lock yet.
 */
static void
finish_release_locked(PgpxLock *lock, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->locks_lock, LW_EXCLUSIVE));
	lock->remote_done = true;
	if (lock->awaited)
		pgpx_wake_add(wake, lock->owner_procno);
	else if (lock->state == PGPX_LOCK_RELEASING)
		free_slot_locked(lock);
	add_firsts_locked(lock->queue, wake);
}

/*
 * A lock that is not held any more may have been released by an earlier attempt
 * whose answer was lost.
 */
void
pgpx_lock_released(int slot, bool released)
{
	PgpxLock   *lock = &pgpx_locks[slot];
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	if (pgpx_lock_needs_release(lock))
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

void
pgpx_lock_release_failed(int pool, uint32 pool_id, const char *reason)
{
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		PgpxLock   *lock = &pgpx_locks[i];
		PgpxLock	copy;
		bool		abandoned;
		PgpxWake	wake = PGPX_WAKE_INIT;

		LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
		abandoned = pgpx_lock_is_of_pool(lock, pool, pool_id) &&
			pgpx_lock_needs_release(lock) &&
			++lock->attempts >= RELEASE_ATTEMPTS;
		copy = *lock;
		if (abandoned)
			finish_release_locked(lock, &wake);
		LWLockRelease(pgpx_shared->locks_lock);
		pgpx_wake_flush(&wake);
		if (abandoned)
			ereport(LOG,
					(errmsg("pgpool_ext could not release lock \"%s\" of server \"%s\" of database \"%s\"",
							copy.name, NameStr(pgpx_pools[pool].server_name),
							NameStr(pgpx_pools[pool].database_name)),
					 errdetail("%d attempts have failed, the last one: %s",
							   copy.attempts, reason),
					 errhint("The lock expires when its ttl of " INT64_FORMAT " ms has passed on the remote server.",
							 copy.ttl_ms)));
	}
}

void
pgpx_lock_revoke(int slot, uint64 acquisition)
{
	PgpxLock   *lock = &pgpx_locks[slot];
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pgpx_shared->locks_lock, LW_EXCLUSIVE);
	if (lock->acquisition == acquisition && pgpx_lock_needs_release(lock))
		finish_release_locked(lock, &wake);
	LWLockRelease(pgpx_shared->locks_lock);
	pgpx_wake_flush(&wake);
	lose(slot, acquisition, false, true, LOSS_REVOKED);
}

bool
pgpx_lock_pool_has_locks(int pool, uint32 pool_id)
{
	PgpxLock	lock;

	for (int i = 0; i < pgpx_locks_end(); i++)
		if (pgpx_lock_copy(i, &lock) &&
			pgpx_lock_is_of_pool(&lock, pool, pool_id))
			return true;
	return false;
}

/* --- verification -------------------------------------------------------- */

/* Verify the table of locks.  Under locks_lock, faults are only recorded. */
static void
check_locks(PgpxFaults *faults)
{
	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
	{
		const PgpxLock *lock = &pgpx_locks[i];
		PgpxTime	now = pgpx_steady_now();

		if (lock->state == PGPX_LOCK_FREE)
			continue;
		if (i >= pgpx_locks_end())
			pgpx_check_fault(faults, "lock in slot %d is in use, but slots end at %d",
							 i, pgpx_locks_end());

		/* the exit callback releases a lock before the process is gone */
		if ((lock->state != PGPX_LOCK_RELEASING || lock->awaited) &&
			!pgpx_check_is_alive(lock->owner_procno, lock->owner_pid))
			pgpx_check_fault(faults, "lock in slot %d belongs to PID %d, which does not exist",
							 i, lock->owner_pid);
		if (lock->state != PGPX_LOCK_HELD)
			continue;
		if (lock->token <= 0 || lock->pool < 0 || lock->sent_at > now ||
			lock->valid_until !=
				certain_until(lock->sent_at, lock->ttl_ms))
			pgpx_check_fault(faults, "lock in slot %d is held without a token or a pool, or for longer than its ttl",
							 i);
		for (int j = 0; j < i; j++)
			if (pgpx_locks[j].state == PGPX_LOCK_HELD &&
				pgpx_locks[j].valid_until > now && lock->valid_until > now &&
				strcmp(pgpx_locks[j].name, lock->name) == 0 &&
				memcmp(&pgpx_locks[j].key, &lock->key, sizeof(lock->key)) == 0)
				pgpx_check_fault(faults, "locks in slots %d and %d are the same lock, and both are held",
								 j, i);
	}
	LWLockRelease(pgpx_shared->locks_lock);
}

/* --- hooks for lower layers --------------------------------------------- */

static Size
shmem_size(void)
{
	return MAXALIGN(mul_size(pgpx_max_locks, sizeof(PgpxLock)));
}

static void
shmem_attach(char *at)
{
	pgpx_locks = (PgpxLock *) at;
}

static uint64
next_held(Oid database, int *slot, PgpxPoolKey *key, Oid *user)
{
	PgpxLock	lock;

	while (*slot < pgpx_locks_end())
		if (pgpx_lock_copy((*slot)++, &lock) && lock.state == PGPX_LOCK_HELD &&
			lock.key.database == database)
		{
			*key = lock.key;
			*user = lock.owner_user;
			return lock.acquisition;
		}
	return 0;
}

static void
lose_acquisition(uint64 acquisition)
{
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (pgpx_locks[i].acquisition == acquisition)
			lose(i, acquisition, false, false, LOSS_REVOKED);
}

static const PgpxLockHooks hooks = {
	.shmem_size = shmem_size,
	.shmem_attach = shmem_attach,
	.pool_has_locks = pgpx_lock_pool_has_locks,
	.check = check_locks,
	.release_all = pgpx_lock_release_all,
	.next_held = next_held,
	.lose = lose_acquisition,
	.ping = pgpx_lock_pinger_run,
	.ready = pgpx_lock_pinger_ready,
	.descriptors = pgpx_lock_pinger_descriptors,
};

void
pgpx_lock_hooks_init(void)
{
	pgpx_lock_hooks = &hooks;
}
