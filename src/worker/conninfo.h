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

typedef struct PgpxLookup PgpxLookup;

/*
 * Receive the result of a lookup, in the event loop.  "lookup" is freed when it
 * returns.  started: false if no thread could be started.
 */
typedef void (*PgpxLookupEnded)(void *owner, const PgpxLookup *lookup,
								bool started);

/*
 * Create the task that resolves the host names of a pool's conninfo.  If it is abandoned, "ended" is not called.
 */
extern PgpxTask *pgpx_lookup_create(int pool, PgpxLookupEnded ended,
									void *owner);

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
typedef void (*PgpxPasswordEnded)(const PgpxConninfoKey *key,
								  const char *error);

/*
 * Return whether a login that began at this time must request a password first:
 * the pool uses the password command, and no password was obtained since that
 * time or within pgpool_ext.password_lifetime.
 */
extern bool pgpx_password_is_needed(int pool, PgpxTime since);

/*
 * Run the password command for the conninfo of a pool, unless it is already
 * running for it.  "ended" is called once when it ends, perhaps before this
 * function returns, perhaps after the caller's own deadline.  The command is
 * killed connect_timeout after its start.  Return NULL, or the reason why the
 * command cannot run.
 */
extern const char *pgpx_password_request(int pool, PgpxPasswordEnded ended);

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
