/*-------------------------------------------------------------------------
 *
 * lock_session.c
 *	  Distributed locks of a session: acquire, validate, release.
 *
 * Acquisition: the session waits in the queue of its pool until it is first,
 * and then sends requests to the remote until the lock is granted or the
 * timeout expires.  Each request runs in a subtransaction of its own, so that
 * a lost connection ends the request and not the acquisition.  The session
 * does not assume what the remote did with a request whose answer is lost.
 * The next request has the same request number, and acquires the lock if the
 * lost request did.  If no request follows, the worker releases the lock.
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
 * Process exit: see lock_table.c.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/lock_session.h"

#include <unistd.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "common/pg_prng.h"
#include "mb/pg_wchar.h"
#include "postmaster/postmaster.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/backoff.h"
#include "base/debug_point.h"
#include "protocol/remote_message.h"
#include "session/checkout.h"
#include "session/deadlock.h"
#include "session/lease.h"

/* lock_timeout at the remote: transactions with fence_check hold row locks. */
#define LOCK_TIMEOUT_MS 1000

/* lock_timeout at the remote for an acquisition that must not wait. */
#define TRY_LOCK_TIMEOUT_MS 100

/*
 * Failed requests in a row that end an acquisition that must not wait, or one
 * whose remote server is read-only.
 */
#define TRIES_MAX 3

/* The state of an acquisition in progress. */
typedef struct LockWait
{
	const PgpxLockCall *call;
	PgpxServerSpec *spec;		/* pinned */
	PgpxTime	started;
	int64		timeout_ms;		/* for the error */
	PgpxTime	deadline;		/* 0: no limit */
	PgpxLock	lock;			/* the lock to acquire */

	/* the lock requests */
	int			slot;			/* in the lock table; -1: none */
	bool		outstanding;	/* a request is outstanding */
	bool		unanswered;		/* an answer was lost: may be granted */
	PgpxTime	sent_at;
	bool		reached;		/* the remote has answered before */
	int			failures;		/* unanswered requests in a row */
	MemoryContext cxt;			/* of the last request's result: */
	PgpxLockAnswer answer;
	ErrorData  *error;			/* NULL: none */

	bool		local;			/* held by a session of this server */
	PgpxLock	other;			/* that session's lock */
} LockWait;

static bool is_held_by_me(uint64 queue, const char *name);

static bool may_hold_locks = false; /* this session has requested one */

/* Return the timeout of a checkout for this call, in ms; 0: no limit. */
static int64
checkout_timeout(const LockWait *w)
{
	if (w->call->only_try)
		return PGPX_TIMEOUT_DEFAULT;
	return w->deadline == 0 ? 0 :
		Max((w->deadline - pgpx_now() + 999) / 1000, 1);
}

/*
 * Set the pool key of the lock and its queue.  Raise 55000 if the options of
 * the server were changed in this transaction: the pool with these options ends
 * with the transaction, so it could not ping the lock afterwards.
 */
static void
set_key(LockWait *w, const PgpxServerSpec *spec)
{
	if (TransactionIdIsValid(spec->key.xid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("options of server \"%s\" were changed in this transaction",
						NameStr(spec->server_name)),
				 errdetail("A distributed lock needs options that other sessions can see, because the pool worker pings it."),
				 errhint("Commit before you acquire a lock through the server.")));
	w->lock.key = spec->key;
	w->lock.queue = pgpx_lock_queue(spec, w->lock.name);
}

/*
 * End an acquisition without a lock: free the slot, or release the lock if the
 * remote may have granted it.
 */
static void
abandon_acquisition(LockWait *w)
{
	if (w->slot < 0)
		return;
	if (w->unanswered || w->outstanding || w->answer.token != 0)
		pgpx_lock_release(w->slot, false);
	else
		pgpx_lock_refused(w->slot);
	w->slot = -1;
	w->unanswered = false;
}

/*
 * Allocate the slot of the lock, once its pool is known from a lease.  If the
 * catalogs resolve to another pool than for the previous request, abandon that
 * request: the lock would have the key of the previous pool, and
 * pgpx_lock_find would not find it under the new one.
 */
