/*-------------------------------------------------------------------------
 *
 * rows.c
 *	  Conversion of a remote result's rows, of columns in text and in binary;
 *	  column definition lists.
 *
 * - Values are converted in place in the input buffer.  A text is verified to
 *	 be valid in the database's encoding, terminated with a NUL in place, and
 *	 passed to the column's input function.  A binary value is passed to the
 *	 receive function, or is read by a function of the table of binary types.
 * - Input functions, receive functions and domain checks can be user code and
 *	 can raise errors.  The stream stays in sync all the same, because the
 *	 reader has already moved past the message.
 * - The row description of the current result decides how a column is read,
 *	 whatever format was requested.
 * - Texts are in the DateStyle and IntervalStyle with which a remote session
 *	 starts, and which every input function reads (statement.c:check_styles).
 * - Column names come from the remote.  They are compared byte by byte, and
 *	 made valid in the database's encoding before they are shown.
 * - A column definition list ends up in SQL that a user pastes.  So each name
 *	 in it is made valid, cut to NAMEDATALEN, and quoted.
 *
 * Columns in binary
 *
 * The formats of the result are sent with the statement, before its columns
 * are known.  So a statement is first executed with a result in text.  If the
 * result had so many rows that binary would have been cheaper, and some
 * columns are of a type that is the same on both sides, the session requests
 * these columns in binary from then on.
 *
 * - The recorded formats are a prediction, and correctness does not depend on
 *	 them.  The row description of each execution has the format and type of
 *	 each column, which decide how the column is read.
 * - So the table of formats may lose entries: it has no chains, and a statement
 *	 replaces another one in the same slot.
 * - Values of a few types are read without their receive functions.  In a
 *	 result of numbers the call of a receive function, and the buffer that it
 *	 needs, cost more than the conversion.
 * - Such a function raises no error for an invalid value.  The value is passed to
 *	 the receive function, which reports the error.
 *
 *-------------------------------------------------------------------------
 */
#include "values/rows.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "datatype/timestamp.h"
#include "mb/pg_wchar.h"
#include "parser/parse_coerce.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/uuid.h"
#include "utils/xml.h"

#include "base/debug_point.h"
#include "protocol/remote_message.h"

/* --- columns in binary ----------------------------------------------------- */

/*
 * Fixed cost of a result with binary columns, in ns per execution, for both
 * servers together: Parse, Bind and Describe replace Query.  A result that
 * would gain less is requested in text.
 */
#define FORMATS_MIN_GAIN 6000

#define SLOTS 256

/* The formats of the columns of a statement's result. */
typedef struct Formats
{
	PgpxFormatsKey key;
	int			ncolumns;		/* 0: the slot is empty */
	uint64		binary[PGPX_FORMATS_COLUMNS / 64];	/* one bit per column */
} Formats;

static Formats table[SLOTS];

void
pgpx_formats_key(PgpxFormatsKey *key, uint32 pool_id, const char *sql,
				 uint64 types_hash)
{
	size_t		length = strlen(sql);
	const unsigned char *text = (const unsigned char *) sql;

	memset(key, 0, sizeof(*key));
	key->pool_id = pool_id;
	key->length = (uint32) length;
	key->text[0] = hash_bytes_extended(text, (int) length, 0);
	key->text[1] = hash_bytes_extended(text, (int) length, 1);
	key->types_hash = types_hash;
}

static Formats *
slot_of(const PgpxFormatsKey *key)
{
	return &table[(key->text[0] ^ key->types_hash ^ key->pool_id) % SLOTS];
}

int
pgpx_formats_find(const PgpxFormatsKey *key,
				  int16 formats[PGPX_FORMATS_COLUMNS])
{
	const Formats *slot = slot_of(key);

	if (memcmp(&slot->key, key, sizeof(*key)) != 0)
		return 0;
	for (int i = 0; i < slot->ncolumns; i++)
		formats[i] = (slot->binary[i / 64] >> (i % 64)) & 1;
	return slot->ncolumns;
}

void
pgpx_formats_note(const PgpxFormatsKey *key, int n, const int16 *formats)
{
	Formats    *slot = slot_of(key);
	Formats		entry = {.key = *key, .ncolumns = n};

	if (n > PGPX_FORMATS_COLUMNS)
		return;
	for (int i = 0; i < n; i++)
		if (formats[i] != 0)
			entry.binary[i / 64] |= UINT64CONST(1) << (i % 64);
	if (n > 0 || memcmp(&slot->key, key, sizeof(*key)) == 0)
		*slot = entry;
}

