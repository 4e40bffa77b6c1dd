/*-------------------------------------------------------------------------
 *
 * busy_poll.c
 *	  Busy polling: which processes check for input before they sleep, and for
 *	  how long (pgpool_ext.busy_poll).
 *
 * A sleep and its wakeup cost about as much as a short statement, most of it
 * when an idle processor has to be woken.  Therefore a process polls for an
 * answer for about that long before it sleeps.
 *
 * Polling without success wastes time, and delays a remote server that needs
 * the same processor.  Two rules limit that:
 *	- After each consecutive miss, four times as many waits skip polling.  A
 *	  remote server across a network causes misses only, so its connections are
 *	  hardly ever polled.
 *	- At most half as many processes poll as there are processors.
 *
 * In addition, a process does not poll while the pool has waiters, or while it
 * has more leases than processes may poll.  Other processes need the processors
 * in these cases, and polling costs more than it gains (with 8 sessions on 2
 * processors a few percent of the transactions).
 *
 * pgpx_shared->npolling is only a count and does not record the processes.  So
 * a process must release its slot in every case.  If a process is killed, the
 * server recreates shared memory.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/busy_poll.h"

/* Poll in at least one of 1024 waits. */
#define MISSES_MAX 10

static bool has_slot = false;	/* this process is counted in npolling */

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
