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
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "shared/shmem.h"

PG_FUNCTION_INFO_V1(pgpx_attach_dblink);
PG_FUNCTION_INFO_V1(pgpx_detach_dblink);

/* The SQL functions that are attached: their C functions. */
static const struct
{
	const char *name;
	const char *theirs;
	const char *ours;
}			functions[] = {
	{"dblink", "dblink_record", "pgpx_dblink_record"},
	{"dblink_exec", "dblink_exec", "pgpx_dblink_exec"},
};

static object_access_hook_type prev_object_access = NULL;

/* Return a text column of a row of pg_proc; NULL if it is null. */
static char *
proc_text(HeapTuple row, AttrNumber attribute)
{
	bool		isnull;
	Datum		value = SysCacheGetAttr(PROCOID, row, attribute, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/*
 * Return the OIDs of the functions of an extension with this name and number of
 * arguments.
 */
static List *
find_members(Oid extension, const char *name, int nargs)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum(name));
	List	   *found = NIL;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc proc =
			(Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (proc->pronargs == nargs &&
			getExtensionOfObject(ProcedureRelationId, proc->oid) == extension)
			found = lappend_oid(found, proc->oid);
	}
	ReleaseSysCacheList(list);
	return found;
}

/* Return the one-shot forms: (text, text) and (text, text, boolean). */
static List *
find_one_shot_forms(Oid extension, const char *name)
{
	List	   *found = find_members(extension, name, 3);
	ListCell   *lc;

	foreach(lc, find_members(extension, name, 2))
	{
		HeapTuple	row = SearchSysCache1(PROCOID,
										  ObjectIdGetDatum(lfirst_oid(lc)));

		/* the other one is (text, boolean), on the unnamed connection */
		if (((Form_pg_proc) GETSTRUCT(row))->proargtypes.values[1] == TEXTOID)
			found = lappend_oid(found, lfirst_oid(lc));
		ReleaseSysCache(row);
	}
	return found;
}

/* Return the library of a C function. */
static char *
library_of(Oid function)
{
	HeapTuple	row = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	char	   *library;

	if (!HeapTupleIsValid(row))
		elog(ERROR, "cache lookup failed for function %u", function);
	library = proc_text(row, Anum_pg_proc_probin);
	ReleaseSysCache(row);
	return library;
}

/* The AS clause of pg_get_functiondef for a C function. */
static char *
as_clause(const char *library, const char *symbol)
{
	return psprintf("AS %s, $function$%s$function$\n",
					quote_literal_cstr(library), symbol);
}

/*
 * Replace the library and symbol of a function.  Return false if it has the new
 * ones already.
 */
static bool
replace_function(Oid function, const char *library, const char *from,
				 const char *to)
{
	HeapTuple	row = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	char	   *symbol = proc_text(row, Anum_pg_proc_prosrc);
	char	   *old_library = proc_text(row, Anum_pg_proc_probin);
	char	   *sql;
	char	   *tail;
	int			length;

	ReleaseSysCache(row);
	if (strcmp(symbol, to) == 0)
		return false;
	sql = TextDatumGetCString(DirectFunctionCall1(pg_get_functiondef,
												  ObjectIdGetDatum(function)));
	tail = as_clause(old_library, symbol);
	length = strlen(sql) - strlen(tail);
	if (strcmp(symbol, from) != 0 || length < 0 ||
		strcmp(sql + length, tail) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s is not the one of extension \"%s\"",
						format_procedure(function), PGPX_DBLINK_EXTENSION),
				 errdetail("Its C function is \"%s\", and \"%s\" was expected.",
						   symbol, from),
				 errhint("Reinstall the extension with DROP EXTENSION and CREATE EXTENSION.")));
	sql[length] = '\0';
	sql = psprintf("%s%s", sql, as_clause(library, to));
	if (SPI_execute(sql, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not replace function %u", function);
	return true;
}

/* Replace all one-shot forms.  Return whether one was changed. */
static bool
replace_functions(Oid extension, const char *our_library, bool attach)
{
	bool		changed = false;

	for (int i = 0; i < lengthof(functions); i++)
	{
		const char *name = functions[i].name;
		const char *theirs = functions[i].theirs;
		const char *ours = functions[i].ours;
		List	   *others = find_members(extension, name, 1);
		ListCell   *lc;

		/* dblink(sql) is never attached, so it has the library of dblink */
		if (others == NIL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_FUNCTION),
					 errmsg("extension \"%s\" has no function %s(text)",
							PGPX_DBLINK_EXTENSION, name)));
		foreach(lc, find_one_shot_forms(extension, name))
			changed |= replace_function(lfirst_oid(lc),
										attach ? our_library :
										library_of(linitial_oid(others)),
										attach ? theirs : ours,
										attach ? ours : theirs);
	}
	return changed;
}

