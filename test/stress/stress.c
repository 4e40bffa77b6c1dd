/*-------------------------------------------------------------------------
 *
 * stress.c
 *	  Many sessions, random operations, random faults; see ../README.md.
 *
 *	  stress SEED SECONDS LOCAL REMOTE PROXY_PORT REMOTE_PORT RESTART [FAULT_EACH]
 *
 * LOCAL and REMOTE are conninfos of superusers, RESTART a shell command that
 * restarts the remote.  The foreign servers "s", "c" and "l" connect to PROXY_PORT, where
 * a thread of this program forwards bytes to REMOTE_PORT, or does not.  On "s" there
 * are leases and calls; on "c", which has few connections, only calls, most of which are
 * pipelined; on "l" there are distributed locks.  The servers "d1" to "d3", and "a", a
 * server of postgres_fdw, have foreign tables.
 *
 * Each thread is a session that executes one operation after the other and checks
 * every bit of every value.  A thread of faults cancels, terminates, revokes leases,
 * changes the server, ends the worker, restarts the remote, cuts and freezes
 * connections.  Regularly all threads stop at a barrier, where the counters must add
 * up.  An error ends the program with status 1 and prints the operation.
 *
 * Every other round is quiet: there are no faults, so operations fail only by
 * themselves, and the counters of the pools and the holders of leases must be exactly
 * those that the sessions have recorded (Model).
 *
 * With FAULT_EACH it is a soak test: a fault every FAULT_EACH seconds, rounds of three
 * faults, and at each barrier samples of resources that must not grow (sample.h).
 *
 * The seed determines the operations of each thread; the machine determines how they
 * interleave.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "libpq-fe.h"
#include "../threads.h"
#include "sample.h"

#define SESSIONS 24
#define ROUGH 5					/* seconds of a round */
#define QUIET 3
#define FEW 6					/* sessions, which lease the same connections again */
#define TEXT_MAX 3000
#define LINKS 256				/* of the proxy */

/* The operations of a session, by server: s, c; those of locks are not compared. */
#define POOLS 2
#define LOCK_POOL 2

typedef struct Model
{
	long		leased[POOLS];	/* leases, and calls that had a connection */
	long		unsure[POOLS];	/* statements that may not have been sent */
	long		late[POOLS + 1];	/* waits that ended with 55P03 */
	long		not_ready[POOLS + 1];	/* 55P03 although a connection was granted */
	long		none_now[POOLS + 1];	/* 55P03 without a wait */
	long		statements[POOLS];
	long		failed[POOLS];	/* statements that are errors of the remote */
	long		victims[POOLS + 1]; /* waits that ended with a deadlock */
} Model;

#define BANKS 4					/* servers with foreign tables */

/* The balance of a session's account. */
typedef struct Balance
{
	bool		known;
	long		amount;
} Balance;

typedef struct Session
{
	int			number;
	uint64_t	random;
	PGconn	   *conn;
	const char *activity;			/* for error messages */
	char		lease[32];
	char		pid[32];		/* of the remote backend, if known */
	long		operations;
	long		values;
	long		refused;		/* permitted errors */
	long		reconnects;
	char		sqlstate[6];	/* of the last run */
	int			pool;			/* that the next statement is for */
	bool		no_wait;		/* the next statement does not wait */
	bool		cancels;		/* the next statement may end with 57014 */
	Balance		committed[BANKS];	/* in this quiet round */
	long		ncursors;
	Model		model;
} Session;

static Session sessions[SESSIONS];
static const char *local_info;
static const char *remote_info;
static const char *restart_command;
static int	proxy_port;
static int	remote_port;
static unsigned long seed;

static double fault_each = 0;	/* seconds; 0: stress test, not soak test */
static volatile bool stop = false;	/* the time is up */
static volatile bool pausing = false;	/* to the barrier */
static volatile bool quiet = false; /* no faults */
static volatile bool few = false;	/* only the first sessions use "s" */
static volatile int spoil_at = -1;	/* the proxy cuts each link after this number of bytes */
static volatile bool heal = false;	/* this ends spoil_at */
static volatile bool frozen = false;	/* the proxy forwards nothing */
static volatile int cutting = 0;	/* the proxy cuts: 1 RST, 2 FIN */
static pthread_barrier_t barrier;
static pthread_mutex_t conn_mutex[SESSIONS];
static volatile bool in_order = false;	/* connections of several servers are leased in order */
static long crossed;			/* in quiet rounds: transactions that had all their connections */
static long deadlocks;			/* in quiet rounds */
static long banked;				/* in quiet rounds: transactions on foreign tables */
static long not_ready;			/* leases that timed out before they were ready */

static void
fail(const Session *s, const char *format,...)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	va_list		args;

	pthread_mutex_lock(&once);
	printf("stress: FAILED with seed %lu", seed);
	if (s != NULL)
		printf(", session %d (%s), lease \"%s\"", s->number, s->activity,
			   s->lease);
	va_start(args, format);
	exit_failed(format, args);
}

static PGconn *
connect_to(const char *info)
{
	for (int i = 0; i < 300; i++)
	{
		PGconn	   *conn = PQconnectdb(info);

		if (PQstatus(conn) == CONNECTION_OK)
			return conn;
		PQfinish(conn);
		usleep(100 * 1000);
	}
	fail(NULL, "no connection to %s", info);
	return NULL;
}

static void
reconnect(Session *s)
{
	PGconn	   *conn = connect_to(local_info);

	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	pthread_mutex_lock(&conn_mutex[s->number]);
	if (s->conn != NULL)
		PQfinish(s->conn);
	s->conn = conn;
	pthread_mutex_unlock(&conn_mutex[s->number]);
	s->lease[0] = '\0';
	s->pid[0] = '\0';
	s->reconnects++;
}

/* Errors caused by faults; any other error is a failure. */
static bool
may_be(const char *sqlstate)
{
	static const char *const known[] = {
		"55P03",				/* no connection in time */
		"57014",				/* cancelled, statement_timeout */
		"57P01",				/* the remote's or our session was terminated */
		"57P02", "57P03",		/* the remote restarts */
		"08001", "08006",		/* no connection, or lost */
		"PX001", "PX003",		/* revoked; no worker */
		"53300",				/* too many */
		"40P01",				/* would wait for itself */
		"40001",				/* an aborted transaction was still open at the remote */
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(known[i], sqlstate) == 0)
			return true;
	return false;
}

/*
 * The detail of a deadlock has a line for each wait, each with the processes that
 * hold.  This session is the first one, and each holder waits, too.
 */
static void
check_deadlock(const Session *s, const char *message)
{
	int			waiting[64];
	int			n = 0;
	const char *at = message;

	while (n < 64 && (at = strstr(at, "Process ")) != NULL)
		waiting[n++] = atoi(at += strlen("Process "));
	if (n == 0 || waiting[0] != PQbackendPID(s->conn))
		fail(s, "the session is not the first one of the deadlock: %s", message);
	for (at = message; (at = strstr(at, "held by process")) != NULL;)
	{
		at = strchr(strchr(at + strlen("held by "), ' '), ' ');
		while (at[0] == ' ' && at[1] >= '0' && at[1] <= '9')
		{
			char	   *end;
			int			holder = (int) strtol(at, &end, 10);
			bool		found = false;

			for (int i = 0; i < n; i++)
				found |= waiting[i] == holder;
			if (!found)
				fail(s, "process %d holds a connection and does not wait: %s", holder, message);
			at = *end == ',' ? end + 1 : end;
		}
	}
}

static void
note_deadlock(Session *s, const char *message)
{
	static const char *const names[] = {"server \"s\"", "server \"c\""};
	const char *end = strchr(message, '\n');
	int			pool = POOLS;

	check_deadlock(s, message);
	for (int i = 0; i < POOLS; i++)
	{
		const char *at = strstr(message, names[i]);

		if (at != NULL && at < end)
			pool = i;
	}
	s->model.victims[pool]++;
	if (in_order && pool == POOLS)
		fail(s, "deadlock although all transactions lease in the same order: %s", message);
	if (quiet)
		__atomic_add_fetch(&deadlocks, 1, __ATOMIC_RELAXED);
}

/* Return whether an error is among the expected SQLSTATEs; NULL: none. */
static bool
is_expected(const char *expected, const char *sqlstate)
{
	return expected != NULL && sqlstate[0] != '\0' &&
		strstr(expected, sqlstate) != NULL;
}

/* Record an error: in a quiet round the session itself must have caused it. */
static void
note_error(Session *s, const char *expected, const char *message)
{
	if (strcmp(s->sqlstate, "40P01") == 0 && strstr(message, "deadlock detected") != NULL)
		note_deadlock(s, message);
	else if (strcmp(s->sqlstate, "55P03") == 0)
	{
		if (strstr(message, "was granted in time") != NULL)
			s->model.not_ready[s->pool]++;
		else if (s->no_wait)
			s->model.none_now[s->pool]++;
		else
		{
			s->model.late[s->pool]++;

			/* the timeouts of "s" are short, those of the others are 10 s to 30 s */
			if (quiet && s->pool != 0)
				fail(s, "a session waited until its timeout in a round without faults: %s", message);
		}
	}
	else if (quiet && strcmp(s->sqlstate, "40P01") != 0 &&
			 !(s->cancels && strcmp(s->sqlstate, "57014") == 0) &&
			 !is_expected(expected, s->sqlstate))
		fail(s, "unexpected error in a round without faults: %s", message);
}

