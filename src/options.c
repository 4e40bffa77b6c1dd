/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Reads and checks the options of servers and user mappings.
 *
 * The validator of pgpool_fdw is here, and what target_read.c applies.  Rules:
 *
 * - Nothing here needs shared memory: the validator works in a server that has
 *	 not preloaded the library.
 * - No error shows a secret: texts are never printed.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include <ctype.h>
#include <math.h>

#include "access/reloptions.h"
#include "catalog/pg_foreign_table.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "guc.h"
#include "option_hint.h"
#include "option_table.h"
#include "options.h"

#define MS_PER_DAY	INT64CONST(86400000)

PG_FUNCTION_INFO_V1(pgpx_fdw_validator);

/* As libpq reads integers: decimal, blanks around it, no unit. */
static bool
parse_number(const char *value, const char *end, int64 min, int64 max,
			 int64 *result)
{
	char	   *rest;
	long		n;

	errno = 0;
	n = strtol(value, &rest, 10);
	if (rest == value || errno != 0)
		return false;
	while (rest < end && isspace((unsigned char) *rest))
		rest++;
	*result = n;
	return rest == end && n >= min && n <= max;
}

/* As libpq reads "port": one for each host, an empty one is the default. */
static bool
parse_ports(const PgpxOption *option, const char *value, int64 *result)
{
	for (;;)
	{
		const char *end = value + strcspn(value, ",");

		if (end > value &&
			!parse_number(value, end, option->min, option->max, result))
			return false;
		if (*end == '\0')
			return true;
		value = end + 1;
	}
}

/*
 * A time has a unit.  A bare number would be seconds to users of libpq, and
 * milliseconds to users of settings; only those that mean no time have none.
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
		ms = 1;					/* 0 has a meaning of its own */
	if (number < 0 || ms < option->min || ms > option->max)
		return false;
	*result = (int64) ms;
	return true;
}

/* Read a value; false if it is not one of the option's. */
static bool
parse_value(const PgpxOption *option, const char *value, int64 *result)
{
	int			i;
	bool		b;

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
					((option->where & PGPX_LIBPQ) == 0 &&
					 pg_strcasecmp(option->words[i], value) == 0))
					return true;
			}
			return false;
		case PGPX_KIND_BOOL:
			if (!parse_bool(value, &b))
				return false;
			*result = b;
			return true;
		case PGPX_KIND_TEXT:
			*result = 0;
			return (int64) strlen(value) <= option->max &&
				(option->min == 0 ||
				 value[strspn(value, "; \t\n\r\f\v")] != '\0');
		case PGPX_KIND_NUMBER:
			return parse_number(value, value + strlen(value),
								option->min, option->max, result);
		case PGPX_KIND_PORTS:
			return parse_ports(option, value, result);
	}
	return false;
}

/* The values that an option can have, as a sentence. */
static char *
valid_values(const PgpxOption *option)
{
	StringInfoData buf;

	initStringInfo(&buf);
	if (option->hint != NULL)
		appendStringInfo(&buf, "%s ", option->hint);
	switch (option->kind)
	{
		case PGPX_KIND_INT:
		case PGPX_KIND_NUMBER:
		case PGPX_KIND_PORTS:
			appendStringInfo(&buf,
							 "Valid values are from %lld to %lld, without a "
							 "unit.",
							 (long long) option->min, (long long) option->max);
			break;
		case PGPX_KIND_DURATION:
			appendStringInfo(&buf,
							 "Valid values are %sfrom %s to %lldd, with a unit: "
							 "\"us\", \"ms\", \"s\", \"min\", \"h\", or \"d\".",
							 option->min < 0 ? "-1 and " : "",
							 option->min > 0 ? "1ms" : "0",
							 (long long) (option->max / MS_PER_DAY));
			break;
		case PGPX_KIND_WORD:
			appendStringInfoString(&buf, "Valid values are: ");
			for (int i = 0; option->words[i] != NULL; i++)
				appendStringInfo(&buf, "%s%s", i > 0 ? ", " : "",
								 option->words[i]);
			appendStringInfoChar(&buf, '.');
			break;
		case PGPX_KIND_BOOL:
			appendStringInfoString(&buf, "Valid values are: true, false.");
			break;
		case PGPX_KIND_TEXT:
			appendStringInfo(&buf, "Valid values have at most %lld bytes%s.",
							 (long long) option->max,
							 option->min > 0 ? " and are not empty" : "");
			break;
	}
	return buf.data;
}

