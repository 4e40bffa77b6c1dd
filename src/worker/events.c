/*-------------------------------------------------------------------------
 *
 * events.c
 *	  The worker's epoll set, its due time, and the pools that have changed.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/events.h"

#include <errno.h>
#include <sys/epoll.h>

int			pgpx_epoll_fd = -1;
PgpxTime	pgpx_next_deadline = PG_INT64_MAX;

static uint64
pack_event(PgpxWatchKind kind, int index)
{
	return ((uint64) kind << 32) | (uint32) index;
}

void
pgpx_event_watch(PgpxWatchKind kind, int index, int fd, uint32 events,
				 bool add)
{
	struct epoll_event ev = {0};

	ev.events = events;
	ev.data.u64 = pack_event(kind, index);
	if (epoll_ctl(pgpx_epoll_fd, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD,
				  fd, &ev) < 0 &&
		!(add && errno == EEXIST &&
		  epoll_ctl(pgpx_epoll_fd, EPOLL_CTL_MOD, fd, &ev) == 0))
		ereport(ERROR,
				(errcode_for_socket_access(),
				 errmsg("pgpool_ext could not add a socket to its event loop: %m")));
}

void
pgpx_event_unwatch(int fd)
{
	struct epoll_event ev = {0};

	/*
	 * remove it explicitly: other processes hold the socket, so close() does
	 * not
	 */
	if (fd >= 0)
		epoll_ctl(pgpx_epoll_fd, EPOLL_CTL_DEL, fd, &ev);
}

void
pgpx_event_due_at(PgpxTime at)
{
	pgpx_next_deadline = Min(pgpx_next_deadline, at);
}

/* Pools whose connections have changed; max_pools entries each. */
static int *changed_pools = NULL;
static bool *pool_changed = NULL;
static int	nchanged = 0;

void
pgpx_event_pool_changed(int pool)
{
	if (changed_pools == NULL)
	{
		int			n = pgpx_shared->max_pools;

		changed_pools = MemoryContextAlloc(TopMemoryContext, n * sizeof(int));
		pool_changed = MemoryContextAllocZero(TopMemoryContext,
											  n * sizeof(bool));
	}
	if (pool < 0 || pool_changed[pool])
		return;
	pool_changed[pool] = true;
	changed_pools[nchanged++] = pool;
}

int
pgpx_event_next_changed_pool(void)
{
	int			pool;

	if (nchanged == 0)
		return -1;
	pool = changed_pools[--nchanged];
	pool_changed[pool] = false;
	return pool;
}
