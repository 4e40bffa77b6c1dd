/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  What the worker does with a connection once libpq has opened it: watch it,
 *	  reset it, close it.
 *
 * On the open socket the worker speaks through wire, as sessions do, and only
 * while no session has it; libpq is not asked again but for its socket.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "guc.h"

/* Free what belongs to a connection; the socket ends for this process. */
void
pgpx_connection_drop(PgpxWorkerConn *w)
{
	pgpx_canceller_drop(w);
	if (w->fd >= 0)
		pgpx_reactor_forget(w->fd);
	w->fd = -1;
	w->events = 0;
	if (w->pg != NULL)
	{
		pgpx_canceller_untrace(w);
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
	w->deadline = 0;
	w->phase = PGPX_PHASE_NONE;
}

void
pgpx_connection_watch(PgpxWorkerConn *w, uint32 events)
{
	int			fd = PQsocket(w->pg);

	if (fd < 0)
		return;
	if (w->fd == fd && w->events == events)
		return;
	pgpx_reactor_watch(PGPX_WATCH_CONN, w->index, fd, events, w->fd != fd);
	w->fd = fd;
	w->events = events;
}

void
pgpx_connection_deadline(PgpxWorkerConn *w, int64 ms)
{
	w->deadline = pgpx_now() + ms * 1000;
	pgpx_reactor_due(w->deadline);
}

/* Go on with a reset: send what is left, read what is there. */
static void
step_reset(PgpxWorkerConn *w)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];
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

	w->phase = PGPX_PHASE_OPEN;
	w->deadline = 0;
	if (event == PGPX_EV_READY && pgpx_wire_at_boundary(&w->wire))
	{
		pgpx_connection_watch(w, EPOLLRDHUP | EPOLLET);
		pgpx_pool_reset_done(pool, conn, true);
	}
	else
		pgpx_pool_reset_done(pool, conn, false);
}

void
pgpx_connection_reset(PgpxWorkerConn *w, bool send, int owed)
{
	PgpxConninfo *ci = &pgpx_wpools[w->pool].conninfo;
	PgpxPool   *pool = &pgpx_pools[w->pool];

	if (w->wire_made)
		pgpx_wire_free(&w->wire);
	pgpx_wire_init(&w->wire, PQsocket(w->pg),
				   pg_char_to_encoding(pgpx_connector_param(ci, "client_encoding")),
				   TopMemoryContext);
	w->wire_made = true;
	pgpx_wire_begin(&w->wire, owed);
	if (send)
		pgpx_wire_send_reset(&w->wire, ci->reset_command, ci->start_commands);
	w->phase = PGPX_PHASE_RESET;
	pgpx_connection_deadline(w, pool->opts.operation_timeout);
	step_reset(w);
}

void
pgpx_connection_ready(PgpxWorkerConn *w, uint32 events)
{
	PgpxConn   *conn = &pgpx_conns[w->index];
	PgpxPool   *pool = &pgpx_pools[w->pool];

	switch (w->phase)
	{
		case PGPX_PHASE_CONNECT:
		case PGPX_PHASE_START:
			pgpx_connector_step(w);
			break;
		case PGPX_PHASE_RESET:
			step_reset(w);
			break;
		case PGPX_PHASE_OPEN:
			if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
			{
				/*
				 * The remote has gone.  A lessee finds it by itself, with
				 * the remote's last words; nobody else shall get it.
				 */
				pg_atomic_write_u32(&conn->hung_up, 1);
				pgpx_reactor_forget(w->fd);
				w->fd = -1;
				pgpx_pool_close(pool, conn, PGPX_CLOSE_BROKEN);
			}
			break;
		default:
			break;
	}
}

void
pgpx_connection_late(PgpxWorkerConn *w)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];

	switch (w->phase)
	{
		case PGPX_PHASE_LOOKUP:
		case PGPX_PHASE_CONNECT:
		case PGPX_PHASE_START:
			pgpx_connector_too_late(w);
			break;
		case PGPX_PHASE_RESET:
			w->phase = PGPX_PHASE_OPEN;
			w->deadline = 0;
			pgpx_pool_reset_done(pool, conn, false);
			break;
		default:
			w->deadline = 0;
			break;
	}
}

void
pgpx_connection_close(PgpxWorkerConn *w, bool polite)
{
	PgpxPool   *pool = &pgpx_pools[w->pool];
	PgpxConn   *conn = &pgpx_conns[w->index];

	if (w->pg != NULL)
	{
		int			fd = PQsocket(w->pg);

		if (fd >= 0)
		{
			/*
			 * Sessions may hold duplicates of the socket, which a close()
			 * would leave open: shutdown() ends it for all.
			 */
			if (polite)
				(void) send(fd, "X\0\0\0\4", 5, MSG_DONTWAIT | MSG_NOSIGNAL);
			shutdown(fd, SHUT_RDWR);
		}
		if (pgpx_log_connections)
			ereport(LOG,
					(errmsg("pgpool_ext closed connection %d to server \"%s\" of database \"%s\"",
							w->index, NameStr(pool->server_name),
							NameStr(pool->database_name))));
	}
	pgpx_connection_drop(w);
	pgpx_pool_closed(pool, conn);
}
