/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  An open connection in the worker: watch, reset, check and close it.
 *
 * On an open socket the worker speaks the protocol through wire.c, as sessions
 * do, and only while no session holds the connection.  libpq is then used
 * only for its socket.  With TLS the socket is one end of a relay's socket
 * pair; nothing here depends on that.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "shared/pool_worker.h"
#include "shared/prepared.h"
#include "worker/cancel.h"
#include "worker/events.h"
#include "worker/relay.h"

/* How long, in ms, to wait for the remote to close after Terminate. */
#define CLOSE_MS 1000

static void close_now(PgpxWorkerConn *w);

uint64
pgpx_connection_tag(const PgpxWorkerConn *w)
{
	return ((uint64) w->index << 32) | (uint32) w->generation;
}

void
pgpx_connection_drop(PgpxWorkerConn *w)
{
	pgpx_cancel_drop(w);
	if (w->phase == PGPX_PHASE_LOOKUP)
		pgpx_lookup_abandon(w->looked_up, pgpx_connection_tag(w));
	pgpx_hosts_free(&w->hosts);
	if (w->fd >= 0)
		pgpx_event_unwatch(w->fd);
	w->fd = -1;
	w->events = 0;
	if (w->relay != NULL)
		pgpx_relay_end(w);
	if (pgpx_login_end(w->login))
	{
		w->pg = NULL;
		w->external_fd = false;
	}
	w->login = NULL;
	if (w->pg != NULL)
	{
		PQfinish(w->pg);
		w->pg = NULL;
	}
	if (w->wire_made)
		pgpx_wire_free(&w->wire);
	w->wire_made = false;
	if (w->external_fd)
		ReleaseExternalFD();
	w->external_fd = false;
	w->have_key = false;
	w->cancel_key = 0;
	w->listening = false;
	w->unsolicited_at_lease = 0;
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
	pgpx_event_watch(PGPX_WATCH_CONN, w->index, fd, events, w->fd != fd);
	w->fd = fd;
	w->events = events;
}

void
pgpx_connection_deadline(PgpxWorkerConn *w, int64 ms)
{
	w->deadline = pgpx_now() + ms * 1000;
	pgpx_event_due_at(w->deadline);
}

/* A reset or check has ended; "late" if it timed out. */
static void
finish(PgpxWorkerConn *w, bool ok, bool late)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
	bool		checking = w->checking;

	w->phase = PGPX_PHASE_OPEN;
	w->deadline = 0;
	w->checking = false;
	if (ok)
		pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
	if (checking)
		pgpx_pool_check_done(pool, conn, ok);
	else
		pgpx_pool_reset_done(pool, conn, ok, late);
}

/* Continues a reset or check: sends pending bytes, reads what has arrived. */
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

	finish(w, event == PGPX_EV_READY && pgpx_wire_at_boundary(&w->wire), false);
}

/* Starts a reset or check of the worker's own; timeout is in ms. */
static void
begin(PgpxWorkerConn *w, int unread_reset, int64 timeout)
{
	/* distinct from all lease ids; one connection has one worker */
	static uint64 sender = UINT64CONST(1) << 63;
	const char *encoding =
		pgpx_conninfo_param(&pgpx_wpools[w->pool].conninfo, "client_encoding");

	if (w->wire_made)
		pgpx_wire_free(&w->wire);
	pgpx_wire_init(&w->wire, pgpx_connection_socket(w),
				   pg_char_to_encoding(encoding),
				   TopMemoryContext);
	w->wire_made = true;
	pgpx_wire_begin_reset(&w->wire, sender++, pgpx_conns[w->index].reset_by,
						  unread_reset);
	w->phase = PGPX_PHASE_RESET;
	w->listening = false;
	w->unsolicited_at_lease = 0;
	pgpx_connection_deadline(w, timeout);
}

void
pgpx_connection_reset(PgpxWorkerConn *w, bool send, int unread_reset)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;

	begin(w, unread_reset, pgpx_pools[w->pool].opts.operation_timeout);
	if (send)
	{
		pgpx_prepared_clear(&pgpx_prepared_tables[w->index]);
		pgpx_wire_send_reset(&w->wire, false, ci->reset_command,
							 ci->start_commands, false);
	}
	step_reset(w);
}

void
pgpx_connection_check(PgpxWorkerConn *w)
{
	int64		timeout = pgpx_pools[w->pool].opts.operation_timeout;

	begin(w, 0, Min(timeout, PGPX_CHECK_MS));
	w->checking = true;
	pgpx_wire_send_check(&w->wire);
	step_reset(w);
}

