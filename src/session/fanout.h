/*-------------------------------------------------------------------------
 *
 * fanout.h
 *	  One statement on a connection of each of several pools, all at once.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_FANOUT_H
#define PGPX_FANOUT_H

#include "base/compat.h"

/*
 * pgpx_fanout
 *		Lease a connection of each server, send sql on all of them, and put the
 *		rows into the store as they come, the server's name first.
 *
 * The servers are leased in the order that is given, which has to be the same for
 * all callers: no two of them can then wait for each other.
 *
 * Errors: those of a checkout and of pgpx_exec, with the server in the context.
 * The first one ends the call: the other statements are cancelled.
 */
extern void pgpx_fanout(char **servers, int n, const char *sql, int nparams,
						const char *const *values, TupleDesc tupdesc,
						Tuplestorestate *store);

#endif							/* PGPX_FANOUT_H */
