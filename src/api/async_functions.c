/*-------------------------------------------------------------------------
 *
 * async_functions.c
 *	  SQL functions: send, wait, wait_any, result, cancel, notifications,
 *	  fanout.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/debug_point.h"
#include "session/async.h"
#include "session/statement.h"
#include "api/arguments.h"

PG_FUNCTION_INFO_V1(pgpx_send);
PG_FUNCTION_INFO_V1(pgpx_send_any);
PG_FUNCTION_INFO_V1(pgpx_wait);
PG_FUNCTION_INFO_V1(pgpx_wait_any);
PG_FUNCTION_INFO_V1(pgpx_try_wait);
PG_FUNCTION_INFO_V1(pgpx_try_wait_any);
PG_FUNCTION_INFO_V1(pgpx_result);
PG_FUNCTION_INFO_V1(pgpx_cancel);
PG_FUNCTION_INFO_V1(pgpx_notifications);
PG_FUNCTION_INFO_V1(pgpx_wait_notifications);
PG_FUNCTION_INFO_V1(pgpx_fanout_text);
PG_FUNCTION_INFO_V1(pgpx_fanout_any);

static Datum
send_statement(FunctionCallInfo fcinfo, bool any)
{
	int64		id;
	PgpxStatement statement;

	pgpx_shmem_require();
	id = pgpx_arg_lease(fcinfo, 0);
	pgpx_arg_statement(fcinfo, 1, any, &statement);
	pgpx_async_send(pgpx_lease_of(id), &statement);
	PG_RETURN_VOID();
}

/* send(lease bigint, sql text, VARIADIC params text[]) returns void */
Datum
pgpx_send(PG_FUNCTION_ARGS)
{
	return send_statement(fcinfo, false);
}

/* send(lease bigint, sql text, VARIADIC params "any") returns void */
Datum
pgpx_send_any(PG_FUNCTION_ARGS)
{
	return send_statement(fcinfo, true);
}

/*
 * Returns a lease of this session.  Raises 55000 if no statement is in flight
 * on it.
 */
static PgpxLease *
lease_in_flight(int64 id)
{
	PgpxLease  *lease = pgpx_lease_of(id);

	if (lease->in_flight == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease " UINT64_FORMAT " has no statement in flight",
						lease->id),
				 errdetail("No statement was sent, or its result was already read."),
				 errhint("Send a statement with pgpool.send first.")));
	return lease;
}

/* wait(lease bigint, timeout interval) returns boolean: false if timed out */
Datum
pgpx_wait(PG_FUNCTION_ARGS)
{
	PgpxLease  *lease;
	PgpxTime	deadline;

	pgpx_shmem_require();
	lease = lease_in_flight(pgpx_arg_lease(fcinfo, 0));
	deadline = pgpx_arg_deadline(fcinfo, 1);
	PG_RETURN_BOOL(pgpx_async_wait(&lease, 1, deadline) != NULL);
}

/* try_wait(lease bigint) returns boolean: has the answer arrived? */
Datum
pgpx_try_wait(PG_FUNCTION_ARGS)
{
	PgpxLease  *lease;

	pgpx_shmem_require();
	lease = lease_in_flight(pgpx_arg_lease(fcinfo, 0));
	PG_RETURN_BOOL(pgpx_async_wait(&lease, 1, pgpx_now()) != NULL);
}

/*
 * Reads the leases of an array, each of which must have a statement in flight.
 * Raises 22004 for a NULL, 22023 for an empty array or a duplicate.
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
						 errmsg("lease " UINT64_FORMAT " is given twice",
								leases[i]->id),
						 errdetail("It is both element %d and element %d of the array.",
								   j + 1, i + 1)));
	}
	*count = n;
	return leases;
}

/*
 * wait_any(leases bigint[], timeout interval) returns bigint: NULL if timed
 * out
 */
Datum
pgpx_wait_any(PG_FUNCTION_ARGS)
{
	PgpxLease **leases;
	PgpxLease  *found;
	int			n;

	pgpx_shmem_require();
	leases = read_leases(fcinfo, &n);
	found = pgpx_async_wait(leases, n, pgpx_arg_deadline(fcinfo, 1));
	if (found == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) found->id);
}

