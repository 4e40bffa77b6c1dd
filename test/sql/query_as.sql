--
-- query_as: the type of the result is that of a template.
--

CREATE TABLE test.orders (id bigint, gone int, day date, total numeric(8,2));
ALTER TABLE test.orders DROP COLUMN gone;
CREATE TYPE test.point3 AS (x int, y int, z text);
CREATE DOMAIN test.positive AS int CHECK (VALUE > 0);
CREATE DOMAIN test.given AS text NOT NULL;
CREATE DOMAIN test.above AS test.point3 CHECK ((VALUE).x > 0);
CREATE TYPE test.mood AS ENUM ('sad', 'ok');
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec(:lease, 'create temp table orders (total numeric, id int, day date);
	insert into orders values (12.5, 1, ''2026-11-21''), (null, 2, ''infinity''), (-3, 3, null)');

--
-- Row types: columns are matched by name, in any order
--

SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select * from orders');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select day, id, total from orders where id = 1');
SELECT o.day, o.id, o FROM pgpool.query_as(NULL::test.orders, :lease, 'table orders') AS o;
-- no rows, and no result
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select * from orders where false');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'update orders set id = id');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'update orders set id = id where id = 1 returning *');
-- the template's value does not matter
SELECT * FROM pgpool.query_as((9, '2026-01-01', 1)::test.orders, :lease, 'select * from orders where id = 1');
-- columns that are added and dropped
ALTER TABLE test.orders DROP COLUMN day, ADD COLUMN note text DEFAULT 'local', ADD COLUMN "Größe ☃" int;
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select 4 as "Größe ☃", ''n'' as note, 3.14159 as total, 1 as id');
SELECT note, id FROM pgpool.query_as(NULL::test.orders, :lease, 'select 4 as "Größe ☃", null as note, 3.14159 as total, 1 as id');
ALTER TABLE test.orders DROP COLUMN note, DROP COLUMN "Größe ☃", ADD COLUMN day date;
-- all eight forms: lease and pool, untyped and typed parameters
SELECT a.x, b.x, c.x, d.x
  FROM pgpool.query_as(NULL::test.point3, :lease, 'select $1::int as x, 0 as y, null as z', '1') AS a,
	pgpool.query_as(NULL::test.point3, :lease, 'select $1::int as x, 0 as y, null as z', 2) AS b,
	pgpool.query_as(NULL::test.point3, 'shard1', 'select $1::int as x, 0 as y, null as z', '3') AS c,
	pgpool.query_as(NULL::test.point3, 'shard1', 'select $1::int as x, 0 as y, null as z', 4) AS d;
SELECT pgpool.query_as(0, :lease, 'select $1::int', '1') AS a, pgpool.query_as(0, :lease, 'select $1::int', 2) AS b,
	pgpool.query_as(0, 'shard1', 'select $1::int', '3') AS c, pgpool.query_as(0, 'shard1', 'select $1::int', 4) AS d;
SELECT * FROM pgpool.query_as(0, :lease, 'select $1::int + $2::int', VARIADIC '{1,2}'::int[]);
-- composite types without a table, domains over them, and views
SELECT * FROM pgpool.query_as(NULL::test.point3, :lease, 'select ''three'' as z, 1 as x, 2 as y');
SELECT * FROM pgpool.query_as(NULL::test.above, :lease, 'select ''three'' as z, 1 as x, 2 as y');
SELECT pgpool.query_as(NULL::test.above, :lease, 'select ''three'' as z, x, 2 as y from generate_series(2, 0, -1) as x');
SELECT * FROM pgpool.query_as(NULL::test.above, :lease, 'select ''three'' as z, 0 as x, 2 as y');
CREATE VIEW test.view AS SELECT id, total AS sum FROM test.orders;
SELECT * FROM pgpool.query_as(NULL::test.view, :lease, 'select sum(total), 0 as id from orders');
DROP VIEW test.view;
-- a table without columns
CREATE TABLE test.nothing ();
SELECT count(*) FROM pgpool.query_as(NULL::test.nothing, :lease, 'select from orders');
DROP TABLE test.nothing;
-- names of the column list in FROM do not matter
SELECT p, q FROM pgpool.query_as(NULL::test.point3, :lease, 'select 1 as x, 2 as y, null as z') AS t(p, q, r);
SELECT * FROM ROWS FROM (pgpool.query_as(NULL::test.point3, :lease, 'select x, 2 as y, null as z from generate_series(1, 2) as x'),
	pgpool.query_as('now'::date, :lease, 'select date ''2026-01-01''')) WITH ORDINALITY;
