/*-------------------------------------------------------------------------
 *
 * fn_query.c
 *	  SQL functions: query, query_as and exec, on a lease and on a pool.
 *
 * Each comes three times in SQL, with VARIADIC text[], param[] and "any" (the
 * script says why); here the first two are one function.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "exec.h"
#include "fn_args.h"
#include "lease.h"
#include "params.h"
#include "tuples.h"

PG_FUNCTION_INFO_V1(pgpx_param);
PG_FUNCTION_INFO_V1(pgpx_query_lease);
PG_FUNCTION_INFO_V1(pgpx_query_lease_any);
PG_FUNCTION_INFO_V1(pgpx_query_pool);
PG_FUNCTION_INFO_V1(pgpx_query_pool_any);
PG_FUNCTION_INFO_V1(pgpx_query_as_lease);
PG_FUNCTION_INFO_V1(pgpx_query_as_lease_any);
PG_FUNCTION_INFO_V1(pgpx_query_as_pool);
PG_FUNCTION_INFO_V1(pgpx_query_as_pool_any);
PG_FUNCTION_INFO_V1(pgpx_exec_lease);
PG_FUNCTION_INFO_V1(pgpx_exec_lease_any);
PG_FUNCTION_INFO_V1(pgpx_exec_pool);
PG_FUNCTION_INFO_V1(pgpx_exec_pool_any);

/* A call's statement, read from its arguments. */
typedef struct Call
{
	bool		by_pool;
	char	   *server;			/* by_pool */
	int64		id;				/* else */
	char	   *sql;
	PgpxParams	params;
} Call;

/* The arguments from "at" on: lease or pool, sql, params. */
static void
read_call(FunctionCallInfo fcinfo, int at, bool by_pool, bool any, Call *call)
{
	pgpx_shmem_require();
	memset(call, 0, sizeof(*call));
	call->by_pool = by_pool;
	if (by_pool)
		call->server = pgpx_arg_text(fcinfo, at, "pool");
	else
		call->id = pgpx_arg_lease(fcinfo, at);
	call->sql = pgpx_arg_text(fcinfo, at + 1, "sql");
	pgpx_params_read(fcinfo, at + 2, any, &call->params);
}

/*
 * Run it; a lease taken for this call ends with it, at once on an error too:
 * the transaction's abort would do it as well, but later.
 */
static uint64
run_call(const Call *call, const PgpxSink *sink)
{
	PgpxStatement statement = {
		.sql = call->sql,
		.nparams = call->params.n,
		.values = call->params.values,
		.one = sink != NULL || call->params.n > 0 ||
			strchr(call->sql, ';') == NULL,
		.known = sink != NULL && sink->formats != NULL,
		.shape = sink != NULL ? sink->shape : 0,
	};
	PgpxLease  *lease;
	uint64		rows;

	if (!call->by_pool)
		return pgpx_exec(pgpx_lease_of(call->id), call->sql, call->params.n,
						 call->params.values, sink);

again:
	lease = pgpx_lease_checkout_for(call->server, &statement);
	PG_TRY();
	{
		rows = pgpx_exec(lease, call->sql, call->params.n, call->params.values,
						 sink);
	}
	PG_CATCH();
	{
		pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (lease->not_run)
	{
		statement.ticket = lease->ticket;
		statement.pool_id = lease->target->pool_id;
		statement.deadline = lease->deadline;
		pgpx_lease_return(lease, PGPX_END_RETRIED, true);
		goto again;
	}
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
	return rows;
}

/* Run it, and give its rows to the caller of a set-returning function. */
static Datum
return_rows(FunctionCallInfo fcinfo, const Call *call, Oid type)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PgpxTuples *tuples;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	tuples = pgpx_tuples_begin(rsinfo->setDesc, rsinfo->setResult, type);
	(void) run_call(call, pgpx_tuples_sink(tuples));
	pgpx_tuples_end(tuples);
	return (Datum) 0;
}

static Datum
query(FunctionCallInfo fcinfo, bool by_pool, bool any)
{
	Call		call;

	(void) pgpx_arg_column_list(fcinfo, "pgpool.query");
	read_call(fcinfo, 0, by_pool, any, &call);
	return return_rows(fcinfo, &call, InvalidOid);
}

