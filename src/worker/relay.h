/*-------------------------------------------------------------------------
 *
 * relay.h
 *	  The relay between a TLS connection and the socket pair that sessions use
 *	  in its place.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RELAY_H
#define PGPX_RELAY_H

#include "worker/connection.h"

/*
 * Creates the relay of a TLS connection that libpq has opened.  Returns NULL,
 * or the error.
 */
extern const char *pgpx_relay_begin(PgpxWorkerConn *w);

/*
 * Returns the end of the pair that sessions use; -1 after pgpx_relay_cut.
 */
extern int	pgpx_relay_socket(const PgpxRelay *relay);

/* Handles events on one of its descriptors: the local end or the remote's. */
extern void pgpx_relay_ready(PgpxWorkerConn *w, bool local, uint32 events);

/*
 * Test whether any relay has bytes to move of which epoll does not know; move
 * one chunk of each.
 */
extern bool pgpx_relay_has_more(void);
extern void pgpx_relay_resume(void);

/*
 * Shuts both sides down.  With graceful, sends Terminate to the remote first.
 */
extern void pgpx_relay_cut(PgpxWorkerConn *w, bool graceful);

/* Frees the relay.  Must be called before PQfinish. */
extern void pgpx_relay_end(PgpxWorkerConn *w);

#endif							/* PGPX_RELAY_H */
