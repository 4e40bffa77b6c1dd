/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The pool worker: registration, start, signals, end.
 *
 * A worker is connected to no database.  A connection to one database could not
 * serve the others, and would block DROP DATABASE.  It is in the process array
 * all the same, so that it appears in pg_stat_activity and answers procsignal
 * barriers.
 *
 * A worker always exits with code 1, so that the postmaster starts the next
 * one.  The next worker starts without connections: those of its predecessor
 * ended with it.  The leases on them are revoked; the holders' next calls raise
 * an error.  Waiters keep their queue positions and their deadlines.
 *
 * At exit, for whatever reason, the worker revokes the leases, cancels running
 * statements, and shuts down each socket for all processes that hold it.  It
 * then repeats the cancels until the remotes have closed.
 *
 * The cancels are necessary because a backend that runs a statement does not
 * notice that its client has gone, so its session would exist in addition to
 * those that the next worker opens.  Waiting for them delays a shutdown of the
 * server.  So the wait has one limit for all connections together, and ends as
 * soon as all remotes have closed.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/procsignal.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/lock_hooks.h"
#include "shared/pool.h"
#include "shared/registry.h"
#include "shared/shmem.h"
#include "worker/connect.h"
#include "worker/connection.h"
#include "worker/conninfo.h"
#include "worker/task_queue.h"

int			pgpx_worker_index = -1;
uint64		pgpx_worker_incarnation = 0;
MemoryContext pgpx_worker_cxt = NULL;
PgpxWorkerConn *pgpx_wconns = NULL;
PgpxWorkerPool *pgpx_wpools = NULL;

static void forget_connections(void);
static void at_exit(int code, Datum arg);

void
pgpx_worker_register(void)
{
	for (int i = 0; i < pgpx_workers; i++)
	{
		BackgroundWorker worker;

		memset(&worker, 0, sizeof(worker));
		if (pgpx_workers == 1)
			snprintf(worker.bgw_name, sizeof(worker.bgw_name),
					 "pgpool_ext worker");
		else
			snprintf(worker.bgw_name, sizeof(worker.bgw_name),
					 "pgpool_ext worker %d", i);
		strlcpy(worker.bgw_type, "pgpool_ext worker", sizeof(worker.bgw_type));
		worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
			BGWORKER_BACKEND_DATABASE_CONNECTION;
		worker.bgw_start_time = BgWorkerStart_ConsistentState;
		worker.bgw_restart_time = 1;
		strlcpy(worker.bgw_library_name, "pgpool_ext",
				sizeof(worker.bgw_library_name));
		strlcpy(worker.bgw_function_name, "pgpx_worker_main",
				sizeof(worker.bgw_function_name));
		worker.bgw_main_arg = Int32GetDatum(i);
		RegisterBackgroundWorker(&worker);
	}
}

BackgroundWorkerHandle *
pgpx_process_start(BackgroundWorker *process, Oid database)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	BackgroundWorkerHandle *handle = NULL;

	process->bgw_flags |=
		BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	process->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(process->bgw_library_name, "pgpool_ext",
			sizeof(process->bgw_library_name));
	process->bgw_main_arg = ObjectIdGetDatum(database);
	process->bgw_notify_pid = MyProcPid;
	(void) RegisterDynamicBackgroundWorker(process, &handle);
	MemoryContextSwitchTo(old);
	return handle;
}

bool
pgpx_process_has_ended(BackgroundWorkerHandle **handle)
{
	pid_t		pid;

	if (*handle == NULL)
		return true;
	if (GetBackgroundWorkerPid(*handle, &pid) != BGWH_STOPPED)
		return false;
	pfree(*handle);
	*handle = NULL;
	return true;
}

/*
 * libpq reads a parameter from the environment if no option sets it.  Here that
 * is the environment in which the server was started: a PGHOSTADDR or PGSERVICE
 * in it would apply to every pool.
 */
void
pgpx_worker_clean_environment(void)
{
	PQconninfoOption *options = PQconndefaults();

	for (PQconninfoOption *o = options; o != NULL && o->keyword != NULL; o++)
		if (o->envvar != NULL)
			unsetenv(o->envvar);
	PQconninfoFree(options);
	unsetenv("PGSERVICEFILE");
	unsetenv("PGSYSCONFDIR");
	unsetenv("PGDATESTYLE");
	unsetenv("PGTZ");
	unsetenv("PGGEQO");
	unsetenv("PGREQUIRESSL");
}

static int
count_descriptors(void)
{
	int			n = pgpx_lock_hooks->descriptors() + pgpx_task_descriptors();

	pgpx_connection_foreach(w)
	{
		if (w->pg != NULL)
			n++;
		if (w->relay != NULL)
			n += 2;
	}
	return n;
}

/*
 * Descriptors reserved for the server's own code in a worker: its log, its
 * latch, catalog files.
 */
#define SERVER_FDS 64

/* Descriptors of a connection over TLS: its socket and those of its relay. */
#define CONNECTION_FDS 3

