/*-------------------------------------------------------------------------
 *
 * connect.h
 *	  Opening a connection: the attempts, and what precedes its first lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONNECT_H
#define PGPX_CONNECT_H

#include "shared/pool_worker.h"
#include "worker/connection.h"

/* CONNECTING: begin to open it; or give up, since the pool has another version. */
extern void pgpx_connect_open(PgpxWorkerConn *w);
extern void pgpx_connect_outdated(PgpxWorkerConn *w);

/* An attempt is under way: apply connect_timeout if it has changed meanwhile. */
extern void pgpx_connect_renew_timeout(PgpxWorkerConn *w, int64 timeout);

/* Nobody waits any more for the name that is being looked up. */
extern void pgpx_connect_end_lookup(PgpxWorkerConn *w);

/* Go on with opening it; or give up, since the deadline has passed. */
extern void pgpx_connect_step(PgpxWorkerConn *w);
extern void pgpx_connect_too_late(PgpxWorkerConn *w);

/*
 * The attempt has failed: text is the reason for those who wait.  It is dropped, or
 * ended elsewhere if something runs in it.  "refused": with the SQLSTATE that most have.
 */
extern void pgpx_connect_abandon(PgpxWorkerConn *w, PgpxConnectFailure how,
								 int sqlstate, const char *text);
extern void pgpx_connect_fail(PgpxWorkerConn *w, int sqlstate,
							  const char *text);
extern void pgpx_connect_refused(PgpxWorkerConn *w, const char *text);

/*
 * Have other options come since it was begun?  Then it is given up: the password and
 * the start commands of the new ones are not for the old ones' host.
 */
extern bool pgpx_connect_overtaken(PgpxWorkerConn *w);

/* The login is done: is it one that we may use?  Then on to the start commands. */
extern void pgpx_connect_logged_in(PgpxWorkerConn *w);

/* Something came while they run. */
extern void pgpx_connect_step_start(PgpxWorkerConn *w);

#endif							/* PGPX_CONNECT_H */
