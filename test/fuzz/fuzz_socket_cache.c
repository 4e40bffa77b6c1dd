/*-------------------------------------------------------------------------
 *
 * fuzz_socket_cache.c
 *	  The session's requests for the socket of a leased connection, with any
 *	  replies: socket_cache.c, with the input in the role of the worker.
 *
 * The sockets between the two are real, and so are the messages and descriptors.  The
 * input is a list of operations: of the session, and, while it waits for a reply, of
 * the worker.  A reply that differs from the request in one field, has another
 * length, no descriptor or several ones is rejected, and so is a reply to a request
 * that timed out.  The first correct reply is accepted, with the socket that it
 * contains.  No descriptor is lost, the count of descriptors is right, and the replies
 * of an honest worker are accepted afterwards.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>

#include "protocol/control_message.h"
#include "session/socket_cache.h"
#include "fuzz.h"
#include "fuzz_socket_cache.h"

#define NCONNS (CACHE_MAX + 8)
#define INCARNATION 3
#define REQUESTS 4				/* that the worker stores */
#define ORPHANS 8

static const uint8_t *input;
static size_t input_left;

/* --- the expected state of the session ---------------------------------------- */

typedef struct Socket
{
	PgpxCachedSocket   *sock;			/* NULL: none */
	uint64		generation;
	ino_t		ino;
} Socket;

static Socket sockets[NCONNS];
static uint64 generations[NCONNS];
static Socket orphans[ORPHANS]; /* leased, of a former generation */
static int	nsockets;			/* of both kinds */
static bool had_orphans;

/* --- the request and its outcome ---------------------------------------------- */

typedef struct Request
{
	PgpxSocketRequest message;
	int			fd;				/* for the reply; -1: none */
} Request;

static Request requests[REQUESTS];	/* [0] is the newest */
static bool at_end_of_file;				/* the socket pair has reached end of file */
static uint64 next_lease;
static PgpxTime deadline;

/* of the current request */
static uint64 asking;			/* its lease; 0: none */
static bool answered;			/* a correct reply has been sent */
static bool granted;			/* that reply had the socket granted_ino */
static ino_t granted_ino;

/* --- the worker -------------------------------------------------------------------- */

static int
take_byte(void)
{
	if (input_left == 0)
		return 0;
	input_left--;
	return *input++;
}

static void
discard_request(Request *request)
{
	if (request->fd >= 0)
		close(request->fd);
	request->fd = -1;
}

/* Read the requests, as the worker does. */
static void
read_requests(void)
{
	static char buffer[PGPX_MESSAGE_MAX];
	bool		more;
	ssize_t		len;
	int			fd;

	while ((len = pgpx_control_receive(0, INCARNATION, buffer, &fd, &more)) > 0)
	{
		FUZZ_CHECK(len == sizeof(PgpxSocketRequest) && fd >= 0);
		discard_request(&requests[REQUESTS - 1]);
		memmove(requests + 1, requests, sizeof(Request) * (REQUESTS - 1));
		memcpy(&requests[0].message, buffer, len);
		requests[0].fd = fd;
	}
	FUZZ_CHECK(!more);
}

/* The reply of an honest worker. */
static PgpxReply
honest_reply(const PgpxSocketRequest *request)
{
	PgpxReply	reply;

	memset(&reply, 0, sizeof(reply));
	reply.boot_id = request->header.boot_id;
	reply.incarnation = request->header.incarnation;
	reply.conn = request->conn;
	reply.ok = 1;
	reply.generation = request->generation;
	reply.lease_id = request->lease_id;
	reply.request = request->request;
	return reply;
}

/*
 * Answers a request.  Each bit of "lies" makes one field wrong; the length and the
 * number of sockets may be wrong, too.  The session does not compare the incarnation,
 * because the number of the request is unique during the session.
 */
