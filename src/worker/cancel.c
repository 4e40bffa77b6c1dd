/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  Nonblocking cancel requests.
 *
 * A late cancel request can cancel a later statement, even of another session
 * that has leased the connection since.  So PgpxConn.cancel marks the
 * connection from the request until the remote has closed the cancel
 * connection, which it does after it has sent the signal.  No process may send
 * a statement on the connection before that.
 *
 * libpq 17 and later cancels without blocking (PQcancelStart).  But with TLS
 * the remote determines how much it has to compute, so each step runs in a
 * thread, as in a login (login.c).  While the worker exits, one thread runs a
 * whole request, and may be abandoned.
 *
 * Before libpq 17 the worker sends the request itself: 16 bytes to the same
 * address (https://www.postgresql.org/docs/current/protocol-flow.html,
 * "Canceling Requests in Progress").  pgpx_cancel_read_key reads the key from
 * libpq's memory.
 *
 * The libpq that is loaded at run time decides between the two, not the one
 * that the extension was built with.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connection.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "port/pg_bswap.h"
#include "storage/fd.h"

#include "shared/pool_worker.h"
#include "worker/events.h"

#define CANCEL_REQUEST_CODE ((1234 << 16) | 5678)

#ifndef LIBPQ_HAS_ASYNC_CANCEL
typedef struct pg_cancel_conn PGcancelConn;
extern PGcancelConn *PQcancelCreate(PGconn *conn);
extern int	PQcancelStart(PGcancelConn *cancelConn);
extern PostgresPollingStatusType PQcancelPoll(PGcancelConn *cancelConn);
extern ConnStatusType PQcancelStatus(const PGcancelConn *cancelConn);
extern int	PQcancelSocket(const PGcancelConn *cancelConn);
extern void PQcancelFinish(PGcancelConn *cancelConn);
#endif
#pragma weak PQcancelCreate
#pragma weak PQcancelStart
#pragma weak PQcancelPoll
#pragma weak PQcancelStatus
#pragma weak PQcancelSocket
#pragma weak PQcancelFinish

static bool
can_libpq_cancel(void)
{
	return PQlibVersion() >= 170000 && PQcancelCreate != NULL;
}

static PostgresPollingStatusType
poll_cancel(void *request)
{
	return PQcancelPoll(request);
}

static int
socket_of_cancel(const void *request)
{
	return PQcancelSocket(request);
}

static void
finish_cancel(void *request)
{
	PQcancelFinish(request);
}

static const PgpxLoginKind cancel_kind =
	{poll_cancel, socket_of_cancel, finish_cancel};

/*
 * A request sent while the worker exits.  The thread owns it; it is never
 * freed.
 */
struct PgpxLastCancel
{
	PgpxTask	task;
	PGcancelConn *request;
	pg_atomic_uint32 sent;
	pg_atomic_uint32 over;
};

/*
 * The beginning of the struct that PQgetCancel returns.
 *
 * Up to libpq 16 that struct contains the key.  It has begun in this way
 * since 2003 (libpq-int.h, struct pg_cancel).  The PID beside the key is
 * known, so the layout can be verified.  PQtrace would show the key, too, but
 * a hostile remote can make it read beyond its buffer: see login.c.
 */
typedef struct CancelBegin
{
	struct
	{
		struct sockaddr_storage addr;
		socklen_t	len;
	}			to;				/* padded */
	int			pid;
	int			key;
} CancelBegin;

void
pgpx_cancel_read_key(PgpxWorkerConn *w)
{
	CancelBegin begin;
	PGcancel   *request;

	if (can_libpq_cancel())
		return;
	w->have_key = false;
	request = PQgetCancel(w->pg);
	if (request == NULL)
		return;
	memcpy(&begin, request, sizeof(begin));
	if (begin.pid == PQbackendPID(w->pg) &&
		begin.to.len <= sizeof(begin.to.addr))
	{
		w->cancel_pid = (uint32) begin.pid;
		w->cancel_key = (uint32) begin.key;
		w->cancel_to = begin.to.addr;
		w->cancel_to_len = begin.to.len;
		w->have_key = true;
	}
	explicit_bzero(&begin, sizeof(begin));
	PQfreeCancel(request);
}

