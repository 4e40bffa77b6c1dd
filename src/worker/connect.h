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

/*
 * Start the attempt of a connection in state CONNECTING; end an attempt that
 * was started with older options of the pool.
 */
extern void pgpx_connect_open(PgpxWorkerConn *w);
extern void pgpx_connect_end_outdated(PgpxWorkerConn *w);

/* Apply a changed connect_timeout to an attempt that is in progress. */
extern void pgpx_connect_renew_timeout(PgpxWorkerConn *w, int64 timeout_ms);

/*
 * Continue the attempt after an event on its socket; handle its deadline,
 * which fails the attempt or continues it with the next host.
 */
extern void pgpx_connect_step(PgpxWorkerConn *w);
extern void pgpx_connect_deadline_passed(PgpxWorkerConn *w);

#endif							/* PGPX_CONNECT_H */
