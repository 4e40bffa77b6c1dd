/*-------------------------------------------------------------------------
 *
 * stubs.c
 *	  The functions of the server that the fuzzed sources of ../../src call, without
 *	  a server.
 *
 * Memory is allocated by malloc, so that the sanitizer detects accesses beside an
 * allocation; pfree is free.  ereport(ERROR) jumps to the harness's handler.
 * StringInfo, strlcpy and encodings are the real ones, from libpgcommon and libpgport.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <time.h>

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "fuzz.h"

sigjmp_buf	fuzz_error;
bool		fuzz_may_throw = false;
sigjmp_buf *PG_exception_stack = NULL;
ErrorContextCallback *error_context_stack = NULL;

/* Memory that a run has not freed is freed at its end, as in a memory context. */
typedef struct Chunk
{
	struct Chunk *next;
	struct Chunk *prev;
} Chunk;

static Chunk chunks = {&chunks, &chunks};
MemoryContext TopMemoryContext = NULL;
MemoryContext CurrentMemoryContext = NULL;
MemoryContext ErrorContext = NULL;
volatile uint32 CritSectionCount = 0;
volatile uint32 InterruptHoldoffCount = 0;
volatile uint32 QueryCancelHoldoffCount = 0;
volatile sig_atomic_t ProcDiePending = false;
bool		assert_enabled = true;

static void *
allocate(size_t size)
{
	Chunk	   *chunk = malloc(sizeof(Chunk) + size);

	if (chunk == NULL)
		abort();
	chunk->next = chunks.next;
	chunk->prev = &chunks;
	chunks.next->prev = chunk;
	chunks.next = chunk;
	return chunk + 1;
}

void
fuzz_free_all(void)
{
	while (chunks.next != &chunks)
		pfree(chunks.next + 1);
}

void *
palloc(Size size)
{
	return allocate(size);
}

void *
palloc0(Size size)
{
	return memset(allocate(size), 0, size);
}

void *
MemoryContextAlloc(MemoryContext context, Size size)
{
	return allocate(size);
}

/* never fails: an allocation of 64 MB exceeds the harness's limit */
void *
MemoryContextAllocExtended(MemoryContext context, Size size, int flags)
{
	return (flags & MCXT_ALLOC_ZERO) != 0 ?
		MemoryContextAllocZero(context, size) :
		MemoryContextAlloc(context, size);
}

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return palloc0(size);
}

void *
repalloc(void *pointer, Size size)
{
	Chunk	   *old = (Chunk *) pointer - 1;
	Chunk	   *chunk = realloc(old, sizeof(Chunk) + size);

	if (chunk == NULL)
		abort();
	chunk->next->prev = chunk;
	chunk->prev->next = chunk;
	return chunk + 1;
}

void *
repalloc_huge(void *pointer, Size size)
{
	return repalloc(pointer, size);
}

void
pfree(void *pointer)
{
	Chunk	   *chunk = (Chunk *) pointer - 1;

	chunk->next->prev = chunk->prev;
	chunk->prev->next = chunk->next;
	free(chunk);
}

char *
pstrdup(const char *s)
{
	return strcpy(palloc(strlen(s) + 1), s);
}

char *
pnstrdup(const char *s, Size len)
{
	size_t		n = strnlen(s, len);
	char	   *copy = palloc(n + 1);

	memcpy(copy, s, n);
	copy[n] = '\0';
	return copy;
}

char *
psprintf(const char *format, ...)
{
	char		text[8192];
	va_list		args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return pstrdup(text);
}

/* --- StringInfo, as lib/stringinfo.c ------------------------------------- */

void
initStringInfo(StringInfo str)
{
	str->data = palloc(1024);
	str->maxlen = 1024;
	resetStringInfo(str);
}

void
resetStringInfo(StringInfo str)
{
	str->data[0] = '\0';
	str->len = 0;
	str->cursor = 0;
}

void
enlargeStringInfo(StringInfo str, int needed)
{
	int			newlen = str->maxlen;

	if (needed < 0 || (Size) needed >= MaxAllocSize - (Size) str->len)
		fuzz_throw();
	needed += str->len + 1;
	if (needed <= str->maxlen)
		return;
	while (newlen < needed)
		newlen *= 2;
	str->data = repalloc(str->data, newlen);
	str->maxlen = newlen;
}

void
appendBinaryStringInfo(StringInfo str, FUZZ_BINARY data, int len)
{
	enlargeStringInfo(str, len);
	memcpy(str->data + str->len, data, len);
	str->len += len;
	str->data[str->len] = '\0';
}

void
appendStringInfoString(StringInfo str, const char *s)
{
	appendBinaryStringInfo(str, s, strlen(s));
}

void
appendStringInfoChar(StringInfo str, char c)
{
	appendBinaryStringInfo(str, &c, 1);
}

void
appendStringInfo(StringInfo str, const char *format, ...)
{
	char		text[8192];
	va_list		args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	appendStringInfoString(str, text);
}

/* --- errors ---------------------------------------------------------------- */

