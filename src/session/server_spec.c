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

/* More entries than this, and a miss drops those that are out of date. */
#define MANY_TARGETS 64

/* A target is always one of these: the callback must reach every one. */
typedef struct LiveTarget
{
	PgpxTarget	target;
	dlist_node	node;
} LiveTarget;

typedef struct CacheKey
{
	NameData	name;			/* padded with zeros */
	Oid			user;
} CacheKey;

typedef struct CacheEntry
{
	CacheKey	key;
	PgpxTarget *target;
} CacheEntry;

static HTAB *cache = NULL;
static dlist_head live_targets = DLIST_STATIC_INIT(live_targets);
static uint64 invalidations = 0;

/* the one that was asked for last, and for whom */
static PgpxTarget *last_target = NULL;
static Oid	last_user = InvalidOid;

/* A catalog that targets are read from has changed. */
static void
invalidate_targets(Datum arg, int cacheid, uint32 hashvalue)
{
	dlist_iter	iter;

	invalidations++;
	dlist_foreach(iter, &live_targets)
		dlist_container(LiveTarget, node, iter.cur)->target.valid = false;
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
		pgpx_source_on_change(invalidate_targets);
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
free_target(PgpxTarget *target)
{
	for (int i = 0; i < target->nparams; i++)
		explicit_bzero(unconstify(char *, target->values[i]),
					   strlen(target->values[i]));
	explicit_bzero(unconstify(char *, target->start_commands),
				   strlen(target->start_commands));
	MemoryContextDelete(target->cxt);
}

/* Take an entry out of the cache and give up the cache's pin. */
static void
drop_entry(CacheEntry *entry)
{
	PgpxTarget *target = entry->target;

	if (last_target == target)
		last_target = NULL;
	(void) hash_search(cache, &entry->key, HASH_REMOVE, NULL);
	pgpx_target_unpin(target);
}

static void
drop_outdated(void)
{
	HASH_SEQ_STATUS seq;
	CacheEntry *entry;

	hash_seq_init(&seq, cache);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (!entry->target->valid)
			drop_entry(entry);
	}
}

/* A target with all to be filled in, in memory of its own. */
static LiveTarget *
new_target(void)
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "pgpool_ext target",
											  ALLOCSET_SMALL_SIZES);
	LiveTarget *live = MemoryContextAllocZero(cxt, sizeof(LiveTarget));

	live->target.cxt = cxt;
	live->target.start_commands = "";
	live->target.reset_command = "DISCARD ALL";
	live->target.pool = -1;
	live->target.partner = -1;
	return live;
}

/*
 * Build a target and put it into the cache, in the place of "old" (NULL: none),
 * which is gone afterwards, whatever happens.  What "old" knew of its pool goes
 * on to the new one if that is the same pool.
 */
static PgpxTarget *
replace_target(const char *name, const CacheKey *key, CacheEntry *old)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch;
	PgpxTarget	before = {0};
	LiveTarget *live;
	PgpxTarget *target;
	uint64		started = invalidations;

	if (old != NULL)
	{
		before = *old->target;
		drop_entry(old);
	}

	live = new_target();
	target = &live->target;
	scratch = AllocSetContextCreate(target->cxt, "pgpool_ext target read",
									ALLOCSET_SMALL_SIZES);
	PG_TRY();
	{
		CacheEntry *entry;

		MemoryContextSwitchTo(scratch);
		pgpx_target_read(target, name, key->user);
		MemoryContextSwitchTo(caller);
		entry = hash_search(cache, key, HASH_ENTER, NULL);
		entry->target = target;
	}
	PG_CATCH();
	{
		free_target(target);
		PG_RE_THROW();
	}
	PG_END_TRY();

	/* nothing below throws */
	MemoryContextDelete(scratch);
	MemoryContextSetParent(target->cxt, CacheMemoryContext);
	dlist_push_tail(&live_targets, &live->node);
	target->refcount = 1;
	target->valid = started == invalidations;
	if (memcmp(&before.key, &target->key, sizeof(PgpxPoolKey)) == 0)
	{
		target->pool = before.pool;
		target->pool_id = before.pool_id;
		target->partner = before.partner;
		target->partner_generation = before.partner_generation;
	}
	return target;
}

PgpxTarget *
pgpx_target_get(const char *name)
{
	Oid			user = GetUserId();
	CacheKey	key;
	CacheEntry *entry;
	PgpxTarget *target;

	AcceptInvalidationMessages();
	if (last_target != NULL && last_target->valid && last_user == user &&
		strcmp(NameStr(last_target->server_name), name) == 0)
	{
		pgpx_options_follow(&last_target->opts);
		return last_target;
	}

	init_cache();
	memset(&key, 0, sizeof(key));
	strlcpy(NameStr(key.name), name, NAMEDATALEN);
	key.user = user;

	/* a name that is too long is nobody's: that is for the build to say */
	entry = strlen(name) < NAMEDATALEN ?
		hash_search(cache, &key, HASH_FIND, NULL) : NULL;
	if (entry == NULL || !entry->target->valid)
	{
		if (hash_get_num_entries(cache) > MANY_TARGETS)
		{
			drop_outdated();
			entry = NULL;
		}
		target = replace_target(name, &key, entry);
	}
	else
	{
		target = entry->target;
		pgpx_options_follow(&target->opts);
	}

	last_target = target;
	last_user = user;
	return target;
}

void
pgpx_target_pin(PgpxTarget *target)
{
	target->refcount++;
}

void
pgpx_target_unpin(PgpxTarget *target)
{
	Assert(target->refcount > 0);
	if (--target->refcount > 0)
		return;
	dlist_delete(&((LiveTarget *) target)->node);
	free_target(target);
}
