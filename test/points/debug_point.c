/*-------------------------------------------------------------------------
 *
 * debug_point.c
 *	  Debug points; see debug_point.h.  Only builds with -DPGPX_DEBUG_POINTS contain it.
 *
 * SET pgpool_ext.debug_damage = 'closing' stores a wrong state in an idle
 * connection of a pool with two leases, and 'leased' in a leased one.  An empty
 * value restores the state.
 *
 *-------------------------------------------------------------------------
 */
#define PGPX_DEBUG_POINT_C
#include "base/compat.h"

#include "base/debug_point.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/ipc.h"
#include "utils/guc.h"

#include "locks/locks.h"
#include "shared/wait_queue.h"

/*
 * Hidden, because tests that compare all settings with a list must pass here,
 * too.
 */
#define HIDDEN (GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE)

static char *armed = NULL;
static char *damage = NULL;
static int	oom_at = 0;
static int	allocations = 0;

static void
assign_oom(int value, void *extra)
{
	allocations = 0;
}

static void
assign_damage(const char *what, void *extra)
{
	static PgpxConn *conn = NULL;
	static int	was,
				is;

	if (conn != NULL && conn->state == is)
		conn->state = was;
	conn = NULL;
	if (what[0] == '\0')
		return;
	was = strcmp(what, "closing") == 0 ? PGPX_CONN_IDLE : PGPX_CONN_LEASED;
	is = was == PGPX_CONN_IDLE ? PGPX_CONN_CLOSING : PGPX_CONN_IDLE;
	for (int i = 0; conn == NULL && i < pgpx_shared->max_connections; i++)
		if (pgpx_conns[i].state == was &&
			pgpx_pools[pgpx_conns[i].pool].count[PGPX_CONN_LEASED] == 2)
			conn = &pgpx_conns[i];
	if (conn == NULL)
		elog(PANIC, "pgpool_ext: there is no connection to damage");
	conn->state = is;
}

void
pgpx_debug_define(void)
{
	DefineCustomStringVariable("pgpool_ext.debug_damage",
							   "Damages shared memory, for tests.", NULL,
							   &damage, "", PGC_USERSET, HIDDEN, NULL,
							   assign_damage, NULL);
	DefineCustomStringVariable("pgpool_ext.debug_point",
							   "Does something at a place, for tests.", NULL,
							   &armed, "", PGC_USERSET, HIDDEN, NULL, NULL,
							   NULL);
	DefineCustomIntVariable("pgpool_ext.debug_oom",
							"Fails an allocation, for tests.", NULL,
							&oom_at, 0, 0, INT_MAX,
							PGC_USERSET, HIDDEN, NULL, assign_oom, NULL);
}

static void
file_of(char *path, const char *name, const char *suffix)
{
	snprintf(path, MAXPGPATH, "pgpool_ext.%s.%s", name, suffix);
}

/*
 * Creates the file pgpool_ext.NAME.at, which shows the test that a process has
 * reached the point.  Returns false if the file exists, because a point acts
 * only once.
 */
static bool
arrive(const char *name)
{
	char		path[MAXPGPATH];
	int			fd;

	file_of(path, name, "at");
	fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

void
pgpx_debug_point(const char *name)
{
	size_t		len = strlen(name);
	const char *action;
	char		path[MAXPGPATH];
	struct stat st;

	if (armed == NULL || strncmp(armed, name, len) != 0 || armed[len] != ' ' ||
		!arrive(name))
		return;
	action = armed + len + 1;
	if (strcmp(action, "wait") == 0)
	{
		file_of(path, name, "go");
		while (stat(path, &st) < 0)
			pg_usleep(2000);
	}
	else if (strcmp(action, "error") == 0)
		elog(ERROR, "debug point %s", name);
	else if (strcmp(action, "exit") == 0)
		proc_exit(1);
	else if (strcmp(action, "crash") == 0)
		kill(MyProcPid, SIGKILL);
}

#ifdef PGPX_COVERAGE
extern void __gcov_dump(void);
#endif

void
pgpx_debug_counted(void)
{
#ifdef PGPX_COVERAGE
	__gcov_dump();
#endif
}

/* Counts an allocation.  Returns true if it must fail. */
static bool
fails(void)
{
	return oom_at != 0 && CritSectionCount == 0 && ++allocations == oom_at &&
		arrive("oom");
}

void
pgpx_debug_allocate(void)
{
	if (fails())
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
				 errdetail("Allocation %d of this process fails, for a test.",
						   oom_at)));
}

bool
pgpx_debug_allocate_extended(int flags)
{
	if ((flags & MCXT_ALLOC_NO_OOM) != 0)
		return !fails();
	pgpx_debug_allocate();
	return true;
}
