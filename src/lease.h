/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The leases of this session: checkout, checkin, and all the ways they end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_H
#define PGPX_LEASE_H

#include "kept.h"
#include "pool.h"
#include "target.h"

#include "lib/ilist.h"

typedef struct PgpxLease
{
	dlist_node	node;
	uint64		id;				/* 0: not in use */
	int			conn;
	uint64		generation;
	PgpxKept   *kept;			/* NULL until it is settled */
	PgpxTarget *target;			/* pinned */
	int			worker;
	Oid			user;
	int			scope;			/* PgpxScope */
	SubTransactionId subid;		/* that took it, or its parents */
	bool		in_use;			/* a statement runs on it right now */
	bool		sent;			/* something has been sent on it */
	int			offer;			/* PgpxOffer: SENT with its one statement, FAILED */
	uint64		ticket;			/* number that it waited under; 0: did not */
	PgpxTime	deadline;		/* of its checkout */
	bool		not_run;		/* its statement: the reset ahead has failed */
	const char *broken;			/* why it cannot be used any more */
	bool		read_only;		/* the remote has refused to write */
	struct PgpxFlight *flight;	/* sent, its result not yet taken; NULL: none */
	size_t		scanned;		/* of its answer, see pgpx_wire_answered */
	bool		cancelled;		/* a cancel of it was asked for */
	struct PgpxNotes *notes;	/* notifications that came in; NULL: none */
	PgpxUsage	usage;
} PgpxLease;

/* Which timeout a call has given. */
#define PGPX_TIMEOUT_DEFAULT (-1)	/* none: GUC, then the server's option */

/* --- checkout.c, checkout_error.c ---------------------------------------- */

/* The timeout that counts, in ms: the call's, the GUC's, the option's; 0: none. */
extern int64 pgpx_lease_timeout(const PgpxTarget *target, int64 timeout);

/*
 * pgpx_lease_checkout
 *		Lease a connection of a server's pool for the current user.
 *
 * timeout: milliseconds, 0 not to wait, or PGPX_TIMEOUT_DEFAULT.  only_try:
 * NULL instead of an error when none is free now.  why may be NULL.
 *
 * Errors: those of pgpx_target_get; 55P03 timeout; 53300 queue full, or shared
 * memory used up; 40P01 would wait for itself; 08001 the remote cannot be
 * reached; PX003 the worker does not run.
 */
extern PgpxLease *pgpx_lease_checkout(const char *server, int64 timeout,
									  bool only_try, PgpxScope scope,
									  const char *why);

/*
 * The statement that a lease of scope CALL is for.  While the checkout waits its
 * turn, who returns a connection may send it: then pgpx_run_send finds it sent.
 */
typedef struct PgpxStatement
{
	const char *sql;
	int			nparams;
	const char *const *values;
	bool		one;			/* it is one statement for sure */
	bool		known;			/* shape is that of its sink */
	uint64		shape;

	/* a lease whose statement was not run: wait on under its number */
	uint64		ticket;
	uint32		pool_id;
	PgpxTime	deadline;
} PgpxStatement;

/*
 * pgpx_lease_checkout_for
 *		The same for one statement, with the timeout of the GUC or the server.
 */
extern PgpxLease *pgpx_lease_checkout_for(const char *server,
										  const PgpxStatement *statement);

/*
 * pgpx_lease_prewarm
 *		Have the current user's pool of a server open n connections, within its
 *		caps.  Waits until they are open or the deadline (0: none) has passed;
 *		returns how many are open.  Errors as of a checkout.
 */
extern int	pgpx_lease_prewarm(const char *server, int n, PgpxTime deadline);

/*
 * pgpx_lease_check_endless
 *		40P01 if this session holds a lease that others may wait for.  To be called
 *		before it waits without a timeout, whatever for.
 */
extern void pgpx_lease_check_endless(void);

/*
 * pgpx_lease_tell_worker
 *		Tell the pool's worker how to connect, if it does not know.
 */
extern void pgpx_lease_tell_worker(PgpxTarget *target);

/* --- lease.c ------------------------------------------------------------- */

/*
 * pgpx_lease_return
 *		End a lease.
 *
 * A remote transaction that is open is rolled back ahead of the reset; nobody waits
 * for the answer.  Where the stream is not at a message boundary the connection is
 * closed.  may_wait: the caller may wait and throw, and an open transaction is
 * reported by a WARNING; else nothing waits and nothing throws.  The lease is gone
 * afterwards.
 */
extern void pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_wait);

