/*-------------------------------------------------------------------------
 *
 * remote_transaction.c
 *	  The remote transactions of foreign tables: one for each server, user
 *	  mapping and remote login.
 *
 * Rules:
 * - START TRANSACTION, the settings that deparsed SQL presumes, and
 *   savepoints are sent in one pipeline with the statement that needs them.
 *   There is one Sync, so the statement does not run if one of them fails.
 * - SET LOCAL makes the settings, so they end with the remote transaction and
 *   do not affect later leases of the connection.
 * - The release of a local subtransaction sends nothing: RELEASE precedes
 *   the next statement.  A rollback sends ROLLBACK TO at once, and waits for
 *   the answer, so that the remote has released its locks.
 * - Remote transactions end before the local transaction commits, in one phase
 *   or in two (remote_commit.c).
 * - At an abort this file cancels the statements that are running.
 *   lease.c waits for their end, sends ROLLBACK and the reset, and reads
 *   the answers, within operation_timeout.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/remote_transaction.h"

#include "access/xact.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "base/debug_point.h"
#include "session/checkout.h"
#include "session/lease.h"
#include "fdw/remote_scan.h"
#include "fdw/remote_sql.h"

/* Bound of the answer to ROLLBACK TO, which can contain notices. */
#define ROLLBACK_ANSWER_MAX (1024 * 1024)

/* Upper bound of the size of the pipeline in roll_back_remote, with its marker. */
#define ROLLBACK_SIZE 512

dlist_head	pgpx_remote_transactions =
	DLIST_STATIC_INIT(pgpx_remote_transactions);

/* Return whether a cancel request is under way. */
static bool
is_cancelled(const PgpxRemoteTransaction *rt)
{
	return pg_atomic_read_u32(&pgpx_conns[rt->lease->conn].cancel) !=
		PGPX_CANCEL_NONE;
}

/*
 * Record an error that has aborted the remote transaction.  Until a rollback,
 * each further statement raises the error again.  The session may not have seen
 * it, because its scan has ended, or may have caught it in a subtransaction
 * that has no savepoint at the remote.
 */
static void
note_failure(PgpxRemoteTransaction *rt, const PgpxRemoteError *error)
{
	MemoryContext old;

	if (!error->set)
		return;
	rt->failure.set = false;
	if (rt->failure_cxt == NULL)
		rt->failure_cxt = AllocSetContextCreate(rt->cxt,
												"pgpool_ext remote error",
												ALLOCSET_SMALL_SIZES);
	MemoryContextReset(rt->failure_cxt);
	old = MemoryContextSwitchTo(rt->failure_cxt);
	pgpx_remote_error_dup(&rt->failure, error);
	MemoryContextSwitchTo(old);
}

/* Record the result of read_abandoned, also after an error in it. */
static void
end_abandoned(PgpxRemoteTransaction *rt, const PgpxRun *run)
{
	rt->lease->in_use = false;
	rt->abandoned = rt->lease->sock->wire.phase != PGPX_WIRE_IDLE;
	if (!run->error.set)
		return;
	note_failure(rt, &run->error);
	pgpx_remote_forget_prepared(rt, rt->sent.data);
}

/*
 * Read an unread answer that belongs to no scan any more, and record an error
 * in it.  An interrupt leaves the rest to the next statement.  It does not
 * cancel the remote statement, which may be that of an outer subtransaction.
 */
static void
read_abandoned(PgpxRemoteTransaction *rt)
{
	PgpxLease  *lease = rt->lease;

	/* "describe" accepts an answer without a result: that to ROLLBACK TO */
	PgpxRun		run = {.lease = lease, .describe = true};

	PG_TRY();
	{
		(void) pgpx_stream_flush(lease, 0);
		if (lease->sock->wire.phase != PGPX_WIRE_IDLE)
			pgpx_run_read(&run, true);
	}
	PG_CATCH();
	{
		end_abandoned(rt, &run);
		PG_RE_THROW();
	}
	PG_END_TRY();
	end_abandoned(rt, &run);
	pgpx_run_finish(&run);
}

