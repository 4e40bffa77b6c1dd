/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  The state that all processes share (pools, connections, workers), and
 *	  the order of the locks that protect it.
 *
 * The segment contains indices, generations, states, names and counters, and
 * the statement of a pool call while that call waits (pgpx_pending_statements).
 * It contains no password, no descriptor, and no pointer except those to its
 * locks.  Times are microseconds of the monotonic clock (pgpx_now); views
 * convert them to timestamps.
 *
 * The waiters (wait_queue.h) and the distributed locks (locks.h) are in
 * the same segment.
 *
 * Lock order.  A process acquires locks downward in this table only, and never
 * holds two locks of one kind:
 *
 *	1. registry lock	LWLock, one		which pools exist and under which key.
 *										Shared for a lookup, exclusive to create
 *										or remove a pool.
 *	2. pool lock		LWLock, per		the fields of PgpxPool below "protected
 *						pool			by lock", and every connection and
 *										waiter whose "pool" is this pool.
 *	3. free_mutex		spinlock, one	the list of FREE connections.
 *	-  locks_lock		LWLock, one		distributed locks (locks.h);
 *										acquired alone or under the registry
 *										lock.
 *	-  history_lock		LWLock, one		the samples of the history (history.h);
 *										acquired alone.
 *
 * A process that holds any of them makes no libpq call, raises no ERROR, does
 * not sleep and does not touch a socket.  Its only system call is SetLatch.
 * The invariant checks query the server's process array under a pool lock and
 * under locks_lock.  Fields marked as atomic need no lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SHMEM_H
#define PGPX_SHMEM_H

#include "base/settings.h"

#include "port/atomics.h"
#include "storage/itemptr.h"
#include "storage/lwlock.h"
#include "storage/s_lock.h"

#include "config/options.h"

#define PGPX_WHY_LEN 128		/* bytes of "why" that are stored, with the
								 * NUL */
#define PGPX_ERROR_LEN 512		/* bytes of an error message that are stored */
#define PGPX_ADDR_LEN 48
#define PGPX_TLS_LEN 48
#define PGPX_INSTANCE_LEN 64

typedef int64 PgpxTime;			/* microseconds, monotonic clock; 0: none */

/* A list of array elements, linked by their indices; -1: end. */
typedef struct PgpxList
{
	int			head;
	int			tail;
} PgpxList;

typedef struct PgpxLink
{
	int			prev;
	int			next;
} PgpxLink;

/* conn_state.h has the diagram of the state machine. */
typedef enum PgpxConnState
{
	PGPX_CONN_FREE = 0,			/* in the free list, without a pool */
	PGPX_CONN_CONNECTING,		/* slot reserved; the worker connects */
	PGPX_CONN_IDLE,				/* open, clean, not leased */
	PGPX_CONN_RESET_PENDING,	/* open, not leased, reset sent, answer
								 * unread */
	PGPX_CONN_LEASED,			/* leased to a session */
	PGPX_CONN_RESETTING,		/* the worker resets it or reads the pending
								 * answer */
	PGPX_CONN_CHECKING,			/* the worker tests it */
	PGPX_CONN_CANCELLING,		/* lease ended; a cancel is in flight */
	PGPX_CONN_CLOSING,			/* the worker has to close it */
	PGPX_CONN_NSTATES
} PgpxConnState;

/* Reason for closing a connection. */
typedef enum PgpxCloseReason
{
	PGPX_CLOSE_NONE = 0,
	PGPX_CLOSE_IDLE,
	PGPX_CLOSE_LIFETIME,
	PGPX_CLOSE_OVERFLOW,
	PGPX_CLOSE_EVICTED,
	PGPX_CLOSE_RESET,			/* a reset failed or had an unexpected
								 * answer */
	PGPX_CLOSE_BROKEN,			/* lost, out of sync, or the worker exited */
	PGPX_CLOSE_STALE,			/* opened with older options, or drained */
	PGPX_CLOSE_TERMINATED,
	PGPX_CLOSE_HOLDER_DIED,		/* the lease ended within a statement or a
								 * transaction */
	PGPX_CLOSE_DISCARDED,
	PGPX_CLOSE_NREASONS
} PgpxCloseReason;