/*
 * Raise the number of descriptors that this process may use to what
 * pgpool_ext.max_connections needs, as far as the kernel's hard limit allows.
 *
 * The number may exceed max_files_per_process, which limits files: more
 * connections do not require that sessions open more files.  fd.c allows a
 * process a third of its descriptors for external use, because a session needs
 * the rest for tables.  A worker may use more, because it opens hardly any
 * file.
 *
 * Raising the soft limit is safe because nothing here uses select().  The
 * password command gets the original limit.
 */
static void
allow_descriptors(void)
{
	struct rlimit limit;
	int			connections = pgpx_shared->max_connections;
	int			needed = connections * CONNECTION_FDS + SERVER_FDS;
	int			most = Max(max_files_per_process, needed);

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
	{
		if (limit.rlim_cur != RLIM_INFINITY)
			pgpx_password_note_limit(limit.rlim_cur);
		if (limit.rlim_cur < (rlim_t) most)
		{
			rlim_t		soft = limit.rlim_cur;

			limit.rlim_cur = Min((rlim_t) most, limit.rlim_max);
			if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
				limit.rlim_cur = soft;
		}
		if (limit.rlim_cur < (rlim_t) most)
			most = (int) limit.rlim_cur;
	}
	else
		most = max_files_per_process;
	most = Max(most - SERVER_FDS, max_safe_fds / 3);
	max_safe_fds = Max(max_safe_fds, most * 3);

	/* all connections may be those of one worker's pools */
	if (pgpx_worker_index == 0 && most < connections * CONNECTION_FDS)
		ereport(WARNING,
				(errmsg("a pool worker might not be able to open as many connections as \"pgpool_ext.max_connections\" allows"),
				 errdetail("Each pool worker can use %d descriptors for connections. A connection needs one, or %d over TLS; \"pgpool_ext.max_connections\" is %d.",
						   most, CONNECTION_FDS, connections),
				 errhint("Raise the limit of open files of the server's processes (\"ulimit -Hn\") to at least %d, which suffices for TLS, or lower \"pgpool_ext.max_connections\".",
						 needed)));
}

static void
set_up(void)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pgpx_worker_index];

	allow_descriptors();
	pgpx_connections_init(&pgpx_pool_purpose);
	pgpx_wpools = MemoryContextAllocZero(TopMemoryContext,
										 mul_size(pgpx_shared->max_pools,
												  sizeof(PgpxWorkerPool)));

	if (pg_atomic_read_u64(&slot->started_at) != 0)
		pg_atomic_fetch_add_u32(&slot->restarts, 1);
	pg_atomic_write_u64(&slot->started_at, pgpx_now());
	pg_atomic_write_u32(&slot->state, PGPX_WORKER_STARTING);
	pg_atomic_write_u32(&slot->pid, MyProcPid);
	pg_atomic_write_u32(&slot->procno, MyProcNumber);

	PGPX_DEBUG_POINT("worker_starts");

	/* the previous worker may have died before its exit callback ran */
	pg_atomic_write_u32(&slot->must_restart, 0);
	forget_connections();

	pgpx_worker_incarnation =
		pg_atomic_fetch_add_u64(&pgpx_shared->next_id, 1);
	before_shmem_exit(at_exit, (Datum) 0);

	on_proc_exit(pgpx_task_exit, (Datum) 0);
	PGPX_DEBUG_POINT("worker_set_up");
	pgpx_maintenance_init();
	pgpx_event_loop_init();

	pg_atomic_write_u32(&slot->state, PGPX_WORKER_RUNNING);
	pg_atomic_write_u64(&slot->incarnation, pgpx_worker_incarnation);
}

void
pgpx_worker_main(Datum arg)
{
	PgpxWorkerSlot *slot;
	PgpxTime	count_at = 0;	/* next count of descriptors */

	pgpx_worker_index = DatumGetInt32(arg);
	slot = &pgpx_shared->worker[pgpx_worker_index];

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGINT, PG_SIG_IGN);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	pgpx_worker_clean_environment();
	set_up();
	pgstat_report_activity(STATE_IDLE, NULL);
	ereport(DEBUG1, (errmsg_internal("pgpool_ext worker %d started", pgpx_worker_index)));

	pgpx_worker_cxt = AllocSetContextCreate(TopMemoryContext, "pgpool_ext loop",
											ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(pgpx_worker_cxt);
	while (!ShutdownRequestPending &&
		   pg_atomic_read_u32(&slot->must_restart) == 0)
	{
		if (!pgpx_event_loop_run_once())
			continue;
		MemoryContextReset(pgpx_worker_cxt);

		if (catchupInterruptPending)
		{
			ProcessCatchupInterrupt();
			MemoryContextSwitchTo(pgpx_worker_cxt);
		}
		if (pgpx_now() >= count_at)
		{
			pg_atomic_write_u32(&slot->descriptors, count_descriptors());
			count_at = pgpx_now() + PGPX_TICK_MS * 1000;
		}
	}

	/* exit code 1: the postmaster restarts the worker */
	proc_exit(1);
}

/*
 * How long, in microseconds, all cancels together may take at exit, and the
 * interval at which they are repeated.  A cancel over TLS (libpq 17 and later)
 * takes four round trips, so this allows for remote servers that are 200 ms
 * away.
 */
