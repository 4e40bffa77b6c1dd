/*-------------------------------------------------------------------------
 *
 * checkout_pool.c
 *	  Checkout: find the pool of a server spec, and publish its conninfo.
 *
 * Runs in sessions only.  The options in effect of a pool are those that were
 * read from the catalogs last.  A checkout whose options differ reads the
 * catalogs again before the pool adopts its options.
 *
 *-------------------------------------------------------------------------
 */
#include "session/checkout_pool.h"

#include "commands/dbcommands.h"
#include "utils/inval.h"

#include "shared/registry.h"
#include "protocol/control_message.h"
#include "session/catalog_invalidation.h"

#define MOST_READS 10			/* attempts, if the catalogs change each time */

bool
pgpx_checkout_refresh(PgpxCheckout *c)
{
	PgpxServerSpec *old = c->spec;
	PgpxServerSpec *fresh;
	NameData	name = old->server_name;
	PgpxPoolKey key = old->key;
	bool		same;

	old->valid = false;
	fresh = pgpx_server_spec_get_for(NameStr(name), old->reader,
									 old->by_table);
	pgpx_server_spec_pin(fresh);
	same = memcmp(&key, &fresh->key, sizeof(key)) == 0;
	if (same && fresh->pool < 0)
	{
		/* the old one was evicted from the cache */
		fresh->pool = old->pool;
		fresh->pool_id = old->pool_id;
	}
	pgpx_server_spec_unpin(old);
	c->spec = fresh;
	if (same)
		return true;
	c->position = 0;
	c->published_incarnation = 0;
	c->published_version = 0;
	return false;
}

/*
 * Raise an error if this session holds a lease of another transaction's private
 * pool for the same server.  Such a lease may outlive its transaction, and it
 * keeps the slot of that pool in use.  Without this check, a user who changes,
 * e.g., a user mapping in each transaction would get one more pool each time,
 * each with its own pool_size.
 */
static void
refuse_second_private_pool(const PgpxServerSpec *spec)
{
	dlist_iter	iter;

	if (!TransactionIdIsValid(spec->key.xid))
		return;
	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);
		const PgpxPoolKey *key = &lease->spec->key;

		if (TransactionIdIsValid(key->xid) && key->xid != spec->key.xid &&
			key->database == spec->key.database &&
			key->server == spec->key.server)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("options of server \"%s\" were changed in this transaction",
							NameStr(spec->server_name)),
					 errdetail("Lease " INT64_FORMAT " is from another transaction of this session that had changed them.",
							   (int64) lease->id),
					 errhint("Return that lease first, or commit.")));
	}
}

