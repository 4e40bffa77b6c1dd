/*-------------------------------------------------------------------------
 *
 * catalog_invalidation.c
 *	  Apply catalog changes to pools: ALTER, DROP and REVOKE take effect
 *	  at commit.
 *
 * The worker is not connected to a database, so it cannot see changes of
 * servers and user mappings.  But every session has this library loaded
 * and receives catalog invalidations, including those of its own changes.
 * Just before a session commits such a change, while it can still read the
 * catalogs, it compares the pools of its database with them.  After the
 * commit it retires the pools that differ: idle connections close at once,
 * leased ones at checkin.  It does so after it has sent invalidations to
 * the other sessions, because retirement wakes waiters, which read the
 * catalogs again.  With stale caches they would take the old options for
 * the new ones.
 *
 * Sessions that receive the invalidation later do the same and normally find
 * nothing left to do.  Roles, however, exist in all databases.  A session in
 * any database can check whether the SCRAM keys of a pool are current, so the
 * session that changes a password retires the pools of all databases.  All
 * other checks read catalogs of the pool's database, so the sessions of other
 * databases are signalled to process their invalidations.
 *
 * A transaction can use a server or user mapping that it has created itself.
 * The pool's key has the new OID, so no other session finds the pool.  If the
 * transaction does not commit, the pool is removed.  A transaction that has
 * changed another session's object cannot use it (server_catalog.c).
 *
 *-------------------------------------------------------------------------
 */
#include "session/server_spec.h"

#include "access/xact.h"
#include "nodes/parsenodes.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "base/debug_point.h"
#include "shared/lock_hooks.h"
#include "shared/registry.h"
#include "session/lease.h"

uint64		pgpx_catalog_changes = 1;

/*
 * Value of pgpx_catalog_changes when this session last compared the pools with
 * the catalogs.  0: compare them at the end of this transaction in any case.
 */
static uint64 compared_at = 1;
static bool databases_changed = false;

/*
 * this transaction has changed a role or a role membership, also that of a
 * database's owner in pg_database_owner
 */
static bool roles_changed = false;

/* Result of comparing a pool with the catalogs. */
typedef enum Verdict
{
	SAME,
	IN_PLACE,					/* only options that take effect in place */
	REPLACED,					/* connections must be replaced */
	GONE						/* no checkout would find the pool any more */
} Verdict;

/* A change to apply to a pool at commit. */
typedef struct PoolChange
{
	int			pool;
	uint32		pool_id;
	Verdict		verdict;
	NameData	server_name;	/* REPLACED: the current name */

	/* IN_PLACE */
	uint64		options_version;	/* of the pool, when the catalogs were
									 * read */
	PgpxFingerprint fingerprint;
	PgpxPoolOptions opts;
} PoolChange;

/*
 * What this transaction applies at its end.  Allocated in
 * TopTransactionContext; NULL: nothing is to be applied.
 */
typedef struct Changes
{
	int			npools;
	PoolChange *pools;			/* [max_pools] */

	/* dropped servers that are paused, and whose records are removed */
	int			ndropped;
	Oid		   *dropped;		/* [max_pools] */

	/* acquisitions of distributed locks whose users may not use the server now */
	int			nrevoked;
	uint64	   *revoked;		/* [max_locks] */
} Changes;

static Changes *changes = NULL;

/* ids of the pools of objects that this transaction has created */
static List *created = NIL;

/* A syscache callback, which may be called at any time. */
static void
count_change(Datum arg, int cacheid, uint32 hashvalue)
{
	pgpx_catalog_changes++;
	databases_changed |= cacheid == DATABASEOID;
}

/*
 * Compare what a checkout would read from the catalogs now with a copy of a pool.
 * *change has the pool's fingerprint and the name of its server, and is set to
 * those of the current rows.  If the verdict is IN_PLACE, its options are set to
 * the matching ones.  *renamed: the server has another name.
 *
 * Foreign tables need no USAGE, and each checkout by a function checks it.  If a
 * pool that foreign tables use were checked for USAGE, the pool of a user without
 * USAGE would be retired by each change of any role or server.
 */
static Verdict
compare_with_catalogs(const PgpxPool *pool, PoolChange *change, bool *renamed)
{
	const PgpxPoolKey *key = &pool->key;
	PgpxServerSpec now = {.key = *key, .by_table = pool->by_table};
	PgpxFingerprint before = change->fingerprint;
	bool		has_options;

	if (!pgpx_scram_is_current(key) ||
		!pgpx_server_spec_find(&now, pool->user, &has_options) ||
		memcmp(&now.key, key, sizeof(*key)) != 0)
		return GONE;
	*renamed = strcmp(NameStr(now.server_name),
					  NameStr(change->server_name)) != 0;
	change->server_name = now.server_name;
	change->fingerprint = now.fingerprint;
	change->opts = now.opts;
	if (memcmp(&before, &now.fingerprint, sizeof(before)) == 0)
		return SAME;
	if (memcmp(&before, &now.fingerprint,
			   offsetof(PgpxFingerprint, in_place)) == 0 &&
		has_options)
		return IN_PLACE;

	/* the key may differ: the option use_scram_passthrough may be gone */
	return OidIsValid(key->scram_role) ? GONE : REPLACED;
}

