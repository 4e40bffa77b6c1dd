/*-------------------------------------------------------------------------
 *
 * import_statistics.c
 *	  ANALYZE of a foreign table with the statistics of the remote table.
 *
 * With option import_stats, ANALYZE reads pg_class and pg_stats of the remote
 * server, and no rows of the table.  It takes a sample instead if the remote
 * table has no statistics, or older ones than the option permits.
 *
 * - All columns are read and checked before the first one is written.
 * - What the remote server sends is not trusted.  The size of the texts and the
 *	 number of rows and array elements are limited.  Each value must be valid for
 *	 the local type.  Numbers must be in the range that ANALYZE computes, and
 *	 arrays must have the form that the planner relies on: for example, it raises
 *	 an error for an empty range in a histogram of ranges.
 * - A histogram must be sorted.  It is not if the remote server sorts by another
 *	 collation, or if its column has another type.
 * - The functions of the server write the statistics, with the rights of the
 *	 table's owner.
 * - Statistics objects (CREATE STATISTICS) are computed from rows, so a table
 *	 that has one is sampled.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/utility.h"

#ifdef PGPX_HAS_RESTORE_STATS

#include <float.h>
#include <math.h>

#include "access/htup_details.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "executor/spi.h"
#include "nodes/miscnodes.h"
#include "pgstat.h"
#include "utils/array.h"
#include "utils/attoptcache.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rangetypes.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "config/options.h"
#include "fdw/handler.h"
#include "fdw/remote_sql.h"

/* limit for the texts of all statistics of a table, in bytes */
#define MAX_BYTES (64 * 1024 * 1024)

/* ANALYZE stores up to ten times as many elements of arrays as values. */
#define MAX_ELEMENTS (10 * MAX_STATISTICS_TARGET)

/* What an array contains. */
typedef enum ArrayKind
{
	NO_ARRAY,
	OF_NUMBERS,
	OF_VALUES,					/* of the column */
	OF_ELEMENTS,				/* of the column's arrays */
	OF_RANGES,					/* of the column; they have text form */
	OF_LENGTHS,					/* of ranges */
} ArrayKind;

enum
{
	NULL_FRAC,
	AVG_WIDTH,
	N_DISTINCT,
	MCV,
	MCV_FREQS,
	HISTOGRAM,
	CORRELATION,
	MCELEM,
	MCELEM_FREQS,
	ELEM_COUNTS,
	RANGE_LENGTHS,
	RANGE_EMPTY_FRAC,
	RANGE_BOUNDS,
	NSTATS,
};

/* The columns of pg_stats that are read.  Those from RANGE_LENGTHS on exist from 17 on. */
static const struct Stat
{
	const char *name;			/* of the column of pg_stats, and of the
								 * argument of pg_restore_attribute_stats */
	Oid			type;			/* of that argument */
	ArrayKind	array;
	double		min;			/* of each number */
	double		max;
	int			min_count;		/* of an array's elements */
	int			max_count;
}			stats[NSTATS] = {
	[NULL_FRAC] = {"null_frac", FLOAT4OID, NO_ARRAY, 0, 1},
	[AVG_WIDTH] = {"avg_width", INT4OID, NO_ARRAY, 0, MaxAllocSize},
	[N_DISTINCT] = {"n_distinct", FLOAT4OID, NO_ARRAY, -1, FLT_MAX},
	[MCV] = {"most_common_vals", TEXTOID, OF_VALUES,
			 .min_count = 1, .max_count = MAX_STATISTICS_TARGET},
	[MCV_FREQS] = {"most_common_freqs", FLOAT4ARRAYOID, OF_NUMBERS, 0, 1,
				   1, MAX_STATISTICS_TARGET},
	[HISTOGRAM] = {"histogram_bounds", TEXTOID, OF_VALUES,
				   .min_count = 2, .max_count = MAX_STATISTICS_TARGET + 1},
	[CORRELATION] = {"correlation", FLOAT4OID, NO_ARRAY, -1, 1},
	[MCELEM] = {"most_common_elems", TEXTOID, OF_ELEMENTS,
				.min_count = 1, .max_count = MAX_ELEMENTS},
	[MCELEM_FREQS] = {"most_common_elem_freqs", FLOAT4ARRAYOID, OF_NUMBERS, 0, 1,
					  3, MAX_ELEMENTS + 3},
	[ELEM_COUNTS] = {"elem_count_histogram", FLOAT4ARRAYOID, OF_NUMBERS,
					 0, MaxAllocSize, 3, MAX_STATISTICS_TARGET + 2},
	[RANGE_LENGTHS] = {"range_length_histogram", TEXTOID, OF_LENGTHS,
					   .min_count = 2, .max_count = MAX_STATISTICS_TARGET + 1},
	[RANGE_EMPTY_FRAC] = {"range_empty_frac", FLOAT4OID, NO_ARRAY, 0, 1},
	[RANGE_BOUNDS] = {"range_bounds_histogram", TEXTOID, OF_RANGES,
					  .min_count = 2, .max_count = MAX_STATISTICS_TARGET + 1},
};

