/*-------------------------------------------------------------------------
 *
 * resolver.c
 *	  The resolver: it visits the participants of a database, and commits or
 *	  rolls back the parts that sessions have left.
 *
 * A round visits all participants, one after the other.  Rules of a visit:
 * - The remote session counts only after it was checked: not in recovery, and the
 *	 system identifier and the database are those of the participant.  Otherwise
 *	 it may be that of a server that does not show the parts.
 * - The order is: P, the parts that are prepared there; then one snapshot which
 *	 shows for each whether its transaction runs (A) and whether its decision is
 *	 visible (T); COMMIT or ROLLBACK PREPARED; Q, the parts once more.  A part of P
 *	 was prepared after its xid had begun, and in a snapshot an xid has ended if
 *	 and only if its decision is visible or it has aborted.  An earlier snapshot
 *	 would take a transaction that is being decided for one that has aborted.
 * - An xid that was not assigned before the snapshot was lost in a crash.
 * - A decision is looked up by the whole id, whatever participants it names, as
 *	 two of them may be one database.  It counts only if its raw xmin is the xid
 *	 in the id, which rejects forged, restored and replicated rows.
 * - COMMIT is always right where a decision is visible.  ROLLBACK for want of one
 *	 is allowed only to the installation whose token the participant has, or that
 *	 has adopted it.
 * - A decision is deleted if it was visible when the round began, all of its
 *	 participants were visited since, and no Q, which has the parts of all roles,
 *	 has a part of it.
 * - A remote server is not trusted: it affects its own parts only.  Only
 *	 well-formed ids are used, and their number is bounded.
 *
 * The process executes SQL as the bootstrap superuser, on tables of the
 * extension only.  Its settings are its own.  It does not wait for standbys: what
 * a failover undoes is done again.
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/backoff.h"
#include "base/debug_point.h"
#include "base/settings.h"
#include "protocol/remote_message.h"
#include "shared/conn_state.h"
#include "shared/registry.h"

/* Parts of one participant that a visit reads. */
#define PARTS_MAX 1000

/* Pauses between the rounds of a resolver that has unresolved parts. */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS 5000

/* What the remote session answers about itself. */
#define CHECK_SQL \
	"SET search_path = pg_catalog; " \
	"SELECT pg_is_in_recovery(), system_identifier, current_database(), " \
	"EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() AND state <> 'idle') " \
	"FROM pg_control_system()"

/* P and Q.  The token needs no quoting: see READ_SQL. */
#define LIST_SQL \
	"SELECT gid, extract(epoch FROM prepared), owner = current_user " \
	"FROM pg_prepared_xacts WHERE database = current_database() AND left(gid, 22) = 'pgpx_%s_' " \
	"ORDER BY prepared LIMIT %d"

#define READ_SQL \
	"SELECT id, server, user_id, token, system_identifier, database, coalesce(error, ''), " \
	"$2 OR token = $1 OR coalesce(adopter = $1, false), pg_current_snapshot() " \
	"FROM pgpool.commit_participants WHERE token ~ '^[0-9a-f]{16}$' " \
	"ORDER BY error IS NOT NULL, id"

/* A and T.  $1 participant, $2 ids, $3 times, $4 may roll back, $5 our xid. */
#define DECIDE_SQL \
	"INSERT INTO pgpool.commit_parts (gid, participant, state, prepared, seen) " \
	"SELECT p.gid, $1, CASE " \
	"WHEN EXISTS (SELECT FROM pgpool.commit_decisions AS d WHERE d.id = m[1] AND d.xmin = m[2]::xid8::xid " \
	"AND m[3]::int <= cardinality(d.participants)) THEN 'commit' " \
	"WHEN m[2]::xid8 < $5::xid8 AND NOT pg_visible_in_snapshot(m[2]::xid8, pg_current_snapshot()) THEN 'running' " \
	"WHEN $4 THEN 'rollback' ELSE 'foreign' END, to_timestamp(p.prepared), now() " \
	"FROM unnest($2, $3) AS p (gid, prepared), " \
	"regexp_match(p.gid, '^(pgpx_[0-9a-f]{16}_([1-9][0-9]{0,18})_[0-9a-f]{16})_([1-9][0-9]{0,3})$') AS m " \
	"WHERE m IS NOT NULL " \
	"ON CONFLICT (gid, participant) DO UPDATE SET state = excluded.state, prepared = excluded.prepared, seen = excluded.seen " \
	"RETURNING gid, state"

