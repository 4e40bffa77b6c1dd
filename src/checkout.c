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
#include "lease.h"

#include "commands/dbcommands.h"
#include "access/xact.h"
#include "storage/latch.h"
#include "utils/guc.h"

#include "errcodes.h"
#include "guc.h"
#include "handoff.h"
#include "remote_error.h"
#include "ticket.h"

/*
 * How long a checkout goes on after its deadline with a connection that it has
 * been given: for the hand-over of the socket, or an answer that is owed.
 */
#define GRACE_US (100 * 1000)

typedef struct Checkout
{
	PgpxTarget *target;			/* pinned */
	PgpxHolder	holder;
	bool		only_try;
	PgpxTime	started;
	int64		timeout;		/* ms, for the error; 0: did not wait */
	bool		no_wait;
	PgpxTime	deadline;		/* 0: for ever */
	uint64		number;			/* of the ticket, to go back to the head */
	PgpxTime	waited;
	uint64		told_epoch;		/* worker and version that we sent the */
	uint64		told_version;	/* conninfo for */
	bool		refreshed;		/* the catalogs were read again */
} Checkout;

/* call > GUC > server's option */
static void
set_deadline(Checkout *c, int64 timeout)
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
step_deadline(const Checkout *c)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	longest = now + c->target->opts.operation_timeout * 1000;

	if (c->deadline == 0)
		return longest;
	return Min(longest, Max(c->deadline, now) + GRACE_US);
}

/* Read the catalogs again. */
static void
refresh_target(Checkout *c)
{
	PgpxTarget *old = c->target;
	PgpxTarget *fresh;
	NameData	name = old->server_name;

	old->valid = false;
	fresh = pgpx_target_get(NameStr(name));
	pgpx_target_pin(fresh);
	pgpx_target_unpin(old);
	c->target = fresh;
}

/* The pool of the target, locked, under the target's options. */
static PgpxPool *
lock_pool(Checkout *c)
{
	for (;;)
	{
		PgpxTarget *target = c->target;
		PgpxPool   *pool = pgpx_pool_lock(target->pool, target->pool_id);

		if (pool == NULL)
		{
			PgpxPoolRef ref = {
				.key = target->key,
				.fingerprint = target->fingerprint,
				.opts = &target->opts,
				.database_name = get_database_name(MyDatabaseId),
				.server_name = NameStr(target->server_name),
				.user_name = NameStr(target->user_name),
			};

			target->pool = pgpx_pool_find(&ref, &target->pool_id);
			if (target->pool < 0)
				ereport(ERROR,
						(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
						 errmsg("too many pools"),
						 errdetail("All %d places are in use.", pgpx_shared->max_pools),
						 errhint("Raise \"pgpool_ext.max_pools\". A server with a PUBLIC user mapping has one pool for each local user.")));
			continue;
		}
		if (pgpx_pool_is_current_locked(pool, &target->fingerprint))
			return pool;
		if (c->refreshed)
		{
			pgpx_pool_adopt_locked(pool, &target->fingerprint, &target->opts);
			return pool;
		}

		/*
		 * Our options differ from those of the pool.  The ones read last are
		 * right, so look once more before we say so.
		 */
		LWLockRelease(pool->lock);
		c->refreshed = true;
		refresh_target(c);
	}
}

/* Send the conninfo to the pool's worker unless it has it.  Takes no lock. */
static void
tell_conninfo(Checkout *c, int worker, uint64 epoch, uint64 version)
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
		int			sent = pgpx_handoff_send_conninfo(worker, epoch, target->pool,
													  target->pool_id, &conninfo);

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

/* Must the conninfo be sent before a connection can be asked for? */
static bool
must_tell(const Checkout *c, const PgpxPool *pool, uint64 epoch)
{
	if (epoch == 0)
		return false;			/* no worker; the next one wakes who waits */
	if (pool->conninfo_epoch == epoch && pool->conninfo_version == pool->version)
		return false;
	return c->told_epoch != epoch || c->told_version != pool->version;
}

