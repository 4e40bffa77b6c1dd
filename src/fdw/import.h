/*-------------------------------------------------------------------------
 *
 * import.h
 *	  IMPORT FOREIGN SCHEMA: the callback.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_IMPORT_H
#define PGPX_IMPORT_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

extern List *pgpx_import_schema(ImportForeignSchemaStmt *stmt, Oid server);

#endif							/* PGPX_IMPORT_H */
