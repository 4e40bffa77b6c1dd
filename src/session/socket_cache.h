/*-------------------------------------------------------------------------
 *
 * socket_cache.h
 *	  The sockets that this session has cached, and waiting for them.
 *
 * A socket is passed once and kept: while the connection's generation is the
 * same, a later lease of it needs no message to the worker.  Each counts as an
 * external descriptor; when they run out, the least recently used one that is not
 * leased is let go.  Waiting for them is socket_cache.c's.
 *
 * What a session sleeps for: its latch, the worker, a kept socket.
 *
 * Those that wait serve interrupts afterwards, and so may throw.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SOCKET_CACHE_H
#define PGPX_SOCKET_CACHE_H

#include "shared/busy_poll.h"
#include "protocol/wire.h"

#include "lib/ilist.h"

#define PGPX_SOCKET_CACHE_MAX 64

typedef struct PgpxCachedSocket
{
	int			conn;			/* index of the connection */
	uint64		generation;
	int			fd;
	uint32		events;			/* for which socket_cache.c has it; 0: it has not */
	dlist_node	watched;		/* among those it has */
	bool		leased;			/* a lease of this session uses it now */
	uint64		last_used;
	PgpxBusyPoll poll;			/* pgpx_socket_cache_poll */
	PgpxWire	wire;
} PgpxCachedSocket;

/* The kept socket of a connection, NULL if there is none of this generation. */
extern PgpxCachedSocket *pgpx_socket_cache_find(int conn, uint64 generation);

typedef enum PgpxFetch
{
	PGPX_FETCH_OK,
	PGPX_FETCH_GONE,			/* the worker does not have it any more */
	PGPX_FETCH_TIMEOUT
} PgpxFetch;

/*
 * pgpx_socket_cache_fetch
 *		Ask the worker for the socket of a connection leased to this session.
 *
 * Waits until "deadline" (monotonic; 0: for ever); interrupts are served, so it
 * may throw.  Throws 53000 when this session has no descriptor left.
 */
extern PgpxFetch pgpx_socket_cache_fetch(int pool_index, int conn,
										 uint64 generation,
										 uint64 lease_id, PgpxTime deadline,
										 PgpxCachedSocket **sock);

/* Close a kept socket (this process's end only). */
extern void pgpx_socket_cache_drop(PgpxCachedSocket *sock);

/*
 * pgpx_socket_cache_poll
 *		Read what comes in within a moment, without going to sleep, if that has
 *		paid of late: at most pgpool_ext.busy_poll microseconds.
 *
 * "pool" is that of the connection.  Returns as pgpx_wire_fill; 0 also where it has
 * not looked.
 */
extern ssize_t pgpx_socket_cache_poll(PgpxCachedSocket *sock, int pool,
									  bool *full);

/* External descriptors that a session needs to wait for sockets at all. */
#define PGPX_SESSION_WAIT_FDS 2

/* Are they there? */
extern bool pgpx_session_can_wait(void);

/*
 * pgpx_session_prepare
 *		Get them, before the first socket is kept.  Throws 53000 where it cannot.
 */
extern void pgpx_session_prepare(void);

/*
 * pgpx_session_time_left
 *		How long to wait until a deadline (0: none), in ms, and not longer than
 *		"most" (-1: as long as need be).  False: it has passed.
 */
extern bool pgpx_session_time_left(PgpxTime deadline, long most, long *ms);

/*
 * pgpx_session_wait
 *		Wait until the socket is ready for "events" (WL_SOCKET_*), until this
 *		process's latch is set, or until the deadline; at times for nothing.
 *
 * Returns false when the deadline has passed.  Throws 53000 when the socket cannot
 * be waited for.
 */
extern bool pgpx_session_wait(PgpxCachedSocket *sock, uint32 events,
							  PgpxTime deadline,
							  uint32 wait_event);

/* The same without a socket. */
extern bool pgpx_session_wait_latch(PgpxTime deadline, uint32 wait_event);

/* The same, for something that a worker is to do; it may not run. */
extern bool pgpx_session_wait_worker(int worker, PgpxTime deadline,
									 uint32 wait_event);

/*
 * pgpx_session_wait_fd
 *		The same with a descriptor that is seldom waited for, and for "most" ms
 *		(never -1) at a time.
 */
extern bool pgpx_session_wait_fd(int fd, uint32 events, PgpxTime deadline,
								 long most, uint32 wait_event);

/*
 * pgpx_session_wait_for_more
 *		In the middle of a large answer: wait until much of it has come, for 2 ms
 *		at most.
 */
extern void pgpx_session_wait_for_more(PgpxCachedSocket *sock,
									   uint32 wait_event);

/*
 * pgpx_session_wait_control
 *		Wait for room in the worker's control socket, which is full.  Returns
 *		false when the deadline has passed.
 */
extern bool pgpx_session_wait_control(int worker, PgpxTime deadline);

/*
 * pgpx_session_has_no_input
 *		Has nothing come in on the socket?  False: perhaps.  Never throws, serves
 *		no interrupts.  A fraction of the price of a recv(), where nobody waits for a
 *		connection of the pool.
 */
extern bool pgpx_session_has_no_input(PgpxCachedSocket *sock);

/*
 * pgpx_session_unregister
 *		The lease of this socket is over.  Never throws.
 */
extern void pgpx_session_unregister(PgpxCachedSocket *sock);

/*
 * pgpx_session_forget
 *		The socket is about to be closed.  Never throws.
 */
extern void pgpx_session_forget(PgpxCachedSocket *sock);

#endif							/* PGPX_SOCKET_CACHE_H */