typedef enum PgpxScope
{
	PGPX_SCOPE_SESSION = 0,		/* checkout() */
	PGPX_SCOPE_TRANSACTION,		/* checkout_xact() */
	PGPX_SCOPE_CALL,			/* query('pool', ..) and exec('pool', ..) */
	PGPX_SCOPE_TABLE			/* foreign tables: the top transaction */
} PgpxScope;

/* Activity that the holder reports; shown in the view leases. */
typedef enum PgpxActivity
{
	PGPX_ACT_IDLE = 0,
	PGPX_ACT_ACTIVE,
	PGPX_ACT_TRANSACTION,
	PGPX_ACT_FAILED,			/* the remote transaction has failed */
	PGPX_ACT_CANCELLING,
	PGPX_ACT_BROKEN
} PgpxActivity;

/* The holder of a lease, or a waiter for one. */
typedef struct PgpxHolder
{
	int			procno;			/* PGPROC number; -1: none */
	int			pid;			/* 0: none */
	Oid			user;
	int			scope;			/* PgpxScope */
	char		why[PGPX_WHY_LEN];
	char		application_name[NAMEDATALEN];
	char		user_name[NAMEDATALEN]; /* "": the pool's user_name */
} PgpxHolder;

/* One remote session. */
typedef struct PgpxConn
{
	/* atomic */
	pg_atomic_uint64 lease_id;	/* 0: not leased; written under the pool
								 * lock */
	pg_atomic_uint64 packed_activity;	/* activity and statement count, see
										 * conn_state.c */
	pg_atomic_uint32 cancel;	/* PGPX_CANCEL_*: see conn_state.h */
	pg_atomic_uint32 cancel_lost;	/* a cancel may still arrive, see
									 * conn_state.h */
	pg_atomic_uint64 spared_until;	/* PgpxTime: until then the lease is not
									 * revoked, see pgpx_conn_is_spared */
	pg_atomic_uint32 hung_up;	/* the worker has seen a FIN or RST */
	pg_atomic_uint32 end_error; /* errno with which the stream of a TLS
								 * connection has failed; 0: none; written by
								 * the worker */

	/* protected by the pool lock; by free_mutex while FREE */
	int			state;			/* PgpxConnState; written only by
								 * pgpx_conn_set_state and conn_state.c */
	int			pool;			/* index of its pool; -1: FREE */
	PgpxLink	in_lru;			/* in the pool's LRU list, or the free list */
	PgpxLink	in_pool;		/* in the list of all connections of the pool */
	uint64		generation;		/* increases with each new remote session of
								 * this slot */

	/*
	 * protected by the pool lock; cleared when the slot is allocated for a
	 * new remote session
	 */
	uint64		version;		/* pool version at the time of the connect */
	int			unread_reset;	/* PGPX_SENT_* bits of a reset whose answer
								 * is unread; 0: none */
	uint64		reset_by;		/* lease id of the sender of that reset */
	bool		dirty;			/* used since the last reset, and no reset
								 * is pending */
	int			close_reason;	/* PgpxCloseReason, while CLOSING or
								 * CANCELLING */
	bool		broken;			/* see pgpx_pool_lost */

	PgpxHolder	holder;
	PgpxTime	leased_at;
	bool		leak_logged;	/* leak_warning was logged for this lease */
	PgpxTime	waited;			/* duration */

	Oid			last_user;		/* the last one that has sent something */

	PgpxTime	state_since;
	PgpxTime	opened_at;
	PgpxTime	expires_at;		/* see pgpx_choose_expiry; 0: never */
	PgpxTime	connect_time;	/* duration */
	PgpxTime	last_used;
	PgpxTime	last_checked;
	uint64		leases;			/* uses of this generation */
	uint64		statements;		/* of ended leases */

	int			remote_pid;
	int			remote_port;
	char		remote_addr[PGPX_ADDR_LEN];
	bool		used_password;	/* the remote requested a password */
	bool		relayed;		/* TLS; the worker relays the bytes */
	char		tls_version[PGPX_TLS_LEN];
	char		tls_cipher[PGPX_TLS_LEN];
	bool		binary;			/* values may be requested in binary format */
	bool		can_pipeline;	/* a reset may share a Sync with a statement */
} PgpxConn;

