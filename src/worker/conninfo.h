/*-------------------------------------------------------------------------
 *
 * conninfo.h
 *	  How to connect: published parameters, hosts, host name lookups.
 *
 * How libpq connects without the worker waiting for it: conninfo.c says where to,
 * login.c goes the way.
 *
 * For those of the worker's files that open something: connections, the pings of
 * locks, and cancel requests.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CONNINFO_H
#define PGPX_CONNINFO_H

#include "shared/shmem.h"
#include "protocol/control_message.h"

#include "libpq-fe.h"

typedef struct PgpxLookup PgpxLookup;

/*
 * pgpx_lookup_needed
 *		Does libpq's "host" (a list) name anything that the resolver would be
 *		asked for: not empty, no socket directory, no numeric address, and none
 *		beside it in "hostaddr" (NULL, or a list in which elements may be empty)?
 */
extern bool pgpx_lookup_needed(const char *host, const char *hostaddr);

/* Called in the loop; what it is told of is freed after it. */
typedef void (*PgpxLookupAnswer)(PgpxLookup *lookup);

/* For whom: a user of a database, whatever servers he makes. */
typedef struct PgpxLookupUser
{
	Oid			database;
	NameData	name;
} PgpxLookupUser;

/*
 * pgpx_lookup_start
 *		Look up a list of hosts, of those that have no address in hostaddr, with
 *		its list of ports.  Returns NULL, or why not: no thread could be started,
 *		or too many are running.  tag comes back with the answer.
 */
extern const char *pgpx_lookup_start(const PgpxLookupUser *user,
									 const char *host, const char *hostaddr,
									 const char *port, PgpxLookupAnswer answer,
									 uint64 tag);

/* Nobody waits for it any more: it ends with the name that it is at. */
extern void pgpx_lookup_abandon(PgpxLookupAnswer answer, uint64 tag);

extern uint64 pgpx_lookup_tag(const PgpxLookup *lookup);

/* NULL, or why nothing was found. */
extern const char *pgpx_lookup_error(const PgpxLookup *lookup);

/*
 * Lists for libpq's host, hostaddr and port, of equal length: each host once
 * for each of its addresses, in the order the resolver gave, or with its own.
 */
extern const char *pgpx_lookup_host(const PgpxLookup *lookup);
extern const char *pgpx_lookup_hostaddr(const PgpxLookup *lookup);
extern const char *pgpx_lookup_port(const PgpxLookup *lookup);

/* Where a login may go, each as libpq is told of it; NULL: it is not. */
typedef struct PgpxHost
{
	int			slot;			/* in the list that was told */
	const char *host;
	const char *hostaddr;
	const char *port;
} PgpxHost;

/* The first to be tried first.  What libpq goes through by itself is one. */
typedef struct PgpxHosts
{
	MemoryContext cxt;
	int			n;				/* that are left */
	int			total;			/* in the list that was told */
	PgpxHost   *each;
} PgpxHosts;

/* A pool's conninfo, in private memory. */
typedef struct PgpxWorkerPool
{
	uint32		pool_id;		/* 0: none */
	MemoryContext cxt;
	char	   *message;		/* the strings; wiped before it is freed */
	size_t		message_len;
	PgpxConninfo conninfo;
	int			first;			/* of the hosts, to begin with */
	PgpxTime	first_until;	/* .. so long; then with the first in the list */
} PgpxWorkerPool;

extern PgpxWorkerPool *pgpx_wpools; /* [max_pools] */

/* A session has told how to connect: keep it. */
extern void pgpx_conninfo_take(char *message, size_t len);

/* Wipe what is kept of a pool in this place; or of all, at the worker's end. */
extern void pgpx_conninfo_forget(int pool);
extern void pgpx_conninfo_wipe_all(void);

/* The value of a connection parameter, NULL if it is not given. */
extern const char *pgpx_conninfo_param(const PgpxConninfo *ci,
									   const char *name);

/* Has something else been told since, or nothing to this pool? */
extern bool pgpx_conninfo_is_another(int pool, uint32 pool_id, uint64 version);

/* Is the resolver to be asked first?  Ask it; returns why it cannot be, or NULL. */
extern bool pgpx_conninfo_needs_lookup(const PgpxConninfo *ci);
extern const char *pgpx_conninfo_start_lookup(int pool, PgpxLookupAnswer answer,
											  uint64 tag);

/*
 * Begin a login.  application_name: ours instead of the one that was told, unless
 * NULL.  NULL: no memory.
 */
extern PGconn *pgpx_conninfo_login(const PgpxConninfo *ci,
								   const PgpxHosts *hosts,
								   const char *application_name);

/*
 * pgpx_hosts_of
 *		Where a login may go, as the look-up says if there was one.  Not first one
 *		that was silent a short while ago.
 * pgpx_hosts_mark_unresponsive
 *		The one that libpq is at does not answer (NULL: it cannot be asked; then the
 *		first): for a while others begin behind it.  Returns whether any but this
 *		one are left.
 */
extern PgpxHosts *pgpx_hosts_of(int pool, const PgpxLookup *lookup);
extern bool pgpx_hosts_mark_unresponsive(int pool, PgpxHosts *hosts,
										 const PGconn *pg);

/* Free them, and forget where they were; NULL is none. */
extern void pgpx_hosts_free(PgpxHosts **hosts);

/*
 * A list for libpq of a field of what is left, by its offset in PgpxHost; NULL: it
 * was not told.  In the current memory context.
 */
extern const char *pgpx_hosts_join(const PgpxHosts *hosts, size_t field);

/* Whose logins wait for each other: a pool's, by what was told at a time. */
typedef struct PgpxLoginOf
{
	int			pool;
	uint32		pool_id;
	uint64		version;		/* of the conninfo */
} PgpxLoginOf;

/*
 * A step has ended, as libpq says (and errno), or, unless failure is NULL, for this
 * reason.  The owner may end the login in it.
 */
typedef void (*PgpxLoginStepped)(void *owner, PostgresPollingStatusType status,
								 int sqlstate, const char *failure);

/* The same with what else libpq does step by step: a cancel request (cancel.c). */
typedef struct PgpxLoginKind
{
	PostgresPollingStatusType (*poll)(void *libpq); /* in the thread */
	int (*socket)(const void *libpq);
	void (*finish)(void *libpq);
} PgpxLoginKind;

#endif							/* PGPX_CONNINFO_H */
