/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  The registry of pools and servers: lookup, versions, pause, retirement.
 *
 * These functions acquire the registry lock before a pool lock, and never hold
 * two pool locks.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/registry.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "storage/spin.h"
#include "utils/builtins.h"

#include "shared/history.h"
#include "shared/lock_hooks.h"
#include "shared/pool.h"

/* Return the first entry of the bucket of a key. */
static int *
bucket_of(const PgpxPoolKey *key)
{
	uint32		hash = hash_bytes((const unsigned char *) key, sizeof(*key));

	return &pgpx_pool_buckets[hash % pgpx_shared->max_pools];
}

/* Return the index of the pool of a key, -1 if there is none. */
static int
find_pool_locked(const PgpxPoolKey *key)
{
	int			i = *bucket_of(key);

	Assert(LWLockHeldByMe(pgpx_shared->registry_lock));
	while (i >= 0 && memcmp(&pgpx_pools[i].key, key, sizeof(*key)) != 0)
		i = pgpx_pools[i].next_in_bucket;
	return i;
}

/* Raise pools_end, because this slot of a pool or server comes into use. */
static void
use_slot_locked(int index)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->registry_lock, LW_EXCLUSIVE));
	if (index >= pgpx_pools_end())
		pg_atomic_write_u32(&pgpx_shared->pools_end, index + 1);
}

/*
 * Return the index of the slot of a server; -1: it has none.  make: allocate a
 * slot if it has none; then -1 means that all slots are in use.  That can
 * happen before all slots of pools are in use, because a paused server without
 * pools occupies a slot.  The caller must hold the registry lock exclusively.
 */
static int
find_server_locked(Oid database, Oid server, bool make)
{
	int			empty = -1;

	Assert(LWLockHeldByMeInMode(pgpx_shared->registry_lock, LW_EXCLUSIVE));
	for (int i = 0; i < pgpx_pools_end(); i++)
	{
		PgpxServer *s = &pgpx_servers[i];

		if (s->server == server && s->database == database)
			return i;
		if (!OidIsValid(s->server) && empty < 0)
			empty = i;
	}
	if (empty < 0 && pgpx_pools_end() < pgpx_shared->max_pools)
		empty = pgpx_pools_end();
	if (!make || empty < 0)
		return -1;
	use_slot_locked(empty);
	pgpx_servers[empty].database = database;
	pgpx_servers[empty].server = server;
	pgpx_servers[empty].npools = 0;
	pg_atomic_write_u32(&pgpx_servers[empty].paused, 0);
	pg_atomic_write_u32(&pgpx_servers[empty].draining, 0);
	return empty;
}

/*
 * Free the slot of a server if it has no pool and is not paused.  The caller
 * must hold the registry lock exclusively.
 */
static void
free_unused_server_locked(PgpxServer *s)
{
	Assert(LWLockHeldByMeInMode(pgpx_shared->registry_lock, LW_EXCLUSIVE));
	if (s->npools == 0 && pg_atomic_read_u32(&s->paused) == 0)
		s->server = s->database = InvalidOid;
}

/*
 * Free the slot of a pool.  The caller must hold the registry lock and the
 * pool lock.
 */
static void
free_slot_locked(PgpxPool *pool)
{
	PgpxServer *server = &pgpx_servers[pool->server];
	int		   *link = bucket_of(&pool->key);

	Assert(LWLockHeldByMeInMode(pgpx_shared->registry_lock, LW_EXCLUSIVE));
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	while (*link != PGPX_POOL_INDEX(pool))
		link = &pgpx_pools[*link].next_in_bucket;
	*link = pool->next_in_bucket;
	pool->pool_id = 0;
	server->npools--;
	free_unused_server_locked(server);
}

bool
pgpx_server_set_paused(Oid database, Oid server, bool pause, bool drain)
{
	int			index;

	LWLockAcquire(pgpx_shared->registry_lock, LW_EXCLUSIVE);
	index = find_server_locked(database, server, pause);
	if (index >= 0)
	{
		pg_atomic_write_u32(&pgpx_servers[index].paused, pause);
		pg_atomic_write_u32(&pgpx_servers[index].draining, drain);
		free_unused_server_locked(&pgpx_servers[index]);
	}
	LWLockRelease(pgpx_shared->registry_lock);
	return index >= 0 || !pause;
}

