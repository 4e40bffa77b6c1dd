/*-------------------------------------------------------------------------
 *
 * direct_modify.h
 *	  UPDATE and DELETE that the remote server executes as a whole.
 *
 * These are callbacks of FdwRoutine; see PostgreSQL's documentation of
 * foreign-data wrappers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DIRECT_MODIFY_H
#define PGPX_DIRECT_MODIFY_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

extern void pgpx_direct_modify_begin(ForeignScanState *node, int eflags);
extern TupleTableSlot *pgpx_direct_modify_iterate(ForeignScanState *node);
extern void pgpx_direct_modify_end(ForeignScanState *node);

#endif							/* PGPX_DIRECT_MODIFY_H */
