/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  A statement on a lease: send, read, errors.
 *
 * The rule after an error in mid-result: a value that could not be converted
 * leaves the rest to be drained, within a bound; beyond the bound, and after an
 * interrupt, the worker cancels.  A lease that is not at a boundary then drains
 * at its next use, or is broken.
 *
 * Run SQL on a lease, from its being sent to its end.
 *
 * The steps are statement.c's; here is what is known of the result before.
 *
 *-------------------------------------------------------------------------
 */
#include "session/statement.h"

#include <ctype.h>

#include "storage/latch.h"

#include "values/binary_input.h"
#include "session/lease_stream.h"

#define MAX_PARAMS 65535		/* of Bind */

/* What an error in mid-result may still read, before it is given up. */
#define DRAIN_BYTES (1024 * 1024)
#define DRAIN_US (50 * 1000)
#define CANCEL_BYTES (16 * 1024 * 1024)

/* An answer of which so much has come is a large one. */
#define LARGE_BYTES (1024 * 1024)

/* After which pause a cancel is sent again; doubled each time. */
#define CANCEL_AGAIN_US (250 * 1000)

static uint32 wait_query = 0;

/*
 * Is the text one statement that reads, or a COPY?  For a statement that reads, the
 * simple protocol gives the same result for less work on both sides.  (A rule may
 * add results to a statement that writes, which the simple protocol would send
 * along.)  A COPY that is refused leaves the lease usable in the simple protocol
 * only, see the rules of PGPX_WIRE_EXECUTE.
 */
static bool
fits_simple_protocol(const char *sql)
{
	static const char *const words[] = {"select", "values", "show", "with", "table",
										"copy"};

	if (strchr(sql, ';') != NULL)
		return false;
	sql += strspn(sql, " \t\n\r");
	for (int i = 0; i < lengthof(words); i++)
	{
		size_t		len = strlen(words[i]);

		if (pg_strncasecmp(sql, words[i], len) == 0 &&
			!isalnum((unsigned char) sql[len]) && sql[len] != '_')
			return true;
	}
	return false;
}

static const char malformed[] = "the remote server sent a malformed message";

static void
handle_event(PgpxRun *run, PgpxWireEvent event, const PgpxWireMessage *msg)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;
	int			notices = lease->spec->opts.notices;

	switch (event)
	{
		case PGPX_EV_NO_DATA:
			run->described = true;
			break;
		case PGPX_EV_ROW_DESCRIPTION:
			run->described = true;
			if (run->sink != NULL &&
				!run->sink->columns(run->sink->arg, msg, wire))
				pgpx_wire_break(wire, malformed);
			break;
		case PGPX_EV_ROW:
			if (run->sink != NULL && !run->sink->row(run->sink->arg, msg))
				pgpx_wire_break(wire, malformed);
			lease->usage.rows++;
			break;
		case PGPX_EV_COMMAND:
			if (msg->type == 'I')
				run->empty = true;
			else
			{
				run->any = true;
				run->rows += pgpx_wire_parse_command(msg);
			}
			break;
		case PGPX_EV_ERROR:
			if (!run->error.set)
				pgpx_remote_error_copy(&run->error, msg);
			if (run->error.sqlstate == ERRCODE_READ_ONLY_SQL_TRANSACTION)
				lease->read_only = true;
			lease->usage.errors++;
			break;
		case PGPX_EV_NOTICE:
			if (notices != PGPX_NOTICES_IGNORE)
				pgpx_remote_notice(msg, notices == PGPX_NOTICES_LOG ? LOG : 0,
								   NameStr(lease->spec->server_name));
			break;
		case PGPX_EV_NOTIFICATION:
			pgpx_notes_keep(lease, msg);
			break;
		case PGPX_EV_COPY:
			/* the refusal is in the output buffer */
			(void) pgpx_lease_flush(lease, 0);
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("COPY FROM STDIN and COPY TO STDOUT are not supported on a lease"),
					 errhint("Use INSERT, or SELECT in pgpool.query.")));
			break;
		default:
			break;
	}
}

