/*-------------------------------------------------------------------------
 *
 * connection.h
 *	  Connections of the worker: watch, reset, check, close.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONNECTION_H
#define PGPX_CONNECTION_H

#include "protocol/wire.h"
#include "worker/login.h"

#include "libpq-fe.h"

/* How soon the worker reads an owed answer that nobody else has read. */
#define PGPX_TICK_MS 100

/* Deadline of a test, unless operation_timeout is shorter. */
#define PGPX_CHECK_MS 2000

/* The message that says goodbye: type, length, nothing. */
#define PGPX_TERMINATE "X\0\0\0\4"
#define PGPX_TERMINATE_LEN 5

typedef enum PgpxWorkerPhase
{
	PGPX_PHASE_NONE = 0,		/* no PGconn */
	PGPX_PHASE_LOOKUP,			/* a thread looks the host name up */
	PGPX_PHASE_CONNECT,			/* the login: see login.c */
	PGPX_PHASE_START,			/* the start commands run */
	PGPX_PHASE_OPEN,			/* quiet: nobody's or a session's */
	PGPX_PHASE_RESET,			/* an answer to a reset is being read */
	PGPX_PHASE_ABORT,			/* given up in mid-statement: see abort.c */
	PGPX_PHASE_CLOSING			/* told goodbye; the remote has still to go */
} PgpxWorkerPhase;

/* How far a connection that was given up in mid-statement has come. */
typedef struct PgpxAbort
{
	PgpxTime	until;			/* then it is closed as it is */
	int			cancels;		/* that have been sent */
	size_t		budget;			/* bytes to read before the next one */
	bool		terminate_sent; /* the remote was told that we go */
	bool		cut;			/* shut down for all: a holder had the socket */
	char		tail[6];		/* what it said last */
} PgpxAbort;

typedef struct PgpxRelay PgpxRelay;
typedef struct PgpxLastCancel PgpxLastCancel;

/* A cancel request in flight. */
typedef struct PgpxCancel
{
	bool		active;
	int			fd;				/* our own, on old libpq; else libpq's */
	uint32		events;			/* to wait for on it */
	void	   *request;		/* PGcancelConn, with libpq 17 and later */
	PgpxLogin  *login;			/* .. and its steps */
	PgpxInputAccounting accounting;
	PgpxLastCancel *last;		/* instead of both, at the worker's end */
	bool		sent;
	PgpxTime	deadline;
} PgpxCancel;

typedef struct PgpxWorkerConn
{
	int			index;			/* in pgpx_conns */
	PgpxWorkerPhase phase;
	uint64		generation;
	int			pool;
	uint32		pool_id;

	PGconn	   *pg;
	uint64		version;		/* of the conninfo that it is opened with */
	PgpxLogin  *login;			/* in phase CONNECT */
	PgpxRelay  *relay;			/* TLS: between the remote and the lessees */
	int			fd;				/* registered in the epoll set; -1: none */
	uint32		events;			/* as registered */
	bool		external_fd;	/* AcquireExternalFD is owed a release */
	PgpxTime	started;
	PgpxTime	deadline;		/* of the phase; 0: none */
	PgpxHosts  *hosts;			/* in phase CONNECT */
	PgpxTime	until;			/* in CONNECT: of all of it, not of a host's share */
	uint64		before;			/* tickets older than the attempt have numbers
								 * under this */
	PgpxWire	wire;			/* in phase RESET */
	bool		checking;		/* phase RESET is a test */
	bool		listening;		/* watched for bytes that nobody asked for */
	uint64		strays_at_use;	/* harmless ones wait since that use; 0: none */
	bool		wire_made;

	bool		have_key;
	uint32		cancel_pid;
	uint32		cancel_key;
	PgpxInputAccounting accounting;
	PgpxCancel	cancel;
	PgpxAbort	aborting;
} PgpxWorkerConn;

extern PgpxWorkerConn *pgpx_wconns; /* [max_connections] */

/*
 * The socket that lessees get, and that the worker speaks on; -1: none.  libpq's
 * own, or the sessions' end of a relay.
 */
extern int	pgpx_connection_socket(PgpxWorkerConn *w);

/* Its socket is ready. */
extern void pgpx_connection_ready(PgpxWorkerConn *w, uint32 events);

/* The deadline of its phase has passed. */
extern void pgpx_connection_late(PgpxWorkerConn *w);

/* RESETTING: send a reset (send true) or only read the owed answers. */
extern void pgpx_connection_reset(PgpxWorkerConn *w, bool send,
								  int unread_reset);

/* CHECKING: a round trip. */
extern void pgpx_connection_check(PgpxWorkerConn *w);

/*
 * Watch a quiet connection for bytes that come by themselves.  Once: the first
 * answer to a lessee ends it, so that a busy one does not wake the worker.
 */
extern void pgpx_connection_listen(PgpxWorkerConn *w);

/*
 * CLOSING: end it for all who hold its socket.  polite says goodbye first,
 * which only a stream at a boundary may be told.
 */
extern void pgpx_connection_close(PgpxWorkerConn *w, bool graceful);

/*
 * Has the remote ended its side of a socket that is shut down, so that nothing can
 * be read any more?  TCP knows; of another socket what the caller assumes.
 */
extern bool pgpx_connection_is_gone(PgpxWorkerConn *w, bool assumed);

/* Terminate, where a message may begin; true: it was sent. */
extern bool pgpx_connection_send_terminate(PgpxWorkerConn *w);

/* Shut its socket down for all who hold it; politely: say goodbye first. */
extern void pgpx_connection_cut(PgpxWorkerConn *w, bool graceful);

/* Which events an open connection is watched for. */
extern void pgpx_connection_watch(PgpxWorkerConn *w, uint32 events);

/* The phase has to end within this many milliseconds. */
extern void pgpx_connection_deadline(PgpxWorkerConn *w, int64 ms);

/* Free what belongs to a connection; the socket ends for this process. */
extern void pgpx_connection_drop(PgpxWorkerConn *w);

#endif							/* PGPX_CONNECTION_H */
