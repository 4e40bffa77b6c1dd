/*-------------------------------------------------------------------------
 *
 * handler.h
 *	  The handler of foreign tables on pools; attaching those of postgres_fdw.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_HANDLER_H
#define PGPX_HANDLER_H

#include "base/compat.h"

/*
 * Install the hooks that prevent DROP EXTENSION pgpool_ext from dropping
 * postgres_fdw with all its servers and tables.  Called once, when the library
 * is loaded.
 */
extern void pgpx_attach_init(void);

#endif							/* PGPX_HANDLER_H */
