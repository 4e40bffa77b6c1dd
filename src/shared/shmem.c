/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  The shared memory segment: size, layout, initialization.
 *
 * The postmaster initializes the segment at server start, and again after the
 * crash of any process.  Each time it has a new boot_id, so every message and
 * lease of the earlier run is refused.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/shmem.h"

#include <time.h>
#include <unistd.h>

#include "access/xlog.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "shared/conn_state.h"
#include "shared/history.h"
#include "shared/lock_hooks.h"
#include "shared/wait_queue.h"

#define TRANCHE "pgpool_ext"

PgpxShared *pgpx_shared = NULL;
PgpxPool   *pgpx_pools = NULL;
PgpxServer *pgpx_servers = NULL;
int		   *pgpx_pool_buckets = NULL;
PgpxConn   *pgpx_conns = NULL;
PgpxWaiter *pgpx_waiters = NULL;
char	   *pgpx_pending_statements = NULL;
pg_atomic_uint32 *pgpx_work_bits = NULL;
pg_atomic_uint32 *pgpx_waiting_bits = NULL;
PgpxSample *pgpx_samples = NULL;
const PgpxLockHooks *pgpx_lock_hooks = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/*
 * Number of times that this postmaster has created shared memory.  Ids
 * start at boots << BOOT_SHIFT, so that an id that a client kept across a
 * crash restart is stale and cannot be the id of another lease.
 */
static int	boots = 0;

#define BOOT_SHIFT 48

/*
 * Append an array to the segment.  Return its address; NULL if the segment does
 * not exist yet.
 */
static void *
place(char *segment, Size *end, Size n, Size size)
{
	Size		start = *end;

	*end = add_size(start, MAXALIGN(mul_size(n, size)));
	return segment == NULL ? NULL : segment + start;
}

/*
 * Set the pointers to the parts of the segment, and return its size.  NULL: the
 * segment does not exist yet.
 */
static Size
place_all(char *segment)
{
	Size		end = 0;

	pgpx_shared = place(segment, &end, 1, sizeof(PgpxShared));
	pgpx_pools = place(segment, &end, pgpx_max_pools, sizeof(PgpxPool));
	pgpx_servers = place(segment, &end, pgpx_max_pools, sizeof(PgpxServer));
	pgpx_pool_buckets = place(segment, &end, pgpx_max_pools, sizeof(int));
	pgpx_conns = place(segment, &end, pgpx_max_connections, sizeof(PgpxConn));
	pgpx_waiters = place(segment, &end, PGPX_NPROCS, sizeof(PgpxWaiter));
	pgpx_pending_statements = place(segment, &end, PGPX_NPROCS,
									PGPX_PENDING_MAX);
	pgpx_work_bits = place(segment, &end, pgpx_workers * PGPX_WORK_WORDS,
						   sizeof(pg_atomic_uint32));
	pgpx_waiting_bits = place(segment, &end, PGPX_WAITING_WORDS,
							  sizeof(pg_atomic_uint32));
	pgpx_samples = place(segment, &end, PGPX_MAX_SAMPLES, sizeof(PgpxSample));
	if (segment != NULL)
		pgpx_lock_hooks->shmem_attach(segment + end);
	return add_size(end, pgpx_lock_hooks->shmem_size());
}

static void
shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(place_all(NULL));
	RequestNamedLWLockTranche(TRANCHE, 3 + pgpx_max_pools);
}

static void
init_conn(PgpxConn *conn)
{
	pg_atomic_init_u64(&conn->lease_id, 0);
	pg_atomic_init_u64(&conn->packed_activity, 0);
	pg_atomic_init_u32(&conn->cancel, 0);
	pg_atomic_init_u32(&conn->cancel_lost, 0);
	pg_atomic_init_u64(&conn->spared_until, 0);
	pg_atomic_init_u32(&conn->hung_up, 0);
	pg_atomic_init_u32(&conn->end_error, 0);
	conn->pool = -1;
	conn->in_lru.prev = -1;
	conn->in_pool.next = conn->in_pool.prev = -1;
	conn->holder.procno = -1;
}