/*
 * Run SQL.  Returns the result, or NULL after a permitted error, whose code is in
 * *sqlstate.  A session that has ended is opened again.
 */
static PGresult *
run(Session *s, const char *expected, const char *sql, int n,
	const char *const *values)
{
	PGresult   *res = PQexecParams(s->conn, sql, n, NULL, values, NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(res);
	const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);

	snprintf(s->sqlstate, sizeof(s->sqlstate), "%s", sqlstate ? sqlstate : "");
	if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
		return res;
	s->refused++;
	note_error(s, expected, PQresultErrorMessage(res));
	if (PQstatus(s->conn) != CONNECTION_OK)
	{
		if (sqlstate != NULL && strncmp(sqlstate, "XX", 2) == 0)
			fail(s, "the session ended with: %s", PQresultErrorMessage(res));
		PQclear(res);
		reconnect(s);
		return NULL;
	}
	if (sqlstate == NULL || (!may_be(sqlstate) &&
							 !is_expected(expected, sqlstate)))
		fail(s, "%s: %s", sqlstate ? sqlstate : "no sqlstate",
			 PQresultErrorMessage(res));
	PQclear(res);
	return NULL;
}

static bool
simply(Session *s, const char *expected, const char *sql)
{
	PGresult   *res = run(s, expected, sql, 0, NULL);
	bool		ok = res != NULL;

	PQclear(res);
	return ok;
}

/*
 * Roll the transaction back if it has not ended.  A cancel can interrupt a COMMIT and
 * also the ROLLBACK that follows it, so try again.
 */
static void
roll_back(Session *s)
{
	for (int i = 0; PQtransactionStatus(s->conn) != PQTRANS_IDLE; i++)
	{
		if (i == 100)
			fail(s, "ROLLBACK fails %d times", i);
		(void) simply(s, NULL, "ROLLBACK");
	}
}

/* A unique text. */
static void
random_text(Session *s, char *text)
{
	int			len = snprintf(text, 64, "%d:%u:", s->number,
							   (unsigned) roll(s, 1u << 30));
	int			more = roll(s, 8) == 0 ? roll(s, TEXT_MAX - 100) : roll(s, 40);

	for (int i = 0; i < more; i++)
		text[len++] = "abcdefghijklmnop'\\\"$ \n\t{},"[roll(s, 26)];
	text[len] = '\0';
}

static void
compare(Session *s, const PGresult *res, const char *number, const char *text)
{
	if (PQntuples(res) != 1)
		fail(s, "%d rows instead of 1", PQntuples(res));
	if (strcmp(PQgetvalue(res, 0, 0), number) != 0)
		fail(s, "asked for %s, got %s", number, PQgetvalue(res, 0, 0));
	if (strcmp(PQgetvalue(res, 0, 1), text) != 0)
		fail(s, "asked for \"%s\", got \"%s\"", text, PQgetvalue(res, 0, 1));
	s->values++;
}

/* Send a value and compare the returned one: on the lease, or in one call. */
static void
request_value(Session *s, bool on_lease)
{
	char		number[32];
	char		text[TEXT_MAX];
	const char *values[3] = {s->lease, number, text};
	PGresult   *res;

	s->activity = on_lease ? "value on a lease" : "value in a call";
	s->pool = 0;
	snprintf(number, sizeof(number), "%lld",
			 (long long) roll(s, 1u << 31) * roll(s, 1u << 31));
	random_text(s, text);
	res = on_lease ?
		run(s, NULL, "SELECT a, b FROM pgpool.query($1::bigint, 'select $1::bigint, $2::text', $2::text, $3::text) AS t(a bigint, b text)", 3, values) :
		run(s, NULL, "SELECT a, b FROM pgpool.query('s', 'select $1::bigint, $2::text', $1::text, $2::text) AS t(a bigint, b text)", 2, values + 1);
	if (res != NULL)
	{
		compare(s, res, number, text);
		s->model.leased[0] += !on_lease;
		s->model.statements[0]++;
	}
	PQclear(res);
}

/* One of many calls on few connections, in a session that has been reset. */
static void
call(Session *s)
{
	static const char *const sql =
		"SELECT a, b, c FROM pgpool.query('c', 'select $1::bigint, $2::text,"
		" concat(current_setting(''stress.owner'', true),"
		" (select count(*) from pg_locks where locktype = ''advisory'' and pid = pg_backend_pid())),"
		" set_config(''stress.owner'', $3, false), pg_try_advisory_lock($3::int)::text'"
		", $1::text, $2::text, $3::text) AS t(a bigint, b text, c text, d text, e text)";
	char		number[32];
	char		mine[32];
	char		text[TEXT_MAX];
	const char *values[3] = {number, text, mine};
	PGresult   *res;

	s->activity = "a call of many";
	s->pool = 1;
	if (roll(s, 10) == 0)
	{
		res = run(s, "22012", "SELECT pgpool.exec('c', 'select 1 / 0')", 0, NULL);
		if (res != NULL)
			fail(s, "1 / 0 is something");
		if (strcmp(s->sqlstate, "22012") == 0)
		{
			s->model.leased[1]++;
			s->model.statements[1]++;
			s->model.failed[1]++;
		}
		return;
	}
	snprintf(mine, sizeof(mine), "%d", s->number + 2000);
	snprintf(number, sizeof(number), "%lld",
			 (long long) roll(s, 1u << 31) * roll(s, 1u << 31));
	random_text(s, text);
	res = run(s, NULL, sql, 3, values);
	if (res != NULL)
	{
		compare(s, res, number, text);
		if (strcmp(PQgetvalue(res, 0, 2), "0") != 0)
			fail(s, "traces of another: \"%s\"", PQgetvalue(res, 0, 2));
		s->model.leased[1]++;
		s->model.statements[1]++;
	}
	PQclear(res);
}

/* One call on several servers; in a quiet round, where all is counted, on one. */
static void
fan_out(Session *s)
{
	char		number[32];
	char		text[TEXT_MAX];
	const char *values[3] = {quiet ? "{c}" : "{s,c}", number, text};
	PGresult   *res;

	s->activity = "fanout";
	s->pool = 1;
	snprintf(number, sizeof(number), "%lld",
			 (long long) roll(s, 1u << 31) * roll(s, 1u << 31));
	random_text(s, text);
	res = run(s, NULL, "SELECT a, b FROM pgpool.fanout($1::text[], 'select $1::bigint, $2::text', $2::text, $3::text)"
			  " AS t(server text, a bigint, b text) GROUP BY a, b HAVING count(*) = cardinality($1::text[])", 3, values);
	if (res != NULL)
	{
		compare(s, res, number, text);
		s->model.leased[1]++;
		s->model.statements[1]++;
	}
	PQclear(res);
}

/* A lease that listens receives its notifications. */
static void
notify(Session *s)
{
	char		payload[64];
	const char *values[2] = {s->lease, payload};
	PGresult   *res;

	s->activity = "notification";
	s->pool = 0;
	snprintf(payload, sizeof(payload), "%d %ld", s->number, s->operations);
	res = run(s, NULL, "SELECT pgpool.exec($1::bigint, format('listen stress; notify stress, %L', $2::text))", 2, values);
	if (res == NULL)
		return;
	s->model.statements[0]++;
	PQclear(res);
	res = run(s, NULL, "SELECT payload FROM pgpool.notifications($1::bigint) WHERE payload = $2", 2, values);
	if (res != NULL && PQntuples(res) != 1)
		fail(s, "%d notifications instead of 1", PQntuples(res));
	s->values += res != NULL;
	PQclear(res);
	if (s->lease[0] != '\0')
	{
		res = run(s, NULL, "SELECT pgpool.exec($1::bigint, 'unlisten stress')", 1, values);
		s->model.statements[0] += res != NULL;
		PQclear(res);
	}
}

/* --- distributed locks -------------------------------------------------------- */

#define LOCKS 4

static long newest_token[2 * LOCKS];	/* by lock; the second half is for quiet rounds */
static int	holder[LOCKS];		/* in a quiet round: the session's number + 1 */
static long locked;				/* in quiet rounds */

