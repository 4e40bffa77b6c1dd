/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  Bytes between a session and a TLS connection, whose keys cannot be handed
 *	  over.
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
 * Never waits.  What one side does not take is kept, up to PIECE bytes, and
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
#include "worker.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "storage/fd.h"
#include "utils/memutils.h"

/* What is moved at once, and kept at most, in each direction. */
#define PIECE (64 * 1024)

/* What one side has said and the other has not taken. */
typedef struct Rest
{
	char	   *data;			/* [PIECE], while there is any */
	size_t		start;
	size_t		end;
} Rest;

struct PgpxRelay
{
	SSL		   *ssl;			/* libpq's */
	int			remote;			/* its socket, libpq's; -1: shut down */
	int			pair[2];		/* [0] the sessions' end, [1] ours */
	uint32		remote_events;	/* as registered; 0: not in the epoll set */
	uint32		local_events;

	Rest		inward;			/* to the session */
	Rest		outward;		/* to the remote */

	bool		pending;		/* more is inside OpenSSL, unseen by epoll */
	bool		more;			/* .. and may be moved */
	bool		remote_ended;	/* nothing will come from there any more */
	bool		remote_deaf;	/* what is sent there is lost */
	bool		local_ended;
	bool		local_deaf;
	bool		read_wants_write;	/* SSL_read waits for room to send */
	bool		write_wants_read;
};

static int	nmore = 0;			/* relays that have "more" */
static char piece[PIECE];

static void
set_more(PgpxRelay *relay, bool more)
{
	if (relay->more == more)
		return;
	relay->more = more;
	nmore += more ? 1 : -1;
}

static bool
is_empty(const Rest *rest)
{
	return rest->start == rest->end;
}

static void
drop(Rest *rest)
{
	if (rest->data != NULL)
		pfree(rest->data);
	memset(rest, 0, sizeof(*rest));
}

static void
keep(Rest *rest, const char *data, size_t len)
{
	Assert(is_empty(rest) && len <= PIECE);
	if (rest->data == NULL)
		rest->data = MemoryContextAlloc(TopMemoryContext, PIECE);
	memcpy(rest->data, data, len);
	rest->start = 0;
	rest->end = len;
}

