/*-------------------------------------------------------------------------
 *
 * wire.h
 *	  The reader of the protocol's query phase: phases and rules.
 *
 * https://www.postgresql.org/docs/current/protocol-message-formats.html
 *
 * A connection that libpq has logged in is a byte stream; whoever holds its
 * socket at a message boundary can speak on it.  This module does, for sessions
 * on leased sockets and for the worker.  It never waits: it says when it wants
 * input, and the caller waits as befits it.
 *
 * Everything that comes in is hostile: lengths are bounded and checked before
 * use, the order of messages is checked against one table (wire.c), and at any
 * doubt the stream is broken for good: nothing is ever repaired.
 *
 * No shared memory, no catalogs, no latch: fit for a fuzzer.
 *
 * What may come in which phase of a conversation: for the reader only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WIRE_H
#define PGPX_WIRE_H

#include "base/compat.h"

#include "lib/stringinfo.h"

/* Where in a conversation the stream is. */
typedef enum PgpxWirePhase
{
	PGPX_WIRE_IDLE = 0,			/* at a boundary; nothing is in flight */
	PGPX_WIRE_TOKEN_PARSE,		/* the echo of the exchange's token is to come: */
	PGPX_WIRE_TOKEN_TYPES,		/* ParseComplete, ParameterDescription, */
	PGPX_WIRE_TOKEN_NO_DATA,	/* NoData */
	PGPX_WIRE_SIMPLE,			/* Query was sent */
	PGPX_WIRE_SIMPLE_ROWS,		/* .. and a result has begun */
	PGPX_WIRE_AHEAD_PARSE,		/* a reset was sent ahead, in the same Sync */
	PGPX_WIRE_AHEAD_BIND,
	PGPX_WIRE_AHEAD_EXECUTE,
	PGPX_WIRE_PARSE,			/* Parse, Bind, Describe, Execute, Sync were sent */
	PGPX_WIRE_BIND,
	PGPX_WIRE_DESCRIBE,
	PGPX_WIRE_EXECUTE,
	PGPX_WIRE_DESCRIBE_PARSE,	/* Parse, Describe, Sync were sent */
	PGPX_WIRE_DESCRIBE_PARAMS,
	PGPX_WIRE_DESCRIBE_ROWS,
	PGPX_WIRE_SYNC,				/* done or failed; ReadyForQuery is to come */
	PGPX_WIRE_COPY_SIMPLE,		/* the data of a refused COPY are discarded */
	PGPX_WIRE_COPY_EXTENDED,	/* the same, of COPY TO STDOUT only */
	PGPX_WIRE_ROLLBACK,			/* Query "ROLLBACK" was sent, by us */
	PGPX_WIRE_DISCARD_ALL,		/* Query "DISCARD ALL" was sent */
	PGPX_WIRE_RESET,			/* Query with another reset command was sent */
	PGPX_WIRE_RESET_ROWS,		/* .. and one of its results has begun */
	PGPX_WIRE_RESET_MORE,		/* .. and one of its results has ended */
	PGPX_WIRE_RESET_END,		/* ReadyForQuery is to come */
	PGPX_WIRE_BROKEN,			/* out of step or ended; see "broken" */
	PGPX_WIRE_NPHASES,

	/* in the table of rules: the first phase of the exchange's next part */
	PGPX_WIRE_NEXT_PART = PGPX_WIRE_NPHASES
} PgpxWirePhase;

/*
 * An exchange is what is sent between two boundaries.  It consists of parts; the
 * first part is always the token.
 *
 * The token is Parse of an empty statement whose parameter types are the three
 * words below, and Describe of that statement.  The server echoes the types in
 * ParameterDescription; it does not look them up, plan or run anything.  (See
 * exec_parse_message and exec_describe_statement_message in postgres.c.)  No
 * two exchanges on a connection have the same token, and SQL cannot produce a
 * ParameterDescription.  The echo therefore proves that everything which an
 * earlier exchange left on the stream has been read, and that what follows is the
 * answer to this exchange.
 */
typedef struct PgpxWireToken
{
	uint64		sender;			/* lease id, or a number of the worker's */
	uint32		exchange;		/* number of the exchange within the lease */
} PgpxWireToken;

/* The exchange that resets the connection at the end of a lease. */
#define PGPX_EXCHANGE_FINAL 0

/* A token's messages and a DISCARD ALL in the extended protocol fit into this. */
#define PGPX_WIRE_PREFIX_MAX 80

#define PGPX_WIRE_MAX_PARTS 4

/* The parts of an exchange that resets a connection, after the token; 0: none. */
#define PGPX_SENT_DISCARD_ALL	1	/* DISCARD ALL */
#define PGPX_SENT_RESET			2	/* another reset command */
#define PGPX_SENT_START			4	/* the start commands, behind either */
#define PGPX_SENT_ROLLBACK		8	/* ROLLBACK, in front of them */

