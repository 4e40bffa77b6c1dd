/*-------------------------------------------------------------------------
 *
 * wait_queue.h
 *	  The queue of waiters of a pool.
 *
 * What happens to a ticket, and who does it, is in wait_queue.h.  With it wait the
 * statement that its session offers to have sent (lease_return.c), and, since no
 * other place is the process's own, the news of its leases that others have ended.
 *
 * The queue of a pool: first come, first served.
 *
 *	  NONE --draw--> WAITING --grant--> GRANTED --leave--> NONE
 *	                    |  \                        ^
 *	                    |   +---fail--> FAILED -----+
 *	                    +----------- leave ---------+
 *
 * A ticket is made and ended by its own process only; grant and failure come
 * from whoever frees a connection, under the pool lock.  All ends go through
 * pgpx_waiter_dequeue: timeout, cancel, terminate and exit too.
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
	PGPX_WAITER_GRANTED,		/* "conn" is LEASED to its session */
	PGPX_WAITER_FAILED			/* the connect failed; sqlstate and text say why */
} PgpxWaiterState;

/*
 * A waiter that will run one statement may offer it: who returns a connection
 * then sends it along with the reset, see lease_return.c.
 */
#define PGPX_PENDING_MAX 2048		/* bytes of messages */

typedef enum PgpxPendingState
{
	PGPX_PENDING_NONE = 0,
	PGPX_PENDING_OPEN,			/* set with the ticket, under the pool lock */
	PGPX_PENDING_SENDING,		/* set with the grant; the granter is at it */
	PGPX_PENDING_SENT,			/* set by the granter without the lock */
	PGPX_PENDING_FAILED,		/* the same: not a byte of it has left */
	PGPX_PENDING_ABANDONED		/* set by the waiter, which has left the queue while
								 * the granter was stopped: it may be sent, even later */
} PgpxPendingState;

/*
 * PgpxWaiter.offer has the PgpxPendingState in its low bits and above them a number that
 * changes with each ticket, so that a granter that was stopped cannot change the
 * state of a later offer.
 */
#define PGPX_PENDING_STATE(word)	((PgpxPendingState) ((word) & 7))
#define PGPX_PENDING_WITH(word, state)	(((word) & ~UINT32_C(7)) | (state))
#define PGPX_PENDING_NEXT(word, state)	((((word) | 7) + 1) | (state))

/* Why a lease was ended by somebody else than its holder. */
typedef enum PgpxRevoke
{
	PGPX_REVOKE_NONE = 0,
	PGPX_REVOKE_WORKER,			/* the worker has ended */
	PGPX_REVOKE_TERMINATED,
	PGPX_REVOKE_TIMEOUT
} PgpxRevoke;

/*
 * A lease that was ended so.  Kept with its holder, since the place of the
 * connection may be another one's before the holder asks.
 */
#define PGPX_REVOKED_MAX 16
typedef struct PgpxRevoked
{
	pg_atomic_uint64 lease_id;	/* 0: none */
	pg_atomic_uint32 reason;	/* PgpxRevoke */
} PgpxRevoked;

/*
 * A session waits in one queue at a time, so each process has one ticket, at
 * the index of its PGPROC.  Its own process makes and ends it; others move it
 * from WAITING to GRANTED or FAILED.  All under the lock of "pool".
 */
typedef struct PgpxWaiter
{
	int			state;			/* PgpxWaiterState */
	int			pool;
	int			next;			/* in the pool's queue; -1: end */
	int			prev;
	uint64		number;			/* rises along the queue */
	uint64		options_version;	/* the pool's when its options were seen to be ours */
	int			pid;
	Oid			user;
	Oid			database;
	int			scope;
	PgpxTime	since;
	PgpxTime	deadline;		/* 0: none */
	char		why[PGPX_WHY_LEN];
	char		application_name[NAMEDATALEN];

	/* atomic, PGPX_PENDING_STATE: what has become of the statement that waits with it */
	pg_atomic_uint32 pending_state;
	uint32		pending_len;	/* of its bytes in pgpx_pending_statements */
	bool		pending_reset;	/* SENT: a reset went ahead of it */

	PgpxTime	granted_at;		/* GRANTED */
	uint64		granted_version;	/* GRANTED: the pool's options_version then */
	int			conn;			/* GRANTED: index of the connection */
	uint64		lease_id;		/* GRANTED: the lease */
	int			sqlstate;		/* FAILED */
	char		text[PGPX_ERROR_LEN];	/* FAILED: in the database's encoding or ASCII */

	/* atomic: the process's last leases that others have ended, in a ring */
	pg_atomic_uint32 nrevoked;
	PgpxRevoked revoked[PGPX_REVOKED_MAX];
} PgpxWaiter;

extern PgpxWaiter *pgpx_waiters;	/* [ntickets], by MyProcNumber */
extern char *pgpx_pending_statements;	/* [ntickets][PGPX_PENDING_MAX], of who waits */

/* Index of a ticket in its array. */
#define PGPX_WAITER_INDEX(t)	((int) ((t) - pgpx_waiters))

