/*-------------------------------------------------------------------------
 *
 * lease_return.h
 *	  The return of a lease: reset the connection and release it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_RETURN_H
#define PGPX_LEASE_RETURN_H

#include "session/lease.h"

/*
 * pgpx_lease_return
 *		End a lease and free its record.
 *
 * An open remote transaction is rolled back before the reset, or committed if
 * lease->commit is set.  The function does not wait for the answer.  If the
 * stream is not at a message boundary, the connection is closed.
 *
 * may_wait: the function may wait and raise errors, and it reports an open
 * transaction or a statement in flight with a WARNING.  Without it, the
 * function neither waits nor throws.
 */
extern void pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_wait);

/*
 * Return all leases of session and transaction scope.  Returns their number.
 * Errors: 55000 if a lease is in use; then none is returned.
 */
extern int	pgpx_lease_return_all(void);

#endif							/* PGPX_LEASE_RETURN_H */
