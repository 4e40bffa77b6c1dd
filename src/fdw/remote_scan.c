/*-------------------------------------------------------------------------
 *
 * remote_scan.c
 *	  Scans: remote portals whose rows are read one by one; their parameters
 *	  and tuples.
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
#include "nodes/nodeFuncs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/debug_point.h"
#include "values/params.h"

void
pgpx_query_params_begin(PgpxQueryParams *params, List *exprs, PlanState *node)
{
	ListCell   *lc;

	params->n = list_length(exprs);
	if (params->n == 0)
		return;
	params->outputs = palloc(sizeof(FmgrInfo) * params->n);
	foreach(lc, exprs)
	{
		Oid			type = exprType(lfirst(lc));
		Oid			output;
		bool		varlena;

		getTypeOutputInfo(type, &output, &varlena);
		fmgr_info(output, &params->outputs[foreach_current_index(lc)]);
		params->catalog_path |= pgpx_params_need_catalog_path(type);
	}
	params->exprs = ExecInitExprList(exprs, node);
	params->cxt = AllocSetContextCreate(CurrentMemoryContext,
										"pgpool_ext parameters",
										ALLOCSET_SMALL_SIZES);
}

const char **
pgpx_query_params_evaluate(PgpxQueryParams *params, ExprContext *econtext)
{
	const char **texts;
	NullableDatum *values;
	MemoryContext old;
	ListCell   *lc;
	int			level;

	if (params->n == 0)
		return NULL;
	MemoryContextReset(params->cxt);
	old = MemoryContextSwitchTo(params->cxt);
	texts = palloc(sizeof(char *) * params->n);
	values = palloc(sizeof(NullableDatum) * params->n);

	/* before the styles are set, because an expression can depend on them */
	foreach(lc, params->exprs)
	{
		NullableDatum *value = &values[foreach_current_index(lc)];

		value->value = ExecEvalExpr((ExprState *) lfirst(lc), econtext,
									&value->isnull);
	}
	level = pgpx_params_begin_styles(params->catalog_path);
	for (int i = 0; i < params->n; i++)
		texts[i] = values[i].isnull ? NULL :
			OutputFunctionCall(&params->outputs[i], values[i].value);
	pgpx_params_end_styles(level);
	MemoryContextSwitchTo(old);
	return texts;
}

HeapTuple
pgpx_tuple_form(TupleDesc tupdesc, Datum *values, bool *nulls)
{
	HeapTuple	tuple = heap_form_tuple(tupdesc, values, nulls);
	int			natts = tupdesc->natts;

	if (!nulls[natts])
		tuple->t_self = tuple->t_data->t_ctid =
			*(ItemPointer) DatumGetPointer(values[natts]);

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
					 Datum **values, bool **nulls)
{
	/* a row from a file is allocated here, and the slot frees it later */
	MemoryContext old = MemoryContextSwitchTo(slot->tts_mcxt);
	bool		found = tuplestore_gettupleslot(store, true, false, slot);

	MemoryContextSwitchTo(old);
	if (!found)
		return false;
	slot_getallattrs(slot);
	*values = slot->tts_values;
	*nulls = slot->tts_isnull;
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
	PGPX_SCAN_CLOSED,			/* not opened; the portal may exist */
	PGPX_SCAN_STREAMING,		/* a batch is being read */
	PGPX_SCAN_SUSPENDED,		/* the portal has more rows */
	PGPX_SCAN_END,				/* all rows were read */
	PGPX_SCAN_FAILED			/* an error, or a rollback, has ended it */
} PgpxScanState;

