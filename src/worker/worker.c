/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The pool worker: registration, start, signals, end.
 *
 * It has no database: a worker in one could not serve the others and would
 * stand in the way of DROP DATABASE.  It is in the process array all the same,
 * so that it shows in pg_stat_activity and answers procsignal barriers.
 *
 * It ends with exit code 1 whenever it ends, so that the postmaster starts the
 * next one.  That one begins with no connection: those of the one before have
 * ended with it, and the leases on them are taken away, which their holders
 * learn at their next call.  Waiters keep their places and their deadlines.
 *
 * The end of the pool worker, however it comes: every socket ends for all who
 * hold it, the shared state says so, and what runs is cancelled.
 *
 * A backend that runs a statement does not notice that its client has gone, and
 * the next worker would open connections beside it.  So each gets a cancel
 * request.  That is a wait, and it holds up a shutdown of the server: it has a
 * bound, common to all connections, and ends as soon as all remotes have gone.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
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
#include "utils/guc.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/busy_poll.h"
#include "shared/lock_hooks.h"
#include "shared/pool.h"
#include "shared/registry.h"
#include "worker/cancel.h"
#include "worker/event_loop.h"
#include "worker/events.h"
#include "worker/maintenance.h"

int			pgpx_worker_index = -1;
uint64		pgpx_worker_incarnation = 0;
MemoryContext pgpx_worker_cxt = NULL;
PgpxWorkerConn *pgpx_wconns = NULL;
PgpxWorkerPool *pgpx_wpools = NULL;

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

/*
 * libpq takes what the options leave open from the environment, which here is
 * the one in which somebody started the server: a PGHOSTADDR or PGSERVICE there
 * would reach every pool.
 */
static void
clean_environment(void)
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
	int			n = pgpx_lock_hooks->descriptors() + pgpx_login_descriptors();

	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		if (pgpx_wconns[i].pg != NULL)
			n++;
		if (pgpx_wconns[i].relay != NULL)
			n += 2;
		if (pgpx_wconns[i].cancel.active)
			n++;
	}
	return n;
}

/*
 * Descriptors that the server's own code needs in a worker: its log, its latch, the
 * files of catalogs.
 */
#define SERVER_FDS 64

/*
 * Let this process have as many descriptors for connections as max_files_per_process
 * and the kernel's hard limit allow.
 *
 * fd.c lets a process have a third of its descriptors for what is not a file of the
 * server's, because a session needs the rest for tables.  A worker opens hardly any
 * file.  The soft limit may be raised because nothing here uses select(), and because
 * the process starts no other program that could inherit it.
 */
static void
allow_descriptors(PgpxWorkerSlot *slot)
{
	struct rlimit limit;
	int			most = max_files_per_process;
	int			wanted = pgpx_shared->max_connections;
	bool		kernel = false; /* is the kernel's limit the lower one? */

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
	{
		if (limit.rlim_cur < (rlim_t) most)
		{
			rlim_t		soft = limit.rlim_cur;

			limit.rlim_cur = Min((rlim_t) most, limit.rlim_max);
			if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
				limit.rlim_cur = soft;
		}
		kernel = limit.rlim_cur < (rlim_t) most;
		if (kernel)
			most = (int) limit.rlim_cur;
	}
	most = Max(most - SERVER_FDS, max_safe_fds / 3);
	max_safe_fds = Max(max_safe_fds, most * 3);
	pg_atomic_write_u32(&slot->max_descriptors, most);

	if (pgpx_worker_index == 0 && wanted / pgpx_shared->nworkers > most)
		ereport(WARNING,
				(errmsg("pool workers cannot open as many connections as \"pgpool_ext.max_connections\" allows"),
				 errdetail("Workers: %d, descriptors that each may have for connections: %d, of which one over TLS takes three; \"pgpool_ext.max_connections\" is %d.",
						   pgpx_shared->nworkers, most, wanted),
				 kernel ?
				 errhint("Raise the limit of open files of the server's processes (\"ulimit -Hn\") and \"max_files_per_process\" to at least %d.",
						 wanted + SERVER_FDS) :
				 errhint("Raise \"max_files_per_process\" to at least %d, or lower \"pgpool_ext.max_connections\".",
						 wanted + SERVER_FDS)));
}

