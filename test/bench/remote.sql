-- What the bench reads at the remote.  pgbench -i has made its tables.
CREATE TABLE one (a int);
INSERT INTO one VALUES (1);

-- a million rows: of mixed types, and of numbers
CREATE TABLE mixed AS
  SELECT i AS a, 'row number ' || i AS b,
    timestamptz '2026-01-01' + i * interval '1 s' AS c, (i * 1.25)::numeric AS d
  FROM generate_series(1, 1000000) AS i;
CREATE TABLE numbers AS
  SELECT i AS a, i + 1 AS b, i::bigint AS c, i::bigint * 1000 AS d,
    i / 3.0::float8 AS e, i / 7.0::float8 AS f, i + 2 AS g, i + 3 AS h
  FROM generate_series(1, 1000000) AS i;

-- backends of a role at peak, looked at for some seconds
CREATE FUNCTION peak_backends(role name, seconds numeric) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
  until timestamptz := clock_timestamp() + seconds * interval '1 s';
  n int;
  peak int := 0;
BEGIN
  WHILE clock_timestamp() < until LOOP
    PERFORM pg_stat_clear_snapshot();
    SELECT count(*) INTO n FROM pg_stat_activity WHERE usename = role;
    peak := greatest(peak, n);
    PERFORM pg_sleep(0.1);
  END LOOP;
  RETURN peak;
END $$;
