/*-------------------------------------------------------------------------
 *
 * statement_cache.c
 *	  The statement cache: statements that stay prepared on a connection,
 *	  and the classes of texts, which determine whether they may.
 *
 * With the server option statement_cache, a connection keeps statements
 * prepared when its lease ends, so that the remote need not parse and plan them
 * again.
 *
 * What is prepared
 *	 The second execution of a text prepares it.  Its name is a SHA-256 hash,
 *	 cut to 128 bits, of a secret of this server run, the pool, the local user
 *	 and the text.  Parameters have no declared types, so the remote infers them
 *	 from the text.  The parameters of INSERT and UPDATE of a foreign table have
 *	 the types of its remote columns, which usually change together with those
 *	 of its local columns.  So the types of the local columns are part of the
 *	 hash.
 *	 The table of a connection (conn_state.h) lists its statements.  It is
 *	 bounded in number and in bytes of text; the least recently used statements
 *	 are closed in the same pipeline that prepares another one.
 *	 A statement enters the table when its ParseComplete was read.  From its
 *	 Parse until then the table is marked as UNKNOWN, because the local session
 *	 may exit before it has read the outcome.
 *
 * What is not prepared
 *	 Only a text of the class CACHEABLE may be prepared (pgpx_statement_class):
 *	 a query, unless the value of one of its literals may change.
 *	 A text of the class OTHER, such as DDL, SET, DO, CALL, PREPARE or
 *	 DEALLOCATE, makes the table UNKNOWN: the lease sends all its further texts
 *	 as without a cache, and the reset is DISCARD ALL.  A temporary table that
 *	 it creates therefore hides another table, as usual.
 *
 * Settings
 *	 PostgreSQL evaluates literals when it parses, and does not parse again if
 *	 TimeZone changes, for example.  So no statement may be prepared after SET.
 *	 Functions in PL/pgSQL and SQL keep plans, too, which only DISCARD PLANS
 *	 drops.  DISCARD PLANS also has all prepared statements analyzed and planned
 *	 again (ResetPlanCache in plancache.c), which takes as long as to prepare
 *	 them again.  Therefore the reset is DISCARD ALL after SET, and all resets
 *	 of other leases are without DISCARD PLANS.
 *	 If a function changes a setting that literals depend on, the remote reports
 *	 it (settings_changed in wire.h), which has the effect of SET.  Foreign
 *	 tables ignore the reports, because their transactions begin with SET LOCAL.
 *	 After a reload of its configuration, the remote server reports a new
 *	 TimeZone in its next answer.  That may be the answer to a reset, to the
 *	 test of a free connection, or to the COMMIT of a transaction on foreign
 *	 tables (session_timezone in wire.h).
 *
 * The reset
 *	 If the table is USABLE, the reset does what DISCARD ALL does, except
 *	 DEALLOCATE ALL and DISCARD PLANS.  A function that a query calls can
 *	 execute PREPARE and DEALLOCATE, too, which no text shows.  So the reset
 *	 fails if a statement exists that was prepared by SQL: then the connection
 *	 closes.  SQL can therefore not replace a statement of ours, although it can
 *	 read its name in pg_prepared_statements, and no statement that a user has
 *	 prepared survives a lease.
 *	 Before another local user gets the connection (in a pool of a PUBLIC
 *	 mapping), DISCARD ALL is sent.
 *
 * Changes at the remote
 *	 PostgreSQL parses and plans a prepared statement again if a table of it, or
 *	 search_path, or with row security the role, has changed
 *	 (RevalidateCachedQuery in plancache.c).  If its result then has other
 *	 columns, Bind fails with 0A000.  The types of its parameters stay the same,
 *	 so Bind also fails if an expression does not accept them any more, if a
 *	 value is not of that type, or if the type was dropped.  If a function has
 *	 deallocated the statement, Bind fails with 26000.  In each case the
 *	 statement was not executed.  Outside of a transaction it is closed, parsed
 *	 and executed again.  This is done after any failed Bind, unless its
 *	 SQLSTATE shows that a Parse would fail, too.
 *	 Within a transaction the error would abort the transaction.  So there a
 *	 call uses a statement only if this transaction has parsed it: the
 *	 transaction has locks on its tables, which prevent that they change.
 *	 Otherwise it is closed and parsed again.  After a command such as ROLLBACK
 *	 TO, which releases locks, no statement counts as parsed in the transaction.
 *
 * Foreign tables
 *	 Their statements have names of their own, because their transactions parse
 *	 literals with other settings (fdw/remote_statement.c).
 *	 If Bind fails in the first statement of the transaction, the transaction
 *	 begins again.  A later statement is preceded by a savepoint, unless this
 *	 transaction has executed it before; after a failed Bind it is rolled back
 *	 to the savepoint and sent again.
 *
 *-------------------------------------------------------------------------
 */
