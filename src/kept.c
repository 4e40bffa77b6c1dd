/*-------------------------------------------------------------------------
 *
 * kept.c
 *	  The sockets that this session keeps, and asking the worker for one.
 *
 * Runs in sessions only.  Takes no lock while it waits.
 *
 *-------------------------------------------------------------------------
 */
#include "kept.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mb/pg_wchar.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "conn_state.h"
#include "fdpass.h"
#include "guc.h"
#include "handoff.h"
#include "session_wait.h"

static PgpxKept **kept_by_conn = NULL;	/* [max_connections] */
static int	nkept = 0;
static uint64 use_counter = 0;

static int	reply_pair[2] = {-1, -1};	/* [0] we read, [1] goes to the worker */
static uint64 last_request = 0;

PgpxKept *
pgpx_kept_find(int conn, uint64 generation)
{
	PgpxKept   *kept;

	if (kept_by_conn == NULL)
		return NULL;
	kept = kept_by_conn[conn];
	if (kept == NULL)
		return NULL;
	if (kept->generation != generation)
	{
		/* the connection that this was the socket of is gone */
		if (!kept->leased)
			pgpx_kept_drop(kept);
		return NULL;
	}
	kept->last_used = ++use_counter;
	return kept;
}

void
pgpx_kept_drop(PgpxKept *kept)
{
	pgpx_session_forget(kept);
	close(kept->fd);
	ReleaseExternalFD();
	pgpx_wire_free(&kept->wire);
	nkept--;

	/* a later generation's may have taken the place */
	if (kept_by_conn[kept->conn] == kept)
		kept_by_conn[kept->conn] = NULL;
	pfree(kept);
}

/* Who waits for the worker's answer looks at least this often whether it is there. */
#define REPLY_LOOK_MS 1000

/* Let the least recently used socket go that no lease uses. */
static bool
let_one_go(void)
{
	PgpxKept   *oldest = NULL;

	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxKept   *kept = kept_by_conn[i];

		if (kept != NULL && !kept->leased &&
			(oldest == NULL || kept->last_used < oldest->last_used))
			oldest = kept;
	}
	if (oldest == NULL)
		return false;
	pgpx_kept_drop(oldest);
	return true;
}

/* Room for so many more external descriptors, for all of them, or 53000. */
static void
acquire_fds(int n)
{
	for (int i = 0; i < n; i++)
		while (!AcquireExternalFD())
		{
			if (let_one_go())
				continue;
			while (i-- > 0)
				ReleaseExternalFD();
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					 errmsg("could not take in the socket of a pooled connection"),
					 errdetail("This session has too many open descriptors."),
					 errhint("Return leases, or raise the server's \"max_files_per_process\".")));
		}
}

/* Make room for one more socket, and for what waiting for any takes. */
static void
make_room(void)
{
	int			n = 1 + (pgpx_session_can_wait() ? 0 : PGPX_SESSION_WAIT_FDS);

	while (nkept >= PGPX_MAX_KEPT && let_one_go())
		;
	acquire_fds(n);
	while (n-- > 0)
		ReleaseExternalFD();
	pgpx_session_prepare();
}

static void
make_reply_pair(void)
{
	int			pair[2];

	if (reply_pair[0] >= 0)
		return;
	acquire_fds(2);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
				   0, pair) < 0)
	{
		ReleaseExternalFD();
		ReleaseExternalFD();
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not create a socket pair: %m")));
	}
	reply_pair[0] = pair[0];
	reply_pair[1] = pair[1];
}

/* The pair has come to its end: the next question brings another one. */
static void
drop_reply_pair(void)
{
	for (int i = 0; i < 2; i++)
	{
		close(reply_pair[i]);
		ReleaseExternalFD();
		reply_pair[i] = -1;
	}
}

ssize_t
pgpx_kept_poll(PgpxKept *kept, int pool, bool *full)
{
	PgpxTime	until;
	ssize_t		n;

	/* if only one may look, then the worker, who has the answer first */
	if (pgpx_conns[kept->conn].relayed && pgpx_shared->max_polling < 2)
		return 0;
	if (!pgpx_busy_poll_is_calm(pool))
		return 0;
	pgpx_wire_make_room(&kept->wire);	/* may throw, so before the place */
	until = pgpx_busy_poll_begin(&kept->poll);
	if (until == 0)
		return 0;

	/*
	 * Not by the wait set: that may throw, and the place would be lost; and it
	 * would come back at once for a latch that has been set for long.
	 */
	do
		n = pgpx_wire_receive(&kept->wire, full);
	while (n == 0 && pgpx_now() < until);
	pgpx_busy_poll_end(&kept->poll, n != 0);
	pgpx_busy_poll_leave();
	return n;
}

