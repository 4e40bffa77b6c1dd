/*
 * stream.pml
 *	  The query phase of the protocol as a model: one stream, successive leases on
 *	  it, and a remote that answers in order.
 *
 * A lease sends one or two exchanges: a statement in the simple protocol (Query), or one in
 * the extended protocol (Parse to Execute, and Sync), which may be a COPY FROM STDIN.
 * After its last answer it sends the reset and ends; the next lease reads the answer
 * to the reset.
 *
 * After CopyInResponse the server continues in one of two ways (copyfromparse.c and
 * postgres.c of PostgreSQL):
 *	 - it waits for data: a Sync is swallowed, CopyFail is an error, and so is any other
 *	   message; then all is skipped up to the next Sync, which is answered
 *	 - it fails before it reads (FREEZE, a trigger, a view): it answers the Sync that was
 *	   sent with Execute, ignores CopyFail, and answers the next Sync as well
 * So the session does not know the number of ReadyForQuery messages.
 *
 * Asserted:
 *	 - an answer is accepted only by its own exchange
 *	 - a statement runs only in a session that was reset after the previous lease
 *
 * There are two rules, and either is enough against COPY:
 *	 - CopyInResponse in the extended protocol breaks the stream
 *	 - an exchange begins with a marker, whose echo must be the first message that is read
 * With REPLAY the remote may repeat an earlier answer, so that the second rule
 * has to hold without the first.
 *
 * run both: -DREPLAY
 * run no_marker: -DNO_MARKER
 * run no_break: -DBUG_COUNTED -DREPLAY
 *
 * mutant BUG_COUNTED: -DNO_MARKER
 * mutant BUG_SAME_ECHO: -DREPLAY
 * mutant BUG_RESET_UNSEEN: -DREPLAY
 *
 *	 COUNTED		 the session refuses the COPY, and expects one ReadyForQuery
 *	 SAME_ECHO		 the marker is the same in each exchange
 *	 RESET_UNSEEN	 the answer to the reset is read up to ReadyForQuery without a check
 */
#define LEASES 3
#define COPIES 1

mtype = { MARKER, QUERY, EXTENDED, COPY, RESET, SYNC, COPYFAIL };		/* to the remote */
mtype = { ECHO, ANSWER, FAILED, COPYIN, READY };						/* from it */

/* each with the number of its exchange, and its lease */
chan to = [8] of { mtype, byte, byte };
chan from = [16] of { mtype, byte, byte };

/* the remote session */
bool skipping = false;	/* to the next Sync, after an error */
bool copying = false;	/* COPY FROM STDIN waits for data */
byte dirty = 0;			/* the lease whose session state it has */
byte replayed = 0;		/* repeated answers */
byte last = 0;			/* the exchange that was answered last */

/* the local session */
byte number = 0;		/* of the exchange */
byte lease = 0;
bool closed = false;	/* the stream is broken */
bool unread_reset = false;		/* the answer to a reset is unread */
byte copies = 0;

#ifdef BUG_SAME_ECHO
#define ECHO_OF(n) 1
#else
#define ECHO_OF(n) n
#endif

inline flush_all()
{
	do
	:: to?_, _, _
	:: from?_, _, _
	:: empty(to) && empty(from) -> break
	od
}

/* A new connection, to a new remote session. */
inline close_stream()
{
	d_step {
		flush_all();
		skipping = false;
		copying = false;
		dirty = 0;
		last = 0;
		closed = true;
		unread_reset = false
	}
}

inline fail_copy(n, l)
{
	from!FAILED(n, l);
	copying = false;
	skipping = true
}

