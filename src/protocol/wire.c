/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  The reader of the protocol's query phase: phases and rules.
 *
 * https://www.postgresql.org/docs/current/protocol-flow.html
 *
 * See wire.h for the rules.  The tables below state which message may arrive in
 * which phase, which event it causes and which phase follows.
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

#include "base/debug_point.h"
#include "protocol/remote_message.h"

/* Classes of messages, the columns of the table. */
typedef enum PgpxWireClass
{
	M_OTHER = 0,
	M_PARSE_COMPLETE,
	M_BIND_COMPLETE,
	M_PARAMETER_DESCRIPTION,
	M_ROW_DESCRIPTION,
	M_NO_DATA,
	M_DATA_ROW,
	M_COMMAND,					/* CommandComplete, EmptyQueryResponse */
	M_SUSPENDED,
	M_CLOSE_COMPLETE,
	M_ERROR,
	M_NOTICE,
	M_NOTIFICATION,
	M_PARAMETER,
	M_COPY,						/* CopyInResponse, CopyOutResponse */
	M_READY,
	M_NCLASSES
} PgpxWireClass;

/* The effect of a message in a phase: its event and the phase after it. */
typedef struct PgpxWireRule
{
	uint8		known;			/* false: the message violates the protocol */
	uint8		event;
	uint8		next;
} PgpxWireRule;

/* The class of a message, indexed by its type byte. */
static const uint8 classes[256] = {
	['1'] = M_PARSE_COMPLETE,
	['2'] = M_BIND_COMPLETE,
	['t'] = M_PARAMETER_DESCRIPTION,
	['T'] = M_ROW_DESCRIPTION,
	['n'] = M_NO_DATA,
	['D'] = M_DATA_ROW,
	['C'] = M_COMMAND,
	['I'] = M_COMMAND,
	['s'] = M_SUSPENDED,
	['3'] = M_CLOSE_COMPLETE,
	['E'] = M_ERROR,
	['N'] = M_NOTICE,
	['A'] = M_NOTIFICATION,
	['S'] = M_PARAMETER,
	['G'] = M_COPY,
	['H'] = M_COPY,
	['Z'] = M_READY,
};

#define R(event_, next_) {1, PGPX_EV_##event_, PGPX_WIRE_##next_}

/* The messages that may arrive at any time. */
#define ASYNC(phase_) \
	[M_NOTICE] = R(NOTICE, phase_), \
	[M_NOTIFICATION] = R(NOTIFICATION, phase_), \
	[M_PARAMETER] = R(NONE, phase_)

