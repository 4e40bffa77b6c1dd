/*-------------------------------------------------------------------------
 *
 * views.h
 *	  A row of a view, which is filled column by column.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_VIEWS_H
#define PGPX_VIEWS_H

#include "shared/shmem.h"

#define PGPX_ROW_COLUMNS 64

typedef struct PgpxRow
{
	ReturnSetInfo *rsinfo;
	TimestampTz zero;			/* PgpxTime 0; the same for all rows */
	int			n;				/* columns that were filled */
	Datum		values[PGPX_ROW_COLUMNS];
	bool		nulls[PGPX_ROW_COLUMNS];
} PgpxRow;

/*
 * pgpx_row_begin
 *		Start the result of a set-returning function.  Raise 55000 unless the
 *		library was preloaded.
 */
extern void pgpx_row_begin(PgpxRow *row, FunctionCallInfo fcinfo);

/*
 * Append the next column.  A text or name is NULL if the pointer is; it may be
 * in any encoding, and invalid bytes are replaced.
 */
extern void pgpx_row_append(PgpxRow *row, Datum value, bool null);
extern void pgpx_row_int_or_null(PgpxRow *row, int value);	/* NULL if 0 */
extern void pgpx_row_text(PgpxRow *row, const char *text);
extern void pgpx_row_name(PgpxRow *row, const char *name);

/* Shown in place of a text that the caller may not see. */
#define PGPX_HIDDEN "<insufficient privilege>"

/* A text, or PGPX_HIDDEN if the caller may not see it. */
extern void pgpx_row_secret(PgpxRow *row, bool visible, const char *text);

/* A time as timestamptz, NULL if it is 0. */
extern void pgpx_row_instant(PgpxRow *row, PgpxTime t);

/*
 * Store the complete row in the result.  Raise 55000 if the view has more
 * columns than the loaded library fills.
 */
extern void pgpx_row_store(PgpxRow *row);

#endif							/* PGPX_VIEWS_H */
