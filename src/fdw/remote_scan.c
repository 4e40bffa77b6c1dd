/*-------------------------------------------------------------------------
 *
 * remote_scan.c
 *	  Scans: remote portals whose rows are read one by one; their tuples.
 *
 * A scan executes its portal in batches.  Each Execute is for a limited number
 * of rows: fetch_size, or, if that option is not set, a number that grows from
 * batch to batch.  The rows are read from the lease's stream as the executor
 * asks for them.  So the use of memory is constant, and if a scan ends early,
 * the remote has produced at most a few times the rows that were read.
 *
 * Between two batches the lease is at a message boundary and free for
 * other statements.  Within a batch it is not: before another statement
 * is sent, the rest of the batch is moved to a tuplestore.
 *
 * A portal that is executed in batches has a name, because the next statement
 * would replace the unnamed portal.  The Close of a portal is sent with a later
 * statement; otherwise the portal ends with the remote transaction.
 *
 * A scan is allocated in the executor's memory, which can be freed before the
 * scan is ended.  A reset callback of its memory context then unlinks it.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/remote_scan.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/debug_point.h"

HeapTuple
pgpx_tuple_form(TupleDesc tupdesc, PgpxRowValues row)
{
	HeapTuple	tuple = heap_form_tuple(tupdesc, row.values, row.nulls);
	int			natts = tupdesc->natts;

	if (!row.nulls[natts])
		tuple->t_self = tuple->t_data->t_ctid =
			*(ItemPointer) DatumGetPointer(row.values[natts]);

	/* heap_form_tuple has put the length and type of a datum there */
	HeapTupleHeaderSetXmax(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetXmin(tuple->t_data, InvalidTransactionId);
	HeapTupleHeaderSetCmin(tuple->t_data, InvalidTransactionId);
	return tuple;
}

