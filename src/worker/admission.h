/*-------------------------------------------------------------------------
 *
 * admission.h
 *	  Eviction and admission where a limit over several pools binds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ADMISSION_H
#define PGPX_ADMISSION_H

#include "base/compat.h"

/*
 * How long a place is kept, whatever the options say, that others want; and how
 * often it is looked whether they do.
 */
#define PGPX_CONTENDED_KEEP_MS 10000
#define PGPX_CONTENDED_CHECK_MS 1000

/* See which pools a cap keeps hungry, and find them places.  True if any is. */
extern bool pgpx_admission_run(void);

#endif							/* PGPX_ADMISSION_H */
