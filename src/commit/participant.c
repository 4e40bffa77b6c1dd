/*-------------------------------------------------------------------------
 *
 * participant.c
 *	  Participants of commits on several servers: registration, adoption,
 *	  removal, and the refusal of DDL that would lose their parts.
 *
 * Rules:
 * - A participant is committed before the first PREPARE TRANSACTION to it, so
 *	 that the resolver finds each part after a crash.  The transaction of the
 *	 session cannot do that, so a background worker does, with what it finds on
 *	 the remote server.  It logs in as the resolver will.
 * - DDL that changes where a participant is found is guarded: a worker visits the
 *	 participants, with the options from before the change, because it does not
 *	 see the uncommitted one.  If it finds an unresolved part, or cannot ask, the
 *	 DDL fails.  Otherwise the participants are removed, and the next commit
 *	 registers them anew.  So the resolver never logs in to a host for which no
 *	 session of the user has asked.
 * - The guard holds EXCLUSIVE on commit_participants to the end of the DDL.  It
 *	 waits for commits that are under way, and no other one begins before the new
 *	 options can be seen.  So the worker must not lock the table.
 * - forget_participant() is the way past the guard.  It keeps the decisions about
 *	 the parts, because the participant can be registered again.
 * - Rows are changed by heap and index, so no code of a user runs.
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_user_mapping.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "nodes/parsenodes.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/debug_point.h"
#include "config/options.h"

/* --- Errands -------------------------------------------------------------- */

/* Have a worker do an errand.  Raise the error of the worker. */
static void
run_errand(bool registers, Oid server, Oid user)
{
	BackgroundWorker worker = {
		.bgw_name = "pgpool_ext resolver errand",
		.bgw_flags =
			BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_library_name = "pgpool_ext",
		.bgw_function_name = "pgpx_resolver_main",
		.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId),
		.bgw_notify_pid = MyProcPid,
	};
	BackgroundWorkerHandle *handle;
	dsm_segment *segment;
	dsm_handle	name;
	PgpxErrand	errand = {
		.registers = registers,
		.server = server,
		.user = user,
	};

	pgpx_shmem_require();
	segment = dsm_create(sizeof(errand), 0);
	memcpy(dsm_segment_address(segment), &errand, sizeof(errand));
	name = dsm_segment_handle(segment);
	memcpy(worker.bgw_extra, &name, sizeof(name));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgpool_ext cannot start a background worker for a commit on several servers"),
				 errhint("Raise \"max_worker_processes\".")));
	PG_TRY();
	{
		(void) WaitForBackgroundWorkerShutdown(handle);
	}
	PG_CATCH();
	{
		TerminateBackgroundWorker(handle);
		PG_RE_THROW();
	}
	PG_END_TRY();
	memcpy(&errand, dsm_segment_address(segment), sizeof(errand));
	dsm_detach(segment);
	if (!errand.done)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("a background worker for a commit on several servers has failed"),
				 errhint("See the log of this server.")));
	if (errand.sqlstate != 0)
		ereport(ERROR,
				(errcode(errand.sqlstate),
				 errmsg_internal("%s", errand.message),
				 errand.detail[0] != '\0' ?
				 errdetail_internal("%s", errand.detail) : 0,
				 registers ? 0 :
				 errhint("View pgpool.prepared_transactions has the unresolved parts. Retry when the server can be reached, or call pgpool.forget_participant() first.")));
}

void
pgpx_participant_register(Oid server, Oid user)
{
	run_errand(true, server, user);
}

/* In the worker, in a transaction. */
void
pgpx_participant_insert(Oid server, Oid user, int64 system,
						const char *database)
{
	/* two workers must not insert the same */
	Relation	participants = pgpx_commit_table(PGPX_PARTICIPANTS,
												 ShareRowExclusiveLock);
	Datum		values[PGPX_PARTICIPANT_COLUMNS] = {0};
	bool		nulls[PGPX_PARTICIPANT_COLUMNS] = {false};
	char		origin[PGPX_ORIGIN_LEN + 1];
	PgpxParticipant newest;

	if (!pgpx_participant_find(participants, server, user, &newest) ||
		newest.system != system || strcmp(newest.database, database) != 0)
	{
		Oid			ids = get_relname_relid("commit_participants_id_seq",
											RelationGetNamespace(participants));

		pgpx_commit_origin(origin);
		values[PGPX_PARTICIPANT_ID - 1] =
			Int32GetDatum((int32) nextval_internal(ids, false));
		values[PGPX_PARTICIPANT_SERVER - 1] = ObjectIdGetDatum(server);
		values[PGPX_PARTICIPANT_USER - 1] = ObjectIdGetDatum(user);
		values[PGPX_PARTICIPANT_ORIGIN - 1] = CStringGetTextDatum(origin);
		values[PGPX_PARTICIPANT_SYSTEM - 1] = Int64GetDatum(system);
		values[PGPX_PARTICIPANT_DATABASE - 1] = CStringGetTextDatum(database);
		nulls[PGPX_PARTICIPANT_ADOPTER - 1] = true;
		nulls[PGPX_PARTICIPANT_VISITED - 1] = true;
		nulls[PGPX_PARTICIPANT_ERROR - 1] = true;
		CatalogTupleInsert(participants,
						   heap_form_tuple(RelationGetDescr(participants),
										   values, nulls));
	}
	table_close(participants, NoLock);

	/* a part must not be prepared before the row is on disk */
	ForceSyncCommit();
}

/* --- Rows ----------------------------------------------------------------- */

