/*-------------------------------------------------------------------------
 *
 * lease_return.c
 *	  The end of a lease: reset and release, or a pipelined hand-over to a
 *	  waiter.
 *
 * A pipelined hand-over saves a round trip: the session that returns a
 * connection sends the next session's statement together with the reset.
 *
 * A waiter that will run a single statement stores its messages in shared
 * memory, next to its queue entry.  A session that returns a connection
 * and finds such a waiter at the head of the queue grants it the
 * connection and sends, in one system call,
 *
 *		token Parse Bind Execute (DISCARD ALL)  Parse Bind Describe Execute Sync
 *
 * Only then it wakes the waiter.  The remote is already working while the
 * waiter is being scheduled; usually its first recv() returns the rows.
 * The remote, too, is woken once instead of twice.  Behind a relay the
 * wakeup is deferred: the worker wakes the waiter when the answer arrives.
 *
 * Rules that make it safe:
 * - There is one Sync.  If the reset fails, the server skips all messages
 *   up to the Sync, so no statement ever runs in an unclean session.  The
 *   statement is known not to have run, and its owner waits again at the
 *   head of the queue.
 * - The reset must be a literal DISCARD ALL without start commands.  It
 *   commits inside Execute; an error of the statement would undo any other
 *   reset.  (If the server is too old for that, no statement is sent
 *   ahead.  If it were undone all the same, the next reset would clean up,
 *   because the lease ends with its one statement.)
 * - The stream must be at a message boundary, with nothing unread.  No
 *   cancel may be under way, and there must be no reason to close the
 *   connection.
 * - The answer must begin with the echo of the returned lease's token.
 *   Otherwise it is the answer to something else, and the connection is
 *   closed (wire.h).
 * - Up to the CommandComplete of the reset, notices, notifications and
 *   parameters are from the previous lease, and are dropped (wire.c).
 * - From the grant to pgpx_pending_statement_sent the sender cannot be
 *   interrupted.  A waiter that leaves the queue waits for that, for up to
 *   a second.  After that it leaves as described in the next rule, and a
 *   statement sent later goes to a connection that is being closed.
 * - A waiter that leaves after the statement was sent leaves as in the
 *   middle of a statement: the worker cancels it and closes the
 *   connection.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease_return.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "storage/latch.h"
#include "utils/builtins.h"

#include "base/debug_point.h"
#include "values/binary_input.h"
#include "session/lease_stream.h"

/*
 * Limit on the answer to discard at checkin.  Beyond it the connection is
 * closed instead.
 */
#define IN_FLIGHT_DROP_MAX (1024 * 1024)

/* Does the lease have a stream that is still usable? */
static bool
in_step(const PgpxLease *lease)
{
	return lease->broken == NULL &&
		lease->sock->wire.phase != PGPX_WIRE_BROKEN;
}

/*
 * The lease is about to be returned with a statement in flight.  If its answer
 * has arrived, drain it.  Otherwise the statement will be cancelled and the
 * connection closed.
 */
static void
drop_in_flight(PgpxLease *lease)
{
	pgpx_lease_clear_in_flight(lease);
	if (!pgpx_lease_drain(lease, IN_FLIGHT_DROP_MAX, pgpx_now(), false))
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with a statement in flight, which is cancelled",
						lease->id)));
}

/*
 * Can the reset be added to the output buffer without allocating memory? In a
 * callback nothing may throw.
 */
static bool
reset_fits(const PgpxLease *lease)
{
	const PgpxWire *wire = &lease->sock->wire;
	size_t		size = pgpx_wire_reset_size(lease->spec->reset_command,
											lease->spec->start_commands);

	return wire->out.data != NULL && (size_t) wire->out.maxlen > size;
}

/* Is every pinned parameter certain to have its value after the reset? */
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
condition(PgpxLease *lease, PgpxEnd end, bool may_wait, int *unread_reset,
		  PgpxCloseReason *reason)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxServerSpec *spec = lease->spec;
	PgpxWire   *wire = &lease->sock->wire;
	bool		usable = in_step(lease);
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
	 * The remote may have become a standby.  A new connection is made to the
	 * server that names, hosts and target_session_attrs select now.
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

		/* the values that a ROLLBACK restores are not known */
		if (spec->opts.reset == PGPX_RESET_NEVER &&
			pgpx_wire_params_pinned(wire))
			reset_command = start_commands = "";
	}
	if (!may_wait && !reset_fits(lease))
		return PGPX_RELEASE_RESET;

	if (reset_command[0] != '\0')
		lease->usage.resets++;
	*unread_reset = pgpx_wire_send_reset(wire, reset_command, start_commands, true);
	if (pgpx_wire_flush(wire) == 1)
		return *unread_reset == PGPX_SENT_ROLLBACK ? PGPX_RELEASE_ROLLED_BACK :
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

	if (may_wait && end == PGPX_END_CHECKIN && lease->broken == NULL &&
		lease->in_flight != NULL)
		drop_in_flight(lease);
	if (may_wait && end == PGPX_END_CHECKIN && in_step(lease) &&
		sock->wire.tx != 'I')
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with an open remote transaction, which is rolled back",
						lease->id)));

	if (end == PGPX_END_CHECKIN && pgpx_lease_hand_over(lease))
		return;
	action = condition(lease, end, may_wait, &unread_reset, &reason);
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

