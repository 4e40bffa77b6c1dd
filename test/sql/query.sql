--
-- query and exec: their statements, their positions in a query, and their effects.
--

SELECT pgpool.checkout('one') AS lease \gset

--
-- Results
--

SELECT * FROM pgpool.query(:lease, 'select 1, ''two'', null') AS t(a int, b text, c date);
SELECT * FROM pgpool.query(:lease, 'values (1, ''x''), (2, ''y'')') AS t(a int, b text);
-- columns are matched by position: the names are those of the list
SELECT * FROM pgpool.query(:lease, 'select 1 as a, 2 as a, 3 as b') AS t(x int, a int, y int);
-- no rows
SELECT * FROM pgpool.query(:lease, 'select 1 where false') AS t(a int);
SELECT count(*) FROM pgpool.query(:lease, 'select from generate_series(1, 0)') AS t(a int);
-- a row of nothing but NULLs, and one of empty strings
SELECT t IS NULL AS is_null, a, b FROM pgpool.query(:lease, 'select null, null') AS t(a int, b text);
SELECT length(a), a IS NULL AS is_null FROM pgpool.query(:lease, 'select ''''') AS t(a text);
-- the number of columns must match
SELECT * FROM pgpool.query(:lease, 'select 1, 2') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1') AS t(a int, b int);
SELECT * FROM pgpool.query(:lease, 'select from generate_series(1, 3)') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1 where false') AS t(a int, b int);
SELECT * FROM pgpool.query('shard1', 'select 1, 2') AS t(a int);
-- 500 columns; and the most that a remote SELECT can have
CREATE FUNCTION pg_temp.many(lease bigint, n int, OUT last int, OUT sum bigint)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE (SELECT format('SELECT c%s, (SELECT sum(value::int) FROM jsonb_each_text(to_jsonb(t))) '
			'FROM pgpool.query(%s, %L) AS t(%s)', n, lease,
			'select ' || string_agg(i::text, ', ' ORDER BY i),
			string_agg('c' || i || ' int', ', ' ORDER BY i))
		FROM generate_series(1, n) AS i) INTO last, sum;
END $$;
SELECT * FROM pg_temp.many(:lease, 500);
SELECT pgpool.exec(:lease, 'select ' || string_agg(i::text, ', ' ORDER BY i))
  FROM generate_series(1, 1664) AS i;

-- exec: rows affected, or rows returned and dropped; 0 for other commands
SELECT pgpool.exec(:lease, 'create temp table t (a int, b text)');
SELECT pgpool.exec(:lease, 'insert into t select i, ''row '' || i from generate_series(1, 10) as i');
SELECT pgpool.exec(:lease, 'update t set b = ''low'' where a < 4');
SELECT pgpool.exec(:lease, 'update t set b = ''low'' where false');
SELECT pgpool.exec(:lease, 'delete from t where a > 8');
SELECT pgpool.exec(:lease, 'insert into t values (11), (12) returning a');
SELECT pgpool.exec(:lease, 'select * from t');
SELECT pgpool.exec(:lease, 'table t');
SELECT pgpool.exec(:lease, 'values (1), (2), (3)');
SELECT pgpool.exec(:lease, 'create index on t (a)');
SELECT pgpool.exec(:lease, 'analyze t');
SELECT pgpool.exec(:lease, 'do $$ begin end $$');
SELECT pgpool.exec(:lease, 'create temp table t2 as select * from t');
SELECT pgpool.exec(:lease, 'merge into t2 using t on t.a = t2.a when matched then update set b = ''merged''');
SELECT pgpool.exec(:lease, 'select from generate_series(1, 3)');
SELECT pgpool.exec(:lease, 'fetch 2 from c');
-- query: the rows of RETURNING, and none for a statement that returns none
SELECT * FROM pgpool.query(:lease, 'insert into t values (21, ''x''), (22, null) returning a, b') AS t(a int, b text);
SELECT * FROM pgpool.query(:lease, 'update t set a = a + 1 where a > 20 returning a') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'delete from t where a > 20 returning *') AS t(a int, b text);
SELECT * FROM pgpool.query(:lease, 'insert into t values (31)') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'create temp table t3 ()') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'show datestyle') AS t(a text);
SELECT * FROM pgpool.query(:lease, 'explain (costs off) select 1') AS t(plan text);

