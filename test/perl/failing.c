/*
 * Makes calls fail on a test's command, for resources that a test cannot exhaust: threads,
 * memory outside of PostgreSQL's contexts, descriptors at an exact moment.  Preloaded
 * (LD_PRELOAD) into a server; see PgpxFailing.pm.
 *
 * The file pgpool_ext.fail in the working directory, which is a server's data
 * directory, has: FUNCTION PROCESS SKIP TIMES ERRNO.  After SKIP calls of it in a process
 * TIMES calls fail, then the file is removed.  PROCESS: worker, session (any other
 * process), all.  Only calls that pgpool_ext.so itself makes are counted, so that
 * the server and other libraries are not affected.
 *
 * While the file pgpool_ext.hold has a database's name, PQconnectPoll does not return
 * from a login to it, as in a long computation, but without use of the processor.  The
 * same with a host's name for getaddrinfo, and with "PQcancel" for cancel requests.
 * A process listed in pgpool_ext.stop_in_recv stops in its next recv, and creates the
 * file pgpool_ext.stop_in_recv.PID.  A process listed in pgpool_ext.endless receives
 * notices without end, and never waits for one.  A postmaster listed in
 * pgpool_ext.stop_before_sleep stops just before it sleeps for the time that it has
 * computed, and creates the file pgpool_ext.stop_before_sleep.PID; it still receives
 * signals.  (The postmaster of version 15 sleeps in select.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ORDER "pgpool_ext.fail"
#define HOLD "pgpool_ext.hold"
#define STOP_IN_RECV "pgpool_ext.stop_in_recv"
#define ENDLESS "pgpool_ext.endless"
#define STOP_BEFORE_SLEEP "pgpool_ext.stop_before_sleep"

extern void *__libc_calloc(size_t n, size_t size);

/* The next function of that name: ours is the first. */
static void *
real(const char *name)
{
	void	   *found = dlsym(RTLD_NEXT, name);

	if (found == NULL)
		found = dlsym(dlopen("libpq.so.5", RTLD_LAZY | RTLD_NOLOAD), name);
	return found;
}

static int
slurp(const char *path, char *text, size_t size)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t		n = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

static int
is_worker(void)
{
	char		title[100];

	return slurp("/proc/self/cmdline", title, sizeof(title)) &&
		strstr(title, "pgpool_ext worker") != NULL;
}

static int
is_ours(void *caller)
{
	Dl_info		info;

	return dladdr(caller, &info) != 0 && strstr(info.dli_fname, "pgpool_ext.so") != NULL;
}

static int
ordered(const char *function, void *caller)
{
	static char seen[200];
	static int	calls;
	char		order[200];
	char		name[64];
	char		process[16];
	int			skip;
	int			times;
	int			error;

	if (!slurp(ORDER, order, sizeof(order)) ||
		sscanf(order, "%63s %15s %d %d %d", name, process, &skip, &times, &error) != 5 ||
		strcmp(name, function) != 0 ||
		!is_ours(caller) ||
		(strcmp(process, "all") != 0 && (strcmp(process, "worker") == 0) != is_worker()))
		return 0;
	if (strcmp(seen, order) != 0)
	{
		/* each command ends with a number of its own */
		strcpy(seen, order);
		calls = 0;
	}
	if (++calls <= skip || calls > skip + times)
		return 0;
	if (calls == skip + times)
		unlink(ORDER);
	errno = error;
	return 1;
}

static int
fails(const char *function, void *caller)
{
	int			before = errno;

	if (ordered(function, caller))
		return 1;
	errno = before;
	return 0;
}

#define CALLER __builtin_return_address(0)

/* A function that returns a value on failure, with errno or without; or a property of a
 * connection that no connection of the tests has. */
