/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  What the processes share: pools, connections, workers; and the table of
 *	  the locks that protect all of it.
 *
 * Shared memory holds no password, no pointer and no descriptor: only indices,
 * generations, states, names and counters; and, while it waits, the statement of
 * a call on a pool (pgpx_pending_statements).  Instants are microseconds of the
 * monotonic clock (pgpx_now); views turn them into timestamps.
 *
 * Who waits is in wait_queue.h, the distributed locks are in lock_table.h: they
 * lie in the same segment.
 *
 * THE LOCK TABLE.  Taken downward only, never two of a kind:
 *
 *	1. registry lock	LWLock, one		which pools exist and under which key.
 *										Shared to look one up, exclusive to make
 *										or forget one.
 *	2. pool lock		LWLock, a pool	everything in PgpxPool below "protected by
 *										lock", every connection whose "pool" is
 *										this pool, every ticket whose "pool" is
 *										this pool.
 *	3. a cap's mutex	spinlock, a		the tokens of a cap, and who is hungry for
 *						server, and		one (cap.h).  That of the server first,
 *						one for all		then that for all, one after the other.
 *	4. free_mutex		spinlock, one	the list of FREE connections.
 *	-  formats_mutex	spinlock, one	what is known of results; taken alone.
 *	-  dlock_lock		LWLock, one		distributed locks (lock_table.h); taken
 *										alone, or under the registry lock alone.
 *										Checks of invariants ask the server's
 *										process array under it.
 *
 * Under any of them: no libpq call, no ereport(ERROR), no sleep, no socket.
 * The only kernel call is SetLatch.  Fields said to be atomic need no lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_SHMEM_H
#define PGPX_SHMEM_H

#include "base/settings.h"
#include "config/options.h"
#include "shared/cap.h"

#include "port/atomics.h"
#include "storage/itemptr.h"
#include "storage/lwlock.h"
#include "storage/s_lock.h"

#define PGPX_WHY_LEN 128		/* bytes of "why" that are kept, with the NUL */
#define PGPX_ERROR_LEN 512		/* bytes of a remote's reason that are kept */
#define PGPX_ADDR_LEN 48
#define PGPX_VERSION_LEN 64
#define PGPX_TLS_LEN 48
#define PGPX_PROCESS_LEN 64

typedef int64 PgpxTime;			/* microseconds, monotonic; 0: none */

/* See conn_state.h for the picture of the state machine. */
typedef enum PgpxConnState
{
	PGPX_CONN_FREE = 0,			/* in the free list, of no pool */
	PGPX_CONN_CONNECTING,		/* reserved; the worker opens it */
	PGPX_CONN_IDLE,				/* open, clean, nobody's */
	PGPX_CONN_RESET_PENDING,	/* open, nobody's, reset sent and not answered */
	PGPX_CONN_LEASED,			/* a session's */
	PGPX_CONN_RESETTING,		/* the worker resets it, or reads an owed answer */
	PGPX_CONN_CHECKING,			/* the worker tests it */
	PGPX_CONN_CANCELLING,		/* no lessee any more; a cancel is in flight */
	PGPX_CONN_CLOSING,			/* the worker is to close it */
	PGPX_CONN_NSTATES
} PgpxConnState;

/* Why a connection was closed; each has a counter. */
typedef enum PgpxCloseReason
{
	PGPX_CLOSE_NONE = 0,
	PGPX_CLOSE_IDLE,
	PGPX_CLOSE_LIFETIME,
	PGPX_CLOSE_USES,
	PGPX_CLOSE_OVERFLOW,
	PGPX_CLOSE_EVICTED,
	PGPX_CLOSE_RESET,			/* a reset failed, or was answered wrongly */
	PGPX_CLOSE_BROKEN,			/* lost, out of step, or the worker ended */
	PGPX_CLOSE_DRAINED,
	PGPX_CLOSE_STALE,			/* options have changed */
	PGPX_CLOSE_TERMINATED,
	PGPX_CLOSE_HOLDER_DIED,		/* returned in mid-query or in a transaction */
	PGPX_CLOSE_DISCARDED,
	PGPX_CLOSE_NREASONS
} PgpxCloseReason;

