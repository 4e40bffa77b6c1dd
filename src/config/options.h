/*-------------------------------------------------------------------------
 *
 * options.h
 *	  Options of servers and user mappings: their table, the reader, the
 *	  validator.
 *
 * One table in options.c serves the validator of pgpool_fdw, the reader of
 * resolved options and the list of valid names in error texts.
 *
 * The table of options behind options.h, for options.c alone.
 *
 * The hint for an option name that is not valid.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_OPTIONS_H
#define PGPX_OPTIONS_H

#include "base/compat.h"

#include "libpq-fe.h"
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

typedef enum PgpxOptionKind
{
	PGPX_KIND_INT,				/* as an integer GUC */
	PGPX_KIND_DURATION,			/* as a GUC with time units, but one is required */
	PGPX_KIND_WORD,				/* one of "words" */
	PGPX_KIND_BOOL,
	PGPX_KIND_TEXT,				/* "max" bytes; if "min" is 1, not blank */
	PGPX_KIND_NUMBER,			/* libpq's integer: decimal, no unit */
	PGPX_KIND_PORTS				/* libpq's list of port numbers */
} PgpxOptionKind;

/* Where an option may stand, and whose it is. */
#define PGPX_ON_SERVER	0x01
#define PGPX_ON_MAPPING 0x02
#define PGPX_SUPERUSER	0x04	/* for superusers only */
#define PGPX_LIBPQ		0x08	/* handed to libpq as it is */
#define PGPX_IN_PLACE	0x10	/* a change keeps the pool's connections */

typedef struct PgpxOption
{
	const char *name;			/* NULL: end of the table */
	PgpxOptionKind kind;
	int			where;			/* the flags above */
	int			offset;			/* in PgpxPoolOptions; -1: not there */
	int64		min;			/* durations: ms */
	int64		max;
	int64		value;			/* the default */
	const char *const *words;	/* in the order of their C enum */
	const char *hint;			/* more about its values; NULL: nothing */
} PgpxOption;

extern const PgpxOption pgpx_option_table[];
extern const PgpxOption *pgpx_option_find(const char *name);

/*
 * pgpx_option_flags
 *		Where an option may stand; 0 if there is none of this name, or if it
 *		is refused to all.
 */
extern int	pgpx_option_flags(const char *name);

/*
 * pgpx_option_is_in_place
 *		Does a change of this option of a server leave its connections as they are?
 *
 * True for the pool's own numbers, and for options of other wrappers that mean
 * nothing to a pool.  False for what decides where a connection leads to, as whom,
 * and in which state its session is.
 */
extern bool pgpx_option_is_in_place(const char *name);

/*
 * pgpx_option_refusal
 *		Why nobody may set an option, as a sentence; NULL if that is not so.
 */
extern const char *pgpx_option_refusal(const char *name);

/*
 * pgpx_option_libpq
 *		libpq's own list, ended by a NULL keyword.
 *
 * Fetched once in a process.  It has names and no values.
 */
extern const PQconninfoOption *pgpx_option_libpq(void);

/*
 * pgpx_option_hint
 *		A sentence that names the valid option closest to a mistyped one, or all valid
 *		ones if none is close.
 *
 * place: PGPX_ON_SERVER or PGPX_ON_MAPPING.  Valid is what the current user can set
 * there.
 */
extern char *pgpx_option_hint(const char *name, int slot);

#endif							/* PGPX_OPTIONS_H */
