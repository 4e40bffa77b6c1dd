/*-------------------------------------------------------------------------
 *
 * fuzz_remote.h
 *	  A remote server that libpq logs in to, in the same process: it sends the
 *	  input, whatever libpq sends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_REMOTE_H
#define FUZZ_REMOTE_H

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "libpq-fe.h"

#include "worker/conninfo.h"
#include "worker/events.h"

/* --- tasks: executed at once, here, and ended by the harness --------------- */

static PgpxTask *remote_task = NULL;

bool
pgpx_task_start(PgpxTask *task)
{
	FUZZ_CHECK(remote_task == NULL);
	task->run(task);
	remote_task = task;
	return true;
}

void
pgpx_task_lower_priority(PgpxTask *task)
{
	FUZZ_CHECK(task == remote_task);
}

static void
remote_task_ends(void)
{
	PgpxTask   *task = remote_task;

	remote_task = NULL;
	if (task != NULL)
		task->ended(task);
}

/* --- the remote ----------------------------------------------------------------- */

static int	remote_listener = -1;
static int	remote_nlogins;
static char remote_host[64];

/* The rest of the remote's input, and the size of its chunks. */
typedef struct Remote
{
	int			fd;
	const uint8_t *data;
	size_t		size;
	size_t		chunk;
	bool		waits;			/* for the next request, after each answer */
} Remote;

/* A login without a password, as of an honest server. */
static const char remote_greeting[] =
	"R\0\0\0\10\0\0\0\0"
	"S\0\0\0\31client_encoding\0UTF8\0"
	"S\0\0\0\27DateStyle\0ISO, MDY\0"
	"S\0\0\0\30server_version\00015.0\0"
	"K\0\0\0\14\0\0\0\5\0\0\0\7"
	"Z\0\0\0\5I";

bool
pgpx_password_is_needed(int pool, PgpxTime since)
{
	return false;
}

const char *
pgpx_password_request(int pool, int64 timeout_ms, PgpxPasswordAnswer answer)
{
	return NULL;
}

bool
pgpx_password_refused(int pool, PgpxTime used_at, PgpxTime since)
{
	return false;
}

PGconn *
pgpx_conninfo_login(int pool, const PgpxHosts *hosts,
					const char *application_name)
{
	const char *const keywords[] = {"host", "port", "user", "password",
		"dbname", "sslmode", "gssencmode", NULL};
	const char *const values[] = {remote_host, "1", "u", "something",
		"d", "disable", "disable", NULL};

	if (remote_listener < 0)
	{
		struct sockaddr_un addr = {.sun_family = AF_UNIX};
		int			len;

		/* an abstract name, which libpq uses if a host begins with @ */
		snprintf(remote_host, sizeof(remote_host), "@pgpx_fuzz_%d", (int) getpid());
		len = snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1,
					   "%s/.s.PGSQL.1", remote_host + 1);
		remote_listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		FUZZ_CHECK(bind(remote_listener, (struct sockaddr *) &addr,
						offsetof(struct sockaddr_un, sun_path) + 1 + len) == 0);
		FUZZ_CHECK(listen(remote_listener, 8) == 0);
	}
	remote_nlogins++;
	return PQconnectStartParams(keywords, values, 0);
}

/* After libpq's connect(), which does not block here. */
static void
remote_accept(Remote *remote, const uint8_t *data, size_t size, size_t chunk,
			  bool greets)
{
	remote->fd = accept4(remote_listener, NULL, NULL, SOCK_NONBLOCK);
	FUZZ_CHECK(remote->fd >= 0);
	remote->data = data;
	remote->size = size;
	remote->chunk = chunk;
	remote->waits = false;
	if (greets)
		(void) send(remote->fd, remote_greeting, sizeof(remote_greeting) - 1,
					MSG_NOSIGNAL);
}

/* Sends the next chunk; returns false at the end. */
static bool
remote_send_chunk(Remote *remote)
{
	size_t		n = Min(remote->chunk, remote->size);
	char		discarded[4096];

	while (recv(remote->fd, discarded, sizeof(discarded), MSG_DONTWAIT) > 0)
		;
	if (n == 0)
		return false;
	for (size_t i = 6; remote->waits && i < n; i++)
		if (memcmp(remote->data + i - 6, "Z\0\0\0\5", 5) == 0)
			n = i;
	(void) send(remote->fd, remote->data, n, MSG_NOSIGNAL);
	remote->data += n;
	remote->size -= n;
	return true;
}

static void
remote_end(Remote *remote)
{
	close(remote->fd);

	/* failed connects */
	while ((remote->fd = accept(remote_listener, NULL, NULL)) >= 0)
		close(remote->fd);
}

/* --- one host, whose name is not looked up --------------------------- */

PgpxHosts *
pgpx_hosts_create(int pool, const PgpxLookup *lookup)
{
	static PgpxHosts one = {.n = 1, .total = 1};

	return &one;
}

bool
pgpx_hosts_mark_unresponsive(int pool, PgpxHosts *hosts, const PGconn *pg)
{
	return false;
}

void
pgpx_hosts_free(PgpxHosts **hosts)
{
	*hosts = NULL;
}

const char *
pgpx_conninfo_start_lookup(int index, PgpxLookupAnswer answer, uint64 tag)
{
	return NULL;
}

void
pgpx_lookup_abandon(PgpxLookupAnswer answer, uint64 tag)
{
}

bool
pgpx_conninfo_has_changed(int pool, uint32 pool_id, uint64 version)
{
	return false;
}

bool
pgpx_conninfo_needs_lookup(const PgpxConninfo *ci)
{
	return false;
}

const char *
pgpx_lookup_error(const PgpxLookup *lookup)
{
	return NULL;
}

uint64
pgpx_lookup_tag(const PgpxLookup *lookup)
{
	return 0;
}

#endif							/* FUZZ_REMOTE_H */
