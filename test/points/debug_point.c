/*-------------------------------------------------------------------------
 *
 * debug_point.c
 *	  Debug points, and damage to the shared state for tests of the invariants.
 *	  Only builds with -DPGPX_DEBUG_POINTS contain it.
 *
 * SET pgpool_ext.debug_damage = 'NAME' stores an inconsistent value in shared
 * memory, so that a test can verify that check_invariants() reports it; see
 * debug_point.h.  Another value restores the state.  No other session may use
 * pools meanwhile.
 *
 * The damage needs these objects: a pool with one lease and two waiters,
 * another pool with two leases and two idle connections, and two distributed
 * locks.
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

#include "locks/lock_table.h"
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

#define OUTSIDE 100000			/* index outside every array */

typedef struct Damaged
{
	void	   *address;
	Size		size;
	int64		was;
	int64		is;
} Damaged;

static Damaged damaged[16];
static int	ndamaged = 0;

static void
put(void *address, Size size, int64 value)
{
	Damaged    *d = &damaged[ndamaged++];

	d->address = address;
	d->size = size;
	memcpy(&d->was, address, size);
	d->is = value;
	memcpy(address, &d->is, size);
}

#define PUT(field, value) put(&(field), sizeof(field), (int64) (value))
#define IS(name) (strcmp(what, name) == 0)

/* Returns the pool with these numbers of leases and waiters. */
static PgpxPool *
pool_with(int nleased, int nwaiting)
{
	for (int i = 0; i < pgpx_shared->max_pools; i++)
		if (pgpx_pools[i].count[PGPX_CONN_LEASED] == nleased &&
			pgpx_pools[i].nwaiting == nwaiting)
			return &pgpx_pools[i];
	elog(PANIC, "pgpool_ext: there is no pool to damage");
}

/* Returns the nth connection of the pool in a state. */
static PgpxConn *
conn_in(const PgpxPool *pool, int state, int n)
{
	for (int i = 0; i < pgpx_shared->max_connections; i++)
		if (pgpx_conns[i].pool == PGPX_POOL_INDEX(pool) &&
			pgpx_conns[i].state == state && n-- == 0)
			return &pgpx_conns[i];
	elog(PANIC, "pgpool_ext: there is no connection to damage");
}

static void
damage_conns(const char *what)
{
	PgpxPool   *pool = pool_with(2, 0);
	PgpxConn   *idle = conn_in(pool, PGPX_CONN_IDLE, 0);
	PgpxConn   *leased = conn_in(pool, PGPX_CONN_LEASED, 0);
	PgpxConn   *second = conn_in(pool, PGPX_CONN_LEASED, 1);
	PgpxConn   *head = &pgpx_conns[pool->lru_head];

	if (IS("lease_of_idle"))
		PUT(idle->lease_id, 5);
	else if (IS("lease_of_future"))
		PUT(leased->lease_id, PG_INT64_MAX);
	else if (IS("lease_twice"))
		PUT(leased->lease_id, pg_atomic_read_u64(&second->lease_id));
	else if (IS("holder"))
		PUT(leased->owner_pid, 1);
	else if (IS("generation"))
		PUT(idle->generation, 0);
	else if (IS("version"))
		PUT(idle->version, pool->version + 1);
	else if (IS("opened"))
		PUT(idle->opened_at, 0);
	else if (IS("unread_reset"))
		PUT(idle->unread_reset, 2);
	else if (IS("closing"))
		PUT(idle->state, PGPX_CONN_CLOSING);
	else if (IS("leased"))
		PUT(leased->state, PGPX_CONN_IDLE);
	else if (IS("state"))
		PUT(idle->state, PGPX_CONN_NSTATES);
	else if (IS("count"))
		PUT(pool->count[PGPX_CONN_IDLE], 7);
	else if (IS("many"))
	{
		for (int state = 0; state < PGPX_CONN_NSTATES; state++)
			PUT(pool->count[state], 7);
		PUT(pool->stats.checkouts, 0);
		PUT(pool->stats.waited, OUTSIDE);
		PUT(pool->stats.connects, 0);
	}
	else if (IS("list_head"))
		PUT(pool->lru_head, OUTSIDE);
	else if (IS("list_state"))
		PUT(pool->lru_head, PGPX_CONN_INDEX(leased));
	else if (IS("list_link"))
		PUT(head->prev, PGPX_CONN_INDEX(leased));
	else if (IS("list_order"))
		PUT(head->last_used, 1);
	else if (IS("list_end"))
		PUT(pool->lru_tail, PGPX_CONN_INDEX(leased));
	else if (IS("list_short"))
	{
		PUT(head->next, -1);
		PUT(pool->lru_tail, pool->lru_head);
	}
	else if (IS("cap"))
		PUT(pool->version_cap, 1);
	else if (IS("checkouts"))
		PUT(pool->stats.checkouts, 0);
	else if (IS("waited"))
		PUT(pool->stats.waited, OUTSIDE);
	else if (IS("histogram"))
		PUT(pool->stats.histogram[0], OUTSIDE);
	else if (IS("connects"))
		PUT(pool->stats.connects, 0);
	else if (IS("hits"))
		PUT(pool->stats.hits, OUTSIDE);
	else if (IS("pool_slot"))
		PUT(pool->pool_id, 0);
	else if (IS("free_head"))
		PUT(pgpx_shared->free_head, PGPX_CONN_INDEX(idle));
	else if (IS("free_outside"))
		PUT(pgpx_shared->free_head, -2);
	else if (IS("free_count"))
		PUT(pgpx_shared->nfree, 0);
	else if (IS("free_missing"))
	{
		PUT(pgpx_shared->free_head, pgpx_conns[pgpx_shared->free_head].next);
		PUT(pgpx_shared->nfree, pgpx_shared->nfree - 1);
	}
}

