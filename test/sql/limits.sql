--
-- Limits that are used up; settings.
--

-- one session leases all connections of shared memory
SELECT test.server('huge', 'pool_size', '1000');
SELECT test.server('late', 'pool_size', '1');
DO $$
BEGIN
	LOOP
		PERFORM pgpool.checkout('huge', '30 s');
	END LOOP;
EXCEPTION WHEN deadlock_detected THEN
	-- the leases belong to the session, so they survive the block
	RAISE NOTICE 'no more';
END $$;
SELECT count(*) = current_setting('pgpool_ext.max_connections')::int AS all_used FROM pgpool.connections;
SELECT sum(connections) = current_setting('pgpool_ext.max_connections')::int AS all_used FROM pgpool.workers;
-- no other pool can allocate a slot
SELECT pgpool.checkout('late');
SELECT pgpool.checkout('late', '1 min');
SELECT pgpool.exec('late', 'select 1');
SELECT pgpool.try_checkout('late') IS NULL AS none_free;
-- leases have different connections
SELECT count(*) > 10 AS many, count(*) = count(DISTINCT test.remote_pid(lease)) AS different
  FROM pgpool.leases WHERE pid = pg_backend_pid();
-- one slot becomes free
SELECT pgpool.discard(lease) FROM pgpool.leases WHERE pid = pg_backend_pid() LIMIT 1;
SELECT pgpool.checkout('late', '10 s') > 0 AS leased;
-- another session waits for a connection or a slot
ALTER SERVER late OPTIONS (SET pool_size '2');
SELECT test.other_session('other');
SELECT dblink_send_query('other', 'SELECT pgpool.checkout(''late'', ''1 min'') > 0');
SELECT test.wait_for('SELECT test.waiting(''late'') = 1');
SELECT pgpool.discard(max(lease)) FROM pgpool.leases WHERE server = 'huge';
SELECT * FROM dblink_get_result('other') AS t(leased boolean);
SELECT * FROM dblink_get_result('other') AS t(leased boolean);
SELECT test.other('other', 'SELECT pgpool.discard(lease) FROM pgpool.leases WHERE pid = pg_backend_pid()');
SELECT dblink_disconnect('other');
SELECT count(pgpool.discard(lease)) > 10 AS many FROM pgpool.leases WHERE pid = pg_backend_pid();
SELECT pgpool.checkin_all();
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.connections WHERE server IN (''huge'', ''late'')');
SELECT test.drop('huge', 'late');

-- settings and their contexts
SELECT name, setting, unit, context, min_val, max_val, vartype FROM pg_settings
 WHERE name LIKE 'pgpool\_ext.%' AND name <> 'pgpool_ext.max_connections' ORDER BY name COLLATE "C";
SELECT count(*) AS without_description FROM pg_settings
 WHERE name LIKE 'pgpool\_ext.%' AND short_desc IS NULL;
SET pgpool_ext.max_connections = 1;
SET pgpool_ext.default_pool_size = 1;
SET pgpool_ext.nonsense = 1;
SET ROLE regress_pgpool_app;
SET pgpool_ext.log_min_wait = 0;
SET pgpool_ext.checkout_timeout = '1s';
RESET pgpool_ext.checkout_timeout;
RESET ROLE;

SELECT pgpool.check_invariants();
