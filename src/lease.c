/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  A lease from its holder's side: how it ends, and what goes on in between.
 *
 * See checkout.c for how it begins.  Runs in sessions only.
 *
 *-------------------------------------------------------------------------
 */
#include "lease.h"

#include <poll.h>

#include "storage/latch.h"
#include "utils/builtins.h"

#include "errcodes.h"
#include "session_wait.h"
#include "ticket.h"

/* What of an answer is dropped at checkin rather than the connection. */
#define FLIGHT_DROP_MAX (1024 * 1024)

/* What is taken in of an answer while the statement is still being sent. */
#define FLUSH_AHEAD_MAX (1024 * 1024)

/* A wait that serves no interrupts looks at the clock this often. */
#define QUIET_LOOK_MS 1000

/* Tell the views what the lease is doing. */
static void
show(PgpxLease *lease, PgpxActivity activity)
{
	pgpx_conn_do(&pgpx_conns[lease->conn], lease->id, activity, false);
}

void
pgpx_lease_rest(PgpxLease *lease)
{
	if (lease->kept->wire.phase == PGPX_WIRE_BROKEN)
		show(lease, PGPX_ACT_BROKEN);
	else if (lease->kept->wire.tx == 'T')
		show(lease, PGPX_ACT_TRANSACTION);
	else if (lease->kept->wire.tx == 'E')
		show(lease, PGPX_ACT_FAILED);
	else
		show(lease, PGPX_ACT_IDLE);
}

void
pgpx_lease_check_revoked(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxRevoke	reason;

	if (pg_atomic_read_u64(&conn->lease_id) == lease->id)
		return;

	reason = pgpx_ticket_revoked((int) MyProcNumber, lease->id);
	switch (reason)
	{
		case PGPX_REVOKE_TERMINATED:
			ereport(ERROR,
					(errcode(PGPX_ERRCODE_LEASE_TERMINATED),
					 errmsg("lease " UINT64_FORMAT " was terminated", lease->id),
					 errdetail("An administrator has ended it; its connection is closed."),
					 errhint("Return the lease and check a connection out again.")));
			break;
		case PGPX_REVOKE_TIMEOUT:
			ereport(ERROR,
					(errcode(PGPX_ERRCODE_LEASE_TIMEOUT),
					 errmsg("lease " UINT64_FORMAT " has timed out", lease->id),
					 errdetail("It was held longer than the server's option \"lease_timeout\"; its connection is closed."),
					 errhint("Return the lease and check a connection out again.")));
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("connection of lease " UINT64_FORMAT " was lost", lease->id),
					 reason == PGPX_REVOKE_WORKER ?
					 errdetail("The pool worker was restarted.") :
					 errdetail("The lease was ended, longer ago than other leases of this session that were."),
					 errhint("Return the lease and check a connection out again.")));
	}
}

void
pgpx_lease_broken(PgpxLease *lease, const char *why, const char *remote_words)
{
	/* an end that the worker has brought about has a reason of its own */
	pgpx_lease_check_revoked(lease);

	if (lease->broken == NULL)
		lease->broken = why;
	show(lease, PGPX_ACT_BROKEN);
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("connection to server \"%s\" was lost",
					NameStr(lease->target->server_name)),
			 remote_words ?
			 errdetail_internal("The remote server said: %s", remote_words) :
			 errdetail_internal("%c%s.", pg_toupper((unsigned char) why[0]),
								why + 1),
			 lease->scope == PGPX_SCOPE_CALL ? 0 :
			 errhint("Return the lease and check a connection out again.")));
}

void
pgpx_lease_check_broken(PgpxLease *lease)
{
	const PgpxWire *wire = &lease->kept->wire;

	if (lease->broken != NULL)
		pgpx_lease_broken(lease, lease->broken, NULL);
	if (wire->phase == PGPX_WIRE_BROKEN)
		pgpx_lease_broken(lease, wire->broken, NULL);
}

void
pgpx_lease_check_lost_cancel(PgpxLease *lease)
{
	PgpxWire   *wire = &lease->kept->wire;

	if (!pgpx_conn_cancel_is_lost(&pgpx_conns[lease->conn]))
		return;
	pgpx_wire_break(wire, "a cancel request did not end within operation_timeout");
	pgpx_lease_broken(lease, wire->broken, NULL);
}

PgpxTime
pgpx_lease_operation_deadline(const PgpxLease *lease)
{
	return pgpx_now() + lease->target->opts.operation_timeout * 1000;
}

bool
pgpx_lease_flush(PgpxLease *lease, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxKept   *kept = lease->kept;
	bool		full;

	for (;;)
	{
		int			flushed = pgpx_wire_flush(&kept->wire);
		uint32		events = WL_SOCKET_WRITEABLE;

		if (flushed != 0)
			return flushed > 0;

		/*
		 * A remote that cannot get rid of its answer does not read on: take
		 * in what it says, within a bound.
		 */
		if (kept->wire.in_end - kept->wire.in_start < FLUSH_AHEAD_MAX)
		{
			events |= WL_SOCKET_READABLE;
			if (pgpx_wire_fill(&kept->wire, &full) < 0)
				return false;
		}
		if (!pgpx_session_wait(kept, events, deadline,
							   pgpx_wait_event(&wait_event, "PgpoolQuery")))
			return false;
	}
}

