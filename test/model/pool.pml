/*
 * pool.pml
 *	  A pool and its processes: sessions, the worker, the remote server, and faults.
 *	  README.md maps each step to the C function that it models.
 *
 * An "atomic" is one section under the pool's lock, or one system call.  Code
 * outside of a lock is several steps here, so that other processes can run in between.
 * Time is not modelled: a timeout may pass at any moment.
 *
 * Assertions are in the steps, and in Monitor() for the final state: a session that
 * has not ended by then hangs.
 *
 * The runner reads these lines: complete searches, mutants that must be found,
 * and larger searches for "make model-deep".
 *
 * run queue: -DNS=3
 * run deadline: -DNS=2 -DDEADLINES=1 -DINTERRUPTS=1
 * run exit: -DNS=2 -DDEADLINES=1 -DKILLS=1
 * run losses: -DNS=2 -DLOSSES=1 -DKILLS=1
 * run resets: -DNS=2 -DRESETFAILS=1 -DKILLS=1
 * run cancel: -DNS=2 -DCANCELS=1 -DINTERRUPTS=1
 * run cancel_lost: -DNS=2 -DCANCELS=2 -DCANCELLOSSES=1
 * run cancel_lost_pipeline: -DNS=2 -DPIPELINE -DCANCELS=1 -DCANCELLOSSES=1
 * run revoke: -DNS=2 -DREVOKES=1 -DCANCELS=1
 * run outage: -DNS=2 -DCONNFAILS=2 -DKILLS=1
 * run restart: -DNS=2 -DRESTARTS=1
 * run versions: -DNS=2 -DRECONNECTS=1 -DCANCELS=1
 * run slots: -DNC=2 -DNS=2 -DDEADLINES=1
 * run pipeline: -DNS=2 -DPIPELINE -DDEADLINES=1 -DINTERRUPTS=1
 * run pipeline_end: -DNS=2 -DPIPELINE -DKILLS=1 -DRESETFAILS=1
 * run pipeline_lost: -DNS=2 -DPIPELINE -DLOSSES=1
 * run pipeline_revoked: -DNS=2 -DPIPELINE -DREVOKES=1
 * run pipeline_cancelled: -DNS=2 -DPIPELINE -DCANCELS=1
 * deep pipeline_restart: -DNS=2 -DPIPELINE -DRESTARTS=1 -DKILLS=1
 * run pipeline_stopped: -DNS=2 -DPIPELINE -DSTOPS=1 -DDEADLINES=1 -DINTERRUPTS=1
 * run pipeline_stopped_end: -DNS=2 -DPIPELINE -DSTOPS=1 -DKILLS=1 -DLOSSES=1
 * run reset_behind: -DNS=2 -DBEHIND -DDEADLINES=1 -DINTERRUPTS=1
 * run reset_behind_end: -DNS=2 -DBEHIND -DKILLS=1 -DRESETFAILS=1
 * run reset_behind_lost: -DNS=2 -DBEHIND -DLOSSES=1
 * run reset_behind_revoked: -DNS=2 -DBEHIND -DREVOKES=1 -DCANCELS=1
 * run reset_behind_cancel_lost: -DNS=2 -DBEHIND -DCANCELS=1 -DCANCELLOSSES=1
 * run reset_behind_pipeline: -DNS=2 -DBEHIND -DPIPELINE -DINTERRUPTS=1
 * run broken: -DNC=2 -DSIZE=1 -DNS=2 -DLOSSES=1 -DKILLS=1
 * run pipeline_queue: -DNS=3 -DPIPELINE
 *
 * mutant BUG_TIMEOUT: -DNS=2 -DDEADLINES=1
 * mutant BUG_EXPIRED: -DNS=2 -DDEADLINES=1
 * mutant BUG_CANCELWAIT: -DNS=2 -DINTERRUPTS=1
 * mutant BUG_EXIT: -DNS=2 -DKILLS=1
 * mutant BUG_LATCH: -DNS=2
 * mutant BUG_WORKERLATCH: -DNS=2
 * mutant BUG_DISPATCH: -DNS=2
 * mutant BUG_HEAD: -DNS=3 -DLOSSES=1
 * mutant BUG_FAILWAKE: -DNS=2 -DCONNFAILS=1
 * mutant BUG_STALE: -DNS=2 -DREVOKES=1
 * mutant BUG_UNREAD: -DNS=2
 * mutant BUG_RESETBAD: -DNS=2 -DRESETFAILS=1
 * mutant BUG_CANCEL: -DNS=2 -DCANCELS=1
 * mutant BUG_CANCELLOST: -DNS=2 -DCANCELS=1 -DCANCELLOSSES=1
 * mutant BUG_SLOT: -DNS=2 -DRECONNECTS=1
 * mutant BUG_INCARNATION: -DNS=2 -DRESTARTS=1
 * mutant BUG_FORGET: -DNS=2 -DRESTARTS=1
 * mutant BUG_TICK: -DNS=1
 * mutant BUG_SLEEP: -DNS=1
 * mutant BUG_SENDING: -DNS=2 -DPIPELINE -DINTERRUPTS=1
 * mutant BUG_HANDEDOVER: -DNS=3 -DPIPELINE -DINTERRUPTS=1
 * mutant BUG_TWICE: -DNS=2 -DPIPELINE -DLOSSES=1
 * mutant BUG_AHEAD: -DNS=2 -DPIPELINE -DRESETFAILS=1
 * mutant BUG_NOTRUN: -DNS=2 -DPIPELINE -DRESETFAILS=1
 * mutant BUG_PIPELINECANCEL: -DNS=2 -DPIPELINE -DCANCELS=1
 * mutant BUG_BEHINDUNREAD: -DNS=2 -DBEHIND
 * mutant BUG_BEHINDBAD: -DNS=2 -DBEHIND -DRESETFAILS=1
 * mutant BUG_BEHINDCANCEL: -DNS=2 -DBEHIND -DCANCELS=1
 * mutant BUG_ACTIVE: -DNS=2 -DPIPELINE -DREVOKES=1
 * mutant BUG_ABANDON: -DNS=3 -DPIPELINE -DSTOPS=1 -DINTERRUPTS=1
 * mutant BUG_BROKEN: -DNC=2 -DSIZE=1 -DNS=2 -DREVOKES=1
 * mutant BUG_NOTWOKEN: -DNS=2 -DPIPELINE
 *
 * deep queue: -DNS=3 -DDEADLINES=2 -DINTERRUPTS=1 -DKILLS=1
 * deep rounds: -DNS=3 -DROUNDS=2 -DLOSSES=1 -DRESETFAILS=1 -DREVOKES=1
 * deep worker: -DNC=2 -DNS=2 -DROUNDS=2 -DKILLS=1 -DCANCELS=1 -DCONNFAILS=1 -DRESTARTS=2
 * deep pipeline: -DNS=3 -DPIPELINE -DROUNDS=2 -DDEADLINES=1 -DINTERRUPTS=1 -DKILLS=1 -DREVOKES=1 -DRESETFAILS=1 -DLOSSES=1
 * deep all: -DNC=2 -DNS=3 -DROUNDS=2 -DDEADLINES=2 -DINTERRUPTS=1 -DKILLS=1 -DCANCELS=1 -DREVOKES=1 -DCONNFAILS=1 -DRESETFAILS=1 -DLOSSES=1 -DRESTARTS=1 -DRECONNECTS=1
 */

