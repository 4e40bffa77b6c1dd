/*-------------------------------------------------------------------------
 *
 * tuple.c
 *	  Tuples of foreign tables with their ctid.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/tuple.h"

#include "access/htup_details.h"

HeapTuple
pgpx_tuple_form(TupleDesc tupdesc, Datum *values, bool *nulls)
{
	HeapTuple	tuple = heap_form_tuple(tupdesc, values, nulls);
	int			natts = tupdesc->natts;

	if (!nulls[natts])
		tuple->t_self = tuple->t_data->t_ctid =
			*(ItemPointer) DatumGetPointer(values[natts]);

	/* a tuple whose ctid is not valid must not look as if it was inserted here */
	HeapTupleHeaderSetXmax(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetXmin(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetCmin(tuple->t_data, InvalidTransactionId);
	return tuple;
}
