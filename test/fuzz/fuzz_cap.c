/*-------------------------------------------------------------------------
 *
 * fuzz_cap.c
 *	  Limits over several pools, whose sessions and workers ask in any order: which
 *	  pool gets the next token, and that pools with longer waits come first.
 *
 * The input is operations of three bytes: the operation, the pool (and the limit),
 * and the time since when its first ticket waits.
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

/* The state of a limit, as reported by its calls. */
typedef struct Told
{
	int			used;
	int			starved;			/* -1: none */
	int64		since;			/* of that one */
	bool		looked;			/* no pool was denied a token since */
	uint32		next_in_line;			/* at that time */
} Told;

static void
take(PgpxCap *cap, Told *told, int limit, int pool, int64 since)
{
	bool		unread_reset = told->starved >= 0 && told->starved != pool &&
		(since == 0 || told->since < since);
	bool		full = limit > 0 && told->used >= limit;

	FUZZ_CHECK(pgpx_cap_has_older(cap, pool, since) == unread_reset);
	switch (pgpx_cap_acquire(cap, limit, 0, pool, since))
	{
		case PGPX_TOKEN_ACQUIRED:
			FUZZ_CHECK(!unread_reset && !full);
			told->used++;
			break;
		case PGPX_TOKEN_DENIED:
			FUZZ_CHECK(unread_reset || (full && (since == 0 || told->starved == pool)));
			break;
		case PGPX_TOKEN_DENIED_NEXT:
			FUZZ_CHECK(!unread_reset && full && since != 0 && told->starved != pool);
			told->starved = pool;
			told->since = since;
			told->looked = false;
			break;
	}
}

/* Admission has visited all pools, and names the pool that is next in line, or none. */
static void
name(PgpxCap *cap, Told *told, int pool, int64 since)
{
	bool		ended = pgpx_cap_set_next_in_line(cap, pool, since, told->next_in_line);

	FUZZ_CHECK(ended == (told->looked && since == 0 && told->starved >= 0));
	if (!told->looked)
		return;					/* a pool that was denied one in between stays in line */
	told->starved = since == 0 ? -1 : pool;
	told->since = since;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	PgpxCap		cap;
	Told		told = {0, -1, 0, true, 0};

	pgpx_cap_init(&cap);
	for (; size >= 3; data += 3, size -= 3)
	{
		int			pool = data[1] % 4;
		uint32		next_in_line;

		switch (data[0] % 5)
		{
			case 0:
				take(&cap, &told, data[1] / 4 % 4, pool, data[2]);
				break;
			case 1:
				if (told.used > 0)
					FUZZ_CHECK(pgpx_cap_release(&cap) == told.used--);
				break;
			case 2:
				(void) pgpx_cap_next_in_line(&cap, &told.next_in_line);
				told.looked = true;
				break;
			case 3:
				name(&cap, &told, pool, data[2]);
				break;
			case 4:
				pgpx_cap_forget(&cap, pool);
				if (told.starved == pool)
					told.starved = -1;
				break;
		}
		FUZZ_CHECK(pgpx_cap_used(&cap, NULL) == told.used);
		FUZZ_CHECK(pgpx_cap_next_in_line(&cap, &next_in_line) == told.starved);
		FUZZ_CHECK(told.looked == (next_in_line == told.next_in_line));
	}
	return 0;
}
