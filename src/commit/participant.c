/*-------------------------------------------------------------------------
 *
 * participant.c
 *	  Participants of commits on several servers: lookup, registration, removal,
 *	  and the refusal of DDL that would lose their parts.
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
 * - Rows are read and deleted without SQL, so no code of a user runs.
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_user_mapping.h"
#include "nodes/parsenodes.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "config/options.h"
#include "worker/worker.h"

/* --- Errands -------------------------------------------------------------- */

/* Have a worker do an errand.  Raise the error of the worker. */
static void
run_errand(bool registers, Oid server, Oid user)
{
	BackgroundWorker worker = {
		.bgw_name = "pgpool_ext resolver errand",
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_function_name = "pgpx_resolver_main",
	};
	BackgroundWorkerHandle *handle;
	dsm_segment *segment;
	dsm_handle	name;
	PgpxErrand *errand;

	pgpx_shmem_require();
	segment = dsm_create(sizeof(*errand), 0);
	errand = dsm_segment_address(segment);
	*errand = (PgpxErrand){
		.registers = registers,
		.server = server,
		.user = user,
		.sqlstate = ERRCODE_INTERNAL_ERROR,
		.primary = "a background worker for a commit on several servers has failed",
		.detail = "The log of this server has the reason.",
	};
	name = dsm_segment_handle(segment);
	memcpy(worker.bgw_extra, &name, sizeof(name));
	handle = pgpx_process_start(&worker, MyDatabaseId);
	if (handle == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgpool_ext cannot start a background worker for a commit on several servers"),
				 errhint("Raise \"max_worker_processes\".")));
	PG_TRY();
	{
		(void) WaitForBackgroundWorkerShutdown(handle);
	}
	PG_FINALLY();
	{
		TerminateBackgroundWorker(handle);
		pfree(handle);
	}
	PG_END_TRY();
	if (errand->sqlstate != 0)
		ereport(ERROR,
				(errcode(errand->sqlstate),
				 errmsg_internal("%s", errand->primary),
				 errand->detail[0] != '\0' ?
				 errdetail_internal("%s", errand->detail) : 0,
				 registers || errand->sqlstate != ERRCODE_OBJECT_IN_USE ? 0 :
				 errhint("View pgpool.prepared_transactions has the unresolved parts. Retry when the server can be reached, or call pgpool.forget_participant() first.")));
	dsm_detach(segment);
}

void
pgpx_participant_register(Oid server, Oid user)
{
	run_errand(true, server, user);
}

/* --- Rows ----------------------------------------------------------------- */

bool
pgpx_participant_matches(const PgpxParticipant *p, Oid server, Oid user)
{
	return (!OidIsValid(server) || p->server == server ||
			pgpx_server_catalog_find_base(p->server) == server) &&
		(!OidIsValid(user) || p->user == user);
}

/* The columns of the table follow one another like this, without gaps. */
StaticAssertDecl(offsetof(PgpxParticipant, server) == 4 &&
					 offsetof(PgpxParticipant, user) == 8 &&
					 offsetof(PgpxParticipant, origin) == 12 &&
					 offsetof(PgpxParticipant, system) == 80 &&
					 offsetof(PgpxParticipant, database) == 88,
				 "the struct must have the layout of the columns");

/* Read the participants in a new snapshot, as a list of PgpxParticipant. */
static List *
read_rows(Relation participants)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(participants, InvalidOid, false,
										  snapshot, 0, NULL);
	List	   *list = NIL;
	HeapTuple	row;

	while ((row = systable_getnext(scan)) != NULL)
	{
		PgpxParticipant *p = palloc(sizeof(*p));

		memcpy(p, GETSTRUCT(row), offsetof(PgpxParticipant, row));
		p->row = row->t_self;
		list = lappend(list, p);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return list;
}

void
pgpx_participant_find(Relation participants, Oid server, Oid user,
					  PgpxParticipant *found)
{
	const char *origin = pgpx_commit_origin();
	ListCell   *lc;

	*found = (PgpxParticipant){.server = server, .user = user};
	foreach(lc, read_rows(participants))
	{
		const PgpxParticipant *p = lfirst(lc);

		if (p->server == server && p->user == user &&
			strcmp(NameStr(p->origin), origin) == 0 && p->id > found->id)
			*found = *p;
	}
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
	List	   *matching = NIL;
	ListCell   *lc;

	participants = pgpx_commit_table(PGPX_PARTICIPANTS, ExclusiveLock, true);
	if (participants == NULL)
		return;					/* DROP EXTENSION may drop servers after it */
	foreach(lc, read_rows(participants))
	{
		PgpxParticipant *p = lfirst(lc);

		if (pgpx_participant_matches(p, server, user))
			matching = lappend(matching, p);
	}
	if (matching != NIL)
		run_errand(false, server, user);
	if (removes)
		foreach(lc, matching)
			CatalogTupleDelete(participants,
							   &((PgpxParticipant *) lfirst(lc))->row);

	/* the next call in this command must not find them */
	CommandCounterIncrement();
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

	switch (nodeTag(stmt))
	{
		case T_DropStmt:
			/* not in check_drop, because the drop locks the tables before */
			if (((DropStmt *) stmt)->removeType == OBJECT_EXTENSION &&
				superuser() &&
				list_member(((DropStmt *) stmt)->objects,
							makeString("pgpool_ext")))
				guard(InvalidOid, InvalidOid, false);
			return false;
		case T_AlterForeignServerStmt:
			options = ((AlterForeignServerStmt *) stmt)->options;
			return has_connection_option(options);
		case T_CreateUserMappingStmt:	/* it can replace that of PUBLIC */
			return ((CreateUserMappingStmt *) stmt)->user->roletype !=
				ROLESPEC_PUBLIC;
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
	CreateUserMappingStmt *created = (CreateUserMappingStmt *) stmt;
	AlterUserMappingStmt *mapping = (AlterUserMappingStmt *) stmt;
	AlterForeignServerStmt *server = (AlterForeignServerStmt *) stmt;
	ListCell   *lc;

	if (IsA(stmt, CreateUserMappingStmt))
	{
		Oid			of = get_foreign_server_oid(created->servername, false);

		if (SearchSysCacheExists2(USERMAPPINGUSERSERVER,
								  ObjectIdGetDatum(InvalidOid),
								  ObjectIdGetDatum(of)))
			guard(of, get_rolespec_oid(created->user, true), true);
	}
	/* users of PUBLIC can have participants of their own */
	else if (IsA(stmt, AlterUserMappingStmt))
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
	if (class_id == AuthIdRelationId)
		guard(InvalidOid, object, true);	/* it may use a mapping for PUBLIC */
	if (class_id != UserMappingRelationId)
		return;
	row = SearchSysCache1(USERMAPPINGOID, ObjectIdGetDatum(object));
	if (!HeapTupleIsValid(row))
		return;
	guard(((Form_pg_user_mapping) GETSTRUCT(row))->umserver,
		  ((Form_pg_user_mapping) GETSTRUCT(row))->umuser, true);
	ReleaseSysCache(row);
}