int
pgpx_server_list_paused(Oid database, Oid *servers)
{
	int			n = 0;

	LWLockAcquire(pgpx_shared->registry_lock, LW_SHARED);
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (OidIsValid(pgpx_servers[i].server) &&
			pgpx_servers[i].database == database &&
			pg_atomic_read_u32(&pgpx_servers[i].paused) != 0)
			servers[n++] = pgpx_servers[i].server;
	LWLockRelease(pgpx_shared->registry_lock);
	return n;
}

/*
 * Return an empty slot, or else the least recently used pool that has no
 * connection, no waiter and no distributed lock.  A distributed lock keeps
 * the pool because its pings use the worker's conninfo of the pool.
 *
 * The caller must hold the registry lock exclusively.  A pool may come into
 * use after this check, so the caller checks again under the pool lock.  A
 * session that has found the old pool finds another pool id under its lock.
 */
static int
find_slot_locked(void)
{
	int			best = -1;
	PgpxTime	best_used = 0;

	Assert(LWLockHeldByMeInMode(pgpx_shared->registry_lock, LW_EXCLUSIVE));
	for (int i = 0; i < pgpx_shared->max_pools; i++)
		if (pgpx_pools[i].pool_id == 0)
			return i;
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		PgpxPool   *pool = &pgpx_pools[i];
		bool		unused;
		PgpxTime	used;

		LWLockAcquire(pool->lock, LW_SHARED);
		unused = pgpx_pool_is_empty_locked(pool);
		used = pool->last_checkout;
		LWLockRelease(pool->lock);
		if (unused && (best < 0 || used < best_used) &&
			!pgpx_lock_hooks->pool_has_locks(i, pool->pool_id))
		{
			best = i;
			best_used = used;
		}
	}
	return best;
}

static void
set_opts(PgpxPool *pool, const PgpxPoolOptions *opts)
{
	pool->opts = *opts;
	if (opts->min_idle > 0)
		pg_atomic_write_u32(&pgpx_shared->uses_min_idle, 1);
}

/*
 * Create the pool of "ref" in a slot.  Return false if the slot has come into
 * use meanwhile, or if its server can have no slot.
 */
static bool
make_pool(PgpxPool *pool, const PgpxPoolRef *ref)
{
	PgpxPool	fresh = PGPX_POOL_INIT;
	int			server;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (pool->pool_id != 0 && !pgpx_pool_is_empty_locked(pool))
	{
		LWLockRelease(pool->lock);
		return false;
	}

	if (pool->pool_id != 0)
		free_slot_locked(pool);
	use_slot_locked(PGPX_POOL_INDEX(pool));
	server = find_server_locked(ref->key.database, ref->key.server, true);
	if (server < 0)
	{
		LWLockRelease(pool->lock);
		return false;
	}
	pgpx_servers[server].npools++;
	fresh.lock = pool->lock;
	fresh.server = server;
	fresh.worker = server % pgpx_shared->nworkers;
	fresh.key = ref->key;
	fresh.next_in_bucket = *bucket_of(&ref->key);
	*bucket_of(&ref->key) = PGPX_POOL_INDEX(pool);
	fresh.user = ref->user;
	fresh.last_checkout = fresh.stats_reset = pgpx_now();
	pgpx_history_begin(&fresh, fresh.stats_reset);
	fresh.version = fresh.connect_version = pool->version + 1;
	fresh.options_version = pool->options_version + 1;
	fresh.fingerprint = ref->fingerprint;
	*pool = fresh;
	namestrcpy(&pool->database_name, ref->database_name);
	namestrcpy(&pool->server_name, ref->server_name);
	namestrcpy(&pool->user_name, ref->user_name);
	set_opts(pool, ref->opts);
	pool->pool_id = pg_atomic_fetch_add_u32(&pgpx_shared->next_pool, 1);
	LWLockRelease(pool->lock);
	return true;
}

