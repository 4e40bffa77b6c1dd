/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  A statement on a lease: send, read, errors; describe its result.
 *
 * After an error in the middle of a result, the stream must be brought back to
 * a message boundary.  If a value could not be converted, the rest of the
 * result is drained, within a bound.  If the rest is larger, and after an
 * interrupt, the worker cancels the statement.  The next use of the lease then
 * drains the rest, or finds that the lease is broken.
 *
 *-------------------------------------------------------------------------
 */
#include "session/statement.h"

#include <ctype.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "storage/latch.h"
#include "utils/builtins.h"

#include "base/debug_point.h"
#include "session/lease.h"

/* An answer with more bytes than this is large. */
#define LARGE_BYTES (1024 * 1024)

static uint32 wait_query = 0;
static const char malformed[] = "the remote server sent a malformed message";
static const char cancel_is_late[] = "a cancel request did not end within operation_timeout";

/* ------------------------------------------------------------------------
 * What the text of a statement shows about it, without parsing it
 *
 * The text is split into words, also within quotes and comments, except for
 * comments at its beginning.  So a word in a literal counts, too.  If a text is
 * uncertain, each function returns the more cautious answer.
 * ------------------------------------------------------------------------
 */

#define WORD_MAX 16				/* longer words are truncated */

static bool
is_word_char(char c)
{
	return isalpha((unsigned char) c) || c == '_' || IS_HIGHBIT_SET(c);
}

/*
 * Return the position after the white space, comments and opening parentheses
 * at p.
 */
static const char *
skip_lead(const char *p)
{
	int			depth = 0;		/* comments can be nested */

	for (;; p++)
	{
		if (p[0] == '/' && p[1] == '*')
		{
			depth++;
			p++;
		}
		else if (depth > 0 && p[0] == '*' && p[1] == '/')
		{
			depth--;
			p++;
		}
		else if (*p == '\0')
			return p;
		else if (depth > 0)
			continue;
		else if (p[0] == '-' && p[1] == '-')
		{
			p += strcspn(p, "\r\n");
			if (*p == '\0')
				return p;
		}
		else if (strchr(" \t\n\r\f\v(", *p) == NULL)
			return p;
	}
}

/* Read the word at p in lower case.  Return the position after it. */
static const char *
read_word(const char *p, char word[WORD_MAX])
{
	int			n = 0;

	for (; is_word_char(*p); p++)
		if (n < WORD_MAX - 1)
			word[n++] = pg_ascii_tolower((unsigned char) *p);
	word[n] = '\0';
	return p;
}

/* Return whether the text contains a word, which must be in lower case. */
static bool
has_word(const char *sql, const char *word)
{
	char		found[WORD_MAX];

	while (*sql != '\0')
	{
		sql = read_word(is_word_char(*sql) ? sql : sql + 1, found);
		if (strcmp(found, word) == 0)
			return true;
	}
	return false;
}

/* What the first word of a text tells about a single statement. */
#define READS			1
#define IS_QUERY		2		/* it has the same columns each time */
#define MAY_WRITE		4
#define ENDS_CLEAN		8		/* it leaves no transaction open, and begins no
								 * COPY */

static int
classify(const char *sql)
{
	static const struct
	{
		const char *word;
		int			is;
	}			words[] = {
		{"select", READS | IS_QUERY | ENDS_CLEAN},
		{"values", READS | IS_QUERY | ENDS_CLEAN},
		{"table", READS | IS_QUERY | ENDS_CLEAN},
		{"with", READS | IS_QUERY | MAY_WRITE | ENDS_CLEAN},
		{"show", READS},
		{"insert", ENDS_CLEAN},
		{"update", ENDS_CLEAN},
		{"delete", ENDS_CLEAN},
		{"merge", ENDS_CLEAN},
		{"commit", ENDS_CLEAN},
	};
	char		word[WORD_MAX];

	(void) read_word(skip_lead(sql), word);
	for (int i = 0; i < lengthof(words); i++)
		if (strcmp(word, words[i].word) == 0)
			return words[i].is;
	return 0;
}

/*
 * Return whether the text is a SELECT, VALUES, TABLE, or a WITH that does not
 * write.  The result of another statement, such as FETCH or EXECUTE, can have
 * other columns at each execution.
 */
