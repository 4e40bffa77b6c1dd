/*-------------------------------------------------------------------------
 *
 * binary_input.c
 *	  Results in binary: which columns are requested so, and how they are
 *	  read.
 *
 * The formats go out with the statement, before anything is known of its result.
 * So a statement is run with texts first.  If it has returned so many rows that it
 * would have paid, and some of its columns are of a type that is the same here and
 * there, all sessions ask for these in binary from then on.
 *
 * What is remembered is a guess, and nothing relies on it: the row description of
 * each execution says which format and which type its columns have, and they are
 * read by that.  So it is a table without chains in shared memory, in which a
 * statement takes the place of another that falls on it.
 *
 * Binary values that are read without their receive functions.
 *
 * In a result of numbers the calls of these functions, and the buffer that they
 * want, cost more than what they do.  So values of a few types are read by hand,
 * if they are what every server sends.  Nothing is refused here: what is odd goes
 * to the receive function, which knows what to say.
 *
 *-------------------------------------------------------------------------
 */
#include "values/binary_input.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "datatype/timestamp.h"
#include "port/pg_bswap.h"
#include "storage/spin.h"
#include "utils/date.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "base/debug_point.h"

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

static PgpxFormats *
slot_of(const PgpxFormatsKey *key)
{
	return &pgpx_shared->formats[(key->text[0] ^ key->types_hash ^
								  key->pool_id) %
								 PGPX_FORMATS_SLOTS];
}

int
pgpx_formats_find(const PgpxFormatsKey *key,
				  int16 formats[PGPX_FORMATS_COLUMNS])
{
	PgpxFormats *slot = slot_of(key);
	PgpxFormats found;

	/* most statements are not in it: a wrong answer does no harm */
	if (slot->key.text[0] != key->text[0])
		return 0;
	SpinLockAcquire(&pgpx_shared->formats_mutex);
	found = *slot;
	SpinLockRelease(&pgpx_shared->formats_mutex);
	if (memcmp(&found.key, key, sizeof(*key)) != 0)
		return 0;
	for (int i = 0; i < found.ncolumns; i++)
		formats[i] = (found.binary[i / 64] >> (i % 64)) & 1;
	return found.ncolumns;
}

void
pgpx_formats_note(const PgpxFormatsKey *key, int n, const int16 *formats)
{
	PgpxFormats *slot = slot_of(key);
	PgpxFormats entry = {.key = *key, .ncolumns = n};

	if (n > PGPX_FORMATS_COLUMNS)
		return;
	for (int i = 0; i < n; i++)
		if (formats[i] != 0)
			entry.binary[i / 64] |= UINT64CONST(1) << (i % 64);
	SpinLockAcquire(&pgpx_shared->formats_mutex);
	if (n > 0 || memcmp(&slot->key, key, sizeof(*key)) == 0)
		*slot = entry;
	SpinLockRelease(&pgpx_shared->formats_mutex);
}

/* As test/bench/formats has measured; of arrays, of those of two elements. */
int
pgpx_formats_gain(Oid type)
{
	switch (type)
	{
		case BOOLOID:
			return 12;
		case INT2OID:
		case INT4OID:
		case NUMERICOID:
			return 16;
		case INT8OID:
			return 20;
		case BOOLARRAYOID:
		case BYTEAARRAYOID:
		case INT2ARRAYOID:
		case INT4ARRAYOID:
		case INT8ARRAYOID:
		case FLOAT4ARRAYOID:
		case FLOAT8ARRAYOID:
		case NUMERICARRAYOID:
		case DATEARRAYOID:
		case TIMEARRAYOID:
		case TIMETZARRAYOID:
		case TIMESTAMPARRAYOID:
		case TIMESTAMPTZARRAYOID:
		case UUIDARRAYOID:
			return 30;
		case INTERVALARRAYOID:
			return PGPX_INTERVAL_IS_SAFE_IN_BINARY ? 30 : 0;
		case BYTEAOID:
			return 50;
		case FLOAT4OID:
			return 60;
		case FLOAT8OID:
		case TIMEOID:
		case TIMETZOID:
			return 90;
		case INTERVALOID:
			return PGPX_INTERVAL_IS_SAFE_IN_BINARY ? 110 : 0;
		case DATEOID:
			return 130;
		case TIMESTAMPOID:
			return 180;
		case TIMESTAMPTZOID:
			return 230;
		case UUIDOID:
			return 270;
		default:
			return 0;
	}
}

