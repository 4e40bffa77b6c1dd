/*-------------------------------------------------------------------------
 *
 * views.h
 *	  What the functions behind the views share: a walk over the pools that
 *	  copies, and a row that is filled from left to right.
 *
 * A pool is copied with its connections and tickets under its lock, in shared
 * mode, into memory that was allocated before; so what a row says was true at
 * one instant.  Tuples are built when the lock has been given up.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_VIEWS_H
#define PGPX_VIEWS_H

#include "shared/wait_queue.h"

/* What to copy besides the pool itself. */
#define PGPX_VIEW_CONNS		1
#define PGPX_VIEW_WAITERS	2

typedef struct PgpxView
{
	/* the pool at hand, as it was at one instant */
	PgpxPool	pool;
	PgpxTime	now;
	int			live;			/* connections that some session could use */
	int			total;			/* connections in any state */
	int			cap;			/* pool_size and max_overflow */
	int			min_size;		/* within that cap */
	int			nconns;
	PgpxConn   *conns;			/* none of them is FREE */
	int		   *conn_index;		/* their places */
	int			nwaiting;
	PgpxWaiter *waiters;		/* WAITING, first to be served first */

	/* the caller's privileges */
	bool		sees_all;		/* has those of pg_read_all_stats */
	Oid			user;

	/* private to views.c */
	int			what;
	int			npools;
	int			at;
	int		   *index;
	uint32	   *id;
} PgpxView;

/* Begin a walk over all pools that exist now; what: PGPX_VIEW_*. */
extern PgpxView *pgpx_view_begin(int what);

/* Copy the next pool; false at the end. */
extern bool pgpx_view_next(PgpxView *view);

/* Is a back-off after a failed connect running? */
extern bool pgpx_view_backs_off(const PgpxView *view);

/* May the caller see texts and addresses of the pool at hand? */
extern bool pgpx_view_sees_pool(const PgpxView *view);

/* May the caller see the texts of a row that belongs to this role? */
extern bool pgpx_view_sees_role(const PgpxView *view, Oid role);

#define PGPX_ROW_COLUMNS 64

typedef struct PgpxRow
{
	ReturnSetInfo *rsinfo;
	TimestampTz zero;			/* monotonic 0, the same for all rows */
	int			n;
	Datum		values[PGPX_ROW_COLUMNS];
	bool		nulls[PGPX_ROW_COLUMNS];
} PgpxRow;

/*
 * pgpx_row_begin
 *		Begin the result of a set-returning function; 55000 unless the library
 *		was preloaded.
 */
extern void pgpx_row_begin(PgpxRow *row, FunctionCallInfo fcinfo);

/* The next column.  Texts may be in any encoding, and are made valid. */
extern void pgpx_row_null(PgpxRow *row);
extern void pgpx_row_bool(PgpxRow *row, bool value);
extern void pgpx_row_int(PgpxRow *row, int value);
extern void pgpx_row_pid(PgpxRow *row, int pid);	/* NULL if it is 0 */
extern void pgpx_row_bigint(PgpxRow *row, uint64 value);
extern void pgpx_row_text(PgpxRow *row, const char *text);	/* NULL if it is */
extern void pgpx_row_name(PgpxRow *row, const char *name);
extern void pgpx_row_role(PgpxRow *row, Oid role);	/* NULL if it was dropped */
extern void pgpx_row_addr(PgpxRow *row, const char *addr);	/* NULL if it is none */

/* A text that not everybody may see. */
extern void pgpx_row_secret(PgpxRow *row, bool visible, const char *text);

/* An instant as timestamptz, NULL if it is 0; a duration as milliseconds. */
extern void pgpx_row_instant(PgpxRow *row, PgpxTime t);
extern void pgpx_row_ms(PgpxRow *row, PgpxTime duration);
extern void pgpx_row_interval(PgpxRow *row, PgpxTime duration);

/* The columns that say which pool it is. */
extern void pgpx_row_pool(PgpxRow *row, const PgpxPool *pool);

/* All columns are there: put the row into the result. */
extern void pgpx_row_store(PgpxRow *row);

#endif							/* PGPX_VIEWS_H */
