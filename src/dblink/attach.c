/*-------------------------------------------------------------------------
 *
 * attach.c
 *	  Attach the one-shot forms of dblink to pools, and detach them.
 *
 * An attached function of extension dblink has our library and symbol.  All else
 * stays: its OID, owner, privileges, settings, dependants and membership in the
 * extension.  CREATE OR REPLACE FUNCTION changes it, so that event triggers see
 * the change.  pg_dump does not dump members of an extension, so a dump
 * restores plain dblink.
 *
 * pgpool_ext is not a dependency of the functions, because DROP EXTENSION
 * pgpool_ext CASCADE would then drop dblink and the views on it.  A hook refuses
 * the drop instead.
 *
 *-------------------------------------------------------------------------
 */
#include "dblink/dblink.h"

#include "catalog/pg_extension.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "shared/shmem.h"

PG_FUNCTION_INFO_V1(pgpx_attach_dblink);
PG_FUNCTION_INFO_V1(pgpx_detach_dblink);

/*
 * The commands that replace the C functions of the one-shot forms.  $1: true to
 * replace those of dblink by ours, false for the reverse.  A function that a user
 * has replaced has another C function, and is not changed.
 */
static const char commands_sql[] =
	"SELECT left(pg_get_functiondef(oid), -length(format(E'AS %L, $function$%s$function$\\n', probin, prosrc)))"
	"   || CASE WHEN $1 THEN format('AS %L, %L', '$libdir/pgpool_ext', 'pgpx_' || prosrc)"
	"   ELSE format('AS %L, %L', '$libdir/dblink', substr(prosrc, 6)) END"
	" FROM pg_proc WHERE proname IN ('dblink', 'dblink_exec') AND proargtypes[1] = 25"
	"  AND prosrc IN (SELECT CASE WHEN $1 THEN '' ELSE 'pgpx_' END || name FROM unnest('{dblink_record,dblink_exec}'::text[]) AS name)"
	"  AND oid IN (SELECT objid FROM pg_depend JOIN pg_extension AS e ON refobjid = e.oid"
	"   WHERE refclassid = 'pg_extension'::regclass AND classid = 'pg_proc'::regclass AND deptype = 'e' AND extname = 'dblink')";

/*
 * Attach or detach; return whether a function was replaced.  The SQL functions
 * set search_path.  Only superusers can execute the commands.
 */
static bool
attach_or_detach(bool attach)
{
	Oid			extension = get_extension_oid("dblink", true);
	Oid			types[] = {BOOLOID};
	Datum		values[] = {BoolGetDatum(attach)};
	SPITupleTable *table;
	int			n;

	/* against a concurrent call, and against DROP EXTENSION */
	if (OidIsValid(extension))
		LockDatabaseObject(ExtensionRelationId, extension, 0,
						   ShareUpdateExclusiveLock);
	if (!OidIsValid(extension) ||
		get_extension_oid("dblink", true) != extension)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" is not installed in this database",
						"dblink"),
				 errhint("Install it with CREATE EXTENSION.")));

	SPI_connect();

	/* pg_get_functiondef reads the current rows, also in REPEATABLE READ */
	PushActiveSnapshot(GetCatalogSnapshot(ProcedureRelationId));
	if (SPI_execute_with_args(commands_sql, lengthof(values), types, values,
							  NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the functions of dblink");
	PopActiveSnapshot();
	table = SPI_tuptable;
	n = SPI_processed;
	for (int i = 0; i < n; i++)
		(void) SPI_execute(SPI_getvalue(table->vals[i], table->tupdesc, 1),
						   false, 0);
	SPI_finish();
	return n > 0;
}

/* attach_dblink() returns bool */
Datum
pgpx_attach_dblink(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	PG_RETURN_BOOL(attach_or_detach(true));
}

/* detach_dblink() returns bool: works without the preloaded library */
Datum
pgpx_detach_dblink(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(attach_or_detach(false));
}

/* Return whether a function of this name has one of our C functions. */
static bool
is_attached(const char *name)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum(name));
	bool		attached = false;

	for (int i = 0; i < list->n_members; i++)
	{
		bool		isnull;
		Datum		symbol = SysCacheGetAttr(PROCNAMEARGSNSP,
											 &list->members[i]->tuple,
											 Anum_pg_proc_prosrc, &isnull);

		attached |= strstr(TextDatumGetCString(symbol),
						   "pgpx_dblink_") != NULL;
	}
	ReleaseSysCacheList(list);
	return attached;
}

void
pgpx_dblink_check_drop(Oid classId, Oid objectId)
{
	if (classId == ExtensionRelationId &&
		objectId == get_extension_oid("pgpool_ext", true) &&
		(is_attached("dblink") || is_attached("dblink_exec")))
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot drop extension pgpool_ext while functions of extension %s are attached to it",
						"dblink"),
				 errhint("Call pgpool.detach_dblink() first.")));
}
