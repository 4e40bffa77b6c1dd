/*-------------------------------------------------------------------------
 *
 * kinds.h
 *	  The statements that sequences.c combines, with their answers.
 *
 * In texts "%u" is replaced by a unique word, "%n" by a random number of rows.  A
 * statement returns one column, or none.  Its answer is
 *
 *	  "=text"			one row with this text
 *	  "#12", "#n"		this number of rows; with "#n" each row begins with the word
 *	  "#1w"			one row, which begins with the word
 *	  "!42601|0A000"	an error, one of these; with "!P0001%" its message has the word
 *
 * The first answer is for the simple protocol, the second one for the extended
 * protocol; NULL means the same.  remote.sql has the tables and functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef KINDS_H
#define KINDS_H

#define WITNESS		0x0001		/* leaves nothing behind and never fails the lease */
#define PARAM		0x0002		/* has $1, with the word: always extended */
#define ENDLESS		0x0004		/* runs until the driver ends it, then fails with 57014 */
#define FATAL		0x0008		/* ends the remote session */
#define ALONE		0x0010		/* not within a transaction block of the driver */
#define LAST		0x0020		/* later statements would fail: the lease ends */
#define CLOSES		0x0080		/* closes the connection, or may */
#define SUPER		0x0100		/* needs a superuser */
#define NO_SUPER	0x0200		/* not as a superuser */
#define LEASED		0x0400		/* not as a call on a pool */
#define EXEC_ONLY	0x0800		/* its rows have other columns */
#define NO_BINARY	0x1000		/* makes values unreadable */

typedef struct Kind
{
	const char *name;
	int			flags;
	const char *prepare;		/* run first, by exec on the same lease; may be NULL */
	const char *sql;
	const char *simple;
	const char *extended;
} Kind;

#define MULTI "!42601"			/* of several statements in the extended protocol */

