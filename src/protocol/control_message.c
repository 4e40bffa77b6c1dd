/*-------------------------------------------------------------------------
 *
 * control_message.c
 *	  Messages and descriptors between sessions and workers.
 *
 * See control_message.h for the messages.  Every received descriptor is either
 * passed to the caller or closed.
 *
 *-------------------------------------------------------------------------
 */
#include "protocol/control_message.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/debug_point.h"
#include "shared/shmem.h"

/* Room for one descriptor. */
typedef union Control
{
	struct cmsghdr align;
	char		buf[CMSG_SPACE(sizeof(int))];
} Control;

int
pgpx_fd_send(int sock, const void *data, size_t len, int fd)
{
	struct iovec iov = {unconstify(void *, data), len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	Control		control = {0};
	ssize_t		n;

	if (fd >= 0)
	{
		struct cmsghdr *cmsg;

		msg.msg_control = control.buf;
		msg.msg_controllen = sizeof(control.buf);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	}

	do
		n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);

	if (n >= 0)
		return 1;

	/* ETOOMANYREFS: descriptors in flight; temporary, like a full queue */
	if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ||
		errno == ETOOMANYREFS)
		return 0;
	return -1;
}

ssize_t
pgpx_fd_recv(int sock, void *data, size_t cap, int *fd)
{
	struct iovec iov = {data, cap};
	Control		control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	struct cmsghdr *cmsg;
	ssize_t		n;

	*fd = -1;
	do
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);

	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;

	cmsg = CMSG_FIRSTHDR(&msg);
	if (cmsg != NULL && cmsg->cmsg_type == SCM_RIGHTS)
	{
		Assert(cmsg->cmsg_len == CMSG_LEN(sizeof(int)));
		memcpy(fd, CMSG_DATA(cmsg), sizeof(int));
	}
	if (n == 0 || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
	{
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		return n == 0 ? -1 : 1;
	}
	return n;
}

#define FLAG_NEED_PASSWORD 1
#define FLAG_PASSWORD_COMMAND 2

typedef struct ConninfoMessage
{
	PgpxMessageHeader header;
	uint64		version;
	uint32		flags;			/* FLAG_* */
	uint32		nparams;
	/* followed by start_commands, reset_command, and a keyword and value for
	 * each parameter, all with their NUL */
} ConninfoMessage;

static int	control[PGPX_MAX_WORKERS][2];	/* [0] sessions', [1] worker's */

void
pgpx_control_init(int nworkers)
{
	for (int i = 0; i < nworkers; i++)
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
					   0, control[i]) < 0)
			ereport(FATAL,
					(errcode_for_socket_access(),
					 errmsg("could not create control socket of pgpool_ext: %m")));
}

int
pgpx_control_session_fd(int worker)
{
	return control[worker][0];
}

int
pgpx_control_worker_fd(int worker)
{
	return control[worker][1];
}

/* Complete a header that has the worker's incarnation and the pool. */
static void
complete_header(PgpxMessageHeader *header, PgpxMessageType type, size_t length)
{
	header->type = type;
	header->length = (uint32) length;
	header->boot_id = pgpx_shared->boot_id;
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

/* Copy a string with its NUL.  Return the address after the NUL. */
static char *
put_string(char *at, const char *s)
{
	size_t		len = strlen(s) + 1;

	memcpy(at, s, len);
	return at + len;
}

int
pgpx_control_send_conninfo(int worker, uint64 incarnation, int pool,
						   uint32 pool_id,
						   const PgpxConninfo *conninfo)
{
	size_t		len = conninfo_length(conninfo);
	ConninfoMessage *msg;
	char	   *at;
	int			sent;
	int			send_errno;

	if (len > PGPX_MESSAGE_MAX)
	{
		errno = EMSGSIZE;
		return -1;
	}

	/* no StringInfo: its growth would leave copies of secrets in memory */
	msg = palloc0(len);
	msg->header.incarnation = incarnation;
	msg->header.pool = pool;
	msg->header.pool_id = pool_id;
	complete_header(&msg->header, PGPX_MESSAGE_CONNINFO, len);
	msg->version = conninfo->version;
	msg->flags = (conninfo->need_password ? FLAG_NEED_PASSWORD : 0) |
		(conninfo->password_command ? FLAG_PASSWORD_COMMAND : 0);
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
	send_errno = errno;
	explicit_bzero(msg, len);
	pfree(msg);
	errno = send_errno;
	return sent;
}

int
pgpx_control_send_socket(int worker, PgpxSocketMessage *message, int reply_fd)
{
	complete_header(&message->header, PGPX_MESSAGE_SOCKET, sizeof(*message));
	return pgpx_fd_send(control[worker][0], message, sizeof(*message),
						reply_fd);
}

ssize_t
pgpx_control_receive(int worker, uint64 incarnation, void *buffer, int *fd)
{
	ssize_t		len;
	PgpxMessageHeader *header = buffer;

	while ((len = pgpx_fd_recv(control[worker][1], buffer, PGPX_MESSAGE_MAX,
							   fd)) > 0)
	{
		if (len >= (ssize_t) sizeof(*header) && header->length == len &&
			header->boot_id == pgpx_shared->boot_id &&
			header->incarnation == incarnation &&
			header->pool >= 0 && header->pool < pgpx_shared->max_pools)
			return len;
		if (*fd >= 0)
			close(*fd);
		explicit_bzero(buffer, len);	/* it may contain a password */
	}
	*fd = -1;
	return 0;
}

/* Return the next NUL-terminated string, NULL if there is none. */
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
pgpx_control_parse_conninfo(char *buffer, size_t len, PgpxConninfo *conninfo)
{
	ConninfoMessage *msg = (ConninfoMessage *) buffer;
	char	   *p = buffer + sizeof(*msg);
	char	   *end = buffer + len;

	if (len < sizeof(*msg) || msg->nparams > len)
		return false;
	conninfo->version = msg->version;
	conninfo->need_password = (msg->flags & FLAG_NEED_PASSWORD) != 0;
	conninfo->password_command = (msg->flags & FLAG_PASSWORD_COMMAND) != 0;
	conninfo->nparams = msg->nparams;
	if ((conninfo->start_commands = next_string(&p, end)) == NULL ||
		(conninfo->reset_command = next_string(&p, end)) == NULL)
		return false;

	conninfo->keywords = palloc0(sizeof(char *) * (msg->nparams + 1));
	conninfo->values = palloc0(sizeof(char *) * (msg->nparams + 1));
	for (int i = 0; i < conninfo->nparams; i++)
		if ((conninfo->keywords[i] = next_string(&p, end)) == NULL ||
			(conninfo->values[i] = next_string(&p, end)) == NULL)
			return false;
	return p == end;
}
