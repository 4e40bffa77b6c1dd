/*-------------------------------------------------------------------------
 *
 * abort.c
 *	  Abort of connections on which a statement may still be running.
 *
 * A backend that runs a statement does not notice that its client has gone.
 * And a backend that has not quite started the statement, or is between two
 * messages, ignores a cancel request.  Therefore:
 *	- The connection keeps its slot in the pool during the abort.
 *	- The cancel is repeated after a pause.
 *	- The answer is read and discarded, because a backend that is blocked in
 *	  sending does not process the cancel.
 *	- When the remote seems to be ready for query, Terminate is sent.  The end
 *	of
 *	  its stream then proves that the backend has exited.
 * The abort takes operation_timeout at most.
 *
 * Only the session knew where messages begin in the stream, so bytes at the end
 * that look like a ReadyForQuery are only a hint.  After the second cancel the
 * write side is closed in any case, because a ReadyForQuery that the session
 * received but did not process will not come again.  It is not closed before,
 * because a proxy whose client disconnects forgets which backend to cancel.
 *
 * If the lease was terminated, its holder may still be reading.  Then the
 * socket is shut down for all processes at once, and TCP is asked whether the
 * remote has closed.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/abort.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "shared/pool_worker.h"
#include "worker/cancel.h"
#include "worker/events.h"

/*
 * Pauses before a cancel is repeated, in ms; the last one applies from then on.
 */
static const int pauses[] = {100, 250, 1000};

/* Bytes per read, reads per event, and bytes to read between two cancels. */
#define READ_BYTES (64 * 1024)
#define READS_AT_ONCE 4
#define BYTES_A_CANCEL (16 * 1024 * 1024)

/* Length of a ReadyForQuery: type, length, transaction status. */
#define READY_LEN 6
StaticAssertDecl(sizeof(((PgpxAbort *) NULL)->tail) == READY_LEN,
				 "a ReadyForQuery must fit");

/* Ends the abort: the remote has closed, or the time is up. */
static void
end(PgpxWorkerConn *w)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (w->cancel.active)
	{
		/* count a request that was sent or may have been sent */
		bool		sent = w->cancel.sent;

		pgpx_cancel_drop(w);
		(void) pgpx_pool_cancel_done(pool, conn, sent, true);
	}
	pgpx_pool_close(pool, conn, conn->close_reason);
}

static void
wake_at(PgpxWorkerConn *w, PgpxTime at)
{
	w->deadline = Min(at, w->aborting.until);
	pgpx_event_due_at(w->deadline);
}

/*
 * Closes the write side, after Terminate if at_boundary.  Terminate is
 * allowed only at a message boundary: a session that died may have left half a
 * message.
 */
static void
send_terminate(PgpxWorkerConn *w, bool at_boundary)
{
	if (w->aborting.terminate_sent)
		return;
	w->aborting.terminate_sent = true;
	if (at_boundary)
		(void) pgpx_connection_send_terminate(w);
	shutdown(pgpx_connection_socket(w), SHUT_WR);
}

/* Records the last bytes of the stream. */
static void
keep_tail(PgpxAbort *aborting, const char *data, size_t len)
{
	size_t		n = Min(len, READY_LEN);

	memmove(aborting->tail, aborting->tail + n, READY_LEN - n);
	memcpy(aborting->tail + READY_LEN - n, data + len - n, n);
}

static bool
is_at_ready(const PgpxAbort *aborting)
{
	return memcmp(aborting->tail, "Z\0\0\0\5", 5) == 0 &&
		strchr("ITE", aborting->tail[5]) != NULL;
}

/*
 * Watches the socket.  A socket that is shut down reports no end of stream,
 * so each change of its state is a reason to ask TCP.  The state may also
 * change because the remote sends the rest of its answer.
 */
static void
watch(PgpxWorkerConn *w)
{
	pgpx_connection_watch(w, w->aborting.cut ? EPOLLRDHUP | EPOLLET : EPOLLIN);
}

static bool
is_over(PgpxWorkerConn *w)
{
	return w->aborting.cut && !w->cancel.active &&
		pgpx_connection_is_gone(w, w->aborting.cancels > 1);
}

/* Continues after a cancel request has ended, or without one. */
static void
cancelled(PgpxWorkerConn *w, int state)
{
	PgpxAbort  *aborting = &w->aborting;
	int			pause = pauses[Min(aborting->cancels, lengthof(pauses) - 1)];

	if (++aborting->cancels > 1)
		send_terminate(w, false);
	if (is_over(w))
	{
		end(w);
		return;
	}
	aborting->budget = BYTES_A_CANCEL;
	watch(w);
	wake_at(w, pgpx_now() + pause * 1000);
}

void
pgpx_abort_begin(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (w->pg == NULL || PQsocket(w->pg) < 0)
	{
		end(w);
		return;
	}
	w->phase = PGPX_PHASE_ABORT;
	w->listening = false;
	memset(&w->aborting, 0, sizeof(w->aborting));
	w->aborting.budget = BYTES_A_CANCEL;
	w->aborting.until = pgpx_now() +
		pgpx_pools[w->pool].opts.operation_timeout * 1000;
	wake_at(w, w->aborting.until);

	/* the request needs the peer's address, so it must precede the cut */
	if (w->cancel.active ||
		pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_REQUESTED)
		pgpx_cancel_start(w, cancelled);
	if (conn->close_reason == PGPX_CLOSE_TERMINATED)
	{
		w->aborting.cut = w->aborting.terminate_sent = true;
		pgpx_connection_cut(w, false);
	}
	watch(w);
	if (!w->cancel.active && w->aborting.cancels == 0)
		cancelled(w, PGPX_CONN_CANCELLING); /* ended earlier, or not needed */
}

void
pgpx_abort_ready(PgpxWorkerConn *w, uint32 events)
{
	static char buffer[READ_BYTES];
	PgpxAbort  *aborting = &w->aborting;

	if (aborting->cut)
	{
		if (is_over(w))
			end(w);
		return;
	}
	for (int i = 0; i < READS_AT_ONCE && aborting->budget > 0; i++)
	{
		ssize_t		n = recv(pgpx_connection_socket(w), buffer,
							 sizeof(buffer), MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n <= 0)
		{
			end(w);
			return;
		}
		keep_tail(aborting, buffer, n);
		aborting->budget -= Min(aborting->budget, (size_t) n);
	}

	if (aborting->budget == 0)
	{
		/* the remote keeps sending: stop reading until the next cancel */
		if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			end(w);
		else
			pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
	}
	else if (is_at_ready(aborting))
		send_terminate(w, true);
}

void
pgpx_abort_abandon(PgpxWorkerConn *w)
{
	w->deadline = 0;
	end(w);
}

void
pgpx_abort_pause_over(PgpxWorkerConn *w)
{
	if (pgpx_now() >= w->aborting.until || is_over(w))
	{
		pgpx_abort_abandon(w);
		return;
	}
	wake_at(w, w->aborting.until);
	pgpx_cancel_start(w, cancelled);
}
