/*-------------------------------------------------------------------------
 *
 * statement_class.c
 *	  Classes of statement texts: which ones may stay prepared.
 *
 * The text is split into words, without regard to quotes and comments in its
 * middle.  So a word in a literal counts, too, which only means that less is
 * cached.  Where the class is uncertain it is the more cautious one.
 *
 *-------------------------------------------------------------------------
 */
#include "session/statement_class.h"

#include <ctype.h>

#define WORD_MAX 16				/* longer words are truncated */

/* The first words of statements.  All others are of the class OTHER. */
static const struct
{
	const char *word;
	PgpxStatementClass class;
}			first_words[] = {
	{"select", PGPX_CLASS_CACHEABLE},
	{"insert", PGPX_CLASS_CACHEABLE},
	{"update", PGPX_CLASS_CACHEABLE},
	{"delete", PGPX_CLASS_CACHEABLE},
	{"with", PGPX_CLASS_CACHEABLE},
	{"values", PGPX_CLASS_CACHEABLE},
	{"table", PGPX_CLASS_CACHEABLE},
	{"merge", PGPX_CLASS_CACHEABLE},
	{"begin", PGPX_CLASS_HARMLESS},
	{"start", PGPX_CLASS_HARMLESS},
	{"commit", PGPX_CLASS_HARMLESS},
	{"end", PGPX_CLASS_HARMLESS},
	{"rollback", PGPX_CLASS_HARMLESS},
	{"abort", PGPX_CLASS_HARMLESS},
	{"savepoint", PGPX_CLASS_HARMLESS},
	{"release", PGPX_CLASS_HARMLESS},
	{"declare", PGPX_CLASS_HARMLESS},
	{"fetch", PGPX_CLASS_HARMLESS},
	{"move", PGPX_CLASS_HARMLESS},
	{"close", PGPX_CLASS_HARMLESS},
	{"show", PGPX_CLASS_HARMLESS},
	{"lock", PGPX_CLASS_HARMLESS},
	{"listen", PGPX_CLASS_HARMLESS},
	{"unlisten", PGPX_CLASS_HARMLESS},
	{"notify", PGPX_CLASS_HARMLESS},
	{"set", PGPX_CLASS_SETTING},
	{"reset", PGPX_CLASS_SETTING},
};

/*
 * PostgreSQL evaluates literals when it parses a statement.  With one of these
 * words the value depends on the time, or is the OID of an object that
 * PostgreSQL does not track in prepared statements.  It tracks regclass.
 */
static const char *const volatile_literals[] = {
	"now",
	"today",
	"tomorrow",
	"yesterday",
	"regproc",
	"regprocedure",
	"regoper",
	"regoperator",
	"regtype",
	"regrole",
	"regnamespace",
	"regconfig",
	"regdictionary",
	"regcollation",
};

static bool
is_word_char(char c)
{
	return isalnum((unsigned char) c) || c == '_' || c == '$' ||
		IS_HIGHBIT_SET(c);
}

/*
 * Return the position behind the white space, comments and opening parentheses
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

/* Read the word at p in lower case.  Returns the position behind it. */
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

static bool
is_volatile_literal(const char *word, const char *behind)
{
	/* the function is evaluated at each execution */
	if (strcmp(word, "now") == 0 && behind[strspn(behind, " \t\n\r")] == '(')
		return false;
	for (int i = 0; i < lengthof(volatile_literals); i++)
		if (strcmp(word, volatile_literals[i]) == 0)
			return true;
	return false;
}

/*
 * Return the class of the text from p on, whose first word has the given class.
 */
static PgpxStatementClass
class_of_rest(const char *p, PgpxStatementClass class, bool single)
{
	char		word[WORD_MAX];
	bool		inserts = false;	/* the previous word: INTO may follow */

	while (*p != '\0')
	{
		if (*p == ';' && !single && p[1 + strspn(p + 1, " \t\n\r;")] != '\0')
			return PGPX_CLASS_OTHER;

		/* an escape in a literal could hide one of the words */
		if (*p == '\\' && class == PGPX_CLASS_CACHEABLE)
			class = PGPX_CLASS_HARMLESS;
		if (!is_word_char(*p))
		{
			p++;
			continue;
		}
		p = read_word(p, word);

		/* the first letters of all words that matter */
		if (strchr("imnrsty", word[0]) == NULL)
		{
			inserts = false;
			continue;
		}

		/* SELECT INTO creates a table, whose name may hide another one */
		if (strcmp(word, "into") == 0 && !inserts)
			return PGPX_CLASS_OTHER;
		inserts = strcmp(word, "insert") == 0 || strcmp(word, "merge") == 0;
		if (strcmp(word, "set_config") == 0)
			class = PGPX_CLASS_SETTING;
		if (class == PGPX_CLASS_CACHEABLE && is_volatile_literal(word, p))
			class = PGPX_CLASS_HARMLESS;
	}
	return class;
}

PgpxStatementClass
pgpx_statement_class(const char *sql, bool single)
{
	char		word[WORD_MAX];
	const char *first = skip_lead(sql);

	(void) read_word(first, word);
	for (int i = 0; i < lengthof(first_words); i++)
		if (strcmp(word, first_words[i].word) == 0)
			return class_of_rest(first, first_words[i].class, single);
	return PGPX_CLASS_OTHER;
}

bool
pgpx_statement_has_word(const char *sql, const char *word)
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
pgpx_statement_fits_simple(const char *sql)
{
	static const char *const words[] = {"select", "values", "show", "with", "table",
										"copy"};

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
