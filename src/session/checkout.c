/*-------------------------------------------------------------------------
 *
 * checkout.c
 *	  Checkout: its steps, from the server's name to a lease.
 *
 * Runs in sessions only.  The steps, and the cleanup after an error or at the
 * exit of the process:
 *
 * 	1. allocate the lease record		nothing is shared yet
 * 	2. under the pool lock: lease a		the exit callback finds the lease in the
 * 	   connection, or enqueue			session's list, or the waiter
 * 	3. wait on the latch				PG_CATCH leaves the queue on an ERROR,
 * 										the exit callback at FATAL
 * 	4. fetch the socket and validate	PG_FINALLY returns the lease on an ERROR,
 * 										the exit callback at FATAL
 *
 * See checkout_wait.c for finding the pool, publishing its conninfo and step 3.
 *
 *-------------------------------------------------------------------------
 */
#include "session/checkout.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "utils/guc.h"
#include "utils/inval.h"

#include "shared/registry.h"
#include "session/checkout_wait.h"
#include "session/lease.h"

/*
 * Extra time that a checkout has after its deadline once a connection was
 * granted.  It covers the transfer of the socket or the answer of a pending
 * reset.
 */
#define GRACE_US (100 * 1000)

typedef enum Validation
{
	VALIDATION_OK,
	VALIDATION_DEAD,			/* retry with another connection */
	VALIDATION_LATE				/* the deadline has passed */
} Validation;

/*
 * Return the deadline for a step after the grant.  sent: the statement is
 * already running on the connection.
 */
static PgpxTime
step_deadline(const PgpxCheckout *c, bool sent)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	longest = now + c->spec->opts.operation_timeout * 1000;

	if (c->deadline == 0 || sent)
		return longest;
	return Min(longest, Max(c->deadline, now) + GRACE_US);
}

/*
 * Free the lease record of a checkout that has failed, or whose connection
 * could not be validated, and release the connection.
 *
 * may_reuse: the connection is not known to be unusable, so it stays open if
 * its stream was not touched.
 */
static void
drop_lease(PgpxCheckout *c, bool may_reuse)
{
	PgpxLease  *lease = c->lease;
	PgpxCachedSocket *sock = lease->sock;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCloseReason reason = PGPX_CLOSE_BROKEN;
	PgpxReleaseAction action = may_reuse && !c->touched ?
		PGPX_RELEASE_UNCHANGED : PGPX_RELEASE_CLOSE;

	c->lease = NULL;
	if (lease->id == 0)
	{
		pgpx_lease_forget(lease);	/* it has no connection */
		return;
	}
	if (sock != NULL && sock->wire.reset_error[0] != '\0')
		pgpx_pool_report_reset(&pgpx_pools[lease->spec->pool], conn,
							   sock->wire.reset_error);
	if (action == PGPX_RELEASE_CLOSE && sock != NULL &&
		(conn->unread_reset > 0 || lease->usage.resets > 0))
	{
		reason = PGPX_CLOSE_RESET;

		/* the remote may still execute the reset, and overlook the close */
		if (pgpx_wire_is_in_reset(&sock->wire) && !sock->wire.eof)
			action = PGPX_RELEASE_CANCEL_CLOSE;
	}
	if (action != PGPX_RELEASE_UNCHANGED &&
		lease->pending_state == PGPX_PENDING_SENT)
	{
		reason = PGPX_CLOSE_HOLDER_DIED;
		action = PGPX_RELEASE_CANCEL_CLOSE;
	}
	pgpx_pool_release(conn, lease->id, PGPX_END_RETRIED, action, 0, reason,
					  &lease->usage);
	pgpx_lease_forget(lease);
	if (sock != NULL && action != PGPX_RELEASE_UNCHANGED)
		pgpx_socket_cache_drop(sock);
}

/* Limit on unsolicited input.  A remote that sends more may never stop. */
#define MAX_IDLE_BYTES (4 * 1024 * 1024)

