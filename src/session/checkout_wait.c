/*-------------------------------------------------------------------------
 *
 * checkout_wait.c
 *	  Checkout: find and lock the pool of a server spec, publish its conninfo,
 *	  and wait in its queue; the errors of a wait.
 *
 * Runs in sessions and in the catalog reader.  The options in effect of a pool
 * are those that were read from the catalogs last.  A checkout whose options
 * differ reads the catalogs again before the pool adopts its options.
 *
 * No lock is held during the wait.  Every end of the wait leaves the queue
 * through pgpx_waiter_dequeue.
 *
 *-------------------------------------------------------------------------
 */
#include "session/checkout_wait.h"

#include <errno.h>

#include "commands/dbcommands.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "base/debug_point.h"
#include "shared/registry.h"
#include "protocol/control_message.h"
#include "protocol/remote_message.h"

/* ------------------------------------------------------------------------
 * The pool
 * ------------------------------------------------------------------------
 */

/* How often to read a spec again if the catalogs change each time. */
#define MAX_READS 10

/* Reset what applies to one pool only, because the spec has another one. */
static void
forget_pool(PgpxCheckout *c)
{
	c->position = 0;
	c->published_incarnation = 0;
	c->published_version = 0;
}

bool
pgpx_checkout_refresh(PgpxCheckout *c)
{
	PgpxServerSpec *old = c->spec;
	PgpxServerSpec *fresh;
	NameData	name = old->server_name;
	PgpxPoolKey key = old->key;
	bool		same;

	old->valid = false;
	fresh = old->by_table ?
		pgpx_server_spec_get_for_table(key.server, old->read_for) :
		pgpx_server_spec_get_for(NameStr(name), old->read_for, false);
	if (c->check != NULL)
		c->check(fresh);
	pgpx_server_spec_pin(fresh);
	same = memcmp(&key, &fresh->key, sizeof(key)) == 0;
	if (same && fresh->pool < 0)
	{
		/* the old one was evicted from the cache */
		fresh->pool = old->pool;
		fresh->pool_id = old->pool_id;
	}
	if (memcmp(&old->fingerprint, &fresh->fingerprint,
			   sizeof(fresh->fingerprint)) != 0)
		c->prepared = false;
	pgpx_server_spec_unpin(old);
	c->spec = fresh;
	if (!same)
		forget_pool(c);
	return same;
}

/*
 * Raise an error if the spec needs a private pool and this session holds a
 * lease of another transaction's private pool for the same server.  Such a
 * lease may outlive its transaction, and it keeps the slot of that pool in use.
 * Without this check, a user who changes a user mapping in each transaction,
 * for example, would get one more pool each time, each with its own pool_size.
 */
static void
refuse_second_private_pool(const PgpxServerSpec *spec)
{
	dlist_iter	iter;

	if (!TransactionIdIsValid(spec->key.xid))
		return;
	dlist_foreach(iter, &pgpx_leases)
	{
		PgpxLease  *lease = dlist_container(PgpxLease, node, iter.cur);
		const PgpxPoolKey *key = &lease->spec->key;

		if (TransactionIdIsValid(key->xid) && key->xid != spec->key.xid &&
			key->database == spec->key.database &&
			key->server == spec->key.server)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("options of server \"%s\" were changed in this transaction",
							NameStr(spec->server_name)),
					 errdetail("Lease " INT64_FORMAT " is from another transaction of this session that had changed them.",
							   (int64) lease->id),
					 errhint("Return that lease first, or commit.")));
	}
}

