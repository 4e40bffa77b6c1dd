--
-- Writes to foreign tables: INSERT, UPDATE, DELETE, COPY FROM, TRUNCATE.
--
-- postgres_fdw writes the statements, and the pool's connection runs them.  So
-- most outputs here are those of the same tables on a server of postgres_fdw.
--
SELECT test.server('writes', 'pool_size', '2', 'tcp_user_timeout', '0');
GRANT USAGE ON FOREIGN SERVER writes TO regress_pgpool_app;
SELECT test.mapping('regress_pgpool_app', 'writes');

-- the rows of the remote, read by another connection
CREATE FUNCTION test.remote(query text) RETURNS SETOF text LANGUAGE sql AS
$$ SELECT r FROM pgpool.query('shard1', format('select x::text from (%s) x', query)) AS q(r text) $$;

SELECT pgpool.exec('shard1', $$
	CREATE SCHEMA fw;
	CREATE TABLE fw.plain (id int PRIMARY KEY, name text, n numeric, made timestamptz);
	CREATE TABLE fw."Odd Table" ("Some Id" int PRIMARY KEY, "select" text, gone int DEFAULT 7);
	CREATE TABLE fw.kinds (id int, b bool, i2 int2, i8 int8, f4 float4, f8 float8, num numeric(12,3),
		t text, v varchar(10), c char(5), by bytea, d date, ti time, ts timestamp, tz timestamptz,
		iv interval, u uuid, j jsonb, a int[], ta text[], r int4range, p point, cls regclass);
	CREATE TABLE fw.computed (a int, b int GENERATED ALWAYS AS (a * 2) STORED, c text);
	CREATE TABLE fw.small (id int PRIMARY KEY CHECK (id < 100), v text);
	CREATE TABLE fw.touched (id serial PRIMARY KEY, v text DEFAULT 'default of the remote', by text);
	CREATE FUNCTION fw.touch() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN IF NEW.v = ''skip'' THEN RETURN NULL; END IF; NEW.by := ''trigger'' || coalesce(NEW.id, 0); RETURN NEW; END';
	CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON fw.touched FOR EACH ROW EXECUTE FUNCTION fw.touch();
	CREATE TABLE fw.part1 (k int, v text);
	CREATE TABLE fw.part2 (v text, k int CHECK (k >= 100));
	CREATE TABLE fw.other (id int, label text);
	CREATE TABLE fw.nothing ();
$$);

CREATE SCHEMA fw;
CREATE FOREIGN TABLE fw.plain (id int, name text, n numeric, made timestamptz)
	SERVER writes OPTIONS (schema_name 'fw');
CREATE FOREIGN TABLE fw.odd (gone int, key int OPTIONS (column_name 'Some Id'), "Value" text OPTIONS (column_name 'select'))
	SERVER writes OPTIONS (schema_name 'fw', table_name 'Odd Table');
ALTER FOREIGN TABLE fw.odd DROP COLUMN gone;
CREATE FOREIGN TABLE fw.kinds (id int, b bool, i2 int2, i8 int8, f4 float4, f8 float8, num numeric(12,3),
	t text, v varchar(10), c char(5), by bytea, d date, ti time, ts timestamp, tz timestamptz,
	iv interval, u uuid, j jsonb, a int[], ta text[], r int4range, p point, cls regclass)
	SERVER writes OPTIONS (schema_name 'fw');
CREATE FOREIGN TABLE fw.computed (a int, b int GENERATED ALWAYS AS (a * 2) STORED, c text)
	SERVER writes OPTIONS (schema_name 'fw', batch_size '10');
CREATE FOREIGN TABLE fw.small (id int, v text) SERVER writes OPTIONS (schema_name 'fw', batch_size '4');
CREATE FOREIGN TABLE fw.touched (id int, v text, by text) SERVER writes OPTIONS (schema_name 'fw');
CREATE FOREIGN TABLE fw.touched_some (v text, by text)
	SERVER writes OPTIONS (schema_name 'fw', table_name 'touched');
