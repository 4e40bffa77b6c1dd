/*-------------------------------------------------------------------------
 *
 * utility.h
 *	  Utility commands on foreign tables: the callbacks of ANALYZE and
 *	  IMPORT FOREIGN SCHEMA.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_UTILITY_H
#define PGPX_UTILITY_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

extern bool pgpx_utility_analyze(Relation rel, AcquireSampleRowsFunc *func,
								 BlockNumber *totalpages);
extern List *pgpx_utility_import(ImportForeignSchemaStmt *stmt, Oid server);

#endif							/* PGPX_UTILITY_H */
