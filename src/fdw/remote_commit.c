/*-------------------------------------------------------------------------
 *
 * remote_commit.c
 *	  The commit of remote transactions, in one phase or in two.
 *
 * One phase: COMMIT is sent on all leases, and then all answers are read.  An
 * error aborts the local transaction, but servers that have reported success
 * have committed nevertheless.  From the first COMMIT on, the session defers
 * interrupts for a second at most, until all answers have arrived.  A
 * transaction that has only sent queries is no exception: a query can lock rows,
 * write in a function, and violate a deferred constraint.
 *
 * Two phases, if transactions have written in several places, and the option
 * two_phase_commit is set: the sequence is in the README of src.
 * - A remote transaction has written if it has a transaction ID.  It is asked,
 *   because no statement shows that it writes nothing.  The question fires
 *   deferred triggers first, so that none of them changes the role after the
 *   answer.
 * - Before the local commit each step may raise an error and serve interrupts,
 *   because the abort undoes it.  After it nothing may fail: the output buffers
 *   have room for COMMIT PREPARED, and a lease that does not answer in time is
 *   closed.  The resolver ends a part whose state is not known.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/remote_transaction.h"

#include "access/table.h"
#include "access/xact.h"
#include "storage/latch.h"
#include "utils/builtins.h"

#include "base/debug_point.h"
#include "session/lease.h"

#define COMMIT_SQL "COMMIT TRANSACTION"

/* How long interrupts are deferred until the answers to COMMIT arrive. */
#define COMMIT_HOLD_US (1000 * 1000)

/* Upper bound of the size of COMMIT PREPARED, with its marker. */
#define FINISH_SIZE 512

/* The answers to the question of a member: numbers of rows. */
#define HAS_NOT_WRITTEN	0
#define HAS_WRITTEN		1
#define OTHER_ROLE		2		/* it has written, but .. */
#define OTHER_DATABASE	3

/* A remote transaction during the commit. */
typedef struct Member
{
	PgpxRemoteTransaction *rt;
	const PgpxServerSpec *spec;
	PgpxStatement statement;	/* the last one that was sent */
	PgpxRun		run;			/* of it */
	bool		has_option;		/* two_phase_commit */
	uint64		answer;			/* HAS_WRITTEN, ..; the presumed one at first */
	PgpxParticipant participant;	/* id 0: it is not known yet */
} Member;

/*
 * Send a statement to a member.  If a subtransaction was rolled back since the
 * last one, its ROLLBACK TO precedes it.
 */
static void
send_statement(Member *m, const char *sql)
{
	PgpxRemoteTransaction *rt = m->rt;

	if (rt->nesting.rollback_level > 0)
		sql = psprintf("ROLLBACK TO SAVEPOINT s%d; %s",
					   rt->nesting.rollback_level, sql);
	m->statement = (PgpxStatement){.sql = sql};
	m->run.statement = &m->statement;
	pgpx_run_send(&m->run, true);
	rt->nesting.rollback_level = 0;
}

/* Raise an error of the remote, with the server's name. */
pg_noreturn static void
raise_remote(const Member *m, const char *command)
{
	pgpx_remote_error_report(ERROR, &m->run.error,
							 psprintf("remote SQL command on server \"%s\": %s",
									  NameStr(m->spec->server_name), command));
	pg_unreachable();
}

/*
 * Return the members: the remote transactions that have begun, after all of them
 * were checked.
 */
static Member *
find_members(int *n)
{
	Member	   *members;
	dlist_iter	iter;
	int			total = 0;

	dlist_foreach(iter, &pgpx_remote_transactions)
		total++;
	members = palloc0(sizeof(Member) * total);
	*n = 0;
	dlist_foreach(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);

		if (!rt->nesting.begun)
			continue;
		if (rt->abandoned)
			PGPX_DEBUG_POINT("commit_drains");
		pgpx_remote_prepare_send(rt);
		if (total > 1)
			pgpx_run_read_pending(rt->lease);	/* the session may have ended */
		pgpx_lease_check_broken(rt->lease);
		pgpx_lease_check_encoding(rt->lease);

		/* the answer may show that the remote transaction has not begun */
		if (!rt->nesting.begun)
			continue;
		members[*n].rt = rt;
		members[*n].spec = rt->lease->spec;
		members[*n].has_option = rt->lease->spec->opts.two_phase_commit != 0;
		members[*n].answer =
			rt->nesting.read_only ? HAS_NOT_WRITTEN : HAS_WRITTEN;
		(*n)++;
	}
	return members;
}

