/*-------------------------------------------------------------------------
 *
 * fn_args.h
 *	  Arguments of the SQL functions: checks that all of them share.
 *
 * No function is STRICT: a NULL where a value is needed is an error, not a
 * silent NULL.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_FN_ARGS_H
#define PGPX_FN_ARGS_H

#include "compat.h"

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

#endif							/* PGPX_FN_ARGS_H */