/* sizes, and how often each fault may occur */
#ifndef NC
#define NC 1				/* connections: the pool's size */
#endif
#ifndef NS
#define NS 2				/* sessions */
#endif
#ifndef ROUNDS
#define ROUNDS 1			/* checkouts of each */
#endif
#ifndef DEADLINES
#define DEADLINES 0			/* waits with a timeout, which may pass */
#endif
#ifndef INTERRUPTS
#define INTERRUPTS 0		/* pg_cancel_backend */
#endif
#ifndef KILLS
#define KILLS 0				/* pg_terminate_backend of a session */
#endif
#ifndef CANCELS
#define CANCELS 0				/* statements cancelled by their holder */
#endif
#ifndef STOPS
#define STOPS 0				/* senders that are stopped: their waiters leave */
#endif
#ifndef SIZE
#define SIZE NC				/* less: a lease that is broken does not count for it */
#endif
#ifndef CANCELLOSSES
#define CANCELLOSSES 0		/* cancel requests that arrive after their timeout */
#endif
#ifndef REVOKES
#define REVOKES 0			/* pgpool.terminate, lease_timeout */
#endif
#ifndef CONNFAILS
#define CONNFAILS 0
#endif
#ifndef RESETFAILS
#define RESETFAILS 0
#endif
#ifndef LOSSES
#define LOSSES 0			/* remote backends that exit */
#endif
#ifndef RESTARTS
#define RESTARTS 0			/* of the worker */
#endif
#ifndef RECONNECTS
#define RECONNECTS 0		/* changes of the pool's options */
#endif


/* states of a connection: conn_state.h */
#define FREE 0
#define CONNECTING 1
#define IDLE 2
#define RESET_PENDING 3
#define LEASED 4
#define RESETTING 5
#define CANCELLING 6
#define CLOSING 7

/* states of a waiter: wait_queue.h */
#define NONE 0
#define WAITING 1
#define GRANTED 2
#define FAILED 3
#define EXPIRED 4

/* states of a waiter's pending statement: PgpxPendingState; -DPIPELINE */
#define OPEN 1
#define SENDING 2
#define SENT_ON 3
#define NOT_SENT 4
#define ABANDONED 5

/* states of a cancel: conn_state.h */
#define REQUESTED 1
#define SENT 2

/* the activity of the worker on a connection: worker.h */
#define P_NONE 0
#define P_CONNECT 1
#define P_OPEN 2
#define P_RESET 3
#define P_ENDING 4
#define P_CLOSING 5

/* the stream: a statement of session s is s + 1, and so is its answer */
#define RST (NS + 1)
#define BAD (NS + 2)		/* the answer to a reset that has failed */
#define AHEAD (NS + 3)		/* + s: a reset and, after it, the statement of s */

/* how a connection is released: PgpxReleaseAction */
#define G_CLEAN 0
#define G_RESET_PENDING 1
#define G_AS_IT_WAS 2
#define G_CANCEL 3
#define G_CANCEL_CLOSE 4
#define G_CLOSE 5

#define NO_SESSION NS
#define NOCONN NC
#define NEVER 255

/* --- shared memory, under the pool's lock ------------------------------- */

typedef Conn {
	byte state;
	byte owner;				/* the lease: its session, or NO_SESSION */
	byte cancel;
	bit unread_reset;
	bit reason;				/* close_reason is set */
	bit hung;				/* hung_up */
	bit busy;				/* activity */
	bit old;				/* has former options */
#if CANCELLOSSES > 0
	bit lost;				/* cancel_lost */
#endif
#if SIZE < NC
	bit broken;				/* a lease whose remote session has ended */
#endif
	bit opened;				/* opened_at is set */
	bit work					/* its work bit */
};
Conn conn[NC];

typedef Waiter {
	byte state;
	byte conn
};
Waiter waiter[NS];
bit expires[NS];			/* it has a deadline, which may have passed */
chan queue = [NS] of { byte, byte };	/* number, session; sorted by number */

#ifdef PIPELINE
byte pending[NS];
bit ran[NS];				/* the statement of this checkout */
#endif

byte retry;					/* back-off: 0 none, 1 runs, 2 over */
#if RESTARTS > 0
byte conninfo_incarnation;
byte incarnation;					/* of the worker; 0: none runs */
#else
byte conninfo_incarnation = 1;	/* it has been sent before */
byte incarnation = 1;
#endif
bit ticking;
bit missed;					/* it was requested to connect, and lacks the connection string */

/* sums that must be zero at the end: they follow the counters */
byte leases_out;			/* checkouts less all ends */
byte waits_out;			/* waits that began less those that ended */
byte open_now;				/* connects less closed */

/* --- latches and signals ------------------------------------------------ */

byte arrival[NS];			/* number of the first wait of this checkout */
bit holds[NS];				/* its socket is that of the current remote session */
byte slot[NS];				/* slot of its lease */
bit latch[NS];
bit worker_latch;
bit killed[NS];				/* SIGTERM is pending */
bit interrupted[NS];		/* SIGINT is pending */
bit worker_killed;
bit worker_timer;			/* it has a deadline at the end of the back-off */
chan control = [NS] of { byte };	/* CONNINFO: its incarnation */

/* --- the remote, by slot; former sessions are not modelled --------------- */

bit alive[NC];				/* the remote backend */
bit cut[NC];				/* the worker has shut the socket down */
#ifdef BEHIND
chan in[NC] = [3] of { byte };
#else
chan in[NC] = [2] of { byte };
#endif
#ifdef PIPELINE
#define ROOM 2				/* for two answers */
#else
#define ROOM 3
#endif
chan out[NC] = [3] of { byte };
byte dirty[NC];				/* session whose state it holds; 0: none */
byte flying[NC];			/* a cancel: 0 none, 1 in flight, 2 delivered and closed */
byte target[NC];			/* the statement to be cancelled */
#if CANCELLOSSES > 0
byte b_cancelloss = CANCELLOSSES;
bit stray[NC];				/* a timed out cancel is still in flight */
byte stray_target[NC];
#define may_lose(c) (flying[c] == 1 && b_cancelloss > 0 && !stray[c])
#define is_lost(c) conn[c].lost
#else
#define may_lose(c) false
#define is_lost(c) false
#endif
/* retire_reason */
#define must_retire(c) (conn[c].hung || conn[c].old || is_lost(c))

/* --- the worker's private memory ----------------------------------------- */

byte phase[NC];
byte before[NC];			/* next wait number when the connect began */
#if RESTARTS > 0
bit has_conninfo;					/* has the conninfo */
#else
bit has_conninfo = 1;
#endif

/* --- budgets -------------------------------------------------------------- */

byte b_deadline = DEADLINES;
byte b_cancels = CANCELS;
byte b_stop = STOPS;
byte b_connfail = CONNFAILS;
byte b_resetfail = RESETFAILS;
byte b_restart = RESTARTS;
byte started;
byte ended;					/* sessions that have ended */
bit env_ended;

byte i, j, k, n, num;		/* scratch, 0 between two atomics */

