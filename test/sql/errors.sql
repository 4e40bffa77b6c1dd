--
-- Errors and notices of the remote server, and statements that end early.
--

SELECT pgpool.checkout('one') AS lease \gset

--
-- Errors have the remote SQLSTATE and texts, and the statement as context
--

SELECT pgpool.exec(:lease, 'select 1/0');
SELECT * FROM pgpool.query(:lease, 'select 1/0') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select * from nowhere') AS t(a int);
SELECT pgpool.exec(:lease, 'selec 1');
SELECT pgpool.exec(:lease, 'selec $1', 1);
SELECT pgpool.checkin(:lease);
SELECT pgpool.exec('one', 'select 1/0');
SELECT * FROM pgpool.query('one', 'select relkin from pg_class') AS t(a int);
SELECT pgpool.checkout('one') AS lease \gset
-- detail, hint and the remote context
SELECT pgpool.exec(:lease, $sql$do $do$
begin
	raise exception 'no % today', 'bread'
		using errcode = 'ZX123', detail = 'The oven is cold.', hint = 'Come back tomorrow.';
end $do$$sql$);
\set VERBOSITY sqlstate
SELECT pgpool.exec(:lease, $sql$do $do$ begin raise exception using errcode = 'ZX123'; end $do$$sql$);
SELECT pgpool.exec(:lease, 'select 1/0');
\set VERBOSITY default
SELECT pgpool.exec(:lease, 'create temp table t (a int primary key, b text not null check (b <> ''''))');
SELECT pgpool.exec(:lease, 'insert into t values (1, ''x'')');
SELECT pgpool.exec(:lease, 'insert into t values (1, ''y'')');
SELECT pgpool.exec(:lease, 'insert into t values (2, null)');
SELECT pgpool.exec(:lease, 'insert into t values ($1, $2)', 2, '');
-- a deferred constraint, checked at the end of the statement's transaction
SELECT pgpool.exec(:lease, 'create temp table d (a int references t deferrable initially deferred)');
SELECT pgpool.exec(:lease, 'insert into d values (2)');
SELECT pgpool.exec(:lease, 'insert into d values ($1)', 3);
SELECT * FROM pgpool.query(:lease, 'insert into d values (4) returning a') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select count(*) from d') AS t(a int);
-- after some rows
SELECT * FROM pgpool.query(:lease, 'select 100 / (10000 - i) from generate_series(1, 20000) as i') AS t(a int);
-- letters outside of ASCII in the statement
SELECT pgpool.exec(:lease, 'select "größe"');
-- the position is shown in the statement, counted in characters, or in the remote
-- function
SELECT pgpool.exec(:lease, E'select ''größe'',\n  nowhere,\n  1');
SELECT pgpool.exec(:lease, 'select 1; select ''größe'' frm, nowhere');
SELECT * FROM pgpool.query(:lease, 'select 1 from') AS t(a int);
SELECT pgpool.exec(:lease, $sql$do $do$ begin perform 'größe', nowhere; end $do$$sql$);
DO $$
BEGIN
	PERFORM pgpool.exec('shard1', 'selec 1');
END $$;
-- an empty message; a message that is too long is truncated between characters
SELECT pgpool.exec(:lease, $sql$do $do$ begin raise exception ''; end $do$$sql$);
DO $$
DECLARE
	said text;
BEGIN
	PERFORM pgpool.exec('shard1', 'do $do$ begin raise exception using message = repeat(''☃'', 100000); end $do$');
EXCEPTION WHEN raise_exception THEN
	GET STACKED DIAGNOSTICS said = MESSAGE_TEXT;
	RAISE NOTICE 'many letters: %, all of them whole: %', length(said) > 10000, said ~ '^☃+ \.\.\. \(300000 bytes in total\)$';
END $$;
SELECT pgpool.exec(:lease, 'select 1');

-- plpgsql can catch the error
DO $$
BEGIN
	PERFORM pgpool.exec('shard1', 'select 1/0');
EXCEPTION WHEN division_by_zero THEN
	RAISE NOTICE 'divided: %', SQLERRM;
END $$;

--
-- Notices
--

SELECT pgpool.exec(:lease, $sql$do $do$
begin
	raise notice 'a notice';
	raise warning 'a warning' using detail = 'its detail', hint = 'its hint';
	raise info 'an info';
	raise debug 'not sent';
	raise log 'not sent';
end $do$$sql$);
SELECT * FROM pgpool.query(:lease, 'drop table if exists nowhere') AS t(a int);
SELECT pgpool.exec(:lease, 'begin; commit; commit');
-- together with rows, and before an error
CREATE FUNCTION pg_temp.noisy() RETURNS text RETURN $sql$do $do$
begin
	raise notice 'before the error';
	raise exception 'the error';
end $do$$sql$;
SELECT pgpool.exec(:lease, $$create function pg_temp.speaks(i int) returns int language plpgsql as
	'begin raise notice ''row %'', i; return i; end'$$);
SELECT * FROM pgpool.query(:lease, 'select pg_temp.speaks(i) from generate_series(1, 3) as i') AS t(a int);
SELECT pgpool.exec(:lease, pg_temp.noisy());
-- client_min_messages applies
SET client_min_messages = warning;
SELECT pgpool.exec(:lease, $sql$do $do$ begin raise notice 'not shown'; raise warning 'shown'; end $do$$sql$);
RESET client_min_messages;
SELECT pgpool.exec(:lease, 'set client_min_messages = error');
SELECT pgpool.exec(:lease, $sql$do $do$ begin raise warning 'not sent'; end $do$$sql$);
SELECT pgpool.checkin(:lease);

-- option notices
SELECT test.server('logs', 'notices', 'log');
SELECT test.server('ignores', 'notices', 'ignore');
SELECT pgpool.exec('logs', $sql$do $do$ begin raise warning 'in the log'; end $do$$sql$);
SELECT pgpool.exec('ignores', $sql$do $do$ begin raise warning 'nowhere'; end $do$$sql$);
ALTER SERVER ignores OPTIONS (SET notices 'forward');
SELECT pgpool.exec('ignores', $sql$do $do$ begin raise warning 'here'; end $do$$sql$);
SELECT test.drop('logs', 'ignores');

-- notifications do no harm
SELECT pgpool.checkout('shard1') AS a, pgpool.checkout('shard1') AS b \gset
SELECT pgpool.exec(:a, 'listen somewhere');
SELECT pgpool.exec(:b, 'notify somewhere, ''something''');
SELECT pgpool.exec(:a, 'notify somewhere, ''more''; select 1');
SELECT * FROM pgpool.query(:a, 'select 1') AS t(a int);
SELECT pgpool.checkin_all();

