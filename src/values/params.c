/*-------------------------------------------------------------------------
 *
 * params.c
 *	  Conversion of arguments to parameters of a remote statement.
 *
 * The text of a value depends on DateStyle, IntervalStyle and
 * extra_float_digits.  As in postgres_fdw, values are written in styles that
 * the remote server reads correctly whatever its settings are.
 *
 *-------------------------------------------------------------------------
 */
#include "values/params.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "base/debug_point.h"
#include "values/rows.h"

int
pgpx_params_begin_styles(bool catalog_path)
{
	int			level;

	if (!catalog_path && DateStyle == USE_ISO_DATES &&
		IntervalStyle == INTSTYLE_POSTGRES && extra_float_digits >= 1)
		return 0;
	level = NewGUCNestLevel();
	if (DateStyle != USE_ISO_DATES)
		pgpx_styles_set("datestyle", "ISO");
	if (IntervalStyle != INTSTYLE_POSTGRES)
		pgpx_styles_set("intervalstyle", "postgres");
	if (extra_float_digits < 1)
		pgpx_styles_set("extra_float_digits", "3");
	if (catalog_path)
		pgpx_styles_set("search_path", "pg_catalog");
	return level;
}

void
pgpx_params_end_styles(int level)
{
	if (level != 0)
		AtEOXact_GUC(true, level);
}

bool
pgpx_params_need_catalog_path(Oid type)
{
	Oid			element;

	if (!OidIsValid(type))
		return false;			/* the caller raises an error */
	type = getBaseType(type);
	if (OidIsValid(element = get_element_type(type)))
		type = getBaseType(element);
	switch (type)
	{
		case REGPROCOID:
		case REGPROCEDUREOID:
		case REGOPEROID:
		case REGOPERATOROID:
		case REGCLASSOID:
		case REGTYPEOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
		case REGCOLLATIONOID:
			return true;
		default:
			break;
	}

	/* other types can contain one of these, or call any function */
	return type >= FirstGenbkiObjectId && get_typtype(type) != TYPTYPE_ENUM;
}

/*
 * Convert the elements of an array to parameters, with the output function of
 * their type.  texts: the elements have the storage of text, whatever their
 * type is.
 */
static void
from_array(ArrayType *array, bool texts, PgpxStatement *statement)
{
	Oid			type = ARR_ELEMTYPE(array);
	int16		len = -1;
	bool		byval = false;
	char		align = TYPALIGN_INT;
	Datum	   *elements;
	bool	   *nulls;
	const char **values;
	Oid			output;
	bool		varlena;
	FmgrInfo	flinfo;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("array of parameters must have one dimension"),
				 errdetail("The array has %d dimensions.", ARR_NDIM(array))));

	statement->nparams = 0;
	statement->values = NULL;
	if (ARR_NDIM(array) == 0)
		return;					/* no parameters: the most common call */

	/* texts, the second most common parameters, need no catalog lookup */
	texts |= type == TEXTOID;
	if (!texts)
	{
		get_typlenbyvalalign(type, &len, &byval, &align);
		getTypeOutputInfo(type, &output, &varlena);
		fmgr_info(output, &flinfo);
	}
	deconstruct_array(array, type, len, byval, align, &elements, &nulls,
					  &statement->nparams);
	values = palloc0(sizeof(char *) * Max(statement->nparams, 1));
	for (int i = 0; i < statement->nparams; i++)
		if (!nulls[i])
			values[i] = texts ? TextDatumGetCString(elements[i]) :
				OutputFunctionCall(&flinfo, elements[i]);
	statement->values = values;
}

pg_noreturn static void
raise_null_array(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("array of parameters must not be null")));
}

/* As pgpx_params_text, in the current styles. */
static char *
value_text(Oid type, Datum value)
{
	Oid			output;
	bool		varlena;

	getTypeOutputInfo(type, &output, &varlena);
	return OidOutputFunctionCall(output, value);
}

/*
 * Convert the arguments from "at" on, of any types, with their output
 * functions; or the elements of an array that was passed as VARIADIC.
 */
static void
from_any(FunctionCallInfo fcinfo, int at, PgpxStatement *statement)
{
	int			level;
	bool		catalog_path = false;
	const char **values;

	for (int i = at; i < PG_NARGS(); i++)
		catalog_path |= pgpx_params_need_catalog_path(
			get_fn_expr_argtype(fcinfo->flinfo, i));
	level = pgpx_params_begin_styles(catalog_path);
	if (get_fn_expr_variadic(fcinfo->flinfo))
	{
		if (PG_ARGISNULL(at))
			raise_null_array();
		if (!OidIsValid(
				get_base_element_type(get_fn_expr_argtype(fcinfo->flinfo, at))))
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("VARIADIC argument must be an array")));
		from_array(PG_GETARG_ARRAYTYPE_P(at), false, statement);
		pgpx_params_end_styles(level);
		return;
	}

	statement->nparams = PG_NARGS() - at;
	values = palloc0(sizeof(char *) * Max(statement->nparams, 1));
	for (int i = 0; i < statement->nparams; i++)
	{
		Oid			type = get_fn_expr_argtype(fcinfo->flinfo, at + i);

		if (!OidIsValid(type))
			ereport(ERROR,
					(errcode(ERRCODE_INDETERMINATE_DATATYPE),
					 errmsg("could not determine data type of parameter $%d", i + 1)));
		if (!PG_ARGISNULL(at + i))
			values[i] = value_text(type, PG_GETARG_DATUM(at + i));
	}
	statement->values = values;
	pgpx_params_end_styles(level);
}

void
pgpx_params_read(FunctionCallInfo fcinfo, int at, PgpxStatement *statement)
{
	if (get_func_variadictype(fcinfo->flinfo->fn_oid) == ANYOID)
	{
		from_any(fcinfo, at, statement);
		return;
	}
	statement->nparams = 0;
	statement->values = NULL;
	if (PG_NARGS() <= at)
		return;
	if (PG_ARGISNULL(at))
		raise_null_array();
	from_array(PG_GETARG_ARRAYTYPE_P(at), true, statement);
}

char *
pgpx_params_text(Oid type, Datum value)
{
	int			level =
		pgpx_params_begin_styles(pgpx_params_need_catalog_path(type));
	char	   *text = value_text(type, value);

	pgpx_params_end_styles(level);
	return text;
}
