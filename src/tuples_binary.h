/*-------------------------------------------------------------------------
 *
 * tuples_binary.h
 *	  Binary values that are read without their receive functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_TUPLES_BINARY_H
#define PGPX_TUPLES_BINARY_H

#include "wire.h"

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

#endif							/* PGPX_TUPLES_BINARY_H */
