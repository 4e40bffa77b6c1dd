/*-------------------------------------------------------------------------
 *
 * lease_return.h
 *	  The return of a lease: at checkin, or with the transaction,
 *	  subtransaction or session that owns it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_RETURN_H
#define PGPX_LEASE_RETURN_H

#include "session/lease.h"

/*
 * The statement for which a lease of scope CALL or TABLE is acquired.  While
 * the checkout waits in the queue, a session that returns a connection may send
 * the statement (pipelined hand-over).  In that case pgpx_run_send does not send
 * it again, so it must be the first statement on the lease.
 */
typedef struct PgpxPendingStatement
{
	const PgpxStatement *statement;
	const PgpxPipeline *pipeline;	/* how to send it, with parse and describe,
									 * for a connection for which
									 * pgpx_server_spec_keeps_settings is
									 * true; NULL: without other commands */
	bool		single;			/* certainly a single statement */
	bool		predictable;	/* types_hash is set, so that formats can be
								 * predicted */
	uint64		types_hash;
} PgpxPendingStatement;

/* What a hand-over sends ahead of the pending statement. */
static inline PgpxWireAhead
pgpx_hand_over_ahead(bool reset, bool keeps, bool commit)
{
	if (!reset)
		return PGPX_AHEAD_NONE;
	if (commit)
		return keeps ? PGPX_AHEAD_COMMIT_KEEPING :
			PGPX_AHEAD_COMMIT_DISCARD_ALL;
	return keeps ? PGPX_AHEAD_KEEPING : PGPX_AHEAD_DISCARD_ALL;
}

/*
 * Prepare the statement for a pipelined hand-over to the waiter that is about
 * to be enqueued.  Does nothing if the statement or the options do not allow
 * it.
 */
extern void pgpx_hand_over_prepare(const PgpxServerSpec *spec,
								   const PgpxPendingStatement *pending);

/*
 * pgpx_lease_return
 *		End a lease and free its record.
 *
 * An open remote transaction is rolled back before the reset, or committed if
 * lease->commit is set.  The function does not wait for the answer.  If the
 * stream is not at a message boundary, the connection is closed.
 *
 * may_wait: the function may wait and raise errors, and it reports an open
 * transaction or a statement in flight with a WARNING.  Without it, the
 * function neither waits nor throws.
 */
extern void pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_wait);

/*
 * Return all leases of session and transaction scope.  Returns their number.
 * Errors: 55000 if a lease is in use; then none is returned.
 */
extern int	pgpx_lease_return_all(void);

/* Register the exit and transaction callbacks.  Further calls do nothing. */
extern void pgpx_lease_register_callbacks(void);

/*
 * Return whether this session has registered the callbacks, i.e. has ever
 * requested a lease.
 */
extern bool pgpx_lease_has_callbacks(void);

#endif							/* PGPX_LEASE_RETURN_H */
