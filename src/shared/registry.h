/*-------------------------------------------------------------------------
 *
 * registry.h
 *	  Which pools and servers exist: lookup, versions, pause, retirement,
 *	  repair.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REGISTRY_H
#define PGPX_REGISTRY_H

#include "shared/conn_state.h"

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

/*
 * The same, but that options which take effect in place may differ: does the pool
 * connect as the fingerprint says?
 */
extern bool pgpx_pool_connects_alike_locked(const PgpxPool *pool,
											const PgpxFingerprint *fingerprint);

/* Is the pool current, and was the connection opened as it connects now? */
extern bool pgpx_conn_is_current_locked(const PgpxPool *pool,
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

/* Must a session read the options from the catalogs before the pool can go on? */
extern bool pgpx_pool_needs_options_locked(const PgpxPool *pool);

/* Some database was dropped: the workers shall look which pools have lost theirs. */
extern void pgpx_pool_request_database_check(void);

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
	return pool->asked_incarnation != 0 &&
		pool->asked_incarnation == pgpx_pool_worker_incarnation(pool);
}

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

#endif							/* PGPX_REGISTRY_H */
