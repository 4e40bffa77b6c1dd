/*-------------------------------------------------------------------------
 *
 * fuzz_tuples.c
 *	  From the bodies of RowDescription and DataRow to the values of rows: the order
 *	  of columns, text or binary, NULs, borrowed bytes.
 *
 * The first byte selects the requested kind of rows, the second one the reported
 * styles of the remote; then messages: type, length (two bytes), body.  The types are
 * a dozen of the server's, with input and receive functions that read each byte, and
 * raise an error if a value begins with 'X'.
 *
 * In all cases no byte of a message is changed, also after an error; and a row has
 * all its attributes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "parser/parse_coerce.h"
#include "storage/s_lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/typcache.h"
#include "utils/xml.h"

#include "fuzz.h"
#include "base/debug_point.h"
#include "values/rows.h"

#define NATTRS 5
#define ROWTYPE 16384			/* of the attributes below */
#define ROWDOMAIN 16385			/* over it */
#define INTDOMAIN 16386

bool		Array_nulls = true;
int			xmloption = XMLOPTION_CONTENT;

static const Oid attribute_types[NATTRS] = {TEXTOID, INT4OID, TIMESTAMPTZOID,
INTDOMAIN, NUMERICOID};
static uint64 rows;
static int	levels;

/* --- types ------------------------------------------------------------------ */

Oid
getBaseType(Oid type)
{
	return type == INTDOMAIN ? INT4OID : type == ROWDOMAIN ? ROWTYPE : type;
}

bool
type_is_rowtype(Oid type)
{
	return type == ROWTYPE || type == ROWDOMAIN;
}

char
get_typtype(Oid type)
{
	return type == ROWDOMAIN || type == INTDOMAIN ? TYPTYPE_DOMAIN :
		type == ROWTYPE ? TYPTYPE_COMPOSITE : TYPTYPE_BASE;
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

TYPCATEGORY
TypeCategory(Oid type)
{
	return type == TEXTOID ? TYPCATEGORY_STRING : TYPCATEGORY_NUMERIC;
}

char *
format_type_be(Oid type)
{
	return "a type";
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

volatile sig_atomic_t InterruptPending = false;

void
ProcessInterrupts(void)
{
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

Datum
InputFunctionCall(FmgrInfo *info, char *text, Oid ioparam, int32 typmod)
{
	size_t		sum = 0;

	if (text == NULL)
		return (Datum) 0;
	for (char *p = text; *p; p++)
		sum += *p;
	FUZZ_CHECK(pg_encoding_verifymbstr(PG_UTF8, text, strlen(text)) == strlen(text));
	if (text[0] == 'X')
		fuzz_throw();
	return (Datum) (sum | 1);
}

Datum
OidInputFunctionCall(Oid function, char *text, Oid ioparam, int32 typmod)
{
	return InputFunctionCall(NULL, text, ioparam, typmod);
}

/* Reads as many bytes as the first one specifies, so that too few are tested as well. */
Datum
ReceiveFunctionCall(FmgrInfo *info, StringInfo buf, Oid ioparam, int32 typmod)
{
	int			sum = 0;

	if (buf == NULL)
		return (Datum) 0;
	FUZZ_CHECK(buf->data[buf->len] == '\0' && buf->cursor == 0);
	if (buf->len > 0 && buf->data[0] == 'X')
		fuzz_throw();
	while (buf->cursor < buf->len - (buf->len > 0 && buf->data[0] == 'L' ? 1 : 0))
		sum += buf->data[buf->cursor++];
	return (Datum) (sum | 1);
}

Datum
OidReceiveFunctionCall(Oid function, StringInfo buf, Oid ioparam, int32 typmod)
{
	return ReceiveFunctionCall(NULL, buf, ioparam, typmod);
}

char *
OidOutputFunctionCall(Oid function, Datum value)
{
	return pstrdup("1");
}

/* --- rows --------------------------------------------------------------------- */

/* Return whether values of a type in binary are read without a function of the server. */
static bool
is_read_directly(Oid type)
{
	static const Oid types[] = {BOOLOID, INT2OID, INT4OID, INT8OID, FLOAT4OID, FLOAT8OID,
	DATEOID, TIMEOID, TIMESTAMPOID, TIMESTAMPTZOID};

	for (int i = 0; i < lengthof(types); i++)
		if (types[i] == type)
			return true;
	return false;
}

static void
check_values(TupleDesc tupdesc, const Datum *values, const bool *isnull)
{
	for (int i = 0; i < tupdesc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(tupdesc, i);
		bool		is_direct = attr->atttypmod < 0 && is_read_directly(attr->atttypid);

		/* a value that is parsed directly may be 0; our functions never return 0 */
		if (!attr->attisdropped && !isnull[i] && !is_direct)
			FUZZ_CHECK(values[i] != (Datum) 0);
	}
	rows++;
}

void
tuplestore_putvalues(Tuplestorestate *state, TupleDesc tupdesc,
#if PG_VERSION_NUM >= 170000
					 const Datum *values, const bool *isnull)
#else
					 Datum *values, bool *isnull)
#endif
{
	check_values(tupdesc, values, isnull);
}

HeapTuple
heap_form_tuple(TupleDesc tupdesc,
#if PG_VERSION_NUM >= 170000
				const Datum *values, const bool *isnull)
#else
				Datum *values, bool *isnull)
#endif
{
	check_values(tupdesc, values, isnull);
	return NULL;
}

Datum
heap_copy_tuple_as_datum(HeapTuple tuple, TupleDesc tupdesc)
{
	return (Datum) 1;
}

void
domain_check(Datum value, bool isnull, Oid domain, void **extra,
			 MemoryContext context)
{
	if (rows % 7 == 3)
		fuzz_throw();
}

void
tuplestore_puttuple(Tuplestorestate *state, HeapTuple tuple)
{
}

/* --- settings, memory, the rest ------------------------------------------------ */

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
	size_t		sum = strlen(name) + strlen(value);

	/* an unknown style */
	if (sum % 5 == 0)
		fuzz_throw();
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

bool
pg_verify_mbstr(int encoding, const char *text, int len, bool no_error)
{
	if (pg_encoding_verifymbstr(encoding, text, len) != len)
		fuzz_throw();
	return true;
}

int
s_lock(volatile slock_t *lock, const char *file, int line, const char *function)
{
	abort();
}

/* --- the harness ---------------------------------------------------------------- */

static TupleDesc
make_tupdesc(int natts, bool with_dropped)
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
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);

		NameStr(attr->attname)[0] = 'a' + i;
		attr->atttypid = attribute_types[i];
		attr->atttypmod = -1;
		attr->attisdropped = with_dropped && i == 1;
	}
	return desc;
}

