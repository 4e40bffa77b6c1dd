/*-------------------------------------------------------------------------
 *
 * fuzz_error.c
 *	  Errors of the remote: errors and notices on a lease, and the report of libpq
 *	  about a refused login.
 *
 * The first byte selects the encoding of the database and the maximal length of a
 * line; the rest is the body of the message, or the text.  The output is valid in the
 * encoding, an error stays an error, and a line stays one line.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "fuzz.h"
#include "protocol/remote_message.h"

#define TEXT_MAX (64 * 1024)

static int	encoding;

int
GetDatabaseEncoding(void)
{
	return encoding;
}

static void
check_text(const char *text)
{
	if (text == NULL)
		return;
	FUZZ_CHECK(strlen(text) <= TEXT_MAX);
	FUZZ_CHECK(pg_encoding_verifymbstr(encoding, text, strlen(text)) == strlen(text));
}

static void
check_error(const PgpxWireMessage *msg)
{
	PgpxRemoteError error = {0};

	pgpx_remote_error_copy(&error, msg);
	FUZZ_CHECK(error.set && error.primary != NULL);
	FUZZ_CHECK(ERRCODE_TO_CATEGORY(error.sqlstate) != ERRCODE_SUCCESSFUL_COMPLETION);
	check_text(error.primary);
	check_text(error.detail);
	check_text(error.hint);
	check_text(error.context);
	check_text(error.query);
	FUZZ_CHECK(error.position >= 0 && error.query_position >= 0);

	/* an error ends the statement, whatever its fields */
	fuzz_may_throw = true;
	if (sigsetjmp(fuzz_error, 0) == 0)
	{
		pgpx_remote_error_raise(&error, "select 1", "server");
		FUZZ_CHECK(false);
	}
	fuzz_may_throw = false;

	/* a notice never ends it */
	pgpx_remote_notice(msg, 0, "server", false);
	pgpx_remote_notice(msg, LOG, "server", false);
}

static void
check_refusal(const char *text, size_t room)
{
	char	   *copy = strdup(text);
	char	   *line = malloc(room);
	size_t		len;

	(void) pgpx_libpq_strip_sqlstates(copy);
	FUZZ_CHECK(strlen(copy) <= strlen(text));
	pgpx_libpq_one_line(line, room, copy);
	len = strlen(line);
	FUZZ_CHECK(len < room && strcspn(line, "\n\t") == len);
	FUZZ_CHECK(len == 0 || (line[0] != ' ' && line[len - 1] != ' '));
	FUZZ_CHECK(strstr(line, "  ") == NULL);
	free(line);
	free(copy);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const int encodings[] = {PG_UTF8, PG_LATIN1, PG_EUC_JP, PG_SQL_ASCII,
	PG_EUC_KR, PG_EUC_TW, PG_WIN1252, PG_UTF8};
	PgpxWireMessage msg = {.type = 'E'};
	char	   *text;

	if (size < 1 || size > 256 * 1024)
		return 0;
	encoding = encodings[data[0] & 7];
	msg.len = size - 1;
	msg.data = malloc(msg.len);
	memcpy(msg.data, data + 1, msg.len);
	check_error(&msg);
	free(msg.data);

	text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	check_refusal(text, 1 + (data[0] >> 3) * 40);
	free(text);
	fuzz_free_all();
	return 0;
}
