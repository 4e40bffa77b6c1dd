/*-------------------------------------------------------------------------
 *
 * session_wait.h
 *	  What a session sleeps for: its latch, the worker, a kept socket.
 *
 * Those that wait serve interrupts afterwards, and so may throw.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SESSION_WAIT_H
#define PGPX_SESSION_WAIT_H

#include "kept.h"

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
extern bool pgpx_session_wait(PgpxKept *kept, uint32 events, PgpxTime deadline,
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
 * pgpx_session_gather
 *		In the middle of a large answer: wait until much of it has come, for 2 ms
 *		at most.
 */
extern void pgpx_session_gather(PgpxKept *kept, uint32 wait_event);

/*
 * pgpx_session_wait_control
 *		Wait for room in the worker's control socket, which is full.  Returns
 *		false when the deadline has passed.
 */
extern bool pgpx_session_wait_control(int worker, PgpxTime deadline);

/*
 * pgpx_session_quiet
 *		Has nothing come in on the socket?  False: perhaps.  Never throws, serves
 *		no interrupts.  A fraction of the price of a recv(), where nobody waits for a
 *		connection of the pool.
 */
extern bool pgpx_session_quiet(PgpxKept *kept);

/*
 * pgpx_session_part
 *		The lease of this socket is over.  Never throws.
 */
extern void pgpx_session_part(PgpxKept *kept);

/*
 * pgpx_session_forget
 *		The socket is about to be closed.  Never throws.
 */
extern void pgpx_session_forget(PgpxKept *kept);

#endif							/* PGPX_SESSION_WAIT_H */
