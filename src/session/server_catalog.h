/*-------------------------------------------------------------------------
 *
 * server_catalog.h
 *	  The rows of the catalogs that a target is made of, for server_spec.c,
 *	  and for catalog_invalidation.c, which sees whether they are still the same.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SERVER_CATALOG_H
#define PGPX_SERVER_CATALOG_H

#include "session/server_spec.h"

#include "access/htup.h"
#include "utils/inval.h"

/* A server, as its row says. */
typedef struct PgpxServerRow
{
	Oid			oid;
	const char *name;
	Oid			owner;
	bool		own_wrapper;	/* pgpool_fdw */
	List	   *options;
} PgpxServerRow;

typedef struct PgpxServerRows
{
	PgpxServerRow pool;			/* as it was named: the pool's options */
	PgpxServerRow base;			/* libpq's options: base_server, or the same one */
	List	   *mapping_options;	/* of the base */
} PgpxServerRows;

static inline bool
pgpx_server_rows_have_base(const PgpxServerRows *rows)
{
	return rows->base.oid != rows->pool.oid;
}

/*
 * pgpx_server_catalog_read
 *		Look up server, base server and user mapping, and see that the user may.
 *
 * Fills in *source (in the current memory context), and the names, the key and
 * the fingerprint of the target.  Errors are those of pgpx_server_spec_get.
 */
extern void pgpx_server_catalog_read(PgpxServerSpec *spec, PgpxServerRows *rows,
									 const char *name, Oid user);

/*
 * pgpx_server_catalog_hash_server
 *		Hash what a server's row says that matters to a pool.
 *
 * "hash" covers what decides how to connect: name, owner and whether the owner is a
 * superuser, wrapper, options.  *settings covers the options that take effect in
 * place, and is never 0.  USAGE is in neither: it is checked at each use.
 */
extern void pgpx_server_catalog_hash_server(HeapTuple row, uint64 hash[2],
											uint64 *settings);

/*
 * pgpx_server_catalog_find_server
 *		Read the row of a server; false if there is none, or if its wrapper has no
 *		pools.  Never raises on account of what the row says.
 */
extern bool pgpx_server_catalog_find_server(Oid oid, PgpxServerRow *server);

/* The name of the role that a pool is for, as a hash. */
extern uint64 pgpx_server_catalog_hash_user(const char *name);

/*
 * pgpx_server_catalog_on_change
 *		Have a callback called when a catalog changes that any of this is read
 *		from.  It cannot be taken back.
 */
extern void pgpx_server_catalog_on_change(SyscacheCallbackFunction callback);

/*
 * Does a row of a user mapping name the remote user?  If it is PUBLIC's, one pool
 * serves all local users then.
 */
extern bool pgpx_server_catalog_names_user(HeapTuple row);

/* Can servers of this foreign-data wrapper have pools? */
extern bool pgpx_server_catalog_has_pools(Oid wrapper);

/* The value of an option; NULL if it is not there or empty, as for libpq. */
extern const char *pgpx_server_catalog_value(List *options, const char *name);

/*
 * This transaction has dropped a user mapping: PUBLIC's may be used in its place, in
 * which nothing was changed.
 */
extern bool pgpx_server_catalog_mapping_dropped;

#endif							/* PGPX_SERVER_CATALOG_H */
