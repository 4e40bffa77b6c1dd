/*-------------------------------------------------------------------------
 *
 * pool_maintain.c
 *	  What time brings to a pool: expiry, shrinking, min_size.
 *
 * Called by the worker.  Decides by the clock and by states, under the pool lock,
 * and returns when it wants to be called again, so that a pool in which nothing
 * is due costs nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "pool.h"

/* At most one connection expires in a pool at a time, and then not before: */
#define EXPIRE_APART_US (100 * 1000)

/*
 * Why a ready connection should be closed now; NONE, and *due is when the first
 * reason will hold.
 */
static PgpxCloseReason
reason_to_close(const PgpxPool *pool, const PgpxConn *conn, int total,
				PgpxTime now, PgpxTime *due)
{
	const PgpxPoolOptions *opts = &pool->opts;
	PgpxTime	idle_until = conn->last_used + opts->idle_timeout * 1000;
	PgpxTime	overflow_until = conn->last_used + opts->overflow_ttl * 1000;

	if (conn->expires_at != 0)
	{
		if (now >= conn->expires_at)
			return PGPX_CLOSE_LIFETIME;
		*due = Min(*due, conn->expires_at);
	}
	if (total > opts->pool_size)
	{
		if (now >= overflow_until)
			return PGPX_CLOSE_OVERFLOW;
		*due = Min(*due, overflow_until);
	}
	if (total > opts->min_size)
	{
		if (now >= idle_until)
			return PGPX_CLOSE_IDLE;
		*due = Min(*due, idle_until);
	}
	return PGPX_CLOSE_NONE;
}

PgpxTime
pgpx_pool_maintain(PgpxPool *pool, PgpxTime now)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxTime	due = PG_INT64_MAX;
	bool		expired = false;
	int			total;
	int			before;
	int64		soonest;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);

	/* those that are closing are on their way out already */
	total = pgpx_pool_total_locked(pool) - pool->count[PGPX_CONN_CLOSING];

	/* the one that was used longest ago first */
	for (int i = pool->idle_tail; i >= 0; i = before)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		PgpxCloseReason reason;

		before = conn->prev;
		reason = reason_to_close(pool, conn, total, now, &due);
		if (reason == PGPX_CLOSE_NONE)
			continue;
		if (reason == PGPX_CLOSE_LIFETIME && expired)
		{
			due = Min(due, now + EXPIRE_APART_US);
			continue;
		}
		expired |= reason == PGPX_CLOSE_LIFETIME;
		pgpx_pool_close_locked(pool, conn, reason);
		total--;
	}

	/* those in use come back at some time; look again when they could be due */
	soonest = Min(pool->opts.idle_timeout, pool->opts.overflow_ttl);
	if (total > pool->count[PGPX_CONN_IDLE])
		due = Min(due, now + soonest * 1000);
	pgpx_pool_serve_locked(pool, &wake);
	if (pool->nwaiting == 0)
		pgpx_pool_grow_locked(pool, 0);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	return due;
}
