/*-------------------------------------------------------------------------
 *
 * lease_scope.h
 *	  The ends of leases with their transaction, subtransaction or session.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_SCOPE_H
#define PGPX_LEASE_SCOPE_H

#include "base/compat.h"

/* Register the exit and transaction callbacks.  Further calls do nothing. */
extern void pgpx_lease_register_callbacks(void);

/* Has this session registered the callbacks, i.e. ever requested a lease? */
extern bool pgpx_lease_has_callbacks(void);

#endif							/* PGPX_LEASE_SCOPE_H */
