/*-------------------------------------------------------------------------
 *
 * hand_over.c
 *	  The pipelined hand-over of a connection to a waiter.
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
 * Only then does it wake the waiter.  The remote is already working while
 * the waiter is being scheduled; usually its first recv() returns the rows.
 * The remote, too, is woken once instead of twice.  Behind a relay the
 * wakeup is deferred: the worker wakes the waiter when the answer arrives.
 *
 * Rules that make it safe:
 * - There is one Sync.  If the reset fails, the server skips all messages
 *   up to the Sync, so no statement ever runs in an unclean session.  The
 *   statement is known not to have run, and its owner waits again at the
 *   head of the queue.
 * - The reset must be a literal DISCARD ALL without start commands.  It
 *   commits inside Execute, so an error of the statement does not undo it.
 *   The error would undo any other reset.  Servers that are too old to
 *   commit it there have can_pipeline unset.
 * - The stream must be at a message boundary, with nothing unread.  No
 *   cancel may be under way, and there must be no reason to close the
 *   connection.
 * - The answer must begin with the echo of the returned lease's token.
 *   Otherwise it is the answer to something else, and the connection is
 *   closed (wire.h).
 * - Up to the CommandComplete of the reset, notices, notifications and
 *   parameters are from the previous lease, and are dropped (wire.c).
 * - From the grant to pgpx_pending_statement_sent the sender cannot be
 *   interrupted.  A waiter that leaves the queue in that time waits for
 *   the sender, for up to a second.  If the sender is still not done, the
 *   waiter leaves as if the statement had been sent (next rule).  If it is
 *   sent later, the connection is already being closed.
 * - If a waiter leaves after its statement was sent, the worker cancels the
 *   statement and closes the connection.
 *
 *-------------------------------------------------------------------------
 */
#include "session/hand_over.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/debug_point.h"
#include "values/binary_input.h"

/*
 * Do the options need no reset, or one that a statement may follow without a
 * Sync in between?
 */
static bool
allows_hand_over(const PgpxServerSpec *spec)
{
	return spec->opts.reset == PGPX_RESET_NEVER ||
		(spec->start_commands[0] == '\0' && spec->discards_all);
}

void
pgpx_hand_over_prepare(const PgpxServerSpec *spec,
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
	if (!pending->single || !allows_hand_over(spec) ||
		len >= PGPX_PENDING_MAX || statement->nparams >= PGPX_PENDING_MAX)
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
 * Can a statement of another session follow on the stream?  It must be at a
 * message boundary with no pending input.
 */
static bool
is_ready_for_hand_over(const PgpxLease *lease)
{
	const PgpxConn *conn = &pgpx_conns[lease->conn];
	const PgpxWire *wire = &lease->sock->wire;
	char		byte;

	if (lease->broken != NULL || lease->read_only || !lease->sent ||
		!pgpx_wire_at_boundary(wire) || wire->tx != 'I' ||
		!allows_hand_over(lease->spec))
		return false;
	if (lease->spec->opts.reset == PGPX_RESET_NEVER ?
		!pgpx_wire_params_pinned(wire) : !conn->can_pipeline)
		return false;
	return recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
		(errno == EAGAIN || errno == EWOULDBLOCK);
}

/*
 * Send prefix and statement in one call without blocking.  Returns FAILED if no
 * byte was sent.  After a partial send the socket is shut down.
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
 * Send the pending statement, and wake its waiter.  The waiter reads nothing
 * before pgpx_pending_statement_sent.
 */
static void
send_and_wake(PgpxConn *conn, PgpxHandOver *hand_over, int fd, uint64 sender,
			  bool reset)
{
	int			procno = PGPX_WAITER_INDEX(hand_over->waiter);
	PgpxPendingState how = send_pending(fd, sender, reset, hand_over);

	/* the statement may contain private values of the waiter's user */
	explicit_bzero(hand_over->messages, hand_over->len);

	PGPX_DEBUG_POINT("hand_over_sent");
	if (!pgpx_pending_statement_sent(hand_over, how))
		return;

	/*
	 * If the wakeup is deferred, the worker wakes the waiter.  But if the
	 * answer or a revocation of the lease has already used up the deferred
	 * wakeup, the waiter found the statement still being sent and slept
	 * again.  So wake it here.
	 */
	if (how != PGPX_PENDING_SENT ||
		!pgpx_conn_is_wakeup_deferred(conn, procno, hand_over->lease_id))
		pgpx_process_wake(procno);
}

bool
pgpx_hand_over_lease(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	const volatile PgpxPool *pool = &pgpx_pools[lease->spec->pool];
	bool		reset = lease->spec->opts.reset != PGPX_RESET_NEVER;
	PgpxUsage	usage;
	PgpxHandOver hand_over;

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
	send_and_wake(conn, &hand_over, lease->sock->fd, lease->id, reset);
	lease->spec->last_conn = lease->conn;
	lease->spec->last_conn_generation = lease->generation;
	pgpx_lease_forget(lease);
	return true;
}
