/*-------------------------------------------------------------------------
 *
 * params.h
 *	  Arguments of a call as parameters of a remote statement: texts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_PARAMS_H
#define PGPX_PARAMS_H

#include "compat.h"

typedef struct PgpxParams
{
	int			n;
	const char **values;		/* NULL for SQL's NULL */
} PgpxParams;

/*
 * pgpx_params_read
 *		The parameters of a call: its arguments from "at" on.
 *
 * any: the function was declared with VARIADIC "any" there, else with text[].
 */
extern void pgpx_params_read(FunctionCallInfo fcinfo, int at, bool any,
							 PgpxParams *params);

#endif							/* PGPX_PARAMS_H */
