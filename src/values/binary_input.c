/*-------------------------------------------------------------------------
 *
 * binary_input.c
 *	  Columns in binary: which ones are requested, and how they are read.
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
 * - This file raises no error for an invalid value.  Such a value is passed to
 *	 the receive function, which reports the error.
 *
 *-------------------------------------------------------------------------
 */
#include "values/binary_input.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "datatype/timestamp.h"
#include "port/pg_bswap.h"
#include "utils/date.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "base/debug_point.h"

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

/* --- values that are read without their receive functions ---------------- */

static bool
read_bool(const PgpxField *field, Datum *value)
{
	if (field->len != 1)
		return false;
	*value = BoolGetDatum(field->data[0] != 0);
	return true;
}

static bool
read_int2(const PgpxField *field, Datum *value)
{
	uint16		v;

	if (field->len != sizeof(v))
		return false;
	memcpy(&v, field->data, sizeof(v));
	*value = Int16GetDatum((int16) pg_ntoh16(v));
	return true;
}

/* int4 and float4 */
static bool
read_4_bytes(const PgpxField *field, Datum *value)
{
	uint32		v;

	if (field->len != sizeof(v))
		return false;
	memcpy(&v, field->data, sizeof(v));
	*value = Int32GetDatum((int32) pg_ntoh32(v));
	return true;
}

/* int8 and float8 */
static bool
read_8_bytes(const PgpxField *field, Datum *value)
{
	uint64		v;

	if (field->len != sizeof(v))
		return false;
	memcpy(&v, field->data, sizeof(v));
	*value = Int64GetDatum((int64) pg_ntoh64(v));
	return true;
}

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
 * The types that can be requested in binary.  The gains were measured by
 * test/bench/formats, whose arrays have two elements.
 */
static const PgpxBinaryType types[] = {
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

const PgpxBinaryType *
pgpx_binary_type(Oid type)
{
	static const PgpxBinaryType none = {0};

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
avoid_second_block(int n, int16 *formats, const PgpxBinaryType *const *types)
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

int
pgpx_formats_choose(int n, int16 *formats, const PgpxBinaryType *const *types,
					bool any, uint64 rows)
{
	uint64		gain = 0;

	for (int i = 0; any && i < n; i++)
		formats[i] = formats[i] && types[i]->plain;
	avoid_second_block(n, formats, types);
	for (int i = 0; i < n; i++)
		if (formats[i] != 0)
			gain += types[i]->gain;
	return gain > 0 && rows * gain >= PGPX_FORMATS_MIN_GAIN ? n : 0;
}
