/*-------------------------------------------------------------------------
 *
 * control_message.h
 *	  Messages and descriptors between sessions and workers.
 *
 * unix(7), SCM_RIGHTS.  Nothing here waits.
 *
 * What a session and a worker say to each other.
 *
 *	  session -> worker, over the worker's control socket, which every process
 *	  of the server has inherited and only the worker reads:
 *
 *		CONNINFO	the parameters of a pool, secrets included, for the worker's
 *					private memory.  No answer; idempotent.
 *		SOCKET		"give me the socket of the connection that I have leased",
 *					with the descriptor on which the answer is to come.
 *
 *	  worker -> session, over that descriptor:
 *
 *		PgpxReply, with the socket.
 *
 * The control socket outlives a crash restart with its old messages: each
 * carries the life of shared memory and the epoch of the worker, and one that
 * does not match is dropped, its descriptor closed.  So is a reply that does
 * not match the question.
 *
 * Each SOCKET question brings a descriptor of its own instead of one for the
 * session's life: the worker then keeps no descriptor for a session at all,
 * however many there are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONTROL_MESSAGE_H
#define PGPX_CONTROL_MESSAGE_H

#include "base/compat.h"

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

#define PGPX_MESSAGE_MAX (64 * 1024)

typedef enum PgpxMessageType
{
	PGPX_MESSAGE_CONNINFO = 1,
	PGPX_MESSAGE_SOCKET
} PgpxMessageType;

typedef struct PgpxMessageHeader
{
	uint32		type;
	uint32		length;			/* of all, this header included */
	uint64		boot_id;
	uint64		incarnation;
	int32		pool;
	uint32		pool_id;
} PgpxMessageHeader;

typedef struct PgpxSocketRequest
{
	PgpxMessageHeader header;
	int32		conn;
	uint64		generation;
	uint64		lease_id;
	uint64		request;
} PgpxSocketRequest;

typedef struct PgpxReply
{
	uint64		boot_id;
	uint64		incarnation;
	int32		conn;
	int32		ok;				/* 0: refused, the connection is gone */
	uint64		generation;
	uint64		lease_id;
	uint64		request;
} PgpxReply;

/*
 * The parameters of one version of a pool.  Strings point into the message, or
 * into the target they came from.
 */
typedef struct PgpxConninfo
{
	uint64		version;
	bool		need_password;
	const char *start_commands;
	const char *reset_command;
	int			nparams;
	const char **keywords;
	const char **values;
} PgpxConninfo;

/* Make the control sockets; in the postmaster, before any fork. */
extern void pgpx_control_init(int nworkers);

/* The end that sessions send into, for waiting until there is room. */
extern int	pgpx_control_session_fd(int worker);

/* The end that the worker reads; see pgpx_control_receive. */
extern int	pgpx_control_worker_fd(int worker);

/*
 * pgpx_control_send_conninfo
 *		Returns 1 sent, 0 the queue is full (wait and try again), -1 too long.
 */
extern int	pgpx_control_send_conninfo(int worker, uint64 incarnation, int pool,
									   uint32 pool_id,
									   const PgpxConninfo *conninfo);

/* Returns 1 sent, 0 the queue is full, -1 it cannot be sent. */
extern int	pgpx_control_send_request(int worker, PgpxSocketRequest *request,
									  int reply_fd);

/*
 * pgpx_control_receive
 *		Next message for this worker; only the worker calls this (a lint says
 *		so).  Returns its length; 0 if there is none, or a message of another
 *		life or epoch was dropped (*more tells which).
 */
extern ssize_t pgpx_control_receive(int worker, uint64 incarnation,
									void *buffer,
									int *fd, bool *more);

/*
 * pgpx_control_parse_conninfo
 *		Decode a CONNINFO message.  The arrays are palloc'd, the strings point
 *		into the buffer.  False: malformed.
 */
extern bool pgpx_control_parse_conninfo(char *buffer, size_t len,
										PgpxConninfo *conninfo);

#endif							/* PGPX_CONTROL_MESSAGE_H */
