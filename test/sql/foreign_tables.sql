--
-- Foreign tables on a pool: values, scans that share a lease, the end of the local
-- transaction, IMPORT FOREIGN SCHEMA, ANALYZE.
--
SELECT test.server('tables', 'pool_size', '2', 'fetch_size', '10');
SELECT pgpool.exec('shard1', $$
	CREATE SCHEMA ft;
	CREATE TABLE ft.numbers AS
		SELECT i AS id, i % 10 AS kind, 'number ' || i AS name, i * 1.5 AS amount,
			'2026-01-01'::timestamptz + i * interval '1 day' AS at
		FROM generate_series(1, 5000) AS i;
	ALTER TABLE ft.numbers ADD PRIMARY KEY (id);
	CREATE TABLE ft.kinds AS SELECT i AS id, 'kind ' || i AS label FROM generate_series(0, 9) AS i;
	CREATE TABLE ft."Odd Table" ("Some Id" int, "select" text);
	INSERT INTO ft."Odd Table" VALUES (1, 'one'), (NULL, NULL), (3, '');
	CREATE TABLE ft.all_types (b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(12,3),
		t text, v varchar(5), c char(5), by bytea, d date, ts timestamp, tz timestamptz, iv interval,
		u uuid, j jsonb, a int[], r int4range, p point);
	INSERT INTO ft.all_types VALUES (true, -1, 1e18, 0.1, 0.30000000000000004, 1.500, E'a\nb', 'v', 'c',
		'\x00ff', '0044-03-15 BC', 'infinity', '2026-06-01 12:00+02', '1 mon -2 days 03:04:05.6',
		'00000000-0000-0000-0000-000000000001', '{"a": [1, null]}', '{1,NULL,3}', '[1,5)', '(1,2)');
	INSERT INTO ft.all_types DEFAULT VALUES;
	ANALYZE ft.numbers;
	ANALYZE ft.kinds;
$$);
CREATE SCHEMA ft;
CREATE FOREIGN TABLE ft.numbers (id int, kind int, name text, amount numeric, at timestamptz)
	SERVER tables OPTIONS (schema_name 'ft');
CREATE FOREIGN TABLE ft.kinds (id int, label text) SERVER tables OPTIONS (schema_name 'ft');
CREATE FOREIGN TABLE ft.odd (gone int, key int OPTIONS (column_name 'Some Id'), "Value" text OPTIONS (column_name 'select'))
	SERVER tables OPTIONS (schema_name 'ft', table_name 'Odd Table');
ALTER FOREIGN TABLE ft.odd DROP COLUMN gone;
CREATE FOREIGN TABLE ft.all_types (b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(12,3),
	t text, v varchar(5), c char(5), by bytea, d date, ts timestamp, tz timestamptz, iv interval,
	u uuid, j jsonb, a int[], r int4range, p point)
	SERVER tables OPTIONS (schema_name 'ft');

-- leases of this session that foreign tables hold
CREATE VIEW pg_temp.held AS SELECT server, scope, state, why FROM pgpool.leases
	WHERE pid = pg_backend_pid() AND scope = 'fdw' ORDER BY server, why;

--
-- Values
--
SET timezone = 'UTC';
SELECT * FROM ft.numbers WHERE id <= 2 ORDER BY id;
SELECT * FROM ft.odd ORDER BY key;
SELECT * FROM ft.all_types \gx
-- the same in binary, which is requested from the second execution on
SELECT count(*), sum(id), min(at), max(name) FROM (SELECT * FROM ft.numbers OFFSET 0) AS t;
SELECT count(*), sum(id), min(at), max(name) FROM (SELECT * FROM ft.numbers OFFSET 0) AS t;
-- a scan that expects many rows requests the types first, so that already its first rows are binary
SELECT pgpool.exec('shard1', $$CREATE TABLE ft.wide AS SELECT md5(i::text)::uuid AS u,
	'2026-01-01'::timestamptz + i * interval '1 s' AS at FROM generate_series(1, 1000) AS i$$);
