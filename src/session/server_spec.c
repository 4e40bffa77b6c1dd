/*-------------------------------------------------------------------------
 *
 * server_spec.c
 *	  Server specs: the resolved catalog entries of a server for a user, and
 *	  their cache.
 *
 * Rules:
 *
 * - What goes to libpq is checked again here: a wrapper may have had another
 *	 validator, and the server another owner, when the options were set.
 * - A password comes from the user mapping or not at all.
 *
 * From a server's name to everything a checkout needs to know of it.
 *
 * Targets are cached in this session by name and current user.  Rules:
 *
 * - The invalidation callback comes at any time, also in the middle of a build
 *	 or in abort: it sets flags and does nothing else.
 * - A change that comes during a build marks the result as out of date: the
 *	 next caller builds again, and so does a checkout before it gives a pool
 *	 options which may be half old and half new.
 * - Secrets live in a target's own memory and are wiped with it.
 *
 *-------------------------------------------------------------------------
 */
#include "session/server_spec.h"

#include "commands/defrem.h"
#include "lib/ilist.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "base/debug_point.h"
#include "session/server_catalog.h"

/* Parameters that fill_parameters() adds of its own, and the end. */
#define MAX_OWN_PARAMS 16

/* What a DISCARD ALL returns to, and pgpx_wire_begin assumes. */
#define PINNED_OPTIONS \
	"-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"

/* Where no file can be: libpq goes on without. */
#define NO_FILE "/dev/null/none"

static const char *
find_param(PgpxServerSpec *spec, const char *keyword)
{
	for (int i = 0; i < spec->nparams; i++)
	{
		if (strcmp(spec->keywords[i], keyword) == 0)
			return spec->values[i];
	}
	return NULL;
}

/* Set a parameter, over one of this name that is there. */
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

/* Set a parameter if libpq knows it and nobody has set it yet. */
static void
default_param(PgpxServerSpec *spec, const char *keyword, const char *value)
{
	if (pgpx_options_is_libpq(keyword) && find_param(spec, keyword) == NULL)
		set_param(spec, keyword, value);
}

/* Pass an option on to libpq, or say why not. */
static void
take_libpq_option(PgpxServerSpec *spec, const PgpxServerRows *rows,
				  const char *name, const char *value, bool in_mapping)
{
	/* a mapping's options were checked against who set them, at DDL time */
	bool		as_superuser = in_mapping || superuser_arg(rows->base.owner);

	if (value[0] == '\0')
		return;					/* for libpq as if it were not there */

	/* of a wrapper that knows it: "prefer" leaves the choice to us */
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
	if (!pgpx_options_libpq_allowed(name, true, in_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						rows->base.name),
				 errdetail("A pool cannot have option \"%s\" in its %s.", name,
						   in_mapping ? "user mapping" : "server")));
	if (!as_superuser &&
		!pgpx_options_libpq_allowed(name, false, in_mapping))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to use option \"%s\" of server "
						"\"%s\"",
						name, rows->base.name),
				 errdetail("Its owner \"%s\" is not a superuser.",
						   GetUserNameFromId(rows->base.owner, false))));
	pgpx_options_check_hosts(name, value);
	set_param(spec, name, value);
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
apply_connection_options(PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	ListCell   *lc;

	foreach(lc, rows->base.options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const char *name = def->defname;
		const char *value = defGetString(def);

		if (strcmp(name, "connect_timeout") == 0)
			apply_connect_timeout(&spec->opts, &rows->base, value);
		else if (pgpx_options_is_libpq(name))
			take_libpq_option(spec, rows, name, value, false);
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
apply_pool_options(PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	ListCell   *lc;

	foreach(lc, rows->pool.own_wrapper ? rows->pool.options : NIL)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const char *name = def->defname;

		if (!pgpx_options_apply(&spec->opts, &spec->start_commands,
								&spec->reset_command, name,
								defGetString(def)) &&
			strcmp(name, "base_server") != 0 && !pgpx_options_is_libpq(name))
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("invalid option \"%s\" of server \"%s\"",
							name, rows->pool.name)));
	}
	fit_together(&spec->opts);
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
pgpx_server_spec_read_settings(Oid server, Oid base, PgpxPoolOptions *opts)
{
	PgpxServerRow pool_row;
	PgpxServerRow base_row;
	const char *timeout;
	const char *unused;
	ListCell   *lc;

	if (!pgpx_server_catalog_find_server(server, &pool_row) ||
		!pgpx_server_catalog_find_server(base, &base_row) ||
		!are_valid(&pool_row) ||
		!are_valid(&base_row))
		return false;

	pgpx_options_defaults(opts);
	timeout = pgpx_server_catalog_value(base_row.options, "connect_timeout");
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
check_commands(const PgpxServerRows *rows, Oid user)
{
	static const char *const commands[] = {"start_commands", "reset_command"};

	if (!pgpx_server_rows_have_base(rows) ||
		has_privs_of_role(rows->pool.owner, rows->base.owner) ||
		has_privs_of_role(rows->pool.owner, user))
		return;
	for (int i = 0; i < lengthof(commands); i++)
	{
		if (pgpx_server_catalog_value(rows->pool.options, commands[i]) == NULL)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to use option \"%s\" of server "
						"\"%s\"",
						commands[i], rows->pool.name),
				 errdetail("Its owner \"%s\" has neither the privileges of the "
						   "owner of the base server \"%s\" nor those of "
						   "\"%s\".",
						   GetUserNameFromId(rows->pool.owner, false),
						   rows->base.name,
						   GetUserNameFromId(user, false)),
				 errhint("Drop the option, or give the two servers the same "
						 "owner.")));
	}
}

