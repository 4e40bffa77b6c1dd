/*-------------------------------------------------------------------------
 *
 * threads.h
 *	  Helpers of the test programs whose threads are database sessions
 *	  (stress, sequences): clock, random numbers, the end after a failure.
 *
 *-------------------------------------------------------------------------
 */
#ifndef THREADS_H
#define THREADS_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "libpq-fe.h"

/* Return seconds of a clock that is never set. */
static inline double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* Return the next number below n of a sequence (xorshift64*). */
static inline uint32_t
next_random(uint64_t *random, uint32_t n)
{
	*random ^= *random >> 12;
	*random ^= *random << 25;
	*random ^= *random >> 27;
	return (uint32_t) ((*random * 2685821657736338717ULL) >> 33) % n;
}

/* The same from a session's own sequence. */
#define roll(session, n) next_random(&(session)->random, n)

static inline void
ignore_notice(void *arg, const PGresult *res)
{
}

/* Print the reason of a failure and end the program. */
static inline void
exit_failed(const char *format, va_list args)
{
	printf(": ");
	vprintf(format, args);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

#endif							/* THREADS_H */