/*
 * What has come in since the last answer?  Notices, notifications and parameters
 * may come at any time, and the last words of a remote that goes.  Anything else
 * would be taken for the answer to the next statement.
 */
static void
poll(PgpxRun *run)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;
	PgpxTime	deadline = 0;

	for (;;)
	{
		PgpxWireMessage msg;
		PgpxWireEvent event;
		bool		more;
		ssize_t		n = pgpx_wire_fill(wire, &more);

		while ((event = pgpx_wire_next(wire, &msg)) != PGPX_EV_NEED_INPUT)
		{
			if (event == PGPX_EV_BROKEN)
				pgpx_lease_broken(lease, wire->broken,
								  run->error.set ? run->error.primary : NULL);
			handle_event(run, event, &msg);
		}
		if (pgpx_wire_at_boundary(wire) && !more)
			return;
		CHECK_FOR_INTERRUPTS();
		if (n > 0)
			continue;

		/* in the middle of a message */
		if (deadline == 0)
			deadline = pgpx_lease_operation_deadline(lease);
		if (!pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_query, "PgpoolQuery")))
		{
			pgpx_wire_break(wire, "a message did not end within operation_timeout");
			pgpx_lease_broken(lease, wire->broken, NULL);
		}
	}
}

/*
 * Make the stream ready for a statement: what was interrupted before has to
 * come to its end first, and so has a cancel, or it would hit the new one.
 */
static void
make_ready(PgpxRun *run)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxTime	deadline;
	PgpxTime	pause = CANCEL_AGAIN_US;

	pgpx_lease_check_broken(lease);
	if (wire->phase == PGPX_WIRE_IDLE)
	{
		/* the checkout of a call on a pool has looked just now */
		if (lease->scope != PGPX_SCOPE_CALL &&
			!(pgpx_wire_at_boundary(wire) &&
			  pgpx_session_has_no_input(lease->sock)))
			poll(run);
		if (pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_NONE)
		{
			pgpx_lease_check_lost_cancel(lease);
			return;
		}
	}

	deadline = pgpx_lease_operation_deadline(lease);
	while (!pgpx_wire_at_boundary(wire))
	{
		PgpxTime	step = Min(deadline, pgpx_now() + pause);

		if (pgpx_lease_drain(lease, 0, step, false))
			break;
		if (wire->phase == PGPX_WIRE_IDLE)
		{
			/* it has ended; what came behind it has not */
			poll(run);
			break;
		}
		CHECK_FOR_INTERRUPTS();
		pause *= 2;
		if (wire->phase == PGPX_WIRE_BROKEN || pgpx_now() >= deadline)
		{
			pgpx_wire_break(wire, "a cancelled statement did not end within operation_timeout");
			pgpx_lease_broken(lease, wire->broken, NULL);
		}

		/* a cancel that comes before its statement is lost */
		pgpx_lease_cancel(lease);
	}
	while (pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE)
	{
		/* who takes the lease away wakes us, once; nobody else does then */
		pgpx_lease_check_revoked(lease);
		if (!pgpx_session_wait_latch(deadline,
									 pgpx_wait_event(&wait_query, "PgpoolQuery")))
		{
			pgpx_wire_break(wire, "a cancel request did not end within operation_timeout");
			pgpx_lease_broken(lease, wire->broken, NULL);
		}
	}
	pgpx_lease_check_lost_cancel(lease);
}

/*
 * The answer is whole.  What came in with it may be notices, or the remote's last
 * words, which the next use finds.  More than that, and nobody can tell whose
 * answer this was.
 */