/* Apply the user mapping's options, and find out who needs a password. */
static void
apply_mapping_options(PgpxServerSpec *spec, const PgpxServerRows *rows)
{
	const char *required = pgpx_server_catalog_value(rows->mapping_options,
													 "password_required");
	const char *through;
	bool		value;
	ListCell   *lc;

	foreach(lc, rows->mapping_options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (pgpx_options_is_libpq(def->defname))
			take_libpq_option(spec, rows, def->defname,
							  defGetString(def), true);
	}

	through = pgpx_server_catalog_value(rows->mapping_options, "use_scram_passthrough");
	if (through == NULL)
		through = pgpx_server_catalog_value(rows->base.options, "use_scram_passthrough");
	if (through != NULL && (!parse_bool(through, &value) || value))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("server \"%s\" cannot be used as a pool",
						rows->base.name),
				 errdetail("With \"use_scram_passthrough\" a connection "
						   "belongs to one session and cannot be shared.")));

	spec->need_password = spec->key.superuser == 0 &&
		(required == NULL || !parse_bool(required, &value) || value);
	if (spec->need_password &&
		pgpx_server_catalog_value(rows->mapping_options, "password") == NULL)
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
forbid_session_tickets(PgpxServerSpec *spec)
{
	static const char *const waiters[] = {"gss", "sspi", "!gss", "!sspi"};
	const char *wanted = find_param(spec, "require_auth");
	char	   *rest = pstrdup(wanted != NULL ? wanted : "");
	bool		others = rest[0] == '\0' || rest[0] == '!';
	StringInfoData buf;
	char	   *method;

	initStringInfo(&buf);
	if (others)
		appendStringInfoString(&buf, "!gss,!sspi");
	while ((method = strsep(&rest, ",")) != NULL)
	{
		bool		waiter = method[0] == '\0';

		for (int i = 0; i < lengthof(waiters); i++)
			waiter |= strcmp(method, waiters[i]) == 0;
		if (!waiter)
			appendStringInfo(&buf, "%s%s", buf.len > 0 ? "," : "", method);
	}

	/* nothing is left: whatever logs in so has used no password, and is refused */
	set_param(spec, "require_auth", buf.len > 0 ? buf.data : "none");
}

