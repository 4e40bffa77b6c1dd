/*-------------------------------------------------------------------------
 *
 * sequences.c
 *	  Generated sequences of statements by sessions that share a connection, with
 *	  every answer checked; see ../README.md.
 *
 *	  sequences SEED SECONDS LOCAL REMOTE POOL ...
 *
 * LOCAL and REMOTE are conninfos of superusers.  kinds.h has the statements and their
 * answers.  Most of them contain a unique word, so the answer to another statement is
 * recognized.
 *
 * Each pool in turn has a round of episodes.  In an episode session 0 acquires a lease,
 * runs statements of all kinds by all functions, and returns it in one of several ways.
 * Meanwhile sessions 1 and 2 wait in the queue with one statement each, which the
 * previous session pipelines after the reset, or they use the connection afterwards.
 * Sessions 1 and 2 run witnesses: statements that never fail by themselves, so that any
 * error of them is a bug.  This part is reproduced by its seed.  In other rounds all
 * sessions run at once, in any order.
 *
 * The pool closes a connection whose stream is out of step, which has no other visible
 * effect.  So closed connections are counted, too: there must not be more than statements
 * that close one.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "libpq-fe.h"
#include "../threads.h"
#include "kinds.h"

#define SESSIONS 3
#define EPISODES 30				/* of a round */
#define OPERATIONS 60			/* of a session in a round in which all run at once */
#define LOG 20					/* operations of a session that a failure prints */
#define LONGEST 60				/* ticks of the watcher in one operation: a hang; less than
								 * the timeouts of the pools, which would end some hangs */
#define TEXT 1024

/* The function that runs a statement; the last five have a pool as argument. */
typedef enum Way
{
	EXEC, QUERY, QUERY_AS, SEND,
	CALL_EXEC, CALL_QUERY, CALL_QUERY_AS, FANOUT,
	WAYS
} Way;

static const char *const way_names[] = {
	"exec", "query", "query_as", "send",
	"call of exec", "call of query", "call of query_as", "fanout"
};

/* The way to end an endless statement. */
typedef enum Ender
{
	LOCAL_TIMEOUT, LOCAL_CANCEL, REMOTE_TIMEOUT, REMOTE_CANCEL, CANCEL, TERMINATE,
	ENDERS
} Ender;

typedef struct Statement
{
	const Kind *kind;
	Way			way;
	bool		extended;		/* else by the simple protocol */
	char		word[24];
	int			n;
	char		prepare[TEXT];
	char		sql[TEXT];
	char		answer[TEXT];
} Statement;

typedef struct Session
{
	int			number;
	uint64_t	random;
	PGconn	   *conn;
	const char *pool;
	char		lease[32];		/* empty: none */
	char		tx;				/* of the remote: I, T, E, or ? */
	bool		dead;			/* the lease's connection is lost, or may be */
	bool		surely;			/* the lease's connection is lost */
	bool		local;			/* within a local transaction */
	bool		aborted;		/* the local transaction has failed */
	char		log[LOG][300];
	int			nlog;
	volatile long operation;	/* number of the operation that runs; 0: none */
	char		sqlstate[6];
	char		message[400];
} Session;

static Session sessions[SESSIONS];
static Session observer;		/* waiters, counters */
static PGconn *remote;			/* ends statements; holds the lock on "locked" */
static const char *remote_info;
static const char *local_info;
static unsigned long seed;
static volatile long closes;	/* connections that may have been closed in this round */
static volatile long statements;
static volatile bool noisy;		/* settings of the remote change as well */
static volatile bool stop;
static long used[NKINDS][WAYS];

static void
fail(const Session *s, const char *format,...)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	va_list		args;

	pthread_mutex_lock(&once);
	for (int i = 0; i < SESSIONS; i++)
		for (int k = sessions[i].nlog > LOG ? sessions[i].nlog - LOG : 0;
			 k < sessions[i].nlog; k++)
			printf("session %d: %s\n", i, sessions[i].log[k % LOG]);
	printf("sequences: FAILED with seed %lu after %ld statements", seed, statements);
	if (s != NULL)
		printf(", session %d, pool %s", s->number, s->pool);
	va_start(args, format);
	exit_failed(format, args);
}

static void
note(Session *s, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vsnprintf(s->log[s->nlog % LOG], sizeof(s->log[0]), format, args);
	va_end(args);
	s->nlog++;
}

static PGconn *
connect_to(const char *info)
{
	PGconn	   *conn = PQconnectdb(info);

	if (PQstatus(conn) != CONNECTION_OK)
		fail(NULL, "%s", PQerrorMessage(conn));
	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	return conn;
}

static void
remote_run(PGconn *conn, const char *sql)
{
	PGresult   *res = PQexec(conn, sql);

	if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
		fail(NULL, "%s: %s", sql, PQerrorMessage(conn));
	PQclear(res);
}

