/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  The reader, by the table of wire_rules.c.
 *
 * See wire.h for the rules.  The input buffer holds whole messages; a message
 * is handed out in place, and the place behind it is known before anybody looks
 * into it, so that an error thrown by a consumer leaves the stream in step.
 *
 *-------------------------------------------------------------------------
 */
#include "wire.h"

#include <errno.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/memutils.h"

#include "wire_rules.h"

#define IN_MIN			(16 * 1024)
#define IN_READ_MAX		(256 * 1024)	/* grows to this when reads fill it */
#define IN_MAX			((size_t) MaxAllocSize + 5) /* the longest message */
#define SMALL_MESSAGE	(1024 * 1024)	/* bound of all but DataRow and CopyData */
#define OWED_MAX		(1024 * 1024)	/* bound of the answer to a reset */

void
pgpx_wire_init(PgpxWire *wire, int fd, int encoding, MemoryContext cxt)
{
	memset(wire, 0, sizeof(*wire));
	wire->fd = fd;
	wire->cxt = cxt;
	wire->encoding = encoding;
	wire->tx = 'I';
}

void
pgpx_wire_free(PgpxWire *wire)
{
	if (wire->in != NULL)
		pfree(wire->in);
	if (wire->out.data != NULL)
		pfree(wire->out.data);
	wire->in = NULL;
	wire->out.data = NULL;
}

/* After a reset, before the remote has reported what it changed. */
static void
assume_start_values(PgpxWire *wire)
{
	wire->encoding_changed = false;
	wire->datestyle_iso = true;
	wire->intervalstyle_postgres = true;
}

void
pgpx_wire_begin(PgpxWire *wire, int owed)
{
	if (wire->phase == PGPX_WIRE_BROKEN)
		return;
	wire->phase = owed > 0 ? PGPX_WIRE_OWED : PGPX_WIRE_IDLE;
	wire->owed = owed;
	wire->owed_bytes = 0;
	wire->tx = 'I';
	wire->bytes_in = 0;
	wire->bytes_out = 0;
	assume_start_values(wire);
}

void
pgpx_wire_begin_sent(PgpxWire *wire, bool reset, size_t bytes)
{
	/* what is in the buffer cannot be the answer */
	if (wire->in_start != wire->in_end)
		pgpx_wire_break(wire, "the remote server sent something unasked");
	pgpx_wire_begin(wire, 0);
	if (wire->phase == PGPX_WIRE_BROKEN)
		return;
	wire->phase = reset ? PGPX_WIRE_AHEAD_PARSE : PGPX_WIRE_PARSE;
	wire->bytes_out = bytes;
}

void
pgpx_wire_trim(PgpxWire *wire)
{
	if (wire->in == NULL || wire->in_cap <= IN_READ_MAX ||
		wire->in_start != wire->in_end)
		return;
	pfree(wire->in);
	wire->in = NULL;
	wire->in_cap = 0;
	wire->in_start = wire->in_end = 0;
}

bool
pgpx_wire_at_boundary(const PgpxWire *wire)
{
	return wire->phase == PGPX_WIRE_IDLE &&
		wire->in_start == wire->in_end &&
		wire->out_sent == wire->out.len;
}

bool
pgpx_wire_params_pinned(const PgpxWire *wire)
{
	return !wire->encoding_changed && wire->datestyle_iso &&
		wire->intervalstyle_postgres;
}

void
pgpx_wire_break(PgpxWire *wire, const char *why)
{
	if (wire->phase != PGPX_WIRE_BROKEN)
		wire->broken = why;
	wire->phase = PGPX_WIRE_BROKEN;
}

/*
 * Keep a value for the words of errors, which want text that is valid in any encoding.
 */
static void
keep_value(char *to, size_t size, const char *value)
{
	strlcpy(to, value, size);
	for (; *to != '\0'; to++)
		if (*to < ' ' || *to > '~')
			*to = '?';
}

/*
 * ParameterStatus: remember those that the decoding of values depends on.
 * Values are only ever compared or kept in bounded buffers.
 */
