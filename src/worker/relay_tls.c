/*-------------------------------------------------------------------------
 *
 * relay_tls.c
 *	  A TLS connection as a nonblocking byte stream.
 *
 * relay.c uses it.  The worker calls OpenSSL on an object that libpq has
 * created.  There may be two copies of OpenSSL in one process, where libpq is
 * not the distribution's or is linked with OpenSSL statically.  A function of
 * one copy crashes, at best, on an object of the other.
 *
 * So is_same_openssl checks whether the dynamic linker resolves a function to
 * the same address for libpq as for this extension.  It does so for a function
 * that preloaded wrappers of OpenSSL (which log keys or count calls) have no
 * reason to replace.
 *
 * OpenSSL's error queue is cleared before each call, because errors that other
 * code has left in it would be mistaken for the call's own.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/relay_tls.h"

#include <dlfcn.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

static bool
is_same_openssl(void)
{
	Dl_info		info;
	void	   *libpq;
	void	   *of_libpq;

	if (dladdr((void *) PQsslStruct, &info) == 0 || info.dli_fname == NULL)
		return false;
	libpq = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (libpq == NULL)
		return false;

	/* searches libpq and the libraries it was linked with */
	of_libpq = dlsym(libpq, "SSL_has_pending");
	(void) dlclose(libpq);
	return of_libpq == (void *) SSL_has_pending;
}

const char *
pgpx_tls_prepare(PGconn *pg)
{
	static int	fits = -1;
	SSL		   *ssl;

	if (!PQsslInUse(pg))
		return NULL;
	ssl = PQsslStruct(pg, "OpenSSL");
	if (ssl == NULL)
		return "The connection uses TLS of another library than OpenSSL, which pgpool_ext cannot relay.";
	if (fits < 0)
		fits = is_same_openssl();
	if (fits == 0)
		return "libpq uses another OpenSSL than pgpool_ext was linked with, so its TLS cannot be relayed.";

	/*
	 * With SSL_MODE_AUTO_RETRY, the default since OpenSSL 1.1.1, SSL_read
	 * continues after a record without data (a session ticket, a KeyUpdate),
	 * for as long as a remote sends nothing else.  Without it SSL_read
	 * returns.  libpq treats that result as "no data yet", and epoll reports
	 * the bytes that follow.
	 *
	 * Renegotiation is disabled because a remote must not make the event loop
	 * compute another handshake.
	 */
	SSL_clear_mode(ssl, SSL_MODE_AUTO_RETRY);
	SSL_set_options(ssl, SSL_OP_NO_RENEGOTIATION);
	return NULL;
}

/* Result of an OpenSSL call that did not succeed. */
typedef enum Outcome
{
	WANTS_READ,
	WANTS_WRITE,
	ENDED						/* closed by either side, or an error */
} Outcome;

static Outcome
outcome_of_call(PgpxTlsStream *tls, int n)
{
	int			error = errno;

	switch (SSL_get_error(tls->ssl, n))
	{
		case SSL_ERROR_SYSCALL:
			if (tls->error == 0)
				tls->error = error;
			return ENDED;
		case SSL_ERROR_WANT_READ:
			return WANTS_READ;
		case SSL_ERROR_WANT_WRITE:
			return WANTS_WRITE;
		default:
			return ENDED;
	}
}

/*
 * End both directions: nothing more is received, and writes cannot progress.
 */
static void
end_stream(PgpxTlsStream *tls)
{
	tls->ended = tls->write_closed = true;
	tls->write_wants_read = false;
}

/*
 * How many chunks a call of pgpx_tls_read may take from the socket.  A chunk
 * of data never needs that many: the data, its records' overhead and the
 * read-ahead are less.
 */
#define MAX_CHUNKS 2

/* Limit of SSL_read calls per pgpx_tls_read: a record may have one byte. */
#define MAX_READS 256

/*
 * How many messages without data a remote may send, in addition to one for
 * each chunk of data.  Honest remotes send a few session tickets at first,
 * and a KeyUpdate every few GB.
 */
#define MAX_WITHOUT_DATA 256

static bool
has_flooded(const PgpxTlsStream *tls)
{
	return tls->without_data > MAX_WITHOUT_DATA + tls->data_bytes / tls->chunk;
}

static void
count_message(int write_p, int version, int content_type, const void *buf,
			  size_t len, SSL *ssl, void *arg)
{
	PgpxTlsStream *tls = arg;

	if (!write_p && content_type == SSL3_RT_HANDSHAKE)
		tls->without_data++;
}

/*
 * BIO callback, before and after each read from the socket.  It refuses the
 * read, as if the socket were empty, in a call that has taken enough: this
 * "retry" is the only way to end an SSL_read that finds no data.
 */
