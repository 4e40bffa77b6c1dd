/*-------------------------------------------------------------------------
 *
 * login.c
 *	  Logins, performed in threads step by step, and bounds on libpq's memory.
 *
 * Threads.  PQconnectPoll does not wait for input, but the remote determines
 * how much it has to compute.  In SCRAM the remote chooses the number of hash
 * iterations (RFC 7677; two billion take ten minutes), in TLS the sizes of the
 * keys.  In the event loop such a computation would delay all other pools.  So
 * each step runs in a thread (events.c has the rules).  A login that is
 * abandoned during a step is left to the thread: the computation cannot be
 * interrupted, so it continues at a priority at which it runs only while the
 * processor is otherwise idle, and the login is freed when it ends.
 *
 * From the start of a step to its end the thread owns the PGconn.  No other
 * code may call a function on it, not even PQsocket.
 *
 * Two calls in a step can block.  If a message does not fit into the send
 * buffer, libpq waits until the remote accepts it.  OpenSSL continues a
 * handshake for as long as the remote sends messages of it.  So the socket of
 * an abandoned step is shut down.  libpq may have replaced it by the socket for
 * the next host in the meantime.  In that case the step does not block, because
 * it only starts to connect to that host.
 *
 * Limits on threads:
 *	- The steps of one pool that run at once, abandoned ones included, are
 *	  limited.  So a remote that makes every login compute for long cannot
 *	  occupy more threads than that.  Other logins of the pool wait in order of
 *	  arrival, as long as connect_timeout allows.
 *	- This limit counts logins with the same conninfo only.  After a change of
 *	  options a login does not wait behind those with the old options, so that
 *	  a fixed configuration works at once.
 *	- The right to change a user mapping or to create servers allows a user to
 *	  make new conninfos repeatedly.  So a user has a limit for all of them.
 *
 * The cancel requests of libpq 17 and later perform the TLS part of a login,
 * too.  They have the same limits, but are counted separately, so that neither
 * kind waits for the other.
 *
 * Memory.  libpq trusts the server that it talks to, so the worker bounds
 * what a remote can make it store:
 *	- Notices: libpq prints them to stderr, which is the log.  They are dropped.
 *	- Notifications and rows: libpq stores them until the caller fetches them.
 *	  Notifications are dropped after each read.  Where statements run, rows are
 *	  fetched one at a time (PQsetSingleRowMode) and dropped.
 *	- Reported parameters: libpq stores them until the connection closes.  They
 *	  count as excess: all bytes of a connection that are not of rows.
 *	- Message lengths: libpq allocates 1 GB for a message that announces this
 *	  length, and stores the message until it is complete.  An allocation is
 *	  only address space until it is used.  So the bound is on the bytes
 *	  received since libpq last returned something.
 *
 * TCP reports these bytes, with TLS and without.  One call of libpq reads a
 * whole message of 1 GB if the remote sends faster than libpq reads.  So the
 * bytes are also checked every READ_CHECK_MS during a call: by a timer for the
 * calls of the event loop, by the event loop for the logins in threads.  If
 * there are too many, the socket is shut down.
 *
 * A Unix-domain socket does not report them.  For such a socket, the bytes that
 * are ready before each step of the login are counted.  After the login no
 * bytes are counted, because the process that listens on such a socket runs on
 * this machine.
 *
 * The worker does not use PQtrace, because libpq prints messages before it has
 * checked them, and a length in one can make it read beyond its buffer.
 *
 * Read-ahead.  libpq also receives bytes after the answer that it waits for.
 * It discards complete messages.  The beginning of an incomplete message stays
 * in its buffer.  wire.c then reads the rest, does not find a message header,
 * and breaks the stream.  No function of libpq reports the buffered beginning,
 * so this is not prevented.  It needs no prevention: an honest remote hardly
 * ever sends anything at that point, and only its own connection breaks.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/login.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/ilist.h"
#include "storage/fd.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "worker/events.h"

/* Limits of threads: of a pool with the same conninfo, and of a user. */
#define MAX_STEPS 4
#define MAX_OF_USER 64

