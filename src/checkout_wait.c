/*-------------------------------------------------------------------------
 *
 * checkout_wait.c
 *	  The middle of a checkout: which pool, who tells the worker how to connect,
 *	  and the wait for one's turn.
 *
 * Runs in sessions only.  No lock is held while it waits; every way out of the
 * wait leaves the queue through pgpx_ticket_leave.
 *
 *-------------------------------------------------------------------------
 */
#include "checkout.h"

#include "commands/dbcommands.h"
#include "utils/inval.h"

#include "ddl.h"
#include "handoff.h"
#include "session_wait.h"

#define MOST_READS 10			/* of catalogs that change each time */

bool
pgpx_checkout_refresh(PgpxCheckout *c)
{
	PgpxTarget *old = c->target;
	PgpxTarget *fresh;
	NameData	name = old->server_name;
	PgpxPoolKey key = old->key;
	bool		same;

	old->valid = false;
	fresh = pgpx_target_get(NameStr(name));
	pgpx_target_pin(fresh);
	same = memcmp(&key, &fresh->key, sizeof(key)) == 0;
	if (same && fresh->pool < 0)
	{
		/* the old one was pushed out of the cache */
		fresh->pool = old->pool;
		fresh->pool_id = old->pool_id;
	}
	pgpx_target_unpin(old);
	c->target = fresh;
	if (same)
		return true;
	c->number = 0;
	c->told_epoch = 0;
	c->told_version = 0;
	return false;
}

/*
 * A lease of a transaction's own pool may outlive it, and keeps that pool's place.
 * Who changes something in each transaction, as one may who has a user mapping, would
 * get another pool each time, with a pool_size of its own.
 */
static void
refuse_another_own_pool(const PgpxTarget *target)
{
	dlist_iter	iter;

	if (!TransactionIdIsValid(target->key.xid))
		return;
	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);
		const PgpxPoolKey *key = &lease->target->key;

		if (TransactionIdIsValid(key->xid) && key->xid != target->key.xid &&
			key->database == target->key.database &&
			key->server == target->key.server)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("options of server \"%s\" were changed in this transaction",
							NameStr(target->server_name)),
					 errdetail("Lease " INT64_FORMAT " is from another transaction of this session that had changed them.",
							   (int64) lease->id),
					 errhint("Return that lease first, or commit.")));
	}
}

PgpxPool *
pgpx_checkout_lock_pool(PgpxCheckout *c)
{
	uint64		read_at = 0;	/* the options' version before we read ours anew */

	for (;;)
	{
		PgpxTarget *target;
		PgpxPool   *pool;

		/*
		 * What was changed, dropped or revoked since we have read it is not ours;
		 * and what was changed while we read it may be half old and half new.
		 */
		AcceptInvalidationMessages();
		for (int i = 0; i < MOST_READS && !c->target->valid; i++)
			if (!pgpx_checkout_refresh(c))
				read_at = 0;
		target = c->target;

		pool = pgpx_pool_lock(target->pool, target->pool_id);
		if (pool == NULL)
		{
			PgpxPoolRef ref = {
				.key = target->key,
				.fingerprint = target->fingerprint,
				.opts = &target->opts,
				.database_name = get_database_name(MyDatabaseId),
				.server_name = NameStr(target->server_name),
				.user = target->user,
				.user_name = NameStr(target->user_name),
			};

			uint32		pool_id;
			int			index;

			refuse_another_own_pool(target);
			if (TransactionIdIsValid(target->key.xid))
				pgpx_ddl_note_own_pool();
			index = pgpx_pool_find(&ref, &pool_id);

			/* what was read, drawn and told was for the former pool */
			read_at = 0;
			c->number = 0;
			c->told_epoch = 0;
			c->told_version = 0;
			if (index < 0)
				ereport(ERROR,
						(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
						 errmsg("too many pools"),
						 errdetail("All %d places are in use.", pgpx_shared->max_pools),
						 errhint("Raise \"pgpool_ext.max_pools\". A server whose PUBLIC user mapping does not name the remote user has one pool for each local user.")));

			/* (leases may have the target, too: never -1 in it) */
			target->pool = index;
			target->pool_id = pool_id;
			continue;
		}
		if (pgpx_pool_is_current_locked(pool, &target->fingerprint))
			return pool;
		if (read_at == pool->options_version)
		{
			pgpx_pool_adopt_locked(pool, NameStr(target->server_name),
								   NameStr(target->user_name),
								   &target->fingerprint, &target->opts);
			return pool;
		}

		/*
		 * Our options differ from those of the pool.  The ones read last are
		 * right, so look once more before we say so; and once more if somebody has
		 * changed the pool meanwhile.
		 */
		read_at = pool->options_version;
		LWLockRelease(pool->lock);
		if (!pgpx_checkout_refresh(c))
			read_at = 0;
	}
}

