/*-------------------------------------------------------------------------
 *
 * fuzz_socket_cache.h
 *	  The environment of socket_cache.c for fuzz_socket_cache.c: descriptors that are
 *	  counted and can run out, a wait set that cannot be created, interrupts, the
 *	  clock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_SOCKET_CACHE_H
#define FUZZ_SOCKET_CACHE_H

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/shmem.h"

#include "base/debug_point.h"
#include "session/socket_cache.h"

#include "storage/ipc.h"

#define CACHE_MAX 64
#define MOST_FDS 5				/* with one message */

PgpxShared *pgpx_shared = NULL;
PgpxPool   *pgpx_pools = NULL;
PgpxConn   *pgpx_conns = NULL;
struct Latch *MyLatch = NULL;
volatile sig_atomic_t InterruptPending = false;

int			max_safe_fds = 256;	/* so that the cache has 64 sockets */

static PgpxTime now;

void
on_shmem_exit(pg_on_exit_callback function, Datum arg)
{
}

/* --- descriptors ---------------------------------------------------------------- */

static int	external;			/* counted by the session */
static int	external_max;		/* their limit */
static bool refused;			/* the limit was reached */
static bool sets_fail;			/* wait sets cannot be created */
static bool may_fail;			/* an error may have been raised */

bool
AcquireExternalFD(void)
{
	if (external >= external_max)
	{
		refused = may_fail = true;
		return false;
	}
	external++;
	return true;
}

void
ReleaseExternalFD(void)
{
	FUZZ_CHECK(external > 0);
	external--;
}

static int
count_fds(void)
{
	struct pollfd fds[8 * CACHE_MAX];
	int			n = 0;

	for (int i = 0; i < lengthof(fds); i++)
		fds[i].fd = i;
	FUZZ_CHECK(poll(fds, lengthof(fds), 0) >= 0);
	for (int i = 0; i < lengthof(fds); i++)
		n += (fds[i].revents & POLLNVAL) == 0;
	return n;
}

static ino_t
ino_of(int fd)
{
	struct stat st;

	FUZZ_CHECK(fstat(fd, &st) == 0);
	return st.st_ino;
}

/*
 * Send a message with so many new sockets, of which *ino is the last one; false: there
 * is no room for it.
 */
static bool
send_message(int to, const void *data, size_t len, int nfds, ino_t *ino)
{
	char		control[CMSG_SPACE(sizeof(int) * MOST_FDS)] = {0};
	struct iovec iov = {.iov_base = (void *) data, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	int			fds[MOST_FDS];
	bool		sent;

	for (int i = 0; i < nfds; i++)
	{
		fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		FUZZ_CHECK(fds[i] >= 0);
		*ino = ino_of(fds[i]);
	}
	if (nfds > 0)
	{
		struct cmsghdr *cmsg;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * nfds);
	}
	sent = sendmsg(to, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
	for (int i = 0; i < nfds; i++)
		close(fds[i]);
	return sent;
}

/* --- the server's part ------------------------------------------------------------ */

struct WaitEventSet
{
	int			fd;
	int			nevents;
};

WaitEventSet *
#if PG_VERSION_NUM >= 170000
CreateWaitEventSet(ResourceOwner owner, int nevents)
#else
CreateWaitEventSet(MemoryContext context, int nevents)
#endif
{
	WaitEventSet *set;

	if (!AcquireExternalFD())
		fuzz_throw();
	set = palloc0(sizeof(*set));
	set->fd = eventfd(0, EFD_CLOEXEC);
	FUZZ_CHECK(set->fd >= 0);
	return set;
}

int
AddWaitEventToSet(WaitEventSet *set, uint32 events, pgsocket fd, Latch *latch,
				  void *data)
{
	if (sets_fail && set->nevents == 2)
	{
		may_fail = true;
		fuzz_throw();
	}
	return set->nevents++;
}

void
FreeWaitEventSet(WaitEventSet *set)
{
	close(set->fd);
	ReleaseExternalFD();
	pfree(set);
}

int
WaitEventSetWait(WaitEventSet *set, long timeout, WaitEvent *occurred,
				 int nevents, uint32 wait_event)
{
	abort();
}

int
WaitLatch(Latch *latch, int events, long timeout, uint32 wait_event)
{
	abort();
}

void
ResetLatch(Latch *latch)
{
}

void
SetLatch(Latch *latch)
{
}

void
ProcessInterrupts(void)
{
	InterruptPending = false;
	may_fail = true;
	fuzz_throw();
}

Size
mul_size(Size a, Size b)
{
	return a * b;
}

int
GetDatabaseEncoding(void)
{
	return 6;
}

PgpxTime
pgpx_now(void)
{
	return now;
}

uint32
pgpx_wait_event_new(const char *name)
{
	return 1;
}

bool
pgpx_worker_is_missing(int worker)
{
	abort();
}

bool
pgpx_busy_poll_is_calm(int pool)
{
	abort();
}

PgpxTime
pgpx_busy_poll_begin(PgpxBusyPoll *poll)
{
	abort();
}

void
pgpx_busy_poll_record(PgpxBusyPoll *poll, bool found)
{
}

void
pgpx_busy_poll_release(void)
{
}

#endif							/* FUZZ_SOCKET_CACHE_H */
