/*-------------------------------------------------------------------------
 *
 * pool.h
 *	  Connections of a pool: pick, lease, grow, grant, release; counters.
 *
 * These functions see shared memory only: no socket, no libpq, no catalog.
 * Functions named *_locked must be called with the pool's lock held, and assert it:
 * in exclusive mode, but for those that only read.  The others take it themselves.
 *
 * Counters of a pool.  They only grow; gauges are computed from states.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_POOL_H
#define PGPX_POOL_H

#include "shared/wait_queue.h"

/* Does the pool run under the options that this fingerprint stands for? */
extern bool pgpx_pool_is_current_locked(const PgpxPool *pool,
										const PgpxFingerprint *fingerprint);

/* Most connections that the pool may have: pool_size and max_overflow. */
extern int	pgpx_pool_cap_locked(const PgpxPool *pool);

/* What min_size comes to under that cap. */
extern int	pgpx_pool_min_size_locked(const PgpxPool *pool);

/* Connections that are open: some session could use them sooner or later. */
extern int	pgpx_pool_live_locked(const PgpxPool *pool);

/*
 * pgpx_pool_must_test_locked
 *		Has a ready connection been idle for so long that it must be tested first?
 *		Not if it was tested just now for somebody who came at "since", whatever
 *		the period.
 */
extern bool pgpx_pool_must_test_locked(const PgpxPool *pool,
									   const PgpxConn *conn, PgpxTime since,
									   PgpxTime now);

/*
 * pgpx_pool_pick_locked
 *		Return the free connection to lease next, NULL if there is none: the
 *		caller's last used one where that serves it and the pool, else the first by
 *		strategy.  A pending reset is no reason to prefer another one with lifo.
 *		since: when the caller came, who is content with a test after it.
 *		now: the clock, as it was read for something else a moment ago.
 *		Connections found to have hung up, or to be stale, are closed on the way; where
 *		all that are ready must be tested, that begins.
 */
extern PgpxConn *pgpx_pool_pick_locked(PgpxPool *pool, int last_conn,
									   uint64 last_conn_generation,
									   PgpxTime since, PgpxTime now);

/*
 * pgpx_pool_lease_locked
 *		Lease a free connection: returns the lease's id, which never repeats; 0 if
 *		the pool is out of service.
 */
extern uint64 pgpx_pool_lease_locked(PgpxPool *pool, PgpxConn *conn,
									 const PgpxHolder *holder, PgpxTime now,
									 PgpxTime waited);

/*
 * pgpx_pool_grow_locked
 *		Begin a test for each waiter, of what is ready and must be tested; and ask
 *		for as many new connections as there are waiters that no connection
 *		now on its way will serve, and "extra" ones, within pool_size and
 *		max_connections, and not while a back-off runs.  Returns how many.
 */
extern int	pgpx_pool_grow_locked(PgpxPool *pool, int extra);

/* The same, but that caps over several pools do not count, and nothing is done. */
extern int	pgpx_pool_wanted_locked(const PgpxPool *pool, int extra);

/*
 * pgpx_pool_queued_locked
 *		Return how many waiters have to wait for a lease to end, because no connection
 *		is on its way to them: none that is being opened, reset or tested, and no
 *		place for a new one that is empty or about to be.
 */
extern int	pgpx_pool_queued_locked(PgpxPool *pool);

/* Wake all waiters, who have to look at something again. */
extern void pgpx_pool_wake_waiters_locked(const PgpxPool *pool, PgpxWake *wake);

/* Hand free connections to the first waiters. */
extern void pgpx_pool_dispatch_locked(PgpxPool *pool, PgpxWake *wake);

/* How a lease ends; each has its counter. */
typedef enum PgpxEnd
{
	PGPX_END_CHECKIN,
	PGPX_END_DISCARD,
	PGPX_END_RECLAIMED,			/* the holder ended without a checkin */
	PGPX_END_RETRIED,			/* it had died while idle; nobody has used it */
	PGPX_END_TERMINATED,
	PGPX_END_TIMEOUT
} PgpxEnd;

/* In which condition the connection comes back. */
typedef enum PgpxReleaseAction
{
	PGPX_RELEASE_CLEAN,			/* idle, nothing owed */
	PGPX_RELEASE_DIRTY,			/* idle, used, and no reset is wanted now */
	PGPX_RELEASE_RESET_PENDING, /* the reset has been sent */
	PGPX_RELEASE_ROLLED_BACK,	/* ROLLBACK has been sent, and no reset */
	PGPX_RELEASE_UNCHANGED,		/* nothing was read or sent since it was taken */
	PGPX_RELEASE_RESET,			/* the worker is to reset it */
	PGPX_RELEASE_CANCEL,		/* a cancel is in flight; reset it after that */
	PGPX_RELEASE_CANCEL_CLOSE,	/* the worker is to cancel and then close */
	PGPX_RELEASE_CLOSE
} PgpxReleaseAction;

