/*-------------------------------------------------------------------------
 *
 * target.c
 *	  From a server's name to everything a checkout needs to know of it.
 *
 * Targets are cached in this session by name and current user.  Rules:
 *
 * - The invalidation callback comes at any time, also in the middle of a build
 *	 or in abort: it sets flags and does nothing else.
 * - A change that comes during a build marks the result as out of date: the
 *	 next caller builds again, and so does a checkout before it gives a pool
 *	 options which may be half old and half new.
 * - Secrets live in a target's own memory and are wiped with it.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "lib/ilist.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "target.h"
#include "target_read.h"
#include "target_source.h"

/* More entries than this, and a miss drops those that are out of date. */
#define MANY_TARGETS 64

/* A target is always one of these: the callback must reach every one. */
typedef struct LiveTarget
{
	PgpxTarget	target;
	dlist_node	node;
} LiveTarget;

typedef struct CacheKey
{
	NameData	name;			/* padded with zeros */
	Oid			user;
} CacheKey;

typedef struct CacheEntry
{
	CacheKey	key;
	PgpxTarget *target;
} CacheEntry;

static HTAB *cache = NULL;
static dlist_head live_targets = DLIST_STATIC_INIT(live_targets);
static uint64 invalidations = 0;

/* the one that was asked for last, and for whom */
static PgpxTarget *last_target = NULL;
static Oid	last_user = InvalidOid;

/* A catalog that targets are read from has changed. */
static void
invalidate_targets(Datum arg, int cacheid, uint32 hashvalue)
{
	dlist_iter	iter;

	invalidations++;
	dlist_foreach(iter, &live_targets)
		dlist_container(LiveTarget, node, iter.cur)->target.valid = false;
}

static void
init_cache(void)
{
	static bool registered = false;
	HASHCTL		ctl;

	if (!registered)
	{
		/* there is no way to take these back, so do not repeat them */
		registered = true;
		pgpx_source_on_change(invalidate_targets);
	}
	if (cache == NULL)
	{
		ctl.keysize = sizeof(CacheKey);
		ctl.entrysize = sizeof(CacheEntry);
		ctl.hcxt = CacheMemoryContext;
		cache = hash_create("pgpool_ext targets", 16, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
}

/* Wipe and free a target that nobody has. */
static void
free_target(PgpxTarget *target)
{
	for (int i = 0; i < target->nparams; i++)
		explicit_bzero(unconstify(char *, target->values[i]),
					   strlen(target->values[i]));
	explicit_bzero(unconstify(char *, target->start_commands),
				   strlen(target->start_commands));
	MemoryContextDelete(target->cxt);
}

/* Take an entry out of the cache and give up the cache's pin. */
static void
drop_entry(CacheEntry *entry)
{
	PgpxTarget *target = entry->target;

	if (last_target == target)
		last_target = NULL;
	(void) hash_search(cache, &entry->key, HASH_REMOVE, NULL);
	pgpx_target_unpin(target);
}

static void
drop_outdated(void)
{
	HASH_SEQ_STATUS seq;
	CacheEntry *entry;

	hash_seq_init(&seq, cache);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (!entry->target->valid)
			drop_entry(entry);
	}
}

/* A target with all to be filled in, in memory of its own. */
static LiveTarget *
new_target(void)
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "pgpool_ext target",
											  ALLOCSET_SMALL_SIZES);
	LiveTarget *live = MemoryContextAllocZero(cxt, sizeof(LiveTarget));

	live->target.cxt = cxt;
	live->target.start_commands = "";
	live->target.reset_command = "DISCARD ALL";
	live->target.pool = -1;
	live->target.partner = -1;
	return live;
}

/*
 * Build a target and put it into the cache, in the place of "old" (NULL: none),
 * which is gone afterwards, whatever happens.  What "old" knew of its pool goes
 * on to the new one if that is the same pool.
 */
static PgpxTarget *
replace_target(const char *name, const CacheKey *key, CacheEntry *old)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch;
	PgpxTarget	before = {0};
	LiveTarget *live;
	PgpxTarget *target;
	uint64		started = invalidations;

	if (old != NULL)
	{
		before = *old->target;
		drop_entry(old);
	}

	live = new_target();
	target = &live->target;
	scratch = AllocSetContextCreate(target->cxt, "pgpool_ext target read",
									ALLOCSET_SMALL_SIZES);
	PG_TRY();
	{
		CacheEntry *entry;

		MemoryContextSwitchTo(scratch);
		pgpx_target_read(target, name, key->user);
		MemoryContextSwitchTo(caller);
		entry = hash_search(cache, key, HASH_ENTER, NULL);
		entry->target = target;
	}
	PG_CATCH();
	{
		free_target(target);
		PG_RE_THROW();
	}
	PG_END_TRY();

	/* nothing below throws */
	MemoryContextDelete(scratch);
	MemoryContextSetParent(target->cxt, CacheMemoryContext);
	dlist_push_tail(&live_targets, &live->node);
	target->refcount = 1;
	target->valid = started == invalidations;
	if (memcmp(&before.key, &target->key, sizeof(PgpxPoolKey)) == 0)
	{
		target->pool = before.pool;
		target->pool_id = before.pool_id;
		target->partner = before.partner;
		target->partner_generation = before.partner_generation;
	}
	return target;
}

PgpxTarget *
pgpx_target_get(const char *name)
{
	Oid			user = GetUserId();
	CacheKey	key;
	CacheEntry *entry;
	PgpxTarget *target;

	AcceptInvalidationMessages();
	if (last_target != NULL && last_target->valid && last_user == user &&
		strcmp(NameStr(last_target->server_name), name) == 0)
	{
		pgpx_options_follow(&last_target->opts);
		return last_target;
	}

	init_cache();
	memset(&key, 0, sizeof(key));
	strlcpy(NameStr(key.name), name, NAMEDATALEN);
	key.user = user;

	/* a name that is too long is nobody's: that is for the build to say */
	entry = strlen(name) < NAMEDATALEN ?
		hash_search(cache, &key, HASH_FIND, NULL) : NULL;
	if (entry == NULL || !entry->target->valid)
	{
		if (hash_get_num_entries(cache) > MANY_TARGETS)
		{
			drop_outdated();
			entry = NULL;
		}
		target = replace_target(name, &key, entry);
	}
	else
	{
		target = entry->target;
		pgpx_options_follow(&target->opts);
	}

	last_target = target;
	last_user = user;
	return target;
}

void
pgpx_target_pin(PgpxTarget *target)
{
	target->refcount++;
}

void
pgpx_target_unpin(PgpxTarget *target)
{
	Assert(target->refcount > 0);
	if (--target->refcount > 0)
		return;
	dlist_delete(&((LiveTarget *) target)->node);
	free_target(target);
}
