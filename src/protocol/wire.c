/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  The protocol's query phase: the rules, the reader, the bodies of messages,
 *	  the writer.
 *
 * https://www.postgresql.org/docs/current/protocol-flow.html
 *
 * The table below states which message may arrive in which phase, which event
 * it causes and which phase follows.
 *
 * A message is returned in place, once all of it is in the input buffer.  The
 * reader moves past the message before it returns it, so the stream stays in
 * sync if the caller raises an error while it processes the message.
 *
 *-------------------------------------------------------------------------
 */
#include "protocol/wire.h"

#include <errno.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/memutils.h"

/* ------------------------------------------------------------------------
 * The rules
 * ------------------------------------------------------------------------
 */

/* The effect of a message in a phase: its event and the phase after it. */
typedef struct PgpxWireRule
{
	uint8		known;			/* false: the message violates the protocol */
	uint8		event;
	uint8		next;
} PgpxWireRule;

#define R(event_, next_) {1, PGPX_EV_##event_, PGPX_WIRE_##next_}

/*
 * By phase and message type:
 *
 *	1	ParseComplete			C	CommandComplete, EmptyQueryResponse (I)
 *	2	BindComplete			s	PortalSuspended
 *	3	CloseComplete			E	ErrorResponse
 *	t	ParameterDescription	G	CopyInResponse, CopyOutResponse (H)
 *	T	RowDescription			Z	ReadyForQuery
 *	n	NoData
 *	D	DataRow
 *
 * find_rule has the messages that may arrive in any phase.
 */
static const PgpxWireRule rules[PGPX_WIRE_NPHASES][256] = {
	[PGPX_WIRE_IDLE] = {
		['E'] = R(ERROR, BROKEN),	/* FATAL: the remote session ends */
	},
	[PGPX_WIRE_MARKER_PARSE] = {
		['1'] = R(NONE, MARKER_TYPES),
		['E'] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_MARKER_TYPES] = {
		['t'] = R(NONE, MARKER_NO_DATA),
		['E'] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_MARKER_NO_DATA] = {
		['n'] = R(NONE, NEXT_PART),
		['E'] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_SIMPLE] = {
		['T'] = R(ROW_DESCRIPTION, SIMPLE_ROWS),
		['C'] = R(COMMAND, SIMPLE),
		['E'] = R(ERROR, SIMPLE),
		['G'] = R(COPY, BROKEN),
		['Z'] = R(READY, IDLE),
	},
	[PGPX_WIRE_SIMPLE_ROWS] = {
		['D'] = R(ROW, SIMPLE_ROWS),
		['T'] = R(ROW_DESCRIPTION, SIMPLE_ROWS),	/* from a rewrite rule */
		['C'] = R(COMMAND, SIMPLE),
		['E'] = R(ERROR, SIMPLE),
	},
	[PGPX_WIRE_BEFORE_PARSE] = {
		['1'] = R(NONE, BEFORE_BIND),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_BEFORE_BIND] = {
		['2'] = R(NONE, BEFORE_EXECUTE),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_BEFORE_EXECUTE] = {
		['C'] = R(NONE, BEFORE_PARSE),	/* the last one: NEXT_PART */
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_PARSE] = {
		['3'] = R(NONE, PARSE),
		['1'] = R(NONE, BIND),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_BIND] = {
		['3'] = R(NONE, BIND),
		['2'] = R(NONE, DESCRIBE),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE] = {
		['T'] = R(ROW_DESCRIPTION, EXECUTE),
		['n'] = R(NO_DATA, EXECUTE_NO_ROWS),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_EXECUTE] = {
		['3'] = R(NONE, EXECUTE),
		['D'] = R(ROW, EXECUTE),
		['C'] = R(COMMAND, SYNC),
		['s'] = R(SUSPENDED, SYNC),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_EXECUTE_NO_ROWS] = {
		['3'] = R(NONE, EXECUTE_NO_ROWS),
		['C'] = R(COMMAND, SYNC),
		['E'] = R(ERROR, SYNC),
		['G'] = R(COPY, BROKEN),
	},
	[PGPX_WIRE_REBIND] = {
		['3'] = R(NONE, REBIND),
		['2'] = R(NONE, EXECUTE),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_PARSE] = {
		['3'] = R(NONE, DESCRIBE_PARSE),
		['1'] = R(NONE, DESCRIBE_PARAMS),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_PARAMS] = {
		['t'] = R(NONE, DESCRIBE_ROWS),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_ROWS] = {
		['T'] = R(ROW_DESCRIPTION, SYNC),
		['n'] = R(NO_DATA, SYNC),
		['E'] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_SYNC] = {
		['3'] = R(NONE, SYNC),
		['E'] = R(ERROR, SYNC), /* a deferred constraint, at the commit */
		['Z'] = R(READY, IDLE),
	},
	[PGPX_WIRE_ROLLBACK] = {
		['C'] = R(NONE, RESET_END),
	},
	[PGPX_WIRE_DISCARD_ALL] = {
		['C'] = R(NONE, RESET_END),
	},
	[PGPX_WIRE_RESET] = {
		['T'] = R(NONE, RESET),
		['D'] = R(NONE, RESET),
		['C'] = R(NONE, RESET_MORE),
	},
	[PGPX_WIRE_RESET_MORE] = {
		['T'] = R(NONE, RESET),
		['C'] = R(NONE, RESET_MORE),
		['Z'] = R(READY, NEXT_PART),
	},
	[PGPX_WIRE_RESET_END] = {
		['Z'] = R(READY, NEXT_PART),
	},
};