CREATE FOREIGN TABLE fw.other (id int, label text) SERVER writes OPTIONS (schema_name 'fw');
CREATE FOREIGN TABLE fw.nothing () SERVER writes OPTIONS (schema_name 'fw', batch_size '3');

--
-- INSERT
--
INSERT INTO fw.plain VALUES (1, 'one', 1.10, '2020-01-01 00:00+00');
INSERT INTO fw.plain (id) VALUES (2), (3) RETURNING *;
INSERT INTO fw.plain SELECT i, 'row ' || i, i / 4.0, NULL FROM generate_series(4, 9) i;
INSERT INTO fw.plain VALUES (10, E'quote '' backslash \\ newline \n tab \t end', 'NaN', 'infinity') RETURNING id, name, n;
INSERT INTO fw.plain VALUES (11, '', -0.0, '-infinity') RETURNING name IS NULL AS null_name, made;
SELECT * FROM test.remote('select id, name, n from fw.plain order by id');
INSERT INTO fw.odd VALUES (1, 'reserved'), (2, 'words') RETURNING "Value", key;
SELECT * FROM test.remote('select * from fw."Odd Table" order by 1');
INSERT INTO fw.nothing DEFAULT VALUES;
INSERT INTO fw.nothing SELECT FROM generate_series(1, 5);
SELECT count(*) FROM fw.nothing;

-- columns that the foreign table lacks have the remote defaults, all other ones the local defaults
INSERT INTO fw.touched_some (by) VALUES ('x') RETURNING v, by;
INSERT INTO fw.touched (id, v) VALUES (50, 'local') RETURNING *;
INSERT INTO fw.touched (id, v) VALUES (51, 'skip') RETURNING *;
INSERT INTO fw.touched (id, v) VALUES (52, 'a'), (53, 'skip'), (54, 'b');

