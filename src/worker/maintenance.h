/*-------------------------------------------------------------------------
 *
 * maintenance.h
 *	  Timers of the worker: deadlines, resets, expiry, holders that are gone.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_MAINTENANCE_H
#define PGPX_MAINTENANCE_H

#include "shared/shmem.h"

/* How long after the last checkin it goes on looking by itself. */
#define PGPX_BUSY_MS 1000

/* How often it compares the holders of leases with the living processes. */
#define PGPX_SWEEP_MS 5000

/* Look at all pools in the next round: the settings have changed. */
extern void pgpx_maintenance_request(void);

/*
 * Do what is due; changed tells that connections have changed state.  Returns
 * when it wants to run again, PG_INT64_MAX: when something has happened.
 */
extern PgpxTime pgpx_maintenance_run(bool changed);

#endif							/* PGPX_MAINTENANCE_H */
