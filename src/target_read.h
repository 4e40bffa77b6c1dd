/*-------------------------------------------------------------------------
 *
 * target_read.h
 *	  Reads a target from the catalogs, for target.c and ddl.c.
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

/*
 * pgpx_target_read_settings
 *		Read the options of a pool that take effect in place, for ddl.c.
 *
 * base: the server with the connection options, the same one if it has no other.
 * False: there is no such server, or a value is not valid.  Raises nothing on account
 * of what the rows say, so that a commit cannot fail here.
 */
extern bool pgpx_target_read_settings(Oid server, Oid base,
									  PgpxPoolOptions *opts);

#endif							/* PGPX_TARGET_READ_H */
