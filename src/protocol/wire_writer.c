/*-------------------------------------------------------------------------
 *
 * wire_writer.c
 *	  The writer: messages to the remote.
 *
 * The send functions append to the output buffer and set the answer that the
 * reader expects; pgpx_wire_flush sends the buffer.  The put functions write to
 * a buffer of the caller.  See wire.h for the rules.
 *
 *-------------------------------------------------------------------------
 */
#include "protocol/wire.h"

#include <errno.h>
#include <sys/socket.h>

#include "port/pg_bswap.h"

/* A larger output buffer is freed when it is empty. */
#define OUT_KEEP_MAX (256 * 1024)

/*
 * Append to the buffer, as appendBinaryStringInfo does.  This is inline because
 * a statement takes about thirty calls.
 */
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

/* Start a message.  Pass the result to end_message, which sets the length. */
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

static inline void
put_string(StringInfo buf, const char *text)
{
	put(buf, text, strlen(text) + 1);
}

static void
put_parse(StringInfo buf, const char *statement, const char *sql)
{
	int			at = begin_message(buf, 'P');

	put_string(buf, statement);
	put_string(buf, sql);
	put_int16(buf, 0);			/* no types: the remote infers them */
	end_message(buf, at);
}

static void
put_describe(StringInfo buf)
{
	int			at = begin_message(buf, 'D');

	put(buf, "S", 2);			/* the unnamed statement */
	end_message(buf, at);
}

/* Append the token's messages, 28 bytes. */
static void
put_token(StringInfo buf, uint64 sender, uint32 exchange)
{
	int			at = begin_message(buf, 'P');

	put(buf, "", 1);			/* unnamed statement */
	put(buf, "", 1);			/* empty query string */
	put_int16(buf, 3);			/* number of parameter types */
	put_int32(buf, (uint32) (sender >> 32));
	put_int32(buf, (uint32) sender);
	put_int32(buf, exchange);
	end_message(buf, at);
	put_describe(buf);
}

/* Begin an exchange of the current holder, and return its number. */
static uint32
begin_exchange(PgpxWire *wire)
{
	uint32		exchange = ++wire->nexchanges;

	Assert(wire->phase == PGPX_WIRE_IDLE);
	Assert(wire->reset_behind == 0);

	put_token(pgpx_wire_output(wire), wire->sender, exchange);
	return exchange;
}

void
pgpx_wire_send_query(PgpxWire *wire, const char *sql)
{
	uint32		exchange = begin_exchange(wire);

	put_query(&wire->out, sql);
	pgpx_wire_expect(wire, wire->sender, exchange, PGPX_WIRE_SIMPLE,
					 PGPX_WIRE_IDLE, PGPX_WIRE_IDLE);
}

static void
put_bind(StringInfo buf, const char *portal, const char *name,
		 const PgpxStatement *statement, int nformats, const int16 *formats)
{
	int			at = begin_message(buf, 'B');

	put_string(buf, portal);
	put_string(buf, name);
	put_int16(buf, 0);			/* all parameters are text */
	put_int16(buf, (uint16) statement->nparams);
	for (int i = 0; i < statement->nparams; i++)
	{
		const char *value = statement->values[i];

		if (value == NULL)
			put_int32(buf, (uint32) -1);
		else
		{
			int			len = strlen(value);

			put_int32(buf, len);
			put(buf, value, len);
		}
	}
	put_int16(buf, (uint16) nformats);
	for (int i = 0; i < nformats; i++)
		put_int16(buf, (uint16) formats[i]);
	end_message(buf, at);
}

static void
put_describe_portal(StringInfo buf, const char *portal)
{
	int			at = begin_message(buf, 'D');

	put_char(buf, 'P');
	put_string(buf, portal);
	end_message(buf, at);
}

static void
put_execute(StringInfo buf, const char *portal, uint32 max_rows)
{
	int			at = begin_message(buf, 'E');

	put_string(buf, portal);
	put_int32(buf, max_rows);	/* 0: all rows */
	end_message(buf, at);
}

