/*-------------------------------------------------------------------------
 *
 * catalog_reader.h
 *	  The catalog reader: a short-lived background worker that publishes the
 *	  conninfo of pools.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CATALOG_READER_H
#define PGPX_CATALOG_READER_H

#include "base/compat.h"

/*
 * Entry point of the background worker that worker/catalog_request.c starts.
 * arg: OID of the database.
 */
PGDLLEXPORT extern void pgpx_catalog_reader_main(Datum arg);

#endif							/* PGPX_CATALOG_READER_H */
