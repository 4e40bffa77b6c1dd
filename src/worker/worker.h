/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The pool worker: registration, start, signals, end.
 *
 * The files of this folder run in the worker only.  The worker never blocks:
 * it waits in one epoll set, with a deadline, and threads run the calls that
 * may block (events.c).  In shared memory it changes the connections of its
 * own pools only, through pool.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WORKER_H
#define PGPX_WORKER_H

#include "base/compat.h"

extern int	pgpx_worker_index;	/* which worker this is */
extern uint64 pgpx_worker_incarnation;
extern MemoryContext pgpx_worker_cxt;	/* reset after each round */

/* Registers the workers and sets up their slots; called by _PG_init. */
extern void pgpx_worker_register(void);
PGDLLEXPORT extern void pgpx_worker_main(Datum arg);

/* Registers the exit callbacks of the worker. */
extern void pgpx_worker_exit_init(void);

/*
 * Removes all connections of this worker's pools from the shared state, because
 * their PGconns no longer exist.
 */
extern void pgpx_worker_forget_connections(void);

#endif							/* PGPX_WORKER_H */
