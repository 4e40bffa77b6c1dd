/*-------------------------------------------------------------------------
 *
 * relay_tls.h
 *	  A TLS connection of libpq's as a byte stream that never waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RELAY_TLS_H
#define PGPX_RELAY_TLS_H

#include "compat.h"

#include <openssl/ssl.h>

typedef struct PgpxTlsStream
{
	SSL		   *ssl;			/* libpq's */
	bool		pending;		/* more is inside OpenSSL, unseen by epoll */
	bool		ended;			/* nothing will come any more */
	bool		deaf;			/* what is sent is lost */
	bool		read_wants_write;	/* SSL_read waits for room to send */
	bool		write_wants_read;
} PgpxTlsStream;

/* Begin; piece: how much is read at once. */
extern void pgpx_tls_begin(PgpxTlsStream *tls, SSL *ssl, size_t piece);

/* Read what is there, so much at most; returns how much it was. */
extern size_t pgpx_tls_read(PgpxTlsStream *tls, char *data, size_t size);

/* Send; returns how much was taken, all of it if nobody listens any more. */
extern size_t pgpx_tls_write(PgpxTlsStream *tls, const char *data, size_t len);

/* Nothing more will be sent. */
extern void pgpx_tls_goodbye(PgpxTlsStream *tls);

#endif							/* PGPX_RELAY_TLS_H */