static const PgpxWireRule rules[PGPX_WIRE_NPHASES][M_NCLASSES] = {
	[PGPX_WIRE_IDLE] = {
		ASYNC(IDLE),
		[M_ERROR] = R(ERROR, BROKEN),	/* FATAL: the remote session ends */
	},
	[PGPX_WIRE_TOKEN_PARSE] = {
		ASYNC(TOKEN_PARSE),
		[M_PARSE_COMPLETE] = R(NONE, TOKEN_TYPES),
		[M_ERROR] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_TOKEN_TYPES] = {
		ASYNC(TOKEN_TYPES),
		[M_PARAMETER_DESCRIPTION] = R(NONE, TOKEN_NO_DATA),
		[M_ERROR] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_TOKEN_NO_DATA] = {
		ASYNC(TOKEN_NO_DATA),
		[M_NO_DATA] = R(NONE, NEXT_PART),
		[M_ERROR] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_SIMPLE] = {
		ASYNC(SIMPLE),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, SIMPLE_ROWS),
		[M_COMMAND] = R(COMMAND, SIMPLE),
		[M_ERROR] = R(ERROR, SIMPLE),
		[M_COPY] = R(COPY, BROKEN),
		[M_READY] = R(READY, IDLE),
	},
	[PGPX_WIRE_SIMPLE_ROWS] = {
		ASYNC(SIMPLE_ROWS),
		[M_DATA_ROW] = R(ROW, SIMPLE_ROWS),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, SIMPLE_ROWS),	/* of a rule */
		[M_COMMAND] = R(COMMAND, SIMPLE),
		[M_ERROR] = R(ERROR, SIMPLE),
	},
	[PGPX_WIRE_BEFORE_PARSE] = {
		ASYNC(BEFORE_PARSE),
		[M_PARSE_COMPLETE] = R(NONE, BEFORE_BIND),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_BEFORE_BIND] = {
		ASYNC(BEFORE_BIND),
		[M_BIND_COMPLETE] = R(NONE, BEFORE_EXECUTE),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_BEFORE_EXECUTE] = {
		ASYNC(BEFORE_EXECUTE),
		[M_COMMAND] = R(NONE, BEFORE_PARSE),	/* the last one: NEXT_PART */
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_PARSE] = {
		ASYNC(PARSE),
		[M_CLOSE_COMPLETE] = R(NONE, PARSE),
		[M_PARSE_COMPLETE] = R(NONE, BIND),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_BIND] = {
		ASYNC(BIND),
		[M_CLOSE_COMPLETE] = R(NONE, BIND),
		[M_BIND_COMPLETE] = R(NONE, DESCRIBE),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE] = {
		ASYNC(DESCRIBE),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, EXECUTE),
		[M_NO_DATA] = R(NO_DATA, EXECUTE_NO_ROWS),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_EXECUTE] = {
		ASYNC(EXECUTE),
		[M_CLOSE_COMPLETE] = R(NONE, EXECUTE),
		[M_DATA_ROW] = R(ROW, EXECUTE),
		[M_COMMAND] = R(COMMAND, SYNC),
		[M_SUSPENDED] = R(SUSPENDED, SYNC),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_EXECUTE_NO_ROWS] = {
		ASYNC(EXECUTE_NO_ROWS),
		[M_CLOSE_COMPLETE] = R(NONE, EXECUTE_NO_ROWS),
		[M_COMMAND] = R(COMMAND, SYNC),
		[M_ERROR] = R(ERROR, SYNC),
		[M_COPY] = R(COPY, BROKEN),
	},
	[PGPX_WIRE_REBIND] = {
		ASYNC(REBIND),
		[M_CLOSE_COMPLETE] = R(NONE, REBIND),
		[M_BIND_COMPLETE] = R(NONE, EXECUTE),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_PARSE] = {
		ASYNC(DESCRIBE_PARSE),
		[M_CLOSE_COMPLETE] = R(NONE, DESCRIBE_PARSE),
		[M_PARSE_COMPLETE] = R(NONE, DESCRIBE_PARAMS),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_PARAMS] = {
		ASYNC(DESCRIBE_PARAMS),
		[M_PARAMETER_DESCRIPTION] = R(NONE, DESCRIBE_ROWS),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_ROWS] = {
		ASYNC(DESCRIBE_ROWS),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, SYNC),
		[M_NO_DATA] = R(NO_DATA, SYNC),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_SYNC] = {
		ASYNC(SYNC),
		[M_CLOSE_COMPLETE] = R(NONE, SYNC),
		[M_ERROR] = R(ERROR, SYNC), /* a deferred constraint, at the commit */
		[M_READY] = R(READY, IDLE),
	},
	[PGPX_WIRE_ROLLBACK] = {
		ASYNC(ROLLBACK),
		[M_COMMAND] = R(NONE, RESET_END),
	},
	[PGPX_WIRE_DISCARD_ALL] = {
		ASYNC(DISCARD_ALL),
		[M_COMMAND] = R(NONE, RESET_END),
	},
	[PGPX_WIRE_RESET] = {
		ASYNC(RESET),
		[M_ROW_DESCRIPTION] = R(NONE, RESET),
		[M_DATA_ROW] = R(NONE, RESET),
		[M_COMMAND] = R(NONE, RESET_MORE),
	},
	[PGPX_WIRE_RESET_MORE] = {
		ASYNC(RESET_MORE),
		[M_ROW_DESCRIPTION] = R(NONE, RESET),
		[M_COMMAND] = R(NONE, RESET_MORE),
		[M_READY] = R(READY, NEXT_PART),
	},
	[PGPX_WIRE_RESET_END] = {
		ASYNC(RESET_END),
		[M_READY] = R(READY, NEXT_PART),
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

void
pgpx_wire_begin(PgpxWire *wire, uint64 sender)
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
}

/* Expect the answer to an exchange next. */
static void
begin_answer(PgpxWire *wire, const PgpxWireToken *token,
			 const uint8 parts[PGPX_WIRE_MAX_PARTS])
{
	wire->token = *token;
	memcpy(wire->parts, parts, sizeof(wire->parts));
	wire->part = 0;
	wire->phase = PGPX_WIRE_TOKEN_PARSE;
	wire->discarded = 0;

	/*
	 * If the answer is discarded, because the exchange is a reset or check, so
	 * is the input before the echo.  In a hand-over that input belongs to the
	 * previous holder, whose last exchange the statement is part of.
	 */
	wire->discarding = token->exchange == PGPX_EXCHANGE_FINAL ||
		parts[0] == PGPX_WIRE_IDLE || discards[parts[0]];
}

