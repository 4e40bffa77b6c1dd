/*-------------------------------------------------------------------------
 *
 * dlock_wait.h
 *	  What a session knows while it takes a distributed lock.
 *
 * It is dlock_wait.c's; dlock_question.c writes what the questions are about.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DLOCK_WAIT_H
#define PGPX_DLOCK_WAIT_H

#include "dlock_remote.h"
#include "dlock_session.h"

/* How often a question without a wait is repeated if its answer was lost. */
#define PGPX_DLOCK_TRIES 3

typedef struct PgpxDlockWait
{
	const PgpxDlockCall *call;
	PgpxTarget *target;			/* pinned */
	PgpxTime	started;
	int64		timeout;		/* ms, for the error */
	bool		no_wait;
	PgpxTime	deadline;		/* 0: for ever */
	PgpxDlock	lock;			/* what we ask for */

	/* of the questions */
	int			place;			/* in shared memory; -1: none yet */
	bool		asked;			/* a question is out */
	bool		unknown;		/* one was not answered: the lock may be ours */
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
extern void pgpx_dlock_set_key(PgpxDlockWait *w, const PgpxTarget *target);

/*
 * Ask once.  False: it was not answered, and may be asked again; the error is in
 * w->error.  All others are raised, as pgpx_dlock_lock says.
 */
extern bool pgpx_dlock_question(PgpxDlockWait *w);

/* After an answer: the lock is ours, and some of its time is left. */
extern bool pgpx_dlock_accept(PgpxDlockWait *w);

/* It was not granted, or who knows: nothing is left in shared memory. */
extern void pgpx_dlock_give_up(PgpxDlockWait *w);

#endif							/* PGPX_DLOCK_WAIT_H */