/* Where the statement that waits with a ticket lies. */
#define PGPX_PENDING_OF(t) \
	(pgpx_pending_statements + (Size) ((t) - pgpx_waiters) * PGPX_PENDING_MAX)

/* Since when the first in a pool's queue waits; 0: nobody does. */
static inline PgpxTime
pgpx_pool_waits_since_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->queue_head >= 0 ? pgpx_waiters[pool->queue_head].since : 0;
}

/* Who takes a lease, or waits for one. */
typedef struct PgpxHolder
{
	int			procno;
	int			pid;
	Oid			user;
	Oid			database;
	int			scope;			/* PgpxScope */
	const char *why;			/* or NULL */
	const char *application_name;	/* or NULL */
} PgpxHolder;

/* What a granter sends for a waiter: its own copy, since the waiter may leave. */
typedef struct PgpxHandOver
{
	PgpxWaiter *waiter;
	uint64		lease_id;		/* the waiter's */
	uint32		pending_state;	/* PgpxWaiter.offer until it is sent */
	uint32		len;
	char		messages[PGPX_PENDING_MAX];
} PgpxHandOver;

/*
 * pgpx_waiter_enqueue_locked
 *		Queue this process, with what it has offered.  number 0 draws the next
 *		one; a number drawn before (a granted connection that proved dead) goes
 *		back to the head.
 */
extern PgpxWaiter *pgpx_waiter_enqueue_locked(PgpxPool *pool,
											  const PgpxHolder *holder,
											  PgpxTime since, PgpxTime deadline,
											  uint64 number);

/*
 * pgpx_pending_statement_set
 *		Have a statement stand ready for the ticket that is drawn next, if it is
 *		short enough: PGPX_PENDING_MAX bytes of messages that end with a Sync.
 */
extern void pgpx_pending_statement_set(const char *messages, size_t len);

/* What has become of it: to be asked for after the ticket was left. */
extern PgpxPendingState pgpx_pending_statement_state(void);

/* The same of any ticket; of a waiting one under the pool's lock. */
static inline PgpxPendingState
pgpx_waiter_pending_state(PgpxWaiter *waiter)
{
	return PGPX_PENDING_STATE(pg_atomic_read_u32(&waiter->pending_state));
}

/*
 * pgpx_pending_statement_sent
 *		The granter has sent what the ticket offered (SENT), or not a byte of it
 *		(FAILED).  Until then its owner waits; and is to be woken.  False: it has
 *		left the queue meanwhile, and has its connection closed.
 */
extern bool pgpx_pending_statement_sent(const PgpxHandOver *hand_over,
										PgpxPendingState how);

/*
 * WAITING -> GRANTED with a free connection; the pool's serve calls it.  False if
 * the pool is out of service.
 */
extern bool pgpx_waiter_grant_locked(PgpxPool *pool, PgpxWaiter *waiter,
									 PgpxConn *conn, PgpxWake *wake);

/* WAITING -> FAILED. */
extern void pgpx_waiter_fail_locked(PgpxPool *pool, PgpxWaiter *waiter,
									int sqlstate, const char *text,
									PgpxWake *wake);

typedef enum PgpxDequeue
{
	PGPX_DEQUEUE_CLAIM,			/* take what was granted */
	PGPX_DEQUEUE_TIMEOUT,		/* time is up; a grant in the meantime is taken */
	PGPX_DEQUEUE_CANCEL			/* ERROR, cancel, terminate, exit: a grant in the
								 * meantime is given on */
} PgpxDequeue;

/*
 * pgpx_waiter_dequeue
 *		The one way out of the queue.
 *
 * Returns the state that the ticket had: GRANTED means that *conn and *lease_id
 * are the caller's (unless how is CANCEL: then it has been given on), FAILED
 * that sqlstate and text say why, WAITING that nothing came.  *waited is how
 * long the ticket stood, in microseconds.  Never throws.
 *
 * If the granter is just sending the statement that was offered, this waits for it,
 * in abort and at exit, too, but for a second only, since the granter may be stopped.
 * Then the offer is ABANDONED, the connection is cancelled and closed, and GRANTED is
 * returned without a connection: the statement may have run, or still run.
 */
extern PgpxWaiterState pgpx_waiter_dequeue(PgpxWaiter *waiter, PgpxDequeue how,
										   PgpxConn **conn, uint64 *lease_id,
										   int *sqlstate, char *text,
										   PgpxTime *waited);

/*
 * Why a lease of this process was ended by somebody else; NONE: it was not, or
 * it was longer ago than PGPX_REVOKED_MAX others of the process.  To be noted
 * before the lease's id is cleared, and asked for after that has been seen.
 */
extern void pgpx_waiter_note_revoked(int procno, uint64 lease_id,
									 PgpxRevoke reason);
extern PgpxRevoke pgpx_waiter_revoked(int procno, uint64 lease_id);

/* This process's ticket. */
extern PgpxWaiter *pgpx_my_waiter(void);

#endif							/* PGPX_WAIT_QUEUE_H */
