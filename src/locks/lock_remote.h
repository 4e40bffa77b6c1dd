/*-------------------------------------------------------------------------
 *
 * lock_remote.h
 *	  What a session says to the remote about distributed locks: the
 *	  statements.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_REMOTE_H
#define PGPX_LOCK_REMOTE_H

#include "session/lease.h"
#include "locks/lock_table.h"

/* The remote's answer to who asks for a lock. */
typedef struct PgpxDlockAnswer
{
	int64		token;			/* 0: not granted */
	bool		refused;		/* by an error, so there was no effect */
	bool		already_released;	/* it was, and is over: draw another request */
	bool		expired;		/* granted; what follows is of the holder before */
	bool		held;			/* not granted; what follows is of the holder */
	char	   *who;
	char	   *why;			/* NULL: not said */
	char	   *since;			/* by the remote's clock and settings */
	char	   *expires;
	int64		left;			/* ms until then, INT_MAX at most */
} PgpxDlockAnswer;

/*
 * pgpx_dlock_ask
 *		Ask for a lock; granted or not, the answer says.
 *
 * waits: it will be asked for again.  patience: how long the remote may wait for
 * transactions that have checked the token before, in ms.  deadline: of the answer;
 * then 08006, and the outcome is not known.
 */
extern void pgpx_dlock_ask(PgpxLease *lease, const PgpxDlock *lock, bool waits,
						   int64 patience, PgpxTime deadline,
						   PgpxDlockAnswer *answer);

/* Make the tables and fence_check, or see that they are as they should be. */
extern void pgpx_dlock_create_tables(PgpxLease *lease);

/* Free a lock, whoever has it; returns whether somebody had. */
extern bool pgpx_dlock_force_release(PgpxLease *lease, const char *name);

/* The rows of lock_status, all of them texts but for those of its result. */
extern void pgpx_dlock_status(PgpxLease *lease, TupleDesc tupdesc,
							  Tuplestorestate *store);

#endif							/* PGPX_LOCK_REMOTE_H */
