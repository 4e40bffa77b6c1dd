/*-------------------------------------------------------------------------
 *
 * login.c
 *	  Logins, step by step in threads, and bounds on libpq's memory.
 *
 * PQconnectPoll does not wait, but it computes what the remote asks for: SCRAM has
 * the remote say how often a hash is to be iterated (RFC 7677; two thousand million
 * times are ten minutes), TLS how large its numbers are.  In the worker's loop that
 * would hold up all other pools.  So it happens in a thread (events.c has the rules), and
 * a login that is given up in the middle of a step is left to it: nothing can stop
 * that, so it goes on only while nothing else wants the processor, and frees what
 * it has at its end.
 *
 * From the beginning of a step to its end libpq's connection is the thread's, and
 * nobody else asks it for anything, not even for its socket.
 *
 * Some of it does wait, after all: libpq sends what does not fit into the send buffer
 * until the remote takes it, and OpenSSL goes on with a handshake for as long as the
 * remote has something to say in it.  So the socket of a step that is given up is shut
 * down.  libpq may have left it for the one of the next host meanwhile: with that it does
 * no more in this step than begin to connect.
 *
 * A pool has so many steps at once, and those that were given up count: a remote that
 * makes everybody compute gets no more threads than these.  Other logins of the pool
 * wait for them in the order in which they came, as long as connect_timeout allows.
 * Who has changed the options of the pool does not wait for what was told before, so
 * that nobody is in line behind what has been mended.  But who may change a user
 * mapping can do that again and again, or make a new one, which is a new pool.  So
 * one user's logins from a server to one address have a bound whatever was told, and
 * those who have left threads behind leave no more once there are many in the worker:
 * others, who have none, still log in.  And who may make servers has a bound over all
 * of them.
 *
 * The cancel requests of libpq 17 and later log in, too, as far as TLS goes.  They have
 * the same bounds, but logins do not count for them, nor they for logins: none waits for
 * one of the other kind.
 *
 * What a remote can make libpq do in the worker while libpq reads: bounded.
 *
 * libpq trusts the server that it talks to.  It prints notices to stderr, which is
 * the log, whatever is in them; it keeps each reported parameter, each notification,
 * and each row until somebody asks for the result.  Rows are taken one at a time
 * (PQsetSingleRowMode) where statements run, and thrown away.
 *
 * And it believes lengths: it makes room for a message of 1 GB because it is told
 * that one comes, and keeps what comes of it until it is whole.  Room is only
 * addresses, as long as nothing is in it; so what is bounded is how many bytes have
 * come since libpq has last handed something out.  TCP tells, with TLS as without.
 * (Where a remote sends faster than libpq reads, that may be some dozen MB more: it
 * reads on for as long as there is something.)
 * (A Unix-domain socket does not: there it is what lay ready before each step of the
 * login, and later on nothing.  Who can listen there is on this machine.)
 *
 * Nor is libpq asked to trace what a remote says (PQtrace): what it prints of a message
 * it has not checked, and a length in one can lead it beyond the end of its memory.
 *
 * It also reads ahead.  What comes in behind the answer that it waits for it drops,
 * if it is a whole message; the beginning of one stays with it, and the rest comes to
 * wire, which is out of step then and breaks the stream.  Nothing of libpq's tells
 * that something is left, so nothing is done about it here: an honest remote says
 * nothing there, and what another one says is not believed in any case.
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

#include "worker/events.h"

/* Threads at once: of a pool, by what was told; and of a user, at one address. */
#define MAX_STEPS 4
#define MAX_AT_ADDRESS 8

/* In the worker, for those who have left threads behind; and of a user, at all. */
#define MAX_ABANDONED 32
#define MAX_OF_USER 64

typedef enum LoginState
{
	RESTING = 0,				/* the remote is to say something */
	WAITING,					/* for other steps of the pool */
	RUNNING,					/* in a thread */
	ABANDONED					/* the same, and nobody waits for it */
} LoginState;

/* Who logs in: what does not change with options, nor with another user mapping. */
typedef struct Owner
{
	Oid			database;
	Oid			server;
	NameData	user;
} Owner;

struct PgpxLogin
{
	PgpxTask	task;
	const PgpxLoginKind *kind;
	LoginState	state;
	dlist_node	node;			/* in steps, unless RESTING */
	PgpxLoginOf of;
	Owner		pool_owner;
	struct sockaddr_storage remote; /* of the present step; 0: not connected */
	int			fd;				/* its socket; -1: none */
	struct stat socket;			/* .. whose number may be another's later */
	void	   *libpq;			/* what libpq calls it; the kind knows */
	PgpxInputAccounting *accounting;
	PostgresPollingStatusType status;
	int			error;			/* errno, as the step left it */
	PgpxLoginStepped stepped;
	void	   *owner;
};

static dlist_head steps = DLIST_STATIC_INIT(steps);

static void ended(PgpxTask *task);

/* In the thread. */
static void
run(PgpxTask *task)
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

