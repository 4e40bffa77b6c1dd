/*-------------------------------------------------------------------------
 *
 * maintenance.h
 *	  Timers of the worker: deadlines, resets, expiry, abandoned leases.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_MAINTENANCE_H
#define PGPX_MAINTENANCE_H

#include "shared/shmem.h"

/* The worker keeps ticking for this long after the last use of a connection. */
#define PGPX_BUSY_MS 1000

/* Interval at which lease holders are compared with the living processes. */
#define PGPX_SWEEP_MS 5000

/*
 * Requests maintenance of all pools in the next round: the settings have
 * changed.
 */
extern void pgpx_maintenance_request(void);

/*
 * Does all maintenance that is due, also of the pools that were noted with
 * pgpx_event_pool_changed.  Returns the time of the next run, PG_INT64_MAX if
 * only an event makes one necessary.
 */
extern PgpxTime pgpx_maintenance_run(void);

#endif							/* PGPX_MAINTENANCE_H */
