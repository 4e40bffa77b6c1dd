/*-------------------------------------------------------------------------
 *
 * fuzz_validator.c
 *	  The complete validator of pgpool_fdw: any options, of any user.
 *
 * The first byte selects the user and the kind of object; the rest is names and
 * values in turn, each followed by a NUL.  A name that begins with a byte below 32
 * means the entry with that number in the table of our options and libpq's, so that
 * these are reached.
 *
 * Options that the validator accepts are accepted by the reader of the pool's
 * options; options of superusers are refused to other users; the same options in
 * another order have the same result.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/reloptions.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "fuzz.h"
#include "base/settings.h"
#include "config/options.h"

#define MAX_OPTIONS 64

extern Datum pgpx_fdw_validator(PG_FUNCTION_ARGS);

int			pgpx_default_pool_size = 10;
int			pgpx_default_max_waiters = 0;
int			pgpx_default_two_phase_commit = 0;
int			pgpx_default_checkout_timeout = 30000;

static bool is_superuser;
static DefElem options[MAX_OPTIONS];
static char *values[MAX_OPTIONS];
static ListCell cells[MAX_OPTIONS];
static List list = {.type = T_List};

bool
superuser(void)
{
	return is_superuser;
}

char *
defGetString(DefElem *def)
{
	return values[def - options];
}

List *
untransformRelOptions(Datum unused)
{
	return list.length > 0 ? &list : NIL;
}

/* Whether this set of options is accepted. */
static bool
accepted(Oid catalog)
{
	LOCAL_FCINFO(fcinfo, 2);
	volatile bool ok = false;

	fcinfo->nargs = 2;
	fcinfo->args[0].value = (Datum) 0;
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = ObjectIdGetDatum(catalog);
	fcinfo->args[1].isnull = false;
	fuzz_may_throw = true;
	if (sigsetjmp(fuzz_error, 0) == 0)
	{
		(void) pgpx_fdw_validator(fcinfo);
		ok = true;
	}
	fuzz_may_throw = false;
	return ok;
}

/* The name that a byte means. */
static const char *
name_of(int number)
{
	static int	nours = 0;
	static int	nlibpq = 0;

	if (nours == 0)
	{
		while (pgpx_option_table[nours].name != NULL)
			nours++;
		while (pgpx_libpq_options()[nlibpq].keyword != NULL)
			nlibpq++;
	}
	number %= nours + nlibpq;
	return number < nours ? pgpx_option_table[number].name :
		pgpx_libpq_options()[number - nours].keyword;
}

static void
check_accepted(bool on_server)
{
	PgpxPoolOptions opts;
	const char *start = NULL;
	const char *reset = NULL;

	pgpx_options_defaults(&opts);
	for (int i = 0; i < list.length; i++)
	{
		const char *name = options[i].defname;
		int			flags = pgpx_option_flags(name);

		FUZZ_CHECK((flags & (on_server ? PGPX_ON_SERVER : PGPX_ON_MAPPING)) != 0);
		FUZZ_CHECK(is_superuser || (flags & PGPX_SUPERUSER) == 0);

		FUZZ_CHECK(!on_server ||
				   pgpx_options_apply(&opts, &start, &reset, name, values[i]));
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const Oid catalogs[] = {ForeignServerRelationId,
	UserMappingRelationId, InvalidOid, ForeignServerRelationId};
	char	   *text;
	char	   *p;
	Oid			catalog;
	bool		ok;

	if (size < 1 || size > 70 * 1024)
		return 0;
	is_superuser = (data[0] & 4) != 0;
	catalog = catalogs[data[0] & 3];
	text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';

	list.length = 0;
	list.elements = cells;
	for (p = text; p < text + size - 1 && list.length < MAX_OPTIONS;)
	{
		DefElem    *def = &options[list.length];

		memset(def, 0, sizeof(*def));
		def->type = T_DefElem;
		def->defname = p;
		p += strlen(p) + 1;
		if (p >= text + size)
			break;
		if ((unsigned char) def->defname[0] < 32 && def->defname[0] != '\0')
			def->defname = (char *) name_of(def->defname[0] +
											(def->defname[1] & 3) * 32);
		values[list.length] = p;
		p += strlen(p) + 1;
		cells[list.length++].ptr_value = def;
	}

	ok = accepted(catalog);
	FUZZ_CHECK(accepted(catalog) == ok);
	if (ok)
	{
		check_accepted(catalog == ForeignServerRelationId);
		FUZZ_CHECK(catalog != InvalidOid || list.length == 0);

		/* options that a user can set, a superuser can set */
		is_superuser = true;
		FUZZ_CHECK(accepted(catalog));
	}
	free(text);
	fuzz_free_all();
	return 0;
}
