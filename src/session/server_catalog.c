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
 * As untransformRelOptions, but makes only one copy of each value.  That
 * function may make more copies, which wipe_options would not wipe.
 */
static List *
parse_options(ArrayType *array)
{
	List	   *options = NIL;
	Datum	   *texts;
	int			n;

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
	return options;
}

/*
 * Return the options of a catalog row.  They are allocated in the current
 * memory context, and are wiped when it is reset.
 */
static List *
read_options(int cacheid, HeapTuple row, AttrNumber attnum)
{
	bool		isnull;
	Datum		options = SysCacheGetAttr(cacheid, row, attnum, &isnull);
	MemoryContextCallback *callback;
	ArrayType  *array;
	List	   *list;

	if (isnull)
		return NIL;
	callback = palloc(sizeof(MemoryContextCallback));
	array = DatumGetArrayTypeP(options);
	list = parse_options(array);
	callback->func = wipe_options;
	callback->arg = list;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);

	/* wipe the copy made of a datum that is compressed or has a short header */
	if (array != (ArrayType *) DatumGetPointer(options))
	{
		explicit_bzero(array, VARSIZE(array));
		pfree(array);
	}
	return list;
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

void
pgpx_server_catalog_hash_server(HeapTuple row, uint64 hash[2],
								uint64 *in_place_hash)
{
	Form_pg_foreign_server form = (Form_pg_foreign_server) GETSTRUCT(row);
	NameData	wrapper;
	StringInfoData buf;
	StringInfoData in_place;
	List	   *options;
	ListCell   *lc;

	initStringInfo(&buf);
	initStringInfo(&in_place);
	appendBinaryStringInfo(&buf, (char *) &form->srvowner, sizeof(Oid));
	appendStringInfoChar(&buf, superuser_arg(form->srvowner) ? 1 : 0);
	appendBinaryStringInfo(&buf, NameStr(form->srvname), NAMEDATALEN);

	if (find_wrapper(form->srvfdw, &wrapper))
		appendBinaryStringInfo(&buf, NameStr(wrapper), NAMEDATALEN);

	options = read_options(FOREIGNSERVEROID, row,
						   Anum_pg_foreign_server_srvoptions);
	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const char *value = defGetString(def);
		StringInfo	to = pgpx_option_is_in_place(def->defname) ? &in_place :
																 &buf;

		/* with terminators, to separate the strings unambiguously */
		appendBinaryStringInfo(to, def->defname, strlen(def->defname) + 1);
		appendBinaryStringInfo(to, value, strlen(value) + 1);
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
	uint64		hash_a[3];
	uint64		hash_b[3];

	pgpx_server_catalog_hash_server(a, hash_a, &hash_a[2]);
	pgpx_server_catalog_hash_server(b, hash_b, &hash_b[2]);
	return memcmp(hash_a, hash_b, sizeof(hash_a)) == 0;
}

/*
 * Raise 55000 if this transaction has changed a row of the spec of a server.
 * Other sessions use the pool, and must not see the change before it commits.
 * Return whether the transaction has created the row.  Then no other session
 * can find the pool.
 *
 * Other sessions see the row as it was before the first command of the
 * transaction.
 */
static bool
is_created(const char *server, HeapTuple row, Oid oid)
{
	Oid			catalog = row->t_tableOid;
	TransactionId by = HeapTupleHeaderGetXmin(row->t_data);
	Relation	rel;
	Snapshot	before;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	seen;
	bool		created;
	bool		changed;

	if (!TransactionIdIsCurrentTransactionId(by))
		return false;
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
	if (changed)
	{
		/* a call of dblink catches the error without a subtransaction */
		server = pstrdup(server);
		ReleaseSysCache(row);
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("options of server \"%s\" were changed in this transaction",
						server),
				 errdetail("The transaction has changed a row of %s.",
						   get_rel_name(catalog)),
				 errhint("Commit before you use the server.")));
	}
	return created;
}

