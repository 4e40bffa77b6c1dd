/*-------------------------------------------------------------------------
 *
 * query_params.c
 *	  Parameters of a remote statement: expressions of the executor.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/query_params.h"

#include "nodes/nodeFuncs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "values/params.h"

void
pgpx_query_params_begin(PgpxQueryParams *params, List *exprs, PlanState *node)
{
	ListCell   *lc;

	params->n = list_length(exprs);
	if (params->n == 0)
		return;
	params->outputs = palloc(sizeof(FmgrInfo) * params->n);
	foreach(lc, exprs)
	{
		Oid			type = exprType(lfirst(lc));
		Oid			output;
		bool		varlena;

		getTypeOutputInfo(type, &output, &varlena);
		fmgr_info(output, &params->outputs[foreach_current_index(lc)]);
		params->catalog_path |= pgpx_params_need_catalog_path(type);
	}
	params->exprs = ExecInitExprList(exprs, node);
	params->cxt = AllocSetContextCreate(CurrentMemoryContext,
										"pgpool_ext parameters",
										ALLOCSET_SMALL_SIZES);
}

const char **
pgpx_query_params_evaluate(PgpxQueryParams *params, ExprContext *econtext)
{
	const char **texts;
	NullableDatum *values;
	MemoryContext old;
	ListCell   *lc;
	int			level;

	if (params->n == 0)
		return NULL;
	MemoryContextReset(params->cxt);
	old = MemoryContextSwitchTo(params->cxt);
	texts = palloc(sizeof(char *) * params->n);
	values = palloc(sizeof(NullableDatum) * params->n);

	/* before the styles are set, because an expression can depend on them */
	foreach(lc, params->exprs)
	{
		NullableDatum *value = &values[foreach_current_index(lc)];

		value->value = ExecEvalExpr((ExprState *) lfirst(lc), econtext,
									&value->isnull);
	}
	level = pgpx_params_begin_styles(params->catalog_path);
	for (int i = 0; i < params->n; i++)
		texts[i] = values[i].isnull ? NULL :
			OutputFunctionCall(&params->outputs[i], values[i].value);
	pgpx_params_end_styles(level);
	MemoryContextSwitchTo(old);
	return texts;
}
