/*-------------------------------------------------------------------------
 *
 * abort.h
 *	  Connections whose lease ended in the middle of a statement.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ABORT_H
#define PGPX_ABORT_H

#include "worker/connection.h"

/*
 * CANCELLING, to be closed: cancel what runs, again and again, until the remote
 * has gone or operation_timeout is up; then close.
 */
extern void pgpx_abort_begin(PgpxWorkerConn *w);

/* Its cancel connection has closed; its socket is ready; its pause is over. */
extern void pgpx_abort_cancelled(PgpxWorkerConn *w);
extern void pgpx_abort_ready(PgpxWorkerConn *w, uint32 events);
extern void pgpx_abort_late(PgpxWorkerConn *w);

/* Close it as it is. */
extern void pgpx_abort_abandon(PgpxWorkerConn *w);

#endif							/* PGPX_ABORT_H */
