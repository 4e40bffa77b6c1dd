/*-------------------------------------------------------------------------
 *
 * lease_stream.h
 *	  The stream of a lease: flush, drain, cancel, what broke it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_STREAM_H
#define PGPX_LEASE_STREAM_H

#include "session/lease.h"

/* Raise what took the lease away, if something did. */
extern void pgpx_lease_check_revoked(PgpxLease *lease);

/* The lease cannot be used any more: raise 08006 now and at each later use. */
pg_noreturn extern void pgpx_lease_broken(PgpxLease *lease, const char *why,
										  const char *remote_words);

/* Raise that again, if it is so. */
extern void pgpx_lease_check_broken(PgpxLease *lease);

/*
 * Before a statement, when no cancel is on its way that we know of: end the lease if
 * one was lost.  It may still come, and nobody can tell when.
 */
extern void pgpx_lease_check_lost_cancel(PgpxLease *lease);

/* Until when an operation of our own may last that begins now. */
extern PgpxTime pgpx_lease_operation_deadline(const PgpxLease *lease);

/* Send what the wire has; waits, serves interrupts.  False: stream broken. */
extern bool pgpx_lease_flush(PgpxLease *lease, PgpxTime deadline);

/*
 * pgpx_lease_drain
 *		Read and drop until the stream is at a boundary.
 *
 * Bounded by bytes (0: unbounded) and the deadline.  quiet: no interrupts are
 * served, nothing is thrown.  True if the boundary was reached.
 */
extern bool pgpx_lease_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline,
							 bool quiet);

/* The statement in flight, if there is one, is none any more. */
extern void pgpx_lease_clear_in_flight(PgpxLease *lease);

/* Ask the worker to cancel what runs on the lease. */
extern void pgpx_lease_cancel(PgpxLease *lease);

/* Tell the views, after a statement, what the remote transaction's state says. */
extern void pgpx_lease_report_activity(PgpxLease *lease);

#endif							/* PGPX_LEASE_STREAM_H */
