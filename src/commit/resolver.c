/*-------------------------------------------------------------------------
 *
 * resolver.c
 *	  The resolver: it visits the participants of a database, and commits or
 *	  rolls back the parts that sessions have left.
 *
 * A round visits all participants, one after the other.  src/README.md has the
 * checks, the order P, A and T, Q, and the rights of an origin.  Further rules:
 * - An xid that was not assigned before the snapshot was lost in a crash.
 * - A decision is looked up by the whole id, whatever participants it names, as
 *	 two of them may be one database.  The check of its raw xmin rejects forged,
 *	 restored and replicated rows.
 * - A decision is deleted if it was visible when the round began, all of its
 *	 participants were visited since, and no Q, which has the parts of all roles,
 *	 has a part of it.
 * - A remote server is not trusted: it affects its own parts only.  Only
 *	 well-formed ids are used, and their number is bounded.
 *
 * The process executes SQL as the bootstrap superuser, on tables of the
 * extension only, which it locks against DROP EXTENSION.  Its settings are its
 * own.
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/backoff.h"
#include "base/debug_point.h"
#include "base/settings.h"
#include "protocol/remote_message.h"
#include "shared/registry.h"
#include "values/rows.h"
#include "worker/task_queue.h"
#include "worker/worker.h"

/* Parts of one participant that a visit reads. */
#define PARTS_MAX 1000

/* Pauses between the rounds of a resolver that has unresolved parts. */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS 5000

/*
 * The remote session describes itself.  The last column tells whether a remote
 * session whose local session has died may still prepare a part: the remote
 * session has written, and its last statement was the question or PREPARE
 * TRANSACTION, or is hidden.  Remote sessions of leases do not count, because a
 * living local session holds a lock on participants when it prepares a part.
 */
#define CHECK_SQL				/* remote pids of all leases */ \
	"SET search_path = pg_catalog; " \
	"SELECT system_identifier, current_database(), " \
	"EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user AND backend_xid IS NOT NULL " \
	"AND query ~ '^$|PREPARE TRANSACTIO[N]|current_if_assigne[d]' AND pid <> ALL ('%s'::int[])) " \
	"FROM pg_control_system() WHERE NOT pg_is_in_recovery()"

/* P, which is what our role owns, and Q.  The origin needs no quoting: see READ_SQL. */
#define LIST_SQL \
	"SELECT gid, extract(epoch FROM prepared) " \
	"FROM pg_prepared_xacts WHERE database = current_database() AND left(gid, 22) = 'pgpx_%s_' %s" \
	"ORDER BY prepared LIMIT %d"
#define OWN_SQL "AND owner = current_user "

/* Local statements.  All arguments are texts. */
#define READ_SQL				/* $1 our origin, $2 adopt all; first the columns of PgpxParticipant */ \
	"SELECT id, server, user_id, origin, system_identifier, database, coalesce(error, ''), " \
	"$2::bool OR origin = $1 OR coalesce(adopter = $1, false), pg_current_snapshot() " \
	"FROM pgpool.commit_participants WHERE origin ~ '^[0-9a-f]{16}$' " \
	"ORDER BY error IS NOT NULL, id"

#define DECIDE_SQL				/* $1 participant, $2 parts, $3 their times, $4 may roll back, $5 our xid */ \
	"INSERT INTO pgpool.commit_parts (gid, participant, state, prepared, seen) " \
	"SELECT p.gid, $1::int, CASE " \
	"WHEN EXISTS (SELECT FROM pgpool.commit_decisions AS d WHERE d.id = m[1] AND d.xmin = m[2]::xid8::xid " \
	"AND m[3]::int <= cardinality(d.participants)) THEN 'commit' " \
	"WHEN m[2]::xid8 < $5::xid8 AND NOT pg_visible_in_snapshot(m[2]::xid8, pg_current_snapshot()) THEN 'running' " \
	"WHEN $4::bool THEN 'rollback' ELSE 'foreign' END, to_timestamp(p.prepared), now() " \
	"FROM unnest($2::text[], $3::float8[]) AS p (gid, prepared), " \
	"regexp_match(p.gid, '^(pgpx_[0-9a-f]{16}_([1-9][0-9]{0,18})_[0-9a-f]{16})_([1-9][0-9]{0,3})$') AS m " \
	"WHERE m IS NOT NULL " \
	"ON CONFLICT (gid, participant) DO UPDATE SET state = excluded.state, prepared = excluded.prepared, seen = excluded.seen " \
	"RETURNING gid, state"

