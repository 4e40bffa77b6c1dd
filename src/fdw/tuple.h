/*-------------------------------------------------------------------------
 *
 * tuple.h
 *	  Tuples of foreign tables with their ctid.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TUPLE_H
#define PGPX_TUPLE_H

#include "base/compat.h"

#include "access/htup.h"

/*
 * pgpx_tuple_form
 *		Form a tuple from values as pgpx_rows_values returns them.
 *
 * The tuple has the ctid, if there is one, and invalid transaction IDs.
 */
extern HeapTuple pgpx_tuple_form(TupleDesc tupdesc, Datum *values,
								 bool *nulls);

#endif							/* PGPX_TUPLE_H */
