--
-- What the tests after this one build on: the extension, an ordinary role, and
-- two servers that lead to the remote cluster.
--
CREATE EXTENSION pgpool_ext;
CREATE ROLE regress_pgpool_user LOGIN;
GRANT CREATE ON SCHEMA public TO regress_pgpool_user;

-- The address of the remote differs from run to run.
DO $$
BEGIN
	EXECUTE format('CREATE SERVER shard1 FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host %L, port %L, dbname ''remote_db'', pool_size ''3'')',
		current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port'));
	EXECUTE format('CREATE SERVER one FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host %L, port %L, dbname ''remote_db'', pool_size ''1'')',
		current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port'));
END
$$;
CREATE USER MAPPING FOR CURRENT_USER SERVER shard1 OPTIONS (user 'remote_app', password 'secret of the remote');
CREATE USER MAPPING FOR CURRENT_USER SERVER one OPTIONS (user 'remote_app', password 'secret of the remote');
CREATE USER MAPPING FOR regress_pgpool_user SERVER shard1 OPTIONS (user 'remote_app', password 'secret of the remote');
CREATE USER MAPPING FOR regress_pgpool_user SERVER one OPTIONS (user 'remote_app', password 'secret of the remote');
GRANT USAGE ON FOREIGN SERVER shard1, one TO regress_pgpool_user;

SELECT * FROM pgpool.query('shard1', 'select current_user, 6 * 7') AS t(who text, answer int);