/*
 * A type whose values can be requested in binary: its binary form has the same
 * meaning as its text on every server, whatever the settings of either side
 * are.  Text types are none: their binary form has the same bytes, and their
 * receive functions expect the encoding of the local session's client.  Types
 * without a fixed OID are none, too.
 */
typedef struct BinaryType
{
	Oid			type;
	int			gain;			/* ns that both servers together save if a
								 * value is sent in binary; 0: it must be sent
								 * in text */
	bool		plain;			/* the type's text depends on no setting */

	/*
	 * Read a value that is not NULL without the receive function.  Return false
	 * for an invalid value: the receive function then reports the error.  NULL:
	 * there is no such function.  Not for a domain, which has checks, nor for a
	 * column with a typmod, to which the value must be rounded.
	 */
	bool (*read)(const PgpxField *field, Datum *value);
} BinaryType;

/* --- values that are read without their receive functions ---------------- */

/* Define a function that reads a value v of sizeof(ctype) bytes. */
#define READ_FIXED(function, ctype, datum) \
static bool \
function(const PgpxField *field, Datum *value) \
{ \
	ctype		v; \
\
	if (field->len != sizeof(v)) \
		return false; \
	memcpy(&v, field->data, sizeof(v)); \
	*value = (datum); \
	return true; \
}

READ_FIXED(read_bool, char, BoolGetDatum(v != 0))
READ_FIXED(read_int2, uint16, Int16GetDatum((int16) pg_ntoh16(v)))

/* int4 and float4; int8 and float8 */
READ_FIXED(read_4_bytes, uint32, Int32GetDatum((int32) pg_ntoh32(v)))
READ_FIXED(read_8_bytes, uint64, Int64GetDatum((int64) pg_ntoh64(v)))

static bool
read_date(const PgpxField *field, Datum *value)
{
	DateADT		date;

	if (!read_4_bytes(field, value))
		return false;
	date = DatumGetDateADT(*value);
	return DATE_NOT_FINITE(date) || IS_VALID_DATE(date);
}

/* with a time zone or without */
static bool
read_timestamp(const PgpxField *field, Datum *value)
{
	Timestamp	timestamp;

	if (!read_8_bytes(field, value))
		return false;
	timestamp = DatumGetTimestamp(*value);
	return TIMESTAMP_NOT_FINITE(timestamp) || IS_VALID_TIMESTAMP(timestamp);
}

static bool
read_time(const PgpxField *field, Datum *value)
{
	if (!read_8_bytes(field, value))
		return false;
	return DatumGetTimeADT(*value) >= 0 &&
		DatumGetTimeADT(*value) <= USECS_PER_DAY;
}

static bool
read_uuid(const PgpxField *field, Datum *value)
{
	pg_uuid_t  *uuid;

	if (field->len != UUID_LEN)
		return false;
	uuid = palloc(sizeof(*uuid));
	memcpy(uuid->data, field->data, UUID_LEN);
	*value = UUIDPGetDatum(uuid);
	return true;
}

/*
 * The types that can be requested in binary.  The gains were measured with
 * arrays of two elements (test/bench/PROFILE.md).
 */