/*
 * Bring the stream to a message boundary.  Ignore the error of a cancelled
 * statement, because the local error that caused the cancel was raised already.
 */
static void
finish_answer(PgpxRemoteTransaction *rt)
{
	PgpxLease  *lease = rt->lease;
	const PgpxWire *wire = &lease->sock->wire;

	if (is_cancelled(rt) ||
		(wire->phase != PGPX_WIRE_IDLE && !rt->abandoned))
		pgpx_run_read_pending(lease);
	else if (rt->abandoned)
		read_abandoned(rt);
	rt->abandoned = false;
}

/*
 * Return whether a command that preceded the last statement has failed.  Then
 * it is not known which savepoints the remote has, so the remote transaction
 * cannot continue.
 */
static bool
has_failed_command(const PgpxRemoteTransaction *rt)
{
	return rt->lease->sock->wire.nbefore > 0;
}

/*
 * If a command that preceded the last statement has failed, copy its text to
 * rt->sent.  If it was START TRANSACTION, the transaction can begin again.
 */
static void
note_failed_command(PgpxRemoteTransaction *rt)
{
	PgpxWire   *wire = &rt->lease->sock->wire;
	int			number = rt->ncommands - wire->nbefore;
	const char *command = rt->commands.data;

	if (!has_failed_command(rt) || number < 0)
		return;
	while (number-- > 0)
		command += strlen(command) + 1;
	resetStringInfo(&rt->sent);
	appendStringInfoString(&rt->sent, command);
	if (strncmp(command, PGPX_REMOTE_START, strlen(PGPX_REMOTE_START)) == 0)
	{
		rt->nesting.begun = false;
		wire->nbefore = 0;
	}
}

/* Raise an error if the remote transaction is aborted. */
static void
check_failure(PgpxRemoteTransaction *rt)
{
	if (!has_failed_command(rt) &&
		(!rt->nesting.begun || rt->nesting.rollback_level > 0 ||
		 rt->lease->sock->wire.tx == 'T'))
		return;
	if (rt->failure.set)
		pgpx_remote_raise(&rt->failure, rt->sent.data);
	ereport(ERROR,
			(errcode(ERRCODE_IN_FAILED_SQL_TRANSACTION),
			 errmsg("remote transaction on server \"%s\" is aborted",
					NameStr(rt->lease->spec->server_name)),
			 errdetail("A remote statement has failed or was cancelled in a local subtransaction."),
			 errhint("Roll back the local transaction, and run it again.")));
}

void
pgpx_remote_prepare_send(PgpxRemoteTransaction *rt)
{
	pgpx_lease_check_revoked(rt->lease);

	/* the previous holder has sent the caller's statement */
	if (rt->lease->pending_state == PGPX_PENDING_SENT)
		return;

	/* in the middle of a row's conversion the rest cannot be read */
	if (rt->reading)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("remote transaction on server \"%s\" is in use",
						NameStr(rt->lease->spec->server_name)),
				 errdetail("While a row of a foreign table was read, a function was called that uses a foreign table of the same server.")));
	if (rt->streaming != NULL)
		pgpx_remote_scan_buffer(rt->streaming);
	finish_answer(rt);
	note_failed_command(rt);
	check_failure(rt);
}

void
pgpx_remote_end_statement(PgpxRemoteTransaction *rt, PgpxRun *run)
{
	pgpx_run_finish(run);
	note_failure(rt, &run->error);
	note_failed_command(rt);
	if (run->error.set && !run->described && !run->pipeline->resume)
		pgpx_remote_forget_prepared(rt, run->statement->sql);

	/* after a large statement its buffer was freed */
	if (rt->lease->sock->wire.out.data == NULL)
		pgpx_lease_reserve_reset(rt->lease);
}

/* --- the local transaction ---------------------------------------------- */

/*
 * Send the pending ROLLBACK TO and RELEASE, and wait for the answer until the
 * deadline.  If they cannot be sent without memory, or because the last
 * statement has not ended, they precede the next statement.
 */
