/*-------------------------------------------------------------------------
 *
 * pool.h
 *	  The connections of a pool: pick, lease, grow, grant, release; counters.
 *
 * These functions use shared memory only: no socket, no libpq, no catalog.
 * Functions named *_locked must be called with the pool lock held, and assert
 * it: in exclusive mode, except for functions that only read.  The other
 * functions acquire the lock themselves.
 *
 * The counters of a pool only increase.  Gauges are computed from states.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_POOL_H
#define PGPX_POOL_H

#include "shared/wait_queue.h"

/* Return whether the pool has the options of this fingerprint. */
extern bool pgpx_pool_is_current_locked(const PgpxPool *pool,
										const PgpxFingerprint *fingerprint);

/*
 * Count the connections that are leased or can be leased now or later without
 * another connect.
 */
extern int	pgpx_pool_count_live_locked(const PgpxPool *pool);

/*
 * pgpx_pool_must_test_locked
 *		Return whether a free connection has been idle for so long (test_period)
 *		that it must be tested before it is leased.
 *
 * Not if its reset is pending, because the answer to the reset serves as a test.
 * since: start of the checkout.  A connection that was tested after it, and at
 * most a second ago, needs no other test, even if test_period is 0.
 */
extern bool pgpx_pool_must_test_locked(const PgpxPool *pool,
									   const PgpxConn *conn, PgpxTime since,
									   PgpxTime now);

/* Return the reason why a connection must not be used again, if there is one. */
extern PgpxCloseReason pgpx_conn_unfit_reason_locked(const PgpxPool *pool,
													 PgpxConn *conn,
													 PgpxTime now);

/*
 * pgpx_pool_pick_locked
 *		Return the free connection to lease next; NULL if there is none.
 *
 * The choice is the caller's last used connection.  If its reset is still
 * running, the choice is the connection that was used before it; else the most
 * recently used one.
 *
 * last_conn: index of the caller's last used connection; -1: none.  answered:
 * the answer to its pending reset has arrived, or it is not known whether it
 * has.  since: start of the checkout; a test made after it is recent enough.
 * now: the current time.
 *
 * Free connections that were closed by the remote or are stale are closed on
 * the way.  If every free connection must be tested first, the tests are
 * started and NULL is returned.
 */
extern PgpxConn *pgpx_pool_pick_locked(PgpxPool *pool, int last_conn,
									   uint64 last_conn_generation,
									   bool answered, PgpxTime since,
									   PgpxTime now);

/*
 * pgpx_pool_lease_locked
 *		Lease a free connection.  Return the lease id, which is never reused; 0
 *		if the pool is out of service.
 *
 * waited: duration of the wait, in microseconds.
 */
extern uint64 pgpx_pool_lease_locked(PgpxPool *pool, PgpxConn *conn,
									 const PgpxHolder *holder, PgpxTime now,
									 PgpxTime waited);

/*
 * pgpx_pool_grow_locked
 *		Start tests and connects for the waiters.  Return the number of connects
 *		that were requested from the worker.
 *
 * - For each waiter, one test of a free connection that must be tested.
 * - One connect for each waiter of the age that pool.c describes, beyond the
 *   number of connections that are being opened, reset or tested; and "extra"
 *   more connects.
 *
 * Connects stay within pool_size plus max_overflow and within the caps over
 * several pools, and none is requested during a back-off.  PgpxPool.lacks is the
 * number that the caps have denied; the worker is woken to evict for waiters.
 */
extern int	pgpx_pool_grow_locked(PgpxPool *pool, int extra);

/* Wake all waiters of the pool, so that they check its state again. */
extern void pgpx_pool_wake_waiters_locked(const PgpxPool *pool, PgpxWake *wake);

/* Grant free connections to waiters in queue order; grow if none is free. */
extern void pgpx_pool_dispatch_locked(PgpxPool *pool, PgpxWake *wake);

/* End of a lease. */
typedef enum PgpxEnd
{
	PGPX_END_CHECKIN,
	PGPX_END_DISCARD,
	PGPX_END_RECLAIMED,			/* the holder exited without a checkin, the worker
								 * exited, or a broken connection's slot was
								 * needed */
	PGPX_END_RETRIED,			/* the connection had died while idle, or
								 * the lease was never used */
	PGPX_END_TERMINATED,
	PGPX_END_TIMEOUT
} PgpxEnd;

/*
 * Release action: the condition of the connection and what the worker has to
 * do.
 */
typedef enum PgpxReleaseAction
{
	PGPX_RELEASE_CLEAN,			/* idle, no reset pending */
	PGPX_RELEASE_DIRTY,			/* idle, used, no reset needed now; a ROLLBACK
								 * may have been sent */
	PGPX_RELEASE_RESET_PENDING, /* the reset has been sent */
	PGPX_RELEASE_UNCHANGED,		/* nothing was read or sent during the lease */
	PGPX_RELEASE_RESET,			/* the worker has to reset it */
	PGPX_RELEASE_CANCEL,		/* a cancel is in flight; reset after it */
	PGPX_RELEASE_CANCEL_CLOSE,	/* the worker has to cancel and then close
								 * it */
	PGPX_RELEASE_CLOSE
} PgpxReleaseAction;

