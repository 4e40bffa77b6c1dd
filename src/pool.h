/*-------------------------------------------------------------------------
 *
 * pool.h
 *	  The registry of pools, and all that moves a connection in or out of one.
 *
 * These functions see shared memory only: no socket, no libpq, no catalog.
 * Functions named *_locked must be called with the pool's lock held, and assert it:
 * in exclusive mode, but for those that only read.  The others take it themselves.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_POOL_H
#define PGPX_POOL_H

#include "conn_state.h"
#include "shmem.h"

/*
 * Latches to set once the lock has been given up: a SetLatch is a kernel call,
 * and the lock is every session's.
 */
#define PGPX_WAKE_MAX 8
typedef struct PgpxWake
{
	int			n;
	int			procno[PGPX_WAKE_MAX];
} PgpxWake;

#define PGPX_WAKE_INIT {0}

/* Remember to wake a process; when the list is full, wake it at once. */
extern void pgpx_wake_add(PgpxWake *wake, int procno);
extern void pgpx_wake_flush(PgpxWake *wake);

/* Who takes a lease, or waits for one. */
typedef struct PgpxHolder
{
	int			procno;
	int			pid;
	Oid			user;
	Oid			database;
	int			scope;			/* PgpxScope */
	const char *why;			/* or NULL */
	const char *application_name;	/* or NULL */
} PgpxHolder;

/* What a checkout asks the registry for. */
typedef struct PgpxPoolRef
{
	PgpxPoolKey key;
	PgpxFingerprint fingerprint;
	const PgpxPoolOptions *opts;
	const char *database_name;
	const char *server_name;
	Oid			user;
	const char *user_name;
} PgpxPoolRef;

/* --- registry.c ----------------------------------------------------------- */

/*
 * pgpx_pool_lock
 *		Lock pool "index" if it still is the one with this id.
 *
 * Returns NULL, without the lock, if it is another by now.
 */
extern PgpxPool *pgpx_pool_lock(int index, uint32 pool_id);

/*
 * pgpx_pool_find
 *		Find or make the pool of a key.  Returns its index and sets *pool_id;
 *		-1 if the registry is full of pools that are in use.
 */
extern int	pgpx_pool_find(const PgpxPoolRef *ref, uint32 *pool_id);

/* Does the pool run under the options that this fingerprint stands for? */
extern bool pgpx_pool_is_current_locked(const PgpxPool *pool,
										const PgpxFingerprint *fingerprint);

/*
 * The same, but that options which take effect in place may differ: does the pool
 * connect as the fingerprint says?
 */
extern bool pgpx_pool_connects_alike_locked(const PgpxPool *pool,
											const PgpxFingerprint *fingerprint);

/* Is the pool current, and was the connection opened as it connects now? */
extern bool pgpx_pool_leads_to_locked(const PgpxPool *pool,
									  const PgpxConn *conn,
									  const PgpxFingerprint *fingerprint);

/*
 * pgpx_pool_adopt_locked
 *		Make options that were read from the catalogs those of the pool.
 *
 * If only options changed that take effect in place, connections stay.  Otherwise
 * the pool has a new version: connections of the old one close, leased ones at
 * checkin.
 */
extern void pgpx_pool_adopt_locked(PgpxPool *pool, const char *server_name,
								   const char *user_name,
								   const PgpxFingerprint *fingerprint,
								   const PgpxPoolOptions *opts);

/*
 * pgpx_pool_set_options_locked
 *		Apply options that take effect in place.
 *
 * The fingerprint must agree with the pool's on how to connect.  The worker
 * enforces the new options in its next round, as after a reload.
 */
extern void pgpx_pool_set_options_locked(PgpxPool *pool,
										 const PgpxFingerprint *fingerprint,
										 const PgpxPoolOptions *opts);

/*
 * pgpx_pool_forget_options_locked
 *		Have the next checkout, or a waiter, read the options again; connections
 *		stay.  For changes in place whose order is not known.
 */
extern void pgpx_pool_forget_options_locked(PgpxPool *pool, PgpxWake *wake);

/*
 * pgpx_pool_retire_locked
 *		How to connect has changed in the catalogs: connections close as with new
 *		options, and the next checkout, or a waiter, reads the catalogs again.
 *
 * gone: no checkout will find the pool as things are, since its server, its mapping
 * or its user is gone, or a right is.  It is forgotten, with its statistics, as soon
 * as it is empty.
 */
