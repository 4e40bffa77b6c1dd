/*-------------------------------------------------------------------------
 *
 * catalog_invalidation.h
 *	  Pools follow the catalogs: ALTER, DROP and REVOKE take effect at commit.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CATALOG_INVALIDATION_H
#define PGPX_CATALOG_INVALIDATION_H

#include "base/compat.h"

/* Hear of catalog changes; in the postmaster, so that every process does. */
extern void pgpx_catalog_invalidation_init(void);

/*
 * pgpx_catalog_note_own_pool
 *		This transaction makes a pool of its own, for what it has itself changed: it is
 *		retired at its end, in whichever way.  Pools of this kind have its number in
 *		their key, so nobody else finds them.
 */
extern void pgpx_catalog_note_own_pool(void);

#endif							/* PGPX_CATALOG_INVALIDATION_H */
