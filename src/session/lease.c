/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The leases of this session: their records, checks before use,
 *	  notifications, and stream; their return, at checkin or with the
 *	  transaction, subtransaction or session that owns them.
 *
 * At its return the connection is reset and released, or handed over to a waiter
 * together with the waiter's statement.
 *
 * Notifications that arrive on a lease are queued until a caller reads
 * them.  They can arrive at any time, also while a result is drained after
 * an error, when no other error may be raised.  The remote determines their
 * number, so the queue is bounded, and dropped notifications are counted.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "protocol/remote_message.h"
#include "shared/lock_hooks.h"

dlist_head	pgpx_leases = DLIST_STATIC_INIT(pgpx_leases);

#define NOTES_MAX (1024 * 1024) /* bytes, per lease */
#define LAST_MESSAGE_MAX 1024	/* bytes; the rest is cut off */

/* recycled records, so that a checkout rarely allocates memory */
static dlist_head free_records = DLIST_STATIC_INIT(free_records);

/* Allocate zeroed memory.  Return NULL if memory is exhausted. */
static void *
alloc_zero(size_t size)
{
	return MemoryContextAllocExtended(TopMemoryContext, size,
									  MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO);
}

PgpxLease *
pgpx_lease_alloc(void)
{
	PgpxLease  *lease;

	if (!dlist_is_empty(&free_records))
		lease = dlist_container(PgpxLease, node,
								dlist_pop_head_node(&free_records));
	else
		lease = MemoryContextAlloc(TopMemoryContext, sizeof(PgpxLease));
	memset(lease, 0, sizeof(*lease));
	return lease;
}

void
pgpx_lease_clear_in_flight(PgpxLease *lease)
{
	if (lease->in_flight != NULL)
		pfree(lease->in_flight);
	lease->in_flight = NULL;
	lease->scanned = 0;
}

void
pgpx_lease_forget(PgpxLease *lease)
{
	if (lease->sock != NULL)
	{
		lease->sock->leased = false;
		pgpx_session_unregister(lease->sock);

		/* the socket may stay cached for long */
		pgpx_wire_trim(&lease->sock->wire);
	}
	if (lease->id != 0)
		dlist_delete(&lease->node);
	if (lease->spec != NULL)
		pgpx_server_spec_unpin(lease->spec);
	pgpx_lease_clear_in_flight(lease);
	pgpx_lease_drop_notes(lease);
	if (lease->last_message != NULL)
		pfree(lease->last_message);
	lease->last_message = NULL;
	lease->id = 0;
	lease->sock = NULL;
	lease->spec = NULL;
	dlist_push_head(&free_records, &lease->node);
}

bool
pgpx_lease_all_are_of_tables(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope != PGPX_SCOPE_TABLE)
			return false;
	}
	return true;
}

int
pgpx_lease_count(uint32 pool_id, int server)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);
		PgpxConn   *conn = &pgpx_conns[lease->conn];

		/* a revoked lease has no connection, a broken one blocks no checkout */
		if (pg_atomic_read_u64(&conn->lease_id) == lease->id && !conn->broken &&
			(pool_id == 0 || lease->spec->pool_id == pool_id) &&
			(server < 0 || pgpx_pools[lease->spec->pool].server == server))
			n++;
	}
	return n;
}

void
pgpx_lease_check_unbounded_wait(void)
{
	int			n = pgpx_lease_count(0, -1);

	if (n == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("cannot wait without a timeout while this session holds a lease"),
			 errdetail_plural("This session holds %d lease. Two sessions could wait for each other forever.",
							  "This session holds %d leases. Two sessions could wait for each other forever.",
							  n, n),
			 errhint("Specify a timeout, or return the leases first.")));
}

/* Raise the error for an id that is of no lease of this session. */
pg_noreturn static void
raise_invalid_lease(int64 id)
{
	for (int i = 0; id > 0 && i < pgpx_conns_end(); i++)
		if (pg_atomic_read_u64(&pgpx_conns[i].lease_id) == (uint64) id)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("lease " INT64_FORMAT " belongs to another session", id)));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("lease " INT64_FORMAT " does not exist", id),
			 errdetail("It was returned, or it has ended with its transaction or session."),
			 errhint("View \"pgpool.leases\" shows all leases.")));
}

