/*-------------------------------------------------------------------------
 *
 * tls_front.c
 *	  TLS for a server of the tests that has none: a connection that has been
 *	  accepted on one side, plain bytes on the other.
 *
 *	  tls_front CERTIFICATE KEY	with the connection as descriptor 0, the plain
 *								side as descriptor 1
 *
 * Each side's end is passed on to the other.  May wait: it has one connection.
 *
 *-------------------------------------------------------------------------
 */
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

static char buffer[16384];

/* From the connection to the plain side; false: its end. */
static bool
move_in(SSL *ssl)
{
	do
	{
		int			n = SSL_read(ssl, buffer, sizeof(buffer));

		if (n <= 0)
			return false;
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

/* The other way; false: the end of the plain side. */
static bool
move_out(SSL *ssl)
{
	int			n = read(1, buffer, sizeof(buffer));

	return n > 0 && SSL_write(ssl, buffer, n) == n;
}

int
main(int argc, char **argv)
{
	SSL_CTX    *ctx = SSL_CTX_new(TLS_server_method());
	SSL		   *ssl;
	struct pollfd fds[2] = {{.fd = 0, .events = POLLIN}, {.fd = 1, .events = POLLIN}};

	signal(SIGPIPE, SIG_IGN);
	if (argc != 3 || ctx == NULL ||
		SSL_CTX_use_certificate_file(ctx, argv[1], SSL_FILETYPE_PEM) != 1 ||
		SSL_CTX_use_PrivateKey_file(ctx, argv[2], SSL_FILETYPE_PEM) != 1)
		return 1;
	ssl = SSL_new(ctx);
	SSL_set_fd(ssl, 0);
	if (SSL_accept(ssl) != 1)
		return 1;
	while (poll(fds, 2, -1) > 0)
	{
		if (fds[0].revents != 0 && !move_in(ssl))
		{
			shutdown(1, SHUT_WR);
			fds[0].fd = -1;
		}
		if (fds[1].revents != 0 && !move_out(ssl))
		{
			SSL_shutdown(ssl);
			return 0;
		}
	}
	return 1;
}
