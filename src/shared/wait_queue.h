/*-------------------------------------------------------------------------
 *
 * wait_queue.h
 *	  The queue of waiters of a pool.
 *
 * Waiters are granted connections in the order in which they were enqueued.
 *
 *	  NONE --enqueue--> WAITING --grant--> GRANTED --dequeue--> NONE
 *	                      |  \                          ^
 *	                      |   +---fail--> FAILED -------+
 *	                      |   +--expire-> EXPIRED ------+
 *	                      +----------- dequeue ---------+
 *
 * Only its own process enqueues and dequeues a waiter.  The process that frees
 * a connection, or finds that the connect failed, sets GRANTED or FAILED under
 * the pool lock.  If the deadline of the first waiter has passed, it sets
 * EXPIRED and continues with the next waiter, because the session may be
 * stopped.  Every end of a wait goes through pgpx_waiter_dequeue: timeout,
 * cancel, terminate and exit, too.  A connection that was granted meanwhile must
 * be either used or released, or it leaks; this is decided under the pool lock.
 *
 * A waiter also contains
 *	- the pending statement, which a releasing session may send for it
 *	  (lease.c);
 *	- the reasons why leases of its process were revoked.  They are stored here
 *	  because the waiter is the only shared slot that belongs to the process.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WAIT_QUEUE_H
#define PGPX_WAIT_QUEUE_H

#include "shared/conn_state.h"

typedef enum PgpxWaiterState
{
	PGPX_WAITER_NONE = 0,
	PGPX_WAITER_WAITING,		/* in the pool's queue */
	PGPX_WAITER_GRANTED,		/* "conn" is LEASED to the session of the
								 * waiter */
	PGPX_WAITER_FAILED,			/* the connect failed; see sqlstate and text */
	PGPX_WAITER_EXPIRED			/* the deadline has passed */
} PgpxWaiterState;

/*
 * A waiter that will run one statement may set it as its pending statement.
 * The session that releases a connection then sends it together with the
 * reset, see lease.c.
 */
#define PGPX_PENDING_MAX 2048		/* bytes of messages */

typedef enum PgpxPendingState
{
	PGPX_PENDING_NONE = 0,
	PGPX_PENDING_OPEN,			/* set when enqueued, under the pool lock */
	PGPX_PENDING_SENDING,		/* set with the grant; the granter is
								 * sending it */
	PGPX_PENDING_SENT,			/* set by the granter without the lock */
	PGPX_PENDING_FAILED,		/* set by the granter without the lock: no
								 * byte of it was sent */
	PGPX_PENDING_ABANDONED		/* set by the waiter when it left the queue
								 * without an answer from the granter: it may
								 * have been sent, or may be sent later */
} PgpxPendingState;

/*
 * PgpxWaiter.pending_state has the PgpxPendingState in its low bits and above
 * them a number that changes with each wait.  So a granter that was stopped
 * cannot change the state of a later pending statement.
 */
#define PGPX_PENDING_STATE(word)	((PgpxPendingState) ((word) & 7))
#define PGPX_PENDING_WITH(word, state)	(((word) & ~UINT32_C(7)) | (state))
#define PGPX_PENDING_NEXT(word, state)	((((word) | 7) + 1) | (state))

/* Reason why a lease was revoked. */
typedef enum PgpxRevoke
{
	PGPX_REVOKE_NONE = 0,
	PGPX_REVOKE_WORKER,			/* the worker exited */
	PGPX_REVOKE_BROKEN,			/* the connection was broken, and a pool needed
								 * its slot */
	PGPX_REVOKE_TERMINATED,
	PGPX_REVOKE_TIMEOUT
} PgpxRevoke;

/*
 * A revoked lease.  It is recorded with its holder, because the slot of the
 * connection may be reused before the holder looks for the reason.
 */
#define PGPX_REVOKED_MAX 16
typedef struct PgpxRevoked
{
	pg_atomic_uint64 lease_id;	/* 0: none */
	pg_atomic_uint32 reason;	/* PgpxRevoke */
} PgpxRevoked;