typedef enum LoginState
{
	AWAITING_REMOTE = 0,		/* waits for the remote */
	QUEUED,						/* waits for other steps of the pool */
	RUNNING,					/* a thread runs the step */
	ABANDONED					/* the same, but the owner has ended it */
} LoginState;

struct PgpxLogin
{
	PgpxTask	task;
	const PgpxLoginKind *kind;
	LoginState	state;
	dlist_node	node;			/* in steps, unless AWAITING_REMOTE */
	PgpxLoginKey key;
	PgpxThreadUser user;
	int			fd;				/* socket in this step; -1: none */
	struct stat socket;			/* identifies it, since fd may be reused */
	void	   *libpq;			/* libpq's object, of the type for "kind" */
	PgpxInputAccounting *accounting;
	bool		exceeded;		/* the step was stopped: too much input */
	PostgresPollingStatusType status;
	int			error;			/* errno after the step */
	PgpxLoginStepped stepped;
	void	   *owner;			/* passed to stepped */
};

static dlist_head steps = DLIST_STATIC_INIT(steps);

/* Interval of the checks of the bytes that a call of libpq has read. */
#define READ_CHECK_MS 10

/* When to check the running steps next; PG_INT64_MAX: no step is running. */
static PgpxTime next_check = PG_INT64_MAX;

static void finish_step(PgpxTask *task);
static void begin_accounting(PgpxInputAccounting *accounting);
static void account_before_step(PgpxInputAccounting *accounting, int fd);
static bool account_after_step(PgpxInputAccounting *accounting, int fd);
static bool exceeds_login_max(int fd);
static void stop_input(int fd);

/* Called in the thread. */
static void
run_step(PgpxTask *task)
{
	PgpxLogin  *login = (PgpxLogin *) task;

	errno = 0;
	login->status = login->kind->poll(login->libpq);
	login->error = errno;
}

static PostgresPollingStatusType
poll_login(void *pg)
{
	return PQconnectPoll(pg);
}

static int
socket_of_login(const void *pg)
{
	return PQsocket(pg);
}

static void
finish_login(void *pg)
{
	PQfinish(pg);
}

static const PgpxLoginKind login_kind =
	{poll_login, socket_of_login, finish_login};

PgpxLogin *
pgpx_login_begin_kind(const PgpxLoginKind *kind, PgpxLoginKey key, void *libpq,
					  PgpxInputAccounting *accounting, PgpxLoginStepped stepped,
					  void *owner)
{
	PgpxLogin  *login = calloc(1, sizeof(*login));

	if (login == NULL)
		return NULL;
	login->task.run = run_step;
	login->task.ended = finish_step;
	login->kind = kind;
	login->key = key;
	login->user = pgpx_pool_thread_user(key.pool);
	login->libpq = libpq;
	login->accounting = accounting;
	login->stepped = stepped;
	login->owner = owner;
	begin_accounting(accounting);
	return login;
}

PgpxLogin *
pgpx_login_begin(PgpxLoginKey key, PGconn *pg, PgpxInputAccounting *accounting,
				 PgpxLoginStepped stepped, void *owner)
{
	return pgpx_login_begin_kind(&login_kind, key, pg, accounting, stepped,
								 owner);
}

static bool
has_same_conninfo(const PgpxLogin *a, const PgpxLogin *b)
{
	return a->kind == b->kind && a->key.pool == b->key.pool &&
		a->key.pool_id == b->key.pool_id && a->key.version == b->key.version;
}

/* Numbers of the threads of a login's kind that count towards its limits. */
typedef struct Threads
{
	int			same_conninfo;	/* of its pool with its conninfo */
	int			same_abandoned;
	int			user;			/* its user's */
} Threads;

static Threads
count_threads(const PgpxLogin *login)
{
	Threads		n = {0};
	dlist_iter	iter;

	dlist_foreach(iter, &steps)
	{
		PgpxLogin  *other = dlist_container(PgpxLogin, node, iter.cur);

		if (other->state == QUEUED || other->kind != login->kind ||
			!pgpx_is_same_thread_user(&other->user, &login->user))
			continue;
		n.user++;
		if (has_same_conninfo(other, login))
		{
			n.same_conninfo++;
			n.same_abandoned += other->state == ABANDONED ? 1 : 0;
		}
	}
	return n;
}

