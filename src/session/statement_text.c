/*-------------------------------------------------------------------------
 *
 * statement_text.c
 *	  What the text of a statement shows about it, without parsing it.
 *
 * The text is split into words, also within quotes and comments, except for
 * comments at its beginning.  So a word in a literal counts, too.
 *
 *-------------------------------------------------------------------------
 */
#include "session/statement_text.h"

#include <ctype.h>

#define WORD_MAX 16				/* longer words are truncated */

static bool
is_word_char(char c)
{
	return isalpha((unsigned char) c) || c == '_' || IS_HIGHBIT_SET(c);
}

/*
 * Return the position after the white space, comments and opening parentheses
 * at p.
 */
static const char *
skip_lead(const char *p)
{
	int			depth = 0;		/* comments can be nested */

	for (;; p++)
	{
		if (p[0] == '/' && p[1] == '*')
		{
			depth++;
			p++;
		}
		else if (depth > 0 && p[0] == '*' && p[1] == '/')
		{
			depth--;
			p++;
		}
		else if (*p == '\0')
			return p;
		else if (depth > 0)
			continue;
		else if (p[0] == '-' && p[1] == '-')
		{
			p += strcspn(p, "\r\n");
			if (*p == '\0')
				return p;
		}
		else if (strchr(" \t\n\r\f\v(", *p) == NULL)
			return p;
	}
}

/* Read the word at p in lower case.  Return the position after it. */
static const char *
read_word(const char *p, char word[WORD_MAX])
{
	int			n = 0;

	for (; is_word_char(*p); p++)
		if (n < WORD_MAX - 1)
			word[n++] = pg_ascii_tolower((unsigned char) *p);
	word[n] = '\0';
	return p;
}

/* Return whether the text contains a word, which must be in lower case. */
static bool
has_word(const char *sql, const char *word)
{
	char		found[WORD_MAX];

	while (*sql != '\0')
	{
		if (!is_word_char(*sql))
		{
			sql++;
			continue;
		}
		sql = read_word(sql, found);
		if (strcmp(found, word) == 0)
			return true;
	}
	return false;
}

bool
pgpx_statement_is_query(const char *sql)
{
	char		word[WORD_MAX];

	(void) read_word(skip_lead(sql), word);
	if (strcmp(word, "with") == 0)
		return !has_word(sql, "insert") &&
			!has_word(sql, "update") &&
			!has_word(sql, "delete") &&
			!has_word(sql, "merge");
	return strcmp(word, "select") == 0 || strcmp(word, "values") == 0 ||
		strcmp(word, "table") == 0;
}

bool
pgpx_statement_can_be_simple(const char *sql)
{
	static const char *const words[] = {"select", "values", "show", "with", "table"};

	if (strchr(sql, ';') != NULL)
		return false;
	sql += strspn(sql, " \t\n\r");
	for (int i = 0; i < lengthof(words); i++)
	{
		size_t		len = strlen(words[i]);

		if (pg_strncasecmp(sql, words[i], len) == 0 &&
			!isalnum((unsigned char) sql[len]) && sql[len] != '_')
			return true;
	}
	return false;
}

bool
pgpx_statement_can_precede_reset(const char *sql, bool single)
{
	static const char *const words[] = {"select", "insert", "update", "delete",
										"with", "values", "table", "merge"};
	char		word[WORD_MAX];
	const char *end = strchr(sql, ';');

	if (!single && end != NULL && end[strspn(end, " \t\n\r;")] != '\0')
		return false;
	(void) read_word(skip_lead(sql), word);
	for (int i = 0; i < lengthof(words); i++)
		if (strcmp(word, words[i]) == 0)
			return true;
	return false;
}
