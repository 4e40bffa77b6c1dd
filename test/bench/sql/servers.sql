-- Foreign servers of pgpool_ext and of the programs to compare with.
--
-- psql variables: host, port, database, secret; sockets, and the ports there of
-- PgBouncer: bouncer, bouncer_reset (which resets after each transaction),
-- bouncer_tls (with TLS to the remote server) and bouncer_tls_reset (with both).
CREATE EXTENSION pgpool_ext;
CREATE EXTENSION dblink;
CREATE EXTENSION postgres_fdw;

-- p1, p4, ..: pools with this number of connections. Measurements of many sessions use
-- remote roles of their own, so that their remote backends can be counted.
SELECT format($$
  CREATE SERVER %1$s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS
    (host %2$L, port %3$L, dbname %4$L, sslmode %5$L, pool_size %6$L, reset %7$L,
    checkout_timeout '2min');
  CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s OPTIONS (user %8$L, password %9$L)$$,
  name, :'host', :'port', :'database', CASE WHEN name LIKE '%\_tls%' THEN 'require' ELSE 'disable' END,
  size, reset, role, :'secret')
FROM (VALUES
  ('p1', 1, 'always', 'remote_app'), ('p4', 4, 'always', 'remote_app'),
  ('p1_never', 1, 'never', 'remote_app'),
  ('p1_tls', 1, 'always', 'remote_app'), ('p8_tls', 8, 'always', 'remote_tls'),
  ('p8_tls_never', 8, 'never', 'remote_tls_never'),
  ('p8', 8, 'always', 'remote_pool'), ('p8_never', 8, 'never', 'remote_never')
) AS v(name, size, reset, role) \gexec

-- for one-shot calls of dblink, which no option keeps from the pool
CREATE SERVER p8_default FOREIGN DATA WRAPPER pgpool_fdw OPTIONS
  (host :'host', port :'port', dbname :'database', sslmode 'disable', pool_size '8', checkout_timeout '2min');
CREATE USER MAPPING FOR CURRENT_USER SERVER p8_default OPTIONS (user 'remote_pool', password :'secret');

-- of dblink: d, and m for many sessions
SELECT format($$
  CREATE SERVER %1$s FOREIGN DATA WRAPPER dblink_fdw OPTIONS
    (host %2$L, port %3$L, dbname %4$L, sslmode %5$L);
  CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s OPTIONS (user %6$L, password %7$L)$$,
  name, host, port, :'database', sslmode, role, :'secret')
FROM (VALUES
  ('d', :'host', :'port', 'disable', 'remote_app'),
  ('d_tls', :'host', :'port', 'require', 'remote_app'),
  ('m', :'host', :'port', 'disable', 'remote_each'),
  ('d_bouncer', :'sockets', :'bouncer', 'disable', 'remote_bouncer'),
  ('d_bouncer_reset', :'sockets', :'bouncer_reset', 'disable', 'remote_bouncer'),
  ('d_bouncer_tls', :'sockets', :'bouncer_tls', 'disable', 'remote_bouncer'),
  ('d_bouncer_tls_reset', :'sockets', :'bouncer_tls_reset', 'disable', 'remote_bouncer')
) AS v(name, host, port, sslmode, role) WHERE port <> '' \gexec

-- of postgres_fdw
SELECT format($$
  CREATE SERVER %1$s FOREIGN DATA WRAPPER postgres_fdw OPTIONS
    (host %2$L, port %3$L, dbname %4$L, sslmode %5$L, keep_connections %6$L);
  CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s OPTIONS (user %7$L, password %8$L);
  CREATE FOREIGN TABLE one_%1$s (a int) SERVER %1$s OPTIONS (schema_name 'public', table_name 'one')$$,
  name, :'host', :'port', :'database', sslmode, keep, role, :'secret')
FROM (VALUES
  ('f', 'disable', 'on', 'remote_app'),
  ('f_tls', 'require', 'on', 'remote_app'), ('f_each', 'disable', 'on', 'remote_each')
) AS v(name, sslmode, keep, role) \gexec
CREATE FOREIGN TABLE accounts (aid int, abalance int) SERVER f_each
  OPTIONS (schema_name 'public', table_name 'pgbench_accounts');