/* $1 participant, $2 id, $3 error */
#define ERROR_SQL \
	"UPDATE pgpool.commit_parts SET error = $3 WHERE participant = $1 AND gid = $2"

/* $1 participant, $2 ids in Q */
#define GONE_SQL \
	"DELETE FROM pgpool.commit_parts WHERE participant = $1 AND gid <> ALL ($2)"

/* $1 snapshot, $2 participants that were visited, $3 ids in all Q */
#define DELETE_SQL \
	"DELETE FROM pgpool.commit_decisions AS d " \
	"WHERE CASE WHEN d.id ~ '^pgpx_[0-9a-f]{16}_[1-9][0-9]{0,18}_[0-9a-f]{16}$' " \
	"THEN pg_visible_in_snapshot(split_part(d.id, '_', 3)::xid8, $1::pg_snapshot) END " \
	"AND d.participants <@ $2 AND NOT EXISTS " \
	"(SELECT FROM generate_subscripts(d.participants, 1) AS n WHERE d.id || '_' || n = ANY ($3))"

/* The decided parts of participants that were not visited may be unresolved. */
#define UNVISITED_SQL \
	"INSERT INTO pgpool.commit_parts (gid, participant, state, seen) " \
	"SELECT d.id || '_' || n, d.participants[n], 'commit', now() " \
	"FROM pgpool.commit_decisions AS d, generate_subscripts(d.participants, 1) AS n " \
	"WHERE d.participants[n] = ANY ($1) LIMIT 1000 ON CONFLICT DO NOTHING"

#define FORGET_SQL \
	"DELETE FROM pgpool.commit_parts AS c WHERE NOT EXISTS " \
	"(SELECT FROM pgpool.commit_participants AS p WHERE p.id = c.participant)"

#define OLD_SQL \
	"SELECT count(*), min(gid) FROM pgpool.commit_parts WHERE prepared < now() - '1 min'::interval"

/* $1 participants, $2 their errors */
#define VISITED_SQL \
	"UPDATE pgpool.commit_participants AS p " \
	"SET error = nullif(v.error, ''), visited = CASE v.error WHEN '' THEN now() ELSE p.visited END " \
	"FROM unnest($1, $2) AS v (id, error) WHERE p.id = v.id"

#define LEFT_SQL \
	"SELECT 1 FROM pgpool.commit_parts WHERE participant = $1 UNION ALL " \
	"SELECT 1 FROM pgpool.commit_decisions AS d WHERE $1 = ANY (d.participants)"

#define REMOVE_SQL \
	"DELETE FROM pgpool.commit_participants AS p WHERE p.id = $1 AND NOT EXISTS " \
	"(SELECT FROM pgpool.commit_decisions AS d WHERE p.id = ANY (d.participants))"

/* A participant in a round. */
typedef struct Visit
{
	int32		id;
	Oid			server;
	Oid			user;
	const char *token;
	int64		system;
	const char *database;
	const char *last_error;		/* of the visit before; "": none */
	bool		may_roll_back;

	NameData	server_name;
	bool		is_off;			/* the option two_phase_commit */
	PGconn	   *pg;				/* NULL: no session */
	int			sqlstate;
	const char *error;			/* why it was not visited; NULL: it was */

	/* the last list */
	int			nparts;
	Datum		gids[PARTS_MAX];	/* text */
	Datum		prepared[PARTS_MAX];	/* float8: seconds since 1970 */
	bool		own[PARTS_MAX]; /* it belongs to our role */
} Visit;

/* What a remote session has answered to CHECK_SQL. */
typedef struct Identity
{
	bool		recovering;		/* also if it has not answered */
	int64		system;
	char		database[NAMEDATALEN];
	bool		in_use;			/* the role has other sessions that are not
								 * idle */
} Identity;