int
pgpx_pool_find(const PgpxPoolRef *ref, uint32 *pool_id)
{
	int			index;

	LWLockAcquire(pgpx_shared->registry_lock, LW_SHARED);
	index = find_pool_locked(&ref->key);
	if (index < 0)
	{
		LWLockRelease(pgpx_shared->registry_lock);
		LWLockAcquire(pgpx_shared->registry_lock, LW_EXCLUSIVE);
		index = find_pool_locked(&ref->key);
	}
	for (int tries = 0; index < 0 && tries < pgpx_shared->max_pools; tries++)
	{
		index = find_slot_locked();
		if (index < 0)
			break;
		if (!make_pool(&pgpx_pools[index], ref))
			index = -1;
	}
	if (index >= 0)
		*pool_id = pgpx_pools[index].pool_id;
	LWLockRelease(pgpx_shared->registry_lock);
	return index;
}

/*
 * Return whether the pool connects in the same way as a pool with this
 * fingerprint.  Options that take effect in place may differ.
 */
static bool
has_same_login_locked(const PgpxPool *pool, const PgpxFingerprint *fingerprint)
{
	Assert(LWLockHeldByMe(pool->lock));
	return memcmp(&pool->fingerprint, fingerprint,
				  offsetof(PgpxFingerprint, in_place)) == 0;
}

bool
pgpx_pool_needs_options_locked(const PgpxPool *pool)
{
	Assert(LWLockHeldByMe(pool->lock));
	return pool->fingerprint.in_place == 0;
}

/* Have the worker check version and deadline of the pool's connect attempts. */
static void
notify_attempts_locked(PgpxPool *pool)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pgpx_conn_foreach_locked(conn, pool)
	{
		if (conn->state == PGPX_CONN_CONNECTING)
			pgpx_conn_notify_worker(conn, pool->worker);
	}
}

void
pgpx_pool_reconnect_locked(PgpxPool *pool)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->version++;

	/* failures and times of the old address do not apply to the new one */
	pool->fails_since = 0;
	pool->remote_full = false;
	pool->outage_logged = false;
	pool->retry_at = 0;
	pool->backoff_ms = 0;
	pool->ramp = 0;
	pool->connect_time = 0;

	pgpx_pool_close_free_locked(pool);
	notify_attempts_locked(pool);
}

void
pgpx_pool_adopt_locked(PgpxPool *pool, const char *server_name,
					   const char *user_name,
					   const PgpxFingerprint *fingerprint,
					   const PgpxPoolOptions *opts)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (has_same_login_locked(pool, fingerprint))
	{
		pgpx_pool_set_options_locked(pool, fingerprint, opts);
		return;
	}
	pgpx_pool_reconnect_locked(pool);
	pool->connect_version = pool->version;
	pool->has_conninfo = false;
	pool->options_version++;
	pool->gone = false;
	pool->by_table = false;
	namestrcpy(&pool->server_name, server_name);
	namestrcpy(&pool->user_name, user_name);
	pool->fingerprint = *fingerprint;
	set_opts(pool, opts);
}

PgpxTime
pgpx_choose_expiry(PgpxTime opened_at, int64 max_lifetime_ms)
{
	int64		lifetime = max_lifetime_ms * 1000;

	if (lifetime == 0)
		return 0;
	return opened_at + lifetime -
		(int64) (pg_prng_double(&pg_global_prng_state) * lifetime / 10);
}

void
pgpx_pool_set_options_locked(PgpxPool *pool, const PgpxFingerprint *fingerprint,
							 const PgpxPoolOptions *opts)
{
	bool		connects =
		pool->opts.connect_timeout != opts->connect_timeout ||
		pool->opts.retry_min != opts->retry_min ||
		pool->opts.retry_max != opts->retry_max;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	Assert(has_same_login_locked(pool, fingerprint));
	if (pool->opts.max_lifetime != opts->max_lifetime)
		pgpx_conn_foreach_locked(conn, pool)
		{
			if (conn->opened_at != 0)
				conn->expires_at = pgpx_choose_expiry(conn->opened_at,
													  opts->max_lifetime);
		}
	pool->options_version++;
	pool->fingerprint = *fingerprint;
	set_opts(pool, opts);
	if (connects)
	{
		/*
		 * end a pause made with the old options, and have the worker apply
		 * the new timeout to running attempts
		 */
		pool->retry_at = 0;
		pool->backoff_ms = 0;
		notify_attempts_locked(pool);
	}
	pg_atomic_fetch_add_u32(&pgpx_shared->pools_changed, 1);
	pgpx_worker_wake(pool->worker);
}