static void
allocate_slot(LockWait *w, PgpxLease *lease)
{
	PgpxServerSpec *spec = lease->spec;
	PgpxPool   *pool = &pgpx_pools[spec->pool];
	bool		same = w->lock.queue == pgpx_lock_queue(spec, w->lock.name);

	if (w->slot >= 0 && w->lock.pool_id == spec->pool_id && same)
		return;
	abandon_acquisition(w);
	if (memcmp(&w->lock.key, &spec->key, sizeof(spec->key)) != 0 || !same)
	{
		pgpx_lock_dequeue();
		set_key(w, spec);
		if (!w->call->only_try)
			pgpx_lock_enqueue(&w->lock);
	}
	w->lock.pool = spec->pool;
	w->lock.pool_id = spec->pool_id;
	w->lock.worker = lease->worker;
	w->lock.database_name = pool->database_name;
	w->lock.server_name = pool->server_name;
	w->slot = pgpx_lock_alloc(&w->lock);
	if (w->slot < 0)
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("too many distributed locks"),
				 errdetail("All %d slots are in use.", pgpx_shared->max_locks),
				 errhint("Raise \"pgpool_ext.max_locks\".")));
}

/*
 * Send one request on a connection of the pool.  If the remote answers that
 * the request number was granted and released before, repeat once with a new
 * number.
 */
static void
send_request(LockWait *w)
{
	PgpxLease  *lease;
	PgpxTime	until;
	int64		lock_timeout = Min(LOCK_TIMEOUT_MS, w->call->ttl_ms / 4);

	lease = pgpx_lease_checkout(w->call->server, checkout_timeout(w), false,
								PGPX_SCOPE_CALL,
								w->lock.why[0] == '\0' ? NULL : w->lock.why);
	allocate_slot(w, lease);
	until = pgpx_lease_operation_deadline(lease);
	if (w->deadline != 0)
	{
		until = Min(until, w->deadline + 1000 * LOCK_TIMEOUT_MS);
		lock_timeout = Min(lock_timeout, (w->deadline - pgpx_now()) / 1000);
		lock_timeout = Max(lock_timeout, 1);
	}
	if (w->call->only_try)
		lock_timeout = Min(lock_timeout, TRY_LOCK_TIMEOUT_MS);

	for (int i = 0; i == 0 || (i == 1 && w->answer.already_released); i++)
	{
		if (i == 1)
			pgpx_lock_renew(w->slot, &w->lock);

		/* the validity counts from before the request is sent */
		w->outstanding = true;
		w->sent_at = pgpx_steady_now();
		pgpx_lock_request(lease, &w->lock, !w->call->only_try, lock_timeout,
						  until, &w->answer);
		w->outstanding = false;
	}
	PGPX_DEBUG_POINT("lock_answered");
	w->reached = true;
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
}

/*
 * Return whether the request may be repeated after this error.  sent: the
 * request was sent.
 */
static bool
is_transient(const LockWait *w, const ErrorData *error, bool sent)
{
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
			return sent || w->reached || w->unanswered; /* was reachable */
		case ERRCODE_TRANSACTION_ROLLBACK:
			return sent;
		default:
			break;
	}
	switch (error->sqlerrcode)
	{
		case ERRCODE_LOCK_NOT_AVAILABLE:	/* fence_check holds it */
			return sent;
		case ERRCODE_READ_ONLY_SQL_TRANSACTION: /* a primary until now */
			return sent && w->failures < TRIES_MAX;
		default:
			return false;
	}
}

/*
 * Send one lock request and read the answer.  Return false if the request
 * failed and may be repeated; the error is in w->error.  Raise all other
 * errors, see pgpx_lock_acquire.
 */
