/*-------------------------------------------------------------------------
 *
 * dlock_table.h
 *	  The distributed locks of this server, as they lie in shared memory.
 *
 * A lock is a row of a table on a remote server; see dlock_remote.c.  Here is who
 * of this server holds it, until when that is certain, and what the worker has
 * still to tell the remote.  All of it is protected by PgpxShared.dlock_lock; see
 * the lock table in shmem.h.
 *
 *	 FREE --alloc--> ASKED --granted--> HELD --unlock, end of scope--> RELEASING
 *					   |				 |								  |
 *					   |				 '--not certain any more--> LOST  |
 *					   |											  |	  |
 *					   '--no answer: the remote may have granted it---|---+
 *									  the worker has told the remote  |	  |
 *	 FREE <-- the session has seen the result -- DONE <-- awaited ----|---+
 *	   ^------------------------------------ nobody waits ------------'---'
 *
 * HELD becomes LOST by the clock, whoever looks first: the worker, or the session
 * in lock_valid.  It never becomes HELD again.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DLOCK_TABLE_H
#define PGPX_DLOCK_TABLE_H

#include "shmem.h"

#define PGPX_DLOCK_NAME_LEN 256 /* bytes of a lock's name, with the NUL */
#define PGPX_DLOCK_WHO_LEN 192

typedef enum PgpxDlockState
{
	PGPX_DLOCK_FREE = 0,
	PGPX_DLOCK_ASKED,			/* the remote is being asked, or has not answered */
	PGPX_DLOCK_HELD,
	PGPX_DLOCK_LOST,			/* somebody else may have it */
	PGPX_DLOCK_RELEASING,		/* given up here; the worker tells the remote */
	PGPX_DLOCK_DONE				/* .. has told, and the session waits to hear it */
} PgpxDlockState;

/* What became of a release. */
typedef enum PgpxDlockResult
{
	PGPX_DLOCK_UNKNOWN = 0,		/* the remote has not said */
	PGPX_DLOCK_RELEASED,		/* it was this session's until then */
	PGPX_DLOCK_NOT_OURS			/* it was somebody else's, or nobody's */
} PgpxDlockResult;

/*
 * Instants of the steady clock go on while the machine sleeps; they are for what
 * is certain and what is not.  The others are those of pgpx_now.
 */
typedef struct PgpxDlock
{
	int			state;			/* PgpxDlockState; see above */
	uint64		request;		/* of this acquisition; never repeats in a life */

	/* what it is a lock on */
	PgpxPoolKey key;
	int			pool;
	uint32		pool_id;
	int			worker;
	NameData	database_name;
	NameData	server_name;
	char		name[PGPX_DLOCK_NAME_LEN];
	uint64		queue;			/* stands for the lock, whoever's pool leads there */

	/* whose it is */
	int			owner_procno;
	int			owner_pid;
	Oid			owner_user;
	int			scope;			/* PgpxScope */
	SubTransactionId subid;
	char		who[PGPX_DLOCK_WHO_LEN];
	char		why[PGPX_WHY_LEN];

	/* how it stands */
	int64		token;			/* 0: not known */
	int64		ttl;			/* ms */
	PgpxTime	since;
	PgpxTime	last_ping;		/* 0: none yet */
	PgpxTime	asked_at;		/* steady: when what was last granted was sent */
	PgpxTime	valid_until;	/* steady */
	bool		told;			/* its session knows that it is lost */

	/* how its release stands: RELEASING, and LOST */
	bool		settled;		/* the remote need not be told any more */
	bool		awaited;		/* the session waits for the result */
	int			attempts;
	PgpxTime	retry_at;
	int			result;			/* PgpxDlockResult */
} PgpxDlock;

/* A session waits for one lock at a time: at the index of its PGPROC. */
typedef struct PgpxDlockWaiter
{
	uint64		number;			/* rises; 0: does not wait */
	uint64		queue;			/* for this lock */
	PgpxPoolKey key;			/* through this pool: the line that it stands in */
} PgpxDlockWaiter;

/*
 * How long this server has had a lock in turn: its own sessions hand it on faster
 * than another server can ask for it, so they stand back when it wants it.  Found
 * by the queue; another lock may take the place, which costs fairness and no more.
 */
#define PGPX_DLOCK_TURNS 128
typedef struct PgpxDlockTurn
{
	uint64		queue;
	PgpxTime	since;
	PgpxTime	last;			/* release */
	PgpxTime	stand_back;		/* until then */
} PgpxDlockTurn;

extern PgpxDlock *pgpx_dlocks;	/* [max_locks] */
extern PgpxDlockWaiter *pgpx_dlock_waiters; /* [ntickets], by MyProcNumber */
extern PgpxDlockTurn *pgpx_dlock_turns; /* [PGPX_DLOCK_TURNS] */

#endif							/* PGPX_DLOCK_TABLE_H */
