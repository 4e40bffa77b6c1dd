/*-------------------------------------------------------------------------
 *
 * libpq_bounds.c
 *	  What a remote can make libpq do in the worker while libpq reads: bounded.
 *
 * libpq trusts the server that it talks to.  It prints notices to stderr, which is
 * the log, whatever is in them; it keeps each reported parameter, each notification,
 * and each row until somebody asks for the result.  Rows are taken one at a time
 * (PQsetSingleRowMode) where statements run, and thrown away.
 *
 * It also reads ahead.  What comes in behind the answer that it waits for it drops,
 * if it is a whole message; the beginning of one stays with it, and the rest comes to
 * wire, which is out of step then and breaks the stream.  Nothing of libpq's tells
 * that something is left, so nothing is done about it here: an honest remote says
 * nothing there, and what another one says is not believed in any case.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

/* Of what libpq traces of a login: some hundred times what one takes. */
#define LOGIN_MAX (256 * 1024)

static void
drop_notice(void *arg, const PGresult *res)
{
}

void
pgpx_libpq_hush(PGconn *pg)
{
	(void) PQsetNoticeReceiver(pg, drop_notice, NULL);
}

void
pgpx_libpq_drop_notifications(PGconn *pg)
{
	PGnotify   *note;

	while ((note = PQnotifies(pg)) != NULL)
		PQfreemem(note);
}

bool
pgpx_libpq_login_is_long(PgpxWorkerConn *w)
{
	return w->trace != NULL && fflush(w->trace) == 0 &&
		w->trace_len > LOGIN_MAX;
}
