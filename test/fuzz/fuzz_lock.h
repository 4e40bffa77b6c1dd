/*-------------------------------------------------------------------------
 *
 * fuzz_lock.h
 *	  The environment of lock_remote.c, statement.c and rows.c for fuzz_lock.c:
 *	  stored rows, types, settings, the lease of the statement.
 *
 * Texts are real; a value of another type is its bytes, and raises an error if it
 * begins with 'X'.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_LOCK_H
#define FUZZ_LOCK_H

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "parser/parse_coerce.h"
#include "storage/s_lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "base/debug_point.h"
#include "locks/lock_remote.h"
#include "session/lease.h"
#include "session/statement_text.h"

#define NSTATUS 9				/* columns of lock_status: the most there are */

PgpxShared *pgpx_shared = NULL;
static PgpxConn the_conn;
PgpxConn   *pgpx_conns = &the_conn;
int			work_mem = 4096;
volatile sig_atomic_t InterruptPending = false;
bool		XactReadOnly = false;
const TupleTableSlotOps TTSOpsMinimalTuple;

static PgpxTime now_us;

/* --- rows ------------------------------------------------------------------- */

typedef struct Row
{
	Datum		values[NSTATUS];
	bool		isnull[NSTATUS];
} Row;

static Row	first_row;
#define STORE ((Tuplestorestate *) &first_row)	/* not used as such */
static int	nrows;
static int	levels;

Tuplestorestate *
tuplestore_begin_heap(bool random, bool across, int kb)
{
	nrows = 0;
	return STORE;
}

void
tuplestore_end(Tuplestorestate *store)
{
}

void
tuplestore_putvalues(Tuplestorestate *store, TupleDesc tupdesc,
#if PG_VERSION_NUM >= 170000
					 const Datum *values, const bool *isnull)
#else
					 Datum *values, bool *isnull)
#endif
{
	FUZZ_CHECK(tupdesc->natts <= NSTATUS);
	if (nrows++ > 0)
		return;
	memcpy(first_row.values, values, sizeof(Datum) * tupdesc->natts);
	memcpy(first_row.isnull, isnull, sizeof(bool) * tupdesc->natts);
}

TupleTableSlot *
MakeSingleTupleTableSlot(TupleDesc tupdesc, const TupleTableSlotOps *ops)
{
	TupleTableSlot *slot = palloc0(sizeof(*slot));

	slot->tts_tupleDescriptor = tupdesc;
	return slot;
}

bool
tuplestore_gettupleslot(Tuplestorestate *store, bool forward, bool copy,
						TupleTableSlot *slot)
{
	slot->tts_values = first_row.values;
	slot->tts_isnull = first_row.isnull;
	slot->tts_nvalid = slot->tts_tupleDescriptor->natts;
	return nrows > 0;
}

void
ExecDropSingleTupleTableSlot(TupleTableSlot *slot)
{
	pfree(slot);
}

void
slot_getsomeattrs_int(TupleTableSlot *slot, int attnum)
{
	abort();
}

TupleDesc
CreateTemplateTupleDesc(int natts)
{
#if PG_VERSION_NUM >= 180000
	TupleDesc	desc = palloc0(offsetof(struct TupleDescData, compact_attrs) +
							   natts * sizeof(CompactAttribute) +
							   natts * sizeof(FormData_pg_attribute));
#else
	TupleDesc	desc = palloc0(offsetof(struct TupleDescData, attrs) +
							   natts * sizeof(FormData_pg_attribute));
#endif

	desc->natts = natts;
	return desc;
}

void
TupleDescInitEntry(TupleDesc desc, AttrNumber number, const char *name,
				   Oid type, int32 typmod, int ndims)
{
	Form_pg_attribute attr = TupleDescAttr(desc, number - 1);

	attr->atttypid = type;
	attr->atttypmod = typmod;
}

/* --- types: texts are texts; the other types' functions read each byte ----------- */