/* --- the first phase, or the only one ------------------------------------ */

/*
 * Wait until the answer to a COMMIT has arrived in the input buffer, or until
 * the deadline.  The caller holds interrupts.
 */
static void
await_commit(PgpxLease *lease, PgpxTime deadline)
{
	bool		more;

	if (pgpx_socket_cache_poll(lease->sock, lease->spec->pool, &more) > 0)
		lease->usage.polled++;

	/* this wait may have reset the latch of a pending interrupt */
	if (pgpx_async_wait(&lease, 1, deadline) == NULL)
		SetLatch(MyLatch);
	lease->scanned = 0;
}

static void
send_end(Member *m)
{
	PgpxRemoteTransaction *rt = m->rt;

	m->run = (PgpxRun){.lease = rt->lease, .last = rt->gid[0] == '\0'};
	if (m->run.last)
	{
		send_statement(m, COMMIT_SQL);
		return;
	}
	rt->part = PGPX_PART_UNKNOWN;
	send_statement(m, psprintf("PREPARE TRANSACTION '%s'", rt->gid));
}

static void
read_end(Member *m)
{
	PgpxRemoteTransaction *rt = m->rt;

	(void) pgpx_run_read(&m->run, true);
	pgpx_run_finish(&m->run);
	if (rt->part != PGPX_PART_NONE)
		rt->part = m->run.error.set ? PGPX_PART_NONE : PGPX_PART_PREPARED;
	if (!m->run.error.set)
		return;
	if (rt->gid[0] == '\0')
		pgpx_remote_raise(&m->run.error, COMMIT_SQL);
	raise_remote(m, "PREPARE TRANSACTION");
}

/*
 * Call send_end or read_end.  Return an error instead of raising it, so that the
 * caller can read the other answers.  Raise only the error of a local cancel or
 * termination.
 */
static ErrorData *
try_end(Member *m, void (*step)(Member *m))
{
	MemoryContext caller = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	ErrorData *volatile error = NULL;

	PG_TRY();
	{
		step(m);
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		if (m->rt->lease->in_use)
			pgpx_run_failed(&m->run, false);
		if (!m->run.error.set &&
			(code == ERRCODE_QUERY_CANCELED || code == ERRCODE_ADMIN_SHUTDOWN))
			PG_RE_THROW();
		/* errfinish has set it to 0, as a rethrown error requires */
		InterruptHoldoffCount = holdoff;
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	return error;
}

/* Log the error of a COMMIT that is not raised, because another one is. */
static void
log_error(const Member *m, const ErrorData *error)
{
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("pgpool_ext could not commit the remote transaction on server \"%s\"",
					NameStr(m->spec->server_name)),
			 errdetail_internal("%s", error->message)));
}

/*
 * Send PREPARE TRANSACTION to the members that have a global id, and COMMIT to
 * the others, and wait for all answers.
 *
 * If none has a global id, an interrupt would abort the local transaction,
 * although remote ones have probably committed, so it is deferred.  The leases
 * are at a message boundary, so the sends do not wait.
 */
static void
end_members(Member *members, int n, bool prepares)
{
	ErrorData  *error = NULL;
	PgpxTime	deadline;
	int			nsent = 0;

	if (!prepares)
		HOLD_INTERRUPTS();
	for (int i = 0; i < n; i++)
	{
		error = try_end(&members[i], send_end);
		if (error != NULL)
			break;				/* the others are rolled back */
		nsent++;
		PGPX_DEBUG_POINT(prepares ? "commit_preparing" : "fdw_committing");
	}
	PGPX_DEBUG_POINT(prepares ? "commit_prepare_sent" : "fdw_commit_sent");
	if (!prepares)
	{
		deadline = pgpx_now() + COMMIT_HOLD_US;
		for (int i = 0; i < nsent; i++)
			await_commit(members[i].rt->lease, deadline);
		RESUME_INTERRUPTS();
	}
	for (int i = 0; i < nsent; i++)
	{
		ErrorData  *next = try_end(&members[i], read_end);

		if (error == NULL)
			error = next;
		else if (next != NULL)
			log_error(&members[i], next);
	}
	if (error != NULL)
		ReThrowError(error);
}

