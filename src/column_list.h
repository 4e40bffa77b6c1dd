/*-------------------------------------------------------------------------
 *
 * column_list.h
 *	  Column definition lists for remote results, ready to be pasted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_COLUMN_LIST_H
#define PGPX_COLUMN_LIST_H

#include "wire.h"

/*
 * pgpx_column_list_type
 *		The name of a built-in type as format_type gives it, NULL for any other
 *		type: only built-in types have the same OID on every server.
 */
extern char *pgpx_column_list_type(Oid type, int32 typmod);

/*
 * pgpx_column_list
 *		The column definition list AS t(name type, ..) for a remote result.
 *
 * types: the names of types that are not built in; NULL, or an element NULL: not
 * known, the list says text, from which every type can be read.  So it does for
 * pseudo-types, which no column can have.  lead: name of a text column in front;
 * NULL: none.  A name that is empty is replaced, one that was there before gets a
 * number.
 */
extern char *pgpx_column_list(int n, const PgpxColumn *columns,
							  char *const *types, const char *lead);

#endif							/* PGPX_COLUMN_LIST_H */