/* Raise what took the lease away, if something did. */
extern void pgpx_lease_check_revoked(PgpxLease *lease);

/* The lease cannot be used any more: raise 08006 now and at each later use. */
pg_noreturn extern void pgpx_lease_broken(PgpxLease *lease, const char *why,
										  const char *remote_words);

/* Raise that again, if it is so. */
extern void pgpx_lease_check_broken(PgpxLease *lease);

/*
 * Before a statement, when no cancel is on its way that we know of: end the lease if
 * one was lost.  It may still come, and nobody can tell when.
 */
extern void pgpx_lease_check_lost_cancel(PgpxLease *lease);

/* Until when an operation of our own may last that begins now. */
extern PgpxTime pgpx_lease_operation_deadline(const PgpxLease *lease);

/* Send what the wire has; waits, serves interrupts.  False: stream broken. */
extern bool pgpx_lease_flush(PgpxLease *lease, PgpxTime deadline);

/*
 * pgpx_lease_drain
 *		Read and drop until the stream is at a boundary.
 *
 * Bounded by bytes (0: unbounded) and the deadline.  quiet: no interrupts are
 * served, nothing is thrown.  True if the boundary was reached.
 */
extern bool pgpx_lease_drain(PgpxLease *lease, size_t bytes, PgpxTime deadline,
							 bool quiet);

/* The statement in flight, if there is one, is none any more. */
extern void pgpx_lease_land(PgpxLease *lease);

/* Ask the worker to cancel what runs on the lease. */
extern void pgpx_lease_cancel(PgpxLease *lease);

/* Tell the views, after a statement, what the remote transaction's state says. */
extern void pgpx_lease_rest(PgpxLease *lease);

/* --- lease_carry.c ------------------------------------------------------- */

/* Have a statement stand ready for the ticket to be drawn, if that can be. */
extern void pgpx_lease_offer(const PgpxTarget *target,
							 const PgpxStatement *statement);

/*
 * pgpx_lease_carry
 *		End a lease by sending, for the first in the queue, the statement that it
 *		waits with, after a reset.  False: nothing is done; return it as usual.
 *		Never waits, never throws.
 */
extern bool pgpx_lease_carry(PgpxLease *lease);

/* --- lease_notes.c ------------------------------------------------------- */

/* A notification, in the memory of the list that it is in. */
typedef struct PgpxNote
{
	struct PgpxNote *next;
	int32		remote_pid;
	char	   *payload;
	char		channel[FLEXIBLE_ARRAY_MEMBER];
} PgpxNote;

typedef struct PgpxNotes
{
	PgpxNote   *first;
	PgpxNote  **last;
	size_t		bytes;
	uint64		dropped;		/* for want of room, since the last look */
} PgpxNotes;

/*
 * Keep a notification for pgpool.notifications, within a bound.  Throws nothing:
 * one that cannot be kept, or that is malformed, is dropped and counted.
 */
extern void pgpx_notes_keep(PgpxLease *lease, const PgpxWireMessage *msg);

/* Free what is kept. */
extern void pgpx_notes_drop(PgpxLease *lease);

/* --- lease_table.c ------------------------------------------------------- */

extern dlist_head pgpx_leases;	/* of this session */

/* A record that is not in the list yet: to put a lease into it cannot fail. */
extern PgpxLease *pgpx_lease_alloc(void);

/* Take a lease out of the list, if it is in it; the record is used again. */
extern void pgpx_lease_forget(PgpxLease *lease);

/* Register exit and transaction callbacks, once. */
extern void pgpx_lease_register_callbacks(void);

/* Has this session asked for a lease at any time?  (Then they are registered.) */
extern bool pgpx_lease_were_any(void);

/*
 * pgpx_lease_of
 *		A lease by its id, for use by the current user.
 *
 * Errors: 55000 stale or in use, 42501 of another session or user; 08006 or
 * PX00n if it was taken away.
 */
extern PgpxLease *pgpx_lease_of(int64 id);

/*
 * pgpx_lease_for_return
 *		The same for giving it back: by the session, whatever the user; one that
 *		was taken away is returned too.
 */
extern PgpxLease *pgpx_lease_for_return(int64 id);

/* Return all leases of session and transaction scope.  Returns how many. */
extern int	pgpx_lease_return_all(void);

/*
 * How many leases this session holds: of a pool, by its id (0: any), of a server,
 * by the index of its record (-1: any).
 */
extern int	pgpx_lease_count(uint32 pool_id, int server);

#endif							/* PGPX_LEASE_H */
