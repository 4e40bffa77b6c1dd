/*-------------------------------------------------------------------------
 *
 * lease_return.c
 *	  The return of a lease: at checkin, or with the transaction,
 *	  subtransaction or session that owns it.
 *
 * The connection is reset and released, or handed over to a waiter together
 * with the waiter's statement.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "access/xact.h"
#include "storage/ipc.h"

#include "base/debug_point.h"
#include "shared/lock_hooks.h"
#include "session/statement_text.h"

/* ------------------------------------------------------------------------
 * The pipelined hand-over of a connection to a waiter
 *
 * A pipelined hand-over saves a round trip: the session that returns a
 * connection sends the next session's statement together with the reset.
 *
 * A waiter that will run a single statement stores the messages of the
 * statement in shared memory, next to its queue entry.  A session that returns
 * a connection and finds such a waiter at the head of the queue grants it the
 * connection and sends, in one system call,
 *
 *		token Parse Bind Execute (DISCARD ALL)  Parse Bind Describe Execute Sync
 *
 * For a foreign table, the messages of the waiter begin with the commands of
 * its remote transaction.
 *
 * The session wakes the waiter after it has sent the messages.  So the remote
 * works while the waiter is being scheduled, and usually the waiter's first
 * recv() returns the rows.  The remote, too, is woken once instead of twice.
 *
 * Rules that make it safe:
 * - There is one Sync.  If the reset fails, the remote skips all messages up to
 *   the Sync, so no statement ever runs in an unclean session.
 *   The statement is known not to have run, and the waiter waits again at the
 *   head of the queue.
 * - The reset command must be exactly DISCARD ALL, without start commands.  It
 *   commits inside Execute, so an error of the statement does not undo it.
 *   The error would undo any other reset command.  If the remote is too old to
 *   commit DISCARD ALL inside Execute, can_pipeline is unset.
 * - The stream must be at a message boundary, with nothing unread.  No
 *   cancel may be under way, and there must be no reason to close the
 *   connection.
 * - The answer must begin with the echo of the returned lease's token.
 *   Otherwise it is the answer to something else, and the connection is
 *   closed (wire.h).
 * - Up to the CommandComplete of the reset, notices, notifications and
 *   parameters are from the returned lease, and are dropped (wire.c).
 * - From the grant to pgpx_pending_statement_record the sender cannot be
 *   interrupted.  A waiter that leaves the queue in that time waits for
 *   the sender, for up to a second.  After that it leaves as if the statement
 *   had been sent (next rule).  If the statement is sent even later, the
 *   connection is already being closed.
 * - If a waiter leaves after its statement was sent, the worker cancels the
 *   statement and closes the connection.
 * ------------------------------------------------------------------------
 */

void
pgpx_hand_over_prepare(const PgpxServerSpec *spec,
					   const PgpxPendingStatement *pending)
{
	const PgpxStatement *statement = pending->statement;
	PgpxPipeline alone = pgpx_wire_pipeline_of(statement, 0, NULL);
	StringInfoData buf;
	size_t		len = strlen(statement->sql);

	for (int i = 0; i < statement->nparams && len < PGPX_PENDING_MAX; i++)
		if (statement->values[i] != NULL)
			len += strlen(statement->values[i]);

	/*
	 * In the pool of a PUBLIC mapping nothing is sent before the waiter runs,
	 * because the privileges of its user are checked again after the grant, and
	 * the connection may need a reset after its use by another user.
	 */
	if (!OidIsValid(spec->user))
		return;
	if (pending->pipeline != NULL && !pgpx_server_spec_can_keep_settings(spec))
		return;
	if (!pending->single ||
		!pgpx_wire_can_send_before_answer(pgpx_server_spec_reset(spec)) ||
		len >= PGPX_PENDING_MAX || statement->nparams >= PGPX_PENDING_MAX)
		return;
	initStringInfo(&buf);
	pgpx_wire_put_pipeline(&buf, pending->pipeline != NULL ?
						   pending->pipeline : &alone);
	pgpx_pending_statement_set(buf.data, buf.len);
	pfree(buf.data);
}

/*
 * Return whether the connection can be handed over together with a statement:
 * its stream is at a message boundary, has no pending input, and needs nothing
 * but the reset of a hand-over.
 */