#define ERROR_SQL				/* $1 participant, $2 part, $3 error */ \
	"UPDATE pgpool.commit_parts SET error = $3 WHERE participant = $1::int AND gid = $2"

#define GONE_SQL				/* $1 participant, $2 Q */ \
	"DELETE FROM pgpool.commit_parts WHERE participant = $1::int AND gid <> ALL ($2::text[])"

#define DELETE_SQL				/* $1 snapshot, $2 visited participants, $3 all Q */ \
	"DELETE FROM pgpool.commit_decisions AS d " \
	"WHERE CASE WHEN d.id ~ '^pgpx_[0-9a-f]{16}_[1-9][0-9]{0,18}_[0-9a-f]{16}$' " \
	"THEN pg_visible_in_snapshot(split_part(d.id, '_', 3)::xid8, $1::pg_snapshot) END " \
	"AND d.participants <@ $2::int[] AND NOT EXISTS " \
	"(SELECT FROM generate_subscripts(d.participants, 1) AS n WHERE d.id || '_' || n = ANY ($3::text[]))"

/* The decided parts of a participant that was not visited may be unresolved. */
#define UNVISITED_SQL			/* $1 participant */ \
	"INSERT INTO pgpool.commit_parts (gid, participant, state, seen) " \
	"SELECT d.id || '_' || n, $1::int, 'commit', now() " \
	"FROM pgpool.commit_decisions AS d, generate_subscripts(d.participants, 1) AS n " \
	"WHERE d.participants[n] = $1::int LIMIT 1000 " \
	"ON CONFLICT (gid, participant) DO UPDATE SET state = excluded.state " \
	"WHERE commit_parts.state <> excluded.state"

#define VISITED_SQL				/* $1 participant, $2 error */ \
	"UPDATE pgpool.commit_participants SET error = nullif($2, ''), " \
	"visited = CASE $2 WHEN '' THEN now() ELSE visited END WHERE id = $1::int"

#define FORGET_SQL \
	"DELETE FROM pgpool.commit_parts AS c WHERE NOT EXISTS " \
	"(SELECT FROM pgpool.commit_participants AS p WHERE p.id = c.participant)"

#define LEFT_SQL \
	"SELECT count(*) FILTER (WHERE state <> 'running'), " \
	"count(*) FILTER (WHERE prepared < now() - '1 min'::interval), " \
	"coalesce(min(gid) FILTER (WHERE prepared < now() - '1 min'::interval), '') FROM pgpool.commit_parts"

/* The decisions that a forgotten participant keeps do not count. */
#define LEFT_OF_SQL				/* $1 participant */ \
	"SELECT 1 FROM pgpool.commit_parts WHERE participant = $1::int UNION ALL " \
	"SELECT 1 FROM pgpool.commit_decisions WHERE $1::int = ANY (participants) " \
	"AND participants <@ ARRAY(SELECT id FROM pgpool.commit_participants)"

#define REMOVE_SQL				/* $1 participant */ \
	"DELETE FROM pgpool.commit_participants WHERE id = $1::int AND NOT EXISTS (" LEFT_OF_SQL ")"

/* No row is added if the newest one says the same. */
#define REGISTER_SQL			/* $1 server, $2 user, $3 our origin, $4 system, $5 database */ \
	"INSERT INTO pgpool.commit_participants (id, server, user_id, origin, system_identifier, database) " \
	"SELECT nextval('pgpool.commit_participants_id_seq'), $1::oid, $2::oid, $3, $4::int8, $5 " \
	"WHERE ($4::int8, $5) NOT IN (SELECT system_identifier, database FROM pgpool.commit_participants " \
	"WHERE server = $1::oid AND user_id = $2::oid AND origin = $3 ORDER BY id DESC LIMIT 1)"

/* A participant in a round. */
typedef struct Visit
{
	PgpxParticipant p;
	const char *id;				/* of it, as text */
	const char *last_error;		/* of the visit before; "": none */
	const char *may_roll_back;	/* "t" or "f" */

	NameData	server_name;
	bool		is_off;			/* the option two_phase_commit */
	PGconn	   *pg;				/* NULL: no session */
	const char *error;			/* why it was not visited; NULL: it was */

	/* what the remote session has answered */
	int64		real_system;	/* 0: it is a standby */
	char		real_database[NAMEDATALEN];
	bool		prepares;		/* the last column of CHECK_SQL */
	int			nparts;			/* in the last list */
	StringInfoData gids;		/* .. their ids, each after a comma */
	StringInfoData times;		/* .. in seconds since 1970 */
	int			ncommitted;
	int			nrolled_back;
} Visit;