/* --- calls of the local server ------------------------------------------ */

static PGresult *
finish(Session *s)
{
	PGresult   *res = NULL;
	PGresult   *next;
	ExecStatusType status;
	const char *field;

	while ((next = PQgetResult(s->conn)) != NULL)
	{
		PQclear(res);
		res = next;
	}
	s->operation = 0;
	status = PQresultStatus(res);
	field = PQresultErrorField(res, PG_DIAG_SQLSTATE);
	snprintf(s->sqlstate, sizeof(s->sqlstate), "%s", field ? field : "");
	field = PQresultErrorMessage(res);
	snprintf(s->message, sizeof(s->message), "%s", field ? field : "");
	if (PQstatus(s->conn) != CONNECTION_OK)
		fail(s, "the session has ended: %s", PQerrorMessage(s->conn));
	if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
		return res;
	if (s->sqlstate[0] == '\0' || strncmp(s->sqlstate, "XX", 2) == 0)
		fail(s, "%s: %s", s->sqlstate, s->message);
	if (s->local)
		s->aborted = true;
	PQclear(res);
	return NULL;
}

static void
start(Session *s, const char *sql, int n, const char *const *values)
{
	s->operation = __sync_add_and_fetch(&statements, 1);
	if (!PQsendQueryParams(s->conn, sql, n, NULL, values, NULL, NULL, 0))
		fail(s, "cannot send: %s", PQerrorMessage(s->conn));
}

static PGresult *
run(Session *s, const char *sql, int n, const char *const *values)
{
	start(s, sql, n, values);
	return finish(s);
}

/* Run a command that must succeed; returns its value. */
static void
value_of(Session *s, char *value, size_t size, const char *sql, int n,
		 const char *const *values)
{
	PGresult   *res = run(s, sql, n, values);

	if (res == NULL)
		fail(s, "%s: %s", sql, s->message);
	if (value != NULL)
		snprintf(value, size, "%s", PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
	PQclear(res);
}

static void
must(Session *s, const char *sql)
{
	value_of(s, NULL, 0, sql, 0, NULL);
}

/* --- statements ---------------------------------------------------------- */

static void
expand(char *to, const char *from, const Statement *st)
{
	char	   *end = to + TEXT - 64;

	for (; *from != '\0' && to < end; from++)
	{
		if (strncmp(from, "%u", 2) == 0)
			to += sprintf(to, "%s", st->word), from++;
		else if (strncmp(from, "%n", 2) == 0)
			to += sprintf(to, "%d", st->n), from++;
		else
			*to++ = *from;
	}
	*to = '\0';
}

/* As statement.c decides. */
static bool
fits_simple_protocol(const char *sql)
{
	static const char *const words[] = {"select", "values", "show", "with", "table"};

	if (strchr(sql, ';') != NULL)
		return false;
	if (strncmp(sql, "/**/", 4) == 0)
		sql += 4;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strncasecmp(sql, words[i], strlen(words[i])) == 0)
			return true;
	return false;
}

/*
 * A statement of this kind, by this way.  It may have a comment in front, or a semicolon
 * at its end, with which a SELECT is sent in the extended protocol.
 */
static void
make_statement(Session *s, Statement *st, const Kind *kind, Way way)
{
	static volatile long words;
	int			dress = roll(s, 3);

	st->kind = kind;
	st->way = way;
	st->n = 1 + roll(s, 30);
	snprintf(st->word, sizeof(st->word), "u%dx%ldx", s->number,
			 __sync_add_and_fetch(&words, 1));
	st->prepare[0] = '\0';
	if (kind->prepare != NULL)
		expand(st->prepare, kind->prepare, st);
	expand(st->sql, kind->sql, st);
	if (dress == 1 && st->sql[0] != '\0')
	{
		memmove(st->sql + 4, st->sql, strlen(st->sql) + 1);
		memcpy(st->sql, "/**/", 4);
	}
	if (dress == 2 && st->sql[0] != '\0')
		strcat(st->sql, ";");
	st->extended = (kind->flags & PARAM) ||
		(way != EXEC && way != CALL_EXEC && !fits_simple_protocol(st->sql));
	expand(st->answer, st->extended && kind->extended != NULL ? kind->extended :
		   kind->simple != NULL ? kind->simple : "", st);
	used[kind - kinds][way]++;
}

static bool
is_call(Way way)
{
	return way >= CALL_EXEC;
}

