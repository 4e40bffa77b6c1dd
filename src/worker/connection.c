/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  An open connection in the worker: watch, reset, check and close it; abort
 *	  its statement.
 *
 * On an open socket the worker speaks the protocol through wire.c, as sessions
 * do, and only while no session holds the connection.  libpq is then used
 * only for its socket.  With TLS the socket is one end of a relay's socket
 * pair; nothing here depends on that.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "base/backoff.h"
#include "shared/conn_state.h"
#include "shared/pool_worker.h"
#include "worker/worker.h"

/* How long, in ms, to wait for the remote to close after Terminate. */
#define CLOSE_MS 1000

static void cancel_ended(PgpxWorkerConn *w, bool sent, bool ok);

void
pgpx_connections_init(const PgpxPurpose *purpose)
{
	pgpx_wconns = MemoryContextAllocZero(TopMemoryContext,
										 mul_size(pgpx_shared->max_connections,
												  sizeof(PgpxWorkerConn)));
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		pgpx_wconns[i].purpose = purpose;
		pgpx_wconns[i].index = i;
		pgpx_wconns[i].fd = -1;
	}
	pgpx_cancel_ended = cancel_ended;
}

void
pgpx_connection_drop(PgpxWorkerConn *w)
{
	pgpx_cancel_drop(w);
	if (w->phase == PGPX_PHASE_PASSWORD)
		dlist_delete(&w->password_node);
	if (w->task != NULL)
		pgpx_task_abandon(w->task);
	w->task = NULL;
	pgpx_hosts_free(&w->hosts);
	if (w->fd >= 0)
		pgpx_event_unwatch(w->fd);
	w->fd = -1;
	w->events = 0;
	if (w->relay != NULL)
		pgpx_relay_end(w);
	if (w->pg != NULL)
	{
		PQfinish(w->pg);
		ReleaseExternalFD();
		w->pg = NULL;
	}
	pgpx_wire_free(&w->wire);
	w->deadline = 0;
	w->phase = PGPX_PHASE_NONE;
}

int
pgpx_connection_socket(PgpxWorkerConn *w)
{
	int			fd = -1;

	if (w->relay != NULL)
		fd = pgpx_relay_socket(w->relay);
	return fd >= 0 || w->pg == NULL ? fd : PQsocket(w->pg);
}

void
pgpx_connection_watch(PgpxWorkerConn *w, uint32 events)
{
	int			fd = pgpx_connection_socket(w);

	if (fd < 0)
		return;
	if (w->fd == fd && w->events == events)
		return;
	pgpx_event_watch(w->purpose->watch, w->index, fd, events, w->fd != fd);
	w->fd = fd;
	w->events = events;
}

void
pgpx_connection_set_deadline(PgpxWorkerConn *w, PgpxTime deadline)
{
	w->deadline = deadline;
	pgpx_event_due_at(deadline);
}

/* A reset or check has ended; "late" if it timed out. */
static void
end_exchange(PgpxWorkerConn *w, bool ok, bool late)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
	bool		checking = conn->state == PGPX_CONN_CHECKING;

	w->phase = PGPX_PHASE_OPEN;
	w->deadline = 0;
	if (ok)
		pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
	if (!ok && !checking && (late || w->wire.reset_error[0] != '\0'))
		pgpx_pool_report_reset(pool, conn, w->wire.reset_error[0] == '\0' ?
							   "it did not end within operation_timeout" :
							   w->wire.reset_error);
	if (checking)
		pgpx_pool_check_done(pool, conn, ok, late);
	else
		pgpx_pool_reset_done(pool, conn, ok, late);
}

