CREATE FUNCTION us_since(start timestamptz, n int) RETURNS numeric
LANGUAGE sql AS
$$ SELECT round(extract(epoch FROM clock_timestamp() - start) * 1e6 / n, 3) $$;

-- checkout and checkin; acquire and release an advisory lock
CREATE FUNCTION advisory_pair(n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  b boolean;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    b := pg_try_advisory_lock(1);
    b := pg_advisory_unlock(1);
  END LOOP;
  RETURN us_since(start, n);
END $$;

CREATE FUNCTION lease_pair(server text, n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l bigint;
  x text;  -- there are no variables of type void
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    l := pgpool.checkout(server);
    x := pgpool.checkin(l);
  END LOOP;
  RETURN us_since(start, n);
END $$;

-- a statement on a held lease
CREATE FUNCTION held_lease(server text, sql text, n int) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l bigint := pgpool.checkout(server);
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM pgpool.query(l, sql) AS t(a int);
  END LOOP;
  PERFORM pgpool.checkin(l);
  RETURN us_since(start, n);
END $$;

CREATE FUNCTION dblink_named(server text, sql text, n int) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l text := dblink_connect('c', server);
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM dblink('c', sql) AS t(a int);
  END LOOP;
  l := dblink_disconnect('c');
  RETURN us_since(start, n);
END $$;

-- each call names a server
CREATE FUNCTION dblink_each(server text, sql text, n int) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM dblink(server, sql) AS t(a int);
  END LOOP;
  RETURN us_since(start, n);
END $$;

CREATE FUNCTION held_exec(server text, sql text, n int) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l bigint := pgpool.checkout(server);
  v bigint;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    v := pgpool.exec(l, sql);
  END LOOP;
  PERFORM pgpool.checkin(l);
  RETURN us_since(start, n);
END $$;

-- a lease per statement
CREATE FUNCTION lease_each(server text, sql text, n int) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l bigint;
  v int;
  x text;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    l := pgpool.checkout(server);
    SELECT * INTO v FROM pgpool.query(l, sql) AS t(a int);
    x := pgpool.checkin(l);
  END LOOP;
  RETURN us_since(start, n);
END $$;

CREATE FUNCTION one_call_each(server text, sql text, n int) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM pgpool.query(server, sql) AS t(a int);
  END LOOP;
  RETURN us_since(start, n);
END $$;

-- CPU time of a process in us, and how often it has slept
CREATE FUNCTION cpu_us(pid int) RETURNS numeric LANGUAGE sql AS
$$ SELECT split_part(pg_read_file('/proc/' || pid || '/schedstat'), ' ', 1)::numeric / 1000 $$;
CREATE FUNCTION sleeps(pid int) RETURNS bigint LANGUAGE sql AS
$$ SELECT substring(pg_read_file('/proc/' || pid || '/status')
     FROM '\nvoluntary_ctxt_switches:\s*(\d+)')::bigint $$;

-- "select 1" on a held lease, on a pool (each), or on a named connection of dblink. CPU
-- time per query of the process "relay", and of it, this session and its remote backend.
CREATE FUNCTION cpu_of_queries(how text, server text, relay int, n int)
RETURNS TABLE (key text, value numeric) LANGUAGE plpgsql AS $$
DECLARE
  lease bigint;
  remote int;
  v int;
  x text;
  start timestamptz;
  before numeric[];
  after numeric[];
BEGIN
  CASE how
    WHEN 'held' THEN
      lease := pgpool.checkout(server);
      SELECT * INTO remote FROM pgpool.query(lease, 'select pg_backend_pid()') AS t(a int);
    WHEN 'each' THEN
      SELECT * INTO remote FROM pgpool.query(server, 'select pg_backend_pid()') AS t(a int);
    WHEN 'dblink' THEN
      x := dblink_connect('c', server);
      SELECT * INTO remote FROM dblink('c', 'select pg_backend_pid()') AS t(a int);
  END CASE;
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN
      before := ARRAY[cpu_us(relay), cpu_us(pg_backend_pid()), cpu_us(remote), sleeps(relay)];
      start := clock_timestamp();
    END IF;
    CASE how
      WHEN 'held' THEN SELECT * INTO v FROM pgpool.query(lease, 'select 1') AS t(a int);
      WHEN 'each' THEN SELECT * INTO v FROM pgpool.query(server, 'select 1') AS t(a int);
      WHEN 'dblink' THEN SELECT * INTO v FROM dblink('c', 'select 1') AS t(a int);
    END CASE;
  END LOOP;
  RETURN QUERY SELECT 'us', us_since(start, n);
  after := ARRAY[cpu_us(relay), cpu_us(pg_backend_pid()), cpu_us(remote), sleeps(relay)];
  RETURN QUERY SELECT 'cpu', round((after[1] - before[1]) / n, 3);
  RETURN QUERY SELECT 'all',
    round((after[1] + after[2] + after[3] - before[1] - before[2] - before[3]) / n, 3);
  RETURN QUERY SELECT 'sleeps', round((after[4] - before[4]) / n, 2);
  IF lease IS NOT NULL THEN
    PERFORM pgpool.checkin(lease);
  ELSIF how = 'dblink' THEN
    PERFORM dblink_disconnect('c');
  END IF;
END $$;

-- postgres_fdw, a transaction per statement
CREATE PROCEDURE fdw_each(name text, n int, INOUT us numeric) LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    EXECUTE 'SELECT a FROM ' || name INTO v;
    COMMIT;
  END LOOP;
  us := us_since(start, n);
END $$;

-- milliseconds of one large result
CREATE FUNCTION rows_ms(query text, expected bigint) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  n bigint;
  ms numeric;
BEGIN
  start := clock_timestamp();
  EXECUTE query INTO n;
  ms := us_since(start, 1000);
  IF n IS DISTINCT FROM expected THEN
    RAISE EXCEPTION '% instead of %', n, expected;
  END IF;
  RETURN ms;
END $$;

CREATE FUNCTION rows_by_pool(server text, sql text, columns text, expected bigint,
  what text DEFAULT 'count(*)') RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  l bigint := pgpool.checkout(server);
  ms numeric;
BEGIN
  ms := rows_ms(format('SELECT %s FROM pgpool.query(%L::bigint, %L) AS t(%s)', what, l, sql, columns),
    expected);
  PERFORM pgpool.checkin(l);
  RETURN ms;
END $$;

CREATE FUNCTION rows_by_dblink(server text, sql text, columns text, expected bigint,
  what text DEFAULT 'count(*)') RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  l text := dblink_connect('c', server);
  ms numeric;
BEGIN
  ms := rows_ms(format('SELECT %s FROM dblink(%L, %L) AS t(%s)', what, 'c', sql, columns), expected);
  l := dblink_disconnect('c');
  RETURN ms;
END $$;
