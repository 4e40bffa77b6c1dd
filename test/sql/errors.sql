--
-- Errors and notices of the remote server.
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

SELECT pgpool.check_invariants();
