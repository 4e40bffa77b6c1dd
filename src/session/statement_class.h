/*-------------------------------------------------------------------------
 *
 * statement_class.h
 *	  Classes of statement texts: which ones may stay prepared.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_STATEMENT_CLASS_H
#define PGPX_STATEMENT_CLASS_H

#include "base/compat.h"

typedef enum PgpxStatementClass
{
	PGPX_CLASS_CACHEABLE,		/* a query that may stay prepared */
	PGPX_CLASS_HARMLESS,		/* not cacheable; it changes nothing that the
								 * meaning of another text depends on */
	PGPX_CLASS_SETTING,			/* it may change a setting of the session */
	PGPX_CLASS_OTHER			/* it may do anything, also PREPARE */
} PgpxStatementClass;

/*
 * pgpx_statement_class
 *		Returns the class of a text.
 *
 * single: the remote accepts the text only as a single statement.
 */
extern PgpxStatementClass pgpx_statement_class(const char *sql, bool single);

/* Returns whether a text contains a word, in any case, anywhere. */
extern bool pgpx_statement_has_word(const char *sql, const char *word);

/*
 * pgpx_statement_fits_simple
 *		Return whether the text is a single statement that reads, or a COPY.
 *
 * For a statement that reads, the simple protocol gives the same result for
 * less work on both sides.  For a statement that writes it may not, because a
 * rule may add results, which only the simple protocol returns.  After a
 * refused COPY the lease stays usable only in the simple protocol, see the
 * rules of PGPX_WIRE_EXECUTE.
 */
extern bool pgpx_statement_fits_simple(const char *sql);

#endif							/* PGPX_STATEMENT_CLASS_H */