static bool
is_query(const char *sql)
{
	int			is = classify(sql);

	return (is & IS_QUERY) != 0 &&
		((is & MAY_WRITE) == 0 ||
		 !(has_word(sql, "insert") || has_word(sql, "update") ||
		   has_word(sql, "delete") || has_word(sql, "merge")));
}

/*
 * Return whether the text is a single statement that begins as one that
 * reads.
 *
 * For a statement that reads, the simple protocol returns the same result for
 * less work on both sides.  For a statement that writes, the result may differ,
 * because only the simple protocol returns the results that a rule adds.
 */
static bool
can_be_simple(const char *sql)
{
	return strchr(sql, ';') == NULL && (classify(sql) & READS) != 0;
}

/*
 * Return whether the text is a single statement that can neither leave a
 * transaction open nor begin a COPY.
 *
 * single: the remote accepts the text only as a single statement.
 */
static bool
can_precede_reset(const char *sql, bool single)
{
	const char *end = strchr(sql, ';');

	return (single || end == NULL || end[strspn(end, " \t\n\r;")] == '\0') &&
		(classify(sql) & ENDS_CLEAN) != 0;
}

/* ------------------------------------------------------------------------
 * Send, read, errors
 * ------------------------------------------------------------------------
 */

/* Raise 08006 for a broken stream, with the remote's error if it sent one. */
pg_noreturn static void
raise_broken(const PgpxRun *run)
{
	pgpx_lease_raise_broken(run->lease, NULL,
							run->error.set ? run->error.primary : NULL);
}

/* Publish the state of the remote transaction to the views. */
static void
publish_state(const PgpxLease *lease)
{
	const PgpxWire *wire = &lease->sock->wire;

	pgpx_conn_set_activity(&pgpx_conns[lease->conn], lease->id,
						   wire->phase == PGPX_WIRE_BROKEN ? PGPX_ACT_BROKEN :
						   wire->tx == 'T' ? PGPX_ACT_TRANSACTION :
						   wire->tx == 'E' ? PGPX_ACT_FAILED : PGPX_ACT_IDLE,
						   false);
}

/*
 * Raise 0A000 if the texts of values are not in the styles in which they are
 * read.  In other styles a time zone is an abbreviation, which is ambiguous.
 */
static void
check_styles(const PgpxRun *run)
{
	const PgpxWire *wire = &run->lease->sock->wire;

	if (run->sink == NULL ||
		(wire->datestyle_iso && wire->intervalstyle_postgres))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s of the remote session was changed",
					wire->datestyle_iso ? "IntervalStyle" : "DateStyle"),
			 errdetail("Rows are read only in DateStyle \"ISO\" and IntervalStyle \"postgres\"."),
			 errhint("Reset it on the lease with pgpool.exec, or return the lease.")));
}

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
			check_styles(run);
			if (run->sink != NULL && run->sink->columns != NULL &&
				!run->sink->columns(run->sink->arg, msg))
				pgpx_wire_break(wire, malformed);
			break;
		case PGPX_EV_ROW:
			run->has_rows = true;
			if (run->sink != NULL && !run->sink->row(run->sink->arg, msg))
				pgpx_wire_break(wire, malformed);
			lease->usage.rows++;
			break;
		case PGPX_EV_COMMAND:
			if (run->sink != NULL && run->sink->command != NULL)
				run->sink->command(run->sink->arg, msg);
			if (msg->type == 'I')
				run->empty = true;
			else
			{
				run->has_statement = true;
				run->rows += pgpx_wire_parse_command(msg);
			}
			break;
		case PGPX_EV_SUSPENDED:
			run->has_statement = true;
			run->suspended = true;
			break;
		case PGPX_EV_ERROR:
			if (!run->error.set)
				pgpx_remote_error_copy(&run->error, msg);
			if (run->error.sqlstate == ERRCODE_READ_ONLY_SQL_TRANSACTION &&
				!(lease->scope == PGPX_SCOPE_TABLE && XactReadOnly))
				lease->read_only = true;
			lease->usage.errors++;
			break;
		case PGPX_EV_NOTICE:
			pgpx_lease_note_end(lease, msg);
			if (notices != PGPX_NOTICES_IGNORE)
				pgpx_remote_notice(msg, notices == PGPX_NOTICES_LOG ? LOG : 0,
								   NameStr(lease->spec->server_name),
								   run->last &&
									   lease->scope == PGPX_SCOPE_TABLE);
			break;
		case PGPX_EV_NOTIFICATION:
			pgpx_lease_store_note(lease, msg);
			break;
		case PGPX_EV_COPY:
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
 * Process each complete message in the buffer, up to the first event "stop_at",
 * and behind a complete answer the notices and notifications.  Any other message
 * there breaks the lease, because the answer may have been for another
 * statement.  The end of the stream is left to the lease's next use.
 */