extern void pgpx_pool_retire_locked(PgpxPool *pool, bool gone, PgpxWake *wake);
extern bool pgpx_pool_is_retired_locked(const PgpxPool *pool);

/* Must a session read the options from the catalogs before the pool can go on? */
extern bool pgpx_pool_needs_options_locked(const PgpxPool *pool);

/* Some database was dropped: the workers shall look which pools have lost theirs. */
extern void pgpx_pool_ask_for_databases(void);

/* Is the pool retired and empty?  Then the worker needs none of its secrets. */
extern bool pgpx_pool_has_ended_locked(const PgpxPool *pool);

/* Free the place of a pool that has ended, if it is gone. */
extern void pgpx_pool_forget(int index, uint32 pool_id);

/* New connections for old: as with new options, which stay the same. */
extern void pgpx_pool_reconnect_locked(PgpxPool *pool);

/*
 * pgpx_server_pause
 *		Pause or resume all pools of a server, also those to come.  drain: what
 *		is free is closed, too.  False: there is no place to keep that in.
 */
extern bool pgpx_server_pause(Oid database, Oid server, bool pause, bool drain);

/* The paused servers of a database, at most max_pools; how many they are. */
extern int	pgpx_server_list_paused(Oid database, Oid *servers);

/* Do checkouts from this pool queue, whatever is free? */
static inline bool
pgpx_pool_is_paused(const PgpxPool *pool)
{
	return pg_atomic_read_u32(&pgpx_servers[pool->server].paused) != 0;
}

static inline bool
pgpx_pool_is_draining(const PgpxPool *pool)
{
	return pg_atomic_read_u32(&pgpx_servers[pool->server].draining) != 0;
}

/*
 * Has the worker asked those who wait to tell it the conninfo, and nobody has done
 * so yet?  It would only find out the same again, and again.
 */
static inline bool
pgpx_pool_conninfo_awaited(const PgpxPool *pool)
{
	return pool->asked_epoch != 0 &&
		pool->asked_epoch == pgpx_pool_worker_epoch(pool);
}

/* --- pool.c --------------------------------------------------------------- */

/*
 * Connections of the pool in any state, but for broken ones: what counts against its
 * size.
 */
extern int	pgpx_pool_total_locked(const PgpxPool *pool);

/* Most connections that the pool may have: pool_size and max_overflow. */
extern int	pgpx_pool_cap_locked(const PgpxPool *pool);

/* What min_size comes to under that cap. */
extern int	pgpx_pool_min_size_locked(const PgpxPool *pool);

/* Connections that are open: some session could use them sooner or later. */
extern int	pgpx_pool_live_locked(const PgpxPool *pool);

/*
 * pgpx_pool_must_test_locked
 *		Has a ready connection been idle for so long that it must be tested first?
 *		Not if it was tested just now for somebody who came at "since", whatever
 *		the period.
 */
extern bool pgpx_pool_must_test_locked(const PgpxPool *pool,
									   const PgpxConn *conn, PgpxTime since,
									   PgpxTime now);

/*
 * pgpx_pool_pick_locked
 *		Return the free connection to lease next, NULL if there is none: the
 *		caller's last used one where that serves it and the pool, else the first by
 *		strategy.  A pending reset is no reason to prefer another one with lifo.
 *		since: when the caller came, who is content with a test after it.
 *		now: the clock, as it was read for something else a moment ago.
 *		Connections found to have hung up, or to be stale, are closed on the way; where
 *		all that are ready must be tested, that begins.
 */
extern PgpxConn *pgpx_pool_pick_locked(PgpxPool *pool, int partner,
									   uint64 partner_generation,
									   PgpxTime since, PgpxTime now);

/*
 * pgpx_pool_take_locked
 *		Lease a free connection: returns the lease's id, which never repeats; 0 if
 *		the pool is out of service.
 */
extern uint64 pgpx_pool_take_locked(PgpxPool *pool, PgpxConn *conn,
									const PgpxHolder *holder, PgpxTime now,
									PgpxTime waited);

/*
 * pgpx_pool_grow_locked
 *		Begin a test for each waiter, of what is ready and must be tested; and ask
 *		for as many new connections as there are waiters that no connection
 *		now on its way will serve, and "extra" ones, within pool_size and
 *		max_connections, and not while a back-off runs.  Returns how many.
 */
extern int	pgpx_pool_grow_locked(PgpxPool *pool, int extra);

/* The same, but that caps over several pools do not count, and nothing is done. */
extern int	pgpx_pool_wanted_locked(const PgpxPool *pool, int extra);

