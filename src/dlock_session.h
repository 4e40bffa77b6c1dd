/*-------------------------------------------------------------------------
 *
 * dlock_session.h
 *	  Distributed locks from the side of the sessions that take them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DLOCK_SESSION_H
#define PGPX_DLOCK_SESSION_H

#include "dlock.h"
#include "lease.h"

typedef struct PgpxDlockCall
{
	const char *server;
	const char *name;
	const char *why;			/* or NULL */
	int64		ttl;			/* ms */
	int64		timeout;		/* ms, or PGPX_TIMEOUT_DEFAULT */
	bool		only_try;
	PgpxScope	scope;			/* SESSION or TRANSACTION */
} PgpxDlockCall;

/*
 * pgpx_dlock_lock
 *		Take a lock; returns its token, 0 only with only_try.
 *
 * Errors: those of a checkout and of the remote; 55P03 held by another until the
 * timeout; 40P01 held by this session; 53300 all places used up.
 */
extern int64 pgpx_dlock_lock(const PgpxDlockCall *call);

typedef enum PgpxDlockUnlocked
{
	PGPX_DLOCK_UNLOCKED,
	PGPX_DLOCK_WAS_NOT_HELD,	/* with a WARNING */
	PGPX_DLOCK_LEFT_TO_WORKER	/* with a WARNING */
} PgpxDlockUnlocked;

/* Release a lock of this session.  42501 if it is another's of this server. */
extern PgpxDlockUnlocked pgpx_dlock_unlock(const char *server,
										   const char *name, int64 token);

/* Is it certain that this server holds it? */
extern bool pgpx_dlock_valid(const char *server, const char *name,
							 int64 token);

/* Release all locks that do not end with a transaction, without waiting. */
extern void pgpx_dlock_release_all(void);

/* May the current user see what a lock is, and what for? */
extern bool pgpx_dlock_may_see(const PgpxDlock *lock);

/* --- what its files share ---------------------------------------------------- */

/* Register exit and transaction callbacks, once. */
extern void pgpx_dlock_register_callbacks(void);

/* Does this session hold the lock?  Those of its queue that are lost make room. */
extern bool pgpx_dlock_holds(uint64 queue, const char *name);

#endif							/* PGPX_DLOCK_SESSION_H */
