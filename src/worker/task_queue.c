/*-------------------------------------------------------------------------
 *
 * task_queue.c
 *	  Calls that block or compute for long, in threads of the worker.
 *
 * Four kinds of calls cannot be interrupted:
 *	- The steps of a login.  PQconnectPoll does not wait for input, but the
 *	  remote determines how much it has to compute: in SCRAM the number of hash
 *	  iterations (RFC 7677; two billion take ten minutes), in TLS the sizes of
 *	  the keys.
 *	- Cancel requests, which log in to TLS, and before libpq 17 wait for the
 *	  remote.
 *	- getaddrinfo(), which waits for name servers.
 *	- The password command, which is a program.
 * In the event loop such a call would delay all pools.  So each runs in a thread
 * of its own.  Its owner can abandon it.  Then the thread continues until the
 * call returns.
 *
 * Rules for the code in a thread:
 *	- All signals are blocked.
 *	- It calls no function of the server: no palloc, no ereport, no latch.
 *	- It works on a task that no other code touches until the task's address
 *	  comes back through a pipe.
 *
 * Limits: the threads of each kind are limited, abandoned ones included.
 *	- For each version of a pool's conninfo.  So a remote or a name server that
 *	  does not answer occupies only the threads of its own pool.  After a
 *	  change of options a task does not wait for those with the old options, so
 *	  that a corrected configuration works at once.
 *	- For each user, because the right to change a user mapping or to create
 *	  servers allows a user to make new conninfos repeatedly.  A user is a role
 *	  in a database.
 * The tasks of connections for locks have limits of their own, so that the
 * attempts of pools that hang do not cost locks.
 * Tasks beyond a limit wait in order of submission.  Their owners abandon them
 * at their deadlines.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/task_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/debug_point.h"

/* Enough for libpq, OpenSSL and name service modules. */
#define STACK_SIZE (1024 * 1024)

typedef struct TaskLimits
{
	const char *name;			/* plural, for messages */
	int			of_conninfo;
	int			of_user;
} TaskLimits;

/*
 * A connection has at most one cancel request, whose thread mostly waits, so
 * there may be as many as a large pool has connections.  A password serves all
 * logins of a conninfo, and a command may be expensive.
 */
static const TaskLimits limits[] = {
	[PGPX_TASK_LOGIN] = {"logins", 4, 64},
	[PGPX_TASK_CANCEL] = {"cancel requests", 64, 256},
	[PGPX_TASK_LOOKUP] = {"host name lookups", 4, 64},
	[PGPX_TASK_PASSWORD] = {"password commands", 1, 8},
};

/* Tasks that wait for a thread or have one, in order of submission. */
static dlist_head tasks = DLIST_STATIC_INIT(tasks);

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
pgpx_thread_start(void *(*run)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t	thread;
	sigset_t	all;
	sigset_t	old;
	int			rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	started |= rc == 0;
	return rc == 0;
}

static bool
has_same_user(const PgpxTask *a, const PgpxTask *b)
{
	return a->for_locks == b->for_locks && a->database == b->database &&
		strcmp(NameStr(a->user), NameStr(b->user)) == 0;
}

static bool
has_same_conninfo(const PgpxTask *a, const PgpxTask *b)
{
	return a->kind == b->kind && a->for_locks == b->for_locks &&
		a->key.pool == b->key.pool &&
		a->key.pool_id == b->key.pool_id && a->key.version == b->key.version;
}

/*
 * Set *conninfo and *user to whether the threads of the task's conninfo, and of
 * its user, are at the limit.
 */
static void
check_limits(const PgpxTask *task, bool *conninfo, bool *user)
{
	int			of_conninfo = 0;
	int			of_user = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &tasks)
	{
		PgpxTask   *other = dlist_container(PgpxTask, node, iter.cur);

		if (!other->running || other->kind != task->kind)
			continue;
		of_conninfo += has_same_conninfo(other, task) ? 1 : 0;
		of_user += has_same_user(other, task) ? 1 : 0;
	}
	*conninfo = of_conninfo >= limits[task->kind].of_conninfo;
	*user = of_user >= limits[task->kind].of_user;
}

