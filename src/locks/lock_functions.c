/*-------------------------------------------------------------------------
 *
 * lock_functions.c
 *	  SQL functions on distributed locks, the view "locks", and the hooks
 *	  through which lower layers call the functions of locks/.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "shared/invariants.h"
#include "shared/lock_hooks.h"
#include "session/checkout.h"
#include "api/arguments.h"
#include "api/views.h"
#include "locks/lock_pinger.h"
#include "locks/lock_session.h"

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

/*
 * Return the argument "name".  Raise 22023 if it is empty or too long for a
 * PgpxLock.
 */
static char *
arg_name(FunctionCallInfo fcinfo, int at)
{
	char	   *name = pgpx_arg_text(fcinfo, at, "name");
	int			len = strlen(name);

	if (len == 0 || len >= PGPX_LOCK_NAME_LEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 len == 0 ? errmsg("lock name is empty") :
				 errmsg("lock name is too long"),
				 errdetail("The name has %d bytes, and must have between 1 and %d.",
						   len, PGPX_LOCK_NAME_LEN - 1)));
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
				 errdetail("The ttl is \"%s\", and must be between 1 second and 1 day.",
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

/*
 * lock, lock_xact (pool text, name text, timeout interval, ttl interval, why
 * text); try_lock, try_lock_xact without timeout: NULL if the lock is not free
 */
static Datum
acquire(FunctionCallInfo fcinfo, PgpxScope scope, bool only_try)
{
	PgpxLockCall call = {.scope = scope, .only_try = only_try};
	int			at = 2;
	int64		token;

	pgpx_shmem_require();
	pgpx_lease_require_unrestricted();
	call.server = pgpx_arg_text(fcinfo, 0, "pool");
	call.name = arg_name(fcinfo, 1);
	call.timeout_ms = only_try ? PGPX_TIMEOUT_DEFAULT :
		pgpx_arg_timeout(fcinfo, at++);
	call.ttl_ms = arg_ttl(fcinfo, at++);
	call.why = pgpx_arg_text_or_null(fcinfo, at);
	token = pgpx_lock_acquire(&call);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

Datum
pgpx_lock(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, PGPX_SCOPE_SESSION, false);
}

Datum
pgpx_lock_xact(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, PGPX_SCOPE_TRANSACTION, false);
}

Datum
pgpx_try_lock(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, PGPX_SCOPE_SESSION, true);
}

Datum
pgpx_try_lock_xact(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, PGPX_SCOPE_TRANSACTION, true);
}

/* lock_valid(pool text, name text, token bigint) returns boolean */
Datum
pgpx_lock_valid(PG_FUNCTION_ARGS)
{
	char	   *server;

	pgpx_shmem_require();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	PG_RETURN_BOOL(pgpx_lock_is_valid(server, arg_name(fcinfo, 1),
									  arg_token(fcinfo, 2)));
}

/*
 * unlock(pool text, name text, token bigint) returns boolean: true if held;
 * NULL if the remote has not confirmed it
 */
Datum
pgpx_unlock(PG_FUNCTION_ARGS)
{
	char	   *server;

	pgpx_shmem_require();
	pgpx_lease_require_unrestricted();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	switch (pgpx_lock_unlock(server, arg_name(fcinfo, 1),
							 arg_token(fcinfo, 2)))
	{
		case PGPX_LOCK_RELEASED:
			PG_RETURN_BOOL(true);
		case PGPX_LOCK_NOT_OWNER:
			PG_RETURN_BOOL(false);
		default:
			PG_RETURN_NULL();
	}
}

static void
do_setup(PgpxLease *lease, void *arg)
{
	pgpx_lock_create_schema(lease);
}

/* lock_setup(pool text) returns void */
Datum
pgpx_lock_setup(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	pgpx_call_with_lease(pgpx_arg_text(fcinfo, 0, "pool"), do_setup, NULL);
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

	force->held = pgpx_lock_release_by_force(lease, force->name);
}

