/*-------------------------------------------------------------------------
 *
 * share.c
 *	  Fair shares: the local servers that connect to one remote database agree
 *	  how many connections each may have (cluster_connections).
 *
 * Each foreign server with the option is a *member*.  Its name consists of the
 * name of this run of the local server (system identifier and a random number,
 * so that clones differ), the OIDs of the local database and of the foreign
 * server, and the worker's incarnation.  The incarnation is part of it because
 * a new worker does not know the remote sessions of its predecessor, which may
 * not have ended yet.  Each member has a row in pgpool_lock.shares of the
 * remote database: what it wants, what it holds (its share), and the PIDs of
 * its remote sessions.
 *
 * The cap is never exceeded:
 *
 * - One statement (lock_remote.c) does everything.  It first locks the row
 *   of share_turn, so statements of all members run one after the other, each
 *   with the rows that the ones before have committed.
 * - A member raises "held" only up to the cap less what the other rows hold.
 * - It opens connections only up to its share: each has a token of the server's
 *   PgpxCap, from before the login until the remote has closed the session.
 * - The share is valid only for pools that connect to the remote database with
 *   which it was agreed (share_remote).
 * - It lowers its own limit first, and "held" in the next statement, which
 *   counts the tokens in use after that.
 * - Statements of a member have increasing numbers (request), and a row never
 *   takes a lower one, so a statement that is executed late has no effect.
 *
 * Dead members.  The protocol uses no time of day.  A member observes the
 * request numbers of the others.  A member is dead or cut off if its number has
 * not changed for DEAD_US of the observer's steady clock.  The observer names
 * it in its statements (a worker names its predecessors at once).  If the row
 * still has that number, the statement counts those of its PIDs that are
 * sessions of the remote, and removes the row when none is left.
 *
 * The member itself may open connections until VALID_US after it has sent its
 * last successful statement, by its own steady clock.  That is less than
 * DEAD_US, and the observer's time starts later, so the member never opens one
 * after others have begun to count its sessions.  Login attempts are ended
 * then, too.  Its open connections remain in use, because they are counted one
 * by one.  For this, each PID is published before the first statement runs in
 * its session (PGPX_PHASE_PUBLISH).  A session whose PID was not published is
 * idle, so the remote ends it when it reads the end of the connection.  If it
 * receives none, because the worker was stopped by a signal, its machine lost
 * power or the network was cut, the session remains, uncounted, until the
 * remote's keepalives fail.  PIDs are compared only in the same run of the
 * remote's postmaster, because they are reused.  If the tables were created
 * again, which the number of the statement shows, a member opens nothing for
 * DEAD_US, because the rows of other members may still be missing.
 *
 * Fairness.  Each member computes the same max-min fair shares by weight from
 * the rows; a member that wants connections has a share of at least one.  It
 * raises "held" to its share if the cap allows, and keeps connections above its
 * share only while no other member lacks any.  If more members want connections
 * than the cap allows, they take turns: a member releases its connection after
 * TURN_US.  Two more rules prevent starvation (share_turn.pml).  A member is
 * starved if it wants connections and has none.
 * - Starved members precede all others, in the order of "since" (the number of
 *   the statement that put the row into this state) and name.  A statement that
 *   raises "held" leaves a free connection for each starved member before it.
 * - While another member is starved, none raises its limit again before "held"
 *   has come down to it.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/share.h"

#include "lib/stringinfo.h"
#include "storage/spin.h"
#include "utils/memutils.h"

#include "locks/lock_remote.h"
#include "shared/pool.h"
#include "shared/pool_worker.h"
#include "shared/registry.h"
#include "worker/connect.h"
#include "worker/connection.h"
#include "worker/conninfo.h"
#include "worker/events.h"
#include "worker/worker.h"

#define DEAD_US		(5 * 1000 * 1000)
#define VALID_US	(4 * 1000 * 1000)
#define TURN_US		(1000 * 1000)

/* Intervals between the statements of a member. */
#define PING_US		(500 * 1000)	/* with connections */
#define STARVED_US	(200 * 1000)	/* if it wants more than it holds */
#define MIN_INTERVAL_US	(10 * 1000)		/* after a change */

#define DEMAND_WINDOW_US	(1000 * 1000)	/* the demand is its maximum */
#define PLAN_US		(5 * 1000)	/* shortest interval between two plans */

