-- The same foreign tables in two schemas: peer, on servers of postgres_fdw, and ours, on pools.
--
-- psql variables: host, port, database, secret.
SELECT format($$
  CREATE SCHEMA %1$s;
  CREATE SERVER %1$s_one FOREIGN DATA WRAPPER %2$s OPTIONS (host %3$L, port %4$L, dbname %5$L, sslmode 'disable' %6$s);
  CREATE SERVER %1$s_many FOREIGN DATA WRAPPER %2$s OPTIONS (host %3$L, port %4$L, dbname %5$L, sslmode 'disable' %7$s);
  CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s_one OPTIONS (user 'remote_app', password %8$L);
  CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s_many OPTIONS (user %9$L, password %8$L);
  CREATE FOREIGN TABLE %1$s.one (a int) SERVER %1$s_one OPTIONS (schema_name 'public');
  CREATE FOREIGN TABLE %1$s.point (aid int, abalance int) SERVER %1$s_one
    OPTIONS (schema_name 'public', table_name 'pgbench_accounts');
  CREATE FOREIGN TABLE %1$s.accounts (aid int, abalance int) SERVER %1$s_many
    OPTIONS (schema_name 'public', table_name 'pgbench_accounts');
  CREATE FOREIGN TABLE %1$s.mixed (a int, b text, c timestamptz, d numeric) SERVER %1$s_one
    OPTIONS (schema_name 'public');
  CREATE FOREIGN TABLE %1$s.mixed_10000 (a int, b text, c timestamptz, d numeric) SERVER %1$s_one
    OPTIONS (schema_name 'public', table_name 'mixed', fetch_size '10000');
  CREATE FOREIGN TABLE %1$s.inserted (a int, b text) SERVER %1$s_one OPTIONS (schema_name 'public');
  CREATE FOREIGN TABLE %1$s.inserted_100 (a int, b text) SERVER %1$s_one
    OPTIONS (schema_name 'public', table_name 'inserted', batch_size '100');
  CREATE TABLE %1$s.slow (n int, a text) PARTITION BY LIST (n)$$,
  name, wrapper, :'host', :'port', :'database', one, many, :'secret', role)
FROM (VALUES
  ('peer', 'postgres_fdw', '', '', 'remote_each'),
  ('ours', 'pgpool_fdw', ', pool_size ''1''', ', pool_size ''8'', checkout_timeout ''2min''', 'remote_foreign')
) AS v(name, wrapper, one, many, role) \gexec

-- four servers, with statements of 100 ms each
SELECT format($$
  CREATE SERVER %1$s_%2$s FOREIGN DATA WRAPPER %3$s OPTIONS (host %4$L, port %5$L, dbname %6$L, sslmode 'disable');
  CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s_%2$s OPTIONS (user 'remote_app', password %7$L);
  CREATE FOREIGN TABLE %1$s.slow_%2$s PARTITION OF %1$s.slow FOR VALUES IN (%2$s) SERVER %1$s_%2$s
    OPTIONS (schema_name 'public', table_name 'slow', async_capable 'true')$$,
  name, n, wrapper, :'host', :'port', :'database', :'secret')
FROM (VALUES ('peer', 'postgres_fdw'), ('ours', 'pgpool_fdw')) AS v(name, wrapper), generate_series(1, 4) AS n \gexec

-- two servers without the option two_phase_commit, and two with it; ledger is a local table
SELECT format('CREATE SCHEMA two_phase_%1$s; CREATE TABLE two_phase_%1$s.ledger (a int)', setting)
FROM unnest(array['off', 'on']) AS setting \gexec
SELECT format($$
  CREATE SERVER two_phase_%1$s_%2$s FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (host %3$L, port %4$L, dbname %5$L, sslmode 'disable', pool_size '1', two_phase_commit %1$L);
  CREATE USER MAPPING FOR CURRENT_USER SERVER two_phase_%1$s_%2$s OPTIONS (user 'remote_app', password %6$L);
  CREATE FOREIGN TABLE two_phase_%1$s.one_%2$s (a int) SERVER two_phase_%1$s_%2$s
    OPTIONS (schema_name 'public', table_name 'one');
  CREATE FOREIGN TABLE two_phase_%1$s.transferred_%2$s (a int) SERVER two_phase_%1$s_%2$s
    OPTIONS (schema_name 'public', table_name 'transferred')$$,
  setting, n, :'host', :'port', :'database', :'secret')
FROM unnest(array['off', 'on']) AS setting, generate_series(1, 2) AS n \gexec

CREATE FUNCTION insert_ms(name text, n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
  start timestamptz := clock_timestamp();
BEGIN
  EXECUTE format('INSERT INTO %s SELECT i, ''row '' || i FROM generate_series(1, %s) AS i', name, n);
  RETURN us_since(start, 1000);
END $$;

-- the peak memory of this session, in MB
CREATE FUNCTION memory_peak() RETURNS numeric LANGUAGE sql AS
$$ SELECT round(substring(pg_read_file('/proc/self/status') FROM 'VmHWM:\s+(\d+)')::numeric / 1024, 1) $$;
