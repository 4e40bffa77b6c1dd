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

#define PGPX_FAULTS_MAX 10		/* so many are described */
#define PGPX_FAULT_LEN 200

typedef struct PgpxFaults
{
	int			n;				/* found, described or not */
	char		text[PGPX_FAULTS_MAX][PGPX_FAULT_LEN];
} PgpxFaults;

/*
 * pgpx_invariants_check
 *		Check all pools, connections, tickets, the free list, the tokens of caps and
 *		the distributed locks.
 *
 * What is legal for a moment is not reported: see invariants.c for why.  Holds
 * each pool's lock for a look at all connections and tickets, so it is for tests
 * and for doubt, not for monitoring.
 */
extern void pgpx_invariants_check(PgpxFaults *faults);

/* --- what the files of invariants share ---------------------- */

/* A connection that is FREE and was not in the free list. */
typedef struct PgpxSuspect
{
	bool		missing;
	uint64		generation;
	PgpxTime	state_since;
} PgpxSuspect;

typedef struct PgpxCheck
{
	PgpxFaults *faults;
	PgpxPool   *pool;			/* the one that is locked; NULL: none */
	int			index;			/* its place */
	int			nleases;
	uint64	   *leases;			/* [max_connections] those that were seen */
	bool	   *in_list;		/* [max_connections] of the free list */
	PgpxSuspect *suspects;		/* [max_connections] */
} PgpxCheck;

/* Note what does not add up; tells the pool, if one is locked. */
extern void pgpx_check_fault(PgpxCheck *check, const char *format, ...)
	pg_attribute_printf(2, 3);

/* Does the process that a lease or a ticket belongs to exist? */
extern bool pgpx_check_is_alive(int procno, int pid);

/* Whoever held a pool lock when this was called has released it at its return. */
extern void pgpx_check_pass_locks(void);

/* Check the tokens of the caps over several pools. */
extern void pgpx_check_caps(PgpxCheck *check);

/* Check all tickets of the pool.  Returns how many are in its queue. */
extern int	pgpx_check_waiters(PgpxCheck *check);

#endif							/* PGPX_INVARIANTS_H */
