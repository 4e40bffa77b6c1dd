/*-------------------------------------------------------------------------
 *
 * arguments.h
 *	  Arguments of the SQL functions: checks that all of them share.
 *
 * No function is STRICT: a NULL where a value is needed is an error, not a
 * silent NULL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ARGUMENTS_H
#define PGPX_ARGUMENTS_H

#include "shared/shmem.h"

/* A text argument as a C string; 22004 if it is NULL. */
extern char *pgpx_arg_text(FunctionCallInfo fcinfo, int at, const char *name);

/* The same, NULL if it is NULL. */
extern char *pgpx_arg_text_or_null(FunctionCallInfo fcinfo, int at);

/* A lease's id; 22004 if it is NULL. */
extern int64 pgpx_arg_lease(FunctionCallInfo fcinfo, int at);

/*
 * pgpx_arg_timeout
 *		An interval in milliseconds, PGPX_TIMEOUT_DEFAULT if it is NULL; 22023 if
 *		it is negative, infinite or out of range.  Rounded up, so that only 0
 *		means not to wait.
 */
extern int64 pgpx_arg_timeout(FunctionCallInfo fcinfo, int at);

/* The same as the end of a wait that begins now; NULL has none: 0. */
extern PgpxTime pgpx_arg_deadline(FunctionCallInfo fcinfo, int at);

/* An interval, not NULL, in milliseconds, beyond any range if it is infinite. */
extern double pgpx_arg_interval(FunctionCallInfo fcinfo, int at);

/* The same for an error text. */
extern char *pgpx_arg_interval_text(FunctionCallInfo fcinfo, int at);

/* 42501 unless the user owns the server, or has pg_signal_backend's privileges. */
extern void pgpx_arg_require_admin(Oid server, const char *name);

/* 22004: this one must not be null. */
pg_noreturn extern void pgpx_arg_raise_null(const char *name);

/*
 * pgpx_arg_column_list
 *		The call of a function that returns records, with what the column list of
 *		its FROM clause says; 0A000 if it has none.
 */
extern ReturnSetInfo *pgpx_arg_column_list(FunctionCallInfo fcinfo,
										   const char *function);

#endif							/* PGPX_ARGUMENTS_H */