#include "session/statement_cache.h"

#include <ctype.h>
#include <inttypes.h>

#include "common/cryptohash.h"
#include "common/sha2.h"

#define COMMAND(text, tag) text ";"

static const char keeping_reset[] = PGPX_KEEPING_RESET(COMMAND);

static inline PgpxPreparedTable *
table_of(const PgpxLease *lease)
{
	return &pgpx_prepared_tables[lease->conn];
}

/*
 * Lock the pool so that the table can be changed.  Return NULL, without the
 * lock, if the lease was revoked: the slot may have another connection by then.
 */
static PgpxPreparedTable *
lock_table(const PgpxLease *lease, LWLock **lock)
{
	*lock = pgpx_pools[lease->spec->pool].lock;
	LWLockAcquire(*lock, LW_SHARED);
	if (pg_atomic_read_u64(&pgpx_conns[lease->conn].lease_id) == lease->id)
		return table_of(lease);
	LWLockRelease(*lock);
	return NULL;
}

/*
 * Return whether prepared statements may be executed: now, or when the option
 * statement_cache is no longer 0, if no reset drops them before.
 */
static bool
has_table(const PgpxLease *lease)
{
	return lease->spec->statement_cache > 0 ||
		(lease->spec->opts.reset != PGPX_RESET_ALWAYS &&
		 table_of(lease)->n > 0);
}

void
pgpx_statement_cache_set_unknown(PgpxLease *lease)
{
	LWLock	   *lock;
	PgpxPreparedTable *table;

	if (!has_table(lease) || (table = lock_table(lease, &lock)) == NULL)
		return;
	table->state = PGPX_PREPARED_UNKNOWN;
	LWLockRelease(lock);
}

bool
pgpx_statement_cache_note(PgpxLease *lease, const char *sql, bool single)
{
	PgpxPreparedTable *table = table_of(lease);

	if (!has_table(lease))
		return false;
	pgpx_statement_cache_update(lease);
	if (table->state == PGPX_PREPARED_UNKNOWN)
		return false;
	switch (pgpx_statement_class(sql, single))
	{
		case PGPX_CLASS_CACHEABLE:
			return lease->spec->statement_cache > 0;
		case PGPX_CLASS_HARMLESS:
			lease->nparsed = 0;
			break;
		case PGPX_CLASS_OTHER:
			pgpx_statement_cache_set_unknown(lease);
			break;
	}
	return false;
}

