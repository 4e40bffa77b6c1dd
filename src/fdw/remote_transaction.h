/*-------------------------------------------------------------------------
 *
 * remote_transaction.h
 *	  The remote transactions of foreign tables: one for each server, user
 *	  mapping and remote login.
 *
 * A remote transaction has one lease, from its first use in a local
 * transaction to the end of that local transaction.  It begins with the first
 * statement, has a savepoint for each local subtransaction that uses it, and
 * commits or rolls back with the local transaction.
 *
 * Implemented by remote_transaction.c (begin, subtransactions, abort),
 * remote_statement.c (statements in it), and remote_commit.c (commit).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_TRANSACTION_H
#define PGPX_REMOTE_TRANSACTION_H

#include "session/statement.h"
#include "commit/commit.h"

#define PGPX_REMOTE_STATEMENTS 16	/* that a remote transaction remembers */
#define PGPX_REMOTE_NAME_LEN 16

/* A statement that was sent in this remote transaction. */
typedef struct PgpxRemoteStatement
{
	char	   *sql;			/* NULL: the entry is not in use */
	bool		prepared;		/* it exists at the remote, and this transaction
								 * has executed it, so its tables are locked */
	uint64		last_used;

	/* 'S' and its name; "": it was not prepared */
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
	bool		read_only;		/* START TRANSACTION was READ ONLY */
} PgpxRemoteNesting;

/* Of a remote transaction that commits in two phases. */
typedef enum PgpxPart
{
	PGPX_PART_NONE,				/* it is not prepared */
	PGPX_PART_UNKNOWN,			/* PREPARE TRANSACTION was sent, and may have
								 * succeeded */
	PGPX_PART_PREPARED,
	PGPX_PART_FINISHING			/* COMMIT or ROLLBACK PREPARED was sent */
} PgpxPart;

typedef struct PgpxRemoteTransaction
{
	dlist_node	node;
	Oid			server;
	Oid			user;			/* for whom it was begun */
	PgpxLease  *lease;
	PgpxTime	wait_time;		/* how long it waited for the lease */
	MemoryContext cxt;			/* holds this struct */
	PgpxRemoteNesting nesting;

	/* the last statement */
	StringInfoData sent;		/* its text; if a command that preceded it has
								 * failed, the text of that command */
	StringInfoData commands;	/* these commands, each with its NUL */
	int			ncommands;

	/*
	 * The remote error that has aborted the remote transaction.  It is valid
	 * while the remote transaction is aborted and no rollback is pending.
	 */
	PgpxRemoteError failure;
	MemoryContext failure_cxt;	/* holds its texts; NULL: none yet */

	/* the answer to the last statement */
	struct PgpxRemoteScan *streaming;	/* the scan that reads it; NULL: none */
	bool		reading;		/* a row of it is being converted */
	bool		abandoned;		/* it is unread, and no scan will read it */
	dlist_head	scans;			/* all scans, see remote_scan.c */

	bool		may_prepare;	/* the reset drops prepared statements */
	PgpxRemoteStatement statements[PGPX_REMOTE_STATEMENTS];
	uint64		nuses;			/* for last_used */
	uint32		nnames;			/* names given to statements and portals */
	List	   *closes;			/* pgpx_remote_close_later: list of strings */

	PgpxPart	part;
	char		gid[PGPX_GID_SIZE]; /* its global id; "": it is not prepared */
} PgpxRemoteTransaction;

/* The remote transactions of this local transaction. */
extern dlist_head pgpx_remote_transactions;

/* Return whether the lease has not been revoked. */
static inline bool
pgpx_remote_has_lease(const PgpxRemoteTransaction *rt)
{
	return pg_atomic_read_u64(&pgpx_conns[rt->lease->conn].lease_id) ==
		rt->lease->id;
}

/* the command that begins a remote transaction begins with this */
#define PGPX_REMOTE_START "START TRANSACTION"

/*
 * For hooks.c: commit or roll back the remote transactions, or what they have
 * done in a subtransaction.
 */
extern void pgpx_remote_transaction_at_xact(XactEvent event);
extern void pgpx_remote_transaction_at_subxact(SubXactEvent event);

/*
 * Forget a remote transaction, and return its lease.  The return rolls the
 * transaction back if it is neither committed nor prepared.
 */
extern void pgpx_remote_transaction_end(PgpxRemoteTransaction *rt, PgpxEnd end);

/* Return whether the top-level transaction is READ ONLY. */
extern bool pgpx_remote_top_is_read_only(void);

/*
 * A use of a remote transaction: by a plan node, a target table, or a utility
 * command.  It is the first member of the states in fdw_state and ri_FdwState,
 * because EXPLAIN shows it.
 */
typedef struct PgpxRemoteUse
{
	Oid			server;
	Oid			user;			/* whose mapping is used */
	const char *why;			/* the purpose, for the view leases: e.g. the
								 * name of the relation */
	PgpxRemoteTransaction *transaction; /* NULL until the first row */

	/* that were read, before local filters, or that were modified */
	uint64		rows;
} PgpxRemoteUse;

/*
 * pgpx_remote_transaction_get
 *		Return the remote transaction of this local transaction on a server,
 *		for a user, and lease a connection for it if it is new.
 *
 * If use->transaction is NULL, set it.  The commands that begin the remote
 * transaction are sent in one pipeline with its first statement.  The result is
 * valid until the end of the top-level transaction.
 *
 * first: the statement that the caller will send if the remote transaction is
 * new, with its result in text; NULL: not known.  It makes a pipelined hand-over
 * possible: if this session has to wait for the lease, the session that returns
 * the connection sends the statement.  lease->pending_state is then
 * PGPX_PENDING_SENT.
 *
 * Users whose login at the remote is the same share it, see
 * pgpx_server_spec_is_same_login.
 *
 * Errors: those of pgpx_lease_checkout; those of the lease if it has ended;
 * 42704 if the user mapping was dropped; 2F003 if the user needs a password and
 * another one has begun the transaction without it.
 */
