/*-------------------------------------------------------------------------
 *
 * checkout.c
 *	  How a lease begins: take a free connection, or wait for one, and make sure
 *	  that it lives.
 *
 * Order of things, and what happens when the process dies in between:
 *
 *	1. memory for the record			nothing shared yet
 *	2. pool lock: take, or draw a ticket	the exit callback finds the ticket; a
 *										connection is in the record at once
 *	3. wait on the latch				ERROR leaves the queue in PG_CATCH, FATAL
 *										in the exit callback
 *	4. the socket, and a look at it		the exit callback returns the lease
 *
 *-------------------------------------------------------------------------
 */
#include "checkout.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "utils/guc.h"

#include "guc.h"

/*
 * How long a checkout goes on after its deadline with a connection that it has
 * been given: for the hand-over of the socket, or an answer that is owed.
 */
#define GRACE_US (100 * 1000)

#define PREWARM_LOOK_US (10 * 1000) /* how often prewarm looks */

/* call > GUC > server's option */
static void
set_deadline(PgpxCheckout *c, int64 timeout)
{
	c->started = pgpx_now();
	c->no_wait = c->only_try || timeout == 0;
	if (timeout == PGPX_TIMEOUT_DEFAULT)
		timeout = pgpx_checkout_timeout >= 0 ? pgpx_checkout_timeout :
			c->target->opts.checkout_timeout;
	c->timeout = timeout;
	c->deadline = c->no_wait ? c->started :
		timeout == 0 ? 0 : c->started + timeout * 1000;
}

/* Until when a step after the grant may last. */
static PgpxTime
step_deadline(const PgpxCheckout *c)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	longest = now + c->target->opts.operation_timeout * 1000;

	if (c->deadline == 0)
		return longest;
	return Min(longest, Max(c->deadline, now) + GRACE_US);
}

/* The pool is locked, and this connection taken: make the lease of it. */
static inline void
note_lease(PgpxCheckout *c, PgpxPool *pool, PgpxConn *conn, uint64 lease_id,
		   PgpxLease *lease)
{
	lease->id = lease_id;
	lease->conn = PGPX_CONN_INDEX(conn);
	lease->generation = conn->generation;
	lease->worker = pool->worker;
	lease->user = c->holder.user;
	lease->scope = c->holder.scope;
	lease->subid = GetCurrentSubTransactionId();
	lease->target = c->target;
	pgpx_target_pin(c->target);
	dlist_push_head(&pgpx_leases, &lease->node);
}

/* Lease a free connection of the locked pool, if there is one. */
static inline PgpxConn *
take_free_locked(PgpxCheckout *c, PgpxPool *pool, uint64 *lease_id)
{
	PgpxConn   *conn = pgpx_pool_pick_locked(pool, c->target->partner,
											 c->target->partner_generation,
											 c->started);

	if (conn == NULL)
		return NULL;
	*lease_id = pgpx_pool_take_locked(pool, conn, &c->holder, c->started,
									  c->waited);
	pool->stats.hits++;
	if (conn == &pgpx_conns[Max(c->target->partner, 0)] &&
		conn->generation == c->target->partner_generation)
		pool->stats.partner_hits++;
	return conn;
}

/*
 * Take a free connection, or wait for one.  NULL only with only_try.  The lease
 * is in the session's list when this returns.
 */
static bool
take(PgpxCheckout *c, PgpxLease *lease)
{
	PgpxPool   *pool;
	PgpxConn   *conn = NULL;
	uint64		lease_id = 0;
	uint64		epoch;

again:
	pool = pgpx_checkout_lock_pool(c);
	epoch = pgpx_pool_worker_epoch(pool);

	if (pool->nwaiting == 0 || c->number != 0)
		conn = take_free_locked(c, pool, &lease_id);
	if (conn == NULL)
	{
		PgpxTicket *ticket;
		bool		moved;

		pgpx_checkout_check_locked(c, pool);
		if (pgpx_checkout_must_tell(c, pool, epoch))
		{
			uint64		version = pool->version;

			LWLockRelease(pool->lock);
			pgpx_checkout_tell(c, pool->worker, epoch, version);
			goto again;
		}
		if (c->no_wait && pool->count[PGPX_CONN_CHECKING] > 0)
		{
			/* one is being tested: that much longer than not at all */
			c->no_wait = false;
			c->deadline = c->started + GRACE_US;
		}
		if (c->no_wait)
		{
			/* nothing now; but the next one shall find something */
			pgpx_pool_grow_locked(pool, 1);
			LWLockRelease(pool->lock);
			if (c->only_try)
				return false;
			pgpx_checkout_raise_timeout(c, pool);
		}
		ticket = pgpx_ticket_draw_locked(pool, &c->holder, c->started,
										 c->deadline, c->number);
		c->number = ticket->number;
		pgpx_pool_grow_locked(pool, 0);
		if (pool->retry_at != 0 &&
			pg_atomic_read_u32(&pgpx_shared->worker[pool->worker].ticking) == 0)
			pgpx_worker_wake(pool->worker);
		LWLockRelease(pool->lock);
		conn = pgpx_checkout_wait(c, pool, ticket, &lease_id, &moved);
		if (moved)
			goto again;
		if (conn == NULL)
			return false;
		LWLockAcquire(pool->lock, LW_SHARED);
	}

	/* nothing below can fail: the lease is found by every way out */
	note_lease(c, pool, conn, lease_id, lease);
	LWLockRelease(pool->lock);
	return true;
}

