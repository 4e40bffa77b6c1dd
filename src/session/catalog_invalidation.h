/*-------------------------------------------------------------------------
 *
 * catalog_invalidation.h
 *	  Apply catalog changes to pools: ALTER, DROP and REVOKE take effect
 *	  at commit.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CATALOG_INVALIDATION_H
#define PGPX_CATALOG_INVALIDATION_H

#include "base/compat.h"

/*
 * Register for catalog changes.  Called in the postmaster, so that every
 * process inherits it.
 */
extern void pgpx_catalog_invalidation_init(void);

/*
 * pgpx_catalog_note_private_pool
 *		Record that this transaction creates a private pool, for objects that
 *		it has changed itself.
 *
 * The pool is retired at the end of the transaction, whether it commits or
 * aborts.  Its key contains the transaction id, so no other session can find
 * it.
 */
extern void pgpx_catalog_note_private_pool(void);

/*
 * Compare the pools of this database with the catalogs at the end of this
 * transaction, as if it had changed them.
 */
extern void pgpx_catalog_request_check(void);

#endif							/* PGPX_CATALOG_INVALIDATION_H */
