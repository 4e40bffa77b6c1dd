/*-------------------------------------------------------------------------
 *
 * ddl.c
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
#include "ddl.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_user_mapping.h"
#include "nodes/parsenodes.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/utility.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "dlock_session.h"
#include "lease.h"
#include "pool.h"
#include "target_source.h"

/* set by the callback, which may come at any time: nothing else happens there */
static bool objects_changed = false;
static bool databases_changed = false;

/* this transaction has changed a role, or who is a member of which */
static bool roles_changed = false;

/* .. or dropped a user mapping */
static bool mapping_dropped = false;

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

typedef struct PoolRef
{
	int			pool;
	uint32		pool_id;
} PoolRef;

/* pools to retire at commit */
static PoolRef *stale = NULL;	/* [max_pools], TopMemoryContext */
static int	nstale = 0;

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

/* Is a server still the one that the options were read from? */
static bool
same_server(Oid oid, const uint64 hash[2])
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(oid));
	uint64		now[2];

	if (!HeapTupleIsValid(row))
		return false;
	pgpx_source_hash_server(row, now);
	ReleaseSysCache(row);
	return now[0] == hash[0] && now[1] == hash[1];
}

/* The same for the user mapping; says whose it is, and of which server. */
static bool
same_mapping(const PgpxPoolKey *key, const PgpxFingerprint *fingerprint,
			 Oid *user, Oid *server)
{
	HeapTuple	row;
	Form_pg_user_mapping mapping;
	bool		same;

	row = SearchSysCache1(USERMAPPINGOID, ObjectIdGetDatum(key->mapping));
	if (!HeapTupleIsValid(row))
		return false;
	same =
		HeapTupleHeaderGetRawXmin(row->t_data) == fingerprint->mapping_xmin &&
		ItemPointerEquals(&row->t_self,
						  unconstify(ItemPointerData *,
									 &fingerprint->mapping_tid));
	mapping = (Form_pg_user_mapping) GETSTRUCT(row);
	*user = OidIsValid(mapping->umuser) ? mapping->umuser : key->local_user;
	*server = mapping->umserver;
	ReleaseSysCache(row);
	return same;
}

static bool
has_mapping(Oid user, Oid server)
{
	return SearchSysCacheExists2(USERMAPPINGUSERSERVER,
								 ObjectIdGetDatum(user),
								 ObjectIdGetDatum(server));
}

/* Does a role have the name that it had, and is there one? */
static bool
same_user(Oid user, uint64 hash)
{
	const char *name = GetUserNameFromId(user, true);

	return name != NULL && pgpx_source_hash_user(name) == hash;
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

/* Would a checkout read the same, and be allowed to? */
static bool
is_current(const PgpxPoolKey *key, const PgpxFingerprint *fingerprint)
{
	Oid			user;
	Oid			base;

	if (!same_server(key->server, fingerprint->server) ||
		!same_mapping(key, fingerprint, &user, &base))
		return false;
	if (!same_user(user, fingerprint->user) ||
		superuser_arg(user) != (key->superuser != 0) ||
		!may_use(key->server, user))
		return false;

	/* a mapping of one's own goes before PUBLIC's */
	if (OidIsValid(key->local_user) && has_mapping(user, base))
		return false;
	if (base == key->server)
		return true;

	/* the mapping is another server's: of the one that is the pool's base */
	return same_server(base, fingerprint->base) &&
		may_use(base, user) &&
		!has_mapping(user, key->server) &&
		!has_mapping(InvalidOid, key->server);
}

/* Which pools of this database do the catalogs no longer stand behind? */
static void
find_stale(void)
{
	if (stale == NULL)
		stale = MemoryContextAlloc(TopMemoryContext,
								   pgpx_shared->max_pools * sizeof(PoolRef));
	if (gone == NULL)
		gone = MemoryContextAlloc(TopMemoryContext,
								  pgpx_shared->max_pools * sizeof(Oid));
	nstale = ngone = 0;
	AcceptInvalidationMessages();
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		PgpxPoolKey key;
		PgpxFingerprint fingerprint;
		uint32		pool_id;
		bool		retired;

		LWLockAcquire(pool->lock, LW_SHARED);
		pool_id = pool->pool_id;
		key = pool->key;
		fingerprint = pool->fingerprint;
		retired = pgpx_pool_is_retired_locked(pool);
		LWLockRelease(pool->lock);

		/* one that is a transaction's own ends with it */
		if (pool_id == 0 || retired || key.database != MyDatabaseId ||
			TransactionIdIsValid(key.xid) || is_current(&key, &fingerprint))
			continue;
		stale[nstale].pool = i;
		stale[nstale++].pool_id = pool_id;
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
 * Others may have heard of the same change and have retired a stale pool since we
 * looked; it may even run under new options by now.  Once more is never wrong: a
 * version more, and who waits reads the catalogs again.  Nor is it always in vain:
 * what was read before our commit did not yet have our change in it.
 */
static void
retire(const PoolRef *refs, int n)
{
	for (int i = 0; i < n; i++)
	{
		PgpxPool   *pool = pgpx_pool_lock(refs[i].pool, refs[i].pool_id);
		PgpxWake	wake = PGPX_WAKE_INIT;

		if (pool == NULL)
			continue;
		pgpx_pool_retire_locked(pool, &wake);
		LWLockRelease(pool->lock);
		pgpx_wake_flush(&wake);
	}
}

bool
pgpx_ddl_mapping_dropped(void)
{
	return mapping_dropped;
}

void
pgpx_ddl_note_own_pool(void)
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
		PoolRef		ref = {i, pgpx_pools[i].pool_id};

		if (ref.pool_id != 0 && TransactionIdIsValid(xid) &&
			pgpx_pools[i].key.xid == xid)
			retire(&ref, 1);
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
tell_other_databases(void)
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
				find_stale();
			}
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			nstale = ngone = 0;
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
	retire(stale, nstale);
	for (int i = 0; i < ngone; i++)
		(void) pgpx_server_pause(MyDatabaseId, gone[i], false, false);
	nstale = ngone = 0;
	mapping_dropped = false;
	if (!is_commit)
		return;
	if (roles_changed)
	{
		roles_changed = false;
		tell_other_databases();
	}
	if (databases_changed)
	{
		databases_changed = false;
		pgpx_pool_ask_for_databases();
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
		mapping_dropped = true;
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
		if (pgpx_lease_were_any())
			pgpx_pool_forget_lessee((int) MyProcNumber, MyProcPid);
		pgpx_dlock_release_all();
	}
	if (commits)
		objects_changed = true;
}

void
pgpx_ddl_init(void)
{
	pgpx_source_on_change(objects_callback);
	CacheRegisterSyscacheCallback(DATABASEOID, databases_callback, (Datum) 0);
	RegisterXactCallback(xact_callback, NULL);
	RegisterResourceReleaseCallback(release_callback, NULL);
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
