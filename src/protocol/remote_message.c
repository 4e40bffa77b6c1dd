/*-------------------------------------------------------------------------
 *
 * remote_message.c
 *	  The errors and notices of the remote, and libpq's, as local ones.
 *
 * - In errors and notices every field may be missing, including the SQLSTATE,
 *	 and a text may have any contents and any encoding.
 * - Messages of libpq about a failed login contain texts of the remote.  They
 *	 end with a NUL; the code assumes nothing else about them.
 *
 *-------------------------------------------------------------------------
 */
#include "protocol/remote_message.h"

#include "mb/pg_wchar.h"
#include "utils/elog.h"

#include "base/debug_point.h"

#define TEXT_MAX (64 * 1024)	/* bytes of a field; the rest is cut off */

char *
pgpx_text_clean(char *text)
{
	int			len = strlen(text);
	int			valid = pg_encoding_verifymbstr(GetDatabaseEncoding(), text,
												len);

	/* of a text that was cut off within a character, remove only that one */
	if (valid < len && len - valid < MAX_MULTIBYTE_CHAR_LEN)
		text[valid] = '\0';
	else if (valid < len)
		for (char *p = text; *p; p++)
			if (IS_HIGHBIT_SET(*p))
				*p = '?';
	return text;
}

/* Copy a text of the remote, made valid in the database's encoding. */
static char *
copy_text(const char *text)
{
	if (text == NULL)
		return NULL;
	if (strlen(text) <= TEXT_MAX)
		return pgpx_text_clean(pstrdup(text));
	return psprintf("%s ... (%zu bytes in total)",
					pgpx_text_clean(pnstrdup(text, TEXT_MAX)), strlen(text));
}

