/*-------------------------------------------------------------------------
 *
 * analyze.h
 *	  ANALYZE of foreign tables: the callback.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ANALYZE_H
#define PGPX_ANALYZE_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

extern bool pgpx_analyze_table(Relation rel, AcquireSampleRowsFunc *func,
							   BlockNumber *totalpages);

#endif							/* PGPX_ANALYZE_H */