/* Continue a reset or check: send pending bytes, read what has arrived. */
static void
step_reset(PgpxWorkerConn *w)
{
	PgpxWireMessage msg;
	PgpxWireEvent event;
	bool		full = true;
	int			flushed;

	flushed = pgpx_wire_flush(&w->wire);
	for (;;)
	{
		event = pgpx_wire_next(&w->wire, &msg);
		if (event != PGPX_EV_NEED_INPUT)
			break;
		if (pgpx_wire_fill(&w->wire, &full) == 0)
		{
			pgpx_connection_watch(w, EPOLLIN | (flushed == 0 ? EPOLLOUT : 0));
			return;
		}
	}

	end_exchange(w,
				 event == PGPX_EV_READY && pgpx_wire_is_at_boundary(&w->wire),
				 false);
}

/* Start a reset or check, or the reading of a reset that a session has sent. */
static void
begin_exchange(PgpxWorkerConn *w, int unread_reset, int64 timeout_ms)
{
	/* distinct from all lease ids; one connection has one worker */
	static uint64 sender = UINT64CONST(1) << 63;
	const char *encoding =
		pgpx_conninfo_param(&pgpx_wpools[w->pool].conninfo, "client_encoding");

	pgpx_wire_free(&w->wire);
	pgpx_wire_init(&w->wire, pgpx_connection_socket(w),
				   pg_char_to_encoding(encoding),
				   TopMemoryContext);
	pgpx_wire_begin(&w->wire, sender++, pgpx_conns[w->index].reset_by,
					unread_reset);
	w->phase = PGPX_PHASE_RESET;
	pgpx_connection_set_deadline(w, pgpx_now() + timeout_ms * 1000);
}

void
pgpx_connection_reset(PgpxWorkerConn *w)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;

	begin_exchange(w, 0, pgpx_pools[w->pool].opts.operation_timeout);
	pgpx_wire_send_reset(&w->wire, ci->reset_command, ci->start_commands,
						 false);
	step_reset(w);
}

bool
pgpx_connection_read_reset(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (!pgpx_pool_begin_reset(&pgpx_pools[w->pool], conn))
		return false;
	begin_exchange(w, conn->unread_reset,
				   pgpx_pools[w->pool].opts.operation_timeout);
	step_reset(w);
	return true;
}

void
pgpx_connection_check(PgpxWorkerConn *w)
{
	int64		timeout_ms = pgpx_pools[w->pool].opts.operation_timeout;

	begin_exchange(w, 0, Min(timeout_ms, PGPX_CHECK_MS));
	pgpx_wire_send_check(&w->wire);
	step_reset(w);
}