typedef enum PgpxWireEvent
{
	PGPX_EV_NONE = 0,			/* (internal: go on) */
	PGPX_EV_NEED_INPUT,			/* nothing whole is in the buffer */
	PGPX_EV_ROW_DESCRIPTION,
	PGPX_EV_NO_DATA,			/* the statement returns no rows */
	PGPX_EV_ROW,
	PGPX_EV_COMMAND,			/* CommandComplete or EmptyQueryResponse */
	PGPX_EV_ERROR,
	PGPX_EV_NOTICE,
	PGPX_EV_NOTIFICATION,
	PGPX_EV_COPY,				/* the statement is a COPY; it is being refused */
	PGPX_EV_NOT_RUN,			/* the statement that was sent ahead of the
								 * checkout has not run; the stream is broken */
	PGPX_EV_READY,				/* a boundary: the conversation is over */
	PGPX_EV_BROKEN,				/* see "broken" for why */
	PGPX_EV_NO_ECHO				/* (internal: an error instead of the token) */
} PgpxWireEvent;

/* A message; data stays valid until the next call that reads. */
typedef struct PgpxWireMessage
{
	char		type;
	char	   *data;
	size_t		len;
} PgpxWireMessage;

typedef struct PgpxWire
{
	int			fd;
	MemoryContext cxt;			/* holds the buffers */
	int			encoding;		/* that client_encoding has to be */

	char	   *in;				/* [in_cap + 1]: one spare byte behind */
	size_t		in_cap;
	size_t		in_start;		/* first byte not yet handed out */
	size_t		in_end;

	StringInfoData out;
	size_t		out_sent;

	int			phase;			/* PgpxWirePhase */
	char		tx;				/* of the last ReadyForQuery: I, T or E */
	uint64		sender;			/* of the tokens of the next exchanges */
	uint32		nexchanges;		/* sent since pgpx_wire_begin */
	PgpxWireToken token;		/* of the exchange whose answer is to come */
	uint8		parts[PGPX_WIRE_MAX_PARTS]; /* first phases of its parts; IDLE: end */
	int			part;			/* index of the next one */
	bool		sent_ahead;		/* the previous holder sent our statement */
	bool		discarding;		/* this part of the answer is not the holder's */
	size_t		discarded;		/* bytes of it, so far */
	const char *broken;			/* BROKEN: why */
	bool		eof;			/* BROKEN because the stream has ended */

	/* what the remote reported last of the parameters that decoding needs */
	bool		encoding_changed;
	bool		datestyle_iso;
	bool		intervalstyle_postgres;
	char		datestyle[32];
	char		intervalstyle[32];

	uint64		bytes_in;
	uint64		bytes_out;
} PgpxWire;

/* Set up for a socket; buffers are made when first needed. */
extern void pgpx_wire_init(PgpxWire *wire, int fd, int encoding,
						   MemoryContext cxt);

/* Free the buffers (not the socket). */
extern void pgpx_wire_free(PgpxWire *wire);

/*
 * pgpx_wire_begin
 *		Begin to use a stream that is at a message boundary.
 *
 * sender: for the tokens; no other user of this connection may have or have had
 * the same number.
 */
extern void pgpx_wire_begin(PgpxWire *wire, uint64 sender);

/*
 * pgpx_wire_begin_reset
 *		The same where the answer to a reset is unread.
 *
 * reset: what pgpx_wire_send_reset returned to the lease "reset_by" at its end.
 */
extern void pgpx_wire_begin_reset(PgpxWire *wire, uint64 sender,
								  uint64 reset_by, int reset);

/*
 * pgpx_wire_begin_sent
 *		The same where the lease "sent_by" has at its end sent our statement, in so
 *		many bytes, behind a reset or without one.
 */
extern void pgpx_wire_begin_sent(PgpxWire *wire, uint64 sender, uint64 sent_by,
								 bool reset, size_t bytes);

/* Let go of an input buffer that a large answer has made large; not if in use. */
extern void pgpx_wire_trim(PgpxWire *wire);

/* At a boundary, nothing buffered in either direction, and not broken. */
extern bool pgpx_wire_at_boundary(const PgpxWire *wire);

/* Do the parameters that decoding needs stand at their start values? */
extern bool pgpx_wire_params_pinned(const PgpxWire *wire);

/* Is the answer to come that of a reset? */
extern bool pgpx_wire_in_reset(const PgpxWire *wire);

/* Mark the stream as out of step. */
extern void pgpx_wire_break(PgpxWire *wire, const char *why);

/*
 * pgpx_wire_next
 *		The next event that is whole in the buffer.
 */
extern PgpxWireEvent pgpx_wire_next(PgpxWire *wire, PgpxWireMessage *msg);

/*
 * pgpx_wire_fill
 *		Read what is there, without waiting.  Returns the number of bytes; 0 if
 *		nothing is there; -1 at the end of the stream or on an error, which
 *		breaks it.  *full tells that more may be there at once.
 */
extern ssize_t pgpx_wire_fill(PgpxWire *wire, bool *full);

