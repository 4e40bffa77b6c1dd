--
-- One statement on several pools at the same time.
--
SELECT test.server('f' || n, 'pool_size', '2') FROM generate_series(1, 4) AS n;
-- each pool has its own remote session
SELECT pool, a, count(*) OVER () AS n FROM pgpool.fanout('{f1,f2,f3}', 'select 1') AS t(pool text, a int) ORDER BY pool;
SELECT count(DISTINCT pid) FROM pgpool.fanout('{f3,f1,f2}', 'select pg_backend_pid()') AS t(pool text, pid int);
SELECT * FROM pgpool.fanout('{f1}', 'select $1::int + $2::int', '40', '2') AS t(pool name, a int);
SELECT pool, sum(a) FROM pgpool.fanout('{f1,f2}', 'select generate_series(1, $1)', 1000) AS t(pool text, a int) GROUP BY pool ORDER BY pool;
SELECT * FROM pgpool.fanout('{}', 'select 1') AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1,f2}', 'create temp table x()') AS t(pool text);
SELECT pool FROM pgpool.fanout('{f1,f2}', 'select') AS t(pool text) ORDER BY pool;
-- the pool column may have another type if the name fits
SELECT * FROM pgpool.fanout('{f1}', 'select 1') AS t(pool varchar(10), a int);
SELECT * FROM pgpool.fanout('{f1}', 'select 1') AS t(pool int, a int);
SELECT * FROM pgpool.fanout('{f1}', 'select 1') AS t(a int);
SELECT * FROM pgpool.fanout('{f1}', 'select 1, 2') AS t(pool text, a int);
-- many rows from all pools at once
SELECT pool, count(*), sum(length(x)) FROM pgpool.fanout('{f1,f2,f3,f4}', 'select i, repeat(''x'', 100) from generate_series(1, 50000) as i') AS t(pool text, i int, x text) GROUP BY pool ORDER BY pool;
-- simultaneous execution: each statement waits for all the other ones
SELECT pgpool.exec('shard1', $$create function meet(n int) returns bool language plpgsql as $f$
begin
	perform pg_advisory_lock_shared(77);
	for i in 1 .. 6000 loop
		if (select count(*) from pg_locks where locktype = 'advisory' and objid = 77) >= n then
			return true;
		end if;
		perform pg_sleep(0.01);
	end loop;
	return false;
end $f$ $$);
SELECT pool, met FROM pgpool.fanout('{f1,f2,f3,f4}', 'select meet(4)') AS t(pool text, met bool) ORDER BY pool;
SELECT pgpool.exec('shard1', 'drop function meet');
SELECT server, leased, waiters FROM pgpool.pools WHERE server LIKE 'f_' ORDER BY server;
-- one statement fails: all other ones are cancelled, and the error names the server
SELECT * FROM pgpool.fanout('{f1,f2,f3}', $$select case when application_name = 'pgpool_ext/f2' then (1 / (pid - pid))::text else pg_sleep(60)::text end from pg_stat_activity where pid = pg_backend_pid()$$) AS t(pool text, a text);
SELECT test.wait_for('SELECT n = 0 FROM pgpool.query(''shard1'', ''select count(*) from pg_stat_activity where query like ''''%pg_sleep(60)%'''' and pid <> pg_backend_pid() and state = ''''active'''''') AS t(n bigint)');
-- one value does not fit
SELECT count(*) FROM pgpool.fanout('{f1,f2}', $$select case when application_name = 'pgpool_ext/f1' and i = 500 then 'none' else i::text end from generate_series(1, 1000) as i, pg_stat_activity where pid = pg_backend_pid()$$) AS t(pool text, a int);
-- one server does not exist
SELECT * FROM pgpool.fanout('{f1,f2,nowhere}', 'select 1') AS t(pool text, a int);
SELECT pgpool.checkout('f3') AS a, pgpool.checkout('f3') AS b \gset
-- a large result is read in binary from each pool
SELECT pgpool.exec('f1', 'create table fan as select i + 1000000000 as a, i * 1000003::bigint + 10000000000000 as b from generate_series(1, 2000) as i');
CREATE FUNCTION test.fan_bytes() RETURNS numeric LANGUAGE sql AS
	$$SELECT sum(bytes_received) FROM pgpool.stats WHERE server IN ('f1', 'f2')$$;
SELECT test.fan_bytes() AS before \gset
SELECT pool, sum(a), sum(b) FROM pgpool.fanout('{f1,f2}', 'select * from fan') AS t(pool text, a int, b bigint) GROUP BY pool ORDER BY pool;
SELECT test.fan_bytes() - :before AS texts \gset
SELECT test.fan_bytes() AS before \gset
SELECT pool, sum(a), sum(b) FROM pgpool.fanout('{f1,f2}', 'select * from fan') AS t(pool text, a int, b bigint) GROUP BY pool ORDER BY pool;
SELECT test.fan_bytes() - :before < :texts - 5000 AS fewer_bytes;
-- a result with other columns is read correctly
SELECT pgpool.exec('f1', 'alter table fan add c int');
SELECT * FROM pgpool.fanout('{f2}', 'select * from fan') AS t(pool text, a int, b bigint);
SELECT pgpool.exec('f1', 'alter table fan drop c');
SELECT pool, sum(a), sum(b) FROM pgpool.fanout('{f1,f2}', 'select * from fan') AS t(pool text, a int, b bigint) GROUP BY pool ORDER BY pool;
SELECT pgpool.exec('f1', 'drop table fan');
SELECT line FROM test.err('SELECT * FROM pgpool.fanout(''{f1,f2,f3}'', ''select 1'') AS t(pool text, a int)') AS line;
SELECT pgpool.checkin_all();
-- the local statement is cancelled
SET LOCAL statement_timeout = '100 ms'\; SELECT * FROM pgpool.fanout('{f1,f2,f3}', 'select pg_sleep(60)') AS t(pool text, a text);
SELECT test.wait_for('SELECT n = 0 FROM pgpool.query(''shard1'', ''select count(*) from pg_stat_activity where query like ''''%pg_sleep(60)%'''' and pid <> pg_backend_pid() and state = ''''active'''''') AS t(n bigint)');
-- no timeout
SET pgpool_ext.checkout_timeout = 0;
SELECT count(*) FROM pgpool.fanout('{f4,f1,f2,f3}', 'select 1') AS t(pool text, a int);
RESET pgpool_ext.checkout_timeout;
-- invalid arguments
SELECT * FROM pgpool.fanout(NULL, 'select 1') AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1,NULL}', 'select 1') AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1,f2,f1}', 'select 1') AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1,f2}', NULL) AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1}', '') AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1}', 'select 1; select 2') AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1}', 'copy pg_class to stdout') AS t(pool text, a int);
SELECT * FROM pgpool.fanout('{f1,f2}', 'select 1', VARIADIC array_fill('1'::text, ARRAY[65536])) AS t(pool text, a int);
SELECT pgpool.fanout('{f1,f2}', 'select 1');
SELECT count(*) FROM pgpool.leases;
SELECT test.drop('f1', 'f2', 'f3', 'f4');
SELECT pgpool.check_invariants();
