/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The leases of this session: their records, checks before use,
 *	  notifications, stream, and return.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_H
#define PGPX_LEASE_H

#include "shared/pool.h"

#include "lib/ilist.h"

#include "base/backoff.h"
#include "shared/conn_state.h"
#include "session/server_spec.h"
#include "session/socket_cache.h"

/*
 * The SQLSTATEs of this extension.  They do not begin with 57P, because
 * client-side pools take such an error to concern their own session to this
 * server, and would close that healthy session.
 */
#define PGPX_ERRCODE_LEASE_TERMINATED	MAKE_SQLSTATE('P', 'X', '0', '0', '1')
#define PGPX_ERRCODE_LEASE_TIMEOUT		MAKE_SQLSTATE('P', 'X', '0', '0', '2')
#define PGPX_ERRCODE_WORKER_DOWN		MAKE_SQLSTATE('P', 'X', '0', '0', '3')
#define PGPX_ERRCODE_POOL_DAMAGED		MAKE_SQLSTATE('P', 'X', '0', '0', '4')

/* The place of a checkout in the queue of a pool. */
typedef struct PgpxPlace
{
	uint32		pool_id;
	uint64		position;		/* 0: it has not waited */
	PgpxTime	started;
	PgpxTime	deadline;		/* 0: none */
	PgpxTime	waited;			/* from "started" to the end of the last wait */
} PgpxPlace;

/*
 * A notification.  It is allocated as one chunk, with its channel and payload.
 */
typedef struct PgpxNote
{
	struct PgpxNote *next;
	int32		remote_pid;
	char	   *payload;
	char		channel[FLEXIBLE_ARRAY_MEMBER];
} PgpxNote;

typedef struct PgpxNotes
{
	PgpxNote   *first;			/* NULL: none */
	PgpxNote  **end;			/* where to link the next one */
	size_t		bytes;
	uint64		dropped;		/* since the last read */
} PgpxNotes;

typedef struct PgpxLease
{
	dlist_node	node;
	uint64		id;				/* 0: not in use */
	int			conn;
	uint64		generation;
	PgpxCachedSocket *sock;		/* NULL until it is fetched */
	PgpxServerSpec *spec;		/* pinned */
	int			worker;
	Oid			user;
	int			scope;			/* PgpxScope */
	SubTransactionId subid;		/* subtransaction that owns the lease */
	bool		in_use;			/* a statement is running on it, or its result
								 * is being read */
	bool		sent;			/* a statement was sent during this lease */
	int			pending_state;	/* PgpxPendingState: SENT or FAILED, if the
								 * previous holder was to send its first
								 * statement; else NONE */
	PgpxPlace	place;			/* of its checkout */
	bool		not_run;		/* its statement did not run: the preceding
								 * reset failed */
	bool		read_only;		/* the remote refused a write */
	int			drained_error;	/* SQLSTATE of the last error in an answer that
								 * was discarded; 0: none */
	struct PgpxInFlight *in_flight; /* statement in flight; NULL: none */
	size_t		scanned;		/* bytes of its answer that were searched for
								 * the end, see pgpx_wire_is_answered */
	PgpxTime	cancel_at;		/* when to repeat the cancel of the statement
								 * in flight; 0: none was requested */
	PgpxTime	cancel_pause;

	PgpxNotes	notes;			/* pending notifications */
	char	   *last_message;	/* with which the remote server announced the
								 * end of its session; NULL: none */
	PgpxUsage	usage;
} PgpxLease;

/*
 * pgpx_lease_store_note
 *		Queue a notification for pgpool.notifications.
 *
 * The queue of a lease is bounded.  A notification that is malformed, that
 * exceeds the bound or for which no memory is available is dropped and counted.
 * Raise no error.
 */
extern void pgpx_lease_store_note(PgpxLease *lease, const PgpxWireMessage *msg);

/* Return whether notifications are queued, or were dropped. */
static inline bool
pgpx_lease_has_notes(const PgpxLease *lease)
{
	return lease->notes.first != NULL || lease->notes.dropped > 0;
}

/* Free all queued notifications. */
extern void pgpx_lease_drop_notes(PgpxLease *lease);

extern dlist_head pgpx_leases;	/* leases of this session */

/*
 * Allocate a lease record outside the list.  Adding it to the list cannot fail.
 */
extern PgpxLease *pgpx_lease_alloc(void);

/*
 * pgpx_lease_forget
 *		Remove a lease from the list, if it is there, and recycle its record.
 *
 * Release only what this process keeps for the lease.  The shared state is
 * released by pgpx_pool_release.
 */
extern void pgpx_lease_forget(PgpxLease *lease);

