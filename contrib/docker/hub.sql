-- The hub's objects are those of "make demo": foreign tables of postgres_fdw, attached to
-- pools.  Role app logs in over the Unix-domain socket of the container.
CREATE EXTENSION postgres_fdw;
CREATE EXTENSION dblink;
CREATE EXTENSION pgpool_ext;
CREATE ROLE app LOGIN;

CREATE SERVER shard1 FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'shard1', dbname 'remote_db');
CREATE SERVER shard2 FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'shard2', dbname 'remote_db');
CREATE USER MAPPING FOR app SERVER shard1 OPTIONS (user 'remote_app', password 'secret of the remote');
CREATE USER MAPPING FOR app SERVER shard2 OPTIONS (user 'remote_app', password 'secret of the remote');
GRANT USAGE ON FOREIGN SERVER shard1, shard2 TO app;

CREATE FOREIGN TABLE accounts1 (aid int, abalance int) SERVER shard1
	OPTIONS (schema_name 'public', table_name 'pgbench_accounts');
CREATE FOREIGN TABLE accounts2 (aid int, abalance int) SERVER shard2
	OPTIONS (schema_name 'public', table_name 'pgbench_accounts');
GRANT SELECT ON accounts1, accounts2 TO app;

SELECT pgpool.attach_postgres_fdw(), pgpool.attach_dblink();
