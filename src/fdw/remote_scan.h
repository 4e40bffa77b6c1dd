/*-------------------------------------------------------------------------
 *
 * remote_scan.h
 *	  Scans: remote portals whose rows are read one by one; their parameters
 *	  and tuples.
 *
 * Any number of scans can be open on a remote transaction.  One of them can be
 * in the middle of an answer.  The rest of that answer is moved to a tuplestore
 * before another statement is sent.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_SCAN_H
#define PGPX_REMOTE_SCAN_H

#include "fdw/remote_transaction.h"

#include "access/htup.h"

/* approximate size limit, in bytes, of each batch of rows but the first one */
#define PGPX_BATCH_BYTES (8 * 1024 * 1024)

/* The parameters of a scan's statement: expressions of the plan. */
typedef struct PgpxQueryParams
{
	int			n;
	List	   *exprs;			/* of ExprStates */
	FmgrInfo   *outputs;		/* output functions of their types */
	bool		catalog_path;	/* see pgpx_params_need_catalog_path */
	MemoryContext cxt;			/* of their texts */
} PgpxQueryParams;

/*
 * Prepare the evaluation of the expressions (fdw_exprs), in the current memory
 * context.  *params must be zeroed.
 */
extern void pgpx_query_params_begin(PgpxQueryParams *params, List *exprs,
									PlanState *node);

/*
 * pgpx_query_params_evaluate
 *		Evaluate the parameters and return their texts, NULL for SQL's NULL.
 *
 * The texts are valid until the next call.  Return NULL if there are no
 * parameters.
 */
extern const char **pgpx_query_params_evaluate(PgpxQueryParams *params,
											   ExprContext *econtext);

/*
 * pgpx_tuple_form
 *		Form a tuple from the values that pgpx_rows_values returns.
 *
 * The tuple has the ctid, if the row has one, and invalid transaction IDs.
 */
extern HeapTuple pgpx_tuple_form(TupleDesc tupdesc, Datum *values,
								 bool *nulls);

/*
 * pgpx_stored_row_slot
 *		Make a slot for rows in a tuplestore.
 *
 * Such a row has the values that pgpx_rows_values returns: the columns of
 * tupdesc, and ctid.
 */
extern TupleTableSlot *pgpx_stored_row_slot(TupleDesc tupdesc);

/*
 * pgpx_stored_row_next
 *		Read the next row of a tuplestore.  Return false if there is none.
 *
 * The values are valid until the slot is used again.
 */
extern bool pgpx_stored_row_next(Tuplestorestate *store, TupleTableSlot *slot,
								 Datum **values, bool **nulls);

typedef struct PgpxRemoteScan PgpxRemoteScan;

/* Values of fetch_size that are no number of rows. */
#define PGPX_FETCH_GROWING 0	/* each batch is larger than the one before */
#define PGPX_FETCH_ALL PG_INT32_MAX /* one batch for all rows */

/*
 * pgpx_remote_scan_begin
 *		Begin a scan of a statement's rows.  Send nothing.
 *
 * sql, rows and tupdesc must live as long as the current memory context, which
 * holds the scan.  rows: from pgpx_rows_begin_attributes for tupdesc.
 * fetch_size: the number of rows of each batch, or PGPX_FETCH_*.  With one
 * batch for all rows, the remote may use a parallel plan.
 *
 * expected: the number of rows that the scan is expected to return; 0: not
 * known.  If the result is large (pgpx_remote_scan_is_large), and the session
 * has no formats for the statement yet, pgpx_remote_scan_open first asks the
 * remote for the columns' types, because the columns that are cheaper in binary
 * must be known before the execution.
 *
 * request: of an asynchronous scan; NULL: none.  The asynchronous scans of one
 * Append are read at the same time.
 */
extern PgpxRemoteScan *pgpx_remote_scan_begin(PgpxRemoteTransaction *rt,
											  const char *sql, PgpxRows *rows,
											  TupleDesc tupdesc,
											  int fetch_size, double expected,
											  const AsyncRequest *request);

/* Return the number of rows of the first batch; 0: all rows. */
extern uint32 pgpx_remote_scan_first_batch(int fetch_size);

/*
 * Return whether a result with this expected number of rows is large enough to
 * ask the remote for the columns' types before the first execution.
 */
extern bool pgpx_remote_scan_is_large(const PgpxRows *rows, double expected);

/*
 * pgpx_remote_scan_open
 *		Send the statement with new parameters, for the first time or again.
 *
 * The call does not wait for the answer, unless it first asks for the columns'
 * types (pgpx_remote_scan_begin).  The values must remain valid until the scan
 * is opened again or ends, because a refused statement is sent again.
 */
extern void pgpx_remote_scan_open(PgpxRemoteScan *scan, int nparams,
								  const char *const *values);

/* Discard the rows that were not read; the scan can be opened again. */
extern void pgpx_remote_scan_stop(PgpxRemoteScan *scan);

/*
 * pgpx_remote_scan_next
 *		Read the next row, and wait for it.
 *
 * Return false at the end.  Otherwise *values and *nulls are as those of
 * pgpx_rows_values, valid until the next call.
 */
extern bool pgpx_remote_scan_next(PgpxRemoteScan *scan, Datum **values,
								  bool **nulls);

typedef enum PgpxScanStep
{
	PGPX_SCAN_STEP_WAIT,		/* no row has arrived yet */
	PGPX_SCAN_STEP_ROW,
	PGPX_SCAN_STEP_EOF
} PgpxScanStep;

/*
 * pgpx_remote_scan_try_next
 *		Read the next row if it has arrived.
 *
 * While another scan of the same Append reads a batch from the lease, return PGPX_SCAN_STEP_WAIT instead of sending the
 * Execute for the next batch of this scan.
 */
extern PgpxScanStep pgpx_remote_scan_try_next(PgpxRemoteScan *scan,
											  Datum **values, bool **nulls);

/*
 * Return whether another scan of the same Append reads a batch from the lease, so
 * that this scan should not be opened yet.
 */
extern bool pgpx_remote_scan_must_wait(const PgpxRemoteScan *scan);

/*
 * If another scan of the same Append reads a batch from the lease, buffer the
 * rest of that batch, so that the lease is free.  Do nothing if the reader of that scan
 * waits for the socket, because it then reads the rest itself.
 */
extern void pgpx_remote_scan_buffer_other(PgpxRemoteScan *scan);

/*
 * Return the socket on which the scan waits for its answer, or PGINVALID_SOCKET
 * if it has nothing to wait for.
 */
extern pgsocket pgpx_remote_scan_socket(const PgpxRemoteScan *scan);

/* End a scan.  Rows that were not read are discarded. */
extern void pgpx_remote_scan_end(PgpxRemoteScan *scan);

/* --- for remote_transaction.c ------------------------------------------- */

/* Move the rest of the answer that a scan is reading to its tuplestore. */
extern void pgpx_remote_scan_buffer(PgpxRemoteScan *scan);

/* The subtransaction of this level was released: its parent has its portals. */
extern void pgpx_remote_scans_released(PgpxRemoteTransaction *rt, int level);

/* The subtransaction of this level, and its portals, were rolled back. */
extern void pgpx_remote_scans_rolled_back(PgpxRemoteTransaction *rt, int level);

/* The remote transaction has ended: no scan may use it any more. */
extern void pgpx_remote_scans_forget(PgpxRemoteTransaction *rt);

#endif							/* PGPX_REMOTE_SCAN_H */