static bool
is_ready_for_hand_over(const PgpxLease *lease)
{
	const PgpxConn *conn = &pgpx_conns[lease->conn];
	const PgpxWire *wire = &lease->sock->wire;
	bool		reset = lease->spec->opts.reset != PGPX_RESET_NEVER;
	char		byte;

	if (lease->broken != NULL || lease->read_only || !lease->sent ||
		!lease->spec->valid || wire->reset_behind != 0 ||
		!pgpx_wire_is_at_boundary(wire) ||
		wire->tx != 'I' ||
		!pgpx_wire_can_send_before_answer(pgpx_server_spec_reset(lease->spec)))
		return false;
	if (!reset ? !pgpx_wire_has_pinned_params(wire) : !conn->can_pipeline)
		return false;
	return recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
		(errno == EAGAIN || errno == EWOULDBLOCK);
}

/*
 * Send the prefix (token, reset) and the pending statement in one system call
 * without blocking.  Return FAILED if no byte was sent, else SENT.
 * After a partial send the socket is shut down.
 */
static PgpxPendingState
send_pending(int fd, uint64 lease_id, bool reset, PgpxHandOver *hand_over)
{
	char		prefix[PGPX_WIRE_PREFIX_MAX];
	struct iovec parts[2];
	struct msghdr msg = {.msg_iov = parts, .msg_iovlen = lengthof(parts)};
	ssize_t		sent;

	parts[0].iov_base = prefix;
	parts[0].iov_len = pgpx_wire_put_prefix(prefix, lease_id, reset);
	parts[1].iov_base = hand_over->messages;
	parts[1].iov_len = hand_over->len;
	do
		sent = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent <= 0)
		return PGPX_PENDING_FAILED;
	if ((size_t) sent < parts[0].iov_len + parts[1].iov_len)
		(void) shutdown(fd, SHUT_RDWR);
	return PGPX_PENDING_SENT;
}

/*
 * End a lease by a pipelined hand-over: grant the connection to the first
 * waiter, and send the reset and the waiter's pending statement.
 *
 * Return false if that is not possible.  Nothing has been done then, and the
 * caller must return the lease as usual.  Do not wait, and raise no error.
 */
static bool
hand_over_lease(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	const volatile PgpxPool *pool = &pgpx_pools[lease->spec->pool];
	bool		reset = lease->spec->opts.reset != PGPX_RESET_NEVER;
	PgpxUsage	usage;
	PgpxHandOver hand_over;
	PgpxPendingState sent;

	/* without the lock: a stale value only costs a round trip */
	if (pool->nwaiting == 0 || !is_ready_for_hand_over(lease))
		return false;

	usage = lease->usage;
	usage.bytes_received = lease->sock->wire.bytes_in;
	usage.bytes_sent = lease->sock->wire.bytes_out;
	if (reset)
		usage.resets++;
	if (!pgpx_pool_hand_over(conn, lease->id, &lease->spec->fingerprint, reset,
							 &usage, &hand_over))
		return false;
	PGPX_DEBUG_POINT("hand_over");
	sent = send_pending(lease->sock->fd, lease->id, reset, &hand_over);

	/* the statement may contain private values of the waiter's user */
	explicit_bzero(hand_over.messages, hand_over.len);

	/* the waiter does not read before the statement is marked as sent */
	PGPX_DEBUG_POINT("hand_over_sent");
	if (pgpx_pending_statement_record(&hand_over, sent))
		pgpx_process_wake(PGPX_WAITER_INDEX(hand_over.waiter));
	pgpx_lease_forget(lease);
	return true;
}

/* ------------------------------------------------------------------------
 * The reset behind the statement
 *
 * A call on a pool sends one statement on its lease, and COMMIT is the last
 * statement of foreign tables.  The reset does not depend on the answer, so the
 * session sends both in one system call.  The remote is woken once, and resets
 * its session while this session processes the answer.
 *
 * Rules:
 * - The text must be COMMIT, or a single statement that cannot leave a
 *   transaction open, or start a COPY.
 * - The reset must be DISCARD ALL without start commands.
 * - The statement must not be one that may have to be repeated.
 * - If a session waits for a connection, no reset is sent here, so that it can
 *   be sent ahead of that session's statement (see above).
 * - The next user of the connection reads the answer to the reset, as after a
 *   checkin.  If this session has received the beginning of that answer, it
 *   must read it to the end, or close the connection.
 * - A cancel request could cancel the reset.  So no cancel is requested once
 *   the statement has ended, and after a cancel the connection is closed.
 * ------------------------------------------------------------------------
 */