static const BinaryType types[] = {
	{BOOLOID, 12, true, read_bool},
	{INT2OID, 16, true, read_int2},
	{INT4OID, 16, true, read_4_bytes},
	{INT8OID, 20, true, read_8_bytes},
	{NUMERICOID, 16, true, NULL},
	{FLOAT4OID, 60, false, read_4_bytes},
	{FLOAT8OID, 90, false, read_8_bytes},
	{BYTEAOID, 50, false, NULL},
	{DATEOID, 130, false, read_date},
	{TIMEOID, 90, false, read_time},
	{TIMETZOID, 90, false, NULL},
	{TIMESTAMPOID, 180, false, read_timestamp},
	{TIMESTAMPTZOID, 230, false, read_timestamp},
	{INTERVALOID, PGPX_INTERVAL_IS_SAFE_IN_BINARY ? 110 : 0, false,
	NULL},
	{UUIDOID, 270, true, read_uuid},
	{BOOLARRAYOID, 30, true, NULL},
	{INT2ARRAYOID, 30, true, NULL},
	{INT4ARRAYOID, 30, true, NULL},
	{INT8ARRAYOID, 30, true, NULL},
	{NUMERICARRAYOID, 30, true, NULL},
	{UUIDARRAYOID, 30, true, NULL},
	{BYTEAARRAYOID, 30, false, NULL},
	{FLOAT4ARRAYOID, 30, false, NULL},
	{FLOAT8ARRAYOID, 30, false, NULL},
	{DATEARRAYOID, 30, false, NULL},
	{TIMEARRAYOID, 30, false, NULL},
	{TIMETZARRAYOID, 30, false, NULL},
	{TIMESTAMPARRAYOID, 30, false, NULL},
	{TIMESTAMPTZARRAYOID, 30, false, NULL},
	{INTERVALARRAYOID, PGPX_INTERVAL_IS_SAFE_IN_BINARY ? 30 : 0, false,
	NULL},
};

/* Return the entry of a type, or one whose gain is 0. */
static const BinaryType *
binary_type(Oid type)
{
	static const BinaryType none = {0};

	for (int i = 0; i < lengthof(types); i++)
		if (types[i].type == type)
			return &types[i];
	return &none;
}

/*
 * Request a few small numbers in text if the remote then needs no second memory
 * block for a row.
 *
 * PostgreSQL builds the values of a row in a memory block of 8 kB, of which a
 * value that is sent in binary takes 1 kB, however short it is.  From the
 * eighth value on it allocates and frees a second block for each row.  That
 * costs as much as sending NUMBERS_PER_BLOCK small numbers in text.
 */
#define FIRST_BLOCK_MAX 7		/* binary values in the first block */
#define NUMBERS_PER_BLOCK 3
#define SMALL_GAIN_NS 20		/* gain of a small number */

static void
avoid_second_block(int n, int16 *formats, const BinaryType *const *types)
{
	int			binary = 0;
	int			small = 0;

	for (int i = 0; i < n; i++)
	{
		binary += formats[i] != 0;
		small += formats[i] != 0 && types[i]->gain <= SMALL_GAIN_NS;
	}
	if (binary <= FIRST_BLOCK_MAX ||
		binary - FIRST_BLOCK_MAX > Min(small, NUMBERS_PER_BLOCK))
		return;
	for (int i = n - 1; binary > FIRST_BLOCK_MAX; i--)
		if (formats[i] != 0 && types[i]->gain <= SMALL_GAIN_NS)
		{
			formats[i] = 0;
			binary--;
		}
}

/*
 * Choose the columns to request in binary.
 *
 * formats: 1 for each of the n columns that can be requested in binary; the
 * function sets those that are cheaper in text to 0.  types: of the columns.
 * any: the columns may be read into other types, so that only plain types can be
 * requested.  rows: the number of rows of the result.  Return n, or 0 if the
 * whole result is cheaper in text.
 */
static int
formats_choose(int n, int16 *formats, const BinaryType *const *types,
			   bool any, uint64 rows)
{
	uint64		gain = 0;

	for (int i = 0; any && i < n; i++)
		formats[i] = formats[i] && types[i]->plain;
	avoid_second_block(n, formats, types);
	for (int i = 0; i < n; i++)
		if (formats[i] != 0)
			gain += types[i]->gain;
	return gain > 0 && rows * gain >= FORMATS_MIN_GAIN ? n : 0;
}

/* --- rows ------------------------------------------------------------------ */

