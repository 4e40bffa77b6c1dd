/*-------------------------------------------------------------------------
 *
 * dlock_queue.c
 *	  Who waits for a distributed lock in this server, first come first served.
 *
 * The first of a queue asks the remote; the others sleep until they are first.
 * Between servers there is no order, but a server whose sessions have handed a lock
 * on among themselves for a while stands back if another one wants it, for as long
 * as that one needs to ask.
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

int
pgpx_dlock_first_locked(uint64 queue)
{
	int			first = -1;

	for (int i = 0; i < pgpx_shared->ntickets; i++)
	{
		PgpxDlockWaiter *waiter = &pgpx_dlock_waiters[i];

		if (waiter->number != 0 && waiter->queue == queue &&
			(first < 0 || waiter->number < pgpx_dlock_waiters[first].number))
			first = i;
	}
	return first;
}

void
pgpx_dlock_enter(uint64 queue)
{
	PgpxDlockWaiter *waiter = &pgpx_dlock_waiters[MyProcNumber];

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	waiter->queue = queue;
	waiter->number = pg_atomic_fetch_add_u64(&pgpx_shared->next_dlock, 1);
	LWLockRelease(pgpx_shared->dlock_lock);
}

bool
pgpx_dlock_is_first(uint64 queue)
{
	bool		mine;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	mine = pgpx_dlock_first_locked(queue) == (int) MyProcNumber;
	LWLockRelease(pgpx_shared->dlock_lock);
	return mine;
}

bool
pgpx_dlock_has_waiters(uint64 queue)
{
	bool		any;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	any = pgpx_dlock_first_locked(queue) >= 0;
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
	int			next = -1;

	LWLockAcquire(pgpx_shared->dlock_lock, LW_EXCLUSIVE);
	if (waiter->number != 0)
	{
		waiter->number = 0;
		next = pgpx_dlock_first_locked(waiter->queue);
	}
	LWLockRelease(pgpx_shared->dlock_lock);
	if (next >= 0)
		pgpx_process_wake(next);
}
