/*-------------------------------------------------------------------------
 *
 * backoff.h
 *	  Back-off: the pauses between repeated attempts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_BACKOFF_H
#define PGPX_BACKOFF_H

#include "postgres.h"

/*
 * Return the pause that follows a pause of "last", in any unit: twice as long,
 * but at most "max".  The first pause (last is 0) is "min".
 */
static inline int64
pgpx_backoff_next(int64 last, int64 min, int64 max)
{
	return Min(last == 0 ? min : last * 2, max);
}

#endif							/* PGPX_BACKOFF_H */