static void
roll_back_remote(PgpxRemoteTransaction *rt, PgpxTime deadline)
{
	PgpxLease  *lease = rt->lease;
	PgpxWire   *wire = &lease->sock->wire;
	PgpxRemoteNesting *now = &rt->nesting;
	char		rollback[64];
	char		release[64];
	const char *commands[2] = {rollback, release};
	PgpxPipeline p = {.nbefore = lengthof(commands), .before = commands};

	if (!pgpx_remote_has_lease(rt) || lease->in_use ||
		wire->tx == 'I' || has_failed_command(rt) ||
		!pgpx_wire_is_at_boundary(wire) ||
		is_cancelled(rt) || wire->out.data == NULL ||
		wire->out.maxlen < ROLLBACK_SIZE)
		return;
	snprintf(rollback, sizeof(rollback), PGPX_REMOTE_ROLLBACK_TO,
			 now->rollback_level);
	snprintf(release, sizeof(release), PGPX_REMOTE_RELEASE,
			 now->target_depth + 1);
	pgpx_wire_send_pipeline(wire, &p);
	(void) pgpx_wire_flush(wire);
	now->depth = now->target_depth;
	now->rollback_level = 0;
	rt->ncommands = 0;			/* rt->commands has no text of these */
	PGPX_DEBUG_POINT("fdw_rollback_sent");
	(void) pgpx_stream_drain(lease, ROLLBACK_ANSWER_MAX, deadline);

	/* after a timeout the next statement reads it */
	rt->abandoned = wire->phase != PGPX_WIRE_IDLE;
}

void
pgpx_remote_transaction_end(PgpxRemoteTransaction *rt, PgpxEnd end)
{
	pgpx_remote_scans_forget(rt);
	dlist_delete(&rt->node);
	pgpx_lease_return(rt->lease, end, false);
}

/* End all but those that are prepared. */
static void
end_all(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);

		if (rt->part == PGPX_PART_NONE)
			pgpx_remote_transaction_end(rt, PGPX_END_CHECKIN);
	}
}

/*
 * Cancel the statements that have not ended, all before the first wait, and roll
 * back prepared transactions.  lease.c then returns the other leases.
 */
static void
at_abort(void)
{
	dlist_mutable_iter iter;

	PGPX_DEBUG_POINT("fdw_abort");
	dlist_foreach_modify(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);

		if (pgpx_remote_has_lease(rt) && (rt->lease->in_use || rt->abandoned))
			pgpx_run_abandon(rt->lease);
	}
	pgpx_remote_commit_finish(false);
	dlist_foreach_modify(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);

		pgpx_remote_scans_forget(rt);
		dlist_delete(&rt->node);
	}
}

void
pgpx_remote_transaction_at_xact(XactEvent event)
{
	PgpxRemoteTransaction *rt;

	if (dlist_is_empty(&pgpx_remote_transactions))
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			/* it can raise errors, so it precedes the first COMMIT */
			pgpx_lease_check_commit();
			pgpx_remote_commit();
			PGPX_DEBUG_POINT("fdw_committed");
			end_all();
			break;
		case XACT_EVENT_PRE_PREPARE:
			rt = dlist_container(PgpxRemoteTransaction, node,
								 dlist_head_node(&pgpx_remote_transactions));
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has operated on foreign tables of server \"%s\"",
							NameStr(rt->lease->spec->server_name))));
			break;
		case XACT_EVENT_ABORT:
			at_abort();
			break;
		case XACT_EVENT_COMMIT:
			pgpx_remote_commit_finish(true);

			/* later callbacks of PRE_COMMIT have begun these: roll back */
			end_all();
			break;
		default:
			break;
	}
}

static bool outer_is_read_only; /* at the start of the outermost subtransaction */

/* In a subtransaction, XactReadOnly is the property of the subtransaction. */
bool
pgpx_remote_top_is_read_only(void)
{
	return GetCurrentTransactionNestLevel() == 1 ? XactReadOnly :
		outer_is_read_only;
}

