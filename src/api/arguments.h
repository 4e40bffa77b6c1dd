/*-------------------------------------------------------------------------
 *
 * arguments.h
 *	  Reads and checks the arguments of the SQL functions.
 *
 * No SQL function is STRICT: a NULL where a value is required raises an error
 * instead of returning NULL.
 *
 * Parameter "at" is the index of the argument.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ARGUMENTS_H
#define PGPX_ARGUMENTS_H

#include "shared/shmem.h"
#include "protocol/wire.h"

/*
 * Returns a text argument as a C string; 22004 if it is NULL.  name: for the
 * error.
 */
extern char *pgpx_arg_text(FunctionCallInfo fcinfo, int at, const char *name);

/* The same; returns NULL if the argument is NULL or missing. */
extern char *pgpx_arg_text_or_null(FunctionCallInfo fcinfo, int at);

/*
 * Reads a statement: its text from argument "at", which must not be NULL, and
 * its parameters from the arguments behind it; any: as of pgpx_params_read.
 */
extern void pgpx_arg_statement(FunctionCallInfo fcinfo, int at, bool any,
							   PgpxStatement *statement);

/* Returns the id of a lease; 22004 if it is NULL. */
extern int64 pgpx_arg_lease(FunctionCallInfo fcinfo, int at);

/*
 * pgpx_arg_timeout
 *		Returns an interval in milliseconds, or PGPX_TIMEOUT_DEFAULT if it is
 *		NULL.  Rounds up, so that only an interval of 0 means not to wait.
 *		Raises 22023 if it is negative, infinite or out of range.
 */
extern int64 pgpx_arg_timeout(FunctionCallInfo fcinfo, int at);

/*
 * The same as the deadline of a wait that starts now; 0 (no limit) if it is
 * NULL.
 */
extern PgpxTime pgpx_arg_deadline(FunctionCallInfo fcinfo, int at);

/*
 * Returns an interval, which must not be NULL, in milliseconds; HUGE_VAL if it
 * is infinite.
 */
extern double pgpx_arg_interval(FunctionCallInfo fcinfo, int at);

/* Returns the same interval as text, for an error message. */
extern char *pgpx_arg_interval_text(FunctionCallInfo fcinfo, int at);

/*
 * Raises 42501 unless the current user owns the server or has the privileges
 * of pg_signal_backend.  name: of the server, for the error.
 */
extern void pgpx_arg_require_admin(Oid server, const char *name);

/* Raises 22004 for an argument that must not be null. */
pg_noreturn extern void pgpx_arg_raise_null(const char *name);

/*
 * pgpx_arg_column_list
 *		Returns the ReturnSetInfo of a call in FROM with a column list.  Raises
 *		0A000 if the call has no column list.  function: for the error.
 */
extern ReturnSetInfo *pgpx_arg_column_list(FunctionCallInfo fcinfo,
										   const char *function);

#endif							/* PGPX_ARGUMENTS_H */
