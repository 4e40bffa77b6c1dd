/*-------------------------------------------------------------------------
 *
 * lock_hooks.h
 *	  What the rest of the extension calls of the distributed locks.
 *
 * The distributed locks (locks/) are built on top of the pools.  The few functions
 * of theirs that lower rooms call are reached through this table, so that the pools
 * can be read without them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_HOOKS_H
#define PGPX_LOCK_HOOKS_H

#include "shared/invariants.h"

typedef struct PgpxLockHooks
{
	/* in the postmaster and each process: the locks' share of the segment */
	Size (*shmem_size)(void);
	void (*shmem_attach)(char *at);

	/* in any process; each takes dlock_lock */
	bool (*pool_has_locks)(int pool, uint32 pool_id);
	void (*check)(PgpxCheck *check);

	/* in a session: DISCARD ALL releases its locks */
	void (*release_all)(void);

	/*
	 * in a worker: release the locks of processes that are gone (true: there are
	 * locks); ping and release where that is due, and return when it is due again;
	 * a socket is ready; parameters of a pool were published; number of sockets
	 */
	bool (*release_abandoned)(int worker);
	PgpxTime (*ping)(void);
	void (*ready)(int index, uint32 events);
	void (*conninfo_published)(void);
	int (*descriptors)(void);
} PgpxLockHooks;

/* Never NULL after _PG_init. */
extern const PgpxLockHooks *pgpx_lock_hooks;

/* Install the table; called by _PG_init before anything else. */
extern void pgpx_lock_hooks_init(void);

#endif							/* PGPX_LOCK_HOOKS_H */
