/*-------------------------------------------------------------------------
 *
 * call.c
 *	  The one-shot forms of dblink and dblink_exec on a pool.
 *
 * Rules:
 * - A call that cannot run on a pool is passed to dblink's own function with
 *	 the same arguments, unless its statement was sent.  So attaching makes no
 *	 call fail that dblink can execute.
 * - A call is passed unless the pool's connections certainly have the same
 *	 remote user, database and settings as one of dblink.
 * - Names are resolved as dblink does: first the name of an open connection,
 *	 then that of a server, then a connection string.  dblink.c of PostgreSQL
 *	 (get_connect_string, is_valid_dblink_option) defines which options form the
 *	 connection string of a server.
 * - A mapping that the user may not read never equals a string.  Otherwise the
 *	 outcome of a call would reveal whether a guess of its password is right.
 * - The results are those of dblink: the last result of several statements, the
 *	 tag of a command as a row, errors with dblink's context, and with fail =>
 *	 false a NOTICE and the rows before it.
 * - The end of the call ends the lease, which rolls back a transaction that the
 *	 statement has left open.  dblink closes its connection instead.
 *
 *-------------------------------------------------------------------------
 */
#include "dblink/dblink.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "libpq-fe.h"
#include "nodes/makefuncs.h"
#include "parser/scansup.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "config/options.h"
#include "session/checkout.h"
#include "session/statement.h"

PG_FUNCTION_INFO_V1(pgpx_dblink_record);
PG_FUNCTION_INFO_V1(pgpx_dblink_exec);

static uint64 found_at;			/* pgpx_catalog_changes at find_server */

/* Return a C function of dblink.  Errors: 58P01 its library is missing. */
static PGFunction
dblink_function(const char *symbol)
{
	return (PGFunction) load_external_function("$libdir/dblink", symbol, true,
											   NULL);
}

/* Return whether dblink has an open connection of this name. */
static bool
is_open_connection(const char *name)
{
	static PGFunction get_connections = NULL;
	LOCAL_FCINFO(fcinfo, 0);
	Datum		result;
	Datum	   *names;
	int			n = 0;

	if (get_connections == NULL)
		get_connections = dblink_function("dblink_get_connections");
	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	result = get_connections(fcinfo);
	if (!fcinfo->isnull)
		deconstruct_array(DatumGetArrayTypeP(result), TEXTOID, -1, false,
						  TYPALIGN_INT, &names, NULL, &n);
	while (n > 0 && strcmp(TextDatumGetCString(names[n - 1]), name) != 0)
		n--;
	return n > 0;
}

/*
 * Return the options of a connection string.  Return NIL if it is not valid, or
 * if an option is empty, which hides the default of the environment.
 */
static List *
parse_string(const char *string)
{
	List	   *list = NIL;
	bool		has_empty = false;
	char	   *message = NULL;
	PQconninfoOption *options = PQconninfoParse(string, &message);

	if (message != NULL)
		PQfreemem(message);
	for (const PQconninfoOption *o = options; o && o->keyword != NULL; o++)
		if (o->val != NULL)
		{
			list = lappend(list,
						   makeDefElem(pstrdup(o->keyword),
									   (Node *) makeString(pstrdup(o->val)),
									   -1));
			has_empty |= o->val[0] == '\0';
		}
	PQconninfoFree(options);
	return has_empty ? NIL : list;
}

/* Return whether dblink would connect to the server with these options. */
static bool
equals_string(List *string, List *server, List *mapping)
{
	for (const PQconninfoOption *o = pgpx_libpq_options(); o->keyword; o++)
	{
		bool		in_mapping = strcmp(o->keyword, "user") == 0 ||
			strchr(o->dispchar, '*') != NULL;
		bool		used = strchr(o->dispchar, 'D') == NULL &&
			strcmp(o->keyword, "client_encoding") != 0;
		List	   *options = in_mapping ? mapping : server;
		const char *own = !used ? NULL :
			pgpx_server_catalog_value(options, o->keyword);
		const char *given = pgpx_server_catalog_value(string, o->keyword);

		if (own == NULL || given == NULL ? own != given :
			strcmp(own, given) != 0)
			return false;
	}
	return true;
}

/*
 * Return whether new sessions of dblink certainly equal those of the pool.
 *
 * They can differ if the options name files that may have changed since a
 * connection was opened, several hosts, or SQL or settings for the session.
 * Without option user the pool logs in as the local role, and dblink does not.
 */
