/*-------------------------------------------------------------------------
 *
 * invariants_caps.c
 *	  Does each connection have its tokens?
 *
 * A token and the connection that it is for move in one section under the lock of
 * their pool.  So a cap whose tokens have not moved while all locks were passed,
 * and then all connections were counted, has as many out as there are connections.
 *
 *-------------------------------------------------------------------------
 */
#include "invariants.h"

#define ROUNDS 20				/* of looks at caps whose tokens move all the time */

/* What a cap had before the connections were counted. */
typedef struct PgpxCapSeen
{
	bool		done;
	int			used;
	uint32		moves;
	int			counted;
} PgpxCapSeen;

static void
look(PgpxCap *cap, PgpxCapSeen *seen)
{
	seen->used = pgpx_cap_used(cap, &seen->moves);
	seen->counted = 0;
}

static void
compare(PgpxCheck *check, PgpxCap *cap, PgpxCapSeen *seen, const char *what,
		int place)
{
	uint32		moves;

	if (seen->done)
		return;
	pgpx_cap_used(cap, &moves);
	if (moves != seen->moves)
		return;
	seen->done = true;
	if (seen->used != seen->counted)
		pgpx_check_fault(check, "%s (place %d) has %d tokens out, but %d connections",
						 what, place, seen->used, seen->counted);
}

void
pgpx_check_caps(PgpxCheck *check)
{
	int			n = pgpx_shared->max_pools;
	PgpxCapSeen all = {0};
	PgpxCapSeen *seen = palloc0(mul_size(n, sizeof(PgpxCapSeen)));
	bool		done = false;

	for (int round = 0; round < ROUNDS && !done; round++)
	{
		look(&pgpx_shared->cap, &all);
		for (int i = 0; i < n; i++)
			look(&pgpx_servers[i].cap, &seen[i]);

		/* who was in the midst of a move has come to its end */
		pgpx_check_pass_locks();
		for (int i = 0; i < n; i++)
		{
			PgpxPool   *pool = &pgpx_pools[i];
			int			total;

			LWLockAcquire(pool->lock, LW_SHARED);
			total = pgpx_pool_total_locked(pool);
			all.counted += total + pool->nbroken;
			if (total > 0)
				seen[pool->server].counted += total;
			LWLockRelease(pool->lock);
		}

		compare(check, &pgpx_shared->cap, &all, "max_connections", 0);
		done = all.done;
		for (int i = 0; i < n; i++)
		{
			compare(check, &pgpx_servers[i].cap, &seen[i], "server", i);
			done = done && seen[i].done;
		}
	}
	pfree(seen);
}