bool
pgpx_participant_matches(Oid row_server, Oid row_user, Oid server, Oid user)
{
	return (!OidIsValid(server) || row_server == server ||
			pgpx_server_catalog_find_base(row_server) == server) &&
		(!OidIsValid(user) || row_user == user);
}

/*
 * Count the participants that match, and remove them.  The caller holds
 * EXCLUSIVE.
 */
static int
count_rows(Relation participants, Oid server, Oid user, bool removes)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(participants, InvalidOid, false,
										  snapshot, 0, NULL);
	int			n = 0;
	HeapTuple	row;

	while ((row = systable_getnext(scan)) != NULL)
	{
		Datum		values[PGPX_PARTICIPANT_COLUMNS];
		bool		nulls[PGPX_PARTICIPANT_COLUMNS];

		heap_deform_tuple(row, RelationGetDescr(participants), values, nulls);
		if (!pgpx_participant_matches(
				DatumGetObjectId(values[PGPX_PARTICIPANT_SERVER - 1]),
				DatumGetObjectId(values[PGPX_PARTICIPANT_USER - 1]),
				server, user))
			continue;
		n++;
		if (removes)
			CatalogTupleDelete(participants, &row->t_self);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);

	/* the next call in this command must not find them */
	CommandCounterIncrement();
	return n;
}

PG_FUNCTION_INFO_V1(pgpx_commit_origin_text);
Datum
pgpx_commit_origin_text(PG_FUNCTION_ARGS)
{
	char		origin[PGPX_ORIGIN_LEN + 1];

	pgpx_shmem_require();
	pgpx_commit_origin(origin);
	PG_RETURN_TEXT_P(cstring_to_text(origin));
}

/* --- DDL ------------------------------------------------------------------ */

/*
 * Raise an error if participants of a server may have unresolved parts.  user:
 * of the mapping that changes, InvalidOid: of all.  server InvalidOid: those of
 * all servers.  removes: remove the participants.
 */
static void
guard(Oid server, Oid user, bool removes)
{
	Relation	participants;

	/* DROP EXTENSION may drop servers after the table */
	if (!OidIsValid(get_extension_oid("pgpool_ext", true)) ||
		!OidIsValid(get_relname_relid(PGPX_PARTICIPANTS,
									  get_namespace_oid(PGPX_COMMIT_SCHEMA,
														false))))
		return;
	participants = pgpx_commit_table(PGPX_PARTICIPANTS, ExclusiveLock);
	if (count_rows(participants, server, user, false) > 0)
	{
		run_errand(false, server, user);
		if (removes)
			(void) count_rows(participants, server, user, true);
	}
	table_close(participants, NoLock);
}

/* Return whether one of these options tells where or as whom to log in. */
static bool
has_connection_option(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		const char *name = lfirst_node(DefElem, lc)->defname;

		if (strcmp(name, "base_server") == 0 ||
			(pgpx_option_is_libpq(name) && !pgpx_option_is_in_place(name)))
			return true;
	}
	return false;
}

bool
pgpx_participant_begin_utility(Node *stmt)
{
	List	   *options;
	ListCell   *lc;

	switch (nodeTag(stmt))
	{
		case T_DropStmt:
			/* not in check_drop, because the drop locks the tables before */
			foreach(lc, ((DropStmt *) stmt)->objects)
				if (((DropStmt *) stmt)->removeType == OBJECT_EXTENSION &&
					superuser() &&
					strcmp(strVal(lfirst(lc)), "pgpool_ext") == 0)
					guard(InvalidOid, InvalidOid, false);
			return false;
		case T_AlterForeignServerStmt:
			options = ((AlterForeignServerStmt *) stmt)->options;
			return has_connection_option(options);
		case T_AlterUserMappingStmt:
			options = ((AlterUserMappingStmt *) stmt)->options;
			return pgpx_options_find(options, "user") != NULL;
		case T_GrantStmt:
			return !((GrantStmt *) stmt)->is_grant &&
				((GrantStmt *) stmt)->targtype == ACL_TARGET_OBJECT &&
				((GrantStmt *) stmt)->objtype == OBJECT_FOREIGN_SERVER;
		default:
			return false;
	}
}

void
pgpx_participant_end_utility(Node *stmt)
{
	AlterUserMappingStmt *mapping = (AlterUserMappingStmt *) stmt;
	AlterForeignServerStmt *server = (AlterForeignServerStmt *) stmt;
	ListCell   *lc;

	/* a mapping for PUBLIC is that of any user */
	if (IsA(stmt, AlterUserMappingStmt))
		guard(get_foreign_server_oid(mapping->servername, false),
			  mapping->user->roletype == ROLESPEC_PUBLIC ? InvalidOid :
			  get_rolespec_oid(mapping->user, true), true);
	else if (IsA(stmt, AlterForeignServerStmt))
		guard(get_foreign_server_oid(server->servername, false), InvalidOid,
			  true);
	else
		foreach(lc, ((GrantStmt *) stmt)->objects)
			guard(get_foreign_server_oid(strVal(lfirst(lc)), false),
				  InvalidOid, false);
}

void
pgpx_participant_check_drop(Oid class_id, Oid object)
{
	HeapTuple	row;

	if (class_id == ForeignServerRelationId)
		guard(object, InvalidOid, true);
	if (class_id != UserMappingRelationId)
		return;
	row = SearchSysCache1(USERMAPPINGOID, ObjectIdGetDatum(object));
	if (!HeapTupleIsValid(row))
		return;
	guard(((Form_pg_user_mapping) GETSTRUCT(row))->umserver,
		  ((Form_pg_user_mapping) GETSTRUCT(row))->umuser, true);
	ReleaseSysCache(row);
}
