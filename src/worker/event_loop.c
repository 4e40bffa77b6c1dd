/*-------------------------------------------------------------------------
 *
 * event_loop.c
 *	  The worker's event loop: one wait, then everything that is due.
 *
 * The server's WaitEventSet handles the latch and the postmaster's death, but
 * cannot remove a member.  So it contains an epoll descriptor of ours.  That
 * epoll set contains the control socket, the sockets of connections, relays
 * and lock pingers, and the pipe that reports finished threads.
 *
 * A connection that sessions use is watched with EPOLLRDHUP alone,
 * edge-triggered, so that the answers that they read do not wake the worker.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/lock_hooks.h"
#include "shared/shmem.h"
#include "worker/connect.h"
#include "worker/connection.h"
#include "worker/task_queue.h"

#define MAX_EVENTS 64
#define MAX_MESSAGES 64		/* from the control socket, per round */

static WaitEventSet *waits = NULL;
static int	epoll_fd = -1;
static PgpxTime next_run = 0;
static char *message = NULL;	/* from the control socket; has secrets */

void
pgpx_event_watch(PgpxWatchKind kind, int index, int fd, uint32 events,
				 bool add)
{
	struct epoll_event ev = {0};

	ev.events = events;
	ev.data.u64 = ((uint64) kind << 32) | (uint32) index;
	if (epoll_ctl(epoll_fd, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD,
				  fd, &ev) < 0 &&
		!(add && errno == EEXIST &&
		  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &ev) == 0))
		ereport(ERROR,
				(errcode_for_socket_access(),
				 errmsg("pgpool_ext could not add a socket to its event loop: %m")));
}

void
pgpx_event_unwatch(int fd)
{
	struct epoll_event ev = {0};

	/*
	 * remove it explicitly, because close() does not remove it while other
	 * processes hold the socket
	 */
	if (fd >= 0)
		epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &ev);
}

