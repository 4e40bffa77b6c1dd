/*-------------------------------------------------------------------------
 *
 * login.h
 *	  Logins, performed in threads step by step.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOGIN_H
#define PGPX_LOGIN_H

#include "worker/conninfo.h"

#include "libpq-fe.h"

typedef struct PgpxLogin PgpxLogin;

/* Drop notices, which libpq would print to stderr. */
extern void pgpx_libpq_mute_notices(PGconn *pg);

/*
 * After the login: send the output of libpq, read the input, and drop
 * notifications.  Set *unsent to whether some of the output could not be sent
 * yet.  Return false if the connection has failed.
 */
extern bool pgpx_libpq_exchange(PGconn *pg, bool *unsent);

/*
 * Manage a login that pgpx_conninfo_login has started: "stepped" is called
 * after each step.  Return NULL if out of memory.  pgpx_login_begin_kind does
 * the same for another kind of operation on an object of libpq.
 */
extern PgpxLogin *pgpx_login_begin(PgpxLoginKey key, PGconn *pg,
								   PgpxLoginStepped stepped, void *owner);

extern PgpxLogin *pgpx_login_begin_kind(const PgpxLoginKind *kind,
										PgpxLoginKey key, void *libpq,
										PgpxLoginStepped stepped, void *owner);

/* Run the next step; called when libpq's socket is ready. */
extern void pgpx_login_step(PgpxLogin *login);

/*
 * Return whether a thread is using the PGconn.  If so, nothing else may touch
 * it.
 */
extern bool pgpx_login_is_running(const PgpxLogin *login);

/*
 * Return the reason for the delay of a login, as text to append to "it did not
 * end in time": the login's computation, or other logins.  Return "" if the
 * login was waiting for the remote.
 */
extern const char *pgpx_login_delay_reason(const PgpxLogin *login);

/*
 * End the management of a login that is complete or abandoned.  Return true if
 * a thread is running a step: then the thread owns the PGconn and its external
 * descriptor, and the caller must not release either.
 */
extern bool pgpx_login_end(PgpxLogin *login);

/* Return the number of sockets that abandoned logins still hold. */
extern int	pgpx_login_descriptors(void);

#endif							/* PGPX_LOGIN_H */