typedef enum Settled
{
	SETTLED,
	SETTLED_DEAD,				/* try another one */
	SETTLED_LATE				/* no time left; given back */
} Settled;

/* Give back what settle() could not use; the record is free afterwards. */
static void
unsettle(PgpxLease *lease, PgpxGive give)
{
	PgpxKept   *kept = lease->kept;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCloseReason reason = PGPX_CLOSE_BROKEN;

	if (give == PGPX_GIVE_CLOSE && kept != NULL && conn->owed > 0)
	{
		reason = PGPX_CLOSE_RESET;

		/* it may still run over there, and would not see us go */
		if (kept->wire.phase == PGPX_WIRE_OWED && !kept->wire.eof)
			give = PGPX_GIVE_CANCEL_CLOSE;
	}
	pgpx_pool_give(conn, lease->id, PGPX_END_RETRIED, give, 0, reason,
				   &lease->usage);
	pgpx_lease_forget(lease);
	if (kept != NULL && give != PGPX_GIVE_AS_IT_WAS)
		pgpx_kept_drop(kept);
}

/*
 * Look at the stream: read an owed answer; or see that nothing has come in but
 * what may come at any time.
 */
static Settled
look(PgpxLease *lease, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxWire   *wire = &lease->kept->wire;
	bool		full;

	for (;;)
	{
		PgpxWireMessage msg;
		ssize_t		n = pgpx_wire_fill(wire, &full);
		PgpxWireEvent event;

		if (n < 0)
			return SETTLED_DEAD;
		do
			event = pgpx_wire_next(wire, &msg);
		while (event == PGPX_EV_NOTICE || event == PGPX_EV_NOTIFICATION);

		if (event == PGPX_EV_READY)
		{
			if (pgpx_wire_at_boundary(wire))
				return SETTLED;
			continue;
		}
		if (event != PGPX_EV_NEED_INPUT)
			return SETTLED_DEAD;
		if (wire->phase == PGPX_WIRE_IDLE)
		{
			if (n > 0 && full)
				continue;
			return pgpx_wire_at_boundary(wire) ? SETTLED : SETTLED_DEAD;
		}
		if (n == 0 &&
			!pgpx_session_wait(lease->kept, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_event, "PgpoolReset")))
			return SETTLED_LATE;
	}
}

/* With reset on_transfer: does the session before differ from this one? */
static bool
is_transfer(const PgpxLease *lease, const PgpxConn *conn)
{
	return lease->target->opts.reset == PGPX_RESET_ON_TRANSFER && conn->dirty &&
		(conn->last_pid != MyProcPid ||
		 conn->last_procno != (int) MyProcNumber ||
		 conn->last_user != lease->user);
}

/* Has the checkout's own time run out, and not only that of one step? */
static bool
is_late(const PgpxCheckout *c)
{
	return c->deadline != 0 && pgpx_now() >= c->deadline;
}

/*
 * Fetch the socket and see that it lives.  *touched tells that the stream may
 * have been read or written, so that nobody else can take it as it was.
 */