/* True for the phases of a reset, whose answer is discarded. */
static const bool discards[PGPX_WIRE_NPHASES] = {
	[PGPX_WIRE_ROLLBACK] = true,
	[PGPX_WIRE_DISCARD_ALL] = true,
	[PGPX_WIRE_RESET] = true,
	[PGPX_WIRE_RESET_MORE] = true,
	[PGPX_WIRE_RESET_END] = true,
};

/*
 * Return the rule for a message.  Notices (N), notifications (A) and parameters
 * (S) may arrive at any time.
 */
static PgpxWireRule
find_rule(const PgpxWire *wire, unsigned char type)
{
	switch (type)
	{
		case 'N':
			return (PgpxWireRule){true, PGPX_EV_NOTICE, wire->phase};
		case 'A':
			return (PgpxWireRule){true, PGPX_EV_NOTIFICATION, wire->phase};
		case 'S':
			return (PgpxWireRule){true, PGPX_EV_NONE, wire->phase};
		case 'I':
			return rules[wire->phase]['C'];
		case 'H':
			return rules[wire->phase]['G'];
		default:
			return rules[wire->phase][type];
	}
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

/* ------------------------------------------------------------------------
 * The reader
 * ------------------------------------------------------------------------
 */

#define IN_MIN			(16 * 1024)
#define IN_READ_MAX		(256 * 1024)	/* grows to this when reads fill it */
#define IN_MAX			((size_t) MaxAllocSize + 5) /* the longest message */

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
	wire->in_cap = 0;
	wire->out.data = NULL;
}

StringInfo
pgpx_wire_output(PgpxWire *wire)
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

/*
 * Assume that the tracked parameters have their start values, as after a reset.
 * The remote then reports those that differ.
 */
static void
assume_start_values(PgpxWire *wire)
{
	wire->encoding_changed = false;
	wire->datestyle_iso = true;
	wire->intervalstyle_postgres = true;
}

/*
 * Expect the answer to an exchange next.  part1 to part3: the first phases of
 * the parts after the marker; PGPX_WIRE_IDLE for a part that does not exist.
 */
static void
expect(PgpxWire *wire, uint64 sender, uint32 exchange, int part1, int part2,
	   int part3)
{
	const uint8 parts[PGPX_WIRE_MAX_PARTS] = {part1, part2, part3,
											  PGPX_WIRE_IDLE};

	wire->marker.sender = sender;
	wire->marker.exchange = exchange;
	memcpy(wire->parts, parts, sizeof(wire->parts));
	wire->part = 0;
	wire->phase = PGPX_WIRE_MARKER_PARSE;
	wire->discarded = 0;

	/*
	 * The answer to a reset or check is discarded, and so is the input before
	 * the echo.  A hand-over is the final exchange of the previous holder, so
	 * the input before its echo belongs to the previous holder.
	 */
	wire->discarding = exchange == PGPX_EXCHANGE_FINAL ||
		part1 == PGPX_WIRE_IDLE || discards[part1];
}