static PgpxRunStep
process_messages(PgpxRun *run)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;
	bool		ended = false;

	for (;;)
	{
		PgpxWireMessage msg;
		PgpxWireEvent event = pgpx_wire_next(wire, &msg);

		if (ended && event != PGPX_EV_NOTICE && event != PGPX_EV_NOTIFICATION)
		{
			if (event == PGPX_EV_BROKEN && !wire->eof)
				pgpx_lease_raise_broken(lease, NULL, NULL);
			return PGPX_RUN_END;
		}
		if (event == PGPX_EV_READY)
		{
			if (wire->reset_behind != 0)
				return PGPX_RUN_END;	/* its answer is next */
			ended = true;
			continue;
		}
		if (event == PGPX_EV_NOT_RUN)
		{
			lease->not_run = true;
			if (run->stop_at != PGPX_EV_BEGUN)
				lease->usage.statements--;
			return PGPX_RUN_END;
		}
		if (event == PGPX_EV_BROKEN)
			raise_broken(run);
		if (event == PGPX_EV_NEED_INPUT)
			return wire->phase == PGPX_WIRE_IDLE ?
				PGPX_RUN_END :	/* part of a notice */
				PGPX_RUN_WAIT;
		handle_event(run, event, &msg);
		if (event == run->stop_at && wire->phase != PGPX_WIRE_BROKEN)
			return PGPX_RUN_STOPPED;
	}
}

/*
 * Read and process the input that arrived since the last answer.  Notices,
 * notifications, parameters and the final error of a closing remote may arrive
 * at any time.  Any other message breaks the stream, because it would be taken
 * for the answer to the next statement.
 */
static void
read_pending_input(PgpxRun *run)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;
	PgpxTime	deadline = 0;

	for (;;)
	{
		bool		more;
		ssize_t		n = pgpx_wire_fill(wire, &more);

		(void) process_messages(run);
		if (pgpx_wire_is_at_boundary(wire) && !more)
			return;
		CHECK_FOR_INTERRUPTS();
		if (n > 0)
			continue;

		/* in the middle of a message */
		if (deadline == 0)
			deadline = pgpx_lease_operation_deadline(lease);
		if (!pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_query, "PgpoolQuery")))
			pgpx_lease_raise_broken(lease, "a message did not end within operation_timeout",
									NULL);
	}
}

/*
 * Make the stream ready for a statement.  First wait for the end of an
 * interrupted statement, and of a cancel request, which could otherwise cancel
 * the new statement.  So could a lost one at any time.
 */
static void
make_ready(PgpxRun *run)
{
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxTime	deadline = pgpx_lease_operation_deadline(lease);
	PgpxTime	pause = PGPX_CANCEL_AGAIN_US;

	pgpx_lease_check_broken(lease);

	/* the checkout of a lease of scope CALL has just validated it */
	if (wire->phase == PGPX_WIRE_IDLE && lease->scope != PGPX_SCOPE_CALL &&
		!pgpx_session_has_no_input(lease->sock))
		read_pending_input(run);
	while (!pgpx_wire_is_at_boundary(wire))
	{
		PgpxTime	until = Min(deadline, pgpx_now() + pause);

		if (pgpx_stream_drain(lease, 0, until))
			break;
		if (wire->phase == PGPX_WIRE_IDLE)
		{
			/* the answer is complete, but part of a notice after it is not */
			read_pending_input(run);
			break;
		}
		CHECK_FOR_INTERRUPTS();
		pause = pgpx_cancel_next_pause(pause);
		if (wire->phase == PGPX_WIRE_BROKEN || pgpx_now() >= deadline)
			pgpx_lease_raise_broken(lease, "a cancelled statement did not end within operation_timeout",
									NULL);

		/* a cancel that arrives before its statement has no effect */
		pgpx_stream_cancel(lease);
	}
	while (pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE)
	{
		/* check each time, because a revocation sets the latch only once */
		pgpx_lease_check_revoked(lease);
		if (!pgpx_session_wait_latch(deadline,
									 pgpx_wait_event(&wait_query, "PgpoolQuery")))
			pgpx_lease_raise_broken(lease, cancel_is_late, NULL);
	}
	if (pgpx_conn_cancel_is_lost(conn))
		pgpx_lease_raise_broken(lease, cancel_is_late, NULL);
}

