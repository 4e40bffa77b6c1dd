--
-- Values: as parameters to the remote, and in its results.
--

SELECT pgpool.checkout('one') AS lease \gset

--
-- Parameters as text: untyped literals, and text[]
--

SELECT * FROM pgpool.query(:lease, 'select $1', 'a text') AS t(a text);
SELECT * FROM pgpool.query(:lease, 'select $1::int + $2::int', '1', '2') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select $1::date, $2::text', '2026-11-21', NULL) AS t(a date, b text);
SELECT * FROM pgpool.query(:lease, 'select $1::bigint', 'x') AS t(a bigint);
SELECT pgpool.checkin(:lease);
SELECT * FROM pgpool.query('one', 'select $1::bigint', '9223372036854775807') AS t(a bigint);
SELECT pgpool.exec('one', 'select generate_series(1, $1::int)', '5');
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec(:lease, 'select generate_series(1, $1::int)', '5');
-- VARIADIC with an array
SELECT * FROM pgpool.query(:lease, 'select $1, $2, $3', VARIADIC '{a,NULL,""}'::text[]) AS t(a text, b text, c text);
SELECT * FROM pgpool.query(:lease, 'select 1', VARIADIC '{}'::text[]) AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select $1::int + $2::int', VARIADIC '{1,2}'::int[]) AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select $1::int, $2::int', VARIADIC '{1,NULL}'::int[]) AS t(a int, b int);
SELECT * FROM pgpool.query(:lease, 'select $1::date + $2::int', VARIADIC ARRAY['2026-11-21', 1::text]) AS t(a date);
SELECT * FROM pgpool.query(:lease, 'select $1', VARIADIC NULL::text[]) AS t(a text);
SELECT * FROM pgpool.query(:lease, 'select $1', VARIADIC NULL::int[]) AS t(a text);
SELECT * FROM pgpool.query(:lease, 'select $1', VARIADIC '{{a},{b}}'::text[]) AS t(a text);
SELECT * FROM pgpool.query(:lease, 'select $1', VARIADIC '{{1},{2}}'::int[]) AS t(a text);
SELECT pgpool.exec('shard1', 'select $1', VARIADIC 1);

-- too few or too many: the remote raises the error
SELECT pgpool.exec(:lease, 'select $1::int, $2::int', '1');
SELECT pgpool.exec(:lease, 'select 1', '1');
SELECT pgpool.exec(:lease, 'select $1');

-- 10,000 parameters, and more than the protocol can number
SELECT format('select count(*), sum(p), min(p), max(p) from unnest(array[%s]::int[]) as p',
	string_agg('$' || i, ',' ORDER BY i)) AS sql FROM generate_series(1, 10000) AS i \gset
SELECT * FROM pgpool.query(:lease, :'sql', VARIADIC
	(SELECT array_agg(i::text ORDER BY i) FROM generate_series(1, 10000) AS i)) AS t(count int, sum int, min int, max int);
SELECT * FROM pgpool.query(:lease, :'sql', VARIADIC
	(SELECT array_agg(i ORDER BY i) FROM generate_series(1, 10000) AS i)) AS t(count int, sum int, min int, max int);
SELECT * FROM pgpool.query('shard1', :'sql', VARIADIC
	(SELECT array_agg(i ORDER BY i) FROM generate_series(1, 10000) AS i)) AS t(count int, sum int, min int, max int);
SELECT pgpool.exec(:lease, 'select 1', VARIADIC
	(SELECT array_agg(i) FROM generate_series(1, 70000) AS i));
SELECT pgpool.exec('shard1', 'select 1', VARIADIC
	(SELECT array_agg(i::text) FROM generate_series(1, 65536) AS i));
-- the highest number of parameters
SELECT format('select count(*), sum(p) from unnest(array[%s]::int[]) as p',
	string_agg('$' || i, ',' ORDER BY i)) AS sql FROM generate_series(1, 65535) AS i \gset
SELECT * FROM pgpool.query(:lease, :'sql', VARIADIC
	(SELECT array_agg(i) FROM generate_series(1, 65535) AS i)) AS t(count int, sum bigint);

--
-- Typed parameters
--

