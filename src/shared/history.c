/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The history: samples of the pools, which the workers write.
 *
 * The counters of a pool are sampled in maintenance, so a checkout does nothing
 * for the history, except for one peak (pgpx_pool_fold_peaks_locked).  Leases
 * and waits that have not ended count up to the time of the sample.  A wait that
 * has just ended may count in the next sample, so only sums over samples are
 * exact.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/history.h"

#include "shared/cap.h"
#include "shared/conn_state.h"

static const PgpxTime span_us[PGPX_SPANS] = {
	[PGPX_SPAN_SHORT] = PGPX_SHORT_SPAN_US,
	[PGPX_SPAN_LONG] = PGPX_LONG_SPAN_US,
};

/* Samples that a reader copies without releasing the lock. */
#define COPY_BATCH 1000

/*
 * Return the capacity of a ring, and set *ring to its first sample.  The rings
 * share the memory as 360 short spans an hour to 144 long spans a day.
 */
static int
capacity(PgpxSpan span, PgpxSample **ring)
{
	int			long_spans = pgpx_shared->max_samples / 7 * 2;

	*ring = span == PGPX_SPAN_LONG ? pgpx_samples : pgpx_samples + long_spans;
	return span == PGPX_SPAN_LONG ? long_spans :
		pgpx_shared->max_samples - long_spans;
}

void
pgpx_history_begin(PgpxPool *pool, PgpxTime now)
{
	for (int span = 0; span < PGPX_SPANS; span++)
		pool->sampling[span].since = now;
}

/*
 * Return how long the sessions in the queue have waited.  A granter removes a
 * waiter from the queue, and its session counts the wait in
 * pgpx_waiter_dequeue.
 */
static PgpxTime
sum_waits_locked(const PgpxPool *pool, PgpxTime now)
{
	PgpxTime	sum = 0;

	Assert(LWLockHeldByMe(pool->lock));
	for (int i = pool->queue.head; i >= 0; i = pgpx_waiters[i].in_queue.next)
	{
		const PgpxWaiter *waiter = &pgpx_waiters[i];

		sum += Max(0, now - waiter->since - waiter->waited_before);
	}
	return sum;
}

void
pgpx_history_totals_locked(const PgpxPool *pool, PgpxTime now,
						   PgpxTotals *totals)
{
	const PgpxStats *stats = &pool->stats;

	Assert(LWLockHeldByMe(pool->lock));
#define NUMBER(name) totals->name = (uint32) stats->name;
#define TIME(name) totals->name = stats->name;
	PGPX_SAMPLED_COUNTERS(NUMBER, TIME)
#undef NUMBER
#undef TIME
	totals->arrivals = totals->hits + pool->enqueued;
	totals->leases = (uint32) pgpx_stats_sum_ended(stats);
	totals->waiting_time = stats->wait_time + sum_waits_locked(pool, now);
	totals->leased_time = stats->lease_time;
	pgpx_conn_foreach_locked(conn, pool)
	{
		if (conn->state == PGPX_CONN_LEASED)
			totals->leased_time += Max(0, now - conn->leased_at);
	}
	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
		totals->histogram[b] = (uint32) stats->histogram[b];
}

/*
 * Set *difference to after - before.  Return whether it has anything that is
 * not 0.
 *
 * A time does not become negative: a wait is counted with the time that its
 * session has read before it acquired the lock, and a sample may have counted
 * up to a later time.
 */
static bool
subtract(const PgpxTotals *after, const PgpxTotals *before,
		 PgpxTotals *difference)
{
	bool		differs = false;

#define NUMBER(name) \
	difference->name = after->name - before->name; \
	differs |= difference->name != 0;
#define TIME(name) \
	difference->name = Max(after->name - before->name, 0); \
	differs |= difference->name != 0;
	PGPX_TOTALS(NUMBER, TIME)
#undef NUMBER
#undef TIME
	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
		difference->histogram[b] = after->histogram[b] - before->histogram[b];
	return differs;
}

void
pgpx_history_rebase_locked(PgpxPool *pool, PgpxTime now,
						   const PgpxTotals *before)
{
	PgpxTotals	after;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pgpx_history_totals_locked(pool, now, &after);
	for (int span = 0; span < PGPX_SPANS; span++)
	{
		PgpxTotals *base = &pool->sampling[span].totals;

		/* the difference to the next totals includes what it was so far */
#define REBASE(name) base->name += after.name - before->name;
		PGPX_TOTALS(REBASE, REBASE)
#undef REBASE
		for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
			base->histogram[b] += after.histogram[b] - before->histogram[b];
	}
}

/* Append a sample to a ring. */
static void
append(PgpxSpan span, const PgpxSample *sample)
{
	PgpxSample *ring;
	int			size = capacity(span, &ring);

	if (size == 0)
		return;
	LWLockAcquire(pgpx_shared->history_lock, LW_EXCLUSIVE);
	ring[pgpx_shared->samples_written[span]++ % size] = *sample;
	LWLockRelease(pgpx_shared->history_lock);
}