/* Read a value or raise 22023.  Texts are long and may be secret: not shown. */
static int64
require_value(const PgpxOption *option, const char *value)
{
	int64		result = 0;

	if (parse_value(option, value, &result))
		return result;
	if (option->kind == PGPX_KIND_TEXT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for option \"%s\"", option->name),
				 errhint("%s", valid_values(option))));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for option \"%s\": \"%s\"",
					option->name, value),
			 errhint("%s", valid_values(option))));
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

/* Raise HV00D for a name that is not valid in this place (0: nowhere). */
pg_noreturn static void
refuse_name(const char *name, int place)
{
	const char *why = pgpx_option_refusal(name);
	int			flags = pgpx_option_flags(name);

	ereport(ERROR,
			(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
			 errmsg("invalid option \"%s\"", name),
			 why != NULL ? errdetail("%s", why) : 0,
			 place == 0 ?
			 errhint("Only servers and user mappings have options here.") :
			 why != NULL ? 0 :
			 (flags & PGPX_ON_SERVER) ?
			 errhint("This is an option of the server.") :
			 (flags & PGPX_ON_MAPPING) ?
			 errhint("This is an option of the user mapping.") :
			 errhint("%s", pgpx_option_hint(name, place))));
}

/* Check one option of a server or user mapping for the current user. */
static void
check_option(const char *name, const char *value, int place)
{
	const PgpxOption *option = pgpx_option_find(name);
	int			flags = pgpx_option_flags(name);
	int64		result = 0;

	if ((flags & place) == 0)
		refuse_name(name, place);
	if ((flags & PGPX_SUPERUSER) && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to set option \"%s\"", name),
				 errdetail("Only superusers can set this option, or change a "
						   "server or user mapping that has it.")));
	if (option != NULL)
		result = require_value(option, value);
	pgpx_options_check_hosts(name, value);

	/* as in postgres_fdw: anybody may ask for the stricter rule */
	if (option != NULL && option->kind == PGPX_KIND_BOOL && result == 0 &&
		!superuser())
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
	int			n;

	if (strcmp(name, "host") != 0 && strcmp(name, "hostaddr") != 0)
		return;
	n = pgpx_options_count(value);
	if (n > PGPX_MAX_HOSTS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too many hosts in option \"%s\"", name),
				 errdetail("The list has %d hosts, and can have %d.", n,
						   PGPX_MAX_HOSTS),
				 errhint("Name fewer hosts, or one name that has all of the addresses.")));
}

/* The value of a pool's option if it is in the list. */
static bool
given(List *list, const char *name, int64 *result)
{
	ListCell   *lc;

	foreach(lc, list)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, name) == 0)
			return parse_value(pgpx_option_find(name), defGetString(def),
							   result);
	}
	return false;
}

void
pgpx_options_check_base(List *options)
{
	const char *base = NULL;
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, "base_server") == 0)
			base = defGetString(def);
	}
	if (base == NULL || base[0] == '\0')
		return;
	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);
		const PgpxOption *option = pgpx_option_find(def->defname);

		if (option != NULL ? (option->where & PGPX_LIBPQ) == 0 :
			!pgpx_options_is_libpq(def->defname))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
				 errmsg("option \"%s\" cannot be set beside option "
						"\"base_server\"",
						def->defname),
				 errdetail("Connection options and user mappings are those of "
						   "the base server \"%s\".",
						   base),
				 errhint("Set it on server \"%s\", or drop one of the two "
						 "options.",
						 base)));
	}
}

