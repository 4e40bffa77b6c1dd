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

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/guc.h"
#include "utils/syscache.h"

#include "shared/shmem.h"

/* of the symbols of our functions */
#define PREFIX "pgpx_dblink_"

PG_FUNCTION_INFO_V1(pgpx_attach_dblink);
PG_FUNCTION_INFO_V1(pgpx_detach_dblink);

/*
 * The one-shot forms that do not have the new C function: name, C function, that
 * to be replaced, and the command.  $1: attach.  The functions with one argument
 * are never attached, so they have the library of dblink.
 */
static const char functions_sql[] =
	"SELECT name::text, prosrc, CASE WHEN $1 THEN theirs ELSE ours END,"
	"  left(definition, -length(clause)) || format('AS %L, $function$%s$function$',"
	"   CASE WHEN $1 THEN our_library ELSE library END, CASE WHEN $1 THEN ours ELSE theirs END)"
	" FROM (SELECT p.oid::regprocedure AS name, p.prosrc, o.probin AS library, a.probin AS our_library,"
	"   o.prosrc AS theirs, 'pgpx_' || CASE p.proname WHEN 'dblink' THEN 'dblink_record' ELSE 'dblink_exec' END AS ours,"
	"   pg_get_functiondef(p.oid) AS definition, format(E'AS %L, $function$%s$function$\\n', p.probin, p.prosrc) AS clause"
	"  FROM pg_extension AS e JOIN pg_depend AS d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'"
	"  JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid"
	"  JOIN pg_proc AS o ON o.proname = p.proname AND o.pronamespace = p.pronamespace AND o.proargtypes = '25'"
	"  JOIN pg_proc AS a ON a.oid = $2"
	"  WHERE e.extname = 'dblink' AND p.proname IN ('dblink', 'dblink_exec') AND p.proargtypes[1] = 25) AS f"
	" WHERE prosrc <> CASE WHEN $1 THEN ours ELSE theirs END";

/* Replace the functions.  Return how many were replaced. */
static int
replace_functions(Oid caller, bool attach)
{
	Oid			types[] = {BOOLOID, OIDOID};
	Datum		values[] = {BoolGetDatum(attach), ObjectIdGetDatum(caller)};
	SPITupleTable *table;
	int			n;

	if (SPI_execute_with_args(functions_sql, lengthof(values), types, values,
							  NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the functions of dblink");
	table = SPI_tuptable;
	n = SPI_processed;
	for (int i = 0; i < n; i++)
	{
		HeapTuple	row = table->vals[i];
		const char *symbol = SPI_getvalue(row, table->tupdesc, 2);
		const char *expected = SPI_getvalue(row, table->tupdesc, 3);

		if (strcmp(symbol, expected) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("function %s is not the one of extension \"%s\"",
							SPI_getvalue(row, table->tupdesc, 1), "dblink"),
					 errdetail("Its C function is \"%s\", and \"%s\" was expected.",
							   symbol, expected),
					 errhint("Reinstall the extension with DROP EXTENSION and CREATE EXTENSION.")));
		(void) SPI_execute(SPI_getvalue(row, table->tupdesc, 4), false, 0);
	}
	return n;
}

static bool
attach_or_detach(Oid caller, bool attach)
{
	Oid			extension = get_extension_oid("dblink", true);
	int			level = NewGUCNestLevel();
	int			n;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change functions of extension \"%s\"",
						"dblink"),
				 errdetail("Only superusers can change the C functions of an extension.")));
	PreventCommandIfReadOnly(attach ? "pgpool.attach_dblink()" :
							 "pgpool.detach_dblink()");
	if (!OidIsValid(extension))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" is not installed in this database",
						"dblink"),
				 errhint("Install it with CREATE EXTENSION.")));

	/* against a concurrent call, and against DROP EXTENSION */
	LockDatabaseObject(ExtensionRelationId, extension, 0,
					   ShareUpdateExclusiveLock);
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true,
							 0, false);
	SPI_connect();
	n = replace_functions(caller, attach);
	SPI_finish();
	AtEOXact_GUC(true, level);
	return n > 0;
}

/* attach_dblink() returns bool */
Datum
pgpx_attach_dblink(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	PG_RETURN_BOOL(attach_or_detach(fcinfo->flinfo->fn_oid, true));
}

/* detach_dblink() returns bool: works without the preloaded library */
Datum
pgpx_detach_dblink(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(attach_or_detach(fcinfo->flinfo->fn_oid, false));
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
		Form_pg_proc proc =
			(Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);
		bool		isnull;
		Datum		symbol = SysCacheGetAttr(PROCNAMEARGSNSP,
											 &list->members[i]->tuple,
											 Anum_pg_proc_prosrc, &isnull);

		if (proc->prolang == ClanguageId && !isnull &&
			strncmp(TextDatumGetCString(symbol), PREFIX,
					strlen(PREFIX)) == 0)
			attached = true;
	}
	ReleaseSysCacheList(list);
	return attached;
}

/*
 * A command locks all objects that it drops before it drops the first one.  So
 * the lock on extension dblink shows that it is dropped, too, which is allowed.
 */
void
pgpx_dblink_check_drop(Oid classId, Oid objectId)
{
	LOCKTAG		tag;

	if (classId != ExtensionRelationId ||
		objectId != get_extension_oid("pgpool_ext", true) ||
		!(is_attached("dblink") || is_attached("dblink_exec")))
		return;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId,
					   get_extension_oid("dblink", true), 0);
	if (!pgpx_lock_is_held(&tag, AccessExclusiveLock))
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot drop extension pgpool_ext while functions of extension %s are attached to it",
						"dblink"),
				 errhint("Call pgpool.detach_dblink() first.")));
}
