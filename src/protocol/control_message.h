/*-------------------------------------------------------------------------
 *
 * control_message.h
 *	  Messages and descriptors between sessions and workers.
 *
 * Descriptors are passed with SCM_RIGHTS, see unix(7).  No function here
 * blocks.
 *
 *	  session -> worker, over the worker's control socket.  Every process of the
 *	  server inherits the socket, and only the worker reads from it.
 *
 *		CONNINFO	publishes the connection parameters of a pool, secrets
 *					included; the worker keeps them in private memory.
 *					Idempotent and without a reply.
 *		SOCKET		requests the socket of a connection that the session has
 *					leased.  Contains a descriptor for the reply.
 *
 *	  worker -> session, over the descriptor of a SOCKET message:
 *
 *		PgpxReply, with the socket of the connection.
 *
 * The control socket and its unread messages survive a crash restart.  So each
 * message contains the boot id of shared memory and the incarnation of the
 * worker.  The worker drops a message in which either does not match, and
 * closes its descriptor.  The session does the same with a reply to an earlier
 * message.
 *
 * Because each SOCKET message contains the descriptor for its reply, the worker
 * keeps no descriptors of sessions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONTROL_MESSAGE_H
#define PGPX_CONTROL_MESSAGE_H

#include "base/compat.h"

/*
 * pgpx_fd_send
 *		Send a message, with descriptor fd unless fd is -1.
 *
 * Return 1 if the message was sent; 0 if the socket's queue is full; -1, with
 * errno set, if the peer is gone or the message cannot be sent at all.
 */
extern int	pgpx_fd_send(int sock, const void *data, size_t len, int fd);

/*
 * pgpx_fd_recv
 *		Receive a message of at most cap bytes and its descriptor.
 *
 * *fd is set to the descriptor, which is close-on-exec, or to -1 if the message
 * has none.  Return the length; 0 if no message is available; -1 on an error or
 * at the end of the stream.  For a message that was truncated, or whose
 * descriptor could not be received, return 1, which is shorter than any valid
 * message.
 */
extern ssize_t pgpx_fd_recv(int sock, void *data, size_t cap, int *fd);

#define PGPX_MESSAGE_MAX (64 * 1024)

typedef enum PgpxMessageType
{
	PGPX_MESSAGE_CONNINFO = 1,
	PGPX_MESSAGE_SOCKET
} PgpxMessageType;

typedef struct PgpxMessageHeader
{
	uint32		type;
	uint32		length;			/* of the message, including this header */
	uint64		boot_id;
	uint64		incarnation;
	int32		pool;
	uint32		pool_id;
} PgpxMessageHeader;

typedef struct PgpxSocketMessage
{
	PgpxMessageHeader header;
	int32		conn;
	uint64		generation;
	uint64		lease_id;
	uint64		number;
} PgpxSocketMessage;

typedef struct PgpxReply
{
	uint64		number;			/* that of the message */
	bool		ok;				/* false: refused, the connection is gone */
	bool		again;			/* refused, because too many descriptors are
								 * in flight */
} PgpxReply;

/*
 * The connection parameters of one version of a pool.  Strings point into the
 * received message or into the server spec.
 */
typedef struct PgpxConninfo
{
	uint64		version;
	bool		need_password;	/* refuse a login without one */
	bool		password_command;	/* the password command prints it */
	const char *start_commands;
	const char *reset_command;
	int			nparams;
	const char **keywords;
	const char **values;
} PgpxConninfo;

/*
 * Create the control sockets.  Must be called in the postmaster before any
 * fork.  Raise FATAL if a socket pair cannot be created.
 */
extern void pgpx_control_init(int nworkers);

/*
 * Return the sessions' end of a control socket.  A session waits on it until
 * the queue has room.
 */
extern int	pgpx_control_session_fd(int worker);

/* Return the worker's end of a control socket; see pgpx_control_receive. */
extern int	pgpx_control_worker_fd(int worker);

/*
 * pgpx_control_send_conninfo
 *		Publish the connection parameters of a pool to a worker.
 *
 * Return 1 if the message was sent; 0 if the queue is full, in which case the
 * caller waits and retries; -1 if it cannot be sent, with the reason in errno:
 * EMSGSIZE if the message is longer than PGPX_MESSAGE_MAX.
 */
extern int	pgpx_control_send_conninfo(int worker, uint64 incarnation, int pool,
									   uint32 pool_id,
									   const PgpxConninfo *conninfo);

/*
 * pgpx_control_send_socket
 *		Request the socket of a leased connection from a worker.
 *
 * The caller fills in *message except for the header's type, length and boot
 * id.  reply_fd: the descriptor on which the worker replies.  Return 1 if the
 * message was sent, 0 if the queue is full, -1 if it cannot be sent.
 */
extern int	pgpx_control_send_socket(int worker, PgpxSocketMessage *message,
									 int reply_fd);

/*
 * pgpx_control_receive
 *		Receive the next message for this worker.
 *
 * Only the worker may call this; the lint control_reader checks it.  buffer has
 * PGPX_MESSAGE_MAX bytes.  Return the message's length, or 0 if there is none.
 * Drop malformed messages, and those of another boot or incarnation.
 */
extern ssize_t pgpx_control_receive(int worker, uint64 incarnation,
									void *buffer, int *fd);

/*
 * pgpx_control_parse_conninfo
 *		Parse a CONNINFO message; return false if it is malformed.
 *
 * The arrays are palloc'd; the strings point into the buffer.
 */
extern bool pgpx_control_parse_conninfo(char *buffer, size_t len,
										PgpxConninfo *conninfo);

#endif							/* PGPX_CONTROL_MESSAGE_H */
