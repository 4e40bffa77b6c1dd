/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The pool worker: registration, start, signals.
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
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <signal.h>
#include <sys/resource.h>
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

#include "guc.h"
#include "login.h"

int			pgpx_worker_index = -1;
uint64		pgpx_worker_epoch = 0;
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
	int			n = pgpx_pinger_descriptors() + pgpx_login_descriptors();

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

	pgpx_worker_epoch = pg_atomic_fetch_add_u64(&pgpx_shared->next_epoch, 1);
	pgpx_worker_exit_init();
	PGPX_DEBUG_POINT("worker_set_up");
	pgpx_reactor_init();

	pg_atomic_write_u32(&slot->state, PGPX_WORKER_RUNNING);
	pg_atomic_write_u64(&slot->epoch, pgpx_worker_epoch);
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
		if (!pgpx_reactor_run_once())
			continue;
		MemoryContextReset(pgpx_worker_cxt);

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			pgpx_janitor_maintain();	/* pools follow the settings */
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
