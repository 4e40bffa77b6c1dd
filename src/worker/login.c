/*-------------------------------------------------------------------------
 *
 * login.c
 *	  Logins, performed in threads step by step.
 *
 * Threads.  PQconnectPoll does not wait for input, but the remote determines
 * how much it has to compute.  In SCRAM the remote chooses the number of hash
 * iterations (RFC 7677; two billion take ten minutes), in TLS the sizes of the
 * keys.  In the event loop such a computation would delay all other pools.  So
 * each step runs in a thread (events.c has the rules).  A login that is
 * abandoned during a step is left to the thread, because the computation cannot
 * be interrupted.  It is freed when the step ends.
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
 * Output and input.  libpq prints notices to stderr, which is the log, so they
 * are dropped.  It stores notifications and rows until the caller fetches them.
 * Notifications are dropped after each read.  Rows of start commands are
 * fetched one at a time.  How much a remote makes libpq store besides that is
 * limited by connect_timeout.
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/ilist.h"
#include "storage/fd.h"

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
	PostgresPollingStatusType status;
	int			error;			/* errno after the step */
	PgpxLoginStepped stepped;
	void	   *owner;			/* passed to stepped */
};

static dlist_head steps = DLIST_STATIC_INIT(steps);

static void finish_step(PgpxTask *task);

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
					  PgpxLoginStepped stepped, void *owner)
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
	login->stepped = stepped;
	login->owner = owner;
	return login;
}

PgpxLogin *
pgpx_login_begin(PgpxLoginKey key, PGconn *pg,
				 PgpxLoginStepped stepped, void *owner)
{
	return pgpx_login_begin_kind(&login_kind, key, pg, stepped, owner);
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
		login->state = AWAITING_REMOTE;
		errno = login->error;
		login->stepped(login->owner, login->status,
					   ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
					   NULL);
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

static void
drop_notice(void *arg, const PGresult *res)
{
}

void
pgpx_libpq_mute_notices(PGconn *pg)
{
	(void) PQsetNoticeReceiver(pg, drop_notice, NULL);
}

static void
drop_notifications(PGconn *pg)
{
	PGnotify   *note;

	while ((note = PQnotifies(pg)) != NULL)
		PQfreemem(note);
}

bool
pgpx_libpq_exchange(PGconn *pg, bool *unsent)
{
	int			flushed = PQflush(pg);

	*unsent = flushed == 1;
	if (flushed < 0 || !PQconsumeInput(pg))
		return false;
	drop_notifications(pg);
	return true;
}