/*
 * The answer is complete: raise an error if it is malformed or fatal, or if the
 * statement may have changed the styles of its own rows.
 */
static void
check_answer(PgpxRun *run)
{
	if (run->lease->not_run)
		return;
	if (!run->error.set && !run->has_statement && !run->empty && !run->describe)
		pgpx_lease_raise_broken(run->lease, malformed, NULL);
	if (run->error.set && run->error.fatal)
		pgpx_lease_raise_broken(run->lease,
								"the remote server ended the session",
								run->error.primary);
	if (!run->error.set && run->has_rows)
		check_styles(run);
}

/*
 * A cancel that arrives before its statement has no effect, so it is requested
 * again and again.  In the middle of a large answer, if the last read has found
 * input, the session pauses before the next one, so that it finds more.
 * Otherwise it busy-polls before it sleeps, where that is likely to be
 * worthwhile (shmem.c).  If the previous holder has sent the statement, the
 * answer has often arrived already, so it is read before the first wait.
 */
PgpxRunStep
pgpx_run_read(PgpxRun *run, bool wait)
{
	PgpxLease  *lease = run->lease;
	PgpxRunStep reached;
	bool		more = lease->sock->wire.sent_ahead;

	while ((reached = process_messages(run)) == PGPX_RUN_WAIT)
	{
		/* also while rows keep arriving, because they may never end */
		PgpxTime	deadline = pgpx_stream_repeat_cancel(lease);

		if (!wait)
		{
			if (pgpx_wire_fill(&lease->sock->wire, &more) == 0)
				return PGPX_RUN_WAIT;
			CHECK_FOR_INTERRUPTS(); /* input may arrive without a pause */
			continue;
		}
		if (more)
			CHECK_FOR_INTERRUPTS();
		else if (run->last_read > 0 && deadline == 0 &&
				 lease->sock->wire.bytes_in - run->bytes_at_send > LARGE_BYTES)
			pgpx_session_wait_for_more(lease->sock,
									   pgpx_wait_event(&wait_query, "PgpoolQuery"));
		else if ((run->last_read = pgpx_socket_cache_poll(lease->sock,
														  lease->spec->pool,
														  &more)) != 0)
		{
			if (run->last_read > 0)
				lease->usage.polled++;
			CHECK_FOR_INTERRUPTS();
			continue;
		}
		else
			(void) pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
									 pgpx_wait_event(&wait_query, "PgpoolQuery"));
		run->last_read = pgpx_wire_fill(&lease->sock->wire, &more);
	}
	if (reached == PGPX_RUN_END)
		check_answer(run);
	return reached;
}

/*
 * Clean up after an error in the middle of an answer.  Drain the stream to a
 * message boundary until drain_until (0: do not try).  If the statement has not
 * ended then, request a cancel.  Return whether a cancel was requested.
 */
static bool
clean_up(PgpxLease *lease, PgpxTime drain_until)
{
	PgpxWire   *wire = &lease->sock->wire;
	bool		cancels;

	/* a partially sent statement must not run later */
	pgpx_wire_abandon(wire);
	if (drain_until > 0 && wire->phase != PGPX_WIRE_BROKEN &&
		!pgpx_wire_statement_ended(wire))
		(void) pgpx_stream_drain(lease, PGPX_DRAIN_BYTES, drain_until);
	cancels = wire->phase != PGPX_WIRE_BROKEN &&
		!pgpx_wire_statement_ended(wire);
	if (cancels)
		pgpx_stream_cancel(lease);
	if (pgpx_conn_activity(&pgpx_conns[lease->conn]) == PGPX_ACT_ACTIVE)
		publish_state(lease);
	return cancels;
}

