/*-------------------------------------------------------------------------
 *
 * resolver.h
 *	  Host names to addresses, without stopping the worker's loop.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_RESOLVER_H
#define PGPX_RESOLVER_H

#include "compat.h"

typedef struct PgpxLookup PgpxLookup;

/*
 * pgpx_lookup_needed
 *		Does libpq's "host" (a list) name anything that the resolver would be
 *		asked for: not empty, no socket directory, no numeric address, and none
 *		beside it in "hostaddr" (NULL, or a list in which elements may be empty)?
 */
extern bool pgpx_lookup_needed(const char *host, const char *hostaddr);

/* Called in the loop; what it is told of is freed after it. */
typedef void (*PgpxLookupAnswer)(PgpxLookup *lookup);

/* For whom: a user of a database, whatever servers he makes. */
typedef struct PgpxLookupUser
{
	Oid			database;
	NameData	name;
} PgpxLookupUser;

/*
 * pgpx_lookup_start
 *		Look up a list of hosts, of those that have no address in hostaddr, with
 *		its list of ports.  Returns NULL, or why not: no thread could be started,
 *		or too many are running.  tag comes back with the answer.
 */
extern const char *pgpx_lookup_start(const PgpxLookupUser *user,
									 const char *host, const char *hostaddr,
									 const char *port, PgpxLookupAnswer answer,
									 uint64 tag);

/* Nobody waits for it any more: it ends with the name that it is at. */
extern void pgpx_lookup_give_up(PgpxLookupAnswer answer, uint64 tag);

extern uint64 pgpx_lookup_tag(const PgpxLookup *lookup);

/* NULL, or why nothing was found. */
extern const char *pgpx_lookup_error(const PgpxLookup *lookup);

/*
 * Lists for libpq's host, hostaddr and port, of equal length: each host once
 * for each of its addresses, in the order the resolver gave, or with its own.
 */
extern const char *pgpx_lookup_host(const PgpxLookup *lookup);
extern const char *pgpx_lookup_hostaddr(const PgpxLookup *lookup);
extern const char *pgpx_lookup_port(const PgpxLookup *lookup);

#endif							/* PGPX_RESOLVER_H */