/* As expect, for a reset.  reset: PGPX_SENT_* bits. */
static void
expect_reset(PgpxWire *wire, uint64 sender, uint32 exchange, int reset)
{
	int			parts[3] = {PGPX_WIRE_IDLE, PGPX_WIRE_IDLE, PGPX_WIRE_IDLE};
	int			n = 0;

	if ((reset & PGPX_SENT_ROLLBACK) != 0)
		parts[n++] = PGPX_WIRE_ROLLBACK;
	if ((reset & PGPX_SENT_DISCARD_ALL) != 0)
		parts[n++] = PGPX_WIRE_DISCARD_ALL;
	else if ((reset & PGPX_SENT_RESET) != 0)
		parts[n++] = PGPX_WIRE_RESET;
	if ((reset & PGPX_SENT_START) != 0)
		parts[n++] = PGPX_WIRE_RESET;
	expect(wire, sender, exchange, parts[0], parts[1], parts[2]);
}

void
pgpx_wire_begin(PgpxWire *wire, uint64 sender, uint64 reset_by, int reset)
{
	if (wire->phase == PGPX_WIRE_BROKEN)
		return;
	wire->phase = PGPX_WIRE_IDLE;
	wire->sender = sender;
	wire->nexchanges = PGPX_EXCHANGE_FINAL;
	wire->nbefore = 0;
	wire->reset_behind = 0;
	wire->sent_ahead = false;
	wire->reset_ahead = false;
	wire->discarding = false;
	wire->reset_error[0] = '\0';
	wire->tx = 'I';
	wire->bytes_in = 0;
	wire->bytes_out = 0;
	assume_start_values(wire);
	if (reset != 0)
		expect_reset(wire, reset_by, PGPX_EXCHANGE_FINAL, reset);
}

void
pgpx_wire_begin_sent(PgpxWire *wire, uint64 sender, uint64 sent_by,
					 bool reset, int nbefore, size_t bytes)
{
	bool		before = reset || nbefore > 0;

	/* bytes that were buffered before cannot be the answer */
	if (wire->in_start != wire->in_end)
		pgpx_wire_break(wire, "the remote server sent unexpected data");
	pgpx_wire_begin(wire, sender, 0, 0);
	if (wire->phase == PGPX_WIRE_BROKEN)
		return;
	expect(wire, sent_by, PGPX_EXCHANGE_FINAL,
		   before ? PGPX_WIRE_BEFORE_PARSE : PGPX_WIRE_PARSE,
		   before ? PGPX_WIRE_PARSE : PGPX_WIRE_IDLE, PGPX_WIRE_IDLE);
	wire->nbefore = nbefore;
	wire->reset_ahead = reset;
	wire->sent_ahead = true;
	wire->bytes_out = bytes;
}

void
pgpx_wire_trim(PgpxWire *wire)
{
	if (wire->in_cap <= IN_READ_MAX || wire->in_start != wire->in_end)
		return;
	pfree(wire->in);
	wire->in = NULL;
	wire->in_cap = 0;
	wire->in_start = wire->in_end = 0;
}

bool
pgpx_wire_has_pinned_params(const PgpxWire *wire)
{
	return !wire->encoding_changed && wire->datestyle_iso &&
		wire->intervalstyle_postgres;
}

PgpxWireEvent
pgpx_wire_break(PgpxWire *wire, const char *reason)
{
	if (wire->phase != PGPX_WIRE_BROKEN)
		wire->broken = reason;
	wire->phase = PGPX_WIRE_BROKEN;
	return PGPX_EV_BROKEN;
}

const char *
pgpx_wire_end_reason(int error)
{
	switch (error)
	{
		case 0:
		case EPIPE:
			return "the remote server closed the connection";
		case ECONNRESET:
			return "the connection was reset by the remote server or the network";
		case ETIMEDOUT:
			return "the network connection timed out";
		case EHOSTUNREACH:
		case ENETUNREACH:
			return "the remote host could not be reached";
		default:
			return "the network connection failed";
	}
}