/*
 * A waiter.  A session waits in one queue at a time, so each process has one
 * PgpxWaiter, at the index of its PGPROC.  It changes under the lock of "pool".
 */
typedef struct PgpxWaiter
{
	int			state;			/* PgpxWaiterState */
	int			pool;
	PgpxLink	in_queue;
	uint64		position;		/* increases along the queue: the wait_id of
								 * the first wait of this checkout */
	uint64		wait_id;		/* identifies this wait; increases with each
								 * wait of any process */
	uint64		options_version;	/* options_version of the pool when this
									 * session enqueued */
	PgpxHolder	holder;
	PgpxTime	since;
	PgpxTime	waited_before;	/* until the end of an earlier wait; 0: none */
	PgpxTime	deadline;		/* 0: none */

	/* atomic: state of the pending statement, see PGPX_PENDING_STATE */
	pg_atomic_uint32 pending_state;
	uint32		pending_len;	/* bytes of it in pgpx_pending_statements */
	bool		pending_reset;	/* SENT: a reset was sent ahead of it */

	PgpxTime	granted_at;		/* GRANTED */
	int			conn;			/* GRANTED: index of the connection */
	uint64		lease_id;		/* GRANTED: the lease */
	int			sqlstate;		/* FAILED */
	char		text[PGPX_ERROR_LEN];	/* FAILED: in the database's encoding
										 * or ASCII */

	/* atomic: ring of the revoked leases of this process */
	pg_atomic_uint32 nrevoked;
	PgpxRevoked revoked[PGPX_REVOKED_MAX];
} PgpxWaiter;

extern PgpxWaiter *pgpx_waiters;	/* [nwaiter_slots], by MyProcNumber */
extern char *pgpx_pending_statements;	/* [nwaiter_slots][PGPX_PENDING_MAX] */

/* Index of a waiter in its array. */
#define PGPX_WAITER_INDEX(waiter) ((int) ((waiter) - pgpx_waiters))

/* Return the waiter of this process. */
static inline PgpxWaiter *
pgpx_my_waiter(void)
{
	return &pgpx_waiters[MyProcNumber];
}

/* Address of the pending statement of a waiter. */
#define PGPX_PENDING_OF(waiter) \
	(pgpx_pending_statements + \
	 (Size) ((waiter) - pgpx_waiters) * PGPX_PENDING_MAX)

/* Return the start of the wait of the first waiter; 0: there is no waiter. */
static inline PgpxTime
pgpx_pool_waits_since_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->queue.head >= 0 ? pgpx_waiters[pool->queue.head].since : 0;
}

/*
 * A pending statement that the granter sends: a copy, because the waiter may
 * leave.
 */
typedef struct PgpxHandOver
{
	PgpxWaiter *waiter;
	uint32		pending_state;	/* value of PgpxWaiter.pending_state until
								 * it is sent */
	uint32		len;
	char		messages[PGPX_PENDING_MAX];
} PgpxHandOver;

/*
 * Return the first pool after "pool" that has waiters; -1: none.  Start with
 * -1.  Read without a lock.
 */
extern int	pgpx_pool_next_waiting(int pool);

/*
 * pgpx_waiter_enqueue_locked
 *		Enqueue this process, with its pending statement.
 *
 * position: 0 for the next queue position.  A session whose granted connection
 * proved dead passes its earlier position, and returns to the head of the
 * queue.  since, deadline: monotonic times; deadline 0: none.  waited_before:
 * time from "since" to the end of the earlier wait; 0: there was none.
 */
extern PgpxWaiter *pgpx_waiter_enqueue_locked(PgpxPool *pool,
											  const PgpxHolder *holder,
											  PgpxTime since,
											  PgpxTime waited_before,
											  PgpxTime deadline,
											  uint64 position);

/*
 * pgpx_pending_statement_set
 *		Set the pending statement for the next wait of this process: messages
 *		that end with a Sync.  It is cleared if it is longer than
 *		PGPX_PENDING_MAX bytes.
 */
extern void pgpx_pending_statement_set(const char *messages, size_t len);

/* Clear the pending statement, if there is one. */
static inline void
pgpx_pending_statement_clear(void)
{
	if (pgpx_my_waiter()->pending_len > 0)
		pgpx_pending_statement_set(NULL, 0);
}

