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
 *		pgpx_exec in two halves, with whatever the caller does in between.
 *
 * After a send the lease has a statement in flight, until its result has been
 * taken or has failed.  One statement; a sink of NULL drops its rows.  Both
 * may wait, the first for a remote that does not read.
 */
extern void pgpx_async_send(PgpxLease *lease, const char *sql, int nparams,
							const char *const *values);
extern uint64 pgpx_async_result(PgpxLease *lease, const PgpxSink *sink);

/*
 * pgpx_async_wait
 *		Wait until one of the leases has its answer: to its end, or so much of it
 *		that the remote waits for us to take it.
 *
 * Each must have a statement in flight.  deadline: monotonic, 0: none; one that
 * has passed just looks.  NULL: the time is up.  With several, those that come
 * first in the array come first.
 *
 * Errors: 53000 no descriptor left (with more than one).
 */
extern PgpxLease *pgpx_async_wait(PgpxLease *const *leases, int n,
								  PgpxTime deadline);

/* Have the worker cancel what is in flight.  False: nothing was to cancel. */
extern bool pgpx_async_cancel(PgpxLease *lease);

/*
 * pgpx_async_notes
 *		Wait until a notification is there, or until the deadline.
 *
 * The lease must have nothing in flight.  Errors: 08006.
 */
extern void pgpx_async_notes(PgpxLease *lease, PgpxTime deadline);

#endif							/* PGPX_ASYNC_H */