extern PgpxRemoteTransaction *
pgpx_remote_transaction_get(PgpxRemoteUse *use,
							const PgpxPipeline *first);

/*
 * pgpx_remote_execute
 *		Execute a statement, drop its rows, and wait for its end.
 *
 * A text that is executed repeatedly is prepared automatically.  Return the
 * number of rows affected or returned.
 *
 * Errors: the remote's, as pgpx_remote_raise; those of the lease.
 */
extern uint64 pgpx_remote_execute(PgpxRemoteTransaction *rt,
								  const PgpxStatement *statement);

/*
 * pgpx_remote_describe
 *		Ask the remote for the columns of a statement's result, and wait for
 *		the answer.
 *
 * Pass the description to the sink, and record the formats for a result of this
 * number of rows, so that the first execution, too, can return columns in
 * binary.  The caller must have called pgpx_remote_prepare_send, and must call
 * it again afterwards.
 *
 * Errors: those of pgpx_remote_execute.
 */
extern void pgpx_remote_describe(PgpxRemoteTransaction *rt,
								 const PgpxStatement *statement,
								 const PgpxSink *sink, uint64 rows);

/* Raise a remote's error, with the text and the context of postgres_fdw. */
pg_noreturn extern void pgpx_remote_raise(const PgpxRemoteError *error,
										  const char *sql);

/*
 * pgpx_remote_prepare_send
 *		Make the remote transaction ready for the next statement.
 *
 * If a scan is reading an answer, buffer the rest of it.  If an answer is
 * unread that no scan needs, read and discard it.
 *
 * Errors: those of the lease; the remote error that has aborted the remote
 * transaction, unless it is rolled back to a savepoint before the next
 * statement.
 */
extern void pgpx_remote_prepare_send(PgpxRemoteTransaction *rt);

#define PGPX_REMOTE_ROLLBACK_TO "ROLLBACK TO SAVEPOINT s%d"
#define PGPX_REMOTE_RELEASE "RELEASE SAVEPOINT s%d"

/*
 * pgpx_remote_collect_commands
 *		Add the commands that precede the next statement to a pipeline.
 *
 * They are START TRANSACTION with its settings, or ROLLBACK TO and RELEASE for
 * the subtransactions that have ended since the last statement; then SAVEPOINT
 * for each level that has none yet.  If the local subtransaction is READ ONLY
 * and the remote transaction is not, SET TRANSACTION READ ONLY precedes each
 * statement.  The strings are allocated in the current memory context.
 * rt->lease may be NULL.  *after is the nesting when these commands have been
 * executed.
 */
extern void pgpx_remote_collect_commands(PgpxRemoteTransaction *rt,
										 const PgpxServerSpec *spec,
										 PgpxPipeline *p,
										 PgpxRemoteNesting *after);

/*
 * pgpx_remote_send
 *		Send a statement, with all that must precede it.
 *
 * The caller must have called pgpx_remote_prepare_send, and must call
 * pgpx_run_failed after an error.  If the pipeline executes a statement and has
 * no name for it, choose here whether it is sent as a prepared one, and set the
 * pipeline's name, parse and describe accordingly.
 */
extern void pgpx_remote_send(PgpxRemoteTransaction *rt, PgpxRun *run,
							 PgpxPipeline *p);

/*
 * Process the end of an answer: record an error, check the commands that
 * preceded the statement, and forget a prepared statement that failed.
 */
extern void pgpx_remote_end_statement(PgpxRemoteTransaction *rt, PgpxRun *run);

/* --- commit: remote_commit.c ---------------------------------------------- */

/*
 * pgpx_remote_commit
 *		Before the local commit: commit the remote transactions, or prepare those
 *		that commit in two phases.
 *
 * Errors: the remotes'; those of the leases; 0A000 if only some of the servers
 * that were written have the option two_phase_commit, or if a remote transaction
 * has another role than the login role; those of pgpx_participant_register.
 */
extern void pgpx_remote_commit(void);

/*
 * pgpx_remote_commit_finish
 *		After the local commit or abort: commit or roll back what is prepared, and
 *		end these remote transactions.
 *
 * What cannot be finished within operation_timeout is left to the resolver, after
 * a commit with a WARNING.  Raise no error, and look up and allocate nothing.
 */
extern void pgpx_remote_commit_finish(bool commits);

/* --- prepared statements: remote_statement.c ---------------------------- */

/*
 * Do not use the prepared statement of this text again.  To be called after an
 * error, because the remote may not have prepared it.
 *
 * sql NULL: do not use any again, after a rollback to a savepoint.  It releases
 * the remote locks on the statements' tables, which can then be altered so that
 * a statement fails with "cached plan must not change result type".
 */
extern void pgpx_remote_forget_prepared(PgpxRemoteTransaction *rt,
										const char *sql);

/*
 * Send Close for a portal or a prepared statement together with the next
 * statement.  name: 'P' or 'S', and its name.
 */
extern void pgpx_remote_close_later(PgpxRemoteTransaction *rt,
									const char *name);

#endif							/* PGPX_REMOTE_TRANSACTION_H */
