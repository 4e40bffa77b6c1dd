/*-------------------------------------------------------------------------
 *
 * remote_transaction.h
 *	  The remote transactions of foreign tables: one for each server and
 *	  user.
 *
 * A remote transaction has one lease, from its first use in a local
 * transaction to the end of that local transaction.  It begins with the
 * first statement, has a savepoint for each local subtransaction that uses
 * it, and commits or rolls back with the local transaction.
 *
 * Implemented by remote_transaction.c (begin, commit, abort) and
 * remote_statement.c (statements in it).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_TRANSACTION_H
#define PGPX_REMOTE_TRANSACTION_H

#include "session/statement.h"
#include "session/statement_cache.h"

#define PGPX_REMOTE_STATEMENTS 16	/* statement texts that are remembered */
#define PGPX_REMOTE_NAME_LEN 16

/* A statement that was sent in this transaction. */
typedef struct PgpxRemoteStatement
{
	char	   *sql;			/* NULL: not in use */
	bool		prepared;		/* it exists at the remote, and this transaction
								 * has executed it, so its tables are locked */
	int			level;			/* lowest level of subtransactions at which it
								 * was executed */
	uint64		last_used;
	PgpxPreparedChoice cached;	/* its key in the statement cache; bytes 0: not
								 * cacheable */
	char		cached_name[PGPX_CACHED_NAME_LEN];

	/* without the cache: 'S' and its name; "": it was not prepared */
	char		name[PGPX_REMOTE_NAME_LEN];
} PgpxRemoteStatement;

/*
 * Levels of subtransactions; 1 is the top-level transaction.  The remote has a
 * savepoint for each level from 2 to "depth".  The next statement is preceded
 * by a rollback to the savepoint of "rollback_level" (0: none), and by the
 * release of the savepoints above level "target_depth".
 */
typedef struct PgpxRemoteNesting
{
	bool		begun;			/* START TRANSACTION was sent */
	int			depth;
	int			target_depth;
	int			rollback_level;
} PgpxRemoteNesting;

typedef struct PgpxRemoteTransaction
{
	dlist_node	node;
	Oid			server;
	Oid			user;
	PgpxLease  *lease;
	PgpxTime	wait_time;		/* for the lease; duration */
	MemoryContext cxt;			/* holds this struct */
	bool		wrote;			/* a statement that writes was sent */
	PgpxRemoteNesting nesting;
	PgpxRemoteNesting before;	/* before the last statement and the commands
								 * that preceded it */
	StringInfoData sent;		/* text of the last statement */
	PgpxPreparedUse sent_as;	/* how it used the statement cache */
	bool		sent_writes;	/* that statement writes */
	int			guard;			/* level of the savepoint to which a refused
								 * statement is rolled back; 0: none */

	/*
	 * The remote error that has aborted the remote transaction.  It is valid
	 * while the remote transaction is aborted and no rollback is pending.
	 */
	PgpxRemoteError failure;
	MemoryContext failure_cxt;	/* holds its texts; NULL: none yet */

	/* the scan whose answer is being read; NULL: none */
	struct PgpxRemoteScan *streaming;
	bool		reading;		/* a row of an answer is being converted */
	bool		abandoned;		/* an unread answer belongs to no scan */
	bool		rolling_back;	/* .. but to ROLLBACK TO alone */
	dlist_head	scans;			/* all, see remote_scan.c */

	bool		may_prepare;	/* the reset drops prepared statements */
	PgpxRemoteStatement statements[PGPX_REMOTE_STATEMENTS];
	uint64		nuses;
	uint32		nnames;			/* names given to statements and portals */
	List	   *closes;			/* of strings: 'P' or 'S' and a name */
} PgpxRemoteTransaction;

#define PGPX_REMOTE_PORTAL "p%u"	/* name of the portal with this number */

/*
 * The statement that a scan will send as soon as it has a remote transaction,
 * for its portal with number 1 and in text format.
 */
typedef struct PgpxFirstStatement
{
	PgpxStatement statement;
	uint32		max_rows;		/* of the first batch; 0: all rows */
	uint64		types_hash;		/* of the sink */
} PgpxFirstStatement;

/*
 * pgpx_remote_transaction_get
 *		Return the remote transaction of this local transaction on a server,
 *		for a user, and lease a connection for it if it is new.
 *
 * why: the purpose that the view leases shows, e.g. the relation's name.  The
 * commands that begin the remote transaction are sent in one pipeline with its
 * first statement.  The result is valid until the end of the top-level
 * transaction.
 *
 * first: the statement that the caller will send next if the remote transaction
 * is new; NULL: not known.  It makes a pipelined hand-over possible: if this
 * session has to wait for the lease, the session that returns it sends the
 * statement (lease->pending_state is SENT then).
 *
 * Errors: those of pgpx_lease_checkout; those of the lease if it has ended;
 * 42704 if the user has no user mapping any more.
 */
