/*-------------------------------------------------------------------------
 *
 * identity.c
 *	  Find the pool whose sessions have the identity of a dblink connection.
 *
 * Rules:
 * - A call is passed to dblink unless the pool's connections certainly have the
 *	 same remote user, database and settings.
 * - Names are resolved as dblink does: first the name of an open connection,
 *	 then that of a server, then a connection string.  dblink.c of PostgreSQL
 *	 (get_connect_string, is_valid_dblink_option) defines which options form the
 *	 connection string of a server.
 * - A mapping that the user may not read never equals a string.  Otherwise the
 *	 outcome of a call would tell whether a guess of its password is right.
 *
 *-------------------------------------------------------------------------
 */
#include "dblink/dblink.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "libpq-fe.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "config/options.h"
#include "session/server_spec.h"

/*
 * The server of a call.  $1: the argument, cut to the length of a name; $2: its
 * options as a connection string, NULL if it is none; $3, $4: the options that
 * dblink uses of servers and of mappings; $5: the user.
 *
 * Sessions of a pool differ if the options name files that may have changed
 * since a connection was opened, or SQL or settings for the session.  Without
 * option user the pool logs in as the local role, and dblink does not.
 */
static const char find_sql[] =
	"SELECT srvname, base, NOT EXISTS (SELECT FROM unnest(options) AS o WHERE split_part(o, '=', 1) IN"
	"  ('start_commands', 'reset', 'reset_command', 'use_password_command', 'use_scram_passthrough', 'service', 'passfile', 'options'))"
	"  AND EXISTS (SELECT FROM unnest(umoptions) AS o WHERE o LIKE 'user=_%') AS same"
	" FROM (SELECT s.oid, srvname, srvoptions, srvowner, umuser, umoptions, coalesce(srvoptions, '{}') || coalesce(umoptions, '{}') AS options,"
	"   fdwname = 'pgpool_fdw' AND EXISTS (SELECT FROM unnest(srvoptions) AS o WHERE o LIKE 'base_server=%') AS base"
	"  FROM pg_foreign_server AS s JOIN pg_foreign_data_wrapper AS w ON w.oid = srvfdw"
	"  LEFT JOIN LATERAL (SELECT umuser, umoptions FROM pg_user_mapping WHERE umserver = s.oid AND umuser IN (0, $5)"
	"   ORDER BY umuser DESC LIMIT 1) AS m ON true"
	"  WHERE fdwname IN ('pgpool_fdw', 'postgres_fdw', 'dblink_fdw') AND has_server_privilege($5, s.oid, 'USAGE')) AS s"
	" WHERE CASE WHEN EXISTS (SELECT FROM pg_foreign_server WHERE srvname = $1) THEN srvname = $1 AND (base OR umuser IS NOT NULL)"
	"  ELSE NOT base AND (umuser = $5 OR pg_has_role($5, srvowner, 'USAGE'))"
	"   AND (SELECT $2 <@ array_agg(o) AND array_agg(o) <@ $2 FROM"
	"    (SELECT o FROM unnest(srvoptions) AS o WHERE split_part(o, '=', 1) = ANY ($3)"
	"     UNION ALL SELECT o FROM unnest(umoptions) AS o WHERE split_part(o, '=', 1) = ANY ($4)) AS used) END"
	" ORDER BY same DESC, s.oid LIMIT 1";

/* Arguments of calls that the session remembers. */
#define MAX_KNOWN 32

typedef struct Known
{
	const char *connection;
	Oid			user;
	const char *server;			/* NULL: pass the call to dblink */
	bool		only_pool;
	PgpxDblinkOutcome outcome;	/* if it is passed */
} Known;

static MemoryContext known_cxt = NULL;	/* holds the list and its texts */
static List *known = NIL;
static bool known_valid = true;

static void
invalidate_known(Datum arg, int cacheid, uint32 hashvalue)
{
	known_valid = false;
}

/* Make the list ready for a search.  Forget it if a catalog has changed. */
static void
prepare_known(void)
{
	if (known_cxt == NULL)
	{
		known_cxt = AllocSetContextCreate(CacheMemoryContext,
										  "pgpool_ext calls of dblink",
										  ALLOCSET_SMALL_SIZES);
		pgpx_server_catalog_register(invalidate_known);
	}
	AcceptInvalidationMessages();
	if (known_valid && list_length(known) < MAX_KNOWN)
		return;
	known = NIL;
	MemoryContextReset(known_cxt);
	known_valid = true;
}

PGFunction
pgpx_dblink_function(const char *symbol)
{
	return (PGFunction) load_external_function("$libdir/dblink", symbol, true,
											   NULL);
}

/* Return whether dblink has an open connection of this name. */
static bool
is_open_connection(const char *name)
{
	static PGFunction get_connections = NULL;
	LOCAL_FCINFO(fcinfo, 0);
	Datum		result;
	Datum	   *names;
	int			n = 0;

	if (get_connections == NULL)
		get_connections = pgpx_dblink_function("dblink_get_connections");
	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	result = get_connections(fcinfo);
	if (!fcinfo->isnull)
		deconstruct_array(DatumGetArrayTypeP(result), TEXTOID, -1, false,
						  TYPALIGN_INT, &names, NULL, &n);
	while (n > 0 && strcmp(TextDatumGetCString(names[n - 1]), name) != 0)
		n--;
	return n > 0;
}

