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

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_user_mapping.h"
#include "foreign/foreign.h"
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

/*
 * Set by the syscache callbacks, which do nothing else because they may be
 * called at any time.
 */
static bool objects_changed = false;
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

static PoolChange *changes = NULL;	/* [max_pools], TopMemoryContext */
static int	nchanges = 0;

/* ids of the pools of objects that this transaction has created */
static List *created = NIL;

/* dropped servers that are paused; their records are removed at commit */
static Oid *dropped = NULL;		/* [max_pools], TopMemoryContext */
static int	ndropped = 0;

/* requests of distributed locks whose users may not use the server any more */
static uint64 *revoked = NULL;	/* [max_locks], TopMemoryContext */
static int	nrevoked = 0;

static void
objects_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	objects_changed = true;
}

static void
databases_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	databases_changed = true;
}

/* Hash the row of a server.  Return false if it does not exist. */
static bool
hash_server(Oid oid, uint64 hash[2], uint64 *in_place)
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(oid));

	if (!HeapTupleIsValid(row))
		return false;
	pgpx_server_catalog_hash_server(row, hash, in_place);
	ReleaseSysCache(row);
	return true;
}

/*
 * Read the user mapping.  Set *user to its user, or with a PUBLIC mapping to
 * that of the pool, and *server to its server.  Return false if it does not
 * exist, or if one pool for all users has become one pool for each, or vice
 * versa.
 */
static bool
read_mapping(const PgpxPoolKey *key, PgpxFingerprint *now, Oid *user,
			 Oid *server)
{
	HeapTuple	row = SearchSysCache1(USERMAPPINGOID,
									  ObjectIdGetDatum(key->mapping));
	Form_pg_user_mapping mapping;
	bool		fits;

	if (!HeapTupleIsValid(row))
		return false;
	now->mapping_xmin = HeapTupleHeaderGetRawXmin(row->t_data);
	now->mapping_tid = row->t_self;
	mapping = (Form_pg_user_mapping) GETSTRUCT(row);
	*user = OidIsValid(mapping->umuser) ? mapping->umuser : key->local_user;
	*server = mapping->umserver;
	fits = OidIsValid(mapping->umuser) ||
		pgpx_server_catalog_names_user(row) != OidIsValid(key->local_user);
	ReleaseSysCache(row);
	return fits;
}

static bool
has_mapping(Oid user, Oid server)
{
	return SearchSysCacheExists2(USERMAPPINGUSERSERVER,
								 ObjectIdGetDatum(user),
								 ObjectIdGetDatum(server));
}

/*
 * Return whether the user of a pool may still use a server.  superuser: whether
 * the pool's key is for superusers.  user is InvalidOid for a pool that all
 * local users share; each checkout from such a pool checks its own user.
 *
 * by_table: foreign tables use the pool, and they need no USAGE.  Each checkout
 * by a function checks USAGE.  Without this rule, the pool of a user without
 * USAGE would be retired by each change of any role or server.
 */
static bool
is_allowed(Oid user, Oid server, bool superuser, bool by_table)
{
	return !OidIsValid(user) ||
		(superuser_arg(user) == superuser &&
		 (by_table || pgpx_server_catalog_may_use(server, user)));
}

/*
 * Return whether foreign tables may use the base server: see check_usage in
 * server_catalog.c.
 */
static bool
may_use_base(Oid server, Oid base, Oid user)
{
	PgpxServerRow row;

	return pgpx_server_catalog_find_server(server, &row) &&
		(pgpx_server_catalog_may_use(base, row.owner) ||
		 (OidIsValid(user) && pgpx_server_catalog_may_use(base, user)));
}

/*
 * Compare what a checkout would read from the catalogs now, and the permissions
 * of the pool's user, with a pool.  *fingerprint is that of the pool, and is set
 * to that of the current rows.  If the verdict is IN_PLACE, *opts is set to the
 * matching options.  by_table: as for is_allowed.
 */
