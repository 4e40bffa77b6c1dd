/*-------------------------------------------------------------------------
 *
 * server_catalog.c
 *	  The catalog rows from which a server spec is built (server, base
 *	  server, user mapping), and the privileges on them.
 *
 * Rules:
 * - Each name is looked up once, and only OIDs are used after that.  So a
 *   concurrent rename cannot mix two servers.
 * - A row's options and its part of the fingerprint are read from the same
 *   tuple.  So a fingerprint never identifies other options.
 * - A server with a base server must not have connection options or a user
 *   mapping.  They would be ignored, so they are refused.
 *
 *-------------------------------------------------------------------------
 */
#include "session/server_spec.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "nodes/makefuncs.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/debug_point.h"

/* Add an error detail with the server that names this base. */
static int
add_base_detail(const char *base_of, const char *base)
{
	return errdetail("Server \"%s\" has \"%s\" as its base server.", base_of, base);
}

/*
 * Raise 42704.  base_of: the server that names this one as its base, or NULL.
 */
pg_noreturn static void
raise_no_server(const char *name, const char *base_of)
{
	size_t		len = strlen(name);
	bool		digits = len > 0 && strspn(name, "0123456789") == len;

	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 len < NAMEDATALEN ?
			 errmsg("server \"%s\" does not exist", name) :
			 errmsg("server \"%.*s...\" does not exist",
					pg_mbcliplen(name, len, NAMEDATALEN - 1), name),
			 len >= NAMEDATALEN ?
			 errdetail("Names have at most %d bytes.", NAMEDATALEN - 1) :
			 base_of != NULL ? add_base_detail(base_of, name) : 0,
			 base_of != NULL ?
			 errhint("Create it, or change option \"base_server\" of server "
					 "\"%s\".",
					 base_of) :
			 digits ? errhint("If this is a lease, cast it to bigint.") : 0));
}

/* Wipe options before their memory is freed, because one may be a password. */
static void
wipe_options(void *options)
{
	ListCell   *lc;

	foreach(lc, (List *) options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (def->arg != NULL && IsA(def->arg, String))
			explicit_bzero(strVal(def->arg), strlen(strVal(def->arg)));
	}
}

/*
 * Return the options of a catalog row.  They are allocated in the current
 * memory context, and are wiped when it is reset.  untransformRelOptions may
 * make more copies, which wipe_options would not wipe.
 */
static List *
read_options(int cacheid, HeapTuple row, AttrNumber attnum)
{
	bool		isnull;
	Datum		datum = SysCacheGetAttr(cacheid, row, attnum, &isnull);
	MemoryContextCallback *callback;
	ArrayType  *array;
	List	   *options = NIL;
	Datum	   *texts;
	int			n;

	if (isnull)
		return NIL;
	callback = palloc(sizeof(MemoryContextCallback));
	array = DatumGetArrayTypeP(datum);
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &texts, NULL,
					  &n);
	for (int i = 0; i < n; i++)
	{
		char	   *name = TextDatumGetCString(texts[i]);
		char	   *value = strchr(name, '=');

		/* an option without a value, possible in an edited row, is empty */
		if (value != NULL)
			*value++ = '\0';
		options = lappend(options,
						  makeDefElem(name,
									  (Node *) makeString(value != NULL ?
														  value : pstrdup("")),
									  -1));
	}
	callback->func = wipe_options;
	callback->arg = options;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);

	/* wipe the copy made of a datum that is compressed or has a short header */
	if (array != (ArrayType *) DatumGetPointer(datum))
	{
		explicit_bzero(array, VARSIZE(array));
		pfree(array);
	}
	return options;
}

/* Return whether servers of a foreign-data wrapper can have pools. */
static bool
is_supported(const char *wrapper)
{
	return strcmp(wrapper, "pgpool_fdw") == 0 ||
		strcmp(wrapper, "postgres_fdw") == 0 ||
		strcmp(wrapper, "dblink_fdw") == 0;
}

/* Look up the name of a foreign-data wrapper.  Return false if it is gone. */
static bool
find_wrapper(Oid wrapper, NameData *name)
{
	HeapTuple	row = SearchSysCache1(FOREIGNDATAWRAPPEROID,
									  ObjectIdGetDatum(wrapper));

	if (!HeapTupleIsValid(row))
		return false;
	*name = ((Form_pg_foreign_data_wrapper) GETSTRUCT(row))->fdwname;
	ReleaseSysCache(row);
	return true;
}

