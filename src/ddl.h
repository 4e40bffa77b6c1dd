/*-------------------------------------------------------------------------
 *
 * ddl.h
 *	  Pools follow the catalogs: ALTER, DROP and REVOKE take effect at commit.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DDL_H
#define PGPX_DDL_H

#include "shmem.h"

/* Hear of catalog changes; in the postmaster, so that every process does. */
extern void pgpx_ddl_init(void);

/*
 * pgpx_ddl_note_uncommitted
 *		This transaction is about to use a pool under options that it has itself
 *		changed: unless it commits the pool is retired at its end.
 */
extern void pgpx_ddl_note_uncommitted(int pool, uint32 pool_id);

#endif							/* PGPX_DDL_H */
