/*-------------------------------------------------------------------------
 *
 * pool_give.c
 *	  A lease from the pool's side: its end.
 *
 * Shared memory only.  Whoever makes a connection free serves the queue in the
 * same lock section, see pool.c.
 *
 *-------------------------------------------------------------------------
 */
#include "pool.h"

#include "stats.h"
#include "ticket.h"

/*
 * Where a connection goes when it comes back: the closing causes first, since
 * a checkin is where lifetime, size and options are enforced.
 */
static PgpxCloseReason
retire_reason(PgpxPool *pool, PgpxConn *conn, PgpxTime now)
{
	if (pg_atomic_read_u32(&conn->hung_up) != 0 ||
		pgpx_conn_cancel_is_lost(conn))
		return PGPX_CLOSE_BROKEN;
	if (conn->version != pool->version)
		return PGPX_CLOSE_STALE;
	if (pgpx_pool_is_draining(pool))
		return PGPX_CLOSE_DRAINED;
	if (pgpx_pool_total_locked(pool) > pgpx_pool_cap_locked(pool))
		return PGPX_CLOSE_OVERFLOW;
	if (pool->opts.max_uses > 0 && conn->leases >= pool->opts.max_uses)
		return PGPX_CLOSE_USES;
	if (pgpx_pool_must_give_way_locked(pool) ||
		pgpx_pool_server_surplus_locked(pool) > 0)
		return PGPX_CLOSE_EVICTED;
	if (conn->expires_at != 0 && now >= conn->expires_at &&
		pgpx_pool_may_expire_locked(pool, now, NULL))
		return PGPX_CLOSE_LIFETIME;
	return PGPX_CLOSE_NONE;
}

/* LEASED -> what "give" says; the lease's owner is gone after it. */
static void
give_locked(PgpxPool *pool, PgpxConn *conn, uint64 lease_id, PgpxGive give,
			int owed, PgpxCloseReason reason, PgpxTime now)
{
	bool		cancelling =
		pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE;
	PgpxCloseReason retire = retire_reason(pool, conn, now);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));

	/* whom would it hit?  Only the lessee asks for one, and has not sent a reset then */
	Assert(!(cancelling && give == PGPX_GIVE_OWED));
	if (give != PGPX_GIVE_AS_IT_WAS)
	{
		conn->owed = give == PGPX_GIVE_OWED || give == PGPX_GIVE_ROLLED_BACK ?
			owed : 0;
		conn->reset_by = lease_id;
	}
	if (give == PGPX_GIVE_DIRTY || give == PGPX_GIVE_ROLLED_BACK)
		conn->dirty = true;
	else if (give == PGPX_GIVE_OWED || give == PGPX_GIVE_RESET)
		conn->dirty = false;
	if (reason == PGPX_CLOSE_RESET)
		pool->stats.resets_failed++;

	if (give == PGPX_GIVE_CLOSE)
		pgpx_pool_close_locked(pool, conn, reason);
	else if (give == PGPX_GIVE_CANCEL_CLOSE)
	{
		/* CANCELLING with a reason: close when the cancel has been delivered */
		conn->close_reason = reason;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, now);
		if (!cancelling)
			pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_ASKED);
		pgpx_conn_ask_worker(conn, pool->worker);
	}
	else if (retire != PGPX_CLOSE_NONE)
		pgpx_pool_close_locked(pool, conn, retire);
	else if (give == PGPX_GIVE_CANCEL || cancelling)
	{
		conn->close_reason = PGPX_CLOSE_NONE;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, now);
		pgpx_conn_ask_worker(conn, pool->worker);
	}
	else if (give == PGPX_GIVE_RESET)
	{
		pool->stats.resets++;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_RESETTING, now);
		pgpx_conn_ask_worker(conn, pool->worker);
	}
	else if (conn->owed > 0)
	{
		pgpx_conn_set_state(pool, conn, PGPX_CONN_OWED, now);
		/* the worker reads the answer in a moment, if nobody else has */
		pgpx_worker_wake_soon(pool->worker);
	}
	else
		pgpx_conn_set_state(pool, conn, PGPX_CONN_IDLE, now);
}

/* Who has not touched it is not the one whose session it holds. */
static void
note_lessee(PgpxConn *conn)
{
	conn->last_procno = conn->owner_procno;
	conn->last_pid = conn->owner_pid;
	conn->last_user = conn->owner_user;
}

void
pgpx_pool_forget_lessee(int procno, int pid)
{
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];
		PgpxPool   *pool;
		int			index = conn->pool;

		/* only the process itself can become the last lessee meanwhile */
		if (index < 0 || conn->last_pid != pid || conn->last_procno != procno)
			continue;
		pool = &pgpx_pools[index];
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		if (conn->pool == index && conn->last_pid == pid &&
			conn->last_procno == procno)
			conn->last_procno = -1;
		LWLockRelease(pool->lock);
	}
}

/*
 * Lock the pool of a lease; NULL, without the lock, if it was revoked: then its
 * id is gone, or the pool is damaged, and the worker revokes all its leases.  The pool of a leased connection cannot change under its lessee.
 */