/*
 * The two halves of it: room, which may throw, and one read into the room that
 * there is, which does not.
 */
extern void pgpx_wire_make_room(PgpxWire *wire);
extern ssize_t pgpx_wire_receive(PgpxWire *wire, bool *full);

/*
 * pgpx_wire_flush
 *		Send what is buffered, without waiting: 1 all sent, 0 some is left, -1 the
 *		remote takes no more, and what it has said may still be read.
 */
extern int	pgpx_wire_flush(PgpxWire *wire);

/*
 * pgpx_wire_abandon
 *		What is in the output buffer shall not be sent any more.  If none of it
 *		has been, it is as if it had never been written; a message that was cut
 *		off breaks the stream.
 */
extern void pgpx_wire_abandon(PgpxWire *wire);

/* --- writer: these append an exchange to the output buffer and set the phase */

/* Query: one or several statements. */
extern void pgpx_wire_send_query(PgpxWire *wire, const char *sql);

/*
 * pgpx_wire_send_extended
 *		Parse, Bind, Describe, Execute, Sync: one statement.
 *
 * Parameters are texts, NULL for SQL's NULL, their types left to the remote.
 * nparams is at most 65535.  formats: of the result's columns, 0 text, 1 binary;
 * none of them: all are text.  If there are some, there must be as many as the
 * result has columns, or the remote refuses before it runs the statement.
 */
extern void pgpx_wire_send_extended(PgpxWire *wire, const char *sql,
									int nparams, const char *const *values,
									int nformats, const int16 *formats);

/*
 * pgpx_wire_send_describe
 *		Parse, Describe (the statement), Sync: nothing is executed.
 */
extern void pgpx_wire_send_describe(PgpxWire *wire, const char *sql);

/*
 * pgpx_wire_put_extended
 *		The same messages, without a token, into a buffer that another session
 *		sends.
 */
extern void pgpx_wire_put_extended(StringInfo buf, const char *sql, int nparams,
								   const char *const *values, int nformats,
								   const int16 *formats);

/*
 * pgpx_wire_put_prefix
 *		Write the beginning of the last exchange of the lease "sender", to which the
 *		next lease's statement is appended: the token and, with "reset", Parse, Bind
 *		and Execute of DISCARD ALL.  Returns its length.
 *
 * There is no Sync between reset and statement, so the server skips the statement
 * if the reset fails.  The server commits a DISCARD ALL inside Execute, so an error
 * of the statement does not undo it (from 13.8, 14.5, 15.0 on).
 */
extern size_t pgpx_wire_put_prefix(char buf[PGPX_WIRE_PREFIX_MAX],
								   uint64 sender, bool reset);

/*
 * pgpx_wire_send_reset
 *		Send the reset command and then the start commands; either may be empty.
 *		A transaction that is open is rolled back first.
 *		Returns PGPX_SENT_* bits; 0: nothing was sent.
 *
 * final: the lease ends with this exchange, and another reader takes the answer.
 */
extern int	pgpx_wire_send_reset(PgpxWire *wire, const char *reset_command,
								 const char *start_commands, bool final);

/* Room that a reset takes in the output buffer, at most. */
extern size_t pgpx_wire_reset_size(const char *reset_command,
								   const char *start_commands);

/*
 * pgpx_wire_send_check
 *		Send an exchange that consists of its token: a round trip without a statement.
 */
extern void pgpx_wire_send_check(PgpxWire *wire);

/*
 * pgpx_wire_refuse_copy
 *		CopyFail.  The reader calls it for COPY FROM STDIN in the simple protocol.
 */
extern void pgpx_wire_refuse_copy(PgpxWire *wire);

/* --- decoding of message bodies; false: malformed ----------------------- */

typedef struct PgpxField
{
	char	   *data;			/* not terminated; NULL: SQL's NULL */
	int			len;
} PgpxField;

typedef struct PgpxColumn
{
	const char *name;
	Oid			type;
	int32		typmod;
	int16		format;
} PgpxColumn;

/* Fields of ErrorResponse and NoticeResponse; NULL where missing. */
typedef struct PgpxRemoteFields
{
	const char *severity;		/* never translated, if the remote gives it */
	const char *sqlstate;
	const char *primary;
	const char *detail;
	const char *hint;
	const char *context;
	const char *position;		/* in the statement, in characters from 1 */
	const char *query;			/* of a function, in which the error is */
	const char *query_position; /* in it */
} PgpxRemoteFields;

/*
 * Prepare for the answer to an exchange of these parts, after the token; IDLE: there is
 * no such part.
 */
extern void pgpx_wire_expect(PgpxWire *wire, uint64 sender, uint32 exchange,
							 int part1, int part2, int part3);

/* The same for a reset of PGPX_SENT_* bits. */
extern void pgpx_wire_expect_reset(PgpxWire *wire, uint64 sender,
								   uint32 exchange, int reset);

#endif							/* PGPX_WIRE_H */
