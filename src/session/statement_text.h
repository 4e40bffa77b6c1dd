/*-------------------------------------------------------------------------
 *
 * statement_text.h
 *	  What the text of a statement shows about it, without parsing it.
 *
 * If a text is uncertain, each function returns the more cautious answer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_STATEMENT_TEXT_H
#define PGPX_STATEMENT_TEXT_H

#include "base/compat.h"

/*
 * Return whether the text is a SELECT, VALUES, TABLE, or a WITH that does not
 * write.  The result of another statement, such as FETCH or EXECUTE, can have
 * other columns at each execution.
 */
extern bool pgpx_statement_is_query(const char *sql);

/*
 * pgpx_statement_can_be_simple
 *		Return whether the text is a single statement that begins as one that
 *		reads.
 *
 * For a statement that reads, the simple protocol returns the same result for
 * less work on both sides.  For a statement that writes, the result may differ,
 * because only the simple protocol returns the results that a rule adds.
 */
extern bool pgpx_statement_can_be_simple(const char *sql);

/*
 * pgpx_statement_can_precede_reset
 *		Return whether the text is a single statement that can neither leave a
 *		transaction open nor begin a COPY.
 *
 * single: the remote accepts the text only as a single statement.
 */
extern bool pgpx_statement_can_precede_reset(const char *sql, bool single);

#endif							/* PGPX_STATEMENT_TEXT_H */