/* Call is_created for the row of a role. */
static void
check_role(const char *server, Oid role)
{
	HeapTuple	row = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));

	if (!HeapTupleIsValid(row))
		return;
	(void) is_created(server, row, role);
	ReleaseSysCache(row);
}

/*
 * Read a row of pg_foreign_server.  Return whether servers of its wrapper can
 * have pools.
 */
static bool
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
	return is_supported(NameStr(server->wrapper));
}

bool
pgpx_server_catalog_find_server(Oid oid, PgpxServerRow *server)
{
	HeapTuple	row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(oid));
	bool		supported;

	if (!HeapTupleIsValid(row))
		return false;
	supported = read_row(row, server);
	ReleaseSysCache(row);
	return supported;
}

Oid
pgpx_server_catalog_find_base(Oid oid)
{
	PgpxServerRow server;
	const char *base = NULL;

	if (!pgpx_server_catalog_find_server(oid, &server))
		return InvalidOid;
	if (server.own_wrapper)
		base = pgpx_server_catalog_value(server.options, "base_server");
	return base == NULL ? oid : get_foreign_server_oid(base, true);
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

uint64
pgpx_server_catalog_hash_user(const char *name)
{
	return hash_bytes_extended((const unsigned char *) name, strlen(name), 1);
}

const char *
pgpx_server_catalog_value(List *options, const char *name)
{
	DefElem    *def = pgpx_options_find(options, name);
	const char *value = def != NULL ? defGetString(def) : "";

	return value[0] != '\0' ? value : NULL;
}

bool
pgpx_server_catalog_has_pools(Oid wrapper)
{
	NameData	name;

	return find_wrapper(wrapper, &name) && is_supported(NameStr(name));
}

/*
 * Check that the user may use a server, directly or (by_table) through a
 * foreign table.  base_of: the server that names this one as its base, or NULL.
 *
 * A table needs no check of its own server, because its creator had USAGE.  The
 * owner of that server has chosen the base server.  So either this owner or the
 * user must have USAGE on the base server.
 */
static void
check_usage(const PgpxServerSpec *spec, const PgpxServerRow *server, Oid user,
			const PgpxServerRow *base_of)
{
	AclResult	acl = ACLCHECK_OK;

	if (!spec->by_table)
		acl = pgpx_server_aclcheck(server->oid, user, ACL_USAGE);
	else if (base_of != NULL)
	{
		acl = pgpx_server_aclcheck(server->oid, base_of->owner, ACL_USAGE);
		if (acl != ACLCHECK_OK && OidIsValid(user))
			acl = pgpx_server_aclcheck(server->oid, user, ACL_USAGE);
	}
	if (acl != ACLCHECK_OK && base_of == NULL)
		aclcheck_error(acl, OBJECT_FOREIGN_SERVER, server->name);
	else if (acl != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for foreign server %s",
						server->name),
				 add_base_detail(base_of->name, server->name),
				 spec->by_table ?
				 errhint("Grant USAGE on the base server to the owner of server \"%s\" or to the user.",
						 base_of->name) :
				 errhint("Grant USAGE on both servers.")));
}

/* Raise 22023: "base" cannot be the base server of a server. */
pg_noreturn static void
raise_not_a_base(const PgpxServerRow *server, const char *base,
				 const char *reason)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("server \"%s\" cannot be the base server of server \"%s\"",
					base, server->name),
			 errdetail("%s", reason),
			 errhint("Set \"base_server\" to the server that has the "
					 "connection options, or drop the option.")));
}

