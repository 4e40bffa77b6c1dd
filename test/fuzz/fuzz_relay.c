/*-------------------------------------------------------------------------
 *
 * fuzz_relay.c
 *	  The relay between a session and a TLS connection, with any behaviour of either
 *	  side: no byte is lost, duplicated or reordered, no more than one chunk is
 *	  buffered, and while a byte can be moved the relay waits for an event.
 *
 * relay.c is the real one, and so is its socket pair; OpenSSL is replaced by a
 * simulation.  The input determines how many bytes it returns and accepts, when it
 * must write before it can read or read before it can write, and when it ends.  Two
 * bytes of input are an operation and its amount.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "worker/worker.h"
#include "worker/connection.h"
#include "worker/relay_tls.h"

#define LIMIT (1024 * 1024)		/* bytes in each direction */

PgpxShared *pgpx_shared = NULL;
PgpxWorkerConn *pgpx_wconns = NULL;
PgpxConn   *pgpx_conns = NULL;

/* Bytes sent by the remote and received by the session, and the other direction. */
static size_t remote_sent;
static size_t session_received;
static size_t session_sent;
static size_t remote_received;

/* Bytes that TLS returns and accepts; the event it needs first; its end. */
static size_t readable;
static size_t writable;
static bool read_blocked;
static bool write_blocked;
static bool remote_ended;
static bool remote_broken;

static int	external;			/* counted descriptors */
static int	external_max = 2;


static int	remote_fd;
static int	local_fd;			/* the relay's end of its pair */
static uint32 remote_events;	/* as registered */
static uint32 local_events;

/* The bytes of a stream by their position. */
static char
byte_at(size_t slot, bool inward)
{
	return (char) (slot * 31 + slot / 251 + (inward ? 7 : 0));
}

/* --- TLS ------------------------------------------------------------------- */

void
pgpx_tls_begin(PgpxTlsStream *tls, SSL *ssl, size_t chunk)
{
	memset(tls, 0, sizeof(*tls));
}

size_t
pgpx_tls_read(PgpxTlsStream *tls, char *data, size_t size)
{
	size_t		n;

	tls->read_wants_write = false;
	tls->buffered = false;
	if (remote_broken)
	{
		tls->ended = tls->write_closed = true;
		return 0;
	}
	if (read_blocked)
	{
		tls->read_wants_write = true;
		return 0;
	}
	n = Min(size, readable);
	for (size_t i = 0; i < n; i++)
		data[i] = byte_at(remote_sent - readable + i, true);
	readable -= n;
	if (n == size)
		tls->buffered = true;
	else if (remote_ended)
		tls->ended = tls->write_closed = true;
	return n;
}

size_t
pgpx_tls_write(PgpxTlsStream *tls, const char *data, size_t len)
{
	size_t		n;

	tls->write_wants_read = false;
	if (tls->write_closed)
		return len;
	if (remote_broken)
	{
		tls->write_closed = tls->buffered = true;
		return len;
	}
	if (write_blocked)
	{
		tls->write_wants_read = true;
		return 0;
	}
	n = Min(len, writable);
	for (size_t i = 0; i < n; i++)
		FUZZ_CHECK(data[i] == byte_at(remote_received + i, false) ||
				   (len == 5 && data[0] == 'X'));
	if (!(len == 5 && data[0] == 'X' && remote_received == session_sent))
		remote_received += n;
	writable -= n;
	return n;
}

void
pgpx_tls_close_notify(PgpxTlsStream *tls)
{
	tls->write_closed = true;
}

void
pgpx_tls_end(PgpxTlsStream *tls)
{
}

/* --- the event loop --------------------------------------------------------- */

/* The worker has one connection. */
int
pgpx_connection_next(int after)
{
	return after < 0 ? 0 : -1;
}

