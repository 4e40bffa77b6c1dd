/*-------------------------------------------------------------------------
 *
 * wire_build.c
 *	  The writer, a look ahead, and the decoding of message bodies.
 *
 * See wire.h.  Everything decoded is checked against the message's length
 * before it is looked at.
 *
 *-------------------------------------------------------------------------
 */
#include "wire.h"

#include "port/pg_bswap.h"

static void
put_int32(StringInfo buf, uint32 value)
{
	value = pg_hton32(value);
	appendBinaryStringInfo(buf, (char *) &value, 4);
}

static void
put_int16(StringInfo buf, uint16 value)
{
	value = pg_hton16(value);
	appendBinaryStringInfo(buf, (char *) &value, 2);
}

static StringInfo
begin_output(PgpxWire *wire)
{
	if (wire->out.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(wire->cxt);

		initStringInfo(&wire->out);
		MemoryContextSwitchTo(old);
		wire->out_sent = 0;
	}
	return &wire->out;
}

/* Start a message; its length is filled in by end_message. */
static int
begin_message(StringInfo buf, char type)
{
	appendStringInfoCharMacro(buf, type);
	put_int32(buf, 0);
	return buf->len - 4;
}

static void
end_message(StringInfo buf, int at)
{
	uint32		len = pg_hton32((uint32) (buf->len - at));

	memcpy(buf->data + at, &len, 4);
}

static void
put_query(StringInfo buf, const char *sql)
{
	int			at = begin_message(buf, 'Q');

	appendBinaryStringInfo(buf, sql, strlen(sql) + 1);
	end_message(buf, at);
}

void
pgpx_wire_send_query(PgpxWire *wire, const char *sql)
{
	Assert(wire->phase == PGPX_WIRE_IDLE);
	put_query(begin_output(wire), sql);
	wire->phase = PGPX_WIRE_SIMPLE;
}

void
pgpx_wire_put_extended(StringInfo buf, const char *sql, int nparams,
					   const char *const *values, int nformats,
					   const int16 *formats)
{
	int			at;

	at = begin_message(buf, 'P');
	appendStringInfoChar(buf, '\0');	/* unnamed statement */
	appendBinaryStringInfo(buf, sql, strlen(sql) + 1);
	put_int16(buf, 0);			/* types: the remote's to infer */
	end_message(buf, at);

	at = begin_message(buf, 'B');
	appendStringInfoChar(buf, '\0');	/* unnamed portal */
	appendStringInfoChar(buf, '\0');
	put_int16(buf, 0);			/* all parameters are text */
	put_int16(buf, (uint16) nparams);
	for (int i = 0; i < nparams; i++)
	{
		if (values[i] == NULL)
			put_int32(buf, (uint32) -1);
		else
		{
			int			len = strlen(values[i]);

			put_int32(buf, len);
			appendBinaryStringInfo(buf, values[i], len);
		}
	}
	put_int16(buf, (uint16) nformats);
	for (int i = 0; i < nformats; i++)
		put_int16(buf, (uint16) formats[i]);
	end_message(buf, at);

	at = begin_message(buf, 'D');
	appendBinaryStringInfo(buf, "P", 2);
	end_message(buf, at);

	at = begin_message(buf, 'E');
	appendStringInfoChar(buf, '\0');
	put_int32(buf, 0);			/* all rows */
	end_message(buf, at);

	at = begin_message(buf, 'S');
	end_message(buf, at);
}

void
pgpx_wire_send_extended(PgpxWire *wire, const char *sql, int nparams,
						const char *const *values, int nformats,
						const int16 *formats)
{
	Assert(wire->phase == PGPX_WIRE_IDLE);
	pgpx_wire_put_extended(begin_output(wire), sql, nparams, values, nformats,
						   formats);
	wire->phase = PGPX_WIRE_PARSE;
}

const char *
pgpx_wire_reset_ahead(size_t *len)
{
	static const char messages[] =
		"P\0\0\0\023\0DISCARD ALL\0\0\0"
		"B\0\0\0\014\0\0\0\0\0\0\0\0"
		"E\0\0\0\011\0\0\0\0\0";

	*len = sizeof(messages) - 1;
	return messages;
}

int
pgpx_wire_send_reset(PgpxWire *wire, const char *reset_command,
					 const char *start_commands)
{
	StringInfo	buf = begin_output(wire);
	int			owed = 0;

	Assert(wire->phase == PGPX_WIRE_IDLE);
	if (reset_command != NULL && reset_command[0] != '\0')
	{
		put_query(buf, reset_command);
		owed++;
	}
	if (start_commands != NULL && start_commands[0] != '\0')
	{
		put_query(buf, start_commands);
		owed++;
	}
	if (owed > 0)
	{
		wire->phase = PGPX_WIRE_OWED;
		wire->owed = owed;
		wire->owed_bytes = 0;
	}
	return owed;
}

void
pgpx_wire_refuse_copy(PgpxWire *wire)
{
	StringInfo	buf = begin_output(wire);
	int			at = begin_message(buf, 'f');

	appendStringInfoString(buf, "pgpool_ext does not support COPY");
	appendStringInfoChar(buf, '\0');
	end_message(buf, at);
	if (wire->phase == PGPX_WIRE_COPY_EXTENDED)
		end_message(buf, begin_message(buf, 'S'));
}

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
		columns[i].format = get_int16(p + 16);
		p += 18;
	}
	return p == end;
}

int64
pgpx_wire_parse_command(const PgpxWireMessage *msg)
{
	const char *tag = msg->data;
	const char *p;
	size_t		len;
	int64		rows = 0;

	if (msg->type == 'I')
		return 0;
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
			default:
				break;
		}
		p += len + 1;
	}
	if (fields->severity == NULL)
		fields->severity = severity;
	return p < end;
}