#define CANNOT_CONNECT ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION

#define MEMBERS_MAX 1000

/* A foreign server with cluster_connections. */
typedef struct Share
{
	/* determined by each plan */
	int			pool;			/* whose pinger sends; -1: none */
	uint32		pool_id;
	bool		planned;
	int			cap;			/* the option */
	int			weight;
	int			demand_now;
	int			demand;			/* maximum of DEMAND_WINDOW_US */
	int			peak[2];		/* of the current and the previous half of it */
	PgpxTime	peak_since;
	PgpxTime	due;
	Oid			database;
	Oid			server;
	uint64		remote;			/* pgpx_pool_remote of "pool" */
	NameData	database_name;
	NameData	server_name;

	/* the last result, and the rows of the one that is being read */
	PgpxShareMember *members;	/* others, in the order of names */
	int			nmembers;
	PgpxShareMember *rows;
	int			nrows;
	PgpxShareMember mine;		/* request 0: none */
	PgpxShareMember mine_read;
	int			common_cap;		/* smallest cap of the live members */
	PgpxTime	held_since;		/* steady: since when it has held any */
	int64		turn;			/* number of the last statement */
	PgpxTime	recreated_at;	/* steady: when the tables were new; 0: never */
	bool		difference_logged;

	/* the statement in flight */
	bool		in_flight;
	bool		failing;
	bool		remote_full;	/* .. for lack of remote connections */
	uint64		request;
	int			target;
	PgpxTime	sent_at;		/* steady */
	PgpxTime	last_sent;
} Share;

static Share *shares = NULL;	/* [max_pools], by index of the PgpxServer */
static PgpxTime planned_at = 0;
static bool any_planned = false;

static bool
is_of_server(int pool, int server)
{
	return pgpx_pools[pool].pool_id != 0 && pgpx_pools[pool].server == server &&
		pgpx_pools[pool].worker == pgpx_worker_index;
}

/* Record for the pools of a server that the remote is no longer full. */
static void
clear_remote_full(Share *s, int server)
{
	for (int i = 0; s->remote_full && i < pgpx_pools_end(); i++)
		if (is_of_server(i, server))
			pgpx_pool_set_remote_full(&pgpx_pools[i], NULL);
	s->remote_full = false;
}

/*
 * Return whether the pool has options that only its transaction sees.  It may
 * connect to another remote database than the other pools of its server.  So
 * its pinger sends the statements only if no other pool has a conninfo.
 */
static bool
is_private(int pool)
{
	return TransactionIdIsValid(pgpx_pools[pool].key.xid);
}

/*
 * Write this member's name to "name".  Return the length of the prefix that the
 * names of its predecessors have, too: all but the worker's incarnation.
 */
static size_t
write_name(const Share *s, char *name)
{
	snprintf(name, PGPX_SHARE_NAME_LEN, "%s/%u/%u/" UINT64_FORMAT,
			 pgpx_shared->instance, s->database, s->server,
			 pgpx_worker_incarnation);
	return strrchr(name, '/') + 1 - name;
}

/*
 * Return how many connections this member should hold now.  used: its
 * connections; limit: its share that is in effect.
 */
static int
choose_target(const Share *s, int used, int limit)
{
	PgpxTime	now = pgpx_steady_now();
	PgpxShareInput in = {.own = s->mine,
						 .others = s->members,
						 .nothers = s->nmembers,
						 .cap = s->cap,
						 .used = used,
						 .limit = limit};

	write_name(s, in.own.name);
	in.own.weight = s->weight;
	in.own.demand = Min(s->demand, PGPX_SHARE_MAX);
	in.own.dead = false;
	if (s->common_cap > 0)
		in.cap = Min(in.cap, s->common_cap);
	in.turn_over = now >= s->held_since + TURN_US;
	in.recreated = s->recreated_at != 0 && now < s->recreated_at + DEAD_US;
	return pgpx_share_choose_target(&in);
}

/* --- the plan ----------------------------------------------------------- */

