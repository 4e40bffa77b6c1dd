/*-------------------------------------------------------------------------
 *
 * remote_sql.h
 *	  The texts of remote statements and their columns: read from the plans of
 *	  postgres_fdw, or deparsed where no plan contains the statement.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_SQL_H
#define PGPX_REMOTE_SQL_H

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
 * Return the value of an option of a foreign table; if it is not set there,
 * that of its server; NULL if neither is set.
 */
extern const char *pgpx_table_option(Oid relid, const char *name);

/* Return option fetch_size of a foreign table or its server; 0: not set. */
extern int	pgpx_table_fetch_size(Oid relid);

/*
 * pgpx_deparse_insert
 *		Return an INSERT of one row into the remote table of rel.
 *
 * The statement is that of postgres_fdw (deparseInsertSql).  Its parameters are
 * the columns in target_attrs that are not generated, in that order.
 *
 * with_checks, returning: the expressions of WITH CHECK OPTION and RETURNING,
 * whose Vars have varno as the range table index of rel.  The statement returns
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
 *		Return an INSERT of nrows rows, built from an INSERT of one row.
 *
 * nparams: number of parameters of a row.
 */
extern char *pgpx_deparse_insert_rows(Relation rel, const char *insert,
									  List *target_attrs, int values_end,
									  int nparams, int nrows);

/* Return a TRUNCATE of the remote tables of several foreign tables. */
extern char *pgpx_deparse_truncate(List *rels, DropBehavior behavior,
								   bool restart_seqs);

typedef struct PgpxScanPlan
{
	const char *sql;
	List	   *retrieved_attrs;	/* of integers */
	int			fetch_size;
	const char *relations;		/* of a join or an upper relation; else NULL */
} PgpxScanPlan;

typedef struct PgpxModifyPlan
{
	const char *sql;
	List	   *target_attrs;	/* of integers */
	int			values_end;		/* of INSERT: length of sql to the end of
								 * VALUES; else -1 */
	List	   *retrieved_attrs;	/* of integers */
} PgpxModifyPlan;

typedef struct PgpxDirectModifyPlan
{
	const char *sql;
	bool		has_returning;
	List	   *retrieved_attrs;	/* of integers */
	bool		set_processed;	/* count the rows in es_processed */
} PgpxDirectModifyPlan;

/*
 * Read the private list of a plan.  The results point into the list.
 *
 * Errors: HV000, with the version of the server, for an unexpected list.
 */
extern void pgpx_read_scan_plan(List *fdw_private, PgpxScanPlan *plan);
extern void pgpx_read_modify_plan(List *fdw_private, PgpxModifyPlan *plan);
extern void pgpx_read_direct_modify_plan(List *fdw_private,
										 PgpxDirectModifyPlan *plan);

#endif							/* PGPX_REMOTE_SQL_H */
