/*-------------------------------------------------------------------------
 *
 * catalog_invalidation.c
 *	  Pools follow the catalogs: ALTER, DROP and REVOKE take effect at commit.
 *
 * The worker is in no database and cannot see servers and user mappings change.
 * But every session of the server has this library, and is told of catalog
 * changes, its own first of all.  So the session that changes something compares
 * its database's pools with the catalogs just before it commits, when it can
 * still read them, and retires those that differ when it has committed: idle
 * connections close at once, leased ones at checkin.  It does so after others
 * have been told of the change: a waiter that is woken reads the catalogs again,
 * and with what its caches said before it would take the old options for the new.
 *
 * Sessions that hear of the change later do the same, which finds nothing left.
 * Roles belong to all databases, though, and nobody here can read the servers of
 * another one: sessions that are there are woken to hear of it now.
 *
 * A transaction that uses what it has itself changed may never commit it: it has a
 * pool of its own for that, which is retired at its end.  Nobody else sees what is
 * not committed, nor is sent where it leads.
 *
 *-------------------------------------------------------------------------
 */
#include "session/catalog_invalidation.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_user_mapping.h"
#include "foreign/foreign.h"
#include "nodes/parsenodes.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/utility.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "base/debug_point.h"
#include "shared/lock_hooks.h"
#include "shared/registry.h"
#include "session/lease.h"
#include "session/server_catalog.h"

/* set by the callback, which may come at any time: nothing else happens there */
static bool objects_changed = false;
static bool databases_changed = false;

/* this transaction has changed a role, or who is a member of which */
static bool roles_changed = false;

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* What the catalogs say of a pool's options. */
typedef enum Verdict
{
	SAME,
	IN_PLACE,					/* it connects as before: the rest can be applied */
	REPLACED,					/* it connects in another way now */
	GONE						/* no checkout would find it any more */
} Verdict;

/* A pool that is to follow the catalogs at commit. */
typedef struct PoolChange
{
	int			pool;
	uint32		pool_id;
	Verdict		verdict;
	NameData	server_name;	/* REPLACED: it may have another now */

	/* IN_PLACE */
	uint64		options_version;	/* the pool's when the catalogs were read */
	PgpxFingerprint fingerprint;
	PgpxPoolOptions opts;
} PoolChange;

static PoolChange *changes = NULL;	/* [max_pools], TopMemoryContext */
static int	nchanges = 0;

/* has this transaction pools of its own, to retire at its end? */
static bool own_pools = false;

/* dropped servers that are paused, whose records go at commit */
static Oid *gone = NULL;		/* the same */
static int	ngone = 0;

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

/*
 * Compare a server with what the options were read from: its hashes in a
 * fingerprint, which become those of now.
 */
static Verdict
compare_server(Oid oid, uint64 hash[2], uint64 *settings)
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(oid));
	uint64		old[2] = {hash[0], hash[1]};
	uint64		old_settings = *settings;

	if (!HeapTupleIsValid(row))
		return GONE;
	pgpx_server_catalog_hash_server(row, hash, settings);
	ReleaseSysCache(row);
	if (hash[0] != old[0] || hash[1] != old[1])
		return REPLACED;
	return *settings == old_settings ? SAME : IN_PLACE;
}

/* The same for the user mapping; sets whose it is, and of which server. */
static Verdict
compare_mapping(const PgpxPoolKey *key, const PgpxFingerprint *fingerprint,
				Oid *user, Oid *server)
{
	HeapTuple	row;
	Form_pg_user_mapping mapping;
	bool		same;
	bool		lost = false;

	row = SearchSysCache1(USERMAPPINGOID, ObjectIdGetDatum(key->mapping));
	if (!HeapTupleIsValid(row))
		return GONE;
	same =
		HeapTupleHeaderGetRawXmin(row->t_data) == fingerprint->mapping_xmin &&
		ItemPointerEquals(&row->t_self,
						  unconstify(ItemPointerData *,
									 &fingerprint->mapping_tid));
	mapping = (Form_pg_user_mapping) GETSTRUCT(row);
	*user = OidIsValid(mapping->umuser) ? mapping->umuser : key->local_user;
	*server = mapping->umserver;
	if (!same && !OidIsValid(mapping->umuser) &&
		pgpx_server_catalog_names_user(row) == OidIsValid(key->local_user))
		lost = true;			/* one pool for all, or one for each, by now */
	ReleaseSysCache(row);
	return same ? SAME : lost ? GONE :
								REPLACED;
}