/* End the login attempts, because the share of the server has expired. */
static void
end_attempts(int server)
{
	char		reason[PGPX_WHY_LEN];
	char		text[PGPX_ERROR_LEN];

	SpinLockAcquire(&pgpx_servers[server].share_mutex);
	strlcpy(reason, pgpx_servers[server].share.error, sizeof(reason));
	SpinLockRelease(&pgpx_servers[server].share_mutex);
	snprintf(text, sizeof(text), "The share of cluster_connections has expired: %s",
			 reason[0] != '\0' ? reason : "pgpool_lock.shares was not updated in time");
	pgpx_connect_end_unpublished(server, shares[server].remote_full, text);
}

/*
 * Determine what the server wants: the most of the last second, because
 * connections that are idle for a moment should not be closed for others.
 */
static void
set_demand(Share *s, PgpxTime now)
{
	if (now - s->peak_since >= DEMAND_WINDOW_US / 2)
	{
		s->peak[1] = now - s->peak_since < DEMAND_WINDOW_US ? s->peak[0] : 0;
		s->peak[0] = 0;
		s->peak_since = now;
	}
	s->peak[0] = Max(s->peak[0], s->demand_now);
	s->demand = Max(s->peak[0], s->peak[1]);
}

/*
 * Set the time at which the next statement of the server is due.  If its share
 * has expired, also end the login attempts.
 */
static void
set_due(Share *s, int server, PgpxTime now)
{
	PgpxCap    *cap = &pgpx_servers[server].cap;
	PgpxTime	steady = pgpx_steady_now();
	PgpxTime	until;
	int			share = pgpx_cap_share(cap, &until);
	int			used = pgpx_cap_used(cap, NULL);
	bool		valid = steady < until;

	if (valid)
		pgpx_event_due_at(now + (until - steady));
	else
		end_attempts(server);
	if (s->in_flight || s->pool < 0)
		s->due = PG_INT64_MAX;
	else if (pgpx_connect_has_unpublished(server))
		s->due = now;
	else if (s->mine.held > Max(share, used) ||
			 (s->demand > s->mine.demand && s->demand > s->mine.held))
		s->due = s->last_sent + MIN_INTERVAL_US;
	else if (s->demand > s->mine.held || (!valid && used > 0))
		s->due = s->last_sent + STARVED_US;
	else if (used > 0 || s->mine.held > 0 || s->demand > 0)
		s->due = s->last_sent + PING_US;
	else
		s->due = PG_INT64_MAX;
}

/*
 * Discard the agreed share, because another server has taken the slot, or the
 * server connects to another remote database.  The result of a statement in
 * flight is ignored.  Connections to the previous database keep their
 * tokens until they are closed, so they count for the new one, too.
 */
static void
reset_share(Share *s, const PgpxPool *pool)
{
	PgpxShareMember *members = s->members;
	PgpxShareMember *rows = s->rows;

	if (s->in_flight)
		pgpx_connect_not_published(s->request);
	memset(s, 0, sizeof(*s));
	s->members = members;
	s->rows = rows;
	s->pool = -1;
	s->database = pool->key.database;
	s->server = pool->key.server;
}

/*
 * Make this pool's pinger send the statements of the server from now on.
 * remote: pgpx_pool_remote of the pool.
 */
static void
use_pool(Share *s, int index, uint64 remote)
{
	PgpxPool   *pool = &pgpx_pools[index];

	if (s->remote != remote)
	{
		PgpxServer *server = &pgpx_servers[pool->server];

		reset_share(s, pool);
		s->remote = remote;
		pgpx_cap_forget_share(&server->cap);
		SpinLockAcquire(&server->share_mutex);
		memset(&server->share, 0, sizeof(server->share));
		SpinLockRelease(&server->share_mutex);
	}
	s->pool = index;
	s->pool_id = pool->pool_id;
}