PgpxPool *
pgpx_checkout_lock_pool(PgpxCheckout *c)
{
	uint64		read_at = 0;	/* options_version before the last refresh */

	for (;;)
	{
		PgpxServerSpec *spec;
		PgpxPool   *pool;

		/*
		 * Read the spec again if its catalog entries or privileges changed
		 * since it was read.  If they changed while it was read, it may be
		 * half old and half new, so check again afterwards.
		 */
		AcceptInvalidationMessages();
		for (int i = 0; i < MAX_READS && !c->spec->valid; i++)
			if (!pgpx_checkout_refresh(c))
				read_at = 0;
		spec = c->spec;

		pool = pgpx_pool_lock(spec->pool, spec->pool_id);
		if (pool == NULL)
		{
			PgpxPoolRef ref = {
				.key = spec->key,
				.fingerprint = spec->fingerprint,
				.opts = &spec->opts,
				.database_name = get_database_name(MyDatabaseId),
				.server_name = NameStr(spec->server_name),
				.user = spec->user,
				.user_name = NameStr(spec->user_name),
			};
			uint32		pool_id;
			int			index;

			refuse_second_private_pool(spec);
			if (TransactionIdIsValid(spec->key.xid))
				pgpx_catalog_note_private_pool();

			/* retire pools with outdated SCRAM keys, if no session has yet */
			if (OidIsValid(spec->key.scram_role))
				pgpx_catalog_request_check();
			index = pgpx_pool_find(&ref, &pool_id);

			read_at = 0;
			forget_pool(c);
			if (index < 0)
				ereport(ERROR,
						(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
						 errmsg("too many pools"),
						 errdetail("All %d slots are in use.", pgpx_shared->max_pools),
						 errhint("Raise \"pgpool_ext.max_pools\". A server whose PUBLIC user mapping does not name the remote user has one pool for each local user.")));

			/* leases may share the spec, so spec->pool never becomes -1 */
			spec->pool = index;
			spec->pool_id = pool_id;
			continue;
		}
		if (pgpx_pool_is_current_locked(pool, &spec->fingerprint))
		{
			pool->by_table |= spec->by_table;
			return pool;
		}
		if (read_at == pool->options_version)
		{
			pgpx_pool_adopt_locked(pool, NameStr(spec->server_name),
								   NameStr(spec->user_name),
								   &spec->fingerprint, &spec->opts);
			pool->by_table |= spec->by_table;
			return pool;
		}

		/*
		 * The options of the spec differ from the pool's.  It is not known
		 * which of them were read later.  So read the catalogs again before
		 * the pool adopts the options, and once more if another session
		 * changed the pool in the meantime.
		 */
		read_at = pool->options_version;
		LWLockRelease(pool->lock);
		if (!pgpx_checkout_refresh(c))
			read_at = 0;
	}
}

/*
 * Send the conninfo to the pool's worker.
 *
 * Acquire no lock.  Wait for room in the control socket.  If there is none
 * until the checkout's deadline, nothing is sent.  Errors: 54000 the options
 * are too long.
 */
static void
send_conninfo(PgpxCheckout *c, int worker, uint64 incarnation,
			  uint64 version)
{
	PgpxServerSpec *spec = c->spec;
	PgpxConninfo conninfo = {
		.version = version,
		.need_password = spec->need_password,
		.password_command = spec->password_command,
		.start_commands = spec->start_commands,
		.reset_command = spec->reset_command,
		.nparams = spec->nparams,
		.keywords = spec->keywords,
		.values = spec->values,
	};

	for (;;)
	{
		int			sent = pgpx_control_send_conninfo(worker, incarnation,
													  spec->pool,
													  spec->pool_id,
													  &conninfo);

		if (sent > 0)
			break;
		if (sent < 0 && errno != EMSGSIZE)
			ereport(ERROR,
					(errcode_for_socket_access(),
					 errmsg("could not send the options of server \"%s\" to the pool worker: %m",
							NameStr(spec->server_name))));
		if (sent < 0)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("options of server \"%s\" are too long",
							NameStr(spec->server_name)),
					 errdetail("The limit for all options together is %d bytes.",
							   PGPX_MESSAGE_MAX)));
		if (!pgpx_session_wait_control(worker, c->deadline))
			break;
	}
	c->published_incarnation = incarnation;
	c->published_version = version;
}

/*
 * Return whether the conninfo must be published before a connection can be
 * requested.  The caller must hold the pool lock or tolerate a stale result.
 */
static bool
must_publish(const PgpxCheckout *c, const PgpxPool *pool,
			 uint64 incarnation)
{
	if (incarnation == 0)
		return false;			/* no worker; the next one wakes the waiters */
	if (pool->conninfo_incarnation == incarnation &&
		pool->conninfo_version >= pool->connect_version)
		return false;
	return c->published_incarnation != incarnation ||
		c->published_version < pool->connect_version;
}