/* The answer to "who has them all": the one who has held longest. */
static void
holder_detail(PgpxPool *pool, char *buf, size_t size)
{
	PgpxConn   *oldest = NULL;
	int			leased;
	int			total;
	int			waiting;
	int			pid = 0;
	PgpxTime	held = 0;

	LWLockAcquire(pool->lock, LW_SHARED);
	leased = pool->count[PGPX_CONN_LEASED];
	total = pgpx_pool_total_locked(pool);
	waiting = pool->nwaiting;
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool == PGPX_POOL_INDEX(pool) &&
			conn->state == PGPX_CONN_LEASED &&
			(oldest == NULL || conn->leased_at < oldest->leased_at))
			oldest = conn;
	}
	if (oldest != NULL)
	{
		pid = oldest->owner_pid;
		held = pgpx_now() - oldest->leased_at;
	}
	LWLockRelease(pool->lock);

	if (oldest != NULL)
		snprintf(buf, size, "%d of %d connections are leased and %d sessions wait; PID %d has held one for %.3f s.",
				 leased, total, waiting, pid, held / 1e6);
	else
		snprintf(buf, size, "%d connections are open or being opened, none is leased, and %d sessions wait.",
				 total, waiting);
}

static void
raise_timeout(Checkout *c, PgpxPool *pool)
{
	char		detail[256];

	if (pg_atomic_read_u64(&pgpx_shared->worker[pool->worker].epoch) == 0)
		ereport(ERROR,
				(errcode(PGPX_ERRCODE_WORKER_DOWN),
				 errmsg("the pool worker does not run"),
				 errhint("The server starts it again within a second; see the server log, and \"max_worker_processes\".")));

	holder_detail(pool, detail, sizeof(detail));
	if (c->no_wait)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("server \"%s\" has no free connection now",
						NameStr(c->target->server_name)),
				 errdetail_internal("%s", detail)));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("no connection to server \"%s\" came free within " INT64_FORMAT " ms",
					NameStr(c->target->server_name), c->timeout),
			 errdetail_internal("%s", detail),
			 errhint("Raise the server's option \"pool_size\" or \"checkout_timeout\", or return leases earlier.")));
}

static void
raise_unreachable(Checkout *c, int sqlstate, const char *text, int64 wait_ms)
{
	char	   *reason = pgpx_text_clean(pstrdup(text));

	if (sqlstate == ERRCODE_FEATURE_NOT_SUPPORTED)
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("connection to server \"%s\" is encrypted, which is not supported",
						NameStr(c->target->server_name)),
				 errdetail_internal("%s", reason),
				 errhint("Set option sslmode 'disable' of the server.")));
	if (sqlstate == ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED)
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("password is required"),
				 errdetail_internal("%s", reason),
				 errhint("The remote server's authentication method must be changed, or password_required=false set in the user mapping.")));
	ereport(ERROR,
			(errcode(ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION),
			 errmsg("could not connect to server \"%s\"",
					NameStr(c->target->server_name)),
			 errdetail_internal("%s", reason),
			 wait_ms > 0 ?
			 errhint("The next attempt is made in " INT64_FORMAT " ms at the earliest.",
					 wait_ms) : 0));
}

/*
 * Reasons not to queue at all.  Caller holds the pool's lock; it is released
 * before an error is raised.
 */
static void
check_may_wait(Checkout *c, PgpxPool *pool)
{
	int			own = pgpx_lease_count(pool->pool_id);
	int			any = pgpx_lease_count(0);
	int			size = pool->opts.pool_size;
	PgpxTime	now;

	if (own >= size)
	{
		pool->stats.deadlocks++;
		LWLockRelease(pool->lock);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("checkout from server \"%s\" would wait for this session itself",
						NameStr(c->target->server_name)),
				 errdetail("This session holds all %d connections of the pool.", size),
				 errhint("Return a lease first, or raise the server's option \"pool_size\".")));
	}
	if (any > 0 && c->deadline == 0)
	{
		pool->stats.deadlocks++;
		LWLockRelease(pool->lock);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("cannot wait without a timeout while this session holds a lease"),
				 errdetail("This session holds %d leases. Two sessions that wait for each other would wait for ever.", any),
				 errhint("Give a timeout, or return the leases first.")));
	}
	if (pool->opts.max_waiters > 0 && pool->nwaiting >= pool->opts.max_waiters)
	{
		int			waiting = pool->nwaiting;
		int			most = pool->opts.max_waiters;

		pool->stats.refused++;
		LWLockRelease(pool->lock);
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("too many sessions wait for a connection to server \"%s\"",
						NameStr(c->target->server_name)),
				 errdetail("%d sessions wait, and the server's option \"max_waiters\" is %d.",
						   waiting, most)));
	}

	now = pgpx_now();
	if (pool->opts.on_unavailable == PGPX_UNAVAILABLE_FAIL &&
		pool->retry_at > now && pgpx_pool_live_locked(pool) == 0 &&
		pool->count[PGPX_CONN_CONNECTING] == 0)
	{
		char		text[PGPX_ERROR_LEN];
		int			sqlstate = pool->last_sqlstate;
		int64		wait_ms = (pool->retry_at - now) / 1000 + 1;

		strlcpy(text, pool->last_error, sizeof(text));
		pool->stats.unavailable++;
		LWLockRelease(pool->lock);
		raise_unreachable(c, sqlstate, text, wait_ms);
	}
}