/*
 * The messages of the statement and the reset fit into the receive buffer of a
 * backend (8192 bytes).  A longer statement may not be sent in one system
 * call, and classifying its text would take noticeable time.
 */
#define RESET_BEHIND_MAX (8192 - PGPX_WIRE_RESET_MAX)

/* Limits for the rest of an answer to a reset that was partly received. */
#define RESET_REST_MAX (1024 * 1024)
#define RESET_REST_US (50 * 1000)

void
pgpx_lease_send_reset_behind(PgpxLease *lease, const PgpxStatement *statement,
							 bool several)
{
	const PgpxServerSpec *spec = lease->spec;
	PgpxWire   *wire = &lease->sock->wire;
	const volatile PgpxPool *pool = &pgpx_pools[spec->pool];

	/* "nwaiting" without the lock: a stale value only costs time */
	if (pgpx_server_spec_reset(spec) == PGPX_SENT_DISCARD_ALL &&
		wire->out.len <= RESET_BEHIND_MAX && pool->nwaiting == 0 &&
		(statement == NULL ||
		 pgpx_statement_can_precede_reset(statement->sql,
										  !several || statement->nparams > 0)))
		pgpx_wire_send_reset_behind(wire);
}

/*
 * Read the rest of the answer to the reset behind the statement, if a part of
 * it was received.  Set *unread_reset to the PGPX_SENT_* bits of the reset if
 * nothing was received, and to 0 if the answer was read.
 *
 * A remote usually sends all of the answer at once, so wait for a moment only.
 * Return false if the reset has failed, or if its answer is not complete then.
 */
static bool
settle_reset_behind(PgpxLease *lease, int *unread_reset)
{
	PgpxWire   *wire = &lease->sock->wire;

	*unread_reset = 0;
	if (wire->phase == PGPX_WIRE_TOKEN_PARSE && wire->in_start == wire->in_end)
	{
		*unread_reset = wire->reset_behind;
		return true;
	}
	if (wire->phase != PGPX_WIRE_IDLE &&
		!pgpx_stream_drain(lease, RESET_REST_MAX, pgpx_now() + RESET_REST_US,
						   true))
		return false;

	/* a part of a notice may have followed */
	return pgpx_wire_is_at_boundary(wire);
}

/* ------------------------------------------------------------------------
 * The return of a lease
 *
 * When a command that ends a lease returns, the remote must have released the
 * locks of the lease.  So the return waits for the end of a statement, which it
 * cancels, and for the answer to the ROLLBACK of an open transaction.
 *
 * The wait ends at operation_timeout.  It also ends if an interrupt is pending,
 * because a callback must not process it.  It does not take place if the
 * process exits, or if the lease is that of a call on a pool: the connection of
 * its statement is closed.
 * ------------------------------------------------------------------------
 */

/*
 * Limit on the answer that a checkin discards.  If the answer has more bytes,
 * the connection is closed instead.
 */
#define IN_FLIGHT_DROP_MAX (1024 * 1024)

/* Return whether the lease and its stream are still usable. */
static bool
is_usable(const PgpxLease *lease)
{
	return lease->broken == NULL &&
		lease->sock->wire.phase != PGPX_WIRE_BROKEN;
}

/*
 * Clear the statement in flight of a lease that is about to be returned.  If
 * its answer has arrived, drain it.  Otherwise raise a WARNING; the caller will
 * have the statement cancelled.
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

/* Return the number of bytes that the reset needs in the output buffer. */
static size_t
reset_size(const PgpxLease *lease)
{
	return PGPX_WIRE_RESET_MAX + strlen(lease->spec->reset_command) +
		strlen(lease->spec->start_commands);
}

void
pgpx_lease_reserve_reset(PgpxLease *lease)
{
	enlargeStringInfo(pgpx_wire_output(&lease->sock->wire),
					  (int) reset_size(lease));
}