/*
 * Read pending input: the answer of a pending reset, or only messages that may
 * arrive at any time.  Anything else means that the connection is dead.
 */
static Validation
poll_socket(PgpxLease *lease, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxWire   *wire = &lease->sock->wire;
	bool		full;
	ssize_t		n = 0;
	uint64		start = wire->bytes_in;
	bool		polled = false; /* n is the result of polling: do not read */

	for (;;)
	{
		PgpxWireMessage msg;
		PgpxWireEvent event;

		if (!polled)
			n = pgpx_wire_fill(wire, &full);
		polled = false;
		do
			event = pgpx_wire_next(wire, &msg);
		while (event == PGPX_EV_NOTICE || event == PGPX_EV_NOTIFICATION);

		if (event == PGPX_EV_READY)
		{
			if (wire->eof)
				return VALIDATION_DEAD;
			if (pgpx_wire_is_at_boundary(wire))
				return VALIDATION_OK;
			continue;
		}
		if (event != PGPX_EV_NEED_INPUT)
			return VALIDATION_DEAD;
		if (wire->phase == PGPX_WIRE_IDLE)
		{
			/* unsolicited input may be endless */
			CHECK_FOR_INTERRUPTS();
			if (wire->bytes_in - start > MAX_IDLE_BYTES)
				return VALIDATION_DEAD;
			if (n > 0 && full)
				continue;
			return pgpx_wire_is_at_boundary(wire) ? VALIDATION_OK :
				VALIDATION_DEAD;
		}
		if (n > 0)
			continue;
		n = pgpx_socket_cache_poll(lease->sock, lease->spec->pool, &full);
		polled = n != 0;
		if (!polled &&
			!pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_event, "PgpoolReset")))
			return VALIDATION_LATE;
	}
}

/*
 * Return whether the connection needs a reset before it is used.
 *
 * The options of this session's spec determine this.  The connection may have
 * been released under other options, which were changed during the wait.
 */
static bool
must_reset(const PgpxLease *lease, const PgpxConn *conn)
{
	/* in a shared pool, always remove the state of another user */
	return conn->dirty &&
		(conn->last_user != lease->user ||
		 lease->spec->opts.reset == PGPX_RESET_ALWAYS);
}

/*
 * Return whether the deadline of the checkout has passed.  The deadline of a
 * step may pass earlier.
 */
static bool
is_late(const PgpxCheckout *c)
{
	return c->deadline != 0 && pgpx_now() >= c->deadline;
}

/*
 * Read the catalogs again after the pool's options have changed, and move the
 * lease to the new spec.  Return false if the connection was made with other
 * options than those of the new spec, or if that spec has another pool.
 *
 * The new spec may differ from the pool's options, because a transaction sees
 * its own catalog changes before they are committed.  No other session may use
 * such changes.
 */
static bool
renew_spec(PgpxCheckout *c, PgpxLease *lease)
{
	PgpxPool   *pool;
	bool		current;

	if (!pgpx_checkout_refresh(c))
		return false;
	pgpx_server_spec_pin(c->spec);
	pgpx_server_spec_unpin(lease->spec);
	lease->spec = c->spec;
	pool = pgpx_pool_lock(c->spec->pool, c->spec->pool_id);
	if (pool == NULL)
		return false;
	current = pgpx_conn_is_current_locked(pool, &pgpx_conns[lease->conn],
										  &c->spec->fingerprint);
	LWLockRelease(pool->lock);
	c->stale = !current;
	return current;
}

/*
 * Fetch the socket, check that the connection is alive, and reset it if
 * necessary.
 */
