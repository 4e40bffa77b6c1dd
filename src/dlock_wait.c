/*-------------------------------------------------------------------------
 *
 * dlock_wait.c
 *	  How a session takes a distributed lock: its turn in this server, the question
 *	  to the remote, and again until it is granted or time is up.
 *
 * Each question is asked in a subtransaction of its own, so that a connection that
 * is lost in the middle of it ends the question and not the wait.  What the remote
 * did then is not assumed: the next question has the same request number, and gets
 * the lock if the one before did; and if none follows, the worker releases it.
 *
 * What happens when the process dies at any line: see dlock.c.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock_session.h"

#include <unistd.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "mb/pg_wchar.h"
#include "postmaster/postmaster.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "dlock_remote.h"
#include "session_wait.h"

/* The pause between two questions, with jitter; doubled. */
#define PAUSE_MIN_US (20 * 1000)

/* Who waits for a lock of this server looks by itself this often, too. */
#define LOOK_US (1000 * 1000)

/* How long the remote may wait for transactions that have checked the token. */
#define PATIENCE_MS 1000

/* The same for a question of one who does not wait himself. */
#define TRY_PATIENCE_MS 100

/* How often a question without a wait is repeated if its answer was lost. */
#define TRIES 3

typedef struct Wait
{
	const PgpxDlockCall *call;
	PgpxTarget *target;			/* pinned */
	PgpxTime	started;
	int64		timeout;		/* ms, for the error */
	bool		no_wait;
	PgpxTime	deadline;		/* 0: for ever */
	PgpxDlock	lock;			/* what we ask for */
	int			place;			/* in shared memory; -1: none yet */
	bool		asked;			/* a question is out */
	bool		unknown;		/* one was not answered: the lock may be ours */
	PgpxTime	asked_at;
	bool		reached;		/* the remote has answered once */
	int			failures;		/* questions in a row that were not answered */
	MemoryContext cxt;			/* of what the last question brought: */
	PgpxDlockAnswer answer;
	ErrorData  *error;			/* NULL: none */
	bool		local;			/* it is another session's of this server */
	PgpxDlock	other;			/* that one's lock */
} Wait;

static void
set_deadline(Wait *w)
{
	int64		timeout = w->call->timeout;

	w->started = pgpx_now();
	w->no_wait = w->call->only_try || timeout == 0;
	timeout = pgpx_lease_timeout(w->target, timeout);
	w->timeout = timeout;
	w->deadline = w->no_wait || timeout == 0 ? 0 :
		w->started + timeout * 1000;
}

/* What is left of the call's time, for a checkout. */
static int64
time_left(const Wait *w)
{
	if (w->deadline == 0)
		return PGPX_TIMEOUT_DEFAULT;
	return Max((w->deadline - pgpx_now()) / 1000, 1);
}

static void
clip(char *to, size_t size, const char *from)
{
	int			len = strlen(from);

	if (len >= (int) size)
		len = pg_mbcliplen(from, len, size - 1);
	memcpy(to, from, len);
	to[len] = '\0';
}

/*
 * Whose pool leads to the lock, and where it is waited for.  A pool that ends with
 * this transaction cannot go on to ping it.
 */
static void
set_key(Wait *w, const PgpxTarget *target)
{
	if (TransactionIdIsValid(target->key.xid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("options of server \"%s\" were changed in this transaction",
						NameStr(target->server_name)),
				 errdetail("A distributed lock is pinged under options that others see, too."),
				 errhint("Commit before you take a lock through the server.")));
	w->lock.key = target->key;
	w->lock.queue = pgpx_dlock_queue(target->key.database, target->key.server,
									 w->lock.name);
}

