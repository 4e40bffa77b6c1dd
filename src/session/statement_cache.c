/*-------------------------------------------------------------------------
 *
 * statement_cache.c
 *	  The statement cache: statements that stay prepared on a connection.
 *
 * With the server option statement_cache, a connection keeps statements
 * prepared when its lease ends, so that the remote need not parse and plan them
 * again.
 *
 * What is prepared
 *	 The second execution of a text prepares it.  Its name is a SHA-256 hash, cut
 *	 to 128 bits, of a secret of this server run, the pool, the local user and
 *	 the text.  Parameters have no declared types, so the text determines them.
 *	 The table of a connection (shared/prepared.h) lists its statements.  It is
 *	 bounded in number and in bytes of text; the least recently used statement is
 *	 closed in the same pipeline that prepares another one.
 *	 A statement enters the table when its ParseComplete was read.  While that is
 *	 awaited, the table is marked as UNKNOWN, so that a session may die at any
 *	 point.
 *
 * What is not prepared
 *	 Classes of texts (statement_class.c) decide.  Only a query may be prepared,
 *	 and none whose literals depend on the time.  A text that may change a setting
 *	 pauses the cache until the next reset, because PostgreSQL evaluates literals
 *	 when it parses, and does not parse again if TimeZone changes, for example.
 *	 Any other text, such as DDL, DO, CALL, PREPARE or DEALLOCATE, makes the table
 *	 UNKNOWN: the lease sends all its further texts as without a cache, so a
 *	 temporary table hides another one as usual, and the reset is DISCARD ALL.
 *
 * The reset
 *	 If the table is known, the reset does what DISCARD ALL does, except
 *	 DEALLOCATE ALL and DISCARD PLANS.  A function that a query calls can execute
 *	 PREPARE and DEALLOCATE, too, which no text shows.  So the reset fails if a
 *	 statement exists that was prepared by SQL: then the connection closes.  SQL
 *	 can therefore not replace a statement of ours, although it can read its name
 *	 in pg_prepared_statements, and no statement that a user has prepared
 *	 survives a lease.
 *	 Before another local user gets the connection (in a pool of a PUBLIC
 *	 mapping), DISCARD ALL is sent.
 *
 * Changes at the remote
 *	 PostgreSQL parses and plans a prepared statement again if a table of it, or
 *	 search_path, or with row security the role, has changed (RevalidateCachedQuery
 *	 in plancache.c).  If its result then has other columns, Bind fails with 0A000.
 *	 If a function has deallocated it, Bind fails with 26000; and if it exists
 *	 unexpectedly, Parse fails with 42P05.  In each case the statement was not
 *	 executed.  Outside of a transaction it is sent again without the cache, and
 *	 the connection's statements are dropped by the next reset.
 *	 Within a transaction the error would abort the transaction.  So there a
 *	 statement is used only if this transaction has parsed it: the transaction has
 *	 locks on its tables, which prevent that they change.  Otherwise it is
 *	 closed and parsed again.  A command such as ROLLBACK TO ends this, because it
 *	 releases locks.
 *
 *-------------------------------------------------------------------------
 */
#include "session/statement_cache.h"

#include <inttypes.h>

#include "common/cryptohash.h"
#include "common/sha2.h"

#include "session/statement_class.h"

#define TEXT_MAX (64 * 1024)	/* a longer text is not prepared */

/*
 * DISCARD ALL without DEALLOCATE ALL and DISCARD PLANS, in its order.  The error
 * names a statement that was prepared by SQL.
 */
static const char keeping_reset[] =
	"CLOSE ALL;"
	"SET SESSION AUTHORIZATION DEFAULT;"
	"RESET ALL;"
	"UNLISTEN *;"
	"SELECT pg_catalog.pg_advisory_unlock_all(),"
	" CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0"
	" THEN (pg_catalog.min(name) OPERATOR(pg_catalog.||) ' was prepared by SQL')::pg_catalog.int4 END"
	" FROM pg_catalog.pg_prepared_statements WHERE from_sql;"
	"DISCARD TEMP;"
	"DISCARD SEQUENCES";

static inline PgpxPreparedTable *
table_of(const PgpxLease *lease)
{
	return &pgpx_prepared_tables[lease->conn];
}

/*
 * Lock the pool so that the table can be changed.  Returns NULL, without the
 * lock, if the lease was revoked: the slot may have another connection by then.
 */