/* Errors of the pair that mean: not now, epoll will tell. */
static bool
is_passing(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* What a call of OpenSSL has come to. */
typedef enum Outcome
{
	WANTS_READ,
	WANTS_WRITE,
	ENDED						/* by either side, or by an attack: all the same */
} Outcome;

static Outcome
outcome(PgpxRelay *relay, int n)
{
	switch (SSL_get_error(relay->ssl, n))
	{
		case SSL_ERROR_WANT_READ:
			return WANTS_READ;
		case SSL_ERROR_WANT_WRITE:
			return WANTS_WRITE;
		default:
			return ENDED;
	}
}

/* Read a piece from the remote; returns its length. */
static size_t
read_remote(PgpxRelay *relay)
{
	size_t		len = 0;

	relay->read_wants_write = false;
	relay->pending = false;
	while (len < PIECE)
	{
		int			n;

		ERR_clear_error();
		n = SSL_read(relay->ssl, piece + len, PIECE - len);
		if (n > 0)
		{
			len += n;

			/* what is in the kernel's buffer, epoll will tell */
			if (!SSL_has_pending(relay->ssl))
				return len;
			continue;
		}
		switch (outcome(relay, n))
		{
			case WANTS_READ:
				break;
			case WANTS_WRITE:
				relay->read_wants_write = true;
				break;
			case ENDED:
				relay->remote_ended = relay->remote_deaf = true;
				drop(&relay->outward);
				break;
		}
		return len;
	}
	relay->pending = true;
	return len;
}

/* Send to the remote; returns how much it has taken. */
static size_t
write_remote(PgpxRelay *relay, const char *data, size_t len)
{
	size_t		sent = 0;

	relay->write_wants_read = false;
	while (sent < len && !relay->remote_deaf)
	{
		int			n;

		ERR_clear_error();
		n = SSL_write(relay->ssl, data + sent, len - sent);
		if (n > 0)
		{
			sent += n;
			continue;
		}
		switch (outcome(relay, n))
		{
			case WANTS_READ:
				relay->write_wants_read = true;
				return sent;
			case WANTS_WRITE:
				return sent;
			case ENDED:
				/* what it said before it went may still be read */
				relay->remote_deaf = true;
				relay->pending = true;
				break;
		}
	}
	return len;
}

/* Send to the session; returns how much it has taken. */
static size_t
write_local(PgpxRelay *relay, const char *data, size_t len)
{
	size_t		sent = 0;

	while (sent < len && !relay->local_deaf)
	{
		ssize_t		n = send(relay->pair[1], data + sent, len - sent,
							 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
			sent += n;
		else if (n < 0 && is_passing(errno))
			return sent;
		else
			relay->local_deaf = true;
	}
	return len;
}

/* From the remote to the session. */
static void
move_inward(PgpxRelay *relay)
{
	Rest	   *rest = &relay->inward;

	if (!is_empty(rest))
	{
		rest->start += write_local(relay, rest->data + rest->start,
								   rest->end - rest->start);
		if (!is_empty(rest))
			return;
		drop(rest);
	}
	else if (!relay->remote_ended)
	{
		size_t		len = read_remote(relay);
		size_t		sent = write_local(relay, piece, len);

		if (sent < len)
		{
			keep(rest, piece + sent, len - sent);
			return;
		}
	}
	if (relay->remote_ended)
	{
		/* nothing more is read of what it says: it shall know at its next send */
		shutdown(relay->pair[1], SHUT_RDWR);
	}
}

/* The session has said its last word, and the remote has it. */
static void
say_goodbye(PgpxRelay *relay)
{
	if (!relay->remote_deaf)
	{
		ERR_clear_error();
		(void) SSL_shutdown(relay->ssl);
	}
	relay->remote_deaf = true;
	shutdown(relay->remote, SHUT_WR);
}

/* From the session to the remote. */
static void
move_outward(PgpxRelay *relay)
{
	Rest	   *rest = &relay->outward;

	if (!is_empty(rest))
	{
		rest->start += write_remote(relay, rest->data + rest->start,
									rest->end - rest->start);
		if (!is_empty(rest))
			return;
		drop(rest);
	}
	else if (!relay->local_ended && !relay->remote_deaf)
	{
		ssize_t		n = recv(relay->pair[1], piece, PIECE, MSG_DONTWAIT);
		size_t		sent;

		if (n > 0)
		{
			sent = write_remote(relay, piece, n);
			if (sent < (size_t) n)
				keep(rest, piece + sent, n - sent);
			return;
		}
		if (n < 0 && is_passing(errno))
			return;
		relay->local_ended = true;
	}
	if (relay->local_ended)
		say_goodbye(relay);
}

/* Have a descriptor in the epoll set for what it is waited for, or not at all. */
static void
watch(PgpxWatchKind kind, int index, int fd, uint32 *registered, uint32 events)
{
	if (*registered == events)
		return;
	if (events == 0)
		pgpx_reactor_forget(fd);
	else
		pgpx_reactor_watch(kind, index, fd, events, *registered == 0);
	*registered = events;
}

static void
watch_both(PgpxWorkerConn *w)
{
	PgpxRelay  *relay = w->relay;
	uint32		remote = 0;
	uint32		local = 0;

	if ((!relay->remote_ended && is_empty(&relay->inward) &&
		 !relay->read_wants_write) ||
		relay->write_wants_read)
		remote |= EPOLLIN;
	if ((!is_empty(&relay->outward) && !relay->write_wants_read) ||
		relay->read_wants_write)
		remote |= EPOLLOUT;
	if (is_empty(&relay->outward) && !relay->local_ended && !relay->remote_deaf)
		local |= EPOLLIN;
	if (!is_empty(&relay->inward))
		local |= EPOLLOUT;
	set_more(relay, relay->pending && is_empty(&relay->inward));
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
			return "the pool worker has too many open descriptors";
		}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
				   pair) < 0)
	{
		ReleaseExternalFD();
		ReleaseExternalFD();
		return "the pool worker could not create a socket pair";
	}

	relay = MemoryContextAllocZero(TopMemoryContext, sizeof(PgpxRelay));
	relay->ssl = ssl;
	relay->remote = PQsocket(w->pg);
	relay->pair[0] = pair[0];
	relay->pair[1] = pair[1];

	/*
	 * A record that is half sent may be completed from another buffer: "piece" is
	 * every relay's, and "keep" makes a copy.  (libpq has set the first of the
	 * modes, or not, by its version.)
	 *
	 * SSL_MODE_AUTO_RETRY, since 1.1.1 OpenSSL's default, lets SSL_read go on after
	 * a record that is no data (a session ticket, a KeyUpdate), for as long as a
	 * remote sends nothing else.  Without it, it returns with WANT_READ after such
	 * a record, but only where nothing is left of what was read ahead; else it goes
	 * on (ssl3_read_bytes in all versions from 1.1.1 to 3.5: "no read-ahead left?").
	 * read_remote lives by that: epoll says nothing of bytes that OpenSSL has, so
	 * WANT_READ must mean that there are none but the beginning of a record.  Asking
	 * SSL_has_pending there would not do, since it counts that beginning: the
	 * worker would spin.
	 *
	 * read_ahead: a piece comes with one recv(), not with two for each record, a
	 * header and a body.  libpq leaves it off, so nothing is read ahead when it
	 * hands the object over, and the buffer of the size of one record can be
	 * dropped for a larger one (SSL_free_buffers refuses if something is in it, and
	 * the old size then stays: slower, not wrong).
	 */
	SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE);
	SSL_set_mode(ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_clear_mode(ssl, SSL_MODE_AUTO_RETRY);
	SSL_set_options(ssl, SSL_OP_NO_RENEGOTIATION);
	SSL_set_default_read_buffer_len(ssl, PIECE);
	(void) SSL_free_buffers(ssl);	/* to be made in that size */
	SSL_set_read_ahead(ssl, 1);

	/* libpq's socket is the relay's now */
	pgpx_reactor_forget(w->fd);
	w->fd = -1;
	w->relay = relay;

	/* what came in with the last answer to libpq */
	move_inward(relay);
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
			move_inward(relay);
	}
	else
	{
		if ((events & ~EPOLLOUT) != 0 || relay->read_wants_write)
			move_inward(relay);
		if ((events & ~EPOLLIN) != 0 || relay->write_wants_read)
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
		move_inward(w->relay);
		watch_both(w);
	}
}

