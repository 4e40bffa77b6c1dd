/*-------------------------------------------------------------------------
 *
 * task.h
 *	  What may block or take long, beside the worker's loop: in threads.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TASK_H
#define PGPX_TASK_H

#include "compat.h"

#include <pthread.h>
#include <sys/types.h>

/*
 * The first member of what a thread works on.  That is malloc'ed, and nobody else
 * touches it from pgpx_task_start until "ended" is called.
 */
typedef struct PgpxTask PgpxTask;
struct PgpxTask
{
	void (*run)(PgpxTask *task);	/* in the thread */
	void (*ended)(PgpxTask *task);	/* in the loop; it frees the task */
	pthread_mutex_t mutex;		/* of the two below */
	pid_t		thread;			/* that runs it now; 0: none */
	bool		in_no_hurry;	/* pgpx_task_in_no_hurry was called */
};

/* The descriptor that becomes readable when a task has ended; -1 on error. */
extern int	pgpx_task_init(void);

/* Run it; false: no thread could be started. */
extern bool pgpx_task_start(PgpxTask *task);

/*
 * Nobody waits for it any more, and it cannot be stopped: its thread shall run only
 * while nothing else wants the processor.
 */
extern void pgpx_task_in_no_hurry(PgpxTask *task);

/* Call "ended" of those that have. */
extern void pgpx_task_ready(void);

/*
 * At the very end of the process, before exit(): what exit() tears down may be in
 * use by a thread.  Ends the process at once, if there was one.
 */
extern void pgpx_task_exit(int code);

#endif							/* PGPX_TASK_H */