bool
pgpx_checkout_publish_if_missing(PgpxCheckout *c, PgpxPool *pool)
{
	uint64		incarnation = pgpx_pool_worker_incarnation(pool);
	uint64		version = pool->version;
	int			worker = pool->worker;

	if (!must_publish(c, pool, incarnation))
		return false;
	LWLockRelease(pool->lock);
	send_conninfo(c, worker, incarnation, version);
	return true;
}

void
pgpx_checkout_publish_conninfo(PgpxServerSpec *spec, PgpxTime deadline,
							   PgpxSpecCheck check)
{
	PgpxCheckout c = {0};

	if (check != NULL)
		check(spec);
	c.spec = spec;
	c.deadline = deadline;
	c.check = check;
	pgpx_server_spec_pin(c.spec);
	PG_TRY();
	{
		PgpxPool   *pool = pgpx_checkout_lock_pool(&c);

		if (!pgpx_checkout_publish_if_missing(&c, pool))
			LWLockRelease(pool->lock);
	}
	PG_FINALLY();
	{
		pgpx_server_spec_unpin(c.spec);
	}
	PG_END_TRY();
}

/* ------------------------------------------------------------------------
 * The errors of a wait
 *
 * The detail of a timeout has the numbers of leases and waiters, and its hint
 * names the setting to change.
 * ------------------------------------------------------------------------
 */

#define DETAIL_LEN (512 + PGPX_ERROR_LEN)

/*
 * Write an error detail about the use of the pool: the numbers of leases and of
 * other waiters, and the oldest lease.
 */
static void
write_usage(PgpxPool *pool, char *buf, size_t size)
{
	PgpxConn   *oldest = NULL;
	int			leased = 0;
	int			total;
	int			waiting;
	int			pid = 0;
	PgpxTime	held = 0;

	LWLockAcquire(pool->lock, LW_SHARED);
	total = pgpx_pool_total_locked(pool);
	waiting = pool->nwaiting;
	if (pgpx_my_waiter()->state == PGPX_WAITER_WAITING)
		waiting--;
	pgpx_conn_foreach_locked(conn, pool)
	{
		if (conn->broken || conn->state != PGPX_CONN_LEASED)
			continue;
		leased++;
		if (oldest == NULL || conn->leased_at < oldest->leased_at)
			oldest = conn;
	}
	if (oldest != NULL)
	{
		pid = oldest->owner_pid;
		held = pgpx_now() - oldest->leased_at;
	}
	LWLockRelease(pool->lock);

	if (pgpx_pool_is_paused(pool))
		snprintf(buf, size, "The server is paused. Active leases: %d. Other waiting sessions: %d.",
				 leased, waiting);
	else if (oldest != NULL)
		snprintf(buf, size, "%d of %d connections are leased and %d other %s; PID %d has held one for %.3f s.",
				 leased, total, waiting,
				 waiting == 1 ? "session waits" : "sessions wait", pid,
				 held / 1e6);
	else
		snprintf(buf, size, "%d %s open or being opened, none is leased, and %d other %s.",
				 total, total == 1 ? "connection is" : "connections are",
				 waiting, waiting == 1 ? "session waits" : "sessions wait");
}

/*
 * Return the hint of a timeout, which names the limit to raise.  It does not
 * tell where the timeout or the size of the pool was set: an argument, a setting
 * or an option, which not all servers can have.
 */
static const char *
limit_hint(PgpxGrowthLimit limit)
{
	switch (limit)
	{
		case PGPX_LIMIT_CONNECTING:
		case PGPX_LIMIT_CHECKING:
		case PGPX_LIMIT_CANCELLING:
			return "Raise the timeout, or check why the remote server has not answered.";
		case PGPX_LIMIT_POOL:
			return "Raise \"pool_size\" or the timeout, or return leases earlier.";
		case PGPX_LIMIT_SERVER:
			return "Raise \"max_server_connections\" or the timeout, or return leases earlier.";
		case PGPX_LIMIT_ALL:
			return "Raise the setting \"pgpool_ext.max_connections\" or the timeout, or return leases earlier.";
		default:
			return "Raise the timeout, or return leases earlier.";
	}
}

/*
 * Write a detail about the use of the pool and about the cause of the wait, and
 * return the hint for this cause.  The detail has the error of the last attempt
 * to connect, if it has failed since the checkout began, or if no attempt has
 * succeeded since.
 */
