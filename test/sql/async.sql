--
-- Statements in flight: send, wait, wait_any, result, cancel, notifications.
--
SELECT test.server('shards', 'pool_size', '4');
SELECT pgpool.checkout('shards') AS a, pgpool.checkout('shards') AS b, pgpool.checkout('shards') AS c \gset

--
-- One statement
--
SELECT pgpool.send(:a, 'select 1, ''one''');
SELECT pgpool.wait(:a);
SELECT pgpool.wait(:a, '0');
SELECT * FROM pgpool.result(:a) AS t(id int, name text);

-- parameters, untyped and typed
SELECT pgpool.send(:a, 'select $1::int + $2::int', '40', '2');
SELECT * FROM pgpool.result(:a) AS t(sum int);
SELECT pgpool.send(:a, 'select $1::int + $2::int', 40, 2);
SELECT * FROM pgpool.result(:a) AS t(sum int);
SELECT pgpool.send(:a, 'select $1', VARIADIC ARRAY[repeat('x', 100000)]);
SELECT length(x) FROM pgpool.result(:a) AS t(x text);

-- a large result is requested in binary from the second execution on
SELECT test.server('flights', 'pool_size', '1');
CREATE FUNCTION test.flights_bytes() RETURNS numeric LANGUAGE sql AS
	$$SELECT sum(bytes_received) FROM pgpool.stats WHERE server = 'flights'$$;