/* --- two phases: before the local commit --------------------------------- */

/*
 * Return whether the local transaction has written, or can still fail.
 *
 * A transaction ID shows that it may have written.  In SERIALIZABLE the commit
 * can fail with 40001 after this code.
 */
static bool
is_local_member(void)
{
	return TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		IsolationIsSerializable();
}

/*
 * Return a member with the option, if two phases are needed; else NULL.  Before its
 * answer a member counts as one that has written.
 */
static const Member *
find_reason(const Member *members, int n)
{
	const Member *with_option = NULL;
	int			places = is_local_member() ? 1 : 0;

	for (int i = 0; i < n; i++)
	{
		if (members[i].answer == HAS_NOT_WRITTEN)
			continue;
		places++;
		if (members[i].has_option)
			with_option = &members[i];
	}
	return places > 1 ? with_option : NULL;
}

/*
 * Return the statements that ask a member whether it has written.  The number of
 * rows is the answer.  The search_path of the remote transaction is pg_catalog.
 */
static const char *
make_question(const Member *m)
{
	const PgpxParticipant *p = &m->participant;
	const char *other = "true";

	if (p->id != 0)
		other = psprintf("current_database() <> %s OR (SELECT system_identifier FROM pg_control_system()) <> " INT64_FORMAT,
						 quote_literal_cstr(NameStr(p->database)), p->system);
	return psprintf("SET CONSTRAINTS ALL IMMEDIATE; "
					"SELECT FROM generate_series(1, CASE WHEN txid_current_if_assigned() IS NULL THEN %d WHEN current_user <> %s THEN %d WHEN %s THEN %d ELSE %d END)",
					HAS_NOT_WRITTEN,
					quote_literal_cstr(pgpx_server_spec_remote_user(m->spec)),
					OTHER_ROLE,
					m->has_option ? other : "false", OTHER_DATABASE,
					HAS_WRITTEN);
}

/* Ask all members that can have written, at the same time. */
static void
ask_members(Member *members, int n)
{
	PGPX_DEBUG_POINT("commit_ask");
	for (int i = 0; i < n; i++)
	{
		Member	   *m = &members[i];

		if (m->rt->nesting.read_only)
			continue;
		m->run = (PgpxRun){.lease = m->rt->lease};
		send_statement(m, make_question(m));
	}
	for (int i = 0; i < n; i++)
	{
		Member	   *m = &members[i];

		if (m->rt->nesting.read_only)
			continue;
		(void) pgpx_run_read(&m->run, true);
		pgpx_run_finish(&m->run);
		if (m->run.error.set)
			raise_remote(m, m->statement.sql);
		m->answer = m->run.rows;
	}
	PGPX_DEBUG_POINT("commit_asked");
}

/* Raise 0A000 for a member that cannot commit together with the others. */
static void
check_writers(const Member *members, int n, const Member *with_option)
{
	for (int i = 0; i < n; i++)
	{
		const Member *m = &members[i];

		if (m->answer == HAS_NOT_WRITTEN)
			continue;
		if (!m->has_option)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot commit on servers \"%s\" and \"%s\" at the same time",
							NameStr(with_option->spec->server_name),
							NameStr(m->spec->server_name)),
					 errdetail("Only the first one has the option \"two_phase_commit\"."),
					 errhint("Set the option on both servers, or write on them in two transactions.")));
		if (m->answer == OTHER_ROLE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot prepare the remote transaction on server \"%s\"",
							NameStr(m->spec->server_name)),
					 errdetail("The current role of the remote session is not the role \"%s\" that has logged in.",
							   pgpx_server_spec_remote_user(m->spec)),
					 errhint("Remove SET ROLE from \"start_commands\" and from remote functions.")));
		if (m->spec->uncommitted)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("cannot prepare the remote transaction on server \"%s\"",
							NameStr(m->spec->server_name)),
					 errdetail("This transaction has created the server or its user mapping."),
					 errhint("Commit it before a transaction that writes on several servers.")));
	}
}

