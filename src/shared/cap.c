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
	cap->share = 0;
	cap->share_until = 0;
	cap->share_remote = 0;
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

/*
 * Return whether the share is valid for this claim.  The caller must hold the
 * spinlock.
 */
static bool
is_share_valid(const PgpxCap *cap, PgpxShareClaim claim)
{
	return claim.now < cap->share_until && claim.remote == cap->share_remote;
}

/* Return how many tokens are left.  The caller must hold the spinlock. */
static int
tokens_left(const PgpxCap *cap, int limit, PgpxShareClaim claim)
{
	int			left = limit > 0 ? limit - cap->used : PG_INT32_MAX;

	if (claim.now == 0)
		return left;
	return is_share_valid(cap, claim) ? Min(left, cap->share - cap->used) : 0;
}

/*
 * Return whether the share was agreed with another remote database than that of
 * the claim.  Then no release of a token can help the pool, so it must not be
 * next in line.  The caller must hold the spinlock.
 */
static bool
is_of_other_remote(const PgpxCap *cap, PgpxShareClaim claim)
{
	return claim.now != 0 && cap->share_remote != 0 &&
		claim.remote != cap->share_remote;
}

PgpxToken
pgpx_cap_acquire(PgpxCap *cap, int limit, PgpxShareClaim claim, int pool,
				 int64 since)
{
	PgpxToken	token = PGPX_TOKEN_DENIED;

	SpinLockAcquire(&cap->mutex);
	if (!has_older(cap, pool, since))
	{
		if (tokens_left(cap, limit, claim) > 0)
		{
			cap->used++;
			cap->moves++;
			token = PGPX_TOKEN_ACQUIRED;
		}
		else if (since != 0 && !is_of_other_remote(cap, claim) &&
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

int
pgpx_cap_left(PgpxCap *cap, int limit, PgpxShareClaim claim)
{
	int			left;

	SpinLockAcquire(&cap->mutex);
	left = tokens_left(cap, limit, claim);
	SpinLockRelease(&cap->mutex);
	return left;
}

int
pgpx_cap_surplus(PgpxCap *cap, int limit, PgpxShareClaim claim)
{
	int			surplus;

	SpinLockAcquire(&cap->mutex);
	surplus = limit > 0 ? cap->used - limit : 0;
	if (claim.now != 0 && is_share_valid(cap, claim))
		surplus = Max(surplus, cap->used - cap->share);
	SpinLockRelease(&cap->mutex);
	return Max(surplus, 0);
}

int
pgpx_cap_lower_share(PgpxCap *cap, int share)
{
	int			used;

	SpinLockAcquire(&cap->mutex);
	cap->share = Min(cap->share, share);
	used = cap->used;
	SpinLockRelease(&cap->mutex);
	return used;
}

void
pgpx_cap_set_share(PgpxCap *cap, int share, int64 until, uint64 remote)
{
	SpinLockAcquire(&cap->mutex);
	cap->share = share;
	cap->share_until = until;
	cap->share_remote = remote;
	SpinLockRelease(&cap->mutex);
}

void
pgpx_cap_forget_share(PgpxCap *cap)
{
	SpinLockAcquire(&cap->mutex);
	cap->share = 0;
	cap->share_until = 0;
	cap->share_remote = 0;
	SpinLockRelease(&cap->mutex);
}

int
pgpx_cap_share(PgpxCap *cap, int64 *until)
{
	int			share;

	SpinLockAcquire(&cap->mutex);
	share = cap->share;
	*until = cap->share_until;
	SpinLockRelease(&cap->mutex);
	return share;
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
