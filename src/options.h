/*-------------------------------------------------------------------------
 *
 * options.h
 *	  Options of servers and user mappings: names, types, ranges, defaults.
 *
 * One table in option_table.c serves the validator of pgpool_fdw, the reader of
 * resolved options and the list of valid names in error texts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_OPTIONS_H
#define PGPX_OPTIONS_H

#include "compat.h"

#include "nodes/pg_list.h"

typedef enum PgpxStrategy
{
	PGPX_STRATEGY_LIFO,
	PGPX_STRATEGY_FIFO
} PgpxStrategy;

typedef enum PgpxReset
{
	PGPX_RESET_ALWAYS,
	PGPX_RESET_ON_TRANSFER,
	PGPX_RESET_NEVER
} PgpxReset;

typedef enum PgpxOnUnavailable
{
	PGPX_UNAVAILABLE_FAIL,
	PGPX_UNAVAILABLE_WAIT
} PgpxOnUnavailable;

typedef enum PgpxNotices
{
	PGPX_NOTICES_FORWARD,
	PGPX_NOTICES_LOG,
	PGPX_NOTICES_IGNORE
} PgpxNotices;

/*
 * The pool's numbers, as they stand in shared memory.  Durations are
 * milliseconds (int64).  No text, no secret, no pointer.
 */
typedef struct PgpxPoolOptions
{
	int			pool_size;
	int			max_overflow;
	int64		overflow_ttl;
	int			min_size;
	int			max_server_connections; /* 0: none */
	int			strategy;		/* PgpxStrategy */
	int64		checkout_timeout;	/* 0: for ever */
	int			max_waiters;	/* 0: no limit */
	int64		idle_timeout;
	int64		max_lifetime;
	int			max_uses;		/* 0: no limit */
	int64		test_period;	/* 0: every time; -1: never */
	int64		connect_timeout;
	int64		retry_min;
	int64		retry_max;
	int			on_unavailable; /* PgpxOnUnavailable */
	int			reset;			/* PgpxReset */
	int64		operation_timeout;
	int64		lease_timeout;	/* 0: off */
	int64		leak_warning;	/* 0: off */
	int			notices;		/* PgpxNotices */

	/* not set: they follow the settings */
	bool		default_pool_size;
	bool		default_max_waiters;
	bool		default_checkout_timeout;
} PgpxPoolOptions;

/* Elements of a list as libpq's "host" is one: separated by commas, maybe empty. */
static inline int
pgpx_options_count(const char *list)
{
	int			n = 1;

	for (; *list != '\0'; list++)
		if (*list == ',')
			n++;
	return n;
}

/*
 * pgpx_options_defaults
 *		Fill in the defaults: the GUC's where there is one, else the table's.
 */
extern void pgpx_options_defaults(PgpxPoolOptions *opts);

/* What follows a setting becomes what the setting says now. */
extern void pgpx_options_follow(PgpxPoolOptions *opts);

/*
 * pgpx_options_apply
 *		Apply one pool option by name to *opts, or to *start_commands and
 *		*reset_command (pointers into value, not copied).
 *
 * Returns false when the name is not a pool option (it is libpq's, a mapping's,
 * or base_server).  The value has passed the validator at DDL time; one that
 * does not parse raises 22023 all the same.
 */
extern bool pgpx_options_apply(PgpxPoolOptions *opts,
							   const char **start_commands,
							   const char **reset_command,
							   const char *name, const char *value);

/*
 * pgpx_options_is_valid
 *		Would pgpx_options_apply take this option, or does the name belong to libpq,
 *		a mapping or base_server, without an error?  Never raises.
 */
extern bool pgpx_options_is_valid(const char *name, const char *value);

/*
 * pgpx_options_libpq_allowed
 *		May a server or mapping pass this libpq option on?
 *
 * as_superuser: the one who set it (or owns the server) is a superuser.
 * in_mapping: it stands in a user mapping.  Debug options, client_encoding,
 * replication and options that an administrator of this server has not vetted
 * (libpqsrv_is_valid_proxy_option, where the server has it) are refused to all.
 */
extern bool pgpx_options_libpq_allowed(const char *name, bool as_superuser,
									   bool in_mapping);

/*
 * pgpx_options_check_base
 *		Refuse connection options beside base_server: they would be ignored.
 *
 * options: all options of a server of pgpool_fdw (DefElem).  Raises HV00D.
 */
extern void pgpx_options_check_base(List *options);

/*
 * pgpx_options_check_hosts
 *		Refuse more hosts than PGPX_MAX_HOSTS in a list of libpq's.
 *
 * libpq goes through all of them in one call, if it is refused by each at once.
 * Raises 22023.
 */
#define PGPX_MAX_HOSTS 64
extern void pgpx_options_check_hosts(const char *name, const char *value);

/* True if libpq knows the option, whether or not it is allowed here. */
extern bool pgpx_options_is_libpq(const char *name);

#endif							/* PGPX_OPTIONS_H */