/* Bucket 0 counts waits below 1 us, bucket b those in [2^(b-1), 2^b) us. */
#define PGPX_HISTOGRAM_BUCKETS 32

/*
 * Counters of a pool, in the order of view stats, whose comments define them:
 * numbers, times in microseconds, and the numbers of closed connections by
 * reason.  They only increase, under the pool lock.  The history has samples of
 * the SAMPLED ones.
 *
 * The structures, the view, reset_stats and the sums of check_invariants are
 * made from this list.  The lint "documents" compares it with the view.
 */
#define PGPX_COUNTERS(NUMBER, SAMPLED, TIME, SAMPLED_TIME, CLOSED) \
	NUMBER(checkouts) \
	SAMPLED(hits) \
	NUMBER(retried) \
	SAMPLED(waited) \
	NUMBER(granted) \
	NUMBER(pipelined) \
	SAMPLED(timeouts) \
	SAMPLED(cancelled) \
	SAMPLED(failed) \
	SAMPLED(refused) \
	SAMPLED(unavailable) \
	SAMPLED(deadlocks) \
	NUMBER(checkins) \
	NUMBER(reclaimed) \
	NUMBER(terminated) \
	NUMBER(lease_timeouts) \
	SAMPLED_TIME(wait_time) \
	SAMPLED_TIME(lease_time) \
	TIME(max_lease_time) \
	SAMPLED_TIME(answer_time) \
	SAMPLED(statements) \
	NUMBER(polled) \
	NUMBER(rows) \
	SAMPLED(errors) \
	NUMBER(bytes_received) \
	NUMBER(bytes_sent) \
	SAMPLED(connects) \
	SAMPLED(connects_failed) \
	TIME(connect_time) \
	NUMBER(resets) \
	NUMBER(checks) \
	NUMBER(cancels) \
	CLOSED(closed_idle) \
	CLOSED(closed_lifetime) \
	CLOSED(closed_overflow) \
	CLOSED(closed_evicted) \
	CLOSED(closed_reset) \
	CLOSED(closed_broken) \
	CLOSED(closed_stale) \
	CLOSED(closed_with_lease)

typedef struct PgpxStats
{
#define FIELD(name) uint64 name;
	PGPX_COUNTERS(FIELD, FIELD, FIELD, FIELD, FIELD)
#undef FIELD
	uint64		histogram[PGPX_HISTOGRAM_BUCKETS];
} PgpxStats;

/*
 * Totals of a pool, for the history: a sample is the difference of two of
 * them.  Numbers are modulo 2^32, because a difference is smaller.
 *
 * Most are counters of PgpxStats.  The others: arrivals are checkouts without
 * a wait and checkouts that began to wait; leases are those that have ended;
 * leased_time and waiting_time are lease_time and wait_time with the time so far
 * of the leases and waits that have not ended.
 */
#define PGPX_SAMPLED_COUNTERS(NUMBER, TIME) \
	PGPX_COUNTERS(PGPX_SKIP, NUMBER, PGPX_SKIP, TIME, PGPX_SKIP)
#define PGPX_SKIP(name)

#define PGPX_TOTALS(NUMBER, TIME) \
	PGPX_SAMPLED_COUNTERS(NUMBER, TIME) \
	NUMBER(arrivals) \
	NUMBER(leases) \
	TIME(waiting_time) \
	TIME(leased_time)

typedef struct PgpxTotals
{
#define NUMBER(name) uint32 name;
#define TIME(name) int64 name;
	PGPX_TOTALS(NUMBER, TIME)
#undef NUMBER
#undef TIME
	uint32		histogram[PGPX_HISTOGRAM_BUCKETS];
} PgpxTotals;

