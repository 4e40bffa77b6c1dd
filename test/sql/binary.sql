--
-- Binary results: after a statement has returned many rows, its rows are requested in
-- binary, for columns whose type is the same locally and remotely.
--
SELECT test.server('fast', 'pool_size', '1');
CREATE DOMAIN test.small AS int CHECK (value < 1000000);
-- one query text for both sides
\set types 'i % 2 = 0 as b, i::int2 as i2, i * 1000003 as i4, i * 10000000019 as i8, (i / 7.0)::float4 as f4, sqrt(abs(i)) as f8, (i * 12345.678900)::numeric as n, (i / 3.0)::numeric(20, 3) as nt, date ''2000-02-29'' + i * 97 as d, time ''00:00'' + i * interval ''61.000001 s'' as t, timetz ''00:00+05:30'' + i * interval ''61.5 s'' as tz, timestamp ''1999-12-31 23:59:59.999999'' + i * interval ''1 day 1 s'' as ts, timestamptz ''1999-12-31 23:59:59.999999+00'' + i * interval ''731 hours'' as tstz, make_interval(months => i, days => -i, secs => i / 3.0) as iv, md5(i::text)::uuid as u, decode(md5(i::text), ''hex'') as by, array[i, null, -i] as ai, array[[i, 1], [2, 3]]::numeric[] as an, ''text '' || i as tx, (''['' || i || '']'')::jsonb as j, i::bpchar(8) as c'
\set columns 'b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, nt numeric(20, 3), d date, t time, tz timetz, ts timestamp, tstz timestamptz, iv interval, u uuid, by bytea, ai int[], an numeric[], tx text, j jsonb, c bpchar(8)'
SELECT format('select %s from generate_series(-150, 150) as i union all select null, null, null, null, ''NaN'', ''-Infinity'', ''NaN'', null, ''infinity'', null, ''24:00:00-15:59'', ''-infinity'', ''4714-11-24 00:00:00+00 BC'', ''-178000000 years'', null, '''', ''{}'', ''[2:3]={NaN,1e-100}'', '''', ''null'', null', :'types') AS sql \gset
SELECT pgpool.exec('fast', 'select 1');
CREATE FUNCTION test.bytes() RETURNS bigint LANGUAGE sql AS
	$$SELECT bytes_received FROM pgpool.stats WHERE server = 'fast'$$;
-- first in text, then in binary; rows must be identical
CREATE TEMP TABLE first AS SELECT * FROM pgpool.query('fast', :'sql') AS t(:columns);
SELECT test.bytes() AS bytes1 \gset
CREATE TEMP TABLE second AS SELECT * FROM pgpool.query('fast', :'sql') AS t(:columns);
SELECT test.bytes() - :bytes1 < :bytes1 - 1000 AS fewer_bytes;
SELECT 'CREATE TEMP TABLE here AS ' || :'sql' \gexec
SELECT (SELECT count(*) FROM here) AS rows,
	(SELECT count(*) FROM (SELECT h::text FROM here h EXCEPT SELECT f::text FROM first f) AS x) AS text_differs,
	(SELECT count(*) FROM (SELECT h::text FROM here h EXCEPT SELECT s::text FROM second s) AS x) AS binary_differs,
	(SELECT count(*) FROM (SELECT row_number() OVER () AS k, h FROM here h) AS h JOIN (SELECT row_number() OVER () AS k, s FROM second s) AS s USING (k) WHERE h.h *= s.s) AS same_images;
