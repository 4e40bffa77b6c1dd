/*-------------------------------------------------------------------------
 *
 * utility.h
 *	  Queries of remote catalogs for utility commands on foreign tables, and the
 *	  import of a remote table's statistics.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_UTILITY_H
#define PGPX_UTILITY_H

#include "base/compat.h"

#include "lib/stringinfo.h"
#include "utils/rel.h"

#include "fdw/remote_scan.h"

/* Return the use of a foreign table as its owner. */
extern PgpxRemoteUse pgpx_table_use(Relation rel);

/* Append the remote table's name as a regclass. */
extern void pgpx_append_regclass(StringInfo buf, Relation rel);

/*
 * Begin a scan of a query whose columns are read as text.  Each row has the
 * values of ncolumns columns, of type text.
 *
 * Errors, also of pgpx_remote_scan_next: 42804 if the number of columns is not
 * ncolumns.
 */
extern PgpxRemoteScan *pgpx_open_text_scan(PgpxRemoteUse *use, const char *sql,
										   int ncolumns);

/*
 * pgpx_text_query
 *		Run a query of remote catalogs and return its rows: arrays of ncolumns
 *		texts, NULL for SQL's NULL.
 *
 * A row that has NULL in one of the first nrequired columns is left out: the
 * object was dropped while the query ran.  The result is allocated in the
 * current memory context.  Errors: as of pgpx_open_text_scan.
 */
extern List *pgpx_text_query(PgpxRemoteUse *use, const char *sql, int ncolumns,
							 int nrequired);

/*
 * pgpx_utility_import_in_sample
 *		For the AcquireSampleRowsFunc: replace the statistics of the columns by
 *		those of the remote table, if option import_stats permits it.
 *
 * Return true and set *tuples to the number of rows of the remote table; the
 * sample must then be empty.  Return false if a sample must be taken.  From 19
 * on, a callback imports statistics (handler.h).
 */
#if defined(PGPX_HAS_RESTORE_STATS) && !defined(PGPX_HAS_IMPORT_CALLBACK)
extern bool pgpx_utility_import_in_sample(Relation rel, int elevel,
										  double *tuples);
#else
#define pgpx_utility_import_in_sample(rel, elevel, tuples) false
#endif

#endif							/* PGPX_UTILITY_H */