void
pgpx_set_local(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Override the local settings with which input functions would change or reject
 * a value.  Return the GUC nest level to end with AtEOXact_GUC, or 0 if no
 * setting had to be changed.
 *
 * The caller must end the override after each row, because other code runs
 * between rows and reads the results of other leases there.
 */
static int
begin_input_settings(void)
{
	int			level;

	if (Array_nulls && xmloption == XMLOPTION_CONTENT)
		return 0;
	level = NewGUCNestLevel();
	if (!Array_nulls)
		pgpx_set_local("array_nulls", "on");
	if (xmloption != XMLOPTION_CONTENT)
		pgpx_set_local("xmloption", "content");
	return level;
}

#define MAX_LIST_COLUMNS 100	/* columns in a hint; with more, no list */

/*
 * Return the index of the attribute with this name, -1 if there is none.  The
 * search starts at "start", where the attribute usually is.
 */
static int
find_attribute(TupleDesc tupdesc, const char *name, int start)
{
	for (int i = 0; i < tupdesc->natts; i++)
	{
		int			at = (start + i) % tupdesc->natts;
		Form_pg_attribute attr = TupleDescAttr(tupdesc, at);

		if (!attr->attisdropped && strcmp(NameStr(attr->attname), name) == 0)
			return at;
	}
	return -1;
}

/* Raise 42804.  detail: has a %s for the name of a column. */
pg_noreturn static void
raise_mismatch(Oid type, const char *detail, const char *name)
{
	char		copy[NAMEDATALEN];

	strlcpy(copy, name, sizeof(copy));
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("remote result does not match type %s",
					format_type_be(type)),
			 errdetail(detail, pgpx_text_clean(copy)),
			 errhint("Select each column of the type once, in any order; AS gives a column another name.")));
}

static void
map_by_name(TupleDesc tupdesc, Oid type, int n, const PgpxColumn *columns,
			int *map)
{
	bool	   *found = palloc0(sizeof(bool) * Max(tupdesc->natts, 1));
	int			start = 0;

	for (int i = 0; i < n; i++)
	{
		int			at = find_attribute(tupdesc, columns[i].name, start);

		if (at < 0)
			raise_mismatch(type, "The type has no column \"%s\".",
						   columns[i].name);
		if (found[at])
			raise_mismatch(type, "The remote result has column \"%s\" more than once.",
						   columns[i].name);
		map[i] = at;
		found[at] = true;
		start = at + 1;
	}
	for (int i = 0; i < tupdesc->natts; i++)
		if (!found[i] && !TupleDescAttr(tupdesc, i)->attisdropped)
			raise_mismatch(type, "The remote result has no column \"%s\".",
						   NameStr(TupleDescAttr(tupdesc, i)->attname));
	pfree(found);
}

char *
pgpx_column_list_type(Oid type, int32 typmod)
{
	uint16		flags;

	if (type >= FirstGenbkiObjectId)
		return NULL;
	flags = FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_INVALID_AS_NULL;
	return format_type_extended(type, typmod, flags);
}

static bool
is_taken(const NameData *names, int n, const char *name)
{
	CHECK_FOR_INTERRUPTS();		/* slow if a remote repeats a name */
	for (int i = 0; i < n; i++)
		if (strcmp(NameStr(names[i]), name) == 0)
			return true;
	return false;
}

/*
 * Set names[n] to a remote name, changed if it is empty or equals an earlier
 * one.
 */
static void
make_name(NameData *names, int n, const char *remote)
{
	char		base[NAMEDATALEN - 12];
	char	   *name = NameStr(names[n]);

	strlcpy(name, remote, NAMEDATALEN);
	if (*pgpx_text_clean(name) == '\0')
		strlcpy(name, "column", NAMEDATALEN);
	strlcpy(base, name, sizeof(base));
	pgpx_text_clean(base);
	for (int number = 2; is_taken(names, n, name); number++)
		snprintf(name, NAMEDATALEN, "%s_%d", base, number);
}

/* Return a type for a column list.  remote_name: NULL if it is not known. */
static const char *
type_name(const PgpxColumn *column, const char *remote_name)
{
	const char *name = pgpx_column_list_type(column->type, column->typmod);

	if (name == NULL)
		return remote_name ? remote_name : "text";
	return get_typtype(column->type) == TYPTYPE_PSEUDO ? "text" : name;
}

char *
pgpx_column_list(int n, const PgpxColumn *columns, char *const *types,
				 const char *lead)
{
	int			first = lead ? 1 : 0;
	NameData   *names = palloc(sizeof(NameData) * (n + 1));
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfoString(&text, "AS t(");
	if (lead)
	{
		strlcpy(NameStr(names[0]), lead, NAMEDATALEN);
		appendStringInfo(&text, "%s text", quote_identifier(lead));
	}
	for (int i = 0; i < n; i++)
	{
		make_name(names, first + i, columns[i].name);
		appendStringInfo(&text, "%s%s %s", first + i > 0 ? ", " : "",
						 quote_identifier(NameStr(names[first + i])),
						 type_name(&columns[i], types ? types[i] : NULL));
	}
	appendStringInfoChar(&text, ')');
	pfree(names);
	return text.data;
}

