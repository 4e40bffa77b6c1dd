/*-------------------------------------------------------------------------
 *
 * lease_carry.c
 *	  A hand-over without a round trip: who returns a connection sends the next
 *	  one's statement along with the reset.
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
#include "lease.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "formats.h"
#include "ticket.h"

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
