/*-------------------------------------------------------------------------
 *
 * wait_queue.c
 *	  The queue of a pool: see the picture in wait_queue.h.
 *
 * Shared memory only.  The rule that every pool has broken at least once: a
 * ticket that was granted while its owner was timing out or being cancelled is
 * either taken or given on, never forgotten.  Hence one way out, under the lock.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/wait_queue.h"

#include "base/debug_point.h"
#include "shared/pool.h"

/*
 * A waiter that leaves while its statement is being sent looks so often whether it
 * has been sent, at first and later, and for so long: the granter does nothing that
 * waits, but may be stopped, or get no processor.
 */
#define SENDING_US 20
#define SENDING_LATER_US 1000
#define SENDING_MOST_US (1000 * 1000)

PgpxTicket *
pgpx_ticket_mine(void)
{
	return &pgpx_tickets[MyProcNumber];
}

void
pgpx_ticket_offer(const char *messages, size_t len)
{
	PgpxTicket *ticket = pgpx_ticket_mine();

	Assert(ticket->state == PGPX_TICKET_NONE);

	/* values that are nobody else's business */
	if (ticket->offer_len > 0)
		memset(PGPX_OFFER_OF(ticket), 0, ticket->offer_len);
	ticket->offer_len = 0;
	if (len > PGPX_OFFER_MAX)
		return;
	if (len > 0)
		memcpy(PGPX_OFFER_OF(ticket), messages, len);
	ticket->offer_len = len;
}

PgpxOffer
pgpx_ticket_offered(void)
{
	return pgpx_ticket_offer_state(pgpx_ticket_mine());
}

bool
pgpx_ticket_sent(const PgpxCarry *carry, PgpxOffer how)
{
	uint32		expected = carry->offer;

	return pg_atomic_compare_exchange_u32(&carry->ticket->offer, &expected,
										  PGPX_OFFER_WITH(expected, how));
}

/*
 * Wait until what the ticket offers is not being sent.  Called and returns with the
 * pool's lock held, which is released meanwhile.  False: the offer was abandoned.
 */
static bool
await_sender(PgpxPool *pool, PgpxTicket *ticket)
{
	long		pause = SENDING_US;
	PgpxTime	until = 0;

	while (pgpx_ticket_offer_state(ticket) == PGPX_OFFER_SENDING)
	{
		uint32		word = pg_atomic_read_u32(&ticket->offer);
		uint32		left = PGPX_OFFER_WITH(word, PGPX_OFFER_ABANDONED);

		if (until == 0)
			until = pgpx_now() + SENDING_MOST_US;
		else if (pgpx_now() >= until &&
				 PGPX_OFFER_STATE(word) == PGPX_OFFER_SENDING &&
				 pg_atomic_compare_exchange_u32(&ticket->offer, &word, left))
			return false;
		LWLockRelease(pool->lock);
		pg_usleep(pause);
		pause = Min(pause * 2, SENDING_LATER_US);
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	}
	return true;
}

static void
queue_insert(PgpxPool *pool, PgpxTicket *ticket)
{
	int			index = PGPX_TICKET_INDEX(ticket);
	int			after = pool->queue_tail;

	/* nearly always the tail; a number drawn before goes towards the head */
	while (after >= 0 && pgpx_tickets[after].number > ticket->number)
		after = pgpx_tickets[after].prev;

	ticket->prev = after;
	ticket->next = after >= 0 ? pgpx_tickets[after].next : pool->queue_head;
	if (ticket->next >= 0)
		pgpx_tickets[ticket->next].prev = index;
	else
		pool->queue_tail = index;
	if (after >= 0)
		pgpx_tickets[after].next = index;
	else
		pool->queue_head = index;
	pool->nwaiting++;
}