typedef enum PgpxScope
{
	PGPX_SCOPE_SESSION = 0,		/* checkout() */
	PGPX_SCOPE_TRANSACTION,		/* checkout_xact() */
	PGPX_SCOPE_CALL				/* query('pool', ..) and exec('pool', ..) */
} PgpxScope;

/* What the lessee says it does; shown in the view leases. */
typedef enum PgpxActivity
{
	PGPX_ACT_IDLE = 0,
	PGPX_ACT_ACTIVE,
	PGPX_ACT_TRANSACTION,
	PGPX_ACT_FAILED,			/* the remote transaction has failed */
	PGPX_ACT_CANCELLING,
	PGPX_ACT_BROKEN
} PgpxActivity;

/*
 * One remote session.
 */
typedef struct PgpxConn
{
	/* atomic */
	pg_atomic_uint64 lease_id;	/* 0: not leased.  Written under the pool lock */
	pg_atomic_uint64 activity_word; /* what the lessee says it does: see conn_state.h */
	pg_atomic_uint32 cancel;	/* PGPX_CANCEL_*: see conn_state.h */
	pg_atomic_uint32 cancel_lost;	/* a request may still hit it: see conn_state.h */
	pg_atomic_uint32 hung_up;	/* the worker has seen the remote's FIN or RST */
	pg_atomic_uint32 deferred_wakeup;	/* see pgpx_conn_defer_wakeup_locked */
	pg_atomic_uint32 nwatching; /* sessions that watch its socket: socket_cache.c */

	/* protected by the pool lock; of a FREE one by free_mutex */
	int			state;			/* PgpxConnState; written by pgpx_conn_set_state only */
	int			pool;			/* index of its pool; -1: FREE */
	int			next;			/* in the pool's LRU list, or free list; -1: end */
	int			prev;			/* in the pool's LRU list */
	uint64		generation;		/* rises with each new remote session in this place */
	uint64		version;		/* of the pool's options it was opened with */
	int			unread_reset;	/* PGPX_SENT_*: a reset whose answer is unread; 0: none */
	uint64		reset_by;		/* lease that sent it */
	bool		dirty;			/* used since the last reset, and no reset is owed */
	int			close_reason;	/* PgpxCloseReason, while CLOSING or CANCELLING */
	bool		broken;			/* see pgpx_pool_lost */

	int			owner_procno;	/* lessee; -1: none */
	int			owner_pid;
	Oid			owner_user;
	Oid			owner_database;
	int			scope;			/* PgpxScope */
	char		why[PGPX_WHY_LEN];
	char		application_name[NAMEDATALEN];
	PgpxTime	leased_at;
	bool		leak_logged;	/* leak_warning has been given for this lease */
	PgpxTime	waited;			/* duration */

	int			last_procno;	/* the lessee before; -1: none, or as good as none */
	int			last_pid;
	Oid			last_user;

	PgpxTime	state_since;
	PgpxTime	opened_at;
	PgpxTime	expires_at;		/* by max_lifetime, with its jitter; 0: never */
	PgpxTime	connect_time;	/* duration */
	PgpxTime	last_used;
	PgpxTime	last_checked;
	uint64		leases;			/* uses of this generation */
	uint64		statements;		/* of the leases that have ended */

	int			remote_pid;
	int			remote_port;
	int			local_port;
	char		remote_addr[PGPX_ADDR_LEN];
	char		remote_version[PGPX_VERSION_LEN];
	bool		relayed;		/* TLS, through the worker */
	char		tls_version[PGPX_TLS_LEN];
	char		tls_cipher[PGPX_TLS_LEN];
	bool		binary;			/* values may be asked for in binary */
	bool		can_pipeline;	/* a reset may share a Sync with a statement */
} PgpxConn;

