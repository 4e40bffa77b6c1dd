/*-------------------------------------------------------------------------
 *
 * text_query.c
 *	  Small queries of remote catalogs, whose values are read as texts.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/text_query.h"

#include "mb/pg_wchar.h"

static bool
check_columns(void *arg, const PgpxWireMessage *msg, const PgpxWire *wire)
{
	const PgpxTextRows *rows = arg;
	int			n = pgpx_wire_parse_ncolumns(msg);

	if (n >= 0 && n != rows->ncolumns)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_ERROR),
				 errmsg("remote query result does not match the foreign table"),
				 errdetail("The remote statement returns %d columns, and %d are expected.",
						   n, rows->ncolumns)));
	return n >= 0;
}

static bool
add_row(void *arg, const PgpxWireMessage *msg)
{
	PgpxTextRows *rows = arg;
	PgpxField  *fields = palloc(sizeof(PgpxField) * rows->ncolumns);
	char	  **values;

	if (!pgpx_wire_parse_row(msg, rows->ncolumns, fields))
		return false;
	if (rows->n == rows->room)
	{
		size_t		size = sizeof(char *) * rows->ncolumns * rows->room * 2;

		rows->room *= 2;
		rows->values = repalloc_huge(rows->values, size);
	}
	values = &rows->values[rows->n * rows->ncolumns];
	rows->n++;
	for (int i = 0; i < rows->ncolumns; i++)
	{
		values[i] = NULL;
		if (fields[i].data == NULL)
			continue;
		(void) pg_verifymbstr(fields[i].data, fields[i].len, false);
		values[i] = pnstrdup(fields[i].data, fields[i].len);
	}
	pfree(fields);
	return true;
}

static void
restore(void *arg)
{
}

PgpxTextRows *
pgpx_text_query(PgpxRemoteTransaction *rt, const char *sql, int ncolumns)
{
	PgpxTextRows *rows = palloc(sizeof(*rows));
	PgpxStatement statement = {.sql = sql};
	PgpxSink	sink = {
		.columns = check_columns,
		.row = add_row,
		.restore = restore,
		.arg = rows,
	};

	rows->ncolumns = ncolumns;
	rows->n = 0;
	rows->room = 16;
	rows->values = palloc(sizeof(char *) * rows->room * ncolumns);
	(void) pgpx_remote_execute(rt, &statement, &sink, false);
	return rows;
}
