/*-------------------------------------------------------------------------
 *
 * remote_message.h
 *	  Decoding of the remote's messages; its errors and notices as local ones.
 *
 * Errors and notices of a remote server, as errors and notices here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_MESSAGE_H
#define PGPX_REMOTE_MESSAGE_H

#include "protocol/wire.h"

/* The first lines of a message, on one line of less than "size" bytes. */
extern void pgpx_libpq_squeeze(char *to, size_t size, const char *from);

/*
 * pgpx_libpq_take_sqlstates
 *		Make a verbose message what it is by default, in place; true if the remote
 *		has no room for one more.
 *
 * libpq tells the SQLSTATE of a refused login in verbose messages only:
 * "severity:  SQLSTATE: text" with a line "LOCATION: .." behind it.
 */
extern bool pgpx_libpq_take_sqlstates(char *text);

/* A copy of what the remote said, in the current memory context. */
typedef struct PgpxRemoteError
{
	bool		set;
	bool		fatal;			/* the remote has ended its session with it */
	int			sqlstate;
	const char *primary;
	const char *detail;
	const char *hint;
	const char *context;
	int			position;		/* in the statement, in characters; 0: none */
	const char *query;			/* of a remote function, in which the error is */
	int			query_position; /* in it */
} PgpxRemoteError;

/*
 * pgpx_remote_error_copy
 *		Copy an ErrorResponse; texts are made valid in the database's encoding.
 */
extern void pgpx_remote_error_copy(PgpxRemoteError *error,
								   const PgpxWireMessage *msg);

/*
 * pgpx_remote_error_raise
 *		Raise a remote error with its own SQLSTATE, the server as context, and the
 *		statement: as the query that the error position refers to if the remote
 *		reported one, else in the context.
 *
 * sql: the statement as it was sent, valid in the database's encoding; NULL: one of
 * our own, which is not shown.
 */
pg_noreturn extern void pgpx_remote_error_raise(const PgpxRemoteError *error,
												const char *sql,
												const char *server);

/*
 * pgpx_remote_notice
 *		Pass a NoticeResponse on: elevel 0 takes the remote's severity, for the
 *		client (a warning does not come into the log, and what would be for a log
 *		is a notice); LOG writes it to the log only.
 */
extern void pgpx_remote_notice(const PgpxWireMessage *msg, int elevel,
							   const char *server);

/*
 * pgpx_text_clean
 *		A text of unknown encoding made valid in the database's encoding: as it
 *		is if it is valid, else with ? for what is not ASCII.  In place.
 */
extern char *pgpx_text_clean(char *text);

/*
 * pgpx_wire_answered
 *		Is the answer whole in the buffer, or is nothing more to come before
 *		something is done about it?  Nothing is taken from the buffer.
 *
 * *scanned: how much has been looked at; 0 when the question is sent.
 */
extern bool pgpx_wire_answered(const PgpxWire *wire, size_t *scanned);

/* Fields of a DataRow; there must be exactly nfields. */
extern bool pgpx_wire_parse_row(const PgpxWireMessage *msg, int nfields,
								PgpxField *fields);

/* Number of columns of a RowDescription, -1: malformed. */
extern int	pgpx_wire_parse_ncolumns(const PgpxWireMessage *msg);

extern bool pgpx_wire_parse_columns(const PgpxWireMessage *msg, int ncolumns,
									PgpxColumn *columns);

/* Rows that CommandComplete tells of; 0 for a utility command. */
extern int64 pgpx_wire_parse_command(const PgpxWireMessage *msg);

extern bool pgpx_wire_parse_error(const PgpxWireMessage *msg,
								  PgpxRemoteFields *fields);

/* Does a ParameterDescription echo the token? */
extern bool pgpx_wire_parse_token(const PgpxWireMessage *msg,
								  const PgpxWireToken *token);

#endif							/* PGPX_REMOTE_MESSAGE_H */
