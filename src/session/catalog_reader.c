/*-------------------------------------------------------------------------
 *
 * catalog_reader.c
 *	  The catalog reader: a short-lived background worker that publishes the
 *	  conninfo of pools.
 *
 * reader_start.c has the rules for its start.  Rules for the reader:
 * - It makes the same checks as a checkout by the pool's user.  A pool that all
 *	 users of a PUBLIC mapping share has no such user; each checkout from it
 *	 checks the privileges of its own user.
 * - It checks the owners of a server (pgpx_server_spec_check_unrequested).  The
 *	 options of a server with a base server are checked with the spec
 *	 (find_forbidden_option).
 * - It reads catalogs only and executes no SQL, so no code of a user runs here.
 *	 No setting of a role or database affects what it publishes.
 * - It must be brief, because DROP DATABASE waits only five seconds for it (from
 *	 19 on it ends the reader), and the reader of another database may have to
 *	 wait for its end.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_user_mapping.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "shared/registry.h"
#include "session/checkout.h"
#include "session/server_spec.h"

/* worker/reader_start.c starts it; arg: OID of the database */
PGDLLEXPORT void pgpx_catalog_reader_main(Datum arg);

/* How long it waits for busy workers in total, and for a lock on a catalog. */
#define MAX_RUN_US (2 * 1000 * 1000)
#define LOCK_TIMEOUT "2s"

static PgpxTime deadline;

/* Set the pool's last error, and log it unless it is still the same. */
static void
report(const char *server, const char *user, int index, uint32 pool_id,
	   const ErrorData *error)
{
	static bool no_slot_logged = false;
	bool		no_slot = error->sqlerrcode == ERRCODE_TOO_MANY_CONNECTIONS;
	bool		known = no_slot && no_slot_logged;	/* of another pool */
	PgpxPool   *pool = pgpx_pool_lock(index, pool_id);

	if (pool != NULL)
	{
		known |= strncmp(pool->last_error, error->message,
						 sizeof(pool->last_error) - 1) == 0;
		strlcpy(pool->last_error, error->message, sizeof(pool->last_error));
		pool->last_error_at = pgpx_now();
		pool->last_sqlstate = error->sqlerrcode;
		LWLockRelease(pool->lock);
	}
	no_slot_logged |= no_slot;
	if (!known)
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("pgpool_ext cannot open connections to server \"%s\" of database \"%s\" for user \"%s\" before a checkout",
						server, get_database_name(MyDatabaseId), user),
				 errdetail_internal("%s", error->message)));
}

/*
 * Publish the conninfo of a pool in a subtransaction, or report the error.
 *
 * user: InvalidOid for all users of a PUBLIC mapping.  index: -1 if it is not
 * known, because the pool may not exist.
 */
static void
publish(const char *server, Oid user, const char *user_name, int index,
		uint32 pool_id)
{
	MemoryContext cxt = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	CHECK_FOR_INTERRUPTS();
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		(void) pgpx_checkout_prewarm(
			pgpx_server_spec_get_for(server, InvalidOid, user,
									 !OidIsValid(user)),
			0, deadline, pgpx_server_spec_check_unrequested);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(cxt);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();

		/* on a standby, a conflict with recovery is a serialization failure */
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
			error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
			error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE)
			proc_exit(1);		/* the worker will start another one */
		report(server, user_name, index, pool_id, error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(cxt);
	CurrentResourceOwner = owner;
}

/* Publish the pools of this database that need their conninfo. */
static void
publish_needed(void)
{
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxPool	pool;

		if (!pgpx_pool_needs_reader(i, &pool) ||
			pool.key.database != MyDatabaseId)
			continue;

		/* superusers share this pool, so any of them will do */
		if (!OidIsValid(pool.user) && pool.key.superuser != 0)
			pool.user = BOOTSTRAP_SUPERUSERID;
		publish(NameStr(pool.server_name), pool.user, NameStr(pool.user_name),
				i, pool.pool_id);
	}
}

/*
 * Have a resolver started if this database has participants (commit/commit.h).
 * Where the extension exists, its schema is a member of it, so the table is, too.
 */
static void
claim_resolver(void)
{
	Oid			table = InvalidOid;
	Relation	participants;
	SysScanDesc scan;

	if (OidIsValid(get_extension_oid("pgpool_ext", true)))
		table = get_relname_relid("commit_participants",
								  get_namespace_oid("pgpool", false));
	if (!OidIsValid(table))
		return;
	participants = table_open(table, AccessShareLock);
	scan = systable_beginscan(participants, InvalidOid, false,
							  GetActiveSnapshot(), 0, NULL);
	if (HeapTupleIsValid(systable_getnext(scan)) &&
		pgpx_resolver_slot_claim() == NULL)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgpool_ext cannot resolve prepared parts of database \"%s\"",
						get_database_name(MyDatabaseId)),
				 errdetail("%d other databases have participants of commits on several servers.",
						   PGPX_MAX_RESOLVERS)));
	systable_endscan(scan);
	table_close(participants, AccessShareLock);
}

/*
 * Visit this database: publish its pools with min_size or min_idle, one for each
 * user mapping.  Skip a PUBLIC mapping that names no remote user: each local
 * user has a pool of its own there, and the users are not known.
 */
static void
visit(void)
{
	Relation	servers = table_open(ForeignServerRelationId, AccessShareLock);
	Relation	mappings = table_open(UserMappingRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(servers, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	row;

	while ((row = systable_getnext(scan)) != NULL)
	{
		Form_pg_foreign_server server = (Form_pg_foreign_server) GETSTRUCT(row);
		Oid			base = pgpx_server_catalog_find_base(server->oid);
		SysScanDesc inner;
		PgpxPoolOptions opts;

		if (!pgpx_server_spec_read_options(server->oid, &opts) ||
			(opts.min_size == 0 && opts.min_idle == 0))
			continue;
		inner = systable_beginscan(mappings, InvalidOid, false, NULL, 0, NULL);
		while ((row = systable_getnext(inner)) != NULL)
		{
			Form_pg_user_mapping mapping =
				(Form_pg_user_mapping) GETSTRUCT(row);
			Oid			user = mapping->umuser;
			const char *user_name = "public";

			if (mapping->umserver != base ||
				(!OidIsValid(user) && !pgpx_server_catalog_names_user(row)))
				continue;
			if (OidIsValid(user))
				user_name = GetUserNameFromId(user, true);
			if (user_name != NULL)	/* NULL: the role was dropped meanwhile */
				publish(NameStr(server->srvname), user, user_name, -1, 0);
		}
		systable_endscan(inner);
	}
	systable_endscan(scan);
	table_close(mappings, AccessShareLock);
	table_close(servers, AccessShareLock);
	claim_resolver();
	pg_atomic_write_u32(&pgpx_shared->visited_database, MyDatabaseId);
}

void
pgpx_catalog_reader_main(Datum arg)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* set first: the database itself may be locked, e.g. while it is copied */
	SetConfigOption("lock_timeout", LOCK_TIMEOUT, PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid,
											  0);
	deadline = pgpx_now() + MAX_RUN_US;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	publish_needed();
	if (MyBgworkerEntry->bgw_extra[0])
		visit();
	PopActiveSnapshot();
	CommitTransactionCommand();
	proc_exit(0);
}
