/*-------------------------------------------------------------------------
 *
 * ticket.h
 *	  The queue of a pool: first come, first served.
 *
 *	  NONE --draw--> WAITING --grant--> GRANTED --leave--> NONE
 *	                    |  \                        ^
 *	                    |   +---fail--> FAILED -----+
 *	                    +----------- leave ---------+
 *
 * A ticket is made and ended by its own process only; grant and failure come
 * from whoever frees a connection, under the pool lock.  All ends go through
 * pgpx_ticket_leave: timeout, cancel, terminate and exit too.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TICKET_H
#define PGPX_TICKET_H

#include "pool.h"

/*
 * pgpx_ticket_draw_locked
 *		Queue this process, with what it has offered.  number 0 draws the next
 *		one; a number drawn before (a granted connection that proved dead) goes
 *		back to the head.
 */
extern PgpxTicket *pgpx_ticket_draw_locked(PgpxPool *pool,
										   const PgpxHolder *holder,
										   PgpxTime since, PgpxTime deadline,
										   uint64 number);

/*
 * pgpx_ticket_offer
 *		Have a statement stand ready for the ticket that is drawn next, if it is
 *		short enough: PGPX_OFFER_MAX bytes of messages that end with a Sync.
 */
extern void pgpx_ticket_offer(const char *messages, size_t len);

/* What has become of it: to be asked for after the ticket was left. */
extern PgpxOffer pgpx_ticket_offered(void);

/* The same of any ticket; of a waiting one under the pool's lock. */
static inline PgpxOffer
pgpx_ticket_offer_state(PgpxTicket *ticket)
{
	return PGPX_OFFER_STATE(pg_atomic_read_u32(&ticket->offer));
}

/*
 * pgpx_ticket_sent
 *		The granter has sent what the ticket offered (SENT), or not a byte of it
 *		(FAILED).  Until then its owner waits; and is to be woken.  False: it has
 *		left the queue meanwhile, and has its connection closed.
 */
extern bool pgpx_ticket_sent(const PgpxCarry *carry, PgpxOffer how);

/*
 * WAITING -> GRANTED with a free connection; the pool's serve calls it.  False if
 * the pool is out of service.
 */
extern bool pgpx_ticket_grant_locked(PgpxPool *pool, PgpxTicket *ticket,
									 PgpxConn *conn, PgpxWake *wake);

/* WAITING -> FAILED. */
extern void pgpx_ticket_fail_locked(PgpxPool *pool, PgpxTicket *ticket,
									int sqlstate, const char *text,
									PgpxWake *wake);

typedef enum PgpxLeave
{
	PGPX_LEAVE_CLAIM,			/* take what was granted */
	PGPX_LEAVE_TIMEOUT,			/* time is up; a grant in the meantime is taken */
	PGPX_LEAVE_CANCEL			/* ERROR, cancel, terminate, exit: a grant in the
								 * meantime is given on */
} PgpxLeave;

/*
 * pgpx_ticket_leave
 *		The one way out of the queue.
 *
 * Returns the state that the ticket had: GRANTED means that *conn and *lease_id
 * are the caller's (unless how is CANCEL: then it has been given on), FAILED
 * that sqlstate and text say why, WAITING that nothing came.  *waited is how
 * long the ticket stood, in microseconds.  Never throws.
 *
 * If the granter is just sending the statement that was offered, this waits for it,
 * in abort and at exit, too, but for a second only, since the granter may be stopped.
 * Then the offer is ABANDONED, the connection is cancelled and closed, and GRANTED is
 * returned without a connection: the statement may have run, or still run.
 */
extern PgpxTicketState pgpx_ticket_leave(PgpxTicket *ticket, PgpxLeave how,
										 PgpxConn **conn, uint64 *lease_id,
										 int *sqlstate, char *text,
										 PgpxTime *waited);

/*
 * Why a lease of this process was ended by somebody else; NONE: it was not, or
 * it was longer ago than PGPX_REVOKED_KEPT others of the process.  To be noted
 * before the lease's id is cleared, and asked for after that has been seen.
 */
extern void pgpx_ticket_note_revoked(int procno, uint64 lease_id,
									 PgpxRevoke reason);
extern PgpxRevoke pgpx_ticket_revoked(int procno, uint64 lease_id);

/* This process's ticket. */
extern PgpxTicket *pgpx_ticket_mine(void);

#endif							/* PGPX_TICKET_H */
