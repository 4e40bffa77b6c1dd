/*-------------------------------------------------------------------------
 *
 * tuples_map.c
 *	  Which column of a remote result goes where in a local row.
 *
 * Names come from the remote: they are compared as they are, and cleaned before
 * they are shown.
 *
 *-------------------------------------------------------------------------
 */
#include "tuples_map.h"

#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "column_list.h"
#include "remote_error.h"

#define LIST_SHOWN 100			/* columns in a hint; of more there is no list */
#define NAMES_SHOWN 10			/* in a detail; the rest are counted */

/* A list of names for a detail: its heading, the first few, how many more. */
typedef struct Names
{
	const char *heading;
	StringInfoData text;
	int			n;
} Names;

static void
add_name(Names *names, const char *name)
{
	char		copy[NAMEDATALEN];

	if (names->n == 0)
		initStringInfo(&names->text);
	if (names->n < NAMES_SHOWN)
	{
		strlcpy(copy, name, sizeof(copy));
		appendStringInfo(&names->text, "%s\"%s\"", names->n == 0 ? "" : ", ",
						 pgpx_text_clean(copy));
	}
	names->n++;
}

static void
append_names(StringInfo detail, const Names *names)
{
	if (names->n == 0)
		return;
	appendStringInfo(detail, "%s%s: %s", detail->len > 0 ? " " : "",
					 names->heading, names->text.data);
	if (names->n > NAMES_SHOWN)
		appendStringInfo(detail, " and %d more", names->n - NAMES_SHOWN);
	appendStringInfoChar(detail, '.');
}

/* The attribute of this name, -1: none.  It is often the one at "guess". */
static int
find_attribute(TupleDesc tupdesc, const char *name, int guess)
{
	for (int i = 0; i < tupdesc->natts; i++)
	{
		int			at = (guess + i) % tupdesc->natts;
		Form_pg_attribute attr = TupleDescAttr(tupdesc, at);

		if (!attr->attisdropped && strcmp(NameStr(attr->attname), name) == 0)
			return at;
	}
	return -1;
}

static void
map_by_name(TupleDesc tupdesc, Oid type, int n, const PgpxColumn *columns,
			int *map)
{
	Names		missing = {.heading = "Columns of the type that the remote result does not have"};
	Names		extra = {.heading = "Columns of the remote result that the type does not have"};
	Names		twice = {.heading = "Columns that the remote result has more than once"};
	int		   *found = palloc0(sizeof(int) * Max(tupdesc->natts, 1));
	int			guess = 0;
	StringInfoData detail;

	for (int i = 0; i < n; i++)
	{
		int			at = find_attribute(tupdesc, columns[i].name, guess);

		map[i] = at;
		if (at < 0)
			add_name(&extra, columns[i].name);
		else if (++found[at] == 2)
			add_name(&twice, columns[i].name);
		guess = at + 1;
	}
	for (int i = 0; i < tupdesc->natts; i++)
		if (found[i] == 0 && !TupleDescAttr(tupdesc, i)->attisdropped)
			add_name(&missing, NameStr(TupleDescAttr(tupdesc, i)->attname));
	pfree(found);
	if (missing.n == 0 && extra.n == 0 && twice.n == 0)
		return;

	initStringInfo(&detail);
	append_names(&detail, &missing);
	append_names(&detail, &extra);
	append_names(&detail, &twice);
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("remote result does not match type %s",
					format_type_be(type)),
			 errdetail_internal("%s", detail.data),
			 errhint("Select each column of the type once, in any order; AS gives a column another name.")));
}

/* The result has n columns, and the column list has another number. */
static void
raise_column_list(int n, const PgpxColumn *columns, int wanted, int lead,
				  const char *lead_name)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("remote result does not match the column list"),
			 lead == 0 ?
			 errdetail_plural("The remote statement returns %d column, the column list has %d.",
							  "The remote statement returns %d columns, the column list has %d.",
							  n, n, wanted) :
			 errdetail_plural("The remote statement returns %d column, the column list has %d behind that of the pool.",
							  "The remote statement returns %d columns, the column list has %d behind that of the pool.",
							  n, n, wanted),
			 n == 0 ? 0 :
			 n > LIST_SHOWN ?
			 errhint("pgpool.column_list returns the column list for a statement.") :
			 errhint("Use %s.", pgpx_column_list(n, columns, NULL, lead_name))));
}

int
pgpx_tuples_map(const PgpxWireMessage *msg, TupleDesc tupdesc, Oid type,
				int lead, int **map, PgpxColumn **described)
{
	int			n = pgpx_wire_parse_ncolumns(msg);
	int			wanted = tupdesc->natts - lead;
	PgpxColumn *columns;

	if (n < 0)
		return -1;
	columns = palloc(sizeof(PgpxColumn) * Max(n, 1));
	if (!pgpx_wire_parse_columns(msg, n, columns))
		return -1;

	*map = palloc(sizeof(int) * Max(n, 1));
	if (OidIsValid(type) && type_is_rowtype(type))
		map_by_name(tupdesc, type, n, columns, *map);
	else
	{
		if (n != wanted && !OidIsValid(type))
			raise_column_list(n, columns, wanted, lead, lead == 0 ? NULL :
							  NameStr(TupleDescAttr(tupdesc, 0)->attname));
		if (n != wanted)
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("remote result does not match type %s",
							format_type_be(type)),
					 errdetail("The remote statement returns %d columns, and the type is not a row type: it takes one.",
							   n),
					 errhint("Use a NULL of a table's or composite type as template, or pgpool.query with a column list.")));
		for (int i = 0; i < n; i++)
			(*map)[i] = i + lead;
	}
	*described = columns;
	return n;
}
