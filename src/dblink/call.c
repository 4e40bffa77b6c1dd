/*-------------------------------------------------------------------------
 *
 * call.c
 *	  The one-shot forms of dblink and dblink_exec on a pool.
 *
 * Rules:
 * - A call that cannot run on a pool is passed to dblink's own function with
 *	 the same arguments, so that attaching makes no call fail that dblink can
 *	 execute.  This holds until the statement has been sent.
 * - The results are those of dblink: the last result of several statements, the
 *	 tag of a command as a row, errors with dblink's context, and with fail =>
 *	 false a NOTICE and the rows before it.
 * - The end of the call ends the lease, which rolls back a transaction that the
 *	 statement has left open.  dblink closes its connection instead.
 *
 *-------------------------------------------------------------------------
 */
#include "dblink/dblink.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "session/checkout.h"
#include "session/statement.h"

PG_FUNCTION_INFO_V1(pgpx_dblink_record);
PG_FUNCTION_INFO_V1(pgpx_dblink_exec);

/* A call, and its last result. */
typedef struct Call
{
	FunctionCallInfo fcinfo;
	bool		exec;			/* dblink_exec, whose rows are dropped */
	bool		fail;			/* raise errors of the remote */
	PgpxStatement statement;
	const char *server;
	bool		only_pool;		/* it cannot be passed to dblink */

	PgpxRows   *rows;			/* converts a result; NULL: not in one */
	const PgpxSink *sink;		/* of "rows" */
	TupleDesc	tupdesc;
	Tuplestorestate *store;		/* NULL: the last result has no rows */
	bool		converting;		/* a row is being converted */
	bool		in_rows;		/* between a row description and its command */
	bool		has_rows;		/* the last result has rows */
	char		tag[64];		/* else its command tag; "": an empty string */
} Call;

static void
count_call(PgpxDblinkOutcome outcome)
{
	pg_atomic_fetch_add_u64(&pgpx_shared->dblink_calls[outcome], 1);
}

/* --- the result ---------------------------------------------------------- */

/* Begin a tuplestore that lives as long as the result of the function. */
static void
begin_store(Call *call, TupleDesc tupdesc)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) call->fcinfo->resultinfo;
	bool		random = (rsinfo->allowedModes & SFRM_Materialize_Random) != 0;
	MemoryContext old =
		MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);

	if (call->store != NULL)
		tuplestore_end(call->store);
	call->tupdesc = CreateTupleDescCopy(tupdesc);
	call->store = tuplestore_begin_heap(random, false, work_mem);
	MemoryContextSwitchTo(old);
}

static bool
begin_rows(void *arg, const PgpxWireMessage *msg, const PgpxWire *wire)
{
	Call	   *call = arg;
	int			n = pgpx_wire_parse_ncolumns(msg);
	TypeFuncClass class;
	TupleDesc	tupdesc;

	call->in_rows = true;
	if (n < 0 || call->exec)
		return n >= 0;
	class = get_call_result_type(call->fcinfo, NULL, &tupdesc);
	if (class != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	if (n != tupdesc->natts)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("remote query result rowtype does not match the specified FROM clause rowtype")));
	begin_store(call, tupdesc);
	call->rows = pgpx_rows_begin(call->tupdesc, call->store, InvalidOid);
	call->sink = pgpx_rows_sink(call->rows);
	return call->sink->columns(call->sink->arg, msg, wire);
}

static bool
add_row(void *arg, const PgpxWireMessage *msg)
{
	Call	   *call = arg;
	bool		ok;

	if (call->exec)
		return true;
	if (call->rows == NULL)
		return false;
	call->converting = true;
	ok = call->sink->row(call->sink->arg, msg);
	call->converting = false;
	return ok;
}

static void
restore_message(void *arg)
{
	Call	   *call = arg;

	if (call->rows != NULL && call->sink->restore != NULL)
		call->sink->restore(call->sink->arg);
}

static void
end_rows(Call *call)
{
	if (call->rows != NULL)
		pgpx_rows_end(call->rows);
	call->rows = NULL;
	call->in_rows = false;
}

