/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The pool worker: its start and end, event loop, and maintenance.
 *
 * The files of this folder run in the worker only.  The worker never blocks:
 * it waits in one epoll set, with a deadline, and threads run the calls that
 * may block (task_queue.c).  In shared memory it changes only the connections of
 * its own pools, through pool_worker.h.  An eviction under max_connections may
 * also close a free connection of another worker's pool.
 *
 * Implemented by worker.c (start and end), event_loop.c, maintenance.c,
 * databases.c, reader_start.c (start of the catalog reader) and resolver_start.c
 * (start of the resolvers of commits on several servers).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WORKER_H
#define PGPX_WORKER_H

#include "shared/shmem.h"

extern int	pgpx_worker_index;	/* which worker this is */
extern uint64 pgpx_worker_incarnation;
extern MemoryContext pgpx_worker_cxt;	/* reset after each round */

/* Register the workers with the postmaster; called by _PG_init. */
extern void pgpx_worker_register(void);
PGDLLEXPORT extern void pgpx_worker_main(Datum arg);

/*
 * pgpx_process_start
 *		Start a background worker that executes a function of this library,
 *		connected to a database.  Its end sets the latch of this process.
 *
 * process: its name, function, time of start, and what is not the default of
 * these workers.  Return NULL if all background worker slots are in use.  The
 * handle is allocated in TopMemoryContext.
 *
 * pgpx_process_has_ended
 *		Return whether it has ended; then free the handle and set it to NULL.  A
 *		handle that is NULL has ended.
 */
struct BackgroundWorker;
struct BackgroundWorkerHandle;
extern struct BackgroundWorkerHandle *pgpx_process_start(
	struct BackgroundWorker *process, Oid database);
extern bool pgpx_process_has_ended(struct BackgroundWorkerHandle **handle);

/* Remove the variables that libpq reads from the environment. */
extern void pgpx_worker_clean_environment(void);

extern void pgpx_event_loop_init(void);

/*
 * Wait for events and handle them.  Return false if relays have moved bytes
 * and nothing else has happened.
 */
extern bool pgpx_event_loop_run_once(void);

/* The worker keeps ticking for this long after the last use of a connection. */
#define PGPX_BUSY_MS 1000

/*
 * pgpx_maintenance_run
 *		Do all maintenance that is due; that of all pools if the settings have
 *		changed.  Return the time of the next run, PG_INT64_MAX if only an event
 *		makes one necessary.
 */
extern void pgpx_maintenance_init(void);
extern PgpxTime pgpx_maintenance_run(void);

/*
 * pgpx_reader_note_need
 *		Note whether a pool needs a catalog reader.
 * pgpx_reader_start_due
 *		Start the catalog reader if it is due: for pools of this worker, or in a
 *		database that has not been visited since the start of the server.
 *		Return the time of the next call, or PG_INT64_MAX if no call is needed
 *		before a pool changes or a reader ends.
 */
extern void pgpx_reader_init(void);
extern void pgpx_reader_note_need(int pool, PgpxTime now);
extern PgpxTime pgpx_reader_start_due(PgpxTime now);

/*
 * Start the resolvers that are due; only worker 0 does.  Return as
 * pgpx_reader_start_due.
 */
extern PgpxTime pgpx_resolver_start_due(PgpxTime now);

/*
 * pgpx_databases_begin
 *		Start a transaction and lock pg_database and its index for reading.
 *		Return false, without waiting and without a transaction, if a lock is
 *		not available.  Retry after PGPX_LOCK_RETRY_MS.
 *
 * Another session may block these locks for long.  An example is a VACUUM FULL
 * of pg_database that waits for a transaction which has read the table.
 * Lookups in the same transaction do not wait for these locks again.
 * pgpx_databases_end ends the transaction, which releases them.
 */
extern bool pgpx_databases_begin(void);
extern void pgpx_databases_end(void);

/*
 * pgpx_databases_check
 *		After DROP DATABASE: retire the pools of databases that no longer exist,
 *		and resume their paused servers, because no session can do so any more.
 *		After ALTER DATABASE RENAME: set the new name in the pools.
 */
extern void pgpx_databases_check(void);

#define PGPX_LOCK_RETRY_MS 1000

/*
 * PGPX_CONTENDED_KEEP_MS: maximum time for which the worker's own operation on
 * a connection may occupy a contended slot, even if the options allow more.
 * PGPX_CONTENDED_CHECK_MS: interval at which it checks for contention.
 */
#define PGPX_CONTENDED_KEEP_MS 10000
#define PGPX_CONTENDED_CHECK_MS 1000

/* --- Events ------------------------------------------------------------
 *
 * The epoll set of the event loop, and its due time.
 */

/* The kind of an epoll event. */
typedef enum PgpxWatchKind
{
	PGPX_WATCH_CONTROL = 1,
	PGPX_WATCH_TASK,			/* threads have finished */
	PGPX_WATCH_CONN,
	PGPX_WATCH_RELAY_REMOTE,	/* a relay's TLS connection */
	PGPX_WATCH_RELAY_LOCAL,		/* .. and its end of the socket pair */
	PGPX_WATCH_PINGER
} PgpxWatchKind;

/*
 * Add a descriptor to the epoll set (add is true), or change its events.  Raise
 * an error if epoll refuses.
 */
extern void pgpx_event_watch(PgpxWatchKind kind, int index, int fd,
							 uint32 events, bool add);

/* Remove a descriptor from the epoll set. */
extern void pgpx_event_unwatch(int fd);

/* Make the event loop run at this time at the latest. */
extern void pgpx_event_due_at(PgpxTime at);

/*
 * Note that connections of a pool have changed their states, so that the pool
 * needs maintenance in this round.
 */
extern void pgpx_event_pool_changed(int pool);

#endif							/* PGPX_WORKER_H */
