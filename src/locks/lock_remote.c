/*-------------------------------------------------------------------------
 *
 * lock_remote.c
 *	  The tables of schema pgpool_lock: their definitions, and the statements
 *	  that sessions and workers execute on them.
 *
 * Each lock is one row of pgpool_lock.locks, and each operation one statement.
 * The statements use only the remote's clock.  This file sends the statements
 * of sessions; lock_pinger.c sends those of the worker.
 *
 * The token is part of a unique key.  A statement that changes it therefore
 * conflicts with FOR KEY SHARE row locks, which transactions hold that have
 * called fence_check.  A ping does not change the token and does not wait for
 * them.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/lock_remote.h"

#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "session/statement.h"

/*
 * PL/pgSQL: look up the objects of schema pgpool_lock, and the functions,
 * operators and types on which the triggers on its tables depend, also in WHEN.
 * Raise 55000 if one of them has an untrusted owner, because the owner could
 * change it and so run code as each user of the locks.  Set "found.tables" to
 * the number of the tables that exist.
 *
 * Trusted are the owner of the database, superusers, and the login role itself.
 * After SET ROLE the login role is not the current user.  The search_path is
 * the user's: see request_sql.
 */
#define CHECK_OWNERS \
	"	SELECT pg_catalog.count(*) FILTER (WHERE o.is_table) AS tables,\n" \
	"		pg_catalog.min(r.rolname::pg_catalog.text) FILTER (WHERE NOT (r.rolsuper\n" \
	"			OR r.oid OPERATOR(pg_catalog.=) (SELECT d.datdba FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())\n" \
	"			OR r.oid OPERATOR(pg_catalog.=) (SELECT a.usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a))) AS stranger\n" \
	"		INTO found\n" \
	"		FROM (SELECT n.nspowner, false FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) 'pgpool_lock'\n" \
	"			UNION ALL SELECT c.relowner, true FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace\n" \
	"				WHERE n.nspname OPERATOR(pg_catalog.=) 'pgpool_lock' AND c.relname OPERATOR(pg_catalog.=) ANY ('{locks,pings}'::pg_catalog.name[])\n" \
	"			UNION ALL SELECT COALESCE(f.proowner, p.oprowner, y.typowner), false FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace\n" \
	"				JOIN pg_catalog.pg_trigger AS t ON t.tgrelid OPERATOR(pg_catalog.=) c.oid\n" \
	"				JOIN pg_catalog.pg_depend AS d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_trigger'::pg_catalog.regclass AND d.objid OPERATOR(pg_catalog.=) t.oid\n" \
	"				LEFT JOIN pg_catalog.pg_proc AS f ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass AND f.oid OPERATOR(pg_catalog.=) d.refobjid\n" \
	"				LEFT JOIN pg_catalog.pg_operator AS p ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass AND p.oid OPERATOR(pg_catalog.=) d.refobjid\n" \
	"				LEFT JOIN pg_catalog.pg_type AS y ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass AND y.oid OPERATOR(pg_catalog.=) d.refobjid\n" \
	"				WHERE n.nspname OPERATOR(pg_catalog.=) 'pgpool_lock' AND c.relname OPERATOR(pg_catalog.=) ANY ('{locks,pings}'::pg_catalog.name[])\n" \
	"			UNION ALL SELECT f.proowner, false FROM pg_catalog.pg_proc AS f JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) f.pronamespace\n" \
	"				WHERE n.nspname OPERATOR(pg_catalog.=) 'pgpool_lock' AND f.proname OPERATOR(pg_catalog.=) 'fence_check') AS o(owner, is_table)\n" \
	"		JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) o.owner;\n" \
	"	IF found.stranger IS NOT NULL THEN\n" \
	"		RAISE EXCEPTION 'schema pgpool_lock or an object in it belongs to role \"%\"', found.stranger\n" \
	"			USING ERRCODE = 'object_not_in_prerequisite_state',\n" \
	"				DETAIL = 'The owner of these objects controls code that all users of the locks execute.',\n" \
	"				HINT = 'They must belong to the owner of the remote database, a superuser, or the role that logs in. If the schema is not yours, drop it, and run pgpool.lock_setup.';\n" \
	"	END IF;\n"

/*
 * The tables must exist here, so that another role cannot create them between
 * this statement and the next one.
 */