/*
 * Nothing can ever come: the pool has no connection, and shared memory has none
 * left for it.  Caller holds the pool's lock and has drawn a ticket.
 */
static bool
is_starved(PgpxPool *pool)
{
	return pgpx_pool_total_locked(pool) == 0 &&
		pgpx_shared->nfree == 0 && pool->retry_at == 0;
}

/*
 * While we wait there is a new worker, or there are new options: tell the worker
 * and ask for connections again.  Only those whose options are the pool's may
 * tell them.
 */
static void
tell_again(Checkout *c, PgpxPool *pool, uint64 epoch)
{
	bool		current = false;
	uint64		version = 0;

	for (int attempt = 0; attempt < 2 && !current; attempt++)
	{
		if (attempt > 0)
			refresh_target(c);
		LWLockAcquire(pool->lock, LW_SHARED);
		version = pool->version;
		current = pgpx_pool_is_current_locked(pool, &c->target->fingerprint);
		LWLockRelease(pool->lock);
	}

	/* if it still is not, whoever has set the new options tells them */
	c->told_epoch = epoch;
	c->told_version = version;
	if (!current)
		return;
	tell_conninfo(c, pool->worker, epoch, version);
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pgpx_pool_grow_locked(pool, 0);
	LWLockRelease(pool->lock);
}

static void
leave_by_error(PgpxTicket *ticket)
{
	PgpxConn   *conn;
	uint64		lease_id;
	int			sqlstate;
	PgpxTime	waited;

	pgpx_ticket_leave(ticket, PGPX_LEAVE_CANCEL, &conn, &lease_id, &sqlstate,
					  NULL, &waited);
}

/*
 * Wait for the ticket to be granted.  Returns the connection and fills in the
 * lease's id; raises what came instead.
 */
static PgpxConn *
wait_for_turn(Checkout *c, PgpxPool *pool, PgpxTicket *ticket, uint64 *lease_id)
{
	static uint32 wait_event = 0;
	volatile int *state = &ticket->state;
	PgpxTicketState was;
	PgpxConn   *conn = NULL;
	int			sqlstate = 0;
	char		text[PGPX_ERROR_LEN];
	bool		in_time = true;

	PG_TRY();
	{
		while (*state == PGPX_TICKET_WAITING && in_time)
		{
			uint64		epoch = pg_atomic_read_u64(&pgpx_shared->worker[pool->worker].epoch);

			if (must_tell(c, pool, epoch))
				tell_again(c, pool, epoch);
			else
				in_time = pgpx_session_wait_latch(c->deadline,
												  pgpx_wait_event(&wait_event, "PgpoolCheckout"));
		}
	}
	PG_CATCH();
	{
		leave_by_error(ticket);
		PG_RE_THROW();
	}
	PG_END_TRY();

	was = pgpx_ticket_leave(ticket, in_time ? PGPX_LEAVE_CLAIM : PGPX_LEAVE_TIMEOUT,
							&conn, lease_id, &sqlstate, text, &c->waited);
	if (was == PGPX_TICKET_FAILED)
		raise_unreachable(c, sqlstate, text, 0);
	if (was != PGPX_TICKET_GRANTED)
		raise_timeout(c, pool);
	return conn;
}

/*
 * Take a free connection, or wait for one.  NULL only with only_try.  The lease
 * is in the session's list when this returns.
 */
