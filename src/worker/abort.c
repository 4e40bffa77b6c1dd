/*-------------------------------------------------------------------------
 *
 * abort.c
 *	  The end of a connection on which something may still run.
 *
 * A backend that runs a statement does not notice that its client has gone, and
 * one that has not quite begun it, or is between two messages, forgets a cancel
 * request.  So the connection keeps its place in the pool, the cancel is sent
 * again after a pause, and the remote is listened to: what it says is thrown
 * away, since one that cannot get rid of its answer does not see the cancel.
 * Once it is at rest it is told goodbye, and its end of the stream is its proof
 * that it has gone.  All within operation_timeout.
 *
 * Where in its answer the remote is, only the lessee knew; that it ends in what
 * looks like a ReadyForQuery is a hint and no more.  After a second cancel the
 * remote is told that nothing will come any more, whatever it has said: what a
 * session took in and did not read will not be said again.  That is not done at
 * once, for a proxy's sake, which forgets whom to cancel when its client goes.
 *
 * A lease that was taken away has a holder who may be reading: that socket is shut
 * down for all at once, and TCP is asked whether the remote has gone.
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

/* The pauses before a cancel is sent again, in ms; the last one from then on. */
static const int pauses[] = {100, 250, 1000};

/* What is read at once, and between two cancels. */
#define READ_BYTES (64 * 1024)
#define READS_AT_ONCE 4
#define BYTES_A_CANCEL (16 * 1024 * 1024)

/* Type, length and state of a transaction. */
#define READY_LEN 6
StaticAssertDecl(sizeof(((PgpxAbort *) NULL)->tail) == READY_LEN,
				 "a ReadyForQuery must fit");

/* It has gone, or the time is up. */
static void
end(PgpxWorkerConn *w)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (w->cancel.active)
	{
		/* it was sent all the same, or may have been */
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
 * Nothing will come any more.  A Terminate may be sent only where a message may
 * begin: a lessee that died may have left half of one.
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

/* Keep the last bytes of the stream. */
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
 * A socket that is shut down tells nothing: each change of its state is a reason
 * to ask.  Its end may also come from what the remote still had to say.
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

	/* a cancel finds its way by a socket that is still connected */
	if (pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_ASKED)
		pgpx_cancel_start(w);
	if (conn->close_reason == PGPX_CLOSE_TERMINATED)
	{
		w->aborting.cut = w->aborting.terminate_sent = true;
		pgpx_connection_cut(w, false);
	}
	watch(w);
	if (!w->cancel.active && w->aborting.cancels == 0)
		pgpx_abort_cancelled(w);	/* before it was given up, or none is needed */
}

void
pgpx_abort_cancelled(PgpxWorkerConn *w)
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
		/* it talks and talks: let it wait for the next cancel */
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
pgpx_abort_late(PgpxWorkerConn *w)
{
	if (pgpx_now() >= w->aborting.until || is_over(w))
	{
		pgpx_abort_abandon(w);
		return;
	}
	wake_at(w, w->aborting.until);
	pgpx_cancel_start(w);
}