static void
queue_remove(PgpxPool *pool, PgpxTicket *ticket)
{
	if (ticket->prev >= 0)
		pgpx_tickets[ticket->prev].next = ticket->next;
	else
		pool->queue_head = ticket->next;
	if (ticket->next >= 0)
		pgpx_tickets[ticket->next].prev = ticket->prev;
	else
		pool->queue_tail = ticket->prev;
	ticket->next = ticket->prev = -1;
	pool->nwaiting--;
}

PgpxTicket *
pgpx_ticket_draw_locked(PgpxPool *pool, const PgpxHolder *holder,
						PgpxTime since, PgpxTime deadline, uint64 number)
{
	PgpxTicket *ticket = pgpx_ticket_mine();

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	Assert(ticket->state == PGPX_TICKET_NONE);

	ticket->pool = PGPX_POOL_INDEX(pool);
	ticket->number = number != 0 ? number : ++pool->next_ticket;
	ticket->options_version = pool->options_version;
	ticket->pid = holder->pid;
	ticket->user = holder->user;
	ticket->database = holder->database;
	ticket->scope = holder->scope;
	ticket->since = since;
	ticket->deadline = deadline;
	strlcpy(ticket->why, holder->why ? holder->why : "", sizeof(ticket->why));
	strlcpy(ticket->application_name,
			holder->application_name ? holder->application_name : "",
			sizeof(ticket->application_name));
	ticket->conn = -1;
	ticket->lease_id = 0;
	ticket->sqlstate = 0;
	ticket->text[0] = '\0';
	pg_atomic_write_u32(&ticket->offer,
						PGPX_OFFER_NEXT(pg_atomic_read_u32(&ticket->offer),
										ticket->offer_len > 0 ?
											PGPX_OFFER_OPEN :
											PGPX_OFFER_NONE));

	/* last: pgpx_checkout_check_cycle looks without the lock */
	pg_write_barrier();
	ticket->state = PGPX_TICKET_WAITING;

	queue_insert(pool, ticket);
	pool->nticket++;
	pool->stats.waited++;
	return ticket;
}

bool
pgpx_ticket_grant_locked(PgpxPool *pool, PgpxTicket *ticket, PgpxConn *conn,
						 PgpxWake *wake)
{
	PgpxHolder	holder = {
		.procno = PGPX_TICKET_INDEX(ticket),
		.pid = ticket->pid,
		.user = ticket->user,
		.database = ticket->database,
		.scope = ticket->scope,
		.why = ticket->why,
		.application_name = ticket->application_name,
	};
	PgpxTime	now = pgpx_now();
	uint64		lease_id;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	lease_id = pgpx_pool_take_locked(pool, conn, &holder, now,
									 now - ticket->since);
	if (lease_id == 0)
		return false;
	queue_remove(pool, ticket);
	ticket->state = PGPX_TICKET_GRANTED;
	ticket->granted_at = now;
	ticket->granted_version = pool->options_version;
	ticket->conn = PGPX_CONN_INDEX(conn);
	ticket->lease_id = lease_id;
	pgpx_wake_add(wake, holder.procno);
	return true;
}

void
pgpx_ticket_fail_locked(PgpxPool *pool, PgpxTicket *ticket, int sqlstate,
						const char *text, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	queue_remove(pool, ticket);
	ticket->state = PGPX_TICKET_FAILED;
	ticket->sqlstate = sqlstate;
	strlcpy(ticket->text, text, sizeof(ticket->text));
	pgpx_wake_add(wake, PGPX_TICKET_INDEX(ticket));
}

