/*-------------------------------------------------------------------------
 *
 * analyze.c
 *	  ANALYZE of foreign tables: the callback.
 *
 * The rows are read as the table's owner.  With option analyze_sampling
 * the remote server returns a sample; without it, all rows are read.  In
 * both cases acquire_rows selects the requested number of rows at random from
 * the rows that it reads.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/analyze.h"

#include "catalog/pg_class.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/sampling.h"

#include "fdw/remote_name.h"
#include "fdw/remote_scan.h"
#include "fdw/text_query.h"
#include "fdw/tuple.h"

static PgpxRemoteTransaction *
get_transaction(Relation rel)
{
	Oid			server = GetForeignTable(RelationGetRelid(rel))->serverid;

	return pgpx_remote_transaction_get(server, rel->rd_rel->relowner,
									   RelationGetRelationName(rel));
}

/* Append the remote table's name as a regclass. */
static void
append_regclass(StringInfo buf, Relation rel)
{
	StringInfoData name;

	initStringInfo(&name);
	pgpx_remote_name_relation(&name, rel);
	appendStringInfo(buf, "%s::pg_catalog.regclass",
					 quote_literal_cstr(name.data));
}

/* Append a SELECT of all columns; returns the array of their numbers. */
static AttrNumber *
append_select(StringInfo buf, Relation rel, int *n)
{
	TupleDesc	tupdesc = RelationGetDescr(rel);
	AttrNumber *attnums = palloc(sizeof(AttrNumber) * (tupdesc->natts + 1));

	*n = 0;
	appendStringInfoString(buf, "SELECT ");
	for (int attnum = 1; attnum <= tupdesc->natts; attnum++)
	{
		if (TupleDescAttr(tupdesc, attnum - 1)->attisdropped)
			continue;
		if (*n > 0)
			appendStringInfoString(buf, ", ");
		pgpx_remote_name_column(buf, rel, attnum);
		attnums[(*n)++] = attnum;
	}
	if (*n == 0)
		appendStringInfoString(buf, "NULL");
	appendStringInfoString(buf, " FROM ");
	pgpx_remote_name_relation(buf, rel);
	return attnums;
}

/*
 * Append the clause that makes the remote server return a sample of about
 * targrows rows.  Returns the remote's estimate of the number of rows in the
 * table, or 0 if no clause was appended and all rows are read.
 */
static double
append_sampling(StringInfo buf, Relation rel, int targrows)
{
	const char *method = pgpx_remote_table_option(RelationGetRelid(rel),
												  "analyze_sampling");
	PgpxTextRows *rows;
	StringInfoData sql;
	double		reltuples;
	char		relkind;
	double		fraction;

	if (method == NULL)
		method = "auto";
	if (strcmp(method, "off") == 0)
		return 0;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT reltuples, relkind FROM pg_catalog.pg_class WHERE oid = ");
	append_regclass(&sql, rel);
	rows = pgpx_text_query(get_transaction(rel), sql.data, 2);
	if (rows->n != 1 || pgpx_text_value(rows, 0, 0) == NULL ||
		pgpx_text_value(rows, 0, 1) == NULL)
		elog(ERROR, "unexpected result of \"%s\"", sql.data);
	reltuples = strtod(pgpx_text_value(rows, 0, 0), NULL);
	relkind = pgpx_text_value(rows, 0, 1)[0];

	/* the number of rows is unknown (negative), or small */
	if (!(reltuples > targrows))
		return 0;
	if (strcmp(method, "auto") == 0)
		method = relkind == RELKIND_RELATION || relkind == RELKIND_MATVIEW ||
			relkind == RELKIND_PARTITIONED_TABLE ? "bernoulli" : "random";
	fraction = targrows / reltuples;
	if (strcmp(method, "random") == 0)
		appendStringInfo(buf, " WHERE pg_catalog.random() < %f", fraction);
	else
		appendStringInfo(buf, " TABLESAMPLE %s(%f)", method, 100 * fraction);
	return reltuples;
}

/* Add the name of the column to the context of an error. */
static void
add_context(void *arg, AttrNumber attnum)
{
	Relation	rel = arg;

	if (attnum > 0)
	{
		Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel),
											   attnum - 1);

		errcontext("column \"%s\" of foreign table \"%s\"",
				   NameStr(attr->attname), RelationGetRelationName(rel));
	}
}

/*
 * Read rows and choose targrows of them (Vitter's algorithm, as in analyze.c).
 * Returns the number of rows read.
 */
static double
choose_rows(PgpxRemoteScan *scan, TupleDesc tupdesc, HeapTuple *rows,
			int targrows, int *n)
{
	ReservoirStateData state;
	double		nread = 0;
	double		skip = -1;
	Datum	   *values;
	bool	   *nulls;

	*n = 0;
	reservoir_init_selection_state(&state, targrows);
	while (pgpx_remote_scan_next(scan, &values, &nulls))
	{
		int			at = -1;

		CHECK_FOR_INTERRUPTS();
		nread++;
		if (*n < targrows)
			at = (*n)++;
		else
		{
			if (skip < 0)
				skip = reservoir_get_next_S(&state, nread, targrows);
			if (skip <= 0)
			{
				at = (int) (targrows * sampler_random_fract(&state.randstate));
				heap_freetuple(rows[at]);
			}
			skip--;
		}
		if (at >= 0)
			rows[at] = pgpx_tuple_form(tupdesc, values, nulls);
	}
	return nread;
}

static int
acquire_rows(Relation rel, int elevel, HeapTuple *rows, int targrows,
			 double *totalrows, double *totaldeadrows)
{
	TupleDesc	tupdesc = RelationGetDescr(rel);
	const char *fetch_size = pgpx_remote_table_option(RelationGetRelid(rel),
													  "fetch_size");
	int			portion = 100;
	StringInfoData sql;
	AttrNumber *attnums;
	PgpxRemoteScan *scan;
	PgpxRows   *converter;
	double		reltuples;
	double		nread;
	int			natts;
	int			n;

	initStringInfo(&sql);
	attnums = append_select(&sql, rel, &natts);
	reltuples = append_sampling(&sql, rel, targrows);
	if (fetch_size != NULL)
		(void) parse_int(fetch_size, &portion, 0, NULL);

	converter = pgpx_rows_begin_attributes(tupdesc, natts, attnums,
										   add_context, rel);
	scan = pgpx_remote_scan_begin(get_transaction(rel), sql.data, converter,
								  tupdesc, Max(portion, 1), false, false);
	pgpx_remote_scan_open(scan, 0, NULL);
	nread = choose_rows(scan, tupdesc, rows, targrows, &n);
	pgpx_remote_scan_end(scan);

	*totaldeadrows = 0;
	*totalrows = reltuples > 0 ? reltuples : nread;
	elog(elevel, "\"%s\": table contains %.0f rows, %d rows in sample",
		 RelationGetRelationName(rel), *totalrows, n);
	return n;
}

bool
pgpx_analyze_table(Relation rel, AcquireSampleRowsFunc *func,
				   BlockNumber *totalpages)
{
	PgpxTextRows *rows;
	StringInfoData sql;

	*func = acquire_rows;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT pg_catalog.pg_relation_size(");
	append_regclass(&sql, rel);
	appendStringInfo(&sql, ") / %d", BLCKSZ);
	rows = pgpx_text_query(get_transaction(rel), sql.data, 1);
	if (rows->n != 1 || pgpx_text_value(rows, 0, 0) == NULL)
		elog(ERROR, "unexpected result of \"%s\"", sql.data);
	*totalpages = strtoul(pgpx_text_value(rows, 0, 0), NULL, 10);
	return true;
}
