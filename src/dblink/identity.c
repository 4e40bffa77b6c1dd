/*-------------------------------------------------------------------------
 *
 * identity.c
 *	  Find the pool whose sessions have the identity of a dblink connection.
 *
 * Rules:
 * - A call is passed to dblink unless it is certain that the pool's connections
 *	 have the same remote user, database and settings.
 * - Names are resolved as dblink does: first the name of an open connection,
 *	 then that of a server, then a connection string.
 * - A mapping that the user may not read never equals a connection string.
 *	 Otherwise the outcome of a call would tell whether a guess of its password
 *	 is right.
 *
 * dblink.c of PostgreSQL (get_connect_string, is_valid_dblink_option) defines
 * which options form the connection string of a server.
 *
 *-------------------------------------------------------------------------
 */
#include "dblink/dblink.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "foreign/foreign.h"
#include "libpq-fe.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "config/options.h"
#include "session/server_spec.h"

/* Connection strings that the session remembers. */
#define MAX_KNOWN 32

/* The result of the search for a connection string. */
typedef struct Known
{
	const char *string;
	Oid			user;
	const char *server;			/* NULL: none */
	PgpxDblinkOutcome reason;	/* if there is none */
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
										  "pgpool_ext connection strings",
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
	int			n;

	if (get_connections == NULL)
		get_connections = pgpx_dblink_function("dblink_get_connections");
	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	result = get_connections(fcinfo);
	if (fcinfo->isnull)
		return false;
	deconstruct_array(DatumGetArrayTypeP(result), TEXTOID, -1, false,
					  TYPALIGN_INT, &names, NULL, &n);
	for (int i = 0; i < n; i++)
		if (strcmp(TextDatumGetCString(names[i]), name) == 0)
			return true;
	return false;
}

/* Return a copy of a name, cut to the length of an identifier as dblink does. */
static char *
cut_name(const char *name)
{
	char	   *copy = pstrdup(name);

	truncate_identifier(copy, strlen(copy), false);
	return copy;
}

/*
 * Read the options of the mapping of a user, else those of PUBLIC.  Return false
 * if there is none.  *of_public: whether it is that of PUBLIC.
 */
static bool
read_mapping(Oid user, Oid server, List **options, bool *of_public)
{
	HeapTuple	row = SearchSysCache2(USERMAPPINGUSERSERVER,
									  ObjectIdGetDatum(user),
									  ObjectIdGetDatum(server));
	Datum		value;
	bool		isnull;

	*of_public = !HeapTupleIsValid(row);
	if (*of_public)
		row = SearchSysCache2(USERMAPPINGUSERSERVER,
							  ObjectIdGetDatum(InvalidOid),
							  ObjectIdGetDatum(server));
	if (!HeapTupleIsValid(row))
		return false;
	value = SysCacheGetAttr(USERMAPPINGUSERSERVER, row,
							Anum_pg_user_mapping_umoptions, &isnull);
	*options = isnull ? NIL : untransformRelOptions(value);
	ReleaseSysCache(row);
	return true;
}

static bool
has_option(List *server_options, List *mapping_options, const char *name)
{
	return pgpx_options_find(server_options, name) != NULL ||
		pgpx_options_find(mapping_options, name) != NULL;
}

/*
 * Return whether sessions of a pool begin like those of dblink, and whether a
 * call leaves nothing behind in them.
 */
static bool
has_same_sessions(List *server_options, List *mapping_options)
{
	/*
	 * service and passfile name files that may have changed since a connection
	 * was opened; options is any text for the remote server.
	 */
	static const char *const differ[] = {
		"start_commands",
		"reset",
		"reset_command",
		"use_password_command",
		"use_scram_passthrough",
		"service",
		"passfile",
		"options",
	};

	for (int i = 0; i < lengthof(differ); i++)
		if (has_option(server_options, mapping_options, differ[i]))
			return false;

	/* without it the pool logs in as the local role, and dblink does not */
	return pgpx_options_find(mapping_options, "user") != NULL;
}

/* Return whether dblink uses an option of a server or of a mapping. */
static bool
dblink_uses(const char *name, bool in_mapping)
{
	const PQconninfoOption *option = pgpx_libpq_options();

	while (option->keyword != NULL && strcmp(option->keyword, name) != 0)
		option++;
	if (option->keyword == NULL || strchr(option->dispchar, 'D') != NULL ||
		strcmp(name, "client_encoding") == 0)
		return false;
	return in_mapping ==
		(strcmp(name, "user") == 0 || strchr(option->dispchar, '*') != NULL);
}

/*
 * Remove from the string's options those that dblink uses of this list.  Return
 * false if the string does not have one of them with the same value.  nleft:
 * number of options of the string that were not removed yet.
 */
static bool
match_options(List *options, bool in_mapping, const PQconninfoOption *string,
			  int *nleft)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		const DefElem *def = lfirst(lc);
		const PQconninfoOption *option = string;

		if (!dblink_uses(def->defname, in_mapping))
			continue;
		while (option->keyword != NULL &&
			   strcmp(option->keyword, def->defname) != 0)
			option++;
		if (option->keyword == NULL || option->val == NULL ||
			strcmp(option->val, strVal(def->arg)) != 0)
			return false;
		(*nleft)--;
	}
	return true;
}

