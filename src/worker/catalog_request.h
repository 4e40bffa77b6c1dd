/*-------------------------------------------------------------------------
 *
 * catalog_request.h
 *	  Start the catalog reader.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CATALOG_REQUEST_H
#define PGPX_CATALOG_REQUEST_H

#include "shared/shmem.h"

/*
 * Starts the catalog reader if a pool of this worker needs it, or if a database
 * has not been visited since the start of the server.  Returns the time of the
 * next call, or PG_INT64_MAX if no call is needed before a pool changes or a
 * reader ends.
 */
extern PgpxTime pgpx_catalog_request(PgpxTime now);

/* Returns whether a reader that this worker had started has ended. */
extern bool pgpx_catalog_request_ended(void);

/*
 * Locks pg_database and its index for reading, without waiting.
 *
 * Another session may hold a lock on pg_database for long, for example a VACUUM
 * FULL that is queued behind a transaction that has read it.  Lookups in the
 * same transaction do not wait for these locks again.  The end of the
 * transaction releases them.
 */
extern bool pgpx_may_read_databases(void);

#endif							/* PGPX_CATALOG_REQUEST_H */