/* Add a pool to the plan of its server. */
static void
plan_pool(int index)
{
	PgpxPool   *pool = &pgpx_pools[index];
	Share	   *s = &shares[pool->server];
	int			cap;
	int			weight;
	int			demand;
	int			most;
	uint64		remote = 0;

	LWLockAcquire(pool->lock, LW_SHARED);
	if (pgpx_conninfo_is_current(index, pool->pool_id))
		remote = pgpx_pool_remote(pool);
	cap = pool->opts.cluster_connections;
	weight = pool->opts.cluster_weight;
	most = pool->opts.max_server_connections > 0 ?
		Min(pool->opts.max_server_connections, pgpx_shared->max_connections) :
		pgpx_shared->max_connections;

	/* a pause grants nothing more, and leaves the leases */
	demand = pgpx_pool_is_paused(pool) ? pool->count[PGPX_CONN_LEASED] :
		pgpx_pool_demand_locked(pool);
	LWLockRelease(pool->lock);
	if (cap == 0)
		return;

	if (s->database != pool->key.database || s->server != pool->key.server)
		reset_share(s, pool);
	if (remote != 0 &&
		(s->pool < 0 || s->pool == index ||
		 (is_private(s->pool) && !is_private(index))))
		use_pool(s, index, remote);
	s->database_name = pool->database_name;
	s->server_name = pool->server_name;
	if (!s->planned)
		s->demand_now = 0;
	s->planned = true;
	s->cap = cap;
	s->weight = weight;
	s->demand_now = Min(s->demand_now + demand, most);
}

PgpxTime
pgpx_share_plan(PgpxTime now)
{
	bool		had_planned;

	if (pg_atomic_read_u32(&pgpx_shared->uses_shares) == 0)
		return PG_INT64_MAX;
	if (any_planned && now < planned_at + PLAN_US)
		return planned_at + PLAN_US;
	if (shares == NULL)
	{
		shares = MemoryContextAllocZero(TopMemoryContext,
										mul_size(pgpx_shared->max_pools,
												 sizeof(Share)));
		for (int i = 0; i < pgpx_shared->max_pools; i++)
			shares[i].pool = -1;
	}
	planned_at = now;
	had_planned = any_planned;
	for (int i = 0; any_planned && i < pgpx_pools_end(); i++)
	{
		Share	   *s = &shares[i];

		s->planned = false;
		if (s->pool >= 0 &&
			(!is_of_server(s->pool, i) ||
			 s->pool_id != pgpx_pools[s->pool].pool_id ||
			 !pgpx_conninfo_is_current(s->pool, s->pool_id)))
			s->pool = -1;
	}
	any_planned = false;
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (pgpx_pools[i].opts.cluster_connections > 0 &&
			is_of_server(i, pgpx_pools[i].server))
		{
			plan_pool(i);
			any_planned = true;
		}
	if (had_planned)
		pgpx_connect_need_not_publish();
	if (!any_planned)
		return PG_INT64_MAX;
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (shares[i].planned)
		{
			set_demand(&shares[i], now);
			set_due(&shares[i], i, now);
		}
	return 0;
}

/* Return the share whose statements this pool's pinger sends, or NULL. */
static Share *
share_of(int pool, uint32 pool_id)
{
	int			server = pgpx_pools[pool].server;
	Share	   *s;

	if (!any_planned || server < 0)
		return NULL;			/* -1: the slot of the pool is free */
	s = &shares[server];
	return s->planned && s->pool == pool && s->pool_id == pool_id ? s : NULL;
}

int
pgpx_share_next_pool(int pool, uint32 *pool_id)
{
	for (; any_planned && pool < pgpx_pools_end(); pool++)
	{
		*pool_id = pgpx_pools[pool].pool_id;
		if (*pool_id != 0 && share_of(pool, *pool_id) != NULL)
			return pool;
	}
	return -1;
}

PgpxTime
pgpx_share_due(int pool, uint32 pool_id)
{
	Share	   *s = share_of(pool, pool_id);

	return s != NULL ? s->due : PG_INT64_MAX;
}

/* --- the statement ------------------------------------------------------ */

/* Append the PIDs of all sessions; mark those in phase PUBLISH as sent. */
static void
append_pids(const Share *s, int server, StringInfo sql)
{
	const char *separator = "";

	pgpx_connection_foreach(w)
	{
		PgpxConn   *conn = &pgpx_conns[w->index];
		int			pool = conn->pool;

		if (pool < 0 || pgpx_pools[pool].server != server ||
			conn->remote_pid <= 0)
			continue;
		appendStringInfo(sql, "%s%d", separator, conn->remote_pid);
		separator = ",";
		if (w->phase == PGPX_PHASE_PUBLISH)
			w->published_by = s->request;
	}
}

