/*-------------------------------------------------------------------------
 *
 * wire_rules.c
 *	  The table of what may come in which phase, which event it gives, and which
 *	  phase follows.  What is not in it breaks the stream.
 *
 * https://www.postgresql.org/docs/current/protocol-flow.html
 *
 *-------------------------------------------------------------------------
 */
#include "wire_rules.h"

const uint8 pgpx_wire_classes[256] = {
	['1'] = M_PARSE_COMPLETE,
	['2'] = M_BIND_COMPLETE,
	['t'] = M_PARAMETER_DESCRIPTION,
	['T'] = M_ROW_DESCRIPTION,
	['n'] = M_NO_DATA,
	['D'] = M_DATA_ROW,
	['C'] = M_COMMAND,
	['I'] = M_COMMAND,
	['E'] = M_ERROR,
	['N'] = M_NOTICE,
	['A'] = M_NOTIFICATION,
	['S'] = M_PARAMETER,
	['G'] = M_COPY_IN,
	['H'] = M_COPY_OUT,
	['d'] = M_COPY_DATA,
	['c'] = M_COPY_DATA,
	['Z'] = M_READY,
};

#define R(event_, next_) {1, PGPX_EV_##event_, PGPX_WIRE_##next_}

/* What may come at any time. */
#define ASYNC(phase_) \
	[M_NOTICE] = R(NOTICE, phase_), \
	[M_NOTIFICATION] = R(NOTIFICATION, phase_), \
	[M_PARAMETER] = R(NONE, phase_)

