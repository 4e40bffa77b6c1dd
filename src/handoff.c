/*-------------------------------------------------------------------------
 *
 * handoff.c
 *	  What a session and a worker say to each other: see handoff.h.
 *
 *-------------------------------------------------------------------------
 */
#include "handoff.h"

#include <sys/socket.h>

#include "fdpass.h"

typedef struct ConninfoMessage
{
	PgpxMessageHeader header;
	uint64		version;
	uint32		need_password;
	uint32		nparams;
	/* start_commands, reset_command, then keyword and value in turn, each
	 * with its NUL */
} ConninfoMessage;

static int	control[PGPX_MAX_WORKERS][2];	/* [0] sessions', [1] the worker's */

void
pgpx_handoff_init(int nworkers)
{
	for (int i = 0; i < nworkers; i++)
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
					   0,
					   control[i]) < 0)
			ereport(FATAL,
					(errcode_for_socket_access(),
					 errmsg("could not create control socket of pgpool_ext: %m")));
}

int
pgpx_handoff_session_fd(int worker)
{
	return control[worker][0];
}

int
pgpx_handoff_worker_fd(int worker)
{
	return control[worker][1];
}

static void
fill_header(PgpxMessageHeader *header, PgpxMessageType type, size_t length,
			uint64 epoch, int pool, uint32 pool_id)
{
	header->type = type;
	header->length = (uint32) length;
	header->life = pgpx_shared->life;
	header->epoch = epoch;
	header->pool = pool;
	header->pool_id = pool_id;
}

static size_t
conninfo_length(const PgpxConninfo *conninfo)
{
	size_t		len = sizeof(ConninfoMessage) +
		strlen(conninfo->start_commands) + 1 +
		strlen(conninfo->reset_command) + 1;

	for (int i = 0; i < conninfo->nparams; i++)
		len += strlen(conninfo->keywords[i]) + 1 +
			strlen(conninfo->values[i]) + 1;
	return len;
}

/* Write a string with its NUL; returns where the next one goes. */
static char *
put_string(char *at, const char *s)
{
	size_t		len = strlen(s) + 1;

	memcpy(at, s, len);
	return at + len;
}

int
pgpx_handoff_send_conninfo(int worker, uint64 epoch, int pool, uint32 pool_id,
						   const PgpxConninfo *conninfo)
{
	size_t		len = conninfo_length(conninfo);
	ConninfoMessage *msg;
	char	   *at;
	int			sent;

	if (len > PGPX_MESSAGE_MAX)
		return -1;

	/* of its size from the start: one that grows would leave copies behind */
	msg = palloc0(len);
	fill_header(&msg->header, PGPX_MESSAGE_CONNINFO, len, epoch, pool,
				pool_id);
	msg->version = conninfo->version;
	msg->need_password = conninfo->need_password;
	msg->nparams = conninfo->nparams;
	at = (char *) msg + sizeof(*msg);
	at = put_string(at, conninfo->start_commands);
	at = put_string(at, conninfo->reset_command);
	for (int i = 0; i < conninfo->nparams; i++)
	{
		at = put_string(at, conninfo->keywords[i]);
		at = put_string(at, conninfo->values[i]);
	}
	Assert(at == (char *) msg + len);
	sent = pgpx_fd_send(control[worker][0], msg, len, -1);
	explicit_bzero(msg, len);
	pfree(msg);
	return sent;
}

int
pgpx_handoff_send_request(int worker, PgpxSocketRequest *request, int reply_fd)
{
	request->header.type = PGPX_MESSAGE_SOCKET;
	request->header.length = sizeof(*request);
	request->header.life = pgpx_shared->life;
	return pgpx_fd_send(control[worker][0], request, sizeof(*request),
						reply_fd);
}

ssize_t
pgpx_handoff_receive(int worker, uint64 epoch, void *buffer, int *fd,
					 bool *more)
{
	ssize_t		len;
	PgpxMessageHeader *header = buffer;

	*more = false;
	len = pgpx_fd_recv(control[worker][1], buffer, PGPX_MESSAGE_MAX, fd);
	if (len <= 0)
		return 0;
	*more = true;
	if (len < (ssize_t) sizeof(*header) || header->length != len ||
		header->life != pgpx_shared->life || header->epoch != epoch ||
		header->pool < 0 || header->pool >= pgpx_shared->max_pools)
	{
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		explicit_bzero(buffer, len);	/* it may have a password in it */
		return 0;
	}
	return len;
}

/* The next NUL-terminated string; NULL if there is none. */
static const char *
next_string(char **p, char *end)
{
	char	   *s = *p;
	size_t		len = strnlen(s, end - s);

	if (s + len >= end)
		return NULL;
	*p = s + len + 1;
	return s;
}

bool
pgpx_handoff_parse_conninfo(char *buffer, size_t len, PgpxConninfo *conninfo)
{
	ConninfoMessage *msg = (ConninfoMessage *) buffer;
	char	   *p = buffer + sizeof(*msg);
	char	   *end = buffer + len;

	if (len < sizeof(*msg) || msg->nparams > len)
		return false;
	conninfo->version = msg->version;
	conninfo->need_password = msg->need_password != 0;
	conninfo->nparams = msg->nparams;
	conninfo->start_commands = next_string(&p, end);
	if (conninfo->start_commands == NULL)
		return false;
	conninfo->reset_command = next_string(&p, end);
	if (conninfo->reset_command == NULL)
		return false;

	conninfo->keywords = palloc0(sizeof(char *) * (msg->nparams + 1));
	conninfo->values = palloc0(sizeof(char *) * (msg->nparams + 1));
	for (int i = 0; i < conninfo->nparams; i++)
	{
		conninfo->keywords[i] = next_string(&p, end);
		if (conninfo->keywords[i] == NULL)
			return false;
		conninfo->values[i] = next_string(&p, end);
		if (conninfo->values[i] == NULL)
			return false;
	}
	return p == end;
}
