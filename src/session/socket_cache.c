/*-------------------------------------------------------------------------
 *
 * socket_cache.c
 *	  The sockets that this session has cached, and waiting for them.
 *
 * Runs in sessions only.  Holds no lock while it waits.
 *
 * Nothing can be removed from a WaitEventSet.  So a socket is registered in an
 * epoll set, and that epoll set is registered in a WaitEventSet of the session.
 *
 * All sessions that have cached the socket of a connection share it.  An
 * incoming packet wakes every epoll set in which the socket is registered,
 * whichever session it is for.  With 60 sessions on one connection that would
 * cost more than all other processing of the packet.  Also, Linux refuses
 * (EINVAL, also to the worker) to register a socket that is in 500 epoll sets
 * which are themselves in epoll sets.  So a session registers a socket when it
 * waits for it, and unregisters it when it waits for another one, and at the
 * end of the lease.
 *
 *-------------------------------------------------------------------------
 */
#include "session/socket_cache.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/pg_prng.h"
#include "mb/pg_wchar.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/conn_state.h"
#include "protocol/control_message.h"

/* ------------------------------------------------------------------------
 * Waiting
 * ------------------------------------------------------------------------
 */

/* pgpx_session_wait_for_more: wait for this many bytes, at most this long */
#define GATHER_BYTES (256 * 1024)
#define GATHER_MS 2

/* Maximum interval between checks for room in the control socket, in ms. */
#define CONTROL_CHECK_MS 100

/* Interval at which a session checks for a worker that is not running. */
#define MISSED_CHECK_US (1000 * 1000)

static int	epoll_fd = -1;		/* the epoll set */

/* the socket that is registered in it, and for which events (WL_SOCKET_*) */
static PgpxCachedSocket *registered = NULL;
static uint32 registered_events = 0;

static WaitEventSet *waits = NULL;	/* latch, postmaster, epoll set */

void
pgpx_session_unregister(PgpxCachedSocket *sock)
{
	struct epoll_event ev = {0};

	if (sock == NULL || registered != sock)
		return;

	/* close() does not unregister it while other processes have it open */
	(void) epoll_ctl(epoll_fd, EPOLL_CTL_DEL, sock->fd, &ev);
	registered = NULL;
}

/*
 * Register the socket for these events, and no other socket.  Return false and
 * set errno on failure.
 */
static bool
register_socket(PgpxCachedSocket *sock, uint32 events)
{
	struct epoll_event ev = {0};

	if (registered == sock && registered_events == events)
		return true;
	if (events & WL_SOCKET_READABLE)
		ev.events |= EPOLLIN;
	if (events & WL_SOCKET_WRITEABLE)
		ev.events |= EPOLLOUT;
	if (registered != sock)
		pgpx_session_unregister(registered);
	if (epoll_ctl(epoll_fd, registered == NULL ? EPOLL_CTL_ADD : EPOLL_CTL_MOD,
				  sock->fd, &ev) < 0)
		return false;
	registered = sock;
	registered_events = events;
	return true;
}

bool
pgpx_session_has_no_input(const PgpxCachedSocket *sock)
{
	struct pollfd one = {.fd = sock->fd, .events = POLLIN};

	return poll(&one, 1, 0) == 0;
}

bool
pgpx_session_has_time_left(PgpxTime deadline, long max_ms, long *ms)
{
	PgpxTime	now;

	*ms = max_ms;
	if (deadline == 0)
		return true;
	now = pgpx_now();
	if (now >= deadline)
		return false;
	*ms = (long) Min((deadline - now) / 1000 + 1,
					 max_ms < 0 ? INT_MAX / 2 : max_ms);
	return true;
}

/*
 * Wait for events on a descriptor that is not a cached socket, or without
 * events for the latch only, for at most max_ms (-1: no limit).  Return false if
 * the deadline has passed.
 */
static bool
wait_fd(int fd, uint32 fd_events, PgpxTime deadline, long max_ms,
		uint32 wait_event)
{
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | fd_events;
	long		timeout;
	int			rc;

	if (!pgpx_session_has_time_left(deadline, max_ms, &timeout))
		return false;
	if (timeout >= 0)
		events |= WL_TIMEOUT;
	rc = fd_events == 0 ? WaitLatch(MyLatch, events, timeout, wait_event) :
		WaitLatchOrSocket(MyLatch, events, fd, timeout, wait_event);
	if (rc & WL_LATCH_SET)
		ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return true;
}