/* What must fit together is checked where all of it is given. */
static void
check_together(List *list)
{
	int64		low;
	int64		high;
	int64		overflow = 0;

	pgpx_options_check_base(list);
	if (given(list, "retry_min", &low) && given(list, "retry_max", &high) &&
		low > high)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"retry_min\" exceeds option \"retry_max\""),
				 errdetail("\"retry_min\" is %lld ms, \"retry_max\" is %lld "
						   "ms.",
						   (long long) low, (long long) high)));

	if (given(list, "min_size", &low) && given(list, "pool_size", &high))
	{
		(void) given(list, "max_overflow", &overflow);
		if (low > high + overflow)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("option \"min_size\" exceeds the size of the pool"),
					 errdetail("\"min_size\" is %lld, \"pool_size\" and "
							   "\"max_overflow\" are %lld together.",
							   (long long) low,
							   (long long) (high + overflow))));
	}
}

/*
 * pgpx_fdw_validator
 *		The validator of pgpool_fdw: (options text[], catalog oid).
 *
 * It always sees the whole new set of options, also on ALTER.
 */
Datum
pgpx_fdw_validator(PG_FUNCTION_ARGS)
{
	List	   *list = untransformRelOptions(PG_GETARG_DATUM(0));
	Oid			catalog = PG_GETARG_OID(1);
	int			place = 0;
	ListCell   *lc;

	if (catalog == ForeignServerRelationId)
		place = PGPX_ON_SERVER;
	else if (catalog == UserMappingRelationId)
		place = PGPX_ON_MAPPING;

	/*
	 * Every CREATE FOREIGN TABLE calls the validator, also one without options.
	 * Without this error the table would be created, and only reading it would
	 * fail, because the wrapper has no handler.
	 */
	else if (catalog == ForeignTableRelationId)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("foreign-data wrapper \"pgpool_fdw\" does not support foreign tables"),
				 errhint("Use the function pgpool.query, or create the foreign table on a server of postgres_fdw.")));

	foreach(lc, list)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		check_option(def->defname, defGetString(def), place);
	}
	check_together(list);
	PG_RETURN_VOID();
}

void
pgpx_options_defaults(PgpxPoolOptions *opts)
{
	memset(opts, 0, sizeof(*opts));
	for (const PgpxOption *o = pgpx_option_table; o->name != NULL; o++)
	{
		if (o->offset >= 0)
			store_value(opts, o, o->value);
	}
	opts->default_pool_size = true;
	opts->default_max_waiters = true;
	opts->default_checkout_timeout = true;
	pgpx_options_follow(opts);
}

void
pgpx_options_follow(PgpxPoolOptions *opts)
{
	if (opts->default_pool_size)
		opts->pool_size = pgpx_default_pool_size;
	if (opts->default_max_waiters)
		opts->max_waiters = pgpx_default_max_waiters;
	if (opts->default_checkout_timeout)
		opts->checkout_timeout = pgpx_default_checkout_timeout;
}

bool
pgpx_options_is_valid(const char *name, const char *value)
{
	const PgpxOption *option = pgpx_option_find(name);
	int64		result;

	return option == NULL ? pgpx_options_is_libpq(name) :
							parse_value(option, value, &result);
}

bool
pgpx_options_apply(PgpxPoolOptions *opts, const char **start_commands,
				   const char **reset_command, const char *name,
				   const char *value)
{
	const PgpxOption *option = pgpx_option_find(name);

	if (option == NULL)
		return false;
	if (option->offset >= 0)
	{
		store_value(opts, option, require_value(option, value));
		if (option->offset == offsetof(PgpxPoolOptions, pool_size))
			opts->default_pool_size = false;
		else if (option->offset == offsetof(PgpxPoolOptions, max_waiters))
			opts->default_max_waiters = false;
		else if (option->offset == offsetof(PgpxPoolOptions, checkout_timeout))
			opts->default_checkout_timeout = false;
		return true;
	}
	if (strcmp(name, "start_commands") == 0)
		*start_commands = value;
	else if (strcmp(name, "reset_command") == 0)
		*reset_command = value;
	else
		return false;
	(void) require_value(option, value);
	return true;
}