bool
pgpx_connection_is_gone(PgpxWorkerConn *w, bool assumed)
{
	struct tcp_info info;
	socklen_t	len = sizeof(info);

	if (getsockopt(PQsocket(w->pg), IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
		return assumed;
	return info.tcpi_state != TCP_ESTABLISHED &&
		info.tcpi_state != TCP_FIN_WAIT1 && info.tcpi_state != TCP_FIN_WAIT2;
}

/*
 * Send Terminate without blocking.  The stream must be at a message boundary.
 * Return true if all of the message was sent.
 */
static bool
write_terminate(PgpxWorkerConn *w)
{
	return send(pgpx_connection_socket(w), PGPX_TERMINATE, PGPX_TERMINATE_LEN,
				MSG_DONTWAIT | MSG_NOSIGNAL) == PGPX_TERMINATE_LEN;
}

/*
 * Use shutdown(), which ends the socket for all processes.  A close() would
 * leave it open in sessions that hold duplicates.
 */
void
pgpx_connection_cut(PgpxWorkerConn *w, bool graceful)
{
	int			fd;

	if (w->relay != NULL)
	{
		pgpx_relay_cut(w, graceful);
		return;
	}
	fd = PQsocket(w->pg);
	if (fd < 0)
		return;
	if (graceful)
		(void) write_terminate(w);
	shutdown(fd, SHUT_RDWR);
}

/* For the log: the reasons that view stats counts in closed_*. */
static const char *const closed_because[PGPX_CLOSE_NREASONS] = {
	[PGPX_CLOSE_IDLE] = "It was idle for longer than idle_timeout.",
	[PGPX_CLOSE_LIFETIME] = "It was older than max_lifetime.",
	[PGPX_CLOSE_OVERFLOW] = "The pool had more connections than pool_size.",
	[PGPX_CLOSE_EVICTED] = "It was closed in favor of another pool, or because a cap on the connections of its server had become smaller.",
	[PGPX_CLOSE_RESET] = "Its reset failed or could not be confirmed.",
	[PGPX_CLOSE_BROKEN] = "It was lost, its protocol stream was invalid, or the remote server had become read-only.",
	[PGPX_CLOSE_STALE] = "The options have changed, or reconnect or drain was called.",
	[PGPX_CLOSE_TERMINATED] = "Its lease was terminated or exceeded lease_timeout.",
	[PGPX_CLOSE_HOLDER_DIED] = "Its lease ended in the middle of a statement, or with a transaction that could not be rolled back.",
	[PGPX_CLOSE_DISCARDED] = "Its lease was discarded.",
};

static void
close_now(PgpxWorkerConn *w)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (w->pg != NULL)
	{
		pgpx_connection_cut(w, false);
		if (pgpx_log_connections)
			ereport(LOG,
					(errmsg("pgpool_ext closed connection %d to server \"%s\" of database \"%s\"",
							w->index, NameStr(pool->server_name),
							NameStr(pool->database_name)),
					 conn->opened_at != 0 &&
					 closed_because[conn->close_reason] != NULL ?
					 errdetail("%s", closed_because[conn->close_reason]) : 0));
	}
	pgpx_connection_drop(w);
	pgpx_pool_closed(pool, conn);
}

void
pgpx_connection_close(PgpxWorkerConn *w)
{
	int			reason = pgpx_conns[w->index].close_reason;
	bool		graceful = reason != PGPX_CLOSE_BROKEN &&
		reason != PGPX_CLOSE_RESET && reason != PGPX_CLOSE_HOLDER_DIED &&
		reason != PGPX_CLOSE_TERMINATED;

	/*
	 * The cancel connection stays open until the remote closes it or its
	 * deadline passes, because a proxy may still be forwarding the request.
	 * Then cancel_ended continues here.
	 */
	if (w->phase == PGPX_PHASE_CLOSING || w->cancel.task != NULL)
		return;

	/*
	 * The slot stays in use until the remote has closed.  Otherwise the remote
	 * would briefly have one session more than the limits allow, and may
	 * refuse it.  Do not wait if its end of stream has already arrived, and not
	 * for longer than CLOSE_MS.
	 */
	if (graceful && w->phase == PGPX_PHASE_OPEN && w->fd >= 0 &&
		write_terminate(w) &&
		shutdown(w->fd, SHUT_WR) == 0)
	{
		w->phase = PGPX_PHASE_CLOSING;
		pgpx_connection_set_deadline(w, pgpx_now() + CLOSE_MS * 1000);
		pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
		return;
	}
	close_now(w);
}

/* --- Abort -----------------------------------------------------------------
 *
 * A backend that runs a statement does not notice that its client has gone.
 * And a backend that has not quite started the statement, or is between two
 * messages, ignores a cancel request.  Therefore:
 *
 * - The connection keeps its slot in the pool during the abort.
 * - The cancel is repeated after a pause.
 * - The answer is read and discarded, because a backend that is blocked in
 *	 sending does not process the cancel.
 * - When the remote seems to be ready for query, Terminate is sent.  The end of
 *	 its stream then proves that the backend has exited.
 *
 * The abort takes operation_timeout at most, and CLOSE_MS after a reset, which
 * had that time already, or whose answer was awaited.
 *
 * Terminate is sent, and the slot is reused, only after the cancel connection
 * has ended.  PgBouncer 1.18 exits if a cancel connection is closed while it
 * forwards the request.
 *
 * Only the session knew where messages begin in the stream, so bytes at the end
 * that look like a ReadyForQuery are only a hint.  After the second cancel the
 * write side is closed in any case, because a ReadyForQuery that the session
 * received but did not process will not come again.  It is not closed before,
 * because a proxy whose client disconnects forgets which backend to cancel.
 *
 * If the lease was terminated, its holder may still be reading.  Then the
 * socket is shut down for all processes at once, and its TCP state shows
 * whether the remote has closed.
 */

/* Pause before a cancel is repeated; doubled after each further one. */
#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 1000

/* Bytes per read, reads per event, and bytes to read between two cancels. */
#define READ_BYTES (64 * 1024)
#define MAX_READS 4
#define CANCEL_INTERVAL_BYTES (16 * 1024 * 1024)

/* Length of a ReadyForQuery: type, length, transaction status. */
#define READY_LEN 6
StaticAssertDecl(sizeof(((PgpxAbort *) NULL)->tail) == READY_LEN,
				 "a ReadyForQuery must fit");

/*
 * End the abort: the remote has closed, or the time is up.  If a cancel request
 * is in flight, the slot stays in use until it has ended, see
 * pgpx_connection_close.
 */
static void
end_abort(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];

	/* the end of the stream would raise events for ever */
	if (w->fd >= 0)
		pgpx_event_unwatch(w->fd);
	w->fd = -1;
	w->deadline = 0;
	pgpx_pool_close(&pgpx_pools[w->pool], conn, conn->close_reason);
}

