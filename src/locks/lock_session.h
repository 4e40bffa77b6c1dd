/*-------------------------------------------------------------------------
 *
 * lock_session.h
 *	  Distributed locks of a session: acquire, validate, release.
 *
 * PgpxDlockWait is the state of an acquisition in progress.  It is private to
 * lock_session.c.
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
	int64		ttl_ms;
	int64		timeout_ms;		/* or PGPX_TIMEOUT_DEFAULT */
	bool		only_try;
	PgpxScope	scope;			/* SESSION or TRANSACTION */
} PgpxDlockCall;

/*
 * pgpx_dlock_lock
 *		Acquires a lock and returns its token.  Returns 0 only with only_try,
 *		if the lock is not free now.
 *
 *		Raises the errors of a checkout and of the remote; 55P03 if another
 *		session holds the lock until the timeout; 40P01 if this session holds
 *		it; 53300 if all slots of the lock table are in use; 55000 if the
 *		options of the server were changed in this transaction.
 */
extern int64 pgpx_dlock_lock(const PgpxDlockCall *call);

typedef enum PgpxDlockUnlocked
{
	PGPX_DLOCK_UNLOCKED,
	PGPX_DLOCK_WAS_NOT_HELD,	/* with a WARNING */
	PGPX_DLOCK_LEFT_TO_WORKER	/* with a WARNING */
} PgpxDlockUnlocked;

/*
 * Releases a lock of this session and waits for the remote's confirmation, for
 * operation_timeout at most.  Raises 42501 if another session of this server
 * holds the lock, or if this session acquired it as another user.
 */
extern PgpxDlockUnlocked pgpx_dlock_unlock(const char *server,
										   const char *name, int64 token);

/*
 * Returns whether it is certain that this server holds the lock.  Raises a
 * WARNING, once, if the lock was acquired by this session and is lost.
 */
extern bool pgpx_dlock_is_valid(const char *server, const char *name,
								int64 token);

/* Releases all locks of session scope without waiting for the remote. */
extern void pgpx_dlock_release_all(void);

/*
 * Returns whether the current user may see a lock's name, token, owner and
 * purpose.
 */
extern bool pgpx_dlock_may_see(const PgpxDlock *lock);

/* --- private to lock_session.c ------------------------------------------- */

/* Register exit and transaction callbacks, once. */
extern void pgpx_dlock_register_callbacks(void);

/*
 * Returns whether this session holds the lock.  Also releases its locks of the
 * same queue that are lost, with a WARNING.
 */
extern bool pgpx_dlock_is_held_by_me(uint64 queue, const char *name);

/*
 * Failed requests in a row that end an acquisition without wait, or one whose
 * remote server is read-only.
 */
#define PGPX_DLOCK_TRIES 3

typedef struct PgpxDlockWait
{
	const PgpxDlockCall *call;
	PgpxServerSpec *spec;		/* pinned */
	PgpxTime	started;
	int64		timeout_ms;		/* for the error */
	PgpxTime	deadline;		/* 0: no limit */
	PgpxDlock	lock;			/* the lock to acquire */

	/* the lock requests */
	int			slot;			/* in the lock table; -1: none */
	bool		outstanding;	/* a request is outstanding */
	bool		unanswered;		/* an answer was lost: may be granted */
	PgpxTime	sent_at;
	bool		reached;		/* the remote has answered before */
	int			failures;		/* unanswered requests in a row */
	MemoryContext cxt;			/* of the last request's result: */
	PgpxDlockAnswer answer;
	ErrorData  *error;			/* NULL: none */

	bool		local;			/* held by a session of this server */
	PgpxDlock	other;			/* that session's lock */
} PgpxDlockWait;

/*
 * Sets the pool key of the lock and its queue.  Raises 55000 if the options of
 * the server were changed in this transaction.
 */
extern void pgpx_dlock_set_key(PgpxDlockWait *w, const PgpxServerSpec *spec);

/*
 * Sends one lock request and reads the answer.  Returns false if the request
 * failed and may be repeated; the error is in w->error.  Raises all other
 * errors, see pgpx_dlock_lock.
 */
extern bool pgpx_dlock_request(PgpxDlockWait *w);

/*
 * Records a grant in shared memory.  Returns false if the remote did not grant
 * the lock, or if the validity of the grant has expired already.
 */
extern bool pgpx_dlock_accept(PgpxDlockWait *w);

/*
 * Ends an acquisition without a lock: frees the slot, or releases the lock if
 * the remote may have granted it.
 */
extern void pgpx_dlock_abandon(PgpxDlockWait *w);

#endif							/* PGPX_LOCK_SESSION_H */
