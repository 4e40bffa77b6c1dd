/*-------------------------------------------------------------------------
 *
 * libpq_text.c
 *	  What libpq says of a failed login, made fit to be shown.
 *
 * Much of it is the remote's own words: a text with a NUL behind it, and nothing
 * else is known of it.
 *
 *-------------------------------------------------------------------------
 */
#include "libpq_text.h"

/* Is this line of libpq's but the mark below the place of an error? */
static bool
is_caret(const char *line, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (line[i] != ' ' && line[i] != '^')
			return false;
	return true;
}

void
pgpx_libpq_squeeze(char *to, size_t size, const char *from)
{
	size_t		n = 0;

	while (*from != '\0')
	{
		size_t		len = strcspn(from, "\n");

		if (!is_caret(from, len))
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

bool
pgpx_libpq_take_sqlstates(char *text)
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

			/* two blanks before, as libpq writes it: no text of the remote yet */
			while ((code = memmem(code, next - code, ":  ", 3)) != NULL)
			{
				code += 3;
				if (next - code > 7 && strspn(code, letters) == 5 &&
					code[5] == ':' && code[6] == ' ')
				{
					full = strncmp(code, "53300", 5) == 0;
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
