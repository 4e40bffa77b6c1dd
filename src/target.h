/*-------------------------------------------------------------------------
 *
 * target.h
 *	  From a server's name to everything a checkout needs to know of it.
 *
 * A target is what the catalogs say of one server for one user: the pool's key,
 * its options, and the connection parameters with their secrets.  It lives in
 * this session's private memory only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TARGET_H
#define PGPX_TARGET_H

#include "shmem.h"

typedef struct PgpxTarget
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

	/* kept by lease.c: the connection of this pool that was used last here */
	int			partner;		/* index; -1: none */
	uint64		partner_generation;
} PgpxTarget;

/*
 * pgpx_target_get
 *		The target of a server for the current user (GetUserId()).
 *
 * Cached in this session; the cache hears of every change of servers, mappings,
 * wrappers, roles and memberships.  The result is valid until the next call of
 * pgpx_target_get; pin it to keep it longer.
 *
 * Errors: 22004 (NULL is the caller's to check), 42704 no such server, base
 * server or mapping, 42501 no USAGE, 0A000 wrapper not supported, or an option
 * that a shared connection cannot have, 22023 and HV00D for what does not fit a
 * base server, 2F003 password required.
 */
extern PgpxTarget *pgpx_target_get(const char *name);

extern void pgpx_target_pin(PgpxTarget *target);

/* Give up a pin; never throws. */
extern void pgpx_target_unpin(PgpxTarget *target);

#endif							/* PGPX_TARGET_H */
