/*-------------------------------------------------------------------------
 *
 * async.h
 *	  Statements that are sent before their answer is awaited: statements in
 *	  flight, notifications, fanout.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ASYNC_H
#define PGPX_ASYNC_H

#include "protocol/wire.h"
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

/*
 * pgpx_fanout
 *		Lease a connection of each server, send the statement on all of them,
 *		and store the rows as they arrive.  The first column of a row is the
 *		name of its server.
 *
 * Servers are leased in the given order.  All callers must use the same order,
 * so that no two of them can wait for each other.
 *
 * Errors: those of a checkout and of pgpx_exec, with the server in the context.
 * The first error ends the call: the other statements are cancelled.
 */
extern void pgpx_fanout(char **servers, int n, const PgpxStatement *statement,
						TupleDesc tupdesc, Tuplestorestate *store);

#endif							/* PGPX_ASYNC_H */
