/*-------------------------------------------------------------------------
 *
 * arguments.c
 *	  Reads and checks the arguments of the SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#include "api/arguments.h"

#include <math.h>

#include "catalog/pg_authid.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "values/params.h"
#include "session/checkout.h"

#define TIMEOUT_MAX_MS (INT64CONST(1000) * 86400 * 3650)

void
pgpx_arg_raise_null(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", name)));
}

char *
pgpx_arg_text_or_null(FunctionCallInfo fcinfo, int at)
{
	if (PG_NARGS() <= at || PG_ARGISNULL(at))
		return NULL;
	return text_to_cstring(PG_GETARG_TEXT_PP(at));
}

char *
pgpx_arg_text(FunctionCallInfo fcinfo, int at, const char *name)
{
	if (PG_ARGISNULL(at))
		pgpx_arg_raise_null(name);
	return text_to_cstring(PG_GETARG_TEXT_PP(at));
}

char *
pgpx_arg_pool(FunctionCallInfo fcinfo, int at)
{
	pgpx_shmem_require();
	return pgpx_arg_text(fcinfo, at, "pool");
}

void
pgpx_arg_statement(FunctionCallInfo fcinfo, int at, PgpxStatement *statement)
{
	statement->sql = pgpx_arg_text(fcinfo, at, "sql");
	pgpx_params_read(fcinfo, at + 1, statement);
}

int64
pgpx_arg_lease(FunctionCallInfo fcinfo, int at)
{
	pgpx_shmem_require();
	if (PG_ARGISNULL(at))
		pgpx_arg_raise_null("lease");
	return PG_GETARG_INT64(at);
}

double
pgpx_arg_interval(FunctionCallInfo fcinfo, int at)
{
	const Interval *interval = PG_GETARG_INTERVAL_P(at);

	if (PGPX_INTERVAL_NOT_FINITE(interval))
		return interval->month < 0 ? -HUGE_VAL : HUGE_VAL;
	return interval->time / 1000.0 +
		interval->day * (double) SECS_PER_DAY * 1000.0 +
		interval->month * (double) DAYS_PER_MONTH * SECS_PER_DAY * 1000.0;
}

char *
pgpx_arg_interval_text(FunctionCallInfo fcinfo, int at)
{
	return DatumGetCString(
		DirectFunctionCall1(interval_out, PG_GETARG_DATUM(at)));
}

int64
pgpx_arg_timeout(FunctionCallInfo fcinfo, int at)
{
	double		ms;

	if (PG_NARGS() <= at || PG_ARGISNULL(at))
		return PGPX_TIMEOUT_DEFAULT;
	ms = pgpx_arg_interval(fcinfo, at);
	if (ms == HUGE_VAL)
		return 0;
	if (ms < 0 || ms > TIMEOUT_MAX_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout is out of range"),
				 errdetail("The timeout is \"%s\", and must be between 0 and 10 years.",
						   pgpx_arg_interval_text(fcinfo, at)),
				 errhint("A timeout of 0 means no limit.")));
	return (int64) ceil(ms);
}

PgpxTime
pgpx_arg_deadline(FunctionCallInfo fcinfo, int at)
{
	int64		timeout_ms = pgpx_arg_timeout(fcinfo, at);

	return timeout_ms == PGPX_TIMEOUT_DEFAULT || timeout_ms == 0 ? 0 :
		pgpx_now() + timeout_ms * 1000;
}

ReturnSetInfo *
pgpx_arg_column_list(FunctionCallInfo fcinfo, const char *function,
					 const char *alternative)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0 ||
		rsinfo->expectedDesc == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s must be called in FROM with a column list", function),
				 errhint("Write SELECT * FROM %s(...) AS t(id bigint, name text).%s",
						 function, alternative)));
	return rsinfo;
}

void
pgpx_arg_require_admin(Oid server, const char *name)
{
	Oid			user = GetUserId();

	if (!has_privs_of_role(user, ROLE_PG_SIGNAL_BACKEND) &&
		!pgpx_server_ownercheck(server, user))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_FOREIGN_SERVER, name);
}