void
pgpx_lease_require_unrestricted(void)
{
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot use leases or locks of the session within security-restricted operation"),
				 errdetail("ANALYZE, REINDEX, CREATE INDEX and REFRESH MATERIALIZED VIEW are such operations, because they call functions of the owner."),
				 errhint("Foreign tables, and calls with the name of a server, can be used.")));
}

static PgpxLease *
find_lease(int64 id)
{
	dlist_iter	iter;

	pgpx_lease_require_unrestricted();
	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->id == (uint64) id)
			return lease;
	}
	raise_invalid_lease(id);
}

void
pgpx_lease_check_not_in_use(const PgpxLease *lease)
{
	if (lease->scope == PGPX_SCOPE_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease " UINT64_FORMAT " belongs to foreign tables",
						lease->id),
				 errdetail("It ends with the local transaction.")));
	if (lease->in_use || lease->scope == PGPX_SCOPE_CALL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease " UINT64_FORMAT " is in use", lease->id),
				 errdetail("While a result of this lease was read, a function was called that uses the same lease.")));
}

PgpxLease *
pgpx_lease_for_use(int64 id)
{
	PgpxLease  *lease = find_lease(id);

	if (lease->user != GetUserId())
	{
		const char *name = GetUserNameFromId(lease->user, true);

		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lease " UINT64_FORMAT " belongs to another user of this session",
						lease->id),
				 errdetail("It was acquired by user \"%s\".", name ? name : "?")));
	}
	pgpx_lease_check_not_in_use(lease);
	pgpx_lease_check_revoked(lease);
	return lease;
}

PgpxLease *
pgpx_lease_for_return(int64 id)
{
	PgpxLease  *lease = find_lease(id);

	pgpx_lease_check_not_in_use(lease);
	return lease;
}

/* Publish the activity of the lease to the views. */
static void
set_activity(PgpxLease *lease, PgpxActivity activity)
{
	pgpx_conn_set_activity(&pgpx_conns[lease->conn], lease->id, activity,
						   false);
}

/* Add the hint for an error after which the lease is unusable. */
static int
add_hint(const PgpxLease *lease)
{
	switch (lease->scope)
	{
		case PGPX_SCOPE_CALL:
			return 0;
		case PGPX_SCOPE_TABLE:
			return errhint("Roll back the local transaction, and run it again.");
		default:
			return errhint("Return the lease and check a connection out again.");
	}
}

void
pgpx_lease_check_revoked(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxRevoke	reason;

	if (pg_atomic_read_u64(&conn->lease_id) == lease->id)
		return;

	reason = pgpx_waiter_revoke_reason((int) MyProcNumber, lease->id);
	switch (reason)
	{
		case PGPX_REVOKE_TERMINATED:
			ereport(ERROR,
					(errcode(PGPX_ERRCODE_LEASE_TERMINATED),
					 errmsg("lease " UINT64_FORMAT " was terminated", lease->id),
					 errdetail("An administrator has ended it; its connection is closed."),
					 add_hint(lease)));
			break;
		case PGPX_REVOKE_TIMEOUT:
			ereport(ERROR,
					(errcode(PGPX_ERRCODE_LEASE_TIMEOUT),
					 errmsg("lease " UINT64_FORMAT " has timed out", lease->id),
					 errdetail("It was held for longer than the server's option \"lease_timeout\" allows; its connection is closed."),
					 add_hint(lease)));
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("connection of lease " UINT64_FORMAT " was lost", lease->id),
					 reason == PGPX_REVOKE_WORKER ?
					 errdetail("The pool worker was restarted.") :
					 reason == PGPX_REVOKE_BROKEN ?
					 errdetail("The remote session has ended, and its slot was needed for another connection.") :
					 errdetail("The reason is no longer known, because other leases of this session have ended since."),
					 add_hint(lease)));
	}
}

/* Return whether the stream is not broken. */
static bool
is_usable(const PgpxLease *lease)
{
	return lease->sock->wire.phase != PGPX_WIRE_BROKEN;
}

