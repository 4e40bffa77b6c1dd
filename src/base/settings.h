/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings pgpool_ext.*.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SETTINGS_H
#define PGPX_SETTINGS_H

#include "base/compat.h"

/*
 * Wait events with names of our own from 17 on.  The id is looked up at first
 * use, since that needs shared memory; if there is no room for one more name it is
 * that of all extensions.
 */
extern uint32 pgpx_wait_event_new(const char *name);

static inline uint32
pgpx_wait_event(uint32 *cache, const char *name)
{
	if (*cache == 0)
		*cache = pgpx_wait_event_new(name);
	return *cache;
}

#define PGPX_MAX_WORKERS 8

/* fixed at server start; they size shared memory */
extern int	pgpx_max_connections;
extern int	pgpx_max_pools;
extern int	pgpx_max_locks;
extern int	pgpx_workers;

/* any user */
extern int	pgpx_checkout_timeout;	/* ms; -1: the pool's; 0: for ever */
extern int	pgpx_busy_poll;		/* us; 0: never */

/* defaults of server options */
extern int	pgpx_default_pool_size;
extern int	pgpx_default_max_waiters;
extern int	pgpx_default_checkout_timeout;	/* ms; 0: for ever */

/* logging */
extern int	pgpx_log_min_wait;	/* ms; -1: off */
extern bool pgpx_log_connections;

/*
 * pgpx_settings_init
 *		Define all settings; called once by _PG_init.  Those that size shared
 *		memory are defined only while the library is being preloaded, since
 *		they cannot be created after server start.
 */
extern void pgpx_settings_init(void);

#endif							/* PGPX_SETTINGS_H */
