-- The loops of the bench.  Each returns microseconds of one turn; what is
-- compared has the same form: assignments, or SELECT INTO.  A tenth as many turns
-- go before, unmeasured.
--
-- psql variables: host, port, database, secret.
CREATE EXTENSION pgpool_ext;
CREATE EXTENSION dblink;
CREATE EXTENSION postgres_fdw;

-- p1 and p4: pools of one and of four connections.  p8 and m: many sessions, on
-- eight connections and on one each, under roles of their own, to be counted.
CREATE SERVER p1 FOREIGN DATA WRAPPER pgpool_fdw OPTIONS
  (host :'host', port :'port', dbname :'database', sslmode 'disable', pool_size '1');
CREATE SERVER p4 FOREIGN DATA WRAPPER pgpool_fdw OPTIONS
  (host :'host', port :'port', dbname :'database', sslmode 'disable', pool_size '4');
CREATE SERVER p8 FOREIGN DATA WRAPPER pgpool_fdw OPTIONS
  (host :'host', port :'port', dbname :'database', sslmode 'disable', pool_size '8');
CREATE SERVER d FOREIGN DATA WRAPPER dblink_fdw OPTIONS
  (host :'host', port :'port', dbname :'database', sslmode 'disable');
CREATE SERVER m FOREIGN DATA WRAPPER dblink_fdw OPTIONS
  (host :'host', port :'port', dbname :'database', sslmode 'disable');
CREATE SERVER f FOREIGN DATA WRAPPER postgres_fdw OPTIONS
  (host :'host', port :'port', dbname :'database', sslmode 'disable');
CREATE USER MAPPING FOR CURRENT_USER SERVER p1 OPTIONS (user 'remote_app', password :'secret');
CREATE USER MAPPING FOR CURRENT_USER SERVER p4 OPTIONS (user 'remote_app', password :'secret');
CREATE USER MAPPING FOR CURRENT_USER SERVER p8 OPTIONS (user 'remote_pool', password :'secret');
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (user 'remote_app', password :'secret');
CREATE USER MAPPING FOR CURRENT_USER SERVER m OPTIONS (user 'remote_each', password :'secret');
CREATE USER MAPPING FOR CURRENT_USER SERVER f OPTIONS (user 'remote_app', password :'secret');
CREATE FOREIGN TABLE one (a int) SERVER f OPTIONS (schema_name 'public');

CREATE FUNCTION us_since(start timestamptz, n int) RETURNS numeric
LANGUAGE sql AS
$$ SELECT round(extract(epoch FROM clock_timestamp() - start) * 1e6 / n, 3) $$;

-- 1: a lease and its end, against an advisory lock and its end
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

-- the form itself: functions that do nothing (volatile: not folded when planned)
CREATE FUNCTION nothing(bigint) RETURNS bigint LANGUAGE internal VOLATILE AS 'int8up';
CREATE FUNCTION nothing_void(cstring) RETURNS void LANGUAGE internal VOLATILE AS 'void_in';
CREATE FUNCTION empty_pair(n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l bigint;
  x text;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    l := nothing(1);
    x := nothing_void('');
  END LOOP;
  RETURN us_since(start, n);
END $$;

-- 2: a statement on a lease
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

-- the form itself
CREATE FUNCTION empty_select(n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  one int := 1;
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM generate_series(one, one) AS t(a);
  END LOOP;
  RETURN us_since(start, n);
END $$;

-- 3: a lease for each statement
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

-- open all connections of a pool
CREATE FUNCTION fill_pool(server text, size int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  l bigint;
BEGIN
  FOR i IN 1 .. size LOOP
    l := pgpool.checkout(server);
  END LOOP;
  RETURN pgpool.checkin_all();
END $$;

-- 6: milliseconds of one large result
CREATE FUNCTION rows_by_pool(sql text, columns text) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l bigint := pgpool.checkout('p1');
  n bigint;
  ms numeric;
BEGIN
  start := clock_timestamp();
  EXECUTE format('SELECT count(*) FROM pgpool.query(%L::bigint, %L) AS t(%s)', l, sql, columns)
    INTO n;
  ms := us_since(start, 1000);
  ASSERT n = 1000000;
  PERFORM pgpool.checkin(l);
  RETURN ms;
END $$;

CREATE FUNCTION rows_by_dblink(sql text, columns text) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l text := dblink_connect('c', 'd');
  n bigint;
  ms numeric;
BEGIN
  start := clock_timestamp();
  EXECUTE format('SELECT count(*) FROM dblink(%L, %L) AS t(%s)', 'c', sql, columns)
    INTO n;
  ms := us_since(start, 1000);
  ASSERT n = 1000000;
  l := dblink_disconnect('c');
  RETURN ms;
END $$;

-- 7: milliseconds of a slow query on one pool, and on eight at once
SELECT format('CREATE SERVER fan%1$s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server ''p1'', pool_size ''1'')', n)
  FROM generate_series(1, 8) AS n \gexec

CREATE FUNCTION one_by_pool(sql text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  v text;
BEGIN
  FOR turn IN 1 .. 11 LOOP
    IF turn = 2 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM pgpool.query('fan1', sql) AS t(a text);
  END LOOP;
  RETURN round(us_since(start, 10) / 1000, 3);
END $$;

CREATE FUNCTION eight_by_fanout(sql text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  pools text[] := (SELECT array_agg('fan' || n) FROM generate_series(1, 8) AS n);
  v bigint;
BEGIN
  FOR turn IN 1 .. 11 LOOP
    IF turn = 2 THEN start := clock_timestamp(); END IF;
    SELECT count(*) INTO v FROM pgpool.fanout(pools, sql) AS t(pool text, a text);
    ASSERT v = 8;
  END LOOP;
  RETURN round(us_since(start, 10) / 1000, 3);
END $$;
