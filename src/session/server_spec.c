/*-------------------------------------------------------------------------
 *
 * server_spec.c
 *	  Server specs: the resolved catalog entries of a server for a user,
 *	  and their cache.
 *
 * A server spec contains all that a checkout needs to know of a server.
 * Rules for building one:
 * - Options for libpq are checked again here, because the validator of
 *   another foreign-data wrapper may have accepted them, and the server may
 *   have had another owner when they were set.
 * - The password comes from the user mapping or from the password command, or
 *	 the SCRAM keys of the session are used, or there is none.
 *
 * Specs are cached in this session by server name, user and by_table.  Rules
 * of the cache:
 * - A catalog change during a build marks the result as invalid, because it
 *   may be half old and half new.  The next caller builds it again, and a
 *   checkout does so before it uses the options for a pool.
 * - Secrets are in the spec's own memory context and are wiped with it.
 *
 *-------------------------------------------------------------------------
 */
#include "session/server_spec.h"

#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "base/debug_point.h"

/* Room for the parameters that the functions below add, and the terminator. */
#define MAX_OWN_PARAMS 16

/* DISCARD ALL resets to these values, and pgpx_wire_begin assumes them. */
#define PINNED_OPTIONS \
	"-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"

/* A path at which no file can exist; libpq then continues without the file. */
#define NO_FILE "/dev/null/none"

/* Return the value of a parameter of libpq; NULL if it is not set. */
static const char *
find_param(const PgpxServerSpec *spec, const char *keyword)
{
	for (int i = 0; i < spec->nparams; i++)
	{
		if (strcmp(spec->keywords[i], keyword) == 0)
			return spec->values[i];
	}
	return NULL;
}

const char *
pgpx_server_spec_remote_database(const PgpxServerSpec *spec)
{
	const char *name = find_param(spec, "dbname");

	if (name == NULL)
		name = find_param(spec, "user");
	return name != NULL ? name : "";
}

const char *
pgpx_server_spec_remote_user(const PgpxServerSpec *spec)
{
	return find_param(spec, "user");
}

/* Set a parameter, replacing any earlier value. */
static void
set_param(PgpxServerSpec *spec, const char *keyword, const char *value)
{
	char	   *copy = MemoryContextStrdup(spec->cxt, value);
	char	   *old;
	int			i;

	for (i = 0; i < spec->nparams; i++)
	{
		if (strcmp(spec->keywords[i], keyword) == 0)
			break;
	}
	if (i == spec->nparams)
	{
		spec->keywords[i] = MemoryContextStrdup(spec->cxt, keyword);
		spec->values[i] = copy;
		spec->nparams++;
		return;
	}
	old = unconstify(char *, spec->values[i]);

	/* each keyword has a value: NOLINTNEXTLINE(clang-analyzer-core.*) */
	explicit_bzero(old, strlen(old));
	spec->values[i] = copy;
}

/* Set a parameter if libpq knows it and it is not set yet. */
static void
default_param(PgpxServerSpec *spec, const char *keyword, const char *value)
{
	if (pgpx_option_is_libpq(keyword) && find_param(spec, keyword) == NULL)
		set_param(spec, keyword, value);
}

/* Raise 42501: the owner of the connection options may not set this one. */
pg_noreturn static void
raise_not_superuser(const PgpxServerRows *rows, const char *option)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to use option \"%s\" of server "
					"\"%s\"",
					option, rows->base.name),
			 errdetail("Its owner \"%s\" is not a superuser.",
					   GetUserNameFromId(rows->base.owner, false))));
}

/* Make an option a parameter of libpq, or raise why that is not allowed. */
static void
apply_libpq_option(PgpxServerSpec *spec, const PgpxServerRows *rows,
				   const char *name, const char *value, bool in_mapping)
{
	/* DDL has checked a mapping's options against the user who set them */
	bool		as_superuser = in_mapping || superuser_arg(rows->base.owner);

	if (value[0] == '\0')
		return;					/* libpq treats it as missing */

	/* other wrappers allow "prefer", which does not require encryption */
	if (strcmp(name, "gssencmode") == 0 && strcmp(value, "require") != 0)
		return;

	if (strcmp(name, "gssencmode") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						rows->base.name),
				 errdetail("A connection that GSSAPI encrypts cannot be handed "
						   "over to another process."),
				 errhint("Set \"gssencmode\" to \"disable\" and use "
						 "\"sslmode\".")));
	if (!pgpx_option_is_allowed(name, true, in_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						rows->base.name),
				 errdetail("A pool cannot have option \"%s\" in its %s.", name,
						   in_mapping ? "user mapping" : "server")));
	if (!as_superuser &&
		!pgpx_option_is_allowed(name, false, in_mapping))
		raise_not_superuser(rows, name);
	pgpx_options_check_hosts(name, value);
	set_param(spec, name, value);
}