-- values are written correctly, whatever the local styles are
SET DateStyle = 'German, DMY';
SET IntervalStyle = sql_standard;
SET extra_float_digits = -5;
SET bytea_output = escape;
INSERT INTO fw.kinds VALUES (1, true, -32768, 9223372036854775807, 1.1754944e-38, 0.1::float8 + 0.2, 123.4567,
	'text', 'varchar', 'char', '\x00ff10', '2021-02-03', '04:05:06.789', '2021-02-03 04:05:06', '2021-02-03 04:05:06+07',
	'1 year -2 days 03:04:05.6', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1, null]}', '{{1,2},{3,NULL}}',
	ARRAY['a b', NULL, '"', '\', ''], '[1,5)', '(0.1,-2)', 'pg_catalog.pg_class');
INSERT INTO fw.kinds (id) VALUES (2);
-- the name of a table is written with its schema, whatever the local search_path is
SET search_path = fw;
INSERT INTO kinds (id, cls) VALUES (4, 'plain');
UPDATE kinds SET cls = 'plain' WHERE id = 4 AND random() < 2 RETURNING cls;
DELETE FROM kinds WHERE id = 4;
RESET search_path;
INSERT INTO fw.kinds SELECT 3, b, i2, i8, f4, f8, num, t, v, c, by, d, ti, ts, tz, iv, u, j, a, ta, r, p, cls FROM fw.kinds WHERE id = 1;
SELECT k.f8 = 0.1::float8 + 0.2 AS f8, k.f4 = 1.1754944e-38::float4 AS f4, k.tz = '2021-02-03 04:05:06+07' AS tz,
	k.iv = '1 year -2 days 03:04:05.6' AS iv, k.by = '\x00ff10' AS by, k.cls = 'pg_class'::regclass AS cls, k.d = '2021-02-03' AS d
	FROM fw.kinds k WHERE id IN (1, 3);
RESET DateStyle;
RESET IntervalStyle;
RESET extra_float_digits;
RESET bytea_output;
SELECT * FROM test.remote('select * from fw.kinds order by id');
SELECT count(*) FROM test.remote($$select 1 from fw.kinds a, fw.kinds b where a.id = 1 and b.id = 3
	and (a.*)::text = replace((b.*)::text, '(3,', '(1,')$$);
DELETE FROM fw.kinds WHERE id = 3 RETURNING j, a, ta, c || '|';

-- generated columns are the remote's, alone and in batches
INSERT INTO fw.computed (a, c) SELECT i, 'c' || i FROM generate_series(1, 23) i;
INSERT INTO fw.computed (a, c) VALUES (30, 'last') RETURNING *;
UPDATE fw.computed SET a = a + 1 WHERE a = 30 RETURNING b;
SELECT sum(a), sum(b), count(*) FROM fw.computed;

-- batches of every size, the last one incomplete; the limit of 65535 parameters
SELECT sum(statements) AS before FROM pgpool.stats WHERE server = 'writes' \gset
INSERT INTO fw.small SELECT i, 'b' FROM generate_series(1, 9) i;
SELECT sum(statements) - :before AS inserts_and_commit FROM pgpool.stats WHERE server = 'writes';
INSERT INTO fw.small SELECT i, 'b' FROM generate_series(10, 17) i;
INSERT INTO fw.small SELECT i, 'b' FROM generate_series(18, 18) i;
SELECT count(*), sum(id) FROM fw.small;
ALTER FOREIGN TABLE fw.plain OPTIONS (ADD batch_size '60000');
INSERT INTO fw.plain SELECT i, 'many', i, NULL FROM generate_series(1001, 21000) i;
SELECT count(*), sum(id), sum(n) FROM fw.plain WHERE id > 1000;
DELETE FROM fw.plain WHERE id > 1000;
ALTER FOREIGN TABLE fw.plain OPTIONS (DROP batch_size);

-- ON CONFLICT
INSERT INTO fw.plain (id, name) VALUES (1, 'again'), (12, 'twelve') ON CONFLICT DO NOTHING RETURNING id, name;
INSERT INTO fw.small (id, v) VALUES (1, 'a'), (2, 'b'), (20, 'c'), (3, 'd'), (4, 'e'), (5, 'f') ON CONFLICT DO NOTHING;
INSERT INTO fw.small (id, v) VALUES (1, 'a'), (2, 'b') ON CONFLICT DO NOTHING;
INSERT INTO fw.plain (id, name) VALUES (1, 'x') ON CONFLICT (id) DO NOTHING;
INSERT INTO fw.plain (id, name) VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET name = excluded.name;

--
-- UPDATE and DELETE by the remote server alone
--
UPDATE fw.plain SET name = upper(name) WHERE id BETWEEN 4 AND 6;
UPDATE fw.plain SET n = n + 1 WHERE id = 4 RETURNING id, n, name;
UPDATE fw.plain SET n = 0 WHERE id = 4 RETURNING 1 AS one;
UPDATE fw.plain SET name = NULL WHERE id = -1 RETURNING *;
DELETE FROM fw.plain WHERE id = 5;
DELETE FROM fw.plain WHERE id IN (6, 7) RETURNING plain, id;
DELETE FROM fw.plain WHERE id = 8 RETURNING 'gone' AS what;
PREPARE change(int, text) AS UPDATE fw.plain SET name = $2 WHERE id = $1 RETURNING id, name;
EXECUTE change(1, 'first');
EXECUTE change(2, NULL);
EXECUTE change(-1, 'no row');
DEALLOCATE change;
UPDATE fw.plain SET n = 5 WHERE id < 4;

-- a row is used while another statement reads the rest of its scan
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
SELECT p.id, p.name, k.id, k.t FROM fw.plain p LEFT JOIN fw.kinds k ON k.id = p.id AND random() < 2 ORDER BY 1;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;

-- joins that the remote executes
INSERT INTO fw.other VALUES (1, 'uno'), (2, 'dos'), (3, NULL), (77, 'unused');
UPDATE fw.plain p SET name = o.label FROM fw.other o WHERE p.id = o.id AND o.id < 3 RETURNING p.id, p.name, o.label, o;
UPDATE fw.plain p SET name = o.label || '!' FROM fw.other o WHERE p.id = o.id RETURNING p, o.id;
DELETE FROM fw.other o USING fw.plain p WHERE p.id = o.id AND o.id = 3 RETURNING p.*, o.*;
SELECT ctid AS stored FROM fw.other WHERE id = 2 \gset
DELETE FROM fw.other o USING fw.plain p WHERE p.id = o.id AND o.id = 2 RETURNING p.ctid IS NOT NULL, o.ctid = :'stored' AS stored, o;
UPDATE fw.other SET label = 'same' WHERE id = 77;

--
-- UPDATE and DELETE of rows that are found locally: by ctid
--
CREATE TABLE test.wanted (id int, name text);
INSERT INTO test.wanted VALUES (1, 'from here'), (2, 'also'), (9, NULL);
UPDATE fw.plain p SET name = w.name FROM test.wanted w WHERE p.id = w.id;
UPDATE fw.plain p SET n = n * 2 FROM test.wanted w WHERE p.id = w.id RETURNING p.id, p.n, w.name, p;
UPDATE fw.plain SET n = 1 WHERE id = 1 AND random() < 2 RETURNING *, tableoid::regclass, ctid IS NOT NULL AS ctid;
DELETE FROM fw.plain p USING test.wanted w WHERE p.id = w.id AND w.name IS NULL RETURNING p.id, w.id, p.tableoid::regclass;
DELETE FROM fw.plain p USING test.wanted w WHERE p.id = w.id AND false;
SELECT id, name, n FROM fw.plain ORDER BY id;
-- a row that the statement updates twice, and a row that no longer matches
UPDATE fw.plain SET n = w.x FROM (VALUES (10, 1), (10, 2)) w(id, x), test.wanted WHERE plain.id = w.id AND random() < 2;
WITH changed AS (UPDATE fw.plain SET name = name || '+' WHERE id = 12 AND random() < 2 RETURNING id, name)
	SELECT c.*, p.name AS before_or_after FROM changed c JOIN fw.plain p USING (id);
-- a plan that is executed several times
CREATE FUNCTION test.set_names(ids int[]) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	changed int := 0;
	id_ int;
	n_ int;
BEGIN
	FOREACH id_ IN ARRAY ids LOOP
		UPDATE fw.plain SET name = 'loop ' || id_ WHERE id = id_ AND random() < 2;
		GET DIAGNOSTICS n_ = ROW_COUNT;
		changed := changed + n_;
	END LOOP;
	RETURN changed;
END $$;
SELECT test.set_names('{1,2,3,4,-5,10,11,12}');
SELECT id, name FROM fw.plain ORDER BY id;

--
-- Local triggers
--
CREATE FUNCTION test.show() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE '% % % %: % -> %', TG_NAME, TG_WHEN, TG_OP, TG_LEVEL,
		CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN OLD::text END,
		CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN NEW::text END;
	RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
-- a trigger that writes to the same server, and changes the row
CREATE FUNCTION test.log_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO fw.other VALUES (NEW.id, 'log of ' || NEW.v);
	NEW.v := NEW.v || ' (logged)';
	RETURN NEW;
END $$;
CREATE TRIGGER log_write BEFORE INSERT OR UPDATE ON fw.small FOR EACH ROW EXECUTE FUNCTION test.log_write();
INSERT INTO fw.small SELECT i, 't' || i FROM generate_series(30, 35) i;
UPDATE fw.small SET v = 'u' WHERE id = 30;
DROP TRIGGER log_write ON fw.small;
SELECT * FROM fw.small WHERE id >= 30 ORDER BY id;
SELECT * FROM fw.other ORDER BY id, label;
DELETE FROM fw.small WHERE id >= 30;
-- transition tables need the rows
CREATE TRIGGER trans AFTER INSERT ON fw.small REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION test.show();
DROP TRIGGER IF EXISTS trans ON fw.small;

--
-- Views WITH CHECK OPTION: the check reads the row that the remote has stored
--
CREATE VIEW fw.checked AS SELECT * FROM fw.touched WHERE by IS NOT NULL AND id < 80 WITH CHECK OPTION;
INSERT INTO fw.checked (id, v) VALUES (70, 'ok') RETURNING *;
INSERT INTO fw.checked (id, v) VALUES (90, 'too large');
UPDATE fw.checked SET id = 91 WHERE id = 70;
UPDATE fw.checked SET v = 'still ok' WHERE id = 70 RETURNING *;
DELETE FROM fw.checked WHERE id = 70;
CREATE VIEW fw.checked_small AS SELECT * FROM fw.small WHERE id > 0 WITH CHECK OPTION;
INSERT INTO fw.checked_small SELECT i, 'w' FROM generate_series(40, 46) i;
INSERT INTO fw.checked_small VALUES (47, 'w'), (-1, 'w');
SELECT count(*) FROM fw.checked_small WHERE id >= 40;

--
-- Partitions: routing, and rows that move
--
CREATE TABLE fw.parts (k int, v text) PARTITION BY RANGE (k);
CREATE FOREIGN TABLE fw.part1 PARTITION OF fw.parts FOR VALUES FROM (0) TO (100)
	SERVER writes OPTIONS (schema_name 'fw', batch_size '3');
CREATE FOREIGN TABLE fw.part2 (v text, k int) SERVER writes OPTIONS (schema_name 'fw');
ALTER TABLE fw.parts ATTACH PARTITION fw.part2 FOR VALUES FROM (100) TO (200);
CREATE TABLE fw.part3 PARTITION OF fw.parts FOR VALUES FROM (200) TO (300);
INSERT INTO fw.parts SELECT i, 'p' || i FROM generate_series(0, 290, 10) i;
INSERT INTO fw.parts VALUES (99, 'x'), (199, 'y'), (299, 'z') RETURNING *, tableoid::regclass;
INSERT INTO fw.parts VALUES (300, 'nowhere');
SELECT tableoid::regclass, count(*), sum(k) FROM fw.parts GROUP BY 1 ORDER BY 1;
-- into a foreign partition that the statement does not update itself
UPDATE fw.parts SET k = k - 150 WHERE k = 290 RETURNING *, tableoid::regclass;
UPDATE fw.parts SET k = 1 WHERE k = 280 RETURNING *, tableoid::regclass;
-- a foreign partition keeps its rows, as with postgres_fdw
UPDATE fw.parts SET k = 250 WHERE k = 20;
UPDATE fw.parts SET k = 150 WHERE k = 30;
UPDATE fw.parts SET k = k + 1 WHERE k IN (40, 110, 210) RETURNING *;
DELETE FROM fw.parts WHERE k IN (41, 111, 211) RETURNING *, tableoid::regclass;
UPDATE fw.parts SET k = k - 100 WHERE k IN (250, 10) AND random() < 2;
-- into a foreign partition that the statement has yet to update: refused
UPDATE fw.parts SET k = k - 60 WHERE k IN (230, 170);
SELECT tableoid::regclass, count(*), sum(k) FROM fw.parts GROUP BY 1 ORDER BY 1;
INSERT INTO fw.parts VALUES (5, 'c'), (105, 'c') ON CONFLICT DO NOTHING;

--
-- COPY FROM
--
COPY fw.small FROM STDIN;
50	copied
51	\N
52	
53	tab\there
54	x
\.
COPY fw.computed (a, c) FROM STDIN WITH (FORMAT csv);
100,"a ""quote"""
101,
\.
COPY fw.parts FROM STDIN;
11	c
12	c
13	c
14	c
111	c
211	c
\.
SELECT * FROM fw.small WHERE id >= 50 ORDER BY id;
SELECT * FROM fw.computed WHERE a >= 100;
SELECT tableoid::regclass, count(*) FROM fw.parts WHERE v = 'c' GROUP BY 1 ORDER BY 1;
-- a remote error and a local one, in the middle; batches from 16 on
\set SHOW_CONTEXT never
COPY fw.small FROM STDIN;
60	a
61	b
100	too large
62	c
\.
COPY fw.small FROM STDIN;
63	a
sixty-four	b
\.
\set SHOW_CONTEXT errors
SELECT count(*) FROM fw.small WHERE id >= 60;

--
-- TRUNCATE
--
SELECT count(*) FROM fw.nothing;
TRUNCATE fw.nothing, fw.other;
SELECT (SELECT count(*) FROM fw.nothing) AS nothing, (SELECT count(*) FROM fw.other) AS other;
TRUNCATE fw.touched RESTART IDENTITY CASCADE;
INSERT INTO fw.touched_some DEFAULT VALUES;
SELECT * FROM test.remote('select * from fw.touched');
ALTER FOREIGN TABLE fw.touched OPTIONS (ADD truncatable 'false');
TRUNCATE fw.touched;
ALTER SERVER writes OPTIONS (ADD truncatable 'false');
TRUNCATE fw.small;
ALTER FOREIGN TABLE fw.touched OPTIONS (SET truncatable 'true');
TRUNCATE fw.touched;
ALTER SERVER writes OPTIONS (DROP truncatable);
TRUNCATE fw.parts;
SELECT count(*) FROM fw.parts;
ALTER FOREIGN TABLE fw.other OPTIONS (ADD updatable 'false');
INSERT INTO fw.other VALUES (1);
UPDATE fw.other SET id = 2;
DELETE FROM fw.other;
ALTER FOREIGN TABLE fw.other OPTIONS (SET updatable 'true');

--
-- Errors, savepoints, and the rows afterwards
--
TRUNCATE fw.small;
INSERT INTO fw.small VALUES (1, 'a'), (100, 'too large');
INSERT INTO fw.small VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (1, 'twice');
SELECT count(*) FROM fw.small;
BEGIN;
INSERT INTO fw.small VALUES (1, 'kept');
SAVEPOINT a;
INSERT INTO fw.small VALUES (2, 'rolled back');
INSERT INTO fw.small VALUES (1, 'twice');
ROLLBACK TO a;
INSERT INTO fw.small VALUES (3, 'kept');
SAVEPOINT b;
UPDATE fw.small SET id = id + 98 WHERE random() < 2;
ROLLBACK TO b;
INSERT INTO fw.small SELECT i, 'released' FROM generate_series(4, 12) i;
SAVEPOINT c;
DELETE FROM fw.small WHERE id = 4;
RELEASE c;
SELECT 1 / 0;
ROLLBACK TO b;
INSERT INTO fw.small VALUES (5, 'kept');
COMMIT;
SELECT * FROM test.remote('select * from fw.small order by id');
-- the rollback of a savepoint is the last statement, after other writes or without them
BEGIN;
INSERT INTO fw.small VALUES (13, 'kept');
SAVEPOINT a;
INSERT INTO fw.small VALUES (14, 'rolled back');
ROLLBACK TO a;
COMMIT;
BEGIN;
SAVEPOINT a;
INSERT INTO fw.small VALUES (14, 'rolled back');
ROLLBACK TO a;
COMMIT;
BEGIN;
INSERT INTO fw.small VALUES (15, 'kept');
SAVEPOINT a;
INSERT INTO fw.small VALUES (1, 'twice');
ROLLBACK TO a;
COMMIT;
BEGIN;
SAVEPOINT a;
SELECT 1 / (id - 1) FROM fw.small;
ROLLBACK TO a;
COMMIT;
SELECT id, v FROM fw.small WHERE id > 10;
BEGIN;
INSERT INTO fw.small VALUES (6, 'a');
DELETE FROM fw.small WHERE id = 1 AND random() < 2;
SELECT count(*) FROM fw.small;
ROLLBACK;
-- errors that a function catches in a loop, more often than unreleased savepoints may remain
DO $$
DECLARE
	errors int := 0;
BEGIN
	FOR i IN 1 .. 60 LOOP
		BEGIN
			INSERT INTO fw.small VALUES (CASE WHEN i % 3 = 0 THEN 100 ELSE 20 + i END, 'loop');
		EXCEPTION WHEN check_violation THEN
			errors := errors + 1;
		END;
	END LOOP;
	RAISE NOTICE '% errors', errors;
END $$;
SELECT count(*), sum(id) FROM fw.small WHERE v = 'loop';
-- the context and the SQLSTATE of a remote error
SELECT err FROM test.err('INSERT INTO fw.small VALUES (100, ''x'')') AS err;
DO $$
DECLARE
	context text;
BEGIN
	UPDATE fw.small SET id = 100 WHERE id = 1;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
	RAISE INFO '%', split_part(context, E'\n', 1);
END $$;
-- a value that is out of the local range: the row is written, and rolled back with the statement
SELECT pgpool.exec('shard1', 'ALTER TABLE fw.other ALTER id TYPE bigint; CREATE FUNCTION fw.enlarge() RETURNS trigger LANGUAGE plpgsql AS ''BEGIN NEW.id := 5000000000; RETURN NEW; END''; CREATE TRIGGER enlarge BEFORE INSERT ON fw.other FOR EACH ROW EXECUTE FUNCTION fw.enlarge()');
INSERT INTO fw.other VALUES (1, 'a') RETURNING *;
INSERT INTO fw.other VALUES (1, 'a');
SELECT * FROM test.remote('select * from fw.other');

--
-- A statement does not read the rows that it has written itself, although a
-- scan is repeated: the outer relation is estimated at one row
--
SELECT pgpool.exec('shard1', 'CREATE TABLE fw.again (id int, v int); INSERT INTO fw.again VALUES (1, 0), (2, 0), (3, 0)');
CREATE FOREIGN TABLE fw.again (id int, v int) SERVER writes OPTIONS (schema_name 'fw', fetch_size '2');
CREATE TABLE test.factor (x int PRIMARY KEY);
INSERT INTO test.factor VALUES (100), (101), (102);
ANALYZE test.factor;
SET enable_material = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) UPDATE fw.again SET v = again.v + 1 FROM test.factor WHERE again.v < x AND x + 0 = x;
UPDATE fw.again SET v = again.v + 1 FROM test.factor WHERE again.v < x AND x + 0 = x;
SELECT * FROM fw.again ORDER BY id;
INSERT INTO fw.again SELECT id + 10, x FROM test.factor, fw.again WHERE x + 0 = x;
SELECT count(*), max(id) FROM fw.again;
DELETE FROM fw.again WHERE id > 10;
-- in a subquery that is executed for each row
UPDATE fw.again SET v = (SELECT count(*) FROM test.factor, fw.again AS other WHERE x = 99 + again.id AND other.v = 1);
SELECT * FROM fw.again ORDER BY id;
-- other parameters yield other rows
UPDATE fw.again SET v = (SELECT count(*) FROM fw.again AS other WHERE other.id <= again.id AND random() >= 0);
SELECT * FROM fw.again ORDER BY id;
-- a repetition that begins before the last row was read, and rows in a file
SET work_mem = '64kB';
INSERT INTO fw.again SELECT i, 0 FROM generate_series(4, 3000) AS i;
CREATE TABLE test.counts (x int, first int, number int, found bool);
INSERT INTO test.counts SELECT x, (SELECT min(id) FROM fw.again WHERE random() >= 0 AND x > 0),
	(SELECT count(*) FROM fw.again WHERE random() >= 0 AND x > 0),
	EXISTS (SELECT FROM fw.again AS other WHERE random() >= 0 AND x > 0) FROM test.factor RETURNING *;
RESET work_mem;
RESET enable_material; RESET enable_hashjoin; RESET enable_mergejoin;
DROP TABLE test.factor, test.counts;

--
-- Other users' rights: a view's owner writes with the mapping of the owner
--
CREATE VIEW public.foreign_small AS SELECT * FROM fw.small;
GRANT INSERT, SELECT, UPDATE, DELETE ON public.foreign_small TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
INSERT INTO public.foreign_small VALUES (90, 'through a view');
UPDATE public.foreign_small SET v = v || '!' WHERE id = 90 RETURNING *;
DELETE FROM public.foreign_small WHERE id = 90 AND random() < 2 RETURNING *;
INSERT INTO fw.small VALUES (91, 'not allowed');
RESET ROLE;
DROP VIEW public.foreign_small;

SELECT pgpool.exec('shard1', 'DROP SCHEMA fw CASCADE');
SET client_min_messages = warning;
DROP SCHEMA fw CASCADE;
RESET client_min_messages;
DROP TABLE test.wanted;
DROP FUNCTION test.remote, test.set_names, test.show, test.log_write;
SELECT test.drop('writes');
