/*-------------------------------------------------------------------------
 *
 * tuples.h
 *	  Rows of a remote result into a tuplestore.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TUPLES_H
#define PGPX_TUPLES_H

#include "run.h"

#include "access/tupdesc.h"
#include "utils/tuplestore.h"

typedef struct PgpxTuples PgpxTuples;

/*
 * pgpx_tuples_begin
 *		Rows of this shape into this tuplestore, which spills to disk beyond
 *		work_mem.  Lives in the current memory context.
 *
 * type: that the rows are of, InvalidOid for a column list; it decides which
 * column of the remote result goes where (tuples_map.h).
 */
extern PgpxTuples *pgpx_tuples_begin(TupleDesc tupdesc, Tuplestorestate *store,
									 Oid type);

/*
 * pgpx_tuples_lead
 *		Before any rows: the first attribute is not of the remote, it is this text
 *		in each row.  42804 if there is none; the errors of its type's input.
 */
extern void pgpx_tuples_lead(PgpxTuples *tuples, char *text);

/* The sink to give to pgpx_exec. */
extern const PgpxSink *pgpx_tuples_sink(PgpxTuples *tuples);

/* Give settings back that were changed for the conversion; also on errors. */
extern void pgpx_tuples_end(PgpxTuples *tuples);

#endif							/* PGPX_TUPLES_H */