PgpxPool *
pgpx_checkout_lock_pool(PgpxCheckout *c)
{
	uint64		read_at = 0;	/* options_version before the last refresh */

	for (;;)
	{
		PgpxServerSpec *spec;
		PgpxPool   *pool;

		/*
		 * Read the spec again if its catalog entries or privileges changed
		 * since it was read.  If they changed while it was read, it may be
		 * half old and half new, so check again afterwards.
		 */
		AcceptInvalidationMessages();
		for (int i = 0; i < MOST_READS && !c->spec->valid; i++)
			if (!pgpx_checkout_refresh(c))
				read_at = 0;
		spec = c->spec;

		pool = pgpx_pool_lock(spec->pool, spec->pool_id);
		if (pool == NULL)
		{
			PgpxPoolRef ref = {
				.key = spec->key,
				.fingerprint = spec->fingerprint,
				.opts = &spec->opts,
				.database_name = get_database_name(MyDatabaseId),
				.server_name = NameStr(spec->server_name),
				.user = spec->user,
				.user_name = NameStr(spec->user_name),
			};

			uint32		pool_id;
			int			index;

			refuse_second_private_pool(spec);
			if (TransactionIdIsValid(spec->key.xid))
				pgpx_catalog_note_private_pool();
			index = pgpx_pool_find(&ref, &pool_id);

			/* these values were those of the former pool */
			read_at = 0;
			c->position = 0;
			c->published_incarnation = 0;
			c->published_version = 0;
			if (index < 0)
				ereport(ERROR,
						(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
						 errmsg("too many pools"),
						 errdetail("All %d slots are in use.", pgpx_shared->max_pools),
						 errhint("Raise \"pgpool_ext.max_pools\". A server whose PUBLIC user mapping does not name the remote user has one pool for each local user.")));

			/* leases may share the spec, so spec->pool never becomes -1 */
			spec->pool = index;
			spec->pool_id = pool_id;
			continue;
		}
		if (pgpx_pool_is_current_locked(pool, &spec->fingerprint))
			return pool;
		if (read_at == pool->options_version)
		{
			pgpx_pool_adopt_locked(pool, NameStr(spec->server_name),
								   NameStr(spec->user_name),
								   &spec->fingerprint, &spec->opts);
			return pool;
		}

		/*
		 * The options of the spec differ from the pool's.  It is not known
		 * which of them were read later.  So read the catalogs again before
		 * the pool adopts the options, and once more if another session
		 * changed the pool in the meantime.
		 */
		read_at = pool->options_version;
		LWLockRelease(pool->lock);
		if (!pgpx_checkout_refresh(c))
			read_at = 0;
	}
}

void
pgpx_checkout_publish(PgpxCheckout *c, int worker, uint64 incarnation,
					  uint64 version)
{
	PgpxServerSpec *spec = c->spec;
	PgpxConninfo conninfo = {
		.version = version,
		.need_password = spec->need_password,
		.start_commands = spec->start_commands,
		.reset_command = spec->reset_command,
		.nparams = spec->nparams,
		.keywords = spec->keywords,
		.values = spec->values,
	};

	for (;;)
	{
		int			sent = pgpx_control_send_conninfo(worker, incarnation,
													  spec->pool,
													  spec->pool_id,
													  &conninfo);

		if (sent > 0)
			break;
		if (sent < 0)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("options of server \"%s\" are too long",
							NameStr(spec->server_name)),
					 errdetail("All options together may have %d bytes.",
							   PGPX_MESSAGE_MAX)));
		if (!pgpx_session_wait_control(worker, c->deadline))
			break;
	}
	c->published_incarnation = incarnation;
	c->published_version = version;
}

bool
pgpx_checkout_must_publish(const PgpxCheckout *c, const PgpxPool *pool,
						   uint64 incarnation)
{
	if (incarnation == 0)
		return false;			/* no worker; the next one wakes the waiters */
	if (pool->conninfo_incarnation == incarnation &&
		pool->conninfo_version >= pool->connect_version)
		return false;
	return c->published_incarnation != incarnation ||
		c->published_version < pool->connect_version;
}

bool
pgpx_checkout_publish_if_missing(PgpxCheckout *c, PgpxPool *pool)
{
	uint64		incarnation = pgpx_pool_worker_incarnation(pool);
	uint64		version = pool->version;
	int			worker = pool->worker;

	if (!pgpx_checkout_must_publish(c, pool, incarnation))
		return false;
	LWLockRelease(pool->lock);
	pgpx_checkout_publish(c, worker, incarnation, version);
	return true;
}

void
pgpx_checkout_publish_conninfo(PgpxServerSpec *spec, PgpxTime deadline)
{
	PgpxCheckout c = {0};

	c.spec = spec;
	c.deadline = deadline;
	pgpx_server_spec_pin(c.spec);
	PG_TRY();
	{
		PgpxPool   *pool = pgpx_checkout_lock_pool(&c);

		if (!pgpx_checkout_publish_if_missing(&c, pool))
			LWLockRelease(pool->lock);
	}
	PG_FINALLY();
	{
		pgpx_server_spec_unpin(c.spec);
	}
	PG_END_TRY();
}