/* lock_force_release(pool text, name text) returns boolean: true if held */
Datum
pgpx_lock_force_release(PG_FUNCTION_ARGS)
{
	char	   *server;
	Force		force;

	pgpx_shmem_require();
	pgpx_lease_require_unrestricted();
	server = pgpx_arg_text(fcinfo, 0, "pool");
	force.name = arg_name(fcinfo, 1);
	pgpx_arg_require_admin(GetForeignServerByName(server, false)->serverid,
						   server);
	pgpx_call_with_lease(server, do_force, &force);
	PG_RETURN_BOOL(force.held);
}

/* Columns of lock_status. */
enum
{
	S_NAME,
	S_STATE,
	S_INSTANCE,
	S_HOLDER,
	S_WHY,
	S_SINCE,
	S_TOKEN,
	S_LAST_PING,
	S_EXPIRES,
};

/*
 * Return whether the current user may see the holder of a row of lock_status.
 * The rule is that of view "locks".  A row of another server, or of a lock that
 * was released, names no local role.
 */
static bool
may_see_row(const PgpxServerSpec *spec, TupleTableSlot *row)
{
	PgpxLock	lock;

	if (pgpx_lock_may_see_all())
		return true;
	for (int at = S_NAME; at <= S_TOKEN; at++)
		if (row->tts_isnull[at] && at != S_WHY)
			return false;
	if (strcmp(TextDatumGetCString(row->tts_values[S_INSTANCE]),
			   pgpx_shared->instance) != 0)
		return false;
	for (int i = 0; i < pgpx_locks_end(); i++)
		if (pgpx_lock_copy(i, &lock) &&
			lock.key.database == spec->key.database &&
			lock.key.server == spec->key.server &&
			lock.token == DatumGetInt64(row->tts_values[S_TOKEN]) &&
			strcmp(lock.name,
				   TextDatumGetCString(row->tts_values[S_NAME])) == 0)
			return pgpx_lock_may_see(&lock);
	return false;
}

static void
do_status(PgpxLease *lease, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Tuplestorestate *store = tuplestore_begin_heap(false, false, work_mem);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(rsinfo->setDesc,
													&TTSOpsMinimalTuple);
	Datum		hidden = CStringGetTextDatum(PGPX_HIDDEN);

	pgpx_lock_list(lease, rsinfo->setDesc, store);
	while (tuplestore_gettupleslot(store, true, false, slot))
	{
		slot_getallattrs(slot);
		if (!may_see_row(lease->spec, slot))
		{
			slot->tts_values[S_HOLDER] = slot->tts_values[S_WHY] = hidden;
			slot->tts_isnull[S_HOLDER] = slot->tts_isnull[S_WHY] = false;
			slot->tts_isnull[S_TOKEN] = true;
		}
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 slot->tts_values, slot->tts_isnull);
	}
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(store);
}