/*
 * Return whether the reset fits into the output buffer without allocating
 * memory.  This matters in callbacks, which must not raise errors.
 */
static bool
can_buffer_reset(const PgpxLease *lease)
{
	const PgpxWire *wire = &lease->sock->wire;

	return wire->out.data != NULL &&
		(size_t) wire->out.maxlen > reset_size(lease);
}

/*
 * Return whether the parameters that decoding depends on certainly have their
 * start values after the reset: they have them now, or the reset restores them.
 */
static bool
has_start_params_after_reset(const PgpxLease *lease)
{
	return pgpx_wire_has_pinned_params(&lease->sock->wire) ||
		lease->spec->discards_all;
}

void
pgpx_lease_end_statement(PgpxLease *lease, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxWire   *wire = &lease->sock->wire;
	PgpxTime	pause = PGPX_CANCEL_AGAIN_US;
	uint64		start = wire->bytes_in;

	HOLD_INTERRUPTS();
	while (is_usable(lease) && !pgpx_wire_statement_ended(wire) &&
		   wire->bytes_in - start < PGPX_CANCEL_BYTES &&
		   pgpx_now() < deadline && !pgpx_interrupt_pending())
	{
		uint64		seen = wire->bytes_in;
		PgpxTime	until = Min(deadline, pgpx_now() + pause);

		/* a cancel that arrives before its statement has no effect */
		pgpx_stream_cancel(lease);

		/*
		 * without memory for a long message, or if the output cannot be
		 * flushed, it does not wait: another attempt would fail at once, too
		 */
		if (!pgpx_stream_drain(lease, PGPX_CANCEL_BYTES - (seen - start), until,
							   true) &&
			wire->bytes_in == seen && pgpx_now() < until)
			break;
		pause = pgpx_cancel_next_pause(pause);
	}
	while (is_usable(lease) && pgpx_wire_statement_ended(wire) &&
		   pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE &&
		   pg_atomic_read_u64(&conn->lease_id) == lease->id &&
		   !pgpx_interrupt_pending() &&
		   pgpx_session_wait_latch(deadline,
								   pgpx_wait_event(&wait_event, "PgpoolDrain")))
		;						/* else it could hit the ROLLBACK */
	RESUME_INTERRUPTS();

	/* the waits may have reset the latch of a pending interrupt */
	SetLatch(MyLatch);
}

/*
 * Read the answer to the reset of an open transaction.  Set *unread_reset to 0
 * if it was read, and leave it if nothing of it was received in time.  Return
 * false if the reset has failed, or if a part of its answer was received.
 */
static bool
await_reset(PgpxLease *lease, PgpxTime deadline, int *unread_reset)
{
	PgpxWire   *wire = &lease->sock->wire;

	if (proc_exit_inprogress)
		return true;
	PGPX_DEBUG_POINT("rollback_sent");
	if (pgpx_stream_drain(lease, RESET_REST_MAX, deadline, true))
	{
		*unread_reset = 0;
		return true;
	}
	return wire->phase == PGPX_WIRE_TOKEN_PARSE &&
		wire->in_start == wire->in_end && pgpx_now() < deadline;
}

/*
 * Choose the release action for the connection.  If it needs a reset now, send
 * it, and read the answer if a transaction is open.  Set *unread_reset to the
 * PGPX_SENT_* bits of what was sent and not answered, and *reason if the
 * connection is to be closed.
 */