static void
init_waiter(PgpxWaiter *waiter)
{
	waiter->in_queue.next = waiter->in_queue.prev = waiter->conn = -1;
	pg_atomic_init_u32(&waiter->pending_state, PGPX_PENDING_NONE);
	pg_atomic_init_u32(&waiter->nrevoked, 0);
	for (int i = 0; i < PGPX_REVOKED_MAX; i++)
	{
		pg_atomic_init_u64(&waiter->revoked[i].lease_id, 0);
		pg_atomic_init_u32(&waiter->revoked[i].reason, PGPX_REVOKE_NONE);
	}
}

/*
 * Generate the name by which other servers know this run of the
 * server.  The name is unique across servers and across restarts.
 */
static void
generate_identity(PgpxShared *shared)
{
	uint64		random[2];

	if (!pg_strong_random(random, sizeof(random)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("pgpool_ext could not generate a random number")));
	snprintf(shared->instance, sizeof(shared->instance),
			 UINT64_FORMAT "-%08x%08x%08x%08x", GetSystemIdentifier(),
			 (uint32) (random[0] >> 32), (uint32) random[0],
			 (uint32) (random[1] >> 32), (uint32) random[1]);
}

static void
init_shared(PgpxShared *shared, LWLockPadded *locks)
{
	shared->boot_id = (uint64) GetCurrentTimestamp();
	shared->nworkers = pgpx_workers;
	shared->max_connections = pgpx_max_connections;
	shared->max_pools = pgpx_max_pools;
	shared->nwaiter_slots = PGPX_NPROCS;
	shared->max_locks = pgpx_max_locks;
	shared->max_samples = PGPX_MAX_SAMPLES;
	shared->max_polling = Max(sysconf(_SC_NPROCESSORS_ONLN), 0) / 2;
	shared->registry_lock = &locks[0].lock;
	shared->locks_lock = &locks[1].lock;
	shared->history_lock = &locks[2].lock;
	generate_identity(shared);
	(void) gethostname(shared->host, sizeof(shared->host) - 1);
	shared->started_at = pgpx_now();

	pg_atomic_init_u64(&shared->next_id, ((uint64) boots << BOOT_SHIFT) + 1);
	pg_atomic_init_u32(&shared->next_pool, 1);
	pg_atomic_init_u32(&shared->databases_changed, 0);
	pg_atomic_init_u32(&shared->pools_changed, 0);
	pg_atomic_init_u64(&shared->clock_offset, 0);
	pg_atomic_init_u32(&shared->locks_changed, 0);
	pg_atomic_init_u32(&shared->uses_min_idle, 0);
	for (int i = 0; i < PGPX_DBLINK_OUTCOMES; i++)
		pg_atomic_init_u64(&shared->dblink_calls[i], 0);
	pg_atomic_init_u32(&shared->visited_database, InvalidOid);
	pg_atomic_init_u32(&shared->conns_end, 0);
	pg_atomic_init_u32(&shared->pools_end, 0);
	pg_atomic_init_u32(&shared->locks_end, 0);

	for (int i = 0; i < PGPX_MAX_WORKERS; i++)
	{
		PgpxWorkerSlot *worker = &shared->worker[i];

		pg_atomic_init_u64(&worker->incarnation, 0);
		pg_atomic_init_u32(&worker->state, PGPX_WORKER_DOWN);
		pg_atomic_init_u32(&worker->procno, 0);
		pg_atomic_init_u32(&worker->pid, 0);
		pg_atomic_init_u32(&worker->ticking, 0);
		pg_atomic_init_u32(&worker->restarts, 0);
		pg_atomic_init_u32(&worker->must_restart, 0);
		pg_atomic_init_u32(&worker->descriptors, 0);
		pg_atomic_init_u64(&worker->started_at, 0);
		pg_atomic_init_u64(&worker->missed_at, 0);
	}

	for (int i = 0; i < PGPX_MAX_RESOLVERS; i++)
	{
		pg_atomic_init_u32(&shared->resolver[i].database, InvalidOid);
		pg_atomic_init_u32(&shared->resolver[i].process, 0);
		pg_atomic_init_u32(&shared->resolver[i].wakes, 0);
		pg_atomic_init_u32(&shared->resolver[i].served, 0);
	}

	for (int i = 0; i < pgpx_max_pools; i++)
	{
		pg_atomic_init_u32(&pgpx_servers[i].paused, 0);
		pg_atomic_init_u32(&pgpx_servers[i].draining, 0);
		pg_atomic_init_u64(&pgpx_servers[i].cap.permits, 0);
		pgpx_pools[i] = (PgpxPool) PGPX_POOL_INIT;
		pgpx_pools[i].lock = &locks[3 + i].lock;
		pgpx_pool_buckets[i] = -1;
	}

	for (int i = 0; i < pgpx_max_connections; i++)
	{
		init_conn(&pgpx_conns[i]);
		pgpx_conns[i].in_lru.next = i + 1 < pgpx_max_connections ? i + 1 : -1;
	}
	pg_atomic_init_u64(&shared->cap.permits, 0);
	SpinLockInit(&shared->free_mutex);
	shared->free_head = 0;

	for (int i = 0; i < PGPX_NPROCS; i++)
		init_waiter(&pgpx_waiters[i]);

	for (int i = 0; i < pgpx_workers * PGPX_WORK_WORDS; i++)
		pg_atomic_init_u32(&pgpx_work_bits[i], 0);
	for (int i = 0; i < PGPX_WAITING_WORDS; i++)
		pg_atomic_init_u32(&pgpx_waiting_bits[i], 0);
}