void
pgpx_wire_expect(PgpxWire *wire, uint64 sender, uint32 exchange, int part1,
				 int part2, int part3)
{
	const PgpxWireToken token = {sender, exchange};
	const uint8 parts[PGPX_WIRE_MAX_PARTS] = {part1, part2, part3,
											  PGPX_WIRE_IDLE};

	begin_answer(wire, &token, parts);
}

void
pgpx_wire_expect_reset(PgpxWire *wire, uint64 sender, uint32 exchange,
					   int reset)
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
	pgpx_wire_expect(wire, sender, exchange, parts[0], parts[1],
					 parts[2]);
}

void
pgpx_wire_begin_reset(PgpxWire *wire, uint64 sender, uint64 reset_by, int reset)
{
	pgpx_wire_begin(wire, sender);
	if (wire->phase != PGPX_WIRE_BROKEN && reset != 0)
		pgpx_wire_expect_reset(wire, reset_by, PGPX_EXCHANGE_FINAL, reset);
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
pgpx_wire_has_pinned_params(const PgpxWire *wire)
{
	return !wire->encoding_changed && wire->datestyle_iso &&
		wire->intervalstyle_postgres;
}

void
pgpx_wire_break(PgpxWire *wire, const char *reason)
{
	if (wire->phase != PGPX_WIRE_BROKEN)
		wire->broken = reason;
	wire->phase = PGPX_WIRE_BROKEN;
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
 * Copy a value for use in error messages.  The result is printable ASCII, which
 * is valid in every encoding.
 */
static void
copy_printable(char *to, size_t size, const char *value)
{
	strlcpy(to, value, size);
	for (; *to != '\0'; to++)
		if (*to < ' ' || *to > '~')
			*to = '?';
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

	if (wire->in != NULL && wire->in_start + need <= wire->in_cap)
		return true;
	if (wire->in != NULL && wire->in_start > 0)
	{
		memmove(wire->in, wire->in + wire->in_start, have);
		wire->in_start = 0;
		wire->in_end = have;
	}
	if (wire->in != NULL && need <= wire->in_cap)
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

bool
pgpx_wire_make_room(PgpxWire *wire)
{
	if (wire->in_start == wire->in_end)
		wire->in_start = wire->in_end = 0;
	if (wire->in != NULL && wire->in_end < wire->in_cap)
		return true;
	return reserve_input(wire, wire->in == NULL ? IN_MIN :
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

	if (n < 0 && wire->end_error == 0)
		wire->end_error = errno;
	wire->eof = true;
	return -1;
}

ssize_t
pgpx_wire_fill(PgpxWire *wire, bool *full)
{
	ssize_t		n;

	*full = false;
	if (wire->phase == PGPX_WIRE_BROKEN || !pgpx_wire_make_room(wire))
		return -1;
	n = pgpx_wire_receive(wire, full);
	if (*full && wire->in_cap < IN_READ_MAX)
		(void) reserve_input(wire, wire->in_cap + 1);
	return n;
}

/* Note the transaction status of a ReadyForQuery; false if malformed. */
static bool
note_ready(PgpxWire *wire, const PgpxWireMessage *msg)
{
	if (msg->len != 1 ||
		(msg->data[0] != 'I' && msg->data[0] != 'T' && msg->data[0] != 'E'))
		return false;
	wire->tx = msg->data[0];
	return true;
}

/* Return whether the message is CommandComplete with this tag. */
static bool
has_tag(const PgpxWireMessage *msg, const char *tag)
{
	return msg->type == 'C' && msg->len == strlen(tag) + 1 &&
		memcmp(msg->data, tag, msg->len) == 0;
}

/*
 * Check the contents of a message, which the table of rules cannot.  Return
 * false if the message is malformed or is not the expected one.
 */
static bool
check_message(PgpxWire *wire, int class, const PgpxWireMessage *msg)
{
	switch (class)
	{
		case M_PARAMETER:
			return note_parameter(wire, msg->data, msg->len);
		case M_PARAMETER_DESCRIPTION:
			return wire->phase != PGPX_WIRE_TOKEN_TYPES ||
				pgpx_wire_echoes_token(msg, &wire->token);
		case M_COMMAND:
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
		case M_READY:
			if (!note_ready(wire, msg))
				return false;
			if (!wire->discarding)
				return true;
			if (wire->tx != 'I')
				return false;

			/* after the last part the parameters must have start values */
			return wire->parts[wire->part] != PGPX_WIRE_IDLE ||
				pgpx_wire_has_pinned_params(wire);
		default:
			return true;
	}
}

/*
 * Handle an error that arrived in place of the token's echo.
 *
 * The stream is marked as broken.  An error that is not fatal may answer an
 * earlier exchange, so it is not taken for the answer to this one.  Its text is
 * shown only if the current holder also sent the earlier exchange.
 *
 * A fatal error of PostgreSQL ends the remote session, which has answered every
 * statement that it executed.  So a statement whose token was not echoed was
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
	return fatal && !pgpx_wire_is_fatal_by_proxy(&fields) && wire->sent_ahead ?
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
		/* the remote does not report restored values before the Sync */
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
		wire->phase = PGPX_WIRE_RESET_END;	/* the token is the only part */
	wire->discarding = discards[wire->phase] || wire->reset_ahead;
	return wire->phase == PGPX_WIRE_IDLE;
}

/*
 * Keep the text of an error that arrived, possibly in part, in the answer to a
 * reset.
 */
static void
note_reset_error(PgpxWire *wire, const PgpxWireMessage *msg)
{
	PgpxRemoteFields fields;

	(void) pgpx_wire_parse_error(msg, &fields);
	copy_printable(wire->reset_error, sizeof(wire->reset_error),
				   fields.primary != NULL ? fields.primary :
				   "the text of the error was not received");
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
		bool		reset_failed;

		if (wire->phase == PGPX_WIRE_BROKEN)
			return PGPX_EV_BROKEN;
		if (have < 5)
		{
			if (wire->eof)
			{
				pgpx_wire_break(wire, pgpx_wire_end_reason(wire->end_error));
				return PGPX_EV_BROKEN;
			}
			return PGPX_EV_NEED_INPUT;
		}

		class = classes[(unsigned char) *p];
		rule = rules[wire->phase][class];
		memcpy(&len, p + 1, 4);
		len = pg_ntoh32(len);
		reset_failed = wire->discarding && class == M_ERROR &&
			rule.event != PGPX_EV_NO_ECHO;
		if ((!rule.known && !reset_failed) ||
			len < 4 || len > pgpx_wire_max_length(wire, *p))
		{
			pgpx_wire_break(wire, "the remote server sent a message that violates the protocol");
			return PGPX_EV_BROKEN;
		}
		msg->type = *p;
		msg->data = p + 5;
		msg->len = Min(have - 5, len - 4);
		if (reset_failed)
			note_reset_error(wire, msg);
		if (have < (size_t) len + 1)
		{
			if (wire->eof)
			{
				pgpx_wire_break(wire, pgpx_wire_end_reason(wire->end_error));
				return PGPX_EV_BROKEN;
			}

			/* a longer message lets the buffer grow only as input arrives */
			room = Max(wire->in_cap, IN_READ_MAX);
			(void) reserve_input(wire, Min((size_t) len + 1, room));
			return PGPX_EV_NEED_INPUT;
		}

		wire->in_start += (size_t) len + 1;
		if (!rule.known)
		{
			pgpx_wire_break(wire, "the reset of the last lease has failed");
			return PGPX_EV_BROKEN;
		}

		if (wire->discarding)
			wire->discarded += len;
		if (!check_message(wire, class, msg))
		{
			pgpx_wire_break(wire, class == M_PARAMETER_DESCRIPTION ?
							"the remote server's answer belongs to another statement" :
							wire->discarding ?
							"the reset was not answered as expected" :
							"the remote server sent a malformed message");
			return PGPX_EV_BROKEN;
		}

		if (rule.event == PGPX_EV_NO_ECHO)
			return handle_missing_echo(wire, msg);
		if (reset_failed)
		{
			PgpxRemoteFields fields;

			/* the reset before the statement, which is not executed */
			pgpx_wire_break(wire, "the reset was not answered as expected");
			return !pgpx_wire_parse_error(msg, &fields) ||
				pgpx_wire_is_fatal_by_proxy(&fields) ? PGPX_EV_BROKEN :
				PGPX_EV_NOT_RUN;
		}
		if (class == M_COPY)
			wire->copying = true;
		if (rule.next == PGPX_WIRE_BROKEN)
			pgpx_wire_break(wire, class == M_COPY ?
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
			wire->token.exchange != PGPX_EXCHANGE_FINAL)
		{
			/* the answer to the reset behind the statement is next */
			pgpx_wire_expect_reset(wire, wire->sender, PGPX_EXCHANGE_FINAL,
								   wire->reset_behind);
			return PGPX_EV_READY;
		}

		/* input during a reset belongs to the previous holder: discard it */
		if (rule.event == PGPX_EV_NONE || wire->discarding)
			continue;
		return rule.event;
	}
}
