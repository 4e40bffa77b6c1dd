/*-------------------------------------------------------------------------
 *
 * busy_poll.h
 *	  Looking for what is about to come, before going to sleep for it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_BUSY_POLL_H
#define PGPX_BUSY_POLL_H

#include "shared/shmem.h"

/* What looking has come to so far; all zero in the beginning. */
typedef struct PgpxBusyPoll
{
	int			misses;			/* in a row, less the hits among them */
	int			skip;			/* waits until it is tried again */
} PgpxBusyPoll;

/*
 * pgpx_busy_poll_is_calm
 *		Are the processors likely to have time for who looks for an answer of this
 *		pool?  Takes no lock: what it tells may be a moment old.
 */
extern bool pgpx_busy_poll_is_calm(int pool);

/*
 * pgpx_busy_poll_begin
 *		May this process look now, and until when?  0: it shall go to sleep.
 *
 * Otherwise it has a place among those that look, until pgpx_busy_poll_leave:
 * it must not throw meanwhile.
 */
extern PgpxTime pgpx_busy_poll_begin(PgpxBusyPoll *poll);

/* It has found something, or not. */
extern void pgpx_busy_poll_end(PgpxBusyPoll *poll, bool found);

/* This process looks no longer; nothing if it did not. */
extern void pgpx_busy_poll_leave(void);

#endif							/* PGPX_BUSY_POLL_H */