TupleTableSlot *
pgpx_stored_row_slot(TupleDesc tupdesc)
{
	int			natts = tupdesc->natts;
	TupleDesc	desc = CreateTemplateTupleDesc(natts + 1);

	for (int i = 0; i < natts; i++)
		TupleDescCopyEntry(desc, i + 1, tupdesc, i + 1);
	TupleDescInitEntry(desc, natts + 1, "ctid", TIDOID, -1, 0);
	TupleDescFinalize(desc);
	return MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

bool
pgpx_stored_row_next(Tuplestorestate *store, TupleTableSlot *slot,
					 PgpxRowValues *row)
{
	/* a row from a file is allocated here, and the slot frees it later */
	MemoryContext old = MemoryContextSwitchTo(slot->tts_mcxt);
	bool		found = tuplestore_gettupleslot(store, true, false, slot);

	MemoryContextSwitchTo(old);
	if (!found)
		return false;
	slot_getallattrs(slot);
	*row = (PgpxRowValues){slot->tts_values, slot->tts_isnull};
	return true;
}

/*
 * Without option fetch_size, each batch is larger than the one before, up to
 * BATCH_MAX rows, about PGPX_BATCH_BYTES bytes, and the number of rows that the
 * executor reads in about BATCH_US.  A batch is a remote statement, so a remote
 * statement_timeout includes the time in which its rows are read.
 */
#define BATCH_MIN 100
#define BATCH_GROWTH 4
#define BATCH_MAX 32768
#define BATCH_US (1000 * 1000)

/*
 * The time that binary must be expected to save before the remote is asked for
 * the types of the columns.  About a round trip in a data centre.
 */
#define MIN_DESCRIBE_GAIN_NS (100 * 1000)

typedef enum PgpxScanState
{
	PGPX_SCAN_NEW,				/* never opened */
	PGPX_SCAN_STREAMING,		/* a batch is being read */
	PGPX_SCAN_SUSPENDED,		/* the portal has more rows */
	PGPX_SCAN_END,				/* all rows were read, or it was stopped */
	PGPX_SCAN_FAILED			/* an error, or a rollback, has ended it */
} PgpxScanState;

struct PgpxRemoteScan
{
	dlist_node	node;			/* in rt->scans */
	PgpxRemoteTransaction *rt;	/* NULL: the scan is new, or one of the two
								 * has ended */
	MemoryContext cxt;			/* holds this struct and the tuplestore */
	MemoryContextCallback callback; /* unlinks the scan */
	ResourceOwner owner;		/* of the tuplestore's temporary files */
	PgpxScanSource source;
	uint32		first_batch;	/* rows of the first batch; 0: all */
	const AsyncRequest *request;	/* of an Append; NULL: not asynchronous */
	PgpxStatement statement;
	PgpxRows   *rows;

	PgpxScanState state;
	int			level;			/* of subtransactions, when it was opened */
	char		portal[PGPX_REMOTE_NAME_LEN];	/* 'P' and its name; "": unnamed */
	uint32		batch_size;		/* rows to execute for; 0: all */
	PgpxTime	sent_at;		/* when the batch was requested */
	PgpxRun		run;
	PgpxPipeline pipeline;

	/* the last execution: its row description is in "rows"; its formats */
	bool		described;
	int			nformats;
	int16		formats[PGPX_FORMATS_COLUMNS];

	/* buffered rows */
	Tuplestorestate *store;		/* NULL: none */
	TupleTableSlot *slot;		/* NULL until rows are buffered */
};

/* If the scan is reading an answer, leave the rest to read_abandoned. */
static void
abandon_answer(PgpxRemoteScan *scan)
{
	PgpxRemoteTransaction *rt = scan->rt;

	if (rt == NULL || rt->streaming != scan)
		return;
	rt->streaming = NULL;
	rt->abandoned = true;
}

/* Unlink a scan that ends or whose memory is freed. */
static void
unlink_scan(void *arg)
{
	PgpxRemoteScan *scan = arg;

	if (scan->rt == NULL)
		return;
	dlist_delete(&scan->node);
	abandon_answer(scan);
	scan->rt = NULL;
}

PgpxRemoteScan *
pgpx_remote_scan_begin(const PgpxScanSource *source)
{
	PgpxRemoteScan *scan = palloc0(sizeof(PgpxRemoteScan));

	scan->cxt = CurrentMemoryContext;
	scan->owner = CurrentResourceOwner;
	scan->source = *source;
	scan->first_batch = source->fetch_size == PGPX_FETCH_ALL ? 0 :
		source->fetch_size == PGPX_FETCH_GROWING ? BATCH_MIN :
		source->fetch_size;
	scan->statement.sql = source->sql;
	scan->rows = pgpx_rows_begin_attributes(source->tupdesc, source->attnums,
											source->where, source->where_arg);
	scan->state = PGPX_SCAN_NEW;
	scan->callback.func = unlink_scan;
	scan->callback.arg = scan;
	MemoryContextRegisterResetCallback(scan->cxt, &scan->callback);
	return scan;
}

void
pgpx_remote_scan_set_request(PgpxRemoteScan *scan, const AsyncRequest *request)
{
	scan->request = request;
}

/*
 * Return whether the result is expected to be so large that the scan asks the
 * remote for the columns' types before the first execution, because the columns
 * that are cheaper in binary must then be known.  An asynchronous scan does not
 * ask, because it must not wait.
 */
static bool
is_large(const PgpxRemoteScan *scan)
{
	return scan->request == NULL && scan->source.expected > 0 &&
		scan->source.expected * pgpx_rows_estimate_gain(scan->rows) >=
		MIN_DESCRIBE_GAIN_NS;
}

/* Link a new scan to its remote transaction, and begin that if it is new. */
static void
link_scan(PgpxRemoteScan *scan)
{
	PgpxPipeline first = pgpx_wire_pipeline_of(&scan->statement, 0, NULL);

	/*
	 * A large scan first asks for its types.  An asynchronous scan must not
	 * wait for an answer, but after a hand-over of its statement the session
	 * waits for one.
	 */
	bool		is_first = scan->request == NULL && !is_large(scan);

	first.max_rows = scan->first_batch;
	if (first.max_rows > 0)
		first.portal = "p1";	/* the name that the portal will have */
	scan->rt = pgpx_remote_transaction_get(scan->source.use,
										   is_first ? &first : NULL);
	dlist_push_tail(&scan->rt->scans, &scan->node);
	scan->state = PGPX_SCAN_END;
}

/* Raise an error if the scan cannot be continued. */
static void
check_scan(const PgpxRemoteScan *scan)
{
	if (scan->rt != NULL && scan->state != PGPX_SCAN_FAILED)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_CURSOR_STATE),
			 errmsg("cannot continue foreign scan"),
			 errdetail("It was interrupted by an error, or its remote portal was opened in a subtransaction that was rolled back, or in a transaction that has ended.")));
}

