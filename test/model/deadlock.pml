/*
 * deadlock.pml
 *	  Sessions that hold connections of pools and wait for others, and the check
 *	  for deadlocks.  README.md maps each step to the C function that it
 *	  represents.
 *
 * An "atomic" is one section under the lock of one pool.  Time is a choice: a
 * waiter may check at any moment, but not twice while nothing changes.
 *
 * A slot is a connection that may be opened: NC of them for all pools, and size[p]
 * for a pool.  With CAP there are fewer slots than the pools may use together, as
 * under max_connections.
 *
 * Asserted: when the two readings of a victim are complete, the deadlock existed at
 * the instant between them, the victim was part of it, and no other session of it is
 * a victim; and when no step is possible, all sessions have ended.
 *
 * The runner reads these lines:
 *
 * run cross: -DNS=2 -DNP=2 -DROUNDS=3
 * run ring: -DNS=3 -DNP=3 -DRING
 * run behind: -DNS=3 -DNP=2 -DLAST_ONCE
 * run two: -DNS=3 -DNP=1 -DSIZE=2
 * run closes: -DNS=2 -DNP=2 -DCLOSES -DCANCELS=1
 * run cancel_deadlock: -DNS=3 -DNP=2 -DRING -DCANCELS=1
 * run revoke_deadlock: -DNS=3 -DNP=2 -DRING -DLAST_ONCE -DREVOKES=1
 * run shrink: -DNS=2 -DNP=2 -DSIZE=2 -DSHRINKS
 * run cap: -DNS=3 -DNP=2 -DSIZE=2 -DCAP=2 -DRING
 * run cap_closes: -DNS=2 -DNP=2 -DSIZE=2 -DCAP=2 -DCLOSES
 *
 * mutant BUG_ONCE: -DNS=3 -DNP=2 -DRING -DLAST_ONCE -DREVOKES=1
 * mutant BUG_ALL: -DNS=2 -DNP=2
 * mutant BUG_BEHIND: -DNS=3 -DNP=3
 * mutant BUG_FIRST: -DNS=3 -DNP=1 -DSIZE=2
 * mutant BUG_CLOSING: -DNS=3 -DNP=1 -DSIZE=2 -DCLOSES
 * mutant BUG_CAP: -DNS=2 -DNP=2 -DSIZE=2 -DCAP=2
 * mutant BUG_NOREPEAT: -DNS=3 -DNP=1 -DSIZE=2 -DSHRINKS
 * mutant BUG_NEVER: -DNS=2 -DNP=2
 *
 * deep deadlock: -DNS=4 -DNP=3 -DROUNDS=3 -DCLOSES -DCANCELS=1 -DREVOKES=1
 * deep deadlock_cap: -DNS=4 -DNP=2 -DSIZE=3 -DCAP=3 -DROUNDS=3 -DCLOSES -DCANCELS=1 -DREVOKES=1
 */

#ifndef NS
#define NS 2				/* sessions */
#endif
#ifndef NP
#define NP 2				/* pools */
#endif
#ifndef SIZE
#define SIZE 1				/* of each pool */
#endif
#ifndef ROUNDS
#define ROUNDS 2			/* checkouts of each session */
#endif
#ifndef CANCELS
#define CANCELS 0			/* waits that are cancelled, or time out */
#endif
#ifndef REVOKES
#define REVOKES 0			/* leases that are revoked */
#endif
#ifdef LAST_ONCE
#define CHECKOUTS(s) (ROUNDS - ((s) == NS - 1))	/* the last session holds nothing while it waits */
#else
#define CHECKOUTS(s) ROUNDS
#endif
#ifdef CAP
#define NC CAP
#else
#define NC (NP * SIZE)
#endif

#ifdef BUG_NOREPEAT
#define may_check !checked
#else
#define may_check true
#endif

#define FREE NS				/* instead of an owner */
#define CLOSING (NS + 1)
#define NONE 255

/* --- shared memory ------------------------------------------------------- */

byte owner[NC] = FREE;
byte pool[NC];
byte lease[NC];				/* its id: which lease of the slot it is */
byte size[NP] = SIZE;
byte waits[NS];				/* 0, or the pool + 1 */
byte wait_id[NS];
byte next_wait;

/* --- not in C: state for the assertions and the search -------------------- */

bit changed[NS];			/* since the session's last check */
bit victim[NS];				/* it is about to leave the queue */
byte ended;
byte b_cancel = CANCELS;
byte b_revoke = REVOKES;
byte i, j, k, n;			/* in atomic steps only, 0 between them */
bit live[NS];				/* the same */

