/*-------------------------------------------------------------------------
 *
 * deparse.h
 *	  Remote names of foreign tables and columns, and the remote statements
 *	  that no plan of postgres_fdw contains.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DEPARSE_H
#define PGPX_DEPARSE_H

#include "base/compat.h"

#include "lib/stringinfo.h"
#include "nodes/parsenodes.h"
#include "utils/rel.h"

/* Append the remote name of a foreign table, qualified and quoted. */
extern void pgpx_deparse_relation(StringInfo buf, Relation rel);

/* Append the remote name of a column, quoted. */
extern void pgpx_deparse_column(StringInfo buf, Relation rel,
								AttrNumber attnum);

/*
 * Return the value of an option of a foreign table, else of its server; NULL if
 * neither has it.
 */
extern const char *pgpx_table_option(Oid relid, const char *name);

/*
 * pgpx_deparse_insert
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
extern char *pgpx_deparse_insert(Relation rel, Index varno,
								 List *target_attrs, bool do_nothing,
								 List *with_checks, List *returning,
								 List **retrieved_attrs, int *values_end);

/*
 * pgpx_deparse_insert_rows
 *		Returns an INSERT of nrows rows, built from an INSERT of one row.
 *
 * nparams: number of parameters of a row, at least 1.
 */
extern char *pgpx_deparse_insert_rows(Relation rel, const char *insert,
									  List *target_attrs, int values_end,
									  int nparams, int nrows);

/* Returns a TRUNCATE of the remote tables of several foreign tables. */
extern char *pgpx_deparse_truncate(List *rels, DropBehavior behavior,
								   bool restart_seqs);

#endif							/* PGPX_DEPARSE_H */
