-- Group 12: calls on large pools and on many pools, with their CPU time.
CREATE EXTENSION pgpool_ext;
CREATE EXTENSION dblink;

-- CPU time of processes in us
CREATE FUNCTION cpu_us(pids text[]) RETURNS numeric LANGUAGE sql AS $$
SELECT sum(split_part(pg_read_file('/proc/' || pid || '/schedstat'), ' ', 1)::numeric) / 1000
FROM unnest(pids) AS pid $$;

-- us of a call on each of the servers in turn, and CPU time of session and worker
CREATE FUNCTION calls(servers text[], n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  warm int := greatest(n / 10, 2 * cardinality(servers));
  pids text[] := (SELECT ARRAY['self', pid::text] FROM pgpool.workers);
  start timestamptz;
  cpu numeric;
  v bigint;
BEGIN
  FOR turn IN 1 - warm .. n LOOP
    IF turn = 1 THEN cpu := cpu_us(pids); start := clock_timestamp(); END IF;
    v := pgpool.exec(servers[1 + (turn + warm) % cardinality(servers)], 'select 1');
  END LOOP;
  RETURN format(E'us %s\ncpu %s', round(extract(epoch FROM clock_timestamp() - start) * 1e6 / n, 3),
    round((cpu_us(pids) - cpu) / n, 3));
END $$;

-- the same on named connections of dblink
CREATE FUNCTION dblink_calls(conninfo text, connections int, n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  warm int := greatest(n / 10, 2 * connections);
  names text[] := ARRAY(SELECT 'c' || i FROM generate_series(1, connections) AS i);
  start timestamptz;
  cpu numeric;
  v text;
BEGIN
  PERFORM dblink_connect(name, conninfo) FROM unnest(names) AS name;
  FOR turn IN 1 - warm .. n LOOP
    IF turn = 1 THEN cpu := cpu_us('{self}'); start := clock_timestamp(); END IF;
    SELECT * INTO v FROM dblink(names[1 + (turn + warm) % connections], 'select 1') AS t(a text);
  END LOOP;
  v := format(E'us %s\ncpu %s', round(extract(epoch FROM clock_timestamp() - start) * 1e6 / n, 3),
    round((cpu_us('{self}') - cpu) / n, 3));
  PERFORM dblink_disconnect(name) FROM unnest(names) AS name;
  RETURN v;
END $$;

-- ms to read a view
CREATE FUNCTION view_ms(name text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
BEGIN
  EXECUTE format('SELECT count(*) FROM (SELECT * FROM pgpool.%I OFFSET 0) AS v WHERE v IS NOT NULL', name);
  start := clock_timestamp();
  EXECUTE format('SELECT count(*) FROM (SELECT * FROM pgpool.%I OFFSET 0) AS v WHERE v IS NOT NULL', name);
  RETURN round(extract(epoch FROM clock_timestamp() - start) * 1000, 3);
END $$;
