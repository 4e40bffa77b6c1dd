/*-------------------------------------------------------------------------
 *
 * share.h
 *	  Fair shares: the local servers that connect to one remote database agree
 *	  how many connections each may have (cluster_connections).
 *
 * share.c has the protocol.  Its statements are sent by the pinger of one pool
 * of each server (lock_pinger.c).  share_target.c has the rules by which a
 * member chooses its share.  All functions run in the worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SHARE_H
#define PGPX_SHARE_H

#include "locks/lock_pinger.h"
#include "locks/lock_remote.h"

/*
 * pgpx_share_plan
 *		Determine what each server with cluster_connections wants, and when its
 *		next statement is due.  End login attempts of servers whose share is no
 *		longer valid.
 *
 * Return 0 if a plan was made for at least one server.  Otherwise return when
 * to call it again; PG_INT64_MAX: after the next event.
 */
extern PgpxTime pgpx_share_plan(PgpxTime now);

/*
 * Return the next pool, from index "pool" on, whose pinger sends the statements
 * of a server; -1: there is none.  Set *pool_id.
 */
extern int	pgpx_share_next_pool(int pool, uint32 *pool_id);

/*
 * Return when the pinger of this pool must send the next statement.
 * PG_INT64_MAX: after an event, or never, because the pinger of another pool
 * sends the statements of the server.
 */
extern PgpxTime pgpx_share_due(int pool, uint32 pool_id);

/* Send the next statement; read its result after an event on the socket. */
extern void pgpx_share_send(PgpxPinger *p);
extern void pgpx_share_step(PgpxPinger *p);

/* Handle the unknown outcome of the statement in flight, if there is one. */
extern void pgpx_share_aborted(const PgpxPinger *p);

/*
 * Handle a failure of the pinger: it could not connect, or a statement failed.
 * sqlstate: 53300 if the remote accepts no more connections; 0: unknown.
 */
extern void pgpx_share_failed(int pool, uint32 pool_id, int sqlstate,
							  const char *reason);

/* --- share_target.c ----------------------------------------------------- */

/* What the target of a member depends on. */
typedef struct PgpxShareInput
{
	PgpxShareMember own;		/* its row, with current weight and demand */
	const PgpxShareMember *others;	/* in the order of names */
	int			nothers;
	int			cap;			/* smallest cap of the live members */
	int			used;			/* its connections */
	int			limit;			/* its share that is in effect */
	bool		turn_over;		/* it has held a connection for TURN_US */
	bool		recreated;		/* the tables are new: rows may be missing */
} PgpxShareInput;

/* Return how many connections the member should hold. */
extern int	pgpx_share_choose_target(const PgpxShareInput *in);

#endif							/* PGPX_SHARE_H */