static void
read_behind(PgpxRun *run)
{
	PgpxWire   *wire = &run->lease->sock->wire;
	PgpxWireMessage msg;
	PgpxWireEvent event;

	while ((event = pgpx_wire_next(wire, &msg)) == PGPX_EV_NOTICE ||
		   event == PGPX_EV_NOTIFICATION)
		handle_event(run, event, &msg);
	if (event == PGPX_EV_BROKEN && !wire->eof)
		pgpx_lease_broken(run->lease, wire->broken, NULL);
}

/* Process each whole message in the buffer; true: the answer has ended. */
static bool
step(PgpxRun *run)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;

	for (;;)
	{
		PgpxWireMessage msg;
		PgpxWireEvent event = pgpx_wire_next(wire, &msg);

		if (event == PGPX_EV_READY)
		{
			read_behind(run);
			return true;
		}
		if (event == PGPX_EV_NOT_RUN)
		{
			lease->not_run = true;
			lease->usage.statements--;
			return true;
		}
		if (event == PGPX_EV_BROKEN)
			pgpx_lease_broken(lease, wire->broken,
							  run->error.set ? run->error.primary : NULL);
		if (event != PGPX_EV_NEED_INPUT)
			handle_event(run, event, &msg);
		else
			return wire->phase == PGPX_WIRE_IDLE;	/* part of a notice */
	}
}

/* The answer is whole: does it make sense? */
static void
check_answer(PgpxRun *run)
{
	PgpxWire   *wire = &run->lease->sock->wire;

	if (run->lease->not_run)
		return;
	if (!run->error.set && !run->any && !run->empty && !run->describe)
	{
		pgpx_wire_break(wire, malformed);
		pgpx_lease_broken(run->lease, malformed, NULL);
	}
	if (run->error.set && run->error.fatal)
	{
		pgpx_wire_break(wire, "the remote server ended the session");
		pgpx_lease_broken(run->lease, wire->broken, run->error.primary);
	}
}

bool
pgpx_run_step(PgpxRun *run)
{
	bool		more;

	(void) pgpx_wire_fill(&run->lease->sock->wire, &more);
	if (!step(run))
		return false;
	check_answer(run);
	return true;
}

/*
 * Read until the boundary.  A cancel that was asked for and came before its
 * statement is lost, so it is asked for again.  What comes of a large answer is
 * left to gather, unless nothing has come of late.  Before each sleep it is looked
 * whether something comes at once, where that is likely to pay (busy_poll.c).
 */
void
pgpx_run_read(PgpxRun *run)
{
	PgpxLease  *lease = run->lease;
	PgpxTime	pause = CANCEL_AGAIN_US;
	PgpxTime	deadline = lease->cancelled ? pgpx_now() + pause : 0;
	uint64		before = lease->sock->wire.bytes_in;
	ssize_t		n = 0;
	bool		more = false;

	while (!step(run))
	{
		/* rows that keep coming must not delay it: they may have no end */
		if (deadline != 0 && pgpx_now() >= deadline)
		{
			pause *= 2;
			deadline = pgpx_now() + pause;
			pgpx_lease_cancel(lease);
		}
		if (more)
			CHECK_FOR_INTERRUPTS();
		else if (n > 0 && !lease->cancelled &&
				 lease->sock->wire.bytes_in - before > LARGE_BYTES)
			pgpx_session_wait_for_more(lease->sock,
									   pgpx_wait_event(&wait_query, "PgpoolQuery"));
		else if ((n = pgpx_socket_cache_poll(lease->sock, lease->spec->pool,
											 &more)) != 0)
		{
			if (n > 0)
				lease->usage.polled++;
			CHECK_FOR_INTERRUPTS();
			continue;
		}
		else
			(void) pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
									 pgpx_wait_event(&wait_query, "PgpoolQuery"));
		n = pgpx_wire_fill(&lease->sock->wire, &more);
	}
	check_answer(run);
}

/*
 * Something was thrown while the stream was in mid-answer.  Bring it to a
 * boundary if that is cheap, else have the worker cancel.
 */
