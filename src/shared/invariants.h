/*-------------------------------------------------------------------------
 *
 * invariants.h
 *	  Verification of the shared state.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_INVARIANTS_H
#define PGPX_INVARIANTS_H

#include "shared/shmem.h"

#define PGPX_FAULTS_MAX 10		/* faults with a description */
#define PGPX_FAULT_LEN 200

typedef struct PgpxFaults
{
	PgpxPool   *pool;			/* the pool that is being checked; NULL: none */
	int			n;				/* faults found, described or not */
	char		text[PGPX_FAULTS_MAX][PGPX_FAULT_LEN];
} PgpxFaults;

/*
 * pgpx_invariants_check
 *		Verify all pools, connections, waiters, the free list, the permits of the
 *		caps and the distributed locks.  Describe the inconsistencies in
 *		*faults.
 *
 * States that are legal for a moment are not reported.  Each pool lock is held
 * in shared mode while all connections and waiters are scanned, so the function
 * is for tests and troubleshooting, not for monitoring.
 */
extern void pgpx_invariants_check(PgpxFaults *faults);

/* Record a fault, with the id of the locked pool if there is one. */
extern void pgpx_check_fault(PgpxFaults *faults, const char *format, ...)
	pg_attribute_printf(2, 3);

/* Return whether the process of a lease or a waiter exists. */
extern bool pgpx_check_is_alive(int procno, int pid);

#endif							/* PGPX_INVARIANTS_H */
