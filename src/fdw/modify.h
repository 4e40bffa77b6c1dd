/*-------------------------------------------------------------------------
 *
 * modify.h
 *	  INSERT, UPDATE, DELETE, COPY FROM and TRUNCATE of foreign tables.
 *
 * These are callbacks of FdwRoutine; see PostgreSQL's documentation of
 * foreign-data wrappers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_MODIFY_H
#define PGPX_MODIFY_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

#include "fdw/remote_transaction.h"

extern void pgpx_modify_begin(ModifyTableState *mtstate,
							  ResultRelInfo *result_rel, List *fdw_private,
							  int subplan_index, int eflags);
extern TupleTableSlot *pgpx_modify_insert(EState *estate,
										  ResultRelInfo *result_rel,
										  TupleTableSlot *slot,
										  TupleTableSlot *plan_slot);
extern TupleTableSlot **pgpx_modify_insert_batch(EState *estate,
												 ResultRelInfo *result_rel,
												 TupleTableSlot **slots,
												 TupleTableSlot **plan_slots,
												 int *nslots);
extern int	pgpx_modify_batch_size(ResultRelInfo *result_rel);
extern TupleTableSlot *pgpx_modify_update(EState *estate,
										  ResultRelInfo *result_rel,
										  TupleTableSlot *slot,
										  TupleTableSlot *plan_slot);
extern TupleTableSlot *pgpx_modify_delete(EState *estate,
										  ResultRelInfo *result_rel,
										  TupleTableSlot *slot,
										  TupleTableSlot *plan_slot);
extern void pgpx_modify_end(EState *estate, ResultRelInfo *result_rel);

/* INSERT without a plan of its own: COPY FROM, and rows routed to a partition */
extern void pgpx_modify_begin_insert(ModifyTableState *mtstate,
									 ResultRelInfo *result_rel);
extern void pgpx_modify_end_insert(EState *estate, ResultRelInfo *result_rel);

/* Return the remote transaction of a target; NULL if it was not executed. */
extern const PgpxRemoteTransaction *
pgpx_modify_transaction(const ResultRelInfo *result_rel);

/*
 * pgpx_modify_check_estimate
 *		Note that postgres_fdw plans on a connection of its own to a server.
 *
 * From then on, TRUNCATE of the server's tables raises an error in this
 * transaction.  Errors: 0A000 if the transaction has truncated such a table.
 */
extern void pgpx_modify_check_estimate(Oid server);

extern void pgpx_modify_truncate(List *rels, DropBehavior behavior,
								 bool restart_seqs);

extern void pgpx_direct_modify_begin(ForeignScanState *node, int eflags);
extern TupleTableSlot *pgpx_direct_modify_iterate(ForeignScanState *node);
extern void pgpx_direct_modify_end(ForeignScanState *node);
extern const PgpxRemoteTransaction *
pgpx_direct_modify_transaction(const ForeignScanState *node);

#endif							/* PGPX_MODIFY_H */