static Validation
validate_and_reset(PgpxCheckout *c)
{
	PgpxLease  *lease = c->lease;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxTime	deadline = 0;
	PgpxWire   *wire;
	const PgpxWaiter *waiter = pgpx_my_waiter();
	Validation	validation;

	/* after a failed hand-over the state of the connection is not known */
	c->touched = lease->pending_state == PGPX_PENDING_SENT ||
		lease->pending_state == PGPX_PENDING_FAILED;
	if (lease->pending_state == PGPX_PENDING_FAILED)
		return VALIDATION_DEAD;

	/*
	 * During a wait the privileges may have changed, and no other session may
	 * have applied the change to the pool yet.  If all users of a PUBLIC
	 * mapping share the pool, no session does.  So check whether the spec is
	 * still valid.
	 */
	if (!OidIsValid(c->spec->user) || c->waited > 0)
	{
		AcceptInvalidationMessages();
		c->stale |= !c->spec->valid;
	}

	/* changed options do not affect a statement that was sent before */
	if (c->stale && lease->pending_state != PGPX_PENDING_SENT &&
		!renew_spec(c, lease))
		return VALIDATION_DEAD;

	lease->sock = pgpx_socket_cache_find(lease->conn, lease->generation);
	if (lease->sock == NULL)
	{
		PgpxFetch	fetch;

		deadline = step_deadline(c, lease->pending_state == PGPX_PENDING_SENT);
		fetch = pgpx_socket_cache_fetch(lease->spec->pool, lease->conn,
										lease->generation,
										lease->id, deadline, &lease->sock);
		if (fetch != PGPX_FETCH_OK && lease->pending_state == PGPX_PENDING_SENT)
		{
			pgpx_lease_check_revoked(lease);
			pgpx_checkout_raise_lost(c);
		}
		if (fetch == PGPX_FETCH_GONE ||
			(fetch == PGPX_FETCH_TIMEOUT && !is_late(c)))
			return VALIDATION_DEAD;
		if (fetch == PGPX_FETCH_TIMEOUT)
			return VALIDATION_LATE;
	}

	lease->sock->leased = true;
	wire = &lease->sock->wire;
	c->touched = true;
	if (lease->pending_state == PGPX_PENDING_SENT)
	{
		/* pgpx_run_read reads the answer */
		pgpx_wire_begin_sent(wire, lease->id, conn->reset_by,
							 waiter->pending_reset,
							 c->pending->pipeline == NULL ? 0 :
							 c->pending->pipeline->nbefore,
							 waiter->pending_len);
		return VALIDATION_OK;
	}
	pgpx_wire_begin_reset(wire, lease->id, conn->reset_by, conn->unread_reset);
	if (conn->unread_reset > 0 && deadline == 0)
		deadline = step_deadline(c, false);
	validation = poll_socket(lease, deadline);
	if (validation == VALIDATION_LATE && !is_late(c))
		return VALIDATION_DEAD; /* the reset timed out */
	if (validation == VALIDATION_LATE && wire->bytes_in == 0)
		c->touched = false;
	if (validation != VALIDATION_OK || !must_reset(lease, conn))
		return validation;

	deadline = step_deadline(c, false);
	lease->usage.resets++;
	pgpx_wire_send_reset(wire, lease->spec->reset_command,
						 lease->spec->start_commands, false);
	if (!pgpx_stream_flush(lease, deadline))
		return VALIDATION_DEAD;
	validation = poll_socket(lease, deadline);
	if (validation == VALIDATION_LATE && !is_late(c))
		return VALIDATION_DEAD;
	return validation;
}

int64
pgpx_effective_checkout_timeout(const PgpxServerSpec *spec, int64 timeout_ms)
{
	if (timeout_ms != PGPX_TIMEOUT_DEFAULT)
		return timeout_ms;
	return pgpx_checkout_timeout >= 0 ? pgpx_checkout_timeout :
		spec->opts.checkout_timeout;
}

/* Set the start and the deadline of a checkout. */
static void
set_deadline(PgpxCheckout *c, int64 timeout_ms)
{
	c->started = pgpx_now();
	c->noticed = false;
	c->no_wait = c->only_try;
	timeout_ms = pgpx_effective_checkout_timeout(c->spec, timeout_ms);
	c->timeout_ms = timeout_ms;
	c->deadline = c->no_wait ? c->started :
		timeout_ms == 0 ? 0 : c->started + timeout_ms * 1000;
}