const char	pgpx_verify_sql[] =
	"DO $verify$\n"
	"DECLARE\n"
	"	found record;\n"
	"BEGIN\n" CHECK_OWNERS
	"	IF found.tables OPERATOR(pg_catalog.<>) 2::pg_catalog.int8 THEN\n"
	"		RAISE EXCEPTION 'tables of schema \"pgpool_lock\" do not exist'\n"
	"			USING ERRCODE = 'undefined_table';\n"
	"	END IF;\n"
	"END $verify$";

/* Create the tables, or verify existing ones. */
static const char setup_sql[] =
	"SET LOCAL search_path = pg_catalog, pg_temp;\n"
	"SET LOCAL client_min_messages = warning;\n"
	"SELECT pg_catalog.pg_advisory_xact_lock(7301986420915);\n"
	"DO $setup$\n"
	"DECLARE\n"
	"	found record;\n"
	"BEGIN\n" CHECK_OWNERS
	"	IF pg_catalog.to_regnamespace('pgpool_lock') IS NULL THEN\n"
	"		CREATE SCHEMA pgpool_lock;\n"
	"	END IF;\n"
	"	IF pg_catalog.to_regclass('pgpool_lock.locks') IS NULL THEN\n"
	"		CREATE TABLE pgpool_lock.locks (\n"
	"			name pg_catalog.text PRIMARY KEY,\n"
	"			token pg_catalog.int8 NOT NULL,\n"
	"			state pg_catalog.text NOT NULL CHECK (state IN ('held', 'free')),\n"
	"			instance pg_catalog.text NOT NULL,\n"
	"			request pg_catalog.int8 NOT NULL,\n"
	"			holder pg_catalog.text NOT NULL,\n"
	"			why pg_catalog.text,\n"
	"			since pg_catalog.timestamptz NOT NULL,\n"
	"			ttl pg_catalog.interval NOT NULL,\n"
	"			pinged pg_catalog.timestamptz,\n"
	"			contended pg_catalog.timestamptz,\n"
	"			expires pg_catalog.timestamptz NOT NULL,\n"
	"			UNIQUE (name, token)\n"
	"		) WITH (fillfactor = 50);\n"
	"		COMMENT ON TABLE pgpool_lock.locks IS 'distributed locks of pgpool_ext';\n"
	"	END IF;\n"
	"	IF pg_catalog.to_regclass('pgpool_lock.pings') IS NULL THEN\n"
	"		CREATE TABLE pgpool_lock.pings (\n"
	"			instance pg_catalog.text PRIMARY KEY,\n"
	"			pinged pg_catalog.timestamptz NOT NULL\n"
	"		) WITH (fillfactor = 50);\n"
	"		COMMENT ON TABLE pgpool_lock.pings IS 'servers that hold distributed locks of pgpool_ext, or did';\n"
	"	END IF;\n"
	"	PERFORM name, token, state, instance, request, holder, why, since, ttl, pinged, contended, expires\n"
	"		FROM pgpool_lock.locks LIMIT 0;\n"
	"	PERFORM instance, pinged FROM pgpool_lock.pings LIMIT 0;\n"
	"	IF (SELECT pg_catalog.count(*) FROM pg_catalog.pg_index i\n"
	"			WHERE i.indrelid = pg_catalog.to_regclass('pgpool_lock.locks')\n"
	"			AND i.indisunique AND i.indisvalid AND i.indpred IS NULL\n"
	"			AND (SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY k.n)\n"
	"				FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY AS k(attnum, n)\n"
	"				JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum)\n"
	"			IN (ARRAY['name'], ARRAY['name', 'token'])) < 2\n"
	"		OR NOT EXISTS (SELECT FROM pg_catalog.pg_index i\n"
	"			WHERE i.indrelid = pg_catalog.to_regclass('pgpool_lock.pings') AND i.indisprimary) THEN\n"
	"		RAISE EXCEPTION 'the tables in schema pgpool_lock lack an index'\n"
	"			USING ERRCODE = 'object_not_in_prerequisite_state';\n"
	"	END IF;\n"
	"	IF pg_catalog.to_regprocedure('pgpool_lock.fence_check(text, bigint)') IS NULL THEN\n"
	"		CREATE FUNCTION pgpool_lock.fence_check(name pg_catalog.text, token pg_catalog.int8)\n"
	"		RETURNS pg_catalog.void LANGUAGE plpgsql VOLATILE SECURITY DEFINER\n"
	"		SET search_path = pg_catalog, pg_temp AS $fence$\n"
	"		DECLARE\n"
	"			lock record;\n"
	"		BEGIN\n"
	"			SELECT l.token, l.state INTO lock FROM pgpool_lock.locks AS l\n"
	"				WHERE l.name = fence_check.name FOR KEY SHARE;\n"
	"			IF NOT FOUND OR lock.state <> 'held' OR lock.token IS DISTINCT FROM fence_check.token THEN\n"
	"				RAISE EXCEPTION 'token % of lock \"%\" is not valid any more', fence_check.token, fence_check.name\n"
	"					USING ERRCODE = 'object_not_in_prerequisite_state',\n"
	"					DETAIL = CASE WHEN lock.token IS NULL THEN 'There is no such lock.'\n"
	"						WHEN lock.token = fence_check.token THEN 'It was released.'\n"
	"						ELSE pg_catalog.format('The lock''s token is %s.', lock.token) END;\n"
	"			END IF;\n"
	"		END $fence$;\n"
	"		REVOKE ALL ON FUNCTION pgpool_lock.fence_check(text, bigint) FROM PUBLIC;\n"
	"		COMMENT ON FUNCTION pgpool_lock.fence_check(text, bigint) IS\n"
	"			'raises 55000 unless the token is that of the lock now, and keeps the lock from going to another one until the end of the transaction';\n"
	"	END IF;\n"
	"END $setup$";