void
pgpx_lease_raise_broken(PgpxLease *lease, const char *reason,
						const char *remote_text)
{
	PgpxWire   *wire = &lease->sock->wire;
	int			error = pg_atomic_read_u32(&pgpx_conns[lease->conn].end_error);

	pgpx_wire_break(wire, reason);

	/* if the worker ended the lease, report that reason instead */
	pgpx_lease_check_revoked(lease);

	/* the relay of a TLS connection has seen why it has ended */
	reason = wire->broken;
	if (error != 0 && reason == pgpx_wire_end_reason(0))
		reason = pgpx_wire_end_reason(error);
	if (remote_text == NULL)
		remote_text = lease->last_message;
	set_activity(lease, PGPX_ACT_BROKEN);
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("connection to server \"%s\" was lost",
					NameStr(lease->spec->server_name)),
			 remote_text ?
			 errdetail_internal("The remote server reported: %s", remote_text) :
			 errdetail_internal("%c%s.", pg_toupper((unsigned char) reason[0]),
								reason + 1),
			 add_hint(lease)));
}

void
pgpx_lease_note_end(PgpxLease *lease, const PgpxWireMessage *msg)
{
	PgpxRemoteFields fields;
	int			code;
	size_t		len;

	if (!pgpx_wire_parse_error(msg, &fields) || fields.primary == NULL)
		return;
	code = pgpx_parse_sqlstate(fields.sqlstate, ERRCODE_INTERNAL_ERROR);
	if (msg->type == 'E')
		lease->drained_error = code;
	if (lease->last_message != NULL)
		return;
	if (!pgpx_wire_is_fatal(&fields) &&
		code != ERRCODE_CRASH_SHUTDOWN && code != ERRCODE_ADMIN_SHUTDOWN)
		return;
	len = strnlen(fields.primary, LAST_MESSAGE_MAX);
	lease->last_message = alloc_zero(len + 1);
	if (lease->last_message != NULL)
		(void) pgpx_text_clean(memcpy(lease->last_message, fields.primary,
									  len));
}

void
pgpx_lease_check_broken(PgpxLease *lease)
{
	if (!is_usable(lease))
		pgpx_lease_raise_broken(lease, NULL, NULL);
}

void
pgpx_lease_check_encoding(const PgpxLease *lease)
{
	if (lease->sock->wire.encoding_changed)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("client_encoding of the remote session was changed"),
				 errhint("It must remain that of the local database. Return the lease.")));
}

PgpxTime
pgpx_lease_operation_deadline(const PgpxLease *lease)
{
	return pgpx_now() + lease->spec->opts.operation_timeout * 1000;
}

/*
 * Copy a NotificationResponse: process, channel, payload
 * (https://www.postgresql.org/docs/current/protocol-message-formats.html).
 * Return NULL if it is malformed or larger than room, or if memory is
 * exhausted.
 */
static PgpxNote *
copy_note(const PgpxWireMessage *msg, size_t room)
{
	const char *channel = msg->data + sizeof(int32);
	const char *end = msg->data + msg->len;
	const char *payload;
	uint32		pid;
	PgpxNote   *note;

	if (msg->len < sizeof(int32) || msg->len > room ||
		(payload = memchr(channel, '\0', end - channel)) == NULL)
		return NULL;
	payload++;
	if (memchr(payload, '\0', end - payload) == NULL ||
		!pg_verifymbstr(channel, strlen(channel), true) ||
		!pg_verifymbstr(payload, strlen(payload), true))
		return NULL;

	note = alloc_zero(offsetof(PgpxNote, channel) + (end - channel));
	if (note == NULL)
		return NULL;
	memcpy(&pid, msg->data, sizeof(pid));
	note->remote_pid = (int32) pg_ntoh32(pid);
	memcpy(note->channel, channel, end - channel);
	note->payload = note->channel + (payload - channel);
	return note;
}

void
pgpx_lease_store_note(PgpxLease *lease, const PgpxWireMessage *msg)
{
	PgpxNotes  *notes = &lease->notes;
	PgpxNote   *note;

	/* SQL cannot read the notifications of these leases */
	if (lease->scope == PGPX_SCOPE_CALL || lease->scope == PGPX_SCOPE_TABLE)
		return;
	note = copy_note(msg, NOTES_MAX - notes->bytes);
	if (note == NULL)
	{
		notes->dropped++;
		return;
	}
	notes->bytes += Min(msg->len + sizeof(*note), NOTES_MAX - notes->bytes);
	if (notes->first == NULL)
		notes->end = &notes->first;
	*notes->end = note;
	notes->end = &note->next;
}

