/*-------------------------------------------------------------------------
 *
 * checkout.c
 *	  Checkout: its steps, from the server's name to a lease.
 *
 * Runs in sessions only.  Order of the steps, and the cleanup if the process
 * exits in a step:
 *
 *	1. allocate the lease record		nothing is shared yet
 *	2. under the pool lock: lease a		the exit callback finds the lease in the
 *	   connection, or enqueue			session's list, or the waiter
 *	3. wait on the latch				PG_CATCH leaves the queue on an ERROR,
 *										the exit callback at FATAL
 *	4. fetch the socket and validate	the exit callback returns the lease
 *
 * See checkout_pool.c for finding the pool and publishing its conninfo,
 * checkout_wait.c for step 3 and the errors, and checkout_validate.c for
 * step 4.
 *
 *-------------------------------------------------------------------------
 */
#include "session/checkout.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "utils/guc.h"

#include "shared/pool_worker.h"
#include "shared/registry.h"
#include "session/checkout_validate.h"
#include "session/checkout_wait.h"
#include "session/lease_return.h"
#include "session/lease_scope.h"

#define PREWARM_CHECK_US (10 * 1000) /* poll interval of prewarm */

int64
pgpx_lease_timeout(const PgpxServerSpec *spec, int64 timeout)
{
	if (timeout != PGPX_TIMEOUT_DEFAULT)
		return timeout;
	return pgpx_checkout_timeout >= 0 ? pgpx_checkout_timeout :
		spec->opts.checkout_timeout;
}

static void
set_deadline(PgpxCheckout *c, int64 timeout)
{
	c->started = pgpx_now();
	c->no_wait = c->only_try;
	timeout = pgpx_lease_timeout(c->spec, timeout);
	c->timeout = timeout;
	c->deadline = c->no_wait ? c->started :
		timeout == 0 ? 0 : c->started + timeout * 1000;
}

/*
 * Make the lease record of a connection that was just leased, and add it to the
 * session's list.  Cannot fail.  The pool is locked unless the connection was
 * granted.
 */
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
	lease->spec = c->spec;
	lease->queue_position = c->position;
	lease->deadline = c->deadline;
	pgpx_server_spec_pin(c->spec);
	dlist_push_head(&pgpx_leases, &lease->node);
}

/*
 * Check without the lock whether the pool has waiters.  A stale answer only
 * means taking the slower path.
 */
static inline bool
has_waiters(const PgpxServerSpec *spec)
{
	return spec->pool >= 0 &&
		((const volatile PgpxPool *) &pgpx_pools[spec->pool])->nwaiting > 0;
}

/*
 * Lease a free connection of the locked pool.  Returns NULL if there is none.
 */
static inline PgpxConn *
pick_and_lease_locked(PgpxCheckout *c, PgpxPool *pool, PgpxTime now,
					  uint64 *lease_id)
{
	PgpxConn   *conn = pgpx_pool_pick_locked(pool, c->spec->last_conn,
											 c->spec->last_conn_generation,
											 c->started, now);

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (conn == NULL)
		return NULL;

	/* c->waited is not 0 if an earlier granted connection proved dead */
	*lease_id = pgpx_pool_lease_locked(pool, conn, &c->holder, now, c->waited);
	if (*lease_id == 0)
		return NULL;
	pool->stats.hits++;
	if (conn == &pgpx_conns[Max(c->spec->last_conn, 0)] &&
		conn->generation == c->spec->last_conn_generation)
		pool->stats.last_used_hits++;
	return conn;
}

/*
 * Lease a free connection of the locked pool and record the lease, unless
 * waiters are ahead of this checkout.  Returns false if none was leased.
 */
static bool
lease_free_locked(PgpxCheckout *c, PgpxPool *pool, PgpxLease *lease)
{
	PgpxConn   *conn = NULL;
	uint64		lease_id = 0;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->nwaiting == 0 || c->position != 0)
		conn = pick_and_lease_locked(c, pool, pgpx_now(), &lease_id);
	if (conn == NULL)
		return false;
	note_lease(c, pool, conn, lease_id, lease);
	return true;
}

/*
 * Prepare the statement for a pipelined hand-over.  To be called without the
 * lock, because it allocates memory.
 */
static void
prepare_pending(PgpxCheckout *c)
{
	c->prepared = true;
	pgpx_hand_over_prepare(c->spec, c->pending);
}

/*
 * Withdraw the prepared statement: it must not be sent for a later waiter of
 * this session.
 */
static void
withdraw_pending(PgpxCheckout *c)
{
	if (c->prepared)
		pgpx_pending_statement_set(NULL, 0);
	c->prepared = false;
}

