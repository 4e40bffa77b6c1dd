/*-------------------------------------------------------------------------
 *
 * lease_functions.c
 *	  SQL functions on a lease or a pool: checkout, checkin, query, query_as,
 *	  exec, describe, column_list; for statements in flight: send, wait,
 *	  wait_any, result, cancel; and notifications, fanout.
 *
 * The functions here check the arguments; checkout.c, statement.c and async.c
 * do the work.
 *
 * query, query_as, exec, send and fanout exist in three SQL variants, with
 * VARIADIC text[], param[] and "any", which share a C function; the extension
 * script has the reason.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "base/debug_point.h"
#include "values/params.h"
#include "session/checkout.h"
#include "session/lease.h"
#include "session/statement.h"
#include "api/arguments.h"

PG_FUNCTION_INFO_V1(pgpx_checkout);
PG_FUNCTION_INFO_V1(pgpx_checkout_xact);
PG_FUNCTION_INFO_V1(pgpx_checkin);
PG_FUNCTION_INFO_V1(pgpx_discard);
PG_FUNCTION_INFO_V1(pgpx_checkin_all);

/*
 * The functions of checkout and try_checkout, which has no timeout, and returns
 * NULL if no connection is free.
 */
static Datum
checkout(FunctionCallInfo fcinfo, PgpxScope scope)
{
	bool		only_try = PG_NARGS() == 2;
	int64		timeout_ms = PGPX_TIMEOUT_DEFAULT;
	char	   *server = pgpx_arg_pool(fcinfo, 0);
	char	   *why;
	PgpxLease  *lease;

	pgpx_lease_require_unrestricted();
	if (!only_try)
		timeout_ms = pgpx_arg_timeout(fcinfo, 1);
	why = pgpx_arg_text_or_null(fcinfo, only_try ? 1 : 2);
	lease = pgpx_lease_checkout(pgpx_server_spec_get(server), timeout_ms,
								only_try, scope, why, NULL, NULL);
	if (lease == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) lease->id);
}

/* checkout(pool text, timeout interval, why text) returns bigint */
/* try_checkout(pool text, why text) returns bigint */
Datum
pgpx_checkout(PG_FUNCTION_ARGS)
{
	return checkout(fcinfo, PGPX_SCOPE_SESSION);
}

/* checkout_xact and try_checkout_xact, with the same arguments */
Datum
pgpx_checkout_xact(PG_FUNCTION_ARGS)
{
	return checkout(fcinfo, PGPX_SCOPE_TRANSACTION);
}

/* checkin(lease bigint) returns void */
Datum
pgpx_checkin(PG_FUNCTION_ARGS)
{
	pgpx_lease_return(pgpx_lease_for_return(pgpx_arg_lease(fcinfo, 0)),
					  PGPX_END_CHECKIN, true);
	PG_RETURN_VOID();
}

/*
 * discard(lease bigint) returns void: closes the connection instead of reusing
 * it
 */
Datum
pgpx_discard(PG_FUNCTION_ARGS)
{
	pgpx_lease_return(pgpx_lease_for_return(pgpx_arg_lease(fcinfo, 0)),
					  PGPX_END_DISCARD, true);
	PG_RETURN_VOID();
}

/* checkin_all() returns integer: the number of leases that were returned */
Datum
pgpx_checkin_all(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	pgpx_lease_require_unrestricted();
	PG_RETURN_INT32(pgpx_lease_return_all());
}

PG_FUNCTION_INFO_V1(pgpx_param);
PG_FUNCTION_INFO_V1(pgpx_query);
PG_FUNCTION_INFO_V1(pgpx_query_as);
PG_FUNCTION_INFO_V1(pgpx_exec_statement);
PG_FUNCTION_INFO_V1(pgpx_describe_statement);
PG_FUNCTION_INFO_V1(pgpx_column_list_of);

/* A call: its arguments, a lease or a pool and a statement, and its result. */
typedef struct Call
{
	char	   *server;			/* of the pool; NULL: the call has a lease */
	int64		lease;			/* its id */
	PgpxStatement statement;
	const PgpxSink *sink;		/* for the rows; NULL: they are discarded */
	PgpxDescription *description;	/* describe the statement instead of
									 * executing it; NULL: execute it */
} Call;