-- local settings have no effect
SET DateStyle = 'German, DMY'; SET IntervalStyle = 'iso_8601'; SET extra_float_digits = -5; SET TimeZone = 'Asia/Kathmandu'; SET bytea_output = 'escape';
CREATE TEMP TABLE third AS SELECT * FROM pgpool.query('fast', :'sql') AS t(:columns);
RESET DateStyle; RESET IntervalStyle; RESET extra_float_digits; RESET TimeZone; RESET bytea_output;
SELECT count(*) FROM (SELECT row_number() OVER () AS k, h FROM here h) AS h JOIN (SELECT row_number() OVER () AS k, s FROM third s) AS s USING (k) WHERE h.h *= s.s;
-- precisions are those of the local column
\set fine 'select time ''12:00:00.123456'', timestamp ''2026-01-01 12:00:00.987654'', timestamptz ''2026-01-01 12:00:00.987654Z'' from generate_series(1, 1000)'
SELECT a, b, c AT TIME ZONE 'UTC' AS c, count(*) FROM pgpool.query('fast', :'fine') AS t(a time(2), b timestamp(0), c timestamptz(1)) GROUP BY a, b, c;
SELECT a, b, c AT TIME ZONE 'UTC' AS c, count(*) FROM pgpool.query('fast', :'fine') AS t(a time(2), b timestamp(0), c timestamptz(1)) GROUP BY a, b, c;
-- parameters, and query_as
SELECT sum(a) FROM pgpool.query('fast', 'select generate_series(1, $1::int)', '1000') AS t(a int);
SELECT sum(a) FROM pgpool.query('fast', 'select generate_series(1, $1::int)', '1000') AS t(a int);
SELECT sum(a) FROM pgpool.query('fast', 'select generate_series(1, $1::int)', '10') AS t(a int);
SELECT sum(a) FROM pgpool.query_as(0, 'fast', 'select generate_series(1, 1000)') AS a;
SELECT sum(a) FROM pgpool.query_as(0, 'fast', 'select generate_series(1, 1000)') AS a;
-- domains are checked, also for NULL
SELECT sum(a) FROM pgpool.query('fast', 'select generate_series(999000, 999999)') AS t(a test.small);
SELECT sum(a) FROM pgpool.query('fast', 'select generate_series(999000, 999999)') AS t(a test.small);
SELECT pgpool.exec('fast', 'create table t as select i as a, i + 1 as b from generate_series(1, 1000) as i');
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a test.small, b int);
SELECT pgpool.exec('fast', 'insert into t values (1000000, null)');
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a test.small, b int);
SELECT pgpool.exec('fast', 'delete from t where a = 1000000; insert into t values (null, null)');
ALTER DOMAIN test.small SET NOT NULL;
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a test.small, b int);
--
-- The remote table changes between two executions
--
-- another type: values are still right
SELECT pgpool.exec('fast', 'alter table t alter a type bigint');
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a bigint, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a bigint, b int);
SELECT pgpool.exec('fast', 'alter table t alter a type numeric using a * 10000000000');
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a bigint, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
-- a type without binary input: one error
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a numeric, b int);
SELECT pgpool.exec('fast', 'alter table t alter a type text');
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a numeric, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a numeric, b int);
-- other columns: the statement runs again, in text
SELECT pgpool.exec('fast', 'drop table t; create table t as select i as a, i + 1 as b from generate_series(1, 1000) as i');
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
SELECT pgpool.exec('fast', 'alter table t add c int default 7');
SELECT statements AS statements1, errors AS errors1 FROM pgpool.stats WHERE server = 'fast' \gset
SELECT sum(a), sum(b) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int);
SELECT statements - :statements1 AS statements, errors - :errors1 AS errors FROM pgpool.stats WHERE server = 'fast';
SELECT sum(a), sum(b), sum(c) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int, c int);
SELECT sum(a), sum(b), sum(c) FROM pgpool.query('fast', 'select * from t') AS t(a int, b int, c int);
-- in a remote transaction, which fails
SELECT pgpool.checkout('fast') AS lease \gset
SELECT pgpool.exec(:lease, 'begin; alter table t drop c');
SELECT sum(a), sum(b), sum(c) FROM pgpool.query(:lease, 'select * from t') AS t(a int, b int, c int);
SELECT pgpool.exec(:lease, 'rollback');
SELECT sum(a), sum(b), sum(c) FROM pgpool.query(:lease, 'select * from t') AS t(a int, b int, c int);
SELECT pgpool.checkin(:lease);
-- the columns of FETCH are those of the cursor: it always requests text
SELECT pgpool.checkout('fast') AS lease \gset
SELECT pgpool.exec(:lease, 'begin; declare c cursor for select i::bigint from generate_series(1, 1000) as i');
SELECT min(a), count(a) FROM pgpool.query(:lease, 'fetch 500 from c') AS t(a bigint);
SELECT pgpool.exec(:lease, 'close c; declare c cursor for select i::text from generate_series(1, 1000) as i');
SELECT min(a), count(a) FROM pgpool.query(:lease, 'fetch 500 from c') AS t(a bigint);
SELECT pgpool.exec(:lease, 'rollback');
SELECT pgpool.checkin(:lease);
-- a type whose text depends on settings is not converted by way of its text
SET timezone = 'Asia/Kathmandu';
SELECT pgpool.exec('fast', 'create table instants as select timestamp ''2026-01-01'' + i * interval ''1 s'' as a from generate_series(0, 999) as i');
SELECT min(a) FROM pgpool.query('fast', 'select a from instants') AS t(a timestamp);
SELECT min(a) FROM pgpool.query('fast', 'select a from instants') AS t(a timestamp);
SELECT pgpool.exec('fast', 'set timezone = ''UTC''; alter table instants alter a type timestamptz');
SELECT min(a) FROM pgpool.query('fast', 'select a from instants') AS t(a timestamp);
RESET timezone;
SELECT pgpool.exec('fast', 'drop table instants');
-- an error in the middle of the result leaves the lease usable
SELECT sum(a) FROM pgpool.query('fast', 'select i from generate_series(1, 1000) as i') AS t(a int);
SELECT sum(a) FROM pgpool.query('fast', 'select 1000 / (500 - i) from generate_series(1, 1000) as i') AS t(a int);
-- an error with the same SQLSTATE during execution is that of the statement, which
-- runs once
SELECT pgpool.exec('fast', 'create sequence runs; create function strange(i int) returns int language plpgsql as $f$ begin
	if i < 0 then perform nextval(''runs''); raise ''strange'' using errcode = ''08P01''; end if; return i; end $f$; create table sign as select 1 as s');
SELECT sum(a) FROM pgpool.query('fast', 'select strange(i * s) from generate_series(1, 1000) as i, sign') AS t(a int);
SELECT sum(a) FROM pgpool.query('fast', 'select strange(i * s) from generate_series(1, 1000) as i, sign') AS t(a int);
SELECT pgpool.exec('fast', 'update sign set s = -1');
\set VERBOSITY sqlstate
SELECT sum(a) FROM pgpool.query('fast', 'select strange(i * s) from generate_series(1, 1000) as i, sign') AS t(a int);
\set VERBOSITY default
SELECT * FROM pgpool.query('fast', 'select last_value from runs') AS t(runs bigint);
SELECT pgpool.exec('fast', 'drop function strange; drop sequence runs; drop table sign');
SELECT pgpool.exec('fast', 'drop table t');
DROP FUNCTION test.bytes();
DROP DOMAIN test.small;
SELECT test.drop('fast');
SELECT pgpool.check_invariants();