--
-- A local cancel and statement_timeout end the remote statement
--

-- True if a remote statement contains this word.
CREATE FUNCTION test.remote_runs(word text) RETURNS boolean LANGUAGE sql AS $$
	SELECT n > 0 FROM pgpool.query('shard1', 'select count(*) from pg_stat_activity
		where state = ''active'' and pid <> pg_backend_pid() and query like ''%''||$1||''%''', word) AS t(n bigint)
$$;

SELECT pgpool.checkout('one') AS lease \gset
SELECT test.remote_pid(:lease) AS pid \gset
SET statement_timeout = '200ms';
SELECT pgpool.exec(:lease, 'select pg_sleep(60), ''first''');
SELECT * FROM pgpool.query(:lease, 'select pg_sleep(60), ''second''') AS t(a text, b text);
SELECT pgpool.exec('shard1', 'select pg_sleep(60), ''third''');
SELECT * FROM pgpool.query('shard1', 'select pg_sleep(60), ''fourth'' from generate_series(1, 100)') AS t(a text, b text);
-- during the transfer of rows
SELECT count(*) FROM pgpool.query(:lease, 'select i, repeat(''x'', 1000), ''fifth'' from generate_series(1, 1000000000) as i') AS t(a int, b text, c text);
RESET statement_timeout;
SELECT test.wait_for('SELECT NOT test.remote_runs(''pg_sle''||''ep'') AND NOT test.remote_runs(''fif''||''th'')');
-- the lease stays usable on the same connection, and no later statement is cancelled
SELECT test.remote_pid(:lease) = :pid AS same;
SELECT count(pgpool.exec(:lease, 'select 1')) FROM generate_series(1, 100);
SELECT pgpool.checkin(:lease);
SELECT count(pgpool.exec('one', 'select 1')) FROM generate_series(1, 100);