--
-- Several statements: in exec, if there are no parameters
--

SELECT pgpool.exec(:lease, 'insert into t values (41); insert into t values (42), (43); select 1; create temp table t4 ()');
SELECT pgpool.exec(:lease, 'select 1;');
SELECT pgpool.exec(:lease, ';; select 1;; -- the end');
-- they run in one transaction, unless they control transactions themselves
SELECT pgpool.exec(:lease, 'insert into t values (51); select 1/0; insert into t values (52)');
SELECT pgpool.exec(:lease, 'begin; insert into t values (51); commit; select 1/0');
SELECT * FROM pgpool.query(:lease, 'select a from t where a between 41 and 59') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1; select 2') AS t(a int);
SELECT pgpool.exec(:lease, 'select $1; select 2', 'x');
-- empty statements
SELECT pgpool.exec(:lease, '');
SELECT pgpool.exec(:lease, ' ; -- nothing');
SELECT pgpool.exec(:lease, '', 'x');
SELECT * FROM pgpool.query(:lease, '') AS t(a int);
SELECT * FROM pgpool.query('shard1', '') AS t(a int);
SELECT * FROM pgpool.query(:lease, E' \n\t') AS t(a int);

-- a semicolon that ends no statement
SELECT * FROM pgpool.query(:lease, 'select '';'', $$;$$, 1 /* ; */ -- ;') AS t(a text, b text, c int);
-- one statement that rules expand to several; in exec the last one counts
SELECT pgpool.exec(:lease, 'create temp table ruled (a int);
	create rule also_1 as on insert to ruled do also select new.a, ''first'';
	create rule also_2 as on insert to ruled do also select new.a;
	create rule also_3 as on insert to ruled do also delete from t where a = - new.a');
SELECT pgpool.exec(:lease, 'insert into ruled values (41)');
-- query does not return their rows
SELECT * FROM pgpool.query(:lease, 'insert into ruled values (40)') AS t(a int);
SELECT pgpool.exec(:lease, 'insert into ruled values ($1)', 42);
SELECT pgpool.exec(:lease, 'insert into ruled values (1); insert into ruled values (2), (3)');
SELECT pgpool.exec(:lease, 'select 1');

--
-- Transactions, cursors and prepared statements live as long as the lease
--

SELECT pgpool.exec(:lease, 'begin');
SELECT pgpool.exec(:lease, 'declare c cursor for select * from generate_series(1, 10)');
SELECT sum(a) FROM pgpool.query(:lease, 'fetch 4 from c') AS t(a int);
SELECT pgpool.exec(:lease, 'fetch 4 from c');
SELECT * FROM pgpool.query(:lease, 'fetch 4 from c') AS t(a int);
SELECT pgpool.exec(:lease, 'savepoint s');
SELECT pgpool.exec(:lease, 'delete from t');
SELECT pgpool.exec(:lease, 'rollback to s');
SELECT pgpool.exec(:lease, 'select 1/0');
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.exec(:lease, 'rollback to s');
SELECT * FROM pgpool.query(:lease, 'select count(*) > 0 from t') AS t(still_there bool);
SELECT pgpool.exec(:lease, 'commit');
SELECT pgpool.exec(:lease, 'prepare p(int) as select $1 * 2');
SELECT * FROM pgpool.query(:lease, 'execute p(21)') AS t(a int);
\set VERBOSITY terse
SELECT pgpool.exec(:lease, 'call pg_catalog.nothing()');
\set VERBOSITY default
SELECT pgpool.exec(:lease, 'vacuum t');
-- a local rollback does not affect the remote transaction
BEGIN;
SELECT pgpool.exec(:lease, 'insert into t values (61)');
ROLLBACK;
SELECT pgpool.exec(:lease, 'delete from t where a = 61');

--
-- Transaction control in query: it is a statement without columns, and the lease
-- stays in the transaction that it has begun
--

SELECT * FROM pgpool.query(:lease, 'begin') AS t(a int);
SELECT state FROM pgpool.leases WHERE lease = :lease;
SELECT pgpool.exec(:lease, 'insert into t values (81)');
SELECT * FROM pgpool.query(:lease, 'rollback') AS t(a int);
SELECT state FROM pgpool.leases WHERE lease = :lease;
SELECT count(*) FROM pgpool.query(:lease, 'select 1 from t where a = 81') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1; commit') AS t(a int);

--
-- COPY from or to the client is refused: the connection is closed, and the lease can
-- only be returned
--

SELECT pgpool.checkin(:lease);
CREATE FUNCTION pg_temp.refuses(copy text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	held bigint;
	call text;
BEGIN
	FOREACH call IN ARRAY ARRAY ['SELECT pgpool.exec(%s, %L)', 'SELECT * FROM pgpool.query(%s, %L) AS t(a int)'] LOOP
		held := pgpool.checkout('one');
		PERFORM pgpool.exec(held, 'create temp table tt (a int)');
		RETURN QUERY SELECT * FROM test.err(format(call, held, copy));
		RETURN QUERY SELECT state FROM pgpool.leases WHERE lease = held;
		PERFORM pgpool.checkin(held);
	END LOOP;
END $$;
SELECT pg_temp.refuses('copy tt from stdin');
SELECT pg_temp.refuses('/* */ copy tt from stdin');
SELECT pg_temp.refuses('copy (select generate_series(1, 10000)) to stdout');
-- what runs behind it is cancelled
SELECT test.err($$SELECT pgpool.exec('one', 'copy (select generate_series(1, 10000)) to stdout; select pg_sleep(601)')$$);
SELECT test.wait_for($$SELECT n = 0 FROM pgpool.query('one', 'select count(*)::int from pg_stat_activity
	where query like ''copy%pg_sleep(601)%''') AS t(n int)$$);
-- no later lease reads the answers to a COPY, wherever on the remote it has failed
CREATE FUNCTION pg_temp.after_copy(copy text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	lease bigint;
	value int;
	refused int := 0;
	wrong int := 0;
BEGIN
	FOR i IN 1 .. 20 LOOP
		lease := pgpool.checkout('one');
		PERFORM pgpool.exec(lease, 'create temp table tt (a int)');
		BEGIN
			PERFORM * FROM pgpool.query(lease, copy) AS t(a int);
		EXCEPTION WHEN feature_not_supported THEN
			refused := refused + 1;
		END;
		PERFORM pgpool.checkin(lease);
		lease := pgpool.checkout('one');
		FOR j IN 1 .. 3 LOOP
			SELECT a INTO value FROM pgpool.query(lease, format('select %s', 10 * i + j)) AS t(a int);
			wrong := wrong + (value IS DISTINCT FROM 10 * i + j)::int;
		END LOOP;
		wrong := wrong + (pgpool.exec(lease, 'select generate_series(1, 7)') <> 7)::int;
		PERFORM pgpool.checkin(lease);
	END LOOP;
	RETURN format('%s refused, %s wrong', refused, wrong);
END $$;
SELECT pg_temp.after_copy('copy tt from stdin');
SELECT pg_temp.after_copy('copy tt from stdin (freeze)');
SELECT pg_temp.after_copy('/* */ copy tt from stdin');
SELECT pg_temp.after_copy('/* */ copy tt from stdin (freeze)');
SELECT pg_temp.after_copy('/* */ copy (select 1) to stdout');
-- a one-call lease leaves nothing of a transaction that its statement begins
SET client_min_messages = error;	-- the warning has the id of the lease
SELECT * FROM pgpool.query('one', 'begin') AS t(a int);
SELECT * FROM pgpool.query_as(0, 'one', 'start transaction');
RESET client_min_messages;
SELECT line FROM test.err($$SELECT pgpool.exec('one', 'savepoint outside_of_a_transaction')$$) AS line;
SELECT pgpool.exec('one', 'copy (select 1) to stdout');
SELECT * FROM pgpool.query('one', 'copy pg_class to stdout') AS t(a int);
SELECT pgpool.exec('one', 'select 1');

--
-- Positions of the functions in a query
--

SELECT pgpool.query('one', 'select 1');
SELECT * FROM pgpool.query('one', 'select 1');
SELECT 1 WHERE EXISTS (SELECT pgpool.query('one', 'select 1'));
DO $$
BEGIN
	PERFORM pgpool.query('one', 'select 1');
END $$;
SELECT pgpool.query(1::bigint, 'select 1');

SELECT * FROM pgpool.query('one', 'select generate_series(1, 100000)') AS t(a int) LIMIT 3;
SELECT * FROM pgpool.query('one', 'select generate_series(1, 5)') AS t(a int) OFFSET 3;
SELECT * FROM ROWS FROM (pgpool.query('one', 'select generate_series(1, 2)') AS (a int),
	generate_series(1, 3)) WITH ORDINALITY AS t(a, b, n);
SELECT l.a, r.b FROM pgpool.query('shard1', 'select generate_series(1, 3)') AS l(a int)
  JOIN pgpool.query('shard1', 'select i, i * i from generate_series(2, 4) as i') AS r(a int, b int)
    USING (a) ORDER BY 1;
SELECT i, t.b FROM generate_series(1, 3) AS i,
	LATERAL pgpool.query('one', 'select $1 * 10', i) AS t(b int);
WITH remote AS (SELECT * FROM pgpool.query('one', 'select generate_series(1, 4)') AS t(a int))
SELECT sum(a), (SELECT count(*) FROM remote) FROM remote WHERE a > 1;
CREATE TEMP TABLE taken (a int, b text);
INSERT INTO taken SELECT * FROM pgpool.query('one', 'select i, ''row '' || i from generate_series(1, 3) as i') AS t(a int, b text);
UPDATE taken SET b = t.b FROM pgpool.query('one', 'values (2, ''two'')') AS t(a int, b text) WHERE taken.a = t.a;
SELECT * FROM taken ORDER BY a;
SELECT pgpool.exec('one', 'select $1::int', a) FROM taken;
CREATE TEMP VIEW remote_view AS
	SELECT * FROM pgpool.query('one', 'select generate_series(1, 2)') AS t(a int);
SELECT * FROM remote_view;
-- statements in select lists and conditions run once for each row
SELECT count(*) FROM generate_series(1, 3) AS i WHERE pgpool.exec('one', 'select 1') = 1;
SELECT array(SELECT a FROM pgpool.query('one', 'select 1 union all select 2') AS t(a int));
-- nested calls use connections of their own
SELECT * FROM pgpool.query('shard1', 'select $1::int + 1',
	(SELECT a FROM pgpool.query('shard1', 'select 41') AS t(a int))) AS t(a int);
-- named arguments: only as far as the variadic one allows
SELECT pgpool.exec(pool => 'one', sql => 'select 1', VARIADIC params => '{}'::text[]);
SELECT pgpool.checkin(lease => pgpool.checkout(pool => 'one', timeout => '1 s', why => 'named'));

-- a cursor, read forward and backward, and one that is not read to its end
BEGIN;
DECLARE local_cursor SCROLL CURSOR FOR
	SELECT * FROM pgpool.query('one', 'select generate_series(1, 1000)') AS t(a int);
FETCH 2 FROM local_cursor;
FETCH LAST FROM local_cursor;
FETCH BACKWARD 1 FROM local_cursor;
-- the result has been read completely, and the connection is free
SELECT pgpool.exec('one', 'select 1');
COMMIT;

-- a result larger than work_mem is written to a file
SET work_mem = '64kB';
SELECT count(*), sum(a), min(length(b)), max(length(b))
  FROM pgpool.query('one', 'select i, repeat(''x'', 50) from generate_series(1, 100000) as i') AS t(a int, b text);
SELECT count(*) FROM pgpool.query('one', 'select generate_series(1, 100000)') AS l(a int)
  JOIN pgpool.query('one', 'select generate_series(50001, 150000)') AS r(a int) USING (a);
RESET work_mem;

--
-- Prepared statements, typed, and as drivers prepare them
--

PREPARE p1(text) AS SELECT * FROM pgpool.query('one', $1) AS t(a int);
EXECUTE p1('select 1');
EXECUTE p1('select 2');
PREPARE p2 AS SELECT pgpool.exec($1, $2);
EXECUTE p2('one', 'select generate_series(1, 7)');
PREPARE p3 AS SELECT * FROM pgpool.query('one', 'select $1::int + $2::int', $1, $2) AS t(a int);
EXECUTE p3('1', '2');
EXECUTE p3(NULL, '2');
PREPARE p4(bigint, date) AS SELECT * FROM pgpool.query($1, 'select $1::date + 1', $2) AS t(a date);
SELECT pgpool.checkout('one') AS lease \gset
EXECUTE p4(:lease, '2026-11-21');
SELECT regexp_replace(err, '"\d+"', '"N"') FROM test.err(format('EXECUTE p2(%L, ''select 1'')', :lease)) AS err;
SELECT pgpool.checkin(:lease);
PREPARE p5(text, text) AS SELECT * FROM pgpool.query('one', 'select $1 || $2', $1, $2) AS t(a text);
EXECUTE p5('a', 'b');
EXECUTE p5('a', 'b');
EXECUTE p5('a', 'b');
EXECUTE p5('a', 'b');
EXECUTE p5('a', 'b');
EXECUTE p5('a', 'b');
EXECUTE p5('a', 'last');
DEALLOCATE ALL;

--
-- Local code that runs while a result is read and uses the same lease
--

CREATE FUNCTION test.uses_lease(value int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE current_setting('test.command');
	RETURN true;
END $$;
CREATE DOMAIN test.meddling AS int CHECK (test.uses_lease(VALUE));
SELECT pgpool.checkout('one') AS lease \gset

-- each way to use or end the lease is refused
CREATE FUNCTION test.meddle(lease bigint, command text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('test.command', format(command, lease), false);
	RETURN QUERY SELECT test.err(format('SELECT * FROM pgpool.query(%s, '
		'''select generate_series(1, 1000)'') AS t(a test.meddling)', lease));
END $$;
SELECT test.meddle(:lease, 'SELECT pgpool.exec(%s, ''select 1'')');
SELECT test.meddle(:lease, 'SELECT * FROM pgpool.query(%s, ''select 1'') AS t(a int)');
SELECT test.meddle(:lease, 'SELECT pgpool.checkin(%s)');
SELECT test.meddle(:lease, 'SELECT pgpool.discard(%s)');
SELECT test.meddle(:lease, 'SELECT pgpool.checkin_all()');
SELECT pgpool.exec(:lease, 'select 1');
-- if that code catches the error, the result is complete
CREATE FUNCTION test.tries_lease(value int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE current_setting('test.command');
	RETURN false;
EXCEPTION WHEN object_not_in_prerequisite_state THEN
	RETURN true;
END $$;
CREATE DOMAIN test.trying AS int CHECK (test.tries_lease(VALUE));
SELECT sum(a) FROM pgpool.query(:lease, 'select generate_series(1, 1000)') AS t(a test.trying);
-- other leases can be used
SELECT set_config('test.command', 'SELECT pgpool.exec(''shard1'', ''select 1'')', false);
SELECT count(a) FROM pgpool.query(:lease, 'select generate_series(1, 10)') AS t(a test.meddling);
-- nested calls on a pool of size one
SELECT pgpool.checkin(:lease);
SELECT set_config('test.command', 'SELECT pgpool.exec(''one'', ''select 1'')', false);
SELECT * FROM pgpool.query('one', 'select 1') AS t(a test.meddling);
SELECT pgpool.exec('one', 'select 1');
-- checkin_all in a nested call does not return a one-call lease
SELECT set_config('test.command', 'SELECT pgpool.checkin_all()', false);
SELECT state FROM (SELECT left(err, 15) AS state FROM
	test.err('SELECT * FROM pgpool.query(''one'', ''select 1'') AS t(a test.meddling)') AS err LIMIT 1) AS e;
SELECT pgpool.exec('one', 'select 1');

DROP DOMAIN test.meddling, test.trying;
DROP FUNCTION test.meddle(bigint, text), test.uses_lease(int), test.tries_lease(int);
SELECT pgpool.checkin_all();
SELECT pgpool.check_invariants();
