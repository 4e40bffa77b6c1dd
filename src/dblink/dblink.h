/*-------------------------------------------------------------------------
 *
 * dblink.h
 *	  One-shot calls of dblink on pools.
 *
 * pgpool.attach_dblink replaces the C functions of dblink(connection, sql) and
 * dblink_exec(connection, sql) by those in call.c.  Each call runs on a pool, or
 * is passed to dblink's own function.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DBLINK_H
#define PGPX_DBLINK_H

#include "shared/shmem.h"

/* Before an object is dropped: refuse pgpool_ext while dblink is attached. */
extern void pgpx_dblink_check_drop(Oid classId, Oid objectId);

#endif							/* PGPX_DBLINK_H */
