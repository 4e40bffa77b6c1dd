/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Options of servers and user mappings: their table, the reader, the
 *	  validator.
 *
 * The validator of pgpool_fdw checks options at DDL time; server_spec.c applies
 * them.
 *
 * - Only superusers may set an option of libpq that is not in the table.  They
 *	 set it on the server, or in the user mapping if it is a secret.  So only
 *	 superusers can use an option that a newer libpq introduces.
 * - Within a major version no range is narrowed and no name is removed, so that
 *	 old dumps can be restored.
 * - No function here uses shared memory, because the validator must work in a
 *	 server that has not preloaded the library.
 * - No error shows a secret: values of the kind TEXT are never printed.
 *
 *-------------------------------------------------------------------------
 */
#include "config/options.h"

#include <math.h>

#include "access/reloptions.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_foreign_table.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/debug_point.h"
#include "base/settings.h"

#define MAX_POOL	262143		/* maximum number of backends of a server */
#define MAX_TEXT	8192		/* one message has start and reset commands */
#define SECOND		INT64CONST(1000)
#define MINUTE		(60 * SECOND)
#define MAX_TIME	(3650 * 24 * 60 * MINUTE)

static const char *const reset_words[] =
	{"always", "never", NULL};
static const char *const on_unavailable_words[] = {"fail", "wait", NULL};
static const char *const notices_words[] = {"forward", "log", "ignore", NULL};
static const char *const sampling_words[] =
	{"off", "auto", "random", "system", "bernoulli", NULL};
static const char *const gssencmode_words[] = {"disable", NULL};

/*
 * The numbers of PgpxPoolOptions are read from shared memory at each use, so a
 * change of them takes effect in place.  A change of any other option of the
 * pool replaces its connections: start_commands and reset_command have
 * determined the state of the remote sessions, and base_server determines the
 * remote server.
 */
#define POOL_OPTION(name, kind, min, max, value, words) \
	{#name, kind, PGPX_ON_SERVER | PGPX_IN_PLACE, \
	offsetof(PgpxPoolOptions, name), min, max, value, words}