/* Wait for input without serving interrupts; false: the deadline has passed. */
static bool
wait_quietly(int fd, PgpxTime deadline)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	PgpxTime	now = pgpx_now();

	if (now >= deadline)
		return false;
	(void) poll(&pfd, 1, (int) Min((deadline - now) / 1000 + 1, QUIET_LOOK_MS));
	return true;
}

bool
pgpx_lease_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline, bool quiet)
{
	static uint32 wait_event = 0;
	PgpxKept   *kept = lease->kept;
	PgpxWire   *wire = &kept->wire;
	uint64		start = wire->bytes_in;

	if (quiet ? pgpx_wire_flush(wire) != 1 : !pgpx_lease_flush(lease, deadline))
		return false;
	for (;;)
	{
		PgpxWireMessage msg;
		bool		full;
		ssize_t		n;

		switch (pgpx_wire_next(wire, &msg))
		{
			case PGPX_EV_BROKEN:
				return false;
			case PGPX_EV_READY:
				if (pgpx_wire_at_boundary(wire))
					return true;
				break;
			case PGPX_EV_COPY:
				/* the refusal is in the output buffer */
				if (pgpx_wire_flush(wire) != 1)
					return false;
				break;
			case PGPX_EV_NOTIFICATION:
				pgpx_notes_keep(lease, &msg);
				break;
			case PGPX_EV_NEED_INPUT:
				if (wire->phase == PGPX_WIRE_IDLE)
					return pgpx_wire_at_boundary(wire);
				if (bytes != 0 && wire->bytes_in - start > bytes)
					return false;
				n = pgpx_wire_fill(wire, &full);

				/* a remote that never pauses, where no bytes are the bound */
				if (n > 0 && bytes == 0)
				{
					CHECK_FOR_INTERRUPTS();
					if (deadline != 0 && pgpx_now() >= deadline)
						return false;
				}
				if (n == 0 &&
					!(quiet ? wait_quietly(wire->fd, deadline) :
					  pgpx_session_wait(kept, WL_SOCKET_READABLE, deadline,
										pgpx_wait_event(&wait_event, "PgpoolDrain"))))
					return false;
				break;
			default:
				break;
		}
	}
}

void
pgpx_lease_land(PgpxLease *lease)
{
	if (lease->flight != NULL)
		pfree(lease->flight);
	lease->flight = NULL;
	lease->scanned = 0;
}

void
pgpx_lease_cancel(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxPool   *pool = &pgpx_pools[lease->target->pool];
	uint32		none = PGPX_CANCEL_NONE;
	bool		ask;

	/* a lease that is taken away just now must not mark the next one */
	LWLockAcquire(pool->lock, LW_SHARED);
	ask = pg_atomic_read_u64(&conn->lease_id) == lease->id;
	if (ask)
	{
		show(lease, PGPX_ACT_CANCELLING);
		ask = pg_atomic_compare_exchange_u32(&conn->cancel, &none,
											 PGPX_CANCEL_ASKED);
	}
	LWLockRelease(pool->lock);
	if (ask)
		pgpx_conn_ask_worker(conn, lease->worker);
}

/* Does the lease have a stream that can still be used? */
static bool
in_step(const PgpxLease *lease)
{
	return lease->broken == NULL &&
		lease->kept->wire.phase != PGPX_WIRE_BROKEN;
}

/*
 * The lease is about to be returned with a statement in flight.  If its answer is
 * here, take it off the stream; else it will be cancelled, and the connection
 * closed.
 */
static void
drop_flight(PgpxLease *lease)
{
	pgpx_lease_land(lease);
	if (!pgpx_lease_drain(lease, FLIGHT_DROP_MAX, pgpx_now(), false))
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with a statement in flight, which is cancelled",
						lease->id)));
}

/*
 * Can the reset be put into the output buffer without allocating memory?  In a
 * callback nothing may throw.
 */
static bool
reset_fits(const PgpxLease *lease)
{
	const PgpxWire *wire = &lease->kept->wire;
	size_t		size = pgpx_wire_reset_size(lease->target->reset_command,
											lease->target->start_commands);

	return wire->out.data != NULL && (size_t) wire->out.maxlen > size;
}

/* Did the reset leave nothing of the pinned parameters to chance? */
static bool
reset_restores(const PgpxLease *lease)
{
	return pgpx_wire_params_pinned(&lease->kept->wire) ||
		lease->target->discards_all;
}

