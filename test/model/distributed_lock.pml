/*
 * distributed_lock.pml
 *	  The distributed lock as a model: two sessions of two servers, one row on the
 *	  remote, messages that are late or lost, a clock that advances at any time.
 *
 * The row is changed by one statement at a time (atomic below).  A statement that
 * timed out may still be executed by the remote later ("late").  A session that
 * believes that it holds the lock may write to the protected resource at any later time.
 *
 * Asserted:
 *	 - no two sessions believe at the same time that they hold the lock
 *	 - tokens increase with each grant
 *	 - the protected resource never accepts a token lower than one it has accepted
 *
 * The correct model is searched completely with two statements of each session; the
 * mutants have three, where the search ends at the first error.  A deep search looks for
 * errors of the correct model with three, because such an error could be taken for that
 * of a mutant.
 *
 * run lock: -DREQUESTS=2
 *
 * mutant BUG_LATE_DEADLINE: -DREQUESTS=3
 * mutant BUG_NO_TOKEN: -DREQUESTS=3 -DBUG_LATE_ANSWER
 * mutant BUG_LATE_ANSWER: -DREQUESTS=3 -DBUG_NO_TOKEN
 * mutant BUG_BLIND_RELEASE: -DREQUESTS=3
 * mutant BUG_EARLY_TAKEOVER: -DREQUESTS=3
 * mutant BUG_ASSUME: -DREQUESTS=3
 * mutant BUG_SAME_TOKEN: -DREQUESTS=3
 * mutant BUG_NO_FENCE: -DREQUESTS=3
 * mutant BUG_REVIVED: -DREQUESTS=3
 *
 * deep lock_three: -DREQUESTS=3
 *
 * Each bug removes one rule of the design; then one of the assertions must fail:
 *	 LATE_DEADLINE	 the holder counts its ttl from the answer, not from the statement
 *	 NO_TOKEN		 a ping names the lock without its token, and
 *	 LATE_ANSWER	 its answer counts after the lock has expired (each of these two
 *					 rules covers for the other)
 *	 BLIND_RELEASE	 a release names the lock without its token
 *	 EARLY_TAKEOVER	 a contender acquires a lock that is about to expire
 *	 ASSUME			 a session that receives no answer assumes that the lock was granted
 *	 SAME_TOKEN		 the token is the clock's, not higher than the last one
 *	 NO_FENCE		 the protected resource does not check the token
 *	 REVIVED		 a token is reused after a release
 */
#define N 2
#define TTL 2
#define TIME 4
#ifndef REQUESTS
#define REQUESTS 2		/* for the complete search; mutants have more */
#endif
#define PINGS 1
#define LOSSES 1
#define WRITES 2

mtype = { NONE, ACQUIRE, PING, RELEASE };

typedef Session {
	mtype	out;		/* the statement that waits for its answer */
	bool	done;		/* the remote has executed it; the answer is in flight */
	bool	yes;		/* its result */
	byte	new_token;		/* its token */
	byte	sent_at;
	byte	acquisition;
	bool	held;		/* HELD in shared memory */
	byte	token;
	byte	until;		/* valid until then */
	mtype	late;		/* timed out; the remote may still execute it */
	byte	late_token;
	byte	late_acquisition;
	byte	writes;		/* a token with which it is about to write; 0: none */
};

Session s[N];
byte now = 1;

/* the row */
bool held = false;
byte holder;
byte row_acquisition;
byte row_token = 0;
byte expires;

byte requests = 0;
byte pings = 0;
byte begun = 0;
byte losses = 0;
byte granted = 0;		/* the highest token granted */
byte written = 0;		/* the last token of a write */

#define BELIEVES(i) (s[i].held && now < s[i].until)

/* unused values must not distinguish states */
inline forget(i)
{
	if
	:: s[i].out == NONE ->
		s[i].done = false;
		s[i].yes = false;
		s[i].new_token = 0;
		s[i].sent_at = 0
	:: else
	fi;
	if
	:: !s[i].held -> s[i].until = 0; s[i].token = 0
	:: else
	fi;
	if
	:: s[i].late == NONE -> s[i].late_token = 0; s[i].late_acquisition = 0
	:: else
	fi
}

inline only_one()
{
	assert(!(BELIEVES(0) && BELIEVES(1)));
}

inline grant(me, its, ok, what)
{
	ok = false;
	if
	/* a repeated or late statement: the same token, once */
	:: holder == me && row_acquisition == its && held && expires > now ->
		expires = now + TTL;
		ok = true;
		what = row_token
	:: !(holder == me && row_acquisition == its) &&
#ifdef BUG_EARLY_TAKEOVER
		(!held || expires <= now + 1) ->
#else
		(!held || expires <= now) ->
#endif
#ifdef BUG_SAME_TOKEN
		row_token = now;
#else
		row_token = (row_token + 1 > now -> row_token + 1 : now);
#endif
		assert(row_token > granted);
		granted = row_token;
		held = true;
		holder = me;
		row_acquisition = its;
		expires = now + TTL;
		ok = true;
		what = row_token
	:: else
	fi
}

inline ping(me, its, known, ok)
{
	ok = false;
	if
#ifdef BUG_NO_TOKEN
	:: held && expires > now ->
#else
	:: held && holder == me && row_acquisition == its && row_token == known && expires > now ->
#endif
		expires = now + TTL;
		ok = true
	:: else
	fi
}

