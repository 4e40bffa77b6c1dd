/*-------------------------------------------------------------------------
 *
 * checkout_pool.h
 *	  Checkout: find the pool of a server spec, and publish its conninfo.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_POOL_H
#define PGPX_CHECKOUT_POOL_H

#include "session/checkout.h"

/* A checkout in progress. */
typedef struct PgpxCheckout
{
	PgpxServerSpec *spec;		/* pinned */
	PgpxHolder	holder;
	bool		only_try;
	PgpxTime	started;
	int64		timeout;		/* ms, for the error; 0: no limit */
	bool		no_wait;
	PgpxTime	deadline;		/* 0: none */
	uint64		position;		/* queue position to keep when enqueued
								 * again; 0: none yet */
	PgpxTime	waited;
	uint64		published_incarnation;	/* worker for which this checkout */
	uint64		published_version;	/* published this version of the conninfo */
	bool		stale;			/* the pool's options changed since the spec
								 * was read */
	const PgpxPendingStatement *pending;	/* to run on the lease; NULL:
											 * unknown */
	bool		prepared;		/* "pending" was prepared for a hand-over */
} PgpxCheckout;

/*
 * pgpx_checkout_lock_pool
 *		Find or create the pool of the server spec and lock it exclusively,
 *		with the spec's options in effect.
 *
 * Reads the catalogs again if the spec is out of date or its options differ
 * from the pool's.  Errors: those of pgpx_server_spec_get; 53300 too many
 * pools; 55000 this session holds a lease of another transaction's private
 * pool.
 */
extern PgpxPool *pgpx_checkout_lock_pool(PgpxCheckout *c);

/*
 * pgpx_checkout_refresh
 *		Read the catalogs again and replace the checkout's spec.
 *
 * Returns false if the spec now has another pool.  Then the queue position and
 * the published conninfo, which were for the old pool, are reset.
 */
extern bool pgpx_checkout_refresh(PgpxCheckout *c);

/*
 * Must the conninfo be published before a connection can be requested? The
 * caller must hold the pool lock or tolerate a stale answer.
 */
extern bool pgpx_checkout_must_publish(const PgpxCheckout *c,
									   const PgpxPool *pool,
									   uint64 incarnation);

/*
 * pgpx_checkout_publish
 *		Send the conninfo to the pool's worker.
 *
 * Acquires no lock.  Waits for room in the control socket, at most until the
 * checkout's deadline.  Errors: 54000 the options are too long.
 */
extern void pgpx_checkout_publish(PgpxCheckout *c, int worker,
								  uint64 incarnation,
								  uint64 version);

/*
 * pgpx_checkout_publish_if_missing
 *		Publish the conninfo if the pool's worker lacks it.
 *
 * The caller must hold the pool lock.  Returns true if the lock was released
 * for that; then the checkout must begin again.  Errors: as of
 * pgpx_checkout_publish.
 */
extern bool pgpx_checkout_publish_if_missing(PgpxCheckout *c, PgpxPool *pool);

/*
 * pgpx_checkout_publish_conninfo
 *		Send the conninfo to the pool's worker unless the worker has it.
 *
 * Creates the pool if there is none.  Waits while the control socket is full,
 * until the deadline (monotonic, not 0).
 */
extern void pgpx_checkout_publish_conninfo(PgpxServerSpec *spec,
										   PgpxTime deadline);

#endif							/* PGPX_CHECKOUT_POOL_H */
