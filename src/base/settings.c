/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Settings (GUCs), and the names of wait events.
 *
 * From PostgreSQL 17 on, waits have names of this extension.  All libraries of
 * a server share about 127 such names, and the server raises an error for each
 * name beyond that.  pgpx_wait_event_new catches the error, because a missing
 * name must not terminate a worker, which would fail again after each restart,
 * or disturb an exit callback.
 *
 *-------------------------------------------------------------------------
 */
#include "base/settings.h"

#include <limits.h>

#include "utils/guc.h"

#include "base/debug_point.h"

int			pgpx_max_connections = 100;
int			pgpx_max_pools = 256;
int			pgpx_max_locks = 100;
int			pgpx_history_size = 1024;
int			pgpx_workers = 1;
int			pgpx_checkout_timeout = -1;
int			pgpx_default_pool_size = 10;
int			pgpx_default_max_waiters = 0;
int			pgpx_default_checkout_timeout = 30000;
int			pgpx_default_two_phase_commit = 0;
int			pgpx_log_min_wait = -1;
int			pgpx_busy_poll = 100;
bool		pgpx_log_connections = false;
char	   *pgpx_password_command = NULL;
int			pgpx_password_lifetime = 300000;
int			pgpx_resolve_interval = 60000;
bool		pgpx_adopt_all = false;

/* The integer settings.  The default is the initial value of the variable. */
static const struct
{
	const char *name;
	int		   *variable;
	int			min;
	int			max;
	GucContext	context;
	int			flags;
	const char *description;
	const char *details;
}			int_settings[] = {
	{"pgpool_ext.max_connections", &pgpx_max_connections, 1, 262143, PGC_POSTMASTER, 0,
	 "Sets the maximum number of outbound connections over all pools.",
	 "Each pool with distributed locks has one more connection, which does not count. The setting determines the size of shared memory."},
	{"pgpool_ext.max_pools", &pgpx_max_pools, 1, 65535, PGC_POSTMASTER, 0,
	 "Sets the maximum number of pools.",
	 "A server whose PUBLIC user mapping names no remote user has one pool for each local user who uses it. The setting determines the size of shared memory."},
	{"pgpool_ext.max_locks", &pgpx_max_locks, 1, 65535, PGC_POSTMASTER, 0,
	 "Sets the maximum number of distributed locks that sessions of this server hold, release or wait for.",
	 "The setting determines the size of shared memory."},
	{"pgpool_ext.history_size", &pgpx_history_size, 0, 1024 * 1024, PGC_POSTMASTER,
	 GUC_UNIT_KB,
	 "Sets the size of the samples of view history in shared memory.",
	 "0 disables the samples."},
	{"pgpool_ext.workers", &pgpx_workers, 1, PGPX_MAX_WORKERS, PGC_POSTMASTER, 0,
	 "Sets the number of background workers that own the connections.",
	 "The servers are distributed over the workers. All pools of a server have the same worker."},
	{"pgpool_ext.checkout_timeout", &pgpx_checkout_timeout, -1, INT_MAX,
	 PGC_USERSET, GUC_UNIT_MS,
	 "Sets how long a checkout waits for a connection.",
	 "-1 uses the server's option \"checkout_timeout\"; 0 means no limit. A timeout argument of the call has precedence."},
	{"pgpool_ext.busy_poll", &pgpx_busy_poll, 0, 1000, PGC_USERSET, 0,
	 "Sets the time in microseconds for which a session polls for an answer before it sleeps.",
	 "0 disables polling. A session does not poll if the previous answer took more than twice that time."},
	{"pgpool_ext.default_pool_size", &pgpx_default_pool_size, 1, 262143, PGC_SIGHUP, 0,
	 "Sets the \"pool_size\" of servers that do not set it.",
	 "A change applies at once: connections beyond a smaller size are closed when they are unused."},
	{"pgpool_ext.default_max_waiters", &pgpx_default_max_waiters, 0, INT_MAX,
	 PGC_SIGHUP, 0,
	 "Sets the \"max_waiters\" of servers that do not set it.",
	 "0 means no limit."},
	{"pgpool_ext.default_checkout_timeout", &pgpx_default_checkout_timeout, 0, INT_MAX,
	 PGC_SIGHUP, GUC_UNIT_MS,
	 "Sets the \"checkout_timeout\" of servers that do not set it.",
	 "0 means no limit."},
	{"pgpool_ext.log_min_wait", &pgpx_log_min_wait, -1, INT_MAX, PGC_SUSET, GUC_UNIT_MS,
	 "Logs each checkout that waited at least this long.",
	 "-1 logs none; 0 logs each one that waited."},
	{"pgpool_ext.password_lifetime", &pgpx_password_lifetime, 0, INT_MAX,
	 PGC_SIGHUP, GUC_UNIT_MS,
	 "Sets how long new connections use a password that the password command has printed.",
	 "0 runs the command for each connection. Open connections stay open."},
	{"pgpool_ext.resolve_interval", &pgpx_resolve_interval, 100, INT_MAX,
	 PGC_SIGHUP, GUC_UNIT_MS,
	 "Sets how often remote servers are searched for prepared parts that no session has ended.",
	 "If a session could not end a part, the search begins at once."},
};