static void
note_token(Session *s, int which, long least, long token)
{
	long		newest = __atomic_load_n(&newest_token[which], __ATOMIC_SEQ_CST);

	if (token <= least)
		fail(s, "lock %d has token %ld, after %ld", which, token, least);
	while (newest < token &&
		   !__atomic_compare_exchange_n(&newest_token[which], &newest, token, false,
										__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

/* The answer is 't', unless a fault interferes. */
static void
must_be_true(Session *s, const char *sql, const char *const *values)
{
	PGresult   *res = run(s, "55000", sql, 2, values);

	if (quiet && res != NULL && strcmp(PQgetvalue(res, 0, 0), "t") != 0)
		fail(s, "%s", PQgetisnull(res, 0, 0) ? "NULL" : PQgetvalue(res, 0, 0));
	PQclear(res);
}

/*
 * Acquire a lock, use it and release it.  Tokens always increase.  Without faults no
 * lock is lost, so only this session holds it.
 */
static void
lock(Session *s)
{
	int			which = roll(s, LOCKS);
	int			all = which + (quiet ? LOCKS : 0);
	long		least = __atomic_load_n(&newest_token[all], __ATOMIC_SEQ_CST);
	char		name[16];
	char		token[32];
	const char *values[2] = {name, token};
	PGconn	   *conn = s->conn;
	PGresult   *res;

	s->activity = "lock";
	s->pool = LOCK_POOL;
	snprintf(name, sizeof(name), "stress %d", all);
	res = run(s, NULL, "SELECT pgpool.try_lock('l', $1, '10 s')", 1, values);
	if (res == NULL || PQgetisnull(res, 0, 0))
	{
		PQclear(res);
		return;
	}
	snprintf(token, sizeof(token), "%s", PQgetvalue(res, 0, 0));
	PQclear(res);
	note_token(s, all, least, atol(token));
	if (quiet)
	{
		int			other = __atomic_exchange_n(&holder[which], s->number + 1, __ATOMIC_SEQ_CST);

		if (other != 0)
			fail(s, "session %d has lock \"%s\", too", other - 1, name);
		__atomic_add_fetch(&locked, 1, __ATOMIC_RELAXED);
	}
	usleep(roll(s, 3000));
	must_be_true(s, "SELECT pgpool.lock_valid('l', $1, $2::bigint)", values);
	if (s->conn == conn && roll(s, 2))
		must_be_true(s, "SELECT pgpool.exec('l', 'select pgpool_lock.fence_check($1, $2::bigint)', $1, $2) = 1", values);
	if (quiet)
		__atomic_store_n(&holder[which], 0, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 100 && s->conn == conn; i++)
	{
		s->activity = "unlock";
		res = run(s, NULL, "SELECT pgpool.unlock('l', $1, $2::bigint)", 2, values);
		if (quiet && res != NULL && strcmp(PQgetvalue(res, 0, 0), "t") != 0)
			fail(s, "lock \"%s\" was not held", name);
		PQclear(res);
		if (res != NULL)
			break;
	}
}

/* --- own session state--------------------------------------------------------- */

/* The remote session is clean at first, then ours, and stays the same one. */
static void
mark(Session *s)
{
	char		mine[32];
	const char *values[2] = {s->lease, mine};
	PGresult   *res;

	s->activity = "mark";

	/*
	 * A session that reconnects has another name.  The advisory lock has the backend's
	 * PID as its second key, because a former connection may still hold it.
	 */
	snprintf(mine, sizeof(mine), "%ld", s->number + 100 * s->reconnects);
	res = run(s, NULL, "SELECT a, b, c FROM pgpool.query($1::bigint, 'select pg_backend_pid()::text, coalesce(current_setting(''stress.owner'', true), ''''), (select count(*) from pg_locks where locktype = ''advisory'' and pid = pg_backend_pid())::text') AS t(a text, b text, c text)", 1, values);
	if (res == NULL)
		return;
	s->model.statements[0]++;
	if (s->pid[0] == '\0')
	{
		const char *pid = PQgetvalue(res, 0, 0);
		const char *owner = PQgetvalue(res, 0, 1);

		if (owner[0] != '\0')
			fail(s, "the session is still that of %s (this is %s)", owner, mine);
		if (strcmp(PQgetvalue(res, 0, 2), "0") != 0)
			fail(s, "the remote session holds an advisory lock of an earlier lease");
		snprintf(s->pid, sizeof(s->pid), "%s", pid);
		PQclear(res);
		res = run(s, NULL, "SELECT pgpool.exec($1::bigint, format('select set_config(''stress.owner'', %L, false), pg_advisory_lock(%s, pg_backend_pid())', $2::text, $2::text))", 2, values);
		if (res == NULL)
			snprintf(s->pid, sizeof(s->pid), "unknown");
		else
			s->model.statements[0]++;
	}
	else if (strcmp(s->pid, "unknown") != 0)
	{
		if (strcmp(PQgetvalue(res, 0, 0), s->pid) != 0)
			fail(s, "the lease was on backend %s, and is on %s", s->pid,
				 PQgetvalue(res, 0, 0));
		if (strcmp(PQgetvalue(res, 0, 1), mine) != 0)
			fail(s, "the session is that of \"%s\"", PQgetvalue(res, 0, 1));
	}
	PQclear(res);
}

static void
checkout(Session *s)
{
	static const char *const how[] = {
		"SELECT pgpool.checkout('s', '2 s', 'stress')",
		"SELECT pgpool.checkout('s', '1 ms')",
		"SELECT pgpool.checkout('s', '2 ms')",
		"SELECT pgpool.try_checkout('s', 'stress')",
		"SELECT pgpool.try_checkout('s')",
		"SELECT pgpool.checkout('s', '100 ms')",
	};
	uint32_t	which = roll(s, 10);
	PGresult   *res;

	s->activity = how[which < 6 ? which : 0];
	s->pool = 0;
	s->no_wait = which == 3 || which == 4;
	res = run(s, NULL, s->activity, 0, NULL);
	s->no_wait = false;
	if (res != NULL && !PQgetisnull(res, 0, 0))
	{
		snprintf(s->lease, sizeof(s->lease), "%s", PQgetvalue(res, 0, 0));
		s->model.leased[0]++;
	}
	else if (res != NULL)
		s->model.none_now[0]++;
	s->pid[0] = '\0';
	PQclear(res);
}

static void
return_lease(Session *s, const char *how)
{
	const char *values[1] = {s->lease};
	PGresult   *res = NULL;

	/* if interrupted, it is still ours */
	for (int i = 0; i < 100 && res == NULL && s->lease[0] != '\0'; i++)
	{
		s->activity = how;
		res = run(s, i > 0 ? "55000" : NULL, how, 1, values);
		if (res == NULL && s->lease[0] != '\0' && i > 0)
		{
			/* it may have been lost in the previous attempt */
			res = PQexec(s->conn, "SELECT 1");
		}
	}
	PQclear(res);
	s->lease[0] = '\0';
}

/* A transaction with its own leases, and savepoints. */
static void
transaction(Session *s)
{
	static const char *const steps[] = {
		"SAVEPOINT a",
		"ROLLBACK TO SAVEPOINT a",
		"RELEASE SAVEPOINT a",
		"SELECT pgpool.checkout_xact('s', '50 ms')",
		"SELECT pgpool.checkout_xact('s', '1 ms')",
		"SELECT count(*) FROM pgpool.query('s', 'select 1') AS t(a int)",
		"SELECT 1/0",
	};
	const char *end = roll(s, 2) ? "COMMIT" : "ROLLBACK";

	s->activity = "transaction";
	if (!simply(s, NULL, "BEGIN"))
		return;
	for (int i = roll(s, 8); i > 0; i--)
	{
		const char *step = steps[roll(s, 7)];
		PGresult   *res;
		char		lease[32] = "";
		PGconn	   *conn = s->conn;

		s->activity = step;
		/* no such savepoint, failed transaction, division by zero */
		res = PQexec(s->conn, step);
		if (PQresultStatus(res) == PGRES_FATAL_ERROR)
		{
			const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);

			if (PQstatus(s->conn) != CONNECTION_OK)
			{
				PQclear(res);
				reconnect(s);
				return;
			}
			if (sqlstate == NULL ||
				(!may_be(sqlstate) && strcmp(sqlstate, "3B001") != 0 &&
				 strcmp(sqlstate, "25P02") != 0 && strcmp(sqlstate, "22012") != 0))
				fail(s, "%s", PQresultErrorMessage(res));
			s->pool = 0;
			snprintf(s->sqlstate, sizeof(s->sqlstate), "%s", sqlstate);
			note_error(s, may_be(sqlstate) ? NULL : sqlstate,
					   PQresultErrorMessage(res));
		}
		else if (strstr(step, "checkout_xact") != NULL)
		{
			snprintf(lease, sizeof(lease), "%s", PQgetvalue(res, 0, 0));
			s->model.leased[0]++;
		}
		else if (strstr(step, "pgpool.query") != NULL)
		{
			s->model.leased[0]++;
			s->model.statements[0]++;
		}
		PQclear(res);
		if (lease[0] != '\0')
		{
			char		held[32];

			memcpy(held, s->lease, sizeof(held));
			memcpy(s->lease, lease, sizeof(lease));
			request_value(s, true);
			if (s->conn != conn)
				return;			/* the session and its leases have ended */
			memcpy(s->lease, held, sizeof(held));
		}
	}
	s->activity = end;
	(void) simply(s, NULL, end);
	roll_back(s);
}

/*
 * A transaction with connections of several servers: in any order, so that sessions
 * wait for each other, or in the order of their names, so that none does.
 */
static void
cross(Session *s)
{
	static const char *const names[] = {"d1", "d2", "d3"};
	int			least = 0;
	bool		order = in_order;
	PGconn	   *conn = s->conn;

	s->activity = "connections of several servers";
	s->pool = LOCK_POOL;		/* not compared with the model */
	if (!simply(s, NULL, "BEGIN"))
		return;
	for (int i = 2 + roll(s, 2); i > 0 && s->conn == conn; i--)
	{
		char		lease[32];
		int			which = order ? least : (int) roll(s, 3);
		const char *values[1] = {names[which]};
		PGresult   *res;

		least = which + 1;
		res = run(s, NULL, "SELECT pgpool.checkout_xact($1, '20 s')", 1, values);
		if (res == NULL)
			break;
		snprintf(lease, sizeof(lease), "%s", PQgetvalue(res, 0, 0));
		PQclear(res);
		values[0] = lease;
		res = run(s, NULL, "SELECT pgpool.exec($1::bigint, 'select 1')", 1, values);
		if (res == NULL)
			break;
		PQclear(res);
		if (roll(s, 4) == 0)
			usleep(roll(s, 2000));
		if (i == 1 && quiet)
			__atomic_add_fetch(&crossed, 1, __ATOMIC_RELAXED);
	}
	if (s->conn == conn)
		(void) simply(s, NULL, roll(s, 2) ? "COMMIT" : "ROLLBACK");
	roll_back(s);
}

/* --- foreign tables ----------------------------------------------------------- */

/*
 * In each schema, "accounts" and "tellers" have a row for each session, which only this
 * session changes; "history" has the changes.  In each committed state the sums of the
 * three are equal.  "numbers" has the numbers n up to NUMBERS with a text of n % 100
 * characters.  The Append of "all_numbers" is asynchronous.
 */
static const char *const banks[BANKS] = {"a", "d1", "d2", "d3"};

#define NUMBERS 3000

/* Run SQL with the name of a bank in the place of %1$s. */
static PGresult *
at_bank(Session *s, const char *expected, int bank, const char *sql, int n,
		const char *const *values)
{
	char		text[512];

	snprintf(text, sizeof(text), sql, banks[bank]);
	return run(s, expected, text, n, values);
}

/* The single value that SQL returns must be this one. */
static bool
bank_says(Session *s, const char *expected, int bank, const char *sql, int n,
		  const char *const *values, const char *value)
{
	PGresult   *res = at_bank(s, expected, bank, sql, n, values);
	bool		ok = res != NULL;

	if (ok && (PQntuples(res) != 1 || strcmp(PQgetvalue(res, 0, 0), value) != 0))
		fail(s, "%s of %s is \"%s\" instead of %s", sql, banks[bank],
			 PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "(no row)", value);
	s->values += ok;
	PQclear(res);
	return ok;
}

static void
read_balance(Session *s, const char *expected, int bank, Balance *own)
{
	char		number[32];
	const char *values[1] = {number};
	PGresult   *res;

	snprintf(number, sizeof(number), "%d", s->number);
	res = at_bank(s, expected, bank, "SELECT balance FROM %1$s.accounts WHERE id = $1", 1, values);
	if (res != NULL)
	{
		long		amount = PQntuples(res) == 1 ? atol(PQgetvalue(res, 0, 0)) : -1;

		if (PQntuples(res) != 1 || (own->known && amount != own->amount))
			fail(s, "%s has balance %ld instead of %ld", banks[bank], amount, own->amount);
		own->amount = amount;
		own->known = true;
		s->values++;
	}
	PQclear(res);
}

/* Change the session's account and teller, and record it in the history. */
static void
change_balance(Session *s, const char *expected, int bank, Balance *own)
{
	static const char *const updates[] = {
		/* pushed down, and row by row */
		"UPDATE %1$s.accounts SET balance = balance + $2 WHERE id = $1 RETURNING balance",
		"UPDATE %1$s.accounts SET balance = balance + $2 WHERE id = $1 AND random() >= 0 RETURNING balance",
	};
	char		number[32];
	char		delta[32];
	char		sum[32];
	const char *values[2] = {number, delta};
	long		by = (long) roll(s, 2001) - 1000;
	PGresult   *res;

	if (!own->known)
		read_balance(s, expected, bank, own);
	if (PQtransactionStatus(s->conn) != PQTRANS_INTRANS)
		return;
	snprintf(number, sizeof(number), "%d", s->number);
	snprintf(delta, sizeof(delta), "%ld", by);
	snprintf(sum, sizeof(sum), "%ld", own->amount + by);
	if (!bank_says(s, expected, bank, updates[roll(s, 2)], 2, values, sum))
		return;
	own->amount += by;
	res = at_bank(s, expected, bank, "UPDATE %1$s.tellers SET balance = balance + $2 WHERE id = $1", 2, values);
	PQclear(res);
	if (res != NULL)
		PQclear(at_bank(s, expected, bank, "INSERT INTO %1$s.history VALUES ($1, $2)", 2, values));
}

/* Set the session's balance to 0, and delete its history. */
static void
clear_balance(Session *s, const char *expected, int bank, Balance *own)
{
	static const char *const steps[] = {
		"DELETE FROM %1$s.history WHERE id = $1",
		"UPDATE %1$s.accounts SET balance = 0 WHERE id = $1",
		"UPDATE %1$s.tellers SET balance = 0 WHERE id = $1 AND random() >= 0",
	};
	char		number[32];
	const char *values[1] = {number};

	snprintf(number, sizeof(number), "%d", s->number);
	for (int i = 0; i < 3; i++)
	{
		PGresult   *res = at_bank(s, expected, bank, steps[i], 1, values);

		PQclear(res);
		if (res == NULL)
			return;
	}
	*own = (Balance) {true, 0};
}

/* Fetch rows, of which the first one must have number "first"; return the next number. */
static int
fetch_numbers(Session *s, const char *expected, int first, int count)
{
	char		sql[64];
	PGresult   *res;

	snprintf(sql, sizeof(sql), "FETCH %d FROM c%ld", count, s->ncursors);
	res = run(s, expected, sql, 0, NULL);
	if (res == NULL)
		return -1;
	if (PQntuples(res) != (first + count > NUMBERS ? NUMBERS + 1 - first : count))
		fail(s, "%s from %d on: %d rows", sql, first, PQntuples(res));
	for (int i = 0; i < PQntuples(res); i++)
		if (atoi(PQgetvalue(res, i, 0)) != first + i ||
			PQgetlength(res, i, 1) != (first + i) % 100)
			fail(s, "row %d is %s with %d characters", first + i, PQgetvalue(res, i, 0), PQgetlength(res, i, 1));
	first += PQntuples(res);
	s->values++;
	PQclear(res);
	return first;
}

/* A cursor that is not always read to its end, with another statement in between. */
static void
read_cursor(Session *s, const char *expected, int bank, Balance *own)
{
	char		sql[256];
	int			next = 1 + roll(s, NUMBERS);

	snprintf(sql, sizeof(sql), "DECLARE c%ld CURSOR FOR SELECT n, t FROM %s.numbers WHERE n >= %d ORDER BY n",
			 ++s->ncursors, banks[bank], next);
	if (!simply(s, expected, sql))
		return;
	for (int i = roll(s, 4); i > 0; i--)
	{
		next = fetch_numbers(s, expected, next, 1 + roll(s, 300));
		if (next < 0)
			return;
		if (roll(s, 2))
			read_balance(s, expected, bank, own);
		if (PQtransactionStatus(s->conn) != PQTRANS_INTRANS)
			return;
	}
	snprintf(sql, sizeof(sql), "CLOSE c%ld", s->ncursors);
	if (roll(s, 2))
		(void) simply(s, expected, sql);
}

/* One statement or several on one server, at times within a savepoint. */
static void
bank_step(Session *s, const char *expected, int bank, Balance *own)
{
	Balance		before = *own;
	PGconn	   *conn = s->conn;
	bool		saved = roll(s, 3) == 0;
	char		number[32];
	const char *values[1] = {number};

	if (saved && !simply(s, expected, "SAVEPOINT a"))
		return;
	snprintf(number, sizeof(number), "%d", s->number);
	switch (roll(s, saved ? 9 : 8))
	{
		case 0:
		case 1:
		case 2:
			change_balance(s, expected, bank, own);
			break;
		case 3:
			clear_balance(s, expected, bank, own);
			break;
		case 4:
			bank_says(s, expected, bank, "SELECT (SELECT sum(balance) FROM %1$s.accounts) = sum(balance)"
					  " AND sum(balance) = (SELECT coalesce(sum(delta), 0) FROM %1$s.history) FROM %1$s.tellers", 0, NULL, "t");
			break;
		case 5:
		case 6:
			read_cursor(s, expected, bank, own);
			break;
		case 7:
			read_balance(s, expected, bank, own);
			break;
		default:
			if (at_bank(s, expected != NULL ? "22012 40001" : "22012", bank, "SELECT balance FROM %1$s.accounts WHERE id = $1 AND 1 / (balance - balance) = 1", 1, values) != NULL)
				fail(s, "1 / 0 is something");
			break;
	}
	if (!saved || s->conn != conn)
		return;
	if (PQtransactionStatus(conn) == PQTRANS_INERROR || roll(s, 2))
	{
		*own = before;
		(void) simply(s, expected, "ROLLBACK TO SAVEPOINT a");
	}
	if (s->conn == conn && PQtransactionStatus(conn) == PQTRANS_INTRANS)
		(void) simply(s, expected, "RELEASE SAVEPOINT a");
}

/*
 * A transaction on foreign tables of several servers, used in any order or in the order
 * of their names.
 */
static void
bank_transaction(Session *s)
{
	Balance		own[BANKS];
	bool		order = in_order;
	bool		in_quiet = quiet;
	bool		serializable = roll(s, 8) == 0;
	const char *expected = serializable ? "40001" : NULL;
	PGconn	   *conn = s->conn;
	int			least = 0;

	s->activity = "transaction on foreign tables";
	s->pool = LOCK_POOL;		/* not compared with the model */
	memcpy(own, s->committed, sizeof(own));
	if (!simply(s, NULL, serializable ? "BEGIN ISOLATION LEVEL SERIALIZABLE" : "BEGIN"))
		return;
	for (int i = 1 + roll(s, 6); i > 0 && least < BANKS; i--)
	{
		int			bank = order ? least + roll(s, BANKS - least) : roll(s, BANKS);

		least = bank;
		bank_step(s, expected, bank, &own[bank]);
		if (s->conn != conn || PQtransactionStatus(conn) != PQTRANS_INTRANS)
			break;
	}
	if (s->conn == conn && PQtransactionStatus(conn) == PQTRANS_INTRANS && roll(s, 4) > 0)
	{
		bool		done = simply(s, expected, "COMMIT");

		/* if a server refuses the commit, others may have committed */
		if (!done)
			memset(s->committed, 0, sizeof(s->committed));
		else if (in_quiet)
		{
			memcpy(s->committed, own, sizeof(own));
			__atomic_add_fetch(&banked, 1, __ATOMIC_RELAXED);
		}
	}
	roll_back(s);
}

/* A single statement on foreign tables. */
static void
bank_statement(Session *s)
{
	char		first[32];
	char		count[32];
	const char *values[1] = {first};
	int			bank = roll(s, BANKS);
	int			n = 1 + roll(s, NUMBERS);

	s->activity = "statement on foreign tables";
	s->pool = LOCK_POOL;
	snprintf(first, sizeof(first), "%d", n);
	snprintf(count, sizeof(count), "%d", NUMBERS + 1 - n);
	switch (roll(s, 4))
	{
		case 0:
			(void) bank_says(s, NULL, bank, "SELECT count(*) FROM %1$s.numbers WHERE n >= $1", 1, values, count);
			break;
		case 1:
			(void) bank_says(s, NULL, bank, "SELECT count(*) FROM (SELECT n FROM %1$s.numbers WHERE n >= $1 AND length(t) = n %% 100 OFFSET 0) AS a", 1, values, count);
			break;
		case 2:
			(void) bank_says(s, NULL, bank, "SELECT n FROM %1$s.numbers WHERE n = $1", 1, values, first);
			break;
		default:
			snprintf(count, sizeof(count), "%d", BANKS * (NUMBERS + 1 - n));
			(void) bank_says(s, NULL, bank, "SELECT count(*) FROM all_numbers WHERE n >= $1 AND length(t) = n %% 100", 1, values, count);
			break;
	}
}

/* --- other operations --------------------------------------------------------- */

/* A long statement that is cancelled, waited for, or left running. */
static void
slow(Session *s)
{
	const char *values[1] = {s->lease};
	PGresult   *res;

	int			which = roll(s, 4);
	bool		finished = true;
	bool		in_time;

	s->pool = 0;
	s->cancels = which == 0 || which == 2;
	switch (which)
	{
		case 0:
			s->activity = "statement_timeout";
			if (!simply(s, NULL, "SET statement_timeout = '15ms'"))
				return;
			res = run(s, NULL, "SELECT pgpool.exec($1::bigint, 'select pg_sleep(0.05)')", 1, values);
			in_time = res != NULL;
			PQclear(res);
			for (int i = 0; i < 10 && !simply(s, NULL, "RESET statement_timeout"); i++)
				;

			/* it may time out before it is sent; then it does not count */
			if (in_time)
				s->model.statements[0]++;
			else
				s->model.unsure[0]++;
			break;
		case 1:
			s->activity = "send and result";
			finished = false;
			res = run(s, NULL, "SELECT pgpool.send($1::bigint, 'select 41 + 1 from pg_sleep(0.01)')", 1, values);
			if (res == NULL || s->lease[0] == '\0')
				break;
			s->model.statements[0]++;
			PQclear(res);
			res = run(s, "55000", "SELECT a FROM pgpool.result($1::bigint) AS t(a int)", 1, values);
			if (res != NULL && (PQntuples(res) != 1 || strcmp(PQgetvalue(res, 0, 0), "42") != 0))
				fail(s, "result is %s", PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "none");
			finished = res != NULL;
			PQclear(res);
			break;
		case 2:
			s->activity = "send and cancel";
			finished = false;
			res = run(s, NULL, "SELECT pgpool.send($1::bigint, 'select pg_sleep(1)')", 1, values);
			if (res == NULL || s->lease[0] == '\0')
				break;
			s->model.statements[0]++;
			PQclear(res);
			res = run(s, "55000", "SELECT pgpool.cancel($1::bigint)", 1, values);
			PQclear(res);
			if (roll(s, 2) == 0 || s->lease[0] == '\0')
				break;			/* returned in flight */
			res = run(s, "55000", "SELECT a FROM pgpool.result($1::bigint) AS t(a text)", 1, values);
			PQclear(res);
			break;
		default:
			s->activity = "many rows";
			res = run(s, NULL, "SELECT count(*), sum(a), max(length(b)) FROM pgpool.query($1::bigint, 'select g, repeat(''x'', g % 100) from generate_series(1, 3000) g') AS t(a int, b text)", 1, values);
			if (res != NULL && (strcmp(PQgetvalue(res, 0, 0), "3000") != 0 ||
								strcmp(PQgetvalue(res, 0, 1), "4501500") != 0 ||
								strcmp(PQgetvalue(res, 0, 2), "99") != 0))
				fail(s, "rows are %s, %s, %s", PQgetvalue(res, 0, 0),
					 PQgetvalue(res, 0, 1), PQgetvalue(res, 0, 2));
			s->model.statements[0]++;
			PQclear(res);
			break;
	}
	s->cancels = false;

	/* a statement in flight prevents all operations but a checkin */
	if (!finished && s->lease[0] != '\0')
		return_lease(s, roll(s, 2) ? "SELECT pgpool.checkin($1::bigint)" :
			 "SELECT pgpool.discard($1::bigint)");
}

/* Operations that leave a session in a state that no other lease may see. */
static void
soil(Session *s)
{
	static const char *const how[] = {
		"SELECT pgpool.exec($1::bigint, 'begin')",
		"SELECT pgpool.exec($1::bigint, 'create temp table if not exists soil (a int)')",
		"SELECT pgpool.exec($1::bigint, 'set role remote_app; set extra_float_digits = 0; set enable_seqscan = off')",
		"SELECT pgpool.exec($1::bigint, 'listen soil; notify soil; deallocate all; prepare p as select 1')",
		"SELECT pgpool.exec($1::bigint, 'select 1/0')",
		"SELECT pgpool.exec($1::bigint, 'copy (select 1) to stdout')",
	};
	uint32_t	which = roll(s, 6);
	const char *values[1] = {s->lease};

	s->activity = how[which];
	s->pool = 0;
	s->model.statements[0]++;
	PQclear(run(s, which == 4 ? "22012" : which == 5 ? "0A000" : "25P02",
				how[which], 1, values));
	/* these prevent further operations, so the lease ends here */
	if (which != 2 && which != 4 && s->lease[0] != '\0')
		return_lease(s, "SELECT pgpool.checkin($1::bigint)");
}

static void
one_operation(Session *s)
{
	uint32_t	what = roll(s, 100);

	s->operations++;
	if (few && s->number >= FEW)
	{
		if (what < 20)
			cross(s);
		else if (what < 40)
			bank_transaction(s);
		else if (what < 50)
			bank_statement(s);
		else
			call(s);
		return;
	}
	if (s->lease[0] == '\0')
	{
		if (what < 27)
			checkout(s);
		else if (what < 35)
			cross(s);
		else if (what < 44)
			bank_transaction(s);
		else if (what < 50)
			bank_statement(s);
		else if (what < 63)
			request_value(s, false);
		else if (what < 80)
			call(s);
		else if (what < 84)
			fan_out(s);
		else if (what < 90)
			lock(s);
		else
			transaction(s);
		return;
	}
	if (what < 32)
		request_value(s, true);
	else if (what < 35)
		notify(s);
	else if (what < 50)
		mark(s);
	else if (what < 56)
		slow(s);
	else if (what < 60)
		soil(s);
	else if (what < 63)
		request_value(s, false);	/* beside the lease */
	else if (what < 67)
		transaction(s);
	else if (what < 69)
		call(s);				/* of another pool */
	else if (what < 92)
		return_lease(s, "SELECT pgpool.checkin($1::bigint)");
	else if (what < 96)
		return_lease(s, "SELECT pgpool.discard($1::bigint)");
	else
	{
		bool		discard = quiet && roll(s, 2);

		s->activity = discard ? "DISCARD ALL" : "SELECT pgpool.checkin_all()";
		if (simply(s, NULL, s->activity))
			s->lease[0] = '\0';
	}
}

static void *
session_main(void *arg)
{
	Session    *s = arg;

	reconnect(s);
	for (;;)
	{
		if (pausing)
		{
			/* at the first one sessions hold leases, at the second one none may be left */
			pthread_barrier_wait(&barrier);
			pthread_barrier_wait(&barrier);
			while (s->lease[0] != '\0')
				return_lease(s, "SELECT pgpool.checkin($1::bigint)");
			for (int i = 0; i < 100 && !simply(s, "55000", "SELECT pgpool.checkin_all()"); i++)
				;
			memset(s->committed, 0, sizeof(s->committed));
			pthread_barrier_wait(&barrier);
			pthread_barrier_wait(&barrier);
			if (stop)
				break;
		}
		one_operation(s);
	}
	PQfinish(s->conn);
	return NULL;
}

/* --- the proxy ------------------------------------------------------------- */

typedef struct Link
{
	int			fd[2];			/* 0 the pool's, 1 the remote's; -1: none */
	int			left;			/* bytes of the remote until its end; -1: all */
} Link;

static Link links[LINKS];

static void
end_link(Link *link, bool reset)
{
	struct linger linger = {1, 0};

	for (int i = 0; i < 2; i++)
	{
		if (link->fd[i] < 0)
			continue;
		if (reset)
			setsockopt(link->fd[i], SOL_SOCKET, SO_LINGER, &linger,
					   sizeof(linger));
		close(link->fd[i]);
		link->fd[i] = -1;
	}
}

/* Blocking writes: a peer that does not read delays all links for a while. */
static bool
pass_on(Link *link, int side)
{
	char		buffer[32768];
	int			from = link->fd[side];
	int			to = link->fd[1 - side];
	ssize_t		n = recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	if (side == 1 && link->left >= 0)
	{
		if (n > link->left)
		{
			(void) send(to, buffer, link->left, MSG_NOSIGNAL);
			return false;
		}
		link->left -= n;
	}
	for (ssize_t sent = 0; sent < n;)
	{
		ssize_t		m = send(to, buffer + sent, n - sent, MSG_NOSIGNAL);

		if (m <= 0)
			return false;
		sent += m;
	}
	return true;
}

static void *
proxy_main(void *arg)
{
	int			listener = *(int *) arg;
	struct pollfd polls[1 + 2 * LINKS];

	for (int i = 0; i < LINKS; i++)
		links[i].fd[0] = links[i].fd[1] = -1;
	for (;;)
	{
		int			n = 1;
		Link	   *whose[1 + 2 * LINKS];
		int			side[1 + 2 * LINKS];

		if (cutting != 0)
		{
			for (int i = 0; i < LINKS; i++)
				if (links[i].fd[0] >= 0)
					end_link(&links[i], cutting == 1);
			cutting = 0;
		}
		if (spoil_at >= 0)
		{
			for (int i = 0; i < LINKS; i++)
				links[i].left = spoil_at;
			spoil_at = -1;
		}
		if (heal)
		{
			for (int i = 0; i < LINKS; i++)
				links[i].left = -1;
			heal = false;
		}
		if (frozen)
		{
			usleep(5000);
			continue;
		}
		polls[0].fd = listener;
		polls[0].events = POLLIN;
		for (int i = 0; i < LINKS; i++)
			for (int k = 0; k < 2 && links[i].fd[0] >= 0; k++)
			{
				polls[n].fd = links[i].fd[k];
				polls[n].events = POLLIN;
				whose[n] = &links[i];
				side[n++] = k;
			}
		if (poll(polls, n, 10) <= 0)
			continue;
		for (int i = 1; i < n; i++)
		{
			Link	   *link = whose[i];

			if (polls[i].revents == 0 || link->fd[0] < 0)
				continue;
			if (!pass_on(link, side[i]))
				end_link(link, false);
		}
		if (polls[0].revents & POLLIN)
		{
			struct sockaddr_in addr = {.sin_family = AF_INET,
				.sin_port = htons(remote_port),
			.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
			int			fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
			int			to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
			int			i = 0;

			while (i < LINKS && links[i].fd[0] >= 0)
				i++;
			if (fd < 0 || i == LINKS ||
				connect(to, (struct sockaddr *) &addr, sizeof(addr)) < 0)
			{
				if (fd >= 0)
					close(fd);
				close(to);
				continue;
			}
			links[i].left = -1;
			links[i].fd[0] = fd;
			links[i].fd[1] = to;
		}
	}
	return NULL;
}

static int
listen_at(int port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
		.sin_port = htons(port),.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int			fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int			on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *) &addr, sizeof(addr)) < 0 ||
		listen(fd, 128) < 0)
		fail(NULL, "port %d: %s", port, strerror(errno));
	return fd;
}

