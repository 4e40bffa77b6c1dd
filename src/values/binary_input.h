/*-------------------------------------------------------------------------
 *
 * binary_input.h
 *	  Results in binary: which columns are requested so, and how they are
 *	  read.
 *
 * Binary values that are read without their receive functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_BINARY_INPUT_H
#define PGPX_BINARY_INPUT_H

#include "shared/shmem.h"
#include "protocol/wire.h"

/*
 * Binary costs a call so many ns to begin with, of both sides: Parse, Bind and
 * Describe instead of Query.  A result that has less to gain comes as text.
 */
#ifndef PGPX_FORMATS_WORTH		/* test/bench/formats: 1 */
#define PGPX_FORMATS_WORTH 6000
#endif

/* The key of a statement of a pool; shape is the sink's. */
extern void pgpx_formats_key(PgpxFormatsKey *key, uint32 pool_id,
							 const char *sql, uint64 types_hash);

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
 * pgpx_formats_gain
 *		By how many ns a value of a type is cheaper in binary, of both sides
 *		together; 0: it has to come as text.
 *
 * The others are types whose binary form says the same as their text, on every
 * server, whatever the settings of either are.  Texts are not among them: their
 * binary form is the same bytes, and the receive functions take these to be in the
 * encoding of the local session's client.  Nor are types whose OID is not fixed.
 */
extern int	pgpx_formats_gain(Oid type);

/* Of these, those whose text is the same under all settings. */
extern bool pgpx_formats_is_plain(Oid type);

/*
 * pgpx_formats_choose
 *		Of n columns, some of which could be asked for in binary, leave those that
 *		are cheaper so in a result of so many rows.  gains: of each, by its type.
 *		Returns n; 0: none is.
 */
extern int	pgpx_formats_choose(int n, int16 *formats, const int *gains,
								uint64 rows);

typedef enum PgpxByHand
{
	PGPX_HAND_NONE = 0,			/* by the receive function */
	PGPX_HAND_BOOL,
	PGPX_HAND_INT2,
	PGPX_HAND_INT4,				/* and float4 */
	PGPX_HAND_INT8,				/* and float8 */
	PGPX_HAND_DATE,
	PGPX_HAND_TIME,
	PGPX_HAND_TIMESTAMP,		/* with a time zone or without */
	PGPX_HAND_UUID
} PgpxByHand;

/* How values of a type are read; not of a domain, which has checks. */
extern PgpxByHand pgpx_by_hand(Oid type, int32 typmod);

/*
 * pgpx_by_hand_read
 *		Read a value that is not NULL.  False: it is not what it should be, and
 *		the receive function says so.
 */
extern bool pgpx_by_hand_read(PgpxByHand hand, const PgpxField *field,
							  Datum *value);

#endif							/* PGPX_BINARY_INPUT_H */
