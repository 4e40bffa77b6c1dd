/*-------------------------------------------------------------------------
 *
 * lease_stream.h
 *	  The stream of a lease: flush, drain, cancel.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_STREAM_H
#define PGPX_LEASE_STREAM_H

#include "session/lease.h"

/*
 * Mark the lease as broken and raise 08006 if one of its cancel requests was
 * lost.  Such a request may still arrive at any time and cancel a later
 * statement.  To be called before a statement, with PgpxConn.cancel NONE.
 */
extern void pgpx_stream_check_lost_cancel(PgpxLease *lease);

/*
 * Send the contents of the output buffer.  Waits and serves interrupts.
 * Returns false if the stream is broken.
 */
extern bool pgpx_stream_flush(PgpxLease *lease, PgpxTime deadline);

/*
 * pgpx_stream_drain
 *		Read and discard input until the stream is at a message boundary.
 *
 * Reads at most the given number of bytes (0: unbounded), until the deadline.
 * quiet: serve no interrupts and throw nothing.  Returns true if the boundary
 * was reached.
 */
extern bool pgpx_stream_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline,
							  bool quiet);

/* Request that the worker cancel the statement that runs on the lease. */
extern void pgpx_stream_cancel(PgpxLease *lease);

/*
 * After a statement, report the state of the remote transaction to the views.
 */
extern void pgpx_stream_report_activity(PgpxLease *lease);

#endif							/* PGPX_LEASE_STREAM_H */
