/*-------------------------------------------------------------------------
 *
 * wire.h
 *	  Reader and writer of the query phase of the PostgreSQL protocol (3.0).
 *
 * https://www.postgresql.org/docs/current/protocol-message-formats.html
 *
 * A connection that libpq has logged in is a byte stream; whoever holds its
 * socket at a message boundary can speak on it.  This module does, for sessions
 * on leased sockets and for the worker.  It never waits: it says when it wants
 * input, and the caller waits as befits it.
 *
 * Everything that comes in is hostile: lengths are bounded and checked before
 * use, the order of messages is checked against one table (wire_rules.c), and at any
 * doubt the stream is broken for good: nothing is ever repaired.
 *
 * No shared memory, no catalogs, no latch: fit for a fuzzer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WIRE_H
#define PGPX_WIRE_H

#include "compat.h"

#include "lib/stringinfo.h"

/* Where in a conversation the stream is. */
typedef enum PgpxWirePhase
{
	PGPX_WIRE_IDLE = 0,			/* at a boundary; nothing is in flight */
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
	PGPX_WIRE_COPY_SIMPLE,		/* a COPY that we refuse is running out */
	PGPX_WIRE_COPY_EXTENDED,
	PGPX_WIRE_OWED,				/* answers to a reset are to come */
	PGPX_WIRE_BROKEN,			/* out of step or ended; see "broken" */
	PGPX_WIRE_NPHASES
} PgpxWirePhase;

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
	PGPX_EV_NOT_RESET,			/* the reset ahead has failed; what follows has
								 * not been run, and the stream is broken */
	PGPX_EV_READY,				/* a boundary: the conversation is over */
	PGPX_EV_BROKEN				/* see "broken" for why */
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
	int			owed;			/* OWED: ReadyForQuery still to come */
	size_t		owed_bytes;		/* OWED: read so far */
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
 *		A new holder: the stream is at a boundary with "owed" answers unread.
 */
extern void pgpx_wire_begin(PgpxWire *wire, int owed);

/*
 * pgpx_wire_begin_sent
 *		A new holder, whose statement has been sent already, in so many bytes; with
 *		a reset ahead of it, or not.
 */
extern void pgpx_wire_begin_sent(PgpxWire *wire, bool reset, size_t bytes);

/* Let go of an input buffer that a large answer has made large; not if in use. */
extern void pgpx_wire_trim(PgpxWire *wire);

/* At a boundary, nothing buffered in either direction, and not broken. */
extern bool pgpx_wire_at_boundary(const PgpxWire *wire);

/* Do the parameters that decoding needs stand at their start values? */
extern bool pgpx_wire_params_pinned(const PgpxWire *wire);

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
 * pgpx_wire_answered
 *		Is the answer whole in the buffer, or is nothing more to come before
 *		something is done about it?  Nothing is taken from the buffer.
 *
 * *scanned: how much has been looked at; 0 when the question is sent.
 */
extern bool pgpx_wire_answered(const PgpxWire *wire, size_t *scanned);

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

/* --- writer: these append to the output buffer and set the phase ------- */

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
 *		The same messages into a buffer, for somebody else to send.
 */
extern void pgpx_wire_put_extended(StringInfo buf, const char *sql, int nparams,
								   const char *const *values, int nformats,
								   const int16 *formats);

/*
 * pgpx_wire_reset_ahead
 *		Parse, Bind and Execute of DISCARD ALL, without a Sync: a statement follows
 *		that must not run if this fails.  The server commits it inside Execute, so
 *		that an error of the statement does not undo it (from 13.8, 14.5, 15.0 on).
 */
extern const char *pgpx_wire_reset_ahead(size_t *len);

/*
 * pgpx_wire_send_reset
 *		The reset command, and the start commands unless empty, each with a
 *		sync of its own.  Returns how many answers are owed.
 */
extern int	pgpx_wire_send_reset(PgpxWire *wire, const char *reset_command,
								 const char *start_commands);

/*
 * pgpx_wire_refuse_copy
 *		CopyFail, as the reader does by itself on COPY FROM STDIN.  In the
 *		extended protocol the server has swallowed the Sync that was sent with
 *		the statement, so one more follows.
 */
extern void pgpx_wire_refuse_copy(PgpxWire *wire);

/* --- decoding of message bodies; false: malformed ----------------------- */

typedef struct PgpxField
{
	char	   *data;			/* not terminated; NULL: SQL's NULL */
	int			len;
} PgpxField;

/* Fields of a DataRow; there must be exactly nfields. */
extern bool pgpx_wire_parse_row(const PgpxWireMessage *msg, int nfields,
								PgpxField *fields);

/* Number of columns of a RowDescription, -1: malformed. */
extern int	pgpx_wire_parse_ncolumns(const PgpxWireMessage *msg);

typedef struct PgpxColumn
{
	const char *name;
	Oid			type;
	int32		typmod;
	int16		format;
} PgpxColumn;

extern bool pgpx_wire_parse_columns(const PgpxWireMessage *msg, int ncolumns,
									PgpxColumn *columns);

/* Rows that CommandComplete tells of; 0 for a utility command. */
extern int64 pgpx_wire_parse_command(const PgpxWireMessage *msg);

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

extern bool pgpx_wire_parse_error(const PgpxWireMessage *msg,
								  PgpxRemoteFields *fields);

#endif							/* PGPX_WIRE_H */