/* Free the buffered rows. */
static void
drop_store(PgpxRemoteScan *scan)
{
	if (scan->store != NULL)
		tuplestore_end(scan->store);
	scan->store = NULL;
}

/*
 * Send the pipeline of the scan: the statement with the first batch, or the
 * Execute of the next batch.  read_row reads the answer.
 */
static void
send_batch(PgpxRemoteScan *scan)
{
	PgpxRemoteTransaction *rt = scan->rt;
	PgpxRun    *run = &scan->run;

	run->statement = &scan->statement;
	run->sink = pgpx_rows_sink(scan->rows);
	run->stop_at = PGPX_EV_ROW;
	PG_TRY();
	{
		pgpx_remote_send(rt, run, &scan->pipeline);
	}
	PG_CATCH();
	{
		scan->state = PGPX_SCAN_FAILED;
		pgpx_run_failed(run, true);
		pgpx_remote_forget_prepared(rt, scan->statement.sql);
		PG_RE_THROW();
	}
	PG_END_TRY();
	scan->state = PGPX_SCAN_STREAMING;
	scan->sent_at = pgpx_now();
	rt->streaming = scan;

	/* these were only needed to send it, and their memory may be freed */
	scan->pipeline.before = NULL;
	scan->pipeline.closes = NULL;
}

void
pgpx_remote_scan_stop(PgpxRemoteScan *scan)
{
	abandon_answer(scan);
	drop_store(scan);
	if (scan->state == PGPX_SCAN_STREAMING ||
		scan->state == PGPX_SCAN_SUSPENDED)
		scan->state = PGPX_SCAN_END;
}

/*
 * Begin the prediction of formats.  If there is none for a large result, ask for
 * the types first, at most once for a scan.
 */
static void
begin_prediction(PgpxRemoteScan *scan)
{
	uint64		rows = Min(scan->source.expected, (double) PG_INT32_MAX);
	bool		large = is_large(scan);

	pgpx_prediction_begin(&scan->run);
	scan->source.expected = 0;
	if (!scan->run.prediction.on || scan->run.nformats > 0 || !large)
		return;
	Assert(scan->rt->lease->pending_state != PGPX_PENDING_SENT);
	pgpx_remote_describe(scan->rt, &scan->statement, scan->run.sink, rows);
	pgpx_remote_prepare_send(scan->rt);
	pgpx_prediction_begin(&scan->run);
}

bool
pgpx_remote_scan_open(PgpxRemoteScan *scan, int nparams,
					  const char *const *values)
{
	PgpxPipeline *p = &scan->pipeline;
	PgpxRemoteTransaction *rt;

	scan->statement.nparams = nparams;
	scan->statement.values = values;
	if (scan->state == PGPX_SCAN_NEW)
		link_scan(scan);
	else if (scan->rt == NULL)
		check_scan(scan);
	if (pgpx_remote_scan_must_wait(scan))
		return false;
	rt = scan->rt;
	pgpx_remote_scan_stop(scan);
	pgpx_remote_prepare_send(rt);
	pgpx_run_check(rt->lease, &scan->statement);

	if (scan->portal[0] != '\0')
		pgpx_remote_close_later(rt, scan->portal);
	else if (scan->first_batch > 0)
		snprintf(scan->portal, sizeof(scan->portal), "Pp%u", ++rt->nnames);
	memset(&scan->run, 0, sizeof(scan->run));
	memset(p, 0, sizeof(*p));
	scan->run.lease = rt->lease;
	scan->run.statement = &scan->statement;
	scan->run.sink = pgpx_rows_sink(scan->rows);
	begin_prediction(scan);
	scan->batch_size = scan->first_batch;
	scan->level = GetCurrentTransactionNestLevel();
	p->statement = &scan->statement;
	p->portal = scan->portal[0] == '\0' ? "" : scan->portal + 1;
	p->nformats = scan->run.nformats;
	p->formats = scan->run.prediction.formats;
	p->max_rows = scan->batch_size;
	p->describe = true;
	p->can_omit_describe = scan->described && p->nformats == scan->nformats &&
		memcmp(p->formats, scan->formats, sizeof(int16) * p->nformats) == 0;
	scan->nformats = p->nformats;
	memcpy(scan->formats, p->formats, sizeof(int16) * p->nformats);
	scan->described = false;
	send_batch(scan);
	return true;
}

