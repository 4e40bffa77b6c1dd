/*-------------------------------------------------------------------------
 *
 * login.h
 *	  Logins, performed in threads step by step, and bounds on libpq's memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LOGIN_H
#define PGPX_LOGIN_H

#include "worker/conninfo.h"

#include "libpq-fe.h"

/* How many bytes libpq has read; see login.c. */
typedef struct PgpxInputAccounting
{
	uint64		login;			/* bytes that the steps of the login have read,
								 * of those that were ready before each */
	uint64		unread;			/* bytes that were ready before this step */
	uint64		start;			/* bytes that libpq had read at the end of
								 * the login */
	uint64		taken;			/* .. and at its last result */
	uint64		rows;			/* bytes of the rows that it has returned */
	bool		exceeded;		/* the last pgpx_libpq_exchange was stopped,
								 * because it read too many bytes */
} PgpxInputAccounting;

typedef struct PgpxLogin PgpxLogin;

/* Drop notices, which libpq would print to stderr. */
extern void pgpx_libpq_mute_notices(PGconn *pg);

/*
 * Free notifications, which libpq would accumulate.  Called after
 * PQconsumeInput.
 */
extern void pgpx_libpq_drop_notifications(PGconn *pg);

/*
 * pgpx_libpq_exchange
 *		Send the output of libpq and read the input, after the login.
 *
 * Set *unsent to whether some of the output could not be sent yet.  Return
 * false if the connection has failed, or if the remote has sent too much during
 * the call; pgpx_libpq_failure returns the reason.
 */
extern bool pgpx_libpq_exchange(PgpxInputAccounting *accounting, PGconn *pg,
								bool *unsent);

/* Return why pgpx_libpq_exchange has failed. */
extern const char *pgpx_libpq_failure(const PgpxInputAccounting *accounting,
									  const PGconn *pg);

/* Account for the rows of a result; to be called before it is freed. */
extern void pgpx_libpq_note_rows(PgpxInputAccounting *accounting,
								 const PGresult *res);

/*
 * pgpx_libpq_check_input
 *		Account for the input that libpq has read after the login.
 *
 * results: libpq has returned all results that are complete, and has returned
 * at least one since the last call.  Return NULL, or the reason why the
 * connection must be closed: the remote has sent more than an honest one does,
 * and libpq may have stored it.
 */
extern const char *pgpx_libpq_check_input(PgpxInputAccounting *accounting,
										  PGconn *pg, bool results);

/*
 * Return whether the connection should be replaced at the next opportunity,
 * because half of the input for which it must be closed has been received.
 */
extern bool pgpx_libpq_is_half_full(const PgpxInputAccounting *accounting);

/*
 * Manage a login that pgpx_conninfo_login has started: "stepped" is called
 * after each step.  Return NULL if out of memory.  pgpx_login_begin_kind does
 * the same for another kind of operation on an object of libpq.
 */
extern PgpxLogin *pgpx_login_begin(PgpxLoginKey key, PGconn *pg,
								   PgpxInputAccounting *accounting,
								   PgpxLoginStepped stepped, void *owner);

extern PgpxLogin *pgpx_login_begin_kind(const PgpxLoginKind *kind,
										PgpxLoginKey key, void *libpq,
										PgpxInputAccounting *accounting,
										PgpxLoginStepped stepped, void *owner);

/* Run the next step; called when libpq's socket is ready. */
extern void pgpx_login_step(PgpxLogin *login);

/*
 * Shut down the sockets of running steps that have read more than a login
 * needs.  Return when to call this again.
 */
extern PgpxTime pgpx_login_stop_oversized(PgpxTime now);

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