/*
 * Return the state of a waiter's pending statement.  If the waiter is enqueued,
 * the caller must hold the pool lock.
 */
static inline PgpxPendingState
pgpx_waiter_pending_state(PgpxWaiter *waiter)
{
	return PGPX_PENDING_STATE(pg_atomic_read_u32(&waiter->pending_state));
}

/*
 * pgpx_pending_statement_record
 *		Record how the granter's attempt to send the pending statement ended:
 *		SENT, or FAILED if no byte was sent.  The waiter waits for this record,
 *		and the caller must wake it.
 *
 * Return false if the waiter has abandoned the statement and left the queue.
 * In that case the waiter has its connection closed.
 */
extern bool pgpx_pending_statement_record(const PgpxHandOver *hand_over,
										  PgpxPendingState how);

/*
 * WAITING -> GRANTED with a free connection.  Return false if the pool is out
 * of service.
 */
extern bool pgpx_waiter_grant_locked(PgpxPool *pool, PgpxWaiter *waiter,
									 PgpxConn *conn, PgpxWake *wake);

/* WAITING -> FAILED. */
extern void pgpx_waiter_fail_locked(PgpxPool *pool, PgpxWaiter *waiter,
									int sqlstate, const char *text,
									PgpxWake *wake);

/*
 * pgpx_pool_first_waiter_locked
 *		Return the first waiter whose deadline has not passed; NULL: none.
 *		Waiters before it: WAITING -> EXPIRED.
 */
extern PgpxWaiter *pgpx_pool_first_waiter_locked(PgpxPool *pool, PgpxTime now);

typedef enum PgpxDequeue
{
	PGPX_DEQUEUE_CLAIM,			/* claim the granted connection */
	PGPX_DEQUEUE_TIMEOUT,		/* the time is over: claim a late grant */
	PGPX_DEQUEUE_AGAIN,			/* the session enqueues again: claim a grant;
								 * without one, the wait is not counted yet */
	PGPX_DEQUEUE_DEADLOCK,		/* found a deadlock: claim a late grant */
	PGPX_DEQUEUE_CANCEL			/* ERROR, cancel, terminate, exit: release a
								 * late grant */
} PgpxDequeue;

/*
 * pgpx_waiter_dequeue
 *		End the wait of this process.
 *
 * Return the state that the waiter had; its fields remain until the next wait:
 *
 * - GRANTED: "conn" and "lease_id" are the caller's.  With PGPX_DEQUEUE_CANCEL
 *   the connection has been released instead, and "conn" is -1.
 * - FAILED: "sqlstate" and "text" have the reason.
 * - WAITING, EXPIRED: nothing was granted.
 * - NONE: the process was not enqueued.
 *
 * *waited is the duration of the wait, in microseconds.  Raise no error.
 *
 * While the granter is sending the pending statement, the function waits for
 * it, also in abort and at exit.  It waits for one second at most, because
 * the granter may be stopped.  After that the statement is ABANDONED, the
 * connection is cancelled and closed, and GRANTED is returned, but "conn" is -1:
 * the statement may have run, or may still run.
 */
extern PgpxWaiterState pgpx_waiter_dequeue(PgpxDequeue how, PgpxTime *waited);

/*
 * Count the last wait of this process, which has ended with PGPX_DEQUEUE_AGAIN,
 * as cancelled, because the process does not enqueue again.  waited: its
 * duration.
 */
extern void pgpx_waiter_give_up(PgpxTime waited);

/*
 * Record the reason why a lease of a process is revoked.  To be called before
 * the lease id is cleared.
 */
extern void pgpx_waiter_note_revoked(int procno, uint64 lease_id,
									 PgpxRevoke reason);

/*
 * Return the recorded reason; NONE if the lease was not revoked, or if
 * PGPX_REVOKED_MAX later leases of the process were.  To be called after the
 * lease id was found cleared.
 */
extern PgpxRevoke pgpx_waiter_revoke_reason(int procno, uint64 lease_id);
#endif							/* PGPX_WAIT_QUEUE_H */
