/*-------------------------------------------------------------------------
 *
 * fn_lock.c
 *	  SQL functions: distributed locks.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "utils/builtins.h"

#include "dlock_remote.h"
#include "dlock_session.h"
#include "fn_args.h"

PG_FUNCTION_INFO_V1(pgpx_lock_setup);
PG_FUNCTION_INFO_V1(pgpx_lock);
PG_FUNCTION_INFO_V1(pgpx_lock_xact);
PG_FUNCTION_INFO_V1(pgpx_try_lock);
PG_FUNCTION_INFO_V1(pgpx_try_lock_xact);
PG_FUNCTION_INFO_V1(pgpx_lock_valid);
PG_FUNCTION_INFO_V1(pgpx_unlock);
PG_FUNCTION_INFO_V1(pgpx_lock_force_release);
PG_FUNCTION_INFO_V1(pgpx_lock_status);

#define TTL_MIN_MS 1000
#define TTL_MAX_MS (86400 * 1000)

/* A lock's name: not empty, and within what a row of ours can hold. */
static char *
arg_name(FunctionCallInfo fcinfo, int at)
{
	char	   *name = pgpx_arg_text(fcinfo, at, "name");
	int			len = strlen(name);

	if (len == 0 || len >= PGPX_DLOCK_NAME_LEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock name is %s", len == 0 ? "empty" : "too long"),
				 errdetail("It has %d bytes, and must have between 1 and %d.",
						   len, PGPX_DLOCK_NAME_LEN - 1)));
	return name;
}

static int64
arg_ttl(FunctionCallInfo fcinfo, int at)
{
	double		ms;

	if (PG_ARGISNULL(at))
		pgpx_arg_raise_null("ttl");
	ms = pgpx_arg_interval(fcinfo, at);
	if (ms < TTL_MIN_MS || ms > TTL_MAX_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl is out of range"),
				 errdetail("It is \"%s\", and must be between 1 second and 1 day.",
						   pgpx_arg_interval_text(fcinfo, at))));
	return (int64) ms;
}

static int64
arg_token(FunctionCallInfo fcinfo, int at)
{
	if (PG_ARGISNULL(at))
		pgpx_arg_raise_null("token");
	return PG_GETARG_INT64(at);
}

/* (pool text, name text, timeout interval, ttl interval, why text) */
static Datum
lock(FunctionCallInfo fcinfo, PgpxScope scope)
{
	PgpxDlockCall call = {.scope = scope};

	pgpx_shmem_require();
	call.server = pgpx_arg_text(fcinfo, 0, "pool");
	call.name = arg_name(fcinfo, 1);
	call.timeout = pgpx_arg_timeout(fcinfo, 2);
	call.ttl = arg_ttl(fcinfo, 3);
	call.why = pgpx_arg_text_or_null(fcinfo, 4);
	PG_RETURN_INT64(pgpx_dlock_lock(&call));
}

/* (pool text, name text, ttl interval, why text): NULL if it is another's */
static Datum
try_lock(FunctionCallInfo fcinfo, PgpxScope scope)
{
	PgpxDlockCall call = {.scope = scope, .only_try = true};
	int64		token;

	pgpx_shmem_require();
	call.server = pgpx_arg_text(fcinfo, 0, "pool");
	call.name = arg_name(fcinfo, 1);
	call.timeout = PGPX_TIMEOUT_DEFAULT;
	call.ttl = arg_ttl(fcinfo, 2);
	call.why = pgpx_arg_text_or_null(fcinfo, 3);
	token = pgpx_dlock_lock(&call);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* lock(..) returns bigint: the token */
Datum
pgpx_lock(PG_FUNCTION_ARGS)
{
	return lock(fcinfo, PGPX_SCOPE_SESSION);
}

/* lock_xact(..) returns bigint */
Datum
pgpx_lock_xact(PG_FUNCTION_ARGS)
{
	return lock(fcinfo, PGPX_SCOPE_TRANSACTION);
}

/* try_lock(..) returns bigint */
Datum
pgpx_try_lock(PG_FUNCTION_ARGS)
{
	return try_lock(fcinfo, PGPX_SCOPE_SESSION);
}

/* try_lock_xact(..) returns bigint */
Datum
pgpx_try_lock_xact(PG_FUNCTION_ARGS)
{
	return try_lock(fcinfo, PGPX_SCOPE_TRANSACTION);
}

/* lock_valid(pool text, name text, token bigint) returns boolean */
Datum
pgpx_lock_valid(PG_FUNCTION_ARGS)
{
	char	   *server;

	pgpx_shmem_require();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	PG_RETURN_BOOL(pgpx_dlock_valid(server, arg_name(fcinfo, 1),
									arg_token(fcinfo, 2)));
}

/* unlock(pool text, name text, token bigint) returns boolean: was it held? */
Datum
pgpx_unlock(PG_FUNCTION_ARGS)
{
	char	   *server;

	pgpx_shmem_require();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	switch (pgpx_dlock_unlock(server, arg_name(fcinfo, 1),
							  arg_token(fcinfo, 2)))
	{
		case PGPX_DLOCK_UNLOCKED:
			PG_RETURN_BOOL(true);
		case PGPX_DLOCK_WAS_NOT_HELD:
			PG_RETURN_BOOL(false);
		default:
			PG_RETURN_NULL();
	}
}

/*
 * Do something on a connection of the call's pool, which goes back with the call,
 * also after an error.
 */
static void
on_lease_for_call(FunctionCallInfo fcinfo,
				  void (*work)(PgpxLease *lease, void *arg), void *arg)
{
	PgpxLease  *lease;

	lease = pgpx_lease_checkout(pgpx_arg_text(fcinfo, 0, "pool"),
								PGPX_TIMEOUT_DEFAULT, false, PGPX_SCOPE_CALL,
								NULL);
	PG_TRY();
	{
		work(lease, arg);
	}
	PG_CATCH();
	{
		pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
}

static void
do_setup(PgpxLease *lease, void *arg)
{
	pgpx_dlock_make(lease);
}

/* lock_setup(pool text) returns void */
Datum
pgpx_lock_setup(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	on_lease_for_call(fcinfo, do_setup, NULL);
	PG_RETURN_VOID();
}

typedef struct Force
{
	const char *name;
	bool		held;
} Force;

static void
do_force(PgpxLease *lease, void *arg)
{
	Force	   *force = arg;

	force->held = pgpx_dlock_force(lease, force->name);
}

/* lock_force_release(pool text, name text) returns boolean: was it held? */
Datum
pgpx_lock_force_release(PG_FUNCTION_ARGS)
{
	char	   *server;
	Force		force;

	pgpx_shmem_require();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	force.name = arg_name(fcinfo, 1);
	pgpx_arg_require_steering(GetForeignServerByName(server, false)->serverid,
							  server);
	on_lease_for_call(fcinfo, do_force, &force);
	PG_RETURN_BOOL(force.held);
}

static void
do_status(PgpxLease *lease, void *arg)
{
	ReturnSetInfo *rsinfo = arg;

	pgpx_dlock_status(lease, rsinfo->setDesc, rsinfo->setResult);
}

/* lock_status(pool text) returns setof record */
Datum
pgpx_lock_status(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	InitMaterializedSRF(fcinfo, 0);
	on_lease_for_call(fcinfo, do_status, fcinfo->resultinfo);
	return (Datum) 0;
}