/*
 * Look up the participant of a member.  Its user is the one for whom the resolver
 * reads the catalogs.  Superusers share a pool of PUBLIC, but each of them can
 * have a mapping.  So the participant of a superuser has this superuser as its user.
 */
static void
find_participant(Relation participants, Member *m)
{
	const PgpxServerSpec *spec = m->spec;

	pgpx_participant_find(participants, m->rt->server,
						  spec->key.superuser != 0 ? m->rt->user : spec->user,
						  &m->participant);
}

/* Raise 55000: the resolver would not find the part of this member. */
pg_noreturn static void
raise_changed(const Member *m)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot prepare the remote transaction on server \"%s\"",
					NameStr(m->spec->server_name)),
			 errdetail("New connections log in as another user or reach another database, or the participant was removed meanwhile."),
			 errhint("Roll back the local transaction, and run it again.")));
}

/*
 * Return a writer whose participant is not known, or was removed or replaced since
 * the answer; NULL: none.  The caller has locked commit_participants.  So from now
 * on no DDL changes the login of the resolver, which must be that of the lease.
 */
static const Member *
find_unknown(Relation participants, Member *members, int n)
{
	const Member *unknown = NULL;

	for (int i = 0; i < n; i++)
	{
		Member	   *m = &members[i];
		int32		id = m->participant.id;
		const PgpxServerSpec *login;

		if (m->answer == HAS_NOT_WRITTEN)
			continue;
		find_participant(participants, m);
		login = pgpx_server_spec_get_for(NULL, m->rt->server,
										 m->participant.user, true);
		if (!pgpx_server_spec_is_same_login(login, m->spec))
			raise_changed(m);
		if (m->participant.id != id)
			m->answer = OTHER_DATABASE;
		if (m->answer == OTHER_DATABASE)
			unknown = m;
	}
	return unknown;
}

/*
 * Ask the members, and return whether two phases are needed.  If so, register
 * participants that are not known, and keep the lock on commit_participants, which
 * is acquired after the answers.
 */
static bool
needs_two_phases(Member *members, int n)
{
	if (find_reason(members, n) == NULL)
		return false;
	for (int attempt = 0;; attempt++)
	{
		Relation	participants = pgpx_commit_table(PGPX_PARTICIPANTS,
													 AccessShareLock, false);
		const Member *with_option;
		const Member *unknown;

		for (int i = 0; i < n; i++)
			if (members[i].has_option)
				find_participant(participants, &members[i]);
		table_close(participants, AccessShareLock);
		ask_members(members, n);
		with_option = find_reason(members, n);
		if (with_option == NULL)
			return false;
		check_writers(members, n, with_option);
		participants = pgpx_commit_table(PGPX_PARTICIPANTS, RowShareLock,
										 false);
		unknown = find_unknown(participants, members, n);

		/* the process that inserts a row may wait for this lock otherwise */
		table_close(participants, unknown == NULL ? NoLock : RowShareLock);
		if (unknown == NULL)
			return true;
		if (attempt > 0)
			raise_changed(unknown);
		for (int i = 0; i < n; i++)
			if (members[i].answer == OTHER_DATABASE)
				pgpx_participant_register(members[i].rt->server,
										  members[i].participant.user);
	}
}

/* Have the lease spared by lease_timeout and terminate for a while. */
static void
spare_lease(const PgpxLease *lease)
{
	pg_atomic_write_u64(&pgpx_conns[lease->conn].spared_until,
						(uint64) pgpx_lease_operation_deadline(lease));
}

/* Insert the decision, and assign the global ids of the parts. */
static void
decide(Member *members, int n)
{
	int32	   *participants = palloc(sizeof(int32) * n);
	char		id[PGPX_ID_SIZE];
	int			number = 0;

	PGPX_DEBUG_POINT("commit_registered");
	for (int i = 0; i < n; i++)
		if (members[i].answer != HAS_NOT_WRITTEN)
			participants[number++] = members[i].participant.id;
	pgpx_decision_insert(participants, number, id);
	number = 0;
	for (int i = 0; i < n; i++)
	{
		Member	   *m = &members[i];

		if (m->answer == HAS_NOT_WRITTEN)
			continue;
		snprintf(m->rt->gid, PGPX_GID_SIZE, "%s_%d", id, ++number);
		spare_lease(m->rt->lease);
	}
	PGPX_DEBUG_POINT("commit_row");
}