static MemoryContext round_cxt;
static Visit *visits;			/* in round_cxt */
static int	nvisits = 0;
static const char *round_snapshot;	/* from before the first visit */

/* --- SQL ------------------------------------------------------------------ */

static void
begin_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(round_cxt);
}

static void
end_transaction(void)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_cxt);
}

/* Execute SQL with n arguments, and return the number of rows. */
static int
execute(const char *sql, int n, Oid *types, Datum *values)
{
	int			rc = SPI_execute_with_args(sql, n, types, values, NULL, false,
										   0);

	if (rc < 0)
		elog(ERROR, "SPI_execute_with_args failed: %s",
			 SPI_result_code_string(rc));
	return (int) SPI_processed;
}

/* Return a field of the result; the columns are not null. */
static char *
field(int row, int column)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

static Datum
array_of(Oid type, Datum *values, int n)
{
	bool		is_text = type == TEXTOID;

	return PointerGetDatum(construct_array(values, n, type,
										   is_text ? -1 :
										   type == INT4OID ? 4 : 8,
										   !is_text,
										   type == FLOAT8OID ?
										   TYPALIGN_DOUBLE : TYPALIGN_INT));
}

/* Return the participants that were visited, or that were not. */
static Datum
participants_where(bool visited)
{
	Datum	   *ids = palloc(sizeof(Datum) * (nvisits + 1));
	int			n = 0;

	for (int i = 0; i < nvisits; i++)
		if ((visits[i].error == NULL) == visited)
			ids[n++] = Int32GetDatum(visits[i].id);
	return array_of(INT4OID, ids, n);
}

/* --- The visit ------------------------------------------------------------ */

static void
read_identity(void *arg, const PGresult *row)
{
	Identity   *identity = arg;

	if (PQnfields(row) != 4)
		return;
	identity->recovering = PQgetvalue(row, 0, 0)[0] != 'f';
	identity->system = strtoll(PQgetvalue(row, 0, 1), NULL, 10);
	strlcpy(identity->database, PQgetvalue(row, 0, 2), NAMEDATALEN);
	(void) pgpx_text_clean(identity->database);
	identity->in_use = PQgetvalue(row, 0, 3)[0] != 'f';
}

/* Log in, and ask the remote session what it is. */
static void
log_in(Visit *v, Identity *identity)
{
	PgpxServerSpec *spec;
	char		error[PGPX_ERROR_LEN];

	begin_transaction();
	spec = pgpx_server_spec_get_for(NULL, v->server, v->user, true);
	v->server_name = spec->server_name;
	pgpx_server_spec_check_unrequested(spec);
	v->is_off = spec->opts.two_phase_commit == 0;
	v->pg = pgpx_remote_log_in(spec);
	end_transaction();
	*identity = (Identity){.recovering = true};
	v->sqlstate = pgpx_remote_query(v->pg, CHECK_SQL, read_identity, identity,
									error);
	if (v->sqlstate != 0)
		ereport(ERROR, (errcode(v->sqlstate), errmsg_internal("%s", error)));
	if (identity->recovering)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the remote server is a standby")));
}

static void
read_part(void *arg, const PGresult *row)
{
	Visit	   *v = arg;
	const char *gid = PQgetvalue(row, 0, 0);
	double		prepared;

	if (v->nparts == PARTS_MAX || PQnfields(row) != 3 ||
		strlen(gid) >= PGPX_GID_SIZE ||
		strspn(gid, "pgx_0123456789abcdef") != strlen(gid))
		return;
	prepared = strtod(PQgetvalue(row, 0, 1), NULL);

	/* within the range of timestamps, and not a NaN */
	v->prepared[v->nparts] =
		Float8GetDatum(prepared > 0 && prepared < 1e11 ? prepared : 0);
	v->own[v->nparts] = PQgetvalue(row, 0, 2)[0] == 't';
	v->gids[v->nparts++] = CStringGetTextDatum(gid);
}