#define POOL_SETTING(name, kind, min, max) \
	{#name, kind, PGPX_ON_SERVER | PGPX_IN_PLACE, \
	offsetof(PgpxPoolOptions, name), min, max, 0, NULL, &pgpx_default_##name}
#define POOL_INT(name, min, max, value) \
	POOL_OPTION(name, PGPX_KIND_INT, min, max, value, NULL)
#define POOL_TIME(name, min, value) \
	POOL_OPTION(name, PGPX_KIND_DURATION, min, MAX_TIME, value, NULL)
#define POOL_WORD(name, value) \
	POOL_OPTION(name, PGPX_KIND_WORD, 0, 0, value, name##_words)
#define OTHER_TEXT(name, where, min, max) \
	{name, PGPX_KIND_TEXT, where, -1, min, max, 0}
#define TABLE_OPTION(name, kind, where, min, words) \
	{name, kind, PGPX_OF_TABLES | PGPX_IN_PLACE | (where), -1, min, \
	PG_INT32_MAX, 0, words}
#define ON_SERVER_OR_TABLE (PGPX_ON_SERVER | PGPX_ON_TABLE)
#define LIBPQ_TEXT(name, where) \
	OTHER_TEXT(name, PGPX_LIBPQ | (where), 0, PG_INT64_MAX)

const PgpxOption pgpx_option_table[] = {
	/* pool options; first those with a setting, see pgpx_options_follow */
	POOL_SETTING(pool_size, PGPX_KIND_INT, 1, MAX_POOL),
	POOL_SETTING(checkout_timeout, PGPX_KIND_DURATION, 0, MAX_TIME),
	POOL_SETTING(max_waiters, PGPX_KIND_INT, 0, MAX_POOL),
	POOL_SETTING(two_phase_commit, PGPX_KIND_BOOL, 0, 1),
	POOL_INT(max_overflow, 0, MAX_POOL, 0),
	POOL_TIME(overflow_ttl, 0, 5 * SECOND),
	POOL_INT(min_size, 0, MAX_POOL, 0),
	POOL_INT(min_idle, 0, MAX_POOL, 0),
	POOL_INT(max_server_connections, 0, MAX_POOL, 0),
	POOL_TIME(idle_timeout, 0, 10 * MINUTE),
	POOL_TIME(max_lifetime, 0, 30 * MINUTE),
	POOL_TIME(test_period, -1, 30 * SECOND),
	POOL_TIME(connect_timeout, 1, 5 * SECOND),
	POOL_TIME(retry_min, 1, 100),
	POOL_TIME(retry_max, 1, 10 * SECOND),
	POOL_WORD(on_unavailable, PGPX_UNAVAILABLE_FAIL),
	OTHER_TEXT("start_commands", PGPX_ON_SERVER, 0, MAX_TEXT),
	POOL_WORD(reset, PGPX_RESET_ALWAYS),
	OTHER_TEXT("reset_command", PGPX_ON_SERVER, 1, MAX_TEXT),
	POOL_TIME(operation_timeout, 1, 10 * SECOND),
	POOL_TIME(lease_timeout, 0, 0),
	POOL_TIME(leak_warning, 0, 0),
	POOL_TIME(notice_after, 0, 0),
	POOL_WORD(notices, PGPX_NOTICES_FORWARD),
	OTHER_TEXT("base_server", PGPX_ON_SERVER, 1, NAMEDATALEN - 1),

	/* options of foreign tables, as in postgres_fdw */
	TABLE_OPTION("schema_name", PGPX_KIND_TEXT, PGPX_ON_TABLE, 0, NULL),
	TABLE_OPTION("table_name", PGPX_KIND_TEXT, PGPX_ON_TABLE, 0, NULL),
	TABLE_OPTION("column_name", PGPX_KIND_TEXT, PGPX_ON_COLUMN, 0, NULL),
	TABLE_OPTION("updatable", PGPX_KIND_BOOL, ON_SERVER_OR_TABLE, 0, NULL),
	TABLE_OPTION("truncatable", PGPX_KIND_BOOL, ON_SERVER_OR_TABLE, 0, NULL),
	TABLE_OPTION("async_capable", PGPX_KIND_BOOL, ON_SERVER_OR_TABLE, 0, NULL),
	TABLE_OPTION("fetch_size", PGPX_KIND_INT, ON_SERVER_OR_TABLE, 1, NULL),
	TABLE_OPTION("batch_size", PGPX_KIND_INT, ON_SERVER_OR_TABLE, 1, NULL),
	TABLE_OPTION("analyze_sampling", PGPX_KIND_WORD,
				 ON_SERVER_OR_TABLE, 0, sampling_words),
#ifdef PGPX_HAS_RESTORE_STATS
	{"import_stats", PGPX_KIND_AGE,
	 PGPX_OF_TABLES | PGPX_IN_PLACE | ON_SERVER_OR_TABLE, -1, 1, MAX_TIME, 0},
#endif
	TABLE_OPTION("fdw_startup_cost", PGPX_KIND_COST, PGPX_ON_SERVER, 0, NULL),
	TABLE_OPTION("fdw_tuple_cost", PGPX_KIND_COST, PGPX_ON_SERVER, 0, NULL),
	TABLE_OPTION("extensions", PGPX_KIND_NAMES, PGPX_ON_SERVER, 0, NULL),

	/* libpq options that need no superuser; libpq checks their values */
	LIBPQ_TEXT("host", PGPX_ON_SERVER),
	LIBPQ_TEXT("hostaddr", PGPX_ON_SERVER),
	LIBPQ_TEXT("port", PGPX_ON_SERVER),
	LIBPQ_TEXT("dbname", PGPX_ON_SERVER),
	LIBPQ_TEXT("application_name", PGPX_ON_SERVER),
	LIBPQ_TEXT("fallback_application_name", PGPX_ON_SERVER),
	LIBPQ_TEXT("sslmode", PGPX_ON_SERVER),
	LIBPQ_TEXT("sslsni", PGPX_ON_SERVER),
	LIBPQ_TEXT("ssl_min_protocol_version", PGPX_ON_SERVER),
	LIBPQ_TEXT("ssl_max_protocol_version", PGPX_ON_SERVER),
	LIBPQ_TEXT("channel_binding", PGPX_ON_SERVER),
	LIBPQ_TEXT("require_auth", PGPX_ON_SERVER),
	{"gssencmode", PGPX_KIND_WORD, PGPX_LIBPQ | PGPX_ON_SERVER, -1, 0, 0, 0,
	 gssencmode_words},			/* an encrypted connection cannot be handed over */
	LIBPQ_TEXT("target_session_attrs", PGPX_ON_SERVER),
	LIBPQ_TEXT("load_balance_hosts", PGPX_ON_SERVER),
	LIBPQ_TEXT("keepalives", PGPX_ON_SERVER),
	LIBPQ_TEXT("keepalives_idle", PGPX_ON_SERVER),
	LIBPQ_TEXT("keepalives_interval", PGPX_ON_SERVER),
	LIBPQ_TEXT("keepalives_count", PGPX_ON_SERVER),
	LIBPQ_TEXT("tcp_user_timeout", PGPX_ON_SERVER),

	/* options of user mappings, some of servers as well */
	LIBPQ_TEXT("user", PGPX_ON_MAPPING),
	LIBPQ_TEXT("password", PGPX_ON_MAPPING),
	{"password_required", PGPX_KIND_BOOL, PGPX_ON_MAPPING, -1, 0, 1, 1},
	{"use_password_command", PGPX_KIND_BOOL, PGPX_ON_MAPPING | PGPX_SUPERUSER,
	 -1, 0, 1, 0},
#ifdef PGPX_HAS_SCRAM_PASSTHROUGH
	{"use_scram_passthrough", PGPX_KIND_BOOL, PGPX_ON_SERVER | PGPX_ON_MAPPING,
	 -1, 0, 1, 0},
#endif
	LIBPQ_TEXT("sslcert", PGPX_ON_SERVER | PGPX_ON_MAPPING | PGPX_SUPERUSER),
	LIBPQ_TEXT("sslkey", PGPX_ON_SERVER | PGPX_ON_MAPPING | PGPX_SUPERUSER),
	LIBPQ_TEXT("sslpassword", PGPX_ON_MAPPING | PGPX_SUPERUSER),
	{NULL},
};

/*
 * Options that are rejected for all users, and the reasons.  A name that ends
 * in '_' is a prefix.
 */
static const struct
{
	const char *name;
	const char *reason;
}			refused[] = {
	{"client_encoding",
	 "A pool's client encoding is always the database's encoding."},
	{"replication", "A replication connection cannot be shared."},
	{"scram_", "SCRAM keys are those of the session that uses the pool."},
#ifndef PGPX_HAS_SCRAM_PASSTHROUGH
	{"use_scram_passthrough", "SCRAM pass-through needs PostgreSQL 18."},
#endif
#ifndef PGPX_HAS_RESTORE_STATS
	{"import_stats", "The import of statistics needs PostgreSQL 18."},
#endif
	{"gssdelegation",
	 "Delegated credentials belong to one session and cannot be shared by a "
	 "pool."},
	{"use_remote_estimate",
	 "To estimate, postgres_fdw would open a connection of its own. Run ANALYZE "
	 "on the foreign table instead."},
	{"keep_connections",
	 "The pool keeps connections; see options \"idle_timeout\" and "
	 "\"max_lifetime\"."},
	{"parallel_commit",
	 "Remote transactions on several servers always commit at the same time."},
	{"parallel_abort", "An abort never waits for a remote server."},
	{"oauth_",
	 "OAuth tokens belong to one session and cannot be shared by a pool."},
};

/* Return the table's entry of an option, NULL if there is none. */
static const PgpxOption *
find_option(const char *name)
{
	for (const PgpxOption *o = pgpx_option_table; o->name != NULL; o++)
		if (strcmp(o->name, name) == 0)
			return o;
	return NULL;
}

const PQconninfoOption *
pgpx_libpq_options(void)
{
	static PQconninfoOption *list = NULL;

	if (list == NULL)
	{
		/*
		 * PQconndefaults is not used, because it asks the operating system
		 * for the user's name and home directory, again in each session.
		 */
		list = PQconninfoParse("", NULL);
		if (list == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FDW_OUT_OF_MEMORY),
					 errmsg("out of memory"),
					 errdetail("Could not get libpq's default connection "
							   "options.")));
	}
	return list;
}

