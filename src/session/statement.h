/*-------------------------------------------------------------------------
 *
 * statement.h
 *	  A statement on a lease: send, read, errors; describe its result;
 *	  statements in flight, notifications, fanout.
 *
 * Implemented by statement.c (one statement) and async.c (statements in flight,
 * notifications, fanout).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_STATEMENT_H
#define PGPX_STATEMENT_H

#include "protocol/remote_message.h"
#include "values/rows.h"
#include "session/lease.h"

typedef struct PgpxPrediction
{
	bool		on;
	bool		any_type;		/* the target types are not known in advance */
	PgpxFormatsKey key;
	int16		formats[PGPX_FORMATS_COLUMNS];
} PgpxPrediction;

typedef struct PgpxRun
{
	PgpxLease  *lease;
	const PgpxStatement *statement;
	const PgpxSink *sink;
	bool		internal;		/* issued by the extension: errors do not
								 * show its text */
	bool		describe;		/* the answer may have no result, only a
								 * description */
	bool		last;			/* the lease is returned after it, so the
								 * reset may be sent behind it */
	const PgpxPipeline *pipeline;	/* how to send the statement; NULL: the
									 * protocol is chosen by its text */
	PgpxWireEvent stop_at;		/* stop after each event of this kind: ROW, or
								 * BEGUN for a statement that the previous
								 * holder has sent; NONE: read all */
	PgpxRemoteError error;
	int			nformats;		/* of the result columns; 0: all text */
	PgpxPrediction prediction;	/* of the formats */
	bool		described;		/* the result was described, so the statement
								 * may have run */
	bool		empty;			/* the string contained no statement */
	bool		has_statement;	/* the string contained a statement */
	bool		has_rows;		/* the answer has a row */
	bool		suspended;		/* the portal has more rows */
	uint64		bytes_at_send;	/* PgpxWire.bytes_in when it was sent */
	ssize_t		last_read;		/* bytes of the last read */
	uint64		rows;
} PgpxRun;

/*
 * Check that no statement is in flight on the lease, and that this one (NULL:
 * none) can be sent.  Errors: 55000, 54000.
 */
extern void pgpx_run_check(const PgpxLease *lease,
						   const PgpxStatement *statement);

/*
 * Send the statement.  several: the text may contain several statements if
 * there are no parameters.
 */
extern void pgpx_run_send(PgpxRun *run, bool several);

typedef enum PgpxRunStep
{
	PGPX_RUN_WAIT,				/* more input is needed */
	PGPX_RUN_STOPPED,			/* at an event "stop_at", usually a row, which
								 * the sink has converted */
	PGPX_RUN_END				/* the answer has ended */
} PgpxRunStep;

/*
 * Read and process the answer, up to the next event "stop_at" or to its end.
 * Without "wait", return PGPX_RUN_WAIT if more input is needed.
 */
extern PgpxRunStep pgpx_run_read(PgpxRun *run, bool wait);

/*
 * Clean up the lease after an error; to be called in PG_CATCH around the
 * functions above.  may_drain: the error is of this run, so read the rest of
 * the answer if it is short.  Otherwise cancel the statement.
 */
extern void pgpx_run_failed(PgpxRun *run, bool may_drain);

/* Finish after the last step.  The remote's error is left to the caller. */
extern void pgpx_run_finish(PgpxRun *run);

/*
 * Finish, and raise the remote's error, or return the number of rows.  Return 0
 * if the statement did not run (lease->not_run).
 */
extern uint64 pgpx_run_end(PgpxRun *run);

/*
 * pgpx_run_abandon
 *		Clean up the lease after an error that was raised outside of the
 *		functions above, in the middle of an answer.
 *
 * The rest of the answer is read if it has arrived; otherwise the statement is
 * cancelled.  Do not wait, and raise no error.
 */
extern void pgpx_run_abandon(PgpxLease *lease);

/*
 * pgpx_run_read_pending
 *		Read pending input of a lease that has no statement in flight.
 *
 * Notices are reported, notifications are queued.  Errors: 08006 if the input
 * shows that the connection is lost.
 */
extern void pgpx_run_read_pending(PgpxLease *lease);