/* What is known before the remote is asked. */
static void
describe(Wait *w)
{
	const PgpxDlockCall *call = w->call;
	PgpxDlock  *lock = &w->lock;
	char		host[256] = "";

	memset(lock, 0, sizeof(*lock));
	(void) gethostname(host, sizeof(host) - 1);
	strlcpy(lock->name, call->name, sizeof(lock->name));
	set_key(w, w->target);
	lock->owner_user = GetUserId();
	lock->scope = call->scope;
	lock->subid = GetCurrentSubTransactionId();
	lock->ttl = call->ttl;
	clip(lock->who, sizeof(lock->who),
		 psprintf("%s, PID %d of %s:%d",
				  GetUserNameFromId(GetUserId(), false), MyProcPid,
				  pgpx_text_clean(host), PostPortNumber));
	if (call->why != NULL)
		clip(lock->why, sizeof(lock->why), call->why);
}

/* It was not granted, or who knows: nothing is left in shared memory. */
static void
give_up(Wait *w)
{
	if (w->place < 0)
		return;
	if (w->unknown || w->asked || w->answer.token != 0)
		pgpx_dlock_release(w->place, false);
	else
		pgpx_dlock_refused(w->place);
	w->place = -1;
	w->unknown = false;
}

/*
 * A lease is there: note in shared memory what it is for.  If the catalogs lead to
 * another pool than before, what was asked through that one is given up: the lock
 * would be its, and nobody would find it there.
 */
static void
take_place(Wait *w, PgpxLease *lease)
{
	PgpxTarget *target = lease->target;
	PgpxPool   *pool = &pgpx_pools[target->pool];

	if (w->place >= 0 && w->lock.pool_id == target->pool_id)
		return;
	give_up(w);
	if (memcmp(&w->lock.key, &target->key, sizeof(target->key)) != 0)
	{
		pgpx_dlock_leave();
		set_key(w, target);
		if (!w->no_wait)
			pgpx_dlock_enter(&w->lock);
	}
	w->lock.pool = target->pool;
	w->lock.pool_id = target->pool_id;
	w->lock.worker = lease->worker;
	w->lock.database_name = pool->database_name;
	w->lock.server_name = pool->server_name;
	w->place = pgpx_dlock_alloc(&w->lock);
	if (w->place < 0)
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("too many distributed locks"),
				 errdetail("All %d places are in use.", pgpx_shared->max_locks),
				 errhint("Raise \"pgpool_ext.max_locks\".")));
}