/*
 * Close the write side, after Terminate if at_boundary.  Terminate is allowed
 * only at a message boundary: a session that died may have left half a message.
 */
static void
send_terminate(PgpxWorkerConn *w, bool at_boundary)
{
	if (w->aborting.terminate_sent)
		return;
	w->aborting.terminate_sent = true;
	if (at_boundary)
		(void) write_terminate(w);
	shutdown(pgpx_connection_socket(w), SHUT_WR);
}

/* Record the last bytes of the stream. */
static void
record_tail(PgpxAbort *aborting, const char *data, size_t len)
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
 * Watch the socket.  A socket that is shut down reports no end of stream, so
 * the TCP state is checked at each event.  An event may also mean that the
 * remote has sent more of its answer.
 */
static void
watch_abort(PgpxWorkerConn *w)
{
	pgpx_connection_watch(w, w->aborting.cut ? EPOLLRDHUP | EPOLLET : EPOLLIN);
}

static bool
is_abort_over(PgpxWorkerConn *w)
{
	return w->aborting.cut && w->cancel.task == NULL &&
		pgpx_connection_is_gone(w, w->aborting.cancels > 1);
}

/* Continue after a cancel request has ended, or without one. */
static void
continue_abort(PgpxWorkerConn *w)
{
	PgpxAbort  *aborting = &w->aborting;
	PgpxTime	next;

	aborting->pause_ms = pgpx_backoff_next(aborting->pause_ms, PAUSE_MIN_MS,
										   PAUSE_MAX_MS);
	aborting->cancels++;
	if (is_at_ready(aborting))
		send_terminate(w, true);
	else if (aborting->cancels > 1)
		send_terminate(w, false);
	if (is_abort_over(w))
	{
		end_abort(w);
		return;
	}
	aborting->budget = CANCEL_INTERVAL_BYTES;
	watch_abort(w);
	next = pgpx_now() + aborting->pause_ms * 1000;
	pgpx_connection_set_deadline(w, Min(next, aborting->until));
}

void
pgpx_abort_begin(PgpxWorkerConn *w)
{
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (w->pg == NULL || PQsocket(w->pg) < 0)
	{
		end_abort(w);
		return;
	}
	w->phase = PGPX_PHASE_ABORT;
	memset(&w->aborting, 0, sizeof(w->aborting));
	w->aborting.budget = CANCEL_INTERVAL_BYTES;
	w->aborting.until = pgpx_now() + 1000 *
		(conn->close_reason == PGPX_CLOSE_RESET ? CLOSE_MS :
		 pgpx_pools[w->pool].opts.operation_timeout);
	pgpx_connection_set_deadline(w, w->aborting.until);

	/* the request needs the peer's address, so it must precede the cut */
	if (w->cancel.task != NULL ||
		pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_REQUESTED)
		pgpx_cancel_start(w);
	if (conn->close_reason == PGPX_CLOSE_TERMINATED)
	{
		w->aborting.cut = w->aborting.terminate_sent = true;
		pgpx_connection_cut(w, false);
	}
	watch_abort(w);
	if (w->cancel.task == NULL && w->aborting.cancels == 0)
		continue_abort(w);		/* ended, or not needed */
}

