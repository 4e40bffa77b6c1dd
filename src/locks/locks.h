/*-------------------------------------------------------------------------
 *
 * locks.h
 *	  Distributed locks: the table of those that this server holds or requests,
 *	  and the calls from outside of this folder.
 *
 * A distributed lock is a row of a table on a remote server; see
 * lock_schema.sql.  The table in shared memory records for each lock the
 * session of this server that holds it or waits for it, the time until which it
 * is certainly valid, and the release that the worker still has to send.
 * PgpxShared.locks_lock protects everything in this file; see the lock order in
 * shmem.h.  The functions acquire locks_lock and no other lock, and none of
 * them communicates with a remote server.
 *
 * State transitions of an entry:
 *
 * FREE      -> REQUESTED  the session is about to wait for the lock
 * REQUESTED -> HELD       the remote granted it
 * REQUESTED -> FREE       the session gave up, and the remote has not granted it
 * REQUESTED -> RELEASING  the same, but the remote may have granted it
 * HELD      -> RELEASING  unlock, or end of the lock's scope or of the process
 * HELD      -> LOST       the validity expired, the remote rejected a ping, or
 *						 the user may not use the server any more
 * LOST      -> RELEASING  the session released it
 * LOST      -> FREE       the same, if the remote needs no release any more
 * RELEASING -> FREE       the release ended, and its session has read the result
 *						 if it waits for it
 *
 * The first process that notices the expiry changes HELD to LOST: the worker,
 * or a session, by pgpx_lock_check_expiry.  A LOST lock never becomes HELD
 * again.
 *
 * Queues: the REQUESTED locks of one resource and one pool form a queue, in the
 * order of the times at which they were allocated.  The first waiter of a queue
 * requests the lock from the remote; the others sleep until they are first.
 * Each pool has its own queue because its first waiter may wait for a
 * connection for a long time or without limit, and must not keep waiters of
 * other pools from the lock.  Within a pool the order costs nothing, because
 * the other waiters would wait for a connection of the same pool.  There is no
 * order between queues, and none between servers; see "Fairness" in
 * lock_schema.sql.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCKS_H
#define PGPX_LOCKS_H

#include "session/server_spec.h"
#include "shared/conn_state.h"
#include "shared/invariants.h"
#include "shared/pool.h"

#include "access/xact.h"

#define PGPX_LOCK_NAME_LEN 256 /* bytes of a lock's name, with the NUL */

typedef enum PgpxLockState
{
	PGPX_LOCK_FREE = 0,
	PGPX_LOCK_REQUESTED,		/* in the queue, or being requested */
	PGPX_LOCK_HELD,
	PGPX_LOCK_LOST,				/* another session may hold it */
	PGPX_LOCK_RELEASING			/* released here; not yet at the remote */
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
	uint64		acquisition;	/* its number, which is unique */

	/* the locked resource */
	PgpxPoolKey key;
	int			pool;			/* REQUESTED: -1 before the first request */
	uint32		pool_id;
	char		name[PGPX_LOCK_NAME_LEN];
	uint64		queue;			/* see pgpx_lock_queue */

	/* the owner */
	int			owner_procno;
	int			owner_pid;
	Oid			owner_user;
	Oid			login_role;		/* of its session */
	int			scope;			/* PgpxScope */
	SubTransactionId subid;
	char		why[PGPX_WHY_LEN];

	/* the grant */
	bool		maybe_granted;	/* REQUESTED: an answer is outstanding or lost;
								 * only the owner uses it */
	int64		token;			/* 0: not known */
	int64		ttl_ms;
	PgpxTime	since;			/* of the wait, then of the grant */
	PgpxTime	last_ping;		/* 0: none yet */
	PgpxTime	sent_at;		/* steady: last granted request or ping */
	PgpxTime	valid_until;	/* steady */
	bool		loss_reported;	/* the session was warned; only the owner uses
								 * it */
	int			in_flight;		/* index in the statement of the worker that
								 * is in flight; -1: not in it; only the
								 * worker uses it */

	/* the release, in states RELEASING and LOST */
	bool		remote_done;	/* the remote needs no release */
	bool		awaited;		/* the session waits for the result */
	int			attempts;		/* failed attempts */
	int			nsent;			/* release statements sent; only the worker
								 * uses it */
	int			result;			/* PgpxLockResult */
} PgpxLock;

extern PgpxLock *pgpx_locks;	/* [max_locks] */

/* Return one more than the highest slot of a lock that is in use. */
static inline int
pgpx_locks_end(void)
{
	return (int) pg_atomic_read_u32(&pgpx_shared->locks_end);
}

/* The slot of a lock's pool is not reused while the pool has locks. */
static inline PgpxPool *
pgpx_lock_pool(const PgpxLock *lock)
{
	return &pgpx_pools[lock->pool];
}

/* Convert a steady time to one of pgpx_now; 0 stays 0. */
extern PgpxTime pgpx_lock_to_now(PgpxTime t);

/* Copy a slot.  Return false if it is free. */
extern bool pgpx_lock_copy(int slot, PgpxLock *lock);

/*
 * If the validity of a lock that was copied to *lock has expired, mark it LOST
 * and copy it again.  Return false if the slot has another lock then.
 */