/* List the parts that are prepared there. */
static void
list_parts(Visit *v)
{
	char		error[PGPX_ERROR_LEN];
	int			sqlstate;

	v->nparts = 0;
	sqlstate = pgpx_remote_query(v->pg, psprintf(LIST_SQL, v->token, PARTS_MAX),
								 read_part, v, error);
	if (sqlstate != 0)
		ereport(ERROR, (errcode(sqlstate), errmsg_internal("%s", error)));
}

/* Commit or roll back a part, or record why that is not possible. */
static void
resolve_part(Visit *v, const char *gid, const char *command)
{
	Oid			types[] = {INT4OID, TEXTOID, TEXTOID};
	char		error[PGPX_ERROR_LEN];
	int			sqlstate = pgpx_remote_query(v->pg,
											 psprintf("%s PREPARED '%s'",
													  command, gid),
											 NULL, NULL, error);

	PGPX_DEBUG_POINT("resolver_resolved");

	/* its session may have ended it meanwhile */
	if (sqlstate == 0 || sqlstate == ERRCODE_UNDEFINED_OBJECT)
		return;
	begin_transaction();
	(void) execute(ERROR_SQL, lengthof(types), types,
				   (Datum[]){Int32GetDatum(v->id), CStringGetTextDatum(gid),
				   CStringGetTextDatum(error)});
	end_transaction();
}

/* Decide about the parts of P, and resolve them. */
static void
resolve_parts(Visit *v)
{
	Oid			types[] = {INT4OID, TEXTARRAYOID, FLOAT8ARRAYOID, BOOLOID, TEXTOID};
	Datum		values[5];
	const char *gids[PARTS_MAX];
	const char *states[PARTS_MAX];
	int			n = 0;

	for (int i = 0; i < v->nparts; i++)
	{
		if (!v->own[i])
			continue;
		v->gids[n] = v->gids[i];
		v->prepared[n++] = v->prepared[i];
	}
	if (n == 0)
		return;
	begin_transaction();
	(void) execute("SELECT pg_current_xact_id()", 0, NULL, NULL);
	values[0] = Int32GetDatum(v->id);
	values[1] = array_of(TEXTOID, v->gids, n);
	values[2] = array_of(FLOAT8OID, v->prepared, n);
	values[3] = BoolGetDatum(v->may_roll_back);
	values[4] = CStringGetTextDatum(field(0, 1));
	PGPX_DEBUG_POINT("resolver_running");
	n = execute(DECIDE_SQL, lengthof(types), types, values);
	for (int i = 0; i < n; i++)
	{
		gids[i] = field(i, 1);
		states[i] = field(i, 2);
	}
	end_transaction();
	PGPX_DEBUG_POINT("resolver_decided");
	for (int i = 0; i < n; i++)
		if (strcmp(states[i], "commit") == 0)
			resolve_part(v, gids[i], "COMMIT");
		else if (strcmp(states[i], "rollback") == 0)
			resolve_part(v, gids[i], "ROLLBACK");
}

/*
 * Remove a participant whose server has not the option any more, if nothing is
 * left.  A session of the role that is not idle may be about to prepare a part.
 * Do not wait for EXCLUSIVE: another round comes.
 */
static void
remove_participant(Visit *v)
{
	Oid			types[] = {INT4OID};
	Datum		values[] = {Int32GetDatum(v->id)};
	Relation	participants;

	begin_transaction();
	participants = pgpx_commit_table(PGPX_PARTICIPANTS, AccessShareLock);
	if (ConditionalLockRelation(participants, ExclusiveLock))
	{
		list_parts(v);
		if (v->nparts == 0)
			(void) execute(REMOVE_SQL, lengthof(types), types, values);
	}
	table_close(participants, NoLock);
	end_transaction();
}

