/*
 * share_turn.pml
 *	  Fair shares as a model: three servers that each use a connection, and a cap
 *	  that does not suffice for all of them.
 *
 * A statement is two steps: a server chooses its target from the rows that its last
 * statement has read, and the remote executes the statement, which updates the row of
 * the server and reads the others.  No statement is lost: share.pml has those that are.
 *
 * Weak fairness is assumed: each server that is alive sends statements, and opens or
 * closes its connection before the next one.  A turn ends with the second statement.
 *
 * No two rows have the same "since", the number of the last statement that changed the
 * state.  Where the row of share_turn was created again and numbers repeat, the names
 * decide, so the order of the rows is total in any case.
 *
 * Asserted: a server that wants a connection and stays alive has one infinitely often
 * (no starvation).  This is server VICTIM, whose name is the last.  The other two begin
 * or cease to want one before any statement.  With DEATH the first may die.  With LEASES
 * a connection may stay open until the statement after the one that lowers its limit.
 *
 * run starvation_1: -DCAP=1
 * run starvation_2: -DCAP=2
 * deep starvation_1: -DCAP=1 -DDEATH -DLEASES
 * deep starvation_2: -DCAP=2 -DDEATH -DLEASES
 *
 * mutant BUG_NO_TURN_END: -DCAP=1
 * mutant BUG_BY_NAME: -DCAP=1
 * mutant BUG_DEAD_FIRST: -DCAP=1 -DDEATH
 * mutant BUG_KEEP_IDLE: -DCAP=1
 * mutant BUG_NEW_SINCE: -DCAP=1
 * mutant BUG_FREE_FOR_ALL: -DCAP=2
 * mutant BUG_TAKE_BACK: -DCAP=2
 *
 * Each bug removes one rule of the design; then the property must fail:
 *	 NO_TURN_END	 a server keeps its connection although others have none
 *	 BY_NAME		 the next turn is that of the first name, not of the lowest "since"
 *	 DEAD_FIRST		 a dead server without a connection keeps its turn
 *	 KEEP_IDLE		 a server keeps an idle connection although others have none
 *	 NEW_SINCE		 each statement of a starved server changes its "since"
 *	 FREE_FOR_ALL	 a free connection goes to the server whose statement comes first
 *	 TAKE_BACK		 a server keeps a connection that it has begun to release
 */
#define N 3
#define VICTIM (N - 1)
#ifndef CAP
#define CAP 1
#endif

typedef Server {
	bit		wants;
	bit		used;			/* a connection is open */
	bit		limit;			/* it may be open */
	bit		over;			/* its turn ends with the next statement */
	bit		lasts;			/* a lease has lasted longer than the limit */

	/* the rows that were read: of the other servers */
	byte	wanting;
	byte	starved;
	byte	preceding;
	byte	held;

	/* the statement in flight */
	bit		target;
	bit		sent_used;
	bit		sent_wants
}

typedef Row {
	bit		wants;
	bit		held;
	byte	since			/* only the order of these numbers counts */
}

Server server[N];
Row row[N];
bit dead;					/* the first server */
bit expired;				/* the others know that it is dead */

#define IS_DEAD(i) ((i) == 0 && dead)
#define IS_GONE(i) ((i) == 0 && expired)
#define FREE(i) (CAP - server[i].held - (row[i].held || server[i].used))
#define LACKING(i) (server[i].starved > (FREE(i) > 0 -> FREE(i) : 0))

#ifdef BUG_NO_TURN_END
#define ENDS_TURN(i) false
#else
#define ENDS_TURN(i) (server[i].over && server[i].starved > 0)
#endif

/* pgpx_share_choose_target: in turns, or fair shares */
#define IN_TURN(i) (server[i].wants && !(row[i].held && ENDS_TURN(i)))
#ifdef BUG_KEEP_IDLE
#define FAIR(i) (server[i].wants || server[i].used)
#else
#define FAIR(i) (server[i].wants || (server[i].used && !LACKING(i)))
#endif
#define CHOOSE(i) (server[i].wanting + server[i].wants > CAP -> IN_TURN(i) : FAIR(i))