/*
 * Return whether a string has the options with which dblink would connect to
 * this server.  *same_sessions: whether its pool can be used.
 */
static bool
is_string_of(const PQconninfoOption *string, Form_pg_foreign_server form,
			 List *server_options, Oid user, bool *same_sessions)
{
	List	   *mapping_options;
	bool		of_public;
	int			nleft = 0;

	if (!pgpx_server_catalog_has_pools(form->srvfdw) ||
		pgpx_options_find(server_options, "base_server") != NULL ||
		!pgpx_server_catalog_may_use(form->oid, user) ||
		!read_mapping(user, form->oid, &mapping_options, &of_public))
		return false;

	/* the rule of the view pg_user_mappings */
	if (of_public && !superuser_arg(user) &&
		!has_privs_of_role(user, form->srvowner))
		return false;
	for (const PQconninfoOption *o = string; o->keyword != NULL; o++)
		if (o->val != NULL)
			nleft++;
	if (!match_options(server_options, false, string, &nleft) ||
		!match_options(mapping_options, true, string, &nleft) || nleft != 0)
		return false;
	*same_sessions = has_same_sessions(server_options, mapping_options);
	return true;
}

/*
 * Search the servers for the one to which a parsed string belongs.  Of several,
 * the oldest is found, so that all sessions use the same pool.
 */
static void
search_servers(const PQconninfoOption *string, Oid user, Known *result)
{
	Relation	rel = table_open(ForeignServerRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, ForeignServerOidIndexId, true,
										  NULL, 0, NULL);
	HeapTuple	row;

	result->reason = PGPX_DBLINK_NO_SERVER;
	while (result->server == NULL &&
		   HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_foreign_server form = (Form_pg_foreign_server) GETSTRUCT(row);
		bool		isnull;
		Datum		value = heap_getattr(row, Anum_pg_foreign_server_srvoptions,
										 RelationGetDescr(rel), &isnull);
		bool		same_sessions;

		if (!is_string_of(string, form,
						  isnull ? NIL : untransformRelOptions(value), user,
						  &same_sessions))
			continue;
		if (same_sessions)
			result->server = pstrdup(NameStr(form->srvname));
		else
			result->reason = PGPX_DBLINK_OTHER_SESSION;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* As search_servers, and free the parsed string. */
static void
search_and_free(PQconninfoOption *string, Oid user, Known *result)
{
	PG_TRY();
	{
		search_servers(string, user, result);
	}
	PG_CATCH();
	{
		PQconninfoFree(string);
		PG_RE_THROW();
	}
	PG_END_TRY();
	PQconninfoFree(string);
}

/* Parse a connection string, search its server, and remember the result. */
static const Known *
learn_string(const char *string, Oid user)
{
	Known		found = {.reason = PGPX_DBLINK_NO_SERVER};
	Known	   *result;
	char	   *message = NULL;
	PQconninfoOption *options = PQconninfoParse(string, &message);
	MemoryContext old;

	if (message != NULL)
		PQfreemem(message);
	if (options != NULL)
		search_and_free(options, user, &found);

	old = MemoryContextSwitchTo(known_cxt);
	result = palloc(sizeof(Known));
	result->string = pstrdup(string);
	result->user = user;
	result->server = found.server != NULL ? pstrdup(found.server) : NULL;
	result->reason = found.reason;
	known = lappend(known, result);
	MemoryContextSwitchTo(old);
	return result;
}

static const char *
find_by_string(const char *string, PgpxDblinkOutcome *reason)
{
	Oid			user = GetUserId();
	const Known *found = NULL;
	ListCell   *lc;

	prepare_known();
	foreach(lc, known)
	{
		const Known *k = lfirst(lc);

		if (k->user == user && strcmp(k->string, string) == 0)
			found = k;
	}
	if (found == NULL)
		found = learn_string(string, user);
	*reason = found->reason;
	return found->server;
}

static const char *
find_by_server(const ForeignServer *server, bool *only_pool,
			   PgpxDblinkOutcome *reason)
{
	List	   *mapping_options;
	bool		of_public;

	*only_pool = pgpx_server_catalog_has_pools(server->fdwid) &&
		pgpx_options_find(server->options, "base_server") != NULL;
	if (*only_pool)
		return server->servername;

	/* dblink raises the errors for a missing mapping or privilege */
	*reason = PGPX_DBLINK_NO_SERVER;
	if (!pgpx_server_catalog_has_pools(server->fdwid) ||
		!pgpx_server_catalog_may_use(server->serverid, GetUserId()) ||
		!read_mapping(GetUserId(), server->serverid, &mapping_options,
					  &of_public))
		return NULL;
	*reason = PGPX_DBLINK_OTHER_SESSION;
	return has_same_sessions(server->options, mapping_options) ?
		server->servername : NULL;
}

const char *
pgpx_dblink_find_server(const char *connection, bool *only_pool,
						PgpxDblinkOutcome *reason)
{
	char	   *name = cut_name(connection);
	ForeignServer *server;

	*only_pool = false;
	*reason = PGPX_DBLINK_OPEN_CONNECTION;
	if (is_open_connection(name))
		return NULL;
	server = GetForeignServerByName(name, true);
	if (server != NULL)
		return find_by_server(server, only_pool, reason);
	return find_by_string(connection, reason);
}
