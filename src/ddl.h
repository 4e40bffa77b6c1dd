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

#endif							/* PGPX_DDL_H */