bool
pgpx_session_wait_latch(PgpxTime deadline, uint32 wait_event)
{
	return wait_fd(PGINVALID_SOCKET, 0, deadline, -1, wait_event);
}

bool
pgpx_session_wait_worker(int worker, PgpxTime deadline, uint32 wait_event)
{
	PgpxTime	until = deadline;

	if (pgpx_worker_is_missing(worker))
	{
		until = pgpx_now() + MISSED_CHECK_US;
		if (deadline != 0 && deadline < until)
			until = deadline;
	}
	return pgpx_session_wait_latch(until, wait_event);
}

bool
pgpx_session_wait_control(int worker, PgpxTime deadline)
{
	static uint32 wait_event = 0;

	return wait_fd(pgpx_control_session_fd(worker), WL_SOCKET_WRITEABLE,
				   deadline, CONTROL_CHECK_MS,
				   pgpx_wait_event(&wait_event, "PgpoolControl"));
}

void
pgpx_session_wait_set(WaitEventSet *set, long timeout, uint32 wait_event)
{
	WaitEvent	occurred[8];
	int			n = WaitEventSetWait(set, timeout, occurred,
									 lengthof(occurred), wait_event);

	for (int i = 0; i < n; i++)
		if (occurred[i].events & WL_LATCH_SET)
			ResetLatch(MyLatch);
}

/* Wait for the socket or the latch.  timeout is in ms, -1: none. */
static void
wait_for_events(PgpxCachedSocket *sock, uint32 events, long timeout,
				uint32 wait_event)
{
	if (!register_socket(sock, events))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not wait for a pooled connection: %m")));
	pgpx_session_wait_set(waits, timeout, wait_event);
}

bool
pgpx_session_wait(PgpxCachedSocket *sock, uint32 events, PgpxTime deadline,
				  uint32 wait_event)
{
	PgpxTime	began = sock->poll_began != 0 ? sock->poll_began : pgpx_now();
	PgpxTime	waited;
	long		timeout;

	sock->poll_began = 0;
	if (!pgpx_session_has_time_left(deadline, -1, &timeout))
		return false;
	wait_for_events(sock, events, timeout, wait_event);
	waited = pgpx_now() - began;
	sock->slow = waited > 2 * pgpx_busy_poll;
	sock->answer_time += waited;
	CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * The remote sends 8 kB at a time.  Waking up for each 8 kB costs both sides
 * time and prevents larger reads.
 *
 * SO_RCVLOWAT is an attribute of the socket, which other processes share.  So
 * it is set only during the sleep, and reset also after an error.
 */
void
pgpx_session_wait_for_more(PgpxCachedSocket *sock, uint32 wait_event)
{
	int			much = GATHER_BYTES;
	int			any = 1;
	PgpxTime	began = pgpx_now();

	(void) setsockopt(sock->fd, SOL_SOCKET, SO_RCVLOWAT, &much, sizeof(much));
	PG_TRY();
	{
		wait_for_events(sock, WL_SOCKET_READABLE, GATHER_MS, wait_event);
	}
	PG_FINALLY();
	{
		(void) setsockopt(sock->fd, SOL_SOCKET, SO_RCVLOWAT, &any,
						  sizeof(any));
	}
	PG_END_TRY();
	sock->answer_time += pgpx_now() - began;
	CHECK_FOR_INTERRUPTS();
}

/* ------------------------------------------------------------------------
 * The cache
 * ------------------------------------------------------------------------
 */

/*
 * The cached sockets by connection: [max_connections].  A socket that was
 * replaced by that of a later generation is only in its lease.
 */
static PgpxCachedSocket **cached_by_conn = NULL;
static int	ncached = 0;		/* with the replaced ones */

static int	reply_pair[2] = {-1, -1};	/* [0] we read, [1] is passed to the
										 * worker */
static uint64 last_number = 0;

PgpxCachedSocket *
pgpx_socket_cache_find(int conn, uint64 generation)
{
	PgpxCachedSocket *sock;

	if (cached_by_conn == NULL)
		return NULL;
	sock = cached_by_conn[conn];
	if (sock == NULL)
		return NULL;
	if (sock->generation != generation)
	{
		/* the connection of this socket is closed */
		if (!sock->leased)
			pgpx_socket_cache_drop(sock);
		return NULL;
	}
	return sock;
}

void
pgpx_socket_cache_drop(PgpxCachedSocket *sock)
{
	pgpx_session_unregister(sock);
	close(sock->fd);
	ReleaseExternalFD();
	pgpx_wire_free(&sock->wire);
	ncached--;

	/* a socket of a later generation may have replaced it */
	if (cached_by_conn[sock->conn] == sock)
		cached_by_conn[sock->conn] = NULL;
	pfree(sock);
}

/* Maximum interval between checks for the worker's reply, in ms. */
#define REPLY_CHECK_MS 1000

/* Pause before a refused message is repeated. */
#define REPEAT_US (20 * 1000)

/*
 * Close a random socket without a lease.  Return false if there is none.
 *
 * The choice is not the least recently used one, because in a session that uses
 * more connections in turn than it can cache, each socket would be closed
 * shortly before its next use.  With a random choice, the fraction of calls
 * that need the worker grows gradually with the number of connections.
 */
static bool
evict_random(void)
{
	PgpxCachedSocket *chosen = NULL;
	uint64		n = 0;

	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxCachedSocket *sock = cached_by_conn[i];

		/* the nth socket replaces the choice with a probability of 1/n */
		if (sock != NULL && !sock->leased &&
			pg_prng_uint64_range(&pg_global_prng_state, 0, n++) == 0)
			chosen = sock;
	}
	if (chosen == NULL)
		return false;
	pgpx_socket_cache_drop(chosen);
	return true;
}

