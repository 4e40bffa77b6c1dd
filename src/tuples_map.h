/*-------------------------------------------------------------------------
 *
 * tuples_map.h
 *	  Which column of a remote result goes where in a local row.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TUPLES_MAP_H
#define PGPX_TUPLES_MAP_H

#include "wire.h"

#include "access/tupdesc.h"

/*
 * pgpx_tuples_map
 *		For each column of a RowDescription the index of the attribute of tupdesc
 *		that it goes to; each attribute that is not dropped has one.
 *
 * type InvalidOid: tupdesc is a column list, and columns go by their place.  A
 * row type: they go by their names, in any order.  Any other type: tupdesc is
 * its one attribute, whatever the column is called.
 *
 * lead: so many attributes come first that are not of the remote.
 *
 * Returns the number of columns, -1 if the message is malformed; *map and
 * *columns, what the message says of them, are made in the current memory
 * context.  42804 if the columns do not fit.
 */
extern int	pgpx_tuples_map(const PgpxWireMessage *msg, TupleDesc tupdesc,
							Oid type, int lead, int **map,
							PgpxColumn **columns);

#endif							/* PGPX_TUPLES_MAP_H */
