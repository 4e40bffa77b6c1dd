/*-------------------------------------------------------------------------
 *
 * conn_state.h
 *	  The state machine of a connection, and the wakeups of processes.
 *
 *	           reserve            ok
 *	  FREE ------------> CONNECTING ---> IDLE <-------------------+
 *	   ^                     |            |  ^                    |
 *	   |                     |      lease |  | checkin,           | answer
 *	   |                fail |            |  | nothing sent       | as expected
 *	   |                     |            v  |                    |
 *	   |                     |          LEASED ----------> RESETTING
 *	   |                     |          | ^ |      worker     ^   |
 *	   |                     |   checkin| | |      resets     |   | answer
 *	   |                     |  + reset | | |                 |   | wrong
 *	   |                     |          v | |                 |   |
 *	   |                     |    RESET_  --|-----------------+   |
 *	   |                     |    PENDING   |holder   tick        |
 *	   |                     |           |  |died,                |
 *	   |                     |           |  |cancel               |
 *	   |                     |           |  v                     |
 *	   |                     |           | CANCELLING             |
 *	   |     closed          v           v  v                     v
 *	   +-------------------- CLOSING <----------------------------+
 *
 * The diagram omits IDLE -> CHECKING and the transitions to and from CANCELLING
 * other than those of a lease.  The list of transitions and of the functions that
 * make them is complete; S is a session, W the worker:
 *
 * FREE -> CONNECTING				S, W	pgpx_pool_grow_locked
 * CONNECTING -> IDLE				W	pgpx_pool_opened
 * CONNECTING -> CLOSING			W	pgpx_pool_connect_failed,
 *										pgpx_pool_conninfo_missing,
 *										pgpx_pool_attempt_outdated
 * CONNECTING -> CANCELLING			W	the first and the last of them, if start
 *										commands may still run
 * IDLE, RESET_PENDING -> LEASED	S, W	pgpx_pool_lease_locked
 * LEASED -> IDLE					S	pgpx_pool_release, pgpx_pool_hand_over
 * LEASED -> RESET_PENDING,
 *			 RESETTING				S	pgpx_pool_release
 * LEASED -> CANCELLING, CLOSING	S, W	pgpx_pool_release,
 *										pgpx_pool_revoke_locked
 * RESET_PENDING -> RESETTING		W	pgpx_pool_begin_reset
 * RESETTING -> IDLE				W	pgpx_pool_reset_done
 * RESETTING -> CANCELLING			W	pgpx_pool_reset_done, if the answer is late
 * CANCELLING -> RESETTING			W	pgpx_pool_cancel_done
 * CANCELLING -> CLOSING			W	pgpx_pool_cancel_done, or pgpx_pool_close
 *										once the remote is idle
 * IDLE -> CHECKING					S, W	pgpx_pool_pick_locked (test_period)
 * CHECKING -> IDLE					W	pgpx_pool_check_done
 * any open state -> CLOSING		S, W	pgpx_pool_close_locked
 * CLOSING -> FREE					W	pgpx_pool_closed
 *
 * Properties of each state:
 *	FREE		pool is -1; the connection is in the free list; the worker has
 *				no PGconn for it
 *	CONNECTING	only the worker uses it; it counts as soon free
 *	IDLE		in the pool's LRU list; no answer is unread; the remote session
 *				is clean, or dirty with reset never
 *	RESET_PENDING
 *				in the pool's LRU list; the answers to the commands in
 *				"unread_reset" are unread
 *	LEASED		lease_id and owner are set; only the holder uses the socket
 *	RESETTING	only the worker uses the socket
 *	CHECKING	only the worker uses the socket
 *	CANCELLING	no process sends on the socket.  The connection can be leased
 *				again only after the cancel connection has closed.  With a
 *				close_reason, it was aborted during a statement and is closed
 *				when the remote is idle
 *	CLOSING		only the worker uses the socket, and closes it
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONN_STATE_H
#define PGPX_CONN_STATE_H

#include "shared/shmem.h"

#include "base/compat.h"

/*
 * PgpxConn.cancel prevents the use of a connection while a cancel request
 * could still hit it.  The holder sets REQUESTED, the worker sets SENT, and the
 * worker sets NONE once the cancel connection has closed.
 *
 * A request that was sent but has not completed within operation_timeout may
 * be queued at the remote and take effect at any later time.  Then the worker
 * sets NONE, so that the running statement can be cancelled again, and sets
 * PgpxConn.cancel_lost for the rest of this remote session.  No further
 * statement is started on it, and it is closed when its lease ends.
 */