#define PGPX_HISTOGRAM_BUCKETS 32	/* bucket b: waits of [2^(b-1), 2^b) us; 0: under 1 us */

/*
 * Counters of a pool.  Only ever added to, under the pool lock; times are
 * microseconds.  The comments of view stats say what each means.
 */
typedef struct PgpxStats
{
	uint64		checkouts;
	uint64		hits;			/* no wait */
	uint64		last_used_hits; /* of these: the connection this session used last */
	uint64		retried;		/* ended at once: the connection had died while idle */
	uint64		grown;			/* connections asked for */
	uint64		waited;			/* tickets drawn */
	uint64		granted;		/* tickets that became leases */
	uint64		pipelined;		/* of these: their statement had been sent */
	uint64		timeouts;
	uint64		cancelled;
	uint64		failed;			/* tickets that got the remote's reason */
	uint64		refused;		/* queue full */
	uint64		unavailable;	/* refused for a back-off that still runs */
	uint64		deadlocks;		/* would have waited for themselves, or for ever */
	uint64		checkins;
	uint64		discards;
	uint64		reclaimed;		/* holder died, or the worker ended */
	uint64		terminated;
	uint64		lease_timeouts;
	uint64		wait_time;
	uint64		max_wait_time;
	uint64		lease_time;
	uint64		max_lease_time;
	uint64		statements;
	uint64		polled;			/* waits that ended without a sleep */
	uint64		rows;
	uint64		errors;
	uint64		bytes_received;
	uint64		bytes_sent;
	uint64		connects;		/* that succeeded */
	uint64		connects_failed;
	uint64		connect_time;
	uint64		max_connect_time;
	uint64		resets;			/* sent, by whomever */
	uint64		resets_failed;
	uint64		checks;
	uint64		checks_failed;
	uint64		cancels;
	uint64		closed[PGPX_CLOSE_NREASONS];
	uint64		histogram[PGPX_HISTOGRAM_BUCKETS];
} PgpxStats;

/*
 * What the options were read from: equal fingerprints mean equal options.  Of a
 * server it has hashes of what counts, which everybody may read, so that a GRANT
 * to somebody else is no change; of a mapping, which has secrets, the xmin and the
 * place of the row, which change with every update; of the role a hash of its name,
 * as which a mapping without option user logs in.
 *
 * All fields before "settings" decide how and as whom to connect: if one of them
 * changes, connections are replaced.  The two settings fields are hashes of the
 * options that take effect in place (PGPX_IN_PLACE in options.c).  In a pool,
 * settings is 0 while the options have to be read from the catalogs again.
 */
typedef struct PgpxFingerprint
{
	uint64		server[2];
	uint64		base[2];		/* 0: it has none */
	uint64		user;
	TransactionId mapping_xmin;
	ItemPointerData mapping_tid;
	uint16		zero[3];		/* compared by memcmp: no padding */
	uint64		settings;		/* of the server; never 0 when read */
	uint64		base_settings;	/* of the base server; 0: it has none */
} PgpxFingerprint;

/* What makes connections interchangeable (all-zero padding: compared by memcmp). */
typedef struct PgpxPoolKey
{
	Oid			database;
	Oid			server;
	Oid			mapping;
	Oid			local_user;		/* InvalidOid unless the mapping is PUBLIC's, and
								 * names no remote user */
	uint32		superuser;		/* 1: of a superuser */
	TransactionId xid;			/* which uses what it has itself changed; 0: none does */
} PgpxPoolKey;

/*
 * What the pools of one foreign server share.  A place is taken with the first
 * pool, or the first pause, and left with the last.
 */