/* --- faults ------------------------------------------------------------------ */

#define LOCAL(text) ask(local, local_info, (text), answer, sizeof(answer))
#define REMOTE(text) ask(remote, remote_info, (text), answer, sizeof(answer))

/* The result of a query; "" if there is none. */
static void
ask(PGconn **conn, const char *info, const char *sql, char *answer, size_t size)
{
	PGresult   *res = PQexec(*conn, sql);

	answer[0] = '\0';
	if (PQresultStatus(res) == PGRES_TUPLES_OK && PQntuples(res) > 0)
		snprintf(answer, size, "%s", PQgetvalue(res, 0, 0));
	else if (PQresultStatus(res) == PGRES_FATAL_ERROR)
	{
		const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);

		snprintf(answer, size, "%s", PQresultErrorMessage(res));
		if (sqlstate != NULL && strncmp(sqlstate, "XX", 2) == 0)
			fail(NULL, "%s: %s", sql, answer);
	}
	PQclear(res);
	if (PQstatus(*conn) != CONNECTION_OK)
	{
		PQfinish(*conn);
		*conn = connect_to(info);
		PQsetNoticeReceiver(*conn, ignore_notice, NULL);
	}
}

/*
 * Each kind and its weight: a soak test has fewer faults that affect a single session
 * only.
 */