/* In which condition does the connection go back? */
static PgpxGive
condition(PgpxLease *lease, PgpxEnd end, bool may_wait, int *owed,
		  PgpxCloseReason *reason)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxTarget *target = lease->target;
	PgpxWire   *wire = &lease->kept->wire;
	bool		usable = in_step(lease);
	bool		in_transaction = usable && wire->tx != 'I';
	const char *reset_command = target->reset_command;
	const char *start_commands = target->start_commands;

	if (usable && wire->phase != PGPX_WIRE_IDLE)
	{
		*reason = end == PGPX_END_DISCARD ? PGPX_CLOSE_DISCARDED :
											PGPX_CLOSE_HOLDER_DIED;
		return PGPX_GIVE_CANCEL_CLOSE;
	}
	if (end == PGPX_END_DISCARD)
	{
		*reason = PGPX_CLOSE_DISCARDED;
		return PGPX_GIVE_CLOSE;
	}
	if (usable && !pgpx_wire_at_boundary(wire))
	{
		/* half a notice, say: nothing runs that would have to be cancelled */
		*reason = in_transaction ? PGPX_CLOSE_HOLDER_DIED : PGPX_CLOSE_BROKEN;
		return PGPX_GIVE_CLOSE;
	}
	if (!usable || !reset_restores(lease))
	{
		*reason = usable || lease->not_run ? PGPX_CLOSE_RESET :
											 PGPX_CLOSE_BROKEN;
		return PGPX_GIVE_CLOSE;
	}

	/*
	 * The remote may have become a standby: a new connection goes where names,
	 * hosts and target_session_attrs lead to now.
	 */
	if (lease->read_only)
	{
		*reason = PGPX_CLOSE_BROKEN;
		return PGPX_GIVE_CLOSE;
	}
	if (in_transaction &&
		(pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE ||
		 (!may_wait && !reset_fits(lease))))
	{
		/* no ROLLBACK can be sent */
		*reason = PGPX_CLOSE_HOLDER_DIED;
		return PGPX_GIVE_CLOSE;
	}
	if (pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE)
		return PGPX_GIVE_CANCEL;
	if (!lease->sent)
		return PGPX_GIVE_CLEAN;
	if (target->opts.reset != PGPX_RESET_ALWAYS)
	{
		if (!in_transaction)
			return pgpx_wire_params_pinned(wire) ?
				PGPX_GIVE_DIRTY : PGPX_GIVE_RESET;

		/* the values that a ROLLBACK restores are not known */
		if (target->opts.reset == PGPX_RESET_NEVER &&
			pgpx_wire_params_pinned(wire))
			reset_command = start_commands = "";
	}
	if (!may_wait && !reset_fits(lease))
		return PGPX_GIVE_RESET;

	if (reset_command[0] != '\0')
		lease->usage.resets++;
	*owed = pgpx_wire_send_reset(wire, reset_command, start_commands, true);
	if (pgpx_wire_flush(wire) == 1)
		return *owed == PGPX_SENT_ROLLBACK ? PGPX_GIVE_ROLLED_BACK :
											 PGPX_GIVE_OWED;

	/* not a byte of a reset may be missing */
	pgpx_wire_break(wire, "the reset could not be sent");
	*reason = PGPX_CLOSE_BROKEN;
	return PGPX_GIVE_CLOSE;
}

void
pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_wait)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxKept   *kept = lease->kept;
	PgpxGive	give;
	PgpxCloseReason reason = PGPX_CLOSE_NONE;
	int			owed = 0;

	Assert(lease->id != 0);
	if (pg_atomic_read_u64(&conn->lease_id) != lease->id)
	{
		/* it was taken away; what is left is our end of the socket */
		pgpx_lease_forget(lease);
		if (kept != NULL)
			pgpx_kept_drop(kept);
		return;
	}

	if (kept == NULL)
	{
		/* the process ends while it waits for the socket */
		if (lease->offer == PGPX_OFFER_SENT)
			pgpx_pool_give(conn, lease->id, PGPX_END_RECLAIMED,
						   PGPX_GIVE_CANCEL_CLOSE, 0, PGPX_CLOSE_HOLDER_DIED,
						   NULL);
		else
			pgpx_pool_give(conn, lease->id, PGPX_END_RETRIED,
						   PGPX_GIVE_AS_IT_WAS, 0, PGPX_CLOSE_NONE, NULL);
		pgpx_lease_forget(lease);
		return;
	}

	if (may_wait && end == PGPX_END_CHECKIN && lease->broken == NULL &&
		lease->flight != NULL)
		drop_flight(lease);
	if (may_wait && end == PGPX_END_CHECKIN && in_step(lease) &&
		kept->wire.tx != 'I')
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with an open remote transaction, which is rolled back",
						lease->id)));

	if (end == PGPX_END_CHECKIN && pgpx_lease_carry(lease))
		return;
	give = condition(lease, end, may_wait, &owed, &reason);
	lease->usage.bytes_received = kept->wire.bytes_in;
	lease->usage.bytes_sent = kept->wire.bytes_out;

	lease->target->partner = lease->conn;
	lease->target->partner_generation = lease->generation;
	pgpx_pool_give(conn, lease->id, end, give, owed, reason, &lease->usage);
	pgpx_lease_forget(lease);
	if (give == PGPX_GIVE_CLOSE || give == PGPX_GIVE_CANCEL_CLOSE)
		pgpx_kept_drop(kept);
}