/*
 * Request a lock.  Parameters: $1 name, $2 instance, $3 request, $4 holder, $5
 * why, $6 ttl, $7 lock_timeout, $8 the request will be repeated soon, so
 * record in "contended" that another server requests the lock.
 *
 * The statement does not try to update the row of a lock that is held, so it
 * does not wait for a row lock then.  It raises synchronous_commit, because a
 * crash or a failover must not undo a grant.
 *
 * A request that is repeated because its answer was lost has the same number.
 * If the first one was granted, the repetition returns the same token.  The
 * same is true if the first one is executed after the repetition, by a backend
 * whose client is gone.  After the lock was released or has expired, the number
 * is not granted again, and the session needs a new one (already_released).
 *
 * A grant of a lock that another session had not released returns that previous
 * holder.  It is read from the row before this statement, so it is not certain
 * if several servers request the lock at the same time.  Only the log uses it.
 *
 * The search_path is the user's and may contain operators of other users, so
 * these statements qualify every operator that is resolved through it.
 */
static const char request_sql[] =
	"WITH got AS ("
	"INSERT INTO pgpool_lock.locks AS l"
	" (name, token, state, instance, request, holder, why, since, ttl, pinged, expires)"
	" SELECT $1::pg_catalog.text, (pg_catalog.date_part('epoch', n.now) OPERATOR(pg_catalog.*) 1000000::pg_catalog.float8)::pg_catalog.int8, 'held',"
	" $2::pg_catalog.text, $3::pg_catalog.int8, $4::pg_catalog.text,"
	" $5::pg_catalog.text, n.now, $6::pg_catalog.interval, NULL,"
	" n.now OPERATOR(pg_catalog.+) $6::pg_catalog.interval"
	" FROM (SELECT pg_catalog.clock_timestamp() AS now) AS n"
	" WHERE NOT EXISTS (SELECT FROM pgpool_lock.locks AS o"
	" WHERE o.name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND o.state OPERATOR(pg_catalog.=) 'held'"
	" AND o.expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
	" AND NOT (o.instance OPERATOR(pg_catalog.=) $2::pg_catalog.text AND o.request OPERATOR(pg_catalog.=) $3::pg_catalog.int8))"
	" AND pg_catalog.set_config('lock_timeout', $7::pg_catalog.text, true) IS NOT NULL"
	" AND CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY ('{off,local,remote_write}'::pg_catalog.text[])"
	" THEN pg_catalog.set_config('synchronous_commit', 'on', true) ELSE '' END IS NOT NULL"
	" ON CONFLICT (name) DO UPDATE SET"
	" token = CASE WHEN l.instance OPERATOR(pg_catalog.=) excluded.instance AND l.request OPERATOR(pg_catalog.=) excluded.request"
	" THEN l.token ELSE greatest(l.token OPERATOR(pg_catalog.+) 1::pg_catalog.int8, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000::pg_catalog.float8)::pg_catalog.int8) END,"
	" state = 'held', instance = excluded.instance, request = excluded.request,"
	" holder = excluded.holder, why = excluded.why,"
	" since = CASE WHEN l.instance OPERATOR(pg_catalog.=) excluded.instance AND l.request OPERATOR(pg_catalog.=) excluded.request"
	" THEN l.since ELSE pg_catalog.clock_timestamp() END,"
	" ttl = excluded.ttl, pinged = NULL, contended = NULL,"
	" expires = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) excluded.ttl"
	" WHERE CASE WHEN l.instance OPERATOR(pg_catalog.=) excluded.instance AND l.request OPERATOR(pg_catalog.=) excluded.request"
	" THEN l.state OPERATOR(pg_catalog.=) 'held' AND l.expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
	" ELSE l.state OPERATOR(pg_catalog.=) 'free' OR l.expires OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() END"
	" RETURNING l.token), "
	"alive AS ("
	"INSERT INTO pgpool_lock.pings AS p (instance, pinged)"
	" SELECT $2::pg_catalog.text, pg_catalog.clock_timestamp() FROM got"
	" WHERE NOT EXISTS (SELECT FROM pgpool_lock.pings AS o"
	" WHERE o.instance OPERATOR(pg_catalog.=) $2::pg_catalog.text)"
	" ON CONFLICT (instance) DO NOTHING), "
	"dead AS ("
	"DELETE FROM pgpool_lock.pings USING got"
	" WHERE pings.pinged OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '4 days')"
	" AND pings.instance OPERATOR(pg_catalog.<>) $2::pg_catalog.text), "
	"wants AS ("
	"UPDATE pgpool_lock.locks AS l SET contended = pg_catalog.clock_timestamp()"
	" FROM (SELECT o.name FROM pgpool_lock.locks AS o"
	" WHERE $8::pg_catalog.bool AND o.name OPERATOR(pg_catalog.=) $1::pg_catalog.text"
	" AND o.instance OPERATOR(pg_catalog.<>) $2::pg_catalog.text"
	" AND coalesce(o.contended OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '0.3 seconds'), true)"
	" AND NOT EXISTS (SELECT FROM got)"
	" FOR NO KEY UPDATE SKIP LOCKED) AS o"
	" WHERE l.name OPERATOR(pg_catalog.=) o.name) "
	"SELECT got.token::pg_catalog.text, o.holder, o.why, o.since::pg_catalog.text, o.expires::pg_catalog.text, NULL, NULL"
	" FROM got LEFT JOIN pgpool_lock.locks AS o ON o.name OPERATOR(pg_catalog.=) $1::pg_catalog.text"
	" AND o.state OPERATOR(pg_catalog.=) 'held'"
	" AND NOT (o.instance OPERATOR(pg_catalog.=) $2::pg_catalog.text AND o.holder OPERATOR(pg_catalog.=) $4::pg_catalog.text) "
	"UNION ALL "
	"SELECT NULL, o.holder, o.why, o.since::pg_catalog.text, o.expires::pg_catalog.text,"
	" (pg_catalog.date_part('epoch', o.expires OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::pg_catalog.float8)::pg_catalog.int8::pg_catalog.text,"
	" (o.instance OPERATOR(pg_catalog.=) $2::pg_catalog.text AND o.request OPERATOR(pg_catalog.=) $3::pg_catalog.int8)::pg_catalog.text"
	" FROM pgpool_lock.locks AS o WHERE o.name OPERATOR(pg_catalog.=) $1::pg_catalog.text"
	" AND (o.state OPERATOR(pg_catalog.=) 'held'"
	" OR (o.instance OPERATOR(pg_catalog.=) $2::pg_catalog.text AND o.request OPERATOR(pg_catalog.=) $3::pg_catalog.int8))"
	" AND NOT EXISTS (SELECT FROM got)";