static PgpxPool *
lock_lease(PgpxConn *conn, uint64 lease_id)
{
	PgpxPool   *pool;
	int			index;

	if (pg_atomic_read_u64(&conn->lease_id) != lease_id)
		return NULL;
	index = conn->pool;
	if (index < 0)
		return NULL;
	pool = &pgpx_pools[index];
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (conn->pool == index && !pool->damaged &&
		pg_atomic_read_u64(&conn->lease_id) == lease_id)
		return pool;
	LWLockRelease(pool->lock);
	return NULL;
}

bool
pgpx_pool_give(PgpxConn *conn, uint64 lease_id, PgpxEnd end, PgpxGive give,
			   int owed, PgpxCloseReason reason, const PgpxUsage *usage)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxPool   *pool;

	pool = lock_lease(conn, lease_id);
	if (pool == NULL)
		return false;
	conn->last_used = pgpx_now();
	if (give != PGPX_GIVE_AS_IT_WAS)
		note_lessee(conn);
	pgpx_stats_lease_locked(pool, conn->last_used - conn->leased_at, end,
							usage);

	give_locked(pool, conn, lease_id, give, owed, reason, conn->last_used);
	pgpx_pool_serve_locked(pool, &wake);
	LWLockRelease(pool->lock);
	pgpx_wake_flush(&wake);
	return true;
}

bool
pgpx_pool_carry(PgpxConn *conn, uint64 lease_id,
				const PgpxFingerprint *fingerprint, bool reset,
				const PgpxUsage *usage, PgpxCarry *carry)
{
	PgpxWake	wake = PGPX_WAKE_INIT;
	PgpxPool   *pool = lock_lease(conn, lease_id);
	PgpxTicket *first;

	if (pool == NULL)
		return false;
	first = pool->queue_head >= 0 ? &pgpx_tickets[pool->queue_head] : NULL;
	if (first == NULL ||
		pgpx_ticket_offer_state(first) != PGPX_OFFER_OPEN ||
		first->options_version != pool->options_version ||
		!pgpx_pool_is_current_locked(pool, fingerprint) ||
		pgpx_pool_is_paused(pool) ||
		pg_atomic_read_u32(&conn->cancel) != PGPX_CANCEL_NONE ||
		retire_reason(pool, conn, pgpx_now()) != PGPX_CLOSE_NONE)
	{
		LWLockRelease(pool->lock);
		return false;
	}

	conn->last_used = pgpx_now();
	note_lessee(conn);
	if (!pgpx_conn_set_state(pool, conn, PGPX_CONN_IDLE, conn->last_used))
	{
		LWLockRelease(pool->lock);
		return false;
	}
	pgpx_stats_lease_locked(pool, conn->last_used - conn->leased_at,
							PGPX_END_CHECKIN, usage);
	conn->owed = 0;
	conn->reset_by = lease_id;
	conn->dirty = !reset;
	first->offer_reset = reset;
	carry->ticket = first;
	carry->offer = PGPX_OFFER_WITH(pg_atomic_read_u32(&first->offer),
								   PGPX_OFFER_SENDING);
	carry->len = first->offer_len;
	memcpy(carry->messages, PGPX_OFFER_OF(first), carry->len);
	pg_atomic_write_u32(&first->offer, carry->offer);
	(void) pgpx_ticket_grant_locked(pool, first, conn, &wake);
	carry->lease_id = first->lease_id;
	pgpx_conn_do(conn, first->lease_id, PGPX_ACT_ACTIVE, false);
	if (conn->relayed)
		pgpx_conn_let_sleep_locked(conn, PGPX_TICKET_INDEX(first));
	LWLockRelease(pool->lock);

	/* its owner is not woken: the caller does that, once it is sent */
	return true;
}

void
pgpx_pool_revoke_locked(PgpxPool *pool, PgpxConn *conn, PgpxRevoke revoke,
						PgpxWake *wake)
{
	static const PgpxEnd ends[] = {
		[PGPX_REVOKE_WORKER] = PGPX_END_RECLAIMED,
		[PGPX_REVOKE_TERMINATED] = PGPX_END_TERMINATED,
		[PGPX_REVOKE_TIMEOUT] = PGPX_END_TIMEOUT,
	};
	int			owner = conn->owner_procno;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->damaged)
		return;					/* its worker is about to revoke all */
	Assert(conn->state == PGPX_CONN_LEASED && revoke != PGPX_REVOKE_NONE);

	pgpx_stats_lease_locked(pool, pgpx_now() - conn->leased_at, ends[revoke],
							NULL);
	if (owner >= 0)
		pgpx_ticket_note_revoked(owner, pg_atomic_read_u64(&conn->lease_id),
								 revoke);
	if (revoke == PGPX_REVOKE_WORKER)
		pgpx_pool_close_locked(pool, conn, PGPX_CLOSE_BROKEN);
	else
	{
		PgpxActivity activity = pgpx_conn_activity(conn);

		/* shut down at once; its place is free when the remote is at rest */
		conn->close_reason = PGPX_CLOSE_TERMINATED;
		pgpx_conn_set_state(pool, conn, PGPX_CONN_CANCELLING, pgpx_now());
		if ((activity == PGPX_ACT_ACTIVE || activity == PGPX_ACT_CANCELLING) &&
			pg_atomic_read_u32(&conn->cancel) == PGPX_CANCEL_NONE)
			pg_atomic_write_u32(&conn->cancel, PGPX_CANCEL_ASKED);
		pgpx_conn_ask_worker(conn, pool->worker);
	}
	if (owner >= 0)
		pgpx_wake_add(wake, owner);
}
