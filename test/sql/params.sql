--
-- Parameters of mixed types: which of the three forms of a function a call resolves
-- to, with typed and untyped literals, and with untyped parameters as drivers send
-- them.
--
CREATE TYPE pg_temp.mood AS ENUM ('fine');

-- untyped parameters, typed ones, and both in one call
PREPARE untyped AS SELECT * FROM pgpool.query($1, $2, $3, $4) AS t(a int, b text);
EXECUTE untyped('shard1', 'select $1::int, $2', '1', 'x');
PREPARE mixed (unknown, unknown, int, unknown, text, date, unknown) AS
  SELECT * FROM pgpool.query($1, $2, $3, $4, $5, $6, $7) AS t(a int, b text, c text, d date, e text);
EXECUTE mixed('shard1', 'select $1::int, $2, $3, $4::date, $5', 1, 'x', 'y', '2026-11-21', NULL);
PREPARE as_text (text, text, int8, unknown) AS SELECT * FROM pgpool.query($1, $2, $3, $4) AS t(a int, b text);
EXECUTE as_text('shard1', 'select $1::int, $2', 1, 'x');
PREPARE as_varchar (varchar, varchar, bool, unknown) AS SELECT * FROM pgpool.query($1, $2, $3, $4) AS t(a bool, b text);
EXECUTE as_varchar('shard1', 'select $1::bool, $2', true, 'x');
PREPARE literal AS SELECT * FROM pgpool.query('shard1', 'select $1::int, $2', 1, $1) AS t(a int, b text);
EXECUTE literal('x');
SELECT name, parameter_types FROM pg_prepared_statements ORDER BY name;

-- in every function that has parameters, on a lease and on a pool
SELECT pgpool.checkout('shard1') AS lease \gset
PREPARE on_lease (int8, unknown, int, unknown) AS SELECT * FROM pgpool.query($1, $2, $3, $4) AS t(a int, b text);
EXECUTE on_lease(:lease, 'select $1::int, $2', 1, 'x');
PREPARE exec_lease (int8, unknown, int, unknown) AS SELECT pgpool.exec($1, $2, $3, $4);
EXECUTE exec_lease(:lease, 'select $1::int, $2', 1, 'x');
PREPARE exec_pool (unknown, unknown, int, unknown) AS SELECT pgpool.exec($1, $2, $3, $4);
EXECUTE exec_pool('shard1', 'select $1::int, $2', 1, 'x');
PREPARE as_lease (int8, unknown, int, unknown) AS SELECT pgpool.query_as(''::text, $1, $2, $3, $4);
EXECUTE as_lease(:lease, 'select $1::int + $2::int', 1, '2');
PREPARE as_pool (unknown, unknown, int, unknown) AS SELECT pgpool.query_as(''::text, $1, $2, $3, $4);
EXECUTE as_pool('shard1', 'select $1::int + $2::int', 1, '2');
PREPARE send (int8, unknown, int, unknown) AS SELECT pgpool.send($1, $2, $3, $4);
EXECUTE send(:lease, 'select $1::int, $2', 1, 'x');
SELECT * FROM pgpool.result(:lease) AS t(a int, b text);
PREPARE fanout (unknown, unknown, int, unknown) AS SELECT * FROM pgpool.fanout($1, $2, $3, $4) AS t(pool text, a int, b text);
EXECUTE fanout('{shard1}', 'select $1::int, $2', 1, 'x');

-- arrays, as one parameter and as all of them
PREPARE arrays (unknown, unknown, int[], unknown) AS SELECT * FROM pgpool.query($1, $2, $3, $4) AS t(a int[], b text);
EXECUTE arrays('shard1', 'select $1::int[], $2', '{1,2}', 'x');
PREPARE all_in_one (unknown, unknown, text[]) AS SELECT * FROM pgpool.query($1, $2, VARIADIC $3) AS t(a int, b text);
EXECUTE all_in_one('shard1', 'select $1::int, $2', '{1,x}');
PREPARE all_dates (unknown, unknown, date[]) AS SELECT * FROM pgpool.query($1, $2, VARIADIC $3) AS t(a date, b date);
SET DateStyle = 'German';
EXECUTE all_dates('shard1', 'select $1::date, $2::date', '{2026-11-21,NULL}');
EXECUTE mixed('shard1', 'select $1::int, $2, $3, $4::date, $5', 1, 'x', 'y', '2026-11-21', NULL);
RESET DateStyle;

-- other types work with typed values and literals, and as text with untyped
-- parameters
SELECT * FROM pgpool.query('shard1', 'select $1, $2::int, $3', 'fine'::pg_temp.mood, 1, 'x') AS t(a text, b int, c text);
SELECT * FROM pgpool.query('shard1'::text, 'select $1, $2::int, $3'::text, row(1, 2), 1, 'x') AS t(a text, b int, c text);
PREPARE other (unknown, unknown, pg_temp.mood, unknown) AS SELECT * FROM pgpool.query($1, $2, $3, $4) AS t(a text, b text);
PREPARE other (unknown, unknown, pg_temp.mood, unknown) AS SELECT * FROM pgpool.query($1, $2, pgpool.param($3), $4) AS t(a text, b text);
EXECUTE other('shard1', 'select $1, $2', 'fine', 'x');

-- values whose text form depends on settings arrive unchanged
SELECT a, b, c, d, e FROM pgpool.query('shard1', 'select $1::float8, $2::interval, $3::timestamptz[], $4::bytea, $5::jsonb',
	0.1::float8 + 0.2::float8, interval '-1 day 2 hours', ARRAY['2026-11-21 12:00+00'::timestamptz], '\xff00'::bytea, '{"a": 1}'::jsonb)
  AS t(a float8, b interval, c timestamptz[], d bytea, e jsonb);
SELECT pgpool.checkin(:lease);
DEALLOCATE ALL;
-- names of objects do not depend on search_path
CREATE TABLE test.visible ();
SET search_path = test;
SELECT * FROM pgpool.query('shard1', 'select $1, $2, $3', 'visible'::regclass, 'pg_class'::regclass, ARRAY['visible'::regclass]) AS t(a text, b text, c text);
RESET search_path;
DROP TABLE test.visible;
-- "char" and name are sent as text
SELECT * FROM pgpool.query('shard1', 'select $1, $2', 'a'::"char", 'b'::name) AS t(a text, b text);