static void
clean_up(PgpxLease *lease, bool may_drain)
{
	PgpxWire   *wire = &lease->sock->wire;
	int			code = geterrcode();

	/* a statement that was not sent whole must not run later on */
	pgpx_wire_abandon(wire);

	/* at a boundary, also with part of a notice behind it, nothing runs */
	if (wire->phase == PGPX_WIRE_BROKEN || wire->phase == PGPX_WIRE_IDLE)
		return;
	if (may_drain && code != ERRCODE_QUERY_CANCELED &&
		code != ERRCODE_ADMIN_SHUTDOWN &&
		pgpx_lease_drain(lease, DRAIN_BYTES, pgpx_now() + DRAIN_US, true))
		return;
	if (wire->phase == PGPX_WIRE_BROKEN)
		return;
	pgpx_lease_cancel(lease);

	/*
	 * A remote that cannot get rid of its rows does not see a cancel: let it,
	 * for a moment.  (Where only a call's connection is at stake, it closes.)
	 */
	if (may_drain && code == ERRCODE_QUERY_CANCELED &&
		lease->scope != PGPX_SCOPE_CALL)
		(void) pgpx_lease_drain(lease, CANCEL_BYTES, pgpx_now() + DRAIN_US,
								true);
}

void
pgpx_run_failed(PgpxRun *run, bool may_drain)
{
	PgpxLease  *lease = run->lease;
	PgpxConn   *conn = &pgpx_conns[lease->conn];

	if (run->sink != NULL)
		run->sink->restore(run->sink->arg);

	/* what may run out of memory comes after it */
	lease->in_use = false;
	clean_up(lease, may_drain);
	if (pgpx_conn_activity(conn) == PGPX_ACT_ACTIVE)
		pgpx_lease_report_activity(lease);
}

void
pgpx_run_check(const PgpxLease *lease, int nparams)
{
	if (lease->in_flight != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease " UINT64_FORMAT " has a statement in flight",
						lease->id),
				 errhint("Take its result with pgpool.result first.")));
	if (nparams > MAX_PARAMS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many parameters"),
				 errdetail("There are %d parameters; the protocol allows %d.",
						   nparams, MAX_PARAMS),
				 errhint("Pass the values as one array, and unnest it in the statement.")));
}

void
pgpx_run_send(PgpxRun *run, int nparams, const char *const *values,
			  bool several)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;
	PgpxConn   *conn = &pgpx_conns[lease->conn];

	lease->in_use = true;
	if (lease->pending_state != PGPX_PENDING_SENT)
		make_ready(run);
	if (wire->encoding_changed)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("client_encoding of the remote session was changed"),
				 errhint("It must stay that of the local database; return the lease.")));

	lease->sent = true;
	lease->cancelled = false;
	lease->usage.statements++;
	pgpx_conn_set_activity(conn, lease->id, PGPX_ACT_ACTIVE, true);
	if (lease->pending_state == PGPX_PENDING_SENT)
	{
		lease->pending_state = PGPX_PENDING_NONE;	/* by who had it before us */
		return;
	}
	if (run->describe)
		pgpx_wire_send_describe(wire, run->sql);
	else if (nparams == 0 && run->nformats == 0 &&
			 (several || fits_simple_protocol(run->sql)))
		pgpx_wire_send_query(wire, run->sql);
	else
		pgpx_wire_send_extended(wire, run->sql, nparams, values, run->nformats,
								run->formats);

	/* a stream that cannot be sent into may still tell why */
	(void) pgpx_lease_flush(lease, 0);
}

uint64
pgpx_run_end(PgpxRun *run)
{
	run->lease->in_use = false;
	pgpx_lease_report_activity(run->lease);
	if (run->lease->not_run)
		return 0;
	if (run->error.set)
		pgpx_remote_error_raise(&run->error, run->internal ? NULL : run->sql,
								NameStr(run->lease->spec->server_name));
	if (run->empty && !run->any)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("SQL text holds no statement")));
	return run->rows;
}

