/*-------------------------------------------------------------------------
 *
 * params.h
 *	  Arguments of a call as parameters of a remote statement: texts.
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
 *		The parameters of a call: its arguments from "at" on.
 *
 * any: the function was declared with VARIADIC "any" there, else with text[] or
 * param[], whose elements are stored as texts are.
 */
extern void pgpx_params_read(FunctionCallInfo fcinfo, int at, bool any,
							 PgpxParams *params);

/*
 * pgpx_params_text
 *		The text of a value, in the styles that no setting of a remote can misread.
 */
extern char *pgpx_params_text(Oid type, Datum value);

#endif							/* PGPX_PARAMS_H */
