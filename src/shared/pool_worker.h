/*-------------------------------------------------------------------------
 *
 * pool_worker.h
 *	  The worker's part of a pool: its connection state transitions and
 *	  maintenance.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_POOL_WORKER_H
#define PGPX_POOL_WORKER_H

#include "shared/pool.h"

/*
 * CONNECTING -> IDLE.  The caller must have set the remote_* fields.
 * connect_time: microseconds.
 */
extern void pgpx_pool_opened(PgpxPool *pool, PgpxConn *conn,
							 PgpxTime connect_time);

typedef enum PgpxConnectFailure
{
	PGPX_FAILED,
	PGPX_FAILED_RUNNING,		/* the start commands may still be running */
	PGPX_FAILED_FULL			/* the remote accepts no more connections */
} PgpxConnectFailure;

/*
 * pgpx_pool_connect_failed
 *		Record a failed connect: CONNECTING -> CLOSING -> FREE, or CANCELLING if
 *		a start command may still be running.
 *
 * If the pool has no live connection, its waiters fail with this error, unless
 * on_unavailable is 'wait', the remote is full or the pool is paused.
 *
 * Start or double the back-off.  Attempts that were already under way when the
 * previous one failed share its pause.  While the remote is full and sessions
 * wait, the pause is about a second, and pgpx_pool_retry_if_room_locked shortens
 * it.
 */
extern void pgpx_pool_connect_failed(PgpxPool *pool, PgpxConn *conn,
									 PgpxConnectFailure how, int sqlstate,
									 const char *text);

/*
 * pgpx_pool_retry_if_room_locked
 *		Shorten the pause of a pool whose remote is full and which has waiters:
 *		the next attempt is made soon after another connection of this server
 *		has closed, and otherwise once a second.
 */
extern void pgpx_pool_retry_if_room_locked(PgpxPool *pool, PgpxTime now);

/*
 * pgpx_pool_attempt_outdated
 *		Abandon a connect attempt of another version than the pool's:
 *		CONNECTING -> CLOSING -> FREE without counting a failure, or CANCELLING
 *		if its start commands may be running.  Then dispatch the queue.
 */
extern void pgpx_pool_attempt_outdated(PgpxPool *pool, PgpxConn *conn,
									   bool running);

/*
 * pgpx_pool_conninfo_missing
 *		Abandon a connect attempt because the worker lacks the conninfo: the
 *		worker is new, or the options have changed since.  CONNECTING -> CLOSING
 *		-> FREE without counting a failure.  Every waiter is woken to publish
 *		the conninfo.
 */
extern void pgpx_pool_conninfo_missing(PgpxPool *pool, PgpxConn *conn);

/*
 * Record that the worker has the conninfo of a version, and dispatch the queue.
 */
extern void pgpx_pool_conninfo_known(PgpxPool *pool, uint64 version);

/*
 * pgpx_pool_begin_reset
 *		RESET_PENDING -> RESETTING, so that the worker reads the answer.  Return
 *		false if the connection is not RESET_PENDING any more.
 */
extern bool pgpx_pool_begin_reset(PgpxPool *pool, PgpxConn *conn);

/*
 * RESETTING -> IDLE if ok, else -> CLOSING.  If the answer was late, the
 * connection goes to CANCELLING first, because the reset may still be running
 * at the remote.
 */
extern void pgpx_pool_reset_done(PgpxPool *pool, PgpxConn *conn, bool ok,
								 bool late);

/*
 * pgpx_pool_cancel_done
 *		Record that the cancel connection has closed, and clear PgpxConn.cancel.
 *		Return the new state.
 *
 * - CANCELLING without a close reason: -> RESETTING, or -> CLOSING if the
 *   cancel did not complete (ok is false).
 * - CANCELLING with a close reason (aborted during a statement): stays, until
 *   the worker finds the remote idle.
 *
 * sent: the cancel request was sent.  If it was sent and did not complete, the
 * cancel is lost, whatever the state is.
 */
extern int	pgpx_pool_cancel_done(PgpxPool *pool, PgpxConn *conn, bool sent,
								  bool ok);

/*
 * pgpx_pool_check_done
 *		CHECKING -> IDLE if ok (the remote answered), else -> CLOSING.
 *
 * late: the test has timed out.  Then, if sessions wait, all connections that
 * need a test are tested at the same time.  Until one of these tests succeeds,
 * the pool grows as if all of them failed.
 */
extern void pgpx_pool_check_done(PgpxPool *pool, PgpxConn *conn, bool ok,
								 bool late);

/*
 * pgpx_pool_lost
 *		Record that the remote session of a connection has ended.
 *
 * A leased connection stays with its holder, which still has to read the last
 * messages of the remote, but is broken from now on.  It counts neither for
 * the size of the pool nor for max_server_connections, so that a replacement
 * can be opened.  Its slot of max_connections is occupied until the lease ends;
 * pgpx_cap_evict ends the lease if a pool needs the slot.
 *
 * In any other state the connection is closed.
 */
extern void pgpx_pool_lost(PgpxPool *pool, PgpxConn *conn);

/*
 * Close a connection if it is neither leased nor closing: any open state ->
 * CLOSING.  Dispatch the queue in any case.
 */
extern void pgpx_pool_close(PgpxPool *pool, PgpxConn *conn,
							PgpxCloseReason reason);

/* CLOSING -> FREE, after the descriptor was closed; then dispatch the queue. */
extern void pgpx_pool_closed(PgpxPool *pool, PgpxConn *conn);

/*
 * pgpx_pool_maintain
 *		Maintain a pool: close connections that have expired, were idle for too
 *		long or are no longer needed, end leases that exceed lease_timeout, log
 *		leaks, and request connections for min_size and min_idle.
 *
 * Return the time when the next action is due; PG_INT64_MAX: none. *ended is
 * set if the pool is retired and empty; see pgpx_pool_remove_gone.
 */
extern PgpxTime pgpx_pool_maintain(int index, uint32 pool_id, PgpxTime now,
								   bool *ended);

#endif							/* PGPX_POOL_WORKER_H */
