/*-------------------------------------------------------------------------
 *
 * target_read.c
 *	  Makes a target of what the catalogs say: options, parameters, passwords.
 *
 * Rules:
 *
 * - What goes to libpq is checked again here: a wrapper may have had another
 *	 validator, and the server another owner, when the options were set.
 * - A password comes from the user mapping or not at all.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "options.h"
#include "target_read.h"
#include "target_source.h"

/* Parameters that fill_parameters() adds of its own, and the end. */
#define MAX_OWN_PARAMS 16

/* What a DISCARD ALL returns to, and pgpx_wire_begin assumes. */
#define PINNED_OPTIONS \
	"-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"

/* Where no file can be: libpq goes on without. */
#define NO_FILE "/dev/null/none"

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
	char	   *old;
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
	old = unconstify(char *, target->values[i]);

	/* each keyword has a value: NOLINTNEXTLINE(clang-analyzer-core.*) */
	explicit_bzero(old, strlen(old));
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
take_libpq_option(PgpxTarget *target, const PgpxSource *source,
				  const char *name, const char *value, bool in_mapping)
{
	/* a mapping's options were checked against who set them, at DDL time */
	bool		as_superuser = in_mapping || superuser_arg(source->base.owner);

	if (value[0] == '\0')
		return;					/* for libpq as if it were not there */

	/* of a wrapper that knows it: "prefer" leaves the choice to us */
	if (strcmp(name, "gssencmode") == 0 && strcmp(value, "require") != 0)
		return;

	if (strcmp(name, "gssencmode") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						source->base.name),
				 errdetail("A connection that GSSAPI encrypts cannot be handed "
						   "over to another process."),
				 errhint("Set \"gssencmode\" to \"disable\" and use "
						 "\"sslmode\".")));
	if (!pgpx_options_libpq_allowed(name, true, in_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						source->base.name),
				 errdetail("A pool cannot have option \"%s\" in its %s.", name,
						   in_mapping ? "user mapping" : "server")));
	if (!as_superuser &&
		!pgpx_options_libpq_allowed(name, false, in_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to use option \"%s\" of server "
						"\"%s\"",
						name, source->base.name),
				 errdetail("Its owner \"%s\" is not a superuser.",
						   GetUserNameFromId(source->base.owner, false))));
	pgpx_options_check_hosts(name, value);
	set_param(target, name, value);
}

/* The one option of the base server that is a number of the pool. */
static void
apply_connect_timeout(PgpxPoolOptions *opts, const PgpxServerRow *base,
					  const char *value)
{
	const char *unused;
	int64		seconds;

	if (base->own_wrapper)
	{
		(void) pgpx_options_apply(opts, &unused, &unused, "connect_timeout",
								  value);
		return;
	}

	/* none, for libpq; a pool has always one */
	seconds = strtol(value, NULL, 10);
	if (seconds > 0 && seconds <= PG_INT32_MAX)
		opts->connect_timeout = seconds * 1000;
}

/* Apply what says where to connect: the base server's, if there is one. */
static void
apply_connection_options(PgpxTarget *target, const PgpxSource *source)
{
	ListCell   *lc;

	foreach(lc, source->base.options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const char *name = def->defname;
		const char *value = defGetString(def);

		if (strcmp(name, "connect_timeout") == 0)
			apply_connect_timeout(&target->opts, &source->base, value);
		else if (pgpx_options_is_libpq(name))
			take_libpq_option(target, source, name, value, false);
	}
}

/* One of the two may stand against the default of the other. */
static void
fit_together(PgpxPoolOptions *opts)
{
	opts->retry_max = Max(opts->retry_max, opts->retry_min);
}

/* Apply the pool's options, which other wrappers' servers do not have. */
static void
apply_pool_options(PgpxTarget *target, const PgpxSource *source)
{
	ListCell   *lc;

	foreach(lc, source->pool.own_wrapper ? source->pool.options : NIL)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const char *name = def->defname;

		if (!pgpx_options_apply(&target->opts, &target->start_commands,
								&target->reset_command, name,
								defGetString(def)) &&
			strcmp(name, "base_server") != 0 && !pgpx_options_is_libpq(name))
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("invalid option \"%s\" of server \"%s\"",
							name, source->pool.name)));
	}
	fit_together(&target->opts);
}

/* Are all options of a server such as the two functions above take them? */
static bool
are_valid(const PgpxServerRow *server)
{
	ListCell   *lc;

	foreach(lc, server->own_wrapper ? server->options : NIL)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (!pgpx_options_is_valid(def->defname, defGetString(def)))
			return false;
	}
	return true;
}

bool
pgpx_target_read_settings(Oid server, Oid base, PgpxPoolOptions *opts)
{
	PgpxServerRow pool_row;
	PgpxServerRow base_row;
	const char *timeout;
	const char *unused;
	ListCell   *lc;

	if (!pgpx_source_find_server(server, &pool_row) ||
		!pgpx_source_find_server(base, &base_row) || !are_valid(&pool_row) ||
		!are_valid(&base_row))
		return false;

	pgpx_options_defaults(opts);
	timeout = pgpx_source_value(base_row.options, "connect_timeout");
	if (timeout != NULL)
		apply_connect_timeout(opts, &base_row, timeout);
	foreach(lc, pool_row.own_wrapper ? pool_row.options : NIL)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		(void) pgpx_options_apply(opts, &unused, &unused, def->defname,
								  defGetString(def));
	}
	fit_together(opts);
	return true;
}

