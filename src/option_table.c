/*-------------------------------------------------------------------------
 *
 * option_table.c
 *	  What every option is, who may set it and where.
 *
 * An option of libpq that is not in the table may be set by superusers only, on
 * the server (a secret: in the user mapping); so an option that a newer libpq
 * brings is safe by default.  Rules:
 *
 * - Ranges are never narrowed and names never removed within a major line, so
 *	 that old dumps load.
 * - Nothing here needs shared memory or a preloaded library.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "option_table.h"
#include "options.h"

#define MAX_POOL	262143		/* as many as a server can have backends */
#define MAX_TEXT	8192		/* these travel in one message */
#define SECOND		INT64CONST(1000)
#define MINUTE		(60 * SECOND)
#define MAX_TIME	(3650 * 24 * 60 * MINUTE)

static const char *const strategy_words[] = {"lifo", "fifo", NULL};
static const char *const reset_words[] =
	{"always", "on_transfer", "never", NULL};
static const char *const on_unavailable_words[] = {"fail", "wait", NULL};
static const char *const notices_words[] = {"forward", "log", "ignore", NULL};
static const char *const switch_words[] = {"0", "1", NULL};
static const char *const sslmode_words[] =
	{"disable", "allow", "prefer", "require", "verify-ca", "verify-full", NULL};
static const char *const channel_binding_words[] =
	{"disable", "prefer", "require", NULL};
static const char *const gssencmode_words[] = {"disable", NULL};
static const char *const protocol_words[] =
	{"TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3", NULL};
static const char *const session_words[] =
	{"any", "read-write", "read-only", "primary", "standby", "prefer-standby",
	 NULL};
static const char *const load_balance_words[] = {"disable", "random", NULL};

/*
 * The numbers of PgpxPoolOptions are read from shared memory whenever they are
 * needed, so a change of them takes effect in place.  The other options of the pool
 * replace its connections: start_commands and reset_command have made the state
 * that the sessions of free connections are in, base_server says where they lead.
 */
#define POOL_OPTION(name, kind, min, max, value, words) \
	{#name, kind, PGPX_ON_SERVER | PGPX_IN_PLACE, \
	offsetof(PgpxPoolOptions, name), min, max, value, words}
#define POOL_INT(name, min, max, value) \
	POOL_OPTION(name, PGPX_KIND_INT, min, max, value, NULL)
#define POOL_TIME(name, min, value) \
	POOL_OPTION(name, PGPX_KIND_DURATION, min, MAX_TIME, value, NULL)