/*
 * pgpx_pool_queued_locked
 *		Return how many waiters have to wait for a lease to end, because no connection
 *		is on its way to them: none that is being opened, reset or tested, and no
 *		place for a new one that is empty or about to be.
 */
extern int	pgpx_pool_queued_locked(PgpxPool *pool);

/* Wake all waiters, who have to look at something again. */
extern void pgpx_pool_wake_waiters_locked(const PgpxPool *pool, PgpxWake *wake);

/* Hand free connections to the first waiters. */
extern void pgpx_pool_serve_locked(PgpxPool *pool, PgpxWake *wake);

/* --- pool_give.c ---------------------------------------------------------- */

/* How a lease ends; each has its counter. */
typedef enum PgpxEnd
{
	PGPX_END_CHECKIN,
	PGPX_END_DISCARD,
	PGPX_END_RECLAIMED,			/* the holder ended without a checkin */
	PGPX_END_RETRIED,			/* it had died while idle; nobody has used it */
	PGPX_END_TERMINATED,
	PGPX_END_TIMEOUT
} PgpxEnd;

/* In which condition the connection comes back. */
typedef enum PgpxGive
{
	PGPX_GIVE_CLEAN,			/* idle, nothing owed */
	PGPX_GIVE_DIRTY,			/* idle, used, and no reset is wanted now */
	PGPX_GIVE_OWED,				/* the reset has been sent */
	PGPX_GIVE_ROLLED_BACK,		/* ROLLBACK has been sent, and no reset */
	PGPX_GIVE_AS_IT_WAS,		/* nothing was read or sent since it was taken */
	PGPX_GIVE_RESET,			/* the worker is to reset it */
	PGPX_GIVE_CANCEL,			/* a cancel is in flight; reset it after that */
	PGPX_GIVE_CANCEL_CLOSE,		/* the worker is to cancel and then close */
	PGPX_GIVE_CLOSE
} PgpxGive;

/* What was done on the lease, to add to the pool's counters. */
typedef struct PgpxUsage
{
	uint64		statements;
	uint64		polled;			/* waits without a sleep */
	uint64		rows;
	uint64		errors;
	uint64		bytes_received;
	uint64		bytes_sent;
	uint64		resets;
} PgpxUsage;

/*
 * pgpx_pool_note_end_locked
 *		Wake the worker if the pool has ended, so that it wipes the pool's secrets
 *		at once, and forgets the pool if it is gone.
 */
extern void pgpx_pool_note_end_locked(PgpxPool *pool);

/*
 * pgpx_pool_forget_lessee
 *		What a process has left on connections that it no longer leases is not its
 *		own any more: as if somebody else came, though it may be the same one.
 */
extern void pgpx_pool_forget_lessee(int procno, int pid);

/*
 * pgpx_pool_give
 *		End a lease and return its connection.
 *
 * owed: the PGPX_SENT_* bits of what was sent, see wire.h.  reason: with the
 * closing ones, why.  Returns false if the lease was no longer the caller's
 * (revoked meanwhile); then nothing is done.  Never throws, never waits: fit
 * for exit and transaction callbacks.
 */
extern bool pgpx_pool_give(PgpxConn *conn, uint64 lease_id, PgpxEnd end,
						   PgpxGive give, int owed, PgpxCloseReason reason,
						   const PgpxUsage *usage);

/* What a granter sends for a waiter: its own copy, since the waiter may leave. */
typedef struct PgpxCarry
{
	PgpxTicket *ticket;
	uint64		lease_id;		/* the waiter's */
	uint32		offer;			/* PgpxTicket.offer until it is sent */
	uint32		len;
	char		messages[PGPX_OFFER_MAX];
} PgpxCarry;

/*
 * pgpx_pool_carry
 *		End a lease by handing its connection to the first in the queue, who has
 *		offered a statement: the caller sends that now, and then calls
 *		pgpx_ticket_sent.  reset: it sends a reset ahead of it, or not, as the
 *		options say that the fingerprint stands for.
 *
 * Returns true and fills in *carry; false if there is no such ticket, or the
 * connection is not to be used again, or the pool's options are no longer the
 * caller's, or not the ticket's, or the lease is not the caller's any more: then
 * nothing is done.
 */
extern bool pgpx_pool_carry(PgpxConn *conn, uint64 lease_id,
							const PgpxFingerprint *fingerprint, bool reset,
							const PgpxUsage *usage, PgpxCarry *carry);