void
pgpx_run_failed(PgpxRun *run, bool may_drain)
{
	PgpxLease  *lease = run->lease;
	int			code = geterrcode();
	bool		drains = may_drain && code != ERRCODE_QUERY_CANCELED &&
		code != ERRCODE_ADMIN_SHUTDOWN;

	if (run->sink != NULL && run->sink->restore != NULL)
		run->sink->restore(run->sink->arg);
	if (may_drain && run->prediction.on && run->nformats > 0)
		pgpx_formats_note(&run->prediction.key, 0, NULL);

	/* first, because what follows may run out of memory */
	lease->in_use = false;

	/*
	 * A remote that is blocked in sending rows does not process a cancel, so
	 * drain for a moment.  (Not for scope CALL, whose connection is closed.)
	 */
	if (clean_up(lease, drains ? pgpx_now() + PGPX_DRAIN_US : 0) && may_drain &&
		code == ERRCODE_QUERY_CANCELED && lease->scope != PGPX_SCOPE_CALL &&
		pgpx_stream_drain(lease, PGPX_CANCEL_BYTES,
						  pgpx_now() + PGPX_DRAIN_US))
		publish_state(lease);
}

void
pgpx_run_check(const PgpxLease *lease, const PgpxStatement *statement)
{
	if (lease->in_flight != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease " UINT64_FORMAT " has a statement in flight",
						lease->id),
				 errhint("Read its result with pgpool.result first.")));
	if (statement != NULL && statement->nparams > PGPX_WIRE_PARAMS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many parameters"),
				 errdetail("There are %d parameters; the protocol allows %d.",
						   statement->nparams, PGPX_WIRE_PARAMS_MAX),
				 errhint("Pass the values as one array, and unnest it in the statement.")));
}

/*
 * The messages of the statement and the reset fit into the receive buffer of a
 * backend (8192 bytes).  A longer statement may not be sent in one system
 * call, and classifying its text would take noticeable time.
 */
#define RESET_BEHIND_MAX (8192 - PGPX_WIRE_RESET_MAX)

/*
 * Append the reset to the statement in the output buffer, if the options and
 * the text allow that.  several: as of pgpx_run_send.
 */
static void
send_reset_behind(PgpxLease *lease, const PgpxStatement *statement,
				  bool several)
{
	const PgpxServerSpec *spec = lease->spec;
	PgpxWire   *wire = &lease->sock->wire;
	const volatile PgpxPool *pool = &pgpx_pools[spec->pool];

	/* "nwaiting" without the lock: a stale value only costs time */
	if (pgpx_server_spec_reset(spec) == PGPX_SENT_DISCARD_ALL &&
		wire->out.len <= RESET_BEHIND_MAX && pool->nwaiting == 0 &&
		can_precede_reset(statement->sql, !several || statement->nparams > 0))
		pgpx_wire_send_reset_behind(wire);
}

void
pgpx_run_send(PgpxRun *run, bool several)
{
	const PgpxStatement *statement = run->statement;
	PgpxLease  *lease = run->lease;
	PgpxWire   *wire = &lease->sock->wire;

	lease->in_use = true;
	if (lease->pending_state != PGPX_PENDING_SENT)
		make_ready(run);
	pgpx_lease_check_encoding(lease);
	check_styles(run);

	run->bytes_at_send = wire->bytes_in;
	run->last_read = 0;
	lease->sent = true;
	lease->cancel_at = 0;
	lease->usage.statements++;
	pgpx_conn_set_activity(&pgpx_conns[lease->conn], lease->id, PGPX_ACT_ACTIVE,
						   true);
	if (lease->pending_state == PGPX_PENDING_SENT)
	{
		/* the previous holder has sent it */
		lease->pending_state = PGPX_PENDING_NONE;
		return;
	}
	if (run->pipeline != NULL)
		pgpx_wire_send_pipeline(wire, run->pipeline);
	else if (statement->nparams == 0 && run->nformats == 0 &&
			 (several || can_be_simple(statement->sql)))
		pgpx_wire_send_query(wire, statement->sql);
	else
	{
		PgpxPipeline alone = pgpx_wire_pipeline_of(statement, run->nformats,
												   run->prediction.formats);

		pgpx_wire_send_pipeline(wire, &alone);
	}
	if (run->last && run->nformats == 0)	/* else it may be repeated */
		send_reset_behind(lease, statement, several);

	/* ignore a failure here: the reader reports it with the remote's reason */
	(void) pgpx_stream_flush(lease, 0);
}

void
pgpx_run_finish(PgpxRun *run)
{
	run->lease->in_use = false;
	pgpx_wire_trim(&run->lease->sock->wire);
	publish_state(run->lease);
}

