/*-------------------------------------------------------------------------
 *
 * options.h
 *	  Options of servers and user mappings: their table, the reader, the
 *	  validator.
 *
 * One table in options.c serves the validator of pgpool_fdw, the reader of
 * resolved options, and the hints that name valid options.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_OPTIONS_H
#define PGPX_OPTIONS_H

#include "base/compat.h"

#include "libpq-fe.h"
#include "nodes/pg_list.h"

typedef enum PgpxReset
{
	PGPX_RESET_ALWAYS,
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
 * The numeric options of a pool, as stored in shared memory.  Durations are in
 * milliseconds (int64).  The struct has no texts, secrets or pointers.
 */
typedef struct PgpxPoolOptions
{
	int			pool_size;
	int			max_overflow;
	int64		overflow_ttl;
	int			min_size;
	int			min_idle;
	int			max_server_connections; /* 0: no limit */
	int64		checkout_timeout;	/* 0: no limit */
	int			max_waiters;	/* 0: no limit */
	int64		idle_timeout;
	int64		max_lifetime;
	int64		test_period;	/* 0: at each checkout; -1: never */
	int64		connect_timeout;
	int64		retry_min;
	int64		retry_max;
	int			on_unavailable; /* PgpxOnUnavailable */
	int			reset;			/* PgpxReset */
	int64		operation_timeout;
	int64		lease_timeout;	/* 0: off */
	int64		leak_warning;	/* 0: off */
	int64		notice_after;	/* 0: off */
	int			notices;		/* PgpxNotices */
	int			two_phase_commit;	/* 1: of foreign tables, see
									 * fdw/remote_commit.c */

	uint64		is_set;			/* bits of the options that are set, and do not
								 * follow their GUC */
} PgpxPoolOptions;

/* Return the number of elements of a comma-separated list, empty ones too. */
static inline int
pgpx_list_length(const char *list)
{
	int			n = 1;

	for (; *list != '\0'; list++)
		if (*list == ',')
			n++;
	return n;
}

/*
 * pgpx_options_defaults
 *		Set all options to their defaults: the GUC's where one exists, else the
 *		table's.
 */
extern void pgpx_options_defaults(PgpxPoolOptions *opts);

/* Set the options that follow a GUC to its current value. */
extern void pgpx_options_follow(PgpxPoolOptions *opts);

/*
 * pgpx_options_apply
 *		Store the value of one pool option in *opts, *start_commands or
 *		*reset_command.
 *
 * *start_commands and *reset_command are set to value, which is not copied.
 * Other options, such as those of libpq and of foreign tables, are only checked.
 * Return false if the name is unknown or the value is invalid.  The values of
 * options of libpq that are not in the table are not checked.
 */
extern bool pgpx_options_apply(PgpxPoolOptions *opts,
							   const char **start_commands,
							   const char **reset_command,
							   const char *name, const char *value);

/*
 * Return the number that the value of an option in the table means, 0 for a
 * text or an option that is not in the table.  Raise 22023 if the value is
 * invalid.
 */
extern int64 pgpx_option_parse(const char *name, const char *value);

/*
 * pgpx_option_is_allowed
 *		Return whether a server or mapping may set this option of libpq.
 *
 * as_superuser: the user who set it, or the owner of the server, is a
 * superuser.  in_mapping: the option is set in a user mapping.  Debug options,
 * client_encoding, replication and the other names in the table "refused" are
 * rejected for all users, and so are options that this server does not allow in
 * connections of its own (libpqsrv_is_valid_proxy_option, where it exists).
 */
extern bool pgpx_option_is_allowed(const char *name, bool as_superuser,
								   bool in_mapping);

/* Find an option in a list of DefElems.  Return NULL if it is not set. */
extern DefElem *pgpx_options_find(List *options, const char *name);

/*
 * pgpx_options_check_base
 *		Raise HV00D for a connection option on a server that has base_server,
 *		because the option would be ignored.
 *
 * options: all options of a server of pgpool_fdw, as DefElems.
 */
extern void pgpx_options_check_base(List *options);

/*
 * pgpx_options_check_mapping
 *		Raise HV002 for a user mapping with use_password_command but without
 *		option "user".
 *
 * The name of the local role would be the remote user name, and a role with
 * CREATEROLE can create or rename local roles.
 *
 * options: all options of a user mapping, as DefElems.
 */
extern void pgpx_options_check_mapping(List *options);

/*
 * pgpx_options_check_hosts
 *		Raise 22023 if "host" or "hostaddr" has more than PGPX_MAX_HOSTS hosts.
 *
 * libpq tries all hosts within one call if each rejects the connection at once,
 * so the number of hosts bounds the time of that call.  Other options are
 * ignored.
 */
#define PGPX_MAX_HOSTS 64
extern void pgpx_options_check_hosts(const char *name, const char *value);

/* Return whether libpq has this option, whether it is allowed here or not. */
extern bool pgpx_option_is_libpq(const char *name);

typedef enum PgpxOptionKind
{
	PGPX_KIND_INT,				/* as an integer GUC */
	PGPX_KIND_DURATION,			/* as a GUC in ms, but the unit is required */
	PGPX_KIND_WORD,				/* one of "words" */
	PGPX_KIND_BOOL,
	PGPX_KIND_AGE,				/* a boolean or a duration; INT64_MAX: true */
	PGPX_KIND_TEXT,				/* up to "max" bytes; not blank if "min" > 0 */
	PGPX_KIND_COST,				/* a number that is not negative */
	PGPX_KIND_NAMES				/* a list of identifiers */
} PgpxOptionKind;

/* Where an option may be set, by whom, and for what. */
#define PGPX_ON_SERVER	0x01
#define PGPX_ON_MAPPING 0x02
#define PGPX_SUPERUSER	0x04	/* for superusers only */
#define PGPX_LIBPQ		0x08	/* passed to libpq unchanged */
#define PGPX_IN_PLACE	0x10	/* a change keeps the pool's connections */
#define PGPX_ON_TABLE	0x20
#define PGPX_ON_COLUMN	0x40
#define PGPX_OF_TABLES	0x80	/* of foreign tables; the pool ignores it */

typedef struct PgpxOption
{
	const char *name;			/* NULL: end of the table */
	PgpxOptionKind kind;
	int			where;			/* the flags above */
	int			offset;			/* in PgpxPoolOptions; -1: not there */
	int64		min;			/* durations: ms */
	int64		max;
	int64		value;			/* the default */
	const char *const *words;	/* valid words, in the order of the C enum */
	const int  *setting;		/* the GUC that is the default; NULL: none */
} PgpxOption;

extern const PgpxOption pgpx_option_table[];

/*
 * pgpx_option_flags
 *		Return the flags of an option: where it may be set, and by whom.
 *
 * Return 0 if the option is unknown or is rejected for all users.
 */
extern int	pgpx_option_flags(const char *name);

/*
 * pgpx_option_is_in_place
 *		Return whether a change of this server option keeps the connections.
 *
 * True for the numeric options of the pool, and for options of other wrappers
 * that have no meaning for a pool.  False for options that determine the remote
 * server, the remote user, or the state of the remote session.
 */
extern bool pgpx_option_is_in_place(const char *name);

/*
 * pgpx_libpq_options
 *		Return the list of libpq's options, ended by a NULL keyword.
 *
 * The list is fetched once per process.  It has the names, but no values.
 * Raise HV001 if memory is exhausted.
 */
extern const PQconninfoOption *pgpx_libpq_options(void);

#endif							/* PGPX_OPTIONS_H */
