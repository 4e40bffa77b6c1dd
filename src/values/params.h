/*-------------------------------------------------------------------------
 *
 * params.h
 *	  Conversion of arguments to parameters of a remote statement.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_PARAMS_H
#define PGPX_PARAMS_H

#include "protocol/wire.h"

/*
 * pgpx_params_read
 *		Convert the arguments of a call, from number "at" on, to the parameters
 *		of a statement.
 *
 * The function has none, or is declared with VARIADIC "any", text[] or param[]
 * at this position.  The elements of param[] have the storage of text.
 *
 * The result is allocated in the current memory context.  Raise 22004 if the
 * array is NULL, 22023 if it has several dimensions, 42P18 if the type of an
 * argument is unknown, and the errors of the output functions.
 */
extern void pgpx_params_read(FunctionCallInfo fcinfo, int at,
							 PgpxStatement *statement);

/* The types of the values of a row of parameters. */
typedef struct PgpxParamTypes
{
	int			n;
	FmgrInfo   *outputs;		/* their output functions */
	bool		catalog_path;	/* a text can depend on search_path */
} PgpxParamTypes;

/* Add the type of one more value, in the current memory context. */
extern void pgpx_params_add_type(PgpxParamTypes *types, Oid type);

/*
 * pgpx_params_convert
 *		Convert rows of values to texts, in styles that every remote reads
 *		correctly, whatever its settings are.
 *
 * values: nrows times types->n elements.  The result has as many, NULL for SQL's
 * NULL, and is allocated in the current memory context.
 */
extern const char **pgpx_params_convert(PgpxParamTypes *types, int nrows,
										const NullableDatum *values);

/* As pgpx_params_convert, for one value. */
extern const char *pgpx_params_text(Oid type, Datum value);

#endif							/* PGPX_PARAMS_H */