static bool
attach_or_detach(FunctionCallInfo fcinfo, bool attach)
{
	Oid			extension;
	int			level;
	bool		changed;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 attach ?
				 errmsg("permission denied to attach functions of extension \"%s\"",
						PGPX_DBLINK_EXTENSION) :
				 errmsg("permission denied to detach functions of extension \"%s\"",
						PGPX_DBLINK_EXTENSION),
				 errdetail("Only superusers can change the C functions of an extension.")));
	PreventCommandIfReadOnly(attach ? "pgpool.attach_dblink()" :
							 "pgpool.detach_dblink()");
	extension = get_extension_oid(PGPX_DBLINK_EXTENSION, true);
	if (!OidIsValid(extension))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" is not installed in this database",
						PGPX_DBLINK_EXTENSION),
				 errhint("Install it with CREATE EXTENSION.")));

	/* against a concurrent call, and against DROP EXTENSION */
	LockDatabaseObject(ExtensionRelationId, extension, 0,
					   ShareUpdateExclusiveLock);
	level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true,
							 0, false);
	SPI_connect();
	changed = replace_functions(extension,
								library_of(fcinfo->flinfo->fn_oid), attach);
	SPI_finish();
	AtEOXact_GUC(true, level);
	return changed;
}

/* attach_dblink() returns bool */
Datum
pgpx_attach_dblink(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	PG_RETURN_BOOL(attach_or_detach(fcinfo, true));
}

/*
 * detach_dblink() returns bool: works without the preloaded library
 */
Datum
pgpx_detach_dblink(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(attach_or_detach(fcinfo, false));
}

bool
pgpx_dblink_is_attached(Oid dblink)
{
	for (int i = 0; i < lengthof(functions); i++)
	{
		ListCell   *lc;

		foreach(lc, find_one_shot_forms(dblink, functions[i].name))
		{
			HeapTuple	row = SearchSysCache1(PROCOID,
											  ObjectIdGetDatum(lfirst_oid(lc)));
			bool		ours = strcmp(proc_text(row, Anum_pg_proc_prosrc),
									  functions[i].ours) == 0;

			ReleaseSysCache(row);
			if (ours)
				return true;
		}
	}
	return false;
}

/*
 * object_access_hook: refuse to drop pgpool_ext while dblink is attached.
 *
 * A command locks all objects that it drops before it drops the first one.  So
 * the lock on extension dblink shows that it is dropped, too, which is allowed.
 */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId,
			  void *arg)
{
	Oid			dblink;
	LOCKTAG		tag;

	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access != OAT_DROP || classId != ExtensionRelationId ||
		objectId != get_extension_oid("pgpool_ext", true))
		return;
	dblink = get_extension_oid(PGPX_DBLINK_EXTENSION, true);
	if (!OidIsValid(dblink) || !pgpx_dblink_is_attached(dblink))
		return;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, dblink, 0);
	if (pgpx_lock_is_held(&tag, AccessExclusiveLock))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
			 errmsg("cannot drop extension pgpool_ext while functions of extension %s are attached to it",
					PGPX_DBLINK_EXTENSION),
			 errhint("Call pgpool.detach_dblink() first.")));
}

void
pgpx_dblink_init(void)
{
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
