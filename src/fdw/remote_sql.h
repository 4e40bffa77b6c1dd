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

#include "foreign/fdwapi.h"
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

/* Return the name of a server.  Unlike GetForeignServer, reads no options. */
extern char *pgpx_foreign_server_name(Oid server);

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
	int			values_end;		/* length of sql to the end of VALUES; -1: no
								 * INSERT */
	bool		has_returning;
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
 * Check and read the private list of a plan.  The results point into the list.
 * tupdesc: of the rows that the statement returns, and for modify of the
 * target table; each attribute number is one of its columns, or that of ctid.
 * Errors: HV000, with the version of the server.
 */
extern void pgpx_read_scan_plan(List *fdw_private, TupleDesc tupdesc,
								PgpxScanPlan *plan);
extern void pgpx_read_modify_plan(List *fdw_private, CmdType operation,
								  TupleDesc tupdesc, PgpxModifyPlan *plan);
extern void pgpx_read_direct_modify_plan(List *fdw_private, TupleDesc tupdesc,
										 PgpxDirectModifyPlan *plan);

/*
 * pgpx_postgres_fdw_preload
 *		Load the library of postgres_fdw when the server starts, so that no
 *		session has to.
 *
 * If it cannot be loaded, each session tries it again at its first use of a
 * foreign table.
 */
extern void pgpx_postgres_fdw_preload(void);

/*
 * pgpx_postgres_fdw_routine
 *		Return the callbacks of postgres_fdw, as a new struct that is never
 *		freed.
 *
 * Errors: HV00L postgres_fdw cannot be loaded; HV000 a callback that must be
 * inherited is missing.
 */
extern FdwRoutine *pgpx_postgres_fdw_routine(void);

#endif							/* PGPX_REMOTE_SQL_H */
