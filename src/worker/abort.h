/*-------------------------------------------------------------------------
 *
 * abort.h
 *	  Abort of connections whose lease ended in the middle of a statement.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ABORT_H
#define PGPX_ABORT_H

#include "worker/connection.h"

/*
 * Begins the abort of a connection in state CANCELLING that is to be closed.
 * Cancels the running statement, repeatedly, until the remote has closed its
 * side or operation_timeout has passed.  Then closes the connection.
 */
extern void pgpx_abort_begin(PgpxWorkerConn *w);

/*
 * Continue the abort after events on the connection's socket, and at the end of
 * the pause before the next cancel request.
 */
extern void pgpx_abort_ready(PgpxWorkerConn *w, uint32 events);
extern void pgpx_abort_pause_over(PgpxWorkerConn *w);

/* Closes the connection at once, in whatever state the remote is. */
extern void pgpx_abort_abandon(PgpxWorkerConn *w);

#endif							/* PGPX_ABORT_H */