bool
pgpx_statement_cache_key(const PgpxServerSpec *spec, Oid user,
						 PgpxStatementOrigin origin,
						 const PgpxStatement *statement,
						 PgpxPreparedChoice *choice)
{
	struct
	{
		uint64		secret[2];
		uint32		pool_id;
		Oid			user;
		uint64		origin;
		uint64		types;
	}			salt = {
		.secret = {pgpx_shared->secret[0], pgpx_shared->secret[1]},
		.pool_id = spec->pool_id,
		.user = OidIsValid(spec->user) ? spec->user : user,
		.origin = origin,
		.types = statement->types,
	};
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	const char *sql = statement->sql;
	size_t		len = strlen(sql);
	pg_cryptohash_ctx *ctx;

	memset(choice, 0, sizeof(*choice));
	if (len >= PGPX_PREPARED_TEXT_MAX ||
		(ctx = pg_cryptohash_create(PG_SHA256)) == NULL)
		return false;
	if (pg_cryptohash_init(ctx) >= 0 &&
		pg_cryptohash_update(ctx, (uint8 *) &salt, sizeof(salt)) >= 0 &&
		pg_cryptohash_update(ctx, (const uint8 *) sql, len) >= 0 &&
		pg_cryptohash_final(ctx, digest, sizeof(digest)) >= 0)
		choice->bytes = Max(len + 1, PGPX_PREPARED_TEXT_MIN);
	pg_cryptohash_free(ctx);
	memcpy(&choice->key, digest, sizeof(choice->key));
	return choice->bytes > 0;
}

void
pgpx_statement_cache_name(char name[PGPX_CACHED_NAME_LEN], const char *kind,
						  const PgpxPreparedKey *key)
{
	snprintf(name, PGPX_CACHED_NAME_LEN,
			 "%spgpx_"
			 "%016" PRIx64 "%016" PRIx64,
			 kind,
			 key->hash[0], key->hash[1]);
}

/* Return whether the current remote transaction has parsed the statement. */
static bool
is_parsed_here(const PgpxLease *lease, const PgpxPreparedKey *key)
{
	for (int i = 0; i < Min(lease->nparsed, PGPX_PARSED_MAX); i++)
		if (memcmp(&lease->parsed[i], key, sizeof(*key)) == 0)
			return true;
	return false;
}

/* Record how a statement was sent, by this holder or the previous one. */
static void
note_choice(PgpxLease *lease, const PgpxPreparedChoice *choice)
{
	lease->cached_key = choice->key;
	if (choice->use == PGPX_PREPARED_PARSE)
	{
		lease->preparing = true;
		lease->preparing_closes = choice->ncloses > 1;
		lease->preparing_bytes = choice->bytes;
	}
	else if (choice->use == PGPX_PREPARED_EXECUTE)
		lease->usage.cache_hits++;
}

bool
pgpx_statement_cache_find(PgpxLease *lease, bool again,
						  PgpxPreparedChoice *choice)
{
	PgpxPreparedTable *table;
	LWLock	   *lock;

	pgpx_statement_cache_update(lease);
	table = lock_table(lease, &lock);
	if (table == NULL)
		return false;
	pgpx_prepared_choose(table, lease->spec->statement_cache, again, choice);
	LWLockRelease(lock);
	note_choice(lease, choice);
	return choice->use != PGPX_PREPARED_NONE;
}

bool
pgpx_statement_cache_is_usable(PgpxLease *lease)
{
	pgpx_statement_cache_update(lease);
	return lease->spec->statement_cache > 0 &&
		table_of(lease)->state == PGPX_PREPARED_USABLE;
}

bool
pgpx_statement_cache_choose(PgpxLease *lease, const PgpxStatement *statement,
							PgpxCachedStatement *cached)
{
	PgpxPipeline *p = &cached->pipeline;
	char		tx = lease->sock->wire.tx;
	PgpxPreparedChoice choice;
	bool		again;

	if (tx == 'E' ||
		!pgpx_statement_cache_key(lease->spec, lease->user, PGPX_ORIGIN_CALL,
								  statement, &choice))
		return false;
	if (tx == 'I')
		lease->nparsed = 0;
	again = tx != 'I' && !is_parsed_here(lease, &choice.key);
	if (!pgpx_statement_cache_find(lease, again, &choice))
		return false;

	memset(p, 0, sizeof(*p));
	for (int i = 0; i < choice.ncloses; i++)
	{
		pgpx_statement_cache_name(cached->closes[i], "S", &choice.closes[i]);
		cached->close_list[i] = cached->closes[i];
	}
	p->ncloses = choice.ncloses;
	p->closes = cached->close_list;
	pgpx_statement_cache_name(cached->name, "", &choice.key);
	p->name = cached->name;
	p->parse = choice.use == PGPX_PREPARED_PARSE;
	p->statement = statement;
	p->portal = "";
	p->describe = true;
	return true;
}