/*
 * No connection is free, and the checkout must not wait.  Request one for a
 * later checkout.  The pool is locked; releases the lock.
 */
static void
leave_without_wait(PgpxPool *pool)
{
	pgpx_pool_grow_locked(pool, 1);
	LWLockRelease(pool->lock);
}

/* Enqueue this session in the locked pool, and request connections. */
static PgpxWaiter *
enqueue_locked(PgpxCheckout *c, PgpxPool *pool)
{
	PgpxWaiter *waiter;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	waiter = pgpx_waiter_enqueue_locked(pool, &c->holder, c->started,
										c->deadline, c->position);
	c->position = waiter->position;
	pgpx_pool_grow_locked(pool, 0);
	if (pool->retry_at != 0)
		pgpx_worker_wake_soon(pool->worker);
	return waiter;
}

typedef enum Attempt
{
	ATTEMPT_LEASED,				/* the lease is in the session's list */
	ATTEMPT_NONE,				/* only_try: no connection is free */
	ATTEMPT_AGAIN				/* the pool may be another one by now */
} Attempt;

/*
 * Wait until the waiter is granted a connection, and record the lease.  To be
 * called without a lock.
 */
static Attempt
wait_for_grant(PgpxCheckout *c, PgpxPool *pool, PgpxWaiter *waiter,
			   PgpxLease *lease)
{
	PgpxConn   *conn;
	uint64		lease_id;
	bool		pool_changed;

	conn = pgpx_checkout_wait(c, pool, waiter, &lease_id, &pool_changed);
	if (pool_changed)
	{
		/* the pending statement was for the waiter that has left */
		withdraw_pending(c);
		return ATTEMPT_AGAIN;
	}
	if (conn == NULL)
		return ATTEMPT_NONE;
	lease->pending_state = pgpx_pending_statement_state();

	/* nothing below can fail, and every cleanup finds the lease */
	note_lease(c, pool, conn, lease_id, lease);

	/*
	 * Check whether the options changed during the wait.  Any change made
	 * before the grant is visible here, because leaving the queue acquired the
	 * lock.  A later change may be missed: it could equally have happened
	 * after the checkout.
	 */
	c->stale = waiter->granted_version != waiter->options_version ||
		pool->options_version != waiter->options_version;
	return ATTEMPT_LEASED;
}

/*
 * Attempt to lease a connection: a free one, or one that is granted after a
 * wait.  Acquires the pool lock, and releases it before a wait, an error or the
 * return.
 */
static Attempt
attempt(PgpxCheckout *c, PgpxLease *lease)
{
	PgpxPool   *pool = pgpx_checkout_lock_pool(c);
	PgpxWaiter *waiter;

	if (lease_free_locked(c, pool, lease))
	{
		LWLockRelease(pool->lock);
		withdraw_pending(c);	/* it is not needed */
		return ATTEMPT_LEASED;
	}
	pgpx_checkout_check_locked(c, pool);
	if (pgpx_checkout_publish_if_missing(c, pool))
		return ATTEMPT_AGAIN;
	if (c->no_wait && pool->count[PGPX_CONN_CHECKING] > 0)
	{
		/* a test is running: wait as long as the grace period allows */
		c->no_wait = false;
		c->deadline = c->started + PGPX_CHECKOUT_GRACE_US;
	}
	if (c->no_wait)
	{
		leave_without_wait(pool);
		return ATTEMPT_NONE;
	}
	if (c->pending != NULL && !c->prepared)
	{
		LWLockRelease(pool->lock);
		prepare_pending(c);
		return ATTEMPT_AGAIN;
	}
	waiter = enqueue_locked(c, pool);
	LWLockRelease(pool->lock);
	return wait_for_grant(c, pool, waiter, lease);
}

/*
 * Lease a free connection, or wait for one.  Returns false only with only_try.
 * Otherwise the lease is in the session's list on return.
 */
static bool
lease_or_wait(PgpxCheckout *c, PgpxLease *lease)
{
	Attempt		outcome;

	pgpx_pending_statement_set(NULL, 0);
	c->prepared = false;
	if (c->pending != NULL && !c->no_wait && has_waiters(c->spec))
		prepare_pending(c);		/* saves an attempt */
	do
		outcome = attempt(c, lease);
	while (outcome == ATTEMPT_AGAIN);
	return outcome == ATTEMPT_LEASED;
}

