/*-------------------------------------------------------------------------
 *
 * events.h
 *	  The worker's epoll set and due time.
 *
 * Implemented by event_loop.c and maintenance.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_EVENTS_H
#define PGPX_EVENTS_H

#include "shared/shmem.h"

/* The kind of an epoll event. */
typedef enum PgpxWatchKind
{
	PGPX_WATCH_CONTROL = 1,
	PGPX_WATCH_TASK,			/* threads have finished */
	PGPX_WATCH_CONN,
	PGPX_WATCH_RELAY_REMOTE,	/* a relay's TLS connection */
	PGPX_WATCH_RELAY_LOCAL,		/* .. and its end of the socket pair */
	PGPX_WATCH_PINGER
} PgpxWatchKind;

/*
 * Add a descriptor to the epoll set (add is true), or change its events.  Raise
 * an error if epoll refuses.
 */
extern void pgpx_event_watch(PgpxWatchKind kind, int index, int fd,
							 uint32 events, bool add);

/* Remove a descriptor from the epoll set. */
extern void pgpx_event_unwatch(int fd);

/* Make the event loop run at this time at the latest. */
extern void pgpx_event_due_at(PgpxTime at);

/*
 * Note that connections of a pool have changed their states, so that the pool
 * needs maintenance in this round.
 */
extern void pgpx_event_pool_changed(int pool);

#endif							/* PGPX_EVENTS_H */
