/*-------------------------------------------------------------------------
 *
 * cancel.h
 *	  Cancel requests.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CANCEL_H
#define PGPX_CANCEL_H

#include "worker/connection.h"

/* Begin to cancel what runs on a connection. */
extern void pgpx_cancel_start(PgpxWorkerConn *w);
extern void pgpx_cancel_ready(PgpxWorkerConn *w);
extern void pgpx_cancel_late(PgpxWorkerConn *w);

/*
 * The same at the worker's end, without the reactor: begin a request, go on with it.
 * Returns the events to wait for on cancel.fd (unless that is -1: then it has a thread,
 * and one looks again); 0: it is over.
 */
extern uint32 pgpx_cancel_begin_last(PgpxWorkerConn *w);
extern uint32 pgpx_cancel_step_last(PgpxWorkerConn *w);

/* Forget a cancel in flight: its connection is being closed. */
extern void pgpx_cancel_drop(PgpxWorkerConn *w);

/* The login is over: note the cancel key, which old libpq has and does not tell. */
extern void pgpx_cancel_find_key(PgpxWorkerConn *w);

#endif							/* PGPX_CANCEL_H */
