/*-------------------------------------------------------------------------
 *
 * cap.c
 *	  A cap over several pools: its tokens, and the pool that is next in line.
 *
 * Shared memory only.  A denied pool is recorded as next in line in the same
 * critical section, under the cap's spinlock.  So no pool with a younger
 * waiter gets a token that is released in between.  The pool remains next in
 * line until the worker (admission.c) finds that the cap no longer keeps it
 * from growing.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/cap.h"

#include "storage/spin.h"

void
pgpx_cap_init(PgpxCap *cap)
{
	SpinLockInit(&cap->mutex);
	cap->used = 0;
	cap->moves = 0;
	cap->next_in_line = -1;
	cap->line_changes = 0;
	pg_atomic_init_u64(&cap->since, 0);
}

/*
 * Return whether another pool is next in line, with an older waiter.  The
 * caller must hold the spinlock.
 */
static bool
has_older(PgpxCap *cap, int pool, int64 since)
{
	int64		oldest = (int64) pg_atomic_read_u64(&cap->since);

	return oldest != 0 && cap->next_in_line != pool &&
		(since == 0 || oldest < since);
}

PgpxToken
pgpx_cap_acquire(PgpxCap *cap, int limit, int pool, int64 since)
{
	PgpxToken	token = PGPX_TOKEN_DENIED;

	SpinLockAcquire(&cap->mutex);
	if (!has_older(cap, pool, since))
	{
		if (limit == 0 || cap->used < limit)
		{
			cap->used++;
			cap->moves++;
			token = PGPX_TOKEN_ACQUIRED;
		}
		else if (since != 0 &&
				 (cap->next_in_line != pool ||
				  (int64) pg_atomic_read_u64(&cap->since) == 0))
		{
			cap->next_in_line = pool;
			cap->line_changes++;
			pg_atomic_write_u64(&cap->since, (uint64) since);
			token = PGPX_TOKEN_DENIED_NEXT;
		}
	}
	SpinLockRelease(&cap->mutex);
	return token;
}

int
pgpx_cap_release(PgpxCap *cap)
{
	int			before;

	SpinLockAcquire(&cap->mutex);
	before = cap->used--;
	cap->moves++;
	SpinLockRelease(&cap->mutex);
	Assert(before > 0);
	return before;
}

int
pgpx_cap_used(PgpxCap *cap, uint32 *moves)
{
	int			used;

	SpinLockAcquire(&cap->mutex);
	used = cap->used;
	if (moves != NULL)
		*moves = cap->moves;
	SpinLockRelease(&cap->mutex);
	return used;
}

bool
pgpx_cap_has_older(PgpxCap *cap, int pool, int64 since)
{
	bool		older;

	/* each checkin calls this, and nearly always no pool is next in line */
	if (pg_atomic_read_u64(&cap->since) == 0)
		return false;
	SpinLockAcquire(&cap->mutex);
	older = has_older(cap, pool, since);
	SpinLockRelease(&cap->mutex);
	return older;
}

int
pgpx_cap_next_in_line(PgpxCap *cap, uint32 *line_changes)
{
	int			pool;

	/* without the lock, because the worker calls this for each server */
	if (line_changes == NULL && pg_atomic_read_u64(&cap->since) == 0)
		return -1;

	SpinLockAcquire(&cap->mutex);
	pool = pg_atomic_read_u64(&cap->since) != 0 ? cap->next_in_line : -1;
	if (line_changes != NULL)
		*line_changes = cap->line_changes;
	SpinLockRelease(&cap->mutex);
	return pool;
}

bool
pgpx_cap_set_next_in_line(PgpxCap *cap, int pool, int64 since,
						  uint32 line_changes)
{
	bool		ended = false;

	SpinLockAcquire(&cap->mutex);
	if (cap->line_changes == line_changes)
	{
		ended = since == 0 && pg_atomic_read_u64(&cap->since) != 0;
		cap->next_in_line = pool;
		pg_atomic_write_u64(&cap->since, (uint64) since);
	}
	SpinLockRelease(&cap->mutex);
	return ended;
}

void
pgpx_cap_forget(PgpxCap *cap, int pool)
{
	SpinLockAcquire(&cap->mutex);
	if (cap->next_in_line == pool)
		pg_atomic_write_u64(&cap->since, 0);
	SpinLockRelease(&cap->mutex);
}