static bool
may_start(const PgpxLogin *login)
{
	Threads		n = count_threads(login);

	return n.same_conninfo < MAX_STEPS && n.user < MAX_OF_USER;
}

/* Return the first waiting login of a user that may start. */
static PgpxLogin *
next_to_start(const PgpxThreadUser *user)
{
	PgpxLogin  *stuck = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &steps)
	{
		PgpxLogin  *login = dlist_container(PgpxLogin, node, iter.cur);

		if (login->state != QUEUED ||
			!pgpx_is_same_thread_user(&login->user, user))
			continue;

		/* skip logins that the same limits block, rather than count again */
		if (stuck != NULL && has_same_conninfo(login, stuck))
			continue;
		if (may_start(login))
			return login;
		stuck = login;
	}
	return NULL;
}

/*
 * Start the waiting logins of a user that may start.  Called after the end of a
 * step and for a new step.
 */
static void
start_waiting_steps(const PgpxThreadUser *user)
{
	PgpxLogin  *next;

	while ((next = next_to_start(user)) != NULL)
	{
		next->state = RUNNING;
		next->exceeded = false;
		next_check = Min(next_check, pgpx_now() + READ_CHECK_MS * 1000);
		account_before_step(next->accounting, next->fd);
		if (pgpx_task_start(&next->task))
			continue;
		next->state = AWAITING_REMOTE;
		dlist_delete(&next->node);
		next->stepped(next->owner, PGRES_POLLING_FAILED,
					  ERRCODE_INSUFFICIENT_RESOURCES,
					  "The pool worker could not start a thread for the login.");
	}
}

/* Record the socket of the next step. */
static void
find_socket(PgpxLogin *login)
{
	login->fd = login->kind->socket(login->libpq);
	if (fstat(login->fd, &login->socket) < 0)
		login->fd = -1;
}

/*
 * Duplicate the descriptor of the socket of the current step.  Return -1 if
 * there is none.  The thread may close the socket at any time, and its number
 * may be reused.  So this verifies that the duplicate is the same socket.
 */
static int
duplicate_socket(const PgpxLogin *login)
{
	struct stat now;
	int			fd;

	if (login->fd < 0 || (fd = fcntl(login->fd, F_DUPFD_CLOEXEC, 0)) < 0)
		return -1;
	if (fstat(fd, &now) == 0 && now.st_dev == login->socket.st_dev &&
		now.st_ino == login->socket.st_ino)
		return fd;
	close(fd);
	return -1;
}

/* Shut down the socket of the current step, so that no call in it blocks. */
static void
shut_down_socket(const PgpxLogin *login)
{
	int			fd = duplicate_socket(login);

	if (fd < 0)
		return;
	(void) shutdown(fd, SHUT_RDWR);
	close(fd);
}

PgpxTime
pgpx_login_stop_oversized(PgpxTime now)
{
	dlist_iter	iter;

	if (now < next_check)
		return next_check;
	next_check = PG_INT64_MAX;
	dlist_foreach(iter, &steps)
	{
		PgpxLogin  *login = dlist_container(PgpxLogin, node, iter.cur);
		int			fd;

		if (login->state != RUNNING || login->exceeded)
			continue;
		next_check = now + READ_CHECK_MS * 1000;
		if ((fd = duplicate_socket(login)) < 0)
			continue;
		login->exceeded = exceeds_login_max(fd);
		if (login->exceeded)
			stop_input(fd);
		close(fd);
	}
	return next_check;
}

void
pgpx_login_step(PgpxLogin *login)
{
	PgpxThreadUser user = login->user;

	if (login->state != AWAITING_REMOTE)
		return;
	login->state = QUEUED;
	find_socket(login);
	dlist_push_tail(&steps, &login->node);
	start_waiting_steps(&user);
}

