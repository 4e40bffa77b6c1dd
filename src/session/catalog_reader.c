/*-------------------------------------------------------------------------
 *
 * catalog_reader.c
 *	  The catalog reader: a short-lived background worker that publishes the
 *	  conninfo of pools.
 *
 * Pool workers are not connected to a database and cannot read user mappings.
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
 *	 commands that run with the user's privileges on the remote.  So the reader
 *	 publishes a conninfo only if one of these holds (check_owner):
 *	 - Superusers own the server and its base server.  Without a password no
 *	   other case is sufficient, because the remote may then trust the operating
 *	   system account of this server.
 *	 - The owner of the server with the connection options has the privileges of
 *	   the user, or can read the mapping, because it is PUBLIC's.  With a base
 *	   server, both owners can use the mapping
 *	   (pgpx_server_allows_unattended), and check_commands has checked the
 *	   commands.
 *	 - A session of the user has used the pool with the same options.
 * - It reads catalogs only and executes no SQL, so no code of a user runs here.
 *	 No setting of a role or database affects what it publishes.
 * - It must be brief, because DROP DATABASE waits only five seconds for it, and
 *	 the reader of another database may have to wait for its end.  So it does
 *	 not wait long for a lock.  If it fails for a temporary reason, the worker
 *	 starts another one.
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
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
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
	Oid			server;
	Oid			user;			/* InvalidOid: all users of a PUBLIC mapping */
	int			pool;			/* index; -1: not known, it may not exist */
	uint32		pool_id;		/* set only if the index is known */
	PgpxPoolKey key;			/* set only if the index is known */
} Request;

static PgpxTime deadline;
static List *requests = NIL;	/* of Request */
static const Request *current;	/* the request being published */

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

		if (!pgpx_pool_needs_reader(i, &request.key, &request.pool_id) ||
			request.key.database != MyDatabaseId)
			continue;
		request.server = request.key.server;
		LWLockAcquire(pgpx_pools[i].lock, LW_SHARED);
		request.user = pgpx_pools[i].user;
		LWLockRelease(pgpx_pools[i].lock);

		/* superusers share this pool, so any of them will do */
		if (!OidIsValid(request.user) && request.key.superuser != 0)
			request.user = BOOTSTRAP_SUPERUSERID;
		add_request(&request);
	}
}

/* Return whether a server has a numeric option that is above 0. */
static bool
is_positive(const PgpxServerRow *server, const char *option)
{
	int64		value;

	return pgpx_options_find_number(server->options, option, &value) &&
		value > 0;
}

/* Return whether a server has option min_size or min_idle above 0. */
static bool
has_min_size(const PgpxServerRow *server)
{
	return server->own_wrapper &&
		(is_positive(server, "min_size") || is_positive(server, "min_idle"));
}

/*
 * Add a pool of a server for each user mapping of "base", the server that has
 * its connection options.  Skip a PUBLIC mapping that names no remote user:
 * each local user has a pool of its own there, and the users are not known.
 */
static void
add_mappings(Oid server, Oid base)
{
	Relation	mappings = table_open(UserMappingRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(mappings, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	row;

	while ((row = systable_getnext(scan)) != NULL)
	{
		Form_pg_user_mapping mapping = (Form_pg_user_mapping) GETSTRUCT(row);
		Request		request = {.server = server, .pool = -1};

		if (mapping->umserver != base ||
			(!OidIsValid(mapping->umuser) &&
			 !pgpx_server_catalog_names_user(row)))
			continue;
		request.user = mapping->umuser;
		add_request(&request);
	}
	systable_endscan(scan);
	table_close(mappings, AccessShareLock);
}

/* Add the pools of this database that have min_size or min_idle. */
static void
add_pools_with_min_size(void)
{
	Relation	servers = table_open(ForeignServerRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(servers, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	row;

	while ((row = systable_getnext(scan)) != NULL)
	{
		PgpxServerRow server;
		const char *base;
		Oid			oid = ((Form_pg_foreign_server) GETSTRUCT(row))->oid;

		if (!pgpx_server_catalog_find_server(oid, &server) ||
			!has_min_size(&server))
			continue;
		base = pgpx_server_catalog_value(server.options, "base_server");
		add_mappings(oid, base == NULL ? oid :
										 get_foreign_server_oid(base, true));
	}
	systable_endscan(scan);
	table_close(servers, AccessShareLock);
}

/*
 * Return whether the connections of the pool have the options of a spec.  If
 * so, a session of the pool's user, or an earlier reader, was allowed to use
 * them.
 */
static bool
is_in_use(const PgpxServerSpec *spec, const Request *request)
{
	PgpxPool   *pool = NULL;
	bool		alike;

	if (request->pool >= 0)
		pool = pgpx_pool_lock(request->pool, request->pool_id);
	if (pool == NULL)
		return false;
	alike = pgpx_pool_has_same_login_locked(pool, &spec->fingerprint);
	LWLockRelease(pool->lock);
	return alike;
}

/* Raise an error if a spec may not be published; see the top of the file. */
static void
check_owner(const PgpxServerSpec *spec)
{
	if (spec->of_superuser)
		return;
	if (!spec->need_password)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("pgpool_ext opens no connection without a password to a server whose owner is not a superuser")));
	if (!spec->owners_have_privileges && !is_in_use(spec, current))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 spec->fingerprint.unattended != 0 ?
				 errmsg("pgpool_ext sends no password of a user to a server whose owner is neither a superuser nor has the privileges of the user") :
				 errmsg("pgpool_ext opens no connection of a user to a server with a base server unless the owners of both could use the user mapping")));
}