static Verdict
compare_with_catalogs(const PgpxPoolKey *key, bool by_table,
					  PgpxFingerprint *fingerprint, PgpxPoolOptions *opts)
{
	bool		superuser = key->superuser != 0;
	Oid			user;
	Oid			base;
	PgpxFingerprint now = {{0}};
	PgpxFingerprint before = *fingerprint;

	if (!read_mapping(key, &now, &user, &base) || !pgpx_scram_is_current(key) ||
		!hash_server(key->server, now.server, &now.in_place) ||
		!is_allowed(user, key->server, superuser, by_table))
		return GONE;
	if (OidIsValid(user))
	{
		const char *name = GetUserNameFromId(user, true);

		if (name == NULL)
			return GONE;
		now.user = pgpx_server_catalog_hash_user(name);
	}

	/* a user's own mapping takes precedence over that of PUBLIC */
	if (OidIsValid(key->local_user) && has_mapping(user, base))
		return GONE;

	/* the mapping is that of the base server */
	if (base != key->server &&
		(!hash_server(base, now.base, &now.base_in_place) ||
		 !is_allowed(user, base, superuser, by_table) ||
		 (by_table && !may_use_base(key->server, base, user)) ||
		 !pgpx_server_spec_may_have_options(key->server, base, user,
											superuser) ||
		 has_mapping(user, key->server) ||
		 has_mapping(InvalidOid, key->server)))
		return GONE;

	*fingerprint = now;
	if (memcmp(&before, &now, sizeof(now)) == 0)
		return SAME;
	if (memcmp(&before, &now, offsetof(PgpxFingerprint, in_place)) == 0 &&
		pgpx_server_spec_read_in_place(key->server, base, opts))
		return IN_PLACE;

	/* the key may differ (SCRAM keys, base) */
	return OidIsValid(key->scram_role) ||
		pgpx_server_catalog_find_base(key->server) != base ? GONE : REPLACED;
}

/*
 * Return whether the server has this name, or does not exist.  Set *name to the
 * current name.
 */
static bool
has_name(Oid oid, NameData *name)
{
	ForeignServer *server = GetForeignServerExtended(oid, FSV_MISSING_OK);
	bool		same = server == NULL ||
		strcmp(server->servername, NameStr(*name)) == 0;

	if (server != NULL)
		namestrcpy(name, server->servername);
	return same;
}

/* Return whether the user of a distributed lock may still use its server. */
static bool
may_lock(const PgpxPoolKey *key, Oid user)
{
	HeapTuple	row = SearchSysCache1(USERMAPPINGOID,
									  ObjectIdGetDatum(key->mapping));
	Oid			base;

	if (!HeapTupleIsValid(row))
		return false;
	base = ((Form_pg_user_mapping) GETSTRUCT(row))->umserver;
	ReleaseSysCache(row);
	return pgpx_server_catalog_may_use(key->server, user) &&
		(base == key->server || pgpx_server_catalog_may_use(base, user));
}

/*
 * Find the distributed locks whose users may not use the server any more.  A
 * pool that all users share, or that foreign tables use, stays, and so its
 * locks would.
 */
static void
find_revoked_locks(void)
{
	PgpxPoolKey key;
	Oid			user;
	uint64		request;

	if (revoked == NULL)
		revoked = MemoryContextAlloc(TopMemoryContext,
									 pgpx_shared->max_locks * sizeof(uint64));
	nrevoked = 0;
	for (int i = 0; (request = pgpx_lock_hooks->next_held(MyDatabaseId, &i,
														  &key, &user)) != 0;)
		if (!may_lock(&key, user))
			revoked[nrevoked++] = request;
}

/*
 * Find the pools of this database that no longer match the catalogs, the pools
 * of other databases whose SCRAM keys are outdated, and the paused servers that
 * were dropped.
 */
static void
find_changes(void)
{
	if (changes == NULL)
		changes = MemoryContextAlloc(TopMemoryContext,
									 pgpx_shared->max_pools *
										 sizeof(PoolChange));
	if (dropped == NULL)
		dropped = MemoryContextAlloc(TopMemoryContext,
									 pgpx_shared->max_pools * sizeof(Oid));
	nchanges = ndropped = 0;
	AcceptInvalidationMessages();
	find_revoked_locks();
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PoolChange *change = &changes[nchanges];
		PgpxPoolKey key;
		bool		retired;
		bool		gone;
		bool		by_table;
		bool		renamed;

		LWLockAcquire(pool->lock, LW_SHARED);
		change->pool = i;
		change->pool_id = pool->pool_id;
		change->options_version = pool->options_version;
		change->fingerprint = pool->fingerprint;
		change->server_name = pool->server_name;
		key = pool->key;
		retired = pgpx_pool_is_retired_locked(pool);
		gone = pool->gone;
		by_table = pool->by_table;
		LWLockRelease(pool->lock);

		if (change->pool_id == 0 || gone)
			continue;
		if (key.database == MyDatabaseId)
			change->verdict = compare_with_catalogs(&key, by_table,
													&change->fingerprint,
													&change->opts);
		else
			change->verdict = pgpx_scram_is_current(&key) ? SAME : GONE;

		/* for a retired pool only a new name, or GONE, is a change */
		renamed = change->verdict == REPLACED &&
			!has_name(key.server, &change->server_name);
		if (change->verdict == GONE || renamed ||
			(change->verdict != SAME && !retired))
			nchanges++;
	}

	ndropped = pgpx_server_list_paused(MyDatabaseId, dropped);
	for (int i = 0; i < ndropped;)
	{
		if (SearchSysCacheExists1(FOREIGNSERVEROID,
								  ObjectIdGetDatum(dropped[i])))
			dropped[i] = dropped[--ndropped];
		else
			i++;
	}
}

