/*-------------------------------------------------------------------------
 *
 * relay_tls.h
 *	  A TLS connection as a byte stream that does not block.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RELAY_TLS_H
#define PGPX_RELAY_TLS_H

#include "base/compat.h"

#include <openssl/ssl.h>

#include "libpq-fe.h"

/*
 * A login is over, and from now on libpq is asked in the worker's loop: see to it
 * that what a remote sends does not keep it there.  Returns why the connection's TLS
 * cannot be used by us; NULL: it can, or there is none.
 */
extern const char *pgpx_tls_claim(PGconn *pg);

typedef struct PgpxTlsStream
{
	SSL		   *ssl;			/* libpq's */
	bool		pending;		/* more is inside OpenSSL, unseen by epoll */
	bool		ended;			/* nothing will come any more */
	bool		write_closed;	/* what is sent is lost */
	bool		read_wants_write;	/* SSL_read waits for room to send */
	bool		write_wants_read;

	size_t		chunk;
	size_t		taken;			/* from the socket, by this call */
	bool		dry;			/* the socket has no more for this call */
	uint64		data_bytes;		/* bytes of data, so far */
	uint64		unasked;		/* messages that are no data, so far */
} PgpxTlsStream;

/*
 * Begin, with what pgpx_tls_claim has found to be ours; piece: how much is read at
 * once.
 */
extern void pgpx_tls_begin(PgpxTlsStream *tls, SSL *ssl, size_t chunk);

/* Read what is there, so much at most; returns how much it was. */
extern size_t pgpx_tls_read(PgpxTlsStream *tls, char *data, size_t size);

/* Send; returns how much was taken, all of it if nobody listens any more. */
extern size_t pgpx_tls_write(PgpxTlsStream *tls, const char *data, size_t len);

/* Nothing more will be sent. */
extern void pgpx_tls_close_notify(PgpxTlsStream *tls);

/* It is libpq's alone again, to be freed; and tls may be freed. */
extern void pgpx_tls_end(PgpxTlsStream *tls);

#endif							/* PGPX_RELAY_TLS_H */
