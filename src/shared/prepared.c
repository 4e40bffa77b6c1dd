/*-------------------------------------------------------------------------
 *
 * prepared.c
 *	  The statements that are prepared on each connection.
 *
 * Each lookup is a scan of the table, because a table is small.  The functions
 * rely on no field of the table for memory safety, since two processes may
 * write to it (see prepared.h).
 *
 *-------------------------------------------------------------------------
 */
#include "shared/prepared.h"

PgpxPreparedTable *pgpx_prepared_tables = NULL;

static inline bool
same_key(const PgpxPreparedKey *a, const PgpxPreparedKey *b)
{
	return a->hash[0] == b->hash[0] && a->hash[1] == b->hash[1];
}

void
pgpx_prepared_clear(PgpxPreparedTable *table)
{
	table->state = PGPX_PREPARED_USABLE;
	for (int i = 0; i < PGPX_PREPARED_MAX; i++)
		table->slots[i].bytes = 0;
	table->n = 0;
	table->bytes = 0;
	table->clock = 0;
}

bool
pgpx_prepared_reset(PgpxPreparedTable *table, int max)
{
	if (max == 0 || table->n == 0 || table->state == PGPX_PREPARED_UNKNOWN)
	{
		pgpx_prepared_clear(table);
		return false;
	}
	table->state = PGPX_PREPARED_USABLE;
	return true;
}

int
pgpx_prepared_find(PgpxPreparedTable *table, const PgpxPreparedKey *key)
{
	if (table->n == 0)
		return -1;
	for (int i = 0; i < PGPX_PREPARED_MAX; i++)
	{
		PgpxPrepared *slot = &table->slots[i];

		if (slot->bytes > 0 && same_key(&slot->key, key))
		{
			slot->last_used = ++table->clock;
			return i;
		}
	}
	return -1;
}

bool
pgpx_prepared_note_seen(PgpxPreparedTable *table, const PgpxPreparedKey *key)
{
	for (int i = 0; i < PGPX_PREPARED_SEEN; i++)
		if (table->seen[i] == key->hash[0])
			return true;
	table->seen[table->next_seen++ % PGPX_PREPARED_SEEN] = key->hash[0];
	return false;
}

int
pgpx_prepared_evict(PgpxPreparedTable *table, int max, uint32 bytes,
					PgpxPreparedKey *evicted)
{
	int			oldest = -1;
	uint32		oldest_age = 0;

	if (table->n < Min(max, PGPX_PREPARED_MAX) &&
		table->bytes + bytes <= PGPX_PREPARED_BYTES)
		return -1;
	for (int i = 0; i < PGPX_PREPARED_MAX; i++)
	{
		uint32		age = table->clock - table->slots[i].last_used;

		if (table->slots[i].bytes > 0 && (oldest < 0 || age > oldest_age))
		{
			oldest = i;
			oldest_age = age;
		}
	}
	if (oldest < 0)
		return -1;
	*evicted = table->slots[oldest].key;
	pgpx_prepared_remove(table, oldest);
	return oldest;
}

void
pgpx_prepared_choose(PgpxPreparedTable *table, int max, bool again,
					 PgpxPreparedChoice *choice)
{
	int			slot;

	choice->use = PGPX_PREPARED_NONE;
	choice->ncloses = 0;
	if (choice->bytes == 0 || max == 0 ||
		table->state != PGPX_PREPARED_USABLE)
		return;
	slot = pgpx_prepared_find(table, &choice->key);
	if (slot >= 0 && !again)
	{
		choice->use = PGPX_PREPARED_EXECUTE;
		return;
	}
	if (slot < 0 && !pgpx_prepared_note_seen(table, &choice->key))
		return;
	if (slot >= 0)
		pgpx_prepared_remove(table, slot);
	choice->closes[choice->ncloses++] = choice->key;
	while (choice->ncloses < PGPX_PREPARED_EVICT_MAX &&
		   pgpx_prepared_evict(table, max, choice->bytes,
							   &choice->closes[choice->ncloses]) >= 0)
		choice->ncloses++;
	table->state = PGPX_PREPARED_UNKNOWN;
	choice->use = PGPX_PREPARED_PARSE;
}

void
pgpx_prepared_refuse(PgpxPreparedTable *table, const PgpxPreparedKey *key)
{
	int			slot = pgpx_prepared_find(table, key);

	if (slot >= 0)
		pgpx_prepared_remove(table, slot);
	(void) pgpx_prepared_note_seen(table, key);
}

void
pgpx_prepared_remove(PgpxPreparedTable *table, int slot)
{
	table->n--;
	table->bytes -= table->slots[slot].bytes;
	table->slots[slot].bytes = 0;
}

int
pgpx_prepared_add(PgpxPreparedTable *table, const PgpxPreparedKey *key,
				  uint32 bytes)
{
	for (int i = 0; i < PGPX_PREPARED_MAX; i++)
	{
		PgpxPrepared *slot = &table->slots[i];

		if (slot->bytes > 0)
			continue;
		slot->key = *key;
		slot->bytes = bytes;
		slot->last_used = ++table->clock;
		table->n++;
		table->bytes += bytes;
		return i;
	}
	return -1;
}