/* Pass a message to the sink; true to continue. */
static bool
hand_over(PgpxRows *tuples, PgpxWireMessage *msg)
{
	const PgpxSink *sink = pgpx_rows_sink(tuples);
	char	   *before = palloc(msg->len + 1);
	volatile bool ok = false;
	const int16 *formats;
	int			n;

	/* the following byte is the first of the next message */
	memcpy(before, msg->data, msg->len + 1);
	fuzz_may_throw = true;
	if (sigsetjmp(fuzz_error, 0) == 0)
		ok = msg->type == 'T' ? sink->columns(sink->arg, msg) :
			sink->row(sink->arg, msg);
	else
	{
		sink->restore(sink->arg);
		error_context_stack = NULL;
	}
	fuzz_may_throw = false;
	FUZZ_CHECK(error_context_stack == NULL);
	FUZZ_CHECK(memcmp(before, msg->data, msg->len + 1) == 0);
	if (ok && msg->type == 'T')
	{
		n = sink->formats(sink->arg, true, 1000, &formats);
		for (int i = 0; i < n; i++)
			FUZZ_CHECK(formats[i] == 0 || formats[i] == 1);
	}
	return ok;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const Oid types[] = {InvalidOid, ROWTYPE, ROWDOMAIN, TEXTOID};
	PgpxRows *tuples;
	Oid			type;
	int			natts;

	if (size < 2 || size > 64 * 1024)
		return 0;
	type = types[data[0] & 3];
	natts = type == TEXTOID ? 1 : (data[0] >> 2) % (NATTRS + 1);
	Array_nulls = (data[1] & 8) == 0;
	data += 2;
	size -= 2;
	levels = 0;
	rows = 0;
	tuples = pgpx_rows_begin(make_tupdesc(natts, type == ROWTYPE), NULL, type);
	while (size >= 3)
	{
		PgpxWireMessage msg = {.type = data[0] & 1 ? 'T' : 'D'};
		char	   *copy;
		bool		ok;

		msg.len = Min((size_t) (data[1] << 8 | data[2]), size - 3);

		/* and one byte: the buffer of wire.c also has a spare one */
		copy = malloc(msg.len + 1);
		memcpy(copy, data + 3, msg.len);
		copy[msg.len] = 'n';
		msg.data = copy;
		data += 3 + msg.len;
		size -= 3 + msg.len;
		ok = hand_over(tuples, &msg);
		free(copy);
		if (!ok)
			break;
	}
	fuzz_free_all();
	return 0;
}
