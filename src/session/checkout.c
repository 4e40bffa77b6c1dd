/*-------------------------------------------------------------------------
 *
 * checkout.c
 *	  Checkout: its steps, from the server's name to a lease.
 *
 * The steps, and the cleanup after an error or at the
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
 * The options in effect of a pool are those that were read from the catalogs
 * last.  A checkout whose options differ reads the catalogs again before the pool
 * adopts its options.  The catalog reader publishes the conninfo in the same way.
 *
 * No lock is held during the wait.  Every end of the wait leaves the queue
 * through pgpx_waiter_dequeue.
 *
 *-------------------------------------------------------------------------
 */
#include "session/checkout.h"

#include <errno.h>

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "base/debug_point.h"
#include "shared/cap.h"
#include "shared/registry.h"
#include "shared/wait_queue.h"
#include "protocol/control_message.h"
#include "protocol/remote_message.h"
#include "session/deadlock.h"
#include "session/lease.h"

/* A checkout in progress. */
typedef struct Checkout
{
	PgpxServerSpec *spec;		/* pinned */
	PgpxHolder	holder;
	bool		only_try;
	bool		noticed;		/* the NOTICE of notice_after was raised */
	int64		timeout_ms;		/* for the error; 0: no limit */
	PgpxPlace	place;
	bool		left_queue;		/* to enqueue again: the wait is not counted */
	PgpxTime	grow_at;		/* while enqueued: when to let the pool grow
								 * again; 0: not by this session */
	uint64		published_version;	/* conninfo that this checkout published, */
	uint64		published_incarnation;	/* and the worker that received it */
	const PgpxPendingStatement *pending;	/* to run on the lease; NULL:
											 * unknown */
	bool		prepared;		/* "pending" was prepared for a hand-over, by
								 * the options of this spec */
	PgpxLease  *lease;			/* its id is 0 until a connection is leased;
								 * NULL: none */
	bool		touched;		/* the stream of the lease may have been read
								 * or written, so its connection must not be
								 * released unchanged */
	PgpxSpecCheck check;		/* as in pgpx_checkout_prewarm */
} Checkout;

/* Return whether a time has been reached; 0: never. */
static bool
is_due(PgpxTime time)
{
	return time != 0 && pgpx_now() >= time;
}

/* ------------------------------------------------------------------------
 * The pool
 * ------------------------------------------------------------------------
 */

/* How often to read a spec again if the catalogs change each time. */
#define MAX_READS 10

/* Reset what applies to one pool only, because the spec has another one. */
static void
forget_pool(Checkout *c)
{
	c->place.position = 0;
	c->published_incarnation = 0;
	c->published_version = 0;
}

/*
 * Read the catalogs again and replace the checkout's spec.
 *
 * Return false if the spec now has another pool.  Then the queue position and
 * the published conninfo, which were for the old pool, are reset.
 */
