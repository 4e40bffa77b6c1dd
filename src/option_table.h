/*-------------------------------------------------------------------------
 *
 * option_table.h
 *	  The table of options behind options.h, for options.c alone.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_OPTION_TABLE_H
#define PGPX_OPTION_TABLE_H

#include "compat.h"

#include "libpq-fe.h"

typedef enum PgpxOptionKind
{
	PGPX_KIND_INT,				/* as an integer GUC */
	PGPX_KIND_DURATION,			/* as a GUC with time units, but one is required */
	PGPX_KIND_WORD,				/* one of "words" */
	PGPX_KIND_BOOL,
	PGPX_KIND_TEXT,				/* "max" bytes; if "min" is 1, not blank */
	PGPX_KIND_NUMBER,			/* libpq's integer: decimal, no unit */
	PGPX_KIND_PORTS				/* libpq's list of port numbers */
} PgpxOptionKind;

/* Where an option may stand, and whose it is. */
#define PGPX_ON_SERVER	0x01
#define PGPX_ON_MAPPING 0x02
#define PGPX_SUPERUSER	0x04	/* for superusers only */
#define PGPX_LIBPQ		0x08	/* handed to libpq as it is */
#define PGPX_IN_PLACE	0x10	/* a change keeps the pool's connections */

typedef struct PgpxOption
{
	const char *name;			/* NULL: end of the table */
	PgpxOptionKind kind;
	int			where;			/* the flags above */
	int			offset;			/* in PgpxPoolOptions; -1: not there */
	int64		min;			/* durations: ms */
	int64		max;
	int64		value;			/* the default */
	const char *const *words;	/* in the order of their C enum */
	const char *hint;			/* more about its values; NULL: nothing */
} PgpxOption;

extern const PgpxOption pgpx_option_table[];

extern const PgpxOption *pgpx_option_find(const char *name);

/*
 * pgpx_option_flags
 *		Where an option may stand; 0 if there is none of this name, or if it
 *		is refused to all.
 */
extern int	pgpx_option_flags(const char *name);

/*
 * pgpx_option_is_in_place
 *		Does a change of this option of a server leave its connections as they are?
 *
 * True for the pool's own numbers, and for options of other wrappers that mean
 * nothing to a pool.  False for what decides where a connection leads to, as whom,
 * and in which state its session is.
 */
extern bool pgpx_option_is_in_place(const char *name);

/*
 * pgpx_option_refusal
 *		Why nobody may set an option, as a sentence; NULL if that is not so.
 */
extern const char *pgpx_option_refusal(const char *name);

/*
 * pgpx_option_libpq
 *		libpq's own list, ended by a NULL keyword.
 *
 * Fetched once in a process.  It has names and no values.
 */
extern const PQconninfoOption *pgpx_option_libpq(void);

#endif							/* PGPX_OPTION_TABLE_H */
