/*-------------------------------------------------------------------------
 *
 * fn_views_stats.c
 *	  SQL functions behind the views stats and wait_histogram.
 *
 * The counters of a pool are copied at one instant, so that the sums which the
 * view's comment tells add up in every row.
 *
 *-------------------------------------------------------------------------
 */
#include "fn_views.h"

PG_FUNCTION_INFO_V1(pgpx_view_stats);
PG_FUNCTION_INFO_V1(pgpx_view_wait_histogram);

#define BAR_MAX 40

static void
stats_row(PgpxRow *row, const PgpxPool *pool)
{
	const PgpxStats *stats = &pool->stats;

	pgpx_row_pool(row, pool);
	pgpx_row_name(row, NameStr(pool->user_name));

	/* checkouts, and what became of those that found no connection free */
	pgpx_row_bigint(row, stats->checkouts);
	pgpx_row_bigint(row, stats->hits);
	pgpx_row_bigint(row, stats->partner_hits);
	pgpx_row_bigint(row, stats->retried);
	pgpx_row_bigint(row, stats->grown);
	pgpx_row_bigint(row, stats->waited);
	pgpx_row_bigint(row, stats->granted);
	pgpx_row_bigint(row, stats->carried);
	pgpx_row_bigint(row, stats->timeouts);
	pgpx_row_bigint(row, stats->cancelled);
	pgpx_row_bigint(row, stats->failed);
	pgpx_row_bigint(row, stats->refused);
	pgpx_row_bigint(row, stats->unavailable);
	pgpx_row_bigint(row, stats->deadlocks);

	/* ends of leases */
	pgpx_row_bigint(row, stats->checkins);
	pgpx_row_bigint(row, stats->discards);
	pgpx_row_bigint(row, stats->reclaimed);
	pgpx_row_bigint(row, stats->terminated);
	pgpx_row_bigint(row, stats->lease_timeouts);
	pgpx_row_ms(row, stats->wait_time);
	pgpx_row_ms(row, stats->max_wait_time);
	pgpx_row_ms(row, stats->lease_time);
	pgpx_row_ms(row, stats->max_lease_time);

	/* what was done on them */
	pgpx_row_bigint(row, stats->statements);
	pgpx_row_bigint(row, stats->polled);
	pgpx_row_bigint(row, stats->rows);
	pgpx_row_bigint(row, stats->errors);
	pgpx_row_bigint(row, stats->bytes_received);
	pgpx_row_bigint(row, stats->bytes_sent);

	/* the worker's doings */
	pgpx_row_bigint(row, stats->connects);
	pgpx_row_bigint(row, stats->connects_failed);
	pgpx_row_ms(row, stats->connect_time);
	pgpx_row_ms(row, stats->max_connect_time);
	pgpx_row_bigint(row, stats->resets);
	pgpx_row_bigint(row, stats->resets_failed);
	pgpx_row_bigint(row, stats->checks);
	pgpx_row_bigint(row, stats->checks_failed);
	pgpx_row_bigint(row, stats->cancels);
	for (int i = PGPX_CLOSE_NONE + 1; i < PGPX_CLOSE_NREASONS; i++)
		pgpx_row_bigint(row, stats->closed[i]);
	pgpx_row_instant(row, pool->stats_reset);
	pgpx_row_store(row);
}

/* stats() returns setof record */
Datum
pgpx_view_stats(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = pgpx_view_begin(0);
	while (pgpx_view_next(view))
		stats_row(&row, &view->pool);
	return (Datum) 0;
}

/* So many of the fullest bucket's #; at least one where there is a wait. */
static const char *
bar(uint64 waits, uint64 fullest)
{
	static const char full[BAR_MAX + 1] =
		"########################################";
	int			length = 0;

	if (waits > 0)
		length = Max((int) (waits * (double) BAR_MAX / fullest), 1);
	return full + BAR_MAX - Min(length, BAR_MAX);
}

static void
histogram_rows(PgpxRow *row, const PgpxPool *pool)
{
	const uint64 *waits = pool->stats.histogram;
	uint64		fullest = 0;
	uint64		cumulative = 0;
	int			last = -1;

	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
	{
		fullest = Max(fullest, waits[b]);
		if (waits[b] > 0)
			last = b;
	}

	for (int b = 0; b <= last; b++)
	{
		cumulative += waits[b];
		pgpx_row_int(row, (int) pool->pool_id);
		pgpx_row_name(row, NameStr(pool->database_name));
		pgpx_row_name(row, NameStr(pool->server_name));
		pgpx_row_name(row, NameStr(pool->user_name));
		pgpx_row_int(row, b);
		pgpx_row_bigint(row, b == 0 ? 0 : UINT64CONST(1) << (b - 1));
		if (b == PGPX_HISTOGRAM_BUCKETS - 1)
			pgpx_row_null(row);
		else
			pgpx_row_bigint(row, UINT64CONST(1) << b);
		pgpx_row_bigint(row, waits[b]);
		pgpx_row_bigint(row, cumulative);
		pgpx_row_text(row, bar(waits[b], fullest));
		pgpx_row_store(row);
	}
}

/* wait_histogram() returns setof record */
Datum
pgpx_view_wait_histogram(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxView   *view;

	pgpx_row_begin(&row, fcinfo);
	view = pgpx_view_begin(0);
	while (pgpx_view_next(view))
		histogram_rows(&row, &view->pool);
	return (Datum) 0;
}