/* What was done on the lease, to add to the pool's counters. */
typedef struct PgpxUsage
{
	uint64		statements;
	uint64		polled;			/* waits without a sleep */
	uint64		rows;
	uint64		errors;
	uint64		bytes_received;
	uint64		bytes_sent;
	uint64		resets;
} PgpxUsage;

/*
 * pgpx_pool_forget_lessee
 *		What a process has left on connections that it no longer leases is not its
 *		own any more: as if somebody else came, though it may be the same one.
 */
extern void pgpx_pool_forget_lessee(int procno, int pid);

/*
 * pgpx_pool_release
 *		End a lease and return its connection.
 *
 * owed: the PGPX_SENT_* bits of what was sent, see wire.h.  reason: with the
 * closing ones, why.  Returns false if the lease was no longer the caller's
 * (revoked meanwhile); then nothing is done.  Never throws, never waits: fit
 * for exit and transaction callbacks.
 */
extern bool pgpx_pool_release(PgpxConn *conn, uint64 lease_id, PgpxEnd end,
							  PgpxReleaseAction action, int unread_reset,
							  PgpxCloseReason reason,
							  const PgpxUsage *usage);

/*
 * pgpx_pool_hand_over
 *		End a lease by handing its connection to the first in the queue, who has
 *		offered a statement: the caller sends that now, and then calls
 *		pgpx_pending_statement_sent.  reset: it sends a reset ahead of it, or not, as the
 *		options say that the fingerprint stands for.
 *
 * Returns true and fills in *carry; false if there is no such ticket, or the
 * connection is not to be used again, or the pool's options are no longer the
 * caller's, or not the ticket's, or the lease is not the caller's any more: then
 * nothing is done.
 */
extern bool pgpx_pool_hand_over(PgpxConn *conn, uint64 lease_id,
								const PgpxFingerprint *fingerprint, bool reset,
								const PgpxUsage *usage,
								PgpxHandOver *hand_over);

/*
 * pgpx_pool_revoke_locked
 *		Take a lease away from its holder: the connection goes to CANCELLING, to
 *		be closed, or to CLOSING if the worker ends; the holder finds the reason
 *		at its next call.
 */
extern void pgpx_pool_revoke_locked(PgpxPool *pool, PgpxConn *conn,
									PgpxRevoke revoke, PgpxWake *wake);

/* Must this pool leave its places to others, who have waited longer? */
extern bool pgpx_pool_must_yield_locked(PgpxPool *pool);

/*
 * pgpx_pool_close_locked
 *		Have the worker close a connection.  False if the pool is out of service.
 */
extern bool pgpx_pool_close_locked(PgpxPool *pool, PgpxConn *conn,
								   PgpxCloseReason reason);

/* The same with all that are free. */
extern void pgpx_pool_close_free_locked(PgpxPool *pool,
										PgpxCloseReason reason);

/*
 * Close what is free beyond pool_size and max_overflow, which were lowered; the least
 * recently used first.
 */
extern void pgpx_pool_trim_locked(PgpxPool *pool);

/* Why a connection could not be opened, in last_error; checkout_wait.c adds figures. */
#define PGPX_NO_DESCRIPTOR "the pool worker has too many open descriptors"

/* How long the connections of other pools must be unused to yield to min_size. */
#define PGPX_EVICT_UNUSED_US (1000 * 1000)

typedef enum PgpxEvict
{
	PGPX_EVICT_ANY,				/* for waiters: any free connection */
	PGPX_EVICT_SURPLUS,			/* for prewarm, and for waiters where there is one: of
								 * a pool above its min_size */
	PGPX_EVICT_UNUSED_SURPLUS	/* for min_size: .. unused for a while, too; else it
								 * and the calls of another pool would take the
								 * place from each other all the time */
} PgpxEvict;

/*
 * pgpx_pool_server_surplus_locked
 *		How many connections all pools of the server have open beyond
 *		max_server_connections, if that was lowered: those that are closing already
 *		do not count.  An estimate, since only this pool is locked.
 */
extern int	pgpx_pool_server_surplus_locked(const PgpxPool *pool);

/* May a connection that has expired be closed now, or has another just been? */
extern bool pgpx_pool_may_expire_locked(const PgpxPool *pool, PgpxTime now,
										PgpxTime *due);

/* A checkout stood in the queue for this long. */
extern void pgpx_stats_waited_locked(PgpxPool *pool, PgpxTime waited);

/* A lease has ended after this long. */
extern void pgpx_stats_lease_locked(PgpxPool *pool, PgpxTime held,
									PgpxEnd end, const PgpxUsage *usage);

/* A connect has succeeded after this long. */
extern void pgpx_stats_connected_locked(PgpxPool *pool, PgpxTime took);

#endif							/* PGPX_POOL_H */
