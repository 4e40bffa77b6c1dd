/*-------------------------------------------------------------------------
 *
 * async.c
 *	  Statements in flight: waiting for answers and for notifications; fanout,
 *	  one statement on several pools at the same time.
 *
 * While a statement is in flight, its answer accumulates in the input buffer
 * of the stream, up to a bound, and is only searched for its end.
 * pgpx_async_result decodes it, and therefore also raises its errors.
 *
 * A wait may be interrupted anywhere.  It changes no shared state, except that
 * it repeats cancel requests.
 *
 *-------------------------------------------------------------------------
 */
#include "session/statement.h"

#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "session/checkout.h"

/* ------------------------------------------------------------------------
 * Statements in flight, and notifications
 * ------------------------------------------------------------------------
 */

/* Limit on the input that is buffered before the caller requests the result. */
#define AHEAD_MAX (1024 * 1024)

/* A statement in flight.  It is allocated as one chunk with its text. */
typedef struct PgpxInFlight
{
	PgpxRun		run;			/* as it was sent; its pointer to the statement
								 * is no longer valid */
	char		sql[FLEXIBLE_ARRAY_MEMBER];
} PgpxInFlight;

static uint32 wait_answer = 0;
static uint32 wait_note = 0;

/*
 * Read pending input into the buffer.  Return true if the answer is complete,
 * or if AHEAD_MAX is exceeded, so that no more is read before the caller
 * requests the result.
 */
static bool
read_ahead(PgpxLease *lease)
{
	PgpxWire   *wire = &lease->sock->wire;
	bool		more = true;

	while (!pgpx_wire_is_answered(wire, &lease->scanned) &&
		   wire->in_end - wire->in_start <= AHEAD_MAX)
	{
		if (!more)
			return false;
		if (pgpx_wire_fill(wire, &more) == 0)
			return false;
	}
	return true;
}

/* Read pending input until one of the leases can be returned to the caller. */
static PgpxLease *
find_answered(PgpxLease *const *leases, int n)
{
	for (int i = 0; i < n; i++)
		if (read_ahead(leases[i]))
			return leases[i];
	return NULL;
}

/*
 * Repeat the cancel requests of these leases that are due.  Return the time
 * until which the caller may sleep: that of the next request, or the deadline.
 */
static PgpxTime
repeat_cancels(PgpxLease *const *leases, int n, PgpxTime deadline)
{
	PgpxTime	until = deadline;

	for (int i = 0; i < n; i++)
	{
		PgpxTime	at = pgpx_stream_repeat_cancel(leases[i]);

		if (at != 0)
			until = until == 0 ? at : Min(until, at);
	}
	return until;
}

/*
 * Wait for one of the sockets, with the session's wait set if there is only
 * one.  Return false if the deadline has passed.
 */
static bool
wait_for_input(WaitEventSet *waits, PgpxLease *const *leases, int n,
			   PgpxTime deadline)
{
	uint32		wait_event = pgpx_wait_event(&wait_answer, "PgpoolAnswer");
	PgpxTime	waited;
	long		timeout;

	if (n == 1)
		return pgpx_session_wait(leases[0]->sock, WL_SOCKET_READABLE, deadline,
								 wait_event);
	waited = -pgpx_now();
	if (!pgpx_session_has_time_left(deadline, -1, &timeout))
		return false;
	pgpx_session_wait_set(waits, timeout, wait_event);
	waited += pgpx_now();
	for (int i = 0; i < n; i++)
		leases[i]->sock->answer_time += waited;
	CHECK_FOR_INTERRUPTS();
	return true;
}

PgpxLease *
pgpx_async_wait(PgpxLease *const *leases, int n, PgpxTime deadline)
{
	PgpxLease *volatile found = find_answered(leases, n);
	WaitEventSet *waits;

	if (found != NULL)
		return found;
	waits = n > 1 ? pgpx_create_wait_event_set(n + 2) : NULL;
	PG_TRY();
	{
		if (waits != NULL)
		{
			AddWaitEventToSet(waits, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch,
							  NULL);
			AddWaitEventToSet(waits, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET,
							  NULL, NULL);
			for (int i = 0; i < n; i++)
				AddWaitEventToSet(waits, WL_SOCKET_READABLE,
								  leases[i]->sock->fd, NULL, NULL);
		}
		while ((found = find_answered(leases, n)) == NULL)
		{
			PgpxTime	until = repeat_cancels(leases, n, deadline);

			if (!wait_for_input(waits, leases, n, until) && until == deadline)
				break;
		}
	}
	PG_FINALLY();
	{
		if (waits != NULL)
			FreeWaitEventSet(waits);
	}
	PG_END_TRY();
	return found;
}

