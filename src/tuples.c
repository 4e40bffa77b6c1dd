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

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "tuples_map.h"

/* A column of the remote result. */
typedef struct Column
{
	int			attribute;		/* that it goes to, from 0 */
	FmgrInfo	input;
	Oid			ioparam;
	int32		typmod;
} Column;

struct PgpxTuples
{
	PgpxSink	sink;
	TupleDesc	tupdesc;
	Tuplestorestate *store;
	Oid			type;			/* of the rows; InvalidOid: a column list */
	int			lead;			/* attributes in front that are not the remote's */
	Oid			domain;			/* type, if it is a domain over a row type */
	void	   *domain_extra;
	MemoryContext cxt;			/* that this lives in */
	MemoryContext row_cxt;
	const PgpxWire *wire;		/* that the result comes on */

	/* of the remote result; -1 and NULL until it has begun */
	int			ncolumns;
	Column	   *columns;
	PgpxField  *fields;

	/* of the local row; those of dropped attributes stay NULL */
	Datum	   *values;
	bool	   *nulls;

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
adopt_styles(PgpxTuples *t)
{
	const PgpxWire *wire = t->wire;

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

/*
 * Find out which column goes where, and how it is read.  There may be more than
 * one result: a rule adds some.
 */
static bool
begin_result(void *arg, const PgpxWireMessage *msg, const PgpxWire *wire)
{
	PgpxTuples *t = arg;
	MemoryContext old = MemoryContextSwitchTo(t->cxt);
	int		   *map;

	pgpx_tuples_end(t);
	if (t->columns != NULL)
	{
		pfree(t->columns);
		pfree(t->fields);
		t->columns = NULL;
	}
	t->ncolumns = pgpx_tuples_map(msg, t->tupdesc, t->type, t->lead, &map);
	if (t->ncolumns < 0)
	{
		MemoryContextSwitchTo(old);
		return false;
	}
	t->columns = palloc0(sizeof(Column) * Max(t->ncolumns, 1));
	t->fields = palloc0(sizeof(PgpxField) * Max(t->ncolumns, 1));
	for (int i = 0; i < t->ncolumns; i++)
	{
		Column	   *column = &t->columns[i];
		Form_pg_attribute attr = TupleDescAttr(t->tupdesc, map[i]);
		Oid			input;

		getTypeInputInfo(attr->atttypid, &input, &column->ioparam);
		fmgr_info(input, &column->input);
		column->typmod = attr->atttypmod;
		column->attribute = map[i];
	}
	pfree(map);
	MemoryContextSwitchTo(old);
	t->wire = wire;
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
	const char *name = "";

	/* -1: the row as a whole; and a scalar's column has no name */
	if (t->column >= 0)
	{
		int			at = t->columns[t->column].attribute;

		name = NameStr(TupleDescAttr(t->tupdesc, at)->attname);
	}
	if (name[0] != '\0')
		errcontext("column \"%s\" of row " UINT64_FORMAT " of the remote result",
				   name, t->row);
	else
		errcontext("row " UINT64_FORMAT " of the remote result", t->row);
}

/* The row is whole: check it, and keep it. */
static void
put_row(PgpxTuples *t)
{
	HeapTuple	tuple;

	if (!OidIsValid(t->domain))
	{
		tuplestore_putvalues(t->store, t->tupdesc, t->values, t->nulls);
		return;
	}
	t->column = -1;
	tuple = heap_form_tuple(t->tupdesc, t->values, t->nulls);
	domain_check(heap_copy_tuple_as_datum(tuple, t->tupdesc), false, t->domain,
				 &t->domain_extra, t->cxt);
	tuplestore_puttuple(t->store, tuple);
}

static bool
add_row(void *arg, const PgpxWireMessage *msg)
{
	PgpxTuples *t = arg;
	MemoryContext old;
	int			encoding = GetDatabaseEncoding();
	ErrorContextCallback where;

	if (t->ncolumns < 0 || !pgpx_wire_parse_row(msg, t->ncolumns, t->fields))
		return false;

	where.callback = tell_where;
	where.arg = t;
	where.previous = error_context_stack;
	error_context_stack = &where;
	t->row++;
	t->column = -1;
	if (t->guc_level == 0)
		adopt_styles(t);

	old = MemoryContextSwitchTo(t->row_cxt);
	for (int i = 0; i < t->ncolumns; i++)
	{
		PgpxField  *field = &t->fields[i];
		Column	   *column = &t->columns[i];
		int			at = column->attribute;

		t->column = i;
		if (field->data == NULL)
		{
			/* a domain may refuse NULL */
			t->nulls[at] = true;
			t->values[at] = InputFunctionCall(&column->input, NULL,
											  column->ioparam, column->typmod);
			continue;
		}

		/* the byte behind is of the next field or message: borrow it */
		t->borrowed = field->data + field->len;
		t->behind = *t->borrowed;
		*t->borrowed = '\0';
		pg_verify_mbstr(encoding, field->data, field->len, false);
		t->nulls[at] = false;
		t->values[at] = InputFunctionCall(&column->input, field->data,
										  column->ioparam, column->typmod);
		give_back(t);
	}
	put_row(t);
	error_context_stack = where.previous;
	MemoryContextSwitchTo(old);
	MemoryContextReset(t->row_cxt);
	return true;
}

PgpxTuples *
pgpx_tuples_begin(TupleDesc tupdesc, Tuplestorestate *store, Oid type)
{
	PgpxTuples *t = palloc0(sizeof(*t));

	t->sink.columns = begin_result;
	t->sink.row = add_row;
	t->sink.restore = give_back;
	t->sink.arg = t;
	t->tupdesc = tupdesc;
	t->store = store;
	t->type = type;
	if (OidIsValid(type) && type_is_rowtype(type) &&
		get_typtype(type) == TYPTYPE_DOMAIN)
		t->domain = type;
	t->cxt = CurrentMemoryContext;
	t->row_cxt = AllocSetContextCreate(CurrentMemoryContext, "pgpool_ext row",
									   ALLOCSET_DEFAULT_SIZES);
	t->ncolumns = -1;
	t->values = palloc0(sizeof(Datum) * Max(tupdesc->natts, 1));
	t->nulls = palloc(sizeof(bool) * Max(tupdesc->natts, 1));
	memset(t->nulls, true, sizeof(bool) * tupdesc->natts);
	return t;
}

void
pgpx_tuples_lead(PgpxTuples *tuples, char *text)
{
	Form_pg_attribute attr;
	Oid			input;
	Oid			ioparam;

	Assert(tuples->ncolumns < 0);
	if (tuples->tupdesc->natts == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column list has no column for the pool"),
				 errhint("The first column is the pool's: AS t(pool text, ...).")));
	attr = TupleDescAttr(tuples->tupdesc, 0);
	getTypeInputInfo(attr->atttypid, &input, &ioparam);
	tuples->values[0] = OidInputFunctionCall(input, text, ioparam,
											 attr->atttypmod);
	tuples->nulls[0] = false;
	tuples->lead = 1;
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
