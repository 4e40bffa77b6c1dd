/*-------------------------------------------------------------------------
 *
 * dlock_session.c
 *	  Distributed locks that this session holds: whether they are still its own, and
 *	  all the ways they end.
 *
 * How one begins is in dlock_wait.c.  To release one, the session marks it, and
 * the worker tells the remote: so it is the same for unlock, which waits for that,
 * and for the ends of transactions and sessions, in which nothing waits and nothing
 * throws.
 *
 * Its callbacks are those of lease_table.c in shape only: a lease goes back before
 * the commit, which an open remote transaction can still prevent; a lock is held to
 * the end of it, and released after.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock_session.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "storage/ipc.h"

#include "session_wait.h"

static bool callbacks_registered = false;

/* A WARNING for a loss that the session has not heard of yet. */
static void
warn_of_loss(int place, const PgpxDlock *lock)
{
	if (!pgpx_dlock_tell(place, lock->request))
		return;
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("lock \"%s\" of server \"%s\" was lost", lock->name,
					NameStr(lock->server_name)),
			 errdetail("Another session may hold it by now; the token was " INT64_FORMAT ".",
					   lock->token),
			 errhint("What it protects is safe only where the remote checks the token: see fence_check.")));
}

static bool
is_own(const PgpxDlock *lock)
{
	return lock->owner_procno == (int) MyProcNumber &&
		lock->owner_pid == MyProcPid;
}

bool
pgpx_dlock_may_see(const PgpxDlock *lock)
{
	Oid			user = GetUserId();

	return has_privs_of_role(user, ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(user, lock->owner_user);
}

/* A worker that was restarted does not know how to ping: tell it. */
static void
tell_worker(PgpxTarget *target, const PgpxDlock *lock)
{
	PgpxPool   *pool = &pgpx_pools[lock->pool];
	uint64		epoch = pgpx_pool_worker_epoch(pool);

	if (epoch != 0 && pool->conninfo_epoch != epoch &&
		!TransactionIdIsValid(target->key.xid))
		pgpx_lease_tell_worker(target);
}

/*
 * Find a lock of the server.  It was taken through the pool that all have, also if
 * this transaction has one of its own now.
 */
static int
find(const PgpxTarget *target, const char *name, int64 token, PgpxDlock *lock)
{
	PgpxPoolKey key = target->key;

	key.xid = InvalidTransactionId;
	return pgpx_dlock_find(&key, name, token, lock);
}

bool
pgpx_dlock_valid(const char *server, const char *name, int64 token)
{
	PgpxTarget *target = pgpx_target_get(server);
	PgpxDlock	lock;
	int			place = find(target, name, token, &lock);

	if (place < 0)
		return false;
	if (lock.state != PGPX_DLOCK_HELD)
	{
		if (is_own(&lock))
			warn_of_loss(place, &lock);
		return false;
	}
	tell_worker(target, &lock);
	return pgpx_steady_now() < lock.valid_until;
}

bool
pgpx_dlock_holds(uint64 queue, const char *name)
{
	bool		held = false;
	PgpxDlock	lock;

	if (pgpx_dlock_nmine == 0)
		return false;
	for (int i = -1; (i = pgpx_dlock_mine(i, &lock)) >= 0;)
	{
		PgpxDlock	now;

		if (lock.queue != queue ||
			pgpx_dlock_find(&lock.key, lock.name, lock.token, &now) != i)
			continue;
		if (now.state == PGPX_DLOCK_LOST)
		{
			warn_of_loss(i, &now);
			pgpx_dlock_release(i, false);
		}
		else if (strcmp(lock.name, name) == 0)
			held = true;
	}
	return held;
}

/* Wait until the worker has told the remote, or given that up. */
static bool
await_release(PgpxTarget *target, int place, const PgpxDlock *lock,
			  PgpxDlockResult *result)
{
	static uint32 wait_event = 0;
	PgpxTime	deadline = pgpx_now() + target->opts.operation_timeout * 1000;

	for (;;)
	{
		PgpxTime	now;

		if (pgpx_dlock_result(place, result))
			return true;
		now = pgpx_now();
		if (now >= deadline)
			return false;
		tell_worker(target, lock);
		(void) pgpx_session_wait_worker(pgpx_pools[lock->pool].worker,
										Min(deadline, now + 1000 * 1000),
										pgpx_wait_event(&wait_event, "PgpoolUnlock"));
	}
}

/*
 * One that this session has taken through another pool of the server: its user
 * mapping was another one then, or so was the user.  -1: there is none.
 */
static int
find_own(PgpxTarget *target, const char *name, int64 token, PgpxDlock *lock)
{
	uint64		queue = pgpx_dlock_queue(target->key.database,
										 target->key.server, name);
	int			place = -1;

	while ((place = pgpx_dlock_mine(place, lock)) >= 0)
		if (lock->queue == queue && lock->token == token &&
			strcmp(lock->name, name) == 0)
			break;
	if (place >= 0 && lock->owner_user != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lock \"%s\" of server \"%s\" belongs to another user of this session",
						name, NameStr(target->server_name)),
				 errdetail("It was taken by \"%s\".",
						   GetUserNameFromId(lock->owner_user, false))));
	return place < 0 ? -1 : pgpx_dlock_find(&lock->key, name, token, lock);
}

