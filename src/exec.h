/*-------------------------------------------------------------------------
 *
 * exec.h
 *	  Run SQL on a lease, from its being sent to its end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_EXEC_H
#define PGPX_EXEC_H

#include "formats.h"
#include "run.h"

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
typedef struct PgpxGuess
{
	bool		on;
	bool		any;			/* into which types is not known before */
	PgpxFormatsKey key;
	int16		formats[PGPX_FORMATS_COLUMNS];
} PgpxGuess;

extern void pgpx_guess_begin(PgpxGuess *guess, PgpxRun *run);
extern void pgpx_guess_failed(PgpxGuess *guess, const PgpxRun *run);
extern bool pgpx_guess_was_wrong(PgpxGuess *guess, PgpxRun *run,
								 bool may_repeat);
extern void pgpx_guess_end(PgpxGuess *guess, const PgpxRun *run);

#endif							/* PGPX_EXEC_H */
