--
-- describe and column_list: the columns of a remote statement without executing it;
-- the hint for a column list that does not fit.
--

SELECT * FROM pgpool.describe('one', 'select 1 as id, ''x''::varchar(5) as "Note", now(), null, 1.5::numeric(4,2), array[1]');
SELECT pgpool.column_list('one', 'select 1 as id, ''x''::varchar(5) as "Note", now(), null, 1.5::numeric(4,2), array[1]');
SELECT * FROM pgpool.query('one', 'select 1 as id, ''x''::varchar(5) as "Note", null, 1.5::numeric(4,2), array[1]')
  AS t(id integer, "Note" character varying(5), "?column?" text, "numeric" numeric(4,2), "array" integer[]);

-- parameters need no values, and nothing is executed
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec(:lease, 'create temp table t (a int, b date)');
SELECT * FROM pgpool.describe(:lease, 'insert into t values ($1, $2) returning a + 1 as a, b');
SELECT pgpool.column_list(:lease, 'insert into t values ($1, $2) returning a + 1 as a, b');
SELECT * FROM pgpool.query(:lease, 'table t') AS t(a int, b date);
SELECT * FROM pgpool.describe(:lease, 'insert into t values (1)');
SELECT pgpool.column_list(:lease, 'insert into t values (1)') IS NULL AS none;
SELECT pgpool.column_list(:lease, '') IS NULL AS none;

-- duplicate names, long ones, and names that need quotes; types that a column cannot
-- have
SELECT pgpool.column_list(:lease, 'select 1 as a, 2 as a, 3 as a, 4 as a_2, 5 as "a""b", 6 as "select", (1, 2), pg_sleep(0)');
SELECT pgpool.column_list(:lease, format('select 1 as %1$I, 2 as %1$I', repeat('ä', 31)));

-- types that exist only remotely
SELECT pgpool.exec(:lease, 'create schema "my types"');
SELECT pgpool.exec(:lease, 'create type "my types".mood as enum (''fine''); create type "my types"."Pair" as (a int, b int); create domain "my types".age as int');
SELECT * FROM pgpool.describe(:lease, 'select null::"my types".mood as m, null::"my types".mood[] as ms, 1 as i, row(1, 2)::"my types"."Pair" as p, 7::"my types".age as d, null::"my types".age[] as ds');
SELECT pgpool.column_list(:lease, 'select null::"my types".mood as m, null::"my types".mood[] as ms, 1 as i');

-- a column list that does not match the result: the hint has the right list
SELECT * FROM pgpool.query(:lease, 'select a, b, ''fine''::"my types".mood from t') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1 as a, 2 as a, ''ä'' as "Ä"') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1 as a, 2 as a, ''ä'' as "Ä"') AS t(a integer, a_2 integer, "Ä" text);
SELECT * FROM pgpool.query(:lease, 'select') AS t(a int);
SELECT format($$SELECT * FROM pgpool.query(%L, %L) AS t(a int)$$, 'shard1', 'select ' || string_agg(i::text, ', ')) FROM generate_series(1, 101) AS i \gexec
SELECT pgpool.exec(:lease, 'drop schema "my types" cascade');

-- errors
SELECT * FROM pgpool.describe(:lease, 'select 1, nowhere');
SELECT pgpool.column_list(:lease, 'select 1; select 2');
SELECT pgpool.exec(:lease, 'begin');
SELECT pgpool.exec(:lease, 'select 1/0');
SELECT pgpool.column_list(:lease, 'select 1');
SELECT pgpool.exec(:lease, 'rollback');
SELECT pgpool.column_list(:lease, 'select 1');
SELECT pgpool.send(:lease, 'select 1');
\set VERBOSITY sqlstate
SELECT pgpool.column_list(:lease, 'select 1');
SELECT * FROM pgpool.result(:lease) AS t(a int);
SELECT pgpool.checkin(:lease);
SELECT pgpool.column_list(:lease, 'select 1');
\set VERBOSITY default
SELECT pgpool.column_list('nowhere', 'select 1');
SELECT pgpool.column_list(NULL::text, 'select 1');
SELECT pgpool.column_list('one', NULL);
SELECT * FROM pgpool.describe('one', 'selec 1');
SELECT leased FROM pgpool.pools WHERE server = 'one' AND database = current_database();