/* pool.c, conn_state.c: all inlines below run in an atomic of the caller ---------- */

inline wake_worker()
{
	if
	:: incarnation != 0 -> worker_latch = 1
	:: else
	fi
}

/* pgpx_conn_notify_worker */
inline notify_worker(c)
{
	conn[c].work = 1;
	wake_worker()
}

/* pgpx_conn_set_state out of LEASED */
inline clear_lease(c)
{
	conn[c].owner = NO_SESSION
}

/* pgpx_pool_close_locked */
inline close_conn(c)
{
	assert(conn[c].state != FREE && conn[c].state != CLOSING);
	clear_lease(c);
	conn[c].state = CLOSING;
	conn[c].reason = 1;
	notify_worker(c)
}

/* pgpx_conn_free_locked, with the count of the close */
inline free_conn(c)
{
	assert(!alive[c]);		/* the remote never has too many sessions */
	if
	:: conn[c].opened -> open_now--
	:: else
	fi;
	conn[c].state = FREE; conn[c].reason = 0; conn[c].hung = 0;
	conn[c].cancel = 0; conn[c].unread_reset = 0; conn[c].busy = 0;
	conn[c].old = 0; conn[c].opened = 0;
#if SIZE < NC
	conn[c].broken = 0;
#endif
#if CANCELLOSSES > 0
	conn[c].lost = 0; stray[c] = 0; stray_target[c] = 0;	/* the cancel key was that session's */
#endif
	clear_lease(c);
	phase[c] = P_NONE; flying[c] = 0; target[c] = 0; before[c] = 0;
	do
	:: len(in[c]) > 0 -> in[c]?_
	:: len(out[c]) > 0 -> out[c]?_
	:: len(in[c]) == 0 && len(out[c]) == 0 -> break
	od;
	cut[c] = 0; dirty[c] = 0;
	for (j : 0 .. NS - 1) {
		if
		:: slot[j] == c -> holds[j] = 0
		:: else
		fi
	};
	j = 0
}

/* close_unless_fit_locked and pgpx_pool_pick_locked: k is the choice */
inline pick()
{
	k = NOCONN;
	for (i : 0 .. NC - 1) {
		if
		:: (conn[i].state == IDLE || conn[i].state == RESET_PENDING) &&
			(conn[i].hung || conn[i].old) ->
			close_conn(i)
		:: else
		fi
	};
	/* most or least recently used: any idle connection */
	for (i : 0 .. NC - 1) {
		if
		:: (conn[i].state == IDLE || conn[i].state == RESET_PENDING) -> k = i
		:: (conn[i].state == IDLE || conn[i].state == RESET_PENDING) && k != NOCONN
		:: else
		fi
	}
}

/*
 * pgpx_pool_lease_locked.  A session has one lease at a time, so its number is the
 * lease's id.  "holds" models the generation: it is set if the session's socket is
 * connected to the remote session that uses the slot now.
 */
inline lease_conn(c, s)
{
	assert(conn[c].state == IDLE || conn[c].state == RESET_PENDING);
	conn[c].state = LEASED;
	conn[c].owner = s;
	conn[c].busy = 0;
	holds[s] = 1;
	slot[s] = c;
	leases_out++
}

/* The number of connections in a state, or in all but FREE. */
inline count_conns(which)
{
	n = 0;
	for (i : 0 .. NC - 1) {
		if
		:: (which) -> n++
		:: else
		fi
	}
}

/* pgpx_pool_grow_locked: allocate for waiters that no pending connection serves */
inline grow()
{
	count_conns(conn[i].state == CONNECTING || conn[i].state == RESETTING);
	num = len(queue);
	if
	:: num > n -> num = num - n
	:: else -> num = 0
	fi;
	count_conns(conn[i].state == CONNECTING);
	/* it lacks the connection string until a session sends it */
	if
	:: missed -> num = 0
	:: else
	fi;
	if
	:: retry == 1 -> num = 0
	:: retry == 2 && n > 0 -> num = 0	/* one connect attempt */
	:: retry == 2 && n == 0 && num > 1 -> num = 1
	:: else
	fi;
#if SIZE < NC
	/* pgpx_pool_total_locked: a broken lease does not count */
#ifdef BUG_BROKEN
	count_conns(conn[i].state != FREE && conn[i].state != CANCELLING);
#else
	count_conns(conn[i].state != FREE &&
		!(conn[i].broken && conn[i].state == LEASED));
#endif
	if
	:: n + num > SIZE -> num = (n < SIZE -> SIZE - n : 0)
	:: else
	fi;
#endif
	for (i : 0 .. NC - 1) {
		if
		:: num > 0 && conn[i].state == FREE ->
			num--;
			conn[i].state = CONNECTING;
			notify_worker(i)
		:: else
		fi
	}
}

/* The number after all known ones: num. */
inline next_number()
{
	num = 1;
	for (j : 0 .. NS - 1) {
		if
		:: arrival[j] >= num -> num = arrival[j] + 1
		:: else
		fi
	};
	for (j : 0 .. NC - 1) {
		if
		:: before[j] > num -> num = before[j]
		:: else
		fi
	};
	j = 0
}

/* No earlier waiter is overtaken. */
inline assert_first(s)
{
	for (j : 0 .. NS - 1) {
		assert(waiter[j].state != WAITING || j == s ||
			(arrival[s] != 0 && arrival[j] > arrival[s]))
	}
}

/* pgpx_pool_dispatch_locked with pgpx_waiter_grant_locked */
inline dispatch()
{
	do
	:: len(queue) == 0 -> break
	:: len(queue) > 0 ->
		pick();
		if
		:: k == NOCONN -> grow(); break
		:: else ->
			queue?_, j;
			if
			:: expires[j] ->
				/* pgpx_pool_first_waiter_locked: it is not woken */
				waiter[j].state = EXPIRED
			:: true ->
				waiter[j].state = GRANTED;
				waiter[j].conn = k;
				lease_conn(k, j);
				latch[j] = 1;
				n = j;
				assert_first(n)
			fi
		fi
	od;
	k = 0; i = 0; j = 0; n = 0; num = 0
}

/* release_locked and pgpx_pool_release */
inline release_conn(c, how)
{
	if
#ifdef BUG_STALE
	:: conn[c].state == LEASED ->
#else
	:: conn[c].owner == s && conn[c].state == LEASED ->
#endif
		leases_out--;
		if
		:: conn[c].cancel == 0 && how != G_CANCEL_CLOSE -> target[c] = 0
		:: else
		fi;
		if
		:: how == G_RESET_PENDING -> conn[c].unread_reset = 1
		:: how == G_AS_IT_WAS
		:: else -> conn[c].unread_reset = 0
		fi;
		conn[c].busy = 0;
		if
		:: how == G_CLOSE -> close_conn(c)
		:: how == G_CANCEL_CLOSE ->
			clear_lease(c);
			conn[c].reason = 1;
			conn[c].state = CANCELLING;
			if
			:: conn[c].cancel == 0 -> conn[c].cancel = REQUESTED
			:: else
			fi;
			notify_worker(c)
		:: else ->
			if
			:: must_retire(c) -> close_conn(c)
#ifndef BUG_CANCEL
			:: !must_retire(c) &&
				(how == G_CANCEL || (conn[c].cancel != 0 && how != G_RESET_PENDING)) ->
				clear_lease(c);
				conn[c].reason = 0;
				conn[c].state = CANCELLING;
				notify_worker(c)
			:: !must_retire(c) && conn[c].cancel != 0 && how == G_RESET_PENDING ->
				clear_lease(c);
				conn[c].reason = 1;
				conn[c].state = CANCELLING;
				notify_worker(c)
#endif
			:: else ->
				clear_lease(c);
				if
				:: conn[c].unread_reset ->
					conn[c].state = RESET_PENDING;
#ifndef BUG_TICK
					if
					:: !ticking -> wake_worker()
					:: else
					fi
#endif
				:: else -> conn[c].state = IDLE
				fi
			fi
		fi;
#ifndef BUG_DISPATCH
		dispatch()
#endif
	:: else
	fi
}