static void
log_wait(const PgpxCheckout *c)
{
	if (pgpx_log_min_wait < 0 || c->waited == 0 ||
		c->waited < (PgpxTime) pgpx_log_min_wait * 1000)
		return;
	ereport(LOG,
			(errmsg("checkout from server \"%s\" waited for %.3f ms",
					NameStr(c->spec->server_name), c->waited / 1000.0)));
}

/*
 * Lease connections and validate them until one is alive.  Returns NULL only
 * with only_try.
 *
 * unvalidated: a lease to validate first; NULL: none.  *spare is the allocated
 * record that is not in the session's list yet.  If it is not NULL on return or
 * after an error, the caller must free it.
 */
static PgpxLease *
checkout(PgpxCheckout *c, PgpxLease *unvalidated, PgpxLease *volatile *spare)
{
	for (;;)
	{
		PgpxLease  *lease = unvalidated;
		PgpxValidation validation;

		unvalidated = NULL;
		if (lease == NULL)
		{
			*spare = pgpx_lease_alloc();
			if (!lease_or_wait(c, *spare))
				return NULL;
			lease = *spare;
			*spare = NULL;
		}
		validation = pgpx_checkout_validate(c, lease);
		c->stale = false;
		switch (validation)
		{
			case PGPX_VALIDATION_OK:
				return lease;
			case PGPX_VALIDATION_LATE:
				if (c->only_try)
					return NULL;
				pgpx_checkout_raise_timeout(c, &pgpx_pools[c->spec->pool],
											true);
				break;
			case PGPX_VALIDATION_DEAD:
				/* dead, or made with other options: try another one */
				break;
		}
	}
}

/*
 * The common case: the pool is known and current and has no waiters, a
 * connection is free, and its socket is cached and has no input.  Throws
 * nothing once it has the lock, so it needs no PG_TRY block.  Returns NULL if
 * the caller must take the slow path.  If *unvalidated is set then, the slow
 * path must validate that lease.
 */
static PgpxLease *
checkout_quickly(PgpxCheckout *c, PgpxLease *volatile *unvalidated)
{
	PgpxServerSpec *spec = c->spec;
	PgpxLease  *lease;
	PgpxConn   *conn = NULL;
	PgpxPool   *pool;
	uint64		lease_id = 0;

	if (has_waiters(spec))
		return NULL;
	lease = pgpx_lease_alloc();
	pool = pgpx_pool_lock(spec->pool, spec->pool_id);
	if (pool != NULL)
	{
		if (pool->nwaiting == 0 &&
			pgpx_pool_is_current_locked(pool, &spec->fingerprint))
			conn = pick_and_lease_locked(c, pool, c->started, &lease_id);
		if (conn != NULL)
			note_lease(c, pool, conn, lease_id, lease);
		LWLockRelease(pool->lock);
	}
	if (conn == NULL)
	{
		pgpx_lease_forget(lease);
		return NULL;
	}
	if (pgpx_checkout_validate_quickly(lease))
		return lease;
	*unvalidated = lease;
	return NULL;
}

static PgpxLease *
checkout_for(const char *server, Oid user, int64 timeout, bool only_try,
			 PgpxScope scope, const char *why,
			 const PgpxPendingStatement *statement,
			 const PgpxRetry *retry)
{
	PgpxCheckout c;
	PgpxLease *volatile lease = NULL;
	PgpxLease *volatile spare = NULL;
	PgpxLease *volatile unvalidated = NULL;

	pgpx_shmem_require();
	pgpx_lease_register_callbacks();

	/* assign the fields one by one: memset of the struct is slow */
	c.position = 0;
	c.waited = 0;
	c.published_incarnation = 0;
	c.published_version = 0;
	c.stale = false;
	c.spec = pgpx_server_spec_get_for(server, user,
									  scope == PGPX_SCOPE_TABLE);
	c.only_try = only_try;
	c.holder.procno = MyProcNumber;
	c.holder.pid = MyProcPid;
	c.holder.user = user;
	c.holder.database = MyDatabaseId;
	c.holder.scope = scope;
	if (why != NULL && strlen(why) >= PGPX_WHY_LEN)
		why = pnstrdup(why, pg_mbcliplen(why, strlen(why), PGPX_WHY_LEN - 1));
	c.holder.why = why;
	c.holder.application_name = application_name;
	c.pending = statement;
	set_deadline(&c, timeout);
	if (retry != NULL && retry->queue_position != 0 &&
		retry->pool_id == c.spec->pool_id)
	{
		c.position = retry->queue_position;
		c.deadline = retry->deadline;
	}

	lease = checkout_quickly(&c, &unvalidated);
	if (lease != NULL)
		return lease;

	pgpx_server_spec_pin(c.spec);
	PG_TRY();
	{
		lease = checkout(&c, unvalidated, &spare);
	}
	PG_FINALLY();
	{
		if (spare != NULL)
			pgpx_lease_forget(spare);
		pgpx_pending_statement_set(NULL, 0);
		pgpx_server_spec_unpin(c.spec);
	}
	PG_END_TRY();

	if (lease != NULL)
		log_wait(&c);
	return lease;
}