static const PQconninfoOption *
find_libpq_option(const char *name)
{
	const PQconninfoOption *o;

	for (o = pgpx_libpq_options(); o->keyword != NULL; o++)
		if (strcmp(o->keyword, name) == 0)
			return o;
	return NULL;
}

/*
 * Return the reason why an option is rejected for all users, or NULL.  libpq:
 * the entry of the option in libpq's list, NULL if there is none.
 */
static const char *
refusal_reason(const char *name, const PQconninfoOption *libpq)
{
	for (int i = 0; i < lengthof(refused); i++)
	{
		size_t		len = strlen(refused[i].name);

		if (strcmp(name, refused[i].name) == 0 ||
			(refused[i].name[len - 1] == '_' &&
			 strncmp(name, refused[i].name, len) == 0))
			return refused[i].reason;
	}
	if (libpq == NULL)
		return NULL;
	if (strchr(libpq->dispchar, 'D') != NULL)
		return "Debug options of libpq cannot be set here.";
	if (libpqsrv_is_valid_proxy_option != NULL &&
		!libpqsrv_is_valid_proxy_option(name))
		return "This server does not allow the option in connections that it "
			   "makes itself.";
	return NULL;
}

bool
pgpx_option_is_in_place(const char *name)
{
	const PgpxOption *option = find_option(name);

	if (option != NULL)
		return (option->where & PGPX_IN_PLACE) != 0;
	return find_libpq_option(name) == NULL &&
		strcmp(name, "use_scram_passthrough") != 0;
}