/* pgpx_pool_revoke_locked; at worker exit, or by an administrator */
inline revoke(c, by_worker)
{
	leases_out--;
	latch[conn[c].owner] = 1;
	if
	:: by_worker -> close_conn(c)
	:: else ->
		if
		:: conn[c].busy && conn[c].cancel == 0 ->
			conn[c].cancel = REQUESTED;
			target[c] = conn[c].owner + 1
		:: else
		fi;
		conn[c].busy = 0;
		clear_lease(c);
		conn[c].reason = 1;
		conn[c].state = CANCELLING;
		notify_worker(c)
	fi
}

/* pgpx_pool_count_live_locked: n */
inline count_live()
{
	count_conns(conn[i].state != FREE && conn[i].state != CONNECTING &&
		conn[i].state != CLOSING &&
		!(conn[i].state == LEASED && conn[i].hung) &&
		!(conn[i].state == CANCELLING && conn[i].reason))
}

/* forget_connections */
inline forget_connections()
{
	conninfo_incarnation = 0;
	missed = 0;
	for (num : 0 .. NC - 1) {
		if
		:: conn[num].state == FREE
		:: conn[num].state == LEASED -> revoke(num, true)
		:: conn[num].state == CLOSING
		:: else -> close_conn(num)
		fi;
		if
		:: conn[num].state != FREE ->
			/* the socket is shut down for all its holders */
			alive[num] = 0;
			free_conn(num)
		:: else
		fi;
		conn[num].work = 0
	};

	/* they see that another worker starts */
	for (num : 0 .. NS - 1) {
		if
		:: waiter[num].state == WAITING -> latch[num] = 1
		:: else
		fi
	};
	num = 0; i = 0; n = 0
}

/* --- sessions -------------------------------------------------------------- */



#define mine (c < NC && conn[c].owner == s)
#define reachable (c < NC && alive[c] && holds[s] && !cut[c])
#define T_NEXT 1			/* where a session continues after a release */
#define T_STOP 2
#define T_CHECKOUT 3
#define signalled (killed[s] || interrupted[s])
#if defined(PIPELINE) && !defined(BUG_SENDING)
#define may_leave (pending[s] != SENDING)	/* the sender never waits */
#else
#define may_leave true
#endif
#define sender_stops (pending[s] == SENDING && b_stop > 0)
#if STOPS > 0
#define is_pending (pending[got] != ABANDONED)
#else
#define is_pending true
#endif
#ifdef BUG_PIPELINECANCEL
#define no_cancel true
#else
#define no_cancel (conn[c].cancel == 0)
#endif