/* The statistics of a column, as arguments of pg_restore_attribute_stats. */
typedef struct ColumnStats
{
	bool		is_found;
	Datum		values[NSTATS];
	bool		nulls[NSTATS];
	int			counts[NSTATS]; /* of the elements of arrays */
} ColumnStats;

/* The remote table. */
typedef struct RemoteTable
{
	const char *schema;
	const char *name;
	bool		is_partitioned;
	bool		has_ranges;		/* pg_stats has the columns for ranges */
	BlockNumber pages;
	double		tuples;
} RemoteTable;

/* ------------------------------------------------------------------------
 * Checks
 *
 * They return false for a text that is no valid statistic.
 * ------------------------------------------------------------------------
 */

/* Convert a text by a function, with a soft error. */
static bool
convert(Oid function, char *text, Oid ioparam, int32 typmod, Datum *value)
{
	ErrorSaveContext escontext = {T_ErrorSaveContext};
	FmgrInfo	finfo;

	fmgr_info(function, &finfo);
	return InputFunctionCallSafe(&finfo, text, ioparam, typmod,
								 (Node *) &escontext, value);
}

static bool
is_in_range(const struct Stat *stat, double number)
{
	/* false for NaN */
	return number >= stat->min && number <= stat->max;
}

static bool
is_sorted(ArrayType *array, TypeCacheEntry *type, Oid collation)
{
	Datum	   *values;
	int			n;

	if (!OidIsValid(type->cmp_proc_finfo.fn_oid))
		return false;
	deconstruct_array(array, type->type_id, type->typlen, type->typbyval,
					  type->typalign, &values, NULL, &n);
	for (int i = 1; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (DatumGetInt32(FunctionCall2Coll(&type->cmp_proc_finfo, collation,
											values[i - 1], values[i])) > 0)
			return false;
	}
	return true;
}

static bool
has_empty_range(ArrayType *array, TypeCacheEntry *type)
{
	Datum	   *values;
	int			n;

	deconstruct_array(array, type->type_id, type->typlen, type->typbyval,
					  type->typalign, &values, NULL, &n);
	for (int i = 0; i < n; i++)
		if (range_get_flags(DatumGetRangeTypeP(values[i])) & RANGE_EMPTY)
			return true;
	return false;
}

/*
 * Return the type of an array's elements, InvalidOid if a column of this type
 * has no such statistics.
 */
static Oid
element_type(ArrayKind array, Oid column_type)
{
	Oid			base = getBaseType(column_type);

	switch (array)
	{
		case OF_NUMBERS:
			return FLOAT4OID;
		case OF_VALUES:
			return column_type;
		case OF_ELEMENTS:
			return base == TSVECTOROID ? TEXTOID : get_base_element_type(base);
		case OF_LENGTHS:
			return FLOAT8OID;
		case OF_RANGES:
			if (type_is_multirange(base))
				return get_multirange_range(base);
			return type_is_range(base) ? base : InvalidOid;
		case NO_ARRAY:
			break;
	}
	return InvalidOid;
}

