/*-------------------------------------------------------------------------
 *
 * login.h
 *	  How libpq connects without the worker waiting for it: hosts.c says where to,
 *	  login.c goes the way.
 *
 * For those of the worker's files that open something: connections, the pings of
 * locks, and cancel requests.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOGIN_H
#define PGPX_LOGIN_H

#include "worker.h"

/* --- hosts.c ------------------------------------------------------------- */

/*
 * pgpx_hosts_told
 *		Where a login may go, as the look-up says if there was one.  Not first one
 *		that was silent a short while ago.
 * pgpx_hosts_silent
 *		The one that libpq is at does not answer (NULL: it cannot be asked; then the
 *		first): for a while others begin behind it.  Returns whether any but this
 *		one are left.
 */
extern PgpxHosts *pgpx_hosts_told(int pool, const PgpxLookup *lookup);
extern bool pgpx_hosts_silent(int pool, PgpxHosts *hosts, const PGconn *pg);

/* Free them, and forget where they were; NULL is none. */
extern void pgpx_hosts_free(PgpxHosts **hosts);

/*
 * A list for libpq of a field of what is left, by its offset in PgpxHost; NULL: it
 * was not told.  In the current memory context.
 */
extern const char *pgpx_hosts_join(const PgpxHosts *hosts, size_t field);

/* --- login.c ------------------------------------------------------------- */

/* Whose logins wait for each other: a pool's, by what was told at a time. */
typedef struct PgpxLoginOf
{
	int			pool;
	uint32		pool_id;
	uint64		version;		/* of the conninfo */
} PgpxLoginOf;

/*
 * A step has ended, as libpq says (and errno), or, unless failure is NULL, for this
 * reason.  The owner may end the login in it.
 */
typedef void (*PgpxLoginStepped)(void *owner, PostgresPollingStatusType status,
								 int sqlstate, const char *failure);

/* libpq has begun to connect (pgpx_conninfo_login).  NULL: no memory. */
extern PgpxLogin *pgpx_login_begin(PgpxLoginOf of, PGconn *pg,
								   PgpxHearing *hearing,
								   PgpxLoginStepped stepped, void *owner);

/* The same with what else libpq does step by step: a cancel request (canceller.c). */
typedef struct PgpxLoginKind
{
	PostgresPollingStatusType (*poll)(void *libpq); /* in the thread */
	int (*socket)(const void *libpq);
	void (*finish)(void *libpq);
} PgpxLoginKind;

extern PgpxLogin *pgpx_login_begin_as(const PgpxLoginKind *kind,
									  PgpxLoginOf of, void *libpq,
									  PgpxHearing *hearing,
									  PgpxLoginStepped stepped, void *owner);

/* The socket is ready for it: go on with the login. */
extern void pgpx_login_step(PgpxLogin *login);

/* Is libpq's connection in use by a thread?  Then nobody may touch it. */
extern bool pgpx_login_is_running(const PgpxLogin *login);

/*
 * To be added to "it did not end in time": what it computes, or waits for.  "": it
 * waits for the remote.
 */
extern const char *pgpx_login_why_late(const PgpxLogin *login);

/*
 * It is over, or nobody waits for it any more.  True: a thread is at work, and
 * libpq's connection and its external descriptor are no longer the caller's.
 */
extern bool pgpx_login_end(PgpxLogin *login);

/* How many sockets those have that were given up. */
extern int	pgpx_login_descriptors(void);

#endif							/* PGPX_LOGIN_H */
