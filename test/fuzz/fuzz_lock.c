/*-------------------------------------------------------------------------
 *
 * fuzz_lock.c
 *	  Answers of a hostile remote to the statements of distributed locks (lock_remote.c),
 *	  through the wire, statement.c and rows.c, up to the decision about a grant.
 *
 * The first byte selects the statement, the end of the answer, and whether the rest
 * is the stream itself, or the values of rows in an otherwise correct answer; the
 * second one selects how the answer is split.  The result is compared with the input
 * as parsed here independently: a lock is granted by a complete answer without an
 * error, whose first row has a number as token, and by that number.  A request that
 * was refused, and so needs no release, was refused by an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "port/pg_bswap.h"

#include "locks/lock_remote.h"
#include "fuzz.h"
#include "fuzz_lock.h"
#include "fuzz_echo.h"

#define NCOLUMNS 7

/* --- the stream ------------------------------------------------------------- */

static const uint8_t *stream;
static size_t stream_size;
static size_t sent_size;		/* bytes of it that have been sent */
static size_t chunk;
static int	remote_fd;
static uint32 echoed;			/* exchange whose token has been echoed */
static enum
{
	ENDS, CANCELLED, STOPS_ANSWERING
}			end;

/* A wait for more input. */
bool
pgpx_session_wait(PgpxCachedSocket *sock, uint32 events, PgpxTime deadline,
				  uint32 wait_event)
{
	size_t		n = Min(chunk, stream_size - sent_size);
	const PgpxWire *wire = &sock->wire;

	if (wire->phase == PGPX_WIRE_TOKEN_PARSE && wire->token.exchange != echoed)
	{
		echoed = wire->token.exchange;
		fuzz_echo(wire, remote_fd);
		return true;
	}
	if (n > 0)
	{
		ssize_t		sent = send(remote_fd, stream + sent_size, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		FUZZ_CHECK(sent > 0);
		sent_size += sent;
		return true;
	}
	if (end == CANCELLED)
		ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("cancelled")));
	if (end == STOPS_ANSWERING && deadline != 0)
	{
		FUZZ_CHECK(now_us < deadline);
		now_us = deadline;
		return false;
	}
	shutdown(remote_fd, SHUT_WR);
	return true;
}

/* The remote's answer, up to its end. */
typedef struct SentAnswer
{
	int			ncolumns;		/* -1: no description */
	int			descriptions;
	int			rows;
	int			fields;			/* of the first row */
	const uint8_t *value[NCOLUMNS]; /* of the first row; null pointer: NULL */
	int			len[NCOLUMNS];
	int			commands;
	bool		error;
	bool		ready;
	bool		more;			/* more results than requested */
} SentAnswer;

static uint32
read_number(const uint8_t *data, int bytes)
{
	uint32		n = 0;

	for (int i = 0; i < bytes; i++)
		n = n << 8 | data[i];
	return n;
}

static void
read_columns(SentAnswer *sent, const uint8_t *data, size_t len)
{
	sent->descriptions++;
	sent->ncolumns = len >= 2 ? read_number(data, 2) : -1;
}

static void
read_row(SentAnswer *sent, const uint8_t *data, size_t len)
{
	size_t		at = 2;

	if (sent->rows++ > 0 || len < 2)
		return;
	sent->fields = read_number(data, 2);
	for (int i = 0; i < Min(sent->fields, NCOLUMNS) && at + 4 <= len; i++)
	{
		sent->len[i] = (int) read_number(data + at, 4);
		at += 4;
		if (sent->len[i] < 0)
			continue;
		sent->value[i] = data + at;
		at += sent->len[i];
		FUZZ_CHECK(at <= len);
	}
}

static void
read_answer(SentAnswer *sent, bool believed)
{
	size_t		at = 0;

	memset(sent, 0, sizeof(*sent));
	sent->ncolumns = -1;
	while (at + 5 <= sent_size)
	{
		char		type = stream[at];
		const uint8_t *data = stream + at + 5;
		size_t		len = (size_t) read_number(stream + at + 1, 4) - 4;

		if (len > sent_size - at - 5)
			break;
		at += 5 + len;
		if (sent->ready)
			sent->more |= type != 0 && strchr("12TDCIZGHW", type) != NULL;
		else if (type == 'T')
			read_columns(sent, data, len);
		else if (type == 'D' && believed)
			read_row(sent, data, len);
		else if (type == 'C')
			sent->commands++;
		else if (type == 'E')
			sent->error = true;
		else if (type == 'Z')
			sent->ready = true;
	}
}

/* Is the value this text? */
static bool
is_text(const SentAnswer *sent, int at, const char *text)
{
	return sent->value[at] != NULL && sent->len[at] == strlen(text) &&
		memcmp(sent->value[at], text, strlen(text)) == 0;
}