#define PGPX_CANCEL_NONE	0
#define PGPX_CANCEL_REQUESTED	1
#define PGPX_CANCEL_SENT	2

/* Return whether a cancel was lost.  Call it after reading PGPX_CANCEL_NONE. */
static inline bool
pgpx_conn_cancel_is_lost(PgpxConn *conn)
{
	pg_read_barrier();			/* pairs with the one in
								 * pgpx_pool_cancel_done */
	return pg_atomic_read_u32(&conn->cancel_lost) != 0;
}

/*
 * pgpx_conn_set_state
 *		Move a connection to a new state.
 *
 * The caller must hold the pool lock exclusively.  "now" becomes state_since.
 * The caller passes it so that simultaneous changes have the same time.
 *
 * Return false and change nothing if the pool is out of service.  The pool
 * goes out of service here (conn_state.c) if the transition is not in the table
 * or the connection belongs to another pool.  On false the caller must neither
 * lease the connection nor reuse its slot.
 */
extern bool pgpx_conn_set_state(PgpxPool *pool, PgpxConn *conn,
								PgpxConnState state, PgpxTime now);

/* Name of a state as the views show it. */
extern const char *pgpx_conn_state_name(int state);

/*
 * pgpx_conn_alloc_locked
 *		Allocate a connection slot for the pool: FREE -> CONNECTING, with a
 *		new generation and a permit of each cap.
 *
 * The caller must hold the pool lock exclusively.  Return NULL if a cap does
 * not allow another connection, or if the pool or the free list is damaged.
 */
extern PgpxConn *pgpx_conn_alloc_locked(PgpxPool *pool);

/*
 * Return a connection to the free list: CLOSING -> FREE.  The caller must
 * hold the pool lock exclusively.
 */
extern void pgpx_conn_free_locked(PgpxPool *pool, PgpxConn *conn);

/* The part of pgpx_pool_end_worker_locked that frees the slots. */
extern void pgpx_conn_free_all_locked(PgpxPool *pool);

/* Index of a connection or pool in its array. */
#define PGPX_CONN_INDEX(conn)	((int) ((conn) - pgpx_conns))
#define PGPX_POOL_INDEX(pool)	((int) ((pool) - pgpx_pools))

/*
 * Iterate over all connections of a pool, the oldest first.  The caller must
 * hold the pool lock, and must not free the connection.
 */
#define pgpx_conn_foreach_locked(conn, pool) \
	for (PgpxConn *conn = pgpx_conn_at((pool)->conns.head); conn != NULL; \
		 conn = pgpx_conn_at(conn->in_pool.next))

static inline PgpxConn *
pgpx_conn_at(int index)
{
	return index < 0 ? NULL : &pgpx_conns[index];
}

/* Return whether a connection is free: in its pool's LRU list. */
static inline bool
pgpx_conn_is_free(const PgpxConn *conn)
{
	return conn->state == PGPX_CONN_IDLE ||
		conn->state == PGPX_CONN_RESET_PENDING;
}

/*
 * pgpx_conn_set_activity
 *		Publish the activity of a lease, and count a statement if "statement" is
 *		set.  Do nothing if the connection has another lease by now.
 *
 * pgpx_conn_begin_activity starts the record of a new lease; the caller must
 * hold the pool lock.  pgpx_conn_activity and pgpx_conn_statements read the
 * record, for the views and for processes that end a lease.
 */
