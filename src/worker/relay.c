/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  Bytes between a session and a TLS connection, whose keys cannot be
 *	  handed over.
 *
 *	  session <--> pair[0] ==== pair[1] <--> relay <--> SSL <--> remote
 *
 * The connection has a socket pair for as long as it lives.  pair[0] stands for
 * its socket from the moment libpq has done its work: it is what is handed to
 * lessees, watched, reset and shut down, as the remote's own socket is where
 * there is no TLS.  Behind it the relay moves bytes, whoever has the other end,
 * in every state until the connection is closed.  It does not look into them: a
 * byte stream keeps its order, so that what a lease leaves unread is in front of
 * what the next one gets, as on a direct socket.
 *
 * Never waits.  What one side does not take is kept, up to CHUNK bytes, and
 * until it is gone nothing more is read from the other side: a slow reader slows
 * the writer.  An event moves one piece, so that who streams leaves time to the
 * others.  A descriptor that is not waited for is not in the epoll set at all:
 * EPOLLHUP cannot be masked and would come for ever.
 *
 * Ends go on as well: the remote's after all it has said, a shutdown() of pair[0] as
 * the end of what the remote is told.  libpq is given the connection back only
 * when that is shut down.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/relay.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "storage/fd.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/pool.h"
#include "worker/events.h"
#include "worker/relay_tls.h"

/* What is moved at once, and kept at most, in each direction. */
#define CHUNK (64 * 1024)

/* What one side has said and the other has not taken. */
typedef struct Unsent
{
	char	   *data;			/* [CHUNK], while there is any */
	size_t		start;
	size_t		end;
} Unsent;

struct PgpxRelay
{
	PgpxTlsStream tls;			/* to the remote */
	int			remote;			/* its socket, libpq's; -1: shut down */
	int			pair[2];		/* [0] the sessions' end, [1] ours */
	uint32		remote_events;	/* as registered; 0: not in the epoll set */
	uint32		local_events;

	Unsent		inward;			/* to the session */
	Unsent		outward;		/* to the remote */

	bool		more;			/* tls.pending, and it may be moved */
	bool		local_ended;
	bool		local_write_closed;
};

static int	nmore = 0;			/* relays that have "more" */
static char chunk[CHUNK];

static void
set_more(PgpxRelay *relay, bool more)
{
	if (relay->more == more)
		return;
	relay->more = more;
	nmore += more ? 1 : -1;
}

static bool
is_empty(const Unsent *unsent)
{
	return unsent->start == unsent->end;
}

static void
drop(Unsent *unsent)
{
	if (unsent->data != NULL)
		pfree(unsent->data);
	memset(unsent, 0, sizeof(*unsent));
}

static void
keep(Unsent *unsent, const char *data, size_t len)
{
	Assert(is_empty(unsent) && len <= CHUNK);
	if (unsent->data == NULL)
		unsent->data = MemoryContextAlloc(TopMemoryContext, CHUNK);
	memcpy(unsent->data, data, len);
	unsent->start = 0;
	unsent->end = len;
}