/* A column of the remote result. */
typedef struct Column
{
	int			attribute;		/* index of the local attribute, from 0; the
								 * number of attributes: ctid; -1: ignored */
	bool		binary;			/* in binary, read by the receive function */

	/* see BinaryType */
	bool (*read)(const PgpxField *field, Datum *value);
	FmgrInfo	input;
	Oid			ioparam;
	int32		typmod;
	Oid			via_text_type;	/* remote type of a binary value that is read
								 * by way of its text; else InvalidOid */
} Column;

struct PgpxRows
{
	PgpxSink	sink;
	TupleDesc	tupdesc;
	Tuplestorestate *store;		/* NULL: the caller reads the values */
	Oid			type;			/* of the rows; InvalidOid: a column list */
	int			lead;			/* number of leading attributes, not remote */

	/* of pgpx_rows_begin_attributes; "where" is NULL in another conversion */
	const List *attnums;
	void (*where)(void *arg, AttrNumber attnum);
	void	   *where_arg;

	Oid			domain;			/* type, if it is a domain over a row type */
	void	   *domain_extra;
	MemoryContext cxt;			/* holds this struct */
	MemoryContext result_cxt;	/* reset for each result; holds its columns */
	MemoryContext row_cxt;
	MemoryContext kept_cxt;		/* of the row that pgpx_rows_keep has kept */

	/* columns of the remote result; -1 and NULL until it has begun */
	int			ncolumns;
	Column	   *columns;
	PgpxField  *fields;
	int16	   *formats;		/* formats in which they can be requested */
	const BinaryType **types;

	PgpxRowValues row;			/* dropped attributes stay NULL */

	char	   *overwritten;	/* byte overwritten with a NUL; NULL: none */
	char		original;		/* its original value */

	/* current position, for the context of errors */
	int			column;
	uint64		row_number;
};

static bool
is_same_type(Oid local, Oid remote)
{
	return local == remote || getBaseType(local) == remote;
}

/* Return the type of an attribute; its index is as in Column. */
static Oid
attribute_type(const PgpxRows *t, int attribute)
{
	return attribute == t->tupdesc->natts ? TIDOID :
		TupleDescAttr(t->tupdesc, attribute)->atttypid;
}

/* Determine how a remote column is read into its attribute. */
static void
begin_column(const PgpxRows *t, Column *column, const PgpxColumn *remote)
{
	Oid			type = attribute_type(t, column->attribute);
	const char *name = "ctid";
	Oid			function;

	column->typmod = -1;
	if (column->attribute < t->tupdesc->natts)
	{
		Form_pg_attribute attr = TupleDescAttr(t->tupdesc, column->attribute);

		column->typmod = attr->atttypmod;
		name = NameStr(attr->attname);
	}
	column->binary = remote->format == 1;
	column->via_text_type = InvalidOid;
	column->read = NULL;
	if (column->binary && type == remote->type && column->typmod < 0)
		column->read = binary_type(type)->read;
	if (column->binary &&
		(binary_type(remote->type)->gain == 0 ||
		 (!is_same_type(type, remote->type) &&
		  !binary_type(remote->type)->plain)))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of the remote result has another type than in the previous execution",
						name),
				 errhint("Run the statement again.")));

	/*
	 * If the types were the same at the last execution, when binary was chosen,
	 * and now differ, convert the value by way of its text, which no setting
	 * affects.
	 */
	if (column->binary && !is_same_type(type, remote->type))
		column->via_text_type = remote->type;
	if (column->binary && !OidIsValid(column->via_text_type))
		getTypeBinaryInputInfo(type, &function, &column->ioparam);
	else
		getTypeInputInfo(type, &function, &column->ioparam);
	fmgr_info_cxt(function, &column->input, t->result_cxt);
}

/*
 * Set map[i] to the attribute of column i, as in Column, for a result whose
 * rows go to the tuplestore.  Raise 42804 if the columns do not match.
 *
 * Every attribute, except dropped and leading ones, must have one column.  The
 * type of the rows determines the mapping:
 *
 *		InvalidOid	tupdesc is a column list; columns are mapped by position
 *		a row type	columns are mapped by name, in any order
 *		other types	tupdesc has one attribute, which has the one column,
 *					whatever its name is
 */