static bool
read_array(const struct Stat *stat, Form_pg_attribute attr, char *text,
		   Datum *value, int *count)
{
	Oid			element = element_type(stat->array, attr->atttypid);
	int32		typmod = stat->array == OF_NUMBERS ||
		stat->array == OF_LENGTHS ? -1 : attr->atttypmod;
	TypeCacheEntry *type;
	ArrayType  *array;
	char	   *data;
	bool		is_valid = true;

	if (!OidIsValid(element) ||
		!convert(F_ARRAY_IN, text, element, typmod, value))
		return false;
	array = DatumGetArrayTypeP(*value);
	if (ARR_NDIM(array) != 1 || array_contains_nulls(array))
		return false;
	*count = ARR_DIMS(array)[0];
	if (*count < stat->min_count || *count > stat->max_count)
		return false;

	data = ARR_DATA_PTR(array);
	type = lookup_type_cache(element,
							 TYPECACHE_EQ_OPR | TYPECACHE_CMP_PROC_FINFO);
	switch (stat->array)
	{
		case OF_NUMBERS:
			for (int i = 0; is_valid && i < *count; i++)
				is_valid = is_in_range(stat, ((float4 *) data)[i]);
			break;
		case OF_VALUES:
			is_valid = stat == &stats[HISTOGRAM] ?
				is_sorted(array, type, attr->attcollation) :
				OidIsValid(type->eq_opr);
			break;
		case OF_ELEMENTS:
			is_valid = OidIsValid(type->eq_opr);
			break;
		case OF_LENGTHS:
			is_valid = is_sorted(array, type, InvalidOid) &&
				((float8 *) data)[0] >= 0 &&
				!isnan(((float8 *) data)[*count - 1]);
			break;
		case OF_RANGES:
			is_valid = !has_empty_range(array, type);
			break;
		case NO_ARRAY:
			break;
	}

	/* the function of the server converts other arrays than those of numbers */
	if (stat->type == TEXTOID)
		*value = CStringGetTextDatum(text);
	return is_valid;
}

static bool
read_number(const struct Stat *stat, char *text, Datum *value)
{
	Oid			function;
	Oid			ioparam;

	getTypeInputInfo(stat->type, &function, &ioparam);
	return convert(function, text, ioparam, -1, value) &&
		is_in_range(stat, stat->type == INT4OID ? DatumGetInt32(*value) :
					DatumGetFloat4(*value));
}

/*
 * Read the row of a column in pg_stats.  Return the name of a statistic that is
 * invalid, or NULL.
 */
static const char *
read_stats(Form_pg_attribute attr, const PgpxRowValues *row,
		   ColumnStats *column)
{
	AttributeOpts *options = get_attribute_options(attr->attrelid,
												   attr->attnum);
	Oid			lt_opr = lookup_type_cache(attr->atttypid,
										   TYPECACHE_LT_OPR)
					 ->lt_opr;

	for (int i = 0; i < NSTATS; i++)
	{
		const struct Stat *stat = &stats[i];
		char	   *string;

		column->nulls[i] = row->nulls[i + 1];
		column->counts[i] = 0;
		if (column->nulls[i])
			continue;
		string = TextDatumGetCString(row->values[i + 1]);
		if (stat->array == NO_ARRAY ?
			!read_number(stat, string, &column->values[i]) :
			!read_array(stat, attr, string, &column->values[i],
						&column->counts[i]))
			return stat->name;
	}

	for (int i = NULL_FRAC; i <= N_DISTINCT; i++)
		if (column->nulls[i])
			return stats[i].name;
	if (column->counts[MCV] != column->counts[MCV_FREQS])
		return stats[MCV_FREQS].name;
	if (!column->nulls[CORRELATION] && !OidIsValid(lt_opr))
		return stats[CORRELATION].name;

	/* the minimum, the maximum and, for arrays, the frequency of nulls follow */
	if (column->nulls[MCELEM] != column->nulls[MCELEM_FREQS] ||
		(!column->nulls[MCELEM] &&
		 column->counts[MCELEM_FREQS] != column->counts[MCELEM] + 2 &&
		 column->counts[MCELEM_FREQS] != column->counts[MCELEM] + 3))
		return stats[MCELEM_FREQS].name;
	if (!column->nulls[ELEM_COUNTS] &&
		!OidIsValid(element_type(OF_ELEMENTS, attr->atttypid)))
		return stats[ELEM_COUNTS].name;
	if (column->nulls[RANGE_LENGTHS] != column->nulls[RANGE_EMPTY_FRAC] ||
		(!column->nulls[RANGE_LENGTHS] &&
		 !OidIsValid(element_type(OF_RANGES, attr->atttypid))))
		return stats[RANGE_LENGTHS].name;

	/* as in ANALYZE, the column's option overrides the statistic */
	if (options != NULL && options->n_distinct != 0)
		column->values[N_DISTINCT] =
			Float4GetDatum((float4) options->n_distinct);
	return NULL;
}

