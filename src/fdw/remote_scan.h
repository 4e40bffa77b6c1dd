/*-------------------------------------------------------------------------
 *
 * remote_scan.h
 *	  Scans: remote portals whose rows are read one by one.
 *
 * Any number of scans can be open on a remote transaction.  One of them can
 * be in the middle of an answer.  Before another statement is sent, the
 * rest of that answer is moved to a tuplestore.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_SCAN_H
#define PGPX_REMOTE_SCAN_H

#include "fdw/remote_transaction.h"

typedef struct PgpxRemoteScan PgpxRemoteScan;

/*
 * pgpx_remote_scan_begin
 *		Make a scan of a statement's rows.  Nothing is sent.
 *
 * sql, rows and tupdesc must live as long as the current memory context, which
 * holds the scan.  rows is from pgpx_rows_begin_attributes for tupdesc.
 * fetch_size: rows of the first portion; later ones are larger.  all: execute
 * the statement for all rows at once, so that the remote may use a parallel
 * plan.  writes: as for pgpx_remote_execute.
 */
extern PgpxRemoteScan *pgpx_remote_scan_begin(PgpxRemoteTransaction *rt,
											  const char *sql, PgpxRows *rows,
											  TupleDesc tupdesc,
											  int fetch_size, bool all,
											  bool writes);

/*
 * pgpx_remote_scan_open
 *		Send the statement with new parameters, for the first time or again.
 *
 * Does not wait for the answer.  The values are no longer needed afterwards.
 */
extern void pgpx_remote_scan_open(PgpxRemoteScan *scan, int nparams,
								  const char *const *values);

/*
 * pgpx_remote_scan_next
 *		Read the next row, and wait for it.
 *
 * Returns false at the end.  Otherwise *values and *nulls are as those of
 * pgpx_rows_values, valid until the next call.
 */
extern bool pgpx_remote_scan_next(PgpxRemoteScan *scan, Datum **values,
								  bool **nulls);

/* The number of rows that a statement has affected, at its end. */
extern uint64 pgpx_remote_scan_affected(const PgpxRemoteScan *scan);

/* End a scan, also before its last row. */
extern void pgpx_remote_scan_end(PgpxRemoteScan *scan);

/* --- for remote_transaction.c ------------------------------------------- */

/* Move the rest of the answer that a scan is reading to its tuplestore. */
extern void pgpx_remote_scan_buffer(PgpxRemoteScan *scan);

/* A subtransaction of this level has ended; its portals are now its parent's. */
extern void pgpx_remote_scans_released(PgpxRemoteTransaction *rt, int level);

/* A subtransaction of this level was rolled back, and its portals are gone. */
extern void pgpx_remote_scans_rolled_back(PgpxRemoteTransaction *rt, int level);

/* The remote transaction has ended, and with it its scans. */
extern void pgpx_remote_scans_forget(PgpxRemoteTransaction *rt);

#endif							/* PGPX_REMOTE_SCAN_H */