void
pgpx_checkout_tell(PgpxCheckout *c, int worker, uint64 epoch, uint64 version)
{
	PgpxTarget *target = c->target;
	PgpxConninfo conninfo = {
		.version = version,
		.need_password = target->need_password,
		.start_commands = target->start_commands,
		.reset_command = target->reset_command,
		.nparams = target->nparams,
		.keywords = target->keywords,
		.values = target->values,
	};

	for (;;)
	{
		int			sent = pgpx_handoff_send_conninfo(worker, epoch,
													  target->pool,
													  target->pool_id,
													  &conninfo);

		if (sent > 0)
			break;
		if (sent < 0)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("options of server \"%s\" are too long",
							NameStr(target->server_name)),
					 errdetail("All options together may have %d bytes.",
							   PGPX_MESSAGE_MAX)));
		if (!pgpx_session_wait_control(worker, c->deadline))
			break;
	}
	c->told_epoch = epoch;
	c->told_version = version;
}

bool
pgpx_checkout_must_tell(const PgpxCheckout *c, const PgpxPool *pool,
						uint64 epoch)
{
	if (epoch == 0)
		return false;			/* no worker; the next one wakes who waits */
	if (pool->conninfo_epoch == epoch &&
		pool->conninfo_version >= pool->connect_version)
		return false;
	return c->told_epoch != epoch || c->told_version < pool->connect_version;
}

/*
 * While we wait there is a new worker, or there are new options: tell the worker
 * and ask for connections again.  Only those whose options are the pool's may
 * tell them.  False: this is no longer the pool to wait for.
 */
static bool
tell_again(PgpxCheckout *c, PgpxPool *pool, uint64 epoch)
{
	bool		current = false;
	bool		unread = false;
	uint64		version = 0;
	uint64		read_at = 0;	/* as above */

	PGPX_DEBUG_POINT("tells");
	for (int attempt = 0; !current && (attempt < 2 || unread); attempt++)
	{
		if (attempt > 0 && !pgpx_checkout_refresh(c))
			return false;
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		unread = pgpx_pool_needs_options_locked(pool);
		if (unread && read_at == pool->options_version)
			pgpx_pool_adopt_locked(pool, NameStr(c->target->server_name),
								   NameStr(c->target->user_name),
								   &c->target->fingerprint, &c->target->opts);
		read_at = pool->options_version;
		version = pool->version;
		current = pgpx_pool_is_current_locked(pool, &c->target->fingerprint);
		pgpx_ticket_mine()->options_version =
			current ? pool->options_version : 0;
		LWLockRelease(pool->lock);
	}

	/* if it still is not, whoever has set the new options tells them */
	c->told_epoch = epoch;
	c->told_version = version;
	if (!current)
		return true;
	pgpx_checkout_tell(c, pool->worker, epoch, version);
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pgpx_pool_grow_locked(pool, 0);
	LWLockRelease(pool->lock);
	return true;
}

bool
pgpx_checkout_leave(PgpxTicket *ticket)
{
	PgpxConn   *conn;
	uint64		lease_id;
	int			sqlstate;
	PgpxTime	waited;

	return pgpx_ticket_leave(ticket, PGPX_LEAVE_CANCEL, &conn, &lease_id,
							 &sqlstate, NULL, &waited) == PGPX_TICKET_GRANTED &&
		(pgpx_ticket_offered() == PGPX_OFFER_SENT ||
		 pgpx_ticket_offered() == PGPX_OFFER_ABANDONED);
}

/* Nothing has come of the ticket, or its statement is just being sent. */
static bool
stands(const volatile PgpxTicket *ticket)
{
	return ticket->state == PGPX_TICKET_WAITING ||
		pgpx_ticket_offered() == PGPX_OFFER_SENDING;
}

PgpxConn *
pgpx_checkout_wait(PgpxCheckout *c, PgpxPool *pool, PgpxTicket *ticket,
				   uint64 *lease_id, bool *moved)
{
	static uint32 wait_event = 0;
	PgpxTicketState was;
	PgpxConn   *conn = NULL;
	int			sqlstate = 0;
	char		text[PGPX_ERROR_LEN];
	volatile bool in_time = true;

	*moved = false;
	PG_TRY();
	{
		while (stands(ticket) && in_time && !*moved)
		{
			uint64		epoch = pgpx_pool_worker_epoch(pool);

			if (pgpx_checkout_must_tell(c, pool, epoch))
				*moved = !tell_again(c, pool, epoch);
			else
				in_time = pgpx_session_wait_worker(pool->worker, c->deadline,
												   pgpx_wait_event(&wait_event, "PgpoolCheckout"));
		}
	}
	PG_CATCH();
	{
		PGPX_DEBUG_POINT("cancelled");
		(void) pgpx_checkout_leave(ticket);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (*moved)
	{
		/* it must not run twice */
		if (pgpx_checkout_leave(ticket))
			pgpx_checkout_raise_lost(c);
		return NULL;
	}
	if (!in_time)
		PGPX_DEBUG_POINT("timed_out");
	was = pgpx_ticket_leave(ticket,
		in_time ? PGPX_LEAVE_CLAIM : PGPX_LEAVE_TIMEOUT,
							&conn, lease_id, &sqlstate, text, &c->waited);
	if (was == PGPX_TICKET_GRANTED && conn == NULL)
		pgpx_checkout_raise_lost(c);
	if (was == PGPX_TICKET_FAILED)
		pgpx_checkout_raise_unreachable(c, sqlstate, text, 0);
	if (was != PGPX_TICKET_GRANTED && c->only_try)
		return NULL;
	if (was != PGPX_TICKET_GRANTED)
		pgpx_checkout_raise_timeout(c, pool, false);
	return conn;
}