/*
 * Record the value in a ParameterStatus if the decoding of values depends on
 * the parameter.  Return false if the message is malformed.
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
		wire->encoding_changed = pg_char_to_encoding(value) != wire->encoding;
	else if (strcmp(data, "DateStyle") == 0)
		wire->datestyle_iso = strncmp(value, "ISO", 3) == 0;
	else if (strcmp(data, "IntervalStyle") == 0)
		wire->intervalstyle_postgres = strcmp(value, "postgres") == 0;
	return true;
}

/*
 * Make room in the input buffer for "need" bytes from in_start on.
 *
 * The caller must bound "need" and must not use a length that the remote
 * claimed, because five bytes can claim any length.  The buffer may grow only
 * in proportion to the input that was received.  Return false if there is no
 * memory and wire->no_oom is set.
 */
static bool
reserve_input(PgpxWire *wire, size_t need)
{
	size_t		have = wire->in_end - wire->in_start;
	size_t		cap = Max(wire->in_cap, IN_MIN);
	char	   *in;

	if (wire->in_start + need <= wire->in_cap)
		return true;
	if (wire->in_start > 0)
	{
		memmove(wire->in, wire->in + wire->in_start, have);
		wire->in_start = 0;
		wire->in_end = have;
	}
	if (need <= wire->in_cap)
		return true;

	while (cap < need)
		cap *= 2;
	cap = Max(need, Min(cap, IN_MAX));
	if (wire->in != NULL && !wire->no_oom)
		in = repalloc_huge(wire->in, cap + 1);
	else
	{
		in = MemoryContextAllocExtended(wire->cxt, cap + 1, wire->no_oom ?
										MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM :
										MCXT_ALLOC_HUGE);
		if (in == NULL)
			return false;
		if (wire->in != NULL)
		{
			memcpy(in, wire->in, wire->in_end);
			pfree(wire->in);
		}
	}
	wire->in = in;
	wire->in_cap = cap;
	return true;
}

ssize_t
pgpx_wire_fill(PgpxWire *wire, bool *full)
{
	size_t		space;
	ssize_t		n;

	*full = false;
	if (wire->phase == PGPX_WIRE_BROKEN)
		return -1;
	if (wire->in_start == wire->in_end)
		wire->in_start = wire->in_end = 0;
	if (wire->in_end == wire->in_cap &&
		!reserve_input(wire, wire->in_end - wire->in_start + IN_MIN))
		return -1;

	space = wire->in_cap - wire->in_end;
	do
		n = recv(wire->fd, wire->in + wire->in_end, space, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);

	if (n > 0)
	{
		wire->in_end += n;
		wire->bytes_in += n;
		*full = (size_t) n == space;
		if (*full && wire->in_cap < IN_READ_MAX)
			(void) reserve_input(wire, wire->in_cap + 1);
		return n;
	}
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;

	if (n < 0 && wire->end_error == 0)
		wire->end_error = errno;
	wire->eof = true;
	return -1;
}

/* Return whether the message is CommandComplete with this tag. */
static bool
has_tag(const PgpxWireMessage *msg, const char *tag)
{
	return msg->type == 'C' && msg->len == strlen(tag) + 1 &&
		memcmp(msg->data, tag, msg->len) == 0;
}

/* Return whether a ParameterDescription echoes the marker. */
static bool
echoes_marker(const PgpxWireMessage *msg, const PgpxWireMarker *marker)
{
	return msg->len == 2 + 3 * 4 && get_int16(msg->data) == 3 &&
		(uint32) get_int32(msg->data + 2) == (uint32) (marker->sender >> 32) &&
		(uint32) get_int32(msg->data + 6) == (uint32) marker->sender &&
		(uint32) get_int32(msg->data + 10) == marker->exchange;
}

/*
 * Check the contents of a message, which the table of rules cannot.  Return
 * false if the message is malformed or is not the expected one.
 */