CREATE TYPE test.mood AS ENUM ('sad', 'ok', 'very happy');
CREATE TYPE test.pair AS (a int, b text);
CREATE DOMAIN test.positive AS int CHECK (VALUE > 0);
CREATE DOMAIN test.given AS int NOT NULL;
-- typed and untyped parameters mixed
SELECT * FROM pgpool.query(:lease, 'select $1::int + $2::int + $3::int, $4::text', 1, '2', 3::bigint, NULL) AS t(a int, b text);
-- an array is one parameter
SELECT * FROM pgpool.query(:lease, 'select cardinality($1::int[])', ARRAY[1, 2, 3]) AS t(a int);
SELECT pgpool.exec(:lease, 'select unnest($1::text[])', ARRAY['a', 'b']);
SELECT pgpool.exec('shard1', 'select unnest($1::int[])', ARRAY[1, 2]);
-- all four forms of both functions
SELECT a, b, c, d FROM pgpool.query(:lease, 'select $1', 'x') AS a(a text),
	pgpool.query(:lease, 'select $1', 'x'::text) AS b(b text),
	pgpool.query('shard1', 'select $1::int', '1') AS c(c int),
	pgpool.query('shard1', 'select $1::int', 1) AS d(d int);
SELECT pgpool.exec(:lease, 'select $1', 'x') AS a, pgpool.exec(:lease, 'select $1::int', 1) AS b,
	pgpool.exec('shard1', 'select $1', 'x') AS c, pgpool.exec('shard1', 'select $1::int', 1) AS d;

-- statements of each text type, and server names of each text type
SELECT pgpool.exec('shard1', 'select $1', 'x'::name) AS a, pgpool.exec('shard1', 'select $1', 'x'::varchar) AS b,
	pgpool.exec('shard1', 'select $1', 'x'::char(3)) AS c, pgpool.exec('shard1'::name, 'select $1', 'x'::name) AS d,
	pgpool.exec('shard1'::varchar, 'select $1, $2', 'x'::name, 'y') AS e, pgpool.exec(:lease::int, 'select $1', 'x'::name) AS f;

--
-- Results do not depend on the local settings
--

-- local settings are also unchanged for the rest of the transaction
BEGIN;
SET LOCAL datestyle = 'German, YMD';
SELECT * FROM pgpool.query(:lease, 'select $1', date '2026-02-01') AS t(a text);
SHOW datestyle;
COMMIT;
-- no single local setting changes a parameter, to the last bit
SET datestyle = 'ISO';
SET intervalstyle = 'postgres';
SET extra_float_digits = 0;
SELECT * FROM pgpool.query(:lease, 'select $1::float8 = 0.1::float8 + 0.2::float8', 0.1::float8 + 0.2::float8) AS t(same bool);
RESET extra_float_digits;
SET intervalstyle = 'sql_standard';
SELECT * FROM pgpool.query(:lease, 'select $1::interval = interval ''-3 days'' - interval ''4 hours''', interval '-3 days' - interval '4 hours') AS t(same bool);
RESET intervalstyle;
RESET datestyle;

-- a statement that returns rows is not sent while the remote session has other styles
SELECT pgpool.exec(:lease, 'set intervalstyle = ''sql_standard''; create temp sequence styles');
SELECT * FROM pgpool.query(:lease, 'select nextval(''styles'')') AS t(a int);
SELECT pgpool.exec(:lease, 'set intervalstyle = ''postgres''; set datestyle = ''SQL, DMY''');
SELECT * FROM pgpool.query(:lease, 'select nextval(''styles'')') AS t(a int);
-- pgpool.send does not read rows
SELECT pgpool.send(:lease, 'select nextval(''styles'')');
SELECT * FROM pgpool.result(:lease) AS t(a int);
SELECT pgpool.send(:lease, 'reset datestyle');
SELECT * FROM pgpool.result(:lease) AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select nextval(''styles'')') AS t(a int);
-- rows of the statement that changes a style are not returned
SELECT * FROM pgpool.query(:lease, 'select set_config(''datestyle'', ''German'', false), date ''2026-02-01''') AS t(a text, b text);
SELECT pgpool.exec(:lease, 'set datestyle = ''ISO, YMD''');
SELECT * FROM pgpool.query(:lease, 'select date ''2026-02-03'', interval ''-1 day''') AS t(a date, b interval);
-- another client_encoding is refused until the lease is returned
SELECT pgpool.exec(:lease, 'set client_encoding = ''LATIN1''');
SELECT * FROM pgpool.query(:lease, 'select 1') AS t(a int);
SELECT pgpool.checkin(:lease);
SELECT pgpool.checkout('one') AS lease \gset
SELECT * FROM pgpool.query(:lease, 'show client_encoding') AS t(a text);

