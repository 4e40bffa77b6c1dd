/*-------------------------------------------------------------------------
 *
 * fdpass.c
 *	  One message, and at most one descriptor, over a unix socket.
 *
 * Every descriptor that comes in is either handed to the caller or closed.
 *
 *-------------------------------------------------------------------------
 */
#include "fdpass.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FDS 4				/* room for more than we accept, to close them */

int
pgpx_fd_send(int sock, const void *data, size_t len, int fd)
{
	struct msghdr msg = {0};
	struct iovec iov;
	union
	{
		struct cmsghdr align;
		char		buf[CMSG_SPACE(sizeof(int))];
	}			control;
	ssize_t		n;

	iov.iov_base = unconstify(void *, data);
	iov.iov_len = len;
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	if (fd >= 0)
	{
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
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

	/* ETOOMANYREFS: descriptors in flight; like a full queue it passes */
	if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ||
		errno == ETOOMANYREFS)
		return 0;
	return -1;
}

ssize_t
pgpx_fd_recv(int sock, void *data, size_t cap, int *fd)
{
	struct msghdr msg = {0};
	struct iovec iov;
	union
	{
		struct cmsghdr align;
		char		buf[CMSG_SPACE(sizeof(int) * MAX_FDS)];
	}			control;
	struct cmsghdr *cmsg;
	ssize_t		n;
	int			nfds = 0;

	*fd = -1;
	iov.iov_base = data;
	iov.iov_len = cap;
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = control.buf;
	msg.msg_controllen = sizeof(control.buf);

	do
		n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);

	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;

	for (cmsg = CMSG_FIRSTHDR(&msg); cmsg != NULL; cmsg = CMSG_NXTHDR(&msg,
																	  cmsg))
	{
		int			n_here;

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		n_here = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (int i = 0; i < n_here; i++)
		{
			int			got;

			memcpy(&got, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
			if (nfds++ == 0)
				*fd = got;
			else
				close(got);
		}
	}

	if (n == 0)
	{
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		return -1;
	}
	if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || nfds > 1)
	{
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		return 1;
	}
	return n;
}