extern void pgpx_conn_begin_activity(PgpxConn *conn, uint64 lease_id);
extern void pgpx_conn_set_activity(PgpxConn *conn, uint64 lease_id,
								   PgpxActivity activity, bool statement);
extern PgpxActivity pgpx_conn_activity(PgpxConn *conn);
extern uint64 pgpx_conn_statements(PgpxConn *conn);

/*
 * pgpx_conn_notify_worker
 *		Mark the connection for its worker and wake the worker.
 *
 * The caller needs no lock, and may hold the pool lock.
 */
extern void pgpx_conn_notify_worker(PgpxConn *conn, int worker);

/* Return the incarnation of the worker of a pool; 0: it is not running. */
static inline uint64
pgpx_pool_worker_incarnation(const PgpxPool *pool)
{
	return pg_atomic_read_u64(&pgpx_shared->worker[pool->worker].incarnation);
}

/*
 * Return whether checkouts from this pool are enqueued, even if a connection is
 * free.
 */
static inline bool
pgpx_pool_is_paused(const PgpxPool *pool)
{
	return pg_atomic_read_u32(&pgpx_servers[pool->server].paused) != 0;
}

/*
 * Return whether pgpool.drain() is in effect, so that connections close when
 * they are free.
 */
static inline bool
pgpx_pool_is_draining(const PgpxPool *pool)
{
	return pg_atomic_read_u32(&pgpx_servers[pool->server].draining) != 0;
}

/*
 * Return whether the lease must not be revoked, because it commits a remote
 * transaction that is prepared.  Its holder has set a time.
 */
static inline bool
pgpx_conn_is_spared(PgpxConn *conn)
{
	return pgpx_now() < (PgpxTime) pg_atomic_read_u64(&conn->spared_until);
}

/* Set the latch of a process, by its number. */
extern void pgpx_process_wake(int procno);

/* Set the latch of one worker, or of all, if running. */
extern void pgpx_worker_wake(int worker);
extern void pgpx_worker_wake_all(void);

/*
 * Wake a worker for work that can wait until its next tick, unless it is
 * ticking.  A worker that calls this itself finds the work at the end of its
 * round.
 */
extern void pgpx_worker_wake_soon(int worker);

/*
 * pgpx_worker_is_missing
 *		Return whether the worker is not running.  If so, remind the
 *		postmaster to start it, at most once a second.
 */
extern bool pgpx_worker_is_missing(int worker);

/*
 * Latches to set after the pool lock is released, because SetLatch is a
 * system call and all sessions of the pool need the lock.
 */
#define PGPX_WAKE_MAX 8
typedef struct PgpxWake
{
	int			n;
	int			procno[PGPX_WAKE_MAX];
} PgpxWake;

#define PGPX_WAKE_INIT {0}

/* Add a process to wake; if the list is full, wake the process at once. */
extern void pgpx_wake_add(PgpxWake *wake, int procno);
extern void pgpx_wake_flush(PgpxWake *wake);

/*
 * Return whether the pool is retired: its fingerprint was cleared, and no
 * checkout has adopted the pool since.
 */
extern bool pgpx_pool_is_retired_locked(const PgpxPool *pool);

/*
 * Return whether the pool is retired and empty.  Its worker then wipes the
 * secrets of the pool.
 */
extern bool pgpx_pool_has_ended_locked(const PgpxPool *pool);

/*
 * Count the connections of the pool in any state, without broken leases.  This
 * number counts against the size of the pool.
 */
extern int	pgpx_pool_total_locked(const PgpxPool *pool);

/*
 * pgpx_pool_notify_end_locked
 *		Wake the worker if the pool is retired and empty, so that the worker
 *		wipes the pool's secrets at once and removes the pool if it is gone.
 */
extern void pgpx_pool_notify_end_locked(PgpxPool *pool);

/*
 * Return whether the pool has no connection and no waiter, so that it may be
 * removed.  False for a damaged pool, whose lists cannot be trusted.
 */
extern bool pgpx_pool_is_empty_locked(const PgpxPool *pool);

#endif							/* PGPX_CONN_STATE_H */