extern bool pgpx_lock_check_expiry(int slot, PgpxLock *lock);

/* --- for sessions --------------------------------------------------------- */

static inline bool
pgpx_lock_is_mine(const PgpxLock *lock)
{
	return lock->owner_procno == (int) MyProcNumber &&
		lock->owner_pid == MyProcPid;
}

/* Return the hash that identifies the queue of a lock. */
extern uint64 pgpx_lock_queue(const PgpxServerSpec *spec, const char *name);

/*
 * Record that this session waits for a lock, at the end of its queue.  The caller
 * has set the resource, the owner's user, scope and texts, and the ttl in *lock;
 * the other fields are 0.  Return the slot, or -1 if all slots are in use, or if
 * the login role of this session uses "limit" of them already.  Set *used to the
 * number that the role used before.
 */
extern int	pgpx_lock_alloc(const PgpxLock *lock, int limit, int *used);

/* Return whether a waiter is the first of its queue. */
extern bool pgpx_lock_is_first(int slot);

/*
 * Set the pool of a waiter, which is known from the lease for its request.
 * renew: assign a new number, because the remote no longer grants the
 * old one.
 */
extern void pgpx_lock_set_pool(int slot, const PgpxServerSpec *spec,
							   bool renew);

/*
 * Record a grant.  sent_at: the steady time before the request was sent.  Return
 * false if its validity has expired already.
 */
extern bool pgpx_lock_granted(int slot, int64 token, PgpxTime sent_at);

/*
 * Find the HELD or LOST lock of a foreign server with this name and token, check
 * its expiry, and copy it to *lock.  Return its slot, or -1 if there is none.
 */
extern int	pgpx_lock_find(const PgpxPoolKey *key, const char *name,
						   int64 token, PgpxLock *lock);

/*
 * Return whether a session of this server holds a lock of this queue, or its
 * release is still pending.  If so, copy the lock to *lock.
 */
extern bool pgpx_lock_is_held_here(uint64 queue, PgpxLock *lock);

/*
 * End a wait without a lock, or release a lock of this session; the worker sends
 * the release to the remote.  awaited: the session polls the result with
 * pgpx_lock_result, which frees the slot.  Raise no error.
 */
extern void pgpx_lock_release(int slot, bool awaited);

/*
 * Read the result of an awaited release and free the slot.  Return false if the
 * release has not ended.
 */
extern bool pgpx_lock_result(int slot, PgpxLockResult *result);

/*
 * Iterate over the locks of this session: copy the first one after slot "after",
 * and return its slot, or -1 if there is none.
 */
extern int	pgpx_lock_next_own(int after, PgpxLock *lock);

/* Transfer the locks of a committed subtransaction to its parent. */
extern void pgpx_lock_reparent(SubTransactionId from, SubTransactionId to);

/* --- for the worker ------------------------------------------------------- */

static inline bool
pgpx_lock_is_of_pool(const PgpxLock *lock, int pool, uint32 pool_id)
{
	return lock->state != PGPX_LOCK_FREE && lock->pool == pool &&
		lock->pool_id == pool_id;
}

/* Return whether the remote still needs a release of this lock. */
static inline bool
pgpx_lock_needs_release(const PgpxLock *lock)
{
	return (lock->state == PGPX_LOCK_RELEASING ||
			lock->state == PGPX_LOCK_LOST) &&
		!lock->remote_done;
}

/*
 * Mark a lock LOST, or end its release, because its user may not use the server
 * any more, or uses another pool.  Nothing is sent to the remote, where the lock
 * expires after its ttl.
 */
extern void pgpx_lock_revoke(int slot, uint64 acquisition);

/*
 * Record the answer to a ping.  extended: the remote extended the lock.
 * sent_at: the steady time before the ping was sent.  The slot has the same lock
 * as then, because only the worker frees the slot of a lock that was granted.
 */
extern void pgpx_lock_pinged(int slot, bool extended, PgpxTime sent_at);

/* Record the answer to a release.  released: the lock was held until then. */
extern void pgpx_lock_released(int slot, bool released);

/* Record a failed attempt to send the releases of a pool, for "reason". */
extern void pgpx_lock_release_failed(int pool, uint32 pool_id,
									 const char *reason);

/* Return whether the pool has any locks. */
extern bool pgpx_lock_pool_has_locks(int pool, uint32 pool_id);

/* --- lock_session.c, lock_pinger.c ------------------------------------------ */

/*
 * At the ends of transactions: release the locks whose scope ends.  Before a
 * commit, warn of lost ones, and refuse PREPARE.
 */
extern void pgpx_lock_at_xact(XactEvent event);
extern void pgpx_lock_at_subxact(SubXactEvent event, SubTransactionId subid,
								 SubTransactionId parent);

/* Release all locks of this session. */
extern void pgpx_lock_release_all(void);

/*
 * In the worker: send the pings and releases that are due, and return the time
 * (pgpx_now) at which the next one is due; handle epoll events on the socket of
 * the pinger with this index; return the number of sockets.
 */
extern PgpxTime pgpx_lock_pinger_run(void);
extern void pgpx_lock_pinger_ready(int index, uint32 events);
extern int	pgpx_lock_pinger_descriptors(void);

#endif							/* PGPX_LOCKS_H */