int
pgpx_option_flags(const char *name)
{
	const PgpxOption *option = find_option(name);
	const PQconninfoOption *libpq;

	if (option != NULL && (option->where & PGPX_LIBPQ) == 0)
		return option->where;
	libpq = find_libpq_option(name);
	if (libpq == NULL || refusal_reason(name, libpq) != NULL)
		return 0;
	if (option != NULL)
		return option->where;
	return PGPX_LIBPQ | PGPX_SUPERUSER |
		(strchr(libpq->dispchar, '*') != NULL ?
		 PGPX_ON_MAPPING : PGPX_ON_SERVER);
}

bool
pgpx_option_is_allowed(const char *name, bool as_superuser,
					   bool in_mapping)
{
	int			flags = pgpx_option_flags(name);

	return (flags & PGPX_LIBPQ) &&
		(flags & (in_mapping ? PGPX_ON_MAPPING : PGPX_ON_SERVER)) &&
		(as_superuser || !(flags & PGPX_SUPERUSER));
}

bool
pgpx_option_is_libpq(const char *name)
{
	return find_libpq_option(name) != NULL;
}

#define DISTANCE_MAX 4			/* edits; and at most half of the name */

/*
 * Return the closest name that the current user can set, NULL if none is close.
 * where: PGPX_ON_SERVER, _MAPPING, _TABLE or _COLUMN.
 */
static const char *
find_closest_name(const char *name, int where)
{
	char	   *lower = pstrdup(name);
	int			len = strlen(name);
	int			max = Min(len / 2, DISTANCE_MAX);
	const char *closest = NULL;

	/* a quoted name can have capitals, valid names are in lower case */
	for (char *p = lower; *p != '\0'; p++)
		*p = pg_ascii_tolower((unsigned char) *p);
	for (const PgpxOption *o = pgpx_option_table; o->name != NULL; o++)
	{
		int			flags = pgpx_option_flags(o->name);
		int			distance;

		if (!(flags & where) || ((flags & PGPX_SUPERUSER) && !superuser()))
			continue;
		distance = varstr_levenshtein_less_equal(lower, len, o->name,
												 strlen(o->name), 1, 1, 1, max,
												 true);
		if (distance > max)
			continue;
		closest = o->name;
		max = distance - 1;		/* the next one must be closer */
	}
	return closest;
}

#define MS_PER_DAY	INT64CONST(86400000)

PG_FUNCTION_INFO_V1(pgpx_fdw_validator);

/*
 * Parse a duration, which must have a unit.  A number without a unit would be
 * ambiguous: seconds to users of libpq, milliseconds to users of GUCs.  Only 0
 * and -1 need no unit.
 */