static MemoryContext round_cxt;
static Relation participants;	/* open and locked in each transaction */
static Visit *visits;			/* in round_cxt */
static int	nvisits = 0;

/* --- SQL ------------------------------------------------------------------ */

/* Return false if the extension was dropped. */
static bool
try_begin(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	SPI_connect();
	participants = pgpx_commit_table(PGPX_PARTICIPANTS, AccessShareLock, true);
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(round_cxt);
	return participants != NULL;
}

static void
begin_transaction(void)
{
	if (!try_begin())
		proc_exit(0);
}

static void
end_transaction(void)
{
	if (participants != NULL)
		table_close(participants, NoLock);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_cxt);
}

/*
 * Execute SQL with n texts as arguments, in a transaction of its own if there is
 * none.  Return the number of rows.
 */
static int
execute(const char *sql, int n, ...)
{
	bool		alone = !IsTransactionState();
	Oid			types[] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID};
	Datum		values[lengthof(types)];
	va_list		args;
	int			nrows;
	int			rc;

	if (alone)
		begin_transaction();
	va_start(args, n);
	for (int i = 0; i < n; i++)
		values[i] = CStringGetTextDatum(va_arg(args, const char *));
	va_end(args);
	rc = SPI_execute_with_args(sql, n, types, values, NULL, false, 0);
	MemoryContextSwitchTo(round_cxt);
	if (rc < 0)
		elog(ERROR, "SPI_execute_with_args failed: %s",
			 SPI_result_code_string(rc));
	nrows = (int) SPI_processed;
	if (alone)
		end_transaction();
	return nrows;
}

/* End a transaction that has failed, and return the error. */
static ErrorData *
catch_error(void)
{
	ErrorData  *error;

	MemoryContextSwitchTo(round_cxt);
	error = CopyErrorData();
	FlushErrorState();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(round_cxt);
	return error;
}

/* Return a field of the result; none is null. */
static const char *
field(int row, int column)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

/* Return an array of values that need no quotes, each after a comma. */
static const char *
array_of(const char *values)
{
	return psprintf("{%s}", values[0] != '\0' ? values + 1 : "");
}

/* --- The visit ------------------------------------------------------------ */

static void
read_identity(void *arg, const PGresult *row)
{
	Visit	   *v = arg;

	if (PQnfields(row) != 3)
		return;
	v->real_system = strtoll(PQgetvalue(row, 0, 0), NULL, 10);
	strlcpy(v->real_database, PQgetvalue(row, 0, 1), NAMEDATALEN);
	(void) pgpx_text_clean(v->real_database);
	v->prepares = PQgetvalue(row, 0, 2)[0] != 'f';
}

static void
check_remote(Visit *v)
{
	StringInfoData leased;

	initStringInfo(&leased);

	/* unlocked read: a lease that ends now has sent no PREPARE, or holds the lock */
	for (int i = 0; i < pgpx_shared->max_connections; i++)
		if (pgpx_conns[i].state == PGPX_CONN_LEASED)
			appendStringInfo(&leased, ",%d", pgpx_conns[i].remote_pid);
	(void) pgpx_remote_query(v->pg, psprintf(CHECK_SQL, array_of(leased.data)),
							 read_identity, v, true);
}

/* Log in, and ask the remote session what it is, and what others of its role do. */
static void
log_in(Visit *v)
{
	PgpxServerSpec *spec;

	StartTransactionCommand();
	MemoryContextSwitchTo(round_cxt);
	spec = pgpx_server_spec_get_for(NULL, v->p.server, v->p.user, true);
	v->server_name = spec->server_name;
	v->is_off = spec->opts.two_phase_commit == 0;
	pgpx_server_spec_check_unrequested(spec);
	v->pg = pgpx_remote_log_in(spec);
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_cxt);
	check_remote(v);
	if (v->real_system == 0)
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

	if (v->nparts == PARTS_MAX || PQnfields(row) != 2 || gid[0] == '\0' ||
		strlen(gid) >= PGPX_GID_SIZE ||
		strspn(gid, "pgx_0123456789abcdef") != strlen(gid))
		return;
	v->nparts++;
	appendStringInfo(&v->gids, ",%s", gid);

	/* within the range of timestamps, and not a NaN */
	prepared = strtod(PQgetvalue(row, 0, 1), NULL);
	appendStringInfo(&v->times, ",%.6f",
					 prepared > 0 && prepared < 1e11 ? prepared : 0.0);
}