#define REQUEST_COLUMNS 7

/*
 * Release a lock regardless of its holder.  The token increases, so that
 * fence_check rejects the holder's token and its next ping finds no row.
 */
static const char force_sql[] =
	"WITH was AS (SELECT o.state, o.expires FROM pgpool_lock.locks AS o"
	" WHERE o.name OPERATOR(pg_catalog.=) $1::pg_catalog.text) "
	"UPDATE pgpool_lock.locks AS l SET state = 'free',"
	" token = greatest(l.token OPERATOR(pg_catalog.+) 1::pg_catalog.int8, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000::pg_catalog.float8)::pg_catalog.int8)"
	" FROM was WHERE l.name OPERATOR(pg_catalog.=) $1::pg_catalog.text"
	" RETURNING (was.state OPERATOR(pg_catalog.=) 'held' AND was.expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())::pg_catalog.text";

/* The rows of lock_status. */
static const char status_sql[] =
	"SELECT l.name, CASE WHEN l.state OPERATOR(pg_catalog.=) 'free' THEN 'free'"
	" WHEN l.expires OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() THEN 'expired' ELSE 'held' END,"
	" l.instance, l.holder, l.why, l.since, l.token,"
	" greatest(l.pinged, p.pinged), l.expires"
	" FROM pgpool_lock.locks AS l LEFT JOIN pgpool_lock.pings AS p ON p.instance OPERATOR(pg_catalog.=) l.instance"
	" ORDER BY l.name";

