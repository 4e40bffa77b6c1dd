/*-------------------------------------------------------------------------
 *
 * fdpass.h
 *	  One message, and at most one descriptor, over a unix socket.
 *
 * unix(7), SCM_RIGHTS.  Nothing here waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_FDPASS_H
#define PGPX_FDPASS_H

#include "compat.h"

/*
 * pgpx_fd_send
 *		Send a message, with descriptor fd unless it is -1.
 *
 * Returns 1 when sent, 0 when the queue is full, -1 when the peer is gone or
 * the message cannot be sent at all (errno tells).
 */
extern int	pgpx_fd_send(int sock, const void *data, size_t len, int fd);

/*
 * pgpx_fd_recv
 *		Receive a message and its descriptor (*fd is -1 without one), which is
 *		close-on-exec.
 *
 * Returns the length, 0 if nothing is there, -1 on an error or at the end of
 * the stream.  A truncated message, or more than one descriptor, counts as a
 * message of length 1: no valid message is that short.
 */
extern ssize_t pgpx_fd_recv(int sock, void *data, size_t cap, int *fd);

#endif							/* PGPX_FDPASS_H */