bool
pgpx_formats_is_plain(Oid type)
{
	switch (type)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case UUIDOID:
		case BOOLARRAYOID:
		case INT2ARRAYOID:
		case INT4ARRAYOID:
		case INT8ARRAYOID:
		case NUMERICARRAYOID:
		case UUIDARRAYOID:
			return true;
		default:
			return false;
	}
}

/*
 * A server makes the values of a row in 8 kB that it has at hand, and takes 1 kB
 * for each that it sends in binary, however short.  From the eighth on it asks the
 * system for memory, and gives it back, for each row; that costs as much as the
 * texts of three small numbers.
 */
#define AT_HAND 7
#define WORTH 3
#define SMALL 20				/* gain of such numbers */

static void
spare_room(int n, int16 *formats, const int *gains)
{
	int			binary = 0;
	int			spare = 0;

	for (int i = 0; i < n; i++)
	{
		binary += formats[i] != 0;
		spare += formats[i] != 0 && gains[i] <= SMALL;
	}
	if (binary <= AT_HAND || binary - AT_HAND > Min(spare, WORTH))
		return;
	for (int i = n - 1; binary > AT_HAND; i--)
		if (formats[i] != 0 && gains[i] <= SMALL)
		{
			formats[i] = 0;
			binary--;
		}
}

int
pgpx_formats_choose(int n, int16 *formats, const int *gains, uint64 rows)
{
	uint64		gain = 0;

	spare_room(n, formats, gains);
	for (int i = 0; i < n; i++)
		if (formats[i] != 0)
			gain += gains[i];
	return gain > 0 && rows * gain >= PGPX_FORMATS_WORTH ? n : 0;
}

PgpxByHand
pgpx_by_hand(Oid type, int32 typmod)
{
	switch (type)
	{
		case BOOLOID:
			return PGPX_HAND_BOOL;
		case INT2OID:
			return PGPX_HAND_INT2;
		case INT4OID:
		case FLOAT4OID:
			return PGPX_HAND_INT4;
		case INT8OID:
		case FLOAT8OID:
			return PGPX_HAND_INT8;
		case DATEOID:
			return PGPX_HAND_DATE;
		case TIMEOID:
			/* of a precision, it has to be rounded */
			return typmod < 0 ? PGPX_HAND_TIME : PGPX_HAND_NONE;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return typmod < 0 ? PGPX_HAND_TIMESTAMP : PGPX_HAND_NONE;
		case UUIDOID:
			return PGPX_HAND_UUID;
		default:
			return PGPX_HAND_NONE;
	}
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
pgpx_by_hand_read(PgpxByHand hand, const PgpxField *field, Datum *value)
{
	switch (hand)
	{
		case PGPX_HAND_NONE:
			return false;
		case PGPX_HAND_INT4:
			if (field->len != 4)
				return false;
			*value = Int32GetDatum((int32) get_uint32(field->data));
			return true;
		case PGPX_HAND_INT8:
			if (field->len != 8)
				return false;
			*value = Int64GetDatum((int64) get_uint64(field->data));
			return true;
		case PGPX_HAND_INT2:
			if (field->len != 2)
				return false;
			*value = Int16GetDatum((int16) (((unsigned char) field->data[0] << 8) |
											(unsigned char) field->data[1]));
			return true;
		case PGPX_HAND_BOOL:
			if (field->len != 1)
				return false;
			*value = BoolGetDatum(field->data[0] != 0);
			return true;
		case PGPX_HAND_DATE:
			return read_date(field, value);
		case PGPX_HAND_TIME:
			return read_time(field, value);
		case PGPX_HAND_TIMESTAMP:
			return read_timestamp(field, value);
		case PGPX_HAND_UUID:
			return read_uuid(field, value);
	}
	return false;
}
