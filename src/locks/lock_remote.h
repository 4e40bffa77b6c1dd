/*-------------------------------------------------------------------------
 *
 * lock_remote.h
 *	  Calls of the functions of schema pgpool_lock (lock_schema.sql).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_REMOTE_H
#define PGPX_LOCK_REMOTE_H

#include "session/lease.h"
#include "locks/lock_table.h"

#include "libpq-fe.h"

/* The remote's answer to a lock request. */
typedef struct PgpxLockAnswer
{
	int64		token;			/* 0: not granted */
	bool		refused;		/* the remote raised an error: no effect */
	bool		already_released;	/* needs a new request number */
	bool		expired;		/* granted after the expiry of another holder's
								 * lock, which the fields below describe */
	bool		held;			/* not granted; they describe the holder */
	char	   *holder;
	char	   *why;			/* or NULL */
	char	   *since;			/* in the remote's clock and DateStyle */
	char	   *expires;
	int64		left_ms;		/* ms until "expires", INT_MAX at most */
} PgpxLockAnswer;

/*
 * pgpx_lock_request
 *		Request a lock and read the answer; answer->token shows whether the lock
 *		was granted.
 *
 *		waits: the request will be repeated, so the remote records that another
 *		server requests the lock.  lock_timeout: how long the remote waits for
 *		transactions that have called fence_check, in ms.  deadline: of the
 *		answer; if it passes, 08006 is raised and the outcome is unknown.  Raise
 *		the remote's errors.
 */
extern void pgpx_lock_request(PgpxLease *lease, const PgpxLock *lock,
							  bool waits, int64 lock_timeout,
							  PgpxTime deadline, PgpxLockAnswer *answer);

/*
 * Create the tables and fence_check at the remote, or verify existing ones.
 * Raise the remote's errors.
 */
extern void pgpx_lock_create_schema(PgpxLease *lease);

/* Release a lock regardless of its holder.  Return whether it was held. */
extern bool pgpx_lock_release_by_force(PgpxLease *lease, const char *name);

/* Put the rows of lock_status into "store", with the columns of "tupdesc". */
extern void pgpx_lock_list(PgpxLease *lease, TupleDesc tupdesc,
						   Tuplestorestate *store);

/*
 * Statements that verify that the objects of schema pgpool_lock exist, and that
 * they and those that triggers on its tables use belong to the owner of the
 * database, a superuser or the login role.  Otherwise the remote raises 55000,
 * or 42P01 or 42883 if one does not exist.  Each connection executes them
 * before it calls the functions.
 */
#define PGPX_LOCK_VERIFY_COUNT 2
extern const char *const pgpx_lock_verify_sql[PGPX_LOCK_VERIFY_COUNT];

/* The worker's calls. */
extern const char pgpx_lock_ping_sql[];
extern const char pgpx_lock_release_sql[];

/*
 * Set the parameters of these statements for n > 0 locks.  The texts are
 * allocated in the current memory context.
 */
#define PGPX_LOCK_PARAMS 4
extern void pgpx_lock_work_params(const PgpxLockWork *work, int n,
								  const char *values[PGPX_LOCK_PARAMS]);

#endif							/* PGPX_LOCK_REMOTE_H */