/* Ask, and see the answer. */
static void
ask_on(Wait *w, PgpxLease *lease, int64 patience, PgpxTime until)
{
	PG_TRY();
	{
		pgpx_dlock_ask(lease, &w->lock, !w->no_wait, patience, until,
					   &w->answer);
	}
	PG_CATCH();
	{
		/* a connection to what is not the primary any more is of no use */
		if (geterrcode() == ERRCODE_READ_ONLY_SQL_TRANSACTION)
			pgpx_lease_return(lease, PGPX_END_DISCARD, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* One question, on a connection of the pool. */
static void
ask(Wait *w)
{
	PgpxLease  *lease;
	PgpxTime	until;
	int64		patience = Min(PATIENCE_MS, w->call->ttl / 4);

	lease = pgpx_lease_checkout(w->call->server, w->no_wait ?
		PGPX_TIMEOUT_DEFAULT : time_left(w), false, PGPX_SCOPE_CALL,
								w->lock.why[0] == '\0' ? NULL : w->lock.why);
	take_place(w, lease);
	until = pgpx_lease_operation_deadline(lease);
	if (w->deadline != 0)
	{
		until = Min(until, w->deadline + 1000 * PATIENCE_MS);
		patience = Max(Min(patience, (w->deadline - pgpx_now()) / 1000), 1);
	}
	if (w->no_wait)
		patience = Min(patience, TRY_PATIENCE_MS);

	for (int i = 0; i == 0 || (i == 1 && w->answer.spent); i++)
	{
		if (i == 1)
			pgpx_dlock_renew(w->place, &w->lock);

		/* before it is sent: what the remote grants ends later than this says */
		w->asked = true;
		w->asked_at = pgpx_steady_now();
		ask_on(w, lease, patience, until);
		w->asked = false;
	}
	PGPX_DEBUG_POINT("lock_answered");
	w->reached = true;
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
}

/* May the question be asked again after this error? */
static bool
is_transient(const Wait *w, const ErrorData *error, bool sent)
{
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
			return sent || w->reached || w->unknown;	/* it was there */
		case ERRCODE_TRANSACTION_ROLLBACK:
			return sent;
		default:
			break;
	}
	switch (error->sqlerrcode)
	{
		case ERRCODE_LOCK_NOT_AVAILABLE:	/* somebody's who checked the token */
			return sent;
		case ERRCODE_READ_ONLY_SQL_TRANSACTION: /* was the primary until now */
			return sent && w->failures < TRIES;
		default:
			return false;
	}
}

/*
 * Ask once.  False: it was not answered, and may be asked again; the error is in
 * w->error.
 */
static bool
ask_once(Wait *w)
{
	MemoryContext old = MemoryContextSwitchTo(w->cxt);
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool answered = true;
	bool		sent;

	MemoryContextReset(w->cxt);
	memset(&w->answer, 0, sizeof(w->answer));
	w->error = NULL;
	w->asked = false;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(w->cxt);
	PG_TRY();
	{
		ask(w);
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
		 * What the remote has refused it has not done.  All other errors are ours,
		 * and may have come after its grant.
		 */
		sent = w->asked;
		w->asked = false;
		if ((sent && !w->answer.refused) || w->answer.token != 0)
			w->unknown = true;
		if (!is_transient(w, w->error, sent))
			ReThrowError(w->error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	CurrentResourceOwner = owner;
	w->failures = answered ? 0 : w->failures + 1;
	return answered;
}

/* It is granted; but is there any time left of it? */
static bool
accept_grant(Wait *w)
{
	if (w->answer.token == 0)
		return false;
	if (pgpx_steady_now() >=
		pgpx_dlock_certain_until(w->asked_at, w->lock.ttl))
	{
		w->unknown = true;
		return false;			/* ask again: the request is the same */
	}
	pgpx_dlock_granted(w->place, w->answer.token, w->asked_at);
	w->lock.token = w->answer.token;
	return true;
}

/* Why not, in numbers and names. */
static char *
reason(const Wait *w)
{
	if (w->local)
	{
		bool		say_why = w->other.why[0] != '\0' &&
			pgpx_dlock_may_see(&w->other);

		return psprintf("It is held by PID %d of this server%s%s%s since %s.",
						w->other.owner_pid, say_why ? " for \"" : "",
						say_why ? w->other.why : "", say_why ? "\"" : "",
						timestamptz_to_str(pgpx_timestamp(w->other.since)));
	}
	if (w->error != NULL)
		return psprintf("The remote's last answer: %s", w->error->message);
	if (w->answer.held)
		return psprintf("It is held by \"%s\"%s%s%s since %s, and expires at %s if it is not pinged.",
						w->answer.who, w->answer.why ? " for \"" : "",
						w->answer.why ? w->answer.why : "",
						w->answer.why ? "\"" : "", w->answer.since,
						w->answer.expires);
	return pstrdup("Other sessions of this server wait for it, too.");
}

pg_noreturn static void
raise_timeout(Wait *w)
{
	if (w->error != NULL &&
		(ERRCODE_TO_CATEGORY(w->error->sqlerrcode) ==
			 ERRCODE_CONNECTION_EXCEPTION ||
		 w->error->sqlerrcode == ERRCODE_READ_ONLY_SQL_TRANSACTION))
		ReThrowError(w->error);
	if (w->no_wait)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("lock \"%s\" of server \"%s\" is not free now",
						w->lock.name, NameStr(w->target->server_name)),
				 errdetail_internal("%s", reason(w))));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lock \"%s\" of server \"%s\" did not come free within " INT64_FORMAT " ms",
					w->lock.name, NameStr(w->target->server_name), w->timeout),
			 errdetail_internal("%s", reason(w))));
}