void
pgpx_relay_cut(PgpxWorkerConn *w, bool polite)
{
	static const char goodbye[] = {'X', 0, 0, 0, 4};
	PgpxRelay  *relay = w->relay;

	if (relay->remote < 0)
		return;
	if (w->fd == relay->pair[0])
	{
		pgpx_reactor_forget(w->fd);
		w->fd = -1;
	}
	drop(&relay->inward);
	if (polite && is_empty(&relay->outward))
		(void) write_remote(relay, goodbye, sizeof(goodbye));
	drop(&relay->outward);
	set_more(relay, false);
	watch(PGPX_WATCH_RELAY_REMOTE, w->index, relay->remote,
		  &relay->remote_events, 0);
	watch(PGPX_WATCH_RELAY_LOCAL, w->index, relay->pair[1],
		  &relay->local_events, 0);

	/* who has a duplicate of this end sees it end */
	shutdown(relay->pair[0], SHUT_RDWR);
	say_goodbye(relay);
	shutdown(relay->remote, SHUT_RDWR);
	relay->remote = -1;
}

void
pgpx_relay_end(PgpxWorkerConn *w)
{
	PgpxRelay  *relay = w->relay;

	pgpx_relay_cut(w, false);
	close(relay->pair[0]);
	close(relay->pair[1]);
	ReleaseExternalFD();
	ReleaseExternalFD();
	pfree(relay);
	w->relay = NULL;
}