/* The number in a text; 0 if there is none, or if it is not positive. */
static int64
token_of(const uint8_t *text, int len)
{
	int64		n = 0;
	int			i = 0;

	while (i < len && strchr(" \t\n\v\f\r", text[i]) != NULL)
		i++;
	if (i < len && text[i] == '+')
		i++;
	if (i == len)
		return 0;
	for (; i < len; i++)
	{
		if (text[i] < '0' || text[i] > '9' ||
			n > (PG_INT64_MAX - (text[i] - '0')) / 10)
			return 0;
		n = n * 10 + (text[i] - '0');
	}
	return n;
}

/* --- the harness ------------------------------------------------------------------- */

static PgpxCachedSocket sock;
static PgpxServerSpec spec;
static PgpxLease lease;

static void
check_text(const char *value)
{
	if (value != NULL)
		FUZZ_CHECK(pg_encoding_verifymbstr(PG_UTF8, value, strlen(value)) == strlen(value));
}

/* Request a lock, and compare the result with the answer. */
static bool
request_lock(bool waits)
{
	static PgpxLockAnswer answer;
	PgpxLock	lock = {.request = 5, .ttl_ms = 10000, .name = "a lock", .holder = "me"};
	volatile bool thrown = true;
	SentAnswer		sent;

	if (sigsetjmp(fuzz_error, 0) == 0)
	{
		pgpx_lock_request(&lease, &lock, waits, 100, now_us + 1000, &answer);
		thrown = false;
	}
	read_answer(&sent, !thrown);
	if (thrown)
	{
		/* a request that was not refused is released later */
		FUZZ_CHECK(answer.token <= 0);
		FUZZ_CHECK(!answer.refused || (sent.error && sent.ready));
		return false;
	}
	FUZZ_CHECK(!answer.refused);
	FUZZ_CHECK(sent.ready && !sent.error && sent.commands > 1 && !sent.more);
	FUZZ_CHECK(sent.descriptions <= 1 && sent.rows == nrows);
	FUZZ_CHECK(sent.rows == 0 || (sent.ncolumns == NCOLUMNS && sent.fields == NCOLUMNS));
	FUZZ_CHECK(answer.token >= 0);
	FUZZ_CHECK(answer.token == (sent.value[0] == NULL ? 0 : token_of(sent.value[0], sent.len[0])));
	FUZZ_CHECK((answer.token != 0) == (sent.value[0] != NULL));
	FUZZ_CHECK(answer.already_released == (answer.token == 0 && is_text(&sent, 6, "t")));
	if (answer.held)
	{
		FUZZ_CHECK(!answer.already_released && sent.value[1] != NULL && sent.value[3] != NULL &&
				   sent.value[4] != NULL);
		/* callers compute with it in microseconds */
		FUZZ_CHECK(answer.left_ms > 0 && answer.left_ms < PG_INT64_MAX / 1000000);
	}
	check_text(answer.holder);
	check_text(answer.why);
	check_text(answer.since);
	check_text(answer.expires);
	return true;
}

static void
show_status(void)
{
	static const Oid types[NSTATUS] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID,
	TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	TupleDesc	desc = CreateTemplateTupleDesc(NSTATUS);
	SentAnswer		sent;

	for (int i = 0; i < NSTATUS; i++)
		TupleDescInitEntry(desc, i + 1, NULL, types[i], -1, 0);
	nrows = 0;
	pgpx_lock_list(&lease, desc, STORE);
	read_answer(&sent, true);
	FUZZ_CHECK(sent.ready && !sent.error && sent.commands > 1 && !sent.more);
	FUZZ_CHECK(sent.rows == nrows);
	FUZZ_CHECK(sent.rows == 0 || (sent.ncolumns == NSTATUS && sent.fields == NSTATUS));
}

/* False: an error was raised. */
static bool
run_statement(int which, bool waits)
{
	SentAnswer		sent;
	bool		held;

	if (which == 0)
		return request_lock(waits);
	if (sigsetjmp(fuzz_error, 0) != 0)
		return false;
	switch (which)
	{
		case 1:
			held = pgpx_lock_release_by_force(&lease, "a lock");
			read_answer(&sent, true);
			FUZZ_CHECK(sent.rows == 0 || (sent.ncolumns == 1 && sent.fields == 1));
			FUZZ_CHECK(held == is_text(&sent, 0, "t"));
			break;
		case 2:
			show_status();
			return true;
		case 3:
			pgpx_lock_create_schema(&lease);
			read_answer(&sent, false);
			break;
	}
	FUZZ_CHECK(sent.ready && !sent.error && sent.commands > (which == 3 ? 0 : 1) && !sent.more);
	return true;
}

static void
put(StringInfo buf, char type, const char *body, int len)
{
	uint32		n = pg_hton32(len + 4);

	appendStringInfoChar(buf, type);
	appendBinaryStringInfo(buf, (char *) &n, 4);
	appendBinaryStringInfo(buf, body, len);
}

/* Can an honest remote return this value in this column? */
static bool
is_fit(int which, bool first, int column, const uint8_t *value, int len)
{
	if (pg_encoding_verifymbstr(PG_UTF8, (char *) value, len) != len)
		return false;
	if (which == 2 && column >= 5 && len > 0 && value[0] == 'X')
		return false;
	return which != 0 || !first || column != 0 || token_of(value, len) > 0;
}