/*
 * Fill in the record of a lease that was just acquired, and add it to the
 * session's list.  Cannot fail.  The pool is locked, unless the connection was
 * granted to the waiter.
 */
static void
note_lease(PgpxCheckout *c, PgpxPool *pool, PgpxConn *conn, uint64 lease_id)
{
	PgpxLease  *lease = c->lease;

	lease->id = lease_id;
	lease->conn = PGPX_CONN_INDEX(conn);
	lease->generation = conn->generation;
	lease->worker = pool->worker;
	lease->user = c->holder.user;
	lease->scope = c->holder.scope;
	lease->subid = GetCurrentSubTransactionId();
	lease->spec = c->spec;
	lease->queue_position = c->position;
	lease->started = c->started;
	lease->deadline = c->deadline;
	lease->waited = c->waited;
	pgpx_server_spec_pin(c->spec);
	dlist_push_head(&pgpx_leases, &lease->node);
}

/*
 * Check without the lock whether the pool has waiters.  A stale result only
 * means taking the slower path.
 */
static inline bool
has_waiters(const PgpxServerSpec *spec)
{
	return spec->pool >= 0 &&
		((const volatile PgpxPool *) &pgpx_pools[spec->pool])->nwaiting > 0;
}

/*
 * Return whether the answer to the pending reset of this session's last used
 * connection has arrived; true if no reset is pending.  To be called without
 * the lock.  A stale result only means a less favourable choice of the
 * connection.
 */
static inline bool
is_last_reset_answered(const PgpxServerSpec *spec)
{
	const volatile PgpxConn *conn;
	PgpxCachedSocket *sock;

	if (spec->last_conn < 0)
		return true;

	/* pgpx_socket_cache_find would drop the socket of a later connection */
	conn = &pgpx_conns[spec->last_conn];
	if (conn->generation != spec->last_conn_generation ||
		conn->state != PGPX_CONN_RESET_PENDING)
		return true;
	sock = pgpx_socket_cache_find(spec->last_conn, spec->last_conn_generation);
	return sock == NULL || !pgpx_session_has_no_input(sock);
}

/*
 * Lease a free connection of the locked pool.  Return false if there is none.
 * answered: is_last_reset_answered.
 */
static bool
lease_free_locked(PgpxCheckout *c, PgpxPool *pool, bool answered)
{
	PgpxServerSpec *spec = c->spec;
	PgpxTime	now = pgpx_now();
	PgpxConn   *conn = pgpx_pool_pick_locked(pool, spec->last_conn,
											 spec->last_conn_generation,
											 answered, c->started, now);
	uint64		lease_id;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (conn == NULL)
		return false;

	/* c->waited is not 0 if an earlier connection was granted but was dead */
	lease_id = pgpx_pool_lease_locked(pool, conn, &c->holder, now, c->waited);
	if (lease_id == 0)
		return false;
	if (pool->opts.min_idle > 0)
		pgpx_pool_grow_locked(pool, 0);
	pool->stats.hits++;
	note_lease(c, pool, conn, lease_id);
	return true;
}

/*
 * Withdraw the pending statement, so that it is not sent for a later wait of
 * this session.
 */
static void
withdraw_pending(PgpxCheckout *c)
{
	pgpx_pending_statement_set(NULL, 0);
	c->prepared = false;
}

/*
 * Prepare the statement for a pipelined hand-over.  To be called without the
 * lock, because it allocates memory.
 */
static void
prepare_pending(PgpxCheckout *c)
{
	withdraw_pending(c);
	pgpx_hand_over_prepare(c->spec, c->pending);
	c->prepared = true;
}