void
pgpx_run_abandon(PgpxLease *lease)
{
	lease->in_use = false;
	(void) clean_up(lease, pgpx_now());
}

uint64
pgpx_run_end(PgpxRun *run)
{
	pgpx_run_finish(run);
	if (run->lease->not_run)
		return 0;
	if (run->error.set)
		pgpx_remote_error_raise(&run->error,
								run->internal ? NULL : run->statement->sql,
								NameStr(run->lease->spec->server_name));
	if (run->empty && !run->has_statement)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("SQL text contains no statement")));
	return run->rows;
}

void
pgpx_run_read_pending(PgpxLease *lease)
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
pgpx_prediction_begin(PgpxRun *run)
{
	PgpxPrediction *prediction = &run->prediction;
	PgpxLease  *lease = run->lease;

	prediction->on = run->sink != NULL && pgpx_conns[lease->conn].binary &&
		is_query(run->statement->sql);
	run->nformats = 0;
	if (!prediction->on)
		return;
	prediction->any_type = run->sink->formats == NULL;
	pgpx_formats_key(&prediction->key, lease->spec->pool_id,
					 run->statement->sql, run->sink->types_hash);

	/* a statement that the previous holder has sent requests text */
	if (lease->pending_state != PGPX_PENDING_SENT)
		run->nformats = pgpx_formats_find(&prediction->key,
										  prediction->formats);
}

/*
 * Repeating the statement is safe, unless the failure has aborted an open
 * remote transaction.
 */
bool
pgpx_prediction_begin_retry(PgpxRun *run, bool may_repeat)
{
	bool		in_transaction = run->lease->sock->wire.tx != 'I';

	if (!run->prediction.on || run->nformats == 0 || !run->error.set ||
		run->described || run->error.sqlstate != ERRCODE_PROTOCOL_VIOLATION)
		return false;
	pgpx_formats_note(&run->prediction.key, 0, NULL);
	if (may_repeat && !in_transaction)
	{
		/* it will be sent again, and is counted once */
		run->nformats = 0;
		run->lease->usage.errors--;
		run->lease->usage.statements--;
		memset(&run->error, 0, sizeof(run->error));
		return true;
	}

	/* do not raise an error here: the lease is in use until pgpx_run_end */
	run->error.sqlstate = ERRCODE_DATATYPE_MISMATCH;
	run->error.detail = run->error.primary;
	run->error.primary =
		"the remote result has other columns than in the previous execution";
	run->error.hint = in_transaction ?
		"Roll back on the lease, and run the statement again." :
		"Send the statement again.";
	return false;
}

void
pgpx_prediction_end(PgpxRun *run)
{
	PgpxPrediction *prediction = &run->prediction;
	const int16 *formats = NULL;
	int			n = 0;

	if (!prediction->on)
		return;
	prediction->on = false;
	if (!run->error.set && run->sink->formats != NULL)
		n = run->sink->formats(run->sink->arg, prediction->any_type, run->rows,
							   &formats);
	if (n != run->nformats ||
		(n > 0 && memcmp(formats, prediction->formats, n * sizeof(int16)) != 0))
		pgpx_formats_note(&prediction->key, n, formats);
}

