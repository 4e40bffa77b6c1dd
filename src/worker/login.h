/*-------------------------------------------------------------------------
 *
 * login.h
 *	  Logins, step by step in threads, and bounds on libpq's memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOGIN_H
#define PGPX_LOGIN_H

#include "worker/conninfo.h"

#include "libpq-fe.h"

/* What libpq hears while it is it that reads; see login.c. */
typedef struct PgpxInputAccounting
{
	uint64		login;			/* bytes of the login that lay ready */
	uint64		unread;			/* .. and lay so before this step of it */
	uint64		taken;			/* bytes until something was handed out */
} PgpxInputAccounting;

typedef struct PgpxLogin PgpxLogin;

/* Drop notices, which libpq would print. */
extern void pgpx_libpq_mute_notices(PGconn *pg);

/* Drop notifications, which libpq would keep; where input has been consumed. */
extern void pgpx_libpq_drop_notifications(PGconn *pg);

/* A login begins; around a step of it; false: it is longer than any needs to be. */
extern void pgpx_libpq_login_begin(PgpxInputAccounting *accounting);
extern void pgpx_libpq_login_before(PgpxInputAccounting *accounting, int fd);
extern bool pgpx_libpq_login_after(PgpxInputAccounting *accounting, int fd);

/*
 * Input has been consumed, and "taken" tells whether libpq has handed something out:
 * does it keep more than a message of an honest remote takes?
 */
extern bool pgpx_libpq_buffers_too_much(PgpxInputAccounting *accounting,
										PGconn *pg, bool taken);

/* libpq has begun to connect (pgpx_conninfo_login).  NULL: no memory. */
extern PgpxLogin *pgpx_login_begin(PgpxLoginOf of, PGconn *pg,
								   PgpxInputAccounting *accounting,
								   PgpxLoginStepped stepped, void *owner);

extern PgpxLogin *pgpx_login_begin_as(const PgpxLoginKind *kind,
									  PgpxLoginOf of, void *libpq,
									  PgpxInputAccounting *accounting,
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
