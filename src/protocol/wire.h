/*-------------------------------------------------------------------------
 *
 * wire.h
 *	  The protocol's query phase: the reader, the bodies of messages, the
 *	  writer.
 *
 * https://www.postgresql.org/docs/current/protocol-message-formats.html
 *
 * A connection that libpq has logged in is a byte stream.  Any process that
 * holds its socket at a message boundary can run the protocol on it.  This
 * module does so for sessions, on leased sockets, and for the worker.
 *
 * - No function blocks.  The reader reports that it needs input, and the caller
 *	 waits in its own way.
 * - All input is treated as hostile.  Lengths are bounded and checked before
 *	 use, and the order of messages is checked against one table (wire.c).  A
 *	 stream that violates the protocol is marked as broken and stays broken; no
 *	 code tries to resynchronize it.
 * - The module uses no shared memory, no catalogs and no latch, so that a
 *	 fuzzer can run it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WIRE_H
#define PGPX_WIRE_H

#include "base/compat.h"

#include "lib/stringinfo.h"

/* What the reader expects next on the stream. */
typedef enum PgpxWirePhase
{
	PGPX_WIRE_IDLE = 0,			/* at a boundary; no exchange is in flight */
	PGPX_WIRE_MARKER_PARSE,		/* the echo of the marker is expected: */
	PGPX_WIRE_MARKER_TYPES,		/* ParseComplete, ParameterDescription, */
	PGPX_WIRE_MARKER_NO_DATA,	/* NoData */
	PGPX_WIRE_SIMPLE,			/* Query was sent */
	PGPX_WIRE_SIMPLE_ROWS,		/* .. and a result has begun */
	PGPX_WIRE_BEFORE_PARSE,		/* commands precede the statement in the same */
	PGPX_WIRE_BEFORE_BIND,		/* Sync, each as Parse, Bind, Execute */
	PGPX_WIRE_BEFORE_EXECUTE,
	PGPX_WIRE_PARSE,			/* Parse .. Execute, Sync were sent */
	PGPX_WIRE_BIND,
	PGPX_WIRE_DESCRIBE,
	PGPX_WIRE_EXECUTE,
	PGPX_WIRE_EXECUTE_NO_ROWS,	/* the remote has sent NoData */
	PGPX_WIRE_REBIND,			/* Bind, Execute, Sync were sent */
	PGPX_WIRE_DESCRIBE_PARSE,	/* Parse, Describe, Sync were sent */
	PGPX_WIRE_DESCRIBE_PARAMS,
	PGPX_WIRE_DESCRIBE_ROWS,
	PGPX_WIRE_SYNC,				/* done or failed; ReadyForQuery is expected */
	PGPX_WIRE_ROLLBACK,			/* the ROLLBACK of a reset was sent */
	PGPX_WIRE_DISCARD_ALL,		/* Query "DISCARD ALL" was sent */
	PGPX_WIRE_RESET,			/* Query with another reset command was sent */
	PGPX_WIRE_RESET_MORE,		/* .. and one of its commands has ended */
	PGPX_WIRE_RESET_END,		/* ReadyForQuery is expected */
	PGPX_WIRE_BROKEN,			/* out of sync or ended; see "broken" */
	PGPX_WIRE_NPHASES,

	/* only in the table of rules: first phase of the exchange's next part */
	PGPX_WIRE_NEXT_PART = PGPX_WIRE_NPHASES
} PgpxWirePhase;

/*
 * An exchange is the set of messages sent between two message boundaries.  It
 * consists of parts: first the marker, and then up to three others, each with an
 * answer of its own.
 *
 * The marker is Parse of an empty statement whose parameter types are the three
 * words below, and Describe of that statement.  The server echoes the types in
 * ParameterDescription; it does not look them up, plan or run anything.  (See
 * exec_parse_message and exec_describe_statement_message in postgres.c.)  No
 * two exchanges on a connection have the same marker, and SQL cannot produce a
 * ParameterDescription.  The echo therefore proves that all output of earlier
 * exchanges has been read from the stream, and that the following messages
 * answer this exchange.
 */
typedef struct PgpxWireMarker
{
	uint64		sender;			/* lease id, or a number chosen by the worker */
	uint32		exchange;		/* number of the exchange within the lease */
} PgpxWireMarker;

/* The exchange that resets the connection at the end of a lease. */
#define PGPX_EXCHANGE_FINAL 0

/* Bind has the number of parameters as an unsigned 16-bit integer. */
#define PGPX_WIRE_PARAMS_MAX 65535

