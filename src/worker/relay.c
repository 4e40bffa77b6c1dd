/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  The relay between a TLS connection and the socket pair that sessions use
 *	  in its place, because the keys of TLS cannot be handed over.
 *
 *	  session <--> pair[0] ==== pair[1] <--> relay <--> SSL <--> remote
 *
 * A TLS connection has a socket pair for as long as it exists.  Once libpq
 * has opened the connection, pair[0] takes the place of its socket: it is
 * handed to sessions, watched, reset and shut down, as the remote's own socket
 * is without TLS.  The relay moves bytes between pair[1] and the remote,
 * whichever process holds pair[0], in every state until the connection is
 * closed.  It does not interpret the bytes.  A byte stream keeps its order,
 * so bytes that one lease leaves unread precede those of the next lease, as on
 * a direct socket.
 *
 * The relay never blocks.  Bytes that one side does not accept are stored,
 * CHUNK bytes at most, and until they are sent nothing more is read from the
 * other side.  So a slow reader slows down the writer.  An event moves one
 * chunk, so that a stream leaves time for other connections.  A descriptor
 * for which no event is awaited is removed from the epoll set, because
 * EPOLLHUP cannot be masked and would fire for ever.
 *
 * Ends of stream are relayed as well: the remote's after all its bytes, and a
 * shutdown() of pair[0] as the end of the bytes to the remote.  libpq uses the
 * connection again only after its socket was shut down.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/connection.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "storage/fd.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/pool.h"
#include "worker/relay_tls.h"
#include "worker/worker.h"

/* Bytes moved at once, and stored at most, in each direction. */
#define CHUNK (64 * 1024)

/* Bytes that one side has sent and the other has not accepted. */
typedef struct Unsent
{
	char	   *data;			/* [CHUNK], NULL if empty */
	size_t		start;
	size_t		end;
} Unsent;

struct PgpxRelay
{
	PgpxTlsStream tls;			/* to the remote */
	int			remote;			/* libpq's socket; -1: shut down */
	int			pair[2];		/* [0] the sessions' end, [1] ours */
	uint32		remote_events;	/* as registered; 0: not in the epoll set */
	uint32		local_events;

	Unsent		inward;			/* to the session */
	Unsent		outward;		/* to the remote */

	bool		more;			/* tls.buffered, and inward is empty */
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
free_unsent(Unsent *unsent)
{
	if (unsent->data != NULL)
		pfree(unsent->data);
	memset(unsent, 0, sizeof(*unsent));
}

static void
append_unsent(Unsent *unsent, const char *data, size_t len)
{
	Assert(is_empty(unsent) && len <= CHUNK);
	if (unsent->data == NULL)
		unsent->data = MemoryContextAlloc(TopMemoryContext, CHUNK);
	memcpy(unsent->data, data, len);
	unsent->start = 0;
	unsent->end = len;
}

/* Return whether an errno of the pair means: retry when epoll reports it. */
static bool
is_transient(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/*
 * Send to the session.  Return the number of bytes accepted, all of them if the
 * session has closed its end.
 */
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
		else if (n < 0 && is_transient(errno))
			return sent;
		else
			relay->local_write_closed = true;
	}
	return len;
}

/* Move bytes from the remote to the session. */
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
		free_unsent(unsent);
	}
	else if (!relay->tls.ended)
	{
		size_t		len = pgpx_tls_read(&relay->tls, chunk, CHUNK);
		size_t		sent = write_local(relay, chunk, len);

		if (relay->tls.ended)
			free_unsent(&relay->outward);
		if (sent < len)
		{
			append_unsent(unsent, chunk + sent, len - sent);
			return;
		}
	}
	if (relay->tls.ended)
	{
		/* for the session, which sees only the end of the stream */
		pg_atomic_write_u32(&pgpx_conns[w->index].end_error, relay->tls.error);

		/* the relay no longer reads: make the session's next send fail */
		shutdown(relay->pair[1], SHUT_RDWR);
	}
}

/* Relay the session's end of stream, after all its bytes have been sent. */
static void
send_end_of_stream(PgpxRelay *relay)
{
	pgpx_tls_close_notify(&relay->tls);
	shutdown(relay->remote, SHUT_WR);
}

/* Move bytes from the session to the remote. */
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
		free_unsent(unsent);
	}
	else if (!relay->local_ended && !relay->tls.write_closed)
	{
		ssize_t		n = recv(relay->pair[1], chunk, CHUNK, MSG_DONTWAIT);
		size_t		sent;

		if (n > 0)
		{
			sent = pgpx_tls_write(&relay->tls, chunk, n);
			if (sent < (size_t) n)
				append_unsent(unsent, chunk + sent, n - sent);
			return;
		}
		if (n < 0 && is_transient(errno))
			return;
		relay->local_ended = true;
	}
	if (relay->local_ended)
		send_end_of_stream(relay);
}

/* Register a descriptor for these events; remove it if there are none. */
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
	set_more(relay, relay->tls.buffered && is_empty(&relay->inward));
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

	/* from now on the relay uses libpq's socket */
	pgpx_event_unwatch(w->fd);
	w->fd = -1;
	w->relay = relay;

	/* bytes that arrived with the last answer to libpq */
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

	/* another event of this round has ended or cut the relay */
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
pgpx_relay_resume(void)
{
	int			left = nmore;

	pgpx_connection_foreach(w)
	{
		if (left <= 0)
			break;
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
	free_unsent(&relay->inward);
	if (graceful && is_empty(&relay->outward))
		(void) pgpx_tls_write(&relay->tls, PGPX_TERMINATE, PGPX_TERMINATE_LEN);
	free_unsent(&relay->outward);
	set_more(relay, false);
	watch(PGPX_WATCH_RELAY_REMOTE, w->index, relay->remote,
		  &relay->remote_events, 0);
	watch(PGPX_WATCH_RELAY_LOCAL, w->index, relay->pair[1],
		  &relay->local_events, 0);

	/* processes with a duplicate of pair[0] see an end of stream */
	shutdown(relay->pair[0], SHUT_RDWR);
	send_end_of_stream(relay);
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
