/*-------------------------------------------------------------------------
 *
 * invariants_dlocks.c
 *	  Does what is known of distributed locks add up?
 *
 * Under dlock_lock faults are noted and nothing else is done.
 *
 *-------------------------------------------------------------------------
 */
#include "invariants.h"

#include "dlock.h"

static void
check_one(PgpxCheck *check, int place, PgpxTime now)
{
	PgpxDlock  *lock = &pgpx_dlocks[place];
	PgpxTime	until;
	bool		owned = lock->state != PGPX_DLOCK_RELEASING || lock->awaited;

	if (lock->state < PGPX_DLOCK_FREE || lock->state > PGPX_DLOCK_DONE)
	{
		pgpx_check_fault(check, "lock at place %d has state %d", place, lock->state);
		return;
	}
	if (lock->name[0] == '\0' || lock->ttl <= 0 || lock->request == 0 ||
		lock->pool < 0 || lock->pool >= pgpx_shared->max_pools)
		pgpx_check_fault(check, "lock at place %d lacks a name, a ttl, a request or a pool",
						 place);

	/* an exit callback gives a lock up before the process is gone */
	if (owned && !pgpx_check_is_alive(lock->owner_procno, lock->owner_pid))
		pgpx_check_fault(check, "lock at place %d belongs to PID %d, which does not exist",
						 place, lock->owner_pid);
	if (lock->state == PGPX_DLOCK_DONE && !lock->awaited)
		pgpx_check_fault(check, "lock at place %d waits for a session that does not wait",
						 place);
	if (lock->state != PGPX_DLOCK_HELD)
		return;
	until = pgpx_dlock_certain_until(lock->asked_at, lock->ttl);
	if (lock->token <= 0 || lock->asked_at > now || lock->valid_until != until)
		pgpx_check_fault(check, "lock at place %d is held without a token, or beyond its ttl",
						 place);
	for (int i = 0; i < place; i++)
		if (pgpx_dlocks[i].state == PGPX_DLOCK_HELD &&
			pgpx_dlocks[i].valid_until > now && lock->valid_until > now &&
			strcmp(pgpx_dlocks[i].name, lock->name) == 0 &&
			memcmp(&pgpx_dlocks[i].key, &lock->key, sizeof(lock->key)) == 0)
			pgpx_check_fault(check, "locks at places %d and %d are one, and both held",
							 i, place);
}

void
pgpx_check_dlocks(PgpxCheck *check)
{
	LWLockAcquire(pgpx_shared->dlock_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
		if (pgpx_dlocks[i].state != PGPX_DLOCK_FREE)
			check_one(check, i, pgpx_steady_now());
	LWLockRelease(pgpx_shared->dlock_lock);
}