void
pgpx_statement_cache_note_sent(PgpxLease *lease,
							   const PgpxPreparedChoice *choice)
{
	lease->sent_as = choice->use;
	note_choice(lease, choice);
}

/* Record whether the last statement was prepared, if its answer shows it. */
static void
record_prepared(PgpxLease *lease)
{
	const PgpxWire *wire = &lease->sock->wire;
	LWLock	   *lock;
	PgpxPreparedTable *table;

	if (!lease->preparing || (!wire->parsed && wire->phase != PGPX_WIRE_IDLE))
		return;
	lease->preparing = false;

	/* after an error the Close messages may not have been processed */
	if (!wire->parsed && lease->preparing_closes)
		return;
	table = lock_table(lease, &lock);
	if (table == NULL)
		return;
	table->state = PGPX_PREPARED_USABLE;
	if (wire->parsed)
	{
		if (pgpx_prepared_add(table, &lease->cached_key,
							  lease->preparing_bytes) < 0)
			table->state = PGPX_PREPARED_UNKNOWN;
		lease->parsed[lease->nparsed++ % PGPX_PARSED_MAX] = lease->cached_key;
		lease->usage.prepared++;
	}
	LWLockRelease(lock);
}

/* Record the TimeZone that an answer has reported, if one has. */
static void
note_timezone(PgpxLease *lease)
{
	PgpxWire   *wire = &lease->sock->wire;
	LWLock	   *lock;
	PgpxPreparedTable *table;

	if (wire->session_timezone == 0 ||
		(table = lock_table(lease, &lock)) == NULL)
		return;
	pgpx_prepared_note_timezone(table, wire->session_timezone);
	LWLockRelease(lock);
	wire->session_timezone = 0;
}

void
pgpx_statement_cache_update(PgpxLease *lease)
{
	record_prepared(lease);
	note_timezone(lease);
	if (lease->sock->wire.settings_changed &&
		lease->scope != PGPX_SCOPE_TABLE &&
		table_of(lease)->state == PGPX_PREPARED_USABLE)
		pgpx_statement_cache_set_unknown(lease);
}

/*
 * Return whether a failed Bind would probably fail again after another Parse.
 *
 * Any other error may result from the types that the parameters had when the
 * statement was parsed.  For example, the SQLSTATE is XX000 if a type was
 * dropped, and 23514 if a type is a domain.
 */
static bool
is_lasting_error(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_TO_CATEGORY(ERRCODE_CONNECTION_EXCEPTION):
		case ERRCODE_TO_CATEGORY(ERRCODE_INVALID_TRANSACTION_STATE):
		case ERRCODE_TO_CATEGORY(ERRCODE_TRANSACTION_ROLLBACK):
		case ERRCODE_TO_CATEGORY(ERRCODE_INSUFFICIENT_RESOURCES):
		case ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION):
			return true;
		default:
			return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
	}
}

bool
pgpx_statement_cache_drop_refused(PgpxLease *lease, int sqlstate)
{
	const PgpxWire *wire = &lease->sock->wire;
	LWLock	   *lock;
	PgpxPreparedTable *table;

	/* nbefore > 0: the statement was skipped, because a command has failed */
	if (wire->bound || wire->nbefore > 0 || wire->phase != PGPX_WIRE_IDLE ||
		is_lasting_error(sqlstate))
		return false;
	table = lock_table(lease, &lock);
	if (table == NULL)
		return false;
	pgpx_prepared_remove(table, &lease->cached_key);

	/* a function has executed DEALLOCATE or DISCARD */
	if (sqlstate == ERRCODE_UNDEFINED_PSTATEMENT)
		table->state = PGPX_PREPARED_UNKNOWN;
	LWLockRelease(lock);
	return true;
}

