/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The leases of this session: their records, checks before use,
 *	  notifications, and stream.
 *
 * Notifications that arrive on a lease are queued until a caller reads
 * them.  They can arrive at any time, also while a result is drained after
 * an error, when no other error may be raised.  The remote determines their
 * number, so the queue is bounded, and dropped notifications are counted.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease.h"

#include <poll.h>

#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "protocol/remote_message.h"

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

		/* a revoked lease no longer has a connection */
		if (pg_atomic_read_u64(&pgpx_conns[lease->conn].lease_id) != lease->id)
			continue;

		/* a broken connection keeps no session from a connection */
		if (pgpx_conns[lease->conn].broken)
			continue;
		if ((pool_id == 0 || lease->spec->pool_id == pool_id) &&
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

void
pgpx_lease_raise_broken(PgpxLease *lease, const char *reason,
						const char *remote_text)
{
	int			error = pg_atomic_read_u32(&pgpx_conns[lease->conn].end_error);

	/* if the worker ended the lease, report that reason instead */
	pgpx_lease_check_revoked(lease);

	/* the relay of a TLS connection has seen why it has ended */
	if (error != 0 && reason == pgpx_wire_end_reason(0))
		reason = pgpx_wire_end_reason(error);
	if (remote_text == NULL)
		remote_text = lease->last_message;
	if (lease->broken == NULL)
		lease->broken = reason;
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

	if (lease->last_message != NULL || !pgpx_wire_parse_error(msg, &fields) ||
		fields.primary == NULL)
		return;
	code = pgpx_parse_sqlstate(fields.sqlstate, 0);
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
	const PgpxWire *wire = &lease->sock->wire;

	if (lease->broken != NULL)
		pgpx_lease_raise_broken(lease, lease->broken, NULL);
	if (wire->phase == PGPX_WIRE_BROKEN)
		pgpx_lease_raise_broken(lease, wire->broken, NULL);
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
	size_t		left;
	size_t		channel_len;
	size_t		payload_len;
	uint32		pid;
	PgpxNote   *note;

	if (msg->len < sizeof(int32) || msg->len > room)
		return NULL;
	left = msg->len - sizeof(int32);
	channel_len = strnlen(channel, left);
	if (channel_len == left)
		return NULL;
	left -= channel_len + 1;
	payload_len = strnlen(channel + channel_len + 1, left);
	if (payload_len == left ||
		!pg_verify_mbstr(GetDatabaseEncoding(), channel, channel_len, true) ||
		!pg_verify_mbstr(GetDatabaseEncoding(), channel + channel_len + 1,
						 payload_len, true))
		return NULL;

	note = alloc_zero(offsetof(PgpxNote, channel) + channel_len + 1 +
					  payload_len + 1);
	if (note == NULL)
		return NULL;
	memcpy(&pid, msg->data, sizeof(pid));
	note->remote_pid = (int32) pg_ntoh32(pid);
	memcpy(note->channel, channel, channel_len + payload_len + 2);
	note->payload = note->channel + channel_len + 1;
	return note;
}

void
pgpx_lease_store_note(PgpxLease *lease, const PgpxWireMessage *msg)
{
	PgpxNotes  *notes = lease->notes;
	PgpxNote   *note;

	/* SQL cannot read the notifications of these leases */
	if (lease->scope == PGPX_SCOPE_CALL || lease->scope == PGPX_SCOPE_TABLE)
		return;
	if (notes == NULL)
	{
		notes = alloc_zero(sizeof(*notes));
		if (notes == NULL)
			return;
		notes->last = &notes->first;
		lease->notes = notes;
	}
	note = copy_note(msg, NOTES_MAX - notes->bytes);
	if (note == NULL)
	{
		notes->dropped++;
		return;
	}
	notes->bytes += Min(msg->len + sizeof(*note), NOTES_MAX - notes->bytes);
	*notes->last = note;
	notes->last = &note->next;
}

void
pgpx_lease_drop_notes(PgpxLease *lease)
{
	PgpxNotes  *notes = lease->notes;

	if (notes == NULL)
		return;
	for (PgpxNote *note = notes->first; note != NULL;)
	{
		PgpxNote   *next = note->next;

		pfree(note);
		note = next;
	}
	pfree(notes);
	lease->notes = NULL;
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

/* pgpx_stream_drain; if it is quiet, wire->no_oom must be set. */
static bool
drain(PgpxLease *lease, size_t bytes, PgpxTime deadline, bool quiet)
{
	static uint32 wait_event = 0;
	PgpxCachedSocket *sock = lease->sock;
	PgpxWire   *wire = &sock->wire;
	uint64		start = wire->bytes_in;

	if (quiet ? pgpx_wire_flush(wire) != 1 :
		!pgpx_stream_flush(lease, deadline))
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
					!(quiet ?
					  wait_quietly(wire->fd, deadline,
								   pgpx_wait_event(&wait_event, "PgpoolDrain")) :
					  pgpx_session_wait(sock, WL_SOCKET_READABLE, deadline,
										pgpx_wait_event(&wait_event, "PgpoolDrain"))))
					return false;
				break;
			default:
				break;
		}
	}
}

bool
pgpx_stream_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline, bool quiet)
{
	PgpxWire   *wire = &lease->sock->wire;
	bool		drained;

	Assert(bytes > 0 || !quiet);
	wire->no_oom = quiet;
	drained = drain(lease, bytes, deadline, quiet);
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