static const char *
write_wait_cause(const PgpxCheckout *c, PgpxPool *pool, char *buf, size_t size)
{
	char		reason[PGPX_ERROR_LEN] = "";
	PgpxTime	full_for = 0;
	PgpxGrowthLimit limit;
	bool		failing;
	int			connecting;
	int			checking;
	int			cancelling;

	write_usage(pool, buf, size);
	if (pgpx_pool_is_paused(pool))
		return "Call pgpool.resume to end the pause.";
	LWLockAcquire(pool->lock, LW_SHARED);
	failing = pool->unavailable_since != 0;
	if (failing || pool->remote_full_since != 0 ||
		pool->last_error_at >= c->started)
		strlcpy(reason, pool->last_error, sizeof(reason));
	connecting = pool->count[PGPX_CONN_CONNECTING];
	checking = pool->count[PGPX_CONN_CHECKING];
	cancelling = pool->count[PGPX_CONN_CANCELLING];
	if (pool->remote_full_since != 0)
		full_for = pgpx_now() - pool->remote_full_since;
	limit = pgpx_pool_growth_limit_locked(pool);
	LWLockRelease(pool->lock);
	pgpx_text_clean(reason);
	if (connecting + checking + cancelling > 0)
		snprintf(buf + strlen(buf), size - strlen(buf),
				 " Being opened: %d, being tested: %d, being cancelled: %d.",
				 connecting, checking, cancelling);
	if (full_for != 0)
		snprintf(buf + strlen(buf), size - strlen(buf),
				 " The remote server has accepted no more connections for %.3f s: %s",
				 full_for / 1e6, reason);
	else if (reason[0] != '\0')
		snprintf(buf + strlen(buf), size - strlen(buf),
				 " The last attempt to connect has failed: %s", reason);
	pgpx_text_clean(buf);		/* may end within a character */
	return full_for != 0 ?
		"Raise the limit of connections on the remote server, or open fewer from the servers and pools that share it." :
		failing && reason[0] != '\0' ?
		"Check the remote server, and the options of the server and of its user mapping." :
		limit_hint(limit);
}

/* Raise the NOTICE for a session that has waited for notice_after. */
static void
raise_notice(PgpxCheckout *c, PgpxPool *pool)
{
	char		detail[DETAIL_LEN];

	c->noticed = true;
	(void) write_wait_cause(c, pool, detail, sizeof(detail));
	ereport(NOTICE,
			(errmsg("still waiting for a connection to server \"%s\" after " INT64_FORMAT " ms",
					NameStr(c->spec->server_name),
					(pgpx_now() - c->started) / 1000),
			 errdetail_internal("%s", detail)));
}

/*
 * Raise the error of a failed connection attempt, whose SQLSTATE and message
 * are given: as 08001, or with its own SQLSTATE if the cause is on this server
 * or in its settings.  wait_ms: time to the next attempt; 0: unknown.
 */
pg_noreturn static void
raise_unreachable(PgpxCheckout *c, int sqlstate, const char *text,
				  int64 wait_ms)
{
	char	   *reason = pgpx_text_clean(pstrdup(text));

	if (sqlstate == ERRCODE_FEATURE_NOT_SUPPORTED)
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("connection to server \"%s\" is encrypted in a way that is not supported",
						NameStr(c->spec->server_name)),
				 errdetail_internal("%s", reason)));
	if (sqlstate == ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED)
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("password is required"),
				 errdetail_internal("%s", reason),
				 errhint("The remote server's authentication method must be changed, or password_required=false set in the user mapping.")));
	if (sqlstate == ERRCODE_EXTERNAL_ROUTINE_EXCEPTION)
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("could not get a password for server \"%s\"",
						NameStr(c->spec->server_name)),
				 errdetail_internal("%s", reason),
				 errhint("Check the setting \"pgpool_ext.password_command\", and the messages of the command in the server log.")));

	/* lack of resources on this server, also of memory, keeps its SQLSTATE */
	if (ERRCODE_TO_CATEGORY(sqlstate) != ERRCODE_INSUFFICIENT_RESOURCES)
		sqlstate = ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION;
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("could not connect to server \"%s\"",
					NameStr(c->spec->server_name)),
			 errdetail_internal("%s", reason),
			 wait_ms > 0 ?
			 errhint("The next attempt is made in " INT64_FORMAT " ms at the earliest.",
					 wait_ms) : 0));
}