static Settled
settle_in(PgpxCheckout *c, PgpxLease *lease, volatile bool *touched)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxTime	deadline = 0;
	PgpxWire   *wire;
	Settled		settled;

	lease->kept = pgpx_kept_find(lease->conn, lease->generation);
	if (lease->kept == NULL)
	{
		PgpxFetch	fetch;

		deadline = step_deadline(c);
		fetch = pgpx_kept_fetch(lease->target->pool, lease->conn,
								lease->generation,
								lease->id, deadline, &lease->kept);
		if (fetch == PGPX_FETCH_GONE ||
			(fetch == PGPX_FETCH_TIMEOUT && !is_late(c)))
			return SETTLED_DEAD;
		if (fetch == PGPX_FETCH_TIMEOUT)
			return SETTLED_LATE;
	}

	lease->kept->leased = true;
	wire = &lease->kept->wire;
	*touched = true;
	pgpx_wire_begin(wire, conn->owed);
	if (conn->owed > 0 && deadline == 0)
		deadline = step_deadline(c);
	settled = look(lease, deadline);
	if (settled == SETTLED_LATE && !is_late(c))
		return SETTLED_DEAD;	/* the reset took longer than operation_timeout */
	if (settled == SETTLED_LATE && wire->bytes_in == 0)
		*touched = false;
	if (settled != SETTLED || !is_transfer(lease, conn))
		return settled;

	deadline = step_deadline(c);
	lease->usage.resets++;
	pgpx_wire_send_reset(wire, lease->target->reset_command,
						 lease->target->start_commands);
	if (!pgpx_lease_flush(lease, deadline))
		return SETTLED_DEAD;
	settled = look(lease, deadline);
	pgpx_wire_begin(wire, 0);
	if (settled == SETTLED_LATE && !is_late(c))
		return SETTLED_DEAD;
	return settled;
}

/*
 * The common case, in which nothing can be thrown: a socket that is here, owed
 * nothing, with nothing in it.  One recv().
 */
static bool
settle_quickly(PgpxLease *lease)
{
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxKept   *kept;
	bool		full;

	if (conn->owed > 0 || conn->dirty)
		return false;
	kept = pgpx_kept_find(lease->conn, lease->generation);
	if (kept == NULL)
		return false;
	lease->kept = kept;
	kept->leased = true;
	pgpx_wire_begin(&kept->wire, 0);
	if (pgpx_kept_quiet(kept))
		return kept->wire.in_start == kept->wire.in_end;
	return kept->wire.in != NULL && pgpx_wire_fill(&kept->wire, &full) == 0;
}

