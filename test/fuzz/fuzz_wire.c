/*-------------------------------------------------------------------------
 *
 * fuzz_wire.c
 *	  Messages of a hostile remote to a session or to the worker.
 *
 * The first byte selects the request and whether the harness echoes the marker, the
 * second one how the answer is split; the rest is the stream.  It is read from a
 * socket as in statement.c and connection.c, and each body is decoded.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"

#include "fuzz.h"
#include "base/debug_point.h"
#include "protocol/wire.h"

#define MAX_COLUMNS 1664

/* Send ParseComplete, ParameterDescription and NoData to the reader. */
static void
fuzz_echo(const PgpxWire *wire, int remote)
{
	char		answer[] = "1\0\0\0\004t\0\0\0\022\0\003............n\0\0\0\004";
	uint32		words[3] = {
		pg_hton32((uint32) (wire->marker.sender >> 32)),
		pg_hton32((uint32) wire->marker.sender),
		pg_hton32(wire->marker.exchange),
	};

	memcpy(answer + 12, words, sizeof(words));
	if (send(remote, answer, sizeof(answer) - 1, MSG_DONTWAIT) !=
		sizeof(answer) - 1)
		abort();
}

/* The state of the answer to a statement. */
static bool one_only;			/* it can have only one result */
static bool described;			/* its columns, or that it has none */
static bool rows;				/* rows may follow */
static bool ended;				/* the end of the result, or an error */

/* Touch each byte of a text, so that the sanitizer sees the last one. */
static size_t
touch(const char *text)
{
	return text != NULL ? strlen(text) : 0;
}

static void
decode(PgpxWire *wire, PgpxWireEvent event, const PgpxWireMessage *whole,
	   int *ncolumns, bool discarding)
{
	PgpxWireMessage exact = *whole;
	const PgpxWireMessage *msg = &exact;
	PgpxField	fields[MAX_COLUMNS];
	PgpxColumn	columns[MAX_COLUMNS];
	PgpxRemoteFields error;
	volatile char sum = 0;

	FUZZ_CHECK(whole->data >= wire->in);
	FUZZ_CHECK(whole->data + whole->len <= wire->in + wire->in_start);
	FUZZ_CHECK(wire->in_start <= wire->in_end);
	FUZZ_CHECK(wire->in_end <= wire->in_cap);

	/* in a separate allocation, so that the sanitizer detects reads beyond it */
	exact.data = palloc(whole->len + (event == PGPX_EV_ROW ? 1 : 0));
	memcpy(exact.data, whole->data, whole->len);

	/* no notice of the previous lease is shown */
	FUZZ_CHECK(!discarding || event == PGPX_EV_READY ||
			   event == PGPX_EV_NOT_RUN || !wire->discarding);
	switch (event)
	{
		case PGPX_EV_ROW_DESCRIPTION:
			*ncolumns = pgpx_wire_parse_ncolumns(msg);
			if (*ncolumns < 0 || *ncolumns > MAX_COLUMNS ||
				!pgpx_wire_parse_columns(msg, *ncolumns, columns))
			{
				pgpx_wire_break(wire, "malformed");
				break;
			}
			for (int i = 0; i < *ncolumns; i++)
				touch(columns[i].name);
			break;
		case PGPX_EV_ROW:
			if (*ncolumns < 0 || !pgpx_wire_parse_row(msg, *ncolumns, fields))
			{
				pgpx_wire_break(wire, "malformed");
				break;
			}
			for (int i = 0; i < *ncolumns; i++)
			{
				/* rows.c puts a NUL after each value for a moment */
				if (fields[i].data == NULL)
					continue;
				FUZZ_CHECK(fields[i].len >= 0);
				sum += fields[i].data[0];
				fields[i].data[fields[i].len] = sum;
			}
			break;
		case PGPX_EV_COMMAND:
			FUZZ_CHECK(pgpx_wire_parse_command(msg) >= 0);
			break;
		case PGPX_EV_ERROR:
		case PGPX_EV_NOTICE:
			if (pgpx_wire_parse_error(msg, &error))
			{
				touch(error.severity);
				touch(error.sqlstate);
				touch(error.primary);
				touch(error.detail);
				touch(error.hint);
				touch(error.context);
			}
			break;
		default:
			break;
	}
	pfree(exact.data);
}

/* Once: a written message has the length in its header, wherever the buffer grows. */
static void
write_all_lengths(void)
{
	static bool done = false;
	char		text[1100];

	for (size_t len = 900; !done && len < sizeof(text); len++)
	{
		PgpxStatement statement = {.sql = text};
		PgpxPipeline pipeline = pgpx_wire_pipeline_of(&statement, 0, NULL);
		StringInfoData buf;
		int			at = 0;

		memset(text, 'x', len);
		text[len] = '\0';
		initStringInfo(&buf);
		pgpx_wire_put_pipeline(&buf, &pipeline);
		while (at + 5 <= buf.len)
		{
			uint32		n;

			memcpy(&n, buf.data + at + 1, 4);
			at += 1 + (int) pg_ntoh32(n);
		}
		FUZZ_CHECK(at == buf.len);
		pfree(buf.data);
	}
	done = true;
}