#define POOL_WORD(name, value) \
	POOL_OPTION(name, PGPX_KIND_WORD, 0, 0, value, name##_words)
#define OTHER_TEXT(name, where, min, max) \
	{name, PGPX_KIND_TEXT, where, -1, min, max, 0}
#define LIBPQ_TEXT(name, where) \
	OTHER_TEXT(name, PGPX_LIBPQ | (where), 0, PG_INT64_MAX)
#define LIBPQ_NUMBER(name, max) \
	{name, PGPX_KIND_NUMBER, PGPX_LIBPQ | PGPX_ON_SERVER, -1, 0, max, 0}
#define LIBPQ_WORD(name, words) \
	{name, PGPX_KIND_WORD, PGPX_LIBPQ | PGPX_ON_SERVER, -1, 0, 0, 0, words}

const PgpxOption pgpx_option_table[] = {
	/* the pool's */
	POOL_INT(pool_size, 1, MAX_POOL, 10),
	POOL_INT(max_overflow, 0, MAX_POOL, 0),
	POOL_TIME(overflow_ttl, 0, 5 * SECOND),
	POOL_INT(min_size, 0, MAX_POOL, 0),
	POOL_INT(max_server_connections, 0, MAX_POOL, 0),
	POOL_WORD(strategy, PGPX_STRATEGY_LIFO),
	POOL_TIME(checkout_timeout, 0, 30 * SECOND),
	POOL_INT(max_waiters, 0, MAX_POOL, 0),
	POOL_TIME(idle_timeout, 1, 10 * MINUTE),
	POOL_TIME(max_lifetime, 1, 30 * MINUTE),
	POOL_INT(max_uses, 0, PG_INT32_MAX, 0),
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
	POOL_WORD(notices, PGPX_NOTICES_FORWARD),
	OTHER_TEXT("base_server", PGPX_ON_SERVER, 1, NAMEDATALEN - 1),

	/* libpq's, for everybody who may create a server */
	LIBPQ_TEXT("host", PGPX_ON_SERVER),
	LIBPQ_TEXT("hostaddr", PGPX_ON_SERVER),
	{"port", PGPX_KIND_PORTS, PGPX_LIBPQ | PGPX_ON_SERVER, -1, 1, 65535},
	LIBPQ_TEXT("dbname", PGPX_ON_SERVER),
	LIBPQ_TEXT("application_name", PGPX_ON_SERVER),
	LIBPQ_TEXT("fallback_application_name", PGPX_ON_SERVER),
	LIBPQ_WORD("sslmode", sslmode_words),
	LIBPQ_WORD("sslsni", switch_words),
	LIBPQ_WORD("ssl_min_protocol_version", protocol_words),
	LIBPQ_WORD("ssl_max_protocol_version", protocol_words),
	LIBPQ_WORD("channel_binding", channel_binding_words),
	LIBPQ_TEXT("require_auth", PGPX_ON_SERVER),
	{"gssencmode", PGPX_KIND_WORD, PGPX_LIBPQ | PGPX_ON_SERVER, -1, 0, 0, 0,
	 gssencmode_words,
	 "A connection that GSSAPI encrypts cannot be handed over to another "
	 "process."},
	LIBPQ_WORD("target_session_attrs", session_words),
	LIBPQ_WORD("load_balance_hosts", load_balance_words),
	LIBPQ_WORD("keepalives", switch_words),
	LIBPQ_NUMBER("keepalives_idle", 32767), /* the kernel's limits */
	LIBPQ_NUMBER("keepalives_interval", 32767),
	LIBPQ_NUMBER("keepalives_count", 127),
	LIBPQ_NUMBER("tcp_user_timeout", PG_INT32_MAX),

	/* the mapping's */
	LIBPQ_TEXT("user", PGPX_ON_MAPPING),
	LIBPQ_TEXT("password", PGPX_ON_MAPPING),
	{"password_required", PGPX_KIND_BOOL, PGPX_ON_MAPPING, -1, 0, 1, 1},
	LIBPQ_TEXT("sslcert", PGPX_ON_SERVER | PGPX_ON_MAPPING | PGPX_SUPERUSER),
	LIBPQ_TEXT("sslkey", PGPX_ON_SERVER | PGPX_ON_MAPPING | PGPX_SUPERUSER),
	LIBPQ_TEXT("sslpassword", PGPX_ON_MAPPING | PGPX_SUPERUSER),
	{NULL},
};

/* Refused to all, with the reason; a name that ends in '_' is a prefix. */
static const struct
{
	const char *name;
	const char *why;
}			refused[] = {
	{"client_encoding",
	 "A pool's client encoding is always the database's encoding."},
	{"replication",
	 "A replication connection cannot be shared."},
	{"scram_",
	 "SCRAM keys belong to one session and cannot be shared by a pool."},
	{"use_scram_passthrough",
	 "SCRAM keys belong to one session and cannot be shared by a pool."},
	{"gssdelegation",
	 "Delegated credentials belong to one session and cannot be shared by a "
	 "pool."},
	{"oauth_",
	 "OAuth tokens belong to one session and cannot be shared by a pool."},
};

/* Most names differ in the first letter already: a session's first lease asks for many. */
static inline bool
same_name(const char *a, const char *b)
{
	return a[0] == b[0] && strcmp(a, b) == 0;
}

const PgpxOption *
pgpx_option_find(const char *name)
{
	for (const PgpxOption *o = pgpx_option_table; o->name != NULL; o++)
	{
		if (same_name(o->name, name))
			return o;
	}
	return NULL;
}

const PQconninfoOption *
pgpx_option_libpq(void)
{
	static PQconninfoOption *list = NULL;

	if (list == NULL)
	{
		/*
		 * Not PQconndefaults: that asks the operating system for our user's
		 * name and home, in each session anew.
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

	for (o = pgpx_option_libpq(); o->keyword != NULL; o++)
	{
		if (same_name(o->keyword, name))
			return o;
	}
	return NULL;
}

/* libpq: what libpq knows of the option, NULL if nothing. */
static const char *
refusal(const char *name, const PQconninfoOption *libpq)
{
	for (int i = 0; i < lengthof(refused); i++)
	{
		size_t		len = strlen(refused[i].name);

		if (same_name(name, refused[i].name) ||
			(refused[i].name[len - 1] == '_' &&
			 strncmp(name, refused[i].name, len) == 0))
			return refused[i].why;
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
	const PgpxOption *option = pgpx_option_find(name);

	if (option != NULL)
		return (option->where & PGPX_IN_PLACE) != 0;
	return find_libpq_option(name) == NULL &&
		strcmp(name, "use_scram_passthrough") != 0;
}

const char *
pgpx_option_refusal(const char *name)
{
	return refusal(name, find_libpq_option(name));
}

int
pgpx_option_flags(const char *name)
{
	const PgpxOption *option = pgpx_option_find(name);
	const PQconninfoOption *libpq;

	if (option != NULL && (option->where & PGPX_LIBPQ) == 0)
		return option->where;
	libpq = find_libpq_option(name);
	if (libpq == NULL || refusal(name, libpq) != NULL)
		return 0;
	if (option != NULL)
		return option->where;
	return PGPX_LIBPQ | PGPX_SUPERUSER |
		(strchr(libpq->dispchar, '*') != NULL ?
		 PGPX_ON_MAPPING : PGPX_ON_SERVER);
}

bool
pgpx_options_libpq_allowed(const char *name, bool as_superuser,
						   bool in_mapping)
{
	int			flags = pgpx_option_flags(name);

	return (flags & PGPX_LIBPQ) &&
		(flags & (in_mapping ? PGPX_ON_MAPPING : PGPX_ON_SERVER)) &&
		(as_superuser || !(flags & PGPX_SUPERUSER));
}

bool
pgpx_options_is_libpq(const char *name)
{
	return find_libpq_option(name) != NULL;
}