static void
damage_queue(const char *what)
{
	PgpxPool   *pool = pool_with(1, 2);
	PgpxWaiter *first = &pgpx_waiters[pool->queue_head];
	PgpxConn   *idle = conn_in(pool_with(2, 0), PGPX_CONN_IDLE, 0);
	PgpxConn   *leased = conn_in(pool, PGPX_CONN_LEASED, 0);

	if (IS("queue_head"))
		PUT(pool->queue_head, OUTSIDE);
	else if (IS("queue_state"))
		PUT(first->state, PGPX_WAITER_FAILED);
	else if (IS("queue_link"))
		PUT(first->prev, OUTSIDE);
	else if (IS("queue_order"))
		PUT(first->position, PG_INT64_MAX);
	else if (IS("queue_process"))
		PUT(first->pid, 1);
	else if (IS("queue_end"))
		PUT(pool->queue_tail, pool->queue_head);
	else if (IS("queue_count"))
		PUT(pool->nwaiting, 7);
	else if (IS("queued"))
		PUT(pool->nwaiters, 7);
	else if (IS("not_granted"))
	{
		PUT(idle->pool, PGPX_POOL_INDEX(pool));
		PUT(idle->version, pool->version);
	}
	else if (strncmp(what, "granted", 7) == 0)
	{
		PUT(first->state, PGPX_WAITER_GRANTED);
		PUT(first->conn, IS("granted_outside") ? OUTSIDE : PGPX_CONN_INDEX(leased));
		PUT(first->lease_id, IS("granted_stale") ? 1 :
			pg_atomic_read_u64(&leased->lease_id));
	}
}

static void
damage_lock(const char *what)
{
	PgpxLock  *lock = NULL;

	for (int i = 0; lock == NULL; i++)
		if (pgpx_locks[i].state == PGPX_LOCK_HELD)
			lock = &pgpx_locks[i];
	if (IS("lock_state"))
		PUT(lock->state, OUTSIDE);
	else if (IS("lock_name"))
		PUT(lock->name[0], 0);
	else if (IS("lock_owner"))
		PUT(lock->owner_pid, 1);
	else if (IS("lock_done"))
		PUT(lock->state, PGPX_LOCK_DONE);
	else if (IS("lock_token"))
		PUT(lock->token, 0);
	else if (IS("lock_twice"))
	{
		/*
		 * Copy the name to the next lock.  Names have one character, so the
		 * first byte is enough.
		 */
		PgpxLock  *next = lock + 1;

		while (next->state != PGPX_LOCK_HELD)
			next++;
		PUT(next->name[0], lock->name[0]);
	}
}

void
pgpx_debug_damage(const char *what)
{
	while (ndamaged > 0)
	{
		Damaged    *d = &damaged[--ndamaged];

		/* leave a value alone that was changed meanwhile */
		if (memcmp(d->address, &d->is, d->size) == 0)
			memcpy(d->address, &d->was, d->size);
	}
	if (what[0] == '\0')
		return;
	damage_conns(what);
	if (ndamaged == 0)
		damage_queue(what);
	if (ndamaged == 0)
		damage_lock(what);
	if (ndamaged == 0)
		elog(PANIC, "pgpool_ext: unknown kind of damage: \"%s\"", what);
}