/* Read a row of pg_foreign_server. */
static void
read_row(HeapTuple row, PgpxServerRow *server)
{
	Form_pg_foreign_server form = (Form_pg_foreign_server) GETSTRUCT(row);

	if (!find_wrapper(form->srvfdw, &server->wrapper))
		namestrcpy(&server->wrapper, "");
	server->oid = form->oid;
	server->name = pstrdup(NameStr(form->srvname));
	server->owner = form->srvowner;
	server->own_wrapper = strcmp(NameStr(server->wrapper), "pgpool_fdw") == 0;
	server->options = read_options(FOREIGNSERVEROID, row,
								   Anum_pg_foreign_server_srvoptions);
}

/* Append a string with its terminator, which separates it from the next one. */
static void
append_string(StringInfo buf, const char *string)
{
	appendBinaryStringInfo(buf, string, strlen(string) + 1);
}

/*
 * Hash the contents of a server's row that matter to a pool.
 *
 * "hash" covers the properties of connections: name, owner and whether the
 * owner is a superuser, wrapper, options.  *in_place_hash covers the options
 * that take effect in place, and is never 0.  Neither covers USAGE, which is
 * checked at each use.
 */
static void
hash_server(const PgpxServerRow *server, uint64 hash[2], uint64 *in_place_hash)
{
	StringInfoData buf;
	StringInfoData in_place;
	ListCell   *lc;

	initStringInfo(&buf);
	initStringInfo(&in_place);
	appendBinaryStringInfo(&buf, (const char *) &server->owner, sizeof(Oid));
	appendStringInfoChar(&buf, superuser_arg(server->owner) ? 1 : 0);
	append_string(&buf, server->name);
	append_string(&buf, NameStr(server->wrapper));
	foreach(lc, server->options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		StringInfo	to = pgpx_option_is_in_place(def->defname) ? &in_place :
																 &buf;

		append_string(to, def->defname);
		append_string(to, defGetString(def));
	}
	for (int i = 0; i < 2; i++)
		hash[i] = hash_bytes_extended((unsigned char *) buf.data, buf.len,
									  i + 1);
	*in_place_hash = hash_bytes_extended((unsigned char *) in_place.data,
										 in_place.len, 1);
	*in_place_hash = Max(*in_place_hash, 1);
	pfree(buf.data);
	pfree(in_place.data);
}

/* Return whether two versions of a server's row are the same to a pool. */
static bool
is_same_to_pool(HeapTuple a, HeapTuple b)
{
	PgpxServerRow server_a;
	PgpxServerRow server_b;
	uint64		hash_a[3];
	uint64		hash_b[3];

	read_row(a, &server_a);
	read_row(b, &server_b);
	hash_server(&server_a, hash_a, &hash_a[2]);
	hash_server(&server_b, hash_b, &hash_b[2]);
	return memcmp(hash_a, hash_b, sizeof(hash_a)) == 0;
}

/*
 * Other sessions see the row as it was before the first command of the
 * transaction.
 */
bool
pgpx_server_catalog_is_created(const char *server, int cacheid, Oid oid)
{
	HeapTuple	row = SearchSysCache1(cacheid, ObjectIdGetDatum(oid));
	Oid			catalog;
	TransactionId by;
	Relation	rel;
	Snapshot	before;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	seen;
	bool		created;
	bool		changed;

	if (!HeapTupleIsValid(row))
		return false;
	by = HeapTupleHeaderGetXmin(row->t_data);
	if (!TransactionIdIsCurrentTransactionId(by))
	{
		ReleaseSysCache(row);
		return false;
	}
	catalog = row->t_tableOid;
	rel = table_open(catalog, AccessShareLock);
	before = RegisterSnapshot(GetCatalogSnapshot(catalog));
	before->curcid = FirstCommandId;
	ScanKeyInit(&key, get_object_attnum_oid(catalog), BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(oid));
	scan = systable_beginscan(rel, get_object_oid_index(catalog), true, before,
							  1, &key);
	seen = systable_getnext(scan);
	created = !HeapTupleIsValid(seen);
	changed = !created;
	if (changed && catalog == ForeignServerRelationId)
		changed = !is_same_to_pool(seen, row);
	systable_endscan(scan);
	UnregisterSnapshot(before);
	table_close(rel, AccessShareLock);

	/* a call of dblink catches the error without a subtransaction */
	ReleaseSysCache(row);
	if (changed)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("options of server \"%s\" were changed in this transaction",
						server),
				 errdetail("The transaction has changed a row of %s.",
						   get_rel_name(catalog)),
				 errhint("Commit before you use the server.")));
	return created;
}

