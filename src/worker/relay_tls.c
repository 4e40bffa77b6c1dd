/*-------------------------------------------------------------------------
 *
 * relay_tls.c
 *	  A TLS connection as a byte stream that does not block.
 *
 * The worker calls functions of OpenSSL on an object that libpq has made.  Two
 * copies of OpenSSL in one process do not know each other's objects, and calling
 * one's functions on the other's is a crash at best.  It happens where libpq is not the
 * distribution's, or has OpenSSL linked in.
 *
 * So: whose function does the dynamic linker find for libpq, and is it ours?  The
 * one that is asked for is one that no wrapper (of those that write down keys, or
 * count) has a reason to replace.
 *
 * A TLS connection of libpq's as a byte stream that never waits.
 *
 * See relay.c for who uses it.  OpenSSL's queue of errors is emptied before each
 * call: what somebody else has left in it would be taken for ours.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/relay_tls.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

static bool
look_up(void)
{
	Dl_info		info;
	void	   *libpq;
	void	   *theirs;

	if (dladdr((void *) PQsslStruct, &info) == 0 || info.dli_fname == NULL)
		return false;
	libpq = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (libpq == NULL)
		return false;

	/* in libpq, and in what it was linked with */
	theirs = dlsym(libpq, "SSL_has_pending");
	(void) dlclose(libpq);
	return theirs == (void *) SSL_has_pending;
}

const char *
pgpx_tls_claim(PGconn *pg)
{
	static int	fits = -1;
	SSL		   *ssl;

	if (!PQsslInUse(pg))
		return NULL;
	ssl = PQsslStruct(pg, "OpenSSL");
	if (ssl == NULL)
		return "The connection uses TLS of another library than OpenSSL, which pgpool_ext cannot relay.";
	if (fits < 0)
		fits = look_up();
	if (fits == 0)
		return "libpq uses another OpenSSL than pgpool_ext was linked with, so its TLS cannot be relayed.";

	/*
	 * SSL_MODE_AUTO_RETRY, since 1.1.1 OpenSSL's default, lets SSL_read go on after
	 * a record that is no data (a session ticket, a KeyUpdate), for as long as a
	 * remote sends nothing else.  libpq takes what it answers without it for "nothing
	 * has come yet", and the socket tells of what comes behind.
	 *
	 * Nor may a remote have the loop compute another handshake.
	 */
	SSL_clear_mode(ssl, SSL_MODE_AUTO_RETRY);
	SSL_set_options(ssl, SSL_OP_NO_RENEGOTIATION);
	return NULL;
}

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

/* Nothing comes any more, and nobody reads in order to write. */
static void
end(PgpxTlsStream *tls)
{
	tls->ended = tls->write_closed = true;
	tls->write_wants_read = false;
}

/*
 * How much a call of pgpx_tls_read may take from the socket, in pieces.  One of
 * data never asks for so much: a piece of it, its records' overhead and what is read
 * ahead are less.
 */
#define MAX_CHUNKS 2

/* How often it may call SSL_read: a piece of data in records of one byte. */
#define MOST_READS 256

/*
 * How many messages that are no data a remote may send, besides one for each piece of
 * data.  Honest ones send a few session tickets at first, and a KeyUpdate for each
 * some GB.
 */
#define MOST_UNASKED 256

static bool
has_flooded(const PgpxTlsStream *tls)
{
	return tls->unasked > MOST_UNASKED + tls->data_bytes / tls->chunk;
}

static void
count_message(int write_p, int version, int content_type, const void *buf,
			  size_t len, SSL *ssl, void *arg)
{
	PgpxTlsStream *tls = arg;

	if (!write_p && content_type == SSL3_RT_HANDSHAKE)
		tls->unasked++;
}

/*
 * OpenSSL is about to read from the socket, or has.  The socket has no more to say
 * in a call that has taken enough: "later" is all that ends an SSL_read that finds no
 * data.
 */
