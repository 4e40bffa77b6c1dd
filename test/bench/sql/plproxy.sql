-- PL/Proxy: clusters of one, two, four and eight partitions on the same remote server,
-- and the functions that it calls there. The connection strings of the partitions differ,
-- because partitions with the same one would share a connection. Variables: see servers.sql.
CREATE EXTENSION plproxy;
SELECT format('CREATE SERVER px%s FOREIGN DATA WRAPPER plproxy OPTIONS (%s)', n,
    (SELECT string_agg(format('p%s %L', i, format('host=%s port=%s dbname=%s sslmode=disable application_name=part%s',
      :'host', :'port', :'database', i)), ', ') FROM generate_series(0, n - 1) AS i))
  FROM unnest(array[1, 2, 4, 8]) AS n \gexec
SELECT format('CREATE USER MAPPING FOR CURRENT_USER SERVER px%s OPTIONS (user %L, password %L)',
    n, 'remote_app', :'secret')
  FROM unnest(array[1, 2, 4, 8]) AS n \gexec

CREATE FUNCTION proxy_one() RETURNS int LANGUAGE plproxy AS $$
  CLUSTER 'px1'; RUN ON 0; TARGET one_now; $$;
SELECT format('CREATE FUNCTION proxy_sleep%1$s(s float8) RETURNS SETOF int LANGUAGE plproxy AS
  ''CLUSTER ''''px%1$s''''; RUN ON ALL; TARGET sleep_then;''', n)
  FROM unnest(array[2, 4, 8]) AS n \gexec

-- many sessions, each with a connection of its own
SELECT format('CREATE SERVER px_each FOREIGN DATA WRAPPER plproxy OPTIONS (p0 %L)',
  format('host=%s port=%s dbname=%s sslmode=disable', :'host', :'port', :'database')) \gexec
SELECT format('CREATE USER MAPPING FOR CURRENT_USER SERVER px_each OPTIONS (user %L, password %L)',
  'remote_each', :'secret') \gexec
CREATE FUNCTION proxy_account(account int) RETURNS int LANGUAGE plproxy AS $$
  CLUSTER 'px_each'; RUN ON 0; SELECT abalance FROM pgbench_accounts WHERE aid = account; $$;

CREATE FUNCTION proxy_loop(n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz;
  v int;
BEGIN
  FOR turn IN 1 .. n + n / 10 LOOP
    IF turn = 1 + n / 10 THEN start := clock_timestamp(); END IF;
    SELECT * INTO v FROM proxy_one() AS t(a);
  END LOOP;
  RETURN us_since(start, n);
END $$;
