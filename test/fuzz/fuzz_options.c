/*-------------------------------------------------------------------------
 *
 * fuzz_options.c
 *	  The parsers of options: numbers, durations, ports, keywords, texts.
 *
 * The first byte selects the option, the rest is its value.  An accepted value is in
 * the option's range, the same value has the same result twice, and a rejected one
 * changes nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/reloptions.h"
#include "commands/defrem.h"
#include "miscadmin.h"

#include "fuzz.h"
#include "base/settings.h"
#include "config/options.h"

int			pgpx_default_pool_size = 10;
int			pgpx_default_max_waiters = 0;
int			pgpx_default_checkout_timeout = 30000;

bool
superuser(void)
{
	return true;
}

char *
defGetString(DefElem *def)
{
	return "";
}

List *
untransformRelOptions(Datum options)
{
	return NULL;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int	noptions = 0;
	PgpxPoolOptions before;
	PgpxPoolOptions once;
	PgpxPoolOptions twice;
	const char *start = NULL;
	const char *reset = NULL;
	const PgpxOption *option;
	char	   *value;

	if (noptions == 0)
		for (noptions = 0; pgpx_option_table[noptions].name != NULL;)
			noptions++;
	if (size < 1 || size > 70 * 1024)
		return 0;
	option = &pgpx_option_table[data[0] % noptions];
	value = malloc(size);
	memcpy(value, data + 1, size - 1);
	value[size - 1] = '\0';

	pgpx_options_defaults(&before);
	once = twice = before;
	fuzz_may_throw = true;
	if (sigsetjmp(fuzz_error, 0) == 0)
	{
		bool		known = pgpx_options_apply(&once, &start, &reset, option->name,
											   value);

		(void) pgpx_options_apply(&twice, &start, &reset, option->name, value);
		FUZZ_CHECK(memcmp(&once, &twice, sizeof(once)) == 0);
		if (known && option->offset >= 0)
		{
			const char *field = (const char *) &once + option->offset;
			int64		got = option->kind == PGPX_KIND_DURATION ?
				*(const int64 *) field : *(const int *) field;

			if (option->kind == PGPX_KIND_INT ||
				option->kind == PGPX_KIND_DURATION)
				FUZZ_CHECK((got >= option->min && got <= option->max) ||
						   (got == -1 && option->min < 0));
		}
	}
	else
		FUZZ_CHECK(memcmp(&once, &before, sizeof(once)) == 0);
	fuzz_may_throw = false;
	free(value);
	fuzz_free_all();
	return 0;
}