char *
text_to_cstring(const text *t)
{
	return pnstrdup(VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
}

static Datum
make_value(Oid type, const char *data, int len)
{
	text	   *t;

	if (pg_encoding_verifymbstr(PG_UTF8, data, len) != len)
		fuzz_throw();
	if (type != TEXTOID && len > 0 && data[0] == 'X')
		fuzz_throw();
	t = palloc(VARHDRSZ + len);
	SET_VARSIZE(t, VARHDRSZ + len);
	memcpy(VARDATA(t), data, len);
	return PointerGetDatum(t);
}

Datum
InputFunctionCall(FmgrInfo *info, char *value, Oid ioparam, int32 typmod)
{
	return value == NULL ? (Datum) 0 : make_value(info->fn_oid, value, strlen(value));
}

Datum
OidInputFunctionCall(Oid function, char *value, Oid ioparam, int32 typmod)
{
	abort();
}

Datum
OidReceiveFunctionCall(Oid function, StringInfo buf, Oid ioparam, int32 typmod)
{
	if (buf == NULL)
		return (Datum) 0;
	FUZZ_CHECK(buf->data[buf->len] == '\0' && buf->cursor == 0);
	buf->cursor = buf->len;
	return make_value(function, buf->data, buf->len);
}

Datum
ReceiveFunctionCall(FmgrInfo *info, StringInfo buf, Oid ioparam, int32 typmod)
{
	return OidReceiveFunctionCall(info->fn_oid, buf, ioparam, typmod);
}

char *
OidOutputFunctionCall(Oid function, Datum value)
{
	return text_to_cstring((text *) DatumGetPointer(value));
}

void
getTypeInputInfo(Oid type, Oid *function, Oid *ioparam)
{
	*function = *ioparam = type;
}

void
getTypeBinaryInputInfo(Oid type, Oid *function, Oid *ioparam)
{
	*function = *ioparam = type;
}

void
getTypeOutputInfo(Oid type, Oid *function, bool *varlena)
{
	*function = type;
	*varlena = true;
}

void
fmgr_info_cxt(Oid function, FmgrInfo *info, MemoryContext cxt)
{
	memset(info, 0, sizeof(*info));
	info->fn_oid = function;
}

Oid
getBaseType(Oid type)
{
	return type;
}

bool
type_is_rowtype(Oid type)
{
	return false;
}

char
get_typtype(Oid type)
{
	return TYPTYPE_BASE;
}

Oid
get_element_type(Oid type)
{
	return InvalidOid;
}

Oid
get_range_subtype(Oid type)
{
	return InvalidOid;
}

Oid
get_multirange_range(Oid type)
{
	return InvalidOid;
}

TupleDesc
lookup_rowtype_tupdesc(Oid type, int32 typmod)
{
	abort();
}

void
DecrTupleDescRefCount(TupleDesc tupdesc)
{
}

char
TypeCategory(Oid type)
{
	abort();
}

char *
format_type_be(Oid type)
{
	return "a type";
}

HeapTuple
heap_form_tuple(TupleDesc tupdesc,
#if PG_VERSION_NUM >= 170000
				const Datum *values, const bool *isnull)
#else
				Datum *values, bool *isnull)
#endif
{
	abort();
}

Datum
heap_copy_tuple_as_datum(HeapTuple tuple, TupleDesc tupdesc)
{
	abort();
}

void
domain_check(Datum value, bool isnull, Oid domain, void **extra,
			 MemoryContext context)
{
	abort();
}

void
tuplestore_puttuple(Tuplestorestate *store, HeapTuple tuple)
{
	abort();
}

bool
pg_verify_mbstr(int encoding, const char *value, int len, bool no_error)
{
	if (pg_encoding_verifymbstr(encoding, value, len) != len)
		fuzz_throw();
	return true;
}

/* --- settings, memory, the lease ------------------------------------------------ */