/* Execute the portal for the next batch. */
static void
execute_next_batch(PgpxRemoteScan *scan)
{
	PgpxRemoteTransaction *rt = scan->rt;
	PgpxPipeline *p = &scan->pipeline;

	pgpx_remote_prepare_send(rt);
	memset(&scan->run, 0, sizeof(scan->run));
	memset(p, 0, sizeof(*p));
	p->statement = &scan->statement;
	p->portal = scan->portal + 1;
	p->resume = true;
	p->max_rows = scan->batch_size;
	scan->run.lease = rt->lease;
	send_batch(scan);
}

/*
 * Determine the size of the next batch from the last one, which was full.  The
 * scan may not need all rows of a batch, so its bytes are limited, too.
 */
static void
grow_batch(PgpxRemoteScan *scan)
{
	const PgpxRun *run = &scan->run;
	uint64		last = scan->batch_size;
	uint64		bytes = run->lease->sock->wire.bytes_in - run->bytes_at_send;
	uint64		time = Max(pgpx_now() - scan->sent_at, 1);
	uint64		rows = Min(last * BATCH_GROWTH, BATCH_MAX);

	rows = Min(rows, PGPX_BATCH_BYTES / (bytes / last + 1));
	rows = Min(rows, last * BATCH_US / time);
	scan->batch_size = Max(rows, BATCH_MIN);
}

/*
 * Process the end of an answer: set the state of the scan, and raise the
 * remote's error, if there was one.
 */
static void
end_batch(PgpxRemoteScan *scan)
{
	PgpxRemoteTransaction *rt = scan->rt;
	PgpxRun    *run = &scan->run;

	rt->streaming = NULL;
	scan->described = !run->error.set;
	scan->state = run->error.set ? PGPX_SCAN_FAILED :
		run->suspended ? PGPX_SCAN_SUSPENDED : PGPX_SCAN_END;
	pgpx_remote_end_statement(rt, run);
	/* the result has at least as many rows as were requested */
	if (run->suspended)
		run->rows = scan->batch_size;
	pgpx_prediction_end(run);
	if (run->error.set)
		pgpx_remote_raise(&run->error, rt->sent.data);
	if (run->suspended && scan->source.fetch_size == PGPX_FETCH_GROWING)
		grow_batch(scan);
}

/*
 * Read a row of the current batch, or process the batch's end.  Without "wait",
 * return PGPX_RUN_WAIT if more input is needed.
 */
static PgpxRunStep
read_row(PgpxRemoteScan *scan, bool wait)
{
	PgpxRemoteTransaction *rt = scan->rt;
	MemoryContext old = MemoryContextSwitchTo(scan->cxt);
	PgpxRunStep reached;

	PG_TRY();
	{
		rt->reading = true;
		reached = pgpx_run_read(&scan->run, wait);
		rt->reading = false;
	}
	PG_CATCH();
	{
		rt->reading = false;
		rt->streaming = NULL;
		scan->state = PGPX_SCAN_FAILED;
		pgpx_run_failed(&scan->run, true);
		pgpx_remote_forget_prepared(rt, scan->statement.sql);
		PG_RE_THROW();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);

	PGPX_DEBUG_POINT("fdw_row");
	if (reached == PGPX_RUN_END)
		end_batch(scan);
	return reached;
}