/*
 * Find the pools of this database that no longer match the catalogs, and the
 * pools of other databases whose SCRAM keys are outdated.
 */
static void
find_changed_pools(void)
{
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool	pool;
		PoolChange *change = &changes->pools[changes->npools];
		bool		retired;
		bool		renamed = false;

		LWLockAcquire(pgpx_pools[i].lock, LW_SHARED);
		pool = pgpx_pools[i];
		retired = pgpx_pool_is_retired_locked(&pgpx_pools[i]);
		LWLockRelease(pgpx_pools[i].lock);

		if (pool.pool_id == 0 || pool.gone)
			continue;
		change->pool = i;
		change->pool_id = pool.pool_id;
		change->options_version = pool.options_version;
		change->fingerprint = pool.fingerprint;
		change->server_name = pool.server_name;
		if (pool.key.database == MyDatabaseId)
			change->verdict = compare_with_catalogs(&pool, change, &renamed);
		else
			change->verdict = pgpx_scram_is_current(&pool.key) ? SAME : GONE;

		/* for a retired pool only a new name, or GONE, is a change */
		if (change->verdict == GONE || renamed ||
			(change->verdict != SAME && !retired))
			changes->npools++;
	}
}

/*
 * Find the pools and servers that have changed, and the distributed locks whose
 * users may not use the server any more.  A pool that all users share, or that
 * foreign tables use, stays, and so its locks would.
 */
static void
find_changes(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	PgpxPoolKey key;
	Oid			user;
	uint64		held;			/* an acquisition */
	int			npaused;

	changes = palloc0(sizeof(*changes));
	changes->pools = palloc(pgpx_shared->max_pools * sizeof(PoolChange));
	changes->dropped = palloc(pgpx_shared->max_pools * sizeof(Oid));
	changes->revoked = palloc(pgpx_shared->max_locks * sizeof(uint64));
	AcceptInvalidationMessages();
	compared_at = pgpx_catalog_changes;
	for (int i = 0; (held = pgpx_lock_hooks->next_held(MyDatabaseId, &i,
													   &key, &user)) != 0;)
	{
		Oid			base = pgpx_server_catalog_find_base(key.server);

		if (!pgpx_server_catalog_may_use(key.server, user) ||
			!pgpx_server_catalog_may_use(base, user))
			changes->revoked[changes->nrevoked++] = held;
	}
	find_changed_pools();
	npaused = pgpx_server_list_paused(MyDatabaseId, changes->dropped);
	for (int i = 0; i < npaused; i++)
		if (!SearchSysCacheExists1(FOREIGNSERVEROID,
								   ObjectIdGetDatum(changes->dropped[i])))
			changes->dropped[changes->ndropped++] = changes->dropped[i];
	MemoryContextSwitchTo(old);
}

/*
 * Apply a change to its pool.
 *
 * Another session may have processed the same change and retired the pool since
 * the catalogs were read.  The pool may even have new options by now.  Retiring
 * it again is always safe: it only adds a version, and waiters read the
 * catalogs again.  It may also be necessary, because options that were read
 * before our commit do not contain our change.
 *
 * Options that take effect in place are applied if no other session has changed
 * the pool since the catalogs were read.  Otherwise it is not known which change
 * is the later one.  So mark the options as unread, and the next checkout, or a
 * waiter, reads the catalogs again.
 */
static void
apply_change(const PoolChange *change)
{
	PgpxPool   *pool = pgpx_pool_lock(change->pool, change->pool_id);
	PgpxWake	wake = PGPX_WAKE_INIT;

	if (pool == NULL)
		return;
	if (change->verdict == IN_PLACE &&
		pool->options_version == change->options_version)
		pgpx_pool_set_options_locked(pool, &change->fingerprint, &change->opts);
	else if (change->verdict == IN_PLACE)
	{
		if (!pgpx_pool_needs_options_locked(pool) &&
			!pgpx_pool_is_current_locked(pool, &change->fingerprint))
			pgpx_pool_forget_options_locked(pool, &wake);
	}
	else
		pgpx_pool_retire_locked(pool, change->verdict == GONE, &wake);
	if (change->verdict == REPLACED)
		pool->server_name = change->server_name;
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

void
pgpx_catalog_check_later(void)
{
	compared_at = 0;
}

void
pgpx_catalog_note_created_pool(uint32 pool_id)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	created = list_append_unique_oid(created, pool_id);
	MemoryContextSwitchTo(old);
}

/*
 * Remove the pools of servers and mappings that this transaction has created.
 * Read without locks, because the id of a pool never changes.
 */