void
pgpx_run_poll(PgpxLease *lease)
{
	PgpxRun		run = {.lease = lease};

	lease->in_use = true;
	PG_TRY();
	{
		make_ready(&run);
	}
	PG_FINALLY();
	{
		lease->in_use = false;
	}
	PG_END_TRY();
}

void
pgpx_prediction_begin(PgpxPrediction *prediction, PgpxRun *run)
{
	PgpxLease  *lease = run->lease;

	prediction->on = run->sink != NULL && pgpx_conns[lease->conn].binary;
	prediction->any = prediction->on && run->sink->formats == NULL;
	run->nformats = 0;
	run->formats = prediction->formats;
	if (!prediction->on)
		return;
	pgpx_formats_key(&prediction->key, lease->spec->pool_id, run->sql,
					 run->sink->types_hash);

	/* what was sent for us by another session was sent for texts */
	if (lease->pending_state != PGPX_PENDING_SENT)
		run->nformats = pgpx_formats_find(&prediction->key,
										  prediction->formats);
}

void
pgpx_prediction_failed(PgpxPrediction *prediction, const PgpxRun *run)
{
	if (prediction->on && run->nformats > 0)
		pgpx_formats_note(&prediction->key, 0, NULL);
}

/*
 * Nothing is lost by running it again, unless a transaction of the remote has
 * failed with it.
 */
bool
pgpx_prediction_was_wrong(PgpxPrediction *prediction, PgpxRun *run,
						  bool may_repeat)
{
	if (!prediction->on || run->nformats == 0 || !run->error.set ||
		run->described || run->error.sqlstate != ERRCODE_PROTOCOL_VIOLATION)
		return false;
	pgpx_formats_note(&prediction->key, 0, NULL);
	if (may_repeat && run->lease->sock->wire.tx == 'I')
	{
		run->nformats = 0;
		memset(&run->error, 0, sizeof(run->error));
		return true;
	}

	/* nothing may be thrown here: the lease is in use until pgpx_run_end */
	run->error.sqlstate = ERRCODE_DATATYPE_MISMATCH;
	run->error.detail = run->error.primary;
	run->error.primary =
		"the remote result has other columns than the last time";
	run->error.hint = run->lease->sock->wire.tx == 'I' ?
		"Send the statement again." :
		"Roll back on the lease, and run the statement again.";
	return false;
}

void
pgpx_prediction_end(PgpxPrediction *prediction, const PgpxRun *run)
{
	const int16 *formats = NULL;
	int			n = 0;

	if (!prediction->on)
		return;
	if (!run->error.set && run->sink->formats != NULL)
		n = run->sink->formats(run->sink->arg, prediction->any, run->rows,
							   &formats);
	if (n != run->nformats ||
		(n > 0 && memcmp(formats, run->formats, n * sizeof(int16)) != 0))
		pgpx_formats_note(&prediction->key, n, formats);
}

static void
run_once(PgpxRun *run, int nparams, const char *const *values,
		 PgpxPrediction *prediction)
{
	PG_TRY();
	{
		pgpx_run_send(run, nparams, values, run->sink == NULL);
		pgpx_run_read(run);
	}
	PG_CATCH();
	{
		pgpx_run_failed(run, true);
		pgpx_prediction_failed(prediction, run);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

uint64
pgpx_exec(PgpxLease *lease, const char *sql, int nparams,
		  const char *const *values, const PgpxSink *sink)
{
	PgpxPrediction prediction;
	PgpxRun		run = {.lease = lease, .sql = sql, .sink = sink};

	pgpx_run_check(lease, nparams);
	pgpx_prediction_begin(&prediction, &run);
	do
		run_once(&run, nparams, values, &prediction);
	while (pgpx_prediction_was_wrong(&prediction, &run, true));
	pgpx_prediction_end(&prediction, &run);
	return pgpx_run_end(&run);
}