struct PgpxRemoteScan
{
	dlist_node	node;			/* in rt->scans */
	PgpxRemoteTransaction *rt;	/* NULL: it or the scan has ended */
	MemoryContext cxt;			/* holds this struct and the tuplestore */
	MemoryContextCallback callback; /* unlinks the scan */
	ResourceOwner owner;		/* of the tuplestore's temporary files */
	PgpxStatement statement;
	PgpxRows   *rows;
	TupleDesc	tupdesc;
	int			fetch_size;		/* see pgpx_remote_scan_begin */
	double		expected;		/* number of rows; 0: not known */
	const AsyncRequest *request;	/* of an Append; NULL: not asynchronous */

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
pgpx_remote_scan_begin(PgpxRemoteTransaction *rt, const char *sql,
					   PgpxRows *rows, TupleDesc tupdesc, int fetch_size,
					   double expected, const AsyncRequest *request)
{
	PgpxRemoteScan *scan = palloc0(sizeof(PgpxRemoteScan));

	scan->cxt = CurrentMemoryContext;
	scan->owner = CurrentResourceOwner;
	scan->statement.sql = sql;
	scan->rows = rows;
	scan->tupdesc = tupdesc;
	scan->fetch_size = fetch_size;
	scan->expected = expected;
	scan->request = request;
	scan->state = PGPX_SCAN_CLOSED;
	scan->callback.func = unlink_scan;
	scan->callback.arg = scan;
	MemoryContextRegisterResetCallback(scan->cxt, &scan->callback);
	scan->rt = rt;
	dlist_push_tail(&rt->scans, &scan->node);
	return scan;
}

uint32
pgpx_remote_scan_first_batch(int fetch_size)
{
	return fetch_size == PGPX_FETCH_GROWING ? BATCH_MIN :
		fetch_size == PGPX_FETCH_ALL ? 0 : fetch_size;
}

bool
pgpx_remote_scan_is_large(const PgpxRows *rows, double expected)
{
	return expected * pgpx_rows_estimate_gain(rows) >= MIN_DESCRIBE_GAIN_NS;
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
 * Send the pipeline of the scan.  first: it is the statement with the first
 * batch, else the Execute of the next batch.  read_row reads the answer.
 */
static void
send_batch(PgpxRemoteScan *scan, bool first)
{
	PgpxRemoteTransaction *rt = scan->rt;
	PgpxRun    *run = &scan->run;

	run->statement = &scan->statement;
	run->sink = pgpx_rows_sink(scan->rows);
	run->stop_at = PGPX_EV_ROW;
	PG_TRY();
	{
		pgpx_remote_send(rt, run, &scan->pipeline, first,
						 first ? scan->level :
						 GetCurrentTransactionNestLevel());
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
	if (scan->state != PGPX_SCAN_FAILED)
		scan->state = PGPX_SCAN_CLOSED;
}

/*
 * Begin the prediction of formats.  If there is none for a result that is
 * expected to be large, first ask the remote for the types of its columns, at
 * most once for a scan.  An asynchronous scan does not ask, because it must not
 * wait.
 */
static void
begin_prediction(PgpxRemoteScan *scan)
{
	double		expected = scan->request == NULL ? scan->expected : 0;

	pgpx_prediction_begin(&scan->run);
	scan->expected = 0;
	if (!scan->run.prediction.on || scan->run.nformats > 0 ||
		!pgpx_remote_scan_is_large(scan->rows, expected))
		return;
	Assert(scan->rt->lease->pending_state != PGPX_PENDING_SENT);
	pgpx_remote_describe(scan->rt, &scan->statement, scan->run.sink,
						 (uint64) Min(expected, (double) PG_INT32_MAX));
	pgpx_remote_prepare_send(scan->rt);
	pgpx_prediction_begin(&scan->run);
}

void
pgpx_remote_scan_open(PgpxRemoteScan *scan, int nparams,
					  const char *const *values)
{
	PgpxRemoteTransaction *rt = scan->rt;
	PgpxPipeline *p = &scan->pipeline;

	if (rt == NULL)
		check_scan(scan);
	pgpx_remote_scan_stop(scan);
	pgpx_remote_prepare_send(rt);
	scan->statement.nparams = nparams;
	scan->statement.values = values;
	pgpx_run_check(rt->lease, &scan->statement);

	if (scan->portal[0] != '\0')
		pgpx_remote_close_later(rt, scan->portal);
	else if (scan->fetch_size != PGPX_FETCH_ALL)
		snprintf(scan->portal, sizeof(scan->portal), "P" PGPX_REMOTE_PORTAL, ++rt->nnames);
	memset(&scan->run, 0, sizeof(scan->run));
	memset(p, 0, sizeof(*p));
	scan->run.lease = rt->lease;
	scan->run.statement = &scan->statement;
	scan->run.sink = pgpx_rows_sink(scan->rows);
	begin_prediction(scan);
	scan->batch_size = pgpx_remote_scan_first_batch(scan->fetch_size);
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
	send_batch(scan, true);
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
	send_batch(scan, false);
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
	if (run->prediction.on)
	{
		uint64		rows = run->rows;

		/* the result has at least as many rows as were requested */
		if (run->suspended)
			run->rows = scan->batch_size;
		pgpx_prediction_end(run);
		run->rows = rows;
	}
	if (run->error.set)
		pgpx_remote_raise(&run->error, rt->sent.data);
	if (run->suspended && scan->fetch_size == PGPX_FETCH_GROWING)
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
	Datum	   *values;
	bool	   *nulls;

	if (scan->slot == NULL)
		scan->slot = pgpx_stored_row_slot(scan->tupdesc);
	if (scan->store == NULL)
	{
		/* its temporary files must not be closed before the scan ends */
		CurrentResourceOwner = scan->owner;
		scan->store = tuplestore_begin_heap(false, false, work_mem);
		CurrentResourceOwner = owner;
	}

	/* the executor may still use the row that it read last */
	pgpx_rows_keep(scan->rows);
	pgpx_rows_values(scan->rows, &values, &nulls);
	PG_TRY();
	{
		PGPX_DEBUG_POINT("fdw_buffer");
		while (scan->state == PGPX_SCAN_STREAMING)
			if (read_row(scan, true) == PGPX_RUN_STOPPED)
				tuplestore_putvalues(scan->store,
									 scan->slot->tts_tupleDescriptor, values,
									 nulls);
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

/* Read the next buffered row.  Return false if there is none. */
static bool
next_buffered_row(PgpxRemoteScan *scan, Datum **values, bool **nulls)
{
	if (scan->store == NULL)
		return false;
	if (pgpx_stored_row_next(scan->store, scan->slot, values, nulls))
		return true;
	drop_store(scan);
	return false;
}

/*
 * Read the next row: from the tuplestore if it has rows, else from the stream.
 * wait: as for read_row.
 */
static PgpxScanStep
next_row(PgpxRemoteScan *scan, bool wait, Datum **values, bool **nulls)
{
	for (;;)
	{
		if (next_buffered_row(scan, values, nulls))
			return PGPX_SCAN_STEP_ROW;
		switch (scan->state)
		{
			case PGPX_SCAN_CLOSED:
			case PGPX_SCAN_END:
				return PGPX_SCAN_STEP_EOF;
			case PGPX_SCAN_STREAMING:
				switch (read_row(scan, wait))
				{
					case PGPX_RUN_WAIT:
						return PGPX_SCAN_STEP_WAIT;
					case PGPX_RUN_STOPPED:
						pgpx_rows_values(scan->rows, values, nulls);
						return PGPX_SCAN_STEP_ROW;
					case PGPX_RUN_END:
						break;
				}
				break;
			case PGPX_SCAN_SUSPENDED:
				check_scan(scan);
				if (!wait && pgpx_remote_scan_must_wait(scan))
					return PGPX_SCAN_STEP_WAIT;
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
pgpx_remote_scan_next(PgpxRemoteScan *scan, Datum **values, bool **nulls)
{
	return next_row(scan, true, values, nulls) == PGPX_SCAN_STEP_ROW;
}

PgpxScanStep
pgpx_remote_scan_try_next(PgpxRemoteScan *scan, Datum **values, bool **nulls)
{
	return next_row(scan, false, values, nulls);
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
pgpx_remote_scans_released(PgpxRemoteTransaction *rt, int level)
{
	dlist_iter	iter;

	dlist_foreach(iter, &rt->scans)
	{
		PgpxRemoteScan *scan = dlist_container(PgpxRemoteScan, node, iter.cur);

		scan->level = Min(scan->level, level - 1);
	}
}

void
pgpx_remote_scans_rolled_back(PgpxRemoteTransaction *rt, int level)
{
	dlist_iter	iter;

	dlist_foreach(iter, &rt->scans)
	{
		PgpxRemoteScan *scan = dlist_container(PgpxRemoteScan, node, iter.cur);

		if (scan->level < level)
			continue;
		scan->portal[0] = '\0';
		abandon_answer(scan);
		if (scan->state == PGPX_SCAN_STREAMING ||
			scan->state == PGPX_SCAN_SUSPENDED)
			scan->state = PGPX_SCAN_FAILED;
		scan->level = 0;
	}
}

void
pgpx_remote_scans_forget(PgpxRemoteTransaction *rt)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &rt->scans)
	{
		PgpxRemoteScan *scan = dlist_container(PgpxRemoteScan, node, iter.cur);

		dlist_delete(&scan->node);
		if (scan->state == PGPX_SCAN_STREAMING ||
			scan->state == PGPX_SCAN_SUSPENDED)
			scan->state = PGPX_SCAN_FAILED;
		scan->rt = NULL;
	}
	rt->streaming = NULL;
}
