/*-------------------------------------------------------------------------
 *
 * libpq_bounds.c
 *	  What a remote can make libpq do in the worker while libpq reads: bounded.
 *
 * libpq trusts the server that it talks to.  It prints notices to stderr, which is
 * the log, whatever is in them; it keeps each reported parameter, each notification,
 * and each row until somebody asks for the result.  Rows are taken one at a time
 * (PQsetSingleRowMode) where statements run, and thrown away.
 *
 * And it believes lengths: it makes room for a message of 1 GB because it is told
 * that one comes, and keeps what comes of it until it is whole.  Room is only
 * addresses, as long as nothing is in it; so what is bounded is how many bytes have
 * come since libpq has last handed something out.  TCP tells, with TLS as without.
 * (Where a remote sends faster than libpq reads, that may be some dozen MB more: it
 * reads on for as long as there is something.)
 * (A Unix-domain socket does not: there it is what lay ready before each step of the
 * login, and later on nothing.  Who can listen there is on this machine.)
 *
 * Nor is libpq asked to trace what a remote says (PQtrace): what it prints of a message
 * it has not checked, and a length in one can lead it beyond the end of its memory.
 *
 * It also reads ahead.  What comes in behind the answer that it waits for it drops,
 * if it is a whole message; the beginning of one stays with it, and the rest comes to
 * wire, which is out of step then and breaks the stream.  Nothing of libpq's tells
 * that something is left, so nothing is done about it here: an honest remote says
 * nothing there, and what another one says is not believed in any case.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* Of a login: some fifty times what one takes. */
#define LOGIN_MAX (256 * 1024)

/* Of one message, later on. */
#define MESSAGE_MAX (1024 * 1024)

static void
drop_notice(void *arg, const PGresult *res)
{
}

void
pgpx_libpq_hush(PGconn *pg)
{
	(void) PQsetNoticeReceiver(pg, drop_notice, NULL);
}

void
pgpx_libpq_drop_notifications(PGconn *pg)
{
	PGnotify   *note;

	while ((note = PQnotifies(pg)) != NULL)
		PQfreemem(note);
}

/* What has come and has not been read. */
static uint64
bytes_unread(int fd)
{
	int			unread = 0;

	return fd >= 0 && ioctl(fd, FIONREAD, &unread) == 0 ? unread : 0;
}

/*
 * How many bytes this end has read of what the other one has sent, in the messages
 * that are not whole yet, too.  0 where the kernel does not tell: a socket that is
 * no TCP's.
 */
static uint64
bytes_read(int fd)
{
	struct tcp_info info = {0};
	socklen_t	len = sizeof(info);
	uint64		unread = bytes_unread(fd);

	if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
		info.tcpi_bytes_received < unread)
		return 0;
	return info.tcpi_bytes_received - unread;
}

void
pgpx_libpq_login_begin(PgpxHearing *hearing)
{
	memset(hearing, 0, sizeof(*hearing));
}

void
pgpx_libpq_login_before(PgpxHearing *hearing, int fd)
{
	hearing->unread = bytes_unread(fd);
}

bool
pgpx_libpq_login_after(PgpxHearing *hearing, int fd)
{
	uint64		unread = bytes_unread(fd);

	/* not less than this; TCP knows better */
	if (hearing->unread > unread)
		hearing->login += hearing->unread - unread;
	hearing->taken = bytes_read(fd);
	return Max(hearing->login, hearing->taken) <= LOGIN_MAX;
}

bool
pgpx_libpq_keeps_much(PgpxHearing *hearing, PGconn *pg, bool taken)
{
	uint64		now = bytes_read(PQsocket(pg));

	if (taken)
		hearing->taken = now;
	return now > hearing->taken + MESSAGE_MAX;
}
