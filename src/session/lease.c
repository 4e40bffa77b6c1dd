/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The leases of this session, the callbacks that end them, and their
 *	  notifications.
 *
 * A lease ends with its scope: at checkin, at the end of the transaction
 * or subtransaction that owns it, at the end of the call, and at the
 * latest with the session.  Commit, abort and exit callbacks must not
 * wait; abort and exit callbacks must not throw either.  A connection
 * whose stream is at a message boundary is released there as at checkin.
 * The worker cancels and closes any other.
 *
 * At process exit ShutdownPostgres aborts the transaction in a
 * before_shmem_exit callback.  Our on_shmem_exit callback runs later and
 * ends the leases that remain.  The reverse order would be harmless too:
 * the abort would find an empty list.  Both callbacks leave the queue
 * first.
 *
 * Notifications that arrive on a lease are queued until a caller reads
 * them.  They can arrive at any time, also while a result is drained after
 * an error, where nothing may throw.  The remote determines their number,
 * so the queue is bounded, and dropped notifications are counted.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "session/lease_return.h"
#include "session/lease_stream.h"

dlist_head	pgpx_leases = DLIST_STATIC_INIT(pgpx_leases);

/* recycled records, so that a checkout rarely allocates memory */
static dlist_head free_records = DLIST_STATIC_INIT(free_records);
static bool callbacks_registered = false;

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
pgpx_lease_forget(PgpxLease *lease)
{
	if (lease->sock != NULL)
	{
		lease->sock->leased = false;
		pgpx_session_unregister(lease->sock);
		pgpx_wire_trim(&lease->sock->wire); /* the socket may stay cached for
											 * long */
	}
	if (lease->id != 0)
		dlist_delete(&lease->node);
	if (lease->spec != NULL)
		pgpx_server_spec_unpin(lease->spec);
	pgpx_lease_clear_in_flight(lease);
	pgpx_notes_drop(lease);
	lease->id = 0;
	lease->sock = NULL;
	lease->spec = NULL;
	dlist_push_head(&free_records, &lease->node);
}

int
pgpx_lease_count(uint32 pool_id, int server)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		/* a revoked lease does not occupy a slot of the pool */
		if (pg_atomic_read_u64(&pgpx_conns[lease->conn].lease_id) != lease->id)
			continue;

		/* a broken connection counts only for max_connections */
		if (pgpx_conns[lease->conn].broken && (pool_id != 0 || server >= 0))
			continue;
		if ((pool_id == 0 || lease->spec->pool_id == pool_id) &&
			(server < 0 || pgpx_pools[lease->spec->pool].server == server))
			n++;
	}
	return n;
}

/*
 * Before commit or prepare: interrupts are served here and an error aborts the
 * local transaction.  So this is the last point at which a lease with an open
 * remote transaction can be refused.
 */
static void
before_commit(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);
		PgpxWire   *wire = &lease->sock->wire;

		if (lease->scope == PGPX_SCOPE_SESSION)
			continue;

		/* the hints would not help here, and the open work is lost */
		if (lease->in_flight != NULL || wire->tx != 'I')
			pgpx_lease_check_revoked(lease);
		if (wire->tx != 'I')
			pgpx_lease_check_broken(lease);
		if (lease->in_flight != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
					 errmsg("lease " UINT64_FORMAT " has a statement in flight",
							lease->id),
					 errdetail("A lease taken with checkout_xact ends with the local transaction, and what is in flight on it would be cancelled."),
					 errhint("Take its result with pgpool.result before the local transaction ends.")));

		/* in mid-answer, tx is the state after the previous statement */
		if (wire->tx != 'I')
			ereport(ERROR,
					(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
					 errmsg("lease " UINT64_FORMAT " has an open remote transaction",
							lease->id),
					 errdetail("A lease taken with checkout_xact ends with the local transaction, and what is open on it would be rolled back."),
					 errhint("Commit or roll back on the lease before the local transaction ends.")));
		pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
}