static void
end_command(void *arg, const PgpxWireMessage *msg)
{
	Call	   *call = arg;

	call->has_rows = call->in_rows;
	end_rows(call);
	snprintf(call->tag, sizeof(call->tag), "%.*s",
			 msg->type == 'C' ? (int) msg->len : 0, msg->data);
	pgpx_text_clean(call->tag);
}

/* Return the command tag as a row, as dblink does. */
static void
store_tag(Call *call)
{
	TupleDesc	tupdesc = CreateTemplateTupleDesc(1);
	Datum		value = CStringGetTextDatum(call->tag);
	bool		isnull = false;

	TupleDescInitEntry(tupdesc, 1, "status", TEXTOID, -1, 0);
	TupleDescFinalize(tupdesc);
	begin_store(call, tupdesc);
	tuplestore_putvalues(call->store, call->tupdesc, &value, &isnull);
}

/* --- the statement ------------------------------------------------------- */

/*
 * If the lease was lost while a statement ran, fill in run->error, so that it
 * is reported like any other error of the remote.  Otherwise raise the error
 * again.  Called in PG_CATCH.
 */
static void
catch_lost_connection(const Call *call, PgpxRun *run, MemoryContext caller)
{
	ErrorData  *error;

	/* an input function can raise the same code */
	if (geterrcode() != ERRCODE_CONNECTION_FAILURE || call->converting ||
		run->lease->sock->wire.phase != PGPX_WIRE_BROKEN)
		PG_RE_THROW();
	MemoryContextSwitchTo(caller);
	error = CopyErrorData();
	FlushErrorState();
	if (run->error.set)
		return;
	run->error = (PgpxRemoteError){
		.set = true,
		.sqlstate = error->sqlerrcode,
		.primary = error->message,
		.detail = error->detail,
		.hint = error->hint,
	};
}

/* Execute the statement on a lease.  The error of the remote is left in *run. */
static void
run_statement(const Call *call, PgpxRun *run)
{
	MemoryContext caller = CurrentMemoryContext;

	PG_TRY();
	{
		pgpx_run_send(run, true);
		pgpx_run_read(run);
		pgpx_run_finish(run);
	}
	PG_CATCH();
	{
		pgpx_run_failed(run, true);
		catch_lost_connection(call, run, caller);
	}
	PG_END_TRY();
}

/*
 * Return whether an error of a checkout is one that it raises on purpose.  Then
 * nothing must be cleaned up, and the call can be passed to dblink.
 */
static bool
is_checkout_error(int code)
{
	switch (code)
	{
		case ERRCODE_LOCK_NOT_AVAILABLE:	/* timeout */
		case ERRCODE_T_R_DEADLOCK_DETECTED:
		case ERRCODE_TOO_MANY_CONNECTIONS:
		case ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION:
		case PGPX_ERRCODE_WORKER_DOWN:
		case PGPX_ERRCODE_POOL_DAMAGED:
		case ERRCODE_FEATURE_NOT_SUPPORTED:
		case ERRCODE_INVALID_PARAMETER_VALUE:
		case ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED:
			return true;
		default:
			return false;
	}
}

/*
 * Lease a connection for the call.  Return NULL if it must be passed to dblink;
 * *reason is set then.
 *
 * No other session sends the statement (pipelined hand-over), so after an error
 * it has certainly not been executed.
 */
static PgpxLease *
lease_for_call(Call *call, PgpxDblinkOutcome *reason)
{
	MemoryContext caller = CurrentMemoryContext;
	PgpxLease *volatile lease = NULL;

	*reason = PGPX_DBLINK_NONE_FREE;
	PG_TRY();
	{
		lease = pgpx_lease_checkout(call->server, PGPX_TIMEOUT_DEFAULT, false,
									PGPX_SCOPE_CALL, NULL);
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		if (call->only_pool || !is_checkout_error(code))
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		if (code != ERRCODE_LOCK_NOT_AVAILABLE &&
			code != ERRCODE_T_R_DEADLOCK_DETECTED &&
			code != ERRCODE_TOO_MANY_CONNECTIONS)
			*reason = PGPX_DBLINK_UNAVAILABLE;
	}
	PG_END_TRY();

	/* the server may have been changed during a wait */
	if (lease == NULL || call->only_pool || pgpx_dblink_is_current())
		return lease;
	pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	*reason = PGPX_DBLINK_OTHER_SESSION;
	return NULL;
}

