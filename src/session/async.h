/*-------------------------------------------------------------------------
 *
 * async.h
 *	  Statements in flight: waiting for answers and for notifications.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ASYNC_H
#define PGPX_ASYNC_H

#include "values/rows.h"
#include "session/lease.h"

/*
 * pgpx_async_send, pgpx_async_result
 *		pgpx_exec split in two, so that the caller can do other work in
 *		between.
 *
 * After a send the lease has a statement in flight, until its result was read
 * or has failed.  The text must be a single statement.  With a NULL sink, rows
 * are dropped.  Both functions may wait; pgpx_async_send waits if the remote
 * does not read.  Errors: as of pgpx_exec.
 */
extern void pgpx_async_send(PgpxLease *lease, const PgpxStatement *statement);
extern uint64 pgpx_async_result(PgpxLease *lease, const PgpxSink *sink);

/*
 * pgpx_async_wait
 *		Wait until the answer on one of the leases is complete, or fills the
 *		input buffer (its limit is AHEAD_MAX in async.c).
 *
 * Each lease must have a statement in flight.  deadline is monotonic, 0: none;
 * one in the past means to poll once.  Returns NULL at the deadline.  If
 * several leases are ready, the first in the array is returned.
 *
 * Errors: 53000 no descriptor left (with more than one lease).
 */
extern PgpxLease *pgpx_async_wait(PgpxLease *const *leases, int n,
								  PgpxTime deadline);

/*
 * Request that the worker cancel the statement in flight.  Returns false if
 * there was nothing to cancel.
 */
extern bool pgpx_async_cancel(PgpxLease *lease);

/*
 * pgpx_async_notes
 *		Wait until a notification arrives, or until the deadline.
 *
 * The lease must have no statement in flight.  Errors: 08006.
 */
extern void pgpx_async_notes(PgpxLease *lease, PgpxTime deadline);

#endif							/* PGPX_ASYNC_H */