static const Kind kinds[] = {
	/* correct answers */
	{"select", WITNESS, NULL, "select '%u'", "=%u", NULL},
	{"select with a parameter", WITNESS | PARAM, NULL, "select $1", "=%u", NULL},
	{"select a null", WITNESS, NULL, "select null::text", "#1", NULL},
	{"values", WITNESS, NULL, "values ('%u')", "=%u", NULL},
	{"rows", WITNESS, NULL, "select '%u' || i from generate_series(1, %n) i", "#n", NULL},
	{"rows with a parameter", WITNESS | PARAM, NULL, "select $1 || i from generate_series(1, %n) i", "#n", NULL},
	{"many rows", WITNESS, NULL, "select '%u' || repeat('x', 50) from generate_series(1, 100 * %n) i", "#n00", NULL},
	{"large value", WITNESS, NULL, "select '%u' || repeat('y', 20000 * %n)", "#1w", NULL},
	{"no row", WITNESS, NULL, "select '%u' where false", "#0", NULL},
	{"no column", WITNESS | EXEC_ONLY, NULL, "select from generate_series(1, %n)", "#n-", NULL},
	{"insert", 0, NULL, "insert into plain values ('%u')", "#1", NULL},
	{"insert returning", 0, NULL, "insert into plain values ('%u') returning a", "=%u", NULL},
	{"delete", 0, NULL, "delete from plain where a = 'missing %u'", "#0", NULL},
	{"rule", EXEC_ONLY, NULL, "insert into ruled values ('%u')", "#*", NULL},
	{"utility", 0, NULL, "set work_mem = '5MB'", "#0", NULL},
	{"explain", 0, NULL, "explain (costs off) select 1", "#*", NULL},
	{"prepared statement", LEASED, "prepare p%u as select '%u'", "execute p%u", "=%u", NULL},
	{"call commits", ALONE, NULL, "call commits()", "#0", NULL},
	{"vacuum", ALONE, NULL, "vacuum plain", "#0", NULL},

	/* several statements, and none */
	{"several", EXEC_ONLY, NULL, "select '%u'; select 1; select 2", "#3", NULL},
	{"several in query", 0, NULL, "select '%u'; select '%u'", "#2", MULTI},
	{"several, one fails", ALONE, NULL, "select 1; select 1/0; select 3", "!22012", MULTI},
	{"several, the last fails", ALONE, NULL, "insert into plain values ('%u'); select 1/0", "!22012", MULTI},
	{"several with empty ones", EXEC_ONLY, NULL, ";;select '%u';;", "#1", NULL},
	{"begin and commit in one text", ALONE, NULL, "begin; select 1; commit", "#1", MULTI},
	{"commit and chain in one text", ALONE, NULL, "begin; select 1; commit and chain; select 2; rollback", "#2", MULTI},
	{"failed transaction in one text", ALONE | LAST, NULL, "begin; select 1/0; commit", "!22012", MULTI},
	{"empty", WITNESS, NULL, "", "!22023", NULL},
	{"semicolon", WITNESS, NULL, ";", "!22023", NULL},
	{"comment", WITNESS, NULL, "-- %u", "!22023", NULL},
	{"empty with a parameter", WITNESS | PARAM, NULL, "", "!08P01", NULL},

	/* errors, by phase */
	{"error in parse: syntax", 0, NULL, "selec '%u'", "!42601%", NULL},
	{"error in parse: name", 0, NULL, "select %u", "!42703%", NULL},
	{"error in parse: table", PARAM, NULL, "select $1 from nowhere%u", "!42P01%", NULL},
	{"error in parse: no such parameter", 0, NULL, "select $1", "!42P02|08P01", NULL},
	{"error in bind: value", PARAM, NULL, "select ($1::int)::text", "!22P02%", NULL},
	{"error in bind: count", PARAM, NULL, "select '%u'", "!08P01", NULL},
	{"error in bind: planner", 0, NULL, "select fails_immutable('%u')", "!ZX777%", NULL},
	{"error in execute", 0, NULL, "do $do$ begin raise exception '%u'; end $do$", "!P0001%", NULL},
	{"error in execute, with a parameter", PARAM, NULL, "select ($1 || 'z')::int::text", "!22P02%", NULL},
	{"error after rows", 0, NULL, "select (100 / (%n - i))::text from generate_series(1, 10000) i", "!22012", NULL},
	{"error after many rows", 0, NULL, "select (100 / (9999 - i))::text || repeat('z', 300) from generate_series(1, 20000) i", "!22012", NULL},
	{"error at commit", ALONE, NULL, "insert into child values (%n)", "!23503", NULL},
	{"error at commit, after rows", ALONE, NULL, "insert into child values (%n) returning a::text", "!23503", NULL},
	{"error at commit, by a trigger", ALONE, NULL, "insert into commit_fail values ('%u')", "!ZX001", NULL},
	{"error after a commit", ALONE, NULL, "call commits_and_fails('%u')", "!ZX778%", NULL},
	{"error in a large text", 0, NULL, "do $do$ begin raise exception using message = '%u' || repeat('m', 70000); end $do$", "!P0001%", NULL},
	{"column that is no column of the list", WITNESS | EXEC_ONLY, NULL, "select 1, 2, '%u'", "#1", NULL},

	/* the end of the remote session */
	{"fatal", FATAL, NULL, "select pg_terminate_backend(pg_backend_pid())", NULL, NULL},
	{"fatal in bind", FATAL, NULL, "select fatal_immutable()", NULL, NULL},
	{"fatal after rows", FATAL, NULL, "select case when i < 5000 then '%u' else pg_terminate_backend(pg_backend_pid())::text || pg_sleep(1) end from generate_series(1, 5001) i", NULL, NULL},
	{"fatal in a trigger", FATAL, NULL, "insert into before_fatal values ('%u')", NULL, NULL},
	{"fatal at commit", FATAL | ALONE, NULL, "insert into commit_fatal values ('%u')", NULL, NULL},
	{"fatal in several", FATAL, NULL, "select '%u'; select pg_terminate_backend(pg_backend_pid()); select pg_sleep(1); select 3", NULL, MULTI},

	/* cursors: portals that are suspended */
	{"cursor", ALONE | LEASED, "declare c%u cursor with hold for select '%u' || i from generate_series(1, 5000) i", "fetch %n from c%u", "#n", NULL},
	{"cursor over an error", ALONE | LEASED | LAST, "begin; declare c%u cursor for select (100 / (10 - i))::text from generate_series(1, 20) i; fetch 5 from c%u", "fetch all from c%u", "!22012", NULL},
	{"cursor in a transaction left open", ALONE | LEASED | LAST, "begin; declare c%u cursor for select '%u' || i from generate_series(1, 5000) i", "fetch %n from c%u", "#n", NULL},

	/* messages at each point of an answer */
	{"notice in bind", 0, NULL, "select noisy_immutable('%u')", "=%u", NULL},
	{"notices between rows", 0, NULL, "select noisy('%u', i) from generate_series(1, %n) i", "#n", NULL},
	{"notice at commit", ALONE, NULL, "insert into commit_notice values ('%u') returning a", "=%u", NULL},
	{"notice before an error", 0, NULL, "do $do$ begin raise notice '%u'; raise warning '%u'; raise exception '%u'; end $do$", "!P0001%", NULL},
	{"notices, many", 0, NULL, "do $do$ begin for i in 1..500 loop raise notice '%', repeat('%u', 10); end loop; end $do$", "#0", NULL},
	{"parameter", LEASED, NULL, "set application_name = '%u'", "#0", NULL},
	{"parameter, in a select", 0, NULL, "select set_config('TimeZone', 'Asia/Tokyo', false) || '%u'", "=Asia/Tokyo%u", NULL},
	{"parameter, local", ALONE, NULL, "begin; set local datestyle = 'SQL'; commit", "#0", MULTI},
	{"parameter, with the error", 0, NULL, "do $do$ begin perform set_config('DateStyle', 'German', false); raise exception '%u'; end $do$", "!P0001%", NULL},
	{"DateStyle", LEASED | LAST | NO_BINARY, NULL, "set datestyle = 'German'", "#0", NULL},
	{"client_encoding", LEASED | LAST | CLOSES, NULL, "set client_encoding = 'LATIN1'", "#0", NULL},
	{"listen", LEASED, NULL, "listen noise", "#0", NULL},
	{"notify", LEASED, "listen noise", "select pg_notify('noise', '%u')", "#1", NULL},
	{"notify, many", LEASED, "listen noise", "select pg_notify('noise', '%u' || i) from generate_series(1, 200) i", "#200", NULL},
	{"unlisten", LEASED, "listen noise", "unlisten *", "#0", NULL},

	/* transactions that the statement itself leaves open or ends */
	{"begin", ALONE | LAST | LEASED, NULL, "begin", "#0", NULL},
	{"commit outside", ALONE, NULL, "commit", "#0", NULL},
	{"rollback outside", ALONE, NULL, "rollback", "#0", NULL},
	{"commit and chain outside", ALONE, NULL, "commit and chain", "!25P01", NULL},
	{"chain", ALONE | LAST | LEASED, "begin; insert into plain values ('%u')", "commit and chain", "#0", NULL},
	{"chain after a failure", ALONE | LAST | LEASED, "begin; savepoint a", "rollback and chain", "#0", NULL},
	{"isolation", ALONE, NULL, "begin isolation level serializable; select '%u' || current_setting('transaction_isolation'); commit", "#1", MULTI},
	{"isolation of a block", ALONE | LEASED | LAST, "begin isolation level serializable, read only, deferrable", "select '%u' || current_setting('transaction_isolation')", "=%userializable", NULL},
	{"set transaction outside", ALONE, NULL, "set transaction isolation level serializable", "#0", NULL},
	{"concurrently", ALONE | LEASED, "create temp table i%u (a int)", "create index concurrently on i%u (a)", "#0", NULL},
	{"alter system", ALONE | SUPER, NULL, "alter system reset work_mem", "#0", NULL},
	{"prepare transaction", ALONE | LEASED, "begin; insert into plain values ('%u'); prepare transaction '%u'", "rollback prepared '%u'", "#0", NULL},
	{"prepare transaction that fails", ALONE | LEASED, "begin; create temp table t%u ()", "prepare transaction '%u'", "!0A000", NULL},
	{"rollback prepared, unknown", ALONE, NULL, "rollback prepared '%u'", "!42704%", NULL},
	{"read only", ALONE | LEASED | CLOSES | LAST, "set default_transaction_read_only = on", "insert into plain values ('%u')", "!25006", NULL},

	/* the server's own resets and other states of the session */
	{"discard all", ALONE, NULL, "discard all", "#0", NULL},
	{"discard all in several", ALONE, NULL, "select 1; discard all", "!25001", MULTI},
	{"deallocate all", 0, NULL, "deallocate all", "#0", NULL},
	{"temporary table", LEASED, "create temp table t%u (a text); insert into t%u values ('%u')", "table t%u", "=%u", NULL},
	{"set role", LEASED | NO_SUPER, NULL, "set role pg_monitor", "!42501|22023", NULL},

	/* COPY in both directions */
	{"COPY from stdin", 0, NULL, "copy plain from stdin", "!0A000", NULL},
	{"COPY from stdin, csv", 0, NULL, "copy plain (a) from stdin (format csv, header)", "!0A000", NULL},
	{"COPY from stdin, binary", 0, NULL, "copy plain from stdin (format binary)", "!0A000", NULL},
	{"COPY from stdin, where", 0, NULL, "copy plain from stdin where a <> '%u'", "!0A000", NULL},
	{"COPY freeze", LEASED, "create temp table f%u (a text)", "copy f%u from stdin (freeze)", "!0A000", NULL},
	{"COPY freeze of the same transaction", LEASED | ALONE | LAST, "begin; create temp table f%u (a text)", "copy f%u from stdin (freeze)", "!0A000", NULL},
	{"COPY to a failing trigger", 0, NULL, "copy before_fail from stdin", "!0A000", NULL},
	{"COPY to a noisy trigger", 0, NULL, "copy before_notice from stdin", "!0A000", NULL},
	{"COPY to a fatal trigger", CLOSES | LAST, NULL, "copy before_fatal from stdin", "!0A000", NULL},
	{"COPY to a sleeping trigger", CLOSES | LAST | ENDLESS, NULL, "copy before_sleep from stdin", "!0A000|57014", NULL},
	{"COPY with a commit trigger", ALONE, NULL, "copy commit_fail from stdin", "!0A000", NULL},
	{"COPY to a view", 0, NULL, "copy a_view from stdin", "!0A000", NULL},
	{"COPY denied", NO_SUPER, NULL, "copy public.denied from stdin", "!42501", NULL},
	{"COPY out, denied", NO_SUPER, NULL, "copy public.denied to stdout", "!42501", NULL},
	{"COPY with row security", NO_SUPER, NULL, "copy guarded from stdin", "!0A000", NULL},
	{"COPY to nowhere", 0, NULL, "copy nowhere%u from stdin", "!42P01%", NULL},
	{"COPY with a bad option", 0, NULL, "copy plain from stdin (format '%u')", "!22023%", NULL},
	{"COPY with a parameter too many", PARAM, NULL, "copy plain from stdin", "!08P01", NULL},
	{"COPY in several", ALONE, NULL, "select '%u'; copy plain from stdin; select 2", "!0A000", MULTI},
	{"COPY twice", ALONE, NULL, "copy plain from stdin; copy before_fail from stdin; copy plain from stdin", "!0A000", MULTI},
	{"COPY freeze in several", LEASED | ALONE, NULL, "create temp table f%u (a text); copy f%u from stdin (freeze); select 1", "!0A000", MULTI},
	{"COPY that fails in several", ALONE, NULL, "select 1; copy before_fail from stdin; select 2", "!0A000", MULTI},
	{"COPY in a transaction of the text", LEASED | ALONE | LAST, NULL, "begin; copy plain from stdin; commit", "!0A000", MULTI},
	{"COPY out", 0, NULL, "copy (select '%u') to stdout", "!0A000", NULL},
	{"COPY out, binary", 0, NULL, "copy (select '%u') to stdout (format binary)", "!0A000", NULL},
	{"COPY out, many rows", 0, NULL, "copy (select '%u' || repeat('c', 100) from generate_series(1, 5000)) to stdout", "!0A000", NULL},
	{"COPY out, endless", 0, NULL, "copy (select '%u' || repeat('c', 100) from (select generate_series(1, 100000000)) x) to stdout", "!0A000", NULL},
	{"COPY out, an error", 0, NULL, "copy (select 1 / (%n - i) from generate_series(1, 1000) i) to stdout", "!0A000|22012", NULL},
	{"COPY out in several", ALONE, NULL, "select 1; copy plain to stdout; copy plain to stdout; select 2", "!0A000", MULTI},
	{"COPY both ways in several", ALONE, NULL, "copy plain to stdout; copy plain from stdin; copy plain to stdout", "!0A000", MULTI},
	{"COPY in a function", 0, NULL, "select copies()::text", "!0A000", NULL},
	{"COPY out in a function", 0, NULL, "select copies_out()::text", "!0A000", NULL},
	{"COPY in a block", 0, NULL, "do $do$ begin copy plain from stdin; end $do$", "!0A000", NULL},
	{"COPY as prepared statement", 0, NULL, "prepare p%u as copy plain from stdin", "!42601", NULL},
	{"COPY explained", 0, NULL, "explain analyze copy plain from stdin", "!42601", NULL},
	{"COPY from program, refused", NO_SUPER, NULL, "copy plain from program 'echo 1'", "!42501", NULL},
	{"COPY to program, refused", NO_SUPER, NULL, "copy plain to program 'cat'", "!42501", NULL},
	{"COPY to file, refused", NO_SUPER, NULL, "copy plain to '/tmp/%u'", "!42501", NULL},
	{"COPY from program", SUPER, NULL, "copy plain from program 'echo 1; echo 2'", "#2", NULL},
	{"COPY from program that fails", SUPER, NULL, "copy plain from program 'echo 1; exit 3'", "!38000", NULL},
	{"COPY to program", SUPER, NULL, "copy (select 1 union select 2 union select 3) to program 'cat >/dev/null'", "#3", NULL},

	/* replication */
	{"replication: system", 0, NULL, "IDENTIFY_SYSTEM", "!42601", NULL},
	{"replication: start", 0, NULL, "START_REPLICATION 0/0", "!42601", NULL},
	{"replication: slot", NO_SUPER, NULL, "select pg_create_logical_replication_slot('%u', 'pgoutput')::text", "!42501|55000", NULL},
	{"replication: changes", NO_SUPER, NULL, "select data from pg_logical_slot_get_changes('%u', null, null)", "!42501|55000", NULL},

	/* statements ended by a cancel or a timeout, in each phase */
	{"endless in parse", ENDLESS, NULL, "select a from locked where a = '%u'", "!57014", NULL},
	{"endless in bind", ENDLESS, NULL, "select slow_immutable()", "!57014", NULL},
	{"endless in bind, with a parameter", ENDLESS | PARAM, NULL, "select slow_immutable() || $1", "!57014", NULL},
	{"endless in execute", ENDLESS, NULL, "select pg_sleep(600)::text || '%u'", "!57014", NULL},
	{"endless between rows", ENDLESS, NULL, "select '%u' || pg_sleep(case when i > 300 then 600 else 0 end) from generate_series(1, 1000) i", "!57014", NULL},
	{"endless rows", ENDLESS, NULL, "select '%u' || i from (select generate_series(1, 1000000000)) x(i)", "!57014", NULL},
	{"endless in a trigger", ENDLESS, NULL, "insert into before_sleep values ('%u')", "!57014", NULL},
	{"endless at commit", ENDLESS | ALONE, NULL, "insert into commit_sleep values ('%u')", "!57014", NULL},
	{"endless in several", ENDLESS | ALONE, NULL, "select 1; select pg_sleep(600); select 2", "!57014", MULTI},
	{"endless COPY", ENDLESS, NULL, "copy (select pg_sleep(600)) to stdout", "!0A000|57014", NULL},
	{"endless lock of COPY", ENDLESS, NULL, "copy locked from stdin", "!57014", NULL},
};

#define NKINDS ((int) (sizeof(kinds) / sizeof(kinds[0])))

#endif							/* KINDS_H */