-- types, lengths and precisions are those of the row type
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select 1.239 as total, ''7'' as id, timestamp ''2026-02-01 23:00'' as day');

--
-- Columns that do not match
--

SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select 1 as id, 2 as total');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select *, 1 as more, 2 as "and ""more""" from orders');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select *, id from orders');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select id, total, id, id, x from orders, generate_series(1, 2) as x where false');
-- a dropped column does not count, a column's name keeps its case, and a whole row is
-- one column
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select *, 1 as gone from orders');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select *, 1 as "........pg.dropped.2........" from orders');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select id as "ID", total, day from orders');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select o from orders as o');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select 1, 2, 3');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select from orders');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select * from generate_series(1, 2) where false');
-- the SQLSTATE, and 1,600 columns
SELECT test.err(format('SELECT * FROM pgpool.query_as(NULL::test.point3, %s, ''select 1 as x, 2 as x'')', :lease));
SELECT test.run('CREATE TABLE test.wide (' || string_agg('c' || i || ' int', ', ') || ')') FROM generate_series(1, 1600) AS i;
SELECT (t).c1, (t).c1600 FROM pgpool.query_as(NULL::test.wide, :lease,
	(SELECT 'select ' || string_agg(i || ' as c' || i, ', ' ORDER BY i DESC) FROM generate_series(1, 1600) AS i)) AS t;
SELECT (t).c1, (t).c1600 FROM pgpool.query_as(NULL::test.wide, :lease,
	(SELECT 'select ' || string_agg(i || ' as c' || i, ', ' ORDER BY i) FROM generate_series(1, 1664) AS i)) AS t;
SELECT count(*) FROM pgpool.query_as(NULL::test.wide, :lease, 'select 1 as c1');
SELECT pgpool.query_as(0, :lease, (SELECT 'select ' || string_agg(i::text, ', ') FROM generate_series(1, 1664) AS i));
DROP TABLE test.wide;

--
-- Scalars: one column of any name
--

SELECT * FROM pgpool.query_as(0, :lease, 'select 7');
SELECT * FROM pgpool.query_as(NULL::text, :lease, 'select id from orders order by 1') AS t(id);
SELECT a + 1 AS b FROM pgpool.query_as(0::numeric, :lease, 'select 7 as anything') AS a;
SELECT pgpool.query_as(NULL::int[], :lease, 'select array[1, null]');
SELECT pgpool.query_as(NULL::test.orders[], :lease, 'select array_agg(row(id, total, day) order by id) from orders');
SELECT pgpool.query_as(NULL::jsonb, :lease, 'select to_jsonb(o) from orders o order by id');
SELECT pgpool.query_as(NULL::test.mood, :lease, 'select ''ok''');
SELECT pgpool.query_as(NULL::test.positive, :lease, 'select 1');
SELECT pgpool.query_as(NULL::test.positive, :lease, 'select null') IS NULL AS is_null;
SELECT pgpool.query_as(NULL::test.positive, :lease, 'select 0');
SELECT pgpool.query_as('x'::test.given, :lease, 'select null');
SELECT pgpool.query_as(0, :lease, 'select 1, 2');
SELECT pgpool.query_as(0, :lease, 'select');
SELECT test.err(format('SELECT pgpool.query_as(0, %s, ''select 1, 2, 3'')', :lease));

--
-- Positions of the function in a query
--

SELECT id, (pgpool.query_as(NULL::test.point3, :lease, 'select $1::int as x, $2::date - date ''2026-01-01'' as y, null as z', id::int, day)).*
  FROM pgpool.query_as(NULL::test.orders, 'shard1', 'select 1 as id, 2 as total, date ''2026-11-21'' as day');
SELECT pgpool.query_as(0, :lease, 'select generate_series(1, 3)') AS a, generate_series(1, 2) AS b;
SELECT pgpool.query_as(NULL::test.orders, :lease, 'select * from orders') LIMIT 2;
SELECT array(SELECT pgpool.query_as(0, :lease, 'select generate_series(1, 3)'));
SELECT 1 WHERE pgpool.query_as(0, 'one', 'select 1') = 1;
DO $$
DECLARE
	lease bigint := pgpool.checkout_xact('shard1');
	answer int := pgpool.query_as(0, lease, 'select 7');
	given test.given := pgpool.query_as(''::text, lease, 'select ''x''');
	point test.point3;