static PgpxReleaseAction
choose_release_action(PgpxLease *lease, PgpxEnd end, bool may_raise,
					  PgpxTime deadline, int *unread_reset,
					  PgpxCloseReason *reason)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxServerSpec *spec = lease->spec;
	PgpxWire   *wire = &lease->sock->wire;
	bool		usable = is_usable(lease);
	bool		in_transaction = usable && wire->tx != 'I';
	const char *reset_command = spec->reset_command;
	const char *start_commands = spec->start_commands;
	int			sent;

	if (wire->reset_behind != 0)
		lease->usage.resets++;
	if (usable && !pgpx_wire_statement_ended(wire))
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
	if (usable && wire->reset_behind == 0 && !pgpx_wire_is_at_boundary(wire))
	{
		/*
		 * no statement is running, but part of a notice is unread, for example
		 */
		*reason = in_transaction ? PGPX_CLOSE_HOLDER_DIED : PGPX_CLOSE_BROKEN;
		return PGPX_RELEASE_CLOSE;
	}
	if (!usable || !has_start_params_after_reset(lease))
	{
		*reason = usable || lease->not_run ||
			pgpx_wire_is_at_reset_behind(wire) ? PGPX_CLOSE_RESET :
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
	if (wire->reset_behind != 0)
	{
		if (pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_NONE &&
			settle_reset_behind(lease, unread_reset))
			return PGPX_RELEASE_RESET_PENDING;
		*reason = PGPX_CLOSE_RESET;

		/*
		 * An answer that has begun means that the remote executes the reset,
		 * which ends without a cancel.  Close at once, so that the slot is free
		 * even if the rest of the answer never arrives.
		 */
		return wire->phase == PGPX_WIRE_TOKEN_PARSE &&
			wire->in_start == wire->in_end && !wire->eof ?
			PGPX_RELEASE_CANCEL_CLOSE : PGPX_RELEASE_CLOSE;
	}
	if (in_transaction &&
		(pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE ||
		 (!may_raise && !can_buffer_reset(lease))))
	{
		/* no ROLLBACK can be sent */
		*reason = PGPX_CLOSE_HOLDER_DIED;
		return PGPX_RELEASE_CLOSE;
	}
	if (pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE)
		return PGPX_RELEASE_CANCEL;
	if (!lease->sent)
		return PGPX_RELEASE_CLEAN;

	/*
	 * With reset "never", send nothing but the ROLLBACK of an open transaction.
	 * If the parameters that decoding depends on have other values than at the
	 * start, a reset restores them.
	 */
	if (spec->opts.reset == PGPX_RESET_NEVER &&
		pgpx_wire_has_pinned_params(wire))
	{
		if (!in_transaction)
			return PGPX_RELEASE_DIRTY;
		reset_command = start_commands = "";
	}
	if (!may_raise && !can_buffer_reset(lease))
		return PGPX_RELEASE_RESET;

	if (reset_command[0] != '\0')
		lease->usage.resets++;
	sent = pgpx_wire_send_reset(wire, reset_command, start_commands, true);
	if (pgpx_wire_flush(wire) != 1)
	{
		/* a part of the reset may have been sent */
		pgpx_wire_break(wire, "the reset could not be sent");
		*reason = PGPX_CLOSE_BROKEN;
		return PGPX_RELEASE_CLOSE;
	}
	*unread_reset = sent;
	if (in_transaction && !await_reset(lease, deadline, unread_reset))
	{
		*reason = PGPX_CLOSE_RESET;

		/* the remote may still execute it */
		return pgpx_wire_is_in_reset(wire) && !wire->eof ?
			PGPX_RELEASE_CANCEL_CLOSE : PGPX_RELEASE_CLOSE;
	}
	return sent == PGPX_SENT_ROLLBACK ? PGPX_RELEASE_DIRTY :
		PGPX_RELEASE_RESET_PENDING;
}

/* when the returns of several leases have begun; 0: each begins by itself */
static PgpxTime returns_begun = 0;

void
pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_raise)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCachedSocket *sock = lease->sock;
	PgpxReleaseAction action;
	PgpxCloseReason reason = PGPX_CLOSE_NONE;
	int			unread_reset = 0;
	bool		reports = may_raise && end == PGPX_END_CHECKIN;
	PgpxTime	deadline;

	Assert(lease->id != 0);
	if (pg_atomic_read_u64(&conn->lease_id) != lease->id)
	{
		/* the lease was revoked: only our descriptor of the socket is left */
		pgpx_lease_forget(lease);
		if (sock != NULL)
			pgpx_socket_cache_drop(sock);
		return;
	}

	if (sock == NULL)
	{
		/* the process exits while it waits for the socket */
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

	if (reports && lease->broken == NULL && lease->in_flight != NULL)
		drop_in_flight(lease);
	if (reports && is_usable(lease) && sock->wire.tx != 'I')
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with an open remote transaction, which is rolled back",
						lease->id)));

	lease->spec->last_conn = lease->conn;
	lease->spec->last_conn_generation = lease->generation;
	if (end == PGPX_END_CHECKIN && hand_over_lease(lease))
		return;
	deadline = (returns_begun != 0 ? returns_begun : pgpx_now()) +
		lease->spec->opts.operation_timeout * 1000;
	if (end == PGPX_END_CHECKIN && lease->scope != PGPX_SCOPE_CALL &&
		!proc_exit_inprogress && is_usable(lease) &&
		(!pgpx_wire_statement_ended(&sock->wire) || sock->wire.tx != 'I'))
		pgpx_lease_end_statement(lease, deadline);
	action = choose_release_action(lease, end, may_raise, deadline,
								   &unread_reset, &reason);
	if (sock->wire.reset_error[0] != '\0')
		pgpx_pool_report_reset(&pgpx_pools[lease->spec->pool], conn,
							   sock->wire.reset_error);
	lease->usage.bytes_received = sock->wire.bytes_in;
	lease->usage.bytes_sent = sock->wire.bytes_out;
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
	dlist_iter	in_use_iter;
	int			n = 0;

	dlist_foreach(in_use_iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, in_use_iter.cur);

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