static bool
has_same_sessions(List *server, List *mapping)
{
	static const char *const differ[] = {
		"start_commands",
		"reset",
		"reset_command",
		"use_password_command",
		"use_scram_passthrough",
		"service",
		"passfile",
		"options",
	};
	const char *host = pgpx_server_catalog_value(server, "host");
	const char *addr = pgpx_server_catalog_value(server, "hostaddr");

	for (int i = 0; i < lengthof(differ); i++)
		if (pgpx_options_find(server, differ[i]) != NULL ||
			pgpx_options_find(mapping, differ[i]) != NULL)
			return false;
	return (host == NULL || strchr(host, ',') == NULL) &&
		(addr == NULL || strchr(addr, ',') == NULL) &&
		pgpx_server_catalog_value(mapping, "user") != NULL;
}

/*
 * Return whether a call of the current user can run on the pool of a server.
 * string: NIL if the call has the server's name, else the options of its string;
 * only_pool is not used then.
 */
static PgpxDblinkOutcome
check_server(Oid oid, List *string, bool *only_pool)
{
	Oid			user = GetUserId();
	PgpxServerRow server;
	List	   *mapping;

	if (!pgpx_server_catalog_find_server(oid, &server) ||
		!pgpx_server_catalog_may_use(oid, user))
		return PGPX_DBLINK_NO_SERVER;
	if (server.own_wrapper &&
		pgpx_server_catalog_value(server.options, "base_server") != NULL)
	{
		if (string != NIL)
			return PGPX_DBLINK_NO_SERVER;
		*only_pool = true;
		return PGPX_DBLINK_POOLED;
	}
	if (!SearchSysCacheExists2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(user),
							   ObjectIdGetDatum(oid)) &&
		(!SearchSysCacheExists2(USERMAPPINGUSERSERVER,
								ObjectIdGetDatum(InvalidOid),
								ObjectIdGetDatum(oid)) ||
		 (string != NIL && !has_privs_of_role(user, server.owner))))
		return PGPX_DBLINK_NO_SERVER;
	mapping = GetUserMapping(user, oid)->options;
	if (string != NIL && !equals_string(string, server.options, mapping))
		return PGPX_DBLINK_NO_SERVER;
	return has_same_sessions(server.options, mapping) ? PGPX_DBLINK_POOLED :
		PGPX_DBLINK_OTHER_SESSION;
}

/* Search a server that has the options of a connection string. */
static PgpxDblinkOutcome
search_string(const char *string, NameData *name)
{
	PgpxDblinkOutcome outcome = PGPX_DBLINK_NO_SERVER;
	List	   *options = parse_string(string);
	Relation	servers = table_open(ForeignServerRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(servers, InvalidOid, false, NULL, 0,
										  NULL);
	HeapTuple	row;

	while (options != NIL && outcome != PGPX_DBLINK_POOLED &&
		   (row = systable_getnext(scan)) != NULL)
	{
		Form_pg_foreign_server server =
			(Form_pg_foreign_server) GETSTRUCT(row);
		PgpxDblinkOutcome of_server = check_server(server->oid, options,
												   NULL);

		*name = server->srvname;
		if (of_server != PGPX_DBLINK_NO_SERVER)
			outcome = of_server;
	}
	systable_endscan(scan);
	table_close(servers, AccessShareLock);
	return outcome;
}

/*
 * Return the server whose pool can run a call of the current user.
 *
 * connection: the first argument of the call.  Return NULL if the call must be
 * passed to dblink, and set *outcome to the reason.  *only_pool is set for a
 * server with base_server: dblink cannot connect to it.
 */
static const char *
find_server(const char *connection, bool *only_pool,
			PgpxDblinkOutcome *outcome)
{
	NameData   *name = palloc0(NAMEDATALEN);
	char	   *cut = pstrdup(connection);
	Oid			server;

	truncate_identifier(cut, strlen(cut), false);
	*outcome = PGPX_DBLINK_OPEN_CONNECTION;
	if (is_open_connection(cut))
		return NULL;
	AcceptInvalidationMessages();
	found_at = pgpx_catalog_changes;
	namestrcpy(name, cut);
	server = get_foreign_server_oid(cut, true);
	*outcome = OidIsValid(server) ? check_server(server, NIL, only_pool) :
									search_string(connection, name);
	return *outcome == PGPX_DBLINK_POOLED ? NameStr(*name) : NULL;
}

/* A call, and its last result. */
typedef struct Call
{
	FunctionCallInfo fcinfo;
	ReturnSetInfo *rsinfo;		/* has the rows; NULL: dblink_exec, which drops
								 * them */
	bool		fail;			/* raise errors of the remote */
	PgpxStatement statement;
	PgpxRemoteError error;
	PgpxRows   *rows;			/* converts a result; NULL: not in one */
	bool		in_rows;		/* between a row description and its command */
	bool		has_rows;		/* the last result has rows */
	char		tag[64];		/* else its command tag; "": an empty string */
} Call;

/*
 * Begin a result with rows; drop the rows of an earlier one.  Its row type is a
 * copy of the expected one, because the executor frees it.
 */
static void
begin_store(Call *call)
{
	if (call->rsinfo->setResult != NULL)
	{
		tuplestore_end(call->rsinfo->setResult);
		FreeTupleDesc(call->rsinfo->setDesc);
	}
	InitMaterializedSRF(call->fcinfo, MAT_SRF_USE_EXPECTED_DESC);
}

static bool
begin_rows(void *arg, const PgpxWireMessage *msg)
{
	Call	   *call = arg;
	int			n = pgpx_wire_parse_ncolumns(msg);

	call->in_rows = true;
	if (n < 0 || call->rsinfo == NULL)
		return n >= 0;
	begin_store(call);
	if (n != call->rsinfo->setDesc->natts)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("remote query result rowtype does not match the specified FROM clause rowtype")));
	call->rows = pgpx_rows_begin(call->rsinfo->setDesc, call->rsinfo->setResult,
								 InvalidOid);
	return pgpx_rows_sink(call->rows)->columns(call->rows, msg);
}

