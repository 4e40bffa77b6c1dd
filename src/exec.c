/*-------------------------------------------------------------------------
 *
 * exec.c
 *	  Run SQL on a lease, from its being sent to its end.
 *
 * The steps are run.c's; here is what is known of the result before.
 *
 *-------------------------------------------------------------------------
 */
#include "exec.h"

#include "formats.h"

/* What goes wrong in between may be due to what was known of its result. */
static void
run_once(PgpxRun *run, int nparams, const char *const *values,
		 const PgpxFormatsKey *key)
{
	PG_TRY();
	{
		pgpx_run_send(run, nparams, values, run->sink == NULL);
		pgpx_run_read(run);
	}
	PG_CATCH();
	{
		pgpx_run_failed(run, true);
		if (run->nformats > 0)
			pgpx_formats_note(key, 0, NULL);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * The remote has refused the statement, before it ran, since its result has other
 * columns than the last time.  Forget what was known; run it again, unless a
 * transaction of the remote has failed with it.
 */
static bool
formats_were_wrong(PgpxRun *run, const PgpxFormatsKey *key)
{
	if (run->nformats == 0 || !run->error.set || run->described ||
		run->error.sqlstate != ERRCODE_PROTOCOL_VIOLATION)
		return false;
	pgpx_formats_note(key, 0, NULL);
	if (run->lease->kept->wire.tx == 'I')
		return true;
	run->error.sqlstate = ERRCODE_DATATYPE_MISMATCH;
	run->error.detail = run->error.primary;
	run->error.primary =
		pstrdup("the remote result has other columns than the last time");
	run->error.hint = pstrdup("Roll back on the lease, and run the statement again.");
	return false;
}

/* Remember what is worth to be asked for in binary the next time. */
static void
note_formats(const PgpxRun *run, const PgpxFormatsKey *key)
{
	const int16 *formats = NULL;
	int			n = 0;

	if (!run->error.set && run->rows >= PGPX_FORMATS_ROWS)
		n = run->sink->formats(run->sink->arg, &formats);
	if (n != run->nformats ||
		(n > 0 && memcmp(formats, run->formats, n * sizeof(int16)) != 0))
		pgpx_formats_note(key, n, formats);
}

uint64
pgpx_exec(PgpxLease *lease, const char *sql, int nparams,
		  const char *const *values, const PgpxSink *sink)
{
	bool		may_binary = sink != NULL && sink->formats != NULL &&
		pgpx_conns[lease->conn].binary;
	int16		formats[PGPX_FORMATS_COLUMNS];
	PgpxFormatsKey key;
	PgpxRun		run;

	pgpx_run_check(lease, nparams);
	if (may_binary)
		pgpx_formats_key(&key, lease->target->pool_id, sql, sink->shape);
	do
	{
		memset(&run, 0, sizeof(run));
		run.lease = lease;
		run.sql = sql;
		run.sink = sink;
		if (may_binary && lease->offer != PGPX_OFFER_SENT)
			run.nformats = pgpx_formats_find(&key, formats);
		run.formats = formats;
		run_once(&run, nparams, values, &key);
	} while (may_binary && formats_were_wrong(&run, &key));
	if (may_binary)
		note_formats(&run, &key);
	return pgpx_run_end(&run);
}
