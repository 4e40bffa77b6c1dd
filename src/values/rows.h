/*-------------------------------------------------------------------------
 *
 * rows.h
 *	  Rows of a remote result into a tuplestore.
 *
 * Settings of either side that decide how the text of a value is read.
 *
 * Which column of a remote result goes where in a local row.
 *
 * Rows of a remote result into a tuplestore.
 *
 * Column definition lists for remote results, ready to be pasted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ROWS_H
#define PGPX_ROWS_H

#include "protocol/wire.h"

#include "access/tupdesc.h"
#include "utils/tuplestore.h"

/* What becomes of the rows. */
typedef struct PgpxSink
{
	/* a result begins, a row; false: malformed.  Unfit ones are errors */
	bool (*columns)(void *arg, const PgpxWireMessage *msg,
					const PgpxWire *wire);
	bool (*row)(void *arg, const PgpxWireMessage *msg);

	/* one of them has thrown: put back what it changed in the message */
	void (*restore)(void *arg);

	/*
	 * After a result of so many rows: which of its columns had better come in
	 * binary, and how many it had; 0: none had.  NULL: only texts can be read.
	 * any: also if the next time they are read into other types.
	 */
	int (*formats)(void *arg, bool any, uint64 rows, const int16 **formats);
	uint64		types_hash;		/* hash of the types that rows are read into */
	void	   *arg;
} PgpxSink;

/*
 * pgpx_styles_check
 *		Can texts of the remote be read as this type?  0A000 if not: its DateStyle
 *		is not ISO, and they hold time zones.
 */
extern void pgpx_styles_check(const PgpxWire *wire, Oid type);

/* Set a setting here, until the level that was begun before ends (AtEOXact_GUC). */
extern void pgpx_styles_set(const char *name, const char *value);

/*
 * pgpx_styles_begin
 *		Set the styles here to what the remote's texts are in.  Returns the level
 *		to go back from with AtEOXact_GUC.
 */
extern int	pgpx_styles_begin(const PgpxWire *wire);

/*
 * pgpx_neutral_begin
 *		Set aside what would change or refuse a value here, for one row: between
 *		rows other code runs, and results of other leases are read.  Returns a
 *		level as above, 0 if all is as it should be.
 */
extern int	pgpx_neutral_begin(void);

/*
 * pgpx_rows_map
 *		For each column of a RowDescription the index of the attribute of tupdesc
 *		that it goes to; each attribute that is not dropped has one.
 *
 * type InvalidOid: tupdesc is a column list, and columns go by their place.  A
 * row type: they go by their names, in any order.  Any other type: tupdesc is
 * its one attribute, whatever the column is called.
 *
 * lead: so many attributes come first that are not of the remote.
 *
 * Returns the number of columns, -1 if the message is malformed; *map and
 * *columns, what the message says of them, are made in the current memory
 * context.  42804 if the columns do not fit.
 */
extern int	pgpx_rows_map(const PgpxWireMessage *msg, TupleDesc tupdesc,
						  Oid type, int lead, int **map,
						  PgpxColumn **columns);

typedef struct PgpxRows PgpxRows;

/*
 * pgpx_rows_begin
 *		Rows of this shape into this tuplestore, which spills to disk beyond
 *		work_mem.  Lives in the current memory context.
 *
 * type: that the rows are of, InvalidOid for a column list; it decides which
 * column of the remote result goes where (rows.h).
 */
extern PgpxRows *pgpx_rows_begin(TupleDesc tupdesc, Tuplestorestate *store,
								 Oid type);

/*
 * pgpx_rows_lead
 *		Before any rows: the first attribute is not of the remote, it is this text
 *		in each row.  42804 if there is none; the errors of its type's input.
 */
extern void pgpx_rows_lead(PgpxRows *tuples, char *text);

/* The sink to give to pgpx_exec. */
extern const PgpxSink *pgpx_rows_sink(PgpxRows *tuples);

/* Give settings back that were changed for the conversion; also on errors. */
extern void pgpx_rows_end(PgpxRows *tuples);

/*
 * pgpx_column_list_type
 *		The name of a built-in type as format_type gives it, NULL for any other
 *		type: only built-in types have the same OID on every server.
 */
extern char *pgpx_column_list_type(Oid type, int32 typmod);

/*
 * pgpx_column_list
 *		The column definition list AS t(name type, ..) for a remote result.
 *
 * types: the names of types that are not built in; NULL, or an element NULL: not
 * known, the list says text, from which every type can be read.  So it does for
 * pseudo-types, which no column can have.  lead: name of a text column in front;
 * NULL: none.  A name that is empty is replaced, one that was there before gets a
 * number.
 */
extern char *pgpx_column_list(int n, const PgpxColumn *columns,
							  char *const *types, const char *lead);

#endif							/* PGPX_ROWS_H */
