/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The pool worker: registration, start, signals, end.
 *
 * Runs in the worker only.  The worker never blocks: all it waits for is in one
 * epoll set, with a deadline, and what cannot but block is in threads (events.c).  Of
 * shared memory it changes the connections of its own pools, through pool.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WORKER_H
#define PGPX_WORKER_H

#include "base/compat.h"

extern int	pgpx_worker_index;	/* which worker this is */
extern uint64 pgpx_worker_incarnation;
extern MemoryContext pgpx_worker_cxt;	/* reset after each round */

/* Register the workers and set their slots up; called by _PG_init. */
extern void pgpx_worker_register(void);
PGDLLEXPORT extern void pgpx_worker_main(Datum arg);

/* Be ready for the end of the worker, however it comes. */
extern void pgpx_worker_exit_init(void);

/*
 * Take all connections of this worker's pools out of the shared state: they
 * have no PGconn behind them any more.
 */
extern void pgpx_worker_forget_connections(void);

#endif							/* PGPX_WORKER_H */
