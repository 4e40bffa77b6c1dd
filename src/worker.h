/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The pool worker from inside: what its files share.
 *
 * Runs in the worker only.  The worker never blocks: all it waits for is in one
 * epoll set, with a deadline, and what cannot but block is in threads (task.c).  Of
 * shared memory it changes the connections of its own pools, through pool.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WORKER_H
#define PGPX_WORKER_H

#include "libpq-fe.h"

#include "handoff.h"
#include "pool.h"
#include "resolver.h"
#include "wire.h"

/* How soon the worker reads an owed answer that nobody else has read. */
#define PGPX_TICK_MS 100

/* How long after the last checkin it goes on looking by itself. */
#define PGPX_BUSY_MS 1000

/* Deadline of a test, unless operation_timeout is shorter. */
#define PGPX_CHECK_MS 2000

/*
 * How long a place is kept, whatever the options say, that others want; and how
 * often it is looked whether they do.
 */
#define PGPX_KEEP_MS 10000
#define PGPX_LOOK_MS 1000

/* How often it compares the holders of leases with the living processes. */
#define PGPX_SWEEP_MS 5000

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
	PGPX_PHASE_ENDING,			/* given up in mid-statement: see ending.c */
	PGPX_PHASE_CLOSING			/* told goodbye; the remote has still to go */
} PgpxWorkerPhase;

/* How far a connection that was given up in mid-statement has come. */
typedef struct PgpxEnding
{
	PgpxTime	until;			/* then it is closed as it is */
	int			cancels;		/* that have been sent */
	size_t		budget;			/* bytes to read before the next one */
	bool		goodbye;		/* the remote was told that we go */
	bool		cut;			/* shut down for all: a holder had the socket */
	char		tail[6];		/* what it said last */
} PgpxEnding;

typedef struct PgpxRelay PgpxRelay;

/* What libpq hears while it is it that reads; see libpq_bounds.c. */
typedef struct PgpxHearing
{
	uint64		login;			/* bytes of the login that lay ready */
	uint64		unread;			/* .. and lay so before this step of it */
	uint64		taken;			/* bytes until something was handed out */
} PgpxHearing;

typedef struct PgpxLogin PgpxLogin;
typedef struct PgpxLastCancel PgpxLastCancel;

/* A cancel request in flight. */
typedef struct PgpxCancel
{
	bool		active;
	int			fd;				/* our own, on old libpq; else libpq's */
	uint32		events;			/* to wait for on it */
	void	   *request;		/* PGcancelConn, with libpq 17 and later */
	PgpxLogin  *login;			/* .. and its steps */
	PgpxHearing hearing;
	PgpxLastCancel *last;		/* instead of both, at the worker's end */
	bool		sent;
	PgpxTime	deadline;
} PgpxCancel;

/* Where a login may go, each as libpq is told of it; NULL: it is not. */
typedef struct PgpxHost
{
	int			place;			/* in the list that was told */
	const char *host;
	const char *hostaddr;
	const char *port;
} PgpxHost;

/* The first to be tried first.  What libpq goes through by itself is one. */
typedef struct PgpxHosts
{
	MemoryContext cxt;
	int			n;				/* that are left */
	int			total;			/* in the list that was told */
	PgpxHost   *each;
} PgpxHosts;

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
	uint64		heard;			/* harmless ones wait since that use; 0: none */
	bool		wire_made;

	bool		have_key;
	uint32		cancel_pid;
	uint32		cancel_key;
	PgpxHearing hearing;
	PgpxCancel	cancel;
	PgpxEnding	ending;
} PgpxWorkerConn;

/* A pool's conninfo, in private memory. */
typedef struct PgpxWorkerPool
{
	uint32		pool_id;		/* 0: none */
	MemoryContext cxt;
	char	   *message;		/* the strings; wiped before it is freed */
	size_t		message_len;
	PgpxConninfo conninfo;
	int			first;			/* of the hosts, to begin with */
	PgpxTime	first_until;	/* .. so long; then with the first in the list */
} PgpxWorkerPool;

extern int	pgpx_worker_index;	/* which worker this is */
extern uint64 pgpx_worker_epoch;
extern MemoryContext pgpx_worker_cxt;	/* reset after each round */
extern PgpxWorkerConn *pgpx_wconns; /* [max_connections] */
extern PgpxWorkerPool *pgpx_wpools; /* [max_pools] */

/* Register the workers and set their slots up; called by _PG_init. */
extern void pgpx_worker_register(void);
PGDLLEXPORT extern void pgpx_worker_main(Datum arg);

/* --- worker_exit.c -------------------------------------------------------- */

/* Be ready for the end of the worker, however it comes. */
extern void pgpx_worker_exit_init(void);

/*
 * Take all connections of this worker's pools out of the shared state: they
 * have no PGconn behind them any more.
 */
extern void pgpx_worker_forget_connections(void);

/* --- reactor.c ----------------------------------------------------------- */

