/*
 * commit.pml
 *	  The commit on several servers as a model: two remotes, transactions that prepare a
 *	  part on each of them, the local server with its decision rows, and the resolver.
 *
 * Every party can fail at each step: the session, the local server (which can then assign
 * the same xid again), a remote, a connection, the resolver.  A command whose sender has
 * died is executed at any later time, or never.  The resolver reads what it decides on
 * step by step.  Participants are removed at any time.
 *
 * CLONE			 a copy of the local server starts at any time; transaction 1 is its own
 * PROMOTE			 the original stops at that instant, and the copy adopts its parts
 * ONLY				 the transaction that runs
 * BOTH				 both run, one after the other, and each writes on one server
 * SAME_DB			 both servers are one remote database
 * GONE_IF_UNSEEN	 a part that the resolver does not see after it has read the row counts
 *					 as committed; otherwise the answer to COMMIT PREPARED shows it
 *
 * Asserted:
 *	 - no transaction has one part committed and another one, or its local part, aborted
 *	 - after the last fault, one visit of the resolver to each server resolves every part,
 *	   and removes every row
 *
 * run commit: -DCRASHES=1 -DCUTS=1 -DREMOTE_CRASHES=1
 * run same_xid: -DBOTH -DCRASHES=1 -DCUTS=1 -DREMOTE_CRASHES=1
 * run same_db: -DSAME_DB -DCRASHES=1 -DCUTS=1 -DREMOTE_CRASHES=1
 * run by_list: -DGONE_IF_UNSEEN -DCRASHES=1 -DCUTS=1 -DREMOTE_CRASHES=1
 * run clone: -DCLONE
 * run clone_writes: -DCLONE -DONLY=1
 * run promotion: -DPROMOTE -DCUTS=1
 *
 * mutant BUG_A_FIRST:
 * mutant BUG_T_FIRST:
 * mutant BUG_XID_ONLY: -DBOTH -DCRASHES=1
 * mutant BUG_NO_FORCE: -DCRASHES=1
 * mutant BUG_UNANSWERED:
 * mutant BUG_ROW_EARLY:
 * mutant BUG_NO_Q:
 * mutant BUG_STANDBY:
 * mutant BUG_IDENTITY:
 * mutant BUG_BY_SERVER: -DSAME_DB
 * mutant BUG_NO_PARTICIPANT: -DCRASHES=1
 * mutant BUG_PARTICIPANT_LOST: -DCRASHES=1
 * mutant BUG_UNLOCKED:
 * mutant BUG_ONE_LOOK:
 * mutant BUG_LATE_LOCK:
 * mutant BUG_UNDER_WAY:
 * mutant BUG_LIST_FIRST:
 * mutant BUG_NAMED:
 * mutant BUG_CLONE_ROLLBACK: -DCLONE
 * mutant BUG_ONE_TOKEN: -DCLONE -DONLY=1
 * mutant BUG_ADOPT_ALIVE: -DPROMOTE
 *
 * deep commit_faults: -DBOTH -DCRASHES=3 -DREMOTE_CRASHES=2 -DCUTS=2
 * deep clone_faults: -DCLONE -DBOTH -DCRASHES=2 -DREMOTE_CRASHES=1 -DCUTS=2
 *
 * Each bug removes one rule of the design:
 *	 A_FIRST		 the resolver reads the running transactions before the prepared parts
 *	 T_FIRST		 it reads the rows before the running transactions
 *	 XID_ONLY		 the id of a part has no random bits
 *	 NO_FORCE		 the local commit is not flushed before the first COMMIT PREPARED
 *	 UNANSWERED		 the session commits before each PREPARE is answered
 *	 ROW_EARLY		 a row is removed after one of its parts was committed
 *	 NO_Q			 a part that was not prepared when the resolver began counts as committed
 *	 STANDBY		 a part that the server does not show counts as committed, on a standby too
 *	 IDENTITY		 the resolver does not check which server has answered
 *	 BY_SERVER		 a row is found only for parts of the server that is visited
 *	 NO_PARTICIPANT	 the participant is written by the transaction itself
 *	 PARTICIPANT_LOST	 the commit of the participant is not flushed
 *	 UNLOCKED		 the session does not keep its lock on the participants
 *	 ONE_LOOK		 it does not look up the participants again under the lock
 *	 LATE_LOCK		 a participant is removed because of checks that preceded the lock
 *	 UNDER_WAY		 it is removed although a PREPARE is under way
 *	 LIST_FIRST		 the parts are listed before it is checked that no PREPARE is under way
 *	 NAMED			 a participant is removed although a row names it
 *	 CLONE_ROLLBACK	 a clone rolls back parts of the original for want of rows
 *	 ONE_TOKEN		 a clone's parts have the token of the original
 *	 ADOPT_ALIVE	 parts are adopted while the original still runs
 */