static void
put_close(StringInfo buf, const char *kind_and_name)
{
	int			at = begin_message(buf, 'C');

	put_string(buf, kind_and_name);
	end_message(buf, at);
}

static void
put_sync(StringInfo buf)
{
	end_message(buf, begin_message(buf, 'S'));
}

/* Append the commands of a pipeline. */
static void
put_commands(StringInfo buf, const PgpxPipeline *p)
{
	PgpxStatement none = {0};

	for (int i = 0; i < p->nbefore; i++)
	{
		put_parse(buf, "", p->before[i]);
		put_bind(buf, "", "", &none, 0, NULL);
		put_execute(buf, "", 0);
	}
}

/*
 * Append the messages of a pipeline that follow the commands.  Return the first
 * phase of their answer.
 */
static int
put_statement(StringInfo buf, const PgpxPipeline *p)
{
	int			first = PGPX_WIRE_SYNC;

	for (int i = 0; i < p->ncloses; i++)
		put_close(buf, p->closes[i]);
	if (p->resume)
		first = PGPX_WIRE_EXECUTE;
	else if (p->describe_only)
	{
		put_parse(buf, "", p->statement->sql);
		put_describe(buf);
		first = PGPX_WIRE_DESCRIBE_PARSE;
	}
	else if (p->name != NULL)
	{
		Assert(!p->parse || p->describe);
		first = p->parse ? PGPX_WIRE_PARSE :
			p->describe ? PGPX_WIRE_BIND : PGPX_WIRE_REBIND;
		if (p->parse)
			put_parse(buf, p->name, p->statement->sql);
		put_bind(buf, p->portal, p->name, p->statement, p->nformats,
				 p->formats);
		if (p->describe)
			put_describe_portal(buf, p->portal);
	}
	if (first != PGPX_WIRE_SYNC && !p->describe_only)
		put_execute(buf, p->portal, p->max_rows);
	put_sync(buf);
	return first;
}

void
pgpx_wire_put_pipeline(StringInfo buf, const PgpxPipeline *pipeline)
{
	put_commands(buf, pipeline);
	(void) put_statement(buf, pipeline);
}

void
pgpx_wire_send_pipeline(PgpxWire *wire, const PgpxPipeline *p)
{
	uint32		exchange = begin_exchange(wire);
	int			first;
	bool		before = p->nbefore > 0;

	put_commands(&wire->out, p);
	first = put_statement(&wire->out, p);
	wire->nbefore = p->nbefore;
	pgpx_wire_expect(wire, wire->sender, exchange,
					 before ? PGPX_WIRE_BEFORE_PARSE : first,
					 before ? first : PGPX_WIRE_IDLE, PGPX_WIRE_IDLE);
}

size_t
pgpx_wire_put_prefix(char buf[PGPX_WIRE_PREFIX_MAX], uint64 sender,
					 bool reset)
{
	static const char *const commands[] = {PGPX_DISCARD_ALL};
	StringInfoData out = {.data = buf, .maxlen = PGPX_WIRE_PREFIX_MAX};
	PgpxPipeline p = {.nbefore = reset ? 1 : 0, .before = commands};

	put_token(&out, sender, PGPX_EXCHANGE_FINAL);
	put_commands(&out, &p);
	return out.len;
}

void
pgpx_wire_begin_sent(PgpxWire *wire, uint64 sender, uint64 sent_by,
					 bool reset, int nbefore, size_t bytes)
{
	bool		before = reset || nbefore > 0;

	/* bytes that were buffered before cannot be the answer */
	if (wire->in_start != wire->in_end)
		pgpx_wire_break(wire, "the remote server sent unexpected data");
	pgpx_wire_begin(wire, sender);
	if (wire->phase == PGPX_WIRE_BROKEN)
		return;
	pgpx_wire_expect(wire, sent_by, PGPX_EXCHANGE_FINAL,
					 before ? PGPX_WIRE_BEFORE_PARSE : PGPX_WIRE_PARSE,
					 before ? PGPX_WIRE_PARSE : PGPX_WIRE_IDLE,
					 PGPX_WIRE_IDLE);
	wire->nbefore = nbefore;
	wire->reset_ahead = reset;
	wire->sent_ahead = true;
	wire->bytes_out = bytes;
}

