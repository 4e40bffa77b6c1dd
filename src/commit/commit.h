/*-------------------------------------------------------------------------
 *
 * commit.h
 *	  One commit on several servers: ids, tables, and the interface between the
 *	  session that commits (fdw/remote_commit.c) and the resolver.
 *
 * src/README.md has the sequence of a commit, the rules and the locks.  Terms:
 * - A *part* is a prepared transaction on a remote server.
 * - A *participant* is a server and a user under whose mapping parts are
 *	 prepared, together with the remote database that was found there.
 * - A *decision* is the row of table commit_decisions with the id of a
 *	 transaction and its participants.  The transaction that it describes inserts
 *	 it.  The row is visible if and only if its parts must be committed.  It
 *	 counts only if its raw xmin is the xid in the id.
 * - An *origin* identifies the installation that prepares parts: this data
 *	 directory on this host, this timeline, this database, this CREATE EXTENSION.
 *	 A copy has another origin.
 *
 * The id of a transaction is
 *
 *		pgpx_<origin>_<xid8>_<random>
 *
 * with the origin and 64 random bits in 16 hexadecimal digits each, and the xid
 * in decimal digits.  Part n, counted from 1, has the global id <id>_<n>.  Its
 * participant is the nth in the decision.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_COMMIT_H
#define PGPX_COMMIT_H

#include "session/server_spec.h"

#include "libpq-fe.h"

#define PGPX_ID_SIZE 72			/* of an id, with its NUL */
#define PGPX_GID_SIZE 80		/* of a global id, with its NUL */

/* A transaction with more parts is refused (54000). */
#define PGPX_PARTS_MAX 1000

/* The tables. */
#define PGPX_COMMIT_SCHEMA "pgpool"
#define PGPX_DECISIONS "commit_decisions"
#define PGPX_PARTICIPANTS "commit_participants"

/*
 * What the code needs of a row of commit_participants: the first columns, which
 * have a fixed length and are not null, and the place of the row.
 *
 * server, user: the arguments of pgpx_server_spec_get_for, with by_table.  All
 * users of a PUBLIC mapping that names the remote user have one participant, with
 * InvalidOid as its user.  Superusers have a participant each.
 */
typedef struct PgpxParticipant
{
	int32		id;				/* never reused */
	Oid			server;
	Oid			user;
	NameData	origin;
	int64		system;			/* system identifier of the remote server, as
								 * pg_control_system() returns it */
	NameData	database;		/* current_database() there */
	ItemPointerData row;		/* its place in the table */
} PgpxParticipant;

/* --- decision.c ---------------------------------------------------------- */

/*
 * Return the origin of this installation: a digest of the system identifier, the
 * timeline, the host name at the start of the server, the data directory, and the
 * OIDs of the database and of table commit_decisions.  Must not be called in
 * recovery.
 */
extern const char *pgpx_commit_origin(void);

/*
 * pgpx_commit_table
 *		Open a table of the extension by its name (PGPX_DECISIONS, ..), and lock
 *		it, so that the extension is not dropped.
 *
 * It is found whatever search_path is.  Without the extension, or in an older
 * version of it, return NULL (missing_ok) or raise 55000.
 */
extern struct RelationData *pgpx_commit_table(const char *name, int lockmode,
											  bool missing_ok);

/*
 * pgpx_decision_insert
 *		Insert the decision of this transaction, and make its commit synchronous.
 *
 * Write its id.  participants: the ids of the participants of its parts.  The
 * insert is by heap and index, so no trigger, rule, policy or privilege of a
 * user applies.  Must precede the first PREPARE TRANSACTION.
 */
extern void pgpx_decision_insert(const int32 *participants, int n,
								 char id[PGPX_ID_SIZE]);

/* --- participant.c ------------------------------------------------------- */

/*
 * pgpx_participant_find
 *		Find the newest participant of a server and user that has the origin of
 *		this installation, in a new snapshot.  Without one, found->id is 0.
 *
 * participants: the open table.  A session that prepares parts keeps ROW SHARE
 * on it until the end of the transaction, for which DDL waits (participant.c).
 */
extern void pgpx_participant_find(struct RelationData *participants, Oid server,
								  Oid user, PgpxParticipant *found);

/*
 * pgpx_participant_register
 *		Have a background worker log in as this user to this server, and commit
 *		a participant with what it finds.  Wait for its end; serve interrupts.
 *
 * If the newest row of the server and user has the same origin, system
 * identifier and database, no row is added.  The worker also claims a resolver
 * slot for the database.  The caller must not hold a lock on
 * commit_participants.
 *
 * Errors: 53400 no background worker or resolver slot; the error of the worker:
 * it cannot log in, is a standby, the server's owner may not send the user's
 * password without a request of the user (pgpx_server_spec_check_unrequested), or
 * only the session of the user can log in (SCRAM pass-through).
 */