/* How many sessions use a pool; here always a peak within a span of time. */
typedef struct PgpxLoad
{
	int			leased;			/* leases of connections that are not broken */
	int			waiting;		/* waiters */
	int			callers;		/* leases and waiters together; may be less
								 * than "leased", which then is the peak */
} PgpxLoad;

/* The samples of the history have two spans, see history.h. */
typedef enum PgpxSpan
{
	PGPX_SPAN_SHORT,
	PGPX_SPAN_LONG,
	PGPX_SPANS
} PgpxSpan;

/* The current sample of a pool: its start, and what was true then. */
typedef struct PgpxSampling
{
	PgpxTime	since;
	PgpxTotals	totals;			/* at its start */
	PgpxLoad	peaks;			/* since its start, without PgpxPool.peaks */
} PgpxSampling;

/*
 * Fingerprint of the catalog rows from which the options of a pool were read.
 * Equal fingerprints mean equal options.
 *
 * - For a server it has hashes of the options that matter to a pool, so that
 *   other changes of the row, for example a GRANT, do not count.  The hashes
 *   reveal nothing, because every user may read the options of a server.
 * - For a user mapping, which contains secrets, it has the xmin and the
 *   position of the row, which change with every update.
 * - For the role it has a hash of the name, because a mapping without the
 *   option "user" logs in under that name.
 *
 * The fields before in_place determine where and as which user to connect.  If
 * one of them changes, connections are replaced.  in_place and base_in_place
 * are hashes of the options that take effect in place (PGPX_IN_PLACE in
 * options.c).  In a pool, in_place is 0 while the options must be read from the
 * catalogs again.
 */
typedef struct PgpxFingerprint
{
	uint64		server[2];
	uint64		base[2];		/* 0: it has none */
	uint64		user;
	TransactionId mapping_xmin;
	ItemPointerData mapping_tid;
	uint16		zero[3];		/* explicit padding, since memcmp compares
								 * it */
	uint64		in_place;		/* options of the server that take effect in
								 * place; never 0 once read */
	uint64		base_in_place;	/* of the base server; 0: it has none */
} PgpxFingerprint;

/*
 * Key of a pool: connections with equal keys are interchangeable.  Compared
 * by memcmp, so padding is zero.
 */
typedef struct PgpxPoolKey
{
	Oid			database;
	Oid			server;
	Oid			mapping;
	Oid			local_user;		/* InvalidOid unless the mapping is that of
								 * PUBLIC and names no remote user */
	uint32		superuser;		/* 1: the local user is a superuser */
	Oid			scram_role;		/* whose SCRAM keys log in; InvalidOid: none */
	uint32		scram_digest[3];	/* keyed digest of these keys */
} PgpxPoolKey;

/* A cap over several pools, see cap.h. */
typedef struct PgpxCap
{
	pg_atomic_uint64 permits;	/* permits in use, and changes of that number */
} PgpxCap;

/*
 * State that the pools of one foreign server share.  The slot is occupied
 * with the first pool or pause, and freed with the last.
 */
typedef struct PgpxServer
{
	/* protected by the registry lock */
	Oid			database;
	Oid			server;			/* InvalidOid: this slot is empty */
	int			npools;

	/* atomic */
	pg_atomic_uint32 paused;	/* checkouts are enqueued, existing leases
								 * continue */
	pg_atomic_uint32 draining;	/* also close free connections */

	PgpxCap		cap;			/* max_server_connections */
} PgpxServer;

/*
 * The peak of the concurrent leases of a pool within a period.  The pool counts
 * in halves of the period.  At the end of a half, the larger of the two peaks is
 * the peak of the last period.
 */
typedef struct PgpxPeak
{
	PgpxTime	since;			/* start of the current half */
	int			current;		/* peak of the current half */
	int			previous;		/* peak of the half before */
} PgpxPeak;