static bool
check_message(PgpxWire *wire, const PgpxWireMessage *msg)
{
	switch (msg->type)
	{
		case 'S':
			return note_parameter(wire, msg->data, msg->len);
		case 't':
			return wire->phase != PGPX_WIRE_MARKER_TYPES ||
				echoes_marker(msg, &wire->marker);
		case 'C':
		case 'I':
			switch (wire->phase)
			{
				case PGPX_WIRE_ROLLBACK:
					return has_tag(msg, "ROLLBACK");
				case PGPX_WIRE_DISCARD_ALL:
					return has_tag(msg, PGPX_DISCARD_ALL);
				case PGPX_WIRE_BEFORE_EXECUTE:
					return !wire->reset_ahead || has_tag(msg, PGPX_DISCARD_ALL);
				default:
					return true;
			}
		case 'Z':
			if (msg->len != 1 ||
				(msg->data[0] != 'I' && msg->data[0] != 'T' &&
				 msg->data[0] != 'E'))
				return false;
			wire->tx = msg->data[0];

			/* after the last part the parameters must have start values */
			return !wire->discarding ||
				(wire->tx == 'I' &&
				 (wire->parts[wire->part] != PGPX_WIRE_IDLE ||
				  pgpx_wire_has_pinned_params(wire)));
		default:
			return true;
	}
}

/*
 * Return whether a fatal error is from a proxy.  The session on the remote
 * server may then continue to execute the statement.  The errors of PostgreSQL
 * contain the name of a C function; those of PgBouncer, for example after
 * query_timeout, do not.
 */
static bool
is_fatal_by_proxy(const PgpxRemoteFields *fields)
{
	return pgpx_wire_is_fatal(fields) && fields->routine == NULL;
}

/*
 * Handle an error that arrived in place of the marker's echo.
 *
 * The stream is marked as broken.  An error that is not fatal may answer an
 * earlier exchange, so it is not taken for the answer to this one.  Its text is
 * shown only if the current holder also sent the earlier exchange.
 *
 * A fatal error of PostgreSQL ends the remote session, which has answered every
 * statement that it executed.  So a statement whose marker was not echoed was
 * not executed.
 */
static PgpxWireEvent
handle_missing_echo(PgpxWire *wire, const PgpxWireMessage *msg)
{
	PgpxRemoteFields fields;
	bool		fatal = pgpx_wire_parse_error(msg, &fields) &&
		pgpx_wire_is_fatal(&fields);

	pgpx_wire_break(wire, fatal ? "the remote server ended the session" :
					"the remote server's answer belongs to another statement");
	if (!wire->discarding)
		return PGPX_EV_ERROR;
	return fatal && !is_fatal_by_proxy(&fields) && wire->sent_ahead ?
		PGPX_EV_NOT_RUN : PGPX_EV_BROKEN;
}

/*
 * Enter a phase, or for PGPX_WIRE_NEXT_PART the next part of the exchange.  The
 * last of the commands that precede a statement also ends a part.  Return false
 * if a part has ended and another one follows.  In that case the message causes
 * no event.
 */
static bool
enter_phase(PgpxWire *wire, int phase)
{
	if (wire->phase == PGPX_WIRE_BEFORE_EXECUTE &&
		phase == PGPX_WIRE_BEFORE_PARSE)
	{
		/* the remote reports the restored values only at the Sync */
		if (wire->reset_ahead)
			assume_start_values(wire);
		else
			wire->nbefore--;
		wire->reset_ahead = wire->discarding = false;
		if (wire->nbefore == 0)
			phase = PGPX_WIRE_NEXT_PART;
	}
	if (phase != PGPX_WIRE_NEXT_PART)
	{
		wire->phase = phase;
		return true;
	}

	wire->phase = wire->parts[wire->part++];
	if (wire->phase == PGPX_WIRE_IDLE && wire->part == 1)
		wire->phase = PGPX_WIRE_RESET_END;	/* the marker is the only part */
	wire->discarding = discards[wire->phase] || wire->reset_ahead;
	return wire->phase == PGPX_WIRE_IDLE;
}

/*
 * Keep the text of an error in the answer to a reset.  Part of it may be
 * missing.  Only printable ASCII is kept, because it is valid in all encodings.
 */