extern void pgpx_participant_register(Oid server, Oid user);

/*
 * Return whether a participant is one of the server (InvalidOid: any), or has it
 * as its base server, and of the user (InvalidOid: any).
 */
extern bool pgpx_participant_matches(const PgpxParticipant *p, Oid server,
									 Oid user);

/*
 * For hooks.c: refuse DDL that would lose the parts of participants (55006, or
 * the error of the worker that has asked).
 *
 * - begin_utility returns whether end_utility must be called after a statement.
 * - check_drop is called before a server or user mapping is dropped.
 */
extern bool pgpx_participant_begin_utility(struct Node *stmt);
extern void pgpx_participant_end_utility(struct Node *stmt);
extern void pgpx_participant_check_drop(Oid class_id, Oid object);

/* --- resolver.c ----------------------------------------------------------
 *
 * The main function of two kinds of background workers:
 * - The resolver of a database, which the pool worker starts
 *	 (worker/resolver_start.c).
 * - A worker with an errand, which a session starts and waits for.
 *
 * Both end soon, because DROP DATABASE waits only five seconds for them.  Only a
 * resolver that has found parts which it could not resolve stays.
 */

/* arg: OID of the database; bgw_extra: dsm_handle of an errand, or 0 */
PGDLLEXPORT void pgpx_resolver_main(Datum arg);

/*
 * An errand, in a dynamic shared memory segment.  The worker writes the fields of
 * the error, and the session reads them after the end of the worker.
 */
typedef struct PgpxErrand
{
	bool		registers;		/* register the participant of server and user;
								 * else visit all, and report unresolved parts
								 * of those that match as an error */
	Oid			server;
	Oid			user;
	int			sqlstate;		/* 0: no error; at first that of a failure */
	char		primary[2 * PGPX_ERROR_LEN];
	char		detail[2 * PGPX_ERROR_LEN];
} PgpxErrand;

/*
 * pgpx_resolver_wake
 *		Have the resolver of this database visit all participants soon, because
 *		a part may be left.  Raise no error, and allocate nothing: it is called
 *		after the local commit.
 */
extern void pgpx_resolver_wake(void);

/* --- remote_session.c ----------------------------------------------------- */

/* Set when a login was abandoned: the process should end, and with it the thread. */
extern bool pgpx_remote_has_abandoned;

/* Wait for the latch, the socket, or some time.  Serve interrupts. */
extern void pgpx_remote_wait(pgsocket fd, int events, long timeout_ms);

/*
 * Log in to a server.  The caller calls PQfinish.  CurrentMemoryContext must not
 * be reset if the login is abandoned.
 */
extern PGconn *pgpx_remote_log_in(PgpxServerSpec *spec);

/*
 * pgpx_remote_query
 *		Execute SQL, and call "read_row" for each row (NULL: drop rows).
 *
 * Return 0, or the SQLSTATE of the remote's error, or raise it ("raises").  Raise
 * any other error; then the session cannot be used any more.  The rows are untrusted.
 */
typedef void (*PgpxRowReader)(void *arg, const PGresult *row);
extern int	pgpx_remote_query(PGconn *pg, const char *sql,
							  PgpxRowReader read_row, void *arg, bool raises);

/* --- debug points ---------------------------------------------------------
 *
 * In this order:
 * - Session: commit_ask, commit_asked (nothing is decided), commit_registered
 *	 (the lock is held), commit_row (no PREPARE was sent), commit_preparing (after
 *	 each PREPARE), commit_prepare_sent, commit_prepared (the end of PRE_COMMIT).
 * - After the local commit, where the action "error" is a PANIC: commit_decided,
 *	 commit_finishing (after each COMMIT PREPARED), commit_finish_sent, commit_finished
 *	 (the leases are not yet returned).
 * - At abort, around ROLLBACK PREPARED: commit_abort, commit_rolled_back.
 * - Resolver, for each participant: resolver_visit (checked), resolver_listed
 *	 (after P), resolver_running (before the snapshot), resolver_decided (after the
 *	 snapshot), resolver_resolved (after each COMMIT or ROLLBACK PREPARED),
 *	 resolver_remove (before the lock for a removal); and resolver_clean, before
 *	 decisions are deleted; resolver_ends, if there are no participants.
 * - Registration: register_claimed (the lock is held), register_commit (the worker
 *	 has not ended).
 */

#endif							/* PGPX_COMMIT_H */
