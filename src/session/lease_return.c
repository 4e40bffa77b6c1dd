/*-------------------------------------------------------------------------
 *
 * lease_return.c
 *	  The end of a lease: reset and release, or a pipelined hand-over to a
 *	  waiter.
 *
 * A hand-over without a round trip: who returns a connection sends the next
 * one's statement along with the reset.
 *
 * A waiter that will run one statement offers its messages in shared memory, at
 * the side of its ticket.  Who checks a connection in, and finds such a ticket at
 * the head of the queue, grants it and sends, in one system call,
 *
 *		token  Parse Bind Execute (DISCARD ALL)  Parse Bind Describe Execute Sync
 *
 * and wakes the waiter only then.  While that one is being scheduled the remote
 * works already; most often its first recv() brings the rows.  The remote, too,
 * is woken once instead of twice.  Behind a relay the waiter is woken once, too: by the
 * worker, when the answer comes in.
 *
 * What makes it sound:
 *	- one Sync: if the reset fails, the server skips what follows up to the Sync,
 *	  so nothing ever runs in an unclean session.  The statement is known not to
 *	  have run, and its owner waits on, at the head of the queue;
 *	- only a literal DISCARD ALL without start commands: it commits inside Execute,
 *	  any other would be undone by an error of the statement.  (Where a server is
 *	  too old for that, we send nothing ahead.  Were it undone all the same, the
 *	  next reset would clean up: the lease ends with its one statement.)
 *	- only between ReadyForQuery and the next question, with nothing unread, no
 *	  cancel under way, no reason to close the connection;
 *	- the answer begins with the echo of the returned lease's token, or it is the
 *	  answer to something else, and the connection closes (wire.h);
 *	- up to the reset's CommandComplete notices, notifications and parameters are
 *	  the predecessor's, and dropped (wire.c);
 *	- from the grant to pgpx_ticket_sent nothing can be interrupted here, and the
 *	  waiter's way out of the queue waits for it, for a second: then it leaves as
 *	  below, and what is sent here later goes to a connection that is being closed;
 *	- a waiter that leaves after that leaves as from the middle of a statement: the
 *	  worker cancels, and closes.
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

/* What of an answer is dropped at checkin rather than the connection. */
#define FLIGHT_DROP_MAX (1024 * 1024)

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

/* Do the options let a reset go ahead of a statement, or want none? */
static bool
is_plain(const PgpxTarget *target)
{
	return target->opts.reset == PGPX_RESET_NEVER ||
		(target->start_commands[0] == '\0' && target->discards_all);
}

void
pgpx_lease_offer(const PgpxTarget *target, const PgpxStatement *statement)
{
	int16		formats[PGPX_FORMATS_COLUMNS];
	PgpxFormatsKey key;
	StringInfoData buf;
	size_t		len = strlen(statement->sql);

	for (int i = 0; i < statement->nparams && len < PGPX_OFFER_MAX; i++)
		if (statement->values[i] != NULL)
			len += strlen(statement->values[i]);
	/*
	 * In a pool that several users share, a waiter's rights are checked once more
	 * after the grant, and the next user may need a reset: nothing is sent before.
	 */
	if (!OidIsValid(target->user))
		return;
	if (!statement->one || !is_plain(target) || len >= PGPX_OFFER_MAX ||
		statement->nparams >= PGPX_OFFER_MAX)
		return;
	if (statement->known)
	{
		/* a large result had better come in binary */
		pgpx_formats_key(&key, target->pool_id, statement->sql,
						 statement->shape);
		if (pgpx_formats_find(&key, formats) > 0)
			return;
	}
	initStringInfo(&buf);
	pgpx_wire_put_extended(&buf, statement->sql, statement->nparams,
						   statement->values, 0, NULL);
	pgpx_ticket_offer(buf.data, buf.len);
	pfree(buf.data);
}

/* Is the stream where another may go on, and nothing in it? */
static bool
may_go_on(const PgpxLease *lease)
{
	const PgpxConn *conn = &pgpx_conns[lease->conn];
	const PgpxWire *wire = &lease->kept->wire;
	char		byte;

	if (lease->broken != NULL || lease->read_only || !lease->sent ||
		!pgpx_wire_at_boundary(wire) || wire->tx != 'I' ||
		!is_plain(lease->target))
		return false;
	if (lease->target->opts.reset == PGPX_RESET_NEVER ?
		!pgpx_wire_params_pinned(wire) : !conn->carries)
		return false;
	return recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
		(errno == EAGAIN || errno == EWOULDBLOCK);
}

/* Send it all at once, or nothing; what is cut off ends the connection. */
static PgpxOffer
send_offer(int fd, uint64 lease_id, bool reset, PgpxCarry *carry)
{
	char		prefix[PGPX_WIRE_PREFIX_MAX];
	size_t		len = pgpx_wire_put_prefix(prefix, lease_id, reset);
	struct iovec parts[2] = {
		{.iov_base = prefix, .iov_len = len},
		{.iov_base = carry->messages, .iov_len = carry->len},
	};
	struct msghdr msg = {.msg_iov = parts, .msg_iovlen = lengthof(parts)};
	ssize_t		sent;

	do
		sent = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent <= 0)
		return PGPX_OFFER_FAILED;
	if ((size_t) sent < len + carry->len)
		(void) shutdown(fd, SHUT_RDWR);
	return PGPX_OFFER_SENT;
}

/* Its owner takes nothing before it is told that all has been sent. */
static void
send_and_wake(PgpxConn *conn, PgpxCarry *carry, int fd, uint64 sender,
			  bool reset)
{
	int			procno = PGPX_TICKET_INDEX(carry->ticket);
	PgpxOffer	how = send_offer(fd, sender, reset, carry);

	/* values that are nobody else's business */
	explicit_bzero(carry->messages, carry->len);

	PGPX_DEBUG_POINT("sent");
	if (!pgpx_ticket_sent(carry, how))
		return;

	/*
	 * Before the line above an answer may have come in and have woken it, or its lease
	 * may have been revoked: then it sleeps again, and nobody else wakes it.
	 */
	if (how != PGPX_OFFER_SENT ||
		!pgpx_conn_sleeps(conn, procno, carry->lease_id))
		pgpx_process_wake(procno);
}

bool
pgpx_lease_carry(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	const volatile PgpxPool *pool = &pgpx_pools[lease->target->pool];
	bool		reset = lease->target->opts.reset != PGPX_RESET_NEVER;
	PgpxUsage	usage;
	PgpxCarry	carry;

	/* without the lock: a wrong answer costs the hand-over a round trip */
	if (pool->nwaiting == 0 || !may_go_on(lease))
		return false;

	usage = lease->usage;
	usage.bytes_received = lease->kept->wire.bytes_in;
	usage.bytes_sent = lease->kept->wire.bytes_out;
	if (reset)
		usage.resets++;
	if (!pgpx_pool_carry(conn, lease->id, &lease->target->fingerprint, reset,
						 &usage, &carry))
		return false;
	PGPX_DEBUG_POINT("carry");
	send_and_wake(conn, &carry, lease->kept->fd, lease->id, reset);
	lease->target->partner = lease->conn;
	lease->target->partner_generation = lease->generation;
	pgpx_lease_forget(lease);
	return true;
}
