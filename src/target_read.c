/*-------------------------------------------------------------------------
 *
 * target_read.c
 *	  Reads a target from the catalogs: rights, options, parameters.
 *
 * Rules:
 *
 * - The name is looked up once; from then on everything goes by OID, so that
 *	 a rename in between cannot mix two servers.
 * - A row's options and its part of the fingerprint come from one and the same
 *	 tuple, so that a fingerprint never stands for other options.
 * - What goes to libpq is checked again here: a wrapper may have had another
 *	 validator, and the server another owner, when the options were set.
 * - A password comes from the user mapping or not at all.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "access/htup_details.h"
#include "access/reloptions.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "target_read.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* Parameters that fill_parameters() adds of its own, and the end. */
#define MAX_OWN_PARAMS 16

/* So that what is reported does not change between resets; see DESIGN 4. */
#define PINNED_OPTIONS \
	"-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"

/* What the catalogs say, as it is read. */
typedef struct Source
{
	const char *server;
	Oid			owner;
	bool		own_wrapper;	/* pgpool_fdw */
	List	   *server_options;
	List	   *mapping_options;
} Source;

pg_noreturn static void
no_such_server(const char *name)
{
	size_t		len = strlen(name);
	bool		digits = len > 0 && strspn(name, "0123456789") == len;

	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 len < NAMEDATALEN ?
			 errmsg("server \"%s\" does not exist", name) :
			 errmsg("server \"%.*s...\" does not exist",
					pg_mbcliplen(name, len, NAMEDATALEN - 1), name),
			 len < NAMEDATALEN ? 0 :
			 errdetail("Names have at most %d bytes.", NAMEDATALEN - 1),
			 digits ? errhint("If this is a lease, cast it to bigint.") : 0));
}

static List *
row_options(int cacheid, HeapTuple row, AttrNumber attnum)
{
	bool		isnull;
	Datum		options = SysCacheGetAttr(cacheid, row, attnum, &isnull);

	return isnull ? NIL : untransformRelOptions(options);
}

static void
note_row(PgpxFingerprint *fingerprint, int i, HeapTuple row)
{
	fingerprint->xmin[i] = HeapTupleHeaderGetRawXmin(row->t_data);
	fingerprint->tid[i] = row->t_self;
}

static void
read_wrapper(PgpxTarget *target, Source *source, Oid wrapper)
{
	HeapTuple	row;
	const char *name;

	row = SearchSysCache1(FOREIGNDATAWRAPPEROID, ObjectIdGetDatum(wrapper));
	if (!HeapTupleIsValid(row))
		elog(ERROR, "cache lookup failed for foreign-data wrapper %u",
			 wrapper);
	name = NameStr(((Form_pg_foreign_data_wrapper) GETSTRUCT(row))->fdwname);
	source->own_wrapper = strcmp(name, "pgpool_fdw") == 0;
	if (!source->own_wrapper && strcmp(name, "postgres_fdw") != 0 &&
		strcmp(name, "dblink_fdw") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						source->server),
				 errdetail("Its foreign-data wrapper is \"%s\".", name),
				 errhint("Create the server for pgpool_fdw, postgres_fdw or "
						 "dblink_fdw.")));
	note_row(&target->fingerprint, 0, row);
	ReleaseSysCache(row);
}

static void
read_server(PgpxTarget *target, Source *source, const char *name, Oid user)
{
	HeapTuple	row;
	Form_pg_foreign_server server;
	AclResult	acl;
	Oid			wrapper;

	row = SearchSysCache1(FOREIGNSERVERNAME, CStringGetDatum(name));
	if (!HeapTupleIsValid(row))
		no_such_server(name);
	server = (Form_pg_foreign_server) GETSTRUCT(row);
	acl = pgpx_server_aclcheck(server->oid, user, ACL_USAGE);
	if (acl != ACLCHECK_OK)
		aclcheck_error(acl, OBJECT_FOREIGN_SERVER, name);

	target->server_name = server->srvname;
	target->key.server = server->oid;
	source->server = NameStr(target->server_name);
	source->owner = server->srvowner;
	source->server_options = row_options(FOREIGNSERVERNAME, row,
										 Anum_pg_foreign_server_srvoptions);
	note_row(&target->fingerprint, 1, row);
	wrapper = server->srvfdw;
	ReleaseSysCache(row);
	read_wrapper(target, source, wrapper);
}