proctype Session(byte s)
{
	byte left = ROUNDS - 1;		/* further checkouts */
	byte c = NOCONN;
	byte published, got, how, then;
	bit deadline, dying, used;
#ifdef BEHIND
	bit behind;				/* the reset was sent behind the statement */
#else
#define behind 0
#endif

	/* sessions are symmetric: the first one to arrive is number 0 */
	atomic { started == s -> started++; goto first };

again:
	atomic {
		published = 0; arrival[s] = 0; c = NOCONN; slot[s] = 0; holds[s] = 0;
		used = 0; deadline = 0;
#ifdef BEHIND
		behind = 0;
#endif
#ifdef PIPELINE
		pending[s] = 0; ran[s] = 0;
#endif
		if
		:: left == 0 || killed[s] -> goto done
		:: else -> left--
		fi
	};

first:
checkout:
	/* attempt() in checkout.c: one section of the lock */
	atomic {
		c = NOCONN;
		if
		:: len(queue) == 0 || arrival[s] != 0 ->
			pick();
			c = k
		:: else
		fi;
		if
		:: c != NOCONN ->
			assert_first(s);
			lease_conn(c, s);
			goto validate
		:: else
		fi;
		/* check_wait_locked: during a back-off */
		count_live();
		k = n;
		count_conns(conn[i].state == CONNECTING);
		if
		:: retry == 1 && k == 0 && n == 0 -> k = 0; n = 0; goto again
		:: else
		fi;
		/* must_publish */
		k = 0; n = 0; i = 0;
		if
		:: incarnation != 0 && conninfo_incarnation != incarnation && published != incarnation -> goto publish
		:: else
		fi;
		/* pgpx_waiter_enqueue_locked */
		next_number();
		if
		:: arrival[s] == 0 -> arrival[s] = num
#ifdef BUG_HEAD
		:: else
#else
		:: else -> num = arrival[s]
#endif
		fi;
		waiter[s].state = WAITING;
		waits_out++;
		queue!!num, s;
#ifdef PIPELINE
		if
		:: pending[s] = OPEN
		:: pending[s] = 0
		fi;
#endif
		grow();
		if
		:: retry != 0 && !ticking -> wake_worker()
		:: else
		fi;
		num = 0; n = 0; i = 0;
		deadline = 0;
		if
		:: b_deadline > 0 -> b_deadline--; deadline = 1
		:: true
		fi;
		expires[s] = deadline
	};

wait:
	/* wait_for_grant: no lock, so the check and the sleep are two steps */
	atomic {
		if
#ifdef PIPELINE
		:: waiter[s].state != WAITING && pending[s] != SENDING -> goto claim
#else
		:: waiter[s].state != WAITING -> goto claim
#endif
		:: else
		fi;
#ifdef BUG_INCARNATION
		if
		:: incarnation != 0 && conninfo_incarnation != incarnation && published == 0 -> goto publish_again
		:: else
		fi
#else
		if
		:: incarnation != 0 && conninfo_incarnation != incarnation && published != incarnation -> goto publish_again
		:: else
		fi
#endif
	};
#ifdef BUG_LATCH
	latch[s] = 0;			/* a set since the check is lost */
#endif
	if
	:: atomic { latch[s] ->
		latch[s] = 0;
		if
		:: signalled -> goto cancel_wait
		:: else -> goto wait
		fi }
	:: deadline -> goto timed_out
	fi;

publish:
	/* send_conninfo: the control socket may be full */
	if
	:: atomic { len(control) < NS -> published = incarnation; control!published; goto checkout }
	:: atomic { len(control) == NS && signalled -> interrupted[s] = 0; goto again }
	fi;

publish_again:
	/* pgpx_waiter_dequeue(AGAIN): the checkout begins again, with its number */
	atomic {
		may_leave;
		if
		:: waiter[s].state == WAITING ->
			queue??_, eval(s);
			waiter[s].state = NONE;
			waits_out--;
			goto checkout
		:: else -> goto claim
		fi
	};

claim:
	/* pgpx_waiter_dequeue(CLAIM) */
	atomic {
		may_leave;
		if
		:: waiter[s].state == GRANTED ->
			c = waiter[s].conn;
			waiter[s].state = NONE;
			waits_out--;
#ifdef PIPELINE
			if
			:: pending[s] == NOT_SENT -> pending[s] = 0; goto dead
			:: pending[s] == SENT_ON -> used = 1; goto sent_answer
			:: else -> pending[s] = 0
			fi;
#endif
			goto validate
		:: waiter[s].state == FAILED || waiter[s].state == EXPIRED ->
			waiter[s].state = NONE;
			waits_out--;
			goto again
		fi
	};

timed_out:
	/* pgpx_waiter_dequeue(TIMEOUT): a grant in the meantime is accepted */
#if STOPS > 0
	if
	:: atomic { sender_stops -> goto abandons }
	:: atomic { may_leave }
	fi;
#endif
#ifdef BUG_TIMEOUT
	if
	:: waiter[s].state != WAITING -> goto claim
	:: waiter[s].state == WAITING		/* checks .. */
	fi;
	atomic {							/* .. and then acts */
		if
		:: waiter[s].state == WAITING -> queue??_, eval(s)
		:: else
		fi;
		waiter[s].state = NONE;
		waits_out--;
		goto again
	};
#else
	atomic {
		may_leave;
		if
#ifdef BUG_EXPIRED
		:: waiter[s].state == WAITING || waiter[s].state == EXPIRED ->
#else
		:: waiter[s].state == WAITING ->
#endif
			queue??_, eval(s);
			waiter[s].state = NONE;
			waits_out--;
			goto again
		:: else -> goto claim
		fi
	};
#endif

cancel_wait:
	/* pgpx_waiter_dequeue(CANCEL), from PG_CATCH or from the exit callback */
#if STOPS > 0
	if
	:: atomic { sender_stops -> goto abandons }
	:: atomic { may_leave }
	fi;
#endif
	atomic {
		may_leave;
		c = NOCONN;
		if
		:: waiter[s].state == WAITING -> queue??_, eval(s)
		:: waiter[s].state == GRANTED ->
#ifdef BUG_CANCELWAIT
			if
			:: interrupted[s]
			:: else -> c = waiter[s].conn
			fi
#else
#ifdef BUG_EXIT
			if
			:: killed[s]
			:: else -> c = waiter[s].conn
			fi
#else
			c = waiter[s].conn
#endif
#endif
		:: else
		fi;
		waiter[s].state = NONE;
		waits_out--
	};
	/* the second section: passed on, unchanged, if nothing was sent */
	atomic {
		how = G_AS_IT_WAS; then = T_STOP;
#if defined(PIPELINE) && !defined(BUG_HANDEDOVER)
		if
		:: pending[s] == SENT_ON -> how = G_CANCEL_CLOSE
		:: pending[s] == NOT_SENT -> how = G_CLOSE
		:: else
		fi;
#endif
		goto releasing
	};

#if STOPS > 0
abandons:
	/* await_sender in wait_queue.c: the time is up; it may be sent, even later */
	atomic {
		if
		:: pending[s] == SENDING ->
			b_stop--;
			pending[s] = ABANDONED;
			c = waiter[s].conn;
			waiter[s].state = NONE;
			waits_out--
		:: else -> goto cancel_wait
		fi
	};
	atomic {
#ifdef BUG_ABANDON
		how = G_AS_IT_WAS;
#else
		how = G_CANCEL_CLOSE;
#endif
		then = T_STOP;
		goto releasing
	};
#endif

validate:
	/*
	 * pgpx_socket_cache_fetch: the worker checks that the requester is the holder.  Then
	 * validate: the answer to a reset, or nothing.
	 */
	if
	:: atomic { mine && reachable && !conn[c].unread_reset && signalled ->
		how = G_AS_IT_WAS; then = T_STOP; goto releasing }
#ifndef BUG_UNREAD
	:: atomic { mine && conn[c].unread_reset && reachable && len(out[c]) > 0 ->
		out[c]?got;
		assert(got == RST || got == BAD);	/* never another session's answer */
		if
		:: got == RST -> got = 0
		:: else ->
			got = 0;
#ifndef BUG_RESETBAD
			goto dead
#endif
		fi }
	:: atomic { !mine || !reachable -> goto dead }
	:: atomic { mine && conn[c].unread_reset && signalled ->
		target[c] = RST; how = G_CANCEL_CLOSE; then = T_STOP; goto releasing }
	:: atomic { mine && !conn[c].unread_reset && reachable -> assert(len(out[c]) == 0) }
#else
	:: true
#endif
	fi;
	goto use;

dead:
	/* checkout() in checkout.c: the connection was lost while idle; retry with the old number */
	atomic {
		how = G_CLOSE; then = T_CHECKOUT; goto releasing
	};

use:
	atomic {
		arrival[s] = 0;
		if
		:: goto back					/* nothing is sent */
		:: true
		fi;
		used = 1;
		if
		:: mine && reachable ->
			assert(conn[c].owner == s && conn[c].state == LEASED);
			assert(dirty[c] == 0);		/* a clean session */
			conn[c].busy = 1;
			dirty[c] = s + 1;
			target[c] = s + 1;
			in[c]!(s + 1);
#ifdef BEHIND
			/* pgpx_wire_send_reset_behind: in the same system call */
			if
			:: behind = 1; in[c]!RST
			:: true
			fi
#endif
		:: mine && !reachable -> how = G_CLOSE; then = T_NEXT; goto releasing
		:: !mine -> goto next			/* revoked: PX001 */
		fi
	};

#ifdef PIPELINE
	goto answer;

sent_answer:
	/* pgpx_wire_begin_sent: the answer to our pipelined statement */
	if
	:: atomic { reachable && len(out[c]) > 0 ->
		out[c]?got;
		assert(got == RST || got == BAD);	/* never another session's answer */
		if
		:: got == RST -> got = 0; pending[s] = 0; goto answer
		:: else ->
			/* PGPX_EV_NOT_RESET: it has not run, and waits again with its number */
			got = 0; pending[s] = 0;
#ifdef BUG_NOTRUN
			goto answer
#else
			used = 0;
			goto dead
#endif
		fi }
	/* it may have run: 08006 */
#ifdef BUG_TWICE
	:: atomic { !reachable && mine -> used = 0; pending[s] = 0; goto dead }
#else
	:: atomic { !reachable && mine -> how = G_CLOSE; then = T_NEXT; goto releasing }
#endif
	:: atomic { !mine && !reachable -> goto next }
	:: atomic { signalled -> how = G_CANCEL_CLOSE; then = T_STOP; goto releasing }
	fi;
#endif

answer:
	/* pgpx_run_read */
	if
	:: atomic { reachable && len(out[c]) > 0 ->
		out[c]?got;
		assert(got == s + 1);			/* never another session's answer */
		got = 0;
		if
		:: mine -> conn[c].busy = 0
		:: else
		fi }
	:: atomic { !reachable && mine -> how = G_CLOSE; then = T_NEXT; goto releasing }
	:: atomic { !mine && !reachable -> goto next }
#ifdef BUG_BEHINDCANCEL
	:: atomic { b_cancels > 0 && mine && conn[c].cancel == 0 ->
#else
	/* such a statement is cancelled by an interrupt only, which closes the connection */
	:: atomic { b_cancels > 0 && mine && conn[c].cancel == 0 && !behind ->
#endif
		/* pgpx_stream_cancel, under the lock */
		b_cancels--;
		conn[c].cancel = REQUESTED;
		notify_worker(c);
		goto answer }
	:: atomic { signalled ->
		/* during a statement: the worker cancels and closes */
		how = G_CANCEL_CLOSE; then = T_STOP; goto releasing }
	fi;

back:
#ifdef PIPELINE
	/* hand_over_lease: without the lock, is_ready_for_hand_over */
	if
	:: atomic { mine && used && !behind && reachable && len(out[c]) == 0 && len(in[c]) == 0 &&
		len(queue) > 0 -> true }
	:: goto no_pipeline
	fi;
	/* pgpx_pool_hand_over */
	atomic {
		got = NO_SESSION;
		if
		:: len(queue) > 0 -> queue?<k, j>; got = j; k = 0; j = 0
		:: else
		fi;
		if
		:: got != NO_SESSION && mine && pending[got] == OPEN && !must_retire(c) &&
			no_cancel ->
			queue?_, _;
			leases_out--;
			clear_lease(c);
			conn[c].unread_reset = 0;
			conn[c].state = IDLE;
			waiter[got].state = GRANTED;
			waiter[got].conn = c;
			pending[got] = SENDING;
			lease_conn(c, got);
			n = got;
			assert_first(n);
			n = 0;
#ifndef BUG_ACTIVE
			conn[c].busy = 1;
#endif
			if
			:: conn[c].cancel != 0		/* it is for another statement */
			:: conn[c].cancel == 0 && conn[c].busy -> target[c] = got + 1
			:: else -> target[c] = 0
			fi
		:: else -> got = 0; goto no_pipeline
		fi
	};
	/* send_and_wake in lease.c: one call, without interrupts */
	atomic {
		if
#if STOPS > 0
		:: pending[got] == ABANDONED && reachable -> in[c]!(AHEAD + got)
		:: pending[got] == ABANDONED && !reachable
#endif
		:: is_pending && reachable -> in[c]!(AHEAD + got); pending[got] = SENT_ON
		:: is_pending && !reachable -> pending[got] = SENT_ON	/* the loss is not noticed yet */
		:: is_pending && !reachable -> pending[got] = NOT_SENT
		fi;
#ifndef BUG_NOTWOKEN
		latch[got] = 1;
#endif
		got = 0;
		goto next
	};

no_pipeline:
#endif
	/* pgpx_lease_return: first condition(), outside of the lock */
	if
#ifdef BUG_STALE
	:: atomic { !mine -> how = G_CLEAN }	/* a checkin of a revoked lease */
#else
	:: atomic { !mine -> goto next }
#endif
#ifdef BUG_CANCEL
	:: atomic { mine && !used -> how = G_CLEAN }
	:: atomic { mine && used && reachable -> in[c]!RST; how = G_RESET_PENDING }
#else
	:: atomic { mine && conn[c].cancel != 0 && !behind -> how = G_CANCEL }
	:: atomic { mine && conn[c].cancel == 0 && !used -> how = G_CLEAN }
	:: atomic { mine && conn[c].cancel == 0 && used && !behind && reachable ->
		in[c]!RST; how = G_RESET_PENDING }
#endif
#ifdef BEHIND
	/* settle_reset_behind: nothing of the answer was read, or all of it */
#ifdef BUG_BEHINDUNREAD
	:: atomic { mine && behind && reachable -> how = G_CLEAN }
#else
	:: atomic { mine && behind && reachable -> how = G_RESET_PENDING }
#endif
	:: atomic { mine && behind && reachable && len(out[c]) > 0 ->
		out[c]?got;
		assert(got == RST || got == BAD);
#ifdef BUG_BEHINDBAD
		how = G_CLEAN;
#else
		how = (got == RST -> G_CLEAN : G_CLOSE);
#endif
		got = 0 }
#endif
	:: atomic { mine && used && !reachable -> how = G_CLOSE }
	fi;
	/* pgpx_lease_return: then pgpx_pool_release */
	then = T_NEXT;

releasing:
	atomic {
		if
		:: c != NOCONN -> release_conn(c, how)
		:: else
		fi;
		how = 0;
		if
		:: then == T_CHECKOUT -> c = NOCONN; then = 0; goto checkout
		:: then == T_STOP -> then = 0; interrupted[s] = 0; goto again
		:: else -> then = 0
		fi
	};

next:
	atomic {
		interrupted[s] = 0;
		goto again
	};

done:
	atomic { arrival[s] = 0; published = 0; left = 0; ended++ }
}

/* --- the worker ------------------------------------------------------------- */

/* Is there an event on a watched socket? */
#define event(c) ( \
	(phase[c] == P_RESET && (len(out[c]) > 0 || !alive[c])) || \
	(phase[c] == P_CONNECT) || \
	(phase[c] == P_OPEN && !alive[c] && !conn[c].hung) || \
	(phase[c] == P_CLOSING && !alive[c]) || \
	(phase[c] == P_ENDING && !flying[c]) || \
	(flying[c] == 2) || may_lose(c))
