/*-------------------------------------------------------------------------
 *
 * relay.h
 *	  The relay between a TLS connection and the socket pair that stands for
 *	  it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RELAY_H
#define PGPX_RELAY_H

#include "worker/connection.h"

/*
 * Give a TLS connection that libpq has opened a socket for its lessees.  Returns
 * what has failed, or NULL.
 */
extern const char *pgpx_relay_begin(PgpxWorkerConn *w);

/* That socket; -1 after the cut. */
extern int	pgpx_relay_socket(const PgpxRelay *relay);

/* One of its descriptors is ready: the sessions' side, or the remote's. */
extern void pgpx_relay_ready(PgpxWorkerConn *w, bool local, uint32 events);

/* Some have more to move than epoll knows; move it, a piece each. */
extern bool pgpx_relay_has_more(void);
extern void pgpx_relay_go_on(void);

/* Shut both sides down; politely: with a goodbye to the remote. */
extern void pgpx_relay_cut(PgpxWorkerConn *w, bool graceful);

/* Free it, before libpq's connection. */
extern void pgpx_relay_end(PgpxWorkerConn *w);

#endif							/* PGPX_RELAY_H */