/* ------------------------------------------------------------------------
 * The remote catalogs
 *
 * The functions return false and set *reason if a sample must be taken.
 * ------------------------------------------------------------------------
 */

/*
 * Read the remote table.  max_age: of its statistics, in milliseconds.  Set
 * *is_old instead of *reason if they are older.
 */
static bool
read_table(Relation rel, PgpxRemoteUse *use, int64 max_age, RemoteTable *table,
		   const char **reason, bool *is_old)
{
	enum
	{
		SCHEMA,
		NAME,
		KIND,
		HAS_CHILDREN,
		TUPLES,
		REQUIRED,				/* columns that are not NULL */
		PAGES = REQUIRED,
		AGE,
		HAS_RANGES,
		COUNT,
	};
	StringInfoData sql;
	List	   *rows;
	char	  **texts;

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT n.nspname, c.relname, c.relkind, c.relhassubclass,"
					 " c.reltuples, pg_catalog.pg_relation_size(c.oid) / %d,"
					 " 1000 * pg_catalog.date_part('epoch',"
					 " pg_catalog.clock_timestamp() -"
					 " GREATEST(pg_catalog.pg_stat_get_last_analyze_time(c.oid),"
					 " pg_catalog.pg_stat_get_last_autoanalyze_time(c.oid))),"
					 " (SELECT 1 FROM pg_catalog.pg_attribute"
					 " WHERE attrelid = 'pg_catalog.pg_stats'::pg_catalog.regclass"
					 " AND attname = '%s')"
					 " FROM pg_catalog.pg_class c"
					 " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
					 " WHERE c.oid = ",
					 BLCKSZ, stats[RANGE_LENGTHS].name);
	pgpx_append_regclass(&sql, rel);
	rows = pgpx_text_query(use, sql.data, COUNT, REQUIRED);

	*reason = "The remote relation is no table that has statistics.";
	if (rows == NIL)
		return false;
	texts = linitial(rows);
	if (strchr("rmpf", texts[KIND][0]) == NULL)
		return false;
	table->schema = texts[SCHEMA];
	table->name = texts[NAME];
	table->is_partitioned = texts[KIND][0] == RELKIND_PARTITIONED_TABLE;
	table->has_ranges = texts[HAS_RANGES] != NULL;
	table->tuples = strtod(texts[TUPLES], NULL);
	table->pages = texts[PAGES] == NULL ? 0 :
		Min(strtoul(texts[PAGES], NULL, 10), PG_INT32_MAX);
	if (!table->is_partitioned && texts[HAS_CHILDREN][0] == 't')
	{
		/* reltuples is without the rows of the children */
		*reason = "The remote table has or had child tables.";
		return false;
	}
	*reason = "The remote table has no statistics.";
	if (!(table->tuples > 0 && table->tuples <= FLT_MAX))
		return false;
	*is_old = max_age < PG_INT64_MAX &&
		(texts[AGE] == NULL || !(strtod(texts[AGE], NULL) <= max_age));
	return !*is_old;
}

static Form_pg_attribute
column_of(Relation rel, AttrNumber attnum)
{
	return TupleDescAttr(RelationGetDescr(rel), attnum - 1);
}