/*
 * Room for the messages of a reset: the marker, ROLLBACK, and two Query messages
 * without their texts.
 */
#define PGPX_WIRE_RESET_MAX 80

/* Room for a marker's messages, and a reset in the extended protocol. */
#define PGPX_WIRE_PREFIX_MAX 128

#define PGPX_WIRE_MAX_PARTS 4	/* three after the marker, and the end */

/* The default reset, and its command tag. */
#define PGPX_DISCARD_ALL "DISCARD ALL"

/* The parts, after the marker, of an exchange that resets a connection. */
#define PGPX_SENT_DISCARD_ALL	1	/* DISCARD ALL */
#define PGPX_SENT_RESET			2	/* another reset command */
#define PGPX_SENT_START			4	/* the start commands, after either */
#define PGPX_SENT_ROLLBACK		8	/* ROLLBACK, before all others */

/*
 * pgpx_wire_can_send_before_answer
 *		Return whether a statement may be sent before the answer to this reset
 *		is read.  reset: PGPX_SENT_* bits; 0: no reset.
 *
 * The reset must be DISCARD ALL alone.  It hardly ever fails unless the
 * connection does, and no error of the statement undoes it, because it commits
 * inside its Execute.
 */
static inline bool
pgpx_wire_can_send_before_answer(int reset)
{
	return (reset & (PGPX_SENT_RESET | PGPX_SENT_START)) == 0;
}

typedef enum PgpxWireEvent
{
	PGPX_EV_NONE = 0,			/* (internal: continue) */
	PGPX_EV_NEED_INPUT,			/* the buffer has no complete message */
	PGPX_EV_ROW_DESCRIPTION,
	PGPX_EV_NO_DATA,			/* the statement returns no rows */
	PGPX_EV_ROW,
	PGPX_EV_COMMAND,			/* CommandComplete or EmptyQueryResponse */
	PGPX_EV_SUSPENDED,			/* the portal has more rows */
	PGPX_EV_ERROR,
	PGPX_EV_NOTICE,
	PGPX_EV_NOTIFICATION,
	PGPX_EV_COPY,				/* the statement is a COPY from or to the client;
								 * the stream is broken */
	PGPX_EV_BEGUN,				/* the commands that the previous holder sent
								 * ahead of its successor's statement have
								 * ended, so that statement is executed */
	PGPX_EV_NOT_RUN,			/* the statement that the previous holder sent
								 * was not executed; the stream is broken */
	PGPX_EV_READY,				/* message boundary: the exchange is over */
	PGPX_EV_BROKEN,				/* "broken" has the reason */
	PGPX_EV_NO_ECHO				/* (internal: an error instead of the marker) */
} PgpxWireEvent;

/*
 * A statement with its parameters.  They are texts, or NULL for SQL's NULL; the
 * remote infers their types.
 */
typedef struct PgpxStatement
{
	const char *sql;
	int			nparams;		/* at most 65535 can be sent */
	const char *const *values;
} PgpxStatement;

/* A message; data is valid until the next call that reads from the stream. */
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
	int			encoding;		/* the required client_encoding */

	char	   *in;				/* [in_cap + 1]: one spare byte at the end */
	size_t		in_cap;
	size_t		in_start;		/* first byte not yet consumed */
	size_t		in_end;

	StringInfoData out;
	size_t		out_sent;

	int			phase;			/* PgpxWirePhase */
	char		tx;				/* status of the last ReadyForQuery: I, T, E */
	uint64		sender;			/* sender in the markers of the next exchanges */
	uint32		nexchanges;		/* exchanges sent since pgpx_wire_begin */
	PgpxWireMarker marker;		/* of the exchange whose answer is expected */
	uint8		parts[PGPX_WIRE_MAX_PARTS]; /* first phases of the parts after
											 * the marker; IDLE: end */
	int			part;			/* index of the next part */
	int			reset_behind;	/* PGPX_SENT_* bits of a reset that was sent
								 * behind the statement; 0: none */
	size_t		reset_at;		/* .. its offset in "out", until all of it is
								 * sent */
	int			nbefore;		/* commands before the statement that have not
								 * completed; not 0 if one has failed */
	bool		sent_ahead;		/* the previous holder sent this statement, and
								 * it has not begun */
	bool		reset_ahead;	/* the first of the commands before it is a
								 * DISCARD ALL that is not in nbefore */
	bool		discarding;		/* this part of the answer is discarded */
	size_t		discarded;		/* bytes discarded of this exchange */
	const char *broken;			/* BROKEN: the reason */
	char		reset_error[256];	/* the remote's error with which a reset has
									 * failed; "": none */
	bool		eof;			/* the stream has ended or failed */
	bool		copying;		/* broken by a COPY, which may still run */
	int			end_error;		/* errno with which it has failed; 0: none */
	bool		no_oom;			/* raise no error if there is no memory for
								 * input */

	/* last reported values of the parameters that decoding depends on */
	bool		encoding_changed;
	bool		datestyle_iso;
	bool		intervalstyle_postgres;

	uint64		bytes_in;
	uint64		bytes_out;
} PgpxWire;