#ifndef CRASHES
#define CRASHES 0		/* of the local servers */
#endif
#ifndef REMOTE_CRASHES
#define REMOTE_CRASHES 0
#endif
#ifndef CUTS
#define CUTS 0			/* of connections of sessions */
#endif
#ifndef ONLY
#define ONLY 0			/* the transaction that runs, unless BOTH is defined */
#endif
#ifdef PROMOTE
#define CLONE
#endif
#if defined(BUG_NO_Q) || defined(BUG_STANDBY)
#define GONE_IF_UNSEEN	/* not by the answer to COMMIT PREPARED */
#endif

/* states of a part, and of the local transaction */
#define NONE 0
#define ACTIVE 1
#define PREPARED 2
#define COMMITTED 3
#define ABORTED 4

/* commands of a session; 0: none */
#define PREPARE 1
#define COMMIT_PREPARED 2
#define ROLLBACK_PREPARED 3

/* answers to PREPARE; 0: none */
#define OK 1
#define ERROR 2

/* phases of a session */
#define IDLE 0
#define BEGUN 1
#define REGISTERED 2	/* the participants are committed */
#define PREPARING 3		/* .. and exist under the lock, which is kept up to DECIDED */
#define DECIDING 4		/* the row is inserted */
#define FLUSHED 5		/* the commit record is durable, the transaction still runs */
#define DECIDED 6		/* the row is visible */
#define ENDED 7

/* rows; 0: none, or not visible */
#define ROW 1
#define REMOVED 2

/* phases of a resolver; it waits for an answer in WAITING */
#define RESTING 0
#define READ_ONE 1
#define READ_TWO 2
#define ACTING 3
#define WAITING 4
#define LOCKED 5		/* it holds the lock from here on, to remove a participant */
#define CHECKED 6
#define LISTED 7

/*
 * A part k is that of transaction TX(k) on server SERVER(k); masks have a bit for each
 * part, transaction or server.  Cluster 0 is the original, 1 the clone.
 */
#define TX(k) ((k) / 2)
#define SERVER(k) ((k) % 2)
#define PART(t, n) ((t) * 2 + (n))
#define BIT(i) (1 << (i))
#define HAS(mask, i) (((mask) >> (i)) & 1)

#ifdef SAME_DB
#define AT(k, n) true
#else
#define AT(k, n) (SERVER(k) == (n))
#endif

#ifdef CLONE
#define CLUSTERS 2
#define CLUSTER(t) (t)
#else
#define CLUSTERS 1
#define CLUSTER(t) 0
#endif

#ifdef BUG_XID_ONLY
#define SAME_ID(t, u) (xid[t] == xid[u])
#else
#define SAME_ID(t, u) ((t) == (u))
#endif

/* does a resolver see the parts of a transaction as its own, by their token? */
#ifdef BUG_ONE_TOKEN
#define SEES(c, t) true
#define MAY_ROLL_BACK(c, t) (CLUSTER(t) == (c) || (c) == 0)
#else
#define SEES(c, t) ((c) == 1 || CLUSTER(t) == 0)
#ifdef BUG_CLONE_ROLLBACK
#define MAY_ROLL_BACK(c, t) true
#else
#define MAY_ROLL_BACK(c, t) (CLUSTER(t) == (c) || adopted)
#endif
#endif

#if defined(BUG_NO_PARTICIPANT) || defined(BUG_ONE_LOOK)
#define KNOWN(t) true
#else
#define KNOWN(t) ((participants[CLUSTER(t)] & writes[t]) == writes[t])
#endif