static void
answer(int which, int lies, int len, int nfds)
{
	const Request *request = &requests[which];
	char		data[256] = {0};
	PgpxReply	reply = honest_reply(&request->message);
	bool		right;
	ino_t		ino = 0;

	if (request->fd < 0)
		return;
	right = (lies & ~(1 << 1 | 1 << 6)) == 0 && len == sizeof(reply) &&
		nfds <= 1 && request->message.lease_id == asking;
	reply.boot_id ^= lies & 1 << 0;
	reply.incarnation ^= lies & 1 << 1;
	reply.conn ^= lies & 1 << 2;
	reply.generation ^= lies & 1 << 3;
	reply.lease_id ^= lies & 1 << 4;
	if (lies & 1 << 5)
		reply.request--;
	if (lies & 1 << 6)
		reply.ok = 0;
	memcpy(data, &reply, sizeof(reply));
	if (!send_message(request->fd, data, len, nfds, &ino))
		return;
	if (len == 0)
		at_end_of_file = true;	/* an empty message is read as end of file */
	if (right && !answered)
	{
		answered = true;
		granted = reply.ok != 0 && nfds == 1;
		granted_ino = ino;
	}
}

/* Executes an operation of the worker, or another event; true: one more follows. */
static bool
run_worker_step(void)
{
	int			op = take_byte();
	int			lies;
	int			len;
	char		raw[64];
	ino_t		ino;

	switch (op & 15)
	{
		case 0:
			answer(0, 0, sizeof(PgpxReply), 1);
			break;
		case 1:
			answer(0, take_byte() & 127, sizeof(PgpxReply), op >> 4 & 1);
			break;
		case 2:
			lies = take_byte() & 127;
			len = take_byte();
			answer(0, lies, len, op >> 4 & 1);
			break;
		case 3:
			answer(0, take_byte() & 64, sizeof(PgpxReply), (op >> 4 & 7) % (MOST_FDS + 1));
			break;
		case 4:
			answer(1 + (op >> 4 & 7) % (REQUESTS - 1), 0, sizeof(PgpxReply), 1);
			break;
		case 5:
			len = take_byte() % sizeof(raw);
			for (int i = 0; i < len; i++)
				raw[i] = take_byte();
			if (len > 0 && requests[0].fd >= 0)
				(void) send_message(requests[0].fd, raw, len, op >> 4 & 1, &ino);
			break;
		case 6:
			InterruptPending = true;
			break;
		case 7:
			/* the connection is no longer leased to us */
			pg_atomic_write_u64(&pgpx_conns[requests[0].message.conn].lease_id, 0);
			break;
		case 8:
			if (requests[0].fd >= 0)
			{
				shutdown(requests[0].fd, SHUT_WR);
				at_end_of_file = true;
			}
			break;
		case 9:
			discard_request(&requests[0]);
			break;
		case 10:
			external_max = external + (op >> 4 & 3);
			break;
		default:
			now += take_byte() * 1000;
			break;
	}
	return (op & 128) != 0 && input_left > 0;
}

/* The session waits for a reply. */
int
WaitLatchOrSocket(Latch *latch, int events, pgsocket test_sock, long timeout,
				  uint32 wait_event)
{
	FUZZ_CHECK((events & WL_SOCKET_READABLE) != 0 && test_sock >= 0);
	FUZZ_CHECK((events & WL_TIMEOUT) == 0 || timeout > 0);
	read_requests();
	now++;
	if (input_left > 0)
		while (run_worker_step())
			;
	else
		now = deadline;
	return WL_LATCH_SET | WL_SOCKET_READABLE;
}

/* --- the session -------------------------------------------------------------------- */

static void
drop_socket(Socket *s)
{
	if (s->sock == NULL)
		return;
	FUZZ_CHECK(ino_of(s->sock->fd) == s->ino);
	pgpx_socket_cache_drop(s->sock);
	s->sock = NULL;
	nsockets--;
}

