/*-------------------------------------------------------------------------
 *
 * formats.h
 *	  In which format the columns of a statement's result are asked for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_FORMATS_H
#define PGPX_FORMATS_H

#include "shmem.h"

/* A result of fewer rows is not worth it: binary costs more to begin with. */
#define PGPX_FORMATS_ROWS 100

/* The key of a statement of a pool; shape is the sink's. */
extern void pgpx_formats_key(PgpxFormatsKey *key, uint32 pool_id,
							 const char *sql, uint64 shape);

/*
 * pgpx_formats_find
 *		The formats to ask for, 0 text, 1 binary, and how many columns the result
 *		had; 0: nothing is known, or nothing is to be gained.
 */
extern int	pgpx_formats_find(const PgpxFormatsKey *key,
							  int16 formats[PGPX_FORMATS_COLUMNS]);

/*
 * pgpx_formats_note
 *		Remember them for all sessions; n 0: forget what was remembered.  Throws
 *		nothing.
 */
extern void pgpx_formats_note(const PgpxFormatsKey *key, int n,
							  const int16 *formats);

/*
 * Types whose binary form says the same as their text, on every server, whatever
 * the settings of either are.  Texts are not among them: their binary form is the
 * same bytes, and the receive functions take these to be in the encoding of the
 * local session's client.  Nor are types whose OID is not fixed.
 */
extern bool pgpx_formats_is_certain(Oid type);

/* Of these, those whose text is the same under all settings. */
extern bool pgpx_formats_is_plain(Oid type);

/* Types whose values are short, and their text hardly dearer than binary. */
extern bool pgpx_formats_is_small(Oid type);

/*
 * pgpx_formats_spare
 *		Of n columns that could be asked for in binary, ask for some as text where
 *		that saves the remote more than it costs.  small: those of a small type.
 *		Returns n; 0 if none is left.
 */
extern int	pgpx_formats_spare(int n, int16 *formats, const bool *small);

#endif							/* PGPX_FORMATS_H */
