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
#include <unistd.h>

#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
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

static void
set_up(void)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pgpx_worker_index];

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
