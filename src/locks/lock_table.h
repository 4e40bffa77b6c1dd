/*-------------------------------------------------------------------------
 *
 * lock_table.h
 *	  Table of the distributed locks that this server holds or requests.
 *
 * A distributed lock is a row of a table on a remote server; see
 * lock_remote.c.  The table in shared memory records for each lock the session
 * of this server that holds it, the time until which it is certainly valid,
 * and the release that the worker still has to send.  PgpxShared.locks_lock
 * protects everything in this file; see the lock order in shmem.h.  The
 * functions acquire locks_lock and no other lock, and none of them
 * communicates with a remote server.
 *
 * State transitions of an entry:
 *
 * FREE      -> REQUESTED  the session is about to request the lock
 * REQUESTED -> HELD       the remote granted it
 * REQUESTED -> FREE       the remote refused it
 * REQUESTED -> RELEASING  no answer: the remote may have granted it
 * HELD      -> RELEASING  unlock, or end of the lock's scope or of the process
 * HELD      -> LOST       the validity expired, the remote rejected a ping, or
 *						 the user may not use the server any more
 * LOST      -> RELEASING  the session released it
 * LOST      -> FREE       the same, if the remote needs no release any more
 * RELEASING -> FREE       the release ended
 * RELEASING, LOST -> DONE -> FREE  the same, if the session reads the result
 *
 * The first process that notices the expiry changes HELD to LOST: the worker,
 * or a session in pgpx_lock_find.  A LOST lock never becomes HELD again.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_TABLE_H
#define PGPX_LOCK_TABLE_H

#include "session/server_spec.h"
#include "shared/conn_state.h"
#include "shared/invariants.h"

#define PGPX_LOCK_NAME_LEN 256 /* bytes of a lock's name, with the NUL */
#define PGPX_LOCK_HOLDER_LEN 192

typedef enum PgpxLockState
{
	PGPX_LOCK_FREE = 0,
	PGPX_LOCK_REQUESTED,		/* being requested, or answer lost */
	PGPX_LOCK_HELD,
	PGPX_LOCK_LOST,				/* another session may hold it */
	PGPX_LOCK_RELEASING,		/* released here; not yet at the remote */
	PGPX_LOCK_DONE				/* released; result not yet read */
} PgpxLockState;

/* Result of a release. */
typedef enum PgpxLockResult
{
	PGPX_LOCK_UNKNOWN = 0,		/* the remote did not confirm */
	PGPX_LOCK_RELEASED,			/* held by this session until then */
	PGPX_LOCK_NOT_OWNER			/* no longer held by this session */
} PgpxLockResult;

/*
 * An entry of the table.
 *
 * Times marked "steady" are those of pgpx_steady_now.  That clock advances
 * while the machine is suspended, so the validity of a lock is computed with
 * it.  All other times are those of pgpx_now.
 */
typedef struct PgpxLock
{
	int			state;			/* PgpxLockState; see above */
	uint64		request;		/* unique for each acquisition */

	/* the locked resource */
	PgpxPoolKey key;
	int			pool;
	uint32		pool_id;
	int			worker;
	NameData	database_name;
	NameData	server_name;
	char		name[PGPX_LOCK_NAME_LEN];
	uint64		queue;			/* see pgpx_lock_queue */

	/* the owner */
	int			owner_procno;
	int			owner_pid;
	Oid			owner_user;
	int			scope;			/* PgpxScope */
	SubTransactionId subid;
	char		holder[PGPX_LOCK_HOLDER_LEN];
	char		why[PGPX_WHY_LEN];

	/* the grant */
	int64		token;			/* 0: not known */
	int64		ttl_ms;
	PgpxTime	since;
	PgpxTime	last_ping;		/* 0: none yet */
	PgpxTime	sent_at;		/* steady: last granted request or ping */
	PgpxTime	valid_until;	/* steady */
	bool		loss_reported;	/* the session was warned */

	/* the release, in states RELEASING and LOST */
	bool		remote_done;	/* the remote needs no release */
	bool		awaited;		/* the session waits for the result */
	int			attempts;		/* failed attempts */
	int			nsent;			/* release statements sent */
	PgpxTime	retry_at;
	int			result;			/* PgpxLockResult */
} PgpxLock;

