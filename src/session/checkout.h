/*-------------------------------------------------------------------------
 *
 * checkout.h
 *	  Checkout: its steps, from the server's name to a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_H
#define PGPX_CHECKOUT_H

#include "session/lease.h"

/* Value of a timeout argument that the caller did not specify. */
#define PGPX_TIMEOUT_DEFAULT (-1)	/* use the GUC, else the server's option */

/*
 * Return the effective checkout timeout in ms; 0 means no limit.  It is the
 * argument if that is not PGPX_TIMEOUT_DEFAULT, else the GUC's value if that is
 * set, else the server option's.
 */
extern int64 pgpx_effective_checkout_timeout(const PgpxServerSpec *spec,
											 int64 timeout_ms);

/*
 * pgpx_lease_checkout
 *		Lease a connection of a server's pool for the user of the spec.
 *
 * timeout_ms: 0 means no limit, PGPX_TIMEOUT_DEFAULT means the GUC or the
 * server's option.  With only_try the function does not wait and returns NULL
 * if no connection is free.  why is the purpose that the views show; it may be
 * NULL.
 *
 * pending: NULL, or the first statement of a lease of scope CALL or TABLE.  If
 * it was sent (lease->pending_state is SENT), but was not executed because the
 * COMMIT or reset before it has failed (lease->not_run), the caller must end the
 * lease with PGPX_END_RETRIED, and check out again.  retry: NULL, or the place
 * of that lease, with which this checkout continues; position 0: this is the
 * first checkout.
 *
 * Errors: those of pgpx_server_spec_get; 55P03 timeout; 53300 queue full or
 * shared memory exhausted; 40P01 the session would wait for itself; 08001 the
 * remote cannot be reached; PX003 the worker is not running; PX004 the pool is
 * out of service.
 */
extern PgpxLease *pgpx_lease_checkout(PgpxServerSpec *spec, int64 timeout_ms,
									  bool only_try, PgpxScope scope,
									  const char *why,
									  const PgpxPendingStatement *pending,
									  const PgpxPlace *retry);

/* As pgpx_lease_checkout, for one statement of the current user (scope CALL). */
extern PgpxLease *pgpx_lease_checkout_call(const char *server,
										   const PgpxPendingStatement *pending,
										   const PgpxPlace *retry);

/* Raise an error if a spec may not be used. */
typedef void (*PgpxSpecCheck)(const PgpxServerSpec *spec);

/*
 * pgpx_checkout_prewarm
 *		Send the conninfo to the pool's worker unless the worker has it, and
 *		have the pool open n connections, within its caps.
 *
 * Create the pool if there is none.  Wait until the connections are open or the
 * deadline (monotonic, 0: none) has passed.  Return the number of open
 * connections.  check: raises an error if the spec may not be used; NULL: none.
 * It is called again whenever the spec was read again, before the pool adopts
 * its options.  Errors: as of pgpx_lease_checkout.
 */
extern int	pgpx_checkout_prewarm(PgpxServerSpec *spec, int n,
								  PgpxTime deadline, PgpxSpecCheck check);

#endif							/* PGPX_CHECKOUT_H */