/*
 * Execute the statement of a call on a pool.  Return false if the call must be
 * passed to dblink.
 */
static bool
run_on_pool(Call *call, PgpxRemoteError *error, PgpxDblinkOutcome *reason)
{
	const PgpxSink sink = {
		.columns = begin_rows,
		.row = add_row,
		.command = end_command,
		.restore = restore_message,
		.arg = call,
	};
	PgpxLease  *lease = lease_for_call(call, reason);
	PgpxRun		run = {
		.lease = lease,
		.statement = &call->statement,
		.sink = &sink,
		.last = true,
	};

	if (lease == NULL)
		return false;
	count_call(PGPX_DBLINK_POOLED);
	PG_TRY();
	{
		run_statement(call, &run);
	}
	PG_CATCH();
	{
		pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	end_rows(call);				/* of a result that an error has ended */
	*error = run.error;
	return true;
}

/*
 * Execute a call on a pool and report an error of the remote.  Return false if
 * the call must be passed to dblink.  *failed: the remote has reported an error
 * that is not raised.
 */
static bool
execute(FunctionCallInfo fcinfo, bool exec, Call *call, bool *failed)
{
	PgpxRemoteError error = {0};
	PgpxDblinkOutcome reason;

	/* without preloaded library, for example in pg_upgrade */
	if (pgpx_shared == NULL)
		return false;
	memset(call, 0, sizeof(*call));
	call->fcinfo = fcinfo;
	call->exec = exec;
	call->fail = PG_NARGS() < 3 || PG_GETARG_BOOL(2);
	call->statement.sql = text_to_cstring(PG_GETARG_TEXT_PP(1));
	call->server =
		pgpx_dblink_find_server(text_to_cstring(PG_GETARG_TEXT_PP(0)),
								&call->only_pool, &reason);
	if (call->server == NULL || !run_on_pool(call, &error, &reason))
	{
		count_call(reason);
		return false;
	}

	/* an empty string is an error in dblink, without a text */
	if (!error.set && !call->has_rows && call->tag[0] == '\0')
	{
		error.set = true;
		error.sqlstate = ERRCODE_CONNECTION_FAILURE;
	}
	*failed = error.set;
	if (error.set)
		pgpx_remote_error_report(call->fail ? ERROR : NOTICE, &error,
								 exec ? "while executing command on unnamed dblink connection" :
								 "while executing query on unnamed dblink connection");
	return true;
}

/* dblink(connection text, sql text [, fail bool]) returns setof record */
Datum
pgpx_dblink_record(PG_FUNCTION_ARGS)
{
	static PGFunction dblink_record = NULL;
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Call		call;
	bool		failed;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0 ||
		!execute(fcinfo, false, &call, &failed))
	{
		if (dblink_record == NULL)
			dblink_record = pgpx_dblink_function("dblink_record");
		return dblink_record(fcinfo);
	}

	/* rows before an error that was not raised are returned, as by dblink */
	if (!failed && !call.has_rows)
		store_tag(&call);
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult = call.store;
	rsinfo->setDesc = call.tupdesc;
	return (Datum) 0;
}

/* dblink_exec(connection text, sql text [, fail bool]) returns text */
Datum
pgpx_dblink_exec(PG_FUNCTION_ARGS)
{
	static PGFunction dblink_exec = NULL;
	Call		call;
	bool		failed;

	if (!execute(fcinfo, true, &call, &failed))
	{
		if (dblink_exec == NULL)
			dblink_exec = pgpx_dblink_function("dblink_exec");
		return dblink_exec(fcinfo);
	}
	if (failed)
		PG_RETURN_TEXT_P(cstring_to_text("ERROR"));
	if (call.has_rows)
		ereport(ERROR,
				(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
				 errmsg("statement returning results not allowed")));
	PG_RETURN_TEXT_P(cstring_to_text(call.tag));
}