/*
 * pgpx_pool_revoke_locked
 *		Take a lease away from its holder: the connection goes to CANCELLING, to
 *		be closed, or to CLOSING if the worker ends; the holder finds the reason
 *		at its next call.
 */
extern void pgpx_pool_revoke_locked(PgpxPool *pool, PgpxConn *conn,
									PgpxRevoke revoke, PgpxWake *wake);

/* --- pool.c: what any of these may do to a connection ---------------------- */

/* Must this pool leave its places to others, who have waited longer? */
extern bool pgpx_pool_must_give_way_locked(PgpxPool *pool);

/*
 * pgpx_pool_close_locked
 *		Have the worker close a connection.  False if the pool is out of service.
 */
extern bool pgpx_pool_close_locked(PgpxPool *pool, PgpxConn *conn,
								   PgpxCloseReason reason);

/* The same with all that are free. */
extern void pgpx_pool_close_free_locked(PgpxPool *pool,
										PgpxCloseReason reason);

/*
 * Close what is free beyond pool_size and max_overflow, which were lowered; the least
 * recently used first.
 */
extern void pgpx_pool_trim_locked(PgpxPool *pool);

/* --- pool_damage.c -------------------------------------------------------- */

/*
 * pgpx_pool_condemn_locked
 *		Take a pool out of service because its shared state is wrong.  format: a
 *		sentence that says what is wrong.  The first reason is kept.
 */
extern void pgpx_pool_condemn_locked(PgpxPool *pool, const char *format, ...)
	pg_attribute_printf(2, 3);

/*
 * pgpx_pool_rebuild_locked
 *		End all leases of a damaged pool and free all its slots.  The caller is its
 *		worker, which shuts down every socket of the pool, or none is open.
 */
extern void pgpx_pool_rebuild_locked(PgpxPool *pool, PgpxWake *wake);

/* A worker that starts puts its damaged pools back into service, rebuilt. */
extern void pgpx_pool_restore_damaged(int worker);

/* A worker that restarts because of its damaged pools says in the log why. */
extern void pgpx_pool_log_damage(int worker);

/* Why a connection could not be opened, in last_error; checkout_error.c adds figures. */
#define PGPX_NO_DESCRIPTOR "the pool worker has too many open descriptors"

/* --- pool_worker.c: what the worker has done ------------------------------- */

/* CONNECTING -> IDLE; the caller has filled in the remote_* fields. */
extern void pgpx_pool_opened(PgpxPool *pool, PgpxConn *conn,
							 PgpxTime connect_time);

typedef enum PgpxConnectFailure
{
	PGPX_FAILED,
	PGPX_FAILED_RUNNING,		/* the start commands may still be running */
	PGPX_FAILED_FULL			/* the remote has no room for one more */
} PgpxConnectFailure;

/*
 * pgpx_pool_connect_failed
 *		CONNECTING -> FREE, or CANCELLING if something may still be running.  If
 *		the pool has no live connection, every ticket with a number under
 *		"before" fails with this reason; not if the remote is full while another
 *		pool of the server has connections.  Starts or doubles the back-off; those
 *		that were under way when the last one failed share its pause.
 */
extern void pgpx_pool_connect_failed(PgpxPool *pool, PgpxConn *conn,
									 uint64 before, PgpxConnectFailure how,
									 int sqlstate, const char *text);

/* Is the remote full, with connections of other pools of the server? */
extern bool pgpx_pool_is_crowded_out_locked(const PgpxPool *pool);

/*
 * pgpx_pool_attempt_outdated
 *		An attempt of another version than the pool's is given up: CONNECTING ->
 *		FREE without a failure, or CANCELLING if its start commands may be running;
 *		who waits is served.
 */
extern void pgpx_pool_attempt_outdated(PgpxPool *pool, PgpxConn *conn,
									   bool running);

/*
 * pgpx_pool_conninfo_missing
 *		The worker was asked to connect and does not know how (it is a new one,
 *		or the options have changed since): CONNECTING -> FREE without a failure,
 *		and every waiter is woken to send the conninfo.
 */
extern void pgpx_pool_conninfo_missing(PgpxPool *pool, PgpxConn *conn);

/* The worker has taken in the conninfo of a version: who waits is served. */
extern void pgpx_pool_conninfo_known(PgpxPool *pool, uint64 epoch,
									 uint64 version);