/* Enqueue this session in the locked pool, and request connections. */
static PgpxWaiter *
enqueue_locked(PgpxCheckout *c, PgpxPool *pool)
{
	PgpxWaiter *waiter;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	waiter = pgpx_waiter_enqueue_locked(pool, &c->holder, c->started, c->waited,
										c->deadline, c->position);
	c->position = waiter->position;
	pgpx_pool_grow_locked(pool, 0);
	c->grow_at = pgpx_pool_growth_due_locked(pool, waiter);
	if (pool->retry_at != 0)
		pgpx_worker_wake_soon(pool->worker);
	return waiter;
}

typedef enum Attempt
{
	ATTEMPT_LEASED,				/* the lease is in the session's list */
	ATTEMPT_NONE,				/* only_try: no connection is free */
	ATTEMPT_AGAIN				/* the lock was released: attempt again */
} Attempt;

/*
 * Wait until the waiter is granted a connection, and record the lease.  To be
 * called without a lock.
 */
static Attempt
wait_for_grant(PgpxCheckout *c, PgpxPool *pool, PgpxWaiter *waiter)
{
	PgpxConn   *conn;
	uint64		lease_id;
	bool		pool_changed;

	conn = pgpx_checkout_wait(c, pool, waiter, &lease_id, &pool_changed);
	if (pool_changed)
	{
		/* the pending statement is for the other pool */
		withdraw_pending(c);
		return ATTEMPT_AGAIN;
	}
	if (conn == NULL)
		return ATTEMPT_NONE;
	c->lease->pending_state = pgpx_pending_statement_state();

	/* cannot fail; from here on every cleanup finds the lease */
	note_lease(c, pool, conn, lease_id);

	/*
	 * Check without the lock whether the options changed during the wait.  A
	 * change made before the grant is visible here, because leaving the queue
	 * acquired the lock.  Later changes may be missed.
	 */
	c->stale = waiter->granted_version != waiter->options_version ||
		pool->options_version != waiter->options_version;
	return ATTEMPT_LEASED;
}

/*
 * Attempt to lease a connection: a free one, or one that is granted after a
 * wait.  Acquire the pool lock, and release it before a wait, an error or the
 * return.
 */
static Attempt
attempt(PgpxCheckout *c)
{
	bool		answered = is_last_reset_answered(c->spec);
	PgpxPool   *pool = pgpx_checkout_lock_pool(c);
	PgpxWaiter *waiter;

	/* a checkout that was already in the queue precedes all waiters */
	if ((pool->nwaiting == 0 || c->position != 0) &&
		lease_free_locked(c, pool, answered))
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
		/* a test is running: wait for its end, for GRACE_US at most */
		c->no_wait = false;
		c->deadline = c->started + GRACE_US;
	}
	if (c->no_wait)
	{
		/* request a connection for a later checkout */
		pgpx_pool_grow_locked(pool, 1);
		LWLockRelease(pool->lock);
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
	return wait_for_grant(c, pool, waiter);
}

/*
 * Lease a free connection, or wait for one.  On return the lease is in the
 * session's list.  Return false only with only_try.
 */
static bool
lease_or_wait(PgpxCheckout *c)
{
	Attempt		outcome;

	withdraw_pending(c);
	if (c->pending != NULL && !c->no_wait && has_waiters(c->spec))
		prepare_pending(c);		/* saves an attempt */
	do
		outcome = attempt(c);
	while (outcome == ATTEMPT_AGAIN);
	return outcome == ATTEMPT_LEASED;
}

/* Log a wait that was longer than pgpool_ext.log_min_wait. */
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
 * Lease connections and validate them until one is alive.  Return false only
 * with only_try.  Until the return of true the caller must free c->lease, if it
 * is not NULL, also after an error.
 */
