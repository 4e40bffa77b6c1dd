/*-------------------------------------------------------------------------
 *
 * lock_pinger.h
 *	  Pinger: the worker's connections that ping and release distributed locks.
 *
 * Each pool that has locks has one pinger connection, beside the pool's
 * connections.  It pings all locks of the pool with one statement, and sends
 * their releases.  It is opened when a ping or release is due, and closed some
 * seconds after the last lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_PINGER_H
#define PGPX_LOCK_PINGER_H

#include "worker/connection.h"
#include "locks/lock_table.h"

/*
 * Send the pings and releases that are due.  Return the time (pgpx_now) at
 * which the next one is due.
 */
extern PgpxTime pgpx_lock_pinger_run(void);

/* Handle epoll events on the socket of the pinger with this index. */
extern void pgpx_lock_pinger_ready(int index, uint32 events);

/* Run the pingers again, because a conninfo was published. */
extern void pgpx_lock_pinger_conninfo_published(void);

/* Return the number of sockets of the pingers. */
extern int	pgpx_lock_pinger_descriptors(void);

typedef enum PgpxPingerPhase
{
	PGPX_PINGER_NONE = 0,		/* no PGconn */
	PGPX_PINGER_CONNECT,		/* attempt to connect: see connect.c */
	PGPX_PINGER_PREPARE,		/* SETTINGS run */
	PGPX_PINGER_IDLE,
	PGPX_PINGER_PING,
	PGPX_PINGER_RELEASE
} PgpxPingerPhase;

typedef struct PgpxPinger
{
	int			pool;			/* index of the pool and the pinger */
	uint32		pool_id;
	PgpxPingerPhase phase;
	PgpxWorkerConn conn;
	PgpxTime	deadline;		/* of the statement; 0: none */
	PgpxTime	phase_since;	/* start of the statement or the attempt */
	bool		answered;		/* a statement succeeded on this connection */
	PgpxTime	idle_since;
	PgpxTime	failed_at;		/* last failure */
	PgpxTime	backoff;		/* last pause after a failure; 0: none */
	bool		failing;		/* the failure was logged */

	/* the statement in flight */
	PgpxTime	sent_at;		/* steady */
	int			nwork;
	PgpxLockWork *work;			/* [max_locks] */
	bool	   *confirmed;		/* extended or released */
	char		error[PGPX_ERROR_LEN];	/* "": none so far */
} PgpxPinger;

#endif							/* PGPX_LOCK_PINGER_H */
