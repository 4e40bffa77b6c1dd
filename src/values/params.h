/*-------------------------------------------------------------------------
 *
 * params.h
 *	  Arguments of a call as parameters, in text, of a remote statement.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_PARAMS_H
#define PGPX_PARAMS_H

#include "base/compat.h"

typedef struct PgpxParams
{
	int			n;
	const char **values;		/* NULL for SQL's NULL */
} PgpxParams;

/*
 * pgpx_params_read
 *		Converts the arguments of a call, from number "at" on, to parameters.
 *
 * any: the function is declared with VARIADIC "any" at this position; otherwise
 * with text[] or param[], whose elements have the storage of text.
 *
 * The result is allocated in the current memory context.  Raises 22004 if the
 * array is NULL, 22023 if it has several dimensions, 42P18 if the type of an
 * argument is unknown, and the errors of the output functions.
 */
extern void pgpx_params_read(FunctionCallInfo fcinfo, int at, bool any,
							 PgpxParams *params);

/*
 * pgpx_params_text
 *		Returns the text of a value, in styles that every remote reads correctly
 *		whatever its settings are.
 */
extern char *pgpx_params_text(Oid type, Datum value);

#endif							/* PGPX_PARAMS_H */