static const PgpxLoginKind a_login =
	{poll_login, socket_of_login, finish_login};

static Owner
owner_of_pool(int index)
{
	PgpxPool   *pool = &pgpx_pools[index];
	Owner		pool_owner;

	LWLockAcquire(pool->lock, LW_SHARED);
	pool_owner.database = pool->key.database;
	pool_owner.server = pool->key.server;
	pool_owner.user = pool->user_name;
	LWLockRelease(pool->lock);
	return pool_owner;
}

PgpxLogin *
pgpx_login_begin_as(const PgpxLoginKind *kind, PgpxLoginOf of, void *libpq,
					PgpxInputAccounting *accounting, PgpxLoginStepped stepped,
					void *owner)
{
	PgpxLogin  *login = calloc(1, sizeof(*login));

	if (login == NULL)
		return NULL;
	login->task.run = run;
	login->task.ended = ended;
	login->kind = kind;
	login->of = of;
	login->pool_owner = owner_of_pool(of.pool);
	login->libpq = libpq;
	login->accounting = accounting;
	login->stepped = stepped;
	login->owner = owner;
	pgpx_libpq_login_begin(accounting);
	return login;
}

PgpxLogin *
pgpx_login_begin(PgpxLoginOf of, PGconn *pg, PgpxInputAccounting *accounting,
				 PgpxLoginStepped stepped, void *owner)
{
	return pgpx_login_begin_as(&a_login, of, pg, accounting, stepped, owner);
}

static bool
has_same_conninfo(const PgpxLogin *a, const PgpxLogin *b)
{
	return a->kind == b->kind && a->of.pool == b->of.pool &&
		a->of.pool_id == b->of.pool_id && a->of.version == b->of.version;
}

static bool
same_user(const Owner *a, const Owner *b)
{
	return a->database == b->database &&
		strcmp(NameStr(a->user), NameStr(b->user)) == 0;
}

static bool
same_remote(const PgpxLogin *a, const PgpxLogin *b)
{
	return memcmp(&a->remote, &b->remote, sizeof(a->remote)) == 0;
}

/* The threads that a login has to do with: all, and those that were given up. */
typedef struct Threads
{
	int			same_conninfo;	/* its pool's, for what was told */
	int			same_abandoned;
	int			remote;			/* its user's on its server, at this address */
	int			running;		/* .. that somebody waits for */
	int			abandoned;
	int			user;			/* its user's */
	int			all_abandoned;	/* the worker's */
} Threads;

static Threads
count_threads(const PgpxLogin *login)
{
	Threads		n = {0};
	dlist_iter	iter;

	dlist_foreach(iter, &steps)
	{
		PgpxLogin  *other = dlist_container(PgpxLogin, node, iter.cur);
		int			abandoned = other->state == ABANDONED ? 1 : 0;

		if (other->state == WAITING || other->kind != login->kind)
			continue;
		n.all_abandoned += abandoned;
		if (!same_user(&other->pool_owner, &login->pool_owner))
			continue;
		n.user++;
		if (other->pool_owner.server != login->pool_owner.server)
			continue;
		n.running += 1 - abandoned;
		n.abandoned += abandoned;
		if (same_remote(other, login))
			n.remote++;
		if (has_same_conninfo(other, login))
		{
			n.same_conninfo++;
			n.same_abandoned += abandoned;
		}
	}
	return n;
}

static bool
too_many_abandoned(const Threads *n)
{
	return n->user >= MAX_OF_USER ||
		(n->abandoned > 0 && n->all_abandoned + n->running >= MAX_ABANDONED);
}

static bool
may_start(const PgpxLogin *login)
{
	Threads		n = count_threads(login);

	return n.same_conninfo < MAX_STEPS && n.remote < MAX_AT_ADDRESS &&
		!too_many_abandoned(&n);
}

/* The first that waits and need not, of one user, or (NULL) of all. */
static PgpxLogin *
next_to_start(const Owner *pool_owner)
{
	PgpxLogin  *stuck = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &steps)
	{
		PgpxLogin  *login = dlist_container(PgpxLogin, node, iter.cur);

		if (login->state != WAITING ||
			(pool_owner != NULL && !same_user(&login->pool_owner, pool_owner)))
			continue;

		/* those of a pool stand behind each other, mostly: not one by one */
		if (stuck != NULL && has_same_conninfo(login, stuck) &&
			same_remote(login, stuck))
			continue;
		if (may_start(login))
			return login;
		stuck = login;
	}
	return NULL;
}

/* A step has ended, or a login has come: who is next? */
static void
start_next(const Owner *pool_owner)
{
	PgpxLogin  *next;

	while ((next = next_to_start(pool_owner)) != NULL)
	{
		next->state = RUNNING;
		pgpx_libpq_login_before(next->accounting, next->fd);
		if (pgpx_task_start(&next->task))
			continue;
		next->state = RESTING;
		dlist_delete(&next->node);
		next->stepped(next->owner, PGRES_POLLING_FAILED,
					  ERRCODE_INSUFFICIENT_RESOURCES,
					  "The pool worker could not start a thread for the login.");
	}
}