static void
note_reset_error(PgpxWire *wire, const PgpxWireMessage *msg)
{
	PgpxRemoteFields fields;

	(void) pgpx_wire_parse_error(msg, &fields);
	strlcpy(wire->reset_error, fields.primary != NULL ? fields.primary :
			"the text of the error was not received",
			sizeof(wire->reset_error));
	for (char *p = wire->reset_error; *p != '\0'; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
}

/*
 * The buffer has no complete message.  Break the stream if it has ended.
 */
static PgpxWireEvent
need_input(PgpxWire *wire)
{
	return wire->eof ?
		pgpx_wire_break(wire, pgpx_wire_end_reason(wire->end_error)) :
		PGPX_EV_NEED_INPUT;
}

PgpxWireEvent
pgpx_wire_next(PgpxWire *wire, PgpxWireMessage *msg)
{
	for (;;)
	{
		size_t		have = wire->in_end - wire->in_start;
		char	   *p = wire->in + wire->in_start;
		uint32		len;
		PgpxWireRule rule;
		bool		reset_failed;

		if (wire->phase == PGPX_WIRE_BROKEN)
			return PGPX_EV_BROKEN;
		if (have < 5)
			return need_input(wire);

		rule = find_rule(wire, (unsigned char) *p);
		len = (uint32) get_int32(p + 1);
		reset_failed = wire->discarding && *p == 'E' &&
			rule.event != PGPX_EV_NO_ECHO;
		if ((!rule.known && !reset_failed) ||
			len < 4 || len > pgpx_wire_max_length(wire, *p))
			return pgpx_wire_break(wire, "the remote server sent a message that violates the protocol");
		msg->type = *p;
		msg->data = p + 5;
		msg->len = Min(have - 5, len - 4);
		if (reset_failed)
			note_reset_error(wire, msg);
		if (have < (size_t) len + 1)
		{
			/* a longer message lets the buffer grow only as input arrives */
			size_t		room = Max(wire->in_cap, IN_READ_MAX);

			if (!wire->eof)
				(void) reserve_input(wire, Min((size_t) len + 1, room));
			return need_input(wire);
		}

		wire->in_start += (size_t) len + 1;
		if (!rule.known)
			return pgpx_wire_break(wire, "the reset of the last lease has failed");

		if (wire->discarding)
			wire->discarded += len;
		if (!check_message(wire, msg))
			return pgpx_wire_break(wire, msg->type == 't' ?
								   "the remote server's answer belongs to another statement" :
								   wire->discarding ?
								   "the reset was not answered as expected" :
								   "the remote server sent a malformed message");

		if (rule.event == PGPX_EV_NO_ECHO)
			return handle_missing_echo(wire, msg);
		if (reset_failed)
		{
			PgpxRemoteFields fields;

			/* so the statement that follows the reset is not executed */
			pgpx_wire_break(wire, "the reset was not answered as expected");
			return !pgpx_wire_parse_error(msg, &fields) ||
				is_fatal_by_proxy(&fields) ? PGPX_EV_BROKEN :
				PGPX_EV_NOT_RUN;
		}
		if (rule.event == PGPX_EV_COPY)
			wire->copying = true;
		if (rule.next == PGPX_WIRE_BROKEN)
			pgpx_wire_break(wire, rule.event == PGPX_EV_COPY ?
							"a COPY from or to the client was executed" :
							"the remote server ended the session");
		else if (!enter_phase(wire, rule.next))
			rule.event = PGPX_EV_NONE;

		/* the first part of the answer that is not discarded */
		if (wire->sent_ahead && !wire->discarding)
		{
			wire->sent_ahead = false;
			return PGPX_EV_BEGUN;
		}

		if (rule.event == PGPX_EV_READY && wire->reset_behind != 0 &&
			wire->marker.exchange != PGPX_EXCHANGE_FINAL)
		{
			/* the answer to the reset behind the statement is next */
			expect_reset(wire, wire->sender, PGPX_EXCHANGE_FINAL,
						 wire->reset_behind);
			return PGPX_EV_READY;
		}

		/* input during a reset belongs to the previous holder: discard it */
		if (rule.event == PGPX_EV_NONE || wire->discarding)
			continue;
		return rule.event;
	}
}

/*
 * Return whether an error at position "end" of the input buffer arrives in
 * place of the marker's echo: the reader is within the echo, or it expects the
 * echo and only notices, notifications and parameters precede "end".
 */
static bool
is_marker_absent(const PgpxWire *wire, size_t end)
{
	size_t		at = wire->in_start;

	if (wire->phase != PGPX_WIRE_MARKER_PARSE)
		return wire->phase == PGPX_WIRE_MARKER_TYPES ||
			wire->phase == PGPX_WIRE_MARKER_NO_DATA;
	while (at < end && memchr("NAS", wire->in[at], 3) != NULL)
		at += (size_t) (uint32) get_int32(wire->in + at + 1) + 1;
	return at >= end;
}

bool
pgpx_wire_is_answered(const PgpxWire *wire, size_t *scanned)
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
		len = (uint32) get_int32(wire->in + at + 1);

		/* the reader breaks the stream at a bad length, and at a COPY */
		if (len < 4 || len > pgpx_wire_max_length(wire, wire->in[at]) ||
			wire->in[at] == 'G' || wire->in[at] == 'H')
			return true;

		/* an error in place of the marker's echo breaks the stream */
		if (wire->in[at] == 'E' && is_marker_absent(wire, at))
			return true;
		if (have < (size_t) len + 1)
			return false;
		if (wire->in[at] == 'Z')
			return true;
		*scanned += (size_t) len + 1;
	}
}