/*
 * Return how a waiter that has not used the granted connection releases it:
 * unchanged, unless the granter has sent its pending statement, or may have done
 * so.  Then *reason is the close reason.
 */
extern PgpxReleaseAction pgpx_pending_release_action(PgpxPendingState state,
													 PgpxCloseReason *reason);

/* Work of one lease, added to the counters of the pool at its end. */
typedef struct PgpxUsage
{
	uint64		statements;
	uint64		polled;			/* waits that busy polling ended without a
								 * sleep */
	uint64		rows;
	uint64		errors;
	uint64		bytes_received;
	uint64		bytes_sent;
	uint64		resets;
	PgpxTime	answer_time;	/* duration of the waits for answers */
} PgpxUsage;

/*
 * pgpx_pool_release
 *		End a lease and release its connection with "action", then grant free
 *		connections to waiters.
 *
 * unread_reset: the PGPX_SENT_* bits of the commands that were sent, see
 * wire.h.  reason: the close reason, for actions that close.  usage may be
 * NULL.
 *
 * Return false, and do nothing, if the lease was revoked meanwhile.  Raise no
 * error and do not block, so exit and transaction callbacks may call it.
 */
extern bool pgpx_pool_release(PgpxConn *conn, uint64 lease_id, PgpxEnd end,
							  PgpxReleaseAction action, int unread_reset,
							  PgpxCloseReason reason,
							  const PgpxUsage *usage);

/*
 * pgpx_pool_hand_over
 *		End a lease and grant its connection to the first waiter, whose
 *		pending statement the caller sends.  After sending it, or failing to,
 *		the caller calls pgpx_pending_statement_record.
 *
 * fingerprint: that of the options by which the caller decided about "reset".
 * reset: the caller sends a reset ahead of the statement.
 *
 * Return true and fill in *hand_over.  Return false, and do nothing, if
 *
 * - the first waiter has no pending statement, or there is no waiter,
 * - the connection must not be used again,
 * - the pool is paused or its options are not those of the caller or of the
 *   waiter, or
 * - the lease was revoked.
 */
extern bool pgpx_pool_hand_over(PgpxConn *conn, uint64 lease_id,
								const PgpxFingerprint *fingerprint, bool reset,
								const PgpxUsage *usage,
								PgpxHandOver *hand_over);

/*
 * pgpx_pool_revoke_locked
 *		Revoke a lease, for any reason but the worker's exit.
 *
 * The connection goes to CLOSING if it is broken, else to CANCELLING with a
 * close reason.  The holder finds the reason at its next call.
 */
extern void pgpx_pool_revoke_locked(PgpxPool *pool, PgpxConn *conn,
									PgpxRevoke revoke, PgpxWake *wake);

/*
 * pgpx_pool_end_worker_locked
 *		Revoke all leases and free all slots of a pool, whatever the states of
 *		its connections, because its worker exits or has exited.
 *
 * Waiters keep their positions.  A damaged pool is in service again.
 */
extern void pgpx_pool_end_worker_locked(PgpxPool *pool, PgpxWake *wake);

/* Return a pause that is shorter by a random time of up to a quarter. */
extern PgpxTime pgpx_pool_jitter(PgpxTime pause);

/*
 * pgpx_pool_back_off_locked
 *		Record a failed attempt to connect that began at this time, its error,
 *		and the pause before the next attempt.
 *
 * The pause doubles with each failure, within retry_min and retry_max.
 * Simultaneous failures may have a single, short cause, so attempts that were
 * already under way at the last failure share its pause.  Each adds retry_min
 * to the back-off, from which the next pause is computed.  So that pause grows
 * with the number of attempts linearly, and not exponentially.
 */
extern void pgpx_pool_back_off_locked(PgpxPool *pool, PgpxTime began,
									  PgpxTime now, int sqlstate,
									  const char *text);

/*
 * How long a connection must be open to end the back-off, unless a session has
 * used it.
 */
#define PGPX_PROVEN_US (1000 * 1000)

/*
 * Return whether the use of a connection may end the back-off: it was opened
 * after the last failure.  An older one does not show that the remote server
 * accepts connections again.
 */
extern bool pgpx_conn_shows_recovery_locked(const PgpxPool *pool,
											const PgpxConn *conn);

/*
 * pgpx_pool_close_locked
 *		Have the worker close a connection.  Return false if the pool is out of
 *		service.
 */
extern bool pgpx_pool_close_locked(PgpxPool *pool, PgpxConn *conn,
								   PgpxCloseReason reason);

/* Have the worker close all free connections of the pool as stale. */
extern void pgpx_pool_close_free_locked(PgpxPool *pool);