void
pgpx_lease_drop_notes(PgpxLease *lease)
{
	for (PgpxNote *note = lease->notes.first; note != NULL;)
	{
		PgpxNote   *next = note->next;

		pfree(note);
		note = next;
	}
	memset(&lease->notes, 0, sizeof(lease->notes));
}

/* ------------------------------------------------------------------------
 * The stream of a lease: flush, drain, cancel
 * ------------------------------------------------------------------------
 */

/* Limit on the input that is buffered while a statement is being sent. */
#define FLUSH_AHEAD_MAX (1024 * 1024)

/*
 * Maximum interval at which a wait without interrupts checks the clock, and
 * whether an interrupt is pending.
 */
#define QUIET_CHECK_MS 100

bool
pgpx_stream_flush(PgpxLease *lease, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxCachedSocket *sock = lease->sock;
	bool		full;

	for (;;)
	{
		int			flushed = pgpx_wire_flush(&sock->wire);
		uint32		events = WL_SOCKET_WRITEABLE;

		if (flushed != 0)
			return flushed > 0;

		/*
		 * A remote that is blocked in sending an answer does not read, so
		 * receive what it sends, within a bound.
		 */
		if (sock->wire.in_end - sock->wire.in_start < FLUSH_AHEAD_MAX)
		{
			events |= WL_SOCKET_READABLE;
			if (pgpx_wire_fill(&sock->wire, &full) < 0)
				return false;
		}
		if (!pgpx_session_wait(sock, events, deadline,
							   pgpx_wait_event(&wait_event, "PgpoolQuery")))
			return false;
	}
}

/*
 * Wait for input without serving interrupts.  Return false if the deadline has
 * passed, or an interrupt is pending.
 */
static bool
wait_quietly(int fd, PgpxTime deadline, uint32 wait_event)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	PgpxTime	now = pgpx_now();

	if (now >= deadline || pgpx_interrupt_pending())
		return false;
	pgstat_report_wait_start(wait_event);
	(void) poll(&pfd, 1,
				(int) Min((deadline - now) / 1000 + 1, QUIET_CHECK_MS));
	pgstat_report_wait_end();
	return true;
}

/* pgpx_stream_drain; if it is bounded, wire->no_oom must be set. */
static bool
drain(PgpxLease *lease, size_t bytes, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxCachedSocket *sock = lease->sock;
	PgpxWire   *wire = &sock->wire;
	uint64		start = wire->bytes_in;

	if (bytes == 0 ? !pgpx_stream_flush(lease, deadline) :
		pgpx_wire_flush(wire) != 1)
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
				if (pgpx_wire_is_at_boundary(wire))
					return true;
				break;
			case PGPX_EV_ERROR:
			case PGPX_EV_NOTICE:
				pgpx_lease_note_end(lease, &msg);
				break;
			case PGPX_EV_NOTIFICATION:
				pgpx_lease_store_note(lease, &msg);
				break;
			case PGPX_EV_NEED_INPUT:
				if (wire->phase == PGPX_WIRE_IDLE)
					return pgpx_wire_is_at_boundary(wire);
				if (bytes != 0 && wire->bytes_in - start > bytes)
					return false;
				n = pgpx_wire_fill(wire, &full);
				if (n < 0 && !wire->eof)
					return false;	/* no memory for a long message */

				/* unbounded input may never end */
				if (n > 0 && bytes == 0)
				{
					CHECK_FOR_INTERRUPTS();
					if (deadline != 0 && pgpx_now() >= deadline)
						return false;
				}
				if (n == 0 &&
					!(bytes == 0 ?
					  pgpx_session_wait(sock, WL_SOCKET_READABLE, deadline,
										pgpx_wait_event(&wait_event, "PgpoolDrain")) :
					  wait_quietly(wire->fd, deadline,
								   pgpx_wait_event(&wait_event, "PgpoolDrain"))))
					return false;
				break;
			default:
				break;
		}
	}
}

bool
pgpx_stream_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline)
{
	PgpxWire   *wire = &lease->sock->wire;
	bool		drained;

	wire->no_oom = bytes > 0;
	drained = drain(lease, bytes, deadline);
	wire->no_oom = false;
	return drained;
}