CREATE FOREIGN TABLE ft.wide (u uuid, at timestamptz) SERVER tables OPTIONS (schema_name 'ft');
SELECT bytes_received AS before FROM pgpool.stats WHERE server = 'tables' \gset
SELECT count(*), min(at), max(u::text) FROM (SELECT * FROM ft.wide OFFSET 0) AS t;
SELECT bytes_received - :before < 50000 AS binary FROM pgpool.stats WHERE server = 'tables';
-- a remote column of another type is read, too
SELECT pgpool.exec('shard1', 'ALTER TABLE ft.wide ALTER u TYPE text');
CREATE FOREIGN TABLE ft.wide_text (u uuid, at text) SERVER tables OPTIONS (schema_name 'ft', table_name 'wide');
SELECT count(*), min(at::timestamptz), max(u::text) FROM (SELECT * FROM ft.wide_text OFFSET 0) AS t;
-- an error of the remote has the context of a scan
SELECT pgpool.exec('shard1', 'ALTER TABLE ft.wide RENAME TO wide_gone');
SELECT u, at FROM ft.wide_text;
SELECT pgpool.exec('shard1', 'DROP TABLE ft.wide_gone');
DROP FOREIGN TABLE ft.wide, ft.wide_text;
-- local settings change neither the values that are read nor the texts that are sent
SET datestyle = 'German'; SET intervalstyle = 'sql_standard'; SET extra_float_digits = 0;
SELECT tz, iv, f8 = 0.30000000000000004 AS exact FROM ft.all_types WHERE tz = '2026-06-01 10:00+00';
SELECT d FROM ft.all_types WHERE d < ALL (SELECT '0044-03-16 BC'::date FROM ft.odd);
RESET datestyle; RESET intervalstyle; RESET extra_float_digits;
-- whole rows, system columns, columns that the query does not need
SELECT n FROM ft.numbers AS n WHERE id = 7;
SELECT k, n.id FROM ft.numbers AS n JOIN ft.kinds AS k ON k.id = n.kind WHERE n.id = 12;
SELECT ctid, tableoid::regclass, id FROM ft.kinds ORDER BY id LIMIT 2;
SELECT count(*) FROM ft.odd WHERE random() >= 0;
-- conditions that are pushed down, and conditions that are evaluated locally
EXPLAIN (VERBOSE, COSTS OFF) SELECT k.label, sum(n.amount) FROM ft.numbers AS n
	JOIN ft.kinds AS k ON k.id = n.kind GROUP BY 1 ORDER BY 1 LIMIT 2;
SELECT k.label, sum(n.amount) FROM ft.numbers AS n JOIN ft.kinds AS k ON k.id = n.kind
	GROUP BY 1 ORDER BY 1 LIMIT 2;
SELECT count(*) FROM ft.numbers WHERE id % 3 = 0 AND random() >= 0;
-- FOR UPDATE locks the remote rows
SELECT name FROM ft.numbers WHERE id = 5 FOR UPDATE;

--
-- Parameters and rescans
--
PREPARE by_id(int) AS SELECT name FROM ft.numbers WHERE id = $1;
SET plan_cache_mode = force_generic_plan;
EXECUTE by_id(1);
EXECUTE by_id(NULL);
EXECUTE by_id(5000);
RESET plan_cache_mode;
SELECT k.id, (SELECT min(name) FROM ft.numbers AS n WHERE n.kind = k.id) FROM ft.kinds AS k
	WHERE random() >= 0 ORDER BY 1 LIMIT 3;
SELECT i, n.name FROM generate_series(1, 4) AS i,
	LATERAL (SELECT name FROM ft.numbers WHERE id = i * i OFFSET 0) AS n;
-- a rescan before the last row was read
SELECT i, EXISTS (SELECT FROM ft.numbers AS n WHERE n.kind = i AND random() >= 0) FROM generate_series(8, 11) AS i;
-- a parameterised nested loop
SET enable_hashjoin = off; SET enable_mergejoin = off;
CREATE TEMP TABLE wanted AS SELECT unnest('{3,30,300,3000,30000}'::int[]) AS id;
ALTER FOREIGN TABLE ft.numbers OPTIONS (ADD fetch_size '3');
SELECT w.id, n.name FROM wanted AS w LEFT JOIN ft.numbers AS n ON n.id = w.id ORDER BY 1;
SELECT count(*) FROM ft.numbers AS a, ft.numbers AS b WHERE a.id <= 20 AND b.id <= 20 AND random() >= 0;
RESET enable_hashjoin; RESET enable_mergejoin;