/*
 * Error context callback: add a hint to errors about the tables of the locks.
 */
static void
add_hint(void *arg)
{
	switch (geterrcode())
	{
		case ERRCODE_UNDEFINED_TABLE:
		case ERRCODE_UNDEFINED_SCHEMA:
			errhint("Run pgpool.lock_setup once for this server.");
			break;
		case ERRCODE_UNDEFINED_COLUMN:
		case ERRCODE_INVALID_COLUMN_REFERENCE:
		case ERRCODE_DATATYPE_MISMATCH:
		case ERRCODE_UNDEFINED_FUNCTION:
		case ERRCODE_WRONG_OBJECT_TYPE:
		case ERRCODE_NOT_NULL_VIOLATION:
		case ERRCODE_CHECK_VIOLATION:
			errhint("The tables in schema \"pgpool_lock\" of the remote server do not match those that pgpool.lock_setup creates.");
			break;
		case ERRCODE_INSUFFICIENT_PRIVILEGE:
			errhint("On the remote server the user needs USAGE on schema \"pgpool_lock\", SELECT, INSERT, UPDATE and DELETE on its tables; for pgpool.lock_setup, CREATE on the database.");
			break;
		case ERRCODE_READ_ONLY_SQL_TRANSACTION:
			errhint("Locks need the primary: name all hosts in the server's options \"host\" and \"port\", and set \"target_session_attrs\" to 'read-write'.");
			break;
		default:
			break;
	}
}

/*
 * Execute a statement.  With a sink, it is one on the tables, and the owners of
 * the tables are verified first, in the same transaction.  Raise 08006 if the
 * deadline passes.  *refused, unless NULL, is set to whether the remote has
 * reported an error, which is then raised: the statement had no effect.
 */