static void
visit(Visit *v)
{
	Oid			types[] = {INT4OID, TEXTARRAYOID};
	Identity	identity;

	log_in(v, &identity);
	if (identity.system != v->system ||
		strcmp(identity.database, v->database) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the remote server or database is not the one in which the parts were prepared")));
	PGPX_DEBUG_POINT("resolver_visit");
	list_parts(v);
	PGPX_DEBUG_POINT("resolver_listed");
	resolve_parts(v);
	list_parts(v);
	if (v->nparts == PARTS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the remote server has %d prepared parts or more",
						PARTS_MAX)));
	begin_transaction();
	(void) execute(GONE_SQL, lengthof(types), types,
				   (Datum[]){Int32GetDatum(v->id),
				   array_of(TEXTOID, v->gids, v->nparts)});
	end_transaction();
	if (v->is_off && !identity.in_use && v->nparts == 0)
		remove_participant(v);
}

/* Visit a participant, or record the error. */
static void
try_visit(Visit *v)
{
	PG_TRY();
	{
		visit(v);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(round_cxt);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(round_cxt);
		v->sqlstate = error->sqlerrcode;
		v->error = error->detail == NULL ? error->message :
			psprintf("%s: %s", error->message, error->detail);
		v->nparts = 0;
	}
	PG_END_TRY();
	PQfinish(v->pg);
	v->pg = NULL;
}

/* --- The round ------------------------------------------------------------ */

/* Visit all participants, and delete the decisions whose parts are gone. */
static void
visit_all(void)
{
	Oid			read_types[] = {TEXTOID, BOOLOID};
	Oid			types[] = {TEXTOID, INT4ARRAYOID, TEXTARRAYOID};
	char		token[PGPX_TOKEN_LEN + 1];
	Datum	   *gids;
	int			n = 0;

	MemoryContextReset(round_cxt);
	begin_transaction();
	pgpx_commit_token(token);
	nvisits = execute(READ_SQL, lengthof(read_types), read_types,
					  (Datum[]){CStringGetTextDatum(token),
					  BoolGetDatum(pgpx_adopt_all)});
	visits = MemoryContextAllocHuge(round_cxt, sizeof(Visit) * (nvisits + 1));
	memset(visits, 0, sizeof(Visit) * (nvisits + 1));
	for (int i = 0; i < nvisits; i++)
	{
		Visit	   *v = &visits[i];

		v->id = atoi(field(i, 1));
		v->server = atooid(field(i, 2));
		v->user = atooid(field(i, 3));
		v->token = field(i, 4);
		v->system = strtoll(field(i, 5), NULL, 10);
		v->database = field(i, 6);
		v->last_error = field(i, 7);
		v->may_roll_back = field(i, 8)[0] == 't';
		round_snapshot = field(i, 9);
		(void) snprintf(NameStr(v->server_name), NAMEDATALEN, "%u", v->server);
	}
	end_transaction();
	for (int i = 0; i < nvisits; i++)
		try_visit(&visits[i]);
	PGPX_DEBUG_POINT("resolver_clean");
	for (int i = 0; i < nvisits; i++)
		n += visits[i].nparts;
	gids = palloc(sizeof(Datum) * (n + 1));
	n = 0;
	for (int i = 0; i < nvisits; i++)
		for (int j = 0; j < visits[i].nparts; j++)
			gids[n++] = visits[i].gids[j];
	begin_transaction();
	if (nvisits > 0)
		(void) execute(DELETE_SQL, lengthof(types), types,
					   (Datum[]){CStringGetTextDatum(round_snapshot),
					   participants_where(true), array_of(TEXTOID, gids, n)});
	end_transaction();
}

/*
 * Write the result of the round, and log what has changed.  The table of
 * participants may be locked for long, by DDL that waits for an errand.
 */
