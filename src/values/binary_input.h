/*-------------------------------------------------------------------------
 *
 * binary_input.h
 *	  Columns in binary: which ones are requested, and how they are read.
 *
 * See binary_input.c for the rules.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_BINARY_INPUT_H
#define PGPX_BINARY_INPUT_H

#include "protocol/wire.h"

/*
 * Fixed cost of a result with binary columns, in ns per execution, for both
 * servers together: Parse, Bind and Describe replace Query.  A result that
 * would gain less is requested in text.
 */
#ifndef PGPX_FORMATS_MIN_GAIN	/* test/bench/formats: 1 */
#define PGPX_FORMATS_MIN_GAIN 6000
#endif

#define PGPX_FORMATS_COLUMNS 128	/* results with more columns stay text */

typedef struct PgpxFormatsKey
{
	uint32		pool_id;
	uint32		length;			/* of the statement's text */
	uint64		text[2];		/* hashes of the text */
	uint64		types_hash;		/* hash of the types of the local columns */
} PgpxFormatsKey;

/*
 * Compute the key of a statement in a pool.  types_hash: that of the PgpxSink.
 */
extern void pgpx_formats_key(PgpxFormatsKey *key, uint32 pool_id,
							 const char *sql, uint64 types_hash);

/*
 * pgpx_formats_find
 *		Look up which formats to request for a statement.
 *
 * Set formats, 0 for text and 1 for binary, and return the number of columns
 * that the result had.  Return 0 if no formats are recorded, so that the whole
 * result is to be requested in text.
 */
extern int	pgpx_formats_find(const PgpxFormatsKey *key,
							  int16 formats[PGPX_FORMATS_COLUMNS]);

/*
 * pgpx_formats_note
 *		Record the formats of the n columns of a statement in this session.
 *
 * n 0 removes the record.  With more than PGPX_FORMATS_COLUMNS columns the
 * function does nothing.  Raise no error.
 */
extern void pgpx_formats_note(const PgpxFormatsKey *key, int n,
							  const int16 *formats);

/*
 * A type whose values can be requested in binary: its binary form has the same
 * meaning as its text on every server, whatever the settings of either side
 * are.  Text types are none: their binary form has the same bytes, and their
 * receive functions expect the encoding of the local session's client.  Types
 * without a fixed OID are none, too.
 */
typedef struct PgpxBinaryType
{
	Oid			type;
	int			gain;			/* ns that both servers together save if a
								 * value is sent in binary; 0: it must be sent
								 * in text */
	bool		plain;			/* the type's text depends on no setting */

	/*
	 * Read a value that is not NULL without the receive function.  Return false
	 * for an invalid value: the receive function then reports the error.  NULL:
	 * there is no such function.  Not for a domain, which has checks, nor for a
	 * column with a typmod, to which the value must be rounded.
	 */
	bool (*read)(const PgpxField *field, Datum *value);
} PgpxBinaryType;

/* Return the entry of a type, or one whose gain is 0. */
extern const PgpxBinaryType *pgpx_binary_type(Oid type);

/*
 * pgpx_formats_choose
 *		Choose the columns to request in binary.
 *
 * formats: 1 for each of the n columns that can be requested in binary; the
 * function sets those that are cheaper in text to 0.  types: of the columns.
 * any: the columns may be read into other types, so that only plain types can be
 * requested.  rows: the number of rows of the result.  Return n, or 0 if the
 * whole result is cheaper in text.
 */
extern int	pgpx_formats_choose(int n, int16 *formats,
								const PgpxBinaryType *const *types, bool any,
								uint64 rows);

#endif							/* PGPX_BINARY_INPUT_H */
