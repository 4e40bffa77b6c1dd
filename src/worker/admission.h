/*-------------------------------------------------------------------------
 *
 * admission.h
 *	  Eviction and admission when a cap over several pools is reached.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ADMISSION_H
#define PGPX_ADMISSION_H

#include "base/compat.h"

/*
 * PGPX_CONTENDED_KEEP_MS: maximum time for which the worker's own operation on
 * a connection may occupy a contended slot, even if the options allow more.
 * PGPX_CONTENDED_CHECK_MS: interval at which it checks for contention.
 */
#define PGPX_CONTENDED_KEEP_MS 10000
#define PGPX_CONTENDED_CHECK_MS 1000

/*
 * Finds the pools that a cap starves, and evicts connections of other pools for
 * them.  Returns true if any pool of this worker is starved.  all_servers: look
 * for stale entries also in the caps of servers whose pools have no waiters.
 */
extern bool pgpx_admission_run(bool all_servers);

#endif							/* PGPX_ADMISSION_H */