typedef struct PgpxServer
{
	/* protected by the registry lock */
	Oid			database;
	Oid			server;			/* InvalidOid: this place is empty */
	int			npools;

	/* atomic */
	pg_atomic_uint32 paused;	/* checkouts queue, leases go on */
	pg_atomic_uint32 draining;	/* .. and what is free is closed */

	PgpxCap		cap;			/* max_server_connections; it has its own lock */
} PgpxServer;

typedef struct PgpxPool
{
	/* protected by the registry lock together with the pool lock */
	uint32		pool_id;		/* never repeats; 0: this place is empty */
	PgpxPoolKey key;
	NameData	database_name;
	NameData	server_name;
	Oid			user;			/* the mapping's; else key.local_user */
	NameData	user_name;		/* "public" if that is none; as it was when the options were read */
	int			server;			/* index of the PgpxServer */
	int			worker;
	PgpxTime	created_at;

	/* set at start-up, then constant */
	LWLock	   *lock;

	/* protected by lock */
	uint64		version;		/* connections of another one are stale */
	uint64		connect_version;	/* since which it connects in the same way */
	uint64		options_version;	/* counts changes of the options of any kind */
	bool		gone;			/* retired, and its server, mapping or user lost */
	PgpxFingerprint fingerprint;
	PgpxPoolOptions opts;
	uint64		conninfo_incarnation;	/* epoch of the worker that has the conninfo; 0: none */
	uint64		conninfo_version;	/* and of which version it is */
	uint64		asked_incarnation;	/* of the worker that has asked who waits for it */

	int			version_cap;	/* the most that this version may ever have had */
	int			count[PGPX_CONN_NSTATES];	/* connections by state */
	int			nbroken;		/* of these, broken ones */
	int			lru_head;		/* IDLE and RESET_PENDING, most recently used first; -1: none */
	int			lru_tail;

	int			queue_head;		/* tickets, first to be served first; -1: none */
	int			queue_tail;
	int			nwaiting;		/* WAITING tickets */
	int			nqueued;		/* tickets of this pool in any state but NONE */
	uint64		next_position;

	PgpxTime	last_checkout;
	PgpxTime	last_expired;	/* the last close by max_lifetime */
	PgpxTime	unavailable_since;	/* first of the failed connects in a row; 0: none */
	PgpxTime	outage_logged_at;	/* when the log had a line about it last; 0: never */
	bool		outage_logged;	/* .. and the end of that one is to be told, too */
	PgpxTime	retry_at;		/* no connect before this instant; 0: at any time */
	int64		backoff;		/* ms, the last pause between connects; 0: none */
	int			ramp;			/* connects at once after an outage; 0: any number */
	PgpxTime	last_error_at;
	int			last_sqlstate;
	bool		remote_full;	/* the last attempt failed for want of room */
	char		last_error[PGPX_ERROR_LEN];
	bool		damaged;		/* out of service: see registry.c */

	PgpxTime	stats_reset;
	PgpxStats	stats;
} PgpxPool;

typedef enum PgpxWorkerState
{
	PGPX_WORKER_DOWN = 0,
	PGPX_WORKER_STARTING,
	PGPX_WORKER_RUNNING,
	PGPX_WORKER_STOPPING
} PgpxWorkerState;

/*
 * One pool worker.  "incarnation" is 0 while none runs and changes with every start.
 */
typedef struct PgpxWorkerSlot
{
	pg_atomic_uint64 incarnation;
	pg_atomic_uint32 state;		/* PgpxWorkerState */
	pg_atomic_uint32 procno;	/* whose latch to set; valid while epoch is not 0 */
	pg_atomic_uint32 pid;
	pg_atomic_uint32 ticking;	/* awake by itself within PGPX_TICK_MS: no need to wake it
								 * for what can wait that long */
	pg_atomic_uint32 restarts;
	pg_atomic_uint32 must_restart;	/* one of its pools is damaged */
	pg_atomic_uint32 descriptors;
	pg_atomic_uint32 max_descriptors;	/* .. that it may have for connections */
	pg_atomic_uint64 polled;	/* rounds without a sleep before, see busy_poll.c */
	pg_atomic_uint64 started_at;	/* PgpxTime */
	pg_atomic_uint64 missed_at; /* PgpxTime; see pgpx_worker_missed */
} PgpxWorkerSlot;

