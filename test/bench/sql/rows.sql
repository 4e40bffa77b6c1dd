-- Large results with postgres_fdw, and loops that read single rows.
CREATE FOREIGN TABLE rows_narrow (a int) SERVER f
  OPTIONS (schema_name 'public', table_name 'narrow', fetch_size '10000');
CREATE FOREIGN TABLE rows_mixed (a int, b text, c timestamptz, d numeric) SERVER f
  OPTIONS (schema_name 'public', table_name 'mixed', fetch_size '10000');
CREATE FOREIGN TABLE rows_numbers (a int, b int, c bigint, d bigint, e float8, f float8, g int, h int)
  SERVER f OPTIONS (schema_name 'public', table_name 'numbers', fetch_size '10000');
CREATE FOREIGN TABLE rows_texts (a int, b text) SERVER f
  OPTIONS (schema_name 'public', table_name 'texts', fetch_size '10000');

CREATE FUNCTION single_by_pool(server text, n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l bigint := pgpool.checkout(server);
  v record;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM pgpool.query(l, 'select * from mixed where a = $1', 4711)
      AS t(a int, b text, c timestamptz, d numeric);
  END LOOP;
  PERFORM pgpool.checkin(l);
  RETURN us_since(start, n);
END $$;

CREATE FUNCTION single_by_dblink(server text, n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  l text := dblink_connect('c', server);
  v record;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM dblink('c', 'select * from mixed where a = ' || 4711)
      AS t(a int, b text, c timestamptz, d numeric);
  END LOOP;
  l := dblink_disconnect('c');
  RETURN us_since(start, n);
END $$;

CREATE FUNCTION single_by_fdw(n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  v record;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM rows_mixed WHERE a = 4711;
  END LOOP;
  RETURN us_since(start, n);
END $$;