static void
shmem_startup(void)
{
	bool		found;
	char	   *segment;
	Size		size;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	/* in case this is a restart within the postmaster, forget the old one */
	size = place_all(NULL);

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	segment = ShmemInitStruct("pgpool_ext", size, &found);
	if (!found)
		memset(segment, 0, size);
	(void) place_all(segment);
	if (!found)
	{
		init_shared(pgpx_shared, GetNamedLWLockTranche(TRANCHE));
		boots++;
	}
	LWLockRelease(AddinShmemInitLock);
}

void
pgpx_list_insert(PgpxList *list, PgpxLink *links, Size stride, int index,
				 int after)
{
	PgpxLink   *link = pgpx_list_link(links, stride, index);
	int		   *next = after < 0 ? &list->head :
		&pgpx_list_link(links, stride, after)->next;

	link->prev = after;
	link->next = *next;
	*next = index;
	if (link->next >= 0)
		pgpx_list_link(links, stride, link->next)->prev = index;
	else
		list->tail = index;
}

void
pgpx_list_remove(PgpxList *list, PgpxLink *links, Size stride, int index)
{
	PgpxLink   *link = pgpx_list_link(links, stride, index);

	if (link->prev >= 0)
		pgpx_list_link(links, stride, link->prev)->next = link->next;
	else
		list->head = link->next;
	if (link->next >= 0)
		pgpx_list_link(links, stride, link->next)->prev = link->prev;
	else
		list->tail = link->prev;
	link->next = link->prev = -1;
}

void
pgpx_shmem_init(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

void
pgpx_shmem_require(void)
{
	if (pgpx_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pgpool_ext is not loaded by the server"),
				 errhint("Add \"pgpool_ext\" to \"shared_preload_libraries\" and restart the server.")));
}

static PgpxTime
read_clock(clockid_t clock)
{
	struct timespec ts;

	if (clock_gettime(clock, &ts) != 0)
		clock_gettime(CLOCK_MONOTONIC, &ts);
	return (PgpxTime) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

PgpxTime
pgpx_now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

PgpxTime
pgpx_steady_now(void)
{
#ifdef CLOCK_BOOTTIME
	return read_clock(CLOCK_BOOTTIME);
#else
	return read_clock(CLOCK_MONOTONIC);
#endif
}

/*
 * If the offset between the clocks changes by more than this, in microseconds,
 * the wall clock was set.
 */
#define CLOCK_SET_US 1000

/*
 * The offset is stored instead of measured for each timestamp, because
 * otherwise one time would be shown with values that differ by microseconds.
 */
TimestampTz
pgpx_timestamp(PgpxTime t)
{
	uint64		stored = pg_atomic_read_u64(&pgpx_shared->clock_offset);
	PgpxTime	before = pgpx_now();
	TimestampTz now = GetCurrentTimestamp();

	/* the process may be interrupted between reading the two clocks */
	PgpxTime	uncertain = pgpx_now() - before;
	TimestampTz offset = now - before - uncertain / 2;
	int64		moved = offset - (TimestampTz) stored;

	/*
	 * if two processes see that the clock was set, one stores the new offset
	 */
	if (moved < -CLOCK_SET_US - uncertain || moved > CLOCK_SET_US + uncertain)
	{
		if (pg_atomic_compare_exchange_u64(&pgpx_shared->clock_offset, &stored,
										   (uint64) offset))
			stored = (uint64) offset;
	}
	return (TimestampTz) stored + t;
}