/* ------------------------------------------------------------------------
 * The bodies of messages
 * ------------------------------------------------------------------------
 */

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

	/* "INSERT 0 5", "SELECT 3", "CREATE TABLE": parse the number at the end */
	p = tag + len;
	while (p > tag && p[-1] >= '0' && p[-1] <= '9')
		p--;
	if (p == tag || p[-1] != ' ' || tag + len - p > 18)
		return 0;
	for (; *p; p++)
		rows = rows * 10 + (*p - '0');
	return rows;
}

/* The fields by their codes.  S is the severity in the remote's language. */
static const struct
{
	char		code;
	size_t		offset;
}			error_fields[] = {
	{'S', offsetof(PgpxRemoteFields, severity)},
	{'V', offsetof(PgpxRemoteFields, severity)},
	{'C', offsetof(PgpxRemoteFields, sqlstate)},
	{'M', offsetof(PgpxRemoteFields, primary)},
	{'D', offsetof(PgpxRemoteFields, detail)},
	{'H', offsetof(PgpxRemoteFields, hint)},
	{'W', offsetof(PgpxRemoteFields, context)},
	{'P', offsetof(PgpxRemoteFields, position)},
	{'q', offsetof(PgpxRemoteFields, query)},
	{'p', offsetof(PgpxRemoteFields, query_position)},
	{'R', offsetof(PgpxRemoteFields, routine)},
};

bool
pgpx_wire_parse_error(const PgpxWireMessage *msg, PgpxRemoteFields *fields)
{
	const char *p = msg->data;
	const char *end = msg->data + msg->len;

	memset(fields, 0, sizeof(*fields));
	while (p < end && *p != '\0')
	{
		char		code = *p++;
		size_t		len = strnlen(p, end - p);

		if (len == (size_t) (end - p))
			return false;
		for (int i = 0; i < lengthof(error_fields); i++)
			if (error_fields[i].code == code &&
				!(code == 'S' && fields->severity != NULL))
				*(const char **) ((char *) fields + error_fields[i].offset) = p;
		p += len + 1;
	}
	return p < end;
}

bool
pgpx_wire_is_fatal(const PgpxRemoteFields *fields)
{
	return fields->severity != NULL &&
		(strcmp(fields->severity, "FATAL") == 0 ||
		 strcmp(fields->severity, "PANIC") == 0);
}

/* ------------------------------------------------------------------------
 * The writer: messages to the remote
 *
 * The send functions append to the output buffer and set the answer that the
 * reader expects; pgpx_wire_flush sends the buffer.  The put functions write to
 * a buffer of the caller.
 * ------------------------------------------------------------------------
 */

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

