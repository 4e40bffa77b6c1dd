/*-------------------------------------------------------------------------
 *
 * conn_state.h
 *	  The state machine of a connection, and the one function that drives it.
 *
 *	           reserve            ok
 *	  FREE ------------> CONNECTING ---> IDLE <-------------------+
 *	   ^                     |            |  ^                    |
 *	   |                     |      lease |  | checkin,           | answer is
 *	   |                fail |            |  | nothing sent       | right
 *	   |                     |            v  |                    |
 *	   |                     |          LEASED ----------> RESETTING
 *	   |                     |          | ^ |  \   worker     ^   |
 *	   |                     |   checkin| | |   \  resets     |   | answer is
 *	   |                     |  + reset | | |    \            |   | wrong, late
 *	   |                     |          v | |     \           |   |
 *	   |                     |         RESET_PENDING-|------\----------+   |
 *	   |                     |           |  |holder \  moment     |
 *	   |                     |           |  |died,   v later      |
 *	   |                     |           |  |cancel  CHECKING     |
 *	   |                     |           |  v                     |
 *	   |                     |           | CANCELLING             |
 *	   |     closed          v           v  v                     v
 *	   +-------------------- CLOSING <----------------------------+
 *
 * Transition				Performed by			Function
 * FREE -> CONNECTING		session or worker		pgpx_pool_grow_locked
 * CONNECTING -> IDLE		worker					pgpx_pool_opened
 * CONNECTING -> CLOSING	worker					pgpx_pool_connect_failed,
 *												pgpx_pool_conninfo_missing,
 *												pgpx_pool_attempt_outdated
 * CONNECTING -> CANCELLING	worker, start commands late		"
 * IDLE, RESET_PENDING -> LEASED		session or worker		pgpx_pool_lease_locked
 * LEASED -> IDLE, RESET_PENDING		session					pgpx_pool_release, pgpx_pool_hand_over
 * LEASED -> RESETTING		session					pgpx_pool_release
 * LEASED -> CANCELLING		who ends the lease		pgpx_pool_release,
 * LEASED -> CLOSING			"					pgpx_pool_revoke_locked
 * RESET_PENDING -> RESETTING		worker					pgpx_pool_begin_reset
 * RESETTING -> IDLE		worker					pgpx_pool_reset_done
 * RESETTING -> CANCELLING	worker, when late		pgpx_pool_reset_done
 * CANCELLING -> RESETTING	worker					pgpx_pool_cancel_done
 * CANCELLING -> CLOSING	worker, remote at rest	pgpx_pool_close
 * any open -> CLOSING		who finds it wrong		pgpx_pool_close_locked
 * CLOSING -> FREE			worker					pgpx_pool_closed
 * CHECKING is entered from and left to IDLE (test_period).
 *
 * What is true in each state:
 *	FREE		pool = -1; in the free list; worker holds no PGconn for it
 *	CONNECTING	the worker alone knows it; waiters may count on it
 *	IDLE		in the pool's LRU list; the remote session is clean (or dirty,
 *				with reset on_transfer or never) and nothing is unread
 *	RESET_PENDING		in the pool's LRU list; "unread_reset" ReadyForQuery are unread
 *	LEASED		lease_id and owner are set; the lessee alone speaks on it
 *	RESETTING	the worker alone speaks on it
 *	CHECKING	the same
 *	CANCELLING	nobody speaks on it; leasable again only after the cancel
 *				connection has closed.  With a close_reason it was given up in
 *				mid-statement, and is closed when the remote is at rest
 *	CLOSING		nobody may touch the socket but the worker, which closes it
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONN_STATE_H
#define PGPX_CONN_STATE_H

#include "shared/shmem.h"

/*
 * PgpxConn.cancel: the mark that keeps a connection from being used while a
 * cancel could still hit it.  ASKED is set by the lessee, SENT by the worker,
 * NONE by the worker once the cancel connection has closed.
 *
 * A request that was sent, and has not ended within operation_timeout, lies in a
 * queue of the remote's and may be carried out at any later time.  Then the mark is
 * NONE, so that the running statement can be cancelled anew, and PgpxConn.cancel_lost
 * is set for as long as this remote session lives: no statement is begun on it any
 * more, and it is closed when it is given back.
 */
#define PGPX_CANCEL_NONE	0
#define PGPX_CANCEL_ASKED	1
#define PGPX_CANCEL_SENT	2

/* Has a cancel been lost?  Asked after the mark was seen to be NONE. */
static inline bool
pgpx_conn_cancel_is_lost(PgpxConn *conn)
{
	pg_read_barrier();			/* with that in pgpx_pool_cancel_done */
	return pg_atomic_read_u32(&conn->cancel_lost) != 0;
}

/*
 * pgpx_conn_set_state
 *		Move a connection to a new state.  Caller holds the pool's lock exclusively.
 *		now becomes state_since: the clock is read once for all that happens together.
 *
 * Returns false, and changes nothing, if the pool is out of service, or goes out of
 * service because the transition is not in the table or the connection is another
 * pool's (registry.c).  Then the caller must neither lease the connection nor put
 * its slot to another use.
 */
extern bool pgpx_conn_set_state(PgpxPool *pool, PgpxConn *conn,
								PgpxConnState state, PgpxTime now);

/* Name of a state as the views show it. */
extern const char *pgpx_conn_state_name(int state);

