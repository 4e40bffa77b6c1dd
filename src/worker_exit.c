/*-------------------------------------------------------------------------
 *
 * worker_exit.c
 *	  The end of the pool worker, however it comes: every socket ends for all who
 *	  hold it, the shared state says so, and what runs is cancelled.
 *
 * A backend that runs a statement does not notice that its client has gone, and
 * the next worker would open connections beside it.  So each gets a cancel
 * request.  That is a wait, and it holds up a shutdown of the server: it has a
 * bound, common to all connections, and ends as soon as all remotes have gone.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "storage/ipc.h"
#include "utils/memutils.h"

#include "busy_poll.h"
#include "login.h"
#include "task.h"

/* How long all cancels together may take, and when they are sent again. */
#define EXIT_US (200 * 1000)
#define AGAIN_US (60 * 1000)

/* How often it is looked who has gone. */
#define LOOK_MS 10

/* What is to be known of a connection at the end. */
typedef struct Last
{
	bool		open;			/* somebody's, or a statement may be running */
	bool		running;		/* a statement may be running */
	bool		cancelled;		/* a request has come to its end */
} Last;

static Last *last = NULL;		/* [max_connections] */
static struct pollfd *polls = NULL;
static int *polled = NULL;		/* whose they are */

void
pgpx_worker_forget_connections(void)
{
	for (int p = 0; p < pgpx_shared->max_pools; p++)
	{
		PgpxPool   *pool = &pgpx_pools[p];
		PgpxWake	wake = PGPX_WAKE_INIT;

		if (pool->worker != pgpx_worker_index)
			continue;
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		pool->conninfo_epoch = 0;
		for (int i = 0; i < pgpx_shared->max_connections && !pool->damaged; i++)
		{
			PgpxConn   *conn = &pgpx_conns[i];

			if (conn->pool != p || conn->state == PGPX_CONN_FREE)
				continue;
			if (conn->state == PGPX_CONN_CONNECTING)
				pool->stats.connects_failed++;
			if (conn->state == PGPX_CONN_LEASED)
				pgpx_pool_revoke_locked(pool, conn, PGPX_REVOKE_WORKER, &wake);
			else if (conn->state != PGPX_CONN_CLOSING)
				pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
			if (conn->opened_at != 0)
				pool->stats.closed[conn->close_reason]++;
			pgpx_conn_free_locked(pool, conn);
		}

		if (pool->damaged)
			pgpx_pool_rebuild_locked(pool, &wake);

		/* who waits sees to it that there is another worker */
		pgpx_pool_wake_waiters_locked(pool, &wake);
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
	}
}

/* Does the holder of a lease say that a statement is under way? */
static bool
is_active(PgpxConn *conn)
{
	PgpxActivity activity = pgpx_conn_activity(conn);

	return activity == PGPX_ACT_ACTIVE || activity == PGPX_ACT_CANCELLING ||
		activity == PGPX_ACT_BROKEN;
}

/* Before the shared state is cleared: may a statement be running there? */
static bool
is_running(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	char		byte;

	/* its states are not to be trusted, and a cancel that hits nothing does no harm */
	if (pgpx_pools[w->pool].damaged)
		return true;
	if (w->phase != PGPX_PHASE_OPEN)
		return w->phase == PGPX_PHASE_START || w->phase == PGPX_PHASE_RESET ||
			w->phase == PGPX_PHASE_ENDING;
	switch (conn->state)
	{
		case PGPX_CONN_LEASED:
			return is_active(conn);
		case PGPX_CONN_CANCELLING:
			return true;
		case PGPX_CONN_OWED:
			/* the reset, if nothing of its answer is there */
			return recv(pgpx_connection_socket(w), &byte, 1,
						MSG_PEEK | MSG_DONTWAIT) < 0;
		default:
			return false;
	}
}

static bool
has_gone(PgpxWorkerConn *w)
{
	Last	   *l = &last[w->index];

	return pgpx_connection_has_gone(w, l->cancelled || !l->running);
}

/* A request that has come to its end is counted, if its pool is still there. */
static void
cancelled(PgpxWorkerConn *w)
{
	PgpxPool   *pool = pgpx_pool_lock(w->pool, w->pool_id);
	bool		sent = w->cancel.sent;

	last[w->index].cancelled = true;
	pgpx_canceller_drop(w);
	if (pool == NULL)
		return;
	if (sent)
		pool->stats.cancels++;
	LWLockRelease(pool->lock);
}