/*
 * Reserve n external descriptors.  Raise 53000, with none reserved, if that
 * fails.
 */
static void
acquire_fds(int n)
{
	for (int i = 0; i < n; i++)
		while (!AcquireExternalFD())
		{
			if (evict_random())
				continue;
			while (i-- > 0)
				ReleaseExternalFD();
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					 errmsg("could not receive the socket of a pooled connection"),
					 errdetail("This session has too many open descriptors."),
					 errhint("Return leases, or raise the server's \"max_files_per_process\".")));
		}
}

/*
 * Create the epoll set and the wait set, before the first socket is cached.
 * Errors: 53000.
 */
static void
prepare_wait(void)
{
	WaitEventSet *volatile made = NULL;

	if (waits != NULL)
		return;
	if (epoll_fd < 0)
	{
		acquire_fds(1);
		epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		if (epoll_fd < 0)
		{
			ReleaseExternalFD();
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					 errmsg("could not wait for pooled connections: %m")));
		}
	}

	/* the wait set acquires a descriptor, but evicts no socket */
	acquire_fds(1);
	ReleaseExternalFD();
	PG_TRY();
	{
		made = pgpx_create_wait_event_set(3);
		AddWaitEventToSet(made, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
		AddWaitEventToSet(made, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL,
						  NULL);
		AddWaitEventToSet(made, WL_SOCKET_READABLE, epoll_fd, NULL, NULL);
	}
	PG_CATCH();
	{
		if (made != NULL)
			FreeWaitEventSet(made);
		PG_RE_THROW();
	}
	PG_END_TRY();
	waits = made;
}

/* Create the socket pair for the worker's replies, if there is none. */
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

/* Close the pair after a failure.  The next message creates another one. */
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
pgpx_socket_cache_poll(PgpxCachedSocket *sock, int pool, bool *full)
{
	/* read without the lock; stale values are harmless */
	const volatile PgpxPool *p = &pgpx_pools[pool];
	PgpxTime	now = pgpx_now();
	PgpxTime	until;
	ssize_t		n;

	sock->poll_began = now;
	if (pgpx_busy_poll == 0 || sock->slow || p->nwaiting > 0 ||
		p->count[PGPX_CONN_LEASED] > pgpx_shared->max_polling)
		return 0;

	/* not the wait set, which would return at once if the latch is set */
	until = now + pgpx_busy_poll;
	do
		n = pgpx_wire_fill(&sock->wire, full);
	while (n == 0 && (now = pgpx_now()) < until);

	/* a sleep that ends soon corrects this */
	sock->slow = n == 0;

	/* the wait goes on if there is no input; the clock was read just before */
	if (n != 0)
	{
		sock->answer_time += now - sock->poll_began;
		sock->poll_began = 0;
	}
	return n;
}

/* Close a received descriptor that is not needed; -1: none was received. */
static void
drop_received(int fd)
{
	if (fd < 0)
		return;
	close(fd);
	ReleaseExternalFD();
}