/*
 * pgpx_lease_require_unrestricted
 *		Raise 42501 in a security-restricted operation: ANALYZE, REINDEX, CREATE
 *		INDEX or REFRESH MATERIALIZED VIEW, which call functions of the owner of
 *		the table or view in the session of another user.
 *
 * Functions that acquire, use or end leases or locks of the session call this.
 * A call on a pool and foreign tables need no check, because they have leases
 * of their own.
 */
extern void pgpx_lease_require_unrestricted(void);

/*
 * pgpx_lease_for_use
 *		Find a lease of this session by its id, to use it as the current user.
 *
 * Errors: those of pgpx_lease_require_unrestricted; 55000 it does not exist or
 * is in use; 42501 it belongs to another session or user; 08006, PX001 or PX002
 * it was revoked.
 */
extern PgpxLease *pgpx_lease_for_use(int64 id);

/*
 * pgpx_lease_for_return
 *		Find a lease of this session by its id, to return it.
 *
 * As pgpx_lease_for_use, but any user of the session may return the lease, and
 * a revoked lease is found too.
 */
extern PgpxLease *pgpx_lease_for_return(int64 id);

/*
 * pgpx_lease_check_not_in_use
 *		Raise 55000 if a statement is running on the lease, or if its scope is
 *		CALL or TABLE.
 *
 * A lease of scope CALL is in use until the end of the call, even if no
 * statement runs on it.  For example, a fanout has several leases, and one may
 * be complete while a row of another is converted by a user's function.
 */
extern void pgpx_lease_check_not_in_use(const PgpxLease *lease);

/* If the lease was revoked, raise an error with the reason. */
extern void pgpx_lease_check_revoked(PgpxLease *lease);

/*
 * Break the stream, unless it is broken already, and raise 08006, as each later
 * use of the lease does.  remote_text may be NULL.
 */
pg_noreturn extern void pgpx_lease_raise_broken(PgpxLease *lease,
												const char *reason,
												const char *remote_text);

/* Raise 08006 if the stream is broken. */
extern void pgpx_lease_check_broken(PgpxLease *lease);

/*
 * Keep the text of an error or notice if the remote server announces with it
 * the end of its session.  It is a notice after a crash and at an immediate
 * shutdown.  Raise no error.
 */
extern void pgpx_lease_note_end(PgpxLease *lease, const PgpxWireMessage *msg);

/* Raise 0A000 if the client_encoding of the remote session was changed. */
extern void pgpx_lease_check_encoding(const PgpxLease *lease);

/* Return the deadline for an internal operation that begins now. */
extern PgpxTime pgpx_lease_operation_deadline(const PgpxLease *lease);

/* Forget the statement in flight, if there is one. */
extern void pgpx_lease_clear_in_flight(PgpxLease *lease);

/*
 * Return whether all leases of this session are those of foreign tables, which
 * only the end of the local transaction returns.  For the hints of errors.
 */
extern bool pgpx_lease_all_are_of_tables(void);

/*
 * Count the leases of this session, optionally of one pool (by its id; 0: any)
 * or of one server (by the index of its record; -1: any).
 */
extern int	pgpx_lease_count(uint32 pool_id, int server);

/*
 * pgpx_lease_check_unbounded_wait
 *		Raise 40P01 if this session holds a lease that another session may
 *		wait for.
 *
 * To be called before a wait without a timeout in which no deadlock is
 * detected.
 */
extern void pgpx_lease_check_unbounded_wait(void);

/*
 * Send the contents of the output buffer.  Wait and serve interrupts.  Return
 * false if the stream is broken.
 */
extern bool pgpx_stream_flush(PgpxLease *lease, PgpxTime deadline);

/*
 * Return whether the session is to end its wait, although the caller cannot
 * process interrupts.
 *
 * In PostgreSQL 15 and 16 a recovery conflict sets one of the two flags.  From
 * 17 on, the server does not export its flag, and InterruptPending is also set
 * by harmless requests.  So a recovery conflict does not end the wait there,
 * and neither does a barrier.  operation_timeout does.
 */
static inline bool
pgpx_interrupt_pending(void)
{
	return QueryCancelPending || ProcDiePending;
}

/*
 * pgpx_stream_drain
 *		Read and discard input until the stream is at a message boundary.
 *
 * Read at most the given number of bytes, until the deadline.  Serve no
 * interrupts, but end the wait if one is pending, and raise no error.  With
 * bytes 0 the number is unbounded; then interrupts are served, and errors can
 * be raised.  Return true if the boundary was reached.
 */
extern bool pgpx_stream_drain(PgpxLease *lease, size_t bytes,
							  PgpxTime deadline);

/*
 * Limits for the rest of an answer that is read instead of cancelling the
 * statement or closing the connection.
 */
