/*-------------------------------------------------------------------------
 *
 * busy_poll.h
 *	  Busy polling: checking for input for a short time before sleeping.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_BUSY_POLL_H
#define PGPX_BUSY_POLL_H

#include "shared/shmem.h"

/* Record of the success of busy polling; all zero at the start. */
typedef struct PgpxBusyPoll
{
	int			misses;			/* score: misses add 2, hits subtract 1 */
	int			skip;			/* waits to skip before polling again */
} PgpxBusyPoll;

/*
 * pgpx_busy_poll_is_calm
 *		Are the processors likely to have time for busy polling on this pool?
 *		Reads without a lock, so the result may be stale.
 */
extern bool pgpx_busy_poll_is_calm(int pool);

/*
 * pgpx_busy_poll_begin
 *		Return until when this process may poll; 0: it must sleep at once.
 *
 * If the result is not 0, the process has one of the polling slots until it
 * calls pgpx_busy_poll_leave, and must not raise an error until then.
 */
extern PgpxTime pgpx_busy_poll_begin(PgpxBusyPoll *poll);

/* Record whether polling found input. */
extern void pgpx_busy_poll_end(PgpxBusyPoll *poll, bool found);

/* Release the polling slot, if this process has one. */
extern void pgpx_busy_poll_leave(void);

#endif							/* PGPX_BUSY_POLL_H */