inline release(me, its)
{
	if
#ifdef BUG_BLIND_RELEASE
	:: held ->
#else
	:: held && holder == me && row_acquisition == its ->
#endif
		held = false;
#ifdef BUG_REVIVED
		row_token = row_token - 1;
#endif
	:: else
	fi
}

proctype session(byte i)
{
	bool yes;
	byte new_token;

	do
	/* send, and repeat the same request if the answer was lost */
	:: atomic { s[i].out == NONE && !s[i].held && requests < REQUESTS ->
		requests++;
		s[i].acquisition = requests;
		s[i].sent_at = now;
		s[i].out = ACQUIRE;
		s[i].done = false }
	:: atomic { s[i].out == NONE && s[i].held && now < s[i].until && pings < PINGS ->
		pings++;
		s[i].sent_at = now;
		s[i].out = PING;
		s[i].done = false }
	:: atomic { s[i].out == NONE && s[i].held ->
		s[i].held = false;
		s[i].out = RELEASE;
		s[i].done = false;
		forget(i) }

	/* the remote executes it, at any time after it was sent */
	:: atomic { s[i].out != NONE && !s[i].done ->
		if
		:: s[i].out == ACQUIRE -> grant(i, s[i].acquisition, s[i].yes, s[i].new_token)
		:: s[i].out == PING -> ping(i, s[i].acquisition, s[i].token, s[i].yes)
		:: s[i].out == RELEASE -> release(i, s[i].acquisition)
		fi;
		s[i].done = true }

	/* the answer arrives, at any time after that */
	:: atomic { s[i].out != NONE && s[i].done ->
		if
		:: s[i].out == ACQUIRE && s[i].yes ->
#ifdef BUG_LATE_DEADLINE
			s[i].until = now + TTL;
#else
			s[i].until = s[i].sent_at + TTL;
#endif
			s[i].token = s[i].new_token;
			s[i].held = now < s[i].until
		:: s[i].out == PING && s[i].held ->
			if
#ifdef BUG_LATE_ANSWER
			:: s[i].yes ->
#else
			:: s[i].yes && now < s[i].until ->
#endif
#ifdef BUG_LATE_DEADLINE
				s[i].until = now + TTL
#else
				s[i].until = s[i].sent_at + TTL
#endif
			:: else -> s[i].held = false
			fi
		:: else
		fi;
		s[i].out = NONE;
		only_one();
		forget(i) }

	/* no answer arrives (for one session only); it may still be executed */
	:: atomic { i == 0 && s[i].out == ACQUIRE && losses < LOSSES ->
		losses++;
		if
		:: !s[i].done ->
			s[i].late = ACQUIRE;
			s[i].late_acquisition = s[i].acquisition
		:: s[i].done
		fi;
#ifdef BUG_ASSUME
		s[i].held = true;
		s[i].token = granted;
		s[i].until = s[i].sent_at + TTL;
		s[i].out = NONE;
		only_one()
#else
		if
		:: s[i].out = NONE								/* expires by its ttl */
		:: s[i].out = RELEASE; s[i].done = false		/* the worker releases it */
		:: requests < REQUESTS ->						/* sent again */
			requests++;
			s[i].sent_at = now;
			s[i].done = false
		fi
#endif
		;
		forget(i) }
	:: atomic { i == 0 && (s[i].out == PING || s[i].out == RELEASE) && losses < LOSSES ->
		losses++;
		if
		:: !s[i].done ->
			s[i].late = s[i].out;
			s[i].late_token = s[i].token;
			s[i].late_acquisition = s[i].acquisition
		:: s[i].done
		fi;
		s[i].out = NONE;
		forget(i) }
	:: atomic { s[i].late != NONE && s[i].late != 0 ->
		if
		:: s[i].late == ACQUIRE -> grant(i, s[i].late_acquisition, yes, new_token)
		:: s[i].late == PING -> ping(i, s[i].late_acquisition, s[i].late_token, yes)
		:: s[i].late == RELEASE -> release(i, s[i].late_acquisition)
		fi;
		s[i].late = NONE;
		yes = false;
		new_token = 0;
		forget(i) }

	/* a session reads the clock */
	:: atomic { s[i].held && now >= s[i].until -> s[i].held = false; forget(i) }

	/* lock_valid is true; the write happens at any time */
	:: atomic { BELIEVES(i) && s[i].writes == 0 && begun < WRITES ->
		begun++;
		s[i].writes = s[i].token }
	:: atomic { s[i].writes != 0 ->
		if
#ifdef BUG_NO_FENCE
		:: true ->
#else
		:: held && row_token == s[i].writes ->
#endif
			assert(s[i].writes >= written);
			written = s[i].writes
#ifndef BUG_NO_FENCE
		:: else
#endif
		fi;
		s[i].writes = 0 }
	:: now == TIME -> break
	od
}

proctype clock()
{
	do
	:: atomic { now < TIME -> now++ }
	:: now == TIME -> break
	od
}

init
{
	atomic {
		byte i = 0;
		do
		:: i < N -> s[i].out = NONE; s[i].late = NONE; run session(i); i++
		:: else -> break
		od;
		run clock()
	}
}
