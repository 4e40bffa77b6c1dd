/*-------------------------------------------------------------------------
 *
 * lock_session.h
 *	  Distributed locks of a session: acquire, validate, release.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_SESSION_H
#define PGPX_LOCK_SESSION_H

#include "locks/lock_remote.h"

#include "access/xact.h"

typedef struct PgpxLockCall
{
	const char *server;
	const char *name;
	const char *why;			/* or NULL */
	int64		ttl_ms;
	int64		timeout_ms;		/* or PGPX_TIMEOUT_DEFAULT */
	bool		only_try;
	PgpxScope	scope;			/* SESSION or TRANSACTION */
} PgpxLockCall;

/*
 * pgpx_lock_acquire
 *		Acquire a lock and return its token.  Return 0 only with only_try, if
 *		the lock is not free now.
 *
 *		Raise the errors of a checkout and of the remote; 55P03 if another
 *		session holds the lock until the timeout; 40P01 if this session holds
 *		it, or waits without a timeout while it holds a lease; 53300 if all
 *		slots of the lock table are in use; 55000 if the options of the server
 *		were changed in this transaction.
 */
extern int64 pgpx_lock_acquire(const PgpxLockCall *call);

/*
 * Release a lock of this session and wait for the remote's confirmation, for
 * operation_timeout at most.  NOT_OWNER and UNKNOWN: with a WARNING.  Raise
 * 42501 if another session of this server holds the lock, or if this session
 * acquired it as another user.
 */
extern PgpxLockResult pgpx_lock_unlock(const char *server, const char *name,
									   int64 token);

/*
 * Return whether it is certain that this server holds the lock.  Raise a
 * WARNING, once, if the lock was acquired by this session and is lost.
 */
extern bool pgpx_lock_is_valid(const char *server, const char *name,
							   int64 token);

/*
 * For hooks.c: release the locks whose scope ends; before a commit, warn of
 * lost ones, and refuse PREPARE.
 */
extern void pgpx_lock_at_xact(XactEvent event);
extern void pgpx_lock_at_subxact(SubXactEvent event, SubTransactionId subid,
								 SubTransactionId parent);

/* At the exit of a session: leave the queue and release all locks. */
extern void pgpx_lock_at_exit(void);

/* Release all locks of session scope without waiting for the remote. */
extern void pgpx_lock_release_all(void);

/*
 * Return whether the current user may see a lock's name, token, owner and
 * purpose.
 */
extern bool pgpx_lock_may_see(const PgpxLock *lock);

/* Return whether it may see them of all locks, also those of other servers. */
extern bool pgpx_lock_may_see_all(void);

#endif							/* PGPX_LOCK_SESSION_H */
