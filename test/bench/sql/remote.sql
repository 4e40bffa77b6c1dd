-- Tables and functions on the remote server, in addition to the tables of pgbench -i.
-- psql variable: rows.
CREATE UNLOGGED TABLE one (a int);
INSERT INTO one VALUES (1);

-- large tables: mixed types, eight numbers
CREATE UNLOGGED TABLE mixed AS
  SELECT i AS a, 'row number ' || i AS b,
    timestamptz '2026-01-01' + i * interval '1 s' AS c, (i * 1.25)::numeric AS d
  FROM generate_series(1, :rows) AS i;
CREATE UNLOGGED TABLE numbers AS
  SELECT i AS a, i + 1 AS b, i::bigint AS c, i::bigint * 1000 AS d,
    i / 3.0::float8 AS e, i / 7.0::float8 AS f, i + 2 AS g, i + 3 AS h
  FROM generate_series(1, :rows) AS i;

-- for PL/Proxy
CREATE FUNCTION one_now() RETURNS int LANGUAGE sql AS 'select 1';

-- for foreign tables: tables for INSERT, and a view that takes 100 ms
CREATE UNLOGGED TABLE inserted (a int, b text);
CREATE TABLE transferred (a int);
CREATE FUNCTION slow_row() RETURNS TABLE (n int, a text) LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.1); RETURN QUERY SELECT i, 'row ' || i FROM generate_series(1, 4) AS i; END $$;
CREATE VIEW slow AS SELECT * FROM slow_row();