static bool
note_parameter(PgpxWire *wire, const char *data, size_t len)
{
	const char *value;
	size_t		name_len = strnlen(data, len);

	if (name_len == len)
		return false;
	value = data + name_len + 1;
	if (strnlen(value, len - name_len - 1) == len - name_len - 1)
		return false;

	if (strcmp(data, "client_encoding") == 0)
	{
		wire->encoding_changed = pg_char_to_encoding(value) != wire->encoding;
	}
	else if (strcmp(data, "DateStyle") == 0)
	{
		keep_value(wire->datestyle, sizeof(wire->datestyle), value);
		wire->datestyle_iso = strncmp(value, "ISO", 3) == 0;
	}
	else if (strcmp(data, "IntervalStyle") == 0)
	{
		keep_value(wire->intervalstyle, sizeof(wire->intervalstyle), value);
		wire->intervalstyle_postgres = strcmp(value, "postgres") == 0;
	}
	return true;
}

/*
 * Room in the input buffer for "need" bytes from in_start on.  Who calls must not
 * take "need" from the remote, which can claim what it likes with five bytes: a
 * buffer grows with what has come.
 */
static void
reserve_input(PgpxWire *wire, size_t need)
{
	size_t		have = wire->in_end - wire->in_start;
	size_t		cap = Max(wire->in_cap, IN_MIN);

	if (wire->in != NULL && wire->in_start + need <= wire->in_cap)
		return;
	if (wire->in != NULL && wire->in_start > 0)
	{
		memmove(wire->in, wire->in + wire->in_start, have);
		wire->in_start = 0;
		wire->in_end = have;
	}
	if (wire->in != NULL && need <= wire->in_cap)
		return;

	while (cap < need)
		cap *= 2;
	cap = Max(need, Min(cap, IN_MAX));
	if (wire->in == NULL)
		wire->in = MemoryContextAllocHuge(wire->cxt, cap + 1);
	else
		wire->in = repalloc_huge(wire->in, cap + 1);
	wire->in_cap = cap;
}

void
pgpx_wire_make_room(PgpxWire *wire)
{
	if (wire->in_start == wire->in_end)
		wire->in_start = wire->in_end = 0;
	if (wire->in == NULL || wire->in_end == wire->in_cap)
		reserve_input(wire, wire->in == NULL ? IN_MIN :
					  (wire->in_end - wire->in_start) + IN_MIN);
}

ssize_t
pgpx_wire_receive(PgpxWire *wire, bool *full)
{
	size_t		space = wire->in_cap - wire->in_end;
	ssize_t		n;

	*full = false;
	if (wire->phase == PGPX_WIRE_BROKEN)
		return -1;
	do
		n = recv(wire->fd, wire->in + wire->in_end, space, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);

	if (n > 0)
	{
		wire->in_end += n;
		wire->bytes_in += n;
		*full = (size_t) n == space;
		return n;
	}
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;

	wire->eof = true;
	return -1;
}

ssize_t
pgpx_wire_fill(PgpxWire *wire, bool *full)
{
	ssize_t		n;

	*full = false;
	if (wire->phase == PGPX_WIRE_BROKEN)
		return -1;
	pgpx_wire_make_room(wire);
	n = pgpx_wire_receive(wire, full);
	if (*full && wire->in_cap < IN_READ_MAX)
		reserve_input(wire, wire->in_cap + 1);
	return n;
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

		/* what it said before it went may still be read */
		wire->out_sent = wire->out.len;
		return -1;
	}
	if (wire->out.data != NULL)
	{
		/* do not keep the copy of a large statement */
		if (wire->out.maxlen > IN_READ_MAX)
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
	if (wire->out_sent == 0 &&
		(wire->phase == PGPX_WIRE_IDLE || wire->phase == PGPX_WIRE_SIMPLE ||
		 wire->phase == PGPX_WIRE_PARSE ||
		 wire->phase == PGPX_WIRE_DESCRIBE_PARSE))
		wire->phase = PGPX_WIRE_IDLE;
	else
		pgpx_wire_break(wire, "a statement was interrupted while it was being sent");
	resetStringInfo(&wire->out);
	wire->out_sent = 0;
}

