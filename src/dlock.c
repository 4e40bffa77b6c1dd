/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Distributed locks in shared memory, from their sessions' side.
 *
 * What happens when the process dies at any line: the exit callback of
 * dlock_session.c releases every place that bears the session's mark, and a place
 * bears it from pgpx_dlock_alloc on, before the remote is asked.  Were that
 * callback not run, the worker's sweep finds that the owner is gone.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include <time.h>

int			pgpx_dlock_nmine = 0;

PgpxTime
pgpx_steady_now(void)
{
	struct timespec ts;

#ifdef CLOCK_BOOTTIME
	if (clock_gettime(CLOCK_BOOTTIME, &ts) != 0)
#endif
		clock_gettime(CLOCK_MONOTONIC, &ts);
	return (PgpxTime) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

PgpxTime
pgpx_steady_to_now(PgpxTime t)
{
	return t == 0 ? 0 : pgpx_now() + (t - pgpx_steady_now());
}

/*
 * The remote counts the ttl from when the question reaches it, we from before it
 * was sent.  A hundredth of it is for clocks that do not go at one pace.
 */
PgpxTime
pgpx_dlock_certain_until(PgpxTime asked_at, int64 ttl)
{
	return asked_at + ttl * 1000 - ttl * 10;
}

/* The worker has something to look at. */
static void
tell_worker(int worker)
{
	pg_atomic_fetch_add_u32(&pgpx_shared->dlocks_changed, 1);
	pgpx_worker_wake(worker);
}

static bool
is_mine(const PgpxDlock *lock)
{
	return lock->state != PGPX_DLOCK_FREE &&
		lock->owner_procno == (int) MyProcNumber &&
		lock->owner_pid == MyProcPid &&
		(lock->state != PGPX_DLOCK_RELEASING || lock->awaited);
}

int
pgpx_dlock_alloc(PgpxDlock *lock)
{
	int			place = -1;

	lock->state = PGPX_DLOCK_ASKED;
	lock->request = pg_atomic_fetch_add_u64(&pgpx_shared->next_dlock, 1);
	lock->owner_procno = MyProcNumber;
	lock->owner_pid = MyProcPid;
	lock->since = pgpx_now();

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	for (int i = 0; i < pgpx_shared->max_locks && place < 0; i++)
		if (pgpx_dlocks[i].state == PGPX_DLOCK_FREE)
			place = i;
	if (place >= 0)
	{
		pgpx_dlocks[place] = *lock;
		pgpx_dlock_nmine++;
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	return place;
}

void
pgpx_dlock_renew(int place, PgpxDlock *lock)
{
	lock->request = pg_atomic_fetch_add_u64(&pgpx_shared->next_dlock, 1);
	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	pgpx_dlocks[place].request = lock->request;
	LWLockRelease(pgpx_shared->dlock_lock);
}

void
pgpx_dlock_granted(int place, int64 token, PgpxTime asked_at)
{
	PgpxDlock  *lock = &pgpx_dlocks[place];
	int			worker;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	lock->state = PGPX_DLOCK_HELD;
	lock->token = token;
	lock->asked_at = asked_at;
	lock->valid_until = pgpx_dlock_certain_until(asked_at, lock->ttl);
	lock->since = pgpx_now();
	worker = lock->worker;
	pgpx_dlock_turn_begins_locked(lock->queue);
	LWLockRelease(pgpx_shared->dlock_lock);
	tell_worker(worker);
}

void
pgpx_dlock_refused(int place)
{
	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	pgpx_dlocks[place].state = PGPX_DLOCK_FREE;
	pgpx_dlock_nmine--;
	LWLockRelease(pgpx_shared->dlock_lock);
}

/* HELD by this server, in truth or as far as it knows. */
static bool
is_held(const PgpxDlock *lock)
{
	return lock->state == PGPX_DLOCK_HELD || lock->state == PGPX_DLOCK_LOST;
}

int
pgpx_dlock_find(const PgpxPoolKey *key, const char *name, int64 token,
				PgpxDlock *copy)
{
	int			place = -1;
	bool		lost = false;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks && place < 0; i++)
	{
		PgpxDlock  *lock = &pgpx_dlocks[i];

		if (lock->token == token && is_held(lock) &&
			memcmp(&lock->key, key, sizeof(*key)) == 0 &&
			strcmp(lock->name, name) == 0)
		{
			place = i;
			*copy = *lock;
		}
	}
	LWLockRelease(pgpx_shared->dlock_lock);

	if (place < 0 || copy->state == PGPX_DLOCK_LOST ||
		pgpx_steady_now() < copy->valid_until)
		return place;

	/* a ping may just have been answered; if not, it is too late for one now */
	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	if (pgpx_dlocks[place].request != copy->request)
		place = -1;				/* released meanwhile: another lock's place */
	else
	{
		if (pgpx_dlocks[place].state == PGPX_DLOCK_HELD &&
			pgpx_steady_now() >= pgpx_dlocks[place].valid_until)
		{
			pgpx_dlocks[place].state = PGPX_DLOCK_LOST;
			lost = true;
		}
		*copy = pgpx_dlocks[place];
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	if (lost)
	{
		pgpx_dlock_log_loss(copy, false);
		tell_worker(copy->worker);
	}
	return place;
}

void
pgpx_dlock_log_loss(const PgpxDlock *lock, bool refused)
{
	ereport(LOG,
			(errmsg("pgpool_ext lost lock \"%s\" of server \"%s\" of database \"%s\", token " INT64_FORMAT ", held by PID %d",
					lock->name, NameStr(lock->server_name),
					NameStr(lock->database_name), lock->token,
					lock->owner_pid),
			 refused ?
			 errdetail("The remote no longer has it as this session's: it has run out there, or was taken by force.") :
			 errdetail("No ping was answered within its ttl of " INT64_FORMAT " ms.",
					   lock->ttl)));
}

bool
pgpx_dlock_is_held_here(uint64 queue, PgpxDlock *copy)
{
	bool		found = false;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks && !found; i++)
	{
		PgpxDlock  *lock = &pgpx_dlocks[i];

		if (lock->queue != queue)
			continue;

		/*
		 * One whose grant, if there was one, nobody has heard of does not count:
		 * it may be of a user whom the remote would never have given it.
		 */
		found = (lock->state == PGPX_DLOCK_RELEASING && lock->token != 0) ||
			(lock->state == PGPX_DLOCK_HELD &&
			 pgpx_steady_now() < lock->valid_until);
		if (found)
			*copy = *lock;
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	return found;
}

bool
pgpx_dlock_tell(int place, uint64 request)
{
	bool		first = false;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	if (pgpx_dlocks[place].request == request)
	{
		first = !pgpx_dlocks[place].told;
		pgpx_dlocks[place].told = true;
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	return first;
}

void
pgpx_dlock_release(int place, bool awaited)
{
	PgpxDlock  *lock = &pgpx_dlocks[place];
	int			worker = -1;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	if (is_mine(lock))
	{
		if (!awaited)
			pgpx_dlock_nmine--;
		lock->awaited = awaited;

		/* a ping may have found it gone since the session looked */
		if (lock->state == PGPX_DLOCK_LOST)
			lock->result = PGPX_DLOCK_NOT_OURS;
		if (lock->settled || lock->state == PGPX_DLOCK_DONE)
			lock->state = awaited ? PGPX_DLOCK_DONE : PGPX_DLOCK_FREE;
		else
		{
			if (lock->state != PGPX_DLOCK_RELEASING)
			{
				lock->attempts = 0;
				lock->retry_at = 0;
			}
			lock->state = PGPX_DLOCK_RELEASING;
			worker = lock->worker;
		}
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	if (worker >= 0)
		tell_worker(worker);
}

bool
pgpx_dlock_result(int place, PgpxDlockResult *result)
{
	bool		done;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	done = pgpx_dlocks[place].state == PGPX_DLOCK_DONE;
	if (done)
	{
		*result = (PgpxDlockResult) pgpx_dlocks[place].result;
		pgpx_dlocks[place].state = PGPX_DLOCK_FREE;
		pgpx_dlock_nmine--;
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	return done;
}

int
pgpx_dlock_mine(int after, PgpxDlock *copy)
{
	int			place = -1;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = after + 1; i < pgpx_shared->max_locks && place < 0; i++)
		if (is_mine(&pgpx_dlocks[i]))
		{
			*copy = pgpx_dlocks[i];
			place = i;
		}
	LWLockRelease(pgpx_shared->dlock_lock);
	return place;
}

void
pgpx_dlock_reparent(SubTransactionId from, SubTransactionId to)
{
	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
		if (is_mine(&pgpx_dlocks[i]) && pgpx_dlocks[i].subid == from)
			pgpx_dlocks[i].subid = to;
	LWLockRelease(pgpx_shared->dlock_lock);
}

bool
pgpx_dlock_copy(int place, PgpxDlock *copy)
{
	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	*copy = pgpx_dlocks[place];
	LWLockRelease(pgpx_shared->dlock_lock);
	return copy->state != PGPX_DLOCK_FREE;
}
