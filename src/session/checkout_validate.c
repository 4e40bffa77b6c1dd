/*-------------------------------------------------------------------------
 *
 * checkout_validate.c
 *	  Checkout: validate the connection of a new lease.
 *
 * Runs in sessions only, without a lock.  The lease is in the session's list
 * already.  Validation fetches the socket, reads the answer to a pending reset,
 * and resets the connection if its session state requires that.
 *
 * On an error the connection is released before the error propagates:
 * unchanged if nothing can have been read or written, closed otherwise.
 *
 *-------------------------------------------------------------------------
 */
#include "session/checkout_validate.h"

#include "utils/inval.h"

#include "shared/registry.h"
#include "session/checkout_wait.h"
#include "session/lease_stream.h"

/*
 * Return the deadline for a step after the grant.  sent: the statement is
 * already running on the connection.
 */
static PgpxTime
step_deadline(const PgpxCheckout *c, bool sent)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	longest = now + c->spec->opts.operation_timeout * 1000;

	if (c->deadline == 0 || sent)
		return longest;
	return Min(longest, Max(c->deadline, now) + PGPX_CHECKOUT_GRACE_US);
}

/* Release a connection that could not be validated, and free the record. */
static void
undo_lease(PgpxLease *lease, PgpxReleaseAction action)
{
	PgpxCachedSocket *sock = lease->sock;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCloseReason reason = PGPX_CLOSE_BROKEN;

	if (action == PGPX_RELEASE_CLOSE && sock != NULL &&
		(conn->unread_reset > 0 || lease->usage.resets > 0))
	{
		reason = PGPX_CLOSE_RESET;

		/*
		 * the remote may still execute the reset, and would not notice that
		 * the connection is closed
		 */
		if (pgpx_wire_in_reset(&sock->wire) && !sock->wire.eof)
			action = PGPX_RELEASE_CANCEL_CLOSE;
	}
	if (action != PGPX_RELEASE_UNCHANGED &&
		lease->pending_state == PGPX_PENDING_SENT)
	{
		reason = PGPX_CLOSE_HOLDER_DIED;
		action = PGPX_RELEASE_CANCEL_CLOSE;
	}
	pgpx_pool_release(conn, lease->id, PGPX_END_RETRIED, action, 0, reason,
					  &lease->usage);
	pgpx_lease_forget(lease);
	if (sock != NULL && action != PGPX_RELEASE_UNCHANGED)
		pgpx_socket_cache_drop(sock);
}

/*
 * Limit on unsolicited input, because a remote that sends more may never stop.
 */
#define IDLE_MOST (4 * 1024 * 1024)

/*
 * Read pending input: the answer of a pending reset, or only messages that may
 * arrive at any time.  Anything else means that the connection is dead.
 */
static PgpxValidation
poll_socket(PgpxLease *lease, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxWire   *wire = &lease->sock->wire;
	bool		full;
	ssize_t		n = 0;
	uint64		start = wire->bytes_in;
	bool		read = false;	/* n is the result of polling: do not read */

	for (;;)
	{
		PgpxWireMessage msg;
		PgpxWireEvent event;

		if (!read)
			n = pgpx_wire_fill(wire, &full);
		read = false;
		if (n < 0)
			return PGPX_VALIDATION_DEAD;
		do
			event = pgpx_wire_next(wire, &msg);
		while (event == PGPX_EV_NOTICE || event == PGPX_EV_NOTIFICATION);

		if (event == PGPX_EV_READY)
		{
			if (pgpx_wire_at_boundary(wire))
				return PGPX_VALIDATION_OK;
			continue;
		}
		if (event != PGPX_EV_NEED_INPUT)
			return PGPX_VALIDATION_DEAD;
		if (wire->phase == PGPX_WIRE_IDLE)
		{
			/* unsolicited input may be endless */
			CHECK_FOR_INTERRUPTS();
			if (wire->bytes_in - start > IDLE_MOST)
				return PGPX_VALIDATION_DEAD;
			if (n > 0 && full)
				continue;
			return pgpx_wire_at_boundary(wire) ? PGPX_VALIDATION_OK :
				PGPX_VALIDATION_DEAD;
		}
		if (n > 0)
			continue;
		n = pgpx_socket_cache_poll(lease->sock, lease->spec->pool, &full);
		read = n != 0;
		if (!read &&
			!pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_event, "PgpoolReset")))
			return PGPX_VALIDATION_LATE;
	}
}

/*
 * Does the connection need a reset before it is used?  The options of this
 * session's spec decide.  The connection may have been released under other
 * options, which were changed during the wait.
 */
static bool
must_reset(const PgpxLease *lease, const PgpxConn *conn)
{
	PgpxReset	reset = lease->spec->opts.reset;

	if (!conn->dirty)
		return false;

	/* in a shared pool, always remove the state of another user */
	if (conn->last_user != lease->user)
		return true;
	if (reset == PGPX_RESET_NEVER)
		return false;
	return reset == PGPX_RESET_ALWAYS || conn->last_pid != MyProcPid ||
		conn->last_procno != (int) MyProcNumber;
}

/* Has the deadline of the checkout passed, rather than only that of a step? */
static bool
is_late(const PgpxCheckout *c)
{
	return c->deadline != 0 && pgpx_now() >= c->deadline;
}

/*
 * Read the catalogs again after the pool's options have changed, and move the
 * lease to the new spec.  Returns false if the connection was made with other
 * options than those of the new spec, or if that spec has another pool.
 *
 * The new spec may differ from the pool's options, because a transaction sees
 * its own catalog changes before they are committed.  No other session may use
 * such changes.
 */
