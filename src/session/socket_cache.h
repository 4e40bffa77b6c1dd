/*-------------------------------------------------------------------------
 *
 * socket_cache.h
 *	  The sockets that this session has cached, and waiting for them.
 *
 * The worker passes the socket of a connection to the session once, and the
 * session caches it.  A later lease of the connection, with the same
 * generation, needs no message to the worker.  Each cached socket counts as
 * an external descriptor.  When descriptors run out, a random socket without
 * a lease is closed.
 *
 * A session can wait for its latch, for the worker and for a cached socket.
 * The wait functions serve interrupts after the wait, so they can raise errors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SOCKET_CACHE_H
#define PGPX_SOCKET_CACHE_H

#include "shared/shmem.h"
#include "protocol/wire.h"

#include "storage/fd.h"
#include "storage/latch.h"

/*
 * Maximum number of cached sockets: a quarter of max_safe_fds.  The server
 * allows a third of max_safe_fds for external descriptors, so the rest is left
 * for other code, for example postgres_fdw.
 */
#define PGPX_SOCKET_CACHE_MAX Max(64, max_safe_fds / 4)

typedef struct PgpxCachedSocket
{
	int			conn;			/* index of the connection */
	uint64		generation;
	int			fd;
	bool		leased;			/* a lease of this session is using it */
	PgpxTime	poll_began;		/* of a poll without input, which a sleep
								 * follows; 0: none */
	PgpxTime	answer_time;	/* duration of the waits for the remote since
								 * the lease began */
	bool		slow;			/* the last answer took too long to poll for it */
	PgpxWire	wire;
} PgpxCachedSocket;

/*
 * Return the cached socket of a connection, or NULL if there is none of this
 * generation.
 */
extern PgpxCachedSocket *pgpx_socket_cache_find(int conn, uint64 generation);

typedef enum PgpxFetch
{
	PGPX_FETCH_OK,
	PGPX_FETCH_GONE,			/* the worker no longer has the connection */
	PGPX_FETCH_TIMEOUT
} PgpxFetch;

/*
 * pgpx_socket_cache_fetch
 *		Request the socket of a connection that is leased to this session
 *		from the worker.
 *
 * Wait until the deadline (monotonic; 0: none) and serve interrupts, which may
 * throw.  Errors: 53000 this session has no descriptor left.
 */
extern PgpxFetch pgpx_socket_cache_fetch(int pool_index, int conn,
										 uint64 generation,
										 uint64 lease_id, PgpxTime deadline,
										 PgpxCachedSocket **sock);

/* Close this process's descriptor of a cached socket. */
extern void pgpx_socket_cache_drop(PgpxCachedSocket *sock);

/*
 * pgpx_socket_cache_poll
 *		Poll for input for at most pgpool_ext.busy_poll microseconds, and read
 *		it.
 *
 * A sleep and its wakeup cost about as much as a short statement.  Polling
 * without success delays a remote server that needs the same processor.
 * Therefore the session polls only if the previous answer on this connection
 * arrived within twice that time, the pool has no waiters, and at most half as
 * many of its connections are leased as there are processors.
 *
 * pool is the index of the connection's pool.  Return as pgpx_wire_fill; 0 also
 * if it did not poll.
 */
extern ssize_t pgpx_socket_cache_poll(PgpxCachedSocket *sock, int pool,
									  bool *full);

/*
 * pgpx_session_has_time_left
 *		Compute how long to wait until a deadline (0: none), at most max_ms
 *		(-1: no limit).  Return false if the deadline has passed.
 */
extern bool pgpx_session_has_time_left(PgpxTime deadline, long max_ms,
									   long *ms);

/*
 * pgpx_session_wait
 *		Wait until the socket is ready for "events" (WL_SOCKET_*), until the
 *		latch of this process is set, or until the deadline.  Spurious
 *		returns are possible.
 *
 * Return false if the deadline has passed.  Errors: 53000 the socket cannot be
 * registered.
 */
extern bool pgpx_session_wait(PgpxCachedSocket *sock, uint32 events,
							  PgpxTime deadline,
							  uint32 wait_event);

/*
 * Wait with a set of the caller, and reset the latch if it was set.  timeout is
 * in ms, -1: none.  Serves no interrupts.
 */
extern void pgpx_session_wait_set(WaitEventSet *set, long timeout,
								  uint32 wait_event);

/* Wait as pgpx_session_wait, but without a socket. */
extern bool pgpx_session_wait_latch(PgpxTime deadline, uint32 wait_event);

/*
 * Wait as pgpx_session_wait_latch, for an action of the worker.  If the worker
 * is not running, ask the postmaster to start it, at most once a second.
 */
extern bool pgpx_session_wait_worker(int worker, PgpxTime deadline,
									 uint32 wait_event);

/*
 * pgpx_session_wait_for_more
 *		In the middle of a large answer, wait for at most 2 ms until much input
 *		has arrived.
 */
extern void pgpx_session_wait_for_more(PgpxCachedSocket *sock,
									   uint32 wait_event);

/*
 * pgpx_session_wait_control
 *		Wait for room in the full control socket of a worker.  Return false if
 *		the deadline has passed.
 */
extern bool pgpx_session_wait_control(int worker, PgpxTime deadline);

/*
 * Return whether there is no input on the socket.  False means that there may
 * be some.
 */
extern bool pgpx_session_has_no_input(const PgpxCachedSocket *sock);

/*
 * Unregister the socket if it is registered, because its lease ends.  Other
 * sessions can lease the connection then.
 */
extern void pgpx_session_unregister(PgpxCachedSocket *sock);

#endif							/* PGPX_SOCKET_CACHE_H */