static void
begin_cancel(PgpxWorkerConn *w)
{
	if (pgpx_canceller_begin_last(w) == 0)
		pgpx_canceller_drop(w);
}

/* Send what has been begun; who has not gone after a while gets another one. */
static void
cancel_what_runs(void)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	until = now + EXIT_US;
	PgpxTime	again = now + AGAIN_US;

	for (; now < until; now = pgpx_now())
	{
		bool		repeat = now >= again;
		bool		left = false;
		int			n = 0;

		if (repeat)
			again = now + AGAIN_US;
		for (int i = 0; i < pgpx_shared->max_connections; i++)
		{
			PgpxWorkerConn *w = &pgpx_wconns[i];

			if (!last[i].open)
				continue;
			if (!w->cancel.active)
			{
				if (has_gone(w))
					continue;
				if (repeat)
					begin_cancel(w);
			}
			left = true;
			if (!w->cancel.active)
				continue;
			polls[n].fd = w->cancel.fd;
			polls[n].events = w->cancel.events & EPOLLIN ? POLLIN : POLLOUT;
			polls[n].revents = 0;
			polled[n++] = i;
		}
		if (!left)
			break;
		(void) poll(polls, n, LOOK_MS);
		for (int i = 0; i < n; i++)
		{
			PgpxWorkerConn *w = &pgpx_wconns[polled[i]];

			/* what a thread does is looked at */
			if ((polls[i].revents != 0 || polls[i].fd < 0) &&
				pgpx_canceller_step_last(w) == 0)
				cancelled(w);
		}
	}
}

static void
at_exit(int code, Datum arg)
{
	PgpxWorkerSlot *slot = &pgpx_shared->worker[pgpx_worker_index];

	pgpx_busy_poll_leave();
	pg_atomic_write_u32(&slot->state, PGPX_WORKER_STOPPING);
	pg_atomic_write_u64(&slot->epoch, 0);
	memset(last, 0, pgpx_shared->max_connections * sizeof(Last));
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxWorkerConn *w = &pgpx_wconns[i];

		last[i].running = w->pg != NULL && is_running(w);
		last[i].open = last[i].running ||
			(w->phase == PGPX_PHASE_OPEN &&
			 pgpx_conns[i].state == PGPX_CONN_LEASED);
	}

	PGPX_DEBUG_POINT("worker_ends");

	/* first say why, so that a holder who sees its socket end knows it */
	pgpx_worker_forget_connections();
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxWorkerConn *w = &pgpx_wconns[i];

		if (w->pg == NULL || pgpx_login_is_running(w->login) ||
			PQsocket(w->pg) < 0)
		{
			last[i].open = false;
			continue;
		}

		/* its next step would be the reactor's: it is begun anew */
		if (w->cancel.request != NULL)
			pgpx_canceller_drop(w);

		/* while the socket still knows where it leads to */
		if (last[i].running)
			begin_cancel(w);
		pgpx_connection_cut(w, w->phase == PGPX_PHASE_OPEN && !last[i].open);
	}

	/* also what holders began until their leases were taken, but then not at once */
	cancel_what_runs();
	pgpx_conninfo_wipe_all();

	pg_atomic_write_u32(&slot->pid, 0);
	pg_atomic_write_u32(&slot->ticking, 0);
	pg_atomic_write_u32(&slot->state, PGPX_WORKER_DOWN);
}

/*
 * The very end.  What was registered before comes after it, and is lost with _exit:
 * of the server's that is smgrshutdown, which closes files that a worker without a
 * database does not have.
 */
static void
at_last(int code, Datum arg)
{
	pgpx_task_exit(code);
}

void
pgpx_worker_exit_init(void)
{
	int			n = pgpx_shared->max_connections;

	/* at the end nothing may be allocated */
	last = MemoryContextAllocZero(TopMemoryContext, mul_size(n, sizeof(Last)));
	polls = MemoryContextAllocZero(TopMemoryContext,
								   mul_size(n, sizeof(struct pollfd)));
	polled = MemoryContextAllocZero(TopMemoryContext,
									mul_size(n, sizeof(int)));
	before_shmem_exit(at_exit, (Datum) 0);
	on_proc_exit(at_last, (Datum) 0);
}
