/*-------------------------------------------------------------------------
 *
 * dlock_queue.c
 *	  Who waits for a distributed lock in this server, first come first served in
 *	  each pool.
 *
 * In the queue of a lock those who came through one pool are a line: its first asks
 * the remote, the others sleep until they are first.  Pools have a line each, since
 * a first one who waits for a connection may wait for long, or for ever, and must
 * keep nobody else from the lock: those of his own pool have no connection either.
 * Between lines there is no order.  Nor is there between servers, but a server whose
 * sessions have handed a lock on among themselves for a while stands back if another
 * one wants it, for as long as that one needs to ask.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "common/hashfn.h"

/* How long a server may keep a lock among its own sessions. */
#define TURN_US (1000 * 1000)

/*
 * One queue for a lock, whoever's pool leads to its server.  Two locks that share
 * one by chance wait for each other's turn, and nothing else happens.
 */
uint64
pgpx_dlock_queue(Oid database, Oid server, const char *name)
{
	uint64		seed = ((uint64) database << 32) | server;

	return hash_bytes_extended((const unsigned char *) name, strlen(name),
							   seed) |
		1;
}

static bool
is_in_line(const PgpxDlockWaiter *waiter, uint64 queue, const PgpxPoolKey *key)
{
	return waiter->number != 0 && waiter->queue == queue &&
		memcmp(&waiter->key, key, sizeof(*key)) == 0;
}

static bool
is_first_locked(const PgpxDlockWaiter *mine)
{
	Assert(LWLockHeldByMe(pgpx_shared->dlock_lock));
	for (int i = 0; i < pgpx_shared->ntickets; i++)
		if (pgpx_dlock_waiters[i].number < mine->number &&
			is_in_line(&pgpx_dlock_waiters[i], mine->queue, &mine->key))
			return false;
	return true;
}

void
pgpx_dlock_add_firsts_locked(uint64 queue, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->dlock_lock, LW_EXCLUSIVE));
	for (int i = 0; i < pgpx_shared->ntickets; i++)
	{
		PgpxDlockWaiter *waiter = &pgpx_dlock_waiters[i];

		if (waiter->number != 0 && waiter->queue == queue &&
			is_first_locked(waiter))
			pgpx_wake_add(wake, i);
	}
}

void
pgpx_dlock_enter(const PgpxDlock *lock)
{
	PgpxDlockWaiter *waiter = &pgpx_dlock_waiters[MyProcNumber];

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	waiter->queue = lock->queue;
	waiter->key = lock->key;
	waiter->number = pg_atomic_fetch_add_u64(&pgpx_shared->next_dlock, 1);
	LWLockRelease(pgpx_shared->dlock_lock);
}

bool
pgpx_dlock_is_first(void)
{
	bool		first;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	first = is_first_locked(&pgpx_dlock_waiters[MyProcNumber]);
	LWLockRelease(pgpx_shared->dlock_lock);
	return first;
}

bool
pgpx_dlock_has_waiters(const PgpxDlock *lock)
{
	bool		any = false;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->ntickets && !any; i++)
		any = is_in_line(&pgpx_dlock_waiters[i], lock->queue, &lock->key);
	LWLockRelease(pgpx_shared->dlock_lock);
	return any;
}

static PgpxDlockTurn *
get_turn(uint64 queue)
{
	return &pgpx_dlock_turns[queue / 2 % PGPX_DLOCK_TURNS];
}

void
pgpx_dlock_turn_begins_locked(uint64 queue)
{
	PgpxDlockTurn *turn = get_turn(queue);
	PgpxTime	now = pgpx_now();

	Assert(LWLockHeldByMeInMode(pgpx_shared->dlock_lock, LW_EXCLUSIVE));
	if (turn->queue == queue && turn->since != 0 &&
		now - turn->last < TURN_US)
		return;
	turn->queue = queue;
	turn->since = now;
	turn->stand_back = 0;
}

void
pgpx_dlock_turn_ends_locked(uint64 queue, bool wanted)
{
	PgpxDlockTurn *turn = get_turn(queue);
	PgpxTime	now = pgpx_now();

	Assert(LWLockHeldByMeInMode(pgpx_shared->dlock_lock, LW_EXCLUSIVE));
	if (turn->queue != queue)
		return;
	turn->last = now;
	if (!wanted || turn->since == 0 || now - turn->since < TURN_US)
		return;
	turn->since = 0;
	turn->stand_back = now + PGPX_DLOCK_STAND_BACK_US;
}

PgpxTime
pgpx_dlock_stands_back(uint64 queue)
{
	PgpxDlockTurn *turn = get_turn(queue);
	PgpxTime	until;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	until = turn->queue == queue ? turn->stand_back : 0;
	LWLockRelease(pgpx_shared->dlock_lock);
	return until;
}

void
pgpx_dlock_leave(void)
{
	PgpxDlockWaiter *waiter = &pgpx_dlock_waiters[MyProcNumber];
	PgpxWake	wake = PGPX_WAKE_INIT;

	/*
	 * The firsts of the other lines, too: if this one has got the lock, they need
	 * not ask the remote for it any more.
	 */
	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	if (waiter->number != 0)
	{
		waiter->number = 0;
		pgpx_dlock_add_firsts_locked(waiter->queue, &wake);
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	pgpx_wake_flush(&wake);
}