static void
set_up(void)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pgpx_worker_index];

	allow_descriptors(slot);
	pgpx_wconns = MemoryContextAllocZero(TopMemoryContext,
										 mul_size(pgpx_shared->max_connections,
												  sizeof(PgpxWorkerConn)));
	pgpx_wpools = MemoryContextAllocZero(TopMemoryContext,
										 mul_size(pgpx_shared->max_pools,
												  sizeof(PgpxWorkerPool)));
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		pgpx_wconns[i].index = i;
		pgpx_wconns[i].fd = -1;
		pgpx_wconns[i].cancel.fd = -1;
	}

	if (pg_atomic_read_u64(&slot->started_at) != 0)
		pg_atomic_fetch_add_u32(&slot->restarts, 1);
	pg_atomic_write_u64(&slot->started_at, pgpx_now());
	pg_atomic_write_u32(&slot->state, PGPX_WORKER_STARTING);
	pg_atomic_write_u32(&slot->pid, MyProcPid);
	pg_atomic_write_u32(&slot->procno, MyProcNumber);

	PGPX_DEBUG_POINT("worker_starts");

	/* the one before may not have come to its end */
	pgpx_worker_forget_connections();
	pgpx_pool_restore_damaged(pgpx_worker_index);

	pgpx_worker_incarnation =
		pg_atomic_fetch_add_u64(&pgpx_shared->next_incarnation, 1);
	pgpx_worker_exit_init();
	PGPX_DEBUG_POINT("worker_set_up");
	pgpx_event_loop_init();

	pg_atomic_write_u32(&slot->state, PGPX_WORKER_RUNNING);
	pg_atomic_write_u64(&slot->incarnation, pgpx_worker_incarnation);
}

void
pgpx_worker_main(Datum arg)
{
	PgpxWorkerSlot *slot;

	pgpx_worker_index = DatumGetInt32(arg);
	slot = &pgpx_shared->worker[pgpx_worker_index];

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGINT, SIG_IGN);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	clean_environment();
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

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			pgpx_maintenance_request(); /* pools follow the settings */
		}
		if (catchupInterruptPending)
		{
			ProcessCatchupInterrupt();
			MemoryContextSwitchTo(pgpx_worker_cxt);
		}
		pg_atomic_write_u32(&slot->descriptors, count_descriptors());
	}

	if (pg_atomic_read_u32(&slot->must_restart) != 0)
		pgpx_pool_log_damage(pgpx_worker_index);

	/* 1, so that a terminated worker is started again */
	proc_exit(1);
}

/* How long all cancels together may take, and when they are sent again. */
#define EXIT_US (200 * 1000)
#define AGAIN_US (60 * 1000)

/* How often it is looked who has gone. */
#define CHECK_MS 10

/* What is to be known of a connection at the end. */
typedef struct Last
{
	bool		open;			/* somebody's, or a statement may be running */
	bool		running;		/* a statement may be running */
	bool		cancelled;		/* a request has come to its end */
} Last;

static Last *last = NULL;		/* [max_connections] */
static struct pollfd *polls = NULL;
static int *polled = NULL;		/* whose they are */

void
pgpx_worker_forget_connections(void)
{
	for (int p = 0; p < pgpx_shared->max_pools; p++)
	{
		PgpxPool   *pool = &pgpx_pools[p];
		PgpxWake	wake = PGPX_WAKE_INIT;

		if (pool->worker != pgpx_worker_index)
			continue;
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		pool->conninfo_incarnation = 0;
		for (int i = 0; i < pgpx_shared->max_connections && !pool->damaged; i++)
		{
			PgpxConn   *conn = &pgpx_conns[i];

			if (conn->pool != p || conn->state == PGPX_CONN_FREE)
				continue;
			if (conn->state == PGPX_CONN_CONNECTING)
				pool->stats.connects_failed++;
			if (conn->state == PGPX_CONN_LEASED)
				pgpx_pool_revoke_locked(pool, conn, PGPX_REVOKE_WORKER, &wake);
			else if (conn->state != PGPX_CONN_CLOSING)
				pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
			if (conn->opened_at != 0)
				pool->stats.closed[conn->close_reason]++;
			pgpx_conn_free_locked(pool, conn);
		}

		if (pool->damaged)
			pgpx_pool_rebuild_locked(pool, &wake);

		/* who waits sees to it that there is another worker */
		pgpx_pool_wake_waiters_locked(pool, &wake);
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
	}
}

/* Does the holder of a lease say that a statement is under way? */
static bool
is_active(PgpxConn *conn)
{
	PgpxActivity activity = pgpx_conn_activity(conn);

	return activity == PGPX_ACT_ACTIVE || activity == PGPX_ACT_CANCELLING ||
		activity == PGPX_ACT_BROKEN;
}

/* Before the shared state is cleared: may a statement be running there? */
static bool
is_running(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	char		byte;

	/* its states are not to be trusted, and a cancel that hits nothing does no harm */
	if (pgpx_pools[w->pool].damaged)
		return true;
	if (w->phase != PGPX_PHASE_OPEN)
		return w->phase == PGPX_PHASE_START || w->phase == PGPX_PHASE_RESET ||
			w->phase == PGPX_PHASE_ABORT;
	switch (conn->state)
	{
		case PGPX_CONN_LEASED:
			return is_active(conn);
		case PGPX_CONN_CANCELLING:
			return true;
		case PGPX_CONN_RESET_PENDING:
			/* the reset, if nothing of its answer is there */
			return recv(pgpx_connection_socket(w), &byte, 1,
						MSG_PEEK | MSG_DONTWAIT) < 0;
		default:
			return false;
	}
}