const PgpxWireRule pgpx_wire_rules[PGPX_WIRE_NPHASES][M_NCLASSES] = {
	[PGPX_WIRE_IDLE] = {
		ASYNC(IDLE),
		[M_ERROR] = R(ERROR, BROKEN),	/* FATAL: the remote is leaving */
	},
	[PGPX_WIRE_TOKEN_PARSE] = {
		ASYNC(TOKEN_PARSE),
		[M_PARSE_COMPLETE] = R(NONE, TOKEN_TYPES),
		[M_ERROR] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_TOKEN_TYPES] = {
		ASYNC(TOKEN_TYPES),
		[M_PARAMETER_DESCRIPTION] = R(NONE, TOKEN_NO_DATA),
		[M_ERROR] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_TOKEN_NO_DATA] = {
		ASYNC(TOKEN_NO_DATA),
		[M_NO_DATA] = R(NONE, NEXT_PART),
		[M_ERROR] = R(NO_ECHO, BROKEN),
	},
	[PGPX_WIRE_SIMPLE] = {
		ASYNC(SIMPLE),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, SIMPLE_ROWS),
		[M_COMMAND] = R(COMMAND, SIMPLE),
		[M_ERROR] = R(ERROR, SIMPLE),
		[M_COPY_IN] = R(COPY, COPY_SIMPLE),
		[M_COPY_OUT] = R(COPY, COPY_SIMPLE),
		[M_READY] = R(READY, IDLE),
	},
	[PGPX_WIRE_SIMPLE_ROWS] = {
		ASYNC(SIMPLE_ROWS),
		[M_DATA_ROW] = R(ROW, SIMPLE_ROWS),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, SIMPLE_ROWS),	/* of a rule */
		[M_COMMAND] = R(COMMAND, SIMPLE),
		[M_ERROR] = R(ERROR, SIMPLE),
	},
	[PGPX_WIRE_AHEAD_PARSE] = {
		ASYNC(AHEAD_PARSE),
		[M_PARSE_COMPLETE] = R(NONE, AHEAD_BIND),
		[M_ERROR] = R(NOT_RUN, BROKEN),
	},
	[PGPX_WIRE_AHEAD_BIND] = {
		ASYNC(AHEAD_BIND),
		[M_BIND_COMPLETE] = R(NONE, AHEAD_EXECUTE),
		[M_ERROR] = R(NOT_RUN, BROKEN),
	},
	[PGPX_WIRE_AHEAD_EXECUTE] = {
		ASYNC(AHEAD_EXECUTE),
		[M_COMMAND] = R(NONE, NEXT_PART),
		[M_ERROR] = R(NOT_RUN, BROKEN),
	},
	[PGPX_WIRE_PARSE] = {
		ASYNC(PARSE),
		[M_PARSE_COMPLETE] = R(NONE, BIND),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_BIND] = {
		ASYNC(BIND),
		[M_BIND_COMPLETE] = R(NONE, DESCRIBE),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE] = {
		ASYNC(DESCRIBE),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, EXECUTE),
		[M_NO_DATA] = R(NO_DATA, EXECUTE),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_EXECUTE] = {
		ASYNC(EXECUTE),
		[M_DATA_ROW] = R(ROW, EXECUTE),
		[M_COMMAND] = R(COMMAND, SYNC),
		[M_ERROR] = R(ERROR, SYNC),

		/*
		 * The server swallows the Sync that was sent with Execute if it begins
		 * to read data, and answers it if the COPY fails before.  After a
		 * CopyFail and another Sync the number of answers would not be known.
		 */
		[M_COPY_IN] = R(COPY, BROKEN),
		[M_COPY_OUT] = R(COPY, COPY_EXTENDED),
	},
	[PGPX_WIRE_DESCRIBE_PARSE] = {
		ASYNC(DESCRIBE_PARSE),
		[M_PARSE_COMPLETE] = R(NONE, DESCRIBE_PARAMS),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_PARAMS] = {
		ASYNC(DESCRIBE_PARAMS),
		[M_PARAMETER_DESCRIPTION] = R(NONE, DESCRIBE_ROWS),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_DESCRIBE_ROWS] = {
		ASYNC(DESCRIBE_ROWS),
		[M_ROW_DESCRIPTION] = R(ROW_DESCRIPTION, SYNC),
		[M_NO_DATA] = R(NO_DATA, SYNC),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_SYNC] = {
		ASYNC(SYNC),
		[M_ERROR] = R(ERROR, SYNC), /* a deferred constraint, at the commit */
		[M_READY] = R(READY, IDLE),
	},
	[PGPX_WIRE_COPY_SIMPLE] = {
		ASYNC(COPY_SIMPLE),
		[M_COPY_DATA] = R(NONE, COPY_SIMPLE),
		[M_COMMAND] = R(COMMAND, SIMPLE),
		[M_ERROR] = R(ERROR, SIMPLE),
	},
	[PGPX_WIRE_COPY_EXTENDED] = {
		ASYNC(COPY_EXTENDED),
		[M_COPY_DATA] = R(NONE, COPY_EXTENDED),
		[M_COMMAND] = R(COMMAND, SYNC),
		[M_ERROR] = R(ERROR, SYNC),
	},
	[PGPX_WIRE_ROLLBACK] = {
		ASYNC(ROLLBACK),
		[M_COMMAND] = R(NONE, RESET_END),
	},
	[PGPX_WIRE_DISCARD_ALL] = {
		ASYNC(DISCARD_ALL),
		[M_COMMAND] = R(NONE, RESET_END),
	},
	[PGPX_WIRE_RESET] = {
		ASYNC(RESET),
		[M_ROW_DESCRIPTION] = R(NONE, RESET_ROWS),
		[M_COMMAND] = R(NONE, RESET_MORE),
	},
	[PGPX_WIRE_RESET_ROWS] = {
		ASYNC(RESET_ROWS),
		[M_DATA_ROW] = R(NONE, RESET_ROWS),
		[M_ROW_DESCRIPTION] = R(NONE, RESET_ROWS),	/* of a rule */
		[M_COMMAND] = R(NONE, RESET_MORE),
	},
	[PGPX_WIRE_RESET_MORE] = {
		ASYNC(RESET_MORE),
		[M_ROW_DESCRIPTION] = R(NONE, RESET_ROWS),
		[M_COMMAND] = R(NONE, RESET_MORE),
		[M_READY] = R(READY, NEXT_PART),
	},
	[PGPX_WIRE_RESET_END] = {
		ASYNC(RESET_END),
		[M_READY] = R(READY, NEXT_PART),
	},
};

const bool	pgpx_wire_discards[PGPX_WIRE_NPHASES] = {
	[PGPX_WIRE_AHEAD_PARSE] = true,
	[PGPX_WIRE_AHEAD_BIND] = true,
	[PGPX_WIRE_AHEAD_EXECUTE] = true,
	[PGPX_WIRE_ROLLBACK] = true,
	[PGPX_WIRE_DISCARD_ALL] = true,
	[PGPX_WIRE_RESET] = true,
	[PGPX_WIRE_RESET_ROWS] = true,
	[PGPX_WIRE_RESET_MORE] = true,
	[PGPX_WIRE_RESET_END] = true,
};
