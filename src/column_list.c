/*-------------------------------------------------------------------------
 *
 * column_list.c
 *	  Column definition lists for remote results, ready to be pasted.
 *
 * Names come from the remote and end up in SQL that a user pastes: each is
 * cleaned, cut to the length of a name, and quoted.
 *
 *-------------------------------------------------------------------------
 */
#include "column_list.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "remote_error.h"

char *
pgpx_column_list_type(Oid type, int32 typmod)
{
	bits16		flags;

	if (type >= FirstGenbkiObjectId)
		return NULL;
	flags = FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_INVALID_AS_NULL;
	return format_type_extended(type, typmod, flags);
}

static bool
is_taken(const NameData *names, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (strcmp(NameStr(names[i]), name) == 0)
			return true;
	return false;
}

/* Make names[n] of a remote name: it is no name of those before, and not empty. */
static void
make_name(NameData *names, int n, const char *remote)
{
	char		base[NAMEDATALEN - 12];
	char	   *name = NameStr(names[n]);

	strlcpy(name, remote, NAMEDATALEN);
	if (*pgpx_text_clean(name) == '\0')
		strlcpy(name, "column", NAMEDATALEN);
	strlcpy(base, name, sizeof(base));
	pgpx_text_clean(base);
	for (int number = 2; is_taken(names, n, name); number++)
		snprintf(name, NAMEDATALEN, "%s_%d", base, number);
}

static const char *
type_name(const PgpxColumn *column, const char *known)
{
	const char *name = pgpx_column_list_type(column->type, column->typmod);

	if (name == NULL)
		return known ? known : "text";
	return get_typtype(column->type) == TYPTYPE_PSEUDO ? "text" : name;
}

char *
pgpx_column_list(int n, const PgpxColumn *columns, char *const *types,
				 const char *lead)
{
	int			first = lead ? 1 : 0;
	NameData   *names = palloc(sizeof(NameData) * (n + 1));
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfoString(&text, "AS t(");
	if (lead)
	{
		strlcpy(NameStr(names[0]), lead, NAMEDATALEN);
		appendStringInfo(&text, "%s text", quote_identifier(lead));
	}
	for (int i = 0; i < n; i++)
	{
		make_name(names, first + i, columns[i].name);
		appendStringInfo(&text, "%s%s %s", first + i > 0 ? ", " : "",
						 quote_identifier(NameStr(names[first + i])),
						 type_name(&columns[i], types ? types[i] : NULL));
	}
	appendStringInfoChar(&text, ')');
	pfree(names);
	return text.data;
}
