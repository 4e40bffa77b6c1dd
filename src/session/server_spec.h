/*-------------------------------------------------------------------------
 *
 * server_spec.h
 *	  Server specs: the resolved catalog entries of a server for a user, and
 *	  their cache.
 *
 * A target is what the catalogs say of one server for one user: the pool's key,
 * its options, and the connection parameters with their secrets.  It lives in
 * this session's private memory only.
 *
 * Reads a target from the catalogs, for server_spec.c and catalog_invalidation.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SERVER_SPEC_H
#define PGPX_SERVER_SPEC_H

#include "shared/shmem.h"

typedef struct PgpxServerSpec
{
	int			refcount;		/* the cache's and each lease's */
	bool		valid;			/* false: the catalogs have changed since */
	MemoryContext cxt;			/* holds this struct and all it points to */

	NameData	server_name;	/* as in the catalog */
	Oid			user;			/* the pool's, InvalidOid: shared by all of PUBLIC */
	NameData	user_name;
	PgpxPoolKey key;
	PgpxFingerprint fingerprint;
	PgpxPoolOptions opts;
	const char *start_commands; /* "" if none */
	const char *reset_command;
	bool		discards_all;	/* that is DISCARD ALL and nothing else */

	/* for PQconnectStartParams: NULL at the end of each */
	int			nparams;
	const char **keywords;
	const char **values;
	bool		need_password;	/* refuse a connection that used no password */

	/* where its pool was last found; checked against the pool_id under lock */
	int			pool;			/* index; -1: not looked up yet */
	uint32		pool_id;

	/* kept by lease_stream.c: the connection of this pool that was used last here */
	int			last_conn;		/* index; -1: none */
	uint64		last_conn_generation;
} PgpxServerSpec;

/*
 * pgpx_server_spec_get
 *		The target of a server for the current user (GetUserId()).
 *
 * Cached in this session; the cache hears of every change of servers, mappings,
 * wrappers, roles and memberships.  The result is valid until the next call of
 * pgpx_server_spec_get; pin it to keep it longer.
 *
 * Errors: 22004 (NULL is the caller's to check), 42704 no such server, base
 * server or mapping, 42501 no USAGE, 0A000 wrapper not supported, or an option
 * that a shared connection cannot have, 22023 and HV00D for what does not fit a
 * base server, 2F003 password required.
 */
extern PgpxServerSpec *pgpx_server_spec_get(const char *name);

extern void pgpx_server_spec_pin(PgpxServerSpec *spec);

/* Give up a pin; never throws. */
extern void pgpx_server_spec_unpin(PgpxServerSpec *spec);

/*
 * pgpx_server_spec_read
 *		Fill in a target for a server and a user, from the catalogs.
 *
 * The target is all zeros but for its memory context and the defaults of its
 * commands.  What it keeps is in that context; what is needed on the way is in
 * the current one.  Errors are those of pgpx_server_spec_get.
 */
extern void pgpx_server_spec_read(PgpxServerSpec *spec, const char *name,
								  Oid user);

/*
 * pgpx_server_spec_read_settings
 *		Read the options of a pool that take effect in place, for catalog_invalidation.c.
 *
 * base: the server with the connection options, the same one if it has no other.
 * False: there is no such server, or a value is not valid.  Raises nothing on account
 * of what the rows say, so that a commit cannot fail here.
 */
extern bool pgpx_server_spec_read_settings(Oid server, Oid base,
										   PgpxPoolOptions *opts);

#endif							/* PGPX_SERVER_SPEC_H */
