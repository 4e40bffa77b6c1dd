/*-------------------------------------------------------------------------
 *
 * tuples_styles.h
 *	  Settings of either side that decide how the text of a value is read.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TUPLES_STYLES_H
#define PGPX_TUPLES_STYLES_H

#include "wire.h"

/*
 * pgpx_styles_check
 *		Can texts of the remote be read as this type?  0A000 if not: its DateStyle
 *		is not ISO, and they hold time zones.
 */
extern void pgpx_styles_check(const PgpxWire *wire, Oid type);

/* Set a setting here, until the level that was begun before ends (AtEOXact_GUC). */
extern void pgpx_styles_set(const char *name, const char *value);

/*
 * pgpx_styles_begin
 *		Set the styles here to what the remote's texts are in.  Returns the level
 *		to go back from with AtEOXact_GUC.
 */
extern int	pgpx_styles_begin(const PgpxWire *wire);

/*
 * pgpx_neutral_begin
 *		Set aside what would change or refuse a value here, for one row: between
 *		rows other code runs, and results of other leases are read.  Returns a
 *		level as above, 0 if all is as it should be.
 */
extern int	pgpx_neutral_begin(void);

#endif							/* PGPX_TUPLES_STYLES_H */