static void
write_round(void)
{
	Oid			types[] = {INT4ARRAYOID, TEXTARRAYOID};
	Datum	   *ids = palloc(sizeof(Datum) * (nvisits + 1));
	Datum	   *errors = palloc(sizeof(Datum) * (nvisits + 1));
	Datum		values[] = {participants_where(false), 0};
	Relation	participants;

	for (int i = 0; i < nvisits; i++)
	{
		const Visit *v = &visits[i];

		ids[i] = Int32GetDatum(v->id);
		errors[i] = CStringGetTextDatum(v->error != NULL ? v->error : "");
		if (v->error != NULL && strcmp(v->error, v->last_error) != 0)
			ereport(LOG,
					(errcode(v->sqlstate),
					 errmsg("pgpool_ext cannot look for prepared parts on server \"%s\"",
							NameStr(v->server_name)),
					 errdetail_internal("%s", v->error)));
	}
	begin_transaction();
	(void) execute(UNVISITED_SQL, 1, types, values);
	(void) execute(FORGET_SQL, 0, NULL, NULL);
	participants = pgpx_commit_table(PGPX_PARTICIPANTS, AccessShareLock);
	values[0] = array_of(INT4OID, ids, nvisits);
	values[1] = array_of(TEXTOID, errors, nvisits);
	if (ConditionalLockRelation(participants, RowExclusiveLock))
		(void) execute(VISITED_SQL, lengthof(types), types, values);
	table_close(participants, NoLock);
	end_transaction();
}

/* Log unresolved parts that are older than a minute, once a minute. */
static void
log_old_parts(void)
{
	static PgpxTime logged_at = 0;
	PgpxTime	now = pgpx_now();

	if (logged_at != 0 && now < logged_at + 60 * 1000000)
		return;
	(void) execute(OLD_SQL, 0, NULL, NULL);
	if (strcmp(field(0, 1), "0") == 0)
		return;
	logged_at = now;
	ereport(LOG,
			(errmsg("pgpool_ext has %s prepared transactions on other servers that are older than a minute",
					field(0, 1)),
			 errdetail("One of them is \"%s\".", field(0, 2)),
			 errhint("See view \"pgpool.prepared_transactions\".")));
}

/* Return whether unresolved parts are left, or may be left. */
static bool
run_round(void)
{
	bool		left;

	visit_all();
	write_round();
	begin_transaction();
	log_old_parts();
	left = execute("SELECT FROM pgpool.commit_parts WHERE state <> 'running' LIMIT 1",
				   0, NULL, NULL) > 0;
	end_transaction();
	for (int i = 0; i < nvisits; i++)
		left |= visits[i].error != NULL;
	return left;
}

/* --- Errands -------------------------------------------------------------- */

/* Log in as the resolver will, and insert the participant. */
static void
register_participant(const PgpxErrand *errand)
{
	Visit	   *v = palloc0(sizeof(Visit));
	Identity	identity;

	v->server = errand->server;
	v->user = errand->user;
	log_in(v, &identity);
	PQfinish(v->pg);
	PGPX_DEBUG_POINT("register_login");
	begin_transaction();
	pgpx_participant_insert(v->server, v->user, identity.system,
							identity.database);
	end_transaction();

	/* only now, because a resolver without participants frees the slot */
	if (pgpx_resolver_slot_claim() == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases have participants of commits on several servers"),
				 errdetail("There can be %d.", PGPX_MAX_RESOLVERS)));
	PGPX_DEBUG_POINT("register_commit");
}

/* Raise an error if a participant of the errand has unresolved parts. */
static void
check_participants(const PgpxErrand *errand)
{
	Oid			types[] = {INT4OID};

	visit_all();
	begin_transaction();
	for (int i = 0; i < nvisits; i++)
	{
		const Visit *v = &visits[i];
		Datum		values[] = {Int32GetDatum(v->id)};

		if (!pgpx_participant_matches(v->server, v->user, errand->server,
									  errand->user))
			continue;
		if (v->error != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("server \"%s\" may have prepared transactions that are not resolved",
							NameStr(v->server_name)),
					 errdetail_internal("%s", v->error)));
		if (execute(LEFT_SQL, lengthof(types), types, values) > 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("server \"%s\" has prepared transactions that are not resolved",
							NameStr(v->server_name))));
	}
	end_transaction();
}

/* Do an errand, and write its result. */
static void
run_errand(PgpxErrand *errand)
{
	PG_TRY();
	{
		if (errand->registers)
			register_participant(errand);
		else
			check_participants(errand);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(round_cxt);
		error = CopyErrorData();
		FlushErrorState();
		errand->sqlstate = error->sqlerrcode;
		strlcpy(errand->message, error->message, sizeof(errand->message));
		if (error->detail != NULL)
			strlcpy(errand->detail, error->detail, sizeof(errand->detail));
	}
	PG_END_TRY();
	errand->done = true;
	proc_exit(0);
}

