/*-------------------------------------------------------------------------
 *
 * lease_stream.c
 *	  The stream of a lease: flush, drain, cancel.
 *
 * Runs in sessions only, on the socket of a lease.
 *
 *-------------------------------------------------------------------------
 */
#include "session/lease_stream.h"

#include <poll.h>

#include "storage/latch.h"

/* Limit on the input to buffer while the statement is still being sent. */
#define FLUSH_AHEAD_MAX (1024 * 1024)

/* Interval at which a wait without interrupts checks the clock. */
#define QUIET_CHECK_MS 1000

void
pgpx_stream_report_activity(PgpxLease *lease)
{
	if (lease->sock->wire.phase == PGPX_WIRE_BROKEN)
		pgpx_lease_set_activity(lease, PGPX_ACT_BROKEN);
	else if (lease->sock->wire.tx == 'T')
		pgpx_lease_set_activity(lease, PGPX_ACT_TRANSACTION);
	else if (lease->sock->wire.tx == 'E')
		pgpx_lease_set_activity(lease, PGPX_ACT_FAILED);
	else
		pgpx_lease_set_activity(lease, PGPX_ACT_IDLE);
}

void
pgpx_stream_check_lost_cancel(PgpxLease *lease)
{
	PgpxWire   *wire = &lease->sock->wire;

	if (!pgpx_conn_cancel_is_lost(&pgpx_conns[lease->conn]))
		return;
	pgpx_wire_break(wire, "a cancel request did not end within operation_timeout");
	pgpx_lease_raise_broken(lease, wire->broken, NULL);
}

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
		 * A remote that is blocked sending its answer does not read, so read
		 * its input, within a bound.
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
 * Wait for input without serving interrupts.  Returns false if the deadline has
 * passed.
 */
static bool
wait_quietly(int fd, PgpxTime deadline)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	PgpxTime	now = pgpx_now();

	if (now >= deadline)
		return false;
	(void) poll(&pfd, 1,
				(int) Min((deadline - now) / 1000 + 1, QUIET_CHECK_MS));
	return true;
}

bool
pgpx_stream_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline, bool quiet)
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
				if (pgpx_wire_at_boundary(wire))
					return true;
				break;
			case PGPX_EV_COPY:
				/* the wire has put CopyFail into the output buffer */
				if (pgpx_wire_flush(wire) != 1)
					return false;
				break;
			case PGPX_EV_NOTIFICATION:
				pgpx_lease_store_note(lease, &msg);
				break;
			case PGPX_EV_NEED_INPUT:
				if (wire->phase == PGPX_WIRE_IDLE)
					return pgpx_wire_at_boundary(wire);
				if (bytes != 0 && wire->bytes_in - start > bytes)
					return false;
				n = pgpx_wire_fill(wire, &full);

				/* without a bound on bytes, check the clock after each read */
				if (n > 0 && bytes == 0)
				{
					CHECK_FOR_INTERRUPTS();
					if (deadline != 0 && pgpx_now() >= deadline)
						return false;
				}
				if (n == 0 &&
					!(quiet ? wait_quietly(wire->fd, deadline) :
					  pgpx_session_wait(sock, WL_SOCKET_READABLE, deadline,
										pgpx_wait_event(&wait_event, "PgpoolDrain"))))
					return false;
				break;
			default:
				break;
		}
	}
}

void
pgpx_stream_cancel(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxPool   *pool = &pgpx_pools[lease->spec->pool];
	uint32		none = PGPX_CANCEL_NONE;
	bool		ask;

	/*
	 * The lock prevents that the lease is revoked in between and the request
	 * cancels a statement of the connection's next lease.
	 */
	LWLockAcquire(pool->lock, LW_SHARED);
	ask = pg_atomic_read_u64(&conn->lease_id) == lease->id;
	if (ask)
	{
		pgpx_lease_set_activity(lease, PGPX_ACT_CANCELLING);
		ask = pg_atomic_compare_exchange_u32(&conn->cancel, &none,
											 PGPX_CANCEL_REQUESTED);
	}
	LWLockRelease(pool->lock);
	if (ask)
		pgpx_conn_notify_worker(conn, lease->worker);
}
