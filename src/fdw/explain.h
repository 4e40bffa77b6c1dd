/*-------------------------------------------------------------------------
 *
 * explain.h
 *	  EXPLAIN of foreign tables: the callbacks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_EXPLAIN_H
#define PGPX_EXPLAIN_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

/*
 * pgpx_explain_begin
 *		Remember the callbacks of postgres_fdw.
 *
 * The callbacks below call those of postgres_fdw.  For EXPLAIN (ANALYZE,
 * VERBOSE) they add the pool, and the time that this transaction has waited for
 * its lease.
 */
extern void pgpx_explain_begin(const FdwRoutine *theirs);

extern void pgpx_explain_scan(ForeignScanState *node, ExplainState *es);
extern void pgpx_explain_modify(ModifyTableState *mtstate,
								ResultRelInfo *result_rel, List *fdw_private,
								int subplan_index, ExplainState *es);
extern void pgpx_explain_direct_modify(ForeignScanState *node,
									   ExplainState *es);

#endif							/* PGPX_EXPLAIN_H */
