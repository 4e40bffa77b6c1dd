/*-------------------------------------------------------------------------
 *
 * invariants.h
 *	  Does the shared state add up?
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_INVARIANTS_H
#define PGPX_INVARIANTS_H

#include "pool.h"

#define PGPX_FAULTS_MAX 10		/* so many are described */
#define PGPX_FAULT_LEN 200

typedef struct PgpxFaults
{
	int			n;				/* found, described or not */
	char		text[PGPX_FAULTS_MAX][PGPX_FAULT_LEN];
} PgpxFaults;

/*
 * pgpx_invariants_check
 *		Check all pools, connections, tickets and the free list.
 *
 * What is legal for a moment is not reported: see invariants.c for why.  Holds
 * each pool's lock for a look at all connections and tickets, so it is for tests
 * and for doubt, not for monitoring.
 */
extern void pgpx_invariants_check(PgpxFaults *faults);

#endif							/* PGPX_INVARIANTS_H */
