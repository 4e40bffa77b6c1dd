/*-------------------------------------------------------------------------
 *
 * checkout_wait.h
 *	  Checkout: the wait in the queue, and its errors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_WAIT_H
#define PGPX_CHECKOUT_WAIT_H

#include "session/checkout_pool.h"

/*
 * pgpx_lease_check_unbounded_wait
 *		Raise 40P01 if this session holds a lease that another session may
 *		wait for.
 *
 * To be called before a wait without a timeout in which no deadlock is
 * detected.
 */
extern void pgpx_lease_check_unbounded_wait(void);

/*
 * pgpx_checkout_dequeue
 *		Leave the queue because of an error.
 *
 * Returns true if the pending statement was already sent.  It is cancelled
 * then, but it may have run.  The caller must raise 08006 so that the statement
 * is not repeated.
 */
extern bool pgpx_checkout_dequeue(PgpxWaiter *waiter);

/*
 * pgpx_checkout_wait
 *		Wait for the waiter to be granted a connection, and leave the queue.
 *
 * Returns the connection and sets *lease_id.  Returns NULL with only_try when
 * none was granted, or with *pool_changed set: then the waiter has left the
 * queue because the spec now has another pool.  Any other outcome is raised as
 * an error, among them 40P01 if the session is in a deadlock that it must end.
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
 * queue full; those of pgpx_checkout_raise_unreachable.
 */
extern void pgpx_checkout_check_locked(PgpxCheckout *c, PgpxPool *pool);

/*
 * Raise 55P03; or PX003 if the worker is not running; or the error of
 * pgpx_checkout_raise_unreachable if the pool has no connection and could not
 * open one.  granted: a connection was granted before the deadline, but was not
 * ready for use by then.
 */
pg_noreturn extern void pgpx_checkout_raise_timeout(PgpxCheckout *c,
													PgpxPool *pool,
													bool granted);

/*
 * Raise 08001, or the SQLSTATE of the failed connection attempt where the cause
 * is on this server or in its settings.  wait_ms: time to the next attempt; 0:
 * unknown.
 */
pg_noreturn extern void pgpx_checkout_raise_unreachable(PgpxCheckout *c,
														int sqlstate,
														const char *text,
														int64 wait_ms);

/* Raise 08006: the statement was sent, but its answer cannot be read. */
pg_noreturn extern void pgpx_checkout_raise_lost(PgpxCheckout *c);

#endif							/* PGPX_CHECKOUT_WAIT_H */