/* Return whether ANALYZE computes statistics of a column (examine_attribute). */
static bool
is_analyzed(Form_pg_attribute attr)
{
	HeapTuple	tuple;
	Datum		target;
	bool		is_default;

	if (attr->attisdropped || attr->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL)
		return false;
	tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(attr->attrelid),
							Int16GetDatum(attr->attnum));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for attribute %d of relation %u",
			 attr->attnum, attr->attrelid);
	target = SysCacheGetAttr(ATTNUM, tuple, Anum_pg_attribute_attstattarget,
							 &is_default);
	ReleaseSysCache(tuple);
	return is_default || DatumGetInt16(target) != 0;
}

/*
 * Return the numbers of the columns in a list of names; of all columns, if it is
 * NIL.  Return NIL for a list in which ANALYZE finds an error.
 */
static List *
analyzed_columns(Relation rel, List *names)
{
	List	   *attnums = NIL;
	List	   *analyzed = NIL;
	ListCell   *lc;

	foreach(lc, names)
	{
		AttrNumber	attnum = get_attnum(RelationGetRelid(rel),
										strVal(lfirst(lc)));

		if (attnum <= 0 || list_member_int(attnums, attnum))
			return NIL;
		attnums = lappend_int(attnums, attnum);
	}
	if (names == NIL)
		attnums = pgpx_table_columns(rel);
	foreach(lc, attnums)
		if (is_analyzed(column_of(rel, lfirst_int(lc))))
			analyzed = lappend_int(analyzed, lfirst_int(lc));
	return analyzed;
}

/*
 * Read the statistics of these columns into an array that is indexed by their
 * numbers.
 */
static bool
read_columns(Relation rel, PgpxRemoteUse *use, const RemoteTable *table,
			 List *attnums, ColumnStats *columns, const char **reason)
{
	StringInfoData sql;
	PgpxRemoteScan *scan;
	PgpxRowValues row;
	size_t		nbytes = 0;
	int			nrows = 0;
	ListCell   *lc;

	*reason = NULL;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT attname");
	for (int i = 0; i < NSTATS; i++)
		appendStringInfo(&sql, ", %s",
						 i < RANGE_LENGTHS || table->has_ranges ?
						 stats[i].name : "NULL");
	appendStringInfo(&sql,
					 " FROM pg_catalog.pg_stats WHERE schemaname = %s"
					 " AND tablename = %s AND inherited = %s",
					 quote_literal_cstr(table->schema),
					 quote_literal_cstr(table->name),
					 table->is_partitioned ? "true" : "false");
	scan = pgpx_open_text_scan(use, sql.data, NSTATS + 1);
	while (*reason == NULL &&
		   pgpx_remote_scan_next(scan, &row) == PGPX_RUN_STOPPED)
	{
		char	   *name = row.nulls[0] ? NULL :
			TextDatumGetCString(row.values[0]);

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i <= NSTATS; i++)
			if (!row.nulls[i])
				nbytes += VARSIZE_ANY(DatumGetPointer(row.values[i]));
		if (++nrows > MaxHeapAttributeNumber || nbytes > MAX_BYTES)
			*reason = "The statistics of the remote table are too large.";
		foreach(lc, attnums)
		{
			Form_pg_attribute attr = column_of(rel, lfirst_int(lc));
			const char *invalid;

			if (*reason != NULL || name == NULL ||
				strcmp(name, pgpx_remote_column_name(attr)) != 0)
				continue;
			invalid = read_stats(attr, &row, &columns[attr->attnum]);
			columns[attr->attnum].is_found = true;
			if (invalid != NULL)
				*reason = psprintf("The remote statistic \"%s\" of column \"%s\" is not valid here.",
								   invalid, NameStr(attr->attname));
		}
	}
	pgpx_remote_scan_end(scan);
	foreach(lc, attnums)
	{
		const char *name = NameStr(column_of(rel, lfirst_int(lc))->attname);

		if (*reason == NULL && !columns[lfirst_int(lc)].is_found)
			*reason = psprintf("The remote table has no statistics of column \"%s\".",
							   name);
	}
	return *reason == NULL;
}

/* ------------------------------------------------------------------------
 * The local catalogs
 * ------------------------------------------------------------------------
 */