/* Append the names and requests of members that have not changed for long. */
static void
append_dead(const Share *s, StringInfo names, StringInfo requests)
{
	PgpxTime	before = pgpx_steady_now() - DEAD_US;
	const char *separator = "";

	for (int i = 0; i < s->nmembers; i++)
		if (s->members[i].unchanged_since < before)
		{
			appendStringInfo(names, "%s%s", separator, s->members[i].name);
			appendStringInfo(requests, "%s" UINT64_FORMAT, separator,
							 s->members[i].request);
			separator = ",";
		}
}

#define ANSWER_MAX_MS 2000		/* of a statement: leaves time for another */

/* Choose the target, lower the limit to it, and build the statement. */
static void
build_statement(int server, StringInfo sql)
{
	Share	   *s = &shares[server];
	PgpxCap    *cap = &pgpx_servers[server].cap;
	PgpxTime	until;
	int			share = pgpx_cap_share(cap, &until);
	char		own[PGPX_SHARE_NAME_LEN];
	StringInfoData pids;
	StringInfoData dead;
	StringInfoData dead_requests;
	PgpxShareStatement st;

	s->target = choose_target(s, pgpx_cap_used(cap, NULL), share);

	/* lower the limit first: what is in use then cannot rise above it */
	st.used = pgpx_cap_lower_share(cap, s->target);
	s->request = pg_atomic_fetch_add_u64(&pgpx_shared->next_dlock, 1);
	s->in_flight = true;
	s->nrows = 0;
	s->mine_read.request = 0;
	s->last_sent = pgpx_now();
	s->sent_at = pgpx_steady_now();
	write_name(s, own);
	initStringInfo(&pids);
	append_pids(s, server, &pids);
	initStringInfo(&dead);
	initStringInfo(&dead_requests);
	append_dead(s, &dead, &dead_requests);
	st.member = own;
	st.timeout_ms = ANSWER_MAX_MS;
	st.raises = s->target > s->mine.held;
	st.request = s->request;
	st.cap = s->cap;
	st.weight = s->weight;
	st.demand = s->demand;
	st.target = s->target;
	st.pids = pids.data;
	st.dead = dead.data;
	st.dead_requests = dead_requests.data;
	pgpx_share_append_statement(&st, sql);
	pfree(pids.data);
	pfree(dead.data);
	pfree(dead_requests.data);
}

/*
 * Return the share whose statement is in flight on this connection, or NULL if
 * another server has taken the slot of its server.  The pinger remembers the
 * server, because its pool may have been evicted, and a pool of another server
 * may have taken the slot.
 */
static Share *
share_in_flight(const PgpxPinger *p)
{
	Share	   *s = &shares[p->share_server];

	return s->in_flight && s->request == p->share_request ? s : NULL;
}

/* Read rows of the result.  Return what is wrong with them, or NULL. */
static const char *
read_rows(Share *s, const PGresult *res)
{
	for (int row = 0; row < PQntuples(res); row++)
	{
		PgpxShareMember m;

		if (!pgpx_share_read_row(res, row, &m))
			return "the remote server returned an unexpected result";
		if (m.name[0] != '\0' && s->nrows == MEMBERS_MAX)
			return "pgpool_lock.shares has more than 1000 rows: delete those of servers that no longer exist";
		if (s->rows == NULL)
		{
			s->rows = MemoryContextAlloc(TopMemoryContext,
										 2 * MEMBERS_MAX *
											 sizeof(PgpxShareMember));
			s->members = s->rows + MEMBERS_MAX;
		}
		if (m.name[0] == '\0')
			s->mine_read = m;
		else
			s->rows[s->nrows++] = m;
	}
	return NULL;
}

static int
compare_names(const void *a, const void *b)
{
	const PgpxShareMember *m = a;
	const PgpxShareMember *n = b;

	return strcmp(m->name, n->name);
}

