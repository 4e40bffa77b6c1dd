/*-------------------------------------------------------------------------
 *
 * lock_session.c
 *	  Distributed locks of a session: the SQL functions that acquire, validate
 *	  and release them.
 *
 * Acquisition: the session waits in the queue of its pool until it is first,
 * and then sends requests to the remote until the lock is granted or the
 * timeout expires.  The session does not assume what the remote did with a
 * request whose answer is lost.  The next request has the same number
 * and acquires the lock if the lost request did.  If no request follows, the
 * worker releases the lock.
 *
 * Release: the session marks the lock in shared memory, and the worker sends
 * the release to the remote.  All releases work this way: unlock, which waits
 * for the result, and the ends of transactions and sessions, in which nothing
 * may wait or raise an error.
 *
 * The transaction callbacks differ from those of lease.c.  A lease is
 * returned before the commit, because an open remote transaction must be able
 * to prevent the commit.  A lock is released after the commit.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/locks.h"

#include <unistd.h>

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "base/backoff.h"
#include "base/debug_point.h"
#include "protocol/remote_message.h"
#include "session/checkout.h"
#include "session/deadlock.h"
#include "session/statement.h"
#include "api/arguments.h"
#include "api/views.h"
#include "locks/lock_schema.inc"

PG_FUNCTION_INFO_V1(pgpx_lock_setup);
PG_FUNCTION_INFO_V1(pgpx_lock);
PG_FUNCTION_INFO_V1(pgpx_lock_xact);
PG_FUNCTION_INFO_V1(pgpx_lock_valid);
PG_FUNCTION_INFO_V1(pgpx_unlock);
PG_FUNCTION_INFO_V1(pgpx_lock_force_release);
PG_FUNCTION_INFO_V1(pgpx_lock_status);
PG_FUNCTION_INFO_V1(pgpx_view_locks);

#define TTL_MIN_MS 1000
#define TTL_MAX_MS (86400 * 1000)

/* Failed requests in a row that end an acquisition that must not wait. */
#define TRIES_MAX 3

/* How long the answer to a request may arrive after the deadline. */
#define LATE_ANSWER_US (1000 * 1000)

/*
 * Pause between two requests, doubled after each; lock_schema.sql depends on the
 * maximum.
 */
#define PAUSE_MIN_US (20 * 1000)
#define PAUSE_MAX_US (200 * 1000)

/*
 * Interval at which a waiter that was not woken checks whether it is first and
 * whether a session of this server still holds the lock.
 */
#define CHECK_US (1000 * 1000)

/* --- Calls of the functions of schema pgpool_lock ------------------------- */

/*
 * Statements that each connection executes before it calls a function: see
 * lock_schema.sql.
 */
static const char *const verify_sql[] = {exists_sql, owners_sql};

/*
 * Arguments are cast to the exact types of the functions, so that no other
 * function of the same name can be a better match.
 */
static const char request_sql[] =
	"SELECT * FROM pgpool_lock.acquire($1::pg_catalog.text, $2::pg_catalog.text,"
	" $3::pg_catalog.int8, $4::pg_catalog.text, $5::pg_catalog.text,"
	" $6::pg_catalog.interval, $7::pg_catalog.bool)";
static const char force_sql[] =
	"SELECT FROM pgpool_lock.force_release($1::pg_catalog.text) AS held WHERE held";
static const char status_sql[] =
	"SELECT * FROM pgpool_lock.status($1::pg_catalog.bool)";

/*
 * Execute a statement and return its number of rows.  A statement with
 * parameters is a call of a function, and the owners of the schema are verified
 * first, in the same transaction.  Raise 08006 if the deadline passes.  *refused,
 * unless NULL, is set to whether the remote has reported an error, which is then
 * raised: the statement had no effect.
 */