--
-- Several scans on one lease; cursors; subtransactions
--
BEGIN;
DECLARE a CURSOR FOR SELECT id FROM ft.numbers WHERE random() >= 0 ORDER BY id;
DECLARE b CURSOR FOR SELECT id, label FROM ft.kinds WHERE random() >= 0 ORDER BY id;
SELECT * FROM pg_temp.held;
FETCH 2 FROM a;
SELECT * FROM pg_temp.held;
FETCH 2 FROM b;
FETCH 2 FROM a;
SAVEPOINT s;
FETCH 2 FROM b;
SELECT 1 / 0;
ROLLBACK TO s;
FETCH 2 FROM b;
MOVE 3000 FROM a;
SELECT count(*) FROM ft.kinds;
FETCH 2 FROM a;
RELEASE s;
FETCH ALL FROM b;
MOVE ALL FROM a;
SELECT * FROM pg_temp.held;
COMMIT;
SELECT * FROM pg_temp.held;
-- an error of the remote ends the subtransaction alone
CREATE FOREIGN TABLE ft.bad (id int) SERVER tables OPTIONS (schema_name 'ft', table_name 'missing');
BEGIN;
SELECT count(*) FROM ft.kinds;
SAVEPOINT s;
SELECT * FROM ft.bad;
SELECT count(*) FROM ft.kinds;
ROLLBACK TO s;
SELECT count(*) FROM ft.kinds;
SAVEPOINT t;
SAVEPOINT u;
SELECT count(*) FROM ft.odd;
ROLLBACK TO t;
SELECT count(*) FROM ft.odd;
COMMIT;
-- a loop in PL/pgSQL with a block that fails in each round, while a cursor is open
DO $$
DECLARE
	r record;
	failed int := 0;
	total int := 0;
BEGIN
	FOR r IN SELECT id FROM ft.numbers WHERE id <= 200 AND random() >= 0 ORDER BY id LOOP
		BEGIN
			total := total + r.id + (SELECT count(*) FROM ft.kinds WHERE id = r.id % 10);
			IF r.id % 4 = 0 THEN
				PERFORM 1 / (SELECT id FROM ft.kinds WHERE id = 0);
			END IF;
		EXCEPTION WHEN division_by_zero THEN
			failed := failed + 1;
		END;
	END LOOP;
	RAISE NOTICE 'total %, failed %', total, failed;
END $$;
-- a cursor whose first row was read in a subtransaction that was rolled back has no portal
BEGIN;
DECLARE a CURSOR FOR SELECT id FROM ft.numbers WHERE random() >= 0 ORDER BY id;
SAVEPOINT s;
FETCH 1 FROM a;
ROLLBACK TO s;
FETCH 1 FROM a;
ROLLBACK;
-- WITH HOLD reads to the end, and then needs no lease
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT id FROM ft.numbers WHERE id < 50 AND random() >= 0 ORDER BY id;
FETCH 1 FROM h;
COMMIT;
SELECT * FROM pg_temp.held;
FETCH 2 FROM h;
CLOSE h;
-- in one transaction the remote shows one snapshot
BEGIN;
SELECT count(*) FROM ft.odd;
SELECT pgpool.exec('shard1', 'INSERT INTO ft."Odd Table" VALUES (4, ''four'')');
SELECT count(*) FROM ft.odd;
COMMIT;
SELECT count(*) FROM ft.odd;
-- a LIMIT reads no more than it needs
SELECT bytes_received AS before FROM pgpool.stats WHERE server = 'tables' \gset
SELECT id FROM ft.numbers WHERE random() >= 0 LIMIT 5;
SELECT bytes_received - :before < 2000 AS few_bytes FROM pgpool.stats WHERE server = 'tables';
-- a transaction has one lease, also for several tables
CREATE TEMP TABLE stats_before AS SELECT * FROM pgpool.stats WHERE server = 'tables';
BEGIN;
SELECT count(*) FROM ft.odd;
SELECT count(*) FROM ft.numbers;
COMMIT;
SELECT a.checkins - b.checkins AS leases, a.statements - b.statements AS statements
  FROM pgpool.stats AS a, stats_before AS b WHERE a.server = 'tables';