void
pgpx_event_watch(PgpxWatchKind kind, int index, int fd, uint32 events,
				   bool add)
{
	bool		remote = kind == PGPX_WATCH_RELAY_REMOTE;
	uint32	   *registered = remote ? &remote_events : &local_events;

	FUZZ_CHECK(remote || kind == PGPX_WATCH_RELAY_LOCAL);
	FUZZ_CHECK(add == (*registered == 0) && events != 0);
	if (remote)
		FUZZ_CHECK(fd == remote_fd);
	else
		local_fd = fd;
	*registered = events;
}

void
pgpx_event_unwatch(int fd)
{
	uint32	   *registered = fd == remote_fd ? &remote_events : &local_events;

	if (fd < 0 || (fd != remote_fd && fd != local_fd))
		return;
	FUZZ_CHECK(*registered != 0);
	*registered = 0;
}

bool
AcquireExternalFD(void)
{
	if (external >= external_max)
		return false;
	external++;
	return true;
}

void
ReleaseExternalFD(void)
{
	external--;
}

/* (the library's are not linked) */
int
PQsocket(const PGconn *conn)
{
	return remote_fd;
}

void *
PQsslStruct(PGconn *conn, const char *name)
{
	return NULL;
}

/* --- the events of epoll ------------------------------------------------------- */

static void
remote_event(PgpxWorkerConn *w)
{
	uint32		events = 0;

	if ((readable > 0 || remote_ended || remote_broken ||
		 write_blocked) && (remote_events & EPOLLIN))
		events |= EPOLLIN;
	if ((writable > 0 || read_blocked || remote_broken) &&
		(remote_events & EPOLLOUT))
		events |= EPOLLOUT;
	if (remote_events != 0 && remote_broken)
		events |= EPOLLHUP;
	if (events == 0)
		return;

	/* the event it needed first has occurred */
	if (events & EPOLLIN)
		write_blocked = false;
	if (events & EPOLLOUT)
		read_blocked = false;
	pgpx_relay_ready(w, false, events);
}

static void
local_event(PgpxWorkerConn *w, struct epoll_event *have)
{
	uint32		events = have->events & (local_events | EPOLLHUP | EPOLLERR);

	if (local_events != 0 && events != 0)
		pgpx_relay_ready(w, true, events);
}

/* The events of the relay's end of the pair. */
static uint32
local_state(void)
{
	static int	epoll = -1;
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
	struct epoll_event have = {0};

	if (epoll < 0)
		epoll = epoll_create1(0);
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, local_fd, &event) < 0)
		return 0;
	(void) epoll_wait(epoll, &have, 1, 0);
	(void) epoll_ctl(epoll, EPOLL_CTL_DEL, local_fd, NULL);
	return have.events;
}

/* --- the session ----------------------------------------------------------------- */

static void
session_writes(PgpxWorkerConn *w, size_t n)
{
	char		data[4096];
	int			fd = pgpx_relay_socket(w->relay);

	n = Min(n, Min(sizeof(data), LIMIT - session_sent));
	for (size_t i = 0; i < n; i++)
		data[i] = byte_at(session_sent + i, false);
	if (fd >= 0)
	{
		ssize_t		sent = send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent > 0)
			session_sent += sent;
	}
}

/* Returns whether there was input, or the end. */
static bool
session_reads(PgpxWorkerConn *w, size_t n)
{
	static char data[65536];
	int			fd = pgpx_relay_socket(w->relay);
	ssize_t		got;

	if (fd < 0)
		return false;
	got = recv(fd, data, Min(n, sizeof(data)), MSG_DONTWAIT);
	for (ssize_t i = 0; i < got; i++)
		FUZZ_CHECK(data[i] == byte_at(session_received + i, true));
	if (got > 0)
		session_received += got;
	FUZZ_CHECK(session_received <= remote_sent);
	return got > 0;
}

/* --- the harness ------------------------------------------------------------------- */