static void
map_columns(const PgpxRows *t, int n, const PgpxColumn *columns, int *map)
{
	int			expected = t->tupdesc->natts - t->lead;

	if (OidIsValid(t->type) && type_is_rowtype(t->type))
	{
		map_by_name(t->tupdesc, t->type, n, columns, map);
		return;
	}
	if (n != expected && !OidIsValid(t->type))
	{
		const char *lead = t->lead == 0 ? NULL :
			NameStr(TupleDescAttr(t->tupdesc, 0)->attname);

		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("remote result does not match the column list"),
				 lead == NULL ?
				 errdetail_plural("The remote statement returns %d column, the column list has %d.",
								  "The remote statement returns %d columns, the column list has %d.",
								  n, n, expected) :
				 errdetail_plural("The remote statement returns %d column, the column list has %d after the pool column.",
								  "The remote statement returns %d columns, the column list has %d after the pool column.",
								  n, n, expected),
				 n == 0 ? 0 :
				 n > MAX_LIST_COLUMNS ?
				 errhint("pgpool.column_list returns the column list for a statement.") :
				 errhint("Use %s.", pgpx_column_list(n, columns, NULL, lead))));
	}
	if (n != expected)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("remote result does not match type %s",
						format_type_be(t->type)),
				 errdetail_plural("The remote statement returns %d column, and a type that is not a row type needs exactly one.",
								  "The remote statement returns %d columns, and a type that is not a row type needs exactly one.",
								  n, n),
				 errhint("Use a NULL of a table's or composite type as template, or pgpool.query with a column list.")));
	for (int i = 0; i < n; i++)
		map[i] = i + t->lead;
}

/* As map_columns, by attribute numbers. */
static void
map_attributes(const PgpxRows *t, int n, int *map)
{
	if (t->attnums != NIL && n != list_length(t->attnums))
		ereport(ERROR,
				(errcode(ERRCODE_FDW_ERROR),
				 errmsg("remote query result does not match the foreign table"),
				 errdetail("The remote statement returns %d columns, and %d are expected.",
						   n, list_length(t->attnums))));
	for (int i = 0; i < n; i++)
		map[i] = t->attnums == NIL ? -1 :
			list_nth_int(t->attnums, i) == SelfItemPointerAttributeNumber ?
			t->tupdesc->natts : list_nth_int(t->attnums, i) - 1;
}

/*
 * Map the columns of a result and determine how each is read.  Called for each
 * result of a statement, which can have several because of rules.
 */
static bool
begin_result(void *arg, const PgpxWireMessage *msg)
{
	PgpxRows   *t = arg;
	MemoryContext old;
	int			n = pgpx_wire_parse_ncolumns(msg);
	PgpxColumn *remote;
	int		   *map;

	t->columns = NULL;
	t->ncolumns = -1;
	MemoryContextReset(t->result_cxt);
	old = MemoryContextSwitchTo(t->result_cxt);
	remote = palloc(sizeof(PgpxColumn) * Max(n, 1));
	map = palloc(sizeof(int) * Max(n, 1));
	if (n < 0 || !pgpx_wire_parse_columns(msg, n, remote))
	{
		MemoryContextSwitchTo(old);
		return false;
	}
	if (t->where != NULL)
		map_attributes(t, n, map);
	else
		map_columns(t, n, remote, map);
	t->ncolumns = n;
	t->fields = palloc0(sizeof(PgpxField) * Max(n, 1));
	t->formats = palloc0(sizeof(int16) * Max(n, 1));
	t->types = palloc(sizeof(BinaryType *) * Max(n, 1));
	t->columns = palloc0(sizeof(Column) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		t->columns[i].attribute = map[i];
		t->types[i] = binary_type(remote[i].type);
		if (map[i] < 0)
			continue;
		begin_column(t, &t->columns[i], &remote[i]);
		t->formats[i] = t->types[i]->gain > 0 &&
			is_same_type(attribute_type(t, map[i]), remote[i].type);
	}
	pfree(remote);
	pfree(map);
	MemoryContextSwitchTo(old);
	return true;
}

