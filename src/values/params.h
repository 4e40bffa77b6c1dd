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

/*
 * pgpx_params_text
 *		Return the text of a value, in styles that every remote reads correctly,
 *		whatever its settings are.
 */
extern char *pgpx_params_text(Oid type, Datum value);

/*
 * pgpx_params_begin_styles
 *		Set DateStyle, IntervalStyle and extra_float_digits so that every remote
 *		reads the texts of output functions correctly.
 *
 * catalog_path: also set search_path to pg_catalog; see
 * pgpx_params_need_catalog_path.  Return a GUC nest level for
 * pgpx_params_end_styles, or 0 if no setting had to be changed.  After an error
 * the abort of the transaction restores the settings.
 */
extern int	pgpx_params_begin_styles(bool catalog_path);
extern void pgpx_params_end_styles(int level);

/*
 * pgpx_params_need_catalog_path
 *		Return whether the text of a value of this type can depend on
 *		search_path.
 *
 * A regclass, for example, is written with its schema if search_path does not
 * contain that schema.
 */
extern bool pgpx_params_need_catalog_path(Oid type);

#endif							/* PGPX_PARAMS_H */