/* Read a server, and check USAGE on it.  base_of: as for check_usage. */
static void
read_server(PgpxServerSpec *spec, PgpxServerRow *server, const char *name,
			Oid user, const PgpxServerRow *base_of)
{
	HeapTuple	row = NULL;
	bool		supported;

	/* a longer name would be truncated and could match another server */
	if (strlen(name) < NAMEDATALEN)
		row = SearchSysCache1(FOREIGNSERVERNAME, CStringGetDatum(name));
	if (!HeapTupleIsValid(row))
		raise_no_server(name, base_of != NULL ? base_of->name : NULL);
	supported = read_row(row, server);
	spec->uncommitted |= is_created(name, row, server->oid);
	if (base_of != NULL)
		pgpx_server_catalog_hash_server(row, spec->fingerprint.base,
										&spec->fingerprint.base_in_place);
	else
		pgpx_server_catalog_hash_server(row, spec->fingerprint.server,
										&spec->fingerprint.in_place);
	ReleaseSysCache(row);

	/* which options are allowed depends on the attributes of the owner */
	check_role(name, server->owner);
	check_usage(spec, server, user, base_of);
	if (base_of != NULL && server->oid == base_of->oid)
		raise_not_a_base(base_of, name, "It is the same server.");
	if (!supported)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						server->name),
				 errdetail("Its foreign-data wrapper is \"%s\".",
						   NameStr(server->wrapper)),
				 errhint("Create the server with foreign-data wrapper pgpool_fdw, postgres_fdw or "
						 "dblink_fdw.")));
}

/*
 * Read the server with the connection options: the base server, if there is
 * one.
 */
static void
read_base(PgpxServerSpec *spec, PgpxServerRows *rows, Oid user)
{
	const char *name = NULL;

	if (rows->pool.own_wrapper)
		name = pgpx_server_catalog_value(rows->pool.options, "base_server");
	if (name == NULL)
	{
		rows->base = rows->pool;
		return;
	}
	read_server(spec, &rows->base, name, user, &rows->pool);
	if (rows->base.own_wrapper &&
		pgpx_server_catalog_value(rows->base.options, "base_server") != NULL)
		raise_not_a_base(&rows->pool, name, "It has a base server itself.");

	/* the validator has checked this, if it was called */
	pgpx_options_check_base(rows->pool.options);
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

/*
 * Raise an error if a server with a base server has a user mapping of its own.
 * Connections use the mapping of the base server, so this one would have no
 * effect.  The validator cannot check this, because it does not see the server.
 */
static void
refuse_mapping(const PgpxServerRows *rows, const char *user_name, Oid user)
{
	HeapTuple	row = find_mapping(user, rows->pool.oid);
	Oid			owner;

	if (!HeapTupleIsValid(row))
		return;
	owner = ((Form_pg_user_mapping) GETSTRUCT(row))->umuser;
	ReleaseSysCache(row);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("user mapping for \"%s\" on server \"%s\" cannot be used",
					OidIsValid(owner) ? user_name : "public", rows->pool.name),
			 errdetail("The server's user mappings are those of its base "
					   "server \"%s\".",
					   rows->base.name),
			 errhint("Drop the user mapping; if there is none on server "
					 "\"%s\", create it there.",
					 rows->base.name)));
}

/* Read the local user.  Its name is the default of the remote user name. */
static void
read_user(PgpxServerSpec *spec, Oid user)
{
	if (!OidIsValid(user))
	{
		namestrcpy(&spec->user_name, "public");
		return;
	}
	check_role(NameStr(spec->server_name), user);
	spec->user = user;
	namestrcpy(&spec->user_name, GetUserNameFromId(user, false));
	spec->fingerprint.user =
		pgpx_server_catalog_hash_user(NameStr(spec->user_name));
}