static bool
request_lock(LockWait *w)
{
	MemoryContext old = MemoryContextSwitchTo(w->cxt);
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool answered = true;
	bool		sent;

	MemoryContextReset(w->cxt);
	memset(&w->answer, 0, sizeof(w->answer));
	w->error = NULL;
	w->outstanding = false;
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
		sent = w->outstanding;
		w->outstanding = false;
		if ((sent && !w->answer.refused) || w->answer.token != 0)
			w->unanswered = true;
		if (!is_transient(w, w->error, sent))
			ReThrowError(w->error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	CurrentResourceOwner = owner;
	w->failures = answered ? 0 : w->failures + 1;
	return answered;
}

/* Return a purpose as part of a message; "" if there is none. */
static char *
purpose(const char *why)
{
	return why == NULL || why[0] == '\0' ? "" : psprintf(" for \"%s\"", why);
}

/*
 * Log that the lock was acquired from a holder that did not release it.  The
 * server of that holder logs the loss.
 */
static void
log_takeover(const LockWait *w)
{
	const PgpxLockAnswer *answer = &w->answer;

	ereport(LOG,
			(errmsg("pgpool_ext took over lock \"%s\" of server \"%s\" of database \"%s\", token " INT64_FORMAT ", from \"%s\"",
					w->lock.name, NameStr(w->lock.server_name),
					NameStr(w->lock.database_name), answer->token,
					answer->holder),
			 errdetail("The lock was held%s since %s, and was not pinged before it expired at %s.",
					   purpose(answer->why), answer->since, answer->expires)));
}

/*
 * Record a grant in shared memory.  Return false if the remote did not grant
 * the lock, or if the validity of the grant has expired already.
 */
static bool
accept_grant(LockWait *w)
{
	if (w->answer.token == 0)
		return false;

	/*
	 * Log the takeover also if the answer is late, because the answer to the
	 * repeated statement does not name the previous holder.
	 */
	if (w->answer.expired)
		log_takeover(w);
	if (pgpx_steady_now() >=
		pgpx_lock_certain_until(w->sent_at, w->lock.ttl_ms))
	{
		w->unanswered = true;
		return false;			/* retry with the same request number */
	}
	pgpx_lock_granted(w->slot, w->answer.token, w->sent_at);
	w->lock.token = w->answer.token;
	return true;
}

/* First pause between two requests; doubled, with jitter. */
#define PAUSE_MIN_US (20 * 1000)

/*
 * Interval at which a waiter that was not woken checks whether it is first and
 * whether a session of this server still holds the lock.
 */
#define CHECK_US (1000 * 1000)

static void
copy_clipped(char *to, size_t size, const char *from)
{
	int			len = strlen(from);

	if (len >= (int) size)
		len = pg_mbcliplen(from, len, size - 1);
	memcpy(to, from, len);
	to[len] = '\0';
}

/* Set the deadline, and the fields of the lock that are known now. */
static void
init_lock(LockWait *w)
{
	const PgpxLockCall *call = w->call;
	PgpxLock   *lock = &w->lock;
	char		host[256] = "";

	w->started = pgpx_now();
	w->timeout_ms = pgpx_effective_checkout_timeout(w->spec, call->timeout_ms);
	w->deadline = call->only_try || w->timeout_ms == 0 ? 0 :
		w->started + w->timeout_ms * 1000;
	(void) gethostname(host, sizeof(host) - 1);
	strlcpy(lock->name, call->name, sizeof(lock->name));
	set_key(w, w->spec);
	lock->owner_user = GetUserId();
	lock->scope = call->scope;
	lock->subid = GetCurrentSubTransactionId();
	lock->ttl_ms = call->ttl_ms;
	copy_clipped(lock->holder, sizeof(lock->holder),
				 psprintf("%s, PID %d of %s:%d",
						  GetUserNameFromId(GetUserId(), false), MyProcPid,
						  pgpx_text_clean(host), PostPortNumber));
	if (call->why != NULL)
		copy_clipped(lock->why, sizeof(lock->why), call->why);
}

/* Return the detail of the error for a lock that was not acquired. */
static char *
timeout_detail(const LockWait *w)
{
	const PgpxLockAnswer *answer = &w->answer;

	if (w->local)
		return psprintf("It is held by PID %d of this server%s since %s.",
						w->other.owner_pid,
						pgpx_lock_may_see(&w->other) ? purpose(w->other.why) : "",
						timestamptz_to_str(pgpx_timestamp(w->other.since)));
	if (w->error != NULL)
		return psprintf("The last answer of the remote server: %s", w->error->message);
	if (answer->held)
		return psprintf("It is held by %s since %s, and expires at %s if it is not pinged.",
						pgpx_lock_may_see_all() ?
							psprintf("\"%s\"%s", answer->holder, purpose(answer->why)) :
							"another server",
						answer->since, answer->expires);
	return "Other sessions wait for the lock, too.";
}

pg_noreturn static void
raise_timeout(LockWait *w)
{
	/* not yet known to a session that was never the first of its queue */
	w->local = w->local || pgpx_lock_is_held_here(w->lock.queue, &w->other);
	if (w->error != NULL &&
		(ERRCODE_TO_CATEGORY(w->error->sqlerrcode) ==
			 ERRCODE_CONNECTION_EXCEPTION ||
		 w->error->sqlerrcode == ERRCODE_READ_ONLY_SQL_TRANSACTION))
		ReThrowError(w->error);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lock \"%s\" of server \"%s\" did not become available within " INT64_FORMAT " ms",
					w->lock.name, NameStr(w->spec->server_name), w->timeout_ms),
			 errdetail_internal("%s", timeout_detail(w))));
}

