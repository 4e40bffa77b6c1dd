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
 *		Lease a connection of a server's pool for the current user.
 *
 * timeout_ms: 0 means no limit, PGPX_TIMEOUT_DEFAULT means the GUC or the
 * server's option.  With only_try the function does not wait and returns NULL
 * if no connection is free.  why is the purpose that the views show; it may be
 * NULL.
 *
 * Errors: those of pgpx_server_spec_get; 55P03 timeout; 53300 queue full or
 * shared memory exhausted; 40P01 the session would wait for itself; 08001 the
 * remote cannot be reached; PX003 the worker is not running; PX004 the pool is
 * out of service.
 */
extern PgpxLease *pgpx_lease_checkout(const char *server, int64 timeout_ms,
									  bool only_try, PgpxScope scope,
									  const char *why);

/* Queue position and deadline of a checkout that the same call will retry. */
typedef struct PgpxRetry
{
	uint32		pool_id;
	uint64		queue_position; /* 0: this is the first checkout */
	PgpxTime	started;		/* start of the first checkout */
	PgpxTime	deadline;
	PgpxTime	waited;			/* from "started" to the end of the last wait */
} PgpxRetry;

/*
 * pgpx_lease_checkout_call
 *		Lease a connection for one statement, with scope CALL.
 *
 * The timeout is that of the GUC or the server.  pending: the statement; NULL:
 * it is not sent for the session.  retry: NULL, or filled in by
 * pgpx_lease_retry after a lease whose statement did not run (lease->not_run);
 * this checkout then has the queue position and the deadline of that lease.
 * Errors: as of pgpx_lease_checkout.
 */
extern PgpxLease *pgpx_lease_checkout_call(const char *server,
										   const PgpxPendingStatement *pending,
										   const PgpxRetry *retry);

/*
 * pgpx_lease_retry
 *		End a lease whose statement did not run, and fill in *retry for the
 *		next checkout.
 */
extern void pgpx_lease_retry(PgpxLease *lease, PgpxRetry *retry);

/*
 * pgpx_lease_checkout_table
 *		Lease a connection for the foreign tables that a user reads or writes
 *		in this transaction, with scope TABLE.
 *
 * The user needs no USAGE on the server.  The timeout is that of the GUC or the
 * server.  pending: the first statement of the transaction; NULL: none is
 * known.  If it was sent (lease->pending_state is SENT), but was not executed
 * because the COMMIT or reset before it has failed (lease->not_run), the caller
 * must end the lease by pgpx_lease_retry.  retry: as for
 * pgpx_lease_checkout_call.
 * Errors: as of pgpx_lease_checkout.
 */
extern PgpxLease *pgpx_lease_checkout_table(Oid server, Oid user,
											const char *why,
											const PgpxPendingStatement *pending,
											const PgpxRetry *retry);

/* Raise an error if a spec may not be used. */
typedef void (*PgpxSpecCheck)(const PgpxServerSpec *spec);

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
 * pgpx_checkout_prewarm
 *		Have the current user's pool of a server open n connections, within its caps.
 *
 * Wait until they are open or the deadline (monotonic, 0: none) has passed.
 * Return the number of open connections.  Errors: as of pgpx_lease_checkout.
 */
extern int	pgpx_checkout_prewarm(const char *server, int n, PgpxTime deadline);

#endif							/* PGPX_CHECKOUT_H */
