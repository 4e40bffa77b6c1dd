/*-------------------------------------------------------------------------
 *
 * wire_parse.c
 *	  The decoding of message bodies, and a look ahead for the end of an answer.
 *
 * Everything is checked against the message's length before it is looked at.
 *
 *-------------------------------------------------------------------------
 */
#include "wire.h"

#include "port/pg_bswap.h"

#include "wire_rules.h"

static inline int16
get_int16(const char *p)
{
	uint16		v;

	memcpy(&v, p, 2);
	return (int16) pg_ntoh16(v);
}

static inline int32
get_int32(const char *p)
{
	uint32		v;

	memcpy(&v, p, 4);
	return (int32) pg_ntoh32(v);
}

/* Is there no part of the token's echo before a place in the input buffer? */
static bool
lacks_token(const PgpxWire *wire, size_t end)
{
	size_t		at = wire->in_start;

	if (wire->phase != PGPX_WIRE_TOKEN_PARSE)
		return wire->phase == PGPX_WIRE_TOKEN_TYPES ||
			wire->phase == PGPX_WIRE_TOKEN_NO_DATA;
	while (at < end && strchr("NAS", wire->in[at]) != NULL)
	{
		uint32		len;

		memcpy(&len, wire->in + at + 1, sizeof(len));
		at += (size_t) pg_ntoh32(len) + 1;
	}
	return at >= end;
}

bool
pgpx_wire_answered(const PgpxWire *wire, size_t *scanned)
{
	for (;;)
	{
		size_t		at = wire->in_start + *scanned;
		size_t		have = wire->in_end - at;
		uint32		len;

		if (wire->eof || wire->phase == PGPX_WIRE_BROKEN)
			return true;
		if (have < 5)
			return false;
		memcpy(&len, wire->in + at + 1, sizeof(len));
		len = pg_ntoh32(len);

		/* the reader says what is wrong with it; COPY waits for its refusal */
		if (len < 4 || wire->in[at] == 'G')
			return true;

		/* an error in place of the token's echo breaks the stream */
		if (wire->in[at] == 'E' && lacks_token(wire, at))
			return true;
		if (have < (size_t) len + 1)
			return false;
		if (wire->in[at] == 'Z')
			return true;
		*scanned += (size_t) len + 1;
	}
}

bool
pgpx_wire_parse_row(const PgpxWireMessage *msg, int nfields, PgpxField *fields)
{
	char	   *p = msg->data;
	char	   *end = msg->data + msg->len;

	if (msg->len < 2 || get_int16(p) != nfields)
		return false;
	p += 2;
	for (int i = 0; i < nfields; i++)
	{
		int32		len;

		if (end - p < 4)
			return false;
		len = get_int32(p);
		p += 4;
		if (len == -1)
		{
			fields[i].data = NULL;
			fields[i].len = 0;
			continue;
		}
		if (len < 0 || end - p < len)
			return false;
		fields[i].data = p;
		fields[i].len = len;
		p += len;
	}
	return p == end;
}

int
pgpx_wire_parse_ncolumns(const PgpxWireMessage *msg)
{
	int			n;

	if (msg->len < 2)
		return -1;
	n = get_int16(msg->data);
	return n >= 0 ? n : -1;
}

bool
pgpx_wire_parse_columns(const PgpxWireMessage *msg, int ncolumns,
						PgpxColumn *columns)
{
	const char *p = msg->data + 2;
	const char *end = msg->data + msg->len;

	for (int i = 0; i < ncolumns; i++)
	{
		size_t		len = strnlen(p, end - p);

		if (end - p < (ptrdiff_t) len + 1 + 18)
			return false;
		columns[i].name = p;
		p += len + 1;
		columns[i].type = (Oid) get_int32(p + 6);
		columns[i].typmod = get_int32(p + 12);
		columns[i].format = get_int16(p + 16);
		p += 18;
	}
	return p == end;
}

bool
pgpx_wire_parse_token(const PgpxWireMessage *msg, const PgpxWireToken *token)
{
	return msg->len == 2 + 3 * 4 && get_int16(msg->data) == 3 &&
		(uint32) get_int32(msg->data + 2) == (uint32) (token->sender >> 32) &&
		(uint32) get_int32(msg->data + 6) == (uint32) token->sender &&
		(uint32) get_int32(msg->data + 10) == token->exchange;
}

int64
pgpx_wire_parse_command(const PgpxWireMessage *msg)
{
	const char *tag = msg->data;
	const char *p;
	size_t		len;
	int64		rows = 0;

	len = strnlen(tag, msg->len);
	if (len == msg->len)
		return 0;

	/* "INSERT 0 5", "SELECT 3", "CREATE TABLE": the number at the end */
	p = tag + len;
	while (p > tag && p[-1] >= '0' && p[-1] <= '9')
		p--;
	if (p == tag || p[-1] != ' ' || tag + len - p > 18)
		return 0;
	for (; *p; p++)
		rows = rows * 10 + (*p - '0');
	return rows;
}

bool
pgpx_wire_parse_error(const PgpxWireMessage *msg, PgpxRemoteFields *fields)
{
	const char *p = msg->data;
	const char *end = msg->data + msg->len;
	const char *severity = NULL;

	memset(fields, 0, sizeof(*fields));
	while (p < end && *p != '\0')
	{
		char		code = *p++;
		size_t		len = strnlen(p, end - p);

		if (len == (size_t) (end - p))
			return false;
		switch (code)
		{
			case 'S':
				severity = p;
				break;
			case 'V':
				fields->severity = p;
				break;
			case 'C':
				fields->sqlstate = p;
				break;
			case 'M':
				fields->primary = p;
				break;
			case 'D':
				fields->detail = p;
				break;
			case 'H':
				fields->hint = p;
				break;
			case 'W':
				fields->context = p;
				break;
			case 'P':
				fields->position = p;
				break;
			case 'q':
				fields->query = p;
				break;
			case 'p':
				fields->query_position = p;
				break;
			default:
				break;
		}
		p += len + 1;
	}
	if (fields->severity == NULL)
		fields->severity = severity;
	return p < end;
}