void
pgpx_remote_transaction_at_subxact(SubXactEvent event)
{
	bool		aborts = event == SUBXACT_EVENT_ABORT_SUB;
	int			level = GetCurrentTransactionNestLevel();
	PgpxTime	now;
	dlist_mutable_iter iter;

	if (event == SUBXACT_EVENT_START_SUB && level == 2)
		outer_is_read_only = XactReadOnly;
	if (dlist_is_empty(&pgpx_remote_transactions) ||
		(!aborts && event != SUBXACT_EVENT_COMMIT_SUB))
		return;
	now = pgpx_now();
	dlist_foreach_modify(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);
		PgpxTime	deadline;

		/*
		 * This session has not read the answer to the first statement, which
		 * the previous holder has sent, so the local transaction has seen
		 * nothing of it.  The connection is closed.
		 */
		if (aborts && rt->lease->pending_state == PGPX_PENDING_SENT)
		{
			pgpx_remote_transaction_end(rt, PGPX_END_CHECKIN);
			continue;
		}
		pgpx_remote_scans_end_level(rt, level, aborts);

		/* nothing was sent in this subtransaction */
		if (!rt->nesting.begun || rt->nesting.target_depth < level)
			continue;
		rt->nesting.target_depth = level - 1;
		if (!aborts)
			continue;

		rt->nesting.rollback_level = level;
		pgpx_remote_forget_prepared(rt, NULL);
		if (!pgpx_remote_has_lease(rt))
			continue;
		deadline = now + (proc_exit_inprogress ? 0 :
						  rt->lease->spec->opts.operation_timeout * 1000);

		/* an unread answer is that of a statement of this subtransaction */
		if (rt->streaming == NULL)
		{
			if (rt->lease->sock->wire.phase != PGPX_WIRE_IDLE)
				pgpx_run_abandon(rt->lease);
			pgpx_lease_end_statement(rt->lease, deadline);
		}
		rt->abandoned = rt->lease->sock->wire.phase != PGPX_WIRE_IDLE;
		roll_back_remote(rt, deadline);

		/*
		 * If the last statement, its cancel request, or the rollback has not
		 * ended, the rollbacks of the outer transactions must not wait for as
		 * long again.
		 */
		if (rt->streaming == NULL && pgpx_now() >= deadline &&
			(rt->abandoned || is_cancelled(rt)))
			pgpx_wire_break(&rt->lease->sock->wire,
							"a rollback to a savepoint did not end within operation_timeout");
	}
}

/*
 * Find a remote transaction by its login, or by server and user if login is
 * NULL.  A transaction whose user mapping was dropped is found only by its
 * login.
 */
static PgpxRemoteTransaction *
find_transaction(Oid server, Oid user, const PgpxServerSpec *login)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);
		const PgpxServerSpec *spec = rt->lease->spec;

		if (login != NULL ? pgpx_server_spec_is_same_login(spec, login) :
			rt->server == server && rt->user == user &&
			SearchSysCacheExists1(USERMAPPINGOID,
								  ObjectIdGetDatum(spec->key.mapping)))
			return rt;
	}
	return NULL;
}

/*
 * Raise 2F003 if the user needs the password of the user mapping, but a
 * superuser has logged in without it.  The user gets no second transaction,
 * because it would not see what the first one has written.
 */
static void
check_password(const PgpxRemoteTransaction *rt, const PgpxServerSpec *spec)
{
	if (!spec->need_password || pgpx_conns[rt->lease->conn].used_password)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
			 errmsg("password is required"),
			 errdetail("A superuser has begun the remote transaction on server \"%s\", and the remote server did not request the password of the user mapping.",
					   NameStr(spec->server_name)),
			 errhint("The remote server's authentication method must be changed, or password_required=false set in the user mapping.")));
}

/*
 * Wait until the remote executes the pending statement, which the previous
 * holder has sent.  Return false if the remote does not execute it, because the
 * reset before it has failed.
 */