/* Continue the abort after events on the connection's socket. */
static void
read_aborted(PgpxWorkerConn *w, uint32 events)
{
	static char buffer[READ_BYTES];
	PgpxAbort  *aborting = &w->aborting;

	if (aborting->cut)
	{
		if (is_abort_over(w))
			end_abort(w);
		return;
	}
	for (int i = 0; i < MAX_READS && aborting->budget > 0; i++)
	{
		ssize_t		n = recv(pgpx_connection_socket(w), buffer,
							 sizeof(buffer), MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n <= 0)
		{
			end_abort(w);
			return;
		}
		record_tail(aborting, buffer, n);
		aborting->budget -= Min(aborting->budget, (size_t) n);
	}

	if (aborting->budget == 0)
	{
		/* the remote keeps sending: stop reading until the next cancel */
		if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			end_abort(w);
		else
			pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
	}
	else if (is_at_ready(aborting) && w->cancel.task == NULL)
		send_terminate(w, true);
}

/* The pause before the next cancel request, or the time for the abort, is over. */
static void
end_pause(PgpxWorkerConn *w)
{
	if (pgpx_now() < w->aborting.until && !is_abort_over(w))
	{
		pgpx_connection_set_deadline(w, w->aborting.until);
		pgpx_cancel_start(w);
		return;
	}
	if (w->cancel.task != NULL)
	{
		/* count a request that may have been sent */
		bool		sent = pgpx_task_is_running(w->cancel.task);

		pgpx_cancel_drop(w);
		(void) pgpx_pool_cancel_done(&pgpx_pools[w->pool],
									 &pgpx_conns[w->index], sent, true);
	}
	end_abort(w);
}

/* --- Events ---------------------------------------------------------------- */

/* A cancel request has ended. */
static void
cancel_ended(PgpxWorkerConn *w, bool sent, bool ok)
{
	int			state = pgpx_pool_cancel_done(&pgpx_pools[w->pool],
											  &pgpx_conns[w->index], sent, ok);

	pgpx_event_pool_changed(w->pool);
	if (state == PGPX_CONN_CLOSING)
		pgpx_connection_close(w);
	else if (state == PGPX_CONN_RESETTING)
		pgpx_connection_reset(w);
	else if (w->phase == PGPX_PHASE_ABORT)
		continue_abort(w);
}

void
pgpx_connection_ready(PgpxWorkerConn *w, uint32 events)
{
	bool		ended = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;

	/*
	 * In phase OPEN, the answer to a reset may precede the end of the stream.
	 * Any other event is left from a former phase.
	 */
	if (w->phase == PGPX_PHASE_RESET)
		step_reset(w);
	else if (w->phase == PGPX_PHASE_ABORT)
		read_aborted(w, events);
	else if (w->phase == PGPX_PHASE_CLOSING && ended)
		close_now(w);
	else if (w->phase == PGPX_PHASE_OPEN && ended)
	{
		/* the event is reported once: register it again after a reset */
		w->events = 0;
		if (pgpx_connection_read_reset(w))
			return;
		pgpx_event_unwatch(w->fd);
		w->fd = -1;
		pgpx_pool_lost(&pgpx_pools[w->pool], &pgpx_conns[w->index]);
	}
}

void
pgpx_connection_deadline_passed(PgpxWorkerConn *w)
{
	if (w->phase == PGPX_PHASE_RESET)
		end_exchange(w, false, true);
	else if (w->phase == PGPX_PHASE_ABORT)
		end_pause(w);
	else if (w->phase == PGPX_PHASE_CLOSING)
		close_now(w);
	else
		w->deadline = 0;
}