/* Is "base" the server that the connection options of "oid" come from? */
static bool
has_base(Oid oid, Oid base)
{
	PgpxServerRow server;
	const char *name;

	if (!pgpx_server_catalog_find_server(oid, &server))
		return false;
	name = server.own_wrapper ?
		pgpx_server_catalog_value(server.options, "base_server") : NULL;
	return base == (name != NULL ? get_foreign_server_oid(name, true) : oid);
}

static bool
has_mapping(Oid user, Oid server)
{
	return SearchSysCacheExists2(USERMAPPINGUSERSERVER,
								 ObjectIdGetDatum(user),
								 ObjectIdGetDatum(server));
}

/* Does a role have the name that it had, and is there one? */
static Verdict
compare_user(Oid user, uint64 hash)
{
	const char *name;

	if (!OidIsValid(user))
		return SAME;			/* the pool is no single user's */
	name = GetUserNameFromId(user, true);
	if (name == NULL)
		return GONE;
	return pgpx_server_catalog_hash_user(name) == hash ? SAME : REPLACED;
}

/*
 * May the user use a server?  By its row, which is held: it may be dropped meanwhile,
 * which the server's own check, that reads it again, has an error for.  This here must
 * not fail a commit that has nothing to do with it.
 */
static bool
may_use(Oid oid, Oid user)
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(oid));
	Oid			owner;
	Datum		acl;
	bool		none;
	bool		may;

	if (!HeapTupleIsValid(row))
		return false;
	owner = ((Form_pg_foreign_server) GETSTRUCT(row))->srvowner;
	acl = SysCacheGetAttr(FOREIGNSERVEROID, row,
						  Anum_pg_foreign_server_srvacl, &none);
	may = superuser_arg(user) ||
		aclmask(none ? acldefault(OBJECT_FOREIGN_SERVER, owner) :
				DatumGetAclP(acl),
				user, owner, ACL_USAGE, ACLMASK_ANY) != ACL_NO_RIGHTS;
	ReleaseSysCache(row);
	return may;
}

/*
 * May the user of a pool, of this class, still use a server?  Those of a pool for all
 * local users are asked one by one, at each checkout.
 */
static bool
may_have(Oid user, Oid server, bool superuser)
{
	return !OidIsValid(user) ||
		(superuser_arg(user) == superuser && may_use(server, user));
}

/* Which of two verdicts counts.  (A macro would ask for each twice.) */
static inline Verdict
worse(Verdict a, Verdict b)
{
	return a > b ? a : b;
}

/*
 * Would a checkout read the same, and be allowed to?  If the verdict is IN_PLACE,
 * the fingerprint becomes that of now, and *opts what it stands for.
 */