/*
 * Do the options allow a reset to be sent ahead of a statement, or need none?
 */
static bool
is_plain(const PgpxServerSpec *spec)
{
	return spec->opts.reset == PGPX_RESET_NEVER ||
		(spec->start_commands[0] == '\0' && spec->discards_all);
}

void
pgpx_lease_set_pending(const PgpxServerSpec *spec,
					   const PgpxPendingStatement *pending)
{
	const PgpxStatement *statement = pending->statement;
	int16		formats[PGPX_FORMATS_COLUMNS];
	PgpxFormatsKey key;
	StringInfoData buf;
	size_t		len = strlen(statement->sql);

	for (int i = 0; i < statement->nparams && len < PGPX_PENDING_MAX; i++)
		if (statement->values[i] != NULL)
			len += strlen(statement->values[i]);
	/*
	 * In the pool of a PUBLIC mapping nothing is sent before the waiter runs,
	 * because its rights are checked again after the grant, and the next user
	 * may need a reset.
	 */
	if (!OidIsValid(spec->user))
		return;
	if (!pending->single || !is_plain(spec) || len >= PGPX_PENDING_MAX ||
		statement->nparams >= PGPX_PENDING_MAX)
		return;
	if (pending->predictable)
	{
		/* a large result is better requested in binary */
		pgpx_formats_key(&key, spec->pool_id, statement->sql,
						 pending->types_hash);
		if (pgpx_formats_find(&key, formats) > 0)
			return;
	}
	initStringInfo(&buf);
	pgpx_wire_put_extended(&buf, statement, 0, NULL);
	pgpx_pending_statement_set(buf.data, buf.len);
	pfree(buf.data);
}

/*
 * Can a statement of another session follow on the stream? It must be at a
 * message boundary with no pending input.
 */
static bool
may_go_on(const PgpxLease *lease)
{
	const PgpxConn *conn = &pgpx_conns[lease->conn];
	const PgpxWire *wire = &lease->sock->wire;
	char		byte;

	if (lease->broken != NULL || lease->read_only || !lease->sent ||
		!pgpx_wire_at_boundary(wire) || wire->tx != 'I' ||
		!is_plain(lease->spec))
		return false;
	if (lease->spec->opts.reset == PGPX_RESET_NEVER ?
		!pgpx_wire_params_pinned(wire) : !conn->can_pipeline)
		return false;
	return recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
		(errno == EAGAIN || errno == EWOULDBLOCK);
}

/*
 * Send all in one call without blocking.  Returns FAILED if nothing was sent.
 * After a partial send the socket is shut down.
 */
static PgpxPendingState
send_pending(int fd, uint64 lease_id, bool reset, PgpxHandOver *hand_over)
{
	char		prefix[PGPX_WIRE_PREFIX_MAX];
	size_t		len = pgpx_wire_put_prefix(prefix, lease_id, reset);
	struct iovec parts[2] = {
		{.iov_base = prefix, .iov_len = len},
		{.iov_base = hand_over->messages, .iov_len = hand_over->len},
	};
	struct msghdr msg = {.msg_iov = parts, .msg_iovlen = lengthof(parts)};
	ssize_t		sent;

	do
		sent = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent <= 0)
		return PGPX_PENDING_FAILED;
	if ((size_t) sent < len + hand_over->len)
		(void) shutdown(fd, SHUT_RDWR);
	return PGPX_PENDING_SENT;
}

/*
 * Send the pending statement, and wake its owner, which reads nothing before it
 * is informed that the send is complete.
 */
static void
send_and_wake(PgpxConn *conn, PgpxHandOver *hand_over, int fd, uint64 sender,
			  bool reset)
{
	int			procno = PGPX_WAITER_INDEX(hand_over->waiter);
	PgpxPendingState how = send_pending(fd, sender, reset, hand_over);

	/* the values are private to their owner */
	explicit_bzero(hand_over->messages, hand_over->len);

	PGPX_DEBUG_POINT("hand_over_sent");
	if (!pgpx_pending_statement_sent(hand_over, how))
		return;

	/*
	 * Before that call the waiter may have been woken by an answer or by a
	 * revocation of its lease.  It went to sleep again then, and no other
	 * process wakes it.
	 */
	if (how != PGPX_PENDING_SENT ||
		!pgpx_conn_is_wakeup_deferred(conn, procno, hand_over->lease_id))
		pgpx_process_wake(procno);
}

bool
pgpx_lease_hand_over(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	const volatile PgpxPool *pool = &pgpx_pools[lease->spec->pool];
	bool		reset = lease->spec->opts.reset != PGPX_RESET_NEVER;
	PgpxUsage	usage;
	PgpxHandOver hand_over;

	/* without the lock: a stale answer costs the hand-over a round trip */
	if (pool->nwaiting == 0 || !may_go_on(lease))
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
	send_and_wake(conn, &hand_over, lease->sock->fd, lease->id, reset);
	lease->spec->last_conn = lease->conn;
	lease->spec->last_conn_generation = lease->generation;
	pgpx_lease_forget(lease);
	return true;
}
