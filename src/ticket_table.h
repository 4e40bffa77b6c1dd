/*-------------------------------------------------------------------------
 *
 * ticket_table.h
 *	  Who waits in the queues of the pools, as it lies in shared memory.
 *
 * What happens to a ticket, and who does it, is in ticket.h.  With it wait the
 * statement that its session offers to have sent (lease_carry.c), and, since no
 * other place is the process's own, the news of its leases that others have ended.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TICKET_TABLE_H
#define PGPX_TICKET_TABLE_H

#include "shmem.h"

typedef enum PgpxTicketState
{
	PGPX_TICKET_NONE = 0,
	PGPX_TICKET_WAITING,		/* in the pool's queue */
	PGPX_TICKET_GRANTED,		/* "conn" is LEASED to its session */
	PGPX_TICKET_FAILED			/* the connect failed; sqlstate and text say why */
} PgpxTicketState;

/*
 * A waiter that will run one statement may offer it: who returns a connection
 * then sends it along with the reset, see lease_carry.c.
 */
#define PGPX_OFFER_MAX 2048		/* bytes of messages */

typedef enum PgpxOffer
{
	PGPX_OFFER_NONE = 0,
	PGPX_OFFER_OPEN,			/* set with the ticket, under the pool lock */
	PGPX_OFFER_SENDING,			/* set with the grant; the granter is at it */
	PGPX_OFFER_SENT,			/* set by the granter without the lock */
	PGPX_OFFER_FAILED,			/* the same: not a byte of it has left */
	PGPX_OFFER_ABANDONED		/* set by the waiter, which has left the queue while
								 * the granter was stopped: it may be sent, even later */
} PgpxOffer;

/*
 * PgpxTicket.offer has the PgpxOffer in its low bits and above them a number that
 * changes with each ticket, so that a granter that was stopped cannot change the
 * state of a later offer.
 */
#define PGPX_OFFER_STATE(word)	((PgpxOffer) ((word) & 7))
#define PGPX_OFFER_WITH(word, state)	(((word) & ~UINT32_C(7)) | (state))
#define PGPX_OFFER_NEXT(word, state)	((((word) | 7) + 1) | (state))

/* Why a lease was ended by somebody else than its holder. */
typedef enum PgpxRevoke
{
	PGPX_REVOKE_NONE = 0,
	PGPX_REVOKE_WORKER,			/* the worker has ended */
	PGPX_REVOKE_TERMINATED,
	PGPX_REVOKE_TIMEOUT
} PgpxRevoke;

/*
 * A lease that was ended so.  Kept with its holder, since the place of the
 * connection may be another one's before the holder asks.
 */
#define PGPX_REVOKED_KEPT 16
typedef struct PgpxRevoked
{
	pg_atomic_uint64 lease_id;	/* 0: none */
	pg_atomic_uint32 reason;	/* PgpxRevoke */
} PgpxRevoked;

/*
 * A session waits in one queue at a time, so each process has one ticket, at
 * the index of its PGPROC.  Its own process makes and ends it; others move it
 * from WAITING to GRANTED or FAILED.  All under the lock of "pool".
 */
typedef struct PgpxTicket
{
	int			state;			/* PgpxTicketState */
	int			pool;
	int			next;			/* in the pool's queue; -1: end */
	int			prev;
	uint64		number;			/* rises along the queue */
	uint64		options_version;	/* the pool's when its options were seen to be ours */
	int			pid;
	Oid			user;
	Oid			database;
	int			scope;
	PgpxTime	since;
	PgpxTime	deadline;		/* 0: none */
	char		why[PGPX_WHY_LEN];
	char		application_name[NAMEDATALEN];

	/* atomic, PGPX_OFFER_STATE: what has become of the statement that waits with it */
	pg_atomic_uint32 offer;
	uint32		offer_len;		/* of its bytes in pgpx_offers */
	bool		offer_reset;	/* SENT: a reset went ahead of it */

	PgpxTime	granted_at;		/* GRANTED */
	uint64		granted_version;	/* GRANTED: the pool's options_version then */
	int			conn;			/* GRANTED: index of the connection */
	uint64		lease_id;		/* GRANTED: the lease */
	int			sqlstate;		/* FAILED */
	char		text[PGPX_ERROR_LEN];	/* FAILED: in the database's encoding or ASCII */

	/* atomic: the process's last leases that others have ended, in a ring */
	pg_atomic_uint32 nrevoked;
	PgpxRevoked revoked[PGPX_REVOKED_KEPT];
} PgpxTicket;

extern PgpxTicket *pgpx_tickets;	/* [ntickets], by MyProcNumber */
extern char *pgpx_offers;		/* [ntickets][PGPX_OFFER_MAX], of who waits */

/* Index of a ticket in its array. */
#define PGPX_TICKET_INDEX(t)	((int) ((t) - pgpx_tickets))

/* Where the statement that waits with a ticket lies. */
#define PGPX_OFFER_OF(t) \
	(pgpx_offers + (Size) ((t) - pgpx_tickets) * PGPX_OFFER_MAX)

#endif							/* PGPX_TICKET_TABLE_H */
