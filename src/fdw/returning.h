/*-------------------------------------------------------------------------
 *
 * returning.h
 *	  The row that a remote INSERT, UPDATE or DELETE of one row returns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RETURNING_H
#define PGPX_RETURNING_H

#include "values/rows.h"

#include "executor/tuptable.h"
#include "utils/rel.h"

typedef struct PgpxReturning PgpxReturning;

/*
 * pgpx_returning_begin
 *		Begins to convert returned rows of a foreign table.
 *
 * retrieved_attrs: for each column of the remote result, the number of its
 * attribute.  The return value is allocated in the current memory context.
 */
extern PgpxReturning *pgpx_returning_begin(Relation rel,
										   List *retrieved_attrs);

/*
 * pgpx_returning_sink
 *		Returns the sink for the next execution; NULL if returning is NULL.
 *
 * The row will be allocated in the current memory context.
 */
extern const PgpxSink *pgpx_returning_sink(PgpxReturning *returning);

/*
 * pgpx_returning_store
 *		Stores the first row of the last execution in a slot.
 *
 * Returns false if there was none; the slot stays as it is.
 */
extern bool pgpx_returning_store(PgpxReturning *returning,
								 TupleTableSlot *slot);

#endif							/* PGPX_RETURNING_H */