const char *
pgpx_statement_cache_choose_reset(PgpxLease *lease, bool full)
{
	const PgpxServerSpec *spec = lease->spec;
	LWLock	   *lock;
	PgpxPreparedTable *table;
	bool		keep;

	pgpx_statement_cache_update(lease);
	table = lock_table(lease, &lock);
	if (table == NULL)
		return spec->reset_command;
	keep = pgpx_prepared_begin_reset(table, full ? 0 : spec->statement_cache);
	LWLockRelease(lock);
	lease->preparing = false;
	return keep ? keeping_reset : spec->reset_command;
}

size_t
pgpx_statement_cache_reset_length(const PgpxLease *lease)
{
	return Max(strlen(lease->spec->reset_command), sizeof(keeping_reset));
}

bool
pgpx_statement_cache_must_drop(const PgpxLease *lease)
{
	const PgpxPreparedTable *table = table_of(lease);

	return (table->n > 0 || table->state != PGPX_PREPARED_USABLE) &&
		pgpx_conns[lease->conn].last_user != lease->user;
}

/* --- Classes of texts -------------------------------------------------------
 *
 * The text is split into words, also within quotes and comments, except for
 * comments at its beginning.  So a word in a literal counts, too, which only
 * means that less is cached.  If the class is uncertain, it is the more
 * cautious one.
 */

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
};

/*
 * Words of literals whose value may change.  PostgreSQL evaluates a literal
 * when it parses the statement.  With one of these words the value depends on
 * the time, or is the OID of an object whose changes do not cause prepared
 * statements to be parsed again (those of regclass do).  The time zone of a
 * timetz depends on the date.  UESCAPE may hide a word.
 */