/* Without waiting: for the sessions before us, nor for the holder. */
static bool
try_now(Wait *w)
{
	w->local = pgpx_dlock_is_held_here(w->lock.queue, &w->other);
	if (w->local || pgpx_dlock_has_waiters(&w->lock))
		return false;
	while (!ask_once(w))
		if (w->failures >= TRIES ||
			ERRCODE_TO_CATEGORY(w->error->sqlerrcode) ==
				ERRCODE_INSUFFICIENT_RESOURCES ||
			w->error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
			return false;
	return accept_grant(w);
}

/* How long to sleep before the next question. */
static PgpxTime
next_pause(const Wait *w, PgpxTime *pause)
{
	PgpxTime	sleep;

	sleep = (PgpxTime) (*pause * (0.5 + pg_prng_double(&pg_global_prng_state)));
	*pause = Min(*pause * 2, PGPX_DLOCK_PAUSE_US);
	if (w->error == NULL && w->answer.held)
		sleep = Min(sleep, w->answer.left * 1000 + 1000);
	return sleep;
}

static void
wait_for_turn(Wait *w)
{
	static uint32 wait_event = 0;
	PgpxTime	pause = PAUSE_MIN_US;
	PgpxTime	next_question = 0;

	for (;;)
	{
		PgpxTime	now = pgpx_now();
		PgpxTime	until = now + LOOK_US;

		if (w->deadline != 0 && now >= w->deadline)
			raise_timeout(w);
		if (pgpx_dlock_is_first())
		{
			bool		was_local = w->local;

			w->local = pgpx_dlock_is_held_here(w->lock.queue, &w->other);
			if (!w->local && was_local)
				next_question = 0;
			next_question = Max(next_question,
								pgpx_dlock_stands_back(w->lock.queue));
			if (!w->local && now >= next_question)
			{
				if (ask_once(w) && accept_grant(w))
					return;
				now = pgpx_now();
				next_question = now + next_pause(w, &pause);
			}
			if (!w->local)
				until = next_question;
		}
		if (w->deadline != 0)
			until = Min(until, w->deadline);
		else
			pgpx_lease_check_endless();
		(void) pgpx_session_wait_latch(until,
									   pgpx_wait_event(&wait_event, "PgpoolLock"));
	}
}

int64
pgpx_dlock_lock(const PgpxDlockCall *call)
{
	Wait *volatile w = palloc0(sizeof(Wait));
	volatile bool granted = false;

	pgpx_dlock_register_callbacks();
	w->call = call;
	w->place = -1;
	w->cxt = AllocSetContextCreate(CurrentMemoryContext, "pgpool_ext lock",
								   ALLOCSET_DEFAULT_SIZES);
	w->target = pgpx_target_get(call->server);
	pgpx_target_pin(w->target);
	PG_TRY();
	{
		set_deadline(w);
		describe(w);
		if (pgpx_dlock_holds(w->lock.queue, call->name))
		{
			if (!call->only_try)
				ereport(ERROR,
						(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
						 errmsg("lock \"%s\" of server \"%s\" is held by this session",
								call->name, call->server),
						 errdetail("It would wait for itself.")));
		}
		else if (w->no_wait)
		{
			granted = try_now(w);
			if (!granted && w->failures > 0 &&
				w->error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
				ReThrowError(w->error);
			if (!granted && !call->only_try)
				raise_timeout(w);
		}
		else
		{
			pgpx_dlock_enter(&w->lock);
			wait_for_turn(w);
			granted = true;
		}
	}
	PG_FINALLY();
	{
		if (!granted)
			give_up(w);
		pgpx_dlock_leave();
		pgpx_target_unpin(w->target);
	}
	PG_END_TRY();
	return granted ? w->lock.token : 0;
}