static bool
has_gone(PgpxWorkerConn *w)
{
	Last	   *l = &last[w->index];

	return pgpx_connection_is_gone(w, l->cancelled || !l->running);
}

/* A request that has come to its end is counted, if its pool is still there. */
static void
cancelled(PgpxWorkerConn *w)
{
	PgpxPool   *pool = pgpx_pool_lock(w->pool, w->pool_id);
	bool		sent = w->cancel.sent;

	last[w->index].cancelled = true;
	pgpx_cancel_drop(w);
	if (pool == NULL)
		return;
	if (sent)
		pool->stats.cancels++;
	LWLockRelease(pool->lock);
}

static void
begin_cancel(PgpxWorkerConn *w)
{
	if (pgpx_cancel_begin_last(w) == 0)
		pgpx_cancel_drop(w);
}

/* Send what has been begun; who has not gone after a while gets another one. */
static void
cancel_what_runs(void)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	until = now + EXIT_US;
	PgpxTime	again = now + AGAIN_US;

	for (; now < until; now = pgpx_now())
	{
		bool		repeat = now >= again;
		bool		left = false;
		int			n = 0;

		if (repeat)
			again = now + AGAIN_US;
		for (int i = 0; i < pgpx_shared->max_connections; i++)
		{
			PgpxWorkerConn *w = &pgpx_wconns[i];

			if (!last[i].open)
				continue;
			if (!w->cancel.active)
			{
				if (has_gone(w))
					continue;
				if (repeat)
					begin_cancel(w);
			}
			left = true;
			if (!w->cancel.active)
				continue;
			polls[n].fd = w->cancel.fd;
			polls[n].events = w->cancel.events & EPOLLIN ? POLLIN : POLLOUT;
			polls[n].revents = 0;
			polled[n++] = i;
		}
		if (!left)
			break;
		(void) poll(polls, n, CHECK_MS);
		for (int i = 0; i < n; i++)
		{
			PgpxWorkerConn *w = &pgpx_wconns[polled[i]];

			/* what a thread does is looked at */
			if ((polls[i].revents != 0 || polls[i].fd < 0) &&
				pgpx_cancel_step_last(w) == 0)
				cancelled(w);
		}
	}
}

static void
at_exit(int code, Datum arg)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pgpx_worker_index];

	pgpx_busy_poll_leave();
	pg_atomic_write_u32(&slot->state, PGPX_WORKER_STOPPING);
	pg_atomic_write_u64(&slot->incarnation, 0);
	memset(last, 0, pgpx_shared->max_connections * sizeof(Last));
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxWorkerConn *w = &pgpx_wconns[i];

		last[i].running = w->pg != NULL && is_running(w);
		last[i].open = last[i].running ||
			(w->phase == PGPX_PHASE_OPEN &&
			 pgpx_conns[i].state == PGPX_CONN_LEASED);
	}

	PGPX_DEBUG_POINT("worker_ends");

	/* first say why, so that a holder who sees its socket end knows it */
	pgpx_worker_forget_connections();
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxWorkerConn *w = &pgpx_wconns[i];

		if (w->pg == NULL || pgpx_login_is_running(w->login) ||
			PQsocket(w->pg) < 0)
		{
			last[i].open = false;
			continue;
		}

		/* its next step would be the reactor's: it is begun anew */
		if (w->cancel.request != NULL)
			pgpx_cancel_drop(w);

		/* while the socket still knows where it leads to */
		if (last[i].running)
			begin_cancel(w);
		pgpx_connection_cut(w, w->phase == PGPX_PHASE_OPEN && !last[i].open);
	}

	/* also what holders began until their leases were taken, but then not at once */
	cancel_what_runs();
	pgpx_conninfo_wipe_all();

	pg_atomic_write_u32(&slot->pid, 0);
	pg_atomic_write_u32(&slot->ticking, 0);
	pg_atomic_write_u32(&slot->state, PGPX_WORKER_DOWN);
}

/*
 * The very end.  What was registered before comes after it, and is lost with _exit:
 * of the server's that is smgrshutdown, which closes files that a worker without a
 * database does not have.
 */
static void
at_last(int code, Datum arg)
{
	pgpx_task_exit(code);
}

void
pgpx_worker_exit_init(void)
{
	int			n = pgpx_shared->max_connections;

	/* at the end nothing may be allocated */
	last = MemoryContextAllocZero(TopMemoryContext, mul_size(n, sizeof(Last)));
	polls = MemoryContextAllocZero(TopMemoryContext,
								   mul_size(n, sizeof(struct pollfd)));
	polled = MemoryContextAllocZero(TopMemoryContext,
									mul_size(n, sizeof(int)));
	before_shmem_exit(at_exit, (Datum) 0);
	on_proc_exit(at_last, (Datum) 0);
}
