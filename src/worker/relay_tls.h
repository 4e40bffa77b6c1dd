/*-------------------------------------------------------------------------
 *
 * relay_tls.h
 *	  A TLS connection as a nonblocking byte stream.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RELAY_TLS_H
#define PGPX_RELAY_TLS_H

#include "base/compat.h"

#include <openssl/ssl.h>

#include "libpq-fe.h"

/*
 * Prepare a connection whose login is complete for calls in the event loop, so
 * that the remote's messages cannot keep libpq busy there.  Return the reason
 * why the connection's TLS cannot be relayed; NULL if it can, or if the
 * connection has none.
 */
extern const char *pgpx_tls_prepare(PGconn *pg);

typedef struct PgpxTlsStream
{
	SSL		   *ssl;			/* libpq's */
	bool		buffered;		/* OpenSSL holds bytes unseen by epoll */
	bool		ended;			/* nothing more will be received */
	int			error;			/* errno of the first failure; 0: none */
	bool		write_closed;	/* bytes that are sent are discarded */
	bool		read_wants_write;	/* SSL_read must send first */
	bool		write_wants_read;

	size_t		chunk;
	size_t		taken;			/* bytes this call has read from the socket */
	bool		input_drained;	/* no more from the socket in this call */
	uint64		data_bytes;		/* bytes of data received */
	uint64		without_data;	/* messages without data received */
} PgpxTlsStream;

/*
 * Start the stream on libpq's SSL object.  pgpx_tls_prepare must have accepted
 * the connection.  chunk is the number of bytes to read at once.
 */
extern void pgpx_tls_begin(PgpxTlsStream *tls, SSL *ssl, size_t chunk);

/* Read at most "size" bytes that are available; return the number read. */
extern size_t pgpx_tls_read(PgpxTlsStream *tls, char *data, size_t size);

/*
 * Send; return the number of bytes accepted, all of them if the write side is
 * closed.
 */
extern size_t pgpx_tls_write(PgpxTlsStream *tls, const char *data, size_t len);

/* Send close_notify and close the write side. */
extern void pgpx_tls_close_notify(PgpxTlsStream *tls);

/*
 * End the stream: libpq may free its SSL object, and the caller may free tls.
 */
extern void pgpx_tls_end(PgpxTlsStream *tls);

#endif							/* PGPX_RELAY_TLS_H */