static Verdict
judge(const PgpxPoolKey *key, PgpxFingerprint *fingerprint,
	  PgpxPoolOptions *opts)
{
	Oid			user = InvalidOid;
	Oid			base = InvalidOid;
	Verdict		server;
	Verdict		verdict = compare_mapping(key, fingerprint, &user, &base);

	if (verdict == GONE)
		return GONE;
	server = compare_server(key->server, fingerprint->server,
							&fingerprint->settings);
	verdict = worse(verdict, server);
	verdict = worse(verdict, compare_user(user, fingerprint->user));
	if (verdict == GONE || !may_have(user, key->server, key->superuser != 0))
		return GONE;

	/* a mapping of one's own goes before PUBLIC's */
	if (OidIsValid(key->local_user) && has_mapping(user, base))
		return GONE;
	if (base != key->server)
	{
		/* the mapping is another server's: of the one that is the pool's base */
		verdict = worse(verdict,
						compare_server(base, fingerprint->base,
									   &fingerprint->base_settings));
		if (verdict == GONE || !may_have(user, base, key->superuser != 0) ||
			has_mapping(user, key->server) ||
			has_mapping(InvalidOid, key->server))
			return GONE;
	}
	if (verdict == REPLACED && !has_base(key->server, base))
		return GONE;
	if (verdict == IN_PLACE &&
		!pgpx_server_spec_read_settings(key->server, base, opts))
		return REPLACED;
	return verdict;
}

/* Has a server this name?  It becomes the one that it has. */
static bool
has_name(Oid oid, NameData *name)
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(oid));
	NameData	now;
	bool		same;

	if (!HeapTupleIsValid(row))
		return true;
	now = ((Form_pg_foreign_server) GETSTRUCT(row))->srvname;
	ReleaseSysCache(row);
	same = strcmp(NameStr(now), NameStr(*name)) == 0;
	*name = now;
	return same;
}

/* Which pools of this database have to follow the catalogs? */
static void
find_changes(void)
{
	if (changes == NULL)
		changes = MemoryContextAlloc(TopMemoryContext,
									 pgpx_shared->max_pools *
										 sizeof(PoolChange));
	if (gone == NULL)
		gone = MemoryContextAlloc(TopMemoryContext,
								  pgpx_shared->max_pools * sizeof(Oid));
	nchanges = ngone = 0;
	AcceptInvalidationMessages();
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PoolChange *change = &changes[nchanges];
		PgpxPoolKey key;
		bool		retired;
		bool		gone;
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
		LWLockRelease(pool->lock);

		/* one that is a transaction's own ends with it */
		if (change->pool_id == 0 || key.database != MyDatabaseId ||
			TransactionIdIsValid(key.xid) || gone)
			continue;
		change->verdict = judge(&key, &change->fingerprint, &change->opts);

		/* a pool that is retired already can only be renamed, or lost as well */
		renamed = change->verdict == REPLACED &&
			!has_name(key.server, &change->server_name);
		if (change->verdict == GONE || renamed ||
			(change->verdict != SAME && !retired))
			nchanges++;
	}

	ngone = pgpx_server_list_paused(MyDatabaseId, gone);
	for (int i = 0; i < ngone;)
	{
		if (SearchSysCacheExists1(FOREIGNSERVEROID, ObjectIdGetDatum(gone[i])))
			gone[i] = gone[--ngone];
		else
			i++;
	}
}

/*
 * Apply options that take effect in place.  If another session has changed the pool
 * since the catalogs were read, either change may be the later one: then the next
 * checkout, or a waiter, reads the catalogs again.
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
 * Other sessions may have heard of the same change and have retired the pool since
 * the catalogs were read; it may even run under new options by now.  To retire it
 * once more is never wrong: the pool has one version more, and waiters read the
 * catalogs again.  It may be necessary, too, because options that were read before
 * our commit do not have our change in them.
 */
static void
follow(const PoolChange *change)
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
pgpx_catalog_note_own_pool(void)
{
	own_pools = true;
}

/* A look without locks: who else could make a pool with our number, or take it away? */
static void
retire_own(void)
{
	TransactionId xid = GetTopTransactionIdIfAny();

	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PoolChange	change = {
			.pool = i,
			.pool_id = pgpx_pools[i].pool_id,
			.verdict = GONE,
		};

		if (change.pool_id != 0 && TransactionIdIsValid(xid) &&
			pgpx_pools[i].key.xid == xid)
			follow(&change);
	}
	own_pools = false;
}