#ifdef BUG_TAKE_BACK
#define RELEASES(i) false
#else
#define RELEASES(i) (row[i].held && !server[i].limit && server[i].starved > 0)
#endif

#ifdef BUG_BY_NAME
#define PRECEDES(j, i) ((j) < (i))
#else
#define PRECEDES(j, i) \
	(row[i].held || !row[i].wants || row[j].since < row[i].since)
#endif

/* The connection is leased until the statement after this one. */
#define LASTS(i) \
	(!server[i].limit && server[i].used && server[i].wants && !server[i].lasts)

/* The row gets the highest "since". */
inline renew_since(i)
{
	j = 0;
	do
	:: j < N ->
		if
		:: row[j].since > row[i].since -> row[j].since--
		:: else
		fi;
		j++
	:: else -> break
	od;
	row[i].since = N - 1
}

/*
 * Read the other rows.  "preceding": the starved servers to which a free connection is
 * left, because they precede this one.
 */
inline read_others(i)
{
	server[i].wanting = 0; server[i].starved = 0; server[i].preceding = 0; server[i].held = 0;
	j = 0;
	do
	:: j < N ->
		if
		:: j != i && !IS_GONE(j) ->
			server[i].wanting = server[i].wanting + row[j].wants;
			server[i].held = server[i].held + row[j].held;
			if
			:: row[j].wants && !row[j].held ->
				server[i].starved++;
				if
				:: PRECEDES(j, i) -> server[i].preceding++
				:: else
				fi
			:: else
			fi
#ifdef BUG_DEAD_FIRST
		:: j != i && IS_GONE(j) ->
			if
			:: row[j].wants && !row[j].held && PRECEDES(j, i) -> server[i].preceding++
			:: else
			fi
#endif
		:: else
		fi;
		j++
	:: else -> break
	od
}

#ifdef BUG_FREE_FOR_ALL
#define IS_GRANTED(i) (server[i].held < CAP)
#else
#define IS_GRANTED(i) (server[i].held + server[i].preceding < CAP)
#endif

inline execute(i)
{
	read_others(i);
	was_held = row[i].held;
	was_wanted = row[i].wants;
	row[i].held = (server[i].sent_used || (server[i].target && (row[i].held || IS_GRANTED(i))));
	row[i].wants = server[i].sent_wants;
	if
#ifdef BUG_NEW_SINCE
	:: true ->
#else
	:: row[i].held != was_held || row[i].wants != was_wanted ->
#endif
		renew_since(i);
		read_others(i)
	:: else
	fi;
	if
	:: row[i].held && !was_held -> server[i].over = 0
	:: else
	fi;
	server[i].limit = (row[i].held && server[i].target && CHOOSE(i));
	server[i].target = 0; server[i].sent_used = 0; server[i].sent_wants = 0
}

/* The statements of a server. */
proctype Worker(byte i)
{
	byte j;
	bit was_held, was_wanted;

	do
	:: IS_DEAD(i) -> break
	:: else ->
		atomic {
			if
			:: i != VICTIM -> server[i].wants = 0
			:: server[i].wants = 1
			fi;
			if
#ifdef LEASES
			:: LASTS(i) -> server[i].lasts = 1
#endif
			:: true -> server[i].used = server[i].limit; server[i].lasts = 0
			fi;
			server[i].target = (RELEASES(i) -> 0 : CHOOSE(i));
			server[i].limit = (server[i].limit && server[i].target);
			server[i].sent_used = server[i].used;
			server[i].sent_wants = server[i].wants;
			server[i].over = row[i].held }
		d_step {
			if
			:: !IS_DEAD(i) -> execute(i)
			:: else
			fi;
			j = 0; was_held = 0; was_wanted = 0 }
	od
}

proctype Death()
{
	if
#ifdef DEATH
	:: true -> dead = 1; d_step { expired = 1; row[0].held = 0 }
#endif
	:: true -> skip
	fi
}

init
{
	atomic {
		row[1].since = 1;
		row[2].since = 2;
		server[VICTIM].wants = 1;
		run Worker(0); run Worker(1); run Worker(2);
				run Death()
	}
}

ltl no_starvation { [] <> (server[VICTIM].used == 1) }
