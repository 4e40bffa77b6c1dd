/*-------------------------------------------------------------------------
 *
 * lock_session.h
 *	  Distributed locks from the side of sessions: acquire, hold, validate,
 *	  release.
 *
 * What a session knows while it takes a distributed lock.
 *
 * It is lock_session.c's; lock_session.c writes what the questions are about.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_SESSION_H
#define PGPX_LOCK_SESSION_H

#include "locks/lock_remote.h"

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

/* How often a question without a wait is repeated if its answer was lost. */
#define PGPX_DLOCK_TRIES 3

typedef struct PgpxDlockWait
{
	const PgpxDlockCall *call;
	PgpxServerSpec *spec;		/* pinned */
	PgpxTime	started;
	int64		timeout;		/* ms, for the error */
	bool		no_wait;
	PgpxTime	deadline;		/* 0: for ever */
	PgpxDlock	lock;			/* what we ask for */

	/* of the questions */
	int			slot;			/* in shared memory; -1: none yet */
	bool		asked;			/* a question is out */
	bool		unanswered;		/* one was not answered: the lock may be ours */
	PgpxTime	asked_at;
	bool		reached;		/* the remote has answered once */
	int			failures;		/* questions in a row that were not answered */
	MemoryContext cxt;			/* of what the last question brought: */
	PgpxDlockAnswer answer;
	ErrorData  *error;			/* NULL: none */

	bool		local;			/* it is another session's of this server */
	PgpxDlock	other;			/* that one's lock */
} PgpxDlockWait;

/*
 * Whose pool leads to the lock, and where it is waited for.  Error 55000: the
 * options were changed in this transaction.
 */
extern void pgpx_dlock_set_key(PgpxDlockWait *w, const PgpxServerSpec *spec);

/*
 * Ask once.  False: it was not answered, and may be asked again; the error is in
 * w->error.  All others are raised, as pgpx_dlock_lock says.
 */
extern bool pgpx_dlock_request(PgpxDlockWait *w);

/* After an answer: the lock is ours, and some of its time is left. */
extern bool pgpx_dlock_accept(PgpxDlockWait *w);

/* It was not granted, or who knows: nothing is left in shared memory. */
extern void pgpx_dlock_abandon(PgpxDlockWait *w);

#endif							/* PGPX_LOCK_SESSION_H */