static void
remove_created_pools(void)
{
	for (int i = 0; created != NIL && i < pgpx_pools_end(); i++)
	{
		PoolChange	change = {
			.pool = i,
			.pool_id = pgpx_pools[i].pool_id,
			.verdict = GONE,
		};

		if (list_member_oid(created, change.pool_id))
			apply_change(&change);
	}
}

/*
 * Signal the sessions of other databases with pools to process their
 * invalidations, with the signal for sessions that have fallen behind.  An idle
 * session then runs an empty transaction, and compares the pools of its
 * database with the catalogs at its end.  Read without locks: a superfluous
 * signal is harmless, and a session that connects later reads the current
 * catalogs.
 */
static void
notify_other_databases(void)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		int			pid = proc->pid;
		Oid			database = proc->databaseId;

		for (int j = 0; pid != 0 && database != MyDatabaseId &&
			 j < pgpx_pools_end();
			 j++)
			if (pgpx_pools[j].pool_id != 0 &&
				pgpx_pools[j].key.database == database)
			{
				(void) SendProcSignal(pid, PROCSIG_CATCHUP_INTERRUPT,
									  PGPX_ANY_BACKEND);
				break;
			}
	}
}

/* Find the changes before a commit.  Forget them if it does not follow. */
void
pgpx_catalog_at_xact(XactEvent event)
{
	if (pgpx_shared == NULL || !OidIsValid(MyDatabaseId))
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (compared_at != pgpx_catalog_changes)
				find_changes();
			break;
		case XACT_EVENT_ABORT:
			/* the commit has failed: find the changes of others again */
			if (changes != NULL)
				compared_at = 0;
			pg_fallthrough;
		case XACT_EVENT_PREPARE:
			remove_created_pools();
			changes = NULL;
			roles_changed = false;
			break;
		default:
			break;
	}
}

/*
 * Apply the changes at the end of the transaction, in a phase in which a
 * committed transaction has already sent its invalidations to other sessions,
 * see the top of the file.
 */
static void
release_callback(ResourceReleasePhase phase, bool is_commit, bool is_top_level,
				 void *arg)
{
	if (phase != RESOURCE_RELEASE_LOCKS || !is_top_level ||
		pgpx_shared == NULL || !OidIsValid(MyDatabaseId))
		return;
	for (int i = 0; changes != NULL && i < changes->npools; i++)
		apply_change(&changes->pools[i]);
	for (int i = 0; changes != NULL && i < changes->ndropped; i++)
		(void) pgpx_server_set_paused(MyDatabaseId, changes->dropped[i], false,
									  false);
	for (int i = 0; changes != NULL && i < changes->nrevoked; i++)
		pgpx_lock_hooks->lose(changes->revoked[i]);
	changes = NULL;
	created = NIL;
	if (!is_commit)
		return;
	if (roles_changed)
	{
		roles_changed = false;
		notify_other_databases();
	}
	if (databases_changed)
	{
		databases_changed = false;
		pg_atomic_fetch_add_u32(&pgpx_shared->databases_changed, 1);
		pgpx_worker_wake_all();
	}
}

bool
pgpx_catalog_begin_utility(Node *stmt)
{
	bool		commits = IsA(stmt, TransactionStmt) &&
		((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT_PREPARED;
	bool		renames = IsA(stmt, RenameStmt) &&
		((RenameStmt *) stmt)->renameType == OBJECT_ROLE;
	bool		owns = IsA(stmt, ReassignOwnedStmt) ||
		(IsA(stmt, AlterOwnerStmt) &&
		 ((AlterOwnerStmt *) stmt)->objectType == OBJECT_DATABASE);

	roles_changed |= IsA(stmt, AlterRoleStmt) || IsA(stmt, DropRoleStmt) ||
		IsA(stmt, GrantRoleStmt) || IsA(stmt, DropOwnedStmt) || renames ||
		owns || commits;
	if (commits)
		compared_at = 0;
	return IsA(stmt, DiscardStmt) &&
		((DiscardStmt *) stmt)->target == DISCARD_ALL;
}

void
pgpx_catalog_end_discard(void)
{
	(void) pgpx_lease_return_all();
	pgpx_lock_hooks->release_all();
}

void
pgpx_catalog_invalidation_init(void)
{
	/*
	 * Those of servers and user mappings; and those that has_privs_of_role
	 * depends on: the owner of the database is a member of pg_database_owner.
	 */
	static const int caches[] = {
		FOREIGNSERVEROID,
		USERMAPPINGOID,
		FOREIGNDATAWRAPPEROID,
		AUTHOID,
		AUTHMEMROLEMEM,
		DATABASEOID,
	};

	for (int i = 0; i < lengthof(caches); i++)
		CacheRegisterSyscacheCallback(caches[i], count_change, (Datum) 0);
	RegisterResourceReleaseCallback(release_callback, NULL);
}