/* Read the row of a server.  Return false if it does not exist. */
static bool
read_server(Oid oid, PgpxServerRow *server)
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(oid));

	if (!HeapTupleIsValid(row))
		return false;
	read_row(row, server);
	ReleaseSysCache(row);
	return true;
}

bool
pgpx_server_catalog_find_server(Oid oid, PgpxServerRow *server)
{
	return read_server(oid, server) && is_supported(NameStr(server->wrapper));
}

/* Return the base server that the options of a server name; NULL: none. */
static const char *
base_name(const PgpxServerRow *server)
{
	return server->own_wrapper ?
		pgpx_server_catalog_value(server->options, "base_server") : NULL;
}

/*
 * Return the server of a name; InvalidOid if it does not exist.  A name that is
 * too long would be truncated, and could be that of another server.
 */
static Oid
find_by_name(const char *name)
{
	return strlen(name) < NAMEDATALEN ? get_foreign_server_oid(name, true) :
										InvalidOid;
}

Oid
pgpx_server_catalog_find_base(Oid oid)
{
	PgpxServerRow server;

	if (!pgpx_server_catalog_find_server(oid, &server))
		return InvalidOid;
	return base_name(&server) == NULL ? oid : find_by_name(base_name(&server));
}

/*
 * Do not call pg_foreign_server_aclcheck, which raises an error if the server
 * is dropped concurrently.  The drop must not fail the commit of an unrelated
 * transaction.
 */
bool
pgpx_server_catalog_may_use(Oid server, Oid user)
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID,
									  ObjectIdGetDatum(server));
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

const char *
pgpx_server_catalog_value(List *options, const char *name)
{
	DefElem    *def = pgpx_options_find(options, name);
	const char *value = def != NULL ? defGetString(def) : "";

	return value[0] != '\0' ? value : NULL;
}

/*
 * Return whether the user may use a server, directly or (by_table) through a
 * foreign table.  base_of: the server that names this one as its base, or NULL.
 *
 * A table needs no check of its own server, because its creator had USAGE.  The
 * owner of that server has chosen the base server.  So either this owner or the
 * user must have USAGE on the base server.
 */
static bool
may_use(const PgpxServerSpec *spec, const PgpxServerRow *server, Oid user,
		const PgpxServerRow *base_of)
{
	if (spec->by_table &&
		(base_of == NULL ||
		 pgpx_server_catalog_may_use(server->oid, base_of->owner)))
		return true;
	return OidIsValid(user) ? pgpx_server_catalog_may_use(server->oid, user) :
		!spec->by_table;
}

/* Check a server that was read.  base_of: as for may_use. */
static PgpxFault
check_server(const PgpxServerSpec *spec, const PgpxServerRow *server, Oid user,
			 const PgpxServerRow *base_of)
{
	return !may_use(spec, server, user, base_of) ? PGPX_FAULT_NO_USAGE :
		base_of != NULL && base_of->oid == server->oid ? PGPX_FAULT_OWN_BASE :
		!is_supported(NameStr(server->wrapper)) ? PGPX_FAULT_WRAPPER :
		base_of != NULL && base_name(server) != NULL ?
		PGPX_FAULT_BASE_HAS_BASE : PGPX_FAULT_NONE;
}

/*
 * Find the user mapping of a user, else that of PUBLIC.  Return NULL if there
 * is none.
 */
static HeapTuple
find_mapping(Oid user, Oid server)
{
	HeapTuple	row;

	row = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(user),
						  ObjectIdGetDatum(server));
	if (!HeapTupleIsValid(row))
		row = SearchSysCache2(USERMAPPINGUSERSERVER,
							  ObjectIdGetDatum(InvalidOid),
							  ObjectIdGetDatum(server));
	return row;
}

