/*-------------------------------------------------------------------------
 *
 * query_params.h
 *	  Parameters of a remote statement: expressions of the executor.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_QUERY_PARAMS_H
#define PGPX_QUERY_PARAMS_H

#include "base/compat.h"

typedef struct PgpxQueryParams
{
	int			n;
	List	   *exprs;			/* of ExprStates */
	FmgrInfo   *outputs;
	bool		catalog_path;	/* see pgpx_params_need_catalog_path */
	MemoryContext cxt;			/* of their texts */
} PgpxQueryParams;

/* Prepare the evaluation of fdw_exprs, in the current memory context. */
extern void pgpx_query_params_begin(PgpxQueryParams *params, List *exprs,
									PlanState *node);

/*
 * pgpx_query_params_evaluate
 *		Evaluate the parameters and return their texts, NULL for SQL's NULL.
 *
 * The texts are valid until the next call.
 */
extern const char **pgpx_query_params_evaluate(PgpxQueryParams *params,
											   ExprContext *econtext);

#endif							/* PGPX_QUERY_PARAMS_H */