--
-- Errors
--
\set VERBOSITY verbose
\set SHOW_CONTEXT always
SELECT * FROM test.err('SELECT * FROM ft.bad');
CREATE FOREIGN TABLE ft.wrong_type (id int, label int) SERVER tables OPTIONS (schema_name 'ft', table_name 'kinds');
SELECT * FROM test.err('SELECT * FROM ft.wrong_type');
CREATE FOREIGN TABLE ft.wrong_column (id int, other int) SERVER tables OPTIONS (schema_name 'ft', table_name 'kinds');
SELECT * FROM test.err('SELECT * FROM ft.wrong_column');
\set VERBOSITY default
SELECT * FROM ft.bad;
SELECT * FROM ft.wrong_type;
SELECT id, wrong_type FROM ft.wrong_type;
\set SHOW_CONTEXT errors
BEGIN;
SELECT count(*) FROM ft.kinds;
PREPARE TRANSACTION 'pgpool';
-- SQL functions cannot use or return the lease of a foreign table
BEGIN;
SELECT count(*) FROM ft.kinds;
SELECT lease FROM pgpool.leases WHERE scope = 'fdw' AND pid = pg_backend_pid() \gset
SAVEPOINT s;
SELECT * FROM test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT * FROM test.err(format('SELECT pgpool.checkin(%s)', :lease));
SELECT pgpool.checkin_all();
SELECT count(*) FROM ft.kinds;
-- a lease that is revoked fails at its next use
SELECT pgpool.terminate(:lease);
SELECT * FROM test.err('SELECT count(*) FROM ft.kinds');
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
SELECT count(*) FROM ft.kinds;
-- nothing is leased for a plan that does not run
EXPLAIN (COSTS OFF) SELECT * FROM ft.kinds;
SELECT count(*) FROM (SELECT 1 WHERE false) AS x, ft.kinds;
-- an option for which postgres_fdw would open connections of its own is refused
SELECT * FROM test.err('ALTER FOREIGN TABLE ft.kinds OPTIONS (ADD use_remote_estimate ''true'')');

--
-- User mappings: that of the reader, and that of a view's owner; the privilege on
-- the table is enough
--
CREATE VIEW ft.kinds_view AS SELECT * FROM ft.kinds;
GRANT USAGE ON SCHEMA ft TO regress_pgpool_app;
GRANT SELECT ON ft.kinds_view, ft.odd TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SELECT count(*) FROM ft.kinds_view;
SELECT * FROM test.err('SELECT count(*) FROM ft.kinds');
SELECT regexp_replace(e, 'user ".*" on', 'user "?" on') FROM test.err('SELECT count(*) FROM ft.odd') AS e;
RESET ROLE;
SELECT test.mapping('regress_pgpool_app', 'tables');
SET ROLE regress_pgpool_app;
SELECT count(*) FROM ft.odd;
SELECT * FROM test.err('SELECT pgpool.exec(''tables'', ''select 1'')');
BEGIN;
SELECT count(*) FROM ft.odd;
SELECT count(*) FROM ft.kinds_view;
RESET ROLE;
SELECT scope, why, user_name = current_user AS own FROM pgpool.leases WHERE pid = pg_backend_pid() ORDER BY why;
COMMIT;

--
-- IMPORT FOREIGN SCHEMA and ANALYZE
--
CREATE SCHEMA ft_import;
SELECT pgpool.exec('shard1', $$
	CREATE TABLE ft.parted (a int NOT NULL DEFAULT 5, b text COLLATE "C", c int GENERATED ALWAYS AS (a * 2) STORED)
		PARTITION BY LIST (a);
	CREATE TABLE ft.part1 PARTITION OF ft.parted FOR VALUES IN (1);
	CREATE TABLE ft.empty ();
$$);
IMPORT FOREIGN SCHEMA ft FROM SERVER tables INTO ft_import OPTIONS (import_default 'true');
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS not_null,
	pg_get_expr(d.adbin, d.adrelid) AS "default", a.attfdwoptions
FROM pg_class AS c LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'ft_import'::regnamespace AND c.relname IN ('parted', 'empty', 'Odd Table') ORDER BY 1, a.attnum;
SELECT relname FROM pg_class WHERE relnamespace = 'ft_import'::regnamespace ORDER BY 1;
IMPORT FOREIGN SCHEMA ft LIMIT TO (part1) FROM SERVER tables INTO ft_import;
SELECT * FROM ft_import.part1;
CREATE SCHEMA ft_plain;
IMPORT FOREIGN SCHEMA ft EXCEPT (part1, empty, "Odd Table", nowhere) FROM SERVER tables INTO ft_plain
	OPTIONS (import_collate 'false', import_generated 'false', import_not_null 'false');