void
pgpx_remote_scan_buffer(PgpxRemoteScan *scan)
{
	MemoryContext old = MemoryContextSwitchTo(scan->cxt);
	ResourceOwner owner = CurrentResourceOwner;
	PgpxRowValues row = pgpx_rows_current(scan->rows);

	if (scan->slot == NULL)
		scan->slot = pgpx_stored_row_slot(scan->source.tupdesc);
	if (scan->store == NULL)
	{
		/* its temporary files must not be closed before the scan ends */
		CurrentResourceOwner = scan->owner;
		scan->store = tuplestore_begin_heap(false, false, work_mem);
		CurrentResourceOwner = owner;
	}

	/* the executor may still use the row that it read last */
	pgpx_rows_keep(scan->rows);
	PG_TRY();
	{
		PGPX_DEBUG_POINT("fdw_buffer");
		while (scan->state == PGPX_SCAN_STREAMING)
			if (read_row(scan, true) == PGPX_RUN_STOPPED)
				tuplestore_putvalues(scan->store,
									 scan->slot->tts_tupleDescriptor,
									 row.values, row.nulls);
	}
	PG_CATCH();
	{
		/*
		 * The last row may be missing in the tuplestore, and the tuplestore may
		 * be inconsistent.  So do not use it any more, and do not end it: its
		 * memory context and its resource owner free it.
		 */
		abandon_answer(scan);
		scan->state = PGPX_SCAN_FAILED;
		scan->store = NULL;
		PG_RE_THROW();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
}

PgpxRunStep
pgpx_remote_scan_next(PgpxRemoteScan *scan, PgpxRowValues *row)
{
	PgpxRunStep reached;

	for (;;)
	{
		if (scan->store != NULL)
		{
			if (pgpx_stored_row_next(scan->store, scan->slot, row))
				return PGPX_RUN_STOPPED;
			drop_store(scan);
		}
		switch (scan->state)
		{
			case PGPX_SCAN_NEW:
			case PGPX_SCAN_END:
				return PGPX_RUN_END;
			case PGPX_SCAN_STREAMING:
				*row = pgpx_rows_current(scan->rows);
				reached = read_row(scan, scan->request == NULL);
				if (reached != PGPX_RUN_END)
					return reached;
				break;
			case PGPX_SCAN_SUSPENDED:
				check_scan(scan);
				if (pgpx_remote_scan_must_wait(scan))
					return PGPX_RUN_WAIT;
				execute_next_batch(scan);

				/*
				 * A subtransaction with a savepoint can be rolled back only at
				 * a message boundary, and then the scan can be continued.
				 */
				if (scan->state == PGPX_SCAN_STREAMING &&
					scan->level < scan->rt->nesting.target_depth)
					pgpx_remote_scan_buffer(scan);
				break;
			case PGPX_SCAN_FAILED:
				check_scan(scan);
		}
	}
}

bool
pgpx_remote_scan_must_wait(const PgpxRemoteScan *scan)
{
	const PgpxRemoteScan *other =
		scan->rt != NULL ? scan->rt->streaming : NULL;

	return other != NULL && other != scan && scan->request != NULL &&
		other->request != NULL &&
		other->request->requestor == scan->request->requestor;
}

void
pgpx_remote_scan_buffer_other(PgpxRemoteScan *scan)
{
	if (pgpx_remote_scan_must_wait(scan) &&
		!scan->rt->streaming->request->callback_pending)
		pgpx_remote_scan_buffer(scan->rt->streaming);
}

pgsocket
pgpx_remote_scan_socket(const PgpxRemoteScan *scan)
{
	if (scan->rt == NULL || scan->rt->streaming != scan || scan->store != NULL)
		return PGINVALID_SOCKET;
	return scan->rt->lease->sock->fd;
}

void
pgpx_remote_scan_end(PgpxRemoteScan *scan)
{
	PgpxRemoteTransaction *rt = scan->rt;

	if (scan->slot != NULL)
		ExecDropSingleTupleTableSlot(scan->slot);
	scan->slot = NULL;
	drop_store(scan);
	if (rt == NULL)
		return;
	if (scan->portal[0] != '\0' && scan->state != PGPX_SCAN_FAILED)
		pgpx_remote_close_later(rt, scan->portal);
	unlink_scan(scan);
}

void
pgpx_remote_scans_end_level(PgpxRemoteTransaction *rt, int level, bool aborts)
{
	dlist_iter	iter;

	dlist_foreach(iter, &rt->scans)
	{
		PgpxRemoteScan *scan = dlist_container(PgpxRemoteScan, node, iter.cur);

		if (scan->level < level)
			continue;
		scan->level = aborts ? 0 : level - 1;
		if (!aborts)
			continue;
		scan->portal[0] = '\0';
		abandon_answer(scan);
		if (scan->state == PGPX_SCAN_STREAMING ||
			scan->state == PGPX_SCAN_SUSPENDED)
			scan->state = PGPX_SCAN_FAILED;
	}
}

void
pgpx_remote_scans_forget(PgpxRemoteTransaction *rt)
{
	dlist_mutable_iter iter;

	pgpx_remote_scans_end_level(rt, 0, true);
	dlist_foreach_modify(iter, &rt->scans)
		unlink_scan(dlist_container(PgpxRemoteScan, node, iter.cur));
}