typedef enum Kind
{
	CANCEL,
	TERMINATE,
	REVOKE_LEASE,
	KILL_REMOTE,
	PAUSE,
	RECONNECT,
	ALTER,
	END_WORKER,
	CUT,
	FREEZE,
	DRAIN,
	RESTART_REMOTE,
	KINDS
} Kind;

static const struct
{
	const char *name;
	int			stress;
	int			soak;
} kinds[KINDS] = {
	[CANCEL] = {"cancels", 30, 10},
	[TERMINATE] = {"terminated", 15, 15},
	[REVOKE_LEASE] = {"revoked", 15, 15},
	[KILL_REMOTE] = {"remote backends killed", 10, 10},
	[PAUSE] = {"pauses", 5, 5},
	[RECONNECT] = {"reconnects", 5, 5},
	[ALTER] = {"alterations", 5, 5},
	[END_WORKER] = {"worker ends", 3, 3},
	[CUT] = {"cuts", 4, 4},
	[FREEZE] = {"freezes", 4, 4},
	[DRAIN] = {"drains", 2, 2},
	[RESTART_REMOTE] = {"remote restarts", 2, 2},
};
static long faults[KINDS];		/* that had a target */
static Kind order[KINDS];		/* of the first faults */

#define ALL_DEALT 40			/* number of faults after which each kind has occurred */