/* What an epoll event is about. */
typedef enum PgpxWatchKind
{
	PGPX_WATCH_CONTROL = 1,
	PGPX_WATCH_TASK,			/* threads have ended */
	PGPX_WATCH_CONN,
	PGPX_WATCH_CANCEL,
	PGPX_WATCH_RELAY_REMOTE,	/* a relay's TLS connection */
	PGPX_WATCH_RELAY_LOCAL,		/* .. and its end of the socket pair */
	PGPX_WATCH_PINGER
} PgpxWatchKind;

extern void pgpx_reactor_init(void);

/* Watch a descriptor (add), or change what it is watched for; watch it no more. */
extern void pgpx_reactor_watch(PgpxWatchKind kind, int index, int fd,
							   uint32 events, bool add);
extern void pgpx_reactor_forget(int fd);

/*
 * Wait for something to happen and handle it all.  False: relays have moved
 * bytes, and nothing else has happened.
 */
extern bool pgpx_reactor_run_once(void);

/* --- janitor.c ------------------------------------------------------------ */

/* Something is due at this instant. */
extern void pgpx_janitor_due(PgpxTime at);

/* Look at all pools in the next round: the settings have changed. */
extern void pgpx_janitor_maintain(void);

/*
 * Do what is due; changed tells that connections have changed state.  Returns
 * when it wants to run again, PG_INT64_MAX: when something has happened.
 */
extern PgpxTime pgpx_janitor_run(bool changed);

/* --- pinger.c -------------------------------------------------------------- */

/* Ping and release locks where that is due.  Returns when it is due again. */
extern PgpxTime pgpx_pinger_run(void);
extern void pgpx_pinger_ready(int index, uint32 events);

/* A session has told how to connect. */
extern void pgpx_pinger_conninfo_came(void);

/* How many sockets the pingers have. */
extern int	pgpx_pinger_descriptors(void);

/* --- steward.c ------------------------------------------------------------ */

/* See which pools a cap keeps hungry, and find them places.  True if any is. */
extern bool pgpx_steward_run(void);

/* --- conninfo.c ----------------------------------------------------------- */

/* A session has told how to connect: keep it. */
extern void pgpx_conninfo_take(char *message, size_t len);

/* Wipe what is kept of a pool in this place; or of all, at the worker's end. */
extern void pgpx_conninfo_forget(int pool);
extern void pgpx_conninfo_wipe_all(void);

/* The value of a connection parameter, NULL if it is not given. */
extern const char *pgpx_conninfo_param(const PgpxConninfo *ci,
									   const char *name);

/* Has something else been told since, or nothing to this pool? */
extern bool pgpx_conninfo_is_another(int pool, uint32 pool_id, uint64 version);

/* Is the resolver to be asked first?  Ask it; returns why it cannot be, or NULL. */
extern bool pgpx_conninfo_needs_lookup(const PgpxConninfo *ci);
extern const char *pgpx_conninfo_look_up(int pool, PgpxLookupAnswer answer,
										 uint64 tag);

/*
 * Begin a login.  application_name: ours instead of the one that was told, unless
 * NULL.  NULL: no memory.
 */
extern PGconn *pgpx_conninfo_login(const PgpxConninfo *ci,
								   const PgpxHosts *hosts,
								   const char *application_name);

/* --- connector.c --------------------------------------------------------- */

/* CONNECTING: begin to open it; or give up, since the pool has another version. */
extern void pgpx_connector_open(PgpxWorkerConn *w);
extern void pgpx_connector_outdated(PgpxWorkerConn *w);

/* An attempt is under way: apply connect_timeout if it has changed meanwhile. */
extern void pgpx_connector_renew_timeout(PgpxWorkerConn *w, int64 timeout);

/* Nobody waits any more for the name that is being looked up. */
extern void pgpx_connector_end_lookup(PgpxWorkerConn *w);

/* Go on with opening it; or give up, since the deadline has passed. */
extern void pgpx_connector_step(PgpxWorkerConn *w);
extern void pgpx_connector_too_late(PgpxWorkerConn *w);

/*
 * The attempt has failed: text is the reason for those who wait.  It is dropped, or
 * ended elsewhere if something runs in it.  "refused": with the SQLSTATE that most have.
 */
extern void pgpx_connector_give_up(PgpxWorkerConn *w, PgpxConnectFailure how,
								   int sqlstate, const char *text);
extern void pgpx_connector_fail(PgpxWorkerConn *w, int sqlstate,
								const char *text);
extern void pgpx_connector_refused(PgpxWorkerConn *w, const char *text);

/*
 * Have other options come since it was begun?  Then it is given up: the password and
 * the start commands of the new ones are not for the old ones' host.
 */
extern bool pgpx_connector_overtaken(PgpxWorkerConn *w);

/* --- connector_start.c --------------------------------------------------- */

/* The login is done: is it one that we may use?  Then on to the start commands. */
extern void pgpx_connector_logged_in(PgpxWorkerConn *w);

/* Something came while they run. */
extern void pgpx_connector_step_start(PgpxWorkerConn *w);