/*
 * pgpx_wire_init
 *		Initialize *wire for a socket.
 *
 * encoding: the client_encoding that the remote session must have.  The buffers
 * are allocated in cxt at first use.
 */
extern void pgpx_wire_init(PgpxWire *wire, int fd, int encoding,
						   MemoryContext cxt);

/* Free the buffers; the socket stays open. */
extern void pgpx_wire_free(PgpxWire *wire);

/*
 * pgpx_wire_begin
 *		Begin to use a stream that is at a message boundary, or on which the
 *		answer to a reset is unread.
 *
 * sender: the sender in the markers of the caller's exchanges.  It must differ
 * from that of every other holder of this connection, past or present.
 *
 * reset: the PGPX_SENT_* bits of the reset that the lease "reset_by" has sent;
 * 0 if it has sent none.
 */
extern void pgpx_wire_begin(PgpxWire *wire, uint64 sender, uint64 reset_by,
							int reset);

/*
 * pgpx_wire_begin_sent
 *		Begin to use a stream on which the lease "sent_by" has, at its end,
 *		already sent the caller's statement.
 *
 * reset: a DISCARD ALL precedes the statement.  nbefore: the number of the
 * caller's own commands that precede it.  bytes: the number of bytes sent.
 */
extern void pgpx_wire_begin_sent(PgpxWire *wire, uint64 sender, uint64 sent_by,
								 bool reset, int nbefore, size_t bytes);

/* Free an input buffer that a large answer has enlarged, if it is empty. */
extern void pgpx_wire_trim(PgpxWire *wire);

/*
 * Return whether the stream is at a message boundary, with nothing buffered in
 * either direction.
 */
static inline bool
pgpx_wire_is_at_boundary(const PgpxWire *wire)
{
	return wire->phase == PGPX_WIRE_IDLE &&
		wire->in_start == wire->in_end &&
		wire->out_sent == wire->out.len;
}

/*
 * Return whether the parameters that decoding depends on have their start
 * values.
 */
extern bool pgpx_wire_has_pinned_params(const PgpxWire *wire);

/* Return whether nothing of the expected answer was received. */
static inline bool
pgpx_wire_is_untouched(const PgpxWire *wire)
{
	return wire->phase == PGPX_WIRE_MARKER_PARSE &&
		wire->in_start == wire->in_end;
}

/* Return whether the reader discards the answer to a reset or check. */
static inline bool
pgpx_wire_is_in_reset(const PgpxWire *wire)
{
	return wire->phase != PGPX_WIRE_BROKEN && wire->discarding;
}

/*
 * Return whether a reset was sent behind the statement, and the answer to the
 * statement has been read.  The answer to the reset may be unread, read, or
 * wrong.
 */
static inline bool
pgpx_wire_is_at_reset_behind(const PgpxWire *wire)
{
	return wire->reset_behind != 0 &&
		wire->marker.exchange == PGPX_EXCHANGE_FINAL;
}

/*
 * Return whether no statement is running, on a stream that is not broken.  The
 * answer to a reset behind the last statement may be unread.
 */
static inline bool
pgpx_wire_statement_ended(const PgpxWire *wire)
{
	return wire->phase == PGPX_WIRE_IDLE ||
		(wire->phase != PGPX_WIRE_BROKEN && pgpx_wire_is_at_reset_behind(wire));
}

#define PGPX_WIRE_SMALL_MAX	(1024 * 1024)	/* of most types */
#define PGPX_WIRE_DISCARD_MAX	(1024 * 1024)	/* of an answer to a reset */

/*
 * Return the maximum length of a message of this type, with the length word.  A
 * longer one breaks the stream.  A value can be as long as a server's buffer,
 * and errors and notices can quote values and statements.
 */