static void
shuffle_kinds(Session *s)
{
	for (int i = 0; i < KINDS; i++)
	{
		int			k = roll(s, i + 1);

		order[i] = order[k];
		order[k] = i;
	}
}

static bool
each_kind_came(void)
{
	for (int i = 0; i < KINDS; i++)
		if (faults[i] == 0)
			return false;
	return true;
}

/*
 * Choose a kind: first each kind once, then by weight.  Every other time choose one that
 * has not occurred yet, because it found no target before.
 */
static Kind
deal(Session *s)
{
	static int	turn = 0;
	int			sum = 0;
	int			which;

	if (turn < KINDS)
		return order[turn++];
	if (roll(s, 2) == 0)
		for (int i = 0; i < KINDS; i++)
			if (faults[order[i]] == 0)
				return order[i];
	for (int i = 0; i < KINDS; i++)
		sum += fault_each > 0 ? kinds[i].soak : kinds[i].stress;
	which = roll(s, sum);
	for (int i = 0;; i++)
	{
		which -= fault_each > 0 ? kinds[i].soak : kinds[i].stress;
		if (which < 0)
			return i;
	}
}

static unsigned size_of_s = 5;

/* A command that changes nothing keeps the connections. */
static void
alter_s(PGconn **local, unsigned new_size)
{
	char		sql[256];
	char		answer[1024];

	size_of_s = new_size;
	snprintf(sql, sizeof(sql), "ALTER SERVER s OPTIONS (SET pool_size '%u')", new_size);
	LOCAL(sql);
	if (answer[0] != '\0')
		fail(NULL, "%s: %s", sql, answer);
}

/*
 * In a soak test the worker and some sessions stay from the first fifth of the time on:
 * faults that end them have occurred often by then, and slow leaks must become visible.
 */
#define SPARED 7				/* the first ones of the sessions */

static double spare_from = 0;	/* 0: none */

static bool
sparing(void)
{
	return spare_from > 0 && now() >= spare_from && each_kind_came();
}

/* A session that is not spared. */
static void
terminate_one(PGconn **local, char *answer, size_t size)
{
	char		sql[512] = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
		" WHERE application_name = 'stress' AND pid NOT IN (pg_backend_pid()";

	for (int i = 0; i < SPARED && sparing(); i++)
	{
		pthread_mutex_lock(&conn_mutex[i]);
		sprintf(sql + strlen(sql), ", %d", PQbackendPID(sessions[i].conn));
		pthread_mutex_unlock(&conn_mutex[i]);
	}
	strcat(sql, ") ORDER BY random() LIMIT 1");
	ask(local, local_info, sql, answer, size);
}

static const char *
any_pool(Session *s)
{
	static const char *const names[] = {"s", "c", "a", "d1"};

	return names[roll(s, 4)];
}

static void
resume(PGconn **local)
{
	char		answer[1024];

	LOCAL("SELECT pgpool.resume(name) FROM unnest('{s,c,a,d1}'::text[]) AS name");
}