/* Is it a database that others' pools may have to follow in? */
static bool
has_pools(Oid database)
{
	if (database == MyDatabaseId || !OidIsValid(database))
		return false;
	for (int i = 0; i < pgpx_shared->max_pools; i++)
		if (pgpx_pools[i].pool_id != 0 &&
			pgpx_pools[i].key.database == database)
			return true;
	return false;
}

/*
 * Have the sessions of other databases with pools hear of what has changed, as if
 * they had fallen behind with such news: who is idle begins a transaction and ends
 * it, and looks at its pools then.  A look without locks: to wake one too many does
 * no harm, and who comes later has read what is so now.
 */
static void
notify_other_databases(void)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		int			pid = proc->pid;

		if (pid != 0 && has_pools(proc->databaseId))
			(void) SendProcSignal(pid, PROCSIG_CATCHUP_INTERRUPT,
								  PGPX_ANY_BACKEND);
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (pgpx_shared == NULL || !OidIsValid(MyDatabaseId))
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (objects_changed)
			{
				objects_changed = false;
				find_changes();
			}
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			nchanges = ngone = 0;
			roles_changed = false;
			break;
		default:
			break;
	}
}

/*
 * The transaction has ended and, if it has committed, has told the other sessions to
 * forget what they know of the catalogs.  Not before: who is woken reads them at
 * once, and would take the old options for the new ones.
 */
static void
release_callback(ResourceReleasePhase phase, bool is_commit, bool is_top_level,
				 void *arg)
{
	if (phase != RESOURCE_RELEASE_LOCKS || !is_top_level ||
		pgpx_shared == NULL || !OidIsValid(MyDatabaseId))
		return;
	if (own_pools)
		retire_own();
	for (int i = 0; i < nchanges; i++)
		follow(&changes[i]);
	for (int i = 0; i < ngone; i++)
		(void) pgpx_server_pause(MyDatabaseId, gone[i], false, false);
	nchanges = ngone = 0;
	pgpx_server_catalog_mapping_dropped = false;
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
		pgpx_pool_request_database_check();
	}
}

/* Whichever statement drops it, be it DROP OWNED. */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId,
			  void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_DROP && classId == UserMappingRelationId)
		pgpx_server_catalog_mapping_dropped = true;
}

/*
 * DISCARD ALL of a local session returns its leases and releases its locks, as it
 * does with advisory locks: a pooler in front of this server sends it between two clients.
 * Who comes next is another one to connections that are reset only then.
 *
 * COMMIT PREPARED commits changes that were another transaction's, of roles, too.
 */
static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest,
				QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;

	/* the end of a transaction may free the statement: look before */
	bool		discards = IsA(stmt, DiscardStmt) &&
		((DiscardStmt *) stmt)->target == DISCARD_ALL;
	bool		commits = IsA(stmt, TransactionStmt) &&
		((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT_PREPARED;
	bool		renames = IsA(stmt, RenameStmt) &&
		((RenameStmt *) stmt)->renameType == OBJECT_ROLE;

	roles_changed |= IsA(stmt, AlterRoleStmt) || IsA(stmt, DropRoleStmt) ||
		IsA(stmt, GrantRoleStmt) || renames || commits;
	if (prev_process_utility)
		prev_process_utility(pstmt, queryString, readOnlyTree, context, params,
							 queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);
	if (discards)
	{
		(void) pgpx_lease_return_all();
		if (pgpx_lease_has_callbacks())
			pgpx_pool_forget_lessee((int) MyProcNumber, MyProcPid);
		pgpx_lock_hooks->release_all();
	}
	if (commits)
		objects_changed = true;
}

void
pgpx_catalog_invalidation_init(void)
{
	pgpx_server_catalog_on_change(objects_callback);
	CacheRegisterSyscacheCallback(DATABASEOID, databases_callback, (Datum) 0);
	RegisterXactCallback(xact_callback, NULL);
	RegisterResourceReleaseCallback(release_callback, NULL);
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
