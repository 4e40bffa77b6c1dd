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

void
pgpx_guess_begin(PgpxGuess *guess, PgpxRun *run)
{
	PgpxLease  *lease = run->lease;

	guess->on = run->sink != NULL && pgpx_conns[lease->conn].binary;
	guess->any = guess->on && run->sink->formats == NULL;
	run->nformats = 0;
	run->formats = guess->formats;
	if (!guess->on)
		return;
	pgpx_formats_key(&guess->key, lease->target->pool_id, run->sql,
					 run->sink->shape);

	/* what was sent for us by another session was sent for texts */
	if (lease->offer != PGPX_OFFER_SENT)
		run->nformats = pgpx_formats_find(&guess->key, guess->formats);
}

void
pgpx_guess_failed(PgpxGuess *guess, const PgpxRun *run)
{
	if (guess->on && run->nformats > 0)
		pgpx_formats_note(&guess->key, 0, NULL);
}

/*
 * Nothing is lost by running it again, unless a transaction of the remote has
 * failed with it.
 */
bool
pgpx_guess_was_wrong(PgpxGuess *guess, PgpxRun *run, bool may_repeat)
{
	if (!guess->on || run->nformats == 0 || !run->error.set ||
		run->described || run->error.sqlstate != ERRCODE_PROTOCOL_VIOLATION)
		return false;
	pgpx_formats_note(&guess->key, 0, NULL);
	if (may_repeat && run->lease->kept->wire.tx == 'I')
	{
		run->nformats = 0;
		memset(&run->error, 0, sizeof(run->error));
		return true;
	}

	/* nothing may be thrown here: the lease is in use until pgpx_run_end */
	run->error.sqlstate = ERRCODE_DATATYPE_MISMATCH;
	run->error.detail = run->error.primary;
	run->error.primary =
		"the remote result has other columns than the last time";
	run->error.hint = run->lease->kept->wire.tx == 'I' ?
		"Send the statement again." :
		"Roll back on the lease, and run the statement again.";
	return false;
}

void
pgpx_guess_end(PgpxGuess *guess, const PgpxRun *run)
{
	const int16 *formats = NULL;
	int			n = 0;

	if (!guess->on)
		return;
	if (!run->error.set && run->sink->formats != NULL)
		n = run->sink->formats(run->sink->arg, guess->any, run->rows, &formats);
	if (n != run->nformats ||
		(n > 0 && memcmp(formats, run->formats, n * sizeof(int16)) != 0))
		pgpx_formats_note(&guess->key, n, formats);
}

static void
run_once(PgpxRun *run, int nparams, const char *const *values,
		 PgpxGuess *guess)
{
	PG_TRY();
	{
		pgpx_run_send(run, nparams, values, run->sink == NULL);
		pgpx_run_read(run);
	}
	PG_CATCH();
	{
		pgpx_run_failed(run, true);
		pgpx_guess_failed(guess, run);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

uint64
pgpx_exec(PgpxLease *lease, const char *sql, int nparams,
		  const char *const *values, const PgpxSink *sink)
{
	PgpxGuess	guess;
	PgpxRun		run = {.lease = lease, .sql = sql, .sink = sink};

	pgpx_run_check(lease, nparams);
	pgpx_guess_begin(&guess, &run);
	do
		run_once(&run, nparams, values, &guess);
	while (pgpx_guess_was_wrong(&guess, &run, true));
	pgpx_guess_end(&guess, &run);
	return pgpx_run_end(&run);
}
