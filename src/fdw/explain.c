/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  EXPLAIN of foreign tables: the callbacks.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/explain.h"

#include "utils/rel.h"

#include "fdw/remote_transaction.h"
#include "fdw/scan.h"

static const FdwRoutine *postgres_fdw = NULL;

void
pgpx_explain_begin(const FdwRoutine *theirs)
{
	postgres_fdw = theirs;
}

/* Show the pool that a node has used.  Shows nothing if it was not executed. */
static void
show_pool(ExplainState *es, Oid server, Oid user)
{
	const PgpxRemoteTransaction *rt;

	if (!es->analyze || !es->verbose)
		return;
	rt = pgpx_remote_transaction_find(server, user);
	if (rt == NULL)
		return;
	ExplainPropertyText("Pool", NameStr(rt->lease->spec->server_name), es);
	if (es->timing)
		ExplainPropertyFloat("Pool Wait", "ms", rt->waited / 1000.0, 3, es);
}

void
pgpx_explain_scan(ForeignScanState *node, ExplainState *es)
{
	Oid			server;
	Oid			user;
	uint64		rows;

	postgres_fdw->ExplainForeignScan(node, es);
	if (!pgpx_scan_statistics(node, &server, &user, &rows))
		return;
	show_pool(es, server, user);
	if (es->analyze && es->verbose)
		ExplainPropertyInteger("Remote Rows", NULL, (int64) rows, es);
}

/* Show the pool of a target table. */
static void
show_target(ResultRelInfo *result_rel, EState *estate, ExplainState *es)
{
	Oid			relid = RelationGetRelid(result_rel->ri_RelationDesc);

	show_pool(es, GetForeignTable(relid)->serverid,
			  pgpx_result_rel_user(result_rel, estate));
}

void
pgpx_explain_modify(ModifyTableState *mtstate, ResultRelInfo *result_rel,
					List *fdw_private, int subplan_index, ExplainState *es)
{
	postgres_fdw->ExplainForeignModify(mtstate, result_rel, fdw_private,
									   subplan_index, es);
	show_target(result_rel, mtstate->ps.state, es);
}

void
pgpx_explain_direct_modify(ForeignScanState *node, ExplainState *es)
{
	postgres_fdw->ExplainDirectModify(node, es);
	if (node->resultRelInfo != NULL)
		show_target(node->resultRelInfo, node->ss.ps.state, es);
}
