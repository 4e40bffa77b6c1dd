/*-------------------------------------------------------------------------
 *
 * returning.c
 *	  The row that a remote INSERT, UPDATE or DELETE of one row returns.
 *
 * The row is converted while the answer is read.  When the answer is complete,
 * it replaces the row in the executor's slot.  A rule on the remote table can
 * add rows to the answer, which are discarded.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/returning.h"

#include "access/sysattr.h"
#include "executor/executor.h"

#include "fdw/tuple.h"

struct PgpxReturning
{
	PgpxSink	sink;
	Relation	rel;
	PgpxRows   *rows;
	const PgpxSink *rows_sink;
	MemoryContext cxt;			/* of the row */
	HeapTuple	tuple;			/* the row; NULL: none so far */
};

/* Add the column whose conversion failed to the context of the error. */
static void
add_context(void *arg, AttrNumber attnum)
{
	PgpxReturning *r = arg;
	TupleDesc	tupdesc = RelationGetDescr(r->rel);
	const char *column = NULL;

	if (attnum == SelfItemPointerAttributeNumber)
		column = "ctid";
	else if (attnum > 0)
		column = NameStr(TupleDescAttr(tupdesc, attnum - 1)->attname);
	if (column != NULL)
		errcontext("column \"%s\" of foreign table \"%s\"", column,
				   RelationGetRelationName(r->rel));
	else
		errcontext("row of foreign table \"%s\"",
				   RelationGetRelationName(r->rel));
}

static bool
begin_result(void *arg, const PgpxWireMessage *msg, const PgpxWire *wire)
{
	PgpxReturning *r = arg;

	return r->rows_sink->columns(r->rows_sink->arg, msg, wire);
}

static bool
take_row(void *arg, const PgpxWireMessage *msg)
{
	PgpxReturning *r = arg;
	MemoryContext old;
	Datum	   *values;
	bool	   *nulls;

	if (!r->rows_sink->row(r->rows_sink->arg, msg))
		return false;
	if (r->tuple != NULL)
		return true;
	pgpx_rows_values(r->rows, &values, &nulls);
	old = MemoryContextSwitchTo(r->cxt);
	r->tuple = pgpx_tuple_form(RelationGetDescr(r->rel), values, nulls);
	MemoryContextSwitchTo(old);
	return true;
}

static void
restore(void *arg)
{
	PgpxReturning *r = arg;

	r->rows_sink->restore(r->rows_sink->arg);
}

PgpxReturning *
pgpx_returning_begin(Relation rel, List *retrieved_attrs)
{
	PgpxReturning *r = palloc0(sizeof(*r));
	int			n = list_length(retrieved_attrs);
	AttrNumber *attnums = palloc(sizeof(AttrNumber) * n);

	for (int i = 0; i < n; i++)
		attnums[i] = list_nth_int(retrieved_attrs, i);
	r->sink.columns = begin_result;
	r->sink.row = take_row;
	r->sink.restore = restore;
	r->sink.arg = r;
	r->rel = rel;
	r->rows = pgpx_rows_begin_attributes(RelationGetDescr(rel), n, attnums,
										 add_context, r);
	r->rows_sink = pgpx_rows_sink(r->rows);
	return r;
}

const PgpxSink *
pgpx_returning_sink(PgpxReturning *returning)
{
	if (returning == NULL)
		return NULL;
	returning->tuple = NULL;
	returning->cxt = CurrentMemoryContext;
	return &returning->sink;
}

bool
pgpx_returning_store(PgpxReturning *returning, TupleTableSlot *slot)
{
	pgpx_rows_end(returning->rows);
	if (returning->tuple == NULL)
		return false;
	ExecForceStoreHeapTuple(returning->tuple, slot, true);
	returning->tuple = NULL;
	return true;
}