static void
one_fault(Session *s, PGconn **local, PGconn **remote)
{
	char		sql[512];
	char		answer[1024];
	int			victim = roll(s, SESSIONS);
	Kind		kind = deal(s);
	bool		hit = true;

	while (kind == END_WORKER && sparing())
		kind = deal(s);
	switch (kind)
	{
		case CANCEL:
			{
				char		error[256];
				PGcancel   *cancel;

				pthread_mutex_lock(&conn_mutex[victim]);
				cancel = sessions[victim].conn ? PQgetCancel(sessions[victim].conn) : NULL;
				pthread_mutex_unlock(&conn_mutex[victim]);
				hit = cancel != NULL && PQcancel(cancel, error, sizeof(error));
				PQfreeCancel(cancel);
				break;
			}
		case TERMINATE:
			terminate_one(local, answer, sizeof(answer));
			hit = strcmp(answer, "t") == 0;
			break;
		case REVOKE_LEASE:
			LOCAL("SELECT pgpool.terminate(lease) FROM pgpool.leases ORDER BY random() LIMIT 1");
			hit = strcmp(answer, "t") == 0;
			break;
		case KILL_REMOTE:
			REMOTE("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_app' ORDER BY random() LIMIT 1");
			hit = strcmp(answer, "t") == 0;
			break;
		case PAUSE:
			snprintf(sql, sizeof(sql), "SELECT pgpool.pause('%s')", any_pool(s));
			LOCAL(sql);
			usleep(roll(s, 100 * 1000));
			resume(local);
			break;
		case RECONNECT:
			snprintf(sql, sizeof(sql), "SELECT pgpool.reconnect('%s')", any_pool(s));
			LOCAL(sql);
			break;
		case ALTER:
			if (roll(s, 3) == 0)
			{
				snprintf(sql, sizeof(sql), "ALTER SERVER c OPTIONS (SET pool_size '%u')",
						 1 + roll(s, 3));
				LOCAL(sql);
				if (answer[0] != '\0')
					fail(NULL, "%s: %s", sql, answer);
			}
			else
			{
				unsigned	new_size = 1 + roll(s, 8);

				alter_s(local, new_size);
			}
			break;
		case END_WORKER:
			LOCAL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'");
			hit = strcmp(answer, "t") == 0;
			break;
		case CUT:
			if (roll(s, 2) == 0)
				spoil_at = roll(s, 1000);	/* within some message */
			else
				cutting = 1 + roll(s, 2);
			break;
		case FREEZE:
			frozen = true;
			usleep(roll(s, (fault_each > 0 ? 3000 : 300) * 1000));
			frozen = false;
			break;
		case DRAIN:
			snprintf(sql, sizeof(sql), "SELECT pgpool.drain('%s', '100 ms')", any_pool(s));
			LOCAL(sql);
			resume(local);
			break;
		case RESTART_REMOTE:
			if (system(restart_command) != 0)
				fail(NULL, "the remote does not restart");
			break;
		case KINDS:
			break;
	}
	faults[kind] += hit;
}

/* --- at the barrier ----------------------------------------------------------- */

static void
must_become(PGconn **local, const char *what, const char *sql)
{
	char		answer[1024];
	double		until = now() + 60;

	do
	{
		LOCAL(sql);
		if (strcmp(answer, "t") == 0)
			return;
		usleep(20 * 1000);
	} while (now() < until);
	fail(NULL, "%s: %s", what, answer);
}

/*
 * The number of remote sessions must be that of the pools.  The two are read at
 * different instants, between which an overflow connection may have closed.
 */
static void
sessions_agree(PGconn **local, PGconn **remote)
{
	char		answer[1024];
	char		number[32];

	for (double until = now() + 60;; usleep(20 * 1000))
	{
		LOCAL("SELECT count(*) FROM pgpool.connections WHERE server <> 'l'");
		snprintf(number, sizeof(number), "%.30s", answer);
		REMOTE("SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'");
		if (strcmp(answer, number) == 0)
			return;
		if (now() > until)
			fail(NULL, "the pool has %s connections, the remote %s sessions", number, answer);
	}
}

static void
check(PGconn **local, PGconn **remote)
{
	must_become(local, "leases are left",
				"SELECT count(*) = 0 FROM pgpool.leases");
	must_become(local, "waiters are left",
				"SELECT count(*) = 0 FROM pgpool.waiters");
	must_become(local, "the invariants do not hold",
				"SELECT pgpool.check_invariants() IS NOT NULL");
	must_become(local, "the counters do not add up",
				"SELECT count(*) = 0 FROM pgpool.stats s JOIN pgpool.pools p USING (pool_id),"
				" LATERAL (SELECT count(*) AS open FROM pgpool.connections c"
				"  WHERE c.pool_id = p.pool_id AND c.opened_at IS NOT NULL) o"
				" WHERE s.checkouts <> s.checkins + s.reclaimed + s.retried"
				"  + s.terminated + s.lease_timeouts + p.leased"
				" OR s.waited <> s.granted + s.timeouts + s.cancelled + s.failed + p.waiters"
				" OR s.connects <> s.closed_idle + s.closed_lifetime + s.closed_overflow"
				"  + s.closed_evicted + s.closed_reset + s.closed_broken + s.closed_stale"
				"  + s.closed_with_lease + o.open");
	must_become(local, "connections are stuck between two states",
				"SELECT count(*) = 0 FROM pgpool.connections WHERE state NOT IN ('idle')");

	sessions_agree(local, remote);
	for (int i = 0; i < BANKS; i++)
	{
		char		sql[512];

		snprintf(sql, sizeof(sql), "SELECT (SELECT sum(balance) FROM %1$s.accounts) = sum(balance)"
				 " AND sum(balance) = (SELECT coalesce(sum(delta), 0) FROM %1$s.history) FROM %1$s.tellers", banks[i]);
		must_become(local, "the sums of the foreign tables do not agree", sql);
	}
}

/* --- the model ---------------------------------------------------------------- */

static const char *const servers[POOLS] = {"s", "c"};
static long before[POOLS][8];
static long pipelined;			/* in quiet rounds */

/* The counters of the pools: checkouts, timeouts, .. */
static void
read_counters(PGconn **local, int pool, long *counters)
{
	char		sql[1024];
	char		answer[1024];

	snprintf(sql, sizeof(sql), "SELECT concat_ws(' ', sum(checkouts - retried),"
			 " sum(timeouts), sum(statements), sum(errors),"
			 " sum(cancelled + failed + terminated + lease_timeouts), sum(granted), sum(pipelined),"
			 " sum(retried))"
			 " FROM pgpool.stats WHERE server = '%s'", servers[pool]);
	LOCAL(sql);
	if (sscanf(answer, "%ld %ld %ld %ld %ld %ld %ld %ld", &counters[0], &counters[1],
			   &counters[2], &counters[3], &counters[4], &counters[5],
			   &counters[6], &counters[7]) != 8)
		fail(NULL, "no counters of %s: %s", servers[pool], answer);
}

/*
 * Begin a quiet round: wait until the pools work again, and start the counts.  In every
 * other one few sessions use "s".  No session finds the state of an earlier lease.
 */
static void
begin_quiet(PGconn **local)
{
	static int	quiet_rounds = 0;

	few = quiet_rounds++ % 2 == 0;
	alter_s(local, few ? FEW : size_of_s);

	/* a fault with a delayed effect would affect the quiet round */
	heal = true;
	while (heal)
		usleep(1000);
	must_become(local, "the pool does not work again",
				"SELECT pgpool.exec('s', 'select 1') = 1 AND pgpool.exec('c', 'select 1') = 1"
				" AND pgpool.exec('l', 'select 1') = 1 AND pgpool.exec('d1', 'select 1') = 1"
				" AND pgpool.exec('d2', 'select 1') = 1 AND pgpool.exec('d3', 'select 1') = 1"
				" AND pgpool.exec('a', 'select 1') = 1");
	must_become(local, "connections are stuck between two states",
				"SELECT count(*) = 0 FROM pgpool.connections WHERE state NOT IN ('idle')");
	for (int pool = 0; pool < POOLS; pool++)
		read_counters(local, pool, before[pool]);
	for (int i = 0; i < SESSIONS; i++)
		memset(&sessions[i].model, 0, sizeof(Model));
	in_order = few;
	quiet = true;
}

/* While all are idle: compare the leases of the model with the view. */
static void
check_holders(PGconn **local)
{
	char		sql[SESSIONS * 48 + 512] = "WITH held(pid, lease) AS (VALUES (0, 0::bigint)";
	char		answer[1024];

	for (int i = 0; i < SESSIONS; i++)
		if (sessions[i].lease[0] != '\0')
			sprintf(sql + strlen(sql), ", (%d, %s::bigint)",
					PQbackendPID(sessions[i].conn), sessions[i].lease);
	strcat(sql, "), leased(pid, lease) AS (SELECT pid, lease FROM pgpool.leases UNION ALL VALUES (0, 0::bigint))"
		   " SELECT string_agg(concat_ws(' ', pid, lease), ', ') FROM"
		   " ((TABLE held EXCEPT ALL TABLE leased) UNION ALL (TABLE leased EXCEPT ALL TABLE held)) AS d");
	LOCAL(sql);
	if (answer[0] != '\0')
		fail(NULL, "leases (session, lease) that only the model has, or only the pool: %s", answer);
}