inline note_change()
{
	for (i : 0 .. NS - 1) { changed[i] = 1 };
	i = 0
}

/* n = slots that pool p uses; j = a free slot or NONE */
inline count(p)
{
	n = 0; j = NONE;
	for (i : 0 .. NC - 1) {
		if
		:: owner[i] == FREE -> j = i
		:: owner[i] != FREE && pool[i] == p -> n++
		:: else
		fi
	};
	i = 0
}

inline acquire(s, c, p)
{
	owner[c] = s;
	pool[c] = p;
	lease[c] = lease[c] + 1
}

/* pgpx_pool_dispatch_locked, and the permits of a cap by the age of waiters */
inline dispatch()
{
	do
	:: k = NONE;
		for (i : 0 .. NS - 1) {
			live[i] = 0;
			if
			:: waits[i] != 0 -> live[i] = 1		/* may be granted */
			:: else
			fi
		};
		i = 0;
		do
		:: k = NONE;
			for (i : 0 .. NS - 1) {
				if
				:: live[i] && (k == NONE || wait_id[i] < wait_id[k]) -> k = i
				:: else
				fi
			};
			i = 0;
			if
			:: k == NONE -> break
			:: else
			fi;
			count(waits[k] - 1);
			if
			:: j != NONE && n < size[waits[k] - 1] -> break
			:: else -> live[k] = 0
			fi
		od;
		if
		:: k == NONE -> break
		:: else ->
			acquire(k, j, waits[k] - 1);
			waits[k] = 0
		fi
	od;
	for (i : 0 .. NS - 1) { live[i] = 0 };
	i = 0; j = 0; k = 0; n = 0
}

/* The end of a lease: pgpx_pool_release, pgpx_pool_revoke_locked. */
inline release(c)
{
	if
	:: owner[c] = FREE
#ifdef CLOSES
	:: owner[c] = CLOSING
#endif
	fi;
	dispatch();
	note_change()
}

/*
 * Computes live[] of all sessions, independently of the check.  A session is live if
 * it does not wait, or if it waits for a slot that is closing or whose owner is live.
 */
inline find_live()
{
	for (i : 0 .. NS - 1) { live[i] = (waits[i] == 0) };
	for (k : 1 .. NS) {
		for (i : 0 .. NS - 1) {
			if
			:: !live[i] ->
				n = 0;
				for (j : 0 .. NC - 1) {
					if
					:: owner[j] != FREE && pool[j] == waits[i] - 1 -> n++
					:: else
					fi
				};
				for (j : 0 .. NC - 1) {
					if
					:: owner[j] == FREE ->
						if
						:: n < size[waits[i] - 1] -> live[i] = 1
						:: else
						fi
#ifdef CAP
					:: owner[j] != FREE && (pool[j] == waits[i] - 1 || n < size[waits[i] - 1]) ->
#else
					:: owner[j] != FREE && pool[j] == waits[i] - 1 ->
#endif
						if
						:: owner[j] == CLOSING -> live[i] = 1
						:: owner[j] < NS && live[owner[j]] -> live[i] = 1
						:: else
						fi
					:: else
					fi
				}
			:: else
			fi
		}
	};
	i = 0; j = 0; k = 0; n = 0
}

inline forget_live()
{
	for (i : 0 .. NS - 1) { live[i] = 0 };
	i = 0
}

/* --- sessions -------------------------------------------------------------- */

typedef Reading {
	byte wait_id[NS];		/* 0: not found */
	byte pool[NS];			/* that the session waits for */
	bit cap[NS];			/* its pool may grow, and the cap is full */
	byte lease[NC];			/* 0: not found */
	byte owner[NC];
	byte in_pool[NC]				/* its pool */
};

/*
 * read_leases_locked and read_limit_locked: one wait, and the slots of one pool; with
 * CAP the slots of other pools in sections of their own.
 */
inline read_slots(which, p)
{
	for (i : 0 .. NC - 1) {
		if
		:: owner[i] == CLOSING && pool[i] == p ->
#ifndef BUG_CLOSING
			is_live = 1
#else
			skip
#endif
		:: owner[i] < NS && pool[i] == p ->
			reading[which].lease[i] = lease[i];
			reading[which].owner[i] = owner[i];
			reading[which].in_pool[i] = p;
#ifdef BUG_FIRST
			if
			:: n == 0 -> found[owner[i]] = 1
			:: else
			fi;
			n++;
			if
			:: n == 1 && waits[owner[i]] == 0 -> is_live = 1
			:: else
			fi
#else
			found[owner[i]] = 1;
			if
			:: waits[owner[i]] == 0 -> is_live = 1
			:: else
			fi
#endif
		:: else
		fi
	};
	i = 0; n = 0
}

