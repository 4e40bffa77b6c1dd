/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  Cancel requests.
 *
 * A late cancel request can cancel a later statement, even of another session
 * that has leased the connection since.  So PgpxConn.cancel marks the
 * connection from the request until the remote has closed the cancel
 * connection, which it does after it has sent the signal.  No process may send
 * a statement on the connection before that.
 *
 * A thread sends the request and waits for the remote (task_queue.c), because
 * with TLS the remote determines how much PQcancelPoll has to compute.  A
 * request that has not ended at its deadline is abandoned.
 *
 * PQcancelPoll exists from libpq 17 on.  The libpq that is loaded at run time
 * decides, not the one that the extension was built with.  PQcancel cannot be
 * abandoned: it waits for as long as the remote keeps the connection open.  So
 * before libpq 17 the thread itself sends the request: 16 bytes to the same
 * address (https://www.postgresql.org/docs/current/protocol-flow.html,
 * "Canceling Requests in Progress").
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connection.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "port/pg_bswap.h"
#include "storage/fd.h"

#include "shared/pool_worker.h"
#include "worker/worker.h"

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

#define CANCEL_REQUEST_CODE ((1234 << 16) | 5678)

/* How often, in ms, a thread that waits for the remote checks for the end. */
#define CHECK_ABANDONED_MS 100

/*
 * The beginning of the struct that PQgetCancel returns up to libpq 16.  It has
 * begun in this way since 2003 (libpq-int.h, struct pg_cancel).  The PID beside
 * the key is known, so the layout can be verified.
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

typedef struct CancelTask
{
	PgpxTask	task;
	PgpxWorkerConn *owner;
	CancelBegin begin;			/* before libpq 17 */
	PGcancelConn *cancel_conn;	/* else */
	bool		sent;
	bool		ok;				/* the remote has closed */
} CancelTask;

PgpxCancelEnded pgpx_cancel_ended = NULL;

static bool
create_request(CancelTask *request, PGconn *pg)
{
	CancelBegin *begin = &request->begin;
	PGcancel   *cancel;

	if (PQcancelCreate != NULL)
	{
		request->cancel_conn = PQcancelCreate(pg);
		return request->cancel_conn != NULL;
	}
	cancel = PQgetCancel(pg);
	if (cancel == NULL)
		return false;
	memcpy(begin, cancel, sizeof(*begin));
	PQfreeCancel(cancel);
	return begin->pid == PQbackendPID(pg) &&
		begin->to.len <= sizeof(begin->to.addr);
}

static void
free_request(CancelTask *request)
{
	if (request->cancel_conn != NULL)
		PQcancelFinish(request->cancel_conn);
	explicit_bzero(&request->begin, sizeof(request->begin));
	free(request);
}

/* Wait for the socket.  Return false if the request was abandoned. */
static bool
wait_for_socket(CancelTask *request, int fd, short events)
{
	struct pollfd ready = {.fd = fd, .events = events};

	while (!pgpx_task_is_abandoned(&request->task))
	{
		int			n = poll(&ready, 1, CHECK_ABANDONED_MS);

		if (n > 0)
			return true;
		if (n < 0 && errno != EINTR)
			return false;
	}
	return false;
}

static void
poll_request(CancelTask *request)
{
	PGcancelConn *conn = request->cancel_conn;
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;

	if (PQcancelStart(conn) != 1)
		return;
	while (status == PGRES_POLLING_WRITING || status == PGRES_POLLING_READING)
	{
		short		events = status == PGRES_POLLING_READING ? POLLIN : POLLOUT;

		if (!wait_for_socket(request, PQcancelSocket(conn), events))
			return;
		errno = 0;
		status = PQcancelPoll(conn);
		if (PQcancelStatus(conn) == CONNECTION_AWAITING_RESPONSE)
			request->sent = true;
	}

	/* a remote that resets the connection has received the request */
	request->ok = status == PGRES_POLLING_OK ||
		(request->sent && errno == ECONNRESET);
}

