/*-------------------------------------------------------------------------
 *
 * lock_remote.h
 *	  Statements on distributed locks that a session sends to the remote
 *	  server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_REMOTE_H
#define PGPX_LOCK_REMOTE_H

#include "session/lease.h"
#include "locks/lock_table.h"

/* The remote's answer to a lock request. */
typedef struct PgpxDlockAnswer
{
	int64		token;			/* 0: not granted */
	bool		refused;		/* error, so no effect */
	bool		already_released;	/* needs a new request number */
	bool		expired;		/* granted; rest: previous holder */
	bool		held;			/* not granted; rest: the holder */
	char	   *holder;
	char	   *why;			/* or NULL */
	char	   *since;			/* in the remote's clock and DateStyle */
	char	   *expires;
	int64		left;			/* ms until "expires", INT_MAX at most */
} PgpxDlockAnswer;

/*
 * pgpx_dlock_send
 *		Requests a lock. answer->token shows whether it was granted.
 *
 *		waits: the request will be repeated, so the remote records that another
 *		server requests the lock.  lock_timeout: lock_timeout at the remote in ms,
 *		for transactions that have called fence_check.  deadline: of the
 *		answer; if it passes, 08006 is raised and the outcome is unknown.
 *		Raises the remote's errors.
 */
extern void pgpx_dlock_send(PgpxLease *lease, const PgpxDlock *lock, bool waits,
							int64 lock_timeout, PgpxTime deadline,
							PgpxDlockAnswer *answer);

/*
 * Creates the tables and fence_check at the remote, or verifies existing ones.
 * Raises the remote's errors.
 */
extern void pgpx_dlock_create_tables(PgpxLease *lease);

/* Releases a lock regardless of its holder.  Returns whether it was held. */
extern bool pgpx_dlock_force_release(PgpxLease *lease, const char *name);

/* Puts the rows of lock_status into "store", with the columns of "tupdesc". */
extern void pgpx_dlock_status(PgpxLease *lease, TupleDesc tupdesc,
							  Tuplestorestate *store);

#endif							/* PGPX_LOCK_REMOTE_H */
