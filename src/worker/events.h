/*-------------------------------------------------------------------------
 *
 * events.h
 *	  What wakes the event loop: sockets, deadlines, and the ends of threads.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_EVENTS_H
#define PGPX_EVENTS_H

#include "shared/shmem.h"

#include <pthread.h>
#include <sys/types.h>

/* What an epoll event is about. */
typedef enum PgpxWatchKind
{
	PGPX_WATCH_CONTROL = 1,
	PGPX_WATCH_TASK,			/* threads have ended */
	PGPX_WATCH_CONN,
	PGPX_WATCH_CANCEL,
	PGPX_WATCH_RELAY_REMOTE,	/* a relay's TLS connection */
	PGPX_WATCH_RELAY_LOCAL,		/* .. and its end of the socket pair */
	PGPX_WATCH_PINGER
} PgpxWatchKind;

/* Watch a descriptor (add), or change what it is watched for; watch it no more. */
extern void pgpx_event_watch(PgpxWatchKind kind, int index, int fd,
							 uint32 events, bool add);
extern void pgpx_event_unwatch(int fd);

/* Something is due at this instant. */
extern void pgpx_event_due_at(PgpxTime at);

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
	bool		low_priority;	/* pgpx_task_lower_priority was called */
};

/* The descriptor that becomes readable when a task has ended; -1 on error. */
extern int	pgpx_task_init(void);

/* Run it; false: no thread could be started. */
extern bool pgpx_task_start(PgpxTask *task);

/*
 * Nobody waits for it any more, and it cannot be stopped: its thread shall run only
 * while nothing else wants the processor.
 */
extern void pgpx_task_lower_priority(PgpxTask *task);

/* Call "ended" of those that have. */
extern void pgpx_task_ready(void);

/*
 * At the very end of the process, before exit(): what exit() tears down may be in
 * use by a thread.  Ends the process at once, if there was one.
 */
extern void pgpx_task_exit(int code);

/* The epoll set of the event loop; when it must run the next time at the latest. */
extern int	pgpx_epoll_fd;
extern PgpxTime pgpx_next_due;

#endif							/* PGPX_EVENTS_H */
