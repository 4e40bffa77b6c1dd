/*-------------------------------------------------------------------------
 *
 * fuzz.h
 *	  Shared by the harnesses and stubs.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <setjmp.h>

/*
 * The handler of ereport(ERROR) outside of the PG_TRY blocks of the sources, while an
 * error may be thrown.
 */
extern sigjmp_buf fuzz_error;
extern bool fuzz_may_throw;

extern void fuzz_throw(void) __attribute__((noreturn));
extern void fuzz_free_all(void);

/* Report a bug, and abort. */
#define FUZZ_CHECK(condition) \
	do \
	{ \
		if (!(condition)) \
		{ \
			fprintf(stderr, "does not hold: %s (%s:%d)\n", #condition, \
					__FILE__, __LINE__); \
			abort(); \
		} \
	} while (0)

/* signatures that have changed between server versions */
#if PG_VERSION_NUM >= 160000
#define FUZZ_BINARY const void *
#define FUZZ_ASSERT_TYPE
#else
#define FUZZ_BINARY const char *
#define FUZZ_ASSERT_TYPE const char *errorType,
#endif

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif							/* FUZZ_H */
