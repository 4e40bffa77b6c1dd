/*-------------------------------------------------------------------------
 *
 * server_spec.h
 *	  Server specs: the resolved catalog entries of a server for a user,
 *	  and their cache.
 *
 * A server spec holds what the catalogs define for one server and one
 * user: the pool's key, its options, and the connection parameters with
 * their secrets.  It lives in this session's private memory only.
 *
 * Implemented by server_spec.c (construction and cache), server_catalog.c
 * (catalog rows and privileges on them) and catalog_invalidation.c (changes of
 * them).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SERVER_SPEC_H
#define PGPX_SERVER_SPEC_H

#include "protocol/wire.h"
#include "shared/shmem.h"

#include "access/htup.h"
#include "access/xact.h"
#include "lib/ilist.h"

/*
 * Number of invalidations of the catalogs from which specs are read.  It counts
 * any change of servers, mappings, wrappers, roles, memberships and databases.
 */
extern uint64 pgpx_catalog_changes;

typedef struct PgpxServerSpec
{
	int			refcount;		/* one for each pin, also that of the cache */
	uint64		read_at;		/* pgpx_catalog_changes before it was read */
	bool		cached;			/* found by pgpx_server_spec_get */
	dlist_node	node;			/* in the list of all specs */
	MemoryContext cxt;			/* holds this struct and all it points to */

	NameData	server_name;	/* as in the catalog */
	bool		by_table;		/* for foreign tables: see may_use */
	Oid			read_for;		/* user for whom the catalogs were read; see
								 * pgpx_server_spec_get_for */
	Oid			user;			/* of the pool; InvalidOid: shared by all
								 * users of a PUBLIC mapping */
	NameData	user_name;		/* "public" if the pool is shared */
	PgpxPoolKey key;
	PgpxFingerprint fingerprint;
	bool		uncommitted;	/* the server or mapping was created in this
								 * transaction, so only it has the pool */
	PgpxPoolOptions opts;
	const char *start_commands; /* "" if none */
	const char *reset_command;
	bool		discards_all;	/* reset_command is exactly DISCARD ALL */

	/* for PQconnectStartParams, NULL-terminated */
	int			nparams;
	const char **keywords;
	const char **values;
	bool		need_password;	/* refuse a connection that used no password */
	bool		password_command;	/* the worker obtains the password */
	bool		of_superuser;	/* the owners of the server and of its base
								 * server are superusers */
	bool		owner_has_mapping;	/* the owner of the server with the
									 * connection options has the privileges of
									 * the user, or the mapping is PUBLIC's */

	/* where its pool was last found; the pool_id is checked under the lock */
	int			pool;			/* index; -1: unknown */
	uint32		pool_id;

	/* connection of this pool that this session returned last */
	int			last_conn;		/* index; -1: none */
	uint64		last_conn_generation;
} PgpxServerSpec;

/* Return the reset that the options require, as PGPX_SENT_* bits; 0: none. */
static inline int
pgpx_server_spec_reset(const PgpxServerSpec *spec)
{
	if (spec->opts.reset == PGPX_RESET_NEVER)
		return 0;
	return (spec->discards_all ? PGPX_SENT_DISCARD_ALL : PGPX_SENT_RESET) |
		(spec->start_commands[0] != '\0' ? PGPX_SENT_START : 0);
}

/*
 * pgpx_server_spec_get
 *		Return the server spec of a server for the current user
 *		(GetUserId()).
 *
 * Specs are cached in this session.  Any change of servers, mappings, wrappers,
 * roles or memberships invalidates them.  The result is valid until the next
 * call of pgpx_server_spec_get; pin it to keep it longer.
 *
 * Errors: 22004 (the caller must check for NULL), 42704 no such server, base
 * server or mapping, 42501 no USAGE, 0A000 wrapper not supported, or an option
 * that a shared connection cannot have, 22023 and HV00D options not valid for a
 * base server, 2F003 password required, 28000 no valid SCRAM keys, 55000 this
 * transaction has changed a catalog row of the server.
 */
extern PgpxServerSpec *pgpx_server_spec_get(const char *name);

/*
 * pgpx_server_spec_get_for
 *		As pgpx_server_spec_get, but for any user.
 *
 * name: NULL for a foreign table, which belongs to the server with the OID
 * "server", whatever its name is.
 *
 * by_table: the server is used by a foreign table.  Then USAGE on it is not
 * checked, because the privileges on the table imply the right to use its
 * server.  The base server is checked, see may_use in server_catalog.c.
 *
 * The catalog reader passes InvalidOid with by_table, for the pool that all
 * users who are not superusers share.  The mapping of PUBLIC must then name the
 * remote user.  Each checkout from the pool checks the privileges of its own
 * user.
 */
