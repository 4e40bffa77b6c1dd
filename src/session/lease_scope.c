/*-------------------------------------------------------------------------
 *
 * lease_scope.c
 *	  The ends of leases with their transaction, subtransaction or session.
 *
 * A lease ends with its scope: at checkin, at the end of the transaction
 * or subtransaction that owns it, at the end of the call, and at the
 * latest with the session.  Commit, abort and exit callbacks must not
 * wait; abort and exit callbacks must not throw either.  A connection
 * whose stream is at a message boundary is released there as at checkin.
 * The worker cancels and closes any other.
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
 * Before commit or prepare: interrupts are served here and an error aborts the
 * local transaction.  So this is the last point at which a lease with an open
 * remote transaction can be refused.
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

		/* the hints would not help here, and the open work is lost */
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

		/* in mid-answer, tx is the state after the previous statement */
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
 * Leave the queue before the leases are returned.  A process that exits while
 * it waits still has its waiter when its transaction is aborted (no other abort
 * finds one).  Its pending statement must not be sent on one of its own leases,
 * and a connection granted in the meantime must be handed on.
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
