/*-------------------------------------------------------------------------
 *
 * dblink.h
 *	  One-shot calls of dblink on pools.
 *
 * pgpool.attach_dblink replaces the C functions of dblink(connection, sql) and
 * dblink_exec(connection, sql) by those in call.c.  Each call runs on a pool, or
 * is passed to dblink's own function.
 *
 * Implemented by attach.c (attaching and detaching), call.c (a call on a pool)
 * and identity.c (whether a pool has the same remote user and database).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DBLINK_H
#define PGPX_DBLINK_H

#include "shared/shmem.h"

/* Return a C function of dblink.  Errors: 58P01 its library is missing. */
extern PGFunction pgpx_dblink_function(const char *symbol);

/*
 * pgpx_dblink_find_server
 *		Return the server whose pool can run a call of the current user.
 *
 * connection: the first argument of the call.  Return NULL if the call must be
 * passed to dblink, and set *outcome to the reason.  *only_pool is set for a
 * server with base_server: dblink cannot connect to it.
 */
extern const char *pgpx_dblink_find_server(const char *connection,
										   bool *only_pool,
										   PgpxDblinkOutcome *outcome);

/*
 * Return whether the result of the last pgpx_dblink_find_server is still valid:
 * no catalog from which it was read has changed.
 */
extern bool pgpx_dblink_is_current(void);

/* Before an object is dropped: refuse pgpool_ext while dblink is attached. */
extern void pgpx_dblink_check_drop(Oid classId, Oid objectId);

#endif							/* PGPX_DBLINK_H */