CREATE FUNCTION test.large(lease bigint, columns text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	said text;
BEGIN
	PERFORM pgpool.send(lease, 'select i + 1000000000 as a, i * 1000003::bigint + 10000000000000 as b from generate_series(1, 2000) as i');
	EXECUTE format('SELECT min(a) || '' '' || max(b::text) FROM pgpool.result(%s) AS t(%s)', lease, columns) INTO said;
	RETURN said;
END $$;
SELECT pgpool.checkout('flights') AS d \gset
SELECT test.large(:d, 'a int, b bigint');
SELECT pgpool.checkin(:d), test.flights_bytes() AS texts \gset
SELECT pgpool.checkout('flights') AS d \gset
SELECT test.large(:d, 'a int, b bigint');
SELECT test.large(:d, 'a text, b numeric');
SELECT test.large(:d, 'a int8, b text');
SELECT pgpool.checkin(:d) \gset
SELECT test.flights_bytes() - :texts < 3 * :texts - 20000 AS fewer_bytes;
SELECT pgpool.checkout('flights') AS d \gset
SELECT pgpool.exec(:d, 'create temp table narrow as select i as a, i as b from generate_series(1, 1000) as i');
SELECT pgpool.send(:d, 'select * from narrow') \gset
SELECT count(*) FROM pgpool.result(:d) AS t(a int, b int);
SELECT pgpool.exec(:d, 'alter table narrow add c int');
SELECT pgpool.send(:d, 'select * from narrow') \gset
SELECT * FROM pgpool.result(:d) AS t(a int, b int, c int);
SELECT pgpool.send(:d, 'select * from narrow') \gset
SELECT count(*), count(b), count(c) FROM pgpool.result(:d) AS t(a int, b int, c int);
-- a result whose text form depends on changed settings is requested as text
SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Tokyo';
SELECT pgpool.send(:d, 'select ''2024-03-04 05:06:07+00''::timestamptz + i * interval ''0 s'' from generate_series(1, 100) as i') \gset
SELECT min(x) AS here FROM pgpool.result(:d) AS t(x timestamptz);
SELECT pgpool.send(:d, 'select ''2024-03-04 05:06:07+00''::timestamptz + i * interval ''0 s'' from generate_series(1, 100) as i') \gset
SELECT min(x) ~ '^2024-03-0[34] ' AS as_the_remote_writes_it FROM pgpool.result(:d) AS t(x text);
RESET DateStyle; RESET TimeZone;
SELECT pgpool.checkin(:d);
SELECT test.drop('flights');

-- no rows
SELECT pgpool.send(:a, 'create temp table kept (id int)');
SELECT * FROM pgpool.result(:a) AS t(nothing int);
SELECT pgpool.send(:a, 'insert into kept select generate_series(1, 3)');
SELECT * FROM pgpool.result(:a) AS t(nothing int);
SELECT pgpool.send(:a, 'insert into kept values (4) returning id');
SELECT * FROM pgpool.result(:a) AS t(id int);

-- the views show whether the statement has ended
SELECT pgpool.exec(:b, 'select pg_advisory_lock(1)');
SELECT pgpool.send(:a, 'select pg_advisory_lock(1)');
SELECT pgpool.try_wait(:a), pgpool.wait(:a, '10 ms');
-- 0 means no limit
SET LOCAL statement_timeout = '200 ms'\; SELECT pgpool.wait(:a, '0');
SELECT state FROM pgpool.leases WHERE lease = :a;
SELECT pgpool.exec(:b, 'select pg_advisory_unlock(1)');
SELECT pgpool.wait(:a);
SELECT pgpool.try_wait(:a);
SELECT count(*) FROM pgpool.result(:a) AS t(x text);
SELECT state FROM pgpool.leases WHERE lease = :a;
SELECT pgpool.exec(:a, 'select pg_advisory_unlock_all()');

-- more rows than are read ahead
SELECT pgpool.send(:a, 'select i, repeat(''x'', 1000) from generate_series(1, 20000) as i');
SELECT pgpool.wait(:a, '10 s');
SELECT count(*), sum(i), sum(length(x)) FROM pgpool.result(:a) AS t(i int, x text);

-- result in another transaction than send, and after a failed one
BEGIN;
SELECT pgpool.send(:a, 'select 1');
ROLLBACK;
SELECT * FROM pgpool.result(:a) AS t(id int);
SELECT pgpool.send(:a, 'select 2');
SELECT 1 / 0;
SELECT * FROM pgpool.result(:a) AS t(id int);

--
-- Several statements
--
SELECT pgpool.exec(:c, 'select pg_advisory_lock(1), pg_advisory_lock(2)');
SELECT pgpool.send(:a, 'select pg_advisory_lock_shared(1)'), pgpool.send(:b, 'select pg_advisory_lock_shared(2)');
SELECT pgpool.try_wait_any(ARRAY[:a, :b]) IS NULL AS none, pgpool.wait_any(ARRAY[:a, :b], '10 ms') IS NULL AS none_yet;
SET LOCAL statement_timeout = '200 ms'\; SELECT pgpool.wait_any(ARRAY[:a, :b], '0');
SELECT pgpool.exec(:c, 'select pg_advisory_unlock(2)');
SELECT pgpool.wait_any(ARRAY[:a, :b]) = :b AS b;
SELECT pgpool.try_wait_any(ARRAY[:a, :b]) = :b AS still_b;
SELECT count(*) FROM pgpool.result(:b) AS t(x text);
SELECT pgpool.exec(:c, 'select pg_advisory_unlock(1)');
SELECT pgpool.wait_any(ARRAY[:a]) = :a AS a;
SELECT count(*) FROM pgpool.result(:a) AS t(x text);
SELECT pgpool.exec(l, 'select pg_advisory_unlock_all()') FROM unnest(ARRAY[:a, :b, :c]) AS l;

-- all at once, in the order of arrival
SELECT pgpool.send(l, 'select pg_backend_pid() from pg_sleep(0.05)') FROM unnest(ARRAY[:a, :b, :c]) AS l;
DO $$
DECLARE
	open bigint[] := (SELECT array_agg(lease) FROM pgpool.leases WHERE pid = pg_backend_pid());
	next bigint;
	pids int[];
BEGIN
	WHILE cardinality(open) > 0 LOOP
		next := pgpool.wait_any(open);
		pids := pids || (SELECT pid FROM pgpool.result(next) AS t(pid int));
		open := array_remove(open, next);
	END LOOP;
	RAISE NOTICE '% answers of % sessions', cardinality(pids), (SELECT count(DISTINCT p) FROM unnest(pids) AS p);
END $$;

--
-- Errors of the remote server are raised by result, once
--
SELECT pgpool.send(:a, 'select 1 / 0');
SELECT pgpool.wait(:a);
SELECT * FROM pgpool.result(:a) AS t(x int);
SELECT line FROM test.err(format('SELECT * FROM pgpool.result(%s) AS t(x int)', :a)) AS line;
SELECT pgpool.send(:a, 'nonsense');
SELECT * FROM pgpool.result(:a) AS t(x int);
SELECT pgpool.send(:a, '');
SELECT * FROM pgpool.result(:a) AS t(x int);
SELECT pgpool.send(:a, 'select 1; select 2');
SELECT * FROM pgpool.result(:a) AS t(x int);
-- a result that does not fit is dropped, and the lease stays usable
SELECT pgpool.send(:a, 'select 1, 2');
SELECT * FROM pgpool.result(:a) AS t(x int);
SELECT pgpool.send(:a, 'select case when i < 5000 then i::text else ''none'' end from generate_series(1, 10000) as i');
SELECT count(*) FROM pgpool.result(:a) AS t(x int);
SELECT pgpool.exec(:a, 'select 1');

--
-- Cancel
--
SELECT pgpool.cancel(:a);
SELECT pgpool.send(:a, 'select pg_sleep(60)');
SELECT pgpool.cancel(:a);
SELECT * FROM pgpool.result(:a) AS t(x text);
SELECT pgpool.cancel(:a);
SELECT pgpool.exec(:a, 'select 1');
-- a statement that has ended cannot be cancelled
SELECT pgpool.send(:a, 'select 1');
SELECT pgpool.wait(:a);
SELECT pgpool.cancel(:a);
SELECT * FROM pgpool.result(:a) AS t(x int);
-- a cancelled wait does not cancel the statement
SELECT pgpool.send(:a, 'select pg_advisory_lock(3)') FROM (SELECT pgpool.exec(:b, 'select pg_advisory_lock(3)')) AS t(x);
SET LOCAL statement_timeout = '50 ms'\; SELECT pgpool.wait(:a);
SET LOCAL statement_timeout = '50 ms'\; SELECT pgpool.wait_any(ARRAY[:a]);
SELECT pgpool.exec(:b, 'select pg_advisory_unlock(3)');
SELECT count(*) FROM pgpool.result(:a) AS t(x text);
-- a cancelled result cancels the remote statement
SELECT pgpool.send(:a, 'select pg_sleep(60)');
SET LOCAL statement_timeout = '50 ms'\; SELECT * FROM pgpool.result(:a) AS t(x text);
SELECT pgpool.exec(:a, 'select 1');

--
-- Calls in the wrong order
--
SELECT pgpool.result(:a);
SELECT line FROM test.err(format('SELECT * FROM pgpool.result(%s) AS t(x int)', :a)) AS line;
SELECT line FROM test.err(format('SELECT pgpool.wait(%s)', :a)) AS line;
SELECT pgpool.send(:a, 'select 7');
SELECT line FROM test.err(format('SELECT pgpool.wait_any(ARRAY[%s, %s])', :a, :b)) AS line;
SELECT line FROM test.err(format('SELECT pgpool.send(%s, ''select 8'')', :a)) AS line;
SELECT line FROM test.err(format('SELECT pgpool.exec(%s, ''select 8'')', :a)) AS line;
SELECT line FROM test.err(format('SELECT * FROM pgpool.query(%s, ''select 8'') AS t(x int)', :a)) AS line;
SELECT line FROM test.err(format('SELECT * FROM pgpool.notifications(%s)', :a)) AS line;
SELECT pgpool.result(:a);
SELECT * FROM pgpool.result(:a) AS t(x int);
-- invalid arguments
SELECT pgpool.send(NULL, 'select 1');
SELECT pgpool.send(:a, NULL);
SELECT pgpool.send(:a, 'select $1', VARIADIC NULL::text[]);
SELECT pgpool.send(-1, 'select 1');
SELECT pgpool.send(:a, 'select 1', VARIADIC array_fill('1'::text, ARRAY[65536]));
SELECT pgpool.wait(NULL);
SELECT pgpool.wait(0);
SELECT pgpool.wait_any(NULL), 1;
SELECT pgpool.wait_any('{}');
SELECT pgpool.wait_any('{NULL}');
SELECT pgpool.send(:a, 'select 1');
SELECT pgpool.wait(:a, '-1 s');
SELECT line FROM test.err(format('SELECT pgpool.wait_any(ARRAY[%s, %1$s])', :a)) AS line;
SELECT pgpool.wait_any(ARRAY[0, :a]);
SELECT * FROM pgpool.result(NULL) AS t(x int);
SELECT * FROM pgpool.result(:a) AS t(x int);
SELECT pgpool.cancel(NULL);
SELECT pgpool.cancel(0);
SELECT * FROM pgpool.notifications(NULL);
SELECT * FROM pgpool.wait_notifications(NULL);
SELECT * FROM pgpool.wait_notifications(:a, '-1 s');
-- the lease of another user
SET ROLE regress_pgpool_app;
SELECT line FROM test.err(format('SELECT pgpool.send(%s, ''select 1'')', :a)) AS line;
SELECT line FROM test.err(format('SELECT pgpool.cancel(%s)', :a)) AS line;
RESET ROLE;

--
-- Notifications
--
SELECT * FROM pgpool.notifications(:a);
SELECT * FROM pgpool.wait_notifications(:a, '10 ms');
SET LOCAL statement_timeout = '200 ms'\; SELECT * FROM pgpool.wait_notifications(:a);
SET LOCAL statement_timeout = '200 ms'\; SELECT * FROM pgpool.wait_notifications(:a, '0');
SELECT pgpool.exec(:a, 'listen news; listen "Other"');
SELECT pgpool.exec(:b, 'notify news; notify "Other", ''half past nine''');
SELECT channel, payload, remote_pid = test.remote_pid(:b) AS from_b FROM pgpool.wait_notifications(:a, '10 s');
SELECT * FROM pgpool.notifications(:a);
-- notifications with the answer to another statement
SELECT pgpool.exec(:a, 'notify news, ''mine''');
SELECT pgpool.exec(:b, 'notify news, ''theirs''');
SELECT pgpool.exec(:a, 'select 1');
SELECT channel, payload FROM pgpool.wait_notifications(:a, '10 s') ORDER BY payload;
-- the same if that statement has failed
SELECT pgpool.exec(:b, 'notify news, ''during''');
SELECT * FROM pgpool.query(:a, 'select 1, 2') AS t(x int);
SELECT channel, payload FROM pgpool.wait_notifications(:a, '10 s');
-- more notifications than are kept
SELECT pgpool.exec(:b, 'select count(pg_notify(''news'', i || repeat(''x'', 7000))) from generate_series(1, 300) as i');
SELECT pgpool.exec(:a, 'select 1');
SET client_min_messages = error;
SELECT count(*) BETWEEN 100 AND 299 AS some FROM pgpool.wait_notifications(:a, '10 s');
RESET client_min_messages;
SELECT pgpool.exec(:b, 'notify news, ''after''');
SELECT channel, payload FROM pgpool.wait_notifications(:a, '10 s');
-- notifications are not seen by the next lease
SELECT pgpool.exec(:b, 'notify news, ''too late''');
SELECT pgpool.checkin(:a);
SELECT pgpool.checkout('shards') AS a \gset
SELECT pgpool.exec(:b, 'notify news, ''unreceived''');
SELECT count(*) FROM pgpool.wait_notifications(:a, '50 ms');

--
-- Checkin with a statement in flight
--
-- its answer has arrived: the connection is kept
SELECT test.remote_pid(:a) AS pid \gset
SELECT pgpool.send(:a, 'select 1');
SELECT pgpool.wait(:a);
SELECT pgpool.checkin(:a);
SELECT pgpool.checkout('shards') AS a \gset
SELECT test.remote_pid(:a) = :pid AS same;
-- it still runs: it is cancelled, and has ended when checkin returns
SELECT pgpool.send(:a, 'select pg_sleep(60)');
SET client_min_messages = error;
SELECT pgpool.checkin(:a);
RESET client_min_messages;
SELECT n FROM pgpool.query('shard1', format('select count(*) from pg_stat_activity where pid = %s and wait_event = ''PgSleep''', :pid)) AS t(n bigint);
-- the answer to a COPY from or to the client need not end
SELECT pgpool.checkout('shards') AS a \gset
SELECT pgpool.send(:a, 'copy (select 1) to stdout');
SELECT pgpool.wait(:a);
SELECT * FROM pgpool.result(:a) AS t(x int);
SELECT pgpool.checkin(:a);
-- a transaction ends with a statement in flight
BEGIN;
SELECT pgpool.checkout_xact('shards') AS x \gset
SELECT test.remote_pid(:x) AS pid \gset
SELECT pgpool.send(:x, 'select pg_sleep(60)');
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
SELECT n FROM pgpool.query('shard1', format('select count(*) from pg_stat_activity where pid = %s and wait_event = ''PgSleep''', :pid)) AS t(n bigint);
-- the lease with a statement in flight is revoked: the error has the reason
BEGIN;
SELECT pgpool.checkout_xact('shards') AS x \gset
SELECT pgpool.send(:x, 'select 1');
SELECT pgpool.terminate(:x);
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
-- a session ends with a statement in flight
SELECT test.other_session('other');
SELECT test.other('other', 'SELECT pgpool.send(pgpool.checkout(''shards''), ''select pg_sleep(60)'')');
SELECT dblink_disconnect('other');
SELECT test.wait_for('SELECT n = 0 FROM pgpool.query(''shard1'', ''select count(*) from pg_stat_activity where query like ''''%pg_sleep(60)%'''' and pid <> pg_backend_pid() and state = ''''active'''''') AS t(n bigint)');

--
-- Memory for a large answer is freed with the lease
--
SELECT pgpool.checkout('shards') AS x \gset
SELECT pgpool.send(:x, 'select repeat(''x'', 30000000)');
SELECT length(t) FROM pgpool.result(:x) AS r(t text);
SELECT pgpool.checkin(:x);
SELECT used_bytes < 15000000 AS little FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';
-- the same for a large statement
SELECT pgpool.checkout('shards') AS x \gset
SELECT pgpool.exec(:x, 'select length($1)', repeat('x', 30000000));
SELECT used_bytes < 15000000 AS little FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';
SELECT pgpool.checkin(:x);
-- the same for unread notifications
DO $$
DECLARE
	l bigint;
BEGIN
	FOR i IN 1 .. 20 LOOP
		l := pgpool.checkout('shards');
		PERFORM pgpool.exec(l, 'listen news');
		PERFORM pgpool.exec(l, 'select count(pg_notify(''news'', i || repeat(''x'', 7000))) from generate_series(1, 140) as i');
		PERFORM pgpool.checkin(l);
	END LOOP;
END $$;
SELECT used_bytes < 15000000 AS little FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';

SELECT pgpool.checkin_all();
SELECT test.drop('shards');
SELECT pgpool.check_invariants();
