/*-------------------------------------------------------------------------
 *
 * remote_scan.h
 *	  Scans: remote portals whose rows are read one by one; their tuples.
 *
 * Any number of scans can be open on a remote transaction.  One of them can be
 * in the middle of an answer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_SCAN_H
#define PGPX_REMOTE_SCAN_H

#include "fdw/remote_transaction.h"

#include "access/htup.h"

/* approximate size limit, in bytes, of each batch of rows but the first one */
#define PGPX_BATCH_BYTES (8 * 1024 * 1024)

/*
 * pgpx_tuple_form
 *		Form a tuple from a row.
 *
 * The tuple has the ctid, if the row has one, and invalid transaction IDs.
 */
extern HeapTuple pgpx_tuple_form(TupleDesc tupdesc, PgpxRowValues row);

/* Make a slot for the rows of a tuplestore, which are PgpxRowValues of tupdesc. */
extern TupleTableSlot *pgpx_stored_row_slot(TupleDesc tupdesc);

/*
 * Read the next row of a tuplestore.  Return false if there is none.  The row is
 * valid until the slot is used again.
 */
extern bool pgpx_stored_row_next(Tuplestorestate *store, TupleTableSlot *slot,
								 PgpxRowValues *row);

typedef struct PgpxRemoteScan PgpxRemoteScan;

/* Values of fetch_size that are no number of rows. */
#define PGPX_FETCH_GROWING 0	/* each batch is larger than the one before */
#define PGPX_FETCH_ALL PG_INT32_MAX /* one batch for all rows: the remote may
									 * use a parallel plan */

/* What is read by a scan. */
typedef struct PgpxScanSource
{
	PgpxRemoteUse *use;
	const char *sql;
	TupleDesc	tupdesc;

	/* see pgpx_rows_begin_attributes */
	const List *attnums;
	void (*where)(void *arg, AttrNumber attnum);
	void	   *where_arg;

	int			fetch_size;		/* the number of rows of each batch, or
								 * PGPX_FETCH_* */

	double		expected;		/* number of rows; 0: not known */
} PgpxScanSource;

/*
 * pgpx_remote_scan_begin
 *		Begin a scan of a statement's rows.  Lease and send nothing.
 *
 * The current memory context holds the scan.  What the source points to must
 * live as long as it.
 */
extern PgpxRemoteScan *pgpx_remote_scan_begin(const PgpxScanSource *source);

/*
 * Make the scan asynchronous, before it is first opened.  The asynchronous scans
 * of one Append are read at the same time.
 */
extern void pgpx_remote_scan_set_request(PgpxRemoteScan *scan,
										 const AsyncRequest *request);

/*
 * pgpx_remote_scan_open
 *		Send the statement with new parameters, for the first time or again.
 *
 * The call leases a connection if the remote transaction is new.  It does not
 * wait for the answer, unless it first asks for the columns' types.  The values
 * must remain valid until the scan is opened again or ends, because a refused
 * statement is sent again.
 *
 * Return false if nothing was sent, because of pgpx_remote_scan_must_wait.
 */
extern bool pgpx_remote_scan_open(PgpxRemoteScan *scan, int nparams,
								  const char *const *values);

/* Discard the rows that were not read; the scan can be opened again. */
extern void pgpx_remote_scan_stop(PgpxRemoteScan *scan);

/*
 * pgpx_remote_scan_next
 *		Read the next row.
 *
 * Return PGPX_RUN_STOPPED at a row, which is valid until the next call, and
 * PGPX_RUN_END at the end.  An asynchronous scan returns PGPX_RUN_WAIT if the row
 * has not arrived yet, or if the Execute for the next batch cannot be sent,
 * because of pgpx_remote_scan_must_wait.
 */
extern PgpxRunStep pgpx_remote_scan_next(PgpxRemoteScan *scan,
										 PgpxRowValues *row);

/*
 * Return whether another scan of the same Append reads a batch from the lease, so
 * that this scan should not send a statement yet.
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

/*
 * The subtransaction of this level was rolled back with its portals, or was
 * released: then its parent has its portals.
 */
extern void pgpx_remote_scans_end_level(PgpxRemoteTransaction *rt, int level,
										bool aborts);

/* The remote transaction has ended: no scan may use it any more. */
extern void pgpx_remote_scans_forget(PgpxRemoteTransaction *rt);

#endif							/* PGPX_REMOTE_SCAN_H */
