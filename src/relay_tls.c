/*-------------------------------------------------------------------------
 *
 * relay_tls.c
 *	  A TLS connection of libpq's as a byte stream that never waits.
 *
 * See relay.c for who uses it.  OpenSSL's queue of errors is emptied before each
 * call: what somebody else has left in it would be taken for ours.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_tls.h"

#include <openssl/err.h>

/* What a call of OpenSSL has come to. */
typedef enum Outcome
{
	WANTS_READ,
	WANTS_WRITE,
	ENDED						/* by either side, or by an attack: all the same */
} Outcome;

static Outcome
outcome(PgpxTlsStream *tls, int n)
{
	switch (SSL_get_error(tls->ssl, n))
	{
		case SSL_ERROR_WANT_READ:
			return WANTS_READ;
		case SSL_ERROR_WANT_WRITE:
			return WANTS_WRITE;
		default:
			return ENDED;
	}
}

void
pgpx_tls_begin(PgpxTlsStream *tls, SSL *ssl, size_t piece)
{
	/*
	 * A record that is half sent may be completed from another buffer: what the
	 * relay could not send it copies.  (libpq has set the first of the
	 * modes, or not, by its version.)
	 *
	 * SSL_MODE_AUTO_RETRY, since 1.1.1 OpenSSL's default, lets SSL_read go on after
	 * a record that is no data (a session ticket, a KeyUpdate), for as long as a
	 * remote sends nothing else.  Without it, it returns with WANT_READ after such
	 * a record, but only where nothing is left of what was read ahead; else it goes
	 * on (ssl3_read_bytes in all versions from 1.1.1 to 3.5: "no read-ahead left?").
	 * pgpx_tls_read lives by that: epoll says nothing of bytes that OpenSSL has, so
	 * WANT_READ must mean that there are none but the beginning of a record.  Asking
	 * SSL_has_pending there would not do, since it counts that beginning: the
	 * worker would spin.
	 *
	 * read_ahead: a whole piece comes with one recv(), not with two for each record, a
	 * header and a body.  libpq leaves it off, so nothing is read ahead when it
	 * hands the object over, and the buffer of the size of one record can be
	 * dropped for a larger one (SSL_free_buffers refuses if something is in it, and
	 * the old size then stays: slower, not wrong).
	 */
	SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE);
	SSL_set_mode(ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_clear_mode(ssl, SSL_MODE_AUTO_RETRY);
	SSL_set_options(ssl, SSL_OP_NO_RENEGOTIATION);
	SSL_set_default_read_buffer_len(ssl, piece);
	(void) SSL_free_buffers(ssl);	/* to be made in that size */
	SSL_set_read_ahead(ssl, 1);
	tls->ssl = ssl;
}

size_t
pgpx_tls_read(PgpxTlsStream *tls, char *data, size_t size)
{
	size_t		len = 0;

	tls->read_wants_write = false;
	tls->pending = false;
	while (len < size)
	{
		int			n;

		ERR_clear_error();
		n = SSL_read(tls->ssl, data + len, size - len);
		if (n > 0)
		{
			len += n;

			/* what is in the kernel's buffer, epoll will tell */
			if (!SSL_has_pending(tls->ssl))
				return len;
			continue;
		}
		switch (outcome(tls, n))
		{
			case WANTS_READ:
				break;
			case WANTS_WRITE:
				tls->read_wants_write = true;
				break;
			case ENDED:
				tls->ended = tls->deaf = true;
				break;
		}
		return len;
	}
	tls->pending = true;
	return len;
}

size_t
pgpx_tls_write(PgpxTlsStream *tls, const char *data, size_t len)
{
	size_t		sent = 0;

	tls->write_wants_read = false;
	while (sent < len && !tls->deaf)
	{
		int			n;

		ERR_clear_error();
		n = SSL_write(tls->ssl, data + sent, len - sent);
		if (n > 0)
		{
			sent += n;
			continue;
		}
		switch (outcome(tls, n))
		{
			case WANTS_READ:
				tls->write_wants_read = true;
				return sent;
			case WANTS_WRITE:
				return sent;
			case ENDED:
				/* what it said before it went may still be read */
				tls->deaf = true;
				tls->pending = true;
				break;
		}
	}
	return len;
}

void
pgpx_tls_goodbye(PgpxTlsStream *tls)
{
	if (!tls->deaf)
	{
		ERR_clear_error();
		(void) SSL_shutdown(tls->ssl);
	}
	tls->deaf = true;
}