static void
execute(PgpxLease *lease, const PgpxStatement *statement, const PgpxSink *sink,
		PgpxTime deadline, bool *refused)
{
	static uint32 wait_event = 0;
	static const char *const verify[] = {pgpx_verify_sql};
	PgpxPipeline pipeline = {
		.nbefore = lengthof(verify),
		.before = verify,
		.statement = statement,
		.name = "",
		.parse = true,
		.portal = "",
		.describe = true,
	};
	PgpxRun		run = {
		.lease = lease,
		.statement = statement,
		.sink = sink,
		.internal = true,
		.pipeline = sink != NULL ? &pipeline : NULL,
	};
	ErrorContextCallback hint = {
		.previous = error_context_stack,
		.callback = add_hint,
	};

	error_context_stack = &hint;
	pgpx_run_check(lease, statement);
	PG_TRY();
	{
		pgpx_run_send(&run, sink == NULL);
		while (!pgpx_run_process_input(&run))
			if (!pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
								   pgpx_wait_event(&wait_event, "PgpoolLock")))
				ereport(ERROR,
						(errcode(ERRCODE_CONNECTION_FAILURE),
						 errmsg("server \"%s\" did not answer in time",
								NameStr(lease->spec->server_name))));
	}
	PG_CATCH();
	{
		pgpx_run_failed(&run, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (refused != NULL)
		*refused = run.error.set;
	(void) pgpx_run_end(&run);
	error_context_stack = hint.previous;
}

/* Execute a statement that returns text columns, and return its rows. */
static Tuplestorestate *
run_texts(PgpxLease *lease, const PgpxStatement *statement, int ncolumns,
		  PgpxTime deadline, TupleDesc *tupdesc, bool *refused)
{
	Tuplestorestate *store = tuplestore_begin_heap(false, false, work_mem);
	PgpxRows   *rows;

	*tupdesc = CreateTemplateTupleDesc(ncolumns);
	for (int i = 1; i <= ncolumns; i++)
		TupleDescInitEntry(*tupdesc, i, NULL, TEXTOID, -1, 0);
	TupleDescFinalize(*tupdesc);
	rows = pgpx_rows_begin(*tupdesc, store, InvalidOid);
	execute(lease, statement, pgpx_rows_sink(rows), deadline, refused);
	pgpx_rows_end(rows);
	return store;
}

static char *
column_text(TupleTableSlot *slot, int at)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, at, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

static bool
is_true(TupleTableSlot *slot, int at)
{
	char	   *value = column_text(slot, at);

	return value != NULL && strcmp(value, "true") == 0;
}

static int64
parse_number(const char *text)
{
	char	   *end;
	int64		value;

	if (text == NULL)
		return 0;
	errno = 0;
	value = strtoi64(text, &end, 10);
	return errno != 0 || *end != '\0' ? 0 : value;
}

void
pgpx_dlock_request(PgpxLease *lease, const PgpxDlock *lock, bool waits,
				   int64 lock_timeout, PgpxTime deadline,
				   PgpxDlockAnswer *answer)
{
	const char *values[8];
	PgpxStatement statement = {request_sql, lengthof(values), values};
	TupleDesc	tupdesc;
	Tuplestorestate *store;
	TupleTableSlot *slot;

	values[0] = lock->name;
	values[1] = pgpx_shared->instance;
	values[2] = psprintf(UINT64_FORMAT, lock->request);
	values[3] = lock->holder;
	values[4] = lock->why[0] == '\0' ? NULL : lock->why;
	values[5] = psprintf(INT64_FORMAT " milliseconds", lock->ttl_ms);
	values[6] = psprintf(INT64_FORMAT, lock_timeout);
	values[7] = waits ? "true" : "false";
	memset(answer, 0, sizeof(*answer));
	store = run_texts(lease, &statement, REQUEST_COLUMNS, deadline, &tupdesc,
					  &answer->refused);

	slot = MakeSingleTupleTableSlot(tupdesc, &TTSOpsMinimalTuple);
	if (tuplestore_gettupleslot(store, true, false, slot))
	{
		char	   *token = column_text(slot, 1);
		int64		left;

		answer->token = parse_number(token);
		if (token != NULL && answer->token <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("server \"%s\" has granted a lock with token \"%s\"",
							NameStr(lease->spec->server_name), token)));
		answer->holder = column_text(slot, 2);
		answer->why = column_text(slot, 3);
		answer->since = column_text(slot, 4);
		answer->expires = column_text(slot, 5);
		left = parse_number(column_text(slot, 6));
		answer->left_ms = Min(left, INT_MAX);	/* fits in microseconds, too */
		answer->already_released = token == NULL && is_true(slot, 7);
		answer->expired = answer->token != 0 && answer->holder != NULL &&
			answer->since != NULL && answer->expires != NULL;
		answer->held = token == NULL && !answer->already_released &&
			answer->holder != NULL &&
			answer->since != NULL && answer->expires != NULL &&
			answer->left_ms > 0;
	}
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(store);
}

void
pgpx_dlock_create_tables(PgpxLease *lease)
{
	PgpxStatement statement = {.sql = setup_sql};

	execute(lease, &statement, NULL, 0, NULL);
}

bool
pgpx_dlock_force_release(PgpxLease *lease, const char *name)
{
	PgpxStatement statement = {force_sql, 1, &name};
	TupleDesc	tupdesc;
	Tuplestorestate *store;
	TupleTableSlot *slot;
	bool		held = false;

	store = run_texts(lease, &statement, 1, 0, &tupdesc, NULL);
	slot = MakeSingleTupleTableSlot(tupdesc, &TTSOpsMinimalTuple);
	if (tuplestore_gettupleslot(store, true, false, slot))
		held = is_true(slot, 1);
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(store);
	return held;
}

