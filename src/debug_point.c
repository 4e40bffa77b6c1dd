/*-------------------------------------------------------------------------
 *
 * debug_point.c
 *	  Places at which a test can stop, end or fail a process: debug_point.h.
 *
 *-------------------------------------------------------------------------
 */
#define PGPX_DEBUG_POINT_C
#include "compat.h"

#ifdef PGPX_DEBUG_POINTS

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/ipc.h"
#include "utils/guc.h"

/* Tests that compare all settings with a list are to pass here, too. */
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
	if (what[0] != '\0' || damage != NULL)
		pgpx_debug_damage(what);
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

/* Is it the first time?  Then say that we are here. */
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

void
pgpx_debug_allocate(void)
{
	if (oom_at != 0 && CritSectionCount == 0 && ++allocations == oom_at &&
		arrive("oom"))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
				 errdetail("Allocation %d of this process fails, for a test.",
						   oom_at)));
}

#endif
