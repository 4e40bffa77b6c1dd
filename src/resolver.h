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
 *		asked for: not empty, no socket directory, no numeric address?
 */
extern bool pgpx_lookup_needed(const char *host);

/* The descriptor that becomes readable when a look-up has ended; -1 on error. */
extern int	pgpx_lookup_init(void);

/*
 * pgpx_lookup_start
 *		Look up a list of hosts with its list of ports.  NULL: no thread could
 *		be started, or too many are running.  tag comes back with the answer.
 */
extern PgpxLookup *pgpx_lookup_start(const char *host, const char *port,
									 uint64 tag);

/*
 * pgpx_lookup_next
 *		A look-up that has ended, NULL if there is none.  The caller frees it.
 */
extern PgpxLookup *pgpx_lookup_next(void);

extern uint64 pgpx_lookup_tag(const PgpxLookup *lookup);

/* NULL, or why nothing was found. */
extern const char *pgpx_lookup_error(const PgpxLookup *lookup);

/*
 * Lists for libpq's host, hostaddr and port, of equal length: each host once
 * for each of its addresses, in the order the resolver gave.
 */
extern const char *pgpx_lookup_host(const PgpxLookup *lookup);
extern const char *pgpx_lookup_hostaddr(const PgpxLookup *lookup);
extern const char *pgpx_lookup_port(const PgpxLookup *lookup);

extern void pgpx_lookup_free(PgpxLookup *lookup);

#endif							/* PGPX_RESOLVER_H */