/*
 * Release the pool lock, which the caller must hold, and raise the error of the
 * last connection attempt.
 */
pg_noreturn static void
raise_last_error_locked(PgpxCheckout *c, PgpxPool *pool)
{
	char		text[PGPX_ERROR_LEN];
	int			sqlstate = pool->last_sqlstate;
	PgpxTime	now = pgpx_now();
	int64		wait_ms = pool->retry_at > now ?
		(pool->retry_at - now) / 1000 + 1 : 0;

	Assert(LWLockHeldByMe(pool->lock));
	strlcpy(text, pool->last_error, sizeof(text));
	LWLockRelease(pool->lock);
	raise_unreachable(c, sqlstate, text, wait_ms);
}

/*
 * Raise the error of the last connection attempt if no attempt has succeeded
 * since and the pool has no live connection, unless it is paused.
 */
static void
raise_if_unreachable(PgpxCheckout *c, PgpxPool *pool)
{
	LWLockAcquire(pool->lock, LW_SHARED);
	if (pool->unavailable_since != 0 && !pgpx_pool_is_paused(pool) &&
		pgpx_pool_count_live_locked(pool) == 0 && pool->last_sqlstate != 0)
		raise_last_error_locked(c, pool);
	LWLockRelease(pool->lock);
}

void
pgpx_checkout_raise_timeout(PgpxCheckout *c, PgpxPool *pool, bool granted)
{
	char		detail[DETAIL_LEN];
	const char *hint = "Raise the timeout.";

	if (pgpx_pool_worker_incarnation(pool) == 0)
		ereport(ERROR,
				(errcode(PGPX_ERRCODE_WORKER_DOWN),
				 errmsg("the pool worker is not running"),
				 errhint("It is restarted within a second. If it is not, see the server log and \"max_worker_processes\".")));

	raise_if_unreachable(c, pool);
	if (granted)
		strlcpy(detail, "A connection was granted in time, but its socket or the answer to its reset arrived after the timeout.",
				sizeof(detail));
	else
		hint = write_wait_cause(c, pool, detail, sizeof(detail));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("no connection to server \"%s\" became available within " INT64_FORMAT " ms",
					NameStr(c->spec->server_name), c->timeout_ms),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

void
pgpx_checkout_raise_lost(PgpxCheckout *c)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("connection to server \"%s\" was lost",
					NameStr(c->spec->server_name)),
			 errdetail("The statement was sent, but its answer was lost. It may have been executed."),
			 errhint("Check on the remote server whether the statement was executed before you repeat it.")));
}

/* ------------------------------------------------------------------------
 * The wait
 * ------------------------------------------------------------------------
 */

/*
 * Publish the conninfo and request connections again, after the worker has
 * restarted or the options have changed during the wait.  Return false if the
 * spec now has another pool.
 */
static bool
publish_again(PgpxCheckout *c, PgpxPool *pool, uint64 incarnation)
{
	PgpxPool   *current;
	uint64		version;

	PGPX_DEBUG_POINT("publish");
	current = pgpx_checkout_lock_pool(c);
	version = current->version;

	/* 0: do not send the statement, which other options have prepared */
	if (current == pool)
		pgpx_my_waiter()->options_version =
			c->pending == NULL || c->prepared ? pool->options_version : 0;
	LWLockRelease(current->lock);
	if (current != pool)
		return false;
	send_conninfo(c, pool->worker, incarnation, version);
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pgpx_pool_grow_locked(pool, 0);
	LWLockRelease(pool->lock);
	return true;
}

/*
 * Leave the queue because of an error.
 *
 * Return true if the pending statement was sent, or may be sent.  The worker
 * cancels it then, but it may have run.  So the caller must not repeat it.
 */
