/*-------------------------------------------------------------------------
 *
 * arguments.h
 *	  Reads and checks the arguments of the SQL functions.
 *
 * No SQL function but param is STRICT: a NULL where a value is required raises
 * an error instead of returning NULL.
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
 * Return a text argument as a C string.  Raise 22004 if it is NULL.  name: of
 * the argument, for the error.
 */
extern char *pgpx_arg_text(FunctionCallInfo fcinfo, int at, const char *name);

/* As pgpx_arg_text, but return NULL if the argument is NULL or missing. */
extern char *pgpx_arg_text_or_null(FunctionCallInfo fcinfo, int at);

/*
 * Read a statement: its text from argument "at", and its parameters from the
 * arguments after it.  Raise 22004 if the text is NULL, and the errors of
 * pgpx_params_read.
 */
extern void pgpx_arg_statement(FunctionCallInfo fcinfo, int at,
							   PgpxStatement *statement);

/*
 * Return the name of a pool, or the id of a lease.  Raise 55000 unless the
 * library was preloaded, and 22004 if the argument is NULL.
 */
extern char *pgpx_arg_pool(FunctionCallInfo fcinfo, int at);
extern int64 pgpx_arg_lease(FunctionCallInfo fcinfo, int at);

/*
 * pgpx_arg_timeout
 *		Return a timeout in milliseconds: 0 (no limit) for an interval of 0 or
 *		infinity, PGPX_TIMEOUT_DEFAULT for NULL.
 *
 * 0 disables a timeout in all arguments, options and settings, as in
 * PostgreSQL.  Functions that must not wait have names that start with try_.
 * The interval is rounded up, so that only an interval of 0 becomes 0.  Raise
 * 22023 if it is negative, -infinity, or longer than 10 years.
 */
extern int64 pgpx_arg_timeout(FunctionCallInfo fcinfo, int at);

/*
 * Return the deadline of a wait with this timeout that starts now; 0 (no limit)
 * if the interval is 0, infinity or NULL.  Errors: those of pgpx_arg_timeout.
 */
extern PgpxTime pgpx_arg_deadline(FunctionCallInfo fcinfo, int at);

/*
 * Return an interval in milliseconds; HUGE_VAL or -HUGE_VAL if it is infinite.
 * The argument must not be NULL.
 */
extern double pgpx_arg_interval(FunctionCallInfo fcinfo, int at);

/* Return the text of an interval, for an error message. */
extern char *pgpx_arg_interval_text(FunctionCallInfo fcinfo, int at);

/*
 * Raise 42501 unless the current user owns the server or has the privileges of
 * pg_signal_backend.  name: of the server, for the error.
 */
extern void pgpx_arg_require_admin(Oid server, const char *name);

/* Raise 22004 for an argument that must not be NULL. */
pg_noreturn extern void pgpx_arg_raise_null(const char *name);

/*
 * pgpx_arg_column_list
 *		Return the ReturnSetInfo of a call in FROM with a column list.
 *
 * Raise 0A000 if the call has no column list.  function: its name, for the
 * error.  alternative: what the hint adds, or "".
 */
extern ReturnSetInfo *pgpx_arg_column_list(FunctionCallInfo fcinfo,
										   const char *function,
										   const char *alternative);

#endif							/* PGPX_ARGUMENTS_H */