/* lock_status(pool text) returns setof lock_status_row */
Datum
pgpx_lock_status(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	InitMaterializedSRF(fcinfo, 0);
	pgpx_call_with_lease(pgpx_arg_text(fcinfo, 0, "pool"), do_status,
						 fcinfo->resultinfo);
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(pgpx_view_locks);

static const char *
state_name(int state)
{
	switch (state)
	{
		case PGPX_LOCK_HELD:
			return "held";
		case PGPX_LOCK_LOST:
			return "lost";
		default:
			return "releasing";
	}
}

/* locks() returns setof locks_row */
Datum
pgpx_view_locks(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxLock	lock;

	pgpx_row_begin(&row, fcinfo);
	for (int i = 0; i < pgpx_locks_end(); i++)
	{
		bool		visible;
		int			state;

		if (!pgpx_lock_copy(i, &lock) || lock.state == PGPX_LOCK_REQUESTED)
			continue;
		visible = pgpx_lock_may_see(&lock);

		/* no process may have marked it lost since it expired */
		state = lock.state == PGPX_LOCK_HELD &&
				pgpx_steady_now() >= lock.valid_until ?
			PGPX_LOCK_LOST : lock.state;
		pgpx_row_name(&row, NameStr(lock.database_name));
		pgpx_row_name(&row, NameStr(lock.server_name));
		pgpx_row_secret(&row, visible, lock.name);
		if (visible && lock.token != 0)
			pgpx_row_bigint(&row, lock.token);
		else
			pgpx_row_null(&row);
		pgpx_row_text(&row, state_name(state));
		pgpx_row_int_or_null(&row, lock.owner_pid);
		pgpx_row_role(&row, lock.owner_user);
		pgpx_row_secret(&row, visible, lock.why[0] ? lock.why : NULL);
		pgpx_row_instant(&row, lock.since);
		pgpx_row_instant(&row, lock.last_ping);
		pgpx_row_instant(&row, pgpx_lock_to_now(lock.valid_until));
		pgpx_row_interval(&row, lock.ttl_ms * 1000);
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}

/* --- verification -------------------------------------------------------- */

static void
check_lock(PgpxCheck *check, int slot, PgpxTime now)
{
	PgpxLock   *lock = &pgpx_locks[slot];

	if (lock->state < PGPX_LOCK_FREE || lock->state > PGPX_LOCK_DONE)
	{
		pgpx_check_fault(check, "lock in slot %d has state %d", slot, lock->state);
		return;
	}
	if (lock->name[0] == '\0' || lock->ttl_ms <= 0 || lock->request == 0 ||
		lock->pool < 0 || lock->pool >= pgpx_shared->max_pools)
		pgpx_check_fault(check, "lock in slot %d lacks a name, a ttl, a request or a pool",
						 slot);

	/* the exit callback releases a lock before the process is gone */
	if ((lock->state != PGPX_LOCK_RELEASING || lock->awaited) &&
		!pgpx_check_is_alive(lock->owner_procno, lock->owner_pid))
		pgpx_check_fault(check, "lock in slot %d belongs to PID %d, which does not exist",
						 slot, lock->owner_pid);
	if (lock->state == PGPX_LOCK_DONE && !lock->awaited)
		pgpx_check_fault(check, "lock in slot %d has a result that no session awaits",
						 slot);
	if (lock->state != PGPX_LOCK_HELD)
		return;
	if (lock->token <= 0 || lock->sent_at > now ||
		lock->valid_until !=
			pgpx_lock_certain_until(lock->sent_at, lock->ttl_ms))
		pgpx_check_fault(check, "lock in slot %d is held without a token, or for longer than its ttl",
						 slot);
	for (int i = 0; i < slot; i++)
		if (pgpx_locks[i].state == PGPX_LOCK_HELD &&
			pgpx_locks[i].valid_until > now && lock->valid_until > now &&
			strcmp(pgpx_locks[i].name, lock->name) == 0 &&
			memcmp(&pgpx_locks[i].key, &lock->key, sizeof(lock->key)) == 0)
			pgpx_check_fault(check, "locks in slots %d and %d are the same lock, and both are held",
							 i, slot);
}

/* Verify the table of locks.  Under locks_lock, faults are only recorded. */
static void
check_locks(PgpxCheck *check)
{
	LWLockAcquire(pgpx_shared->locks_lock, LW_SHARED);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
	{
		if (pgpx_locks[i].state != PGPX_LOCK_FREE)
			check_lock(check, i, pgpx_steady_now());
		if (pgpx_locks[i].state != PGPX_LOCK_FREE && i >= pgpx_locks_end())
			pgpx_check_fault(check, "lock in slot %d is in use, but slots end at %d",
							 i, pgpx_locks_end());
	}
	LWLockRelease(pgpx_shared->locks_lock);
}

/* --- hooks for lower layers --------------------------------------------- */

static Size
shmem_size(void)
{
	return MAXALIGN(mul_size(pgpx_max_locks, sizeof(PgpxLock)));
}

static void
shmem_attach(char *at)
{
	pgpx_locks = (PgpxLock *) at;
}

static const PgpxLockHooks hooks = {
	.shmem_size = shmem_size,
	.shmem_attach = shmem_attach,
	.pool_has_locks = pgpx_lock_pool_has_locks,
	.check = check_locks,
	.release_all = pgpx_lock_release_all,
	.next_held = pgpx_lock_next_held,
	.lose = pgpx_lock_lose,
	.at_session_exit = pgpx_lock_at_exit,
	.release_abandoned = pgpx_lock_sweep,
	.ping = pgpx_lock_pinger_run,
	.ready = pgpx_lock_pinger_ready,
	.conninfo_published = pgpx_lock_pinger_conninfo_published,
	.descriptors = pgpx_lock_pinger_descriptors,
};

void
pgpx_lock_hooks_init(void)
{
	pgpx_lock_hooks = &hooks;
}
