/*
 * share.pml
 *	  Fair shares as a model: two servers, the table of shares on the remote,
 *	  statements that are late or lost, servers that die or are cut off.
 *
 * A statement is executed in one step, because it locks the row of share_turn.  A
 * statement that timed out may still be executed later ("late").  Time advances at
 * any step; both servers measure it at the same pace, from different starts.
 *
 * A session is NEW from its login until its PID is published, and READY after that.
 * Only a READY session may run a statement, so only a READY one outlives its server.
 *
 * Asserted: the remote never has more sessions than the cap.
 *
 * The deep search has the size of the first mutants, so that no error of the correct model
 * is taken for theirs.
 *
 * run share: -DSTATEMENTS=2 -DTIME=3
 *
 * mutant BUG_NO_TURN: -DSTATEMENTS=3
 * mutant BUG_LATE_LIMIT: -DSTATEMENTS=3
 * mutant BUG_FORGET_USED: -DSTATEMENTS=3
 * mutant BUG_NO_REQUEST: -DSTATEMENTS=3
 * mutant BUG_LATE_VALIDITY: -DSTATEMENTS=2 -DTIME=3
 * mutant BUG_NO_PIDS: -DSTATEMENTS=2 -DTIME=3
 * mutant BUG_UNPUBLISHED: -DSTATEMENTS=2 -DTIME=3
 * mutant BUG_NO_EXPIRY: -DSTATEMENTS=2 -DTIME=3
 *
 * deep share_three: -DSTATEMENTS=3
 *
 * Each bug removes one rule of the design; then the assertion must fail:
 *	 NO_TURN		 a statement reads the other row some time before it writes its own
 *	 LATE_LIMIT		 a server lowers its own limit after it has published the lower share
 *	 FORGET_USED	 a lower share is published although the connections are still open
 *	 NO_REQUEST		 a late statement overwrites the row that a newer one has written
 *	 LATE_VALIDITY	 the validity counts from the answer, not from the statement
 *	 NO_PIDS		 the sessions of a dead server are not counted
 *	 UNPUBLISHED	 a session runs statements before its PID is published
 *	 NO_EXPIRY		 a server opens connections although its share is not valid
 */
#define N 2
#define S 2				/* sessions that a server can open, one after the other */
#define CAP 1
#define VALID 1
#define DEAD 2
#ifndef TIME
#define TIME 4
#endif
#ifndef STATEMENTS
#define STATEMENTS 3
#endif

mtype = { UNUSED, NEW, READY, ENDED };

typedef Statement {
	bool	sent;
	bool	was_read;	/* BUG_NO_TURN: "others" is set */
	bool	done;		/* executed; the answer is in flight */
	byte	request;
	byte	target;
	byte	preceding;	/* starved servers that precede this one */
	byte	used;
	byte	pids;
	bool	dead;		/* the other server is dead if its request is this one: */
	byte	dead_request;
	byte	sent_at;
	byte	others;
	byte	held;
	byte	seen		/* request of the other row; 0: none */
}

typedef Server {
	bool	alive;
	byte	limit;
	byte	until;
	byte	requests;
	byte	seen;
	byte	seen_at;
	mtype	session[S]
}

typedef Row {
	byte	request;	/* 0: no row */
	byte	held;
	byte	pids
}

byte now;
Server server[N];
Row row[N];
Statement statement[N];
Statement late[N];

#define OPEN(i, k) (server[i].session[k] == NEW || server[i].session[k] == READY)
#define USED(i) (OPEN(i, 0) + OPEN(i, 1))
#define HAS_NEW(i) (server[i].session[0] == NEW || server[i].session[1] == NEW)
#define PIDS(i) (OPEN(i, 0) + 2 * OPEN(i, 1))
#define LEFT(i) ((OPEN(i, 0) && (row[i].pids & 1)) + (OPEN(i, 1) && (row[i].pids & 2)))

#ifdef BUG_NO_EXPIRY
#define IS_VALID(i) true
#define LOGS_IN_AT_EXPIRY(i) false
#else
#define IS_VALID(i) (now < server[i].until)
#define LOGS_IN_AT_EXPIRY(i) (server[i].alive && HAS_NEW(i) && now + 1 >= server[i].until)
#endif

/* Read the row of the other server. */
inline read_other(i, st)
{
	st.others = (row[1 - i].request == 0 -> 0 : row[1 - i].held);
	if
	:: row[1 - i].request != 0 && st.dead && row[1 - i].request == st.dead_request ->
#ifdef BUG_NO_PIDS
		st.others = 0;
#else
		st.others = LEFT(1 - i);
#endif
		if
		:: st.others == 0 -> row[1 - i].request = 0
		:: else
		fi
	:: else
	fi;
	st.was_read = true
}

/* Execute a statement at the remote. */
inline execute(i, st)
{
#ifndef BUG_NO_TURN
	read_other(i, st);
#endif
	if
#ifdef BUG_NO_REQUEST
	:: true ->
#else
	:: row[i].request < st.request ->
#endif
		st.held = (st.others + st.preceding >= CAP -> 0 : CAP - st.others);
		st.held = (row[i].request != 0 && row[i].held > st.held -> row[i].held : st.held);
		st.held = (st.target < st.held -> st.target : st.held);
#ifndef BUG_FORGET_USED
		st.held = (st.used > st.held -> st.used : st.held);
#endif
		row[i].held = st.held;
		row[i].request = st.request;
		row[i].pids = st.pids;
		st.done = true
	:: else
	fi;
	st.seen = row[1 - i].request
}