/*
 * Have the conninfo published again.  The waiters are woken, find that the
 * worker lacks it, and read the options.  If the pool has no waiters but needs
 * the conninfo, the worker starts the catalog reader.
 */
static void
republish_conninfo_locked(PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->has_conninfo = false;
	pool->awaits_conninfo = false;
	pgpx_pool_wake_waiters_locked(pool, wake);
	pg_atomic_fetch_add_u32(&pgpx_shared->pools_changed, 1);
	pgpx_worker_wake(pool->worker);
}

bool
pgpx_pool_needs_reader(int index, PgpxPool *copy)
{
	PgpxPool   *pool = &pgpx_pools[index];
	uint32		pool_id;
	bool		lacks;
	bool		warm;

	LWLockAcquire(pool->lock, LW_SHARED);
	if (copy != NULL)
		*copy = *pool;
	pool_id = pool->pool_id;
	lacks = pool_id != 0 && !pool->gone &&
		!OidIsValid(pool->key.scram_role) &&
		pgpx_pool_worker_incarnation(pool) != 0 &&
		!pool->has_conninfo;
	warm = pool->opts.min_size > 0 || pool->opts.min_idle > 0;
	LWLockRelease(pool->lock);
	return lacks &&
		(warm || pgpx_lock_hooks->pool_has_locks(index, pool_id));
}

void
pgpx_pool_forget_options_locked(PgpxPool *pool, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pool->options_version++;
	pool->fingerprint.in_place = 0;
	republish_conninfo_locked(pool, wake);
}

void
pgpx_pool_retire_locked(PgpxPool *pool, bool gone, PgpxWake *wake)
{
	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	pgpx_pool_reconnect_locked(pool);
	pool->connect_version = pool->version;
	pool->options_version++;
	pool->gone = gone;
	if (gone)
	{
		/* its distributed locks are lost */
		pg_atomic_fetch_add_u32(&pgpx_shared->locks_changed, 1);
		pgpx_worker_wake(pool->worker);
	}
	memset(&pool->fingerprint, 0, sizeof(pool->fingerprint));
	republish_conninfo_locked(pool, wake);
}

void
pgpx_pool_remove_gone(int index, uint32 pool_id)
{
	PgpxPool   *pool;

	LWLockAcquire(pgpx_shared->registry_lock, LW_EXCLUSIVE);
	pool = pgpx_pool_lock(index, pool_id);
	if (pool != NULL)
	{
		if (pool->gone && pgpx_pool_has_ended_locked(pool))
			free_slot_locked(pool);
		LWLockRelease(pool->lock);
	}
	LWLockRelease(pgpx_shared->registry_lock);
}

PgpxResolverSlot *
pgpx_resolver_slot(void)
{
	for (int i = 0; i < PGPX_MAX_RESOLVERS; i++)
		if (pg_atomic_read_u32(&pgpx_shared->resolver[i].database) ==
			MyDatabaseId)
			return &pgpx_shared->resolver[i];
	return NULL;
}

PgpxResolverSlot *
pgpx_resolver_slot_claim(void)
{
	PgpxResolverSlot *slot;

	/* two processes must not claim two slots for one database */
	LWLockAcquire(pgpx_shared->registry_lock, LW_EXCLUSIVE);
	slot = pgpx_resolver_slot();
	for (int i = 0; slot == NULL && i < PGPX_MAX_RESOLVERS; i++)
	{
		uint32		none = InvalidOid;

		if (pg_atomic_compare_exchange_u32(&pgpx_shared->resolver[i].database,
										   &none, MyDatabaseId))
			slot = &pgpx_shared->resolver[i];
	}
	LWLockRelease(pgpx_shared->registry_lock);
	return slot;
}
