/*-------------------------------------------------------------------------
 *
 * contract.h
 *	  Validate and read the private lists in plans of postgres_fdw.
 *
 * postgres_fdw plans a statement, and this extension executes the plan.  The
 * interface between the two is the plan's private list, whose layout
 * PostgreSQL does not guarantee.  So each element is checked, and an
 * unexpected one raises an error.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONTRACT_H
#define PGPX_CONTRACT_H

#include "base/compat.h"

#include "foreign/fdwapi.h"

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
extern void pgpx_contract_scan(List *fdw_private, TupleDesc tupdesc,
							   PgpxScanPlan *plan);
extern void pgpx_contract_modify(List *fdw_private, CmdType operation,
								 TupleDesc tupdesc, PgpxModifyPlan *plan);
extern void pgpx_contract_direct_modify(List *fdw_private, TupleDesc tupdesc,
										PgpxDirectModifyPlan *plan);

/*
 * pgpx_contract_routine
 *		Return the callbacks of postgres_fdw, as a new struct.
 *
 * Errors: HV00B postgres_fdw cannot be loaded; HV000 a callback that must be
 * inherited is missing.
 */
extern FdwRoutine *pgpx_contract_routine(void);

#endif							/* PGPX_CONTRACT_H */
