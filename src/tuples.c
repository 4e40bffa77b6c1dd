/*-------------------------------------------------------------------------
 *
 * tuples.c
 *	  Rows of a remote result into a tuplestore.
 *
 * Values are converted where they lie in the socket's buffer: a text is checked to
 * be valid in the database's encoding, ended with a NUL in place, and given to the
 * column's input function; what came in binary goes to the receive function.  Both
 * and domain checks run anybody's code; it may throw, and the stream is in step
 * all the same.  How a column is read is decided by the row description of this
 * very result, whatever was asked for.
 *
 *-------------------------------------------------------------------------
 */
#include "tuples.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "formats.h"
#include "tuples_binary.h"
#include "tuples_map.h"
#include "tuples_styles.h"

/* A column of the remote result. */
typedef struct Column
{
	int			attribute;		/* that it goes to, from 0 */
	bool		binary;			/* read by the receive function, not the input */
	bool		plain;			/* its text depends on no setting */
	PgpxByHand	hand;			/* if binary */
	FmgrInfo	input;
	Oid			ioparam;
	int32		typmod;
	Oid			bridge;			/* binary of another type than the attribute's */
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
	int16	   *formats;		/* in which they can be asked for */
	int		   *gains;			/* what that would save */

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

static bool
is_same_type(Oid local, Oid remote)
{
	return local == remote || getBaseType(local) == remote;
}

/* How a column of the remote is read into an attribute. */
static void
begin_column(Column *column, const PgpxColumn *remote, Form_pg_attribute attr)
{
	Oid			function;

	column->typmod = attr->atttypmod;
	column->binary = remote->format == 1;
	column->bridge = InvalidOid;
	column->hand = PGPX_HAND_NONE;
	if (column->binary && attr->atttypid == remote->type)
		column->hand = pgpx_by_hand(remote->type, attr->atttypmod);
	if (!column->binary)
		getTypeInputInfo(attr->atttypid, &function, &column->ioparam);
	else if (pgpx_formats_gain(remote->type) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of the remote result has another type than the last time",
						NameStr(attr->attname)),
				 errhint("Run the statement again.")));
	else if (is_same_type(attr->atttypid, remote->type))
		getTypeBinaryInputInfo(attr->atttypid, &function, &column->ioparam);
	else
	{
		/* it was the same the last time: read it as what it is, by its text */
		column->bridge = remote->type;
		getTypeInputInfo(attr->atttypid, &function, &column->ioparam);
	}
	fmgr_info(function, &column->input);
}

static bool
has_other_styles(const PgpxTuples *t)
{
	return !t->wire->datestyle_iso || !t->wire->intervalstyle_postgres;
}

/* Can the columns be read in the styles that the remote has? */
static void
check_styles(const PgpxTuples *t)
{
	if (!has_other_styles(t))
		return;
	for (int i = 0; i < t->ncolumns; i++)
	{
		Column	   *column = &t->columns[i];
		Form_pg_attribute attr = TupleDescAttr(t->tupdesc, column->attribute);

		/* in binary they do not matter, unless it is made a text here */
		if (!column->binary || OidIsValid(column->bridge))
			pgpx_styles_check(t->wire, attr->atttypid);
	}
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
	PgpxColumn *remote;
	int		   *map;

	pgpx_tuples_end(t);
	if (t->columns != NULL)
	{
		pfree(t->columns);
		pfree(t->fields);
		pfree(t->formats);
		pfree(t->gains);
		t->columns = NULL;
	}
	t->ncolumns = pgpx_tuples_map(msg, t->tupdesc, t->type, t->lead, &map,
								  &remote);
	if (t->ncolumns < 0)
	{
		MemoryContextSwitchTo(old);
		return false;
	}
	t->fields = palloc0(sizeof(PgpxField) * Max(t->ncolumns, 1));
	t->formats = palloc0(sizeof(int16) * Max(t->ncolumns, 1));
	t->gains = palloc0(sizeof(int) * Max(t->ncolumns, 1));
	t->columns = palloc0(sizeof(Column) * Max(t->ncolumns, 1));
	for (int i = 0; i < t->ncolumns; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(t->tupdesc, map[i]);

		begin_column(&t->columns[i], &remote[i], attr);
		t->columns[i].attribute = map[i];
		t->columns[i].plain = pgpx_formats_is_plain(remote[i].type);
		t->gains[i] = pgpx_formats_gain(remote[i].type);
		t->formats[i] = t->gains[i] > 0 &&
			is_same_type(attr->atttypid, remote[i].type);
	}
	pfree(remote);
	pfree(map);
	MemoryContextSwitchTo(old);
	t->wire = wire;
	check_styles(t);
	return true;
}

