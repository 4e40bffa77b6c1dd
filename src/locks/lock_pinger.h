/*-------------------------------------------------------------------------
 *
 * lock_pinger.h
 *	  The worker's connections for distributed locks: pings and releases.
 *
 * One for each pool that has locks, beside the connections of the pool: it pings
 * all of them with one statement, and tells of releases.  It is opened when there
 * is something to say, and closed some seconds after the last lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOCK_PINGER_H
#define PGPX_LOCK_PINGER_H

#include "worker/login.h"
#include "locks/lock_table.h"

#include "libpq-fe.h"

/* Ping and release locks where that is due.  Returns when it is due again. */
extern PgpxTime pgpx_pinger_run(void);
extern void pgpx_pinger_ready(int index, uint32 events);

/* A session has told how to connect. */
extern void pgpx_pinger_conninfo_published(void);

/* How many sockets the pingers have. */
extern int	pgpx_pinger_descriptors(void);

typedef enum PgpxPingerPhase
{
	PGPX_PINGER_NONE = 0,		/* no PGconn */
	PGPX_PINGER_LOOKUP,			/* a thread looks the host name up */
	PGPX_PINGER_CONNECT,		/* the login: see login.c */
	PGPX_PINGER_START,			/* the start commands run */
	PGPX_PINGER_PREPARE,		/* our own settings */
	PGPX_PINGER_IDLE,
	PGPX_PINGER_PING,
	PGPX_PINGER_RELEASE
} PgpxPingerPhase;

typedef struct PgpxPinger
{
	int			pool;			/* index: the pinger's own, too */
	uint32		pool_id;
	PgpxPingerPhase phase;
	uint32		attempt;		/* tells one connection from the next */
	uint64		version;		/* of the conninfo */
	PGconn	   *pg;
	PgpxLogin  *login;			/* in phase CONNECT */
	PgpxHosts  *hosts;			/* the same */
	int			fd;				/* in the epoll set; -1: none */
	uint32		events;
	bool		external_fd;
	PgpxTime	deadline;		/* of the phase; 0: none */
	bool		answered;		/* a statement about locks, in this connection */
	PgpxTime	used_at;		/* since when it is idle */
	PgpxTime	retry_at;		/* after a failure */
	int64		backoff;		/* us */
	bool		failing;		/* the log has been told */

	/* the statement that is under way */
	PgpxTime	asked_at;		/* steady */
	int			nwork;
	PgpxDlockWork *work;		/* [max_locks] */
	bool	   *ours;			/* [max_locks] the remote's answer */
	bool	   *contended;		/* [max_locks] by another server */
	char		error[PGPX_ERROR_LEN];	/* "": none so far */
	PgpxInputAccounting accounting;
} PgpxPinger;

/* Its connection is ready to be used; or, of no use. */
extern void pgpx_pinger_ready_to_work(PgpxPinger *p);
extern void pgpx_pinger_failed(PgpxPinger *p, const char *why);

/* A look-up has ended. */
extern void pgpx_pinger_looked_up(PgpxLookup *lookup);

/* Begin to open it; false: nobody has told how to. */
extern bool pgpx_pinger_open(PgpxPinger *p, int64 timeout);
extern void pgpx_pinger_step(PgpxPinger *p);
extern void pgpx_pinger_looked_up_one(PgpxPinger *p, PgpxLookup *lookup);
extern void pgpx_pinger_drop(PgpxPinger *p);

/* What is under way has not ended in time: the next attempt is at another host. */
extern void pgpx_pinger_too_late(PgpxPinger *p);
extern void pgpx_pinger_watch(PgpxPinger *p, uint32 events);
extern void pgpx_pinger_sent(PgpxPinger *p);

/*
 * Take in what has come of a statement's results.  True: it has ended, well or, if
 * "error" is set, not.  False: wait for more; or the connection is lost.
 */
extern bool pgpx_pinger_results(PgpxPinger *p,
								void (*row)(PgpxPinger *p,
											const PGresult *res));

#endif							/* PGPX_LOCK_PINGER_H */
