/*-------------------------------------------------------------------------
 *
 * relay_library.c
 *	  Is the OpenSSL that we call the one that libpq calls?  Then its connections
 *	  are told not to keep the worker's loop.
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
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <dlfcn.h>
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
