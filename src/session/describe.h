/*-------------------------------------------------------------------------
 *
 * describe.h
 *	  The columns that a remote statement returns, without executing it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DESCRIBE_H
#define PGPX_DESCRIBE_H

#include "session/lease.h"

typedef struct PgpxDescription
{
	int			n;				/* 0: the statement returns no rows */
	PgpxColumn *columns;		/* names are valid in the database encoding */
	char	  **types;			/* type names, see pgpx_describe */
} PgpxDescription;

/*
 * pgpx_describe
 *		Have the remote parse a statement and describe its result.
 *
 * The values of its parameters are not sent.
 *
 * Built-in types are named as by format_type.  Others have the schema and name
 * in the remote's catalog, which takes a second statement.
 *
 * Errors: as of pgpx_exec; 54011 more columns than a row can have.
 */
extern void pgpx_describe(PgpxLease *lease, const PgpxStatement *statement,
						  PgpxDescription *description);

#endif							/* PGPX_DESCRIBE_H */