static long
on_read(BIO *bio, int oper, const char *argp, size_t len, int argi, long argl,
		int ret, size_t *processed)
{
	PgpxTlsStream *tls = (PgpxTlsStream *) BIO_get_callback_arg(bio);

	if (oper == BIO_CB_READ &&
		(tls->taken >= MAX_CHUNKS * tls->chunk || has_flooded(tls)))
	{
		tls->dry = true;
		BIO_clear_retry_flags(bio);
		BIO_set_retry_read(bio);
		return -1;
	}
	if (oper == (BIO_CB_READ | BIO_CB_RETURN))
	{
		if (ret > 0)
			tls->taken += *processed;
		else
			tls->dry = true;
	}
	return ret;
}

void
pgpx_tls_begin(PgpxTlsStream *tls, SSL *ssl, size_t chunk)
{
	BIO		   *bio = SSL_get_rbio(ssl);

	/*
	 * A record that is half sent may be completed from another buffer: what the
	 * relay could not send it copies.  (libpq has set the first of the
	 * modes, or not, by its version.)
	 *
	 * read_ahead: a whole piece comes with one recv(), not with two for each record, a
	 * header and a body.  libpq leaves it off, so nothing is read ahead when it
	 * hands the object over, and the buffer of the size of one record can be
	 * dropped for a larger one (SSL_free_buffers refuses if something is in it, and
	 * the old size then stays: slower, not wrong).
	 *
	 * SSL_read goes on after a record that is no data (a session ticket, a
	 * KeyUpdate) for as long as something of what was read ahead is left, be it the
	 * beginning of a record, and reads more behind it: a remote that sends
	 * nothing else keeps it for ever.  And it returns with WANT_READ after such
	 * a record where it has something left that it does not count (from 3.2 on, what it
	 * has read ahead of a KeyUpdate).  So the socket is looked at in front of OpenSSL:
	 * on_read ends the one, and tells whether WANT_READ is to be believed.
	 */
	SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE);
	SSL_set_mode(ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_set_default_read_buffer_len(ssl, chunk);
	(void) SSL_free_buffers(ssl);	/* to be made in that size */
	SSL_set_read_ahead(ssl, 1);
	tls->ssl = ssl;
	tls->chunk = chunk;
	BIO_set_callback_arg(bio, (char *) tls);
	BIO_set_callback_ex(bio, on_read);
	SSL_set_msg_callback_arg(ssl, tls);
	SSL_set_msg_callback(ssl, count_message);
}

void
pgpx_tls_end(PgpxTlsStream *tls)
{
	BIO_set_callback_ex(SSL_get_rbio(tls->ssl), NULL);
	SSL_set_msg_callback(tls->ssl, NULL);

	/* PQfinish must not read what a remote still has to say, without that bound */
	SSL_set_shutdown(tls->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
}

/*
 * epoll says nothing of bytes that OpenSSL has: unless more is pending, there must be
 * none but the beginning of a record when this returns, the rest of which comes by the
 * socket.  So it is once the socket was asked and had no more, or has been refused
 * (what is there then, epoll tells again).  Asking SSL_has_pending then would
 * not do, since it counts that beginning: the worker would spin.
 */
size_t
pgpx_tls_read(PgpxTlsStream *tls, char *data, size_t size)
{
	size_t		len = 0;

	tls->read_wants_write = false;
	tls->pending = false;
	tls->taken = 0;
	tls->dry = false;
	for (int i = 0; i < MOST_READS && len < size; i++)
	{
		int			n;

		ERR_clear_error();
		n = SSL_read(tls->ssl, data + len, size - len);
		if (n > 0)
		{
			len += n;
			tls->data_bytes += n;

			/* what is in the kernel's buffer, epoll will tell */
			if (!SSL_has_pending(tls->ssl))
				return len;
			continue;
		}
		switch (outcome(tls, n))
		{
			case WANTS_READ:
				if (has_flooded(tls))
					end(tls);
				else if (!tls->dry)
					continue;
				break;
			case WANTS_WRITE:
				tls->read_wants_write = true;
				break;
			case ENDED:
				end(tls);
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
	tls->taken = 0;				/* of what it has to read: a call of its own */
	while (sent < len && !tls->write_closed)
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
				tls->write_closed = true;
				tls->pending = true;
				break;
		}
	}
	return len;
}

void
pgpx_tls_close_notify(PgpxTlsStream *tls)
{
	if (!tls->write_closed)
	{
		ERR_clear_error();
		(void) SSL_shutdown(tls->ssl);
	}
	tls->write_closed = true;
}