typedef struct PgpxPool
{
	/* protected by the registry lock together with the pool lock */
	uint32		pool_id;		/* never reused; 0: this slot is empty */
	PgpxPoolKey key;
	int			next_in_bucket; /* see pgpx_pool_buckets; -1: none */
	NameData	database_name;
	Oid			user;			/* user of the mapping; else key.local_user */
	int			server;			/* index of the PgpxServer */
	int			worker;

	/* set at start-up, then constant */
	LWLock	   *lock;

	/* protected by lock */
	NameData	server_name;	/* as of the last catalog lookup */
	NameData	user_name;		/* likewise; "public" without a user */
	uint64		version;		/* connections of another version are stale */
	uint64		connect_version;	/* the oldest version that connects in
									 * the same way */
	uint64		options_version;	/* incremented with every change of the
									 * options */
	bool		gone;			/* retired because its server, mapping or
								 * user was dropped, or a privilege revoked */
	bool		by_table;		/* foreign tables use it, which need no USAGE on
								 * the server */
	PgpxFingerprint fingerprint;
	PgpxPoolOptions opts;
	bool		has_conninfo;	/* the worker has the conninfo of the pool's
								 * connect_version, or of a later version */
	bool		awaits_conninfo;	/* the worker has requested the conninfo
									 * from the waiters; until it arrives, each
									 * connect would find it missing */

	int			count[PGPX_CONN_NSTATES];	/* connections by state */
	int			nbroken;		/* broken connections among the LEASED ones */
	PgpxList	conns;			/* all connections of the pool, in the order
								 * in which they were opened */
	PgpxList	lru;			/* IDLE and RESET_PENDING, most recently used
								 * first */

	PgpxList	queue;			/* waiters in queue order */
	int			nwaiting;		/* waiters in state WAITING */
	PgpxTime	queued_since;	/* the queue has not been empty since then;
								 * undefined while it is empty */
	int			lacks;			/* connections that it lacks for its waiters
								 * because a cap is full (cap.h), as of the
								 * last pgpx_pool_grow_locked; -1: its waits
								 * are short, so it takes only connections
								 * that others do not use */
	bool		lacks_all;		/* that cap is the one over all pools */
	int			nwaiters;		/* waiters of this pool in any state but
								 * NONE */

	PgpxTime	connect_time;	/* duration of the last connect; 0: unknown */
	PgpxTime	last_checkout;	/* or the time at which the pool was made */
	PgpxLoad	peaks;			/* since the last pgpx_pool_fold_peaks_locked,
								 * which adds them to those below */
	PgpxPeak	idle_peak;		/* its period is idle_timeout */
	PgpxPeak	overflow_peak;	/* its period is overflow_ttl */
	PgpxSampling sampling[PGPX_SPANS];
	uint32		enqueued;		/* checkouts that began to wait, modulo 2^32 */
	bool		tests_time_out; /* a test has timed out, and no other one has
								 * succeeded since; reset when none runs */
	PgpxTime	fails_since;	/* first of the current run of connects that
								 * have failed for the same reason; 0: none */
	bool		remote_full;	/* the reason is that the remote accepts no more
								 * connections; else the pool is unavailable */
	PgpxTime	outage_logged_at;	/* time of the last log message about an
									 * outage, or the loss of an unused
									 * connection; 0: never */
	bool		outage_logged;	/* that outage was logged, so log its end */
	PgpxTime	retry_at;		/* after a failure: no connect before this
								 * time, then one at a time; 0: no limit */
	int64		backoff_ms;		/* last pause between connects; 0: none, or a
								 * connection has proven useful since */
	bool		lost_unused;	/* the last failure was a connection that was
								 * lost before its use */
	int			ramp;			/* limit of concurrent connects after an
								 * outage; 0: none */
	PgpxTime	last_error_at;	/* of last_error */
	int			last_sqlstate;
	int			used_when_full; /* connections of this server at the last such
								 * refusal */
	char		last_error[PGPX_ERROR_LEN];
	bool		damaged;		/* out of service, see registry.c */

	PgpxTime	stats_reset;
	PgpxStats	stats;
} PgpxPool;

/* A pool with empty lists. */
#define PGPX_POOL_INIT \
	{.conns = {-1, -1}, .lru = {-1, -1}, .queue = {-1, -1}}

typedef enum PgpxWorkerState
{
	PGPX_WORKER_DOWN = 0,
	PGPX_WORKER_STARTING,
	PGPX_WORKER_RUNNING,
	PGPX_WORKER_STOPPING
} PgpxWorkerState;