static void
run_once(PgpxRun *run)
{
	PG_TRY();
	{
		pgpx_run_send(run, run->sink == NULL);
		(void) pgpx_run_read(run, true);
	}
	PG_CATCH();
	{
		pgpx_run_failed(run, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

uint64
pgpx_exec(PgpxLease *lease, const PgpxStatement *statement,
		  const PgpxSink *sink, bool last)
{
	PgpxRun		run = {
		.lease = lease,
		.statement = statement,
		.sink = sink,
		.last = last,
	};

	pgpx_run_check(lease, statement);
	pgpx_prediction_begin(&run);
	do
		run_once(&run);
	while (pgpx_prediction_begin_retry(&run, true));
	pgpx_prediction_end(&run);
	return pgpx_run_end(&run);
}

/* ------------------------------------------------------------------------
 * The columns that a statement returns, without executing it
 *
 * Only Parse and Describe are sent, and no Execute.  The remote infers the
 * types of parameters, so it needs no values for them.
 * ------------------------------------------------------------------------
 */

/* Schema and name of types; for an array type those of its element type. */
static const char types_sql[] =
	"SELECT n.nspname::pg_catalog.text, coalesce(e.typname, t.typname)::pg_catalog.text, e.oid IS NOT NULL, o.at"
	" FROM pg_catalog.unnest($1::pg_catalog.oid[]) WITH ORDINALITY AS o(oid, at)"
	" JOIN pg_catalog.pg_type AS t ON t.oid OPERATOR(pg_catalog.=) o.oid"
	" LEFT JOIN pg_catalog.pg_type AS e ON e.typarray OPERATOR(pg_catalog.=) t.oid"
	" JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) coalesce(e.typnamespace, t.typnamespace)";

/* Copy a RowDescription, because its message does not outlive the call. */
static bool
copy_columns(void *arg, const PgpxWireMessage *msg)
{
	PgpxDescription *description = arg;
	int			n = pgpx_wire_parse_ncolumns(msg);
	PgpxColumn *columns;

	if (n < 0)
		return false;
	if (n > MaxTupleAttributeNumber)
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_COLUMNS),
				 errmsg("remote result has too many columns"),
				 errdetail("It has %d columns, and a row can have at most %d.", n,
						   MaxTupleAttributeNumber)));
	columns = palloc(sizeof(PgpxColumn) * Max(n, 1));
	if (!pgpx_wire_parse_columns(msg, n, columns))
		return false;
	for (int i = 0; i < n; i++)
		columns[i].name = pgpx_text_clean(pnstrdup(columns[i].name,
												   NAMEDATALEN - 1));
	description->n = n;
	description->columns = columns;
	return true;
}

static char *
copy_field(const PgpxField *field)
{
	return pgpx_text_clean(pnstrdup(field->data, field->len));
}

/*
 * Name the type of a column, unless it has a name.  Schema and name are quoted
 * here, because the user pastes them into SQL, and the remote may return any
 * text.
 */
static bool
name_type(void *arg, const PgpxWireMessage *msg)
{
	PgpxDescription *description = arg;
	PgpxField	fields[4];		/* schema, name, is it an array, column */
	char	   *number;
	int			at;

	if (!pgpx_wire_parse_row(msg, lengthof(fields), fields))
		return false;
	for (int i = 0; i < lengthof(fields); i++)
		if (fields[i].data == NULL)
			return true;
	number = copy_field(&fields[3]);
	at = atoi(number);
	pfree(number);
	if (at > 0 && at <= description->n && description->types[at - 1] == NULL)
		description->types[at - 1] =
			psprintf("%s%s",
					 quote_qualified_identifier(copy_field(&fields[0]),
												copy_field(&fields[1])),
					 fields[2].data[0] == 't' ? "[]" : "");
	return true;
}

/* Name the types that are not built in. */
static void
name_remote_types(PgpxLease *lease, PgpxDescription *description)
{
	PgpxSink	sink = {.row = name_type, .arg = description};
	StringInfoData oids;
	PgpxStatement statement = {
		.sql = types_sql,
		.nparams = 1,
		.values = (const char *const *) &oids.data,
	};
	bool		all_built_in = true;

	initStringInfo(&oids);
	for (int i = 0; i < description->n; i++)
	{
		all_built_in &= description->types[i] != NULL;
		appendStringInfo(&oids, "%s%u", i == 0 ? "{" : ",",
						 description->columns[i].type);
	}
	appendStringInfoChar(&oids, '}');
	if (!all_built_in)
		(void) pgpx_exec(lease, &statement, &sink, false);
}

void
pgpx_describe(PgpxLease *lease, const PgpxStatement *statement,
			  PgpxDescription *description)
{
	PgpxSink	sink = {.columns = copy_columns, .arg = description};
	PgpxPipeline pipeline = {.statement = statement, .describe_only = true};
	PgpxRun		run = {
		.lease = lease,
		.statement = statement,
		.sink = &sink,
		.pipeline = &pipeline,
		.describe = true,
	};

	description->n = 0;
	pgpx_run_check(lease, statement);
	run_once(&run);
	(void) pgpx_run_end(&run);

	description->types = palloc0(sizeof(char *) * Max(description->n, 1));
	for (int i = 0; i < description->n; i++)
		description->types[i] =
			pgpx_column_list_type(description->columns[i].type,
								  description->columns[i].typmod);
	name_remote_types(lease, description);
}
