/*-------------------------------------------------------------------------
 *
 * lock_table.h
 *	  Distributed locks in shared memory.
 *
 * A lock is a row of a table on a remote server; see lock_remote.c.  Here is who
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
 * Distributed locks in shared memory: who of this server holds which.
 *
 * See lock_table.h for the states.  Takes dlock_lock and no other; nothing here
 * speaks with a remote.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_TABLE_H
#define PGPX_LOCK_TABLE_H

#include "shared/conn_state.h"
#include "shared/invariants.h"

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
	bool		loss_reported;	/* its session knows that it is lost */

	/* how its release stands: RELEASING, and LOST */
	bool		remote_done;	/* the remote need not be told any more */
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
	PgpxTime	back_off_until; /* until then */
} PgpxDlockTurn;

extern PgpxDlock *pgpx_dlocks;	/* [max_locks] */
extern PgpxDlockWaiter *pgpx_dlock_waiters; /* [ntickets], by MyProcNumber */
extern PgpxDlockTurn *pgpx_dlock_turns; /* [PGPX_DLOCK_TURNS] */

/* Locks are pinged so often, or three times in their ttl. */
#define PGPX_DLOCK_PING_US (1000 * 1000)

/* The longest pause between two questions, and how long to stand back for one. */
#define PGPX_DLOCK_PAUSE_US (200 * 1000)
#define PGPX_DLOCK_BACK_OFF_US (350 * 1000)

/* How often the worker tries to tell the remote of a release. */
#define PGPX_DLOCK_ATTEMPTS 3

/*
 * Microseconds of a clock that only rises, at the pace of real time, and does not
 * stop while the machine is suspended.
 */
extern PgpxTime pgpx_steady_now(void);

/* A steady instant as one of pgpx_now. */
extern PgpxTime pgpx_steady_to_now(PgpxTime t);

/* Until when a grant that was asked for at this instant is certain. */
extern PgpxTime pgpx_dlock_certain_until(PgpxTime asked_at, int64 ttl);

/* --- for sessions ---------------------------------------------------------- */

/*
 * pgpx_dlock_alloc
 *		Note that this session is about to ask for a lock.  Fills in the request
 *		and the owner; returns its place, -1 if all are taken.
 */
extern int	pgpx_dlock_alloc(PgpxDlock *lock);

/* The remote grants nothing to this request any more: go on with another one. */
extern void pgpx_dlock_renew(int slot, PgpxDlock *lock);

/* The remote has granted it: HELD.  asked_at: before the question was sent. */
extern void pgpx_dlock_granted(int slot, int64 token, PgpxTime asked_at);

/* It has not: the place is free. */
extern void pgpx_dlock_refused(int slot);

/*
 * pgpx_dlock_find
 *		The lock of this key, name and token, HELD or LOST as of now; *lock is a copy.
 *		-1: this server has no such lock.  A lock that has run out is LOST from here on.
 */
extern int	pgpx_dlock_find(const PgpxPoolKey *key, const char *name,
							int64 token, PgpxDlock *lock);

/* Does this server hold a lock of this queue, or is it about to release it? */
extern bool pgpx_dlock_is_held_here(uint64 queue, PgpxDlock *lock);

/* The log's line; refused: the remote has said so, and not the clock. */
extern void pgpx_dlock_log_loss(const PgpxDlock *lock, bool refused);

/* Remember that its session knows of the loss; false if it did before. */
extern bool pgpx_dlock_note_reported(int slot, uint64 request);

/*
 * pgpx_dlock_release
 *		Give a lock of this session up; the worker tells the remote.  awaited: the
 *		session asks for the result, with pgpx_dlock_result, and frees the place.
 *		Throws nothing.
 */
extern void pgpx_dlock_release(int slot, bool awaited);

/* True once the release has come to its end; the place is free then. */
extern bool pgpx_dlock_result(int slot, PgpxDlockResult *result);

/* How many places this session has; each of them by pgpx_dlock_own. */
extern int	pgpx_dlock_nown;
extern int	pgpx_dlock_own(int after, PgpxDlock *lock);

/* At the end of a subtransaction: its locks are its parent's. */
extern void pgpx_dlock_reparent(SubTransactionId from, SubTransactionId to);

/* --- the queue of those who wait, in this server ---------------------------- */

extern uint64 pgpx_dlock_queue(Oid database, Oid server, const char *name);

/* Stand in line for a lock, through the pool of its key; is it this one's turn? */
extern void pgpx_dlock_enter(const PgpxDlock *lock);
extern bool pgpx_dlock_is_first(void);

/* Does anybody stand in the line that this lock would be waited for in? */
extern bool pgpx_dlock_has_waiters(const PgpxDlock *lock);

/* Leave the line, and wake who is first now.  Throws nothing. */
extern void pgpx_dlock_leave(void);

/*
 * The lock is being granted, or released; wanted: another server has asked for it
 * meanwhile.
 */
extern void pgpx_dlock_turn_begins_locked(uint64 queue);
extern void pgpx_dlock_turn_ends_locked(uint64 queue, bool contended);

/* Until when the sessions of this server do not ask for it; 0: they may. */
extern PgpxTime pgpx_dlock_backs_off(uint64 queue);

/* The lock may be free: wake the first of each line. */
extern void pgpx_dlock_add_firsts_locked(uint64 queue, PgpxWake *wake);

/* --- for the worker --------------------------------------------------------- */

/* What the worker has to do with a lock. */
typedef struct PgpxDlockWork
{
	int			slot;
	uint64		request;
	int64		token;
	int64		ttl;
	char		name[PGPX_DLOCK_NAME_LEN];
} PgpxDlockWork;

/* What is to be done for the locks of one pool. */
typedef struct PgpxDlockDue
{
	int			nheld;
	int			nreleases;		/* to be told, now or later */
	int64		min_ttl;		/* ms, of those; 0: none */
	PgpxTime	ping_at;		/* steady: the next one is due; 0: none */
	PgpxTime	release_at;		/* pgpx_now: the next one is due; 0: none */
} PgpxDlockDue;

/* Look after this worker's locks: those that run out are lost.  When again? */
extern PgpxTime pgpx_dlock_expire(int worker);

/* The next pool from this index on that has locks of this worker; -1: none. */
extern int	pgpx_dlock_next_pool(int worker, int from, uint32 *pool_id);
extern void pgpx_dlock_due(int pool, uint32 pool_id, PgpxDlockDue *due);

/* The locks to ping, or the releases that are due; at most max_locks. */
extern int	pgpx_dlock_to_ping(int pool, uint32 pool_id, PgpxDlockWork *work);
extern int	pgpx_dlock_to_release(int pool, uint32 pool_id,
								  PgpxDlockWork *work);

/* The remote has answered a ping that was sent at this instant. */
extern void pgpx_dlock_pinged(const PgpxDlockWork *work, bool ours,
							  PgpxTime asked_at);

/* The remote has answered a release; or the attempt has failed. */
extern void pgpx_dlock_released(const PgpxDlockWork *work, bool ours,
								bool contended);
extern void pgpx_dlock_release_failed(int pool, uint32 pool_id,
									  const char *why);

/* Release the locks of holders that are gone; true: there are locks. */
extern bool pgpx_dlock_sweep(int worker);

/* Has the pool any locks? */
extern bool pgpx_dlock_any(int pool, uint32 pool_id);

/* --- for views -------------------------------------------------------------- */

extern bool pgpx_dlock_copy(int slot, PgpxDlock *lock);

/* Check the distributed locks. */
extern void pgpx_check_dlocks(PgpxCheck *check);

#endif							/* PGPX_LOCK_TABLE_H */