static uint64
execute(PgpxLease *lease, const PgpxStatement *statement, const PgpxSink *sink,
		PgpxTime deadline, bool *refused)
{
	static uint32 wait_event = 0;
	bool		is_call = statement->nparams > 0;
	PgpxPipeline pipeline = {
		.nbefore = lengthof(verify_sql),
		.before = verify_sql,
		.statement = statement,
		.name = "",
		.parse = true,
		.portal = "",
		.describe = true,
	};
	PgpxRun		run = {
		.lease = lease,
		.statement = statement,
		.sink = sink,
		.internal = true,
		.pipeline = is_call ? &pipeline : NULL,
	};

	pgpx_run_check(lease, statement);
	PG_TRY();
	{
		pgpx_run_send(&run, !is_call);
		while (pgpx_run_read(&run, false) != PGPX_RUN_END)
			if (!pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
								   pgpx_wait_event(&wait_event, "PgpoolLock")))
				ereport(ERROR,
						(errcode(ERRCODE_CONNECTION_FAILURE),
						 errmsg("server \"%s\" did not answer in time",
								NameStr(lease->spec->server_name))));
	}
	PG_CATCH();
	{
		pgpx_run_failed(&run, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (refused != NULL)
		*refused = run.error.set;
	return pgpx_run_end(&run);
}

/* The remote's answer to a lock request. */
typedef struct LockAnswer
{
	int64		token;			/* 0: not granted */
	bool		refused;		/* the remote raised an error: no effect */
	bool		already_released;	/* the acquisition needs a new number */

	/*
	 * The holder of a lock that is not granted, or the one from which an
	 * expired lock was acquired.
	 */
	char	   *holder;			/* with its purpose; NULL: none */
	char	   *times;			/* since when, and until when */
} LockAnswer;

/* --- Acquire ------------------------------------------------------------ */

/* The state of an acquisition in progress. */
typedef struct LockWait
{
	const char *server;
	bool		only_try;		/* must not wait */
	const char *holder;			/* shown to others: user, PID, host */
	int64		timeout_ms;		/* for the error */
	PgpxTime	deadline;		/* 0: no limit */
	PgpxLock	lock;			/* what pgpx_lock_alloc gets */
	int			slot;			/* in the lock table; -1: none */

	/* the last request */
	bool		maybe_before;	/* maybe_granted before it was sent */
	PgpxTime	sent_at;
	bool		reached;		/* the remote has answered before */
	int			failures;		/* unanswered requests in a row */
	MemoryContext cxt;			/* of its result: */
	LockAnswer	answer;
	ErrorData  *error;			/* NULL: none */

	bool		local;			/* held by a session of this server */
	PgpxLock	other;			/* that session's lock */
} LockWait;

/* Return whether the current user may see holder, purpose and token of all locks. */
static bool
may_see_all(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* Return whether it may see all of a lock of this server, also its name. */
static bool
may_see(const PgpxLock *lock)
{
	return may_see_all() ||
		has_privs_of_role(GetUserId(), lock->owner_user);
}

/* Raise a WARNING for the loss of a lock of this session, once. */
static void
warn_of_loss(int slot, const PgpxLock *lock)
{
	if (lock->loss_reported)
		return;
	pgpx_locks[slot].loss_reported = true;
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("lock \"%s\" of server \"%s\" was lost", lock->name,
					NameStr(pgpx_lock_pool(lock)->server_name)),
			 errdetail("Another session may hold the lock now."),
			 errhint("Data that the lock protects is safe only if the remote server checks the token with fence_check.")));
}

/*
 * Return whether this session holds the lock.  If the session has lost it,
 * release it with a WARNING.
 */
static bool
is_held_by_me(uint64 queue)
{
	PgpxLock	lock;

	for (int i = -1; (i = pgpx_lock_next_own(i, &lock)) >= 0;)
	{
		if (lock.queue != queue || !pgpx_lock_check_expiry(i, &lock))
			continue;
		if (lock.state != PGPX_LOCK_LOST)
			return true;
		warn_of_loss(i, &lock);
		pgpx_lock_release(i, false);
	}
	return false;
}

/*
 * Enqueue this session with a spec's pool.  Raise 55000 if this transaction has
 * created the server or user mapping, and 53300 if no slot is free for the
 * session.
 *
 * A role that is not a superuser can use half of the slots, so that no role
 * keeps all others from locks.  That is the role that has logged in: a session
 * can change to other roles with SET ROLE.
 */
static void
enqueue(LockWait *w, const PgpxServerSpec *spec)
{
	Oid			role = GetSessionUserId();
	int			slots = pgpx_shared->max_locks;
	int			limit = superuser_arg(role) ? slots : (slots + 1) / 2;
	int			used;

	if (spec->uncommitted)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("server \"%s\" or its user mapping was created in this transaction",
						NameStr(spec->server_name)),
				 errdetail("A distributed lock needs options that other sessions can see, because the pool worker pings it."),
				 errhint("Commit before you acquire a lock through the server.")));
	w->lock.key = spec->key;
	w->lock.queue = pgpx_lock_queue(spec, w->lock.name);
	w->slot = pgpx_lock_alloc(&w->lock, limit, &used);
	if (w->slot < 0)
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("too many distributed locks"),
				 used >= limit && limit < slots ?
				 errdetail("Sessions of role \"%s\" use %d of %d slots. A role that is not a superuser can use half of them.",
						   GetUserNameFromId(role, false), used, slots) :
				 errdetail("All %d slots are in use.", slots),
				 errhint("Raise \"pgpool_ext.max_locks\", or release locks.")));
}