static bool
take(Checkout *c, PgpxLease *lease)
{
	PgpxPool   *pool;
	PgpxConn   *conn = NULL;
	uint64		lease_id = 0;
	uint64		epoch;

again:
	pool = lock_pool(c);
	epoch = pg_atomic_read_u64(&pgpx_shared->worker[pool->worker].epoch);

	if (pool->nwaiting == 0 || c->number != 0)
		conn = pgpx_pool_pick_locked(pool, c->target->partner,
									 c->target->partner_generation);
	if (conn != NULL)
	{
		lease_id = pgpx_pool_take_locked(pool, conn, &c->holder, c->waited);
		pool->stats.hits++;
		if (conn == &pgpx_conns[Max(c->target->partner, 0)] &&
			conn->generation == c->target->partner_generation)
			pool->stats.partner_hits++;
	}
	else
	{
		PgpxTicket *ticket;

		check_may_wait(c, pool);
		if (must_tell(c, pool, epoch))
		{
			uint64		version = pool->version;

			LWLockRelease(pool->lock);
			tell_conninfo(c, pool->worker, epoch, version);
			goto again;
		}
		if (c->no_wait)
		{
			/* nothing now; but the next one shall find something */
			pgpx_pool_grow_locked(pool, 1);
			LWLockRelease(pool->lock);
			if (c->only_try)
				return false;
			raise_timeout(c, pool);
		}
		ticket = pgpx_ticket_draw_locked(pool, &c->holder, c->started,
										 c->deadline, c->number);
		c->number = ticket->number;
		pgpx_pool_grow_locked(pool, 0);
		if (is_starved(pool))
		{
			LWLockRelease(pool->lock);
			leave_by_error(ticket);
			ereport(ERROR,
					(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
					 errmsg("too many outbound connections"),
					 errdetail("All %d connections of shared memory are in use by other pools.",
							   pgpx_shared->max_connections),
					 errhint("Raise \"pgpool_ext.max_connections\".")));
		}
		if (pool->retry_at != 0 &&
			pg_atomic_read_u32(&pgpx_shared->worker[pool->worker].ticking) == 0)
			pgpx_worker_wake(pool->worker);
		LWLockRelease(pool->lock);
		conn = wait_for_turn(c, pool, ticket, &lease_id);
		LWLockAcquire(pool->lock, LW_SHARED);
	}

	/* nothing below can fail: the lease is found by every way out */
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
		reason = PGPX_CLOSE_RESET;
	pgpx_pool_give(conn, lease->id, PGPX_END_RETRIED, give, 0, reason, NULL);
	pgpx_lease_forget(lease);
	if (kept != NULL && give == PGPX_GIVE_CLOSE)
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
		(conn->last_pid != MyProcPid || conn->last_procno != (int) MyProcNumber ||
		 conn->last_user != lease->user);
}

/*
 * Fetch the socket and see that it lives.  *touched tells that the stream may
 * have been read or written, so that nobody else can take it as it was.
 */
static Settled
settle_in(Checkout *c, PgpxLease *lease, volatile bool *touched)
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
		fetch = pgpx_kept_fetch(lease->conn, lease->generation, lease->id,
								deadline, &lease->kept);
		if (fetch != PGPX_FETCH_OK)
			return fetch == PGPX_FETCH_GONE ? SETTLED_DEAD : SETTLED_LATE;
	}

	lease->kept->leased = true;
	wire = &lease->kept->wire;
	*touched = true;
	pgpx_wire_begin(wire, conn->owed);
	if (conn->owed > 0 && deadline == 0)
		deadline = step_deadline(c);
	settled = look(lease, deadline);
	if (settled == SETTLED_LATE && wire->bytes_in == 0)
		*touched = false;
	if (settled != SETTLED || !is_transfer(lease, conn))
		return settled;

	deadline = step_deadline(c);
	pgpx_wire_send_reset(wire, lease->target->reset_command,
						 lease->target->start_commands);
	if (!pgpx_lease_flush(lease, deadline))
		return SETTLED_DEAD;
	settled = look(lease, deadline);
	pgpx_wire_begin(wire, 0);
	return settled;
}

static Settled
settle(Checkout *c, PgpxLease *lease)
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
log_wait(const Checkout *c)
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
checkout(Checkout *c, PgpxLease *volatile *spare)
{
	for (;;)
	{
		PgpxLease  *lease;

		*spare = pgpx_lease_alloc();
		if (!take(c, *spare))
			return NULL;
		lease = *spare;
		*spare = NULL;
		switch (settle(c, lease))
		{
			case SETTLED:
				return lease;
			case SETTLED_LATE:
				if (c->only_try)
					return NULL;
				raise_timeout(c, &pgpx_pools[c->target->pool]);
				break;
			case SETTLED_DEAD:
				/* it had died while idle: the next one, unseen */
				break;
		}
	}
}

PgpxLease *
pgpx_lease_checkout(const char *server, int64 timeout, bool only_try,
					PgpxScope scope, const char *why)
{
	Checkout	c = {0};
	PgpxLease *volatile lease = NULL;
	PgpxLease *volatile spare = NULL;

	pgpx_shmem_require();
	pgpx_lease_register_callbacks();

	c.target = pgpx_target_get(server);
	c.only_try = only_try;
	c.holder.procno = MyProcNumber;
	c.holder.pid = MyProcPid;
	c.holder.user = GetUserId();
	c.holder.database = MyDatabaseId;
	c.holder.scope = scope;
	c.holder.why = why;
	c.holder.application_name = application_name;
	set_deadline(&c, timeout);

	pgpx_target_pin(c.target);
	PG_TRY();
	{
		lease = checkout(&c, &spare);
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
