/*-------------------------------------------------------------------------
 *
 * dlock_work.c
 *	  Distributed locks in shared memory, from the worker's side: which run out,
 *	  which are to be pinged, which the remote has to be told are free.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "storage/procarray.h"

/* The pause after the first attempt to release that has failed; doubled. */
#define RELEASE_PAUSE_US (250 * 1000)

static bool
is_of(const PgpxDlock *lock, int pool, uint32 pool_id)
{
	return lock->state != PGPX_DLOCK_FREE && lock->pool == pool &&
		lock->pool_id == pool_id;
}

/* Has the remote to be told that it is free? */
static bool
is_to_release(const PgpxDlock *lock)
{
	return (lock->state == PGPX_DLOCK_RELEASING ||
			lock->state == PGPX_DLOCK_LOST) &&
		!lock->settled;
}

/* When the next ping is due, on the steady clock. */
static PgpxTime
ping_at(const PgpxDlock *lock)
{
	return lock->asked_at + Min(PGPX_DLOCK_PING_US, lock->ttl * 1000 / 3);
}

PgpxTime
pgpx_dlock_expire(int worker)
{
	PgpxTime	next;
	PgpxDlock	lost;
	bool		found;

	do
	{
		PgpxTime	now = pgpx_steady_now();

		found = false;
		next = PG_INT64_MAX;
		LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
		for (int i = 0; i < pgpx_shared->max_locks && !found; i++)
		{
			PgpxDlock  *lock = &pgpx_dlocks[i];

			if (lock->state != PGPX_DLOCK_HELD || lock->worker != worker)
				continue;
			if (now < lock->valid_until)
			{
				next = Min(next, lock->valid_until);
				continue;
			}
			lock->state = PGPX_DLOCK_LOST;
			lost = *lock;
			found = true;
		}
		LWLockRelease(pgpx_shared->dlock_lock);
		if (found)
			pgpx_dlock_log_loss(&lost, false);
	} while (found);
	return next;
}

int
pgpx_dlock_next_pool(int worker, int from, uint32 *pool_id)
{
	int			pool = -1;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
	{
		PgpxDlock  *lock = &pgpx_dlocks[i];

		if (lock->state == PGPX_DLOCK_FREE || lock->worker != worker ||
			lock->pool < from || (pool >= 0 && lock->pool >= pool))
			continue;
		pool = lock->pool;
		*pool_id = lock->pool_id;
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	return pool;
}

void
pgpx_dlock_due(int pool, uint32 pool_id, PgpxDlockDue *due)
{
	memset(due, 0, sizeof(*due));
	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
	{
		PgpxDlock  *lock = &pgpx_dlocks[i];

		if (!is_of(lock, pool, pool_id))
			continue;
		if (lock->state == PGPX_DLOCK_HELD)
		{
			PgpxTime	at = ping_at(lock);

			due->nheld++;
			if (due->ping_at == 0 || at < due->ping_at)
				due->ping_at = at;
			if (due->min_ttl == 0 || lock->ttl < due->min_ttl)
				due->min_ttl = lock->ttl;
		}
		else if (is_to_release(lock))
		{
			if (due->nreleases++ == 0 || lock->retry_at < due->release_at)
				due->release_at = lock->retry_at;
		}
	}
	LWLockRelease(pgpx_shared->dlock_lock);
}

static void
take(PgpxDlockWork *work, int place)
{
	const PgpxDlock *lock = &pgpx_dlocks[place];

	work->place = place;
	work->request = lock->request;
	work->token = lock->token;
	work->ttl = lock->ttl;
	strlcpy(work->name, lock->name, sizeof(work->name));
}

int
pgpx_dlock_to_ping(int pool, uint32 pool_id, PgpxDlockWork *work)
{
	int			n = 0;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
		if (is_of(&pgpx_dlocks[i], pool, pool_id) &&
			pgpx_dlocks[i].state == PGPX_DLOCK_HELD)
			take(&work[n++], i);
	LWLockRelease(pgpx_shared->dlock_lock);
	return n;
}

int
pgpx_dlock_to_release(int pool, uint32 pool_id, PgpxDlockWork *work)
{
	PgpxTime	now = pgpx_now();
	int			n = 0;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
		if (is_of(&pgpx_dlocks[i], pool, pool_id) &&
			is_to_release(&pgpx_dlocks[i]) && pgpx_dlocks[i].retry_at <= now)
			take(&work[n++], i);
	LWLockRelease(pgpx_shared->dlock_lock);
	return n;
}

void
pgpx_dlock_pinged(const PgpxDlockWork *work, bool ours, PgpxTime asked_at)
{
	PgpxDlock  *lock = &pgpx_dlocks[work->place];
	PgpxDlock	copy;
	bool		lost = false;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	if (lock->request == work->request && lock->state == PGPX_DLOCK_HELD)
	{
		if (ours && pgpx_steady_now() < lock->valid_until)
		{
			lock->asked_at = asked_at;
			lock->valid_until = pgpx_dlock_certain_until(asked_at, lock->ttl);
			lock->last_ping = pgpx_now();
		}
		else
		{
			lock->state = PGPX_DLOCK_LOST;
			lock->settled = !ours;
			copy = *lock;
			lost = true;
		}
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	if (lost)
		pgpx_dlock_log_loss(&copy, !ours);
}

/* The remote knows, or will by the clock: wake whom that concerns. */
static void
settle_locked(PgpxDlock *lock, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->dlock_lock, LW_EXCLUSIVE));
	lock->settled = true;
	if (lock->state == PGPX_DLOCK_RELEASING)
	{
		lock->state = lock->awaited ? PGPX_DLOCK_DONE : PGPX_DLOCK_FREE;
		if (lock->awaited)
			pgpx_wake_add(wake, lock->owner_procno);
	}
	pgpx_dlock_add_firsts_locked(lock->queue, wake);
}

