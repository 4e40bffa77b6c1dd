/*-------------------------------------------------------------------------
 *
 * busy_poll.c
 *	  Looking for what is about to come, before going to sleep for it: who
 *	  may, and for how long (pgpool_ext.busy_poll).
 *
 * A sleep and its wake-up cost about as much as a short statement, most of it
 * where an idle processor has to be woken: so a process looks for an answer for
 * about as long as they would take, before it sleeps.
 *
 * In vain that is a waste, and where the remote wants this very processor a
 * delay.  So after each miss in a row four times as many waits go without a look
 * (a remote that is a network away misses always, and is hardly ever looked for),
 * and never do more processes look than half the processors there are.
 *
 * Nor where others have work for the processors: while somebody waits for a
 * connection of the pool, or more of its connections are leased than processes
 * may look, looking costs more than it wins (with 8 sessions on 2 processors some
 * percent of their transactions).
 *
 * A place in pgpx_shared->npolling is counted, not owned: who has one must give
 * it back whatever happens.  A process that is killed takes the shared memory
 * with it.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/busy_poll.h"

/* One wait in 1024 is looked for at least. */
#define MISSES_MAX 10

static bool has_slot = false;	/* this process is one of npolling */

bool
pgpx_busy_poll_is_calm(int pool)
{
	const volatile PgpxPool *p = &pgpx_pools[pool];

	return p->nwaiting == 0 &&
		p->count[PGPX_CONN_LEASED] <= (int) pgpx_shared->max_polling;
}

PgpxTime
pgpx_busy_poll_begin(PgpxBusyPoll *poll)
{
	if (poll->skip > 0)
	{
		poll->skip--;
		return 0;
	}
	if (pgpx_busy_poll == 0)
		return 0;
	if (!has_slot)
	{
		if (pg_atomic_fetch_add_u32(&pgpx_shared->npolling, 1) >=
			pgpx_shared->max_polling)
		{
			pg_atomic_fetch_sub_u32(&pgpx_shared->npolling, 1);
			return 0;
		}
		has_slot = true;
	}
	return pgpx_now() + pgpx_busy_poll;
}

void
pgpx_busy_poll_end(PgpxBusyPoll *poll, bool found)
{
	if (found)
		poll->misses = Max(poll->misses - 1, 0);
	else
		poll->misses = Min(poll->misses + 2, MISSES_MAX);
	poll->skip = (1 << poll->misses) - 1;
}

void
pgpx_busy_poll_leave(void)
{
	if (!has_slot)
		return;
	has_slot = false;
	pg_atomic_fetch_sub_u32(&pgpx_shared->npolling, 1);
}