/* Return the names of the options that dblink uses of servers or of mappings. */
static Datum
options_of_dblink(bool of_mappings)
{
	ArrayBuildState *state = NULL;

	for (const PQconninfoOption *o = pgpx_libpq_options(); o->keyword; o++)
	{
		bool		in_mapping = strcmp(o->keyword, "user") == 0 ||
			strchr(o->dispchar, '*') != NULL;

		if (in_mapping == of_mappings && strchr(o->dispchar, 'D') == NULL &&
			strcmp(o->keyword, "client_encoding") != 0)
			state = accumArrayResult(state, CStringGetTextDatum(o->keyword),
									 false, TEXTOID, CurrentMemoryContext);
	}
	return makeArrayResult(state, CurrentMemoryContext);
}

/*
 * Return the options of a connection string as an array of "keyword=value".
 * Return 0 if it is not valid, or empty.
 */
static Datum
parse_string(const char *string)
{
	ArrayBuildState *state = NULL;
	char	   *message = NULL;
	PQconninfoOption *options = PQconninfoParse(string, &message);

	if (message != NULL)
		PQfreemem(message);
	for (const PQconninfoOption *o = options; o && o->keyword != NULL; o++)
		if (o->val != NULL)
			state = accumArrayResult(state,
									 CStringGetTextDatum(psprintf("%s=%s", o->keyword, o->val)),
									 false, TEXTOID, CurrentMemoryContext);
	PQconninfoFree(options);
	return state == NULL ? (Datum) 0 :
		makeArrayResult(state, CurrentMemoryContext);
}

/* Execute find_sql, which reads catalogs that only superusers may read. */
static void
search_server(const char *name, Known *result)
{
	Oid			types[] = {
		NAMEOID,
		TEXTARRAYOID,
		TEXTARRAYOID,
		TEXTARRAYOID,
		OIDOID,
	};
	NameData	cut;
	Datum		string = parse_string(result->connection);
	Datum		values[] = {
		NameGetDatum(&cut),
		string,
		options_of_dblink(false),
		options_of_dblink(true),
		ObjectIdGetDatum(result->user),
	};
	const char	nulls[] = {' ', string == 0 ? 'n' : ' ', ' ', ' ', ' ', '\0'};
	int			level = NewGUCNestLevel();
	Oid			user;
	int			context;
	bool		isnull;

	namestrcpy(&cut, name);
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   context | SECURITY_LOCAL_USERID_CHANGE);

	/* as current as the catalog caches, which the checkout reads */
	PushActiveSnapshot(GetCatalogSnapshot(ForeignServerRelationId));
	SPI_connect();
	if (SPI_execute_with_args(find_sql, lengthof(values), types, values, nulls,
							  true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not search the server of a call");
	result->outcome = PGPX_DBLINK_NO_SERVER;
	if (SPI_processed > 0)
	{
		HeapTuple	row = SPI_tuptable->vals[0];
		TupleDesc	tupdesc = SPI_tuptable->tupdesc;

		result->only_pool =
			DatumGetBool(SPI_getbinval(row, tupdesc, 2, &isnull));
		if (result->only_pool ||
			DatumGetBool(SPI_getbinval(row, tupdesc, 3, &isnull)))
			result->server = MemoryContextStrdup(known_cxt,
												 SPI_getvalue(row, tupdesc, 1));
		else
			result->outcome = PGPX_DBLINK_OTHER_SESSION;
	}
	SPI_finish();
	PopActiveSnapshot();
	SetUserIdAndSecContext(user, context);
	AtEOXact_GUC(true, level);
}

const char *
pgpx_dblink_find_server(const char *connection, bool *only_pool,
						PgpxDblinkOutcome *outcome)
{
	char	   *name = pstrdup(connection);
	Known	   *found = NULL;
	ListCell   *lc;

	*only_pool = false;
	*outcome = PGPX_DBLINK_OPEN_CONNECTION;
	truncate_identifier(name, strlen(name), false);
	if (is_open_connection(name))
		return NULL;
	prepare_known();
	foreach(lc, known)
	{
		Known	   *k = lfirst(lc);

		if (k->user == GetUserId() && strcmp(k->connection, connection) == 0)
			found = k;
	}
	if (found == NULL)
	{
		MemoryContext old;

		found = MemoryContextAllocZero(known_cxt, sizeof(Known));
		found->connection = MemoryContextStrdup(known_cxt, connection);
		found->user = GetUserId();
		search_server(name, found);
		old = MemoryContextSwitchTo(known_cxt);
		known = lappend(known, found);
		MemoryContextSwitchTo(old);
	}
	*only_pool = found->only_pool;
	*outcome = found->outcome;
	return found->server != NULL ? pstrdup(found->server) : NULL;
}

bool
pgpx_dblink_is_current(void)
{
	AcceptInvalidationMessages();
	return known_valid;
}