/* Return the first waiting task of this kind and user that may start. */
static PgpxTask *
next_to_start(const PgpxTask *like)
{
	PgpxTask   *stuck = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &tasks)
	{
		PgpxTask   *task = dlist_container(PgpxTask, node, iter.cur);
		bool		conninfo;
		bool		user;

		if (task->running || task->kind != like->kind ||
			!has_same_user(task, like) ||
			(stuck != NULL && has_same_conninfo(task, stuck)))
			continue;
		check_limits(task, &conninfo, &user);
		if (user)
			return NULL;
		if (!conninfo)
			return task;
		stuck = task;
	}
	return NULL;
}

/* Start the waiting tasks of this kind and user that may start. */
static void
start_waiting(const PgpxTask *like)
{
	PgpxTask   *next;

	while ((next = next_to_start(like)) != NULL)
	{
		next->running = true;
		if (finished[1] >= 0 && pgpx_thread_start(thread_main, next))
			continue;
		dlist_delete(&next->node);
		next->ended(next, PGPX_TASK_NO_THREAD);
	}
}

void
pgpx_task_submit(PgpxTask *task, PgpxTaskKind kind, const PgpxConninfoKey *key)
{
	PgpxPool   *pool = &pgpx_pools[key->pool];
	PgpxTask	like;

	task->kind = kind;
	task->key = *key;
	task->running = false;
	pg_atomic_init_u32(&task->abandoned, 0);
	LWLockAcquire(pool->lock, LW_SHARED);
	task->database = pool->key.database;
	task->user = pool->user_name;
	LWLockRelease(pool->lock);
	dlist_push_tail(&tasks, &task->node);
	like = *task;				/* the task may end meanwhile */
	start_waiting(&like);
}

void
pgpx_task_abandon(PgpxTask *task)
{
	pg_atomic_write_u32(&task->abandoned, 1);
	if (!task->running)
	{
		dlist_delete(&task->node);
		task->ended(task, PGPX_TASK_ABANDONED);
	}
	else if (task->interrupt != NULL)
		task->interrupt(task);
}

bool
pgpx_task_is_abandoned(PgpxTask *task)
{
	return pg_atomic_read_u32(&task->abandoned) != 0;
}

bool
pgpx_task_is_running(const PgpxTask *task)
{
	return task != NULL && task->running;
}

const char *
pgpx_task_delay_reason(const PgpxTask *task)
{
	bool		conninfo;
	bool		user;

	if (task == NULL)
		return "";
	if (task->running)
		return task->kind == PGPX_TASK_LOGIN ?
			": what the remote server asks for takes longer to compute" : "";
	check_limits(task, &conninfo, &user);
	return psprintf(conninfo ? ": earlier %s of the pool have not ended" :
					": too many %s of this user have not ended",
					limits[task->kind].name);
}

int
pgpx_task_descriptors(void)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &tasks)
	{
		PgpxTaskKind kind = dlist_container(PgpxTask, node, iter.cur)->kind;

		n += kind == PGPX_TASK_LOGIN || kind == PGPX_TASK_CANCEL ? 1 : 0;
	}
	return n;
}

/* End the tasks that have finished; only_cancels: discard all other tasks. */
static void
end_finished(bool only_cancels)
{
	PgpxTask   *task;

	/* NOLINTNEXTLINE(bugprone-sizeof-expression): as it was sent */
	while (read(finished[0], &task, sizeof(task)) == sizeof(task))
	{
		PgpxTask	like = *task;

		if (only_cancels && task->kind != PGPX_TASK_CANCEL)
			continue;
		dlist_delete(&task->node);
		task->ended(task, pgpx_task_is_abandoned(task) ? PGPX_TASK_ABANDONED :
					PGPX_TASK_DONE);
		start_waiting(&like);
	}
}

void
pgpx_task_ready(void)
{
	end_finished(false);
}

void
pgpx_task_wait_for_cancels(int timeout_ms)
{
	struct pollfd ready = {.fd = finished[0], .events = POLLIN};

	(void) poll(&ready, 1, timeout_ms);
	end_finished(true);
}

void
pgpx_task_exit(int code, Datum arg)
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