/*
 * Apply the options of libpq among those of the server or the user mapping,
 * except "skip".
 */
static void
apply_libpq_options(PgpxServerSpec *spec, const PgpxServerRows *rows,
					List *options, bool in_mapping, const char *skip)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, skip) != 0 &&
			pgpx_option_is_libpq(def->defname))
			apply_libpq_option(spec, rows, def->defname, defGetString(def),
							   in_mapping);
	}
}

/*
 * Read the pool's options, of which servers of other wrappers have none, and
 * connect_timeout, the only connection option that is also an option of the
 * pool.  Return an option that is not valid, NULL if there is none.
 */
static DefElem *
read_pool_options(PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	DefElem    *timeout = pgpx_options_find(rows->base.options,
											"connect_timeout");
	ListCell   *lc;

	pgpx_options_defaults(&spec->opts);
	if (timeout != NULL && rows->base.own_wrapper)
	{
		if (!pgpx_options_apply(&spec->opts, &spec->start_commands,
								&spec->reset_command, "connect_timeout",
								defGetString(timeout)))
			return timeout;
	}
	else if (timeout != NULL)
	{
		int64		seconds = strtol(defGetString(timeout), NULL, 10);

		/* 0 means none in libpq, but a pool always has a timeout */
		if (seconds > 0 && seconds <= PG_INT32_MAX)
			spec->opts.connect_timeout = seconds * 1000;
	}
	foreach(lc, rows->pool.own_wrapper ? rows->pool.options : NIL)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (!pgpx_options_apply(&spec->opts, &spec->start_commands,
								&spec->reset_command, def->defname,
								defGetString(def)))
			return def;
	}

	/* possible if only one of the two is set */
	spec->opts.retry_max = Max(spec->opts.retry_max, spec->opts.retry_min);
	return NULL;
}

bool
pgpx_server_spec_read_options(Oid server, PgpxPoolOptions *opts)
{
	PgpxServerSpec spec = {0};
	PgpxServerRows rows = {0};
	bool		found = pgpx_server_catalog_find_server(server, &rows.pool);

	rows.base = rows.pool;
	found = found && read_pool_options(&spec, &rows) == NULL;
	*opts = spec.opts;
	return found;
}

/*
 * Return an option that the owner of a server with a base server may not set,
 * NULL if there is none.  The commands run as the remote user of the base
 * server's mapping, and the worker opens the connections of min_size and
 * min_idle although no session has requested them.  The owner of the base
 * server may set these options there, and a user of the mapping may run any
 * statement as that remote user.  So the owner must have the privileges of the
 * owner of the base server or of the user.  If all users of a PUBLIC mapping
 * share the pool (the spec has no user), USAGE on the base server is sufficient.
 */
static const char *
find_forbidden_option(const PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	const PgpxServerRow *server = &rows->pool;
	const PgpxServerRow *base = &rows->base;
	static const char *const options[] =
		{"start_commands", "reset_command", "min_size", "min_idle"};

	if (server->oid == base->oid ||
		has_privs_of_role(server->owner, base->owner) ||
		(OidIsValid(spec->user) ?
		 has_privs_of_role(server->owner, spec->user) :
		 spec->key.superuser == 0 &&
		 pgpx_server_catalog_may_use(base->oid, server->owner)))
		return NULL;
	for (int i = 0; i < lengthof(options); i++)
		if (pgpx_server_catalog_value(server->options, options[i]) != NULL)
			return options[i];
	return NULL;
}

bool
pgpx_server_spec_find(PgpxServerSpec *spec, Oid user, bool *has_options)
{
	PgpxServerRows rows = {0};

	if (OidIsValid(user))
		spec->key.superuser = superuser_arg(user) ? 1 : 0;
	if (pgpx_server_catalog_find(spec, &rows, spec->key.server,
								 user) != PGPX_FAULT_NONE ||
		find_forbidden_option(spec, &rows) != NULL)
		return false;
	*has_options = read_pool_options(spec, &rows) == NULL;
	return true;
}