#if NC == 1
#define any_event event(0)
#else
#define any_event (event(0) || event(1))
#endif

/* pgpx_cancel_start */
inline start_cancel(c)
{
	conn[c].cancel = SENT;
	flying[c] = 1
}

/* pgpx_pool_cancel_done, and the next steps of the worker */
inline cancel_done(c)
{
	flying[c] = 0;
	conn[c].cancel = 0;
	if
	:: conn[c].state == CANCELLING && !conn[c].reason ->
		if
		:: conn[c].old -> close_conn(c)
		:: else ->
			conn[c].state = RESETTING;
			phase[c] = P_RESET;
			if
			:: alive[c] && len(in[c]) < 2 -> in[c]!RST
			:: else
			fi
		fi;
		must_dispatch = 1
	:: conn[c].state == LEASED -> latch[conn[c].owner] = 1
	:: else
	fi
}

/* The number of remote sessions is at most the size of the pool. */
inline assert_size()
{
#if SIZE < NC
	n = 0;
	for (i : 0 .. NC - 1) { n = n + alive[i] };
	assert(n <= SIZE);
	n = 0; i = 0
#else
	skip
#endif
}

/* The events of one connection's sockets. */
inline events_of(c)
{
	/* the cancel connection has closed */
	if
	:: flying[c] == 2 -> cancel_done(c)
#if CANCELLOSSES > 0
	:: may_lose(c) ->
		/* pgpx_cancel_deadline_passed, and pgpx_pool_cancel_done with ok false */
		b_cancelloss--;
		stray[c] = 1;
		stray_target[c] = target[c];
#ifndef BUG_CANCELLOST
		conn[c].lost = 1;
#endif
		flying[c] = 0;
		conn[c].cancel = 0;
		if
		:: conn[c].state == CANCELLING && !conn[c].reason ->
			close_conn(c);
			must_dispatch = 1
		:: conn[c].state == LEASED -> latch[conn[c].owner] = 1
		:: else
		fi
	:: may_lose(c)				/* it has not timed out */
#endif
	:: else
	fi;
	if
		:: phase[c] == P_CONNECT && conn[c].state == CONNECTING ->
			if
			:: true ->
				/* pgpx_pool_opened */
				alive[c] = 1;
				assert_size();
				phase[c] = P_OPEN;
				before[c] = 0;
				retry = 0;
				conn[c].opened = 1;
				open_now++;
				if
				:: conn[c].old -> close_conn(c)
				:: else -> conn[c].state = IDLE
				fi;
				must_dispatch = 1
			:: b_connfail > 0 ->
				/* pgpx_pool_connect_failed */
				b_connfail--;
				num = before[c];
				free_conn(c);
				retry = 1;
				count_live();
#ifndef BUG_FAILWAKE
				if
				:: n == 0 ->
					do
					:: len(queue) > 0 ->
						queue?<k, j>;
						if
						:: k < num ->
							queue?_, _;
							waiter[j].state = FAILED;
							latch[j] = 1
						:: else -> break
						fi
					:: len(queue) == 0 -> break
					od
				:: else
				fi;
				must_dispatch = 1
#endif
			fi
		:: phase[c] == P_RESET && conn[c].state == RESETTING &&
			(len(out[c]) > 0 || !alive[c]) ->
			/* step_reset and pgpx_pool_reset_done */
			if
			:: len(out[c]) > 0 -> out[c]?k
			:: len(out[c]) == 0 -> k = BAD
			fi;
			phase[c] = P_OPEN;
			conn[c].unread_reset = 0;
			if
			:: k == RST && !conn[c].old -> conn[c].state = IDLE
			:: else -> close_conn(c)
			fi;
			must_dispatch = 1
		:: phase[c] == P_OPEN && !alive[c] && !conn[c].hung ->
			/* pgpx_connection_ready: EPOLLRDHUP */
			conn[c].hung = 1;
			if
			:: conn[c].state == IDLE || conn[c].state == RESET_PENDING ||
				conn[c].state == RESETTING || conn[c].state == CANCELLING ->
				close_conn(c);
				must_dispatch = 1
#if SIZE < NC
			:: conn[c].state == LEASED ->
				/* pgpx_pool_lost: another connection may take its slot */
				conn[c].broken = 1;
				must_dispatch = 1
#endif
			:: else
			fi
		:: phase[c] == P_ENDING && !flying[c] ->
			/* connection.c: Terminate if it is idle; else the cancel is repeated */
			if
			:: !alive[c] ->
				close_conn(c);
				must_dispatch = 1
			:: alive[c] && len(in[c]) == 0 -> cut[c] = 1
			:: alive[c] && len(in[c]) > 0 -> start_cancel(c)
			fi
		:: phase[c] == P_CLOSING && !alive[c] ->
			/* close_now and pgpx_pool_closed */
			free_conn(c);
			must_dispatch = 1
		:: else
	fi;
	k = 0; n = 0; i = 0; j = 0; num = 0
}