inline forget(st)
{
	st.sent = false; st.was_read = false; st.done = false; st.request = 0;
	st.target = 0; st.preceding = 0; st.used = 0; st.pids = 0; st.dead = false; st.dead_request = 0;
	st.sent_at = 0; st.others = 0; st.held = 0; st.seen = 0
}

inline check()
{
	assert(USED(0) + USED(1) <= CAP)
}

proctype Worker(byte i)
{
	byte k;

end:
	do
	/* send a statement that wants none or all; it may leave one to another server */
	:: atomic { server[i].alive && !statement[i].sent && server[i].requests < STATEMENTS ->
		server[i].requests++;
		statement[i].sent = true;
		statement[i].request = server[i].requests;
		statement[i].sent_at = now;
		statement[i].dead = server[i].seen != 0 && now - server[i].seen_at >= DEAD;
		statement[i].dead_request = server[i].seen;
		if
		:: statement[i].target = 0
		:: statement[i].target = CAP
		:: statement[i].target = CAP; statement[i].preceding = 1
		fi;
#ifndef BUG_LATE_LIMIT
		server[i].limit = (statement[i].target < server[i].limit -> statement[i].target : server[i].limit);
#endif
		statement[i].used = USED(i);
		statement[i].pids = PIDS(i) }

	/* the answer: sessions whose PID was sent are published */
	:: d_step { server[i].alive && statement[i].sent && statement[i].done ->
		server[i].limit = (statement[i].held < statement[i].target -> statement[i].held : statement[i].target);
#ifdef BUG_LATE_VALIDITY
		server[i].until = now + VALID;
#else
		server[i].until = statement[i].sent_at + VALID;
#endif
		k = 0;
		do
		:: k < S ->
			if
			:: server[i].session[k] == NEW && (statement[i].pids & (1 << k)) ->
				server[i].session[k] = READY
			:: else
			fi;
			k++
		:: else -> break
		od;
		k = 0;
		if
		:: statement[i].seen != server[i].seen ->
			server[i].seen = statement[i].seen;
			server[i].seen_at = now
		:: else
		fi;
		forget(statement[i]) }

	/* a statement times out, which the remote may still execute */
	:: d_step { server[i].alive && statement[i].sent && !late[i].sent ->
		late[i].sent = !statement[i].done;
		late[i].request = statement[i].request;
		late[i].target = statement[i].target;
		late[i].preceding = statement[i].preceding;
		late[i].used = statement[i].used;
		late[i].pids = statement[i].pids;
		late[i].dead = statement[i].dead;
		late[i].dead_request = statement[i].dead_request;
		late[i].was_read = statement[i].was_read;
		late[i].others = statement[i].others;
		if
		:: !late[i].sent -> forget(late[i])
		:: else
		fi;
		forget(statement[i]) }

	/* open a connection */
	:: atomic { server[i].alive && USED(i) < server[i].limit && IS_VALID(i) ->
		if
		:: server[i].session[0] == UNUSED -> k = 0
		:: server[i].session[0] != UNUSED && server[i].session[1] == UNUSED -> k = 1
		:: else -> k = S
		fi;
		if
		:: k < S ->
#ifdef BUG_UNPUBLISHED
			server[i].session[k] = READY;
#else
			server[i].session[k] = NEW;
#endif
			check()
		:: else
		fi;
		k = 0 }

	/* a session ends */
	:: atomic { OPEN(i, 0) -> server[i].session[0] = ENDED }
	:: atomic { OPEN(i, 1) -> server[i].session[1] = ENDED }

	/* the server dies (by symmetry the first one): its idle sessions end, those that run a statement do not */
	:: d_step { i == 0 && server[i].alive ->
		server[i].alive = false;
		if
		:: server[i].session[0] == NEW -> server[i].session[0] = ENDED
		:: else
		fi;
		if
		:: server[i].session[1] == NEW -> server[i].session[1] = ENDED
		:: else
		fi }
	od
}

proctype Remote()
{
	byte i;

end:
	do
	:: i = 0
	:: i = 1
#ifdef BUG_NO_TURN
	:: d_step { statement[i].sent && !statement[i].was_read -> read_other(i, statement[i]) }
	:: d_step { statement[i].sent && statement[i].was_read && !statement[i].done -> execute(i, statement[i]) }
	:: d_step { late[i].sent && late[i].was_read -> execute(i, late[i]); forget(late[i]) }
#else
	:: d_step { statement[i].sent && !statement[i].done -> execute(i, statement[i]) }
	:: d_step { late[i].sent -> execute(i, late[i]); forget(late[i]) }
#endif
	od
}

/* Logins end before the share expires. */
proctype Clock()
{
end:
	do
	:: atomic { now < TIME && !LOGS_IN_AT_EXPIRY(0) && !LOGS_IN_AT_EXPIRY(1) -> now++ }
	od
}

init
{
	atomic {
		byte i = 0;

		do
		:: i < N ->
			server[i].alive = true;
			server[i].session[0] = UNUSED;
			server[i].session[1] = UNUSED;
			run Worker(i);
			i++
		:: else -> break
		od;
		run Remote();
		run Clock()
	}
}