void
pgpx_stream_cancel(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxPool   *pool = &pgpx_pools[lease->spec->pool];
	uint32		none = PGPX_CANCEL_NONE;
	bool		send_request;

	/*
	 * Under the lock the lease cannot be revoked.  Without it, the request
	 * could cancel a statement of the connection's next lease.
	 */
	LWLockAcquire(pool->lock, LW_SHARED);
	send_request = pg_atomic_read_u64(&conn->lease_id) == lease->id;
	if (send_request)
	{
		set_activity(lease, PGPX_ACT_CANCELLING);
		send_request = pg_atomic_compare_exchange_u32(&conn->cancel, &none,
													  PGPX_CANCEL_REQUESTED);
	}
	LWLockRelease(pool->lock);
	if (send_request)
		pgpx_conn_notify_worker(conn, lease->worker);
}

PgpxTime
pgpx_stream_repeat_cancel(PgpxLease *lease)
{
	if (lease->cancel_at != 0 && pgpx_now() >= lease->cancel_at)
	{
		pgpx_stream_cancel(lease);
		lease->cancel_pause = pgpx_cancel_next_pause(lease->cancel_pause);
		lease->cancel_at = pgpx_now() + lease->cancel_pause;
	}
	return lease->cancel_at;
}

/* ------------------------------------------------------------------------
 * The pipelined hand-over of a connection to a waiter
 *
 * A waiter that will run a single statement stores its messages in shared
 * memory.  A session that returns a connection and finds such a waiter at the
 * head of the queue grants it the connection and sends, in one system call,
 *
 *		marker Parse Bind Execute (DISCARD ALL)  Parse Bind Describe Execute Sync
 *
 * For a foreign table, the messages of the waiter begin with the commands of
 * its remote transaction.  The session wakes the waiter after it has sent the
 * messages, so the remote works while the waiter is being scheduled.
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

	if (lease->read_only || !lease->sent ||
		!pgpx_server_spec_is_valid(lease->spec) || wire->reset_behind != 0 ||
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
 * Send the prefix (marker, reset) and the pending statement in one system call
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

/* Add to the work of the lease what its socket has counted. */
static void
add_stream_usage(PgpxLease *lease)
{
	const PgpxCachedSocket *sock = lease->sock;

	lease->usage.bytes_received = sock->wire.bytes_in;
	lease->usage.bytes_sent = sock->wire.bytes_out;
	lease->usage.answer_time = sock->answer_time;
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

	add_stream_usage(lease);
	usage = lease->usage;
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
 * - The text must be a single statement that cannot leave a transaction open,
 *   or start a COPY.
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
 * Read the rest of the answer to the reset behind the statement, if a part of
 * it was received.  Otherwise set *unread_reset to the PGPX_SENT_* bits of the
 * reset.
 *
 * A remote usually sends all of the answer at once, so wait for a moment only.
 * Return false if the reset has failed, or if its answer is not complete then.
 */
static bool
settle_reset_behind(PgpxLease *lease, int *unread_reset)
{
	PgpxWire   *wire = &lease->sock->wire;

	if (pgpx_wire_is_untouched(wire))
	{
		*unread_reset = wire->reset_behind;
		return true;
	}
	return pgpx_stream_drain(lease, PGPX_DRAIN_BYTES,
							 pgpx_now() + PGPX_DRAIN_US);
}

/* ------------------------------------------------------------------------
 * The return of a lease
 * ------------------------------------------------------------------------
 */

/*
 * Before a lease is returned: drain the answer of a statement in flight, if it
 * has arrived, and report what the return will cancel or roll back.
 */
static void
report_unfinished(PgpxLease *lease)
{
	bool		in_flight = lease->in_flight != NULL;

	pgpx_lease_clear_in_flight(lease);
	if (in_flight && !pgpx_stream_drain(lease, PGPX_DRAIN_BYTES, pgpx_now()))
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with a statement in flight, which is cancelled",
						lease->id)));
	if (is_usable(lease) && lease->sock->wire.tx != 'I')
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("lease " UINT64_FORMAT " was returned with an open remote transaction, which is rolled back",
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
		if (!pgpx_stream_drain(lease, PGPX_CANCEL_BYTES - (seen - start),
							   until) &&
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
	if (pgpx_stream_drain(lease, PGPX_DRAIN_BYTES, deadline))
	{
		*unread_reset = 0;
		return true;
	}
	return pgpx_wire_is_untouched(wire) && pgpx_now() < deadline;
}

/* Set the reason of a close, and return its release action. */
static PgpxReleaseAction
close_for(PgpxCloseReason *reason, PgpxCloseReason value, bool cancels)
{
	*reason = value;
	return cancels ? PGPX_RELEASE_CANCEL_CLOSE : PGPX_RELEASE_CLOSE;
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
	PgpxServerSpec *spec = lease->spec;
	PgpxWire   *wire = &lease->sock->wire;
	bool		cancelling =
		pg_atomic_read_u32(&pgpx_conns[lease->conn].cancel) != PGPX_CANCEL_NONE;
	bool		usable = is_usable(lease);
	bool		in_transaction = usable && wire->tx != 'I';
	const char *reset_command = spec->reset_command;
	const char *start_commands = spec->start_commands;
	int			sent;

	if (wire->reset_behind != 0)
		lease->usage.resets++;
	if (usable && !pgpx_wire_statement_ended(wire))
		return close_for(reason, end == PGPX_END_DISCARD ?
						 PGPX_CLOSE_DISCARDED : PGPX_CLOSE_HOLDER_DIED, true);
	if (wire->copying && !wire->eof)
		return close_for(reason, PGPX_CLOSE_BROKEN, true);

	/* no Terminate may follow a message of which only a part was sent */
	if (end == PGPX_END_DISCARD)
		return close_for(reason, usable ? PGPX_CLOSE_DISCARDED :
						 PGPX_CLOSE_HOLDER_DIED, false);

	/* no statement is running, but part of a notice is unread, for example */
	if (usable && wire->reset_behind == 0 && !pgpx_wire_is_at_boundary(wire))
		return close_for(reason, in_transaction ? PGPX_CLOSE_HOLDER_DIED :
						 PGPX_CLOSE_BROKEN, false);

	/* the parameters that decoding depends on must have their start values */
	if (!usable || !(pgpx_wire_has_pinned_params(wire) || spec->discards_all))
		return close_for(reason, usable || lease->not_run ||
						 pgpx_wire_is_at_reset_behind(wire) ?
						 PGPX_CLOSE_RESET : PGPX_CLOSE_BROKEN, false);

	/*
	 * The remote may have become a standby.  A new connection selects the
	 * host again (host name lookup, list of hosts, target_session_attrs).
	 */
	if (lease->read_only)
		return close_for(reason, PGPX_CLOSE_BROKEN, false);
	if (wire->reset_behind != 0)
	{
		if (!cancelling && settle_reset_behind(lease, unread_reset))
			return PGPX_RELEASE_RESET_PENDING;

		/*
		 * An answer that has begun means that the remote executes the reset,
		 * which ends without a cancel.  Close at once, so that the slot is free
		 * even if the rest of the answer never arrives.
		 */
		return close_for(reason, PGPX_CLOSE_RESET,
						 pgpx_wire_is_untouched(wire) && !wire->eof);
	}

	/* no ROLLBACK can be sent */
	if (in_transaction &&
		(cancelling || (!may_raise && !can_buffer_reset(lease))))
		return close_for(reason, PGPX_CLOSE_HOLDER_DIED, false);
	if (cancelling)
		return PGPX_RELEASE_CANCEL;
	if (!lease->sent)
		return PGPX_RELEASE_CLEAN;

	/*
	 * With reset "never", send nothing but the ROLLBACK of an open transaction,
	 * unless a reset must restore these parameters.
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
		return close_for(reason, PGPX_CLOSE_BROKEN, false);
	}
	*unread_reset = sent;
	if (in_transaction && !await_reset(lease, deadline, unread_reset))
		return close_for(reason, PGPX_CLOSE_RESET,	/* it may still run */
						 pgpx_wire_is_in_reset(wire) && !wire->eof);
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
		action = pgpx_pending_release_action(lease->pending_state, &reason);
		pgpx_pool_release(conn, lease->id,
						  action == PGPX_RELEASE_CANCEL_CLOSE ?
						  PGPX_END_RECLAIMED : PGPX_END_RETRIED,
						  action, 0, reason, NULL);
		pgpx_lease_forget(lease);
		return;
	}

	if (may_raise && end == PGPX_END_CHECKIN && is_usable(lease))
		report_unfinished(lease);
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
	add_stream_usage(lease);
	pgpx_pool_release(conn, lease->id, end, action, unread_reset, reason,
					  &lease->usage);
	pgpx_lease_forget(lease);
	if (action == PGPX_RELEASE_CLOSE || action == PGPX_RELEASE_CANCEL_CLOSE)
		pgpx_socket_cache_drop(sock);
}

