/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters of a pool.
 *
 * All are added to under the pool lock, which the caller holds anyway; a lease
 * counts privately while it runs and hands its sums over at its end.
 *
 *-------------------------------------------------------------------------
 */
#include "stats.h"

#include "port/pg_bitutils.h"

/* Bucket of a wait: 0 for under 1 us, then one for each power of two. */
static int
bucket_of(PgpxTime waited)
{
	int			bucket;

	if (waited < 1)
		return 0;
	bucket = pg_leftmost_one_pos64((uint64) waited) + 1;
	return Min(bucket, PGPX_HISTOGRAM_BUCKETS - 1);
}

void
pgpx_stats_waited_locked(PgpxPool *pool, PgpxTime waited)
{
	PgpxStats  *stats = &pool->stats;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	stats->wait_time += waited;
	stats->max_wait_time = Max(stats->max_wait_time, (uint64) waited);
	stats->histogram[bucket_of(waited)]++;
}

void
pgpx_stats_lease_locked(PgpxPool *pool, PgpxTime held, PgpxEnd end,
						const PgpxUsage *usage)
{
	PgpxStats  *stats = &pool->stats;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	switch (end)
	{
		case PGPX_END_CHECKIN:
			stats->checkins++;
			break;
		case PGPX_END_DISCARD:
			stats->discards++;
			break;
		case PGPX_END_RECLAIMED:
			stats->reclaimed++;
			break;
		case PGPX_END_RETRIED:
			stats->retried++;
			break;
		case PGPX_END_TERMINATED:
			stats->terminated++;
			break;
		case PGPX_END_TIMEOUT:
			stats->lease_timeouts++;
			break;
	}

	stats->lease_time += held;
	stats->max_lease_time = Max(stats->max_lease_time, (uint64) held);
	if (usage != NULL)
	{
		stats->statements += usage->statements;
		stats->polled += usage->polled;
		stats->rows += usage->rows;
		stats->errors += usage->errors;
		stats->bytes_received += usage->bytes_received;
		stats->bytes_sent += usage->bytes_sent;
		stats->resets += usage->resets;
	}
}

void
pgpx_stats_connected_locked(PgpxPool *pool, PgpxTime took)
{
	PgpxStats  *stats = &pool->stats;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	stats->connects++;
	stats->connect_time += took;
	stats->max_connect_time = Max(stats->max_connect_time, (uint64) took);
}
