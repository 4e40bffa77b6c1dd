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
 *		End a lease.
 *
 * A remote transaction that is open is rolled back ahead of the reset; nobody waits
 * for the answer.  Where the stream is not at a message boundary the connection is
 * closed.  may_wait: the caller may wait and throw, and an open transaction is
 * reported by a WARNING; else nothing waits and nothing throws.  The lease is gone
 * afterwards.
 */
extern void pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_wait);

/* Have a statement stand ready for the ticket to be drawn, if that can be. */
extern void pgpx_lease_set_pending(const PgpxServerSpec *spec,
								   const PgpxStatement *statement);

/*
 * pgpx_lease_hand_over
 *		End a lease by sending, for the first in the queue, the statement that it
 *		waits with, after a reset.  False: nothing is done; return it as usual.
 *		Never waits, never throws.
 */
extern bool pgpx_lease_hand_over(PgpxLease *lease);

#endif							/* PGPX_LEASE_RETURN_H */