void
pgpx_dlock_released(const PgpxDlockWork *work, bool ours, bool wanted)
{
	PgpxDlock  *lock = &pgpx_dlocks[work->place];
	PgpxWake	wake = PGPX_WAKE_INIT;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	if (lock->request == work->request && is_to_release(lock))
	{
		if (lock->result == PGPX_DLOCK_UNKNOWN)
			lock->result = ours ? PGPX_DLOCK_RELEASED :
				lock->attempts > 0 ? PGPX_DLOCK_UNKNOWN : PGPX_DLOCK_NOT_OURS;
		settle_locked(lock, &wake);
		pgpx_dlock_turn_ends_locked(lock->queue, wanted);
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	pgpx_wake_flush(&wake);
}

/* One lock's attempts are used up: say so. */
static void
log_given_up(const PgpxDlock *lock, const char *why)
{
	ereport(LOG,
			(errmsg("pgpool_ext could not release lock \"%s\" of server \"%s\" of database \"%s\"",
					lock->name, NameStr(lock->server_name),
					NameStr(lock->database_name)),
			 errdetail("%d attempts have failed, the last one: %s", lock->attempts,
					   why),
			 errhint("The lock is free when its ttl of " INT64_FORMAT " ms has passed at the remote.",
					 lock->ttl)));
}

void
pgpx_dlock_release_failed(int pool, uint32 pool_id, const char *why)
{
	PgpxTime	now = pgpx_now();

	for (int i = 0; i < pgpx_shared->max_locks; i++)
	{
		PgpxDlock  *lock = &pgpx_dlocks[i];
		PgpxDlock	copy;
		bool		given_up = false;
		PgpxWake	wake = PGPX_WAKE_INIT;

		LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
		if (is_of(lock, pool, pool_id) && is_to_release(lock) &&
			lock->retry_at <= now)
		{
			lock->attempts++;
			lock->retry_at = now + (RELEASE_PAUSE_US << lock->attempts) / 2;
			if (lock->attempts >= PGPX_DLOCK_ATTEMPTS)
			{
				copy = *lock;
				given_up = true;
				settle_locked(lock, &wake);
			}
		}
		LWLockRelease(pgpx_shared->dlock_lock);
		if (given_up)
			log_given_up(&copy, why);
		pgpx_wake_flush(&wake);
	}
}

/* Its session has gone: release it, if it is still the same acquisition. */
static void
reclaim(PgpxDlock *lock, const PgpxDlock *seen)
{
	bool		mine;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	mine = lock->state == seen->state && lock->request == seen->request;
	if (mine)
	{
		lock->awaited = false;
		lock->state = lock->settled || lock->state == PGPX_DLOCK_DONE ?
			PGPX_DLOCK_FREE : PGPX_DLOCK_RELEASING;
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	if (mine)
		pg_atomic_fetch_add_u32(&pgpx_shared->dlocks_changed, 1);
	if (mine)
		ereport(LOG,
				(errmsg("pgpool_ext releases lock \"%s\": its holder with PID %d has gone",
						seen->name, seen->owner_pid)));
}

bool
pgpx_dlock_sweep(int worker)
{
	bool		any = false;

	for (int i = 0; i < pgpx_shared->max_locks; i++)
	{
		PgpxDlock	lock;

		if (pgpx_dlocks[i].state == PGPX_DLOCK_FREE ||
			!pgpx_dlock_copy(i, &lock) || lock.worker != worker)
			continue;
		any = true;

		/*
		 * Who is not in the process array any more has run its exit callback,
		 * if it ever will; a PGPROC keeps the pid until it is used again.
		 */
		if ((lock.state != PGPX_DLOCK_RELEASING || lock.awaited) &&
			BackendPidGetProc(lock.owner_pid) !=
				GetPGProcByNumber(lock.owner_procno))
			reclaim(&pgpx_dlocks[i], &lock);
	}
	return any;
}

bool
pgpx_dlock_any(int pool, uint32 pool_id)
{
	bool		any = false;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks && !any; i++)
		any = is_of(&pgpx_dlocks[i], pool, pool_id);
	LWLockRelease(pgpx_shared->dlock_lock);
	return any;
}