static void
read_mapping(PgpxTarget *target, Source *source, Oid user)
{
	HeapTuple	row;
	Form_pg_user_mapping mapping;

	namestrcpy(&target->user_name, GetUserNameFromId(user, false));
	row = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(user),
						  ObjectIdGetDatum(target->key.server));
	if (!HeapTupleIsValid(row))
		row = SearchSysCache2(USERMAPPINGUSERSERVER,
							  ObjectIdGetDatum(InvalidOid),
							  ObjectIdGetDatum(target->key.server));
	if (!HeapTupleIsValid(row))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("user mapping not found for user \"%s\" on server "
						"\"%s\"",
						NameStr(target->user_name), source->server),
				 errhint("Create one with CREATE USER MAPPING.")));
	mapping = (Form_pg_user_mapping) GETSTRUCT(row);
	target->key.mapping = mapping->oid;
	if (!OidIsValid(mapping->umuser))
		target->key.local_user = user;
	source->mapping_options = row_options(USERMAPPINGUSERSERVER, row,
										  Anum_pg_user_mapping_umoptions);
	note_row(&target->fingerprint, 2, row);
	ReleaseSysCache(row);
}

/* The value of an option; NULL if it is not there or empty, as for libpq. */
static const char *
find_value(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, name) == 0)
		{
			const char *value = defGetString(def);

			return value[0] != '\0' ? value : NULL;
		}
	}
	return NULL;
}

static const char *
find_param(PgpxTarget *target, const char *keyword)
{
	for (int i = 0; i < target->nparams; i++)
	{
		if (strcmp(target->keywords[i], keyword) == 0)
			return target->values[i];
	}
	return NULL;
}

/* Set a parameter, over one of this name that is there. */
static void
set_param(PgpxTarget *target, const char *keyword, const char *value)
{
	char	   *copy = MemoryContextStrdup(target->cxt, value);
	int			i;

	for (i = 0; i < target->nparams; i++)
	{
		if (strcmp(target->keywords[i], keyword) == 0)
			break;
	}
	if (i == target->nparams)
	{
		target->keywords[i] = MemoryContextStrdup(target->cxt, keyword);
		target->values[i] = copy;
		target->nparams++;
		return;
	}
	explicit_bzero(unconstify(char *, target->values[i]),
				   strlen(target->values[i]));
	target->values[i] = copy;
}

/* Set a parameter if libpq knows it and nobody has set it yet. */
static void
default_param(PgpxTarget *target, const char *keyword, const char *value)
{
	if (pgpx_options_is_libpq(keyword) && find_param(target, keyword) == NULL)
		set_param(target, keyword, value);
}

/* Pass an option on to libpq, or say why not. */
static void
take_libpq_option(PgpxTarget *target, const Source *source, const char *name,
				  const char *value, bool in_mapping)
{
	/* a mapping's options were checked against who set them, at DDL time */
	bool		as_superuser = in_mapping || superuser_arg(source->owner);

	if (value[0] == '\0')
		return;					/* for libpq as if it were not there */

	/* of a wrapper that knows it: "prefer" leaves the choice to us */
	if (strcmp(name, "gssencmode") == 0 && strcmp(value, "require") != 0)
		return;

	if (strcmp(name, "gssencmode") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						source->server),
				 errdetail("A connection that GSSAPI encrypts cannot be handed "
						   "over to another process."),
				 errhint("Set \"gssencmode\" to \"disable\" and use "
						 "\"sslmode\".")));
	if (!pgpx_options_libpq_allowed(name, true, in_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						source->server),
				 errdetail("A pool cannot have option \"%s\" in its %s.", name,
						   in_mapping ? "user mapping" : "server")));
	if (!pgpx_options_libpq_allowed(name, as_superuser, in_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to use option \"%s\" of server "
						"\"%s\"",
						name, source->server),
				 errdetail("Its owner \"%s\" is not a superuser.",
						   GetUserNameFromId(source->owner, false))));
	set_param(target, name, value);
}

