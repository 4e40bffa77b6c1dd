/*-------------------------------------------------------------------------
 *
 * canceller.c
 *	  Cancel requests, without waiting.
 *
 * A cancel may hit the next statement of whoever has the connection by then.
 * So the connection carries a mark (PgpxConn.cancel) from the request until the
 * remote has closed the cancel connection, which it does after the signal has
 * been sent, and nobody may send a statement on it before.
 *
 * libpq cancels without blocking from 17 on (PQcancelStart).  Before, we send
 * the request ourselves: 16 bytes to the same address
 * (https://www.postgresql.org/docs/current/protocol-flow.html, "Canceling
 * Requests in Progress").  The key is known to old libpq alone, see find_key.
 * Which way to go is decided by the libpq that runs, not by the
 * one we were built with.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "port/pg_bswap.h"
#include "storage/fd.h"

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
libpq_cancels(void)
{
	return PQlibVersion() >= 170000 && PQcancelCreate != NULL;
}

/*
 * Up to libpq 16 the key is in what PQgetCancel returns, and that has begun in this
 * way since 2003 (libpq-int.h, struct pg_cancel).  The other number in it is known,
 * so it can be seen that it does.  (PQtrace shows the key, too, but is led astray by
 * what a hostile remote says: libpq_bounds.c.)
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
pgpx_canceller_find_key(PgpxWorkerConn *w)
{
	CancelBegin begin;
	PGcancel   *request;

	if (libpq_cancels())
		return;
	request = PQgetCancel(w->pg);
	if (request == NULL)
		return;
	memcpy(&begin, request, sizeof(begin));
	if (begin.pid == PQbackendPID(w->pg) &&
		begin.to.len <= sizeof(begin.to.addr))
	{
		w->cancel_pid = (uint32) begin.pid;
		w->cancel_key = (uint32) begin.key;
		w->have_key = true;
	}
	explicit_bzero(&begin, sizeof(begin));
	PQfreeCancel(request);
}

/* The cancel connection has closed, or there will be none. */
static void
finish(PgpxWorkerConn *w, bool ok)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxPool   *pool = &pgpx_pools[w->pool];
	bool		sent = w->cancel.sent;
	int			state;

	pgpx_canceller_drop(w);
	state = pgpx_pool_cancel_done(pool, conn, sent, ok);
	if (w->phase == PGPX_PHASE_ENDING)
		pgpx_ending_cancelled(w);
	else if (state == PGPX_CONN_RESETTING)
		pgpx_connection_reset(w, true, 0);
}

void
pgpx_canceller_drop(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;

	if (!cancel->active)
		return;
	if (cancel->fd >= 0)
		pgpx_reactor_forget(cancel->fd);
	if (cancel->request != NULL)
		PQcancelFinish(cancel->request);
	else if (cancel->fd >= 0)
		close(cancel->fd);
	ReleaseExternalFD();
	memset(cancel, 0, sizeof(*cancel));
	cancel->fd = -1;
}

/* Old libpq: a socket of our own to where the connection goes. */
static bool
dial(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	struct sockaddr_storage addr = {0};
	socklen_t	len = sizeof(addr);

	if (!w->have_key ||
		getpeername(PQsocket(w->pg), (struct sockaddr *) &addr, &len) < 0)
		return false;
	cancel->fd = socket(addr.ss_family,
						SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (cancel->fd < 0)
		return false;

	/*
	 * EAGAIN is a failure: a Unix socket whose backlog is full has not begun to
	 * connect, and says at once and for ever that it can be written to.
	 */
	if (connect(cancel->fd, (struct sockaddr *) &addr, len) < 0 &&
		errno != EINPROGRESS && errno != EINTR)
		return false;
	return true;
}

uint32
pgpx_canceller_open(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	bool		ok;

	if (w->pg == NULL || !AcquireExternalFD())
		return 0;
	memset(cancel, 0, sizeof(*cancel));
	cancel->active = true;
	cancel->fd = -1;
	if (libpq_cancels())
	{
		cancel->request = PQcancelCreate(w->pg);
		ok = cancel->request != NULL && PQcancelStart(cancel->request) == 1;
		if (ok)
			cancel->fd = PQcancelSocket(cancel->request);
	}
	else
		ok = dial(w);
	cancel->events = ok ? EPOLLOUT : 0;
	return cancel->events;
}

/* Our own: send the request, then wait for the remote to close. */
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

	/* nothing is ever answered: the remote closes when it has sent the signal */
	n = recv(cancel->fd, &byte, 1, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return EPOLLIN;
	*ok = n >= 0 || errno == ECONNRESET;	/* else the network has lost it */
	return 0;
}

uint32
pgpx_canceller_step(PgpxWorkerConn *w, bool *ok)
{
	PgpxCancel *cancel = &w->cancel;
	PostgresPollingStatusType status;
	bool		reset;

	if (cancel->request == NULL)
	{
		cancel->events = step_request(w, ok);
		return cancel->events;
	}

	/* libpq 17 and later: its socket may change from step to step */
	errno = 0;
	status = PQcancelPoll(cancel->request);
	reset = errno == ECONNRESET;
	cancel->fd = PQcancelSocket(cancel->request);
	if (PQcancelStatus(cancel->request) == CONNECTION_AWAITING_RESPONSE &&
		!cancel->sent)
	{
		/* from here on it reads; it has begun with a PGconn since 17 (fe-cancel.c) */
		PGconn	   *within = (PGconn *) cancel->request;

		cancel->sent = true;
		if (PQsocket(within) == cancel->fd)
			(void) pgpx_tls_claim(within);
	}

	/* as with our own: who resets it has taken the request */
	*ok = status == PGRES_POLLING_OK ||
		(status == PGRES_POLLING_FAILED && cancel->sent && reset);
	cancel->events = status == PGRES_POLLING_READING ? EPOLLIN :
		status == PGRES_POLLING_WRITING ? EPOLLOUT : 0;
	return cancel->events;
}

void
pgpx_canceller_start(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	PgpxConn   *conn = &pgpx_conns[w->index];
	uint32		events;

	if (cancel->active)
		return;
	pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_SENT);
	events = pgpx_canceller_open(w);
	if (events == 0)
	{
		finish(w, false);
		return;
	}
	cancel->deadline = pgpx_now() +
		pgpx_pools[w->pool].opts.operation_timeout * 1000;
	pgpx_janitor_due(cancel->deadline);
	pgpx_reactor_watch(PGPX_WATCH_CANCEL, w->index, cancel->fd, events, true);
}

void
pgpx_canceller_ready(PgpxWorkerConn *w)
{
	PgpxCancel *cancel = &w->cancel;
	uint32		before = cancel->events;
	uint32		events;
	bool		ok = false;

	if (!cancel->active)
		return;
	if (cancel->request != NULL)
		pgpx_reactor_forget(cancel->fd);
	events = pgpx_canceller_step(w, &ok);
	if (events == 0)
		finish(w, ok);
	else if (cancel->request != NULL || events != before)
		pgpx_reactor_watch(PGPX_WATCH_CANCEL, w->index, cancel->fd, events,
						   cancel->request != NULL);
}

void
pgpx_canceller_late(PgpxWorkerConn *w)
{
	finish(w, false);
}