static bool
add_row(void *arg, const PgpxWireMessage *msg)
{
	Call	   *call = arg;

	if (call->rsinfo == NULL)
		return true;
	return call->rows != NULL &&
		pgpx_rows_sink(call->rows)->row(call->rows, msg);
}

static void
restore_message(void *arg)
{
	Call	   *call = arg;

	if (call->rows != NULL)
		pgpx_rows_sink(call->rows)->restore(call->rows);
}

static void
end_command(void *arg, const PgpxWireMessage *msg)
{
	Call	   *call = arg;

	call->has_rows = call->in_rows;
	call->rows = NULL;
	call->in_rows = false;
	snprintf(call->tag, sizeof(call->tag), "%.*s",
			 msg->type == 'C' ? (int) msg->len : 0, msg->data);
	pgpx_text_clean(call->tag);
}

/* Return the command tag as a row, as dblink does. */
static void
store_tag(Call *call)
{
	ExprContext *econtext = call->rsinfo->econtext;
	MemoryContext old = MemoryContextSwitchTo(econtext->ecxt_per_query_memory);
	TupleDesc	tupdesc = CreateTemplateTupleDesc(1);
	Datum		value = CStringGetTextDatum(call->tag);
	bool		isnull = false;

	TupleDescInitEntry(tupdesc, 1, "status", TEXTOID, -1, 0);
	TupleDescFinalize(tupdesc);
	begin_store(call);
	FreeTupleDesc(call->rsinfo->setDesc);
	call->rsinfo->setDesc = tupdesc;
	tuplestore_putvalues(call->rsinfo->setResult, tupdesc, &value, &isnull);
	MemoryContextSwitchTo(old);
}

/*
 * Execute the statement on a lease, and end the lease.  The error of the remote
 * is left in call->error, and so is the loss of the connection.
 */