/* does a session hold the lock on the participants? */
#ifdef BUG_UNLOCKED
#define SHARES(c, t) false
#else
#define SHARES(c, t) (CLUSTER(t) == (c) && phase[t] >= PREPARING && phase[t] <= DECIDED)
#endif
#define IS_SHARED(c) (SHARES(c, 0) || SHARES(c, 1))

byte part[4];
byte cmd[4];			/* a command of the session that the remote has not executed */
byte answer[4];
bool connected[4];

byte phase[2];
byte writes[2];			/* mask: the servers on which a transaction has written */
byte xid[2];
bool runs[2];			/* in the array of running transactions */
bool durable[2];		/* its commit record */
byte outcome[2];		/* of its local part */

byte row[4];			/* of cluster and transaction */
byte participants[2];	/* of a cluster: mask of servers */
bool exists[2];			/* the cluster */
bool adopted;

/* the resolver of each cluster */
byte stage[2];
byte visited[2];		/* the server */
byte next[2];			/* the next part to look at */
byte prepared[2];		/* P: mask of parts */
byte running[2];		/* A: mask of transactions */
byte rows[2];			/* T: mask of transactions */
byte again[2];			/* Q: mask of parts */
byte confirmed[2];		/* mask of parts that were committed, or gone */
bool elsewhere[2];		/* another server than the participant has answered */
byte to_do[2];			/* after the last fault: mask of servers to visit */
byte order[4];			/* of cluster and server: its command; 1 + k: commit part k; 5 + k: roll back */
bool done[4];			/* its answer: committed, or gone */

byte crashes;
byte remote_crashes;
byte cuts;
bool quiet;				/* no further fault */

#define LIVES(t) (phase[t] != IDLE && phase[t] != ENDED)

inline check(t)
{
	assert(!((part[PART(t, 0)] == COMMITTED || part[PART(t, 1)] == COMMITTED || outcome[t] == COMMITTED) &&
			 (part[PART(t, 0)] == ABORTED || part[PART(t, 1)] == ABORTED || outcome[t] == ABORTED)))
}

/* COMMIT PREPARED or ROLLBACK PREPARED of the id of part k */
inline finish(k, result)
{
	if
	:: part[PART(0, SERVER(k))] == PREPARED && SAME_ID(0, TX(k)) ->
		part[PART(0, SERVER(k))] = result;
		check(0)
	:: else ->
		if
		:: part[PART(1, SERVER(k))] == PREPARED && SAME_ID(1, TX(k)) ->
			part[PART(1, SERVER(k))] = result;
			check(1)
		:: else
		fi
	fi
}

/* a resolver begins anew; a command that it has sent may still be executed */
inline restart_resolver(c)
{
	stage[c] = RESTING;
	done[PART(c, visited[c])] = false;
	visited[c] = 0;
	next[c] = 0;
	prepared[c] = 0;
	running[c] = 0;
	rows[c] = 0;
	again[c] = 0;
	elsewhere[c] = false
}

/* unused values must not distinguish states */
inline forget(t)
{
	runs[t] = false;
	connected[PART(t, 0)] = false;
	connected[PART(t, 1)] = false;
	answer[PART(t, 0)] = 0;
	answer[PART(t, 1)] = 0;
	phase[t] = ENDED
}

inline crash_transaction(c, t)
{
	if
	:: CLUSTER(t) == c && phase[t] != IDLE ->
		if
		:: durable[t] ->
			outcome[t] = COMMITTED;
			if
			:: row[PART(c, t)] != REMOVED -> row[PART(c, t)] = ROW
			/* the removal was not flushed; a later one of a participant would have flushed it */
			:: row[PART(c, t)] == REMOVED && KNOWN(t) -> row[PART(c, t)] = ROW
			:: row[PART(c, t)] == REMOVED
			fi
		:: else ->
			outcome[t] = ABORTED;
			row[PART(c, t)] = NONE
		fi;
		forget(t);
		check(t)
	:: else
	fi
}

inline crash(c)
{
	crash_transaction(c, 0);
	crash_transaction(c, 1);
#ifdef BUG_PARTICIPANT_LOST
	participants[c] = 0;
#endif
	restart_resolver(c);
	confirmed[c] = 0
}