void
pgpx_event_loop_init(void)
{
	int			tasks;

	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	tasks = pgpx_task_init();
	if (epoll_fd < 0 || tasks < 0)
		ereport(FATAL,
				(errcode_for_socket_access(),
				 errmsg("pgpool_ext could not initialize its worker: %m")));

	message = MemoryContextAlloc(TopMemoryContext, PGPX_MESSAGE_MAX);
	pgpx_event_watch(PGPX_WATCH_CONTROL, 0,
					 pgpx_control_worker_fd(pgpx_worker_index), EPOLLIN,
					 true);
	pgpx_event_watch(PGPX_WATCH_TASK, 0, tasks, EPOLLIN, true);

	waits = pgpx_create_wait_event_set(3);
	AddWaitEventToSet(waits, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(waits, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(waits, WL_SOCKET_READABLE, epoll_fd, NULL, NULL);
}

/* SOCKET: send the socket to the session, if it still holds the lease. */
static void
serve_socket(const PgpxSocketMessage *from, int reply_fd)
{
	PgpxReply	reply = {0};
	PgpxWorkerConn *w;
	PgpxConn   *conn;
	PgpxPool   *pool;
	int			fd = -1;

	if (reply_fd < 0 || from->conn < 0 ||
		from->conn >= pgpx_shared->max_connections)
		return;
	w = &pgpx_wconns[from->conn];
	conn = &pgpx_conns[from->conn];
	pool = &pgpx_pools[from->header.pool];

	LWLockAcquire(pool->lock, LW_SHARED);
	if (conn->state == PGPX_CONN_LEASED &&
		conn->pool == from->header.pool &&
		conn->generation == from->generation &&
		pg_atomic_read_u64(&conn->lease_id) == from->lease_id &&
		w->pg != NULL && w->generation == from->generation)
		fd = pgpx_connection_socket(w);
	LWLockRelease(pool->lock);

	reply.number = from->number;
	reply.ok = fd >= 0;
	if (pgpx_fd_send(reply_fd, &reply, sizeof(reply), fd) == 0 && fd >= 0)
	{
		/*
		 * Too many descriptors are in flight for this user of the operating
		 * system.  The session would wait for the reply, so refuse the
		 * socket: the session repeats the message.
		 */
		reply.ok = false;
		reply.again = true;
		(void) pgpx_fd_send(reply_fd, &reply, sizeof(reply), -1);
	}
}

/* Read messages of sessions.  epoll reports again if some are left. */
static void
read_control(void)
{
	for (int i = 0; i < MAX_MESSAGES; i++)
	{
		int			fd;
		ssize_t		len;
		PgpxMessageHeader *header = (PgpxMessageHeader *) message;

		len = pgpx_control_receive(pgpx_worker_index, pgpx_worker_incarnation,
								   message, &fd);
		if (len == 0)
			return;
		if (header->type == PGPX_MESSAGE_CONNINFO)
		{
			pgpx_conninfo_store(message, len);
			explicit_bzero(message, len);
		}
		else if (len == sizeof(PgpxSocketMessage) &&
				 header->type == PGPX_MESSAGE_SOCKET)
			serve_socket((PgpxSocketMessage *) message, fd);
		if (fd >= 0)
			close(fd);
	}
}

/*
 * Do the work that the state of a connection requires, after its work bit was
 * set.  Idempotent, because the bit identifies only the connection and not the
 * work.
 */
static void
work_on_connection(int index)
{
	PgpxConn   *conn = &pgpx_conns[index];
	PgpxWorkerConn *w = &pgpx_wconns[index];
	PgpxPool   *pool;
	int			pool_index;
	int			state;
	bool		abandoned;
	bool		stale;			/* of an older version: it must be closed */
	int64		connect_timeout;

	/*
	 * Only this worker changes the pool of a connection that is not FREE.  The
	 * slot may have passed to a pool of another worker since the bit was set.
	 */
	pool_index = *(volatile int *) &conn->pool;
	if (pool_index < 0 || pgpx_pools[pool_index].worker != pgpx_worker_index)
		return;
	pgpx_event_pool_changed(pool_index);
	pool = &pgpx_pools[pool_index];
	LWLockAcquire(pool->lock, LW_SHARED);
	state = conn->state;
	abandoned = state == PGPX_CONN_CANCELLING &&
		conn->close_reason != PGPX_CLOSE_NONE;
	stale = conn->version != pool->version;
	connect_timeout = pool->opts.connect_timeout;
	LWLockRelease(pool->lock);

	switch (state)
	{
		case PGPX_CONN_CONNECTING:
			if (stale)
				pgpx_connect_end_outdated(w);
			else if (w->phase == PGPX_PHASE_NONE)
				pgpx_connect_open(w);
			else
				pgpx_connect_set_end(w, w->started + connect_timeout * 1000);
			break;
		case PGPX_CONN_LEASED:
		case PGPX_CONN_CANCELLING:
			if (abandoned)
			{
				if (w->phase != PGPX_PHASE_ABORT)
					pgpx_abort_begin(w);
			}
			else if (pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_REQUESTED)
				pgpx_cancel_start(w);
			else if (state == PGPX_CONN_CANCELLING && w->cancel.task == NULL)
			{
				/* the cancel ended before the connection was released */
				pgpx_cancel_ended(w, false, true);
			}
			break;
		case PGPX_CONN_RESETTING:
		case PGPX_CONN_CHECKING:
			if (w->phase != PGPX_PHASE_OPEN)
				break;
			if (stale)
				pgpx_pool_close(pool, conn, PGPX_CLOSE_STALE);
			else if (state == PGPX_CONN_RESETTING)
				pgpx_connection_reset(w);
			else
				pgpx_connection_check(w);
			break;
		case PGPX_CONN_CLOSING:
			pgpx_connection_close(w);
			break;
		default:
			break;
	}
}

/* Do the work for all connections whose work bit is set. */
static void
work_on_connections(void)
{
	int			first = pgpx_worker_index * PGPX_WORK_WORDS;
	int			words = (pgpx_conns_end() + 31) / 32;

	for (int word = 0; word < words; word++)
	{
		uint32		bits;

		if (pg_atomic_read_u32(&pgpx_work_bits[first + word]) == 0)
			continue;
		bits = pg_atomic_exchange_u32(&pgpx_work_bits[first + word], 0);
		if (bits == 0)
			continue;
		read_control();			/* the conninfo precedes the work bit */
		for (int bit = 0; bits != 0; bit++, bits >>= 1)
		{
			int			index = word * 32 + bit;

			if ((bits & 1) != 0)
				work_on_connection(index);
		}
	}
}

/* Return how long to sleep, in ms; -1: until the latch is set. */
static long
wait_timeout(void)
{
	PgpxTime	at = next_run;
	PgpxTime	now;

	if (pgpx_relay_has_more())
		return 0;
	if (at == PG_INT64_MAX)
		return -1;
	now = pgpx_now();
	return at <= now ? 0 : (long) Min((at - now) / 1000 + 1, 3600 * 1000);
}

/*
 * Handle an event.  Return false for an event of a relay, because it requires
 * no further work in this round.
 */
static bool
handle_event(const struct epoll_event *event)
{
	PgpxWorkerConn *w = &pgpx_wconns[event->data.u64 & 0xffffffff];

	switch ((PgpxWatchKind) (event->data.u64 >> 32))
	{
		case PGPX_WATCH_RELAY_REMOTE:
			pgpx_relay_ready(w, false, event->events);
			return false;
		case PGPX_WATCH_RELAY_LOCAL:
			pgpx_relay_ready(w, true, event->events);
			return false;
		case PGPX_WATCH_CONTROL:
			read_control();
			break;
		case PGPX_WATCH_TASK:
			pgpx_task_ready();
			break;
		case PGPX_WATCH_CONN:
			pgpx_event_pool_changed(w->pool);
			if (w->fd < 0)
				break;
			if (w->phase < PGPX_PHASE_OPEN)
				pgpx_connect_step(w);
			else
				pgpx_connection_ready(w, event->events);
			break;
		case PGPX_WATCH_PINGER:
			pgpx_lock_hooks->ready((int) (event->data.u64 & 0xffffffff),
								   event->events);
			break;
	}
	return true;
}

/*
 * Sleep until an event or a due time.  Return true if the latch was set, or
 * after a timeout if no relay has bytes left.  The caller reads the epoll set.
 */
static bool
sleep_until_due(void)
{
	static uint32 wait_event = 0;
	WaitEvent	occurred[3];
	bool		relaying = pgpx_relay_has_more();
	bool		all;
	int			n;

	n = WaitEventSetWait(waits, wait_timeout(), occurred, lengthof(occurred),
						 pgpx_wait_event(&wait_event, "PgpoolWorkerMain"));
	all = n == 0 && !relaying;
	for (int i = 0; i < n; i++)
		if (occurred[i].events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			all = true;
		}
	CHECK_FOR_INTERRUPTS();
	return all;
}

bool
pgpx_event_loop_run_once(void)
{
	struct epoll_event events[MAX_EVENTS];
	bool		all = sleep_until_due();	/* other work than relaying may be
											 * pending */
	int			n = epoll_wait(epoll_fd, events, MAX_EVENTS, 0);

	for (int i = 0; i < n; i++)
		all |= handle_event(&events[i]);
	if (pgpx_relay_has_more())
		pgpx_relay_resume();
	if (!all && pgpx_now() < next_run)
		return false;

	work_on_connections();
	next_run = pgpx_maintenance_run();
	return true;
}