-- cancelled, and returned at once: the next lease is not affected
SELECT test.other_session('other');
SELECT test.other('other', 'SET statement_timeout = ''5ms''');
DO $$
BEGIN
	FOR i IN 1 .. 20 LOOP
		PERFORM test.err($q$SELECT test.other('other', 'SELECT pgpool.exec(''one'', ''select pg_sleep(60)'')')$q$);
		PERFORM pgpool.exec('one', 'select pg_sleep(0.01)');
	END LOOP;
END $$;
-- (this statement may be cancelled, too)
DO $$
BEGIN
	LOOP
		BEGIN
			PERFORM test.other('other', 'SET statement_timeout = 0');
			EXIT;
		EXCEPTION WHEN query_canceled THEN
			NULL;
		END;
	END LOOP;
END $$;

-- a statement that was cancelled remotely is an ordinary error
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec(:lease, 'set statement_timeout = ''500ms''');
SELECT pgpool.exec(:lease, 'select pg_sleep(60)');
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.checkin(:lease);

-- pg_cancel_backend by another session
SELECT test.other('other', 'SELECT pg_backend_pid()') AS other_pid \gset
SELECT dblink_send_query('other', 'SELECT test.err(''SELECT pgpool.exec(''''one'''', ''''select pg_sleep(60), 1 as sixth'''')'')');
SELECT test.wait_for('SELECT test.remote_runs(''six''||''th'')');
SELECT pg_cancel_backend(:other_pid);
SELECT * FROM dblink_get_result('other') AS t(err text);
SELECT * FROM dblink_get_result('other') AS t(err text);
SELECT test.wait_for('SELECT NOT test.remote_runs(''six''||''th'')');
SELECT pgpool.exec('one', 'select 1');

--
-- Lost connections
--

-- during a statement on a lease
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec(:lease, 'select pg_terminate_backend(pg_backend_pid())');
-- later statements on the lease
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.err(format('SELECT * FROM pgpool.query(%s, ''select 1'') AS t(a int)', :lease));
SELECT pgpool.checkin(:lease);
-- the next lease has a new connection
SELECT pgpool.exec('one', 'select 1');
-- while the rest of a result is discarded after a local error
SELECT pgpool.checkout('one') AS lease \gset
SELECT * FROM pgpool.query(:lease, 'select ''x'' union all select pg_terminate_backend(pg_backend_pid())::text') AS t(a int);
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT pgpool.checkin(:lease);
-- between two statements
SELECT pgpool.checkout('one') AS lease \gset
SELECT test.remote_pid(:lease) AS pid \gset
SELECT pgpool.exec('shard1', 'select pg_terminate_backend($1)', :pid);
SELECT test.wait_for(format('SELECT n = 0 FROM pgpool.query(''shard1'', ''select count(*) from pg_stat_activity where pid = %s'') AS t(n bigint)', :pid));
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.discard(:lease);
-- during a call
SELECT pgpool.exec('one', 'select pg_terminate_backend(pg_backend_pid())');
SELECT * FROM pgpool.query('one', 'select 1, pg_terminate_backend(pg_backend_pid())') AS t(a int, b bool);
SELECT pgpool.exec('one', 'select 1');
-- while the connection is idle: no error
SELECT pid FROM pgpool.query('one', 'select pg_backend_pid()') AS t(pid int) \gset
SELECT pgpool.exec('shard1', 'select pg_terminate_backend($1)', :pid);
SELECT test.wait_for(format('SELECT n = 0 FROM pgpool.query(''shard1'', ''select count(*) from pg_stat_activity where pid = %s'') AS t(n bigint)', :pid));
SELECT remote_pid <> :pid AS another FROM pgpool.query('one', 'select pg_backend_pid()') AS t(remote_pid int);

SELECT dblink_disconnect('other');
DROP FUNCTION test.remote_runs(text);
SELECT pgpool.check_invariants();
