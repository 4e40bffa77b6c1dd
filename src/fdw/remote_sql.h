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

/* Return the list of the numbers of a relation's columns. */
extern List *pgpx_table_columns(Relation rel);

/* Return the remote name of a column of a foreign table. */
extern const char *pgpx_remote_column_name(Form_pg_attribute attr);

/*
 * Append the remote names of columns, quoted.  attnums: their numbers; the only
 * system column is ctid.  first: precedes the first name, if there is one.
 */
extern void pgpx_deparse_columns(StringInfo buf, Relation rel, List *attnums,
								 const char *first);

/*
 * For pgpx_rows_begin_attributes: add the column of a foreign table, a Relation,
 * to the context of an error in the conversion of a value, as postgres_fdw does.
 */
extern void pgpx_table_context(void *rel, AttrNumber attnum);

/*
 * Return the value of an option of a foreign table; if it is not set there,
 * that of its server; "unset" if neither is set.
 */
extern const char *pgpx_table_option(Oid relid, const char *name,
									 const char *unset);
extern int	pgpx_table_int_option(Oid relid, const char *name, int unset);
extern bool pgpx_table_bool_option(Oid relid, const char *name, bool unset);

/* A plan of postgres_fdw, or of a statement that no plan contains. */
typedef struct PgpxPlan
{
	const char *sql;
	List	   *retrieved_attrs;	/* of integers */

	/* of a scan */
	int			fetch_size;
	const char *relations;		/* of a join or an upper relation; else NULL */

	/* of a modification row by row */
	List	   *target_attrs;	/* of integers */
	int			values_end;		/* of INSERT: length of sql to the end of
								 * VALUES; else -1 */

	/* of a direct modification */
	bool		has_returning;
	bool		set_processed;	/* count the rows in es_processed */
} PgpxPlan;

/*
 * Read the private list of a plan.  The results point into the list.
 *
 * Errors: HV000, with the version of the server, for an unexpected list.
 */
extern PgpxPlan pgpx_read_scan_plan(List *fdw_private);
extern PgpxPlan pgpx_read_modify_plan(List *fdw_private);
extern PgpxPlan pgpx_read_direct_modify_plan(List *fdw_private);

/*
 * pgpx_deparse_insert
 *		Return a plan for the INSERT of a row into all columns of a table.
 *
 * The statement is that of postgres_fdw (deparseInsertSql).  Its parameters are
 * the columns that are not generated.  It returns the columns in the expressions
 * of WITH CHECK OPTION and RETURNING, whose Vars have varno as the range table
 * index of the table, and all columns if the table has an AFTER ROW INSERT
 * trigger.
 */
extern PgpxPlan pgpx_deparse_insert(ResultRelInfo *result_rel, Index varno,
									bool do_nothing);

/*
 * Return the INSERT of nrows rows for the plan of an INSERT of one row.
 * nparams: number of parameters of a row.
 */
extern char *pgpx_deparse_insert_rows(Relation rel, const PgpxPlan *plan,
									  int nparams, int nrows);

/* Return a TRUNCATE of the remote tables of several foreign tables. */
extern char *pgpx_deparse_truncate(List *rels, DropBehavior behavior,
								   bool restart_seqs);

#endif							/* PGPX_REMOTE_SQL_H */
