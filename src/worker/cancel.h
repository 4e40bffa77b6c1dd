/*-------------------------------------------------------------------------
 *
 * cancel.h
 *	  Nonblocking cancel requests.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CANCEL_H
#define PGPX_CANCEL_H

#include "worker/connection.h"

/*
 * pgpx_cancel_start
 *		Start a cancel request for the statement that runs on a connection.
 *
 * "ended" is called once, when the remote has closed the cancel connection, or
 * the request has failed, perhaps before this function returns.  If a request
 * is in flight already, it goes on, and only its "ended" is replaced.
 */
extern void pgpx_cancel_start(PgpxWorkerConn *w, PgpxCancelEnded ended);

/* Handle events on the socket of the request; handle its deadline. */
extern void pgpx_cancel_ready(PgpxWorkerConn *w);
extern void pgpx_cancel_deadline_passed(PgpxWorkerConn *w);

/*
 * Start and continue a request while the worker exits, without the event loop.
 * Both return the events to wait for on cancel.fd, or 0 when the request is
 * finished.  If cancel.fd is -1 a thread runs the request and the caller has to
 * poll.
 */
extern uint32 pgpx_cancel_begin_last(PgpxWorkerConn *w);
extern uint32 pgpx_cancel_step_last(PgpxWorkerConn *w);

/*
 * Drops a cancel request in flight because its connection is being closed.
 * "ended" is not called.
 */
extern void pgpx_cancel_drop(PgpxWorkerConn *w);

/*
 * Records the cancel key after a login.  libpq before 17 has the key but no
 * function that returns it.
 */
extern void pgpx_cancel_find_key(PgpxWorkerConn *w);

#endif							/* PGPX_CANCEL_H */