static long
on_read(BIO *bio, int oper, const char *argp, size_t len, int argi, long argl,
		int ret, size_t *processed)
{
	PgpxTlsStream *tls = (PgpxTlsStream *) BIO_get_callback_arg(bio);

	if (oper == BIO_CB_READ &&
		(tls->taken >= MAX_CHUNKS * tls->chunk || has_flooded(tls)))
	{
		tls->input_drained = true;
		BIO_clear_retry_flags(bio);
		BIO_set_retry_read(bio);
		return -1;
	}
	if (oper == (BIO_CB_READ | BIO_CB_RETURN))
	{
		if (ret > 0)
			tls->taken += *processed;
		else
			tls->input_drained = true;
	}
	return ret;
}

void
pgpx_tls_begin(PgpxTlsStream *tls, SSL *ssl, size_t chunk)
{
	BIO		   *bio = SSL_get_rbio(ssl);

	/*
	 * Write modes: a partly sent record may be completed from another buffer,
	 * because the relay copies the bytes that it could not send.  (libpq sets
	 * the first of the modes, or not, depending on its version.)
	 *
	 * read_ahead: one recv() then reads a whole chunk, instead of two for each
	 * record, for header and body.  libpq leaves it off, so nothing is
	 * buffered when libpq hands the object over, and the buffer of the size of
	 * one record can be replaced by a larger one.  If the buffer is not empty
	 * SSL_free_buffers refuses and the old size remains, which is slower but
	 * correct.
	 *
	 * Callback: on_read controls the reads from the socket, for two reasons.
	 * After a record without data (a session ticket, a KeyUpdate) SSL_read
	 * continues for as long as read-ahead bytes are left, even the beginning of
	 * a record, and then reads more.  A remote that sends nothing else would
	 * keep it busy for ever, so on_read ends such a call.  SSL_read may also
	 * return WANT_READ after such a record although it holds bytes, which it
	 * does not count (from 3.2 on, bytes that it has read beyond a KeyUpdate).
	 * So on_read records whether WANT_READ means that the socket is empty.
	 */
	SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE);
	SSL_set_mode(ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_set_default_read_buffer_len(ssl, chunk);
	(void) SSL_free_buffers(ssl);	/* reallocated with that size */
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

	/* PQfinish must not read more from the remote, without on_read's bound */
	SSL_set_shutdown(tls->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
}

/*
 * epoll does not report bytes that OpenSSL holds.  So on return, unless
 * "buffered" is set, OpenSSL must hold nothing but the beginning of a record,
 * whose rest will arrive by the socket.  This holds after a read found the
 * socket empty, or on_read refused a read; epoll reports bytes that are still
 * in the socket again.  SSL_has_pending cannot test this: it also counts the
 * beginning of a record, so the worker would spin.
 */
size_t
pgpx_tls_read(PgpxTlsStream *tls, char *data, size_t size)
{
	size_t		len = 0;

	tls->read_wants_write = false;
	tls->buffered = false;
	tls->taken = 0;
	tls->input_drained = false;
	for (int i = 0; i < MAX_READS && len < size; i++)
	{
		int			n;

		ERR_clear_error();
		errno = 0;
		n = SSL_read(tls->ssl, data + len, size - len);
		if (n > 0)
		{
			len += n;
			tls->data_bytes += n;

			/* epoll reports what is still in the kernel's buffer */
			if (!SSL_has_pending(tls->ssl))
				return len;
			continue;
		}
		switch (outcome_of_call(tls, n))
		{
			case WANTS_READ:
				if (has_flooded(tls))
					end_stream(tls);
				else if (!tls->input_drained)
					continue;
				break;
			case WANTS_WRITE:
				tls->read_wants_write = true;
				break;
			case ENDED:
				end_stream(tls);
				break;
		}
		return len;
	}
	tls->buffered = true;
	return len;
}

/* As pgpx_tls_write.  Count the bytes that SSL_write reads in tls->taken. */
static size_t
write_data(PgpxTlsStream *tls, const char *data, size_t len)
{
	size_t		sent = 0;

	tls->write_wants_read = false;
	tls->taken = 0;
	while (sent < len && !tls->write_closed)
	{
		int			n;

		ERR_clear_error();
		errno = 0;
		n = SSL_write(tls->ssl, data + sent, len - sent);
		if (n > 0)
		{
			sent += n;
			continue;
		}
		switch (outcome_of_call(tls, n))
		{
			case WANTS_READ:
				tls->write_wants_read = true;
				return sent;
			case WANTS_WRITE:
				return sent;
			case ENDED:
				/*
				 * bytes that the remote sent before it closed can still be read
				 */
				tls->write_closed = true;
				tls->buffered = true;
				break;
		}
	}
	return len;
}

size_t
pgpx_tls_write(PgpxTlsStream *tls, const char *data, size_t len)
{
	size_t		sent = write_data(tls, data, len);

	/* epoll does not report bytes that SSL_write has read */
	tls->buffered |= tls->taken > 0;
	return sent;
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