/* Raise 42501 for an option that the owner of the server may not set. */
static void
check_owner(const PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	const char *option = find_forbidden_option(spec, rows);

	if (option != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to use option \"%s\" of server "
						"\"%s\"",
						option, rows->pool.name),
				 errdetail("Its owner \"%s\" neither has the privileges of the "
						   "owner of the base server \"%s\" nor can use the "
						   "user mapping of \"%s\".",
						   GetUserNameFromId(rows->pool.owner, false),
						   rows->base.name, NameStr(spec->user_name)),
				 errhint("Drop the option, or give the two servers the same "
						 "owner.")));
}

/*
 * Return the value of a boolean option; if_missing or if_invalid if it has none.
 */
static bool
is_set(List *options, const char *name, bool if_missing, bool if_invalid)
{
	const char *value = pgpx_server_catalog_value(options, name);
	bool		set;

	return value == NULL ? if_missing :
		parse_bool(value, &set) ? set : if_invalid;
}

/* Return whether use_scram_passthrough is set in the user mapping or server. */
static bool
uses_scram_keys(const PgpxServerRows *rows)
{
	const char *option = "use_scram_passthrough";

	return is_set(rows->mapping_options, option,
				  is_set(rows->base.options, option, false, true), true);
}

/*
 * If use_scram_passthrough is set, set the SCRAM keys of this session for the
 * login.  Return false if it is not set, or if the session has no keys.  The
 * login then is as without the option, as in postgres_fdw.
 */
static bool
apply_scram_keys(PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	PgpxScramKeys keys;

	if (!uses_scram_keys(rows) || !pgpx_scram_find_keys(spec, &keys))
		return false;
	set_param(spec, "scram_client_key", keys.client);
	set_param(spec, "scram_server_key", keys.server);
	set_param(spec, "require_auth", "scram-sha-256");
	explicit_bzero(&keys, sizeof(keys));
	return true;
}

/*
 * Return whether the password command provides the password of the user
 * mapping.  If it does, raise an error
 * - if the mapping has no remote user.  The validator refuses such a mapping,
 *   but may not have been called.
 * - if the owner of the server with the connection options is not a superuser,
 *   because the owner could send the password to any host.
 */
static bool
needs_password_command(const PgpxServerRows *rows)
{
	const char *option = "use_password_command";

	if (!is_set(rows->mapping_options, option, false, false))
		return false;
	pgpx_options_check_mapping(rows->mapping_options);
	if (!superuser_arg(rows->base.owner))
		raise_not_superuser(rows, option);
	return true;
}

/*
 * Apply the user mapping's options, and determine whether a password is needed.
 */
static void
apply_mapping_options(PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	bool		has_keys = apply_scram_keys(spec, rows);

	/* the keys take the place of the password */
	apply_libpq_options(spec, rows, rows->mapping_options, true,
						has_keys ? "password" : "");
	spec->need_password = spec->key.superuser == 0 &&
		is_set(rows->mapping_options, "password_required", true, true);
	spec->password_command = !has_keys && needs_password_command(rows);
	if (spec->need_password && !has_keys && !spec->password_command &&
		pgpx_server_catalog_value(rows->mapping_options, "password") == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
				 errmsg("password is required"),
				 uses_scram_keys(rows) ?
					 errdetail("SCRAM pass-through has no keys, because this session did not log in by SCRAM.") :
					 errdetail("Non-superusers must provide a password in the "
							   "user mapping.")));
}

/*
 * Forbid authentication with Kerberos tickets: they are those of the server's
 * operating system account, not of this user.  A later check that a password
 * was used would be too late, because libpq has used the ticket by then.  Other
 * methods that require_auth names stay in force.
 */
static void
forbid_session_tickets(PgpxServerSpec *spec)
{
	const char *required = find_param(spec, "require_auth");
	char	   *rest = pstrdup(required != NULL ? required : "");
	bool		others = rest[0] == '\0' || rest[0] == '!';
	StringInfoData buf;
	char	   *method;

	initStringInfo(&buf);
	if (others)
		appendStringInfoString(&buf, "!gss,!sspi");
	while ((method = strsep(&rest, ",")) != NULL)
	{
		const char *name = method + (method[0] == '!' ? 1 : 0);

		if (method[0] != '\0' && strcmp(name, "gss") != 0 &&
			strcmp(name, "sspi") != 0)
			appendStringInfo(&buf, "%s%s", buf.len > 0 ? "," : "", method);
	}

	/* with "none" no login succeeds, because a password is needed */
	set_param(spec, "require_auth", buf.len > 0 ? buf.data : "none");
}

