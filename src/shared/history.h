/*-------------------------------------------------------------------------
 *
 * history.h
 *	  The history: samples of the pools, which the workers write.
 *
 * A sample has what happened in a pool within a span of time: differences of
 * its totals, peaks, and its size at the end.  There are two rings in shared
 * memory, for short and for long spans.  All pools share them, and a pool
 * without activity writes nothing.  A ring that is full overwrites its oldest
 * sample.  The rings have room for an hour of short and a day of long spans of
 * the same number of pools.
 *
 * A sample ends when the worker runs for the first time after a multiple of the
 * span.  It is longer if the worker was stopped, restarted, or busy.
 *
 * A sample has the id of its pool, which is never reused, because the slot of
 * the pool is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_HISTORY_H
#define PGPX_HISTORY_H

#include "shared/pool.h"

#define PGPX_SHORT_SPAN_US (10 * INT64CONST(1000000))
#define PGPX_LONG_SPAN_US (600 * INT64CONST(1000000))

typedef struct PgpxSample
{
	uint32		pool_id;
	int			pool;			/* index of the pool */
	int			pool_size;
	int			max_total;		/* pool_size and max_overflow */
	int			total;			/* connections in any state */
	PgpxLoad	peaks;
	PgpxTime	since;
	PgpxTime	until;
	PgpxTotals	totals;			/* since "since" */
} PgpxSample;

extern PgpxSample *pgpx_samples;	/* [max_samples]: first the long spans */

/* Number of samples that the setting allows. */
#define PGPX_MAX_SAMPLES \
	(pgpx_history_size * (Size) 1024 / sizeof(PgpxSample))

/* Begin the first samples of a new pool. */
extern void pgpx_history_begin(PgpxPool *pool, PgpxTime now);

/* Compute the totals of a pool. */
extern void pgpx_history_totals_locked(const PgpxPool *pool, PgpxTime now,
									   PgpxTotals *totals);

/*
 * pgpx_history_rebase_locked
 *		Keep the current samples of a pool whose counters were just set to 0.
 *
 * before: its totals ahead of that, computed with the same "now".
 */
extern void pgpx_history_rebase_locked(PgpxPool *pool, PgpxTime now,
									   const PgpxTotals *before);

/*
 * pgpx_history_sample
 *		Write the samples of this worker's pools that are due.  Return the time
 *		of the next ones.
 *
 * PG_INT64_MAX: there will be none before the worker is woken for another
 * reason, because no connection is open and all activity is in samples.
 */
extern PgpxTime pgpx_history_sample(int worker, PgpxTime now);

/*
 * pgpx_history_copy
 *		Copy the samples of a span, in the order in which they were written.
 *		Return their number, at most max_samples.
 *
 * Set *complete to the time since which no sample has been overwritten; 0: none
 * ever was.
 */
extern int	pgpx_history_copy(PgpxSpan span, PgpxSample *samples,
							  PgpxTime *complete);

#endif							/* PGPX_HISTORY_H */