static inline void
put_string(StringInfo buf, const char *text)
{
	put(buf, text, strlen(text) + 1);
}

static void
put_query(StringInfo buf, const char *sql)
{
	int			at = begin_message(buf, 'Q');

	put_string(buf, sql);
	end_message(buf, at);
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

/*
 * Append Describe (D) or Close (C) of a portal (kind P) or statement (kind S).
 */
static void
put_target(StringInfo buf, char type, char kind, const char *name)
{
	int			at = begin_message(buf, type);

	put_char(buf, kind);
	put_string(buf, name);
	end_message(buf, at);
}

/* Append the marker's messages, 28 bytes. */
static void
put_marker(StringInfo buf, uint64 sender, uint32 exchange)
{
	int			at = begin_message(buf, 'P');

	put_string(buf, "");		/* unnamed statement */
	put_string(buf, "");		/* empty query string */
	put_int16(buf, 3);			/* number of parameter types */
	put_int32(buf, (uint32) (sender >> 32));
	put_int32(buf, (uint32) sender);
	put_int32(buf, exchange);
	end_message(buf, at);
	put_target(buf, 'D', 'S', "");
}

/* Begin an exchange of the current holder, and return its number. */
static uint32
begin_exchange(PgpxWire *wire)
{
	uint32		exchange = ++wire->nexchanges;

	Assert(wire->phase == PGPX_WIRE_IDLE);
	Assert(wire->reset_behind == 0);

	put_marker(pgpx_wire_output(wire), wire->sender, exchange);
	return exchange;
}

void
pgpx_wire_send_query(PgpxWire *wire, const char *sql)
{
	uint32		exchange = begin_exchange(wire);

	put_query(&wire->out, sql);
	expect(wire, wire->sender, exchange, PGPX_WIRE_SIMPLE, PGPX_WIRE_IDLE,
		   PGPX_WIRE_IDLE);
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
put_execute(StringInfo buf, const char *portal, uint32 max_rows)
{
	int			at = begin_message(buf, 'E');

	put_string(buf, portal);
	put_int32(buf, max_rows);	/* 0: all rows */
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
		put_target(buf, 'C', p->closes[i][0], p->closes[i] + 1);
	if (p->resume)
		first = PGPX_WIRE_EXECUTE;
	else if (p->describe_only)
	{
		put_parse(buf, "", p->statement->sql);
		put_target(buf, 'D', 'S', "");
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
			put_target(buf, 'D', 'P', p->portal);
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
	expect(wire, wire->sender, exchange,
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

	put_marker(&out, sender, PGPX_EXCHANGE_FINAL);
	put_commands(&out, &p);
	return out.len;
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
		 * messages that have arrived can still be read, but the reset behind
		 * the statement will not be answered
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
		 wire->phase == PGPX_WIRE_MARKER_PARSE))
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
	put_marker(buf, wire->sender, exchange);
	if ((sent & PGPX_SENT_ROLLBACK) != 0)
		put_query(buf, "ROLLBACK");
	if ((sent & (PGPX_SENT_DISCARD_ALL | PGPX_SENT_RESET)) != 0)
		put_query(buf, reset_command);
	if ((sent & PGPX_SENT_START) != 0)
		put_query(buf, start_commands);
	expect_reset(wire, wire->sender, exchange, sent);
	return sent;
}

void
pgpx_wire_send_reset_behind(PgpxWire *wire)
{
	Assert(wire->phase == PGPX_WIRE_MARKER_PARSE && !wire->discarding &&
		   wire->out_sent == 0);
	wire->reset_behind = PGPX_SENT_DISCARD_ALL;
	wire->reset_at = wire->out.len;
	put_marker(&wire->out, wire->sender, PGPX_EXCHANGE_FINAL);
	put_query(&wire->out, PGPX_DISCARD_ALL);
}

void
pgpx_wire_send_check(PgpxWire *wire)
{
	uint32		exchange = begin_exchange(wire);

	put_sync(&wire->out);
	expect(wire, wire->sender, exchange, PGPX_WIRE_IDLE, PGPX_WIRE_IDLE,
		   PGPX_WIRE_IDLE);
}
