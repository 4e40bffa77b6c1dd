-- PL/Proxy: two clusters of one partition on the remote server: px1, and px_each for many
-- sessions. Variables: see servers.sql.
CREATE EXTENSION plproxy;
SELECT format('CREATE SERVER %1$s FOREIGN DATA WRAPPER plproxy OPTIONS (p0 %2$L);
  CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s OPTIONS (user %3$L, password %4$L)', name,
    format('host=%s port=%s dbname=%s sslmode=disable', :'host', :'port', :'database'), role, :'secret')
  FROM (VALUES ('px1', 'remote_app'), ('px_each', 'remote_each')) AS v(name, role) \gexec

CREATE FUNCTION proxy_one() RETURNS int LANGUAGE plproxy AS $$
  CLUSTER 'px1'; RUN ON 0; TARGET one_now; $$;

CREATE FUNCTION proxy_account(account int) RETURNS int LANGUAGE plproxy AS $$
  CLUSTER 'px_each'; RUN ON 0; SELECT abalance FROM pgbench_accounts WHERE aid = account; $$;

CALL make_loop('proxy_loop', '', 'v int;', 'SELECT * INTO v FROM proxy_one() AS t(a);');
