/*-------------------------------------------------------------------------
 *
 * checkout_wait.h
 *	  Checkout: find and lock the pool of a server spec, publish its conninfo,
 *	  and wait in its queue.
 *
 * Implemented by checkout_wait.c and deadlock.c (detection of deadlocks).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_WAIT_H
#define PGPX_CHECKOUT_WAIT_H

#include "session/lease.h"

#include "shared/wait_queue.h"

/* Raise an error if a spec may not be used. */
typedef void (*PgpxSpecCheck)(const PgpxServerSpec *spec);

/* A checkout in progress. */
typedef struct PgpxCheckout
{
	PgpxServerSpec *spec;		/* pinned */
	PgpxHolder	holder;
	bool		only_try;
	PgpxTime	started;
	bool		noticed;		/* the NOTICE of notice_after was raised */
	int64		timeout_ms;		/* for the error; 0: no limit */
	bool		no_wait;		/* do not enqueue: set with only_try, cleared
								 * to wait for a running test */
	PgpxTime	deadline;		/* 0: none */
	uint64		position;		/* queue position to keep when enqueued
								 * again; 0: none yet */
	PgpxTime	waited;			/* from "started" to the end of the last wait;
								 * 0: it has not waited */
	PgpxTime	grow_at;		/* while enqueued: when to let the pool grow
								 * again; 0: not by this session */
	uint64		published_version;	/* conninfo that this checkout published, */
	uint64		published_incarnation;	/* and the worker that received it */
	bool		stale;			/* the pool's options changed since the spec
								 * was read */
	const PgpxPendingStatement *pending;	/* to run on the lease; NULL:
											 * unknown */
	bool		prepared;		/* "pending" was prepared for a hand-over, by
								 * the options of this spec */
	PgpxLease  *lease;			/* its id is 0 until a connection is leased;
								 * NULL: none */
	bool		touched;		/* the stream of the lease may have been read
								 * or written, so its connection must not be
								 * released unchanged */
	PgpxSpecCheck check;		/* as in pgpx_checkout_publish_conninfo */
} PgpxCheckout;

/*
 * pgpx_checkout_lock_pool
 *		Find or create the pool of the server spec and lock it exclusively,
 *		with the spec's options in effect.
 *
 * Read the catalogs again if the spec is out of date or its options differ from
 * the pool's.  Errors: those of pgpx_server_spec_get; 53300 too many pools;
 * 55000 this session holds a lease of another transaction's private pool.
 */
extern PgpxPool *pgpx_checkout_lock_pool(PgpxCheckout *c);

/*
 * pgpx_checkout_refresh
 *		Read the catalogs again and replace the checkout's spec.
 *
 * Return false if the spec now has another pool.  Then the queue position and
 * the published conninfo, which were for the old pool, are reset.
 */
extern bool pgpx_checkout_refresh(PgpxCheckout *c);

/*
 * pgpx_checkout_publish_if_missing
 *		Publish the conninfo if the pool's worker lacks it.
 *
 * The caller must hold the pool lock.  Return true if the lock was released for
 * that; then the checkout must begin again.  Errors: as of
 * pgpx_checkout_publish_conninfo.
 */
extern bool pgpx_checkout_publish_if_missing(PgpxCheckout *c, PgpxPool *pool);

/*
 * pgpx_checkout_publish_conninfo
 *		Send the conninfo to the pool's worker unless the worker has it.
 *
 * Create the pool if there is none.  Wait while the control socket is full,
 * until the deadline (monotonic, not 0); the conninfo is not sent after it.
 * check: raises an error if the spec may not be published; NULL: none.  It is
 * called again whenever the spec was read again, before the pool adopts its
 * options.
 */
extern void pgpx_checkout_publish_conninfo(PgpxServerSpec *spec,
										   PgpxTime deadline,
										   PgpxSpecCheck check);

/*
 * pgpx_checkout_wait
 *		Wait for the waiter to be granted a connection, and leave the queue.
 *
 * Return the connection and set *lease_id.  Return NULL with only_try when none
 * was granted, or with *pool_changed set: then the waiter has left the queue
 * because the spec now has another pool.  Any other outcome is raised as an
 * error, among them 40P01 if the session is in a deadlock that it must end.
 */
extern PgpxConn *pgpx_checkout_wait(PgpxCheckout *c, PgpxPool *pool,
									PgpxWaiter *waiter, uint64 *lease_id,
									bool *pool_changed);

/*
 * pgpx_checkout_check_locked
 *		Raise an error if there is a reason not to enqueue.
 *
 * The caller must hold the pool lock exclusively.  It is released before an
 * error is raised.
 *
 * Errors: PX004 pool damaged; 40P01 the session would wait for itself; 53300
 * queue full; with on_unavailable 'fail', that of the last connection attempt.
 */
extern void pgpx_checkout_check_locked(PgpxCheckout *c, PgpxPool *pool);

/*
 * Raise the error of a checkout whose deadline has passed: PX003 if the worker
 * is not running; the error of the last connection attempt if the pool has no
 * connection and could not open one; else 55P03.  granted: a connection was
 * granted before the deadline, but was not ready for use by then.
 */
pg_noreturn extern void pgpx_checkout_raise_timeout(PgpxCheckout *c,
													PgpxPool *pool,
													bool granted);

/* Raise 08006: the statement was sent, but its answer cannot be read. */
pg_noreturn extern void pgpx_checkout_raise_lost(PgpxCheckout *c);

/* --- Deadlock ------------------------------------------------------------
 *
 * Detection of deadlocks between sessions that wait for connections.
 */

typedef struct PgpxDeadlock PgpxDeadlock;

/*
 * pgpx_deadlock_check_at
 *		Return the time of this session's next check for a deadlock; 0: never,
 *		because it holds no lease that another session could wait for.
 *
 * since: the time of the last check in this wait if "again" is set, else the
 * start of the wait.
 */
extern PgpxTime pgpx_deadlock_check_at(PgpxTime since, bool again);

/*
 * pgpx_deadlock_find
 *		Return a deadlock that this session must end.
 *
 * That is one in which this session was the last to begin its wait.  Return
 * NULL if there is no deadlock, if another session ends it, or if there is no
 * memory for the check.  waiter: that of this process; it is enqueued.  The
 * caller must hold no lock.  The result is allocated in the current memory
 * context.
 */
extern PgpxDeadlock *pgpx_deadlock_find(PgpxWaiter *waiter);

/*
 * pgpx_deadlock_raise
 *		Raise 40P01, with a line for each session of the deadlock.
 *
 * The caller must have left the queue.
 */
pg_noreturn extern void pgpx_deadlock_raise(const PgpxDeadlock *deadlock,
											const char *server_name);

#endif							/* PGPX_CHECKOUT_WAIT_H */