/* Add the defaults, and the parameters that a pool needs. */
static void
fill_parameters(PgpxServerSpec *spec)
{
	const char *options = find_param(spec, "options");
	const char *name = NameStr(spec->server_name);

	/* the default of libpq, which the parameter hides */
	if (options == NULL)
		options = getenv("PGOPTIONS");

	/* libpq would use the name of the operating system user */
	default_param(spec, "user", NameStr(spec->user_name));
	default_param(spec, "fallback_application_name",
				  psprintf("pgpool_ext/%s", name));

	/* both are needed to detect each case of an unresponsive host */
	default_param(spec, "keepalives", "1");
	default_param(spec, "keepalives_idle", "30");
	default_param(spec, "keepalives_interval", "10");
	default_param(spec, "keepalives_count", "3");
	default_param(spec, "tcp_user_timeout", "30000");

	/* the certificate in the home directory is that of the server's account */
	if (spec->key.superuser == 0)
		default_param(spec, "sslcert", NO_FILE);

	/* forbid that account's Kerberos tickets; needs libpq 16 or later */
	if (spec->need_password && pgpx_option_is_libpq("require_auth"))
		forbid_session_tickets(spec);

	default_param(spec, "gssencmode", "disable");
	set_param(spec, "client_encoding", GetDatabaseEncodingName());
	set_param(spec, "options",
			  options == NULL ? PINNED_OPTIONS :
			  psprintf("%s %s", options, PINNED_OPTIONS));
}

/*
 * Fill in a spec for a server and a user, from the catalogs.
 *
 * The spec must be as make_spec() makes it.  Results are allocated in its memory
 * context, temporary data in the current one.  Errors: as of
 * pgpx_server_spec_get.
 */
static void
read_spec(PgpxServerSpec *spec, const char *name, Oid server, Oid user)
{
	PgpxServerRows rows = {0};
	DefElem    *invalid;
	int			max_params;

	spec->read_for = user;
	pgpx_server_catalog_read(spec, &rows, name, server, user);
	spec->of_superuser = superuser_arg(rows.pool.owner) &&
		superuser_arg(rows.base.owner);
	spec->owner_has_mapping = rows.of_public ||
		has_privs_of_role(rows.base.owner, user);
	check_owner(spec, &rows);

	max_params = list_length(rows.base.options) +
		list_length(rows.mapping_options) + MAX_OWN_PARAMS;
	spec->keywords = MemoryContextAllocZero(spec->cxt,
											max_params * sizeof(char *));
	spec->values = MemoryContextAllocZero(spec->cxt,
										  max_params * sizeof(char *));

	apply_libpq_options(spec, &rows, rows.base.options, false,
						"connect_timeout");
	invalid = read_pool_options(spec, &rows);
	if (invalid != NULL)
	{
		/* raises an error if the name is valid, and the value is not */
		(void) pgpx_option_parse(invalid->defname, defGetString(invalid));
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
				 errmsg("invalid option \"%s\" of server \"%s\"",
						invalid->defname, rows.pool.name)));
	}
	apply_mapping_options(spec, &rows);
	fill_parameters(spec);

	spec->start_commands = MemoryContextStrdup(spec->cxt,
											   spec->start_commands);
	spec->reset_command = MemoryContextStrdup(spec->cxt,
											  spec->reset_command);
	spec->discards_all =
		pg_strcasecmp(spec->reset_command, PGPX_DISCARD_ALL) == 0;
}

/* All specs of this session, the one that was returned last first. */
static dlist_head specs = DLIST_STATIC_INIT(specs);

/* Return the spec in the cache, which may be invalid; NULL if there is none. */
static PgpxServerSpec *
find_cached(const char *name, Oid server, Oid user, bool by_table)
{
	dlist_iter	iter;

	dlist_foreach(iter, &specs)
	{
		PgpxServerSpec *spec = dlist_container(PgpxServerSpec, node, iter.cur);

		if (!spec->cached || spec->read_for != user ||
			spec->by_table != by_table ||
			(name != NULL ? strcmp(NameStr(spec->server_name), name) != 0 :
			 spec->key.server != server))
			continue;
		dlist_move_head(&specs, &spec->node);
		return spec;
	}
	return NULL;
}

/* Wipe and free an unpinned spec. */
static void
free_spec(PgpxServerSpec *spec)
{
	for (int i = 0; i < spec->nparams; i++)
		explicit_bzero(unconstify(char *, spec->values[i]),
					   strlen(spec->values[i]));
	explicit_bzero(unconstify(char *, spec->start_commands),
				   strlen(spec->start_commands));
	MemoryContextDelete(spec->cxt);
}

