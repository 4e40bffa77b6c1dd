/*-------------------------------------------------------------------------
 *
 * hand_over.h
 *	  The pipelined hand-over of a connection to a waiter.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_HAND_OVER_H
#define PGPX_HAND_OVER_H

#include "session/lease.h"

/*
 * The statement for which a lease of scope CALL is acquired.  While the
 * checkout waits in the queue, a session that returns a connection may send the
 * statement (pipelined hand-over).  In that case pgpx_run_send does not send it
 * again.
 */
typedef struct PgpxPendingStatement
{
	const PgpxStatement *statement;
	bool		single;			/* certainly a single statement */
	bool		predictable;	/* types_hash is set, so that formats can be
								 * predicted */
	uint64		types_hash;
} PgpxPendingStatement;

/*
 * Prepare the statement for a pipelined hand-over to the waiter that is about
 * to be enqueued.  Does nothing if the statement or the options do not allow
 * it.
 */
extern void pgpx_hand_over_prepare(const PgpxServerSpec *spec,
								   const PgpxPendingStatement *pending);

/*
 * pgpx_hand_over_lease
 *		End a lease by a pipelined hand-over: send the pending statement of
 *		the first waiter, after a reset, and grant it the connection.
 *
 * Returns false if that is not possible.  Nothing has been done then, and the
 * caller must return the lease as usual.  Never waits, never throws.
 */
extern bool pgpx_hand_over_lease(PgpxLease *lease);

#endif							/* PGPX_HAND_OVER_H */
