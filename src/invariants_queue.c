/*-------------------------------------------------------------------------
 *
 * invariants_queue.c
 *	  Does a pool's queue add up?  The tickets' part of invariants.c.
 *
 * Runs under the pool's lock; shared memory only.
 *
 *-------------------------------------------------------------------------
 */
#include "invariants.h"

#include "ticket.h"

/*
 * A granted ticket has the lease that it says.  Between grant and claim the lease
 * can be taken away, which the ticket remembers for so many leases of its process;
 * then the place may be anything's, and what is there was opened after the ticket
 * was drawn.
 */
static void
check_granted(PgpxCheck *check, PgpxTicket *ticket)
{
	int			index = PGPX_TICKET_INDEX(ticket);
	PgpxConn   *conn;

	if (ticket->conn < 0 || ticket->conn >= pgpx_shared->max_connections)
	{
		pgpx_check_fault(check, "ticket %d was granted connection %d", index, ticket->conn);
		return;
	}

	conn = &pgpx_conns[ticket->conn];
	if (conn->pool != check->index)
		return;
	if (pg_atomic_read_u64(&conn->lease_id) == ticket->lease_id)
	{
		if (conn->state != PGPX_CONN_LEASED || conn->owner_procno != index ||
			conn->owner_pid != ticket->pid)
			pgpx_check_fault(check, "ticket %d of process %d was granted lease " UINT64_FORMAT ", which process %d holds",
							 index, ticket->pid, ticket->lease_id,
							 conn->owner_pid);
	}
	else if (pgpx_ticket_revoked(index, ticket->lease_id) == PGPX_REVOKE_NONE &&
			 conn->opened_at != 0 &&
			 conn->opened_at < ticket->since)
		pgpx_check_fault(check, "ticket %d of process %d was granted lease " UINT64_FORMAT ", but connection %d has lease " UINT64_FORMAT,
						 index, ticket->pid, ticket->lease_id, ticket->conn,
						 pg_atomic_read_u64(&conn->lease_id));
}

/* The queue: links, order, and nobody left out.  Returns its length. */
static int
check_queue(PgpxCheck *check)
{
	PgpxPool   *pool = check->pool;
	int			last = -1;
	int			n = 0;

	for (int i = pool->queue_head; i != -1; i = pgpx_tickets[i].next)
	{
		PgpxTicket *ticket;

		if (i < 0 || i >= pgpx_shared->ntickets)
		{
			pgpx_check_fault(check, "queue leads to ticket %d", i);
			return n;
		}
		ticket = &pgpx_tickets[i];
		if (ticket->pool != check->index ||
			ticket->state != PGPX_TICKET_WAITING)
		{
			pgpx_check_fault(check, "ticket %d in the queue is in state %d and of pool place %d",
							 i, ticket->state, ticket->pool);
			return n;
		}
		if (ticket->prev != last)
		{
			pgpx_check_fault(check, "ticket %d in the queue is linked to %d before it, not to %d",
							 i, ticket->prev, last);
			return n;
		}
		if (last >= 0 && ticket->number <= pgpx_tickets[last].number)
			pgpx_check_fault(check, "ticket %d with number " UINT64_FORMAT " stands behind number " UINT64_FORMAT,
							 i, ticket->number, pgpx_tickets[last].number);
		if (!pgpx_check_is_alive(i, ticket->pid))
			pgpx_check_fault(check, "ticket %d belongs to process %d, which does not exist",
							 i, ticket->pid);
		last = i;
		n++;
	}
	if (pool->queue_tail != last)
		pgpx_check_fault(check, "queue ends with ticket %d, not with %d",
						 pool->queue_tail, last);
	if (pool->nwaiting != n)
		pgpx_check_fault(check, "%d tickets are in the queue, but the pool counts %d",
						 n, pool->nwaiting);
	return n;
}

int
pgpx_check_tickets(PgpxCheck *check)
{
	PgpxPool   *pool = check->pool;
	int			waiting = check_queue(check);
	int			served = 0;

	/*
	 * WAITING ones are told by the queue alone: a session that queues
	 * elsewhere may have left this pool's number in its ticket.
	 */
	for (int i = 0; i < pgpx_shared->ntickets; i++)
	{
		PgpxTicket *ticket = &pgpx_tickets[i];

		if (ticket->pool != check->index ||
			(ticket->state != PGPX_TICKET_GRANTED &&
			 ticket->state != PGPX_TICKET_FAILED))
			continue;
		served++;
		if (ticket->state == PGPX_TICKET_GRANTED)
			check_granted(check, ticket);
	}
	if (pool->nticket != waiting + served)
		pgpx_check_fault(check, "%d tickets wait and %d were served, but the pool counts %d",
						 waiting, served, pool->nticket);
	return waiting;
}