/*
 * One pool worker.  "incarnation" is 0 while the worker does not run, and has a
 * new value after each start.
 */
typedef struct PgpxWorkerSlot
{
	pg_atomic_uint64 incarnation;
	pg_atomic_uint32 state;		/* PgpxWorkerState */
	pg_atomic_uint32 procno;	/* process whose latch to set; valid while
								 * incarnation is not 0 */
	pg_atomic_uint32 pid;
	pg_atomic_uint32 ticking;	/* the worker wakes by itself within
								 * PGPX_TICK_MS, so work that can wait that
								 * long needs no wakeup */
	pg_atomic_uint32 restarts;
	pg_atomic_uint32 must_restart;	/* one of its pools is damaged */
	pg_atomic_uint32 descriptors;
	pg_atomic_uint64 started_at;	/* PgpxTime */
	pg_atomic_uint64 missed_at; /* PgpxTime; see pgpx_worker_is_missing */
} PgpxWorkerSlot;

/* What became of an attached call of dblink: the rows of view dblink_calls. */
typedef enum PgpxDblinkOutcome
{
	PGPX_DBLINK_POOLED,
	PGPX_DBLINK_OPEN_CONNECTION,	/* the argument names an open connection */
	PGPX_DBLINK_NO_SERVER,		/* no server with this identity */
	PGPX_DBLINK_OTHER_SESSION,	/* the pool's sessions differ from dblink's */
	PGPX_DBLINK_NONE_FREE,		/* no connection was free */
	PGPX_DBLINK_UNAVAILABLE,	/* the checkout has failed */
	PGPX_DBLINK_OUTCOMES
} PgpxDblinkOutcome;

/* Databases that can have a resolver at the same time. */
#define PGPX_MAX_RESOLVERS 16

/*
 * A database with participants of commits on several servers, and its resolver.
 * Worker 0 starts the resolver (resolver_start.c).
 */
typedef struct PgpxResolverSlot
{
	pg_atomic_uint32 database;	/* InvalidOid: not in use */
	pg_atomic_uint32 process;	/* one more than the number of the resolver's
								 * process; 0: it does not run */
	pg_atomic_uint32 wakes;		/* incremented when a part may be left */
	pg_atomic_uint32 served;	/* "wakes" before the last round began */
} PgpxResolverSlot;

typedef struct PgpxShared
{
	/* set at start-up, then constant */
	uint64		boot_id;		/* identifies this shared memory; part of
								 * every message */
	int			nworkers;
	int			max_connections;
	int			max_pools;
	int			nwaiter_slots;
	int			max_locks;
	int			max_samples;	/* 0: there is no history */
	int			max_polling;	/* half the processors, see
								 * pgpx_socket_cache_poll */
	LWLock	   *registry_lock;
	LWLock	   *locks_lock;
	LWLock	   *history_lock;
	char		instance[PGPX_INSTANCE_LEN];	/* identifies this run of the
												 * server to other servers */
	char		host[256];		/* name of this host, see pgpx_commit_token */
	PgpxTime	started_at;

	/* atomic */
	pg_atomic_uint64 next_id;	/* of a lease, a wait, a generation, an
								 * incarnation, or an acquisition */
	pg_atomic_uint32 next_pool;
	pg_atomic_uint32 databases_changed; /* incremented by DROP DATABASE and
										 * similar */
	pg_atomic_uint32 pools_changed; /* incremented when options change in
									 * place and when a retired pool becomes
									 * empty */
	pg_atomic_uint32 locks_changed; /* incremented when the worker has
									 * to check the locks */
	pg_atomic_uint32 uses_min_idle; /* 1: a pool has had min_idle since the
									 * start */
	pg_atomic_uint64 clock_offset;	/* offset of the wall clock, see
									 * pgpx_timestamp */
	pg_atomic_uint64 dblink_calls[PGPX_DBLINK_OUTCOMES];	/* by outcome */
	pg_atomic_uint32 visited_database;	/* database that the catalog reader has
										 * visited last after the server's
										 * start; OID_MAX: all are visited */

	/*
	 * One more than the highest slot of pgpx_conns that has been in use since
	 * the server's start, and the same for pgpx_pools and pgpx_servers, so
	 * that loops do not grow with the configuration.  Low slots are used
	 * first.
	 */
	pg_atomic_uint32 conns_end; /* written under free_mutex */
	pg_atomic_uint32 pools_end; /* written under the registry lock */

	pg_atomic_uint32 locks_end; /* of distributed locks; written under
								 * locks_lock */

	/* protected by history_lock: samples of each span that were ever written */
	uint64		samples_written[PGPX_SPANS];

	/* protected by free_mutex */
	slock_t		free_mutex;
	int			free_head;

	PgpxCap		cap;			/* max_connections */

	PgpxWorkerSlot worker[PGPX_MAX_WORKERS];
	PgpxResolverSlot resolver[PGPX_MAX_RESOLVERS];
} PgpxShared;

