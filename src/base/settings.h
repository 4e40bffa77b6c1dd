/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings pgpool_ext.*, and the names of wait events.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SETTINGS_H
#define PGPX_SETTINGS_H

#include "base/compat.h"

/*
 * pgpx_wait_event_new
 *		Register the name of a wait event and return its id.  Raise no error.
 *
 * Before 17, or if the server has no room for another name, the id is that of
 * the wait event Extension.  Callers use pgpx_wait_event, which registers the
 * name at first use, because registration needs shared memory.
 */
extern uint32 pgpx_wait_event_new(const char *name);

/* Return the id of a wait event and keep it in *cache, initially 0. */
static inline uint32
pgpx_wait_event(uint32 *cache, const char *name)
{
	if (*cache == 0)
		*cache = pgpx_wait_event_new(name);
	return *cache;
}

#define PGPX_MAX_WORKERS 8

/* fixed at server start, because they size shared memory */
extern int	pgpx_max_connections;
extern int	pgpx_max_pools;
extern int	pgpx_max_locks;
extern int	pgpx_history_size;	/* kB; 0: no history */
extern int	pgpx_workers;

/* settable by any user */
extern int	pgpx_checkout_timeout;	/* ms; -1: the pool's; 0: no limit */
extern int	pgpx_busy_poll;		/* us; 0: never */

/* defaults of server options */
extern int	pgpx_default_pool_size;
extern int	pgpx_default_max_waiters;
extern int	pgpx_default_checkout_timeout;	/* ms; 0: no limit */
extern int	pgpx_default_two_phase_commit;	/* 0 or 1 */

/* passwords of user mappings with use_password_command */
extern char *pgpx_password_command;
extern int	pgpx_password_lifetime; /* ms */

/* commits on several servers */
extern int	pgpx_resolve_interval;	/* ms */
extern bool pgpx_adopt_all;

/* logging */
extern int	pgpx_log_min_wait;	/* ms; -1: off */
extern bool pgpx_log_connections;

/*
 * pgpx_settings_init
 *		Define all settings; called once, by _PG_init.
 *
 * The settings that size shared memory are defined only while the library is
 * being preloaded, because they cannot be created after server start.
 */
extern void pgpx_settings_init(void);

#endif							/* PGPX_SETTINGS_H */