/*
 * pgpx_exec
 *		Run a statement on a lease and wait for its completion.
 *
 * With a sink, the text must be a single statement, and its rows go to the
 * sink.  Without one, rows are dropped, and the text may contain several
 * statements unless there are parameters.  Return the number of rows affected
 * or returned, summed over all statements.
 *
 * last: the caller returns the lease after this statement, so the reset may be
 * sent behind it.
 *
 * If lease->not_run is set afterwards, the statement was not executed.  The
 * caller must discard the lease and retry on another one.
 *
 * On an error the lease is at a message boundary, or a cancel is under way, or
 * the lease is broken.  The caller decides whether to return it.
 *
 * Errors: the remote's; 08006 connection lost; 0A000 COPY; 22023 no statement;
 * 54000 too many parameters.
 */
extern uint64 pgpx_exec(PgpxLease *lease, const PgpxStatement *statement,
						const PgpxSink *sink, bool last);

/*
 * Prediction of the result formats of a statement, from its earlier results.
 * pgpx_run_failed removes it, because it may have caused the error.
 *
 *	begin		before the statement is sent: choose the formats to request, if
 *				it is a query.  Other statements, such as FETCH, can have other
 *				columns at each execution, and cannot be repeated
 *	begin_retry	after the answer is complete: if the remote refused the
 *				statement before running it because its columns differ from the
 *				last time, prepare to send it again, and return true.  If it
 *				must not be sent again (may_repeat is false, or the remote
 *				transaction has failed), return false, and set the error of the
 *				run to the reason
 *	end			remember the formats to request in binary the next time
 */
extern void pgpx_prediction_begin(PgpxRun *run);
extern bool pgpx_prediction_begin_retry(PgpxRun *run, bool may_repeat);
extern void pgpx_prediction_end(PgpxRun *run);

typedef struct PgpxDescription
{
	int			n;				/* columns; 0: it returns no rows */
	PgpxColumn *columns;		/* names are valid in the database encoding */
	char	  **types;			/* type names, see pgpx_describe */
} PgpxDescription;

/*
 * pgpx_describe
 *		Have the remote parse a statement and describe its result.
 *
 * The values of its parameters are not sent.
 *
 * Built-in types are named as by format_type.  Others have the schema and name
 * in the remote's catalog, which takes a second statement.
 *
 * Errors: as of pgpx_exec; 54011 more columns than a row can have.
 */
extern void pgpx_describe(PgpxLease *lease, const PgpxStatement *statement,
						  PgpxDescription *description);

/* --- Statements in flight, notifications, fanout -------------------------
 *
 * A statement is in flight between its send and the call that reads its answer.
 */

/*
 * pgpx_async_send, pgpx_async_result
 *		pgpx_exec split in two, so that the caller can do other work in
 *		between.
 *
 * After a send the lease has a statement in flight, until its result was read
 * or has failed.  The text must be a single statement.  Both functions may
 * wait; pgpx_async_send waits if the remote does not read.  Errors: as of
 * pgpx_exec.
 */
extern void pgpx_async_send(PgpxLease *lease, const PgpxStatement *statement);
extern uint64 pgpx_async_result(PgpxLease *lease, const PgpxSink *sink);

/*
 * pgpx_async_wait
 *		Wait until the answer on one of the leases is complete, or fills the
 *		input buffer (its limit is AHEAD_MAX in async.c).
 *
 * Each lease must have a statement in flight.  deadline is monotonic, 0: none;
 * one in the past means to poll once.  Return NULL at the deadline.  If several
 * leases are ready, the first in the array is returned.
 *
 * Errors: 53000 no descriptor left (with more than one lease).
 */
extern PgpxLease *pgpx_async_wait(PgpxLease *const *leases, int n,
								  PgpxTime deadline);

/*
 * Request that the worker cancel the statement in flight.  Return false if
 * there was nothing to cancel.
 */
extern bool pgpx_async_cancel(PgpxLease *lease);

/*
 * pgpx_async_wait_for_note
 *		Wait until the lease has a notification, or until the deadline.
 *
 * The lease must have no statement in flight.  Errors: 08006.
 */
extern void pgpx_async_wait_for_note(PgpxLease *lease, PgpxTime deadline);

/*
 * pgpx_fanout
 *		Lease a connection of each server, send the statement on all of them,
 *		and store the rows as they arrive.  The first column of a row is the
 *		name of its server.
 *
 * Connections are leased in the given order of servers.  All callers must use
 * the same order, so that no two of them can wait for each other.
 *
 * Errors: those of a checkout and of pgpx_exec, with the server in the context.
 * The first error ends the call: the other statements are cancelled.
 */
extern void pgpx_fanout(char **servers, int n, const PgpxStatement *statement,
						TupleDesc tupdesc, Tuplestorestate *store);

#endif							/* PGPX_STATEMENT_H */
