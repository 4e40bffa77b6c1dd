/*-------------------------------------------------------------------------
 *
 * text_query.h
 *	  Small queries of remote catalogs, whose values are read as texts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TEXT_QUERY_H
#define PGPX_TEXT_QUERY_H

#include "fdw/remote_transaction.h"

typedef struct PgpxTextRows
{
	int			ncolumns;
	int			n;
	int			room;
	char	  **values;			/* [n * ncolumns]; NULL for SQL's NULL */
} PgpxTextRows;

/*
 * pgpx_text_query
 *		Run a query on a remote transaction and return its rows.
 *
 * The result is allocated in the current memory context.  Errors: those of
 * pgpx_remote_execute; HV000 if the number of columns is not ncolumns.
 */
extern PgpxTextRows *pgpx_text_query(PgpxRemoteTransaction *rt,
									 const char *sql, int ncolumns);

/* Return a value of a row. */
static inline const char *
pgpx_text_value(const PgpxTextRows *rows, int row, int column)
{
	return rows->values[row * rows->ncolumns + column];
}

#endif							/* PGPX_TEXT_QUERY_H */
