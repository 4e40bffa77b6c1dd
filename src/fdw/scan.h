/*-------------------------------------------------------------------------
 *
 * scan.h
 *	  Scans of foreign tables and of foreign joins: the callbacks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SCAN_H
#define PGPX_SCAN_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

#include "fdw/remote_transaction.h"

extern void pgpx_scan_begin(ForeignScanState *node, int eflags);
extern TupleTableSlot *pgpx_scan_iterate(ForeignScanState *node);
extern void pgpx_scan_rescan(ForeignScanState *node);
extern void pgpx_scan_end(ForeignScanState *node);

/* scans that an Append reads at the same time */
extern void pgpx_scan_async_request(AsyncRequest *request);
extern void pgpx_scan_async_configure_wait(AsyncRequest *request);
extern void pgpx_scan_async_notify(AsyncRequest *request);

/*
 * pgpx_scan_statistics
 *		Return the remote transaction and the number of rows of a scan.
 *
 * The rows are those that were read and converted, before local filters.
 * Returns NULL if the scan was not executed.
 */
extern const PgpxRemoteTransaction *
pgpx_scan_statistics(ForeignScanState *node, uint64 *rows);

/*
 * pgpx_scan_tupdesc
 *		Return the tuple descriptor of a scan's remote rows.
 *
 * A whole-row reference of a join is of type record in the executor's
 * descriptor; here it has the table's row type.
 */
extern TupleDesc pgpx_scan_tupdesc(ForeignScanState *node);

/*
 * pgpx_scan_context
 *		Add the column to the context of an error in the conversion of a value,
 *		as postgres_fdw does.  arg: the ForeignScanState.
 */
extern void pgpx_scan_context(void *arg, AttrNumber attnum);

#endif							/* PGPX_SCAN_H */