static bool
parse_duration(const PgpxOption *option, const char *value, int64 *result)
{
	char	   *rest;
	double		number = strtod(value, &rest);
	double		ms;

	if (rest != value && rest[strspn(rest, " \t\n\r\f\v")] == '\0')
	{
		*result = number == 0 ? 0 : -1;
		return number == *result && *result >= option->min;
	}
	if (!parse_real(value, &number, GUC_UNIT_MS, NULL))
		return false;
	ms = rint(number);
	if (number > 0 && ms < 1)
		ms = 1;					/* because 0 has a special meaning */
	if (number < 0 || ms < option->min || ms > option->max)
		return false;
	*result = (int64) ms;
	return true;
}

/*
 * Parse a value; false if it is not valid for the option.  A word or boolean of
 * an option of libpq or of foreign tables must be one that libpq or postgres_fdw
 * accepts, because they parse it again.
 */
static bool
parse_value(const PgpxOption *option, const char *value, int64 *result)
{
	int			others = PGPX_LIBPQ | PGPX_OF_TABLES;
	bool		of_others = (option->where & others) != 0;
	List	   *names = NIL;
	int			i;
	bool		b;
	double		d;

	*result = 0;
	switch (option->kind)
	{
		case PGPX_KIND_INT:
			if (!parse_int(value, &i, 0, NULL))
				return false;
			*result = i;
			return i >= option->min && i <= option->max;
		case PGPX_KIND_DURATION:
			return parse_duration(option, value, result);
		case PGPX_KIND_WORD:
			for (i = 0; option->words[i] != NULL; i++)
			{
				*result = i;
				if (strcmp(option->words[i], value) == 0 ||
					(!of_others &&
					 pg_strcasecmp(option->words[i], value) == 0))
					return true;
			}
			return false;
		case PGPX_KIND_BOOL:
		case PGPX_KIND_AGE:
			if (!parse_bool(value, &b))
				return option->kind == PGPX_KIND_AGE &&
					parse_duration(option, value, result);
			*result = !b ? 0 : option->kind == PGPX_KIND_AGE ? PG_INT64_MAX :
															   1;
			return !of_others || pg_strcasecmp(value, b ? "true" : "false") == 0 ||
				pg_strcasecmp(value, b ? "on" : "off") == 0;
		case PGPX_KIND_TEXT:
			return (int64) strlen(value) <= option->max &&
				(option->min == 0 ||
				 value[strspn(value, "; \t\n\r\f\v")] != '\0');
		case PGPX_KIND_COST:
			return parse_real(value, &d, 0, NULL) && d >= 0;
		case PGPX_KIND_NAMES:
			return SplitIdentifierString(pstrdup(value), ',', &names);
	}
	return false;
}

/* Return a sentence that states the valid values of an option. */
static const char *
describe_values(const PgpxOption *option)
{
	StringInfoData buf;

	switch (option->kind)
	{
		case PGPX_KIND_INT:
			return psprintf("Valid values are from %lld to %lld, without a unit.",
							(long long) option->min, (long long) option->max);
		case PGPX_KIND_DURATION:
			return psprintf("Valid values are %sfrom %s to %lldd, with a unit: \"us\", \"ms\", \"s\", \"min\", \"h\", or \"d\".",
							option->min < 0 ? "-1 and " : "",
							option->min > 0 ? "1ms" : "0",
							(long long) (option->max / MS_PER_DAY));
		case PGPX_KIND_WORD:
			initStringInfo(&buf);
			for (int i = 0; option->words[i] != NULL; i++)
				appendStringInfo(&buf, "%s%s", i > 0 ? ", " : "",
								 option->words[i]);
			return psprintf("Valid values are: %s.", buf.data);
		case PGPX_KIND_BOOL:
			return (option->where & PGPX_IN_PLACE) != 0 ?
				"Valid values are: true, false, on, off." :
				"Valid values are: true, false.";
		case PGPX_KIND_AGE:
			return psprintf("Valid values are: true, false, on, off, or a maximum age from 1ms to %lldd, with a unit: \"us\", \"ms\", \"s\", \"min\", \"h\", or \"d\".",
							(long long) (option->max / MS_PER_DAY));
		case PGPX_KIND_COST:
			return "Valid values are numbers from 0.";
		case PGPX_KIND_NAMES:
			return "Valid values are lists of names.";
		case PGPX_KIND_TEXT:
			return psprintf("Valid values have at most %lld bytes%s.",
							(long long) option->max,
							option->min > 0 ? " and are not empty" : "");
	}
	return "";
}

