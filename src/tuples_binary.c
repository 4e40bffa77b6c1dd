/*-------------------------------------------------------------------------
 *
 * tuples_binary.c
 *	  Binary values that are read without their receive functions.
 *
 * In a result of numbers the calls of these functions, and the buffer that they
 * want, cost more than what they do.  So values of a few types are read by hand,
 * if they are what every server sends.  Nothing is refused here: what is odd goes
 * to the receive function, which knows what to say.
 *
 *-------------------------------------------------------------------------
 */
#include "tuples_binary.h"

#include "catalog/pg_type.h"
#include "datatype/timestamp.h"
#include "port/pg_bswap.h"
#include "utils/date.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

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