/*
 * Handles bytes that arrived on an idle connection.  If it has been leased in
 * the meantime they are an answer.  Otherwise only notices, notifications and
 * parameter reports are allowed; the next session skips them.  Any other
 * message closes the connection.
 */
static void
check_stray_bytes(PgpxWorkerConn *w)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
	char		first;
	bool		stray = false;

	w->listening = false;
	pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->state == PGPX_CONN_IDLE)
	{
		/* nothing can lease it under the lock, so the bytes are unsolicited */
		stray = recv(w->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
			first != 'N' && first != 'A' && first != 'S';
		/* leave them unread, but do not watch: the watch would fire for ever */
		w->unsolicited_at_lease = conn->leases + 1;
	}
	if (stray)
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
	LWLockRelease(pool->lock);
}

void
pgpx_connection_listen(PgpxWorkerConn *w)
{
	if (w->listening || w->phase != PGPX_PHASE_OPEN || w->fd < 0 ||
		w->unsolicited_at_lease == pgpx_conns[w->index].leases + 1)
		return;
	w->listening = true;
	pgpx_connection_watch(w, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
}

void
pgpx_connection_ready(PgpxWorkerConn *w, uint32 events)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxPool   *pool = &pgpx_pools[w->pool];

	switch (w->phase)
	{
		case PGPX_PHASE_RESET:
			step_reset(w);
			break;
		case PGPX_PHASE_CLOSING:
			if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
				close_now(w);
			break;
		case PGPX_PHASE_OPEN:
			if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0)
				check_stray_bytes(w);
			else
			{
				pgpx_event_unwatch(w->fd);
				w->fd = -1;
				pgpx_pool_lost(pool, conn);
			}
			break;
		default:
			break;
	}
}

void
pgpx_connection_deadline_passed(PgpxWorkerConn *w)
{
	switch (w->phase)
	{
		case PGPX_PHASE_RESET:
			finish(w, false, true);
			break;
		case PGPX_PHASE_CLOSING:
			close_now(w);
			break;
		default:
			w->deadline = 0;
			break;
	}
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

bool
pgpx_connection_send_terminate(PgpxWorkerConn *w)
{
	return send(pgpx_connection_socket(w), PGPX_TERMINATE, PGPX_TERMINATE_LEN,
				MSG_DONTWAIT | MSG_NOSIGNAL) == PGPX_TERMINATE_LEN;
}

/*
 * Uses shutdown(), which ends the socket for all processes.  A close() would
 * leave it open in sessions that hold duplicates.
 */
void
pgpx_connection_cut(PgpxWorkerConn *w, bool graceful)
{
	int			fd;

	if (pgpx_login_is_running(w->login))
		return;
	if (w->relay != NULL)
	{
		pgpx_relay_cut(w, graceful);
		return;
	}
	fd = PQsocket(w->pg);
	if (fd < 0)
		return;
	if (graceful)
		(void) pgpx_connection_send_terminate(w);
	shutdown(fd, SHUT_RDWR);
}

/* For the log: the reasons that view stats counts in closed_*. */
static const char *const closed_because[PGPX_CLOSE_NREASONS] = {
	[PGPX_CLOSE_IDLE] = "It was idle for longer than idle_timeout.",
	[PGPX_CLOSE_LIFETIME] = "It was older than max_lifetime.",
	[PGPX_CLOSE_USES] = "It was leased max_uses times.",
	[PGPX_CLOSE_OVERFLOW] = "The pool had more connections than pool_size.",
	[PGPX_CLOSE_EVICTED] = "It was closed in favor of another pool under the same cap.",
	[PGPX_CLOSE_RESET] = "Its reset failed or could not be confirmed.",
	[PGPX_CLOSE_BROKEN] = "It was lost, its protocol stream was invalid, or the remote server had become read-only.",
	[PGPX_CLOSE_DRAINED] = "An administrator requested it.",
	[PGPX_CLOSE_STALE] = "The options have changed.",
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
pgpx_connection_close(PgpxWorkerConn *w, bool graceful)
{
	if (w->phase == PGPX_PHASE_CLOSING)
		return;

	/*
	 * The slot stays in use until the remote has closed.  Otherwise the remote
	 * would briefly have one session more than the limits allow, and may
	 * refuse it.  Do not wait if its end of stream has already arrived, and not
	 * for longer than CLOSE_MS.
	 */
	if (graceful && w->phase == PGPX_PHASE_OPEN && w->fd >= 0 &&
		pgpx_connection_send_terminate(w) &&
		shutdown(w->fd, SHUT_WR) == 0)
	{
		w->phase = PGPX_PHASE_CLOSING;
		w->listening = false;
		pgpx_connection_deadline(w, CLOSE_MS);
		pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
		return;
	}
	close_now(w);
}