/* The error does not show texts, because they are long and can be secret. */
int64
pgpx_option_parse(const char *name, const char *value)
{
	const PgpxOption *option = find_option(name);
	int64		result = 0;

	if (option != NULL && !parse_value(option, value, &result))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 option->kind == PGPX_KIND_TEXT ?
				 errmsg("invalid value for option \"%s\"", name) :
				 errmsg("invalid value for option \"%s\": \"%s\"", name, value),
				 errhint("%s", describe_values(option))));
	return result;
}

static void
store_value(PgpxPoolOptions *opts, const PgpxOption *option, int64 value)
{
	char	   *field = (char *) opts + option->offset;

	if (option->kind == PGPX_KIND_DURATION)
		*(int64 *) field = value;
	else
		*(int *) field = (int) value;
}

/*
 * Raise HV00D.  where: as for find_closest_name; 0: a kind without any options.
 */
pg_noreturn static void
refuse_name(const char *name, int where)
{
	const char *reason = refusal_reason(name, find_libpq_option(name));
	int			flags = pgpx_option_flags(name);
	const char *closest = find_closest_name(name, where);

	ereport(ERROR,
			(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
			 errmsg("invalid option \"%s\"", name),
			 reason != NULL ? errdetail("%s", reason) : 0,
			 where == 0 ?
			 errhint("Only servers, user mappings, foreign tables and their columns have options here.") :
			 reason != NULL ? 0 :
			 (flags & PGPX_ON_SERVER) ?
			 errhint("This is an option of the server.") :
			 (flags & PGPX_ON_MAPPING) ?
			 errhint("This is an option of the user mapping.") :
			 (flags & PGPX_ON_TABLE) ?
			 errhint("This is an option of the foreign table.") :
			 (flags & PGPX_ON_COLUMN) ?
			 errhint("This is an option of a column of the foreign table.") :
			 closest == NULL ? 0 :
			 errhint("Perhaps you meant the option \"%s\".", closest)));
}

/* Check one option for the current user. */
static void
check_option(const char *name, const char *value, int where)
{
	int			flags = pgpx_option_flags(name);
	int64		result;

	if ((flags & where) == 0)
		refuse_name(name, where);
	if ((flags & PGPX_SUPERUSER) && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to set option \"%s\"", name),
				 errdetail("Only superusers can set this option, or change a "
						   "server or user mapping that has it.")));
	result = pgpx_option_parse(name, value);
	pgpx_options_check_hosts(name, value);

	/* as in postgres_fdw, every user may set the stricter value */
	if (strcmp(name, "password_required") == 0 && result == 0 && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to set option \"%s\" to false",
						name),
				 errdetail("Only superusers can set this option to false, or "
						   "change a user mapping where it is false.")));
}

void
pgpx_options_check_hosts(const char *name, const char *value)
{
	int			n = pgpx_list_length(value);

	if (n > PGPX_MAX_HOSTS &&
		(strcmp(name, "host") == 0 || strcmp(name, "hostaddr") == 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too many hosts in option \"%s\"", name),
				 errdetail("The list has %d hosts, and can have at most %d.", n,
						   PGPX_MAX_HOSTS),
				 errhint("Specify fewer hosts, or one host name that resolves to all of the addresses.")));
}

DefElem *
pgpx_options_find(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, name) == 0)
			return def;
	}
	return NULL;
}

void
pgpx_options_check_base(List *options)
{
	DefElem    *base_server = pgpx_options_find(options, "base_server");
	const char *base = base_server != NULL ? defGetString(base_server) : "";
	ListCell   *lc;

	if (base[0] == '\0')
		return;
	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const PgpxOption *option = find_option(def->defname);

		if (strcmp(def->defname, "use_scram_passthrough") != 0 &&
			(option != NULL ? (option->where & PGPX_LIBPQ) == 0 :
			 !pgpx_option_is_libpq(def->defname)))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
				 errmsg("option \"%s\" cannot be set beside option \"base_server\"",
						def->defname),
				 errdetail("Connection options and user mappings are those of "
						   "the base server \"%s\".",
						   base),
				 errhint("Set it on server \"%s\", or drop one of the two "
						 "options.",
						 base)));
	}
}