/* Finds sockets that were closed.  Without a reason ("for_room") there are none. */
static void
find_closed(bool for_room)
{
	for (int i = 0; i < NCONNS; i++)
	{
		Socket	   *s = &sockets[i];
		PgpxCachedSocket   *sock;

		if (s->sock == NULL)
			continue;
		sock = pgpx_socket_cache_find(i, s->generation);
		FUZZ_CHECK(sock == NULL || (sock == s->sock && ino_of(sock->fd) == s->ino));
		if (sock != NULL)
			continue;
		FUZZ_CHECK(for_room);
		s->sock = NULL;
		nsockets--;
	}
	for (int i = 0; i < ORPHANS; i++)
		FUZZ_CHECK(orphans[i].sock == NULL ||
				   ino_of(orphans[i].sock->fd) == orphans[i].ino);
}

/* The connection's generation has ended; a leased socket stays until the lease ends. */
static bool
end_generation(int conn)
{
	Socket	   *s = &sockets[conn];

	if (s->sock != NULL && s->sock->leased)
	{
		int			i = 0;

		while (i < ORPHANS && orphans[i].sock != NULL)
			i++;
		if (i == ORPHANS)
			return false;
		orphans[i] = *s;
		had_orphans = true;
	}
	else if (s->sock != NULL)
		nsockets--;				/* closed by the check below */
	s->sock = NULL;
	FUZZ_CHECK(pgpx_socket_cache_find(conn, ++generations[conn]) == NULL);
	return true;
}

static void
fetch(int conn)
{
	volatile PgpxFetch result = PGPX_FETCH_GONE;
	PgpxCachedSocket   *volatile sock = NULL;
	PgpxCachedSocket   *found = NULL;
	volatile bool thrown = false;
	int			before = nsockets;

	if (pgpx_socket_cache_find(conn, generations[conn]) != NULL)
		return;
	asking = ++next_lease;
	pg_atomic_write_u64(&pgpx_conns[conn].lease_id, asking);
	deadline = now + 1000 * 1000;
	answered = granted = may_fail = refused = false;
	fuzz_may_throw = true;
	if (sigsetjmp(fuzz_error, 0) == 0)
	{
		result = pgpx_socket_cache_fetch(0, conn, generations[conn], asking, deadline,
								 &found);
		sock = found;
	}
	else
		thrown = true;
	fuzz_may_throw = false;
	FUZZ_CHECK(PG_exception_stack == NULL);
	FUZZ_CHECK(!thrown || may_fail);
	if (thrown)
		;
	else if (result == PGPX_FETCH_OK)
	{
		FUZZ_CHECK(answered && granted);
		FUZZ_CHECK(sock->fd >= 0 && ino_of(sock->fd) == granted_ino);
		FUZZ_CHECK(sock->conn == conn && sock->generation == generations[conn]);
		FUZZ_CHECK(!sock->leased && (fcntl(sock->fd, F_GETFD) & FD_CLOEXEC));
		sockets[conn].sock = sock;
		sockets[conn].generation = generations[conn];
		sockets[conn].ino = granted_ino;
		nsockets++;
	}
	else if (result == PGPX_FETCH_GONE)
	{
		if (!(answered && !granted) &&
			pg_atomic_read_u64(&pgpx_conns[conn].lease_id) == asking)
		{
			FUZZ_CHECK(at_end_of_file);
			at_end_of_file = false; /* the session creates another socket pair */
		}
	}
	else
		FUZZ_CHECK(!answered && now >= deadline);
	asking = 0;
	InterruptPending = false;
	find_closed(refused || before >= CACHE_MAX);
	FUZZ_CHECK(external == nsockets + PGPX_SESSION_WAIT_FDS ||
			   external == nsockets + PGPX_SESSION_WAIT_FDS + 2);
}

/* Checks the socket before or after a lease; its other end is closed. */
static void
next_check(PgpxCachedSocket *sock, bool contended)
{
	if (sock == NULL)
		return;
	pgpx_pools[0].nwaiting = contended ? 1 : 0;
	FUZZ_CHECK(!pgpx_session_has_no_input(sock));
	pgpx_session_unregister_if_contended(sock);
	FUZZ_CHECK(!contended || sock->events == 0);
}