/*
 * Acquire the lock without waiting.  Return false if it is not free, if a
 * session of this server waits for it, or if the requests fail, with w->error.
 */
static bool
try_now(LockWait *w)
{
	w->local = pgpx_lock_is_held_here(w->lock.queue, &w->other);
	if (w->local || pgpx_lock_has_waiters(&w->lock))
		return false;
	while (!request_lock(w))
		if (w->failures >= TRIES_MAX ||
			w->error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
			return false;
	return accept_grant(w);
}

/* Return the time to sleep before the next request, and double *pause. */
static PgpxTime
next_pause(const LockWait *w, PgpxTime *pause)
{
	PgpxTime	sleep = *pause * (0.5 + pg_prng_double(&pg_global_prng_state));

	*pause = pgpx_backoff_next(*pause, PAUSE_MIN_US, PGPX_LOCK_PAUSE_US);
	if (w->error == NULL && w->answer.held)
		sleep = Min(sleep, w->answer.left_ms * 1000 + 1000);
	return sleep;
}

/*
 * Wait until this session is the first of its queue, and request the lock until
 * it is granted.  Raise 55P03 at the deadline.
 */
static void
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
		if (pgpx_lock_is_first())
		{
			bool		was_local = w->local;

			w->local = pgpx_lock_is_held_here(w->lock.queue, &w->other);
			if (!w->local && was_local)
				next_request_at = 0;
			if (!w->local && now >= next_request_at)
			{
				if (request_lock(w) && accept_grant(w))
					return;
				now = pgpx_now();
				next_request_at = now + next_pause(w, &pause);
			}
			if (!w->local)
				until = next_request_at;
		}
		if (w->deadline != 0)
			until = Min(until, w->deadline);
		else
			pgpx_lease_check_unbounded_wait();
		(void) pgpx_session_wait_latch(until,
									   pgpx_wait_event(&wait_event, "PgpoolLock"));
	}
}

int64
pgpx_lock_acquire(const PgpxLockCall *call)
{
	LockWait *volatile w = palloc0(sizeof(LockWait));
	volatile bool granted = false;

	pgpx_session_register_exit();
	may_hold_locks = true;
	w->call = call;
	w->slot = -1;
	w->cxt = AllocSetContextCreate(CurrentMemoryContext, "pgpool_ext lock",
								   ALLOCSET_DEFAULT_SIZES);
	w->spec = pgpx_server_spec_get(call->server);
	pgpx_server_spec_pin(w->spec);
	PG_TRY();
	{
		init_lock(w);
		if (is_held_by_me(w->lock.queue, call->name))
		{
			if (!call->only_try)
				ereport(ERROR,
						(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
						 errmsg("lock \"%s\" of server \"%s\" is held by this session",
								call->name, call->server),
						 errdetail("The session would wait for itself.")));
		}
		else if (w->call->only_try)
		{
			granted = try_now(w);
			if (!granted && w->failures > 0 &&
				w->error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
				ReThrowError(w->error);
		}
		else
		{
			pgpx_lock_enqueue(&w->lock);
			wait_for_lock(w);
			granted = true;
		}
	}
	PG_FINALLY();
	{
		if (!granted)
			abandon_acquisition(w);
		pgpx_lock_dequeue();
		pgpx_server_spec_unpin(w->spec);
	}
	PG_END_TRY();
	return granted ? w->lock.token : 0;
}

/* Raise a WARNING for the loss of a lock, once for each lock. */
static void
warn_of_loss(int slot, const PgpxLock *lock)
{
	if (!pgpx_lock_mark_loss_reported(slot, lock->request))
		return;
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("lock \"%s\" of server \"%s\" was lost", lock->name,
					NameStr(lock->server_name)),
			 pgpx_lock_may_see(lock) ?
			 errdetail("Another session may hold the lock now. The token was " INT64_FORMAT ".",
					   lock->token) :
			 errdetail("Another session may hold the lock now."),
			 errhint("Data that the lock protects is safe only if the remote server checks the token with fence_check.")));
}

