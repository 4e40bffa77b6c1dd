/*-------------------------------------------------------------------------
 *
 * checkout_settle.c
 *	  The end of a checkout: the socket of the connection that was taken, and a
 *	  look at it.
 *
 * Runs in sessions only, without a lock.  The lease is in the session's list: if
 * the process dies here, the exit callback returns it.  What throws gives the
 * connection back first, as it was if nothing can have been read or written.
 *
 *-------------------------------------------------------------------------
 */
#include "checkout.h"

#include "utils/inval.h"

#include "session_wait.h"

/* Until when a step after the grant may last; sent: the statement runs already. */
static PgpxTime
step_deadline(const PgpxCheckout *c, bool sent)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	longest = now + c->target->opts.operation_timeout * 1000;

	if (c->deadline == 0 || sent)
		return longest;
	return Min(longest, Max(c->deadline, now) + PGPX_CHECKOUT_GRACE_US);
}

/* Give back what settle_in() could not use; the record is free afterwards. */
static void
unsettle(PgpxLease *lease, PgpxGive give)
{
	PgpxKept   *kept = lease->kept;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCloseReason reason = PGPX_CLOSE_BROKEN;

	if (give == PGPX_GIVE_CLOSE && kept != NULL &&
		(conn->owed > 0 || lease->usage.resets > 0))
	{
		reason = PGPX_CLOSE_RESET;

		/* it may still run over there, and would not see us go */
		if (pgpx_wire_in_reset(&kept->wire) && !kept->wire.eof)
			give = PGPX_GIVE_CANCEL_CLOSE;
	}
	if (give != PGPX_GIVE_AS_IT_WAS && lease->offer == PGPX_OFFER_SENT)
	{
		reason = PGPX_CLOSE_HOLDER_DIED;
		give = PGPX_GIVE_CANCEL_CLOSE;
	}
	pgpx_pool_give(conn, lease->id, PGPX_END_RETRIED, give, 0, reason,
				   &lease->usage);
	pgpx_lease_forget(lease);
	if (kept != NULL && give != PGPX_GIVE_AS_IT_WAS)
		pgpx_kept_drop(kept);
}

/* So much may come in that nobody has asked for: a remote that says more does not stop. */
#define IDLE_MOST (4 * 1024 * 1024)

/*
 * Look at the stream: read an owed answer; or see that nothing has come in but
 * what may come at any time.
 */
static PgpxSettled
look(PgpxLease *lease, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxWire   *wire = &lease->kept->wire;
	bool		full;
	ssize_t		n = 0;
	uint64		start = wire->bytes_in;
	bool		read = false;	/* there is something new, n bytes of it */

	for (;;)
	{
		PgpxWireMessage msg;
		PgpxWireEvent event;

		if (!read)
			n = pgpx_wire_fill(wire, &full);
		read = false;
		if (n < 0)
			return PGPX_SETTLED_DEAD;
		do
			event = pgpx_wire_next(wire, &msg);
		while (event == PGPX_EV_NOTICE || event == PGPX_EV_NOTIFICATION);

		if (event == PGPX_EV_READY)
		{
			if (pgpx_wire_at_boundary(wire))
				return PGPX_SETTLED;
			continue;
		}
		if (event != PGPX_EV_NEED_INPUT)
			return PGPX_SETTLED_DEAD;
		if (wire->phase == PGPX_WIRE_IDLE)
		{
			/* what a remote says that was asked nothing need not have an end */
			CHECK_FOR_INTERRUPTS();
			if (wire->bytes_in - start > IDLE_MOST)
				return PGPX_SETTLED_DEAD;
			if (n > 0 && full)
				continue;
			return pgpx_wire_at_boundary(wire) ? PGPX_SETTLED :
				PGPX_SETTLED_DEAD;
		}
		if (n > 0)
			continue;
		n = pgpx_kept_poll(lease->kept, lease->target->pool, &full);
		read = n != 0;
		if (!read &&
			!pgpx_session_wait(lease->kept, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_event, "PgpoolReset")))
			return PGPX_SETTLED_LATE;
	}
}

/*
 * Is there something to be taken away that the one before has left?  Our options
 * decide, and not only with on_transfer: while we waited for this connection those
 * under which it was left may have gone.
 */
static bool
must_reset(const PgpxLease *lease, const PgpxConn *conn)
{
	PgpxReset	reset = lease->target->opts.reset;

	if (!conn->dirty)
		return false;

	/* of a pool that several users share: another user's traces always go */
	if (conn->last_user != lease->user)
		return true;
	if (reset == PGPX_RESET_NEVER)
		return false;
	return reset == PGPX_RESET_ALWAYS || conn->last_pid != MyProcPid ||
		conn->last_procno != (int) MyProcNumber;
}

/* Has the checkout's own time run out, and not only that of one step? */
static bool
is_late(const PgpxCheckout *c)
{
	return c->deadline != 0 && pgpx_now() >= c->deadline;
}

/*
 * While we waited others have given the pool new options; the lease is to end
 * under those, if they are what the catalogs say to us: a transaction sees its own
 * changes before they are committed, and nobody else may follow it.  False: the
 * connection is of other options, or the catalogs lead to another pool by now.
 */