bool
pgpx_server_catalog_names_user(HeapTuple row)
{
	List	   *options = read_options(USERMAPPINGOID, row,
									   Anum_pg_user_mapping_umoptions);

	return pgpx_server_catalog_value(options, "user") != NULL;
}

/*
 * Read the user mapping, and finish the spec's user, key and fingerprint.
 *
 * A server with a base server has the user mappings of that one.  One of its
 * own would have no effect.  The validator cannot check this, because it does
 * not see the server.
 */
static PgpxFault
read_mapping(PgpxServerSpec *spec, PgpxServerRows *rows, Oid user)
{
	HeapTuple	row;
	Form_pg_user_mapping mapping;
	bool		names_user;

	if (rows->base.oid != rows->pool.oid &&
		HeapTupleIsValid(row = find_mapping(user, rows->pool.oid)))
	{
		mapping = (Form_pg_user_mapping) GETSTRUCT(row);
		rows->of_public = !OidIsValid(mapping->umuser);
		ReleaseSysCache(row);
		return PGPX_FAULT_HAS_MAPPING;
	}
	row = find_mapping(user, rows->base.oid);
	if (!HeapTupleIsValid(row))
		return PGPX_FAULT_NO_MAPPING;
	mapping = (Form_pg_user_mapping) GETSTRUCT(row);
	rows->of_public = !OidIsValid(mapping->umuser);
	rows->mapping_options = read_options(USERMAPPINGUSERSERVER, row,
										 Anum_pg_user_mapping_umoptions);
	spec->key.mapping = mapping->oid;
	spec->fingerprint.mapping_xmin = HeapTupleHeaderGetRawXmin(row->t_data);
	spec->fingerprint.mapping_tid = row->t_self;
	ReleaseSysCache(row);
	names_user = pgpx_server_catalog_value(rows->mapping_options,
										   "user") != NULL;
	if (!OidIsValid(user) && !names_user)
		return PGPX_FAULT_NO_MAPPING;
	spec->key.local_user = rows->of_public && !names_user ? user : InvalidOid;
	if (rows->of_public && names_user)
	{
		/* all local users connect as the same remote user */
		spec->user = InvalidOid;
		namestrcpy(&spec->user_name, "public");
		spec->fingerprint.user = 0;
	}
	return PGPX_FAULT_NONE;
}

PgpxFault
pgpx_server_catalog_find(PgpxServerSpec *spec, PgpxServerRows *rows, Oid server,
						 Oid user)
{
	PgpxFingerprint *print = &spec->fingerprint;
	const char *name = "public";
	PgpxFault	fault;

	if (!read_server(server, &rows->pool))
		return PGPX_FAULT_NO_SERVER;
	hash_server(&rows->pool, print->server, &print->in_place);
	namestrcpy(&spec->server_name, rows->pool.name);
	spec->key.database = MyDatabaseId;
	spec->key.server = rows->pool.oid;
	fault = check_server(spec, &rows->pool, user, NULL);
	if (fault != PGPX_FAULT_NONE)
		return fault;
	rows->base.name = base_name(&rows->pool);
	if (rows->base.name == NULL)
		rows->base = rows->pool;
	else
	{
		if (!read_server(find_by_name(rows->base.name), &rows->base))
			return PGPX_FAULT_NO_SERVER;
		hash_server(&rows->base, print->base, &print->base_in_place);
		fault = check_server(spec, &rows->base, user, &rows->pool);
		if (fault != PGPX_FAULT_NONE)
			return fault;
	}

	/* the name of the local user is the default of the remote user name */
	if (OidIsValid(user))
	{
		name = GetUserNameFromId(user, true);
		if (name == NULL)
			return PGPX_FAULT_NO_USER;
		print->user = hash_bytes_extended((const unsigned char *) name,
										  strlen(name), 1);
	}
	spec->user = user;
	namestrcpy(&spec->user_name, name);
	return read_mapping(spec, rows, user);
}