/* work_on in event_loop.c, with read_control before it */
inline work_on(c)
{
		if
		:: conn[c].work ->
			conn[c].work = 0;
			do
			:: len(control) > 0 ->
				/* pgpx_control_receive and read_control */
				control?k;
				if
				:: k == incarnation ->
					has_conninfo = 1; conninfo_incarnation = incarnation;
					missed = 0; must_dispatch = 1
				:: else
				fi
			:: len(control) == 0 -> break
			od;
			k = 1
		:: else -> k = 0
		fi;
		if
		:: k == 1 && conn[c].state == CONNECTING && phase[c] == P_NONE ->
			if
			:: has_conninfo ->
				/* pgpx_connect_open */
				phase[c] = P_CONNECT;
				next_number();
				before[c] = num;
				num = 0
			:: else ->
				/* pgpx_pool_conninfo_missing */
				free_conn(c);
				conninfo_incarnation = 0;
				missed = 1;
				for (j : 0 .. NS - 1) {
					if
					:: waiter[j].state == WAITING -> latch[j] = 1
					:: else
					fi
				}
			fi
		:: k == 1 && conn[c].state == CANCELLING && conn[c].reason &&
			phase[c] != P_ENDING && phase[c] != P_CLOSING ->
			/* pgpx_abort_begin */
			phase[c] = P_ENDING;
			if
			:: conn[c].cancel == REQUESTED -> start_cancel(c)
			:: else
			fi
		:: k == 1 && (conn[c].state == LEASED || conn[c].state == CANCELLING) &&
			!conn[c].reason && conn[c].cancel == REQUESTED ->
			start_cancel(c)
		:: k == 1 && conn[c].state == CANCELLING && !conn[c].reason &&
			conn[c].cancel == 0 && flying[c] == 0 ->
			cancel_done(c)
		:: k == 1 && conn[c].state == CLOSING && phase[c] != P_CLOSING ->
			/* pgpx_connection_close */
			phase[c] = P_CLOSING;
			cut[c] = 1;
#ifdef BUG_SLOT
			free_conn(c);
			must_dispatch = 1
#endif
		:: else
		fi;
		k = 0; j = 0
}

/* tick in maintenance.c: periodic work */
inline tick(c)
{
	if
	:: conn[c].state == RESET_PENDING && phase[c] == P_OPEN ->
		if
		:: ticking = 1				/* not due yet */
		:: true ->
			/* pgpx_pool_begin_reset */
			conn[c].state = RESETTING;
			phase[c] = P_RESET
		fi
	:: else
	fi
}

proctype Worker()
{
	byte incarnations = 0;
	bit must_dispatch;		/* the queue is dispatched once, at the end of a round */

#if RESTARTS > 0
start:
	/* set_up in worker.c */
#ifndef BUG_FORGET
	atomic { forget_connections(); has_conninfo = 0; worker_timer = 0 };
#endif
	atomic { incarnations++; incarnation = incarnations; worker_latch = 1 };
#endif
	do
	:: true ->
end_sleep:
		/*
		 * A round of pgpx_event_loop_run_once: sleep, reset the latch, check
		 * sockets and work bits, announce the sleep, check again.  One
		 * atomic, although it is many sections in C: an event between two
		 * of them is equivalent to one before the round, or in the next one,
		 * as long as the latch is reset, and the sleep announced, before the
		 * check.  A mutant with another order also splits the atomic there.
		 */
		atomic {
			(worker_latch || ticking || any_event || len(control) > 0 ||
				worker_killed || (worker_timer && retry == 2));
			worker_timer = 0;
#ifndef BUG_WORKERLATCH
			worker_latch = 0;
#endif
#if RESTARTS > 0
			if
			:: worker_killed -> goto stop
			:: else
			fi;
#endif
			events_of(0);
#if NC > 1
			events_of(1);
#endif
			do
			:: len(control) > 0 ->
				control?k;
				if
				:: k == incarnation ->
					has_conninfo = 1; conninfo_incarnation = incarnation;
					missed = 0; must_dispatch = 1
				:: else
				fi
			:: len(control) == 0 -> break
			od;
			work_on(0);
#if NC > 1
			work_on(1);
#endif
			/* pgpx_maintenance_run */
#ifndef BUG_SLEEP
			ticking = 0;
#endif
			tick(0);
#if NC > 1
			tick(1);
#endif
			if
#ifndef BUG_FAILWAKE
			:: len(queue) > 0 && retry == 1 -> worker_timer = 1
#endif
			:: len(queue) > 0 && retry != 1 -> must_dispatch = 1
			:: else
			fi;
			k = 0;
			if
			:: must_dispatch -> must_dispatch = 0; dispatch()
			:: else
			fi
		};
#ifdef BUG_SLEEP
		ticking = 0;			/* events since the check did not wake it */
#endif
#ifdef BUG_WORKERLATCH
		worker_latch = 0;		/* a set since the check is lost */
#endif
	od;

#if RESTARTS > 0
stop:
	/* at_exit in worker.c */
	incarnation = 0;
	atomic {
#ifndef BUG_FORGET
		forget_connections();
#else
		/* its memory and sockets are lost, shared memory is not */
		for (num : 0 .. NC - 1) {
			phase[num] = P_NONE;
			flying[num] = 0;
			if
			:: conn[num].state != LEASED -> alive[num] = 0
			:: else
			fi
		};
		num = 0;
		conninfo_incarnation = 0;
#endif
		has_conninfo = 0; ticking = 0; worker_timer = 0; worker_killed = 0;
		worker_latch = 0
	};
	goto start
#endif
}