/* --- The process ---------------------------------------------------------- */

void
pgpx_resolver_wake(void)
{
	PgpxResolverSlot *slot = pgpx_shared != NULL ? pgpx_resolver_slot() : NULL;
	uint32		process;

	if (slot == NULL)
		return;
	pg_atomic_fetch_add_u32(&slot->wakes, 1);
	process = pg_atomic_read_u32(&slot->process);
	if (process != 0)
		pgpx_process_wake((int) process - 1);
	else
		pgpx_worker_wake(0);
}

static bool
has_participants(void)
{
	bool		has;

	begin_transaction();
	has = OidIsValid(get_extension_oid("pgpool_ext", true)) &&
		execute("SELECT FROM pgpool.commit_participants LIMIT 1", 0, NULL, NULL) > 0;
	end_transaction();
	return has;
}

static void
leave_slot(int code, Datum slot)
{
	pg_atomic_write_u32(&((PgpxResolverSlot *) DatumGetPointer(slot))->process,
						0);
}

/*
 * Run rounds until nothing is left.  A part may be prepared late, so the first
 * round after a wake is followed by another one.
 */
static void
run_rounds(PgpxResolverSlot *slot)
{
	static uint32 wait_event = 0;
	uint32		seen = pg_atomic_read_u32(&slot->served);
	int64		pause_ms = 0;

	for (;;)
	{
		uint32		wakes = pg_atomic_read_u32(&slot->wakes);
		bool		again = run_round() || wakes != seen;

		/* a login in a thread ends with the process, and the next one goes on */
		if (pgpx_remote_has_abandoned)
			return;
		pg_atomic_write_u32(&slot->served, wakes);
		if (!again && pg_atomic_read_u32(&slot->wakes) == wakes)
			return;
		seen = wakes;
		pause_ms = pgpx_backoff_next(pause_ms, PAUSE_MIN_MS, PAUSE_MAX_MS);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(pause_ms, pgpx_resolve_interval),
						 pgpx_wait_event(&wait_event, "PgpoolResolver"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}

/*
 * Set what a database can set for its sessions.  In REPEATABLE READ, the snapshot
 * that decides would be too old.
 */
static void
set_settings(void)
{
	static const char *const settings[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"session_replication_role", "origin"},
		{"statement_timeout", "0"},
		{"transaction_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"lock_timeout", "2s"},
		{"synchronous_commit", "local"},
	};

	for (int i = 0; i < lengthof(settings); i++)
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET,
							PGC_S_OVERRIDE);
}

void
pgpx_resolver_main(Datum arg)
{
	dsm_handle	handle;
	PgpxErrand *errand = NULL;
	PgpxResolverSlot *slot;

	pgpx_remote_sessions_init();
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&handle, MyBgworkerEntry->bgw_extra, sizeof(handle));
	if (handle != 0)
	{
		dsm_segment *segment = dsm_attach(handle);

		if (segment == NULL)
			proc_exit(0);		/* the session has ended */
		dsm_pin_mapping(segment);
		errand = dsm_segment_address(segment);
	}
	set_settings();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid,
											  0);
	round_cxt = AllocSetContextCreate(TopMemoryContext,
									  "pgpool_ext resolver",
									  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_cxt);
	if (errand != NULL)
		run_errand(errand);
	slot = pgpx_resolver_slot();
	if (slot == NULL)
		proc_exit(0);
	pg_atomic_write_u32(&slot->process, MyProcNumber + 1);
	on_shmem_exit(leave_slot, PointerGetDatum(slot));
	if (has_participants())
		run_rounds(slot);
	else
	{
		/* if one was registered after the look, claim the slot again */
		pg_atomic_write_u32(&slot->database, InvalidOid);
		if (has_participants())
			(void) pgpx_resolver_slot_claim();
	}
	proc_exit(0);
}
