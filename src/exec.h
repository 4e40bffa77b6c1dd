/*-------------------------------------------------------------------------
 *
 * exec.h
 *	  Run SQL on a lease, from its being sent to its end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_EXEC_H
#define PGPX_EXEC_H

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

#endif							/* PGPX_EXEC_H */