/* Execute a function of the server by SPI.  Return false if it returned false. */
static bool
execute(const char *sql, int nargs, Oid *types, Datum *values,
		const char *nulls)
{
	bool		isnull;
	Datum		result;

	if (SPI_execute_with_args(sql, nargs, types, values, nulls, false, 0) !=
			SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "could not execute \"%s\"", sql);
	result = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1,
						   &isnull);
	return isnull || DatumGetBool(result);
}

/* Set the first two arguments of each function: the schema and the table. */
static void
name_table(Relation rel, Datum *values)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));

	values[0] = CStringGetTextDatum(schema);
	values[1] = CStringGetTextDatum(RelationGetRelationName(rel));
}

/*
 * Replace the statistics of a column.  The function that restores leaves
 * statistics unchanged whose arguments are NULL, so the old ones are removed
 * first.
 */
static bool
write_column(Relation rel, Form_pg_attribute attr, const ColumnStats *column)
{
	Oid			types[3 + NSTATS] = {TEXTOID, TEXTOID, TEXTOID};
	Datum		values[3 + NSTATS];
	char		nulls[3 + NSTATS];
	StringInfoData sql;

	name_table(rel, values);
	values[2] = CStringGetTextDatum(NameStr(attr->attname));
	memset(nulls, ' ', sizeof(nulls));
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT pg_catalog.pg_restore_attribute_stats("
								 "'schemaname', $1, 'relname', $2, 'attname', $3,"
								 " 'inherited', false");
	for (int i = 0; i < NSTATS; i++)
	{
		appendStringInfo(&sql, ", '%s', $%d", stats[i].name, i + 4);
		types[i + 3] = stats[i].type;
		values[i + 3] = column->values[i];
		if (column->nulls[i])
			nulls[i + 3] = 'n';
	}
	appendStringInfoChar(&sql, ')');
	(void) execute("SELECT pg_catalog.pg_clear_attribute_stats($1, $2, $3, false)",
				   3, types, values, nulls);
	return execute(sql.data, lengthof(types), types, values, nulls);
}

#ifdef PGPX_HAS_IMPORT_CALLBACK
static void
write_table(Relation rel, BlockNumber pages, double tuples)
{
	Oid			types[] = {TEXTOID, TEXTOID, INT4OID, FLOAT4OID};
	Datum		values[lengthof(types)];

	name_table(rel, values);
	values[2] = Int32GetDatum((int32) pages);
	values[3] = Float4GetDatum((float4) tuples);
	SPI_connect();
	(void) execute("SELECT pg_catalog.pg_restore_relation_stats('schemaname', $1,"
				   " 'relname', $2, 'relpages', $3, 'reltuples', $4)",
				   lengthof(types), types, values, NULL);
	SPI_finish();
}
#endif

/* Write the statistics of these columns. */
static bool
write_columns(Relation rel, List *attnums, const ColumnStats *columns,
			  const char **reason)
{
	bool		success = true;
	ListCell   *lc;

	*reason = "A function of the server has rejected the statistics.";
	SPI_connect();
	foreach(lc, attnums)
		success = success &&
			write_column(rel, column_of(rel, lfirst_int(lc)),
						 &columns[lfirst_int(lc)]);
	SPI_finish();
	return success;
}

/* ------------------------------------------------------------------------
 * ANALYZE
 * ------------------------------------------------------------------------
 */

/* The parameters are those of import and read_table. */
static bool
import_columns(Relation rel, List *names, int64 max_age, RemoteTable *table,
			   const char **reason, bool *is_old)
{
	PgpxRemoteUse use = pgpx_table_use(rel);
	List	   *attnums = analyzed_columns(rel, names);
	ColumnStats *columns = palloc0((RelationGetNumberOfAttributes(rel) + 1) *
								   sizeof(ColumnStats));

	*reason = "The foreign table has statistics objects.";
	if (RelationGetStatExtList(rel) != NIL)
		return false;
	*reason = "The owner of the foreign table has no privilege MAINTAIN on it.";
	if (pg_class_aclcheck(RelationGetRelid(rel), GetUserId(), ACL_MAINTAIN) !=
		ACLCHECK_OK)
		return false;
	*reason = "No column is to be analyzed.";
	if (attnums == NIL)
		return false;
	return read_table(rel, &use, max_age, table, reason, is_old) &&
		read_columns(rel, &use, table, attnums, columns, reason) &&
		write_columns(rel, attnums, columns, reason);
}

