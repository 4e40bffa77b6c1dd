/*
 * A clock that a test can set: the time of day of the processes into which this is
 * preloaded (LD_PRELOAD) differs by the number of seconds in the file PGPX_CLOCK, a
 * 64-bit number.  Their monotonic clocks do not change.  See PgpxClock.pm.
 *
 * A server reads the time in signal handlers, which may interrupt any code: so nothing
 * is opened, allocated or locked here.  (libfaketime reads a file on each call, or each
 * second: a session whose timer interrupted that blocked for ever.)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *offset = NULL;

__attribute__((constructor)) static void
begin(void)
{
	const char *path = getenv("PGPX_CLOCK");
	int			fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	void	   *map;

	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (map != MAP_FAILED)
		offset = map;
}

/* The system call, which is slower than the C library's function and needs no lookup. */
int
clock_gettime(clockid_t which, struct timespec *now)
{
	int			status = syscall(SYS_clock_gettime, which, now);

	if (status == 0 && offset != NULL &&
		(which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
		now->tv_sec += __atomic_load_n(offset, __ATOMIC_RELAXED);
	return status;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec ts;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &ts);
	now->tv_sec = ts.tv_sec;
	now->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME_COARSE, &ts);
	if (now != NULL)
		*now = ts.tv_sec;
	return ts.tv_sec;
}