/* Cache a received socket.  Consume the descriptor, also on an error. */
static PgpxCachedSocket *
cache_socket(int conn, uint64 generation, int fd)
{
	PgpxCachedSocket *sock = MemoryContextAllocExtended(TopMemoryContext,
														sizeof(*sock),
														MCXT_ALLOC_ZERO |
															MCXT_ALLOC_NO_OOM);

	if (sock == NULL)
	{
		drop_received(fd);
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	}
	sock->conn = conn;
	sock->generation = generation;
	sock->fd = fd;
	pgpx_wire_init(&sock->wire, fd, GetDatabaseEncoding(), TopMemoryContext);
	cached_by_conn[conn] = sock;
	ncached++;
	return sock;
}

/*
 * Receive a reply of the worker, if there is one.  Return its length and set
 * *fd.
 */
static ssize_t
receive_reply(PgpxReply *reply, int *fd)
{
	ssize_t		len;

	/* a descriptor must be reserved before it is received */
	acquire_fds(1);
	len = pgpx_fd_recv(reply_pair[0], reply, sizeof(*reply), fd);
	if (*fd < 0)
		ReleaseExternalFD();
	return len;
}

/* Wait for a reply.  Return false if the deadline has passed. */
static bool
wait_for_reply(PgpxTime deadline)
{
	static uint32 wait_event = 0;

	return wait_fd(reply_pair[0], WL_SOCKET_READABLE, deadline, REPLY_CHECK_MS,
				   pgpx_wait_event(&wait_event, "PgpoolSocket"));
}

/* Send a SOCKET message to the worker; wait while its control socket is full. */
static PgpxFetch
send_message(PgpxPool *pool, PgpxSocketMessage *message, PgpxTime deadline)
{
	message->number = ++last_number;
	for (;;)
	{
		int			sent = pgpx_control_send_socket(pool->worker, message,
													reply_pair[1]);

		if (sent > 0)
			return PGPX_FETCH_OK;
		if (sent < 0)
			return PGPX_FETCH_GONE;
		if (!pgpx_session_wait_control(pool->worker, deadline))
			return PGPX_FETCH_TIMEOUT;
	}
}

PgpxFetch
pgpx_socket_cache_fetch(int pool_index, int conn, uint64 generation,
						uint64 lease_id,
						PgpxTime deadline, PgpxCachedSocket **sock)
{
	PgpxPool   *pool = &pgpx_pools[pool_index];
	PgpxSocketMessage message = {
		.header = {
			.incarnation = pgpx_pool_worker_incarnation(pool),
			.pool = pool_index,
			.pool_id = pool->pool_id,
		},
		.conn = conn,
		.generation = generation,
		.lease_id = lease_id,
	};
	PgpxFetch	fetch;

	if (cached_by_conn == NULL)
		cached_by_conn =
			MemoryContextAllocZero(TopMemoryContext,
								   mul_size(pgpx_shared->max_connections,
											sizeof(PgpxCachedSocket *)));
	while (ncached >= PGPX_SOCKET_CACHE_MAX && evict_random())
		;
	prepare_wait();
	make_reply_pair();

	/* for the socket: without one the message would be in vain */
	acquire_fds(1);
	ReleaseExternalFD();

	fetch = send_message(pool, &message, deadline);
	while (fetch == PGPX_FETCH_OK)
	{
		PgpxReply	reply;
		int			fd;
		ssize_t		len = receive_reply(&reply, &fd);

		if (len == sizeof(reply) && reply.number == message.number)
		{
			if (reply.ok && fd >= 0)
			{
				*sock = cache_socket(conn, generation, fd);
				return PGPX_FETCH_OK;
			}
			drop_received(fd);
			if (!reply.again)
				return PGPX_FETCH_GONE;

			/* nothing reports that fewer descriptors are in flight */
			if (deadline != 0 && pgpx_now() >= deadline)
				return PGPX_FETCH_TIMEOUT;
			(void) wait_for_reply(pgpx_now() + REPEAT_US);
			fetch = send_message(pool, &message, deadline);
			continue;
		}

		/* a reply to an earlier message, which was abandoned, or none */
		drop_received(fd);
		if (len < 0)
		{
			drop_reply_pair();
			return PGPX_FETCH_GONE;
		}
		if (len > 0)
			continue;

		/* the worker may have exited without reading our message */
		if (pg_atomic_read_u64(&pgpx_conns[conn].lease_id) != lease_id)
			return PGPX_FETCH_GONE;
		if (!wait_for_reply(deadline))
			return PGPX_FETCH_TIMEOUT;
	}
	return fetch;
}