/* A descriptor that came in is not wanted; -1: none did. */
static void
drop_received(int fd)
{
	if (fd < 0)
		return;
	close(fd);
	ReleaseExternalFD();
}

/* Keep a socket that has come in; consumes the descriptor, also on an error. */
static PgpxKept *
keep(int conn, uint64 generation, int fd)
{
	PgpxKept   *kept = MemoryContextAllocExtended(TopMemoryContext,
												  sizeof(*kept),
												  MCXT_ALLOC_ZERO |
													  MCXT_ALLOC_NO_OOM);

	if (kept == NULL)
	{
		drop_received(fd);
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	}
	kept->conn = conn;
	kept->generation = generation;
	kept->fd = fd;
	kept->last_used = ++use_counter;
	pgpx_wire_init(&kept->wire, fd, GetDatabaseEncoding(), TopMemoryContext);
	kept_by_conn[conn] = kept;
	nkept++;
	return kept;
}

/* Take in a message of the worker, if one is there: its length, and *fd. */
static ssize_t
receive(PgpxReply *reply, int *fd)
{
	ssize_t		len;

	/* what comes in is counted before it comes */
	acquire_fds(1);
	len = pgpx_fd_recv(reply_pair[0], reply, sizeof(*reply), fd);
	if (*fd < 0)
		ReleaseExternalFD();
	return len;
}

static bool
is_answer(const PgpxReply *reply, const PgpxSocketRequest *request)
{
	return reply->life == pgpx_shared->life &&
		reply->request == request->request && reply->conn == request->conn &&
		reply->generation == request->generation &&
		reply->lease_id == request->lease_id;
}

/* False: the deadline has passed. */
static bool
wait_for_reply(PgpxTime deadline)
{
	static uint32 wait_event = 0;

	return pgpx_session_wait_fd(reply_pair[0], WL_SOCKET_READABLE, deadline,
								REPLY_LOOK_MS,
								pgpx_wait_event(&wait_event, "PgpoolSocket"));
}

PgpxFetch
pgpx_kept_fetch(int pool_index, int conn, uint64 generation, uint64 lease_id,
				PgpxTime deadline, PgpxKept **kept)
{
	PgpxPool   *pool = &pgpx_pools[pool_index];
	PgpxSocketRequest request = {0};

	if (kept_by_conn == NULL)
		kept_by_conn =
			MemoryContextAllocZero(TopMemoryContext,
								   mul_size(pgpx_shared->max_connections,
											sizeof(PgpxKept *)));
	make_room();
	make_reply_pair();

	request.header.pool = PGPX_POOL_INDEX(pool);
	request.header.pool_id = pool->pool_id;
	request.header.epoch = pgpx_pool_worker_epoch(pool);
	request.conn = conn;
	request.generation = generation;
	request.lease_id = lease_id;
	request.request = ++last_request;

	for (;;)
	{
		int			sent = pgpx_handoff_send_request(pool->worker, &request,
													 reply_pair[1]);

		if (sent > 0)
			break;
		if (sent < 0)
			return PGPX_FETCH_GONE;
		if (!pgpx_session_wait_control(pool->worker, deadline))
			return PGPX_FETCH_TIMEOUT;
	}

	for (;;)
	{
		PgpxReply	reply;
		int			fd;
		ssize_t		len = receive(&reply, &fd);

		if (len == sizeof(reply) && is_answer(&reply, &request))
		{
			if (!reply.ok || fd < 0)
			{
				drop_received(fd);
				return PGPX_FETCH_GONE;
			}
			*kept = keep(conn, generation, fd);
			return PGPX_FETCH_OK;
		}

		/* else it is the answer to a question that we have given up */
		drop_received(fd);
		if (len < 0)
		{
			drop_reply_pair();
			return PGPX_FETCH_GONE;
		}
		if (len > 0)
			continue;

		/* the worker may have ended with our question unread */
		if (pg_atomic_read_u64(&pgpx_conns[conn].lease_id) != lease_id)
			return PGPX_FETCH_GONE;
		if (!wait_for_reply(deadline))
			return PGPX_FETCH_TIMEOUT;
	}
}