/*
 * pgpx_conn_alloc_locked
 *		Take a connection out of the free list for a pool whose lock is held:
 *		FREE -> CONNECTING, with a new generation and a token of each cap.  NULL:
 *		a cap does not allow it (if the pool is the hungriest its worker knows), or
 *		the free list is damaged.
 */
extern PgpxConn *pgpx_conn_alloc_locked(PgpxPool *pool);

/* CLOSING -> FREE, back into the free list; caller holds the pool's lock. */
extern void pgpx_conn_free_locked(PgpxPool *pool, PgpxConn *conn);

/*
 * pgpx_conn_free_all_locked
 *		Return all slots of a pool to the free list, whatever their states are, and
 *		empty its lists and counts: for the rebuild of a damaged pool.  Nobody may
 *		use one of its sockets any more.
 */
extern void pgpx_conn_free_all_locked(PgpxPool *pool);

/* Index of a connection or pool in its array. */
#define PGPX_CONN_INDEX(conn)	((int) ((conn) - pgpx_conns))
#define PGPX_POOL_INDEX(pool)	((int) ((pool) - pgpx_pools))

/*
 * pgpx_conn_set_activity
 *		What a lessee says of its lease: what it does, and that it sends a
 *		statement.  Nothing happens if the lease is no longer this connection's.
 *
 * begin_doing comes with the lease, under the pool lock; the two others are for
 * the views, and for who ends a lease.
 */
extern void pgpx_conn_begin_activity(PgpxConn *conn, uint64 lease_id);
extern void pgpx_conn_set_activity(PgpxConn *conn, uint64 lease_id,
								   PgpxActivity activity, bool statement);
extern PgpxActivity pgpx_conn_activity(PgpxConn *conn);
extern uint64 pgpx_conn_statements(PgpxConn *conn);

/*
 * pgpx_conn_notify_worker
 *		Tell the connection's worker that there is something to do for it.
 *		No lock needed; may be called under the pool lock.
 */
extern void pgpx_conn_notify_worker(PgpxConn *conn, int worker);

/* Epoch of the worker that owns a pool's connections; 0: it does not run. */
static inline uint64
pgpx_pool_worker_incarnation(const PgpxPool *pool)
{
	return pg_atomic_read_u64(&pgpx_shared->worker[pool->worker].incarnation);
}

/* Set the latch of a process, by its number. */
extern void pgpx_process_wake(int procno);

/*
 * pgpx_conn_defer_wakeup_locked
 *		The lessee of a relayed connection, which a statement is being sent for,
 *		sleeps on: the worker wakes it when an answer comes in, or within two
 *		ticks; whoever takes its lease away wakes it, too.
 * pgpx_conn_is_wakeup_deferred
 *		Is that still to come?
 * pgpx_conn_deliver_wakeup
 *		Wake it, if it is.
 */
extern void pgpx_conn_defer_wakeup_locked(PgpxConn *conn, int procno);
extern bool pgpx_conn_is_wakeup_deferred(PgpxConn *conn, int procno,
										 uint64 lease_id);
extern void pgpx_conn_deliver_wakeup(PgpxConn *conn);

/* Set the latch of a worker, if it runs; of all that run. */
extern void pgpx_worker_wake(int worker);
extern void pgpx_worker_wake_all(void);

/* The same for what can wait for the worker's next tick, if it ticks. */
extern void pgpx_worker_wake_soon(int worker);

/*
 * pgpx_worker_missed
 *		Somebody waits for a worker that does not run: see that the postmaster
 *		starts the next one.  True if it does not run.
 */
extern bool pgpx_worker_missed(int worker);

/*
 * Latches to set once the lock has been given up: a SetLatch is a kernel call,
 * and the lock is every session's.
 */
#define PGPX_WAKE_MAX 8
typedef struct PgpxWake
{
	int			n;
	int			procno[PGPX_WAKE_MAX];
} PgpxWake;

#define PGPX_WAKE_INIT {0}

/* Remember to wake a process; when the list is full, wake it at once. */
extern void pgpx_wake_add(PgpxWake *wake, int procno);
extern void pgpx_wake_flush(PgpxWake *wake);

extern bool pgpx_pool_is_retired_locked(const PgpxPool *pool);

/* Is the pool retired and empty?  Then the worker needs none of its secrets. */
extern bool pgpx_pool_has_ended_locked(const PgpxPool *pool);

/*
 * Connections of the pool in any state, but for broken ones: what counts against its
 * size.
 */
extern int	pgpx_pool_total_locked(const PgpxPool *pool);

/*
 * pgpx_pool_note_end_locked
 *		Wake the worker if the pool has ended, so that it wipes the pool's secrets
 *		at once, and forgets the pool if it is gone.
 */
extern void pgpx_pool_note_end_locked(PgpxPool *pool);

/*
 * pgpx_pool_condemn_locked
 *		Take a pool out of service because its shared state is wrong.  format: a
 *		sentence that says what is wrong.  The first reason is kept.
 */
extern void pgpx_pool_condemn_locked(PgpxPool *pool, const char *format, ...)
	pg_attribute_printf(2, 3);

/* No connection, no waiter: the pool may be forgotten once it is retired. */
extern bool pgpx_pool_is_empty_locked(const PgpxPool *pool);

#endif							/* PGPX_CONN_STATE_H */