static inline size_t
pgpx_wire_max_length(const PgpxWire *wire, char type)
{
	if (wire->discarding)
		return PGPX_WIRE_DISCARD_MAX - wire->discarded;
	if (type == 'D' || type == 'd' || type == 'E' || type == 'N')
		return MaxAllocSize + 4;
	return PGPX_WIRE_SMALL_MAX;
}

/*
 * Return the reason why a stream has ended.  error: the errno of the first
 * system call that has failed; 0: none has failed.
 */
extern const char *pgpx_wire_end_reason(int error);

/*
 * Mark the stream as broken.  The first reason is kept and is not copied.
 * Return PGPX_EV_BROKEN.
 */
extern PgpxWireEvent pgpx_wire_break(PgpxWire *wire, const char *reason);

/*
 * pgpx_wire_next
 *		Consume messages from the buffer up to the next event and return it.
 *
 * *msg is the message of the event.  Return PGPX_EV_NEED_INPUT if the buffer
 * has no complete message.  May raise an out-of-memory error.
 */
extern PgpxWireEvent pgpx_wire_next(PgpxWire *wire, PgpxWireMessage *msg);

/*
 * pgpx_wire_fill
 *		Read the available input into the buffer without blocking.
 *
 * Return the number of bytes read; 0 if none is available; -1 at the end of the
 * stream or on an error.  After -1, pgpx_wire_next returns the complete
 * messages in the buffer and then PGPX_EV_BROKEN.  *full is true if the read
 * filled the buffer, so that more input may be available.
 *
 * Raise 53200 if there is no memory for input.  If wire->no_oom is set, return
 * -1 instead.  The stream is not broken then, and the call can be repeated.
 */
extern ssize_t pgpx_wire_fill(PgpxWire *wire, bool *full);

/*
 * pgpx_wire_is_answered
 *		Return whether the caller can process the answer now.
 *
 * True if the answer is complete, or if no more of it will arrive until the
 * caller has processed what is in the buffer, e.g. an error of the stream or a
 * COPY.  Consume nothing from the buffer.
 *
 * *scanned: number of bytes already checked; the caller sets it to 0 when it
 * sends the statement.
 */
extern bool pgpx_wire_is_answered(const PgpxWire *wire, size_t *scanned);

/*
 * pgpx_wire_flush
 *		Send the output buffer without blocking.
 *
 * Return 1 if all was sent; 0 if bytes are left; -1 if the socket accepts no
 * more output.  After -1 the messages that the remote sent can still be read.
 */
extern int	pgpx_wire_flush(PgpxWire *wire);

/*
 * pgpx_wire_abandon
 *		Discard the unsent part of the output buffer.
 *
 * If no byte of the exchange has been sent, the stream is again in the state
 * before it: at a boundary, or within the answer to a reset.  Otherwise the
 * stream is marked as broken, because the remote has received a part of it.
 */
extern void pgpx_wire_abandon(PgpxWire *wire);

/* --- the writer */

/* Send Query with one or several statements. */
extern void pgpx_wire_send_query(PgpxWire *wire, const char *sql);

/*
 * A statement in the extended protocol, with commands that precede it.  All of
 * it is sent with one Sync, so after an error the server executes none of the
 * rest.
 */
typedef struct PgpxPipeline
{
	int			nbefore;
	const char *const *before;	/* commands without parameters and rows */
	int			ncloses;
	const char *const *closes;	/* to close after the commands: each is 'P' or
								 * 'S' and the name of a portal or statement */
	const PgpxStatement *statement;
	const char *name;			/* of the statement, "": unnamed; NULL: no
								 * statement */
	bool		parse;			/* the statement does not exist yet */
	const char *portal;			/* name of the portal, "": unnamed */
	bool		resume;			/* the portal exists: send only Execute */
	bool		describe;		/* required with parse */
	bool		describe_only;	/* describe the result of the unnamed
								 * statement, and execute nothing */
	bool		can_omit_describe;	/* .. if the statement was parsed before */
	int			nformats;		/* 0: all columns in text; or the number of
								 * columns: with any other the remote rejects
								 * the statement before it executes it */
	const int16 *formats;		/* of each column: 0 text, 1 binary */
	uint32		max_rows;		/* limit on the rows returned; 0: none */
} PgpxPipeline;

/*
 * Return the pipeline of one statement without a name: Parse, Bind, Describe,
 * Execute, Sync.
 */
static inline PgpxPipeline
pgpx_wire_pipeline_of(const PgpxStatement *statement, int nformats,
					  const int16 *formats)
{
	PgpxPipeline pipeline = {
		.statement = statement,
		.name = "",
		.portal = "",
		.parse = true,
		.describe = true,
		.nformats = nformats,
		.formats = formats,
	};

	return pipeline;
}

