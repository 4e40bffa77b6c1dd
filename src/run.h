/*-------------------------------------------------------------------------
 *
 * run.h
 *	  A statement on a lease, step by step: for those that have something else to
 *	  do in between, or several leases.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RUN_H
#define PGPX_RUN_H

#include "lease.h"
#include "remote_error.h"

/* What becomes of the rows. */
typedef struct PgpxSink
{
	/* a result begins, a row; false: malformed.  Unfit ones are errors */
	bool (*columns)(void *arg, const PgpxWireMessage *msg,
					const PgpxWire *wire);
	bool (*row)(void *arg, const PgpxWireMessage *msg);

	/* one of them has thrown: put back what it changed in the message */
	void (*restore)(void *arg);

	/*
	 * After a result of so many rows: which of its columns had better come in
	 * binary, and how many it had; 0: none had.  NULL: only texts can be read.
	 * any: also if the next time they are read into other types.
	 */
	int (*formats)(void *arg, bool any, uint64 rows, const int16 **formats);
	uint64		shape;			/* hash of the types that rows are read into */
	void	   *arg;
} PgpxSink;

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
 * pgpx_run_look
 *		Take in what has come on a lease with nothing in flight: notices are passed
 *		on, notifications kept.  Errors: 08006 if that shows that it is lost.
 */
extern void pgpx_run_look(PgpxLease *lease);

#endif							/* PGPX_RUN_H */