/* List the parts that are prepared there.  condition: OWN_SQL or "". */
static void
list_parts(Visit *v, const char *condition)
{
	initStringInfo(&v->gids);
	initStringInfo(&v->times);
	v->nparts = 0;
	(void) pgpx_remote_query(v->pg,
							 psprintf(LIST_SQL, NameStr(v->p.origin), condition,
									  PARTS_MAX),
							 read_part, v, true);
}

/* Commit or roll back a part and count it, or record why it is not possible. */
static void
resolve_part(Visit *v, const char *gid, const char *command, int *count)
{
	char		error[PGPX_ERROR_LEN];
	int			sqlstate = pgpx_remote_query(v->pg,
											 psprintf("%s PREPARED '%s'",
													  command, gid),
											 NULL, NULL, false);

	PGPX_DEBUG_POINT("resolver_resolved");

	/* its session may have ended it meanwhile */
	if (sqlstate != 0 && sqlstate != ERRCODE_UNDEFINED_OBJECT)
	{
		pgpx_libpq_one_line(error, sizeof(error), PQerrorMessage(v->pg));
		(void) execute(ERROR_SQL, 3, v->id, gid, pgpx_text_clean(error));
	}
	*count += sqlstate == 0 ? 1 : 0;
}

/* Decide about the parts of P, and resolve them. */
static void
resolve_parts(Visit *v)
{
	const char *gids[PARTS_MAX];
	const char *states[PARTS_MAX];
	int			n;

	begin_transaction();
	(void) execute("SELECT pg_current_xact_id()", 0);
	PGPX_DEBUG_POINT("resolver_running");
	n = execute(DECIDE_SQL, 5, v->id, array_of(v->gids.data),
				array_of(v->times.data), v->may_roll_back, field(0, 1));
	for (int i = 0; i < n; i++)
	{
		gids[i] = field(i, 1);
		states[i] = field(i, 2);
	}
	end_transaction();
	PGPX_DEBUG_POINT("resolver_decided");
	for (int i = 0; i < n; i++)
		if (strcmp(states[i], "commit") == 0)
			resolve_part(v, gids[i], "COMMIT", &v->ncommitted);
		else if (strcmp(states[i], "rollback") == 0)
			resolve_part(v, gids[i], "ROLLBACK", &v->nrolled_back);
}

/*
 * Remove a participant whose server has not the option any more, if nothing is
 * left.  Do not wait for EXCLUSIVE: another round comes.
 */
static void
remove_participant(Visit *v)
{
	PGPX_DEBUG_POINT("resolver_remove");
	begin_transaction();
	if (ConditionalLockRelation(participants, ExclusiveLock))
	{
		check_remote(v);
		list_parts(v, "");
		if (!v->prepares && v->nparts == 0)
			(void) execute(REMOVE_SQL, 1, v->id);
	}
	end_transaction();
}

static void
visit(Visit *v)
{
	log_in(v);
	if (v->real_system != v->p.system ||
		strcmp(v->real_database, NameStr(v->p.database)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the remote server or database is not the one in which the parts were prepared")));
	PGPX_DEBUG_POINT("resolver_visit");
	list_parts(v, OWN_SQL);
	PGPX_DEBUG_POINT("resolver_listed");
	if (v->nparts > 0)
		resolve_parts(v);
	list_parts(v, "");
	if (v->nparts == PARTS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the remote server has %d prepared parts or more",
						PARTS_MAX)));
	(void) execute(GONE_SQL, 2, v->id, array_of(v->gids.data));
	if (v->is_off && !v->prepares && v->nparts == 0)
		remove_participant(v);
}