static bool
refresh_spec(Checkout *c)
{
	PgpxServerSpec *old = c->spec;
	PgpxServerSpec *fresh;
	NameData	name = old->server_name;
	PgpxPoolKey key = old->key;
	bool		same;

	old->read_at = 0;
	fresh = old->by_table ?
		pgpx_server_spec_get_for(NULL, key.server, old->read_for, true) :
		pgpx_server_spec_get_for(NameStr(name), InvalidOid, old->read_for,
								 false);
	if (c->check != NULL)
		c->check(fresh);
	pgpx_server_spec_pin(fresh);
	same = memcmp(&key, &fresh->key, sizeof(key)) == 0;
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
 * Find or create the pool of the server spec and lock it exclusively,
 * with the spec's options in effect.
 *
 * Read the catalogs again if the spec is out of date or its options differ from
 * the pool's.  Errors: those of pgpx_server_spec_get; 53300 too many pools.
 */
static PgpxPool *
lock_pool(Checkout *c)
{
	uint64		read_at = 0;	/* options_version before the last refresh */

	for (;;)
	{
		PgpxServerSpec *spec;
		PgpxPool   *pool;
		bool		current;

		/*
		 * Read the spec again if its catalog entries or privileges changed
		 * since it was read.  If they changed while it was read, it may be
		 * half old and half new, so check again afterwards.
		 */
		AcceptInvalidationMessages();
		for (int i = 0;
			 i < MAX_READS && !pgpx_server_spec_is_valid(c->spec); i++)
			if (!refresh_spec(c))
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

			/* retire pools with outdated SCRAM keys, if no session has yet */
			if (OidIsValid(spec->key.scram_role))
				pgpx_catalog_check_later();
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
			if (spec->uncommitted)
				pgpx_catalog_note_created_pool(pool_id);
			continue;
		}
		current = pgpx_pool_is_current_locked(pool, &spec->fingerprint);
		if (!current && read_at == pool->options_version)
		{
			pgpx_pool_adopt_locked(pool, NameStr(spec->server_name),
								   NameStr(spec->user_name),
								   &spec->fingerprint, &spec->opts);
			current = true;
		}
		if (current)
		{
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
		if (!refresh_spec(c))
			read_at = 0;
	}
}

/*
 * Return whether the conninfo must be published before a connection can be
 * requested.  The caller must hold the pool lock or tolerate a stale result.
 */
static bool
must_publish(const Checkout *c, const PgpxPool *pool,
			 uint64 incarnation)
{
	if (incarnation == 0)
		return false;			/* no worker; the next one wakes the waiters */
	if (pool->has_conninfo)
		return false;
	return c->published_incarnation != incarnation ||
		c->published_version < pool->connect_version;
}

/*
 * Send the conninfo to the pool's worker if it lacks it.
 *
 * The caller must hold the pool lock.  Return true if the lock was released for
 * that; then the checkout must begin again.  Wait for room in the control socket.
 * If there is none until the checkout's deadline, nothing is sent.  Errors: 54000
 * the options are too long.
 */
static bool
publish_if_missing(Checkout *c, PgpxPool *pool)
{
	PgpxServerSpec *spec = c->spec;
	int			worker = pool->worker;
	PgpxConninfo conninfo = {
		.version = pool->version,
		.need_password = spec->need_password,
		.password_command = spec->password_command,
		.start_commands = spec->start_commands,
		.reset_command = spec->reset_command,
		.nparams = spec->nparams,
		.keywords = spec->keywords,
		.values = spec->values,
	};
	uint64		incarnation = pgpx_pool_worker_incarnation(pool);
	int			sent;

	if (!must_publish(c, pool, incarnation))
		return false;
	LWLockRelease(pool->lock);
	do
	{
		sent = pgpx_control_send_conninfo(worker, incarnation, spec->pool,
										  spec->pool_id, &conninfo);
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
	} while (sent == 0 && pgpx_session_wait_control(worker, c->place.deadline));
	c->published_incarnation = incarnation;
	c->published_version = conninfo.version;
	return true;
}

#define PREWARM_CHECK_US (10 * 1000)	/* polling interval of prewarm */

/*
 * Request the connections that the pool lacks, and evict one of another pool if
 * a cap is full.  Return the number of open connections.  Set *more to whether
 * the number can still grow.
 *
 * Not inline: gcc 14 would keep members of the checkout in registers, and warn
 * that PG_TRY may clobber them.
 */
static pg_noinline int
grow_to(Checkout *c, int n, bool *more)
{
	PgpxPool   *pool = lock_pool(c);
	bool		lacks = false;
	bool		lacks_all = false;
	int			live;
	int			missing;

	if (publish_if_missing(c, pool))
		pool = lock_pool(c);

	n = Min(n, pgpx_pool_cap_locked(pool));
	missing = n - pgpx_pool_total_locked(pool);
	if (missing > 0)
	{
		/* growth subtracts connections that will become free anyway */
		pgpx_pool_grow_locked(pool,
							  missing + pgpx_pool_count_soon_free_locked(pool));
		lacks = pool->lacks > 0;
		lacks_all = pool->lacks_all;
	}
	live = pgpx_pool_count_live_locked(pool);

	/* the others are being opened, or are closing and will make room */
	*more = live < n &&
		(pgpx_pool_total_locked(pool) > live ||
		 (pool->retry_at != 0 && !pgpx_pool_is_paused(pool)));
	LWLockRelease(pool->lock);
	if (lacks &&
		pgpx_cap_evict(c->spec->pool, lacks_all, PGPX_EVICT_SURPLUS))
		*more = true;
	return live;
}

int
pgpx_checkout_prewarm(PgpxServerSpec *spec, int n, PgpxTime deadline,
					  PgpxSpecCheck check)
{
	static uint32 wait_event = 0;
	Checkout	c = {
		.spec = spec,
		.place.deadline = deadline,
		.check = check,
	};
	volatile int live = 0;

	if (check != NULL)
		check(spec);
	pgpx_session_register_exit();
	pgpx_server_spec_pin(c.spec);
	PG_TRY();
	{
		bool		more = true;

		for (;;)
		{
			live = grow_to(&c, n, &more);
			if (!more || is_due(deadline))
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

/* ------------------------------------------------------------------------
 * The errors of a wait
 *
 * The detail of a timeout has the numbers of leases and waiters, and its hint
 * names the setting to change.
 * ------------------------------------------------------------------------
 */

#define DETAIL_LEN (512 + PGPX_ERROR_LEN)

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
		case PGPX_LIMIT_BUSY:
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
 * Write an error detail about the use of the pool (the numbers of leases and of
 * other waiters, the oldest lease) and about the cause of the wait.  Return the
 * hint for this cause.  The detail has the error of the last attempt to connect,
 * if it has failed since the checkout began, or if no attempt has succeeded
 * since.
 */
static const char *
write_wait_cause(const Checkout *c, PgpxPool *pool, char *buf, size_t size)
{
	char		reason[PGPX_ERROR_LEN] = "";
	PgpxConn   *oldest = NULL;
	PgpxTime	held = 0;
	PgpxTime	full_for = 0;
	PgpxGrowthLimit limit;
	const char *wait;
	bool		failing;
	int			pid = 0;
	int			leased = 0;
	int			total;
	int			waiting;
	int			connecting;
	int			checking;
	int			cancelling;

	LWLockAcquire(pool->lock, LW_SHARED);
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
		pid = oldest->holder.pid;
		held = pgpx_now() - oldest->leased_at;
	}
	total = pgpx_pool_total_locked(pool);
	waiting = pool->nwaiting -
		(pgpx_my_waiter()->state == PGPX_WAITER_WAITING ? 1 : 0);
	failing = pgpx_pool_is_failing(pool);
	if (pool->fails_since != 0 || pool->last_error_at >= c->place.started)
		strlcpy(reason, pool->last_error, sizeof(reason));
	connecting = pool->count[PGPX_CONN_CONNECTING];
	checking = pool->count[PGPX_CONN_CHECKING];
	cancelling = pool->count[PGPX_CONN_CANCELLING];
	if (pool->remote_full)
		full_for = pgpx_now() - pool->fails_since;
	limit = pgpx_pool_growth_limit_locked(pool);
	LWLockRelease(pool->lock);

	if (pgpx_pool_is_paused(pool))
	{
		snprintf(buf, size, "The server is paused. Active leases: %d. Other waiting sessions: %d.",
				 leased, waiting);
		return "Call pgpool.resume to end the pause.";
	}
	wait = waiting == 1 ? "session waits" : "sessions wait";
	if (oldest != NULL)
		snprintf(buf, size, "%d of %d connections are leased and %d other %s; PID %d has held one for %.3f s.",
				 leased, total, waiting, wait, pid, held / 1e6);
	else
		snprintf(buf, size, "%d %s open or being opened, none is leased, and %d other %s.",
				 total, total == 1 ? "connection is" : "connections are",
				 waiting, wait);
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
raise_notice(Checkout *c, PgpxPool *pool)
{
	char		detail[DETAIL_LEN];

	c->noticed = true;
	(void) write_wait_cause(c, pool, detail, sizeof(detail));
	ereport(NOTICE,
			(errmsg("still waiting for a connection to server \"%s\" after " INT64_FORMAT " ms",
					NameStr(c->spec->server_name),
					(pgpx_now() - c->place.started) / 1000),
			 errdetail_internal("%s", detail)));
}

/*
 * Raise the error of a failed connection attempt, whose SQLSTATE and message
 * are given: as 08001, or with its own SQLSTATE if the cause is on this server
 * or in its settings.  wait_ms: time to the next attempt; 0: unknown.
 */
pg_noreturn static void
raise_unreachable(Checkout *c, int sqlstate, const char *text,
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
raise_last_error_locked(Checkout *c, PgpxPool *pool)
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
 * Raise the error of a checkout whose deadline has passed: PX003 if the worker
 * is not running; the error of the last connection attempt if no attempt has
 * succeeded since and the pool has no live connection; else 55P03.  granted: a
 * connection was granted before the deadline, but was not ready by then.
 */
pg_noreturn static void
raise_timeout(Checkout *c, PgpxPool *pool, bool granted)
{
	char		detail[DETAIL_LEN];
	const char *hint = "Raise the timeout.";

	if (pgpx_pool_worker_incarnation(pool) == 0)
		ereport(ERROR,
				(errcode(PGPX_ERRCODE_WORKER_DOWN),
				 errmsg("the pool worker is not running"),
				 errhint("It is restarted within a second. If it is not, see the server log and \"max_worker_processes\".")));

	LWLockAcquire(pool->lock, LW_SHARED);
	if (pgpx_pool_is_failing(pool) && !pgpx_pool_is_paused(pool) &&
		pgpx_pool_count_live_locked(pool) == 0 && pool->last_sqlstate != 0)
		raise_last_error_locked(c, pool);
	LWLockRelease(pool->lock);
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

/* Raise 08006: the statement was sent, but its answer cannot be read. */
pg_noreturn static void
raise_lost(Checkout *c)
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
notice_at(const Checkout *c)
{
	int64		notice_after = c->spec->opts.notice_after;

	return notice_after == 0 || c->noticed ? 0 :
		c->place.started + notice_after * 1000;
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

/*
 * Raise an error if there is a reason not to enqueue.
 *
 * The caller must hold the pool lock exclusively.  It is released before an
 * error is raised.
 *
 * Errors: PX004 pool damaged; 40P01 the session would wait for itself; 53300
 * queue full; with on_unavailable 'fail', that of the last connection attempt.
 */
static void
check_wait_locked(Checkout *c, PgpxPool *pool)
{
	int			size;
	const char *cap;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (pool->damaged)
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
	if (!c->only_try && (cap = filled_by_own_leases(pool, &size)) != NULL)
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
	if (pool->opts.max_waiters > 0 && !c->only_try && c->place.position == 0 &&
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
		pgpx_pool_is_failing(pool) && pool->retry_at > pgpx_now() &&
		pgpx_pool_count_live_locked(pool) == 0 &&
		pool->count[PGPX_CONN_CONNECTING] == 0 && !pgpx_pool_is_paused(pool))
	{
		pool->stats.unavailable++;
		raise_last_error_locked(c, pool);
	}
}

/* ------------------------------------------------------------------------
 * The steps of a checkout
 * ------------------------------------------------------------------------
 */

/*
 * Extra time that a checkout has after its deadline once a connection was
 * granted.  It covers the transfer of the socket or the answer of a pending
 * reset.
 */
#define GRACE_US (100 * 1000)

/* The outcome of a step. */
typedef enum Outcome
{
	OUTCOME_OK,
	OUTCOME_AGAIN,				/* attempt again: the lock was released, or the
								 * connection has other options */
	OUTCOME_DEAD,				/* attempt again: the connection is dead */
	OUTCOME_LATE				/* the deadline has passed; with only_try: no
								 * connection is free */
} Outcome;

/* Return the deadline for a step after the grant. */
static PgpxTime
step_deadline(const Checkout *c)
{
	PgpxTime	now = pgpx_now();
	PgpxTime	longest = now + c->spec->opts.operation_timeout * 1000;

	/* a statement that was sent is already running */
	if (c->place.deadline == 0 || c->lease->pending_state == PGPX_PENDING_SENT)
		return longest;
	return Min(longest, Max(c->place.deadline, now) + GRACE_US);
}

/*
 * Free the lease record of a checkout that has failed, or whose connection
 * could not be validated, and release the connection.
 *
 * may_reuse: the connection is not known to be unusable, so it stays open if
 * its stream was not touched.
 */
static void
drop_lease(Checkout *c, bool may_reuse)
{
	PgpxLease  *lease = c->lease;
	PgpxCachedSocket *sock = lease->sock;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	PgpxCloseReason reason;
	PgpxReleaseAction action =
		pgpx_pending_release_action(lease->pending_state, &reason);

	if (action == PGPX_RELEASE_UNCHANGED && (!may_reuse || c->touched))
		action = PGPX_RELEASE_CLOSE;
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
 * arrive at any time.  Anything else, and a deadline that passes before that of
 * the checkout, means that the connection is dead.
 */
static Outcome
poll_socket(const Checkout *c, PgpxTime deadline)
{
	static uint32 wait_event = 0;
	PgpxLease  *lease = c->lease;
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
				return OUTCOME_DEAD;
			if (pgpx_wire_is_at_boundary(wire))
				return OUTCOME_OK;
			continue;
		}
		if (event != PGPX_EV_NEED_INPUT)
			return OUTCOME_DEAD;
		if (wire->phase == PGPX_WIRE_IDLE)
		{
			/* unsolicited input may be endless */
			CHECK_FOR_INTERRUPTS();
			if (wire->bytes_in - start > MAX_IDLE_BYTES)
				return OUTCOME_DEAD;
			if (n > 0 && full)
				continue;
			return pgpx_wire_is_at_boundary(wire) ? OUTCOME_OK :
				OUTCOME_DEAD;
		}
		if (n > 0)
			continue;
		n = pgpx_socket_cache_poll(lease->sock, lease->spec->pool, &full);
		polled = n != 0;
		if (!polled &&
			!pgpx_session_wait(lease->sock, WL_SOCKET_READABLE, deadline,
							   pgpx_wait_event(&wait_event, "PgpoolReset")))
			return is_due(c->place.deadline) ? OUTCOME_LATE : OUTCOME_DEAD;
	}
}

/*
 * Read the catalogs again after they have changed, and move the lease to the new
 * spec.  Return false if the connection was made with other options than those
 * of the new spec, or if that spec has another pool.
 *
 * The new spec may differ from the pool's options, because a transaction sees
 * its own catalog changes before they are committed.  No other session may use
 * such changes.
 */
static bool
renew_spec(Checkout *c)
{
	PgpxLease  *lease = c->lease;
	PgpxPool   *pool;
	bool		current;

	if (!refresh_spec(c))
		return false;
	pgpx_server_spec_pin(c->spec);
	pgpx_server_spec_unpin(lease->spec);
	lease->spec = c->spec;
	pool = pgpx_pool_lock(c->spec->pool, c->spec->pool_id);
	if (pool == NULL)
		return false;
	current = pgpx_conns[lease->conn].version >= pool->connect_version &&
		pgpx_pool_is_current_locked(pool, &c->spec->fingerprint);
	LWLockRelease(pool->lock);
	return current;
}

/*
 * Fetch the socket, check that the connection is alive, and reset it if
 * necessary.
 */
static Outcome
validate_and_reset(Checkout *c)
{
	PgpxLease  *lease = c->lease;
	PgpxConn   *conn = &pgpx_conns[lease->conn];
	bool		sent = lease->pending_state == PGPX_PENDING_SENT;
	PgpxTime	deadline = 0;
	PgpxWire   *wire;
	const PgpxWaiter *waiter = pgpx_my_waiter();
	Outcome		outcome;

	/* after a failed hand-over the state of the connection is not known */
	if (lease->pending_state == PGPX_PENDING_FAILED)
		return OUTCOME_DEAD;

	/*
	 * The options and privileges may have changed, and no other session may
	 * have applied the change to the pool yet.  If all users of a PUBLIC
	 * mapping share the pool, no session applies a change of privileges.  A
	 * change does not affect a statement that was sent before.
	 */
	AcceptInvalidationMessages();
	if (!pgpx_server_spec_is_valid(c->spec) && !sent && !renew_spec(c))
		return OUTCOME_AGAIN;

	lease->sock = pgpx_socket_cache_find(lease->conn, lease->generation);
	if (lease->sock == NULL)
	{
		PgpxFetch	fetch;

		deadline = step_deadline(c);
		fetch = pgpx_socket_cache_fetch(lease->spec->pool, lease->conn,
										lease->generation,
										lease->id, deadline, &lease->sock);
		if (fetch != PGPX_FETCH_OK && sent)
		{
			pgpx_lease_check_revoked(lease);
			raise_lost(c);
		}
		if (fetch != PGPX_FETCH_OK)
			return fetch == PGPX_FETCH_TIMEOUT && is_due(c->place.deadline) ?
				OUTCOME_LATE : OUTCOME_DEAD;
	}

	lease->sock->leased = true;
	lease->sock->poll_began = lease->sock->answer_time = 0;
	wire = &lease->sock->wire;
	c->touched = true;
	if (sent)
	{
		/* pgpx_run_read reads the answer */
		pgpx_wire_begin_sent(wire, lease->id, conn->reset_by,
							 waiter->pending_reset,
							 c->pending->pipeline == NULL ? 0 :
							 c->pending->pipeline->nbefore,
							 waiter->pending_len);
		return OUTCOME_OK;
	}
	pgpx_wire_begin(wire, lease->id, conn->reset_by, conn->unread_reset);
	if (conn->unread_reset > 0 && deadline == 0)
		deadline = step_deadline(c);
	outcome = poll_socket(c, deadline);
	if (outcome == OUTCOME_LATE && wire->bytes_in == 0)
		c->touched = false;

	/*
	 * Reset the connection if it was released under other options than those
	 * of this spec, or in a shared pool by another user.
	 */
	if (outcome != OUTCOME_OK || !conn->dirty ||
		(conn->last_user == lease->user &&
		 lease->spec->opts.reset != PGPX_RESET_ALWAYS))
		return outcome;

	deadline = step_deadline(c);
	lease->usage.resets++;
	pgpx_wire_send_reset(wire, lease->spec->reset_command,
						 lease->spec->start_commands, false);
	if (!pgpx_stream_flush(lease, deadline))
		return OUTCOME_DEAD;
	return poll_socket(c, deadline);
}

int64
pgpx_effective_checkout_timeout(const PgpxServerSpec *spec, int64 timeout_ms)
{
	if (timeout_ms != PGPX_TIMEOUT_DEFAULT)
		return timeout_ms;
	return pgpx_checkout_timeout >= 0 ? pgpx_checkout_timeout :
		spec->opts.checkout_timeout;
}

/*
 * Fill in the record of a lease that was just acquired, and add it to the
 * session's list.  Cannot fail.  The pool is locked, unless the connection was
 * granted to the waiter.
 */
static void
note_lease(Checkout *c, PgpxPool *pool, PgpxConn *conn, uint64 lease_id)
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
	lease->place = c->place;
	lease->place.pool_id = pool->pool_id;
	c->left_queue = false;
	pgpx_server_spec_pin(c->spec);
	dlist_push_head(&pgpx_leases, &lease->node);
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
lease_free_locked(Checkout *c, PgpxPool *pool, bool answered)
{
	PgpxServerSpec *spec = c->spec;
	PgpxTime	now = pgpx_now();
	PgpxConn   *conn = pgpx_pool_pick_locked(pool, spec->last_conn,
											 spec->last_conn_generation,
											 answered, c->place.started, now);
	uint64		lease_id;

	Assert(LWLockHeldByMeInMode(pool->lock, LW_EXCLUSIVE));
	if (conn == NULL)
		return false;

	/* it has waited if an earlier connection was granted but was dead */
	lease_id = pgpx_pool_lease_locked(pool, conn, &c->holder, now,
									  c->place.waited);
	if (lease_id == 0)
		return false;
	if (pool->opts.min_idle > 0)
		pgpx_pool_grow_locked(pool, 0);
	pool->stats.hits++;
	note_lease(c, pool, conn, lease_id);
	return true;
}

/*
 * Prepare the statement for a pipelined hand-over.  To be called without the
 * lock, because it allocates memory.
 */
static void
prepare_pending(Checkout *c)
{
	pgpx_pending_statement_set(NULL, 0);
	pgpx_hand_over_prepare(c->spec, c->pending);
	c->prepared = true;
}

/*
 * Wait until the waiter is granted a connection, leave the queue, and record the
 * lease.  To be called without a lock.
 *
 * The conninfo must be published again after the worker has restarted or the
 * options have changed.  Then the checkout begins again, with its position in
 * the queue.  Errors: that of a failed connect; 55P03; 40P01 if the session is
 * in a deadlock that it must end.
 */
static Outcome
wait_for_grant(Checkout *c, PgpxPool *pool, PgpxWaiter *waiter)
{
	static uint32 wait_event = 0;
	const volatile int *state = &waiter->state;
	PgpxWaiterState was;
	volatile PgpxDequeue how = PGPX_DEQUEUE_CLAIM;
	PgpxDeadlock *volatile deadlock = NULL;
	PgpxTime	check_at = pgpx_deadlock_check_at(pgpx_now(), false);

	PG_TRY();
	{
		/* the statement may still be being sent after the grant */
		while (how == PGPX_DEQUEUE_CLAIM &&
			   (*state == PGPX_WAITER_WAITING ||
				pgpx_waiter_pending_state(waiter) == PGPX_PENDING_SENDING))
		{
			PgpxTime	next_event = earlier(earlier(check_at, c->grow_at),
											 earlier(notice_at(c),
													 c->place.deadline));

			if (must_publish(c, pool, pgpx_pool_worker_incarnation(pool)))
			{
				PGPX_DEBUG_POINT("publish");
				how = PGPX_DEQUEUE_AGAIN;
			}
			else if (pgpx_session_wait_worker(pool->worker, next_event,
											  pgpx_wait_event(&wait_event, "PgpoolCheckout")))
				continue;
			else if (is_due(c->place.deadline))
			{
				PGPX_DEBUG_POINT("timed_out");
				how = PGPX_DEQUEUE_TIMEOUT;
			}
			else
			{
				if (is_due(notice_at(c)))
					raise_notice(c, pool);
				if (is_due(c->grow_at))
				{
					/* the waiters have waited for longer than expected */
					LWLockAcquire(pool->lock, LW_EXCLUSIVE);
					pgpx_pool_grow_locked(pool, 0);
					c->grow_at = pgpx_pool_growth_due_locked(pool, waiter);
					LWLockRelease(pool->lock);
				}
				if (is_due(check_at))
				{
					deadlock = pgpx_deadlock_find();
					check_at = pgpx_deadlock_check_at(pgpx_now(), true);
				}
				if (deadlock != NULL)
				{
					PGPX_DEBUG_POINT("deadlocked");
					how = PGPX_DEQUEUE_DEADLOCK;
				}
			}
		}
	}
	PG_CATCH();
	{
		PGPX_DEBUG_POINT("cancelled");
		(void) pgpx_waiter_dequeue(PGPX_DEQUEUE_CANCEL, &c->place.waited);
		PG_RE_THROW();
	}
	PG_END_TRY();

	was = pgpx_waiter_dequeue(how, &c->place.waited);
	if (was == PGPX_WAITER_GRANTED && waiter->conn < 0)
		raise_lost(c);
	if (was == PGPX_WAITER_FAILED)
		raise_unreachable(c, waiter->sqlstate, waiter->text, 0);
	if (was == PGPX_WAITER_GRANTED)
	{
		/* cannot fail; from here on every cleanup finds the lease */
		c->lease->pending_state = pgpx_waiter_pending_state(waiter);
		note_lease(c, pool, &pgpx_conns[waiter->conn], waiter->lease_id);
		return OUTCOME_OK;
	}
	c->left_queue = how == PGPX_DEQUEUE_AGAIN;
	if (c->left_queue)
		return OUTCOME_AGAIN;
	if (deadlock != NULL)
		pgpx_deadlock_raise(deadlock, NameStr(c->spec->server_name));
	if (!c->only_try)
		raise_timeout(c, pool, false);
	return OUTCOME_LATE;
}

/*
 * Attempt to lease a connection: a free one, or one that is granted after a
 * wait.  Acquire the pool lock, and release it before a wait, an error or the
 * return.
 */
static Outcome
attempt(Checkout *c)
{
	bool		answered = is_last_reset_answered(c->spec);
	PgpxPool   *pool;
	PgpxWaiter *waiter;

	/* read without the lock: a stale result only costs another attempt */
	if (c->pending != NULL && !c->prepared && c->spec->pool >= 0 &&
		pgpx_pools[c->spec->pool].nwaiting > 0)
		prepare_pending(c);

	/*
	 * A new checkout overtakes no waiter.  One that was in the queue before
	 * precedes later waiters.  It cannot overtake an earlier one, for which no
	 * connection is free.
	 */
	pool = lock_pool(c);
	if ((pool->nwaiting == 0 || c->place.position != 0) &&
		lease_free_locked(c, pool, answered))
	{
		LWLockRelease(pool->lock);
		return OUTCOME_OK;
	}
	check_wait_locked(c, pool);
	if (publish_if_missing(c, pool))
		return OUTCOME_AGAIN;
	if (c->only_try && pool->count[PGPX_CONN_CHECKING] == 0)
	{
		/* request a connection for a later checkout */
		pgpx_pool_grow_locked(pool, 1);
		LWLockRelease(pool->lock);
		return OUTCOME_LATE;
	}
	if (c->pending != NULL && !c->prepared)
	{
		LWLockRelease(pool->lock);
		prepare_pending(c);
		return OUTCOME_AGAIN;
	}

	/* a test is running: wait for its end, for GRACE_US at most */
	if (c->only_try)
		c->place.deadline = c->place.started + GRACE_US;
	waiter = pgpx_waiter_enqueue_locked(pool, &c->holder, c->place.started,
										c->place.waited, c->place.deadline,
										c->place.position);
	c->place.position = waiter->position;
	c->left_queue = false;
	c->prepared = false;		/* the end of the wait wipes the statement */
	pgpx_pool_grow_locked(pool, 0);
	c->grow_at = pgpx_pool_growth_due_locked(pool, waiter);
	if (pool->retry_at != 0)
		pgpx_worker_wake_soon(pool->worker);
	LWLockRelease(pool->lock);
	return wait_for_grant(c, pool, waiter);
}

/*
 * Lease connections and validate them until one is alive.  Return false only
 * with only_try.  Until the return of true the caller must free c->lease, if it
 * is not NULL, also after an error.
 */
static bool
checkout(Checkout *c)
{
	Outcome		outcome;

	do
	{
		bool		granted;

		c->lease = pgpx_lease_alloc();
		c->touched = false;
		outcome = attempt(c);
		granted = outcome == OUTCOME_OK;
		if (granted)
			outcome = validate_and_reset(c);
		if (outcome == OUTCOME_OK)
			return true;
		drop_lease(c, outcome != OUTCOME_DEAD);
		if (outcome == OUTCOME_LATE && granted && !c->only_try)
			raise_timeout(c, &pgpx_pools[c->spec->pool], true);
	} while (outcome != OUTCOME_LATE);
	return false;
}

PgpxLease *
pgpx_lease_checkout(PgpxServerSpec *spec, int64 timeout_ms, bool only_try,
					PgpxScope scope, const char *why,
					const PgpxPendingStatement *statement,
					const PgpxPlace *retry)
{
	Checkout	c = {
		.spec = spec,
		.only_try = only_try,
		.pending = statement,
		.holder = {
			.procno = MyProcNumber,
			.pid = MyProcPid,
			.user = spec->read_for,
			.scope = scope,
		},
	};
	volatile bool done = false;
	const char *user_name;

	pgpx_session_register_exit();
	if (why != NULL)
		memcpy(c.holder.why, why,
			   pg_mbcliplen(why, strlen(why), PGPX_WHY_LEN - 1));
	strlcpy(c.holder.application_name,
			application_name ? application_name : "", NAMEDATALEN);
	user_name = OidIsValid(spec->user) ? NULL :
		GetUserNameFromId(spec->read_for, true);
	strlcpy(c.holder.user_name, user_name ? user_name : "", NAMEDATALEN);
	c.timeout_ms = pgpx_effective_checkout_timeout(spec, timeout_ms);
	c.place.started = pgpx_now();
	c.place.deadline = only_try ? c.place.started :
		c.timeout_ms == 0 ? 0 : c.place.started + c.timeout_ms * 1000;
	if (retry != NULL && retry->position != 0 &&
		retry->pool_id == spec->pool_id)
		c.place = *retry;

	pgpx_server_spec_pin(c.spec);
	PG_TRY();
	{
		done = checkout(&c);
	}
	PG_FINALLY();
	{
		if (!done && c.lease != NULL)
			drop_lease(&c, true);
		if (!done && c.left_queue)
			pgpx_waiter_give_up(c.place.waited);
		pgpx_pending_statement_clear();
		pgpx_server_spec_unpin(c.spec);
	}
	PG_END_TRY();

	if (done && pgpx_log_min_wait >= 0 &&
		c.place.waited > (retry == NULL ? 0 : retry->waited) &&
		c.place.waited >= (PgpxTime) pgpx_log_min_wait * 1000)
		ereport(LOG,
				(errmsg("checkout from server \"%s\" waited for %.3f ms",
						NameStr(c.spec->server_name),
						c.place.waited / 1000.0)));
	return done ? c.lease : NULL;
}

PgpxLease *
pgpx_lease_checkout_call(const char *server,
						 const PgpxPendingStatement *pending,
						 const PgpxPlace *retry)
{
	return pgpx_lease_checkout(pgpx_server_spec_get(server),
							   PGPX_TIMEOUT_DEFAULT, false, PGPX_SCOPE_CALL,
							   NULL, pending, retry);
}
