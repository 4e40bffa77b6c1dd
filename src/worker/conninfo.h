/*-------------------------------------------------------------------------
 *
 * conninfo.h
 *	  Connection parameters: the published conninfo, hosts, host name lookups.
 *
 * Used by all files of the worker that open something: connections, lock
 * pingers and cancel requests.  conninfo.c decides where to connect, login.c
 * performs the login.  Neither lets the worker block.
 *
 * Implemented by conninfo.c and password.c (passwords of the password command).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONNINFO_H
#define PGPX_CONNINFO_H

#include "shared/shmem.h"

#include "libpq-fe.h"

#include "protocol/control_message.h"

typedef struct PgpxLookup PgpxLookup;

/*
 * Receive the result of a lookup.  Called in the event loop; "lookup" is freed
 * when it returns.
 */
typedef void (*PgpxLookupAnswer)(PgpxLookup *lookup);

/*
 * A user for whom threads run; the number of these threads is limited.  It is a
 * role in a database, whatever servers, options and user mappings it uses.
 */
typedef struct PgpxThreadUser
{
	Oid			database;
	NameData	name;
} PgpxThreadUser;

static inline PgpxThreadUser
pgpx_pool_thread_user(int index)
{
	PgpxPool   *pool = &pgpx_pools[index];
	PgpxThreadUser user;

	LWLockAcquire(pool->lock, LW_SHARED);
	user.database = pool->key.database;
	user.name = pool->user_name;
	LWLockRelease(pool->lock);
	return user;
}

static inline bool
pgpx_is_same_thread_user(const PgpxThreadUser *a, const PgpxThreadUser *b)
{
	return a->database == b->database &&
		strcmp(NameStr(a->name), NameStr(b->name)) == 0;
}

/*
 * Abandon a lookup: its thread ends after the name that it is resolving, and
 * "answer" is not called.
 */
extern void pgpx_lookup_abandon(PgpxLookupAnswer answer, uint64 tag);

extern uint64 pgpx_lookup_tag(const PgpxLookup *lookup);

/* Return the reason why no address was found, or NULL. */
extern const char *pgpx_lookup_error(const PgpxLookup *lookup);

/*
 * A candidate host of a login, as passed to libpq; a NULL field is not passed.
 */
typedef struct PgpxHost
{
	int			slot;			/* in the published list */
	const char *host;
	const char *hostaddr;
	const char *port;
} PgpxHost;

/*
 * The candidate hosts of a login, in the order in which they are tried.  A list
 * that libpq tries by itself counts as one host.
 */
typedef struct PgpxHosts
{
	MemoryContext cxt;
	int			n;				/* number of hosts left */
	int			total;			/* .. in the published list */
	PgpxHost   *entries;
} PgpxHosts;

/* A pool's conninfo, in private memory. */
typedef struct PgpxWorkerPool
{
	uint32		pool_id;		/* 0: none */
	MemoryContext cxt;
	char	   *message;		/* the strings; wiped before it is freed */
	size_t		message_len;
	PgpxConninfo conninfo;

	/* see password.c; wiped before it is freed */
	char	   *password;		/* NULL: not known */
	PgpxTime	password_requested_at;
	PgpxTime	password_at;	/* when the command had printed it */

	int			first;			/* slot of the host to try first */
	PgpxTime	first_until;	/* .. until then; later slot 0 */
} PgpxWorkerPool;

extern PgpxWorkerPool *pgpx_wpools; /* [max_pools] */

/* Store the conninfo that a session has published (a CONNINFO message). */
extern void pgpx_conninfo_store(char *message, size_t len);

/*
 * Wipe the conninfo of the pool at this index; of all pools, when the worker
 * exits.
 */
extern void pgpx_conninfo_forget(int pool);
extern void pgpx_conninfo_wipe_all(void);

/* Return the value of a connection parameter, NULL if it is not set. */
extern const char *pgpx_conninfo_param(const PgpxConninfo *ci,
									   const char *name);

/*
 * Return whether the stored conninfo of a pool is missing, or has another
 * version.
 */
extern bool pgpx_conninfo_has_changed(int pool, uint32 pool_id, uint64 version);