/*
 * If the catalogs resolve to another pool than before, begin again in that
 * pool's queue, because it will ping the lock.
 */
static void
check_pool(LockWait *w, const PgpxServerSpec *spec)
{
	const PgpxLock *lock = &pgpx_locks[w->slot];

	if (memcmp(&lock->key, &spec->key, sizeof(spec->key)) != 0 ||
		lock->queue != pgpx_lock_queue(spec, lock->name) ||
		(lock->pool >= 0 && lock->pool_id != spec->pool_id))
	{
		pgpx_lock_release(w->slot, false);
		w->slot = -1;
		enqueue(w, spec);
	}
}

/* Return the timeout of a checkout for this call, in ms; 0: no limit. */
static int64
checkout_timeout(const LockWait *w)
{
	if (w->only_try)
		return PGPX_TIMEOUT_DEFAULT;
	return w->deadline == 0 ? 0 :
		Max((w->deadline - pgpx_now() + 999) / 1000, 1);
}

/*
 * Request the lock on a lease and read the answer.  The remote records that
 * another server requests the lock if the request will be repeated.  deadline:
 * of the answer; if it passes, 08006 is raised and the outcome is unknown.
 */
static void
ask(LockWait *w, PgpxLease *lease, PgpxTime deadline)
{
	TupleDesc	tupdesc = CreateTemplateTupleDesc(4);
	Tuplestorestate *store = tuplestore_begin_heap(false, false, work_mem);
	TupleTableSlot *row;
	PgpxLock   *lock = &pgpx_locks[w->slot];
	LockAnswer *answer = &w->answer;
	const char *values[] = {
		lock->name,
		pgpx_shared->instance,
		psprintf(UINT64_FORMAT, lock->acquisition),
		w->holder,
		lock->why[0] == '\0' ? NULL : lock->why,
		psprintf(INT64_FORMAT " milliseconds", lock->ttl_ms),
		w->only_try ? "false" : "true",
	};
	PgpxStatement statement = {request_sql, lengthof(values), values};
	PgpxRows   *rows;

	TupleDescInitEntry(tupdesc, 1, "token", INT8OID, -1, 0);
	TupleDescInitEntry(tupdesc, 2, "holder", TEXTOID, -1, 0);
	TupleDescInitEntry(tupdesc, 3, "times", TEXTOID, -1, 0);
	TupleDescInitEntry(tupdesc, 4, "released", BOOLOID, -1, 0);
	TupleDescFinalize(tupdesc);
	rows = pgpx_rows_begin(tupdesc, store, InvalidOid);
	w->maybe_before = lock->maybe_granted;
	lock->maybe_granted = true;

	/* the validity counts from before the request is sent */
	w->sent_at = pgpx_steady_now();
	(void) execute(lease, &statement, pgpx_rows_sink(rows), deadline,
				   &answer->refused);

	/* no row is an answer without a grant */
	row = MakeSingleTupleTableSlot(tupdesc, &TTSOpsMinimalTuple);
	if (!tuplestore_gettupleslot(store, true, true, row))
		ExecStoreAllNullTuple(row);
	slot_getallattrs(row);
	tuplestore_end(store);
	lock->maybe_granted = w->maybe_before || !row->tts_isnull[0];
	answer->token = row->tts_isnull[0] ? 0 : DatumGetInt64(row->tts_values[0]);
	if (!row->tts_isnull[0] && answer->token <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("server \"%s\" has granted a lock with token \"" INT64_FORMAT "\"",
						NameStr(lease->spec->server_name), answer->token)));
	answer->holder = row->tts_isnull[1] || row->tts_isnull[2] ? NULL :
		TextDatumGetCString(row->tts_values[1]);
	answer->times = row->tts_isnull[2] ? NULL :
		TextDatumGetCString(row->tts_values[2]);
	answer->already_released = answer->token == 0 && !row->tts_isnull[3] &&
		DatumGetBool(row->tts_values[3]);
}