SELECT relname FROM pg_class WHERE relnamespace = 'ft_plain'::regnamespace ORDER BY 1;
SELECT n.nspname, a.attname, a.attnotnull AS not_null, a.attgenerated AS generated, a.attcollation::regcollation AS collation
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
WHERE n.nspname IN ('ft_import', 'ft_plain') AND c.relname = 'parted' ORDER BY 1, a.attnum;
DROP SCHEMA ft_plain CASCADE;
SELECT * FROM test.err('IMPORT FOREIGN SCHEMA nowhere FROM SERVER tables INTO ft_import');
SELECT * FROM test.err('IMPORT FOREIGN SCHEMA ft FROM SERVER tables INTO ft_import OPTIONS (import_all ''true'')');
-- the texts that become part of a local command are those of a remote server whose
-- catalog functions return any text
SELECT test.server('ft_super');
SELECT test.run('ALTER USER MAPPING FOR CURRENT_USER SERVER ft_super OPTIONS (SET user ''remote_super'', SET password ''root secret'')');
SELECT pgpool.exec('ft_super', 'CREATE DATABASE remote_evil');
SELECT test.server('ft_evil');
ALTER SERVER ft_evil OPTIONS (SET dbname 'remote_evil');
SELECT test.run('ALTER USER MAPPING FOR CURRENT_USER SERVER ft_evil OPTIONS (SET user ''remote_super'', SET password ''root secret'')');
SELECT pgpool.exec('ft_evil', $remote$
	CREATE TABLE answer (type text, expression text);
	INSERT INTO answer VALUES ('integer', '1');
	CREATE SCHEMA s;
	CREATE TABLE s.t (a int DEFAULT 1);
	CREATE FUNCTION answered_type() RETURNS text LANGUAGE sql STABLE AS 'SELECT type FROM public.answer';
	CREATE FUNCTION answered_expression() RETURNS text LANGUAGE sql STABLE AS 'SELECT expression FROM public.answer';
	-- a single expression, which the planner inlines, because the OID is that of a C function
	SET allow_system_table_mods = on;
	CREATE OR REPLACE FUNCTION pg_catalog.format_type(oid, integer) RETURNS text LANGUAGE sql STABLE AS 'SELECT public.answered_type()';
	CREATE OR REPLACE FUNCTION pg_catalog.pg_get_expr(pg_node_tree, oid) RETURNS text LANGUAGE sql STABLE AS 'SELECT public.answered_expression()';
$remote$);
CREATE SCHEMA ft_evil;
CREATE TABLE ft_evil.local (a int);
-- Import a table with each of these types, or defaults, and show its column or the error.
CREATE PROCEDURE test.import(answers text[], as_default boolean) LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	result text;
BEGIN
	FOREACH answer IN ARRAY answers LOOP
		PERFORM pgpool.exec('ft_evil', 'UPDATE answer SET type = $1, expression = $2',
			CASE WHEN as_default THEN 'text' ELSE answer END, CASE WHEN as_default THEN answer ELSE 'NULL' END);
		COMMIT;
		BEGIN
			IMPORT FOREIGN SCHEMA s LIMIT TO (t) FROM SERVER ft_evil INTO ft_evil OPTIONS (import_default 'true');
			SELECT format('%s DEFAULT %s %s', format_type(atttypid, atttypmod), pg_get_expr(adbin, adrelid), attfdwoptions) INTO STRICT result
				FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = 'ft_evil.t'::regclass AND attnum > 0;
			DROP FOREIGN TABLE ft_evil.t;
		EXCEPTION WHEN OTHERS THEN
			result := 'ERROR ' || SQLSTATE || ': ' || SQLERRM;
		END;
		COMMIT;
		RAISE NOTICE '<%>: %', answer, result;
	END LOOP;
END $$;
CALL test.import(ARRAY['integer', 'numeric(10,2)[]', 'character varying(3)', 'time(3) with time zone',
	'interval day to second(3)', '"char"', 'ft_evil.local', 'integer --', 'integer /* */',
	'', 'integer, b integer', 'integer NOT NULL', 'SETOF integer', 'integer /*', 'integer;',
	'integer DEFAULT 1 ) INHERITS (ft_evil.local) SERVER tables; CREATE FOREIGN TABLE soak (x integer'], false);
-- a table whose column has a type that was dropped meanwhile is left out
CALL test.import(ARRAY['???', NULL], false);
CALL test.import(ARRAY['(1 + 2) * 3', 'length(''a); b''::text)', '1 -- ', '$a$)$a$::text',
	'', '1, b integer', '1), b integer DEFAULT (2', '1 NOT NULL', '1 AS b', '1 b', '1 FROM pg_class', 'DISTINCT 1', '1 UNION SELECT 2',
	'1 INTO x', '1 WHERE true', '1 LIMIT 1', '1 FOR UPDATE', '1;', '1; SELECT 2', '(SELECT 1)', '*',
	'1) SERVER tables; CREATE FOREIGN TABLE soak (x integer'], true);