/* collect() */
inline collect(which)
{
	d_step {
		for (i : 0 .. NS - 1) { found[i] = 0; reading[which].wait_id[i] = 0; reading[which].pool[i] = 0; reading[which].cap[i] = 0 };
		for (i : 0 .. NC - 1) { reading[which].lease[i] = 0; reading[which].owner[i] = 0; reading[which].in_pool[i] = 0 };
		found[s] = 1;
		is_live = 0;
		i = 0
	};
	do
	:: atomic {
		/* read_wait() */
		w = NONE;
		for (i : 0 .. NS - 1) {
			if
			:: w == NONE && found[i] && reading[which].wait_id[i] == 0 -> w = i
			:: else
			fi
		};
		i = 0;
		if
		:: is_live || w == NONE -> break
		:: else
		fi;
		if
		:: waits[w] == 0 -> is_live = 1
		:: else ->
			reading[which].wait_id[w] = wait_id[w];
			reading[which].pool[w] = waits[w] - 1;
			count(waits[w] - 1);
			if
			:: n < size[waits[w] - 1] ->
				if
				:: j != NONE -> is_live = 1
				:: else
#if defined(CAP) && !defined(BUG_CAP)
					-> reading[which].cap[w] = 1
#endif
				fi
			:: else
			fi;
			j = 0; n = 0;
			of_pool = reading[which].pool[w];
			read_slots(which, of_pool)
		fi }
#ifdef CAP
		/* read_cap() */
		if
		:: !is_live && reading[which].cap[w] ->
			for (q : 0 .. NP - 1) {
				atomic {
					if
					:: q != reading[which].pool[w] -> read_slots(which, q)
					:: else
					fi }
			};
			atomic {
				/* each permit of the cap has been found */
				for (i : 0 .. NC - 1) {
					if
					:: owner[i] != FREE && reading[which].lease[i] == 0 -> is_live = 1
					:: owner[i] == FREE -> is_live = 1
					:: else
					fi
				};
				i = 0; q = 0 }
		:: else
		fi
#endif
	od
}

#define r_keeps(v, c) (reading[0].lease[c] != 0 && \
	(reading[0].in_pool[c] == reading[0].pool[v] || reading[0].cap[v]))

/* equals() and is_victim(): sets is_mine */
inline decide()
{
	is_mine = 1;
#ifndef BUG_ONCE
	for (i : 0 .. NS - 1) {
		if
		:: reading[0].wait_id[i] != reading[1].wait_id[i] -> is_mine = 0
		:: else
		fi
	};
	for (i : 0 .. NC - 1) {
		if
		:: reading[0].lease[i] != reading[1].lease[i] -> is_mine = 0
		:: else
		fi
	};
#endif
	/* blocked by us: found[] is not needed any more */
	for (i : 0 .. NS - 1) { found[i] = (i == s) };
	for (k : 1 .. NS) {
		for (i : 0 .. NS - 1) {
			for (j : 0 .. NC - 1) {
				if
				:: reading[0].wait_id[i] != 0 && r_keeps(i, j) && found[reading[0].owner[j]] -> found[i] = 1
				:: else
				fi
			}
		}
	};
	for (i : 0 .. NS - 1) {
		if
#ifndef BUG_BEHIND
		:: reading[0].wait_id[i] != 0 && !found[i] -> is_mine = 0
#endif
#ifndef BUG_ALL
		:: reading[0].wait_id[i] > reading[0].wait_id[s] -> is_mine = 0
#endif
		:: else
		fi
	};
	i = 0; j = 0; k = 0
}