/*
 * Replace the statistics of a foreign table's columns by those of the remote
 * table, as the table's owner.
 *
 * names: of the columns; NIL for all.  elevel: the level of messages that are no
 * warnings.  Return true and set *pages and *tuples to the size of the remote
 * table.  Return false if a sample must be taken.  The sample replaces any
 * statistics that were written.
 */
static bool
import(Relation rel, List *names, int elevel, BlockNumber *pages,
	   double *tuples)
{
	const char *name = RelationGetRelationName(rel);
	const char *option = pgpx_table_option(RelationGetRelid(rel), "import_stats",
										   "false");
	int64		max_age = pgpx_option_parse("import_stats", option);
	const char *reason;
	bool		is_old = false;
	RemoteTable table;
	MemoryContext context;
	MemoryContext caller;
	bool		success;

	if (max_age == 0)
		return false;
	context = AllocSetContextCreate(CurrentMemoryContext,
									"pgpool_ext statistics",
									ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(context);
	success = import_columns(rel, names, max_age, &table, &reason, &is_old);
	if (success)
	{
		*pages = table.pages;
		*tuples = table.tuples;
		elog(elevel, "\"%s\": statistics of the remote table were imported, which has %.0f rows",
			 name, table.tuples);
	}
	else if (is_old)
		elog(elevel, "\"%s\": statistics of the remote table are older than option \"import_stats\" permits",
			 name);
	else
		ereport(WARNING,
				(errcode(ERRCODE_FDW_ERROR),
				 errmsg("could not import the statistics of foreign table \"%s\"",
						name),
				 errdetail_internal("%s", reason),
				 errhint("ANALYZE takes a sample instead.")));
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return success;
}

#ifdef PGPX_HAS_IMPORT_CALLBACK

/*
 * ImportForeignStatistics: ANALYZE calls it first, and takes a sample if it
 * returns false.  It reports the end of ANALYZE, as do_analyze_rel does.
 */
bool
pgpx_utility_import_statistics(Relation rel, List *names, int elevel)
{
	TimestampTz start = GetCurrentTimestamp();
	BlockNumber pages;
	double		tuples;
	Oid			user;
	int			security;
	int			level;
	bool		success;

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   security | SECURITY_RESTRICTED_OPERATION);
	level = NewGUCNestLevel();
	RestrictSearchPath();
	success = import(rel, names, elevel, &pages, &tuples);
	if (success)
	{
		write_table(rel, pages, tuples);
		pgstat_report_analyze(rel, tuples, 0, names == NIL, start);
	}
	AtEOXact_GUC(false, level);
	SetUserIdAndSecContext(user, security);
	return success;
}

#else

/*
 * Return whether ANALYZE takes a sample of this table alone.  It may also take
 * one of the table as a child of another table.  Without track_activities it
 * does not report what it does.
 */
static bool
is_sampled_alone(Relation rel)
{
	const PgBackendStatus *status = MyBEEntry;

	return pgstat_track_activities && status != NULL &&
		status->st_progress_command == PROGRESS_COMMAND_ANALYZE &&
		status->st_progress_command_target == RelationGetRelid(rel) &&
		status->st_progress_param[PROGRESS_ANALYZE_PHASE] ==
		PROGRESS_ANALYZE_PHASE_ACQUIRE_SAMPLE_ROWS;
}

/*
 * 18 has no callback.  ANALYZE leaves the columns' statistics unchanged if its
 * sample is empty.  It writes *tuples as the number of rows, and the size that
 * AnalyzeForeignTable has returned.  The function does not know which columns are
 * analyzed.
 */
bool
pgpx_utility_import_in_sample(Relation rel, int elevel, double *tuples)
{
	BlockNumber pages;

	return is_sampled_alone(rel) && import(rel, NIL, elevel, &pages, tuples);
}

#endif							/* PGPX_HAS_IMPORT_CALLBACK */

#endif							/* PGPX_HAS_RESTORE_STATS */
