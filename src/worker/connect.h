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

/*
 * Return whether the server has a session in phase PUBLISH whose PID is not in
 * a statement in flight.  In that phase the PID must be stored in the remote's
 * table of shares, see locks/share.c.
 */
extern bool pgpx_connect_has_unpublished(int server);

/*
 * Handle the end of a statement that publishes PIDs.  request: its number.  On
 * success continue the attempts.  If the outcome is unknown, let the next
 * statement publish their PIDs again.
 */
extern void pgpx_connect_published(uint64 request);
extern void pgpx_connect_not_published(uint64 request);

/* Continue the attempts of pools that have lost cluster_connections. */
extern void pgpx_connect_need_not_publish(void);

/*
 * End the attempts of a server in the phases up to PUBLISH, because other
 * servers do not count their sessions.  full: the remote accepts no more
 * connections.
 */
extern void pgpx_connect_end_unpublished(int server, bool full,
										 const char *text);

#endif							/* PGPX_CONNECT_H */
