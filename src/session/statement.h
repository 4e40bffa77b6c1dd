/*-------------------------------------------------------------------------
 *
 * statement.h
 *	  A statement on a lease: send, read, errors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_STATEMENT_H
#define PGPX_STATEMENT_H

#include "protocol/remote_message.h"
#include "values/rows.h"
#include "session/lease.h"

typedef struct PgpxRun
{
	PgpxLease  *lease;
	const char *sql;
	const PgpxSink *sink;
	bool		internal;		/* the statement is ours: errors do not show it */
	bool		describe;		/* only describe its result: nothing is executed */
	PgpxRemoteError error;
	int			nformats;		/* of the result's columns; 0: all texts */
	const int16 *formats;
	bool		described;		/* so it was accepted, and may have run */
	bool		empty;			/* no statement was in it */
	bool		any;			/* a statement was in it */
	uint64		rows;
} PgpxRun;

/* May a statement with so many parameters go out on the lease?  55000, 54000. */
extern void pgpx_run_check(const PgpxLease *lease, int nparams);

/* Send it; several: without parameters there may be several statements. */
extern void pgpx_run_send(PgpxRun *run, int nparams, const char *const *values,
						  bool several);

/* Take in what has come, without waiting; true: the answer is whole. */
extern bool pgpx_run_step(PgpxRun *run);

/* Wait for the answer and take it in, to its end. */
extern void pgpx_run_read(PgpxRun *run);

/*
 * In PG_CATCH around these: leave the lease in order.  may_drain: what is left
 * of the answer may be read if it is little, else it is cancelled.
 */
extern void pgpx_run_failed(PgpxRun *run, bool may_drain);

/*
 * After the last step: raise the remote's error, or return the rows' number; 0 if
 * the lease is not_run.
 */
extern uint64 pgpx_run_end(PgpxRun *run);

/*
 * pgpx_run_poll
 *		Take in what has come on a lease with nothing in flight: notices are passed
 *		on, notifications kept.  Errors: 08006 if that shows that it is lost.
 */
extern void pgpx_run_poll(PgpxLease *lease);

/*
 * pgpx_exec
 *		Run sql on a lease and wait for its end.
 *
 * With a sink: one statement, its rows go to the sink.
 * Without one: rows are dropped, and without parameters there may be several
 * statements.  Returns the number of rows affected or returned, summed up.
 *
 * If the lease is not_run afterwards, nothing was: discard it, and take another.
 *
 * On any error the lease is left at a boundary, or being cancelled, or broken;
 * what the caller does with it is the caller's.
 *
 * Errors: the remote's; 08006 connection lost; 0A000 COPY; 22023 no statement;
 * 54000 too many parameters.
 */
extern uint64 pgpx_exec(PgpxLease *lease, const char *sql, int nparams,
						const char *const *values, const PgpxSink *sink);

/*
 * A guess at the formats of a statement's result, by what it has returned before:
 *
 *	begin		before it is sent: which formats to ask for
 *	failed		something was thrown in between, which may be due to it
 *	was_wrong	the answer is whole: the remote has refused the statement, before it
 *				ran, since its result has other columns than the last time.  True: it
 *				is to be sent again.  Where it cannot be, it is an error instead
 *	end			remember what is worth to be asked for in binary the next time
 */
typedef struct PgpxPrediction
{
	bool		on;
	bool		any;			/* into which types is not known before */
	PgpxFormatsKey key;
	int16		formats[PGPX_FORMATS_COLUMNS];
} PgpxPrediction;

extern void pgpx_prediction_begin(PgpxPrediction *prediction, PgpxRun *run);
extern void pgpx_prediction_failed(PgpxPrediction *prediction,
								   const PgpxRun *run);
extern bool pgpx_prediction_was_wrong(PgpxPrediction *prediction, PgpxRun *run,
									  bool may_repeat);
extern void pgpx_prediction_end(PgpxPrediction *prediction, const PgpxRun *run);

#endif							/* PGPX_STATEMENT_H */