extern PgpxServerSpec *pgpx_server_spec_get_for(const char *name, Oid server,
												Oid user, bool by_table);

/* Return whether the catalogs have not changed since the spec was read. */
static inline bool
pgpx_server_spec_is_valid(const PgpxServerSpec *spec)
{
	return spec->read_at == pgpx_catalog_changes;
}

/*
 * Return the name of the remote database.  Without the option dbname it is the
 * name of the remote user.
 */
extern const char *
pgpx_server_spec_remote_database(const PgpxServerSpec *spec);

/* Return the name of the remote role that the connections log in as. */
extern const char *pgpx_server_spec_remote_user(const PgpxServerSpec *spec);

/*
 * pgpx_server_spec_is_same_login
 *		Return whether connections of two specs have the same remote session
 *		user, for foreign tables of one transaction.
 *
 * That is the case for one server, one user mapping, one remote user, one user
 * name given to the password command, and the same SCRAM keys.  It does not
 * matter which of the local users are superusers.
 */
extern bool pgpx_server_spec_is_same_login(const PgpxServerSpec *a,
										   const PgpxServerSpec *b);

/*
 * pgpx_server_spec_check_unrequested
 *		Raise 42501 if a background worker may not log in without a request of
 *		the user.
 *
 * The owner of a server determines the host to which the user's password is
 * sent, and the start commands that run with the user's privileges on the
 * remote.
 *
 * Without a password, superusers must own the server and its base server,
 * because the remote may then trust the operating system account of this
 * server.  With one, it is sufficient that the owner of the server with the
 * connection options has the privileges of the user, or can read the mapping,
 * because it is PUBLIC's.
 */
extern void pgpx_server_spec_check_unrequested(const PgpxServerSpec *spec);

extern void pgpx_server_spec_pin(PgpxServerSpec *spec);

/* Release a pin.  Raise no error. */
extern void pgpx_server_spec_unpin(PgpxServerSpec *spec);

/*
 * pgpx_server_spec_find
 *		Read what a checkout of a pool would read from the catalogs, for
 *		catalog_invalidation.c.
 *
 * Set the names, the user, the key, the fingerprint and the options of *spec,
 * which has by_table and the key of the pool.  user: of the pool.  Return false
 * if a checkout would raise an error.  Never raise an error because of the
 * contents of the rows, so that a commit cannot fail here.  *has_options is
 * false if an option is not valid.
 */
extern bool pgpx_server_spec_find(PgpxServerSpec *spec, Oid user,
								  bool *has_options);

/*
 * Read the options of a server, without those of a base server.  Return false
 * if it does not exist, or if an option is not valid.
 */
extern bool pgpx_server_spec_read_options(Oid server, PgpxPoolOptions *opts);

/*
 * Return whether each lease begins with the settings of the startup packet.
 * Otherwise start commands or earlier leases may have changed them.
 */
static inline bool
pgpx_server_spec_can_keep_settings(const PgpxServerSpec *spec)
{
	return spec->opts.reset == PGPX_RESET_ALWAYS &&
		spec->start_commands[0] == '\0';
}

/* --- Server catalog -------------------------------------------------------
 *
 * The catalog rows from which a server spec is built: for server_spec.c, and
 * for catalog_invalidation.c, which checks whether they have changed.
 */

/* A row of pg_foreign_server. */
typedef struct PgpxServerRow
{
	Oid			oid;
	const char *name;
	Oid			owner;
	NameData	wrapper;		/* its foreign-data wrapper */
	bool		own_wrapper;	/* that is pgpool_fdw */
	List	   *options;
} PgpxServerRow;

typedef struct PgpxServerRows
{
	PgpxServerRow pool;			/* the named server, with the pool's options */
	PgpxServerRow base;			/* the server with the connection options: the
								 * base server, or the same as "pool" */
	List	   *mapping_options;	/* of the user mapping on "base" */
	bool		of_public;		/* that mapping is PUBLIC's */
} PgpxServerRows;

/* Why no spec can be built from the catalogs. */
typedef enum PgpxFault
{
	PGPX_FAULT_NONE,
	PGPX_FAULT_NO_SERVER,
	PGPX_FAULT_NO_USAGE,
	PGPX_FAULT_OWN_BASE,		/* the server is its own base server */
	PGPX_FAULT_WRAPPER,
	PGPX_FAULT_BASE_HAS_BASE,
	PGPX_FAULT_NO_USER,
	PGPX_FAULT_HAS_MAPPING,		/* besides that of the base server */
	PGPX_FAULT_NO_MAPPING
} PgpxFault;