static void
run_on_lease(Call *call, PgpxLease *lease)
{
	const PgpxSink sink = {
		.columns = begin_rows,
		.row = add_row,
		.command = end_command,
		.restore = restore_message,
		.arg = call,
	};
	PgpxRun		run = {
		.lease = lease,
		.statement = &call->statement,
		.sink = &sink,
		.last = true,
	};
	MemoryContext caller = CurrentMemoryContext;
	ErrorData *volatile lost = NULL;

	PG_TRY();
	{
		pgpx_run_send(&run, true);
		pgpx_run_read(&run, true);
		pgpx_run_finish(&run);
	}
	PG_CATCH();
	{
		/* an input function can raise the same code */
		bool		is_lost = geterrcode() == ERRCODE_CONNECTION_FAILURE &&
			lease->sock->wire.phase == PGPX_WIRE_BROKEN;

		pgpx_run_failed(&run, true);
		if (!is_lost)
		{
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
			PG_RE_THROW();
		}
		MemoryContextSwitchTo(caller);
		lost = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	call->rows = NULL;			/* of a result that an error has ended */
	call->in_rows = false;
	call->error = run.error;
	if (lost != NULL && !run.error.set)
		call->error = (PgpxRemoteError){
			.set = true,
			.sqlstate = lost->sqlerrcode,
			.primary = lost->message,
			.detail = lost->detail,
			.hint = lost->hint,
		};
}

/*
 * Lease a connection for the call.  Return NULL if it must be passed to dblink;
 * *outcome is the reason then.
 *
 * No other session sends the statement (pipelined hand-over), so after an error
 * it has certainly not been executed.  Only errors of this extension are caught,
 * because they leave nothing to clean up.  Errors of the server, such as those
 * of the lock manager, have another domain.
 */
static PgpxLease *
lease_for_call(const char *connection, PgpxDblinkOutcome *outcome)
{
	bool		only_pool = false;
	const char *server = find_server(connection, &only_pool, outcome);
	MemoryContext caller = CurrentMemoryContext;
	PgpxLease *volatile lease = NULL;

	if (server == NULL)
		return NULL;
	PG_TRY();
	{
		lease = pgpx_lease_checkout_call(server, NULL, NULL);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		if (only_pool || strcmp(error->domain, TEXTDOMAIN) != 0)
			PG_RE_THROW();
		FlushErrorState();
		*outcome = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
			error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED ||
			error->sqlerrcode == ERRCODE_TOO_MANY_CONNECTIONS ?
			PGPX_DBLINK_NONE_FREE : PGPX_DBLINK_UNAVAILABLE;
	}
	PG_END_TRY();

	/* the server may have been changed during a wait */
	AcceptInvalidationMessages();
	if (lease == NULL || only_pool || found_at == pgpx_catalog_changes)
		return lease;
	pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	*outcome = PGPX_DBLINK_OTHER_SESSION;
	return NULL;
}

/*
 * Execute a call on a pool and report an error of the remote.  Return false if
 * the call must be passed to dblink.
 */
static bool
execute(Call *call)
{
	FunctionCallInfo fcinfo = call->fcinfo;
	PgpxDblinkOutcome outcome = PGPX_DBLINK_POOLED;
	PgpxRemoteError *error = &call->error;
	PgpxLease  *lease;

	/* without preloaded library, for example in pg_upgrade */
	if (pgpx_shared == NULL)
		return false;
	call->fail = PG_NARGS() < 3 || PG_GETARG_BOOL(2);
	call->statement.sql = text_to_cstring(PG_GETARG_TEXT_PP(1));
	lease = lease_for_call(text_to_cstring(PG_GETARG_TEXT_PP(0)), &outcome);
	pg_atomic_fetch_add_u64(&pgpx_shared->dblink_calls[outcome], 1);
	if (lease == NULL)
		return false;
	run_on_lease(call, lease);

	/* an empty string: nothing was executed, and dblink raises its error */
	if (!error->set && !call->has_rows && call->tag[0] == '\0')
		return false;
	if (error->set)
		pgpx_remote_error_report(call->fail ? ERROR : NOTICE, error,
								 call->rsinfo == NULL ?
								 "while executing command on unnamed dblink connection" :
								 "while executing query on unnamed dblink connection");
	return true;
}

/* dblink(connection text, sql text [, fail bool]) returns setof record */
Datum
pgpx_dblink_record(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Call		call = {.fcinfo = fcinfo, .rsinfo = rsinfo};
	TupleDesc	tupdesc;

	/* the contexts that dblink refuses are left to it */
	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0 ||
		get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE ||
		!execute(&call))
		return dblink_function("dblink_record")(fcinfo);

	/* rows before an error that was not raised are returned, as by dblink */
	if (!call.error.set && !call.has_rows)
		store_tag(&call);
	rsinfo->returnMode = SFRM_Materialize;
	return (Datum) 0;
}

/* dblink_exec(connection text, sql text [, fail bool]) returns text */
Datum
pgpx_dblink_exec(PG_FUNCTION_ARGS)
{
	Call		call = {.fcinfo = fcinfo};

	if (!execute(&call))
		return dblink_function("dblink_exec")(fcinfo);
	if (call.error.set)
		PG_RETURN_TEXT_P(cstring_to_text("ERROR"));
	if (call.has_rows)
		ereport(ERROR,
				(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
				 errmsg("statement returning results not allowed")));
	PG_RETURN_TEXT_P(cstring_to_text(call.tag));
}
