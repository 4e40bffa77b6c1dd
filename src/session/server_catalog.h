/*-------------------------------------------------------------------------
 *
 * server_catalog.h
 *	  The catalog rows from which a server spec is built, for
 *	  server_spec.c, and for catalog_invalidation.c, which checks whether
 *	  they have changed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SERVER_CATALOG_H
#define PGPX_SERVER_CATALOG_H

#include "session/server_spec.h"

#include "access/htup.h"
#include "utils/inval.h"

/* A row of pg_foreign_server. */
typedef struct PgpxServerRow
{
	Oid			oid;
	const char *name;
	Oid			owner;
	bool		own_wrapper;	/* its wrapper is pgpool_fdw */
	List	   *options;
} PgpxServerRow;

typedef struct PgpxServerRows
{
	PgpxServerRow pool;			/* the named server: options of the pool */
	PgpxServerRow base;			/* base_server, or the same: libpq's options */
	List	   *mapping_options;	/* of the base */
} PgpxServerRows;

static inline bool
pgpx_server_rows_have_base(const PgpxServerRows *rows)
{
	return rows->base.oid != rows->pool.oid;
}

/*
 * pgpx_server_catalog_read
 *		Look up server, base server and user mapping, and check the user's
 *		permissions.
 *
 * Fills in *rows (allocated in the current memory context), and the names, the
 * key and the fingerprint of the spec.  Errors are those of
 * pgpx_server_spec_get.
 */
extern void pgpx_server_catalog_read(PgpxServerSpec *spec, PgpxServerRows *rows,
									 const char *name, Oid user);

/*
 * pgpx_server_catalog_hash_server
 *		Hash the contents of a server's row that matter to a pool.
 *
 * "hash" covers the properties of connections: name, owner and whether the owner is a
 * superuser, wrapper, options.  *settings covers the options that take effect
 * in place, and is never 0.  Neither covers USAGE, which is checked at each
 * use.
 */
extern void pgpx_server_catalog_hash_server(HeapTuple row, uint64 hash[2],
											uint64 *settings);

/*
 * pgpx_server_catalog_find_server
 *		Read the row of a server.  Returns false if it does not exist, or if
 *		its wrapper cannot have pools.  Never raises an error because of the
 *		contents of the row.
 */
extern bool pgpx_server_catalog_find_server(Oid oid, PgpxServerRow *server);

/* Hash the name of the role that a pool is for. */
extern uint64 pgpx_server_catalog_hash_user(const char *name);

/*
 * pgpx_server_catalog_on_change
 *		Register a callback for changes of any catalog from which a spec is
 *		read.  It cannot be unregistered.
 */
extern void pgpx_server_catalog_on_change(SyscacheCallbackFunction callback);

/*
 * Return whether a row of a user mapping names the remote user.  If a mapping
 * of PUBLIC does, all local users share one pool.
 */
extern bool pgpx_server_catalog_names_user(HeapTuple row);

/*
 * The SCRAM keys of this session, for a login with use_scram_passthrough, in
 * base64.  The caller wipes them.
 */
typedef struct PgpxScramKeys
{
	char		client[64];
	char		server[64];
} PgpxScramKeys;

/* Prepare the digests of keys; once, in the postmaster. */
extern void pgpx_scram_init(void);

/*
 * pgpx_scram_find_keys
 *		Return the keys of this session, and enter their role and digest into
 *		the spec's key.
 *
 * Returns false if the session has none, because it did not log in by SCRAM or
 * is a background worker.  Errors: 0A000 before PostgreSQL 18, 28000 the role's
 * password has changed since the login.
 */
extern bool pgpx_scram_find_keys(PgpxServerSpec *spec, PgpxScramKeys *keys);

/* Return whether the keys of a pool are those of the role's password. */
extern bool pgpx_scram_is_current(const PgpxPoolKey *key);

/* Return whether servers of this foreign-data wrapper can have pools. */
extern bool pgpx_server_catalog_has_pools(Oid wrapper);

/*
 * Return the value of an option, or NULL if it is missing or empty, which is
 * the same for libpq.
 */
extern const char *pgpx_server_catalog_value(List *options, const char *name);

/*
 * Return whether this transaction has dropped a user mapping.  The mapping of
 * PUBLIC may now apply in its place, although its row was not changed.
 */
extern bool pgpx_server_catalog_mapping_dropped;

#endif							/* PGPX_SERVER_CATALOG_H */
