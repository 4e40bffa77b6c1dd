/*-------------------------------------------------------------------------
 *
 * handler.h
 *	  The handler of foreign tables on pools: its callbacks, and its use by
 *	  postgres_fdw.
 *
 * The handler function in handler.c returns an FdwRoutine with the callbacks
 * that are declared here.  scan.c (scans and direct modifications), modify.c
 * (other writes) and utility.c (ANALYZE and IMPORT FOREIGN SCHEMA) implement
 * them.  PostgreSQL's documentation of foreign-data wrappers describes what
 * each callback must do.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_HANDLER_H
#define PGPX_HANDLER_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

#include "fdw/remote_transaction.h"

/*
 * For hooks.c: raise an error if the object is an attached wrapper that is
 * dropped because its handler is dropped, for example by DROP EXTENSION
 * pgpool_ext CASCADE or DROP OWNED CASCADE.
 */
extern void pgpx_attach_check_drop(Oid classId, Oid objectId);

/*
 * pgpx_postgres_fdw_preload
 *		Load the library of postgres_fdw when the server starts, so that no
 *		session has to.
 *
 * If it cannot be loaded, each session tries it again at its first use of a
 * foreign table.
 */
extern void pgpx_postgres_fdw_preload(void);

/* scans of foreign tables and of foreign joins */
extern void pgpx_scan_begin(ForeignScanState *node, int eflags);
extern TupleTableSlot *pgpx_scan_iterate(ForeignScanState *node);
extern void pgpx_scan_rescan(ForeignScanState *node);
extern void pgpx_scan_end(ForeignScanState *node);

/* asynchronous scans: an Append reads several at the same time */
extern void pgpx_scan_async_request(AsyncRequest *request);
extern void pgpx_scan_async_configure_wait(AsyncRequest *request);
extern void pgpx_scan_async_notify(AsyncRequest *request);

/* UPDATE and DELETE that the remote executes as a whole */
extern void pgpx_direct_modify_begin(ForeignScanState *node, int eflags);
extern TupleTableSlot *pgpx_direct_modify_iterate(ForeignScanState *node);

/*
 * INSERT, UPDATE and DELETE, row by row.  pgpx_modify_begin_insert begins an
 * INSERT without a plan of its own: COPY FROM, rows routed to a partition.
 */
extern void pgpx_modify_begin(ModifyTableState *mtstate,
							  ResultRelInfo *result_rel, List *fdw_private,
							  int subplan_index, int eflags);
extern void pgpx_modify_begin_insert(ModifyTableState *mtstate,
									 ResultRelInfo *result_rel);
extern TupleTableSlot *pgpx_modify_row(EState *estate,
									   ResultRelInfo *result_rel,
									   TupleTableSlot *slot,
									   TupleTableSlot *plan_slot);
extern TupleTableSlot **pgpx_modify_insert_batch(EState *estate,
												 ResultRelInfo *result_rel,
												 TupleTableSlot **slots,
												 TupleTableSlot **plan_slots,
												 int *nslots);
extern int	pgpx_modify_batch_size(ResultRelInfo *result_rel);

/* TRUNCATE */
extern void pgpx_truncate(List *rels, DropBehavior behavior,
						  bool restart_seqs);

/*
 * Record that the transaction truncates a table of a server, or that
 * postgres_fdw plans on a connection of its own to it.  Errors: 0A000 if the
 * transaction has already done the other.
 */
extern void pgpx_truncate_note(Oid server, bool truncates);

/* ANALYZE, IMPORT FOREIGN SCHEMA */
extern bool pgpx_utility_analyze(Relation rel, AcquireSampleRowsFunc *func,
								 BlockNumber *totalpages);
extern List *pgpx_utility_import(ImportForeignSchemaStmt *stmt, Oid server);

/* ANALYZE with the statistics of the remote table */
#ifdef PGPX_HAS_IMPORT_CALLBACK
extern bool pgpx_utility_import_statistics(Relation rel, List *names,
										   int elevel);
#endif

#endif							/* PGPX_HANDLER_H */
