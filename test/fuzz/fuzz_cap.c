/*-------------------------------------------------------------------------
 *
 * fuzz_cap.c
 *	  Limits over several pools, whose sessions and workers call in any order: the pool
 *	  that acquires the next token, and that pools with longer waits precede others.
 *
 * The input is operations of three bytes: the operation, the pool (and the limit),
 * and the start of the wait of its first waiter.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fuzz.h"

#include "shared/cap.h"

/* There is one process, and no spinlock is ever held. */
int
s_lock(volatile slock_t *lock, const char *file, int line, const char *func)
{
	FUZZ_CHECK(false);
	return 0;
}

/* The expected state of a limit, computed from the results of its calls. */
typedef struct Expected
{
	int			used;
	int			starved;			/* -1: none */
	int64		since;			/* of that one */
	bool		unchanged;		/* no pool was denied a token since */
	uint32		line_changes;			/* at that time */
} Expected;

static void
acquire(PgpxCap *cap, Expected *expected, int limit, int pool, int64 since)
{
	bool		preceded = expected->starved >= 0 && expected->starved != pool &&
		(since == 0 || expected->since < since);
	bool		full = limit > 0 && expected->used >= limit;

	FUZZ_CHECK(pgpx_cap_has_older(cap, pool, since) == preceded);
	switch (pgpx_cap_acquire(cap, limit, pool, since))
	{
		case PGPX_TOKEN_ACQUIRED:
			FUZZ_CHECK(!preceded && !full);
			expected->used++;
			break;
		case PGPX_TOKEN_DENIED:
			FUZZ_CHECK(preceded || (full && (since == 0 || expected->starved == pool)));
			break;
		case PGPX_TOKEN_DENIED_NEXT:
			FUZZ_CHECK(!preceded && full && since != 0 && expected->starved != pool);
			expected->starved = pool;
			expected->since = since;
			expected->unchanged = false;
			break;
	}
}

/* Admission has visited all pools, and sets the pool that is next in line, or none. */
static void
set_next(PgpxCap *cap, Expected *expected, int pool, int64 since)
{
	bool		ended = pgpx_cap_set_next_in_line(cap, pool, since, expected->line_changes);

	FUZZ_CHECK(ended == (expected->unchanged && since == 0 && expected->starved >= 0));
	if (!expected->unchanged)
		return;					/* a pool that was denied one in between stays in line */
	expected->starved = since == 0 ? -1 : pool;
	expected->since = since;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	PgpxCap		cap;
	Expected		expected = {0, -1, 0, true, 0};

	pgpx_cap_init(&cap);
	for (; size >= 3; data += 3, size -= 3)
	{
		int			pool = data[1] % 4;
		uint32		line_changes;

		switch (data[0] % 5)
		{
			case 0:
				acquire(&cap, &expected, data[1] / 4 % 4, pool, data[2]);
				break;
			case 1:
				if (expected.used > 0)
					FUZZ_CHECK(pgpx_cap_release(&cap) == expected.used--);
				break;
			case 2:
				(void) pgpx_cap_next_in_line(&cap, &expected.line_changes);
				expected.unchanged = true;
				break;
			case 3:
				set_next(&cap, &expected, pool, data[2]);
				break;
			case 4:
				pgpx_cap_forget(&cap, pool);
				if (expected.starved == pool)
					expected.starved = -1;
				break;
		}
		FUZZ_CHECK(pgpx_cap_used(&cap, NULL) == expected.used);
		FUZZ_CHECK(pgpx_cap_next_in_line(&cap, &line_changes) == expected.starved);
		FUZZ_CHECK(expected.unchanged == (line_changes == expected.line_changes));
	}
	return 0;
}