static const struct config_enum_entry off_on[] = {
	{"off", 0, false},
	{"on", 1, false},
	{"false", 0, true},
	{"true", 1, true},
	{"no", 0, true},
	{"yes", 1, true},
	{"0", 0, true},
	{"1", 1, true},
	{NULL},
};

void
pgpx_settings_init(void)
{
	for (int i = 0; i < lengthof(int_settings); i++)
		if (int_settings[i].context != PGC_POSTMASTER ||
			process_shared_preload_libraries_in_progress)
			DefineCustomIntVariable(int_settings[i].name,
									int_settings[i].description,
									int_settings[i].details,
									int_settings[i].variable,
									*int_settings[i].variable,
									int_settings[i].min, int_settings[i].max,
									int_settings[i].context,
									int_settings[i].flags, NULL, NULL, NULL);

	DefineCustomBoolVariable("pgpool_ext.log_connections",
							 "Logs each outbound connection that is opened, could not be opened, or is closed.",
							 NULL,
							 &pgpx_log_connections,
							 false,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	/* an integer for the table of options, so not a boolean setting */
	DefineCustomEnumVariable("pgpool_ext.default_two_phase_commit",
							 "Sets the \"two_phase_commit\" of servers that do not set it.",
							 NULL,
							 &pgpx_default_two_phase_commit,
							 pgpx_default_two_phase_commit, off_on,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomBoolVariable("pgpool_ext.adopt_prepared",
							 "Rolls back undecided parts that the server of which this one is the promoted standby or a copy has prepared.",
							 "That server must never run again. The setting has the effect of pgpool.adopt_prepared() in all databases.",
							 &pgpx_adopt_all,
							 false,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomStringVariable("pgpool_ext.password_command",
							   "Sets the shell command that prints the passwords of user mappings with \"use_password_command\".",
							   "Its environment describes the connection: PGPOOL_SERVER, PGPOOL_HOST, PGPOOL_USER and others.",
							   &pgpx_password_command,
							   "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY,
							   NULL, NULL, NULL);

#ifdef PGPX_DEBUG_POINTS
	pgpx_debug_define();
#endif
	MarkGUCPrefixReserved("pgpool_ext");
}

uint32
pgpx_wait_event_new(const char *name)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		interrupts = InterruptHoldoffCount;
	uint32		cancels = QueryCancelHoldoffCount;
	volatile uint32 event = PG_WAIT_EXTENSION;

	PG_TRY();
	{
		event = pgpx_register_wait_event(name);
	}
	PG_CATCH();
	{
		/*
		 * The error is raised while the server's lock is held, and it resets
		 * the counters of held-off interrupts.
		 */
		MemoryContextSwitchTo(context);
		pgpx_release_wait_event_lock();
		InterruptHoldoffCount = interrupts;
		QueryCancelHoldoffCount = cancels;
		FlushErrorState();
	}
	PG_END_TRY();
	return event;
}