/* Return whether host names must be resolved before a login. */
extern bool pgpx_conninfo_needs_lookup(const PgpxConninfo *ci);

/*
 * Start to resolve the host names of a pool's conninfo.  Return NULL, or the
 * reason why the lookup could not start.
 */
extern const char *pgpx_conninfo_start_lookup(int pool, PgpxLookupAnswer answer,
											  uint64 tag);

/*
 * Start a login (PQconnectStartParams) with a pool's conninfo, and the password
 * that the password command has printed, if any.  application_name, unless
 * NULL, replaces the published one.  Return NULL if out of memory.
 */
extern PGconn *pgpx_conninfo_login(int pool, const PgpxHosts *hosts,
								   const char *application_name);

/*
 * pgpx_hosts_create
 *		Return the candidate hosts of a login, from the lookup's result if there
 *		was one.  A host that was unresponsive a short while ago is not the
 *		first.
 * pgpx_hosts_mark_unresponsive
 *		Remove the host that libpq is trying from the list, since it does not
 *		answer.  pg: NULL if libpq cannot be asked; then remove the first one.
 *		For a while, logins of the pool start with the host after it.  Return
 *		whether other hosts are left; the last one is not removed.
 */
extern PgpxHosts *pgpx_hosts_create(int pool, const PgpxLookup *lookup);
extern bool pgpx_hosts_mark_unresponsive(int pool, PgpxHosts *hosts,
										 const PGconn *pg);

/* Free the hosts and set the pointer to NULL.  NULL is allowed. */
extern void pgpx_hosts_free(PgpxHosts **hosts);

/* Key of the logins that share a limit on threads (MAX_STEPS in login.c). */
typedef struct PgpxLoginKey
{
	int			pool;
	uint32		pool_id;
	uint64		version;		/* of the conninfo */
} PgpxLoginKey;

/*
 * Called when a step of a login has ended.  If failure is NULL, status is
 * libpq's result and errno is as libpq left it.  Otherwise the login has failed
 * for that reason with that SQLSTATE.  The callback may end the login.
 */
typedef void (*PgpxLoginStepped)(void *owner, PostgresPollingStatusType status,
								 int sqlstate, const char *failure);

/*
 * libpq's functions for an operation that proceeds in steps: a login, or a
 * cancel request (cancel.c).
 */
typedef struct PgpxLoginKind
{
	PostgresPollingStatusType (*poll)(void *libpq); /* in the thread */
	int (*socket)(const void *libpq);
	void (*finish)(void *libpq);
} PgpxLoginKind;

/* --- Password ------------------------------------------------------------
 *
 * Passwords that the password command prints, for pools whose user mapping
 * has use_password_command.
 */

/*
 * Called in the event loop when the password command has ended for a version of
 * a pool's conninfo.  error: the reason why there is no password, or NULL.  The
 * callback continues all logins of that version that wait for the password.
 */
typedef void (*PgpxPasswordAnswer)(int pool, uint32 pool_id, uint64 version,
								   const char *error);

/*
 * Return whether a login that began at this time must request a password first:
 * the pool uses the password command, and no password was obtained since that
 * time or within pgpool_ext.password_lifetime.
 */
extern bool pgpx_password_is_needed(int pool, PgpxTime since);

/*
 * Run the password command for the conninfo of a pool, unless it is already
 * running for it.  "answer" is called once when it ends, which may be after the
 * caller's own deadline.  timeout_ms: the command is killed after that time, or
 * later if another caller needs it for longer.  Return NULL, or the reason why
 * the command cannot run.
 */
extern const char *pgpx_password_request(int pool, int64 timeout_ms,
										 PgpxPasswordAnswer answer);

/*
 * Handle a login that the remote refused: forget the password that was
 * obtained at "used_at", because it may have expired or changed.  Return
 * whether the login should be repeated with another password, because this one
 * was obtained before the login began ("since").
 */
extern bool pgpx_password_refused(int pool, PgpxTime used_at, PgpxTime since);

/* Record the soft limit of open files that password commands run with. */
extern void pgpx_password_note_limit(uint64 limit);

/* Kill the commands that are running, when the worker exits. */
extern void pgpx_password_kill_commands(void);

#endif							/* PGPX_CONNINFO_H */