/* Send the commands and the statement of a pipeline, and Sync. */
extern void pgpx_wire_send_pipeline(PgpxWire *wire,
									const PgpxPipeline *pipeline);

/*
 * pgpx_wire_put_pipeline
 *		Write the messages of pgpx_wire_send_pipeline, without a marker, into a
 *		buffer that another session sends.
 */
extern void pgpx_wire_put_pipeline(StringInfo buf,
								   const PgpxPipeline *pipeline);

/*
 * pgpx_wire_put_prefix
 *		Write the beginning of the last exchange of the lease "sender" and
 *		return its length.
 *
 * The caller appends the statement of the next lease.  The beginning is the
 * marker, and if "reset" is true, Parse, Bind and Execute of DISCARD ALL, which
 * a server commits inside its Execute from 13.8, 14.5 and 15.0 on.
 */
extern size_t pgpx_wire_put_prefix(char buf[PGPX_WIRE_PREFIX_MAX],
								   uint64 sender, bool reset);

/*
 * pgpx_wire_send_reset
 *		Send ROLLBACK if a transaction is open, then the reset command, then the
 *		start commands.
 *
 * reset_command, start_commands: may be empty.  final: the lease ends with this
 * exchange, and another process may read the answer.  Return PGPX_SENT_* bits;
 * 0 if nothing was sent.
 */
extern int	pgpx_wire_send_reset(PgpxWire *wire, const char *reset_command,
								 const char *start_commands, bool final);

/*
 * pgpx_wire_send_reset_behind
 *		Send DISCARD ALL behind the statement that is in the output buffer.
 *
 * It is the final exchange of the lease, which sends nothing after it.  The
 * reader returns PGPX_EV_READY twice: at the end of the statement, and at the
 * end of the reset.  If no message of the answer to the reset was read, and the
 * input buffer is empty, another process can read that answer after
 * pgpx_wire_begin.
 */
extern void pgpx_wire_send_reset_behind(PgpxWire *wire);

/*
 * pgpx_wire_send_check
 *		Send an exchange of the marker alone: a round trip without a statement.
 */
extern void pgpx_wire_send_check(PgpxWire *wire);

/* Return the output buffer. */
extern StringInfo pgpx_wire_output(PgpxWire *wire);

/* --- The bodies of messages ----------------------------------------------
 *
 * The pgpx_wire_parse_* functions decode the body of one message and return
 * false if it is malformed.  Texts that they return point into the message.
 */

typedef struct PgpxField
{
	char	   *data;			/* not NUL-terminated; NULL for SQL's NULL */
	int			len;
} PgpxField;

typedef struct PgpxColumn
{
	const char *name;
	Oid			type;
	int32		typmod;
	int16		format;
} PgpxColumn;

/* Fields of ErrorResponse and NoticeResponse; NULL if missing. */
typedef struct PgpxRemoteFields
{
	const char *severity;		/* the untranslated one if the remote sent it */
	const char *sqlstate;
	const char *primary;
	const char *detail;
	const char *hint;
	const char *context;
	const char *position;		/* in the statement, in characters from 1 */
	const char *query;			/* internal query in which the error occurred */
	const char *query_position; /* in the internal query */
	const char *routine;		/* C function that raised the error */
} PgpxRemoteFields;

/* Parse a DataRow; false unless it has exactly nfields fields. */
extern bool pgpx_wire_parse_row(const PgpxWireMessage *msg, int nfields,
								PgpxField *fields);

/* Return the number of columns of a RowDescription, -1 if malformed. */
extern int	pgpx_wire_parse_ncolumns(const PgpxWireMessage *msg);

/* Parse a RowDescription; ncolumns is from pgpx_wire_parse_ncolumns. */
extern bool pgpx_wire_parse_columns(const PgpxWireMessage *msg, int ncolumns,
									PgpxColumn *columns);

/* Return the row count of a CommandComplete; 0 if its tag has none. */
extern int64 pgpx_wire_parse_command(const PgpxWireMessage *msg);

/* Parse an ErrorResponse or NoticeResponse. */
extern bool pgpx_wire_parse_error(const PgpxWireMessage *msg,
								  PgpxRemoteFields *fields);

/* Return whether the remote session has ended with this error. */
extern bool pgpx_wire_is_fatal(const PgpxRemoteFields *fields);

#endif							/* PGPX_WIRE_H */