/* Raise 22023 if the value of one option exceeds that of another one. */
static void
check_order(List *list, const char *low_name, const char *high_name,
			const char *unit)
{
	DefElem    *low_option = pgpx_options_find(list, low_name);
	DefElem    *high_option = pgpx_options_find(list, high_name);
	int64		low;
	int64		high;

	if (low_option == NULL || high_option == NULL)
		return;
	low = pgpx_option_parse(low_name, defGetString(low_option));
	high = pgpx_option_parse(high_name, defGetString(high_option));
	if (low > high)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" exceeds option \"%s\"",
						low_name, high_name),
				 errdetail("\"%s\" is %lld%s, \"%s\" is %lld%s.",
						   low_name, (long long) low, unit,
						   high_name, (long long) high, unit)));
}

void
pgpx_options_check_mapping(List *options)
{
	DefElem    *command = pgpx_options_find(options, "use_password_command");
	DefElem    *user = pgpx_options_find(options, "user");
	bool		uses = false;

	if (command == NULL || !parse_bool(defGetString(command), &uses) || !uses ||
		(user != NULL && defGetString(user)[0] != '\0'))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FDW_DYNAMIC_PARAMETER_VALUE_NEEDED),
			 errmsg("option \"use_password_command\" requires option \"user\""),
			 errdetail("Otherwise the password command would issue a password for any remote role that has the name of a local role."),
			 errhint("Set option \"user\" of the user mapping to the name of the remote role.")));
}

/*
 * pgpx_fdw_validator
 *		The validator of pgpool_fdw: (options text[], catalog oid).
 *
 * The server passes the complete new set of options, on ALTER as well.
 */
Datum
pgpx_fdw_validator(PG_FUNCTION_ARGS)
{
	List	   *list = untransformRelOptions(PG_GETARG_DATUM(0));
	Oid			catalog = PG_GETARG_OID(1);
	int			where = 0;
	ListCell   *lc;

	if (catalog == ForeignServerRelationId)
		where = PGPX_ON_SERVER;
	else if (catalog == UserMappingRelationId)
		where = PGPX_ON_MAPPING;
	else if (catalog == ForeignTableRelationId)
		where = PGPX_ON_TABLE;
	else if (catalog == AttributeRelationId)
		where = PGPX_ON_COLUMN;

	foreach(lc, list)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		check_option(def->defname, defGetString(def), where);
	}
	pgpx_options_check_base(list);
	check_order(list, "retry_min", "retry_max", " ms");
	check_order(list, "min_size", "pool_size", "");
	check_order(list, "min_idle", "pool_size", "");
	if (where == PGPX_ON_MAPPING)
		pgpx_options_check_mapping(list);
	PG_RETURN_VOID();
}

void
pgpx_options_defaults(PgpxPoolOptions *opts)
{
	memset(opts, 0, sizeof(*opts));
	for (const PgpxOption *o = pgpx_option_table; o->name != NULL; o++)
		if (o->offset >= 0)
			store_value(opts, o, o->value);
	pgpx_options_follow(opts);
}

/* The bit of an option in PgpxPoolOptions.is_set. */
#define SET_BIT(option) (UINT64CONST(1) << ((option) - pgpx_option_table))

void
pgpx_options_follow(PgpxPoolOptions *opts)
{
	for (const PgpxOption *o = pgpx_option_table; o->setting != NULL; o++)
		if ((opts->is_set & SET_BIT(o)) == 0)
			store_value(opts, o, *o->setting);
}

bool
pgpx_options_apply(PgpxPoolOptions *opts, const char **start_commands,
				   const char **reset_command, const char *name,
				   const char *value)
{
	const PgpxOption *option = find_option(name);
	int64		number;

	if (option == NULL)
		return pgpx_option_is_libpq(name);
	if (!parse_value(option, value, &number))
		return false;
	if (option->offset >= 0)
		store_value(opts, option, number);
	if (option->setting != NULL)
		opts->is_set |= SET_BIT(option);
	if (strcmp(name, "start_commands") == 0)
		*start_commands = value;
	else if (strcmp(name, "reset_command") == 0)
		*reset_command = value;
	return true;
}
