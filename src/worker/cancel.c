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
 * A thread sends the request and waits for the remote (task_queue.c): PQcancel
 * has no deadline, and with TLS the remote determines how much PQcancelPoll has
 * to compute.  A request that has not ended at its deadline is abandoned.
 *
 * PQcancelPoll exists from libpq 17 on.  The libpq that is loaded at run time
 * decides, not the one that the extension was built with.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connection.h"

#include <errno.h>
#include <poll.h>

#include "storage/fd.h"

#include "shared/pool_worker.h"
#include "worker/events.h"

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

typedef struct CancelTask
{
	PgpxTask	task;
	PgpxWorkerConn *owner;
	PGcancel   *cancel;			/* before libpq 17 */
	PGcancelConn *cancel_conn;	/* else */
	int			timeout_ms;		/* of each step of cancel_conn */
	bool		sent;
	bool		ok;				/* the remote has closed */
} CancelTask;

static bool
create_request(CancelTask *request, PGconn *pg)
{
	if (PQcancelCreate == NULL)
		request->cancel = PQgetCancel(pg);
	else
		request->cancel_conn = PQcancelCreate(pg);
	return request->cancel != NULL || request->cancel_conn != NULL;
}

static void
free_request(CancelTask *request)
{
	if (request->cancel != NULL)
		PQfreeCancel(request->cancel);
	if (request->cancel_conn != NULL)
		PQcancelFinish(request->cancel_conn);
	free(request);
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
		struct pollfd ready = {
			.fd = PQcancelSocket(conn),
			.events = status == PGRES_POLLING_READING ? POLLIN : POLLOUT,
		};

		if (poll(&ready, 1, request->timeout_ms) <= 0)
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

/* Called in the thread. */
static void
run_request(PgpxTask *task)
{
	CancelTask *request = (CancelTask *) task;
	char		error[256];

	if (request->cancel_conn != NULL)
		poll_request(request);
	else
		request->ok = PQcancel(request->cancel, error, sizeof(error)) == 1;

	/* if PQcancel fails it has not sent the request */
	request->sent |= request->ok;
}

/* End the request of a connection, and report the result. */
static void
end_request(PgpxWorkerConn *w, bool sent, bool ok)
{
	PgpxCancelEnded ended = w->cancel.ended;

	memset(&w->cancel, 0, sizeof(w->cancel));
	ended(w, sent, ok);
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
create_task(PgpxWorkerConn *w, int64 timeout_ms)
{
	CancelTask *request;

	if (w->pg == NULL || !AcquireExternalFD())
		return NULL;
	request = calloc(1, sizeof(*request));
	if (request == NULL || !create_request(request, w->pg))
	{
		free(request);
		ReleaseExternalFD();
		return NULL;
	}
	request->task.run = run_request;
	request->task.ended = finish_request;
	request->owner = w;
	request->timeout_ms = (int) Min(timeout_ms, PG_INT32_MAX);
	return &request->task;
}

void
pgpx_cancel_send(PgpxWorkerConn *w, PgpxCancelEnded ended)
{
	PgpxConninfoKey key = {w->pool, w->pool_id, w->version};
	int64		timeout_ms = pgpx_pools[w->pool].opts.operation_timeout;

	w->cancel.ended = ended;
	if (w->cancel.task != NULL)
		return;
	w->cancel.task = create_task(w, timeout_ms);
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
pgpx_cancel_start(PgpxWorkerConn *w, PgpxCancelEnded ended)
{
	pg_atomic_write_u32(&pgpx_conns[w->index].cancel, PGPX_CANCEL_SENT);
	pgpx_cancel_send(w, ended);
}

int
pgpx_cancel_finish(PgpxWorkerConn *w, bool sent, bool ok)
{
	return pgpx_pool_cancel_done(&pgpx_pools[w->pool], &pgpx_conns[w->index],
								 sent, ok);
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