static bool
dequeue(PgpxCheckout *c, PgpxWaiter *waiter)
{
	PgpxConn   *conn;
	uint64		lease_id;
	int			sqlstate;

	return pgpx_waiter_dequeue(waiter, PGPX_DEQUEUE_CANCEL, &conn, &lease_id,
							   &sqlstate, NULL,
							   &c->waited) == PGPX_WAITER_GRANTED &&
		(pgpx_pending_statement_state() == PGPX_PENDING_SENT ||
		 pgpx_pending_statement_state() == PGPX_PENDING_ABANDONED);
}

/*
 * Return whether the waiter is still waiting, or its statement is being sent.
 */
static bool
is_enqueued(const volatile PgpxWaiter *waiter)
{
	return waiter->state == PGPX_WAITER_WAITING ||
		pgpx_pending_statement_state() == PGPX_PENDING_SENDING;
}

/*
 * Let the pool grow for its waiters if they have waited for longer than
 * expected.  Return when to do so again; 0: never.
 */
static PgpxTime
grow_late(PgpxPool *pool, const PgpxWaiter *waiter)
{
	PgpxTime	due;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	pgpx_pool_grow_locked(pool, 0);
	due = pgpx_pool_growth_due_locked(pool, waiter);
	LWLockRelease(pool->lock);
	return due;
}

/* Return whether a time has been reached; 0: never. */
static bool
is_due(PgpxTime time, PgpxTime now)
{
	return time != 0 && now >= time;
}

/* Return the earlier of two times; 0: never. */
static PgpxTime
earlier(PgpxTime a, PgpxTime b)
{
	if (a == 0 || b == 0)
		return Max(a, b);
	return Min(a, b);
}

/* Return the time for the NOTICE of a long wait; 0: never, or it was sent. */
static PgpxTime
notice_at(const PgpxCheckout *c)
{
	int64		notice_after = c->spec->opts.notice_after;

	return notice_after == 0 || c->noticed ? 0 :
		c->started + notice_after * 1000;
}