/*
 * Return whether the argument is the name of a pool; otherwise it is the id of a
 * lease.  Each SQL function exists for both.
 */
static bool
is_pool(FunctionCallInfo fcinfo, int at)
{
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, at);

	/* a fast-path call has no expression */
	if (!OidIsValid(type))
	{
		Oid		   *types;
		int			n;

		(void) get_func_signature(fcinfo->flinfo->fn_oid, &types, &n);
		type = types[at];
	}
	return type == TEXTOID;
}

/* Read the arguments from index "at" on: lease or pool, sql, params. */
static void
read_call(FunctionCallInfo fcinfo, int at, Call *call)
{
	memset(call, 0, sizeof(*call));
	if (is_pool(fcinfo, at))
		call->server = pgpx_arg_pool(fcinfo, at);
	else
		call->lease = pgpx_arg_lease(fcinfo, at);
	pgpx_arg_statement(fcinfo, at + 1, &call->statement);
}

/*
 * Execute or describe the statement of a call on a lease.  Return its number of
 * rows.  last: as of pgpx_exec.
 */
static uint64
run_on_lease(const Call *call, PgpxLease *lease, bool last)
{
	if (call->description == NULL)
		return pgpx_exec(lease, &call->statement, call->sink, last);
	pgpx_describe(lease, &call->statement, call->description);
	return 0;
}

/*
 * Execute or describe the statement of a call on a lease that is acquired for
 * it.  Return its number of rows.
 *
 * The lease is returned at the end, and at once after an error, without waiting
 * for the abort of the transaction.  If the previous holder has sent the
 * statement and it was not executed (lease->not_run), it is repeated on another
 * lease, with the queue position and the deadline of the first checkout.
 */
static uint64
run_on_pool(const Call *call)
{
	const PgpxStatement *statement = &call->statement;
	PgpxPendingStatement pending = {
		.statement = statement,
		.single = call->sink != NULL || statement->nparams > 0 ||
			strchr(statement->sql, ';') == NULL,
	};
	PgpxPlace	retry = {0};

	for (;;)
	{
		PgpxLease  *lease;
		uint64		rows;

		lease = pgpx_lease_checkout_call(call->server,
										 call->description != NULL ? NULL :
										 &pending, &retry);
		PG_TRY();
		{
			rows = run_on_lease(call, lease, true);
		}
		PG_CATCH();
		{
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
			PG_RE_THROW();
		}
		PG_END_TRY();
		if (!lease->not_run)
		{
			pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
			return rows;
		}
		retry = lease->place;
		pgpx_lease_return(lease, PGPX_END_RETRIED, true);
	}
}

/* Execute or describe the statement of a call and return its number of rows. */
static uint64
run_call(const Call *call)
{
	return call->server != NULL ? run_on_pool(call) :
		run_on_lease(call, pgpx_lease_for_use(call->lease), false);
}

/*
 * Execute the statement of a call and return its rows from a set-returning
 * function.
 */
static Datum
return_rows(FunctionCallInfo fcinfo, Call *call, Oid type)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PgpxRows   *rows;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	rows = pgpx_rows_begin(rsinfo->setDesc, rsinfo->setResult, type);
	call->sink = pgpx_rows_sink(rows);
	(void) run_call(call);
	return (Datum) 0;
}

/* param("any") returns param: a cast from types whose text has styles */
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

/* query(lease or pool, sql text, VARIADIC params) returns setof record */
Datum
pgpx_query(PG_FUNCTION_ARGS)
{
	Call		call;

	(void) pgpx_arg_column_list(fcinfo, "pgpool.query",
								" To discard the rows, call pgpool.exec instead.");
	read_call(fcinfo, 0, &call);
	return return_rows(fcinfo, &call, InvalidOid);
}

/*
 * query_as(template anyelement, lease or pool, sql text, VARIADIC params)
 * returns setof anyelement.  The value of the template is not used.
 */
Datum
pgpx_query_as(PG_FUNCTION_ARGS)
{
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, 0);
	Call		call;

	if (!OidIsValid(type) || get_typtype(type) == TYPTYPE_PSEUDO)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("template of pgpool.query_as must not be of type %s",
						OidIsValid(type) ? format_type_be(type) : "unknown"),
				 errdetail("The type of the template determines the columns of the result."),
				 errhint("Use a NULL of a table's or composite type, as NULL::orders, a value of a scalar type, or pgpool.query with a column list.")));

	read_call(fcinfo, 1, &call);
	return return_rows(fcinfo, &call, type);
}