int
pgpx_parse_sqlstate(const char *sqlstate, int fallback)
{
	if (sqlstate == NULL || strlen(sqlstate) != 5)
		return fallback;
	for (const char *p = sqlstate; *p; p++)
		if (!((*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z')))
			return fallback;
	return MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2], sqlstate[3],
						 sqlstate[4]);
}

/* Parse a position field of at most nine digits; 0 if missing or invalid. */
static int
parse_position(const char *field)
{
	size_t		len = field ? strspn(field, "0123456789") : 0;

	return len > 0 && len < 10 && field[len] == '\0' ? atoi(field) : 0;
}

/*
 * Return whether the position is inside the text or one character past its end,
 * where an error at the end of the text is reported.
 */
static bool
is_inside(int position, const char *text)
{
	int			encoding = GetDatabaseEncoding();

	if (position <= 0)
		return false;
	while (--position > 0)
	{
		if (*text == '\0')
			return false;
		text += pg_encoding_mblen(encoding, text);
	}
	return true;
}

void
pgpx_remote_error_copy(PgpxRemoteError *error, const PgpxWireMessage *msg)
{
	PgpxRemoteFields fields;

	if (!pgpx_wire_parse_error(msg, &fields))
		memset(&fields, 0, sizeof(fields));
	error->set = true;
	error->fatal = pgpx_wire_is_fatal(&fields);
	error->sqlstate = pgpx_parse_sqlstate(fields.sqlstate, ERRCODE_FDW_ERROR);
	if (ERRCODE_TO_CATEGORY(error->sqlstate) == ERRCODE_SUCCESSFUL_COMPLETION)
		error->sqlstate = ERRCODE_FDW_ERROR;
	error->primary = fields.primary ? copy_text(fields.primary) :
		pstrdup("the remote server reported an error without a message");
	error->detail = copy_text(fields.detail);
	error->hint = copy_text(fields.hint);
	error->context = copy_text(fields.context);
	error->position = parse_position(fields.position);
	error->query = copy_text(fields.query);
	error->query_position = parse_position(fields.query_position);
}

static const char *
dup_text(const char *text)
{
	return text == NULL ? NULL : pstrdup(text);
}

void
pgpx_remote_error_dup(PgpxRemoteError *copy, const PgpxRemoteError *error)
{
	PgpxRemoteError new = *error;

	new.primary = dup_text(error->primary);
	new.detail = dup_text(error->detail);
	new.hint = dup_text(error->hint);
	new.context = dup_text(error->context);
	new.query = dup_text(error->query);
	*copy = new;
}

/* Report an error, with an internal query (NULL: none) and a last context. */
static void
report(int elevel, const PgpxRemoteError *error, const char *primary,
	   const char *query, int position, const char *context)
{
	ereport(elevel,
			(errcode(error->sqlstate),
			 errmsg_internal("%s", primary),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0,
			 query ? internalerrquery(query) : 0,
			 query && is_inside(position, query) ?
			 internalerrposition(position) : 0,
			 error->context ? errcontext("%s", error->context) : 0,
			 errcontext("%s", context)));
}

/*
 * The local statement has the remote one as an argument.  So the error position
 * is reported as an internal position, as for a statement in a function.  The
 * context does not repeat the internal query, because clients show it in full.
 */
void
pgpx_remote_error_raise(const PgpxRemoteError *error, const char *sql,
						const char *server)
{
	const char *query = error->query;
	int			position = error->query_position;

	if (query == NULL && sql != NULL && is_inside(error->position, sql))
	{
		query = sql;
		position = error->position;
	}
	report(ERROR, error, error->primary, query, position,
		   psprintf(sql == NULL || query == sql ?
					"remote SQL command on server \"%s\"" :
					"remote SQL command on server \"%s\": %s", server, sql));
	pg_unreachable();
}

void
pgpx_remote_error_report(int elevel, const PgpxRemoteError *error,
						 const char *context)
{
	const char *primary = error->primary;

	if (primary == NULL || primary[0] == '\0')
		primary = "could not obtain message string for remote error";
	report(elevel, error, primary, NULL, 0, context);
}

void
pgpx_remote_notice(const PgpxWireMessage *msg, int elevel, const char *server,
				   bool commits)
{
	PgpxRemoteFields fields;
	char	   *primary;
	char	   *detail;
	char	   *hint;

	/* a session that is about to exit reads the rest of the answer first */
	if (ProcDiePending || !pgpx_wire_parse_error(msg, &fields))
		return;
	if (elevel == 0)
	{
		const char *s = fields.severity ? fields.severity : "";

		/* client only: the remote must not decide how much is logged here */
		elevel = strcmp(s, "WARNING") == 0 ? WARNING_CLIENT_ONLY :
			strcmp(s, "INFO") == 0 ? INFO :
			strncmp(s, "DEBUG", 5) == 0 ? DEBUG1 : NOTICE;
	}
	primary = copy_text(fields.primary ? fields.primary : "");
	detail = copy_text(fields.detail);
	hint = copy_text(fields.hint);

	/* a client that does not read must not keep the session from its end */
	HOLD_CANCEL_INTERRUPTS();
	if (commits)
		HOLD_INTERRUPTS();
	ereport(elevel,
			(errcode(pgpx_parse_sqlstate(fields.sqlstate,
									elevel >= WARNING ? ERRCODE_WARNING :
									ERRCODE_SUCCESSFUL_COMPLETION)),
			 errmsg_internal("%s", primary),
			 detail ? errdetail_internal("%s", detail) : 0,
			 hint ? errhint("%s", hint) : 0,
			 elevel == LOG ? errcontext("remote server \"%s\"", server) : 0));
	if (commits)
		RESUME_INTERRUPTS();
	RESUME_CANCEL_INTERRUPTS();
	pfree(primary);
	if (detail)
		pfree(detail);
	if (hint)
		pfree(hint);
}

/*
 * Return whether the line is empty, or only marks an error position in the line
 * before it.
 */
static bool
is_caret_line(const char *line, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (line[i] != ' ' && line[i] != '^')
			return false;
	return true;
}

void
pgpx_libpq_one_line(char *to, size_t size, const char *from)
{
	size_t		n = 0;

	while (*from != '\0')
	{
		size_t		len = strcspn(from, "\n");

		if (!is_caret_line(from, len))
		{
			if (n > 0 && n + 3 < size)
			{
				to[n++] = ';';
				to[n++] = ' ';
			}
			for (size_t i = 0; i < len && n + 1 < size; i++)
			{
				char		c = from[i] == '\t' ? ' ' : from[i];

				if (c != ' ' || (n > 0 && to[n - 1] != ' '))
					to[n++] = c;
			}
			while (n > 0 && to[n - 1] == ' ')
				n--;
		}
		from += len + (from[len] != '\0');
	}
	to[n] = '\0';
}

/*
 * Return whether a line "SQLSTATE: text" means that the remote accepts no more
 * connections.
 */
static bool
is_full(const char *line, size_t len)
{
	/* the limits of PgBouncer 1.18 to 1.24, and of the server behind it */
	static const char *const texts[] = {
		"no more connections allowed",
		"client connections exceeded",
		"too many clients already",
		"too many connections for",
		"remaining connection slots are reserved",
	};

	if (strncmp(line, "53300", 5) == 0)
		return true;
	if (strncmp(line, "08P01", 5) != 0)
		return false;
	for (int i = 0; i < lengthof(texts); i++)
		if (memmem(line, len, texts[i], strlen(texts[i])) != NULL)
			return true;
	return false;
}

bool
pgpx_libpq_strip_sqlstates(char *text)
{
	static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
	bool		full = false;
	char	   *to = text;

	for (char *line = text; line != NULL && *line != '\0';)
	{
		char	   *end = strchr(line, '\n');
		size_t		len = end != NULL ? end - line + 1 : strlen(line);
		char	   *next = line + len;

		if (strncmp(line, "LOCATION:  ", 11) != 0)
		{
			char	   *code = line;

			/*
			 * libpq writes two blanks before the SQLSTATE.  In the first line
			 * of an error the first match therefore precedes any text of the
			 * remote.
			 */
			while ((code = memmem(code, next - code, ":  ", 3)) != NULL)
			{
				code += 3;
				if (next - code > 7 && strspn(code, letters) == 5 &&
					code[5] == ':' && code[6] == ' ')
				{
					full = is_full(code, next - code);
					memmove(code, code + 7, next - code - 7);
					len -= 7;
					break;
				}
			}
			memmove(to, line, len);
			to += len;
		}
		line = next;
	}
	*to = '\0';					/* NOLINT(clang-analyzer-core.*): text is not NULL */
	return full;
}

bool
pgpx_libpq_is_unauthorized(const char *text)
{
	return strstr(text, ":  28P01: ") != NULL ||
		strstr(text, ":  28000: ") != NULL;
}
