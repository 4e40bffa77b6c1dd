/*-------------------------------------------------------------------------
 *
 * lease_scope.c
 *	  The ends of leases with their transaction, subtransaction or session.
 *
 * A lease ends with its scope: at checkin, at the end of the transaction
 * or subtransaction that owns it, at the end of the call, and at the
 * latest with the session.  Commit, abort and exit callbacks must not
 * wait; abort and exit callbacks must not throw either.  They release a
 * connection whose stream is at a message boundary as a checkin does.  The
 * worker cancels and closes any other connection.
 *
 * At process exit ShutdownPostgres aborts the transaction in a
 * before_shmem_exit callback.  Our on_shmem_exit callback runs later and
 * ends the leases that remain.  The reverse order would be harmless too:
 * the abort would find an empty list.  Both callbacks leave the queue
 * first.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease_scope.h"

#include "access/xact.h"
#include "storage/ipc.h"

#include "base/debug_point.h"
#include "session/lease_return.h"

static bool callbacks_registered = false;

/*
 * Return the leases of the transaction before COMMIT or PREPARE, and raise an
 * error if one has a statement in flight or an open remote transaction.  This
 * is the last point at which an error aborts the local transaction.
 */
static void
before_commit(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);
		PgpxWire   *wire = &lease->sock->wire;

		if (lease->scope == PGPX_SCOPE_SESSION ||
			lease->scope == PGPX_SCOPE_TABLE)
			continue;

		/* if the remote work is lost already, the hints below do not help */
		if (lease->in_flight != NULL || wire->tx != 'I')
			pgpx_lease_check_revoked(lease);
		if (wire->tx != 'I')
			pgpx_lease_check_broken(lease);
		if (lease->in_flight != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
					 errmsg("lease " UINT64_FORMAT " has a statement in flight",
							lease->id),
					 errdetail("A lease acquired with checkout_xact ends with the local transaction, and its statement would be cancelled."),
					 errhint("Read its result with pgpool.result before the local transaction ends.")));

		/* while an answer is incomplete, tx is that before its statement */
		if (wire->tx != 'I')
			ereport(ERROR,
					(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
					 errmsg("lease " UINT64_FORMAT " has an open remote transaction",
							lease->id),
					 errdetail("A lease acquired with checkout_xact ends with the local transaction, and its remote transaction would be rolled back."),
					 errhint("Commit or roll back on the lease before the local transaction ends.")));
		pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
}

/*
 * Leave the queue before the leases are returned.  The process is enqueued
 * only if it exits during the wait; after any other error the checkout has left
 * the queue already.  The process must not hand over one of its own leases to
 * its own waiter, and must release a connection that was granted to it.
 */
static void
leave_queue(void)
{
	PgpxConn   *conn;
	uint64		lease_id;
	int			sqlstate;
	PgpxTime	waited;

	pgpx_waiter_dequeue(pgpx_my_waiter(), PGPX_DEQUEUE_CANCEL, &conn, &lease_id,
						&sqlstate, NULL, &waited);
}

static void
at_abort(void)
{
	dlist_mutable_iter iter;

	leave_queue();
	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope != PGPX_SCOPE_SESSION)
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (dlist_is_empty(&pgpx_leases))
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			before_commit();
			break;
		case XACT_EVENT_ABORT:
			at_abort();
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	dlist_mutable_iter iter;

	if (dlist_is_empty(&pgpx_leases))
		return;
	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		leave_queue();

	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope == PGPX_SCOPE_SESSION ||
			lease->scope == PGPX_SCOPE_TABLE || lease->subid != mySubid)
			continue;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			lease->subid = parentSubid;
		else
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
}

static void
exit_callback(int code, Datum arg)
{
	dlist_mutable_iter iter;

	PGPX_DEBUG_POINT("exit");

	leave_queue();
	dlist_foreach_modify(iter, &pgpx_leases)
		pgpx_lease_return(dlist_container(PgpxLease, node, iter.cur),
						  PGPX_END_RECLAIMED, false);
}

void
pgpx_lease_register_callbacks(void)
{
	if (callbacks_registered)
		return;
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	on_shmem_exit(exit_callback, (Datum) 0);
	callbacks_registered = true;
}

bool
pgpx_lease_has_callbacks(void)
{
	return callbacks_registered;
}
