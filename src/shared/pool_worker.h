/*-------------------------------------------------------------------------
 *
 * pool_worker.h
 *	  The worker's transitions of connections; maintenance of a pool;
 *	  eviction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_POOL_WORKER_H
#define PGPX_POOL_WORKER_H

#include "shared/pool.h"

/* CONNECTING -> IDLE; the caller has filled in the remote_* fields. */
extern void pgpx_pool_opened(PgpxPool *pool, PgpxConn *conn,
							 PgpxTime connect_time);

typedef enum PgpxConnectFailure
{
	PGPX_FAILED,
	PGPX_FAILED_RUNNING,		/* the start commands may still be running */
	PGPX_FAILED_FULL			/* the remote has no room for one more */
} PgpxConnectFailure;

/*
 * pgpx_pool_connect_failed
 *		CONNECTING -> FREE, or CANCELLING if something may still be running.  If
 *		the pool has no live connection, every ticket with a number under
 *		"before" fails with this reason; not if the remote is full while another
 *		pool of the server has connections.  Starts or doubles the back-off; those
 *		that were under way when the last one failed share its pause.
 */
extern void pgpx_pool_connect_failed(PgpxPool *pool, PgpxConn *conn,
									 uint64 before, PgpxConnectFailure how,
									 int sqlstate, const char *text);

/* Is the remote full, with connections of other pools of the server? */
extern bool pgpx_pool_is_crowded_out_locked(const PgpxPool *pool);

/*
 * pgpx_pool_attempt_outdated
 *		An attempt of another version than the pool's is given up: CONNECTING ->
 *		FREE without a failure, or CANCELLING if its start commands may be running;
 *		who waits is served.
 */
extern void pgpx_pool_attempt_outdated(PgpxPool *pool, PgpxConn *conn,
									   bool running);

/*
 * pgpx_pool_conninfo_missing
 *		The worker was asked to connect and does not know how (it is a new one,
 *		or the options have changed since): CONNECTING -> FREE without a failure,
 *		and every waiter is woken to send the conninfo.
 */
extern void pgpx_pool_conninfo_missing(PgpxPool *pool, PgpxConn *conn);

/* The worker has taken in the conninfo of a version: who waits is served. */
extern void pgpx_pool_conninfo_known(PgpxPool *pool, uint64 incarnation,
									 uint64 version);

/*
 * pgpx_pool_begin_reset
 *		RESET_PENDING -> RESETTING, so that the worker reads the answer; false if it is
 *		not RESET_PENDING any more.  *owed is how many answers.
 */
extern bool pgpx_pool_begin_reset(PgpxPool *pool, PgpxConn *conn,
								  int *unread_reset);

/*
 * RESETTING -> IDLE if ok, else -> CLOSING; by way of CANCELLING if it was late,
 * since it may still run over there.
 */
extern void pgpx_pool_reset_done(PgpxPool *pool, PgpxConn *conn, bool ok,
								 bool late);

/*
 * pgpx_pool_cancel_done
 *		The cancel connection has closed: clears the mark.  CANCELLING goes on
 *		to RESETTING, or to CLOSING if the cancel did not come to an end (ok is
 *		false); if it was given up in mid-query it stays until the worker finds
 *		the remote at rest.  Returns the new state.
 *
 * sent: a request was sent on it.  If that one did not come to an end, the cancel is
 * lost, whatever the state.
 */
extern int	pgpx_pool_cancel_done(PgpxPool *pool, PgpxConn *conn, bool sent,
								  bool ok);

/* CHECKING -> IDLE if it has answered, else -> CLOSING. */
extern void pgpx_pool_check_done(PgpxPool *pool, PgpxConn *conn, bool ok);

/*
 * pgpx_pool_lost
 *		The remote session of a connection has ended.
 *
 * A leased connection stays its holder's, who has the last words of the remote still
 * to read, but it is broken from now on: it counts neither for the size of the pool
 * nor for max_server_connections, so that another one can be opened in its stead.
 * Under max_connections its slot counts until the lease ends.  In any other state it
 * closes.
 */
extern void pgpx_pool_lost(PgpxPool *pool, PgpxConn *conn);

/* any open state -> CLOSING. */
extern void pgpx_pool_close(PgpxPool *pool, PgpxConn *conn,
							PgpxCloseReason reason);

/* CLOSING -> FREE: the descriptor is gone; replaced if somebody waits. */
extern void pgpx_pool_closed(PgpxPool *pool, PgpxConn *conn);

/*
 * pgpx_pool_binding_cap_locked
 *		Return the cap over several pools that keeps the pool from opening what it
 *		wants (pgpx_pool_wanted_locked); NULL: none does, or it wants nothing.
 */
extern PgpxCap *pgpx_pool_binding_cap_locked(const PgpxPool *pool, int extra);

/*
 * pgpx_pool_evict
 *		Close the free connection, in another pool than "beneficiary" and under the
 *		same cap, that was used longest ago.  same_server: the cap is the server's.
 *
 * Returns whether a place is about to come free; one that is closing already counts.
 * The caller must hold no pool lock.
 */
extern bool pgpx_pool_evict(int beneficiary, bool same_server,
							PgpxEvict which);

/*
 * pgpx_pool_maintain
 *		What time brings: connections that have expired, have been idle for too
 *		long or are no longer needed are closed, those that min_size wants are
 *		asked for.  Returns when the next thing is due, PG_INT64_MAX: nothing.
 *		*ended: it is retired and empty; see pgpx_pool_forget.
 */
extern PgpxTime pgpx_pool_maintain(int index, uint32 pool_id, PgpxTime now,
								   bool *ended);

#endif							/* PGPX_POOL_WORKER_H */
