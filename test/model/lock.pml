/*
 * lock.pml
 *	  The distributed lock as a model: two sessions of two servers, one row on the
 *	  remote, messages that are late or lost, time that passes whenever it likes.
 *
 * The row is changed by one statement at a time (atomic below).  A question that was
 * given up may still be executed by the remote later on ("late").  Whoever believes
 * that it holds the lock may write to what the lock protects at any later time.
 *
 * What must hold, whatever happens:
 *	 - no two sessions believe at the same time that they hold the lock
 *	 - tokens rise with each grant
 *	 - what is protected never takes a token lower than one it has taken
 *
 * What is sound is searched to the end with two questions of each session; the bugs
 * are sought with three, where the search ends at the first.
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
 * Each bug removes one rule of the design; then one of these must fail:
 *	 LATE_DEADLINE	 the holder counts its ttl from the answer, not the question
 *	 NO_TOKEN		 a ping is for the name of the lock alone, and
 *	 LATE_ANSWER	 its answer counts after the lock has run out (each of these two
 *					 rules makes up for the other)
 *	 BLIND_RELEASE	 a release is for the name of the lock alone
 *	 EARLY_TAKEOVER	 a contender takes what is about to expire
 *	 ASSUME			 who gets no answer assumes that the lock was granted
 *	 SAME_TOKEN		 the token is the clock's, not higher than the last one
 *	 NO_FENCE		 what is protected does not ask for the token
 *	 REVIVED		 a release lets the token fall back
 */
#define N 2
#define TTL 2
#define TIME 4
#ifndef REQUESTS
#define REQUESTS 2		/* what is searched to the end; bugs are sought with more */
#endif
#define PINGS 1
#define LOSSES 1
#define WRITES 2

mtype = { NONE, ASK, PING, RELEASE };

typedef Session {
	mtype	out;		/* what the remote was asked and has not answered */
	bool	done;		/* the remote has done it; the answer is under way */
	bool	yes;		/* .. and what it says */
	byte	given;		/* .. and the token */
	byte	asked_at;
	byte	request;
	bool	held;		/* HELD in shared memory */
	byte	token;
	byte	until;		/* certain until then */
	mtype	late;		/* given up; the remote may do it yet */
	byte	late_token;
	byte	late_request;
	byte	writes;		/* a token with which it is about to write; 0: none */
};

Session s[N];
byte now = 1;

/* the row */
bool held = false;
byte holder;
byte row_request;
byte row_token = 0;
byte expires;

byte requests = 0;
byte pings = 0;
byte begun = 0;
byte losses = 0;
byte granted = 0;		/* the highest token that was */
byte written = 0;		/* the last token that was written with */

#define BELIEVES(i) (s[i].held && now < s[i].until)

/* what has no meaning now shall not make states differ */
inline forget(i)
{
	if
	:: s[i].out == NONE ->
		s[i].done = false;
		s[i].yes = false;
		s[i].given = 0;
		s[i].asked_at = 0
	:: else
	fi;
	if
	:: !s[i].held -> s[i].until = 0; s[i].token = 0
	:: else
	fi;
	if
	:: s[i].late == NONE -> s[i].late_token = 0; s[i].late_request = 0
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
	/* a question that was repeated, or is late: the same token, once */
	:: holder == me && row_request == its && held && expires > now ->
		expires = now + TTL;
		ok = true;
		what = row_token
	:: !(holder == me && row_request == its) &&
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
		row_request = its;
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
	:: held && holder == me && row_request == its && row_token == known && expires > now ->
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
	:: held && holder == me && row_request == its ->
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
	byte given;

	do
	/* ask, and again with the same request if the answer was lost */
	:: atomic { s[i].out == NONE && !s[i].held && requests < REQUESTS ->
		requests++;
		s[i].request = requests;
		s[i].asked_at = now;
		s[i].out = ASK;
		s[i].done = false }
	:: atomic { s[i].out == NONE && s[i].held && now < s[i].until && pings < PINGS ->
		pings++;
		s[i].asked_at = now;
		s[i].out = PING;
		s[i].done = false }
	:: atomic { s[i].out == NONE && s[i].held ->
		s[i].held = false;
		s[i].out = RELEASE;
		s[i].done = false;
		forget(i) }

	/* the remote does it, at any time after it was asked */
	:: atomic { s[i].out != NONE && !s[i].done ->
		if
		:: s[i].out == ASK -> grant(i, s[i].request, s[i].yes, s[i].given)
		:: s[i].out == PING -> ping(i, s[i].request, s[i].token, s[i].yes)
		:: s[i].out == RELEASE -> release(i, s[i].request)
		fi;
		s[i].done = true }

	/* the answer comes, at any time after that */
	:: atomic { s[i].out != NONE && s[i].done ->
		if
		:: s[i].out == ASK && s[i].yes ->
#ifdef BUG_LATE_DEADLINE
			s[i].until = now + TTL;
#else
			s[i].until = s[i].asked_at + TTL;
#endif
			s[i].token = s[i].given;
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
				s[i].until = s[i].asked_at + TTL
#endif
			:: else -> s[i].held = false
			fi
		:: else
		fi;
		s[i].out = NONE;
		only_one();
		forget(i) }

	/* no answer comes (one session has that luck); it may still be done */
	:: atomic { i == 0 && s[i].out == ASK && losses < LOSSES ->
		losses++;
		if
		:: !s[i].done ->
			s[i].late = ASK;
			s[i].late_request = s[i].request
		:: s[i].done
		fi;
#ifdef BUG_ASSUME
		s[i].held = true;
		s[i].token = granted;
		s[i].until = s[i].asked_at + TTL;
		s[i].out = NONE;
		only_one()
#else
		if
		:: s[i].out = NONE								/* left to the ttl */
		:: s[i].out = RELEASE; s[i].done = false		/* the worker releases it */
		:: requests < REQUESTS ->						/* asked again */
			requests++;
			s[i].asked_at = now;
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
			s[i].late_request = s[i].request
		:: s[i].done
		fi;
		s[i].out = NONE;
		forget(i) }
	:: atomic { s[i].late != NONE && s[i].late != 0 ->
		if
		:: s[i].late == ASK -> grant(i, s[i].late_request, yes, given)
		:: s[i].late == PING -> ping(i, s[i].late_request, s[i].late_token, yes)
		:: s[i].late == RELEASE -> release(i, s[i].late_request)
		fi;
		s[i].late = NONE;
		yes = false;
		given = 0;
		forget(i) }

	/* somebody looks at the clock */
	:: atomic { s[i].held && now >= s[i].until -> s[i].held = false; forget(i) }

	/* lock_valid is true; the write comes when it comes */
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