/*
 * Leave the queue before the leases are returned.  A process that exits while
 * it waits still has its waiter when its transaction is aborted (no other abort
 * finds one).  Its pending statement must not be sent on one of its own leases,
 * and a connection granted in the meantime must be handed on.
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
	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope != PGPX_SCOPE_SESSION)
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
}

static void
xact_callback(XactEvent event, void *arg)
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

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	dlist_mutable_iter iter;

	if (dlist_is_empty(&pgpx_leases))
		return;
	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		leave_queue();

	dlist_foreach_modify(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->scope == PGPX_SCOPE_SESSION || lease->subid != mySubid)
			continue;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			lease->subid = parentSubid;
		else
			pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
	}
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
}

void
pgpx_lease_register_callbacks(void)
{
	if (callbacks_registered)
		return;
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	on_shmem_exit(exit_callback, (Datum) 0);
	callbacks_registered = true;
}

bool
pgpx_lease_has_callbacks(void)
{
	return callbacks_registered;
}

/* Raise the error for an id that this session does not hold. */
pg_noreturn static void
raise_invalid_lease(int64 id)
{
	for (int i = 0; id > 0 && i < pgpx_shared->max_connections; i++)
		if (pg_atomic_read_u64(&pgpx_conns[i].lease_id) == (uint64) id)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("lease " INT64_FORMAT " belongs to another session", id)));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("lease " INT64_FORMAT " does not exist", id),
			 errdetail("It was returned, or it has ended with its transaction or session."),
			 errhint("View \"pgpool.leases\" shows the leases that are out.")));
}

static PgpxLease *
find(int64 id)
{
	dlist_iter	iter;

	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);

		if (lease->id == (uint64) id)
			return lease;
	}
	raise_invalid_lease(id);
}

/*
 * A lease of scope CALL is in use until the call is over.  A fanout holds
 * several: one may be complete while a row of another one is being converted.
 */
static void
check_not_in_use(PgpxLease *lease)
{
	if (lease->in_use || lease->scope == PGPX_SCOPE_CALL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lease " UINT64_FORMAT " is in use", lease->id),
				 errdetail("A function called while the result of a statement on this lease was read came back to it.")));
}

PgpxLease *
pgpx_lease_of(int64 id)
{
	PgpxLease  *lease = find(id);

	if (lease->user != GetUserId())
	{
		const char *name = GetUserNameFromId(lease->user, true);

		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("lease " UINT64_FORMAT " belongs to another user of this session",
						lease->id),
				 errdetail("It was taken by user \"%s\".", name ? name : "?")));
	}
	check_not_in_use(lease);
	pgpx_lease_check_revoked(lease);
	return lease;
}

PgpxLease *
pgpx_lease_for_return(int64 id)
{
	PgpxLease  *lease = find(id);

	check_not_in_use(lease);
	return lease;
}

int
pgpx_lease_return_all(void)
{
	dlist_mutable_iter iter;
	dlist_iter	poll;
	int			n = 0;

	dlist_foreach(poll, &pgpx_leases)
		check_not_in_use(dlist_container(PgpxLease, node, poll.cur));

	dlist_foreach_modify(iter, &pgpx_leases)
	{
		pgpx_lease_return(dlist_container(PgpxLease, node, iter.cur),
						  PGPX_END_CHECKIN, true);
		n++;
	}
	return n;
}

#define NOTES_MAX (1024 * 1024) /* bytes, per lease */

/* Allocate zeroed memory.  Returns NULL if there is none. */
static void *
get_memory(size_t size)
{
	return MemoryContextAllocExtended(TopMemoryContext, size,
									  MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO);
}

/*
 * Copy a NotificationResponse: process, channel, payload
 * (https://www.postgresql.org/docs/current/protocol-message-formats.html).
 * Returns NULL if it is malformed, larger than room, or if there is no memory.
 */
static PgpxNote *
copy_note(const PgpxWireMessage *msg, size_t room)
{
	const char *channel = msg->data + sizeof(int32);
	size_t		left = msg->len - sizeof(int32);
	size_t		channel_len;
	size_t		payload_len;
	uint32		pid;
	PgpxNote   *note;

	if (msg->len < sizeof(int32) || msg->len > room)
		return NULL;
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

	note = get_memory(offsetof(PgpxNote, channel) + channel_len + payload_len +
					  2);
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

	/* no caller can read those of a lease that ends with its call */
	if (lease->scope == PGPX_SCOPE_CALL)
		return;
	if (notes == NULL)
	{
		notes = get_memory(sizeof(*notes));
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
pgpx_notes_drop(PgpxLease *lease)
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