/* Visit a participant, or record and log the error. */
static void
try_visit(Visit *v)
{
	PG_TRY();
	{
		visit(v);
	}
	PG_CATCH();
	{
		ErrorData  *error = catch_error();

		v->error = error->detail == NULL ? error->message :
			psprintf("%s: %s", error->message, error->detail);
		if (strcmp(v->error, v->last_error) != 0)
			ereport(LOG,
					(errcode(error->sqlerrcode),
					 errmsg("pgpool_ext cannot look for prepared parts on server \"%s\"",
							NameStr(v->server_name)),
					 errdetail_internal("%s", v->error)));
	}
	PG_END_TRY();
	PQfinish(v->pg);
	if (v->ncommitted + v->nrolled_back > 0)
		ereport(LOG,
				(errmsg("pgpool_ext has committed %d and rolled back %d prepared transactions on server \"%s\"",
						v->ncommitted, v->nrolled_back,
						NameStr(v->server_name))));
}

/* --- The round ------------------------------------------------------------ */

/* Visit all participants, and delete the decisions whose parts are gone. */
static void
visit_all(void)
{
	const char *snapshot = "";
	StringInfoData visited;
	StringInfoData left;

	MemoryContextReset(round_cxt);
	begin_transaction();
	nvisits = execute(READ_SQL, 2, pgpx_commit_origin(),
					  pgpx_adopt_all ? "t" : "f");
	visits = palloc0(sizeof(Visit) * (nvisits + 1));
	for (int i = 0; i < nvisits; i++)
	{
		Visit	   *v = &visits[i];

		memcpy(&v->p, GETSTRUCT(SPI_tuptable->vals[i]),
			   offsetof(PgpxParticipant, row));
		v->id = field(i, 1);
		v->last_error = field(i, 7);
		v->may_roll_back = field(i, 8);
		snapshot = field(i, 9);
		snprintf(NameStr(v->server_name), NAMEDATALEN, "%u", v->p.server);
	}
	end_transaction();
	if (nvisits == 0)
		return;
	initStringInfo(&visited);
	initStringInfo(&left);
	for (int i = 0; i < nvisits; i++)
	{
		try_visit(&visits[i]);
		if (visits[i].error != NULL)
			continue;
		appendStringInfo(&visited, ",%s", visits[i].id);
		appendStringInfoString(&left, visits[i].gids.data);
	}
	PGPX_DEBUG_POINT("resolver_clean");
	(void) execute(DELETE_SQL, 3, snapshot, array_of(visited.data),
				   array_of(left.data));
}

/*
 * Write what the round has found.  DDL that waits for an errand may have locked
 * the participants.
 */
static void
write_round(void)
{
	bool		locked;

	begin_transaction();
	locked = ConditionalLockRelation(participants, RowExclusiveLock);
	for (int i = 0; i < nvisits; i++)
	{
		const Visit *v = &visits[i];

		if (v->error != NULL)
			(void) execute(UNVISITED_SQL, 1, v->id);
		if (locked)
			(void) execute(VISITED_SQL, 2, v->id,
						   v->error != NULL ? v->error : "");
	}
	(void) execute(FORGET_SQL, 0);
	end_transaction();
}

/*
 * Return whether unresolved parts are left, or may be left.  Log once a minute
 * that parts are older than a minute.
 */
static bool
run_round(void)
{
	static PgpxTime logged_at = 0;
	bool		left;

	visit_all();
	write_round();
	begin_transaction();
	(void) execute(LEFT_SQL, 0);
	left = strcmp(field(0, 1), "0") != 0;
	if (strcmp(field(0, 2), "0") != 0 &&
		(logged_at == 0 || pgpx_now() >= logged_at + 60 * 1000000))
	{
		logged_at = pgpx_now();
		ereport(LOG,
				(errmsg("pgpool_ext has %s prepared transactions on other servers that are older than a minute",
						field(0, 2)),
				 errdetail("One of them is \"%s\".", field(0, 3)),
				 errhint("See view \"pgpool.prepared_transactions\".")));
	}
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
	Visit		v = {.p = {.server = errand->server, .user = errand->user}};

	log_in(&v);
	PQfinish(v.pg);
	begin_transaction();

	/* a failover must not undo it; two workers must not insert the same */
	pgpx_set_local("synchronous_commit", "on");
	LockRelation(participants, ShareRowExclusiveLock);
	if (pgpx_resolver_slot_claim() == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases have participants of commits on several servers"),
				 errdetail("There can be %d.", PGPX_MAX_RESOLVERS)));
	PGPX_DEBUG_POINT("register_claimed");
	(void) execute(REGISTER_SQL, 5, psprintf("%u", v.p.server),
				   psprintf("%u", v.p.user), pgpx_commit_origin(),
				   psprintf(INT64_FORMAT, v.real_system), v.real_database);
	end_transaction();
	PGPX_DEBUG_POINT("register_commit");
}

