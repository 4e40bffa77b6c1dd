/*-------------------------------------------------------------------------
 *
 * fuzz_login.c
 *	  Hostile remotes during the worker's connects: our part of the login (bounds,
 *	  the cancel key, parameters), and the answer to the start commands.  The real
 *	  libpq is in between.
 *
 * First byte: whether there are start commands, whether a password is required,
 * whether the remote completes the login before the input begins, whether it closes
 * at the end, and whether the login is abandoned in the middle of a step; the second
 * one: the size of the chunks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "storage/lwlock.h"

#include "fuzz.h"
#include "fuzz_remote.h"
#include "shared/conn_state.h"
#include "worker/connect.h"
#include "worker/events.h"

/* --- functions that the connector calls -------------------------------------- */

PgpxShared *pgpx_shared = NULL;
PgpxPool   *pgpx_pools = NULL;
PgpxConn   *pgpx_conns = NULL;
PgpxWorkerConn *pgpx_wconns = NULL;
PgpxWorkerPool *pgpx_wpools = NULL;
bool		pgpx_log_connections = true;

static int	nopened;
static int	nfailed;

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
	return 1;
}

uint64
pgpx_connection_tag(const PgpxWorkerConn *w)
{
	return 0;
}

void
pgpx_connection_watch(PgpxWorkerConn *w, uint32 events)
{
	FUZZ_CHECK(w->pg != NULL && PQsocket(w->pg) >= 0);
}

/* The worker has one connection. */
void
pgpx_connection_add(PgpxWorkerConn *w)
{
}

int
pgpx_connection_next(int after)
{
	return after < 0 ? 0 : -1;
}

void
pgpx_connection_drop(PgpxWorkerConn *w)
{
	if (!pgpx_login_end(w->login) && w->pg != NULL)
		PQfinish(w->pg);
	w->login = NULL;
	w->pg = NULL;
	w->phase = PGPX_PHASE_NONE;
}

const char *
pgpx_conninfo_param(const PgpxConninfo *ci, const char *name)
{
	return "UTF8";
}

void
pgpx_abort_begin(PgpxWorkerConn *w)
{
	pgpx_connection_drop(w);
}

void
pgpx_pool_connect_failed(PgpxPool *pool, PgpxConn *conn,
						 PgpxConnectFailure how, int sqlstate, const char *text)
{
	FUZZ_CHECK(text[0] != '\0' && strlen(text) < PGPX_ERROR_LEN);
	FUZZ_CHECK(strchr(text, '\n') == NULL);
	nfailed++;
}

void
pgpx_pool_attempt_outdated(PgpxPool *pool, PgpxConn *conn, bool running)
{
}

void
pgpx_pool_conninfo_missing(PgpxPool *pool, PgpxConn *conn)
{
}

void
pgpx_pool_opened(PgpxPool *pool, PgpxConn *conn, PgpxTime connect_time)
{
	PgpxWorkerConn *w = pgpx_wconns;

	nopened++;
	FUZZ_CHECK(!pgpx_wpools[0].conninfo.need_password ||
			   PQconnectionUsedPassword(w->pg));
	FUZZ_CHECK(PQtransactionStatus(w->pg) == PQTRANS_IDLE);
	FUZZ_CHECK(strlen(conn->remote_version) < sizeof(conn->remote_version));
	FUZZ_CHECK(PQlibVersion() >= 170000 ? !w->have_key :
			   w->have_key && (int) w->cancel_pid == PQbackendPID(w->pg));
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

const char *
pgpx_relay_begin(PgpxWorkerConn *w)
{
	return NULL;
}

const char *
pgpx_tls_prepare(PGconn *pg)
{
	return NULL;
}

/* cancel.c, of which only the search for the key is tested here */
void
pgpx_connection_reset(PgpxWorkerConn *w, bool send, int unread_reset)
{
}

void
pgpx_abort_cancelled(PgpxWorkerConn *w)
{
}

void
pgpx_event_due_at(PgpxTime at)
{
}

void
pgpx_event_pool_changed(int pool)
{
}

int
pgpx_pool_cancel_done(PgpxPool *pool, PgpxConn *conn, bool sent, bool ok)
{
	return 0;
}

/* --- the harness -------------------------------------------------------------- */

static bool
is_connecting(const PgpxWorkerConn *w)
{
	return w->phase == PGPX_PHASE_CONNECT || w->phase == PGPX_PHASE_START;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Remote		remote;
	PgpxWorkerConn *w;
	bool		complete;		/* the login completes, and nothing follows */

	if (size < 2)
		return 0;
	complete = size == 2 && data[0] == 4;
	if (pgpx_pools == NULL)
	{
		pgpx_pools = calloc(1, sizeof(PgpxPool));
		pgpx_conns = calloc(1, sizeof(PgpxConn));
		pgpx_wconns = calloc(1, sizeof(PgpxWorkerConn));
		pgpx_wpools = calloc(1, sizeof(PgpxWorkerPool));
	}
	memset(&pgpx_conns[0], 0, sizeof(PgpxConn));
	memset(&pgpx_wconns[0], 0, sizeof(PgpxWorkerConn));
	w = &pgpx_wconns[0];
	w->fd = -1;
	pgpx_wpools[0].conninfo.start_commands =
		(data[0] & 1) ? "select 1" : "";
	pgpx_wpools[0].conninfo.need_password = (data[0] & 2) != 0;
	nopened = nfailed = 0;

	pgpx_connect_open(w);
	remote_accept(&remote, data + 2, size - 2, 1 + 3 * data[1],
				  (data[0] & 4) != 0);
	while (is_connecting(w) && remote_send_chunk(&remote))
	{
		pgpx_connect_step(w);
		remote_task_ends();
	}
	if (data[0] & 8)
		shutdown(remote.fd, SHUT_WR);
	for (int i = 0; i < 8 && is_connecting(w); i++)
	{
		pgpx_connect_step(w);
		if (data[0] & 16)
			break;				/* abandoned in the middle of a step */
		remote_task_ends();
	}
	if (is_connecting(w))
	{
		FUZZ_CHECK(nopened + nfailed == 0);
		pgpx_connect_deadline_passed(w);
	}
	FUZZ_CHECK(nopened + nfailed == 1);
	FUZZ_CHECK(nopened == 1 || !complete);
	pgpx_connection_drop(w);
	remote_task_ends();
	FUZZ_CHECK(pgpx_login_descriptors() == 0);
	remote_end(&remote);
	fuzz_free_all();
	return 0;
}

/* for the parts of remote_message.c that are linked, but not tested here */
int
GetDatabaseEncoding(void)
{
	return PG_UTF8;
}