/* Replace the members by the rows that were read. */
static void
replace_members(Share *s)
{
	PgpxShareMember *before = s->members;
	PgpxTime	now = pgpx_steady_now();
	char		own[PGPX_SHARE_NAME_LEN];
	size_t		prefix_len = write_name(s, own);

	for (int i = 0; i < s->nrows; i++)
	{
		PgpxShareMember *m = &s->rows[i];
		const PgpxShareMember *old = bsearch(m, before, s->nmembers,
											 sizeof(PgpxShareMember),
											 compare_names);

		m->unchanged_since = strncmp(m->name, own, prefix_len) == 0 ?
			PG_INT64_MIN :
			old != NULL && old->request == m->request ? old->unchanged_since :
			now;
	}
	qsort(s->rows, s->nrows, sizeof(PgpxShareMember), compare_names);
	s->members = s->rows;
	s->nmembers = s->nrows;
	s->rows = before;
	if (s->mine.held == 0 && s->mine_read.held > 0)
		s->held_since = now;
	if (s->mine_read.turn < s->turn)
		s->recreated_at = now;
	s->turn = s->mine_read.turn;
	s->mine = s->mine_read;
	s->common_cap = s->mine.cap;
}

/* Log once that the members have different caps. */
static void
log_differences(Share *s)
{
	bool		differs = s->common_cap != s->cap;

	for (int i = 0; i < s->nmembers; i++)
		if (!s->members[i].dead && s->members[i].cap != s->cap)
			differs = true;
	if (differs && !s->difference_logged)
		ereport(WARNING,
				(errmsg("servers that connect to the remote database of server \"%s\" of database \"%s\" have different values of cluster_connections",
						NameStr(s->server_name), NameStr(s->database_name)),
				 errdetail("It is %d here. The smallest, %d, applies to all.",
						   s->cap, s->common_cap)));
	s->difference_logged = differs;
}

/* Publish the state for the view cluster_shares. */
static void
publish_info(const Share *s, int server)
{
	PgpxShareInfo info = {.cap = s->common_cap,
						  .weight = s->weight,
						  .demand = s->demand,
						  .members = 1,
						  .agreed_at = pgpx_now()};

	for (int i = 0; i < s->nmembers; i++)
	{
		info.others += s->members[i].held;
		info.members += !s->members[i].dead;
	}
	SpinLockAcquire(&pgpx_servers[server].share_mutex);
	pgpx_servers[server].share = info;
	SpinLockRelease(&pgpx_servers[server].share_mutex);
}

/*
 * Set the share of a server.  Do nothing if its slot has been taken by another
 * server since the statement was sent.
 */
static void
set_share(const Share *s, int server, int limit)
{
	LWLockAcquire(pgpx_shared->registry_lock, LW_SHARED);
	if (pgpx_servers[server].database == s->database &&
		pgpx_servers[server].server == s->server)
		pgpx_cap_set_share(&pgpx_servers[server].cap, limit,
						   s->sent_at + VALID_US, s->remote);
	LWLockRelease(pgpx_shared->registry_lock);
}

/*
 * Apply the result of a committed statement.  Return false if it is incomplete.
 */
static bool
apply_result(Share *s, int server)
{
	PgpxCap    *cap = &pgpx_servers[server].cap;
	int			limit;

	if (s->mine_read.request != s->request)
		return false;
	s->in_flight = false;
	replace_members(s);

	/* lower the limit now; the next statement publishes a lower share */
	limit = Min(s->mine.held, s->target);
	limit = Min(limit, choose_target(s, pgpx_cap_used(cap, NULL), limit));
	set_share(s, server, limit);
	planned_at = 0;
	if (s->failing)
		ereport(LOG,
				(errmsg("pgpool_ext agrees on the share of server \"%s\" of database \"%s\" again",
						NameStr(s->server_name), NameStr(s->database_name))));
	s->failing = false;
	clear_remote_full(s, server);
	log_differences(s);
	publish_info(s, server);

	pgpx_connect_published(s->request);

	/* open what the share allows, close what exceeds it */
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (is_of_server(i, server))
			pgpx_event_pool_changed(i);
	return true;
}

void
pgpx_share_send(PgpxPinger *p)
{
	StringInfoData sql;

	initStringInfo(&sql);
	p->share_server = pgpx_pools[p->pool].server;
	build_statement(p->share_server, &sql);
	p->share_request = shares[p->share_server].request;
	p->phase = PGPX_PINGER_SHARE;
	p->error[0] = '\0';
	p->sqlstate = 0;
	p->phase_since = pgpx_now();
	p->deadline = p->phase_since + ANSWER_MAX_MS * 1000;
	if (!PQsendQuery(p->pg, sql.data))
		pgpx_pinger_failed(p, PQerrorMessage(p->pg));
	else
		pgpx_pinger_sent(p);
	pfree(sql.data);
}