/* All leases are returned: compare the counters with the operations of the sessions. */
static void
check_model(PGconn **local)
{
	for (int pool = 0; pool < POOLS; pool++)
	{
		long		now[8];
		Model		m = {0};

		read_counters(local, pool, now);
		for (int i = 0; i < 8; i++)
			now[i] -= before[pool][i];
		for (int i = 0; i < SESSIONS; i++)
		{
			m.leased[pool] += sessions[i].model.leased[pool];
			m.unsure[pool] += sessions[i].model.unsure[pool];
			m.late[pool] += sessions[i].model.late[pool];
			m.none_now[pool] += sessions[i].model.none_now[pool];
			m.statements[pool] += sessions[i].model.statements[pool];
			m.not_ready[pool] += sessions[i].model.not_ready[pool];
			m.failed[pool] += sessions[i].model.failed[pool];
			m.victims[pool] += sessions[i].model.victims[pool];
		}
		pipelined += now[6];
		not_ready += m.not_ready[pool];

		/*
		 * A checkout without wait may wait for a test that is under way.  A checkout
		 * that times out after the grant, because the connection is not ready yet,
		 * counts as granted.  Its lease counts as retried, as do leases whose
		 * connections prove dead.
		 */
		if (now[0] != m.leased[pool] ||
			now[1] < m.late[pool] || now[1] > m.late[pool] + m.none_now[pool] ||
			now[7] < m.not_ready[pool] || now[2] < m.statements[pool] ||
			now[2] > m.statements[pool] + m.unsure[pool] ||
			(pool == 1 && now[3] != m.failed[pool]) ||
			now[4] != m.victims[pool] || now[6] > now[5] ||
			(pool == 0 && now[6] > now[2]))
			fail(NULL, "pool %s counts %ld leases, %ld timeouts, %ld retried, %ld statements,"
				 " %ld errors, %ld cancelled or failed, %ld granted, %ld pipelined; the sessions had %ld,"
				 " %ld (and %ld without waiting), %ld that were not ready, %ld (and %ld that may have been sent),"
				 " %ld, %ld", servers[pool], now[0],
				 now[1], now[7], now[2], now[3], now[4], now[5], now[6], m.leased[pool],
				 m.late[pool], m.none_now[pool], m.not_ready[pool], m.statements[pool], m.unsure[pool],
				 m.failed[pool], m.victims[pool]);
	}
}

/* --- resources that must not grow-------------------------------------------------- */

static Series series[] = {
	{.what = "memory of the worker, kB",.slack = 512},
	{.what = "its descriptors beside connections",.slack = 1},
	{.what = "memory of a session, kB",.slack = 512},
	{.what = "memory of the largest one, kB",.slack = 2048},
	/* sockets are cached for each connection, and pool_size changes */
	{.what = "descriptors of a session",.slack = 14},
	/* includes the sessions of locks; varies with pool_size */
	{.what = "sessions at the remote server",.slack = 4},
};

/* Sample the sizes of all processes, while they are idle. */
static void
take_samples(PGconn **local, PGconn **remote)
{
	static Process processes[SESSIONS + 1];
	char		answer[1024];
	int			pid;
	long		connected;		/* descriptors of connections: one, of a relay three */
	long		at_remote;
	long		memory;
	long		sum = 0;
	long		most = 0;
	long		descriptors = 0;

	LOCAL("SELECT concat_ws(' ', pid, (SELECT sum(CASE transport WHEN 'relay' THEN 3 ELSE 1 END) FROM pgpool.connections)) FROM pgpool.workers");
	if (sscanf(answer, "%d %ld", &pid, &connected) == 2)
	{
		memory = memory_of(pid);
		add_sample(&series[0], memory);
		add_sample(&series[1], descriptors_of(pid) - connected);
		if (growth_of(&processes[SESSIONS], pid, memory) > PROCESS_GROWTH)
			fail(NULL, "the worker, process %d, has grown to %ld kB", pid, memory);
	}
	for (int i = 0; i < SESSIONS; i++)
	{
		pid = PQbackendPID(sessions[i].conn);
		memory = memory_of(pid);
		if (growth_of(&processes[i], pid, memory) > PROCESS_GROWTH)
			fail(&sessions[i], "its process %d has grown to %ld kB", pid, memory);
		sum += memory > 0 ? memory : 0;
		most = memory > most ? memory : most;
		descriptors += descriptors_of(pid);
	}
	add_sample(&series[2], sum / SESSIONS);
	add_sample(&series[3], most);
	add_sample(&series[4], descriptors / SESSIONS);
	REMOTE("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgpool_ext%'");
	at_remote = atol(answer);
	add_sample(&series[5], at_remote);
	printf("soak: worker %ld kB, sessions %ld kB, %ld descriptors, %ld sessions at the remote\n",
		   memory_of(processes[SESSIONS].pid), sum / SESSIONS, descriptors / SESSIONS, at_remote);
	fflush(stdout);
}

int
main(int argc, char **argv)
{
	pthread_t	threads[SESSIONS];
	pthread_t	proxy;
	Session		chaos = {0};
	PGconn	   *local;
	PGconn	   *remote;
	double		seconds;
	double		end;
	long		operations = 0;
	long		values = 0;
	long		refused = 0;
	int			rounds = 0;
	int			listener;

	if (argc != 8 && argc != 9)
	{
		fprintf(stderr, "usage: stress SEED SECONDS LOCAL REMOTE PROXY_PORT REMOTE_PORT RESTART [FAULT_EACH]\n");
		return 2;
	}
	seed = strtoul(argv[1], NULL, 10);
	seconds = atof(argv[2]);
	local_info = argv[3];
	remote_info = argv[4];
	proxy_port = atoi(argv[5]);
	remote_port = atoi(argv[6]);
	restart_command = argv[7];
	if (argc == 9)
	{
		fault_each = atof(argv[8]);
		spare_from = now() + (seconds / 5 < 3600 ? seconds / 5 : 3600);
	}
	printf("stress: seed %lu, %s seconds, %d sessions\n", seed, argv[2], SESSIONS);
	fflush(stdout);

	listener = listen_at(proxy_port);
	pthread_create(&proxy, NULL, proxy_main, &listener);
	local = connect_to(local_info);
	remote = connect_to(remote_info);
	PQsetNoticeReceiver(local, ignore_notice, NULL);
	PQclear(PQexec(local, "SET application_name = 'stress faults'"));

	must_become(&local, "there are no locks", "SELECT pgpool.lock_setup('l') IS NOT NULL");

	chaos.random = seed * 7919 + 17;
	shuffle_kinds(&chaos);
	pthread_barrier_init(&barrier, NULL, SESSIONS + 1);
	for (int i = 0; i < SESSIONS; i++)
	{
		sessions[i].number = i;
		sessions[i].random = (seed + 1) * 1000003 + i * 7907;
		pthread_mutex_init(&conn_mutex[i], NULL);
	}
	for (int i = 0; i < SESSIONS; i++)
		pthread_create(&threads[i], NULL, session_main, &sessions[i]);

	end = now() + seconds;
	for (;;)
	{
		double		round = now() + (quiet ? QUIET : fault_each > 0 ? 3 * fault_each : ROUGH);
		double		fault = now();

		while (now() < round && (quiet || now() < end))
		{
			if (quiet)
			{
				usleep(100 * 1000);
				continue;
			}
			usleep(10 * 1000 + roll(&chaos, 150 * 1000));
			if (now() < fault)
				continue;
			fault = now() + fault_each;
			one_fault(&chaos, &local, &remote);

			/* also while all run: a violated invariant is XX000 */
			if (roll(&chaos, 3) == 0)
			{
				char		answer[1024];

				ask(&local, local_info, "SELECT pgpool.check_invariants()",
					answer, sizeof(answer));
			}
		}
		pausing = true;
		pthread_barrier_wait(&barrier);
		if (quiet)
			check_holders(&local);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		check(&local, &remote);
		if (quiet)
			check_model(&local);
		if (quiet && fault_each > 0)
			take_samples(&local, &remote);
		rounds++;
		pausing = false;

		/* the last round is quiet */
		stop = quiet && now() >= end;
		if (quiet)
			quiet = few = in_order = false;
		else
			begin_quiet(&local);
		pthread_barrier_wait(&barrier);
		if (stop)
			break;
	}
	for (int i = 0; i < SESSIONS; i++)
	{
		pthread_join(threads[i], NULL);
		operations += sessions[i].operations;
		values += sessions[i].values;
		refused += sessions[i].refused;
	}
	printf("stress: %ld operations, %ld values, %ld refused, %d barriers\n",
		   operations, values, refused, rounds);
	printf("stress: in quiet rounds %ld pipelined, %ld granted and not ready in time, %ld locks\n",
		   pipelined, not_ready, locked);
	printf("stress: in quiet rounds %ld transactions with connections of several servers, and %ld deadlocks\n",
		   crossed, deadlocks);
	printf("stress: in quiet rounds %ld transactions on foreign tables\n", banked);
	if (banked < rounds)
		fail(NULL, "too few transactions used foreign tables");
	if (crossed < rounds)
		fail(NULL, "too few transactions had connections of several servers");
	if (seconds >= 60 && deadlocks == 0)
		fail(NULL, "no deadlock was detected");
	if (pipelined < 10L * rounds)
		fail(NULL, "too few statements were pipelined");
	if (values < 10L * rounds)
		fail(NULL, "too few values were compared");
	if (locked < rounds)
		fail(NULL, "too few locks were acquired");
	printf("stress: faults:");
	for (int i = 0; i < KINDS; i++)
		printf("%s %ld %s", i > 0 ? "," : "", faults[i], kinds[i].name);
	printf("\n");
	if (seconds >= 60 && seconds >= ALL_DEALT * fault_each && !each_kind_came())
		fail(NULL, "a kind of fault did not occur");
	if (fault_each > 0)
	{
		bool		bad = false;

		for (size_t i = 0; i < sizeof(series) / sizeof(series[0]); i++)
			bad |= grows(&series[i]);
		if (bad)
			fail(NULL, "something grows");
	}
	return 0;
}
