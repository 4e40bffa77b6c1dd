/*-------------------------------------------------------------------------
 *
 * tuples.c
 *	  Rows of a remote result into a tuplestore.
 *
 * Values are converted where they lie in the socket's buffer: each is checked
 * to be valid in the database's encoding, ended with a NUL in place, and given
 * to the column's input function.  Input functions and domain checks run
 * anybody's code; it may throw, and the stream is in step all the same.
 *
 *-------------------------------------------------------------------------
 */
#include "tuples.h"

#include "mb/pg_wchar.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

typedef struct Column
{
	FmgrInfo	input;
	Oid			ioparam;
	int32		typmod;
} Column;

struct PgpxTuples
{
	PgpxSink	sink;
	TupleDesc	tupdesc;
	Tuplestorestate *store;
	int			ncolumns;
	Column	   *columns;
	PgpxField  *fields;
	Datum	   *values;
	bool	   *nulls;
	MemoryContext row_cxt;
	char	   *borrowed;		/* the byte that holds a NUL of ours; NULL: none */
	char		behind;			/* what it held before */
	int			guc_level;		/* 0: no setting was changed */

	/* where an error happens, for its context */
	int			column;
	uint64		row;
};

/*
 * The remote's DateStyle and IntervalStyle are pinned to what every input
 * function reads.  Where the lease's user has set another, read as it says.
 */
static void
adopt_styles(PgpxTuples *t, const PgpxWire *wire)
{
	if (wire->datestyle_iso && wire->intervalstyle_postgres)
		return;
	t->guc_level = NewGUCNestLevel();
	if (!wire->datestyle_iso)
		(void) set_config_option("DateStyle", wire->datestyle, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
								 false);
	if (!wire->intervalstyle_postgres)
		(void) set_config_option("IntervalStyle", wire->intervalstyle, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
								 false);
}

static bool
begin_result(void *arg, const PgpxWireMessage *msg, const PgpxWire *wire)
{
	PgpxTuples *t = arg;
	int			n = pgpx_wire_parse_ncolumns(msg);

	if (n < 0)
		return false;
	if (n != t->ncolumns)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("remote result does not match the column list"),
				 errdetail("The remote statement returns %d columns, the column list has %d.",
						   n, t->ncolumns)));
	adopt_styles(t, wire);
	return true;
}

/* The byte behind a value was borrowed for its NUL; also after an error. */
static void
give_back(void *arg)
{
	PgpxTuples *t = arg;

	if (t->borrowed != NULL)
		*t->borrowed = t->behind;
	t->borrowed = NULL;
}

static void
tell_where(void *arg)
{
	PgpxTuples *t = arg;

	errcontext("column \"%s\" of row " UINT64_FORMAT " of the remote result",
			   NameStr(TupleDescAttr(t->tupdesc, t->column)->attname), t->row);
}

static bool
add_row(void *arg, const PgpxWireMessage *msg)
{
	PgpxTuples *t = arg;
	MemoryContext old;
	int			encoding = GetDatabaseEncoding();
	ErrorContextCallback where;

	if (!pgpx_wire_parse_row(msg, t->ncolumns, t->fields))
		return false;

	where.callback = tell_where;
	where.arg = t;
	where.previous = error_context_stack;
	error_context_stack = &where;
	t->row++;

	old = MemoryContextSwitchTo(t->row_cxt);
	for (int i = 0; i < t->ncolumns; i++)
	{
		PgpxField  *field = &t->fields[i];
		Column	   *column = &t->columns[i];

		t->column = i;
		if (field->data == NULL)
		{
			/* a domain may refuse NULL */
			t->nulls[i] = true;
			t->values[i] = InputFunctionCall(&column->input, NULL,
											 column->ioparam, column->typmod);
			continue;
		}

		/* the byte behind is of the next field or message: borrow it */
		t->borrowed = field->data + field->len;
		t->behind = *t->borrowed;
		*t->borrowed = '\0';
		pg_verify_mbstr(encoding, field->data, field->len, false);
		t->nulls[i] = false;
		t->values[i] = InputFunctionCall(&column->input, field->data,
										 column->ioparam, column->typmod);
		give_back(t);
	}
	error_context_stack = where.previous;
	tuplestore_putvalues(t->store, t->tupdesc, t->values, t->nulls);
	MemoryContextSwitchTo(old);
	MemoryContextReset(t->row_cxt);
	return true;
}

PgpxTuples *
pgpx_tuples_begin(TupleDesc tupdesc, Tuplestorestate *store)
{
	PgpxTuples *t = palloc0(sizeof(*t));

	t->sink.columns = begin_result;
	t->sink.row = add_row;
	t->sink.restore = give_back;
	t->sink.arg = t;
	t->tupdesc = tupdesc;
	t->store = store;
	t->ncolumns = tupdesc->natts;
	t->columns = palloc0(sizeof(Column) * Max(t->ncolumns, 1));
	t->fields = palloc0(sizeof(PgpxField) * Max(t->ncolumns, 1));
	t->values = palloc0(sizeof(Datum) * Max(t->ncolumns, 1));
	t->nulls = palloc0(sizeof(bool) * Max(t->ncolumns, 1));
	t->row_cxt = AllocSetContextCreate(CurrentMemoryContext, "pgpool_ext row",
									   ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < t->ncolumns; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(tupdesc, i);
		Oid			input;

		getTypeInputInfo(attr->atttypid, &input, &t->columns[i].ioparam);
		fmgr_info(input, &t->columns[i].input);
		t->columns[i].typmod = attr->atttypmod;
	}
	return t;
}

const PgpxSink *
pgpx_tuples_sink(PgpxTuples *tuples)
{
	return &tuples->sink;
}

void
pgpx_tuples_end(PgpxTuples *tuples)
{
	if (tuples->guc_level > 0)
		AtEOXact_GUC(true, tuples->guc_level);
	tuples->guc_level = 0;
}
