/*-------------------------------------------------------------------------
 *
 * module.c
 *	  Measurements of the bench in C.  This module is loaded into the bench's
 *	  server only and is not part of the extension.
 *
 * It has loops over checkout and checkin and over advisory locks, which call the
 * SQL functions from C.  It measures the round trip between the latches of two
 * sessions and a chain of latches of many sessions, which are lower bounds of a
 * wakeup.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(bench_pairs);
PG_FUNCTION_INFO_V1(bench_advisory);
PG_FUNCTION_INFO_V1(bench_nothing);
PG_FUNCTION_INFO_V1(bench_latch_open);
PG_FUNCTION_INFO_V1(bench_latch_answer);
PG_FUNCTION_INFO_V1(bench_latch_ask);
PG_FUNCTION_INFO_V1(bench_queue_open);
PG_FUNCTION_INFO_V1(bench_queue_wait);
PG_FUNCTION_INFO_V1(bench_queue_next);
PG_FUNCTION_INFO_V1(bench_queue_length);

static double
now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void
look_up(FmgrInfo *function, const char *name, int nargs, const Oid *types)
{
	List	   *names = list_make2(makeString("pgpool"),
								   makeString(pstrdup(name)));

	fmgr_info(LookupFuncName(names, nargs, types, false), function);
}

/* c_pairs(server text, n int): microseconds of a checkout and its checkin */
Datum
bench_pairs(PG_FUNCTION_ARGS)
{
	const Oid	checkout_args[3] = {TEXTOID, INTERVALOID, TEXTOID};
	const Oid	checkin_args[1] = {INT8OID};
	int			n = PG_GETARG_INT32(1);
	FmgrInfo	checkout,
				checkin;
	double		start = 0;

	LOCAL_FCINFO(call, 3);

	look_up(&checkout, "checkout", 3, checkout_args);
	look_up(&checkin, "checkin", 1, checkin_args);

	for (int i = -n / 10; i < n; i++)
	{
		Datum		lease;

		if (i == 0)
			start = now_us();
		InitFunctionCallInfoData(*call, &checkout, 3, InvalidOid, NULL, NULL);
		call->args[0].value = PG_GETARG_DATUM(0);
		call->args[0].isnull = false;
		call->args[1].isnull = call->args[2].isnull = true;
		lease = FunctionCallInvoke(call);
		InitFunctionCallInfoData(*call, &checkin, 1, InvalidOid, NULL, NULL);
		call->args[0].value = lease;
		call->args[0].isnull = false;
		FunctionCallInvoke(call);
		CHECK_FOR_INTERRUPTS();
	}
	PG_RETURN_FLOAT8((now_us() - start) / n);
}

/* c_advisory(n int): the same for an advisory lock and its release */
Datum
bench_advisory(PG_FUNCTION_ARGS)
{
	int			n = PG_GETARG_INT32(0);
	double		start = 0;

	for (int i = -n / 10; i < n; i++)
	{
		if (i == 0)
			start = now_us();
		DirectFunctionCall1(pg_try_advisory_lock_int8, Int64GetDatum(1));
		DirectFunctionCall1(pg_advisory_unlock_int8, Int64GetDatum(1));
		CHECK_FOR_INTERRUPTS();
	}
	PG_RETURN_FLOAT8((now_us() - start) / n);
}

/* c_nothing(n int): the same for two functions that do nothing */
Datum
bench_nothing(PG_FUNCTION_ARGS)
{
	int			n = PG_GETARG_INT32(0);
	double		start = 0;

	for (int i = -n / 10; i < n; i++)
	{
		if (i == 0)
			start = now_us();
		DirectFunctionCall1(int8up, Int64GetDatum(1));
		DirectFunctionCall1(int8up, Int64GetDatum(1));
		CHECK_FOR_INTERRUPTS();
	}
	PG_RETURN_FLOAT8((now_us() - start) / n);
}

/* --- latches --------------------------------------------------------------- */

/* The numbers of requests and answers. */
typedef struct Counts
{
	pg_atomic_uint32 requested;
	pg_atomic_uint32 answered;
} Counts;

/* latch_open(): the handle of memory that both sessions share */
Datum
bench_latch_open(PG_FUNCTION_ARGS)
{
	dsm_segment *segment = dsm_create(sizeof(Counts), 0);
	Counts	   *counts = dsm_segment_address(segment);

	pg_atomic_init_u32(&counts->requested, 0);
	pg_atomic_init_u32(&counts->answered, 0);
	dsm_pin_mapping(segment);
	PG_RETURN_INT64(dsm_segment_handle(segment));
}