/* Read the user mapping, and finish the spec's key and fingerprint. */
static void
read_mapping(PgpxServerSpec *spec, PgpxServerRows *rows, Oid user)
{
	const char *user_name = NameStr(spec->user_name);
	bool		based = pgpx_server_rows_have_base(rows);
	HeapTuple	row;
	Form_pg_user_mapping mapping;

	if (based)
		refuse_mapping(rows, user_name, user);
	row = find_mapping(user, rows->base.oid);
	if (HeapTupleIsValid(row) && !OidIsValid(user) &&
		!pgpx_server_catalog_names_user(row))
	{
		ReleaseSysCache(row);
		row = NULL;
	}
	if (!HeapTupleIsValid(row))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("user mapping not found for user \"%s\" on server "
						"\"%s\"",
						user_name, rows->base.name),
				 based ? add_base_detail(rows->pool.name, rows->base.name) : 0,
				 errhint("Create one with CREATE USER MAPPING.")));
	mapping = (Form_pg_user_mapping) GETSTRUCT(row);
	spec->uncommitted |= is_created(rows->pool.name, row, mapping->oid);
	spec->key.mapping = mapping->oid;
	rows->mapping_options = read_options(USERMAPPINGUSERSERVER, row,
										 Anum_pg_user_mapping_umoptions);
	rows->of_public = !OidIsValid(mapping->umuser);
	if (rows->of_public)
	{
		if (pgpx_server_catalog_value(rows->mapping_options, "user") == NULL)
			spec->key.local_user = user;
		else
		{
			/* all local users connect as the same remote user */
			spec->user = InvalidOid;
			namestrcpy(&spec->user_name, "public");
			spec->fingerprint.user = 0;
		}
	}
	spec->fingerprint.mapping_xmin =
		HeapTupleHeaderGetRawXmin(row->t_data);
	spec->fingerprint.mapping_tid = row->t_self;
	ReleaseSysCache(row);
}

bool
pgpx_server_catalog_names_user(HeapTuple row)
{
	List	   *options = read_options(USERMAPPINGOID, row,
									   Anum_pg_user_mapping_umoptions);

	return pgpx_server_catalog_value(options, "user") != NULL;
}

void
pgpx_server_catalog_read(PgpxServerSpec *spec, PgpxServerRows *rows,
						 const char *name,
						 Oid user)
{
	read_server(spec, &rows->pool, name, user, NULL);
	namestrcpy(&spec->server_name, rows->pool.name);
	read_base(spec, rows, user);

	spec->key.database = MyDatabaseId;
	spec->key.server = rows->pool.oid;
	spec->key.superuser = superuser_arg(user) ? 1 : 0;
	read_user(spec, user);
	read_mapping(spec, rows, user);
}

void
pgpx_server_catalog_register(SyscacheCallbackFunction callback)
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
		CacheRegisterSyscacheCallback(caches[i], callback, (Datum) 0);
}

/* ------------------------------------------------------------------------
 * SCRAM pass-through
 *
 * A client that logs in by SCRAM proves that it knows the client key.  The key
 * depends on the role's password, salt and iterations only, so all sessions of
 * the role have the same key until the password is changed.  Another server
 * accepts the key if the role has the same SCRAM secret there.
 *
 * Sessions with the same keys share a pool.  Its key has a digest of the stored
 * key, the part of the secret in pg_authid that is derived from the client key.
 * So the digest can be compared with the catalog after the password was
 * changed.  It is an HMAC with a random key in the private memory of the
 * server's processes, so that shared memory contains nothing with which
 * passwords can be guessed.
 * ------------------------------------------------------------------------
 */
#ifdef PGPX_HAS_SCRAM_PASSTHROUGH
/*
 * The headers of GSSAPI may be missing.  Without ENABLE_GSS the offsets in Port
 * are the same, as libpq-be.h promises.
 */
#undef ENABLE_GSS
#include "libpq/libpq-be.h"
#include "catalog/pg_authid.h"
#include "common/base64.h"
#include "common/hmac.h"
#include "common/scram-common.h"
#include "libpq/crypt.h"
#include "libpq/scram.h"
#include "miscadmin.h"

static uint8 digest_key[32];	/* random; inherited from the postmaster */

/* Compute the digest of a stored key. */
static void
compute_digest(const uint8 *stored_key, uint32 digest[3])
{
	uint8		hash[PG_SHA256_DIGEST_LENGTH];
	pg_hmac_ctx *hmac = pg_hmac_create(PG_SHA256);

	if (hmac == NULL ||
		pg_hmac_init(hmac, digest_key, sizeof(digest_key)) < 0 ||
		pg_hmac_update(hmac, stored_key, SCRAM_SHA_256_KEY_LEN) < 0 ||
		pg_hmac_final(hmac, hash, sizeof(hash)) < 0)
	{
		/* matches no key, so the pool counts as outdated */
		memset(hash, 0, sizeof(hash));
	}
	pg_hmac_free(hmac);
	memcpy(digest, hash, 3 * sizeof(uint32));
}

