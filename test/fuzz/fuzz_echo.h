/*-------------------------------------------------------------------------
 *
 * fuzz_echo.h
 *	  The correct answer to the token of an exchange, see wire.h: without it a
 *	  harness would test little more than the reader's refusal.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_ECHO_H
#define FUZZ_ECHO_H

#include <sys/socket.h>

#include "port/pg_bswap.h"

#include "protocol/wire.h"

/* Send ParseComplete, ParameterDescription and NoData to the reader. */
static void
fuzz_echo(const PgpxWire *wire, int remote)
{
	char		answer[] = "1\0\0\0\004t\0\0\0\022\0\003............n\0\0\0\004";
	uint32		words[3] = {
		pg_hton32((uint32) (wire->token.sender >> 32)),
		pg_hton32((uint32) wire->token.sender),
		pg_hton32(wire->token.exchange),
	};

	memcpy(answer + 12, words, sizeof(words));
	if (send(remote, answer, sizeof(answer) - 1, MSG_DONTWAIT) !=
		sizeof(answer) - 1)
		abort();
}

#endif							/* FUZZ_ECHO_H */