static bool
checkout(PgpxCheckout *c)
{
	for (;;)
	{
		Validation	validation;

		c->lease = pgpx_lease_alloc();
		c->touched = false;
		if (!lease_or_wait(c))
			return false;
		validation = validate_and_reset(c);
		if (validation == VALIDATION_OK)
			return true;

		/* if it was late, or made with other options, it is not dead */
		drop_lease(c, validation == VALIDATION_LATE || c->stale);
		c->stale = false;
		if (validation == VALIDATION_DEAD)
			continue;
		if (c->only_try)
			return false;
		pgpx_checkout_raise_timeout(c, &pgpx_pools[c->spec->pool], true);
	}
}

/* Check out as described in checkout.h. */
static PgpxLease *
checkout_for(PgpxServerSpec *spec, Oid user, int64 timeout_ms, bool only_try,
			 PgpxScope scope, const char *why,
			 const PgpxPendingStatement *statement,
			 const PgpxRetry *retry)
{
	PgpxCheckout c;
	volatile bool done = false;

	pgpx_session_register_exit();

	/* assign the fields one by one: memset of the struct is slow */
	c.position = 0;
	c.waited = 0;
	c.published_incarnation = 0;
	c.published_version = 0;
	c.stale = false;
	c.check = NULL;
	c.spec = spec;
	c.lease = NULL;
	c.only_try = only_try;
	c.holder.procno = MyProcNumber;
	c.holder.pid = MyProcPid;
	c.holder.user = user;
	c.holder.scope = scope;
	if (why != NULL && strlen(why) >= PGPX_WHY_LEN)
		why = pnstrdup(why, pg_mbcliplen(why, strlen(why), PGPX_WHY_LEN - 1));
	c.holder.why = why;
	c.holder.application_name = application_name;
	c.holder.user_name =
		OidIsValid(spec->user) ? NULL : GetUserNameFromId(user, true);
	c.pending = statement;
	set_deadline(&c, timeout_ms);
	if (retry != NULL && retry->queue_position != 0 &&
		retry->pool_id == c.spec->pool_id)
	{
		c.position = retry->queue_position;
		c.started = retry->started;
		c.deadline = retry->deadline;
		c.waited = retry->waited;
	}

	pgpx_server_spec_pin(c.spec);
	PG_TRY();
	{
		done = checkout(&c);
	}
	PG_FINALLY();
	{
		if (!done && c.lease != NULL)
			drop_lease(&c, true);
		pgpx_pending_statement_set(NULL, 0);
		pgpx_server_spec_unpin(c.spec);
	}
	PG_END_TRY();

	if (done && (retry == NULL || c.waited > retry->waited))
		log_wait(&c);
	return done ? c.lease : NULL;
}

PgpxLease *
pgpx_lease_checkout(const char *server, int64 timeout_ms, bool only_try,
					PgpxScope scope, const char *why)
{
	return checkout_for(pgpx_server_spec_get(server), GetUserId(), timeout_ms,
						only_try, scope, why, NULL, NULL);
}

PgpxLease *
pgpx_lease_checkout_call(const char *server,
						 const PgpxPendingStatement *pending,
						 const PgpxRetry *retry)
{
	return checkout_for(pgpx_server_spec_get(server), GetUserId(),
						PGPX_TIMEOUT_DEFAULT, false, PGPX_SCOPE_CALL, NULL,
						pending, retry);
}

PgpxLease *
pgpx_lease_checkout_table(Oid server, Oid user, const char *why,
						  const PgpxPendingStatement *pending,
						  const PgpxRetry *retry)
{
	return checkout_for(pgpx_server_spec_get_for_table(server, user), user,
						PGPX_TIMEOUT_DEFAULT, false, PGPX_SCOPE_TABLE, why,
						pending, retry);
}

void
pgpx_lease_retry(PgpxLease *lease, PgpxRetry *retry)
{
	retry->pool_id = lease->spec->pool_id;
	retry->queue_position = lease->queue_position;
	retry->started = lease->started;
	retry->deadline = lease->deadline;
	retry->waited = lease->waited;
	pgpx_lease_return(lease, PGPX_END_RETRIED, true);
}

void
pgpx_call_with_lease(const char *server,
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