/* What the catalogs leave open, and what a pool needs. */
static void
fill_parameters(PgpxServerSpec *spec)
{
	const char *options = find_param(spec, "options");
	const char *name = NameStr(spec->server_name);

	/* libpq would take the name of the operating system's user */
	default_param(spec, "user", NameStr(spec->user_name));
	default_param(spec, "fallback_application_name",
				  psprintf("pgpool_ext/%s", name));

	/* each of the two alone leaves a way to hang */
	default_param(spec, "keepalives", "1");
	default_param(spec, "keepalives_idle", "30");
	default_param(spec, "keepalives_interval", "10");
	default_param(spec, "keepalives_count", "3");
	default_param(spec, "tcp_user_timeout", "30000");

	/* the one in the home directory is the server's, not this user's */
	if (spec->key.superuser == 0)
		default_param(spec, "sslcert", NO_FILE);

	/* nor is what else it can log in with; libpq can be told so from 16 on */
	if (spec->need_password && pgpx_options_is_libpq("require_auth"))
		forbid_session_tickets(spec);

	default_param(spec, "gssencmode", "disable");
	set_param(spec, "client_encoding", GetDatabaseEncodingName());
	set_param(spec, "options",
			  options == NULL ? PINNED_OPTIONS :
			  psprintf("%s %s", options, PINNED_OPTIONS));
}

void
pgpx_server_spec_read(PgpxServerSpec *spec, const char *name, Oid user)
{
	PgpxServerRows rows = {0};
	int			max_params;

	pgpx_server_catalog_read(spec, &rows, name, user);
	check_commands(&rows, user);

	max_params = list_length(rows.base.options) +
		list_length(rows.mapping_options) + MAX_OWN_PARAMS;
	spec->keywords = MemoryContextAllocZero(spec->cxt,
											max_params * sizeof(char *));
	spec->values = MemoryContextAllocZero(spec->cxt,
										  max_params * sizeof(char *));

	pgpx_options_defaults(&spec->opts);
	apply_connection_options(spec, &rows);
	apply_pool_options(spec, &rows);
	apply_mapping_options(spec, &rows);
	fill_parameters(spec);

	spec->start_commands = MemoryContextStrdup(spec->cxt,
											   spec->start_commands);
	spec->reset_command = MemoryContextStrdup(spec->cxt,
											  spec->reset_command);
	spec->discards_all =
		pg_strcasecmp(spec->reset_command, "DISCARD ALL") == 0;
}

/* More entries than this, and a miss drops those that are out of date. */
#define MANY_SPECS 64

/* A target is always one of these: the callback must reach every one. */
typedef struct LiveSpec
{
	PgpxServerSpec spec;
	dlist_node	node;
} LiveSpec;

typedef struct CacheKey
{
	NameData	name;			/* padded with zeros */
	Oid			user;
} CacheKey;

typedef struct CacheEntry
{
	CacheKey	key;
	PgpxServerSpec *spec;
} CacheEntry;

static HTAB *cache = NULL;
static dlist_head live_specs = DLIST_STATIC_INIT(live_specs);
static uint64 invalidations = 0;

/* the one that was asked for last, and for whom */
static PgpxServerSpec *last_spec = NULL;
static Oid	last_user = InvalidOid;

/* A catalog that targets are read from has changed. */
static void
invalidate_specs(Datum arg, int cacheid, uint32 hashvalue)
{
	dlist_iter	iter;

	invalidations++;
	dlist_foreach(iter, &live_specs)
		dlist_container(LiveSpec, node, iter.cur)->spec.valid = false;
}