/*
 * Send one request on a connection of the pool.  If the remote answers that
 * this acquisition was granted and released before, repeat once with a new
 * number.
 */
static void
send_request(LockWait *w)
{
	PgpxLease  *lease;
	PgpxTime	until;

	lease = pgpx_lease_checkout(pgpx_server_spec_get(w->server),
								checkout_timeout(w), false, PGPX_SCOPE_CALL,
								w->lock.why[0] == '\0' ? NULL : w->lock.why,
								NULL, NULL);
	check_pool(w, lease->spec);
	until = pgpx_lease_operation_deadline(lease);
	if (w->deadline != 0)
		until = Min(until, w->deadline + LATE_ANSWER_US);

	for (int i = 0; i == 0 || (i == 1 && w->answer.already_released); i++)
	{
		pgpx_lock_set_pool(w->slot, lease->spec, i == 1);
		ask(w, lease, until);
	}
	PGPX_DEBUG_POINT("lock_answered");
	w->reached = true;
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
}

/* Return whether the request may be repeated after the error in w->error. */
static bool
is_transient(const LockWait *w)
{
	int			category = ERRCODE_TO_CATEGORY(w->error->sqlerrcode);

	if (category == ERRCODE_CONNECTION_EXCEPTION)
		return w->answer.refused || w->reached ||
			pgpx_locks[w->slot].maybe_granted;
	return w->answer.refused &&
		(category == ERRCODE_TRANSACTION_ROLLBACK ||
		 w->error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE);	/* fence_check
																 * holds it */
}

/*
 * Send one lock request and read the answer.  Return false if the request
 * failed and may be repeated; the error is in w->error.  Raise all other
 * errors.
 *
 * It runs in a subtransaction, so that a lost connection ends the request and
 * not the acquisition.
 */
static bool
request_lock(LockWait *w)
{
	MemoryContext old = MemoryContextSwitchTo(w->cxt);
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool answered = true;

	MemoryContextReset(w->cxt);
	memset(&w->answer, 0, sizeof(w->answer));
	w->error = NULL;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(w->cxt);
	PG_TRY();
	{
		send_request(w);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(w->cxt);
		w->error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		answered = false;

		/*
		 * An error from the remote means that the statement had no effect.
		 * All other errors are local and may have occurred after the grant.
		 */
		if (w->answer.refused)
			pgpx_locks[w->slot].maybe_granted = w->maybe_before;
		if (w->slot < 0 || !is_transient(w))
			ReThrowError(w->error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	CurrentResourceOwner = owner;
	w->failures = answered ? 0 : w->failures + 1;
	return answered;
}

/*
 * Record a grant in shared memory.  Return false if the remote did not grant
 * the lock, or if the validity of the grant has expired already.
 *
 * Log a grant that ends the lock of a holder that did not release it; the
 * holder's server logs the loss.  A late grant is logged, too, because the answer
 * to the repeated request does not name that holder.
 */
static bool
accept_grant(LockWait *w)
{
	const PgpxPool *pool = pgpx_lock_pool(&pgpx_locks[w->slot]);

	if (w->answer.token == 0)
		return false;
	if (w->answer.holder != NULL)
		ereport(LOG,
				(errmsg("pgpool_ext took over lock \"%s\" of server \"%s\" of database \"%s\", token " INT64_FORMAT ", from %s",
						w->lock.name, NameStr(pool->server_name),
						NameStr(pool->database_name), w->answer.token,
						w->answer.holder),
				 errdetail("The lock was held %s.", w->answer.times)));
	return pgpx_lock_granted(w->slot, w->answer.token, w->sent_at);
}

/* Return the detail of the error for a lock that was not acquired. */
static char *
timeout_detail(const LockWait *w)
{
	const LockAnswer *answer = &w->answer;
	const PgpxLock *other = &w->other;

	if (w->local)
		return psprintf("It is held by PID %d of this server%s since %s.",
						other->owner_pid,
						other->why[0] != '\0' && may_see(other) ?
							psprintf(" for \"%s\"", other->why) : "",
						timestamptz_to_str(pgpx_timestamp(other->since)));
	if (w->error != NULL)
		return psprintf("The last answer of the remote server: %s", w->error->message);
	if (answer->holder != NULL && answer->token == 0)
		return psprintf("It is held by %s %s.",
						may_see_all() ? answer->holder : "another server",
						answer->times);
	return "Other sessions wait for the lock, too.";
}

pg_noreturn static void
raise_timeout(LockWait *w)
{
	/* a session that was never the first of its queue has not checked this */
	w->local = w->local || pgpx_lock_is_held_here(w->lock.queue, &w->other);
	if (w->error != NULL &&
		ERRCODE_TO_CATEGORY(w->error->sqlerrcode) ==
			ERRCODE_CONNECTION_EXCEPTION)
		ReThrowError(w->error);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lock \"%s\" of server \"%s\" did not become available within " INT64_FORMAT " ms",
					w->lock.name, w->server, w->timeout_ms),
			 errdetail_internal("%s", timeout_detail(w))));
}

