/*-------------------------------------------------------------------------
 *
 * attach.h
 *	  Attach the foreign tables of postgres_fdw to pools, and detach them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ATTACH_H
#define PGPX_ATTACH_H

#include "base/compat.h"

/*
 * Install the hooks that prevent DROP EXTENSION pgpool_ext from dropping
 * postgres_fdw with all its servers and tables.  Called once, when the library
 * is loaded.
 */
extern void pgpx_attach_init(void);

#endif							/* PGPX_ATTACH_H */
