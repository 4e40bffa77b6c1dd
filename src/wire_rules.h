/*-------------------------------------------------------------------------
 *
 * wire_rules.h
 *	  What may come in which phase of a conversation: for the reader only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_WIRE_RULES_H
#define PGPX_WIRE_RULES_H

#include "wire.h"

/* Messages that the table knows. */
typedef enum PgpxWireClass
{
	M_OTHER = 0,
	M_PARSE_COMPLETE,
	M_BIND_COMPLETE,
	M_PARAMETER_DESCRIPTION,
	M_ROW_DESCRIPTION,
	M_NO_DATA,
	M_DATA_ROW,
	M_COMMAND,					/* CommandComplete, EmptyQueryResponse */
	M_ERROR,
	M_NOTICE,
	M_NOTIFICATION,
	M_PARAMETER,
	M_COPY_IN,
	M_COPY_OUT,
	M_COPY_DATA,				/* CopyData, CopyDone */
	M_READY,
	M_NCLASSES
} PgpxWireClass;

/* What a message does in a phase: the event it gives and the phase after it. */
typedef struct PgpxWireRule
{
	uint8		known;			/* false: a violation of the protocol */
	uint8		event;
	uint8		next;
} PgpxWireRule;

/* The class of a message, by its type. */
extern const uint8 pgpx_wire_classes[256];

extern const PgpxWireRule pgpx_wire_rules[PGPX_WIRE_NPHASES][M_NCLASSES];

/* Is the answer in a phase that of a reset, which is for nobody to see? */
extern const bool pgpx_wire_discards[PGPX_WIRE_NPHASES];

/*
 * Prepare for the answer to an exchange of these parts, after the token; IDLE: there is
 * no such part.
 */
extern void pgpx_wire_expect(PgpxWire *wire, uint64 sender, uint32 exchange,
							 int part1, int part2, int part3);

/* The same for a reset of PGPX_SENT_* bits. */
extern void pgpx_wire_expect_reset(PgpxWire *wire, uint64 sender,
								   uint32 exchange, int reset);

/* Does a ParameterDescription echo the token? */
extern bool pgpx_wire_parse_token(const PgpxWireMessage *msg,
								  const PgpxWireToken *token);

#endif							/* PGPX_WIRE_RULES_H */