/* Sets of scopes. */
#define SCOPE(scope) (1 << (scope))
#define OF_TRANSACTION (SCOPE(PGPX_SCOPE_TRANSACTION) | SCOPE(PGPX_SCOPE_CALL))
#define ALL_SCOPES \
	(OF_TRANSACTION | SCOPE(PGPX_SCOPE_SESSION) | SCOPE(PGPX_SCOPE_TABLE))

/*
 * Return the leases of these scopes to their pools: those of a subtransaction,
 * or all if it is 0.  Without may_raise all together wait for operation_timeout
 * at most.  The result is their number.
 */
static int
return_leases(int scopes, SubTransactionId subid, PgpxEnd end, bool may_raise)
{
	dlist_mutable_iter iter;
	int			n = 0;

	returns_begun = may_raise ? 0 : pgpx_now();
	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if ((scopes & SCOPE(lease->scope)) == 0 ||
			(subid != InvalidSubTransactionId && lease->subid != subid))
			continue;
		pgpx_lease_return(lease, end, may_raise);
		n++;
	}
	returns_begun = 0;
	return n;
}

int
pgpx_lease_return_all(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope != PGPX_SCOPE_TABLE)
			pgpx_lease_check_not_in_use(lease);
	}
	return return_leases(ALL_SCOPES & ~SCOPE(PGPX_SCOPE_TABLE),
						 InvalidSubTransactionId, PGPX_END_CHECKIN, true);
}

