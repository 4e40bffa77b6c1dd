/*-------------------------------------------------------------------------
 *
 * rows.h
 *	  Conversion of a remote result's rows; column definition lists.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ROWS_H
#define PGPX_ROWS_H

#include "protocol/wire.h"

#include "access/tupdesc.h"
#include "utils/tuplestore.h"

/* The consumer of the rows of a result. */
typedef struct PgpxSink
{
	/*
	 * Called for the row description and for each row.  They return false if
	 * the message is malformed, and raise an error if a result or a value does
	 * not fit.
	 */
	bool (*columns)(void *arg, const PgpxWireMessage *msg);
	bool (*row)(void *arg, const PgpxWireMessage *msg);

	/*
	 * Called for the end of each result (CommandComplete or EmptyQueryResponse).
	 * NULL if the sink ignores it.
	 */
	void (*command)(void *arg, const PgpxWireMessage *msg);

	/*
	 * Called if one of them raised an error: restore the message's bytes.
	 * NULL if they are not changed.
	 */
	void (*restore)(void *arg);

	/*
	 * Called after a result: report which of its columns are cheaper in binary.
	 * rows: the number of rows of the result.  any: the next execution may read
	 * the columns into other types.  Set *formats and return the number of
	 * columns, or 0 if none is cheaper.  NULL if the sink reads text only.
	 */
	int (*formats)(void *arg, bool any, uint64 rows, const int16 **formats);
	uint64		types_hash;		/* hash of the types that rows are read into */
	void	   *arg;
} PgpxSink;

/* Set a local setting until the current GUC nest level ends (AtEOXact_GUC). */
extern void pgpx_set_local(const char *name, const char *value);

typedef struct PgpxRows PgpxRows;

/*
 * pgpx_rows_begin
 *		Begin to convert rows of tupdesc into a tuplestore.
 *
 * The tuplestore spills to disk beyond work_mem.  The result is allocated in
 * the current memory context.  type: the type of the rows, InvalidOid for a
 * column list.  It determines how columns are mapped, see map_columns.
 */
extern PgpxRows *pgpx_rows_begin(TupleDesc tupdesc, Tuplestorestate *store,
								 Oid type);

/*
 * pgpx_rows_begin_attributes
 *		Begin to convert rows into arrays of values, for foreign tables.
 *
 * attnums: a list of integers: for each column of the result the number of its
 * attribute in tupdesc, or SelfItemPointerAttributeNumber; NIL: the columns of
 * the result are ignored.  The list must live as long as the result.  where:
 * called to add the context of an error; attnum 0: the row as a whole.  Raise
 * HV000 if the result has another number of columns.  where NULL: tupdesc is a
 * column list, see map_columns.
 */
extern PgpxRows *pgpx_rows_begin_attributes(TupleDesc tupdesc,
											const List *attnums,
											void (*where)(void *arg,
														  AttrNumber attnum),
											void *arg);

/*
 * The values of a row.  Attributes that are not in the result are NULL.  The
 * element after those of the tuple descriptor is the ctid.
 */
typedef struct PgpxRowValues
{
	Datum	   *values;
	bool	   *nulls;
} PgpxRowValues;

/* Return the current row.  Its arrays are the same for all rows. */
extern PgpxRowValues pgpx_rows_current(const PgpxRows *rows);

/*
 * pgpx_rows_keep
 *		Keep the memory to which the values of the current row point until the
 *		next call of pgpx_rows_keep.
 *
 * The next row overwrites the arrays of pgpx_rows_current nevertheless.
 */
extern void pgpx_rows_keep(PgpxRows *rows);

/*
 * pgpx_rows_estimate_gain
 *		Return the time in ns that both servers save for each row in binary.
 *
 * rows: result of pgpx_rows_begin_attributes.  The estimate assumes that the
 * remote's types are those of the attributes, because it is needed before the
 * first result, which has the remote's types.
 */
extern uint64 pgpx_rows_estimate_gain(const PgpxRows *rows);

/*
 * pgpx_rows_set_first
 *		Set the first attribute of every row to a text of the caller.
 *
 * Must be called before the result begins.  Raise 42804 if the first attribute
 * is missing or not of a string type, and the errors of its input function.
 */
extern void pgpx_rows_set_first(PgpxRows *rows, char *text);

/* Return the sink for pgpx_exec. */
extern const PgpxSink *pgpx_rows_sink(PgpxRows *rows);

/*
 * pgpx_column_list_type
 *		Return the name of a built-in type as format_type does.
 *
 * Return NULL for any other type, because only built-in types have the same OID
 * on every server.
 */
extern char *pgpx_column_list_type(Oid type, int32 typmod);

/*
 * pgpx_column_list
 *		Return the column definition list AS t(name type, ..) for a remote
 *		result.
 *
 * types: for each column the name of its type if it is not built in.  If types
 * or an element is NULL, the name is unknown and the list has text, since every
 * type can be read as text.  Pseudo-types, which no column can have, become
 * text as well.  lead: name of a leading column of type text; NULL for none.
 *
 * An empty column name is replaced; a repeated one gets a number appended.
 */
extern char *pgpx_column_list(int n, const PgpxColumn *columns,
							  char *const *types, const char *lead);

/* --- columns in binary ----------------------------------------------------- */

#define PGPX_FORMATS_COLUMNS 128	/* results with more columns stay text */

typedef struct PgpxFormatsKey
{
	uint32		pool_id;
	uint32		length;			/* of the statement's text */
	uint64		text[2];		/* hashes of the text */
	uint64		types_hash;		/* hash of the types of the local columns */
} PgpxFormatsKey;

/*
 * Compute the key of a statement in a pool.  types_hash: that of the PgpxSink.
 */
extern void pgpx_formats_key(PgpxFormatsKey *key, uint32 pool_id,
							 const char *sql, uint64 types_hash);

/*
 * pgpx_formats_find
 *		Look up which formats to request for a statement.
 *
 * Set formats, 0 for text and 1 for binary, and return the number of columns
 * that the result had.  Return 0 if no formats are recorded, so that the whole
 * result is to be requested in text.
 */
extern int	pgpx_formats_find(const PgpxFormatsKey *key,
							  int16 formats[PGPX_FORMATS_COLUMNS]);

/*
 * pgpx_formats_note
 *		Record the formats of the n columns of a statement in this session.
 *
 * n 0 removes the record.  With more than PGPX_FORMATS_COLUMNS columns the
 * function does nothing.  Raise no error.
 */
extern void pgpx_formats_note(const PgpxFormatsKey *key, int n,
							  const int16 *formats);

#endif							/* PGPX_ROWS_H */