/* exec(lease or pool, sql text, VARIADIC params) returns bigint */
Datum
pgpx_exec_statement(PG_FUNCTION_ARGS)
{
	Call		call;

	read_call(fcinfo, 0, &call);
	PG_RETURN_INT64((int64) run_call(&call));
}

static void
describe_call(FunctionCallInfo fcinfo, PgpxDescription *description)
{
	Call		call;

	read_call(fcinfo, 0, &call);
	call.description = description;
	(void) run_call(&call);
}

/* describe(lease or pool, sql text) returns table (name text, type text) */
Datum
pgpx_describe_statement(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PgpxDescription description;

	InitMaterializedSRF(fcinfo, 0);
	describe_call(fcinfo, &description);
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

/* column_list(lease or pool, sql text) returns text */
Datum
pgpx_column_list_of(PG_FUNCTION_ARGS)
{
	PgpxDescription description;

	describe_call(fcinfo, &description);
	if (description.n == 0)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(CStringGetTextDatum(pgpx_column_list(description.n,
														 description.columns,
														 description.types,
														 NULL)));
}

PG_FUNCTION_INFO_V1(pgpx_send);
PG_FUNCTION_INFO_V1(pgpx_wait);
PG_FUNCTION_INFO_V1(pgpx_wait_any);
PG_FUNCTION_INFO_V1(pgpx_result);
PG_FUNCTION_INFO_V1(pgpx_cancel);
PG_FUNCTION_INFO_V1(pgpx_notifications);
PG_FUNCTION_INFO_V1(pgpx_fanout_statement);

/* send(lease bigint, sql text, VARIADIC params) returns void */
Datum
pgpx_send(PG_FUNCTION_ARGS)
{
	int64		id = pgpx_arg_lease(fcinfo, 0);
	PgpxStatement statement;

	pgpx_arg_statement(fcinfo, 1, &statement);
	pgpx_async_send(pgpx_lease_for_use(id), &statement);
	PG_RETURN_VOID();
}

/* Return a lease of this session.  Raise 55000 if no statement is in flight. */
static PgpxLease *
lease_in_flight(int64 id)
{
	PgpxLease  *lease = pgpx_lease_for_use(id);

	if (lease->in_flight == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease " UINT64_FORMAT " has no statement in flight",
						lease->id),
				 errdetail("No statement was sent, or its result was already read."),
				 errhint("Send a statement with pgpool.send first.")));
	return lease;
}

/*
 * Return the deadline of a wait: that of the timeout in the second argument.
 * The functions without this argument do not wait.
 */
static PgpxTime
wait_deadline(FunctionCallInfo fcinfo)
{
	return PG_NARGS() == 1 ? pgpx_now() : pgpx_arg_deadline(fcinfo, 1);
}

/* wait(lease bigint, timeout interval) returns boolean: false if timed out */
/* try_wait(lease bigint) returns boolean: true if the answer has arrived */
Datum
pgpx_wait(PG_FUNCTION_ARGS)
{
	PgpxLease  *lease = lease_in_flight(pgpx_arg_lease(fcinfo, 0));

	PG_RETURN_BOOL(pgpx_async_wait(&lease, 1, wait_deadline(fcinfo)) != NULL);
}

/*
 * Return the leases of the array in the first argument, and set *count to their
 * number.  Raise 22004 for a NULL, 22023 for an empty array or a duplicate, and
 * 55000 for a lease without a statement in flight.
 */
static PgpxLease **
read_leases(FunctionCallInfo fcinfo, int *count)
{
	ArrayType  *array;
	Datum	   *ids;
	bool	   *nulls;
	int			n;
	PgpxLease **leases;

	if (PG_ARGISNULL(0))
		pgpx_arg_raise_null("leases");
	array = PG_GETARG_ARRAYTYPE_P(0);
	deconstruct_array(array, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &ids, &nulls, &n);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("array of leases must not be empty")));
	leases = palloc(sizeof(PgpxLease *) * n);
	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			pgpx_arg_raise_null("lease");
		leases[i] = lease_in_flight(DatumGetInt64(ids[i]));
		for (int j = 0; j < i; j++)
			if (leases[j] == leases[i])
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("lease " UINT64_FORMAT " specified more than once",
								leases[i]->id),
						 errdetail("It is both element %d and element %d of the array.",
								   j + 1, i + 1)));
	}
	*count = n;
	return leases;
}