/*
 * Wait until this session is the first of its queue, and request the lock until
 * it is granted.  Raise 55P03 at the deadline.  With only_try, return false if
 * the lock is not free.
 */
static bool
wait_for_lock(LockWait *w)
{
	static uint32 wait_event = 0;
	PgpxTime	pause = PAUSE_MIN_US;
	PgpxTime	next_request_at = 0;

	for (;;)
	{
		PgpxTime	now = pgpx_now();
		PgpxTime	until = now + CHECK_US;

		if (w->deadline != 0 && now >= w->deadline)
			raise_timeout(w);
		if (pgpx_lock_is_first(w->slot))
		{
			w->local = pgpx_lock_is_held_here(w->lock.queue, &w->other);
			if (w->local)
				next_request_at = 0;
			else if (now >= next_request_at)
			{
				if (request_lock(w) && accept_grant(w))
					return true;
				next_request_at = pgpx_now() + pgpx_pool_jitter(pause);
				pause = pgpx_backoff_next(pause, PAUSE_MIN_US, PAUSE_MAX_US);
			}
			if (!w->local)
				until = next_request_at;
		}
		if (w->only_try)
		{
			if (w->local || w->error == NULL || !pgpx_lock_is_first(w->slot) ||
				w->error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
				return false;
			if (w->failures >= TRIES_MAX)
				ReThrowError(w->error);
		}
		else if (w->deadline != 0)
			until = Min(until, w->deadline);
		else
			pgpx_lease_check_unbounded_wait();
		(void) pgpx_session_wait_latch(until,
									   pgpx_wait_event(&wait_event, "PgpoolLock"));
	}
}

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

/*
 * lock, lock_xact (pool text, name text, timeout interval, ttl interval, why
 * text); try_lock, try_lock_xact without timeout: NULL if the lock is not free
 *
 * Raise the errors of a checkout and of the remote; 55P03 if another session
 * holds the lock until the timeout; 40P01 if this session holds it, or waits
 * without a timeout while it holds a lease; 53300 if all slots of the lock table
 * are in use; 55000 if the options of the server were changed in this
 * transaction.
 */
static Datum
acquire(FunctionCallInfo fcinfo, PgpxScope scope)
{
	bool		only_try = PG_NARGS() == 4;
	LockWait   *w = palloc0(sizeof(LockWait));
	PgpxLock   *lock = &w->lock;
	int			at = only_try ? 2 : 3;
	volatile bool granted = false;
	int64		timeout_ms = PGPX_TIMEOUT_DEFAULT;
	double		ttl_ms;
	char	   *why;
	char		host[64] = "";
	PgpxServerSpec *spec;

	w->server = pgpx_arg_pool(fcinfo, 0);
	pgpx_lease_require_unrestricted();
	w->only_try = only_try;
	w->slot = -1;
	strlcpy(lock->name, arg_name(fcinfo, 1), sizeof(lock->name));
	if (!only_try)
		timeout_ms = pgpx_arg_timeout(fcinfo, 2);
	if (PG_ARGISNULL(at))
		pgpx_arg_raise_null("ttl");
	ttl_ms = pgpx_arg_interval(fcinfo, at);
	if (ttl_ms < TTL_MIN_MS || ttl_ms > TTL_MAX_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl is out of range"),
				 errdetail("The ttl is \"%s\", and must be between 1 second and 1 day.",
						   pgpx_arg_interval_text(fcinfo, at))));
	lock->ttl_ms = (int64) ttl_ms;
	why = pgpx_arg_text_or_null(fcinfo, at + 1);
	if (why != NULL)
		strlcpy(lock->why, why,
				pg_mbcliplen(why, strlen(why), sizeof(lock->why) - 1) + 1);
	lock->owner_user = GetUserId();
	lock->scope = scope;
	lock->subid = GetCurrentSubTransactionId();
	(void) gethostname(host, sizeof(host) - 1);
	w->holder = psprintf("%s, PID %d of %s:%d",
						 GetUserNameFromId(GetUserId(), false), MyProcPid,
						 pgpx_text_clean(host), PostPortNumber);

	pgpx_session_register_exit();
	w->cxt = AllocSetContextCreate(CurrentMemoryContext, "pgpool_ext lock",
								   ALLOCSET_DEFAULT_SIZES);
	spec = pgpx_server_spec_get(w->server);
	w->timeout_ms = pgpx_effective_checkout_timeout(spec, timeout_ms);
	if (!only_try && w->timeout_ms != 0)
		w->deadline = pgpx_now() + w->timeout_ms * 1000;
	if (is_held_by_me(pgpx_lock_queue(spec, lock->name)))
	{
		if (only_try)
			PG_RETURN_NULL();
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("lock \"%s\" of server \"%s\" is held by this session",
						lock->name, w->server),
				 errdetail("The session would wait for itself.")));
	}
	enqueue(w, spec);
	PG_TRY();
	{
		granted = wait_for_lock(w);
	}
	PG_FINALLY();
	{
		if (!granted && w->slot >= 0)
			pgpx_lock_release(w->slot, false);
	}
	PG_END_TRY();
	if (!granted)
		PG_RETURN_NULL();
	PG_RETURN_INT64(w->answer.token);
}