static int
report_formats(void *arg, bool any, uint64 rows, const int16 **formats)
{
	PgpxRows   *t = arg;

	*formats = t->formats;
	return formats_choose(t->ncolumns, t->formats, t->types, any, rows);
}

/* Restore the byte after a value that was overwritten with a NUL. */
static void
restore_byte(void *arg)
{
	PgpxRows   *t = arg;

	if (t->overwritten != NULL)
		*t->overwritten = t->original;
	t->overwritten = NULL;
}

static void
add_context(void *arg)
{
	PgpxRows   *t = arg;
	const char *name;

	if (t->where != NULL)
	{
		t->where(t->where_arg, t->column < 0 || t->attnums == NIL ? 0 :
				 list_nth_int(t->attnums, t->column));
		return;
	}

	/* -1: the row as a whole; the column of a scalar type has no name */
	name = t->column < 0 ? "" :
		NameStr(TupleDescAttr(t->tupdesc,
							  t->columns[t->column].attribute)->attname);
	if (name[0] != '\0')
		errcontext("column \"%s\" of row " UINT64_FORMAT " of the remote result",
				   name, t->row_number);
	else
		errcontext("row " UINT64_FORMAT " of the remote result",
				   t->row_number);
}

/* Check a complete row against its domain, and store it. */
static void
put_row(PgpxRows *t)
{
	HeapTuple	tuple;

	if (t->store == NULL)
		return;
	t->column = -1;				/* errors from here on are of the whole row */
	if (!OidIsValid(t->domain))
	{
		tuplestore_putvalues(t->store, t->tupdesc, t->row.values,
							 t->row.nulls);
		return;
	}
	tuple = heap_form_tuple(t->tupdesc, t->row.values, t->row.nulls);
	domain_check(heap_copy_tuple_as_datum(tuple, t->tupdesc), false, t->domain,
				 &t->domain_extra, t->cxt);
	tuplestore_puttuple(t->store, tuple);
}

/* Convert a binary value to the text of its own type. */
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

/*
 * Convert a value, which is followed by a NUL byte.  NULL is converted, too,
 * because a domain can reject it.
 */
static Datum
read_value(Column *column, const PgpxField *field, int encoding)
{
	StringInfoData buf = {
		.data = field->data,
		.len = field->len,
		.maxlen = field->len + 1,
	};
	bool		is_null = field->data == NULL;
	char	   *text = field->data;
	Datum		value;

	if (!column->binary && !is_null)
		pg_verify_mbstr(encoding, field->data, field->len, false);
	if (OidIsValid(column->via_text_type) && !is_null)
		text = binary_to_text(column->via_text_type, &buf);
	if (column->binary && !OidIsValid(column->via_text_type))
		value = ReceiveFunctionCall(&column->input, is_null ? NULL : &buf,
									column->ioparam, column->typmod);
	else
		value = InputFunctionCall(&column->input, text, column->ioparam,
								  column->typmod);
	if (column->binary && !is_null && buf.cursor != buf.len)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("incorrect binary data format")));
	return value;
}

static bool
add_row(void *arg, const PgpxWireMessage *msg)
{
	PgpxRows   *t = arg;
	MemoryContext old;
	int			encoding = GetDatabaseEncoding();
	ErrorContextCallback where;
	int			level;

	if (t->ncolumns < 0 || !pgpx_wire_parse_row(msg, t->ncolumns, t->fields))
		return false;

	where.callback = add_context;
	where.arg = t;
	where.previous = error_context_stack;
	error_context_stack = &where;
	t->row_number++;

	level = begin_input_settings();
	MemoryContextReset(t->row_cxt);
	old = MemoryContextSwitchTo(t->row_cxt);
	for (int i = 0; i < t->ncolumns; i++)
	{
		PgpxField  *field = &t->fields[i];
		Column	   *column = &t->columns[i];
		int			at = column->attribute;

		t->column = i;
		if (at < 0)
			continue;
		t->row.nulls[at] = field->data == NULL;
		if (field->data != NULL)
		{
			if (column->read != NULL && column->read(field, &t->row.values[at]))
				continue;

			/*
			 * The byte after the value belongs to the next field or message.
			 * Overwrite it with a NUL for the time of the conversion.
			 */
			t->overwritten = field->data + field->len;
			t->original = *t->overwritten;
			*t->overwritten = '\0';
		}
		t->row.values[at] = read_value(column, field, encoding);
		restore_byte(t);
	}
	put_row(t);
	if (level > 0)
		AtEOXact_GUC(true, level);
	error_context_stack = where.previous;
	MemoryContextSwitchTo(old);
	return true;
}