extern PgpxRemoteTransaction *
pgpx_remote_transaction_get(Oid server, Oid user, const char *why,
							const PgpxFirstStatement *first);

/*
 * pgpx_remote_execute
 *		Run one statement, and wait for its end.
 *
 * Rows go to the sink; they are dropped if it is NULL.  writes: the statement
 * changes data, so the commit must wait for the remote's answer.  A text that
 * is executed repeatedly is prepared automatically.  Returns the number of rows
 * affected or returned.
 *
 * Errors: the remote's, as pgpx_remote_raise; those of the lease.
 */
extern uint64 pgpx_remote_execute(PgpxRemoteTransaction *rt,
								  const PgpxStatement *statement,
								  const PgpxSink *sink, bool writes);

/*
 * pgpx_remote_describe
 *		Ask the remote for the columns of a statement's result.
 *
 * Waits for the answer, so it costs a round trip.  Passes the description to
 * the sink, and records the formats for a result of this number of rows, so
 * that the first execution, too, can return columns in binary.  The caller must
 * have called pgpx_remote_prepare_send, and must call it again afterwards.
 *
 * Errors: as those of pgpx_remote_execute.
 */
extern void pgpx_remote_describe(PgpxRemoteTransaction *rt,
								 const PgpxStatement *statement,
								 const PgpxSink *sink, uint64 rows);

/* Raise a remote's error, with the text and the context of postgres_fdw. */
pg_noreturn extern void pgpx_remote_raise(const PgpxRemoteError *error,
										  const char *sql);

/*
 * pgpx_remote_prepare_send
 *		Make the remote transaction ready for a statement.
 *
 * Buffers the rest of an answer that a scan is reading.  Reads the rest of an
 * answer that no scan needs.
 *
 * Errors: those of the lease; the remote error that has aborted the remote
 * transaction, unless it is rolled back to a savepoint before the next
 * statement.
 */
extern void pgpx_remote_prepare_send(PgpxRemoteTransaction *rt);

/*
 * pgpx_remote_collect_commands
 *		Add the commands that precede the next statement to a pipeline.
 *
 * They are START TRANSACTION with its settings, or ROLLBACK TO and RELEASE for
 * the subtransactions that have ended since the last statement; then the
 * savepoints up to a level.  The strings are allocated in the current memory
 * context.  rt->lease may be NULL.
 */
extern void pgpx_remote_collect_commands(PgpxRemoteTransaction *rt,
										 const PgpxServerSpec *spec,
										 PgpxPipeline *p, int level);

/*
 * pgpx_remote_send
 *		Send a statement, with all that must precede it.
 *
 * The caller has called pgpx_remote_prepare_send, and must call pgpx_run_failed
 * after an error.  choose: the name of the statement is chosen here.  level: of
 * the subtransaction to which it belongs.
 */
extern void pgpx_remote_send(PgpxRemoteTransaction *rt, PgpxRun *run,
							 PgpxPipeline *p, bool choose, bool writes,
							 int level);

/*
 * Process the end of an answer: check the commands that preceded the statement,
 * and forget a prepared statement that failed.
 */
extern void pgpx_remote_answered(PgpxRemoteTransaction *rt, PgpxRun *run);

/* --- prepared statements: remote_statement.c ---------------------------- */

/*
 * pgpx_remote_must_repeat
 *		Return whether the last statement must be sent again, because it was in
 *		the statement cache and the remote could not execute it as it is.
 *
 * To be called after pgpx_remote_answered.  If so, the statement was not
 * executed, and the next one is preceded by the commands that undo its failure.
 */
extern bool pgpx_remote_must_repeat(PgpxRemoteTransaction *rt,
									const PgpxRemoteError *error);

/*
 * Do not use the prepared statement of this text again.  To be called after an
 * error, because the remote may not have prepared it.
 */
extern void pgpx_remote_forget_prepared(PgpxRemoteTransaction *rt,
										const char *sql);

/*
 * Close a portal ("P" and its name) or a prepared statement ("S" and its name)
 * together with the next statement.
 */
extern void pgpx_remote_close(PgpxRemoteTransaction *rt, const char *name);

/*
 * Update the prepared statements at the end of a subtransaction.  After a
 * rollback they are not used again: it releases the remote locks on their
 * tables, which can then be altered so that the statement fails with "cached
 * plan must not change result type".
 */
extern void pgpx_remote_statements_end(PgpxRemoteTransaction *rt, int level,
									   bool rolled_back);

#endif							/* PGPX_REMOTE_TRANSACTION_H */