static bool
is_owned_by_me(const PgpxLock *lock)
{
	return lock->owner_procno == (int) MyProcNumber &&
		lock->owner_pid == MyProcPid;
}

bool
pgpx_lock_may_see_all(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

bool
pgpx_lock_may_see(const PgpxLock *lock)
{
	return pgpx_lock_may_see_all() ||
		has_privs_of_role(GetUserId(), lock->owner_user);
}

/*
 * Publish the conninfo if a restarted worker lacks it, so that it can ping and
 * release.  Do nothing if the session uses another pool of the server by now,
 * because it has no conninfo of the lock's pool.
 */
static void
publish_conninfo(PgpxServerSpec *spec, const PgpxLock *lock)
{
	PgpxPool   *pool = &pgpx_pools[lock->pool];
	uint64		incarnation = pgpx_pool_worker_incarnation(pool);
	PgpxTime	timeout = spec->opts.operation_timeout * 1000;

	if (incarnation != 0 && pool->conninfo_incarnation != incarnation &&
		memcmp(&spec->key, &lock->key, sizeof(lock->key)) == 0)
		pgpx_checkout_publish_conninfo(spec, pgpx_now() + timeout, NULL);
}

/*
 * Find a lock of this server.  If this transaction has a pool of its own, look
 * under the key of the pool with the committed options, because locks are
 * acquired only through that pool.  own: also find a lock that this session
 * acquired through another pool of the server, because it had another user
 * mapping or another user then.  Return -1 if there is none.
 */
static int
find_lock(const PgpxServerSpec *spec, const char *name, int64 token, bool own,
		  PgpxLock *lock)
{
	PgpxPoolKey key = spec->key;
	int			slot;

	key.xid = InvalidTransactionId;
	slot = pgpx_lock_find(&key, name, token, lock);
	if (slot >= 0 || !own)
		return slot;
	while ((slot = pgpx_lock_next_own(slot, lock)) >= 0)
		if (lock->key.database == spec->key.database &&
			lock->key.server == spec->key.server && lock->token == token &&
			strcmp(lock->name, name) == 0)
			return pgpx_lock_find(&lock->key, name, token, lock);
	return -1;
}

bool
pgpx_lock_is_valid(const char *server, const char *name, int64 token)
{
	PgpxServerSpec *spec = pgpx_server_spec_get(server);
	PgpxLock	lock;
	int			slot = find_lock(spec, name, token, false, &lock);

	if (slot < 0)
		return false;
	if (lock.state != PGPX_LOCK_HELD)
	{
		if (is_owned_by_me(&lock))
			warn_of_loss(slot, &lock);
		return false;
	}
	publish_conninfo(spec, &lock);
	return pgpx_steady_now() < lock.valid_until;
}

/*
 * Return whether this session holds the lock.  Also release its locks of the
 * same queue that are lost, with a WARNING.
 */
static bool
is_held_by_me(uint64 queue, const char *name)
{
	bool		held = false;
	PgpxLock	lock;

	for (int i = -1; (i = pgpx_lock_next_own(i, &lock)) >= 0;)
	{
		if (lock.queue != queue ||
			pgpx_lock_find(&lock.key, lock.name, lock.token, &lock) != i)
			continue;
		if (lock.state == PGPX_LOCK_LOST)
		{
			warn_of_loss(i, &lock);
			pgpx_lock_release(i, false);
		}
		else if (strcmp(lock.name, name) == 0)
			held = true;
	}
	return held;
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
		(void) pgpx_session_wait_worker(pgpx_pools[lock->pool].worker,
										Min(deadline, now + 1000 * 1000),
										pgpx_wait_event(&wait_event, "PgpoolUnlock"));
	}
	return true;
}