static Settled
settle(PgpxCheckout *c, PgpxLease *lease)
{
	volatile bool touched = false;
	Settled		settled;

	PG_TRY();
	{
		settled = settle_in(c, lease, &touched);
	}
	PG_CATCH();
	{
		unsettle(lease, touched ? PGPX_GIVE_CLOSE : PGPX_GIVE_AS_IT_WAS);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (settled == SETTLED_DEAD || (settled == SETTLED_LATE && touched))
		unsettle(lease, PGPX_GIVE_CLOSE);
	else if (settled == SETTLED_LATE)
		unsettle(lease, PGPX_GIVE_AS_IT_WAS);
	return settled;
}

static void
log_wait(const PgpxCheckout *c)
{
	if (pgpx_log_min_wait < 0 || c->waited == 0 ||
		c->waited < (PgpxTime) pgpx_log_min_wait * 1000)
		return;
	ereport(LOG,
			(errmsg("checkout from server \"%s\" waited for %.3f ms",
					NameStr(c->target->server_name), c->waited / 1000.0)));
}

/*
 * Take and settle until one lives.  NULL only with only_try.  *spare is a record
 * that is not in use, for the caller to give back.
 */
static PgpxLease *
checkout(PgpxCheckout *c, PgpxLease *taken, PgpxLease *volatile *spare)
{
	for (;;)
	{
		PgpxLease  *lease = taken;

		taken = NULL;
		if (lease == NULL)
		{
			*spare = pgpx_lease_alloc();
			if (!take(c, *spare))
				return NULL;
			lease = *spare;
			*spare = NULL;
		}
		switch (settle(c, lease))
		{
			case SETTLED:
				return lease;
			case SETTLED_LATE:
				if (c->only_try)
					return NULL;
				pgpx_checkout_raise_timeout(c, &pgpx_pools[c->target->pool]);
				break;
			case SETTLED_DEAD:
				/* it had died while idle: the next one, unseen */
				break;
		}
	}
}

/*
 * The common case: the pool is known and current, nobody waits, a connection is
 * free, and its socket is here and empty.  Throws nothing once it has the lock,
 * so it needs no try block.  NULL: do it the long way; if *unsettled is set, go
 * on with that one.
 */
static PgpxLease *
checkout_quickly(PgpxCheckout *c, PgpxLease *volatile *unsettled)
{
	PgpxTarget *target = c->target;
	PgpxLease  *lease = pgpx_lease_alloc();
	PgpxConn   *conn = NULL;
	PgpxPool   *pool;
	uint64		lease_id = 0;

	pool = pgpx_pool_lock(target->pool, target->pool_id);
	if (pool != NULL)
	{
		if (pool->nwaiting == 0 &&
			pgpx_pool_is_current_locked(pool, &target->fingerprint))
			conn = take_free_locked(c, pool, &lease_id);
		if (conn != NULL)
			note_lease(c, pool, conn, lease_id, lease);
		LWLockRelease(pool->lock);
	}
	if (conn == NULL)
	{
		pgpx_lease_forget(lease);
		return NULL;
	}
	if (settle_quickly(lease))
		return lease;
	*unsettled = lease;
	return NULL;
}

PgpxLease *
pgpx_lease_checkout(const char *server, int64 timeout, bool only_try,
					PgpxScope scope, const char *why)
{
	PgpxCheckout c;
	PgpxLease *volatile lease = NULL;
	PgpxLease *volatile spare = NULL;
	PgpxLease *volatile taken = NULL;

	pgpx_shmem_require();
	pgpx_lease_register_callbacks();

	/* by hand: clearing it as a whole is a slow instruction */
	c.number = 0;
	c.waited = 0;
	c.told_epoch = 0;
	c.told_version = 0;
	c.refreshed = false;
	c.target = pgpx_target_get(server);
	c.only_try = only_try;
	c.holder.procno = MyProcNumber;
	c.holder.pid = MyProcPid;
	c.holder.user = GetUserId();
	c.holder.database = MyDatabaseId;
	c.holder.scope = scope;
	if (why != NULL && strlen(why) >= PGPX_WHY_LEN)
		why = pnstrdup(why, pg_mbcliplen(why, strlen(why), PGPX_WHY_LEN - 1));
	c.holder.why = why;
	c.holder.application_name = application_name;
	set_deadline(&c, timeout);

	lease = checkout_quickly(&c, &taken);
	if (lease != NULL)
		return lease;

	pgpx_target_pin(c.target);
	PG_TRY();
	{
		lease = checkout(&c, taken, &spare);
	}
	PG_FINALLY();
	{
		if (spare != NULL)
			pgpx_lease_forget(spare);
		pgpx_target_unpin(c.target);
	}
	PG_END_TRY();

	if (lease != NULL)
		log_wait(&c);
	return lease;
}

/* Ask for what is missing; returns how many are open, *more: more can come. */
static int
grow_to(PgpxCheckout *c, int n, bool *more)
{
	PgpxPool   *pool = pgpx_checkout_lock_pool(c);
	uint64		epoch = pgpx_pool_worker_epoch(pool);
	uint64		version = pool->version;
	int			live;
	int			missing;
	int			connecting;

	if (pgpx_checkout_must_tell(c, pool, epoch))
	{
		int			worker = pool->worker;

		LWLockRelease(pool->lock);
		pgpx_checkout_tell(c, worker, epoch, version);
		pool = pgpx_checkout_lock_pool(c);
	}
	missing = n - pgpx_pool_total_locked(pool);
	connecting = pool->count[PGPX_CONN_CONNECTING];
	if (missing > 0)
		pgpx_pool_grow_locked(pool, missing + connecting);
	live = pgpx_pool_live_locked(pool);
	*more = live < n &&
		(pool->count[PGPX_CONN_CONNECTING] > 0 || pool->retry_at != 0);
	LWLockRelease(pool->lock);
	return live;
}

int
pgpx_lease_prewarm(const char *server, int n, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxCheckout c = {0};
	volatile int live = 0;

	pgpx_lease_register_callbacks();
	c.target = pgpx_target_get(server);
	c.deadline = deadline;
	pgpx_target_pin(c.target);
	PG_TRY();
	{
		bool		more = true;

		for (;;)
		{
			live = grow_to(&c, n, &more);
			if (!more || (deadline != 0 && pgpx_now() >= deadline))
				break;
			(void) pgpx_session_wait_latch(pgpx_now() + PREWARM_LOOK_US,
										   pgpx_wait_event(&wait_event, "PgpoolPrewarm"));
		}
	}
	PG_FINALLY();
	{
		pgpx_target_unpin(c.target);
	}
	PG_END_TRY();
	return live;
}