static void
operate(PgpxWorkerConn *w, int operation, int amount)
{
	size_t		n = (size_t) amount * amount + 1;
	struct epoll_event have = {0};

	switch (operation % 14)
	{
		case 0:
			session_writes(w, n);
			break;
		case 1:
			(void) session_reads(w, n);
			break;
		case 2:
			if (remote_sent + n <= LIMIT && !remote_ended)
			{
				remote_sent += n;
				readable += n;
			}
			break;
		case 3:
			writable += n;
			break;
		case 4:
		case 5:
			remote_event(w);
			break;
		case 6:
		case 7:
			have.events = local_state();
			local_event(w, &have);
			break;
		case 8:
			if (pgpx_relay_has_more())
				pgpx_relay_resume();
			break;
		case 9:
			read_blocked = true;
			break;
		case 10:
			write_blocked = true;
			break;
		case 11:
			remote_ended = remote_ended || amount > 200;
			break;
		case 12:
			if (amount > 240 && pgpx_relay_socket(w->relay) >= 0)
				shutdown(pgpx_relay_socket(w->relay), SHUT_WR);
			break;
		default:
			remote_broken = remote_broken || amount > 250;
			break;
	}
}

/* Run all until no byte can be moved: all expected bytes have arrived. */
static void
drain(PgpxWorkerConn *w)
{
	int			rounds;
	int			idle = 0;

	for (rounds = 0; rounds < 2000 && idle < 8; rounds++)
	{
		size_t		before = session_received + remote_received;
		struct epoll_event have = {.events = local_state()};

		writable = LIMIT;
		remote_event(w);
		local_event(w, &have);
		if (pgpx_relay_has_more())
			pgpx_relay_resume();
		while (session_reads(w, LIMIT))
			;
		idle = before == session_received + remote_received ? idle + 1 : 0;
	}
	FUZZ_CHECK(rounds < 2000);
	FUZZ_CHECK(!pgpx_relay_has_more());
	if (!remote_broken)
		FUZZ_CHECK(session_received == remote_sent);
	if (!remote_broken && !remote_ended)
		FUZZ_CHECK(remote_received == session_sent);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	PgpxWorkerConn *w;
	int			pair[2];

	if (pgpx_shared == NULL)
	{
		pgpx_shared = calloc(1, sizeof(PgpxShared));
		pgpx_shared->max_connections = 1;
		pg_atomic_init_u32(&pgpx_shared->conns_end, 1);
		pgpx_wconns = calloc(1, sizeof(PgpxWorkerConn));
		pgpx_conns = calloc(1, sizeof(PgpxConn));

		/* with one descriptor left there is no relay, and the descriptor is not used */
		external_max = 1;
		FUZZ_CHECK(pgpx_relay_begin(&pgpx_wconns[0]) != NULL && external == 0);
		external_max = 2;
	}
	remote_sent = session_received = session_sent = remote_received = readable = writable = 0;
	read_blocked = write_blocked = remote_ended = remote_broken = false;
	remote_events = local_events = 0;
	local_fd = -1;
	FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	remote_fd = pair[0];
	w = &pgpx_wconns[0];
	memset(w, 0, sizeof(*w));
	w->fd = -1;
	FUZZ_CHECK(pgpx_relay_begin(w) == NULL);
	FUZZ_CHECK(local_events & EPOLLIN);

	for (size_t i = 0; i + 1 < size && i < 2000; i += 2)
		operate(w, data[i], data[i + 1]);
	if (size > 0 && data[size - 1] == 255)
	{
		pgpx_relay_cut(w, true);
		FUZZ_CHECK(remote_events == 0 && local_events == 0);
		FUZZ_CHECK(!pgpx_relay_has_more());
	}
	else
		drain(w);
	pgpx_relay_end(w);
	FUZZ_CHECK(external == 0);
	FUZZ_CHECK(remote_events == 0 && local_events == 0);
	FUZZ_CHECK(!pgpx_relay_has_more());
	close(pair[0]);
	close(pair[1]);
	fuzz_free_all();
	return 0;
}