PgpxLease *
pgpx_lease_checkout(const char *server, int64 timeout, bool only_try,
					PgpxScope scope, const char *why)
{
	return checkout_for(server, GetUserId(), timeout, only_try, scope, why,
						NULL, NULL);
}

PgpxLease *
pgpx_lease_checkout_for(const char *server, const PgpxPendingStatement *pending,
						const PgpxRetry *retry)
{
	return checkout_for(server, GetUserId(), PGPX_TIMEOUT_DEFAULT, false,
						PGPX_SCOPE_CALL, NULL, pending, retry);
}

PgpxLease *
pgpx_lease_checkout_table(const char *server, Oid user, const char *why)
{
	return checkout_for(server, user, PGPX_TIMEOUT_DEFAULT, false,
						PGPX_SCOPE_TABLE, why, NULL, NULL);
}

void
pgpx_lease_retry(PgpxLease *lease, PgpxRetry *retry)
{
	retry->pool_id = lease->spec->pool_id;
	retry->queue_position = lease->queue_position;
	retry->deadline = lease->deadline;
	pgpx_lease_return(lease, PGPX_END_RETRIED, true);
}

void
pgpx_lease_for_call(const char *server,
					void (*work)(PgpxLease *lease, void *arg), void *arg)
{
	PgpxLease  *lease = pgpx_lease_checkout(server, PGPX_TIMEOUT_DEFAULT, false,
											PGPX_SCOPE_CALL, NULL);

	PG_TRY();
	{
		work(lease, arg);
	}
	PG_CATCH();
	{
		pgpx_lease_return(lease, PGPX_END_CHECKIN, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	pgpx_lease_return(lease, PGPX_END_CHECKIN, true);
}

/*
 * Request the missing connections, and evict others where a cap is full.
 * Returns the number of open connections.  Sets *more if the number can still
 * grow.
 */
static int
grow_to(PgpxCheckout *c, int n, bool *more)
{
	PgpxCap    *full = NULL;
	PgpxPool   *pool = pgpx_checkout_lock_pool(c);
	int			live;
	int			missing;
	int			connecting;

	if (pgpx_checkout_publish_if_missing(c, pool))
		pool = pgpx_checkout_lock_pool(c);
	missing = n - pgpx_pool_total_locked(pool);
	connecting = pool->count[PGPX_CONN_CONNECTING];
	if (missing > 0)
	{
		pgpx_pool_grow_locked(pool, missing + connecting);
		missing = n - pgpx_pool_total_locked(pool);
		connecting = pool->count[PGPX_CONN_CONNECTING];
	}
	if (missing > 0 && !pgpx_pool_must_yield_locked(pool))
		full = pgpx_pool_binding_cap_locked(pool, missing + connecting);
	live = pgpx_pool_live_locked(pool);

	/* connections are being opened, or are closing and will make room */
	*more = live < n &&
		(pool->count[PGPX_CONN_CONNECTING] > 0 ||
		 pool->count[PGPX_CONN_CLOSING] > 0 || pool->retry_at != 0);
	LWLockRelease(pool->lock);
	if (full != NULL &&
		pgpx_pool_evict(c->spec->pool, full != &pgpx_shared->cap,
						PGPX_EVICT_SURPLUS))
		*more = true;
	return live;
}

int
pgpx_lease_prewarm(const char *server, int n, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxCheckout c = {0};
	volatile int live = 0;

	pgpx_lease_register_callbacks();
	c.spec = pgpx_server_spec_get(server);
	c.deadline = deadline;
	pgpx_server_spec_pin(c.spec);
	PG_TRY();
	{
		bool		more = true;

		for (;;)
		{
			live = grow_to(&c, n, &more);
			if (!more || (deadline != 0 && pgpx_now() >= deadline))
				break;
			(void) pgpx_session_wait_worker(pgpx_pools[c.spec->pool].worker,
											pgpx_now() + PREWARM_CHECK_US,
											pgpx_wait_event(&wait_event, "PgpoolPrewarm"));
		}
	}
	PG_FINALLY();
	{
		pgpx_server_spec_unpin(c.spec);
	}
	PG_END_TRY();
	return live;
}