void
pgpx_dlock_status(PgpxLease *lease, TupleDesc tupdesc, Tuplestorestate *store)
{
	PgpxRows   *rows = pgpx_rows_begin(tupdesc, store, InvalidOid);
	PgpxStatement statement = {.sql = status_sql};

	execute(lease, &statement, pgpx_rows_sink(rows), 0, NULL);
	pgpx_rows_end(rows);
}

/* --- statements of the worker ------------------------------------------- */

/*
 * Ping locks.  Parameters: $1 instance, $2 names, $3 requests, $4 tokens.  An
 * expired lock is not extended, because its holder may have been warned of
 * the loss.
 */
const char	pgpx_ping_sql[] =
	"WITH confirmed AS ("
	"UPDATE pgpool_lock.locks AS l"
	" SET pinged = pg_catalog.clock_timestamp(),"
	" expires = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) l.ttl"
	" FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]),"
	" pg_catalog.unnest($3::pg_catalog.int8[]),"
	" pg_catalog.unnest($4::pg_catalog.int8[])) AS h(name, request, token)"
	" WHERE l.name OPERATOR(pg_catalog.=) h.name AND l.instance OPERATOR(pg_catalog.=) $1 AND l.request OPERATOR(pg_catalog.=) h.request"
	" AND l.token OPERATOR(pg_catalog.=) h.token AND l.state OPERATOR(pg_catalog.=) 'held'"
	" AND l.expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
	" RETURNING l.request), "
	"alive AS ("
	"INSERT INTO pgpool_lock.pings AS p (instance, pinged)"
	" VALUES ($1, pg_catalog.clock_timestamp())"
	" ON CONFLICT (instance) DO UPDATE SET pinged = excluded.pinged) "
	"SELECT request FROM confirmed";

/*
 * Release locks; parameters as for a ping.  Token 0 matches any token, for a
 * session that has not received the token of its request.  A row that is free
 * already was released by an earlier attempt whose answer was lost.
 */
const char	pgpx_release_sql[] =
	"UPDATE pgpool_lock.locks AS l SET state = 'free'"
	" FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]),"
	" pg_catalog.unnest($3::pg_catalog.int8[]),"
	" pg_catalog.unnest($4::pg_catalog.int8[])) AS h(name, request, token)"
	" WHERE l.name OPERATOR(pg_catalog.=) h.name AND l.instance OPERATOR(pg_catalog.=) $1 AND l.request OPERATOR(pg_catalog.=) h.request"
	" AND (l.token OPERATOR(pg_catalog.=) h.token OR h.token OPERATOR(pg_catalog.=) 0::pg_catalog.int8)"
	" RETURNING l.request, l.expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(),"
	" l.contended OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '1 second')";

/* Append a text as an element of an array literal. */
static void
append_element(StringInfo buf, const char *text)
{
	appendStringInfoChar(buf, '"');
	for (; *text != '\0'; text++)
	{
		if (*text == '"' || *text == '\\')
			appendStringInfoChar(buf, '\\');
		appendStringInfoChar(buf, *text);
	}
	appendStringInfoChar(buf, '"');
}

void
pgpx_work_params(const PgpxDlockWork *work, int n,
				 const char *values[PGPX_WORK_PARAMS])
{
	StringInfoData names;
	StringInfoData requests;
	StringInfoData tokens;

	initStringInfo(&names);
	initStringInfo(&requests);
	initStringInfo(&tokens);
	for (int i = 0; i < n; i++)
	{
		char		separator = i == 0 ? '{' : ',';

		appendStringInfoChar(&names, separator);
		append_element(&names, work[i].name);
		appendStringInfo(&requests, "%c" UINT64_FORMAT, separator,
						 work[i].request);
		appendStringInfo(&tokens, "%c" INT64_FORMAT, separator, work[i].token);
	}
	appendStringInfoChar(&names, '}');
	appendStringInfoChar(&requests, '}');
	appendStringInfoChar(&tokens, '}');
	values[0] = pgpx_shared->instance;
	values[1] = names.data;
	values[2] = requests.data;
	values[3] = tokens.data;
}