/*
 * The commands run as whoever the base server's mapping says.  Its owner could
 * set them there, and the user can run what he likes; the owner of a server that
 * only names it as its base must be trusted by one of the two.
 */
static void
check_commands(const PgpxSource *source, Oid user)
{
	static const char *const commands[] = {"start_commands", "reset_command"};

	if (!pgpx_source_is_based(source) ||
		has_privs_of_role(source->pool.owner, source->base.owner) ||
		has_privs_of_role(source->pool.owner, user))
		return;
	for (int i = 0; i < lengthof(commands); i++)
	{
		if (pgpx_source_value(source->pool.options, commands[i]) == NULL)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to use option \"%s\" of server "
						"\"%s\"",
						commands[i], source->pool.name),
				 errdetail("Its owner \"%s\" has neither the privileges of the "
						   "owner of the base server \"%s\" nor those of "
						   "\"%s\".",
						   GetUserNameFromId(source->pool.owner, false),
						   source->base.name,
						   GetUserNameFromId(user, false)),
				 errhint("Drop the option, or give the two servers the same "
						 "owner.")));
	}
}

/* Apply the user mapping's options, and find out who needs a password. */
static void
apply_mapping_options(PgpxTarget *target, const PgpxSource *source)
{
	const char *required = pgpx_source_value(source->mapping_options,
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

	through = pgpx_source_value(source->mapping_options, "use_scram_passthrough");
	if (through == NULL)
		through = pgpx_source_value(source->base.options, "use_scram_passthrough");
	if (through != NULL && (!parse_bool(through, &value) || value))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						source->base.name),
				 errdetail("With \"use_scram_passthrough\" a connection "
						   "belongs to one session and cannot be shared.")));

	target->need_password = target->key.superuser == 0 &&
		(required == NULL || !parse_bool(required, &value) || value);
	if (target->need_password &&
		pgpx_source_value(source->mapping_options, "password") == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
				 errmsg("password is required"),
				 errdetail("Non-superusers must provide a password in the "
						   "user mapping.")));
}

/*
 * The Kerberos tickets of the server's account are not this user's: libpq would
 * answer with one before it is known that no password was asked for.  What the owner
 * requires stays required.
 */
static void
forbid_tickets(PgpxTarget *target)
{
	static const char *const tickets[] = {"gss", "sspi", "!gss", "!sspi"};
	const char *wanted = find_param(target, "require_auth");
	char	   *rest = pstrdup(wanted != NULL ? wanted : "");
	bool		others = rest[0] == '\0' || rest[0] == '!';
	StringInfoData buf;
	char	   *method;

	initStringInfo(&buf);
	if (others)
		appendStringInfoString(&buf, "!gss,!sspi");
	while ((method = strsep(&rest, ",")) != NULL)
	{
		bool		ticket = method[0] == '\0';

		for (int i = 0; i < lengthof(tickets); i++)
			ticket |= strcmp(method, tickets[i]) == 0;
		if (!ticket)
			appendStringInfo(&buf, "%s%s", buf.len > 0 ? "," : "", method);
	}

	/* nothing is left: whatever logs in so has used no password, and is refused */
	set_param(target, "require_auth", buf.len > 0 ? buf.data : "none");
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

	/* the one in the home directory is the server's, not this user's */
	if (target->key.superuser == 0)
		default_param(target, "sslcert", NO_FILE);

	/* nor is what else it can log in with; libpq can be told so from 16 on */
	if (target->need_password && pgpx_options_is_libpq("require_auth"))
		forbid_tickets(target);

	default_param(target, "gssencmode", "disable");
	set_param(target, "client_encoding", GetDatabaseEncodingName());
	set_param(target, "options",
			  options == NULL ? PINNED_OPTIONS :
			  psprintf("%s %s", options, PINNED_OPTIONS));
}

void
pgpx_target_read(PgpxTarget *target, const char *name, Oid user)
{
	PgpxSource	source = {0};
	int			max_params;

	pgpx_source_read(target, &source, name, user);
	check_commands(&source, user);

	max_params = list_length(source.base.options) +
		list_length(source.mapping_options) + MAX_OWN_PARAMS;
	target->keywords = MemoryContextAllocZero(target->cxt,
											  max_params * sizeof(char *));
	target->values = MemoryContextAllocZero(target->cxt,
											max_params * sizeof(char *));

	pgpx_options_defaults(&target->opts);
	apply_connection_options(target, &source);
	apply_pool_options(target, &source);
	apply_mapping_options(target, &source);
	fill_parameters(target);

	target->start_commands = MemoryContextStrdup(target->cxt,
												 target->start_commands);
	target->reset_command = MemoryContextStrdup(target->cxt,
												target->reset_command);
	target->discards_all =
		pg_strcasecmp(target->reset_command, "DISCARD ALL") == 0;
}