static const char *const volatile_literals[] = {
	"now",
	"today",
	"tomorrow",
	"yesterday",
	"timetz",
	"uescape",
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

/* A digit ends a word, as in the literal 'today12:00'. */
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

/* Where a scan of a text for quotes has got to. */
typedef struct QuoteScan
{
	const char *p;
	char		quote;			/* ' or " in a literal or identifier, else 0 */
	bool		unknown;		/* a comment or a dollar quote could hide one */
} QuoteScan;

/* Continue the scan up to p.  Return whether p can be within a literal. */
static bool
may_be_in_literal(QuoteScan *scan, const char *p)
{
	for (; scan->p < p && !scan->unknown; scan->p++)
	{
		const char *c = scan->p;

		if (scan->quote != '\0')
		{
			if (*c == scan->quote)
				scan->quote = '\0';
		}
		else if (*c == '\'' || *c == '"')
			scan->quote = *c;
		else
			scan->unknown = (*c == '$' && !isdigit((unsigned char) c[1])) ||
				(c[0] == '-' && c[1] == '-') || (c[0] == '/' && c[1] == '*');
	}
	return scan->unknown || scan->quote == '\'';
}

/*
 * Return whether a word is in volatile_literals.  at: its position in the text
 * of the scan; behind: the text after it.
 */
static bool
is_volatile_literal(const char *word, QuoteScan *scan, const char *at,
					const char *behind)
{
	size_t		len;

	/* the function now() is evaluated at each execution, the literal is not */
	if (strcmp(word, "now") == 0 && behind[strspn(behind, " \t\n\r")] == '(')
		return may_be_in_literal(scan, at);

	/* a date can have underscores around the word, as in '_today' */
	word += strspn(word, "_");
	len = strcspn(word, "_");
	if (word[len + strspn(word + len, "_")] != '\0')
		return false;
	for (int i = 0; i < lengthof(volatile_literals); i++)
		if (strlen(volatile_literals[i]) == len &&
			memcmp(word, volatile_literals[i], len) == 0)
			return true;
	return false;
}

/* What the text since the last quote consists of. */
typedef enum Gap
{
	GAP_OTHER,					/* not only white space and comments */
	GAP_LINE,					/* white space, without a line end */
	GAP_COMMENT,				/* .. and a comment that has not ended */
	GAP_NEWLINE					/* .. and a line end */
} Gap;

/*
 * Return whether the character at p is a quote that continues a literal of an
 * earlier line, as in 'to' newline 'day'.  Update *gap for the character.
 */
static bool
continue_literal(const char *p, Gap *gap)
{
	Gap			before = *gap;

	if (before != GAP_OTHER && (*p == '\n' || *p == '\r'))
		*gap = GAP_NEWLINE;
	else if (before == GAP_COMMENT)
		return false;			/* also for a quote in the comment */
	else if (*p == '\'')
		*gap = GAP_LINE;
	else if (before == GAP_OTHER)
		return false;
	else if (p[0] == '-' && p[1] == '-')
		*gap = GAP_COMMENT;
	else if (!isspace((unsigned char) *p))
		*gap = GAP_OTHER;
	return *p == '\'' && before == GAP_NEWLINE;
}

/*
 * Return the class of the text from p on, whose first word has the given class.
 */
static PgpxStatementClass
class_of_rest(const char *p, PgpxStatementClass class, bool single)
{
	char		word[WORD_MAX] = "";
	char		previous[WORD_MAX];
	const char *end = p;		/* end of the previous word */
	bool		adjacent;
	QuoteScan	scan = {.p = p};
	Gap			gap = GAP_OTHER;

	while (*p != '\0')
	{
		const char *at = p;

		if (*p == ';' && !single && p[1 + strspn(p + 1, " \t\n\r;")] != '\0')
			return PGPX_CLASS_OTHER;

		/* a literal with an escape or of several lines could hide a word */
		if ((continue_literal(p, &gap) || *p == '\\') &&
			class == PGPX_CLASS_CACHEABLE)
			class = PGPX_CLASS_HARMLESS;
		if (!is_word_char(*p))
		{
			p++;
			continue;
		}
		strcpy(previous, word);
		adjacent = end + strspn(end, " \t\n\r\f\v") == at;
		end = p = read_word(p, word);

		/* no other letter begins a word that matters */
		if (strchr("inprstuwy_", word[0]) == NULL)
			continue;

		/* SELECT INTO creates a table, whose name may hide another one */
		if (strcmp(word, "into") == 0 &&
			!(adjacent && (strcmp(previous, "insert") == 0 || strcmp(previous, "merge") == 0)))
			return PGPX_CLASS_OTHER;

		/* an UPDATE of the view pg_settings changes settings */
		if (strcmp(word, "set_config") == 0 || strcmp(word, "pg_settings") == 0)
			return PGPX_CLASS_OTHER;
		if (class == PGPX_CLASS_CACHEABLE &&
			(is_volatile_literal(word, &scan, at, p) ||
			 (strcmp(previous, "time") == 0 && strcmp(word, "with") == 0)))
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
pgpx_statement_is_query(const char *sql)
{
	char		word[WORD_MAX];

	(void) read_word(skip_lead(sql), word);
	if (strcmp(word, "with") == 0)
		return !pgpx_statement_has_word(sql, "insert") &&
			!pgpx_statement_has_word(sql, "update") &&
			!pgpx_statement_has_word(sql, "delete") &&
			!pgpx_statement_has_word(sql, "merge");
	return strcmp(word, "select") == 0 || strcmp(word, "values") == 0 ||
		strcmp(word, "table") == 0;
}

bool
pgpx_statement_can_be_simple(const char *sql)
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
