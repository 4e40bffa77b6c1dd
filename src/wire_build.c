/*-------------------------------------------------------------------------
 *
 * wire_build.c
 *	  The writer: messages into the output buffer.
 *
 *-------------------------------------------------------------------------
 */
#include "wire.h"

#include "port/pg_bswap.h"

/* As appendBinaryStringInfo, inline: a statement is put together of some thirty. */
static inline void
put(StringInfo buf, const void *data, int len)
{
	if (buf->len + len >= buf->maxlen)
		enlargeStringInfo(buf, len);
	memcpy(buf->data + buf->len, data, len);
	buf->len += len;
	buf->data[buf->len] = '\0';
}

static inline void
put_char(StringInfo buf, char c)
{
	put(buf, &c, 1);
}

static inline void
put_int32(StringInfo buf, uint32 value)
{
	value = pg_hton32(value);
	put(buf, &value, 4);
}

static inline void
put_int16(StringInfo buf, uint16 value)
{
	value = pg_hton16(value);
	put(buf, &value, 2);
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
	put_char(buf, type);
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

	put(buf, sql, strlen(sql) + 1);
	end_message(buf, at);
}

static void
put_parse(StringInfo buf, const char *sql)
{
	int			at = begin_message(buf, 'P');

	put_char(buf, '\0');		/* unnamed statement */
	put(buf, sql, strlen(sql) + 1);
	put_int16(buf, 0);			/* types: the remote's to infer */
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

	put_parse(buf, sql);
	at = begin_message(buf, 'B');
	put_char(buf, '\0');		/* unnamed portal */
	put_char(buf, '\0');
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
			put(buf, values[i], len);
		}
	}
	put_int16(buf, (uint16) nformats);
	for (int i = 0; i < nformats; i++)
		put_int16(buf, (uint16) formats[i]);
	end_message(buf, at);

	at = begin_message(buf, 'D');
	put(buf, "P", 2);
	end_message(buf, at);

	at = begin_message(buf, 'E');
	put_char(buf, '\0');
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

void
pgpx_wire_send_describe(PgpxWire *wire, const char *sql)
{
	StringInfo	buf = begin_output(wire);
	int			at;

	Assert(wire->phase == PGPX_WIRE_IDLE);
	put_parse(buf, sql);
	at = begin_message(buf, 'D');
	put(buf, "S", 2);			/* the unnamed statement */
	end_message(buf, at);
	end_message(buf, begin_message(buf, 'S'));
	wire->phase = PGPX_WIRE_DESCRIBE_PARSE;
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
	put_char(buf, '\0');
	end_message(buf, at);
	if (wire->phase == PGPX_WIRE_COPY_EXTENDED)
		end_message(buf, begin_message(buf, 'S'));
}
