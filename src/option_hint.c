/*-------------------------------------------------------------------------
 *
 * option_hint.c
 *	  The hint for an option name that is not valid.
 *
 *-------------------------------------------------------------------------
 */
#include "option_hint.h"

#include "option_table.h"
#include "options.h"

#include "lib/stringinfo.h"

#define DISTANCE_MAX 4			/* edits; and at most half of the name */

/* How many options there are at all. */
static int
count_names(void)
{
	const PQconninfoOption *libpq;
	int			n = 0;

	for (const PgpxOption *o = pgpx_option_table; o->name != NULL; o++)
		n++;
	for (libpq = pgpx_option_libpq(); libpq->keyword != NULL; libpq++)
		n++;
	return n;
}

/* The names that the current user can set in one place; returns how many. */
static int
list_valid_names(int place, const char **names)
{
	const PQconninfoOption *libpq;
	int			n = 0;

	for (const PgpxOption *o = pgpx_option_table; o->name != NULL; o++)
	{
		int			flags = pgpx_option_flags(o->name);

		if ((flags & place) && (superuser() || !(flags & PGPX_SUPERUSER)))
			names[n++] = o->name;
	}
	for (libpq = pgpx_option_libpq(); libpq->keyword != NULL; libpq++)
	{
		if (pgpx_option_find(libpq->keyword) == NULL &&
			pgpx_options_libpq_allowed(libpq->keyword, superuser(),
									   place == PGPX_ON_MAPPING))
			names[n++] = libpq->keyword;
	}
	return n;
}

char *
pgpx_option_hint(const char *name, int place)
{
	const char **names = palloc(sizeof(char *) * count_names());
	int			n = list_valid_names(place, names);
	char	   *lower = pstrdup(name);
	const char *closest;
	ClosestMatchState match;
	StringInfoData buf;

	/* a quoted name may be in capitals, which no option has */
	for (char *p = lower; *p != '\0'; p++)
		*p = pg_ascii_tolower((unsigned char) *p);
	initClosestMatch(&match, lower, DISTANCE_MAX);
	for (int i = 0; i < n; i++)
		updateClosestMatch(&match, names[i]);
	closest = getClosestMatch(&match);

	initStringInfo(&buf);
	if (closest != NULL)
	{
		appendStringInfo(&buf, "Perhaps you meant the option \"%s\".", closest);
		return buf.data;
	}
	appendStringInfoString(&buf, "Valid options in this context are: ");
	for (int i = 0; i < n; i++)
		appendStringInfo(&buf, "%s%s", i > 0 ? ", " : "", names[i]);
	appendStringInfoChar(&buf, '.');
	return buf.data;
}