static bool
await_begin(PgpxLease *lease)
{
	PgpxRun		run = {.lease = lease, .stop_at = PGPX_EV_BEGUN};

	lease->in_use = true;
	lease->sent = true;
	PG_TRY();
	{
		pgpx_lease_reserve_reset(lease);
		PGPX_DEBUG_POINT("fdw_await_begin");
		(void) pgpx_run_read(&run, true);
	}
	PG_CATCH();
	{
		pgpx_run_failed(&run, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	lease->in_use = false;
	return !lease->not_run;
}

/*
 * Lease a connection for a new remote transaction.  first: the pending statement
 * (NULL: none).  If the previous holder has sent it, wait until it is executed.
 * If that fails, lease another connection, with the same queue position.  After
 * an error the lease has been returned, and the remote transaction freed.
 */
static void
lease_connection(PgpxRemoteTransaction *rt, const PgpxServerSpec *spec,
				 const char *why, const PgpxPipeline *first)
{
	PgpxPlace	retry = {0};
	PgpxPendingStatement pending = {.single = true};
	PgpxPipeline p;
	PgpxRemoteNesting after;

	if (first != NULL)
	{
		p = *first;
		pgpx_remote_collect_commands(rt, spec, &p, &after);
		pending.pipeline = &p;
		pending.statement = p.statement;
	}
	PG_TRY();
	{
		for (;;)
		{
			rt->lease = pgpx_lease_checkout(
				pgpx_server_spec_get_for(NULL, rt->server, rt->user, true),
				PGPX_TIMEOUT_DEFAULT, false, PGPX_SCOPE_TABLE, why,
				first != NULL ? &pending : NULL, &retry);
			if (rt->lease->pending_state != PGPX_PENDING_SENT ||
				await_begin(rt->lease))
				break;
			retry = rt->lease->place;
			pgpx_lease_return(rt->lease, PGPX_END_RETRIED, true);
			rt->lease = NULL;
		}
	}
	PG_CATCH();
	{
		if (rt->lease != NULL)
			pgpx_lease_return(rt->lease, PGPX_END_CHECKIN, false);
		MemoryContextDelete(rt->cxt);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

PgpxRemoteTransaction *
pgpx_remote_transaction_get(PgpxRemoteUse *use, const PgpxPipeline *first)
{
	PgpxRemoteTransaction *rt;
	MemoryContext cxt;
	MemoryContext old;
	const PgpxServerSpec *spec = NULL;

	if (use->transaction != NULL)
		return use->transaction;
	rt = find_transaction(use->server, use->user, NULL);
	if (rt == NULL)
	{
		pgpx_shmem_require();

		/* users of a mapping for PUBLIC can share a transaction */
		spec = pgpx_server_spec_get_for(NULL, use->server, use->user, true);
		rt = find_transaction(use->server, use->user, spec);
	}
	if (rt != NULL)
	{
		pgpx_lease_check_revoked(rt->lease);
		if (spec != NULL)
			check_password(rt, spec);
		return use->transaction = rt;
	}

	cxt = AllocSetContextCreate(TopTransactionContext,
								"pgpool_ext remote transaction",
								ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(cxt);
	rt = palloc0(sizeof(*rt));
	rt->cxt = cxt;
	rt->server = use->server;
	rt->user = use->user;
	rt->nesting.depth = rt->nesting.target_depth = 1;
	initStringInfo(&rt->sent);
	initStringInfo(&rt->commands);
	MemoryContextSwitchTo(old);
	dlist_init(&rt->scans);
	lease_connection(rt, spec, use->why, first);
	rt->wait_time = pgpx_conns[rt->lease->conn].waited;
	rt->may_prepare = rt->lease->spec->opts.reset == PGPX_RESET_ALWAYS &&
		rt->lease->spec->discards_all;
	dlist_push_tail(&pgpx_remote_transactions, &rt->node);
	pgpx_lease_reserve_reset(rt->lease);
	PGPX_DEBUG_POINT("fdw_leased");
	return use->transaction = rt;
}