/* Return a hash of the types into which rows are read. */
static uint64
hash_types(TupleDesc tupdesc, Oid type)
{
	uint64		hash = hash_uint32_extended(type, tupdesc->natts);

	for (int i = 0; i < tupdesc->natts; i++)
		hash = hash_uint32_extended(TupleDescAttr(tupdesc, i)->atttypid, hash);
	return hash;
}

PgpxRows *
pgpx_rows_begin(TupleDesc tupdesc, Tuplestorestate *store, Oid type)
{
	PgpxRows   *t = palloc0(sizeof(*t));

	t->sink.columns = begin_result;
	t->sink.row = add_row;
	t->sink.restore = restore_byte;
	t->sink.formats = report_formats;
	t->sink.types_hash = hash_types(tupdesc, type);
	t->sink.arg = t;
	t->tupdesc = tupdesc;
	t->store = store;
	t->type = type;
	if (OidIsValid(type) && type_is_rowtype(type) &&
		get_typtype(type) == TYPTYPE_DOMAIN)
		t->domain = type;
	t->cxt = CurrentMemoryContext;
	t->result_cxt = AllocSetContextCreate(t->cxt, "pgpool_ext result",
										  ALLOCSET_SMALL_SIZES);
	t->row_cxt = AllocSetContextCreate(CurrentMemoryContext, "pgpool_ext row",
									   ALLOCSET_DEFAULT_SIZES);
	t->ncolumns = -1;
	t->row.values = palloc0(sizeof(Datum) * (tupdesc->natts + 1));
	t->row.nulls = palloc(sizeof(bool) * (tupdesc->natts + 1));
	memset(t->row.nulls, true, sizeof(bool) * (tupdesc->natts + 1));
	return t;
}

PgpxRows *
pgpx_rows_begin_attributes(TupleDesc tupdesc, const List *attnums,
						   void (*where)(void *arg, AttrNumber attnum),
						   void *arg)
{
	PgpxRows   *t = pgpx_rows_begin(tupdesc, NULL, InvalidOid);

	t->attnums = attnums;
	t->where = where;
	t->where_arg = arg;
	return t;
}

uint64
pgpx_rows_estimate_gain(const PgpxRows *t)
{
	uint64		gain = 0;
	ListCell   *lc;

	foreach(lc, t->attnums)
		if (lfirst_int(lc) != SelfItemPointerAttributeNumber)
			gain +=
				binary_type(attribute_type(t, lfirst_int(lc) - 1))->gain;
	return gain;
}

void
pgpx_rows_keep(PgpxRows *t)
{
	MemoryContext kept = t->row_cxt;

	if (t->kept_cxt == NULL)
		t->kept_cxt = AllocSetContextCreate(t->cxt, "pgpool_ext kept row",
											ALLOCSET_DEFAULT_SIZES);
	t->row_cxt = t->kept_cxt;
	t->kept_cxt = kept;
}

PgpxRowValues
pgpx_rows_current(const PgpxRows *t)
{
	return t->row;
}

void
pgpx_rows_set_first(PgpxRows *t, char *text)
{
	Form_pg_attribute attr =
		t->tupdesc->natts > 0 ? TupleDescAttr(t->tupdesc, 0) : NULL;
	Oid			input;
	Oid			ioparam;

	Assert(t->ncolumns < 0);
	if (attr == NULL || TypeCategory(attr->atttypid) != TYPCATEGORY_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column list has no column for the pool"),
				 attr == NULL ? 0 :
				 errdetail("Its first column \"%s\" is of type %s.",
						   NameStr(attr->attname),
						   format_type_be(attr->atttypid)),
				 errhint("The first column must be the pool: AS t(pool text, ...).")));
	getTypeInputInfo(attr->atttypid, &input, &ioparam);
	t->row.values[0] = OidInputFunctionCall(input, text, ioparam,
											attr->atttypmod);
	t->row.nulls[0] = false;
	t->lead = 1;
}

const PgpxSink *
pgpx_rows_sink(PgpxRows *t)
{
	return &t->sink;
}