static int
tell_formats(void *arg, bool any, uint64 rows, const int16 **formats)
{
	PgpxTuples *t = arg;

	*formats = t->formats;
	for (int i = 0; any && i < t->ncolumns; i++)
		if (!t->columns[i].plain)
			t->formats[i] = 0;
	return pgpx_formats_choose(t->ncolumns, t->formats, t->gains, rows);
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

/* A binary value, as the text of its own type. */
static char *
binary_to_text(Oid type, StringInfo buf)
{
	Oid			function;
	Oid			ioparam;
	bool		varlena;
	Datum		value;

	getTypeBinaryInputInfo(type, &function, &ioparam);
	value = OidReceiveFunctionCall(function, buf, ioparam, -1);
	getTypeOutputInfo(type, &function, &varlena);
	return OidOutputFunctionCall(function, value);
}

/* A value that is not NULL and lies in the buffer, ended with a NUL. */
static Datum
read_value(Column *column, const PgpxField *field, int encoding)
{
	StringInfoData buf;
	Datum		value;

	if (!column->binary)
	{
		pg_verify_mbstr(encoding, field->data, field->len, false);
		return InputFunctionCall(&column->input, field->data, column->ioparam,
								 column->typmod);
	}
	buf.data = field->data;
	buf.len = field->len;
	buf.maxlen = field->len + 1;
	buf.cursor = 0;
	if (OidIsValid(column->bridge))
		value = InputFunctionCall(&column->input,
								  binary_to_text(column->bridge, &buf),
								  column->ioparam, column->typmod);
	else
		value = ReceiveFunctionCall(&column->input, &buf, column->ioparam,
									column->typmod);
	if (buf.cursor != buf.len)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("incorrect binary data format")));
	return value;
}

static Datum
read_null(Column *column)
{
	if (column->binary && !OidIsValid(column->bridge))
		return ReceiveFunctionCall(&column->input, NULL, column->ioparam,
								   column->typmod);
	return InputFunctionCall(&column->input, NULL, column->ioparam,
							 column->typmod);
}

static bool
add_row(void *arg, const PgpxWireMessage *msg)
{
	PgpxTuples *t = arg;
	MemoryContext old;
	int			encoding = GetDatabaseEncoding();
	ErrorContextCallback where;
	int			level;

	if (t->ncolumns < 0 || !pgpx_wire_parse_row(msg, t->ncolumns, t->fields))
		return false;

	where.callback = tell_where;
	where.arg = t;
	where.previous = error_context_stack;
	error_context_stack = &where;
	t->row++;

	/* they are given back when rows of another remote may come: fanout.c */
	if (t->guc_level == 0 && has_other_styles(t))
		t->guc_level = pgpx_styles_begin(t->wire);
	level = pgpx_neutral_begin();
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
			t->values[at] = read_null(column);
			continue;
		}
		t->nulls[at] = false;
		if (column->hand != PGPX_HAND_NONE &&
			pgpx_by_hand_read(column->hand, field, &t->values[at]))
			continue;

		/* the byte behind is of the next field or message: borrow it */
		t->borrowed = field->data + field->len;
		t->behind = *t->borrowed;
		*t->borrowed = '\0';
		t->values[at] = read_value(column, field, encoding);
		give_back(t);
	}
	put_row(t);
	if (level > 0)
		AtEOXact_GUC(true, level);
	error_context_stack = where.previous;
	MemoryContextSwitchTo(old);
	MemoryContextReset(t->row_cxt);
	return true;
}

/* Rows of which types are read? */
static uint64
hash_shape(TupleDesc tupdesc, Oid type)
{
	uint64		hash = hash_uint32_extended(type, tupdesc->natts);

	for (int i = 0; i < tupdesc->natts; i++)
		hash = hash_uint32_extended(TupleDescAttr(tupdesc, i)->atttypid, hash);
	return hash;
}

PgpxTuples *
pgpx_tuples_begin(TupleDesc tupdesc, Tuplestorestate *store, Oid type)
{
	PgpxTuples *t = palloc0(sizeof(*t));

	t->sink.columns = begin_result;
	t->sink.row = add_row;
	t->sink.restore = give_back;
	t->sink.formats = tell_formats;
	t->sink.shape = hash_shape(tupdesc, type);
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
	Form_pg_attribute attr = NULL;
	Oid			input;
	Oid			ioparam;

	Assert(tuples->ncolumns < 0);
	if (tuples->tupdesc->natts > 0)
		attr = TupleDescAttr(tuples->tupdesc, 0);
	if (attr == NULL || TypeCategory(attr->atttypid) != TYPCATEGORY_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column list has no column for the pool"),
				 attr == NULL ? 0 :
				 errdetail("Its first column \"%s\" is of type %s.",
						   NameStr(attr->attname),
						   format_type_be(attr->atttypid)),
				 errhint("The first column is the pool's: AS t(pool text, ...).")));
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
