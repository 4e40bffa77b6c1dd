/*-------------------------------------------------------------------------
 *
 * remote_error.c
 *	  Errors and notices of a remote server, as errors and notices here.
 *
 * Every field may be missing, the SQLSTATE too, and every text may be anything.
 *
 *-------------------------------------------------------------------------
 */
#include "remote_error.h"

#include "mb/pg_wchar.h"
#include "utils/elog.h"

#define TEXT_MAX (64 * 1024)	/* of a field: more is cut off */

char *
pgpx_text_clean(char *text)
{
	int			len = strlen(text);
	int			valid = pg_encoding_verifymbstr(GetDatabaseEncoding(), text,
												len);

	/* one that was cut off in mid-character loses that character only */
	if (valid < len && len - valid < MAX_MULTIBYTE_CHAR_LEN)
		text[valid] = '\0';
	else if (valid < len)
		for (char *p = text; *p; p++)
			if (IS_HIGHBIT_SET(*p))
				*p = '?';
	return text;
}

static char *
copy_text(const char *text)
{
	size_t		len;
	char	   *copy;

	if (text == NULL)
		return NULL;
	len = strlen(text);
	if (len > TEXT_MAX)
		len = TEXT_MAX;
	copy = pnstrdup(text, len);
	return pgpx_text_clean(copy);
}

/* Five of 0-9 and A-Z, and an error's; else the one of FDWs. */
static int
parse_sqlstate(const char *sqlstate, int otherwise)
{
	if (sqlstate == NULL || strlen(sqlstate) != 5)
		return otherwise;
	for (const char *p = sqlstate; *p; p++)
		if (!((*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z')))
			return otherwise;
	return MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2], sqlstate[3],
						 sqlstate[4]);
}

/* The number in a position field: at most nine digits; 0: none. */
static int
parse_position(const char *field)
{
	size_t		len = field ? strspn(field, "0123456789") : 0;

	return len > 0 && len < 10 && field[len] == '\0' ? atoi(field) : 0;
}

/*
 * Is the position inside the text?  An error at the end of the text is reported
 * one character behind it.
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
	error->fatal = fields.severity != NULL &&
		(strcmp(fields.severity, "FATAL") == 0 ||
		 strcmp(fields.severity, "PANIC") == 0);
	error->sqlstate = parse_sqlstate(fields.sqlstate, ERRCODE_FDW_ERROR);
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

/*
 * The statement is an argument of the local one, so its position is an internal
 * one for the client, as that of a statement in a function.  A client shows the
 * internal query in full: then the context does not repeat it.
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
	ereport(ERROR,
			(errcode(error->sqlstate),
			 errmsg_internal("%s", error->primary),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0,
			 query ? internalerrquery(query) : 0,
			 query && is_inside(position, query) ?
			 internalerrposition(position) : 0,
			 error->context ? errcontext("%s", error->context) : 0,
			 errcontext(sql == NULL || query == sql ? "remote SQL command on server \"%s\"" :
						"remote SQL command on server \"%s\": %s",
						server, sql)));
}

void
pgpx_remote_notice(const PgpxWireMessage *msg, int elevel, const char *server)
{
	PgpxRemoteFields fields;
	char	   *primary;
	char	   *detail;
	char	   *hint;

	if (!pgpx_wire_parse_error(msg, &fields))
		return;
	if (elevel == 0)
	{
		const char *s = fields.severity ? fields.severity : "";

		/* to the client: how much is in our log is not the remote's to say */
		elevel = strcmp(s, "WARNING") == 0 ? WARNING_CLIENT_ONLY :
			strcmp(s, "INFO") == 0 ? INFO :
			strncmp(s, "DEBUG", 5) == 0 ? DEBUG1 : NOTICE;
	}
	primary = copy_text(fields.primary ? fields.primary : "");
	detail = copy_text(fields.detail);
	hint = copy_text(fields.hint);
	ereport(elevel,
			(errcode(parse_sqlstate(fields.sqlstate,
									elevel >= WARNING ? ERRCODE_WARNING :
									ERRCODE_SUCCESSFUL_COMPLETION)),
			 errmsg_internal("%s", primary),
			 detail ? errdetail_internal("%s", detail) : 0,
			 hint ? errhint("%s", hint) : 0,
			 elevel == LOG ? errcontext("remote server \"%s\"", server) : 0));
	pfree(primary);
	if (detail)
		pfree(detail);
	if (hint)
		pfree(hint);
}