/* Apply the server's options: the pool's, and those for libpq. */
static void
apply_server_options(PgpxTarget *target, const Source *source)
{
	ListCell   *lc;

	foreach(lc, source->server_options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const char *name = def->defname;
		const char *value = defGetString(def);

		if (source->own_wrapper &&
			pgpx_options_apply(&target->opts, &target->start_commands,
							   &target->reset_command, name, value))
			continue;

		if (source->own_wrapper && strcmp(name, "base_server") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("option \"%s\" is not supported yet", name)));

		if (!source->own_wrapper && strcmp(name, "connect_timeout") == 0)
		{
			int64		seconds = strtol(value, NULL, 10);

			/* none, for libpq; a pool has always one */
			if (seconds > 0 && seconds <= PG_INT32_MAX)
				target->opts.connect_timeout = seconds * 1000;
			continue;
		}

		if (pgpx_options_is_libpq(name))
			take_libpq_option(target, source, name, value, false);
		else if (source->own_wrapper)
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("invalid option \"%s\" of server \"%s\"",
							name, source->server)));
	}

	/* one of each pair may stand against the default of the other */
	target->opts.retry_max = Max(target->opts.retry_max,
								 target->opts.retry_min);
	target->opts.min_size = Min(target->opts.min_size,
								target->opts.pool_size +
									target->opts.max_overflow);
}

/* Apply the user mapping's options, and find out who needs a password. */
static void
apply_mapping_options(PgpxTarget *target, const Source *source)
{
	const char *required = find_value(source->mapping_options,
									  "password_required");
	const char *through;
	bool		value;
	ListCell   *lc;

	foreach(lc, source->mapping_options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (pgpx_options_is_libpq(def->defname))
			take_libpq_option(target, source, def->defname,
							  defGetString(def), true);
	}

	through = find_value(source->mapping_options, "use_scram_passthrough");
	if (through == NULL)
		through = find_value(source->server_options, "use_scram_passthrough");
	if (through != NULL && (!parse_bool(through, &value) || value))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						source->server),
				 errdetail("With \"use_scram_passthrough\" a connection "
						   "belongs to one session and cannot be shared.")));

	target->need_password = target->key.superuser == 0 &&
		(required == NULL || !parse_bool(required, &value) || value);
	if (target->need_password &&
		find_value(source->mapping_options, "password") == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
				 errmsg("password is required"),
				 errdetail("Non-superusers must provide a password in the "
						   "user mapping.")));
}

/* What the catalogs leave open, and what a pool needs. */
static void
fill_parameters(PgpxTarget *target)
{
	const char *options = find_param(target, "options");
	const char *name = NameStr(target->server_name);

	/* libpq would take the name of the operating system's user */
	default_param(target, "user", NameStr(target->user_name));
	default_param(target, "fallback_application_name",
				  psprintf("pgpool_ext/%s", name));

	/* each of the two alone leaves a way to hang */
	default_param(target, "keepalives", "1");
	default_param(target, "keepalives_idle", "30");
	default_param(target, "keepalives_interval", "10");
	default_param(target, "keepalives_count", "3");
	default_param(target, "tcp_user_timeout", "30000");

	default_param(target, "gssencmode", "disable");
	set_param(target, "client_encoding", GetDatabaseEncodingName());
	set_param(target, "options",
			  options == NULL ? PINNED_OPTIONS :
			  psprintf("%s %s", options, PINNED_OPTIONS));
}

/* See target_read.h. */
void
pgpx_target_read(PgpxTarget *target, const char *name, Oid user)
{
	Source		source = {0};
	int			max_params;

	if (strlen(name) >= NAMEDATALEN)
		no_such_server(name);	/* and none whose name begins like this */
	target->key.database = MyDatabaseId;
	target->key.superuser = superuser_arg(user) ? 1 : 0;
	read_server(target, &source, name, user);
	read_mapping(target, &source, user);

	max_params = list_length(source.server_options) +
		list_length(source.mapping_options) + MAX_OWN_PARAMS;
	target->keywords = MemoryContextAllocZero(target->cxt,
											  max_params * sizeof(char *));
	target->values = MemoryContextAllocZero(target->cxt,
											max_params * sizeof(char *));

	pgpx_options_defaults(&target->opts);
	apply_server_options(target, &source);
	apply_mapping_options(target, &source);
	fill_parameters(target);

	target->start_commands = MemoryContextStrdup(target->cxt,
												 target->start_commands);
	target->reset_command = MemoryContextStrdup(target->cxt,
												target->reset_command);
}