PgpxConn *
pgpx_checkout_wait(PgpxCheckout *c, PgpxPool *pool, PgpxWaiter *waiter,
				   uint64 *lease_id, bool *pool_changed)
{
	static uint32 wait_event = 0;
	PgpxWaiterState was;
	PgpxConn   *conn = NULL;
	int			sqlstate = 0;
	char		text[PGPX_ERROR_LEN];
	volatile bool in_time = true;
	PgpxDeadlock *volatile deadlock = NULL;
	volatile PgpxTime check_at = pgpx_deadlock_check_at(pgpx_now(), false);

	*pool_changed = false;
	PG_TRY();
	{
		while (is_enqueued(waiter) && in_time && !*pool_changed &&
			   deadlock == NULL)
		{
			uint64		incarnation = pgpx_pool_worker_incarnation(pool);
			PgpxTime	next_event = earlier(earlier(check_at, c->grow_at),
											 notice_at(c));

			if (must_publish(c, pool, incarnation))
				*pool_changed = !publish_again(c, pool, incarnation);
			else if (!pgpx_session_wait_worker(pool->worker,
											   earlier(next_event, c->deadline),
											   pgpx_wait_event(&wait_event, "PgpoolCheckout")))
			{
				PgpxTime	now = pgpx_now();

				in_time = !is_due(c->deadline, now);
				if (in_time && is_due(notice_at(c), now))
					raise_notice(c, pool);
				if (in_time && is_due(c->grow_at, now))
					c->grow_at = grow_late(pool, waiter);
				if (in_time && is_due(check_at, now))
				{
					deadlock = pgpx_deadlock_find(waiter);
					check_at = pgpx_deadlock_check_at(pgpx_now(), true);
				}
			}
		}
		if (deadlock != NULL)
			PGPX_DEBUG_POINT("deadlocked");
	}
	PG_CATCH();
	{
		PGPX_DEBUG_POINT("cancelled");
		(void) dequeue(c, waiter);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (*pool_changed)
	{
		/* if the statement was sent, it may run: do not repeat it */
		if (dequeue(c, waiter))
			pgpx_checkout_raise_lost(c);
		return NULL;
	}
	if (!in_time)
		PGPX_DEBUG_POINT("timed_out");
	was = pgpx_waiter_dequeue(waiter,
							  deadlock != NULL ? PGPX_DEQUEUE_DEADLOCK :
							  in_time ? PGPX_DEQUEUE_CLAIM :
							  PGPX_DEQUEUE_TIMEOUT,
							  &conn, lease_id, &sqlstate, text, &c->waited);
	if (was == PGPX_WAITER_GRANTED && conn == NULL)
		pgpx_checkout_raise_lost(c);
	if (was == PGPX_WAITER_FAILED)
		raise_unreachable(c, sqlstate, text, 0);
	if (was != PGPX_WAITER_GRANTED && deadlock != NULL)
		pgpx_deadlock_raise(deadlock, NameStr(c->spec->server_name));
	if (was != PGPX_WAITER_GRANTED && c->only_try)
		return NULL;
	if (was != PGPX_WAITER_GRANTED)
		pgpx_checkout_raise_timeout(c, pool, false);
	return conn;
}

/*
 * Return the name of a cap that is full with leases of this session alone, and
 * its value in *size.  No other session can make room under such a cap.  Return
 * NULL if there is none.
 */
static const char *
filled_by_own_leases(const PgpxPool *pool, int *size)
{
	*size = pgpx_pool_cap_locked(pool);
	if (pgpx_lease_count(pool->pool_id, -1) >= *size)
		return "pool_size";
	*size = pool->opts.max_server_connections;
	if (*size > 0 && pgpx_lease_count(0, pool->server) >= *size)
		return "max_server_connections";
	*size = pgpx_shared->max_connections;
	if (pgpx_lease_count(0, -1) >= *size)
		return "pgpool_ext.max_connections";
	return NULL;
}

/* Release the pool lock, which the caller must hold, and raise PX004. */
pg_noreturn static void
raise_damaged(PgpxCheckout *c, PgpxPool *pool)
{
	char		text[PGPX_ERROR_LEN];

	strlcpy(text, pool->last_error, sizeof(text));
	LWLockRelease(pool->lock);
	ereport(ERROR,
			(errcode(PGPX_ERRCODE_POOL_DAMAGED),
			 errmsg("the pool of server \"%s\" is out of service",
					NameStr(c->spec->server_name)),
			 errdetail("Its state in shared memory is inconsistent. %s", text),
			 errhint("The pool worker restarts within seconds. Repeat the call then.")));
}

void
pgpx_checkout_check_locked(PgpxCheckout *c, PgpxPool *pool)
{
	int			size;
	const char *cap;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->damaged)
		raise_damaged(c, pool);
	if (!c->no_wait && (cap = filled_by_own_leases(pool, &size)) != NULL)
	{
		pool->stats.deadlocks++;
		LWLockRelease(pool->lock);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("checkout from server \"%s\" would wait for this session itself",
						NameStr(c->spec->server_name)),
				 errdetail("This session holds all connections (%d) that \"%s\" allows.",
						   size, cap),
				 pgpx_lease_all_are_of_tables() ?
				 errhint("End the local transaction, whose foreign tables hold the connections, or raise \"%s\".",
						 cap) :
				 errhint("Return a lease first, or raise \"%s\".", cap)));
	}
	/* a checkout that was already in the queue is not refused */
	if (pool->opts.max_waiters > 0 && !c->no_wait && c->position == 0 &&
		pgpx_pool_blocked_locked(pool) >= pool->opts.max_waiters)
	{
		int			waiting = pgpx_pool_blocked_locked(pool);
		int			most = pool->opts.max_waiters;

		pool->stats.refused++;
		LWLockRelease(pool->lock);
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("too many sessions wait for a connection to server \"%s\"",
						NameStr(c->spec->server_name)),
				 errdetail_plural("%d session waits, and the server's option \"max_waiters\" is %d.",
								  "%d sessions wait, and the server's option \"max_waiters\" is %d.",
								  waiting, waiting, most),
				 errhint("Raise the server's option \"max_waiters\" or \"pool_size\", or return leases earlier.")));
	}

	if (pool->opts.on_unavailable == PGPX_UNAVAILABLE_FAIL &&
		pool->unavailable_since != 0 && pool->retry_at > pgpx_now() &&
		pgpx_pool_count_live_locked(pool) == 0 &&
		pool->count[PGPX_CONN_CONNECTING] == 0 && !pgpx_pool_is_paused(pool) &&
		pool->remote_full_since == 0)
	{
		pool->stats.unavailable++;
		raise_last_error_locked(c, pool);
	}
}