PgpxLockResult
pgpx_lock_unlock(const char *server, const char *name, int64 token)
{
	PgpxServerSpec *spec = pgpx_server_spec_get(server);
	PgpxLockResult result = PGPX_LOCK_UNKNOWN;
	PgpxLock	lock;
	int			slot = find_lock(spec, name, token, true, &lock);
	volatile bool done = false;

	if (slot < 0)
	{
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lock \"%s\" of server \"%s\" is not held with this token",
						name, NameStr(spec->server_name)),
				 errdetail("Token " INT64_FORMAT " was released, or was never granted to this server.",
						   token)));
		return PGPX_LOCK_NOT_OWNER;
	}
	if (!is_owned_by_me(&lock))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lock \"%s\" of server \"%s\" belongs to another session",
						name, NameStr(spec->server_name)),
				 errdetail("It is held by PID %d.", lock.owner_pid)));
	if (lock.owner_user != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lock \"%s\" of server \"%s\" belongs to another user of this session",
						name, NameStr(spec->server_name)),
				 errdetail("It was acquired by \"%s\".",
						   GetUserNameFromId(lock.owner_user, true))));
	if (lock.state == PGPX_LOCK_LOST)
	{
		warn_of_loss(slot, &lock);
		pgpx_lock_release(slot, false);
		return PGPX_LOCK_NOT_OWNER;
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
			break;
		case PGPX_LOCK_NOT_OWNER:
			ereport(WARNING,
					(errcode(ERRCODE_WARNING),
					 errmsg("lock \"%s\" of server \"%s\" was lost", name, server),
					 errdetail("The lock expired on the remote server, or was released by force. The token was " INT64_FORMAT ".",
							   token)));
			break;
		case PGPX_LOCK_UNKNOWN:
			ereport(WARNING,
					(errcode(ERRCODE_WARNING),
					 errmsg("lock \"%s\" of server \"%s\" was released, but the remote server has not confirmed it",
							name, server),
					 errdetail("The lock expires at the latest when its ttl of " INT64_FORMAT " ms has passed.",
							   lock.ttl_ms)));
			break;
	}
	return result;
}

/*
 * Release the locks of a scope; with a valid subid, only those of that
 * subtransaction.
 */
static void
release_scope(PgpxScope scope, SubTransactionId subid)
{
	PgpxLock	lock;

	for (int i = -1; (i = pgpx_lock_next_own(i, &lock)) >= 0;)
		if (lock.scope == scope &&
			(subid == InvalidSubTransactionId || lock.subid == subid))
			pgpx_lock_release(i, false);
}

void
pgpx_lock_release_all(void)
{
	release_scope(PGPX_SCOPE_SESSION, InvalidSubTransactionId);
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
							lock.name, NameStr(lock.server_name)),
					 errhint("Release it first with pgpool.unlock, or acquire it with pgpool.lock.")));
		if (pgpx_lock_find(&lock.key, lock.name, lock.token, &lock) == i &&
			lock.state == PGPX_LOCK_LOST)
			warn_of_loss(i, &lock);
	}
}

void
pgpx_lock_at_xact(XactEvent event)
{
	if (pgpx_lock_own_count == 0)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			check_before_commit(false);
			break;
		case XACT_EVENT_PRE_PREPARE:
			check_before_commit(true);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			release_scope(PGPX_SCOPE_TRANSACTION, InvalidSubTransactionId);
			break;
		default:
			break;
	}
}

void
pgpx_lock_at_subxact(SubXactEvent event, SubTransactionId subid,
					 SubTransactionId parent)
{
	if (pgpx_lock_own_count == 0)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		pgpx_lock_reparent(subid, parent);
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		release_scope(PGPX_SCOPE_TRANSACTION, subid);
}

/* The worker sends the releases. */
void
pgpx_lock_at_exit(void)
{
	PgpxLock	lock;

	if (!may_hold_locks)
		return;
	pgpx_lock_dequeue();
	for (int i = -1; (i = pgpx_lock_next_own(i, &lock)) >= 0;)
		pgpx_lock_release(i, false);
}
