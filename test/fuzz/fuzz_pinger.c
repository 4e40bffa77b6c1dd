/*-------------------------------------------------------------------------
 *
 * fuzz_pinger.c
 *	  What a hostile remote can say to the connection for locks: while it logs in, to
 *	  our settings, to pings and releases.  Between it and us is the real libpq.
 *
 * The first byte: whether there are start commands, whether the remote logs us in
 * before the input begins, whether a release is due instead of a ping, and whether
 * it goes at the end; the second one: in pieces of which size it comes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/epoll.h>

#include "fuzz.h"
#include "fuzz_remote.h"

/* with its static variables, which each input is to find as they are at first */
#include "pinger.c"

PgpxShared *pgpx_shared = NULL;
PgpxPool   *pgpx_pools = NULL;
PgpxWorkerPool *pgpx_wpools = NULL;
int			pgpx_worker_index = 0;

static bool release;
static int	nanswers;

Size
mul_size(Size a, Size b)
{
	return a * b;
}

bool
LWLockAcquire(LWLock *lock, LWLockMode mode)
{
	return true;
}

void
LWLockRelease(LWLock *lock)
{
}

bool
AcquireExternalFD(void)
{
	return true;
}

void
ReleaseExternalFD(void)
{
}

PgpxTime
pgpx_now(void)
{
	return 1000;
}

PgpxTime
pgpx_steady_now(void)
{
	return 1000;
}

PgpxTime
pgpx_steady_to_now(PgpxTime t)
{
	return t;
}

const char *
pgpx_tls_claim(PGconn *pg)
{
	return NULL;
}

void
pgpx_reactor_forget(int fd)
{
}

void
pgpx_reactor_watch(PgpxWatchKind kind, int index, int fd, uint32 events,
				   bool add)
{
}

/* --- two locks, for which something is always due ----------------------------- */

PgpxTime
pgpx_dlock_expire(int worker)
{
	return PG_INT64_MAX;
}

int
pgpx_dlock_next_pool(int worker, int from, uint32 *pool_id)
{
	*pool_id = 1;
	return from == 0 ? 0 : -1;
}

void
pgpx_dlock_due(int pool, uint32 pool_id, PgpxDlockDue *due)
{
	memset(due, 0, sizeof(*due));
	due->nheld = release ? 0 : 2;
	due->nreleases = release ? 2 : 0;
	due->min_ttl = 1000;
}

static int
some_work(PgpxDlockWork *work)
{
	for (int i = 0; i < 2; i++)
	{
		memset(&work[i], 0, sizeof(work[i]));
		work[i].request = i + 1;
		work[i].token = 5;
		strcpy(work[i].name, i == 0 ? "a \"name\\" : "b");
	}
	return 2;
}

int
pgpx_dlock_to_ping(int pool, uint32 pool_id, PgpxDlockWork *work)
{
	return some_work(work);
}

int
pgpx_dlock_to_release(int pool, uint32 pool_id, PgpxDlockWork *work)
{
	return some_work(work);
}

static void
check_work(const PgpxDlockWork *work)
{
	FUZZ_CHECK(work->request == 1 || work->request == 2);
	nanswers++;
}

void
pgpx_dlock_pinged(const PgpxDlockWork *work, bool ours, PgpxTime asked_at)
{
	FUZZ_CHECK(!release && asked_at == 1000);
	check_work(work);
}

void
pgpx_dlock_released(const PgpxDlockWork *work, bool ours, bool wanted)
{
	FUZZ_CHECK(release);
	check_work(work);
}

void
pgpx_dlock_release_failed(int pool, uint32 pool_id, const char *why)
{
	FUZZ_CHECK(why[0] != '\0' && strlen(why) < PGPX_ERROR_LEN &&
			   strchr(why, '\n') == NULL);
}

bool
pgpx_dlock_any(int pool, uint32 pool_id)
{
	return true;
}

/* --- the harness -------------------------------------------------------------- */

static bool
is_up(void)
{
	return pingers[0]->pg != NULL;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Remote		remote;

	if (size < 2)
		return 0;
	if (pgpx_shared == NULL)
	{
		pgpx_shared = calloc(1, sizeof(PgpxShared));
		pgpx_shared->max_pools = 1;
		pgpx_shared->max_locks = 4;
		strcpy(pgpx_shared->process, "p");
		pgpx_pools = calloc(1, sizeof(PgpxPool));
		pgpx_pools[0].opts.connect_timeout = 1000;
		pgpx_wpools = calloc(1, sizeof(PgpxWorkerPool));
		pgpx_wpools[0].pool_id = 1;
	}
	pgpx_wpools[0].conninfo.start_commands = (data[0] & 1) ? "select 1" : "";
	release = (data[0] & 4) != 0;
	nanswers = remote_nlogins = 0;
	pingers = NULL;
	next_run = 0;

	(void) pgpx_pinger_run();
	FUZZ_CHECK(is_up());
	remote_accept(&remote, data + 2, size - 2, 1 + 3 * data[1],
				  (data[0] & 2) != 0);

	/* what it connects once more, after an end, nobody answers */
	while (is_up() && remote_nlogins == 1 && remote_says(&remote))
	{
		pgpx_pinger_ready(0, EPOLLIN);
		remote_task_ends();
		(void) pgpx_pinger_run();
	}
	if (data[0] & 8)
		shutdown(remote.fd, SHUT_WR);
	for (int i = 0; i < 8 && is_up() && remote_nlogins == 1; i++)
	{
		pgpx_pinger_ready(0, EPOLLIN);
		remote_task_ends();
		(void) pgpx_pinger_run();
	}

	/* all that was asked about, or nothing */
	FUZZ_CHECK(nanswers % 2 == 0);
	pgpx_pinger_drop(pingers[0]);
	remote_task_ends();
	remote_end(&remote);
	fuzz_free_all();
	return 0;
}
