/*-------------------------------------------------------------------------
 *
 * lease_return.c
 *	  The return of a lease: reset the connection and release it.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease_return.h"

#include "session/hand_over.h"
#include "session/lease_stream.h"

/*
 * Limit on the answer to discard at checkin.  Beyond it the connection is
 * closed instead.
 */
#define IN_FLIGHT_DROP_MAX (1024 * 1024)

/* Does the lease have a stream that is still usable? */
static bool
is_usable(const PgpxLease *lease)
{
	return lease->broken == NULL &&
		lease->sock->wire.phase != PGPX_WIRE_BROKEN;
}

/*
 * Clear the statement in flight of a lease that is about to be returned.  If
 * its answer has arrived, drain it.  Otherwise raise a WARNING; the caller will
 * have the statement cancelled and the connection closed.
 */
static void
drop_in_flight(PgpxLease *lease)
{
	pgpx_lease_clear_in_flight(lease);
	if (!pgpx_stream_drain(lease, IN_FLIGHT_DROP_MAX, pgpx_now(), false))
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with a statement in flight, which is cancelled",
						lease->id)));
}

/*
 * Does the reset fit into the output buffer without allocating memory?  This
 * matters in callbacks, which must not throw.
 */
static bool
reset_fits(const PgpxLease *lease)
{
	const PgpxWire *wire = &lease->sock->wire;
	size_t		size = pgpx_wire_reset_size(lease->spec->reset_command,
											lease->spec->start_commands);

	return wire->out.data != NULL && (size_t) wire->out.maxlen > size;
}

/* Does the reset certainly restore the value of every pinned parameter? */
static bool
reset_restores(const PgpxLease *lease)
{
	return pgpx_wire_params_pinned(&lease->sock->wire) ||
		lease->spec->discards_all;
}

/*
 * Determine the release action for the connection, and send the reset if it
 * needs one now.
 */
static PgpxReleaseAction
choose_release_action(PgpxLease *lease, PgpxEnd end, bool may_wait,
					  int *unread_reset, PgpxCloseReason *reason)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxServerSpec *spec = lease->spec;
	PgpxWire   *wire = &lease->sock->wire;
	bool		usable = is_usable(lease);
	bool		in_transaction = usable && wire->tx != 'I';
	const char *reset_command = spec->reset_command;
	const char *start_commands = spec->start_commands;

	if (usable && wire->phase != PGPX_WIRE_IDLE)
	{
		*reason = end == PGPX_END_DISCARD ? PGPX_CLOSE_DISCARDED :
											PGPX_CLOSE_HOLDER_DIED;
		return PGPX_RELEASE_CANCEL_CLOSE;
	}
	if (end == PGPX_END_DISCARD)
	{
		*reason = PGPX_CLOSE_DISCARDED;
		return PGPX_RELEASE_CLOSE;
	}
	if (usable && !pgpx_wire_at_boundary(wire))
	{
		/* part of a notice, for example: no statement is running */
		*reason = in_transaction ? PGPX_CLOSE_HOLDER_DIED : PGPX_CLOSE_BROKEN;
		return PGPX_RELEASE_CLOSE;
	}
	if (!usable || !reset_restores(lease))
	{
		*reason = usable || lease->not_run ? PGPX_CLOSE_RESET :
											 PGPX_CLOSE_BROKEN;
		return PGPX_RELEASE_CLOSE;
	}

	/*
	 * The remote may have become a standby.  A new connection selects the
	 * host again (host name lookup, list of hosts, target_session_attrs).
	 */
	if (lease->read_only)
	{
		*reason = PGPX_CLOSE_BROKEN;
		return PGPX_RELEASE_CLOSE;
	}
	if (in_transaction &&
		(pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE ||
		 (!may_wait && !reset_fits(lease))))
	{
		/* no ROLLBACK can be sent */
		*reason = PGPX_CLOSE_HOLDER_DIED;
		return PGPX_RELEASE_CLOSE;
	}
	if (pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE)
		return PGPX_RELEASE_CANCEL;
	if (!lease->sent)
		return PGPX_RELEASE_CLEAN;
	if (spec->opts.reset != PGPX_RESET_ALWAYS)
	{
		if (!in_transaction)
			return pgpx_wire_params_pinned(wire) ?
				PGPX_RELEASE_DIRTY : PGPX_RELEASE_RESET;

		/*
		 * A ROLLBACK may restore parameters to values that are not known
		 * here.  So omit the reset only if they are pinned now.
		 */
		if (spec->opts.reset == PGPX_RESET_NEVER &&
			pgpx_wire_params_pinned(wire))
			reset_command = start_commands = "";
	}
	if (!may_wait && !reset_fits(lease))
		return PGPX_RELEASE_RESET;

	if (reset_command[0] != '\0')
		lease->usage.resets++;
	*unread_reset = pgpx_wire_send_reset(wire, lease->commit, reset_command,
										 start_commands, true);
	if (pgpx_wire_flush(wire) == 1)
		return *unread_reset == PGPX_SENT_ROLLBACK ||
				*unread_reset == PGPX_SENT_COMMIT ?
			PGPX_RELEASE_ROLLED_BACK :
			PGPX_RELEASE_RESET_PENDING;

	/* a partially sent reset is not usable */
	pgpx_wire_break(wire, "the reset could not be sent");
	*reason = PGPX_CLOSE_BROKEN;
	return PGPX_RELEASE_CLOSE;
}