/*
 * Writes values (a length, 255 for NULL, and as many bytes) as the rows of an
 * otherwise honest answer.  Returns whether the values are honest, too.
 */
static bool
make_stream(int which, const uint8_t *data, size_t size)
{
	static const int widths[] = {NCOLUMNS, 1, NSTATUS};
	int			ncolumns = widths[which];
	bool		honest = true;
	bool		first = true;
	StringInfoData all;
	StringInfoData row;
	char		count[2] = {0, ncolumns};

	initStringInfo(&all);
	initStringInfo(&row);
	/* the verification of the owners, and the statement */
	for (int i = 0; i < PGPX_LOCK_VERIFY_COUNT; i++)
	{
		put(&all, '1', "", 0);
		put(&all, '2', "", 0);
		put(&all, 'C', "DO", 3);
	}
	put(&all, '1', "", 0);
	put(&all, '2', "", 0);
	appendBinaryStringInfo(&row, count, 2);
	for (int i = 0; i < ncolumns; i++)
		appendBinaryStringInfo(&row, "c\0\0\0\0\0\0\0\0\0\0\31\377\377\377\377\377\377\0\0", 20);
	put(&all, 'T', row.data, row.len);
	while (size > 0)
	{
		resetStringInfo(&row);
		appendBinaryStringInfo(&row, count, 2);
		for (int i = 0; i < ncolumns; i++)
		{
			int			len = size == 0 || *data == 255 ? -1 : Min(*data, size - 1);
			uint32		n = pg_hton32(len);

			appendBinaryStringInfo(&row, (char *) &n, 4);
			if (len >= 0)
				honest &= is_fit(which, first, i, data + 1, len);
			if (len > 0)
				appendBinaryStringInfo(&row, (char *) data + 1, len);
			data += Max(len, 0) + (size > 0);
			size -= Max(len, 0) + (size > 0);
		}
		put(&all, 'D', row.data, row.len);
		first = false;
	}
	put(&all, 'C', "SELECT 1", 9);
	put(&all, 'Z', "I", 1);
	stream = (uint8_t *) all.data;
	stream_size = all.len;
	return honest;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	PgpxWire   *wire = &sock.wire;
	int			pair[2];
	int			which;
	int			left;
	int			unreceived;
	bool		honest = false;
	bool		done;

	if (size < 2 || size > 64 * 1024)
		return 0;
	if (pgpx_shared == NULL)
	{
		pgpx_shared = calloc(1, sizeof(PgpxShared));
		strlcpy(pgpx_shared->instance, "a process", sizeof(pgpx_shared->instance));
	}
	which = data[0] & 3;
	end = (data[0] >> 2 & 3) % 3;
	chunk = data[1] == 0 ? size * 2 + 1024 : data[1] * data[1];
	if ((data[0] & 16) != 0 && which != 3)
		honest = make_stream(which, data + 2, size - 2);
	else
	{
		stream = data + 2;
		stream_size = size - 2;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0)
		abort();
	remote_fd = pair[1];
	sent_size = 0;
	nrows = 0;
	levels = 0;
	now_us = 1;
	memset(&sock, 0, sizeof(sock));
	memset(&lease, 0, sizeof(lease));
	lease.id = 1;
	lease.sock = &sock;
	lease.spec = &spec;
	lease.scope = PGPX_SCOPE_CALL;
	pg_atomic_init_u64(&the_conn.lease_id, lease.id);
	pgpx_wire_init(wire, pair[0], PG_UTF8, NULL);
	pgpx_wire_begin(wire, lease.id);
	echoed = 0;

	fuzz_may_throw = true;
	done = run_statement(which, (data[0] & 32) != 0);
	fuzz_may_throw = false;
	FUZZ_CHECK(PG_exception_stack == NULL && !lease.in_use);
	FUZZ_CHECK(done || !honest);
	if (done)
	{
		/* broken by its last messages */
		FUZZ_CHECK(wire->phase == PGPX_WIRE_IDLE || wire->phase == PGPX_WIRE_BROKEN);
		FUZZ_CHECK(error_context_stack == NULL && levels == 0);
	}
	else
		FUZZ_CHECK(lease.cancelled || wire->phase == PGPX_WIRE_BROKEN ||
				   pgpx_wire_is_at_boundary(wire) || wire->phase == PGPX_WIRE_IDLE);
	error_context_stack = NULL;

	/* unread bytes are unchanged; others may not have been received yet */
	if (ioctl(pair[0], FIONREAD, &unreceived) < 0)
		abort();
	left = wire->in_end - wire->in_start;
	FUZZ_CHECK(left + unreceived <= sent_size &&
			   memcmp(wire->in + wire->in_start, stream + sent_size - unreceived - left, left) == 0);
	pgpx_wire_free(wire);
	close(pair[0]);
	close(pair[1]);
	fuzz_free_all();
	return 0;
}