/* End a request: the cancel connection has closed, or could not be opened. */
static void
end_request(PgpxWorkerConn *w, bool ok)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxPool   *pool = &pgpx_pools[w->pool];
	bool		sent = w->cancel.sent;
	PgpxCancelEnded ended = w->cancel.ended;

	pgpx_cancel_drop(w);
	ended(w, pgpx_pool_cancel_done(pool, conn, sent, ok));
}

void
pgpx_cancel_drop(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;

	if (!cancel->active)
		return;
	if (cancel->fd >= 0)
		pgpx_event_unwatch(cancel->fd);
	if (!pgpx_login_end(cancel->login))
	{
		if (cancel->request != NULL)
			PQcancelFinish(cancel->request);
		else if (cancel->fd >= 0)
			close(cancel->fd);
		ReleaseExternalFD();
	}
	memset(cancel, 0, sizeof(*cancel));
	cancel->fd = -1;
}

/*
 * Before libpq 17: connect a socket of our own to the address of the
 * connection.  getpeername() would return the path of a Unix-domain socket as
 * the remote server sees it.
 */
static bool
connect_to_peer(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;

	if (!w->have_key)
		return false;
	cancel->fd = socket(w->cancel_to.ss_family,
						SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (cancel->fd < 0)
		return false;

	/*
	 * EAGAIN is a failure: a Unix-domain socket whose peer's backlog is full
	 * has not started to connect, and polls as writable at once and for ever.
	 */
	if (connect(cancel->fd, (struct sockaddr *) &w->cancel_to,
				w->cancel_to_len) < 0 &&
		errno != EINPROGRESS && errno != EINTR)
		return false;
	return true;
}

/*
 * Start a request.  Return the events to wait for; 0 if it could not start.
 */
static uint32
open_request(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	bool		ok;

	if (w->pg == NULL || !AcquireExternalFD())
		return 0;
	memset(cancel, 0, sizeof(*cancel));
	cancel->active = true;
	cancel->fd = -1;
	if (can_libpq_cancel())
	{
		cancel->request = PQcancelCreate(w->pg);
		ok = cancel->request != NULL && PQcancelStart(cancel->request) == 1;
		if (ok)
			cancel->fd = PQcancelSocket(cancel->request);
	}
	else
		ok = connect_to_peer(w);
	cancel->events = ok ? EPOLLOUT : 0;
	return cancel->events;
}

/*
 * Before libpq 17: send the request, then wait for the remote to close.  Return
 * the events to wait for; 0 when the request is finished, and set *ok.
 */
static uint32
step_request(PgpxWorkerConn *w, bool *ok)
{
	PgpxCancel *cancel = &w->cancel;
	char		byte;
	ssize_t		n;

	if (!cancel->sent)
	{
		uint32		packet[4];

		packet[0] = pg_hton32(sizeof(packet));
		packet[1] = pg_hton32(CANCEL_REQUEST_CODE);
		packet[2] = pg_hton32(w->cancel_pid);
		packet[3] = pg_hton32(w->cancel_key);
		n = send(cancel->fd, packet, sizeof(packet),
				 MSG_DONTWAIT | MSG_NOSIGNAL);
		explicit_bzero(packet, sizeof(packet));
		if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN))
			return EPOLLOUT;
		*ok = cancel->sent = n == sizeof(packet);
		return *ok ? EPOLLIN : 0;
	}

	/* there is no answer: the remote closes when it has sent the signal */
	n = recv(cancel->fd, &byte, 1, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return EPOLLIN;
	/* any other error means that the request may be lost */
	*ok = n >= 0 || errno == ECONNRESET;
	return 0;
}

/* From libpq 17: a step of the request has ended. */
static void
handle_cancel_step(void *owner, PostgresPollingStatusType status,
				   int sqlstate, const char *failure)
{
	PgpxWorkerConn *w = owner;
	PgpxCancel *cancel = &w->cancel;
	bool		reset = errno == ECONNRESET;
	bool		failed = failure != NULL || status == PGRES_POLLING_FAILED;

	if (PQcancelStatus(cancel->request) == CONNECTION_AWAITING_RESPONSE)
		cancel->sent = true;

	/* a remote that resets the connection has received the request */
	if (failed || status == PGRES_POLLING_OK)
	{
		end_request(w, !failed || (failure == NULL && cancel->sent && reset));
		return;
	}
	cancel->events = status == PGRES_POLLING_READING ? EPOLLIN : EPOLLOUT;

	/* the step may have replaced the socket */
	cancel->fd = PQcancelSocket(cancel->request);
	pgpx_event_watch(PGPX_WATCH_CANCEL, w->index, cancel->fd,
					 cancel->events, true);
}

