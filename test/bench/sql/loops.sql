CREATE FUNCTION us_since(start timestamptz, n int) RETURNS numeric
LANGUAGE sql AS
$$ SELECT round(extract(epoch FROM clock_timestamp() - start) * 1e6 / n, 3) $$;

-- Make a function that executes the statements of "body" n times, after a tenth of n that
-- does not count, and returns the time of one execution.
CREATE PROCEDURE make_loop(name text, parameters text, variables text, body text, finish text DEFAULT '')
LANGUAGE plpgsql AS $make$
BEGIN
  EXECUTE format('CREATE FUNCTION %s(%s n int) RETURNS numeric LANGUAGE plpgsql AS %L', name, parameters, format($$
DECLARE
  start timestamptz;
  %s
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    %s
  END LOOP;
  %s
  RETURN us_since(start, n);
END $$, variables, body, finish));
END $make$;

-- checkout and checkin (there are no variables of type void); an advisory lock
CALL make_loop('advisory_pair', '', 'b boolean;', 'b := pg_try_advisory_lock(1); b := pg_advisory_unlock(1);');
CALL make_loop('lease_pair', 'server text,', 'l bigint; x text;', 'l := pgpool.checkout(server); x := pgpool.checkin(l);');

-- a statement on a held lease, and on a named connection of dblink
CALL make_loop('held_lease', 'server text, sql text,', 'l bigint := pgpool.checkout(server); v int;',
  'SELECT * INTO v FROM pgpool.query(l, sql) AS t(a int);', 'PERFORM pgpool.checkin(l);');
CALL make_loop('held_exec', 'server text, sql text,', 'l bigint := pgpool.checkout(server); v bigint;',
  'v := pgpool.exec(l, sql);', 'PERFORM pgpool.checkin(l);');
CALL make_loop('dblink_named', 'server text, sql text,', $$l text := dblink_connect('c', server); v int;$$,
  $$SELECT * INTO v FROM dblink('c', sql) AS t(a int);$$, $$l := dblink_disconnect('c');$$);

-- a lease per statement; calls that name a server
CALL make_loop('lease_each', 'server text, sql text,', 'l bigint; v int; x text;',
  'l := pgpool.checkout(server); SELECT * INTO v FROM pgpool.query(l, sql) AS t(a int); x := pgpool.checkin(l);');
CALL make_loop('one_call_each', 'server text, sql text,', 'v int;',
  'SELECT * INTO v FROM pgpool.query(server, sql) AS t(a int);');
CALL make_loop('dblink_each', 'server text, sql text,', 'v int;',
  'SELECT * INTO v FROM dblink(server, sql) AS t(a int);');

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

-- a query in a transaction of its own, n times
CREATE PROCEDURE each_in_its_transaction(query text, n int, INOUT us numeric) LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    EXECUTE query INTO v;
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