/*
 * Apply options that take effect in place.  If another session has changed the
 * pool since the catalogs were read, it is not known which change is the later
 * one.  In that case, mark the options as unread, so that the next checkout, or
 * a waiter, reads the catalogs again.
 */
static void
apply_locked(PgpxPool *pool, const PoolChange *change, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->options_version == change->options_version)
		pgpx_pool_set_options_locked(pool, &change->fingerprint, &change->opts);
	else if (!pgpx_pool_needs_options_locked(pool) &&
			 !pgpx_pool_is_current_locked(pool, &change->fingerprint))
		pgpx_pool_forget_options_locked(pool, wake);
}

/*
 * Apply a change to its pool.
 *
 * Another session may have processed the same change and retired the pool since
 * the catalogs were read.  The pool may even have new options by now.  Retiring
 * it again is always safe: it only adds a version, and waiters read the
 * catalogs again.  It may also be necessary, because options that were read
 * before our commit do not contain our change.
 */
static void
apply_change(const PoolChange *change)
{
	PgpxPool   *pool = pgpx_pool_lock(change->pool, change->pool_id);
	PgpxWake	wake = PGPX_WAKE_INIT;

	if (pool == NULL)
		return;
	if (change->verdict == IN_PLACE)
		apply_locked(pool, change, &wake);
	else
		pgpx_pool_retire_locked(pool, change->verdict == GONE, &wake);
	if (change->verdict == REPLACED)
		pool->server_name = change->server_name;
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
}

void
pgpx_catalog_request_check(void)
{
	objects_changed = true;
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

/* Return whether this is another database, and has pools. */
static bool
is_other_with_pools(Oid database)
{
	if (database == MyDatabaseId || !OidIsValid(database))
		return false;
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (pgpx_pools[i].pool_id != 0 &&
			pgpx_pools[i].key.database == database)
			return true;
	return false;
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

		if (pid != 0 && is_other_with_pools(proc->databaseId))
			(void) SendProcSignal(pid, PROCSIG_CATCHUP_INTERRUPT,
								  PGPX_ANY_BACKEND);
	}
}

/* Find the changes before a commit.  Forget them if it does not follow. */
void
pgpx_catalog_at_xact(XactEvent event)
{
	static bool checking = false;

	if (pgpx_shared == NULL || !OidIsValid(MyDatabaseId))
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (objects_changed)
			{
				objects_changed = false;
				checking = true;
				find_changes();
				checking = false;
			}
			break;
		case XACT_EVENT_ABORT:
			/* the commit has failed: find the changes of others again */
			objects_changed |= checking || nchanges + ndropped + nrevoked > 0;
			checking = false;
			pg_fallthrough;
		case XACT_EVENT_PREPARE:
			remove_created_pools();
			nchanges = ndropped = nrevoked = 0;
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
	for (int i = 0; i < nchanges; i++)
		apply_change(&changes[i]);
	for (int i = 0; i < ndropped; i++)
		(void) pgpx_server_set_paused(MyDatabaseId, dropped[i], false, false);
	for (int i = 0; i < nrevoked; i++)
		pgpx_lock_hooks->lose(revoked[i]);
	nchanges = ndropped = nrevoked = 0;
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

PgpxUtility
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
		return PGPX_UTILITY_COMMIT_PREPARED;
	if (IsA(stmt, DiscardStmt) &&
		((DiscardStmt *) stmt)->target == DISCARD_ALL)
		return PGPX_UTILITY_DISCARD_ALL;
	return PGPX_UTILITY_OTHER;
}

void
pgpx_catalog_end_utility(PgpxUtility utility)
{
	if (utility == PGPX_UTILITY_DISCARD_ALL)
	{
		(void) pgpx_lease_return_all();
		pgpx_lock_hooks->release_all();
	}
	else if (utility == PGPX_UTILITY_COMMIT_PREPARED)
		objects_changed = true;
}

void
pgpx_catalog_invalidation_init(void)
{
	pgpx_server_catalog_register(objects_callback);
	CacheRegisterSyscacheCallback(DATABASEOID, databases_callback, (Datum) 0);
	RegisterResourceReleaseCallback(release_callback, NULL);
}
