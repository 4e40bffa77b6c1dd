/*-------------------------------------------------------------------------
 *
 * lease_return.h
 *	  The end of a lease: reset and release, or a pipelined hand-over to a
 *	  waiter.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_RETURN_H
#define PGPX_LEASE_RETURN_H

#include "session/checkout.h"

/*
 * pgpx_lease_return
 *		End a lease.  The record is released.
 *
 * An open remote transaction is rolled back before the reset.  The caller does
 * not wait for the answer.  If the stream is not at a message boundary, the
 * connection is closed.
 *
 * may_wait: the function may wait and raise errors, and it reports an open
 * transaction or a statement in flight with a WARNING. Without it the function
 * neither waits nor throws.
 */
extern void pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_wait);

/*
 * Prepare the statement for a pipelined hand-over to the waiter that is about
 * to be enqueued.  Does nothing if the statement or the options do not allow
 * it.
 */
extern void pgpx_lease_set_pending(const PgpxServerSpec *spec,
								   const PgpxPendingStatement *pending);

/*
 * pgpx_lease_hand_over
 *		End a lease by a pipelined hand-over: send the pending statement of
 *		the first waiter, after a reset, and grant it the connection.
 *
 * Returns false if that is not possible.  Nothing has been done then, and the
 * caller must return the lease as usual.  Never waits, never throws.
 */
extern bool pgpx_lease_hand_over(PgpxLease *lease);

#endif							/* PGPX_LEASE_RETURN_H */