int
pgpx_wire_flush(PgpxWire *wire)
{
	while (wire->out_sent < wire->out.len)
	{
		ssize_t		n = send(wire->fd, wire->out.data + wire->out_sent,
							 wire->out.len - wire->out_sent,
							 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
		{
			wire->out_sent += n;
			wire->bytes_out += n;
			continue;
		}
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n < 0 && wire->end_error == 0)
			wire->end_error = errno;

		/*
		 * messages that the remote sent before can still be read, but not the
		 * answer to a reset
		 */
		wire->reset_behind = 0;
		wire->out_sent = wire->out.len;
		return -1;
	}
	if (wire->out.data != NULL)
	{
		/* do not keep the copy of a large statement */
		if (wire->out.maxlen > OUT_KEEP_MAX)
		{
			pfree(wire->out.data);
			wire->out.data = NULL;
		}
		else
			resetStringInfo(&wire->out);
	}
	wire->out.len = 0;
	wire->out_sent = 0;
	return 1;
}

void
pgpx_wire_abandon(PgpxWire *wire)
{
	if (wire->out.data == NULL || wire->out_sent >= wire->out.len)
		return;
	if (wire->reset_behind != 0 && wire->out_sent >= wire->reset_at)
		return;					/* the statement has been sent completely */
	if (wire->out_sent == 0 &&
		(wire->phase == PGPX_WIRE_IDLE ||
		 wire->phase == PGPX_WIRE_TOKEN_PARSE))
	{
		wire->phase = PGPX_WIRE_IDLE;
		wire->discarding = false;
		wire->nbefore = 0;
		wire->reset_behind = 0;
	}
	else
		pgpx_wire_break(wire, "a statement was interrupted while it was being sent");
	resetStringInfo(&wire->out);
	wire->out_sent = 0;
}

int
pgpx_wire_send_reset(PgpxWire *wire, const char *reset_command,
					 const char *start_commands, bool final)
{
	StringInfo	buf = pgpx_wire_output(wire);
	uint32		exchange = final ? PGPX_EXCHANGE_FINAL : wire->nexchanges + 1;
	int			sent = wire->tx == 'I' ? 0 : PGPX_SENT_ROLLBACK;

	if (reset_command[0] != '\0')
		sent |= pg_strcasecmp(reset_command, PGPX_DISCARD_ALL) == 0 ?
			PGPX_SENT_DISCARD_ALL : PGPX_SENT_RESET;
	if (start_commands[0] != '\0')
		sent |= PGPX_SENT_START;
	if (sent == 0)
		return 0;

	Assert(wire->phase == PGPX_WIRE_IDLE);
	wire->nexchanges = exchange;
	put_token(buf, wire->sender, exchange);
	if ((sent & PGPX_SENT_ROLLBACK) != 0)
		put_query(buf, "ROLLBACK");
	if ((sent & (PGPX_SENT_DISCARD_ALL | PGPX_SENT_RESET)) != 0)
		put_query(buf, reset_command);
	if ((sent & PGPX_SENT_START) != 0)
		put_query(buf, start_commands);
	pgpx_wire_expect_reset(wire, wire->sender, exchange, sent);
	return sent;
}

void
pgpx_wire_send_reset_behind(PgpxWire *wire)
{
	Assert(wire->phase == PGPX_WIRE_TOKEN_PARSE && !wire->discarding &&
		   wire->out_sent == 0);
	wire->reset_behind = PGPX_SENT_DISCARD_ALL;
	wire->reset_at = wire->out.len;
	put_token(&wire->out, wire->sender, PGPX_EXCHANGE_FINAL);
	put_query(&wire->out, PGPX_DISCARD_ALL);
}

void
pgpx_wire_send_check(PgpxWire *wire)
{
	uint32		exchange = begin_exchange(wire);

	put_sync(&wire->out);
	pgpx_wire_expect(wire, wire->sender, exchange, PGPX_WIRE_IDLE,
					 PGPX_WIRE_IDLE, PGPX_WIRE_IDLE);
}
