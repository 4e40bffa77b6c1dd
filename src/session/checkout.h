/*-------------------------------------------------------------------------
 *
 * checkout.h
 *	  Checkout: lease a free connection, or queue; validate it.
 *
 * A checkout from inside: what its files share.
 *
 *	  checkout.c		take a free connection, or queue
 *	  checkout.c	its socket, and a look whether it lives
 *	  checkout_wait.c	the pool of a target, the conninfo for its worker, the
 *						wait for one's turn
 *	  checkout_wait.c	reasons not to wait, and errors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_H
#define PGPX_CHECKOUT_H

#include "session/lease.h"

/* Which timeout a call has given. */
#define PGPX_TIMEOUT_DEFAULT (-1)	/* none: GUC, then the server's option */

/* The timeout that counts, in ms: the call's, the GUC's, the option's; 0: none. */
extern int64 pgpx_lease_timeout(const PgpxServerSpec *spec, int64 timeout);

/*
 * pgpx_lease_checkout
 *		Lease a connection of a server's pool for the current user.
 *
 * timeout: milliseconds, 0 not to wait, or PGPX_TIMEOUT_DEFAULT.  only_try:
 * NULL instead of an error when none is free now.  why may be NULL.
 *
 * Errors: those of pgpx_server_spec_get; 55P03 timeout; 53300 queue full, or shared
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
	uint64		types_hash;

	/* a lease whose statement was not run: wait on under its number */
	uint64		queue_position;
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
 * pgpx_checkout_publish_conninfo
 *		Tell the pool's worker how to connect, if it does not know.
 */
extern void pgpx_checkout_publish_conninfo(PgpxServerSpec *spec);

typedef struct PgpxCheckout
{
	PgpxServerSpec *spec;		/* pinned */
	PgpxHolder	holder;
	bool		only_try;
	PgpxTime	started;
	int64		timeout;		/* ms, for the error; 0: did not wait */
	bool		no_wait;
	PgpxTime	deadline;		/* 0: for ever */
	uint64		number;			/* of the ticket, to go back to the head */
	PgpxTime	waited;
	uint64		published_incarnation;	/* worker and version that we sent the */
	uint64		published_version;	/* conninfo for */
	bool		stale;			/* granted under others than we had read, or there are new ones */
	const PgpxStatement *statement; /* that it is for; NULL: unknown */
} PgpxCheckout;

/*
 * How long a checkout goes on after its deadline with a connection that it has
 * been given: for the hand-over of the socket, or an answer that is owed.
 */
#define PGPX_CHECKOUT_GRACE_US (100 * 1000)

typedef enum PgpxValidation
{
	PGPX_VALIDATION_OK,
	PGPX_VALIDATION_DEAD,		/* given back; try another one */
	PGPX_VALIDATION_LATE		/* no time left; given back */
} PgpxValidation;

/*
 * pgpx_checkout_validate
 *		Fetch the socket of a lease that was taken, and see that it lives.  On an
 *		error, too, the lease is given back unless it is settled.
 */
extern PgpxValidation pgpx_checkout_validate(PgpxCheckout *c, PgpxLease *lease);

/*
 * pgpx_checkout_validate_quickly
 *		The same for a socket that is here and owed nothing, in which nothing can
 *		be thrown.  False: it is to be settled the long way.
 */
extern bool pgpx_checkout_validate_quickly(PgpxLease *lease);

#endif							/* PGPX_CHECKOUT_H */