bool
pgpx_async_cancel(PgpxLease *lease)
{
	if (lease->in_flight == NULL)
		return false;

	/* read_ahead is also true for an incomplete answer that is large */
	if (read_ahead(lease) &&
		pgpx_wire_is_answered(&lease->sock->wire, &lease->scanned))
		return false;
	lease->cancel_pause = PGPX_CANCEL_AGAIN_US;
	lease->cancel_at = pgpx_now() + lease->cancel_pause;
	pgpx_stream_cancel(lease);
	return true;
}

void
pgpx_async_wait_for_note(PgpxLease *lease, PgpxTime deadline)
{
	do
		pgpx_run_read_pending(lease);
	while (!pgpx_lease_has_notes(lease) &&
		   pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
							 pgpx_wait_event(&wait_note, "PgpoolNotification")));
}

/*
 * The target types of a result are not known before pgpx_async_result.  So the
 * statement requests binary format, as predicted from its previous result, only
 * for columns whose binary values can be converted to every type to which their
 * text can be converted.  This sink stands for results of that kind.
 */
#define IN_FLIGHT_TYPES UINT64CONST(0x666c69676874)	/* an arbitrary constant */
static const PgpxSink any_types_sink = {.types_hash = IN_FLIGHT_TYPES};

void
pgpx_async_send(PgpxLease *lease, const PgpxStatement *statement)
{
	PgpxRun		run = {
		.lease = lease,
		.statement = statement,
		.sink = &any_types_sink,
	};
	size_t		size = strlen(statement->sql) + 1;
	PgpxInFlight *in_flight;

	pgpx_run_check(lease, statement);
	in_flight = MemoryContextAlloc(TopMemoryContext,
								   offsetof(PgpxInFlight, sql) + size);
	memcpy(in_flight->sql, statement->sql, size);
	PG_TRY();
	{
		pgpx_prediction_begin(&run);
		run.sink = NULL;
		pgpx_run_send(&run, false);
	}
	PG_CATCH();
	{
		pfree(in_flight);
		run.sink = NULL;
		pgpx_run_failed(&run, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	in_flight->run = run;
	lease->in_flight = in_flight;
	lease->scanned = 0;
	lease->in_use = false;
}

uint64
pgpx_async_result(PgpxLease *lease, const PgpxSink *sink)
{
	const PgpxInFlight *sent = lease->in_flight;
	PgpxStatement statement = {.sql = pstrdup(sent->sql)};
	PgpxRun		run = sent->run;

	run.statement = &statement;
	run.sink = sink;

	/* from here on the lease has no statement in flight, even after an error */
	pgpx_lease_clear_in_flight(lease);
	lease->in_use = true;
	PG_TRY();
	{
		(void) pgpx_run_read(&run, true);
	}
	PG_CATCH();
	{
		pgpx_run_failed(&run, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!pgpx_prediction_begin_retry(&run, false))
		pgpx_prediction_end(&run);
	return pgpx_run_end(&run);
}

/* ------------------------------------------------------------------------
 * Fanout
 *
 * All leases have scope CALL.  On any error the statements that run on them
 * are cancelled, and the leases are returned.
 * ------------------------------------------------------------------------
 */

/* The statement on one server. */
typedef struct Branch
{
	char	   *server;
	PgpxRun		run;			/* lease NULL: not yet leased, or returned */
	bool		running;		/* sent, and the answer is not complete */
} Branch;

/*
 * Add the server that is being processed to the context of an error.  arg: the
 * address of the pointer to the current branch, which may be NULL.
 */
static void
add_server_context(void *arg)
{
	Branch	   *branch = *(Branch **) arg;

	if (branch != NULL)
		errcontext("fanout to server \"%s\"", branch->server);
}

/*
 * Process the available input of a branch.  At its end, raise its error.
 */
static void
process_input(Branch *branch)
{
	PgpxLease  *lease = branch->run.lease;
	PgpxWire   *wire = &lease->sock->wire;

	/* in the middle of a long message, nothing can be processed */
	if (wire->in_end - wire->in_start > AHEAD_MAX &&
		!pgpx_wire_is_answered(wire, &lease->scanned) && lease->scanned == 0)
		(void) pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, 0,
								 pgpx_wait_event(&wait_answer, "PgpoolAnswer"));
	branch->running = pgpx_run_read(&branch->run, false) != PGPX_RUN_END;
	lease->scanned = 0;

	if (branch->running)
		return;
	if (pgpx_prediction_begin_retry(&branch->run, true))
	{
		branch->running = true;
		pgpx_run_send(&branch->run, false);
		return;
	}
	pgpx_prediction_end(&branch->run);
	(void) pgpx_run_end(&branch->run);
}

/* Wait until all branches are complete. */
static void
collect_results(Branch *branches, int n, Branch **current)
{
	PgpxLease **waiting = palloc(sizeof(PgpxLease *) * Max(n, 1));

	for (;;)
	{
		PgpxLease  *ready;
		int			nwaiting = 0;

		*current = NULL;
		for (int i = 0; i < n; i++)
			if (branches[i].running)
				waiting[nwaiting++] = branches[i].run.lease;
		if (nwaiting == 0)
			return;
		ready = pgpx_async_wait(waiting, nwaiting, 0);
		for (*current = branches; (*current)->run.lease != ready;)
			(*current)++;
		process_input(*current);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Cancel statements and return leases after an error.  current: the branch that
 * raised it; NULL: none.
 */
static void
abandon_branches(Branch *branches, int n, const Branch *current)
{
	for (int i = 0; i < n; i++)
	{
		Branch	   *branch = &branches[i];

		if (branch->run.lease == NULL)
			continue;
		if (branch->running)
			pgpx_run_failed(&branch->run, branch == current);
		pgpx_lease_return(branch->run.lease, PGPX_END_CHECKIN, false);
		branch->run.lease = NULL;
	}
}

/*
 * Return whether the connection of a lease was lost before anything was sent.
 * Raise an error if the lease was ended for another reason.
 */
static bool
is_lost(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];

	if (pg_atomic_read_u64(&conn->lease_id) != lease->id &&
		pgpx_waiter_revoke_reason((int) MyProcNumber,
								  lease->id) == PGPX_REVOKE_BROKEN)
		return true;			/* the worker has reused its slot */
	pgpx_lease_check_revoked(lease);
	return conn->broken || !pgpx_session_has_no_input(lease->sock);
}

/*
 * Lease a connection for each branch, in their order.
 *
 * Connections that are leased already can be lost while the session waits for
 * the next one.  So check all of them before anything is sent.  From the first
 * one on that has input, return the leases and begin again, because a checkout
 * replaces a lost connection.  Later ones are returned, too, so that the order
 * of the leases is always that of the branches.
 */
static void
lease_connections(Branch *branches, int n, Branch **current)
{
	int			i = 0;

	for (;;)
	{
		for (; i < n; i++)
		{
			PgpxRun    *run = &branches[i].run;

			*current = &branches[i];
			run->lease = pgpx_lease_checkout_call(branches[i].server, NULL,
												  NULL);
			pgpx_run_check(run->lease, run->statement);
		}
		CHECK_FOR_INTERRUPTS();

		/* the checkout of the last one has just checked it */
		for (i = 0; i < n - 1; i++)
		{
			*current = &branches[i];
			if (is_lost(branches[i].run.lease))
				break;
		}
		if (i >= n - 1)
			return;
		for (int j = i; j < n; j++)
		{
			pgpx_lease_return(branches[j].run.lease, PGPX_END_RETRIED, true);
			branches[j].run.lease = NULL;
		}
	}
}

void
pgpx_fanout(char **servers, int n, const PgpxStatement *statement,
			TupleDesc tupdesc, Tuplestorestate *store)
{
	Branch	   *branches = palloc0(sizeof(Branch) * Max(n, 1));
	Branch	   *current = NULL;
	Branch	  **which = &current;	/* PG_CATCH could read a stale variable */
	ErrorContextCallback where;

	where.callback = add_server_context;
	where.arg = which;
	where.previous = error_context_stack;
	error_context_stack = &where;
	for (int i = 0; i < n; i++)
	{
		PgpxRows   *rows = pgpx_rows_begin(tupdesc, store, InvalidOid);

		pgpx_rows_set_first(rows, servers[i]);
		branches[i].server = servers[i];
		branches[i].run.statement = statement;
		branches[i].run.sink = pgpx_rows_sink(rows);
	}
	PG_TRY();
	{
		lease_connections(branches, n, which);
		for (int i = 0; i < n; i++)
		{
			*which = &branches[i];
			pgpx_prediction_begin(&branches[i].run);
			branches[i].running = true;
			pgpx_run_send(&branches[i].run, false);
		}
		collect_results(branches, n, which);
	}
	PG_CATCH();
	{
		abandon_branches(branches, n, *which);
		PG_RE_THROW();
	}
	PG_END_TRY();
	error_context_stack = where.previous;
	for (int i = 0; i < n; i++)
		pgpx_lease_return(branches[i].run.lease, PGPX_END_CHECKIN, true);
}
