/*-------------------------------------------------------------------------
 *
 * remote_error.h
 *	  Errors and notices of a remote server, as errors and notices here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_ERROR_H
#define PGPX_REMOTE_ERROR_H

#include "wire.h"

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

#endif							/* PGPX_REMOTE_ERROR_H */