static bool
renew_target(PgpxCheckout *c, PgpxLease *lease)
{
	PgpxPool   *pool;
	bool		ours;

	if (!pgpx_checkout_refresh(c))
		return false;
	pgpx_target_pin(c->target);
	pgpx_target_unpin(lease->target);
	lease->target = c->target;
	pool = pgpx_pool_lock(c->target->pool, c->target->pool_id);
	if (pool == NULL)
		return false;
	ours = pgpx_pool_leads_to_locked(pool, &pgpx_conns[lease->conn],
									 &c->target->fingerprint);
	LWLockRelease(pool->lock);
	c->stale = !ours;
	return ours;
}

/*
 * Fetch the socket and see that it lives.  *touched tells that the stream may
 * have been read or written, so that nobody else can take it as it was.
 */
static PgpxSettled
settle_in(PgpxCheckout *c, PgpxLease *lease, volatile bool *touched)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxTime	deadline = 0;
	PgpxWire   *wire;
	PgpxSettled settled;

	/* what the granter could not send has left the connection in doubt */
	*touched = lease->offer == PGPX_OFFER_SENT ||
		lease->offer == PGPX_OFFER_FAILED;
	if (lease->offer == PGPX_OFFER_FAILED)
		return PGPX_SETTLED_DEAD;

	/*
	 * A pool that several users share stays as it is when one of them loses a right
	 * while waiting.  Nothing has been sent there: see pgpx_lease_offer.
	 */
	if (!OidIsValid(c->target->user))
	{
		AcceptInvalidationMessages();
		c->stale |= !c->target->valid;
	}

	/* what was sent has to be read where it was sent, under whatever options */
	if (c->stale && !renew_target(c, lease) &&
		lease->offer != PGPX_OFFER_SENT)
		return PGPX_SETTLED_DEAD;

	lease->kept = pgpx_kept_find(lease->conn, lease->generation);
	if (lease->kept == NULL)
	{
		PgpxFetch	fetch;

		deadline = step_deadline(c, lease->offer == PGPX_OFFER_SENT);
		fetch = pgpx_kept_fetch(lease->target->pool, lease->conn,
								lease->generation,
								lease->id, deadline, &lease->kept);
		if (fetch != PGPX_FETCH_OK && lease->offer == PGPX_OFFER_SENT)
		{
			pgpx_lease_check_revoked(lease);
			pgpx_checkout_raise_lost(c);
		}
		if (fetch == PGPX_FETCH_GONE ||
			(fetch == PGPX_FETCH_TIMEOUT && !is_late(c)))
			return PGPX_SETTLED_DEAD;
		if (fetch == PGPX_FETCH_TIMEOUT)
			return PGPX_SETTLED_LATE;
	}

	lease->kept->leased = true;
	wire = &lease->kept->wire;
	*touched = true;
	if (lease->offer == PGPX_OFFER_SENT)
	{
		/* pgpx_run_read takes the answer */
		pgpx_wire_begin_sent(wire, lease->id, conn->reset_by,
							 pgpx_ticket_mine()->offer_reset,
							 pgpx_ticket_mine()->offer_len);
		return PGPX_SETTLED;
	}
	pgpx_wire_begin_reset(wire, lease->id, conn->reset_by, conn->owed);
	if (conn->owed > 0 && deadline == 0)
		deadline = step_deadline(c, false);
	settled = look(lease, deadline);
	if (settled == PGPX_SETTLED_LATE && !is_late(c))
		return PGPX_SETTLED_DEAD;	/* the reset took longer than operation_timeout */
	if (settled == PGPX_SETTLED_LATE && wire->bytes_in == 0)
		*touched = false;
	if (settled != PGPX_SETTLED || !must_reset(lease, conn))
		return settled;

	deadline = step_deadline(c, false);
	lease->usage.resets++;
	pgpx_wire_send_reset(wire, lease->target->reset_command,
						 lease->target->start_commands, false);
	if (!pgpx_lease_flush(lease, deadline))
		return PGPX_SETTLED_DEAD;
	settled = look(lease, deadline);
	if (settled == PGPX_SETTLED_LATE && !is_late(c))
		return PGPX_SETTLED_DEAD;
	return settled;
}

/*
 * The common case, in which nothing can be thrown: a socket that is here, owed
 * nothing, with nothing in it.  One system call.
 */
bool
pgpx_checkout_settle_quickly(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxKept   *kept;
	bool		full;

	if (conn->owed > 0 || conn->dirty)
		return false;
	kept = pgpx_kept_find(lease->conn, lease->generation);
	if (kept == NULL)
		return false;
	lease->kept = kept;
	kept->leased = true;
	pgpx_wire_begin(&kept->wire, lease->id);
	if (pgpx_session_quiet(kept))
		return kept->wire.in_start == kept->wire.in_end;
	return kept->wire.in != NULL && pgpx_wire_fill(&kept->wire, &full) == 0;
}

PgpxSettled
pgpx_checkout_settle(PgpxCheckout *c, PgpxLease *lease)
{
	volatile bool touched = false;
	PgpxSettled settled;

	PG_TRY();
	{
		settled = settle_in(c, lease, &touched);
	}
	PG_CATCH();
	{
		unsettle(lease, touched ? PGPX_GIVE_CLOSE : PGPX_GIVE_AS_IT_WAS);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (settled != PGPX_SETTLED)
	{
		/* one that leads elsewhere may be right for who waits behind us */
		bool		fit = settled == PGPX_SETTLED_LATE || c->stale;

		unsettle(lease, fit && !touched ? PGPX_GIVE_AS_IT_WAS :
				 PGPX_GIVE_CLOSE);
	}
	return settled;
}