PgpxDlockUnlocked
pgpx_dlock_unlock(const char *server, const char *name, int64 token)
{
	PgpxTarget *target = pgpx_target_get(server);
	PgpxDlockResult result = PGPX_DLOCK_UNKNOWN;
	PgpxDlock	lock;
	int			place = find(target, name, token, &lock);
	volatile bool done = false;

	if (place < 0)
		place = find_own(target, name, token, &lock);
	if (place < 0)
	{
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lock \"%s\" of server \"%s\" is not held with this token",
						name, NameStr(target->server_name)),
				 errdetail("Token " INT64_FORMAT " was released, or never given to this server.",
						   token)));
		return PGPX_DLOCK_WAS_NOT_HELD;
	}
	if (!is_own(&lock))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lock \"%s\" of server \"%s\" belongs to another session",
						name, NameStr(target->server_name)),
				 errdetail("It is held by PID %d.", lock.owner_pid)));
	if (lock.state == PGPX_DLOCK_LOST)
	{
		warn_of_loss(place, &lock);
		pgpx_dlock_release(place, false);
		return PGPX_DLOCK_WAS_NOT_HELD;
	}

	PGPX_DEBUG_POINT("unlock");
	pgpx_target_pin(target);
	pgpx_dlock_release(place, true);
	PG_TRY();
	{
		done = await_release(target, place, &lock, &result);
	}
	PG_FINALLY();
	{
		if (!done)
			pgpx_dlock_release(place, false);
		pgpx_target_unpin(target);
	}
	PG_END_TRY();

	if (result == PGPX_DLOCK_RELEASED)
		return PGPX_DLOCK_UNLOCKED;
	if (result == PGPX_DLOCK_NOT_OURS)
	{
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lock \"%s\" of server \"%s\" was lost", name, server),
				 errdetail("At the remote it had run out, or it was taken by force; the token was " INT64_FORMAT ".",
						   token)));
		return PGPX_DLOCK_WAS_NOT_HELD;
	}
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("lock \"%s\" of server \"%s\" was given up, but the remote has not confirmed it",
					name, server),
			 errdetail("It is free at the latest when its ttl of " INT64_FORMAT " ms has passed.",
					   lock.ttl)));
	return PGPX_DLOCK_LEFT_TO_WORKER;
}

/* Give up those of a scope; of transactions, only those of one subtransaction. */
static void
release_scope(PgpxScope scope, SubTransactionId subid)
{
	PgpxDlock	lock;

	if (pgpx_dlock_nmine == 0)
		return;
	for (int i = -1; (i = pgpx_dlock_mine(i, &lock)) >= 0;)
		if (lock.scope == scope &&
			(subid == InvalidSubTransactionId || lock.subid == subid))
			pgpx_dlock_release(i, false);
}

void
pgpx_dlock_release_all(void)
{
	release_scope(PGPX_SCOPE_SESSION, InvalidSubTransactionId);
}

/* Before commit: the last moment at which the session can be told of a loss. */
static void
before_commit(bool prepare)
{
	PgpxDlock	lock;
	PgpxDlock	now;

	for (int i = -1; (i = pgpx_dlock_mine(i, &lock)) >= 0;)
	{
		if (lock.scope != PGPX_SCOPE_TRANSACTION)
			continue;
		if (prepare)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that holds lock \"%s\" of server \"%s\"",
							lock.name, NameStr(lock.server_name)),
					 errhint("Release it with pgpool.unlock, or take it with pgpool.lock.")));
		if (pgpx_dlock_find(&lock.key, lock.name, lock.token, &now) == i &&
			now.state == PGPX_DLOCK_LOST)
			warn_of_loss(i, &now);
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (pgpx_dlock_nmine == 0)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			before_commit(false);
			break;
		case XACT_EVENT_PRE_PREPARE:
			before_commit(true);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			release_scope(PGPX_SCOPE_TRANSACTION, InvalidSubTransactionId);
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	if (pgpx_dlock_nmine == 0)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		pgpx_dlock_reparent(mySubid, parentSubid);
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		release_scope(PGPX_SCOPE_TRANSACTION, mySubid);
}

/* Whatever is under way: the worker will tell the remote. */
static void
exit_callback(int code, Datum arg)
{
	PgpxDlock	lock;

	pgpx_dlock_leave();
	for (int i = -1; (i = pgpx_dlock_mine(i, &lock)) >= 0;)
		pgpx_dlock_release(i, false);
}

void
pgpx_dlock_register_callbacks(void)
{
	if (callbacks_registered)
		return;
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	on_shmem_exit(exit_callback, (Datum) 0);
	callbacks_registered = true;
}
