/*-------------------------------------------------------------------------
 *
 * remote_message.h
 *	  The errors and notices of the remote, and libpq's, as local ones.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_MESSAGE_H
#define PGPX_REMOTE_MESSAGE_H

#include "protocol/wire.h"

/*
 * pgpx_libpq_one_line
 *		Copy a message of libpq to one line of less than "size" bytes.
 *
 * Lines are joined with "; ", runs of blanks and tabs become one blank, and
 * lines that only mark an error position are left out.
 */
extern void pgpx_libpq_one_line(char *to, size_t size, const char *from);

/* Parse an SQLSTATE, five of 0-9 and A-Z.  Return "fallback" if invalid. */
extern int	pgpx_parse_sqlstate(const char *sqlstate, int fallback);

/*
 * pgpx_libpq_strip_sqlstates
 *		Remove the SQLSTATE and the location from a verbose message of libpq, in
 *		place.  Return whether the remote accepts no more connections.
 *
 * The message then reads like one of default verbosity.  libpq reports the
 * SQLSTATE of a rejected login in verbose messages only, as "severity:
 * SQLSTATE: text" followed by a line "LOCATION: ..".
 *
 * A remote that is full reports 53300 (too_many_connections).  PgBouncer
 * reports 08P01 for all errors, so the text is compared with its messages, and
 * with those of the server behind it.
 */
extern bool pgpx_libpq_strip_sqlstates(char *text);

/*
 * Return whether a verbose message of libpq about a failed login has an
 * SQLSTATE of invalid authorization (28P01, 28000).
 */
extern bool pgpx_libpq_is_unauthorized(const char *text);

/* A copy of an ErrorResponse, allocated in the current memory context. */
typedef struct PgpxRemoteError
{
	bool		set;
	bool		fatal;			/* the remote session has ended with it */
	int			sqlstate;
	const char *primary;
	const char *detail;
	const char *hint;
	const char *context;
	int			position;		/* in the statement, in characters; 0: none */
	const char *query;			/* internal query in which the error occurred */
	int			query_position; /* in the internal query; 0: none */
} PgpxRemoteError;

/*
 * pgpx_remote_error_copy
 *		Copy an ErrorResponse.
 *
 * The texts are made valid in the database's encoding.  A malformed message
 * yields an error with a default message and SQLSTATE.
 */
extern void pgpx_remote_error_copy(PgpxRemoteError *error,
								   const PgpxWireMessage *msg);

/* Copy an error with its texts to the current memory context. */
extern void pgpx_remote_error_dup(PgpxRemoteError *copy,
								  const PgpxRemoteError *error);

/*
 * pgpx_remote_error_raise
 *		Raise a remote error with its own SQLSTATE and the server as context.
 *
 * The statement is reported as the internal query if the remote reported an
 * error position in it, else in the context.
 *
 * sql: the statement as it was sent, valid in the database's encoding; NULL for
 * a statement that this extension sent by itself, which is not shown.
 */
pg_noreturn extern void pgpx_remote_error_raise(const PgpxRemoteError *error,
												const char *sql,
												const char *server);

/*
 * pgpx_remote_error_report
 *		Report a remote error in the form of postgres_fdw and dblink: without a
 *		position, and with "context" as the last line of the context.
 */
extern void pgpx_remote_error_report(int elevel, const PgpxRemoteError *error,
									 const char *context);

/*
 * pgpx_remote_notice
 *		Report a NoticeResponse of the remote.
 *
 * elevel LOG writes it to the server log only.  elevel 0 sends it to the client
 * with the remote's severity, or as a NOTICE if that is LOG or unknown.  A
 * warning is not written to the server log.  A cancel is deferred meanwhile, and
 * also the end of the session if the answer to a COMMIT may follow (commits).
 */
extern void pgpx_remote_notice(const PgpxWireMessage *msg, int elevel,
							   const char *server, bool commits);

/*
 * pgpx_text_clean
 *		Make a text of unknown encoding valid in the database's encoding.
 *
 * Work in place and return the text.  A valid text is not changed.  If only the
 * last character is incomplete, it is removed.  In any other invalid text each
 * byte that is not ASCII is replaced with "?".
 */
extern char *pgpx_text_clean(char *text);

#endif							/* PGPX_REMOTE_MESSAGE_H */