/* Raise an error if a participant of the errand has unresolved parts. */
static void
check_participants(const PgpxErrand *errand)
{
	visit_all();
	begin_transaction();
	for (int i = 0; i < nvisits; i++)
	{
		const Visit *v = &visits[i];
		const char *reason = v->error;

		if (!pgpx_participant_matches(&v->p, errand->server, errand->user))
			continue;
		if (reason == NULL && v->prepares)
			reason = "A remote session is preparing one.";
		if (reason == NULL && execute(LEFT_OF_SQL, 1, v->id) > 0)
			reason = "Some are in view pgpool.prepared_transactions, or their decisions still exist.";
		if (reason != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("server \"%s\" may have prepared transactions that are not resolved",
							NameStr(v->server_name)),
					 errdetail_internal("%s", reason)));
	}
	end_transaction();
}

/* Do an errand, and write its result. */
static void
run_errand(dsm_handle handle)
{
	dsm_segment *segment = dsm_attach(handle);
	PgpxErrand *errand;

	if (segment == NULL)
		proc_exit(0);			/* the session has ended */
	dsm_pin_mapping(segment);
	errand = dsm_segment_address(segment);
	PG_TRY();
	{
		if (errand->registers)
			register_participant(errand);
		else
			check_participants(errand);
		errand->sqlstate = 0;
	}
	PG_CATCH();
	{
		ErrorData  *error = catch_error();

		errand->sqlstate = error->sqlerrcode;
		strlcpy(errand->primary, error->message, sizeof(errand->primary));
		strlcpy(errand->detail, error->detail != NULL ? error->detail : "",
				sizeof(errand->detail));
	}
	PG_END_TRY();
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

/*
 * Return true if this database has participants; else free the slot.  It stays if
 * the lock shows that a worker has claimed it and is registering a participant.
 */
static bool
keep_or_free_slot(PgpxResolverSlot *slot)
{
	bool		found = false;
	bool		locked = true;

	if (try_begin())
	{
		locked = ConditionalLockRelation(participants, RowExclusiveLock);
		found = execute("SELECT FROM pgpool.commit_participants LIMIT 1", 0) > 0;
	}
	if (!found && locked)
		pg_atomic_write_u32(&slot->database, InvalidOid);
	end_transaction();
	return found;
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
	int64		pause_ms = 0;

	for (;;)
	{
		uint32		wakes = pg_atomic_read_u32(&slot->wakes);
		bool		again = run_round() ||
			wakes != pg_atomic_read_u32(&slot->served);

		/* a login in a thread ends with the process, and the next one goes on */
		if (pgpx_remote_has_abandoned)
			return;
		pg_atomic_write_u32(&slot->served, wakes);
		if (!again && pg_atomic_read_u32(&slot->wakes) == wakes)
			return;
		pause_ms = pgpx_backoff_next(pause_ms, PAUSE_MIN_MS, PAUSE_MAX_MS);
		pgpx_remote_wait(PGINVALID_SOCKET, 0,
						 Min(pause_ms, pgpx_resolve_interval));
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
	const char *settings[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"transaction_timeout", "0"},
		{"lock_timeout", "2s"},
		{"synchronous_commit", "local"},	/* what a failover undoes is done again */
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
	PgpxResolverSlot *slot;

	on_proc_exit(pgpx_task_exit, (Datum) 0);
	pgpx_worker_clean_environment();
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	set_settings();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid,
											  0);
	round_cxt = AllocSetContextCreate(TopMemoryContext,
									  "pgpool_ext resolver",
									  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_cxt);
	memcpy(&handle, MyBgworkerEntry->bgw_extra, sizeof(handle));
	if (handle != 0)
		run_errand(handle);
	slot = pgpx_resolver_slot();
	if (slot == NULL)
		proc_exit(0);
	pg_atomic_write_u32(&slot->process, MyProcNumber + 1);
	on_shmem_exit(leave_slot, PointerGetDatum(slot));
	if (keep_or_free_slot(slot))
		run_rounds(slot);
	else
		PGPX_DEBUG_POINT("resolver_ends");
	proc_exit(0);
}
