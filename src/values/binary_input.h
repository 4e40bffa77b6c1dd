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
 * pgpx_formats_gain
 *		Return the time in ns that both servers together save if a value of a
 *		type is sent in binary instead of text; 0 if it must be sent in text.
 *
 * The result is positive only for types whose binary form has the same meaning
 * as their text on every server, whatever the settings of either side are.
 * Text types return 0: their binary form has the same bytes, and their receive
 * functions expect the encoding of the local session's client.  Types without a
 * fixed OID return 0, too.
 */
extern int	pgpx_formats_gain(Oid type);

/*
 * Return whether the type has a positive gain, and its text depends on no
 * setting.
 */
extern bool pgpx_formats_is_plain(Oid type);

/*
 * pgpx_formats_choose
 *		Choose the columns to request in binary.
 *
 * formats: 1 for each of the n columns that can be requested in binary; the
 * function sets those that are cheaper in text to 0.  gains: pgpx_formats_gain
 * of each column's type.  rows: the number of rows of the result.  Return n, or
 * 0 if the whole result is cheaper in text.
 */
extern int	pgpx_formats_choose(int n, int16 *formats, const int *gains,
								uint64 rows);

typedef enum PgpxDirectDecoder
{
	PGPX_DECODE_NONE = 0,		/* use the receive function */
	PGPX_DECODE_BOOL,
	PGPX_DECODE_INT2,
	PGPX_DECODE_INT4,			/* and float4 */
	PGPX_DECODE_INT8,			/* and float8 */
	PGPX_DECODE_DATE,
	PGPX_DECODE_TIME,
	PGPX_DECODE_TIMESTAMP,		/* with a time zone or without */
	PGPX_DECODE_UUID
} PgpxDirectDecoder;

/*
 * pgpx_direct_decoder
 *		Return how binary values of a type are read without its receive
 *		function.
 *
 * The type must not be a domain, because a domain has checks.
 */
extern PgpxDirectDecoder pgpx_direct_decoder(Oid type, int32 typmod);

/*
 * pgpx_direct_decode
 *		Read a binary value that is not NULL.
 *
 * Return false for PGPX_DECODE_NONE and for an invalid value.  The caller then
 * calls the receive function, which reports the error.
 */
extern bool pgpx_direct_decode(PgpxDirectDecoder decoder,
							   const PgpxField *field,
							   Datum *value);

#endif							/* PGPX_BINARY_INPUT_H */