Datum
pgpx_lock(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, PGPX_SCOPE_SESSION);
}

Datum
pgpx_lock_xact(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, PGPX_SCOPE_TRANSACTION);
}

/* --- Validate and release ------------------------------------------------ */

/*
 * Publish the conninfo if a restarted worker lacks it, so that it can ping and
 * release.  Do nothing if the session uses another pool of the server by now,
 * because it has no conninfo of the lock's pool.
 */
static void
publish_conninfo(PgpxServerSpec *spec, const PgpxLock *lock)
{
	PgpxPool   *pool = pgpx_lock_pool(lock);
	PgpxTime	timeout = spec->opts.operation_timeout * 1000;

	if (pgpx_pool_worker_incarnation(pool) != 0 && !pool->has_conninfo &&
		memcmp(&spec->key, &lock->key, sizeof(lock->key)) == 0)
		(void) pgpx_checkout_prewarm(spec, 0, pgpx_now() + timeout, NULL);
}

/*
 * Find the lock of the arguments name and token, as pgpx_lock_find does.  If
 * there is none, *lock has the name and the token.
 */
static int
find_lock(FunctionCallInfo fcinfo, const char *server, PgpxServerSpec **spec,
		  PgpxLock *lock)
{
	char	   *name = arg_name(fcinfo, 1);
	int			slot;

	if (PG_ARGISNULL(2))
		pgpx_arg_raise_null("token");
	*spec = pgpx_server_spec_get(server);
	slot = pgpx_lock_find(&(*spec)->key, name, PG_GETARG_INT64(2), lock);
	strlcpy(lock->name, name, sizeof(lock->name));
	lock->token = PG_GETARG_INT64(2);
	return slot;
}

/*
 * lock_valid(pool text, name text, token bigint) returns boolean: whether it is
 * certain that this server holds the lock
 */
Datum
pgpx_lock_valid(PG_FUNCTION_ARGS)
{
	char	   *server = pgpx_arg_pool(fcinfo, 0);
	PgpxServerSpec *spec;
	PgpxLock	lock;
	int			slot = find_lock(fcinfo, server, &spec, &lock);

	if (slot < 0)
		PG_RETURN_BOOL(false);
	if (lock.state == PGPX_LOCK_LOST && pgpx_lock_is_mine(&lock))
		warn_of_loss(slot, &lock);
	if (lock.state != PGPX_LOCK_HELD ||
		memcmp(&lock.key, &spec->key, sizeof(lock.key)) != 0)
		PG_RETURN_BOOL(false);
	publish_conninfo(spec, &lock);
	PG_RETURN_BOOL(pgpx_steady_now() < lock.valid_until);
}

/*
 * Wait until the worker has released the lock at the remote, or all its
 * attempts have failed.  Return false if operation_timeout expires first.
 */
