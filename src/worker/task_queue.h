/*-------------------------------------------------------------------------
 *
 * task_queue.h
 *	  Calls that block or compute for long, in threads of the worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TASK_QUEUE_H
#define PGPX_TASK_QUEUE_H

#include "shared/shmem.h"

#include "lib/ilist.h"
#include "port/atomics.h"

typedef enum PgpxTaskKind
{
	PGPX_TASK_LOGIN,			/* a step of a login */
	PGPX_TASK_CANCEL,			/* a cancel request */
	PGPX_TASK_LOOKUP,			/* a lookup of host names */
	PGPX_TASK_PASSWORD			/* a run of the password command */
} PgpxTaskKind;

/* A version of a pool's conninfo. */
typedef struct PgpxConninfoKey
{
	int			pool;
	uint32		pool_id;
	uint64		version;
} PgpxConninfoKey;

/* How a task has ended. */
typedef enum PgpxTaskEnd
{
	PGPX_TASK_DONE,
	PGPX_TASK_NO_THREAD,		/* it was not run, for lack of a thread */
	PGPX_TASK_ABANDONED			/* its owner no longer exists */
} PgpxTaskEnd;

/*
 * The first member of an object of the owner.  From pgpx_task_submit until the
 * call of "ended" only the thread may touch the object.
 */
typedef struct PgpxTask PgpxTask;
struct PgpxTask
{
	/* called in the thread: may call no function of the server */
	void (*run)(PgpxTask *task);

	/* called once, in the event loop; frees the task */
	void (*ended)(PgpxTask *task, PgpxTaskEnd end);

	/*
	 * unless NULL, called in the event loop when a running task is abandoned,
	 * so that its calls return
	 */
	void (*interrupt)(PgpxTask *task);

	bool		for_locks;		/* belongs to a connection for locks */

	/* private to task_queue.c */
	dlist_node	node;
	PgpxTaskKind kind;
	PgpxConninfoKey key;
	Oid			database;		/* .. and user: whose limit counts */
	NameData	user;
	bool		running;
	pg_atomic_uint32 abandoned;
};

/*
 * Set up the pipe for finished tasks.  Return the descriptor that becomes
 * readable when a task has finished, or -1 on error.
 */
extern int	pgpx_task_init(void);

/*
 * Run a task in a thread as soon as the limits of its kind allow.  "ended" may
 * be called before this function returns.
 */
extern void pgpx_task_submit(PgpxTask *task, PgpxTaskKind kind,
							 const PgpxConninfoKey *key);

/*
 * Abandon a task.  "ended" is called at once if the task has no thread yet,
 * otherwise when its thread ends.
 */
extern void pgpx_task_abandon(PgpxTask *task);

/* Return whether a task was abandoned; may be called in its thread. */
extern bool pgpx_task_is_abandoned(PgpxTask *task);

/* Return whether a task has a thread; task may be NULL. */
extern bool pgpx_task_is_running(const PgpxTask *task);

/*
 * Return why a task has not ended yet, as text to append to "it did not end in
 * time"; "" if there is no particular reason.  task may be NULL.
 */
extern const char *pgpx_task_delay_reason(const PgpxTask *task);

/* Return the number of tasks that have a socket. */
extern int	pgpx_task_descriptors(void);

/* Call "ended" for each task that has finished. */
extern void pgpx_task_ready(void);

/*
 * While the worker exits: wait for finished tasks, but not for longer than this
 * time.  Call "ended" for cancel requests only.
 */
extern void pgpx_task_wait_for_cancels(int timeout_ms);

/*
 * Start a thread, detached and with all signals blocked.  Return false if it
 * could not be created.  The resolver, which has no task queue, calls this.
 */
extern bool pgpx_thread_start(void *(*run)(void *), void *arg);

/*
 * A callback of on_proc_exit, to be registered before others of ours, so that it
 * is called after them: end the process with _exit() if it ever started a thread,
 * because a thread may still use what exit() tears down.  Of the server's own
 * callbacks this skips smgrshutdown, whose files _exit() closes.
 */
extern void pgpx_task_exit(int code, Datum arg);

#endif							/* PGPX_TASK_QUEUE_H */
