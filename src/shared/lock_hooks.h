/*-------------------------------------------------------------------------
 *
 * lock_hooks.h
 *	  The functions of the distributed locks that the rest of the extension
 *	  calls.
 *
 * The distributed locks (locks/) are built on top of the pools.  Lower layers
 * call functions of the locks through this table, so that the pools do not
 * depend on the locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_HOOKS_H
#define PGPX_LOCK_HOOKS_H

#include "shared/invariants.h"

typedef struct PgpxLockHooks
{
	/*
	 * in the postmaster and each process: size and start of the locks' part of
	 * the segment
	 */
	Size (*shmem_size)(void);
	void (*shmem_attach)(char *at);

	/* in any process; each acquires locks_lock */
	bool (*pool_has_locks)(int pool, uint32 pool_id);
	void (*check)(PgpxFaults *faults);

	/* in a session: release its locks, at DISCARD ALL and at its exit */
	void (*release_all)(void);

	/*
	 * in a session: enumerate the locks of a database, and end one after its
	 * user has lost the privilege to use the server
	 */
	uint64 (*next_held)(Oid database, int *slot, PgpxPoolKey *key, Oid *user);
	void (*lose)(uint64 acquisition);

	/*
	 * In a worker:
	 *
	 * - ping sends the pings and releases that are due, and returns when the
	 *   next one is due.
	 * - ready handles a socket that is ready.
	 * - descriptors returns the number of sockets.
	 */
	PgpxTime (*ping)(void);
	void (*ready)(int index, uint32 events);
	int (*descriptors)(void);
} PgpxLockHooks;

/* Never NULL after _PG_init. */
extern const PgpxLockHooks *pgpx_lock_hooks;

/* Install the table; called by _PG_init before anything else. */
extern void pgpx_lock_hooks_init(void);

#endif							/* PGPX_LOCK_HOOKS_H */