/* Statements whose results are asked for in binary; see binary_input.c. */
#define PGPX_FORMATS_SLOTS 512
#define PGPX_FORMATS_COLUMNS 128	/* results with more stay text */

typedef struct PgpxFormatsKey
{
	uint32		pool_id;
	uint32		length;			/* of the statement's text */
	uint64		text[2];		/* hashes of it */
	uint64		types_hash;		/* hash of the local columns' types */
} PgpxFormatsKey;

typedef struct PgpxFormats
{
	PgpxFormatsKey key;
	int			ncolumns;
	uint64		binary[PGPX_FORMATS_COLUMNS / 64];	/* a bit for each column */
} PgpxFormats;

typedef struct PgpxShared
{
	/* set at start-up, then constant */
	uint64		boot_id;		/* of this shared memory: in every message */
	int			nworkers;
	int			max_connections;
	int			max_pools;
	int			nwaiter_slots;
	int			max_locks;
	uint32		max_polling;	/* half the processors */
	LWLock	   *registry_lock;
	LWLock	   *dlock_lock;
	char		process[PGPX_PROCESS_LEN];	/* this life of this server, to others */
	PgpxTime	started_at;

	/* atomic */
	pg_atomic_uint64 next_lease;
	pg_atomic_uint64 next_incarnation;
	pg_atomic_uint32 next_pool;
	pg_atomic_uint64 next_generation;
	pg_atomic_uint32 databases_changed; /* counts DROP DATABASE and the like */
	pg_atomic_uint32 pools_changed; /* counts new options in place, and retired
									 * pools that have become empty */
	pg_atomic_uint64 next_dlock;	/* requests and places in queues */
	pg_atomic_uint32 dlocks_changed;	/* counts what the worker has to look at */
	pg_atomic_uint64 clock_offset;	/* of the wall clock, see pgpx_timestamp */
	pg_atomic_uint32 npolling;	/* processes that look, see busy_poll.c */

	/* protected by free_mutex */
	slock_t		free_mutex;
	int			free_head;
	int			nfree;

	PgpxCap		cap;			/* max_connections; it has its own lock */

	PgpxWorkerSlot worker[PGPX_MAX_WORKERS];

	/* protected by formats_mutex, which is taken alone */
	slock_t		formats_mutex;
	PgpxFormats formats[PGPX_FORMATS_SLOTS];
} PgpxShared;

/* Valid in every process once the library is preloaded; NULL otherwise. */
extern PgpxShared *pgpx_shared;
extern PgpxPool *pgpx_pools;	/* [max_pools] */
extern PgpxServer *pgpx_servers;	/* [max_pools] */
extern PgpxConn *pgpx_conns;	/* [max_connections] */

/*
 * A bit for each connection that has something for its worker to do: set by
 * anybody, taken by that worker.  Each worker has PGPX_WORK_WORDS of its own.
 */
extern pg_atomic_uint32 *pgpx_work_bits;	/* [nworkers * PGPX_WORK_WORDS] */
#define PGPX_WORK_WORDS (pgpx_max_connections / 32 + 1)

extern void pgpx_shmem_init(void);

/*
 * pgpx_shmem_require
 *		Raise 55000 with a hint unless the library was preloaded.
 */
extern void pgpx_shmem_require(void);

/* Microseconds of the monotonic clock. */
extern PgpxTime pgpx_now(void);

/*
 * A monotonic instant as a timestamp of the wall clock.  The same value each time,
 * unless the wall clock is set meanwhile.
 */
extern TimestampTz pgpx_timestamp(PgpxTime t);

#endif							/* PGPX_SHMEM_H */
