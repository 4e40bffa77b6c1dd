/*-------------------------------------------------------------------------
 *
 * events.c
 *	  The worker's epoll set, its due time, and threads for calls that block.
 *
 * Two kinds of calls block or take long and cannot be interrupted:
 * getaddrinfo() (conninfo.c), and the steps of a login, in which the remote
 * determines how much libpq has to compute (login.c).  Each such call runs in a
 * thread of its own.  Its owner can abandon it.
 *
 * Rules for the code in a thread:
 *	- All signals are blocked.
 *	- It calls no function of the server: no palloc, no ereport, no latch.
 *	- It works on a malloc'ed task that no other code touches until the task's
 *	  address comes back through a pipe.
 * The caller limits the number of threads.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/events.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/debug_point.h"

int			pgpx_epoll_fd = -1;
PgpxTime	pgpx_next_deadline = PG_INT64_MAX;

/* Enough for libpq, OpenSSL and name service modules. */
#define STACK_SIZE (1024 * 1024)

static int	finished[2] = {-1, -1}; /* pipe: addresses of finished tasks */
static bool started = false;	/* true once any thread was started */

int
pgpx_task_init(void)
{
	if (pipe2(finished, O_CLOEXEC | O_NONBLOCK) < 0)
		return -1;
	return finished[0];
}

static void *
thread_main(void *arg)
{
	PgpxTask   *task = arg;

	task->run(task);

	/* send the pointer: NOLINTNEXTLINE(bugprone-sizeof-expression) */
	while (write(finished[1], &task, sizeof(task)) < 0 &&
		   (errno == EINTR || errno == EAGAIN))
		usleep(1000);			/* not expected: the pipe holds thousands */
	return NULL;
}

bool
pgpx_task_start(PgpxTask *task)
{
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	old;
	int			rc;

	if (finished[1] < 0)
		return false;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &attr, thread_main, task);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc != 0)
		return false;
	started = true;
	return true;
}

void
pgpx_task_ready(void)
{
	PgpxTask   *task;

	/* NOLINTNEXTLINE(bugprone-sizeof-expression): as it was sent */
	while (read(finished[0], &task, sizeof(task)) == sizeof(task))
		task->ended(task);
}

void
pgpx_task_exit(int code)
{
	/*
	 * even the thread of a finished task may still be exiting, through
	 * OpenSSL's cleanup
	 */
	if (!started)
		return;
	PGPX_DEBUG_COUNTED();
	_exit(code);
}

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