static PgpxPreparedTable *
lock_table(const PgpxLease *lease, LWLock **lock)
{
	*lock = pgpx_pools[lease->spec->pool].lock;
	LWLockAcquire(*lock, LW_SHARED);
	if (pg_atomic_read_u64(&pgpx_conns[lease->conn].lease_id) == lease->id)
		return table_of(lease);
	LWLockRelease(*lock);
	return NULL;
}

static void
set_state(PgpxLease *lease, PgpxPreparedState state)
{
	LWLock	   *lock;
	PgpxPreparedTable *table = lock_table(lease, &lock);

	if (table == NULL)
		return;
	table->state = state;
	LWLockRelease(lock);
}

void
pgpx_statement_cache_lost(PgpxLease *lease)
{
	if (lease->spec->statement_cache > 0)
		set_state(lease, PGPX_PREPARED_UNKNOWN);
}

bool
pgpx_statement_cache_note(PgpxLease *lease, const char *sql, bool single)
{
	PgpxPreparedTable *table = table_of(lease);

	if (lease->spec->statement_cache == 0)
		return false;
	pgpx_statement_cache_settle(lease);
	if (table->state == PGPX_PREPARED_UNKNOWN)
		return false;
	switch (pgpx_statement_class(sql, single))
	{
		case PGPX_CLASS_CACHEABLE:
			return table->state == PGPX_PREPARED_USABLE;
		case PGPX_CLASS_HARMLESS:
			memset(lease->parsed_here, 0, sizeof(lease->parsed_here));
			break;
		case PGPX_CLASS_SETTING:
			set_state(lease, PGPX_PREPARED_PAUSED);
			break;
		case PGPX_CLASS_OTHER:
			set_state(lease, PGPX_PREPARED_UNKNOWN);
			break;
	}
	return false;
}

/* Compute the key of a text.  Returns false if that fails. */
static bool
compute_key(const PgpxLease *lease, const char *sql, size_t len,
			PgpxPreparedKey *key)
{
	struct
	{
		uint64		secret[2];
		uint32		pool_id;
		Oid			user;
	}			salt = {
		.secret = {pgpx_shared->secret[0], pgpx_shared->secret[1]},
		.pool_id = lease->spec->pool_id,
		.user = lease->user,
	};
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);
	bool		done;

	if (ctx == NULL)
		return false;
	done = pg_cryptohash_init(ctx) >= 0 &&
		pg_cryptohash_update(ctx, (uint8 *) &salt, sizeof(salt)) >= 0 &&
		pg_cryptohash_update(ctx, (const uint8 *) sql, len) >= 0 &&
		pg_cryptohash_final(ctx, digest, sizeof(digest)) >= 0;
	pg_cryptohash_free(ctx);
	memcpy(key, digest, sizeof(*key));
	return done;
}

/* Write the name of a statement; kind: 'S' for Close, '\0' for none. */
static void
write_name(char name[PGPX_CACHED_NAME_LEN], const char *kind,
		   const PgpxPreparedKey *key)
{
	snprintf(name, PGPX_CACHED_NAME_LEN,
			 "%spgpx_"
			 "%016" PRIx64 "%016" PRIx64,
			 kind,
			 key->hash[0], key->hash[1]);
}

/* The slots whose statements the current remote transaction has parsed. */
static inline bool
is_parsed_here(const PgpxLease *lease, int slot)
{
	return (lease->parsed_here[slot / 64] >> (slot % 64) & 1) != 0;
}

static void
set_parsed_here(PgpxLease *lease, int slot, bool parsed)
{
	uint64		bit = UINT64CONST(1) << (slot % 64);

	if (parsed)
		lease->parsed_here[slot / 64] |= bit;
	else
		lease->parsed_here[slot / 64] &= ~bit;
}

static void
add_close(PgpxCachedStatement *cached, const PgpxPreparedKey *key)
{
	int			n = cached->pipeline.ncloses++;

	write_name(cached->closes[n], "S", key);
	cached->close_list[n] = cached->closes[n];
}

/*
 * Make room for a statement, and mark the table as UNKNOWN until its
 * ParseComplete is read.  slot: its slot if it must be parsed again, else -1.
 * Returns false if it must not be prepared.
 */