static bool
await_release(PgpxServerSpec *spec, int slot, const PgpxLock *lock,
			  PgpxLockResult *result)
{
	static uint32 wait_event = 0;
	PgpxTime	deadline = pgpx_now() + spec->opts.operation_timeout * 1000;

	while (!pgpx_lock_result(slot, result))
	{
		PgpxTime	now = pgpx_now();

		if (now >= deadline)
			return false;
		publish_conninfo(spec, lock);
		(void) pgpx_session_wait_worker(pgpx_lock_pool(lock)->worker,
										Min(deadline, now + 1000 * 1000),
										pgpx_wait_event(&wait_event, "PgpoolUnlock"));
	}
	return true;
}

/*
 * unlock(pool text, name text, token bigint) returns boolean: true if held;
 * NULL if the remote has not confirmed it within operation_timeout
 */
Datum
pgpx_unlock(PG_FUNCTION_ARGS)
{
	char	   *server = pgpx_arg_pool(fcinfo, 0);
	PgpxServerSpec *spec;
	PgpxLockResult result = PGPX_LOCK_UNKNOWN;
	PgpxLock	lock;
	int			slot = find_lock(fcinfo, server, &spec, &lock);
	volatile bool done = false;

	pgpx_lease_require_unrestricted();
	if (slot < 0)
	{
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lock \"%s\" of server \"%s\" is not held with this token",
						lock.name, server),
				 errdetail("Token " INT64_FORMAT " was released, or was never granted to this server.",
						   lock.token)));
		PG_RETURN_BOOL(false);
	}
	if (!pgpx_lock_is_mine(&lock) || lock.owner_user != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lock \"%s\" of server \"%s\" belongs to another session or user",
						lock.name, server),
				 pgpx_lock_is_mine(&lock) ?
				 errdetail("It was acquired by \"%s\".",
						   GetUserNameFromId(lock.owner_user, true)) :
				 errdetail("It is held by PID %d.", lock.owner_pid)));
	if (lock.state == PGPX_LOCK_LOST)
	{
		warn_of_loss(slot, &lock);
		pgpx_lock_release(slot, false);
		PG_RETURN_BOOL(false);
	}

	PGPX_DEBUG_POINT("unlock");
	pgpx_server_spec_pin(spec);
	pgpx_lock_release(slot, true);
	PG_TRY();
	{
		done = await_release(spec, slot, &lock, &result);
	}
	PG_FINALLY();
	{
		if (!done)
			pgpx_lock_release(slot, false);
		pgpx_server_spec_unpin(spec);
	}
	PG_END_TRY();

	switch (result)
	{
		case PGPX_LOCK_RELEASED:
			PG_RETURN_BOOL(true);
		case PGPX_LOCK_NOT_OWNER:
			ereport(WARNING,
					(errcode(ERRCODE_WARNING),
					 errmsg("lock \"%s\" of server \"%s\" was lost", lock.name, server),
					 errdetail("The lock expired on the remote server, or was released by force. The token was " INT64_FORMAT ".",
							   lock.token)));
			PG_RETURN_BOOL(false);
		default:
			ereport(WARNING,
					(errcode(ERRCODE_WARNING),
					 errmsg("lock \"%s\" of server \"%s\" was released, but the remote server has not confirmed it",
							lock.name, server),
					 errdetail("The lock expires at the latest when its ttl of " INT64_FORMAT " ms has passed.",
							   lock.ttl_ms)));
			PG_RETURN_NULL();
	}
}

/* --- Administration ------------------------------------------------------ */

/* lock_setup(pool text) returns void */
Datum
pgpx_lock_setup(PG_FUNCTION_ARGS)
{
	PgpxStatement statement = {.sql = psprintf("%s;%s", owners_sql, setup_sql)};
	PgpxLease  *lease = pgpx_lease_checkout_call(pgpx_arg_pool(fcinfo, 0),
												 NULL, NULL);

	(void) execute(lease, &statement, NULL, 0, NULL);
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
	PG_RETURN_VOID();
}

/* lock_force_release(pool text, name text) returns boolean: true if held */
Datum
pgpx_lock_force_release(PG_FUNCTION_ARGS)
{
	char	   *server = pgpx_arg_pool(fcinfo, 0);
	const char *name = arg_name(fcinfo, 1);
	PgpxStatement statement = {force_sql, 1, &name};
	PgpxLease  *lease;
	bool		was_held;

	pgpx_lease_require_unrestricted();
	pgpx_arg_require_admin(GetForeignServerByName(server, false)->serverid,
						   server);
	lease = pgpx_lease_checkout_call(server, NULL, NULL);
	was_held = execute(lease, &statement, NULL, 0, NULL) > 0;
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
	PG_RETURN_BOOL(was_held);
}