/*
 * pgpx_server_catalog_find
 *		Look up server, base server and user mapping, and check the user's
 *		privileges.
 *
 * Fill in *rows (allocated in the current memory context), and the names, the
 * user, the key and the fingerprint of the spec; the caller sets the key's
 * superuser flag.  Raise no error because of the contents of the rows.
 */
extern PgpxFault pgpx_server_catalog_find(PgpxServerSpec *spec,
										  PgpxServerRows *rows, Oid server,
										  Oid user);

/*
 * pgpx_server_catalog_read
 *		As pgpx_server_catalog_find, for the server of a name or, if that is
 *		NULL, of an OID.  Raise an error for a fault, and if this transaction
 *		has changed a row.
 */
extern void pgpx_server_catalog_read(PgpxServerSpec *spec, PgpxServerRows *rows,
									 const char *name, Oid server, Oid user);

/*
 * pgpx_server_catalog_is_created
 *		Return whether this transaction has created a row of the spec of a
 *		server.  Then no other session can find the pool.
 *
 * Raise 55000 if it has changed the row.  Other sessions use the pool, and must
 * not see the change before it commits.
 */
extern bool pgpx_server_catalog_is_created(const char *server, int cacheid,
										   Oid oid);

/*
 * pgpx_server_catalog_find_server
 *		Read the row of a server.  Return false if it does not exist, or if its
 *		wrapper cannot have pools.  Never raise an error because of the contents
 *		of the row.
 */
extern bool pgpx_server_catalog_find_server(Oid oid, PgpxServerRow *server);

/*
 * Return the server with the connection options of a server: its base server,
 * or itself.  Return InvalidOid if it does not exist, or its wrapper cannot have
 * pools.  Raise no error.
 */
extern Oid	pgpx_server_catalog_find_base(Oid server);

/*
 * Return whether a user has USAGE on a server; false if it does not exist.
 * Raise no error.
 */
extern bool pgpx_server_catalog_may_use(Oid server, Oid user);

/*
 * Return whether a row of pg_user_mapping names the remote user.  If a mapping
 * of PUBLIC does, all local users share one pool.
 */
extern bool pgpx_server_catalog_names_user(HeapTuple row);

/*
 * The SCRAM keys of this session in base64, for a login with
 * use_scram_passthrough.  The caller of pgpx_scram_find_keys must wipe them.
 */
typedef struct PgpxScramKeys
{
	char		client[64];
	char		server[64];
} PgpxScramKeys;

/* Make the secret of the digests of keys.  Called once, in the postmaster. */
extern void pgpx_scram_init(void);

/*
 * pgpx_scram_find_keys
 *		Return the keys of this session, and enter their role and digest into
 *		the spec's key.
 *
 * Return false if the session has none, because it did not log in by SCRAM or
 * is a background worker.  Errors: 0A000 before PostgreSQL 18, 28000 the role's
 * password has changed since the login.
 */
extern bool pgpx_scram_find_keys(PgpxServerSpec *spec, PgpxScramKeys *keys);

/*
 * Return whether the SCRAM keys of a pool are those of the role's current
 * password; true if the pool has none.
 */
extern bool pgpx_scram_is_current(const PgpxPoolKey *key);

/*
 * Return the value of an option; NULL if it is missing or empty, which means
 * the same to libpq.
 */
extern const char *pgpx_server_catalog_value(List *options, const char *name);

/* --- Catalog changes ------------------------------------------------------
 *
 * Apply catalog changes to pools: ALTER, DROP and REVOKE take effect at commit.
 */

/*
 * Register for catalog changes.  Called in the postmaster, so that every
 * process inherits it.
 */
extern void pgpx_catalog_invalidation_init(void);

/*
 * For hooks.c.
 *
 * - at_xact finds, before the commit, the pools that the transaction's changes
 *   affect.
 * - begin_utility notes statements that change roles.  COMMIT PREPARED may
 *   commit changes of servers, mappings or roles that another transaction made.
 *   Return whether the statement is DISCARD ALL; end_discard must be called
 *   after it.
 * - end_discard returns the session's leases and releases its distributed locks,
 *   because a pooler in front of this server sends DISCARD ALL, which also
 *   releases advisory locks, between two clients.
 */
extern void pgpx_catalog_at_xact(XactEvent event);
extern bool pgpx_catalog_begin_utility(Node *stmt);
extern void pgpx_catalog_end_discard(void);

/*
 * Record that this transaction uses a pool of a server or user mapping that it
 * has created.  If it does not commit, the pool is removed.
 */
extern void pgpx_catalog_note_created_pool(uint32 pool_id);

/*
 * Compare the pools of this database with the catalogs at the end of this
 * transaction, as if it had changed them.
 */
extern void pgpx_catalog_check_later(void);

#endif							/* PGPX_SERVER_SPEC_H */
