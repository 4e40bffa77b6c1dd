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

/*
 * Return whether the text of a value of this type can depend on search_path.  A
 * regclass, for example, is written with its schema if search_path does not
 * contain that schema.
 */
static bool
needs_catalog_path(Oid type)
{
	Oid			element;

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

void
pgpx_params_add_type(PgpxParamTypes *types, Oid type)
{
	Size		size = sizeof(FmgrInfo) * (types->n + 1);
	Oid			output;
	bool		varlena;

	types->outputs = types->n == 0 ? palloc(size) :
		repalloc(types->outputs, size);
	getTypeOutputInfo(type, &output, &varlena);
	fmgr_info(output, &types->outputs[types->n++]);
	types->catalog_path |= needs_catalog_path(type);
}

/*
 * Set DateStyle, IntervalStyle and extra_float_digits so that every remote reads
 * the texts of output functions correctly, and search_path if their texts depend
 * on it.  Return a GUC nest level for AtEOXact_GUC, or 0 if no setting had to be
 * changed.  After an error the abort of the transaction restores the settings.
 */
static int
begin_styles(bool catalog_path)
{
	int			level;

	if (!catalog_path && DateStyle == USE_ISO_DATES &&
		IntervalStyle == INTSTYLE_POSTGRES && extra_float_digits >= 1)
		return 0;
	level = NewGUCNestLevel();
	if (DateStyle != USE_ISO_DATES)
		pgpx_set_local("datestyle", "ISO");
	if (IntervalStyle != INTSTYLE_POSTGRES)
		pgpx_set_local("intervalstyle", "postgres");
	if (extra_float_digits < 1)
		pgpx_set_local("extra_float_digits", "3");
	if (catalog_path)
		pgpx_set_local("search_path", "pg_catalog");
	return level;
}

const char **
pgpx_params_convert(PgpxParamTypes *types, int nrows,
					const NullableDatum *values)
{
	int			n = types->n * nrows;
	const char **texts = palloc0(sizeof(char *) * Max(n, 1));
	int			level = begin_styles(types->catalog_path);

	/* until AtEOXact_GUC no code may need the session's styles */
	for (int i = 0; i < n; i++)
		if (!values[i].isnull)
			texts[i] = OutputFunctionCall(&types->outputs[i % types->n],
										  values[i].value);
	if (level != 0)
		AtEOXact_GUC(true, level);
	return texts;
}

/*
 * Convert the elements of an array to parameters.  texts: they have the storage
 * of text, whatever their type is.
 */
static void
from_array(ArrayType *array, bool texts, PgpxStatement *statement)
{
	Oid			type = ARR_ELEMTYPE(array);
	int16		len = -1;
	bool		byval = false;
	char		align = TYPALIGN_INT;
	PgpxParamTypes types = {0};
	Datum	   *elements;
	bool	   *nulls;
	NullableDatum *values;
	int			n;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("array of parameters must have one dimension"),
				 errdetail("The array has %d dimensions.", ARR_NDIM(array))));
	if (ARR_NDIM(array) == 0)
		return;					/* no parameters: the most common call */

	/* texts, the second most common parameters, need no catalog lookup */
	texts |= type == TEXTOID;
	if (!texts)
	{
		get_typlenbyvalalign(type, &len, &byval, &align);
		pgpx_params_add_type(&types, type);
	}
	deconstruct_array(array, type, len, byval, align, &elements, &nulls, &n);
	statement->nparams = n;
	if (texts)
	{
		const char **copies = palloc0(sizeof(char *) * Max(n, 1));

		for (int i = 0; i < n; i++)
			if (!nulls[i])
				copies[i] = TextDatumGetCString(elements[i]);
		statement->values = copies;
		return;
	}
	values = palloc(sizeof(NullableDatum) * Max(n, 1));
	for (int i = 0; i < n; i++)
		values[i] = (NullableDatum){elements[i], nulls[i]};
	statement->values = pgpx_params_convert(&types, n, values);
}

/* Convert the arguments from "at" on, of any types. */
static void
from_any(FunctionCallInfo fcinfo, int at, PgpxStatement *statement)
{
	PgpxParamTypes types = {0};
	NullableDatum *values;

	values = palloc(sizeof(NullableDatum) * PG_NARGS());
	for (int i = at; i < PG_NARGS(); i++)
	{
		Oid			type = get_fn_expr_argtype(fcinfo->flinfo, i);

		if (!OidIsValid(type))
			ereport(ERROR,
					(errcode(ERRCODE_INDETERMINATE_DATATYPE),
					 errmsg("could not determine data type of parameter $%d",
							i - at + 1)));
		pgpx_params_add_type(&types, type);
		values[i - at] = fcinfo->args[i];
	}
	statement->nparams = types.n;
	statement->values = pgpx_params_convert(&types, 1, values);
}

void
pgpx_params_read(FunctionCallInfo fcinfo, int at, PgpxStatement *statement)
{
	bool		any;
	Oid			type;

	statement->nparams = 0;
	statement->values = NULL;
	if (PG_NARGS() <= at)
		return;
	any = get_func_variadictype(fcinfo->flinfo->fn_oid) == ANYOID;
	if (any && !get_fn_expr_variadic(fcinfo->flinfo))
	{
		from_any(fcinfo, at, statement);
		return;
	}
	if (PG_ARGISNULL(at))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("array of parameters must not be null")));
	type = get_fn_expr_argtype(fcinfo->flinfo, at);
	if (any && !OidIsValid(get_base_element_type(type)))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("VARIADIC argument must be an array")));
	from_array(PG_GETARG_ARRAYTYPE_P(at), !any, statement);
}

const char *
pgpx_params_text(Oid type, Datum value)
{
	PgpxParamTypes types = {0};

	pgpx_params_add_type(&types, type);
	return pgpx_params_convert(&types, 1, &(NullableDatum){value, false})[0];
}