void
pgpx_cancel_start(PgpxWorkerConn *w, PgpxCancelEnded ended)
{
	PgpxCancel *cancel = &w->cancel;
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxLoginKey key = {w->pool, w->pool_id, w->version};
	uint32		events;

	if (cancel->active)
	{
		cancel->ended = ended;
		return;
	}
	pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_SENT);
	events = open_request(w);
	cancel->ended = ended;
	if (events != 0 && cancel->request != NULL)
		cancel->login = pgpx_login_begin_kind(&cancel_kind, key,
											  cancel->request,
											  handle_cancel_step, w);
	if (events == 0 || (cancel->request != NULL && cancel->login == NULL))
	{
		end_request(w, false);
		return;
	}
	cancel->deadline = pgpx_now() +
		pgpx_pools[w->pool].opts.operation_timeout * 1000;
	pgpx_event_due_at(cancel->deadline);
	pgpx_event_watch(PGPX_WATCH_CANCEL, w->index, cancel->fd, events, true);
}

void
pgpx_cancel_ready(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	uint32		before = cancel->events;
	uint32		events;
	bool		ok = false;

	if (!cancel->active)
		return;
	if (cancel->request != NULL)
	{
		/* an event that was pending when a step started */
		if (cancel->fd < 0)
			return;
		pgpx_event_unwatch(cancel->fd);
		cancel->fd = -1;
		pgpx_login_step(cancel->login);
		return;
	}
	events = step_request(w, &ok);
	if (events == 0)
		end_request(w, ok);
	else if (events != before)
		pgpx_event_watch(PGPX_WATCH_CANCEL, w->index, cancel->fd, events,
						 false);
}

void
pgpx_cancel_deadline_passed(PgpxWorkerConn *w)
{
	/* a running step may have sent the request: assume that it has */
	if (w->cancel.login != NULL && pgpx_login_is_running(w->cancel.login))
		w->cancel.sent = true;
	end_request(w, false);
}

/* Called in the thread. */
static void
run_last(PgpxTask *task)
{
	PgpxLastCancel *last = (PgpxLastCancel *) task;
	struct pollfd ready = {.events = POLLOUT};
	PostgresPollingStatusType status;

	do
	{
		ready.fd = PQcancelSocket(last->request);
		(void) poll(&ready, 1, -1);
		status = PQcancelPoll(last->request);
		if (PQcancelStatus(last->request) == CONNECTION_AWAITING_RESPONSE)
			pg_atomic_write_u32(&last->sent, 1);
		ready.events = status == PGRES_POLLING_READING ? POLLIN : POLLOUT;
	} while (status != PGRES_POLLING_OK && status != PGRES_POLLING_FAILED);
	PQcancelFinish(last->request);
	pg_write_barrier();
	pg_atomic_write_u32(&last->over, 1);
}

/* Never called: at exit the loop no longer collects finished threads. */
static void
ended_last(PgpxTask *task)
{
}

uint32
pgpx_cancel_begin_last(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	PgpxLastCancel *last;

	if (cancel->active)
		return cancel->events;
	if (open_request(w) == 0 || cancel->request == NULL)
		return cancel->events;
	last = calloc(1, sizeof(*last));
	if (last == NULL)
		return 0;
	last->task.run = run_last;
	last->task.ended = ended_last;
	last->request = cancel->request;
	pg_atomic_init_u32(&last->sent, 0);
	pg_atomic_init_u32(&last->over, 0);
	if (!pgpx_task_start(&last->task))
	{
		free(last);
		return 0;
	}
	cancel->request = NULL;
	cancel->fd = -1;
	cancel->last = last;
	return cancel->events;
}

uint32
pgpx_cancel_step_last(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	bool		over;
	bool		ok;

	if (cancel->last == NULL)
		return cancel->events = step_request(w, &ok);
	over = pg_atomic_read_u32(&cancel->last->over) != 0;
	pg_read_barrier();
	cancel->sent = pg_atomic_read_u32(&cancel->last->sent) != 0;
	return over ? 0 : cancel->events;
}
