/*-------------------------------------------------------------------------
 *
 * dlock_question.c
 *	  One question to the remote for a distributed lock, and what it leaves behind.
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
#include "dlock_wait.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/* How long the remote may wait for transactions that have checked the token. */
#define PATIENCE_MS 1000

/* The same for a question of one who does not wait himself. */
#define TRY_PATIENCE_MS 100

/* What is left of the call's time, for a checkout. */
static int64
time_left(const PgpxDlockWait *w)
{
	if (w->deadline == 0)
		return PGPX_TIMEOUT_DEFAULT;
	return Max((w->deadline - pgpx_now()) / 1000, 1);
}

/* A pool that ends with this transaction cannot go on to ping the lock. */
void
pgpx_dlock_set_key(PgpxDlockWait *w, const PgpxTarget *target)
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

void
pgpx_dlock_give_up(PgpxDlockWait *w)
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
take_place(PgpxDlockWait *w, PgpxLease *lease)
{
	PgpxTarget *target = lease->target;
	PgpxPool   *pool = &pgpx_pools[target->pool];

	if (w->place >= 0 && w->lock.pool_id == target->pool_id)
		return;
	pgpx_dlock_give_up(w);
	if (memcmp(&w->lock.key, &target->key, sizeof(target->key)) != 0)
	{
		pgpx_dlock_leave();
		pgpx_dlock_set_key(w, target);
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

/* One question, on a connection of the pool. */
static void
ask(PgpxDlockWait *w)
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
		pgpx_dlock_ask(lease, &w->lock, !w->no_wait, patience, until,
					   &w->answer);
		w->asked = false;
	}
	PGPX_DEBUG_POINT("lock_answered");
	w->reached = true;
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
}

/* May the question be asked again after this error? */
static bool
is_transient(const PgpxDlockWait *w, const ErrorData *error, bool sent)
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
			return sent && w->failures < PGPX_DLOCK_TRIES;
		default:
			return false;
	}
}

bool
pgpx_dlock_question(PgpxDlockWait *w)
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

/* The holder before has not released the lock: the log of both servers says so. */
static void
log_takeover(const PgpxDlockWait *w)
{
	const PgpxDlockAnswer *answer = &w->answer;

	ereport(LOG,
			(errmsg("pgpool_ext took over lock \"%s\" of server \"%s\" of database \"%s\", token " INT64_FORMAT ", from \"%s\"",
					w->lock.name, NameStr(w->lock.server_name),
					NameStr(w->lock.database_name), answer->token,
					answer->who),
			 errdetail("It was held%s%s%s since %s, and was not pinged before it expired at %s.",
					   answer->why ? " for \"" : "",
					   answer->why ? answer->why : "",
					   answer->why ? "\"" : "", answer->since,
					   answer->expires)));
}

bool
pgpx_dlock_accept(PgpxDlockWait *w)
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
	if (w->answer.expired)
		log_takeover(w);
	return true;
}
