/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Counters of a pool.  They only grow; gauges are computed from states.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_STATS_H
#define PGPX_STATS_H

#include "pool.h"

/* A checkout stood in the queue for this long. */
extern void pgpx_stats_waited_locked(PgpxPool *pool, PgpxTime waited);

/* A lease has ended after this long. */
extern void pgpx_stats_lease_locked(PgpxPool *pool, PgpxTime held,
									PgpxEnd end, const PgpxUsage *usage);

/* A connect has succeeded after this long. */
extern void pgpx_stats_connected_locked(PgpxPool *pool, PgpxTime took);

#endif							/* PGPX_STATS_H */