/* Remove the invalid specs from the cache. */
static void
drop_invalid(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &specs)
	{
		PgpxServerSpec *spec = dlist_container(PgpxServerSpec, node, iter.cur);

		if (!spec->cached || pgpx_server_spec_is_valid(spec))
			continue;
		spec->cached = false;
		pgpx_server_spec_unpin(spec);
	}
}

/*
 * If another spec has the same pool, copy the pool's index and the last
 * connection from it.
 */
static void
copy_pool(PgpxServerSpec *spec)
{
	dlist_iter	iter;

	dlist_foreach(iter, &specs)
	{
		const PgpxServerSpec *other = dlist_container(PgpxServerSpec, node,
													  iter.cur);

		if (other->pool < 0 ||
			memcmp(&other->key, &spec->key, sizeof(PgpxPoolKey)) != 0)
			continue;
		spec->pool = other->pool;
		spec->pool_id = other->pool_id;
		spec->last_conn = other->last_conn;
		spec->last_conn_generation = other->last_conn_generation;
		break;
	}
}

/*
 * Build a spec in a memory context of its own and add it to the cache.  All
 * invalid specs are removed, even on an error.
 */
static PgpxServerSpec *
make_spec(const char *name, Oid server, Oid user, bool by_table)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "pgpool_ext server spec",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext scratch = AllocSetContextCreate(cxt,
												  "pgpool_ext server spec read",
												  ALLOCSET_SMALL_SIZES);
	PgpxServerSpec *spec = MemoryContextAllocZero(cxt, sizeof(*spec));

	spec->cxt = cxt;
	spec->read_at = pgpx_catalog_changes;
	spec->by_table = by_table;
	spec->start_commands = "";
	spec->reset_command = PGPX_DISCARD_ALL;
	spec->pool = -1;
	spec->last_conn = -1;
	PG_TRY();
	{
		MemoryContextSwitchTo(scratch);
		read_spec(spec, name, server, user);
		MemoryContextSwitchTo(caller);
	}
	PG_CATCH();
	{
		free_spec(spec);
		drop_invalid();
		PG_RE_THROW();
	}
	PG_END_TRY();

	/* nothing below raises an error */
	MemoryContextDelete(scratch);
	MemoryContextSetParent(spec->cxt, CacheMemoryContext);
	copy_pool(spec);
	drop_invalid();
	dlist_push_head(&specs, &spec->node);
	spec->refcount = 1;
	spec->cached = true;
	return spec;
}

PgpxServerSpec *
pgpx_server_spec_get(const char *name)
{
	pgpx_shmem_require();
	return pgpx_server_spec_get_for(name, InvalidOid, GetUserId(), false);
}

PgpxServerSpec *
pgpx_server_spec_get_for(const char *name, Oid server, Oid user, bool by_table)
{
	PgpxServerSpec *spec;

	AcceptInvalidationMessages();
	spec = find_cached(name, server, user, by_table);
	if (spec == NULL || !pgpx_server_spec_is_valid(spec))
		return make_spec(name, server, user, by_table);
	pgpx_options_follow(&spec->opts);
	return spec;
}

bool
pgpx_server_spec_is_same_login(const PgpxServerSpec *a, const PgpxServerSpec *b)
{
	PgpxPoolKey key_a = a->key;
	PgpxPoolKey key_b = b->key;

	key_a.superuser = key_b.superuser = 0;
	return memcmp(&key_a, &key_b, sizeof(key_a)) == 0 &&
		strcmp(pgpx_server_spec_remote_user(a),
			   pgpx_server_spec_remote_user(b)) == 0;
}

void
pgpx_server_spec_check_unrequested(const PgpxServerSpec *spec)
{
	if (!spec->of_superuser &&
		(!spec->need_password || !spec->owner_has_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 spec->need_password ?
				 errmsg("pgpool_ext sends no password of a user to a server whose owner is neither a superuser nor has the privileges of the user") :
				 errmsg("pgpool_ext opens no connection without a password to a server whose owner is not a superuser")));
}

void
pgpx_server_spec_pin(PgpxServerSpec *spec)
{
	spec->refcount++;
}

void
pgpx_server_spec_unpin(PgpxServerSpec *spec)
{
	Assert(spec->refcount > 0);
	if (--spec->refcount > 0)
		return;
	dlist_delete(&spec->node);
	free_spec(spec);
}