/* Called in the event loop when a step has ended. */
static void
finish_step(PgpxTask *task)
{
	PgpxLogin  *login = (PgpxLogin *) task;
	PgpxThreadUser user = login->user;
	bool		abandoned = login->state == ABANDONED;

	dlist_delete(&login->node);
	if (abandoned)
	{
		/* the remote must not receive the Terminate that PQfinish sends */
		(void) shutdown(login->kind->socket(login->libpq), SHUT_RDWR);
		login->kind->finish(login->libpq);
		ReleaseExternalFD();
		free(login);
	}
	else
	{
		int			fd = login->kind->socket(login->libpq);
		bool		short_enough = account_after_step(login->accounting,
													  fd);

		/* a step that has not failed has gone on to the next host */
		if (login->exceeded && login->status == PGRES_POLLING_FAILED)
			short_enough = false;
		login->state = AWAITING_REMOTE;
		errno = login->error;
		if (short_enough)
			login->stepped(login->owner, login->status,
						   ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						   NULL);
		else
			login->stepped(login->owner, PGRES_POLLING_FAILED,
						   ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						   "The remote server sent too much data during the login.");
	}

	start_waiting_steps(&user);
}

bool
pgpx_login_is_running(const PgpxLogin *login)
{
	return login != NULL && login->state == RUNNING;
}

const char *
pgpx_login_delay_reason(const PgpxLogin *login)
{
	Threads		n;

	if (login == NULL || login->state == AWAITING_REMOTE)
		return "";
	n = count_threads(login);
	if (login->state == QUEUED && n.same_abandoned >= MAX_STEPS)
		return ": earlier logins of the pool are still computing their authentication";
	if (login->state == QUEUED && n.user >= MAX_OF_USER)
		return ": too many logins of this user are still computing their authentication";
	return ": what the remote server asks for takes longer to compute";
}

bool
pgpx_login_end(PgpxLogin *login)
{
	if (login == NULL)
		return false;
	if (login->state == RUNNING)
	{
		login->state = ABANDONED;
		shut_down_socket(login);
		pgpx_task_lower_priority(&login->task);
		return true;
	}
	if (login->state == QUEUED)
		dlist_delete(&login->node);
	free(login);
	return false;
}

int
pgpx_login_descriptors(void)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &steps)
		if (dlist_container(PgpxLogin, node, iter.cur)->state == ABANDONED)
			n++;
	return n;
}

/* Bytes received in a login: about fifty times what a login needs. */
#define LOGIN_MAX (256 * 1024)

/* Bytes of one message, after the login. */
#define MESSAGE_MAX (1024 * 1024)

/*
 * Bytes that libpq may read in one call.  libpq doubles its buffer, so for a
 * message of MESSAGE_MAX it may have twice this size, and be filled twice.
 */
#define READ_MAX (4 * MESSAGE_MAX)

/*
 * Bytes after the login that are not of rows, including the part of the next
 * row that libpq has read.
 */
#define EXCESS_MAX (2 * MESSAGE_MAX)

static void
drop_notice(void *arg, const PGresult *res)
{
}

void
pgpx_libpq_mute_notices(PGconn *pg)
{
	(void) PQsetNoticeReceiver(pg, drop_notice, NULL);
}

void
pgpx_libpq_drop_notifications(PGconn *pg)
{
	PGnotify   *note;

	while ((note = PQnotifies(pg)) != NULL)
		PQfreemem(note);
}

/* Return the number of bytes that have arrived and are unread. */
static uint64
bytes_unread(int fd)
{
	int			unread = 0;

	return fd >= 0 && ioctl(fd, FIONREAD, &unread) == 0 ? unread : 0;
}

/*
 * Return how many bytes this process has read from the socket, including those
 * of incomplete messages.  Return 0 where the kernel does not report it, which
 * is any socket but a TCP one.
 */
static uint64
bytes_read(int fd)
{
	struct tcp_info info = {0};
	socklen_t	len = sizeof(info);
	uint64		unread = bytes_unread(fd);

	if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
		info.tcpi_bytes_received < unread)
		return 0;
	return info.tcpi_bytes_received - unread;
}

/* Return whether more bytes were read from a socket than any login needs. */
static bool
exceeds_login_max(int fd)
{
	return bytes_read(fd) > LOGIN_MAX;
}