void
fuzz_throw(void)
{
	if (!fuzz_may_throw)
		abort();
	siglongjmp(PG_exception_stack != NULL ? *PG_exception_stack : fuzz_error, 1);
}

void
pg_re_throw(void)
{
	fuzz_throw();
}

static int	level;
static int	code;

bool
errstart(int elevel, const char *domain)
{
	level = elevel;
	code = elevel >= ERROR ? ERRCODE_INTERNAL_ERROR : 0;
	return true;
}

bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	int			thrown = level;

	for (ErrorContextCallback *c = error_context_stack; c != NULL; c = c->previous)
		c->callback(c->arg);
	if (thrown >= ERROR)
		fuzz_throw();
}

/* Messages are formatted, so that a wrong format or argument is detected. */
#define TEXT_STUB(name) \
int \
name(const char *format, ...) \
{ \
	char		text[8192]; \
	va_list		args; \
\
	va_start(args, format); \
	vsnprintf(text, sizeof(text), format, args); \
	va_end(args); \
	return 0; \
}

TEXT_STUB(errmsg)
TEXT_STUB(errmsg_internal)
TEXT_STUB(errdetail)
TEXT_STUB(errdetail_internal)
TEXT_STUB(errhint)
TEXT_STUB(errcontext_msg)

int
errdetail_plural(const char *singular, const char *plural, unsigned long n, ...)
{
	char		text[8192];
	va_list		args;

	va_start(args, n);
	vsnprintf(text, sizeof(text), n == 1 ? singular : plural, args);
	va_end(args);
	return 0;
}

int
varstr_levenshtein_less_equal(const char *source, int slen, const char *spec,
							  int tlen, int ins_c, int del_c, int sub_c,
							  int max_d, bool trusted)
{
	return slen > tlen ? slen - tlen : tlen - slen;
}

const char *
quote_identifier(const char *ident)
{
	return ident;
}

char *
format_type_extended(Oid type_oid, int32 typemod, uint16 flags)
{
	return type_oid % 2 == 0 ? NULL : pstrdup("integer");
}

int
internalerrposition(int cursorpos)
{
	return 0;
}

int
internalerrquery(const char *query)
{
	return (int) strlen(query);
}

int
set_errcontext_domain(const char *domain)
{
	return 0;
}

int
errcode(int sqlerrcode)
{
	code = sqlerrcode;
	return 0;
}

int
errcode_for_socket_access(void)
{
	return 0;
}

void
ExceptionalCondition(const char *conditionName, FUZZ_ASSERT_TYPE
					 const char *fileName, int lineNumber)
{
	fprintf(stderr, "assertion \"%s\" fails in %s:%d\n", conditionName,
			fileName, lineNumber);
	abort();
}

/* --- parsers of GUCs: the outlines of settings.c ---------------------------------- */

bool
parse_int(const char *value, int *result, int flags, const char **hintmsg)
{
	char	   *end;
	double		v;

	errno = 0;
	v = strtol(value, &end, 0);
	if (end == value || errno != 0 || v > INT_MAX || v < INT_MIN)
		return false;
	while (isspace((unsigned char) *end))
		end++;
	*result = (int) v;
	return *end == '\0';
}

bool
parse_real(const char *value, double *result, int flags, const char **hintmsg)
{
	static const struct
	{
		const char *name;
		double		seconds;
	}			units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60},
						   {"h", 3600}, {"d", 86400}};
	char	   *end;
	double		v;

	errno = 0;
	v = strtod(value, &end);
	if (end == value || errno == ERANGE || isnan(v))
		return false;
	while (isspace((unsigned char) *end))
		end++;
	for (int i = 0; i < lengthof(units) && *end != '\0'; i++)
	{
		size_t		len = strlen(units[i].name);

		if (strncmp(end, units[i].name, len) == 0 &&
			(end[len] == '\0' || isspace((unsigned char) end[len])))
		{
			v *= units[i].seconds;
			end += len;
			break;
		}
	}
	while (isspace((unsigned char) *end))
		end++;
	*result = v;
	return *end == '\0';
}

bool
parse_bool(const char *value, bool *result)
{
	*result = pg_strcasecmp(value, "true") == 0 || pg_strcasecmp(value, "on") == 0;
	return *result || pg_strcasecmp(value, "false") == 0 ||
		pg_strcasecmp(value, "off") == 0;
}

Oid
get_extension_oid(const char *extname, bool missing_ok)
{
	return InvalidOid;
}

/*
 * Each byte of the text is read and may be written.  A text with an empty name is not
 * valid.  The list stays empty, because only warnings depend on it.
 */
bool
SplitIdentifierString(char *rawstring, char separator, List **namelist)
{
	char	   *name = rawstring;

	*namelist = NIL;
	if (*rawstring == '\0')
		return true;
	for (;;)
	{
		char	   *end = strchr(name, separator);

		if (*name == separator || *name == '\0')
			return false;
		if (end == NULL)
			return true;
		*end = '\0';
		name = end + 1;
	}
}
