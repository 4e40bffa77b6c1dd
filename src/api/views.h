/*-------------------------------------------------------------------------
 *
 * views.h
 *	  Helpers of the functions behind the views: an iterator over the pools,
 *	  and a row that is filled column by column.
 *
 * The iterator copies a pool, with its connections and waiters if requested,
 * under the pool lock in shared mode.  A row is therefore consistent.  The
 * memory is allocated before the lock is acquired, and rows are built after it
 * is released.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_VIEWS_H
#define PGPX_VIEWS_H

#include "shared/pool.h"
#include "shared/wait_queue.h"

/* What the iterator copies besides the pool. */
#define PGPX_VIEW_CONNS		1
#define PGPX_VIEW_WAITERS	2

typedef struct PgpxView
{
	/* the current pool, as of one instant */
	PgpxPool	pool;
	PgpxTime	now;
	int			live;			/* connections that a session can use */
	int			total;			/* connections in any state */
	int			cap;			/* pool_size and max_overflow */
	PgpxGrowthLimit limit;
	int			nconns;
	PgpxConn   *conns;			/* none of them is FREE */
	int		   *conn_index;		/* their indexes */
	int			nwaiting;
	PgpxWaiter *waiters;		/* in state WAITING, in queue order */

	/* the caller's privileges */
	bool		sees_all;		/* as pg_read_all_stats */
	Oid			user;

	/* private to views.c */
	int			flags;
	int			npools;			/* pools to visit: */
	int		   *index;
	uint32	   *id;
	int			at;				/* the next of them */
} PgpxView;

/*
 * Start an iteration over all pools that exist now.  flags: a mask of
 * PGPX_VIEW_*.
 */
extern PgpxView *pgpx_view_begin(int flags);

/* Copy the next pool; return false at the end. */
extern bool pgpx_view_next(PgpxView *view);

/*
 * Return whether the caller may see the texts and addresses of the current
 * pool.  Unlike for a lease or a waiter, the privileges of the pool's user are
 * not sufficient: an error can contain the name of the remote user, and
 * pg_user_mappings shows the options of a user mapping only to the mapped user.
 */
extern bool pgpx_view_can_see_pool(const PgpxView *view);

#define PGPX_ROW_COLUMNS 64

typedef struct PgpxRow
{
	ReturnSetInfo *rsinfo;
	TimestampTz zero;			/* PgpxTime 0; the same for all rows */
	int			n;				/* columns that were filled */
	Datum		values[PGPX_ROW_COLUMNS];
	bool		nulls[PGPX_ROW_COLUMNS];
} PgpxRow;

/*
 * pgpx_row_begin
 *		Start the result of a set-returning function.  Raise 55000 unless the
 *		library was preloaded.
 */
extern void pgpx_row_begin(PgpxRow *row, FunctionCallInfo fcinfo);

/*
 * Append the next column.  A text may be in any encoding; invalid bytes are
 * replaced.
 */
extern void pgpx_row_null(PgpxRow *row);
extern void pgpx_row_bool(PgpxRow *row, bool value);
extern void pgpx_row_int(PgpxRow *row, int value);
extern void pgpx_row_int_or_null(PgpxRow *row, int value);	/* NULL if 0 */
extern void pgpx_row_bigint(PgpxRow *row, uint64 value);
extern void pgpx_row_text(PgpxRow *row, const char *text);	/* or NULL */
extern void pgpx_row_name(PgpxRow *row, const char *name);
extern void pgpx_row_role(PgpxRow *row, Oid role);	/* NULL if dropped */
extern void pgpx_row_addr(PgpxRow *row, const char *addr);	/* or NULL */

/* Shown in place of a text that the caller may not see. */
#define PGPX_HIDDEN "<insufficient privilege>"

/* A text, or PGPX_HIDDEN if the caller may not see it. */
extern void pgpx_row_secret(PgpxRow *row, bool visible, const char *text);

/*
 * A time as timestamptz, NULL if it is 0; a duration as float8 in
 * milliseconds, or as an interval.
 */
extern void pgpx_row_instant(PgpxRow *row, PgpxTime t);
extern void pgpx_row_ms(PgpxRow *row, PgpxTime duration);
extern void pgpx_row_interval(PgpxRow *row, PgpxTime duration);

/* Append the columns that identify the pool. */
extern void pgpx_row_pool(PgpxRow *row, const PgpxPool *pool);

/*
 * Store the complete row in the result.  Raise 55000 if the view has more
 * columns than the loaded library fills.
 */
extern void pgpx_row_store(PgpxRow *row);

#endif							/* PGPX_VIEWS_H */
