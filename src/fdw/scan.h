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

extern void pgpx_scan_begin(ForeignScanState *node, int eflags);
extern TupleTableSlot *pgpx_scan_iterate(ForeignScanState *node);
extern void pgpx_scan_rescan(ForeignScanState *node);
extern void pgpx_scan_end(ForeignScanState *node);

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