/* ------------------------------------------------------------------------
 * Ending leases with their transaction, subtransaction or session
 *
 * Abort and exit callbacks must not raise errors, and exit callbacks must not
 * wait.  If the stream of a connection is at a message boundary, the callbacks
 * release it as a checkin does.  Otherwise the worker cancels its statement and
 * closes it.
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

		if ((SCOPE(lease->scope) & OF_TRANSACTION) == 0)
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
 * Leave the queue, and release a connection that was granted to the waiter.
 * Must be called before the leases are returned, because the process must not
 * hand over a lease to its own waiter.  The process is in the queue only if it
 * exits during a wait, because on an ERROR the checkout leaves the queue.
 */
static void
leave_queue(void)
{
	PgpxTime	waited;

	(void) pgpx_waiter_dequeue(PGPX_DEQUEUE_CANCEL, &waited);
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

			/*
			 * The last point at which an error aborts the local transaction.
			 * Foreign tables have called pgpx_lease_check_commit already,
			 * before their first remote COMMIT.
			 */
			pgpx_lease_check_commit();
			(void) return_leases(OF_TRANSACTION, InvalidSubTransactionId,
								 PGPX_END_CHECKIN, false);
			break;
		case XACT_EVENT_ABORT:
			leave_queue();
			(void) return_leases(ALL_SCOPES & ~SCOPE(PGPX_SCOPE_SESSION),
								 InvalidSubTransactionId, PGPX_END_CHECKIN,
								 false);
			break;
		default:
			break;
	}
}

void
pgpx_lease_at_subxact(SubXactEvent event, SubTransactionId subid,
					  SubTransactionId parent)
{
	dlist_iter	iter;

	if (dlist_is_empty(&pgpx_leases))
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		leave_queue();
		(void) return_leases(OF_TRANSACTION, subid, PGPX_END_CHECKIN, false);
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		dlist_foreach(iter, &pgpx_leases)
		{
			PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

			if (lease->subid == subid)
				lease->subid = parent;
		}
}

static void
exit_callback(int code, Datum arg)
{
	PGPX_DEBUG_POINT("exit");

	leave_queue();
	pgpx_pending_statement_clear();
	(void) return_leases(ALL_SCOPES, InvalidSubTransactionId,
						 PGPX_END_RECLAIMED, false);
	pgpx_lock_hooks->release_all();
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