SELECT relname FROM pg_class WHERE relnamespace = 'ft_evil'::regnamespace;
-- the error shows the position in the remote's text
\set SHOW_CONTEXT always
IMPORT FOREIGN SCHEMA s FROM SERVER ft_evil INTO ft_evil OPTIONS (import_default 'true');
\unset SHOW_CONTEXT
-- names are quoted
SELECT pgpool.exec('ft_evil', $$CREATE COLLATION public."C"") SERVER tables; --" FROM "C"; ALTER TABLE s.t ALTER a TYPE text COLLATE public."C"") SERVER tables; --"; UPDATE answer SET type = 'text', expression = 'NULL'$$);
IMPORT FOREIGN SCHEMA s FROM SERVER ft_evil INTO ft_evil;
-- ANALYZE of a table whose size the remote server does not return
SELECT pgpool.exec('ft_evil', $remote$
	INSERT INTO s.t VALUES ('x');
	SET allow_system_table_mods = on;
	CREATE OR REPLACE FUNCTION pg_catalog.pg_relation_size(regclass) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT NULL::bigint';
$remote$);
CREATE FOREIGN TABLE ft_evil.t (a text) SERVER ft_evil OPTIONS (schema_name 's');
ANALYZE ft_evil.t;
SELECT relpages, reltuples FROM pg_class WHERE oid = 'ft_evil.t'::regclass;
DROP FOREIGN TABLE ft_evil.t;
DROP PROCEDURE test.import;
DROP SCHEMA ft_evil CASCADE;
SELECT test.drop('ft_evil');
SELECT pgpool.exec('ft_super', 'DROP DATABASE remote_evil WITH (FORCE)');
SELECT test.drop('ft_super');
ANALYZE ft.numbers;
SELECT reltuples FROM pg_class WHERE oid = 'ft.numbers'::regclass;

--
-- Partitions on several servers
--
SELECT test.server('tables2', 'async_capable', 'true');
SELECT test.server('tables3', 'async_capable', 'true');
ALTER SERVER tables OPTIONS (ADD async_capable 'true');
SELECT pgpool.exec('shard1', $$
	CREATE TABLE ft.p1 AS SELECT 1 AS k, i AS id FROM generate_series(1, 1000) AS i;
	CREATE TABLE ft.p2 AS SELECT 2 AS k, i AS id FROM generate_series(1, 2000) AS i;
	CREATE TABLE ft.p3 AS SELECT 3 AS k, i AS id FROM generate_series(1, 3000) AS i;
	CREATE TABLE ft.p4 AS SELECT 4 AS k, 1 AS id;
	CREATE TABLE ft.p5 AS SELECT 5 AS k, i AS id FROM generate_series(1, 500) AS i;
	-- true once three sessions are in it
	CREATE FUNCTION ft.meet() RETURNS boolean LANGUAGE plpgsql AS 'DECLARE n int; BEGIN
		PERFORM pg_advisory_xact_lock_shared(4711);
		FOR i IN 1 .. 2000 LOOP
			SELECT count(DISTINCT pid) INTO n FROM pg_locks WHERE locktype = ''advisory'' AND objid = 4711;
			EXIT WHEN n >= 3;
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN n >= 3; END';
	CREATE VIEW ft.m1 AS SELECT 1 AS k, ft.meet() AS met;
	CREATE VIEW ft.m2 AS SELECT 2 AS k, ft.meet() AS met;
	CREATE VIEW ft.m3 AS SELECT 3 AS k, ft.meet() AS met;
	-- its second row arrives after the row of s2
	CREATE VIEW ft.s1 AS SELECT 1 AS k, 1 AS id UNION ALL SELECT 1, 2 FROM pg_sleep(0.5);
	CREATE VIEW ft.s2 AS SELECT 2 AS k, 1 AS id FROM pg_sleep(0.2);
	CREATE VIEW ft.s3 AS SELECT 3 AS k, i AS id FROM generate_series(1, 100) AS i;
$$);
CREATE TABLE ft.parted (k int, id int) PARTITION BY LIST (k);
CREATE FOREIGN TABLE ft.p1 PARTITION OF ft.parted FOR VALUES IN (1) SERVER tables;
CREATE FOREIGN TABLE ft.p2 PARTITION OF ft.parted FOR VALUES IN (2) SERVER tables2;
CREATE FOREIGN TABLE ft.p3 PARTITION OF ft.parted FOR VALUES IN (3) SERVER tables3;
CREATE FOREIGN TABLE ft.p4 PARTITION OF ft.parted FOR VALUES IN (4) SERVER tables;
CREATE FOREIGN TABLE ft.p5 PARTITION OF ft.parted FOR VALUES IN (5) SERVER tables;
CREATE TABLE ft.meetings (k int, met boolean) PARTITION BY LIST (k);
CREATE FOREIGN TABLE ft.m1 PARTITION OF ft.meetings FOR VALUES IN (1) SERVER tables;
CREATE FOREIGN TABLE ft.m2 PARTITION OF ft.meetings FOR VALUES IN (2) SERVER tables2;
CREATE FOREIGN TABLE ft.m3 PARTITION OF ft.meetings FOR VALUES IN (3) SERVER tables3;
EXPLAIN (COSTS OFF) SELECT count(*) FROM ft.parted WHERE random() >= 0;
-- scans of all servers run at the same time: otherwise the view would wait for ever
SET statement_timeout = '60s';
SELECT count(*) FROM ft.meetings WHERE met;
SELECT k, count(*), sum(id) FROM ft.parted WHERE random() >= 0 GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM (SELECT FROM ft.parted WHERE random() >= 0 LIMIT 7) AS t;
-- rescans with other parameters, and with fewer partitions
SELECT i, (SELECT count(*) FROM ft.parted WHERE k >= i AND id <= 100 AND random() >= 0)
	FROM generate_series(1, 6) AS i;
