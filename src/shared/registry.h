/*-------------------------------------------------------------------------
 *
 * registry.h
 *	  The registry of pools and servers: lookup, versions, pause, retirement.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REGISTRY_H
#define PGPX_REGISTRY_H

#include "shared/conn_state.h"

/* The pool that a checkout requests from the registry. */
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
 * pgpx_pool_find
 *		Find or create the pool of a key.  Return its index and set *pool_id;
 *		-1 if all slots of the registry are in use.
 */
extern int	pgpx_pool_find(const PgpxPoolRef *ref, uint32 *pool_id);

/*
 * pgpx_pool_adopt_locked
 *		Set the options of the pool to those read from the catalogs.
 *
 * If only options that take effect in place have changed, connections stay.
 * Otherwise the pool gets a new version: connections of the old version are
 * closed, leased ones at checkin.
 */
extern void pgpx_pool_adopt_locked(PgpxPool *pool, const char *server_name,
								   const char *user_name,
								   const PgpxFingerprint *fingerprint,
								   const PgpxPoolOptions *opts);

/*
 * pgpx_choose_expiry
 *		Return when a connection expires; 0: never.
 *
 * This is after max_lifetime less a random part of up to a tenth, so that
 * connections of one age do not all expire together.
 */
extern PgpxTime pgpx_choose_expiry(PgpxTime opened_at, int64 max_lifetime_ms);

/*
 * pgpx_pool_set_options_locked
 *		Apply options that take effect in place.
 *
 * The fingerprint must have the pool's connection properties.  The worker
 * enforces the new options in its next round, as after a reload.
 */
extern void pgpx_pool_set_options_locked(PgpxPool *pool,
										 const PgpxFingerprint *fingerprint,
										 const PgpxPoolOptions *opts);

/*
 * pgpx_pool_forget_options_locked
 *		Make the next checkout, or a waiter, read the options again, because
 *		the order of two changes in place is unknown.  Connections stay.
 */
extern void pgpx_pool_forget_options_locked(PgpxPool *pool, PgpxWake *wake);

/*
 * pgpx_pool_retire_locked
 *		Retire a pool because the catalogs have changed how it connects.
 *		Connections are closed as after an option change, and the next
 *		checkout, or a waiter, reads the catalogs again.
 *
 * gone: no checkout can find the pool now, because its server, mapping or
 * user was dropped or a privilege was revoked.  It is removed, with its
 * statistics, as soon as it is empty.
 */
extern void pgpx_pool_retire_locked(PgpxPool *pool, bool gone, PgpxWake *wake);

/*
 * Return whether the pool's options are outdated, so that a session must read
 * them from the catalogs.
 */
extern bool pgpx_pool_needs_options_locked(const PgpxPool *pool);

/*
 * pgpx_pool_needs_reader
 *		Return whether the catalog reader must publish the conninfo of a pool.
 *
 * True if the worker lacks it and the pool has distributed locks or the option
 * min_size or min_idle.  False for a pool that logs in with SCRAM keys, because
 * the reader has none.
 *
 * copy: NULL, or set to a copy of the pool.
 */
extern bool pgpx_pool_needs_reader(int index, PgpxPool *copy);

/* Remove a pool if it is gone and empty. */
extern void pgpx_pool_remove_gone(int index, uint32 pool_id);

/*
 * Replace all connections, as after an option change, with the same options.
 */
extern void pgpx_pool_reconnect_locked(PgpxPool *pool);

/*
 * pgpx_server_set_paused
 *		Pause or resume all pools of a server, including future ones.
 *
 * drain: also close free connections.  Return false if there is no slot to
 * record the pause.
 */
extern bool pgpx_server_set_paused(Oid database, Oid server, bool pause,
								   bool drain);

/*
 * Store the paused servers of a database, at most max_pools, and return their
 * number.
 */
extern int	pgpx_server_list_paused(Oid database, Oid *servers);

/*
 * pgpx_resolver_slot
 *		Return the slot of the resolver of this database; NULL if it has none.
 * pgpx_resolver_slot_claim
 *		As pgpx_resolver_slot, but assign a free slot if there is none.  Return
 *		NULL if all are in use.
 */
extern PgpxResolverSlot *pgpx_resolver_slot(void);
extern PgpxResolverSlot *pgpx_resolver_slot_claim(void);

#endif							/* PGPX_REGISTRY_H */
