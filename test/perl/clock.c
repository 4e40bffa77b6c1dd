/*
 * Clocks that a test can set in the processes into which this is preloaded (LD_PRELOAD).
 * The file PGPX_CLOCK has two 64-bit numbers of seconds: the first is added to the time of
 * day, the second to all clocks, so that time seems to have passed.  A process that sleeps
 * notices the second one when it wakes up.  See PgpxClock.pm.
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

static const int64_t *offset = NULL; /* of the time of day, of all clocks */

__attribute__((constructor)) static void
begin(void)
{
	const char *path = getenv("PGPX_CLOCK");
	int			fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	void	   *map;

	if (fd < 0)
		return;
	map = mmap(NULL, 2 * sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (map != MAP_FAILED)
		offset = map;
}

/* The system call, which is slower than the C library's function and needs no lookup. */
int
clock_gettime(clockid_t which, struct timespec *now)
{
	int			status = syscall(SYS_clock_gettime, which, now);

	if (status != 0 || offset == NULL)
		return status;
	if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)
		now->tv_sec += __atomic_load_n(&offset[0], __ATOMIC_RELAXED);
	if (which != CLOCK_PROCESS_CPUTIME_ID && which != CLOCK_THREAD_CPUTIME_ID)
		now->tv_sec += __atomic_load_n(&offset[1], __ATOMIC_RELAXED);
	return 0;
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