/* wait_any(leases bigint[], timeout interval) returns bigint: NULL if none */
/* try_wait_any(leases bigint[]) returns bigint */
Datum
pgpx_wait_any(PG_FUNCTION_ARGS)
{
	PgpxLease **leases;
	PgpxLease  *found;
	int			n;

	pgpx_shmem_require();
	leases = read_leases(fcinfo, &n);
	found = pgpx_async_wait(leases, n, wait_deadline(fcinfo));
	if (found == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) found->id);
}

/* result(lease bigint) returns setof record: the rows of its statement */
Datum
pgpx_result(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = pgpx_arg_column_list(fcinfo, "pgpool.result", "");
	PgpxLease  *lease = lease_in_flight(pgpx_arg_lease(fcinfo, 0));
	PgpxRows   *rows;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	rows = pgpx_rows_begin(rsinfo->setDesc, rsinfo->setResult, InvalidOid);
	(void) pgpx_async_result(lease, pgpx_rows_sink(rows));
	return (Datum) 0;
}

/* cancel(lease bigint) returns boolean: false if no statement was running */
Datum
pgpx_cancel(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(
		pgpx_async_cancel(pgpx_lease_for_use(pgpx_arg_lease(fcinfo, 0))));
}

/* notifications(lease bigint) returns table: those that have arrived */
/* wait_notifications(lease bigint, timeout interval) returns table */
Datum
pgpx_notifications(PG_FUNCTION_ARGS)
{
	PgpxLease  *lease = pgpx_lease_for_use(pgpx_arg_lease(fcinfo, 0));
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	pgpx_run_check(lease, NULL);
	InitMaterializedSRF(fcinfo, 0);
	pgpx_async_wait_for_note(lease, wait_deadline(fcinfo));
	if (!pgpx_lease_has_notes(lease))
		return (Datum) 0;

	for (PgpxNote *note = lease->notes.first; note != NULL; note = note->next)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		values[0] = CStringGetTextDatum(note->channel);
		values[1] = CStringGetTextDatum(note->payload);
		values[2] = Int32GetDatum(note->remote_pid);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	if (lease->notes.dropped > 0)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("notifications on lease " UINT64_FORMAT " were lost: " UINT64_FORMAT,
						lease->id, lease->notes.dropped),
				 errdetail("They were invalid, or exceeded the limit of 1 MB for unread notifications.")));
	pgpx_lease_drop_notes(lease);
	return (Datum) 0;
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

/*
 * Return the server names in an array, sorted by bytes.  Raise 22023 for a
 * duplicate and 22004 for a NULL.
 */
static char **
read_servers(ArrayType *array, int *n)
{
	Datum	   *names;
	bool	   *nulls;
	char	  **servers;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls,
					  n);
	servers = palloc(sizeof(char *) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			pgpx_arg_raise_null("pool");
		servers[i] = TextDatumGetCString(names[i]);
	}
	qsort(servers, *n, sizeof(char *), compare_names);
	for (int i = 1; i < *n; i++)
		if (strcmp(servers[i - 1], servers[i]) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("pool \"%s\" specified more than once", servers[i])));
	return servers;
}

/* fanout(pools text[], sql text, VARIADIC params) returns setof record */
Datum
pgpx_fanout_statement(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;
	char	  **servers;
	int			n;
	PgpxStatement statement;

	pgpx_shmem_require();
	rsinfo = pgpx_arg_column_list(fcinfo, "pgpool.fanout", "");
	if (PG_ARGISNULL(0))
		pgpx_arg_raise_null("pools");
	servers = read_servers(PG_GETARG_ARRAYTYPE_P(0), &n);
	pgpx_arg_statement(fcinfo, 1, &statement);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	pgpx_fanout(servers, n, &statement, rsinfo->setDesc, rsinfo->setResult);
	return (Datum) 0;
}