static bool
begin_prepare(PgpxLease *lease, PgpxCachedStatement *cached,
			  const PgpxPreparedKey *key, uint32 bytes, int slot)
{
	PgpxPreparedKey evicted;
	LWLock	   *lock;
	PgpxPreparedTable *table = lock_table(lease, &lock);

	if (table == NULL)
		return false;
	if (slot >= 0)
	{
		pgpx_prepared_remove(table, slot);
		add_close(cached, key);
	}
	while (cached->pipeline.ncloses < PGPX_CACHED_EVICT_MAX)
	{
		slot = pgpx_prepared_evict(table, lease->spec->statement_cache, bytes,
								   &evicted);
		if (slot < 0)
			break;
		set_parsed_here(lease, slot, false);
		add_close(cached, &evicted);
	}
	table->state = PGPX_PREPARED_UNKNOWN;
	LWLockRelease(lock);

	lease->preparing = true;
	lease->preparing_key = *key;
	lease->preparing_bytes = bytes;
	lease->preparing_closes = cached->pipeline.ncloses > 0;
	return true;
}

bool
pgpx_statement_cache_choose(PgpxLease *lease, const PgpxStatement *statement,
							PgpxCachedStatement *cached)
{
	PgpxPreparedTable *table = table_of(lease);
	PgpxPipeline *p = &cached->pipeline;
	char		tx = lease->sock->wire.tx;
	size_t		len = strlen(statement->sql);
	PgpxPreparedKey key;
	int			slot;

	if (len > TEXT_MAX || tx == 'E' ||
		!compute_key(lease, statement->sql, len, &key))
		return false;
	if (tx == 'I')
		memset(lease->parsed_here, 0, sizeof(lease->parsed_here));
	memset(p, 0, sizeof(*p));
	slot = pgpx_prepared_find(table, &key);
	if (slot < 0 && !pgpx_prepared_note_seen(table, &key))
		return false;
	if (slot < 0 || (tx != 'I' && !is_parsed_here(lease, slot)))
	{
		if (!begin_prepare(lease, cached, &key, len + 1, slot))
			return false;
		p->parse = true;
	}
	write_name(cached->name, "", &key);
	p->closes = cached->close_list;
	p->statement = statement;
	p->name = cached->name;
	p->portal = "";
	p->describe = true;
	if (!p->parse)
		lease->usage.cache_hits++;
	return true;
}

void
pgpx_statement_cache_settle(PgpxLease *lease)
{
	const PgpxWire *wire = &lease->sock->wire;
	LWLock	   *lock;
	PgpxPreparedTable *table;
	int			slot;

	if (!lease->preparing || (!wire->parsed && wire->phase != PGPX_WIRE_IDLE))
		return;
	lease->preparing = false;

	/* after an error the Close messages may not have been processed */
	if (!wire->parsed && lease->preparing_closes)
		return;
	table = lock_table(lease, &lock);
	if (table == NULL)
		return;
	table->state = PGPX_PREPARED_USABLE;
	if (wire->parsed)
	{
		slot = pgpx_prepared_add(table, &lease->preparing_key,
								 lease->preparing_bytes);
		if (slot < 0)
			table->state = PGPX_PREPARED_UNKNOWN;
		else
			set_parsed_here(lease, slot, true);
		lease->usage.prepared++;
	}
	LWLockRelease(lock);
}

bool
pgpx_statement_cache_refused(PgpxLease *lease, int sqlstate)
{
	if (sqlstate != ERRCODE_FEATURE_NOT_SUPPORTED &&
		sqlstate != ERRCODE_UNDEFINED_PSTATEMENT &&
		sqlstate != ERRCODE_DUPLICATE_PSTATEMENT)
		return false;
	set_state(lease, PGPX_PREPARED_UNKNOWN);
	return true;
}

const char *
pgpx_statement_cache_reset(PgpxLease *lease, bool full)
{
	const PgpxServerSpec *spec = lease->spec;
	LWLock	   *lock;
	PgpxPreparedTable *table;
	bool		keep;

	pgpx_statement_cache_settle(lease);
	table = lock_table(lease, &lock);
	if (table == NULL)
		return spec->reset_command;
	keep = !full && spec->statement_cache > 0 && table->n > 0 &&
		table->state != PGPX_PREPARED_UNKNOWN;
	if (keep)
		table->state = PGPX_PREPARED_USABLE;
	else
		pgpx_prepared_clear(table);
	LWLockRelease(lock);
	lease->preparing = false;
	return keep ? keeping_reset : spec->reset_command;
}

size_t
pgpx_statement_cache_reset_length(const PgpxLease *lease)
{
	return Max(strlen(lease->spec->reset_command), sizeof(keeping_reset));
}

bool
pgpx_statement_cache_must_drop(const PgpxLease *lease)
{
	const PgpxPreparedTable *table = table_of(lease);

	return (table->n > 0 || table->state != PGPX_PREPARED_USABLE) &&
		pgpx_conns[lease->conn].last_user != lease->user;
}