/* Send the request through a nonblocking socket. */
static void
send_packet(CancelTask *request, int fd)
{
	const CancelBegin *begin = &request->begin;
	uint32		packet[4] = {
		pg_hton32(sizeof(packet)),
		pg_hton32(CANCEL_REQUEST_CODE),
		pg_hton32((uint32) begin->pid),
		pg_hton32((uint32) begin->key),
	};
	char		byte;

	/*
	 * EAGAIN is a failure: a Unix-domain socket whose peer's backlog is full
	 * has not started to connect
	 */
	if (connect(fd, (const struct sockaddr *) &begin->to.addr,
				begin->to.len) < 0 &&
		errno != EINPROGRESS)
		return;
	if (!wait_for_socket(request, fd, POLLOUT))
		return;
	request->sent = send(fd, packet, sizeof(packet), MSG_NOSIGNAL) ==
		sizeof(packet);
	explicit_bzero(packet, sizeof(packet));

	/* there is no answer: the remote closes when it has sent the signal */
	request->ok = request->sent && wait_for_socket(request, fd, POLLIN) &&
		(recv(fd, &byte, 1, 0) >= 0 || errno == ECONNRESET);
}

/* Called in the thread. */
static void
run_request(PgpxTask *task)
{
	CancelTask *request = (CancelTask *) task;
	int			fd;

	if (request->cancel_conn != NULL)
	{
		poll_request(request);
		return;
	}
	fd = socket(request->begin.to.addr.ss_family,
				SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	send_packet(request, fd);
	close(fd);
}

/* End the request of a connection, and report the result. */
static void
end_request(PgpxWorkerConn *w, bool sent, bool ok)
{
	memset(&w->cancel, 0, sizeof(w->cancel));
	pgpx_cancel_ended(w, sent, ok);
}

static void
finish_request(PgpxTask *task, PgpxTaskEnd end)
{
	CancelTask *request = (CancelTask *) task;
	PgpxWorkerConn *w = request->owner;
	bool		sent = request->sent;
	bool		ok = request->ok;

	free_request(request);
	ReleaseExternalFD();
	if (end != PGPX_TASK_ABANDONED)
		end_request(w, sent, ok);
}

/* Create the task of a request; NULL if it cannot be sent. */
static PgpxTask *
create_task(PgpxWorkerConn *w)
{
	CancelTask *request;

	if (w->pg == NULL || !AcquireExternalFD())
		return NULL;
	request = calloc(1, sizeof(*request));
	if (request == NULL || !create_request(request, w->pg))
	{
		if (request != NULL)
			free_request(request);
		ReleaseExternalFD();
		return NULL;
	}
	request->task.run = run_request;
	request->task.ended = finish_request;
	request->owner = w;
	return &request->task;
}

void
pgpx_cancel_send(PgpxWorkerConn *w)
{
	PgpxConninfoKey key = pgpx_connection_key(w);
	int64		timeout_ms = pgpx_pools[w->pool].opts.operation_timeout;

	if (w->cancel.task != NULL)
		return;
	w->cancel.task = create_task(w);
	if (w->cancel.task == NULL)
	{
		end_request(w, false, false);
		return;
	}
	w->cancel.deadline = pgpx_now() + timeout_ms * 1000;
	pgpx_event_due_at(w->cancel.deadline);
	pgpx_task_submit(w->cancel.task, PGPX_TASK_CANCEL, &key);
}

void
pgpx_cancel_start(PgpxWorkerConn *w)
{
	pg_atomic_write_u32(&pgpx_conns[w->index].cancel, PGPX_CANCEL_SENT);
	pgpx_cancel_send(w);
}

void
pgpx_cancel_drop(PgpxWorkerConn *w)
{
	PgpxTask   *task = w->cancel.task;

	memset(&w->cancel, 0, sizeof(w->cancel));
	if (task != NULL)
		pgpx_task_abandon(task);
}

void
pgpx_cancel_deadline_passed(PgpxWorkerConn *w)
{
	PgpxTask   *task = w->cancel.task;

	/* a thread may have sent the request: assume that it has */
	bool		sent = pgpx_task_is_running(task);

	pgpx_task_abandon(task);
	end_request(w, sent, false);
}