extern PgpxLock *pgpx_locks;	/* [max_locks] */

/* Return one more than the highest slot of a lock that is in use. */
static inline int
pgpx_locks_end(void)
{
	return (int) pg_atomic_read_u32(&pgpx_shared->locks_end);
}

/* Ping interval of a lock; a third of its ttl if that is shorter. */
#define PGPX_LOCK_PING_US (1000 * 1000)

/* Longest pause between two lock requests, without jitter. */
#define PGPX_LOCK_PAUSE_US (200 * 1000)

/* Attempts of the worker to release a lock at the remote. */
#define PGPX_LOCK_ATTEMPTS 3

/* Convert a steady time to one of pgpx_now; 0 stays 0. */
extern PgpxTime pgpx_lock_to_now(PgpxTime t);

/*
 * Return the steady time until which a grant is certainly valid.  sent_at: the
 * steady time before the request was sent.
 */
extern PgpxTime pgpx_lock_certain_until(PgpxTime sent_at, int64 ttl_ms);

/*
 * --- for sessions ---------------------------------------------------------
 */

/*
 * pgpx_lock_alloc
 *		Record in shared memory that this session is about to request a lock.
 *		Set state, request number, owner and start time in *lock; the caller has
 *		set the other fields.  Return the slot, or -1 if all slots are in use.
 */
extern int	pgpx_lock_alloc(PgpxLock *lock);

/*
 * Assign a new request number, because the remote no longer grants the old one.
 */
extern void pgpx_lock_renew(int slot, PgpxLock *lock);

/* Record a grant.  sent_at: the steady time before the request was sent. */
extern void pgpx_lock_granted(int slot, int64 token, PgpxTime sent_at);

/* Free the slot of a request that the remote refused. */
extern void pgpx_lock_refused(int slot);

/*
 * pgpx_lock_find
 *		Find the HELD or LOST lock with this key, name and token and copy it to
 *		*lock.  Return its slot, or -1 if this server has no such lock.  A lock
 *		whose validity has expired is marked LOST first.
 */
extern int	pgpx_lock_find(const PgpxPoolKey *key, const char *name,
						   int64 token, PgpxLock *lock);

/*
 * Return whether a session of this server holds a lock of this queue, or its
 * release is still pending.  If so, copy the lock to *lock.
 */
extern bool pgpx_lock_is_held_here(uint64 queue, PgpxLock *lock);

/*
 * Record that the owner was warned of the loss.  Return false if it was already
 * warned, or if the slot has another request now.
 */
extern bool pgpx_lock_mark_loss_reported(int slot, uint64 request);

/*
 * pgpx_lock_release
 *		Release a lock of this session; the worker sends the release to the
 *		remote.  awaited: the session polls the result with pgpx_lock_result,
 *		which frees the slot.  Raise no error.
 */
extern void pgpx_lock_release(int slot, bool awaited);

/*
 * Read the result of an awaited release and free the slot.  Return false if the
 * release has not ended.
 */
extern bool pgpx_lock_result(int slot, PgpxLockResult *result);

/*
 * Number of slots of this session, and an iterator over them:
 * pgpx_lock_next_own copies the first own lock after slot "after" and returns
 * its slot, or -1.
 */
extern int	pgpx_lock_own_count;
extern int	pgpx_lock_next_own(int after, PgpxLock *lock);

/* Transfer the locks of a committed subtransaction to its parent. */
extern void pgpx_lock_reparent(SubTransactionId from, SubTransactionId to);

/*
 * --- queue of waiters in this server --------------------------------------
 */

/* Return the hash that identifies the queue of a lock; it is not 0. */
extern uint64 pgpx_lock_queue(const PgpxServerSpec *spec, const char *name);

