/*-------------------------------------------------------------------------
 *
 * connection.h
 *	  An open connection in the worker: watch, reset, check and close it; abort
 *	  its statement.
 *
 * PgpxWorkerConn is the worker's private counterpart of a PgpxConn slot, at the
 * same index.  It owns the PGconn.
 *
 * Implemented by connection.c, cancel.c (cancel requests) and relay.c (TLS).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONNECTION_H
#define PGPX_CONNECTION_H

#include "shared/pool_worker.h"

#include "libpq-fe.h"

#include "protocol/wire.h"
#include "worker/conninfo.h"
#include "worker/task_queue.h"
#include "worker/worker.h"

/*
 * Interval of the worker's tick, in ms.  After this time the worker itself
 * reads the answer to a pending reset, unless a session has leased the
 * connection and read it.
 */
#define PGPX_TICK_MS 100

/* Deadline of a check, unless operation_timeout is shorter. */
#define PGPX_CHECK_MS 2000

/* The error of a connection attempt if the worker has no descriptor left. */
#define PGPX_NO_DESCRIPTOR "the pool worker has too many open descriptors"

/* The protocol's Terminate message: type and length. */
#define PGPX_TERMINATE "X\0\0\0\4"
#define PGPX_TERMINATE_LEN 5

typedef enum PgpxWorkerPhase
{
	PGPX_PHASE_NONE = 0,		/* no PGconn */
	PGPX_PHASE_LOOKUP,			/* a thread resolves the host name */
	PGPX_PHASE_PASSWORD,		/* waits for the password command */
	PGPX_PHASE_CONNECT,			/* the login */
	PGPX_PHASE_START,			/* the start commands are running */
	PGPX_PHASE_OPEN,			/* idle or leased; the worker sends nothing */
	PGPX_PHASE_RESET,			/* the answer to a reset or check is read */
	PGPX_PHASE_ABORT,			/* aborting a statement */
	PGPX_PHASE_CLOSING			/* Terminate sent, remote has not closed yet */
} PgpxWorkerPhase;

/* Progress of aborting a connection. */
typedef struct PgpxAbort
{
	PgpxTime	until;			/* deadline: then the connection is closed */
	int			cancels;		/* number of requests sent */
	int64		pause_ms;		/* after the last of them */
	size_t		budget;			/* bytes to read before the next request */
	bool		terminate_sent; /* write side closed, perhaps after Terminate */
	bool		cut;			/* the socket is shut down, because the former
								 * holder still has it */
	char		tail[6];		/* last bytes that the remote sent */
} PgpxAbort;

typedef struct PgpxRelay PgpxRelay;

typedef struct PgpxWorkerConn PgpxWorkerConn;

/*
 * What a connection is for: a pool (connect.c), or the locks of a pool
 * (lock_pinger.c).
 */
typedef struct PgpxPurpose
{
	PgpxWatchKind watch;
	const char *application_name;	/* NULL: that of the conninfo */
	const char *limit_name;		/* of the time for an attempt */
	const char *start_commands; /* after those of the pool; "": none */

	/* the attempt has progressed, or has ended */
	void (*changed)(PgpxWorkerConn *w);

	/*
	 * The attempt has failed: drop the connection.  reason: one line, not in
	 * the connection's memory.
	 */
	void (*failed)(PgpxWorkerConn *w, PgpxConnectFailure how, int sqlstate,
				   const char *reason);

	/* other options were published during the attempt */
	void (*outdated)(PgpxWorkerConn *w);

	/* login and start commands are complete; the phase is OPEN */
	void (*opened)(PgpxWorkerConn *w);
} PgpxPurpose;

/* A cancel request in progress. */
typedef struct PgpxCancel
{
	PgpxTask   *task;			/* NULL: none */
	PgpxTime	deadline;
} PgpxCancel;

struct PgpxWorkerConn
{
	const PgpxPurpose *purpose;
	int			index;			/* in pgpx_conns; of a pinger: its pool */
	PgpxWorkerPhase phase;
	uint64		generation;
	int			pool;
	uint32		pool_id;

	PGconn	   *pg;				/* with an AcquireExternalFD reservation; NULL
								 * also during a step of the login */
	uint64		version;		/* of the conninfo it was opened with */
	PgpxTask   *task;			/* in phase LOOKUP; in phase CONNECT the step
								 * of the login, which then owns the PGconn.
								 * NULL: none */
	dlist_node	password_node;	/* in phase PASSWORD: see password.c */
	PgpxRelay  *relay;			/* with TLS: between remote and sessions */
	int			fd;				/* registered in the epoll set; -1: none */
	uint32		events;			/* as registered */
	PgpxTime	started;
	PgpxTime	deadline;		/* of the phase; 0: none */
	PgpxHosts  *hosts;			/* in phases PASSWORD and CONNECT */
	PgpxTime	password_at;	/* of the password that the login uses */
	PgpxTime	until;			/* end of connect_timeout, for all hosts */
	int			nstarted;		/* start commands sent: those of the pool,
								 * those of the purpose */
	PgpxWire	wire;			/* in phase RESET */

	PgpxCancel	cancel;
	PgpxAbort	aborting;
	bool		awaited;		/* the exit of the worker awaits its end */
};

extern PgpxWorkerConn *pgpx_wconns; /* [max_connections] */

extern void pgpx_connections_init(const PgpxPurpose *purpose);

