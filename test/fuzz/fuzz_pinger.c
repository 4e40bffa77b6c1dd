/*-------------------------------------------------------------------------
 *
 * fuzz_pinger.c
 *	  Hostile remotes on the connection for locks: during the login, and in answers
 *	  to settings, pings and releases.  The real libpq is in between.
 *
 * The bits of the first byte select: start commands; a login that is complete before
 * the input begins; a release instead of a ping; a close at the end; no answers after
 * the end; locks that end with the first answer or with the input; a long ttl; answers
 * that may precede their requests.  The second byte is the size of the chunks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/epoll.h>

#include "mb/pg_wchar.h"

#include "fuzz.h"
#include "fuzz_remote.h"

/* with its static variables, which each input must find in their initial state */
#include "locks/lock_pinger.c"

PgpxShared *pgpx_shared = NULL;
PgpxPool   *pgpx_pools = NULL;
PgpxWorkerPool *pgpx_wpools = NULL;
int			pgpx_worker_index = 0;

static bool release;
static bool locks_end;
static bool is_over;
static uint32 owner;
static int64 ttl;
static int	nanswers;
static int	nexternal;
static PgpxTime now;

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
	nexternal++;
	return true;
}

void
ReleaseExternalFD(void)
{
	FUZZ_CHECK(nexternal > 0);
	nexternal--;
}

PgpxTime
pgpx_now(void)
{
	return now;
}

const char	pgpx_ping_sql[] = "ping";
const char	pgpx_release_sql[] = "release";
const char	pgpx_verify_sql[] = "verify";

/* for the parts of remote_message.c that are linked, but not tested here */
int
GetDatabaseEncoding(void)
{
	return PG_UTF8;
}

PgpxTime
pgpx_steady_now(void)
{
	return now;
}

PgpxTime
pgpx_steady_to_now(PgpxTime t)
{
	return t;
}

const char *
pgpx_tls_prepare(PGconn *pg)
{
	return NULL;
}

void
pgpx_event_unwatch(int fd)
{
}

void
pgpx_event_watch(PgpxWatchKind kind, int index, int fd, uint32 events,
				   bool add)
{
}

/* --- two locks, with a ping or release due as long as there are any ------ */

bool
pgpx_dlock_pool_has_locks(int pool, uint32 pool_id)
{
	return !locks_end || (nanswers == 0 && !is_over);
}

PgpxTime
pgpx_dlock_expire(int worker)
{
	return PG_INT64_MAX;
}

int
pgpx_dlock_next_pool(int worker, int from, uint32 *pool_id)
{
	*pool_id = owner;
	return from == 0 && pgpx_dlock_pool_has_locks(0, 1) ? 0 : -1;
}