/* Row callback of the statement. */
static void
read_share(PgpxPinger *p, const PGresult *res)
{
	Share	   *s = share_in_flight(p);
	const char *wrong = s != NULL ? read_rows(s, res) : NULL;

	if (wrong != NULL)
		strlcpy(p->error, wrong, sizeof(p->error));
}

void
pgpx_share_step(PgpxPinger *p)
{
	Share	   *s;

	if (!pgpx_pinger_results(p, read_share))
		return;
	s = share_in_flight(p);
	if (p->error[0] == '\0' && s != NULL && !apply_result(s, p->share_server))
	{
		p->sqlstate = ERRCODE_UNDEFINED_TABLE;
		strlcpy(p->error, "pgpool_lock.share_turn has no row, or this server's row in pgpool_lock.shares was altered",
				sizeof(p->error));
	}
	if (p->error[0] != '\0')
		pgpx_pinger_failed(p, p->error);
	else
	{
		p->backoff = 0;
		p->retry_at = 0;
		p->answered = true;
		pgpx_pinger_set_idle(p);
	}
}

void
pgpx_share_aborted(const PgpxPinger *p)
{
	Share	   *s = share_in_flight(p);

	if (s == NULL)
		return;
	s->in_flight = false;
	planned_at = 0;
	pgpx_connect_not_published(s->request);
}

/* Select the next pool of the server whose pinger sends the statements. */
static void
use_next_pool(Share *s, int server)
{
	int			end = pgpx_pools_end();

	for (int i = 1; i <= end; i++)
	{
		int			next = (s->pool + i) % end;

		if (is_of_server(next, server) &&
			pgpx_conninfo_is_current(next, pgpx_pools[next].pool_id) &&
			pgpx_pool_remote(&pgpx_pools[next]) == s->remote)
		{
			use_pool(s, next, s->remote);
			return;
		}
	}
	s->pool = -1;
}

void
pgpx_share_failed(int pool, uint32 pool_id, int sqlstate, const char *reason)
{
	int			server = pgpx_pools[pool].server;
	Share	   *s = share_of(pool, pool_id);
	PgpxShareInfo *info;
	PgpxTime	until;
	char		text[PGPX_ERROR_LEN];
	bool		setup;

	if (s == NULL)
		return;

	/* the remote lacks the tables, or privileges on them */
	setup = sqlstate == ERRCODE_UNDEFINED_SCHEMA ||
		ERRCODE_TO_CATEGORY(sqlstate) ==
			ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION;
	snprintf(text, sizeof(text), "The servers cannot agree on the shares of cluster_connections: %s", reason);
	(void) pgpx_cap_share(&pgpx_servers[server].cap, &until);
	info = &pgpx_servers[server].share;
	SpinLockAcquire(&pgpx_servers[server].share_mutex);
	if (info->failing_since == 0)
		info->failing_since = pgpx_now();
	strlcpy(info->error, reason, sizeof(info->error));
	SpinLockRelease(&pgpx_servers[server].share_mutex);
	if (!s->failing)
		ereport(LOG,
				(errmsg("pgpool_ext cannot agree on the share of server \"%s\" of database \"%s\"",
						NameStr(pgpx_pools[pool].server_name),
						NameStr(pgpx_pools[pool].database_name)),
				 errdetail_internal("%s", reason),
				 setup ? errhint("The remote database needs the tables that pgpool.lock_setup creates, and privileges on them. Open connections remain in use.") :
				 errhint("Open connections remain in use.")));
	s->failing = true;
	if (sqlstate != ERRCODE_TOO_MANY_CONNECTIONS)
		clear_remote_full(s, server);
	s->remote_full = sqlstate == ERRCODE_TOO_MANY_CONNECTIONS;
	for (int i = 0; pgpx_steady_now() >= until && i < pgpx_pools_end(); i++)
	{
		if (!is_of_server(i, server))
			continue;
		if (s->remote_full)
			pgpx_pool_set_remote_full(&pgpx_pools[i], reason);
		else
			pgpx_pool_fail_waiters(&pgpx_pools[i],
								   setup ? PGPX_ERRCODE_SHARES_MISSING :
										   CANNOT_CONNECT, text);
	}
	use_next_pool(s, server);
	planned_at = 0;
}
