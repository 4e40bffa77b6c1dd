/*-------------------------------------------------------------------------
 *
 * fn_describe.c
 *	  SQL functions: describe and column_list, on a lease and on a pool.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "column_list.h"
#include "describe.h"
#include "fn_args.h"

PG_FUNCTION_INFO_V1(pgpx_describe_lease);
PG_FUNCTION_INFO_V1(pgpx_describe_pool);
PG_FUNCTION_INFO_V1(pgpx_column_list_lease);
PG_FUNCTION_INFO_V1(pgpx_column_list_pool);

/* Describe the statement of a call, on its lease or on one for the call. */
static void
describe_call(FunctionCallInfo fcinfo, bool by_pool,
			  PgpxDescription *description)
{
	PgpxLease  *lease;
	char	   *server;
	char	   *sql;

	pgpx_shmem_require();
	if (!by_pool)
	{
		lease = pgpx_lease_of(pgpx_arg_lease(fcinfo, 0));
		pgpx_describe(lease, pgpx_arg_text(fcinfo, 1, "sql"), description);
		return;
	}
	server = pgpx_arg_text(fcinfo, 0, "pool");
	sql = pgpx_arg_text(fcinfo, 1, "sql");
	lease = pgpx_lease_checkout(server, PGPX_TIMEOUT_DEFAULT, false,
								PGPX_SCOPE_CALL, NULL);
	PG_TRY();
	{
		pgpx_describe(lease, sql, description);
	}
	PG_CATCH();
	{
		pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
}

static Datum
describe(FunctionCallInfo fcinfo, bool by_pool)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PgpxDescription description;

	InitMaterializedSRF(fcinfo, 0);
	describe_call(fcinfo, by_pool, &description);
	for (int i = 0; i < description.n; i++)
	{
		Datum		values[2];
		bool		nulls[2] = {false};

		values[0] = CStringGetTextDatum(description.columns[i].name);
		if (description.types[i] != NULL)
			values[1] = CStringGetTextDatum(description.types[i]);
		else
			nulls[1] = true;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

static Datum
column_list(FunctionCallInfo fcinfo, bool by_pool)
{
	PgpxDescription description;

	describe_call(fcinfo, by_pool, &description);
	if (description.n == 0)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(CStringGetTextDatum(pgpx_column_list(description.n,
														 description.columns,
														 description.types,
														 NULL)));
}

/* describe(lease bigint, sql text) returns table (name text, type text) */
Datum
pgpx_describe_lease(PG_FUNCTION_ARGS)
{
	return describe(fcinfo, false);
}

/* describe(pool text, sql text) returns table (name text, type text) */
Datum
pgpx_describe_pool(PG_FUNCTION_ARGS)
{
	return describe(fcinfo, true);
}

/* column_list(lease bigint, sql text) returns text */
Datum
pgpx_column_list_lease(PG_FUNCTION_ARGS)
{
	return column_list(fcinfo, false);
}

/* column_list(pool text, sql text) returns text */
Datum
pgpx_column_list_pool(PG_FUNCTION_ARGS)
{
	return column_list(fcinfo, true);
}