BEGIN
	RAISE NOTICE '% %', answer, given;
	answer := 1 + pgpool.query_as(0, lease, 'select $1::int', answer);
	point := pgpool.query_as(point, lease, 'select ''z'' as z, 1 as x, 2 as y');
	RAISE NOTICE '% %', answer, point;
	answer := pgpool.query_as(0, lease, 'select 7 where false');
	RAISE NOTICE '%', answer;
	PERFORM pgpool.query_as(0, lease, 'select generate_series(1, 3)');
	RAISE NOTICE '%', FOUND;
	SELECT * INTO point FROM pgpool.query_as(point, lease, 'select 3 as x, 4 as y, null as z');
	RAISE NOTICE '%', point;
	FOR answer IN SELECT * FROM pgpool.query_as(0, lease, 'select generate_series(1, 2)') LOOP
		RAISE NOTICE '%', answer;
	END LOOP;
	answer := pgpool.query_as(0, lease, 'select generate_series(1, 3)');
END $$;
CREATE FUNCTION test.remote_orders() RETURNS SETOF test.orders LANGUAGE sql AS
	$$ SELECT * FROM pgpool.query_as(NULL::test.orders, 'shard1', 'select 1 as id, 2 as total, null as day') $$;
SELECT * FROM test.remote_orders();
-- a prepared statement follows a change of the type
PREPARE p AS SELECT * FROM pgpool.query_as(NULL::test.orders, 'shard1', $1);
EXECUTE p('select 1 as id, 2 as total, null as day');
ALTER TABLE test.orders ADD COLUMN note text;
EXECUTE p('select 1 as id, 2 as total, null as day');
DEALLOCATE p;
PREPARE p AS SELECT o.id FROM pgpool.query_as(NULL::test.orders, 'shard1', $1) AS o;
EXECUTE p('select 1 as id, 2 as total, null as day, ''x'' as note');
ALTER TABLE test.orders DROP COLUMN note;
EXECUTE p('select 1 as id, 2 as total, null as day');
DEALLOCATE p;
-- a result larger than work_mem is written to a file
SET work_mem = '64kB';
SELECT count(*), sum(x), max(length(z)) FROM pgpool.query_as(NULL::test.point3, :lease,
	'select repeat(''x'', 50) as z, i as x, -i as y from generate_series(1, 50000) as i');
RESET work_mem;

--
-- Invalid templates and arguments
--

SELECT pgpool.query_as(NULL, :lease, 'select 1');
SELECT pgpool.query_as('x', :lease, 'select 1');
SELECT * FROM pgpool.query_as(NULL::record, 'one', 'select 1');
SELECT * FROM pgpool.query_as(NULL::record, :lease, 'select 1') AS t(a int);
SELECT pgpool.query_as(NULL::record, :lease, 'select 1');
SELECT pgpool.query_as(ROW(1, 'a'), :lease, 'select 1');
SELECT test.err(format('SELECT pgpool.query_as(ROW(1), %s, ''select 1'')', :lease));
SELECT pgpool.query_as('x'::cstring, :lease, 'select 1');
SELECT pgpool.query_as(NULL::record[], :lease, 'select array[row(1)]');
SELECT pgpool.query_as(NULL::no_such_type, 'one', 'select 1');
SELECT pgpool.query_as(0, :lease, NULL);
SELECT pgpool.query_as(0, NULL::bigint, 'select 1');
SELECT pgpool.query_as(0, NULL::text, 'select 1');
SELECT pgpool.query_as(0, 'no such server', 'select 1');
SELECT pgpool.query_as(0, 0, 'select 1');
SELECT pgpool.query_as(0, :lease, 'select $1', VARIADIC NULL::text[]);
SELECT pgpool.query_as(0, :lease, 'nonsense');
SELECT pgpool.query_as(0, :lease, '');
SELECT pgpool.query_as(0, :lease, 'select 1; select 2');
-- values
SELECT pgpool.query_as(0, :lease, 'select ''x''');
SELECT pgpool.query_as(0::smallint, :lease, 'select 32768');
SELECT * FROM pgpool.query_as(NULL::test.point3, :lease, 'select ''z'' as z, 1 as x, ''not a number'' as y');
SELECT * FROM pgpool.query_as(NULL::test.orders, :lease, 'select * from orders union all select 1000000, 4, null');
SELECT max(x) FROM pgpool.query_as(NULL::test.point3, :lease,
	'select null as z, 0 as y, case i when 500000 then 2147483648 else i end as x from generate_series(1, 500001) as i');
SELECT pgpool.query_as(0, :lease, 'select 1');

SELECT pgpool.checkin(:lease);
DROP FUNCTION test.remote_orders();
DROP TABLE test.orders;
DROP DOMAIN test.above, test.given, test.positive;
DROP TYPE test.point3, test.mood;
SELECT pgpool.check_invariants();