/*
 * End the input from a socket.  The close must reset the connection: without
 * that, a remote whose window is full would not notice the close for a minute,
 * because the kernel announces no window after this.
 */
static void
stop_input(int fd)
{
	struct linger reset = {1, 0};

	(void) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	(void) shutdown(fd, SHUT_RDWR);
}

/* The socket from which the event loop lets libpq read now. */
typedef struct Reading
{
	volatile int fd;			/* -1: none */
	volatile uint64 max;		/* number of bytes that may be read from it */
	volatile sig_atomic_t exceeded;
} Reading;

static Reading reading = {-1};

/*
 * Handler of the timer.  If libpq has closed the socket, another thread may
 * have opened one with the same number, but has not received that much yet.
 */
static void
check_reading(void)
{
	if (reading.fd < 0 || bytes_read(reading.fd) <= reading.max)
		return;
	reading.exceeded = true;
	stop_input(reading.fd);
}

bool
pgpx_libpq_exchange(PgpxInputAccounting *accounting, PGconn *pg, bool *unsent)
{
	static TimeoutId timer = MAX_TIMEOUTS;
	int			flushed;
	bool		received;

	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, check_reading);
	reading.max = accounting->taken + READ_MAX;
	reading.exceeded = false;
	reading.fd = PQsocket(pg);
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 READ_CHECK_MS),
						 READ_CHECK_MS);
	flushed = PQflush(pg);
	received = flushed >= 0 && PQconsumeInput(pg);
	reading.fd = -1;
	disable_timeout(timer, false);
	accounting->exceeded = reading.exceeded;
	*unsent = flushed == 1;
	return received && !reading.exceeded;
}

static const char message_too_long[] =
	"The remote server sent a message that is too long.";

const char *
pgpx_libpq_failure(const PgpxInputAccounting *accounting, const PGconn *pg)
{
	return accounting->exceeded ? message_too_long : PQerrorMessage(pg);
}

static void
begin_accounting(PgpxInputAccounting *accounting)
{
	memset(accounting, 0, sizeof(*accounting));
}

static void
account_before_step(PgpxInputAccounting *accounting, int fd)
{
	accounting->unread = bytes_unread(fd);
}

/* Return false if the login has received more bytes than any login needs. */
static bool
account_after_step(PgpxInputAccounting *accounting, int fd)
{
	uint64		unread = bytes_unread(fd);

	/* a lower bound; TCP's number is exact */
	if (accounting->unread > unread)
		accounting->login += accounting->unread - unread;
	accounting->start = accounting->taken = bytes_read(fd);
	return Max(accounting->login, accounting->taken) <= LOGIN_MAX;
}

void
pgpx_libpq_note_rows(PgpxInputAccounting *accounting, const PGresult *res)
{
	for (int row = 0; row < PQntuples(res); row++)
	{
		/* type, length, number of columns; each column has a length, too */
		accounting->rows += 1 + 4 + 2 + 4 * PQnfields(res);
		for (int column = 0; column < PQnfields(res); column++)
			accounting->rows += PQgetlength(res, row, column);
	}
}

/*
 * Return the bytes that the remote has sent since the login, except for rows.
 * The headers and trailers of TLS records add less than a sixteenth to a row.
 */
static uint64
excess(const PgpxInputAccounting *accounting)
{
	uint64		rows = accounting->rows + accounting->rows / 16;
	uint64		all = accounting->taken - accounting->start;

	return all > rows ? all - rows : 0;
}

const char *
pgpx_libpq_check_input(PgpxInputAccounting *accounting, PGconn *pg,
					   bool results)
{
	uint64		taken = bytes_read(PQsocket(pg));

	if (!results)
		return taken > accounting->taken + MESSAGE_MAX ?
			message_too_long : NULL;
	accounting->taken = taken;
	return excess(accounting) > EXCESS_MAX ?
		"The remote server sent too much data besides rows." : NULL;
}

bool
pgpx_libpq_is_half_full(const PgpxInputAccounting *accounting)
{
	return excess(accounting) > EXCESS_MAX / 2;
}
