/*
 * Calls with random delays: see ../late.  Preloaded (LD_PRELOAD) into servers, clients and
 * tests.  One of PGPX_LATE calls takes 0.5 to 128 ms longer, rarely 600 ms, before the
 * call or after it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHORTEST_US 500
#define DOUBLINGS 9
#define LONG_US 600000
#define LONG_EACH 40

/* xorshift64*, a state for each thread of each process */
static uint64_t
by_chance(void)
{
	static __thread uint64_t state;
	static __thread pid_t whose;
	pid_t		self = (pid_t) syscall(SYS_gettid);

	if (whose != self)
	{
		struct timespec now;

		clock_gettime(CLOCK_MONOTONIC, &now);
		state = ((uint64_t) self << 32 ^ (uint64_t) now.tv_sec * 7919 ^ (uint64_t) now.tv_nsec) | 1;
		whose = self;
	}
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * UINT64_C(0x2545F4914F6CDD1D) >> 8;
}

static void
late(void)
{
	static int	each = -1;
	int			before = errno;
	uint64_t	r = by_chance();

	if (each < 0)
	{
		const char *value = getenv("PGPX_LATE");

		each = value != NULL ? atoi(value) : 0;
	}
	if (each > 0 && r % each == 0)
	{
		long		us = SHORTEST_US << (r / each % DOUBLINGS);
		struct timespec rest;

		if (r / each / DOUBLINGS % LONG_EACH == 0)
			us = LONG_US;
		rest.tv_sec = 0;
		rest.tv_nsec = us * 1000;
		while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) == EINTR)
			;
	}
	errno = before;
}

#define WRAP(type, name, params, args) \
	type name params \
	{ \
		static type (*next) params; \
		type		result; \
		if (next == NULL) \
			next = (type (*) params) dlsym(RTLD_NEXT, #name); \
		late(); \
		result = next args; \
		late(); \
		return result; \
	}

WRAP(int, epoll_wait, (int e, struct epoll_event *v, int n, int t), (e, v, n, t))
WRAP(int, poll, (struct pollfd *v, nfds_t n, int t), (v, n, t))
WRAP(ssize_t, recv, (int fd, void *b, size_t n, int f), (fd, b, n, f))
WRAP(ssize_t, send, (int fd, const void *b, size_t n, int f), (fd, b, n, f))
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *m, int f), (fd, m, f))
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *m, int f), (fd, m, f))
WRAP(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n))
WRAP(int, connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(int, sem_wait, (sem_t *s), (s))
WRAP(int, sem_post, (sem_t *s), (s))
WRAP(int, kill, (pid_t p, int s), (p, s))
WRAP(pid_t, fork, (void), ())