#define PGPX_DRAIN_BYTES (1024 * 1024)
#define PGPX_DRAIN_US (50 * 1000)

/*
 * Request that the worker cancel the statement that runs on the lease.
 *
 * A cancel that arrives before its statement has no effect, so a session that
 * waits for the end of the statement repeats the request.  This is the first
 * interval; it is doubled each time, up to the second.
 */
#define PGPX_CANCEL_AGAIN_US (250 * 1000)
#define PGPX_CANCEL_AGAIN_MAX_US (8 * 1000 * 1000)

static inline PgpxTime
pgpx_cancel_next_pause(PgpxTime pause)
{
	return pgpx_backoff_next(pause, PGPX_CANCEL_AGAIN_US,
							 PGPX_CANCEL_AGAIN_MAX_US);
}
extern void pgpx_stream_cancel(PgpxLease *lease);

/*
 * If the statement in flight was cancelled, and the next cancel request is due,
 * send it.  Return when the following one is due; 0: it was not cancelled.
 */
extern PgpxTime pgpx_stream_repeat_cancel(PgpxLease *lease);

/*
 * Limit on the input to drain after a cancel.  It exceeds what the socket
 * buffers of both servers hold, so only a server that ignores the cancel sends
 * more.
 */
#define PGPX_CANCEL_BYTES (16 * 1024 * 1024)

/* --- Lease return ------------------------------------------------------------
 *
 * The return of a lease: at checkin, or with the transaction,
 * subtransaction or session that owns it.
 */

/*
 * The statement for which a lease of scope CALL or TABLE is acquired.  While
 * the checkout waits in the queue, a session that returns a connection may send
 * the statement (pipelined hand-over).  In that case pgpx_run_send does not
 * send it again, so it must be the first statement on the lease.
 */
typedef struct PgpxPendingStatement
{
	const PgpxStatement *statement;
	const PgpxPipeline *pipeline;	/* of a foreign table: the commands before
									 * the statement; used only if
									 * pgpx_server_spec_can_keep_settings.
									 * NULL: there are none */
	bool		single;			/* certainly a single statement */
} PgpxPendingStatement;

/*
 * Prepare the statement for a pipelined hand-over to the waiter that is about
 * to be enqueued.  Do nothing if the statement or the options do not allow it.
 */
extern void pgpx_hand_over_prepare(const PgpxServerSpec *spec,
								   const PgpxPendingStatement *pending);

/*
 * pgpx_lease_return
 *		End a lease and free its record.
 *
 * A statement that runs on the lease is cancelled, and an open remote
 * transaction is rolled back before the reset.  The function waits for the end
 * of both, and for the answer to the reset, until operation_timeout has passed
 * or an interrupt is pending, so that the remote has released all locks.  It
 * does not wait if the process exits, for a statement of a call on a pool, and
 * for a reset without an open transaction.
 *
 * may_raise: the function may raise errors, and it reports an open transaction
 * or a statement in flight with a WARNING.
 */
extern void pgpx_lease_return(PgpxLease *lease, PgpxEnd end, bool may_raise);

/*
 * pgpx_lease_end_statement
 *		Cancel the statement that runs on the lease, and wait for the end of its
 *		answer and of the cancel request.
 *
 * The wait ends at the deadline, or if an interrupt is pending.  To be called
 * in callbacks: raise no error.
 */
extern void pgpx_lease_end_statement(PgpxLease *lease, PgpxTime deadline);

/*
 * Allocate the output buffer that the reset needs.  Without it, the return of a
 * lease with an open remote transaction closes the connection, if it happens in
 * a callback, which must not allocate memory.
 */
extern void pgpx_lease_reserve_reset(PgpxLease *lease);

/*
 * pgpx_lease_check_commit
 *		Raise an error if a lease that ends with the transaction has work that
 *		the commit would lose.
 *
 * Errors: 25001 if it has a statement in flight or an open remote transaction;
 * the error of the lease if it was revoked or its connection was lost.
 */
extern void pgpx_lease_check_commit(void);

/*
 * End all leases of session and transaction scope as by checkin, and return
 * their number.  Errors: 55000 if a lease is in use; then none ends.
 */
extern int	pgpx_lease_return_all(void);

/* For hooks.c: return the leases whose scope ends. */
extern void pgpx_lease_at_xact(XactEvent event);
extern void pgpx_lease_at_subxact(SubXactEvent event, SubTransactionId subid,
								  SubTransactionId parent);

/*
 * Register the exit callback of a session that may wait for or hold leases or
 * distributed locks.  Further calls do nothing.
 */
extern void pgpx_session_register_exit(void);

#endif							/* PGPX_LEASE_H */
