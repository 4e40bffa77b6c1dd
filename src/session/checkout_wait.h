/*-------------------------------------------------------------------------
 *
 * checkout_wait.h
 *	  Checkout: the wait in the queue, and its errors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_WAIT_H
#define PGPX_CHECKOUT_WAIT_H

#include "session/checkout.h"

/*
 * pgpx_lease_check_unbounded_wait
 *		40P01 if this session holds a lease that others may wait for.  To be called
 *		before it waits without a timeout, whatever for.
 */
extern void pgpx_lease_check_unbounded_wait(void);

/* The pool of the target, locked, under the target's options. */
extern PgpxPool *pgpx_checkout_lock_pool(PgpxCheckout *c);

/*
 * Read the catalogs again.  False: they now lead to another pool, where nothing
 * of what was drawn and told counts.
 */
extern bool pgpx_checkout_refresh(PgpxCheckout *c);

/* Must the conninfo be sent before a connection can be asked for? */
extern bool pgpx_checkout_must_publish(const PgpxCheckout *c,
									   const PgpxPool *pool,
									   uint64 incarnation);

/* Send the conninfo to the pool's worker.  Takes no lock; waits for room. */
extern void pgpx_checkout_publish(PgpxCheckout *c, int worker,
								  uint64 incarnation,
								  uint64 version);

/*
 * Leave the queue because of an error.  True: the statement had been sent; it is
 * cancelled, and may have run: 08006 then, so that nobody repeats it.
 */
extern bool pgpx_checkout_dequeue(PgpxWaiter *waiter);

/*
 * pgpx_checkout_wait
 *		Wait for the ticket to be granted.  Returns the connection and fills in
 *		the lease's id; raises what came instead.  NULL: only with only_try; or
 *		*moved is set, the queue has been left, and the target has another pool.
 */
extern PgpxConn *pgpx_checkout_wait(PgpxCheckout *c, PgpxPool *pool,
									PgpxWaiter *waiter, uint64 *lease_id,
									bool *moved);

/*
 * pgpx_checkout_check_locked
 *		Raise the reason not to queue, if there is one.  The lock is held, and
 *		given up before an error is raised.
 */
extern void pgpx_checkout_check_locked(PgpxCheckout *c, PgpxPool *pool);

/*
 * pgpx_checkout_check_cycle
 *		Leave the queue and raise 40P01 if all that could make room wait for ever, and
 *		this session is one of them.  To be called without a lock once the ticket is
 *		drawn: of two sessions that do so at once, one at least sees the other's.
 */
extern void pgpx_checkout_check_cycle(PgpxCheckout *c, PgpxPool *pool,
									  PgpxWaiter *waiter);

/* 55P03, or PX003 if the worker does not run.  granted: it was, and then late. */
pg_noreturn extern void pgpx_checkout_raise_timeout(PgpxCheckout *c,
													PgpxPool *pool,
													bool granted);

/* 08001, or what else the connect's failure was. */
pg_noreturn extern void pgpx_checkout_raise_unreachable(PgpxCheckout *c,
														int sqlstate,
														const char *text,
														int64 wait_ms);

/* 08006: the statement was sent, and the answer cannot be had. */
pg_noreturn extern void pgpx_checkout_raise_lost(PgpxCheckout *c);

#endif							/* PGPX_CHECKOUT_WAIT_H */