/*
 * Compute the digest of a role's keys from its SCRAM secret in the catalog.
 * Return false if it has none.  Raise no error.
 */
static bool
compute_role_digest(Oid role, uint32 digest[3])
{
	HeapTuple	row = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	Datum		password;
	bool		none;
	char	   *secret = NULL;
	int			iterations;
	pg_cryptohash_type hash_type;
	int			key_length;
	char	   *salt = NULL;
	uint8		stored_key[SCRAM_MAX_KEY_LEN];
	uint8		server_key[SCRAM_MAX_KEY_LEN];
	bool		valid;

	if (!HeapTupleIsValid(row))
		return false;
	password = SysCacheGetAttr(AUTHOID, row, Anum_pg_authid_rolpassword, &none);
	if (!none)
		secret = TextDatumGetCString(password);
	ReleaseSysCache(row);
	valid = secret != NULL &&
		get_password_type(secret) == PASSWORD_TYPE_SCRAM_SHA_256 &&
		parse_scram_secret(secret, &iterations, &hash_type, &key_length, &salt,
						   stored_key, server_key);
	if (valid)
		compute_digest(stored_key, digest);
	if (secret != NULL)
		explicit_bzero(secret, strlen(secret));
	explicit_bzero(stored_key, sizeof(stored_key));
	explicit_bzero(server_key, sizeof(server_key));
	return valid;
}

void
pgpx_scram_init(void)
{
	if (!pg_strong_random(digest_key, sizeof(digest_key)))
		elog(FATAL, "could not generate a random number");
}

bool
pgpx_scram_is_current(const PgpxPoolKey *key)
{
	uint32		digest[3];

	return !OidIsValid(key->scram_role) ||
		(compute_role_digest(key->scram_role, digest) &&
		 memcmp(digest, key->scram_digest, sizeof(digest)) == 0);
}

bool
pgpx_scram_find_keys(PgpxServerSpec *spec, PgpxScramKeys *keys)
{
	uint8		stored_key[SCRAM_MAX_KEY_LEN];
	const char *error = NULL;
	Oid			role;

	/* a background worker has no client, and so no port */
	if (MyProcPort == NULL || !MyProcPort->has_scram_keys)
		return false;
	role = GetAuthenticatedUserId();
	check_role(NameStr(spec->server_name), role);
	if (scram_H(MyProcPort->scram_ClientKey, PG_SHA256, SCRAM_SHA_256_KEY_LEN,
				stored_key, &error) < 0)
		elog(ERROR, "could not compute a SCRAM key: %s", error);
	spec->key.scram_role = role;
	compute_digest(stored_key, spec->key.scram_digest);
	explicit_bzero(stored_key, sizeof(stored_key));
	if (!pgpx_scram_is_current(&spec->key))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
				 errmsg("SCRAM keys of this session are outdated"),
				 errdetail("The password of role \"%s\" was changed after the "
						   "session had logged in.",
						   GetUserNameFromId(role, false)),
				 errhint("Log in again.")));
	memset(keys, 0, sizeof(*keys));
	if (pg_b64_encode(MyProcPort->scram_ClientKey, SCRAM_SHA_256_KEY_LEN,
					  keys->client, sizeof(keys->client) - 1) < 0 ||
		pg_b64_encode(MyProcPort->scram_ServerKey, SCRAM_SHA_256_KEY_LEN,
					  keys->server, sizeof(keys->server) - 1) < 0)
		elog(ERROR, "could not encode a SCRAM key");
	return true;
}
#else
void
pgpx_scram_init(void)
{
}

bool
pgpx_scram_is_current(const PgpxPoolKey *key)
{
	return true;
}

bool
pgpx_scram_find_keys(PgpxServerSpec *spec, PgpxScramKeys *keys)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("server \"%s\" cannot be used as a pool",
					NameStr(spec->server_name)),
			 errdetail("Option \"use_scram_passthrough\" needs PostgreSQL 18 "
					   "or later.")));
}
#endif
