/*-------------------------------------------------------------------------
 *
 * modify_sql.h
 *	  Remote statements that no plan of postgres_fdw contains: INSERT of
 *	  routed rows and of several rows, TRUNCATE.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_MODIFY_SQL_H
#define PGPX_MODIFY_SQL_H

#include "base/compat.h"

#include "nodes/parsenodes.h"
#include "utils/rel.h"

/*
 * pgpx_modify_sql_insert
 *		Returns an INSERT of one row into the remote table of rel.
 *
 * The statement is that of postgres_fdw (deparseInsertSql).  Its parameters are
 * the columns in target_attrs that are not generated, in that order.
 *
 * varno: range table index of rel in the Vars of with_checks and returning, the
 * lists of WITH CHECK OPTION and RETURNING expressions.  The statement returns
 * the columns that they contain, and all columns if rel has an AFTER ROW INSERT
 * trigger.
 *
 * *retrieved_attrs: the returned attributes; NIL if there is no RETURNING.
 * *values_end: length of the statement up to the end of its VALUES.
 */
extern char *pgpx_modify_sql_insert(Relation rel, Index varno,
									List *target_attrs, bool do_nothing,
									List *with_checks, List *returning,
									List **retrieved_attrs, int *values_end);

/*
 * pgpx_modify_sql_insert_rows
 *		Returns an INSERT of nrows rows, built from an INSERT of one row.
 *
 * nparams: number of parameters of a row, at least 1.
 */
extern char *pgpx_modify_sql_insert_rows(Relation rel, const char *insert,
										 List *target_attrs, int values_end,
										 int nparams, int nrows);

/* Returns a TRUNCATE of the remote tables of several foreign tables. */
extern char *pgpx_modify_sql_truncate(List *rels, DropBehavior behavior,
									  bool restart_seqs);

#endif							/* PGPX_MODIFY_SQL_H */