/* Valid in every process once the library is preloaded; NULL otherwise. */
extern PgpxShared *pgpx_shared;
extern PgpxPool *pgpx_pools;	/* [max_pools] */
extern PgpxServer *pgpx_servers;	/* [max_pools] */

/*
 * Hash table of the pools by their keys: for each bucket the first pool, or -1.
 * Protected by the registry lock.
 */
extern int *pgpx_pool_buckets;	/* [max_pools] */
extern PgpxConn *pgpx_conns;	/* [max_connections] */

/* Return one more than the highest slot of a connection ever in use. */
static inline int
pgpx_conns_end(void)
{
	return (int) pg_atomic_read_u32(&pgpx_shared->conns_end);
}

/* Return one more than the highest slot of a pool or server ever in use. */
static inline int
pgpx_pools_end(void)
{
	return (int) pg_atomic_read_u32(&pgpx_shared->pools_end);
}

/*
 * One bit per connection that needs work by its worker.  Any process sets it,
 * and that worker clears it.  Each worker has PGPX_WORK_WORDS words.
 */
extern pg_atomic_uint32 *pgpx_work_bits;	/* [nworkers * PGPX_WORK_WORDS] */
#define PGPX_WORK_WORDS (pgpx_max_connections / 32 + 1)

/* One bit per pool that has waiters.  Written under the pool lock. */
extern pg_atomic_uint32 *pgpx_waiting_bits; /* [PGPX_WAITING_WORDS] */
#define PGPX_WAITING_WORDS (pgpx_max_pools / 32 + 1)

/* The links of a list: those of all elements of an array. */
#define PGPX_LRU_LINKS	&pgpx_conns[0].in_lru, sizeof(PgpxConn)
#define PGPX_CONN_LINKS	&pgpx_conns[0].in_pool, sizeof(PgpxConn)
#define PGPX_QUEUE_LINKS	&pgpx_waiters[0].in_queue, sizeof(PgpxWaiter)

static inline PgpxLink *
pgpx_list_link(PgpxLink *links, Size stride, int index)
{
	return (PgpxLink *) ((char *) links + index * stride);
}

/* Insert an element after another one; -1: at the head. */
extern void pgpx_list_insert(PgpxList *list, PgpxLink *links, Size stride,
							 int index, int after);
extern void pgpx_list_remove(PgpxList *list, PgpxLink *links, Size stride,
							 int index);

extern void pgpx_shmem_init(void);

/*
 * pgpx_shmem_require
 *		Raise ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE unless the library was
 *		preloaded.
 */
extern void pgpx_shmem_require(void);

/* Return the monotonic clock in microseconds. */
extern PgpxTime pgpx_now(void);

/*
 * Return the time of the steady clock, in microseconds.  It is monotonic,
 * runs at the pace of real time and does not stop while the machine is
 * suspended.
 */
extern PgpxTime pgpx_steady_now(void);

/*
 * Convert a monotonic time to a timestamp of the wall clock.  The result for
 * one time does not change unless the wall clock is set.
 */
extern TimestampTz pgpx_timestamp(PgpxTime t);

#endif							/* PGPX_SHMEM_H */