/*
 * pgpx_pool_report_reset
 *		Report the error of a reset that has failed, in the log and as the
 *		pool's last_error.
 *
 * No statement reports it, because the lease that sent the reset has ended.
 * The caller holds no lock, and closes the connection.
 */
extern void pgpx_pool_report_reset(PgpxPool *pool, const PgpxConn *conn,
								   const char *error);

/* Return how many leases have ended, and how many connections were closed. */
extern uint64 pgpx_stats_sum_ended(const PgpxStats *stats);
extern uint64 pgpx_stats_sum_closed(const PgpxStats *stats);

/*
 * Return whether the last attempt to connect has failed, and not because the
 * remote server accepts no more connections.  *pool may be a copy.
 */
static inline bool
pgpx_pool_is_failing(const PgpxPool *pool)
{
	return pool->fails_since != 0 && !pool->remote_full;
}

/* Return the cap of the pool: pool_size plus max_overflow. */
static inline int
pgpx_pool_cap_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->opts.pool_size + pool->opts.max_overflow;
}

/* Return min_size, limited by pool_size. */
static inline int
pgpx_pool_min_size_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return Min(pool->opts.min_size, pool->opts.pool_size);
}

/* Return min_idle, limited by pool_size. */
static inline int
pgpx_pool_min_idle_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return Min(pool->opts.min_idle, pool->opts.pool_size);
}

/* Count the free connections: idle, or with a reset pending. */
static inline int
pgpx_pool_count_free_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->count[PGPX_CONN_IDLE] + pool->count[PGPX_CONN_RESET_PENDING];
}

/* Count the leases of connections that are not broken. */
static inline int
pgpx_pool_count_leased_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->count[PGPX_CONN_LEASED] - pool->nbroken;
}

/* Count the connections that are neither broken nor closing. */
static inline int
pgpx_pool_count_open_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pgpx_pool_total_locked(pool) - pool->count[PGPX_CONN_CLOSING];
}

/*
 * Record that n connections are in use.  The pool keeps that many for
 * idle_timeout and overflow_ttl from now on.
 */
static inline void
pgpx_pool_note_use_locked(PgpxPool *pool, int n)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->idle_peak.current = Max(pool->idle_peak.current, n);
	pool->overflow_peak.current = Max(pool->overflow_peak.current, n);
}

/*
 * pgpx_pool_fold_peaks_locked
 *		Add PgpxPool.peaks to the peaks that shrink the pool and to those of
 *		the history, and begin anew.
 *
 * So a checkout updates one peak.
 */
extern void pgpx_pool_fold_peaks_locked(PgpxPool *pool);

/*
 * Return how many connections will become free without the end of a lease.
 *
 * Connections that are being reset count, so that a reset does not make the
 * pool grow.  Connections that are being cancelled do not, because most of them
 * will be closed.
 */
extern int	pgpx_pool_count_soon_free_locked(const PgpxPool *pool);

/*
 * Return by how many connections the pool is below min_size or min_idle; 0 or
 * less: by none.  Failures of earlier connects, and caps over several pools,
 * are disregarded.
 */
extern int	pgpx_pool_below_min_locked(const PgpxPool *pool);

/*
 * pgpx_pool_growth_due_locked
 *		Return when a waiter reaches the age at which the pool grows for it.
 *		Return 0 if it has, if there is none, or if the pool is full.
 *
 * waiter: NULL for the last one of the queue.  A session that has enqueued
 * calls pgpx_pool_grow_locked itself at that time.  After any other event the
 * worker calls it.
 */
extern PgpxTime pgpx_pool_growth_due_locked(const PgpxPool *pool,
											const PgpxWaiter *waiter);

/* The limit that keeps a pool from opening a connection for a waiter. */
typedef enum PgpxGrowthLimit
{
	PGPX_LIMIT_NONE,
	PGPX_LIMIT_BUSY,			/* pool_size and max_overflow, and connections
								 * are being opened, tested or cancelled */
	PGPX_LIMIT_POOL,			/* pool_size and max_overflow */
	PGPX_LIMIT_UNAVAILABLE,		/* the pause after a failed attempt */
	PGPX_LIMIT_SERVER,			/* max_server_connections */
	PGPX_LIMIT_ALL				/* pgpool_ext.max_connections */
} PgpxGrowthLimit;

/* Return the first limit of this list that applies. */
extern PgpxGrowthLimit pgpx_pool_growth_limit_locked(const PgpxPool *pool);

/*
 * pgpx_pool_blocked_locked
 *		Return how many waiters must wait until a lease ends: those beyond the
 *		number of connections that are being opened, reset or tested, and of
 *		slots that are free or about to become free.
 */
extern int	pgpx_pool_blocked_locked(PgpxPool *pool);

/*
 * pgpx_pool_lock
 *		Lock pool "index" exclusively if it still has this id.
 *
 * Return NULL, without the lock, if the slot has another pool by now.
 */
extern PgpxPool *pgpx_pool_lock(int index, uint32 pool_id);

#endif							/* PGPX_POOL_H */