/* Publish the conninfo of a pool, or raise the reason why it cannot be. */
static void
publish(const Request *request)
{
	ForeignServer *server = GetForeignServerExtended(request->server,
													 FSV_MISSING_OK);
	PgpxServerSpec *spec;

	if (server == NULL)
		return;
	pgstat_report_activity(STATE_RUNNING,
						   psprintf("conninfo of server \"%s\"",
									server->servername));
	spec = pgpx_server_spec_get_for(server->servername, request->user,
									!OidIsValid(request->user));

	/* renamed, or changed so that no checkout finds the pool any more */
	if (spec->key.server != request->server ||
		(request->pool >= 0 &&
		 memcmp(&spec->key, &request->key, sizeof(spec->key)) != 0))
		return;
	current = request;
	pgpx_checkout_publish_conninfo(spec, deadline, check_owner);
}

/*
 * Log why the connections of a pool are not opened, unless the pool's last
 * error is already the same.
 */
static void
report(const Request *request, const ErrorData *error)
{
	PgpxPool   *pool = NULL;
	bool		known = false;
	const char *database;
	ForeignServer *server;
	const char *user;
	static bool no_slot_logged = false;

	if (request->pool >= 0)
		pool = pgpx_pool_lock(request->pool, request->pool_id);
	if (pool != NULL)
	{
		known = strncmp(pool->last_error, error->message,
						sizeof(pool->last_error) - 1) == 0;
		strlcpy(pool->last_error, error->message, sizeof(pool->last_error));
		pool->last_error_at = pgpx_now();
		pool->last_sqlstate = error->sqlerrcode;
		LWLockRelease(pool->lock);
	}
	if (known)
		return;

	/* no further pool has a slot either */
	if (error->sqlerrcode == ERRCODE_TOO_MANY_CONNECTIONS)
	{
		if (no_slot_logged)
			return;
		no_slot_logged = true;
	}
	StartTransactionCommand();
	database = get_database_name(MyDatabaseId);
	server = GetForeignServerExtended(request->server, FSV_MISSING_OK);
	user = OidIsValid(request->user) ? GetUserNameFromId(request->user, true) :
									  "public";
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("pgpool_ext cannot open connections to server \"%s\" of database \"%s\" for user \"%s\" before a checkout",
					server != NULL ? server->servername : "?",
					database != NULL ? database : "?",
					user != NULL ? user : "?"),
			 errdetail_internal("%s", error->message)));
	CommitTransactionCommand();
}

/*
 * Publish the conninfo of a pool in a transaction of its own.  If that fails,
 * report the error and return false.
 */
static bool
try_publish(const Request *request)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool done = false;
	Oid			user;
	int			context;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	GetUserIdAndSecContext(&user, &context);
	if (OidIsValid(request->user))
		SetUserIdAndSecContext(request->user,
							   context | SECURITY_RESTRICTED_OPERATION);
	PG_TRY();
	{
		publish(request);
		SetUserIdAndSecContext(user, context);
		PopActiveSnapshot();
		CommitTransactionCommand();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(caller);

		/* on a standby, a conflict with recovery is a serialization failure */
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
			error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
			error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE)
			proc_exit(1);		/* the worker will start another one */
		report(request, error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return done;
}

void
pgpx_catalog_reader_main(Datum arg)
{
	bool		check_min_size;
	int			published = 0;
	ListCell   *lc;

	memcpy(&check_min_size, MyBgworkerEntry->bgw_extra, sizeof(check_min_size));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* set first: the database itself may be locked, e.g. while it is copied */
	SetConfigOption("lock_timeout", LOCK_TIMEOUT, PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid,
											  0);
	deadline = pgpx_now() + MAX_RUN_US;
	add_needed();
	if (check_min_size)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		add_pools_with_min_size();
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	MemoryContextSwitchTo(TopMemoryContext);
	foreach(lc, requests)
	{
		CHECK_FOR_INTERRUPTS();
		published += try_publish(lfirst(lc)) ? 1 : 0;
	}
	if (check_min_size)
		pg_atomic_write_u32(&pgpx_shared->completed_visit, MyDatabaseId);
	ereport(pgpx_log_connections && published > 0 ? LOG : DEBUG1,
			(errmsg_plural("pgpool_ext catalog reader has published the connection parameters of %d pool",
						   "pgpool_ext catalog reader has published the connection parameters of %d pools",
						   published, published)));
	proc_exit(0);
}
