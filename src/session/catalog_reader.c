/*-------------------------------------------------------------------------
 *
 * catalog_reader.c
 *	  The catalog reader: a short-lived background worker that publishes the
 *	  conninfo of pools.
 *
 * The reader connects to the database of a pool, and publishes the conninfo
 * where no session does:
 * - for the pools whose worker needs it (pgpx_pool_needs_reader);
 * - after the start of the server, when each database is visited once: for each
 *	 user mapping of a server with min_size or min_idle.
 * catalog_request.c has the rules for its start.
 *
 * Rules for the reader:
 * - It makes the same checks as a checkout by the pool's user.  A pool that all
 *	 users of a PUBLIC mapping share has no such user; each checkout from it
 *	 checks the privileges of its own user.
 * - No session of the user has requested the connection.  The owner of a server
 *	 determines the host to which the user's password is sent, and the start
 *	 commands that run with the user's privileges on the remote.  check_owner has
 *	 the conditions for that.  The options of a server with a base server are
 *	 checked with the spec (find_forbidden_option).
 * - It reads catalogs only and executes no SQL, so no code of a user runs here.
 *	 No setting of a role or database affects what it publishes.
 * - It must be brief, because DROP DATABASE waits only five seconds for it, and
 *	 the reader of another database may have to wait for its end.  If it fails
 *	 for a temporary reason, the worker starts another one.
 *
 *-------------------------------------------------------------------------
 */
#include "base/compat.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_user_mapping.h"
#include "commands/dbcommands.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "shared/registry.h"
#include "session/checkout.h"
#include "session/server_spec.h"

/* worker/catalog_request.c starts it; arg: OID of the database */
PGDLLEXPORT void pgpx_catalog_reader_main(Datum arg);

/* Total time that the reader waits for busy workers, in microseconds. */
#define MAX_RUN_US (2 * 1000 * 1000)

/* How long it waits for a lock on a catalog. */
#define LOCK_TIMEOUT "2s"

/* A pool to publish. */
typedef struct Request
{
	NameData	server;
	Oid			user;			/* InvalidOid: all users of a PUBLIC mapping */
	NameData	user_name;
	int			pool;			/* index; -1: not known, it may not exist */
	uint32		pool_id;		/* set only if the index is known */
} Request;

static PgpxTime deadline;
static List *requests = NIL;	/* of Request */

/* Add a copy of a request to the list. */
static void
add_request(const Request *request)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Request    *copy = palloc(sizeof(*copy));

	*copy = *request;
	requests = lappend(requests, copy);
	MemoryContextSwitchTo(old);
}

/* Add the pools of this database that need their conninfo. */
static void
add_needed(void)
{
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		Request		request = {.pool = i};
		PgpxPoolKey key;

		if (!pgpx_pool_needs_reader(i, &key, &request.pool_id) ||
			key.database != MyDatabaseId)
			continue;
		LWLockAcquire(pgpx_pools[i].lock, LW_SHARED);
		request.server = pgpx_pools[i].server_name;
		request.user = pgpx_pools[i].user;
		request.user_name = pgpx_pools[i].user_name;
		LWLockRelease(pgpx_pools[i].lock);

		/* superusers share this pool, so any of them will do */
		if (!OidIsValid(request.user) && key.superuser != 0)
			request.user = BOOTSTRAP_SUPERUSERID;
		add_request(&request);
	}
}

/*
 * Add the pools of this database that have min_size or min_idle: one for each
 * user mapping.  Skip a PUBLIC mapping that names no remote user: each local
 * user has a pool of its own there, and the users are not known.
 */
static void
add_pools_with_min_size(void)
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
			Request		request = {.user = mapping->umuser, .pool = -1};
			const char *user = "public";

			if (mapping->umserver != base ||
				(!OidIsValid(request.user) &&
				 !pgpx_server_catalog_names_user(row)))
				continue;
			if (OidIsValid(request.user))
				user = GetUserNameFromId(request.user, false);
			request.server = server->srvname;
			namestrcpy(&request.user_name, user);
			add_request(&request);
		}
		systable_endscan(inner);
	}
	systable_endscan(scan);
	table_close(mappings, AccessShareLock);
	table_close(servers, AccessShareLock);
}

/*
 * Raise an error if a spec may not be published.
 *
 * Without a password, superusers must own the server and its base server,
 * because the remote may then trust the operating system account of this
 * server.  With one, it is sufficient that the owner of the server with the
 * connection options has the privileges of the user, or can read the mapping,
 * because it is PUBLIC's.
 */
static void
check_owner(const PgpxServerSpec *spec)
{
	if (!spec->of_superuser && !spec->need_password)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("pgpool_ext opens no connection without a password to a server whose owner is not a superuser")));
	if (!spec->of_superuser && !spec->owner_has_mapping)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("pgpool_ext sends no password of a user to a server whose owner is neither a superuser nor has the privileges of the user")));
}

/*
 * Log why the connections of a pool are not opened, unless the pool's last
 * error is already the same.
 */
static void
report(const Request *request, const char *database, const ErrorData *error)
{
	static bool no_slot_logged = false;
	PgpxPool   *pool = pgpx_pool_lock(request->pool, request->pool_id);
	bool		known = false;

	if (pool != NULL)
	{
		known = strncmp(pool->last_error, error->message,
						sizeof(pool->last_error) - 1) == 0;
		strlcpy(pool->last_error, error->message, sizeof(pool->last_error));
		pool->last_error_at = pgpx_now();
		pool->last_sqlstate = error->sqlerrcode;
		LWLockRelease(pool->lock);
	}
	if (error->sqlerrcode == ERRCODE_TOO_MANY_CONNECTIONS)
	{
		/* no further pool has a slot either */
		known |= no_slot_logged;
		no_slot_logged = true;
	}
	if (!known)
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("pgpool_ext cannot open connections to server \"%s\" of database \"%s\" for user \"%s\" before a checkout",
						NameStr(request->server), database,
						NameStr(request->user_name)),
				 errdetail_internal("%s", error->message)));
}

/*
 * Publish the conninfo of a pool in a transaction of its own.  If that fails,
 * report the error.
 */
static void
publish(const Request *request, const char *database)
{
	PG_TRY();
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		(void) pgpx_checkout_prewarm(
			pgpx_server_spec_get_for(NameStr(request->server), InvalidOid,
									 request->user, !OidIsValid(request->user)),
			0, deadline, check_owner);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();

		/* on a standby, a conflict with recovery is a serialization failure */
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
			error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
			error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE)
			proc_exit(1);		/* the worker will start another one */
		report(request, database, error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(TopMemoryContext);
}

void
pgpx_catalog_reader_main(Datum arg)
{
	bool		visit;
	const char *database;
	ListCell   *lc;

	memcpy(&visit, MyBgworkerEntry->bgw_extra, sizeof(visit));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* set first: the database itself may be locked, e.g. while it is copied */
	SetConfigOption("lock_timeout", LOCK_TIMEOUT, PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid,
											  0);
	deadline = pgpx_now() + MAX_RUN_US;
	add_needed();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	database = MemoryContextStrdup(TopMemoryContext,
								   get_database_name(MyDatabaseId));
	if (visit)
		add_pools_with_min_size();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	foreach(lc, requests)
	{
		CHECK_FOR_INTERRUPTS();
		publish(lfirst(lc), database);
	}
	if (visit)
		pg_atomic_write_u32(&pgpx_shared->visited_database, MyDatabaseId);
	proc_exit(0);
}