/* ------------------------------------------------------------------------
 * Ending leases with their transaction, subtransaction or session
 *
 * A lease ends with its scope: at checkin, at the end of the transaction
 * or subtransaction that owns it, at the end of the call, and at the
 * latest with the session.  Abort and exit callbacks must not raise errors.
 * Exit callbacks must not wait.  If the stream of a connection is at a message
 * boundary, the callbacks release it as a checkin does.  Otherwise the worker
 * cancels its statement and closes it.
 *
 * At process exit ShutdownPostgres aborts the transaction in a
 * before_shmem_exit callback.  Our on_shmem_exit callback runs later and
 * ends the leases that remain.  The reverse order would be harmless too:
 * the abort would find an empty list.  Each of the two leaves the queue
 * before it ends a lease.
 * ------------------------------------------------------------------------
 */

void
pgpx_lease_check_commit(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);
		PgpxWire   *wire = &lease->sock->wire;

		if (lease->scope == PGPX_SCOPE_SESSION ||
			lease->scope == PGPX_SCOPE_TABLE)
			continue;

		/* if the remote work is already lost, the hints below do not help */
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

		/* a statement changes tx only when its answer is complete */
		if (wire->tx != 'I')
			ereport(ERROR,
					(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
					 errmsg("lease " UINT64_FORMAT " has an open remote transaction",
							lease->id),
					 errdetail("A lease acquired with checkout_xact ends with the local transaction, and its remote transaction would be rolled back."),
					 errhint("Commit or roll back on the lease before the local transaction ends.")));
	}
}

/*
 * End the leases of the transaction before COMMIT or PREPARE.  This is the last
 * point at which an error aborts the local transaction.  Foreign tables have
 * called pgpx_lease_check_commit already, before their first remote COMMIT.
 */
static void
before_commit(void)
{
	dlist_mutable_iter iter;

	pgpx_lease_check_commit();
	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope != PGPX_SCOPE_SESSION &&
			lease->scope != PGPX_SCOPE_TABLE)
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
}

/*
 * Leave the queue, and release a connection that was granted to the waiter.
 * Must be called before the leases are returned, because the process must not
 * hand over a lease to its own waiter.  The process is in the queue only if it
 * exits during a wait, because on an ERROR the checkout leaves the queue.
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
	returns_begun = pgpx_now();
	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope != PGPX_SCOPE_SESSION)
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
	returns_begun = 0;
}

void
pgpx_lease_at_xact(XactEvent event)
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

void
pgpx_lease_at_subxact(SubXactEvent event, SubTransactionId subid,
					  SubTransactionId parent)
{
	dlist_mutable_iter iter;

	if (dlist_is_empty(&pgpx_leases))
		return;
	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		leave_queue();
		returns_begun = pgpx_now();
	}
	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope == PGPX_SCOPE_SESSION ||
			lease->scope == PGPX_SCOPE_TABLE || lease->subid != subid)
			continue;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			lease->subid = parent;
		else
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
	returns_begun = 0;
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
	pgpx_lock_hooks->at_session_exit();
}

void
pgpx_session_register_exit(void)
{
	static bool registered = false;

	if (registered)
		return;
	on_shmem_exit(exit_callback, (Datum) 0);
	registered = true;
}
