/*-------------------------------------------------------------------------
 *
 * tls_front.c
 *	  TLS for a fake server: an accepted connection on one side, plain bytes on the
 *	  other.
 *
 *	  tls_front CERTIFICATE KEY	with the connection as descriptor 0, the plain
 *								side as descriptor 1
 *
 * The end of each side is forwarded to the other.  Calls may block: there is one connection.
 *
 *	  SIGUSR1	some KeyUpdates, in one segment with the next bytes of the plain side
 *	  SIGUSR2	a flood of them.  The plain side receives "<" when the other side begins
 *				to read it, and ">" when it has read all of it
 *	  SIGHUP	TLS 1.2: another handshake is requested, and "~" written to the plain side
 *
 *-------------------------------------------------------------------------
 */
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

static char buffer[16384];

/* From the connection to the plain side; false at its end. */
static bool
move_in(SSL *ssl)
{
	do
	{
		int			n = SSL_read(ssl, buffer, sizeof(buffer));

		if (n <= 0)
			return SSL_get_error(ssl, n) == SSL_ERROR_WANT_READ;
		for (int done = 0, m; done < n; done += m)
		{
			m = write(1, buffer + done, n - done);
			if (m <= 0)
				_exit(0);
		}
	}
	while (SSL_pending(ssl) > 0);
	return true;
}

/* Send the output of OpenSSL; first: report that it has begun to arrive. */
static void
send_out(SSL *ssl, bool first)
{
	char	   *bytes;
	long		n = BIO_get_mem_data(SSL_get_wbio(ssl), &bytes);

	for (long done = 0, m; done < n; done += m)
	{
		m = write(0, bytes + done, n - done < 65536 ? n - done : 65536);
		if (m <= 0)
			_exit(0);
		if (first && done == 0 && write(1, "<", 1) != 1)
			_exit(0);
	}
	(void) BIO_reset(SSL_get_wbio(ssl));
}

/* The other direction; false at the end of the plain side. */
static bool
move_out(SSL *ssl)
{
	int			n = read(1, buffer, sizeof(buffer));
	bool		ok = n > 0 && SSL_write(ssl, buffer, n) == n;

	send_out(ssl, false);
	return ok;
}

static void
update_keys(SSL *ssl, int times)
{
	while (times-- > 0)
		if (SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 ||
			SSL_do_handshake(ssl) != 1)
			_exit(1);
}

/*
 * A flood of key updates, in parts: the computation of all of them takes seconds on a
 * loaded machine, and the client may time out before it receives the first one.
 */
static void
flood(SSL *ssl)
{
	for (int part = 0; part < 100; part++)
	{
		update_keys(ssl, 2000);
		send_out(ssl, part == 0);
	}
	if (write(1, ">", 1) != 1)
		_exit(0);
}

/* Request another handshake; its messages go to the connection at once. */
static void
renegotiate(SSL *ssl)
{
	SSL_set0_wbio(ssl, BIO_new_socket(0, BIO_NOCLOSE));
	if (SSL_renegotiate(ssl) != 1 || SSL_do_handshake(ssl) != 1)
		_exit(1);
}

/* The first one is the login's, and the request of another one is the second. */
static void
tell_handshake(const SSL *ssl, int where, int ret)
{
	static int	n = 0;

	if ((where & SSL_CB_HANDSHAKE_DONE) != 0 &&
		SSL_version(ssl) == TLS1_2_VERSION && n++ > 1 && write(1, "~", 1) != 1)
		_exit(0);
}

int
main(int argc, char **argv)
{
	SSL_CTX    *ctx = SSL_CTX_new(TLS_server_method());
	SSL		   *ssl;
	struct pollfd fds[3] = {{.fd = 0, .events = POLLIN}, {.fd = 1, .events = POLLIN}, {.events = POLLIN}};
	struct signalfd_siginfo asked;
	sigset_t	asking;
	int			room = 256 * 1024;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&asking);
	sigaddset(&asking, SIGUSR1);
	sigaddset(&asking, SIGUSR2);
	sigaddset(&asking, SIGHUP);
	sigprocmask(SIG_BLOCK, &asking, NULL);
	fds[2].fd = signalfd(-1, &asking, SFD_CLOEXEC);
	if (argc != 3 || ctx == NULL ||
		SSL_CTX_use_certificate_file(ctx, argv[1], SSL_FILETYPE_PEM) != 1 ||
		SSL_CTX_use_PrivateKey_file(ctx, argv[2], SSL_FILETYPE_PEM) != 1)
		return 1;

	/* a flood must not end up in the kernel's buffers */
	setsockopt(0, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	ssl = SSL_new(ctx);
	SSL_set_fd(ssl, 0);
	SSL_set_info_callback(ssl, tell_handshake);
	SSL_clear_mode(ssl, SSL_MODE_AUTO_RETRY);	/* the other direction blocks */
	if (SSL_accept(ssl) != 1)
		return 1;
	SSL_set0_wbio(ssl, BIO_new(BIO_s_mem()));
	while (poll(fds, 3, -1) > 0)
	{
		if (fds[2].revents != 0 &&
			read(fds[2].fd, &asked, sizeof(asked)) == sizeof(asked))
		{
			if (asked.ssi_signo == SIGHUP)
				renegotiate(ssl);
			else if (asked.ssi_signo == SIGUSR2)
				flood(ssl);
			else
				update_keys(ssl, 20);
		}
		if (fds[0].revents != 0 && !move_in(ssl))
		{
			shutdown(1, SHUT_WR);
			fds[0].fd = -1;
		}
		if (fds[1].revents != 0 && !move_out(ssl))
		{
			SSL_shutdown(ssl);
			send_out(ssl, false);
			return 0;
		}
	}
	return 1;
}