/* Bound of a message's length, by its class; of an answer that nobody reads, less. */
static size_t
max_length(const PgpxWire *wire, int class)
{
	if (wire->phase == PGPX_WIRE_OWED)
		return OWED_MAX - wire->owed_bytes;

	/* a server's buffer, and the length itself */
	if (class == M_DATA_ROW || class == M_COPY_DATA)
		return MaxAllocSize + 4;
	return SMALL_MESSAGE;
}

/* ReadyForQuery: the transaction's state, and the end of the conversation. */
static bool
note_ready(PgpxWire *wire, const PgpxWireMessage *msg)
{
	if (msg->len != 1 ||
		(msg->data[0] != 'I' && msg->data[0] != 'T' && msg->data[0] != 'E'))
		return false;
	wire->tx = msg->data[0];
	return true;
}

PgpxWireEvent
pgpx_wire_next(PgpxWire *wire, PgpxWireMessage *msg)
{
	for (;;)
	{
		size_t		have = wire->in_end - wire->in_start;
		char	   *p = wire->in + wire->in_start;
		size_t		room;
		uint32		len;
		int			class;
		PgpxWireRule rule;

		if (wire->phase == PGPX_WIRE_BROKEN)
			return PGPX_EV_BROKEN;
		if (have < 5)
		{
			if (wire->eof)
			{
				pgpx_wire_break(wire, "the remote server closed the connection");
				return PGPX_EV_BROKEN;
			}
			return PGPX_EV_NEED_INPUT;
		}

		class = pgpx_wire_classes[(unsigned char) *p];
		rule = pgpx_wire_rules[wire->phase][class];
		memcpy(&len, p + 1, 4);
		len = pg_ntoh32(len);
		if (!rule.known || len < 4 || len > max_length(wire, class))
		{
			pgpx_wire_break(wire, "the remote server sent a message that does not fit the protocol");
			return PGPX_EV_BROKEN;
		}
		if (have < (size_t) len + 1)
		{
			if (wire->eof)
			{
				pgpx_wire_break(wire, "the remote server closed the connection in mid-message");
				return PGPX_EV_BROKEN;
			}

			/* beyond that it grows when it is full, by as much again */
			room = Max(wire->in_cap, IN_READ_MAX);
			reserve_input(wire, Min((size_t) len + 1, room));
			return PGPX_EV_NEED_INPUT;
		}

		msg->type = *p;
		msg->data = p + 5;
		msg->len = len - 4;
		wire->in_start += (size_t) len + 1;

		if (class == M_PARAMETER &&
			!note_parameter(wire, msg->data, msg->len))
			rule.known = 0;
		if (class == M_READY && !note_ready(wire, msg))
			rule.known = 0;
		if (wire->phase == PGPX_WIRE_OWED)
		{
			wire->owed_bytes += len;
			if (class == M_READY)
			{
				if (wire->tx != 'I')
					rule.known = 0;
				else if (--wire->owed > 0)
					continue;
				else if (!pgpx_wire_params_pinned(wire))
					rule.known = 0; /* values could not be read any more */
			}
		}
		if (!rule.known)
		{
			pgpx_wire_break(wire, wire->phase == PGPX_WIRE_OWED ?
							"the reset was not answered as expected" :
							"the remote server sent a malformed message");
			return PGPX_EV_BROKEN;
		}

		if (rule.event == PGPX_EV_NOT_RESET)
			pgpx_wire_break(wire, "the reset was not answered as expected");
		else if (rule.next == PGPX_WIRE_BROKEN)
			pgpx_wire_break(wire, "the remote server ended the session");
		else
		{
			/* what it set back it reports at the end of all */
			if (wire->phase == PGPX_WIRE_AHEAD_EXECUTE &&
				rule.next == PGPX_WIRE_PARSE)
				assume_start_values(wire);
			wire->phase = rule.next;
		}

		if (class == M_COPY_IN)
			pgpx_wire_refuse_copy(wire);

		if (rule.event != PGPX_EV_NONE)
			return rule.event;
	}
}