/* Raise the error of a fault.  name: that of the pool's server, or NULL. */
pg_noreturn static void
raise_fault(PgpxFault fault, const PgpxServerSpec *spec,
			const PgpxServerRows *rows, const char *name, Oid user)
{
	bool		has_base = rows->base.name != NULL &&
		rows->base.name != rows->pool.name;
	const PgpxServerRow *server = has_base ? &rows->base : &rows->pool;
	const char *base_of = has_base ? rows->pool.name : NULL;

	switch (fault)
	{
		case PGPX_FAULT_NO_SERVER:
			raise_no_server(base_of != NULL ? server->name : name, base_of);
			break;
		case PGPX_FAULT_NO_USAGE:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for foreign server %s",
							server->name),
					 base_of == NULL ? 0 :
					 add_base_detail(base_of, server->name),
					 base_of == NULL ? 0 :
					 spec->by_table ?
					 errhint("Grant USAGE on the base server to the owner of server \"%s\" or to the user.",
							 base_of) :
					 errhint("Grant USAGE on both servers.")));
			break;
		case PGPX_FAULT_OWN_BASE:
		case PGPX_FAULT_BASE_HAS_BASE:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("server \"%s\" cannot be the base server of server \"%s\"",
							server->name, base_of),
					 fault == PGPX_FAULT_OWN_BASE ?
					 errdetail("It is the same server.") :
					 errdetail("It has a base server itself."),
					 errhint("Set \"base_server\" to the server that has the "
							 "connection options, or drop the option.")));
			break;
		case PGPX_FAULT_WRAPPER:
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("server \"%s\" cannot be used as a pool",
							server->name),
					 errdetail("Its foreign-data wrapper is \"%s\".",
							   NameStr(server->wrapper)),
					 errhint("Create the server with foreign-data wrapper pgpool_fdw, postgres_fdw or "
							 "dblink_fdw.")));
			break;
		case PGPX_FAULT_HAS_MAPPING:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("user mapping for \"%s\" on server \"%s\" cannot be used",
							rows->of_public ? "public" : NameStr(spec->user_name),
							rows->pool.name),
					 errdetail("The server's user mappings are those of its base "
							   "server \"%s\".",
							   rows->base.name),
					 errhint("Drop the user mapping; if there is none on server "
							 "\"%s\", create it there.",
							 rows->base.name)));
			break;
		case PGPX_FAULT_NO_MAPPING:
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("user mapping not found for user \"%s\" on server "
							"\"%s\"",
							NameStr(spec->user_name), rows->base.name),
					 base_of == NULL ? 0 :
					 add_base_detail(base_of, server->name),
					 errhint("Create one with CREATE USER MAPPING.")));
			break;
		default:
			(void) GetUserNameFromId(user, false);
	}
	pg_unreachable();
}

void
pgpx_server_catalog_read(PgpxServerSpec *spec, PgpxServerRows *rows,
						 const char *name, Oid server, Oid user)
{
	PgpxFault	fault;

	spec->key.superuser = superuser_arg(user) ? 1 : 0;
	if (name != NULL)
		server = find_by_name(name);
	fault = pgpx_server_catalog_find(spec, rows, server, user);
	if (rows->pool.name != NULL)
		name = rows->pool.name;
	if (name == NULL)
		elog(ERROR, "cache lookup failed for foreign server %u", server);

	/* which options are allowed depends on the attributes of the owners */
	(void) pgpx_server_catalog_is_created(name, AUTHOID, rows->pool.owner);
	(void) pgpx_server_catalog_is_created(rows->base.name, AUTHOID,
										  rows->base.owner);
	(void) pgpx_server_catalog_is_created(name, AUTHOID, user);
	spec->uncommitted =
		pgpx_server_catalog_is_created(name, FOREIGNSERVEROID, rows->pool.oid);
	spec->uncommitted |=
		pgpx_server_catalog_is_created(rows->base.name, FOREIGNSERVEROID,
									   rows->base.oid);
	spec->uncommitted |=
		pgpx_server_catalog_is_created(name, USERMAPPINGOID, spec->key.mapping);
	if (fault != PGPX_FAULT_NONE)
		raise_fault(fault, spec, rows, name, user);

	/* the validator has checked this, if it was called */
	if (rows->base.oid != rows->pool.oid)
		pgpx_options_check_base(rows->pool.options);
}
