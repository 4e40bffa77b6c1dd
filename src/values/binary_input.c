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

/*
 * The types that can be requested in binary.  The gains were measured by
 * test/bench/formats, whose arrays have two elements.
 */
typedef struct BinaryType
{
	Oid			type;
	int			gain;			/* see pgpx_formats_gain */
	bool		plain;			/* see pgpx_formats_is_plain */
	PgpxDirectDecoder decoder;	/* for values that need not be rounded */
} BinaryType;

static const BinaryType types[] = {
	{BOOLOID, 12, true, PGPX_DECODE_BOOL},
	{INT2OID, 16, true, PGPX_DECODE_INT2},
	{INT4OID, 16, true, PGPX_DECODE_INT4},
	{INT8OID, 20, true, PGPX_DECODE_INT8},
	{NUMERICOID, 16, true, PGPX_DECODE_NONE},
	{FLOAT4OID, 60, false, PGPX_DECODE_INT4},
	{FLOAT8OID, 90, false, PGPX_DECODE_INT8},
	{BYTEAOID, 50, false, PGPX_DECODE_NONE},
	{DATEOID, 130, false, PGPX_DECODE_DATE},
	{TIMEOID, 90, false, PGPX_DECODE_TIME},
	{TIMETZOID, 90, false, PGPX_DECODE_NONE},
	{TIMESTAMPOID, 180, false, PGPX_DECODE_TIMESTAMP},
	{TIMESTAMPTZOID, 230, false, PGPX_DECODE_TIMESTAMP},
	{INTERVALOID, PGPX_INTERVAL_IS_SAFE_IN_BINARY ? 110 : 0, false,
	PGPX_DECODE_NONE},
	{UUIDOID, 270, true, PGPX_DECODE_UUID},
	{BOOLARRAYOID, 30, true, PGPX_DECODE_NONE},
	{INT2ARRAYOID, 30, true, PGPX_DECODE_NONE},
	{INT4ARRAYOID, 30, true, PGPX_DECODE_NONE},
	{INT8ARRAYOID, 30, true, PGPX_DECODE_NONE},
	{NUMERICARRAYOID, 30, true, PGPX_DECODE_NONE},
	{UUIDARRAYOID, 30, true, PGPX_DECODE_NONE},
	{BYTEAARRAYOID, 30, false, PGPX_DECODE_NONE},
	{FLOAT4ARRAYOID, 30, false, PGPX_DECODE_NONE},
	{FLOAT8ARRAYOID, 30, false, PGPX_DECODE_NONE},
	{DATEARRAYOID, 30, false, PGPX_DECODE_NONE},
	{TIMEARRAYOID, 30, false, PGPX_DECODE_NONE},
	{TIMETZARRAYOID, 30, false, PGPX_DECODE_NONE},
	{TIMESTAMPARRAYOID, 30, false, PGPX_DECODE_NONE},
	{TIMESTAMPTZARRAYOID, 30, false, PGPX_DECODE_NONE},
	{INTERVALARRAYOID, PGPX_INTERVAL_IS_SAFE_IN_BINARY ? 30 : 0, false,
	PGPX_DECODE_NONE},
};

static BinaryType
find_type(Oid type)
{
	for (int i = 0; i < lengthof(types); i++)
		if (types[i].type == type)
			return types[i];
	return (BinaryType){InvalidOid, 0, false, PGPX_DECODE_NONE};
}

int
pgpx_formats_gain(Oid type)
{
	return find_type(type).gain;
}

bool
pgpx_formats_is_plain(Oid type)
{
	return find_type(type).plain;
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
avoid_second_block(int n, int16 *formats, const int *gains)
{
	int			binary = 0;
	int			small = 0;

	for (int i = 0; i < n; i++)
	{
		binary += formats[i] != 0;
		small += formats[i] != 0 && gains[i] <= SMALL_GAIN_NS;
	}
	if (binary <= FIRST_BLOCK_MAX ||
		binary - FIRST_BLOCK_MAX > Min(small, NUMBERS_PER_BLOCK))
		return;
	for (int i = n - 1; binary > FIRST_BLOCK_MAX; i--)
		if (formats[i] != 0 && gains[i] <= SMALL_GAIN_NS)
		{
			formats[i] = 0;
			binary--;
		}
}

int
pgpx_formats_choose(int n, int16 *formats, const int *gains, uint64 rows)
{
	uint64		gain = 0;

	avoid_second_block(n, formats, gains);
	for (int i = 0; i < n; i++)
		if (formats[i] != 0)
			gain += gains[i];
	return gain > 0 && rows * gain >= PGPX_FORMATS_MIN_GAIN ? n : 0;
}

PgpxDirectDecoder
pgpx_direct_decoder(Oid type, int32 typmod)
{
	/* a value for a column with a precision must be rounded */
	return typmod < 0 ? find_type(type).decoder : PGPX_DECODE_NONE;
}

static inline uint32
get_uint32(const char *p)
{
	uint32		v;

	memcpy(&v, p, sizeof(v));
	return pg_ntoh32(v);
}

static inline uint64
get_uint64(const char *p)
{
	uint64		v;

	memcpy(&v, p, sizeof(v));
	return pg_ntoh64(v);
}

static bool
read_date(const PgpxField *field, Datum *value)
{
	DateADT		date;

	if (field->len != 4)
		return false;
	date = (DateADT) get_uint32(field->data);
	*value = DateADTGetDatum(date);
	return DATE_NOT_FINITE(date) || IS_VALID_DATE(date);
}

static bool
read_timestamp(const PgpxField *field, Datum *value)
{
	Timestamp	timestamp;

	if (field->len != 8)
		return false;
	timestamp = (Timestamp) get_uint64(field->data);
	*value = TimestampGetDatum(timestamp);
	return TIMESTAMP_NOT_FINITE(timestamp) || IS_VALID_TIMESTAMP(timestamp);
}

static bool
read_time(const PgpxField *field, Datum *value)
{
	TimeADT		time;

	if (field->len != 8)
		return false;
	time = (TimeADT) get_uint64(field->data);
	*value = TimeADTGetDatum(time);
	return time >= 0 && time <= USECS_PER_DAY;
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

bool
pgpx_direct_decode(PgpxDirectDecoder decoder, const PgpxField *field,
				   Datum *value)
{
	switch (decoder)
	{
		case PGPX_DECODE_NONE:
			return false;
		case PGPX_DECODE_INT4:
			if (field->len != 4)
				return false;
			*value = Int32GetDatum((int32) get_uint32(field->data));
			return true;
		case PGPX_DECODE_INT8:
			if (field->len != 8)
				return false;
			*value = Int64GetDatum((int64) get_uint64(field->data));
			return true;
		case PGPX_DECODE_INT2:
			if (field->len != 2)
				return false;
			*value = Int16GetDatum((int16) (((unsigned char) field->data[0] << 8) |
											(unsigned char) field->data[1]));
			return true;
		case PGPX_DECODE_BOOL:
			if (field->len != 1)
				return false;
			*value = BoolGetDatum(field->data[0] != 0);
			return true;
		case PGPX_DECODE_DATE:
			return read_date(field, value);
		case PGPX_DECODE_TIME:
			return read_time(field, value);
		case PGPX_DECODE_TIMESTAMP:
			return read_timestamp(field, value);
		case PGPX_DECODE_UUID:
			return read_uuid(field, value);
	}
	return false;
}
