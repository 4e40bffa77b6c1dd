/*-------------------------------------------------------------------------
 *
 * kept.h
 *	  The sockets that this session keeps, and asking the worker for one.
 *
 * A socket is passed once and kept: while the connection's generation is the
 * same, a later lease of it needs no message to the worker.  Each counts as an
 * external descriptor; when they run out, the least recently used one that is not
 * leased is let go.  Waiting for them is session_wait.c's.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_KEPT_H
#define PGPX_KEPT_H

#include "busy_poll.h"
#include "shmem.h"
#include "wire.h"

#include "lib/ilist.h"

#define PGPX_MAX_KEPT 64

typedef struct PgpxKept
{
	int			conn;			/* index of the connection */
	uint64		generation;
	int			fd;
	uint32		events;			/* for which session_wait.c has it; 0: it has not */
	dlist_node	watched;		/* among those it has */
	bool		leased;			/* a lease of this session uses it now */
	uint64		last_used;
	PgpxBusyPoll poll;			/* pgpx_kept_poll */
	PgpxWire	wire;
} PgpxKept;

/* The kept socket of a connection, NULL if there is none of this generation. */
extern PgpxKept *pgpx_kept_find(int conn, uint64 generation);

typedef enum PgpxFetch
{
	PGPX_FETCH_OK,
	PGPX_FETCH_GONE,			/* the worker does not have it any more */
	PGPX_FETCH_TIMEOUT
} PgpxFetch;

/*
 * pgpx_kept_fetch
 *		Ask the worker for the socket of a connection leased to this session.
 *
 * Waits until "deadline" (monotonic; 0: for ever); interrupts are served, so it
 * may throw.  Throws 53000 when this session has no descriptor left.
 */
extern PgpxFetch pgpx_kept_fetch(int pool_index, int conn, uint64 generation,
								 uint64 lease_id, PgpxTime deadline,
								 PgpxKept **kept);

/* Close a kept socket (this process's end only). */
extern void pgpx_kept_drop(PgpxKept *kept);

/*
 * pgpx_kept_poll
 *		Read what comes in within a moment, without going to sleep, if that has
 *		paid of late: at most pgpool_ext.busy_poll microseconds.
 *
 * "pool" is that of the connection.  Returns as pgpx_wire_fill; 0 also where it has
 * not looked.
 */
extern ssize_t pgpx_kept_poll(PgpxKept *kept, int pool, bool *full);

#endif							/* PGPX_KEPT_H */
