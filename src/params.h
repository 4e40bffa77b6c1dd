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

/* Elements of argument "at", a text[]: the VARIADIC text[] form. */
extern void pgpx_params_from_text_array(FunctionCallInfo fcinfo, int at,
										PgpxParams *params);

/*
 * pgpx_params_from_any
 *		Arguments from "at" on, of any types, through their output functions,
 *		in the styles that any server reads; or the elements of an array that
 *		was given as VARIADIC.
 */
extern void pgpx_params_from_any(FunctionCallInfo fcinfo, int at,
								 PgpxParams *params);

#endif							/* PGPX_PARAMS_H */
