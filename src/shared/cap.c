/*-------------------------------------------------------------------------
 *
 * cap.c
 *	  A cap over several pools: its tokens, and who is to have the next.
 *
 * Shared memory only.  To be denied a token and to stand in line for one is one
 * step under the cap's spinlock, so nobody younger gets a token that comes free in
 * between.  Who is named stays so until the worker (admission.c) finds that the cap
 * no longer holds it back.
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
	cap->hungry = -1;
	cap->named = 0;
	pg_atomic_init_u64(&cap->since, 0);
}

/*
 * Is the token another pool's, that has waited longer?  Caller holds the spinlock.
 */
static bool
is_owed(PgpxCap *cap, int pool, int64 since)
{
	int64		oldest = (int64) pg_atomic_read_u64(&cap->since);

	return oldest != 0 && cap->hungry != pool &&
		(since == 0 || oldest < since);
}

PgpxToken
pgpx_cap_take(PgpxCap *cap, int limit, int pool, int64 since)
{
	PgpxToken	token = PGPX_TOKEN_DENIED;

	SpinLockAcquire(&cap->mutex);
	if (!is_owed(cap, pool, since))
	{
		if (limit <= 0 || cap->used < limit)
		{
			cap->used++;
			cap->moves++;
			token = PGPX_TOKEN_TAKEN;
		}
		else if (since != 0 &&
				 (cap->hungry != pool ||
				  (int64) pg_atomic_read_u64(&cap->since) == 0))
		{
			cap->hungry = pool;
			cap->named++;
			pg_atomic_write_u64(&cap->since, (uint64) since);
			token = PGPX_TOKEN_DENIED_NAMED;
		}
	}
	SpinLockRelease(&cap->mutex);
	return token;
}

int
pgpx_cap_give(PgpxCap *cap)
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
pgpx_cap_is_owed(PgpxCap *cap, int pool, int64 since)
{
	bool		owed;

	/* each checkin asks: nearly always nobody is hungry */
	if (pg_atomic_read_u64(&cap->since) == 0)
		return false;
	SpinLockAcquire(&cap->mutex);
	owed = is_owed(cap, pool, since);
	SpinLockRelease(&cap->mutex);
	return owed;
}

int
pgpx_cap_named(PgpxCap *cap, uint32 *named)
{
	int			pool;

	SpinLockAcquire(&cap->mutex);
	pool = pg_atomic_read_u64(&cap->since) != 0 ? cap->hungry : -1;
	if (named != NULL)
		*named = cap->named;
	SpinLockRelease(&cap->mutex);
	return pool;
}

bool
pgpx_cap_name(PgpxCap *cap, int pool, int64 since, uint32 named)
{
	bool		ended = false;

	SpinLockAcquire(&cap->mutex);
	if (cap->named == named)
	{
		ended = since == 0 && pg_atomic_read_u64(&cap->since) != 0;
		cap->hungry = pool;
		pg_atomic_write_u64(&cap->since, (uint64) since);
	}
	SpinLockRelease(&cap->mutex);
	return ended;
}

void
pgpx_cap_forget(PgpxCap *cap, int pool)
{
	SpinLockAcquire(&cap->mutex);
	if (cap->hungry == pool)
		pg_atomic_write_u64(&cap->since, 0);
	SpinLockRelease(&cap->mutex);
}
