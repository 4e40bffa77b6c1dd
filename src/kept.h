/*-------------------------------------------------------------------------
 *
 * kept.h
 *	  The sockets that this session keeps, and waiting on them.
 *
 * A socket is passed once and kept: while the connection's generation is the
 * same, a later lease of it needs no message to the worker.  Each counts as two
 * external descriptors (itself and its wait set); when they run out, the least
 * recently used one that is not leased is let go.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_KEPT_H
#define PGPX_KEPT_H

#include "busy_poll.h"
#include "shmem.h"
#include "wire.h"

#define PGPX_MAX_KEPT 64

typedef struct PgpxKept
{
	int			conn;			/* index of the connection */
	uint64		generation;
	int			fd;
	WaitEventSet *waits;		/* latch, postmaster, socket */
	int			socket_pos;
	uint32		events;			/* that the socket is waited for */
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
 * pgpx_session_time_left
 *		How long to wait until a deadline (0: none), in ms, and not longer than
 *		"most" (-1: as long as need be).  False: it has passed.
 */
extern bool pgpx_session_time_left(PgpxTime deadline, long most, long *ms);

/*
 * pgpx_session_wait
 *		Wait until the socket is ready for "events" (WL_SOCKET_*), until this
 *		process's latch is set, or until the deadline.
 *
 * Returns false when the deadline has passed.  Interrupts are served before it
 * returns, so it may throw.
 */
extern bool pgpx_session_wait(PgpxKept *kept, uint32 events, PgpxTime deadline,
							  uint32 wait_event);

/* The same without a socket. */
extern bool pgpx_session_wait_latch(PgpxTime deadline, uint32 wait_event);

/*
 * pgpx_session_gather
 *		In the middle of a large answer: wait until much of it has come, for 2 ms
 *		at most.  Interrupts are served.
 */
extern void pgpx_session_gather(PgpxKept *kept, uint32 wait_event);

/*
 * pgpx_kept_poll
 *		Read what comes in within a moment, without going to sleep, if that has
 *		paid of late: at most pgpool_ext.busy_poll microseconds.
 *
 * "pool" is that of the connection.  Returns as pgpx_wire_fill; 0 also where it has
 * not looked.
 */
extern ssize_t pgpx_kept_poll(PgpxKept *kept, int pool, bool *full);

/*
 * pgpx_session_wait_control
 *		Wait for room in the worker's control socket, which is full.  Returns
 *		false when the deadline has passed.  Interrupts are served.
 */
extern bool pgpx_session_wait_control(int worker, PgpxTime deadline);

/* Has nothing come in?  False: perhaps.  Half the price of a recv(). */
extern bool pgpx_kept_quiet(PgpxKept *kept);

#endif							/* PGPX_KEPT_H */