/* Events occur in their order, on which statement.c relies. */
static void
check_order(const PgpxWire *wire, PgpxWireEvent event)
{
	/* nor is a notice of a preceding reset shown */
	FUZZ_CHECK(!wire->discarding || (wire->phase != PGPX_WIRE_BEFORE_PARSE &&
									 wire->phase != PGPX_WIRE_BEFORE_BIND &&
									 wire->phase != PGPX_WIRE_BEFORE_EXECUTE));
	switch (event)
	{
		case PGPX_EV_ROW_DESCRIPTION:
		case PGPX_EV_NO_DATA:
			FUZZ_CHECK(!one_only || (!described && !ended));
			described = true;
			rows = event == PGPX_EV_ROW_DESCRIPTION;
			break;
		case PGPX_EV_ROW:
			FUZZ_CHECK(rows && (!one_only || !ended));
			break;
		case PGPX_EV_COMMAND:
			FUZZ_CHECK(!one_only || (described && !ended));
			ended = true;
			rows = false;
			break;
		case PGPX_EV_SUSPENDED:
		case PGPX_EV_ERROR:
			ended = true;
			rows = false;
			break;
		case PGPX_EV_READY:
			FUZZ_CHECK(!rows && (!one_only || ended));
			one_only = false;
			break;
		default:
			break;
	}
}

/* Sends a pipeline of foreign tables; "kind" selects its parts. */
static void
send_pipeline(PgpxWire *wire, int kind)
{
	static const char *const before[] = {"START TRANSACTION", "SAVEPOINT s2"};
	static const char *const closes[] = {"Pp1", "Ss1"};
	static const PgpxStatement statement = {"select 1", 0, NULL};
	PgpxPipeline p = {
		.nbefore = kind % 3,
		.before = before,
		.ncloses = kind / 2 % 3,
		.closes = closes,
		.statement = &statement,
		.name = kind % 5 == 4 && kind % 3 > 0 ? NULL : "",
		.parse = kind % 2 == 0,
		.portal = "p1",
		.resume = kind % 4 == 3,
		.describe = kind % 4 != 1,
		.max_rows = kind % 7,
	};

	/* the rows of a portal that exists have no description */
	rows = !p.describe || p.resume;
	pgpx_wire_send_pipeline(wire, &p);
}

/*
 * kind: 0 no reset; 1 a reset behind the statement; 2 .. and an error before anything is
 * sent; 3 .. and an error after the statement is sent.
 */
static void
send_reset_behind(PgpxWire *wire, int kind)
{
	if (kind == 0)
		return;
	pgpx_wire_send_reset_behind(wire);
	FUZZ_CHECK(!pgpx_wire_statement_ended(wire) && !pgpx_wire_is_in_reset(wire));
	if (kind == 2)
	{
		pgpx_wire_abandon(wire);
		FUZZ_CHECK(pgpx_wire_is_at_boundary(wire) && wire->reset_behind == 0);
	}
	else if (kind == 3)
	{
		wire->out_sent = wire->reset_at;
		pgpx_wire_abandon(wire);
		FUZZ_CHECK(wire->phase == PGPX_WIRE_MARKER_PARSE && wire->reset_behind != 0);
	}
}