/* --- connection.c -------------------------------------------------------- */

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
extern void pgpx_connection_reset(PgpxWorkerConn *w, bool send, int owed);

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
extern void pgpx_connection_close(PgpxWorkerConn *w, bool polite);

/*
 * Has the remote ended its side of a socket that is shut down, so that nothing can
 * be read any more?  TCP knows; of another socket what the caller assumes.
 */
extern bool pgpx_connection_has_gone(PgpxWorkerConn *w, bool assumed);

/* Terminate, where a message may begin; true: it was sent. */
extern bool pgpx_connection_say_goodbye(PgpxWorkerConn *w);

/* Shut its socket down for all who hold it; politely: say goodbye first. */
extern void pgpx_connection_cut(PgpxWorkerConn *w, bool polite);

/* Which events an open connection is watched for. */
extern void pgpx_connection_watch(PgpxWorkerConn *w, uint32 events);

/* The phase has to end within this many milliseconds. */
extern void pgpx_connection_deadline(PgpxWorkerConn *w, int64 ms);

/* Free what belongs to a connection; the socket ends for this process. */
extern void pgpx_connection_drop(PgpxWorkerConn *w);

/* --- relay.c ------------------------------------------------------------- */

/*
 * Give a TLS connection that libpq has opened a socket for its lessees.  Returns
 * what has failed, or NULL.
 */
extern const char *pgpx_relay_begin(PgpxWorkerConn *w);

/* That socket; -1 after the cut. */
extern int	pgpx_relay_socket(const PgpxRelay *relay);

/* One of its descriptors is ready: the sessions' side, or the remote's. */
extern void pgpx_relay_ready(PgpxWorkerConn *w, bool local, uint32 events);

/* Some have more to move than epoll knows; move it, a piece each. */
extern bool pgpx_relay_has_more(void);
extern void pgpx_relay_go_on(void);

/* Shut both sides down; politely: with a goodbye to the remote. */
extern void pgpx_relay_cut(PgpxWorkerConn *w, bool polite);

/* Free it, before libpq's connection. */
extern void pgpx_relay_end(PgpxWorkerConn *w);

/* --- ending.c ------------------------------------------------------------ */

/*
 * CANCELLING, to be closed: cancel what runs, again and again, until the remote
 * has gone or operation_timeout is up; then close.
 */
extern void pgpx_ending_begin(PgpxWorkerConn *w);

/* Its cancel connection has closed; its socket is ready; its pause is over. */
extern void pgpx_ending_cancelled(PgpxWorkerConn *w);
extern void pgpx_ending_ready(PgpxWorkerConn *w, uint32 events);
extern void pgpx_ending_late(PgpxWorkerConn *w);

/* Close it as it is. */
extern void pgpx_ending_give_up(PgpxWorkerConn *w);

/* --- relay_library.c ----------------------------------------------------- */

/*
 * A login is over, and from now on libpq is asked in the worker's loop: see to it
 * that what a remote sends does not keep it there.  Returns why the connection's TLS
 * cannot be used by us; NULL: it can, or there is none.
 */
extern const char *pgpx_tls_claim(PGconn *pg);

/* --- canceller.c --------------------------------------------------------- */

/* Begin to cancel what runs on a connection. */
extern void pgpx_canceller_start(PgpxWorkerConn *w);
extern void pgpx_canceller_ready(PgpxWorkerConn *w);
extern void pgpx_canceller_late(PgpxWorkerConn *w);

/*
 * The same at the worker's end, without the reactor: begin a request, go on with it.
 * Returns the events to wait for on cancel.fd (unless that is -1: then it has a thread,
 * and one looks again); 0: it is over.
 */
extern uint32 pgpx_canceller_begin_last(PgpxWorkerConn *w);
extern uint32 pgpx_canceller_step_last(PgpxWorkerConn *w);

/* Forget a cancel in flight: its connection is being closed. */
extern void pgpx_canceller_drop(PgpxWorkerConn *w);

/* The login is over: note the cancel key, which old libpq has and does not tell. */
extern void pgpx_canceller_find_key(PgpxWorkerConn *w);

/* --- libpq_bounds.c ------------------------------------------------------ */

/* Drop notices, which libpq would print. */
extern void pgpx_libpq_hush(PGconn *pg);

/* Drop notifications, which libpq would keep; where input has been consumed. */
extern void pgpx_libpq_drop_notifications(PGconn *pg);

/* A login begins; around a step of it; false: it is longer than any needs to be. */
extern void pgpx_libpq_login_begin(PgpxHearing *hearing);
extern void pgpx_libpq_login_before(PgpxHearing *hearing, int fd);
extern bool pgpx_libpq_login_after(PgpxHearing *hearing, int fd);

/*
 * Input has been consumed, and "taken" tells whether libpq has handed something out:
 * does it keep more than a message of an honest remote takes?
 */
extern bool pgpx_libpq_keeps_much(PgpxHearing *hearing, PGconn *pg, bool taken);

#endif							/* PGPX_WORKER_H */
