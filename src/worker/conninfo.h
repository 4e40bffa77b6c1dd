/*-------------------------------------------------------------------------
 *
 * conninfo.h
 *	  Connection parameters: the published conninfo, hosts, host name lookups.
 *
 * conninfo.c decides where to connect, connect.c performs the login.
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
#include "worker/task_queue.h"

/*
 * A candidate host of a login, as passed to libpq; a NULL field is not passed.
 */
typedef struct PgpxHost
{
	const char *host;
	const char *hostaddr;
	const char *port;
	bool		unresponsive;	/* no longer tried in this login */
} PgpxHost;

/* Length of a numeric address: IPv6 with a scope. */
#define PGPX_ADDRESS_LEN 64

/*
 * The candidate hosts of a login, in the published order.  A name that was
 * resolved appears once for each of its addresses.
 */
typedef struct PgpxHosts
{
	PgpxTask	task;			/* of the lookup, which then owns the object */
	void	   *owner;			/* of the task, for its "ended" */
	MemoryContext cxt;
	bool		shuffled;		/* libpq chooses their order */
	int			first;			/* number of the host that this login tries
								 * first */
	int			total;
	int			left;			/* number that are not unresponsive; 1 if they
								 * are shuffled */
	PgpxHost   *entries;		/* [total] */

	/* results of the lookup */
	char		error[256];		/* why no address was found; empty: no error */
	PgpxHost   *resolved;		/* become the entries */
	char		addresses[PGPX_MAX_HOSTS][PGPX_ADDRESS_LEN];
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

	int			first;			/* number of the host to try first */
	PgpxTime	first_until;	/* .. until then; later number 0 */
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

/* Return whether the conninfo is missing now, or has another version. */
extern bool pgpx_conninfo_has_changed(PgpxConninfoKey key);

/*
 * Start a login (PQconnectStartParams) with a pool's conninfo, and the password
 * that the password command has printed, if any.  application_name, unless
 * NULL, replaces the published one.  Return NULL if out of memory.
 */
extern PGconn *pgpx_conninfo_login(int pool, PgpxHosts *hosts,
								   const char *application_name);

/*
 * pgpx_hosts_create
 *		Return the candidate hosts of a login with a pool's conninfo.
 * pgpx_hosts_need_lookup
 *		Return whether names must be resolved before a login.
 * pgpx_hosts_resolve
 *		Resolve the names, in the thread of the task.
 * pgpx_hosts_mark_unresponsive
 *		Exclude the host that libpq is trying, since it does not answer.  pg:
 *		NULL if libpq cannot be asked; then exclude the first one.  For a while,
 *		logins of the pool start with the host after it.  Return whether other
 *		hosts are left; the last one is not excluded.
 */
extern PgpxHosts *pgpx_hosts_create(int pool);
extern bool pgpx_hosts_need_lookup(const PgpxHosts *hosts);
extern void pgpx_hosts_resolve(PgpxTask *task);
extern bool pgpx_hosts_mark_unresponsive(int pool, PgpxHosts *hosts,
										 const PGconn *pg);

/* Free the hosts and set the pointer to NULL.  NULL is allowed. */
extern void pgpx_hosts_free(PgpxHosts **hosts);

/* --- Password ------------------------------------------------------------
 *
 * Passwords that the password command prints, for pools whose user mapping
 * has use_password_command.
 */

/*
 * Continue a login that has waited for the password command.  error: the reason
 * why there is no password, or NULL.
 */
typedef void (*PgpxPasswordEnded)(dlist_node *login, const char *error);

/*
 * Return whether a login that began at this time must request a password first:
 * the pool uses the password command, and no password was obtained since that
 * time or within pgpool_ext.password_lifetime.
 */
extern bool pgpx_password_is_needed(int pool, PgpxTime since);

/*
 * Run the password command for the conninfo of a pool, unless it is already
 * running for it.  Return NULL, or the reason why the command cannot run.
 *
 * "login" is in the list of the command until the command ends, perhaps before
 * this function returns.  Then it is removed from the list, and "ended" is
 * called.  The caller deletes it from the list if it does not wait so long.  The
 * command is killed connect_timeout after its start.
 */
extern const char *pgpx_password_request(int pool, dlist_node *login,
										 PgpxPasswordEnded ended);

/*
 * Handle a login that the remote refused: forget the password that was
 * obtained at "used_at", because it may have expired or changed.  Return
 * whether the login should be repeated with another password, because this one
 * was obtained before the login began ("since").
 */
extern bool pgpx_password_refused(int pool, PgpxTime used_at, PgpxTime since);

/*
 * Run the password command outside of the worker's event loop.  "prepare" makes
 * a run, "run" may be called in a thread, and "forget" wipes and frees it.  "run"
 * sets *error, which is valid until "forget" as the password is, to the reason
 * why there is none, or to NULL.
 */
extern PgpxTask *pgpx_password_prepare(const PgpxConninfo *ci,
									   const NameData *server,
									   const char *database,
									   const NameData *local_user,
									   int64 timeout_ms);
extern const char *pgpx_password_run(PgpxTask *task, const char **error);
extern void pgpx_password_forget(PgpxTask *task);

/* Record the soft limit of open files that password commands run with. */
extern void pgpx_password_note_limit(uint64 limit);

/* Kill the commands that are running, when the worker exits. */
extern void pgpx_password_kill_commands(void);

#endif							/* PGPX_CONNINFO_H */