/* Whom libpq is about to listen to.  While it is not connected nobody makes it work. */
static void
find_remote(PgpxLogin *login)
{
	socklen_t	len = sizeof(login->remote);

	memset(&login->remote, 0, sizeof(login->remote));
	login->fd = login->kind->socket(login->libpq);
	if (getpeername(login->fd, (struct sockaddr *) &login->remote, &len) < 0)
		memset(&login->remote, 0, sizeof(login->remote));
	if (fstat(login->fd, &login->socket) < 0)
		login->fd = -1;
}

/*
 * Shut the socket of the present step down, so that nothing in it waits.  The thread may
 * close it at any time, and others get its number: so first have a number of our own
 * for it, then see what that is.
 */
static void
hang_up(const PgpxLogin *login)
{
	struct stat now;
	int			fd;

	if (login->fd < 0 || (fd = fcntl(login->fd, F_DUPFD_CLOEXEC, 0)) < 0)
		return;
	if (fstat(fd, &now) == 0 && now.st_dev == login->socket.st_dev &&
		now.st_ino == login->socket.st_ino)
		(void) shutdown(fd, SHUT_RDWR);
	close(fd);
}

void
pgpx_login_step(PgpxLogin *login)
{
	Owner		pool_owner = login->pool_owner;

	if (login->state != RESTING)
		return;
	login->state = WAITING;
	find_remote(login);
	dlist_push_tail(&steps, &login->node);
	start_next(&pool_owner);
}

/* A step is over, in the loop. */
static void
ended(PgpxTask *task)
{
	PgpxLogin  *login = (PgpxLogin *) task;
	Owner		pool_owner = login->pool_owner;
	bool		abandoned = login->state == ABANDONED;

	dlist_delete(&login->node);
	if (abandoned)
	{
		/* and what it says goodbye with goes nowhere */
		(void) shutdown(login->kind->socket(login->libpq), SHUT_RDWR);
		login->kind->finish(login->libpq);
		ReleaseExternalFD();
		free(login);
	}
	else
	{
		int			fd = login->kind->socket(login->libpq);
		bool		short_enough = pgpx_libpq_login_after(login->accounting,
														  fd);

		login->state = RESTING;
		errno = login->error;
		if (short_enough)
			login->stepped(login->owner, login->status,
						   ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						   NULL);
		else
			login->stepped(login->owner, PGRES_POLLING_FAILED,
						   ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						   "The remote server said too much during the login.");
	}

	/* one less that was left behind may be what others wait for */
	start_next(abandoned ? NULL : &pool_owner);
}

bool
pgpx_login_is_running(const PgpxLogin *login)
{
	return login != NULL && login->state == RUNNING;
}

const char *
pgpx_login_why_late(const PgpxLogin *login)
{
	Threads		n;

	if (login == NULL || login->state == RESTING)
		return "";
	n = count_threads(login);
	if (login->state == WAITING &&
		(n.same_abandoned >= MAX_STEPS || n.remote >= MAX_AT_ADDRESS))
		return ": logins before it still compute what the remote server has asked for";
	if (login->state == WAITING && too_many_abandoned(&n))
		return ": too many logins of the pool worker still compute what remote servers have asked for";
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
		hang_up(login);
		pgpx_task_lower_priority(&login->task);
		return true;
	}
	if (login->state == WAITING)
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

/* Of a login: some fifty times what one takes. */
#define LOGIN_MAX (256 * 1024)

/* Of one message, later on. */
#define MESSAGE_MAX (1024 * 1024)

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

/* What has come and has not been read. */
static uint64
bytes_unread(int fd)
{
	int			unread = 0;

	return fd >= 0 && ioctl(fd, FIONREAD, &unread) == 0 ? unread : 0;
}

/*
 * How many bytes this end has read of what the other one has sent, in the messages
 * that are not whole yet, too.  0 where the kernel does not tell: a socket that is
 * no TCP's.
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

void
pgpx_libpq_login_begin(PgpxInputAccounting *accounting)
{
	memset(accounting, 0, sizeof(*accounting));
}

void
pgpx_libpq_login_before(PgpxInputAccounting *accounting, int fd)
{
	accounting->unread = bytes_unread(fd);
}

bool
pgpx_libpq_login_after(PgpxInputAccounting *accounting, int fd)
{
	uint64		unread = bytes_unread(fd);

	/* not less than this; TCP knows better */
	if (accounting->unread > unread)
		accounting->login += accounting->unread - unread;
	accounting->taken = bytes_read(fd);
	return Max(accounting->login, accounting->taken) <= LOGIN_MAX;
}

bool
pgpx_libpq_buffers_too_much(PgpxInputAccounting *accounting, PGconn *pg,
							bool taken)
{
	uint64		now = bytes_read(PQsocket(pg));

	if (taken)
		accounting->taken = now;
	return now > accounting->taken + MESSAGE_MAX;
}