/* try_wait_any(leases bigint[]) returns bigint: NULL if none has its answer */
Datum
pgpx_try_wait_any(PG_FUNCTION_ARGS)
{
	PgpxLease **leases;
	PgpxLease  *found;
	int			n;

	pgpx_shmem_require();
	leases = read_leases(fcinfo, &n);
	found = pgpx_async_wait(leases, n, pgpx_now());
	if (found == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) found->id);
}

/* result(lease bigint) returns setof record: of the statement that was sent */
Datum
pgpx_result(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;
	PgpxLease  *lease;
	PgpxRows   *tuples;

	pgpx_shmem_require();
	rsinfo = pgpx_arg_column_list(fcinfo, "pgpool.result");
	lease = lease_in_flight(pgpx_arg_lease(fcinfo, 0));
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	tuples = pgpx_rows_begin(rsinfo->setDesc, rsinfo->setResult, InvalidOid);
	(void) pgpx_async_result(lease, pgpx_rows_sink(tuples));
	pgpx_rows_end(tuples);
	return (Datum) 0;
}

/* cancel(lease bigint) returns boolean: false if no statement was running */
Datum
pgpx_cancel(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	PG_RETURN_BOOL(pgpx_async_cancel(pgpx_lease_of(pgpx_arg_lease(fcinfo, 0))));
}

/*
 * Returns the notifications of a lease as the rows of the call, and forgets
 * them.  Waits for one until the deadline (0: no limit) if there is none.
 */
static void
return_notifications(FunctionCallInfo fcinfo, PgpxLease *lease,
					 PgpxTime deadline)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	pgpx_run_check(lease, NULL);
	InitMaterializedSRF(fcinfo, 0);
	pgpx_async_notes(lease, deadline);
	if (lease->notes == NULL)
		return;

	for (PgpxNote *note = lease->notes->first; note != NULL; note = note->next)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		values[0] = CStringGetTextDatum(note->channel);
		values[1] = CStringGetTextDatum(note->payload);
		values[2] = Int32GetDatum(note->remote_pid);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	if (lease->notes->dropped > 0)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("notifications on lease " UINT64_FORMAT " were lost: " UINT64_FORMAT,
						lease->id, lease->notes->dropped),
				 errdetail("They were invalid, or exceeded the limit of 1 MB for unread notifications.")));
	pgpx_notes_drop(lease);
}

/* notifications(lease bigint) returns table: those that have arrived */
Datum
pgpx_notifications(PG_FUNCTION_ARGS)
{
	PgpxLease  *lease;

	pgpx_shmem_require();
	lease = pgpx_lease_of(pgpx_arg_lease(fcinfo, 0));
	return_notifications(fcinfo, lease, pgpx_now());
	return (Datum) 0;
}

/* wait_notifications(lease bigint, timeout interval) returns table */
Datum
pgpx_wait_notifications(PG_FUNCTION_ARGS)
{
	PgpxLease  *lease;

	pgpx_shmem_require();
	lease = pgpx_lease_of(pgpx_arg_lease(fcinfo, 0));
	return_notifications(fcinfo, lease, pgpx_arg_deadline(fcinfo, 1));
	return (Datum) 0;
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

/*
 * Returns the server names in an array, sorted by bytes.  Raises 22023 for a
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
					 errmsg("pool \"%s\" is given twice", servers[i])));
	return servers;
}

static Datum
fanout(FunctionCallInfo fcinfo, bool any)
{
	ReturnSetInfo *rsinfo;
	char	  **servers;
	int			n;
	PgpxStatement statement;

	pgpx_shmem_require();
	rsinfo = pgpx_arg_column_list(fcinfo, "pgpool.fanout");
	if (PG_ARGISNULL(0))
		pgpx_arg_raise_null("pools");
	servers = read_servers(PG_GETARG_ARRAYTYPE_P(0), &n);
	pgpx_arg_statement(fcinfo, 1, any, &statement);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	pgpx_fanout(servers, n, &statement, rsinfo->setDesc, rsinfo->setResult);
	return (Datum) 0;
}

/* fanout(pools text[], sql text, VARIADIC params text[]) returns setof record */
Datum
pgpx_fanout_text(PG_FUNCTION_ARGS)
{
	return fanout(fcinfo, false);
}

/* fanout(pools text[], sql text, VARIADIC params "any") returns setof record */
Datum
pgpx_fanout_any(PG_FUNCTION_ARGS)
{
	return fanout(fcinfo, true);
}