static void
wait_until(pg_atomic_uint32 *count, uint32 value)
{
	while (pg_atomic_read_u32(count) < value)
	{
		WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
				  PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

static void *
memory_of(dsm_handle handle)
{
	dsm_segment *segment = dsm_find_mapping(handle);

	if (segment == NULL)
	{
		segment = dsm_attach(handle);
		if (segment == NULL)
			elog(ERROR, "no such segment");
		dsm_pin_mapping(segment);
	}
	return dsm_segment_address(segment);
}

static PGPROC *
process_of(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	if (proc == NULL)
		elog(ERROR, "no such process");
	return proc;
}

/* latch_answer(handle bigint, pid int, n int): answer n requests of process pid */
Datum
bench_latch_answer(PG_FUNCTION_ARGS)
{
	Counts	   *counts = memory_of((dsm_handle) PG_GETARG_INT64(0));
	PGPROC	   *client = process_of(PG_GETARG_INT32(1));
	int			n = PG_GETARG_INT32(2);

	for (int i = 1; i <= n; i++)
	{
		wait_until(&counts->requested, i);
		pg_atomic_write_u32(&counts->answered, i);
		SetLatch(&client->procLatch);
	}
	PG_RETURN_VOID();
}

/* latch_ask(handle bigint, pid int, n int): microseconds of a round trip */
Datum
bench_latch_ask(PG_FUNCTION_ARGS)
{
	Counts	   *counts = memory_of((dsm_handle) PG_GETARG_INT64(0));
	PGPROC	   *peer = process_of(PG_GETARG_INT32(1));
	int			n = PG_GETARG_INT32(2);
	double		start = 0;

	for (int i = 1; i <= n; i++)
	{
		if (i == n / 10 + 1)
			start = now_us();
		pg_atomic_write_u32(&counts->requested, i);
		SetLatch(&peer->procLatch);
		wait_until(&counts->answered, i);
	}
	PG_RETURN_FLOAT8((now_us() - start) / (n - n / 10));
}

/* --- a queue of sessions, each of which wakes the next one -------------------- */

typedef struct Queue
{
	pg_atomic_uint32 enqueued;
	pg_atomic_uint32 turn;
	int			room;
	PGPROC	   *waiters[FLEXIBLE_ARRAY_MEMBER];
} Queue;

/* queue_open(n int): the handle of a queue for n sessions, which lasts until the server ends */
Datum
bench_queue_open(PG_FUNCTION_ARGS)
{
	int			n = PG_GETARG_INT32(0);
	dsm_segment *segment = dsm_create(offsetof(Queue, waiters) + (n + 1) * sizeof(PGPROC *), 0);
	Queue	   *queue = dsm_segment_address(segment);

	memset(queue, 0, offsetof(Queue, waiters) + (n + 1) * sizeof(PGPROC *));
	pg_atomic_init_u32(&queue->enqueued, 0);
	pg_atomic_init_u32(&queue->turn, 0);
	queue->room = n;
	dsm_pin_segment(segment);
	PG_RETURN_INT64(dsm_segment_handle(segment));
}

/* queue_wait(handle bigint): enqueue the session, wait for its turn, and return its slot */
Datum
bench_queue_wait(PG_FUNCTION_ARGS)
{
	Queue	   *queue = memory_of((dsm_handle) PG_GETARG_INT64(0));
	uint32		slot = pg_atomic_fetch_add_u32(&queue->enqueued, 1);

	if (slot >= queue->room)
		elog(ERROR, "the queue is full");
	queue->waiters[slot] = MyProc;
	pg_memory_barrier();
	wait_until(&queue->turn, slot);
	PG_RETURN_INT32(slot);
}

/* queue_next(handle bigint, slot int): wake the session in the slot behind this one */
Datum
bench_queue_next(PG_FUNCTION_ARGS)
{
	Queue	   *queue = memory_of((dsm_handle) PG_GETARG_INT64(0));
	int			next = PG_GETARG_INT32(1) + 1;

	pg_atomic_write_u32(&queue->turn, next);
	pg_memory_barrier();
	if (queue->waiters[next] != NULL)
		SetLatch(&queue->waiters[next]->procLatch);
	PG_RETURN_VOID();
}

/* queue_length(handle bigint): the number of sessions that have been enqueued */
Datum
bench_queue_length(PG_FUNCTION_ARGS)
{
	Queue	   *queue = memory_of((dsm_handle) PG_GETARG_INT64(0));

	PG_RETURN_INT32(pg_atomic_read_u32(&queue->enqueued));
}