/*
 * End the current sample of a pool if its time has come, and begin the next one.
 * Return whether it has to be written.  *pending: there is activity that is in
 * no sample yet.
 */
static bool
end_sample_locked(PgpxPool *pool, PgpxSpan span, PgpxTime now,
				  const PgpxTotals *totals, PgpxSample *sample, bool *pending)
{
	PgpxSampling *current = &pool->sampling[span];
	bool		active = subtract(totals, &current->totals, &sample->totals);
	PgpxTime	waiting_time;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (now / span_us[span] <= current->since / span_us[span])
	{
		*pending |= active;
		return false;
	}
	sample->pool_id = pool->pool_id;
	sample->pool = PGPX_POOL_INDEX(pool);
	sample->pool_size = pool->opts.pool_size;
	sample->max_total = pgpx_pool_cap_locked(pool);
	sample->total = pgpx_pool_total_locked(pool) + pool->nbroken;
	sample->peaks = current->peaks;
	sample->peaks.callers = Max(current->peaks.callers, current->peaks.leased);
	sample->since = current->since;
	sample->until = now;

	/* a wait that has ended and is not counted yet was part of these totals */
	waiting_time = Max(totals->waiting_time, current->totals.waiting_time);
	current->since = now;
	current->totals = *totals;
	current->totals.waiting_time = waiting_time;
	current->peaks = pool->peaks;
	return active;
}

/*
 * Write the samples of a pool that are due.  Return whether there is activity
 * that is in no sample yet.
 */
static bool
sample_pool(PgpxPool *pool, PgpxTime now)
{
	PgpxTotals	totals;
	PgpxSample	samples[PGPX_SPANS];
	bool		write[PGPX_SPANS] = {0};
	bool		pending = false;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);

	/* the lists of a damaged pool cannot be read; its worker restarts */
	if (pool->pool_id != 0 && !pool->damaged)
	{
		pgpx_history_totals_locked(pool, now, &totals);
		pgpx_pool_fold_peaks_locked(pool);
		for (int span = 0; span < PGPX_SPANS; span++)
			write[span] = end_sample_locked(pool, span, now, &totals,
											&samples[span], &pending);
	}
	LWLockRelease(pool->lock);
	for (int span = 0; span < PGPX_SPANS; span++)
		if (write[span])
			append(span, &samples[span]);
	return pending;
}

/*
 * Begin the current samples of a pool at this time, because the worker has slept
 * since the end of the last ones, and no connection was open.
 */
static void
skip_sleep(PgpxPool *pool, PgpxTime since)
{
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	for (int span = 0; span < PGPX_SPANS; span++)
		pool->sampling[span].since = Max(pool->sampling[span].since, since);
	LWLockRelease(pool->lock);
}

PgpxTime
pgpx_history_sample(int worker, PgpxTime now)
{
	static PgpxTime next = 0;	/* of this worker's samples */
	static bool idle = false;	/* it need not wake up for them */
	bool		slept = idle && now >= next + PGPX_SHORT_SPAN_US;
	uint32		moves;

	if (pgpx_shared->max_samples == 0)
		return PG_INT64_MAX;
	if (now >= next)
	{
		idle = true;
		for (int i = 0; i < pgpx_pools_end(); i++)
		{
			PgpxPool   *pool = &pgpx_pools[i];

			/* unlocked read, as in maintenance */
			if (pool->pool_id == 0 || pool->worker != worker)
				continue;
			if (slept)
				skip_sleep(pool, now - now % PGPX_SHORT_SPAN_US);
			idle &= !sample_pool(pool, now);
		}
		next = now - now % PGPX_SHORT_SPAN_US + PGPX_SHORT_SPAN_US;
	}

	/* an open connection can be leased without waking the worker */
	idle &= pgpx_cap_used(&pgpx_shared->cap, &moves) == 0;
	return idle ? PG_INT64_MAX : next;
}

int
pgpx_history_copy(PgpxSpan span, PgpxSample *samples, PgpxTime *complete)
{
	PgpxSample *ring;
	uint64		size = capacity(span, &ring);
	uint64		next = 0;
	uint64		end = 0;
	uint64		oldest = 0;
	int			n = 0;

	do
	{
		uint64		written;

		LWLockAcquire(pgpx_shared->history_lock, LW_SHARED);
		written = pgpx_shared->samples_written[span];
		oldest = written > size ? written - size : 0;

		/* begin, or begin again, because the next ones were overwritten */
		if (n == 0 || next < oldest)
		{
			next = oldest;
			end = written;
			n = 0;
		}
		for (int i = 0; i < COPY_BATCH && next < end; i++)
			samples[n++] = ring[next++ % size];
		LWLockRelease(pgpx_shared->history_lock);
	} while (next < end);
	*complete = oldest > 0 ? samples[0].until : 0;
	return n;
}