/*
 * pgpx_pool_begin_reset
 *		OWED -> RESETTING, so that the worker reads the answer; false if it is
 *		not OWED any more.  *owed is how many answers.
 */
extern bool pgpx_pool_begin_reset(PgpxPool *pool, PgpxConn *conn, int *owed);

/*
 * RESETTING -> IDLE if ok, else -> CLOSING; by way of CANCELLING if it was late,
 * since it may still run over there.
 */
extern void pgpx_pool_reset_done(PgpxPool *pool, PgpxConn *conn, bool ok,
								 bool late);

/*
 * pgpx_pool_cancel_done
 *		The cancel connection has closed: clears the mark.  CANCELLING goes on
 *		to RESETTING, or to CLOSING if the cancel did not come to an end (ok is
 *		false); if it was given up in mid-query it stays until the worker finds
 *		the remote at rest.  Returns the new state.
 *
 * sent: a request was sent on it.  If that one did not come to an end, the cancel is
 * lost, whatever the state.
 */
extern int	pgpx_pool_cancel_done(PgpxPool *pool, PgpxConn *conn, bool sent,
								  bool ok);

/* CHECKING -> IDLE if it has answered, else -> CLOSING. */
extern void pgpx_pool_check_done(PgpxPool *pool, PgpxConn *conn, bool ok);

/*
 * pgpx_pool_lost
 *		The remote session of a connection has ended.
 *
 * A leased connection stays its holder's, who has the last words of the remote still
 * to read, but it is broken from now on: it counts neither for the size of the pool
 * nor for max_server_connections, so that another one can be opened in its stead.
 * Under max_connections its slot counts until the lease ends.  In any other state it
 * closes.
 */
extern void pgpx_pool_lost(PgpxPool *pool, PgpxConn *conn);

/* any open state -> CLOSING. */
extern void pgpx_pool_close(PgpxPool *pool, PgpxConn *conn,
							PgpxCloseReason reason);

/* CLOSING -> FREE: the descriptor is gone; replaced if somebody waits. */
extern void pgpx_pool_closed(PgpxPool *pool, PgpxConn *conn);

/* --- pool_evict.c --------------------------------------------------------- */

/* How long the connections of other pools must be unused to yield to min_size. */
#define PGPX_EVICT_UNUSED_US (1000 * 1000)

typedef enum PgpxEvict
{
	PGPX_EVICT_ANY,				/* for waiters: any free connection */
	PGPX_EVICT_SURPLUS,			/* for prewarm, and for waiters where there is one: of
								 * a pool above its min_size */
	PGPX_EVICT_UNUSED_SURPLUS	/* for min_size: .. unused for a while, too; else it
								 * and the calls of another pool would take the
								 * place from each other all the time */
} PgpxEvict;

/*
 * pgpx_pool_binding_cap_locked
 *		Return the cap over several pools that keeps the pool from opening what it
 *		wants (pgpx_pool_wanted_locked); NULL: none does, or it wants nothing.
 */
extern PgpxCap *pgpx_pool_binding_cap_locked(const PgpxPool *pool, int extra);

/*
 * pgpx_pool_evict
 *		Close the free connection, in another pool than "beneficiary" and under the
 *		same cap, that was used longest ago.  same_server: the cap is the server's.
 *
 * Returns whether a place is about to come free; one that is closing already counts.
 * The caller must hold no pool lock.
 */
extern bool pgpx_pool_evict(int beneficiary, bool same_server,
							PgpxEvict which);

/* --- pool_maintain.c ------------------------------------------------------ */

/*
 * pgpx_pool_maintain
 *		What time brings: connections that have expired, have been idle for too
 *		long or are no longer needed are closed, those that min_size wants are
 *		asked for.  Returns when the next thing is due, PG_INT64_MAX: nothing.
 *		*ended: it is retired and empty; see pgpx_pool_forget.
 */
extern PgpxTime pgpx_pool_maintain(int index, uint32 pool_id, PgpxTime now,
								   bool *ended);

/*
 * pgpx_pool_server_surplus_locked
 *		How many connections all pools of the server have open beyond
 *		max_server_connections, if that was lowered: those that are closing already
 *		do not count.  An estimate, since only this pool is locked.
 */
extern int	pgpx_pool_server_surplus_locked(const PgpxPool *pool);

/* May a connection that has expired be closed now, or has another just been? */
extern bool pgpx_pool_may_expire_locked(const PgpxPool *pool, PgpxTime now,
										PgpxTime *due);

#endif							/* PGPX_POOL_H */
