/*-------------------------------------------------------------------------
 *
 * statement_cache.h
 *	  The statement cache: statements that stay prepared on a connection,
 *	  and the classes of texts, which determine whether they may.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_STATEMENT_CACHE_H
#define PGPX_STATEMENT_CACHE_H

#include "protocol/remote_message.h"

#include "base/compat.h"
#include "session/lease.h"

#define PGPX_CACHED_NAME_LEN 48

/* How to send a statement that is prepared, or to be prepared. */
typedef struct PgpxCachedStatement
{
	PgpxPipeline pipeline;
	char		name[PGPX_CACHED_NAME_LEN];
	const char *close_list[PGPX_PREPARED_EVICT_MAX];
	char		closes[PGPX_PREPARED_EVICT_MAX][PGPX_CACHED_NAME_LEN];
} PgpxCachedStatement;

/*
 * pgpx_statement_cache_note
 *		Record that a text of the user is about to be sent on the lease.
 *
 * single: the remote accepts the text only as a single statement.  Return
 * whether the text may be cached.
 */
extern bool pgpx_statement_cache_note(PgpxLease *lease, const char *sql,
									  bool single);

/*
 * pgpx_statement_cache_choose
 *		Choose how to send a cacheable statement.
 *
 * Return true, and fill in *cached except for the formats of the pipeline, if
 * the statement is prepared, or to be prepared now.  The stream must be ready
 * for the statement, and the caller must send it at once.
 */
extern bool pgpx_statement_cache_choose(PgpxLease *lease,
										const PgpxStatement *statement,
										PgpxCachedStatement *cached);

/* The origin of a statement; each has its own settings for parsing. */
typedef enum PgpxStatementOrigin
{
	PGPX_ORIGIN_CALL,
	PGPX_ORIGIN_TABLE			/* a foreign table */
} PgpxStatementOrigin;

/*
 * pgpx_statement_cache_key
 *		Compute the key of a statement in the pool of a spec.
 *
 * Set "key" and "bytes" of *choice, and clear the rest.  Return false, with
 * "bytes" 0, if the text is too long to be prepared, or if the hash function
 * fails.  The caller must have checked the class of the text.
 */
extern bool pgpx_statement_cache_key(const PgpxServerSpec *spec, Oid user,
									 PgpxStatementOrigin origin,
									 const PgpxStatement *statement,
									 PgpxPreparedChoice *choice);

/*
 * pgpx_statement_cache_find
 *		Choose how to send the statement whose key is in *choice.
 *
 * again: parse it again if it is prepared.  Return false if it is to be sent
 * unnamed, as without a cache.  Otherwise the caller must send it at once,
 * after a Close for each statement that *choice lists.
 */
extern bool pgpx_statement_cache_find(PgpxLease *lease, bool again,
									  PgpxPreparedChoice *choice);

/* Return whether the lease can use the cache at present. */
extern bool pgpx_statement_cache_is_usable(PgpxLease *lease);

/*
 * Write the name of a statement.  kind: a prefix, "S" for a Close message, else
 * "".
 */
extern void pgpx_statement_cache_name(char name[PGPX_CACHED_NAME_LEN],
									  const char *kind,
									  const PgpxPreparedKey *key);

/*
 * pgpx_statement_cache_note_sent
 *		Record how the previous holder has sent the statement of this lease.
 */
extern void pgpx_statement_cache_note_sent(PgpxLease *lease,
										   const PgpxPreparedChoice *choice);

/*
 * pgpx_statement_cache_update
 *		Record whether the last statement was prepared, and whether a setting
 *		has changed.
 *
 * To be called before the next exchange, and before the state of the table is
 * read.  If the answer has not shown yet whether the statement was prepared, a
 * later call records that.
 */
extern void pgpx_statement_cache_update(PgpxLease *lease);

/*
 * pgpx_statement_cache_drop_refused
 *		If the last statement was prepared before and its Bind has failed with
 *		this error, remove it from the table, so that it is parsed again.
 *		Return whether that is the case.
 *
 * To be called when the answer is complete.  If the result is true, the
 * statement was not executed.
 */
extern bool pgpx_statement_cache_drop_refused(PgpxLease *lease, int sqlstate);

/*
 * pgpx_statement_cache_set_unknown
 *		Record that the prepared statements of the connection are not known.
 */
extern void pgpx_statement_cache_set_unknown(PgpxLease *lease);

/*
 * pgpx_statement_cache_choose_reset
 *		Return the command that resets the connection of a lease.
 *
 * It is the reset command of the options, or one that keeps the prepared
 * statements.  full: drop them in any case.  The caller must send it, or have
 * the connection closed.
 */
extern const char *pgpx_statement_cache_choose_reset(PgpxLease *lease,
													 bool full);

/* Return an upper bound of the length of that command. */
extern size_t pgpx_statement_cache_reset_length(const PgpxLease *lease);

/*
 * pgpx_statement_cache_must_drop
 *		Return whether statements are prepared on the connection for another
 *		local user.
 */
extern bool pgpx_statement_cache_must_drop(const PgpxLease *lease);

typedef enum PgpxStatementClass
{
	PGPX_CLASS_CACHEABLE,		/* a query that may stay prepared */
	PGPX_CLASS_HARMLESS,		/* not cacheable; it changes nothing that the
								 * meaning of another text depends on */
	PGPX_CLASS_OTHER			/* it may do anything, also PREPARE and SET */
} PgpxStatementClass;

/*
 * pgpx_statement_class
 *		Return the class of a text.
 *
 * single: the remote accepts the text only as a single statement.
 */
extern PgpxStatementClass pgpx_statement_class(const char *sql, bool single);

/* Return whether a text contains a word, which must be in lower case. */
extern bool pgpx_statement_has_word(const char *sql, const char *word);

/*
 * Return whether the text is a SELECT, VALUES, TABLE, or a WITH that does not
 * write.  The result of another statement, such as FETCH or EXECUTE, can have
 * other columns at each execution.
 */
extern bool pgpx_statement_is_query(const char *sql);

/*
 * pgpx_statement_can_be_simple
 *		Return whether the text is a single statement that begins as one that
 *		reads, or a COPY.
 *
 * For a statement that reads, the simple protocol returns the same result for
 * less work on both sides.  For a statement that writes, the result may differ,
 * because only the simple protocol returns the results that a rule adds.  After
 * a refused COPY the lease stays usable only in the simple protocol, see the
 * rules of PGPX_WIRE_EXECUTE_NO_ROWS.
 */
extern bool pgpx_statement_can_be_simple(const char *sql);

#endif							/* PGPX_STATEMENT_CACHE_H */