static bool
renew_spec(PgpxCheckout *c, PgpxLease *lease)
{
	PgpxPool   *pool;
	bool		current;

	if (!pgpx_checkout_refresh(c))
		return false;
	pgpx_server_spec_pin(c->spec);
	pgpx_server_spec_unpin(lease->spec);
	lease->spec = c->spec;
	pool = pgpx_pool_lock(c->spec->pool, c->spec->pool_id);
	if (pool == NULL)
		return false;
	current = pgpx_conn_is_current_locked(pool, &pgpx_conns[lease->conn],
										  &c->spec->fingerprint);
	LWLockRelease(pool->lock);
	c->stale = !current;
	return current;
}

/*
 * Fetch the socket, validate the connection and reset it if necessary.  Sets
 * *touched if the stream may have been read or written.  The connection must
 * not be released unchanged in that case.
 */
static PgpxValidation
validate_and_reset(PgpxCheckout *c, PgpxLease *lease, volatile bool *touched)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxTime	deadline = 0;
	PgpxWire   *wire;
	PgpxValidation validation;

	/* after a failed hand-over the state of the connection is not known */
	*touched = lease->pending_state == PGPX_PENDING_SENT ||
		lease->pending_state == PGPX_PENDING_FAILED;
	if (lease->pending_state == PGPX_PENDING_FAILED)
		return PGPX_VALIDATION_DEAD;

	/*
	 * The pool of a PUBLIC mapping does not change when one of its users loses
	 * a right while waiting, so check again.  No statement was sent ahead in
	 * such a pool: see pgpx_hand_over_prepare.
	 */
	if (!OidIsValid(c->spec->user))
	{
		AcceptInvalidationMessages();
		c->stale |= !c->spec->valid;
	}

	/* the answer to a statement already sent must be read in any case */
	if (c->stale && !renew_spec(c, lease) &&
		lease->pending_state != PGPX_PENDING_SENT)
		return PGPX_VALIDATION_DEAD;

	lease->sock = pgpx_socket_cache_find(lease->conn, lease->generation);
	if (lease->sock == NULL)
	{
		PgpxFetch	fetch;

		deadline = step_deadline(c, lease->pending_state == PGPX_PENDING_SENT);
		fetch = pgpx_socket_cache_fetch(lease->spec->pool, lease->conn,
										lease->generation,
										lease->id, deadline, &lease->sock);
		if (fetch != PGPX_FETCH_OK && lease->pending_state == PGPX_PENDING_SENT)
		{
			pgpx_lease_check_revoked(lease);
			pgpx_checkout_raise_lost(c);
		}
		if (fetch == PGPX_FETCH_GONE ||
			(fetch == PGPX_FETCH_TIMEOUT && !is_late(c)))
			return PGPX_VALIDATION_DEAD;
		if (fetch == PGPX_FETCH_TIMEOUT)
			return PGPX_VALIDATION_LATE;
	}

	lease->sock->leased = true;
	wire = &lease->sock->wire;
	*touched = true;
	if (lease->pending_state == PGPX_PENDING_SENT)
	{
		/* pgpx_run_read reads the answer */
		pgpx_wire_begin_sent(wire, lease->id, conn->reset_by,
							 pgpx_my_waiter()->pending_reset,
							 pgpx_my_waiter()->pending_len);
		return PGPX_VALIDATION_OK;
	}
	pgpx_wire_begin_reset(wire, lease->id, conn->reset_by, conn->unread_reset);
	if (conn->unread_reset > 0 && deadline == 0)
		deadline = step_deadline(c, false);
	validation = poll_socket(lease, deadline);
	if (validation == PGPX_VALIDATION_LATE && !is_late(c))
		return PGPX_VALIDATION_DEAD;	/* the reset exceeded
										 * operation_timeout */
	if (validation == PGPX_VALIDATION_LATE && wire->bytes_in == 0)
		*touched = false;
	if (validation != PGPX_VALIDATION_OK || !must_reset(lease, conn))
		return validation;

	deadline = step_deadline(c, false);
	lease->usage.resets++;
	pgpx_wire_send_reset(wire, false, lease->spec->reset_command,
						 lease->spec->start_commands, false);
	if (!pgpx_stream_flush(lease, deadline))
		return PGPX_VALIDATION_DEAD;
	validation = poll_socket(lease, deadline);
	if (validation == PGPX_VALIDATION_LATE && !is_late(c))
		return PGPX_VALIDATION_DEAD;
	return validation;
}

/* Makes a single system call. */
bool
pgpx_checkout_validate_quickly(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCachedSocket *sock;
	bool		full;

	if (conn->unread_reset > 0 || conn->dirty)
		return false;
	sock = pgpx_socket_cache_find(lease->conn, lease->generation);
	if (sock == NULL)
		return false;
	lease->sock = sock;
	sock->leased = true;
	pgpx_wire_begin(&sock->wire, lease->id);
	if (pgpx_session_has_no_input(sock))
		return sock->wire.in_start == sock->wire.in_end;
	return sock->wire.in != NULL && pgpx_wire_fill(&sock->wire, &full) == 0;
}

PgpxValidation
pgpx_checkout_validate(PgpxCheckout *c, PgpxLease *lease)
{
	volatile bool touched = false;
	PgpxValidation validation;

	PG_TRY();
	{
		validation = validate_and_reset(c, lease, &touched);
	}
	PG_CATCH();
	{
		undo_lease(lease,
			touched ? PGPX_RELEASE_CLOSE : PGPX_RELEASE_UNCHANGED);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (validation != PGPX_VALIDATION_OK)
	{
		/* a connection made with other options may suit the next waiter */
		bool		fit = validation == PGPX_VALIDATION_LATE || c->stale;

		undo_lease(lease, fit && !touched ? PGPX_RELEASE_UNCHANGED :
				 PGPX_RELEASE_CLOSE);
	}
	return validation;
}
