/*-------------------------------------------------------------------------
 *
 * fn_lease.c
 *	  SQL functions: checkout and checkin.
 *
 * Arguments are checked here; the work is done in checkout.c and lease.c.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "fn_args.h"
#include "lease.h"

PG_FUNCTION_INFO_V1(pgpx_checkout);
PG_FUNCTION_INFO_V1(pgpx_checkout_xact);
PG_FUNCTION_INFO_V1(pgpx_try_checkout);
PG_FUNCTION_INFO_V1(pgpx_checkin);
PG_FUNCTION_INFO_V1(pgpx_discard);
PG_FUNCTION_INFO_V1(pgpx_checkin_all);

static Datum
checkout(FunctionCallInfo fcinfo, PgpxScope scope)
{
	char	   *server;
	PgpxLease  *lease;

	pgpx_shmem_require();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	lease = pgpx_lease_checkout(server, pgpx_arg_timeout(fcinfo, 1), false,
								scope,
								pgpx_arg_text_or_null(fcinfo, 2));
	PG_RETURN_INT64((int64) lease->id);
}

/* checkout(pool text, timeout interval, why text) returns bigint */
Datum
pgpx_checkout(PG_FUNCTION_ARGS)
{
	return checkout(fcinfo, PGPX_SCOPE_SESSION);
}

/* checkout_xact(pool text, timeout interval, why text) returns bigint */
Datum
pgpx_checkout_xact(PG_FUNCTION_ARGS)
{
	return checkout(fcinfo, PGPX_SCOPE_TRANSACTION);
}

/* try_checkout(pool text, why text) returns bigint: NULL if none is free now */
Datum
pgpx_try_checkout(PG_FUNCTION_ARGS)
{
	char	   *server;
	PgpxLease  *lease;

	pgpx_shmem_require();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	lease = pgpx_lease_checkout(server, 0, true, PGPX_SCOPE_SESSION,
								pgpx_arg_text_or_null(fcinfo, 1));
	if (lease == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) lease->id);
}

/* checkin(lease bigint) returns void */
Datum
pgpx_checkin(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	pgpx_lease_return(pgpx_lease_for_return(pgpx_arg_lease(fcinfo, 0)),
					  PGPX_END_CHECKIN, true);
	PG_RETURN_VOID();
}

/* discard(lease bigint) returns void: close it instead of keeping it */
Datum
pgpx_discard(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	pgpx_lease_return(pgpx_lease_for_return(pgpx_arg_lease(fcinfo, 0)),
					  PGPX_END_DISCARD, true);
	PG_RETURN_VOID();
}

/* checkin_all() returns integer: how many leases were returned */
Datum
pgpx_checkin_all(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	PG_RETURN_INT32(pgpx_lease_return_all());
}
