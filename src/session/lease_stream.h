/*-------------------------------------------------------------------------
 *
 * lease_stream.h
 *	  The stream of a lease: flush, drain, cancel, and errors that broke
 *	  it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_STREAM_H
#define PGPX_LEASE_STREAM_H

#include "session/lease.h"

/* Raise the reason for which the lease was revoked, if it was. */
extern void pgpx_lease_check_revoked(PgpxLease *lease);

/*
 * Mark the lease as unusable and raise 08006, now and at each later use.  why
 * must outlive the lease; remote_text may be NULL.
 */
pg_noreturn extern void pgpx_lease_broken(PgpxLease *lease, const char *why,
										  const char *remote_text);

/* Raise that error again if the lease was marked. */
extern void pgpx_lease_check_broken(PgpxLease *lease);

/*
 * Mark the lease as broken if one of its cancel requests was lost.  To be
 * called before a statement, when no cancel is known to be under way.  A lost
 * cancel request may still arrive at any time and hit the new statement.
 */
extern void pgpx_lease_check_lost_cancel(PgpxLease *lease);

/* Return the deadline for an internal operation that begins now. */
extern PgpxTime pgpx_lease_operation_deadline(const PgpxLease *lease);

/*
 * Send the contents of the output buffer.  Waits and serves interrupts.
 * Returns false if the stream is broken.
 */
extern bool pgpx_lease_flush(PgpxLease *lease, PgpxTime deadline);

/*
 * pgpx_lease_drain
 *		Read and discard input until the stream is at a message boundary.
 *
 * Reads at most the given number of bytes (0: unbounded), until the deadline.
 * quiet: serve no interrupts and throw nothing.  Returns true if the boundary
 * was reached.
 */
extern bool pgpx_lease_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline,
							 bool quiet);

/* Clear the statement in flight, if there is one. */
extern void pgpx_lease_clear_in_flight(PgpxLease *lease);

/* Request that the worker cancel the statement that runs on the lease. */
extern void pgpx_lease_cancel(PgpxLease *lease);

/*
 * After a statement, report the state of the remote transaction to the views.
 */
extern void pgpx_lease_report_activity(PgpxLease *lease);

#endif							/* PGPX_LEASE_STREAM_H */