bool		Array_nulls = true;
int			xmloption = 0;

int
NewGUCNestLevel(void)
{
	return ++levels;
}

void
AtEOXact_GUC(bool commit, int level)
{
	FUZZ_CHECK(level > 0 && level <= levels);
	levels = level - 1;
}

int
set_config_option(const char *name, const char *value, GucContext context,
				  GucSource source, GucAction action, bool change, int elevel,
				  bool reload)
{
	return 1;
}

MemoryContext
AllocSetContextCreateInternal(MemoryContext parent, const char *name,
							  Size min, Size init, Size max)
{
	return NULL;
}

void
MemoryContextReset(MemoryContext context)
{
}

void
check_stack_depth(void)
{
}

int
GetDatabaseEncoding(void)
{
	return PG_UTF8;
}

int
s_lock(volatile slock_t *lock, const char *file, int line, const char *function)
{
	abort();
}

void
ProcessInterrupts(void)
{
}

PgpxTime
pgpx_now(void)
{
	return now_us;
}

uint32
pgpx_wait_event_new(const char *name)
{
	return 1;
}

void
pgpx_lease_raise_broken(PgpxLease *lease, const char *why, const char *remote_text)
{
	FUZZ_CHECK(why != NULL);
	lease->broken = why;
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("%s", why), remote_text ? errdetail("%s", remote_text) : 0));
}

void
pgpx_lease_check_broken(PgpxLease *lease)
{
	const PgpxWire *wire = &lease->sock->wire;

	if (lease->broken != NULL)
		pgpx_lease_raise_broken(lease, lease->broken, NULL);
	if (wire->phase == PGPX_WIRE_BROKEN)
		pgpx_lease_raise_broken(lease, wire->broken, NULL);
}

void
pgpx_lease_check_encoding(const PgpxLease *lease)
{
}

void
pgpx_lease_check_revoked(PgpxLease *lease)
{
}

bool
pgpx_stream_flush(PgpxLease *lease, PgpxTime deadline)
{
	return pgpx_wire_flush(&lease->sock->wire) == 1;
}

void
pgpx_stream_cancel(PgpxLease *lease)
{
	lease->cancelled = true;
}

void
pgpx_lease_store_note(PgpxLease *lease, const PgpxWireMessage *msg)
{
}

void
pgpx_lease_note_warning(PgpxLease *lease, const PgpxWireMessage *msg)
{
}

void
pgpx_conn_set_activity(PgpxConn *conn, uint64 lease_id, PgpxActivity activity,
			 bool statement)
{
}

PgpxActivity
pgpx_conn_activity(PgpxConn *conn)
{
	return PGPX_ACT_ACTIVE;
}

/* Not called: a call's lease is at a boundary and waits with a deadline. */
#define NEVER(type, name, ...) type name(__VA_ARGS__) { abort(); }

NEVER(bool, pgpx_stream_drain, PgpxLease *lease, size_t bytes, PgpxTime deadline, bool quiet)
NEVER(PgpxTime, pgpx_lease_operation_deadline, const PgpxLease *lease)
NEVER(void, pgpx_lease_send_reset_behind, PgpxLease *lease, const PgpxStatement *statement, bool several)
NEVER(void, pgpx_lease_send_reset_behind_commit, PgpxLease *lease)
NEVER(bool, pgpx_session_wait_latch, PgpxTime deadline, uint32 wait_event)
NEVER(void, pgpx_session_wait_for_more, PgpxCachedSocket *sock, uint32 wait_event)
NEVER(ssize_t, pgpx_socket_cache_poll, PgpxCachedSocket *sock, int pool, bool *full)
NEVER(bool, pgpx_session_has_no_input, PgpxCachedSocket *sock)

/* Used by pgpx_describe only. */
char *
quote_qualified_identifier(const char *qualifier, const char *ident)
{
	abort();
}

#endif							/* FUZZ_LOCK_H */