active proctype Remote()
{
	mtype m;
	byte n;
	byte l;
	byte copy_n;

end:
	do
	:: atomic { nempty(to) && !copying ->
		to?m, n, l;
		if
		:: m == SYNC -> skipping = false; from!READY(n, l)
		:: m == COPYFAIL		/* ignored outside of COPY */
		:: m != SYNC && m != COPYFAIL && skipping
		:: m == MARKER && !skipping -> from!ECHO(ECHO_OF(n), l)
		:: m == QUERY && !skipping ->
			assert(dirty == 0 || dirty == l);
			dirty = l;
			last = n;
			from!ANSWER(n, l);
			from!READY(n, l)
		:: m == EXTENDED && !skipping ->
			assert(dirty == 0 || dirty == l);
			dirty = l;
			last = n;
			if
			:: from!ANSWER(n, l)
			:: from!FAILED(n, l); skipping = true
			fi
		:: m == COPY && !skipping ->
			assert(dirty == 0 || dirty == l);
			dirty = l;
			from!COPYIN(n, l);
			copying = true;
			copy_n = n
		:: m == RESET && !skipping ->
			if
			:: dirty = 0; from!ANSWER(n, l)
			:: from!FAILED(n, l); skipping = true
			fi
		fi;
		m = SYNC; n = 0; l = 0 }

	/* before it has read anything */
	:: atomic { copying -> fail_copy(copy_n, dirty); copy_n = 0 }

	:: atomic { copying && nempty(to) ->
		to?m, n, l;
		if
		:: m == SYNC
		:: else -> fail_copy(copy_n, dirty); copy_n = 0
		fi;
		m = SYNC; n = 0; l = 0 }
#ifdef REPLAY
	:: atomic { last != 0 && replayed == 0 ->
		replayed = 1;
#ifndef NO_MARKER
		from!ECHO(ECHO_OF(last), lease);
#endif
		from!ANSWER(last, lease);
		from!READY(last, lease) }
#endif
	od
}

inline send_token()
{
#ifndef NO_MARKER
	to!MARKER(number, lease);
#endif
	skip
}

/* The echo must be the next message. */
inline read_echo()
{
#ifndef NO_MARKER
	if
	:: from?m, n, l ->
		if
		:: m == ECHO && n == ECHO_OF(number)
		:: else -> close_stream()
		fi
	:: timeout -> close_stream()
	fi;
#endif
	skip
}

/* The answer to the reset that the previous lease sent. */
inline read_reset()
{
#ifdef BUG_RESET_UNSEEN
	m = SYNC;
#else
	read_echo();
	m = ANSWER;
#endif
	do
	:: closed -> break
	:: !closed && from?[READY, _, _] -> from?m, n, l; break
	:: !closed && from?[ANSWER, _, _] -> from?m, n, l
#if defined(BUG_RESET_UNSEEN)
	:: !closed && from?[ECHO, _, _] -> from?m, n, l
#endif
	:: !closed && (from?[FAILED, _, _] || from?[COPYIN, _, _]) -> close_stream()
	:: timeout -> close_stream()
	od;
	unread_reset = false
}

/* The answer to the statement. */
inline read_answer()
{
	over = false;
	read_echo();
	do
	:: closed -> break
	:: !closed && from?[READY, _, _] ->
		from?m, n, l;
		if
		:: over -> break
		:: else -> close_stream()	/* there was no answer */
		fi
	:: !closed && from?[ANSWER, _, _] ->
		from?m, n, l;
		if
		:: over -> close_stream()
		:: else -> assert(n == number); over = true
		fi
	:: !closed && from?[FAILED, _, _] ->
		from?m, n, l;
		assert(n == number);
		over = true
	:: !closed && from?[COPYIN, _, _] ->
		from?m, n, l;
#ifdef BUG_COUNTED
		to!COPYFAIL(number, lease);
		to!SYNC(number, lease)
#else
		close_stream()
#endif
	:: !closed && from?[ECHO, _, _] -> close_stream()
	:: timeout -> close_stream()
	od
}

/* One statement. */
inline exchange()
{
	/* unsolicited messages are not the answer to a statement */
	if
	:: nempty(from) -> close_stream()
	:: empty(from) -> skip
	fi;
	closed = false;
	number++;
	if
	:: atomic { send_token(); to!QUERY(number, lease) };
		read_answer()
	:: atomic { send_token(); to!EXTENDED(number, lease); to!SYNC(number, lease) };
		read_answer()
	:: copies < COPIES ->
		atomic { copies++; send_token(); to!COPY(number, lease); to!SYNC(number, lease) };
		read_answer()
	fi
}

active proctype Session()
{
	mtype m;
	byte n;
	byte l;
	bool over;

	do
	:: lease < LEASES ->
		lease++;
		if
		:: unread_reset -> closed = false; read_reset()
		:: else
		fi;
		exchange();
		if
		:: closed
		:: !closed -> exchange()
		:: skip
		fi;

		/* the checkin */
		if
		:: closed -> closed = false
		:: else ->
			number++;
			atomic { send_token(); to!RESET(number, lease); to!SYNC(number, lease) };
			unread_reset = true
		fi
	:: else -> break
	od
}