proctype Session(byte s)
{
	byte rounds, w, q, c, of_pool;
	bit found[NS];
	bit is_live, is_mine, was_dead, checked;
	Reading reading[2];

	do
	:: rounds < CHECKOUTS(s) ->
		/* pgpx_lease_checkout: of any pool that it does not hold whole */
		atomic {
#ifdef RING
			q = (s + rounds) % NP;
#else
			select (q : 0 .. NP - 1);
#endif
			count(q);
			k = 0;
			w = 0;
			for (i : 0 .. NC - 1) {
				if
				:: owner[i] == s -> w++
				:: else
				fi;
				if
				:: owner[i] == s && pool[i] == q -> k++
				:: else
				fi
			};
			i = 0;
			if
			:: k >= size[q] || w == NC -> q = 0; i = 0; j = 0; k = 0; n = 0; w = 0; goto release_all
			:: else
			fi;
			w = 0;
			k = 0;
			for (i : 0 .. NS - 1) {
				if
				:: waits[i] == q + 1 -> k = 1
				:: else
				fi
			};
			if
			:: k == 0 && j != NONE && n < size[q] -> acquire(s, j, q)
			:: else ->
				next_wait++;
				wait_id[s] = next_wait;
				waits[s] = q + 1
			fi;
			i = 0; j = 0; k = 0; n = 0; q = 0;
			checked = 0;
			note_change()
		};

		/* wait_for_grant */
		do
		:: waits[s] == 0 -> break
		:: atomic { waits[s] != 0 && b_cancel > 0 ->
			b_cancel--;
			waits[s] = 0;
			note_change() };
			goto release_all
#ifndef BUG_NEVER
		:: atomic { waits[s] != 0 && changed[s] && may_check ->
			/* pgpx_deadlock_find; a session without leases does not check */
			changed[s] = 0;
			for (i : 0 .. NC - 1) {
				if
				:: owner[i] == s -> is_mine = 1
				:: else
				fi
			};
			i = 0;
			if
			:: is_mine -> is_mine = 0; checked = 1
			:: else -> goto waits_on
			fi };
			collect(0);
			if
			:: !is_live ->
				d_step { find_live(); was_dead = !live[s]; forget_live() };
#ifndef BUG_ONCE
				collect(1);
#endif
				if
				:: is_live
				:: else ->
					atomic {
#ifdef BUG_ONCE
						d_step { find_live(); was_dead = !live[s]; forget_live() };
#endif
						decide();
						if
						:: is_mine ->
							assert(was_dead);
							for (i : 0 .. NS - 1) {
								assert(reading[0].wait_id[i] == 0 || found[i]);
								assert(reading[0].wait_id[i] == 0 || !victim[i] || CANCELS + REVOKES > 0)
							};
							i = 0;
							victim[s] = 1
						:: else
						fi
					}
				fi
			:: else
			fi;
			d_step {
				for (i : 0 .. NS - 1) {
					found[i] = 0; reading[0].wait_id[i] = 0; reading[0].pool[i] = 0; reading[0].cap[i] = 0;
					reading[1].wait_id[i] = 0; reading[1].pool[i] = 0; reading[1].cap[i] = 0
				};
				for (i : 0 .. NC - 1) {
					reading[0].lease[i] = 0; reading[0].owner[i] = 0; reading[0].in_pool[i] = 0;
					reading[1].lease[i] = 0; reading[1].owner[i] = 0; reading[1].in_pool[i] = 0
				};
				i = 0; w = 0; of_pool = 0; is_live = 0; was_dead = 0
			};
			if
			:: is_mine ->
				/* pgpx_waiter_dequeue: a grant in the meantime is claimed */
				atomic {
					is_mine = 0;
					victim[s] = 0;
					if
					:: waits[s] == 0 -> goto waits_on
					:: else -> waits[s] = 0; note_change()
					fi
				};
				goto release_all
			:: else
			fi;
waits_on:
			skip
#endif
		od;
		checked = 0;
		rounds++
	:: rounds > 0 -> break
	od;

release_all:
	for (c : 0 .. NC - 1) {
		atomic {
			if
			:: owner[c] == s -> release(c)
			:: else
			fi }
	};
	ended++
}

/* A connection has closed: pgpx_pool_closed. */
proctype Worker()
{
	byte c;

end:
	do
	:: atomic {
		select (c : 0 .. NC - 1);
		if
		:: owner[c] == CLOSING -> owner[c] = FREE; dispatch(); note_change()
		:: else
		fi;
		c = 0 }
	od
}

/* pgpool.terminate; ALTER SERVER .. pool_size */
proctype Env()
{
	byte c;

	do
	:: atomic { b_revoke > 0 ->
		select (c : 0 .. NC - 1);
		if
		:: owner[c] < NS -> b_revoke--; release(c)
		:: else
		fi;
		c = 0 }
#ifdef SHRINKS
	:: atomic { size[0] > 1 -> size[0] = size[0] - 1; note_change() }
#endif
	:: break
	od
}

proctype Monitor()
{
	timeout;
	assert(ended == NS);			/* else a session hangs */
	for (i : 0 .. NC - 1) { assert(owner[i] == FREE) }
}

init
{
	byte s;

	atomic {
		for (s : 0 .. NS - 1) { run Session(s) };
		s = 0;
#ifdef CLOSES
		run Worker();
#endif
#if REVOKES > 0 || defined(SHRINKS)
		run Env();
#endif
		run Monitor()
	}
}