/* Start it; of SEND the first half. */
static void
start_statement(Session *s, const Statement *st)
{
	static const char *const texts[] = {
		"select pgpool.exec($1::int8, $2::text%s)",
		"select a from pgpool.query($1::int8, $2::text%s) as t(a text)",
		"select a from pgpool.query_as(null::text, $1::int8, $2::text%s) as a",
		"select pgpool.send($1::int8, $2::text%s)",
		"select pgpool.exec($1::text, $2::text%s)",
		"select a from pgpool.query($1::text, $2::text%s) as t(a text)",
		"select a from pgpool.query_as(null::text, $1::text, $2::text%s) as a",
		"select a from pgpool.fanout(ARRAY[$1::text], $2::text%s) as t(s text, a text)",
	};
	const char *values[] = {is_call(st->way) ? s->pool : s->lease, st->sql, st->word};
	bool		param = st->kind->flags & PARAM;
	char		sql[200];

	snprintf(sql, sizeof(sql), texts[st->way], param ? ", VARIADIC ARRAY[$3::text]" : "");
	note(s, "%s%s: %s", way_names[st->way], st->extended ? ", extended" : "", st->sql);
	start(s, sql, param ? 3 : 2, values);
}

static PGresult *
finish_statement(Session *s, const Statement *st)
{
	const char *values[] = {s->lease};
	PGresult   *res = finish(s);

	if (st->way == SEND && res != NULL)
	{
		PQclear(res);
		res = run(s, "select a from pgpool.result($1::int8) as t(a text)", 1, values);
	}
	if (res == NULL)
		note(s, "  -> %s %.200s", s->sqlstate, s->message);
	else
		note(s, "  -> %d rows, first %.40s", PQntuples(res),
			 PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
	return res;
}

static bool
is_one_of(const char *sqlstate, const char *list)
{
	for (; strlen(list) >= 5; list += 6)
	{
		if (strncmp(sqlstate, list, 5) == 0)
			return true;
		if (list[5] != '|')
			break;
	}
	return false;
}

static void
check_rows(Session *s, const Statement *st, const PGresult *res)
{
	const char *answer = st->answer + 1;
	bool		counted = st->way == EXEC || st->way == CALL_EXEC;
	bool		words = false;
	int			rows;

	if (st->answer[0] == '=')
		rows = 1;
	else if (*answer == '*')
		return;
	else if (*answer == 'n')
	{
		rows = strcmp(answer, "n00") == 0 ? 100 * st->n : st->n;
		words = strcmp(answer, "n-") != 0;
	}
	else
	{
		rows = atoi(answer);
		words = strchr(answer, 'w') != NULL;
	}
	if (counted)
	{
		if (PQntuples(res) != 1 || atoi(PQgetvalue(res, 0, 0)) != rows)
			fail(s, "%s has counted %s instead of %d", st->kind->name,
				 PQgetvalue(res, 0, 0), rows);
		return;
	}
	if (PQntuples(res) != rows &&
		!(rows > 0 && st->answer[0] == '#' && !words &&
		  strncmp(st->kind->sql, "select", 6) != 0 && PQntuples(res) == 0))
		fail(s, "%s: %d rows instead of %d, the first is \"%.60s\"", st->kind->name,
			 PQntuples(res), rows, PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
	if (st->answer[0] == '=' && strcmp(PQgetvalue(res, 0, 0), answer) != 0)
		fail(s, "%s: asked for \"%s\", got \"%.60s\"", st->kind->name, answer,
			 PQgetvalue(res, 0, 0));
	for (int i = 0; words && i < rows; i++)
		if (strncmp(PQgetvalue(res, i, 0), st->word, strlen(st->word)) != 0)
			fail(s, "%s: row %d of \"%s\" is \"%.60s\"", st->kind->name, i, st->word,
				 PQgetvalue(res, i, 0));
}

/* Compare an answer with the expected one. */
static void
check_statement(Session *s, const Statement *st, const PGresult *res, const char *also)
{
	const Kind *kind = st->kind;
	bool		leased = !is_call(st->way);

	if (leased && s->surely && (res != NULL || strcmp(s->sqlstate, "08006") != 0))
		fail(s, "%s on a lease that was lost: %s", kind->name,
			 res != NULL ? "an answer" : s->message);
	if (leased && s->dead && res == NULL && strcmp(s->sqlstate, "08006") == 0)
	{
		s->surely = true;
		return;
	}
	if (also != NULL && res == NULL && is_one_of(s->sqlstate, also))
		return;
	if (leased && s->tx == 'E')
	{
		if (res != NULL || (strcmp(s->sqlstate, "25P02") != 0 && st->answer[0] != '!'))
			fail(s, "%s in a failed transaction: %s", kind->name,
				 res != NULL ? "an answer" : s->message);
		return;
	}
	if (res != NULL && (st->answer[0] == '=' || st->answer[0] == '#'))
		check_rows(s, st, res);
	else if (res != NULL)
		fail(s, "%s: an answer, \"%.60s\", instead of an error (%s)", kind->name,
			 PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "no row", st->answer);
	else if (st->answer[0] != '!' || !is_one_of(s->sqlstate, st->answer + 1))
		fail(s, "%s: %s instead of \"%s\": %s", kind->name, s->sqlstate, st->answer,
			 s->message);
	else if (st->answer[strlen(st->answer) - 1] == '%' &&
			 strstr(s->message, st->word) == NULL)
		fail(s, "%s: the error has not the word \"%s\": %s", kind->name, st->word,
			 s->message);
}

/* --- endless and fatal statements ---------------------------------------- */

static void
remote_pid(Session *s, char *pid, size_t size)
{
	const char *values[] = {s->lease};

	value_of(s, pid, size,
			 "select pid from pgpool.query($1::int8, 'select pg_backend_pid()') as t(pid text)",
			 1, values);
}

/* Run it, and end it. */
static PGresult *
run_endless(Session *s, const Statement *st, bool *lost)
{
	static pthread_mutex_t remote_mutex = PTHREAD_MUTEX_INITIALIZER;
	Ender		ender;			/* the server's own timeout does not cover the commit */
	char		sql[200];
	char		pid[32] = "0";
	const char *values[] = {s->lease};
	PGresult   *res;

	do
		ender = roll(s, ENDERS);
	while ((is_call(st->way) && ender > LOCAL_CANCEL) ||
		   (s->local && ender == LOCAL_TIMEOUT) ||
		   (ender == REMOTE_TIMEOUT &&
			(s->tx != 'I' || strstr(st->kind->name, "at commit") != NULL)) ||
		   (st->way != SEND && ender == CANCEL));
	note(s, "  to be ended by %d", ender);
	if (ender == REMOTE_TIMEOUT)
		value_of(s, NULL, 0, "select pgpool.exec($1::int8, 'set statement_timeout = 20')", 1, values);
	if (ender == REMOTE_CANCEL || ender == TERMINATE)
		remote_pid(s, pid, sizeof(pid));
	if (ender == LOCAL_TIMEOUT)
	{
		snprintf(sql, sizeof(sql), "set statement_timeout = %d", 1 + roll(s, 30));
		must(s, sql);
	}
	start_statement(s, st);
	if (ender == CANCEL)
	{
		PQclear(finish(s));
		usleep(roll(s, 10000));
		if (s->sqlstate[0] == '\0')
		{
			PQclear(run(s, "select pgpool.cancel($1::int8)", 1, values));
			res = run(s, "select a from pgpool.result($1::int8) as t(a text)", 1, values);
			note(s, "  -> %s %.200s", s->sqlstate, s->message);
			return res;
		}
		return NULL;
	}
	if (ender == LOCAL_CANCEL || ender == REMOTE_CANCEL || ender == TERMINATE)
	{
		PGcancel   *cancel = PQgetCancel(s->conn);
		char		error[256];
		PGresult   *half = NULL;

		if (st->way == SEND)
		{
			/* the result arrives late */
			while ((half = PQgetResult(s->conn)) != NULL)
				PQclear(half);
			start(s, "select a from pgpool.result($1::int8) as t(a text)", 1, values);
		}
		snprintf(sql, sizeof(sql), "select pg_%s_backend(%s)",
				 ender == TERMINATE ? "terminate" : "cancel", pid);
		do
		{
			struct pollfd wait = {.fd = PQsocket(s->conn),.events = POLLIN};

			if (poll(&wait, 1, 2 + roll(s, 20)) != 0 && !PQconsumeInput(s->conn))
				break;
			if (!PQisBusy(s->conn))
				break;
			if (ender == LOCAL_CANCEL)
				(void) PQcancel(cancel, error, sizeof(error));
			else
			{
				pthread_mutex_lock(&remote_mutex);
				remote_run(remote, sql);
				pthread_mutex_unlock(&remote_mutex);
			}
		} while (PQisBusy(s->conn));
		PQfreeCancel(cancel);
		res = finish(s);
		note(s, "  -> %s %.200s", s->sqlstate, s->message);
	}
	else
		res = finish_statement(s, st);
	if (ender == LOCAL_TIMEOUT)
	{
		char		sqlstate[6];

		memcpy(sqlstate, s->sqlstate, sizeof(sqlstate));
		must(s, "set statement_timeout = 0");
		memcpy(s->sqlstate, sqlstate, sizeof(sqlstate));
	}
	if (ender == REMOTE_TIMEOUT)
		s->tx = '?';			/* the timeout stays: the lease ends */
	*lost = ender == TERMINATE;
	return res;
}

/* --- operations of a session ---------------------------------------------- */

static const Kind *
choose(Session *s, int must_have, int must_not)
{
	bool		super = strstr(s->pool, "super") != NULL;

	for (;;)
	{
		const Kind *kind = &kinds[roll(s, NKINDS)];

		if ((kind->flags & must_have) != must_have || (kind->flags & must_not) ||
			(kind->flags & (super ? NO_SUPER : SUPER)))
			continue;
		return kind;
	}
}

/* After this the pool may close the connection by itself. */
static void
may_close(Session *s)
{
	__sync_add_and_fetch(&closes, 1);
}

/*
 * Whether the connection may be closed because of it, as by a COPY from or to the client.
 */
static bool
costs_connection(const Statement *st)
{
	int			flags = st->kind->flags;

	return flags & CLOSES || strstr(st->sql, " stdin") != NULL ||
		strstr(st->sql, " stdout") != NULL || (flags & LAST && is_call(st->way));
}

/*
 * Whether its error may be that of a COPY, after which a lease is lost.  A COPY to the
 * client that was cancelled may have begun.
 */
static bool
is_copy(const Session *s, const Statement *st)
{
	return strstr(s->message, "COPY TO STDOUT are not supported") != NULL ||
		((st->kind->flags & ENDLESS) && strstr(st->sql, " stdout") != NULL);
}

/* Run a statement and check its answer; also: further permitted errors. */
static void
do_statement(Session *s, const Kind *kind, Way way, const char *also)
{
	Statement	st;
	PGresult   *res;
	bool		lost = false;

	if ((kind->flags & EXEC_ONLY) && way != EXEC && way != CALL_EXEC)
		way = is_call(way) ? CALL_EXEC : EXEC;
	make_statement(s, &st, kind, way);
	if (st.prepare[0] != '\0')
	{
		const char *values[] = {s->lease, st.prepare};

		note(s, "prepare: %s", st.prepare);
		PQclear(run(s, "select pgpool.exec($1::int8, $2::text)", 2, values));
		if (s->sqlstate[0] != '\0')
		{
			if ((s->dead && strcmp(s->sqlstate, "08006") == 0) || s->tx == 'E')
				return;
			fail(s, "%s, before it: %s", kind->name, s->message);
		}
	}
	if ((kind->flags & ENDLESS) && st.answer[0] == '!' && strstr(st.answer, "57014"))
	{
		/* the lease may end while its answer is still being drained */
		may_close(s);
		res = run_endless(s, &st, &lost);
		if (lost)
		{
			may_close(s);
			also = "57P01|08006|57014|0A000";
			s->dead = true;
		}
	}
	else
	{
		start_statement(s, &st);
		res = finish_statement(s, &st);
	}
	if (kind->flags & FATAL && st.answer[0] == '\0')
	{
		may_close(s);
		if (!is_call(way))
			s->dead = true;
		if (res != NULL || !is_one_of(s->sqlstate, "57P01|08006"))
			fail(s, "%s: %s %s", kind->name, s->sqlstate, s->message);
	}
	else
		check_statement(s, &st, res, also);
	PQclear(res);
	if (costs_connection(&st))
		may_close(s);
	/* a changed parameter, which only DISCARD ALL is known to restore */
	if (kind->flags & LAST && strstr(s->pool, "_reset") != NULL)
		may_close(s);
	if (!is_call(way) && (kind->flags & CLOSES || is_copy(s, &st)))
		s->dead = true;
	if (is_call(way))
		return;
	if (kind->flags & LAST)
		s->tx = '?';
	else if (s->tx == 'T' && s->sqlstate[0] != '\0' &&
			 strstr(s->message, "contains no statement") == NULL)
		s->tx = 'E';
}

static void
witness(Session *s, bool leased)
{
	Way			way = leased ? roll(s, CALL_EXEC) : CALL_EXEC + roll(s, WAYS - CALL_EXEC);

	do_statement(s, choose(s, WITNESS, 0), way, NULL);
}

/* The remote's transaction, by the driver's own statements. */
static void
transaction(Session *s)
{
	static const char *const ends[] = {
		"commit", "rollback", "commit and chain", "rollback and chain"
	};
	const char *sql = "begin";
	const char *values[] = {s->lease, NULL};
	int			end = roll(s, 4);
	bool		query = roll(s, 2);

	if (s->tx != 'I')
		sql = ends[end];
	values[1] = sql;
	note(s, "%s", sql);
	PQclear(run(s, query ? "select * from pgpool.query($1::int8, $2::text) as t(a text)" :
				"select pgpool.exec($1::int8, $2::text)", 2, values));
	if (s->sqlstate[0] != '\0')
	{
		if (s->dead && strcmp(s->sqlstate, "08006") == 0)
			return;
		fail(s, "%s: %s", sql, s->message);
	}
	s->tx = s->tx == 'I' || end >= 2 ? 'T' : 'I';
}

/* Results that are fetched by the wrong function, or not at all. */
static void
misuse(Session *s)
{
	static const struct
	{
		const char *sql;
		const char *sqlstate;
	}			uses[] = {
		{"select * from pgpool.query($1::int8, 'select 1, 2') as t(a text)", "42804"},
		{"select * from pgpool.query($1::int8, 'select ''x'' || i from generate_series(1, 300) i') as t(a int)", "22P02"},
		{"select * from pgpool.query($1::int8, 'select case when i < 20000 then i::text else ''x'' end || repeat(''0'', 1) from generate_series(1, 30000) i') as t(a int)", "22P02"},
		{"select pgpool.exec($1::int8, 'select 1', variadic array['2', '3'])", "08P01"},
		{"select * from pgpool.result($1::int8) as t(a text)", "55000"},
		{"select * from pgpool.query($1::int8, 'select i from generate_series(1, 3) i') as t(a int) limit 1", ""},
		{"select * from pgpool.query($1::int8, 'select i, now(), 1.5 from generate_series(1, 100) i') as t(a bigint, b timestamptz, c numeric)", ""},
		{"select * from pgpool.wait_notifications($1::int8, '1 ms')", ""},
		{"select pgpool.try_wait($1::int8)", "55000"},
	};
	const char *values[] = {s->lease};
	int			i = roll(s, sizeof(uses) / sizeof(uses[0]));

	note(s, "%s", uses[i].sql);
	if (i == 1 || i == 2)
		may_close(s);			/* the rest of the answer is read for a moment only */
	PQclear(run(s, uses[i].sql, 1, values));
	note(s, "  -> %s %.200s", s->sqlstate, s->message);
	if (s->dead && strcmp(s->sqlstate, "08006") == 0)
		return;
	if (s->tx == 'E' && strcmp(s->sqlstate, "25P02") == 0)
		return;
	if (strcmp(s->sqlstate, uses[i].sqlstate) != 0)
		fail(s, "%s instead of \"%s\" for %s: %s", s->sqlstate, uses[i].sqlstate, uses[i].sql, s->message);
	if (s->tx == 'T' && s->sqlstate[0] != '\0' && i >= 3 && strncmp(s->sqlstate, "08P", 3) == 0)
		s->tx = 'E';
}

/* Check that the lease's session has been reset. */
static void
check_clean(Session *s)
{
	const char *values[] = {s->lease};
	char		traces[400];

	note(s, "check that it is clean");
	value_of(s, traces, sizeof(traces), "select a from pgpool.query($1::int8, $q$"
			 "select string_agg(x, ', ') from (select 'prepared statement ' || name from pg_prepared_statements where from_sql or name !~ '^pgpx_'"
			 " union all select 'cursor ' || name from pg_cursors where name <> ''"
			 " union all select 'channel ' || c from pg_listening_channels() c"
			 " union all select 'table ' || relname from pg_class where relnamespace = pg_my_temp_schema()"
			 " union all select 'setting ' || name || ' ' || setting from pg_settings where source = 'session'"
			 "  and name !~ '^transaction_' and name not in ('search_path', 'application_name', 'client_encoding', 'DateStyle',"
			 "  'IntervalStyle', 'extra_float_digits', 'TimeZone')"
			 " union all select 'role ' || current_user where current_user <> session_user) x(x)$q$)"
			 " as t(a text)", 1, values);
	if (traces[0] != '\0')
		fail(s, "%s is left in a session that was reset", traces);
}

static void
take_lease(Session *s)
{
	const char *values[] = {s->pool};

	s->local = s->aborted = false;
	if (roll(s, 6) == 0)
	{
		must(s, "begin");
		s->local = true;
	}
	value_of(s, s->lease, sizeof(s->lease),
			 s->local ? "select pgpool.checkout_xact($1::text)" :
			 "select pgpool.checkout($1::text)", 1, values);
	s->tx = 'I';
	s->dead = s->surely = false;
	note(s, "lease %s%s", s->lease, s->local ? " of a transaction" : "");
	if (roll(s, 3) == 0)
		check_clean(s);
}

/* End the lease, in one of many ways.  Sends only the last call: see wait_end. */
static void
start_end(Session *s)
{
	const char *values[] = {s->lease};
	int			how = roll(s, 10);

	if (s->local)
	{
		note(s, "the end of the transaction");
		if (s->tx != 'I')
			may_close(s);
		start(s, s->aborted || s->tx != 'I' || s->dead || roll(s, 2) ? "rollback" : "commit", 0, NULL);
		return;
	}
	if (how < 2 && !s->surely)
	{
		/* a statement whose answer is not read */
		const Kind *kind = choose(s, 0, LEASED | EXEC_ONLY | FATAL | LAST | CLOSES);
		Statement	st;

		make_statement(s, &st, kind, SEND);
		start_statement(s, &st);
		PQclear(finish(s));
		if (s->sqlstate[0] != '\0' && s->tx != '?' &&
			!(s->dead && strcmp(s->sqlstate, "08006") == 0))
			fail(s, "send: %s", s->message);
		if (roll(s, 2))
			PQclear(run(s, "select pgpool.wait($1::int8, '2 ms')", 1, values));
		if (roll(s, 4) == 0)
			PQclear(run(s, "select pgpool.cancel($1::int8)", 1, values));
		may_close(s);
	}
	if (how == 9)
		may_close(s);
	note(s, how == 9 ? "discard" : how == 8 ? "checkin_all" : "checkin");
	if (how == 8)
		start(s, "select pgpool.checkin_all()", 0, NULL);
	else
		start(s, how == 9 ? "select pgpool.discard($1::int8)" :
			  "select pgpool.checkin($1::int8)", 1, values);
}

static void
wait_end(Session *s)
{
	PGresult   *res = finish(s);

	if (res == NULL)
		fail(s, "the end of a lease: %s", s->message);
	PQclear(res);
	s->lease[0] = '\0';
	s->local = s->aborted = false;
}

/* The statements of a lease. */
static void
use_lease(Session *s, bool harmless)
{
	int			n = 1 + roll(s, 5);

	for (int i = 0; i < n && s->tx != '?'; i++)
	{
		int			r = roll(s, 20);
		bool		savepoint = s->local && roll(s, 4) != 0;

		if (s->aborted)
			break;
		if (savepoint)
			must(s, "savepoint a");
		if (harmless || r < 6)
			witness(s, true);
		else if (r < 8)
			transaction(s);
		else if (r < 10)
			misuse(s);
		else
			do_statement(s, choose(s, 0, s->tx == 'I' && !s->dead ? 0 : ALONE | LAST | FATAL | ENDLESS), roll(s, CALL_EXEC), NULL);
		if (savepoint && s->aborted)
		{
			s->aborted = false;
			must(s, "rollback to a");
		}
	}
	/* the last statement is followed by a checked one, if possible */
	if (!s->aborted && s->tx == 'I' && !harmless)
		witness(s, true);
}

/* The number of sessions in this pool's queue. */
static int
waiting(const char *pool)
{
	const char *values[] = {pool};
	char		count[32];

	value_of(&observer, count, sizeof(count),
			 "select count(*) from pgpool.waiters where server = $1", 1, values);
	return atoi(count);
}

/* Returns whether the session waits in the queue, and is not finished. */
static bool
wait_in_queue(Session *s, int position)
{
	for (;;)
	{
		if (!PQconsumeInput(s->conn) || !PQisBusy(s->conn))
			return false;
		if (waiting(s->pool) >= position)
			return true;
	}
}

/* One statement of a session that waits for a connection. */
static void
start_waiting(Session *s, Statement *st, bool harmless)
{
	Way			way = CALL_EXEC + roll(s, WAYS - CALL_EXEC);
	const Kind *kind = harmless ? choose(s, WITNESS, 0) : choose(s, 0, LEASED | ENDLESS | FATAL | CLOSES);

	if (kind->flags & EXEC_ONLY)
		way = CALL_EXEC;
	make_statement(s, st, kind, way);
	start_statement(s, st);
}

static void
finish_waiting(Session *s, Statement *st)
{
	PGresult   *res = finish_statement(s, st);

	check_statement(s, st, res, NULL);
	PQclear(res);
	if (costs_connection(st))
		may_close(s);
}

static void
episode(void)
{
	Session    *a = &sessions[0];
	Session    *b = &sessions[1];
	Session    *c = &sessions[2];
	Statement	of_b;
	Statement	of_c;
	bool		queue = roll(a, 2);

	if (roll(a, 4) == 0)
		do_statement(a, choose(a, 0, LEASED), CALL_EXEC + roll(a, WAYS - CALL_EXEC), NULL);
	take_lease(a);
	use_lease(a, false);
	if (queue)
	{
		bool		waits;

		start_waiting(b, &of_b, roll(a, 2));
		waits = wait_in_queue(b, 1);
		start_waiting(c, &of_c, true);
		if (waits)
			(void) wait_in_queue(c, 2);
	}
	start_end(a);
	wait_end(a);
	if (queue)
	{
		finish_waiting(b, &of_b);
		finish_waiting(c, &of_c);
	}
	if (roll(a, 2))
	{
		take_lease(b);
		use_lease(b, true);
		start_end(b);
		wait_end(b);
	}
	for (int i = roll(a, 3); i > 0; i--)
		witness(i == 1 ? b : c, false);
}

/* --- rounds -------------------------------------------------------------- */

static long
closed(const char *pool)
{
	const char *values[] = {pool};
	char		count[32];

	value_of(&observer, count, sizeof(count),
			 "select coalesce(sum(closed_reset + closed_broken + closed_with_lease), 0)"
			 " from pgpool.stats where server = $1", 1, values);
	return atol(count);
}

static void
check_closed(const char *pool, long before)
{
	long		n = closed(pool) - before;

	if (n > closes && !noisy)
		fail(&sessions[0], "%ld connections were closed, of which %ld may have been", n, closes);
}

static void *
at_once(void *arg)
{
	Session    *s = arg;

	for (int i = 0; i < OPERATIONS; i++)
	{
		bool		harmless = s->number == 2 || roll(s, 2);

		if (roll(s, 2))
		{
			if (harmless)
				witness(s, false);
			else
				do_statement(s, choose(s, 0, LEASED), CALL_EXEC + roll(s, WAYS - CALL_EXEC), NULL);
		}
		else
		{
			take_lease(s);
			use_lease(s, harmless);
			start_end(s);
			wait_end(s);
		}
	}
	return NULL;
}

/* Notifications, and in noisy rounds changed settings, arrive at any moment. */
static void *
make_noise(void *arg)
{
	PGconn	   *conn = connect_to(remote_info);

	for (int i = 0; !stop; i++)
	{
		remote_run(conn, "notify noise, 'from afar'");
		if (noisy)
		{
			remote_run(conn, i % 2 ? "alter system set timezone = 'Asia/Tokyo'" : "alter system reset timezone");
			remote_run(conn, "select pg_reload_conf()");
		}
		usleep(noisy ? 20000 : 1000);
	}
	PQfinish(conn);
	return NULL;
}

/*
 * Fail when an operation hangs.  The limit is in ticks of this thread, not in seconds of a
 * clock: if the machine, or this process, is stopped for a while, or its clock is set, that
 * counts as one tick.  So no operation is blamed for time in which it could not run.
 */
static void *
watch(void *arg)
{
	long		operations[SESSIONS] = {0};
	int			ticks[SESSIONS] = {0};

	for (;;)
	{
		sleep(1);
		for (int i = 0; i < SESSIONS; i++)
		{
			long		operation = sessions[i].operation;

			ticks[i] = operation != 0 && operation == operations[i] ? ticks[i] + 1 : 0;
			operations[i] = operation;
			if (ticks[i] > LONGEST)
				fail(&sessions[i], "an operation has not ended within %d s", LONGEST);
		}
	}
	return NULL;
}

static void
one_round(int number, const char *pool)
{
	long		before = closed(pool);
	bool		all = number % 3 == 2;
	pthread_t	threads[SESSIONS];

	closes = 0;
	noisy = number % 8 == 7;
	for (int i = 0; i < SESSIONS; i++)
		sessions[i].pool = pool;
	if (all)
	{
		for (int i = 0; i < SESSIONS; i++)
			pthread_create(&threads[i], NULL, at_once, &sessions[i]);
		for (int i = 0; i < SESSIONS; i++)
			pthread_join(threads[i], NULL);
	}
	else
		for (int i = 0; i < EPISODES; i++)
		{
			episode();
			check_closed(pool, before);
		}
	check_closed(pool, before);
	must(&observer, "select pgpool.check_invariants()");
}

static void
prepare_session(Session *s, int number)
{
	s->number = number;
	s->random = (seed + 1) * 0x9E3779B97F4A7C15ULL + number * 0x1234567ULL + 1;
	s->conn = connect_to(local_info);
	for (int k = 0; k < 10; k++)
		(void) roll(s, 2);
}

int
main(int argc, char **argv)
{
	pthread_t	noise;
	pthread_t	watcher;
	double		end;
	double		began = now();
	int			rounds = 0;
	int			unused = 0;
	char		pipelined[32];

	if (argc < 6)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	seed = strtoul(argv[1], NULL, 10);
	end = now() + atof(argv[2]);
	local_info = argv[3];
	remote_info = argv[4];
	printf("sequences: seed %lu, %s s, %d kinds of statements\n", seed, argv[2], NKINDS);

	for (int i = 0; i < SESSIONS; i++)
		prepare_session(&sessions[i], i);
	prepare_session(&observer, SESSIONS);
	observer.pool = "-";
	remote = connect_to(remote_info);
	{
		PGconn	   *locker = connect_to(remote_info);

		remote_run(locker, "begin; lock work.locked");
	}
	pthread_create(&noise, NULL, make_noise, NULL);
	pthread_create(&watcher, NULL, watch, NULL);

	/* continue after the end of the time until each pool has had a round */
	while (now() < end || rounds < argc - 5)
	{
		one_round(rounds, argv[5 + rounds % (argc - 5)]);
		rounds++;
	}
	stop = true;
	pthread_join(noise, NULL);
	value_of(&observer, pipelined, sizeof(pipelined),
			 "select coalesce(sum(pipelined), 0) from pgpool.stats", 0, NULL);
	for (int k = 0; k < NKINDS; k++)
	{
		long		n = 0;

		for (int w = 0; w < WAYS; w++)
			n += used[k][w];
		unused += n == 0;
	}
	printf("sequences: %ld calls in %d rounds, %.0f s; %s statements were pipelined; %d kinds were not used\n",
		   statements, rounds, now() - began, pipelined, unused);
	return 0;
}