SELECT i, EXISTS (SELECT FROM ft.parted WHERE k <> i AND id <= 100 AND random() >= 0) FROM generate_series(1, 3) AS i;
-- a partition that is pruned in the second execution still reads from the lease
SELECT i, EXISTS (SELECT FROM ft.parted WHERE k >= i AND random() >= 0) FROM (VALUES (1), (4)) AS v(i);
-- beside other statements on the same leases
BEGIN;
DECLARE c CURSOR FOR SELECT k FROM ft.parted WHERE random() >= 0;
MOVE 5 FROM c;
SELECT count(*) FROM ft.p1;
MOVE 5 FROM c;
SELECT count(*) FROM ft.parted WHERE random() >= 0;
MOVE ALL FROM c;
SELECT server, scope FROM pg_temp.held;
COMMIT;
-- a local filter that executes statements on the leases of other scans of the Append
CREATE TABLE ft.slow (k int, id int) PARTITION BY LIST (k);
CREATE FOREIGN TABLE ft.s1 PARTITION OF ft.slow FOR VALUES IN (1) SERVER tables OPTIONS (fetch_size '1');
CREATE FOREIGN TABLE ft.s2 PARTITION OF ft.slow FOR VALUES IN (2) SERVER tables2;
CREATE FOREIGN TABLE ft.s3 PARTITION OF ft.slow FOR VALUES IN (3) SERVER tables OPTIONS (fetch_size '1');
CREATE FOREIGN TABLE ft.kinds2 (id int, label text) SERVER tables2 OPTIONS (schema_name 'ft', table_name 'kinds');
CREATE FUNCTION ft.is_kind(k int, id int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
	IF k = 2 THEN
		PERFORM FROM ft.kinds WHERE label = 'kind ' || is_kind.id;
	ELSE
		PERFORM FROM ft.kinds2 WHERE label = 'kind ' || is_kind.id;
	END IF;
	RETURN FOUND;
END $$;
EXPLAIN (COSTS OFF) SELECT k, id FROM ft.slow WHERE ft.is_kind(k, id);
SELECT count(*) FROM ft.slow WHERE k < 3 AND NOT ft.is_kind(k, id);
SELECT count(*) FROM ft.slow WHERE ft.is_kind(k, id + 10);
SELECT k, count(*), max(id) FROM ft.slow WHERE ft.is_kind(k, id) GROUP BY k ORDER BY k;
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM ft.slow WHERE ft.is_kind(k, id);
MOVE 1 FROM c;
SELECT count(*) FROM ft.slow WHERE ft.is_kind(k, id + 10);
MOVE ALL FROM c;
COMMIT;
-- beside an asynchronous scan of postgres_fdw, whose filter uses our lease after our socket would have been added
CREATE EXTENSION postgres_fdw;
SELECT test.run(format('CREATE SERVER plain FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host %L, port %L, dbname ''remote_db'', async_capable ''true'')',
	current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port')));
SELECT test.mapping('CURRENT_USER', 'plain');
CREATE TABLE ft.mixed (k int, id int) PARTITION BY LIST (k);
CREATE FOREIGN TABLE ft.x1 PARTITION OF ft.mixed FOR VALUES IN (1) SERVER tables OPTIONS (table_name 's1', fetch_size '1');
CREATE FOREIGN TABLE ft.x2 PARTITION OF ft.mixed FOR VALUES IN (2) SERVER plain OPTIONS (table_name 's2');
CREATE FOREIGN TABLE ft.plain_kinds (id int, label text) SERVER plain OPTIONS (table_name 'kinds');
EXPLAIN (COSTS OFF) SELECT k, id FROM ft.mixed WHERE random() >= 0;
SELECT count(*) FROM ft.mixed WHERE CASE k WHEN 2 THEN ft.is_kind(k, id)
	ELSE EXISTS (SELECT FROM ft.plain_kinds AS p WHERE p.id = mixed.id) END;
SELECT test.run('DROP EXTENSION postgres_fdw CASCADE');
-- local and remote partitions
CREATE TABLE ft.p6 PARTITION OF ft.parted FOR VALUES IN (6);
SELECT count(*) FROM ft.parted WHERE random() >= 0;
RESET statement_timeout;
-- a partition that fails
ALTER FOREIGN TABLE ft.p3 OPTIONS (ADD table_name 'missing');
SELECT count(*) FROM ft.parted WHERE random() >= 0;
SELECT count(*) FROM pg_temp.held;

--
-- EXPLAIN
--
-- lines that are added to the output of postgres_fdw; times are replaced
CREATE FUNCTION pg_temp.explain(options text, query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
	FOR line IN EXECUTE format('EXPLAIN (%s, COSTS OFF, SUMMARY OFF) %s', options, query) LOOP
		IF line ~ 'Pool|Remote Rows' THEN
			RETURN NEXT regexp_replace(trim(line), '[0-9.]+ ms', 'N ms');
		END IF;
	END LOOP;
END $$;
SELECT * FROM pg_temp.explain('ANALYZE, VERBOSE', 'SELECT id FROM ft.numbers WHERE id <= 10 AND id % 2 = 0 AND random() >= 0');
SELECT * FROM pg_temp.explain('ANALYZE, VERBOSE, TIMING OFF', 'UPDATE ft.p4 SET id = 2');
SELECT * FROM pg_temp.explain('ANALYZE, VERBOSE, TIMING OFF', 'UPDATE ft.p4 SET id = 2 RETURNING id');
SELECT * FROM pg_temp.explain('ANALYZE, VERBOSE, TIMING OFF', 'INSERT INTO ft.kinds VALUES (10, ''x'')');
SELECT * FROM pg_temp.explain('ANALYZE', 'SELECT id FROM ft.kinds');
SELECT * FROM pg_temp.explain('VERBOSE', 'SELECT id FROM ft.kinds');
SELECT * FROM pg_temp.explain('ANALYZE, VERBOSE', 'SELECT id FROM ft.kinds LIMIT (SELECT 0)');
-- the same for programs
CREATE FUNCTION pg_temp.explained(query text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) ' || query INTO plan;
	RETURN plan->0->'Plan';
END $$;
SELECT p->'Pool' AS pool, jsonb_typeof(p->'Pool Wait') AS pool_wait, p->'Remote Rows' AS remote_rows
	FROM pg_temp.explained('SELECT id FROM ft.kinds WHERE id IN (1, 2)') AS p;

-- a SERIALIZABLE local transaction is SERIALIZABLE on the remote server
BEGIN ISOLATION LEVEL SERIALIZABLE;
CREATE FOREIGN TABLE ft.settings (name text, setting text) SERVER tables
	OPTIONS (schema_name 'pg_catalog', table_name 'pg_settings');
SELECT name, setting FROM ft.settings WHERE name IN ('transaction_isolation', 'search_path', 'TimeZone',
	'DateStyle', 'IntervalStyle', 'extra_float_digits') ORDER BY 1;
COMMIT;
-- the settings of foreign tables do not affect statements of functions
SELECT * FROM pgpool.query('tables', 'select current_setting(''transaction_isolation''),
	current_setting(''search_path'')') AS t(isolation text, path text);
SELECT setting FROM ft.settings WHERE name = 'transaction_isolation';

-- while a row is converted, the CHECK of a domain cannot read a foreign table of the same server
CREATE FUNCTION ft.is_known(int) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT EXISTS (SELECT FROM ft.numbers WHERE id = $1)';
CREATE DOMAIN ft.known AS int CHECK (ft.is_known(VALUE));
CREATE FOREIGN TABLE ft.known_numbers (id ft.known) SERVER tables OPTIONS (schema_name 'ft', table_name 'numbers');
SELECT id FROM ft.known_numbers LIMIT 1;

-- commits that do not wait for the remote server leave nothing behind
SELECT pgpool.check_invariants();
SELECT count(*) FROM pg_temp.held;
RESET timezone;
SET client_min_messages = warning;
DROP SCHEMA ft, ft_import CASCADE;
SELECT pgpool.exec('shard1', 'DROP SCHEMA ft CASCADE');
SELECT test.drop('tables', 'tables2', 'tables3');