/* --- the remote -------------------------------------------------------------- */

proctype Remote(byte c)
{
	byte x;

end:
	do
	:: atomic { alive[c] && len(in[c]) > 0 && len(out[c]) < ROOM ->
		/* a statement ends */
		in[c]?x;
		if
		:: x == RST ->
			if
			:: dirty[c] = 0; out[c]!RST
			:: b_resetfail > 0 -> b_resetfail--; out[c]!BAD
			fi
#ifdef PIPELINE
		:: x >= AHEAD ->
			x = x - AHEAD;
			if
			:: dirty[c] = 0; out[c]!RST
			:: b_resetfail > 0 -> b_resetfail--; out[c]!BAD;
#ifndef BUG_AHEAD
				x = NS			/* skipped up to the Sync */
#endif
			fi;
			if
			:: x < NS ->
				assert(dirty[c] == 0);	/* a clean session */
				assert(!ran[x]);		/* never twice */
				ran[x] = 1;
				dirty[c] = x + 1;
				out[c]!(x + 1)
			:: else
			fi
#endif
		:: else ->
#ifdef PIPELINE
			assert(!ran[x - 1]);
			ran[x - 1] = 1;
#endif
			out[c]!x
		fi;
		x = 0 }
	:: atomic { alive[c] && cut[c] && len(in[c]) == 0 -> alive[c] = 0 }
	:: atomic { flying[c] == 1 ->
		/* the signal is sent, then the cancel connection is closed */
		flying[c] = 2;
		if
		:: alive[c] && len(in[c]) > 0 && len(out[c]) < ROOM ->
			in[c]?x;
#ifdef PIPELINE
			if
			:: x >= AHEAD -> x = x - AHEAD + 1; dirty[c] = x; out[c]!RST
			:: else
			fi;
#endif
			assert(x == target[c] || x == RST && conn[c].reason);
			if
			:: x == RST -> out[c]!BAD
			:: else -> out[c]!x
			fi;
			x = 0
		:: else
		fi }
#if CANCELLOSSES > 0
	:: atomic { stray[c] ->
		/* delivered at any later time: it may hit a reset, but no other session's statement */
		stray[c] = 0;
		if
		:: alive[c] && len(in[c]) > 0 && len(out[c]) < ROOM ->
			in[c]?x;
#ifdef PIPELINE
			if
			:: x >= AHEAD -> x = x - AHEAD + 1; dirty[c] = x; out[c]!RST
			:: else
			fi;
#endif
			assert(x == stray_target[c] || x == RST);
			if
			:: x == RST -> out[c]!BAD
			:: else -> out[c]!x
			fi;
			x = 0
		:: else
		fi;
		stray_target[c] = 0 }
#endif
	od
}

/* --- the environment ------------------------------------------------------------ */

/* The end of a back-off. */
proctype Clock()
{
end:
	do
	:: atomic { retry == 1 -> retry = 2 }
	od
}

proctype Env()
{
	byte kills = KILLS, interrupts = INTERRUPTS, revokes = REVOKES;
	byte losses = LOSSES, reconnects = RECONNECTS, restarts = RESTARTS;
	byte s;

	do
	:: atomic { kills > 0 ->
		kills--;
		select (s : 0 .. NS - 1);
		killed[s] = 1; latch[s] = 1; s = 0 }
	:: atomic { interrupts > 0 ->
		interrupts--;
		select (s : 0 .. NS - 1);
		interrupted[s] = 1; latch[s] = 1; s = 0 }
	:: atomic { revokes > 0 ->
		select (s : 0 .. NC - 1);
		if
		:: conn[s].state == LEASED -> revokes--; revoke(s, false); s = 0
		:: else -> s = 0
		fi }
	:: atomic { losses > 0 ->
		select (s : 0 .. NC - 1);
		if
		:: alive[s] ->
			losses--;
			alive[s] = 0;
			do
			:: len(in[s]) > 0 -> in[s]?_
			:: len(in[s]) == 0 -> break
			od
		:: else
		fi;
		s = 0 }
	:: atomic { reconnects > 0 ->
		/* pgpx_pool_reconnect_locked */
		reconnects--;
		for (s : 0 .. NC - 1) {
			if
			:: conn[s].state != FREE && conn[s].state != CLOSING ->
				conn[s].old = 1
			:: else
			fi
		};
		dispatch();
		s = 0 }
	:: atomic { restarts > 0 && incarnation != 0 ->
		restarts--; worker_killed = 1; worker_latch = 1 }
	:: break
	od;
	env_ended = 1
}

/* The final state: no session hangs, nothing is left, the counters add up. */
proctype Monitor()
{
	timeout;
	assert(env_ended);
	assert(ended == NS);				/* else a session hangs */
	assert(len(queue) == 0 && leases_out == 0 && waits_out == 0);
	d_step {
		n = 0;
		for (i : 0 .. NC - 1) {
			assert(conn[i].state == FREE || conn[i].state == IDLE);
			assert(conn[i].cancel == 0 && conn[i].owner == NO_SESSION);
			assert((conn[i].state == IDLE) == alive[i]);
			assert(conn[i].state == FREE || (len(in[i]) == 0 && len(out[i]) == 0));
			if
			:: conn[i].opened -> n++
			:: else
			fi
		};
		assert(n == open_now)
	}
}

init
{
	byte s;

	atomic {
		for (s : 0 .. NC - 1) {
			conn[s].owner = NO_SESSION;
			run Remote(s)
		};
		run Worker();
		for (s : 0 .. NS - 1) { run Session(s) };
#if CONNFAILS > 0
		run Clock();
#endif
#if KILLS + INTERRUPTS + REVOKES + LOSSES + RECONNECTS + RESTARTS > 0
		run Env();
#else
		env_ended = 1;
#endif
		run Monitor();
		s = 0
	}
}
