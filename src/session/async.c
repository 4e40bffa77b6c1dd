/*-------------------------------------------------------------------------
 *
 * async.c
 *	  Statements in flight: waiting for answers and for notifications.
 *
 * While a statement is in flight, its answer accumulates in the stream's
 * buffer, up to a bound.  It is only split into messages.  They are decoded
 * by pgpx_async_result, which therefore also raises their errors.
 *
 * Waiting for an answer acquires no lock and changes no shared state, so
 * it may be interrupted anywhere.
 *
 *-------------------------------------------------------------------------
 */
#include "session/async.h"

#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "session/lease_stream.h"
#include "session/statement.h"

/* Limit on the input to read before the caller requests the result. */
#define AHEAD_MAX (1024 * 1024)

/* A statement that was sent. */
typedef struct PgpxInFlight
{
	PgpxPrediction prediction;
	int			nformats;		/* number of formats requested */
	char		sql[FLEXIBLE_ARRAY_MEMBER];
} PgpxInFlight;

static uint32 wait_answer = 0;
static uint32 wait_note = 0;

/*
 * Read pending input.  Returns true if the answer is complete, or if no more of
 * it is buffered before the caller reads the result.
 */
static bool
is_answered(PgpxLease *lease)
{
	PgpxWire   *wire = &lease->sock->wire;
	bool		more = true;

	while (!pgpx_wire_answered(wire, &lease->scanned) &&
		   wire->in_end - wire->in_start <= AHEAD_MAX)
	{
		if (!more)
			return false;
		if (pgpx_wire_fill(wire, &more) == 0)
			return false;
	}
	return true;
}

static PgpxLease *
find_answered(PgpxLease *const *leases, int n)
{
	for (int i = 0; i < n; i++)
		if (is_answered(leases[i]))
			return leases[i];
	return NULL;
}

static PgpxLease *
wait_on(WaitEventSet *waits, PgpxLease *const *leases, int n, PgpxTime deadline)
{
	PgpxLease  *found;

	while ((found = find_answered(leases, n)) == NULL)
	{
		WaitEvent	occurred[8];
		long		timeout;
		int			nevents;

		if (!pgpx_session_time_left(deadline, -1, &timeout))
			return NULL;
		nevents = WaitEventSetWait(waits, timeout, occurred, lengthof(occurred),
								   pgpx_wait_event(&wait_answer, "PgpoolAnswer"));
		for (int i = 0; i < nevents; i++)
			if (occurred[i].events & WL_LATCH_SET)
				ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return found;
}

/* Wait on the sockets of all leases, with a temporary wait set. */
static PgpxLease *
wait_for_several(PgpxLease *const *leases, int n, PgpxTime deadline)
{
	WaitEventSet *waits = pgpx_create_wait_event_set(n + 2);
	PgpxLease *volatile found = NULL;

	PG_TRY();
	{
		AddWaitEventToSet(waits, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
		AddWaitEventToSet(waits, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL,
						  NULL);
		for (int i = 0; i < n; i++)
			AddWaitEventToSet(waits, WL_SOCKET_READABLE, leases[i]->sock->fd,
							  NULL, NULL);
		found = wait_on(waits, leases, n, deadline);
	}
	PG_FINALLY();
	{
		FreeWaitEventSet(waits);
	}
	PG_END_TRY();
	return found;
}

PgpxLease *
pgpx_async_wait(PgpxLease *const *leases, int n, PgpxTime deadline)
{
	if (n > 1)
		return wait_for_several(leases, n, deadline);
	while (!is_answered(leases[0]))
		if (!pgpx_session_wait(leases[0]->sock, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_answer, "PgpoolAnswer")))
			return NULL;
	return leases[0];
}

bool
pgpx_async_cancel(PgpxLease *lease)
{
	if (lease->in_flight == NULL)
		return false;

	/* is_answered is also true for an incomplete answer that is large */
	if (is_answered(lease) &&
		pgpx_wire_answered(&lease->sock->wire, &lease->scanned))
		return false;
	lease->cancelled = true;
	pgpx_stream_cancel(lease);
	return true;
}

void
pgpx_async_notes(PgpxLease *lease, PgpxTime deadline)
{
	do
		pgpx_run_poll(lease);
	while (lease->notes == NULL &&
		   pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
							 pgpx_wait_event(&wait_note, "PgpoolNotification")));
}

/*
 * The target types of a result are not known before pgpx_async_result.  So the
 * statement requests binary format, as predicted from its previous result, only
 * for columns whose binary values can be converted to every type to which their
 * text can be converted.
 */
#define IN_FLIGHT_TYPES UINT64CONST(0x666c69676874)	/* an arbitrary constant */
static const PgpxSink any_sink = {.types_hash = IN_FLIGHT_TYPES};

void
pgpx_async_send(PgpxLease *lease, const PgpxStatement *statement)
{
	PgpxRun		run = {
		.lease = lease,
		.statement = statement,
		.sink = &any_sink,
	};
	PgpxInFlight *in_flight;
	size_t		len = strlen(statement->sql) + 1;

	pgpx_run_check(lease, statement);
	in_flight = MemoryContextAlloc(TopMemoryContext,
								   offsetof(PgpxInFlight, sql) + len);
	memcpy(in_flight->sql, statement->sql, len);
	PG_TRY();
	{
		pgpx_prediction_begin(&in_flight->prediction, &run);
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
	in_flight->nformats = run.nformats;
	lease->in_flight = in_flight;
	lease->scanned = 0;
	lease->in_use = false;
}

uint64
pgpx_async_result(PgpxLease *lease, const PgpxSink *sink)
{
	PgpxStatement statement = {.sql = pstrdup(lease->in_flight->sql)};
	PgpxRun		run = {.lease = lease, .statement = &statement, .sink = sink};
	PgpxPrediction prediction = lease->in_flight->prediction;

	/* after this the lease has no statement in flight, even on an error */
	run.nformats = lease->in_flight->nformats;
	run.formats = prediction.formats;
	pgpx_lease_clear_in_flight(lease);
	lease->in_use = true;
	PG_TRY();
	{
		pgpx_run_read(&run);
	}
	PG_CATCH();
	{
		pgpx_run_failed(&run, true);
		pgpx_prediction_failed(&prediction, &run);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!pgpx_prediction_was_wrong(&prediction, &run, false))
		pgpx_prediction_end(&prediction, &run);
	return pgpx_run_end(&run);
}