/* lock_status(pool text) returns setof lock_status_row */
Datum
pgpx_lock_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	const char *show_all = may_see_all() ? "true" : "false";
	PgpxStatement statement = {status_sql, 1, &show_all};
	PgpxLease  *lease = pgpx_lease_checkout_call(pgpx_arg_pool(fcinfo, 0),
												 NULL, NULL);
	PgpxRows   *rows;

	InitMaterializedSRF(fcinfo, 0);
	rows = pgpx_rows_begin(rsinfo->setDesc, rsinfo->setResult, InvalidOid);
	(void) execute(lease, &statement, pgpx_rows_sink(rows), 0, NULL);
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
	return (Datum) 0;
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
		Interval   *ttl;

		if (!pgpx_lock_copy(i, &lock) || lock.state == PGPX_LOCK_REQUESTED)
			continue;
		visible = may_see(&lock);
		pgpx_row_name(&row, NameStr(pgpx_lock_pool(&lock)->database_name));
		pgpx_row_name(&row, NameStr(pgpx_lock_pool(&lock)->server_name));
		pgpx_row_secret(&row, visible, lock.name);
		pgpx_row_append(&row, Int64GetDatum(lock.token),
						!visible || lock.token == 0);
		/* no process may have marked it lost since it expired */
		pgpx_row_text(&row, lock.state == PGPX_LOCK_RELEASING ? "releasing" :
					  lock.state == PGPX_LOCK_HELD &&
						  pgpx_steady_now() < lock.valid_until ? "held" : "lost");
		pgpx_row_int_or_null(&row, lock.owner_pid);
		pgpx_row_name(&row, GetUserNameFromId(lock.owner_user, true));
		pgpx_row_secret(&row, visible, lock.why[0] ? lock.why : NULL);
		pgpx_row_instant(&row, lock.since);
		pgpx_row_instant(&row, lock.last_ping);
		pgpx_row_instant(&row, pgpx_lock_to_now(lock.valid_until));
		ttl = palloc0(sizeof(Interval));
		ttl->time = lock.ttl_ms * 1000;
		pgpx_row_append(&row, IntervalPGetDatum(ttl), false);
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}

/* --- Ends of transactions and sessions ------------------------------------ */

void
pgpx_lock_release_all(void)
{
	PgpxLock	lock;

	for (int i = -1; (i = pgpx_lock_next_own(i, &lock)) >= 0;)
		pgpx_lock_release(i, false);
}

/*
 * Release the locks of transaction scope; with a valid subid, only those of that
 * subtransaction.
 */
static void
release_transaction(SubTransactionId subid)
{
	PgpxLock	lock;

	for (int i = -1; (i = pgpx_lock_next_own(i, &lock)) >= 0;)
		if (lock.scope == PGPX_SCOPE_TRANSACTION &&
			(subid == InvalidSubTransactionId || lock.subid == subid))
			pgpx_lock_release(i, false);
}

/*
 * Warn of lost locks before the commit, because the session cannot be warned
 * later.  prepare: raise an error instead if the transaction holds a lock.
 */
static void
check_before_commit(bool prepare)
{
	PgpxLock	lock;

	for (int i = -1; (i = pgpx_lock_next_own(i, &lock)) >= 0;)
	{
		if (lock.scope != PGPX_SCOPE_TRANSACTION)
			continue;
		if (prepare)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that holds lock \"%s\" of server \"%s\"",
							lock.name,
							NameStr(pgpx_lock_pool(&lock)->server_name)),
					 errhint("Release it first with pgpool.unlock, or acquire it with pgpool.lock.")));
		if (pgpx_lock_check_expiry(i, &lock) && lock.state == PGPX_LOCK_LOST)
			warn_of_loss(i, &lock);
	}
}

void
pgpx_lock_at_xact(XactEvent event)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		check_before_commit(event == XACT_EVENT_PRE_PREPARE);
	else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		release_transaction(InvalidSubTransactionId);
}

void
pgpx_lock_at_subxact(SubXactEvent event, SubTransactionId subid,
					 SubTransactionId parent)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		pgpx_lock_reparent(subid, parent);
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		release_transaction(subid);
}
