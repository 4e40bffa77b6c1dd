/*-------------------------------------------------------------------------
 *
 * checkout.h
 *	  A checkout from inside: what its files share.
 *
 *	  checkout.c		take a free connection, or queue
 *	  checkout_settle.c	its socket, and a look whether it lives
 *	  checkout_wait.c	the pool of a target, the conninfo for its worker, the
 *						wait for one's turn
 *	  checkout_error.c	reasons not to wait, and errors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_H
#define PGPX_CHECKOUT_H

#include "lease.h"
#include "ticket.h"

typedef struct PgpxCheckout
{
	PgpxTarget *target;			/* pinned */
	PgpxHolder	holder;
	bool		only_try;
	PgpxTime	started;
	int64		timeout;		/* ms, for the error; 0: did not wait */
	bool		no_wait;
	PgpxTime	deadline;		/* 0: for ever */
	uint64		number;			/* of the ticket, to go back to the head */
	PgpxTime	waited;
	uint64		told_epoch;		/* worker and version that we sent the */
	uint64		told_version;	/* conninfo for */
	bool		stale;			/* granted under others than we had read, or there are new ones */
	const PgpxStatement *statement; /* that it is for; NULL: unknown */
} PgpxCheckout;

/* --- checkout_wait.c ------------------------------------------------------- */

/* The pool of the target, locked, under the target's options. */
extern PgpxPool *pgpx_checkout_lock_pool(PgpxCheckout *c);

/*
 * Read the catalogs again.  False: they now lead to another pool, where nothing
 * of what was drawn and told counts.
 */
extern bool pgpx_checkout_refresh(PgpxCheckout *c);

/* Must the conninfo be sent before a connection can be asked for? */
extern bool pgpx_checkout_must_tell(const PgpxCheckout *c, const PgpxPool *pool,
									uint64 epoch);

/* Send the conninfo to the pool's worker.  Takes no lock; waits for room. */
extern void pgpx_checkout_tell(PgpxCheckout *c, int worker, uint64 epoch,
							   uint64 version);

/*
 * Leave the queue because of an error.  True: the statement had been sent; it is
 * cancelled, and may have run: 08006 then, so that nobody repeats it.
 */
extern bool pgpx_checkout_leave(PgpxTicket *ticket);

/*
 * pgpx_checkout_wait
 *		Wait for the ticket to be granted.  Returns the connection and fills in
 *		the lease's id; raises what came instead.  NULL: only with only_try; or
 *		*moved is set, the queue has been left, and the target has another pool.
 */
extern PgpxConn *pgpx_checkout_wait(PgpxCheckout *c, PgpxPool *pool,
									PgpxTicket *ticket, uint64 *lease_id,
									bool *moved);

/* --- checkout_settle.c ---------------------------------------------------- */

/*
 * How long a checkout goes on after its deadline with a connection that it has
 * been given: for the hand-over of the socket, or an answer that is owed.
 */
#define PGPX_CHECKOUT_GRACE_US (100 * 1000)

typedef enum PgpxSettled
{
	PGPX_SETTLED,
	PGPX_SETTLED_DEAD,			/* given back; try another one */
	PGPX_SETTLED_LATE			/* no time left; given back */
} PgpxSettled;

/*
 * pgpx_checkout_settle
 *		Fetch the socket of a lease that was taken, and see that it lives.  On an
 *		error, too, the lease is given back unless it is settled.
 */
extern PgpxSettled pgpx_checkout_settle(PgpxCheckout *c, PgpxLease *lease);

/*
 * pgpx_checkout_settle_quickly
 *		The same for a socket that is here and owed nothing, in which nothing can
 *		be thrown.  False: it is to be settled the long way.
 */
extern bool pgpx_checkout_settle_quickly(PgpxLease *lease);

/* --- checkout_error.c ------------------------------------------------------ */

/*
 * pgpx_checkout_check_locked
 *		Raise the reason not to queue, if there is one.  The lock is held, and
 *		given up before an error is raised.
 */
extern void pgpx_checkout_check_locked(PgpxCheckout *c, PgpxPool *pool);

/*
 * pgpx_checkout_check_cycle
 *		Leave the queue and raise 40P01 if all that could make room wait for ever, and
 *		this session is one of them.  To be called without a lock once the ticket is
 *		drawn: of two sessions that do so at once, one at least sees the other's.
 */
extern void pgpx_checkout_check_cycle(PgpxCheckout *c, PgpxPool *pool,
									  PgpxTicket *ticket);

/* 55P03, or PX003 if the worker does not run.  granted: it was, and then late. */
pg_noreturn extern void pgpx_checkout_raise_timeout(PgpxCheckout *c,
													PgpxPool *pool,
													bool granted);

/* 08001, or what else the connect's failure was. */
pg_noreturn extern void pgpx_checkout_raise_unreachable(PgpxCheckout *c,
														int sqlstate,
														const char *text,
														int64 wait_ms);

/* 08006: the statement was sent, and the answer cannot be had. */
pg_noreturn extern void pgpx_checkout_raise_lost(PgpxCheckout *c);

#endif							/* PGPX_CHECKOUT_H */