/* Sends the request that "how" selects; "remote" is the remote's end of the socket. */
static void
ask(PgpxWire *wire, int how, int remote)
{
	static const char *const values[] = {"1", NULL, "three"};
	static const PgpxStatement statement = {"select 1", 3, values};
	static const int16 formats[] = {0, 1, 1};
	PgpxPipeline pipeline;
	bool		full;

	one_only = described = rows = ended = false;
	pgpx_wire_begin(wire, 1, 0, 0);
	switch (how % 11)
	{
		case 0:
			if (how > 0)
				send_pipeline(wire, how / 11);
			break;
		case 1:
			pgpx_wire_send_query(wire, "select 1");
			send_reset_behind(wire, how / 11 % 4);
			break;
		case 2:
			pipeline = pgpx_wire_pipeline_of(&statement, 3, formats);
			pgpx_wire_send_pipeline(wire, &pipeline);
			one_only = true;
			send_reset_behind(wire, how / 11 % 4);
			break;
		case 3:
			(void) pgpx_wire_send_reset(wire, "DISCARD ALL", "", true);
			break;
		case 4:
			(void) pgpx_wire_send_reset(wire, "DISCARD ALL", "SET a.b = 1", false);
			break;
		case 5:
			/* a reset of the previous lease, whose answer the next holder reads */
			pgpx_wire_begin(wire, 1, 2, PGPX_SENT_RESET | PGPX_SENT_START);
			break;
		case 6:
		case 7:
			/* pipelined, after a reset or without one, with commands or not */
			pgpx_wire_begin_sent(wire, 1, 2, how / 11 % 2 == 0, how / 22 % 2 * 3, 100);
			one_only = true;
			break;
		case 8:
			/* messages before it cannot be the answer */
			(void) send(remote, "1", 1, MSG_DONTWAIT);
			(void) pgpx_wire_fill(wire, &full);
			pgpx_wire_begin_sent(wire, 1, 2, false, 0, 100);
			FUZZ_CHECK(wire->phase == PGPX_WIRE_BROKEN);
			return;
		case 9:
			pgpx_wire_send_check(wire);
			break;
		case 10:
			(void) pgpx_wire_send_reset(wire, "RESET ALL", "", false);
			break;
	}
	if (wire->phase == PGPX_WIRE_MARKER_PARSE && how < 192)
		fuzz_echo(wire, remote);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	PgpxWire	wire;
	int			pair[2];
	size_t		sent = 0;
	size_t		chunk;
	size_t		scanned = 0;
	int			ncolumns = -1;
	int			drop;			/* its end: 0 with EOF, 2 abandoned, 3 in flight */
	bool		follows;		/* the marker of the second exchange is due */

	write_all_lengths();
	if (size < 2 || size > 64 * 1024)
		return 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0)
		abort();
	pgpx_wire_init(&wire, pair[0], PG_UTF8, NULL);
	ask(&wire, data[0], pair[1]);
	chunk = data[1] % 64 == 0 ? size : data[1] % 64;
	drop = data[1] >> 6;
	data += 2;
	size -= 2;
	(void) pgpx_wire_flush(&wire);
	follows = wire.reset_behind != 0;

	for (;;)
	{
		PgpxWireMessage msg;
		PgpxWireEvent event;
		bool		discarding = wire.discarding;
		bool		full;
		size_t		n = Min(chunk, size - sent);

		/* as with a statement in flight: check first, read nothing before */
		if (drop == 3 && !discarding && sent < size &&
			!pgpx_wire_is_answered(&wire, &scanned))
		{
			if (send(pair[1], data + sent, n, MSG_DONTWAIT) != n)
				break;
			sent += n;
			if (pgpx_wire_fill(&wire, &full) < 0)
				break;
			continue;
		}
		scanned = 0;
		event = pgpx_wire_next(&wire, &msg);
		if (event == PGPX_EV_BROKEN)
		{
			FUZZ_CHECK(wire.phase == PGPX_WIRE_BROKEN && wire.broken != NULL);
			FUZZ_CHECK(pgpx_wire_next(&wire, &msg) == PGPX_EV_BROKEN);
			FUZZ_CHECK(!pgpx_wire_is_at_boundary(&wire));
			break;
		}
		if (event != PGPX_EV_NEED_INPUT)
		{
			decode(&wire, event, &msg, &ncolumns, discarding);
			check_order(&wire, event);
			if (event == PGPX_EV_READY)
			{
				FUZZ_CHECK(pgpx_wire_statement_ended(&wire));
				FUZZ_CHECK(wire.phase == PGPX_WIRE_IDLE || (!discarding && follows));
				FUZZ_CHECK(strchr("ITE", wire.tx) != NULL);
				FUZZ_CHECK(!discarding || wire.tx == 'I');
			}
			(void) pgpx_wire_flush(&wire);
			continue;
		}
		if (pgpx_wire_is_at_boundary(&wire))
			pgpx_wire_trim(&wire);	/* as when a lease ends */
		if (follows && wire.phase == PGPX_WIRE_MARKER_PARSE &&
			pgpx_wire_statement_ended(&wire))
		{
			follows = false;
			fuzz_echo(&wire, pair[1]);
		}
		if (n > 0)
		{
			if (send(pair[1], data + sent, n, MSG_DONTWAIT) != n)
				break;
			sent += n;
		}
		else if (drop == 0)
			shutdown(pair[1], SHUT_WR);
		(void) pgpx_wire_is_answered(&wire, &scanned);
		if (pgpx_wire_fill(&wire, &full) <= 0 && sent == size)
		{
			if (drop != 0)
				break;
			/* the end of the stream must be reported as one */
			FUZZ_CHECK(wire.eof || wire.phase == PGPX_WIRE_BROKEN);
		}
		(void) pgpx_wire_is_answered(&wire, &scanned);
		FUZZ_CHECK(wire.in_end - wire.in_start <= wire.in_cap);
	}
	if (drop == 2)
		pgpx_wire_abandon(&wire);
	pgpx_wire_free(&wire);
	close(pair[0]);
	close(pair[1]);
	fuzz_free_all();
	return 0;
}
