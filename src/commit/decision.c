/*-------------------------------------------------------------------------
 *
 * decision.c
 *	  One commit on several servers: the origin, the id, and the row of a
 *	  decision.
 *
 * Rules:
 * - Nothing here depends on settings or privileges of the user, and no code of a
 *	 user runs: the row is inserted by heap and index.
 * - The xid alone does not identify a transaction.  After a crash the same xid is
 *	 assigned again, because its WAL may be lost while a part is already prepared.
 *	 So an id has random bits, and the decision is the row with exactly this id.
 *
 *-------------------------------------------------------------------------
 */
#include "commit/commit.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "shared/shmem.h"
#include "values/rows.h"

/* Return the OID of a table of the extension, or InvalidOid. */
static Oid
find_table(const char *name)
{
	return get_relname_relid(name, get_namespace_oid(PGPX_COMMIT_SCHEMA, true));
}

Relation
pgpx_commit_table(const char *name, int lockmode, bool missing_ok)
{
	Relation	table = try_table_open(find_table(name), lockmode);

	if (table != NULL && OidIsValid(get_extension_oid("pgpool_ext", true)))
		return table;
	if (!missing_ok)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" does not exist", PGPX_COMMIT_SCHEMA,
						name),
				 errhint("Create extension \"pgpool_ext\" in this database, or update it.")));
	if (table != NULL)
		table_close(table, lockmode);
	return NULL;
}

const char *
pgpx_commit_origin(void)
{
	const char *text =
		psprintf(UINT64_FORMAT "/%u/%u/%u/%s/%s", GetSystemIdentifier(),
				 GetWALInsertionTimeLine(), MyDatabaseId,
				 find_table(PGPX_DECISIONS), pgpx_shared->host, DataDir);
	uint64		digest = hash_bytes_extended((const unsigned char *) text,
											 strlen(text), 0);

	return psprintf("%08x%08x", (uint32) (digest >> 32), (uint32) digest);
}

PG_FUNCTION_INFO_V1(pgpx_commit_origin_text);
Datum
pgpx_commit_origin_text(PG_FUNCTION_ARGS)
{
	pgpx_shmem_require();
	PG_RETURN_TEXT_P(cstring_to_text(pgpx_commit_origin()));
}

void
pgpx_decision_insert(const int32 *participants, int n, char id[PGPX_ID_SIZE])
{
	Relation	decisions = pgpx_commit_table(PGPX_DECISIONS, RowExclusiveLock,
											  false);
	Datum	   *ids = palloc(sizeof(Datum) * n);
	Datum		values[2];		/* id, participants */
	bool		nulls[lengthof(values)] = {false};
	uint32		random[2];

	if (n > PGPX_PARTS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("cannot commit on more than %d servers at the same time",
						PGPX_PARTS_MAX)));
	if (!pg_strong_random(random, sizeof(random)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("pgpool_ext could not generate a random number")));
	snprintf(id, PGPX_ID_SIZE, "pgpx_%s_" UINT64_FORMAT "_%08x%08x",
			 pgpx_commit_origin(),
			 U64FromFullTransactionId(GetTopFullTransactionId()), random[0],
			 random[1]);
	for (int i = 0; i < n; i++)
		ids[i] = Int32GetDatum(participants[i]);
	values[0] = CStringGetTextDatum(id);
	values[1] = PointerGetDatum(construct_array(ids, n, INT4OID, sizeof(int32),
												true, TYPALIGN_INT));
	CatalogTupleInsert(decisions,
					   heap_form_tuple(RelationGetDescr(decisions), values,
									   nulls));
	table_close(decisions, NoLock);

	/* flushed, and on the synchronous standbys, before the remotes commit */
	ForceSyncCommit();
	if (synchronous_commit <= SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		pgpx_set_local("synchronous_commit", "on");
}