void
pgpx_remote_commit(void)
{
	int			n;
	Member	   *members = find_members(&n);
	bool		prepares;

	if (n == 0)
		return;
	prepares = needs_two_phases(members, n);
	if (prepares)
		decide(members, n);
	end_members(members, n, prepares);
	for (int i = 0; i < n; i++)
	{
		PgpxLease  *lease = members[i].rt->lease;

		if (members[i].rt->part == PGPX_PART_NONE)
			continue;
		pgpx_lease_reserve_reset(lease);
		enlargeStringInfo(pgpx_wire_output(&lease->sock->wire), FINISH_SIZE);
		spare_lease(lease);
	}
	if (prepares)
		PGPX_DEBUG_POINT("commit_prepared");
	pfree(members);
}

/* --- two phases: after the local commit or abort -------------------------- */

/* Send COMMIT or ROLLBACK PREPARED, if that is possible. */
static void
send_finish(PgpxRemoteTransaction *rt, const char *command)
{
	PgpxLease  *lease = rt->lease;
	PgpxWire   *wire = &lease->sock->wire;
	char		sql[PGPX_GID_SIZE + 32];

	if (rt->part != PGPX_PART_PREPARED || !pgpx_remote_has_lease(rt) ||
		!pgpx_wire_is_at_boundary(wire) || wire->out.data == NULL ||
		wire->out.maxlen < FINISH_SIZE)
		return;
	spare_lease(lease);
	snprintf(sql, sizeof(sql), "%s PREPARED '%s'", command, rt->gid);
	lease->drained_error = 0;
	pgpx_wire_send_query(wire, sql);
	(void) pgpx_wire_flush(wire);
	rt->part = PGPX_PART_FINISHING;
}

/*
 * Wait for the answer to send_finish.  Return whether the part is resolved, or
 * the resolver is resolving it.
 */
static bool
await_finish(PgpxRemoteTransaction *rt, PgpxTime deadline)
{
	PgpxLease  *lease = rt->lease;

	if (rt->part != PGPX_PART_FINISHING || !pgpx_remote_has_lease(rt) ||
		!pgpx_stream_drain(lease, PGPX_DRAIN_BYTES, deadline))
		return false;

	/* it does not exist any more, or is busy */
	return lease->drained_error == 0 ||
		lease->drained_error == ERRCODE_UNDEFINED_OBJECT ||
		lease->drained_error == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
}

/* Warn that a part of a committed transaction is left to the resolver. */
static void
warn_of_part(const PgpxRemoteTransaction *rt)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("the transaction is committed, but its part on server \"%s\" is still prepared",
					NameStr(rt->lease->spec->server_name)),
			 errdetail("COMMIT PREPARED of \"%s\" has failed, or was not answered within operation_timeout.",
					   rt->gid),
			 errhint("It is committed when the server can be reached. See view \"pgpool.prepared_transactions\".")));
}

void
pgpx_remote_commit_finish(bool commits)
{
	PgpxTime	deadline = 0;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);

		if (rt->part == PGPX_PART_NONE)
			continue;
		if (deadline == 0)
			PGPX_DEBUG_POINT(commits ? "commit_decided" : "commit_abort");
		deadline = Max(deadline, pgpx_lease_operation_deadline(rt->lease));
		send_finish(rt, commits ? "COMMIT" : "ROLLBACK");
		if (commits)
			PGPX_DEBUG_POINT("commit_finishing");
	}
	if (deadline == 0)
		return;
	if (commits)
		PGPX_DEBUG_POINT("commit_finish_sent");
	dlist_foreach_modify(iter, &pgpx_remote_transactions)
	{
		PgpxRemoteTransaction *rt = dlist_container(PgpxRemoteTransaction, node,
													iter.cur);

		if (rt->part == PGPX_PART_NONE)
			continue;
		if (await_finish(rt, deadline))
		{
			rt->part = PGPX_PART_NONE;
			continue;
		}
		if (commits)
			warn_of_part(rt);
		pgpx_remote_transaction_end(rt, PGPX_END_DISCARD);
		pgpx_resolver_wake();
	}
	PGPX_DEBUG_POINT(commits ? "commit_finished" : "commit_rolled_back");
}