/* Errors of the pair that mean: not now, epoll will tell. */
static bool
is_passing(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Send to the session; returns how much it has taken. */
static size_t
write_local(PgpxRelay *relay, const char *data, size_t len)
{
	size_t		sent = 0;

	while (sent < len && !relay->local_write_closed)
	{
		ssize_t		n = send(relay->pair[1], data + sent, len - sent,
							 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
			sent += n;
		else if (n < 0 && is_passing(errno))
			return sent;
		else
			relay->local_write_closed = true;
	}
	return len;
}

/* From the remote to the session, which may wait to be woken by the first of it. */
static void
move_inward(PgpxWorkerConn *w)
{
	PgpxRelay  *relay = w->relay;
	Unsent	   *unsent = &relay->inward;

	if (!is_empty(unsent))
	{
		unsent->start += write_local(relay, unsent->data + unsent->start,
									 unsent->end - unsent->start);
		if (!is_empty(unsent))
			return;
		drop(unsent);
	}
	else if (!relay->tls.ended)
	{
		size_t		len = pgpx_tls_read(&relay->tls, chunk, CHUNK);
		size_t		sent = write_local(relay, chunk, len);

		if (len > 0 || relay->tls.ended)
			pgpx_conn_deliver_wakeup(&pgpx_conns[w->index]);
		if (relay->tls.ended)
			drop(&relay->outward);
		if (sent < len)
		{
			keep(unsent, chunk + sent, len - sent);
			return;
		}
	}
	if (relay->tls.ended)
	{
		/* nothing more is read of what it says: it shall know at its next send */
		shutdown(relay->pair[1], SHUT_RDWR);
	}
}

/* The session has said its last word, and the remote has it. */
static void
send_terminate(PgpxRelay *relay)
{
	pgpx_tls_close_notify(&relay->tls);
	shutdown(relay->remote, SHUT_WR);
}

/* From the session to the remote. */
static void
move_outward(PgpxRelay *relay)
{
	Unsent	   *unsent = &relay->outward;

	if (!is_empty(unsent))
	{
		unsent->start += pgpx_tls_write(&relay->tls,
										unsent->data + unsent->start,
										unsent->end - unsent->start);
		if (!is_empty(unsent))
			return;
		drop(unsent);
	}
	else if (!relay->local_ended && !relay->tls.write_closed)
	{
		ssize_t		n = recv(relay->pair[1], chunk, CHUNK, MSG_DONTWAIT);
		size_t		sent;

		if (n > 0)
		{
			sent = pgpx_tls_write(&relay->tls, chunk, n);
			if (sent < (size_t) n)
				keep(unsent, chunk + sent, n - sent);
			return;
		}
		if (n < 0 && is_passing(errno))
			return;
		relay->local_ended = true;
	}
	if (relay->local_ended)
		send_terminate(relay);
}

/* Have a descriptor in the epoll set for what it is waited for, or not at all. */
static void
watch(PgpxWatchKind kind, int index, int fd, uint32 *registered, uint32 events)
{
	if (*registered == events)
		return;
	if (events == 0)
		pgpx_event_unwatch(fd);
	else
		pgpx_event_watch(kind, index, fd, events, *registered == 0);
	*registered = events;
}

static void
watch_both(PgpxWorkerConn *w)
{
	PgpxRelay  *relay = w->relay;
	uint32		remote = 0;
	uint32		local = 0;

	if ((!relay->tls.ended && is_empty(&relay->inward) &&
		 !relay->tls.read_wants_write) ||
		relay->tls.write_wants_read)
		remote |= EPOLLIN;
	if ((!is_empty(&relay->outward) && !relay->tls.write_wants_read) ||
		relay->tls.read_wants_write)
		remote |= EPOLLOUT;
	if (is_empty(&relay->outward) && !relay->local_ended &&
		!relay->tls.write_closed)
		local |= EPOLLIN;
	if (!is_empty(&relay->inward))
		local |= EPOLLOUT;
	set_more(relay, relay->tls.pending && is_empty(&relay->inward));
	watch(PGPX_WATCH_RELAY_REMOTE, w->index, relay->remote,
		  &relay->remote_events, remote);
	watch(PGPX_WATCH_RELAY_LOCAL, w->index, relay->pair[1],
		  &relay->local_events, local);
}

const char *
pgpx_relay_begin(PgpxWorkerConn *w)
{
	PgpxRelay  *relay;
	SSL		   *ssl = PQsslStruct(w->pg, "OpenSSL");
	int			pair[2];

	for (int i = 0; i < 2; i++)
		if (!AcquireExternalFD())
		{
			if (i > 0)
				ReleaseExternalFD();
			return PGPX_NO_DESCRIPTOR;
		}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
				   pair) < 0)
	{
		ReleaseExternalFD();
		ReleaseExternalFD();
		return "the pool worker could not create a socket pair";
	}

	relay = MemoryContextAllocZero(TopMemoryContext, sizeof(PgpxRelay));
	relay->remote = PQsocket(w->pg);
	relay->pair[0] = pair[0];
	relay->pair[1] = pair[1];

	pgpx_tls_begin(&relay->tls, ssl, CHUNK);

	/* libpq's socket is the relay's now */
	pgpx_event_unwatch(w->fd);
	w->fd = -1;
	w->relay = relay;

	/* what came in with the last answer to libpq */
	move_inward(w);
	watch_both(w);
	return NULL;
}

int
pgpx_relay_socket(const PgpxRelay *relay)
{
	return relay->remote < 0 ? -1 : relay->pair[0];
}

void
pgpx_relay_ready(PgpxWorkerConn *w, bool local, uint32 events)
{
	PgpxRelay  *relay = w->relay;

	/* an event of a descriptor that another one of this round has ended */
	if (relay == NULL || relay->remote < 0)
		return;
	if (local)
	{
		if ((events & ~EPOLLOUT) != 0)
			move_outward(relay);
		if ((events & ~EPOLLIN) != 0)
			move_inward(w);
	}
	else
	{
		if ((events & ~EPOLLOUT) != 0 || relay->tls.read_wants_write)
			move_inward(w);
		if ((events & ~EPOLLIN) != 0 || relay->tls.write_wants_read)
			move_outward(relay);
	}
	watch_both(w);
}

bool
pgpx_relay_has_more(void)
{
	return nmore > 0;
}

void
pgpx_relay_go_on(void)
{
	int			left = nmore;

	for (int i = 0; left > 0 && i < pgpx_shared->max_connections; i++)
	{
		PgpxWorkerConn *w = &pgpx_wconns[i];

		if (w->relay == NULL || !w->relay->more)
			continue;
		left--;
		move_inward(w);
		watch_both(w);
	}
}

void
pgpx_relay_cut(PgpxWorkerConn *w, bool graceful)
{
	PgpxRelay  *relay = w->relay;

	if (relay->remote < 0)
		return;
	if (w->fd == relay->pair[0])
	{
		pgpx_event_unwatch(w->fd);
		w->fd = -1;
	}
	drop(&relay->inward);
	if (graceful && is_empty(&relay->outward))
		(void) pgpx_tls_write(&relay->tls, PGPX_TERMINATE, PGPX_TERMINATE_LEN);
	drop(&relay->outward);
	set_more(relay, false);
	watch(PGPX_WATCH_RELAY_REMOTE, w->index, relay->remote,
		  &relay->remote_events, 0);
	watch(PGPX_WATCH_RELAY_LOCAL, w->index, relay->pair[1],
		  &relay->local_events, 0);

	/* who has a duplicate of this end sees it end */
	shutdown(relay->pair[0], SHUT_RDWR);
	send_terminate(relay);
	shutdown(relay->remote, SHUT_RDWR);
	relay->remote = -1;
}

void
pgpx_relay_end(PgpxWorkerConn *w)
{
	PgpxRelay  *relay = w->relay;

	pgpx_relay_cut(w, false);
	pgpx_tls_end(&relay->tls);
	close(relay->pair[0]);
	close(relay->pair[1]);
	ReleaseExternalFD();
	ReleaseExternalFD();
	pfree(relay);
	w->relay = NULL;
}
