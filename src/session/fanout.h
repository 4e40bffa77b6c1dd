/*-------------------------------------------------------------------------
 *
 * fanout.h
 *	  Run one statement on a connection of each of several pools,
 *	  concurrently.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_FANOUT_H
#define PGPX_FANOUT_H

#include "protocol/wire.h"

/*
 * pgpx_fanout
 *		Lease a connection of each server, send the statement on all of them,
 *		and store the rows as they arrive.  The first column of a row is the
 *		name of its server.
 *
 * Servers are leased in the given order.  All callers must use the same order,
 * so that no two of them can wait for each other.
 *
 * Errors: those of a checkout and of pgpx_exec, with the server in the context.
 * The first error ends the call: the other statements are cancelled.
 */
extern void pgpx_fanout(char **servers, int n, const PgpxStatement *statement,
						TupleDesc tupdesc, Tuplestorestate *store);

#endif							/* PGPX_FANOUT_H */
