/*-------------------------------------------------------------------------
 *
 * fn_views_locks.c
 *	  SQL function behind the view locks: the distributed locks of this server.
 *
 *-------------------------------------------------------------------------
 */
#include "fn_views.h"

#include "dlock_session.h"

PG_FUNCTION_INFO_V1(pgpx_view_locks);

static const char *
state_name(int state)
{
	switch (state)
	{
		case PGPX_DLOCK_HELD:
			return "held";
		case PGPX_DLOCK_LOST:
			return "lost";
		default:
			return "releasing";
	}
}

/* locks() returns setof record */
Datum
pgpx_view_locks(PG_FUNCTION_ARGS)
{
	PgpxRow		row;
	PgpxDlock	lock;

	pgpx_row_begin(&row, fcinfo);
	for (int i = 0; i < pgpx_shared->max_locks; i++)
	{
		bool		visible;
		int			state;

		if (!pgpx_dlock_copy(i, &lock) || lock.state == PGPX_DLOCK_ASKED)
			continue;
		visible = pgpx_dlock_may_see(&lock);

		/* nobody may have looked at it since it ran out */
		state = lock.state == PGPX_DLOCK_HELD &&
				pgpx_steady_now() >= lock.valid_until ?
			PGPX_DLOCK_LOST : lock.state;
		pgpx_row_name(&row, NameStr(lock.database_name));
		pgpx_row_name(&row, NameStr(lock.server_name));
		pgpx_row_secret(&row, visible, lock.name);
		if (visible && lock.token != 0)
			pgpx_row_bigint(&row, lock.token);
		else
			pgpx_row_null(&row);
		pgpx_row_text(&row, state_name(state));
		pgpx_row_pid(&row, lock.owner_pid);
		pgpx_row_role(&row, lock.owner_user);
		pgpx_row_secret(&row, visible, lock.who);
		pgpx_row_secret(&row, visible, lock.why[0] ? lock.why : NULL);
		pgpx_row_instant(&row, lock.since);
		pgpx_row_instant(&row, lock.last_ping);
		pgpx_row_instant(&row, pgpx_steady_to_now(lock.valid_until));
		pgpx_row_interval(&row, lock.ttl * 1000);
		pgpx_row_store(&row);
	}
	return (Datum) 0;
}
