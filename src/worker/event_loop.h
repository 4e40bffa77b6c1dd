/*-------------------------------------------------------------------------
 *
 * event_loop.h
 *	  The event loop of the worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_EVENT_LOOP_H
#define PGPX_EVENT_LOOP_H

#include "base/compat.h"

extern void pgpx_event_loop_init(void);

/*
 * Waits for events and handles them.  Returns false if relays have moved
 * bytes and nothing else has happened.
 */
extern bool pgpx_event_loop_run_once(void);

#endif							/* PGPX_EVENT_LOOP_H */