/* Return the version of the conninfo with which a connection was opened. */
static inline PgpxConninfoKey
pgpx_connection_key(const PgpxWorkerConn *w)
{
	return (PgpxConninfoKey){w->pool, w->pool_id, w->version};
}

/*
 * Loop over this worker's connections.  The body may begin and drop
 * connections.
 */
#define pgpx_connection_foreach(w) \
	for (PgpxWorkerConn *w = pgpx_wconns; \
		 w < pgpx_wconns + pgpx_conns_end(); w++) \
		if (w->phase != PGPX_PHASE_NONE)

/*
 * Return the socket that sessions receive and on which the worker itself
 * speaks: libpq's own or, with TLS, the sessions' end of the relay's socket
 * pair.  Return -1 if there is none.
 */
extern int	pgpx_connection_socket(PgpxWorkerConn *w);

/*
 * Handle epoll events on the socket, and the expiry of the phase's deadline, in
 * phase OPEN and those after it.
 */
extern void pgpx_connection_ready(PgpxWorkerConn *w, uint32 events);
extern void pgpx_connection_deadline_passed(PgpxWorkerConn *w);

/* RESETTING: start a reset. */
extern void pgpx_connection_reset(PgpxWorkerConn *w);

/*
 * RESET_PENDING: start to read the answer to the reset that a session has sent.
 * Returns false if a session has leased the connection meanwhile.
 */
extern bool pgpx_connection_read_reset(PgpxWorkerConn *w);

/* CHECKING: start a round trip to the remote. */
extern void pgpx_connection_check(PgpxWorkerConn *w);

/*
 * CLOSING: end the connection for all processes that hold its socket.  Send
 * Terminate first, unless the reason for closing is that the stream may not be
 * at a message boundary.
 */
extern void pgpx_connection_close(PgpxWorkerConn *w);

/*
 * Return whether the remote has closed its side of a socket that was shut down,
 * so that nothing more can be read.  TCP reports it.  For any other kind of
 * socket the result is "assumed".
 */
extern bool pgpx_connection_is_gone(PgpxWorkerConn *w, bool assumed);

/*
 * Shut the socket down for all processes that hold it.  With graceful, send
 * Terminate first.
 */
extern void pgpx_connection_cut(PgpxWorkerConn *w, bool graceful);

/* Set the deadline of the phase. */
extern void pgpx_connection_set_deadline(PgpxWorkerConn *w, PgpxTime deadline);

/* Set the epoll events for which an open connection is watched. */
extern void pgpx_connection_watch(PgpxWorkerConn *w, uint32 events);

/*
 * Free all that the connection owns in this process, and close the worker's
 * socket.
 */
extern void pgpx_connection_drop(PgpxWorkerConn *w);

/*
 * Begin the abort of a connection in state CANCELLING that is to be closed.
 * Cancel the running statement, repeatedly, until the remote has closed its
 * side or operation_timeout has passed.  Then close the connection.
 */
extern void pgpx_abort_begin(PgpxWorkerConn *w);

/* --- Cancel ------------------------------------------------------------ */

/*
 * pgpx_cancel_start
 *		Start a cancel request for the statement that runs on a connection,
 *		unless one is in progress already.
 * pgpx_cancel_send
 *		Do the same without the shared state, while the worker exits.
 * pgpx_cancel_ended
 *		Called once for each request, when the remote has closed the cancel
 *		connection, or the request has failed, perhaps before the request's
 *		start returns.  sent: it was or may have been sent.  ok: the remote has
 *		closed the cancel connection.
 */
typedef void (*PgpxCancelEnded)(PgpxWorkerConn *w, bool sent, bool ok);

extern PgpxCancelEnded pgpx_cancel_ended;
extern void pgpx_cancel_start(PgpxWorkerConn *w);
extern void pgpx_cancel_send(PgpxWorkerConn *w);

/* Handle the deadline of the request. */
extern void pgpx_cancel_deadline_passed(PgpxWorkerConn *w);

/*
 * Drop a cancel request in progress because its connection is being closed.
 * pgpx_cancel_ended is not called.
 */
extern void pgpx_cancel_drop(PgpxWorkerConn *w);

/* --- Relay ------------------------------------------------------------
 *
 * The relay between a TLS connection and the socket pair that sessions use
 * in its place.
 */

/*
 * Create the relay of a TLS connection that libpq has opened.  Return NULL, or
 * the error.
 */
extern const char *pgpx_relay_begin(PgpxWorkerConn *w);

/*
 * Return the end of the pair that sessions use; -1 after pgpx_relay_cut.
 */
extern int	pgpx_relay_socket(const PgpxRelay *relay);

/* Handle events on one of its descriptors: the local end or the remote's. */
extern void pgpx_relay_ready(PgpxWorkerConn *w, bool local, uint32 events);

/*
 * Test whether any relay has bytes to move of which epoll does not know; move
 * one chunk of each.
 */
extern bool pgpx_relay_has_more(void);
extern void pgpx_relay_resume(void);

/*
 * Shut both sides down.  With graceful, send Terminate to the remote first.
 */
extern void pgpx_relay_cut(PgpxWorkerConn *w, bool graceful);

/* Free the relay.  Must be called before PQfinish. */
extern void pgpx_relay_end(PgpxWorkerConn *w);

#endif							/* PGPX_CONNECTION_H */