proctype session(byte t)
{
	byte n;

end:
	do
	:: atomic { phase[t] == IDLE && exists[CLUSTER(t)] && (t == 0 || CLUSTERS == 2 || phase[0] == ENDED) ->
		if
		:: writes[t] = BIT(0)
#ifdef BOTH
		:: t == 1 -> writes[t] = BIT(1)
#else
		:: writes[t] = BIT(0) + BIT(1)
#endif
		fi;
		/* an xid is assigned again after a crash, and in a clone */
		if
		:: t == 1 && !(durable[0] && (CLUSTERS == 1 || row[PART(1, 0)] != NONE)) &&
			(crashes > 0 || CLUSTERS == 2) -> xid[1] = 0
		:: xid[t] = t
		fi;
		n = 0;
		do
		:: n < 2 ->
			if
			:: HAS(writes[t], n) -> part[PART(t, n)] = ACTIVE; connected[PART(t, n)] = true
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		runs[t] = true;
		phase[t] = BEGUN }

	:: atomic { phase[t] == BEGUN ->
#ifndef BUG_NO_PARTICIPANT
		participants[CLUSTER(t)] = participants[CLUSTER(t)] | writes[t];
#endif
		phase[t] = REGISTERED }

	/* a participant was removed meanwhile */
	:: atomic { phase[t] == REGISTERED && !KNOWN(t) -> phase[t] = BEGUN }

	:: atomic { phase[t] == REGISTERED && KNOWN(t) && stage[CLUSTER(t)] < LOCKED ->
		do
		:: n < 2 ->
			if
			:: HAS(writes[t], n) && connected[PART(t, n)] -> cmd[PART(t, n)] = PREPARE
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		phase[t] = PREPARING }

	:: atomic { phase[t] == PREPARING &&
#ifndef BUG_UNANSWERED
		(!HAS(writes[t], 0) || (connected[PART(t, 0)] && answer[PART(t, 0)] == OK)) &&
		(!HAS(writes[t], 1) || (connected[PART(t, 1)] && answer[PART(t, 1)] == OK)) ->
#else
		answer[PART(t, 0)] != ERROR && answer[PART(t, 1)] != ERROR ->
#endif
		phase[t] = DECIDING }

#ifdef BUG_NO_FORCE
	:: atomic { outcome[t] == COMMITTED && !durable[t] -> durable[t] = true }
	:: atomic { phase[t] == DECIDING ->
#else
	:: atomic { phase[t] == DECIDING -> durable[t] = true; phase[t] = FLUSHED }
	:: atomic { phase[t] == FLUSHED ->
#endif
		runs[t] = false;
		row[PART(CLUSTER(t), t)] = ROW;
#ifdef BUG_NO_PARTICIPANT
		participants[CLUSTER(t)] = participants[CLUSTER(t)] | writes[t];
#endif
		outcome[t] = COMMITTED;
		phase[t] = DECIDED;
		check(t) }

	/* it sends COMMIT PREPARED, as far as it comes, and waits for nothing that matters */
	:: atomic { phase[t] == DECIDED ->
		do
		:: n < 2 ->
			if
			:: connected[PART(t, n)] && cmd[PART(t, n)] == 0 -> cmd[PART(t, n)] = COMMIT_PREPARED
			:: true
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		forget(t) }

	/* an error, a cancel, a timeout, a missing answer */
	:: atomic { phase[t] >= BEGUN && phase[t] <= DECIDING ->
		outcome[t] = ABORTED;
		do
		:: n < 2 ->
			if
			:: connected[PART(t, n)] && answer[PART(t, n)] == OK -> cmd[PART(t, n)] = ROLLBACK_PREPARED
			:: true
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		forget(t);
		check(t) }
	od
}

/* the connection of a session to a remote, and the remote session */
proctype connection(byte k)
{
end:
	do
	:: atomic { cmd[k] == PREPARE ->
		cmd[k] = 0;
		if
		:: part[PART(1 - TX(k), SERVER(k))] == PREPARED && SAME_ID(0, 1) -> part[k] = ABORTED
		:: else ->
			if
			:: part[k] = PREPARED
			:: part[k] = ABORTED
			fi
		fi;
		answer[k] = (!connected[k] -> 0 : (part[k] == PREPARED -> OK : ERROR));
		check(TX(k)) }
	:: atomic { cmd[k] == COMMIT_PREPARED -> cmd[k] = 0; finish(k, COMMITTED) }
	:: atomic { cmd[k] == ROLLBACK_PREPARED -> cmd[k] = 0; finish(k, ABORTED) }

	/* the command is lost, or the remote session notices the end of its client */
	:: atomic { !connected[k] && cmd[k] != 0 -> cmd[k] = 0 }
	:: atomic { !connected[k] && cmd[k] == 0 && part[k] == ACTIVE -> part[k] = ABORTED; check(TX(k)) }

	:: atomic { connected[k] && cuts < CUTS -> cuts++; connected[k] = false }
	od
}

inline read_prepared(c, seen)
{
	k = 0;
	do
	:: k < 4 ->
		if
		:: part[k] == PREPARED && AT(k, visited[c]) && SEES(c, TX(k)) && !elsewhere[c] ->
			seen = seen | BIT(k)
		:: else
		fi;
		k++
	:: else -> break
	od;
	k = 0
}

inline read_running(c)
{
	k = 0;
	do
	:: k < 2 ->
		if
		:: (runs[0] && CLUSTER(0) == c && xid[0] == xid[k]) || (runs[1] && CLUSTER(1) == c && xid[1] == xid[k]) ->
			running[c] = running[c] | BIT(k)
		:: else
		fi;
		k++
	:: else -> break
	od;
	k = 0
}

inline read_rows(c)
{
	k = 0;
	do
	:: k < 2 ->
		if
		:: (row[PART(c, 0)] == ROW && SAME_ID(0, k)) || (row[PART(c, 1)] == ROW && SAME_ID(1, k)) ->
			rows[c] = rows[c] | BIT(k)
		:: else
		fi;
		k++
	:: else -> break
	od;
	k = 0
}

/* remove the rows whose parts were all committed, or gone */
inline remove_row(c, t)
{
	if
	:: row[PART(c, t)] == ROW && HAS(rows[c], t) &&
#ifdef BUG_ROW_EARLY
		((confirmed[c] >> (2 * t)) & writes[t]) != 0 ->
#else
		((confirmed[c] >> (2 * t)) & writes[t]) == writes[t] ->
#endif
		row[PART(c, t)] = REMOVED
	:: else
	fi;
	if
	:: row[PART(c, t)] != ROW -> confirmed[c] = confirmed[c] & (15 - 3 * BIT(2 * t))
	:: else
	fi
}

#define K next[c]
#define BY_ROW(k) (HAS(rows[c], TX(k)) && (HAS(prepared[c], k) || HAS(writes[TX(k)], SERVER(k))) && AT(k, visited[c]))
#ifdef BUG_BY_SERVER
#define FOUND(k) (BY_ROW(k) && SERVER(k) == visited[c])
#else
#define FOUND(k) BY_ROW(k)
#endif

/* does a row name participant n, and can a session that has ended still prepare a part there? */
#ifdef BUG_NAMED
#define NAMED(t, n) false
#else
#define NAMED(t, n) (row[PART(c, t)] == ROW && HAS(writes[t], n))
#endif
#define ORPHAN(k, n) (cmd[k] == PREPARE && !connected[k] && AT(k, n))
#ifdef BUG_UNDER_WAY
#define UNDER_WAY(n) false
#else
#define UNDER_WAY(n) (ORPHAN(0, n) || ORPHAN(1, n) || ORPHAN(2, n) || ORPHAN(3, n))
#endif

proctype resolver(byte c)
{
	byte k;

end:
	do
	/* a visit begins: the connection is checked, and P is read */
	:: atomic { exists[c] && stage[c] == RESTING && order[PART(c, 0)] == 0 && order[PART(c, 1)] == 0 &&
		(!quiet || to_do[c] != 0) ->
		if
		:: HAS((quiet -> to_do[c] & participants[c] : participants[c]), 0) -> visited[c] = 0; stage[c] = READ_ONE
		:: HAS((quiet -> to_do[c] & participants[c] : participants[c]), 1) -> visited[c] = 1; stage[c] = READ_ONE
		:: (quiet -> to_do[c] & participants[c] : participants[c]) == 0 -> to_do[c] = 0
		fi;
#if defined(BUG_STANDBY) || defined(BUG_IDENTITY)
		if
		:: !quiet -> elsewhere[c] = true
		:: true
		fi;
#endif
		if
		:: stage[c] == READ_ONE ->
			to_do[c] = to_do[c] & (3 - BIT(visited[c]));
#ifdef BUG_A_FIRST
			read_running(c)
#else
			read_prepared(c, prepared[c])
#endif
		:: else -> visited[c] = 0; elsewhere[c] = false
		fi }

	:: atomic { stage[c] == READ_ONE ->
		stage[c] = READ_TWO;
#if defined(BUG_A_FIRST)
		read_prepared(c, prepared[c])
#elif defined(BUG_T_FIRST)
		read_rows(c)
#else
		read_running(c)
#endif
		}

	:: atomic { stage[c] == READ_TWO ->
		stage[c] = ACTING;
#ifdef BUG_T_FIRST
		read_running(c)
#else
		read_rows(c)
#endif
#ifdef GONE_IF_UNSEEN
		;
#ifdef BUG_NO_Q
		again[c] = prepared[c]
#else
		read_prepared(c, again[c])
#endif
#endif
		}

	/* the next part */
	:: atomic { stage[c] == ACTING && K < 4 ->
		if
#ifdef GONE_IF_UNSEEN
		:: FOUND(K) && !HAS(prepared[c], K) ->
			if
			:: !HAS(again[c], K) && SERVER(K) == visited[c] -> confirmed[c] = confirmed[c] | BIT(K)
			:: else
			fi;
			K++
		:: FOUND(K) && HAS(prepared[c], K) ->
#else
		:: FOUND(K) ->
#endif
			if
			:: elsewhere[c] -> confirmed[c] = confirmed[c] | BIT(K); K++	/* 42704 */
			:: else -> order[PART(c, visited[c])] = 1 + K; stage[c] = WAITING
			fi
		:: !FOUND(K) && HAS(prepared[c], K) && !HAS(running[c], TX(K)) && MAY_ROLL_BACK(c, TX(K)) ->
			order[PART(c, visited[c])] = 5 + K;
			stage[c] = WAITING
		:: else -> K++
		fi }
	:: atomic { stage[c] == WAITING && order[PART(c, visited[c])] == 0 ->
		if
		:: FOUND(K) && done[PART(c, visited[c])] -> confirmed[c] = confirmed[c] | BIT(K)
		:: else
		fi;
		done[PART(c, visited[c])] = false;
		K++;
		stage[c] = ACTING }

	:: atomic { stage[c] == ACTING && K == 4 ->
		remove_row(c, 0);
		remove_row(c, 1);
		restart_resolver(c) }

	/* the resolver or DDL removes a participant, after checks under the lock */
	:: atomic { exists[c] && stage[c] == RESTING && !quiet && participants[c] != 0 &&
#ifdef BUG_LATE_LOCK
		true ->
#else
		!IS_SHARED(c) ->
#endif
		if
		:: HAS(participants[c], 0) -> visited[c] = 0
		:: HAS(participants[c], 1) -> visited[c] = 1
		fi;
		stage[c] = LOCKED }
#ifdef BUG_LIST_FIRST
	:: atomic { stage[c] == LOCKED -> stage[c] = CHECKED; read_prepared(c, prepared[c]) }
	:: atomic { stage[c] == CHECKED && !UNDER_WAY(visited[c]) -> stage[c] = LISTED }
#else
	:: atomic { stage[c] == LOCKED && !UNDER_WAY(visited[c]) -> stage[c] = CHECKED }
	:: atomic { stage[c] == CHECKED -> stage[c] = LISTED; read_prepared(c, prepared[c]) }
#endif
	:: atomic { stage[c] == LISTED ->
		if
		:: prepared[c] == 0 && !NAMED(0, visited[c]) && !NAMED(1, visited[c]) && !IS_SHARED(c) ->
			participants[c] = participants[c] & (3 - BIT(visited[c]))
		:: else
		fi;
		restart_resolver(c) }

	/* it dies, or its connection does */
	:: atomic { stage[c] != RESTING && !quiet -> restart_resolver(c); confirmed[c] = 0 }
	od
}

/* the connection of a resolver to a remote */
proctype resolver_connection(byte c; byte n)
{
	byte k;

end:
	do
	:: atomic { order[PART(c, n)] != 0 ->
		if
		:: order[PART(c, n)] < 5 -> k = order[PART(c, n)] - 1; finish(k, COMMITTED)
		:: else -> k = order[PART(c, n)] - 5; finish(k, ABORTED)
		fi;
		k = 0;
		order[PART(c, n)] = 0;
		done[PART(c, n)] = stage[c] == WAITING && visited[c] == n }
	:: atomic { order[PART(c, n)] != 0 && !quiet && !(stage[c] == WAITING && visited[c] == n) ->
		order[PART(c, n)] = 0 }
	od
}

inline crash_part(k)
{
	cmd[k] = 0;
	connected[k] = false;
	if
	:: part[k] == ACTIVE -> part[k] = ABORTED; check(TX(k))
	:: else
	fi
}

inline crash_remote(n)
{
	if
	:: AT(0, n) -> crash_part(0); crash_part(2)
	:: else
	fi;
	if
	:: AT(1, n) -> crash_part(1); crash_part(3)
	:: else
	fi;
	order[PART(0, n)] = 0;
	order[PART(1, n)] = 0
}

#define AT_REST(k) (cmd[k] == 0 && part[k] != ACTIVE && order[k] == 0)

proctype environment()
{
	byte k;

end:
	do
	:: atomic { crashes < CRASHES && exists[0] && !quiet -> crashes++; crash(0) }
	:: atomic { crashes < CRASHES && exists[1] && !quiet -> crashes++; crash(1) }
	:: atomic { remote_crashes < REMOTE_CRASHES && !quiet -> remote_crashes++; crash_remote(0) }
	:: atomic { remote_crashes < REMOTE_CRASHES && !quiet -> remote_crashes++; crash_remote(1) }

#ifdef CLONE
	/* a copy of what is durable; a standby has no less */
	:: atomic { !exists[1] && !quiet ->
		row[PART(1, 0)] = (durable[0] && row[PART(0, 0)] != REMOVED -> ROW : NONE);
		participants[1] = participants[0];
		exists[1] = true;
#ifdef PROMOTE
		adopted = true;
#ifndef BUG_ADOPT_ALIVE
		crash(0);
		exists[0] = false;
		if
		:: phase[0] == IDLE -> phase[0] = ENDED
		:: else
		fi
#endif
#endif
		}
#endif

	:: atomic { !quiet && phase[0] == ENDED && phase[1] == ENDED && stage[0] == RESTING && stage[1] == RESTING &&
		AT_REST(0) && AT_REST(1) && AT_REST(2) && AT_REST(3) ->
		quiet = true;
		confirmed[0] = 0;
		confirmed[1] = 0;
		to_do[0] = (exists[0] -> 3 : 0);
		to_do[1] = (exists[1] -> 3 : 0) }

	:: atomic { quiet && to_do[0] == 0 && to_do[1] == 0 && stage[0] == RESTING && stage[1] == RESTING ->
		do
		:: k < 4 ->
			assert(part[k] != PREPARED);
			assert(row[k] != ROW || !exists[k / 2]);
			k++
		:: else -> break
		od;
		break }
	od
}

init
{
	atomic {
		byte i = 0;

		exists[0] = true;
		/* earlier transactions may have registered the participants */
		if
		:: participants[0] = 0
		:: participants[0] = 3
		fi;
#ifndef BOTH
		phase[1 - ONLY] = ENDED;
#endif
		do
		:: i < 4 ->
			run connection(i);
			if
			:: i < 2 * CLUSTERS -> run resolver_connection(i / 2, i % 2)
			:: else
			fi;
			if
			:: i < CLUSTERS -> run resolver(i)
			:: else
			fi;
			if
			:: i < 2 -> run session(i)
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0;
		run environment()
	}
}