#define WRAP(type, name, failure, params, args) \
	type name params \
	{ \
		static type (*next) params; \
		if (fails(#name, CALLER)) \
			return failure; \
		if (next == NULL) \
			next = (type (*) params) real(#name); \
		return next args; \
	}

typedef struct pg_conn PGconn;
extern char *PQdb(const PGconn *);
extern PGconn *PQconnectStartParams(const char *const *, const char *const *, int);
extern int	PQsendQuery(PGconn *, const char *);
extern void *PQconninfoParse(const char *, char **);
extern void *PQgetCancel(PGconn *);
extern int	PQgssEncInUse(PGconn *);
extern int	PQsendQueryParams(PGconn *, const char *, int, const unsigned *,
							  const char *const *, const int *, const int *, int);

WRAP(int, socketpair, -1, (int d, int t, int p, int v[2]), (d, t, p, v))
WRAP(int, socket, -1, (int d, int t, int p), (d, t, p))
WRAP(ssize_t, sendmsg, -1, (int fd, const struct msghdr *m, int f), (fd, m, f))
WRAP(ssize_t, recvmsg, -1, (int fd, struct msghdr *m, int f), (fd, m, f))
WRAP(int, epoll_create1, -1, (int f), (f))
WRAP(int, epoll_ctl, -1, (int e, int op, int fd, struct epoll_event *ev), (e, op, fd, ev))
WRAP(int, pipe2, -1, (int v[2], int f), (v, f))
WRAP(int, pthread_create, errno, (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x), (t, a, f, x))
WRAP(int, getnameinfo, EAI_FAIL, (const struct sockaddr *a, socklen_t l, char *h, socklen_t hl, char *s, socklen_t sl, int f), (a, l, h, hl, s, sl, f))
WRAP(PGconn *, PQconnectStartParams, NULL, (const char *const *k, const char *const *v, int e), (k, v, e))
WRAP(void *, PQconninfoParse, NULL, (const char *c, char **e), (c, e))
WRAP(void *, PQgetCancel, NULL, (PGconn *c), (c))
WRAP(int, PQgssEncInUse, 1, (PGconn *c), (c))
WRAP(int, PQsendQuery, 0, (PGconn *c, const char *q), (c, q))
WRAP(int, PQsendQueryParams, 0, (PGconn *c, const char *q, int n, const unsigned *t, const char *const *v, const int *l, const int *f, int r), (c, q, n, t, v, l, f, r))

/* this thread is in a PQfinish that is to fail */
static __thread int accepts_nothing;

/* PQfinish cannot fail, but its socket accepts no data in the meantime. */
void
PQfinish(PGconn *conn)
{
	static void (*next) (PGconn *);

	if (next == NULL)
		next = (void (*) (PGconn *)) real("PQfinish");
	accepts_nothing = fails("PQfinish", CALLER);
	next(conn);
	accepts_nothing = 0;
}

ssize_t
send(int fd, const void *buf, size_t n, int flags)
{
	static ssize_t (*next) (int, const void *, size_t, int);

	if (accepts_nothing)
	{
		errno = EAGAIN;
		return -1;
	}
	if (fails("send", CALLER))
		return -1;
	if (next == NULL)
		next = (ssize_t (*) (int, const void *, size_t, int)) real("send");
	return next(fd, buf, n, flags);
}

static int
is_named_in(const char *path)
{
	char		pids[200];
	char		pid[20];

	snprintf(pid, sizeof(pid), " %d ", (int) getpid());
	return slurp(path, pids, sizeof(pids)) && strstr(pids, pid) != NULL;
}

static void
stop_if_named_in(const char *file)
{
	char		path[60];

	if (!is_named_in(file))
		return;
	snprintf(path, sizeof(path), "%s.%d", file, (int) getpid());
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	while (is_named_in(file))
		usleep(10000);
	unlink(path);
}

static ssize_t
make_notices(char *buf, size_t n)
{
	static const char notice[] = "N\0\0\0\037SNOTICE\0VNOTICE\0C00000\0Mx\0";
	static size_t at = 0;

	for (size_t i = 0; i < n; i++)
		buf[i] = notice[at++ % sizeof(notice)];
	return (ssize_t) n;
}

ssize_t
recv(int fd, void *buf, size_t n, int flags)
{
	static ssize_t (*next) (int, void *, size_t, int);

	if (fails("recv", CALLER))
		return -1;
	if (next == NULL)
		next = (ssize_t (*) (int, void *, size_t, int)) real("recv");
	if (is_ours(CALLER) && (flags & MSG_PEEK) == 0 && is_named_in(ENDLESS))
		return make_notices(buf, n);
	if (is_ours(CALLER))
		stop_if_named_in(STOP_IN_RECV);
	return next(fd, buf, n, flags);
}

int
select(int nfds, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	static int	(*next) (int, fd_set *, fd_set *, fd_set *, struct timeval *);

	if (next == NULL)
		next = (int (*) (int, fd_set *, fd_set *, fd_set *, struct timeval *)) real("select");
	if (nfds > 0)
		stop_if_named_in(STOP_BEFORE_SLEEP);
	return next(nfds, r, w, e, timeout);
}

static void
hold(const char *what)
{
	char		held[200];
	char		name[70];

	snprintf(name, sizeof(name), " %.60s ", what);
	while (slurp(HOLD, held, sizeof(held)) && strstr(held, name) != NULL)
		usleep(10000);
}

int
PQconnectPoll(PGconn *conn)
{
	static int	(*next) (PGconn *);
	static char *(*database) (const PGconn *);

	if (next == NULL)
	{
		database = (char *(*) (const PGconn *)) real("PQdb");
		next = (int (*) (PGconn *)) real("PQconnectPoll");
	}
	if (is_ours(CALLER))
		hold(database(conn));
	return next(conn);
}

int
PQcancelPoll(void *request)
{
	static int	(*next) (void *);

	if (next == NULL)
		next = (int (*) (void *)) real("PQcancelPoll");
	if (is_ours(CALLER))
		hold("PQcancel");
	return next(request);
}

/* pgpool_ext itself connects only for cancel requests, before libpq 17. */
int
connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	static int	(*next) (int, const struct sockaddr *, socklen_t);

	if (fails("connect", CALLER))
		return -1;
	if (next == NULL)
		next = (int (*) (int, const struct sockaddr *, socklen_t)) real("connect");
	if (is_ours(CALLER))
		hold("PQcancel");
	return next(fd, addr, len);
}

int
getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
			struct addrinfo **list)
{
	static int	(*next) (const char *, const char *, const struct addrinfo *, struct addrinfo **);

	if (next == NULL)
		next = (int (*) (const char *, const char *, const struct addrinfo *, struct addrinfo **)) real("getaddrinfo");
	if (host != NULL && is_ours(CALLER))
		hold(host);
	return next(host, port, hints, list);
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	static int	(*next) (clockid_t, struct timespec *);

	if (clock == CLOCK_BOOTTIME && fails("clock_gettime", CALLER))
		return -1;
	if (next == NULL)
		next = (int (*) (clockid_t, struct timespec *)) real("clock_gettime");
	return next(clock, ts);
}

/* dlsym itself allocates */
void *
calloc(size_t n, size_t size)
{
	return fails("calloc", CALLER) ? NULL : __libc_calloc(n, size);
}
