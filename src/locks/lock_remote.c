/*-------------------------------------------------------------------------
 *
 * lock_remote.c
 *	  Calls of the functions of schema pgpool_lock (lock_schema.sql).
 *
 * This file makes the calls of sessions; lock_pinger.c makes those of the
 * worker.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/lock_remote.h"

#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "locks/lock_schema.inc"
#include "session/statement.h"

const char *const pgpx_lock_verify_sql[PGPX_LOCK_VERIFY_COUNT] = {
	exists_sql,
	owners_sql,
};

/*
 * Arguments are cast to the exact types of the functions, so that no other
 * function of the same name can be a better match.
 */
#define TEXT "::pg_catalog.text"
#define INT8 "::pg_catalog.int8"
#define LISTS "($1::pg_catalog.text, $2::pg_catalog.text[], " \
	"$3::pg_catalog.int8[], $4::pg_catalog.int8[])"

static const char request_sql[] =
	"SELECT * FROM pgpool_lock.acquire($1" TEXT ", $2" TEXT ", $3" INT8
	", $4" TEXT ", $5" TEXT ", $6::pg_catalog.interval, $7" INT8
	", $8::pg_catalog.bool)";
static const char force_sql[] =
	"SELECT pgpool_lock.force_release($1" TEXT ")";
static const char status_sql[] = "SELECT * FROM pgpool_lock.status()";
const char	pgpx_lock_ping_sql[] = "SELECT * FROM pgpool_lock.ping" LISTS;
const char	pgpx_lock_release_sql[] = "SELECT * FROM pgpool_lock.release" LISTS;

#define REQUEST_COLUMNS 7

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
		case ERRCODE_UNDEFINED_FUNCTION:
			errhint("Run pgpool.lock_setup again for this server, as the owner of schema \"pgpool_lock\".");
			break;
		case ERRCODE_UNDEFINED_COLUMN:
		case ERRCODE_INVALID_COLUMN_REFERENCE:
		case ERRCODE_DATATYPE_MISMATCH:
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
	PgpxPipeline pipeline = {
		.nbefore = PGPX_LOCK_VERIFY_COUNT,
		.before = pgpx_lock_verify_sql,
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
		while (pgpx_run_try_next(&run) != PGPX_RUN_END)
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

/*
 * Execute a statement and set *values to the texts of its first row; NULL for
 * null values, and if there is no row.
 */
static void
run_row(PgpxLease *lease, const PgpxStatement *statement, PgpxTime deadline,
		bool *refused, int ncolumns, char **values)
{
	Tuplestorestate *store = tuplestore_begin_heap(false, false, work_mem);
	TupleDesc	tupdesc = CreateTemplateTupleDesc(ncolumns);
	TupleTableSlot *slot;
	PgpxRows   *rows;
	bool		found;

	for (int i = 1; i <= ncolumns; i++)
		TupleDescInitEntry(tupdesc, i, NULL, TEXTOID, -1, 0);
	TupleDescFinalize(tupdesc);
	rows = pgpx_rows_begin(tupdesc, store, InvalidOid);
	execute(lease, statement, pgpx_rows_sink(rows), deadline, refused);
	pgpx_rows_end(rows);
	slot = MakeSingleTupleTableSlot(tupdesc, &TTSOpsMinimalTuple);
	found = tuplestore_gettupleslot(store, true, false, slot);
	for (int i = 0; i < ncolumns; i++)
	{
		bool		isnull = true;
		Datum		value = found ? slot_getattr(slot, i + 1, &isnull) : 0;

		values[i] = isnull ? NULL : TextDatumGetCString(value);
	}
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(store);
}

static bool
is_true(const char *value)
{
	return value != NULL && strcmp(value, "t") == 0;
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
pgpx_lock_request(PgpxLease *lease, const PgpxLock *lock, bool waits,
				  int64 lock_timeout, PgpxTime deadline, PgpxLockAnswer *answer)
{
	const char *values[] = {
		lock->name,
		pgpx_shared->instance,
		psprintf(UINT64_FORMAT, lock->request),
		lock->holder,
		lock->why[0] == '\0' ? NULL : lock->why,
		psprintf(INT64_FORMAT " milliseconds", lock->ttl_ms),
		psprintf(INT64_FORMAT, lock_timeout),
		waits ? "true" : "false",
	};
	PgpxStatement statement = {request_sql, lengthof(values), values};
	char	   *row[REQUEST_COLUMNS];
	bool		has_holder;

	memset(answer, 0, sizeof(*answer));
	run_row(lease, &statement, deadline, &answer->refused, REQUEST_COLUMNS,
			row);
	answer->token = parse_number(row[0]);
	if (row[0] != NULL && answer->token <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("server \"%s\" has granted a lock with token \"%s\"",
						NameStr(lease->spec->server_name), row[0])));
	answer->holder = row[1];
	answer->why = row[2];
	answer->since = row[3];
	answer->expires = row[4];
	/* fits in microseconds, too */
	answer->left_ms = Min(parse_number(row[5]), INT_MAX);
	answer->already_released = answer->token == 0 && is_true(row[6]);
	has_holder = row[1] != NULL && row[3] != NULL && row[4] != NULL;
	answer->expired = answer->token != 0 && has_holder;
	answer->held = answer->token == 0 && !answer->already_released &&
		has_holder && answer->left_ms > 0;
}

void
pgpx_lock_create_schema(PgpxLease *lease)
{
	PgpxStatement statement = {.sql = psprintf("%s;%s", owners_sql, setup_sql)};

	execute(lease, &statement, NULL, 0, NULL);
}

bool
pgpx_lock_release_by_force(PgpxLease *lease, const char *name)
{
	PgpxStatement statement = {force_sql, 1, &name};
	char	   *held;

	run_row(lease, &statement, 0, NULL, 1, &held);
	return is_true(held);
}

void
pgpx_lock_list(PgpxLease *lease, TupleDesc tupdesc, Tuplestorestate *store)
{
	PgpxRows   *rows = pgpx_rows_begin(tupdesc, store, InvalidOid);
	PgpxStatement statement = {.sql = status_sql};

	execute(lease, &statement, pgpx_rows_sink(rows), 0, NULL);
	pgpx_rows_end(rows);
}

/* --- statements of the worker ------------------------------------------- */

void
pgpx_lock_work_params(const PgpxLockWork *work, int n,
					  const char *values[PGPX_LOCK_PARAMS])
{
	StringInfoData names;
	StringInfoData requests;
	StringInfoData tokens;
	char		separator = '{';

	initStringInfo(&names);
	initStringInfo(&requests);
	initStringInfo(&tokens);
	for (int i = 0; i < n; i++)
	{
		appendStringInfo(&names, "%c\"", separator);
		for (const char *c = work[i].name; *c != '\0'; c++)
		{
			if (*c == '"' || *c == '\\')
				appendStringInfoChar(&names, '\\');
			appendStringInfoChar(&names, *c);
		}
		appendStringInfoChar(&names, '"');
		appendStringInfo(&requests, "%c" UINT64_FORMAT, separator,
						 work[i].request);
		appendStringInfo(&tokens, "%c" INT64_FORMAT, separator, work[i].token);
		separator = ',';
	}
	appendStringInfoChar(&names, '}');
	appendStringInfoChar(&requests, '}');
	appendStringInfoChar(&tokens, '}');
	values[0] = pgpx_shared->instance;
	values[1] = names.data;
	values[2] = requests.data;
	values[3] = tokens.data;
}