static void
init_cache(void)
{
	static bool registered = false;
	HASHCTL		ctl;

	if (!registered)
	{
		/* there is no way to take these back, so do not repeat them */
		registered = true;
		pgpx_server_catalog_on_change(invalidate_specs);
	}
	if (cache == NULL)
	{
		ctl.keysize = sizeof(CacheKey);
		ctl.entrysize = sizeof(CacheEntry);
		ctl.hcxt = CacheMemoryContext;
		cache = hash_create("pgpool_ext targets", 16, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
}

/* Wipe and free a target that nobody has. */
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

/* Take an entry out of the cache and give up the cache's pin. */
static void
drop_entry(CacheEntry *entry)
{
	PgpxServerSpec *spec = entry->spec;

	if (last_spec == spec)
		last_spec = NULL;
	(void) hash_search(cache, &entry->key, HASH_REMOVE, NULL);
	pgpx_server_spec_unpin(spec);
}

static void
drop_outdated(void)
{
	HASH_SEQ_STATUS seq;
	CacheEntry *entry;

	hash_seq_init(&seq, cache);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (!entry->spec->valid)
			drop_entry(entry);
	}
}

/* A target with all to be filled in, in memory of its own. */
static LiveSpec *
new_spec(void)
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "pgpool_ext target",
											  ALLOCSET_SMALL_SIZES);
	LiveSpec   *live = MemoryContextAllocZero(cxt, sizeof(LiveSpec));

	live->spec.cxt = cxt;
	live->spec.start_commands = "";
	live->spec.reset_command = "DISCARD ALL";
	live->spec.pool = -1;
	live->spec.last_conn = -1;
	return live;
}

/*
 * Build a target and put it into the cache, in the place of "old" (NULL: none),
 * which is gone afterwards, whatever happens.  What "old" knew of its pool goes
 * on to the new one if that is the same pool.
 */
static PgpxServerSpec *
replace_spec(const char *name, const CacheKey *key, CacheEntry *old)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch;
	PgpxServerSpec before = {0};
	LiveSpec   *live;
	PgpxServerSpec *spec;
	uint64		started = invalidations;

	if (old != NULL)
	{
		before = *old->spec;
		drop_entry(old);
	}

	live = new_spec();
	spec = &live->spec;
	scratch = AllocSetContextCreate(spec->cxt, "pgpool_ext target read",
									ALLOCSET_SMALL_SIZES);
	PG_TRY();
	{
		CacheEntry *entry;

		MemoryContextSwitchTo(scratch);
		pgpx_server_spec_read(spec, name, key->user);
		MemoryContextSwitchTo(caller);
		entry = hash_search(cache, key, HASH_ENTER, NULL);
		entry->spec = spec;
	}
	PG_CATCH();
	{
		free_spec(spec);
		PG_RE_THROW();
	}
	PG_END_TRY();

	/* nothing below throws */
	MemoryContextDelete(scratch);
	MemoryContextSetParent(spec->cxt, CacheMemoryContext);
	dlist_push_tail(&live_specs, &live->node);
	spec->refcount = 1;
	spec->valid = started == invalidations;
	if (memcmp(&before.key, &spec->key, sizeof(PgpxPoolKey)) == 0)
	{
		spec->pool = before.pool;
		spec->pool_id = before.pool_id;
		spec->last_conn = before.last_conn;
		spec->last_conn_generation = before.last_conn_generation;
	}
	return spec;
}

PgpxServerSpec *
pgpx_server_spec_get(const char *name)
{
	Oid			user = GetUserId();
	CacheKey	key;
	CacheEntry *entry;
	PgpxServerSpec *spec;

	AcceptInvalidationMessages();
	if (last_spec != NULL && last_spec->valid && last_user == user &&
		strcmp(NameStr(last_spec->server_name), name) == 0)
	{
		pgpx_options_follow(&last_spec->opts);
		return last_spec;
	}

	init_cache();
	memset(&key, 0, sizeof(key));
	strlcpy(NameStr(key.name), name, NAMEDATALEN);
	key.user = user;

	/* a name that is too long is nobody's: that is for the build to say */
	entry = strlen(name) < NAMEDATALEN ?
		hash_search(cache, &key, HASH_FIND, NULL) : NULL;
	if (entry == NULL || !entry->spec->valid)
	{
		if (hash_get_num_entries(cache) > MANY_SPECS)
		{
			drop_outdated();
			entry = NULL;
		}
		spec = replace_spec(name, &key, entry);
	}
	else
	{
		spec = entry->spec;
		pgpx_options_follow(&spec->opts);
	}

	last_spec = spec;
	last_user = user;
	return spec;
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
	dlist_delete(&((LiveSpec *) spec)->node);
	free_spec(spec);
}