#define EXIT_US (1000 * 1000)
#define REPEAT_US (60 * 1000)

/* Interval, in ms, at which the connections are checked for closed remotes. */
#define CHECK_MS 10

/*
 * Remove all connections of this worker's pools from the shared state, because
 * their PGconns no longer exist.
 */
static void
forget_connections(void)
{
	for (int p = 0; p < pgpx_pools_end(); p++)
	{
		PgpxPool   *pool = &pgpx_pools[p];
		PgpxWake	wake = PGPX_WAKE_INIT;
		bool		damaged;
		char		text[2 * PGPX_ERROR_LEN];

		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		if (pool->worker != pgpx_worker_index)
		{
			LWLockRelease(pool->lock);
			continue;
		}
		pool->has_conninfo = false;
		pool->awaits_conninfo = false;
		damaged = pool->damaged;
		if (damaged)
			snprintf(text, sizeof(text), _("The pool of server \"%s\" was out of service because its state in shared memory is inconsistent. %s"),
					 NameStr(pool->server_name), pool->last_error);
		if (damaged || pool->conns.head >= 0)
			pgpx_pool_end_worker_locked(pool, &wake);

		/* woken waiters ask the postmaster to start another worker */
		pgpx_pool_wake_waiters_locked(pool, &wake);
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
		if (damaged)
			ereport(WARNING,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("pgpool_ext worker %d restarts because of a damaged pool",
							pgpx_worker_index),
					 errdetail_internal("%s", text),
					 errhint("Please report this: it is a bug, or the memory of this machine is defective.")));
	}
}

/*
 * Return whether a statement may be running on the connection, or may be sent
 * before the lease is revoked.  Must be called before the shared state is
 * cleared.
 */
static bool
may_run_statement(const PgpxWorkerConn *w)
{
	int			state = pgpx_conns[w->index].state;

	if (w->phase == PGPX_PHASE_OPEN)
		return state == PGPX_CONN_LEASED || state == PGPX_CONN_CANCELLING ||
			state == PGPX_CONN_RESET_PENDING;
	return w->phase == PGPX_PHASE_START || w->phase == PGPX_PHASE_RESET ||
		w->phase == PGPX_PHASE_ABORT;
}

/* Count a cancel request if it was sent and its pool still exists. */
static void
count_cancel(PgpxWorkerConn *w, bool sent, bool ok)
{
	PgpxPool   *pool = pgpx_pool_lock(w->pool, w->pool_id);

	if (pool == NULL)
		return;
	if (sent)
		pool->stats.cancels++;
	LWLockRelease(pool->lock);
}

/*
 * Complete the cancel requests that were started, and repeat them after
 * REPEAT_US where the remote has not closed.  Return after EXIT_US at the
 * latest.
 */
static void
cancel_running_statements(void)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	until = now + EXIT_US;
	PgpxTime	again = now + REPEAT_US;
	bool		left = true;

	for (; left && now < until; now = pgpx_now())
	{
		bool		repeat = now >= again;

		if (repeat)
			again = now + REPEAT_US;
		left = false;
		pgpx_connection_foreach(w)
		{
			if (!w->awaited)
				continue;
			if (w->cancel.task == NULL && pgpx_connection_is_gone(w, true))
				continue;
			left = true;
			if (repeat)
				pgpx_cancel_send(w);
		}
		if (left)
			pgpx_task_wait_for_cancels(CHECK_MS);
	}

	/* these have not ended in time, but may have been sent */
	pgpx_connection_foreach(w)
	{
		if (w->awaited && w->cancel.task != NULL)
			pgpx_cancel_deadline_passed(w);
	}
}

static void
at_exit(int code, Datum arg)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pgpx_worker_index];

	pg_atomic_write_u32(&slot->state, PGPX_WORKER_STOPPING);
	pg_atomic_write_u64(&slot->incarnation, 0);
	pgpx_connection_foreach(w)
		w->awaited = may_run_statement(w);

	PGPX_DEBUG_POINT("worker_ends");

	pgpx_cancel_ended = count_cancel;

	/* revoke first: a holder that sees its socket end then finds the reason */
	forget_connections();
	pgpx_connection_foreach(w)
	{
		if (w->pg == NULL || PQsocket(w->pg) < 0)
		{
			w->awaited = false;
			continue;
		}

		/* must precede the cut: the request needs the peer's address */
		if (w->awaited || w->cancel.task != NULL)
			pgpx_cancel_send(w);
		pgpx_connection_cut(w, w->phase == PGPX_PHASE_OPEN && !w->awaited);
	}

	/*
	 * Repeats also cover statements that holders started before their leases
	 * were revoked.
	 */
	cancel_running_statements();
	pgpx_password_kill_commands();
	pgpx_conninfo_wipe_all();

	pg_atomic_write_u32(&slot->pid, 0);
	pg_atomic_write_u32(&slot->ticking, 0);
	pg_atomic_write_u32(&slot->state, PGPX_WORKER_DOWN);
}