/* Only the template's type counts: its value is never looked at. */
static Datum
query_as(FunctionCallInfo fcinfo, bool by_pool, bool any)
{
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, 0);
	Call		call;

	if (!OidIsValid(type) || get_typtype(type) == TYPTYPE_PSEUDO)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("template of pgpool.query_as must not be of type %s",
						OidIsValid(type) ? format_type_be(type) : "unknown"),
				 errdetail("Its type gives the columns of the result and their types."),
				 errhint("Use a NULL of a table's or composite type, as NULL::orders, a value of a scalar type, or pgpool.query with a column list.")));

	read_call(fcinfo, 1, by_pool, any, &call);
	return return_rows(fcinfo, &call, type);
}

static Datum
exec(FunctionCallInfo fcinfo, bool by_pool, bool any)
{
	Call		call;

	read_call(fcinfo, 0, by_pool, any, &call);
	PG_RETURN_INT64((int64) run_call(&call, NULL));
}

/* param("any") returns param: the cast from types whose text depends on settings */
Datum
pgpx_param(PG_FUNCTION_ARGS)
{
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, 0);

	if (!OidIsValid(type))
		ereport(ERROR,
				(errcode(ERRCODE_INDETERMINATE_DATATYPE),
				 errmsg("could not determine data type of parameter $%d", 1)));
	PG_RETURN_TEXT_P(
		cstring_to_text(pgpx_params_text(type, PG_GETARG_DATUM(0))));
}

/* query(lease bigint, sql text, VARIADIC params text[]) returns setof record */
Datum
pgpx_query_lease(PG_FUNCTION_ARGS)
{
	return query(fcinfo, false, false);
}

/* query(lease bigint, sql text, VARIADIC params "any") returns setof record */
Datum
pgpx_query_lease_any(PG_FUNCTION_ARGS)
{
	return query(fcinfo, false, true);
}

/* query(pool text, sql text, VARIADIC params text[]) returns setof record */
Datum
pgpx_query_pool(PG_FUNCTION_ARGS)
{
	return query(fcinfo, true, false);
}

/* query(pool text, sql text, VARIADIC params "any") returns setof record */
Datum
pgpx_query_pool_any(PG_FUNCTION_ARGS)
{
	return query(fcinfo, true, true);
}

/* query_as(template anyelement, lease bigint, sql text, VARIADIC params text[]) */
Datum
pgpx_query_as_lease(PG_FUNCTION_ARGS)
{
	return query_as(fcinfo, false, false);
}

/* query_as(template anyelement, lease bigint, sql text, VARIADIC params "any") */
Datum
pgpx_query_as_lease_any(PG_FUNCTION_ARGS)
{
	return query_as(fcinfo, false, true);
}

/* query_as(template anyelement, pool text, sql text, VARIADIC params text[]) */
Datum
pgpx_query_as_pool(PG_FUNCTION_ARGS)
{
	return query_as(fcinfo, true, false);
}

/* query_as(template anyelement, pool text, sql text, VARIADIC params "any") */
Datum
pgpx_query_as_pool_any(PG_FUNCTION_ARGS)
{
	return query_as(fcinfo, true, true);
}

/* exec(lease bigint, sql text, VARIADIC params text[]) returns bigint */
Datum
pgpx_exec_lease(PG_FUNCTION_ARGS)
{
	return exec(fcinfo, false, false);
}

/* exec(lease bigint, sql text, VARIADIC params "any") returns bigint */
Datum
pgpx_exec_lease_any(PG_FUNCTION_ARGS)
{
	return exec(fcinfo, false, true);
}

/* exec(pool text, sql text, VARIADIC params text[]) returns bigint */
Datum
pgpx_exec_pool(PG_FUNCTION_ARGS)
{
	return exec(fcinfo, true, false);
}

/* exec(pool text, sql text, VARIADIC params "any") returns bigint */
Datum
pgpx_exec_pool_any(PG_FUNCTION_ARGS)
{
	return exec(fcinfo, true, true);
}