-- domains
SELECT * FROM pgpool.query(:lease, 'select 1, null') AS t(a test.positive, b test.positive);
SELECT * FROM pgpool.query(:lease, 'select -1') AS t(a test.positive);
SELECT * FROM pgpool.query(:lease, 'select 1') AS t(a test.given);
SELECT * FROM pgpool.query(:lease, 'select null') AS t(a test.given);
-- enums, composites, arrays of them
SELECT *, (b).b FROM pgpool.query(:lease, 'select ''ok'', ''(1,"a, b")'', ''{sad,NULL}'', ''{"(1,a)"}''')
	AS t(a test.mood, b test.pair, c test.mood[], d test.pair[]);
SELECT * FROM pgpool.query(:lease, 'select ''angry''') AS t(a test.mood);
SELECT * FROM pgpool.query(:lease, 'select ''(1)''') AS t(a test.pair);
-- lengths and precisions of the column list
SELECT * FROM pgpool.query(:lease, 'select ''abc'', ''ab'', 1.239, ''12:34:56.789'', ''101''')
	AS t(a varchar(3), b char(4), c numeric(5,2), d time(1), e bit(3));
SELECT * FROM pgpool.query(:lease, 'select ''abcd''') AS t(a varchar(3));
SELECT * FROM pgpool.query(:lease, 'select 1000') AS t(a numeric(5,2));
SELECT * FROM pgpool.query(:lease, 'select ''{abcd}''') AS t(a varchar(3)[]);
-- types that differ from the remote's: the column's type reads the text
SELECT * FROM pgpool.query(:lease, 'select 1, 1.0, true, ''2026-01-01''::date') AS t(a text, b float8, c text, d timestamp);
SELECT * FROM pgpool.query(:lease, 'select 1.5') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1, ''abc''') AS t(a int, b int);
SELECT * FROM pgpool.query(:lease, 'select 32768') AS t(a smallint);
SELECT * FROM pgpool.query(:lease, 'select ''not'' || '' a date''') AS t(a date);

-- an error in the middle of a large result leaves the lease usable
SELECT * FROM pgpool.query(:lease, 'select case when i = 5000 then 99999999999 else i end from generate_series(1, 10000) as i') AS t(a int);
SELECT * FROM pgpool.query(:lease, 'select 1') AS t(a int);
-- also in a result whose rest is large
SELECT * FROM pgpool.query(:lease, 'select case when i = 100 then 99999999999 else i end, repeat(''x'', 10000) from generate_series(1, 1000000) as i') AS t(a int, b text);
SELECT * FROM pgpool.query(:lease, 'select 1') AS t(a int);
SELECT * FROM pgpool.query('shard1', 'select case when i = 100 then 99999999999 else i end, repeat(''x'', 10000) from generate_series(1, 1000000) as i') AS t(a int, b text);
SELECT * FROM pgpool.query('shard1', 'select 1') AS t(a int);
-- in a transaction: a local error in a short result does not fail the remote transaction
SELECT pgpool.exec(:lease, 'begin');
SELECT * FROM pgpool.query(:lease, 'select ''x'' from generate_series(1, 10)') AS t(a int);
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.exec(:lease, 'commit');

-- long and many values
SELECT length(a), md5(a) = md5(repeat('xyz', 333333)) AS same
  FROM pgpool.query(:lease, 'select repeat(''xyz'', 333333)') AS t(a text);
SELECT a = repeat('ä☃', 500000) AS same, length(a)
  FROM pgpool.query(:lease, 'select $1', repeat('ä☃', 500000)) AS t(a text);
SELECT length(a), length(b) FROM pgpool.query(:lease, 'select $1::bytea, $2', decode(repeat('00ff', 1000000), 'hex'), repeat('x', 1000000)::text) AS t(a bytea, b text);
SELECT pgpool.exec(:lease, 'select ' || quote_literal(repeat('x', 5000000)));
SELECT count(*), sum(length(a)) FROM pgpool.query(:lease, 'select repeat(''x'', 100000) from generate_series(1, 200)') AS t(a text);
-- multi-byte text, also in names
SELECT * FROM pgpool.query(:lease, 'select ''Größe ☃ 漢字 🐘'' as "größe", length(''🐘''), $1', '✓') AS t("größe" text, n int, p text);

SELECT pgpool.checkin(:lease);
DROP DOMAIN test.positive, test.given;
DROP TYPE test.mood, test.pair;
SELECT pgpool.check_invariants();