void
pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_wait)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCachedSocket *sock = lease->sock;
	PgpxReleaseAction action;
	PgpxCloseReason reason = PGPX_CLOSE_NONE;
	int			unread_reset = 0;

	Assert(lease->id != 0);
	if (pg_atomic_read_u64(&conn->lease_id) != lease->id)
	{
		/* the lease was revoked; only our descriptor of the socket is left */
		pgpx_lease_forget(lease);
		if (sock != NULL)
			pgpx_socket_cache_drop(sock);
		return;
	}

	if (sock == NULL)
	{
		/* the process is exiting, and had waited for the socket */
		if (lease->pending_state == PGPX_PENDING_SENT)
			pgpx_pool_release(conn, lease->id, PGPX_END_RECLAIMED,
							  PGPX_RELEASE_CANCEL_CLOSE, 0,
							  PGPX_CLOSE_HOLDER_DIED,
							  NULL);
		else
			pgpx_pool_release(conn, lease->id, PGPX_END_RETRIED,
							  PGPX_RELEASE_UNCHANGED, 0, PGPX_CLOSE_NONE, NULL);
		pgpx_lease_forget(lease);
		return;
	}

	if (may_wait && end == PGPX_END_CHECKIN && lease->broken == NULL &&
		lease->in_flight != NULL)
		drop_in_flight(lease);
	if (may_wait && end == PGPX_END_CHECKIN && is_usable(lease) &&
		sock->wire.tx != 'I')
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with an open remote transaction, which is rolled back",
						lease->id)));

	if (end == PGPX_END_CHECKIN && pgpx_hand_over_lease(lease))
		return;
	action = choose_release_action(lease, end, may_wait, &unread_reset,
								   &reason);
	lease->usage.bytes_received = sock->wire.bytes_in;
	lease->usage.bytes_sent = sock->wire.bytes_out;

	lease->spec->last_conn = lease->conn;
	lease->spec->last_conn_generation = lease->generation;
	pgpx_pool_release(conn, lease->id, end, action, unread_reset, reason,
					  &lease->usage);
	pgpx_lease_forget(lease);
	if (action == PGPX_RELEASE_CLOSE || action == PGPX_RELEASE_CANCEL_CLOSE)
		pgpx_socket_cache_drop(sock);
}

int
pgpx_lease_return_all(void)
{
	dlist_mutable_iter iter;
	dlist_iter	poll;
	int			n = 0;

	dlist_foreach(poll, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, poll.cur);

		if (lease->scope != PGPX_SCOPE_TABLE)
			pgpx_lease_check_not_in_use(lease);
	}

	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope == PGPX_SCOPE_TABLE)
			continue;
		pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
		n++;
	}
	return n;
}