static void
fetch_honestly(int conn)
{
	static const uint8_t honest = 0;
	bool		again = at_end_of_file;

	input = &honest;
	input_left = 1;
	fetch(conn);
	if (again && sockets[conn].sock == NULL)
		fetch_honestly(conn);
	FUZZ_CHECK(sockets[conn].sock != NULL);
}

static void
drop_all(void)
{
	for (int i = 0; i < NCONNS; i++)
		drop_socket(&sockets[i]);
	for (int i = 0; i < ORPHANS; i++)
		drop_socket(&orphans[i]);
}

static bool
can_prepare(void)
{
	volatile bool thrown = false;

	fuzz_may_throw = true;
	if (sigsetjmp(fuzz_error, 0) == 0)
		pgpx_session_prepare_wait();
	else
		thrown = true;
	fuzz_may_throw = false;
	FUZZ_CHECK(PG_exception_stack == NULL && pgpx_session_can_wait() == !thrown);
	return !thrown;
}

static void
set_up(void)
{
	pgpx_shared = calloc(1, sizeof(PgpxShared));
	pgpx_pools = calloc(1, sizeof(PgpxPool));
	pgpx_conns = calloc(NCONNS, sizeof(PgpxConn));
	pgpx_shared->boot_id = 7;
	pgpx_shared->max_pools = 1;
	pgpx_shared->max_connections = NCONNS;
	pg_atomic_init_u32(&pgpx_shared->pools_end, 1);
	pg_atomic_init_u32(&pgpx_shared->conns_end, NCONNS);
	pg_atomic_init_u64(&pgpx_shared->worker[0].incarnation, INCARNATION);
	for (int i = 0; i < REQUESTS; i++)
		requests[i].fd = -1;
	pgpx_control_init(1);
	external_max = INT_MAX;

	/* connections that exist have a socket in the end, after any number of failures */
	sets_fail = true;
	FUZZ_CHECK(!can_prepare() && external == 1);
	sets_fail = false;
	external_max = 1;
	FUZZ_CHECK(!can_prepare() && external == 1);
	external_max = 0;
	FUZZ_CHECK(!can_prepare() && external == 1);
	external_max = INT_MAX;
	FUZZ_CHECK(can_prepare() && external == PGPX_SESSION_WAIT_FDS);
	fetch_honestly(0);
	drop_all();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int			chunks;
	int			fds;
	int			conn;

	if (pgpx_shared == NULL)
		set_up();
	if (size > 4096)
		return 0;
	for (int i = 0; i < REQUESTS; i++)
		discard_request(&requests[i]);
	chunks = fuzz_chunks();
	fds = count_fds();
	input = data;
	input_left = size;
	had_orphans = false;
	now = 1;
	while (input_left >= 2)
	{
		int			op = take_byte();

		conn = take_byte() % NCONNS;
		switch (op & 7)
		{
			case 0:
			case 1:
			case 2:
				fetch(conn);
				break;
			case 3:
				drop_socket(&sockets[conn]);
				break;
			case 4:
				if (sockets[conn].sock != NULL)
					sockets[conn].sock->leased = (op & 128) == 0;
				break;
			case 5:
				(void) end_generation(conn);
				break;
			case 6:
				external_max = (op & 128) != 0 ? INT_MAX : external + (op >> 3 & 7);
				break;
			case 7:
				if ((op & 8) != 0)
					next_check(sockets[conn].sock, (op & 128) != 0);
				else
					drop_socket(&orphans[conn % ORPHANS]);
				break;
		}
	}

	/* as it was, and as expected */
	external_max = INT_MAX;
	drop_all();
	fetch_honestly(0);
	for (int i = 1; had_orphans && i <= CACHE_MAX; i++)
		fetch_honestly(i);
	FUZZ_CHECK(nsockets <= CACHE_MAX);
	drop_all();
	for (int i = 0; i < REQUESTS; i++)
		discard_request(&requests[i]);
	FUZZ_CHECK(nsockets == 0 && external == PGPX_SESSION_WAIT_FDS + 2);
	FUZZ_CHECK(fuzz_chunks() == chunks);
	FUZZ_CHECK(count_fds() == fds);
	return 0;
}