PgpxTicketState
pgpx_ticket_leave(PgpxTicket *ticket, PgpxLeave how, PgpxConn **conn,
				  uint64 *lease_id, int *sqlstate, char *text,
				  PgpxTime *waited)
{
	PgpxPool   *pool = &pgpx_pools[ticket->pool];
	PgpxTicketState was;
	PgpxConn   *granted = NULL;
	uint64		granted_lease = 0;

	/* only this process makes or ends its ticket: no lock to look at it */
	if (ticket->state == PGPX_TICKET_NONE)
		return PGPX_TICKET_NONE;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (!await_sender(pool, ticket))
		how = PGPX_LEAVE_CANCEL;
	was = ticket->state;
	*waited = pgpx_now() - ticket->since;

	switch (was)
	{
		case PGPX_TICKET_WAITING:
			queue_remove(pool, ticket);
			if (how == PGPX_LEAVE_TIMEOUT)
				pool->stats.timeouts++;
			else
				pool->stats.cancelled++;
			break;
		case PGPX_TICKET_GRANTED:
			granted = &pgpx_conns[ticket->conn];
			granted_lease = ticket->lease_id;
			if (how == PGPX_LEAVE_CANCEL)
				pool->stats.cancelled++;
			else
			{
				pool->stats.granted++;
				if (pgpx_ticket_offered() == PGPX_OFFER_SENT)
				{
					pool->stats.carried++;
					*waited = ticket->granted_at - ticket->since;
				}
			}
			break;
		case PGPX_TICKET_FAILED:
			if (how == PGPX_LEAVE_CANCEL)
				pool->stats.cancelled++;
			else
				pool->stats.failed++;
			*sqlstate = ticket->sqlstate;
			if (text != NULL)
				strlcpy(text, ticket->text, PGPX_ERROR_LEN);
			break;
		default:
			break;
	}
	ticket->state = PGPX_TICKET_NONE;
	if (ticket->offer_len > 0)	/* the length is still asked for */
		memset(PGPX_OFFER_OF(ticket), 0, ticket->offer_len);
	pool->nticket--;
	pgpx_stats_waited_locked(pool, *waited);
	pgpx_pool_note_end_locked(pool);
	LWLockRelease(pool->lock);

	if (granted != NULL && how == PGPX_LEAVE_CANCEL)
	{
		PgpxOffer	offer = pgpx_ticket_offered();
		bool		sent = offer == PGPX_OFFER_SENT ||
			offer == PGPX_OFFER_ABANDONED;

		/*
		 * Given on, if nothing was sent on it.  Between the two lock sections
		 * it is LEASED to a process that has no ticket: nobody else can want
		 * it then.
		 */
		PGPX_DEBUG_POINT("given_on");
		pgpx_pool_give(granted, granted_lease, PGPX_END_RETRIED,
					   sent ? PGPX_GIVE_CANCEL_CLOSE :
					   offer == PGPX_OFFER_FAILED ? PGPX_GIVE_CLOSE :
					   PGPX_GIVE_AS_IT_WAS, 0,
					   sent ? PGPX_CLOSE_HOLDER_DIED :
					   PGPX_CLOSE_BROKEN, NULL);
	}
	else
	{
		*conn = granted;
		*lease_id = granted_lease;
	}
	return was;
}

void
pgpx_ticket_note_revoked(int procno, uint64 lease_id, PgpxRevoke reason)
{
	PgpxTicket *ticket = &pgpx_tickets[procno];
	PgpxRevoked *revoked;

	/* two pools may do this at once: atomic, not under one lock */
	revoked = &ticket->revoked[pg_atomic_fetch_add_u32(&ticket->nrevoked, 1) %
							   PGPX_REVOKED_KEPT];
	pg_atomic_write_u64(&revoked->lease_id, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&revoked->reason, reason);
	pg_write_barrier();
	pg_atomic_write_u64(&revoked->lease_id, lease_id);
	pg_write_barrier();
}

PgpxRevoke
pgpx_ticket_revoked(int procno, uint64 lease_id)
{
	pg_read_barrier();
	for (int i = 0; i < PGPX_REVOKED_KEPT; i++)
	{
		PgpxRevoked *revoked = &pgpx_tickets[procno].revoked[i];

		if (pg_atomic_read_u64(&revoked->lease_id) == lease_id)
		{
			pg_read_barrier();
			return (PgpxRevoke) pg_atomic_read_u32(&revoked->reason);
		}
	}
	return PGPX_REVOKE_NONE;
}
