/*-------------------------------------------------------------------------
 *
 * connect.h
 *	  Connection attempts: login, start commands, checks before the first lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONNECT_H
#define PGPX_CONNECT_H

#include "shared/pool_worker.h"
#include "worker/connection.h"

extern const PgpxPurpose pgpx_pool_purpose;

/*
 * Start the attempt of a connection of a pool in state CONNECTING; end an
 * attempt that was started with older options of the pool.
 */
extern void pgpx_connect_open(PgpxWorkerConn *w);
extern void pgpx_connect_end_outdated(PgpxWorkerConn *w);

/*
 * Start an attempt for w->purpose with the conninfo of pool w->pool, whose
 * pool_id is w->pool_id.  It may fail before this function returns.
 */
extern void pgpx_connect_begin(PgpxWorkerConn *w, int64 timeout_ms);

/* Change the end of the time for an attempt that is in progress. */
extern void pgpx_connect_set_end(PgpxWorkerConn *w, PgpxTime until);

/*
 * Continue the attempt after an event on its socket; handle its deadline,
 * which fails the attempt or continues it with the next host.
 */
extern void pgpx_connect_step(PgpxWorkerConn *w);
extern void pgpx_connect_deadline_passed(PgpxWorkerConn *w);

/*
 * After the login: send the output of libpq, read the input, and drop
 * notifications.  Set *unsent to whether some of the output could not be sent
 * yet.  Return false if the connection has failed.
 */
extern bool pgpx_connect_exchange(PgpxWorkerConn *w, bool *unsent);

/*
 * Return why a connection that has logged in must not be used, with its SQLSTATE,
 * or NULL.  The resolver, too, calls these two.
 */
extern const char *pgpx_connect_find_refusal(PGconn *pg, bool need_password,
											 int *sqlstate);
extern void pgpx_connect_drop_notice(void *arg, const PGresult *res);

#endif							/* PGPX_CONNECT_H */
