/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Detection of deadlocks between sessions that wait for connections.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DEADLOCK_H
#define PGPX_DEADLOCK_H

#include "shared/wait_queue.h"

typedef struct PgpxDeadlock PgpxDeadlock;

/*
 * pgpx_deadlock_check_at
 *		Return the time of this session's next check for a deadlock; 0: never,
 *		because it holds no lease that another session could wait for.
 *
 * since: the time of the last check in this wait if "again" is set, else the
 * start of the wait.
 */
extern PgpxTime pgpx_deadlock_check_at(PgpxTime since, bool again);

/*
 * pgpx_deadlock_find
 *		Return a deadlock that this session must end.
 *
 * That is one in which this session was the last to begin its wait.  Return
 * NULL if there is no deadlock, or if another session ends it.  The session
 * must be enqueued, and must hold no lock.  The result is allocated in the
 * current memory context.
 */
extern PgpxDeadlock *pgpx_deadlock_find(void);

/*
 * pgpx_deadlock_raise
 *		Raise 40P01, with a line for each session of the deadlock.
 *
 * The caller must have left the queue.
 */
pg_noreturn extern void pgpx_deadlock_raise(const PgpxDeadlock *deadlock,
											const char *server_name);

#endif							/* PGPX_DEADLOCK_H */