/*
 * Enqueue this session for a lock, in the queue of the pool in lock->key, with
 * the functions of wait_queue.h.  pgpx_lock_is_first then returns whether it is
 * the first waiter of that queue.
 */
extern void pgpx_lock_enqueue(const PgpxLock *lock);
extern bool pgpx_lock_is_first(void);

/* Return whether the queue of this lock has waiters. */
extern bool pgpx_lock_has_waiters(const PgpxLock *lock);

/*
 * Dequeue this session, if it is queued, and wake the waiters that are first
 * now.  Raise no error.
 */
extern void pgpx_lock_dequeue(void);

/*
 * --- for the worker -------------------------------------------------------
 */

/* A lock to ping or to release. */
typedef struct PgpxLockWork
{
	int			slot;
	uint64		request;
	int64		token;
	char		name[PGPX_LOCK_NAME_LEN];
} PgpxLockWork;

/* Pending work for the locks of one pool. */
typedef struct PgpxLockDue
{
	int			nheld;
	int			nreleases;		/* pending, due now or later */
	int64		min_ttl_ms;		/* of the held locks; 0: none */
	PgpxTime	ping_at;		/* steady: next ping; 0: none */
	PgpxTime	release_at;		/* pgpx_now: next release */
} PgpxLockDue;

/*
 * pgpx_lock_revoke
 *		Mark all locks of a pool LOST, because its user may not use the server
 *		any more, or uses another pool.
 *
 * Nothing is sent to the remote, where the locks expire after their ttl.
 */
extern void pgpx_lock_revoke(int pool, uint32 pool_id);

/*
 * pgpx_lock_next_held
 *		Find the next lock from a slot on that is held by a session of a
 *		database.  Return its request, 0 if there is none.  Advance *slot, and
 *		set *key to the lock's pool and *user to its owner.
 */
extern uint64 pgpx_lock_next_held(Oid database, int *slot, PgpxPoolKey *key,
								  Oid *user);

/*
 * Mark a held lock LOST, because its user may not use the server any more.  The
 * worker releases it on the remote server.
 */
extern void pgpx_lock_lose(uint64 request);

/*
 * Mark the expired locks of this worker's pools LOST.  Return the steady time
 * of the next expiry, PG_INT64_MAX if there is none.
 */
extern PgpxTime pgpx_lock_expire(int worker);

/*
 * Return the first pool with an index of at least "from" that has locks of this
 * worker, or -1.
 */
extern int	pgpx_lock_next_pool(int worker, int from, uint32 *pool_id);

/* Set *due to the pending work for the locks of a pool. */
extern void pgpx_lock_find_due(int pool, uint32 pool_id, PgpxLockDue *due);

/*
 * Fill in the releases that are due, or the locks to ping.  Return their
 * number.  "work" must have room for max_locks entries.
 */
extern int	pgpx_lock_list_work(int pool, uint32 pool_id, bool release,
								PgpxLockWork *work);

/*
 * Record the answer to a ping.  extended: the remote extended the lock.
 * sent_at: the steady time before the ping was sent.
 */
extern void pgpx_lock_pinged(const PgpxLockWork *work, bool extended,
							 PgpxTime sent_at);

/*
 * Record the answer to a release.  released: the lock was held until then.
 */
extern void pgpx_lock_released(const PgpxLockWork *work, bool released);

/*
 * Record a failed attempt to send the releases of a pool that are due.  reason:
 * for the log.
 */
extern void pgpx_lock_release_failed(int pool, uint32 pool_id,
									 const char *reason);

/*
 * Release the locks of sessions that no longer exist.  Return whether the
 * worker has any locks.
 */
extern bool pgpx_lock_sweep(int worker);

/* Return whether the pool has any locks. */
extern bool pgpx_lock_pool_has_locks(int pool, uint32 pool_id);

/*
 * --- for views ------------------------------------------------------------
 */

/* Copy a slot.  Return false if it is free. */
extern bool pgpx_lock_copy(int slot, PgpxLock *lock);

#endif							/* PGPX_LOCK_TABLE_H */