void
pgpx_dlock_find_due(int pool, uint32 pool_id, PgpxDlockDue *due)
{
	memset(due, 0, sizeof(*due));
	due->nheld = release ? 0 : 2;
	due->nreleases = release ? 2 : 0;
	due->min_ttl_ms = ttl;
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
pgpx_dlock_list_held(int pool, uint32 pool_id, PgpxDlockWork *work)
{
	return some_work(work);
}

int
pgpx_dlock_list_releases(int pool, uint32 pool_id, PgpxDlockWork *work)
{
	return some_work(work);
}

void
pgpx_work_params(const PgpxDlockWork *work, int n,
				 const char *values[PGPX_WORK_PARAMS])
{
	for (int i = 0; i < PGPX_WORK_PARAMS; i++)
		values[i] = "{}";
}

static void
check_work(const PgpxDlockWork *work)
{
	FUZZ_CHECK(work->request == 1 || work->request == 2);
	nanswers++;
}

void
pgpx_dlock_pinged(const PgpxDlockWork *work, bool extended, PgpxTime sent_at)
{
	FUZZ_CHECK(!release && sent_at == now);
	check_work(work);
}

void
pgpx_dlock_released(const PgpxDlockWork *work, bool extended, bool wanted)
{
	FUZZ_CHECK(release);
	check_work(work);
}

/* Not called: no pool is gone. */
void
pgpx_dlock_revoke(int pool, uint32 pool_id)
{
	FUZZ_CHECK(false);
}

void
pgpx_dlock_release_failed(int pool, uint32 pool_id, const char *reason)
{
	FUZZ_CHECK(reason[0] != '\0' && strlen(reason) < PGPX_ERROR_LEN &&
			   strchr(reason, '\n') == NULL);
}

/* --- the harness -------------------------------------------------------------- */

static bool
is_up(void)
{
	return pingers[0]->pg != NULL;
}

/* An attempt has a deadline, early enough for another attempt. */
static void
check_deadline(void)
{
	const PgpxPinger *p = pingers[0];
	int64		most = 10 * 1000;

	if (p->phase == PGPX_PINGER_NONE || p->phase == PGPX_PINGER_IDLE)
		return;
	if (p->backoff == 0 && !release)
		most = Min(most, p->phase > PGPX_PINGER_IDLE ? ttl / 3 : Max(ttl / 3, 1000));
	FUZZ_CHECK(p->deadline > now && p->deadline <= now + most * 1000);
}

/* Polls the pinger, which may have input, and checks its state. */
static void
poll_pinger(void)
{
	bool		idle;

	pgpx_pinger_ready(0, EPOLLIN);
	remote_task_ends();
	idle = pingers[0]->phase == PGPX_PINGER_IDLE;
	(void) pgpx_pinger_run();
	FUZZ_CHECK(is_up() || !idle);
	check_deadline();
}

/* Advance the clock to the pinger's next deadline. */
static void
pass_time(PgpxTime most)
{
	PgpxTime	next = pgpx_pinger_run();

	FUZZ_CHECK(next > now && next <= now + most);
	now = next;
	(void) pgpx_pinger_run();
}

/* No answers: it tries again for ever, with bounded pauses. */
static void
check_outage(void)
{
	for (int i = 0; i < 12; i++)
	{
		bool		was_up = is_up();

		check_deadline();
		pass_time((was_up ? 10 : 1) * 1000 * 1000);
		FUZZ_CHECK(is_up() != was_up);
	}
}

/* No locks are left: it waits for the next one, but not for ever. */
static void
check_end(void)
{
	PgpxTime	begin = now;
	bool		idle = pingers[0]->phase == PGPX_PINGER_IDLE;

	is_over = true;
	(void) pg_atomic_fetch_add_u32(&pgpx_shared->dlocks_changed, 1);
	for (int i = 0; i < 10 && is_up(); i++)
		pass_time(10 * 1000 * 1000);
	FUZZ_CHECK(!is_up());
	FUZZ_CHECK(!idle || now >= begin + 2 * 1000 * 1000);
}

/* Data of a former pool in this slot is not used for this one. */
static void
check_begin(void)
{
	pgpx_wpools[0].pool_id = 2;
	(void) pgpx_pinger_run();
	FUZZ_CHECK(!is_up() && remote_nlogins == 0);
	pgpx_wpools[0].pool_id = 1;
	pass_time(1000 * 1000);
	FUZZ_CHECK(is_up());
	check_deadline();
}

/* Another pool uses this slot, whose locks are not those of the former remote. */
static void
check_another(void)
{
	uint32		attempt = pingers[0]->attempt;

	owner = pgpx_pools[0].pool_id = pgpx_wpools[0].pool_id = 2;
	(void) pg_atomic_fetch_add_u32(&pgpx_shared->dlocks_changed, 1);
	(void) pgpx_pinger_run();
	FUZZ_CHECK(is_up() && pingers[0]->attempt != attempt);
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
		pg_atomic_init_u32(&pgpx_shared->pools_end, 1);
		pgpx_shared->max_locks = 4;
		strcpy(pgpx_shared->instance, "p");
		pgpx_pools = calloc(1, sizeof(PgpxPool));
		pgpx_pools[0].opts.connect_timeout = 20 * 1000;
		pgpx_wpools = calloc(1, sizeof(PgpxWorkerPool));
	}
	pgpx_wpools[0].conninfo.start_commands = (data[0] & 1) ? "select 1" : "";
	release = (data[0] & 4) != 0;
	locks_end = (data[0] & 32) != 0;
	is_over = false;
	ttl = (data[0] & 64) != 0 ? 600 * 1000 : 1000;
	nanswers = nexternal = remote_nlogins = 0;
	now = 1000;
	pingers = NULL;
	next_run = 0;
	owner = pgpx_pools[0].pool_id = 1;

	check_begin();
	remote_accept(&remote, data + 2, size - 2, 1 + 3 * data[1],
				  (data[0] & 2) != 0);

	/* libpq drops nearly all input that arrives before the request */
	remote.waits = (data[0] & 128) == 0;
	for (int i = 0; (data[0] & 2) && i < 16 &&
		 pingers[0]->phase == PGPX_PINGER_CONNECT;
		 i++)
		poll_pinger();
	FUZZ_CHECK(!(data[0] & 2) || (is_up() && pingers[0]->phase != PGPX_PINGER_CONNECT));

	/* a new connection after an end receives no answer */
	while (is_up() && remote_nlogins == 1 && remote_send_chunk(&remote))
		poll_pinger();
	if (data[0] & 8)
		shutdown(remote.fd, SHUT_WR);
	for (int i = 0; i < 8 && is_up() && remote_nlogins == 1; i++)
		poll_pinger();

	/* all locks of the statement, or none; and a failure is not retried at once */
	FUZZ_CHECK(nanswers % 2 == 0);
	FUZZ_CHECK(!pingers[0]->failing || !is_up());
	if (locks_end)
		check_end();
	else if (data[0] & 16)
		check_outage();
	else
		check_another();
	drop_connection(pingers[0]);
	remote_task_ends();
	FUZZ_CHECK(nexternal == 0);
	remote_end(&remote);
	fuzz_free_all();
	return 0;
}
