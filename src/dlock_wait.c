/*-------------------------------------------------------------------------
 *
 * dlock_wait.c
 *	  How a session takes a distributed lock: its turn in this server, the question
 *	  to the remote, and again until it is granted or time is up.
 *
 * A question that is not answered ends itself and not the wait: dlock_question.c.
 *
 * What happens when the process dies at any line: see dlock.c.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock_wait.h"

#include <unistd.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "mb/pg_wchar.h"
#include "postmaster/postmaster.h"
#include "utils/memutils.h"

#include "session_wait.h"

/* The pause between two questions, with jitter; doubled. */
#define PAUSE_MIN_US (20 * 1000)

/* Who waits for a lock of this server looks by itself this often, too. */
#define LOOK_US (1000 * 1000)

static void
set_deadline(PgpxDlockWait *w)
{
	int64		timeout = w->call->timeout;

	w->started = pgpx_now();
	w->no_wait = w->call->only_try || timeout == 0;
	timeout = pgpx_lease_timeout(w->target, timeout);
	w->timeout = timeout;
	w->deadline = w->no_wait || timeout == 0 ? 0 :
		w->started + timeout * 1000;
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

/* What is known before the remote is asked. */
static void
describe(PgpxDlockWait *w)
{
	const PgpxDlockCall *call = w->call;
	PgpxDlock  *lock = &w->lock;
	char		host[256] = "";

	memset(lock, 0, sizeof(*lock));
	(void) gethostname(host, sizeof(host) - 1);
	strlcpy(lock->name, call->name, sizeof(lock->name));
	pgpx_dlock_set_key(w, w->target);
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

/* Why not, in numbers and names. */
static char *
reason(const PgpxDlockWait *w)
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
raise_timeout(PgpxDlockWait *w)
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
try_now(PgpxDlockWait *w)
{
	w->local = pgpx_dlock_is_held_here(w->lock.queue, &w->other);
	if (w->local || pgpx_dlock_has_waiters(&w->lock))
		return false;
	while (!pgpx_dlock_question(w))
		if (w->failures >= PGPX_DLOCK_TRIES ||
			ERRCODE_TO_CATEGORY(w->error->sqlerrcode) ==
				ERRCODE_INSUFFICIENT_RESOURCES ||
			w->error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
			return false;
	return pgpx_dlock_accept(w);
}

/* How long to sleep before the next question. */
static PgpxTime
next_pause(const PgpxDlockWait *w, PgpxTime *pause)
{
	PgpxTime	sleep;

	sleep = (PgpxTime) (*pause * (0.5 + pg_prng_double(&pg_global_prng_state)));
	*pause = Min(*pause * 2, PGPX_DLOCK_PAUSE_US);
	if (w->error == NULL && w->answer.held)
		sleep = Min(sleep, w->answer.left * 1000 + 1000);
	return sleep;
}

static void
wait_for_turn(PgpxDlockWait *w)
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
				if (pgpx_dlock_question(w) && pgpx_dlock_accept(w))
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
	PgpxDlockWait *volatile w = palloc0(sizeof(PgpxDlockWait));
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
			pgpx_dlock_give_up(w);
		pgpx_dlock_leave();
		pgpx_target_unpin(w->target);
	}
	PG_END_TRY();
	return granted ? w->lock.token : 0;
}
