/*-------------------------------------------------------------------------
 *
 * prepared.h
 *	  The statements that are prepared on each connection.
 *
 * Each connection has a table in shared memory, next to its PgpxConn.  So a
 * session that leases the connection knows without a round trip what is
 * prepared there.  session/statement_cache.h has the rules.
 *
 * The holder reads and writes the table; the pool lock orders its accesses with
 * those of the previous and of the next holder.  The worker clears the table
 * when it resets the connection, and when a new connection occupies the slot.
 * A holder whose lease was revoked may still write.  In the worst case the table
 * of the slot's next connection then lists a statement that does not exist
 * there, which statement_cache.c detects.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_PREPARED_H
#define PGPX_PREPARED_H

#include "base/compat.h"

#define PGPX_PREPARED_MAX 128	/* statements of a connection; the limit of
								 * option statement_cache */
#define PGPX_PREPARED_BYTES (512 * 1024)	/* of their texts */
#define PGPX_PREPARED_SEEN 32	/* texts that were executed once */

/* Identity of a statement: a hash that SQL cannot choose. */
typedef struct PgpxPreparedKey
{
	uint64		hash[2];
} PgpxPreparedKey;

typedef enum PgpxPreparedState
{
	PGPX_PREPARED_USABLE = 0,
	PGPX_PREPARED_PAUSED,		/* settings of the remote session may have
								 * changed: unused until the next reset */
	PGPX_PREPARED_UNKNOWN		/* the remote session may have other prepared
								 * statements than the table: only DISCARD ALL
								 * makes it usable */
} PgpxPreparedState;

typedef struct PgpxPrepared
{
	PgpxPreparedKey key;
	uint32		last_used;
	uint32		bytes;			/* of the text; 0: the slot is free */
} PgpxPrepared;

typedef struct PgpxPreparedTable
{
	int			state;			/* PgpxPreparedState */
	int			n;				/* statements */
	uint32		bytes;			/* of their texts */
	uint32		clock;			/* incremented with each use */
	uint32		next_seen;		/* index of the oldest entry of seen[] */
	uint64		seen[PGPX_PREPARED_SEEN];
	PgpxPrepared slots[PGPX_PREPARED_MAX];
} PgpxPreparedTable;

/* [max_connections]; NULL unless the library is preloaded */
extern PgpxPreparedTable *pgpx_prepared_tables;

#define PGPX_PREPARED_EVICT_MAX 8	/* statements that one other may replace */

/* How a statement is sent, and which statements are closed before it. */
typedef enum PgpxPreparedUse
{
	PGPX_PREPARED_NONE = 0,		/* unnamed */
	PGPX_PREPARED_EXECUTE,		/* it is prepared */
	PGPX_PREPARED_PARSE			/* it is to be prepared */
} PgpxPreparedUse;

typedef struct PgpxPreparedChoice
{
	PgpxPreparedUse use;
	PgpxPreparedKey key;
	uint32		bytes;			/* of the text; 0: it may not be prepared */
	uint32		commands;		/* of a pending statement: length of the
								 * messages that precede its Parse */
	int			ncloses;		/* PARSE: the first one is the key itself */
	PgpxPreparedKey closes[PGPX_PREPARED_EVICT_MAX];
} PgpxPreparedChoice;

/*
 * pgpx_prepared_choose
 *		Choose how a statement is sent, given its key and its size.
 *
 * max: limit on the number of statements.  again: parse it again if it is
 * prepared.  If it is to be parsed, the table is UNKNOWN afterwards, until
 * pgpx_prepared_add.  Its name is closed before, because a lease whose answers
 * were not all read may have left a statement that is not in the table.  The
 * caller must hold the pool lock.
 */
extern void pgpx_prepared_choose(PgpxPreparedTable *table, int max, bool again,
								 PgpxPreparedChoice *choice);

/*
 * pgpx_prepared_clear
 *		Empty a table.
 *
 * To be called when a connection is made, and before a DISCARD ALL is sent.
 */
extern void pgpx_prepared_clear(PgpxPreparedTable *table);

/*
 * pgpx_prepared_reset
 *		Prepare a table for a reset that is about to be sent.
 *
 * max: limit on the number of statements; 0: the cache is off.  Returns whether
 * the reset may keep the statements; otherwise it must be a DISCARD ALL, and the
 * table is emptied.  The caller must hold the pool lock.
 */
extern bool pgpx_prepared_reset(PgpxPreparedTable *table, int max);

/* Returns the slot of a statement, and marks it as used; -1: not prepared. */
extern int	pgpx_prepared_find(PgpxPreparedTable *table,
							   const PgpxPreparedKey *key);

/*
 * pgpx_prepared_note_seen
 *		Record an execution of a text that is not prepared.
 *
 * Returns true if it is one of the last PGPX_PREPARED_SEEN such texts, so that
 * it is worth preparing.
 */
extern bool pgpx_prepared_note_seen(PgpxPreparedTable *table,
									const PgpxPreparedKey *key);

/*
 * pgpx_prepared_evict
 *		Remove the least recently used statement if another one with a text of
 *		"bytes" bytes would exceed a limit.
 *
 * max: limit on the number of statements.  Returns the slot that was freed, with
 * its key in *evicted; -1 if there is room.
 */
extern int	pgpx_prepared_evict(PgpxPreparedTable *table, int max, uint32 bytes,
								PgpxPreparedKey *evicted);

/*
 * pgpx_prepared_refuse
 *		Removes a statement that the remote could not execute any more, and
 *		records its text as executed, so that it is prepared again.
 */
extern void pgpx_prepared_refuse(PgpxPreparedTable *table,
								 const PgpxPreparedKey *key);

/* Removes a statement. */
extern void pgpx_prepared_remove(PgpxPreparedTable *table, int slot);

/* Adds a statement, and returns its slot; -1: there is no free slot. */
extern int	pgpx_prepared_add(PgpxPreparedTable *table,
							  const PgpxPreparedKey *key, uint32 bytes);

#endif							/* PGPX_PREPARED_H */
