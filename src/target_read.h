/*-------------------------------------------------------------------------
 *
 * target_read.h
 *	  Reads a target from the catalogs, for target.c alone.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TARGET_READ_H
#define PGPX_TARGET_READ_H

#include "target.h"

/*
 * pgpx_target_read
 *		Fill in a target for a server and a user, from the catalogs.
 *
 * The target is all zeros but for its memory context and the defaults of its
 * commands.  What it keeps is in that context; what is needed on the way is in
 * the current one.  Errors are those of pgpx_target_get.
 */
extern void pgpx_target_read(PgpxTarget *target, const char *name, Oid user);

#endif							/* PGPX_TARGET_READ_H */
