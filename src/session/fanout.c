/*-------------------------------------------------------------------------
 *
 * fanout.c
 *	  Run one statement on a connection of each of several pools,
 *	  concurrently.
 *
 * All leases have scope CALL.  On any error they are returned, and the
 * statements that run on them are cancelled.
 *
 *-------------------------------------------------------------------------
 */
#include "session/fanout.h"

#include "storage/latch.h"

#include "base/debug_point.h"
#include "session/checkout.h"
#include "session/lease_return.h"
#include "session/statement.h"

/* The state of one server. */
typedef struct Branch
{
	char	   *server;
	PgpxRun		run;			/* lease NULL: not yet leased, or returned */
	PgpxRows   *tuples;
	PgpxPrediction prediction;
	bool		sent;
	bool		done;
} Branch;

/* Add the server being processed to the context of an error. */
static void
add_server_context(void *arg)
{
	Branch	   *branch = *(Branch **) arg;

	if (branch != NULL)
		errcontext("fanout to server \"%s\"", branch->server);
}

/* Process the available input of a branch.  Raises its error. */
static void
advance(Branch *branch)
{
	branch->done = pgpx_run_step(&branch->run);

	/* this server's DateStyle must not apply to rows of the next one */
	pgpx_rows_end(branch->tuples);
	if (!branch->done)
		return;
	if (pgpx_prediction_was_wrong(&branch->prediction, &branch->run, true))
	{
		branch->done = false;
		pgpx_run_send(&branch->run, false);
		return;
	}
	pgpx_prediction_end(&branch->prediction, &branch->run);
	(void) pgpx_run_end(&branch->run);
}

/*
 * Wait for input of the incomplete branches and process it, until at least one
 * more branch is complete.  After that the caller must create another wait set,
 * because sockets cannot be removed from a wait set.
 */
static void
wait_and_advance(WaitEventSet *waits, Branch *branches, int n,
				 Branch **current)
{
	static uint32 wait_event = 0;
	bool		done = false;

	AddWaitEventToSet(waits, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(waits, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < n; i++)
		if (!branches[i].done)
			AddWaitEventToSet(waits, WL_SOCKET_READABLE,
							  branches[i].run.lease->sock->fd, NULL,
							  &branches[i]);
	while (!done)
	{
		WaitEvent	occurred[16];
		int			nevents;

		nevents = WaitEventSetWait(waits, -1, occurred, lengthof(occurred),
								   pgpx_wait_event(&wait_event, "PgpoolFanout"));
		for (int i = 0; i < nevents; i++)
		{
			if (occurred[i].events & WL_LATCH_SET)
				ResetLatch(MyLatch);
			if (occurred[i].user_data == NULL)
				continue;
			*current = occurred[i].user_data;
			advance(*current);
			done |= (*current)->done;
			*current = NULL;
		}
		CHECK_FOR_INTERRUPTS();
	}
}

static int
count_remaining(const Branch *branches, int n)
{
	int			remaining = 0;

	for (int i = 0; i < n; i++)
		remaining += branches[i].done ? 0 : 1;
	return remaining;
}

/* Wait until one of the remaining branches is complete. */
static void
collect_some(Branch *branches, int n, int remaining, Branch **current)
{
	WaitEventSet *waits = pgpx_create_wait_event_set(remaining + 2);

	PG_TRY();
	{
		wait_and_advance(waits, branches, n, current);
	}
	PG_FINALLY();
	{
		FreeWaitEventSet(waits);
	}
	PG_END_TRY();
}

static void
collect(Branch *branches, int n, Branch **current)
{
	int			remaining;

	/* input may have arrived while the statement was sent to the others */
	for (int i = 0; i < n; i++)
	{
		*current = &branches[i];
		advance(*current);
	}
	*current = NULL;
	while ((remaining = count_remaining(branches, n)) > 0)
		collect_some(branches, n, remaining, current);
}

/* Clean up after an error.  current: the branch that raised it; NULL: none. */
static void
abandon(Branch *branches, int n, const Branch *current)
{
	for (int i = 0; i < n; i++)
	{
		Branch	   *branch = &branches[i];

		if (branch->run.lease == NULL)
			continue;
		if (branch->sent && !branch->done)
		{
			pgpx_run_failed(&branch->run, branch == current);
			if (branch == current)
				pgpx_prediction_failed(&branch->prediction, &branch->run);
		}
		pgpx_lease_return(branch->run.lease, PGPX_END_CHECKIN, false);
		branch->run.lease = NULL;
	}
}

void
pgpx_fanout(char **servers, int n, const PgpxStatement *statement,
			TupleDesc tupdesc, Tuplestorestate *store)
{
	Branch	   *branches = palloc0(sizeof(Branch) * Max(n, 1));
	Branch	   *current = NULL;
	Branch	  **which = &current;
	ErrorContextCallback where;

	where.callback = add_server_context;
	where.arg = which;
	where.previous = error_context_stack;
	error_context_stack = &where;
	for (int i = 0; i < n; i++)
	{
		branches[i].server = servers[i];
		branches[i].tuples = pgpx_rows_begin(tupdesc, store, InvalidOid);
		pgpx_rows_lead(branches[i].tuples, servers[i]);
		branches[i].run.statement = statement;
		branches[i].run.sink = pgpx_rows_sink(branches[i].tuples);
	}
	PG_TRY();
	{
		for (int i = 0; i < n; i++)
		{
			*which = &branches[i];
			branches[i].run.lease = pgpx_lease_checkout(servers[i],
														PGPX_TIMEOUT_DEFAULT,
														false,
														PGPX_SCOPE_CALL, NULL);
			pgpx_run_check(branches[i].run.lease, statement);
			pgpx_prediction_begin(&branches[i].prediction, &branches[i].run);
		}
		for (int i = 0; i < n; i++)
		{
			*which = &branches[i];
			branches[i].sent = true;
			pgpx_run_send(&branches[i].run, false);
		}
		collect(branches, n, which);
	}
	PG_CATCH();
	{
		abandon(branches, n, *which);
		PG_RE_THROW();
	}
	PG_END_TRY();
	error_context_stack = where.previous;
	for (int i = 0; i < n; i++)
		pgpx_lease_return(branches[i].run.lease, PGPX_END_CHECKIN, true);
}
